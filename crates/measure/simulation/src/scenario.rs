//! Scenario files: what is played, with what, and what should come of it.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use crate::Error;
use crate::card::Card;
use crate::expectation::Check;

/// Longest run that is played, in seconds: eight weeks.
pub const DURATION_LIMIT_S: f64 = 8.0 * 7.0 * 86_400.0;
/// Variants that a scenario may have.
pub const VARIANTS_LIMIT: usize = 64;
/// Runs of one variant, each with its own seed.
pub const SEEDS_LIMIT: u64 = 10_000;
/// Instances that a modelled service may have.
pub const INSTANCES_LIMIT: u32 = 512;

/// A scenario as its file gives it, before a variant has changed anything.
#[derive(Clone, Debug)]
pub struct ScenarioFile {
    /// Where it was read.
    pub path: PathBuf,
    /// Everything but variants and expectation.
    base: Table,
    variants: Vec<(String, Table)>,
    expectation: Expectation,
}

/// What should come of a scenario.
#[derive(Clone, Debug)]
pub struct Expectation {
    /// In a sentence.
    pub what: String,
    /// Runs of each variant that the checks are meant for: they compare means.
    pub seeds: u64,
    /// What is checked of it.
    pub checks: Vec<Check>,
}

impl Default for Expectation {
    fn default() -> Self {
        Expectation {
            what: String::new(),
            seeds: one(),
            checks: Vec::new(),
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
}

/// Which model plays a scenario.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Model {
    /// Rates: hundreds of millions of packets per second, for hours.
    #[default]
    Fluid,
    /// Each packet or request through queues, for latency.
    Event,
}

/// One variant of a scenario, ready to be played.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// What it shows, for people.
    #[serde(default)]
    pub about: String,
    /// Where it comes from.
    #[serde(default)]
    pub source: String,
    /// How it is played.
    #[serde(default)]
    pub model: Model,
    /// For how long, in seconds of simulated time.
    pub duration_s: f64,
    /// Seconds at its beginning in which nothing is counted.
    #[serde(default)]
    pub warm_up_s: f64,
    /// Where chances begin.
    #[serde(default = "one")]
    pub seed: u64,
    /// How finely time is cut.
    #[serde(default)]
    pub step: Step,
    /// How often, and how late, counters are read.
    #[serde(default)]
    pub counters: Counters,
    /// What is orchestrated.
    pub service: Service,
    /// What its instances are.
    pub instances: Instances,
    /// What comes in.
    #[serde(default)]
    pub traffic: Vec<Traffic>,
    /// The card whose rules give packets to instances (event model only). Left out: inco's own switch.
    #[serde(default)]
    pub card: Option<Card>,
    /// The queue that the event model serves requests from.
    #[serde(default)]
    pub queue: Queue,
    /// What somebody does meanwhile.
    #[serde(default)]
    pub action: Vec<Action>,
}

fn one() -> u64 {
    1
}

/// The control loop's time steps: `min_ms` whenever something changes, then doubled step by step up to `max_ms`.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Step {
    /// The shortest, in milliseconds: the live loop's is 1.
    pub min_ms: u64,
    /// The longest, in milliseconds, at most a minute. A policy that acts at fixed times may be that much late.
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

/// How counters reach the control loop. Both 0: as the soft switch's do, at once.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Counters {
    /// They change only every so many milliseconds.
    pub every_ms: u64,
    /// They are that much older when they are read.
    pub delay_ms: u64,
}

/// The service, in the words of `inco.toml`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Service {
    /// A policy's name, or a table with `policy` and its parameters.
    pub scheduler: Value,
    /// A policy's name, or a table with `policy` and its parameters.
    pub autoscaler: Value,
    /// Packets per second that an instance is said to process. Left out: it is learned.
    #[serde(default)]
    pub capacity_pps: Option<f64>,
    /// Share of the capacity that scheduling may use.
    #[serde(default = "fit")]
    pub fit: f32,
    /// Active instances at least.
    pub min: u32,
    /// Active instances at most.
    pub max: u32,
    /// Instances kept ready beside them.
    #[serde(default)]
    pub standby: u32,
    /// Whether these are frozen.
    #[serde(default)]
    pub standby_paused: bool,
    /// How long a draining instance may keep flows, in seconds.
    #[serde(default = "drain_deadline")]
    pub drain_deadline_s: f64,
}

