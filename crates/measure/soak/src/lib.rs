//! `inco soak`: minutes of traffic and random faults against real incos, with every promise checked after each fault.
//!
//! 1. A [`bed`] is an inco of its own with engine, switch and traffic; the run has one for each pair of them.
//! 2. A [`faults::Fault`] harms a bed, says what that explains, and heals it. The [`plan`] is their sequence, from
//!    the seed alone.
//! 3. After each fault all beds are brought to rest; [`check`] compares what generator and inco say before and after.
//! 4. [`actors`] is a run of its own: the applications made of actors under faults.
//! 5. The [`guard`] is a process that removes everything, however the run ends.
#![forbid(unsafe_code)]
// The print macros panic if the output is closed; `display::output` does not.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod actors;
mod args;
mod bed;
mod check;
mod faults;
mod follower;
mod footprint;
mod garbage;
mod guard;
mod network;
mod plan;
mod process;
mod verdict;
mod web;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use display::output::{self, Interrupted, WrongUsage};
use rustix::rand::{GetRandomFlags, getrandom};
use testbed::Interrupt;

pub use args::{ActorsArgs, Other, SoakArgs};
use bed::{Bed, RECOVERY_LIMIT};
use check::{Excuse, Findings, Reading, drops_between, judge};
use faults::{FAULTS, Fault, Reach};
use footprint::{Footprint, Leaks};
use guard::Guard;
use network::in_words;
use plan::{Plan, Step};
use verdict::Verdict;

/// Undisturbed traffic between two faults.
const PAUSE: Duration = Duration::from_millis(700);
/// Traffic before the first reading.
const WARM_UP: Duration = Duration::from_secs(3);
/// No fault begins later than this before the end.
const LAST_FAULT: Duration = Duration::from_secs(6);
/// Longest time of traffic beyond the minutes: start of the beds, recovery and rest after the last fault.
const MARGIN: Duration = Duration::from_secs(180);
/// How the reason begins for which inco gives up an instance that takes no packet in time. It may be the machine that
/// has no CPU for it, whatever the fault is.
const STALLED: &str = "it stalled";
/// How often Ctrl-C is looked for in a wait.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Runs the soak.
///
/// # Errors
/// Returns an error if the machine lacks something, if it was interrupted, or if a check failed.
pub fn run(args: &SoakArgs) -> Result<()> {
    if let Some(Other::Actors(args)) = &args.other {
        return actors::run(args);
    }
    if let Some(directory) = &args.guard {
        return guard::run(directory);
    }
    if args.list {
        for fault in FAULTS {
            output::line(format!("{:<18} {}", fault.name(), fault.about()))?;
        }
        return Ok(());
    }
    if !rustix::process::geteuid().is_root() {
        return Err(WrongUsage("inco: soak needs root: run it with sudo".to_owned()).into());
    }
    for name in &args.bed {
        name.check()?;
    }
    images::find_inco_nf()?;
    let chosen: Vec<&'static dyn Fault> = FAULTS
        .iter()
        .copied()
        .filter(|fault| args.fault.is_empty() || args.fault.contains(&fault.name()))
        .filter(|fault| !args.without.contains(&fault.name()))
        .collect();
    let seed = match args.seed {
        Some(seed) => seed,
        None => random_seed()?,
    };
    let interrupt = Interrupt::listen()?;
    let directory = std::env::temp_dir().join(format!("inco-soak-{}.d", std::process::id()));
    std::fs::create_dir(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
    let mut guard = Guard::start(&directory)?;
    let mut run = Run {
        args,
        chosen,
        interrupt,
        beds: Vec::new(),
        readings: Vec::new(),
        gone: vec![BTreeSet::new(); args.bed.len()],
        verdict: Verdict {
            minutes: args.minutes,
            seed,
            ..Verdict::default()
        },
        problems: Vec::new(),
        started: Instant::now(),
    };
    let result = run.whole(&directory, &mut guard);
    match result {
        // The run is not judged: somebody has ended it.
        Err(error) if error.is::<Interrupted>() => {
            guard.finish()?;
            return Err(error);
        }
        Err(error) => run.problem(&format!("the run ended early: {error:#}"))?,
        Ok(()) => {}
    }
    let Run {
        mut verdict,
        problems,
        ..
    } = run;
    let left = guard.finish()?;
    for line in &left {
        output::line(format!("! the run left {line}"))?;
    }
    verdict.ok = verdict.counts_are_clean()
        && problems.is_empty()
        && left.is_empty()
        && verdict
            .leaks
            .is_none(Duration::from_secs(60 * u64::from(args.minutes)));
    if args.json {
        output::json(&verdict, false)?;
    } else {
        output::text(&verdict.text())?;
    }
    match verdict.ok {
        true => Ok(()),
        false => bail!(
            "the soak failed: {} lines above begin with !; `--seed {seed}` gives the same faults again",
            problems.len() + left.len()
        ),
    }
}

fn random_seed() -> Result<u64> {
    let mut bytes = [0; 4];
    getrandom(&mut bytes, GetRandomFlags::empty()).context("cannot get random bytes")?;
    Ok(u32::from_ne_bytes(bytes).into())
}

/// A run under way.
struct Run<'a> {
    args: &'a SoakArgs,
    chosen: Vec<&'static dyn Fault>,
    interrupt: Interrupt,
    beds: Vec<Bed>,
    /// Of each bed, after the last fault.
    readings: Vec<Reading>,
    /// Of each bed, the instances that faults have explained.
    gone: Vec<BTreeSet<u32>>,
    verdict: Verdict,
    problems: Vec<String>,
    started: Instant,
}

