//! A worker: one thread that owns its flows, its ports and its counters.
//!
//! [`Worker::turn`] is the whole step and a function of its inputs and `now`; [`Worker::run`] around it reads the
//! clock and sleeps. In the steady state a turn does not allocate, lock, log, make a system call or wait.
//!
//! Each stage is a type that owns its state. A packet goes through them in this order, and never back:
//! 1. [`ingress`]: a burst comes from an uplink or from another worker; its headers are parsed ([`parse`]).
//! 2. [`lookup`]: the flow table gives the instance that each packet's flow is pinned to.
//! 3. [`moves`]: packets of a flow that moves in order are held and released later. [`state_moves`] does so with the state
//!    of functions.
//! 4. [`set_up`]: a flow without an instance is scheduled and pinned.
//! 5. [`egress`]: the packet leaves for an instance ([`outbox`]), an uplink or another worker.
//!
//! [`returns`] joins them at egress with the packets that instances return; [`replies`] are those that return through an edge. In a chain of services ([`chain`]) these are
//! looked up for the next service, and set up there, as others are. [`housekeeping`] runs beside them.

mod blocks;
mod chain;
mod choice;
mod commands;
pub(crate) mod commit;
mod content;
pub(crate) mod context;
mod egress;
mod elephants;
mod emptying;
mod ends;
mod hand_over;
mod housekeeping;
mod ingress;
mod looks;
mod lookup;
mod moves;
mod new_flows;
pub(crate) mod outbox;
mod parse;
pub(crate) mod paths;
mod replies;
mod returns;
pub(crate) mod rules;
mod set_up;
mod sleep;
mod state_moves;
mod steering;
pub(crate) mod tap;
mod translated;
mod unknown;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::time::Duration;

use arc_swap::ArcSwap;
use flow_table::FlowTable;
use model::{DropReason, Nanos, Slot, WorkerId};
use rtrb::{Consumer, Producer};
use simd::Level;

use crate::counters::WorkerCounters;
use crate::ends::Ends;
use crate::frame::FrameMemory;
use crate::idle::{Idle, Rest, Waker};
use crate::message::{Command, Ending, HandOff, WorkerEvent};
use crate::plan::{LoadBoard, WorkerPlan};
use crate::port::MAX_RING_SLOTS;
use crate::shares::SharedPins;
use crate::table_memory::TableMemory;
use context::{Context, Ports, View};
use egress::{Egress, HandOffs, drop_handed};
use housekeeping::Housekeeping;
use ingress::Ingress;
use looks::Looks;
use lookup::Lookup;
use moves::Moves;
use parse::Parser;
use paths::Paths;
use returns::{Onward, Returns};
use set_up::SetUp;
use state_moves::StateMoves;
use tap::Tap;

pub use commit::CommitPage;
pub(crate) use outbox::OUTBOX_FRAMES;
pub use sleep::Sleep;
pub use unknown::HalfOpen;

/// Frames that one poll of a port takes: twice DPDK's customary burst, which halves the cost per burst.
pub const BURST_FRAMES: usize = packet::BURST;
/// Full bursts taken per turn from one uplink: 256 packets then share the fixed cost of a turn.
const BURSTS_PER_TURN: usize = 4;
/// After a burst with more new flows than this, an uplink gets no other burst in the same turn: a new flow costs as
/// much as many packets of known ones, and a flood on one uplink must not slow the others down.
const NEW_FLOWS_PER_TURN: u64 = BURST_FRAMES as u64 / 2;
/// How long a stopping worker waits for the others to stop, so that their last frames for it are counted.
const LEAVING_STEPS: u32 = 20_000;
/// How long a worker that ends may still forward what waits in it and in the others: some microseconds, unless one of
/// them does not get its CPU.
const FORWARD_REST_LIMIT: Nanos = Nanos::from_millis(200);
/// How often a packet changes its worker at most: to the one of its flow, to that of what it carries, to that of its
/// instance, and back.
const HOPS: usize = 5;
/// Interval of the checks for that.
const LEAVING_STEP: Duration = Duration::from_micros(50);
/// Maximum number of bursts taken from a peer that has closed: as many as the largest ring holds.
const DRAIN_BURSTS: usize = MAX_RING_SLOTS / BURST_FRAMES;

