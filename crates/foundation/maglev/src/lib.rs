//! Maglev's lookup table (Eisenbud and others, "Maglev: A Fast and Reliable Software Network Load Balancer", NSDI 2016,
//! §3.4): from a hash to a member of a group. It knows no flows and no instances, and keeps no connections.
//!
//! Each member has its own permutation of the entries, by its name, and in turn takes its next free one. Shares are
//! proportional to weights, and few entries of others change when a member leaves.
//!
//! Key types: [`Table`], [`Member`].
//!
//! 1. [`Table::begin`] starts a table for a group, beside the active one.
//! 2. [`Table::fill`] fills a number of its entries: to build it at once takes milliseconds. Once it is full, it is the
//!    active one.
//! 3. [`Table::place`] and [`Table::entries`] look a hash up.
#![forbid(unsafe_code)]

use model::mix;

/// Usual entries of a table: Maglev's choice, a prime. A hundred times the members keeps shares even to 1 %. More
/// entries move fewer hashes of others when one leaves: 0.2 to 0.5 % with 8 to 64 members; 16381 entries give up to 2 %.
pub const ENTRIES: u32 = 65_537;
/// Entries of a table, at most.
pub const ENTRIES_LIMIT: u32 = 1_048_573;
/// The entry of no member.
pub const NOBODY: u16 = u16::MAX;

/// A member of the group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Member {
    /// What entries have of it; not [`NOBODY`].
    pub id: u16,
    /// What its permutation comes from: two tables agree where names agree.
    pub name: u64,
    /// Its share, relative to the others'. If all are 0, all have the same one.
    pub weight: f32,
}

/// The table, and the one that is built to replace it.
#[derive(Clone, Debug)]
pub struct Table {
    entries: Box<[u16]>,
    next: Box<[u16]>,
    filled: u32,
    /// The permutation state of each member of `next`.
    turns: Vec<Turn>,
    turn: usize,
}

#[derive(Clone, Copy, Debug)]
struct Turn {
    id: u16,
    /// The next entry it requests, and the distance to the one after.
    position: u32,
    skip: u32,
    /// Its weight relative to the highest, and its accumulated credit.
    weight: f32,
    saved: f32,
}

impl Table {
    /// An empty table of so many entries ([`is_size`]), which does not allocate again for up to `members` members.
    pub fn new(entries: u32, members: usize) -> Table {
        let table = || vec![NOBODY; entries as usize].into_boxed_slice();
        Table {
            entries: table(),
            next: table(),
            filled: 0,
            turns: Vec::with_capacity(members),
            turn: 0,
        }
    }

    /// Entries, of which each is the id of a member, or [`NOBODY`] before the first table is full.
    #[inline]
    pub fn entries(&self) -> &[u16] {
        &self.entries
    }

    /// The place of a hash in [`Table::entries`].
    #[inline]
    pub fn place(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.entries.len() as u128) >> 64) as usize
    }

    /// Starts a table for these members. They take turns in this order, which does not favour any: once the table is
    /// full, each had as many turns as its weight gives.
    pub fn begin(&mut self, members: impl Iterator<Item = Member> + Clone) {
        let entries = self.entries.len() as u64;
        let highest = members.clone().map(|of| of.weight).fold(0.0, f32::max);
        self.turns.clear();
        for of in members {
            let weight = if highest > 0.0 { of.weight / highest } else { 1.0 };
            if weight > 0.0 {
                self.turns.push(Turn {
                    id: of.id,
                    position: (mix(of.name) % entries) as u32,
                    skip: (mix(!of.name) % (entries - 1)) as u32 + 1,
                    weight,
                    saved: 0.0,
                });
            }
        }
        self.next.fill(NOBODY);
        self.filled = 0;
        self.turn = 0;
    }

    /// Fills up to `count` entries of the table that was begun. Whether it is full, and so the active one from now on;
    /// then the next call must be [`Table::begin`]. False if it has no members.
    pub fn fill(&mut self, count: u32) -> bool {
        let entries = self.entries.len() as u32;
        let end = self.filled.saturating_add(count).min(entries);
        while self.filled < end {
            if self.turn >= self.turns.len() {
                self.turn = 0;
            }
            let Some(turn) = self.turns.get_mut(self.turn) else {
                return false;
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
                    Some(entry) if *entry == NOBODY => {
                        *entry = turn.id;
                        break;
                    }
                    _ => {}
                }
            }
            self.filled += 1;
        }
        let is_full = self.filled == entries;
        if is_full {
            std::mem::swap(&mut self.entries, &mut self.next);
        }
        is_full
    }
}

