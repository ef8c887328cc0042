//! The driver: [`OpenFlowSwitch`] steers by the rules of a bridge of Open vSwitch, behind the contract of every
//! switch.
//!
//! Threads: one owns the connection, the monitor port and [`Steering`](crate::Steering), and reads counters; one asks
//! which flows the hardware has. Both end with the switch.
//!
//! All ports of the bridge are made here before there is traffic, because the pollers of Open vSwitch stand still
//! while it makes one: the monitor port, a memif link whose other end is ours; the uplinks; and those of instances
//! that may come. A slot's ports are the ones of each instance that has the slot; what they have counted before is
//! not counted for it.

mod bridge;
mod counters;
mod matches;
mod offloaded;
mod silence;
mod troubles;
mod worker;

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use bridge::{MARK, first_ports, instance_port, mark, monitor_name, queue_pairs};
use model::{DropReason, Nanos, ServiceId, Slot, UplinkId};
use offloaded::OffloadedFlows;
use openvswitch::{Endpoint, Ovsdb, OvsdbError};
use switch::{
    Capabilities, Change, PortKind, Resumed, ServicePlan, Switch, SwitchError, SwitchEvent, SwitchReading,
    SwitchRequest,
};
use thiserror::Error;
use worker::Worker;

use crate::steering::{Settings, Steering};

/// Rules of buckets that the services may need in all. They are written first, and each takes time.
const BUCKET_RULE_LIMIT: usize = 65_536;
/// OpenFlow numbers of ports: uplinks from 1, then the monitor port, then two for each slot.
const FIRST_UPLINK: u32 = 1;
const MONITOR: u32 = 15;
const FIRST_INSTANCE: u32 = 16;
/// Data ports that an instance has at most.
const DATA_PORTS: u32 = 2;
/// What its switches can do.
pub const CAPABILITIES: Capabilities = Capabilities {
    // Whatever the other end is: the port was made when the switch started.
    ports: &[PortKind::Memif, PortKind::Device],
    prepared_ports: true,
    // As Debian builds it (`RTE_MAX_ETHPORTS`).
    dpdk_port_limit: Some(32),
    // An MTU of 1,500 and a VLAN tag.
    max_frame: Some(1522),
    // One thread writes the rules.
    worker_limit: Some(1),
    flow_counters: true,
    ..Capabilities::NONE
};

/// How long the database may take for one change: the first port of DPDK takes seconds.
const DATABASE_LIMIT: Duration = Duration::from_secs(30);
/// How long Open vSwitch may take to agree on the monitor port. It does not try again: without that port it sends us no
/// frame until it is started again.
const MONITOR_LIMIT: Duration = Duration::from_secs(60);
/// How long Open vSwitch may take to remove the bridge at the end. One that does not run does it when it runs again.
const REMOVE_LIMIT: Duration = Duration::from_secs(5);
/// How long the containers of an earlier run have to be found again.
const ADOPT_PATIENCE: Nanos = Nanos::from_secs(15);

/// What is behind a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortDevice {
    /// A memif socket on which Open vSwitch listens; its client is at the other end.
    Memif(PathBuf),
    /// A network interface of the machine: a representor, or one end of a veth pair.
    Interface(String),
    /// A device of DPDK, as Open vSwitch's `dpdk-devargs`.
    Dpdk(String),
}

/// A slot for instances, and the ports that they have there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PooledPorts {
    /// The slot.
    pub slot: Slot,
    /// Whose instances have it.
    pub service: ServiceId,
    /// One for each data port: several memif ports with one socket are its interfaces 0, 1 and so on.
    pub devices: Vec<PortDevice>,
}

