//! The replicated log: Multi-Paxos (Lamport, "Paxos made simple", 2001).
//!
//! All that a replica has promised and accepted is in its objects, so it outlives the process. A step writes it before the
//! messages of the step leave.
//!
//! - **Election.** A replica that hears no leader for a random number of ticks takes a higher ballot and asks for
//!   promises. A replica that knows more chosen slots does not promise; it sends these slots instead, and is asked again
//!   then. So a new leader knows all slots that its majority knows to be chosen. It proposes the accepted command with the highest ballot in
//!   each later slot again, and a command without a request in a gap.
//! - **Who is named.** A replica sends clients to the leader that it follows, but to none of which it has heard nothing for
//!   two heartbeats: a leader that has ended is named to nobody for long.
//! - **Who leads** can apply what is chosen. A tick goes on from here to the memtable and the tables, and comes back. A
//!   replica to which none has come back for twice as long as others wait for a leader is no candidate: its memtable or its
//!   tables are lost. If it leads, it leads no more, and has the next one be elected. It goes on as a part of majorities.
//! - **Choice.** A command is chosen when a majority has accepted it in one ballot. The leader's next message tells the
//!   last chosen slot. A replica takes a slot as chosen if it has accepted it in the ballot of that leader; what it has
//!   not, it asks for.
//! - **Reads** do not go through the log: see `reads.rs`. Only if a leader does not know yet what was chosen before it, or
//!   too many reads wait, a read is a command.
//! - **Snapshots.** A replica that needs slots which no log has any more takes a snapshot: see `snapshot.rs`.
//! - **Application.** Chosen commands go to the memtable in order. Until it says that it has applied them, they are sent
//!   again with the ticks.

use actor_objects::{ObjectId, Objects};
use actor_runtime::{Actor, Address, Context, Message, Progress};
use zerocopy::byteorder::little_endian::U64;
use zerocopy::{FromBytes, FromZeros as _, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::codec::{Reader, Write as _};
use crate::state::{self, Failure, Outbox};
use crate::store::client::{Answer, COMMAND_BYTES, Command, Operation, Request};
use crate::store::log::{CHOSEN, Log};
use crate::store::peer::Peer;
use crate::store::reads::{READS_LIMIT, Reads};
use crate::store::settings::ConsensusSettings;
use crate::store::snapshot::Installed;
use crate::store::{
    ANSWER, APPLIED, APPLY, GET, INSTALL, INSTALLED, KEY_BYTES, PROPOSED_LIMIT, REQUEST, SNAP, SNAPPED, TICK,
};

/// Slots behind the chosen ones that a replica accepts. All of them fit into a promise.
const ACCEPTED_LIMIT: u64 = PROPOSED_LIMIT + 8;
/// Commands on their way to the memtable.
const APPLYING_LIMIT: u64 = 32;
/// Bytes of commands in one message of chosen ones.
const LEARN_BYTES: usize = 48 << 10;
const _: () = assert!(ACCEPTED_LIMIT as usize * (COMMAND_BYTES + 18) + 8 <= actor_runtime::BODY_BYTES_LIMIT);

/// No log gets so far.
const SLOTS_LIMIT: u64 = 1 << 60;
/// Of a snapshot of another replica: none comes; its head is asked for; its entries come.
const NONE: u64 = 0;
const HEAD: u64 = 1;
const COMES: u64 = 2;

const FOLLOWER: u64 = 0;
const CANDIDATE: u64 = 1;
const LEADER: u64 = 2;

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Root {
    ring: U64,
    /// No smaller ballot is accepted. As a candidate or leader it is the own one.
    promised: U64,
    role: U64,
    /// Of a candidate: a bit for each replica that has promised.
    promises: U64,
    /// All slots up to this one are chosen and known.
    chosen: U64,
    /// The memtable has applied all slots up to this one.
    applied: U64,
    /// The same at the last tick.
    applied_before: U64,
    /// Sent to the memtable, up to this one.
    sent: U64,
    /// Of the leader: all slots that others may have chosen before it are up to this one.
    elected: U64,
    /// Of the leader: the next free slot.
    next: U64,
    reads: Reads,
    /// Ticks until an election, or a heartbeat.
    ticks: U64,
    /// Ticks since the leader of the promised ballot was heard.
    unheard: U64,
    /// Ticks since one has come back from memtable and tables.
    unserved: U64,
    draws: U64,
    /// Messages of another form, or of a sender that must not send them.
    malformed: U64,
    /// Replicas asked for slots that the log does not have any more.
    left_behind: U64,
    /// The snapshot that comes: how far it has got, its slot, the replica that is asked, whether something was forgotten
    /// for one that has not come as a whole.
    install: U64,
    install_slot: U64,
    source: U64,
    has_forgotten: U64,
    /// Ticks since it has got further.
    install_ticks: U64,
}

/// The consensus actor of a replica.
#[derive(Debug)]
pub struct Consensus(ConsensusSettings);

/// A step under way: settings, state, and what is sent.
struct Step<'a> {
    settings: &'a ConsensusSettings,
    root: Root,
    log: Log,
    objects: &'a mut Objects,
    outbox: &'a mut Outbox,
}

