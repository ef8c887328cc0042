//! Scenario files: the input of a simulation and its expected result.

use std::path::{Path, PathBuf};

use actor_scheduling::{PolicyName, Queues};
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use crate::Error;
use crate::card_keys::Card;
use crate::cluster::Cluster;
use crate::error::within;
use crate::expectation::Check;
use crate::site::{self, Site};

/// Longest run, in seconds: eight weeks.
pub const DURATION_LIMIT_S: f64 = 8.0 * 7.0 * 86_400.0;
/// Variants per scenario.
pub const VARIANTS_LIMIT: usize = 64;
/// Seeds per variant.
pub const SEEDS_LIMIT: u64 = 10_000;
/// Instances of a modelled service.
pub const INSTANCES_LIMIT: u32 = 512;

/// A scenario file, before a variant's changes are applied.
#[derive(Clone, Debug)]
pub struct ScenarioFile {
    /// Its path.
    pub path: PathBuf,
    /// Everything but variants and expectation.
    base: Table,
    variants: Vec<(String, Table)>,
    expectation: Expectation,
}

/// The expected result of a scenario.
#[derive(Clone, Debug)]
pub struct Expectation {
    /// As a sentence.
    pub what: String,
    /// Seeds per variant that the checks need: they compare means.
    pub seeds: u64,
    /// The checks that can fail: the result is not in the scenario's input.
    pub checks: Vec<Check>,
    /// Checks of results that follow from the scenario's own input: they say that the model reproduces it, no more.
    pub calibration: Vec<Check>,
}

impl Default for Expectation {
    fn default() -> Self {
        Expectation {
            what: String::new(),
            seeds: one(),
            checks: Vec::new(),
            calibration: Vec::new(),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpectationText {
    what: String,
    #[serde(default = "one")]
    seeds: u64,
    #[serde(default)]
    checks: Vec<String>,
    #[serde(default)]
    calibration: Vec<String>,
}

/// The model of a scenario.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Model {
    /// Rates: hundreds of millions of packets per second, for hours.
    #[default]
    Fluid,
    /// Individual packets or requests through queues, for latency.
    Event,
    /// Individual flows through edges to many machines and their instances.
    Cluster,
}

/// One variant of a scenario, ready to run.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// The scenario's name.
    pub name: String,
    /// Its purpose.
    #[serde(default)]
    pub about: String,
    /// Its origin.
    #[serde(default)]
    pub source: String,
    /// The model.
    #[serde(default)]
    pub model: Model,
    /// Simulated duration, in seconds.
    pub duration_s: f64,
    /// Warm-up in seconds, which is not counted.
    #[serde(default)]
    pub warm_up_s: f64,
    /// The seed of all randomness.
    #[serde(default = "one")]
    pub seed: u64,
    /// The time step.
    #[serde(default)]
    pub step: Step,
    /// The interval and delay of counter readings.
    #[serde(default)]
    pub counters: Counters,
    /// The service.
    pub service: Service,
    /// Its instances.
    pub instances: Instances,
    /// Where they run (fluid model only). Left out: all at one place.
    #[serde(default)]
    pub place: Vec<Site>,
    /// The traffic.
    #[serde(default)]
    pub traffic: Vec<Traffic>,
    /// A card that steers by rules (event model only). Left out: inco's own switch.
    #[serde(default)]
    pub card: Option<Card>,
    /// Machines and edges (cluster model only). `[service]` and `[instances]` are what runs on each machine.
    #[serde(default)]
    pub cluster: Option<Cluster>,
    /// The event model's queue.
    #[serde(default)]
    pub queue: Queue,
    /// Actions during the run.
    #[serde(default)]
    pub action: Vec<Action>,
}

fn one() -> u64 {
    1
}

/// The control loop's time steps: `min_ms` after every change, then doubling up to `max_ms`.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Step {
    /// The shortest, in milliseconds: 1 in the live loop.
    pub min_ms: u64,
    /// The longest, in milliseconds, at most a minute. Policies that act at fixed times may be late by this much.
    pub max_ms: u64,
}

