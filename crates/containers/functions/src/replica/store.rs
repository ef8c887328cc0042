//! Keys with their values and versions, and the updates that the tail has not acknowledged.

use crate::keys::Keys;

use super::message::{HEADER, Message};

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    version: u64,
    len: u16,
}

/// A bounded map from keys to values of up to some bytes.
#[derive(Debug)]
pub(super) struct Store {
    keys: Keys,
    entries: Box<[Entry]>,
    values: Box<[u8]>,
    value_bytes: usize,
    free: Vec<u32>,
}

impl Store {
    pub(super) fn new(limit: usize, value_bytes: usize, secret: u64) -> Store {
        Store {
            keys: Keys::new(limit, secret),
            entries: vec![Entry::default(); limit].into(),
            values: vec![0; limit * value_bytes].into(),
            value_bytes,
            free: (0..limit as u32).rev().collect(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(super) fn limit(&self) -> usize {
        self.entries.len()
    }

    /// Whether a key could be written.
    pub(super) fn has_room(&self, key: u64) -> bool {
        !self.free.is_empty() || self.keys.get(key).is_some()
    }

    /// The version and the value of a key.
    pub(super) fn get(&self, key: u64) -> Option<(u64, &[u8])> {
        let at = self.keys.get(key)? as usize;
        let entry = self.entries.get(at)?;
        let begin = at * self.value_bytes;
        Some((
            entry.version,
            self.values.get(begin..begin + usize::from(entry.len))?,
        ))
    }

    /// Writes a value of at most `value_bytes` bytes. False, and no change, if there is no room.
    pub(super) fn set(&mut self, key: u64, version: u64, value: &[u8]) -> bool {
        let at = match self.keys.get(key) {
            Some(at) => at,
            None => {
                let Some(at) = self.free.pop() else { return false };
                let _ = self.keys.insert(key, at);
                at
            }
        };
        let begin = at as usize * self.value_bytes;
        if let Some(room) = self.values.get_mut(begin..begin + value.len()) {
            room.copy_from_slice(value);
        }
        self.entries[at as usize] = Entry {
            version,
            len: value.len() as u16,
        };
        true
    }

    /// Whether there was such a key.
    pub(super) fn remove(&mut self, key: u64) -> bool {
        let Some(at) = self.keys.get(key) else {
            return false;
        };
        self.keys.remove(key);
        self.free.push(at);
        true
    }
}

/// Updates by their version, each in the place that this has in a ring.
#[derive(Debug)]
pub(super) struct Pending {
    records: Box<[u8]>,
    record_bytes: usize,
    limit: usize,
}

impl Pending {
    pub(super) fn new(limit: usize, value_bytes: usize) -> Pending {
        let record_bytes = HEADER + value_bytes;
        Pending {
            records: vec![0; limit * record_bytes].into(),
            record_bytes,
            limit,
        }
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    fn place(&self, version: u64) -> std::ops::Range<usize> {
        let begin = (version % self.limit as u64) as usize * self.record_bytes;
        begin..begin + self.record_bytes
    }

    pub(super) fn put(&mut self, message: &Message, value: &[u8]) {
        let place = self.place(message.version);
        if let Some(record) = self.records.get_mut(place) {
            record[..HEADER].copy_from_slice(&message.bytes());
            if let Some(room) = record.get_mut(HEADER..HEADER + value.len()) {
                room.copy_from_slice(value);
            }
        }
    }

    /// The bytes of an update that is pending.
    pub(super) fn get(&self, version: u64) -> Option<(Message, &[u8])> {
        let record = self.records.get(self.place(version))?;
        let (message, value) = Message::read(record)?;
        let bytes = record.get(..HEADER + usize::from(message.len).min(value.len()))?;
        Some((message, bytes))
    }
}
