//! The soft switch: workers in threads of this process, and the control plane's side of them.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use flow_table::{FlowHasher, FlowTable, Ownership, TableConfig};
use model::{DropReason, Generation, Nanos, Polling, ServiceId, Slot, Timeouts, UplinkId, WorkerId};
use rtrb::{Consumer, Producer, RingBuffer};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use switch::{
    Capabilities, EditKind, FlowFilter, FlowRow, HeavyFlow, PickRecord, Plan, PortKind, PortSpec, Switch,
    SwitchError, SwitchEvent, SwitchReading, SwitchRequest, WakeUp, WorkerTotals,
};

use crate::counters::WorkerCounters;
use crate::dump::{FlowDump, HeavyDump};
use crate::frame::{DeviceState, DeviceWatch, FrameMemory};
use crate::idle::{Alarm, Idle, Usual, WakeSet, Waker};
use crate::instance::{InstancePorts, PORT_LIMIT};
use crate::message::{Command, HandOff, WorkerEvent};
use crate::plan::{LoadBoard, WorkerPlan, home};
use crate::port::Port;
use crate::table_memory::TableMemory;
use crate::worker::{Peers, Sleep, Worker, WorkerParts};

/// What its switches can do.
pub const CAPABILITIES: Capabilities = Capabilities {
    ports: &[PortKind::Memif, PortKind::Null],
    captures: true,
    waiting_uplinks: true,
    worker_limit: None,
    edits: &[EditKind::Mac],
    sees_openers: true,
    relaxed_moves: true,
    flow_counters: true,
    return_matching: true,
    ring_occupancy: true,
    pick_records: true,
    service_changes: true,
    ..Capabilities::NONE
};
/// How long a worker runs while others wait for its CPU. It has little to do each time that it wakes, and all packets wait for it.
const SLICE: Duration = Duration::from_micros(100);
/// Commands that may wait for a worker. One per slot and some more: a whole set of instances can leave at once.
const COMMAND_SLOTS: usize = 2 * Slot::LIMIT;
/// Events that may wait for the control plane: an answer and a sweep per command, and a broken port, for each slot.
const EVENT_SLOTS: usize = 4 * Slot::LIMIT;
/// Rows that a request for flows gets at most, 130 MB of them.
const FLOW_ROWS_LIMIT: usize = 1 << 20;
/// Frames that may be under way from one worker to another. Four instance rings: the receiver takes a burst a turn.
const HAND_OFF_SLOTS: usize = 4096;
/// How often the sockets of ports are looked at: death of a peer is noticed within 100 ms by far.
const SOCKET_PERIOD: Nanos = Nanos::from_millis(5);
/// How often devices are looked at: reading a card's counters can take as long as 0.1 ms.
const WATCH_PERIOD: Nanos = Nanos::from_millis(100);
/// Access rights of an uplink's socket, whatever the umask: whoever connects is the network.
const UPLINK_SOCKET_MODE: u32 = 0o660;
/// How long an uplink's listener waits at a time, so that it notices the end.
const LISTEN_STEP: Duration = Duration::from_millis(100);
/// How often a switch that stops looks whether its workers have.
const STOP_STEP: Duration = Duration::from_micros(100);
/// How long to wait between two attempts to reach an instance that does not listen yet.
const CONNECT_PAUSE: Duration = Duration::from_millis(1);
/// How long one handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(2);

/// What a soft switch is made of.
#[derive(Clone, Debug)]
pub struct SoftSwitchConfig {
    /// A worker per entry, pinned to that CPU where there is one.
    pub workers: Vec<Option<usize>>,
    /// Whether workers sleep.
    pub polling: Polling,
    /// The flow table of each worker.
    pub table: TableConfig,
    /// When flows end without saying so.
    pub timeouts: Timeouts,
    /// Uplinks, in the order of their ids.
    pub uplinks: Vec<UplinkConfig>,
    /// Secret of the flow hash: the same for all workers, another for each run.
    pub hash_key: [u64; 4],
    /// Which worker owns a flow. As cards deal, where one that deals brings most packets: they then need not cross
    /// between workers.
    pub ownership: Ownership,
}

/// An uplink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UplinkConfig {
    /// Its name, for errors.
    pub name: String,
    /// What is behind it.
    pub device: UplinkDevice,
    /// The longest frame that it carries, in bytes. Longer ones are dropped, in both directions.
    pub max_frame: usize,
    /// Nothing is received from it before [`SwitchRequest::OpenUplink`]: its packets wait where they are, in a ring or a capture.
    pub waits: bool,
}

/// What is behind an uplink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UplinkDevice {
    /// A memif socket that the switch listens on; whoever connects is the network.
    Memif {
        /// The socket's path.
        socket: PathBuf,
        /// Queue pairs that its peer may have, at most one for each worker.
        queues: u16,
    },
    /// A device that is given to [`SoftSwitch::start`].
    Device,
    /// A sink.
    Null,
}

/// A device that was opened for an uplink.
pub struct OpenDevice<D> {
    /// Its queues, each for a worker of its own.
    pub queues: Vec<D>,
    /// Whether it deals packets to its queues as [`Ownership::Card`] says.
    pub deals: bool,
    /// What the control plane sees of it; `None` for one that is always up and drops nothing.
    pub watch: Option<Box<dyn DeviceWatch>>,
}

/// The soft switch. Dropping it stops the workers.
pub struct SoftSwitch<M: FrameMemory> {
    plan: Arc<ArcSwap<WorkerPlan>>,
    /// Published plans that a worker may still hold, oldest first. They are freed here, not there.
    kept_plans: VecDeque<Arc<WorkerPlan>>,
    /// Instances that failed since the last plan: the next one moves their flows.
    failing: Vec<Slot>,
    /// Answers to come from workers that were told of a failed instance.
    failures: usize,
    /// The plan that waits for these answers. Commands wait behind it.
    held_plan: Option<WorkerPlan>,
    /// The highest slot that any plan has had, and one.
    slots_used: usize,
    loads: Arc<LoadBoard>,
    alarm: Arc<Alarm>,
    workers: Vec<WorkerHandle<M>>,
    instances: Vec<Option<Attachment>>,
    uplinks: Vec<UplinkState>,
    background: Background,
    dumps: Vec<PendingDump>,
    heavy_dumps: Vec<PendingHeavy>,
    sockets_at: Nanos,
    watch_at: Nanos,
    /// Where link makers report; kept so that each can be given a sender.
    report: mpsc::Sender<Report>,
    reports: mpsc::Receiver<Report>,
}

