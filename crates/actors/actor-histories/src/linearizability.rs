//! Whether the history of one key is that of a register on which each operation takes effect at once, between its call
//! and its end.
//!
//! The algorithm is that of Wing and Gong ("Testing and verifying concurrent objects", 1993) with the cache of Lowe
//! ("Testing for linearizability", 2017), which Porcupine uses as well: it takes operations in any order that real time
//! permits, goes back where none fits, and does not come twice to the same state with the same operations.

use std::collections::HashSet;

/// What an operation did; a value is a number, and no value is that of a deleted key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It returned this.
    Read(Option<u64>),
    /// It wrote this.
    Write(Option<u64>),
}

/// An operation on the key. All times of a history differ.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// When it began.
    pub call: u64,
    /// When its answer came; [`None`]: nobody knows whether it took effect, or will.
    pub end: Option<u64>,
    /// What it did.
    pub action: Action,
}

/// A doubly linked list of calls and ends, in the order of time, from which an operation can be lifted and to which it
/// can be put back. Places 0 and `last` are its ends.
struct Events {
    /// The operation of a place, and whether the place is its call.
    of: Vec<(usize, bool)>,
    before: Vec<usize>,
    after: Vec<usize>,
    calls: Vec<usize>,
    ends: Vec<usize>,
}

impl Events {
    fn new(history: &[Operation]) -> Events {
        let mut times = Vec::new();
        for (number, operation) in history.iter().enumerate() {
            times.push((operation.call, number, true));
            times.push((operation.end.unwrap_or(u64::MAX), number, false));
        }
        times.sort_unstable();
        let mut events = Events {
            of: vec![(usize::MAX, true)],
            before: (0..times.len() + 2).map(|place| place.wrapping_sub(1)).collect(),
            after: (1..times.len() + 3).collect(),
            calls: vec![0; history.len()],
            ends: vec![0; history.len()],
        };
        for (place, (_, number, is_call)) in (1..).zip(times) {
            events.of.push((number, is_call));
            let places = if is_call {
                &mut events.calls
            } else {
                &mut events.ends
            };
            places[number] = place;
        }
        events
    }

    fn last(&self) -> usize {
        self.of.len()
    }

    fn lift(&mut self, operation: usize) {
        for place in [self.calls[operation], self.ends[operation]] {
            let (before, after) = (self.before[place], self.after[place]);
            self.after[before] = after;
            self.before[after] = before;
        }
    }

    fn put_back(&mut self, operation: usize) {
        for place in [self.ends[operation], self.calls[operation]] {
            let (before, after) = (self.before[place], self.after[place]);
            self.after[before] = place;
            self.before[after] = place;
        }
    }
}

/// Whether there is an order that explains the history; the key has no value before it.
///
/// The history is divided after each operation that overlaps no other one: what the key has then is known. So a long
/// history costs as much as its parts.
pub fn is_linearizable(history: &[Operation]) -> bool {
    // A read without an answer explains nothing and breaks nothing.
    let mut history: Vec<_> = (history.iter().copied())
        .filter(|of| of.end.is_some() || matches!(of.action, Action::Write(_)))
        .collect();
    history.sort_by_key(|of| of.call);
    let (mut first, mut value, mut ended) = (0, None, 0);
    for (place, of) in history.iter().enumerate() {
        let end = of.end.unwrap_or(u64::MAX);
        let is_last = history.get(place + 1).is_none_or(|next| next.call > end);
        if of.call > ended && is_last {
            if !is_explained(&history[first..=place], value) {
                return false;
            }
            first = place + 1;
            value = match of.action {
                Action::Read(read) => read,
                Action::Write(written) => written,
            };
        }
        ended = ended.max(end);
    }
    is_explained(&history[first..], value)
}

/// The same of a key that has this value before.
fn is_explained(history: &[Operation], mut value: Option<u64>) -> bool {
    let mut events = Events::new(history);
    let mut taken = vec![0_u64; history.len().div_ceil(64)];
    let mut seen: HashSet<(Vec<u64>, Option<u64>)> = HashSet::new();
    let mut path = Vec::new();
    let mut place = events.after[0];
    while events.after[0] != events.last() {
        let (number, is_call) = events.of[place];
        if is_call {
            let next = match history[number].action {
                Action::Write(written) => Some(written),
                Action::Read(read) => (read == value).then_some(value),
            };
            let is_new = next.is_some_and(|next| {
                taken[number / 64] |= 1 << (number % 64);
                let is_new = seen.insert((taken.clone(), next));
                if !is_new {
                    taken[number / 64] &= !(1 << (number % 64));
                }
                is_new
            });
            if let Some(next) = next.filter(|_| is_new) {
                path.push((number, value));
                value = next;
                events.lift(number);
                place = events.after[0];
            } else {
                place = events.after[place];
            }
            continue;
        }
        // An operation has ended before any that fits: the last choice was wrong.
        let Some((number, before)) = path.pop() else {
            return false;
        };
        value = before;
        taken[number / 64] &= !(1 << (number % 64));
        events.put_back(number);
        place = events.after[events.calls[number]];
    }
    true
}
