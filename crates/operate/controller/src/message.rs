//! The inputs and outputs of a step.

use std::path::PathBuf;

use autoscaling::{Autoscaler, Fit, Fitted};
use engine::{Container, EngineEvent, Request, Ticket};
use model::{Action, AgentReport, BackEnd, Event, Generation, InstanceId, InstanceState, ServiceId};
use scheduling::Scheduler;
use signal::Wish;
use switch::{SwitchEvent, SwitchRequest};
use thiserror::Error;

use crate::blocks::ReservedBlock;
use crate::settings::{Matching, ServiceSettings};

/// The caller's number for a command. The answer carries the same number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId(pub u64);

/// What an operator, or a changed configuration, asks of the controller.
#[derive(Clone, Debug)]
pub enum Command {
    /// An operator's action, carried out as it was asked for. Those that concern the switch alone, the file or the
    /// engine are refused.
    Action(Action),
    /// Replaces the autoscaler. Count and quotas stay until the new one decides.
    Autoscaler {
        /// The service.
        service: ServiceId,
        /// The new autoscaler in its initial state.
        autoscaler: Box<Autoscaler>,
    },
    /// Replaces the scheduler for new flows.
    Scheduler {
        /// The service.
        service: ServiceId,
        /// The new scheduler in its initial state.
        scheduler: Box<Scheduler>,
        /// Capacity of one instance in the scheduler's metric; [`None`] for packets.
        limit: Option<f32>,
        /// The choice as the operator wrote it, for the answer.
        written: String,
    },
    /// Carries out a signal that came through the instance's port and is genuine.
    Signal {
        /// The instance.
        instance: InstanceId,
        /// Whether it takes new flows, or goes to sleep.
        wish: Wish,
    },
    /// Changes the order of matches and the fallbacks of unmatched packets.
    Match(Matching),
    /// Says which servers others run for a service whose settings do not list them
    /// ([`ServiceSettings::followed`]): all of them. One that is missing is gone at once, and its flows move.
    BackEnds {
        /// The service.
        service: ServiceId,
        /// The servers; each address is there once.
        list: Vec<BackEnd>,
    },
    /// Adds a service. Its id follows the last one.
    AddService {
        /// The settings of the new service.
        settings: Box<ServiceSettings>,
    },
    /// Changes a service's settings. The name, the number of ports, the ports made in advance and whether it has containers must
    /// stay the same. Existing instances keep their containers unchanged.
    Reconfigure {
        /// The service.
        service: ServiceId,
        /// The new settings.
        settings: Box<ServiceSettings>,
        /// Whether to use the autoscaler in `settings`. If false, the present one continues with its state.
        autoscaler: bool,
        /// Whether to use the scheduler in `settings`. If false, the present one continues with its capacity.
        scheduler: bool,
    },
}

impl From<Action> for Command {
    fn from(action: Action) -> Command {
        Command::Action(action)
    }
}

/// Why a command was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CommandError {
    /// The service does not exist.
    #[error("there is no service {service}")]
    UnknownService {
        /// The service's name or id in the command.
        service: String,
    },
    /// The instance does not exist.
    #[error("unknown instance {instance}")]
    UnknownInstance {
        /// The instance's id in the command.
        instance: InstanceId,
    },
    /// The instance's state does not permit the action.
    #[error("instance {instance} is {}: cannot {action} it", state.name())]
    WrongState {
        /// The instance.
        instance: InstanceId,
        /// Its state.
        state: InstanceState,
        /// The requested action.
        action: &'static str,
    },
    /// The count is outside the service's limits.
    #[error("{count} instances are out of range for {service}: {min} to {max}")]
    OutOfLimits {
        /// The service's name.
        service: String,
        /// The requested count.
        count: u32,
        /// Lower limit.
        min: u32,
        /// Upper limit.
        max: u32,
    },
    /// The lower limit of a range is above the upper one.
    #[error("no number of instances is at least {min} and at most {max}")]
    EmptyRange {
        /// Lower limit.
        min: u32,
        /// Upper limit.
        max: u32,
    },
    /// No CPU quota can be that large or small.
    #[error("{cpus} CPUs are no quota of an instance: 0.001 to 1024")]
    BadQuota {
        /// The requested quota, in CPUs.
        cpus: String,
    },
    /// The service's instances have no quota.
    #[error("{service} has no `cpus` in its file: its instances have no quota to change")]
    NoQuota {
        /// The service's name.
        service: String,
    },
    /// Others run the service's instances.
    #[error("the instances of {service} are servers that others run: inco neither starts nor stops any")]
    OthersRun {
        /// The service's name.
        service: String,
    },
    /// An operator has set the number of instances.
    #[error("the number of instances of {service} is set by an operator")]
    Manual {
        /// The service's name.
        service: String,
    },
    /// An operator has disabled scaling in that direction.
    #[error("scaling of {service} is disabled in that direction")]
    HeldBack {
        /// The service's name.
        service: String,
    },
    /// A rollout of the service is in progress.
    #[error("a rollout of {service} is already in progress: {replaced} of {total} are replaced")]
    RollsOut {
        /// The service's name.
        service: String,
        /// Instances replaced so far.
        replaced: u32,
        /// Instances at the start of the rollout.
        total: u32,
    },
    /// The action concerns no instance state: another part carries it out.
    #[error("the controller does not carry out {action}")]
    NotForController {
        /// The requested action.
        action: &'static str,
    },
    /// A shutdown is in progress.
    #[error("inco is stopping")]
    ShuttingDown,
}

