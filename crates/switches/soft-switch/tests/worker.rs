//! One worker, driven turn by turn: it allocates nothing in the steady state, and a late frame finds no wrong
//! instance.

#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use arc_swap::ArcSwap;
use flow_table::{FlowHasher, FlowTable, Identity, TableConfig};
use model::{
    DropReason, Generation, InstanceId, InstanceState, Nanos, Polling, ServiceId, Slot, Timeouts, UplinkId,
    WorkerId,
};
use packet::build::Frame;
use rtrb::{Consumer, Producer, RingBuffer};
use scheduling::Scheduler;
use soft_switch::{
    Alarm, Command, Destination, Frame as _, FrameMemory, HandOff, HeapFrame, HeapMemory, Idle,
    InstancePorts, LoadBoard, MemifPort, Peers, Port, Sleep, TableMemory, WakeSet, Waker, Worker,
    WorkerCounters, WorkerEvent, WorkerParts, WorkerPlan,
};
use switch::{Change, Edits, Plan, ServicePlan, SlotPlan};

const HASH_KEY: [u64; 4] = [1, 2, 3, 4];
const SINKS: u16 = 3;

/// A worker driven by the test, with sinks as instances and a memif uplink whose other end the test has.
struct Alone {
    worker: Worker<HeapMemory>,
    commands: Producer<Command<HeapMemory>>,
    events: Consumer<WorkerEvent<HeapMemory>>,
    counters: Arc<WorkerCounters>,
    loads: Arc<LoadBoard>,
    plan: Arc<ArcSwap<WorkerPlan>>,
    network: memif::Link,
    _control: memif::Control,
    /// Frames that it hands to a second worker, which the test plays.
    handed_over: Consumer<HandOff<HeapFrame>>,
    to_it: Producer<HandOff<HeapFrame>>,
    memory: HeapMemory,
    now: Nanos,
}

/// A link: the end of the one that listens, and the other.
fn link() -> (memif::Link, memif::Link) {
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

fn alone(workers: usize) -> Alone {
    let sinks = (0..SINKS).map(|_| Port::null()).collect();
    alone_with(workers, sinks, |_| {})
}

fn alone_with(
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
        state: InstanceState::Active,
        capacity_pps: 1e6,
        active_since: Nanos::ZERO,
        weight: 256,
        edits: Edits::default(),
    };
    let plan = Plan {
        generation: Generation(1),
        services: vec![service],
        slots: (0..instances.len()).map(|id| Some(slot(id as u32))).collect(),
        ..Plan::default()
    };
    let queues = vec![workers as u16; plan.slots.len()];
    let plan = Arc::new(ArcSwap::from_pointee(WorkerPlan::new(plan, queues)));
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
    let mut memories = HeapMemory::shares(2, 4096, 2048);
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
        counters: Arc::clone(&counters),
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
        network,
        _control: control,
        handed_over,
        to_it,
        memory,
        now: Nanos::from_secs(1),
    }
}

impl Alone {
    fn turn(&mut self) -> usize {
        self.now = self.now + Nanos::from_micros(100);
        self.worker.turn(self.now)
    }

    fn send(&mut self, flows: std::ops::Range<u32>) {
        for flow in flows {
            let frame = packet_of(flow);
            self.network.queues[0].tx.push(&frame).unwrap();
        }
        self.network.queues[0].tx.flush();
    }

    fn to_instances(&self) -> u64 {
        self.counters.slots.iter().map(|s| s.to_packets.get()).sum()
    }
}

fn packet_of(flow: u32) -> Vec<u8> {
    let [_, a, b, c] = flow.to_be_bytes();
    let src = std::net::SocketAddr::from(([10, a, b, c], 1000));
    let dst = "192.0.2.1:80".parse().unwrap();
    Frame::udp(src, dst, b"eighteen bytes fit")
        .unwrap()
        .to_vec()
        .unwrap()
}

