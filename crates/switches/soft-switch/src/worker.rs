//! A worker: one thread that owns its flows, its ports and its counters.
//!
//! [`Worker::turn`] is the whole step and a function of its inputs and `now`; [`Worker::run`] around it reads the
//! clock and sleeps. In the steady state a turn does not allocate, lock, log, make a system call or wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::time::Duration;
use std::vec::Drain;

use arc_swap::{ArcSwap, Cache};
use flow_table::{Burst, EntryIndex, FlowHasher, FlowRow, FlowTable, Lanes, LookupOutcome, Progress};
use model::{
    Direction, DropReason, Fallback, FlowKey, Generation, InstanceId, Nanos, ServiceId, Slot, TableFull,
    UplinkId, WorkerId,
};
use packet::{FragmentTracker, HeaderBurst, Lengths, Offer, PacketInfo, Parsed, TcpFlags};
use rtrb::{Consumer, Producer};
use scheduling::{Candidate, Candidates, Metric, NewFlow, PRIORITIES, Pick, Scheduler, Terms};
use simd::{Kernel, Level, Words};

use crate::counters::{SERVICE_LIMIT, SlotCounters, UPLINK_LIMIT, WorkerCounters};
use crate::dump::{DUMP_ENTRIES_PER_STEP, FlowDump, HeavyDump};
use crate::elephants::Elephants;
use crate::frame::{Frame, FrameMemory, Sizes};
use crate::idle::{Alarm, Idle, Rest, WakeSet, Waker};
use crate::instance::{InstancePorts, PORT_LIMIT, ReturnWay, is_probe};
use crate::message::{Command, Destination, HandOff, WorkerEvent};
use crate::moves::{Held, Moves};
use crate::plan::{LoadBoard, Plan, ServicePlan, SlotPlan};
use crate::port::{Port, Received};
use crate::record::PickRecord;
use crate::table_memory::TableMemory;

/// Frames that one look at a port takes: DPDK's customary burst, twice, which halves the cost per burst.
pub const BURST_FRAMES: usize = packet::BURST;
/// Frames that may wait for instances before all are sent: those of a turn. More are under way than a core's first cache holds, but
/// each instance that has some costs as much as many of them, and of 64 instances each has twice as many as with half of it.
pub(crate) const OUTBOX_FRAMES: usize = BURSTS_PER_TURN * BURST_FRAMES;
/// Instances for which frames may wait when a burst comes, else all are sent: where nearly each frame is another instance's,
/// waiting saves nothing.
const LANES_AT_ONCE: usize = BURST_FRAMES;
/// Entries of its table that a worker looks at per turn while pins are taken away: about 10 µs.
const SWEEP_ENTRIES_PER_TURN: usize = 2048;
/// Full bursts taken per turn from one uplink: what a turn costs beside packets is then shared by 256 of them.
const BURSTS_PER_TURN: usize = 4;
/// Of an uplink whose burst brought more new flows than this no other one is taken in the same turn: a new flow costs as much
/// as many packets of known ones, and a flood of them on one uplink is not to slow the others down.
const NEW_FLOWS_PER_TURN: u64 = BURST_FRAMES as u64 / 2;
/// Commands taken per turn: an upper bound on what a turn may spend on the control plane.
const COMMANDS_PER_TURN: usize = 8;
/// Expired flows removed per turn: as many as a turn's bursts can set up, so that this keeps up with any rate of it.
const EXPIRIES_PER_TURN: usize = BURSTS_PER_TURN * BURST_FRAMES;
/// How long a worker that leaves waits for the others to leave: what they still send to it is then counted.
const LEAVING_STEPS: u32 = 20_000;
/// The time between two looks at whether they have.
const LEAVING_STEP: Duration = Duration::from_micros(50);
/// Bursts that are taken at most from a peer that has gone: as many as the largest ring holds.
const DRAIN_BURSTS: usize = (1 << memif::MAX_LOG2_SLOTS) / BURST_FRAMES;
/// How often gauges of rings are refreshed and dumps go on when nothing else touches them.
const HOUSEKEEPING: Nanos = Nanos::from_millis(1);

/// What a worker is made of. Everything is allocated here.
pub struct WorkerParts<M: FrameMemory> {
    /// Which worker.
    pub id: WorkerId,
    /// How many there are.
    pub workers: usize,
    /// Its frames.
    pub memory: M,
    /// Its flow table.
    pub table: FlowTable<TableMemory>,
    /// The hash that all workers share.
    pub hasher: FlowHasher,
    /// Secret of the fragment tracker's own hash.
    pub fragment_key: [u64; 2],
    /// The published plan.
    pub plan: Arc<ArcSwap<Plan>>,
    /// The published loads.
    pub loads: Arc<LoadBoard>,
    /// Its counters.
    pub counters: Arc<WorkerCounters>,
    /// What the control plane asks.
    pub commands: Consumer<Command<M>>,
    /// What the control plane is told.
    pub events: Producer<WorkerEvent<M>>,
    /// Rings towards the other workers, by worker; `None` at its own place.
    pub to_peers: Vec<Option<Producer<HandOff<M::Frame>>>>,
    /// Rings from the other workers, by worker; `None` at its own place.
    pub from_peers: Vec<Option<Consumer<HandOff<M::Frame>>>>,
    /// Wakes it while it sleeps.
    pub waker: Arc<Waker>,
    /// Wakes the others, by worker.
    pub peer_wakers: Vec<Option<Arc<Waker>>>,
    /// The descriptors that wake it.
    pub wake_set: WakeSet,
    /// How it behaves when there is nothing to do.
    pub idle: Idle,
    /// Rung at the first packet after a quiet time.
    pub alarm: Arc<Alarm>,
    /// Workers that send nothing to others any more: all of them share it.
    pub leaving: Arc<AtomicUsize>,
}

/// One flow-pinning worker.
pub struct Worker<M: FrameMemory> {
    parts: WorkerParts<M>,
    published: Cache<Arc<ArcSwap<Plan>>, Arc<Plan>>,
    /// The plan of this turn. It does not change within one.
    plan: Arc<Plan>,
    generation: Generation,
    /// What the plan says of each slot, as packets need it.
    routes: Box<[Route]>,
    /// What flows pinned since loads were last published are expected to bring, by slot, in the service's metric.
    pinned: Box<[f32]>,
    load_epoch: u64,
    fragments: FragmentTracker<(M::Frame, UplinkId)>,
    moves: Box<Moves<M::Frame>>,
    /// Where flows that lost their pin are to go instead of where the scheduler would send them.
    destinations: Vec<(FlowKey, Slot)>,
    uplinks: [Option<Box<Port<M>>>; UPLINK_LIMIT],
    uplinks_touched: [bool; UPLINK_LIMIT],
    instances: Vec<Option<Box<InstancePorts<M>>>>,
    /// Slots with ports here, in the order of their attachment.
    attached: Vec<Slot>,
    /// Those of them that may give packets.
    givers: Vec<Slot>,
    services: Vec<ServiceState>,
    /// Received frames of the current burst.
    received: Vec<M::Frame>,
    /// Their headers, in the same places.
    headers: Box<HeaderBurst>,
    /// What the table needs of them, likewise.
    burst: Box<Burst>,
    /// Which instructions the steps of a burst may use.
    level: Level,
    /// What those are that are not plain, with their places and the hashes of their flows.
    unusual: Vec<(usize, Parsed, u64)>,
    /// Frames on their way to instances at home here, by slot and data port, until the next flush.
    outboxes: Box<[Outbox<M::Frame>]>,
    /// Outboxes with frames.
    touched: Box<Touched>,
    /// Frames in all outboxes.
    waiting: usize,
    /// Between which lengths these are.
    sizes: Sizes,
    /// Those of the current burst.
    burst_sizes: Sizes,
    /// By uplink: the outbox of each slot to which packets of known flows go without another look.
    lanes: Box<[Lanes]>,
    /// Whether what the lanes follow from has changed.
    lanes_are_stale: bool,
    /// Slots whose pins are being taken away, a part per turn.
    sweeps: Vec<Sweep>,
    dump: Option<Box<FlowDump>>,
    elephants: Box<Elephants>,
    /// Frames on their way to other workers, by worker, until a burst of them is there or the turn ends.
    leaving: Vec<Vec<HandOff<M::Frame>>>,
    /// Frames from other workers.
    arrived: Vec<HandOff<M::Frame>>,
    /// The workers that own the flows of the current burst, by place, where there is more than one.
    owners: [u8; BURST_FRAMES],
    /// Workers that were handed frames in this turn, a bit each.
    handed_to: u64,
    housekeeping_at: Nanos,
    /// Uplinks whose broken port has been reported, a bit each.
    broken_uplinks: u32,
    /// Packets, until now, for whose flow an instance was picked.
    set_ups: u64,
    /// Whether flows have expired that are still in the table.
    expiry_is_behind: bool,
    /// Whether a port's interrupt could not be watched: the clock wakes the worker for it.
    is_unwatched: bool,
    stopping: bool,
}

/// Frames for one data port of an instance, until the next flush. With many instances each is far from the processor: it is
/// one cache line.
#[repr(align(64))]
struct Outbox<F> {
    frames: Vec<F>,
    bytes: u64,
    /// How many of them, and of their bytes, have been counted as offered to their service already.
    counted: (u64, u64),
}

impl<F> Outbox<F> {
    const EMPTY: Outbox<F> = Outbox {
        frames: Vec::new(),
        bytes: 0,
        counted: (0, 0),
    };

    /// Puts a frame of so many bytes into it.
    #[inline(always)]
    fn put(&mut self, frame: F, bytes: u64) {
        self.bytes += bytes;
        if self.frames.len() < self.frames.capacity() {
            self.frames.push(frame);
        } else {
            self.put_beyond(frame);
        }
    }

    /// Apart, so that a loop over frames has no other call in it: an instance brings room for all that may wait.
    #[cold]
    #[inline(never)]
    fn put_beyond(&mut self, frame: F) {
        self.frames.push(frame);
    }
}

/// The outboxes with frames, in the order of their first one.
struct Touched {
    lanes: [u16; OUTBOX_FRAMES],
    /// Not more than there are frames in outboxes.
    count: usize,
}

impl Default for Touched {
    fn default() -> Touched {
        Touched {
            lanes: [0; OUTBOX_FRAMES],
            count: 0,
        }
    }
}

impl Touched {
    #[inline(always)]
    fn push(&mut self, lane: u16) {
        debug_assert!(self.count < OUTBOX_FRAMES, "more frames wait than may");
        self.lanes[self.count % OUTBOX_FRAMES] = lane;
        self.count += 1;
    }

    fn lanes(&self) -> &[u16] {
        self.lanes.get(..self.count).unwrap_or(&self.lanes)
    }

    /// Keeps those of which that is true.
    fn retain(&mut self, mut is_kept: impl FnMut(u16) -> bool) {
        let mut kept = 0;
        for at in 0..self.lanes().len() {
            let lane = self.lanes[at];
            if is_kept(lane) {
                self.lanes[kept] = lane;
                kept += 1;
            }
        }
        self.count = kept;
    }
}

