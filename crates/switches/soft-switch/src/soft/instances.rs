//! The ports of instances: from a request to attach until the last worker has removed them.

use std::convert::identity;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;

use model::{DropReason, PortKind, Slot};
use switch::{Plan, PortSpec, SwitchError, SwitchEvent, SwitchReading};

use super::paths::Doors;
use super::resume::KeptPort;
use super::workers::Workers;
use super::{Report, SoftSwitchConfig, ended, limit, system};
use crate::ends::{End, Ends};
use crate::frame::FrameMemory;
use crate::id_map::SlotMap;
use crate::instance::{Gates, InstancePorts, PORT_LIMIT};
use crate::keep::{Keep, KeptAs};
use crate::message::Command;
use crate::plan::home;
use crate::port::{Connection, Control, Losses, Port, Queue as _, connector, tunnel};

/// The instances of all slots.
pub(super) struct Instances<M: FrameMemory> {
    places: Vec<Option<Attachment>>,
    /// The highest slot that any plan or attachment has had, and one.
    used: usize,
    /// Where threads that connect ports report.
    report: mpsc::Sender<Report<M>>,
    keep: Option<Keep>,
    ends: Arc<Ends>,
    /// The fast path, where there is one.
    doors: Option<Arc<Doors>>,
    /// Packets that were lost between workers and instances' networks, by slot.
    lost: SlotMap<Lost>,
}

/// What was lost between workers and the network of an instance.
#[derive(Clone, Copy, Debug, Default)]
struct Lost {
    all: Losses,
    /// Packets that were sent and delivered, as told last.
    told: [u64; 2],
}

/// An instance that is attached, being attached or being removed.
struct Attachment {
    /// Counts the attachments of all slots, so that a late report about an earlier one is told apart.
    serial: u64,
    controls: Vec<Box<dyn Control>>,
    /// Whether a thread is still trying to connect it.
    connecting: bool,
    /// Workers that have not yet taken their ports, and what the peer calls itself.
    attaching: usize,
    peer: String,
    /// Queues of each port, once it is connected: the peer may have taken fewer than it was offered.
    queues: Option<u16>,
    failed: bool,
    reported_down: bool,
    /// Workers that have not yet removed it, after a request to remove it.
    removing: Option<Removing>,
    abandoned: Arc<AtomicBool>,
    /// Whether it ends connections: its program uses the kernel's network.
    is_end: bool,
}

impl Attachment {
    fn new(kind: PortKind) -> Attachment {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        Attachment {
            is_end: kind == PortKind::Kernel,
            serial: SERIAL.fetch_add(1, Ordering::Relaxed),
            controls: Vec::new(),
            connecting: false,
            attaching: 0,
            peer: String::new(),
            queues: None,
            failed: false,
            reported_down: false,
            removing: None,
            abandoned: Arc::default(),
        }
    }
}

struct Removing {
    waiting_for: usize,
    outstanding: u64,
}

/// The same ports; those of a tunnel get the far end's name, by which the next run knows whether flows are those of the
/// same machine.
pub(super) fn named(mut port: PortSpec) -> PortSpec {
    if let Some(at) = port.back_end.filter(|_| port.kind == PortKind::Tunnel) {
        port.address = at.to_string().into();
    }
    port
}

/// The machine at the other end of a tunnel.
fn far_end(port: &PortSpec) -> Option<Ipv4Addr> {
    match port.back_end?.ip() {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    }
}

impl<M: FrameMemory> Instances<M> {
    pub(super) fn new(
        report: mpsc::Sender<Report<M>>,
        config: &SoftSwitchConfig,
        ends: Arc<Ends>,
        doors: Option<Arc<Doors>>,
    ) -> Instances<M> {
        Instances {
            places: (0..Slot::LIMIT).map(|_| None).collect(),
            used: 0,
            report,
            keep: config.keep.clone(),
            ends,
            doors,
            lost: SlotMap::default(),
        }
    }

    fn get(&mut self, slot: Slot) -> Option<&mut Attachment> {
        self.places.get_mut(slot.index())?.as_mut()
    }

    /// The highest slot that any plan or attachment has had, and one: the others have counted nothing.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    /// A plan is to be published. Gives the queues that each port in its slots has.
    pub(super) fn follow(&mut self, plan: &Plan) -> Vec<u16> {
        self.ends.follow(plan);
        let slots = plan.slots.len();
        self.used = self.used.max(slots);
        let places = self.places.iter().take(slots);
        let queues = places.map(|place| place.as_ref().and_then(|of| of.queues).unwrap_or(1));
        queues.collect()
    }

