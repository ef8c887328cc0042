use std::net::SocketAddr;
use std::path::PathBuf;

use model::{Generation, InstanceId, InstanceState, Nanos, PortKind, ServiceId, Slot};

use placement::PlaceId;

use crate::backoff::BackOff;
use crate::controller::Heir;
use crate::fitness::Fitness;

/// State of an instance's container in the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Container {
    /// No container, or an unknown state, as after a failed create.
    Absent,
    /// Its program runs.
    Running,
    /// It is frozen.
    Paused,
    /// Its program has ended.
    Exited,
}

/// State of an instance's port in the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// No port.
    Absent,
    /// It is connecting.
    Attaching,
    /// Connected.
    Up,
    /// It is disconnecting.
    Detaching,
}

/// The engine request of an instance that has no answer yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Create,
    Pause,
    Resume,
    Quota,
    Stop,
    Remove,
}

/// How an instance became Active, cheapest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rung {
    Undrain,
    Warm,
    Paused,
    Create,
}

/// A drain in progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drain {
    pub(crate) since: Nanos,
    /// The first plan with the Draining state; [`None`] until it is published.
    pub(crate) generation: Option<Generation>,
    /// When every worker was first seen to use that plan.
    pub(crate) acknowledged: Option<Nanos>,
    /// Whether its flows were unpinned.
    pub(crate) moves: bool,
    /// Whether it takes new flows all the same, because no other instance does.
    pub(crate) serves: bool,
}

/// The controller's record of one instance.
#[derive(Clone, Debug)]
pub struct Instance {
    pub(crate) id: InstanceId,
    pub(crate) service: ServiceId,
    pub(crate) name: String,
    pub(crate) socket_dir: PathBuf,
    pub(crate) slot: Slot,
    pub(crate) port_kind: PortKind,
    /// Where others run it.
    pub(crate) back_end: Option<SocketAddr>,
    /// Where its container is reached over the network, if an orchestrator placed it.
    pub(crate) task_at: Option<SocketAddr>,
    /// Which one it is there, and what people call it, as others have told.
    pub(crate) back_end_id: Option<String>,
    pub(crate) back_end_name: Option<String>,
    /// It leaves because the file does not list it any more.
    pub(crate) is_unlisted: bool,
    /// It has failed its checks for so long that others have its flows.
    pub(crate) has_lost_flows: bool,
    pub(crate) place: PlaceId,
    /// The CPU that it has to itself.
    pub(crate) core: Option<u16>,
    /// The block of external ports that it owns.
    pub(crate) block: Option<u16>,
    /// Where it drains and translates: who takes over what it has.
    pub(crate) heir: Option<Heir>,
    /// False once it is known that the network can know none of its external ports any more.
    pub(crate) has_mappings: bool,
    pub(crate) state: InstanceState,
    pub(crate) since: Nanos,
    pub(crate) reason: String,
    pub(crate) container: Container,
    pub(crate) port: Port,
    pub(crate) pid: Option<u32>,
    pub(crate) op: Option<Op>,
    /// True if it is to become Active, false if it is for the pool.
    pub(crate) for_active: bool,
    pub(crate) adopted: bool,
    /// It has flows from the run before, so it was ready there. They wait for it, and may not wait for a command.
    pub(crate) has_served: bool,
    pub(crate) requested: Nanos,
    /// When its program was first seen running. The readiness deadline counts from then.
    pub(crate) started: Nanos,
    pub(crate) ready: Option<Nanos>,
    /// Earliest time to retry an attach, a detach or a readiness command.
    pub(crate) again: Nanos,
    pub(crate) retry: BackOff,
    pub(crate) check_running: bool,
    /// What its program was found to serve: all ports of its service, or what is missing; [`None`] before anybody has
    /// looked.
    pub(crate) listens: Option<Result<(), String>>,
    /// Packets it had consumed from its ring when the probe was sent.
    pub(crate) probed: Option<u64>,
    pub(crate) drain: Option<Drain>,
    /// An operator drained it: it does not count, and load does not cancel the drain.
    pub(crate) leaving: bool,
    /// The place where its replacement is to be, if its autoscaler wants it elsewhere: it is leaving, and serves until
    /// the replacement does.
    pub(crate) relocates_to: Option<PlaceId>,
    /// The first plan that does not contain it.
    pub(crate) left_plan: Option<Generation>,
    /// When and how it was chosen to be Active, and the first plan that says so.
    pub(crate) decided: Option<(Nanos, Rung, Option<Generation>)>,
    pub(crate) cpus: Option<f64>,
    pub(crate) wanted_cpus: Option<f64>,
    pub(crate) hot_told: Option<Nanos>,
    pub(crate) fitness: Fitness,
}

impl Instance {
    /// Its id.
    pub fn id(&self) -> InstanceId {
        self.id
    }

    /// Its service.
    pub fn service(&self) -> ServiceId {
        self.service
    }

    /// Its container's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its slot. No other instance has this slot while it exists.
    pub fn slot(&self) -> Slot {
        self.slot
    }

    /// The kind of its ports: that of its service when it was created.
    pub fn port_kind(&self) -> PortKind {
        self.port_kind
    }

    /// Where it runs: a position in [`Settings::places`](crate::Settings::places).
    pub fn place(&self) -> PlaceId {
        self.place
    }

    /// The CPU that it has to itself; [`None`] if it shares CPUs.
    pub fn core(&self) -> Option<u16> {
        self.core
    }

    /// Where it is reached over the network: where others run it, or where an orchestrator placed it; [`None`] for one that
    /// has a port of this machine, or no place yet.
    pub fn address(&self) -> Option<SocketAddr> {
        self.back_end.or(self.task_at)
    }

    /// Its state.
    pub fn state(&self) -> InstanceState {
        self.state
    }

    /// When it entered that state.
    pub fn since(&self) -> Nanos {
        self.since
    }

    /// Why it is in that state.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// The directory that it shares with the switch and inco.
    pub fn socket_dir(&self) -> &std::path::Path {
        &self.socket_dir
    }

    /// The state of its container.
    pub fn container(&self) -> Container {
        self.container
    }

    /// Process id of its program in this machine's namespace; [`None`] before it runs and on another machine.
    pub fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// The state of its port.
    pub fn port(&self) -> Port {
        self.port
    }

    /// Whether it was adopted from an earlier run.
    pub fn is_adopted(&self) -> bool {
        self.adopted
    }

    /// Whether it is Active in a moment, as it was in the run before.
    pub fn comes_back(&self) -> bool {
        self.adopted && self.container == Container::Running && self.is_on_its_way()
    }

    /// What its checks and its agent say of it.
    pub fn fitness(&self) -> &Fitness {
        &self.fitness
    }

    /// CPUs that its quota allows; [`None`] without a quota.
    pub fn cpus(&self) -> Option<f64> {
        self.cpus
    }

    /// Whether flows may be pinned to it: it is in the plan.
    pub fn is_in_plan(&self) -> bool {
        self.port == Port::Up && self.state.serves()
    }

    /// Whether it is on its way to Active and has not failed, stopped or been drained.
    pub(crate) fn is_on_its_way(&self) -> bool {
        self.for_active && self.is_before_active()
    }

    /// Whether it is in the pool or on its way there.
    pub(crate) fn is_for_pool(&self) -> bool {
        !self.for_active && self.is_before_active()
    }

    fn is_before_active(&self) -> bool {
        matches!(
            self.state,
            InstanceState::Creating | InstanceState::Starting | InstanceState::Standby
        )
    }
}