/// What was found out about an instance by asking it, or the kernel about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The instance.
    pub instance: InstanceId,
    /// What was found.
    pub kind: ReportKind,
}

/// The kind of a [`Report`].
#[derive(Clone, Debug, PartialEq)]
pub enum ReportKind {
    /// Its program listens on the ports of its service, or what is missing yet.
    Listens(Result<(), String>),
    /// It passed a check, or why not.
    Check(Result<(), String>),
    /// What its agent says, or why nothing came of it.
    Agent(Result<AgentReport, String>),
}

/// Events since the last step.
#[derive(Clone, Copy, Debug, Default)]
pub struct Inputs<'a> {
    /// Events of the engine.
    pub engine: &'a [EngineEvent],
    /// The engine's containers with this inco's label ([`Settings::label`](crate::Settings::label)), if
    /// [`Outputs::list_containers`] requested them.
    pub containers: Option<&'a [Container]>,
    /// Events of the switch.
    pub switch: &'a [SwitchEvent],
    /// The newest plan that every worker of the switch uses.
    pub acknowledged: Generation,
    /// Commands of operators.
    pub commands: &'a [(CommandId, Command)],
    /// The results of [`Outputs::fits`].
    pub fitted: &'a [(ServiceId, Fitted)],
    /// What was found out about instances.
    pub reports: &'a [Report],
}

/// What the caller must carry out. The caller reuses one value; each step clears it first.
#[derive(Debug, Default)]
pub struct Outputs {
    /// Requests for the engine, in order. The caller makes an instance's directory before its create.
    pub engine: Vec<(Ticket, Request)>,
    /// Requests for the switch, in order.
    pub switch: Vec<SwitchRequest>,
    /// Whether to list the engine's containers for the next step.
    pub list_containers: bool,
    /// Directories of removed instances. The caller removes them.
    pub remove_dirs: Vec<PathBuf>,
    /// For the event log.
    pub events: Vec<Event>,
    /// Results of commands.
    pub answers: Vec<(CommandId, Result<String, CommandError>)>,
    /// Computations of autoscalers that take longer than a step. Run them elsewhere and return the results in
    /// [`Inputs::fitted`].
    pub fits: Vec<(ServiceId, Fit)>,
    /// The blocks of external ports that are reserved, all of them, where that has changed. The caller keeps them for
    /// the next run: [`Controller::reserve_blocks`](crate::Controller::reserve_blocks).
    pub reserved: Option<Vec<ReservedBlock>>,
}

impl Outputs {
    /// Clears all fields and keeps their memory.
    pub fn clear(&mut self) {
        self.engine.clear();
        self.switch.clear();
        self.list_containers = false;
        self.remove_dirs.clear();
        self.events.clear();
        self.answers.clear();
        self.fits.clear();
        self.reserved = None;
    }

    /// Whether all fields are empty.
    pub fn is_empty(&self) -> bool {
        self.engine.is_empty()
            && self.switch.is_empty()
            && !self.list_containers
            && self.remove_dirs.is_empty()
            && self.events.is_empty()
            && self.answers.is_empty()
            && self.fits.is_empty()
            && self.reserved.is_none()
    }
}
