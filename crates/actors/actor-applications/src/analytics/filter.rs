//! Drops tuples without any of its patterns, and chooses a counter for the others.

use actor_runtime::{Actor, Address, Context, Message, Progress};
use aho_corasick::{AhoCorasick, BuildError};

use crate::analytics::numbered::Head;
use crate::analytics::{KEY_BYTES, KEYS, NUMBERED, NUMBERED_KEYS, TUPLES};
use crate::codec::{Reader, Write as _};

/// Which worker is next for a key.
#[derive(Clone, Debug)]
pub struct Topology(Vec<Address>);

impl Topology {
    /// These workers, in an order that all filters share; [`None`] without one.
    pub fn new(workers: Vec<Address>) -> Option<Topology> {
        (!workers.is_empty()).then_some(Topology(workers))
    }

    /// The index of the worker that counts a key: its CRC-32 modulo their number.
    pub fn worker_of(&self, key: &[u8]) -> usize {
        crc32fast::hash(key) as usize % self.0.len()
    }
}

/// A tuple of a source.
#[derive(Clone, Copy, Debug)]
pub struct Tuple<'a> {
    /// When it happened.
    pub time: u64,
    /// What is counted.
    pub key: &'a [u8],
    /// Where patterns are looked for; at most 65,535 bytes.
    pub text: &'a [u8],
}

impl<'a> Tuple<'a> {
    fn read(reader: &mut Reader<'a>) -> Option<Tuple<'a>> {
        Some(Tuple {
            time: reader.u64()?,
            key: reader.short()?,
            text: reader.long()?,
        })
    }
}

/// The body of a message with tuples of a source, which sends no tuple before `watermark` after it. Keys of more than 255
/// bytes are left out.
pub fn encode_tuples(source: u16, watermark: u64, tuples: &[Tuple<'_>]) -> Vec<u8> {
    let mut body = Vec::new();
    body.put_u16(source).put_u64(watermark);
    for tuple in tuples {
        if let (Ok(_), Ok(_)) = (u8::try_from(tuple.key.len()), u16::try_from(tuple.text.len())) {
            body.put_u64(tuple.time).put_short(tuple.key).put_long(tuple.text);
        }
    }
    body
}

/// The same with a number: the first message of a source's session has 1, and each later one the next. A later session
/// has a greater number, which is at least 1.
pub fn encode_numbered(
    (session, sequence): (u64, u64),
    source: u16,
    watermark: u64,
    tuples: &[Tuple<'_>],
) -> Vec<u8> {
    let mut body = Vec::new();
    body.put_u64(session).put_u64(sequence);
    body.extend(encode_tuples(source, watermark, tuples));
    body
}

/// The first worker. It has no state, so several instances can run at a time
/// ([`Registration::parallel`](actor_runtime::Registration::parallel)) if the order within a source does not matter:
/// a watermark that overtakes its tuples makes them late.
#[derive(Debug)]
pub struct Filter {
    patterns: AhoCorasick,
    counters: Topology,
}

impl Filter {
    /// A filter that lets through what has one of these patterns.
    ///
    /// # Errors
    /// The patterns are too many for the automaton.
    pub fn new<P: AsRef<[u8]>>(
        patterns: impl IntoIterator<Item = P>,
        counters: Topology,
    ) -> Result<Filter, BuildError> {
        Ok(Filter {
            patterns: AhoCorasick::new(patterns)?,
            counters,
        })
    }

    /// The bodies for all counters. Each gets the watermark, also without a key. A tuple that does not have the form of
    /// one ends the message.
    fn divide(&self, body: &[u8]) -> Option<Vec<Vec<u8>>> {
        let mut reader = Reader(body);
        let (source, watermark) = (reader.u16()?, reader.u64()?);
        let mut head = Vec::new();
        head.put_u16(source).put_u64(watermark);
        let mut bodies = vec![head; self.counters.0.len()];
        while let Some(Tuple { time, key, text }) = Tuple::read(&mut reader) {
            if (1..=KEY_BYTES).contains(&key.len()) && self.patterns.is_match(text) {
                bodies[self.counters.worker_of(key)].put_u64(time).put_short(key);
            }
        }
        Some(bodies)
    }
}

impl Actor for Filter {
    fn exec(&mut self, message: &mut Message, context: &mut Context<'_>) -> Progress {
        match (message.kind, message.from) {
            (TUPLES, _) => {
                for (counter, body) in self
                    .counters
                    .0
                    .iter()
                    .zip(self.divide(&message.body).unwrap_or_default())
                {
                    context.send(*counter, KEYS, body);
                }
            }
            (NUMBERED, Address::Outside(source)) => {
                let mut reader = Reader(&message.body);
                let Some((session, sequence)) = reader.u64().zip(reader.u64()) else {
                    return Progress::Done;
                };
                let bodies = self.divide(reader.0).unwrap_or_default();
                for ((counter, to), body) in (0..).zip(&self.counters.0).zip(bodies) {
                    let head = Head {
                        session,
                        sequence,
                        source,
                        counter,
                        counters: self.counters.0.len() as u16,
                    };
                    let mut numbered = Vec::with_capacity(28 + body.len());
                    head.write(&mut numbered);
                    numbered.extend(body);
                    context.send(*to, NUMBERED_KEYS, numbered);
                }
            }
            _ => {}
        }
        Progress::Done
    }
}
