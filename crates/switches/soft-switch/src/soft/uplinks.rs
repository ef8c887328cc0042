//! The uplinks: their peers and their devices.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use model::UplinkId;
use switch::{Plan, SwitchError, SwitchEvent, SwitchReading};

use super::paths::Doors;
use super::resume::{KeptPeer, KeptPort, Leftover};
use super::workers::Workers;
use super::{OpenDevice, Report, SoftSwitchConfig, UplinkConfig, UplinkDevice, ended, limit, system};
use crate::ends::Ends;
use crate::frame::{DeviceState, DeviceWatch, FrameMemory};
use crate::idle::Alarm;
use crate::instance::Gates;
use crate::keep::KeptAs;
use crate::message::Command;
use crate::port::{Connection, Control, Listener, Losses, Port, Queue as _, kernel, memif};
use crate::tunnels::Tunnels;

/// Longest wait of an uplink's listener, after which it checks whether the switch ends.
const LISTEN_STEP: Duration = Duration::from_millis(100);

/// All uplinks, in the order of their ids.
pub(super) struct Uplinks<M: FrameMemory> {
    states: Vec<UplinkState<M>>,
    /// Threads that wait for peers.
    listeners: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    ends: Arc<Ends>,
    /// The fast path, where there is one.
    doors: Option<Arc<Doors>>,
    /// Addresses that are served, with their uplink.
    served: Vec<(UplinkId, IpAddr)>,
}

struct UplinkState<M: FrameMemory> {
    max_frame: usize,
    /// Its interface of the kernel, where it is one.
    interface: Option<String>,
    /// What was lost outside this program.
    lost: Losses,
    /// Whether its device's packets are received; those of a peer that has connected always are.
    is_open: Arc<AtomicBool>,
    watch: Option<Watched>,
    /// Of the peer that is connected.
    control: Option<Box<dyn Control>>,
    /// Workers that have not yet taken their queue, and what the peer calls itself.
    attaching: usize,
    peer: String,
    /// Workers that still have a queue of the peer that has gone.
    detaching: usize,
    /// The next peer, while the old one's queues are being given back or the uplink is not open.
    next: Option<Connection<M>>,
}

/// A device and its state at the last reading.
struct Watched {
    watch: Box<dyn DeviceWatch>,
    state: DeviceState,
}

impl Watched {
    /// A device that was just opened: up until the first reading.
    fn new(watch: Box<dyn DeviceWatch>) -> Watched {
        let state = DeviceState {
            up: true,
            ..DeviceState::default()
        };
        Watched { watch, state }
    }
}

