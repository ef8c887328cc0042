//! Histories with requests that were never answered: such a request may have taken effect, or not.
#![allow(clippy::unwrap_used, reason = "a test")]

use actor_applications::store::{Answer, Operation, Request};
use actor_applications::transactions::{Outcome, Read, Transaction};
use actor_load::Workload;
use actor_load::store::{self, Store};
use actor_load::transactions::{self, Transactions};
use model::Random;

/// A store with one key.
fn store() -> Store {
    Store::new(store::Settings {
        keys: 1,
        reads: 0.5,
        written: 0,
        value_bytes: 8,
        records: true,
    })
    .unwrap()
}

/// Has a client ask until it writes, or reads; what it asks at last.
fn ask(store: &mut Store, place: usize, writes: bool, random: &mut Random) -> Request {
    loop {
        let request = Request::decode(&store.request(place, 1, 1, random).unwrap()).unwrap();
        if matches!(request.operation, Operation::Put(_)) == writes {
            return request;
        }
    }
}

#[test]
fn a_write_without_an_answer_may_be_read_and_one_that_nobody_asked_for_may_not() {
    let mut random = Random::new(1);
    let mut store = store();
    let Operation::Put(value) = ask(&mut store, 0, true, &mut random).operation else {
        unreachable!()
    };
    for (begin, read) in [(1, Answer::NotFound), (3, Answer::Found(value.clone()))] {
        ask(&mut store, 1, false, &mut random);
        store.ended(1, begin, begin + 1, &read.encode(1)).unwrap();
    }
    assert_eq!(store.check().unwrap(), 2);
    // It does not take its effect back.
    ask(&mut store, 1, false, &mut random);
    store.ended(1, 5, 6, &Answer::NotFound.encode(1)).unwrap();
    assert!(store.check().is_err());

    let mut other = self::store();
    ask(&mut other, 1, false, &mut random);
    let never = Answer::Found(99_u64.to_le_bytes().to_vec());
    other.ended(1, 1, 2, &never.encode(1)).unwrap();
    assert!(other.check().is_err());
}

/// Has a client ask for a transaction; the keys that it reads, the value that it writes.
fn begin(of: &mut Transactions, place: usize, random: &mut Random) -> (Vec<Vec<u8>>, Vec<u8>) {
    let body = of.request(place, 1, 1, random).unwrap();
    let transaction = Transaction::decode(&body).unwrap();
    (transaction.reads, transaction.writes[0].1.clone())
}

/// It is committed, and has read what this says of each key.
fn commit(
    of: &mut Transactions,
    place: usize,
    times: (u64, u64),
    keys: &[Vec<u8>],
    value_of: impl Fn(&[u8]) -> Vec<u8>,
) {
    let read = |key: &Vec<u8>| Read {
        version: 1,
        value: value_of(key),
    };
    let outcome = Outcome::Committed(keys.iter().map(read).collect());
    of.ended(place, times.0, times.1, &outcome.encode(1)).unwrap();
}

#[test]
fn what_depends_on_a_transaction_without_an_answer_is_left_out_and_no_more() {
    let mut random = Random::new(2);
    let settings = transactions::Settings {
        keys: 2,
        value_bytes: 8,
        records: true,
    };
    let mut of = Transactions::new(settings).unwrap();
    // The first reads nothing, the second has no answer, the third reads what the second wrote, the fourth what the third.
    let (keys, _) = begin(&mut of, 0, &mut random);
    commit(&mut of, 0, (1, 2), &keys, |_| Vec::new());
    let (_, unanswered) = begin(&mut of, 1, &mut random);
    let (keys, third) = begin(&mut of, 2, &mut random);
    commit(&mut of, 2, (3, 4), &keys, |_| unanswered.clone());
    let (keys, _) = begin(&mut of, 3, &mut random);
    commit(&mut of, 3, (5, 6), &keys, |_| third.clone());
    assert_eq!(of.check().unwrap(), 1);
    // A value that nobody has written is an error as before.
    let (keys, _) = begin(&mut of, 4, &mut random);
    commit(&mut of, 4, (7, 8), &keys, |_| 999_u64.to_le_bytes().to_vec());
    assert!(of.check().is_err());
}
