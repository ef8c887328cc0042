//! Experiment 20 (iPipe, figure 16): the schedulers at low and at high dispersion. In the simulator with 2, 8 and 12
//! cores; and with the runtime on two threads, whose work is spinning for a declared time.
//!
//! The arrivals of a round are drawn before it begins, and are the same for all policies. No thread generates them: a
//! core that looks outside finds those whose time has come. Response times count from those times.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use actor_runtime::{
    Actor, ActorId, Address, Context, CoreId, Group, Idle, Message, Outside, PolicyName, Progress, Queues,
    Registration, Runtime, Settings,
};
use anyhow::{Context as _, Result, ensure};
use model::{Nanos, Random};
use rustix::thread::CpuSet;
use simulation::{ScenarioFile, ScenarioResult};

use super::{Outcome, Row};
use crate::contestant::median;

const NOTE: &str = "Simulated: the runtime's scheduler over modelled cores. Threads: two cores of this machine, one for \
    the line and one for the round once the hybrid has parted them; actors spin for a declared time. Nothing interrupts \
    a native actor: these look at `should_yield` while they spin, and only so the policy preemptive has an effect. iPipe's \
    cards cannot interrupt at all, so it has no figure for that.";

const SCENARIO: &str = include_str!("../../../../../scenarios/actor-schedulers.toml");

const CORES: u16 = 2;
const ACTORS: u32 = 64;
/// As in the scenario, for two cores.
const QUANTUM: Nanos = Nanos::from_micros(40);
/// Above the tail of the line at low dispersion and below that at high dispersion, as iPipe's thresholds are. Both are
/// longer than in the scenario, since the runtime and the machine take their part of the cores.
const TAIL_THRESHOLD: Nanos = Nanos::from_micros(2_500);
const HYSTERESIS: f64 = 0.1;
const LOAD: f64 = 0.9;
const ROUNDS: u64 = 5;
/// How long messages arrive, and from when on they count: the hybrid needs 50 messages of an actor before it moves it.
const LENGTH: Nanos = Nanos::from_millis(720);
const WARM_UP: Nanos = Nanos::from_millis(350);
/// Between two runs: threads in real time may use 95 % of a second.
const PAUSE: Duration = Duration::from_millis(250);
/// At low dispersion, for what the machine adds.
const MARGIN: f64 = 1.15;

/// Run times of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dispersion {
    /// Exponential with mean 32 us.
    Low,
    /// Of 32 actors, one takes 800 us, the others 35.
    High,
}

impl Dispersion {
    fn word(self) -> &'static str {
        match self {
            Dispersion::Low => "low",
            Dispersion::High => "high",
        }
    }

    fn is_long(self, actor: u32) -> bool {
        self == Dispersion::High && actor >= ACTORS - ACTORS / 32
    }

    fn mean_us(self) -> f64 {
        match self {
            Dispersion::Low => 32.0,
            Dispersion::High => 35.0 + (800.0 - 35.0) / 32.0,
        }
    }

    fn work(self, actor: u32, random: &mut Random) -> Nanos {
        match self {
            Dispersion::Low => Nanos((random.exponential() * 32e3) as u64),
            Dispersion::High if self.is_long(actor) => Nanos::from_micros(800),
            Dispersion::High => Nanos::from_micros(35),
        }
    }
}

/// Measures it.
pub(super) fn measure() -> Result<Outcome> {
    let mut rows = simulated()?;
    rows.extend(threads(ROUNDS, LENGTH)?);
    Ok(Outcome {
        rows,
        note: NOTE.into(),
    })
}

