//! Leads transactions through their phases.

use actor_objects::{ObjectId, Objects};
use actor_runtime::{Actor, Address, Context, Message, Progress};
use zerocopy::byteorder::little_endian::U64;
use zerocopy::{FromBytes, FromZeros as _, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::codec::{Reader, Write as _};
use crate::state::{self, Failure, Outbox};
use crate::transactions::message::{Locked, Reply};
use crate::transactions::running::{Phase, Running};
use crate::transactions::{
    ACTIVE_LIMIT, CHECKPOINT, CHECKPOINTED, KEY_BYTES, KEYS_LIMIT, OUTCOME, Outcome, PARTICIPANTS_LIMIT,
    TICK, TRANSACTION, Transaction, VALUE_BYTES, journal,
};

/// Bytes of a record, at most.
const RECORD_BYTES: usize = 9 + KEYS_LIMIT * (KEY_BYTES + 11 + VALUE_BYTES);
/// Bytes of a transaction under way as an object, at most: its request, what it reads, versions.
const RUNNING_BYTES: usize = 72 + KEYS_LIMIT * (KEY_BYTES + 1 + KEY_BYTES + 3 + 2 * VALUE_BYTES + 18);
/// Bytes of an outcome, at most.
const OUTCOME_BYTES: usize = 9 + KEYS_LIMIT * (10 + VALUE_BYTES);
/// The longest segment: it is one message.
const LOG_BYTES_LIMIT: u32 = 60 << 10;

/// What a coordinator is made with.
#[derive(Clone, Debug)]
pub struct CoordinatorSettings {
    /// The participants; the one of a key is [`participant_of`](crate::transactions::participant_of) of their number.
    pub participants: Vec<Address>,
    /// The journal.
    pub journal: Address,
    /// Clients, at most.
    pub clients: u32,
    /// Bytes of a segment of the log, 8 KiB to 60 KiB. There are two: one that is written, and one on its way to the
    /// journal.
    pub log_bytes: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Root {
    /// The ids of transactions under way, by their number modulo [`ACTIVE_LIMIT`]; 0: none.
    active: U64,
    /// All transactions before this one have ended.
    oldest: U64,
    next: U64,
    clients: U64,
    clients_used: U64,
    /// The segment that is written.
    log: U64,
    log_used: U64,
    /// The segment on its way to the journal; none if `sealed_used` is 0.
    sealed: U64,
    sealed_used: U64,
    /// The number of the segment that was sealed last.
    segment: U64,
    malformed: U64,
    /// Transactions aborted because both segments were full.
    log_full: U64,
}

/// The last transaction of a client.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Client {
    number: U64,
    id: U64,
    is_used: U64,
    /// The message with its outcome, as an object; 0: it is under way.
    outcome: U64,
}

/// The coordinator.
#[derive(Debug)]
pub struct Coordinator(CoordinatorSettings);

/// A step under way.
struct Step<'a> {
    settings: &'a CoordinatorSettings,
    root: Root,
    objects: &'a mut Objects,
    outbox: &'a mut Outbox,
}

/// The records of both segments.
pub(crate) fn log_bytes(objects: &Objects) -> Result<Vec<u8>, Failure> {
    let root: Root = state::root(objects)?;
    let mut bytes = Vec::new();
    for (segment, used) in [(root.sealed, root.sealed_used), (root.log, root.log_used)] {
        let segment = objects.get(ObjectId::from_bits(segment.get()))?;
        bytes.extend(segment.get(..used.get() as usize).ok_or(Failure::Layout)?);
    }
    Ok(bytes)
}

impl Coordinator {
    /// A coordinator; [`None`] if a setting is out of its range.
    pub fn new(settings: CoordinatorSettings) -> Option<Coordinator> {
        let is_valid = (1..=PARTICIPANTS_LIMIT).contains(&settings.participants.len())
            && (1..1 << 20).contains(&settings.clients)
            && (8 << 10..=LOG_BYTES_LIMIT).contains(&settings.log_bytes);
        is_valid.then_some(Coordinator(settings))
    }

