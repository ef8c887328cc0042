//! The greatest counts of all windows, against a run that has all tuples at once: with several filters, counters and
//! rankers, in any order of their turns, and while they move.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

mod network;

use std::collections::BTreeMap;

use actor_applications::analytics::{
    ASK, Aggregator, Counter, CounterSettings, Filter, NUMBERED, Ranked, Ranker, TAKEN, TOP, TUPLES, Taken,
    Topology, Tuple, WINDOWS_KEPT, WINDOWS_LIMIT, WindowPart, encode_numbered, encode_tuples,
};
use actor_runtime::{ActorId, Address};
use model::Random;
use network::{Machine, Member};
use proptest::prelude::*;

const SINK: Address = Address::Outside(9);
const SOURCE: Address = Address::Outside(1);
const SLOT_TIME: u64 = 10;
const PATTERN: &str = "inco";

/// One machine: `sources` filters, two counters with their rankers, an aggregator.
fn machine(sources: u16, slots: u16, n: u16, keys: u32) -> Machine {
    let actor = move |place: u32| Address::Actor(ActorId(u32::from(sources) + place));
    let mut members = Vec::new();
    for _ in 0..sources {
        let counters = Topology::new(vec![actor(0), actor(1)]).unwrap();
        members.push(Member::new("filter", 0, move || {
            Filter::new([PATTERN], counters.clone()).unwrap()
        }));
    }
    for counter in 0..2 {
        let settings = CounterSettings {
            slots,
            slot_time: SLOT_TIME,
            keys,
            sources,
            ranker: actor(2 + counter),
        };
        let bytes = Counter::new(settings.clone()).unwrap().region_bytes();
        members.push(Member::new("counter", bytes, move || {
            Counter::new(settings.clone()).unwrap()
        }));
    }
    for _ in 0..2 {
        let make = move || Ranker::new(n, actor(4)).unwrap();
        members.push(Member::new("ranker", make().region_bytes(), make));
    }
    let make = move || Aggregator::new(n, vec![actor(2), actor(3)], Some(SINK)).unwrap();
    members.push(Member::new("aggregator", make().region_bytes(), make));
    Machine::new(members)
}

#[derive(Clone, Debug)]
struct Event {
    time: u64,
    key: u8,
    is_wanted: bool,
    source: u16,
}

/// What a run with all tuples says.
fn offline(events: &[Event], slots: u64, n: usize) -> BTreeMap<u64, Vec<Ranked>> {
    let mut windows: BTreeMap<u64, BTreeMap<Vec<u8>, u64>> = BTreeMap::new();
    for event in events.iter().filter(|event| event.is_wanted) {
        let slot = event.time / SLOT_TIME;
        for last in slot..slot + slots {
            let counts = windows.entry((last + 1) * SLOT_TIME).or_default();
            *counts.entry(name(event.key)).or_default() += 1;
        }
    }
    let rank = |counts: BTreeMap<Vec<u8>, u64>| {
        let mut rows: Vec<_> = counts
            .into_iter()
            .map(|(key, count)| Ranked { count, key })
            .collect();
        rows.sort_by(|a, b| (b.count, &a.key).cmp(&(a.count, &b.key)));
        rows.truncate(n);
        rows
    };
    windows
        .into_iter()
        .map(|(end, counts)| (end, rank(counts)))
        .collect()
}

fn name(key: u8) -> Vec<u8> {
    format!("#tag-{key}").into_bytes()
}

fn bodies(events: &[Event], sources: u16, ahead: u64, random: &mut Random) -> Vec<(u16, Vec<u8>)> {
    // Each source sends its tuples in batches, in order. No source is more than `ahead` before the slowest.
    let mut queues: Vec<Vec<&Event>> = (0..sources)
        .map(|source| {
            events
                .iter()
                .filter(|event| event.source == source)
                .rev()
                .collect()
        })
        .collect();
    let mut sent = Vec::new();
    while queues.iter().any(|queue| !queue.is_empty()) {
        let slowest = queues
            .iter()
            .filter_map(|queue| queue.last())
            .map(|event| event.time)
            .min();
        let limit = slowest.unwrap() + ahead;
        let source = random.below(u64::from(sources)) as usize;
        let mut batch = Vec::new();
        for _ in 0..=random.below(4) {
            if queues[source].last().is_some_and(|event| event.time <= limit) {
                batch.extend(queues[source].pop());
            }
        }
        let watermark = queues[source].last().map_or(u64::MAX / 2, |event| event.time);
        let watermark = watermark.min(limit / SLOT_TIME * SLOT_TIME);
        let keys: Vec<_> = batch.iter().map(|event| name(event.key)).collect();
        let text = |event: &Event| {
            if event.is_wanted {
                "about inco."
            } else {
                "of others"
            }
        };
        let tuples: Vec<_> = std::iter::zip(&batch, &keys)
            .map(|(event, key)| Tuple {
                time: event.time,
                key,
                text: text(event).as_bytes(),
            })
            .collect();
        sent.push((source as u16, encode_tuples(source as u16, watermark, &tuples)));
    }
    sent
}

