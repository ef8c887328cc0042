//! Writes memtables as tables, and merges tables. It has no state: what it is asked to do twice has the same result.

use std::collections::BTreeMap;

use actor_runtime::{Actor, Address, Context, Message, Progress};

use crate::codec::{Reader, Write as _};
use crate::storage::{Storage, StorageError};
use crate::store::entry::Entry;
use crate::store::tables::flushed_table;
use crate::store::{FLUSH, MERGE, MERGED, WRITTEN, table};

/// The compaction actor of a replica.
pub struct Compaction {
    storage: Box<dyn Storage>,
    memtable: Address,
    tables: Address,
}

impl std::fmt::Debug for Compaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compaction").finish_non_exhaustive()
    }
}

impl Compaction {
    /// Compaction of the tables in `storage`, for the memtable and the actor of tables of the same replica.
    pub fn new(storage: Box<dyn Storage>, memtable: Address, tables: Address) -> Compaction {
        Compaction {
            storage,
            memtable,
            tables,
        }
    }

    /// Writes the entries of a memtable, which are sorted. What it answers; nothing for a message of another form.
    fn flush(&mut self, body: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        let mut reader = Reader(body);
        let Some((sequence, entries)) = reader.u64().zip(Entry::read_all(reader.0)) else {
            return Ok(None);
        };
        let bytes = table::encode(&entries);
        self.storage.write(flushed_table(sequence), &bytes)?;
        Ok(Some(numbers(&[sequence, bytes.len() as u64])))
    }

    /// Merges tables: of each key the entry with the highest slot stays.
    fn merge(&mut self, body: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        let mut reader = Reader(body);
        let Some((output, is_last)) = reader.u64().zip(reader.u8()) else {
            return Ok(None);
        };
        let mut inputs = Vec::new();
        while let Some(input) = reader.u64() {
            match table::read_all(self.storage.as_ref(), input) {
                Ok(entries) => inputs.push((input, entries)),
                // They are merged already, and removed: the message came twice.
                Err(error) if error.is_missing() => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        let mut newest: BTreeMap<&[u8], Entry<'_>> = BTreeMap::new();
        for (input, bytes) in &inputs {
            for entry in Entry::read_all(bytes).ok_or(StorageError::Damaged(*input))? {
                let of = newest.entry(entry.key).or_insert(entry);
                if of.slot < entry.slot {
                    *of = entry;
                }
            }
        }
        // Below the last level there is nothing that a deletion could hide.
        let kept: Vec<_> = newest
            .into_values()
            .filter(|entry| is_last == 0 || entry.value.is_some())
            .collect();
        let bytes = table::encode(&kept);
        self.storage.write(output, &bytes)?;
        Ok(Some(numbers(&[output, bytes.len() as u64])))
    }
}

fn numbers(of: &[u64]) -> Vec<u8> {
    let mut body = Vec::new();
    for number in of {
        body.put_u64(*number);
    }
    body
}

impl Actor for Compaction {
    fn exec(&mut self, message: &mut Message, context: &mut Context<'_>) -> Progress {
        let (kind, done) = match message.kind {
            FLUSH if message.from == self.memtable => (WRITTEN, self.flush(&message.body)),
            MERGE if message.from == self.tables => (MERGED, self.merge(&message.body)),
            _ => return Progress::Done,
        };
        match done {
            Ok(Some(body)) => context.send(self.tables, kind, body),
            Ok(None) => {}
            Err(error) => context.fail(error.to_string()),
        }
        Progress::Done
    }
}
