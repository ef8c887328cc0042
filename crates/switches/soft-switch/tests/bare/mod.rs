//! A worker alone, driven turn by turn on the calling thread.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use arc_swap::ArcSwap;
use flow_table::{FlowHasher, FlowTable, Identity, TableConfig};
use model::{
    Generation, InstanceId, InstanceState, Nanos, PlaceId, Polling, ServiceId, Slot, Timeouts, UplinkId,
    WorkerId,
};
use rtrb::{Consumer, Producer, RingBuffer};
use scheduling::Scheduler;
use soft_switch::{
    Alarm, Command, FrameMemory, HalfOpen, Idle, InstancePorts, LoadBoard, Peers, Port, SharedPins, Sleep,
    TableMemory, WakeSet, Waker, Worker, WorkerCounters, WorkerEvent, WorkerParts, WorkerPlan,
};
use switch::{Edits, Plan, ServicePlan, SlotPlan};

#[allow(dead_code, reason = "not everybody has functions")]
pub(crate) mod chain;

/// The worker, and what its control plane would have.
pub(crate) struct Bare<M: FrameMemory> {
    pub(crate) worker: Worker<M>,
    #[allow(dead_code, reason = "not everybody looks at them")]
    pub(crate) counters: Arc<WorkerCounters>,
    commands: Producer<Command<M>>,
    _events: Consumer<WorkerEvent<M>>,
}

impl<M: FrameMemory> Bare<M> {
    /// Gives it its one uplink.
    pub(crate) fn attach_uplink(&mut self, port: Port<M>) {
        let (uplink, port) = (UplinkId(0), Box::new(port));
        self.carry_out(Command::AttachUplink { uplink, port });
    }

    fn carry_out(&mut self, command: Command<M>) {
        assert!(self.commands.push(command).is_ok());
        self.worker.turn(Nanos::from_secs(1));
    }
}

/// A worker with these sinks as instances of one service, which takes all packets, and a table for so many IPv4
/// flows.
#[allow(dead_code, reason = "not everybody has sinks")]
pub(crate) fn bare<M: FrameMemory>(ipv4_flows: usize, memory: M, sinks: Vec<Port<M>>) -> Bare<M> {
    counting(ipv4_flows, memory, sinks, false)
}

/// The same, with ports that may give packets back, counted for each flow or not.
pub(crate) fn counting<M: FrameMemory>(
    ipv4_flows: usize,
    memory: M,
    sinks: Vec<Port<M>>,
    return_counters: bool,
) -> Bare<M> {
    editing(ipv4_flows, memory, sinks, return_counters, Edits::default())
}

/// An instance of the one service.
pub(crate) fn slot_plan(id: u32) -> SlotPlan {
    SlotPlan {
        instance: InstanceId(id),
        service: ServiceId(0),
        place: PlaceId::default(),
        state: InstanceState::Active,
        capacity_pps: 1e9,
        active_since: Nanos::ZERO,
        weight: 256,
        block: None,
        edits: Edits::default(),
    }
}

/// The same, with packets that are edited so on their way to the ports and back.
pub(crate) fn editing<M: FrameMemory>(
    ipv4_flows: usize,
    memory: M,
    sinks: Vec<Port<M>>,
    return_counters: bool,
    edits: Edits,
) -> Bare<M> {
    let service = ServicePlan {
        fit: 1.0,
        return_counters,
        ..ServicePlan::of_all(ServiceId(0), Scheduler::from_name("round-robin").unwrap())
    };
    let slot = |id| SlotPlan {
        block: None,
        edits,
        ..slot_plan(id)
    };
    let plan = Plan {
        generation: Generation(1),
        services: vec![service],
        slots: (0..sinks.len() as u32).map(|id| Some(slot(id))).collect(),
        ..Plan::default()
    };
    let config = TableConfig {
        ipv4_flows,
        ipv6_flows: 1000,
        return_counters,
        pin_times: true,
    };
    let hasher = FlowHasher::new([1, 2, 3, 4]);
    let storage = TableMemory::new(config.lines_needed().unwrap()).unwrap();
    let timeouts = Timeouts::default();
    let table = FlowTable::new(
        storage,
        &config,
        &timeouts,
        hasher,
        &Identity::default(),
        Nanos::ZERO,
    )
    .unwrap();
    let (commands, worker_commands) = RingBuffer::new(64);
    let (worker_events, events) = RingBuffer::new(4096);
    let waker = Arc::new(Waker::new().unwrap());
    let counters = Arc::new(WorkerCounters::default());
    let worker = Worker::new(WorkerParts {
        id: WorkerId(0),
        memory,
        table,
        fragment_key: [1, 2],
        plan: Arc::new(ArcSwap::from_pointee(WorkerPlan::new(plan, Vec::new()))),
        loads: Arc::new(LoadBoard::default()),
        shares: SharedPins::default(),
        half_open: HalfOpen::ANY,
        ends: Arc::default(),
        counters: Arc::clone(&counters),
        commit: None,
        commands: worker_commands,
        events: worker_events,
        peers: Peers {
            to: vec![None],
            from: vec![None],
            wakers: vec![None],
            leaving: Arc::new(AtomicUsize::new(0)),
        },
        sleep: Sleep {
            wake_set: WakeSet::new(&waker).unwrap(),
            waker,
            idle: Idle::new(Polling::Busy),
            alarm: Arc::new(Alarm::of(std::thread::current())),
            is_unwatched: false,
        },
    });
    let mut bare = Bare {
        worker,
        counters,
        commands,
        _events: events,
    };
    for (slot, sink) in (0..).map(Slot).zip(sinks) {
        let ports = Box::new(InstancePorts::new(vec![sink]));
        bare.carry_out(Command::AttachInstance { slot, ports });
    }
    bare
}
