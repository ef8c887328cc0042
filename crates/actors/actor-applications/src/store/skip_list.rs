//! A sorted list of entries in objects: a skip list (Pugh, "Skip lists: a probabilistic alternative to balanced trees",
//! 1990). Links are ids of objects, so the list moves as it is.
//!
//! A node is one object: height (8), then for each level the id of the next node (8), then the [`Entry`]. The list itself
//! is an object with the first node of each level, and the bytes of all entries.

use std::cmp::Ordering;

use actor_objects::{ObjectId, Objects};
use model::Random;

use crate::codec::Reader;
use crate::state::Failure;
use crate::store::entry::Entry;

/// Levels, at most: enough for 2^12 entries with one link in two.
const LEVELS: usize = 12;
/// Bytes of the list's object: a height, the links, and the bytes of entries.
const LIST_BYTES: usize = 8 + 8 * LEVELS + 8;

/// A list; its nodes are objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SkipList(pub(crate) ObjectId);

fn number(bytes: &[u8], at: usize) -> Result<u64, Failure> {
    bytes
        .get(at..)
        .and_then(|rest| Reader(rest).u64())
        .ok_or(Failure::Layout)
}

/// The node after one at a level. The list's object is before the first one.
fn next(objects: &Objects, node: ObjectId, level: usize) -> Result<Option<ObjectId>, Failure> {
    let id = number(objects.get(node)?, 8 + 8 * level)?;
    Ok((id != 0).then_some(ObjectId::from_bits(id)))
}

fn link(objects: &mut Objects, node: ObjectId, level: usize, to: Option<ObjectId>) -> Result<(), Failure> {
    let bits = to.map_or(0, ObjectId::to_bits);
    Ok(objects.write(node, 8 + 8 * level, &bits.to_le_bytes())?)
}

fn height(objects: &Objects, node: ObjectId) -> Result<usize, Failure> {
    let height = number(objects.get(node)?, 0)? as usize;
    if height <= LEVELS {
        Ok(height)
    } else {
        Err(Failure::Layout)
    }
}

fn entry(objects: &Objects, node: ObjectId) -> Result<Entry<'_>, Failure> {
    let at = 8 + 8 * height(objects, node)?;
    let bytes = objects.get(node)?.get(at..).ok_or(Failure::Layout)?;
    Entry::read(&mut Reader(bytes)).ok_or(Failure::Layout)
}

impl SkipList {
    pub(crate) fn create(objects: &mut Objects) -> Result<SkipList, Failure> {
        let id = objects.allocate(LIST_BYTES)?;
        objects.write(id, 0, &(LEVELS as u64).to_le_bytes())?;
        Ok(SkipList(id))
    }

    /// Bytes of all entries.
    pub(crate) fn bytes(self, objects: &Objects) -> Result<usize, Failure> {
        Ok(number(objects.get(self.0)?, LIST_BYTES - 8)? as usize)
    }

    fn set_bytes(self, objects: &mut Objects, bytes: usize) -> Result<(), Failure> {
        Ok(objects.write(self.0, LIST_BYTES - 8, &(bytes as u64).to_le_bytes())?)
    }

    /// The last node before a key on each level, and the node of the key.
    fn search(
        self,
        objects: &Objects,
        key: &[u8],
    ) -> Result<([ObjectId; LEVELS], Option<ObjectId>), Failure> {
        let mut before = [self.0; LEVELS];
        let (mut node, mut found) = (self.0, None);
        for level in (0..LEVELS).rev() {
            while let Some(after) = next(objects, node, level)? {
                match entry(objects, after)?.key.cmp(key) {
                    Ordering::Less => node = after,
                    Ordering::Equal => {
                        found = Some(after);
                        break;
                    }
                    Ordering::Greater => break,
                }
            }
            before[level] = node;
        }
        Ok((before, found))
    }