/// The parts of a worker. Everything is allocated here.
pub struct WorkerParts<M: FrameMemory> {
    /// Which worker.
    pub id: WorkerId,
    /// Its frames.
    pub memory: M,
    /// Its flow table. All workers have the same hasher.
    pub table: FlowTable<TableMemory>,
    /// Secret of the fragment tracker's own hash.
    pub fragment_key: [u64; 2],
    /// The published plan.
    pub plan: Arc<ArcSwap<WorkerPlan>>,
    /// The published loads.
    pub loads: Arc<LoadBoard>,
    /// The pins that flows share, once a service has such flows.
    pub shares: SharedPins,
    /// How many connections of a service may be half open.
    pub half_open: HalfOpen,
    /// What is known of instances that end connections.
    pub ends: Arc<Ends>,
    /// Its counters.
    pub counters: Arc<WorkerCounters>,
    /// Where it notes what it commits, where somebody keeps that for the next run.
    pub commit: Option<CommitPage>,
    /// Commands of the control plane.
    pub commands: Consumer<Command<M>>,
    /// Events for the control plane.
    pub events: Producer<WorkerEvent<M>>,
    /// All workers.
    pub peers: Peers<M::Frame>,
    /// Its sleep and wake-up.
    pub sleep: Sleep,
}

/// The connections of a worker with the others. Each list has an entry for each worker, empty at its own.
pub struct Peers<F> {
    /// Rings towards the others.
    pub to: Vec<Option<Producer<HandOff<F>>>>,
    /// Rings from the others.
    pub from: Vec<Option<Consumer<HandOff<F>>>>,
    /// Wakes the others.
    pub wakers: Vec<Option<Arc<Waker>>>,
    /// Steps towards the end, shared by all workers. Each adds one when it receives nothing more, one for each of
    /// [`HOPS`], and one when it sends nothing more to others.
    pub leaving: Arc<AtomicUsize>,
}

/// One flow-pinning worker.
pub struct Worker<M: FrameMemory> {
    cx: Context<M>,
    parser: Parser,
    ingress: Ingress<M>,
    lookup: Lookup,
    moves: Box<Moves<M::Frame>>,
    state_moves: Box<StateMoves<M::Frame>>,
    set_up: SetUp,
    looks: Looks,
    egress: Egress<M>,
    returns: Returns<M>,
    housekeeping: Housekeeping,
    commands: Consumer<Command<M>>,
    sleep: Sleep,
    leaving: Arc<AtomicUsize>,
    ending: Option<Ending>,
}

impl<M: FrameMemory> Worker<M> {
    /// A worker of these parts, without ports. Commands attach them.
    pub fn new(parts: WorkerParts<M>) -> Worker<M> {
        let config = parts.table.config();
        let flow_limit = config.ipv4_flows + config.ipv6_flows;
        parts.counters.figures.flow_limit.set(flow_limit as u64);
        let peers = parts.peers;
        Worker {
            cx: Context {
                id: parts.id,
                workers: peers.to.len(),
                now: Nanos::ZERO,
                hasher: *parts.table.hasher(),
                level: Level::detect(),
                memory: parts.memory,
                counters: parts.counters,
                ends: Arc::clone(&parts.ends),
                ports: Ports::new(),
                view: View::new(&parts.plan),
                events: parts.events,
                tap: Tap::new(),
                said: Vec::with_capacity(context::MESSAGES_LIMIT),
                paths: None,
            },
            parser: Parser::new(),
            ingress: Ingress::new(parts.fragment_key, peers.from),
            lookup: Lookup::new(parts.table),
            moves: Box::new(Moves::new()),
            state_moves: Box::new(StateMoves::new()),
            set_up: SetUp::new(parts.loads, parts.shares.0, parts.half_open),
            looks: Looks::new(parts.ends.tunnels().edges().is_some()),
            egress: Egress::new(HandOffs::new(peers.to, peers.wakers), parts.commit),
            returns: Returns::new(),
            housekeeping: Housekeeping::new(),
            commands: parts.commands,
            sleep: parts.sleep,
            leaving: peers.leaving,
            ending: None,
        }
    }

    /// The same, beside a fast path if there is one.
    pub(crate) fn beside(mut self, paths: Option<Box<Paths>>) -> Worker<M> {
        self.cx.paths = paths;
        self
    }

    /// One step: commands, plan, every port once, housekeeping. Returns how many packets were moved.
    pub fn turn(&mut self, now: Nanos) -> usize {
        self.cx.now = now;
        // Commands come before the plan: what is published before a command is sent is then in force when the
        // command is carried out, and no flow is pinned by an older plan after it.
        self.take_commands();
        self.load_plan();
        let received = self.poll_uplinks();
        let moved = received + self.forward();
        self.end_turn(moved);
        moved
    }

    /// The part of a turn after the uplinks.
    fn forward(&mut self) -> usize {
        let mut moved = self.poll_peers();
        moved += self.poll_instances();
        if !self.moves.is_empty() {
            self.release_moves();
        }
        let moves = &self.state_moves;
        if moves.is_active() || moves.is_due(self.cx.now) || !self.cx.said.is_empty() {
            self.advance_state_moves();
        }
        self.housekeeping
            .expire(&mut self.lookup, &mut self.ingress, &self.set_up, &mut self.cx);
        self.continue_sweep();
        self.ask_neighbours();
        if self.cx.paths.is_some() {
            self.commit_with_paths();
        } else {
            self.egress.flush(&mut self.cx);
        }
        moved
    }

