//! Picks the instance for a new flow. A scheduler picks one of a service's candidates. It never pins,
//! forwards, allocates or reads a clock, and is never called for a pinned flow.
//!
//! Key types: [`Scheduler`] (one of the policies with its settings, dispatched by enum), [`Candidates`] (the
//! Active instances as the worker sees them), [`NewFlow`] (the flow's properties) and [`Pick`] (the result).
//!
//! Use by a worker:
//! 1. Make one [`Scheduler`] per service with [`Scheduler::from_name`] or [`Scheduler::with_parameters`].
//! 2. When instances or loads are published, rebuild the service's [`Candidates`] from the Active instances,
//!    **in ascending order of slot**.
//! 3. For each new flow call [`Scheduler::pick`], pin the flow, and record that with [`Candidates::pin`], so
//!    that a burst of new flows does not land on one instance.
//!
//! A pick costs nearly the same with 8 candidates as with 1024: work over all candidates is done when they
//! are rebuilt, once a millisecond. `cargo run --release -p scheduling --example pick_cost` measures it.
//!
//! The service defines the unit of loads ([`Metric`]); policies only compare figures. Randomness is the
//! flow's hash and time is [`Terms::at`], so that every decision can be reproduced.
//!
//! To add a policy: one file with a type that implements [`Policy`], its `mod`, and a line in the list below.
#![forbid(unsafe_code)]

mod best_fit;
mod bits;
mod candidates;
mod consistent;
mod jbsq;
mod least;
mod least_connections;
mod machines;
mod maglev;
mod power_of_two;
mod round_robin;
mod rss;
mod source_hash;
mod space_saving;
mod weighted;
mod worst_fit;

use std::fmt;

use model::{Direction, FlowKey, Nanos, Slot, span};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

pub use best_fit::BestFit;
pub use candidates::{Candidate, Candidates, PRIORITIES, RAMP_STEPS, Renewed, Terms};
pub use jbsq::Jbsq;
pub use least_connections::LeastConnections;
pub use machines::Machines;
pub use maglev::Maglev;
pub use model::Parameter;
pub use power_of_two::PowerOfTwo;
pub use round_robin::RoundRobin;
pub use rss::{ENTRIES as RSS_ENTRIES, Rss, rss_hash};
pub use source_hash::SourceHash;
pub use space_saving::{Heavy, SpaceSaving};
pub use weighted::{TOTAL_WEIGHT, Weighted};
pub use worst_fit::WorstFit;

model::words! {
    /// The unit of a service's loads and capacities.
    #[derive(Default, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Metric {
        /// Packets per second.
        #[default]
        Packets = "packets",
        /// Bytes per second.
        Bytes = "bytes",
        /// Flows pinned.
        Flows = "flows",
        /// The share of time in which an instance is busy, 0 to 1.
        Busy = "busy",
    }
}

impl Metric {
    /// The unit of its figures, in words.
    pub const fn unit(self) -> &'static str {
        match self {
            Metric::Packets => "packets per second",
            Metric::Bytes => "bytes per second",
            Metric::Flows => "flows",
            Metric::Busy => "share of time",
        }
    }
}

/// Settings of every policy, beside its own parameters.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The unit of loads.
    pub metric: Metric,
    /// The duration of a fresh instance's ramp; see [`Candidates::ramp`].
    #[serde(with = "span")]
    pub slow_start: Nanos,
    /// Whether a flow that does not fit the chosen instance goes to the next one that it fits, if any.
    pub spill: bool,
}

/// Long enough for caches and rates to settle; short beside a container's lifetime.
pub const SLOW_START: Nanos = Nanos::from_secs(1);

impl Default for Settings {
    fn default() -> Self {
        Settings {
            metric: Metric::Packets,
            slow_start: SLOW_START,
            spill: true,
        }
    }
}

/// A flow without a pin.
#[derive(Clone, Copy, Debug)]
pub struct NewFlow<'a> {
    /// Its key, the same in both directions.
    pub key: &'a FlowKey,
    /// The direction of its first packet.
    pub direction: Direction,
    /// The flow table's hash of the key: uniform bits.
    pub hash: u64,
    /// Its expected load, in the unit of the service's metric.
    pub expected: f32,
    /// Its DSCP, 0 to 63.
    pub dscp: u8,
    /// The instances that it is to get one of, the likeliest first, where its hash says that: machines that other edges
    /// look for it at. For the policy `machines`; empty otherwise.
    pub among: &'a [Slot],
}