impl Default for Step {
    fn default() -> Self {
        Step {
            min_ms: 1,
            max_ms: 100,
        }
    }
}

/// How counters reach the control loop. Both 0: at once, as from the soft switch.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Counters {
    /// Update interval, in milliseconds.
    pub every_ms: u64,
    /// Age of the counters when they are read, in milliseconds.
    pub delay_ms: u64,
}

/// The service, with the keys of `inco.toml`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Service {
    /// A policy's name, or a table with `policy` and its parameters.
    pub scheduler: Value,
    /// A policy's name, or a table with `policy` and its parameters.
    pub autoscaler: Value,
    /// Configured capacity of an instance, in packets per second. Left out: it is learned.
    #[serde(default)]
    pub capacity_pps: Option<f64>,
    /// Share of the capacity that scheduling may use.
    #[serde(default = "fit")]
    pub fit: f32,
    /// Minimum Active instances.
    pub min: u32,
    /// Maximum Active instances.
    pub max: u32,
    /// Standby instances.
    #[serde(default)]
    pub standby: u32,
    /// Whether standbys are frozen.
    #[serde(default)]
    pub standby_paused: bool,
    /// Where its instances run: `auto`, `split` or the name of a place.
    #[serde(default = "placement")]
    pub placement: String,
    /// Deadline of a drain, in seconds.
    #[serde(default = "drain_deadline")]
    pub drain_deadline_s: f64,
}

fn fit() -> f32 {
    0.9
}

fn placement() -> String {
    "auto".to_owned()
}

fn drain_deadline() -> f64 {
    60.0
}

/// The modelled instances and their shared resources.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Instances {
    /// Packets per second of one instance with one CPU. A list gives the capacity of each by the number of busy
    /// instances: the first value applies to one, the second to two, the last to all higher counts.
    pub capacity_pps: Capacities,
    /// Packets per second of all instances together, shared in proportion to their demand.
    #[serde(default)]
    pub total_pps: Option<f64>,
    /// Share of a packet's cost that is paid even if it is dropped, which makes throughput fall beyond its
    /// peak (receive livelock; Mogul and Ramakrishnan, ACM TOCS 15(3), 1997). 0: none.
    #[serde(default)]
    pub receive_share: f64,
    /// Ring slots of an instance.
    #[serde(default = "ring_slots")]
    pub ring_slots: u32,
    /// Time from the request until the program runs, in milliseconds: a value, or a minimum and a maximum.
    #[serde(default = "create_ms")]
    pub create_ms: Range,
    /// Time from then until it is ready, in milliseconds.
    #[serde(default)]
    pub ready_ms: Range,
    /// Time to resume a frozen instance, in milliseconds.
    #[serde(default = "resume_ms")]
    pub resume_ms: Range,
    /// Time until a new CPU quota is effective, in milliseconds.
    #[serde(default)]
    pub quota_ms: Range,
    /// Initial CPU quota of an instance. Left out: none.
    #[serde(default)]
    pub cpus: Option<f64>,
    /// CPUs that an instance can use at most.
    #[serde(default = "threads")]
    pub threads: f64,
    /// Power model of all instances: `[idle watts, watts per instance]`. Never a measurement.
    #[serde(default)]
    pub power_w: Option<[f64; 2]>,
}

fn ring_slots() -> u32 {
    1024
}

fn create_ms() -> Range {
    Range::Between(7.0, 17.0)
}

fn resume_ms() -> Range {
    Range::Between(0.15, 1.0)
}

fn threads() -> f64 {
    1.0
}

/// One capacity, or one per number of busy instances.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Capacities {
    /// Independent of other instances.
    One(f64),
    /// By the number of busy instances, from 1.
    ByBusy(Vec<f64>),
}

impl Capacities {
    /// Packets per second of each of `busy` busy instances.
    pub fn of(&self, busy: usize) -> f64 {
        match self {
            Capacities::One(pps) => *pps,
            Capacities::ByBusy(list) => {
                let place = busy.max(1).min(list.len());
                list.get(place.wrapping_sub(1)).copied().unwrap_or(0.0)
            }
        }
    }
}