/// The rows of the scenario: each check of percentiles, as the ratio of its sides.
fn simulated() -> Result<Vec<Row>> {
    let path = Path::new("scenarios/actor-schedulers.toml");
    let file = ScenarioFile::parse(path, SCENARIO).context("the scenario of schedulers")?;
    let result = simulation::run(&file, None, Path::new("data"), &mut |_, _, _| ())?;
    let means = result.means();
    let p99 = |variant: String, suffix: &str| -> Result<f64> {
        let name = format!("latency_us_p99{suffix}");
        let value = means.get(&variant).and_then(|metrics| metrics.get(&name));
        value.copied().with_context(|| format!("{variant} has no {name}"))
    };
    let mut rows = Vec::new();
    for servers in [2, 8, 12] {
        let of = |dispersion: Dispersion, policy: &str, suffix: &str| {
            p99(format!("{}-{servers}-{policy}", dispersion.word()), suffix)
        };
        let low = |policy| of(Dispersion::Low, policy, "");
        let high = |policy| of(Dispersion::High, policy, "_short");
        let name = format!("simulated, {servers} cores");
        rows.extend(judged(&name, 1.05, low, high)?);
    }
    ensure!(
        rows.iter().all(|row| row.value.is_finite()),
        "a figure is missing: {}",
        checks(&result)
    );
    Ok(rows)
}

fn checks(result: &ScenarioResult) -> String {
    let texts = result.checks.iter().map(|check| check.check.as_str());
    texts.collect::<Vec<_>>().join("; ")
}

