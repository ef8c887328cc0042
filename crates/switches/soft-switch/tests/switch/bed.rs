//! What the tests of the soft switch share: a network on its uplinks and functions behind its ports, all over real
//! memif links in this process.
#![allow(dead_code, unreachable_pub, reason = "each test uses a part of it")]
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use flow_table::{FlowRow, Ownership, TableConfig};
use model::{
    DropReason, Generation, InstanceId, InstanceState, Match, Nanos, PlaceId, Polling, ServiceId, Slot,
    Timeouts, UplinkId,
};
use packet::build::Frame;
use scheduling::Scheduler;
use soft_switch::{HeapMemory, SoftSwitch, SoftSwitchConfig, UplinkConfig, UplinkDevice};
use switch::{
    Edits, FlowFilter, Plan, PortKind, PortSpec, ServicePlan, SlotPlan, Switch as _, SwitchError,
    SwitchEvent, SwitchReading, SwitchRequest,
};

/// Frames of a bed.
const FRAMES: usize = 8192;
/// How long a test waits for something that must come.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A function, or several served by one thread: takes what comes, stamps its number where the test looks for it, and
/// sends it back.
pub struct Function {
    /// The socket of the first one.
    pub socket: PathBuf,
    stop: Arc<AtomicBool>,
    /// While set, it takes nothing.
    pub hangs: Arc<AtomicBool>,
    /// Packets that it took.
    pub seen: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

/// What a function does with a frame: the port to send it to, or `None` to keep it.
pub type Work = fn(&mut [u8], usize, u32) -> Option<usize>;

/// Sends everything back where it came from, with the function's number in the first byte of the source address.
pub fn echo(frame: &mut [u8], port: usize, number: u32) -> Option<usize> {
    frame[6] = 0x02;
    frame[7] = number as u8;
    Some(port)
}

/// Sends what came in on one port out of the other, with the function's number likewise.
pub fn cross(frame: &mut [u8], port: usize, number: u32) -> Option<usize> {
    echo(frame, port, number);
    Some(1 - port)
}

/// One of the functions of a thread.
struct Served {
    number: u32,
    listener: memif::Listener,
    links: Vec<Option<memif::Link>>,
}

impl Served {
    fn new(directory: &Path, number: u32, ports: usize) -> Served {
        let name = format!("function-{number}");
        let socket = directory.join(format!("{name}.sock"));
        Served {
            number,
            listener: memif::Listener::bind(&socket, memif::ServerConfig::new(name)).unwrap(),
            links: (0..ports).map(|_| None).collect(),
        }
    }

    /// Works off what has come, at most a burst per queue. Returns how many frames.
    fn serve(&mut self, buffer: &mut [u8], work: Work) -> usize {
        if self.links.iter().any(Option::is_none) {
            if let Some(link) = self.listener.accept(Duration::ZERO).unwrap() {
                let id = link.interface_id as usize;
                self.links[id] = Some(link);
            }
            return 0;
        }
        let mut moved = 0;
        let ports = self.links.len();
        for port in 0..ports {
            let queues = self.links[port].as_ref().unwrap().queues.len();
            for queue in 0..queues {
                for _ in 0..64 {
                    let rx = &mut self.links[port].as_mut().unwrap().queues[queue].rx;
                    let Some(Ok(len)) = rx.pop(buffer) else { break };
                    moved += 1;
                    if let Some(out) = work(&mut buffer[..len], port, self.number) {
                        let tx = &mut self.links[out].as_mut().unwrap().queues[queue].tx;
                        tx.push(&buffer[..len]).unwrap();
                    }
                }
                self.links[port].as_mut().unwrap().queues[queue].rx.release();
                for link in self.links.iter_mut().flatten() {
                    link.queues[queue].tx.flush();
                }
            }
        }
        moved
    }
}

impl Function {
    pub fn start(directory: &Path, number: u32, ports: usize, work: Work) -> Function {
        Function::start_many(directory, number..number + 1, ports, work)
    }

