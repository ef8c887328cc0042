//! Keys with values, versions and locks, in objects: extendible hashing (Fagin and others, "Extendible hashing — a fast
//! access method for dynamic files", 1979).
//!
//! The directory is one object: the ids of buckets (8 each), indexed by the last bits of a key's hash. A bucket is one
//! object: how many of these bits its keys share (1), then rows. A bucket with too many rows is divided by one more bit;
//! the directory doubles when no entry is left for that.
//!
//! A row is key (1 and bytes), version (8), the transaction that has it locked (8; 0: none), value (2 and bytes).

use actor_objects::{ObjectId, Objects};
use zerocopy::byteorder::little_endian::U64;

use crate::codec::{Reader, Write as _};
use crate::state::{self, Failure};

/// Rows of a bucket, at most, as long as it can be divided.
const BUCKET_ROWS: usize = 8;
/// Bits of the directory, at most.
const BITS_LIMIT: u8 = 16;

/// What the table has of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) key: Vec<u8>,
    pub(crate) version: u64,
    pub(crate) locked_by: u64,
    pub(crate) value: Vec<u8>,
}

impl Row {
    fn write(&self, into: &mut Vec<u8>) {
        into.put_short(&self.key)
            .put_u64(self.version)
            .put_u64(self.locked_by)
            .put_long(&self.value);
    }

    fn read(reader: &mut Reader<'_>) -> Option<Row> {
        Some(Row {
            key: reader.short()?.to_vec(),
            version: reader.u64()?,
            locked_by: reader.u64()?,
            value: reader.long()?.to_vec(),
        })
    }

    /// Whether the table need not keep it.
    fn is_empty(&self) -> bool {
        self.version == 0 && self.locked_by == 0
    }
}

/// A table: the id of its directory, which changes when it grows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HashTable(pub(crate) ObjectId);

struct Bucket {
    bits: u8,
    rows: Vec<Row>,
}

impl Bucket {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![self.bits];
        for row in &self.rows {
            row.write(&mut bytes);
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Bucket> {
        let mut reader = Reader(bytes);
        let (bits, mut rows) = (reader.u8()?, Vec::new());
        while !reader.0.is_empty() {
            rows.push(Row::read(&mut reader)?);
        }
        Some(Bucket { bits, rows })
    }
}

fn hash(key: &[u8]) -> u32 {
    // Another part of the hash than the one that has chosen the participant.
    crc32fast::hash(key).swap_bytes().wrapping_mul(0x9e37_79b1) >> 4
}

impl HashTable {
    pub(crate) fn create(objects: &mut Objects) -> Result<HashTable, Failure> {
        let bucket = state::allocate(objects, &[0])?;
        Ok(HashTable(state::allocate(
            objects,
            &bucket.to_bits().to_le_bytes(),
        )?))
    }

    /// The bucket of a key: its id, and its place in the directory.
    fn place(self, objects: &Objects, key: &[u8]) -> Result<(ObjectId, usize), Failure> {
        let directory = state::rows::<U64>(objects, self.0)?;
        let place = hash(key) as usize & (directory.len() - 1);
        Ok((ObjectId::from_bits(directory[place].get()), place))
    }

    fn bucket(objects: &Objects, id: ObjectId) -> Result<Bucket, Failure> {
        Bucket::decode(objects.get(id)?).ok_or(Failure::Layout)
    }

    /// What the table has of a key; a row of version 0 if it has nothing.
    pub(crate) fn get(self, objects: &Objects, key: &[u8]) -> Result<Row, Failure> {
        let (id, _) = self.place(objects, key)?;
        let rows = HashTable::bucket(objects, id)?.rows;
        Ok(rows
            .into_iter()
            .find(|row| row.key == key)
            .unwrap_or_else(|| Row {
                key: key.to_vec(),
                ..Row::default()
            }))
    }

    /// Puts a row in place of that of its key.
    pub(crate) fn put(&mut self, objects: &mut Objects, row: Row) -> Result<(), Failure> {
        loop {
            let (id, place) = self.place(objects, &row.key)?;
            let mut bucket = HashTable::bucket(objects, id)?;
            bucket.rows.retain(|of| of.key != row.key);
            if bucket.rows.len() >= BUCKET_ROWS && bucket.bits < BITS_LIMIT && !row.is_empty() {
                self.divide(objects, id, place)?;
                continue;
            }
            if !row.is_empty() {
                bucket.rows.push(row);
            }
            let new = state::allocate(objects, &bucket.encode())?;
            self.point(objects, place, bucket.bits, new)?;
            return Ok(objects.free(id)?);
        }
    }

    /// Has all entries of the directory that share so many bits with a place point to a bucket.
    fn point(self, objects: &mut Objects, place: usize, bits: u8, to: ObjectId) -> Result<(), Failure> {
        let directory = state::rows_mut::<U64>(objects, self.0)?;
        let step = 1 << bits;
        let entries = directory.iter_mut().skip(place & (step - 1)).step_by(step);
        entries.for_each(|entry| entry.set(to.to_bits()));
        Ok(())
    }

    /// Divides a bucket by the next bit of the hash.
    fn divide(&mut self, objects: &mut Objects, id: ObjectId, place: usize) -> Result<(), Failure> {
        let bucket = HashTable::bucket(objects, id)?;
        let bits = bucket.bits + 1;
        let bytes = objects.bytes_of(self.0)?;
        if bytes < 8 << bits {
            let doubled = objects.allocate(bytes * 2)?;
            objects.copy(self.0, 0..bytes, doubled, 0)?;
            objects.copy(self.0, 0..bytes, doubled, bytes)?;
            objects.free(self.0)?;
            self.0 = doubled;
        }
        let (ones, zeros): (Vec<_>, Vec<_>) = bucket
            .rows
            .into_iter()
            .partition(|row| hash(&row.key) >> bucket.bits & 1 == 1);
        let shared = place & ((1 << bucket.bits) - 1);
        for (rows, place) in [(zeros, shared), (ones, shared | 1 << bucket.bits)] {
            let new = state::allocate(objects, &Bucket { bits, rows }.encode())?;
            self.point(objects, place, bits, new)?;
        }
        Ok(objects.free(id)?)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use actor_objects::Limits;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn it_holds_what_a_map_holds(puts in prop::collection::vec((0..400_u16, 0..3_u64, 0..40_usize), 0..600)) {
            let limits = Limits { bytes: 1 << 20, objects: 4_000 };
            let (_file, mut objects) = Objects::create(limits).unwrap();
            let mut table = HashTable::create(&mut objects).unwrap();
            let mut map = BTreeMap::new();
            for (key, version, length) in puts {
                let row = Row {
                    key: key.to_le_bytes().to_vec(),
                    version,
                    locked_by: 0,
                    value: vec![key as u8; length],
                };
                table.put(&mut objects, row.clone()).unwrap();
                map.insert(key, row);
            }
            for key in 0..400_u16 {
                let row = table.get(&objects, &key.to_le_bytes()).unwrap();
                match map.get(&key).filter(|row| !row.is_empty()) {
                    Some(expected) => prop_assert_eq!(&row, expected),
                    None => prop_assert!(row.is_empty()),
                }
            }
        }
    }
}