impl NewFlow<'_> {
    /// Its priority: the class selector of its DSCP; 7 is the highest.
    #[inline]
    pub fn priority(&self) -> usize {
        usize::from(self.dscp >> 3) % PRIORITIES
    }
}

/// A scheduler's result: an index into the candidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pick {
    /// The flow fits this candidate.
    Fits(usize),
    /// The flow goes to this candidate without fitting: it fits nowhere, or [`Settings::spill`] is off.
    Overcommitted(usize),
    /// There is no candidate.
    None,
}

impl Pick {
    /// The candidate's index, if any.
    #[inline]
    pub const fn index(self) -> Option<usize> {
        match self {
            Pick::Fits(index) | Pick::Overcommitted(index) => Some(index),
            Pick::None => None,
        }
    }
}

/// What a policy with weights has for a candidate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weighing {
    /// Its part of [`TOTAL_WEIGHT`].
    pub weight: u16,
    /// The load that it was given in the last period: the metric's unit times seconds.
    pub counted: f64,
}

/// A policy's memory of earlier decisions, beside its candidates. Needed to reproduce a decision elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct State {
    /// The last picked slot: round-robin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<Slot>,
    /// By slot, the load assigned in the last period: weighted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub counts: Vec<f64>,
}

/// The interface of a policy. Its parameters are its serialised form: unknown ones are rejected, missing ones
/// have defaults. Only `refill` may visit every candidate; nothing may allocate. Results may depend only on
/// the arguments and the policy's own state.
pub trait Policy: Default + Serialize + for<'de> Deserialize<'de> {
    /// The policy's name in configurations, labels and events.
    const NAME: &'static str;
    /// Why an instance is chosen, in words.
    const RULE: &'static str;
    /// Its parameters.
    const PARAMETERS: &'static [Parameter];
    /// Whether it uses the flow's key, hash or direction.
    const BY_FLOW: bool = false;
    /// Whether it goes by a hash alone, while flows fit: two with the same candidates choose the same for a flow.
    const BY_HASH: bool = false;
    /// Bits of its own hash.
    const HASH_BITS: usize = 64;

    /// The candidate list was rebuilt.
    fn refill(&mut self, _candidates: &Candidates) {}

    /// Does at once what [`Policy::refill`] does in steps.
    fn settle(&mut self, _candidates: &Candidates) {}

    /// A flow was pinned to the candidate at `index`.
    fn pinned(&mut self, _candidates: &Candidates, _index: usize) {}

    /// Chooses a candidate for a new flow. There is at least one.
    fn choose(&mut self, flow: &NewFlow<'_>, candidates: &Candidates) -> usize;

    /// The flow did not fit the chosen candidate and went to this slot.
    fn spilled(&mut self, _slot: Slot) {}

    /// Each candidate's share of new flows while every flow fits, if the policy has shares.
    fn shares(&self, _candidates: &Candidates) -> Option<Vec<f64>> {
        None
    }

    /// How often weights were computed, if the policy has weights.
    fn weighings(&self) -> u64 {
        0
    }

    /// What a candidate had when weights were last computed, if the policy has weights.
    fn weighing(&self, _candidates: &Candidates, _index: usize) -> Option<Weighing> {
        None
    }

    /// The policy's own hash of a flow, if any.
    fn hash(&self, _flow: &NewFlow<'_>) -> Option<u64> {
        None
    }

    /// The rank of a candidate for a flow, if the policy ranks.
    fn rank(&self, _flow: &NewFlow<'_>, _candidates: &Candidates, _index: usize) -> Option<f32> {
        None
    }

    /// Saves its memory.
    fn save(&self, _state: &mut State) {}

    /// Restores its memory.
    fn restore(&mut self, _state: &State) {}
}

/// An unknown scheduler name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown scheduler {name:?}; write one of {}", Scheduler::NAMES.join(", "))]
pub struct UnknownScheduler {
    /// The requested name.
    pub name: String,
}

macro_rules! policies {
    ($($policy:ident,)*) => {
        #[derive(Clone, Debug)]
        enum AnyPolicy { $($policy($policy),)* }

        /// Evaluates an expression on whichever policy it is.
        macro_rules! on_policy {
            ($any:expr, $one:ident => $then:expr) => {
                match $any { $(AnyPolicy::$policy($one) => $then,)* }
            };
        }

        impl Scheduler {
            /// Every policy's name.
            pub const NAMES: &'static [&'static str] = &[$($policy::NAME,)*];

            /// The named policy with these settings and parameters, a table of what
            /// [`Scheduler::parameters_of`] lists.
            ///
            /// # Errors
            /// Returns the deserialiser's error if a name or parameter is unknown or a value is out of range.
            pub fn with_parameters<'de, D>(name: &str, settings: Settings, parameters: D) -> Result<Scheduler, D::Error>
            where
                D: Deserializer<'de>,
            {
                $(if name == $policy::NAME {
                    let policy = $policy::deserialize(parameters)?;
                    return Ok(Scheduler::new(AnyPolicy::$policy(policy), settings));
                })*
                Err(D::Error::custom(UnknownScheduler { name: name.to_owned() }))
            }

            /// The named policy with default settings and parameters.
            ///
            /// # Errors
            /// Returns [`UnknownScheduler`] if no policy has that name.
            pub fn from_name(name: &str) -> Result<Scheduler, UnknownScheduler> {
                $(if name == $policy::NAME {
                    return Ok(Scheduler::new(AnyPolicy::$policy($policy::default()), Settings::default()));
                })*
                Err(UnknownScheduler { name: name.to_owned() })
            }

            /// The parameters of a policy; [`None`] if there is no such policy.
            pub fn parameters_of(name: &str) -> Option<&'static [Parameter]> {
                $(if name == $policy::NAME { return Some($policy::PARAMETERS); })*
                None
            }

            /// The policy's name.
            pub const fn name(&self) -> &'static str {
                match &self.policy { $(AnyPolicy::$policy(_) => $policy::NAME,)* }
            }

