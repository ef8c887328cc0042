//! A worker driven by the test.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use arc_swap::ArcSwap;
use flow_table::{FlowHasher, FlowTable, Identity, TableConfig};
use model::{
    Generation, InstanceId, InstanceState, Nanos, PlaceId, Polling, ServiceId, Slot, Timeouts, UplinkId,
    WorkerId,
};
use packet::build::Frame;
use rtrb::{Consumer, Producer, RingBuffer};
use scheduling::Scheduler;
use soft_switch::{
    Alarm, Command, HalfOpen, HandOff, HeapFrame, HeapMemory, Idle, InstancePorts, LoadBoard, MemifPort,
    Peers, Port, SharedPins, Sleep, TableMemory, WakeSet, Waker, Worker, WorkerCounters, WorkerEvent,
    WorkerParts, WorkerPlan,
};
use switch::{Edits, Plan, ServicePlan, SlotPlan};

pub(crate) const HASH_KEY: [u64; 4] = [1, 2, 3, 4];
pub(crate) const SINKS: u16 = 3;

/// A worker driven by the test, with sinks as instances and a memif uplink whose other end the test has.
pub(crate) struct Alone {
    pub(crate) worker: Worker<HeapMemory>,
    pub(crate) commands: Producer<Command<HeapMemory>>,
    pub(crate) events: Consumer<WorkerEvent<HeapMemory>>,
    pub(crate) counters: Arc<WorkerCounters>,
    pub(crate) loads: Arc<LoadBoard>,
    plan: Arc<ArcSwap<WorkerPlan>>,
    /// Queues of each instance.
    queues: Vec<u16>,
    pub(crate) network: memif::Link,
    pub(crate) _control: memif::Control,
    /// Frames that it hands to a second worker, which the test plays.
    pub(crate) handed_over: Consumer<HandOff<HeapFrame>>,
    pub(crate) to_it: Producer<HandOff<HeapFrame>>,
    pub(crate) memory: HeapMemory,
    pub(crate) now: Nanos,
}

/// A link: the end of the one that listens, and the other.
pub(crate) fn link() -> (memif::Link, memif::Link) {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("link.sock");
    let mut listener = memif::Listener::bind(&socket, memif::ServerConfig::new("test")).unwrap();
    let patience = std::time::Duration::from_secs(20);
    let connecting = std::thread::spawn(move || {
        memif::Client::connect(&memif::ClientConfig::new(socket, 0), patience).unwrap()
    });
    let listening = listener.accept(patience).unwrap().unwrap();
    (listening, connecting.join().unwrap())
}

pub(crate) fn alone(workers: usize) -> Alone {
    let sinks = (0..SINKS).map(|_| Port::null()).collect();
    alone_with(workers, sinks, |_| {})
}

