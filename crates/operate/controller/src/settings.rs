use std::path::{Path, PathBuf};

use autoscaling::Autoscaler;
use engine::{ContainerSpec, Label};
use model::{
    AgentCheck, BackEnd, Fallback, HealthCheck, InstanceId, Mount, Nanos, NetFunction, Ready, ServiceId,
    Slot, StandbyMode,
};
use placement::{PlaceId, Placement};
use scheduling::Scheduler;
use switch::{PortKind, PortSpec, ServicePlan};

/// A slot with a port that the switch made in advance, and what its container needs to use the port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MadePort {
    /// The slot of the port.
    pub slot: Slot,
    /// The kind of the port.
    pub kind: PortKind,
    /// Mounts through which the container reaches the port.
    pub mounts: Vec<Mount>,
    /// Environment variables that describe the port.
    pub env: Vec<(String, String)>,
    /// Functions of a network card that form the port.
    pub functions: Vec<NetFunction>,
}

/// What the instances of a service at a place have in the place of the service's own settings.
#[derive(Clone, Debug)]
pub struct AtPlace {
    /// The place.
    pub place: PlaceId,
    /// Their container.
    pub container: ContainerSpec,
    /// The kind of their ports.
    pub port: PortKind,
    /// The condition that ends Starting.
    pub ready: Ready,
}

/// Settings of one service.
#[derive(Clone, Debug)]
pub struct ServiceSettings {
    /// Its name, as in container names, labels and events.
    pub name: String,
    /// The container of one instance. The controller adds name, labels and the mount of the socket directory.
    /// [`None`] for a service whose instances are sinks without a container.
    pub container: Option<ContainerSpec>,
    /// The socket directory's path inside the container; [`None`] on another machine.
    pub socket_dir_in_container: Option<PathBuf>,
    /// The data ports of an instance. [`PortSpec::address`] is relative to its socket directory.
    pub port: PortSpec,
    /// Its match and how flows are scheduled to instances. The controller sets the id.
    pub plan: ServicePlan,
    /// Where others run its instances: all of these, and no others. [`None`]: inco runs them.
    pub back_ends: Option<Vec<BackEnd>>,
    /// Where others say at run time which there are ([`Command::BackEnds`](crate::Command::BackEnds)): how many of
    /// them are instances at most. [`None`]: the settings list them.
    pub followed: Option<u32>,
    /// For how long a mapping to an external port may live without a packet, where the plan has external addresses: an
    /// instance's ports are nobody else's for that long after it.
    pub mapping_lifetime: Nanos,
    /// What instances at some places have of their own.
    pub at: Vec<AtPlace>,
    /// The slots with ports made in advance. For a kind of port of which there is none, any other slot is permitted.
    pub made_ports: Vec<MadePort>,
    /// At which of [`Settings::places`] its instances run.
    pub placement: Placement,
    /// Whether each instance has a core of its place to itself, in place of a quota.
    pub exclusive: bool,
    /// The NUMA node of its uplink, if known: cores of it are taken first.
    pub node: Option<u16>,
    /// Minimum of active instances.
    pub min: u32,
    /// Maximum of active instances.
    pub max: u32,
    /// Standby instances kept beside the active ones.
    pub standby: u32,
    /// Whether standby instances run or are paused.
    pub standby_mode: StandbyMode,
    /// Whether all `max` instances run, and those that are not Active are Standby.
    pub sleep: bool,
    /// Capacity of an instance in packets per second. [`None`] uses the collector's learned capacity, which is 0 at
    /// first; schedulers then go by live flows.
    pub capacity_pps: Option<f64>,
    /// The condition that ends Starting.
    pub ready: Ready,
    /// How its instances are checked; [`None`]: they are not.
    pub health: Option<HealthCheck>,
    /// Where their agents are asked; [`None`]: they are not.
    pub agent: Option<AgentCheck>,
    /// Longest time from the program's start until the instance is ready.
    pub ready_deadline: Nanos,
    /// Longest time that a draining instance may keep flows.
    pub drain_deadline: Nanos,
    /// Longest time that a program may take to exit before it is killed.
    pub stop_grace: Nanos,
    /// An instance is stalled if it leaves packets in its ring and consumes none for this time. Throttled time does
    /// not count.
    pub stall_after: Nanos,
    /// Descriptors of an instance's ring in each direction. They bound how long a quota may throttle it.
    pub ring_slots: u32,
    /// The autoscaler.
    pub autoscaler: Autoscaler,
}