/// Packets that are still to be counted as offered to a service.
struct Offered {
    service: ServiceId,
    packets: u64,
    bytes: u64,
}

impl Default for Offered {
    fn default() -> Offered {
        Offered {
            service: ServiceId(u16::MAX),
            packets: 0,
            bytes: 0,
        }
    }
}

impl Offered {
    /// Counts them.
    #[inline]
    fn count(&mut self, counters: &WorkerCounters) {
        if let Some(counters) = counters.services.get(self.service.index()) {
            counters.offered_packets.add(std::mem::take(&mut self.packets));
            counters.offered_bytes.add(std::mem::take(&mut self.bytes));
        }
    }
}

/// What a plan says of a slot, as packets need it.
#[derive(Clone, Copy)]
struct Route {
    /// Which instance has the slot.
    instance: InstanceId,
    /// Of which service.
    service: ServiceId,
    /// Uplinks of the service, one per data port; the second is the first where there is one.
    uplinks: [UplinkId; 2],
    /// The worker by which this one reaches it.
    home: WorkerId,
    /// Whether packets of flows that it has go to it.
    serves: bool,
}

impl Route {
    const NONE: Route = Route {
        instance: InstanceId(u32::MAX),
        service: ServiceId(u16::MAX),
        uplinks: [UplinkId(0); 2],
        home: WorkerId(0),
        serves: false,
    };

    /// The data port for a packet that came in on that uplink. One of the flow that came in elsewhere still reaches its
    /// instance, on the first port.
    fn port_of(&self, uplink: UplinkId) -> u8 {
        u8::from(uplink != self.uplinks[0] && uplink == self.uplinks[1])
    }
}

/// A slot whose pins are being taken away.
struct Sweep {
    slot: Slot,
    failed: bool,
    /// What to tell when it is done.
    then: Option<Removal>,
}

/// A removal whose answer waits for the end of its sweep.
struct Removal {
    /// Packets that the instance held here.
    outstanding: u64,
}

/// A service on this worker: its scheduler and the instances that take new flows.
struct ServiceState {
    id: ServiceId,
    scheduler: Scheduler,
    candidates: Candidates,
    /// What a new flow is expected to bring.
    expected: f32,
    /// Asked for: the next decision, written down.
    record: Option<Box<PickRecord>>,
}

/// Flows that were told where to go and have sent no packet since, at most: of more, one goes where the scheduler says.
const DESTINATIONS: usize = 64;

/// Where a packet goes after steering.
enum Verdict {
    Instance(Slot),
    /// Its flow is being moved, and packets before it are out.
    Hold,
    Fallback(Fallback),
    Drop(DropReason),
}

impl<M: FrameMemory> Worker<M> {
    /// A worker made of these parts. It has no ports yet; they come as commands.
    pub fn new(parts: WorkerParts<M>) -> Worker<M> {
        let mut published = Cache::new(Arc::clone(&parts.plan));
        let plan = Arc::clone(published.load());
        let fragments = FragmentTracker::new(parts.fragment_key);
        let config = parts.table.config();
        let flow_limit = config.ipv4_flows + config.ipv6_flows;
        let a_burst_for_each = || Vec::with_capacity(BURST_FRAMES);
        parts.counters.figures.flow_limit.set(flow_limit as u64);
        Worker {
            published,
            plan,
            routes: vec![Route::NONE; Slot::LIMIT].into_boxed_slice(),
            pinned: vec![0.0; Slot::LIMIT].into_boxed_slice(),
            generation: Generation(u64::MAX),
            load_epoch: u64::MAX,
            fragments,
            moves: Box::new(Moves::new()),
            destinations: Vec::with_capacity(DESTINATIONS),
            uplinks: std::array::from_fn(|_| None),
            uplinks_touched: [false; UPLINK_LIMIT],
            instances: (0..Slot::LIMIT).map(|_| None).collect(),
            attached: Vec::with_capacity(Slot::LIMIT),
            givers: Vec::with_capacity(Slot::LIMIT),
            services: Vec::with_capacity(SERVICE_LIMIT),
            received: Vec::with_capacity(BURST_FRAMES),
            headers: Box::default(),
            burst: Box::default(),
            level: Level::detect(),
            unusual: Vec::with_capacity(BURST_FRAMES),
            outboxes: (0..Slot::LIMIT * PORT_LIMIT).map(|_| Outbox::EMPTY).collect(),
            touched: Box::default(),
            waiting: 0,
            sizes: Sizes::NONE,
            burst_sizes: Sizes::NONE,
            lanes: (0..UPLINK_LIMIT).map(|_| Lanes::default()).collect(),
            lanes_are_stale: true,
            sweeps: Vec::with_capacity(Slot::LIMIT),
            dump: None,
            elephants: Box::new(Elephants::new(parts.hasher.key()[0])),
            leaving: parts.to_peers.iter().map(|_| a_burst_for_each()).collect(),
            arrived: Vec::with_capacity(BURST_FRAMES),
            owners: [0; BURST_FRAMES],
            handed_to: 0,
            housekeeping_at: Nanos::ZERO,
            broken_uplinks: 0,
            set_ups: 0,
            expiry_is_behind: false,
            is_unwatched: false,
            stopping: false,
            parts,
        }
    }

    /// One step: commands, plan, every port once, expiry. Returns how many packets were moved.
    pub fn turn(&mut self, now: Nanos) -> usize {
        // Commands come before the plan: what is published before a command is sent is then in force when the
        // command is carried out, and no flow is pinned by an older plan after it.
        self.take_commands(now);
        self.load_plan(now);
        // Some commands load the plan, too.
        let is_new_plan = self.generation.0 != self.parts.counters.figures.generation.get();
        let mut moved = 0;
        for uplink in 0..UPLINK_LIMIT {
            for _ in 0..BURSTS_PER_TURN {
                let set_ups = self.set_ups;
                let packets = self.poll_uplink(UplinkId(uplink as u8), now);
                moved += packets;
                if packets < BURST_FRAMES || self.set_ups - set_ups > NEW_FLOWS_PER_TURN {
                    break;
                }
            }
        }
        for peer in 0..self.parts.from_peers.len() {
            // As many as a peer may have handed over in a turn of its own.
            for _ in 0..BURSTS_PER_TURN {
                let packets = self.poll_peer(peer, now);
                moved += packets;
                if packets < BURST_FRAMES {
                    break;
                }
            }
        }
        moved += self.poll_instances(now);
        if !self.moves.is_empty() {
            self.go_on_with_moves(now);
        }
        self.expire(now);
        if !self.sweeps.is_empty() {
            self.go_on_with_sweep(0, SWEEP_ENTRIES_PER_TURN);
        }
        self.flush();
        if now >= self.housekeeping_at || is_new_plan {
            self.housekeeping_at = now + HOUSEKEEPING;
            self.keep_house(now);
        }
        let figures = &self.parts.counters.figures;
        figures.turns.add(1);
        if moved > 0 {
            figures.busy_turns.add(1);
        }
        // Only now: every packet that an older plan steered has left, and the gauges show the flows that it pinned.
        // Whoever reads this generation before the gauges reads gauges at least as new.
        if is_new_plan {
            fence(Ordering::Release);
            figures.generation.set(self.generation.0);
        }
        moved
    }