/// What a switch is made of.
#[derive(Clone, Debug)]
pub struct OpenFlowSwitchConfig {
    /// The bridge: made at the start, removed at the end.
    pub bridge: String,
    /// Its datapath: `netdev`, or `system` for the kernel's, which a card can take over.
    pub datapath: String,
    /// The database of Open vSwitch.
    pub database: Endpoint,
    /// Where the bridge listens for OpenFlow. At an address, it is made to.
    pub control: Endpoint,
    /// Where we listen for the monitor port.
    pub monitor_socket: PathBuf,
    /// The uplinks, in the order of their ids.
    pub uplinks: Vec<PortDevice>,
    /// The ports for instances.
    pub pool: Vec<PooledPorts>,
    /// The services, in the order in which their matches are tried. They stay for as long as the switch runs.
    pub services: Vec<ServicePlan>,
    /// Buckets of each service, as a power of two.
    pub bucket_bits: u8,
    /// Limits and times.
    pub steering: Settings,
}

impl OpenFlowSwitchConfig {
    /// The ports of instances, by slot, with the service that each is for.
    fn pooled_ports(&self) -> impl Iterator<Item = (Slot, ServiceId, Vec<u32>)> {
        self.pool.iter().map(|of| {
            let ports = (0..of.devices.len()).map(|port| instance_port(of.slot, port));
            (of.slot, of.service, ports.collect())
        })
    }

    /// Sockets on which Open vSwitch listens.
    fn sockets(&self) -> impl Iterator<Item = &PathBuf> {
        let pooled = self.pool.iter().flat_map(|of| &of.devices);
        self.uplinks
            .iter()
            .chain(pooled)
            .filter_map(|device| match device {
                PortDevice::Memif(socket) => Some(socket),
                PortDevice::Interface(_) | PortDevice::Dpdk(_) => None,
            })
    }
}

/// Why a switch cannot be had.
#[derive(Debug, Error)]
pub enum StartError {
    /// The database does not answer, or says no.
    #[error("Open vSwitch: {0}")]
    Database(#[from] OvsdbError),
    /// A bridge of that name exists that inco has not made.
    #[error(
        "Open vSwitch has a bridge {bridge} already that inco has not made; choose another name with switch.openflow.bridge, or remove it: ovs-vsctl del-br {bridge}"
    )]
    ForeignBridge {
        /// Its name.
        bridge: String,
    },
    /// DPDK's ports are not to be had.
    #[error(
        "Open vSwitch runs without DPDK, and memif ports need it: ovs-vsctl set Open_vSwitch . other_config:dpdk-init=true, then start it again"
    )]
    NoDpdk,
    /// The matches of the services need too many rules.
    #[error(
        "the services' matches need {rules} rules for new flows, more than {limit}: write ranges of ports that begin and end at powers of two, or fewer switch.openflow.buckets",
        limit = BUCKET_RULE_LIMIT
    )]
    BucketRules {
        /// How many.
        rules: usize,
    },
    /// A slot that there cannot be, or with too many ports.
    #[error("{slot} has {ports} ports: there are {limit} slots with one or two each", limit = Slot::LIMIT)]
    Pool {
        /// Which.
        slot: Slot,
        /// How many.
        ports: usize,
    },
    /// We cannot listen for the monitor port.
    #[error("the monitor port's socket {}: {source}", socket.display())]
    Monitor {
        /// The socket.
        socket: PathBuf,
        /// Why.
        source: memif::Error,
    },
    /// The system refuses a thread or a file.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// Its word.
        source: std::io::Error,
    },
}

/// What the control plane reads, and what it writes beside what it asks.
struct Shared {
    reading: SwitchReading,
    loads: Vec<(Slot, f32)>,
    /// What a new flow of each service is expected to bring.
    flow_loads: Vec<(ServiceId, f32)>,
    /// What was taken over, once that is known.
    resumed: Option<Resumed>,
}

