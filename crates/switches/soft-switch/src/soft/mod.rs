//! The soft switch: workers in threads of this process, and the control plane's side of them.
//!
//! Each part owns its state: [`Workers`] the commands and plans, [`Instances`] and [`Uplinks`] the ports and who is
//! behind them, [`Questions`] the requests that all workers answer. Other threads connect ports and wait for peers;
//! they send their results as a [`Report`].

mod capabilities;
mod captures;
mod checks;
mod hand_overs;
mod identities;
mod instances;
mod pairs;
mod path_told;
mod paths;
mod questions;
mod resume;
mod start;
mod tables;
mod uplinks;
mod workers;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::sync::mpsc;

use flow_table::{Ownership, TableConfig};
use model::{DropReason, FlowKey, Nanos, Polling, ServiceId, Slot, Timeouts, UplinkId, WorkerId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use switch::{
    Capabilities, PickRecord, Plan, PortSpec, Resumed, Switch, SwitchError, SwitchEvent, SwitchReading,
    SwitchRequest, WakeUp, WorkerTotals,
};

use crate::ends::Ends;
use crate::frame::{DeviceWatch, FrameMemory};
use crate::idle::Alarm;
use crate::keep::Keep;
use crate::message::{Command, Ending, WorkerEvent};
use crate::plan::{LoadBoard, WorkerPlan, home};
use crate::port::{Connection, Control};
use crate::shares::{Earlier, SharesMaker};
use crate::tunnels::TunnelEnd;
pub use capabilities::{CAPABILITIES, FAST_CAPABILITIES};
use checks::Checks;
use hand_overs::HandOvers;
use identities::Identities;
use instances::Instances;
use pairs::InstancePairs;
pub use pairs::{KernelPorts, pairs_in_use, remove_pairs};
pub use paths::FastConfig;
use questions::Questions;
use resume::Leftover;
use start::Board;
use uplinks::Uplinks;
use workers::Workers;

/// The settings of a soft switch.
#[derive(Clone, Debug)]
pub struct SoftSwitchConfig {
    /// A worker per entry, bound to that CPU if one is named.
    pub workers: Vec<Option<usize>>,
    /// Whether workers sleep.
    pub polling: Polling,
    /// The flow table of each worker.
    pub table: TableConfig,
    /// Timeouts of idle flows.
    pub timeouts: Timeouts,
    /// Uplinks, in the order of their ids.
    pub uplinks: Vec<UplinkConfig>,
    /// Secret of the flow hash: the same for all workers, another for each run.
    pub hash_key: [u64; 4],
    /// The rule by which a worker owns a flow. Where most packets come from a card that deals them to queues, its
    /// rule: packets then need not cross between workers.
    pub ownership: Ownership,
    /// The kernel ports of instances.
    pub kernel_ports: KernelPorts,
    /// The near end of tunnels, if there are any.
    pub tunnel: Option<TunnelEnd>,
    /// TCP connections of a service that may be half open, on all workers; [`None`]: on each worker a quarter of the
    /// IPv4 flows of its table.
    pub half_open: Option<u32>,
    /// A fast path beside the worker, of which there is one then, on a CPU of its own.
    pub fast: Option<FastConfig>,
    /// Who keeps tables, rings and sockets for the next run. What an earlier one left is taken over.
    pub keep: Option<Keep>,
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
    /// Whether it receives nothing before [`SwitchRequest::OpenUplink`]; its packets then wait in a ring or a
    /// capture.
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
    /// A network interface of the kernel.
    Kernel {
        /// Its name.
        interface: String,
    },
    /// A sink.
    Null,
}

/// A device that was opened for an uplink.
pub struct OpenDevice<D> {
    /// Its queues, each for a worker of its own.
    pub queues: Vec<D>,
    /// Whether it deals packets to its queues by [`Ownership::Card`].
    pub deals: bool,
    /// The control plane's view of it; `None` for a device that is always up and drops nothing.
    pub watch: Option<Box<dyn DeviceWatch>>,
}

/// The soft switch. Dropping it stops the workers.
pub struct SoftSwitch<M: FrameMemory> {
    workers: Workers<M>,
    instances: Instances<M>,
    pairs: InstancePairs,
    uplinks: Uplinks<M>,
    questions: Questions,
    loads: Arc<LoadBoard>,
    shares: SharesMaker,
    hand_overs: HandOvers,
    alarm: Arc<Alarm>,
    reports: mpsc::Receiver<Report<M>>,
    keep: Option<Keep>,
    /// What an earlier run left and nobody has claimed yet.
    leftover: Leftover,
    /// Slots that flows of an earlier run are pinned to, and whose instance has not come again.
    unclaimed: BTreeSet<Slot>,
    /// Which instance each slot has, for the next run.
    identities: Option<Identities>,
    checks: Checks,
}

/// A message of a thread that connects ports or waits for peers.
enum Report<M: FrameMemory> {
    /// The result of connecting the ports of an instance, with the number of the attachment.
    Connected {
        slot: Slot,
        serial: u64,
        ports: Result<Vec<Connection<M>>, SwitchError>,
    },
    /// A peer has connected to an uplink.
    Peer {
        uplink: UplinkId,
        peer: Box<Connection<M>>,
    },
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

/// Which of these ports have ended, and why.
fn ended<'a, T: Copy>(controls: impl Iterator<Item = (T, &'a mut Box<dyn Control>)>) -> Vec<(T, String)> {
    let mut controls: Vec<(T, &mut Box<dyn Control>)> = controls.collect();
    let mut fds = Vec::with_capacity(controls.len());
    for (_, control) in &controls {
        fds.push(PollFd::from_borrowed_fd(control.fd(), PollFlags::IN));
    }
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    if !matches!(poll(&mut fds, Some(&at_once)), Ok(ready) if ready > 0) {
        return Vec::new();
    }
    let is_ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
    let ready = controls
        .iter_mut()
        .zip(is_ready)
        .filter(|(_, is_ready)| *is_ready);
    let ends = ready.filter_map(|((owner, control), _)| Some((*owner, control.end()?)));
    ends.collect()
}

