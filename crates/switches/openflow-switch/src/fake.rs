//! A switch for tests and simulations: OpenFlow on one side, a datapath that lags its rules on the other.
//!
//! Modelled after Open vSwitch: what is decided for a packet is kept in a cache, for all packets that agree in every bit that
//! was looked at, and when rules change the cache is gone over in rounds, each entry at some moment of the round. Decisions
//! that are under way when rules change enter the cache late. Everything that goes wrong with real ones can be made to: see [`Faults`].
//!
//! It reads no clock, and has no socket: [`FakeNic::receive`] and [`FakeNic::output`] are its end of a connection.

mod steered;

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use model::{FlowKey, Nanos};
use openflow::{
    Action, BundleControl, BundleStep, ConnectionTracking, ErrorMessage, Event, Features, Field, FieldKind,
    FlowCommand, FlowFlags, FlowMod, FlowRemoved, FlowRemovedReason, FlowStats, Instruction, Limits, Match,
    Message, MultipartReply, MultipartRequest, PacketIn, PacketInReason, PacketOut, Session, SessionError,
    Side, port,
};
use packet::{Parsed, parse};
pub use steered::SteeredNic;

/// What goes wrong, and how late everything is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Faults {
    /// Rules that it has place for.
    pub rule_limit: usize,
    /// One in so many new rules is refused; 0: none.
    pub refuse_one_in: u64,
    /// Whether it knows no bundles.
    pub knows_no_bundles: bool,
    /// One in so many messages is answered with bytes that mean nothing; 0: none.
    pub garbage_one_in: u64,
    /// Packets that it sends to the controller, unasked, per message received.
    pub packet_in_flood: u64,
    /// The longest time that a message waits before it is carried out.
    pub control_delay: Nanos,
    /// How long it writes one rule, while the next ones wait.
    pub rule_time: Nanos,
    /// Whether messages between two barriers are carried out in any order, as OpenFlow allows.
    pub reorders: bool,
    /// How long a round over the cache takes. No decision takes more than half of it.
    pub round: Nanos,
    /// The shortest and the longest time from a port to its other end. Order is kept within a port, not between ports.
    pub port_delay: (Nanos, Nanos),
    /// How old the counters can be.
    pub counter_lag: Nanos,
}

impl Default for Faults {
    fn default() -> Self {
        Faults {
            rule_limit: 1_000_000,
            refuse_one_in: 0,
            knows_no_bundles: false,
            garbage_one_in: 0,
            packet_in_flood: 0,
            control_delay: Nanos::from_micros(200),
            rule_time: Nanos::ZERO,
            reorders: false,
            round: Nanos::from_millis(3),
            port_delay: (Nanos::from_micros(5), Nanos::from_micros(30)),
            counter_lag: Nanos::from_millis(100),
        }
    }
}

/// A frame at the other end of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// Which port.
    pub port: u32,
    /// The frame.
    pub frame: Vec<u8>,
}

/// What is looked up, in which table: every field of a packet, or the bits of it that a decision rests on.
type Key = (u8, Match);
type Shape = Arc<[(FieldKind, Option<Vec<u8>>)]>;
/// Bits of fields.
type Mask = BTreeMap<FieldKind, Vec<u8>>;

/// What is decided for packets is forgotten when none came for so long, as Open vSwitch does (`max-idle`).
const CACHE_IDLE: Nanos = Nanos::from_secs(10);
/// Rules of every table are to be deleted (`OFPTT_ALL`).
const ALL_TABLES: u8 = 0xff;

/// Rules by table, by priority, and by which fields they match.
type Place = (u8, Reverse<u16>, Shape);
/// A rule, by its place and what it matches.
type AtPlace = (Place, Match);
/// Why something is refused: an error's kind and code.
type Refusal = (u16, u16);

#[derive(Debug)]
struct Rule {
    flow: FlowMod,
    packets: u64,
    bytes: u64,
    /// What a question about its counters is answered with.
    shown: (u64, u64),
}

