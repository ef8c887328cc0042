//! An entry of memtable and tables: what a key had at a slot of the log.
//!
//! | bytes | what |
//! | --- | --- |
//! | 8 | slot of the command that wrote it |
//! | 1 | 0: a value; 1: the key was deleted |
//! | 1 and bytes | the key |
//! | 2 and bytes | the value; empty if the key was deleted |

use crate::codec::{Reader, Write as _};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    pub(crate) slot: u64,
    pub(crate) key: &'a [u8],
    /// [`None`]: the key was deleted.
    pub(crate) value: Option<&'a [u8]>,
}

impl<'a> Entry<'a> {
    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        12 + self.key.len() + self.value.map_or(0, <[u8]>::len)
    }

    pub(crate) fn write(&self, into: &mut Vec<u8>) {
        into.put_u64(self.slot).put_u8(u8::from(self.value.is_none()));
        into.put_short(self.key).put_long(self.value.unwrap_or_default());
    }

    pub(crate) fn read(reader: &mut Reader<'a>) -> Option<Entry<'a>> {
        let (slot, is_deleted) = (reader.u64()?, reader.u8()?);
        let (key, value) = (reader.short()?, reader.long()?);
        (is_deleted <= 1).then_some(Entry {
            slot,
            key,
            value: (is_deleted == 0).then_some(value),
        })
    }

    /// All entries, one behind the other; [`None`] if the bytes are no entries.
    pub(crate) fn read_all(bytes: &'a [u8]) -> Option<Vec<Entry<'a>>> {
        let mut reader = Reader(bytes);
        let mut entries = Vec::new();
        while !reader.0.is_empty() {
            entries.push(Entry::read(&mut reader)?);
        }
        Some(entries)
    }
}