struct WorkerHandle<M: FrameMemory> {
    commands: Producer<Command<M>>,
    /// Commands that found the ring full and must not be lost: those that follow from what happened, not from a call.
    backlog: VecDeque<Command<M>>,
    events: Consumer<WorkerEvent<M>>,
    counters: Arc<WorkerCounters>,
    waker: Arc<Waker>,
    usual: Usual,
    thread: Option<JoinHandle<()>>,
}

/// Threads beside the workers: listeners of uplinks, makers of links.
#[derive(Default)]
struct Background {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// An instance that is attached, or about to be, or about to go.
struct Attachment {
    /// Counts the attachments of all slots, so that a late report about an earlier one is told apart.
    serial: u64,
    controls: Vec<memif::Control>,
    /// Whether a thread is still trying to connect it.
    connecting: bool,
    /// Workers that have not yet taken their ports, and what the peer calls itself.
    attaching: usize,
    peer: String,
    /// Queue pairs of each port, once it is connected: the peer may have taken fewer than it was offered.
    queues: Option<u16>,
    failed: bool,
    reported_down: bool,
    /// Workers that have not yet forgotten it, once it is to go.
    removing: Option<Removing>,
    abandoned: Arc<AtomicBool>,
}

impl Attachment {
    fn new(abandoned: Arc<AtomicBool>) -> Attachment {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        Attachment {
            serial: SERIAL.fetch_add(1, Ordering::Relaxed),
            controls: Vec::new(),
            connecting: false,
            attaching: 0,
            peer: String::new(),
            queues: None,
            failed: false,
            reported_down: false,
            removing: None,
            abandoned,
        }
    }
}

struct Removing {
    waiting_for: usize,
    outstanding: u64,
}

struct UplinkState {
    max_frame: usize,
    /// Whether its device's packets are received; a memif link's always are.
    is_open: Arc<AtomicBool>,
    watch: Option<Watched>,
    control: Option<memif::Control>,
    /// Workers that have not yet taken their queue, and what the peer calls itself.
    attaching: usize,
    peer: String,
    /// Workers that still have a queue of the link that went down.
    detaching: usize,
    /// The link that comes next, while the old one's queues are being given back or the uplink is not open.
    next: Option<Box<memif::Link>>,
}

impl UplinkState {
    fn of(config: &UplinkConfig) -> UplinkState {
        UplinkState {
            max_frame: config.max_frame,
            is_open: Arc::new(AtomicBool::new(!config.waits)),
            watch: None,
            control: None,
            attaching: 0,
            peer: String::new(),
            detaching: 0,
            next: None,
        }
    }
}

/// A device and how it was when it was last looked at.
struct Watched {
    watch: Box<dyn DeviceWatch>,
    state: DeviceState,
}

impl Watched {
    /// A device that was just opened: up until the first look says otherwise.
    fn new(watch: Box<dyn DeviceWatch>) -> Watched {
        let state = DeviceState {
            up: true,
            ..DeviceState::default()
        };
        Watched { watch, state }
    }
}

struct PendingDump {
    id: u64,
    waiting_for: usize,
    rows: Vec<FlowRow>,
    limit: usize,
    complete: bool,
}

/// The heaviest flows, asked of all workers.
struct PendingHeavy {
    id: u64,
    waiting_for: usize,
    rows: Vec<HeavyFlow>,
}

/// What a background thread tells.
enum Report {
    Connected {
        slot: Slot,
        serial: u64,
        links: Result<Vec<memif::Link>, SwitchError>,
    },
    Uplink {
        uplink: UplinkId,
        link: Box<memif::Link>,
    },
}

impl<M: FrameMemory> WorkerHandle<M> {
    fn send_backlog(&mut self) {
        let mut sent = false;
        while let Some(command) = self.backlog.pop_front() {
            if let Err(rtrb::PushError::Full(command)) = self.commands.push(command) {
                self.backlog.push_front(command);
                break;
            }
            sent = true;
        }
        if sent {
            self.waker.wake();
        }
    }
}

impl<M: FrameMemory> SoftSwitch<M> {
    /// Starts the workers and the uplinks' listeners; [`Switch::wake_up`] wakes the thread that calls this. `memories` has one
    /// share per worker, `devices` one for each uplink that is one.
    ///
    /// # Errors
    /// [`SwitchError`] where there are more workers or uplinks than there can be, a socket cannot be listened on, or
    /// the system refuses memory, threads or descriptors. Nothing runs then.
    pub fn start(
        config: &SoftSwitchConfig,
        memories: Vec<M>,
        devices: Vec<(UplinkId, OpenDevice<M::Device>)>,
    ) -> Result<SoftSwitch<M>, SwitchError> {
        let count = config.workers.len();
        limit("workers", count, WorkerId::LIMIT)?;
        limit("uplinks", config.uplinks.len(), UplinkId::LIMIT)?;
        limit("workers with frames", count, memories.len())?;
        let mut listeners = Vec::new();
        for (index, uplink) in config.uplinks.iter().enumerate() {
            if let UplinkDevice::Memif { socket, queues } = &uplink.device {
                let server = memif::ServerConfig {
                    // A worker serves one queue of an uplink.
                    max_queues: (*queues).clamp(1, count as u16),
                    mode: Some(UPLINK_SOCKET_MODE),
                    ..memif::ServerConfig::new("inco")
                };
                let listener =
                    memif::Listener::bind(socket, server).map_err(|source| unusable(socket, &source))?;
                listeners.push((UplinkId(index as u8), listener));
            }
        }
        let hasher = FlowHasher::new(config.hash_key).owning(config.ownership);
        let plan = Arc::new(ArcSwap::from_pointee(WorkerPlan::default()));
        let loads = Arc::new(LoadBoard::default());
        let leaving = Arc::new(AtomicUsize::new(0));
        let alarm = Arc::new(Alarm::of(std::thread::current()));
        let mut parts = Vec::with_capacity(count);
        let mut handles = Vec::with_capacity(count);
        let wakers: Vec<Arc<Waker>> = (0..count)
            .map(|_| Waker::new().map(Arc::new))
            .collect::<Result<_, _>>()
            .map_err(|e| system("making an eventfd for a worker", e.into()))?;
        let (mut to_peers, mut from_peers) = hand_off_rings::<M>(count);
        for (index, memory) in memories.into_iter().enumerate().take(count) {
            let (commands, worker_commands) = RingBuffer::new(COMMAND_SLOTS);
            let (worker_events, events) = RingBuffer::new(EVENT_SLOTS);
            let counters = Arc::new(WorkerCounters::default());
            let waker = Arc::clone(&wakers[index]);
            let lines = config.table.lines_needed().map_err(SwitchError::Table)?;
            let storage = TableMemory::new(lines).map_err(|e| system("memory for a flow table", e))?;
            let table = FlowTable::new(
                storage,
                &config.table,
                &config.timeouts,
                hasher,
                clock::monotonic(),
            )
            .map_err(SwitchError::Table)?;
            parts.push(WorkerParts {
                id: WorkerId(index as u8),
                memory,
                table,
                fragment_key: [
                    config.hash_key[0] ^ config.hash_key[2],
                    config.hash_key[1] ^ config.hash_key[3],
                ],
                plan: Arc::clone(&plan),
                loads: Arc::clone(&loads),
                counters: Arc::clone(&counters),
                commands: worker_commands,
                events: worker_events,
                peers: Peers {
                    to: std::mem::take(&mut to_peers[index]),
                    from: std::mem::take(&mut from_peers[index]),
                    wakers: (0..count)
                        .map(|peer| (peer != index).then(|| Arc::clone(&wakers[peer])))
                        .collect(),
                    leaving: Arc::clone(&leaving),
                },
                sleep: Sleep {
                    wake_set: WakeSet::new(&waker)
                        .map_err(|e| system("making an epoll set for a worker", e.into()))?,
                    waker: Arc::clone(&waker),
                    idle: Idle::new(config.polling),
                    alarm: Arc::clone(&alarm),
                    is_unwatched: false,
                },
            });
            handles.push(WorkerHandle {
                commands,
                backlog: VecDeque::new(),
                events,
                counters,
                waker,
                usual: Usual::default(),
                thread: None,
            });
        }
        let (report, reports) = mpsc::channel();
        let mut switch = SoftSwitch {
            plan,
            kept_plans: VecDeque::new(),
            failing: Vec::new(),
            failures: 0,
            held_plan: None,
            slots_used: 0,
            loads,
            alarm,
            workers: handles,
            instances: (0..Slot::LIMIT).map(|_| None).collect(),
            uplinks: config.uplinks.iter().map(UplinkState::of).collect(),
            background: Background::default(),
            dumps: Vec::new(),
            heavy_dumps: Vec::new(),
            sockets_at: Nanos::ZERO,
            watch_at: Nanos::ZERO,
            report,
            reports,
        };
        for (index, (worker, cpu)) in parts.into_iter().zip(&config.workers).enumerate() {
            let cpu = *cpu;
            let thread = std::thread::Builder::new()
                .name(format!("inco-worker-{index}"))
                .spawn(move || {
                    if let Some(cpu) = cpu {
                        pin_to(cpu);
                    }
                    if let Err(error) = cpu_slice::of_this_thread(SLICE) {
                        tracing::debug!(%error, "a worker has no short slice and waits longer where others use its CPU");
                    }
                    Worker::new(worker).run(clock::monotonic);
                })
                .map_err(|e| system("starting a worker", e))?;
            switch.workers[index].thread = Some(thread);
        }
        for (uplink, listener) in listeners {
            switch.listen(uplink, listener)?;
        }
        for (index, uplink) in config.uplinks.iter().enumerate() {
            if uplink.device == UplinkDevice::Null {
                let uplink = UplinkId(index as u8);
                for worker in 0..count {
                    let port = Box::new(Port::null());
                    switch.command(worker, Command::AttachUplink { uplink, port });
                }
            }
        }
        for (uplink, device) in devices {
            switch.attach_uplink_device(uplink, device)?;
        }
        Ok(switch)
    }