impl<M: FrameMemory> SoftSwitch<M> {
    /// Starts the workers and the uplinks' listeners; [`Switch::wake_up`] wakes the thread that calls this.
    /// `memories` has one share per worker, `devices` one for each uplink that is one.
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
        let mut leftover = Leftover::take(config)?;
        let listeners = uplinks::listen(config, &mut leftover)?;
        let loads = Arc::new(LoadBoard::default());
        let alarm = Arc::new(Alarm::of(std::thread::current()));
        let (report, reports) = mpsc::channel();
        let identities = match (leftover.identities.take(), &config.keep) {
            (None, Some(keep)) => {
                let new = Identities::new(keep);
                Some(new.map_err(|e| system("memory for the instances of slots", e))?)
            }
            (page, _) => page,
        };
        let pairs = InstancePairs::start(&config.kernel_ports, leftover.has_any)?;
        let ends = Ends::new(
            &config.kernel_ports.places,
            [config.hash_key[0], config.hash_key[3]],
            config.keep.as_ref(),
            leftover.neighbours.take(),
            uplinks::tunnels(config),
        );
        let ends = Arc::new(ends.map_err(|e| system("memory for the neighbours of uplinks", e))?);
        let shares = leftover.shares.take().map(|memory| Earlier {
            memory,
            services: leftover.shares_of,
        });
        let shares = SharesMaker::new(config, shares);
        let board = Board {
            loads: &loads,
            alarm: &alarm,
            ends: &ends,
            shares: &shares.pins,
        };
        let mut workers = Workers::start(config, memories, board, &mut leftover)?;
        let doors = workers.doors();
        let mut switch = SoftSwitch {
            instances: Instances::new(report.clone(), config, Arc::clone(&ends), doors.clone()),
            pairs,
            uplinks: Uplinks::new(&config.uplinks, ends, doors, &mut workers),
            unclaimed: leftover.pinned(),
            identities,
            leftover,
            keep: config.keep.clone(),
            workers,
            questions: Questions::default(),
            loads,
            shares,
            hand_overs: HandOvers::default(),
            alarm,
            reports,
            checks: Checks::default(),
        };
        for (uplink, listener) in listeners {
            let alarm = Arc::clone(&switch.alarm);
            switch.uplinks.listen(uplink, listener, report.clone(), alarm)?;
        }
        for (uplink, device) in devices {
            switch.attach_uplink_device(uplink, device)?;
        }
        for (uplink, peer) in uplinks::peers(config, &mut switch.leftover) {
            switch.uplinks.connected_again(uplink, peer, &mut switch.workers);
        }
        Ok(switch)
    }

    /// The instance of an earlier run, with its rings where they are there; or a new one.
    fn attach(&mut self, slot: Slot, port: PortSpec) -> Result<(), SwitchError> {
        let port = instances::named(self.pairs.port_of(slot, port)?);
        let identity = self.pairs.identity(port.clone());
        let workers = &mut self.workers;
        let kept = self.leftover.ports.remove(&slot);
        let has_flows = self.unclaimed.remove(&slot);
        let is_kept = kept.as_ref().is_some_and(|kept| kept.is_at(&port.address));
        let mut is_same = is_kept;
        if let Some(page) = &mut self.identities {
            is_same |= page.is_at(slot, &identity);
            // Until flows of another instance are gone from here, nobody is known to have the slot.
            page.put(slot, (is_same || !has_flows).then_some(&identity));
        }
        if let Some(kept) = kept {
            if is_kept && kept.ports() == usize::from(port.data_ports) {
                let gates = self.uplinks.gates();
                return self.instances.attach_again(slot, kept, port.kind, gates, workers);
            }
            // Its sockets are to be closed, so that the instance takes new links.
            if let Some(keep) = &self.keep {
                keep.forget(&format!("port/{}", slot.0));
            }
        }
        if has_flows && is_same {
            tracing::info!(
                slot = slot.0,
                "an instance is connected anew, without the packets in its rings"
            );
        } else if has_flows {
            // It is another instance's flows that are pinned here.
            self.shares.forget(slot);
            workers.broadcast(|| Command::PurgeSlot { slot, failed: true })?;
        }
        self.instances.attach(slot, port, workers.len())
    }

    /// Packets are about to come: flows of instances that have not come again get others.
    fn give_up_unclaimed(&mut self) -> Result<(), SwitchError> {
        while let Some(slot) = self.unclaimed.first().copied() {
            self.shares.forget(slot);
            self.workers
                .broadcast(|| Command::PurgeSlot { slot, failed: true })?;
            self.unclaimed.remove(&slot);
        }
        Ok(())
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
        self.uplinks.attach_device(uplink, device, &mut self.workers)
    }

    /// Connects the data ports of the instance in that slot, which are devices: the queues of each, at most one per
    /// worker. [`SwitchEvent::Attached`] follows, as after [`SwitchRequest::Attach`].
    ///
    /// # Errors
    /// [`SwitchError::Limit`] for a slot, or a number of ports or queues, that does not exist;
    /// [`SwitchError::SlotInUse`].
    pub fn attach_devices(&mut self, slot: Slot, ports: Vec<Vec<M::Device>>) -> Result<(), SwitchError> {
        self.instances.attach_devices(slot, ports, &mut self.workers)
    }

    fn publish(&mut self, mut plan: Plan) -> Result<(), SwitchError> {
        self.shares.follow(&plan)?;
        self.hand_overs.follow(&plan, &self.shares);
        plan.slots.truncate(Slot::LIMIT);
        self.uplinks.announce(&plan);
        let queues = self.instances.follow(&plan);
        self.workers.publish(WorkerPlan::new(plan, queues));
        Ok(())
    }

    fn take_report(&mut self, report: Report<M>, events: &mut Vec<SwitchEvent>) {
        let workers = &mut self.workers;
        match report {
            Report::Connected { slot, serial, ports } => {
                self.instances.connected(slot, serial, ports, workers, events);
            }
            Report::Peer { uplink, peer } => self.uplinks.connected(uplink, *peer, workers, events),
        }
    }

    fn take_worker_event(&mut self, event: WorkerEvent<M>, events: &mut Vec<SwitchEvent>) {
        let broken = || "it broke the protocol of its ring".to_owned();
        match event {
            WorkerEvent::PortsReturned { ports } => drop(ports),
            WorkerEvent::InstanceAttached { slot } => self.instances.taken(slot, events),
            WorkerEvent::InstanceFailed { slot: _ } => self.workers.failure_answered(),
            WorkerEvent::InstanceRemoved { slot, outstanding } => {
                self.instances.forgotten(slot, outstanding, events);
            }
            WorkerEvent::PortBroken { slot } => self.instances.port_down(slot, broken(), events),
            WorkerEvent::UplinkAttached { uplink } => self.uplinks.taken(uplink, events),
            WorkerEvent::UplinkBroken { uplink } => {
                self.uplinks.down(uplink, broken(), &mut self.workers, events);
            }
            WorkerEvent::UplinkDetached { uplink, port } => {
                drop(port);
                self.uplinks.given_back(uplink, &mut self.workers);
            }
            WorkerEvent::DumpedHeavy(dump) => events.extend(self.questions.heavy_flows_answered(*dump)),
            WorkerEvent::Dumped(dump) => events.extend(self.questions.flows_answered(*dump)),
            WorkerEvent::Signal { slot, frame } => events.push(SwitchEvent::Signal { slot, frame }),
            WorkerEvent::Mappings(event) => events.extend(self.hand_overs.told(event, self.workers.len())),
            WorkerEvent::Recorded(record) => {
                if record.flow.is_some() {
                    events.push(SwitchEvent::Recorded(record));
                }
            }
        }
    }
}