/// A value, or a uniform draw between two.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(untagged)]
pub enum Range {
    /// Constant.
    Exactly(f64),
    /// Uniform between the two.
    Between(f64, f64),
}

impl Default for Range {
    fn default() -> Self {
        Range::Exactly(0.0)
    }
}

impl Range {
    /// The minimum and the maximum.
    pub fn bounds(self) -> (f64, f64) {
        match self {
            Range::Exactly(value) => (value, value),
            Range::Between(low, high) => (low, high),
        }
    }

    /// The value at `unit` (0 to 1) between the bounds.
    pub fn at(self, unit: f64) -> f64 {
        let (low, high) = self.bounds();
        low + (high - low) * unit
    }
}

/// A traffic source.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Traffic {
    /// Single flows of constant rate.
    Flows {
        /// Number of flows.
        count: u64,
        /// Packets per second per flow.
        pps: f64,
        /// Start of the first one, in seconds.
        #[serde(default)]
        start_s: f64,
        /// Seconds between two starts; 0: all at once.
        #[serde(default)]
        interval_s: f64,
        /// Duration of each flow, in seconds. Left out: until the end.
        #[serde(default)]
        lasts_s: Option<f64>,
        /// Whether a new flow replaces each ended one.
        #[serde(default)]
        repeat: bool,
        /// Whether a flow lasts until `pps` x `lasts_s` of its packets were processed, however long that
        /// takes (event model only).
        #[serde(default)]
        by_volume: bool,
        /// Randomizes the first starts over this many seconds.
        #[serde(default)]
        spread_s: f64,
        /// Rate factors over time: `[[seconds, factor], …]`.
        #[serde(default)]
        factor: Vec<(f64, f64)>,
        /// DSCP of its packets.
        #[serde(default)]
        dscp: u8,
        /// Bytes per packet, without the 20 of preamble and gap.
        #[serde(default = "bytes")]
        bytes: u32,
    },
    /// Many flows as rates: `[[seconds, new flows per second, packets per second], …]`. Values are
    /// interpolated between points if `smooth`, else constant.
    Aggregate {
        /// The points.
        points: Vec<(f64, f64, f64)>,
        /// Whether to interpolate linearly between points.
        #[serde(default)]
        smooth: bool,
        /// Repeats the points after this many seconds.
        #[serde(default)]
        period_s: Option<f64>,
        /// Flow lifetimes.
        #[serde(default)]
        flows: FlowMix,
        /// A random factor on the rate, redrawn regularly: `{ every_s, share }` for ±share.
        #[serde(default)]
        noise: Option<Noise>,
        /// Additional short bursts.
        #[serde(default)]
        burst: Vec<Burst>,
        /// Bytes per packet.
        #[serde(default = "bytes")]
        bytes: u32,
    },
    /// A file of rates per second: `second,flows,packets,…`, with new flows and packets of each second.
    Series {
        /// Path in the data folder.
        file: PathBuf,
        /// The first second to use.
        #[serde(default)]
        from_s: f64,
        /// Scales the busiest second to this rate, in packets per second, and new flows in proportion.
        #[serde(default)]
        peak_pps: Option<f64>,
        /// Flow lifetimes.
        #[serde(default)]
        flows: FlowMix,
        /// A random factor on the rate, redrawn regularly.
        #[serde(default)]
        noise: Option<Noise>,
        /// Additional short bursts.
        #[serde(default)]
        burst: Vec<Burst>,
        /// Bytes per packet.
        #[serde(default = "bytes")]
        bytes: u32,
    },
    /// The flows of a capture: each from its first packet to its last, at its mean rate.
    Capture {
        /// Path in the data folder.
        file: PathBuf,
        /// Speed-up: divides all times.
        #[serde(default = "one_f64")]
        speed: f64,
        /// Whether to repeat the capture.
        #[serde(default)]
        repeat: bool,
    },
    /// The traffic of a recorded live run.
    Recording {
        /// Path relative to the scenario file.
        file: PathBuf,
    },
}

