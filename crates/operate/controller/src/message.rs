//! What goes into a step and what comes out of it.

use std::path::PathBuf;

use autoscaling::{Autoscaler, Fit, Fitted};
use engine::{Container, EngineEvent, Request, Ticket};
use model::{Event, Generation, InstanceId, InstanceState, ServiceId};
use scheduling::Scheduler;
use switch::{SwitchEvent, SwitchRequest};
use thiserror::Error;

use crate::settings::{Matching, ServiceSettings};

/// The caller's number for a command; its answer carries the same one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId(pub u64);

/// What somebody asks for.
#[derive(Clone, Debug)]
pub enum Command {
    /// So many active instances, whatever the autoscaler says; [`None`] lets it decide again.
    Scale {
        /// Of which service.
        service: ServiceId,
        /// How many; must be within the service's limits.
        count: Option<u32>,
    },
    /// Another autoscaler decides from now on; the count and the quotas stay what they are until it does.
    Autoscaler {
        /// For which service.
        service: ServiceId,
        /// In its first state.
        autoscaler: Box<Autoscaler>,
    },
    /// Another scheduler gives new flows from now on.
    Scheduler {
        /// Of which service.
        service: ServiceId,
        /// In its first state.
        scheduler: Box<Scheduler>,
        /// What one instance takes in its metric, where that is not packets.
        limit: Option<f32>,
        /// The choice as somebody wrote it, for the answer.
        written: String,
    },
    /// Packets are matched in another order, or others fall back elsewhere.
    Match(Matching),
    /// The autoscaler is held back, or let go again; what it would do is told.
    HoldBack {
        /// Of which service.
        service: ServiceId,
        /// In what.
        how: HoldBack,
        /// Whether it is held back.
        on: bool,
    },
    /// Another service from now on: the one after those that there are.
    AddService {
        /// What must be known of it.
        settings: Box<ServiceSettings>,
    },
    /// Other settings for a service. Its name, its number of ports, its places and whether it has containers stay; instances that there
    /// are keep their containers as they are.
    Reconfigure {
        /// Which service.
        service: ServiceId,
        /// What holds from now on.
        settings: Box<ServiceSettings>,
        /// Whether the autoscaler in `settings` decides from now on; if not, the present one goes on with what it remembers.
        autoscaler: bool,
        /// Whether the scheduler in `settings` gives new flows from now on; if not, the present one goes on, with its limit.
        scheduler: bool,
    },
    /// Every instance that the service has is replaced, one after the other: another is ready before one is drained. A
    /// replacement that fails ends it.
    Rollout {
        /// Of which service.
        service: ServiceId,
        /// Instead: one that is under way ends.
        cancel: bool,
    },
    /// No new flows for this instance; it goes when its flows have ended. Another takes its place where the service
    /// would otherwise have fewer than it should.
    Drain {
        /// Which one.
        instance: InstanceId,
    },
    /// The drain is taken back.
    Undrain {
        /// Which one.
        instance: InstanceId,
    },
    /// The instance's flows are given to others on their next packet.
    Purge {
        /// Which one.
        instance: InstanceId,
    },
    /// Remove everything; or, with `keep`, leave the containers running for the next run to adopt.
    Shutdown {
        /// Whether containers go on.
        keep: bool,
    },
}

/// How an autoscaler can be held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldBack {
    /// It may not ask for fewer instances.
    In,
    /// It may not ask for more instances.
    Out,
    /// It may do nothing, and says what it would do.
    DryRun,
}

/// Why a command was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CommandError {
    /// No such service.
    #[error("there is no {service}")]
    UnknownService {
        /// What was asked for.
        service: ServiceId,
    },
    /// No such instance.
    #[error("there is no instance {instance}")]
    UnknownInstance {
        /// What was asked for.
        instance: InstanceId,
    },
    /// The instance is not in a state for that.
    #[error("instance {instance} is {}: cannot {action} it", state.name())]
    WrongState {
        /// Which one.
        instance: InstanceId,
        /// Its state.
        state: InstanceState,
        /// What was asked.
        action: &'static str,
    },
    /// Outside of the service's limits.
    #[error("{service} has from {min} to {max} instances: {count} is outside of that")]
    OutOfLimits {
        /// The service's name.
        service: String,
        /// What was asked for.
        count: u32,
        /// At least.
        min: u32,
        /// At most.
        max: u32,
    },
    /// Its instances are being replaced already.
    #[error("{service} rolls out already: {replaced} of {total} are replaced")]
    RollsOut {
        /// The service's name.
        service: String,
        /// Instances that are replaced.
        replaced: u32,
        /// Instances that there were when it began.
        total: u32,
    },
    /// Everything is being removed already.
    #[error("inco is stopping")]
    ShuttingDown,
}

/// What happened since the last step.
#[derive(Clone, Copy, Debug, Default)]
pub struct Inputs<'a> {
    /// From the engine.
    pub engine: &'a [EngineEvent],
    /// The engine's containers with the label of this inco ([`Settings::label`](crate::Settings::label)), where
    /// [`Outputs::list_containers`] asked for them.
    pub containers: Option<&'a [Container]>,
    /// From the switch.
    pub switch: &'a [SwitchEvent],
    /// The newest plan by which every worker of the switch works.
    pub acknowledged: Generation,
    /// From users.
    pub commands: &'a [(CommandId, Command)],
    /// What came of [`Outputs::fits`].
    pub fitted: &'a [(ServiceId, Fitted)],
}

/// What is to be done now. The caller keeps one and hands it to each step, which clears it first.
#[derive(Debug, Default)]
pub struct Outputs {
    /// For the engine, in this order. Before a create, its instance's directory must be made.
    pub engine: Vec<(Ticket, Request)>,
    /// For the switch, in this order.
    pub switch: Vec<SwitchRequest>,
    /// Whether the engine's containers are to be listed for the next step.
    pub list_containers: bool,
    /// Directories of instances that are gone, to be removed.
    pub remove_dirs: Vec<PathBuf>,
    /// For the event log.
    pub events: Vec<Event>,
    /// What came of commands.
    pub answers: Vec<(CommandId, Result<String, CommandError>)>,
    /// Autoscalers' work that takes longer than a step may: to be run elsewhere, for [`Inputs::fitted`].
    pub fits: Vec<(ServiceId, Fit)>,
}

impl Outputs {
    /// Empties it and keeps its memory.
    pub fn clear(&mut self) {
        self.engine.clear();
        self.switch.clear();
        self.list_containers = false;
        self.remove_dirs.clear();
        self.events.clear();
        self.answers.clear();
        self.fits.clear();
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.engine.is_empty()
            && self.switch.is_empty()
            && !self.list_containers
            && self.remove_dirs.is_empty()
            && self.events.is_empty()
            && self.answers.is_empty()
            && self.fits.is_empty()
    }
}
