//! Messages of a source over a network that loses some: each has a number, and each counter says what it has counted.

use crate::codec::{Reader, Write as _};

/// What a filter puts before the keys of a message with a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) session: u64,
    pub(crate) sequence: u64,
    /// The source's address outside.
    pub(crate) source: u64,
    pub(crate) counter: u16,
    pub(crate) counters: u16,
}

impl Head {
    pub(crate) fn write(&self, into: &mut Vec<u8>) {
        into.put_u64(self.session).put_u64(self.sequence);
        into.put_u64(self.source);
        into.put_u16(self.counter).put_u16(self.counters);
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Option<Head> {
        Some(Head {
            session: reader.u64()?,
            sequence: reader.u64()?,
            source: reader.u64()?,
            counter: reader.u16()?,
            counters: reader.u16()?,
        })
    }
}

/// What a counter says to a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The session of the source.
    pub session: u64,
    /// The number of the source.
    pub source: u16,
    /// The index of the counter.
    pub counter: u16,
    /// How many counters there are. A message is counted when all have said so.
    pub counters: u16,
    /// The last message that it has counted; all before it are.
    pub last: u64,
}

impl Taken {
    /// The body of the message.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        body.put_u64(self.session);
        body.put_u16(self.source).put_u16(self.counter);
        body.put_u16(self.counters).put_u64(self.last);
        body
    }

    /// What a body says; [`None`] for another form.
    pub fn decode(body: &[u8]) -> Option<Taken> {
        let mut reader = Reader(body);
        let session = reader.u64()?;
        let (source, counter) = (reader.u16()?, reader.u16()?);
        let (counters, last) = (reader.u16()?, reader.u64()?);
        let taken = Taken {
            session,
            source,
            counter,
            counters,
            last,
        };
        reader.end(taken)
    }
}