    /// The end of a turn beside a fast path: its rules are looked at, and what is done is marked.
    fn commit_with_paths(&mut self) {
        if let Some((paths, with)) = self.cx.paths() {
            paths.turn(&mut self.lookup.table, &with);
        }
        self.egress.outboxes.flush(&mut self.cx);
        let Context {
            paths,
            ports,
            view,
            now,
            ..
        } = &mut self.cx;
        if let Some(paths) = paths {
            paths.mark(*now, ports, &mut self.egress, |slot| {
                view.routes[slot].first_uplink()
            });
        }
        self.egress.flush(&mut self.cx);
        let Context { paths, ports, .. } = &mut self.cx;
        if let Some(paths) = paths {
            paths.committed(ports);
        }
    }

    /// Turns until it is told to stop. `clock` gives monotonic time.
    pub fn run(mut self, clock: impl Fn() -> Nanos) {
        let _registration = M::register_thread();
        let mut started = clock();
        while self.ending.is_none() {
            let moved = self.turn(started);
            let ended = clock();
            let span = ended.since(started).0;
            let figures = &self.cx.counters.figures;
            figures.longest_gap_ns.raise(span);
            figures.awake_ns.add(span);
            if moved > 0 {
                figures.busy_ns.add(span);
                self.sleep.ring(self.cx.id, started, figures.received.get());
            }
            let rest = match self.sleep.rest(moved, ended) {
                // Work that remains for the next turn must not wait for the end of a sleep.
                _ if self.has_work() => Rest::None,
                Rest::Wait if self.housekeeping.dump.is_some() => Rest::Pause,
                rest => rest,
            };
            started = match rest {
                Rest::None => ended,
                Rest::Pause => {
                    Idle::pause();
                    clock()
                }
                Rest::Wait => {
                    self.wait();
                    clock()
                }
            };
        }
        self.give_state_moves_up();
        self.leaving.fetch_add(1, Ordering::AcqRel);
        let hops = match self.ending {
            Some(Ending::Forward) => self.forward_rest(&clock),
            _ => 0,
        };
        self.leaving.fetch_add(HOPS - hops, Ordering::AcqRel);
        self.shut_down();
    }

    /// Asks for the machines at the far ends of tunnels, if this worker has the uplink that carries them.
    #[inline]
    fn ask_neighbours(&mut self) {
        if let Some(end) = self.cx.ends.tunnels().only()
            && end.uplink.index() % self.cx.workers == self.cx.id.index()
            && self.housekeeping.is_asking(self.cx.now)
        {
            self.egress.ask_neighbours(&mut self.cx);
        }
    }

    /// Whether work remains for the next turn.
    fn has_work(&self) -> bool {
        self.housekeeping.is_behind()
            || !self.moves.is_empty()
            || self.state_moves.is_active()
            || self.cx.paths.as_ref().is_some_and(|paths| paths.has_work())
    }

    /// Takes nothing more from uplinks, and turns until nothing waits in a worker or on its way to one. Returns how
    /// many hops are complete, as [`Peers::leaving`] counts them.
    fn forward_rest(&mut self, clock: &impl Fn() -> Nanos) -> usize {
        let deadline = clock() + FORWARD_REST_LIMIT;
        let mut hops = 0;
        while hops < HOPS {
            self.cx.now = clock();
            // Checked before the rings: what the others sent up to then is in them.
            let all_sent = self.leaving.load(Ordering::Acquire) >= (1 + hops) * self.cx.workers;
            let moved = self.forward();
            if all_sent && moved == 0 && self.moves.is_empty() {
                self.leaving.fetch_add(1, Ordering::AcqRel);
                hops += 1;
            } else if self.cx.now >= deadline {
                break;
            }
        }
        hops
    }

    fn wait(&mut self) {
        let asks = self.cx.ends.tunnels().only().is_some();
        let Context { ports, view, .. } = &mut self.cx;
        let (commands, ingress) = (&self.commands, &self.ingress);
        let keeps = asks || self.lookup.table.flows() > 0 || ingress.fragments.next_deadline().is_some();
        self.sleep.wait(ports, keeps, || {
            view.is_outdated() || !commands.is_empty() || ingress.in_rings() > 0
        });
    }

