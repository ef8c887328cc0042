//! The writer of rules beside a worker: a thread that decides which flows get one, writes and removes them. The worker
//! opens and shuts them (`worker/paths.rs`).
//!
//! A rule's way: a drawn flow is worth one ([`Promotion`]); both directions are written, shut; the worker opens them if the
//! pin is still there. When a rule is shut, by whomever, it is removed; after a grace period no CPU uses it any more, the
//! worker counts it for the last time, and its numbers are free.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use interfaces::{GATEWAY_MAC, Links, instance_mac};
use model::{FlowKey, Nanos, Slot, UplinkId};
use path_change::{Exit, FastPath, Way};
use promotion::{Kind, Prices, Promotion, Seen, Settings, Stay, Verdict};
use rtrb::{Consumer, Producer, RingBuffer};
use switch::{SwitchError, SwitchReading};

use super::path_told::Told;
use super::system;
use crate::ends::Ends;
use crate::worker::paths::{PathParts, RULES_PER_PERIOD};
use crate::worker::rules::{Drawn, Note, Order, Rule, entrance_of_slot, entrance_of_uplink, passages_of};

/// How often the thread looks, while something happens and else.
const STEP: Duration = Duration::from_millis(1);
const IDLE_STEP: Duration = Duration::from_millis(10);
/// How long after the last note something happens.
const BUSY_TIME: Nanos = Nanos::from_millis(50);
/// How long the fast path goes on without a word of this thread.
const ATTENDED: Nanos = Nanos::from_millis(250);
/// How often rules that are removed are waited for: it takes some milliseconds each time.
const SETTLE_INTERVAL: Nanos = Nanos::from_millis(10);
/// How often the neighbours of rules are compared.
const NEIGHBOUR_INTERVAL: Nanos = Nanos::from_millis(100);
/// What is told of where the programs are gone.
const PROGRAMS: &str = "the fast path";
/// How long a worker sleeps at most that has flows.
const LONGEST_TURN: Nanos = Nanos::from_millis(4);
/// What flows of an uplink are. Their clients are on this machine if the uplink's interface is one of a pair. Nothing is
/// encrypted on the way: what an instance encrypts itself costs the same on both paths.
const KINDS: [Kind; 2] = [
    Kind::new(path_costs::Scope::Across, false),
    Kind::new(path_costs::Scope::Local, false),
];
/// Rules that are looked at in a step.
const REVIEWS: usize = 1024;

/// A fast path beside the worker of a switch.
#[derive(Clone)]
pub struct FastConfig {
    /// What takes packets.
    pub path: Arc<dyn FastPath>,
    /// How flows are chosen.
    pub settings: Settings,
    /// What packets cost on both paths.
    pub prices: Prices,
}

impl fmt::Debug for FastConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FastConfig")
            .field("settings", &self.settings)
            .field("prices", &self.prices)
            .finish_non_exhaustive()
    }
}

/// The interfaces that the fast path has taken over.
pub(super) struct Doors {
    fast: Arc<dyn FastPath>,
    told: Arc<Told>,
    /// By entrance, the index of its interface; 0: none.
    ifindex: Vec<AtomicU32>,
    /// By uplink: whether its interface is one of a pair, so that its clients are on this machine.
    is_local: Vec<AtomicBool>,
}

impl Doors {
    fn enter(&self, interface: &str, entrance: u32, socket: BorrowedFd<'_>, is_way_out: bool) {
        let Some(place) = self.ifindex.get(entrance as usize) else {
            return;
        };
        match self.fast.enter(interface, entrance, socket, is_way_out) {
            Ok(index) => {
                place.store(index, Ordering::Release);
                self.told.works(clock::monotonic(), &at_interface(interface));
            }
            Err(error) => {
                place.store(0, Ordering::Release);
                self.told.fails(clock::monotonic(), &at_interface(interface), || {
                    format!("{error}: flows of this interface stay in the worker")
                });
            }
        }
    }

    /// An uplink has a socket, which no worker has yet.
    pub(super) fn enter_uplink(&self, uplink: UplinkId, interface: &str, socket: BorrowedFd<'_>) {
        if let Some(is_local) = self.is_local.get(uplink.index()) {
            let link = Links::new().and_then(|mut links| links.find(interface));
            is_local.store(link.is_ok_and(|of| of.is_veth), Ordering::Release);
        }
        self.enter(interface, entrance_of_uplink(uplink), socket, true);
    }