fn bytes() -> u32 {
    64
}

impl Traffic {
    /// Bytes per packet; the minimum if the source does not give any.
    pub(crate) fn bytes(&self) -> u32 {
        match self {
            Traffic::Flows { bytes, .. }
            | Traffic::Aggregate { bytes, .. }
            | Traffic::Series { bytes, .. } => *bytes,
            Traffic::Capture { .. } | Traffic::Recording { .. } => bytes(),
        }
    }
}

fn one_f64() -> f64 {
    1.0
}

/// The lifetimes of an aggregate's flows.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(untagged)]
pub enum FlowMix {
    /// One second on average.
    #[default]
    Default,
    /// Lengths in packets from a fitted mixture, at a constant rate.
    Mixture {
        /// Path in the data folder.
        mixture: PathBuf,
        /// Packets per second per flow.
        pace_pps: f64,
    },
    /// Sizes in bytes from a published distribution (`bytes probability` per line), at a constant rate.
    Cdf {
        /// Path in the data folder.
        cdf: PathBuf,
        /// Packets per second per flow.
        pace_pps: f64,
    },
    /// Classes: `[[share of new flows, mean lifetime in seconds, relative rate of a flow], …]`.
    Classes {
        /// The classes.
        classes: Vec<(f64, f64, f64)>,
    },
}

/// A random factor on a rate, redrawn regularly.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Noise {
    /// Seconds between two draws.
    pub every_s: f64,
    /// Uniform within 1 ± this.
    pub share: f64,
}

/// Short bursts at random times.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Burst {
    /// Seconds between two starts.
    pub every_s: Range,
    /// Duration, in milliseconds.
    pub length_ms: Range,
    /// Rate in the burst relative to the rate at its start.
    pub factor: Range,
    /// Linear rise time, in milliseconds.
    #[serde(default)]
    pub rise_ms: f64,
    /// Its kind: `"packets"` (existing flows send more) or `"flows"` (new flows, which end with it).
    #[serde(default)]
    pub of: BurstOf,
    /// Start of the period with bursts, in seconds.
    #[serde(default)]
    pub from_s: f64,
    /// End of that period, in seconds. Left out: the end of the run.
    #[serde(default)]
    pub to_s: Option<f64>,
}

/// The kind of a burst.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BurstOf {
    /// Existing flows send more.
    #[default]
    Packets,
    /// New flows, which end with it.
    Flows,
}

/// The event model's queue.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Queue {
    /// The scheduler's policy.
    pub discipline: PolicyName,
    /// Whether the servers share what is served first come, first served (`"shared"`), or each has a line and steals from
    /// the others (`"per-core"`).
    pub queues: Queues,
    /// Servers per instance.
    pub servers: u32,
    /// Service time of a request.
    pub service: Work,
    /// Quantum of deficit round-robin per actor and round, in microseconds; with `preemptive` also the longest time
    /// without an interruption.
    pub quantum_us: f64,
    /// Cost of a switch between actors, in microseconds.
    pub switch_us: f64,
    /// The hybrid's threshold on the tail (mean plus three deviations of the response time of what is served first come,
    /// first served), in microseconds.
    pub tail_threshold_us: f64,
    /// Margin below the threshold, as a share, at which an actor returns to the first queue.
    pub hysteresis: f64,
    /// Number of actors.
    pub actors: u32,
    /// The host's side of a service of actors, where the servers are the card's. Left out: actors do not move.
    pub host: Option<HostSide>,
}

impl Default for Queue {
    fn default() -> Self {
        Queue {
            discipline: PolicyName::Fcfs,
            queues: Queues::Shared,
            servers: 1,
            service: Work::Capacity,
            quantum_us: 10.0,
            switch_us: 0.0,
            tail_threshold_us: 50.0,
            hysteresis: 0.1,
            actors: 1,
            host: None,
        }
    }
}

