//! What was read of tables last: their indices, and blocks up to a limit. A table never changes, and its number is that of no
//! other one, so what is here is what the disk has. It is no state of an actor: the next value of it begins without.

use std::collections::{HashMap, VecDeque};

use crate::codec::Reader;
use crate::storage::{Storage, StorageError};
use crate::store::entry::Entry;
use crate::store::table;

/// Bytes of blocks, at most.
pub(crate) const CACHE_BYTES: usize = 8 << 20;

#[derive(Debug)]
struct Block {
    begin: u64,
    bytes: u32,
    first: Vec<u8>,
    read: Option<Vec<u8>>,
    /// Since it was last looked at for removal.
    is_used: bool,
}

/// The blocks that were read. Of those that were used since the last look at them, one stays for another round (CLOCK,
/// Corbató, "A paging experiment with the Multics system", 1968).
#[derive(Debug)]
pub(crate) struct Cache {
    limit: usize,
    bytes: usize,
    tables: HashMap<u64, Vec<Block>>,
    /// Blocks that were read, by table and place; one of a table that is gone is passed over.
    order: VecDeque<(u64, usize)>,
}

impl Cache {
    /// Nothing yet.
    pub(crate) fn new(limit: usize) -> Cache {
        Cache {
            limit,
            bytes: 0,
            tables: HashMap::new(),
            order: VecDeque::new(),
        }
    }

    /// Forgets tables that are not used any more.
    pub(crate) fn retain(&mut self, is_there: impl Fn(u64) -> bool) {
        let mut gone = 0;
        self.tables.retain(|table, blocks| {
            let stays = is_there(*table);
            if !stays {
                gone += blocks
                    .iter()
                    .filter_map(|of| of.read.as_ref())
                    .map(Vec::len)
                    .sum::<usize>();
            }
            stays
        });
        self.bytes -= gone;
        let tables = &self.tables;
        self.order.retain(|(table, _)| tables.contains_key(table));
    }

    /// What a table has of a key: [`None`] without an entry, and an entry without a value where the key was deleted.
    ///
    /// # Errors
    /// The table cannot be read.
    #[expect(clippy::map_entry, reason = "an index that cannot be read leaves no entry")]
    pub(crate) fn get(
        &mut self,
        storage: &dyn Storage,
        number: u64,
        key: &[u8],
    ) -> Result<Option<Option<Vec<u8>>>, StorageError> {
        if !self.tables.contains_key(&number) {
            let index = table::index(storage, number)?.into_iter();
            let blocks = index.map(|(begin, bytes, first)| Block {
                begin,
                bytes,
                first,
                read: None,
                is_used: false,
            });
            self.tables.insert(number, blocks.collect());
        }
        let blocks = self.tables.entry(number).or_default();
        let after = blocks.partition_point(|of| &of.first[..] <= key);
        let Some((place, block)) = after
            .checked_sub(1)
            .and_then(|place| Some((place, blocks.get_mut(place)?)))
        else {
            return Ok(None);
        };
        block.is_used = true;
        let is_new = block.read.is_none();
        let read = match &block.read {
            Some(read) => read,
            None => {
                let read = table::block(storage, number, block.begin, block.bytes)?;
                self.bytes += read.len();
                self.order.push_back((number, place));
                block.read.insert(read)
            }
        };
        let found = find(read, key).ok_or(StorageError::Damaged(number))?;
        if is_new {
            self.make_room();
        }
        Ok(found)
    }

    fn make_room(&mut self) {
        while self.bytes > self.limit
            && let Some((table, place)) = self.order.pop_front()
        {
            let Some(block) = self.tables.get_mut(&table).and_then(|of| of.get_mut(place)) else {
                continue;
            };
            if std::mem::take(&mut block.is_used) {
                self.order.push_back((table, place));
            } else if let Some(read) = block.read.take() {
                self.bytes -= read.len();
            }
        }
    }
}

/// What a block has of a key; nothing if its bytes are no entries.
fn find(block: &[u8], key: &[u8]) -> Option<Option<Option<Vec<u8>>>> {
    let mut reader = Reader(block);
    while !reader.0.is_empty() {
        let entry = Entry::read(&mut reader)?;
        if entry.key == key {
            return Some(Some(entry.value.map(<[u8]>::to_vec)));
        }
    }
    Some(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::Folder;

    fn key(number: u64) -> Vec<u8> {
        format!("key{number:06}").into_bytes()
    }

    #[test]
    fn what_is_read_again_is_what_was_written_and_memory_has_a_limit() {
        let folder = tempfile::tempdir().unwrap();
        let mut storage = Folder::open(folder.path()).unwrap();
        for table in 0..3 {
            let keys: Vec<Vec<u8>> = (0..2_000).map(|number| key(3 * number + table)).collect();
            let entries = keys.iter().map(|key| Entry {
                slot: table,
                key,
                value: Some(key),
            });
            let bytes = table::encode(&entries.collect::<Vec<_>>());
            storage.write(table, &bytes).unwrap();
        }
        let mut cache = Cache::new(64 << 10);
        let mut random = model::Random::new(1);
        for _ in 0..5_000 {
            let (table, number) = (random.below(3), random.below(6_000));
            let found = cache.get(&storage, table, &key(number)).unwrap();
            assert_eq!(found, (number % 3 == table).then(|| Some(key(number))));
            assert!(cache.bytes <= cache.limit, "{}", cache.bytes);
        }
        let read = |cache: &Cache| -> usize {
            let blocks = cache.tables.values().flatten();
            blocks.filter_map(|of| of.read.as_ref()).map(Vec::len).sum()
        };
        assert!(cache.bytes > cache.limit / 2 && cache.bytes == read(&cache));
        assert_eq!(cache.get(&storage, 0, b"a").unwrap(), None);
        // What is here is not read again, and what is gone is not remembered.
        storage.remove(0).unwrap();
        cache.get(&storage, 1, &key(1)).unwrap();
        storage.remove(1).unwrap();
        assert_eq!(cache.get(&storage, 1, &key(1)).unwrap(), Some(Some(key(1))));
        cache.retain(|table| table == 2);
        assert_eq!(cache.bytes, read(&cache));
        assert!(cache.get(&storage, 1, &key(1)).unwrap_err().is_missing());
        assert!(cache.order.iter().all(|(table, _)| *table == 2));
    }
}