impl ServiceSettings {
    /// Settings with defaults for everything that has one.
    pub fn new(name: impl Into<String>, container: Option<ContainerSpec>, autoscaler: Autoscaler) -> Self {
        ServiceSettings {
            name: name.into(),
            container,
            socket_dir_in_container: Some(PathBuf::from("/run/inco")),
            port: PortSpec::new(PortKind::Null, ""),
            plan: ServicePlan::of_all(ServiceId(0), Scheduler::default()),
            back_ends: None,
            followed: None,
            mapping_lifetime: Nanos::ZERO,
            at: Vec::new(),
            made_ports: Vec::new(),
            placement: Placement::Auto,
            exclusive: false,
            node: None,
            min: 1,
            max: 1,
            standby: 0,
            standby_mode: StandbyMode::Warm,
            sleep: false,
            capacity_pps: None,
            ready: Ready::Connected,
            health: None,
            agent: None,
            ready_deadline: Nanos::from_secs(30),
            drain_deadline: Nanos::from_secs(60),
            stop_grace: Nanos::from_secs(10),
            stall_after: STALL_AFTER,
            ring_slots: 1_024,
            autoscaler,
        }
    }
}

impl ServiceSettings {
    fn at(&self, place: PlaceId) -> Option<&AtPlace> {
        self.at.iter().find(|of| of.place == place)
    }

    /// The container of an instance at that place.
    pub(crate) fn container_at(&self, place: PlaceId) -> Option<&ContainerSpec> {
        let own = self.at(place).map(|of| &of.container);
        own.or(self.container.as_ref())
    }

    /// The kind of the ports of an instance at that place.
    pub(crate) fn port_at(&self, place: PlaceId) -> PortKind {
        self.at(place).map_or(self.port.kind, |of| of.port)
    }

    /// The condition that ends Starting of an instance at that place.
    pub(crate) fn ready_at(&self, place: PlaceId) -> &Ready {
        self.at(place).map_or(&self.ready, |of| &of.ready)
    }

    /// The ports of that kind that were made in advance.
    pub(crate) fn made_ports_of(&self, kind: PortKind) -> impl Iterator<Item = &MadePort> + Clone {
        self.made_ports.iter().filter(move |port| port.kind == kind)
    }

    /// Whether ports of that kind are made in advance.
    pub(crate) fn makes_ports(&self, kind: PortKind) -> bool {
        self.made_ports_of(kind).next().is_some()
    }

    /// The CPUs of an instance in the file, if it has a quota.
    pub(crate) fn usual_cpus(&self) -> Option<f64> {
        let spec = self.container.as_ref()?;
        spec.cpu.map(|quota| quota.cpus())
    }

    /// Capacity in packets per second of an instance with `cpus`, if one with the service's own quota has
    /// `usual_pps`.
    pub(crate) fn capacity_of(&self, usual_pps: f64, cpus: Option<f64>) -> f64 {
        // Most instances have no quota.
        let Some(cpus) = cpus else {
            return usual_pps;
        };
        match self.usual_cpus() {
            Some(usual) if usual > 0.0 => usual_pps * cpus / usual,
            _ => usual_pps,
        }
    }
}