    /// Takes over a new plan or new loads.
    fn load_plan(&mut self) {
        let is_new = self.cx.view.is_outdated();
        if !is_new && !self.set_up.is_outdated() {
            return;
        }
        let cx = &mut self.cx;
        if is_new {
            cx.view.update(cx.id, cx.workers);
            self.set_up.follow(&cx.view.plan, cx.ends.tunnels());
            self.state_moves.follow(&cx.view.plan);
            for &slot in &cx.ports.attached {
                // After it has left the plan, its packets still leave by the same uplinks.
                if let (Some(instance), Some(slot_plan)) =
                    (&mut cx.ports.instances[slot], cx.view.plan.slot(slot))
                {
                    instance.note(slot_plan, &cx.view.plan);
                }
            }
            self.egress.lanes_are_stale = true;
            if let Some((paths, with)) = cx.paths() {
                paths.shut_all(&with, |rule| {
                    with.eligible(rule.slot, rule.uplink) == Some(rule.instance)
                });
            }
        }
        self.set_up
            .list_candidates(&cx.view.plan, &self.lookup.table, &cx.counters, cx.now);
    }

    /// The stage for returned packets, and where they go on.
    fn returned(&mut self) -> (&mut Returns<M>, Onward<'_, M>) {
        let onward = Onward {
            parser: &mut self.parser,
            ingress: &mut self.ingress,
            lookup: &mut self.lookup,
            set_up: &mut self.set_up,
            egress: &mut self.egress,
            cx: &mut self.cx,
        };
        (&mut self.returns, onward)
    }

    /// Passes on the packets that instances returned.
    fn poll_instances(&mut self) -> usize {
        let (returns, mut onward) = self.returned();
        returns.poll(&mut onward)
    }

    /// Passes on the packets that an instance returned before its removal.
    fn take_back(&mut self, slot: Slot) {
        let (returns, mut onward) = self.returned();
        returns.take_back(slot, &mut onward);
    }

    /// Sets the gauges at intervals, and acknowledges a new plan.
    fn end_turn(&mut self, moved: usize) {
        let cx = &mut self.cx;
        // Some commands load the plan, too.
        let is_new_plan = cx.view.generation.0 != cx.counters.figures.generation.get();
        if self.housekeeping.is_due(cx.now) || is_new_plan {
            let held = self.moves.len() + self.state_moves.len() + self.egress.outboxes.waiting();
            self.housekeeping.refresh(held, &self.ingress, &self.lookup, cx);
            Self::end_capture(cx);
        }
        let figures = &cx.counters.figures;
        figures.turns.add(1);
        if moved > 0 {
            figures.busy_turns.add(1);
        }
        // Only now: every packet that an older plan steered has left, and the gauges show the flows that it pinned.
        // A reader that reads this generation first and then the gauges gets gauges at least as new.
        if is_new_plan {
            fence(Ordering::Release);
            figures.generation.set(cx.view.generation.0);
        }
    }

    /// Shuts down: packets that are still here, or come from a worker that has not shut down yet, count as dropped.
    /// Ports and memory are freed with the worker.
    fn shut_down(mut self) {
        while let Some((frame, _)) = self.ingress.fragments.drain() {
            self.cx.discard(frame, DropReason::Shutdown);
        }
        while let Some(frame) = self.moves.drain().or_else(|| self.state_moves.drain()) {
            self.cx.discard(frame, DropReason::Shutdown);
        }
        self.egress.flush(&mut self.cx);
        if let Some((paths, with)) = self.cx.paths() {
            paths.count_all(&mut self.lookup.table, &with);
        }
        for &slot in &self.cx.ports.attached {
            if let Some(instance) = &mut self.cx.ports.instances[slot] {
                let outstanding = std::mem::take(&mut instance.outstanding);
                self.cx.counters.slots[slot].kept.add(outstanding);
                self.cx.counters.drop_packets(DropReason::Shutdown, outstanding);
            }
        }
        self.leaving.fetch_add(1, Ordering::AcqRel);
        for _ in 0..LEAVING_STEPS {
            // Checked before the rings: all frames of stopped workers are in them by then.
            let all_left = self.leaving.load(Ordering::Acquire) >= (2 + HOPS) * self.cx.workers;
            self.discard_handed_over();
            if all_left {
                break;
            }
            std::thread::sleep(LEAVING_STEP);
        }
        self.cx.counters.figures.held.set(0);
    }

    fn discard_handed_over(&mut self) {
        for peer in 0..self.ingress.peers() {
            loop {
                let mut arrived = self.ingress.take_handed_over(peer);
                let is_empty = arrived.is_empty();
                for handed in arrived.drain(..) {
                    drop_handed(handed, DropReason::Shutdown, &mut self.cx);
                }
                self.ingress.put_back(arrived);
                if is_empty {
                    break;
                }
            }
        }
    }
}