    /// Gives an uplink the queues of its device, at most one per worker, from now on.
    ///
    /// # Errors
    /// [`SwitchError::Limit`] for an uplink that does not exist, no queue or too many.
    pub fn attach_uplink_device(
        &mut self,
        uplink: UplinkId,
        device: OpenDevice<M::Device>,
    ) -> Result<(), SwitchError> {
        let workers = self.workers.len();
        limit("uplinks", uplink.index() + 1, self.uplinks.len())?;
        limit("queues of an uplink", device.queues.len(), workers)?;
        let Some(state) = self.uplinks.get_mut(uplink.index()) else {
            return Ok(());
        };
        state.watch = device.watch.map(Watched::new);
        let (is_open, max_frame) = (Arc::clone(&state.is_open), state.max_frame);
        for (queue, device) in device.queues.into_iter().enumerate() {
            let worker = (uplink.index() + queue) % workers;
            let port = Box::new(Port::device(device, Arc::clone(&is_open)).for_frames(max_frame));
            self.command(worker, Command::AttachUplink { uplink, port });
        }
        Ok(())
    }

    /// Connects the data ports of the instance in that slot, which are devices: the queues of each, at most one per
    /// worker. [`SwitchEvent::Attached`] follows, as after [`SwitchRequest::Attach`].
    ///
    /// # Errors
    /// [`SwitchError::Limit`] for a slot, or a number of ports or queues, that does not exist; [`SwitchError::SlotInUse`].
    pub fn attach_devices(&mut self, slot: Slot, ports: Vec<Vec<M::Device>>) -> Result<(), SwitchError> {
        let workers = self.workers.len();
        limit("slots", slot.index() + 1, Slot::LIMIT)?;
        limit("data ports of an instance", ports.len(), PORT_LIMIT)?;
        if self.instances[slot.index()].is_some() {
            return Err(SwitchError::SlotInUse { slot });
        }
        // All ports of an instance have as many queues, or a worker would be at home to one of them alone.
        let queues = ports.iter().map(Vec::len).min().unwrap_or(0);
        limit("queues of a data port", queues, workers)?;
        self.slots_used = self.slots_used.max(slot.index() + 1);
        self.instances[slot.index()] = Some(Attachment::new(Arc::default()));
        let mut by_worker: Vec<Vec<Port<M>>> = (0..workers).map(|_| Vec::new()).collect();
        for port in ports {
            for (queue, device) in port.into_iter().enumerate().take(queues) {
                let is_open = Arc::new(AtomicBool::new(true));
                by_worker[home(slot, queue, queues, workers)].push(Port::device(device, is_open));
            }
        }
        self.attach_ports(slot, by_worker, Some(queues as u16), String::new(), Vec::new());
        Ok(())
    }

