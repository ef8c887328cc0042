//! The checkers find each kind of wrong history, and none in right ones.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::collections::BTreeMap;

use actor_histories::linearizability::{Action, Operation, is_linearizable};
use actor_histories::serialisability::{Transaction, Violation, check};
use model::Random;
use proptest::prelude::*;

fn read(call: u64, end: u64, value: u64) -> Operation {
    operation(call, Some(end), Action::Read((value > 0).then_some(value)))
}

fn write(call: u64, end: u64, value: u64) -> Operation {
    operation(call, Some(end), Action::Write((value > 0).then_some(value)))
}

fn unknown(call: u64, value: u64) -> Operation {
    operation(call, None, Action::Write(Some(value)))
}

fn operation(call: u64, end: Option<u64>, action: Action) -> Operation {
    Operation { call, end, action }
}

#[test]
fn right_histories_of_a_key_are_taken() {
    let right: [&[Operation]; 6] = [
        &[],
        &[write(1, 2, 1), read(3, 4, 1), write(5, 6, 0), read(7, 8, 0)],
        // Concurrent with a write, a read may see either.
        &[write(1, 2, 1), write(3, 8, 2), read(4, 5, 1), read(6, 7, 2)],
        // Nobody knows when an unknown write takes effect, or whether.
        &[unknown(1, 1), read(2, 3, 0), read(4, 5, 1)],
        &[unknown(1, 1), read(2, 3, 0), write(4, 5, 2), read(6, 7, 2)],
        &[write(1, 6, 1), write(2, 5, 2), read(7, 8, 1), read(9, 10, 1)],
    ];
    for history in right {
        assert!(is_linearizable(history), "{history:?}");
    }
}

#[test]
fn wrong_histories_of_a_key_are_found() {
    let wrong: [(&str, &[Operation]); 7] = [
        ("a stale read", &[write(1, 2, 1), write(3, 4, 2), read(5, 6, 1)]),
        ("a lost write", &[write(1, 2, 1), read(3, 4, 0)]),
        ("a value of nobody", &[write(1, 2, 1), read(3, 4, 7)]),
        (
            "a write that came twice",
            &[write(1, 2, 1), write(3, 4, 2), read(5, 6, 2), read(7, 8, 1)],
        ),
        (
            "new, then old",
            &[write(1, 2, 1), write(3, 10, 2), read(4, 5, 2), read(6, 7, 1)],
        ),
        (
            "a deleted value",
            &[write(1, 2, 1), write(3, 4, 0), read(5, 6, 1)],
        ),
        (
            "an unknown write undone",
            &[unknown(1, 1), read(2, 3, 1), read(4, 5, 0)],
        ),
    ];
    for (name, history) in wrong {
        assert!(!is_linearizable(history), "{name}");
    }
}