/// A place where instances run.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// Its name, as in labels and events.
    pub name: String,
    /// The CPUs of its containers, as `0-3,7`; [`None`] for those of the service.
    pub cpuset: Option<String>,
    /// The part of a service's CPU quota that an instance has there, above 0 and at most 1.
    pub share: f64,
    /// Most instances, without those that leave; [`None`] for no limit.
    pub instances: Option<u32>,
    /// Most packets per second for which it has instances; [`None`] for no limit.
    pub capacity_pps: Option<f64>,
    /// Packets per second of a whole CPU there; [`None`] if instances have the capacity of their service.
    pub core_pps: Option<f64>,
    /// Time from the switch to the place, one way.
    pub latency: Nanos,
    /// What the link to it carries in each direction, in bytes per second; [`None`] for no limit.
    pub link_bytes_per_s: Option<f64>,
    /// Watts of a busy core, if known.
    pub watts_per_core: Option<f64>,
    /// Its cores, of which an instance may have one to itself; empty if it has no list of them.
    pub cores: Vec<Core>,
    /// For how long its engine may be away before its instances have failed; [`None`] on this machine, where their
    /// ends are seen without an engine.
    pub lost_after: Option<Nanos>,
}

/// A core of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Core {
    /// The number of its CPU.
    pub cpu: u16,
    /// Its NUMA node, if known.
    pub node: Option<u16>,
}

impl Place {
    /// A place without limits on this machine.
    pub fn new(name: impl Into<String>) -> Place {
        Place {
            name: name.into(),
            cpuset: None,
            share: 1.0,
            instances: None,
            capacity_pps: None,
            core_pps: None,
            latency: Nanos::ZERO,
            link_bytes_per_s: None,
            watts_per_core: None,
            cores: Vec::new(),
            lost_after: None,
        }
    }
}

/// Which packets services get: the order of matches, the fallbacks, and chains.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matching {
    /// Services in the order in which their matches are tried. Services not listed come last, by id.
    pub order: Vec<ServiceId>,
    /// Fallback for IP packets that match no service.
    pub unmatched: Fallback,
    /// Fallback for packets that are not IP.
    pub other: Fallback,
    /// By service, the one that gets what its instances return. Services beyond the end have none.
    pub next: Vec<Option<ServiceId>>,
}

/// Settings of the controller as a whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The run directory, usually `/run/inco`. Instances have their directories in `instances/` below it.
    pub run_dir: PathBuf,
    /// The name of this machine, where the engine has containers of incos of other machines, too: their run directories may
    /// be the same. [`None`]: it has those of this machine only.
    pub machine: Option<String>,
    /// Wall-clock time at zero of the monotonic clock, in milliseconds since 1970. Events use it.
    pub unix_ms_at_zero: u64,
    /// Where instances run, at most [`PlaceId::LIMIT`](placement::PlaceId::LIMIT). Empty: all at one place, which has no
    /// name.
    pub places: Vec<Place>,
    /// Most creates in progress at once, at each place.
    pub creates_at_once: u32,
    /// Which packets services get.
    pub matching: Matching,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            run_dir: PathBuf::from("/run/inco"),
            machine: None,
            unix_ms_at_zero: 0,
            places: Vec::new(),
            creates_at_once: CREATES_AT_ONCE,
            matching: Matching::default(),
        }
    }
}

impl Settings {
    /// The label of all containers of this inco, and of no others.
    pub fn label(&self) -> Label {
        let run_dir = self.run_dir.display();
        let value = match &self.machine {
            Some(machine) => format!("{machine}:{run_dir}"),
            None => run_dir.to_string(),
        };
        Label::new(LABEL_RUN_DIR, value)
    }