#[test]
fn a_turn_allocates_nothing() {
    let mut alone = alone(1);
    // Commands and the first plan allocate; so may the first use of each list.
    alone.send(0..200);
    for _ in 0..20 {
        alone.turn();
    }
    assert_eq!(alone.to_instances(), 200);
    // Known flows, then new ones, loads every millisecond, and the expiry of all.
    for round in 0..20 {
        for flows in [0..200, 1000 + round * 200..1200 + round * 200] {
            alone.send(flows);
            alone.loads.set_load(Slot(1), round as f32);
            alone.loads.publish();
            let allocations = allocation_counter::measure(|| {
                for _ in 0..8 {
                    alone.turn();
                }
            });
            assert_eq!(
                (allocations.count_total, allocations.count_current),
                (0, 0),
                "round {round}"
            );
        }
    }
    assert_eq!(alone.to_instances(), 200 + 20 * 400);
    let new_flows: u64 = alone.counters.slots.iter().map(|s| s.new_flows.get()).sum();
    assert!(new_flows >= 200 + 20 * 200);
    let allocations = allocation_counter::measure(|| {
        for _ in 0..2000 {
            alone.turn();
        }
    });
    assert_eq!(allocations.count_total, 0, "expiry");
    assert_eq!(alone.counters.figures.live_flows.get(), 0);
    while alone.events.pop().is_ok() {}
}

#[test]
fn handing_over_allocates_nothing_either() {
    let mut alone = alone(2);
    for _ in 0..3 {
        alone.turn();
    }
    let mut waiting = Vec::with_capacity(1000);
    for round in 0..10 {
        alone.send(round * 100..round * 100 + 200);
        let allocations = allocation_counter::measure(|| {
            for _ in 0..8 {
                alone.turn();
            }
        });
        assert_eq!(allocations.count_total, 0, "round {round}");
        // What crossed to the other worker comes from it as if it had been received there.
        while let Ok(handed) = alone.handed_over.pop() {
            alone.memory.give(handed.frame);
            let mut frame = alone.memory.take().unwrap();
            let bytes = packet_of(round);
            frame.room()[..bytes.len()].copy_from_slice(&bytes);
            frame.set_len(bytes.len());
            waiting.push(HandOff { frame, to: handed.to });
        }
        assert!(!waiting.is_empty());
        for handed in waiting.drain(..) {
            assert!(alone.to_it.push(handed).is_ok());
        }
        let allocations = allocation_counter::measure(|| {
            for _ in 0..8 {
                alone.turn();
            }
        });
        assert_eq!(allocations.count_total, 0, "round {round}, taken over");
        // Those of the other worker's flows go straight back to it.
        while let Ok(handed) = alone.handed_over.pop() {
            alone.memory.give(handed.frame);
        }
    }
    assert!(alone.counters.figures.handed_off.get() > 0 && alone.counters.figures.taken_over.get() > 0);
}

#[test]
fn a_frame_that_was_on_its_way_to_an_instance_that_is_gone_does_not_reach_its_successor() {
    let mut alone = alone(2);
    alone.turn();
    for instance in [0, 900] {
        let mut frame = alone.memory.take().unwrap();
        let bytes = packet_of(1);
        frame.room()[..bytes.len()].copy_from_slice(&bytes);
        frame.set_len(bytes.len());
        let to = Destination::Instance {
            slot: Slot(0),
            instance: InstanceId(instance),
            service: ServiceId(0),
            port: 0,
        };
        assert!(alone.to_it.push(HandOff { frame, to }).is_ok());
    }
    alone.turn();
    assert_eq!(
        alone.counters.slots[Slot(0)].to_packets.get(),
        1,
        "only the one for the instance that has the slot now"
    );
    assert_eq!(alone.counters.drops[DropReason::InstanceLost.index()].get(), 1);
}

#[test]
fn what_the_plan_says_is_acknowledged_after_the_gauges_show_it() {
    let mut alone = alone(1);
    alone.turn();
    assert_eq!(alone.counters.figures.generation.get(), 1);
    // Within a millisecond of the last look at the gauges.
    alone.send(0..50);
    alone.turn();
    let live = |alone: &Alone| {
        alone
            .counters
            .slots
            .iter()
            .map(|s| s.live_flows.get())
            .sum::<u64>()
    };
    let mut plan = WorkerPlan::clone(&alone.plan.load());
    plan.generation = Generation(2);
    for slot_plan in plan.slots.iter_mut().flatten() {
        slot_plan.state = InstanceState::Draining;
    }
    alone.plan.store(Arc::new(plan));
    alone.turn();
    assert_eq!((alone.counters.figures.generation.get(), live(&alone)), (2, 50));
}