/// A history of a real register: operations of several clients take effect somewhere between call and end.
fn history(random: &mut Random, operations: u64) -> Vec<Operation> {
    let (mut value, mut time) = (None, 0);
    let mut tick = || {
        time += 1;
        time
    };
    let mut under_way: Vec<(u64, Operation, bool)> = Vec::new();
    let (mut done, mut begun) = (Vec::new(), 0);
    while (done.len() as u64) < operations {
        let client = random.below(5);
        match under_way.iter().position(|(of, ..)| *of == client) {
            None if begun < operations => {
                begun += 1;
                let action = if random.happens(0.5) {
                    Action::Read(None)
                } else {
                    Action::Write(Some(begun))
                };
                under_way.push((client, operation(tick(), None, action), false));
            }
            None => {}
            Some(place) if !under_way[place].2 => {
                match &mut under_way[place].1.action {
                    Action::Read(read) => *read = value,
                    Action::Write(written) => value = *written,
                }
                under_way[place].2 = true;
            }
            Some(place) => {
                let (_, mut of, _) = under_way.swap_remove(place);
                of.end = Some(tick()).filter(|_| random.happens(0.95));
                done.push(of);
            }
        }
    }
    done
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn histories_of_a_register_are_taken_and_a_changed_read_is_found(seed in any::<u64>()) {
        let mut random = Random::new(seed);
        let mut history = history(&mut random, 150);
        prop_assert!(is_linearizable(&history));
        // A read of a value that was replaced before the read began.
        let ended = |value: Option<u64>, before: u64| {
            history.iter().any(|of| matches!(of.action, Action::Write(_))
                && of.action != Action::Write(value)
                && of.end.is_some_and(|end| end < before)
                && history.iter().any(|first| first.action == Action::Write(value)
                    && first.end.is_some_and(|end| end < of.call)))
        };
        let stale = history.iter().enumerate().find_map(|(number, of)| {
            let stale = (1..=150).map(Some).find(|value| ended(*value, of.call));
            stale.filter(|_| matches!(of.action, Action::Read(_)) && of.end.is_some()).map(|value| (number, value))
        });
        if let Some((number, value)) = stale {
            history[number].action = Action::Read(value);
            prop_assert!(!is_linearizable(&history));
        }
    }

    #[test]
    fn transactions_one_after_the_other_are_serialisable(seed in any::<u64>()) {
        let mut random = Random::new(seed);
        let mut values: BTreeMap<u64, u64> = BTreeMap::new();
        let mut history = Vec::new();
        for number in 1..100_u64 {
            let reads: BTreeMap<_, _> = (0..3)
                .map(|_| random.below(8))
                .map(|key| (key, values.get(&key).copied().unwrap_or(0)))
                .collect();
            let writes: BTreeMap<_, _> = reads.keys().take(2).map(|key| (*key, number)).collect();
            values.extend(&writes);
            // They overlap with some of their neighbours.
            history.push(Transaction { begin: number * 10, end: number * 10 + random.below(30), reads, writes });
        }
        prop_assert_eq!(check(&history), Ok(()));
        let last = history.last_mut().unwrap();
        let (key, value) = last.writes.first_key_value().map(|(key, value)| (*key, *value)).unwrap();
        last.reads.insert(key, value + 1);
        prop_assert_eq!(check(&history), Err(Violation::NotWritten { key, value: value + 1 }));
    }
}

fn transaction(begin: u64, end: u64, reads: &[(u64, u64)], writes: &[(u64, u64)]) -> Transaction {
    Transaction {
        begin,
        end,
        reads: reads.iter().copied().collect(),
        writes: writes.iter().copied().collect(),
    }
}

#[test]
fn wrong_histories_of_transactions_are_found() {
    let lost = [
        transaction(1, 9, &[(1, 0)], &[(1, 1)]),
        transaction(2, 8, &[(1, 0)], &[(1, 2)]),
    ];
    assert_eq!(check(&lost), Err(Violation::LostUpdate { key: 1, value: 0 }));
    // Write skew: each read what the other replaced.
    let skew = [
        transaction(1, 9, &[(1, 0), (2, 0)], &[(1, 1)]),
        transaction(2, 8, &[(1, 0), (2, 0)], &[(2, 2)]),
    ];
    assert!(matches!(check(&skew), Err(Violation::Cycle(cycle)) if cycle.len() == 2));
    // One of two writes was seen.
    let torn = [
        transaction(1, 9, &[(1, 0), (2, 0)], &[(1, 1), (2, 1)]),
        transaction(2, 8, &[(1, 1), (2, 0)], &[]),
    ];
    assert!(matches!(check(&torn), Err(Violation::Cycle(cycle)) if cycle.len() == 2));
    // What had been replaced before the transaction began.
    let stale = [
        transaction(1, 2, &[(1, 0)], &[(1, 1)]),
        transaction(3, 4, &[(1, 0)], &[]),
    ];
    assert!(matches!(check(&stale), Err(Violation::Cycle(_))));
    let aborted = [transaction(1, 2, &[(1, 5)], &[])];
    assert_eq!(check(&aborted), Err(Violation::NotWritten { key: 1, value: 5 }));
}