impl Run<'_> {
    /// From the start of the beds to their stop.
    fn whole(&mut self, directory: &std::path::Path, guard: &mut Guard) -> Result<()> {
        let started = self.start_beds(directory, guard);
        let result = started.and_then(|()| self.faults(guard));
        if let Some(to) = &self.args.logs {
            for bed in &self.beds {
                bed.copy_logs(to)?;
            }
        }
        let stopped: Vec<Result<()>> = std::thread::scope(|scope| {
            let stopping: Vec<_> = self
                .beds
                .iter_mut()
                .map(|bed| scope.spawn(|| bed.stop()))
                .collect();
            stopping.into_iter().map(joined).collect()
        });
        let panics: Vec<String> = self.beds.iter().flat_map(Bed::panics).collect();
        // Ends engines and switches.
        self.beds.clear();
        result?;
        for error in stopped.into_iter().filter_map(Result::err) {
            self.problem(&format!("{error:#}"))?;
        }
        for line in panics {
            self.problem(&line)?;
        }
        Ok(())
    }

    fn start_beds(&mut self, directory: &std::path::Path, guard: &mut Guard) -> Result<()> {
        let seed = self.verdict.seed;
        output::line(format!(
            "inco soak: seed {seed}, {} min, {} faults in {}",
            self.args.minutes,
            self.chosen.len(),
            self.args
                .bed
                .iter()
                .map(|name| name.word())
                .collect::<Vec<_>>()
                .join(", "),
        ))?;
        let duration = Duration::from_secs(60 * u64::from(self.args.minutes)) + MARGIN;
        for group in self.args.bed.iter().filter_map(|name| name.docker_group()) {
            guard.group(&group)?;
        }
        for name in self.args.bed.iter().filter(|name| name.is_web()) {
            guard.namespace(&web::names(*name).0)?;
        }
        let started: Vec<Result<Bed>> = std::thread::scope(|scope| {
            let starting: Vec<_> = self
                .args
                .bed
                .iter()
                .map(|name| {
                    let (at, interrupt) = (directory.join(name.word()), self.interrupt.clone());
                    scope.spawn(move || Bed::start(*name, at, seed, duration, interrupt))
                })
                .collect();
            starting.into_iter().map(joined).collect()
        });
        let mut failed = None;
        for bed in started {
            match bed {
                Ok(bed) => self.beds.push(bed),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// All faults, and what has leaked by them.
    fn faults(&mut self, guard: &mut Guard) -> Result<()> {
        let beds: Vec<Vec<usize>> = self
            .chosen
            .iter()
            .map(|fault| {
                let suits = |bed: &usize| fault.suits(self.beds[*bed].name);
                (0..self.beds.len()).filter(suits).collect()
            })
            .collect();
        let plan = Plan::new(self.verdict.seed, beds);
        self.started = Instant::now();
        self.wait(WARM_UP)?;
        self.rest()?;
        let (first, began) = (self.footprint()?, Instant::now());
        self.go_on()?;
        let end = Duration::from_secs(60 * u64::from(self.args.minutes)).saturating_sub(LAST_FAULT);
        for (number, step) in plan.enumerate() {
            self.wait(PAUSE)?;
            if self.started.elapsed() > end {
                break;
            }
            self.step(number + 1, step, guard)?;
        }
        self.rest()?;
        let last = self.footprint()?;
        self.verdict.leaks = Leaks::between(&first, &last, began.elapsed());
        output::line(format!("at the beginning {first:?}\nat the end       {last:?}"))?;
        if !self.verdict.leaks.is_none(began.elapsed()) {
            let leaks = self.verdict.leaks;
            self.problem(&format!("something leaks: {leaks:?}"))?;
        }
        Ok(())
    }

    fn footprint(&mut self) -> Result<Footprint> {
        let mut sum = Footprint::default();
        for bed in &mut self.beds {
            sum += bed.footprint()?;
        }
        Ok(sum)
    }

    /// One fault: harm, heal, wait until all is well, check.
    fn step(&mut self, number: usize, step: Step, guard: &mut Guard) -> Result<()> {
        let fault = self.chosen[step.fault];
        let mut random = step.random;
        let injected = match fault.inject(&mut self.beds[step.bed], &mut random, guard) {
            Ok(injected) => injected,
            Err(error) => return self.problem(&format!("{} could not be injected: {error:#}", fault.name())),
        };
        let waited = self.wait(injected.lasts);
        let healed = match injected.heal {
            Some(heal) => heal(&mut self.beds[step.bed], guard),
            None => Ok(()),
        };
        waited?;
        let mut wrong = Vec::new();
        wrong.extend(healed.err().map(|error| format!("not healed: {error:#}")));
        let none = Excuse::default();
        for bed in 0..self.beds.len() {
            let excuse = match fault.reach() {
                Reach::Machine => &injected.excuse,
                Reach::Bed if bed == step.bed => &injected.excuse,
                Reach::Bed => &none,
            };
            self.tend(bed, excuse, &mut wrong)?;
        }
        let before = std::mem::take(&mut self.readings);
        self.rest()?;
        let mut line = Findings::default();
        let (mut outage, mut notes) = (0, String::new());
        for (index, bed) in self.beds.iter().enumerate() {
            let struck = fault.reach() == Reach::Machine || index == step.bed;
            let named = bed.named();
            let mut excuse = if struck {
                injected.excuse.clone()
            } else {
                none.clone()
            };
            for (instance, reason) in named.iter().filter(|(_, reason)| reason.starts_with(STALLED)) {
                if excuse.instances.insert(*instance) {
                    notes += &format!("; {} instance {instance}: {reason}", bed.name.word());
                }
            }
            let found = judge(
                &before[index],
                &self.readings[index],
                &named.keys().copied().collect(),
                &excuse,
                &mut self.gone[index],
            );
            if !found.is_clean() {
                let drops = in_words(&drops_between(&before[index], &self.readings[index]));
                wrong.push(format!(
                    "{}: {found:?}; inco dropped: {drops}; before {:?}, now {:?}, gap {}; events: {}; failed: {:?}",
                    bed.name.word(),
                    before[index].accounting,
                    self.readings[index].accounting,
                    self.readings[index].accounting.gap(),
                    named
                        .iter()
                        .map(|(instance, reason)| format!("instance {instance}: {reason}"))
                        .collect::<Vec<_>>()
                        .join("; "),
                    bed.network()?.causes(),
                ));
            }
            self.verdict.add(&found);
            if struck {
                line.lost += found.lost;
                line.moved += found.moved;
                outage = outage.max(bed.network()?.longest_outage_ms());
            }
        }
        *self.verdict.faults.entry(fault.name()).or_default() += 1;
        let longest = self.verdict.longest_outage_ms.entry(fault.name()).or_default();
        *longest = outage.max(*longest);
        let at = self.started.elapsed().as_secs();
        output::line(format!(
            "{number:>4}  {:02}:{:02}:{:02}  {:<12}  {:<18}  outage {outage:>5} ms, lost {}, moved {}: {}{notes}",
            at / 3600,
            at / 60 % 60,
            at % 60,
            match fault.reach() {
                Reach::Machine => "all",
                Reach::Bed => self.beds[step.bed].name.word(),
            },
            fault.name(),
            line.lost,
            line.moved,
            injected.what,
        ))?;
        for text in wrong {
            self.problem(&format!("fault {number}, {}: {text}", fault.name()))?;
        }
        self.go_on()
    }

    /// Waits until a bed is well, and starts its inco again if it has ended.
    fn tend(&mut self, index: usize, excuse: &Excuse, wrong: &mut Vec<String>) -> Result<()> {
        let bed = &mut self.beds[index];
        let since = Instant::now();
        loop {
            if let Some(status) = bed.ended() {
                if !excuse.inco_ends {
                    wrong.push(format!(
                        "{}: inco ended by itself ({status}){}",
                        bed.name.word(),
                        bed.log_end()
                    ));
                }
                bed.run()?;
            }
            let well = bed.wait_until_well(RECOVERY_LIMIT.saturating_sub(since.elapsed()));
            self.interrupt.check()?;
            match well {
                Ok(()) => return Ok(()),
                // It may have ended while we waited.
                Err(_) if bed.ended().is_some() && since.elapsed() < RECOVERY_LIMIT => {
                    if !excuse.inco_ends {
                        wrong.push(format!(
                            "{}: inco ended by itself{}",
                            bed.name.word(),
                            bed.log_end()
                        ));
                    }
                    bed.run()?;
                }
                Err(error) => {
                    wrong.push(format!("{}: {error:#}", bed.name.word()));
                    return Ok(());
                }
            }
        }
    }

    /// Brings all beds to rest and reads them.
    fn rest(&mut self) -> Result<()> {
        for bed in &self.beds {
            bed.network()?.hold(true);
        }
        self.readings.clear();
        for bed in &mut self.beds {
            let (reading, _) = bed
                .at_rest()
                .with_context(|| format!("bed {}", bed.name.word()))?;
            self.readings.push(reading);
        }
        Ok(())
    }

    /// Traffic goes on after a rest.
    fn go_on(&mut self) -> Result<()> {
        for bed in &self.beds {
            let network = bed.network()?;
            network.begin_outages();
            network.hold(false);
        }
        Ok(())
    }

    fn wait(&self, time: Duration) -> Result<()> {
        let until = Instant::now() + time;
        loop {
            self.interrupt.check()?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(POLL_INTERVAL));
        }
    }

    fn problem(&mut self, text: &str) -> Result<()> {
        self.problems.push(text.to_owned());
        output::line(format!("! {text}"))
    }
}

fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().map_err(|_| anyhow!("a thread has panicked"))?
}