    /// An instance has a socket, which no worker has yet.
    pub(super) fn enter_instance(&self, slot: Slot, interface: &str, socket: BorrowedFd<'_>) {
        self.enter(interface, entrance_of_slot(slot), socket, false);
    }

    fn of(&self, entrance: u32) -> Option<u32> {
        let index = self.ifindex.get(entrance as usize)?.load(Ordering::Acquire);
        (index != 0).then_some(index)
    }

    /// What flows are that come in on an uplink.
    fn kind(&self, uplink: UplinkId) -> Kind {
        let is_local = self.is_local.get(uplink.index());
        KINDS[usize::from(is_local.is_some_and(|of| of.load(Ordering::Acquire)))]
    }
}

/// The writer of rules.
pub(super) struct Paths {
    pub(super) doors: Arc<Doors>,
    /// What it tells.
    pub(super) told: Arc<Told>,
    fast: Arc<dyn FastPath>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Paths {
    /// Starts it. `flood` is how many half-open connections of a service are a flood.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(super) fn start(
        config: &FastConfig,
        flood: u32,
        ends: &Arc<Ends>,
    ) -> Result<(Paths, PathParts), SwitchError> {
        let fast = Arc::clone(&config.path);
        // Pairs that are being removed are not free yet.
        let pairs = (2 * config.settings.rules + 64).min(fast.passages() as usize / 2);
        let (orders, worker_orders) = RingBuffer::new(4 * pairs);
        let (worker_notes, notes) = RingBuffer::new(4 * pairs);
        let entrances = UplinkId::LIMIT + Slot::LIMIT;
        let told = Arc::new(Told::new(config.settings.rules));
        let doors = Arc::new(Doors {
            fast: Arc::clone(&fast),
            told: Arc::clone(&told),
            ifindex: (0..entrances).map(|_| AtomicU32::new(0)).collect(),
            is_local: (0..UplinkId::LIMIT).map(|_| AtomicBool::new(false)).collect(),
        });
        let stop = Arc::new(AtomicBool::new(false));
        let wants_new = Arc::new(AtomicBool::new(false));
        let mut writer = Writer {
            fast: Arc::clone(&fast),
            doors: Arc::clone(&doors),
            ends: Arc::clone(ends),
            told: Arc::clone(&told),
            promotion: Promotion::new(config.settings, config.prices.clone()),
            pairs: (0..pairs).map(|_| None).collect(),
            free: (0..pairs as u16).rev().collect(),
            by_key: BTreeMap::new(),
            removed: Vec::new(),
            settled_at: Nanos::ZERO,
            compared_at: Nanos::ZERO,
            wants_new: Arc::clone(&wants_new),
            orders,
            notes,
        };
        let ends_it = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("inco-paths".to_owned())
            .spawn(move || {
                let mut busy_until = Nanos::ZERO;
                while !ends_it.load(Ordering::Acquire) {
                    let now = clock::monotonic();
                    writer.fast.attend((now + ATTENDED).0);
                    if writer.step(now) {
                        busy_until = now + BUSY_TIME;
                    }
                    std::thread::sleep(if now < busy_until { STEP } else { IDLE_STEP });
                }
                writer.fast.attend(0);
                writer.fast.settle();
            })
            .map_err(|e| system("starting the writer of rules", e))?;
        let parts = PathParts {
            fast: Arc::clone(&fast),
            rules: pairs,
            flood,
            window: config.settings.window,
            wants_new,
            orders: worker_orders,
            notes: worker_notes,
        };
        let paths = Paths {
            doors,
            told,
            fast,
            stop,
            thread: Some(thread),
        };
        Ok((paths, parts))
    }

    /// Ends it: the worker gets all packets from now on.
    pub(super) fn stop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
        self.fast.attend(0);
    }
}