    /// The name of an instance's container, such as `inco-firewall-3`. Names must be unique in an engine, so a run
    /// directory other than the default, or a machine, adds a hash: `inco-09af23cd-firewall-3`.
    pub(crate) fn container_name(&self, service: &str, id: InstanceId) -> String {
        if self.machine.is_none() && self.run_dir == Path::new("/run/inco") {
            return format!("inco-{service}-{}", id.0);
        }
        // FNV-1a gives the same hash in every build; std's hasher does not promise that.
        let machine = self.machine.as_ref().map(|machine| format!("{machine}:"));
        let machine = machine.as_deref().unwrap_or_default().as_bytes();
        let text = machine.iter().chain(self.run_dir.as_os_str().as_encoded_bytes());
        let hash = text.fold(0x811c_9dc5_u32, |hash, &byte| {
            (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
        });
        format!("inco-{hash:08x}-{service}-{}", id.0)
    }
}

/// Default of [`Settings::creates_at_once`]. More do not finish sooner on few cores, and each takes CPU time from
/// running functions.
pub const CREATES_AT_ONCE: u32 = 4;
/// Default of [`ServiceSettings::stall_after`]. Shorter pauses are the scheduling of a busy machine.
pub const STALL_AFTER: Nanos = Nanos::from_millis(100);
/// The first wait after a failed create or a young instance's death. It doubles each time.
pub const BACK_OFF_FIRST: Nanos = Nanos::from_secs(1);
/// The longest such wait.
pub const BACK_OFF_LONGEST: Nanos = Nanos::from_secs(60);
/// An instance that ends earlier than this after it became ready counts as a failed create. Otherwise one that fails
/// at its first packets would be replaced without a pause.
pub const YOUNG: Nanos = Nanos::from_secs(10);
/// The wait before a failed attach is tried again. A program needs some milliseconds before it listens.
pub const ATTACH_AGAIN: Nanos = Nanos::from_millis(20);
/// The wait before it is looked again for a route to a server that others run.
pub(crate) const ROUTE_AGAIN: Nanos = Nanos::from_secs(1);
/// Time limit of a readiness command. After it, the command is killed and counts as failed.
pub const CHECK_LIMIT: Nanos = Nanos::from_secs(5);
/// The wait before a failed readiness command runs again.
pub const CHECK_AGAIN: Nanos = Nanos::from_millis(100);
/// Autoscalers do not decide on counters older than this; the count stays as it is.
pub const OLDEST_COUNTERS: Nanos = Nanos::from_millis(100);
/// Repeats of one event about one subject are reported at most once in this time.
pub const SAME_EVENT_AGAIN: Nanos = Nanos::from_secs(1);
/// The relative change of a learned capacity that publishes a new plan.
pub const CAPACITY_STEP: f64 = 0.05;

/// The label with the run directory, carried by every container of inco. It keeps two incos that share an engine
/// apart.
pub const LABEL_RUN_DIR: &str = "inco.run-dir";
/// The label with the name of the container's service.
pub const LABEL_SERVICE: &str = "inco.service";
/// The label with the instance's id.
pub const LABEL_INSTANCE: &str = "inco.instance";
/// The label with the instance's slot. The container's port resources belong to that slot.
pub const LABEL_SLOT: &str = "inco.slot";
/// The label with the kind of the instance's ports. Those of an instance stay as they are when its service gets
/// another kind.
pub const LABEL_PORT: &str = "inco.port";
/// The label with the name of the instance's place, where places are configured.
pub const LABEL_PLACE: &str = "inco.place";
/// The label with the CPU that the instance has to itself.
pub const LABEL_CORE: &str = "inco.core";
/// The label with the external ports that the instance owns, where its service translates.
pub const LABEL_EXTERNAL: &str = "inco.external";
/// The environment variable that says the same to its program.
pub(crate) const ENV_EXTERNAL: &str = "INCO_EXTERNAL";

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn two_run_directories_share_neither_names_nor_labels() {
        let at = |run_dir: &str| Settings {
            run_dir: PathBuf::from(run_dir),
            ..Settings::default()
        };
        let (usual, a, b) = (at("/run/inco"), at("/tmp/a"), at("/tmp/b"));
        let name = |settings: &Settings| settings.container_name("firewall", InstanceId(3));
        assert_eq!(name(&usual), "inco-firewall-3");
        assert!(name(&a).starts_with("inco-") && name(&a).ends_with("-firewall-3"));
        assert_ne!(name(&a), name(&b));
        assert_eq!(name(&a).len(), "inco-12345678-firewall-3".len());
        assert_ne!(a.label(), b.label());
        assert_eq!(a.label().key, LABEL_RUN_DIR);
        let of = |machine: &str| Settings {
            machine: Some(machine.to_owned()),
            ..Settings::default()
        };
        let all = [usual, of("n1"), of("n2")];
        let names: BTreeSet<String> = all.iter().map(name).collect();
        let labels: BTreeSet<_> = all.iter().map(|of| of.label().value).collect();
        assert_eq!((names.len(), labels.len()), (3, 3), "{names:?} {labels:?}");
    }
}
