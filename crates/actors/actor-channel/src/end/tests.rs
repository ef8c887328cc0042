#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::collections::VecDeque;
use std::os::fd::AsFd as _;
use std::sync::atomic::Ordering;

use model::Random;
use proptest::prelude::*;
use shared_memory::SharedWords;

use super::*;
use crate::checksum::{Head, checksum};
use crate::declared::Declared;
use crate::receiver::Weakness;

const SMALL: Limits = Limits {
    ring_bytes: 4096,
    message_bytes: 256,
};
const KEY: u32 = 0x5eed_0001;
const AT_ONCE: Order = Order::Declared(Declared::AT_ONCE);

fn pair(limits: Limits, order: impl Fn(Side) -> Order) -> (End, End) {
    let (file, card) = End::create(limits, Side::Card, order(Side::Card), KEY).unwrap();
    let host = End::attach(file.as_fd(), Side::Host, order(Side::Host)).unwrap();
    (card, host)
}

fn shuffled(piece_bytes: u16, seed: u64) -> impl Fn(Side) -> Order {
    move |side| Order::Shuffled {
        piece_bytes,
        pieces: 128 / piece_bytes,
        seed: seed + side as u64,
    }
}

/// Sends that many messages with reordered writes, and polls in between. Gives how many were taken that were not the
/// next one, and how many polls found a message in part.
fn torn(messages: u64, piece_bytes: u16, seed: u64, weakness: Weakness) -> (u64, u64) {
    let (mut card, mut host) = pair(SMALL, shuffled(piece_bytes, seed));
    host.receiver.weakness = weakness;
    let mut random = Random::new(seed);
    let mut sent = VecDeque::new();
    let (mut made, mut received, mut wrong) = (0, 0, 0);
    let mut spins = 0_u32;
    while received < messages {
        for _ in 0..random.below(4) {
            // Of few contents and lengths, so that what lies there from a lap before often is much like it.
            let length = [0, 1, 8, 56, 64, 200, 256][random.below(7) as usize];
            let mut message = vec![random.below(2) as u8; length];
            if length > 0 && random.below(2) == 0 {
                message[random.below(length as u64) as usize] = random.bits() as u8;
            }
            if made < messages && card.send(&[&message]).is_ok() {
                made += 1;
                sent.push_back(message);
            }
        }
        card.flush(Nanos::ZERO);
        for _ in 0..2 {
            let Ok(Some(message)) = host.receive() else { break };
            received += 1;
            spins = 0;
            if sent.pop_front().is_none_or(|sent| sent != message) {
                wrong += 1;
                if weakness != Weakness::None {
                    return (wrong, host.counters().not_whole);
                }
            }
        }
        host.flush(Nanos::ZERO);
        assert_eq!(card.receive(), Ok(None), "the host sends nothing");
        spins += 1;
        assert!(spins < 10_000 || weakness != Weakness::None, "it does not go on");
        if spins >= 10_000 {
            break;
        }
    }
    (wrong, host.counters().not_whole)
}

#[test]
fn no_message_is_taken_that_is_not_whole() {
    for (piece_bytes, seed) in [(8, 1), (64, 2)] {
        let (wrong, not_whole) = torn(100_000, piece_bytes, seed, Weakness::None);
        assert_eq!(wrong, 0);
        assert!(not_whole > 10_000, "{not_whole}: hardly one was torn");
    }
}

#[test]
fn the_reordered_writes_find_a_receiver_that_trusts_or_forgets_the_lap() {
    for weakness in [Weakness::Trusts, Weakness::ForgetsTheLap] {
        for piece_bytes in [8, 64] {
            assert_ne!(torn(100_000, piece_bytes, 3, weakness).0, 0, "{weakness:?}");
        }
    }
}

#[test]
fn two_full_directions_go_on() {
    let (mut card, mut host) = pair(SMALL, |_| AT_ONCE);
    let message = [7; 256];
    // Each side has sent all that it can before the other one reads anything.
    for _ in 0..100 {
        let mut rounds = [0; 2];
        for (end, count) in [&mut card, &mut host].into_iter().zip(&mut rounds) {
            while end.send(&[&message]).is_ok() {
                *count += 1;
            }
            end.flush(Nanos::ZERO);
        }
        assert!(rounds.iter().all(|count| *count > 0), "{rounds:?}");
        for end in [&mut card, &mut host] {
            while end.receive().unwrap().is_some() {}
            end.flush(Nanos::ZERO);
        }
        for end in [&mut card, &mut host] {
            assert_eq!(end.receive(), Ok(None));
            end.flush(Nanos::ZERO);
        }
    }
    for end in [card, host] {
        assert!(end.counters().told > 50, "{:?}", end.counters());
        assert_eq!(end.counters().full, 100);
    }
}

#[test]
fn a_message_is_there_after_the_declared_time() {
    let declared = Declared {
        latency: Nanos(1_000),
        bytes_per_second: 1_000_000_000,
    };
    let (mut card, mut host) = pair(SMALL, |_| Order::Declared(declared));
    card.send(&[&[1; 56]]).unwrap();
    card.flush(Nanos(10));
    card.send(&[&[2; 24]]).unwrap();
    card.flush(Nanos(20));
    // 64 bytes leave until 74 ns, 32 more until 106 ns; both arrive 1,000 ns later.
    for (now, arrived) in [(1_073, None), (1_074, Some(1)), (1_105, None), (1_106, Some(2))] {
        card.flush(Nanos(now));
        assert_eq!(
            host.receive().unwrap().map(|message| message[0]),
            arrived,
            "at {now} ns"
        );
    }
    assert!(card.is_written());
}