/// The host's side of a service of actors: when actors move to it and back is decided as `[service.NAME.sides]` says.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HostSide {
    /// Its servers.
    pub servers: u32,
    /// How many times as fast as the card's they are.
    pub speed: f64,
    /// How long the state of an actor is on its way, in milliseconds.
    pub move_ms: f64,
    /// The mean response time of the card's requests above which the actor with the highest load goes, in microseconds.
    pub overload_us: f64,
    /// The share of the time of the card's servers above which it goes, too.
    pub busy: f64,
    /// Requests of an actor of the card above which it goes.
    pub backlog: u64,
    /// The share of the card's time up to which actors come back.
    pub spare: f64,
    /// The margin below `overload_us` and `backlog` at which they do.
    pub margin: f64,
    /// How long the card must be overloaded, in milliseconds.
    pub patience_ms: f64,
    /// How long it must have room, in milliseconds.
    pub settle_ms: f64,
    /// From one move to the next decision, in milliseconds.
    pub pause_ms: f64,
}

impl Default for HostSide {
    fn default() -> Self {
        HostSide {
            servers: 1,
            speed: 1.0,
            move_ms: 5.0,
            overload_us: 1_000.0,
            busy: 0.9,
            backlog: 512,
            spare: 0.5,
            margin: 0.2,
            patience_ms: 200.0,
            settle_ms: 2_000.0,
            pause_ms: 500.0,
        }
    }
}

/// The service time of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Work {
    /// Constant: the inverse of the instance's capacity.
    #[default]
    Capacity,
    /// Exponential with the inverse of the capacity as mean.
    CapacityExponential,
    /// Exponential.
    Exponential {
        /// Mean, in microseconds.
        mean_us: f64,
    },
    /// One of two service times.
    Bimodal {
        /// The short one, in microseconds.
        short_us: f64,
        /// The long one, in microseconds.
        long_us: f64,
        /// Share of long ones.
        long_share: f64,
        /// Whether an actor's requests are all short or all long.
        #[serde(default)]
        by_actor: bool,
    },
}

/// An action during a run.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Action {
    /// Time, in seconds.
    pub at_s: f64,
    /// Manual scaling to this many Active instances.
    #[serde(default)]
    pub scale: Option<u32>,
    /// Kills the instance at this index among the Active ones (from 0).
    #[serde(default)]
    pub kill: Option<usize>,
}

impl ScenarioFile {
    /// Reads a scenario file.
    ///
    /// # Errors
    /// Returns [`Error::Read`] if the file cannot be read, and the errors of [`ScenarioFile::parse`].
    pub fn load(path: &Path) -> Result<ScenarioFile, Error> {
        let text = std::fs::read_to_string(path).map_err(|source| Error::Read {
            path: path.to_owned(),
            source,
        })?;
        ScenarioFile::parse(path, &text)
    }

    /// Parses a scenario; `path` is used in errors.
    ///
    /// # Errors
    /// Returns [`Error::Scenario`] for invalid TOML or an unknown key, and [`Error::Value`] for an invalid value.
    pub fn parse(path: &Path, text: &str) -> Result<ScenarioFile, Error> {
        let wrong = |problem: String| Error::Scenario {
            path: path.to_owned(),
            problem,
        };
        let mut base: Table =
            toml::from_str(text).map_err(|error| wrong(error.to_string().trim_end().to_owned()))?;
        let variants = match base.remove("variant") {
            None => vec![(String::new(), Table::new())],
            Some(Value::Table(table)) => table
                .into_iter()
                .map(|(name, value)| match value {
                    Value::Table(changes) => Ok((name, changes)),
                    other => Err(wrong(format!(
                        "variant.{name}: expected a table of changes, not {other}"
                    ))),
                })
                .collect::<Result<_, _>>()?,
            Some(_) => return Err(wrong("variant: write [variant.NAME] tables".to_owned())),
        };
        if variants.len() > VARIANTS_LIMIT {
            return Err(wrong(format!(
                "{} variants; at most {VARIANTS_LIMIT}",
                variants.len()
            )));
        }
        let expectation = match base.remove("expectation") {
            None => Expectation::default(),
            Some(value) => {
                let text: ExpectationText = value
                    .try_into()
                    .map_err(|error| wrong(format!("expectation: {error}")))?;
                let parsed = |checks: &[String]| -> Result<Vec<Check>, Error> {
                    checks.iter().map(|check| Check::parse(check)).collect()
                };
                Expectation {
                    what: text.what,
                    seeds: text.seeds,
                    checks: parsed(&text.checks)?,
                    calibration: parsed(&text.calibration)?,
                }
            }
        };
        let file = ScenarioFile {
            path: path.to_owned(),
            base,
            variants,
            expectation,
        };
        // Every variant must be valid, whichever is run.
        for (name, _) in &file.variants {
            file.variant(name)?;
        }
        Ok(file)
    }