fn fit() -> f32 {
    0.9
}

fn drain_deadline() -> f64 {
    60.0
}

/// The modelled instances and what they share.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Instances {
    /// Packets per second of one instance with one CPU; where several are busy at once, of each: the first figure
    /// holds while one is busy, the second while two are, and the last for all counts beyond.
    pub capacity_pps: Capacities,
    /// Packets per second of all instances together; shared among them in proportion to what each would process.
    #[serde(default)]
    pub total_pps: Option<f64>,
    /// Share of a packet's cost that has to be paid even if the packet is then dropped: what makes throughput fall
    /// beyond its peak (receive livelock; Mogul and Ramakrishnan, ACM TOCS 15(3), 1997). 0: none.
    #[serde(default)]
    pub receive_share: f64,
    /// Packets that an instance's ring holds.
    #[serde(default = "ring_slots")]
    pub ring_slots: u32,
    /// From the request for an instance until its program runs, in milliseconds: a figure, or the least and the most.
    #[serde(default = "create_ms")]
    pub create_ms: Range,
    /// From there until it is ready, in milliseconds.
    #[serde(default)]
    pub ready_ms: Range,
    /// From the request to thaw a frozen instance until it runs, in milliseconds.
    #[serde(default = "resume_ms")]
    pub resume_ms: Range,
    /// Until a new CPU quota holds, in milliseconds.
    #[serde(default)]
    pub quota_ms: Range,
    /// CPUs that an instance's quota allows at first. Left out: no quota.
    #[serde(default)]
    pub cpus: Option<f64>,
    /// CPUs that an instance can use at most.
    #[serde(default = "threads")]
    pub threads: f64,
    /// Power of all instances together: `[watts with none, watts for each]`. A model, never a measurement.
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

/// One capacity, or one per count of busy instances.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Capacities {
    /// The same whatever the others do.
    One(f64),
    /// By the count of busy instances, from 1.
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

/// A figure, or one drawn evenly between two.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(untagged)]
pub enum Range {
    /// Always this.
    Exactly(f64),
    /// From the first to the second.
    Between(f64, f64),
}

impl Default for Range {
    fn default() -> Self {
        Range::Exactly(0.0)
    }
}

impl Range {
    /// The least and the most.
    pub fn bounds(self) -> (f64, f64) {
        match self {
            Range::Exactly(value) => (value, value),
            Range::Between(low, high) => (low, high),
        }
    }

    /// The value at `unit` (0 to 1) of the way.
    pub fn at(self, unit: f64) -> f64 {
        let (low, high) = self.bounds();
        low + (high - low) * unit
    }
}

