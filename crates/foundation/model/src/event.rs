use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{ActorChange, ActorSide, InstanceId, InstanceState, Nanos, RolloutState, SideChange};

/// An entry of the event log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Event {
    /// Counts from 1, without gaps. The next run goes on after an upgrade, and after the last event in the files of the
    /// event log.
    pub sequence: u64,
    /// Monotonic time.
    pub at: Nanos,
    /// Wall-clock time, in milliseconds since 1970.
    pub unix_ms: u64,
    /// The service's name, if the event concerns one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// The instance, if the event concerns one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<InstanceId>,
    /// What happened.
    #[serde(flatten)]
    pub kind: EventKind,
}

crate::words! {
    /// What happened to a function.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    pub enum FunctionChange {
        /// It works by another configuration.
        Reloaded = "reloaded",
        /// A changed configuration of the instance was wrong: it works as before.
        Refused = "refused",
        /// Its instance has ended.
        Ended = "ended",
    }
}

/// Declares the kinds of events, each with its name: the value of `event` in serialised form.
macro_rules! kinds {
    ($($(#[doc = $doc:tt])* $kind:ident = $name:tt { $($fields:tt)* },)*) => {
        /// The kind of an event.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "event")]
        #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
        pub enum EventKind {
            $($(#[doc = $doc])* #[serde(rename = $name)] $kind { $($fields)* },)*
        }

        impl EventKind {
            /// The names of all kinds.
            pub const NAMES: &'static [&'static str] = &[$($name,)*];

            /// The name: the value of `event` in serialised form.
            pub const fn name(&self) -> &'static str {
                match self {
                    $(EventKind::$kind { .. } => $name,)*
                }
            }
        }
    };
}

kinds! {
    /// inco started; `adopted` containers were found running.
    Started = "started" {
        /// Containers taken over from an earlier run.
        adopted: u32,
        /// Flows taken over from an earlier run.
        #[serde(default)]
        flows: u64,
        /// Entries of its flow tables that were repaired.
        #[serde(default)]
        repaired: u64,
        /// Entries of its flow tables that were rejected: these flows are scheduled again.
        #[serde(default)]
        rejected: u64,
    },
    /// inco is stopping.
    Stopping = "stopping" {
        /// Whether the containers keep running.
        keep: bool,
    },
    /// This program took over from the one before. An upgrade that failed is a `failure` of `upgrade`.
    Upgraded = "upgraded" {
        /// The version before.
        from: String,
        /// This version.
        to: String,
        /// From the last packet that the program before took to the first that this one could take, in milliseconds.
        pause_ms: u64,
    },
    /// An instance changed its state.
    State = "state" {
        /// The previous state.
        from: InstanceState,
        /// The new state.
        to: InstanceState,
        /// Why, in a sentence; when a new instance runs, also why it is at its place if it could be at another one.
        reason: String,
    },
    /// The autoscaler decided.
    Scaled = "scaled" {
        /// Active instances before.
        from: u32,
        /// Wanted Active instances.
        to: u32,
        /// The policy's name.
        policy: String,
        /// The rule that decided, with its figures.
        reason: String,
        /// The inputs of the decision, as `inco explain autoscaler` takes them; absent for a manual decision.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        case: Option<Box<serde_json::Value>>,
    },
    /// In a dry run, the autoscaler decided on another count.
    Shadowed = "shadowed" {
        /// Wanted Active instances.
        wanted: u32,
        /// The count on which it decided.
        would: u32,
        /// The policy's name.
        policy: String,
        /// The rule that decided, with its figures.
        reason: String,
    },
    /// The autoscaler changed an instance's CPU quota.
    Resized = "resized" {
        /// CPUs before; absent if there was no quota.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from_cpus: Option<f64>,
        /// The new CPUs.
        to_cpus: f64,
        /// The policy's name.
        policy: String,
        /// The rule that decided, with its figures.
        reason: String,
        /// The inputs of the decision, as `inco explain autoscaler` takes them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        case: Option<Box<serde_json::Value>>,
    },
    /// The autoscaler wants the instance at another place: one there replaces it.
    Relocated = "relocated" {
        /// Its place.
        from_place: String,
        /// Where it is to be.
        to_place: String,
        /// The policy's name.
        policy: String,
        /// The rule that decided, with its figures.
        reason: String,
        /// The inputs of the decision, as `inco explain autoscaler` takes them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        case: Option<Box<serde_json::Value>>,
    },
    /// A healthy instance's flows were unpinned: each is scheduled again at its next packet.
    Unpinned = "unpinned" {
        /// The reason.
        reason: String,
    },
    /// An instance began to fail its checks, or passes them again; or its agent changed what it takes.
    Health = "health" {
        /// Whether it can take new flows now.
        takes: bool,
        /// Its weight, in percent.
        weight: u32,
        /// What was found.
        reason: String,
    },
    /// A ring was full, or a quarter full twice in a row.
    Hot = "hot" {
        /// Occupied share of the ring when noticed, 0 to 1.
        occupancy: f64,
    },
    /// A scheduling decision, recorded on request.
    Picked = "picked" {
        /// The scheduler's name.
        policy: String,
        /// The new flow.
        flow: String,
        /// Whether it fitted the picked instance.
        fits: bool,
        /// The inputs of the decision, as `inco explain scheduler` takes them.
        case: Box<serde_json::Value>,
    },
    /// A new flow fitted no instance and went to the least loaded one. Not reported while the capacity is unknown.
    Overcommitted = "overcommitted" {
        /// Number of such flows since the last such event.
        flows: u64,
    },
    /// Moves of an instance's flows with their state were cancelled since the last such event: these flows stay there.
    Stayed = "stayed" {
        /// They took too long, or too many packets had to be held.
        at_limit: u64,
        /// A function refused.
        refused: u64,
        /// A ring or the memory of frames had no room for a message.
        without_room: u64,
        /// The other instance, or the flow, has ended.
        gone: u64,
    },
    /// A function took another configuration, refused one, or ended: what it had done by then, by its own account.
    Function = "function" {
        /// Its name.
        function: String,
        /// Its place in the instance's chain, from 0 on.
        stage: u32,
        /// What happened.
        change: FunctionChange,
        /// Packets that it was given.
        packets: u64,
        /// Packets that it dropped, by reason; reasons without packets are omitted.
        drops: BTreeMap<String, u64>,
        /// Packets that it made.
        originated: u64,
    },
    /// Something of an actor, or a decision about it.
    Actor = "actor" {
        /// Its name.
        actor: String,
        /// Where it was then.
        side: ActorSide,
        /// What.
        change: ActorChange,
        /// Why, with the figures.
        reason: String,
        /// For the end of a move: from its first phase to its last, in microseconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        took_us: Option<u64>,
        /// Messages that were lost with it; absent for none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lost: Option<u64>,
        /// The inputs of the decision, as `inco explain actors` takes them; absent if an operator decided.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        case: Option<Box<serde_json::Value>>,
    },
    /// Something of a side of a service of actors.
    ActorSide = "actor_side" {
        /// The side.
        side: ActorSide,
        /// What.
        change: SideChange,
        /// What is known about it.
        reason: String,
        /// For a core: the inputs of the decision, as `inco explain actors` takes them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        case: Option<Box<serde_json::Value>>,
    },
    /// An uplink's peer connected or disconnected.
    Uplink = "uplink" {
        /// Its name.
        uplink: String,
        /// Whether it has a peer now.
        up: bool,
        /// The peer, or why it disconnected.
        detail: String,
    },
    /// A rollout began, advanced or ended.
    Rollout = "rollout" {
        /// Its state.
        state: RolloutState,
        /// Instances already replaced.
        replaced: u32,
        /// Instances at its start.
        total: u32,
        /// What it waits for, or why it ended.
        reason: String,
    },
    /// An external failure; `reason` includes the reaction.
    Failure = "failure" {
        /// What failed: engine, port, uplink, instance.
        what: String,
        /// What happened, and the reaction.
        reason: String,
    },
    /// A failure has ended.
    Recovered = "recovered" {
        /// What had failed.
        what: String,
        /// Duration of the failure, in milliseconds.
        after_ms: u64,
    },
    /// An action requested over the API or the command line.
    Action = "action" {
        /// The requested action.
        action: String,
        /// The action with all its arguments, as the API takes it.
        #[serde(default)]
        request: serde_json::Value,
        /// The requester: `uid 0` over the unix socket, `token admin` over TCP, `signal` for a signal, `earlier run` for
        /// what was set before a crash or an upgrade and holds on.
        #[serde(default)]
        by: String,
        /// Whether it was refused; `result` then gives the reason.
        #[serde(default)]
        refused: bool,
        /// The result.
        result: String,
    },
}