    /// The names of its variants in alphabetical order; an empty name if it has none.
    pub fn variants(&self) -> impl Iterator<Item = &str> {
        self.variants.iter().map(|(name, _)| name.as_str())
    }

    /// The expected result.
    pub fn expectation(&self) -> &Expectation {
        &self.expectation
    }

    /// Sets a key of every variant, such as `service.autoscaler.target=0.5`. The value is TOML, or else a
    /// string.
    ///
    /// # Errors
    /// Returns [`Error::Value`] for an unknown key or an invalid value.
    pub fn set(&mut self, assignment: &str) -> Result<(), Error> {
        let Some((key, value)) = assignment.split_once('=') else {
            return Err(Error::value(assignment, "write KEY=VALUE, as in service.max=12"));
        };
        let value = value_of(value.trim());
        let keys: Vec<&str> = key.trim().split('.').collect();
        put(&mut self.base, &keys, value.clone()).map_err(|problem| Error::value(key.trim(), problem))?;
        // A variant's own value would take precedence otherwise.
        for (_, changes) in &mut self.variants {
            if decides(changes, &keys) {
                put(changes, &keys, value.clone()).map_err(|problem| Error::value(key.trim(), problem))?;
            }
        }
        for index in 0..self.variants.len() {
            let name = self.variants[index].0.clone();
            self.variant(&name)?;
        }
        Ok(())
    }

    /// Removes the expected result.
    pub fn expect_nothing(&mut self) {
        self.expectation = Expectation::default();
    }

    /// Keeps only the named variants, and the checks that use no other.
    ///
    /// # Errors
    /// Returns [`Error::Value`] for an unknown variant.
    pub fn keep(&mut self, names: &[String]) -> Result<(), Error> {
        if let Some(name) = names
            .iter()
            .find(|name| !self.variants().any(|v| v == name.as_str()))
        {
            let known: Vec<&str> = self.variants().collect();
            return Err(Error::value(
                "variant",
                format!("unknown variant {name:?}; write one of {}", known.join(", ")),
            ));
        }
        self.variants.retain(|(name, _)| names.contains(name));
        let is_of_kept = |check: &Check| {
            check
                .variants()
                .all(|variant| names.iter().any(|name| name == variant))
        };
        self.expectation.checks.retain(is_of_kept);
        self.expectation.calibration.retain(is_of_kept);
        Ok(())
    }

    /// A variant, ready to run.
    ///
    /// # Errors
    /// Returns [`Error::Scenario`] for an unknown key, and [`Error::Value`] for an invalid value.
    pub fn variant(&self, name: &str) -> Result<Scenario, Error> {
        let mut table = self.base.clone();
        if let Some((_, changes)) = self.variants.iter().find(|(variant, _)| variant == name) {
            merge(&mut table, changes);
        }
        let scenario: Scenario = Value::Table(table).try_into().map_err(|error: toml::de::Error| {
            let of = if name.is_empty() {
                String::new()
            } else {
                format!("variant {name}: ")
            };
            Error::Scenario {
                path: self.path.clone(),
                problem: format!("{of}{}", error.to_string().trim_end()),
            }
        })?;
        scenario.check()?;
        Ok(scenario)
    }
}