#[test]
fn a_plan_that_a_command_has_loaded_is_acknowledged_too() {
    let mut alone = alone(1);
    alone.turn();
    let mut plan = WorkerPlan::clone(&alone.plan.load());
    plan.generation = Generation(2);
    alone.plan.store(Arc::new(plan));
    let uplink = UplinkId(0);
    assert!(alone.commands.push(Command::DetachUplink { uplink }).is_ok());
    alone.turn();
    assert_eq!(alone.counters.figures.generation.get(), 2);
}

#[test]
fn new_flows_do_not_wander_while_a_slot_is_purged() {
    let mut alone = alone(1);
    let scheduler = Scheduler::from_name("round-robin").unwrap();
    let service = ServiceId(0);
    assert!(
        alone
            .commands
            .push(Command::Change(Change::SetScheduler { service, scheduler }))
            .is_ok()
    );
    alone.turn();
    for first in (0..9000).step_by(500) {
        alone.send(first..first + 500);
        while alone.turn() > 0 {}
    }
    let packets = |alone: &Alone| -> Vec<u64> {
        alone
            .counters
            .slots
            .iter()
            .take(SINKS.into())
            .map(|s| s.to_packets.get())
            .collect()
    };
    for slot in 0..SINKS {
        // The sweep of 9000 entries goes on for some turns, in each of which these flows have a packet.
        assert!(
            alone
                .commands
                .push(Command::PurgeSlot {
                    slot: Slot(slot),
                    failed: false
                })
                .is_ok()
        );
        for flow in 0..3 {
            let flow = 20_000 + u32::from(slot) * 10 + flow;
            let before = packets(&alone);
            for _ in 0..7 {
                alone.send(flow..flow + 1);
                alone.turn();
            }
            let after = packets(&alone);
            let on: Vec<u64> = before
                .iter()
                .zip(&after)
                .map(|(b, a)| a - b)
                .filter(|n| *n > 0)
                .collect();
            assert_eq!(on, [7], "the packets of a new flow went to several instances");
        }
    }
    let refused: u64 = alone.counters.services[ServiceId(0)].unpinned.get();
    assert_eq!(refused, 0, "there was another instance to pin to");
}

#[test]
fn what_a_peer_sent_before_it_went_is_taken_before_its_queue_is_given_back() {
    let mut alone = alone(1);
    alone.turn();
    alone.send(0..300);
    let uplink = UplinkId(0);
    assert!(alone.commands.push(Command::DetachUplink { uplink }).is_ok());
    alone.turn();
    assert_eq!(alone.counters.uplinks[UplinkId(0)].received_packets.get(), 300);
    assert_eq!(alone.to_instances(), 300);
}

/// A worker with instances that the test plays, of a service whose flows may be moved.
struct Moving {
    alone: Alone,
    instances: Vec<memif::Link>,
    _controls: Vec<memif::Control>,
}

fn moving(change: impl FnOnce(&mut ServicePlan)) -> Moving {
    let (mut instances, mut ports, mut controls) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..2 {
        let (function, mut switch) = link();
        ports.push(Port::Memif(MemifPort::new(switch.queues.remove(0))));
        controls.push(switch.control);
        instances.push(function);
    }
    let mut moving = Moving {
        alone: alone_with(1, ports, |service| {
            service.relaxed = true;
            service.return_counters = false;
            change(service);
        }),
        instances,
        _controls: controls,
    };
    moving.alone.turn();
    moving
}

impl Moving {
    /// Sends packets of one flow that carry these numbers.
    fn send(&mut self, numbers: std::ops::Range<u16>) {
        for number in numbers {
            let frame = numbered(number);
            self.alone.network.queues[0].tx.push(&frame).unwrap();
        }
        self.alone.network.queues[0].tx.flush();
        while self.alone.turn() > 0 {}
    }

    /// What an instance is given.
    fn taken(&mut self, instance: usize) -> Vec<u16> {
        numbers(&mut self.instances[instance])
    }

    fn gives_back(&mut self, instance: usize, numbers: std::ops::Range<u16>) {
        let tx = &mut self.instances[instance].queues[0].tx;
        for number in numbers {
            tx.push(&numbered(number)).unwrap();
        }
        tx.flush();
        self.alone.turn();
    }

