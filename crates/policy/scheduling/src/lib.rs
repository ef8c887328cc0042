//! Which instance a new flow is given to. A scheduler looks at the candidates of one service and names one of them;
//! it never pins, forwards, allocates or reads a clock, and it is never asked about a flow that is pinned already.
//!
//! Key types: [`Scheduler`] (one of the policies, dispatched by enum, with its settings), [`Candidates`] (the Active
//! instances as the worker sees them), [`NewFlow`] (what is known of the flow) and [`Pick`] (the answer).
//!
//! How a worker uses it:
//! 1. It makes one [`Scheduler`] per service with [`Scheduler::from_name`] or [`Scheduler::with_parameters`].
//! 2. When instances or loads are published, it fills the service's [`Candidates`] anew, **in ascending order of slot**,
//!    with the Active instances alone.
//! 3. For each new flow it calls [`Scheduler::pick`], pins the flow to the candidate picked, and notes that with
//!    [`Candidates::pin`], so that a burst of new flows does not land on one instance.
//!
//! A pick costs the same, or nearly, with 8 candidates as with 1024: what has to look at all of them is done when they are
//! filled in, once a millisecond. `cargo run --release -p scheduling --example pick_cost` measures it.
//!
//! What a load is in, the service says ([`Metric`]): policies compare figures and do not care. Chance is the flow's hash and
//! time is [`Terms::at`], so that any decision can be repeated.
//!
//! A policy is one file with a type that implements [`Policy`], its `mod` and its line in the list below.
#![forbid(unsafe_code)]

mod best_fit;
mod bits;
mod candidates;
mod consistent;
mod jbsq;
mod least;
mod least_connections;
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
pub use maglev::Maglev;
pub use power_of_two::PowerOfTwo;
pub use round_robin::RoundRobin;
pub use rss::{ENTRIES as RSS_ENTRIES, Rss, rss_hash};
pub use source_hash::SourceHash;
pub use space_saving::{Heavy, SpaceSaving};
pub use weighted::{TOTAL_WEIGHT, Weighted};
pub use worst_fit::WorstFit;

/// What loads and capacities of a service are counted in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Packets per second.
    #[default]
    Packets,
    /// Bytes per second.
    Bytes,
    /// Flows pinned.
    Flows,
    /// The share of time in which an instance is busy, 0 to 1.
    Busy,
}

impl Metric {
    /// Every metric.
    pub const ALL: [Metric; 4] = [Metric::Packets, Metric::Bytes, Metric::Flows, Metric::Busy];

    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Metric::Packets => "packets",
            Metric::Bytes => "bytes",
            Metric::Flows => "flows",
            Metric::Busy => "busy",
        }
    }

    /// What its figures are, in words.
    pub const fn unit(self) -> &'static str {
        match self {
            Metric::Packets => "packets per second",
            Metric::Bytes => "bytes per second",
            Metric::Flows => "flows",
            Metric::Busy => "share of time",
        }
    }
}

/// What every policy is given beside its own parameters.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// What loads are counted in.
    pub metric: Metric,
    /// The time in which a fresh instance is brought up to its full share; see [`Candidates::ramp`].
    #[serde(with = "span")]
    pub slow_start: Nanos,
    /// Whether a flow that does not fit the instance that the policy chose goes to the next one that it fits, where there
    /// is one.
    pub spill: bool,
}

/// Long enough for an instance's caches and for rates to follow; short beside the time that a container lives.
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

/// A flow that is not pinned yet.
#[derive(Clone, Copy, Debug)]
pub struct NewFlow<'a> {
    /// Its key, the same for both directions.
    pub key: &'a FlowKey,
    /// The direction of the packet that opens it.
    pub direction: Direction,
    /// The key's hash, as the flow table uses it: uniform bits.
    pub hash: u64,
    /// What it will probably bring, in the unit of the service's metric.
    pub expected: f32,
    /// Its DSCP, 0 to 63.
    pub dscp: u8,
}