/// One source of packets.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Traffic {
    /// Single flows of a constant rate.
    Flows {
        /// How many.
        count: u64,
        /// Packets per second of each.
        pps: f64,
        /// When the first one starts, in seconds.
        #[serde(default)]
        start_s: f64,
        /// Seconds between two starts; 0: all at once.
        #[serde(default)]
        interval_s: f64,
        /// Seconds that each lasts. Left out: to the end.
        #[serde(default)]
        lasts_s: Option<f64>,
        /// Whether another flow begins where one ends.
        #[serde(default)]
        repeat: bool,
        /// Whether a flow lasts until `pps` x `lasts_s` of its packets were processed, however long that takes (event
        /// model only).
        #[serde(default)]
        by_volume: bool,
        /// Spread the first starts evenly by chance over this many seconds.
        #[serde(default)]
        spread_s: f64,
        /// Factors on the rate from a time on: `[[seconds, factor], …]`.
        #[serde(default)]
        factor: Vec<(f64, f64)>,
        /// DSCP of its packets.
        #[serde(default)]
        dscp: u8,
        /// Bytes of a packet, without the 20 of preamble and gap.
        #[serde(default = "bytes")]
        bytes: u32,
    },
    /// Many flows at once, by their rates: `[[seconds, new flows per second, packets per second], …]`; between two
    /// points the values change evenly where `smooth` says so, else they hold.
    Aggregate {
        /// The points.
        points: Vec<(f64, f64, f64)>,
        /// Whether values change evenly between points.
        #[serde(default)]
        smooth: bool,
        /// Repeat the points after this many seconds.
        #[serde(default)]
        period_s: Option<f64>,
        /// How long flows live.
        #[serde(default)]
        flows: FlowMix,
        /// Factor on packets per second, drawn anew every so often: `{ every_s, share }` for ±share.
        #[serde(default)]
        noise: Option<Noise>,
        /// Short bursts on top.
        #[serde(default)]
        burst: Vec<Burst>,
        /// Bytes of a packet.
        #[serde(default = "bytes")]
        bytes: u32,
    },
    /// A file of rates per second: `second,flows,packets,…`, new flows and packets in each.
    Series {
        /// Below the folder of data.
        file: PathBuf,
        /// The first second that is played.
        #[serde(default)]
        from_s: f64,
        /// The rate that the busiest second is scaled to, in packets per second. New flows are scaled alike.
        #[serde(default)]
        peak_pps: Option<f64>,
        /// How long flows live.
        #[serde(default)]
        flows: FlowMix,
        /// Factor on packets per second, drawn anew every so often.
        #[serde(default)]
        noise: Option<Noise>,
        /// Short bursts on top.
        #[serde(default)]
        burst: Vec<Burst>,
        /// Bytes of a packet.
        #[serde(default = "bytes")]
        bytes: u32,
    },
    /// The flows of a capture: each from its first packet to its last, at its mean rate.
    Capture {
        /// Below the folder of data.
        file: PathBuf,
        /// Times are divided by this.
        #[serde(default = "one_f64")]
        speed: f64,
        /// Play it again and again.
        #[serde(default)]
        repeat: bool,
    },
    /// What a recording of a live run says came in.
    Recording {
        /// Beside the scenario's file.
        file: PathBuf,
    },
}

fn bytes() -> u32 {
    64
}

impl Traffic {
    /// Bytes of a packet; the least there are where the source does not say.
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

/// How long the flows of an aggregate live.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(untagged)]
pub enum FlowMix {
    /// They live for one second on average.
    #[default]
    Default,
    /// Lengths in packets from a fitted mixture, at a constant pace.
    Mixture {
        /// Below the folder of data.
        mixture: PathBuf,
        /// Packets per second of a flow.
        pace_pps: f64,
    },
    /// Sizes in bytes from a published distribution (`bytes probability` on each line), at a constant pace.
    Cdf {
        /// Below the folder of data.
        cdf: PathBuf,
        /// Packets per second of a flow.
        pace_pps: f64,
    },
    /// Classes: `[[share of new flows, mean life in seconds, weight of one flow's rate], …]`.
    Classes {
        /// The classes.
        classes: Vec<(f64, f64, f64)>,
    },
}

/// A factor on a rate that is drawn anew again and again.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Noise {
    /// Seconds between two draws.
    pub every_s: f64,
    /// Evenly within 1 ± this.
    pub share: f64,
}

/// Short bursts at times of chance.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Burst {
    /// Seconds from one burst's start to the next one's.
    pub every_s: Range,
    /// How long one lasts, in milliseconds.
    pub length_ms: Range,
    /// Rate in a burst, as a multiple of the rate at its start.
    pub factor: Range,
    /// Milliseconds in which it rises evenly.
    #[serde(default)]
    pub rise_ms: f64,
    /// What makes it: `"packets"` (the flows that there are send more) or `"flows"` (new flows come, and end with it).
    #[serde(default)]
    pub of: BurstOf,
    /// From here, in seconds.
    #[serde(default)]
    pub from_s: f64,
    /// To here, in seconds. Left out: the end.
    #[serde(default)]
    pub to_s: Option<f64>,
}

/// What a burst is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BurstOf {
    /// The flows that there are send more.
    #[default]
    Packets,
    /// New flows come, and end with it.
    Flows,
}

