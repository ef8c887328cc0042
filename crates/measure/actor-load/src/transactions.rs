//! What clients of transactions ask: each reads two keys and writes one of them, as in iPipe's evaluation.

use std::collections::{BTreeMap, HashMap, HashSet};

use actor_applications::transactions::{Outcome, Transaction, VALUE_BYTES};
use actor_histories::serialisability;
use anyhow::{Context as _, Result, bail};
use model::Random;

use crate::clients::{Heard, Workload};
use crate::drawn;
use crate::zipf::Zipf;

/// What the clients ask for.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Keys; at least 2.
    pub keys: u64,
    /// Bytes of a value, 8 to 512.
    pub value_bytes: usize,
    /// Whether all is recorded, to be checked.
    pub records: bool,
}

/// The keys of a transaction under way, of which the first is written, and its new value.
#[derive(Clone, Copy, Debug)]
struct UnderWay {
    keys: [u64; 2],
    value: u64,
}

/// The workload.
#[derive(Debug)]
pub struct Transactions {
    settings: Settings,
    zipf: Zipf,
    run: u64,
    values: u64,
    under_way: HashMap<usize, UnderWay>,
    history: Vec<serialisability::Transaction>,
    committed: u64,
    aborted: u64,
}

impl Transactions {
    /// Transactions over keys that no other run has.
    ///
    /// # Errors
    /// The kernel has no random numbers; there is one key only, or a value has another length.
    pub fn new(settings: Settings) -> Result<Transactions> {
        if !(8..=VALUE_BYTES).contains(&settings.value_bytes) || settings.keys < 2 {
            bail!("a value has 8 to {VALUE_BYTES} bytes, and there are at least 2 keys");
        }
        Ok(Transactions {
            settings,
            zipf: Zipf::new(settings.keys),
            run: drawn()? & 0xffff_ffff,
            values: 0,
            under_way: HashMap::new(),
            history: Vec::new(),
            committed: 0,
            aborted: 0,
        })
    }

    /// Transactions that took effect.
    pub fn committed(&self) -> u64 {
        self.committed
    }

    /// Transactions that changed nothing, because of another one.
    pub fn aborted(&self) -> u64 {
        self.aborted
    }

    /// Whether what was committed is serialisable in an order that real time permits; how many transactions. Where one has
    /// no answer, nobody knows what it read: those that read what it wrote, or what such a one wrote, are left out.
    ///
    /// # Errors
    /// It is not.
    pub fn check(&self) -> Result<usize> {
        let mut unknown: HashSet<u64> = self.under_way.values().map(|of| of.value).collect();
        let mut history = self.history.clone();
        loop {
            let before = unknown.len();
            history.retain(|of| {
                let is_known = of.reads.values().all(|value| !unknown.contains(value));
                if !is_known {
                    unknown.extend(of.writes.values());
                }
                is_known
            });
            if unknown.len() == before {
                break;
            }
        }
        serialisability::check(&history).context("the transactions are not serialisable")?;
        Ok(history.len())
    }
}

impl Workload for Transactions {
    fn request(&mut self, place: usize, number: u64, id: u64, random: &mut Random) -> Result<Vec<u8>> {
        let first = self.zipf.draw(random);
        let mut second = self.zipf.draw(random);
        if second == first {
            second = (first + 1) % self.settings.keys;
        }
        self.values += 1;
        let of = UnderWay {
            keys: [first, second],
            value: self.values,
        };
        self.under_way.insert(place, of);
        let name = |key: u64| format!("{:08x}{key:08}", self.run).into_bytes();
        let mut value = of.value.to_le_bytes().to_vec();
        value.resize(self.settings.value_bytes, b'.');
        let transaction = Transaction {
            client: number,
            id,
            reads: of.keys.map(name).to_vec(),
            writes: vec![(name(first), value)],
        };
        transaction.encode().context("a transaction is too long")
    }

    fn hear(&self, _asked: u64, body: &[u8]) -> Option<(u64, Heard)> {
        let (id, outcome) = Outcome::decode(body)?;
        let heard = match outcome {
            Outcome::Committed(_) | Outcome::Aborted => Heard::Ended,
            Outcome::Busy => Heard::Later,
            Outcome::Refused => Heard::Refused,
        };
        Some((id, heard))
    }

    fn ended(&mut self, place: usize, begin: u64, end: u64, body: &[u8]) -> Result<()> {
        let of = self.under_way.remove(&place).context("nothing was asked")?;
        let Some((_, Outcome::Committed(reads))) = Outcome::decode(body) else {
            self.aborted += 1;
            return Ok(());
        };
        self.committed += 1;
        if !self.settings.records {
            return Ok(());
        }
        if reads.len() != of.keys.len() {
            bail!("two keys were read, and {} values came", reads.len());
        }
        let value = |value: &[u8]| value.first_chunk().map_or(0, |value| u64::from_le_bytes(*value));
        let read = std::iter::zip(of.keys, &reads).map(|(key, read)| (key, value(&read.value)));
        self.history.push(serialisability::Transaction {
            begin,
            end,
            reads: read.collect(),
            writes: BTreeMap::from([(of.keys[0], of.value)]),
        });
        Ok(())
    }
}