/// Removes a bridge that inco has made, and the sockets of its ports: what a run has left that did not end in
/// [`Switch::stop`]. A bridge of others stays.
///
/// # Errors
/// The database does not answer, or refuses.
pub fn remove_bridge(database: &Endpoint, bridge: &str, sockets: &[PathBuf]) -> Result<(), OvsdbError> {
    let mut connection = Ovsdb::connect(database, REMOVE_LIMIT)?;
    let ids = connection.bridge_ids(bridge)?.unwrap_or_default();
    if ids.get(MARK.0).is_some_and(|maker| maker == MARK.1) {
        match connection.delete_bridge(bridge) {
            // It is gone from the database: Open vSwitch removes it as soon as it runs again.
            Err(OvsdbError::Timeout { .. }) if connection.bridge_ids(bridge)?.is_none() => {}
            removed => removed?,
        }
    }
    for socket in sockets {
        let _none = std::fs::remove_file(socket);
    }
    Ok(())
}

/// A bridge of Open vSwitch that steers. Dropping it removes the bridge, unless it was [left](Switch::leave) or is that of
/// an earlier run: a run that does not start leaves what it found. In a panic the bridge stays, as after `kill -9`.
pub struct OpenFlowSwitch {
    /// Where requests go; gone once it stops.
    requests: Option<Sender<SwitchRequest>>,
    events: Receiver<SwitchEvent>,
    shared: Arc<Mutex<Shared>>,
    worker: Option<JoinHandle<()>>,
    queue_pairs: u16,
    database: Endpoint,
    bridge: String,
    sockets: Vec<PathBuf>,
    /// Whether the bridge was there before.
    is_inherited: bool,
    /// [`None`] while the rules of an earlier run are read.
    resumed: Option<Resumed>,
}