    /// Turns until it is told to stop. `clock` gives monotonic time.
    pub fn run(mut self, clock: impl Fn() -> Nanos) {
        let _registration = M::register_thread();
        let mut started = clock();
        while !self.stopping {
            let moved = self.turn(started);
            let ended = clock();
            let span = ended.since(started).0;
            let figures = &self.parts.counters.figures;
            figures.longest_gap_ns.raise(span);
            figures.awake_ns.add(span);
            if moved > 0 {
                figures.busy_ns.add(span);
            }
            if moved > 0 {
                if self.parts.idle.is_quiet(started) {
                    self.parts.alarm.ring();
                }
                self.parts.alarm.look(self.parts.id, figures.received.get());
            }
            let rest = match self.parts.idle.after(moved, ended) {
                // Work that goes on a part per turn is not left lying for a sleep.
                _ if self.expiry_is_behind || !self.sweeps.is_empty() || !self.moves.is_empty() => Rest::None,
                Rest::Wait if self.dump.is_some() => Rest::Pause,
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
        self.close();
    }

    /// Sleeps until a packet or a command comes, unless one is there already.
    fn wait(&mut self) {
        self.parts.waker.before_sleep();
        let mut something = self.published.load().generation != self.generation
            || !self.parts.commands.is_empty()
            || self
                .parts
                .from_peers
                .iter()
                .flatten()
                .any(|ring| !ring.is_empty());
        let mut must_be_polled = false;
        self.for_each_port(|port| {
            must_be_polled |= port.must_be_polled();
            if let Some(queue) = port.waits_on() {
                queue.set_interrupts(true);
                something |= queue.available() > 0;
            }
        });
        if !something {
            let keeps =
                self.parts.table.flows() > 0 || self.fragments.next_deadline().is_some() || self.is_unwatched;
            self.parts.wake_set.wait(must_be_polled, keeps);
        }
        self.for_each_port(|port| {
            if let Some(queue) = port.waits_on() {
                queue.set_interrupts(false);
            }
        });
        self.parts.waker.after_sleep();
    }

    fn for_each_port(&mut self, mut look: impl FnMut(&mut Port<M>)) {
        for port in self.uplinks.iter_mut().flatten() {
            look(port);
        }
        for slot in &self.attached {
            if let Some(Some(instance)) = self.instances.get_mut(slot.index()) {
                instance.ports().for_each(&mut look);
            }
        }
    }

    // ---- commands and plan ------------------------------------------------------------------------------------

    fn take_commands(&mut self, now: Nanos) {
        for _ in 0..COMMANDS_PER_TURN {
            // Commands are answered, some twice, and so are sweeps, a dump under way and a record of each service; each port
            // may break. Wait with commands until there is room for all that.
            let records = self.services.len();
            let needed = 3 + self.sweeps.len() + self.attached.len() + UPLINK_LIMIT + records;
            if self.parts.events.slots() < needed {
                return;
            }
            let Ok(command) = self.parts.commands.pop() else {
                return;
            };
            match command {
                Command::AttachInstance { slot, mut ports } => {
                    for port in ports.ports() {
                        if let Some(queue) = port.waits_on() {
                            // Not watched means woken by the clock, 4 ms later.
                            self.is_unwatched |= self.parts.wake_set.watch(queue.interrupt_fd()).is_err();
                        }
                    }
                    let plan = self.published.load();
                    if let Some(slot_plan) = plan.slot(slot) {
                        ports.note(slot_plan, plan);
                    }
                    for (port, room) in ports.rooms.iter_mut().enumerate() {
                        if let Some(outbox) = self.outboxes.get_mut(outbox_of(slot, port as u8)) {
                            outbox.frames = std::mem::take(room);
                        }
                    }
                    self.lanes_are_stale = true;
                    let gives = ports.ports().any(|port| port.gives());
                    if let Some(place) = self.instances.get_mut(slot.index()) {
                        if place.replace(ports).is_none() {
                            self.attached.push(slot);
                        }
                        self.givers.retain(|giver| *giver != slot);
                        if gives {
                            self.givers.push(slot);
                        }
                        self.tell(WorkerEvent::InstanceAttached { slot });
                    }
                }
                Command::RemoveInstance { slot, failed } => self.remove_instance(slot, failed),
                Command::FailInstance { slot } => {
                    self.take_back(slot);
                    self.givers.retain(|giver| *giver != slot);
                    // Out of this worker, before anyone moves one of its flows.
                    self.flush();
                    self.tell(WorkerEvent::InstanceFailed { slot });
                }
                Command::Probe { slot } => {
                    self.flush_instance(slot);
                    if let Some(Some(instance)) = self.instances.get_mut(slot.index()) {
                        instance.probe(&mut self.parts.memory);
                    }
                }
                Command::PurgeSlot { slot, failed } => self.sweep(Sweep {
                    slot,
                    failed,
                    then: None,
                }),
                Command::PurgeFlow { key } => {
                    let hash = self.parts.hasher.hash(&key);
                    match self.parts.table.lookup(&key, hash) {
                        // Its packets are counted on, so that it is known when all are back.
                        Some(entry) if self.is_relaxed(entry) => {
                            self.parts.table.set_pins(entry, [Slot::NONE; 2], now);
                        }
                        _ => {
                            self.parts.table.purge(&key, hash);
                        }
                    }
                }
                Command::MoveFlow { key, to } => {
                    let hash = self.parts.hasher.hash(&key);
                    if let Some(entry) = self.parts.table.lookup(&key, hash)
                        && self.is_relaxed(entry)
                    {
                        // Its next packet waits for those before it, as one that was purged.
                        self.parts.table.set_pins(entry, [Slot::NONE; 2], now);
                        if self.destinations.len() == DESTINATIONS {
                            self.destinations.swap_remove(0);
                        }
                        self.destinations.push((key, to));
                    }
                }
                Command::SetScheduler { service, scheduler } => {
                    // The plan that made the service may be newer than the last turn.
                    self.load_plan(now);
                    if let Some(state) = self.services.iter_mut().find(|s| s.id == service) {
                        state.scheduler = scheduler;
                    }
                    // The candidates are listed anew, on its terms.
                    self.load_epoch = u64::MAX;
                }
                Command::AttachUplink { uplink, mut port } => {
                    if let Some(queue) = port.waits_on() {
                        self.is_unwatched |= self.parts.wake_set.watch(queue.interrupt_fd()).is_err();
                    }
                    if let Some(place) = self.uplinks.get_mut(uplink.index()) {
                        *place = Some(port);
                    }
                    self.broken_uplinks &= !(1_u32.unbounded_shl(uplink.0.into()));
                    self.tell(WorkerEvent::UplinkAttached { uplink });
                }
                Command::DetachUplink { uplink } => {
                    self.drain_uplink(uplink, now);
                    let mut port = self.uplinks.get_mut(uplink.index()).and_then(Option::take);
                    if let Some(queue) = port.as_mut().and_then(|p| p.waits_on()) {
                        self.parts.wake_set.forget(queue.interrupt_fd());
                    }
                    self.tell(WorkerEvent::UplinkDetached { uplink, port });
                }
                Command::Dump(dump) => {
                    if let Some(unfinished) = self.dump.replace(dump) {
                        self.tell(WorkerEvent::Dumped(unfinished));
                    }
                }
                Command::DumpHeavy(mut dump) => {
                    let HeavyDump { filter, rows, .. } = &mut *dump;
                    let table = &self.parts.table;
                    self.elephants.list(table, now, |row| filter.matches(row), rows);
                    self.tell(WorkerEvent::DumpedHeavy(dump));
                }
                Command::Record(record) => {
                    self.load_plan(now);
                    let state = self.services.iter_mut().find(|s| s.id == record.service);
                    let back = match state {
                        Some(state) => state.record.replace(record),
                        None => Some(record),
                    };
                    if let Some(record) = back {
                        self.tell(WorkerEvent::Recorded(record));
                    }
                }
                Command::Stop => self.stopping = true,
            }
        }
    }

    /// Gives an event to the control plane. There is room: `take_commands` saw to it.
    fn tell(&mut self, event: WorkerEvent<M>) {
        if self.parts.events.push(event).is_err() {
            self.parts.counters.figures.events_lost.add(1);
        }
    }

    /// Takes what the uplink's peer had sent before it went: it was offered, so it is steered.
    fn drain_uplink(&mut self, uplink: UplinkId, now: Nanos) {
        // Steering needs the plan that is in force for the commands before this one.
        self.load_plan(now);
        for _ in 0..DRAIN_BURSTS {
            if self.poll_uplink(uplink, now) == 0 {
                break;
            }
        }
        self.flush();
    }

    /// Sends on what an instance that is about to go has given back: it is not lost.
    fn take_back(&mut self, slot: Slot) {
        if !matches!(self.instances.get(slot.index()), Some(Some(_))) {
            return;
        }
        self.flush_instance(slot);
        for _ in 0..DRAIN_BURSTS {
            if (0..PORT_LIMIT)
                .map(|port| self.poll_instance_port(slot, port))
                .sum::<usize>()
                == 0
            {
                break;
            }
        }
    }

    fn remove_instance(&mut self, slot: Slot, failed: bool) {
        if failed {
            // What it gave back since it failed stays out.
            self.flush_instance(slot);
        } else {
            self.take_back(slot);
        }
        let mut ports = self.instances.get_mut(slot.index()).and_then(Option::take);
        let mut outstanding = 0;
        if let (Some(ports), Some(counters)) = (ports.as_mut(), self.parts.counters.slots.get(slot.index())) {
            self.attached.retain(|s| *s != slot);
            self.givers.retain(|s| *s != slot);
            self.lanes_are_stale = true;
            for (port, room) in ports.rooms.iter_mut().enumerate() {
                if let Some(outbox) = self.outboxes.get_mut(outbox_of(slot, port as u8)) {
                    *room = std::mem::take(&mut outbox.frames);
                }
            }
            outstanding = std::mem::take(&mut ports.outstanding);
            if failed {
                counters.lost.add(outstanding);
                self.parts
                    .counters
                    .drop_packets(DropReason::InstanceLost, outstanding);
            } else {
                counters.kept.add(outstanding);
                self.parts
                    .counters
                    .drop_packets(DropReason::Function, outstanding);
            }
            // The gauges of the rings are the port's. The next one may be at home elsewhere.
            counters.ring_used.set(0);
            counters.ring_slots.set(0);
            counters.back_used.set(0);
            counters.consumed.set(0);
            for port in ports.ports() {
                if let Some(queue) = port.waits_on() {
                    self.parts.wake_set.forget(queue.interrupt_fd());
                }
            }
        }
        if let Some(ports) = ports {
            self.tell(WorkerEvent::PortsReturned { ports });
        }
        // A failed instance's pins went with the failure; others have some left only after a deadline.
        self.sweep(Sweep {
            slot,
            failed,
            then: Some(Removal { outstanding }),
        });
    }

    /// Begins to take the pins to a slot away. They do not count and lead nowhere from now on; what remains is to write
    /// that into the entries.
    fn sweep(&mut self, sweep: Sweep) {
        if let Some(counters) = self.parts.counters.slots.get(sweep.slot.index()) {
            counters.live_flows.set(0);
        }
        let slot = sweep.slot;
        self.lanes_are_stale = true;
        let place = match self.sweeps.iter().position(|s| s.slot == slot) {
            Some(place) => {
                if let Some(same) = self.sweeps.get_mut(place) {
                    same.failed |= sweep.failed;
                    same.then = sweep.then.or(same.then.take());
                }
                place
            }
            None => {
                self.sweeps.push(sweep);
                self.sweeps.len() - 1
            }
        };
        // New flows go to others until no entry names it: a pin to it would not be taken.
        for service in &mut self.services {
            service.candidates.remove(slot);
        }
        self.go_on_with_sweep(place, 0);
    }

    /// Goes on with one of the sweeps; one that is done leaves the list.
    fn go_on_with_sweep(&mut self, place: usize, budget: usize) {
        let Some(sweep) = self.sweeps.get(place) else {
            return;
        };
        let table = &mut self.parts.table;
        let progress = if sweep.failed {
            table.fail_slot(sweep.slot, budget)
        } else {
            table.purge_slot(sweep.slot, budget)
        };
        if progress == Progress::Pending {
            return;
        }
        let Sweep { slot, then, .. } = self.sweeps.swap_remove(place);
        // It may be a candidate again.
        self.load_epoch = u64::MAX;
        self.lanes_are_stale = true;
        if let Some(Removal { outstanding }) = then {
            self.tell(WorkerEvent::InstanceRemoved { slot, outstanding });
        }
    }

    /// Takes over a new plan or new loads.
    fn load_plan(&mut self, now: Nanos) {
        let published = self.published.load();
        let is_new = published.generation != self.generation;
        let epoch = self.parts.loads.epoch();
        if !is_new && epoch == self.load_epoch {
            return;
        }
        if is_new {
            // The control plane keeps the old one until this one is acknowledged: nothing is freed here.
            self.plan = Arc::clone(published);
            self.generation = self.plan.generation;
            self.take_over_services();
            self.take_over_slots();
            self.lanes_are_stale = true;
        }
        if epoch != self.load_epoch {
            // After a sweep the epoch is as it was, and so are the estimates.
            if self.load_epoch != u64::MAX {
                self.pinned.fill(0.0);
            }
            self.load_epoch = epoch;
        }
        self.list_candidates(now);
    }

    fn take_over_services(&mut self) {
        let plan = &self.plan;
        self.services
            .retain(|s| plan.services.iter().any(|p| p.id == s.id));
        for service in &plan.services {
            if !self.services.iter().any(|s| s.id == service.id) {
                // The only allocation of a plan, once per new service.
                self.services.push(ServiceState {
                    id: service.id,
                    scheduler: service.scheduler.clone(),
                    candidates: Candidates::new(),
                    expected: 0.0,
                    record: None,
                });
            }
        }
        // In the order of the plan: a service has the same place in both.
        self.services
            .sort_unstable_by_key(|s| plan.services.iter().position(|p| p.id == s.id));
    }

    fn take_over_slots(&mut self) {
        let (id, workers) = (self.parts.id, self.parts.workers);
        for (index, route) in self.routes.iter_mut().enumerate() {
            let slot = Slot(index as u16);
            *route = Route::NONE;
            let Some(slot_plan) = self.plan.slot(slot) else {
                continue;
            };
            let Some(service) = self.plan.service(slot_plan.service) else {
                continue;
            };
            let first = service.uplinks.first().copied().unwrap_or_default();
            *route = Route {
                instance: slot_plan.instance,
                service: slot_plan.service,
                uplinks: [first, service.uplinks.get(1).copied().unwrap_or(first)],
                home: self.plan.home(slot, id, workers),
                serves: slot_plan.state.serves(),
            };
        }
        for slot in &self.attached {
            // Where it left the plan, what it still gives back goes where it went before.
            if let (Some(Some(instance)), Some(slot_plan)) =
                (self.instances.get_mut(slot.index()), self.plan.slot(*slot))
            {
                instance.note(slot_plan, &self.plan);
            }
        }
    }

    fn list_candidates(&mut self, now: Nanos) {
        for state in &mut self.services {
            state.candidates.begin(Terms {
                at: now,
                fit: self.plan.service(state.id).map_or(1.0, |service| service.fit),
                slow_start: state.scheduler.settings().slow_start,
            });
            state.expected = self.parts.loads.expected(state.id);
        }
        for (index, slot_plan) in self.plan.slots.iter().enumerate().take(Slot::LIMIT) {
            let slot = Slot(index as u16);
            let Some(slot_plan) = slot_plan else { continue };
            if !slot_plan.state.takes_new_flows() || !self.parts.table.is_slot_usable(slot) {
                continue;
            }
            if let Some(state) = self.services.iter_mut().find(|s| s.id == slot_plan.service) {
                let pinned = self.pinned.get(index).copied().unwrap_or_default();
                state.candidates.push(Candidate {
                    slot,
                    capacity: slot_plan.capacity,
                    load: self.parts.loads.load(slot) + pinned,
                    weight: slot_plan.weight,
                    live_flows: self.parts.table.live(slot),
                    active_for: now.since(slot_plan.active_since),
                    queues: [0.0; PRIORITIES],
                });
            }
        }
    }

    #[inline(always)]
    fn route(&self, slot: Slot) -> &Route {
        static NONE: Route = Route::NONE;
        self.routes.get(slot.index()).unwrap_or(&NONE)
    }

    // ---- packets in -------------------------------------------------------------------------------------------

    fn poll_uplink(&mut self, uplink: UplinkId, now: Nanos) -> usize {
        let Some(Some(port)) = self.uplinks.get_mut(uplink.index()) else {
            return 0;
        };
        let mut received = port.receive(&mut self.parts.memory, &mut self.received, BURST_FRAMES);
        if received.packets == 0 && received.bad + received.too_large == 0 {
            return 0;
        }
        let (mut lengths, pieces) = self.look();
        if let Some(Some(port)) = self.uplinks.get_mut(uplink.index())
            && !port.is_right(lengths.longest as usize, pieces)
        {
            received.too_large += port.mend(&mut self.received, &mut self.parts.memory);
            (lengths, _) = self.look();
        }
        let packets = self.received.len();
        let bad = received.bad + received.too_large;
        if let Some(counters) = self.parts.counters.uplinks.get(uplink.index()) {
            counters.received_packets.add(packets as u64 + bad);
            counters.received_bytes.add(lengths.bytes);
        }
        self.parts.counters.figures.received.add(packets as u64 + bad);
        self.parts
            .counters
            .drop_packets(DropReason::BadDescriptor, received.bad);
        self.parts
            .counters
            .drop_packets(DropReason::TooLarge, received.too_large);
        self.steer(uplink, now);
        packets
    }

    /// Reads the headers of the frames in `self.received`, and fetches what the table has of their flows. Gives how long they
    /// are, and in how many pieces one of them is, or more.
    #[inline]
    fn look(&mut self) -> (Lengths, u16) {
        let (lengths, pieces) = self.level.run(Look {
            frames: &self.received,
            headers: &mut self.headers,
            burst: &mut self.burst,
            table: &mut self.parts.table,
            owners: (self.parts.workers > 1).then_some(Owners {
                hasher: &self.parts.hasher,
                workers: self.parts.workers,
                this: self.parts.id,
                found: &mut self.owners,
            }),
        });
        self.burst_sizes = Sizes {
            shortest: lengths.shortest,
            longest: lengths.longest,
        };
        (lengths, pieces)
    }

    /// Steers the frames in `self.received`, which came in on that uplink and have been looked at, in their order. Packets of
    /// known flows take the short way, a step at a time for the whole burst, so that what one of them waits for is fetched
    /// meanwhile.
    fn steer(&mut self, uplink: UplinkId, now: Nanos) {
        if self.lanes_are_stale {
            self.draw_lanes();
        }
        if self.waiting + self.received.len() > OUTBOX_FRAMES || self.touched.count > LANES_AT_ONCE {
            self.flush_instances();
        }
        self.sizes = self.sizes.and(self.burst_sizes);
        let hasher = self.parts.hasher;
        if !self.headers.packets.all_fast() {
            self.look_at_unusual();
        }
        // The lists are taken out and put back, so that their room is used again.
        let mut frames = std::mem::take(&mut self.received);
        let (id, workers) = (self.parts.id.index(), self.parts.workers);
        self.elephants.note(frames.len(), now, |drawn| {
            let Parsed::Flow(info) = packet::parse(frames.get(drawn)?.bytes()) else {
                return None;
            };
            // Another worker's flow is counted there.
            let is_own = workers == 1 || hasher.owner(&info.key, workers) == id;
            is_own.then(|| (info.key, hasher.hash(&info.key)))
        });
        let mut unusual = std::mem::take(&mut self.unusual);
        let mut others = unusual.iter().peekable();
        let (count, mut place) = (frames.len(), 0);
        let mut rest = frames.drain(..);
        while place < count {
            if self.burst.has_candidate(place) {
                let until;
                (until, rest) = self.level.run(Hit {
                    table: &mut self.parts.table,
                    burst: &self.burst,
                    from: place,
                    now,
                    lanes: &self.lanes[uplink.index() % UPLINK_LIMIT],
                    to: ToOutboxes {
                        frames: rest,
                        bytes: &self.headers.packets.bytes,
                        outboxes: &mut self.outboxes,
                        touched: &mut self.touched,
                    },
                });
                self.waiting += until - place;
                place = until;
                if place == count {
                    break;
                }
            }
            if workers > 1
                && self.burst.is_marked_exception(place)
                && self.headers.packets.is_fast[place % BURST_FRAMES] != 0
            {
                // Another worker's.
                let Some(frame) = rest.next() else { break };
                let owner = self.owners[place % BURST_FRAMES];
                self.hand_off(owner.into(), frame, Destination::Steering(uplink));
                place += 1;
                continue;
            }
            let whose = self.parts.table.lookup_in_burst(&mut self.burst, place);
            if whose == LookupOutcome::Hit {
                continue;
            }
            let Some(frame) = rest.next() else { break };
            if whose == LookupOutcome::Miss {
                if let Some(frame) = self.open(frame, place, uplink, now) {
                    let info = self.headers.info(place, frame.bytes());
                    self.place_new(frame, &info, self.burst.hash(place), uplink, now);
                }
            } else {
                match others.next_if(|(of, ..)| *of == place) {
                    Some((_, parsed, hash)) => {
                        if let Some(frame) = self.go_on(frame, parsed, *hash, uplink, now) {
                            self.steer_one(frame, parsed, *hash, uplink, now);
                        }
                    }
                    None => {
                        let info = self.headers.info(place, frame.bytes());
                        self.steer_one(frame, &Parsed::Flow(info), self.burst.hash(place), uplink, now);
                    }
                }
            }
            place += 1;
        }
        drop(rest);
        self.received = frames;
        unusual.clear();
        self.unusual = unusual;
    }

    /// Parses what is not plain, and asks the table for what it has of these flows.
    #[cold]
    fn look_at_unusual(&mut self) {
        for (place, frame) in self.received.iter().enumerate() {
            if self.headers.packets.is_fast.get(place) != Some(&0) {
                continue;
            }
            let parsed = packet::parse(frame.bytes());
            let hash = match &parsed {
                Parsed::Flow(info) => {
                    let hash = self.parts.hasher.hash(&info.key);
                    self.parts.table.prefetch(&info.key, hash);
                    hash
                }
                _ => 0,
            };
            self.unusual.push((place, parsed, hash));
        }
        for (_, parsed, hash) in &self.unusual {
            if let Parsed::Flow(info) = parsed {
                self.parts.table.prefetch_candidate(&info.key, *hash);
            }
        }
    }

    /// Sends a packet that is not plain on its way where that is all: it is of a known flow of this worker's, changes nothing of
    /// it, and its instance has a lane. Gives the frame back, with nothing done, where there is more to do.
    #[inline]
    fn go_on(
        &mut self,
        frame: M::Frame,
        parsed: &Parsed,
        hash: u64,
        uplink: UplinkId,
        now: Nanos,
    ) -> Option<M::Frame> {
        let Parsed::Flow(info) = parsed else {
            return Some(frame);
        };
        let is_own = self.parts.workers == 1
            || self.parts.hasher.owner(&info.key, self.parts.workers) == self.parts.id.index();
        let changes = info.is_icmp_error || info.tcp_flags.0 & TcpFlags::SYN_FIN_RST != 0;
        if !is_own || changes || self.lanes_are_stale {
            return Some(frame);
        }
        let table = &mut self.parts.table;
        let (bytes, flags) = (u64::from(info.frame_len), info.tcp_flags.0);
        let lane = self
            .lanes
            .get(uplink.index())
            .and_then(|lanes| table.hit_lane(&info.key, hash, info.direction, bytes, now, flags, lanes));
        let Some(lane) = lane else {
            return Some(frame);
        };
        self.put_uncounted(lane.into(), frame);
        None
    }

    /// Steers a packet the long way: whatever it is. `hash` is its flow's where it is [`Parsed::Flow`].
    fn steer_one(&mut self, frame: M::Frame, parsed: &Parsed, hash: u64, uplink: UplinkId, now: Nanos) {
        match *parsed {
            Parsed::Flow(ref info) => {
                if let Some(frame) = self.own(frame, &info.key, uplink) {
                    self.place(frame, info, hash, uplink, now);
                }
            }
            Parsed::Fragment(ref fragment) => {
                let Some(frame) = self.own(frame, &fragment.info.key, uplink) else {
                    return;
                };
                match self.fragments.offer(fragment, (frame, uplink), now) {
                    Offer::Resolved {
                        frame: (frame, uplink),
                        info,
                    } => {
                        // The ports are known only now.
                        let hash = self.parts.hasher.hash(&info.key);
                        self.place(frame, &info, hash, uplink, now);
                        while let Some(((frame, uplink), info)) = self.fragments.release() {
                            let hash = self.parts.hasher.hash(&info.key);
                            self.place(frame, &info, hash, uplink, now);
                        }
                    }
                    Offer::Waiting => {}
                    Offer::Refused {
                        frame: (frame, _),
                        reason,
                    } => self.discard(frame, reason),
                }
            }
            Parsed::Other { .. } => {
                let fallback = self.plan.other;
                self.fall_back(frame, fallback, DropReason::Other);
            }
            Parsed::Invalid(reason) => self.discard(frame, reason),
        }
    }

    /// Sends the packet of a flow that is not in the table on its way.
    fn place_new(&mut self, frame: M::Frame, info: &PacketInfo, hash: u64, uplink: UplinkId, now: Nanos) {
        match self.set_up(info, hash, uplink, now, None, Slot::NONE) {
            Verdict::Instance(slot) => self.send_to_instance(frame, slot, uplink),
            Verdict::Fallback(fallback) => self.fall_back(frame, fallback, DropReason::Unmatched),
            Verdict::Drop(reason) => self.discard(frame, reason),
            Verdict::Hold => self.discard(frame, DropReason::NoInstance),
        }
    }

    /// Looks a packet's flow up and sends it on its way.
    fn place(&mut self, frame: M::Frame, info: &PacketInfo, hash: u64, uplink: UplinkId, now: Nanos) {
        match self.verdict(info, hash, uplink, now) {
            Verdict::Instance(slot) => self.send_to_instance(frame, slot, uplink),
            Verdict::Hold => {
                let held = Held {
                    frame,
                    info: *info,
                    hash,
                    uplink,
                };
                self.hold(held, now);
            }
            Verdict::Fallback(fallback) => self.fall_back(frame, fallback, DropReason::Unmatched),
            Verdict::Drop(reason) => self.discard(frame, reason),
        }
    }

    /// Writes down to which slots packets of known flows go the short way: instances that serve and whose ports are here.
    #[cold]
    fn draw_lanes(&mut self) {
        self.lanes_are_stale = false;
        for (uplink, lanes) in self.lanes.iter_mut().enumerate() {
            lanes.clear();
            for &slot in &self.attached {
                let (Some(route), Some(Some(instance))) =
                    (self.routes.get(slot.index()), self.instances.get(slot.index()))
                else {
                    continue;
                };
                let port = route.port_of(UplinkId(uplink as u8));
                let is_direct = route.serves
                    && route.home == self.parts.id
                    && instance.id == Some(route.instance)
                    && instance.has(port)
                    && self.parts.table.is_slot_usable(slot);
                if is_direct {
                    lanes.set(slot, outbox_of(slot, port) as u16);
                }
            }
        }
    }

    /// Gives the frame back if this worker owns flows between these addresses, else hands it to the one that does.
    #[inline]
    fn own(&mut self, frame: M::Frame, key: &FlowKey, uplink: UplinkId) -> Option<M::Frame> {
        if self.parts.workers == 1 {
            return Some(frame);
        }
        let owner = self.parts.hasher.owner(key, self.parts.workers);
        if owner == self.parts.id.index() {
            return Some(frame);
        }
        self.hand_off(owner, frame, Destination::Steering(uplink));
        None
    }

    /// Where a packet goes. Pins its flow if it is new.
    fn verdict(&mut self, info: &PacketInfo, hash: u64, uplink: UplinkId, now: Nanos) -> Verdict {
        let Some(entry) = self.parts.table.lookup(&info.key, hash) else {
            return self.set_up(info, hash, uplink, now, None, Slot::NONE);
        };
        let pin = if info.is_icmp_error {
            // It goes where its flow goes and is counted with the service, but it does not keep the flow alive.
            self.parts.table.pin(entry, info.direction)
        } else {
            let (direction, bytes) = (info.direction, u64::from(info.frame_len));
            let table = &mut self.parts.table;
            table.hit(entry, direction, 1, bytes, now, info.tcp_flags.0).pin
        };
        let &Route { serves, service, .. } = self.route(pin);
        if serves {
            self.count_offered(service, info.frame_len);
            return Verdict::Instance(pin);
        }
        // Not pinned in this direction yet; or its instance is gone; or this is a new connection on the addresses of
        // one that has ended, which may be given to another instance.
        if !pin.is_some() && !info.is_icmp_error && self.must_wait(info, hash, entry, now) {
            return Verdict::Hold;
        }
        self.set_up(info, hash, uplink, now, Some(entry), pin)
    }

    #[inline]
    fn count_offered(&self, service: ServiceId, bytes: u32) {
        if let Some(counters) = self.parts.counters.services.get(service.index()) {
            counters.offered_packets.add(1);
            counters.offered_bytes.add(u64::from(bytes));
        }
    }

    // ---- new flows --------------------------------------------------------------------------------------------

    /// Opens the flow of a packet of the current burst that the table called [`LookupOutcome::Miss`], and sends the packet to its
    /// instance: what [`Worker::set_up`] does where nothing is unusual. Gives the frame back, with nothing done, where
    /// something is.
    fn open(&mut self, frame: M::Frame, place: usize, uplink: UplinkId, now: Nanos) -> Option<M::Frame> {
        let plan = &*self.plan;
        let packets = &self.headers.packets;
        let direction = packets.direction(place);
        let key = FlowKey::V4(packets.key(place));
        let is_usual = self.burst.is_opening(place) && self.destinations.is_empty();
        let of = plan
            .classify(|| key.tuple(direction), uplink)
            .filter(|_| is_usual);
        let Some((service, state)) = of.and_then(|of| plan.services.get(of).zip(self.services.get_mut(of)))
        else {
            return Some(frame);
        };
        if state.record.is_some() || state.candidates.is_empty() {
            return Some(frame);
        }
        let hash = self.burst.hash(place);
        let flow = NewFlow {
            key: &key,
            direction,
            hash,
            expected: state.expected,
            dscp: self.headers.dscp(place),
        };
        let pick = state.scheduler.pick(&flow, &state.candidates);
        let picked = pick.index().and_then(|index| state.candidates.get(index));
        let (Some(index), Some(&Candidate { slot, .. })) = (pick.index(), picked) else {
            return Some(frame);
        };
        self.set_ups += 1;
        // In registers: an array of which one half is written would be waited for.
        let pins = match direction {
            _ if service.symmetric => [slot; 2],
            Direction::Forward => [slot, Slot::NONE],
            Direction::Reverse => [Slot::NONE, slot],
        };
        let table = &mut self.parts.table;
        let verdict = match table.open(&self.burst, place, pins, service.id, now) {
            Ok(_) => {
                state.candidates.pin(index, &flow);
                if let Some(pinned) = self.pinned.get_mut(slot.index()) {
                    *pinned += flow.expected;
                }
                if let Some(counters) = self.parts.counters.slots.get(slot.index()) {
                    counters.new_flows.add(1);
                }
                if let Pick::Overcommitted(_) = pick
                    && let Some(counters) = self.parts.counters.services.get(service.id.index())
                {
                    counters.overcommitted.add(1);
                }
                let lane = self.lanes.get(uplink.index()).and_then(|lanes| lanes.of(slot));
                if let Some(outbox) = lane.filter(|_| !self.lanes_are_stale) {
                    self.put_uncounted(outbox.into(), frame);
                    return None;
                }
                Verdict::Instance(slot)
            }
            Err(_full) => without_entry(service, &state.candidates, hash, &self.parts.counters),
        };
        self.count_offered(service.id, frame.len() as u32);
        match verdict {
            Verdict::Instance(slot) => self.send_to_instance(frame, slot, uplink),
            Verdict::Drop(reason) => self.discard(frame, reason),
            Verdict::Hold | Verdict::Fallback(_) => self.discard(frame, DropReason::NoInstance),
        }
        None
    }

    /// Gives a flow, or the direction of a flow, that has no pin to an instance. `lost` is the pin that it still has to
    /// an instance that serves no more.
    #[cold]
    fn set_up(
        &mut self,
        info: &PacketInfo,
        hash: u64,
        uplink: UplinkId,
        now: Nanos,
        entry: Option<EntryIndex>,
        lost: Slot,
    ) -> Verdict {
        self.set_ups += 1;
        let plan = &*self.plan;
        let place = plan.classify(|| info.key.tuple(info.direction), uplink);
        let Some((place, service)) = place.and_then(|place| Some((place, plan.services.get(place)?))) else {
            return Verdict::Fallback(plan.unmatched);
        };
        let counters = self.parts.counters.services.get(service.id.index());
        if let Some(counters) = counters {
            counters.offered_packets.add(1);
            counters.offered_bytes.add(u64::from(info.frame_len));
        }
        let Some(state) = self.services.get_mut(place) else {
            return Verdict::Drop(DropReason::NoInstance);
        };
        if state.candidates.is_empty()
            && let Some(slot) = being_purged(plan, service.id, hash)
        {
            // All that there are lose their pins just now. They go on taking packets, without a pin until that is done.
            if let Some(counters) = counters {
                counters.unpinned.add(1);
            }
            return Verdict::Instance(slot);
        }
        if info.is_icmp_error {
            // An error about a flow that is not pinned opens none: it goes by hash.
            return by_hash(&state.candidates, hash);
        }
        let flow = NewFlow {
            key: &info.key,
            direction: info.direction,
            hash,
            expected: state.expected,
            dscp: info.dscp,
        };
        let flow = match entry.and_then(|_| self.elephants.rate(&info.key, hash)) {
            // A flow that lost its instance is no unknown: what it brings is known where it is much.
            Some((pps, _)) if state.scheduler.settings().metric == Metric::Packets => NewFlow {
                expected: pps.max(flow.expected),
                ..flow
            },
            _ => flow,
        };
        let mut record = state.record.take();
        if let Some(record) = &mut record {
            record.before(&mut state.scheduler, &state.candidates);
        }
        let destination = self.destinations.iter().position(|(key, _)| *key == info.key);
        let destination = destination.map(|place| self.destinations.swap_remove(place).1);
        let destination = destination.and_then(|to| {
            let place = (0..state.candidates.len())
                .find(|i| state.candidates.get(*i).is_some_and(|c| c.slot == to))?;
            Some((place, to))
        });
        let pick = state.scheduler.pick(&flow, &state.candidates);
        if let Some(mut record) = record {
            record.after(&flow, pick);
            if self.parts.events.push(WorkerEvent::Recorded(record)).is_err() {
                self.parts.counters.figures.events_lost.add(1);
            }
        }
        let picked = || Some((pick.index()?, state.candidates.get(pick.index()?)?.slot));
        let picked = destination.or_else(picked);
        let Some((index, slot)) = picked else {
            if let Some(counters) = counters {
                counters.unserved.add(1);
            }
            return Verdict::Drop(DropReason::NoInstance);
        };
        let mut pins = [Slot::NONE; 2];
        if service.symmetric {
            pins = [slot; 2];
        } else if let Some(pin) = pins.get_mut(info.direction.index()) {
            *pin = slot;
        }
        let table = &mut self.parts.table;
        let mut moved = false;
        match entry {
            // This packet was counted as a hit already.
            Some(entry) if service.symmetric => moved = table.set_pins(entry, pins, now),
            Some(entry) => moved = table.set_pin(entry, info.direction, slot, now),
            None => match table.insert(&info.key, hash, info.direction, pins, service.id, now) {
                Ok(entry) => {
                    let bytes = u64::from(info.frame_len);
                    table.hit(entry, info.direction, 1, bytes, now, info.tcp_flags.0);
                }
                Err(_full) => {
                    return without_entry(service, &state.candidates, hash, &self.parts.counters);
                }
            },
        }
        // A pin that the table had not lost yet moved, too.
        moved |= lost.is_some();
        state.candidates.pin(index, &flow);
        if let Some(pinned) = self.pinned.get_mut(slot.index()) {
            *pinned += flow.expected;
        }
        if let Some(counters) = self.parts.counters.slots.get(slot.index()) {
            counters.new_flows.add(1);
            if moved {
                counters.expected_moves.add(1);
            }
        }
        if let (Pick::Overcommitted(_), Some(counters)) = (pick, counters) {
            counters.overcommitted.add(1);
        }
        Verdict::Instance(slot)
    }

    // ---- flows that move --------------------------------------------------------------------------------------

    /// Whether flows of the entry's service may be moved while their instance is well.
    fn is_relaxed(&self, entry: EntryIndex) -> bool {
        self.plan
            .service(self.parts.table.service(entry))
            .is_some_and(|service| service.relaxed)
    }

    /// Whether a packet, counted already, of a flow that has no pin has to wait for those before it.
    #[cold]
    fn must_wait(&self, info: &PacketInfo, hash: u64, entry: EntryIndex, now: Nanos) -> bool {
        let table = &self.parts.table;
        let Some(service) = self.plan.service(table.service(entry)) else {
            return false;
        };
        if !service.relaxed || table.has_lost_instance(entry, info.direction) {
            // What was out with an instance that failed does not come back.
            return false;
        }
        if self.moves.holds(&info.key, hash) {
            return true;
        }
        // The first packet of a direction that goes by itself has none before it.
        let is_first = |row: &FlowRow| !service.symmetric && row.packets[info.direction.index()] <= 1;
        table
            .get(&info.key, now)
            .is_some_and(|row| !is_first(&row) && packets_out(&row) > 1)
    }

    #[cold]
    fn hold(&mut self, held: Held<M::Frame>, now: Nanos) {
        if let Err(held) = self.moves.hold(held, now) {
            self.go_on_with_moves(now);
            self.move_on(held, now);
        }
    }

    /// Lets the packets go on that have waited long enough.
    #[cold]
    fn go_on_with_moves(&mut self, now: Nanos) {
        let table = &self.parts.table;
        let early = self
            .moves
            .settle(now, |key| table.get(key, now).map_or(0, |row| packets_out(&row)));
        self.parts.counters.figures.early_moves.add(early);
        let before = self.moves.len();
        while let Some(held) = self.moves.next() {
            self.move_on(held, now);
        }
        if self.moves.len() < before {
            // The outboxes have room again for the rest of the burst that this may be part of.
            self.flush_instances();
        }
    }

    /// Sends a packet that was held, and counted when it came, to the instance of its flow: the first one finds it.
    fn move_on(&mut self, held: Held<M::Frame>, now: Nanos) {
        let Held {
            frame,
            info,
            hash,
            uplink,
        } = held;
        let verdict = match self.parts.table.lookup(&info.key, hash) {
            None => self.set_up(&info, hash, uplink, now, None, Slot::NONE),
            Some(entry) => {
                let pin = self.parts.table.pin(entry, info.direction);
                let &Route { serves, service, .. } = self.route(pin);
                if serves {
                    self.count_offered(service, info.frame_len);
                    Verdict::Instance(pin)
                } else {
                    let verdict = self.set_up(&info, hash, uplink, now, Some(entry), pin);
                    if matches!(verdict, Verdict::Instance(_)) {
                        self.parts.counters.figures.held_moves.add(1);
                    }
                    verdict
                }
            }
        };
        match verdict {
            Verdict::Instance(slot) => self.send_to_instance(frame, slot, uplink),
            Verdict::Fallback(fallback) => self.fall_back(frame, fallback, DropReason::Unmatched),
            Verdict::Drop(reason) => self.discard(frame, reason),
            Verdict::Hold => self.discard(frame, DropReason::NoInstance),
        }
    }

    // ---- packets out ------------------------------------------------------------------------------------------

    /// Sends a packet to the instance that its flow is pinned to.
    #[inline]
    fn send_to_instance(&mut self, frame: M::Frame, slot: Slot, uplink: UplinkId) {
        let lane = self.lanes.get(uplink.index()).and_then(|lanes| lanes.of(slot));
        if let Some(outbox) = lane.filter(|_| !self.lanes_are_stale) {
            return self.put_into(outbox.into(), frame);
        }
        let &route = self.route(slot);
        let Route {
            instance,
            home,
            serves,
            ..
        } = route;
        if !serves {
            return self.discard(frame, DropReason::NoInstance);
        }
        let port = route.port_of(uplink);
        if home != self.parts.id {
            let to = Destination::Instance { slot, instance, port };
            return self.hand_off(home.index(), frame, to);
        }
        self.put(frame, slot, instance, port);
    }

    /// Puts a frame into a ring of an instance that this worker is at home to.
    #[inline]
    fn put(&mut self, frame: M::Frame, slot: Slot, id: InstanceId, port: u8) {
        let Some(Some(instance)) = self.instances.get_mut(slot.index()) else {
            // Its ports are gone, the pins to it will follow.
            return self.discard(frame, DropReason::InstanceLost);
        };
        if instance.id != Some(id) {
            // Whoever sent it may know a newer plan than this turn's. Or the frame was on its way while the slot got
            // another instance.
            let plan = self.published.load();
            match plan.slot(slot) {
                Some(slot_plan) if slot_plan.instance == id && instance.id.is_none() => {
                    instance.note(slot_plan, plan);
                    self.lanes_are_stale = true;
                }
                _ => return self.discard(frame, DropReason::InstanceLost),
            }
        }
        if !instance.has(port) {
            return self.discard(frame, DropReason::NoInstance);
        }
        self.put_into(outbox_of(slot, port), frame);
    }

    /// Puts a frame that has been counted as offered into an outbox.
    #[inline]
    fn put_into(&mut self, place: usize, frame: M::Frame) {
        if let Some(outbox) = self.outboxes.get_mut(place) {
            outbox.counted.0 += 1;
            outbox.counted.1 += frame.len() as u64;
        }
        self.put_uncounted(place, frame);
    }

    /// Puts a frame that is still to be counted as offered into an outbox.
    #[inline(always)]
    fn put_uncounted(&mut self, place: usize, frame: M::Frame) {
        let bytes = frame.len();
        let Some(outbox) = self.outboxes.get_mut(place) else {
            return self.discard(frame, DropReason::NoInstance);
        };
        self.sizes.note(bytes);
        if outbox.frames.is_empty() {
            self.touched.push(place as u16);
        }
        outbox.put(frame, bytes as u64);
        self.waiting += 1;
        if self.waiting >= OUTBOX_FRAMES {
            self.flush_instances();
        }
    }

    fn fall_back(&mut self, frame: M::Frame, fallback: Fallback, reason: DropReason) {
        match fallback {
            Fallback::Drop => self.discard(frame, reason),
            Fallback::Pass(uplink) => {
                self.parts.counters.figures.passed.add(1);
                self.send_out(frame, uplink);
            }
        }
    }

    /// Sends frames out of an uplink, and leaves the list empty.
    fn send_all_out(&mut self, frames: &mut Vec<M::Frame>, uplink: UplinkId) {
        if let Some(Some(port)) = self.uplinks.get_mut(uplink.index()) {
            port.put_all(frames, &mut self.parts.memory);
            self.uplinks_touched[uplink.index() % UPLINK_LIMIT] = true;
            return;
        }
        for frame in frames.drain(..) {
            self.send_out(frame, uplink);
        }
    }

    /// Sends a frame out of an uplink.
    #[inline]
    fn send_out(&mut self, frame: M::Frame, uplink: UplinkId) {
        if let Some(Some(port)) = self.uplinks.get_mut(uplink.index()) {
            port.send(frame, &mut self.parts.memory);
            if let Some(touched) = self.uplinks_touched.get_mut(uplink.index()) {
                *touched = true;
            }
            return;
        }
        // An uplink with fewer queues than there are workers is at home with one of them.
        let home = uplink.index() % self.parts.workers;
        if home == self.parts.id.index() {
            if let Some(counters) = self.parts.counters.uplinks.get(uplink.index()) {
                counters.dropped.add(1);
            }
            return self.discard(frame, DropReason::UplinkDown);
        }
        self.hand_off(home, frame, Destination::Uplink(uplink));
    }

    #[inline]
    fn hand_off(&mut self, worker: usize, frame: M::Frame, to: Destination) {
        let Some(leaving) = self.leaving.get_mut(worker) else {
            return self.discard(frame, DropReason::HandOffFull);
        };
        leaving.push(HandOff { frame, to });
        if leaving.len() == BURST_FRAMES {
            self.hand_over(worker);
        }
    }

    /// Gives another worker what waits for it, as much as its ring has room for.
    fn hand_over(&mut self, worker: usize) {
        let Some(leaving) = self.leaving.get_mut(worker) else {
            return;
        };
        let mut all = leaving.drain(..);
        let mut handed = 0;
        if let Some(Some(ring)) = self.parts.to_peers.get_mut(worker)
            && let Ok(room) = ring.write_chunk_uninit(all.len().min(ring.slots()))
        {
            handed = room.fill_from_iter(&mut all);
        }
        let (memory, counters) = (&mut self.parts.memory, &self.parts.counters);
        counters.figures.handed_off.add(handed as u64);
        if all.len() > 0 {
            counters.drop_packets(DropReason::HandOffFull, all.len() as u64);
            all.for_each(|left| memory.give(left.frame));
        }
        if handed > 0 {
            self.handed_to |= 1 << worker.min(63);
        }
    }

    #[cold]
    fn discard(&mut self, frame: M::Frame, reason: DropReason) {
        self.parts.counters.drop_packets(reason, 1);
        self.parts.memory.give(frame);
    }

    // ---- packets from other workers and from instances ---------------------------------------------------------

    fn poll_peer(&mut self, peer: usize, now: Nanos) -> usize {
        let Some(Some(ring)) = self.parts.from_peers.get_mut(peer) else {
            return 0;
        };
        let Ok(chunk) = ring.read_chunk(ring.slots().min(BURST_FRAMES)) else {
            return 0;
        };
        let mut arrived = std::mem::take(&mut self.arrived);
        arrived.extend(chunk);
        let taken = arrived.len();
        // Frames to steer are gathered into one burst per uplink; whatever ends the burst goes after it.
        let mut burst = None;
        for HandOff { frame, to } in arrived.drain(..) {
            if let Some(uplink) = burst
                && to != Destination::Steering(uplink)
            {
                self.look();
                self.steer(uplink, now);
                burst = None;
            }
            match to {
                Destination::Steering(uplink) => {
                    self.received.push(frame);
                    burst = Some(uplink);
                }
                Destination::Instance { slot, instance, port } => self.put(frame, slot, instance, port),
                Destination::Uplink(uplink) => self.send_out_here(frame, uplink),
                Destination::Return { slot, uplink } => {
                    self.count_return(&frame, slot);
                    self.send_out(frame, uplink);
                }
            }
        }
        self.arrived = arrived;
        if let Some(uplink) = burst {
            self.look();
            self.steer(uplink, now);
        }
        self.parts.counters.figures.taken_over.add(taken as u64);
        taken
    }

    /// Sends a frame out of an uplink that another worker took this one to be at home to.
    fn send_out_here(&mut self, frame: M::Frame, uplink: UplinkId) {
        if let Some(Some(_)) = self.uplinks.get(uplink.index()) {
            return self.send_out(frame, uplink);
        }
        if let Some(counters) = self.parts.counters.uplinks.get(uplink.index()) {
            counters.dropped.add(1);
        }
        self.discard(frame, DropReason::UplinkDown);
    }

    fn poll_instances(&mut self, _now: Nanos) -> usize {
        let mut moved = 0;
        for place in 0..self.givers.len() {
            let Some(slot) = self.givers.get(place).copied() else {
                break;
            };
            let Some(Some(instance)) = self.instances.get_mut(slot.index()) else {
                continue;
            };
            if !instance.is_due() {
                continue;
            }
            let mut packets = 0;
            for port in 0..PORT_LIMIT {
                packets += self.poll_instance_port(slot, port);
            }
            if let Some(Some(instance)) = self.instances.get_mut(slot.index()) {
                instance.looked(packets);
            }
            moved += packets;
        }
        moved
    }

    fn poll_instance_port(&mut self, slot: Slot, port: usize) -> usize {
        let Some(Some(instance)) = self.instances.get_mut(slot.index()) else {
            return 0;
        };
        let Some(Some(ring)) = instance.ports.get_mut(port) else {
            return 0;
        };
        let way = instance.ways.get(port).copied().flatten();
        let mut received = Received::default();
        // What nobody has to look at goes from ring to ring.
        if let Some(ReturnWay {
            uplink,
            counted: false,
        }) = way
            && !instance.is_probed
            && let Some(Some(out)) = self.uplinks.get_mut(uplink.index())
        {
            received = ring.pass_on(out, BURST_FRAMES);
            self.uplinks_touched[uplink.index() % UPLINK_LIMIT] |= received.packets > 0;
        }
        let passed = (received.packets as u64, received.bytes);
        let taken = passed.0 + received.bad + received.too_large;
        let left = BURST_FRAMES.saturating_sub(taken as usize);
        received += ring.receive(&mut self.parts.memory, &mut self.received, left);
        let are_right = self
            .received
            .iter()
            .all(|frame| ring.is_right(frame.len(), frame.pieces()));
        if !are_right {
            received.too_large += ring.mend(&mut self.received, &mut self.parts.memory);
        }
        let bad = received.bad + received.too_large;
        if received.packets == 0 && bad == 0 {
            return 0;
        }
        if instance.is_probed {
            for frame in self.received.extract_if(.., |frame| is_probe(frame.bytes())) {
                self.parts.memory.give(frame);
            }
        }
        let packets = passed.0 + self.received.len() as u64;
        let bytes = passed.1 + self.received.iter().map(|f| f.len() as u64).sum::<u64>();
        if let Some(counters) = self.parts.counters.slots.get(slot.index()) {
            instance.returned(packets + bad, bytes, counters);
        }
        self.parts
            .counters
            .drop_packets(DropReason::BadDescriptor, received.bad);
        self.parts
            .counters
            .drop_packets(DropReason::TooLarge, received.too_large);
        instance.is_broken |= received.bad > 0;
        let mut frames = std::mem::take(&mut self.received);
        match way {
            Some(ReturnWay { uplink, counted }) if !counted || self.parts.workers == 1 => {
                if counted {
                    self.count_returns(&frames, slot);
                }
                self.send_all_out(&mut frames, uplink);
            }
            Some(ReturnWay { uplink, .. }) => {
                for frame in frames.drain(..) {
                    self.return_counted(frame, slot, uplink);
                }
            }
            None => {
                for frame in frames.drain(..) {
                    self.discard(frame, DropReason::NoInstance);
                }
            }
        }
        self.received = frames;
        received.packets
    }

    /// Counts returned packets with their flows, all of them this worker's.
    fn count_returns(&mut self, frames: &[M::Frame], slot: Slot) {
        self.level.run(Look {
            frames,
            headers: &mut self.headers,
            burst: &mut self.burst,
            table: &mut self.parts.table,
            owners: None,
        });
        let mut others = self.parts.table.count_returned_burst(&self.burst, slot);
        while others != 0 {
            if let Some(frame) = frames.get(others.trailing_zeros() as usize) {
                self.count_return(frame, slot);
            }
            others &= others - 1;
        }
    }

    /// Counts a returned packet with its flow, on the worker that owns it, and sends it out.
    fn return_counted(&mut self, frame: M::Frame, slot: Slot, uplink: UplinkId) {
        if self.parts.workers > 1
            && let Parsed::Flow(info) | Parsed::Fragment(packet::Fragment { info, .. }) =
                packet::parse(frame.bytes())
        {
            let owner = self.parts.hasher.owner(&info.key, self.parts.workers);
            if owner != self.parts.id.index() {
                return self.hand_off(owner, frame, Destination::Return { slot, uplink });
            }
        }
        self.count_return(&frame, slot);
        self.send_out(frame, uplink);
    }

    fn count_return(&mut self, frame: &M::Frame, slot: Slot) {
        let found = match packet::parse(frame.bytes()) {
            Parsed::Flow(info) if !info.is_icmp_error => {
                let hash = self.parts.hasher.hash(&info.key);
                let entry = self.parts.table.lookup(&info.key, hash);
                let is_its = |entry: &EntryIndex| {
                    let pins = self.parts.table.pins(*entry);
                    // One that is to move has no pin, and waits for what it is owed.
                    pins.contains(&slot) || pins.contains(&Slot::NONE) && self.is_relaxed(*entry)
                };
                match entry.filter(is_its) {
                    Some(entry) => {
                        self.parts.table.count_returned(entry, 1);
                        true
                    }
                    None => false,
                }
            }
            _ => false,
        };
        if !found && let Some(counters) = self.parts.counters.slots.get(slot.index()) {
            counters.return_unmatched.add(1);
        }
    }

    // ---- the end of a turn ------------------------------------------------------------------------------------

    fn expire(&mut self, now: Nanos) {
        self.expiry_is_behind = self.parts.table.expire(now, EXPIRIES_PER_TURN).behind;
        while let Some((frame, _)) = self.fragments.expire(now) {
            self.discard(frame, DropReason::FragmentTimeout);
        }
    }

    /// Gives the instances what waits for them.
    fn flush_instances(&mut self) {
        let Some((mut flush, touched)) = self.flush_of_instances() else {
            return;
        };
        let lanes = touched.lanes();
        for &lane in lanes {
            flush.empty(lane);
        }
        flush.offered.count(flush.counters);
        touched.count = 0;
        self.waiting = 0;
        // Of the current burst some may still follow.
        self.sizes = self.burst_sizes;
    }

    /// Gives one instance what waits for it.
    fn flush_instance(&mut self, slot: Slot) {
        let Some((mut flush, touched)) = self.flush_of_instances() else {
            return;
        };
        let mut sent = 0;
        touched.retain(|lane| {
            let is_its = lane % Slot::LIMIT as u16 == slot.0;
            if is_its {
                sent += flush.empty(lane);
            }
            !is_its
        });
        flush.offered.count(flush.counters);
        self.waiting -= sent;
    }

    /// What a flush works on, and the outboxes that it is to empty.
    fn flush_of_instances(&mut self) -> Option<(Flush<'_, M>, &mut Touched)> {
        let counters = &*self.parts.counters;
        let flush = Flush {
            outboxes: self.outboxes.first_chunk_mut()?,
            instances: self.instances.first_chunk_mut()?,
            routes: self.routes.first_chunk()?,
            slots: counters.slots.first_chunk()?,
            counters,
            memory: &mut self.parts.memory,
            sizes: self.sizes,
            offered: Offered::default(),
        };
        Some((flush, &mut self.touched))
    }

    /// Makes everything that was sent visible.
    fn flush(&mut self) {
        if self.waiting > 0 {
            self.flush_instances();
        }
        for (index, touched) in self.uplinks_touched.iter_mut().enumerate() {
            if !std::mem::take(touched) {
                continue;
            }
            let (Some(Some(port)), Some(counters)) = (
                self.uplinks.get_mut(index),
                self.parts.counters.uplinks.get(index),
            ) else {
                continue;
            };
            let sent = port.flush(&mut self.parts.memory);
            counters.sent_packets.add(sent.packets);
            counters.sent_bytes.add(sent.bytes);
            counters.dropped.add(sent.full + sent.too_large);
            self.parts
                .counters
                .drop_packets(DropReason::UplinkRingFull, sent.full);
            self.parts
                .counters
                .drop_packets(DropReason::TooLarge, sent.too_large);
        }
        for worker in 0..self.leaving.len() {
            self.hand_over(worker);
        }
        let mut handed_to = std::mem::take(&mut self.handed_to);
        while handed_to != 0 {
            let worker = handed_to.trailing_zeros() as usize;
            handed_to &= handed_to - 1;
            if let Some(Some(waker)) = self.parts.peer_wakers.get(worker) {
                waker.wake();
            }
        }
    }

    /// Gauges, broken ports, and the next rows of a dump.
    fn keep_house(&mut self, now: Nanos) {
        for place in 0..self.attached.len() {
            let Some(&slot) = self.attached.get(place) else {
                break;
            };
            if let (Some(Some(instance)), Some(counters)) = (
                self.instances.get_mut(slot.index()),
                self.parts.counters.slots.get(slot.index()),
            ) {
                instance.gauge(counters);
                if instance.is_newly_broken() {
                    self.tell(WorkerEvent::PortBroken { slot });
                }
            }
        }
        for place in 0..UPLINK_LIMIT {
            if let Some(Some(port)) = self.uplinks.get(place)
                && port.is_broken()
                && self.broken_uplinks & 1 << place == 0
            {
                self.broken_uplinks |= 1 << place;
                let uplink = UplinkId(place as u8);
                self.tell(WorkerEvent::UplinkBroken { uplink });
            }
        }
        for (index, slot) in self.plan.slots.iter().enumerate() {
            if slot.is_some()
                && let Some(counters) = self.parts.counters.slots.get(index)
            {
                counters
                    .live_flows
                    .set(u64::from(self.parts.table.live(Slot(index as u16))));
            }
        }
        let figures = &self.parts.counters.figures;
        figures.live_flows.set(self.parts.table.flows() as u64);
        figures.fragments_waiting.set(self.fragments.occupied() as u64);
        let in_rings: usize = self.parts.from_peers.iter().flatten().map(Consumer::slots).sum();
        figures
            .held
            .set((in_rings + self.fragments.occupied() + self.moves.len() + self.waiting) as u64);
        self.go_on_with_dump(now);
    }

    fn go_on_with_dump(&mut self, now: Nanos) {
        let Some(mut dump) = self.dump.take() else { return };
        let mut is_cut = false;
        let FlowDump {
            filter,
            rows,
            limit,
            cursor,
            ..
        } = &mut *dump;
        let next = self.parts.table.dump(*cursor, DUMP_ENTRIES_PER_STEP, now, |row| {
            if filter.matches(&row) {
                if rows.len() < *limit {
                    rows.push(row);
                } else {
                    is_cut = true;
                }
            }
        });
        dump.complete = next.is_none() && !is_cut;
        dump.cursor = next.unwrap_or_default();
        if next.is_none() || is_cut {
            self.tell(WorkerEvent::Dumped(dump));
        } else {
            self.dump = Some(dump);
        }
    }

    /// Takes leave: what is still here, or comes from another worker that has not left yet, is counted as dropped.
    /// Ports and memory are freed with the worker.
    fn close(mut self) {
        while let Some((frame, _)) = self.fragments.drain() {
            self.discard(frame, DropReason::Shutdown);
        }
        while let Some(frame) = self.moves.drain() {
            self.discard(frame, DropReason::Shutdown);
        }
        for place in 0..self.attached.len() {
            let Some(&slot) = self.attached.get(place) else {
                break;
            };
            self.flush_instance(slot);
            if let (Some(Some(instance)), Some(counters)) = (
                self.instances.get_mut(slot.index()),
                self.parts.counters.slots.get(slot.index()),
            ) {
                let outstanding = std::mem::take(&mut instance.outstanding);
                counters.kept.add(outstanding);
                self.parts
                    .counters
                    .drop_packets(DropReason::Shutdown, outstanding);
            }
        }
        self.flush();
        self.parts.leaving.fetch_add(1, Ordering::AcqRel);
        for _ in 0..LEAVING_STEPS {
            // Looked at before the rings: what was sent by workers that have left is in them by then.
            let all_left = self.parts.leaving.load(Ordering::Acquire) >= self.parts.workers;
            self.discard_handed_over();
            if all_left {
                break;
            }
            std::thread::sleep(LEAVING_STEP);
        }
        self.parts.counters.figures.held.set(0);
    }

    fn discard_handed_over(&mut self) {
        for peer in 0..self.parts.from_peers.len() {
            while let Some(Some(ring)) = self.parts.from_peers.get_mut(peer)
                && let Ok(HandOff { frame, .. }) = ring.pop()
            {
                self.discard(frame, DropReason::Shutdown);
            }
        }
    }
}

/// The first steps of a burst: reads its headers, and fetches what the table has of their flows; of another worker's it has nothing.
struct Look<'a, F> {
    frames: &'a [F],
    headers: &'a mut HeaderBurst,
    burst: &'a mut Burst,
    table: &'a mut FlowTable<TableMemory>,
    /// Where some of them may be another worker's.
    owners: Option<Owners<'a>>,
}

/// Tells of a burst's plain packets which worker owns their flows.
struct Owners<'a> {
    hasher: &'a FlowHasher,
    workers: usize,
    /// The one that looks.
    this: WorkerId,
    /// What was found, by place.
    found: &'a mut [u8; BURST_FRAMES],
}