    fn asks(&mut self, command: Command<HeapMemory>) {
        assert!(self.alone.commands.push(command).is_ok());
        self.alone.turn();
    }

    /// Which instance the flow was given to, with packets 0, 1 and 2, and the other one.
    fn first_three(&mut self) -> (usize, usize) {
        self.send(0..3);
        let (a, b) = (self.taken(0), self.taken(1));
        assert_eq!(a.len() + b.len(), 3);
        if b.is_empty() { (0, 1) } else { (1, 0) }
    }

    /// Takes the pins to an instance away and lets it take no new flows, as a drain does.
    fn unpin(&mut self, instance: usize, failed: bool) {
        let mut plan = WorkerPlan::clone(&self.alone.plan.load());
        plan.generation = Generation(plan.generation.0 + 1);
        plan.slots[instance].as_mut().unwrap().state = InstanceState::Draining;
        self.alone.plan.store(Arc::new(plan));
        let slot = Slot(instance as u16);
        self.asks(Command::PurgeSlot { slot, failed });
    }

    fn moved(&self) -> (u64, u64) {
        let figures = &self.alone.counters.figures;
        (figures.held_moves.get(), figures.early_moves.get())
    }
}

fn numbered(number: u16) -> Vec<u8> {
    let mut frame = packet_of(1);
    frame[42..44].copy_from_slice(&number.to_be_bytes());
    frame
}

fn numbers(link: &mut memif::Link) -> Vec<u16> {
    let mut buffer = [0; 2048];
    let mut numbers = Vec::new();
    let rx = &mut link.queues[0].rx;
    while let Some(Ok(_)) = rx.pop(&mut buffer) {
        numbers.push(u16::from_be_bytes([buffer[42], buffer[43]]));
    }
    rx.release();
    numbers
}

#[test]
fn what_an_instance_gave_back_before_it_failed_goes_out_and_nothing_later() {
    let mut moving = moving(|service| service.relaxed = false);
    let (first, other) = moving.first_three();
    let back = |moving: &mut Moving, number: u16| {
        let tx = &mut moving.instances[first].queues[0].tx;
        tx.push(&numbered(number)).unwrap();
        tx.flush();
    };
    back(&mut moving, 0);
    let slot = Slot(first as u16);
    moving.asks(Command::FailInstance { slot });
    assert_eq!(numbers(&mut moving.alone.network), [0]);
    back(&mut moving, 1);
    moving.unpin(first, true);
    moving.send(3..4);
    assert_eq!(moving.taken(other), [3]);
    moving.gives_back(other, 3..4);
    for _ in 0..100 {
        moving.alone.turn();
    }
    assert_eq!(numbers(&mut moving.alone.network), [3]);
    moving.asks(Command::RemoveInstance { slot, failed: true });
    assert!(numbers(&mut moving.alone.network).is_empty());
    let counters = &moving.alone.counters.slots[Slot(first as u16)];
    assert_eq!((counters.back_packets.get(), counters.lost.get()), (1, 2));
}