impl NewFlow<'_> {
    /// Its priority: the class selector of its DSCP, 7 the highest.
    #[inline]
    pub fn priority(&self) -> usize {
        usize::from(self.dscp >> 3) % PRIORITIES
    }
}

/// What a scheduler answers: an index into the candidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pick {
    /// The flow fits this candidate.
    Fits(usize),
    /// The flow goes to this candidate although it does not fit there: it fits nowhere, or [`Settings::spill`] is off.
    Overcommitted(usize),
    /// There is no candidate.
    None,
}

impl Pick {
    /// The candidate's index, where there is one.
    #[inline]
    pub const fn index(self) -> Option<usize> {
        match self {
            Pick::Fits(index) | Pick::Overcommitted(index) => Some(index),
            Pick::None => None,
        }
    }
}

/// A parameter of a policy, for documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// What may be written, in words.
    pub kind: &'static str,
    /// What holds where it is not written, as TOML.
    pub default: &'static str,
    /// What it does.
    pub meaning: &'static str,
}

/// What a policy remembers of earlier decisions, beside what its candidates say: with it a decision can be repeated
/// elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct State {
    /// The slot that was picked last: round-robin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<Slot>,
    /// By slot, what each was given in the last period: weighted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub counts: Vec<f64>,
}

/// What a policy implements. Its parameters are its serialised form: unknown ones are refused, missing ones have a
/// default. Only `refill` may look at every candidate; nothing may allocate. What it answers must depend on nothing but its
/// arguments and its own state.
pub trait Policy: Default + Serialize + for<'de> Deserialize<'de> {
    /// The policy's name in configurations, labels and events.
    const NAME: &'static str;
    /// Its parameters.
    const PARAMETERS: &'static [Parameter];
    /// Whether it looks at which flow it is: its key, hash or direction.
    const BY_FLOW: bool = false;

    /// The list of candidates is a new one.
    fn refill(&mut self, _candidates: &Candidates) {}

    /// Makes at once what [`Policy::refill`] makes step by step.
    fn settle(&mut self, _candidates: &Candidates) {}

    /// A flow was pinned to the candidate at `index`.
    fn pinned(&mut self, _candidates: &Candidates, _index: usize) {}

    /// Chooses the index of a candidate for a new flow. There is at least one candidate.
    fn choose(&mut self, flow: &NewFlow<'_>, candidates: &Candidates) -> usize;

    /// The flow did not fit the candidate chosen, and the one in this slot got it.
    fn spilled(&mut self, _slot: Slot) {}

    /// The share of new flows that each candidate gets while every flow fits, where the policy has such shares.
    fn shares(&self, _candidates: &Candidates) -> Option<Vec<f64>> {
        None
    }

    /// The hash by which the policy places a flow, where it has one of its own.
    fn hash(&self, _flow: &NewFlow<'_>) -> Option<u64> {
        None
    }

    /// Notes what it remembers.
    fn save(&self, _state: &mut State) {}

    /// Remembers what was noted.
    fn restore(&mut self, _state: &State) {}
}

/// A scheduler's name that no policy has.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("there is no scheduler {name:?}; there are {}", Scheduler::NAMES.join(", "))]
pub struct UnknownScheduler {
    /// What was asked for.
    pub name: String,
}

macro_rules! policies {
    ($($policy:ident,)*) => {
        #[derive(Clone, Debug)]
        enum AnyPolicy { $($policy($policy),)* }

        /// Runs an expression on the policy, whichever it is.
        macro_rules! on_policy {
            ($any:expr, $one:ident => $then:expr) => {
                match $any { $(AnyPolicy::$policy($one) => $then,)* }
            };
        }

        impl Scheduler {
            /// Every policy's name.
            pub const NAMES: &'static [&'static str] = &[$($policy::NAME,)*];

            /// The policy of that name with these settings and the parameters in `parameters`: a table of what
            /// [`Scheduler::parameters_of`] lists.
            ///
            /// # Errors
            /// The deserialiser's own, for an unknown name, an unknown parameter and a value out of range.
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

            /// The policy of that name with default settings and parameters.
            ///
            /// # Errors
            /// [`UnknownScheduler`] where no policy has that name.
            pub fn from_name(name: &str) -> Result<Scheduler, UnknownScheduler> {
                $(if name == $policy::NAME {
                    return Ok(Scheduler::new(AnyPolicy::$policy($policy::default()), Settings::default()));
                })*
                Err(UnknownScheduler { name: name.to_owned() })
            }

            /// The parameters that a policy has, [`None`] where there is no such policy.
            pub fn parameters_of(name: &str) -> Option<&'static [Parameter]> {
                $(if name == $policy::NAME { return Some($policy::PARAMETERS); })*
                None
            }

            /// The policy's name.
            pub const fn name(&self) -> &'static str {
                match &self.policy { $(AnyPolicy::$policy(_) => $policy::NAME,)* }
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
    Rss,
    SourceHash,
}

fn by_flow<P: Policy>(_policy: &P) -> bool {
    P::BY_FLOW
}

/// One of the scheduling policies, with its settings and its state. One per service and worker.
#[derive(Clone, Debug)]
pub struct Scheduler {
    policy: AnyPolicy,
    settings: Settings,
    seen: Seen,
}

/// What of the candidates a policy has taken over: the list, and how many flows were pinned since.
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