    /// Sends a command to a worker, in the order of the calls, whether its ring has room now or later.
    fn command(&mut self, worker: usize, command: Command<M>) {
        let is_free = self.held_plan.is_none();
        if let Some(handle) = self.workers.get_mut(worker) {
            handle.backlog.push_back(command);
            if is_free {
                handle.send_backlog();
            }
        }
    }

    /// Whether every worker takes a command now, or as soon as a plan is out that is held.
    fn have_room(&self) -> Result<(), SwitchError> {
        let may_wait = match self.held_plan {
            Some(_) => COMMAND_SLOTS,
            None => 0,
        };
        match self
            .workers
            .iter()
            .position(|w| w.commands.slots() == 0 || w.backlog.len() > may_wait)
        {
            Some(worker) => Err(SwitchError::WorkerStuck {
                worker,
                pending: COMMAND_SLOTS,
            }),
            None => Ok(()),
        }
    }

    /// Sends a command to every worker, or to none.
    fn broadcast(&mut self, make: impl Fn() -> Command<M>) -> Result<(), SwitchError> {
        self.have_room()?;
        for worker in 0..self.workers.len() {
            self.command(worker, make());
        }
        Ok(())
    }

    fn listen(&mut self, uplink: UplinkId, mut listener: memif::Listener) -> Result<(), SwitchError> {
        let stop = Arc::clone(&self.background.stop);
        let report = self.report.clone();
        let alarm = Arc::clone(&self.alarm);
        let thread = std::thread::Builder::new()
            .name(format!("inco-uplink-{}", uplink.0))
            .spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    match listener.accept(LISTEN_STEP) {
                        Ok(Some(link)) => {
                            if report
                                .send(Report::Uplink {
                                    uplink,
                                    link: Box::new(link),
                                })
                                .is_err()
                            {
                                return;
                            }
                            alarm.ring();
                        }
                        Ok(None) => {}
                        Err(error) => {
                            tracing::warn!(%uplink, %error, "a peer could not be accepted");
                            // Whoever fails at once would otherwise keep this thread busy.
                            std::thread::sleep(LISTEN_STEP);
                        }
                    }
                }
            })
            .map_err(|e| system("starting an uplink's listener", e))?;
        self.background.threads.push(thread);
        Ok(())
    }

    // ---- instances --------------------------------------------------------------------------------------------

    /// Gives each queue of an instance's ports to its worker: with a queue per worker each its own, else one home.
    fn attach_links(&mut self, slot: Slot, links: Vec<memif::Link>) {
        let peer = links.first().map(|l| l.peer_name.clone()).unwrap_or_default();
        let workers = self.workers.len();
        // Both ports of an instance have as many queues, or a worker would be at home to one of them alone.
        let queues = links.iter().map(|l| l.queues.len()).min().unwrap_or(1);
        let mut by_worker: Vec<Vec<Port<M>>> = (0..workers).map(|_| Vec::new()).collect();
        let mut controls = Vec::new();
        for link in links {
            controls.push(link.control);
            for (queue, pair) in link.queues.into_iter().enumerate().take(queues) {
                by_worker[home(slot, queue, queues, workers)].push(Port::memif(pair));
            }
        }
        self.attach_ports(slot, by_worker, Some(queues as u16), peer, controls);
    }

    fn attach_ports(
        &mut self,
        slot: Slot,
        by_worker: Vec<Vec<Port<M>>>,
        queues: Option<u16>,
        peer: String,
        controls: Vec<memif::Control>,
    ) {
        if let Some(Some(attachment)) = self.instances.get_mut(slot.index()) {
            attachment.controls = controls;
            attachment.queues = queues;
            attachment.peer = peer;
            attachment.attaching = by_worker.iter().filter(|ports| !ports.is_empty()).count();
        }
        for (worker, ports) in by_worker.into_iter().enumerate() {
            if !ports.is_empty() {
                let ports = Box::new(InstancePorts::new(ports));
                self.command(worker, Command::AttachInstance { slot, ports });
            }
        }
    }

    fn take_report(&mut self, report: Report, events: &mut Vec<SwitchEvent>) {
        match report {
            Report::Connected { slot, serial, links } => {
                let Some(Some(attachment)) = self.instances.get_mut(slot.index()) else {
                    return;
                };
                if attachment.serial != serial {
                    return;
                }
                attachment.connecting = false;
                if attachment.removing.is_some() {
                    drop(links);
                    self.finish_removal(slot, events);
                    return;
                }
                match links {
                    Ok(links) => self.attach_links(slot, links),
                    Err(error) => {
                        // No worker knows of it: the slot is free for another attempt.
                        if let Some(place) = self.instances.get_mut(slot.index()) {
                            *place = None;
                        }
                        let reason = error.to_string();
                        events.push(SwitchEvent::AttachFailed { slot, reason });
                    }
                }
            }
            Report::Uplink { uplink, link } => {
                let Some(state) = self.uplinks.get_mut(uplink.index()) else {
                    return;
                };
                if state.control.is_some() {
                    // The old peer's end has not been seen yet; the new one takes its place.
                    state.next = Some(link);
                    self.detach_uplink(uplink);
                    events.push(SwitchEvent::UplinkDown {
                        uplink,
                        reason: "another peer took its place".into(),
                    });
                } else if state.detaching > 0 || !state.is_open.load(Ordering::Relaxed) {
                    state.next = Some(link);
                } else {
                    self.attach_uplink(uplink, *link);
                }
            }
        }
    }

    fn attach_uplink(&mut self, uplink: UplinkId, link: memif::Link) {
        let workers = self.workers.len();
        let Some(state) = self.uplinks.get_mut(uplink.index()) else {
            return;
        };
        state.attaching = link.queues.len().min(workers);
        state.peer = link.peer_name;
        state.control = Some(link.control);
        let max_frame = state.max_frame;
        for (queue, pair) in link.queues.into_iter().enumerate().take(workers) {
            let worker = (uplink.index() + queue) % workers;
            let port = Box::new(Port::memif(pair).for_frames(max_frame));
            self.command(worker, Command::AttachUplink { uplink, port });
        }
    }

    fn detach_uplink(&mut self, uplink: UplinkId) {
        let workers = self.workers.len();
        if let Some(state) = self.uplinks.get_mut(uplink.index()) {
            state.control = None;
            state.detaching += workers;
        }
        for worker in 0..workers {
            self.command(worker, Command::DetachUplink { uplink });
        }
    }

    fn take_worker_event(&mut self, event: WorkerEvent<M>, events: &mut Vec<SwitchEvent>) {
        match event {
            WorkerEvent::PortsReturned { ports } => drop(ports),
            WorkerEvent::InstanceAttached { slot } => {
                // Of an earlier attachment of the slot nothing comes any more: its removal was answered after it.
                let Some(Some(attachment)) = self.instances.get_mut(slot.index()) else {
                    return;
                };
                attachment.attaching = attachment.attaching.saturating_sub(1);
                if attachment.attaching == 0 && attachment.removing.is_none() {
                    let peer = attachment.peer.clone();
                    events.push(SwitchEvent::Attached { slot, peer });
                }
            }
            WorkerEvent::UplinkAttached { uplink } => {
                let Some(state) = self.uplinks.get_mut(uplink.index()) else {
                    return;
                };
                state.attaching = state.attaching.saturating_sub(1);
                if state.attaching == 0 && state.control.is_some() {
                    let peer = state.peer.clone();
                    events.push(SwitchEvent::UplinkUp { uplink, peer });
                }
            }
            WorkerEvent::UplinkBroken { uplink } => {
                // Broken by a peer that has gone meanwhile: then its queues are going already.
                let is_up = self
                    .uplinks
                    .get(uplink.index())
                    .is_some_and(|state| state.control.is_some());
                if is_up {
                    self.detach_uplink(uplink);
                    let reason = "it broke the protocol of its ring".to_owned();
                    events.push(SwitchEvent::UplinkDown { uplink, reason });
                }
            }
            WorkerEvent::InstanceFailed { slot: _ } => {
                self.failures = self.failures.saturating_sub(1);
                if self.failures == 0
                    && let Some(plan) = self.held_plan.take()
                {
                    self.put_in_force(plan);
                    for worker in &mut self.workers {
                        worker.send_backlog();
                    }
                }
            }
            WorkerEvent::InstanceRemoved { slot, outstanding } => {
                let Some(place) = self.instances.get_mut(slot.index()) else {
                    return;
                };
                let Some(removing) = place.as_mut().and_then(|a| a.removing.as_mut()) else {
                    return;
                };
                removing.outstanding += outstanding;
                removing.waiting_for = removing.waiting_for.saturating_sub(1);
                self.finish_removal(slot, events);
            }
            WorkerEvent::PortBroken { slot } => {
                self.port_down(slot, "it broke the protocol of its ring".to_owned(), events);
            }
            WorkerEvent::UplinkDetached { uplink, port } => {
                drop(port);
                let Some(state) = self.uplinks.get_mut(uplink.index()) else {
                    return;
                };
                state.detaching = state.detaching.saturating_sub(1);
                if state.detaching == 0
                    && let Some(link) = state.next.take()
                {
                    self.attach_uplink(uplink, *link);
                }
            }
            WorkerEvent::DumpedHeavy(dump) => {
                let Some(place) = self.heavy_dumps.iter().position(|d| d.id == dump.id) else {
                    return;
                };
                let pending = &mut self.heavy_dumps[place];
                pending.rows.extend(dump.rows);
                pending.waiting_for -= 1;
                if pending.waiting_for == 0 {
                    let PendingHeavy { id, mut rows, .. } = self.heavy_dumps.swap_remove(place);
                    rows.sort_by(|a, b| b.pps.total_cmp(&a.pps));
                    events.push(SwitchEvent::HeavyFlows { id, rows });
                }
            }
            WorkerEvent::Recorded(record) => {
                if record.flow.is_some() {
                    events.push(SwitchEvent::Recorded(record));
                }
            }
            WorkerEvent::Dumped(dump) => {
                let Some(place) = self.dumps.iter().position(|d| d.id == dump.id) else {
                    return;
                };
                let pending = &mut self.dumps[place];
                pending.complete &= dump.complete;
                pending.rows.extend(dump.rows);
                pending.waiting_for -= 1;
                if pending.waiting_for == 0 {
                    let mut done = self.dumps.swap_remove(place);
                    done.complete &= done.rows.len() <= done.limit;
                    done.rows.truncate(done.limit);
                    events.push(SwitchEvent::Flows {
                        id: done.id,
                        rules: Vec::new(),
                        rows: done.rows,
                        complete: done.complete,
                    });
                }
            }
        }
    }

    /// Tells that an instance is gone once nobody knows it any more: no worker, and nobody who would still connect it.
    fn finish_removal(&mut self, slot: Slot, events: &mut Vec<SwitchEvent>) {
        let Some(place) = self.instances.get_mut(slot.index()) else {
            return;
        };
        if let Some(Attachment {
            connecting: false,
            removing:
                Some(Removing {
                    waiting_for: 0,
                    outstanding,
                }),
            ..
        }) = place
        {
            let outstanding = *outstanding;
            *place = None;
            events.push(SwitchEvent::Detached { slot, outstanding });
        }
    }

    fn port_down(&mut self, slot: Slot, reason: String, events: &mut Vec<SwitchEvent>) {
        if let Some(Some(attachment)) = self.instances.get_mut(slot.index())
            && attachment.removing.is_none()
            && !attachment.reported_down
        {
            attachment.reported_down = true;
            events.push(SwitchEvent::PortDown { slot, reason });
        }
    }

    /// Looks at the sockets of all links.
    fn poll_sockets(&mut self, events: &mut Vec<SwitchEvent>) {
        let mut ready = Vec::new();
        {
            let mut owners = Vec::new();
            let mut fds = Vec::new();
            for (slot, attachment) in self.instances.iter().enumerate() {
                for control in attachment.iter().flat_map(|a| &a.controls) {
                    owners.push(Owner::Instance(Slot(slot as u16)));
                    fds.push(PollFd::from_borrowed_fd(control.as_fd(), PollFlags::IN));
                }
            }
            for (index, uplink) in self.uplinks.iter().enumerate() {
                if let Some(control) = &uplink.control {
                    owners.push(Owner::Uplink(UplinkId(index as u8)));
                    fds.push(PollFd::from_borrowed_fd(control.as_fd(), PollFlags::IN));
                }
            }
            let now = Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            if !matches!(poll(&mut fds, Some(&now)), Ok(n) if n > 0) {
                return;
            }
            for (owner, fd) in owners.into_iter().zip(&fds) {
                if !fd.revents().is_empty() {
                    ready.push(owner);
                }
            }
        }
        for owner in ready {
            match owner {
                Owner::Instance(slot) => {
                    let ended = self.instances[slot.index()]
                        .iter_mut()
                        .flat_map(|a| &mut a.controls)
                        .find_map(end_of);
                    if let Some(reason) = ended {
                        self.port_down(slot, reason, events);
                        if let Some(Some(attachment)) = self.instances.get_mut(slot.index()) {
                            attachment.controls.clear();
                        }
                    }
                }
                Owner::Uplink(uplink) => {
                    let state = &mut self.uplinks[uplink.index()];
                    if let Some(reason) = state.control.as_mut().and_then(end_of) {
                        self.detach_uplink(uplink);
                        events.push(SwitchEvent::UplinkDown { uplink, reason });
                    }
                }
            }
        }
    }

    /// Looks at the devices: their links and their own counters.
    fn watch_devices(&mut self, events: &mut Vec<SwitchEvent>) {
        for (index, uplink) in self.uplinks.iter_mut().enumerate() {
            let Some(Watched { watch, state }) = &mut uplink.watch else {
                continue;
            };
            let (uplink, before) = (UplinkId(index as u8), state.up);
            *state = watch.look();
            let (peer, reason) = ("its link is up".to_owned(), "its link is down".to_owned());
            match (before, state.up) {
                (false, true) => events.push(SwitchEvent::UplinkUp { uplink, peer }),
                (true, false) => events.push(SwitchEvent::UplinkDown { uplink, reason }),
                _ => {}
            }
        }
    }

    /// Makes a plan the one that workers steer by.
    fn put_in_force(&mut self, plan: WorkerPlan) {
        let old = self.plan.swap(Arc::new(plan));
        self.kept_plans.push_back(old);
        for worker in &self.workers {
            worker.waker.wake();
        }
    }

    fn acknowledged(&self) -> Generation {
        Generation(
            self.workers
                .iter()
                .map(|w| w.counters.figures.generation.get())
                .min()
                .unwrap_or(0),
        )
    }
}

