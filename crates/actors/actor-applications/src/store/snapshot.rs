//! How a replica catches up whose log the others do not have any more.
//!
//! It takes a snapshot of another replica, in parts, while that one goes on:
//!
//! 1. The head: a slot, and the last request of each client there. The memtable forgets all that it had, and goes on from
//!    that slot with the log. So the log need not wait for the rest.
//! 2. The entries, in the order of their keys, each as it is when its part is read. They become the table of the last
//!    level, below all that the log has written since. An entry may be newer than the slot of the head: then the log
//!    writes the same or a later one again.
//!
//! Until all entries are there, and the log has got as far as the newest of them, the replica takes part in choosing, but
//! does not try to lead; so nobody reads from it. Each part names the key behind which it begins, so any part may be asked
//! for again, and of any replica that has applied the slot of the head.

use std::collections::BTreeMap;

use crate::codec::{Reader, Write as _};
use crate::store::entry::Entry;

/// Bytes of entries in a part.
pub(crate) const PART_BYTES: usize = 40 << 10;

/// Entries with ascending keys, all behind the same one.
pub(crate) struct Run<'a> {
    pub(crate) entries: Vec<Entry<'a>>,
    /// Whether there are no further ones.
    pub(crate) is_all: bool,
}

/// A part of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) is_last: bool,
    pub(crate) after: Vec<u8>,
    pub(crate) until: Vec<u8>,
    /// As [`Entry::write`] writes them.
    pub(crate) entries: Vec<u8>,
}

impl Part {
    /// What several runs have behind a key: of each key the entry with the highest slot.
    pub(crate) fn of(after: &[u8], runs: Vec<Run<'_>>) -> Part {
        // Behind the last key of a run that has more nothing is known.
        let known = runs.iter().filter(|run| !run.is_all);
        let known = known
            .map(|run| run.entries.last().map_or(after, |last| last.key))
            .min();
        let mut newest: BTreeMap<&[u8], Entry<'_>> = BTreeMap::new();
        for entry in runs.iter().flat_map(|run| &run.entries) {
            if known.is_some_and(|known| entry.key > known) {
                continue;
            }
            let of = newest.entry(entry.key).or_insert(*entry);
            if of.slot < entry.slot {
                *of = *entry;
            }
        }
        let mut part = Part {
            is_last: known.is_none(),
            after: after.to_vec(),
            until: after.to_vec(),
            entries: Vec::new(),
        };
        for entry in newest.values() {
            if part.entries.len() + entry.bytes() > PART_BYTES {
                part.is_last = false;
                return part;
            }
            part.until = entry.key.to_vec();
            entry.write(&mut part.entries);
        }
        if let Some(known) = known {
            part.until = known.to_vec();
        }
        part
    }

    pub(crate) fn write(&self, into: &mut Vec<u8>) {
        into.put_u8(u8::from(self.is_last));
        into.put_short(&self.after).put_short(&self.until);
        into.extend(&self.entries);
    }

    pub(crate) fn read(bytes: &[u8]) -> Option<Part> {
        let mut reader = Reader(bytes);
        let (is_last, after, until) = (reader.u8()?, reader.short()?, reader.short()?);
        Entry::read_all(reader.0)?;
        Some(Part {
            is_last: is_last == 1,
            after: after.to_vec(),
            until: until.to_vec(),
            entries: reader.0.to_vec(),
        })
    }
}

/// How far a replica has got with a snapshot, as its tables say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Installed {
    /// The slot of its head; 0: there never was one.
    pub(crate) slot: u64,
    pub(crate) is_done: bool,
    /// The highest slot of its entries.
    pub(crate) highest: u64,
    /// The key until which its entries are there.
    pub(crate) until: Vec<u8>,
}

impl Installed {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        body.put_u64(self.slot).put_u8(u8::from(self.is_done));
        body.put_u64(self.highest).put_short(&self.until);
        body
    }

    pub(crate) fn decode(body: &[u8]) -> Option<Installed> {
        let mut reader = Reader(body);
        let (slot, is_done, highest) = (reader.u64()?, reader.u8()?, reader.u64()?);
        let until = reader.short()?.to_vec();
        reader.end(Installed {
            slot,
            is_done: is_done == 1,
            highest,
            until,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Parts one behind the other have each key once, with its highest slot, whatever the runs reach.
        #[test]
        fn parts_have_all_keys(
            writes in prop::collection::vec((0..60_u8, 0..3_usize, 0..400_usize), 0..150),
            reach in 1..12_usize,
        ) {
            let mut maps = [const { BTreeMap::<Vec<u8>, (u64, Vec<u8>)>::new() }; 3];
            let mut expected: BTreeMap<Vec<u8>, (u64, Vec<u8>)> = BTreeMap::new();
            for (slot, (key, run, length)) in (1..).zip(&writes) {
                let value = vec![*key; *length];
                maps[*run].insert(vec![*key], (slot, value.clone()));
                expected.insert(vec![*key], (slot, value));
            }
            let (mut after, mut found) = (Vec::new(), BTreeMap::new());
            loop {
                let runs = maps.iter().map(|map| {
                    let behind = || map.iter().filter(|(key, _)| **key > after);
                    let entry = |(key, (slot, value)): (&'_ Vec<u8>, &'_ (u64, Vec<u8>))| (key.clone(), *slot, value.clone());
                    (behind().take(reach).map(entry).collect::<Vec<_>>(), behind().count() <= reach)
                }).collect::<Vec<_>>();
                let runs = runs.iter().map(|(entries, is_all)| Run {
                    entries: entries.iter().map(|(key, slot, value)| Entry { slot: *slot, key, value: Some(value) }).collect(),
                    is_all: *is_all,
                });
                let part = Part::of(&after, runs.collect());
                let mut bytes = Vec::new();
                part.write(&mut bytes);
                prop_assert_eq!(Part::read(&bytes), Some(part.clone()));
                for entry in Entry::read_all(&part.entries).unwrap() {
                    prop_assert!(entry.key > &after[..]);
                    found.insert(entry.key.to_vec(), (entry.slot, entry.value.unwrap().to_vec()));
                }
                if part.is_last {
                    break;
                }
                prop_assert!(part.until > after);
                after = part.until;
            }
            prop_assert_eq!(found, expected);
        }
    }
}