#[derive(Clone, Debug)]
struct Cached {
    /// The packet that it was decided for, and what was looked at.
    packet: Key,
    mask: Mask,
    actions: Arc<[Action]>,
    rule: Option<AtPlace>,
    used: Nanos,
}

impl Cached {
    /// What packets have in common for which the same was decided.
    fn key(&self) -> Key {
        masked(&self.packet, &self.mask)
    }
}

/// The switch.
#[derive(Debug)]
pub struct FakeNic {
    faults: Faults,
    chance: u64,
    session: Session,
    /// Messages by when they are carried out.
    control: VecDeque<(Nanos, u32, Message)>,
    /// None is carried out before the last barrier that was received.
    barrier_at: Nanos,
    /// Until then it writes rules that it has received.
    busy_until: Nanos,
    rules: BTreeMap<Place, HashMap<Match, Rule>>,
    rule_count: usize,
    /// What waits in bundles, with the transactions.
    bundles: BTreeMap<u32, Vec<(u32, FlowMod)>>,
    version: u64,
    /// What was decided, by which bits were looked at.
    cache: BTreeMap<Mask, BTreeMap<Key, Cached>>,
    entering: VecDeque<(Nanos, u64, Cached)>,
    /// Connections by their zone, and the marks that were set on them.
    marks: HashMap<(u16, FlowKey), Field>,
    /// Entries that the round under way has yet to visit, the last one first.
    round: Vec<(Nanos, Mask, Key)>,
    round_ends: Nanos,
    is_stale: bool,
    lines: BTreeMap<u32, VecDeque<(Nanos, Vec<u8>)>>,
    counters_at: Nanos,
    dropped: u64,
}

impl FakeNic {
    /// A switch without rules, at that time. Equal seeds do the same.
    pub fn new(faults: Faults, seed: u64, now: Nanos) -> FakeNic {
        FakeNic {
            faults,
            chance: seed,
            session: Session::new(Side::Switch, Limits::default(), now.0),
            control: VecDeque::new(),
            barrier_at: Nanos::ZERO,
            busy_until: Nanos::ZERO,
            rules: BTreeMap::new(),
            rule_count: 0,
            bundles: BTreeMap::new(),
            version: 0,
            cache: BTreeMap::new(),
            entering: VecDeque::new(),
            marks: HashMap::new(),
            round: Vec::new(),
            round_ends: Nanos::ZERO,
            is_stale: false,
            lines: BTreeMap::new(),
            counters_at: Nanos::ZERO,
            dropped: 0,
        }
    }

