//! What clients of the replicated key-value store ask: keys of 16 bytes, drawn by their ranks.

use std::collections::{BTreeMap, HashMap};

use actor_applications::store::{Answer, Operation, Request, VALUE_BYTES};
use actor_histories::linearizability::{self, Action, is_linearizable};
use anyhow::{Context as _, Result, bail};
use model::Random;

use crate::clients::{Heard, Workload};
use crate::drawn;
use crate::zipf::Zipf;

/// What the clients ask for.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Keys.
    pub keys: u64,
    /// The share of requests that read.
    pub reads: f64,
    /// So many of the most frequent keys are written once before anything else.
    pub written: u64,
    /// Bytes of a value, 8 to 1,024.
    pub value_bytes: usize,
    /// Whether all is recorded, to be checked.
    pub records: bool,
}

/// What is done next, and with which key.
#[derive(Debug)]
pub(crate) struct Draws {
    settings: Settings,
    zipf: Zipf,
    /// The first half of all keys: of this run alone, so that nothing has a value before it.
    run: u64,
    /// Keys that are still written once before any are drawn: the most frequent ones.
    unwritten: u64,
    values: u64,
}

/// A request.
pub(crate) struct Drawn {
    /// The key's rank.
    pub(crate) key: u64,
    /// The key.
    pub(crate) name: Vec<u8>,
    /// What is written, if something is: its number, and the value that begins with it.
    pub(crate) value: Option<(u64, Vec<u8>)>,
}

impl Draws {
    pub(crate) fn new(settings: Settings) -> Result<Draws> {
        if !(8..=VALUE_BYTES).contains(&settings.value_bytes) {
            bail!("a value has 8 to {VALUE_BYTES} bytes");
        }
        Ok(Draws {
            settings,
            zipf: Zipf::new(settings.keys),
            run: drawn()? & 0xffff_ffff,
            unwritten: settings.written.min(settings.keys),
            values: 0,
        })
    }

    pub(crate) fn set_reads(&mut self, reads: f64) {
        self.settings.reads = reads;
    }

    pub(crate) fn next(&mut self, random: &mut Random) -> Drawn {
        let is_first = self.unwritten > 0;
        let key = if is_first {
            self.unwritten -= 1;
            self.unwritten
        } else {
            self.zipf.draw(random)
        };
        let reads = !is_first && random.happens(self.settings.reads);
        let value = (!reads).then(|| {
            self.values += 1;
            let mut value = self.values.to_le_bytes().to_vec();
            value.resize(self.settings.value_bytes, b'.');
            (self.values, value)
        });
        let name = format!("{:08x}{key:08}", self.run).into_bytes();
        Drawn { key, name, value }
    }
}

/// The workload.
#[derive(Debug)]
pub struct Store {
    draws: Draws,
    /// Whether all is recorded.
    records: bool,
    /// The key and what is done, by client.
    under_way: HashMap<usize, (u64, Option<u64>)>,
    history: BTreeMap<u64, Vec<linearizability::Operation>>,
}

impl Store {
    /// Requests for keys that no other run has.
    ///
    /// # Errors
    /// The kernel has no random numbers; a value has another length.
    pub fn new(settings: Settings) -> Result<Store> {
        Ok(Store {
            draws: Draws::new(settings)?,
            records: settings.records,
            under_way: HashMap::new(),
            history: BTreeMap::new(),
        })
    }

    /// The share of requests that read from now on.
    pub fn set_reads(&mut self, reads: f64) {
        self.draws.set_reads(reads);
    }

    /// Whether the history of each key is that of a register; how many operations it has. A write that has no answer may
    /// have taken effect at any time, or not at all.
    ///
    /// # Errors
    /// It is not.
    pub fn check(&self) -> Result<usize> {
        if let Some(key) = self.wrong_keys().first() {
            let operations = self.history[key].len();
            bail!("the history of key {key} is not linearizable: {operations} operations");
        }
        Ok(self.history.values().map(Vec::len).sum())
    }

    /// The keys, by their ranks, whose histories are not.
    pub fn wrong_keys(&self) -> Vec<u64> {
        let is_wrong = |key: &u64, history: &[linearizability::Operation]| {
            let mut history = history.to_vec();
            for (of, written) in self.under_way.values() {
                if let (true, Some(value)) = (of == key, written) {
                    history.push(linearizability::Operation {
                        call: 0,
                        end: None,
                        action: Action::Write(Some(*value)),
                    });
                }
            }
            !is_linearizable(&history)
        };
        let wrong = self.history.iter().filter(|(key, of)| is_wrong(key, of));
        wrong.map(|(key, _)| *key).collect()
    }
}

impl Workload for Store {
    fn request(&mut self, place: usize, number: u64, id: u64, random: &mut Random) -> Result<Vec<u8>> {
        let drawn = self.draws.next(random);
        let (operation, written) = match drawn.value {
            Some((number, value)) => (Operation::Put(value), Some(number)),
            None => (Operation::Get, None),
        };
        self.under_way.insert(place, (drawn.key, written));
        let request = Request {
            client: number,
            id,
            key: drawn.name,
            operation,
        };
        request.encode().context("a request is too long")
    }

    fn hear(&self, _asked: u64, body: &[u8]) -> Option<(u64, Heard)> {
        let (id, answer) = Answer::decode(body)?;
        let heard = match answer {
            Answer::Written | Answer::Found(_) | Answer::NotFound => Heard::Ended,
            Answer::NotLeader(leader) => Heard::Elsewhere(leader.map(usize::from)),
            Answer::Busy => Heard::Later,
            Answer::Refused => Heard::Refused,
        };
        Some((id, heard))
    }

    fn ended(&mut self, place: usize, begin: u64, end: u64, body: &[u8]) -> Result<()> {
        let (key, written) = self.under_way.remove(&place).context("nothing was asked")?;
        let action = match (Answer::decode(body), written) {
            (Some((_, Answer::Written)), Some(value)) => Action::Write(Some(value)),
            (Some((_, Answer::NotFound)), None) => Action::Read(None),
            (Some((_, Answer::Found(value))), None) => {
                let number = value.first_chunk().context("a value of another form")?;
                Action::Read(Some(u64::from_le_bytes(*number)))
            }
            _ => bail!("a read was answered as a write, or a write as a read"),
        };
        if self.records {
            let end = Some(end);
            let operation = linearizability::Operation {
                call: begin,
                end,
                action,
            };
            self.history.entry(key).or_default().push(operation);
        }
        Ok(())
    }
}