impl Drop for Paths {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A flow with a rule, or whose rule is being removed.
struct Pair {
    key: FlowKey,
    ways: [Way; 2],
    uplink: UplinkId,
    client: IpAddr,
    mac: [u8; 6],
    /// What both paths had when it was promoted, and what its passages had.
    base: (u64, u64),
    counted: (u64, u64),
    is_shutting: bool,
    is_removed: bool,
}

struct Writer {
    fast: Arc<dyn FastPath>,
    doors: Arc<Doors>,
    ends: Arc<Ends>,
    told: Arc<Told>,
    promotion: Promotion<FlowKey>,
    pairs: Vec<Option<Pair>>,
    free: Vec<u16>,
    by_key: BTreeMap<FlowKey, u16>,
    /// Pairs whose rules are removed, and may still be in use.
    removed: Vec<u16>,
    settled_at: Nanos,
    compared_at: Nanos,
    /// Whether the worker is to ask about new flows.
    wants_new: Arc<AtomicBool>,
    orders: Producer<Order>,
    notes: Consumer<Note>,
}

impl Writer {
    /// Whether something happened.
    fn step(&mut self, now: Nanos) -> bool {
        let mut is_busy = false;
        while let Ok(note) = self.notes.pop() {
            is_busy = true;
            match note {
                Note::Drawn(drawn) => self.consider(now, &drawn),
                Note::Brought {
                    uplink,
                    packets,
                    bytes,
                } => self.promotion.brought(self.doors.kind(uplink), packets, bytes),
                Note::Shut(pair) => self.remove(pair),
                Note::Closed(pair) => {
                    if let Some(place) = self.pairs.get_mut(usize::from(pair)) {
                        *place = None;
                        self.free.push(pair);
                    }
                }
            }
        }
        self.review(now);
        let wants_new = !self.free.is_empty() && KINDS.iter().any(|kind| self.promotion.wants_new(*kind));
        self.wants_new.store(wants_new, Ordering::Relaxed);
        if now >= self.compared_at + NEIGHBOUR_INTERVAL {
            self.compared_at = now;
            self.compare_neighbours();
            self.repair(now);
        }
        if !self.removed.is_empty() && now >= self.settled_at + SETTLE_INTERVAL {
            self.fast.settle();
            self.settled_at = clock::monotonic();
            for pair in std::mem::take(&mut self.removed) {
                self.order(Order::Close(pair));
            }
        }
        is_busy || !self.removed.is_empty()
    }

    /// Puts programs back that others have taken away.
    fn repair(&self, now: Nanos) {
        let is_gone = match self.fast.repair() {
            Ok(is_gone) => is_gone.then(|| "they are attached again".to_owned()),
            Err(error) => Some(error.to_string()),
        };
        match is_gone {
            Some(reason) => self.told.fails(now, PROGRAMS, || {
                format!(
                    "its programs are gone from an interface, and the worker forwards all packets: {reason}"
                )
            }),
            None => self.told.works(now, PROGRAMS),
        }
    }

    /// There is room: a pair has three orders in its life, and the ring four times as many places as there are pairs.
    fn order(&mut self, order: Order) {
        if self.orders.push(order).is_err() {
            tracing::error!("an order for the worker found no room");
        }
    }

    fn consider(&mut self, now: Nanos, drawn: &Drawn) {
        if self.by_key.contains_key(&drawn.key) {
            return;
        }
        if self.free.is_empty() {
            // Rules that are being removed take the room.
            return self.told.stays(now, drawn.key, Stay::Rate, 0.0);
        }
        let seen = Seen {
            flow: drawn.key,
            hash: drawn.hash,
            kind: self.doors.kind(drawn.uplink),
            packets: drawn.packets,
            bytes: drawn.bytes,
            is_new: drawn.is_new,
            is_open: drawn.is_open,
        };
        match self.promotion.note(now, &seen, drawn.is_flooded) {
            Verdict::Stay(why) => {
                let threshold_ns = self.promotion.threshold_ns(seen.kind);
                return self.told.stays(now, drawn.key, why, threshold_ns);
            }
            Verdict::Promote => {}
            Verdict::Replace(other) => {
                if let Some(pair) = self.by_key.get(&other).copied() {
                    self.shut(pair);
                }
            }
        }
        if self.promote(drawn) {
            self.told.gets_rule(now, drawn.key, drawn.packets);
        } else {
            self.promotion.withdraw(drawn.key);
        }
    }