    // ---- attaching --------------------------------------------------------------------------------------------

    /// Whether an attachment of that slot may begin.
    fn may_attach(&self, slot: Slot) -> Result<(), SwitchError> {
        limit("slots", slot.index() + 1, Slot::LIMIT)?;
        match self.places.get(slot.index()) {
            Some(None) => Ok(()),
            _ => Err(SwitchError::SlotInUse { slot }),
        }
    }

    /// Begins to connect the ports of an instance, in a thread.
    pub(super) fn attach(&mut self, slot: Slot, port: PortSpec, workers: usize) -> Result<(), SwitchError> {
        self.may_attach(slot)?;
        let is_tunnel = port.kind == PortKind::Tunnel && self.ends.tunnels().only().is_some();
        let connect = connector::<M>(port.kind);
        if connect.is_none() && !is_tunnel {
            return Err(SwitchError::Unsupported {
                what: "connect ports of that kind",
            });
        }
        if is_tunnel {
            self.ends.tunnels().set(slot, far_end(&port));
        }
        let ends = Arc::clone(&self.ends);
        let data_ports = usize::from(port.data_ports);
        limit("data ports of an instance", data_ports, PORT_LIMIT)?;
        let mut attachment = Attachment::new(port.kind);
        let (serial, abandoned) = (attachment.serial, Arc::clone(&attachment.abandoned));
        let report = self.report.clone();
        let kept = KeptAs::ports(self.keep.as_ref(), slot);
        std::thread::Builder::new()
            .name(format!("inco-attach-{}", slot.0))
            .spawn(move || {
                let ports = match connect {
                    Some(connect) => connect(&port, workers, &abandoned, &kept),
                    None => tunnel::connect((slot, &port), &ends, workers, &abandoned),
                };
                // The receiver is gone only when the switch has ended.
                let _ended = report.send(Report::Connected { slot, serial, ports });
            })
            .map_err(|e| system("starting a thread that connects an instance", e))?;
        attachment.connecting = true;
        self.put(slot, attachment);
        Ok(())
    }

    /// Goes on with the ports of an instance of an earlier run.
    pub(super) fn attach_again(
        &mut self,
        slot: Slot,
        kept: KeptPort,
        kind: PortKind,
        gates: Gates,
        workers: &mut Workers<M>,
    ) -> Result<(), SwitchError> {
        self.may_attach(slot)?;
        self.put(slot, Attachment::new(kind));
        let ports = kept.connections(KeptAs::ports(self.keep.as_ref(), slot));
        let of_earlier_run = |ports: InstancePorts<M>| ports.of_earlier_run(Arc::clone(&gates));
        self.give_to_workers(slot, ports, of_earlier_run, workers);
        Ok(())
    }

    /// Connects the ports of an instance that are open devices.
    pub(super) fn attach_devices(
        &mut self,
        slot: Slot,
        ports: Vec<Vec<M::Device>>,
        workers: &mut Workers<M>,
    ) -> Result<(), SwitchError> {
        self.may_attach(slot)?;
        limit("data ports of an instance", ports.len(), PORT_LIMIT)?;
        let queues = ports.iter().map(Vec::len).min().unwrap_or(0);
        limit("queues of a data port", queues, workers.len())?;
        self.put(slot, Attachment::new(PortKind::Device));
        let port = |queue| Port::device(queue, Arc::new(AtomicBool::new(true)));
        let ports = ports.into_iter().map(|queues| Connection {
            queues: queues.into_iter().map(port).collect(),
            control: None,
            peer: String::new(),
            interface: None,
            mac: None,
        });
        self.give_to_workers(slot, ports.collect(), identity, workers);
        Ok(())
    }

    fn put(&mut self, slot: Slot, attachment: Attachment) {
        // Also before a plan names it: its counters show whether it takes a probe.
        self.used = self.used.max(slot.index() + 1);
        if let Some(place) = self.places.get_mut(slot.index()) {
            *place = Some(attachment);
        }
    }

