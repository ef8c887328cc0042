//! A sorted table of entries, as bytes.
//!
//! | part | bytes |
//! | --- | --- |
//! | blocks | [`Entry`]s in the order of their keys, about 4 KiB; then the CRC-32 of the block (4) |
//! | index | for each block: where it begins (8), its bytes (4), its first key (1 and bytes); then the CRC-32 of the index (4) |
//! | end | where the index begins (8), its bytes (4), the CRC-32 of these 12 bytes (4), "inco tab" |

use crate::codec::{Reader, Write as _};
use crate::storage::{Storage, StorageError};
use crate::store::entry::Entry;

/// Bytes of entries in a block, at least: what one read of a key costs.
const BLOCK_BYTES: usize = 4 << 10;
const END_BYTES: usize = 24;
const MARK: &[u8; 8] = b"inco tab";

/// The bytes of a table with these entries, sorted by key; each key once.
pub(crate) fn encode(entries: &[Entry<'_>]) -> Vec<u8> {
    let (mut bytes, mut index) = (Vec::new(), Vec::new());
    let mut rest = entries;
    while let Some(first) = rest.first() {
        let begin = bytes.len();
        let mut block = Vec::new();
        while let Some((entry, others)) = rest.split_first().filter(|_| block.len() < BLOCK_BYTES) {
            entry.write(&mut block);
            rest = others;
        }
        index
            .put_u64(begin as u64)
            .put_u32(block.len() as u32)
            .put_short(first.key);
        put_checked(&mut bytes, &block);
    }
    let mut end = Vec::new();
    end.put_u64(bytes.len() as u64).put_u32(index.len() as u32);
    put_checked(&mut bytes, &index);
    put_checked(&mut bytes, &end);
    bytes.extend(MARK);
    bytes
}

fn put_checked(bytes: &mut Vec<u8>, part: &[u8]) {
    bytes.extend(part);
    bytes.put_u32(crc32fast::hash(part));
}

/// A part without its checksum, if that is right.
fn checked(bytes: &[u8]) -> Option<&[u8]> {
    let (part, checksum) = bytes.split_last_chunk::<4>()?;
    (crc32fast::hash(part) == u32::from_le_bytes(*checksum)).then_some(part)
}

/// The index of a table: for each block where it begins, its bytes, its first key.
pub(crate) fn index(storage: &dyn Storage, table: u64) -> Result<Vec<(u64, u32, Vec<u8>)>, StorageError> {
    let damaged = || StorageError::Damaged(table);
    let at = storage
        .bytes(table)?
        .checked_sub(END_BYTES as u64)
        .ok_or_else(damaged)?;
    let end = storage.read(table, at, END_BYTES)?;
    let (end, mark) = end.split_last_chunk::<8>().ok_or_else(damaged)?;
    let mut end = Reader(checked(end).filter(|_| mark == MARK).ok_or_else(damaged)?);
    let (begin, bytes) = end.u64().zip(end.u32()).ok_or_else(damaged)?;
    // The index ends where the end begins.
    if begin.checked_add(u64::from(bytes) + 4) != Some(at) {
        return Err(damaged());
    }
    let index = storage.read(table, begin, bytes as usize + 4)?;
    let mut reader = Reader(checked(&index).ok_or_else(damaged)?);
    let mut blocks = Vec::new();
    while !reader.0.is_empty() {
        let row = reader.u64().zip(reader.u32()).zip(reader.short());
        let ((begin, bytes), first) = row.ok_or_else(damaged)?;
        blocks.push((begin, bytes, first.to_vec()));
    }
    Ok(blocks)
}

/// The entries of a block, whose checksum is right.
pub(crate) fn block(
    storage: &dyn Storage,
    table: u64,
    begin: u64,
    bytes: u32,
) -> Result<Vec<u8>, StorageError> {
    let mut block = storage.read(table, begin, bytes as usize + 4)?;
    if checked(&block).is_none() {
        return Err(StorageError::Damaged(table));
    }
    block.truncate(bytes as usize);
    Ok(block)
}

/// The bytes of entries of a table from some key on that is not behind this one, until they have so many bytes; and whether
/// those are all.
pub(crate) fn after(
    storage: &dyn Storage,
    table: u64,
    key: &[u8],
    bytes: usize,
) -> Result<(Vec<u8>, bool), StorageError> {
    let blocks = index(storage, table)?;
    let first = blocks
        .partition_point(|(_, _, first)| &first[..] <= key)
        .saturating_sub(1);
    let mut entries = Vec::new();
    for (place, (begin, length, _)) in blocks.iter().enumerate().skip(first) {
        // The first block may have nothing behind the key.
        if place > first + 1 && entries.len() >= bytes {
            return Ok((entries, false));
        }
        entries.extend(block(storage, table, *begin, *length)?);
    }
    Ok((entries, true))
}

/// The bytes of all entries of a table.
pub(crate) fn read_all(storage: &dyn Storage, table: u64) -> Result<Vec<u8>, StorageError> {
    let mut entries = Vec::new();
    for (begin, bytes, _) in index(storage, table)? {
        entries.extend(block(storage, table, begin, bytes)?);
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::storage::Folder;
    use crate::store::cache::Cache;

    fn entries(keys: &[Vec<u8>]) -> Vec<Entry<'_>> {
        (1..)
            .zip(keys)
            .map(|(slot, key)| Entry {
                slot,
                key,
                value: (slot % 3 > 0).then_some(&key[..]),
            })
            .collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn a_table_has_what_was_written_and_no_other_bytes(
            keys in prop::collection::btree_set(prop::collection::vec(any::<u8>(), 1..200), 1..120),
            changed in any::<prop::sample::Index>(),
            bit in 0..8_u8,
        ) {
            let folder = tempfile::tempdir().unwrap();
            let mut storage = Folder::open(folder.path()).unwrap();
            let keys: Vec<_> = keys.into_iter().collect();
            let entries = entries(&keys);
            let mut bytes = encode(&entries);
            storage.write(7, &bytes).unwrap();
            let mut cache = Cache::new(1 << 20);
            for entry in &entries {
                let found = cache.get(&storage, 7, entry.key).unwrap();
                prop_assert_eq!(found, Some(entry.value.map(<[u8]>::to_vec)));
            }
            prop_assert_eq!(cache.get(&storage, 7, &[0; 201]).unwrap(), None);
            let all = read_all(&storage, 7).unwrap();
            prop_assert_eq!(Entry::read_all(&all).unwrap(), entries);
            // A changed bit is found by whoever reads all; a cut is, too.
            let at = changed.index(bytes.len());
            bytes[at] ^= 1 << bit;
            storage.write(7, &bytes).unwrap();
            prop_assert!(read_all(&storage, 7).is_err());
            bytes.truncate(at);
            storage.write(7, &bytes).unwrap();
            prop_assert!(read_all(&storage, 7).is_err());
            storage.remove(7).unwrap();
            prop_assert!(read_all(&storage, 7).unwrap_err().is_missing());
        }
    }
}