/// The queue of the event model.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Queue {
    /// In which order requests are served.
    pub discipline: Discipline,
    /// Requests served at once by one instance.
    pub servers: u32,
    /// How long one takes.
    pub service: Work,
    /// The time that deficit round-robin gives each actor per round, in microseconds.
    pub quantum_us: f64,
    /// Cost of turning to another actor, in microseconds.
    pub switch_us: f64,
    /// The hybrid's threshold on the tail (mean plus three deviations of an actor's response), in microseconds.
    pub tail_threshold_us: f64,
    /// Share below the threshold at which an actor is taken back into the first queue.
    pub hysteresis: f64,
    /// Actors that requests are for.
    pub actors: u32,
}

impl Default for Queue {
    fn default() -> Self {
        Queue {
            discipline: Discipline::Fcfs,
            servers: 1,
            service: Work::Capacity,
            quantum_us: 10.0,
            switch_us: 0.0,
            tail_threshold_us: 50.0,
            hysteresis: 0.1,
            actors: 1,
        }
    }
}

/// The order in which the event model serves requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Discipline {
    /// First come, first served, by whichever server is free.
    #[default]
    Fcfs,
    /// Deficit round-robin over actors (Shreedhar and Varghese, SIGCOMM 1995).
    Drr,
    /// iPipe's: actors with a low dispersion first come, first served, the others by deficit round-robin.
    Hybrid,
}

/// How long a request takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Work {
    /// One over the instance's capacity, always.
    #[default]
    Capacity,
    /// One over the instance's capacity on average, exponentially distributed.
    CapacityExponential,
    /// Exponential.
    Exponential {
        /// Mean, in microseconds.
        mean_us: f64,
    },
    /// One of two.
    Bimodal {
        /// The short one, in microseconds.
        short_us: f64,
        /// The long one, in microseconds.
        long_us: f64,
        /// Share of long ones.
        long_share: f64,
        /// Whether an actor has all its requests short or all long.
        #[serde(default)]
        by_actor: bool,
    },
}

/// Something that somebody does.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Action {
    /// When, in seconds.
    pub at_s: f64,
    /// So many active instances by hand.
    #[serde(default)]
    pub scale: Option<u32>,
    /// The program of the instance with this place among the active ones (from 0) is killed.
    #[serde(default)]
    pub kill: Option<usize>,
}

impl ScenarioFile {
    /// Reads a scenario.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::Scenario`] and [`Error::Value`].
    pub fn load(path: &Path) -> Result<ScenarioFile, Error> {
        let text = std::fs::read_to_string(path).map_err(|source| Error::Read {
            path: path.to_owned(),
            source,
        })?;
        ScenarioFile::parse(path, &text)
    }