    /// From now on other things go wrong.
    pub fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
    }

    /// The connection is cut; what was under way in it is lost. A new one can be made at once.
    pub fn disconnect(&mut self, now: Nanos) {
        self.session = Session::new(Side::Switch, Limits::default(), now.0);
        self.control.clear();
        self.bundles.clear();
        self.busy_until = now;
    }

    /// Everything is lost, as when the process ends and begins anew.
    pub fn restart(&mut self, now: Nanos) {
        *self = FakeNic::new(self.faults, self.chance, now);
    }

    /// Removes a rule as if there were a better use for its place. Whether there was one of that cookie.
    pub fn evict(&mut self, cookie: u64) -> bool {
        let found = (self.rules.values().flat_map(HashMap::values))
            .find(|rule| rule.flow.cookie == cookie)
            .map(|rule| (place(&rule.flow), rule.flow.matches.clone()));
        let Some((place, matches)) = found else {
            return false;
        };
        // Eviction (OFPRR_EVICTION, section 7.4.4 of the specification).
        self.delete(&place, &matches, FlowRemovedReason::Other(5));
        true
    }

    /// Cookies of all its rules.
    pub fn cookies(&self) -> Vec<u64> {
        let rules = self.rules.values().flat_map(HashMap::values);
        let mut cookies: Vec<u64> = rules.map(|rule| rule.flow.cookie).collect();
        cookies.sort_unstable();
        cookies
    }

    /// Packets that no rule sent anywhere.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// A number below `limit`, and 0 where that is 0.
    fn below(&mut self, limit: u64) -> u64 {
        // SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
        self.chance = self.chance.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut n = self.chance;
        n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (n ^ (n >> 31)).checked_rem(limit).unwrap_or_default()
    }

    fn happens(&mut self, one_in: u64) -> bool {
        one_in > 0 && self.below(one_in) == 0
    }

    // The connection.

    /// Takes what came by the connection.
    ///
    /// # Errors
    /// Where it is not OpenFlow: the connection is to be cut.
    pub fn receive(&mut self, bytes: &[u8], now: Nanos) -> Result<(), SessionError> {
        self.session.receive(bytes, now.0);
        while let Some(event) = self.session.next_event()? {
            if let Event::Message { xid, message } = event {
                self.take(xid, message, now);
            }
        }
        Ok(())
    }

    /// Puts a message in its place among those that wait.
    fn take(&mut self, xid: u32, message: Message, now: Nanos) {
        let delay = Nanos(self.below(self.faults.control_delay.0 + 1));
        if matches!(message, Message::FlowMod(_) | Message::BundleAdd { .. }) {
            self.busy_until = self.busy_until.max(now) + self.faults.rule_time;
        }
        let is_barrier = matches!(message, Message::BarrierRequest);
        let last = self.control.back().map_or(now, |(at, ..)| *at);
        let is_of_bundle = matches!(message, Message::BundleControl(_) | Message::BundleAdd { .. });
        let earliest = match self.faults.reorders && !is_barrier && !is_of_bundle {
            true => self.barrier_at,
            false => last.max(self.barrier_at),
        };
        let at = (now + delay).max(earliest).max(self.busy_until);
        if is_barrier {
            self.barrier_at = at;
        }
        let place = self.control.partition_point(|(before, ..)| *before <= at);
        self.control.insert(place, (at, xid, message));
    }

    /// What waits to be written to the connection.
    pub fn output(&self) -> &[u8] {
        self.session.output()
    }

    /// That many bytes of it were written.
    pub fn written(&mut self, bytes: usize) {
        self.session.written(bytes);
    }

    /// When the next frame arrives at the other end of a port, if none comes in before.
    pub fn next_delivery(&self) -> Option<Nanos> {
        let lines = self.lines.values();
        lines.filter_map(|line| Some(line.front()?.0)).min()
    }

    /// Time passes: messages are carried out, the cache is gone over.
    pub fn tick(&mut self, now: Nanos) {
        while self.control.front().is_some_and(|(at, ..)| *at <= now) {
            if let Some((_, xid, message)) = self.control.pop_front() {
                self.carry_out(xid, message, now);
            }
        }
        while self.entering.front().is_some_and(|(at, ..)| *at <= now) {
            if let Some((_, version, cached)) = self.entering.pop_front() {
                self.is_stale |= version != self.version;
                let of_mask = self.cache.entry(cached.mask.clone()).or_default();
                of_mask.entry(cached.key()).or_insert(cached);
            }
        }
        if self.round.is_empty() && self.is_stale && now >= self.round_ends {
            self.is_stale = false;
            let of_mask = |(mask, of): (&Mask, &BTreeMap<Key, Cached>)| {
                of.keys().map(|key| (mask.clone(), key.clone())).collect()
            };
            let keys: Vec<Vec<(Mask, Key)>> = self.cache.iter().map(of_mask).collect();
            self.round_ends = Nanos(now.0 + self.faults.round.0);
            for (mask, key) in keys.into_iter().flatten() {
                let at = Nanos(now.0 + self.below(self.faults.round.0));
                self.round.push((at, mask, key));
            }
            self.round.sort_by(|a, b| b.cmp(a));
        }
        while self.round.last().is_some_and(|(at, ..)| *at <= now) {
            if let Some((_, mask, key)) = self.round.pop() {
                self.revalidate(&mask, &key, now);
            }
        }
        if now.0 >= self.counters_at.0 + self.faults.counter_lag.0 {
            self.counters_at = now;
            for rule in self.rules.values_mut().flat_map(HashMap::values_mut) {
                rule.shown = (rule.packets, rule.bytes);
            }
        }
    }

    /// Decides anew for the packet of an entry. One that rests on more than it did cannot stay: others may have to be told apart.
    fn revalidate(&mut self, mask: &Mask, key: &Key, now: Nanos) {
        let found = self.cache.get(mask).and_then(|of| of.get(key));
        let Some((packet, used)) = found.map(|cached| (cached.packet.clone(), cached.used)) else {
            return;
        };
        let decided = self.decide(&packet, used);
        let Some(of) = self.cache.get_mut(mask) else {
            return;
        };
        if is_within(&decided.mask, mask) && now.since(used) < CACHE_IDLE {
            let mask = mask.clone();
            of.insert(key.clone(), Cached { mask, ..decided });
        } else {
            of.remove(key);
        }
    }

    /// What was decided before for such a packet: what is done to it, and by which rule.
    fn cached(&mut self, key: &Key, now: Nanos) -> Option<(Arc<[Action]>, Option<AtPlace>)> {
        let found = |(mask, of): (&Mask, &mut BTreeMap<Key, Cached>)| {
            let cached = of.get_mut(&masked(key, mask))?;
            cached.used = now;
            Some((Arc::clone(&cached.actions), cached.rule.clone()))
        };
        self.cache.iter_mut().find_map(found)
    }

    fn say(&mut self, message: &Message) {
        // A controller that does not read loses what has no room, as with a real one.
        let _no_room = self.session.send(message);
    }

    fn carry_out(&mut self, xid: u32, message: Message, now: Nanos) {
        for number in 0..self.faults.packet_in_flood {
            self.say(&Message::PacketIn(PacketIn {
                total_bytes: 60,
                reason: PacketInReason::NoMatch,
                table: 0,
                cookie: number,
                context: Match::new([Field::in_port(1)]),
                data: vec![number as u8; 60],
            }));
        }
        if self.happens(self.faults.garbage_one_in) {
            let body = (0..32).map(|_| self.below(256) as u8).collect();
            let kind = self.below(40) as u8;
            self.say(&Message::Other { kind, body });
        }
        let answer = match message {
            Message::FeaturesRequest => Message::FeaturesReply(Features {
                datapath: 1,
                tables: 254,
                ..Features::default()
            }),
            Message::BarrierRequest => Message::BarrierReply,
            Message::FlowMod(flow) => match self.change(flow) {
                Ok(()) => return,
                Err(refusal) => refused(refusal),
            },
            Message::BundleControl(_) | Message::BundleAdd { .. } if self.faults.knows_no_bundles => {
                refused((ErrorMessage::BAD_REQUEST, 1))
            }
            Message::BundleControl(control) => match self.step_bundle(control) {
                Ok(done) => done,
                Err(refusal) => refused(refusal),
            },
            Message::BundleAdd { bundle, message, .. } => match (self.bundles.get_mut(&bundle), *message) {
                (Some(of), Message::FlowMod(flow)) => return of.push((xid, flow)),
                _ => refused((ErrorMessage::BUNDLE_FAILED, 2)),
            },
            // What Open vSwitch is asked for in a message of its own: to forget the connections of the zone at its end.
            Message::Other { body, .. } => {
                let forgotten = body.last_chunk::<2>().map(|zone| u16::from_be_bytes(*zone));
                self.marks.retain(|(zone, _), _| Some(*zone) != forgotten);
                return;
            }
            Message::PacketOut(out) => {
                self.packet_out(&out, now);
                return;
            }
            Message::MultipartRequest(MultipartRequest::Flows(filter)) => {
                let all = (self.rules.values().flat_map(HashMap::values))
                    .filter(|rule| (rule.flow.cookie ^ filter.cookie) & filter.cookie_mask == 0);
                let flows: Vec<FlowStats> = all.map(shown).collect();
                // As many as surely fit a message.
                let mut parts = flows.chunks(100).peekable();
                if parts.peek().is_none() {
                    let reply = MultipartReply::Flows(Vec::new());
                    let _no_room = self
                        .session
                        .answer(xid, &Message::MultipartReply { more: false, reply });
                }
                while let Some(part) = parts.next() {
                    let reply = MultipartReply::Flows(part.to_vec());
                    let more = parts.peek().is_some();
                    let _no_room = self.session.answer(xid, &Message::MultipartReply { more, reply });
                }
                return;
            }
            _ => return,
        };
        let _no_room = self.session.answer(xid, &answer);
    }

    // Rules.

    /// A bundle is carried out as a whole, or not at all. A rule that it deletes makes no place for one that it adds.
    fn step_bundle(&mut self, control: BundleControl) -> Result<Message, Refusal> {
        let answered = |step| Ok(Message::BundleControl(BundleControl { step, ..control }));
        match control.step {
            BundleStep::Open => {
                self.bundles.insert(control.bundle, Vec::new());
                answered(BundleStep::OpenDone)
            }
            BundleStep::Commit => {
                // No bundle of that number (OFPBFC_BAD_ID), or one of its messages failed (OFPBFC_MSG_FAILED).
                let of = self.bundles.remove(&control.bundle);
                let of = of.ok_or((ErrorMessage::BUNDLE_FAILED, 2))?;
                let mut more = 0;
                for (xid, flow) in &of {
                    match self.may_change(flow, more) {
                        Ok(rules) => more += rules,
                        Err(refusal) => {
                            let _no_room = self.session.answer(*xid, &refused(refusal));
                            return Err((ErrorMessage::BUNDLE_FAILED, 13));
                        }
                    }
                }
                of.into_iter().for_each(|(_, flow)| self.carry_out_change(flow));
                answered(BundleStep::CommitDone)
            }
            _ => Err((ErrorMessage::BUNDLE_FAILED, 6)),
        }
    }

    fn change(&mut self, flow: FlowMod) -> Result<(), Refusal> {
        self.may_change(&flow, 0)?;
        self.carry_out_change(flow);
        Ok(())
    }

    /// Whether it takes that change after it has `more` rules, and how many it has more then.
    fn may_change(&mut self, flow: &FlowMod, more: usize) -> Result<usize, Refusal> {
        match flow.command {
            FlowCommand::Add => {
                let of_place = self.rules.get(&place(flow));
                let is_new = !of_place.is_some_and(|of| of.contains_key(&flow.matches));
                if self.happens(self.faults.refuse_one_in) && is_new {
                    return Err((ErrorMessage::FLOW_MOD_FAILED, 0));
                }
                if is_new && self.rule_count + more >= self.faults.rule_limit {
                    return Err((ErrorMessage::FLOW_MOD_FAILED, ErrorMessage::TABLE_FULL));
                }
                Ok(usize::from(is_new))
            }
            FlowCommand::DeleteStrict => Ok(0),
            FlowCommand::Modify | FlowCommand::ModifyStrict | FlowCommand::Delete => {
                Err((ErrorMessage::BAD_REQUEST, 0))
            }
        }
    }

    fn carry_out_change(&mut self, flow: FlowMod) {
        match flow.command {
            FlowCommand::Add => {
                let place = place(&flow);
                let rule = Rule {
                    flow: flow.clone(),
                    packets: 0,
                    bytes: 0,
                    shown: (0, 0),
                };
                let before = self.rules.entry(place).or_default().insert(flow.matches, rule);
                self.rule_count += usize::from(before.is_none());
                self.changed();
            }
            FlowCommand::DeleteStrict => {
                let has_cookie = |rule: &Rule| (rule.flow.cookie ^ flow.cookie) & flow.cookie_mask == 0;
                let (of, priority, shape) = place(&flow);
                let is_meant = |place: &&Place| {
                    (of == ALL_TABLES || place.0 == of) && (place.1, &place.2) == (priority, &shape)
                };
                let places: Vec<Place> = self.rules.keys().filter(is_meant).cloned().collect();
                for place in places {
                    let rule = self.rules.get(&place).and_then(|of| of.get(&flow.matches));
                    if rule.is_some_and(has_cookie) {
                        self.delete(&place, &flow.matches, FlowRemovedReason::Deleted);
                    }
                }
            }
            // It refuses them.
            FlowCommand::Modify | FlowCommand::ModifyStrict | FlowCommand::Delete => {}
        }
    }

    fn changed(&mut self) {
        self.version += 1;
        self.is_stale = true;
    }

    fn delete(&mut self, place: &Place, matches: &Match, reason: FlowRemovedReason) {
        let Some(rule) = self.rules.get_mut(place).and_then(|of| of.remove(matches)) else {
            return;
        };
        if self.rules.get(place).is_some_and(HashMap::is_empty) {
            self.rules.remove(place);
        }
        self.rule_count -= 1;
        self.changed();
        if rule.flow.flags.0 & FlowFlags::SEND_REMOVED.0 != 0 {
            self.say(&Message::FlowRemoved(FlowRemoved {
                cookie: rule.flow.cookie,
                priority: rule.flow.priority,
                reason,
                table: rule.flow.table,
                duration_ns: 0,
                idle_timeout_s: 0,
                hard_timeout_s: 0,
                packets: rule.packets,
                bytes: rule.bytes,
                matches: matches.clone(),
            }));
        }
    }

    /// What the rules say now about packets with these fields.
    fn decide(&self, packet: &Key, used: Nanos) -> Cached {
        let (table, key) = packet;
        // What other fields rest on is always looked at.
        let basic = [
            FieldKind::IN_PORT,
            FieldKind::ETH_TYPE,
            FieldKind::IP_PROTO,
            FieldKind::VLAN_VID,
        ];
        let mut mask = Mask::new();
        for field in key.fields().iter().filter(|field| basic.contains(&field.kind())) {
            mask.insert(field.kind(), vec![0xff; field.value().len()]);
        }
        for (place, rules) in self.rules.iter().filter(|(place, _)| place.0 == *table) {
            let (.., shape) = place;
            let part = shape.iter().map(|(kind, mask)| {
                let field = key.get(*kind)?;
                let exact = Field::new(*kind, field.value());
                Some(match mask {
                    Some(mask) => exact.masked(mask),
                    None => exact,
                })
            });
            let Some(part) = part.collect::<Option<Vec<Field>>>() else {
                continue;
            };
            for field in &part {
                let bits = mask
                    .entry(field.kind())
                    .or_insert_with(|| vec![0; field.value().len()]);
                for (index, bits) in bits.iter_mut().enumerate() {
                    *bits |= field
                        .mask()
                        .map_or(0xff, |mask| mask.get(index).copied().unwrap_or_default());
                }
            }
            let part = Match::new(part);
            if let Some(rule) = rules.get(&part) {
                return Cached {
                    packet: packet.clone(),
                    mask,
                    actions: actions(&rule.flow.instructions),
                    rule: Some((place.clone(), part)),
                    used,
                };
            }
        }
        Cached {
            packet: packet.clone(),
            mask,
            actions: Arc::new([]),
            rule: None,
            used,
        }
    }

    // Packets.

    /// A frame comes in by a port.
    pub fn packet(&mut self, in_port: u32, frame: &[u8], now: Nanos) {
        self.look_up((0, fields(in_port, frame)), frame, in_port, now);
    }

    fn look_up(&mut self, key: Key, frame: &[u8], in_port: u32, now: Nanos) {
        let (actions, rule) = match self.cached(&key, now) {
            Some(cached) => cached,
            None => {
                let decided = self.decide(&key, now);
                let common = decided.key();
                if !self.entering.iter().any(|(.., of)| of.key() == common) {
                    let last = self.entering.back().map_or(0, |(at, ..)| at.0);
                    let at = Nanos((now.0 + self.below(self.faults.round.0 / 2 + 1)).max(last));
                    self.entering.push_back((at, self.version, decided.clone()));
                }
                (decided.actions, decided.rule)
            }
        };
        if let Some((place, matches)) = &rule
            && let Some(rule) = self.rules.get_mut(place).and_then(|of| of.get_mut(matches))
        {
            rule.packets += 1;
            rule.bytes += frame.len() as u64;
        }
        if actions.is_empty() {
            self.dropped += 1;
        }
        self.execute(&actions, frame, in_port, now);
    }

    fn packet_out(&mut self, out: &PacketOut, now: Nanos) {
        self.execute(&out.actions, &out.data, out.in_port, now);
    }

    fn execute(&mut self, actions: &[Action], frame: &[u8], in_port: u32, now: Nanos) {
        let mut frame = frame.to_vec();
        for action in actions {
            match action {
                Action::Output { port: to, .. } if *to == port::CONTROLLER => {
                    self.say(&Message::PacketIn(PacketIn {
                        total_bytes: frame.len() as u16,
                        reason: PacketInReason::Action,
                        table: 0,
                        cookie: 0,
                        context: Match::new([Field::in_port(in_port)]),
                        data: frame.clone(),
                    }));
                }
                Action::Output { port: to, .. } => {
                    let to = if *to == port::IN_PORT { in_port } else { *to };
                    self.put(to, frame.clone(), now);
                }
                Action::PushVlan(kind) => {
                    let [high, low] = kind.to_be_bytes();
                    if frame.len() >= 12 {
                        frame.splice(12..12, [high, low, 0, 0]);
                    }
                }
                Action::PopVlan if frame.len() >= 16 => {
                    frame.drain(12..16);
                }
                Action::SetField(field) => {
                    if let Some([high, low]) = frame.get_mut(14..16).and_then(|at| at.first_chunk_mut()) {
                        match (field.kind(), field.value()) {
                            (FieldKind::VLAN_VID, [to_high, to_low]) => {
                                *high = *high & 0xf0 | to_high & 0x0f;
                                *low = *to_low;
                            }
                            (FieldKind::VLAN_PCP, [to]) => *high = *high & 0x1f | to << 5,
                            _ => {}
                        }
                    }
                }
                Action::ConnectionTracking(of) => self.track(of, &frame, in_port, now),
                _ => {}
            }
        }
    }

    /// Both directions of a connection are one.
    fn track(&mut self, of: &ConnectionTracking, frame: &[u8], in_port: u32, now: Nanos) {
        let Parsed::Flow(info) = parse(frame) else { return };
        if of.commit {
            let marks = of.actions.iter().filter_map(|action| match action {
                Action::SetField(mark) => Some(*mark),
                _ => None,
            });
            self.marks.extend(marks.map(|mark| ((of.zone, info.key), mark)));
        }
        if let Some(table) = of.table {
            let none = Field::u32(FieldKind::CT_MARK, 0);
            let mark = self.marks.get(&(of.zone, info.key)).copied().unwrap_or(none);
            let known = fields(in_port, frame);
            let key = Match::new(known.fields().iter().copied().chain([mark]));
            self.look_up((table, key), frame, in_port, now);
        }
    }

    fn put(&mut self, to: u32, frame: Vec<u8>, now: Nanos) {
        let (shortest, longest) = self.faults.port_delay;
        let delay = shortest.0 + self.below(longest.0.saturating_sub(shortest.0) + 1);
        let line = self.lines.entry(to).or_default();
        let last = line.back().map_or(0, |(at, _)| at.0);
        line.push_back((Nanos((now.0 + delay).max(last)), frame));
    }

    /// What has arrived at the other ends of its ports, in order within each.
    pub fn delivered(&mut self, now: Nanos) -> Vec<Delivered> {
        let mut delivered = Vec::new();
        for (port, line) in &mut self.lines {
            while line.front().is_some_and(|(at, _)| *at <= now) {
                if let Some((_, frame)) = line.pop_front() {
                    delivered.push(Delivered { port: *port, frame });
                }
            }
        }
        delivered
    }

    /// Whether nothing is under way.
    pub fn is_quiet(&self) -> bool {
        self.control.is_empty() && self.lines.values().all(VecDeque::is_empty)
    }
}

