//! The thread that steers: everything that comes in is given to the core, and what the core wants is carried out.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flow_table::TcpState;
use memif::{ControlEvent, Link, Listener};
use model::{Direction, DropReason, FlowSetup, InstanceState, Nanos, ServiceId, Slot, UplinkId};
use openflow::{Event, Limits, Message, MultipartReply, MultipartRequest, PortStats, port};
use openvswitch::{Offload, Reconnecting, Turned};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use switch::{
    Change, FlowFilter, FlowRow, HEAVY_FLOW_LIMIT, HeavyFlow, Plan, SlotCounters, SwitchError, SwitchEvent,
    SwitchRequest,
};

use super::counters::{Carried, Growing, PortCounters};
use super::offloaded::OffloadedFlows;
use super::silence::{Silence, Watch};
use super::troubles::{Counts, Kind, Troubles};
use super::{DATA_PORTS, FIRST_INSTANCE, FIRST_UPLINK, OpenFlowSwitchConfig, Shared, instance_port, lock};
use crate::steering::{Fallback, InstanceTerms, Settings, Steering};
use crate::{Family, RuleState};

/// The longest sleep: the core's own times are no finer.
const SLEEP: Duration = Duration::from_micros(500);
/// How often the counters of ports are read. A reading of all takes the switch less than a millisecond.
const PORTS_EVERY: Nanos = Nanos::from_millis(10);
/// How often it is looked which flows the hardware has. A list of ten thousand takes the switch some ten milliseconds.
const OFFLOADED_EVERY: Nanos = Nanos::from_secs(1);
/// After this long without an answer they are asked for again.
const PORTS_PATIENCE: Nanos = Nanos::from_millis(500);
/// How long probes that an instance has taken may be on their way back. A function need not give them back.
const PROBE_PATIENCE: Nanos = Nanos::from_millis(100);
/// How long probes may wait for their place in an instance's ring. One that no ring took would be missed for good.
const PROBE_LIMIT: Nanos = Nanos::from_secs(2);
/// Probes that an instance which was taken over gets at most, and how far apart, until one comes back. Who has not given one back is
/// not judged by its silence; one that keeps them for good gets no more than these.
const INTRODUCTIONS: u8 = 5;
const INTRODUCTION_EVERY: Nanos = Nanos::from_millis(100);
/// How long the removal of an instance waits for a proof: without a switch there is none.
const REMOVE_PATIENCE: Nanos = Nanos::from_secs(1);
/// How long it may take until nothing moves, before what is missing is counted anyhow.
const UNSEEN_PATIENCE: Nanos = Nanos::from_secs(3);
/// Frames taken from the monitor port in one turn.
const BURST: usize = 256;
/// The longest frame of the monitor port, in bytes.
const FRAME_BYTES: usize = memif::MAX_PACKET_BYTES;

/// Whether a memif socket is there on which nobody listens. It is asked with a socket of another kind, which is refused either way:
/// a connection that is closed again before it has said anything ends DPDK 22.11, which then polls a socket that it has closed
/// itself (`memif_listener_handler`; "PANIC in `eal_intr_thread_main()`: Error adding fd").
fn is_dead(socket: &Path) -> bool {
    let Ok(address) = SocketAddrUnix::new(socket) else {
        return false;
    };
    let try_it = || {
        let ours = socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        connect(&ours, &address)
    };
    // Where somebody listens it is EPROTOTYPE.
    try_it() == Err(Errno::CONNREFUSED)
}

/// An instance, and where it is on its way in or out.
struct Attachment {
    service: ServiceId,
    ports: Vec<DataPort>,
    phase: Phase,
    failed: bool,
    /// Probes that those before it in its slot had given back.
    probes_back_before: u64,
    /// When the last probe was sent to it.
    probed: Nanos,
    /// What the ports and probes had counted when it was attached; [`None`] before.
    base: Option<Base>,
    /// What its slot had counted for those that had it before.
    before: SlotCounters,
    /// By how many packets more came back than went out, at the last reading.
    excess: u64,
    /// Whether it still takes packets.
    watch: Watch,
    /// Probes that it still gets without need, until it has given one back: it was taken over, and has not been asked yet.
    introductions: u8,
}

/// A port of an instance.
#[derive(Clone, Copy, Debug, Default)]
struct DataPort {
    /// Since the instance has it.
    counters: PortCounters,
    /// Probes sent to it.
    probes: u64,
    /// When the instance was attached: what was sent to it or dropped, the probes among that, and what had come back.
    given_before: u64,
    probes_before: u64,
    back_before: u64,
    /// What of it is in what its uplink has carried.
    carried: Carried,
}

impl DataPort {
    fn given(&self) -> u64 {
        self.counters.sent_packets.total() + self.counters.dropped.total()
    }

    fn note_base(&mut self) {
        self.given_before = self.given();
        self.probes_before = self.probes;
        self.back_before = self.counters.received_packets.total();
    }

