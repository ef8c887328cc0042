use serde::{Deserialize, Serialize};

use crate::{InstanceId, InstanceState, Nanos};

/// Something that happened, as the event log keeps it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Event {
    /// Counts from 1 for each run of inco; without gaps.
    pub sequence: u64,
    /// Monotonic time.
    pub at: Nanos,
    /// Wall-clock time, in milliseconds since 1970.
    pub unix_ms: u64,
    /// The service's name, where it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// The instance, where it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<InstanceId>,
    /// What happened.
    #[serde(flatten)]
    pub kind: EventKind,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum EventKind {
    /// inco started; `adopted` containers were found running.
    Started {
        /// Containers taken over from an earlier run.
        adopted: u32,
    },
    /// inco is stopping.
    Stopping {
        /// Whether the containers go on running.
        keep: bool,
    },
    /// An instance changed its state.
    State {
        /// Before.
        from: InstanceState,
        /// After.
        to: InstanceState,
        /// Why, in a sentence.
        reason: String,
    },
    /// The autoscaler decided.
    Scaled {
        /// Active instances before.
        from: u32,
        /// Active instances wanted.
        to: u32,
        /// The policy's name.
        policy: String,
        /// The rule that decided, and its figures.
        reason: String,
        /// All that it rested on, as `inco explain autoscaler` takes it; absent where somebody decided by hand.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        case: Option<Box<serde_json::Value>>,
    },
    /// An autoscaler that only says what it would do would want another count.
    Shadowed {
        /// Active instances that are wanted.
        wanted: u32,
        /// Those that it would want.
        would: u32,
        /// The policy's name.
        policy: String,
        /// The rule that decided, and its figures.
        reason: String,
    },
    /// The autoscaler gave an instance another CPU quota.
    Resized {
        /// CPUs before; absent where there was no quota.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from_cpus: Option<f64>,
        /// CPUs from now on.
        to_cpus: f64,
        /// The policy's name.
        policy: String,
        /// The rule that decided, and its figures.
        reason: String,
        /// All that it rested on, as `inco explain autoscaler` takes it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        case: Option<Box<serde_json::Value>>,
    },
    /// The flows of an instance lost their pins, though it is well: each is given anew with its next packet.
    Unpinned {
        /// Why.
        reason: String,
    },
    /// A ring was full, or a quarter full twice in a row.
    Hot {
        /// Share of the ring occupied when it was noticed, 0 to 1.
        occupancy: f64,
    },
    /// A scheduling decision that somebody asked to see.
    Picked {
        /// The scheduler's name.
        policy: String,
        /// The new flow.
        flow: String,
        /// Whether it fitted the instance that it was given to.
        fits: bool,
        /// All that it rested on, as `inco explain scheduler` takes it.
        case: Box<serde_json::Value>,
    },
    /// No instance fitted a new flow; the least loaded one was given it.
    Overcommitted {
        /// How many flows since the last such event.
        flows: u64,
    },
    /// An uplink got a peer, or lost it.
    Uplink {
        /// Its name.
        uplink: String,
        /// Whether it has a peer now.
        up: bool,
        /// Who the peer is, or why it is gone.
        detail: String,
    },
    /// Something outside failed; what was done about it is in `reason`.
    Failure {
        /// What failed: engine, port, uplink, instance.
        what: String,
        /// What happened and what is done about it.
        reason: String,
    },
    /// What had failed works again.
    Recovered {
        /// What had failed.
        what: String,
        /// For how long it had, in milliseconds.
        after_ms: u64,
    },
    /// Somebody asked for something over the API or the command line.
    Action {
        /// What was asked.
        action: String,
        /// The same with all that was said, as the API takes it.
        #[serde(default)]
        request: serde_json::Value,
        /// Who asked: `uid 0` over the unix socket, `token admin` over TCP, `signal` for a signal.
        #[serde(default)]
        by: String,
        /// Whether it was refused; `result` then says why.
        #[serde(default)]
        refused: bool,
        /// What came of it.
        result: String,
    },
}

impl EventKind {
    /// Every kind's word.
    pub const NAMES: &'static [&'static str] = &[
        "started",
        "stopping",
        "state",
        "scaled",
        "shadowed",
        "resized",
        "unpinned",
        "hot",
        "picked",
        "overcommitted",
        "uplink",
        "failure",
        "recovered",
        "action",
    ];

    /// The word for it: what `event` says where it is written down.
    pub const fn name(&self) -> &'static str {
        match self {
            EventKind::Started { .. } => "started",
            EventKind::Stopping { .. } => "stopping",
            EventKind::State { .. } => "state",
            EventKind::Scaled { .. } => "scaled",
            EventKind::Shadowed { .. } => "shadowed",
            EventKind::Resized { .. } => "resized",
            EventKind::Unpinned { .. } => "unpinned",
            EventKind::Hot { .. } => "hot",
            EventKind::Picked { .. } => "picked",
            EventKind::Overcommitted { .. } => "overcommitted",
            EventKind::Uplink { .. } => "uplink",
            EventKind::Failure { .. } => "failure",
            EventKind::Recovered { .. } => "recovered",
            EventKind::Action { .. } => "action",
        }
    }
}