    /// Bytes of the region that it needs.
    pub fn region_bytes(&self) -> usize {
        // Objects of other lengths leave gaps, at most as long as they are.
        let objects = ACTIVE_LIMIT as usize * RUNNING_BYTES + self.0.clients as usize * OUTCOME_BYTES;
        let clients = 2 * self.0.clients as usize * size_of::<Client>();
        2 * objects + clients + 2 * self.0.log_bytes as usize + (16 << 10)
    }

    fn begin(&self, objects: &mut Objects) -> Result<(), Failure> {
        let root = Root::new_zeroed();
        state::create_root(objects, &root)?;
        let mut allocate = |bytes: usize| objects.allocate(bytes).map(|id| U64::new(id.to_bits()));
        let root = Root {
            active: allocate(ACTIVE_LIMIT as usize * 8)?,
            clients: allocate(2 * self.0.clients as usize * size_of::<Client>())?,
            log: allocate(self.0.log_bytes as usize)?,
            sealed: allocate(self.0.log_bytes as usize)?,
            // A lock of transaction 0 is none.
            oldest: 1.into(),
            next: 1.into(),
            ..root
        };
        state::set_root(objects, &root)
    }

    fn take(&self, message: &Message, objects: &mut Objects, outbox: &mut Outbox) -> Result<(), Failure> {
        let root: Root = state::root(objects)?;
        let mut step = Step {
            settings: &self.0,
            root,
            objects,
            outbox,
        };
        step.take(message)?;
        state::set_root(step.objects, &step.root)
    }
}

