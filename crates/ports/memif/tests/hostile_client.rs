//! The server against clients that violate the protocol and overwrite the shared memory.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use memif::{Client, ClientConfig, Error, Link, Listener, RxError, ServerConfig, TxError};
use proptest::prelude::*;
use rustix::fs::SealFlags;

mod raw;

use raw::{BUFFERS_AT, Connected, REGION_BYTES, RING_BYTES, RawMemory, RawSocket, SLOTS};

struct Place {
    _directory: tempfile::TempDir,
    path: PathBuf,
    listener: Listener,
}

fn place(change: impl FnOnce(&mut ServerConfig)) -> Place {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("memif.sock");
    let mut config = ServerConfig::new("test");
    change(&mut config);
    let listener = Listener::bind(&path, config).unwrap();
    Place {
        _directory: directory,
        path,
        listener,
    }
}

/// Runs a manual client beside the listener.
fn against<T: Send>(place: &mut Place, client: impl FnOnce(&PathBuf) -> T + Send) -> (T, Option<Link>) {
    let Place { path, listener, .. } = place;
    thread::scope(|scope| {
        let client = scope.spawn(|| client(path));
        let mut link = None;
        while !client.is_finished() {
            if let Some(complete) = listener.accept(Duration::from_millis(1)).unwrap() {
                link = Some(complete);
            }
        }
        // The client's last message may still be in the socket.
        let link = link.or_else(|| listener.accept(Duration::from_millis(5)).unwrap());
        (client.join().unwrap(), link)
    })
}

/// A message with its descriptors.
type Step<'a> = (raw::Bytes, Vec<BorrowedFd<'a>>);

/// Sends messages until one is refused; returns the server's reason.
fn refusal(place: &mut Place, steps: Vec<Step<'_>>) -> (String, Error) {
    let (reason, link) = against(place, move |path| {
        let socket = RawSocket::connect(path);
        assert_eq!(raw::kind(&socket.receive().0), raw::HELLO);
        for (bytes, descriptors) in steps {
            assert!(socket.send(&bytes, &descriptors));
            let answer = socket.receive().0;
            if raw::kind(&answer) != raw::ACK {
                return raw::reason(&answer);
            }
        }
        panic!("the server refused nothing");
    });
    assert!(link.is_none());
    (
        reason,
        place.listener.take_refusal().expect("nothing was refused"),
    )
}