#[derive(Clone, Copy)]
enum Owner {
    Instance(Slot),
    Uplink(UplinkId),
}

/// Why a link has ended, if it has.
fn end_of(control: &mut memif::Control) -> Option<String> {
    match control.poll() {
        Ok(memif::ControlEvent::None) => None,
        Ok(memif::ControlEvent::Disconnected { reason }) => Some(reason),
        Err(error) => Some(error.to_string()),
    }
}

/// A ring per ordered pair of workers: the producers by sender and receiver, the consumers by receiver and sender.
#[expect(clippy::type_complexity, reason = "two square matrices of ring ends")]
fn hand_off_rings<M: FrameMemory>(
    workers: usize,
) -> (
    Vec<Vec<Option<Producer<HandOff<M::Frame>>>>>,
    Vec<Vec<Option<Consumer<HandOff<M::Frame>>>>>,
) {
    let mut to: Vec<Vec<_>> = (0..workers)
        .map(|_| (0..workers).map(|_| None).collect())
        .collect();
    let mut from: Vec<Vec<_>> = (0..workers)
        .map(|_| (0..workers).map(|_| None).collect())
        .collect();
    for sender in 0..workers {
        for receiver in (0..workers).filter(|r| *r != sender) {
            let (producer, consumer) = RingBuffer::new(HAND_OFF_SLOTS);
            to[sender][receiver] = Some(producer);
            from[receiver][sender] = Some(consumer);
        }
    }
    (to, from)
}