impl<M: FrameMemory> UplinkState<M> {
    fn of(config: &UplinkConfig) -> UplinkState<M> {
        UplinkState {
            max_frame: config.max_frame,
            interface: match &config.device {
                UplinkDevice::Kernel { interface } => Some(interface.clone()),
                _ => None,
            },
            lost: Losses::default(),
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

/// An uplink that has peers, and where they connect.
pub(super) type Listening<M> = (UplinkId, Box<dyn Listener<M>>);

/// Where the peers of uplinks connect, for those that have peers: where they did in an earlier run.
pub(super) fn listen<M: FrameMemory>(
    config: &SoftSwitchConfig,
    leftover: &mut Leftover,
) -> Result<Vec<Listening<M>>, SwitchError> {
    let workers = config.workers.len();
    let mut listeners = Vec::new();
    for (id, uplink) in (0..).map(UplinkId).zip(&config.uplinks) {
        match &uplink.device {
            UplinkDevice::Memif { socket, queues } => {
                // A worker serves one queue of an uplink.
                let queues = (*queues).clamp(1, workers as u16);
                let before = leftover.listeners.remove(&uplink.name);
                let peer = leftover.peers.get(&uplink.name);
                let link = peer.and_then(|peer| Some((peer.serial, peer.connected.links().first()?)));
                let listener = memif::UplinkListener::new(socket, queues, config.keep.as_ref(), &uplink.name);
                listeners.push((id, listener.begin(before, link)?));
            }
            UplinkDevice::Kernel { interface } => {
                let keep = config.keep.as_ref();
                let mut listener =
                    kernel::InterfaceListener::new(interface, uplink.max_frame, keep, &uplink.name);
                if let Some(KeptPeer {
                    serial,
                    connected: KeptPort::Sockets(sockets),
                }) = leftover.peers.get(&uplink.name)
                    && let [socket] = sockets.as_slice()
                {
                    listener = listener.after(*serial, &socket.in_use);
                }
                listeners.push((id, Box::new(listener)));
            }
            UplinkDevice::Device | UplinkDevice::Null => {}
        }
    }
    Ok(listeners)
}

/// The tunnels of a configuration.
pub(super) fn tunnels(config: &SoftSwitchConfig) -> Tunnels {
    let uplink = config.tunnel.as_ref().map(|end| end.uplink.index());
    let uplink = uplink.and_then(|index| config.uplinks.get(index));
    Tunnels::new(config.tunnel.clone(), uplink.map_or(0, |uplink| uplink.max_frame))
}

/// The peers that are still connected from an earlier run.
pub(super) fn peers<M: FrameMemory>(
    config: &SoftSwitchConfig,
    leftover: &mut Leftover,
) -> Vec<(UplinkId, Connection<M>)> {
    let uplinks = (0..).map(UplinkId).zip(&config.uplinks);
    let peers = uplinks.filter_map(|(id, uplink)| {
        let KeptPeer { serial, connected } = leftover.peers.remove(&uplink.name)?;
        let kept = KeptAs::uplink(config.keep.as_ref(), &uplink.name, serial);
        Some((id, connected.connections(kept).pop()?))
    });
    peers.collect()
}

impl<M: FrameMemory> Uplinks<M> {
    /// The uplinks of a switch. Their sinks are in place, and no peer is connected.
    pub(super) fn new(
        uplinks: &[UplinkConfig],
        ends: Arc<Ends>,
        doors: Option<Arc<Doors>>,
        workers: &mut Workers<M>,
    ) -> Uplinks<M> {
        for (uplink, config) in (0..).map(UplinkId).zip(uplinks) {
            if config.device == UplinkDevice::Null {
                workers.command_all(|| Command::AttachUplink {
                    uplink,
                    port: Box::new(Port::null()),
                });
            }
        }
        Uplinks {
            states: uplinks.iter().map(UplinkState::of).collect(),
            listeners: Vec::new(),
            stop: Arc::default(),
            ends,
            doors,
            served: Vec::new(),
        }
    }

    /// Begins to wait for the peers of an uplink, in a thread that reports each.
    pub(super) fn listen(
        &mut self,
        uplink: UplinkId,
        mut listener: Box<dyn Listener<M>>,
        report: mpsc::Sender<Report<M>>,
        alarm: Arc<Alarm>,
    ) -> Result<(), SwitchError> {
        let stop = Arc::clone(&self.stop);
        let thread = std::thread::Builder::new()
            .name(format!("inco-uplink-{}", uplink.0))
            .spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    match listener.accept(LISTEN_STEP) {
                        Ok(Some(peer)) => {
                            let peer = Box::new(peer);
                            if report.send(Report::Peer { uplink, peer }).is_err() {
                                return;
                            }
                            alarm.ring();
                        }
                        Ok(None) => {}
                        Err(error) => {
                            tracing::warn!(%uplink, %error, "a peer could not be accepted");
                            // A peer whose handshake fails at once would otherwise keep this thread busy.
                            std::thread::sleep(LISTEN_STEP);
                        }
                    }
                }
            })
            .map_err(|e| system("starting an uplink's listener", e))?;
        self.listeners.push(thread);
        Ok(())
    }

    /// Gives an uplink the queues of its device, at most one per worker, from now on.
    pub(super) fn attach_device(
        &mut self,
        uplink: UplinkId,
        device: OpenDevice<M::Device>,
        workers: &mut Workers<M>,
    ) -> Result<(), SwitchError> {
        let count = workers.len();
        limit("uplinks", uplink.index() + 1, self.states.len())?;
        limit("queues of an uplink", device.queues.len(), count)?;
        let Some(state) = self.states.get_mut(uplink.index()) else {
            return Ok(());
        };
        state.watch = device.watch.map(Watched::new);
        let port = |queue| Port::device(queue, Arc::clone(&state.is_open));
        let queues = device.queues.into_iter().map(port).collect();
        give_to_workers(uplink, queues, state.max_frame, workers);
        Ok(())
    }

    /// Whether packets may come, of each uplink.
    pub(super) fn gates(&self) -> Gates {
        self.states
            .iter()
            .map(|state| Arc::clone(&state.is_open))
            .collect()
    }