pub(crate) fn alone_with(
    workers: usize,
    instances: Vec<Port<HeapMemory>>,
    change: impl FnOnce(&mut ServicePlan),
) -> Alone {
    let (link, network) = link();
    let mut service = ServicePlan {
        fit: 0.9,
        return_counters: true,
        ..ServicePlan::of_all(ServiceId(0), Scheduler::from_name("best-fit").unwrap())
    };
    change(&mut service);
    let slot = |id| SlotPlan {
        instance: InstanceId(id),
        service: ServiceId(0),
        place: PlaceId::default(),
        state: InstanceState::Active,
        capacity_pps: 1e6,
        active_since: Nanos::ZERO,
        weight: 256,
        block: None,
        edits: Edits::default(),
    };
    let plan = Plan {
        generation: Generation(1),
        services: vec![service],
        slots: (0..instances.len()).map(|id| Some(slot(id as u32))).collect(),
        ..Plan::default()
    };
    let queues = vec![workers as u16; plan.slots.len()];
    let plan = Arc::new(ArcSwap::from_pointee(WorkerPlan::new(plan, queues.clone())));
    let table = TableConfig {
        ipv4_flows: 10_000,
        ipv6_flows: 1000,
        return_counters: true,
        pin_times: true,
    };
    let lines = table.lines_needed().unwrap();
    let hasher = FlowHasher::new(HASH_KEY);
    let timeouts = Timeouts {
        udp: Nanos::from_millis(50),
        ..Timeouts::default()
    };
    let storage = TableMemory::new(lines).unwrap();
    let table = FlowTable::new(
        storage,
        &table,
        &timeouts,
        hasher,
        &Identity::default(),
        Nanos::ZERO,
    )
    .unwrap();
    let (mut commands, worker_commands) = RingBuffer::new(64);
    let (worker_events, events) = RingBuffer::new(4096);
    let (to_peer, handed_over) = RingBuffer::new(4096);
    let (to_it, from_peer) = RingBuffer::new(4096);
    let waker = Arc::new(Waker::new().unwrap());
    let counters = Arc::new(WorkerCounters::default());
    let loads = Arc::new(LoadBoard::default());
    let mut memories = HeapMemory::shares(2, 8192, 2048);
    let memory = memories.pop().unwrap();
    let (mut to_peers, mut from_peers, mut peer_wakers) = (vec![None], vec![None], vec![None]);
    if workers == 2 {
        to_peers.push(Some(to_peer));
        from_peers.push(Some(from_peer));
        peer_wakers.push(Some(Arc::new(Waker::new().unwrap())));
    }
    let worker = Worker::new(WorkerParts {
        id: WorkerId(0),
        memory: memories.pop().unwrap(),
        table,
        fragment_key: [1, 2],
        plan: Arc::clone(&plan),
        loads: Arc::clone(&loads),
        shares: SharedPins::default(),
        half_open: HalfOpen::ANY,
        ends: Arc::default(),
        counters: Arc::clone(&counters),
        commit: None,
        commands: worker_commands,
        events: worker_events,
        peers: Peers {
            to: to_peers,
            from: from_peers,
            wakers: peer_wakers,
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
    let control = link.control;
    for pair in link.queues {
        let port = Box::new(Port::Memif(MemifPort::new(pair)));
        assert!(
            commands
                .push(Command::AttachUplink {
                    uplink: UplinkId(0),
                    port
                })
                .is_ok()
        );
    }
    for (slot, port) in instances.into_iter().enumerate() {
        let ports = Box::new(InstancePorts::new(vec![port]));
        let slot = Slot(slot as u16);
        assert!(commands.push(Command::AttachInstance { slot, ports }).is_ok());
    }
    Alone {
        worker,
        commands,
        events,
        counters,
        loads,
        plan,
        queues,
        network,
        _control: control,
        handed_over,
        to_it,
        memory,
        now: Nanos::from_secs(1),
    }
}

impl Alone {
    /// Publishes the next plan, with this change.
    pub(crate) fn replan(&self, change: impl FnOnce(&mut Plan)) {
        let mut plan = Plan::clone(&self.plan.load());
        plan.generation = Generation(plan.generation.0 + 1);
        change(&mut plan);
        self.plan
            .store(Arc::new(WorkerPlan::new(plan, self.queues.clone())));
    }

    pub(crate) fn turn(&mut self) -> usize {
        self.now = self.now + Nanos::from_micros(100);
        self.worker.turn(self.now)
    }

    pub(crate) fn send(&mut self, flows: std::ops::Range<u32>) {
        for flow in flows {
            let frame = packet_of(flow);
            self.network.queues[0].tx.push(&frame).unwrap();
        }
        self.network.queues[0].tx.flush();
    }

    pub(crate) fn to_instances(&self) -> u64 {
        self.counters.slots.iter().map(|s| s.to_packets.get()).sum()
    }
}

pub(crate) fn packet_of(flow: u32) -> Vec<u8> {
    let [_, a, b, c] = flow.to_be_bytes();
    let src = std::net::SocketAddr::from(([10, a, b, c], 1000));
    let dst = "192.0.2.1:80".parse().unwrap();
    Frame::udp(src, dst, b"eighteen bytes fit")
        .unwrap()
        .to_vec()
        .unwrap()
}