/// Whether a table may have so many entries: a prime from 3 to [`ENTRIES_LIMIT`].
pub fn is_size(entries: u32) -> bool {
    (3..=ENTRIES_LIMIT).contains(&entries) && is_prime(entries)
}

/// The least number of entries from this one on that a table may have, or the largest one.
pub fn size_from(entries: u32) -> u32 {
    (entries.clamp(3, ENTRIES_LIMIT)..=ENTRIES_LIMIT)
        .find(|n| is_prime(*n))
        .unwrap_or(ENTRIES_LIMIT)
}

fn is_prime(n: u32) -> bool {
    n >= 2 && (2..).take_while(|d| d * d <= n).all(|d| !n.is_multiple_of(d))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn members(weights: &[f32]) -> impl Iterator<Item = Member> + Clone {
        weights.iter().zip(0..).map(|(weight, id)| Member {
            id,
            name: mix(u64::from(id)),
            weight: *weight,
        })
    }

    fn table(entries: u32, weights: &[f32], step: u32) -> Table {
        let mut table = Table::new(entries, weights.len());
        table.begin(members(weights));
        while !table.fill(step) {}
        table
    }

    proptest! {
        #[test]
        fn shares_are_those_of_weights_whatever_the_steps(
            weights in prop::collection::vec(0..4_u8, 1..20), step in 1..3_000_u32,
        ) {
            let weights: Vec<f32> = weights.into_iter().map(f32::from).collect();
            let table = table(5_003, &weights, step);
            let all: f32 = weights.iter().sum();
            for (id, weight) in (0..).zip(&weights) {
                let count = table.entries().iter().filter(|entry| **entry == id).count();
                let share = if all > 0.0 { weight / all } else { 1.0 / weights.len() as f32 };
                prop_assert!((count as f32 - share * 5_003.0).abs() <= 4.0, "{} of {}", count, share);
            }
            let at_once = self::table(5_003, &weights, u32::MAX);
            prop_assert_eq!(at_once.entries(), table.entries());
        }
    }

    #[test]
    fn few_entries_of_others_change_when_a_member_leaves() {
        let before = table(ENTRIES, &[1.0; 8], u32::MAX);
        let mut weights = [1.0; 8];
        weights[3] = 0.0;
        let after = table(ENTRIES, &weights, u32::MAX);
        let pairs = before.entries().iter().zip(after.entries());
        let moved = pairs.filter(|(from, to)| **from != 3 && from != to).count();
        assert!(moved < ENTRIES as usize / 100, "{moved}");
    }

    #[test]
    fn sizes_are_primes() {
        assert!(is_size(3) && is_size(ENTRIES) && is_size(ENTRIES_LIMIT));
        assert!(!is_size(2) && !is_size(65_536) && !is_size(1_048_583));
        assert_eq!([0, 24, u32::MAX].map(size_from), [3, 29, ENTRIES_LIMIT]);
    }

    #[test]
    fn a_hash_has_a_place_and_a_table_without_members_has_nobody() {
        let mut table = Table::new(7, 0);
        table.begin(members(&[]));
        assert!(!table.fill(7));
        assert_eq!([0, u64::MAX].map(|hash| table.place(hash)), [0, 6]);
        assert!(table.entries().iter().all(|entry| *entry == NOBODY));
    }
}