impl<M: FrameMemory> Switch for SoftSwitch<M> {
    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn request(&mut self, request: SwitchRequest) -> Result<(), SwitchError> {
        let workers = &mut self.workers;
        match request {
            SwitchRequest::Publish(plan) => {
                plan.validate(&CAPABILITIES)?;
                self.publish(Arc::unwrap_or_clone(plan))
            }
            SwitchRequest::Attach { slot, port, .. } => self.attach(slot, port),
            SwitchRequest::Detach(slot) => {
                self.shares.forget(slot);
                self.instances.detach(slot, workers)
            }
            SwitchRequest::Fail(slot) => {
                self.shares.forget(slot);
                self.instances.fail(slot);
                workers.fail(slot)
            }
            SwitchRequest::Probe(slot) => {
                workers.have_room()?;
                workers.command(home(slot, 0, 1, workers.len()), Command::Probe { slot });
                Ok(())
            }
            SwitchRequest::Mappings(request) => self.hand_overs.request(request, workers),
            SwitchRequest::PurgeSlot(slot) => {
                self.hand_overs.purge(slot, &self.shares);
                workers.broadcast(|| Command::PurgeSlot { slot, failed: false })
            }
            SwitchRequest::OpenUplink(uplink) => {
                self.give_up_unclaimed()?;
                self.uplinks.open(uplink, &mut self.workers);
                Ok(())
            }
            SwitchRequest::Change(change) => workers.broadcast(|| Command::Change(change.clone())),
            SwitchRequest::Flows { id, filter, limit } => {
                self.questions.ask_flows(id, &filter, limit, workers)
            }
            SwitchRequest::HeavyFlows { id, filter } => self.questions.ask_heavy_flows(id, &filter, workers),
            SwitchRequest::Capture(capture) => workers.begin_capture(&capture),
            SwitchRequest::Record { id, service } => {
                workers.broadcast(|| Command::Record(Box::new(PickRecord::new(id, service))))
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

    fn set_trust(&mut self, trust: &[(Slot, f32)]) {
        for (slot, trust) in trust {
            self.loads.set_trust(*slot, *trust);
        }
    }

    fn read(&mut self, into: &mut SwitchReading) {
        // First: packets sent by an older plan are then in the counters that follow.
        into.acknowledged = self.workers.acknowledged();
        // Before all else: flows that these generations pinned are then in the gauges. Pairs with the fence in a
        // worker's turn.
        fence(Ordering::Acquire);
        let used = self.instances.used();
        into.services.fill(Default::default());
        into.uplinks.fill(Default::default());
        into.drops = [0; DropReason::COUNT];
        into.workers.fill(WorkerTotals::default());
        self.workers.add_to(into, used);
        self.uplinks.add_to(into);
        self.instances.add_to(into);
        if let (Some(paths), Some(sum)) = (&self.workers.paths, into.workers.first_mut()) {
            sum.fast_rules_limit = paths.told.limit();
            sum.refused_promotions = paths.told.refused();
        }
        into.at = clock::monotonic();
        into.age = paths::age(into);
        self.workers.mark(into, &self.alarm);
    }

    fn poll(&mut self, now: Nanos, events: &mut Vec<SwitchEvent>) {
        let before = events.len();
        while let Ok(report) = self.reports.try_recv() {
            self.take_report(report, events);
        }
        for worker in 0..self.workers.len() {
            while let Some(event) = self.workers.next_event(worker) {
                self.take_worker_event(event, events);
            }
            self.workers.send_backlog(worker);
        }
        if self.checks.ports_are_due(now) {
            self.instances.look(events);
            if let Some(keep) = &self.keep {
                self.leftover.drop_ended(keep);
                keep.send_forgotten();
            }
            self.uplinks.look(&mut self.workers, events);
        }
        self.pairs.poll(now, before, events);
        if let Some(paths) = &self.workers.paths {
            paths.told.take(clock::monotonic(), events);
        }
        if self.checks.devices_are_due(now) {
            self.uplinks.watch_devices(&mut self.workers, events);
            self.instances.watch(&mut self.workers);
        }
        self.workers.free_old();
    }

    fn path_of(&self, flow: &FlowKey) -> Option<String> {
        let paths = self.workers.paths.as_ref()?;
        Some(paths.told.path_of(clock::monotonic(), flow))
    }

    fn take_longest_gaps(&mut self) -> Vec<Nanos> {
        self.workers.take_longest_gaps()
    }

    fn wake_up(&self) -> Option<Arc<dyn WakeUp>> {
        Some(Arc::<Alarm>::clone(&self.alarm))
    }

    fn keeps_state(&self) -> bool {
        self.keep.is_some()
    }

    fn resumed(&self) -> Option<&Resumed> {
        Some(&self.leftover.resumed)
    }

    fn leave(&mut self) {
        if let Some(keep) = &self.keep {
            keep.leave();
        }
        self.end(Ending::Forward);
        self.pairs.stop(false);
    }

    fn stop(&mut self) {
        self.end(Ending::Drop);
        self.pairs.stop(true);
    }
}

impl<M: FrameMemory> SoftSwitch<M> {
    fn end(&mut self, ending: Ending) {
        self.uplinks.stop_listening();
        self.instances.abandon();
        self.workers.stop(ending);
        self.uplinks.close();
        self.instances.close();
    }
}

impl<M: FrameMemory> Drop for SoftSwitch<M> {
    fn drop(&mut self) {
        self.stop();
    }
}