    /// Reads a scenario from text; `path` is where it is said to be from.
    ///
    /// # Errors
    /// [`Error::Scenario`] and [`Error::Value`].
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
                        "variant.{name}: a table of changes is wanted, not {other}"
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
                let checks = text.checks.iter().map(|check| Check::parse(check));
                Expectation {
                    what: text.what,
                    seeds: text.seeds,
                    checks: checks.collect::<Result<_, _>>()?,
                }
            }
        };
        let file = ScenarioFile {
            path: path.to_owned(),
            base,
            variants,
            expectation,
        };
        // Every variant must be one, whichever is asked for.
        for (name, _) in &file.variants {
            file.variant(name)?;
        }
        Ok(file)
    }

    /// The names of its variants in alphabetical order; one that is empty where it has none.
    pub fn variants(&self) -> impl Iterator<Item = &str> {
        self.variants.iter().map(|(name, _)| name.as_str())
    }

    /// What should come of it.
    pub fn expectation(&self) -> &Expectation {
        &self.expectation
    }

    /// Sets a key of every variant, as `service.autoscaler.target=0.5`; the value is TOML, or text where it is none.
    ///
    /// # Errors
    /// [`Error::Value`] where there is no such key or it does not take such a value.
    pub fn set(&mut self, assignment: &str) -> Result<(), Error> {
        let Some((key, value)) = assignment.split_once('=') else {
            return Err(Error::value(assignment, "write KEY=VALUE, as in service.max=12"));
        };
        let value = value_of(value.trim());
        let keys: Vec<&str> = key.trim().split('.').collect();
        put(&mut self.base, &keys, value.clone()).map_err(|problem| Error::value(key.trim(), problem))?;
        // What a variant says itself would win otherwise.
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

    /// Leaves out what should come of it.
    pub fn expect_nothing(&mut self) {
        self.expectation = Expectation::default();
    }

    /// Leaves only the variants named, and the checks that are about no other.
    ///
    /// # Errors
    /// [`Error::Value`] where it has no such variant.
    pub fn keep(&mut self, names: &[String]) -> Result<(), Error> {
        if let Some(name) = names
            .iter()
            .find(|name| !self.variants().any(|v| v == name.as_str()))
        {
            let known: Vec<&str> = self.variants().collect();
            return Err(Error::value(
                "variant",
                format!("there is no {name:?}; there are {}", known.join(", ")),
            ));
        }
        self.variants.retain(|(name, _)| names.contains(name));
        let checks = &mut self.expectation.checks;
        checks.retain(|check| {
            check
                .variants()
                .all(|variant| names.iter().any(|name| name == variant))
        });
        Ok(())
    }

    /// One variant, as it is played.
    ///
    /// # Errors
    /// [`Error::Scenario`] and [`Error::Value`].
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

/// A value as the command line gives it: TOML, or text where it is none.
fn value_of(text: &str) -> Value {
    toml::from_str::<Table>(&format!("v = {text}"))
        .ok()
        .and_then(|mut table| table.remove("v"))
        .unwrap_or_else(|| Value::String(text.to_owned()))
}

/// Puts `changes` over `base`: tables key by key, everything else whole. What becomes another policy or kind loses the
/// parameters of the one before.
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

/// Whether what a variant changes decides over a key, by itself or by what holds it: a policy's name or a list, written
/// anew, comes without what was set below.
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
                // A list's place, or a policy's name that gets parameters.
                Value::Array(list) => match (rest, key) {
                    ([place, rest @ ..], _) => {
                        let at: usize = place
                            .parse()
                            .map_err(|_| format!("{key} is a list: {place:?} is no place in it"))?;
                        let length = list.len();
                        match list.get_mut(at) {
                            Some(Value::Table(inner)) if !rest.is_empty() => put(inner, rest, value),
                            Some(there) if rest.is_empty() => {
                                *there = value;
                                Ok(())
                            }
                            _ => Err(format!("{key} has places 0 to {}", length.saturating_sub(1))),
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

/// A policy's name and parameters from its two forms.
pub(crate) fn policy_of(key: &str, value: &Value) -> Result<(String, Table), Error> {
    match value {
        Value::String(name) => Ok((name.clone(), Table::new())),
        Value::Table(table) => {
            let mut table = table.clone();
            match table.remove("policy") {
                Some(Value::String(name)) => Ok((name, table)),
                _ => Err(Error::value(format!("{key}.policy"), "a policy's name is wanted")),
            }
        }
        other => Err(Error::value(
            key,
            format!("a policy's name or a table with `policy` is wanted, not {other}"),
        )),
    }
}

impl Scenario {
    fn check(&self) -> Result<(), Error> {
        let within = |key: &str, value: f64, low: f64, high: f64| {
            if value.is_finite() && (low..=high).contains(&value) {
                Ok(())
            } else {
                Err(Error::value(
                    key,
                    format!("{value} is not within {low} to {high}"),
                ))
            }
        };
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
                "an empty list; write a figure in packets per second",
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
                let problem = "a card is for each packet: write model = \"event\"";
                return Err(Error::value("card", problem));
            }
            card.check(within)?;
        }
        within("queue.servers", f64::from(self.queue.servers), 1.0, 4_096.0)?;
        within("queue.actors", f64::from(self.queue.actors), 1.0, 65_536.0)?;
        within("warm_up_s", self.warm_up_s, 0.0, self.duration_s)?;
        within("queue.quantum_us", self.queue.quantum_us, 0.001, 1e9)?;
        within("queue.switch_us", self.queue.switch_us, 0.0, 1e6)?;
        Ok(())
    }
}
