use std::path::{Path, PathBuf};

use autoscaling::Autoscaler;
use engine::{ContainerSpec, Label};
use model::{Fallback, InstanceId, Mount, Nanos, NetFunction, Ready, ServiceId, Slot, StandbyMode};
use scheduling::Scheduler;
use switch::{PortKind, PortSpec, ServicePlan};

/// A place for an instance whose port the switch has made beforehand, and what a container gets that takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortPlace {
    /// The slot whose port it is.
    pub slot: Slot,
    /// What the container sees of this machine to reach the port.
    pub mounts: Vec<Mount>,
    /// What tells it of the port.
    pub env: Vec<(String, String)>,
    /// The functions of a card that are its port.
    pub functions: Vec<NetFunction>,
}

/// What the controller must know of one service.
#[derive(Clone, Debug)]
pub struct ServiceSettings {
    /// Its name: in container names, labels and events.
    pub name: String,
    /// The container of one instance, but for name, labels and the mount of its socket directory, which the
    /// controller adds. [`None`] for a service whose instances are sinks without a container.
    pub container: Option<ContainerSpec>,
    /// Where a container sees its socket directory; [`None`] for one on another machine.
    pub socket_dir_in_container: Option<PathBuf>,
    /// The data ports of an instance: [`PortSpec::address`] is below its socket directory.
    pub port: PortSpec,
    /// Which packets are its, and how they are given to instances. The controller sets the id.
    pub plan: ServicePlan,
    /// The places that its instances may have, where the switch has made their ports beforehand; [`None`]: any slot.
    pub places: Option<Vec<PortPlace>>,
    /// Active instances at least.
    pub min: u32,
    /// Active instances at most.
    pub max: u32,
    /// Instances kept ready beside the active ones.
    pub standby: u32,
    /// How they wait.
    pub standby_mode: StandbyMode,
    /// Packets per second that an instance can process; [`None`]: what the collector has learned, and 0 before it
    /// has learned anything (the schedulers then go by live flows).
    pub capacity_pps: Option<f64>,
    /// What ends Starting.
    pub ready: Ready,
    /// How long an instance may take from its program's start until it is ready.
    pub ready_deadline: Nanos,
    /// How long a draining instance may keep flows.
    pub drain_deadline: Nanos,
    /// How long a program may take to end by itself before it is killed.
    pub stop_grace: Nanos,
    /// After how long without taking a packet from a ring that holds some an instance counts as stalled, time in
    /// which its quota held it up not counted.
    pub stall_after: Nanos,
    /// Descriptors of an instance's ring in each direction: how long a quota may hold it up rests on that.
    pub ring_slots: u32,
    /// How many there should be.
    pub autoscaler: Autoscaler,
}

impl ServiceSettings {
    /// Settings with the defaults for everything but what has none.
    pub fn new(name: impl Into<String>, container: Option<ContainerSpec>, autoscaler: Autoscaler) -> Self {
        ServiceSettings {
            name: name.into(),
            container,
            socket_dir_in_container: Some(PathBuf::from("/run/inco")),
            port: PortSpec::new(PortKind::Null, ""),
            plan: ServicePlan::of_all(ServiceId(0), Scheduler::default()),
            places: None,
            min: 1,
            max: 1,
            standby: 0,
            standby_mode: StandbyMode::Warm,
            capacity_pps: None,
            ready: Ready::Connected,
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
    /// Packets per second that an instance can process that has `cpus`, where `usual_pps` is what one with the
    /// service's own quota can.
    pub(crate) fn capacity_of(&self, usual_pps: f64, cpus: Option<f64>) -> f64 {
        // Most have no quota.
        let Some(cpus) = cpus else {
            return usual_pps;
        };
        match self.container.as_ref().and_then(|spec| spec.cpu) {
            Some(usual) if usual.cpus() > 0.0 => usual_pps * cpus / usual.cpus(),
            _ => usual_pps,
        }
    }
}

/// What becomes of packets before they are a service's, and of those that are none's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matching {
    /// Services in the order in which their matches are tried; those that are missing come last, by id.
    pub order: Vec<ServiceId>,
    /// What happens to IP packets of no service.
    pub unmatched: Fallback,
    /// What happens to packets that are not IP.
    pub other: Fallback,
}

/// What the controller must know of everything else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `/run/inco` or what stands for it: instances have their directories in `instances/` below it.
    pub run_dir: PathBuf,
    /// Wall-clock time at zero of the monotonic clock, in milliseconds since 1970, for events.
    pub unix_ms_at_zero: u64,
    /// Creates that may be in the engine's hands at once.
    pub creates_at_once: u32,
    /// Which packets are tried for which service first.
    pub matching: Matching,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            run_dir: PathBuf::from("/run/inco"),
            unix_ms_at_zero: 0,
            creates_at_once: CREATES_AT_ONCE,
            matching: Matching::default(),
        }
    }
}

