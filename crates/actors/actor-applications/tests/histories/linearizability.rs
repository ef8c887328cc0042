//! Whether the history of one key is that of a register on which each operation takes effect at once, between its call
//! and its end.
//!
//! The algorithm is that of Wing and Gong ("Testing and verifying concurrent objects", 1993) with the cache of Lowe
//! ("Testing for linearizability", 2017), which Porcupine uses as well: it takes operations in any order that real time
//! permits, goes back where none fits, and does not come twice to the same state with the same operations.

use std::collections::HashSet;

/// What an operation did; a value is a number, and no value is that of a deleted key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// It returned this.
    Read(Option<u64>),
    /// It wrote this.
    Write(Option<u64>),
}

/// An operation on the key. All times of a history differ.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    pub(crate) call: u64,
    /// [`None`]: nobody knows whether it took effect, or will.
    pub(crate) end: Option<u64>,
    pub(crate) action: Action,
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
pub(crate) fn is_linearizable(history: &[Operation]) -> bool {
    // A read without an answer explains nothing and breaks nothing.
    let history: Vec<_> = (history.iter().copied())
        .filter(|of| of.end.is_some() || matches!(of.action, Action::Write(_)))
        .collect();
    let mut events = Events::new(&history);
    let mut taken = vec![0_u64; history.len().div_ceil(64)];
    let mut seen: HashSet<(Vec<u64>, Option<u64>)> = HashSet::new();
    let mut path = Vec::new();
    let mut value = None;
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
