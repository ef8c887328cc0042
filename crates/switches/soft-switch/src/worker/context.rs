//! State that all stages of a worker use: its ports, its memory, its counters, and the plan of this turn.

use std::sync::Arc;

use arc_swap::{ArcSwap, Cache};
use flow_table::FlowHasher;
use model::{DropReason, FlowKey, Generation, InstanceId, Nanos, ServiceId, Slot, UplinkId, WorkerId};
use rtrb::Producer;
use simd::Level;

use crate::counters::WorkerCounters;
use crate::ends::Ends;
use crate::frame::{Frame as _, FrameMemory};
use crate::id_map::{SlotMap, UplinkMap};
use crate::instance::{InstancePorts, PORT_LIMIT};
use crate::message::WorkerEvent;
use crate::plan::WorkerPlan;
use crate::port::Port;
use crate::tunnels::ERRORS_LIMIT;
use crate::worker::OUTBOX_FRAMES;
use crate::worker::chain::Chains;
use crate::worker::paths::Paths;
use crate::worker::rules::PathContext;
use crate::worker::tap::{Seen, Tap};

/// State that all stages of a worker use.
pub(crate) struct Context<M: FrameMemory> {
    /// Which worker.
    pub(crate) id: WorkerId,
    /// How many there are.
    pub(crate) workers: usize,
    /// When this turn began.
    pub(crate) now: Nanos,
    pub(crate) hasher: FlowHasher,
    /// The vector instructions that the steps of a burst may use.
    pub(crate) level: Level,
    pub(crate) memory: M,
    pub(crate) counters: Arc<WorkerCounters>,
    pub(crate) ends: Arc<Ends>,
    pub(crate) ports: Ports<M>,
    pub(crate) view: View,
    /// Events for the control plane.
    pub(crate) events: Producer<WorkerEvent<M>>,
    /// The capture that runs.
    pub(crate) tap: Tap,
    /// Messages of instances about moves with state, with their slots, of this turn: at most [`MESSAGES_LIMIT`].
    pub(crate) said: Vec<(Slot, M::Frame)>,
    /// The fast path beside it, if there is one.
    pub(crate) paths: Option<Box<Paths>>,
}

/// Messages that a worker takes in one turn, at most: one for each phase of all its moves. More come from an instance that
/// says what nobody asked.
pub(crate) const MESSAGES_LIMIT: usize = 1024;

impl<M: FrameMemory> Context<M> {
    /// The fast path, and what its rules are looked at with.
    #[inline]
    pub(crate) fn paths(&mut self) -> Option<(&mut Paths, PathContext<'_, M>)> {
        let context = PathContext {
            now: self.now,
            counters: &self.counters,
            ends: &self.ends,
            view: &self.view,
            ports: &self.ports,
            is_captured: self.tap.is_on(),
        };
        Some((self.paths.as_deref_mut()?, context))
    }

    /// Shuts the rule of a flow that is about to get an instance, or to lose its own.
    #[inline(always)]
    pub(crate) fn shut_path(&mut self, key: &FlowKey, hash: u64) {
        if self.paths.as_ref().is_some_and(|paths| paths.has_rules())
            && let Some((paths, with)) = self.paths()
        {
            paths.forget(key, hash, &with);
        }
    }

    /// Shuts the rules of all flows of an instance.
    pub(crate) fn shut_paths_of(&mut self, slot: Slot) {
        if let Some((paths, with)) = self.paths() {
            paths.shut_all(&with, |rule| rule.slot != slot);
        }
    }

    /// Whose a packet of the instance in that slot is.
    pub(crate) fn seen(&self, slot: Slot) -> Seen {
        let route = &self.view.routes[slot];
        Seen {
            slot: Some(slot),
            instance: Some(route.instance),
            service: Some(route.service),
            ..Seen::default()
        }
    }

    /// Drops a packet that was not offered to a service.
    #[cold]
    pub(crate) fn discard(&mut self, frame: M::Frame, reason: DropReason) {
        self.discard_of(frame, Seen::default(), reason);
    }