impl Owners<'_> {
    /// Makes those odd that are another's.
    #[inline(always)]
    fn tell(self, burst: &mut Burst) {
        for (place, found) in self.found.iter_mut().enumerate().take(burst.len()) {
            let owner = burst.owner(place, self.hasher, self.workers);
            *found = owner as u8;
            if owner != self.this.index() {
                burst.mark_exception(place);
            }
        }
    }
}

impl<F: Frame> Kernel for Look<'_, F> {
    /// How long they are; all their numbers of pieces, bit by bit or.
    type Output = (Lengths, u16);

    #[inline(always)]
    #[allow(
        clippy::needless_range_loop,
        reason = "iterators over columns side by side keep a loop from becoming vector instructions"
    )]
    fn run<W: Words>(self) -> (Lengths, u16) {
        let mut pieces = 0;
        let (groups, rest) = self.frames.as_chunks::<{ HeaderBurst::GROUP }>();
        let mut group = [HeaderBurst::EMPTY; HeaderBurst::GROUP];
        for at in 0..groups.len() {
            let first = at * HeaderBurst::GROUP;
            for i in 0..HeaderBurst::GROUP {
                pieces |= groups[at][i].pieces();
                group[i] = self.headers.put(first + i, groups[at][i].bytes());
            }
            self.headers.load::<W>(first, &group);
        }
        if !rest.is_empty() {
            let first = groups.len() * HeaderBurst::GROUP;
            for i in 0..rest.len() {
                pieces |= rest[i].pieces();
                group[i] = self.headers.put(first + i, rest[i].bytes());
            }
            self.headers.load::<W>(first, &group);
        }
        self.headers.validate(self.frames.len());
        self.burst.fill::<W>(&self.headers.packets);
        if let Some(owners) = self.owners {
            owners.tell(self.burst);
        }
        self.table.prefetch_buckets(self.burst, &self.headers.packets);
        self.table.resolve_candidates(self.burst);
        (self.headers.packets.lengths(), pieces)
    }
}