#[test]
fn unsafe_regions_are_refused() {
    let mut place = place(|config| config.max_region_bytes = 1 << 20);
    let unsealed = RawMemory::new(REGION_BYTES, SealFlags::empty());
    let grown_only = RawMemory::new(REGION_BYTES, SealFlags::GROW);
    let sealed = RawMemory::new(REGION_BYTES, SealFlags::SHRINK);
    let large = RawMemory::new(2 << 20, SealFlags::SHRINK);
    let file = tempfile::tempfile().unwrap();
    let (one, two) = (raw::eventfd(), raw::eventfd());
    let cases: [(BorrowedFd<'_>, u64, &str); 7] = [
        (unsealed.0.as_fd(), REGION_BYTES, "not sealed"),
        (grown_only.0.as_fd(), REGION_BYTES, "not sealed"),
        (file.as_fd(), REGION_BYTES, "not sealed"),
        (one.as_fd(), REGION_BYTES, "not sealed"),
        (sealed.0.as_fd(), REGION_BYTES + 1, "its file has"),
        (sealed.0.as_fd(), 0, "its file has"),
        (large.0.as_fd(), 2 << 20, "the limit is 1048576"),
    ];
    for (fd, bytes, expected) in cases {
        let (reason, error) = refusal(
            &mut place,
            vec![
                (raw::init(0), vec![]),
                (raw::add_region(0, bytes), vec![fd]),
                (raw::add_ring(true, 0, 0, 0, 6), vec![one.as_fd()]),
                (
                    raw::add_ring(false, 0, 0, RING_BYTES as u32, 6),
                    vec![two.as_fd()],
                ),
                (raw::message(raw::CONNECT, &[]), vec![]),
            ],
        );
        assert!(reason.contains(expected), "{reason}");
        assert!(error.to_string().contains(expected), "{error}");
    }
    assert_eq!(place.listener.refused(), 7);
    honest_client_is_served(&mut place);
}

#[test]
fn rings_outside_their_region_are_refused() {
    let mut place = place(|_| ());
    let (memory, ..) = raw::honest_memory();
    let (one, two) = (raw::eventfd(), raw::eventfd());
    for (region, offset, log2_slots, expected) in [
        (1, 0, 6, "do not fit"),
        (0, 8, 6, "do not fit"),
        (0, REGION_BYTES as u32, 6, "do not fit"),
        (0, REGION_BYTES as u32 - 64, 6, "do not fit"),
        (0, u32::MAX - 63, 14, "do not fit"),
        (0, 0, 15, "do not fit"),
        (0, 0, 255, "do not fit"),
        (0, 0, 0, "do not fit"),
        (0, BUFFERS_AT as u32, 6, "cookie"),
    ] {
        let (reason, _) = refusal(
            &mut place,
            vec![
                (raw::init(0), vec![]),
                (raw::add_region(0, REGION_BYTES), vec![memory.0.as_fd()]),
                (
                    raw::add_ring(true, 0, region, offset, log2_slots),
                    vec![one.as_fd()],
                ),
                (
                    raw::add_ring(false, 0, 0, RING_BYTES as u32, 6),
                    vec![two.as_fd()],
                ),
                (raw::message(raw::CONNECT, &[]), vec![]),
            ],
        );
        assert!(
            reason.contains(expected),
            "{region} {offset} {log2_slots}: {reason}"
        );
    }
    honest_client_is_served(&mut place);
}

#[test]
fn messages_out_of_sequence_are_refused() {
    let mut place = place(|config| {
        config.interface_ids = Some(BTreeSet::from([0, 9]));
        config.max_queues = 2;
    });
    let (memory, ..) = raw::honest_memory();
    let event = raw::eventfd();
    let (pipe, _writer) = rustix::pipe::pipe().unwrap();
    let region = (raw::add_region(0, REGION_BYTES), vec![memory.0.as_fd()]);
    let init = || (raw::init(0), vec![]);
    let cases: Vec<(Vec<Step<'_>>, &str)> = vec![
        (vec![region.clone()], "unexpected ADD_REGION"),
        (
            vec![(raw::message(raw::CONNECT, &[]), vec![])],
            "unexpected CONNECT",
        ),
        (vec![init(), init()], "unexpected INIT"),
        (
            vec![init(), (raw::message(raw::ACK, &[]), vec![])],
            "unexpected ACK",
        ),
        (vec![(raw::message(77, &[]), vec![])], "unknown message type 77"),
        (vec![(raw::init(5), vec![])], "id 5 not found"),
        (
            vec![(raw::message(raw::INIT, &[(2, &0x0100_u16.to_ne_bytes())]), vec![])],
            "incompatible",
        ),
        (
            vec![(
                raw::message(raw::INIT, &[(2, &0x0200_u16.to_ne_bytes()), (8, &[1])]),
                vec![],
            )],
            "not Ethernet",
        ),
        (
            vec![init(), (raw::add_region(0, 4096), vec![])],
            "with 0 file descriptors",
        ),
        (
            vec![
                init(),
                (raw::add_region(0, 4096), vec![event.as_fd(), event.as_fd()]),
            ],
            "with 2 file descriptors",
        ),
        (
            vec![init(), (raw::add_region(1, 4096), vec![event.as_fd()])],
            "region index 1",
        ),
        (
            vec![init(), (raw::add_ring(true, 1, 0, 0, 6), vec![event.as_fd()])],
            "ring index 1",
        ),
        (
            vec![
                init(),
                (raw::add_ring(true, 0, 0, 0, 6), vec![event.as_fd()]),
                (raw::add_ring(true, 1, 0, 0, 6), vec![event.as_fd()]),
                (raw::add_ring(true, 2, 0, 0, 6), vec![event.as_fd()]),
            ],
            "ring index 2",
        ),
        (
            vec![init(), (raw::add_ring(true, 0, 0, 0, 6), vec![pipe.as_fd()])],
            "neither an eventfd nor a socket",
        ),
        (
            vec![init(), (raw::message(raw::CONNECT, &[]), vec![])],
            "at least one",
        ),
        (
            vec![
                init(),
                region.clone(),
                (raw::add_ring(true, 0, 0, 0, 6), vec![event.as_fd()]),
                (raw::message(raw::CONNECT, &[]), vec![]),
            ],
            "as many each way",
        ),
    ];
    let count = cases.len() as u64;
    for (steps, expected) in cases {
        let (reason, _) = refusal(&mut place, steps);
        assert!(reason.contains(expected), "{reason} instead of {expected}");
    }
    assert_eq!(place.listener.refused(), count);
    honest_client_is_served(&mut place);
}

/// More than may be in a handshake at once, and none of them is ever heard again: the next client takes the place of
/// one.
#[test]
fn many_stalled_clients_delay_no_other() {
    const STALLED: usize = 90;
    let hour = Duration::from_secs(3600);
    let mut place = place(|config| config.handshake_timeout = hour);
    let stalled: Vec<RawSocket> = (0..STALLED)
        .map(|_| {
            let client = RawSocket::connect(&place.path);
            // It waits for the first message, and never answers.
            assert!(place.listener.accept(Duration::ZERO).unwrap().is_none());
            client
        })
        .collect();
    let path = place.path.clone();
    let real = thread::spawn(move || raw::connect(&path, 3));
    let link = place.listener.accept(Duration::from_secs(20)).unwrap();
    assert_eq!(link.expect("the real client waits").interface_id, 3);
    real.join().unwrap();
    // Those that came first have lost their places, and were told why.
    let places = 32;
    let lost = STALLED + 1 - places;
    assert_eq!(place.listener.refused(), lost as u64);
    assert_eq!(raw::kind(&stalled[lost - 1].receive().0), raw::HELLO);
    let told = raw::reason(&stalled[lost - 1].receive().0);
    assert_eq!(told, "handshake timed out: other clients wait");
}

#[test]
fn a_stalled_client_blocks_no_other_and_times_out() {
    let mut place = place(|config| config.handshake_timeout = Duration::from_millis(100));
    // More than the listener handles at once, all silent.
    let silent: Vec<RawSocket> = (0..40).map(|_| RawSocket::connect(&place.path)).collect();
    let begin = Instant::now();
    let path = place.path.clone();
    let client = thread::spawn(move || Client::connect(&ClientConfig::new(path, 0), Duration::from_secs(5)));
    let link = place
        .listener
        .accept(Duration::from_secs(5))
        .unwrap()
        .expect("the honest client was not served");
    client.join().unwrap().unwrap();
    assert!(begin.elapsed() < Duration::from_secs(3));
    drop(link);
    while place.listener.refused() < 40 {
        assert!(begin.elapsed() < Duration::from_secs(5));
        assert!(
            place
                .listener
                .accept(Duration::from_millis(20))
                .unwrap()
                .is_none()
        );
    }
    assert!(matches!(
        place.listener.take_refusal(),
        Some(Error::Timeout { .. })
    ));
    drop(silent);
}

#[test]
fn descriptors_are_validated_in_both_directions() {
    let mut place = place(|_| ());
    let (client, link) = against(&mut place, |path| raw::connect(path, 0));
    let Connected {
        memory,
        to_server,
        to_client,
        bytes,
        ..
    } = &client;
    let mut link = link.expect("no link");
    let queue = &mut link.queues[0];
    let end = *bytes as u32;
    let cases = [
        (raw::descriptor(0, 0, 100, end - 100), Ok(100)),
        (raw::descriptor(0, 0, 100, end - 99), Err(RxError::BadDescriptor)),
        (raw::descriptor(0, 1, 100, 0), Err(RxError::BadDescriptor)),
        (raw::descriptor(0, u16::MAX, 100, 0), Err(RxError::BadDescriptor)),
        (
            raw::descriptor(0, 0, u32::MAX, u32::MAX),
            Err(RxError::BadDescriptor),
        ),
        (raw::descriptor(0, 0, u32::MAX, 1), Err(RxError::BadDescriptor)),
        (raw::descriptor(0, 0, 0, 0), Err(RxError::BadDescriptor)),
        (
            raw::descriptor(0, 0, 3000, 0),
            Err(RxError::TooLarge { len: 3000 }),
        ),
    ];
    for (slot, (descriptor, _)) in cases.iter().enumerate() {
        memory.set_descriptor(*to_server, slot as u64, *descriptor);
    }
    memory.set_head(*to_server, cases.len() as u16);
    let mut frame = [0; 2048];
    for (_, expected) in cases {
        assert_eq!(queue.rx.pop(&mut frame), Some(expected));
    }
    assert_eq!(queue.rx.pop(&mut frame), None);
    assert_eq!(
        memory.tail(*to_server),
        8,
        "the slots went back when the ring was found empty"
    );
    assert_eq!(
        (queue.rx.counters().bad_descriptors, queue.rx.counters().too_large),
        (6, 1)
    );

    // The same in one burst; the receiver decides what fits.
    for (slot, (descriptor, _)) in (8..).zip(&cases) {
        memory.set_descriptor(*to_server, slot, *descriptor);
    }
    memory.set_head(*to_server, 16);
    let mut taken = Vec::new();
    let all = queue.rx.take_burst(100, |packet| {
        taken.push((packet.len(), packet.copy_to(&mut frame)));
    });
    assert_eq!((all, taken), (8, vec![(100, true), (3000, false)]));
    assert_eq!(
        (queue.rx.counters().bad_descriptors, queue.rx.counters().too_large),
        (12, 1)
    );
    queue.rx.release();
    assert_eq!(memory.tail(*to_server), 16);

    // A posted buffer outside the memory: a burst stops there, and this end gives up on the ring.
    memory.set_descriptor(*to_client, 0, raw::descriptor(0, 0, 2048, end - 2047));
    assert_eq!(queue.tx.push_burst(&[[1; 60]; 3], |frame| frame, 2048).packets, 0);
    assert_eq!(queue.tx.push(&[1; 60]), Err(TxError::Violated));
    assert_eq!(queue.tx.push(&[1; 60]), Err(TxError::Violated));
    assert_eq!(queue.tx.free(), 0);
    assert_eq!(memory.tail(*to_client), 0);
}

/// Some clients (DPDK 23 and later) never clear the chain flag: it must not stick to the slot.
#[test]
fn the_chain_flag_does_not_stick() {
    let mut place = place(|_| ());
    let (client, link) = against(&mut place, |path| raw::connect(path, 0));
    let Connected {
        memory, to_server, ..
    } = &client;
    let mut link = link.expect("no link");
    let queue = &mut link.queues[0];
    memory.set_descriptor(*to_server, 0, raw::descriptor(1, 0, 2000, BUFFERS_AT as u32));
    memory.set_descriptor(
        *to_server,
        1,
        raw::descriptor(0, 0, 100, BUFFERS_AT as u32 + 2048),
    );
    memory.set_head(*to_server, 2);
    let mut frame = [0; 4096];
    assert_eq!(queue.rx.pop(&mut frame), Some(Ok(2100)));
    queue.rx.release();
    assert_eq!(memory.read_u16(to_server.offset + 128), 0, "the flags of slot 0");
    // The next round writes only the lengths.
    memory.set_head(*to_server, 65);
    for _ in 2..64 {
        assert_eq!(queue.rx.pop(&mut frame), Some(Ok(2048)));
    }
    assert_eq!(queue.rx.pop(&mut frame), Some(Ok(2000)));
}

#[test]
fn small_buffers_of_the_client_are_respected() {
    let mut place = place(|_| ());
    let (client, link) = against(&mut place, |path| raw::connect(path, 0));
    let Connected {
        memory, to_client, ..
    } = &client;
    let mut link = link.expect("no link");
    let queue = &mut link.queues[0];
    for slot in 0..SLOTS {
        memory.set_descriptor(
            *to_client,
            slot,
            raw::descriptor(0, 0, 100, (BUFFERS_AT + 2048 * slot) as u32),
        );
    }
    queue.tx.push(&[9; 250]).unwrap();
    queue.tx.flush();
    assert_eq!(memory.tail(*to_client), 3);
    let mut bytes = [0_u8; 2048];
    for (slot, length) in [(0, 100), (1, 100), (2, 50)] {
        rustix::io::pread(&memory.0, &mut bytes, BUFFERS_AT + 2048 * slot).unwrap();
        let written = bytes.iter().take_while(|byte| **byte == 9).count();
        assert_eq!(written, length, "slot {slot}");
    }
    assert_eq!(queue.tx.push(&[9; 100 * SLOTS as usize]), Err(TxError::Full));
    // All buffers are posted, but too few: no such frame ever fits.
    memory.set_descriptor(
        *to_client,
        2,
        raw::descriptor(0, 0, 100, (BUFFERS_AT + 2048 * 2) as u32),
    );
    memory.set_head(*to_client, SLOTS as u16 + 3);
    assert_eq!(
        queue.tx.push(&[9; 100 * SLOTS as usize + 1]),
        Err(TxError::TooLarge)
    );
    assert_eq!(queue.tx.push(&[9; 100 * SLOTS as usize]), Ok(()));
}

fn honest_client_is_served(place: &mut Place) {
    let (client, link) = against(place, |path| {
        let mut config = ClientConfig::new(path, 0);
        config.ring.log2_slots = 6;
        Client::connect(&config, Duration::from_secs(5))
    });
    client.expect("the honest client was refused");
    assert!(link.is_some());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// The listener survives any bytes and descriptors.
    #[test]
    fn any_messages_are_survived(
        messages in proptest::collection::vec(
            (0..10_u16, proptest::collection::vec(any::<u8>(), 126), 0..3_usize, any::<bool>()),
            1..8,
        ),
        cut in 0..130_usize,
    ) {
        let mut place = place(|_| ());
        let (memory, ..) = raw::honest_memory();
        let event = raw::eventfd();
        let descriptors = [memory.0.as_fd(), event.as_fd()];
        against(&mut place, |path| {
            let socket = RawSocket::connect(path);
            for (kind, body, count, plausible) in messages {
                let mut bytes = raw::message(kind, &[(2, &body)]);
                if plausible {
                    bytes = match kind {
                        3 => raw::init(body[0].into()),
                        4 => raw::add_region(0, REGION_BYTES),
                        5 => raw::add_ring(body[0] % 2 == 0, 0, 0, 0, body[1] % 16),
                        _ => bytes,
                    };
                }
                let length = if cut < 128 && kind == 0 { cut.max(1) } else { 128 };
                if !socket.send(&bytes[..length], &descriptors[..count]) {
                    break;
                }
            }
        });
        honest_client_is_served(&mut place);
    }

    /// Any descriptors and indices: packets, counted errors or a dead ring, and no access outside the region.
    #[test]
    fn any_ring_is_survived(
        slots in proptest::collection::vec((any::<[u8; 16]>(), any::<bool>()), 64),
        heads in proptest::collection::vec(any::<u16>(), 1..6),
        honest_steps in 0..60_u16,
    ) {
        let mut place = place(|_| ());
        let (client, link) = against(&mut place, |path| raw::connect(path, 0));
        let mut link = link.expect("no link");
        let queue = &mut link.queues[0];
        let Connected { memory, to_server, to_client, bytes: region_bytes, .. } = &client;
        for (slot, (bytes, plausible)) in slots.iter().enumerate() {
            let mut bytes = *bytes;
            if *plausible {
                bytes[2..4].fill(0);
                bytes[6..8].fill(0);
                bytes[11] = 0;
                bytes[10] &= 3;
            }
            memory.set_descriptor(*to_server, slot as u64, bytes);
            memory.set_descriptor(*to_client, slot as u64, bytes);
        }
        let mut frame = vec![0; 4096];
        memory.set_head(*to_server, honest_steps);
        for head in heads {
            let mut taken = 0;
            while let Some(outcome) = queue.rx.pop(&mut frame) {
                taken += 1;
                prop_assert!(taken <= 64);
                prop_assert!(outcome.is_ok_and(|len| len <= 4096) || outcome.is_err());
                // The rest in a burst: no packet is longer than the region, or than the longest chain.
                let most = usize::from(honest_steps) % 7;
                let mut lengths = Vec::new();
                taken += queue.rx.take_burst(most, |packet| {
                    packet.copy_to(&mut frame);
                    lengths.push(packet.len());
                });
                prop_assert!(lengths.len() <= most);
                prop_assert!(lengths.iter().all(|len| (1..=65_536_usize.max(*region_bytes as usize)).contains(len)));
            }
            queue.rx.forward_to(&mut queue.tx, 10);
            let burst = queue.tx.push_burst(&[&frame[..60]; 40], |frame| frame, 2048);
            prop_assert!(burst.packets <= 40 && burst.bytes == 60 * burst.packets as u64);
            let _ = queue.tx.push(&frame[..900]);
            queue.tx.flush();
            prop_assert!(queue.tx.free() <= 64);
            memory.set_head(*to_server, head);
            memory.set_head(*to_client, head);
        }
    }
}
