//! Transactions of clients and their outcomes.

use std::collections::BTreeSet;

use crate::codec::{Reader, Write as _};
use crate::transactions::{KEY_BYTES, KEYS_LIMIT, VALUE_BYTES};

/// A transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// The client: a number that it has drawn at random once.
    pub client: u64,
    /// Greater than that of the client's last one.
    pub id: u64,
    /// The keys that it reads.
    pub reads: Vec<Vec<u8>>,
    /// The keys that it writes, with their new values.
    pub writes: Vec<(Vec<u8>, Vec<u8>)>,
}

/// What a key had.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Read {
    /// How many transactions have written the key; 0: none, and the value is empty.
    pub version: u64,
    /// The value.
    pub value: Vec<u8>,
}

/// What became of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It took effect; what it has read, in the order of its keys.
    Committed(Vec<Read>),
    /// It changed nothing, because of another transaction, or since the log is full.
    Aborted,
    /// As many transactions are under way as may, or as many clients known.
    Busy,
    /// It has another form.
    Refused,
}

impl Transaction {
    /// The body of the message; [`None`] if it is beyond a limit, or has a key twice in a set.
    pub fn encode(&self) -> Option<Vec<u8>> {
        let is_key = |key: &Vec<u8>| (1..=KEY_BYTES).contains(&key.len());
        let read: BTreeSet<_> = self.reads.iter().filter(|key| is_key(key)).collect();
        let written = self
            .writes
            .iter()
            .filter(|(key, value)| is_key(key) && value.len() <= VALUE_BYTES);
        let written: BTreeSet<_> = written.map(|(key, _)| key).collect();
        let is_valid = read.len() == self.reads.len()
            && written.len() == self.writes.len()
            && read.len().max(written.len()) <= KEYS_LIMIT
            && read.len() + written.len() > 0;
        let mut body = Vec::new();
        body.put_u64(self.client)
            .put_u64(self.id)
            .put_u8(self.reads.len() as u8)
            .put_u8(self.writes.len() as u8);
        if is_valid {
            for key in &self.reads {
                body.put_short(key);
            }
            for (key, value) in &self.writes {
                body.put_short(key).put_long(value);
            }
        }
        is_valid.then_some(body)
    }

    /// What a body says; [`None`] for another form.
    pub fn decode(body: &[u8]) -> Option<Transaction> {
        let mut reader = Reader(body);
        let (client, id) = (reader.u64()?, reader.u64()?);
        let (reads, writes) = (reader.u8()?, reader.u8()?);
        let mut transaction = Transaction {
            client,
            id,
            reads: Vec::new(),
            writes: Vec::new(),
        };
        for _ in 0..reads {
            transaction.reads.push(reader.short()?.to_vec());
        }
        for _ in 0..writes {
            let (key, value) = (reader.short()?, reader.long()?);
            transaction.writes.push((key.to_vec(), value.to_vec()));
        }
        let transaction = reader.end(transaction)?;
        transaction.encode().is_some().then_some(transaction)
    }
}

impl Outcome {
    /// The body of the message.
    pub fn encode(&self, id: u64) -> Vec<u8> {
        let mut body = Vec::new();
        body.put_u64(id);
        match self {
            Outcome::Committed(reads) => {
                body.put_u8(0);
                for read in reads {
                    body.put_u64(read.version).put_long(&read.value);
                }
            }
            Outcome::Aborted => {
                body.put_u8(1);
            }
            Outcome::Busy => {
                body.put_u8(2);
            }
            Outcome::Refused => {
                body.put_u8(3);
            }
        }
        body
    }

    /// The id and what became of it; [`None`] for another form.
    pub fn decode(body: &[u8]) -> Option<(u64, Outcome)> {
        let mut reader = Reader(body);
        let (id, status) = (reader.u64()?, reader.u8()?);
        let outcome = match status {
            0 => {
                let mut reads = Vec::new();
                while !reader.0.is_empty() {
                    let (version, value) = (reader.u64()?, reader.long()?.to_vec());
                    reads.push(Read { version, value });
                }
                Outcome::Committed(reads)
            }
            1 => Outcome::Aborted,
            2 => Outcome::Busy,
            3 => Outcome::Refused,
            _ => return None,
        };
        reader.end((id, outcome))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_read_is_what_was_written(
            body in prop::collection::vec(prop_oneof![3 => 0..3_u8, 1 => any::<u8>()], 0..64),
        ) {
            if let Some(transaction) = Transaction::decode(&body) {
                prop_assert_eq!(transaction.encode().unwrap(), &body[..]);
            }
            if let Some((id, outcome)) = Outcome::decode(&body) {
                prop_assert_eq!(outcome.encode(id), body);
            }
        }
    }
}