/// The last one: counts packets of known flows and puts them into their outboxes, from one place on up to the first that
/// needs more. Gives its place, and what is left of the frames.
struct Hit<'a, 'b, F> {
    table: &'a mut FlowTable<TableMemory>,
    burst: &'a Burst,
    from: usize,
    now: Nanos,
    lanes: &'a Lanes,
    to: ToOutboxes<'a, 'b, F>,
}

impl<'b, F> Kernel for Hit<'_, 'b, F> {
    type Output = (usize, Drain<'b, F>);

    #[inline(always)]
    fn run<W: Words>(self) -> Self::Output {
        // Two loops with few things to keep at hand each are cheaper than one with many.
        let mut lanes = [0; BURST_FRAMES];
        let until = self
            .table
            .hit_burst::<W>(self.burst, self.from, self.now, self.lanes, &mut lanes);
        let left = self
            .to
            .put_all(self.from, lanes.get(self.from..until).unwrap_or_default());
        (until, left)
    }
}

/// Frames of a burst on their way; their lanes are the outboxes' places.
struct ToOutboxes<'a, 'b, F> {
    /// Those that are left, the next one first. By value, so that a loop over them has its place in a register.
    frames: Drain<'b, F>,
    bytes: &'a [u32; BURST_FRAMES],
    outboxes: &'a mut [Outbox<F>],
    touched: &'a mut Touched,
}

