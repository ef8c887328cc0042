//! What one side of actors takes from the other one.

use std::os::fd::AsFd as _;
use std::sync::atomic::Ordering;

use actor_channel::{Declared, End, Limits, Order, Side};
use actor_control::{FromSide, Nonsense, Said, ToSide};
use actor_migration::{Input, Residence};
use actor_objects::{Import, Objects};
use model::Nanos;
use shared_memory::SharedWords;

use crate::pieces;

/// A stream of objects in pieces: it is taken as a whole and has the bytes that its table says, or nothing is taken.
pub(crate) fn objects(bytes: &[u8]) {
    let limits = actor_objects::Limits {
        bytes: 4096,
        objects: 64,
    };
    let mut import = Import::new(Objects::create(limits).expect("memory").1).expect("it is empty");
    for piece in pieces(bytes) {
        if import.push(piece).is_err() {
            let region = import.cancel();
            assert!(region.is_empty() && region.longest_free_bytes() == 4096);
            return;
        }
    }
    let Ok(mut objects) = import.finish() else {
        return;
    };
    let ids: Vec<_> = objects.iter().map(|(id, _)| id).collect();
    assert_eq!(ids.len(), objects.len());
    for id in ids {
        objects.free(id).expect("it is there");
        assert!(objects.get(id).is_err());
    }
    assert_eq!((objects.used_bytes(), objects.longest_free_bytes()), (0, 4096));
}

/// Messages about an actor that this side has, or has not: it never has the actor twice, and never forgets it.
pub(crate) fn moves(bytes: &[u8]) {
    let mut residence = Residence::new(bytes.len().is_multiple_of(2), 4);
    let mut effects = Vec::new();
    for piece in pieces(bytes) {
        if let Ok((actor, message)) = actor_migration::decode(piece) {
            assert_eq!(
                actor_migration::encode(actor, &message)[..8],
                piece[..8],
                "it is encoded as it came"
            );
            residence.step(Input::Received(message), &mut effects);
        } else {
            residence.step(Input::Move, &mut effects);
        }
        assert!(residence.held() <= 4);
        effects.clear();
    }
}

/// A message of either end: what is read is within all limits, and is read again as it was.
pub(crate) fn control(bytes: &[u8]) {
    again::<FromSide>(bytes);
    again::<ToSide>(bytes);
}

fn again<T: Said + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    let Ok(said) = actor_control::read::<T>(bytes) else {
        return;
    };
    match actor_control::write(&said) {
        Ok(written) => assert_eq!(actor_control::read::<T>(&written).expect("it was written"), said),
        // It is shorter where fields were left out.
        Err(error) => assert!(matches!(error, Nonsense::TooLong(_)), "{error}"),
    }
}

/// The memory of a channel, written by the other side: nothing is taken whose checksum is not right, and whatever its first
/// page says is checked.
pub(crate) fn channel(bytes: &[u8]) {
    let order = Order::Declared(Declared::AT_ONCE);
    let limits = Limits {
        ring_bytes: 4096,
        message_bytes: 256,
    };
    let (file, mut card) = End::create(limits, Side::Card, order, 7).expect("memory");
    let memory = SharedWords::open(file.as_fd()).expect("memory");
    let mut host = End::attach(file.as_fd(), Side::Host, order).expect("a channel");
    card.send(&[b"a message"]).expect("room");
    card.flush(Nanos::ZERO);
    assert_eq!(host.receive(), Ok(Some(&b"a message"[..])));
    for piece in pieces(bytes) {
        let Some((at, value)) = piece.split_first_chunk::<2>() else {
            continue;
        };
        let at = usize::from(u16::from_le_bytes(*at)) % memory.words().len();
        let mut word = [0; 8];
        let length = value.len().min(8);
        word[..length].copy_from_slice(&value[..length]);
        memory.words()[at].store(u64::from_le_bytes(word), Ordering::Relaxed);
        // A right checksum is possible, by chance or because the fuzzer found it.
        let _checked = host.receive();
        let _checked = card.receive();
        let _checked = End::attach(file.as_fd(), Side::Host, order);
    }
}