    /// Functions of these numbers, all served by one thread.
    pub fn start_many(directory: &Path, numbers: std::ops::Range<u32>, ports: usize, work: Work) -> Function {
        let socket = Function::socket(directory, numbers.start);
        let mut served: Vec<Served> = numbers.map(|n| Served::new(directory, n, ports)).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let hangs = Arc::new(AtomicBool::new(false));
        let seen = Arc::new(AtomicU64::new(0));
        let thread = std::thread::spawn({
            let (stop, hangs, seen) = (Arc::clone(&stop), Arc::clone(&hangs), Arc::clone(&seen));
            move || {
                let mut buffer = vec![0; 65536];
                while !stop.load(Ordering::Relaxed) {
                    let mut moved = 0;
                    for function in &mut served {
                        // One that hangs still listens.
                        if !hangs.load(Ordering::Relaxed) || function.links.iter().any(Option::is_none) {
                            moved += function.serve(&mut buffer, work);
                        }
                    }
                    seen.fetch_add(moved as u64, Ordering::Relaxed);
                    if moved == 0 {
                        std::thread::sleep(Duration::from_micros(50));
                    }
                }
            }
        });
        Function {
            socket,
            stop,
            hangs,
            seen,
            thread: Some(thread),
        }
    }

    pub fn socket(directory: &Path, number: u32) -> PathBuf {
        directory.join(format!("function-{number}.sock"))
    }