impl<'b, F> ToOutboxes<'_, 'b, F> {
    /// Puts the next frames, the first of which has that place in the burst, into these outboxes. Gives the others.
    #[inline(always)]
    fn put_all(self, first: usize, lanes: &[u16]) -> Drain<'b, F> {
        let mut frames = self.frames;
        let Some(outboxes) = self.outboxes.first_chunk_mut::<OUTBOXES>() else {
            return frames;
        };
        let bytes = self.bytes.get(first..).unwrap_or_default();
        for (&lane, &bytes) in lanes.iter().zip(bytes) {
            let Some(frame) = frames.next() else { break };
            let outbox = &mut outboxes[usize::from(lane) % OUTBOXES];
            if outbox.frames.is_empty() {
                self.touched.push(lane);
            }
            outbox.put(frame, bytes.into());
        }
        frames
    }
}

/// Outboxes of all instances.
const OUTBOXES: usize = Slot::LIMIT * PORT_LIMIT;

/// Outboxes being emptied.
struct Flush<'a, M: FrameMemory> {
    outboxes: &'a mut [Outbox<M::Frame>; OUTBOXES],
    instances: &'a mut [Option<Box<InstancePorts<M>>>; Slot::LIMIT],
    routes: &'a [Route; Slot::LIMIT],
    slots: &'a [SlotCounters; Slot::LIMIT],
    counters: &'a WorkerCounters,
    memory: &'a mut M,
    sizes: Sizes,
    offered: Offered,
}