    /// Receives packets of an uplink that waited.
    pub(super) fn open(&mut self, uplink: UplinkId, workers: &mut Workers<M>) {
        let Some(state) = self.states.get_mut(uplink.index()) else {
            return;
        };
        // Release: the plan that was published before is then seen by a worker that sees this.
        if !state.is_open.swap(true, Ordering::Release)
            && let Some(peer) = state.next.take()
        {
            self.attach(uplink, peer, workers);
        }
    }

    /// A peer has connected.
    pub(super) fn connected(
        &mut self,
        uplink: UplinkId,
        peer: Connection<M>,
        workers: &mut Workers<M>,
        events: &mut Vec<SwitchEvent>,
    ) {
        let Some(state) = self.states.get_mut(uplink.index()) else {
            return;
        };
        if state.control.is_some() {
            // The old peer's end has not been seen yet; the new one takes its place.
            state.next = Some(peer);
            self.down(uplink, "another peer took its place".into(), workers, events);
        } else if state.detaching > 0 || !state.is_open.load(Ordering::Relaxed) {
            state.next = Some(peer);
        } else {
            self.attach(uplink, peer, workers);
        }
    }

    /// A peer is still connected from an earlier run. What instances give back goes there at once; nothing is received
    /// before the uplink is open.
    pub(super) fn connected_again(
        &mut self,
        uplink: UplinkId,
        mut peer: Connection<M>,
        workers: &mut Workers<M>,
    ) {
        let Some(state) = self.states.get(uplink.index()) else {
            return;
        };
        let gated = |port| match port {
            Port::Memif(port) => Port::Memif(port.behind(&state.is_open)),
            Port::Kernel(port) => Port::Kernel(port.behind(&state.is_open)),
            other => other,
        };
        peer.queues = peer.queues.into_iter().map(gated).collect();
        self.attach(uplink, peer, workers);
    }

    fn attach(&mut self, uplink: UplinkId, peer: Connection<M>, workers: &mut Workers<M>) {
        let Some(state) = self.states.get_mut(uplink.index()) else {
            return;
        };
        state.attaching = peer.queues.len().min(workers.len());
        state.peer = peer.peer;
        state.control = peer.control;
        if let Some(mac) = peer.mac {
            self.ends.set_mac(uplink, mac);
            let served = self.served.iter().filter(|(of, _)| *of == uplink);
            tell(state.interface.as_deref(), served);
        }
        if let Some(doors) = &self.doors
            && let Some(interface) = &peer.interface
            && let Some(socket) = peer.queues.first().and_then(|queue| queue.wait_fd())
        {
            doors.enter_uplink(uplink, interface, socket);
        }
        give_to_workers(uplink, peer.queues, state.max_frame, workers);
    }

    /// A worker has taken its queue of an uplink.
    pub(super) fn taken(&mut self, uplink: UplinkId, events: &mut Vec<SwitchEvent>) {
        let Some(state) = self.states.get_mut(uplink.index()) else {
            return;
        };
        state.attaching = state.attaching.saturating_sub(1);
        if state.attaching == 0 && state.control.is_some() {
            let peer = state.peer.clone();
            events.push(SwitchEvent::UplinkUp { uplink, peer });
        }
    }

    /// The peer has closed the connection or broken the protocol: its queues are given back.
    pub(super) fn down(
        &mut self,
        uplink: UplinkId,
        reason: String,
        workers: &mut Workers<M>,
        events: &mut Vec<SwitchEvent>,
    ) {
        // A peer that has gone before: then its queues are being given back already.
        if let Some(state) = self.states.get_mut(uplink.index())
            && state.control.take().is_some()
        {
            state.detaching += workers.len();
            workers.command_all(|| Command::DetachUplink { uplink });
            events.push(SwitchEvent::UplinkDown { uplink, reason });
        }
    }

    /// A worker has given its queue of an uplink back.
    pub(super) fn given_back(&mut self, uplink: UplinkId, workers: &mut Workers<M>) {
        let Some(state) = self.states.get_mut(uplink.index()) else {
            return;
        };
        state.detaching = state.detaching.saturating_sub(1);
        // Before it is open, the next peer waits for that.
        if state.detaching == 0
            && state.is_open.load(Ordering::Relaxed)
            && let Some(peer) = state.next.take()
        {
            self.attach(uplink, peer, workers);
        }
    }