/// The five figures of one set of cores, from the 99th percentiles of the policies.
fn judged(
    name: &str,
    margin: f64,
    low: impl Fn(&'static str) -> Result<f64>,
    high: impl Fn(&'static str) -> Result<f64>,
) -> Result<Vec<Row>> {
    let row = |what: &str, value: f64| Row::plain(format!("{name}: {what}"), value, "ratio of p99");
    Ok(vec![
        row("low dispersion, hybrid / fcfs", low("hybrid")? / low("fcfs")?)
            .at_most(margin)
            .paper("about 1"),
        row("low dispersion, hybrid / drr", low("hybrid")? / low("drr")?)
            .below(1.0)
            .paper("0.90 (LiquidIO), 0.78 (Stingray)"),
        row(
            "high dispersion, short messages, hybrid / fcfs",
            high("hybrid")? / high("fcfs")?,
        )
        .at_most(0.7)
        .paper("0.31, 0.39, of all messages"),
        row(
            "high dispersion, short messages, hybrid / drr",
            high("hybrid")? / high("drr")?,
        )
        .at_most(1.0)
        .paper("0.89, 0.87, of all messages"),
        row(
            "high dispersion, short messages, preemptive / hybrid",
            high("preemptive")? / high("hybrid")?,
        )
        .below(1.0),
    ])
}

/// An actor whose work is to spin.
struct Spins;

impl Actor for Spins {
    /// The body holds what is left of the work, in nanoseconds; then the response time.
    fn exec(&mut self, message: &mut Message, context: &mut Context<'_>) -> Progress {
        let left = number(&message.body);
        let until = context.now() + Nanos(left);
        loop {
            let now = clock::monotonic();
            if now >= until {
                message.body.clear();
                let response = now.since(message.arrived);
                message.body.extend(response.0.to_le_bytes());
                let body = std::mem::take(&mut message.body);
                context.send(Address::Outside(u64::from(context.me().0)), 0, body);
                return Progress::Done;
            }
            if context.should_yield() {
                message.body.clear();
                message.body.extend(until.since(now).0.to_le_bytes());
                return Progress::Yielded;
            }
        }
    }
}

fn number(body: &[u8]) -> u64 {
    body.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// A message to come.
#[derive(Clone, Copy, Debug)]
struct Arrival {
    at: Nanos,
    actor: u32,
    work: Nanos,
}

/// Draws the arrivals of a round: Poisson.
fn schedule(dispersion: Dispersion, seed: u64, length: Nanos) -> Vec<Arrival> {
    let mut random = Random::new(seed);
    let gap_ns = dispersion.mean_us() * 1e3 / (LOAD * f64::from(CORES));
    let mut at = 0.0;
    let mut arrivals = Vec::new();
    loop {
        at += random.exponential() * gap_ns;
        if at as u64 >= length.0 {
            return arrivals;
        }
        let actor = random.below(u64::from(ACTORS)) as u32;
        let work = dispersion.work(actor, &mut random);
        arrivals.push(Arrival {
            at: Nanos(at as u64),
            actor,
            work,
        });
    }
}

/// What has been served: response times of messages that arrived after the warm-up.
#[derive(Default)]
struct Served {
    all: usize,
    /// Of short ones, or of all at low dispersion.
    responses: Vec<Nanos>,
}

fn lock(served: &Mutex<Served>) -> MutexGuard<'_, Served> {
    served.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Arrivals by a schedule, and the answers to them.
struct Scheduled {
    dispersion: Dispersion,
    began: Nanos,
    all: usize,
    arrivals: std::vec::IntoIter<Arrival>,
    served: Arc<Mutex<Served>>,
}

impl Outside for Scheduled {
    fn poll(&mut self, now: Nanos, into: &mut Vec<Message>) {
        while let Some(next) = self.arrivals.as_slice().first()
            && self.began + next.at <= now
        {
            into.push(Message::new(
                Address::Actor(ActorId(next.actor)),
                Address::Outside(0),
                0,
                next.work.0.to_le_bytes().to_vec(),
                self.began + next.at,
            ));
            self.arrivals.next();
        }
        // In real time the cores leave no CPU to the thread that waits for the end.
        if self.arrivals.as_slice().is_empty() && lock(&self.served).all == self.all {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn send(&mut self, messages: &mut Vec<Message>) {
        let mut served = lock(&self.served);
        for message in messages.drain(..) {
            served.all += 1;
            let Address::Outside(actor) = message.to else {
                continue;
            };
            let response = Nanos(number(&message.body));
            let counts = message.arrived.since(self.began) >= WARM_UP;
            if counts && !self.dispersion.is_long(actor as u32) {
                served.responses.push(response);
            }
        }
    }
}

/// What a run showed.
struct RunResult {
    p99_us: f64,
    /// Actors that ended in the round.
    in_round: Vec<u32>,
    yielded: u64,
}

/// Runs a policy over a schedule.
fn run(policy: PolicyName, dispersion: Dispersion, arrivals: Vec<Arrival>) -> Result<RunResult> {
    let all = arrivals.len();
    let served = Arc::new(Mutex::new(Served::default()));
    let settings = Settings {
        policy,
        queues: Queues::Shared,
        cores: CORES,
        actors_limit: ACTORS,
        quantum: QUANTUM,
        tail_threshold: TAIL_THRESHOLD,
        hysteresis: HYSTERESIS,
        idle: Idle::Poll,
    };
    let outside = Scheduled {
        dispersion,
        began: clock::monotonic() + Nanos::from_millis(5),
        all,
        arrivals: arrivals.into_iter(),
        served: Arc::clone(&served),
    };
    let runtime = Runtime::new(&settings, Box::new(outside));
    for actor in 0..ACTORS {
        // They have no state, and serve on any core, as the scenario's actors do.
        let instances = (0..CORES).map(|_| Box::new(Spins) as Box<dyn Actor>).collect();
        let of = Registration::parallel("spins", instances).mailbox_limit(1_000_000);
        runtime.register(ActorId(actor), of)?;
    }
    let threads = runtime.start(to_itself)?;
    let ends = clock::monotonic() + Nanos::from_secs(20);
    while lock(&served).all < all {
        ensure!(clock::monotonic() < ends, "messages were not served");
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(threads);
    let mut served = lock(&served);
    ensure!(served.all == all, "{} answers to {all} messages", served.all);
    let responses = &mut served.responses;
    ensure!(!responses.is_empty(), "no message arrived after the warm-up");
    responses.sort_unstable();
    let rows = runtime.actors();
    Ok(RunResult {
        p99_us: responses[responses.len() * 99 / 100].0 as f64 / 1e3,
        in_round: (rows.iter())
            .filter(|row| row.group == Group::Drr)
            .map(|row| row.actor.0)
            .collect(),
        yielded: rows.iter().map(|row| row.counts.yielded).sum(),
    })
}

/// Gives a core's thread a CPU, and real-time priority where that is permitted: other programs would add to the tail.
fn to_itself(core: CoreId) {
    let mut cpus = CpuSet::new();
    cpus.set(core.index());
    // Where there are fewer CPUs, threads share them.
    let _shared = rustix::thread::sched_setaffinity(None, &cpus);
    let _ordinary = orchestrator::raise_priority();
}

/// The rows of the threads: medians of the rounds.
fn threads(rounds: u64, length: Nanos) -> Result<Vec<Row>> {
    let mut p99s: Vec<(Dispersion, &'static str, f64)> = Vec::new();
    let (mut parted, mut interrupted) = (0, 0);
    for round in 0..rounds {
        for (dispersion, policies) in [
            (Dispersion::Low, &PolicyName::ALL[..3]),
            (Dispersion::High, &PolicyName::ALL[..]),
        ] {
            let arrivals = schedule(dispersion, round, length);
            for &policy in policies {
                let result = run(policy, dispersion, arrivals.clone())?;
                p99s.push((dispersion, word(policy), result.p99_us));
                interrupted += result.yielded;
                let has_parted = result.in_round.iter().all(|actor| dispersion.is_long(*actor));
                parted += u64::from(
                    policy == PolicyName::Hybrid
                        && dispersion == Dispersion::High
                        && has_parted
                        && !result.in_round.is_empty(),
                );
                std::thread::sleep(PAUSE);
            }
        }
    }
    let of = |dispersion: Dispersion, policy: &'static str| -> Result<f64> {
        let its = p99s.iter().filter(|of| of.0 == dispersion && of.1 == policy);
        let values: Vec<f64> = its.map(|of| of.2).collect();
        ensure!(!values.is_empty(), "{policy} was not measured");
        Ok(median(values))
    };
    let mut rows = Vec::new();
    for (dispersion, policies) in [
        (Dispersion::Low, &PolicyName::ALL[..3]),
        (Dispersion::High, &PolicyName::ALL[..]),
    ] {
        for &policy in policies {
            let case = format!(
                "threads: {} dispersion, {}{}",
                dispersion.word(),
                word(policy),
                if dispersion == Dispersion::High {
                    ", short messages"
                } else {
                    ""
                }
            );
            rows.push(Row::plain(case, of(dispersion, word(policy))?, "us, p99"));
        }
    }
    rows.push(Row::plain(
        "threads: times that a message yielded, in all rounds",
        interrupted as f64,
        "times",
    ));
    rows.push(Row::plain(
        "threads: high dispersion, rounds at whose end the hybrid has only long actors in the round",
        parted as f64,
        "rounds",
    ));
    rows.extend(judged(
        "threads",
        MARGIN,
        |policy| of(Dispersion::Low, policy),
        |policy| of(Dispersion::High, policy),
    )?);
    Ok(rows)
}

fn word(policy: PolicyName) -> &'static str {
    match policy {
        PolicyName::Fcfs => "fcfs",
        PolicyName::Drr => "drr",
        PolicyName::Hybrid => "hybrid",
        PolicyName::Preemptive => "preemptive",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_have_the_load_and_repeat() {
        for dispersion in [Dispersion::Low, Dispersion::High] {
            let length = Nanos::from_secs(4);
            let arrivals = schedule(dispersion, 1, length);
            let work: f64 = arrivals.iter().map(|of| of.work.0 as f64).sum();
            let load = work / length.0 as f64 / f64::from(CORES);
            assert!((load / LOAD - 1.0).abs() < 0.05, "{dispersion:?}: {load}");
            assert!(arrivals.is_sorted_by_key(|of| of.at));
            let again = schedule(dispersion, 1, length);
            assert!(
                arrivals
                    .iter()
                    .zip(&again)
                    .all(|(a, b)| (a.at, a.work) == (b.at, b.work))
            );
        }
    }

    #[test]
    fn every_message_of_a_schedule_is_answered_and_long_ones_yield_where_the_policy_interrupts() {
        let length = WARM_UP + Nanos::from_millis(20);
        let arrivals = schedule(Dispersion::High, 3, length);
        assert!(arrivals.iter().any(|of| of.work > Nanos::from_micros(700)));
        for policy in PolicyName::ALL {
            let result = run(policy, Dispersion::High, arrivals.clone()).unwrap();
            assert!(result.p99_us > 0.0);
            assert_eq!(result.yielded > 0, policy == PolicyName::Preemptive, "{policy:?}");
        }
    }
}
