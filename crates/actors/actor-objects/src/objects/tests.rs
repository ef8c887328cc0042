#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;

use proptest::prelude::*;

use super::*;
use crate::{Import, ImportError};

const LIMITS: Limits = Limits {
    bytes: 4096,
    objects: 40,
};

fn some() -> Objects {
    Objects::create(LIMITS).unwrap().1
}

fn stream(objects: &Objects) -> Vec<u8> {
    let (mut all, mut export) = objects.export();
    let mut parts = Vec::new();
    while export.next(objects, 100, 3, &mut parts) > 0 {
        all.extend(parts.concat());
    }
    all
}

fn import(bytes: &[u8], limits: Limits, piece: usize) -> Result<Objects, ImportError> {
    let mut import = Import::new(Objects::create(limits).unwrap().1)?;
    for bytes in bytes.chunks(piece) {
        import.push(bytes)?;
    }
    import.finish()
}

/// Everything that an actor can see.
fn seen(objects: &Objects) -> Vec<(ObjectId, Vec<u8>)> {
    objects.iter().map(|(id, bytes)| (id, bytes.to_vec())).collect()
}

#[test]
fn a_stale_id_is_never_another_object() {
    let mut objects = some();
    let first = objects.allocate(10).unwrap();
    objects.free(first).unwrap();
    let second = objects.allocate(10).unwrap();
    assert_eq!(first.place, second.place);
    for result in [
        objects.free(first),
        objects.set(first, 0..1, 1),
        objects.write(first, 0, &[1]),
        objects.copy(first, 0..1, second, 0),
        objects.move_part(second, 0..1, first, 0),
        objects.get(first).map(|_| ()),
    ] {
        assert_eq!(result, Err(ObjectError::Stale(first)));
    }
    assert_eq!(objects.get(second).unwrap(), [0; 10]);
    let never = ObjectId::from_bits(u64::MAX);
    assert_eq!(objects.get(never), Err(ObjectError::Stale(never)));
}

#[test]
fn a_place_whose_generations_are_used_up_is_never_taken_again() {
    let mut objects = some();
    let id = objects.allocate(1).unwrap();
    objects.region.parts_mut().0[0].generation = zerocopy::byteorder::little_endian::U32::new(u32::MAX);
    let last = ObjectId::new(id.place, u32::MAX);
    objects.free(last).unwrap();
    assert_eq!(objects.allocate(1).unwrap().place, 1);
    let mut moved = import(&stream(&objects), LIMITS, 9).unwrap();
    assert_eq!(moved.allocate(1).unwrap().place, 2);
}

#[test]
fn what_does_not_fit_is_an_error_of_this_actor_alone() {
    let (mut full, mut other) = (some(), some());
    let id = full.allocate(4096).unwrap();
    let exhausted = ObjectError::Exhausted { bytes: 1, longest: 0 };
    assert_eq!(full.allocate(1), Err(exhausted));
    assert_eq!(full.len(), 1);
    assert!(other.allocate(4096).is_ok());
    full.free(id).unwrap();
    for _ in 0..LIMITS.objects {
        full.allocate(1).unwrap();
    }
    assert_eq!(full.allocate(1), Err(ObjectError::TooMany(40)));
    assert_eq!(some().allocate(0), Err(ObjectError::Empty));
    assert!(some().allocate(usize::MAX).is_err());
}