impl Consensus {
    /// The consensus actor of a replica; [`None`] if a setting is out of its range.
    pub fn new(settings: ConsensusSettings) -> Option<Consensus> {
        settings.is_valid().then_some(Consensus(settings))
    }

    /// Bytes of the region that it needs.
    pub fn region_bytes(&self) -> usize {
        // An object takes a multiple of 16 bytes. Commands of other lengths leave gaps, at most as long as they are.
        self.0.log_slots as usize * (8 + 2 * (COMMAND_BYTES + 48))
            + READS_LIMIT as usize * (8 + 2 * (KEY_BYTES + 48))
            + 4096
    }

    fn begin(&self, objects: &mut Objects) -> Result<(), Failure> {
        let root = Root::new_zeroed();
        state::create_root(objects, &root)?;
        let log = Log::create(objects, u64::from(self.0.log_slots))?;
        let reads = Reads::create(objects, root.reads)?;
        let mut step = Step {
            settings: &self.0,
            root: Root {
                ring: log.ring.to_bits().into(),
                next: 1.into(),
                reads,
                ..root
            },
            log,
            objects,
            outbox: &mut Outbox::default(),
        };
        step.wait();
        state::set_root(step.objects, &step.root)
    }

    fn take(&self, message: &Message, objects: &mut Objects, outbox: &mut Outbox) -> Result<(), Failure> {
        let root: Root = state::root(objects)?;
        let log = Log {
            ring: ObjectId::from_bits(root.ring.get()),
            slots: u64::from(self.0.log_slots),
        };
        let mut step = Step {
            settings: &self.0,
            root,
            log,
            objects,
            outbox,
        };
        step.take(message)?;
        state::set_root(step.objects, &step.root)
    }
}

/// The index of the replica whose ballot it is.
fn owner(ballot: u64) -> u8 {
    ballot as u8
}

