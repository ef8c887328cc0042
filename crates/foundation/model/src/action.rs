//! What an operator asks inco to do: the body of a request, and what the controller carries out.

use serde::{Deserialize, Serialize};

use crate::{ActorSide, InstanceId};

/// An action.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "action", rename_all = "snake_case", deny_unknown_fields)]
pub enum Action {
    /// Sets the number of active instances manually, or returns the decision to the autoscaler.
    Scale {
        /// The service.
        service: String,
        /// The number; absent: the autoscaler decides again.
        instances: Option<u32>,
    },
    /// Bounds the number of active instances, within the limits of the file. The autoscaler, or the host's manager,
    /// decides within the range. Without both limits, those of the file hold again.
    Range {
        /// The service.
        service: String,
        /// Minimum of active instances; absent: that of the file.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        min: Option<u32>,
        /// Maximum of active instances; absent: that of the file.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max: Option<u32>,
    },
    /// Sets the CPU quota of every instance of a service, also of new ones, or that of the file again. No flow moves.
    /// While it is set, the autoscaler changes no quota of the service.
    Resize {
        /// The service. Its file has `cpus`.
        service: String,
        /// CPUs of each instance, 0.001 to 1024; absent: those of the file.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cpus: Option<f64>,
    },
    /// Sets a policy at run time: a scheduler or an autoscaler. No flow moves.
    Policy {
        /// The service.
        service: String,
        /// The new scheduler.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        scheduler: Option<PolicyChoice>,
        /// The new autoscaler.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        autoscaler: Option<PolicyChoice>,
    },
    /// Records the next scheduling decisions of a service, with their inputs, in the event log.
    Record {
        /// The service.
        service: String,
        /// Number of decisions, at most [`Action::RECORD_LIMIT`].
        decisions: u32,
    },
    /// Replaces every instance of a service, one after the other. A replacement is ready before an instance drains. A
    /// replacement that fails aborts the rollout. `ServiceRow::rollout` has the progress.
    Rollout {
        /// The service.
        service: String,
        /// Cancels the current rollout instead.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        cancel: bool,
    },
    /// Drains an instance: it gets no new flows and is removed when its flows have ended.
    Drain {
        /// Its id.
        instance: InstanceId,
    },
    /// Cancels a drain.
    Undrain {
        /// Its id.
        instance: InstanceId,
    },
    /// Unpins flows; their next packets are rescheduled.
    Purge {
        /// All flows of this instance, or
        #[serde(default, skip_serializing_if = "Option::is_none")]
        instance: Option<InstanceId>,
        /// this flow only.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schema(format = "flow"))]
        flow: Option<String>,
    },
    /// Moves a flow to another instance. Requires `affinity = "relaxed"` of the service: its functions keep no state
    /// per flow, or share it.
    Move {
        /// The flow: `tcp 10.0.0.1:1000 > 10.0.0.2:80`.
        #[cfg_attr(feature = "schema", schema(format = "flow"))]
        flow: String,
        /// The new instance.
        instance: InstanceId,
    },
    /// Moves an actor of a service of actors to a side, with those of its group.
    ActorMove {
        /// The service.
        service: String,
        /// The actor.
        actor: String,
        /// The side to which it goes.
        to: ActorSide,
    },
    /// Has an actor start no message. Its mailbox takes them, up to its limit.
    ActorPause {
        /// The service.
        service: String,
        /// The actor.
        actor: String,
    },
    /// Has a paused actor go on.
    ActorResume {
        /// The service.
        service: String,
        /// The actor.
        actor: String,
    },
    /// Ends an actor for good. Messages that wait for it are lost, and its state with them.
    ActorStop {
        /// The service.
        service: String,
        /// The actor.
        actor: String,
    },
    /// Disables or enables scale-in.
    PauseIn {
        /// The service.
        service: String,
        /// True to disable it or to begin the dry run, false to undo that.
        on: bool,
    },
    /// Disables or enables scale-out.
    PauseOut {
        /// The service.
        service: String,
        /// True to disable it or to begin the dry run, false to undo that.
        on: bool,
    },
    /// Begins or ends a dry run of the autoscaler: it decides, and nothing is done.
    DryRun {
        /// The service.
        service: String,
        /// True to disable it or to begin the dry run, false to undo that.
        on: bool,
    },
    /// Reads the configuration file again and applies all its changes, or none. No flow moves.
    Reload {
        /// Only report what would change.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        check: bool,
    },
    /// Runs a command in an instance's container, confined like its program. Only for root on this machine, over the
    /// unix socket.
    Exec {
        /// The instance.
        instance: InstanceId,
        /// Program and arguments. The time limit is 8 s.
        command: Vec<String>,
    },
    /// Has another program take over from this one: flows, rings, sockets and containers. Only for root on this
    /// machine, over the unix socket.
    Upgrade {
        /// Path of the program, from the root.
        binary: String,
        /// If it does not serve within so many seconds, 1 to 600, the program that runs now goes on.
        deadline_s: u32,
    },
    /// Stops inco.
    Stop {
        /// Whether containers keep running, so that the next run adopts them.
        keep: bool,
    },
}

/// A policy and its parameters, as in the configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PolicyChoice {
    /// Its name.
    pub policy: String,
    /// Its parameters; absent ones have their defaults.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    pub parameters: serde_json::Map<String, serde_json::Value>,
}

impl Action {
    /// Maximum number of decisions per action: each takes a line per instance in the event log.
    pub const RECORD_LIMIT: u32 = 64;

    /// Its name.
    pub const fn name(&self) -> &'static str {
        match self {
            Action::Scale { .. } => "scale",
            Action::Range { .. } => "range",
            Action::Resize { .. } => "resize",
            Action::Policy { .. } => "policy",
            Action::Record { .. } => "record",
            Action::Rollout { .. } => "rollout",
            Action::Drain { .. } => "drain",
            Action::Undrain { .. } => "undrain",
            Action::Purge { .. } => "purge",
            Action::Move { .. } => "move",
            Action::ActorMove { .. } => "actor_move",
            Action::ActorPause { .. } => "actor_pause",
            Action::ActorResume { .. } => "actor_resume",
            Action::ActorStop { .. } => "actor_stop",
            Action::PauseIn { .. } => "pause_in",
            Action::PauseOut { .. } => "pause_out",
            Action::DryRun { .. } => "dry_run",
            Action::Reload { .. } => "reload",
            Action::Exec { .. } => "exec",
            Action::Upgrade { .. } => "upgrade",
            Action::Stop { .. } => "stop",
        }
    }

    /// The service and the instance that it concerns.
    pub fn target(&self) -> (Option<&str>, Option<InstanceId>) {
        match self {
            Action::Scale { service, .. }
            | Action::Range { service, .. }
            | Action::Resize { service, .. }
            | Action::Policy { service, .. }
            | Action::Record { service, .. }
            | Action::Rollout { service, .. }
            | Action::ActorMove { service, .. }
            | Action::ActorPause { service, .. }
            | Action::ActorResume { service, .. }
            | Action::ActorStop { service, .. }
            | Action::PauseIn { service, .. }
            | Action::PauseOut { service, .. }
            | Action::DryRun { service, .. } => (Some(service), None),
            Action::Drain { instance }
            | Action::Undrain { instance }
            | Action::Move { instance, .. }
            | Action::Exec { instance, .. } => (None, Some(*instance)),
            Action::Purge { instance, .. } => (None, *instance),
            Action::Reload { .. } | Action::Upgrade { .. } | Action::Stop { .. } => (None, None),
        }
    }
}