    /// Drops a packet, of which so much is known.
    #[cold]
    pub(crate) fn discard_of(&mut self, frame: M::Frame, of: Seen, reason: DropReason) {
        self.tap.see_dropped(self.now, of, reason, frame.bytes());
        self.counters.drop_packets(reason, 1);
        self.memory.give(frame);
    }

    /// Takes a message of the instance in a slot.
    pub(crate) fn hear(&mut self, slot: Slot, frame: M::Frame) {
        if self.said.len() < MESSAGES_LIMIT {
            self.said.push((slot, frame));
        } else {
            self.counters.figures.state_messages_refused.add(1);
            self.memory.give(frame);
        }
    }

    /// Sends an event to the control plane. Commands are taken only while there is room for their events.
    pub(crate) fn send_event(&mut self, event: WorkerEvent<M>) {
        if self.events.push(event).is_err() {
            self.counters.figures.events_lost.add(1);
        }
    }

    /// The worker that owns flows between the addresses of this one, where that is another.
    #[inline]
    pub(crate) fn other_owner(&self, key: &FlowKey) -> Option<usize> {
        if self.workers == 1 {
            return None;
        }
        let owner = self.hasher.owner(key, self.workers);
        (owner != self.id.index()).then_some(owner)
    }
}

/// The ports of a worker: its queues of uplinks, and the instances whose home worker it is.
pub(crate) struct Ports<M: FrameMemory> {
    pub(crate) uplinks: UplinkMap<Option<Box<Port<M>>>>,
    pub(crate) instances: SlotMap<Option<Box<InstancePorts<M>>>>,
    /// Slots with instances here, in the order of their attachment.
    pub(crate) attached: Vec<Slot>,
    /// Data ports that got packets in this turn, each once.
    pub(crate) sent_to: Vec<(Slot, usize)>,
    /// Data ports that gave packets in this turn, each once.
    pub(crate) received_from: Vec<(Slot, usize)>,
    /// Packets of tunnels whose uplink another worker has, and errors for senders whose packets did not fit.
    pub(crate) away: Vec<(UplinkId, M::Frame)>,
    /// The uplink that packets of tunnels were put into in this turn.
    pub(crate) tunnelled: Option<UplinkId>,
    /// Whether an uplink gave packets in this turn.
    pub(crate) uplinks_gave: bool,
}

impl<M: FrameMemory> Ports<M> {
    pub(crate) fn new() -> Ports<M> {
        Ports {
            uplinks: UplinkMap::from_fn(|| None),
            instances: SlotMap::from_fn(|| None),
            attached: Vec::with_capacity(Slot::LIMIT),
            sent_to: Vec::with_capacity(PORT_LIMIT * Slot::LIMIT),
            received_from: Vec::with_capacity(PORT_LIMIT * Slot::LIMIT),
            away: Vec::with_capacity(OUTBOX_FRAMES + ERRORS_LIMIT as usize),
            tunnelled: None,
            uplinks_gave: false,
        }
    }

    /// Whether a port of the kernel has not taken all that it was to send.
    pub(crate) fn are_busy(&mut self) -> bool {
        let mut are = false;
        self.for_each(|port| {
            if let Port::Kernel(port) = port {
                are |= port.is_busy();
            }
        });
        are
    }

    /// Calls `visit` with each port.
    pub(crate) fn for_each(&mut self, mut visit: impl FnMut(&mut Port<M>)) {
        for port in self.uplinks.iter_mut().flatten() {
            visit(port);
        }
        for slot in &self.attached {
            if let Some(instance) = &mut self.instances[*slot] {
                instance.ports().for_each(&mut visit);
            }
        }
    }
}