impl<M: FrameMemory> Flush<'_, M> {
    /// Sends what waits in an outbox, and notes what of it is still to be counted as offered. Gives how many frames that were.
    #[inline(always)]
    fn empty(&mut self, lane: u16) -> usize {
        let lane = usize::from(lane) % OUTBOXES;
        let slot = lane % Slot::LIMIT;
        let Some(instance) = &mut self.instances[slot] else {
            return 0;
        };
        let outbox = &mut self.outboxes[lane];
        let packets = outbox.frames.len();
        let bytes = std::mem::take(&mut outbox.bytes);
        let service = self.routes[slot].service;
        if self.offered.service != service {
            self.offered.count(self.counters);
            self.offered.service = service;
        }
        self.offered.packets += packets as u64;
        self.offered.bytes += bytes;
        if outbox.counted.0 > 0 {
            let (packets_counted, bytes_counted) = std::mem::take(&mut outbox.counted);
            self.offered.packets -= packets_counted;
            self.offered.bytes -= bytes_counted;
        }
        let (port, counters) = (lane / Slot::LIMIT, &self.slots[slot]);
        let sent = instance.send_all(
            port,
            &mut outbox.frames,
            (bytes, self.sizes),
            self.memory,
            counters,
        );
        if sent.full + sent.too_large > 0 {
            self.counters
                .drop_packets(DropReason::InstanceRingFull, sent.full);
            self.counters.drop_packets(DropReason::TooLarge, sent.too_large);
        }
        packets
    }
}

