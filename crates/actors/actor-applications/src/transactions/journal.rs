//! The log of the coordinator: its records, and the actor that keeps full segments on disk.
//!
//! A record is the number of the transaction (8), how many keys it has written (1), and for each the key (1 and bytes),
//! its new version (8) and its value (2 and bytes). A segment on disk is records, then their CRC-32 (4).

use actor_objects::Objects;
use actor_runtime::{Actor, Address, Context, Message, Progress};

use crate::codec::{Reader, Write as _};
use crate::state::Failure;
use crate::storage::{Storage, StorageError};
use crate::transactions::coordinator;
use crate::transactions::running::Running;
use crate::transactions::{CHECKPOINT, CHECKPOINTED};

/// A record: a transaction that took effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Its number: later ones are greater, but may have been committed earlier.
    pub transaction: u64,
    /// Keys with new versions and values.
    pub writes: Vec<(Vec<u8>, u64, Vec<u8>)>,
}

/// The record of a transaction that has been validated.
pub(crate) fn record(running: &Running) -> Vec<u8> {
    let mut record = Vec::new();
    record
        .put_u64(running.number)
        .put_u8(running.versions.len() as u8);
    for ((key, value), version) in std::iter::zip(&running.request.writes, &running.versions) {
        record.put_short(key).put_u64(version + 1).put_long(value);
    }
    record
}

fn read_records(bytes: &[u8]) -> Option<Vec<Committed>> {
    let (mut reader, mut records) = (Reader(bytes), Vec::new());
    while !reader.0.is_empty() {
        let (transaction, count) = (reader.u64()?, reader.u8()?);
        let mut writes = Vec::new();
        for _ in 0..count {
            let (key, version, value) = (reader.short()?, reader.u64()?, reader.long()?);
            writes.push((key.to_vec(), version, value.to_vec()));
        }
        records.push(Committed { transaction, writes });
    }
    Some(records)
}

/// The records of a segment on disk; segments are numbered from 1. Of a key the record with the highest version counts.
///
/// # Errors
/// There is no such segment, or it is damaged.
pub fn read_segment(storage: &dyn Storage, segment: u64) -> Result<Vec<Committed>, StorageError> {
    let bytes = storage.read(segment, 0, storage.bytes(segment)? as usize)?;
    let records = bytes.split_last_chunk::<4>().and_then(|(records, checksum)| {
        let is_right = crc32fast::hash(records) == u32::from_le_bytes(*checksum);
        read_records(records).filter(|_| is_right)
    });
    records.ok_or(StorageError::Damaged(segment))
}

/// The records that a coordinator's objects have and that may not be on disk; [`None`] if these are not the objects of a
/// coordinator.
pub fn read_log(objects: &Objects) -> Option<Vec<Committed>> {
    let bytes: Result<Vec<u8>, Failure> = coordinator::log_bytes(objects);
    bytes.ok().and_then(|bytes| read_records(&bytes))
}

/// The actor that writes segments. It has no state.
pub struct Journal {
    storage: Box<dyn Storage>,
    coordinator: Address,
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journal").finish_non_exhaustive()
    }
}

impl Journal {
    /// The journal of a coordinator.
    pub fn new(storage: Box<dyn Storage>, coordinator: Address) -> Journal {
        Journal { storage, coordinator }
    }
}

impl Actor for Journal {
    fn exec(&mut self, message: &mut Message, context: &mut Context<'_>) -> Progress {
        let segment = Reader(&message.body).u64();
        let is_order = message.kind == CHECKPOINT && message.from == self.coordinator;
        let Some(segment) = segment.filter(|_| is_order) else {
            return Progress::Done;
        };
        let mut bytes = message.body.split_off(8);
        let checksum = crc32fast::hash(&bytes);
        bytes.put_u32(checksum);
        match self.storage.write(segment, &bytes) {
            Ok(()) => context.send(self.coordinator, CHECKPOINTED, segment.to_le_bytes().to_vec()),
            Err(error) => context.fail(error.to_string()),
        }
        Progress::Done
    }
}