#[test]
fn ranges_are_checked() {
    let mut objects = some();
    let (a, b) = (objects.allocate(8).unwrap(), objects.allocate(4).unwrap());
    objects.write(a, 0, b"abcdefgh").unwrap();
    let range = |begin, end, bytes| Err(ObjectError::Range { begin, end, bytes });
    assert_eq!(objects.write(b, 1, b"1234"), range(1, 5, 4));
    assert_eq!(
        objects.write(b, usize::MAX, b"1"),
        range(usize::MAX, usize::MAX, 4)
    );
    assert_eq!(objects.set(a, 8..9, 0), range(8, 9, 8));
    #[expect(clippy::reversed_empty_ranges, reason = "what a caller may compute")]
    let reversed = 3..2;
    assert_eq!(objects.set(a, reversed, 0), range(3, 2, 8));
    assert_eq!(objects.copy(a, 0..5, b, 0), range(0, 5, 4));
    assert_eq!(objects.copy(a, 0..3, a, 2), Err(ObjectError::Overlap));
    objects.copy(a, 0..3, a, 3).unwrap();
    assert_eq!(objects.get(a).unwrap(), b"abcabcgh");
    objects.move_part(a, 0..6, a, 2).unwrap();
    assert_eq!(objects.get(a).unwrap(), b"ababcabc");
    objects.move_part(a, 4..8, b, 0).unwrap();
    assert_eq!(objects.get(b).unwrap(), b"cabc");
}

#[test]
fn objects_move_with_equal_ids_and_stale_ones_stay_stale() {
    let mut objects = some();
    let ids: Vec<ObjectId> = (1..=10)
        .map(|bytes| objects.allocate(bytes * 20).unwrap())
        .collect();
    for (value, id) in (0..).zip(&ids) {
        objects.set(*id, 0..20, value).unwrap();
    }
    objects.free(ids[3]).unwrap();
    objects.free(ids[7]).unwrap();
    let again = objects.allocate(5).unwrap();
    objects.begin();
    objects.complete();
    let mut moved = import(&stream(&objects), LIMITS, 7).unwrap();
    assert_eq!(seen(&moved), seen(&objects));
    assert_eq!(moved.completed(), 1);
    assert_eq!(moved.get(ids[3]), Err(ObjectError::Stale(ids[3])));
    assert_eq!(moved.get(ids[7]), Err(ObjectError::Stale(ids[7])));
    assert_ne!(moved.allocate(1).unwrap(), again);
    assert_eq!(moved.free.pieces(), 1, "the free space is in one piece");
}

#[test]
fn a_smaller_region_does_not_take_them() {
    let mut objects = some();
    for _ in 0..3 {
        objects.allocate(100).unwrap();
    }
    let small = Limits { bytes: 300, ..LIMITS };
    let error = import(&stream(&objects), small, 50).unwrap_err();
    assert!(matches!(error, ImportError::Object { place: 2, .. }), "{error}");
    let few = Limits { objects: 2, ..LIMITS };
    let error = import(&stream(&objects), few, 50).unwrap_err();
    assert_eq!(error, ImportError::Places { places: 3, limit: 2 });
}

#[test]
fn a_stream_is_whole_or_nothing() {
    let mut objects = some();
    objects.allocate(100).unwrap();
    let bytes = stream(&objects);
    for end in 0..bytes.len() {
        assert_eq!(
            import(&bytes[..end], LIMITS, 1000).unwrap_err(),
            ImportError::Short,
            "{end}"
        );
    }
    let longer = [&bytes[..], &[0]].concat();
    assert_eq!(import(&longer, LIMITS, 1000).unwrap_err(), ImportError::Long);
    let full = Import::new(objects).unwrap_err();
    assert_eq!(full, ImportError::NotEmpty);
    let mut half = Import::new(some()).unwrap();
    half.push(&bytes[..60]).unwrap();
    let region = half.cancel();
    assert!(region.is_empty() && region.longest_free_bytes() == 4096);
}

#[test]
fn a_process_that_ends_in_a_message_leaves_nothing_to_go_on_with() {
    let (file, mut objects) = Objects::create(LIMITS).unwrap();
    objects.begin();
    let id = objects.allocate(3).unwrap();
    objects.complete();
    objects.set_mark(7);
    drop(objects);
    let mut objects = Objects::open(file.as_fd()).unwrap();
    assert_eq!(objects.get(id).unwrap(), [0; 3]);
    assert_eq!((objects.completed(), objects.mark()), (1, 7));
    objects.begin();
    assert!(objects.is_under_way());
    drop(objects);
    let error = Objects::open(file.as_fd()).unwrap_err();
    assert!(matches!(error, RegionError::Interrupted));
}