/// An instance of the service that takes new flows, by the flow's hash, where the pins of all of them are being purged.
#[cold]
fn being_purged(plan: &Plan, service: ServiceId, hash: u64) -> Option<Slot> {
    let takes = |p: &Option<SlotPlan>| {
        p.as_ref()
            .is_some_and(|p| p.service == service && p.state.takes_new_flows())
    };
    let count = plan.slots.iter().filter(|p| takes(p)).count();
    let wanted = ((u128::from(hash) * count as u128) >> 64) as usize;
    let (index, _) = plan
        .slots
        .iter()
        .enumerate()
        .filter(|(_, p)| takes(p))
        .nth(wanted)?;
    Some(Slot(index as u16))
}

/// The outbox of a data port.
#[inline(always)]
fn outbox_of(slot: Slot, port: u8) -> usize {
    usize::from(port) % PORT_LIMIT * Slot::LIMIT + slot.index() % Slot::LIMIT
}

/// Packets of a flow that were counted and are neither back nor dropped.
fn packets_out(row: &FlowRow) -> u64 {
    /// The table counts packets modulo this.
    const MODULUS: u64 = 1 << 40;
    let sent = row.packets[0].wrapping_add(row.packets[1]);
    let back = row.returned.unwrap_or(sent);
    let out = sent.wrapping_sub(back).wrapping_sub(row.dropped.unwrap_or(0)) % MODULUS;
    // Where more came back than was sent, the function makes packets of its own.
    if out < MODULUS / 2 { out } else { 0 }
}

/// Where a packet goes for whose flow the table has no room.
#[cold]
fn without_entry(
    service: &ServicePlan,
    candidates: &Candidates,
    hash: u64,
    counters: &WorkerCounters,
) -> Verdict {
    counters.figures.table_full.add(1);
    match service.table_full {
        TableFull::Drop => Verdict::Drop(DropReason::TableFull),
        TableFull::Hash => {
            if let Some(counters) = counters.services.get(service.id.index()) {
                counters.unpinned.add(1);
            }
            by_hash(candidates, hash)
        }
    }
}

/// An instance by the flow's hash alone: without a pin.
fn by_hash(candidates: &Candidates, hash: u64) -> Verdict {
    let place = ((u128::from(hash) * candidates.len() as u128) >> 64) as usize;
    match candidates.get(place) {
        Some(candidate) => Verdict::Instance(candidate.slot),
        None => Verdict::Drop(DropReason::NoInstance),
    }
}