    /// The thread that connects an instance has ended.
    pub(super) fn connected(
        &mut self,
        slot: Slot,
        serial: u64,
        ports: Result<Vec<Connection<M>>, SwitchError>,
        workers: &mut Workers<M>,
        events: &mut Vec<SwitchEvent>,
    ) {
        let Some(attachment) = self.get(slot).filter(|of| of.serial == serial) else {
            return;
        };
        attachment.connecting = false;
        if attachment.removing.is_some() {
            drop(ports);
            self.finish_removal(slot, events);
            return;
        }
        match ports {
            Ok(ports) => self.give_to_workers(slot, ports, identity, workers),
            Err(error) => {
                // No worker has it: the slot is free for another attempt.
                self.free(slot);
                let reason = error.to_string();
                events.push(SwitchEvent::AttachFailed { slot, reason });
            }
        }
    }

    /// Gives each queue of an instance's ports to its home worker: with a queue per worker each its own, else one for
    /// all.
    fn give_to_workers(
        &mut self,
        slot: Slot,
        ports: Vec<Connection<M>>,
        made: impl Fn(InstancePorts<M>) -> InstancePorts<M>,
        workers: &mut Workers<M>,
    ) {
        let ends = Arc::clone(&self.ends);
        let doors = self.doors.clone();
        let Some(attachment) = self.get(slot) else { return };
        let count = workers.len();
        // All ports of an instance have as many queues: else a worker would be the home of one port and not of
        // another.
        let queues = ports.iter().map(|port| port.queues.len()).min().unwrap_or(1);
        attachment.queues = Some(queues as u16);
        attachment.peer = ports.first().map(|port| port.peer.clone()).unwrap_or_default();
        let is_end = attachment.is_end;
        ends.attach(slot, is_end);
        if is_end
            && let Some(doors) = &doors
            && let [port] = ports.as_slice()
            && let Some(interface) = &port.interface
            && let Some(socket) = port.queues.first().and_then(|queue| queue.wait_fd())
        {
            doors.enter_instance(slot, interface, socket);
        }
        let mut by_worker: Vec<Vec<Port<M>>> = (0..count).map(|_| Vec::new()).collect();
        for port in ports {
            attachment.controls.extend(port.control);
            for (queue, port) in port.queues.into_iter().enumerate().take(queues) {
                if let Some(ports) = by_worker.get_mut(home(slot, queue, queues, count)) {
                    ports.push(port);
                }
            }
        }
        attachment.attaching = by_worker.iter().filter(|ports| !ports.is_empty()).count();
        for (worker, ports) in by_worker.into_iter().enumerate() {
            if !ports.is_empty() {
                let mut ports = InstancePorts::new(ports);
                if is_end {
                    ports = ports.ending(End::new(&ends, slot));
                }
                let ports = Box::new(made(ports));
                workers.command(worker, Command::AttachInstance { slot, ports });
            }
        }
    }

    /// A worker has taken its ports of that instance.
    pub(super) fn taken(&mut self, slot: Slot, events: &mut Vec<SwitchEvent>) {
        // Of an earlier attachment of the slot nothing comes any more: its removal was answered after it.
        let Some(attachment) = self.get(slot) else { return };
        attachment.attaching = attachment.attaching.saturating_sub(1);
        if attachment.attaching == 0 && attachment.removing.is_none() {
            let peer = attachment.peer.clone();
            events.push(SwitchEvent::Attached { slot, peer });
        }
    }

    // ---- removal ----------------------------------------------------------------------------------------------

    /// The instance in that slot has failed: packets in it are lost, not kept.
    pub(super) fn fail(&mut self, slot: Slot) {
        if let Some(attachment) = self.get(slot) {
            attachment.failed = true;
        }
    }

    /// Takes an instance away from all workers.
    pub(super) fn detach(&mut self, slot: Slot, workers: &mut Workers<M>) -> Result<(), SwitchError> {
        workers.have_room()?;
        workers.forget_failure(slot);
        let Some(place) = self.places.get_mut(slot.index()) else {
            return Ok(());
        };
        // A slot without ports may still have pins; its removal is answered like any other.
        let attachment = place.get_or_insert_with(|| Attachment::new(PortKind::Null));
        if attachment.removing.is_some() {
            return Ok(());
        }
        let failed = attachment.failed;
        attachment.abandoned.store(true, Ordering::Relaxed);
        // Its links stay open, and kept, until all workers have passed on what it gave back.
        attachment.removing = Some(Removing {
            waiting_for: workers.len(),
            outstanding: 0,
        });
        workers.broadcast(|| Command::RemoveInstance { slot, failed })
    }