    /// What its uplink has carried at least since this was asked the last time. `probes_back`: at most so many of what came
    /// back are probes.
    fn newly_carried(&mut self, probes_back: u64) -> Carried {
        let probes = self.probes - self.probes_before;
        let received = self.given().saturating_sub(self.given_before + probes);
        let back = self.counters.received_packets.total();
        let back = back.saturating_sub(self.back_before + probes_back);
        let new = Carried {
            received: received.saturating_sub(self.carried.received),
            sent_or_dropped: back.saturating_sub(self.carried.sent_or_dropped),
        };
        self.carried += new;
        new
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Base {
    sent_packets: u64,
    sent_bytes: u64,
    received_packets: u64,
    received_bytes: u64,
    dropped: u64,
    probes: u64,
    probes_back: u64,
}

/// Packets that were in ports which are gone.
#[derive(Clone, Copy, Debug)]
struct Unseen {
    reason: DropReason,
    since: Nanos,
    /// The least that was missing in the sum of all counters.
    least: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Its rules are on their way, then probes. `taken`: since when all of its ports have taken some, and what the last
    /// reading found.
    Probing {
        until: Nanos,
        taken: Option<(Nanos, Base)>,
    },
    /// Attached.
    Up,
    /// Its rules are being removed; whether it is told that it could not be attached, or else that it is removed.
    Leaving {
        /// [`None`] while it has failed and what it still gives may be sent on.
        proof: Option<u64>,
        since: Nanos,
        never_attached: bool,
    },
    /// Nothing is sent to it any more. Its counters are read once again.
    Left { never_attached: bool },
}

/// Everything that the thread has.
pub(super) struct Worker {
    asked: Receiver<SwitchRequest>,
    tell: Sender<SwitchEvent>,
    shared: Arc<Mutex<Shared>>,
    steering: Steering,
    settings: Settings,
    connection: Reconnecting,
    turned: Vec<Turned>,
    listener: Listener,
    monitor: Option<Link>,
    offloaded: OffloadedFlows,
    bridge: String,
    uplinks: Vec<PortCounters>,
    /// The ports for instances, by slot: they were made at the start, and each instance of a slot has them.
    pool: BTreeMap<Slot, Vec<PortCounters>>,
    /// What instances have had of each uplink.
    carried: Vec<Carried>,
    sockets: Vec<PathBuf>,
    attachments: BTreeMap<Slot, Attachment>,
    plan: Arc<Plan>,
    /// Instances that failed since the last plan.
    failing: Vec<Slot>,
    loads: BTreeMap<Slot, f32>,
    /// The question for the ports' counters, and when it was asked.
    ports_asked: Option<(u32, Nanos)>,
    ports_at: Nanos,
    ports_found: Vec<PortStats>,
    offloaded_asked: bool,
    offloaded_at: Nanos,
    frame: Box<[u8]>,
    /// What no counter saw of packets whose ports are gone.
    unseen: Option<Unseen>,
    /// What had moved at the last reading.
    moved: u64,
    /// Messages that could not be read, and packets that came over the connection unasked.
    garbled: u64,
    unasked: u64,
    troubles: Troubles,
    woken_at: Nanos,
    stopping: bool,
    /// While the rules of an earlier run are not taken over.
    adoption: Option<WaitingAdoption>,
    /// After that, until no packet moves: by how many packets the sum of all counters may be wrong at most, because ports are not read
    /// at one moment. As many as moved from the first reading to the second.
    skew: Option<u64>,
    /// By how many it was.
    skewed: i64,
}

/// What waits until the rules of an earlier run are taken over.
#[derive(Default)]
struct WaitingAdoption {
    /// Whether the switch answers. It is not asked before the first table.
    is_up: bool,
    attach: Vec<(Slot, ServiceId, Nanos)>,
}

impl Worker {
    pub(super) fn new(
        config: &OpenFlowSwitchConfig,
        steering: Steering,
        adopts: bool,
        listener: Listener,
        offloaded: OffloadedFlows,
        (asked, tell, shared): (Receiver<SwitchRequest>, Sender<SwitchEvent>, Arc<Mutex<Shared>>),
    ) -> Worker {
        for uplink in 0..config.uplinks.len() as u8 {
            // Its port is there; who is behind it shows in packets alone.
            let _ended = tell.send(SwitchEvent::UplinkUp {
                uplink: UplinkId(uplink),
                peer: format!("a port of {}", config.bridge),
            });
        }
        Worker {
            asked,
            tell,
            shared,
            steering,
            settings: config.steering.clone(),
            connection: Reconnecting::new(config.control.clone(), Limits::default()),
            turned: Vec::new(),
            listener,
            monitor: None,
            offloaded,
            bridge: config.bridge.clone(),
            uplinks: vec![PortCounters::default(); config.uplinks.len()],
            pool: (config.pool.iter())
                .map(|of| (of.slot, vec![PortCounters::default(); of.devices.len()]))
                .collect(),
            carried: vec![Carried::default(); config.uplinks.len()],
            sockets: config.sockets().cloned().collect(),
            attachments: BTreeMap::new(),
            plan: Arc::default(),
            failing: Vec::new(),
            loads: BTreeMap::new(),
            ports_asked: None,
            ports_at: Nanos::ZERO,
            ports_found: Vec::new(),
            offloaded_asked: false,
            offloaded_at: Nanos::ZERO,
            frame: vec![0; FRAME_BYTES].into_boxed_slice(),
            unseen: None,
            moved: 0,
            garbled: 0,
            unasked: 0,
            troubles: Troubles::default(),
            woken_at: clock::monotonic(),
            stopping: false,
            adoption: adopts.then(WaitingAdoption::default),
            skew: None,
            skewed: 0,
        }
    }

    pub(super) fn run(mut self) {
        while !self.stopping {
            let now = clock::monotonic();
            self.turn(now);
            self.note_turn();
            self.sleep();
            self.woken_at = clock::monotonic();
        }
    }

    fn turn(&mut self, now: Nanos) {
        self.take_asks(now);
        self.take_offloaded();
        self.take_messages(now);
        self.take_frames(now);
        self.set_terms();
        self.steering.tick(now);
        self.tell_troubles(now);
        self.step_attachments(now);
        self.ask_ports(now);
        self.ask_offloaded(now);
        self.send();
    }

    fn note_turn(&mut self) {
        let figures = self.steering.figures();
        let flows = self.steering.flow_count() as u64;
        let took = clock::monotonic().since(self.woken_at).0;
        let mut shared = lock(&self.shared);
        if let Some(worker) = shared.reading.workers.first_mut() {
            worker.turns += 1;
            worker.awake_ns += took;
            worker.busy_ns += took;
            worker.longest_gap_ns = worker.longest_gap_ns.max(took);
            worker.generation = self.plan.generation.0;
            worker.live_flows = flows;
            worker.flow_limit = self.settings.flow_limit as u64;
            worker.table_full = figures.flow_limit;
            worker.held_moves = figures.moved_buckets;
        }
    }

    fn sleep(&mut self) {
        let mut others: Vec<BorrowedFd<'_>> = vec![self.listener.as_fd()];
        others.extend(
            self.connection
                .connection()
                .map(|connection| AsFd::as_fd(&*connection)),
        );
        let mut queues = Vec::new();
        if let Some(link) = &mut self.monitor {
            others.push(link.control.as_fd());
            queues.extend(link.queues.iter_mut().map(|pair| &mut pair.rx));
        }
        if memif::wait(&mut queues, &others, SLEEP).is_err() {
            std::thread::sleep(SLEEP);
        }
    }

    // ---- what the control plane asks ---------------------------------------------------------------------------

    fn take_asks(&mut self, now: Nanos) {
        loop {
            match self.asked.try_recv() {
                Ok(ask) => self.take_ask(ask, now),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    self.stopping = true;
                    return;
                }
            }
        }
    }

    fn take_ask(&mut self, request: SwitchRequest, now: Nanos) {
        match request {
            SwitchRequest::Publish(plan) => self.publish(plan, now),
            SwitchRequest::Attach { slot, service, port } => {
                self.attach(slot, service, now + port.deadline, now);
            }
            SwitchRequest::Detach(slot) => self.detach(slot, now),
            // Its pins move by the plan that follows.
            SwitchRequest::Fail(slot) => self.failing.push(slot),
            SwitchRequest::Probe(slot) => self.probe(slot, now),
            SwitchRequest::PurgeSlot(slot) => self.steering.purge(|_, of| of == slot),
            SwitchRequest::Change(Change::PurgeFlow(key)) => self.steering.purge(|id, _| id.key == key),
            SwitchRequest::Change(Change::SetScheduler { service, scheduler }) => {
                self.steering.set_scheduler(service, scheduler);
            }
            SwitchRequest::Flows { id, filter, limit } => self.tell_flows(id, &filter, limit, now),
            SwitchRequest::HeavyFlows { id, filter } => self.tell_heavy_flows(id, &filter, now),
            // None of its uplinks waits, and what it cannot do it was not handed.
            SwitchRequest::OpenUplink(_)
            | SwitchRequest::Change(Change::MoveFlow { .. })
            | SwitchRequest::Record { .. } => {}
        }
    }

    fn tell(&self, event: SwitchEvent) {
        // Nobody listens only where the control plane has ended.
        let _ended = self.tell.send(event);
    }

    fn publish(&mut self, plan: Arc<Plan>, now: Nanos) {
        // That they failed is known before they leave the plan.
        for slot in std::mem::take(&mut self.failing) {
            if let Some(attachment) = self.attachments.get_mut(&slot) {
                attachment.failed = true;
            }
            self.steering.fail(slot);
        }
        // Who is not in the table any more has no flows.
        for slot in (0..self.plan.slots.len() as u16).map(Slot) {
            if self.plan.slot(slot).is_some() && plan.slot(slot).is_none() {
                self.steering.remove(slot, now);
            }
        }
        if (self.plan.unmatched, self.plan.other) != (plan.unmatched, plan.other)
            || self.plan.generation.0 == 0
        {
            let port_of = |uplink: UplinkId| FIRST_UPLINK + u32::from(uplink.0);
            let mut fallbacks = Vec::new();
            for uplink in (0..self.uplinks.len() as u8).map(UplinkId) {
                for family in [Family::Ipv4, Family::Ipv6, Family::Other] {
                    let of = match family {
                        Family::Other => plan.other,
                        Family::Ipv4 | Family::Ipv6 => plan.unmatched,
                    };
                    fallbacks.push(Fallback {
                        port: port_of(uplink),
                        family,
                        to: of.exit(uplink).map(port_of),
                    });
                }
            }
            self.steering.set_fallbacks(&fallbacks);
        }
        self.plan = plan;
        if self
            .adoption
            .as_mut()
            .is_some_and(|waiting| std::mem::take(&mut waiting.is_up))
        {
            self.steering.connected();
        }
        self.set_terms();
        let mut shared = lock(&self.shared);
        shared.reading.acknowledged = self.plan.generation;
        drop(shared);
        self.count_flows();
    }

    /// Gives the core what the table and the loads say of each instance.
    fn set_terms(&mut self) {
        let shared = lock(&self.shared);
        for (slot, load) in &shared.loads {
            self.loads.insert(*slot, *load);
        }
        drop(shared);
        for (index, row) in self.plan.slots.iter().enumerate() {
            let slot = Slot(index as u16);
            let Some(row) = row else { continue };
            self.steering.set_terms(
                slot,
                InstanceTerms {
                    takes_flows: row.state == InstanceState::Active,
                    capacity: self.plan.capacity(row),
                    load: self.loads.get(&slot).copied().unwrap_or_default(),
                    weight: row.weight,
                    active_since: row.active_since,
                },
            );
        }
    }

    // ---- instances -----------------------------------------------------------------------------------------------

    fn attach(&mut self, slot: Slot, service: ServiceId, until: Nanos, now: Nanos) {
        if self.attachments.contains_key(&slot) {
            self.tell(SwitchEvent::AttachFailed {
                slot,
                reason: SwitchError::SlotInUse { slot }.to_string(),
            });
            return;
        }
        if let Some(waiting) = &mut self.adoption
            && now < until
        {
            waiting.attach.push((slot, service, until));
            return;
        }
        let Some(pooled) = self.pool.get_mut(&slot) else {
            self.attach_failed(slot, format!("no ports were made for {slot}"));
            return;
        };
        // One of an earlier run has been counted since this one reads counters.
        let is_back = self.steering.is_awaited(slot);
        if !is_back {
            pooled.iter_mut().for_each(PortCounters::forget);
        }
        let counters = pooled.iter().copied();
        let ports = counters.map(|counters| DataPort {
            counters,
            ..DataPort::default()
        });
        let ports: Vec<DataPort> = ports.collect();
        let numbers = (0..ports.len()).map(|port| instance_port(slot, port)).collect();
        let before = {
            let shared = lock(&self.shared);
            shared.reading.slots.get(slot.index()).copied()
        };
        self.attachments.insert(
            slot,
            Attachment {
                service,
                ports,
                phase: Phase::Probing { until, taken: None },
                failed: false,
                probes_back_before: self.steering.slot_figures(slot).probes_back,
                probed: Nanos::ZERO,
                base: is_back.then(Base::default),
                before: before.unwrap_or_default(),
                excess: 0,
                watch: Watch::default(),
                introductions: if is_back { INTRODUCTIONS } else { 0 },
            },
        );
        if self.steering.is_failing(slot) {
            self.steering.forget(slot, now);
        }
        self.steering.attach(slot, service, numbers);
    }

    fn take_offloaded(&mut self) {
        while let Some(found) = self.offloaded.found() {
            self.offloaded_asked = false;
            self.steering.set_offloaded(found.as_deref());
        }
    }

    fn attach_failed(&self, slot: Slot, reason: String) {
        self.tell(SwitchEvent::AttachFailed { slot, reason });
    }

    /// What the instance still had when its ports went: lost where it failed, else kept by it.
    fn close(&self, slot: Slot, attachment: &Attachment) -> u64 {
        let mut shared = lock(&self.shared);
        let counters = &mut shared.reading;
        let Some(sum) = counters.slots.get_mut(slot.index()) else {
            return 0;
        };
        let outstanding =
            (sum.to_packets + sum.originated).saturating_sub(sum.back_packets + sum.lost + sum.kept);
        sum.live_flows = 0;
        if attachment.failed {
            // Some may have come back since the last reading: how many are lost shows in the uplinks.
            sum.lost += outstanding;
            return outstanding;
        }
        sum.kept += outstanding;
        if let Some(drops) = counters.drops.get_mut(DropReason::Function.index()) {
            *drops += outstanding;
        }
        outstanding
    }

    fn detach(&mut self, slot: Slot, now: Nanos) {
        self.steering.remove(slot, now);
        self.loads.remove(&slot);
        match self.attachments.get_mut(&slot) {
            Some(attachment) => match &mut attachment.phase {
                Phase::Leaving { never_attached, .. } | Phase::Left { never_attached } => {
                    *never_attached = false;
                }
                Phase::Probing { .. } | Phase::Up => {
                    attachment.phase = Phase::Leaving {
                        proof: None,
                        since: now,
                        never_attached: false,
                    };
                }
            },
            None => self.tell(SwitchEvent::Detached { slot, outstanding: 0 }),
        }
    }

    fn probe(&mut self, slot: Slot, now: Nanos) {
        let Some(attachment) = self.attachments.get_mut(&slot) else {
            return;
        };
        if let Some(port) = attachment.ports.first_mut() {
            port.probes += 1;
            attachment.probed = now;
            self.steering.probe(slot, 0);
        }
    }

    /// Carries those on that are on their way in or out.
    fn step_attachments(&mut self, now: Nanos) {
        let mut failed = Vec::new();
        for (slot, attachment) in &mut self.attachments {
            if let Phase::Leaving { proof, .. } = &mut attachment.phase
                && proof.is_none()
                && !self.steering.is_failing(*slot)
            {
                *proof = Some(self.steering.want_proof());
            }
            match attachment.phase {
                Phase::Probing { until, .. } if now > until => failed.push(*slot),
                Phase::Leaving {
                    proof,
                    since,
                    never_attached,
                } if proof.is_some_and(|proof| self.steering.is_proven(proof))
                    || now.since(since) > REMOVE_PATIENCE =>
                {
                    attachment.phase = Phase::Left { never_attached };
                    if self.connection.connection().is_some() {
                        // What was asked for before this is no reading of its end.
                        self.ports_asked = None;
                        self.ports_at = now;
                    }
                }
                _ => {}
            }
        }
        if self.connection.connection().is_none() {
            self.let_go(now);
        }
        for slot in failed {
            self.steering.remove(slot, now);
            if let Some(attachment) = self.attachments.get_mut(&slot) {
                attachment.phase = Phase::Leaving {
                    proof: None,
                    since: now,
                    never_attached: true,
                };
            }
        }
    }

    /// Gives the ports of those that have left back. Without a switch there is no last reading.
    fn let_go(&mut self, now: Nanos) {
        let left = |(slot, attachment): (&Slot, &Attachment)| match attachment.phase {
            Phase::Left { never_attached } => Some((*slot, never_attached)),
            _ => None,
        };
        let left: Vec<(Slot, bool)> = self.attachments.iter().filter_map(left).collect();
        for (slot, never_attached) in left {
            let Some(attachment) = self.attachments.remove(&slot) else {
                continue;
            };
            if never_attached {
                self.attach_failed(slot, "it takes no packets from its port".to_owned());
            } else {
                if attachment.failed {
                    self.miss(DropReason::InstanceLost, now);
                }
                let outstanding = self.close(slot, &attachment);
                self.tell(SwitchEvent::Detached { slot, outstanding });
            }
        }
    }

    // ---- the switch ----------------------------------------------------------------------------------------------

    fn take_messages(&mut self, now: Nanos) {
        self.connection.turn(now.0, &mut self.turned);
        let mut turned = std::mem::take(&mut self.turned);
        for event in turned.drain(..) {
            match event {
                Turned::Up(features) => {
                    tracing::info!(
                        datapath = format!("{:016x}", features.datapath),
                        "the switch answers"
                    );
                    match &mut self.adoption {
                        Some(waiting) if self.plan.generation.0 == 0 => waiting.is_up = true,
                        _ => self.steering.connected(),
                    }
                    if let Some(event) = self.troubles.back(now) {
                        self.tell(event);
                    }
                }
                Turned::Said(Event::Message {
                    xid,
                    message:
                        Message::MultipartReply {
                            more,
                            reply: MultipartReply::Ports(ports),
                        },
                }) => self.ports_counted(xid, ports, more, now),
                Turned::Said(Event::Message { xid, message }) => {
                    match &message {
                        Message::Error(error) => tracing::debug!(?error, "the switch refuses"),
                        Message::PacketIn(_) if self.settings.setup == FlowSetup::Proactive => {
                            self.unasked += 1
                        }
                        _ => {}
                    }
                    self.steering.message(xid, &message, now);
                }
                Turned::Said(Event::Garbled { kind, error }) => {
                    tracing::debug!(kind, %error, "the switch says what nobody can read");
                    self.garbled += 1;
                }
                Turned::Said(Event::Agreed(_)) => {}
                Turned::Down(error) => {
                    tracing::debug!(%error, "no connection to the switch");
                    if let Some(event) = self.troubles.away(&error.to_string(), now) {
                        self.tell(event);
                    }
                    self.ports_asked = None;
                    if let Some(waiting) = &mut self.adoption {
                        waiting.is_up = false;
                    }
                    self.steering.disconnected();
                    self.remove_dead_sockets();
                }
            }
        }
        self.turned = turned;
    }

    fn tell_troubles(&mut self, now: Nanos) {
        let figures = self.steering.figures();
        let counts: Counts = [
            (Kind::Refused, figures.refused),
            (Kind::Evicted, figures.evicted),
            (Kind::Errors, figures.errors),
            (Kind::Garbled, self.garbled),
            (Kind::Unasked, self.unasked),
        ];
        let tell = &self.tell;
        self.troubles.look(&counts, now, |event| {
            // Nobody listens only where the control plane has ended.
            let _ended = tell.send(event);
        });
    }

    /// A switch that was killed has left its sockets, and could not listen there again.
    fn remove_dead_sockets(&self) {
        for socket in &self.sockets {
            if is_dead(socket) {
                let _none = std::fs::remove_file(socket);
            }
        }
    }

    fn take_frames(&mut self, now: Nanos) {
        // It listens for as long as this runs; a client that is refused is the switch's to try again.
        if let Ok(Some(link)) = self.listener.accept(Duration::ZERO) {
            self.monitor = Some(link);
        }
        let Some(link) = &mut self.monitor else { return };
        for pair in &mut link.queues {
            for _ in 0..BURST {
                match pair.rx.pop(&mut self.frame) {
                    Some(Ok(length)) => {
                        self.steering
                            .monitor(self.frame.get(..length).unwrap_or_default(), now);
                    }
                    Some(Err(_)) => {}
                    None => break,
                }
            }
            pair.rx.release();
        }
        let is_over = !matches!(link.control.poll(), Ok(ControlEvent::None))
            || (link.queues.iter()).any(|pair| pair.rx.is_violated() || pair.tx.is_violated());
        if is_over {
            tracing::warn!("the monitor port is down");
            self.monitor = None;
        }
    }

    fn send(&mut self) {
        if let Some(link) = &mut self.monitor
            && let Some(pair) = link.queues.first_mut()
        {
            while pair.tx.free() > 0
                && let Some(frame) = self.steering.next_injection()
            {
                // There is room; a frame that is too long for all of the ring came out of one like it.
                let _pushed = pair.tx.push(&frame);
            }
            pair.tx.flush();
        }
        if let Some(connection) = self.connection.connection() {
            self.steering.send(|message| connection.send(message).ok());
        }
    }

    // ---- counters ------------------------------------------------------------------------------------------------

    fn ask_ports(&mut self, now: Nanos) {
        if let Some((_, since)) = self.ports_asked
            && now.since(since) < PORTS_PATIENCE
        {
            return;
        }
        if now < self.ports_at {
            return;
        }
        if let Some(connection) = self.connection.connection() {
            let ask = Message::MultipartRequest(MultipartRequest::Ports(port::ANY));
            if let Ok(xid) = connection.send(&ask) {
                self.ports_asked = Some((xid, now));
                self.ports_at = now + PORTS_EVERY;
                self.ports_found.clear();
            }
        }
    }

    fn ask_offloaded(&mut self, now: Nanos) {
        if !self.offloaded_asked && now >= self.offloaded_at {
            self.offloaded_asked = true;
            self.offloaded_at = now + OFFLOADED_EVERY;
            self.offloaded.ask();
        }
    }

    fn ports_counted(&mut self, xid: u32, ports: Vec<PortStats>, more: bool, now: Nanos) {
        if self.ports_asked.map(|(asked, _)| asked) != Some(xid) {
            return;
        }
        self.ports_found.extend(ports);
        if more {
            return;
        }
        self.ports_asked = None;
        let found = std::mem::take(&mut self.ports_found);
        let is_anew = |(index, counters): (u32, &PortCounters)| {
            let of_port = found.iter().find(|stats| stats.port == FIRST_UPLINK + index);
            of_port.is_some_and(|stats| counters.was_made_anew(stats))
        };
        if (0..).zip(&self.uplinks).any(is_anew) {
            self.note_restart(now);
        }
        for stats in found {
            let uplink = stats.port.checked_sub(FIRST_UPLINK).map(|index| index as usize);
            if let Some(counters) = uplink.and_then(|index| self.uplinks.get_mut(index)) {
                counters.read(&stats);
            } else if let Some(place) = stats.port.checked_sub(FIRST_INSTANCE) {
                let slot = Slot((place / DATA_PORTS) as u16);
                let number = (place % DATA_PORTS) as usize;
                let Some(counters) = self.pool.get_mut(&slot).and_then(|of| of.get_mut(number)) else {
                    continue;
                };
                counters.read(&stats);
                if let Some(attachment) = self.attachments.get_mut(&slot)
                    && let Some(port) = attachment.ports.get_mut(number)
                {
                    port.counters = *counters;
                }
            }
        }
        if self.adoption.is_some() {
            if self.steering.figures().reconciled > 0 {
                self.begin_to_count(now);
            }
            return;
        }
        self.count_instances(now);
        self.count_switch(now);
        self.let_go(now);
        self.settle_unseen(now);
    }

    /// What an earlier run left is taken over: what its ports have counted is not this run's.
    fn begin_to_count(&mut self, now: Nanos) {
        self.uplinks.iter_mut().for_each(PortCounters::forget);
        let pooled = self.pool.values_mut().flatten();
        pooled.for_each(PortCounters::forget);
        self.skew = Some(u64::MAX);
        for (slot, service, until) in self.adoption.take().map(|of| of.attach).unwrap_or_default() {
            self.attach(slot, service, until, now);
        }
    }

    /// The switch was started again: what instances had not given back is lost with its rings.
    fn note_restart(&mut self, now: Nanos) {
        let mut shared = lock(&self.shared);
        for slot in &mut shared.reading.slots {
            let gone = slot.back_packets + slot.lost + slot.kept;
            slot.lost += (slot.to_packets + slot.originated).saturating_sub(gone);
        }
        drop(shared);
        // Functions have to connect again.
        for attachment in self.attachments.values_mut() {
            attachment.watch = Watch::default();
        }
        self.miss(DropReason::Shutdown, now);
    }

    /// From now on packets may be missing for that reason.
    fn miss(&mut self, reason: DropReason, since: Nanos) {
        self.unseen.get_or_insert(Unseen {
            reason,
            since,
            least: i64::MAX,
        });
    }

    /// A port that is gone takes with it what it counted since it was read last, at most [`PORTS_EVERY`] before: what became of those
    /// packets is in the counters of the uplinks alone. Once nothing moves they are what is missing there; where something always
    /// does, the least that was missing at any reading, since ports are not read at one moment.
    fn settle_unseen(&mut self, now: Nanos) {
        let mut shared = lock(&self.shared);
        let reading = &mut shared.reading;
        let slots = reading.slots.iter();
        let inside: u64 = slots
            .map(|slot| slot.to_packets + slot.back_packets + slot.ring_drops)
            .sum();
        let moved = reading.offered() + reading.sent() + inside;
        let rests = std::mem::replace(&mut self.moved, moved) == moved;
        if self.skew == Some(u64::MAX) {
            self.skew = Some(moved);
        }
        let in_flight = reading.in_flight();
        let came = reading.offered() + reading.originated();
        let missing = came.cast_signed() - (reading.sent() + reading.dropped() + in_flight).cast_signed();
        if rests
            && in_flight == 0
            && self.unseen.is_none()
            && let Some(limit) = self.skew.take()
            && missing.unsigned_abs() <= limit
            && let Some(uplink) = reading.uplinks.first_mut()
        {
            uplink.received_packets = uplink.received_packets.saturating_add_signed(-missing);
            self.skewed = -missing;
        }
        let Some(unseen) = &mut self.unseen else { return };
        unseen.least = unseen.least.min(missing);
        let is_under_way = in_flight > 0 || self.attachments.values().any(|of| of.failed);
        let is_over = rests && !is_under_way;
        if !is_over && now.since(unseen.since) < UNSEEN_PATIENCE {
            return;
        }
        let missing = if is_over { missing } else { unseen.least };
        if let Some(drops) = reading.drops.get_mut(unseen.reason.index()) {
            *drops += u64::try_from(missing).unwrap_or(0);
        }
        (unseen.since, unseen.least) = (now, i64::MAX);
        if is_over {
            self.unseen = None;
        }
    }

    /// What was read, as what each instance was given and gave back. Those that have taken probes are attached.
    fn count_instances(&mut self, now: Nanos) {
        let mut attached = Vec::new();
        let mut probes = Vec::new();
        let mut stalled = Vec::new();
        let shared = Arc::clone(&self.shared);
        let mut shared = lock(&shared);
        let counters = &mut shared.reading;
        for (slot, attachment) in &mut self.attachments {
            let figures = self.steering.slot_figures(*slot);
            let sum = |of: fn(&PortCounters) -> Growing| -> u64 {
                (attachment.ports.iter())
                    .map(|port| of(&port.counters).total())
                    .sum()
            };
            let totals = Base {
                sent_packets: sum(|port| port.sent_packets),
                sent_bytes: sum(|port| port.sent_bytes),
                received_packets: sum(|port| port.received_packets),
                received_bytes: sum(|port| port.received_bytes),
                dropped: sum(|port| port.dropped),
                probes: attachment.ports.iter().map(|port| port.probes).sum(),
                probes_back: figures.probes_back - attachment.probes_back_before,
            };
            if let Phase::Probing { until, taken } = attachment.phase
                && attachment.base.is_none()
            {
                if !self.steering.is_in_force(*slot) {
                    continue;
                }
                let is_taken = |port: &DataPort| port.counters.sent_packets.total() > 0;
                if !attachment.ports.iter().all(is_taken) {
                    for (number, port) in attachment.ports.iter_mut().enumerate() {
                        if !is_taken(port) {
                            port.probes += 1;
                            attachment.probed = now;
                            probes.push((*slot, number as u8));
                        }
                    }
                    continue;
                }
                let (since, last) = taken.unwrap_or((now, Base::default()));
                attachment.phase = Phase::Probing {
                    until,
                    taken: Some((since, totals)),
                };
                // None is under way any more that would be taken for a packet. What the port's last instance had after its
                // counters could be read for the last time is in them, too: so they have to stand still.
                let are_sent = totals == last && totals.sent_packets + totals.dropped >= totals.probes;
                let are_back = totals.received_packets >= totals.sent_packets
                    && totals.probes_back >= totals.received_packets;
                let waited = now.since(since);
                if !are_sent && waited < PROBE_LIMIT || !are_back && waited < PROBE_PATIENCE {
                    continue;
                }
                attachment.base = Some(Base {
                    // One may have come back after the ports were read.
                    probes_back: totals.probes_back.min(totals.received_packets),
                    ..totals
                });
                attachment.ports.iter_mut().for_each(DataPort::note_base);
                attachment.phase = Phase::Up;
                attached.push(*slot);
            }
            if matches!(attachment.phase, Phase::Probing { .. }) && self.steering.is_in_force(*slot) {
                // It has been there all the time.
                attachment.phase = Phase::Up;
                attached.push(*slot);
            }
            let Some(base) = attachment.base else { continue };
            let state = self.plan.slot(*slot).map(|row| row.state);
            let serves = matches!(state, Some(InstanceState::Active | InstanceState::Draining))
                && attachment.phase == Phase::Up
                && !attachment.failed;
            if totals.probes_back > 0 {
                attachment.introductions = 0;
            } else if attachment.introductions > 0
                && serves
                && now.since(attachment.probed) >= INTRODUCTION_EVERY
                && let Some(port) = attachment.ports.first_mut()
            {
                attachment.introductions -= 1;
                port.probes += 1;
                attachment.probed = now;
                probes.push((*slot, 0));
            }
            // Who does not give probes back cannot be asked.
            let may_be_silent = !serves || totals.probes_back == 0;
            let given = totals.sent_packets + totals.dropped;
            match (attachment.watch).look(given, totals.received_packets, may_be_silent, now) {
                Silence::None => {}
                Silence::Ask => {
                    if let Some(port) = attachment.ports.first_mut() {
                        port.probes += 1;
                        attachment.probed = now;
                        probes.push((*slot, 0));
                    }
                }
                Silence::Stalled(silent) => stalled.push((*slot, silent)),
            }
            let service = self.plan.services.iter().find(|of| of.id == attachment.service);
            // A probe may be in the port's counter of what came back before it is here.
            let under_way = totals.probes.saturating_sub(totals.probes_back);
            let is_fresh = now.since(attachment.probed) < PROBE_LIMIT;
            let probes_back = totals.probes_back + if is_fresh { under_way } else { 0 };
            let back_later = probes_back.saturating_sub(base.probes_back);
            for (port, uplink) in (attachment.ports.iter_mut()).zip(service.map_or(&[][..], |of| &of.uplinks))
            {
                if let Some(carried) = self.carried.get_mut(usize::from(uplink.0)) {
                    *carried += port.newly_carried(back_later);
                }
            }
            let Some(place) = counters.slots.get_mut(slot.index()) else {
                continue;
            };
            let before = attachment.before;
            let since = |now: u64, base: u64| now.saturating_sub(base);
            let probes_later = since(totals.probes, base.probes);
            let to = since(since(totals.sent_packets, base.sent_packets), probes_later);
            let back = since(since(totals.received_packets, base.received_packets), back_later);
            // A packet that came back is read before those that went out are: only what stays too much was made there.
            let excess = back.saturating_sub(to);
            let originated = excess.min(attachment.excess);
            attachment.excess = excess;
            let offered_before = place.to_packets + place.ring_drops;
            let bytes_before = place.to_bytes;
            place.to_packets = place.to_packets.max(before.to_packets + to);
            place.to_bytes = place
                .to_bytes
                .max(before.to_bytes + since(totals.sent_bytes, base.sent_bytes));
            place.back_packets = place.back_packets.max(before.back_packets + back);
            place.back_bytes = place
                .back_bytes
                .max(before.back_bytes + since(totals.received_bytes, base.received_bytes));
            place.ring_drops = place
                .ring_drops
                .max(before.ring_drops + since(totals.dropped, base.dropped));
            place.originated = place.originated.max(before.originated + originated);
            place.consumed = before.consumed + totals.probes_back.saturating_sub(base.probes_back);
            let offered = (place.to_packets + place.ring_drops).saturating_sub(offered_before);
            if let Some(service) = counters.services.get_mut(attachment.service.index()) {
                service.offered_packets += offered;
                service.offered_bytes += place.to_bytes.saturating_sub(bytes_before);
            }
        }
        drop(shared);
        for (slot, number) in probes {
            self.steering.probe(slot, number);
        }
        for (slot, silent) in stalled {
            self.tell(SwitchEvent::Stalled { slot, silent });
        }
        for slot in attached {
            self.tell(SwitchEvent::Attached {
                slot,
                peer: format!("a port of {}", self.bridge),
            });
        }
        self.count_flows();
    }

    /// How many flows each instance has. One that drains and may still be given some is not empty.
    fn count_flows(&mut self) {
        let shared = Arc::clone(&self.shared);
        let mut shared = lock(&shared);
        for slot in self.attachments.keys() {
            let figures = self.steering.slot_figures(*slot);
            let drains = (self.plan.slot(*slot)).is_some_and(|row| row.state == InstanceState::Draining);
            let may_get = u64::from(drains && self.steering.may_get_flows(*slot));
            if let Some(place) = shared.reading.slots.get_mut(slot.index()) {
                place.live_flows = figures.live_flows.max(may_get);
                place.new_flows = place.new_flows.max(figures.new_flows);
            }
        }
    }

    fn count_switch(&mut self, now: Nanos) {
        let figures = self.steering.figures();
        let mut shared = lock(&self.shared);
        let counters = &mut shared.reading;
        for (uplink, (sum, port)) in (FIRST_UPLINK..).zip(counters.uplinks.iter_mut().zip(&self.uplinks)) {
            let carried = self.carried.get((uplink - FIRST_UPLINK) as usize);
            let mut carried = carried.copied().unwrap_or_default();
            for (fallback, packets) in self.steering.fallback_packets() {
                carried.received += packets * u64::from(fallback.port == uplink);
                carried.sent_or_dropped += packets * u64::from(fallback.to == Some(uplink));
            }
            let (mut received, sent) = port.carried(carried);
            if uplink == FIRST_UPLINK {
                received = received.saturating_add_signed(self.skewed);
            }
            sum.received_packets = sum.received_packets.max(received);
            sum.received_bytes = port.received_bytes.total();
            sum.sent_packets = sum.sent_packets.max(sent);
            sum.sent_bytes = port.sent_bytes.total();
            sum.dropped = port.dropped.total();
        }
        let full_rings = counters.slots.iter().map(|slot| slot.ring_drops).sum();
        let full_uplinks = counters.uplinks.iter().map(|uplink| uplink.dropped).sum();
        let met = |is_meant: fn(Fallback) -> bool| -> u64 {
            let of = self.steering.fallback_packets();
            of.filter(|(fallback, _)| is_meant(*fallback))
                .map(|(_, packets)| packets)
                .sum()
        };
        let unmatched = met(|of| of.to.is_none() && of.family != Family::Other);
        let other = met(|of| of.to.is_none() && of.family == Family::Other);
        for (reason, packets) in [
            (DropReason::InstanceRingFull, full_rings),
            (DropReason::UplinkRingFull, full_uplinks),
            (DropReason::Unmatched, unmatched),
            (DropReason::Other, other),
            (DropReason::NoInstance, figures.unserved),
            (DropReason::HandOffFull, figures.inject_full),
        ] {
            if let Some(drops) = counters.drops.get_mut(reason.index()) {
                *drops = packets;
            }
        }
        if let Some(worker) = counters.workers.first_mut() {
            worker.passed = met(|of| of.to.is_some());
            worker.received = counters
                .uplinks
                .iter()
                .map(|uplink| uplink.received_packets)
                .sum();
        }
        counters.at = now;
    }

    // ---- flows ---------------------------------------------------------------------------------------------------

    /// A flow, as every switch shows it.
    fn row(&self, of: &crate::FlowRow, now: Nanos) -> FlowRow {
        let symmetric = (self.plan.services.iter()).any(|plan| plan.id == of.service && plan.symmetric);
        let opener = of.id.opens();
        let mut pins = [Slot::NONE; 2];
        pins[opener.index()] = of.slot;
        if symmetric {
            pins[opener.flipped().index()] = of.slot;
        }
        let at = |value: u64| match opener {
            Direction::Forward => [value, 0],
            Direction::Reverse => [0, value],
        };
        FlowRow {
            key: of.id.key,
            opener,
            service: of.service,
            pins,
            pinned_at: pins.map(|pin| pin.is_some().then_some(of.pinned_at)),
            packets: at(of.packets),
            bytes: at(of.bytes),
            idle: now.since(of.seen),
            tcp: TcpState::None,
            returned: None,
            dropped: None,
        }
    }

    fn tell_flows(&self, id: u64, filter: &FlowFilter, limit: usize, now: Nanos) {
        let mut rows = Vec::new();
        let mut rules = Vec::new();
        let mut complete = true;
        for of in self.steering.flows() {
            let row = self.row(&of, now);
            if !filter.matches(&row) {
                continue;
            }
            if rows.len() >= limit {
                complete = false;
                break;
            }
            rows.push(row);
            let told = of.state.told();
            rules.push(match (of.state, of.offload) {
                (RuleState::Refused { .. }, _) => told.into_owned(),
                (RuleState::Installed, Some(Offload::Full)) => format!("{told}, offloaded"),
                (RuleState::Installed, Some(Offload::Partial)) => format!("{told}, partly offloaded"),
                (RuleState::Installed, Some(Offload::None)) => format!("{told}, not offloaded"),
                _ => told.into_owned(),
            });
        }
        self.tell(SwitchEvent::Flows {
            id,
            rows,
            rules,
            complete,
        });
    }

    fn tell_heavy_flows(&self, id: u64, filter: &FlowFilter, now: Nanos) {
        let mut rows: Vec<HeavyFlow> = self
            .steering
            .flows()
            .map(|of| HeavyFlow {
                row: self.row(&of, now),
                pps: of.pps,
                error_pps: 0.0,
            })
            .filter(|heavy| heavy.pps > 0.0 && filter.matches(&heavy.row))
            .collect();
        rows.sort_by(|a, b| b.pps.total_cmp(&a.pps));
        rows.truncate(HEAVY_FLOW_LIMIT);
        self.tell(SwitchEvent::HeavyFlows { id, rows });
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{accept, bind, listen};

    use super::*;

    #[test]
    fn whoever_listens_is_not_disturbed_by_the_question() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("wan.sock");
        assert!(!is_dead(&path), "there is none");
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&listener, 1).unwrap();
        assert!(!is_dead(&path));
        assert_eq!(
            accept(&listener).unwrap_err(),
            Errno::AGAIN,
            "nobody has connected"
        );
        drop(listener);
        assert!(is_dead(&path));
    }
}