/// The published plan as a worker uses it: one for a whole turn.
pub(crate) struct View {
    published: Cache<Arc<ArcSwap<WorkerPlan>>, Arc<WorkerPlan>>,
    pub(crate) plan: Arc<WorkerPlan>,
    pub(crate) generation: Generation,
    /// The plan's compiled entry of each slot.
    pub(crate) routes: SlotMap<Route>,
    /// The plan's chains of services.
    pub(crate) chains: Chains,
    /// Whether a packet whose own flow is not known may be of a known one: a service of the plan knows its flows by what
    /// their packets carry, or is in a chain, or other edges give its flows to machines, too.
    pub(crate) has_other_keys: bool,
    /// Whether a service lists security associations.
    pub(crate) has_associations: bool,
    /// Whether replies of a service return through the edge.
    pub(crate) replies_by_edge: bool,
}

impl View {
    pub(crate) fn new(plan: &Arc<ArcSwap<WorkerPlan>>) -> View {
        let mut published = Cache::new(Arc::clone(plan));
        View {
            plan: Arc::clone(published.load()),
            published,
            generation: Generation(u64::MAX),
            routes: SlotMap::default(),
            chains: Chains::new(),
            has_other_keys: false,
            has_associations: false,
            replies_by_edge: false,
        }
    }

    /// The newest plan, which may be newer than this turn's.
    pub(crate) fn published(&mut self) -> &WorkerPlan {
        self.published.load()
    }

    /// Whether a newer plan than this turn's is there.
    pub(crate) fn is_outdated(&mut self) -> bool {
        self.published.load().generation != self.generation
    }

    /// Takes the newest plan over. The control plane keeps the old one until this one is acknowledged: nothing is
    /// freed here.
    pub(crate) fn update(&mut self, id: WorkerId, workers: usize) {
        let plan = Arc::clone(self.published.load());
        for (slot, route) in (0..).map(Slot).zip(self.routes.iter_mut()) {
            *route = Route::new(&plan, slot, id, workers).unwrap_or_default();
        }
        self.generation = plan.generation;
        self.chains.follow(&plan);
        let reads_content = plan.services.iter().any(|of| of.affinity_key.reads_content());
        let has_edges = plan.services.iter().any(|of| of.machines.is_some());
        self.has_other_keys = reads_content || has_edges || self.chains.are_there;
        self.has_associations = plan.services.iter().any(|of| !of.associations.is_empty());
        self.replies_by_edge = plan.services.iter().any(|of| of.replies_by_edge);
        self.plan = plan;
    }
}

/// A plan's compiled entry of a slot.
#[derive(Clone, Copy)]
pub(crate) struct Route {
    /// Which instance has the slot.
    pub(crate) instance: InstanceId,
    /// Of which service.
    pub(crate) service: ServiceId,
    /// Uplinks of the service, one per data port; the second is the first where there is one.
    uplinks: [UplinkId; 2],
    /// Its home worker, as this one reaches it.
    pub(crate) home: WorkerId,
    /// Whether packets of its pinned flows are sent to it.
    pub(crate) serves: bool,
}

impl Default for Route {
    fn default() -> Route {
        Route {
            instance: InstanceId(u32::MAX),
            service: ServiceId(u16::MAX),
            uplinks: [UplinkId(0); 2],
            home: WorkerId(0),
            serves: false,
        }
    }
}

impl Route {
    fn new(plan: &WorkerPlan, slot: Slot, id: WorkerId, workers: usize) -> Option<Route> {
        let slot_plan = plan.slot(slot)?;
        let service = plan.service(slot_plan.service)?;
        let first = service.uplinks.first().copied().unwrap_or_default();
        Some(Route {
            instance: slot_plan.instance,
            service: slot_plan.service,
            uplinks: [first, service.uplinks.get(1).copied().unwrap_or(first)],
            home: plan.home(slot, id, workers),
            serves: slot_plan.state.serves(),
        })
    }

    /// The first uplink of its service.
    pub(crate) fn first_uplink(&self) -> UplinkId {
        self.uplinks[0]
    }

    /// The data port for a packet that came in on that uplink. One of the flow that came in elsewhere still reaches
    /// its instance, on the first port.
    #[inline(always)]
    pub(crate) fn port_of(&self, uplink: UplinkId) -> u8 {
        u8::from(uplink != self.uplinks[0] && uplink == self.uplinks[1])
    }
}