    /// A worker has removed that instance, which had not returned `held` of its packets.
    pub(super) fn forgotten(&mut self, slot: Slot, outstanding: u64, events: &mut Vec<SwitchEvent>) {
        let Some(removing) = self.get(slot).and_then(|of| of.removing.as_mut()) else {
            return;
        };
        removing.outstanding += outstanding;
        removing.waiting_for = removing.waiting_for.saturating_sub(1);
        self.finish_removal(slot, events);
    }

    /// Reports an instance as removed when no worker has it and no thread is connecting it any more.
    fn finish_removal(&mut self, slot: Slot, events: &mut Vec<SwitchEvent>) {
        if let Some(Attachment {
            connecting: false,
            removing:
                Some(Removing {
                    waiting_for: 0,
                    outstanding,
                }),
            ..
        }) = self.get(slot)
        {
            let outstanding = *outstanding;
            self.free(slot);
            events.push(SwitchEvent::Detached { slot, outstanding });
        }
    }

    fn free(&mut self, slot: Slot) {
        self.ends.tunnels().set(slot, None);
        if let Some(place) = self.places.get_mut(slot.index()) {
            *place = None;
        }
    }

    /// A port of that instance has failed.
    pub(super) fn port_down(&mut self, slot: Slot, reason: String, events: &mut Vec<SwitchEvent>) {
        if let Some(attachment) = self.get(slot)
            && attachment.removing.is_none()
            && !attachment.reported_down
        {
            attachment.reported_down = true;
            events.push(SwitchEvent::PortDown { slot, reason });
        }
    }

    /// Looks which ports have ended.
    pub(super) fn look(&mut self, events: &mut Vec<SwitchEvent>) {
        for slot in (0..self.used).map(|slot| Slot(slot as u16)) {
            if self.ends.tunnels().is_silent(slot) {
                self.port_down(
                    slot,
                    "the machine at the other end of the tunnel does not answer".into(),
                    events,
                );
            }
        }
        let slots = (0..).map(Slot).zip(&mut self.places);
        let controls = slots.flat_map(|(slot, place)| {
            let controls = place.iter_mut().flat_map(|of| &mut of.controls);
            controls.map(move |control| (slot, control))
        });
        for (slot, reason) in ended(controls) {
            self.port_down(slot, reason, events);
            if let Some(attachment) = self.get(slot) {
                attachment.controls.clear();
            }
        }
    }

    /// Reads what was lost between workers and instances.
    pub(super) fn watch(&mut self, workers: &mut Workers<M>) {
        for (slot, place) in (0..).map(Slot).zip(&mut self.places) {
            let Some(of) = place else { continue };
            let mut lost = Losses::default();
            for control in &mut of.controls {
                lost += control.take_losses();
            }
            let packets = lost.missed + lost.failed;
            if of.is_end {
                self.lost[slot].all += lost;
            } else if packets > 0 {
                // What it was given and does not give back is known to its home worker alone.
                let home = home(slot, 0, 1, workers.len());
                workers.command(home, Command::CountLost { slot, packets });
            }
        }
    }

    /// Adds that. What did not get into an instance's network after all was dropped in front of it; what did not get out
    /// of it was its own.
    pub(super) fn add_to(&mut self, into: &mut SwitchReading) {
        let mut all = 0;
        let used = self.used();
        for (lost, sum) in self.lost.iter_mut().zip(&mut into.slots).take(used) {
            let Losses { missed, failed } = lost.all;
            if missed + failed == 0 {
                continue;
            }
            for (count, told) in [&mut sum.to_packets, &mut sum.delivered]
                .into_iter()
                .zip(&mut lost.told)
            {
                // What was told before stays so: counters only grow.
                *told = count.saturating_sub(failed).max(*told);
                *count = *told;
            }
            sum.ring_drops += failed;
            sum.back_packets += missed;
            sum.originated += missed;
            all += missed + failed;
        }
        if let Some(sum) = into.drops.get_mut(DropReason::InstanceRingFull.index()) {
            *sum += all;
        }
    }

    /// Stops all attempts to connect one.
    pub(super) fn abandon(&mut self) {
        for attachment in self.places.iter().flatten() {
            attachment.abandoned.store(true, Ordering::Relaxed);
        }
    }

    /// Closes all ports. No worker may run any more.
    pub(super) fn close(&mut self) {
        self.places.iter_mut().for_each(|place| *place = None);
    }
}