    /// Checks which peers have closed the connection.
    pub(super) fn look(&mut self, workers: &mut Workers<M>, events: &mut Vec<SwitchEvent>) {
        let uplinks = (0..).map(UplinkId).zip(&mut self.states);
        let controls = uplinks.filter_map(|(uplink, state)| Some((uplink, state.control.as_mut()?)));
        for (uplink, reason) in ended(controls) {
            self.down(uplink, reason, workers, events);
        }
    }

    /// A plan is to be published: announces the addresses of its services, and of their instances, that are new.
    pub(super) fn announce(&mut self, plan: &Plan) {
        let mut served = Vec::new();
        for service in &plan.services {
            let of_instances = plan.instances().filter(|(_, row)| row.service == service.id);
            let own = of_instances.flat_map(|(slot, _)| self.ends.own(slot));
            let addresses = service.vip.iter().flat_map(|vip| &vip.addresses).chain(own);
            for address in addresses {
                let asked = service
                    .uplinks
                    .iter()
                    .filter(|of| !self.ends.tunnels().receives(**of));
                served.extend(asked.map(|uplink| (*uplink, *address)));
            }
        }
        for (uplink, state) in (0..).map(UplinkId).zip(&self.states) {
            let new = served
                .iter()
                .filter(|of| of.0 == uplink && !self.served.contains(of));
            if state.control.is_some() {
                tell(state.interface.as_deref(), new);
            }
        }
        self.served = served;
    }

    /// Reads the devices: whether each is up, and its own counters.
    pub(super) fn watch_devices(&mut self, workers: &mut Workers<M>, events: &mut Vec<SwitchEvent>) {
        let mut ended = Vec::new();
        for (uplink, state) in (0..).map(UplinkId).zip(&mut self.states) {
            let Some(control) = state.control.as_mut().filter(|_| state.interface.is_some()) else {
                continue;
            };
            state.lost += control.take_losses();
            ended.extend(control.end().map(|reason| (uplink, reason)));
        }
        for (uplink, reason) in ended {
            self.down(uplink, reason, workers, events);
        }
        for (uplink, state) in (0..).map(UplinkId).zip(&mut self.states) {
            let Some(Watched { watch, state }) = &mut state.watch else {
                continue;
            };
            let before = state.up;
            *state = watch.look();
            let (peer, reason) = ("its link is up".to_owned(), "its link is down".to_owned());
            match (before, state.up) {
                (false, true) => events.push(SwitchEvent::UplinkUp { uplink, peer }),
                (true, false) => events.push(SwitchEvent::UplinkDown { uplink, reason }),
                _ => {}
            }
        }
    }

    /// What the devices have counted themselves.
    pub(super) fn add_to(&self, into: &mut SwitchReading) {
        for (uplink, sum) in self.states.iter().zip(&mut into.uplinks) {
            let state = uplink.watch.as_ref().map(|watched| watched.state);
            let state = state.unwrap_or_default();
            sum.missed_packets = state.missed_packets + uplink.lost.missed;
            sum.failed_packets = state.failed_packets + uplink.lost.failed;
        }
    }

    /// Stops waiting for peers.
    pub(super) fn stop_listening(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Closes all of them. No worker may run any more.
    pub(super) fn close(&mut self) {
        for thread in self.listeners.drain(..) {
            let _panicked = thread.join();
        }
        for state in &mut self.states {
            state.control = None;
            state.next = None;
            // The last that has it closes the device: what it wrote is then in its file.
            state.watch = None;
        }
    }
}

/// Announces addresses on an uplink that is an interface.
fn tell<'a>(interface: Option<&str>, addresses: impl Iterator<Item = &'a (UplinkId, IpAddr)>) {
    let addresses: Vec<IpAddr> = addresses.map(|(_, address)| *address).collect();
    if let Some(interface) = interface.filter(|_| !addresses.is_empty()) {
        kernel::tell(interface, &addresses);
    }
}

/// Gives each queue of an uplink to a worker of its own; the uplinks begin with different workers.
fn give_to_workers<M: FrameMemory>(
    uplink: UplinkId,
    queues: Vec<Port<M>>,
    max_frame: usize,
    workers: &mut Workers<M>,
) {
    let count = workers.len();
    for (queue, port) in queues.into_iter().enumerate().take(count) {
        let port = Box::new(port.for_frames(max_frame));
        let worker = (uplink.index() + queue) % count;
        workers.command(worker, Command::AttachUplink { uplink, port });
    }
}