impl OpenFlowSwitch {
    /// Makes the bridge and its first ports, and starts the threads. Rules follow as soon as the bridge answers. This
    /// takes as long as Open vSwitch does for its first port of DPDK: some seconds.
    ///
    /// # Errors
    /// [`StartError`]. Nothing of it is left then.
    pub fn start(config: &OpenFlowSwitchConfig) -> Result<OpenFlowSwitch, StartError> {
        let port_of = |uplink: UplinkId| FIRST_UPLINK + u32::from(uplink.0);
        let services: Vec<_> = config
            .services
            .iter()
            .map(|plan| {
                let rules = matches::service_rules(plan, port_of, config.bucket_bits);
                (rules, plan.scheduler.clone())
            })
            .collect();
        let rules = services
            .iter()
            .map(|(of, _)| of.sides.len() * of.spread.buckets())
            .sum();
        if rules > BUCKET_RULE_LIMIT {
            return Err(StartError::BucketRules { rules });
        }
        for of in &config.pool {
            if of.slot.index() >= Slot::LIMIT || !(1..=DATA_PORTS as usize).contains(&of.devices.len()) {
                return Err(StartError::Pool {
                    slot: of.slot,
                    ports: of.devices.len(),
                });
            }
        }
        let mut database = Ovsdb::connect(&config.database, DATABASE_LIMIT)?;
        if database
            .other_config("dpdk-init")?
            .is_none_or(|is_on| is_on == "false")
        {
            return Err(StartError::NoDpdk);
        }
        let queue_pairs = queue_pairs(database.other_config("pmd-cpu-mask")?.as_deref());
        let mark = mark(config, &services, queue_pairs);
        let mut is_left = false;
        let mut rejected = Vec::new();
        match database.bridge_ids(&config.bridge)? {
            Some(ids) if ids.get(MARK.0).is_none_or(|maker| maker != MARK.1) => {
                return Err(StartError::ForeignBridge {
                    bridge: config.bridge.clone(),
                });
            }
            // An earlier run has left it, with the same ports: it goes on by its rules.
            Some(ids) if ids == mark => is_left = true,
            Some(_) => {
                rejected.push(format!(
                    "bridge {}: it has other ports or services",
                    config.bridge
                ));
                database.delete_bridge(&config.bridge)?;
            }
            None => {}
        }
        let listening = memif::ServerConfig {
            handshake_timeout: MONITOR_LIMIT,
            ..memif::ServerConfig::new("inco")
        };
        let listener = memif::Listener::bind(&config.monitor_socket, listening).map_err(|source| {
            StartError::Monitor {
                socket: config.monitor_socket.clone(),
                source,
            }
        })?;
        let mut sockets = vec![config.monitor_socket.clone()];
        sockets.extend(config.sockets().cloned());
        if is_left {
            // The other end of the monitor port was the earlier run's, and DPDK does not connect again.
            let again = (database.delete_ports(&config.bridge, &[&monitor_name(&config.bridge)]))
                .and_then(|()| first_ports(&mut database, config, mark.clone(), queue_pairs));
            if let Err(error) = again {
                tracing::warn!(%error, bridge = config.bridge, "the bridge of an earlier run is made anew");
                rejected.push(format!("bridge {}: {error}", config.bridge));
                database.delete_bridge(&config.bridge)?;
                is_left = false;
            }
        }
        if !is_left {
            // Left by a killed switch: it has no listener.
            for socket in config.sockets() {
                let _none = std::fs::remove_file(socket);
            }
        }
        let made = match is_left {
            true => Ok(()),
            false => first_ports(&mut database, config, mark, queue_pairs),
        };
        if let Err(error) = made {
            let _as_before = database.delete_bridge(&config.bridge);
            return Err(error.into());
        }
        let system = |what: &str| {
            let what = what.to_owned();
            move |source| StartError::System { what, source }
        };
        let offloaded = OffloadedFlows::start(database, config)
            .map_err(system("starting the thread that asks for offloaded flows"))?;
        let reading = SwitchReading::new(config.services.len(), config.uplinks.len(), 1);
        let shared = Arc::new(Mutex::new(Shared {
            reading,
            loads: Vec::new(),
            flow_loads: Vec::new(),
            resumed: None,
        }));
        let (requests, asked) = channel();
        let (tell, events) = channel();
        let mut steering = Steering::new(config.steering.clone(), services, MONITOR);
        if is_left {
            steering.adopt(config.pooled_ports(), ADOPT_PATIENCE);
        }
        let worker = Worker::new(
            config,
            steering,
            is_left,
            listener,
            offloaded,
            (asked, tell, Arc::clone(&shared)),
        );
        let worker = std::thread::Builder::new()
            .name("inco-openflow".to_owned())
            .spawn(move || worker.run())
            .map_err(system("starting the thread that steers"))?;
        Ok(OpenFlowSwitch {
            requests: Some(requests),
            events,
            shared,
            worker: Some(worker),
            queue_pairs,
            database: config.database.clone(),
            bridge: config.bridge.clone(),
            sockets,
            is_inherited: is_left,
            resumed: (!is_left).then(|| Resumed {
                rejected,
                ..Resumed::default()
            }),
        })
    }

    /// Queue pairs of each memif port. A client must take all of them, because Open vSwitch sends on any.
    pub fn queue_pairs(&self) -> u16 {
        self.queue_pairs
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        lock(&self.shared)
    }

    /// Ends the threads. False if they had ended.
    fn end(&mut self) -> bool {
        let Some(worker) = self.worker.take() else {
            return false;
        };
        self.requests = None;
        let _result = worker.join();
        true
    }
}