fn limit(what: &'static str, asked: usize, limit: usize) -> Result<(), SwitchError> {
    if asked == 0 || asked > limit {
        Err(SwitchError::Limit { what, asked, limit })
    } else {
        Ok(())
    }
}

fn system(what: &str, source: std::io::Error) -> SwitchError {
    SwitchError::System {
        what: what.to_owned(),
        source,
    }
}

fn pin_to(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    if cpu < rustix::thread::CpuSet::MAX_CPU {
        set.set(cpu);
    }
    if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
        tracing::warn!(cpu, %error, "a worker could not be pinned to its CPU and runs on any");
    }
}

/// Connects an instance's ports, trying again until the deadline while nobody listens.
fn connect_ports(
    port: &PortSpec,
    queues: u16,
    abandoned: &AtomicBool,
) -> Result<Vec<memif::Link>, SwitchError> {
    let ends = Instant::now() + Duration::from_nanos(port.deadline.0);
    let mut links = Vec::new();
    for interface_id in 0..u32::from(port.data_ports) {
        let config = memif::ClientConfig {
            ring: memif::RingConfig {
                log2_slots: port.ring_slots.max(1).ilog2() as u8,
                buffer_bytes: port.buffer_bytes,
                queues,
            },
            name: "inco".to_owned(),
            ..memif::ClientConfig::new(&port.address, interface_id)
        };
        loop {
            match memif::Client::connect(&config, HANDSHAKE) {
                Ok(link) => {
                    links.push(link);
                    break;
                }
                Err(error)
                    if (error.is_worth_retrying() || is_peer_slow(&error))
                        && Instant::now() < ends
                        && !abandoned.load(Ordering::Relaxed) =>
                {
                    std::thread::sleep(CONNECT_PAUSE);
                }
                Err(source) => return Err(unusable(&port.address, &source)),
            }
        }
    }
    Ok(links)
}

