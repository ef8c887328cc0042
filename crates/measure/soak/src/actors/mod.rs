//! `inco soak actors`: the three applications made of actors, with clients over the network, under crashes of either side,
//! partitions and migrations; each application's checker says whether it kept its promise.
//!
//! 1. A [`Bed`] is an inco with the three applications, and their clients.
//! 2. A **segment** begins and ends at a quiet point, at which no request is under way. Its keys are its own, so it is
//!    checked alone: each key of the store is linearizable, transactions are strictly serialisable, the first rows of each
//!    window are those of a run with all tuples.
//! 3. The [`Deck`] of [`Fault`]s is drawn from the seed alone.
//! 4. A process that ends within a message loses the actor that had it (docs/actors.md). After such a segment there is a new
//!    bed: what was lost is not expected to come back.

mod bed;
mod fault;
mod verdict;

use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use display::output::{self, WrongUsage};
use images::EngineName;
use model::Random;
use testbed::{Environment, Interrupt, SwitchName};

use crate::args::ActorsArgs;
use bed::{APPLICATIONS, Bed, Found};
use fault::Deck;
use verdict::Verdict;

/// How long a segment lasts, and at least.
const SEGMENT: Duration = Duration::from_secs(12);
const SEGMENT_LEAST: Duration = Duration::from_secs(6);
/// No fault begins later than this before the end of a segment.
const REST: Duration = Duration::from_secs(2);
/// Undisturbed requests between two faults.
const PAUSE: Duration = Duration::from_millis(250);
/// Windows of analytics that end so long before or after a crash of its side are not judged, in milliseconds.
const AROUND_MS: [u64; 2] = [2_000, 1_000];

/// Runs it.
pub(crate) fn run(args: &ActorsArgs) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Err(WrongUsage("inco: soak needs root: run it with sudo".to_owned()).into());
    }
    let seed = match args.seed {
        Some(seed) => seed,
        None => crate::random_seed()?,
    };
    let interrupt = Interrupt::listen()?;
    let ground = Environment::new(EngineName::Oci, SwitchName::Soft, false, interrupt.clone())?;
    output::line(format!(
        "inco soak actors: seed {seed}, {} s, {} operations/s recorded",
        args.duration.as_secs(),
        bed::RATE
    ))?;
    let mut run = Run {
        ground: &ground,
        interrupt,
        deck: Deck::new(seed),
        verdict: Verdict {
            seconds: args.duration.as_secs(),
            seed,
            ..Verdict::default()
        },
        problems: 0,
    };
    run.whole(args.duration)?;
    let Run {
        mut verdict,
        problems,
        ..
    } = run;
    verdict.ok = problems == 0;
    if args.json {
        output::json(&verdict, false)?;
    } else {
        output::text(&verdict.text())?;
    }
    match problems {
        0 => Ok(()),
        _ => bail!("{problems} lines above begin with !; `--seed {seed}` gives the same faults again"),
    }
}

/// A run under way.
struct Run<'g> {
    ground: &'g Environment,
    interrupt: Interrupt,
    deck: Deck,
    verdict: Verdict,
    problems: u64,
}

impl<'g> Run<'g> {
    fn whole(&mut self, duration: Duration) -> Result<()> {
        let began = Instant::now();
        let mut bed: Option<Bed<'g>> = None;
        while began.elapsed() < duration {
            let mut of = match bed.take() {
                Some(bed) => bed,
                None => {
                    self.verdict.beds += 1;
                    Bed::start(self.ground, &self.interrupt)?
                }
            };
            let left = duration.saturating_sub(began.elapsed());
            self.segment(&mut of, left.clamp(SEGMENT_LEAST, SEGMENT))?;
            if of.lost()?.is_empty() && of.stopped()?.is_empty() {
                bed = Some(of);
            } else {
                of.stop()?;
            }
        }
        bed.map_or(Ok(()), Bed::stop)
    }

    /// Clients at work, faults meanwhile, and what the checkers say then.
    fn segment(&mut self, bed: &mut Bed<'g>, lasts: Duration) -> Result<()> {
        self.verdict.segments += 1;
        let number = self.verdict.segments;
        let mut crashes: Vec<Range<u64>> = Vec::new();
        let mut problems = Vec::new();
        let mut harmed = Ok(());
        let found = bed.under_load(|inco| {
            harmed = self.harm(inco, lasts, &mut crashes, &mut problems);
        })?;
        harmed?;
        let lost = bed.lost()?;
        self.verdict.lost_actors += lost.len() as u64;
        if !lost.is_empty() {
            output::line(format!("      lost with their processes: {}", lost.join(", ")))?;
        }
        let stopped = bed.stopped()?;
        if !stopped.is_empty() {
            problems.push(format!("nobody has stopped {}", stopped.join(", ")));
        }
        if lost.iter().any(|of| of.starts_with(APPLICATIONS[2])) {
            // Its windows do not come any more.
            crashes.iter_mut().for_each(|of| of.end = u64::MAX);
        }
        self.judge(number, bed, &found, &lost, &crashes, &mut problems)?;
        for text in problems {
            self.problems += 1;
            output::line(format!("! segment {number}: {text}"))?;
        }
        Ok(())
    }

    /// Faults, one after the other, until shortly before the end.
    fn harm(
        &mut self,
        inco: &testbed::actors::Applications<'_>,
        lasts: Duration,
        crashes: &mut Vec<Range<u64>>,
        problems: &mut Vec<String>,
    ) -> Result<()> {
        let began = Instant::now();
        self.deck.begin_segment();
        while began.elapsed() < lasts {
            self.interrupt.check()?;
            std::thread::sleep(PAUSE);
            if began.elapsed() + REST > lasts {
                continue;
            }
            let (step, mut random): (fault::Step, Random) = self.deck.next();
            if step.is_crash_of(APPLICATIONS[2]) {
                let now = clock::unix_ms();
                crashes.push(now.saturating_sub(AROUND_MS[0])..now + AROUND_MS[1]);
            }
            match step.inject(inco, &mut random, &self.interrupt) {
                Ok(Some(what)) => {
                    *self.verdict.faults.entry(step.name()).or_default() += 1;
                    output::line(format!(
                        "{:>4}  {:>5.1} s  {:<17}  {what}",
                        self.verdict.segments,
                        began.elapsed().as_secs_f64(),
                        step.name()
                    ))?;
                }
                Ok(None) => {}
                Err(error) => {
                    self.interrupt.check()?;
                    problems.push(format!("{}: {error:#}", step.name()));
                }
            }
        }
        Ok(())
    }

    fn judge(
        &mut self,
        number: u64,
        bed: &Bed<'_>,
        found: &Found,
        lost: &[String],
        crashes: &[Range<u64>],
        problems: &mut Vec<String>,
    ) -> Result<()> {
        let judged = bed.judge(found, lost, crashes);
        output::line(format!(
            "{number:>4}  checked: {} operations of the store (longest {:.0} ms), {} transactions, {} windows beside {} \
             around a crash",
            judged.store.checked.checked,
            found.longest_ms(),
            judged.transactions.checked.checked,
            judged.analytics.checked.checked,
            judged.analytics.checked.explained,
        ))?;
        for (into, of) in [
            (&mut self.verdict.store, judged.store),
            (&mut self.verdict.transactions, judged.transactions),
            (&mut self.verdict.analytics, judged.analytics),
        ] {
            problems.extend(of.problems);
            into.add(&of.checked);
        }
        Ok(())
    }
}