impl Step<'_> {
    fn take(&mut self, message: &Message) -> Result<(), Failure> {
        let replicas = &self.settings.replicas;
        let peer = replicas.iter().position(|replica| *replica == message.from);
        let peer = peer.filter(|index| *index != usize::from(self.settings.me));
        match (message.kind, peer) {
            (TICK, None) if message.from == self.settings.memtable => {
                self.root.unserved = U64::ZERO;
                Ok(())
            }
            (TICK, None) => self.tick(),
            (REQUEST, None) => self.request(message.from, &message.body),
            (APPLIED, None) if message.from == self.settings.memtable => {
                if let Some(slot) = Reader(&message.body).u64() {
                    self.root.applied.set(slot.max(self.root.applied.get()));
                    self.root.sent.set(self.root.sent.get().max(slot));
                    // After the head of a snapshot.
                    self.root.chosen.set(slot.max(self.root.chosen.get()));
                    self.root.next.set(self.root.next.get().max(slot + 1));
                }
                self.apply()?;
                self.answer_reads()
            }
            (SNAPPED, None) if message.from == self.settings.memtable => self.snapped(&message.body),
            (INSTALLED, None) if message.from == self.settings.memtable => self.installed(&message.body),
            (kind, Some(peer)) => match Peer::decode(kind, &message.body) {
                Some(said) => self.peer(peer as u8, said),
                None => self.refuse(),
            },
            _ => self.refuse(),
        }
    }

    /// Counts a message of another form.
    fn refuse(&mut self) -> Result<(), Failure> {
        self.root.malformed += 1;
        Ok(())
    }

    fn me(&self) -> u64 {
        1 << self.settings.me
    }

    fn is_majority(&self, bits: u64) -> bool {
        bits.count_ones() as usize > self.settings.replicas.len() / 2
    }

    fn send(&mut self, to: u8, peer: &Peer<'_>) {
        let (kind, body) = peer.encode();
        if let Some(address) = self.settings.replicas.get(usize::from(to)) {
            self.outbox.send(*address, kind, body);
        }
    }

    fn send_others(&mut self, peer: &Peer<'_>) {
        for to in 0..self.settings.replicas.len() as u8 {
            if to != self.settings.me {
                self.send(to, peer);
            }
        }
    }

    /// Has the next election begin after a random time.
    fn wait(&mut self) {
        let least = u64::from(self.settings.election_ticks);
        self.root.draws += 1;
        let seed = self.settings.seed ^ self.root.draws.get() << 8 ^ u64::from(self.settings.me);
        self.root.ticks.set(least + model::Random::new(seed).below(least));
    }

    fn tick(&mut self) -> Result<(), Failure> {
        self.outbox.send(self.settings.memtable, TICK, Vec::new());
        if self.root.applied == self.root.applied_before {
            // What was under way may be lost with the mailbox of a process that has ended.
            self.root.sent = self.root.applied;
            self.apply()?;
        }
        self.root.applied_before = self.root.applied;
        if self.root.install != NONE {
            self.root.install_ticks += 1;
            if self.root.install_ticks.get() > u64::from(self.settings.heartbeat_ticks) {
                self.install_again()?;
            }
        }
        self.root.ticks.set(self.root.ticks.get().saturating_sub(1));
        self.root.unheard.set(self.root.unheard.get().saturating_add(1));
        self.root.unserved.set(self.root.unserved.get().saturating_add(1));
        if self.root.role == LEADER && !self.can_apply() {
            // The others hear no leader from now on.
            self.root.role.set(FOLLOWER);
            self.wait();
            let ballot = self.root.promised.get();
            self.send_others(&Peer::Yield { ballot });
        }
        if self.root.ticks > U64::ZERO {
            return Ok(());
        }
        if self.root.role == LEADER {
            self.root.ticks.set(u64::from(self.settings.heartbeat_ticks));
            return self.remind();
        }
        if self.root.install != NONE || !self.can_apply() {
            // It may be a part of a majority, and must not lead.
            self.wait();
            return Ok(());
        }
        let round = (self.root.promised.get() >> 8) + 1;
        self.root.promised.set(round << 8 | u64::from(self.settings.me));
        self.root.role.set(CANDIDATE);
        self.root.promises.set(self.me());
        self.wait();
        let (ballot, chosen) = (self.root.promised.get(), self.root.chosen.get());
        self.send_others(&Peer::Prepare { ballot, chosen });
        self.lead_if_elected()
    }

    /// Whether memtable and tables have not been silent for long. A machine that is busy is not taken for one that has lost
    /// them.
    fn can_apply(&self) -> bool {
        self.root.unserved.get() <= 2 * u64::from(self.settings.election_ticks)
    }

    /// The leader that clients are to ask: another replica, heard within two heartbeats.
    fn named_leader(&self) -> Option<u8> {
        let leader = owner(self.root.promised.get());
        let is_heard = self.root.unheard.get() <= 2 * u64::from(self.settings.heartbeat_ticks);
        (leader != self.settings.me && self.root.role == FOLLOWER && is_heard).then_some(leader)
    }

    fn send_heartbeat(&mut self) {
        let (ballot, chosen) = (self.root.promised.get(), self.root.chosen.get());
        let round = self.root.reads.round();
        self.send_others(&Peer::Heartbeat {
            ballot,
            chosen,
            round,
        });
    }

    /// The heartbeat; proposals go again to those that have not accepted them.
    fn remind(&mut self) -> Result<(), Failure> {
        let (ballot, chosen) = (self.root.promised.get(), self.root.chosen.get());
        self.send_heartbeat();
        for slot in chosen + 1..self.root.next.get() {
            let Some((accepted, command)) = self.log.get(self.objects, slot)? else {
                continue;
            };
            let command = command.to_vec();
            for to in 0..self.settings.replicas.len() as u8 {
                if accepted.votes.get() & 1 << to == 0 {
                    self.send(to, &accept(ballot, chosen, slot, &command));
                }
            }
        }
        Ok(())
    }

    fn request(&mut self, from: Address, body: &[u8]) -> Result<(), Failure> {
        let mut head = Reader(body);
        let id = head.u64().and_then(|_| head.u64()).unwrap_or(0);
        let (Address::Outside(client), Some(request)) = (from, Request::decode(body)) else {
            self.outbox.send(from, ANSWER, Answer::Refused.encode(id));
            return self.refuse();
        };
        let next = self.root.next.get();
        if self.root.role != LEADER {
            let answer = Answer::NotLeader(self.named_leader());
            self.outbox.send(from, ANSWER, answer.encode(id));
        } else if request.operation == Operation::Get
            && self.root.chosen >= self.root.elected
            && self.root.reads.has_room()
        {
            let slot = self.root.chosen.get();
            let is_first = self
                .root
                .reads
                .add(self.objects, slot, client, id, &request.key)?;
            if is_first {
                return self.ask_followers();
            }
        } else if next > self.root.chosen.get() + PROPOSED_LIMIT || !self.has_room(next) {
            self.outbox.send(from, ANSWER, Answer::Busy.encode(id));
        } else {
            self.root.next.set(next + 1);
            self.propose(next, &Command::encode(client, body))?;
        }
        Ok(())
    }

    /// Begins a round of questions for the reads that wait.
    fn ask_followers(&mut self) -> Result<(), Failure> {
        self.root.reads.begin(self.me());
        self.send_heartbeat();
        self.follows(
            self.settings.me,
            self.root.promised.get(),
            self.root.reads.round(),
        )
    }

    /// A replica follows this leader, and had the question of a round.
    fn follows(&mut self, from: u8, ballot: u64, round: u64) -> Result<(), Failure> {
        if self.root.role != LEADER || self.root.promised != ballot {
            return Ok(());
        }
        let heard = self.root.reads.hear(round, 1 << from);
        if !heard.is_some_and(|heard| self.is_majority(heard)) {
            return Ok(());
        }
        let has_more = self.root.reads.confirm(self.objects)?;
        self.answer_reads()?;
        if has_more { self.ask_followers() } else { Ok(()) }
    }

    /// Has the memtable answer the reads whose round and slot have come.
    fn answer_reads(&mut self) -> Result<(), Failure> {
        while self.root.role == LEADER
            && let Some(read) = self.root.reads.take(self.objects, self.root.applied.get())?
        {
            self.outbox.send(self.settings.memtable, GET, read);
        }
        Ok(())
    }

    /// Whether what lies in the place of a slot is not needed any more.
    fn has_room(&self, slot: u64) -> bool {
        slot <= self.root.applied.get() + self.log.slots
    }

    fn propose(&mut self, slot: u64, command: &[u8]) -> Result<(), Failure> {
        let (ballot, chosen) = (self.root.promised.get(), self.root.chosen.get());
        self.log.put(self.objects, slot, ballot, self.me(), command)?;
        self.send_others(&accept(ballot, chosen, slot, command));
        self.choose()
    }

    /// Of the leader: takes slots as chosen that a majority has accepted.
    fn choose(&mut self) -> Result<(), Failure> {
        while let Some((accepted, _)) = self.log.get(self.objects, self.root.chosen.get() + 1)?
            && accepted.ballot == self.root.promised
            && self.is_majority(accepted.votes.get())
        {
            self.root.chosen += 1;
        }
        self.apply()
    }

    /// Sends chosen commands to the memtable.
    fn apply(&mut self) -> Result<(), Failure> {
        while self.root.sent < self.root.chosen
            && self.root.sent.get() < self.root.applied.get() + APPLYING_LIMIT
        {
            let slot = self.root.sent.get() + 1;
            let Some((_, command)) = self.log.get(self.objects, slot)? else {
                return Err(Failure::Layout);
            };
            let mut body = Vec::with_capacity(9 + command.len());
            body.put_u64(slot).put_u8(u8::from(self.root.role == LEADER));
            body.extend(command);
            self.outbox.send(self.settings.memtable, APPLY, body);
            self.root.sent.set(slot);
        }
        Ok(())
    }

    fn peer(&mut self, from: u8, said: Peer<'_>) -> Result<(), Failure> {
        match said {
            Peer::Prepare { ballot, chosen } => self.prepare(from, ballot, chosen),
            Peer::Promise { ballot, accepted } => self.promise(from, ballot, &accepted),
            Peer::Accept {
                ballot,
                chosen,
                slot,
                command,
            } => self.accept(from, ballot, chosen, slot, command),
            Peer::Accepted { ballot, slot } => {
                if self.root.role == LEADER && self.root.promised == ballot {
                    self.log.vote(self.objects, slot, ballot, 1 << from)?;
                    self.choose()?;
                }
                Ok(())
            }
            Peer::Refuse { ballot } => {
                if ballot > self.root.promised.get() {
                    self.follow(ballot);
                }
                Ok(())
            }
            Peer::Follows { ballot, round } => self.follows(from, ballot, round),
            Peer::Heartbeat {
                ballot,
                chosen,
                round,
            } => {
                if self.hears(from, ballot) {
                    self.send(from, &Peer::Follows { ballot, round });
                    self.learn_until(ballot, chosen)?;
                    if self.root.chosen.get() < chosen {
                        let first = self.root.chosen.get() + 1;
                        self.send(from, &Peer::Ask { first });
                    }
                }
                Ok(())
            }
            Peer::Yield { ballot } => {
                let next = (usize::from(from) + 1) % self.settings.replicas.len();
                let is_followed = ballot == self.root.promised.get() && self.root.role == FOLLOWER;
                if is_followed && owner(ballot) == from && next == usize::from(self.settings.me) {
                    self.root.ticks.set(1);
                }
                Ok(())
            }
            Peer::Behind { slot } => {
                if slot > self.root.chosen.get() {
                    self.root.install.set(HEAD);
                    self.root.source.set(u64::from(from));
                    self.root.role.set(FOLLOWER);
                    self.want();
                }
                Ok(())
            }
            Peer::Want { slot, after } => {
                if self.root.install == NONE && slot <= self.root.applied.get() {
                    let mut body = vec![from];
                    body.put_u64(slot).put_short(after);
                    self.outbox.send(self.settings.memtable, SNAP, body);
                }
                Ok(())
            }
            Peer::Head { slot, clients } => self.head(slot, clients),
            Peer::Entries { slot, part } => {
                if self.root.install == COMES && self.root.install_slot == slot {
                    let mut body = vec![1];
                    body.put_u64(slot).extend(part);
                    self.outbox.send(self.settings.memtable, INSTALL, body);
                }
                Ok(())
            }
            Peer::Ask { first } => self.tell(from, first),
            Peer::Learn { first, commands } => self.learn(first, &commands),
        }
    }

    /// Takes a ballot as promised, and goes on as a follower.
    fn follow(&mut self, ballot: u64) {
        self.root.promised.set(ballot);
        self.root.role.set(FOLLOWER);
        self.root.unheard = U64::ZERO;
        self.wait();
    }

    /// Whether a message comes from the leader of a ballot that may be accepted; follows it. Tells others why not.
    fn hears(&mut self, from: u8, ballot: u64) -> bool {
        let promised = self.root.promised.get();
        let is_heard = owner(ballot) == from && ballot >= promised;
        if is_heard {
            self.follow(ballot);
        } else {
            self.send(from, &Peer::Refuse { ballot: promised });
        }
        is_heard
    }

    fn prepare(&mut self, from: u8, ballot: u64, chosen: u64) -> Result<(), Failure> {
        if chosen < self.root.chosen.get() {
            return self.tell(from, chosen + 1);
        }
        if !self.hears(from, ballot) {
            return Ok(());
        }
        let first = self.root.chosen.get() + 1;
        let mut accepted = Vec::new();
        for slot in first..first + ACCEPTED_LIMIT {
            if let Some((of, command)) = self.log.get(self.objects, slot)? {
                accepted.push((slot, of.ballot.get(), command));
            }
        }
        let (kind, body) = Peer::Promise { ballot, accepted }.encode();
        if let Some(address) = self.settings.replicas.get(usize::from(from)) {
            self.outbox.send(*address, kind, body);
        }
        Ok(())
    }

    fn promise(&mut self, from: u8, ballot: u64, accepted: &[(u64, u64, &[u8])]) -> Result<(), Failure> {
        if self.root.role != CANDIDATE || self.root.promised != ballot {
            return Ok(());
        }
        // A candidate keeps the proposal with the highest ballot as its own accepted one. That is safe: what it has
        // accepted in a smaller ballot cannot be chosen with another command any more.
        for (slot, ballot, command) in accepted {
            let own = self.log.get(self.objects, *slot)?.map(|(of, _)| of.ballot.get());
            if *slot > self.root.chosen.get() && own.is_none_or(|own| own < *ballot) {
                if !self.has_room(*slot) || *slot > self.root.chosen.get() + ACCEPTED_LIMIT {
                    return Ok(());
                }
                self.log.put(self.objects, *slot, *ballot, 0, command)?;
            }
        }
        self.root.promises |= U64::new(1 << from);
        self.lead_if_elected()
    }

    fn lead_if_elected(&mut self) -> Result<(), Failure> {
        if !self.is_majority(self.root.promises.get()) {
            return Ok(());
        }
        self.root.role.set(LEADER);
        self.root.ticks.set(1);
        let first = self.root.chosen.get() + 1;
        let mut last = self.root.chosen.get();
        for slot in first..first + ACCEPTED_LIMIT {
            if self.log.get(self.objects, slot)?.is_some() {
                last = slot;
            }
        }
        self.root.next.set(last + 1);
        self.root.elected.set(last);
        self.root.reads.clear(self.objects)?;
        for slot in first..=last {
            let command = self
                .log
                .get(self.objects, slot)?
                .map(|(_, command)| command.to_vec());
            self.propose(slot, &command.unwrap_or_default())?;
        }
        Ok(())
    }

    fn accept(
        &mut self,
        from: u8,
        ballot: u64,
        chosen: u64,
        slot: u64,
        command: &[u8],
    ) -> Result<(), Failure> {
        if !self.hears(from, ballot) {
            return Ok(());
        }
        if Command::decode(command).is_none() {
            return self.refuse();
        }
        let is_near = slot <= self.root.chosen.get() + ACCEPTED_LIMIT && self.has_room(slot);
        let is_chosen = slot <= self.root.chosen.get();
        if is_near && !is_chosen {
            self.log.put(self.objects, slot, ballot, 0, command)?;
        }
        if is_near {
            self.send(from, &Peer::Accepted { ballot, slot });
        }
        self.learn_until(ballot, chosen)
    }

    /// Takes slots as chosen up to the one that the leader of a ballot names, as far as it has accepted them from it.
    fn learn_until(&mut self, ballot: u64, chosen: u64) -> Result<(), Failure> {
        while self.root.chosen.get() < chosen
            && let Some((accepted, _)) = self.log.get(self.objects, self.root.chosen.get() + 1)?
            && accepted.ballot == ballot
        {
            self.root.chosen += 1;
        }
        self.apply()
    }

    /// Tells chosen commands from a slot on.
    fn tell(&mut self, to: u8, first: u64) -> Result<(), Failure> {
        let (mut commands, mut bytes) = (Vec::new(), 0);
        for slot in first.max(1)..=self.root.chosen.get() {
            let Some((_, command)) = self.log.get(self.objects, slot)? else {
                break;
            };
            bytes += 2 + command.len();
            if bytes > LEARN_BYTES {
                break;
            }
            commands.push(command);
        }
        if commands.is_empty() {
            if first <= self.root.chosen.get() {
                self.root.left_behind += 1;
                if self.root.install == NONE {
                    let slot = self.root.applied.get();
                    self.send(to, &Peer::Behind { slot });
                }
            }
            return Ok(());
        }
        let (kind, body) = Peer::Learn { first, commands }.encode();
        if let Some(address) = self.settings.replicas.get(usize::from(to)) {
            self.outbox.send(*address, kind, body);
        }
        Ok(())
    }

    /// Asks for the head of a snapshot.
    fn want(&mut self) {
        self.send(self.root.source.get() as u8, &Peer::Want { slot: 0, after: &[] });
    }

    /// Asks again, of another replica: what was under way may be lost.
    fn install_again(&mut self) -> Result<(), Failure> {
        self.root.install_ticks = U64::ZERO;
        let replicas = self.settings.replicas.len() as u64;
        let others = 1..=replicas;
        let mut next = others.map(|step| (self.root.source.get() + step) % replicas);
        if let Some(source) = next.find(|of| *of != u64::from(self.settings.me)) {
            self.root.source.set(source);
        }
        if self.root.install == HEAD {
            self.want();
        }
        // The tables tell how far they have got.
        self.outbox.send(self.settings.memtable, INSTALL, vec![2]);
        Ok(())
    }

    /// The head of a snapshot has come.
    fn head(&mut self, slot: u64, clients: &[u8]) -> Result<(), Failure> {
        if self.root.install != HEAD || slot >= SLOTS_LIMIT {
            return Ok(());
        }
        if slot <= self.root.chosen.get() {
            // The log has caught up meanwhile.
            if self.root.has_forgotten == U64::ZERO {
                self.root.install.set(NONE);
            }
            return Ok(());
        }
        self.root.install.set(COMES);
        self.root.install_slot.set(slot);
        self.root.has_forgotten.set(1);
        let mut body = vec![0];
        body.put_u64(slot).extend(clients);
        self.outbox.send(self.settings.memtable, INSTALL, body);
        Ok(())
    }

    /// A part of a snapshot for another replica.
    fn snapped(&mut self, body: &[u8]) -> Result<(), Failure> {
        let mut reader = Reader(body);
        let head = reader.u8().zip(reader.u8()).zip(reader.u64());
        let ((to, kind), slot) = head.ok_or(Failure::Layout)?;
        let said = match kind {
            0 => Peer::Head {
                slot,
                clients: reader.0,
            },
            _ => Peer::Entries { slot, part: reader.0 },
        };
        let (kind, body) = said.encode();
        if let Some(address) = self.settings.replicas.get(usize::from(to)) {
            self.outbox.send(*address, kind, body);
        }
        Ok(())
    }

    /// The tables tell how far a snapshot has got.
    fn installed(&mut self, body: &[u8]) -> Result<(), Failure> {
        let of = Installed::decode(body).ok_or(Failure::Layout)?;
        if self.root.install == NONE {
            return Ok(());
        }
        if !of.is_done {
            self.root.install.set(COMES);
            self.root.install_slot.set(of.slot);
            self.root.install_ticks = U64::ZERO;
            let after = &of.until[..];
            self.send(self.root.source.get() as u8, &Peer::Want { slot: of.slot, after });
        } else if self.root.install == COMES && self.root.install_slot == of.slot {
            // Its entries may be newer than what the log has brought so far.
            if self.root.applied.get() >= of.highest {
                self.root.install.set(NONE);
                self.root.has_forgotten = U64::ZERO;
            }
        } else if self.root.install == COMES {
            // The head did not arrive.
            self.root.install.set(HEAD);
        }
        Ok(())
    }

    fn learn(&mut self, first: u64, commands: &[&[u8]]) -> Result<(), Failure> {
        let before = self.root.chosen;
        for (slot, command) in (first..).zip(commands) {
            if slot == self.root.chosen.get() + 1 && self.has_room(slot) {
                self.log.put(self.objects, slot, CHOSEN, 0, command)?;
                self.root.chosen.set(slot);
            }
        }
        self.root
            .next
            .set(self.root.next.get().max(self.root.chosen.get() + 1));
        if self.root.role == CANDIDATE && self.root.chosen > before {
            // Who has told it did not promise, because it knew more.
            let (ballot, chosen) = (self.root.promised.get(), self.root.chosen.get());
            self.send_others(&Peer::Prepare { ballot, chosen });
        }
        self.apply()
    }
}

fn accept(ballot: u64, chosen: u64, slot: u64, command: &[u8]) -> Peer<'_> {
    Peer::Accept {
        ballot,
        chosen,
        slot,
        command,
    }
}

impl Actor for Consensus {
    fn init(&mut self, context: &mut Context<'_>) {
        state::step(context, |objects, _| self.begin(objects));
    }

    fn exec(&mut self, message: &mut Message, context: &mut Context<'_>) -> Progress {
        state::step(context, |objects, outbox| self.take(message, objects, outbox));
        Progress::Done
    }
}
