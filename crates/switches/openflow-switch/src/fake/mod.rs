//! A switch for tests and simulations: OpenFlow on one side, a datapath that lags its rules on the other.
//!
//! Modelled after Open vSwitch: what is decided for a packet is kept in a cache, for all packets that agree in every
//! bit that was looked at, and when rules change the cache is gone over in rounds, each entry at some moment of the
//! round. Decisions that are under way when rules change enter the cache late. Everything that goes wrong with real
//! ones can be made to: see [`Faults`].
//!
//! It reads no clock, and has no socket: [`FakeNic::receive`] and [`FakeNic::output`] are its end of a connection.

mod control;
mod datapath;
mod rules;
mod steered;

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use control::refused;
use model::{FlowKey, Nanos, Random};
use openflow::{Action, Field, FieldKind, FlowMod, Limits, Match, Message, PortStats, Session, Side};
use rules::{is_within, masked};
pub use steered::SteeredNic;

/// What goes wrong, and how late everything is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Faults {
    /// Rules that it has place for.
    pub rule_limit: usize,
    /// One in so many new rules is refused; 0: none.
    pub refuse_one_in: u64,
    /// Whether it has no bundles.
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
    /// The shortest and the longest time from a port to its other end. Order is kept within a port, not between
    /// ports.
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
    random: Random,
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
    ports: BTreeMap<u32, PortStats>,
}

impl FakeNic {
    /// A switch without rules, at that time. Equal seeds do the same.
    pub fn new(faults: Faults, seed: u64, now: Nanos) -> FakeNic {
        FakeNic {
            faults,
            random: Random::new(seed),
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
            ports: BTreeMap::new(),
        }
    }

    /// From now on other things go wrong.
    pub fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
    }

    /// Everything is lost, as when the process ends and begins anew.
    pub fn restart(&mut self, now: Nanos) {
        *self = FakeNic {
            random: self.random,
            ..FakeNic::new(self.faults, 0, now)
        };
    }

    /// A number below `limit`, and 0 where that is 0.
    fn below(&mut self, limit: u64) -> u64 {
        self.random.bits().checked_rem(limit).unwrap_or_default()
    }

    fn happens(&mut self, one_in: u64) -> bool {
        one_in > 0 && self.below(one_in) == 0
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
}
