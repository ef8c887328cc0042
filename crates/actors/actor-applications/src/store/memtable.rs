//! Applies chosen commands in order, and has what was written last.

use actor_objects::{ObjectId, Objects};
use actor_runtime::{Actor, Address, Context, Message, Progress};
use zerocopy::byteorder::little_endian::U64;
use zerocopy::{FromBytes, FromZeros as _, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::codec::{Reader, Write as _};
use crate::state::{self, Failure, Outbox};
use crate::store::client::{Answer, Command, Operation, Request};
use crate::store::entry::Entry;
use crate::store::skip_list::SkipList;
use crate::store::snapshot::{Installed, PART_BYTES};
use crate::store::{
    ANSWER, APPLIED, APPLY, CLIENTS_LIMIT, FLUSH, GET, INSTALL, INSTALLED, KEY_BYTES, READ, SNAP, SNAPPED,
    STORED, TICK, VALUE_BYTES,
};

/// Ticks until a frozen memtable is sent again.
const FLUSH_TICKS: u64 = 4;
/// The longest memtable: its entries are one message.
const MEMTABLE_BYTES_LIMIT: u32 = 56 << 10;

/// What a memtable is made with.
#[derive(Clone, Debug)]
pub struct MemtableSettings {
    /// Bytes of entries of a full memtable, 2 KiB to 56 KiB. There are two: one that is written, and a frozen one.
    pub bytes: u32,
    /// Clients, at most, and at most [`CLIENTS_LIMIT`]. Requests of others are refused, the same on all replicas.
    pub clients: u32,
    /// The consensus actor of this replica.
    pub consensus: Address,
    /// Its actor of tables.
    pub tables: Address,
    /// Its compaction actor.
    pub compaction: Address,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Root {
    /// The list that is written.
    active: U64,
    /// The list that is being stored; 0: none.
    frozen: U64,
    /// The number of the frozen list, or the last one.
    sequence: U64,
    /// Ticks since the frozen list was sent.
    ticks: U64,
    applied: U64,
    clients: U64,
    clients_used: U64,
    /// The slot of a snapshot from which this goes on, as long as the tables have not heard of it; else 0.
    installing: U64,
    malformed: U64,
}

/// The last request of a client.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Client {
    number: U64,
    last: U64,
    /// 0: the place is free.
    is_used: U64,
}

/// What came of a command.
enum Outcome {
    Answer(Answer),
    /// The tables may have the key.
    InTables,
    /// The client has sent a later request.
    Superseded,
}

/// The memtable of a replica.
#[derive(Debug)]
pub struct Memtable(MemtableSettings);

impl Memtable {
    /// The memtable of a replica; [`None`] if a setting is out of its range. Those of all replicas have the same limit
    /// of clients.
    pub fn new(settings: MemtableSettings) -> Option<Memtable> {
        let is_valid = (2 << 10..=MEMTABLE_BYTES_LIMIT).contains(&settings.bytes)
            && (1..=CLIENTS_LIMIT).contains(&settings.clients);
        is_valid.then_some(Memtable(settings))
    }

    /// Bytes of the region that it needs.
    pub fn region_bytes(&self) -> usize {
        // An entry has at least 13 bytes, its node at most 112 more; nodes of other lengths leave gaps.
        let list = self.0.bytes as usize / 13 * (13 + 112);
        3 * list + self.0.clients as usize * 2 * size_of::<Client>() + (64 << 10)
    }

    fn begin(&self, objects: &mut Objects) -> Result<(), Failure> {
        let root = Root::new_zeroed();
        state::create_root(objects, &root)?;
        let active = SkipList::create(objects)?;
        // Half of the places stay free, so that a probe is short.
        let clients = objects.allocate(self.0.clients as usize * 2 * size_of::<Client>())?;
        let root = Root {
            active: active.0.to_bits().into(),
            clients: clients.to_bits().into(),
            ..root
        };
        state::set_root(objects, &root)
    }

    fn take(&self, message: &Message, objects: &mut Objects, outbox: &mut Outbox) -> Result<(), Failure> {
        let mut root: Root = state::root(objects)?;
        let is_from = |address| message.from == address;
        match message.kind {
            APPLY if is_from(self.0.consensus) => self.apply(&message.body, &mut root, objects, outbox)?,
            GET if is_from(self.0.consensus) => {
                let mut reader = Reader(&message.body);
                if let Some((from, id)) = reader.u64().zip(reader.u64()) {
                    let outcome = Memtable::get(reader.0, &root, objects)?;
                    self.answer(from, id, reader.0, outcome, outbox);
                }
            }
            STORED if is_from(self.0.tables) => {
                if Reader(&message.body).u64() == Some(root.sequence.get()) && root.frozen != U64::ZERO {
                    SkipList(ObjectId::from_bits(root.frozen.get())).free(objects)?;
                    root.frozen = U64::ZERO;
                }
            }
            SNAP if is_from(self.0.consensus) => self.snap(&message.body, &root, objects, outbox)?,
            SNAPPED if is_from(self.0.tables) => {
                outbox.send(self.0.consensus, SNAPPED, message.body.clone());
            }
            INSTALL if is_from(self.0.consensus) => {
                self.install(&message.body, &mut root, objects, outbox)?;
            }
            INSTALLED if is_from(self.0.tables) => {
                if Installed::decode(&message.body).is_some_and(|of| root.installing == of.slot) {
                    root.installing = U64::ZERO;
                }
                outbox.send(self.0.consensus, INSTALLED, message.body.clone());
            }
            TICK if is_from(self.0.consensus) => {
                outbox.send(self.0.tables, TICK, Vec::new());
                self.reset_tables(&root, outbox);
                root.ticks += 1;
                if root.frozen != U64::ZERO && root.ticks.get() >= FLUSH_TICKS {
                    self.flush(&mut root, objects, outbox)?;
                }
            }
            // The tables have had it, too.
            TICK if is_from(self.0.tables) => outbox.send(self.0.consensus, TICK, Vec::new()),
            _ => root.malformed += 1,
        }
        state::set_root(objects, &root)
    }

    fn apply(
        &self,
        body: &[u8],
        root: &mut Root,
        objects: &mut Objects,
        outbox: &mut Outbox,
    ) -> Result<(), Failure> {
        let mut reader = Reader(body);
        let Some((slot, answers)) = reader.u64().zip(reader.u8()) else {
            root.malformed += 1;
            return Ok(());
        };
        if slot == root.applied.get() + 1 {
            if root.installing != U64::ZERO || !self.has_room(root, objects, outbox)? {
                // It comes again.
                return Ok(());
            }
            // A command without a meaning was not accepted by any replica.
            if let Some(Command(Some((from, request)))) = Command::decode(reader.0) {
                let answer = self.execute(slot, &request, root, objects)?;
                if answers != 0 {
                    self.answer(from, request.id, &request.key, answer, outbox);
                }
            }
            root.applied.set(slot);
        }
        let mut body = Vec::new();
        body.put_u64(root.applied.get());
        outbox.send(self.0.consensus, APPLIED, body);
        Ok(())
    }

    /// A part of a snapshot for another replica: the head, or entries, to which the tables add theirs.
    fn snap(&self, body: &[u8], root: &Root, objects: &Objects, outbox: &mut Outbox) -> Result<(), Failure> {
        let mut reader = Reader(body);
        let asked = reader.u8().zip(reader.u64()).zip(reader.short());
        let Some(((to, slot), after)) = asked.filter(|_| root.installing == U64::ZERO) else {
            return Ok(());
        };
        let mut body = vec![to];
        if slot == 0 {
            body.put_u8(0).put_u64(root.applied.get());
            let clients = state::rows::<Client>(objects, ObjectId::from_bits(root.clients.get()))?;
            for client in clients.iter().filter(|client| client.is_used != U64::ZERO) {
                body.put_u64(client.number.get()).put_u64(client.last.get());
            }
            outbox.send(self.0.consensus, SNAPPED, body);
            return Ok(());
        }
        let mut all = Vec::new();
        let mut is_all = true;
        for list in [root.active, root.frozen] {
            if list != U64::ZERO {
                let list = SkipList(ObjectId::from_bits(list.get()));
                let (entries, is_its) = list.after(objects, after, PART_BYTES / 2)?;
                all.push((entries, is_its));
                is_all &= is_its;
            }
        }
        // Of two lists nothing is known behind the end of the one that ends first.
        let ends = all.iter().filter(|(_, is_all)| !is_all);
        let known = ends
            .map(|(entries, _)| entries.last().map_or(after, |last| last.key))
            .min();
        body.put_u64(slot).put_short(after).put_u8(u8::from(is_all));
        for entry in all.iter().flat_map(|(entries, _)| entries) {
            if known.is_none_or(|known| entry.key <= known) {
                entry.write(&mut body);
            }
        }
        outbox.send(self.0.tables, SNAP, body);
        Ok(())
    }

    /// Takes a snapshot of another replica: the head here, all else is the tables'.
    fn install(
        &self,
        body: &[u8],
        root: &mut Root,
        objects: &mut Objects,
        outbox: &mut Outbox,
    ) -> Result<(), Failure> {
        let mut reader = Reader(body);
        if reader.u8() != Some(0) {
            if root.installing == U64::ZERO {
                outbox.send(self.0.tables, INSTALL, body.to_vec());
            }
            self.reset_tables(root, outbox);
            return Ok(());
        }
        let Some(slot) = reader.u64().filter(|slot| *slot > root.applied.get()) else {
            self.reset_tables(root, outbox);
            return Ok(());
        };
        for list in [root.active, root.frozen] {
            if list != U64::ZERO {
                SkipList(ObjectId::from_bits(list.get())).free(objects)?;
            }
        }
        root.active.set(SkipList::create(objects)?.0.to_bits());
        root.frozen = U64::ZERO;
        let id = ObjectId::from_bits(root.clients.get());
        state::rows_mut::<Client>(objects, id)?.fill(Client::new_zeroed());
        root.clients_used = U64::ZERO;
        while let Some((number, last)) = reader.u64().zip(reader.u64()) {
            if root.clients_used.get() >= u64::from(self.0.clients) {
                // All replicas have the same limit.
                break;
            }
            let clients = state::rows_mut::<Client>(objects, id)?;
            let place = place_of(clients, number).ok_or(Failure::Layout)?;
            clients[place] = Client {
                number: number.into(),
                last: last.into(),
                is_used: 1.into(),
            };
            root.clients_used += 1;
        }
        root.applied.set(slot);
        root.installing.set(slot);
        self.reset_tables(root, outbox);
        outbox.send(self.0.consensus, APPLIED, slot.to_le_bytes().to_vec());
        Ok(())
    }

    /// Tells the tables of a snapshot, if they have not heard of it.
    fn reset_tables(&self, root: &Root, outbox: &mut Outbox) {
        if root.installing != U64::ZERO {
            let mut body = vec![0];
            body.put_u64(root.installing.get()).put_u64(root.sequence.get());
            outbox.send(self.0.tables, INSTALL, body);
        }
    }

    /// Makes room for the longest entry: a full list is frozen, if there is no frozen one.
    fn has_room(&self, root: &mut Root, objects: &mut Objects, outbox: &mut Outbox) -> Result<bool, Failure> {
        let active = SkipList(ObjectId::from_bits(root.active.get()));
        if active.bytes(objects)? + 12 + KEY_BYTES + VALUE_BYTES <= self.0.bytes as usize {
            return Ok(true);
        }
        if root.frozen != U64::ZERO {
            return Ok(false);
        }
        root.frozen = root.active;
        root.active.set(SkipList::create(objects)?.0.to_bits());
        root.sequence += 1;
        self.flush(root, objects, outbox)?;
        Ok(true)
    }

    fn flush(&self, root: &mut Root, objects: &Objects, outbox: &mut Outbox) -> Result<(), Failure> {
        let mut body = Vec::new();
        body.put_u64(root.sequence.get());
        SkipList(ObjectId::from_bits(root.frozen.get())).write_all(objects, &mut body)?;
        outbox.send(self.0.compaction, FLUSH, body);
        root.ticks = U64::ZERO;
        Ok(())
    }

    /// Sends what the client gets, or has the tables answer.
    fn answer(&self, to: u64, id: u64, key: &[u8], answer: Outcome, outbox: &mut Outbox) {
        match answer {
            Outcome::Answer(answer) => {
                outbox.send(Address::Outside(to), ANSWER, answer.encode(id));
            }
            Outcome::InTables => {
                let mut body = Vec::new();
                body.put_u64(to).put_u64(id);
                body.extend(key);
                outbox.send(self.0.tables, READ, body);
            }
            Outcome::Superseded => {}
        }
    }

    /// Executes a request, unless it was executed, or the client has sent a later one.
    fn execute(
        &self,
        slot: u64,
        request: &Request,
        root: &mut Root,
        objects: &mut Objects,
    ) -> Result<Outcome, Failure> {
        let clients = state::rows_mut::<Client>(objects, ObjectId::from_bits(root.clients.get()))?;
        let client = request.client;
        let place = place_of(clients, client);
        let of = &mut clients[place.ok_or(Failure::Layout)?];
        let mut is_new = true;
        if of.is_used == U64::ZERO {
            if root.clients_used.get() >= u64::from(self.0.clients) {
                return Ok(Outcome::Answer(Answer::Refused));
            }
            root.clients_used += 1;
            of.is_used.set(1);
            of.number.set(client);
        } else if request.id < of.last.get() {
            return Ok(Outcome::Superseded);
        } else {
            is_new = of.last != request.id;
        }
        of.last.set(request.id);
        let value = match &request.operation {
            Operation::Get => return Memtable::get(&request.key, root, objects),
            Operation::Put(value) => Some(&value[..]),
            Operation::Delete => None,
        };
        if is_new {
            let key = &request.key;
            SkipList(ObjectId::from_bits(root.active.get())).put(objects, Entry { slot, key, value })?;
        }
        Ok(Outcome::Answer(Answer::Written))
    }

    /// What the two lists have of a key.
    fn get(key: &[u8], root: &Root, objects: &Objects) -> Result<Outcome, Failure> {
        for list in [root.active, root.frozen] {
            if list == U64::ZERO {
                continue;
            }
            let list = SkipList(ObjectId::from_bits(list.get()));
            if let Some(entry) = list.get(objects, key)? {
                let found = entry.value.map(|value| Answer::Found(value.to_vec()));
                return Ok(Outcome::Answer(found.unwrap_or(Answer::NotFound)));
            }
        }
        Ok(Outcome::InTables)
    }
}

/// The place of a client, or a free one for it.
fn place_of(clients: &[Client], number: u64) -> Option<usize> {
    let first = (model::Random::new(number).bits() % clients.len() as u64) as usize;
    let mut places = (first..clients.len()).chain(0..first);
    places.find(|place| {
        let of = &clients[*place];
        of.is_used == U64::ZERO || of.number == number
    })
}

impl Actor for Memtable {
    fn init(&mut self, context: &mut Context<'_>) {
        state::step(context, |objects, _| self.begin(objects));
    }

    fn exec(&mut self, message: &mut Message, context: &mut Context<'_>) -> Progress {
        state::step(context, |objects, outbox| self.take(message, objects, outbox));
        Progress::Done
    }
}