/// A memif socket is of no use.
fn unusable(socket: &Path, source: &memif::Error) -> SwitchError {
    SwitchError::Port {
        reason: format!("memif socket {}: {source}", socket.display()),
    }
}

/// Whether the peer gave the handshake up because it took too long: one that has little of a CPU, or of a busy one.
fn is_peer_slow(error: &memif::Error) -> bool {
    matches!(error, memif::Error::Disconnected { reason } if reason.contains("timed out"))
}

/// What is asked for.
impl<M: FrameMemory> SoftSwitch<M> {
    fn steer_by(&mut self, mut plan: Plan) {
        plan.slots.truncate(Slot::LIMIT);
        let queues = |attached: &Option<Attachment>| attached.as_ref().and_then(|of| of.queues).unwrap_or(1);
        let queues = self.instances.iter().take(plan.slots.len()).map(queues);
        let plan = WorkerPlan::new(plan, queues.collect());
        self.slots_used = self.slots_used.max(plan.slots.len());
        // Not before all workers have sent on what failed instances gave back: what moves by this plan comes after it.
        if self.failures > 0 {
            self.held_plan = Some(plan);
        } else {
            self.put_in_force(plan);
        }
        for slot in std::mem::take(&mut self.failing) {
            for worker in 0..self.workers.len() {
                self.command(worker, Command::PurgeSlot { slot, failed: true });
            }
        }
    }

    fn attach(&mut self, slot: Slot, port: PortSpec) -> Result<(), SwitchError> {
        limit("slots", slot.index() + 1, Slot::LIMIT)?;
        if self.instances[slot.index()].is_some() {
            return Err(SwitchError::SlotInUse { slot });
        }
        match port.kind {
            PortKind::Null => {
                let workers = self.workers.len();
                self.instances[slot.index()] = Some(Attachment::new(Arc::default()));
                let sinks = || (0..PORT_LIMIT).map(|_| Port::null()).collect();
                let by_worker = (0..workers).map(|_| sinks()).collect();
                self.attach_ports(slot, by_worker, Some(workers as u16), String::new(), Vec::new());
            }
            PortKind::Memif => {
                limit(
                    "data ports of an instance",
                    usize::from(port.data_ports),
                    PORT_LIMIT,
                )?;
                let queues = port.queues.clamp(1, self.workers.len() as u16);
                let abandoned = Arc::new(AtomicBool::new(false));
                let mut attachment = Attachment::new(Arc::clone(&abandoned));
                let serial = attachment.serial;
                let report = self.report.clone();
                std::thread::Builder::new()
                    .name(format!("inco-attach-{}", slot.0))
                    .spawn(move || {
                        let links = connect_ports(&port, queues, &abandoned);
                        // Nobody listens only where the switch has ended.
                        let _ended = report.send(Report::Connected { slot, serial, links });
                    })
                    .map_err(|e| system("starting a thread that connects an instance", e))?;
                attachment.connecting = true;
                self.instances[slot.index()] = Some(attachment);
            }
            _ => {
                return Err(SwitchError::Unsupported {
                    what: "connect ports of that kind: it knows memif and null",
                });
            }
        }
        // Before a plan has it, too: whether it takes a probe shows in its counters.
        self.slots_used = self.slots_used.max(slot.index() + 1);
        Ok(())
    }

    fn fail(&mut self, slot: Slot) -> Result<(), SwitchError> {
        if let Some(Some(attachment)) = self.instances.get_mut(slot.index()) {
            attachment.failed = true;
        }
        self.have_room()?;
        for handle in &mut self.workers {
            // Not behind a plan that is held until such commands are answered. There is room.
            if handle.commands.push(Command::FailInstance { slot }).is_ok() {
                self.failures += 1;
            }
            handle.waker.wake();
        }
        self.failing.push(slot);
        Ok(())
    }

    fn detach(&mut self, slot: Slot) -> Result<(), SwitchError> {
        let waiting_for = self.workers.len();
        self.have_room()?;
        // Its pins go with it.
        self.failing.retain(|failing| *failing != slot);
        let Some(place) = self.instances.get_mut(slot.index()) else {
            return Ok(());
        };
        // A slot without ports may still have pins; its removal is answered like any other.
        let attachment = place.get_or_insert_with(|| Attachment::new(Arc::default()));
        if attachment.removing.is_some() {
            return Ok(());
        }
        let failed = attachment.failed;
        attachment.abandoned.store(true, Ordering::Relaxed);
        attachment.controls.clear();
        attachment.removing = Some(Removing {
            waiting_for,
            outstanding: 0,
        });
        self.broadcast(|| Command::RemoveInstance { slot, failed })
    }

    fn open_uplink(&mut self, uplink: UplinkId) {
        let Some(state) = self.uplinks.get_mut(uplink.index()) else {
            return;
        };
        // Release: the plan that was published before is then seen by a worker that sees this.
        if !state.is_open.swap(true, Ordering::Release)
            && let Some(link) = state.next.take()
        {
            self.attach_uplink(uplink, *link);
        }
    }

    fn list_flows(&mut self, id: u64, filter: &FlowFilter, limit: usize) -> Result<(), SwitchError> {
        let limit = limit.min(FLOW_ROWS_LIMIT);
        self.broadcast(|| Command::Dump(Box::new(FlowDump::new(id, filter.clone(), limit))))?;
        self.dumps.push(PendingDump {
            id,
            waiting_for: self.workers.len(),
            rows: Vec::new(),
            limit,
            complete: true,
        });
        Ok(())
    }

    fn list_heavy_flows(&mut self, id: u64, filter: &FlowFilter) -> Result<(), SwitchError> {
        self.broadcast(|| Command::DumpHeavy(Box::new(HeavyDump::new(id, filter.clone()))))?;
        self.heavy_dumps.push(PendingHeavy {
            id,
            waiting_for: self.workers.len(),
            rows: Vec::new(),
        });
        Ok(())
    }
}