            /// Why it chooses an instance, in words.
            pub const fn rule(&self) -> &'static str {
                match &self.policy { $(AnyPolicy::$policy(_) => $policy::RULE,)* }
            }

            /// Bits of its own hash; see [`Scheduler::hash`].
            pub const fn hash_bits(&self) -> usize {
                match &self.policy { $(AnyPolicy::$policy(_) => $policy::HASH_BITS,)* }
            }
        }
    };
}

policies! {
    RoundRobin,
    BestFit,
    WorstFit,
    LeastConnections,
    Weighted,
    PowerOfTwo,
    Jbsq,
    Maglev,
    Machines,
    Rss,
    SourceHash,
}

fn by_flow<P: Policy>(_policy: &P) -> bool {
    P::BY_FLOW
}

fn by_hash<P: Policy>(_policy: &P) -> bool {
    P::BY_HASH
}

/// Table entries of [`Scheduler::by_hash_alone`]: with these, a worker follows a change of instances in two steps.
const HASH_ENTRIES: u32 = 4093;

/// A scheduling policy with settings and state. One per service and worker.
#[derive(Clone, Debug)]
pub struct Scheduler {
    policy: AnyPolicy,
    settings: Settings,
    seen: Seen,
}

/// What the policy has seen of the candidates: the list, and the number of flows pinned since.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    revision: u64,
    pins: u64,
}

impl Seen {
    #[inline]
    fn follow<P: Policy>(&mut self, policy: &mut P, candidates: &Candidates) {
        let (pins, pinned) = candidates.pins();
        if candidates.revision() != self.revision || pins > self.pins + 1 {
            self.revision = candidates.revision();
            policy.refill(candidates);
        } else if pins == self.pins + 1 {
            policy.pinned(candidates, pinned);
        }
        self.pins = pins;
    }
}

impl Scheduler {
    fn new(policy: AnyPolicy, settings: Settings) -> Scheduler {
        Scheduler {
            policy,
            settings,
            seen: Seen::default(),
        }
    }

    /// Maglev's table by weight alone: neither load nor a slow start changes where a hash goes. For flows that are
    /// picked more than once, or by more than one, of which nothing is known.
    pub fn by_hash_alone() -> Scheduler {
        let settings = Settings {
            spill: false,
            ..Settings::default()
        };
        Scheduler::new(AnyPolicy::Maglev(Maglev::steady(HASH_ENTRIES)), settings)
    }

    /// The same with other settings.
    pub fn with_settings(self, settings: Settings) -> Scheduler {
        Scheduler { settings, ..self }
    }

    /// Whether a pick depends on the flow's key, hash or direction.
    pub fn is_by_flow(&self) -> bool {
        on_policy!(&self.policy, policy => by_flow(policy))
    }

