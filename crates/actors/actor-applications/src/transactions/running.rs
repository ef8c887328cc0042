//! A transaction under way, as an object of the coordinator.
//!
//! | bytes | what |
//! | --- | --- |
//! | 8, 8 | number, address outside where it came from |
//! | 1 | phase: 0 lock, 1 validate, 2 commit, 3 abort |
//! | 4 | a bit for each participant whose answer is missing |
//! | 2 and bytes | the request |
//! | for each read | version (8), value (2 and bytes); version 0 before it was read |
//! | for each write | the version that the key had (8) |

use crate::codec::{Reader, Write as _};
use crate::transactions::message::Order;
use crate::transactions::{Read, Transaction, participant_of};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Lock,
    Validate,
    Commit,
    Abort,
}

const PHASES: [Phase; 4] = [Phase::Lock, Phase::Validate, Phase::Commit, Phase::Abort];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Running {
    pub(crate) number: u64,
    pub(crate) from: u64,
    pub(crate) phase: Phase,
    pub(crate) missing: u32,
    pub(crate) request: Transaction,
    pub(crate) reads: Vec<Read>,
    /// Of each write, the version before it.
    pub(crate) versions: Vec<u64>,
}

impl Running {
    pub(crate) fn new(number: u64, from: u64, request: Transaction, participants: usize) -> Running {
        let mut running = Running {
            number,
            from,
            phase: Phase::Lock,
            missing: 0,
            reads: vec![Read::default(); request.reads.len()],
            versions: vec![0; request.writes.len()],
            request,
        };
        running.enter(Phase::Lock, participants);
        running
    }

    /// Begins a phase: answers of all participants that take part in it are missing.
    pub(crate) fn enter(&mut self, phase: Phase, participants: usize) {
        self.phase = phase;
        let bit = |key: &Vec<u8>| 1 << participant_of(key, participants);
        let reads = self.request.reads.iter().map(bit);
        let writes = self.request.writes.iter().map(|(key, _)| bit(key));
        self.missing = match phase {
            Phase::Validate => reads.fold(0, |bits: u32, bit: u32| bits | bit),
            _ => reads.chain(writes).fold(0, |bits, bit| bits | bit),
        };
    }

    /// What this phase wants of a participant.
    pub(crate) fn order(&self, participant: usize, participants: usize) -> Order<'_> {
        let is_its = |key: &[u8]| participant_of(key, participants) == participant;
        let reads = std::iter::zip(&self.request.reads, &self.reads).filter(|(key, _)| is_its(key));
        let writes = std::iter::zip(&self.request.writes, &self.versions).filter(|((key, _), _)| is_its(key));
        let written = writes.clone().map(|((key, _), _)| &key[..]).collect();
        match self.phase {
            Phase::Lock => Order::Lock {
                reads: reads.map(|(key, _)| &key[..]).collect(),
                writes: written,
            },
            Phase::Validate => Order::Validate {
                reads: reads.map(|(key, read)| (&key[..], read.version)).collect(),
            },
            Phase::Commit => Order::Commit {
                writes: writes
                    .map(|((key, value), version)| (&key[..], version + 1, &value[..]))
                    .collect(),
            },
            Phase::Abort => Order::Abort { writes: written },
        }
    }

    /// Takes what a participant has read and locked; nothing if it is not as much as was wanted.
    pub(crate) fn take_locked(
        &mut self,
        participant: usize,
        participants: usize,
        reads: Vec<Read>,
        versions: Vec<u64>,
    ) -> Option<()> {
        let is_its = |key: &Vec<u8>| participant_of(key, participants) == participant;
        let own_reads = std::iter::zip(&self.request.reads, &mut self.reads).filter(|(key, _)| is_its(key));
        let own_reads: Vec<_> = own_reads.map(|(_, read)| read).collect();
        let own_writes =
            std::iter::zip(&self.request.writes, &mut self.versions).filter(|((key, _), _)| is_its(key));
        let own_writes: Vec<_> = own_writes.map(|(_, version)| version).collect();
        if own_reads.len() != reads.len() || own_writes.len() != versions.len() {
            return None;
        }
        own_reads
            .into_iter()
            .zip(reads)
            .for_each(|(own, read)| *own = read);
        own_writes
            .into_iter()
            .zip(versions)
            .for_each(|(own, version)| *own = version);
        Some(())
    }

    /// The bytes of the object; [`None`] for a request beyond the limits, which none is that was taken.
    pub(crate) fn encode(&self) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        let phase = PHASES.iter().position(|phase| *phase == self.phase)?;
        bytes
            .put_u64(self.number)
            .put_u64(self.from)
            .put_u8(phase as u8)
            .put_u32(self.missing);
        bytes.put_long(&self.request.encode()?);
        for read in &self.reads {
            bytes.put_u64(read.version).put_long(&read.value);
        }
        for version in &self.versions {
            bytes.put_u64(*version);
        }
        Some(bytes)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Running> {
        let mut reader = Reader(bytes);
        let (number, from, phase) = (reader.u64()?, reader.u64()?, reader.u8()?);
        let missing = reader.u32()?;
        let request = Transaction::decode(reader.long()?)?;
        let mut reads = Vec::new();
        for _ in &request.reads {
            let (version, value) = (reader.u64()?, reader.long()?.to_vec());
            reads.push(Read { version, value });
        }
        let versions = request
            .writes
            .iter()
            .map(|_| reader.u64())
            .collect::<Option<_>>()?;
        let phase = *PHASES.get(usize::from(phase))?;
        reader.end(Running {
            number,
            from,
            phase,
            missing,
            request,
            reads,
            versions,
        })
    }
}