    /// The same with other settings.
    pub fn with_settings(self, settings: Settings) -> Scheduler {
        Scheduler { settings, ..self }
    }

    /// Whether a pick depends on the flow's key, hash or direction.
    pub fn is_by_flow(&self) -> bool {
        on_policy!(&self.policy, policy => by_flow(policy))
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

    /// Takes over what has changed of the candidates since the last time. A worker need not call it:
    /// [`Scheduler::pick`] does.
    #[inline]
    pub fn follow(&mut self, candidates: &Candidates) {
        on_policy!(&mut self.policy, policy => self.seen.follow(policy, candidates));
    }

    /// Takes over the candidates as they are, whole: what a worker spreads over many calls of [`Scheduler::pick`] (the
    /// tables of `maglev` and `source-hash`) is made at once.
    pub fn settle(&mut self, candidates: &Candidates) {
        if !candidates.is_empty() {
            self.follow(candidates);
            on_policy!(&mut self.policy, policy => policy.settle(candidates));
        }
    }

    /// The share of new flows that each candidate gets while every flow fits, where the policy has such shares:
    /// `weighted`, `maglev`, `rss` and `source-hash`.
    pub fn shares(&self, candidates: &Candidates) -> Option<Vec<f64>> {
        on_policy!(&self.policy, policy => policy.shares(candidates))
    }

    /// The hash by which the policy places a flow, where it has one of its own: Toeplitz for `rss`, of the source address
    /// for `source-hash`.
    pub fn hash(&self, flow: &NewFlow<'_>) -> Option<u64> {
        on_policy!(&self.policy, policy => policy.hash(flow))
    }

    /// The rank of a candidate for a flow, where the policy ranks: equation 2.2 of `jbsq`.
    pub fn rank(&self, flow: &NewFlow<'_>, candidates: &Candidates, index: usize) -> Option<f32> {
        match &self.policy {
            AnyPolicy::Jbsq(jbsq) => Some(jbsq.rank(candidates, index, flow.priority())),
            _ => None,
        }
    }

    /// Notes what it remembers of earlier decisions. Allocates nothing where `state` has room for a count per slot.
    pub fn save(&self, state: &mut State) {
        on_policy!(&self.policy, policy => policy.save(state));
    }

    /// Remembers what was noted.
    pub fn restore(&mut self, state: &State) {
        on_policy!(&mut self.policy, policy => policy.restore(state));
    }

    /// Writes the policy's own parameters: what [`Scheduler::with_parameters`] reads.
    ///
    /// # Errors
    /// The serialiser's own.
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