    /// Whether a pick depends on a hash of the flow alone, while flows fit: two with the same candidates agree.
    pub fn is_by_hash(&self) -> bool {
        on_policy!(&self.policy, policy => by_hash(policy))
    }

    /// Its settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Picks one of `candidates` (the Active instances of the flow's service) for `flow`. Does not allocate.
    #[inline]
    pub fn pick(&mut self, flow: &NewFlow<'_>, candidates: &Candidates) -> Pick {
        if candidates.is_empty() {
            return Pick::None;
        }
        let Scheduler {
            policy,
            settings,
            seen,
        } = self;
        on_policy!(policy, policy => {
            seen.follow(policy, candidates);
            let index = policy.choose(flow, candidates);
            if candidates.fits(index) {
                return Pick::Fits(index);
            }
            if settings.spill
                && let Some(next) = candidates.next_fitting(index)
            {
                policy.spilled(candidates.get(next).map_or(Slot::NONE, |row| row.slot));
                return Pick::Fits(next);
            }
            Pick::Overcommitted(index)
        })
    }

    /// Updates the policy for changed candidates. [`Scheduler::pick`] calls it.
    #[inline]
    pub fn follow(&mut self, candidates: &Candidates) {
        on_policy!(&mut self.policy, policy => self.seen.follow(policy, candidates));
    }

    /// Updates the policy completely: builds at once what a worker spreads over many [`Scheduler::pick`]
    /// calls (the tables of `maglev` and `source-hash`).
    pub fn settle(&mut self, candidates: &Candidates) {
        if !candidates.is_empty() {
            self.follow(candidates);
            on_policy!(&mut self.policy, policy => policy.settle(candidates));
        }
    }

    /// Each candidate's share of new flows while every flow fits, for policies with shares: `weighted`,
    /// `maglev`, `rss` and `source-hash`.
    pub fn shares(&self, candidates: &Candidates) -> Option<Vec<f64>> {
        on_policy!(&self.policy, policy => policy.shares(candidates))
    }

    /// How often weights were computed: `weighted`. 0 for a policy without weights, and before the first time.
    #[inline]
    pub fn weighings(&self) -> u64 {
        on_policy!(&self.policy, policy => policy.weighings())
    }

    /// What a candidate had when weights were last computed: `weighted`.
    pub fn weighing(&self, candidates: &Candidates, index: usize) -> Option<Weighing> {
        on_policy!(&self.policy, policy => policy.weighing(candidates, index))
    }

    /// Whether it has weights: `weighted`.
    #[inline]
    pub fn has_weights(&self) -> bool {
        matches!(self.policy, AnyPolicy::Weighted(_))
    }

    /// Whether it goes by the weights of candidates, beside whatever else: `least-connections`, `weighted` and `maglev`.
    pub fn goes_by_weights(&self) -> bool {
        use AnyPolicy::{LeastConnections, Maglev, Weighted};
        matches!(self.policy, LeastConnections(_) | Weighted(_) | Maglev(_))
    }

    /// The policy's own hash of a flow: Toeplitz for `rss`, of the source address for `source-hash`.
    pub fn hash(&self, flow: &NewFlow<'_>) -> Option<u64> {
        on_policy!(&self.policy, policy => policy.hash(flow))
    }

    /// The rank of a candidate for a flow, for policies that rank: equation 2.2 of `jbsq`.
    pub fn rank(&self, flow: &NewFlow<'_>, candidates: &Candidates, index: usize) -> Option<f32> {
        on_policy!(&self.policy, policy => policy.rank(flow, candidates, index))
    }

    /// Saves its memory of earlier decisions. Does not allocate if `state` has room for a count per slot.
    pub fn save(&self, state: &mut State) {
        on_policy!(&self.policy, policy => policy.save(state));
    }

    /// Restores its memory.
    pub fn restore(&mut self, state: &State) {
        on_policy!(&mut self.policy, policy => policy.restore(state));
    }

    /// Serialises the policy's own parameters, as [`Scheduler::with_parameters`] reads them.
    ///
    /// # Errors
    /// Returns the serialiser's error.
    pub fn serialize_parameters<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        on_policy!(&self.policy, policy => policy.serialize(serializer))
    }
}

/// Best-fit, SmartINCO's recommendation.
impl Default for Scheduler {
    fn default() -> Self {
        Scheduler::new(AnyPolicy::BestFit(BestFit::default()), Settings::default())
    }
}

impl fmt::Display for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