    /// Writes a flow's rules. Whether that could be done.
    fn promote(&mut self, drawn: &Drawn) -> bool {
        let tuple = drawn.key.tuple(drawn.inward);
        let entrances = [entrance_of_uplink(drawn.uplink), entrance_of_slot(drawn.slot)];
        let [Some(outside), Some(inside)] = entrances.map(|at| self.doors.of(at)) else {
            return false;
        };
        let neighbour = self.ends.find(drawn.uplink, tuple.src);
        let Some((mac, own)) = neighbour.zip(self.ends.mac(drawn.uplink)) else {
            return false;
        };
        let Some(number) = self.free.last().copied() else {
            return false;
        };
        let ways = [
            Way {
                entrance: entrances[0],
                src: tuple.src,
                dst: tuple.dst,
                ports: [tuple.src_port, tuple.dst_port],
                protocol: tuple.protocol,
                vlan: tuple.vlan,
            },
            Way {
                entrance: entrances[1],
                src: tuple.dst,
                dst: tuple.src,
                ports: [tuple.dst_port, tuple.src_port],
                protocol: tuple.protocol,
                vlan: 0,
            },
        ];
        let exits = [
            Exit {
                ifindex: inside,
                to_peer: true,
                macs: [instance_mac(drawn.slot), GATEWAY_MAC],
                from: Some(mac),
                vlan: 0,
            },
            Exit {
                ifindex: outside,
                to_peer: false,
                macs: [mac, own],
                from: None,
                vlan: tuple.vlan,
            },
        ];
        let passages = passages_of(number);
        for (at, ((way, exit), passage)) in ways.iter().zip(&exits).zip(passages).enumerate() {
            if let Err(error) = self.fast.insert(passage, way, exit) {
                tracing::debug!(%error, "a flow gets no rule");
                if at > 0 {
                    let _gone = self.fast.remove(&ways[0]);
                }
                return false;
            }
        }
        self.free.pop();
        self.by_key.insert(drawn.key, number);
        let counted = self.counted(number);
        if let Some(place) = self.pairs.get_mut(usize::from(number)) {
            *place = Some(Pair {
                key: drawn.key,
                ways,
                uplink: drawn.uplink,
                client: tuple.src,
                mac,
                base: (drawn.packets, drawn.bytes),
                counted,
                is_shutting: false,
                is_removed: false,
            });
        }
        self.order(Order::Open(Rule {
            pair: number,
            key: drawn.key,
            hash: drawn.hash,
            inward: drawn.inward,
            slot: drawn.slot,
            instance: drawn.instance,
            uplink: drawn.uplink,
        }));
        true
    }

    /// Packets and bytes of both passages of a pair, ever.
    fn counted(&self, pair: u16) -> (u64, u64) {
        let [to, back] = passages_of(pair).map(|passage| self.fast.counted(passage));
        (to.0.wrapping_add(back.0), to.1.wrapping_add(back.1))
    }

    /// Has the worker shut a rule.
    fn shut(&mut self, pair: u16) {
        if let Some(Some(of)) = self.pairs.get_mut(usize::from(pair))
            && !std::mem::replace(&mut of.is_shutting, true)
        {
            self.order(Order::Shut(pair));
        }
    }

    /// Removes a rule that is shut.
    fn remove(&mut self, pair: u16) {
        let Some(Some(of)) = self.pairs.get_mut(usize::from(pair)) else {
            return;
        };
        if std::mem::replace(&mut of.is_removed, true) {
            return;
        }
        of.is_shutting = true;
        self.promotion.withdraw(of.key);
        self.by_key.remove(&of.key);
        self.told.lost_rule(&of.key);
        for way in &of.ways {
            if let Err(error) = self.fast.remove(way) {
                tracing::debug!(%error, "a rule was gone");
            }
        }
        self.removed.push(pair);
    }

    fn review(&mut self, now: Nanos) {
        let mut due = Vec::new();
        self.promotion.due(now, REVIEWS, &mut due);
        for key in due {
            let Some(pair) = self.by_key.get(&key).copied() else {
                continue;
            };
            let counted = self.counted(pair);
            let Some(Some(of)) = self.pairs.get(usize::from(pair)) else {
                continue;
            };
            let packets = of.base.0 + counted.0.wrapping_sub(of.counted.0);
            let bytes = of.base.1 + counted.1.wrapping_sub(of.counted.1);
            if self.promotion.review(now, key, packets, bytes).is_some() {
                self.shut(pair);
            }
        }
    }

    /// Demotes flows whose replies would go to a neighbour that has another address by now.
    fn compare_neighbours(&mut self) {
        let others = self.by_key.values().copied().filter(|pair| {
            let of = self.pairs.get(usize::from(*pair)).and_then(Option::as_ref);
            of.is_some_and(|of| self.ends.find(of.uplink, of.client) != Some(of.mac))
        });
        for pair in others.collect::<Vec<_>>() {
            self.shut(pair);
        }
    }
}

/// What is told of an interface.
fn at_interface(interface: &str) -> String {
    format!("{PROGRAMS} at {interface}")
}

/// How old counts are, at most: what rules have taken is counted in turns of a few rules.
pub(super) fn age(reading: &SwitchReading) -> Nanos {
    let rules: u64 = reading.workers.iter().map(|of| of.fast_rules).sum();
    Nanos(LONGEST_TURN.0 * rules.div_ceil(RULES_PER_PERIOD as u64))
}