fn run(
    machine: &mut Machine,
    bodies: Vec<(u16, Vec<u8>)>,
    moves: bool,
    random: &mut Random,
) -> Vec<WindowPart> {
    for (source, body) in bodies {
        machine.deliver(usize::from(source), SOURCE, TUPLES, body);
        // A filter that waits would let the others get too far ahead.
        machine.serve(usize::from(source));
        for _ in 0..random.below(4) {
            machine.serve(random.below(machine.actors() as u64) as usize);
            if moves && random.happens(0.1) {
                let actor = random.below(machine.actors() as u64) as usize;
                machine.move_away_and_in(actor, random);
            }
        }
    }
    machine.settle(random);
    let sent = machine.take_sent();
    let parts = sent.iter().map(|message| {
        assert_eq!((message.to, message.kind), (SINK, TOP));
        WindowPart::decode(&message.body).unwrap()
    });
    parts.collect()
}

/// Watermarks behind all windows, from each source.
fn ends(sources: u16) -> Vec<(u16, Vec<u8>)> {
    (0..sources)
        .map(|source| (source, encode_tuples(source, 1_000_000, &[])))
        .collect()
}

fn events(sources: u16) -> impl Strategy<Value = Vec<Event>> {
    // Fewer windows than may wait for a ranker whose turn does not come.
    let event = (0..500_u64, 0..40_u8, any::<bool>(), 0..sources);
    prop::collection::vec(event, 1..300).prop_map(|mut events| {
        events.sort();
        let made = events.into_iter().map(|(time, key, is_wanted, source)| Event {
            time,
            // Some keys are frequent.
            key: key / 2 * (key % 3),
            is_wanted,
            source,
        });
        made.collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_greatest_counts_are_those_of_a_run_with_all_tuples(
        (sources, events) in (1..4_u16).prop_flat_map(|sources| (Just(sources), events(sources))),
        slots in 1..8_u16,
        n in 1..12_u16,
        seed in any::<u64>(),
    ) {
        let mut random = Random::new(seed);
        let mut machine = machine(sources, slots, n, 100);
        let mut sent = bodies(&events, sources, 5 * SLOT_TIME, &mut random);
        sent.extend(ends(sources));
        let found = run(&mut machine, sent, true, &mut random);
        prop_assert!(found.iter().all(|part| part.refused == 0 && !part.is_inexact && part.is_last));
        let found: Vec<_> = found.into_iter().map(|part| (part.end, part.rows)).collect();
        let expected: Vec<_> = offline(&events, u64::from(slots), usize::from(n)).into_iter().collect();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn no_bytes_stop_a_worker(body in prop::collection::vec(any::<u8>(), 0..200), kind in TUPLES..=ASK) {
        let mut random = Random::new(0);
        let mut machine = machine(1, 3, 5, 10);
        for actor in 0..machine.actors() {
            machine.deliver(actor, SOURCE, kind, body.clone());
        }
        machine.settle(&mut random);
    }
}

/// A window that is not exact says so.
#[test]
fn refused_keys_and_late_tuples_are_told() {
    let mut random = Random::new(1);
    let mut small = machine(1, 1, 5, 2);
    let keys: Vec<_> = (0..20).map(name).collect();
    let tuples: Vec<_> = (keys.iter())
        .map(|key| Tuple {
            time: 5,
            key,
            text: PATTERN.as_bytes(),
        })
        .collect();
    let sent = vec![
        (0, encode_tuples(0, 100, &tuples)),
        (0, encode_tuples(0, 100, &tuples[..3])),
        (0, encode_tuples(0, 200, &[])),
    ];
    let found = run(&mut small, sent, false, &mut random);
    let told: Vec<_> = found.iter().map(|part| (part.is_inexact, part.refused)).collect();
    assert_eq!(told, [(true, 16), (true, 3)]);
    assert_eq!(found[0].rows.len(), 4);
    assert_eq!(u32::from(found[1].rows.is_empty()), 1);
}

/// A ranker that does not answer holds up a bounded number of windows; what is sent without it says so.
#[test]
fn windows_do_not_wait_for_a_ranker_for_ever() {
    let mut random = Random::new(1);
    let mut machine = machine(1, 1, 5, 100);
    let keys: Vec<_> = (0..20).map(name).collect();
    let windows = WINDOWS_LIMIT as u64 + 6;
    for window in 0..windows {
        let tuple = |key| Tuple {
            time: window * SLOT_TIME,
            key,
            text: PATTERN.as_bytes(),
        };
        let tuples: Vec<_> = keys.iter().map(|key| tuple(key)).collect();
        machine.deliver(
            0,
            SOURCE,
            TUPLES,
            encode_tuples(0, (window + 1) * SLOT_TIME, &tuples),
        );
    }
    // Filter, counters, one of two rankers, the aggregator.
    for actor in [0, 1, 2, 3, 5] {
        machine.serve(actor);
    }
    let sent: Vec<_> = machine.take_sent();
    let parts: Vec<_> = sent
        .iter()
        .map(|message| WindowPart::decode(&message.body).unwrap())
        .collect();
    assert_eq!(parts.len(), 6);
    assert!(parts.iter().all(|part| part.is_inexact));
    machine.settle(&mut random);
    let sent = machine.take_sent();
    assert_eq!(sent.len() as u64, windows - 6);
    assert!(
        sent.iter()
            .all(|message| !WindowPart::decode(&message.body).unwrap().is_inexact)
    );
}

/// A window has more keys than one message takes.
#[test]
fn a_window_of_many_messages_is_exact() {
    let mut random = Random::new(1);
    let keys: Vec<_> = (0..12_000_u32)
        .map(|key| format!("{key:06}").into_bytes())
        .collect();
    let mut big = machine(1, 2, 10, 20_000);
    let mut sent = Vec::new();
    for keys in keys.chunks(1_000) {
        let tuples: Vec<_> = keys
            .iter()
            .flat_map(|key| {
                let times = if key.ends_with(b"77") { 2 } else { 1 };
                std::iter::repeat_n(key, times)
            })
            .map(|key| Tuple {
                time: 1,
                key,
                text: PATTERN.as_bytes(),
            })
            .collect();
        sent.push((0, encode_tuples(0, 0, &tuples)));
    }
    sent.push((0, encode_tuples(0, 10, &[])));
    let found = run(&mut big, sent, false, &mut random);
    assert_eq!(found.len(), 1);
    let expected: Vec<_> = (0..10_u32)
        .map(|of| format!("{:06}", of * 100 + 77).into_bytes())
        .collect();
    assert_eq!(
        found[0]
            .rows
            .iter()
            .map(|row| row.key.clone())
            .collect::<Vec<_>>(),
        expected
    );
    assert!(found[0].rows.iter().all(|row| row.count == 2));
}

/// Messages with numbers may be lost, come twice or in another order: each is counted once, and a reader that asks gets
/// each window.
#[test]
fn numbered_messages_are_counted_once_and_windows_are_read_in_order() {
    let mut random = Random::new(7);
    let mut machine = machine(1, 1, 5, 100);
    let windows = 20_u64;
    let message = |number: u64| {
        let keys = [name((number % 3) as u8), name(9)];
        let tuples: Vec<_> = (keys.iter())
            .map(|key| Tuple {
                time: (number - 1) * SLOT_TIME,
                key,
                text: PATTERN.as_bytes(),
            })
            .collect();
        encode_numbered((1, number), 0, number * SLOT_TIME, &tuples)
    };
    let mut taken = [0_u64; 2];
    while taken.iter().any(|last| *last < windows) {
        // Any of the next few, so that most come early, and some twice.
        let least = taken.iter().min().unwrap();
        let number = (least + 1 + random.below(4)).min(windows);
        machine.deliver(0, SOURCE, NUMBERED, message(number));
        machine.settle(&mut random);
        if random.happens(0.1) {
            machine.move_away_and_in(1 + random.below(2) as usize, &mut random);
        }
        for sent in machine.take_sent().iter().filter(|sent| sent.kind == TAKEN) {
            assert_eq!(sent.to, SOURCE);
            let said = Taken::decode(&sent.body).unwrap();
            assert_eq!((said.source, said.counters), (0, 2));
            taken[usize::from(said.counter)] = said.last;
        }
    }
    let mut ask = |after: u64| {
        machine.deliver(5, SOURCE, ASK, after.to_le_bytes().to_vec());
        machine.settle(&mut random);
        let sent = machine.take_sent();
        assert_eq!((sent.len(), sent[0].to, sent[0].kind), (1, SOURCE, TOP));
        WindowPart::decode(&sent[0].body).unwrap()
    };
    let mut end = 0;
    for number in 1..=windows {
        let part = ask(end);
        assert_eq!((part.end, part.is_inexact), (number * SLOT_TIME, false));
        let counts: Vec<_> = part.rows.iter().map(|row| (row.count, row.key.clone())).collect();
        assert_eq!(counts, [(1, name((number % 3) as u8)), (1, name(9))]);
        end = part.end;
    }
    assert_eq!(ask(end).end, 0);
    assert!(windows < WINDOWS_KEPT as u64);
}