    pub(crate) fn get<'a>(self, objects: &'a Objects, key: &[u8]) -> Result<Option<Entry<'a>>, Failure> {
        let (_, found) = self.search(objects, key)?;
        found.map(|node| entry(objects, node)).transpose()
    }

    /// Adds an entry, instead of the one of its key.
    pub(crate) fn put(self, objects: &mut Objects, new: Entry<'_>) -> Result<(), Failure> {
        let (before, found) = self.search(objects, new.key)?;
        let mut bytes = self.bytes(objects)?;
        if let Some(node) = found {
            bytes -= entry(objects, node)?.bytes();
            for (level, before) in before.iter().enumerate().take(height(objects, node)?) {
                let after = next(objects, node, level)?;
                link(objects, *before, level, after)?;
            }
            objects.free(node)?;
        }
        // Slots differ, so this is as good as a random number, and the same on each replica.
        let height = (Random::new(new.slot).bits().trailing_ones() as usize + 1).min(LEVELS);
        let mut of = Vec::with_capacity(8 + 8 * height + new.bytes());
        of.extend((height as u64).to_le_bytes());
        for (level, before) in before.iter().enumerate().take(height) {
            let after = next(objects, *before, level)?;
            of.extend(after.map_or(0, ObjectId::to_bits).to_le_bytes());
        }
        new.write(&mut of);
        let node = crate::state::allocate(objects, &of)?;
        for (level, before) in before.iter().enumerate().take(height) {
            link(objects, *before, level, Some(node))?;
        }
        self.set_bytes(objects, bytes + new.bytes())
    }

    /// All entries in the order of their keys.
    pub(crate) fn write_all(self, objects: &Objects, into: &mut Vec<u8>) -> Result<(), Failure> {
        let mut node = next(objects, self.0, 0)?;
        while let Some(of) = node {
            entry(objects, of)?.write(into);
            node = next(objects, of, 0)?;
        }
        Ok(())
    }

    /// Entries behind a key, in the order of their keys, until they have so many bytes; and whether those are all.
    pub(crate) fn after<'a>(
        self,
        objects: &'a Objects,
        key: &[u8],
        bytes: usize,
    ) -> Result<(Vec<Entry<'a>>, bool), Failure> {
        let (before, found) = self.search(objects, key)?;
        let mut node = next(objects, found.unwrap_or(before[0]), 0)?;
        let (mut entries, mut used) = (Vec::new(), 0);
        while let Some(of) = node {
            if used >= bytes {
                return Ok((entries, false));
            }
            let entry = entry(objects, of)?;
            used += entry.bytes();
            entries.push(entry);
            node = next(objects, of, 0)?;
        }
        Ok((entries, true))
    }

    /// Frees the list with its nodes.
    pub(crate) fn free(self, objects: &mut Objects) -> Result<(), Failure> {
        let mut node = Some(self.0);
        while let Some(of) = node {
            node = next(objects, of, 0)?;
            objects.free(of)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use actor_objects::Limits;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_holds_what_a_map_holds(
            puts in prop::collection::vec((0..40_u8, prop::option::of(0..50_usize)), 0..200),
        ) {
            let limits = Limits { bytes: 1 << 20, objects: 1_000 };
            let (_file, mut objects) = Objects::create(limits).unwrap();
            let list = SkipList::create(&mut objects).unwrap();
            let mut map = BTreeMap::new();
            for (slot, (key, length)) in (1..).zip(&puts) {
                let value = length.map(|length| vec![*key; length]);
                list.put(&mut objects, Entry { slot, key: &[*key], value: value.as_deref() }).unwrap();
                map.insert(vec![*key], (slot, value));
            }
            let mut expected = Vec::new();
            for (key, (slot, value)) in &map {
                let entry = Entry { slot: *slot, key, value: value.as_deref() };
                prop_assert_eq!(list.get(&objects, key).unwrap(), Some(entry));
                entry.write(&mut expected);
            }
            prop_assert_eq!(list.get(&objects, &[99]).unwrap(), None);
            let (behind, is_all) = list.after(&objects, &[20], usize::MAX).unwrap();
            let keys: Vec<_> = behind.iter().map(|entry| entry.key.to_vec()).collect();
            let expected_keys: Vec<_> = map.keys().filter(|key| key[0] > 20).cloned().collect();
            prop_assert_eq!((keys, is_all), (expected_keys, true));
            let mut all = Vec::new();
            list.write_all(&objects, &mut all).unwrap();
            prop_assert_eq!(list.bytes(&objects).unwrap(), all.len());
            prop_assert_eq!(all, expected);
            prop_assert_eq!(objects.len(), map.len() + 1);
            list.free(&mut objects).unwrap();
            prop_assert!(objects.is_empty());
        }
    }
}
