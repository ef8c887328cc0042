use std::path::PathBuf;

use model::{Generation, InstanceId, InstanceState, Nanos, ServiceId, Slot};

use crate::backoff::BackOff;

/// What the engine has of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Container {
    /// Nothing; or nothing is known of it, as after a create that failed.
    Absent,
    /// Its program runs.
    Running,
    /// It is frozen.
    Paused,
    /// Its program has ended.
    Exited,
}

/// What the switch has of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// Nothing.
    Absent,
    /// It is connecting.
    Attaching,
    /// Connected.
    Up,
    /// It is disconnecting.
    Detaching,
}

/// What the engine was asked to do with an instance and has not answered yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Create,
    Pause,
    Resume,
    Quota,
    Stop,
    Remove,
}

/// How an instance became Active.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rung {
    Undrain,
    Warm,
    Paused,
    Create,
}

/// A drain under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drain {
    pub(crate) since: Nanos,
    /// The plan that says Draining; [`None`] until it is published.
    pub(crate) generation: Option<Generation>,
    /// When every worker was seen to steer by that plan.
    pub(crate) acknowledged: Option<Nanos>,
    /// Whether its flows were told to move.
    pub(crate) moves: bool,
}

/// One instance as the controller knows it.
#[derive(Clone, Debug)]
pub struct Instance {
    pub(crate) id: InstanceId,
    pub(crate) service: ServiceId,
    pub(crate) name: String,
    pub(crate) socket_dir: PathBuf,
    pub(crate) slot: Slot,
    pub(crate) state: InstanceState,
    pub(crate) since: Nanos,
    pub(crate) reason: String,
    pub(crate) container: Container,
    pub(crate) port: Port,
    pub(crate) pid: Option<u32>,
    pub(crate) op: Option<Op>,
    /// Whether it is to be Active; else it is for the pool.
    pub(crate) for_active: bool,
    pub(crate) adopted: bool,
    pub(crate) requested: Nanos,
    /// When its program was first seen running: its readiness has a deadline from then on.
    pub(crate) started: Nanos,
    pub(crate) ready: Option<Nanos>,
    /// Before this nothing that failed is tried again: attaching, readiness commands, pausing, removing.
    pub(crate) again: Nanos,
    pub(crate) retry: BackOff,
    pub(crate) check_running: bool,
    /// What it had taken from its ring when it was sent a probe.
    pub(crate) probed: Option<u64>,
    pub(crate) drain: Option<Drain>,
    /// Somebody asked for its drain: it does not count, and is not taken back for load.
    pub(crate) leaving: bool,
    /// The first plan that it is no longer in.
    pub(crate) left_plan: Option<Generation>,
    /// When it was decided that it should be Active, and the first plan that says so.
    pub(crate) decided: Option<(Nanos, Rung, Option<Generation>)>,
    pub(crate) cpus: Option<f64>,
    pub(crate) wanted_cpus: Option<f64>,
    pub(crate) hot_told: Option<Nanos>,
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

    /// Its place in the data plane. Nobody else has it while this instance exists.
    pub fn slot(&self) -> Slot {
        self.slot
    }

    /// Its state.
    pub fn state(&self) -> InstanceState {
        self.state
    }

    /// Since when it is in that state.
    pub fn since(&self) -> Nanos {
        self.since
    }

    /// Why it is in that state.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// The directory that it shares with the switch and with inco.
    pub fn socket_dir(&self) -> &std::path::Path {
        &self.socket_dir
    }

    /// What the engine has of it.
    pub fn container(&self) -> Container {
        self.container
    }

    /// Process id of its program, as this machine sees it; [`None`] before it runs and on another machine.
    pub fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// What the switch has of it.
    pub fn port(&self) -> Port {
        self.port
    }

    /// Whether it was taken over from an earlier run.
    pub fn is_adopted(&self) -> bool {
        self.adopted
    }

    /// CPUs that its quota allows, where it has one.
    pub fn cpus(&self) -> Option<f64> {
        self.cpus
    }

    /// Whether flows may be pinned to it: it is in the plan.
    pub fn is_in_plan(&self) -> bool {
        self.port == Port::Up && self.state.serves()
    }

    /// Whether it is on its way to Active: wanted there and not failed, stopping or drained meanwhile.
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