/// The bits of a packet that a mask names.
fn masked((table, packet): &Key, mask: &Mask) -> Key {
    let fields = packet.fields().iter();
    let named = fields
        .filter_map(|field| Some(Field::new(field.kind(), field.value()).masked(mask.get(&field.kind())?)));
    (*table, Match::new(named))
}

/// Whether a mask names no bit that the other one does not.
fn is_within(mask: &Mask, other: &Mask) -> bool {
    mask.iter().all(|(kind, bits)| {
        let theirs = other.get(kind);
        theirs.is_some_and(|theirs| bits.iter().zip(theirs).all(|(bits, theirs)| bits & !theirs == 0))
    })
}

fn place(flow: &FlowMod) -> Place {
    let fields = flow.matches.fields().iter();
    let shape = fields.map(|field| (field.kind(), field.mask().map(<[u8]>::to_vec)));
    (flow.table, Reverse(flow.priority), shape.collect())
}

fn refused((kind, code): Refusal) -> Message {
    Message::Error(ErrorMessage {
        kind,
        code,
        data: Vec::new(),
    })
}

fn actions(instructions: &[Instruction]) -> Arc<[Action]> {
    let applied = instructions.iter().filter_map(|instruction| match instruction {
        Instruction::ApplyActions(actions) => Some(actions.clone()),
        _ => None,
    });
    applied.flatten().collect()
}