impl<M: FrameMemory> Switch for SoftSwitch<M> {
    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn request(&mut self, request: SwitchRequest) -> Result<(), SwitchError> {
        match request {
            SwitchRequest::Publish(plan) => {
                plan.validate(&CAPABILITIES)?;
                self.steer_by(Arc::unwrap_or_clone(plan));
                Ok(())
            }
            SwitchRequest::Attach { slot, port, .. } => self.attach(slot, port),
            SwitchRequest::Detach(slot) => self.detach(slot),
            SwitchRequest::Fail(slot) => self.fail(slot),
            SwitchRequest::Probe(slot) => {
                self.have_room()?;
                self.command(home(slot, 0, 1, self.workers.len()), Command::Probe { slot });
                Ok(())
            }
            SwitchRequest::PurgeSlot(slot) => self.broadcast(|| Command::PurgeSlot { slot, failed: false }),
            SwitchRequest::OpenUplink(uplink) => {
                self.open_uplink(uplink);
                Ok(())
            }
            SwitchRequest::Change(change) => self.broadcast(|| Command::Change(change.clone())),
            SwitchRequest::Flows { id, filter, limit } => self.list_flows(id, &filter, limit),
            SwitchRequest::HeavyFlows { id, filter } => self.list_heavy_flows(id, &filter),
            SwitchRequest::Record { id, service } => {
                self.broadcast(|| Command::Record(Box::new(PickRecord::new(id, service))))
            }
        }
    }

    fn set_loads(&mut self, loads: &[(Slot, f32)], expected: &[(ServiceId, f32)]) {
        for (slot, pps) in loads {
            self.loads.set_load(*slot, *pps);
        }
        for (service, pps) in expected {
            self.loads.set_expected(*service, *pps);
        }
        self.loads.publish();
    }

    fn read(&mut self, into: &mut SwitchReading) {
        // First: what was sent by an older plan is then in the counters that follow.
        into.acknowledged = self.acknowledged();
        // Before all else: what these generations pinned is then in the gauges. Pairs with the fence in a worker's turn.
        fence(Ordering::Acquire);
        let used = self.slots_used;
        let none = switch::SlotCounters::default();
        into.slots
            .iter_mut()
            .take(used)
            .for_each(|sum| sum.set_counted(&none));
        into.services.fill(Default::default());
        into.uplinks.fill(Default::default());
        into.drops = [0; DropReason::COUNT];
        into.workers.fill(WorkerTotals::default());
        for (worker, totals) in self.workers.iter().zip(&mut into.workers) {
            let counters = &worker.counters;
            counters
                .slots
                .iter()
                .take(used)
                .zip(&mut into.slots)
                .for_each(|(part, sum)| part.add_to(sum));
            counters
                .services
                .iter()
                .zip(&mut into.services)
                .for_each(|(part, sum)| part.add_to(sum));
            counters
                .uplinks
                .iter()
                .zip(&mut into.uplinks)
                .for_each(|(part, sum)| part.add_to(sum));
            counters
                .drops
                .iter()
                .zip(&mut into.drops)
                .for_each(|(part, sum)| *sum += part.get());
            counters.figures.add_to(totals);
        }
        for (uplink, sum) in self.uplinks.iter().zip(&mut into.uplinks) {
            let state = uplink
                .watch
                .as_ref()
                .map(|watched| watched.state)
                .unwrap_or_default();
            sum.missed_packets = state.missed_packets;
            sum.failed_packets = state.failed_packets;
        }
        into.at = clock::monotonic();
        into.age = Nanos::ZERO;
        for ((id, worker), totals) in (0..).zip(&mut self.workers).zip(&into.workers) {
            let mark = worker.usual.mark(totals.received, into.at);
            self.alarm.mark(WorkerId(id), mark);
        }
    }

    fn poll(&mut self, now: Nanos, events: &mut Vec<SwitchEvent>) {
        while let Ok(report) = self.reports.try_recv() {
            self.take_report(report, events);
        }
        for worker in 0..self.workers.len() {
            while let Ok(event) = self.workers[worker].events.pop() {
                self.take_worker_event(event, events);
            }
            if self.held_plan.is_none() {
                self.workers[worker].send_backlog();
            }
        }
        if now >= self.sockets_at {
            self.sockets_at = now + SOCKET_PERIOD;
            self.poll_sockets(events);
        }
        if now >= self.watch_at {
            self.watch_at = now + WATCH_PERIOD;
            self.watch_devices(events);
        }
        let acknowledged = self.acknowledged();
        while self
            .kept_plans
            .front()
            .is_some_and(|p| p.generation < acknowledged)
        {
            self.kept_plans.pop_front();
        }
    }

    fn take_longest_gaps(&mut self) -> Vec<Nanos> {
        self.workers
            .iter()
            .map(|w| Nanos(w.counters.figures.longest_gap_ns.reset()))
            .collect()
    }

    fn wake_up(&self) -> Option<Arc<dyn WakeUp>> {
        Some(Arc::<Alarm>::clone(&self.alarm))
    }

    fn stop(&mut self) {
        self.background.stop.store(true, Ordering::Relaxed);
        for attachment in self.instances.iter().flatten() {
            attachment.abandoned.store(true, Ordering::Relaxed);
        }
        for worker in &mut self.workers {
            worker.backlog.push_back(Command::Stop);
        }
        // A worker that has no room for its answers takes no commands: both rings are kept moving until all have ended.
        while self
            .workers
            .iter()
            .any(|w| w.thread.as_ref().is_some_and(|t| !t.is_finished()))
        {
            for worker in &mut self.workers {
                while worker.events.pop().is_ok() {}
                worker.send_backlog();
            }
            std::thread::sleep(STOP_STEP);
        }
        for worker in &mut self.workers {
            worker.backlog.clear();
            if let Some(thread) = worker.thread.take()
                && thread.join().is_err()
            {
                tracing::error!("a worker ended with a panic");
            }
        }
        for thread in self.background.threads.drain(..) {
            let _panicked = thread.join();
        }
        self.instances.iter_mut().for_each(|place| *place = None);
        for uplink in &mut self.uplinks {
            uplink.control = None;
            uplink.next = None;
            // The last that has it closes the device: what it wrote is then in its file.
            uplink.watch = None;
        }
    }
}

impl<M: FrameMemory> Drop for SoftSwitch<M> {
    fn drop(&mut self) {
        self.stop();
    }
}