#[test]
fn a_damaged_region_is_not_opened() {
    type Damage = fn(&mut Objects);
    type Expected = fn(&RegionError) -> bool;
    let damages: [(Damage, Expected); 5] = [
        (
            |o| o.region.parts_mut().0[1].at.set(0),
            |e| matches!(e, RegionError::Table(1)),
        ),
        (
            |o| o.region.parts_mut().0[0].at.set(u32::MAX),
            |e| matches!(e, RegionError::Table(0)),
        ),
        (
            |o| o.region.parts_mut().0[5].bytes.set(1),
            |e| matches!(e, RegionError::Table(5)),
        ),
        (
            |o| o.region.head_mut().places.set(1 << 20),
            |e| matches!(e, RegionError::Size { .. }),
        ),
        (
            |o| o.region.head_mut().bytes.set(u64::MAX),
            |e| matches!(e, RegionError::Size { .. }),
        ),
    ];
    for (damage, is_expected) in damages {
        let (file, mut objects) = Objects::create(LIMITS).unwrap();
        objects.allocate(20).unwrap();
        objects.allocate(20).unwrap();
        damage(&mut objects);
        drop(objects);
        let error = Objects::open(file.as_fd()).unwrap_err();
        assert!(is_expected(&error), "{error}");
    }
}

#[derive(Clone, Debug)]
enum Call {
    Allocate(usize),
    Free(usize),
    Set(usize, Range<usize>, u8),
    Write(usize, usize, Vec<u8>),
    Copy(usize, Range<usize>, usize, usize),
    Move(usize, Range<usize>, usize, usize),
    /// To the other side.
    Migrate,
    /// The process ends, the next one opens the region.
    Restart,
}

fn range() -> impl Strategy<Value = Range<usize>> {
    (0..300_usize, 0..300_usize).prop_map(|(begin, length)| begin..begin + length)
}

fn call() -> impl Strategy<Value = Call> {
    prop_oneof![
        4 => prop_oneof![0..300_usize, Just(2000), Just(5000)].prop_map(Call::Allocate),
        3 => any::<usize>().prop_map(Call::Free),
        2 => (any::<usize>(), range(), any::<u8>()).prop_map(|(id, part, value)| Call::Set(id, part, value)),
        2 => (any::<usize>(), 0..300_usize, proptest::collection::vec(any::<u8>(), 0..100))
            .prop_map(|(id, at, bytes)| Call::Write(id, at, bytes)),
        2 => (any::<usize>(), range(), any::<usize>(), 0..300_usize)
            .prop_map(|(from, part, to, at)| Call::Copy(from, part, to, at)),
        2 => (any::<usize>(), range(), any::<usize>(), 0..300_usize)
            .prop_map(|(from, part, to, at)| Call::Move(from, part, to, at)),
        1 => Just(Call::Migrate),
        1 => Just(Call::Restart),
    ]
}

