//! What an operator asks inco to do: the body of a request, and what the controller carries out.

use serde::{Deserialize, Serialize};

use crate::InstanceId;

/// Something to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "action", rename_all = "snake_case", deny_unknown_fields)]
pub enum Action {
    /// So many active instances, whatever the autoscaler says.
    Scale {
        /// Of which service.
        service: String,
        /// How many; absent: the autoscaler decides again.
        instances: Option<u32>,
    },
    /// Another policy decides from now on, without a restart and without moving a flow. One of the two.
    Policy {
        /// For which service.
        service: String,
        /// Which instance a new flow is given to.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        scheduler: Option<PolicyChoice>,
        /// How many instances there are, and how large.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        autoscaler: Option<PolicyChoice>,
    },
    /// The next scheduling decisions of a service are put into the event log, with all that they rest on.
    Record {
        /// Of which service.
        service: String,
        /// How many, at most [`Action::RECORD_LIMIT`].
        decisions: u32,
    },
    /// Every instance that a service has is replaced, one after the other: another is ready before one is drained. A
    /// replacement that fails ends it. `ServiceRow::rollout` says how far it is.
    Rollout {
        /// Of which service.
        service: String,
        /// Instead: one that is under way ends.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        cancel: bool,
    },
    /// No new flows for an instance; it goes when its flows have ended.
    Drain {
        /// Which one.
        instance: InstanceId,
    },
    /// A drain is taken back.
    Undrain {
        /// Which one.
        instance: InstanceId,
    },
    /// Unpins flows: their next packets are rescheduled.
    Purge {
        /// All of this instance's, or
        #[serde(default, skip_serializing_if = "Option::is_none")]
        instance: Option<InstanceId>,
        /// this one alone.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schema(format = "flow"))]
        flow: Option<String>,
    },
    /// A flow is given to another instance, with all packets that are to come. Only where the service says that its
    /// functions share or keep no state: `affinity = "relaxed"`.
    Move {
        /// Which flow: `tcp 10.0.0.1:1000 > 10.0.0.2:80`.
        #[cfg_attr(feature = "schema", schema(format = "flow"))]
        flow: String,
        /// To which instance.
        instance: InstanceId,
    },
    /// The autoscaler may not ask for fewer instances, or may again.
    PauseIn {
        /// Of which service.
        service: String,
        /// Whether it is held back.
        on: bool,
    },
    /// The autoscaler may not ask for more instances, or may again.
    PauseOut {
        /// Of which service.
        service: String,
        /// Whether it is held back.
        on: bool,
    },
    /// The autoscaler only says what it would do, or does it again.
    DryRun {
        /// Of which service.
        service: String,
        /// Whether it is held back.
        on: bool,
    },
    /// The configuration file is read again and what changed in it is applied, all of it or nothing. No flow moves.
    Reload {
        /// Only tell what would change.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        check: bool,
    },
    /// A command runs in an instance's container, beside its program and confined as that is. Only for root on this
    /// machine, over the unix socket.
    Exec {
        /// In which one.
        instance: InstanceId,
        /// Program and arguments. It has 8 s.
        command: Vec<String>,
    },
    /// inco ends.
    Stop {
        /// Whether containers go on running, for the next run to adopt.
        keep: bool,
    },
}

/// A policy and its parameters, as the configuration has them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PolicyChoice {
    /// Its name.
    pub policy: String,
    /// Its parameters; those that are not there have their defaults.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    pub parameters: serde_json::Map<String, serde_json::Value>,
}

impl Action {
    /// Decisions that can be asked for at once: each has a line per instance in the event log.
    pub const RECORD_LIMIT: u32 = 64;

    /// The word for it.
    pub const fn name(&self) -> &'static str {
        match self {
            Action::Scale { .. } => "scale",
            Action::Policy { .. } => "policy",
            Action::Record { .. } => "record",
            Action::Rollout { .. } => "rollout",
            Action::Drain { .. } => "drain",
            Action::Undrain { .. } => "undrain",
            Action::Purge { .. } => "purge",
            Action::Move { .. } => "move",
            Action::PauseIn { .. } => "pause_in",
            Action::PauseOut { .. } => "pause_out",
            Action::DryRun { .. } => "dry_run",
            Action::Reload { .. } => "reload",
            Action::Exec { .. } => "exec",
            Action::Stop { .. } => "stop",
        }
    }

    /// The service and the instance that it is about.
    pub fn target(&self) -> (Option<&str>, Option<InstanceId>) {
        match self {
            Action::Scale { service, .. }
            | Action::Policy { service, .. }
            | Action::Record { service, .. }
            | Action::Rollout { service, .. }
            | Action::PauseIn { service, .. }
            | Action::PauseOut { service, .. }
            | Action::DryRun { service, .. } => (Some(service), None),
            Action::Drain { instance }
            | Action::Undrain { instance }
            | Action::Move { instance, .. }
            | Action::Exec { instance, .. } => (None, Some(*instance)),
            Action::Purge { instance, .. } => (None, *instance),
            Action::Reload { .. } | Action::Stop { .. } => (None, None),
        }
    }
}