/// A value from the command line: TOML, or else a string.
fn value_of(text: &str) -> Value {
    toml::from_str::<Table>(&format!("v = {text}"))
        .ok()
        .and_then(|mut table| table.remove("v"))
        .unwrap_or_else(|| Value::String(text.to_owned()))
}

/// Applies `changes` to `base`: tables key by key, other values as a whole. A changed policy or kind drops the
/// parameters of the previous one.
fn merge(base: &mut Table, changes: &Table) {
    for (key, change) in changes {
        match (base.get_mut(key), change) {
            (Some(Value::Table(under)), Value::Table(over)) => {
                let is_other = ["policy", "kind"]
                    .iter()
                    .any(|of| over.contains_key(*of) && under.get(*of) != over.get(*of));
                if is_other {
                    under.clear();
                }
                merge(under, over);
            }
            _ => {
                base.insert(key.clone(), change.clone());
            }
        }
    }
}

/// Whether a variant's changes set a key or one of its parents: a new policy name or list replaces everything below.
fn decides(changes: &Table, keys: &[&str]) -> bool {
    match keys {
        [] => true,
        [key, rest @ ..] => match changes.get(*key) {
            None => false,
            Some(Value::Table(inner)) => {
                let is_other = ["policy", "kind"].iter().any(|of| inner.contains_key(*of));
                is_other || decides(inner, rest)
            }
            Some(_) => true,
        },
    }
}

fn put(table: &mut Table, keys: &[&str], value: Value) -> Result<(), String> {
    match keys {
        [] => Err("an empty key".to_owned()),
        [key] => {
            table.insert((*key).to_owned(), value);
            Ok(())
        }
        [key, rest @ ..] => {
            let inner = table
                .entry((*key).to_owned())
                .or_insert_with(|| Value::Table(Table::new()));
            match inner {
                Value::Table(inner) => put(inner, rest, value),
                // An index into a list, or a parameter of a policy given by name.
                Value::Array(list) => match (rest, key) {
                    ([place, rest @ ..], _) => {
                        let at: usize = place
                            .parse()
                            .map_err(|_| format!("{key} is a list: {place:?} is not an index"))?;
                        let length = list.len();
                        match list.get_mut(at) {
                            Some(Value::Table(inner)) if !rest.is_empty() => put(inner, rest, value),
                            Some(there) if rest.is_empty() => {
                                *there = value;
                                Ok(())
                            }
                            _ => Err(format!("{key} has indices 0 to {}", length.saturating_sub(1))),
                        }
                    }
                    ([], _) => Err(format!("{key} is a list")),
                },
                Value::String(policy) if *key == "scheduler" || *key == "autoscaler" => {
                    let mut with = Table::new();
                    with.insert("policy".to_owned(), Value::String(policy.clone()));
                    put(&mut with, rest, value)?;
                    *inner = Value::Table(with);
                    Ok(())
                }
                _ => Err(format!("{key} is not a table")),
            }
        }
    }
}

/// A policy's name and parameters. The value is a name or a table.
pub(crate) fn policy_of(key: &str, value: &Value) -> Result<(String, Table), Error> {
    match value {
        Value::String(name) => Ok((name.clone(), Table::new())),
        Value::Table(table) => {
            let mut table = table.clone();
            match table.remove("policy") {
                Some(Value::String(name)) => Ok((name, table)),
                _ => Err(Error::value(format!("{key}.policy"), "expected a policy name")),
            }
        }
        other => Err(Error::value(
            key,
            format!("expected a policy name or a table with `policy`, not {other}"),
        )),
    }
}