proptest! {
    /// Against a map of vectors. Half of the ids that calls use are stale.
    #[test]
    fn objects_are_as_a_map_of_vectors(calls in proptest::collection::vec(call(), 1..200)) {
        let (mut file, mut objects) = Objects::create(LIMITS).unwrap();
        let mut model: BTreeMap<ObjectId, Vec<u8>> = BTreeMap::new();
        let mut ids: Vec<ObjectId> = vec![ObjectId::from_bits(0)];
        for call in calls {
            let pick = |at: usize| ids[at % ids.len()];
            let is_copy = matches!(call, Call::Copy(..));
            match call {
                Call::Allocate(bytes) => match objects.allocate(bytes) {
                    Ok(id) => {
                        prop_assert!(!ids.contains(&id), "{} comes twice", id);
                        prop_assert!(model.insert(id, vec![0; bytes]).is_none());
                        ids.push(id);
                    }
                    Err(ObjectError::Empty) => prop_assert_eq!(bytes, 0),
                    Err(ObjectError::TooMany(live)) => prop_assert!(live == 40 && model.len() == 40),
                    Err(error) => {
                        let free = 256 - model.values().map(|object| object.len().div_ceil(UNIT)).sum::<usize>();
                        let longest = objects.longest_free_bytes();
                        prop_assert_eq!(error, ObjectError::Exhausted { bytes, longest });
                        prop_assert!(longest < bytes && longest <= free * UNIT);
                    }
                },
                Call::Free(at) => {
                    let id = pick(at);
                    let expected = model.remove(&id).map(|_| ()).ok_or(ObjectError::Stale(id));
                    prop_assert_eq!(objects.free(id), expected);
                }
                Call::Set(at, part, value) => {
                    let to = model.get_mut(&pick(at)).and_then(|object| object.get_mut(part.clone()));
                    prop_assert_eq!(objects.set(pick(at), part, value).is_ok(), to.is_some());
                    to.into_iter().for_each(|bytes| bytes.fill(value));
                }
                Call::Write(at, begin, bytes) => {
                    let part = begin..begin + bytes.len();
                    let to = model.get_mut(&pick(at)).and_then(|object| object.get_mut(part));
                    prop_assert_eq!(objects.write(pick(at), begin, &bytes).is_ok(), to.is_some());
                    to.into_iter().for_each(|to| to.copy_from_slice(&bytes));
                }
                Call::Copy(from, part, to, at) | Call::Move(from, part, to, at) => {
                    let (from, to) = (pick(from), pick(to));
                    let source = model.get(&from).and_then(|object| object.get(part.clone())).map(<[u8]>::to_vec);
                    let end = at + part.len();
                    let overlap = from == to && part.start < end && at < part.end;
                    let target = model.get_mut(&to).and_then(|object| object.get_mut(at..end));
                    let result = if is_copy {
                        objects.copy(from, part, to, at)
                    } else {
                        objects.move_part(from, part, to, at)
                    };
                    match (source, target) {
                        (Some(source), Some(target)) if !(is_copy && overlap) => {
                            prop_assert_eq!(result, Ok(()));
                            target.copy_from_slice(&source);
                        }
                        (Some(_), Some(_)) => prop_assert_eq!(result, Err(ObjectError::Overlap)),
                        _ => prop_assert!(result.is_err()),
                    }
                }
                Call::Migrate => {
                    let bytes = stream(&objects);
                    let (other, region) = Objects::create(LIMITS).unwrap();
                    let mut import = Import::new(region).unwrap();
                    bytes.chunks(33).try_for_each(|bytes| import.push(bytes)).unwrap();
                    objects = import.finish().unwrap();
                    file = other;
                }
                Call::Restart => {
                    drop(objects);
                    objects = Objects::open(file.as_fd()).unwrap();
                }
            }
            let expected: Vec<(ObjectId, Vec<u8>)> = model.iter().map(|(id, bytes)| (*id, bytes.clone())).collect();
            prop_assert_eq!(seen(&objects), expected);
            let bytes: usize = model.values().map(Vec::len).sum();
            prop_assert_eq!(objects.used_bytes(), bytes as u64);
        }
        for id in model.keys() {
            objects.free(*id).unwrap();
        }
        prop_assert_eq!(objects.longest_free_bytes(), 4096);
    }

    /// Whatever a stream holds, it is taken as a whole or not at all, and then has a right form.
    #[test]
    fn a_hostile_stream_does_no_harm(
        changes in proptest::collection::vec((0..150_usize, any::<u8>()), 0..6),
        piece in 1..60_usize,
    ) {
        let mut objects = some();
        for bytes in [3, 20, 7] {
            objects.allocate(bytes).unwrap();
        }
        let mut bytes = stream(&objects);
        for (at, value) in changes {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        if let Ok(mut objects) = import(&bytes, LIMITS, piece) {
            prop_assert_eq!(objects.iter().map(|(_, bytes)| bytes.len()).sum::<usize>(), 30);
            let ids: Vec<ObjectId> = objects.iter().map(|(id, _)| id).collect();
            for id in ids {
                objects.free(id).unwrap();
            }
            prop_assert_eq!(objects.longest_free_bytes(), 4096);
        }
    }
}