fn shown(rule: &Rule) -> FlowStats {
    FlowStats {
        table: rule.flow.table,
        priority: rule.flow.priority,
        flags: rule.flow.flags.0,
        cookie: rule.flow.cookie,
        packets: rule.shown.0,
        bytes: rule.shown.1,
        matches: rule.flow.matches.clone(),
        instructions: rule.flow.instructions.clone(),
        ..FlowStats::default()
    }
}

/// Every field of a frame that a rule can match here.
fn fields(in_port: u32, frame: &[u8]) -> Match {
    let mut fields = vec![Field::in_port(in_port)];
    let two = |at: usize| frame.get(at..).and_then(|rest| rest.first_chunk::<2>()).copied();
    let word = |at: usize| two(at).map_or(0, u16::from_be_bytes);
    if word(12) == 0x8100 {
        fields.push(Field::vlan(word(14)));
        fields.push(Field::new(FieldKind::VLAN_PCP, &[(word(14) >> 13) as u8]));
    } else {
        fields.push(Field::no_vlan());
    }
    if let Parsed::Flow(info) = parse(frame) {
        let tuple = info.key.tuple(info.direction);
        fields.push(Field::eth_type(match info.key {
            FlowKey::V4(_) => 0x0800,
            FlowKey::V6(_) => 0x86dd,
        }));
        fields.push(Field::ip_proto(info.protocol));
        fields.push(Field::source(tuple.src));
        fields.push(Field::destination(tuple.dst));
        let ports = match info.protocol {
            model::protocol::TCP => Some((FieldKind::TCP_SRC, FieldKind::TCP_DST)),
            model::protocol::UDP => Some((FieldKind::UDP_SRC, FieldKind::UDP_DST)),
            model::protocol::SCTP => Some((FieldKind::SCTP_SRC, FieldKind::SCTP_DST)),
            _ => None,
        };
        if let Some((source, destination)) = ports {
            fields.push(Field::u16(source, tuple.src_port));
            fields.push(Field::u16(destination, tuple.dst_port));
        }
    } else {
        let behind_tag = if word(12) == 0x8100 { 4 } else { 0 };
        fields.push(Field::eth_type(word(12 + behind_tag)));
    }
    Match::new(fields)
}
