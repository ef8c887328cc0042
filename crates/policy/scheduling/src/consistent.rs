use model::{Slot, mix};
use serde::{Deserialize, Deserializer};

use crate::Candidates;

/// Table entries: Maglev's choice, a prime. A hundred times the instances keeps shares even to 1 %. More
/// entries move fewer flows of others when one leaves: 0.2 to 0.5 % with 8 to 64 instances; 16381 entries
/// give up to 2 %.
pub(crate) const TABLE_ENTRIES: u32 = 65_537;
/// The largest table.
const TABLE_LIMIT: u32 = 1_048_573;
/// Entries filled per candidate list: some ten microseconds, which bounds the worker's delay. At one list per
/// millisecond a table of 65537 is complete after 33 ms.
const ENTRIES_PER_STEP: u32 = 2048;
/// No instance.
const NO_INSTANCE: u16 = Slot::NONE.0;

/// Maglev's lookup table (Eisenbud et al., NSDI 2016, §3.4). Each instance has its own permutation of the
/// entries and in turn takes its next free one. Shares are proportional to weights, and few entries of others
/// change when an instance leaves.
///
/// A table is built in steps beside the active one: building it at once would stall a worker for
/// milliseconds.
#[derive(Clone, Debug)]
pub(crate) struct Consistent {
    entries: Box<[u16]>,
    /// The candidate list of `entries`; 0 before the first.
    shape: u64,
    next: Box<[u16]>,
    next_shape: u64,
    filled: u32,
    /// The permutation state of each candidate in `next_shape`.
    turns: Vec<Turn>,
    turn: usize,
    /// Whether a fresh instance has its whole share at once.
    is_steady: bool,
}

#[derive(Clone, Copy, Debug)]
struct Turn {
    slot: u16,
    /// The next entry it requests, and the distance to the one after.
    position: u32,
    skip: u32,
    /// Its weight relative to the highest, and its accumulated credit.
    weight: f32,
    saved: f32,
}

impl Consistent {
    pub(crate) fn new(entries: u32) -> Consistent {
        let table = || vec![NO_INSTANCE; entries as usize].into_boxed_slice();
        Consistent {
            entries: table(),
            shape: 0,
            next: table(),
            next_shape: 0,
            filled: 0,
            turns: Vec::with_capacity(Slot::LIMIT),
            turn: 0,
            is_steady: false,
        }
    }

    /// The same, where a fresh instance has its whole share at once.
    pub(crate) fn steady(self) -> Consistent {
        Consistent {
            is_steady: true,
            ..self
        }
    }

    pub(crate) fn len(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Takes over a new list, by one step. A table begun for an older list is finished first: lists may
    /// change faster than tables are built.
    pub(crate) fn refill(&mut self, candidates: &Candidates) {
        if candidates.is_empty() || self.next_shape == 0 && candidates.shape() == self.shape {
            return;
        }
        if self.next_shape == 0 {
            self.begin(candidates);
        }
        self.fill(ENTRIES_PER_STEP);
    }

    /// Builds the whole table at once.
    pub(crate) fn settle(&mut self, candidates: &Candidates) {
        if candidates.is_empty() || candidates.shape() == self.shape {
            return;
        }
        if candidates.shape() != self.next_shape {
            self.begin(candidates);
        }
        self.fill(self.len());
    }

    fn begin(&mut self, candidates: &Candidates) {
        let ramp = |index| {
            if self.is_steady {
                1.0
            } else {
                candidates.ramp(index)
            }
        };
        let weight = |index: usize, weight: u16| f32::from(weight) * ramp(index);
        let rows = || candidates.rows().iter().enumerate();
        let highest = rows()
            .map(|(index, row)| weight(index, row.weight))
            .fold(0.0, f32::max);
        let entries = u64::from(self.len());
        self.turns.clear();
        // Candidates take turns in slot order. That does not favour any: once the table is full, each had as
        // many turns as its weight gives.
        for (index, row) in rows() {
            let weight = if highest > 0.0 {
                weight(index, row.weight) / highest
            } else {
                1.0
            };
            if weight > 0.0 {
                let name = u64::from(row.slot.0);
                self.turns.push(Turn {
                    slot: row.slot.0,
                    position: (mix(name) % entries) as u32,
                    skip: (mix(!name) % (entries - 1)) as u32 + 1,
                    weight,
                    saved: 0.0,
                });
            }
        }
        self.next.fill(NO_INSTANCE);
        self.next_shape = candidates.shape();
        self.filled = 0;
        self.turn = 0;
    }

    fn fill(&mut self, count: u32) {
        let entries = self.len();
        let end = self.filled.saturating_add(count).min(entries);
        while self.filled < end {
            if self.turn >= self.turns.len() {
                self.turn = 0;
            }
            let Some(turn) = self.turns.get_mut(self.turn) else {
                return;
            };
            self.turn += 1;
            turn.saved += turn.weight;
            if turn.saved < 1.0 {
                continue;
            }
            turn.saved -= 1.0;
            // Terminates: one entry is free, and the skip is coprime to the length.
            loop {
                let place = turn.position as usize;
                turn.position += turn.skip;
                if turn.position >= entries {
                    turn.position -= entries;
                }
                match self.next.get_mut(place) {
                    Some(entry) if *entry == NO_INSTANCE => {
                        *entry = turn.slot;
                        break;
                    }
                    _ => {}
                }
            }
            self.filled += 1;
        }
        if self.filled == entries {
            std::mem::swap(&mut self.entries, &mut self.next);
            self.shape = self.next_shape;
            self.next_shape = 0;
        }
    }

    /// The candidate for a hash. If its table entry names one that has left, the next entry with a present
    /// instance. Without a table, a candidate by the hash alone.
    #[inline]
    pub(crate) fn index(&self, hash: u64, candidates: &Candidates) -> usize {
        let entries = self.entries.len();
        let mut place = ((u128::from(hash) * entries as u128) >> 64) as usize;
        for _ in 0..entries {
            match self.entries.get(place) {
                Some(&NO_INSTANCE) | None => break,
                Some(slot) => {
                    if let Some(index) = candidates.index_of(Slot(*slot)) {
                        return index;
                    }
                }
            }
            place += 1;
            if place == entries {
                place = 0;
            }
        }
        ((u128::from(hash) * candidates.len() as u128) >> 64) as usize
    }

    /// Each candidate's share of the table.
    pub(crate) fn shares(&self, candidates: &Candidates) -> Vec<f64> {
        let mut shares = vec![0.0; candidates.len()];
        for slot in &self.entries {
            let share = candidates
                .index_of(Slot(*slot))
                .and_then(|index| shares.get_mut(index));
            if let Some(share) = share {
                *share += 1.0 / self.entries.len() as f64;
            }
        }
        shares
    }
}

/// Parses a table size, for `#[serde(deserialize_with)]`.
pub(crate) fn deserialize_entries<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let entries = u32::deserialize(deserializer)?;
    if is_prime(entries) && (3..=TABLE_LIMIT).contains(&entries) {
        return Ok(entries);
    }
    let write = (entries.clamp(3, TABLE_LIMIT)..=TABLE_LIMIT)
        .find(|n| is_prime(*n))
        .unwrap_or(TABLE_LIMIT);
    let expected = format!("a prime from 3 to {TABLE_LIMIT}, for example {write}");
    let wrong = serde::de::Unexpected::Unsigned(u64::from(entries));
    Err(serde::de::Error::invalid_value(wrong, &expected.as_str()))
}

fn is_prime(n: u32) -> bool {
    n >= 2 && (2..).take_while(|d| d * d <= n).all(|d| !n.is_multiple_of(d))
}