impl Scenario {
    fn check(&self) -> Result<(), Error> {
        within("duration_s", self.duration_s, 0.001, DURATION_LIMIT_S)?;
        within("step.min_ms", self.step.min_ms as f64, 1.0, 1_000.0)?;
        within(
            "step.max_ms",
            self.step.max_ms as f64,
            self.step.min_ms as f64,
            60_000.0,
        )?;
        within("counters.every_ms", self.counters.every_ms as f64, 0.0, 60_000.0)?;
        within("counters.delay_ms", self.counters.delay_ms as f64, 0.0, 60_000.0)?;
        within(
            "service.max",
            f64::from(self.service.max),
            0.0,
            f64::from(INSTANCES_LIMIT),
        )?;
        within(
            "service.min",
            f64::from(self.service.min),
            0.0,
            f64::from(self.service.max),
        )?;
        within(
            "service.standby",
            f64::from(self.service.standby),
            0.0,
            f64::from(INSTANCES_LIMIT),
        )?;
        within("service.fit", f64::from(self.service.fit), 0.0, 1.0)?;
        within(
            "service.drain_deadline_s",
            self.service.drain_deadline_s,
            0.0,
            86_400.0,
        )?;
        if let Some(pps) = self.service.capacity_pps {
            within("service.capacity_pps", pps, 1e-3, 1e12)?;
        }
        let capacities = match &self.instances.capacity_pps {
            Capacities::One(pps) => std::slice::from_ref(pps),
            Capacities::ByBusy(list) => list.as_slice(),
        };
        if capacities.is_empty() {
            return Err(Error::value(
                "instances.capacity_pps",
                "an empty list; give a value in packets per second",
            ));
        }
        for pps in capacities {
            within("instances.capacity_pps", *pps, 1e-3, 1e12)?;
        }
        if let Some(pps) = self.instances.total_pps {
            within("instances.total_pps", pps, 1e-3, 1e15)?;
        }
        within("instances.receive_share", self.instances.receive_share, 0.0, 0.99)?;
        within(
            "instances.ring_slots",
            f64::from(self.instances.ring_slots),
            1.0,
            1e9,
        )?;
        within("instances.threads", self.instances.threads, 0.001, 1_024.0)?;
        if let Some(cpus) = self.instances.cpus {
            within("instances.cpus", cpus, 0.001, 1_024.0)?;
        }
        for (key, range) in [
            ("instances.create_ms", self.instances.create_ms),
            ("instances.ready_ms", self.instances.ready_ms),
            ("instances.resume_ms", self.instances.resume_ms),
            ("instances.quota_ms", self.instances.quota_ms),
        ] {
            let (low, high) = range.bounds();
            within(key, low, 0.0, 3_600_000.0)?;
            within(key, high, low, 3_600_000.0)?;
        }
        for (index, action) in self.action.iter().enumerate() {
            within(&format!("action.{index}.at_s"), action.at_s, 0.0, self.duration_s)?;
        }
        if let Some(card) = &self.card {
            if self.model != Model::Event {
                let problem = "a card needs individual packets: set model = \"event\"";
                return Err(Error::value("card", problem));
            }
            card.check()?;
        }
        if let Some(cluster) = &self.cluster {
            cluster.check(self)?;
        }
        if self.model == Model::Cluster && !self.action.is_empty() {
            let problem = "actions are of one machine: write [[cluster.event]]";
            return Err(Error::value("action", problem));
        }
        if !self.place.is_empty() && self.model != Model::Fluid {
            let problem = "places are modelled with rates: set model = \"fluid\"";
            return Err(Error::value("place", problem));
        }
        site::check(self)?;
        within("queue.servers", f64::from(self.queue.servers), 1.0, 4_096.0)?;
        within("queue.actors", f64::from(self.queue.actors), 1.0, 65_536.0)?;
        within("warm_up_s", self.warm_up_s, 0.0, self.duration_s)?;
        within("queue.quantum_us", self.queue.quantum_us, 0.001, 1e9)?;
        within("queue.switch_us", self.queue.switch_us, 0.0, 1e6)?;
        if let Some(host) = &self.queue.host {
            within("queue.host.servers", f64::from(host.servers), 1.0, 4_096.0)?;
            within("queue.host.speed", host.speed, 0.001, 1e3)?;
            for (key, value) in [
                ("queue.host.move_ms", host.move_ms),
                ("queue.host.patience_ms", host.patience_ms),
                ("queue.host.settle_ms", host.settle_ms),
                ("queue.host.pause_ms", host.pause_ms),
            ] {
                within(key, value, 0.0, 1e6)?;
            }
        }
        Ok(())
    }
}
