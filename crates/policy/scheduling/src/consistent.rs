use maglev::{ENTRIES_LIMIT, Member, Table};
use model::Slot;
use serde::{Deserialize, Deserializer};

use crate::Candidates;

/// Entries filled per candidate list: some ten microseconds, which bounds the worker's delay. At one list per
/// millisecond a table of 65537 is complete after 33 ms.
const ENTRIES_PER_STEP: u32 = 2048;
const _: () = assert!(maglev::NOBODY == Slot::NONE.0);

/// Maglev's lookup table, with the candidate list that it is for.
///
/// A table is built in steps beside the active one: building it at once would stall a worker for
/// milliseconds.
#[derive(Clone, Debug)]
pub(crate) struct Consistent {
    table: Table,
    /// The candidate list of the active table; 0 before the first.
    shape: u64,
    /// That of the one that is built; 0 if none is.
    next_shape: u64,
    /// Whether a fresh instance has its whole share at once.
    is_steady: bool,
}

impl Consistent {
    pub(crate) fn new(entries: u32) -> Consistent {
        Consistent {
            table: Table::new(entries, Slot::LIMIT),
            shape: 0,
            next_shape: 0,
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
        self.table.entries().len() as u32
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
        let is_steady = self.is_steady;
        let rows = candidates.rows().iter().enumerate();
        self.table.begin(rows.map(|(index, row)| Member {
            id: row.slot.0,
            name: row.slot.0.into(),
            weight: f32::from(row.weight) * if is_steady { 1.0 } else { candidates.ramp(index) },
        }));
        self.next_shape = candidates.shape();
    }

    fn fill(&mut self, count: u32) {
        if self.table.fill(count) {
            self.shape = self.next_shape;
            self.next_shape = 0;
        }
    }

    /// The candidate for a hash. If its table entry names one that has left, the next entry with a present
    /// instance. Without a table, a candidate by the hash alone.
    #[inline]
    pub(crate) fn index(&self, hash: u64, candidates: &Candidates) -> usize {
        let entries = self.table.entries();
        let mut place = self.table.place(hash);
        for _ in 0..entries.len() {
            match entries.get(place) {
                Some(&maglev::NOBODY) | None => break,
                Some(slot) => {
                    if let Some(index) = candidates.index_of(Slot(*slot)) {
                        return index;
                    }
                }
            }
            place += 1;
            if place == entries.len() {
                place = 0;
            }
        }
        ((u128::from(hash) * candidates.len() as u128) >> 64) as usize
    }

    /// Each candidate's share of the table.
    pub(crate) fn shares(&self, candidates: &Candidates) -> Vec<f64> {
        let mut shares = vec![0.0; candidates.len()];
        for slot in self.table.entries() {
            let share = candidates
                .index_of(Slot(*slot))
                .and_then(|index| shares.get_mut(index));
            if let Some(share) = share {
                *share += 1.0 / f64::from(self.len());
            }
        }
        shares
    }
}

/// Parses a table size, for `#[serde(deserialize_with)]`.
pub(crate) fn deserialize_entries<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let entries = u32::deserialize(deserializer)?;
    if maglev::is_size(entries) {
        return Ok(entries);
    }
    let write = maglev::size_from(entries);
    let expected = format!("a prime from 3 to {ENTRIES_LIMIT}, for example {write}");
    let wrong = serde::de::Unexpected::Unsigned(u64::from(entries));
    Err(serde::de::Error::invalid_value(wrong, &expected.as_str()))
}