/// The figures stay valid when a thread panics while it holds the lock.
fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Switch for OpenFlowSwitch {
    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn request(&mut self, request: SwitchRequest) -> Result<(), SwitchError> {
        let unsupported = |what| Err(SwitchError::Unsupported { what });
        match &request {
            SwitchRequest::Attach { slot, .. } if slot.index() >= Slot::LIMIT => {
                return Err(SwitchError::Limit {
                    what: "slots",
                    asked: slot.index() + 1,
                    limit: Slot::LIMIT,
                });
            }
            SwitchRequest::Attach { port, .. } if !CAPABILITIES.connects(port.kind) => {
                return unsupported("make a port for an instance: all are made when it starts");
            }
            SwitchRequest::Publish(plan) => plan.validate(&CAPABILITIES)?,
            SwitchRequest::Change(Change::MoveFlow { .. }) => {
                return unsupported("move a flow: its packets cannot be held meanwhile");
            }
            SwitchRequest::Record { .. } => {
                return unsupported("write a decision down: it is made for a bucket and not for a flow");
            }
            SwitchRequest::Capture(_) => {
                return unsupported(
                    "capture packets, which do not pass inco: use tcpdump at an uplink, or a mirror of the switch",
                );
            }
            _ => {}
        }
        let sent = self
            .requests
            .as_ref()
            .map(|requests| requests.send(request).is_ok());
        if sent == Some(true) {
            return Ok(());
        }
        // The thread has ended.
        Err(SwitchError::WorkerStuck {
            worker: 0,
            pending: 1,
        })
    }

    fn set_loads(&mut self, loads: &[(Slot, f32)], expected: &[(ServiceId, f32)]) {
        let mut shared = self.shared();
        shared.loads.clear();
        shared.loads.extend_from_slice(loads);
        shared.flow_loads.clear();
        shared.flow_loads.extend_from_slice(expected);
    }

    fn read(&mut self, into: &mut SwitchReading) {
        let now = clock::monotonic();
        let shared = self.shared();
        let from = &shared.reading;
        into.acknowledged = from.acknowledged;
        into.workers.clone_from(&from.workers);
        for (sum, counted) in into.slots.iter_mut().zip(&from.slots) {
            sum.set_counted(counted);
        }
        into.services.clone_from(&from.services);
        into.uplinks.clone_from(&from.uplinks);
        into.drops = from.drops;
        into.at = from.at;
        into.age = now.since(from.at);
    }

    fn poll(&mut self, _now: Nanos, events: &mut Vec<SwitchEvent>) {
        events.extend(self.events.try_iter());
        if self.resumed.is_none() {
            let resumed = self.shared().resumed.take();
            self.resumed = resumed;
        }
    }

    fn take_longest_gaps(&mut self) -> Vec<Nanos> {
        let mut shared = self.shared();
        let workers = shared.reading.workers.iter_mut();
        workers
            .map(|worker| Nanos(std::mem::take(&mut worker.longest_gap_ns)))
            .collect()
    }

    /// In the rules of the bridge.
    fn keeps_state(&self) -> bool {
        true
    }

    fn resumed(&self) -> Option<&Resumed> {
        self.resumed.as_ref()
    }

    fn leave(&mut self) {
        self.end();
    }

    fn stop(&mut self) {
        if !self.end() {
            return;
        }
        // What is still in the bridge goes with it.
        let removed = Ovsdb::connect(&self.database, REMOVE_LIMIT)
            .and_then(|mut database| database.delete_bridge(&self.bridge));
        if let Err(error) = removed {
            tracing::error!(%error, bridge = self.bridge, "the bridge was not removed");
        }
        for socket in &self.sockets {
            let _none = std::fs::remove_file(socket);
        }
        let mut shared = self.shared();
        let counters = &mut shared.reading;
        // Instances and their rings are gone with the bridge.
        let inside: u64 = counters
            .slots
            .iter_mut()
            .map(|slot| {
                let inside = (slot.to_packets + slot.originated)
                    .saturating_sub(slot.back_packets + slot.lost + slot.kept);
                slot.lost += inside;
                inside
            })
            .sum();
        if let Some(drops) = counters.drops.get_mut(DropReason::Shutdown.index()) {
            *drops += inside;
        }
    }
}

impl Drop for OpenFlowSwitch {
    fn drop(&mut self) {
        if self.is_inherited || std::thread::panicking() {
            self.leave();
        } else {
            self.stop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_queue_pairs_for_each_thread_that_sends() {
        for (mask, pairs) in [
            (None, 2),
            (Some("0x2"), 2),
            (Some("6"), 3),
            (Some("0xf0"), 5),
            (Some("0"), 2),
        ] {
            assert_eq!(queue_pairs(mask), pairs, "{mask:?}");
        }
    }
}