#[test]
fn parts_are_one_message() {
    let (mut card, mut host) = pair(SMALL, |_| AT_ONCE);
    card.send(&[b"a", b"", b"bcdefghij", b"k"]).unwrap();
    card.flush(Nanos::ZERO);
    assert_eq!(host.receive().unwrap(), Some(&b"abcdefghijk"[..]));
}

#[test]
fn a_message_that_is_too_long_is_not_sent() {
    let (mut card, mut host) = pair(SMALL, |_| AT_ONCE);
    let error = SendError::TooLong {
        bytes: 257,
        limit: 256,
    };
    assert_eq!(card.send(&[&[0; 257]]), Err(error));
    card.flush(Nanos::ZERO);
    assert_eq!(host.receive(), Ok(None));
}

/// The words of the ring that the card writes.
fn ring(memory: &SharedWords) -> &[std::sync::atomic::AtomicU64] {
    &memory.words()[512..1024]
}

/// Writes a message as a hostile card would that knows the key.
fn write(memory: &SharedWords, head: Head, message: &[u8]) {
    let mut bytes = head.bits().to_le_bytes().to_vec();
    bytes.extend(message);
    let sum = checksum(KEY, 0, [&bytes, &[]]);
    ring(memory)[0].store(u64::from(head.bits()) << 32 | u64::from(sum), Ordering::Relaxed);
    for (at, word) in message.chunks_exact(8).enumerate() {
        ring(memory)[1 + at].store(u64::from_le_bytes(word.try_into().unwrap()), Ordering::Relaxed);
    }
}

#[test]
fn a_side_that_says_it_read_what_was_not_sent_is_refused() {
    for (length, position, error) in [
        (8, 1_u64, ReceiveError::Credit(1)),
        (8, u64::MAX, ReceiveError::Credit(u64::MAX)),
        (16, 0, ReceiveError::CreditBytes(16)),
    ] {
        let (file, _card) = End::create(SMALL, Side::Card, AT_ONCE, KEY).unwrap();
        let mut host = End::attach(file.as_fd(), Side::Host, AT_ONCE).unwrap();
        let memory = SharedWords::open(file.as_fd()).unwrap();
        let head = Head {
            length,
            is_credit: true,
        };
        write(&memory, head, &position.to_le_bytes().repeat(length as usize / 8));
        assert_eq!(host.receive(), Err(error));
    }
}

#[test]
fn memory_that_is_no_channel_is_refused() {
    let (file, _memory) = SharedWords::create("test", 4096).unwrap();
    let attach = |file: &OwnedFd| End::attach(file.as_fd(), Side::Host, AT_ONCE).map(|_| ());
    assert!(matches!(attach(&file), Err(AttachError::NotAChannel)));
    for (word, value) in [
        (1, 2_u64),
        (2, 4095),
        (2, 1 << 40),
        (2, 8192),
        (3, 2048),
        (3, u64::MAX),
    ] {
        let (file, _card) = End::create(SMALL, Side::Card, AT_ONCE, KEY).unwrap();
        let memory = SharedWords::open(file.as_fd()).unwrap();
        memory.words()[word].store(value, Ordering::Relaxed);
        let error = attach(&file).unwrap_err();
        assert!(
            matches!(
                error,
                AttachError::Version(2)
                    | AttachError::RingBytes(_)
                    | AttachError::MessageBytes(_)
                    | AttachError::TooShort
            ),
            "{word} {value}: {error}"
        );
    }
}

proptest! {
    /// Whatever another process writes into a ring, a receiver gives nothing that has no right checksum.
    #[test]
    fn what_is_not_a_message_is_not_taken(words in proptest::collection::vec(any::<u64>(), 512)) {
        let (file, _card) = End::create(SMALL, Side::Card, AT_ONCE, KEY).unwrap();
        let mut host = End::attach(file.as_fd(), Side::Host, AT_ONCE).unwrap();
        let memory = SharedWords::open(file.as_fd()).unwrap();
        for (word, value) in ring(&memory).iter().zip(&words) {
            word.store(*value | 1 << 63, Ordering::Relaxed);
        }
        prop_assert_eq!(host.receive(), Ok(None));
    }

    /// Both directions at once, with every interleaving of the steps of the ends: all arrives, once, in order.
    #[test]
    fn everything_arrives_once_and_in_order(
        seed in any::<u64>(),
        piece_bytes in prop_oneof![Just(8_u16), Just(64)],
        steps in proptest::collection::vec((0..4_u8, 0..257_usize), 1..400),
    ) {
        let (card, host) = pair(SMALL, shuffled(piece_bytes, seed));
        let mut ends = [card, host];
        let mut under_way = [VecDeque::new(), VecDeque::new()];
        let mut number = 0_u32;
        let check = |ends: &mut [End; 2], under_way: &mut [VecDeque<Vec<u8>>; 2], at: usize| {
            let message = ends[at].receive().unwrap().map(<[u8]>::to_vec);
            if let Some(message) = &message {
                assert_eq!(Some(message), under_way[1 - at].pop_front().as_ref());
            }
            message.is_some()
        };
        for (step, length) in steps {
            let at = usize::from(step & 1);
            if step < 2 {
                number += 1;
                let message: Vec<u8> = number.to_le_bytes().iter().copied().cycle().take(length).collect();
                if ends[at].send(&[&message]).is_ok() {
                    under_way[at].push_back(message);
                }
                ends[at].flush(Nanos::ZERO);
            } else {
                check(&mut ends, &mut under_way, at);
            }
        }
        let mut turns = 0;
        while under_way.iter().any(|messages| !messages.is_empty()) {
            for at in 0..2 {
                ends[at].flush(Nanos::ZERO);
                while check(&mut ends, &mut under_way, at) {}
            }
            turns += 1;
            prop_assert!(turns < 10_000, "it does not go on");
        }
    }
}