#[test]
fn a_flow_that_moves_waits_for_what_it_sent_before() {
    let mut moving = moving(|_| {});
    let (old, new) = moving.first_three();
    moving.unpin(old, false);
    let before = moving.alone.now;
    let frames: Vec<_> = (3..6).map(numbered).collect();
    for frame in &frames {
        moving.alone.network.queues[0].tx.push(frame).unwrap();
    }
    moving.alone.network.queues[0].tx.flush();
    let allocations = allocation_counter::measure(|| while moving.alone.turn() > 0 {});
    assert_eq!(allocations.count_total, 0, "holding");
    moving.gives_back(old, 0..2);
    assert!(moving.alone.now.since(before) < Nanos::from_millis(1));
    assert_eq!(
        (moving.taken(old), moving.taken(new)),
        (vec![], vec![]),
        "packet 2 is still out"
    );
    moving.gives_back(old, 2..3);
    let allocations = allocation_counter::measure(|| while moving.alone.turn() > 0 {});
    assert_eq!(allocations.count_total, 0, "going on");
    moving.send(6..7);
    assert_eq!((moving.taken(old), moving.taken(new)), (vec![], vec![3, 4, 5, 6]));
    moving.gives_back(new, 3..7);
    assert_eq!(numbers(&mut moving.alone.network), [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(moving.moved(), (1, 0));
    // Nothing is out now: it moves on without a stop, and back, too.
    moving.unpin(new, false);
    let mut plan = WorkerPlan::clone(&moving.alone.plan.load());
    let mut slots = plan.slots.clone();
    slots[old].as_mut().unwrap().state = InstanceState::Active;
    let generation = Generation(plan.generation.0 + 1);
    plan.slots = slots;
    plan.generation = generation;
    moving.alone.plan.store(Arc::new(plan));
    moving.send(7..9);
    assert_eq!((moving.taken(old), moving.taken(new)), (vec![7, 8], vec![]));
    assert_eq!(moving.moved(), (1, 0));
}

#[test]
fn a_flow_that_waits_in_vain_goes_on_after_a_millisecond() {
    let mut moving = moving(|_| {});
    let (old, new) = moving.first_three();
    moving.unpin(old, false);
    moving.send(3..6);
    let before = moving.alone.now;
    let waited = loop {
        moving.alone.turn();
        let taken = moving.taken(new);
        if !taken.is_empty() {
            assert_eq!(taken, [3, 4, 5]);
            break moving.alone.now.since(before);
        }
    };
    assert!((500_000..=1_000_000).contains(&waited.0), "{waited:?}");
    assert_eq!(moving.moved(), (1, 1));
    // What comes late is of no flow of that instance any more.
    moving.gives_back(old, 0..3);
    assert_eq!(
        moving.alone.counters.slots[Slot(old as u16)]
            .return_unmatched
            .get(),
        3
    );
    assert_eq!(numbers(&mut moving.alone.network), [0, 1, 2]);
}

#[test]
fn a_flow_with_too_much_to_hold_goes_on_at_once() {
    let mut moving = moving(|_| {});
    let (old, new) = moving.first_three();
    moving.unpin(old, false);
    // A turn takes 256 frames.
    moving.alone.now = Nanos::from_secs(2);
    for number in 3..260 {
        moving.alone.network.queues[0].tx.push(&numbered(number)).unwrap();
    }
    moving.alone.network.queues[0].tx.flush();
    moving.alone.turn();
    assert!(moving.taken(new).is_empty());
    moving.alone.turn();
    assert_eq!(moving.taken(new), (3..260).collect::<Vec<u16>>());
    assert_eq!(moving.moved(), (1, 1));
}

#[test]
fn one_flow_that_is_purged_waits_likewise() {
    let mut moving = moving(|_| {});
    let (old, _) = moving.first_three();
    let key = model::FlowKey::new(&model::Tuple {
        src: "10.0.0.1".parse().unwrap(),
        dst: "192.0.2.1".parse().unwrap(),
        src_port: 1000,
        dst_port: 80,
        protocol: 17,
        vlan: 0,
    })
    .0;
    moving.asks(Command::Change(Change::PurgeFlow(key)));
    moving.send(3..4);
    assert_eq!((moving.taken(0), moving.taken(1)), (vec![], vec![]));
    moving.gives_back(old, 0..3);
    moving.alone.turn();
    assert_eq!([moving.taken(0), moving.taken(1)].concat(), [3]);
    assert_eq!(moving.moved(), (1, 0));
}

#[test]
fn nobody_waits_where_the_instance_failed_or_the_service_is_strict() {
    for (relaxed, failed) in [(true, true), (false, false)] {
        let mut moving = moving(|service| service.relaxed = relaxed);
        let (old, new) = moving.first_three();
        moving.unpin(old, failed);
        moving.send(3..6);
        assert_eq!(moving.taken(new), [3, 4, 5], "relaxed {relaxed}, failed {failed}");
        assert_eq!(moving.moved(), (0, 0));
    }
}

#[test]
fn what_is_held_when_the_worker_ends_is_counted() {
    let mut moving = moving(|_| {});
    let (old, _) = moving.first_three();
    moving.unpin(old, false);
    moving.send(3..6);
    let counters = Arc::clone(&moving.alone.counters);
    assert!(moving.alone.commands.push(Command::Stop).is_ok());
    let now = moving.alone.now;
    moving.alone.worker.run(|| now);
    // Three are held here, three by the instance.
    assert_eq!(counters.drops[DropReason::Shutdown.index()].get(), 6);
}