impl Settings {
    /// What all containers of this inco carry, and no others.
    pub fn label(&self) -> Label {
        Label::new(LABEL_RUN_DIR, self.run_dir.display().to_string())
    }

    /// The name of an instance's container: `inco-firewall-3`. Names are unique in an engine, so with another run
    /// directory than the usual one a hash of it is part of them: `inco-09af23cd-firewall-3`.
    pub(crate) fn container_name(&self, service: &str, id: InstanceId) -> String {
        if self.run_dir == Path::new("/run/inco") {
            return format!("inco-{service}-{}", id.0);
        }
        // FNV-1a: the same for every build, which std's hasher does not promise.
        let text = self.run_dir.as_os_str().as_encoded_bytes();
        let hash = text.iter().fold(0x811c_9dc5_u32, |hash, &byte| {
            (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
        });
        format!("inco-{hash:08x}-{service}-{}", id.0)
    }
}

/// Creates at once. More do not finish sooner on few cores, and each takes CPU from what runs.
pub const CREATES_AT_ONCE: u32 = 4;
/// A stall shorter than this is the scheduling of a busy machine.
pub const STALL_AFTER: Nanos = Nanos::from_millis(100);
/// The wait after a create that failed, or an instance that died young; doubled each time.
pub const BACK_OFF_FIRST: Nanos = Nanos::from_secs(1);
/// The longest such wait.
pub const BACK_OFF_LONGEST: Nanos = Nanos::from_secs(60);
/// An instance that dies earlier than this after it was ready counts as a failed create: one that dies at its first
/// packets must not be replaced as fast as it dies.
pub const YOUNG: Nanos = Nanos::from_secs(10);
/// The wait before a port that could not be attached is tried again: a program needs some milliseconds before it
/// listens.
pub const ATTACH_AGAIN: Nanos = Nanos::from_millis(20);
/// How long a readiness command may take; then it is killed, and has failed.
pub const CHECK_LIMIT: Nanos = Nanos::from_secs(5);
/// The wait before a readiness command that failed is run again.
pub const CHECK_AGAIN: Nanos = Nanos::from_millis(100);
/// Counters older than this are not decided on: the count stays as it is.
pub const OLDEST_COUNTERS: Nanos = Nanos::from_millis(100);
/// The same event about the same thing is told at most once in this time.
pub const SAME_EVENT_AGAIN: Nanos = Nanos::from_secs(1);
/// The change of a learned capacity that is worth publishing, as a share of it.
pub const CAPACITY_STEP: f64 = 0.05;

/// The label that every container of ours carries, with its inco's run directory: two incos that share an engine leave
/// each other's containers alone.
pub const LABEL_RUN_DIR: &str = "inco.run-dir";
/// The label with the name of the container's service.
pub const LABEL_SERVICE: &str = "inco.service";
/// The label with the instance's id.
pub const LABEL_INSTANCE: &str = "inco.instance";
/// The label with the instance's slot: what a container was given of its port belongs to that one alone.
pub const LABEL_SLOT: &str = "inco.slot";

#[cfg(test)]
mod tests {
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
    }
}