    /// Ends at once, as a crash would: its sockets close.
    pub fn kill(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Function {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A switch under test with memif uplinks, and the network's end of them.
pub struct Bed {
    pub directory: tempfile::TempDir,
    pub switch: SoftSwitch<HeapMemory>,
    pub uplinks: Vec<memif::Link>,
    pub plan: Plan,
    pub events: Vec<SwitchEvent>,
    pub functions: Vec<Function>,
    /// Instances made so far: their numbers are never used again.
    instances: u32,
    /// A share of the frames that no worker has.
    pub memory: HeapMemory,
    pub frames: usize,
    pub config: SoftSwitchConfig,
    frame_bytes: usize,
    pub reading: SwitchReading,
    started: Instant,
}

pub fn service(id: u16, uplinks: &[u8], matches: Match) -> ServicePlan {
    ServicePlan {
        matches,
        uplinks: uplinks.iter().map(|u| UplinkId(*u)).collect(),
        ..ServicePlan::of_all(ServiceId(id), Scheduler::from_name("round-robin").unwrap())
    }
}

/// Connects the ports of an instance in that slot.
pub fn attach(slot: u16, service: u16, port: PortSpec) -> SwitchRequest {
    SwitchRequest::Attach {
        slot: Slot(slot),
        service: ServiceId(service),
        port,
    }
}

/// A switch, and a share of the frames that no worker has.
fn start(config: &SoftSwitchConfig, frame_bytes: usize) -> (SoftSwitch<HeapMemory>, HeapMemory) {
    let mut memories = HeapMemory::shares(config.workers.len() + 1, FRAMES, frame_bytes);
    let memory = memories.pop().unwrap();
    let switch = SoftSwitch::start(config, memories, Vec::new()).unwrap();
    if let Some(keep) = &config.keep {
        keep.begin();
    }
    (switch, memory)
}

impl Bed {
    pub fn new(workers: usize, uplinks: usize, services: Vec<ServicePlan>) -> Bed {
        Bed::with(workers, uplinks, services, |_| {})
    }

    pub fn with(
        workers: usize,
        uplinks: usize,
        services: Vec<ServicePlan>,
        change: impl FnOnce(&mut SoftSwitchConfig),
    ) -> Bed {
        Bed::with_frames(workers, uplinks, services, 2048, change)
    }

    pub fn with_frames(
        workers: usize,
        uplinks: usize,
        services: Vec<ServicePlan>,
        frame_bytes: usize,
        change: impl FnOnce(&mut SoftSwitchConfig),
    ) -> Bed {
        let directory = tempfile::tempdir().unwrap();
        let mut config = SoftSwitchConfig {
            fast: None,
            tunnel: None,
            half_open: None,
            kernel_ports: soft_switch::KernelPorts::default(),
            keep: None,
            workers: vec![None; workers],
            polling: Polling::Adaptive,
            table: TableConfig {
                ipv4_flows: 20_000,
                ipv6_flows: 2_000,
                return_counters: true,
                pin_times: true,
            },
            timeouts: Timeouts::default(),
            uplinks: (0..uplinks)
                .map(|u| UplinkConfig {
                    name: format!("uplink-{u}"),
                    device: UplinkDevice::Memif {
                        socket: directory.path().join(format!("uplink-{u}.sock")),
                        queues: workers as u16,
                    },
                    max_frame: frame_bytes,
                    waits: false,
                })
                .collect(),
            hash_key: [1, 2, 3, 4],
            ownership: Ownership::Keyed,
        };
        change(&mut config);
        let count = services.len();
        let (mut switch, memory) = start(&config, frame_bytes);
        let plan = Plan {
            generation: Generation(1),
            services,
            ..Plan::default()
        };
        switch.publish(plan.clone()).unwrap();
        let uplinks: Vec<memif::Link> = (0..uplinks)
            .map(|u| {
                let socket = directory.path().join(format!("uplink-{u}.sock"));
                memif::Client::connect(&memif::ClientConfig::new(socket, 0), PATIENCE).unwrap()
            })
            .collect();
        let reading = SwitchReading::new(count, config.uplinks.len(), workers);
        let mut bed = Bed {
            directory,
            switch,
            uplinks,
            plan,
            events: Vec::new(),
            functions: Vec::new(),
            instances: 0,
            memory,
            frames: FRAMES,
            reading,
            frame_bytes,
            started: Instant::now(),
            config,
        };
        let wanted = bed.config.uplinks.iter().filter(|u| !u.waits).count();
        bed.until("the uplinks are up", |bed| {
            bed.events
                .iter()
                .filter(|e| matches!(e, SwitchEvent::UplinkUp { .. }))
                .count()
                == wanted
        });
        bed
    }

    /// Leaves everything to the next run, which takes over what the keeper has, with this configuration. It has the
    /// plan, and no instances yet.
    pub fn run_again(&mut self, change: impl FnOnce(&mut SoftSwitchConfig)) {
        self.switch.leave();
        change(&mut self.config);
        (self.switch, self.memory) = start(&self.config, self.frame_bytes);
        self.reading = SwitchReading::new(
            self.plan.services.len(),
            self.config.uplinks.len(),
            self.config.workers.len(),
        );
        self.publish();
    }

    pub fn now(&self) -> Nanos {
        Nanos(self.started.elapsed().as_nanos() as u64)
    }

    /// Polls the switch until something holds.
    pub fn until(&mut self, what: &str, mut holds: impl FnMut(&mut Bed) -> bool) {
        let ends = Instant::now() + PATIENCE;
        loop {
            let now = self.now();
            self.switch.poll(now, &mut self.events);
            self.switch.read(&mut self.reading);
            if holds(self) {
                return;
            }
            assert!(
                Instant::now() < ends,
                "not within {PATIENCE:?}: {what}\n{:#?}",
                self.events
            );
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Publishes the plan and waits until every worker steers by it.
    pub fn publish(&mut self) -> Generation {
        let generation = self.begin_publish();
        self.until("the plan is acknowledged", |bed| {
            bed.reading.acknowledged >= generation
        });
        generation
    }

    /// Publishes the plan.
    pub fn begin_publish(&mut self) -> Generation {
        self.plan.generation.0 += 1;
        self.switch.publish(self.plan.clone()).unwrap()
    }

    /// Has the switch do something.
    pub fn ask(&mut self, request: SwitchRequest) {
        self.switch.request(request).unwrap();
    }

    /// Asks for one flow, whichever.
    pub fn list_flows(&mut self, id: u64) -> Result<(), SwitchError> {
        let (filter, limit) = (FlowFilter::default(), 1);
        self.switch.request(SwitchRequest::Flows { id, filter, limit })
    }

    /// Puts an instance into the plan.
    pub fn set_state(&mut self, slot: u16, service: u16, state: InstanceState) {
        let slots = &mut self.plan.slots;
        if slots.len() <= usize::from(slot) {
            slots.resize(usize::from(slot) + 1, None);
        }
        let place = &mut slots[usize::from(slot)];
        let instance = place.map_or(InstanceId(self.instances), |p| p.instance);
        *place = Some(SlotPlan {
            instance,
            service: ServiceId(service),
            place: PlaceId::default(),
            state,
            capacity_pps: 1e6,
            active_since: Nanos::ZERO,
            weight: 256,
            block: None,
            edits: Edits::default(),
        });
        self.instances += 1;
    }

    /// Takes an instance out of the plan.
    pub fn unplan(&mut self, slot: u16) {
        self.plan.slots[usize::from(slot)] = None;
        self.publish();
    }

    /// Starts a function, connects it and lets it take flows. Its number is its slot.
    pub fn add(&mut self, slot: u16, service: u16, ports: u8, work: Work) {
        self.add_function(slot, u32::from(slot), service, ports, 1, work);
    }

    /// Likewise, with another number and several queues. The function is the last of `functions`.
    pub fn add_function(&mut self, slot: u16, number: u32, service: u16, ports: u8, queues: u16, work: Work) {
        let function = Function::start(self.directory.path(), number, usize::from(ports), work);
        let socket = function.socket.clone();
        self.functions.push(function);
        self.attach(slot, service, socket, ports, queues);
        self.set_state(slot, service, InstanceState::Active);
        self.publish();
    }

    /// Connects an instance that listens there, as one that takes no flows yet.
    pub fn attach(&mut self, slot: u16, service: u16, socket: PathBuf, ports: u8, queues: u16) {
        self.begin_attach(slot, service, socket, ports, queues);
        self.until("the instance is attached", |bed| {
            bed.saw(|e| matches!(e, SwitchEvent::Attached { slot: s, .. } if s.0 == slot))
        });
    }

    /// Begins to connect an instance.
    pub fn begin_attach(&mut self, slot: u16, service: u16, socket: PathBuf, ports: u8, queues: u16) {
        self.set_state(slot, service, InstanceState::Standby);
        self.publish();
        let port = PortSpec {
            data_ports: ports,
            queues,
            deadline: Nanos::from_secs(20),
            ..PortSpec::new(PortKind::Memif, socket)
        };
        self.events.clear();
        self.ask(attach(slot, service, port));
    }

    pub fn saw(&self, which: impl Fn(&SwitchEvent) -> bool) -> bool {
        self.events.iter().any(which)
    }

    /// Takes an instance out of the plan and its ports away. Returns how many packets it still held.
    pub fn remove(&mut self, slot: u16) -> u64 {
        self.unplan(slot);
        self.ask(SwitchRequest::Detach(Slot(slot)));
        let mut held = None;
        self.until("the instance is removed", |bed| {
            held = bed.events.iter().find_map(|e| match e {
                SwitchEvent::Detached { slot: s, outstanding } if s.0 == slot => Some(*outstanding),
                _ => None,
            });
            held.is_some()
        });
        self.events.clear();
        held.unwrap()
    }

    /// Whether an instance has given back all that it was given.
    pub fn is_empty(&self, slot: u16) -> bool {
        self.slot(slot).to_packets == self.slot(slot).back_packets
    }

    /// What the switch counts for an instance.
    pub fn slot(&self, slot: u16) -> switch::SlotCounters {
        self.reading.slots[usize::from(slot)]
    }

    /// Packets dropped for that reason.
    pub fn drops(&self, reason: DropReason) -> u64 {
        self.reading.drops[reason.index()]
    }

    /// Every flow of the table.
    pub fn flows(&mut self, filter: FlowFilter, limit: usize) -> (Vec<FlowRow>, bool) {
        self.ask(SwitchRequest::Flows { id: 7, filter, limit });
        let mut found = None;
        self.until("the flows are listed", |bed| {
            while let Some(place) = bed
                .events
                .iter()
                .position(|e| matches!(e, SwitchEvent::Flows { .. }))
            {
                if let SwitchEvent::Flows {
                    id: 7,
                    rows,
                    complete,
                    ..
                } = bed.events.remove(place)
                {
                    found = Some((rows, complete));
                }
            }
            found.is_some()
        });
        found.unwrap()
    }

    /// Sends frames into an uplink, waiting for room.
    pub fn send<'a>(&mut self, uplink: usize, frames: impl IntoIterator<Item = &'a [u8]>) -> u64 {
        let ends = Instant::now() + PATIENCE;
        let tx = &mut self.uplinks[uplink].queues[0].tx;
        let mut sent = 0;
        for frame in frames {
            while tx.push(frame).is_err() {
                tx.flush();
                assert!(Instant::now() < ends, "the switch takes nothing");
                std::thread::sleep(Duration::from_micros(20));
            }
            sent += 1;
            if sent % 32 == 0 {
                tx.flush();
            }
        }
        tx.flush();
        sent
    }

    /// Takes what has come out of an uplink.
    pub fn take(&mut self, uplink: usize) -> Vec<Vec<u8>> {
        let rx = &mut self.uplinks[uplink].queues[0].rx;
        let mut buffer = vec![0; 65536];
        let mut frames = Vec::new();
        while let Some(Ok(len)) = rx.pop(&mut buffer) {
            frames.push(buffer[..len].to_vec());
        }
        rx.release();
        frames
    }

    /// Takes from an uplink until that many frames have come.
    pub fn take_all(&mut self, uplink: usize, count: usize) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        self.until(&format!("{count} frames out of uplink {uplink}"), |bed| {
            frames.extend(bed.take(uplink));
            frames.len() >= count
        });
        assert_eq!(frames.len(), count, "more came out than went in");
        frames
    }

    /// offered + originated = sent + dropped, and nothing is left inside.
    pub fn assert_accounts_close(&mut self) {
        self.until("the accounts close with nothing in flight", |bed| {
            let r = &bed.reading;
            r.in_flight() == 0 && r.offered() + r.originated() == r.sent() + r.dropped()
        });
    }

    /// Stops the switch: then, too, the accounts close, and every frame is back in the pool.
    pub fn finish(mut self) {
        self.switch.stop();
        self.switch.read(&mut self.reading);
        let r = &self.reading;
        assert_eq!(r.in_flight(), 0);
        assert_eq!(
            r.offered() + r.originated(),
            r.sent() + r.dropped(),
            "{:?}",
            r.drops
        );
        assert!(r.workers.iter().all(|w| w.events_lost == 0));
        assert_eq!(self.memory.shared_frames(), self.frames, "frames were leaked");
    }
}

/// One UDP packet of each of `count` flows.
pub fn udp_flows(count: u32) -> Vec<Vec<u8>> {
    (0..count)
        .map(|flow| udp_packet(flow, b"eighteen bytes fit"))
        .collect()
}

/// A UDP packet of that flow. Every flow has a pair of hosts of its own.
pub fn udp_packet(flow: u32, payload: &[u8]) -> Vec<u8> {
    let (src, dst) = ends(flow);
    Frame::udp(src, dst, payload).unwrap().to_vec().unwrap()
}

/// The ends of a UDP flow.
pub fn ends(flow: u32) -> (SocketAddr, SocketAddr) {
    let [_, a, b, c] = flow.to_be_bytes();
    let src = SocketAddr::from(([10, a, b, c], 1000 + (flow % 60_000) as u16));
    (src, SocketAddr::from(([192, 0, 2, 1], 80)))
}

/// What must come back unchanged: all but the source address, which functions stamp.
pub fn unstamped(frame: &[u8]) -> Vec<u8> {
    [&frame[..6], &frame[12..]].concat()
}

/// The number of the function that a frame was at.
pub fn stamp(frame: &[u8]) -> u8 {
    frame[7]
}