impl Step<'_> {
    fn take(&mut self, message: &Message) -> Result<(), Failure> {
        let participants = &self.settings.participants;
        let participant = participants
            .iter()
            .position(|participant| *participant == message.from);
        match (message.kind, participant) {
            (TRANSACTION, None) => self.request(message.from, &message.body),
            (TICK, None) => self.tick(),
            (CHECKPOINTED, None) if message.from == self.settings.journal => {
                if Reader(&message.body).u64() == Some(self.root.segment.get()) {
                    self.root.sealed_used = U64::ZERO;
                }
                Ok(())
            }
            (kind, Some(participant)) => match Reply::decode(kind, &message.body) {
                Some((number, reply)) => self.reply(participant, number, reply),
                None => self.refuse(),
            },
            _ => self.refuse(),
        }
    }

    fn refuse(&mut self) -> Result<(), Failure> {
        self.root.malformed += 1;
        Ok(())
    }

    fn active(&self) -> ObjectId {
        ObjectId::from_bits(self.root.active.get())
    }

    fn id(&self, number: u64) -> Result<Option<ObjectId>, Failure> {
        let ids = state::rows::<U64>(self.objects, self.active())?;
        let id = ids[(number % ACTIVE_LIMIT) as usize].get();
        Ok((id != 0).then_some(ObjectId::from_bits(id)))
    }

    fn running(&self, number: u64) -> Result<Option<Running>, Failure> {
        let Some(id) = self.id(number)? else {
            return Ok(None);
        };
        let running = Running::decode(self.objects.get(id)?).ok_or(Failure::Layout)?;
        Ok(Some(running).filter(|running| running.number == number))
    }

    /// Keeps a transaction in place of what it was before.
    fn keep(&mut self, running: &Running) -> Result<(), Failure> {
        let old = self.id(running.number)?;
        let bytes = running.encode().ok_or(Failure::Layout)?;
        let id = state::allocate(self.objects, &bytes)?;
        if let Some(old) = old {
            self.objects.free(old)?;
        }
        let active = self.active();
        let ids = state::rows_mut::<U64>(self.objects, active)?;
        ids[(running.number % ACTIVE_LIMIT) as usize].set(id.to_bits());
        Ok(())
    }

    /// The place of a client in the table, or a free one; [`None`] if there are too many.
    fn client(&self, number: u64) -> Result<Option<(usize, Client)>, Failure> {
        let clients = state::rows::<Client>(self.objects, ObjectId::from_bits(self.root.clients.get()))?;
        let first = (model::Random::new(number).bits() % clients.len() as u64) as usize;
        let mut places = (first..clients.len()).chain(0..first);
        let found = places.find(|place| {
            let of = &clients[*place];
            of.is_used == U64::ZERO || of.number == number
        });
        let found = found.map(|place| (place, clients[place]));
        let has_room = self.root.clients_used.get() < u64::from(self.settings.clients);
        Ok(found.filter(|(_, client)| has_room || client.is_used != U64::ZERO))
    }

    fn set_client(&mut self, place: usize, client: Client) -> Result<(), Failure> {
        let clients = ObjectId::from_bits(self.root.clients.get());
        state::rows_mut::<Client>(self.objects, clients)?[place] = client;
        Ok(())
    }

    fn request(&mut self, from: Address, body: &[u8]) -> Result<(), Failure> {
        let (Address::Outside(address), Some(request)) = (from, Transaction::decode(body)) else {
            let mut head = Reader(body);
            let id = head.u64().and_then(|_| head.u64()).unwrap_or(0);
            self.outbox.send(from, OUTCOME, Outcome::Refused.encode(id));
            return self.refuse();
        };
        let number = request.client;
        let found = self.client(number)?;
        let known = found.filter(|(_, client)| client.is_used != U64::ZERO);
        if let Some((_, client)) = known.filter(|(_, client)| request.id <= client.id.get()) {
            // The outcome may have been lost. One that is under way comes when it has ended.
            if request.id == client.id.get() && client.outcome != U64::ZERO {
                let outcome = self
                    .objects
                    .get(ObjectId::from_bits(client.outcome.get()))?
                    .to_vec();
                self.outbox.send(from, OUTCOME, outcome);
            }
            return Ok(());
        }
        // A client that begins another one has given up on the one under way, which goes on.
        let is_full = self.root.next.get() >= self.root.oldest.get() + ACTIVE_LIMIT;
        let Some((place, client)) = found.filter(|_| !is_full) else {
            self.outbox.send(from, OUTCOME, Outcome::Busy.encode(request.id));
            return Ok(());
        };
        if client.outcome != U64::ZERO {
            self.objects.free(ObjectId::from_bits(client.outcome.get()))?;
        }
        if client.is_used == U64::ZERO {
            self.root.clients_used += 1;
        }
        let client = Client {
            number: number.into(),
            id: request.id.into(),
            is_used: 1.into(),
            outcome: U64::ZERO,
        };
        self.set_client(place, client)?;
        let running = Running::new(
            self.root.next.get(),
            address,
            request,
            self.settings.participants.len(),
        );
        self.root.next += 1;
        self.send(&running);
        self.keep(&running)
    }

    /// Sends the orders of the phase to all participants whose answer is missing.
    fn send(&mut self, running: &Running) {
        let participants = &self.settings.participants;
        for (index, participant) in participants.iter().enumerate() {
            if running.missing & 1 << index != 0 {
                let (kind, body) = running.order(index, participants.len()).encode(running.number);
                self.outbox.send(*participant, kind, body);
            }
        }
    }

    fn reply(&mut self, participant: usize, number: u64, reply: Reply) -> Result<(), Failure> {
        let bit = 1 << participant;
        let Some(mut running) = self.running(number)?.filter(|running| running.missing & bit != 0) else {
            return Ok(());
        };
        let participants = self.settings.participants.len();
        match (running.phase, reply) {
            (Phase::Lock, Reply::Locked(Some(Locked { reads, versions }))) => {
                if running
                    .take_locked(participant, participants, reads, versions)
                    .is_none()
                {
                    return self.refuse();
                }
            }
            (Phase::Lock, Reply::Locked(None)) | (Phase::Validate, Reply::Validated(false)) => {
                return self.enter(running, Phase::Abort);
            }
            (Phase::Validate, Reply::Validated(true)) | (Phase::Commit | Phase::Abort, Reply::Done) => {}
            // Of an earlier phase.
            _ => return Ok(()),
        }
        running.missing &= !bit;
        if running.missing != 0 {
            return self.keep(&running);
        }
        match running.phase {
            Phase::Lock if !running.request.reads.is_empty() => self.enter(running, Phase::Validate),
            Phase::Lock | Phase::Validate => self.commit(running),
            Phase::Commit | Phase::Abort => self.end(&running),
        }
    }

    fn enter(&mut self, mut running: Running, phase: Phase) -> Result<(), Failure> {
        running.enter(phase, self.settings.participants.len());
        self.send(&running);
        self.keep(&running)
    }

    /// Writes the record. With the end of this message the transaction is committed.
    fn commit(&mut self, running: Running) -> Result<(), Failure> {
        if !running.versions.is_empty() {
            let record = journal::record(&running);
            let used = self.root.log_used.get() as usize;
            if used + record.len() > self.settings.log_bytes as usize {
                // The journal has not written the segment before.
                self.root.log_full += 1;
                return self.enter(running, Phase::Abort);
            }
            self.objects
                .write(ObjectId::from_bits(self.root.log.get()), used, &record)?;
            self.root.log_used.set((used + record.len()) as u64);
            self.seal()?;
        }
        self.enter(running, Phase::Commit)
    }

    /// Has the journal take the segment if another record may not fit.
    fn seal(&mut self) -> Result<(), Failure> {
        let is_full = self.root.log_used.get() as usize + RECORD_BYTES > self.settings.log_bytes as usize;
        if !is_full || self.root.sealed_used != U64::ZERO {
            return Ok(());
        }
        std::mem::swap(&mut self.root.log, &mut self.root.sealed);
        self.root.sealed_used = self.root.log_used;
        self.root.log_used = U64::ZERO;
        self.root.segment += 1;
        self.checkpoint()
    }

    fn checkpoint(&mut self) -> Result<(), Failure> {
        let mut body = Vec::new();
        body.put_u64(self.root.segment.get());
        let sealed = self.objects.get(ObjectId::from_bits(self.root.sealed.get()))?;
        body.extend(
            sealed
                .get(..self.root.sealed_used.get() as usize)
                .ok_or(Failure::Layout)?,
        );
        self.outbox.send(self.settings.journal, CHECKPOINT, body);
        Ok(())
    }

    /// All participants have unlocked: the client gets its outcome.
    fn end(&mut self, running: &Running) -> Result<(), Failure> {
        let outcome = match running.phase {
            Phase::Commit => Outcome::Committed(running.reads.clone()),
            _ => Outcome::Aborted,
        };
        let body = outcome.encode(running.request.id);
        if let Some((place, client)) = self.client(running.request.client)?
            && client.id == running.request.id
        {
            let outcome = state::allocate(self.objects, &body)?.to_bits().into();
            self.set_client(place, Client { outcome, ..client })?;
            self.outbox.send(Address::Outside(running.from), OUTCOME, body);
        }
        if let Some(id) = self.id(running.number)? {
            self.objects.free(id)?;
        }
        let active = self.active();
        let ids = state::rows_mut::<U64>(self.objects, active)?;
        ids[(running.number % ACTIVE_LIMIT) as usize] = U64::ZERO;
        while self.root.oldest < self.root.next
            && ids[(self.root.oldest.get() % ACTIVE_LIMIT) as usize] == U64::ZERO
        {
            self.root.oldest += 1;
        }
        Ok(())
    }

    /// Repeats what has no answer.
    fn tick(&mut self) -> Result<(), Failure> {
        for number in self.root.oldest.get()..self.root.next.get() {
            if let Some(running) = self.running(number)? {
                self.send(&running);
            }
        }
        if self.root.sealed_used != U64::ZERO {
            return self.checkpoint();
        }
        self.seal()
    }
}

impl Actor for Coordinator {
    fn init(&mut self, context: &mut Context<'_>) {
        state::step(context, |objects, _| self.begin(objects));
    }

    fn exec(&mut self, message: &mut Message, context: &mut Context<'_>) -> Progress {
        state::step(context, |objects, outbox| self.take(message, objects, outbox));
        Progress::Done
    }
}
