//! `inco demo --actors`: a replicated store and real-time analytics, of actors on two sides, under load by clients over
//! the network. The load rises, and actors move to the host; it falls, and they come back. No request may be lost,
//! answered twice or answered wrongly, no tuple may be lost, and each window must be exact.
//!
//! STAND-IN: the card is a container with a fifth of a CPU of this machine for each service, and the host one with a
//! whole CPU.

mod clients;
mod summary;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use actor_load::Times;
use actor_load::analytics::Analytics;
use actor_load::store::Store;
use anyhow::{Result, bail};
use api::types::ActorsRow;
use display::output;
use images::EngineName;
use model::{ActorChange, ActorSide, EventKind};
use testbed::actors::{Application, Applications, Kind};
use testbed::{Environment, Interrupt, SwitchName};

use super::args::DemoArgs;
use super::live::Live;
use clients::{Wheel, joined, of_analytics, of_store, wait, work};
use summary::{End, Moved, PhaseResult, Shown, Summary, Windows};

const REPLICAS: usize = 3;
/// Slots of a window of analytics, milliseconds of a slot, and rows of a window.
const WINDOW: (u64, u64, usize) = (4, 250, 10);
/// The share of a CPU that the card has for each service; the host has a whole one.
const CARD_CPUS: f64 = 0.2;
/// How long actors may take to come back after the load: each of ten needs `settle` in its service.
const RETURN_LIMIT: Duration = Duration::from_secs(60);
/// What a high load rises by each second, until an actor of its service has gone to the host: how much a card carries
/// depends on the machine, and on how this program was built.
const RISE: f64 = 1.5;
/// How long a load may rise.
const RISE_LIMIT: Duration = Duration::from_secs(30);

/// An application with its loads.
struct Part {
    application: Application,
    /// What is counted.
    unit: &'static str,
    /// Requests per second, where the load is low, where it begins to rise, and at most.
    low: f64,
    high: f64,
    limit: f64,
}

/// The store and analytics. A tuple costs much less than a request, so fewer busy threads count as many.
fn parts() -> [Part; 2] {
    let sides = |busy, spare| {
        format!(
            "moves = \"auto\"\noverload = \"20ms\"\nbusy = {busy}\nspare = {spare}\npatience = \"300ms\"\nsettle = \
             \"1500ms\"\npause = \"500ms\"\n"
        )
    };
    let (slots, slot_time, n) = WINDOW;
    [
        Part {
            application: Application {
                name: "store",
                address: "10.78.0.100",
                port: 7000,
                kind: Kind::Store { replicas: REPLICAS },
                sides: sides(0.03, 0.015),
            },
            unit: "requests",
            low: 50.0,
            high: 4_000.0,
            limit: 40_000.0,
        },
        Part {
            application: Application {
                name: "analytics",
                address: "10.78.0.101",
                port: 7300,
                kind: Kind::Analytics { slots, slot_time, n },
                sides: sides(0.02, 0.01),
            },
            unit: "tuples",
            low: 50.0,
            high: 10_000.0,
            limit: 200_000.0,
        },
    ]
}

/// A phase of the load.
struct Phase {
    name: &'static str,
    lasts: Duration,
    /// Whether rates rise, and the phase lasts, until an actor of each service is on the host.
    rises: bool,
}

/// Rates that the card carries, and such as rise until they keep the card busier than it is to be.
fn phases(quick: bool) -> [Phase; 3] {
    let (low, high) = if quick { (3, 5) } else { (8, 20) };
    let phase = |name, seconds, rises| Phase {
        name,
        lasts: Duration::from_secs(seconds),
        rises,
    };
    [
        phase("low load", low, false),
        phase("high load", high, true),
        phase("low again", low, false),
    ]
}

/// Runs the demo.
///
/// # Errors
/// Something does not start, the demo was interrupted, or a promise was broken.
pub(super) fn run(args: &DemoArgs) -> Result<()> {
    let engine = args.engine_here()?;
    if engine != EngineName::Oci {
        bail!("inco demo --actors: the sides are made by the engine oci; leave --engine out");
    }
    let interrupt = Interrupt::listen()?;
    let ground = Environment::new(engine, SwitchName::Soft, args.keep_dir, interrupt.clone())?;
    let mut live = Live::new(args.json);
    let shown = show(&ground, &interrupt, args.quick, &mut live);
    live.end();
    let summary = shown?;
    if args.json {
        output::json(&summary, true)?;
    } else {
        output::text(&summary.text())?;
    }
    if !summary.failed_checks().is_empty() {
        bail!(
            "the demo failed these checks: {}",
            summary.failed_checks().join("; ")
        );
    }
    Ok(())
}

fn show(ground: &Environment, interrupt: &Interrupt, quick: bool, live: &mut Live) -> Result<Summary> {
    live.print_line(&format!(
        "inco demo --actors: a store with {REPLICAS} replicas of four actors each, and analytics of seven actors. The \
         card (a stand-in: {CARD_CPUS} of a CPU for each) and the host (a whole CPU for each) are containers behind \
         inco's switch. inco moves actors by load. Clients are real, and so is what they count.\n"
    ));
    let parts = parts();
    let applications = [&parts[0], &parts[1]].map(|of| of.application.clone());
    let inco = Applications::start(ground, "actors", CARD_CPUS, &applications)?;
    let demo = Demo {
        inco: &inco,
        parts: &parts,
        interrupt,
    };
    let shown = demo.watch(quick, live);
    inco.stop()?;
    shown
}

fn on_host(row: &ActorsRow) -> usize {
    let is_there = |side: Option<ActorSide>| side == Some(ActorSide::Host);
    row.actors.iter().filter(|of| is_there(of.side)).count()
}

fn is_back(row: &ActorsRow) -> bool {
    row.actors.iter().all(|of| of.side == Some(ActorSide::Card))
}

/// Who is not on the card: actors, or groups, which move together.
fn places(row: &ActorsRow) -> String {
    let mut away: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for actor in row.actors.iter().filter(|of| of.side != Some(ActorSide::Card)) {
        let side = actor.side.map_or("moves", ActorSide::name);
        let name = actor.group.as_deref().unwrap_or(&actor.actor);
        let names = away.entry(side).or_default();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    if away.is_empty() {
        return "all on the card".to_owned();
    }
    let texts = away
        .iter()
        .map(|(side, names)| format!("{side}: {}", names.join(" ")));
    texts.collect::<Vec<_>>().join(", ")
}

/// The running demo.
struct Demo<'d> {
    inco: &'d Applications<'d>,
    parts: &'d [Part; 2],
    interrupt: &'d Interrupt,
}

/// What a second, or a phase, has shown of both applications.
#[derive(Default)]
struct Seen([Times; 2]);

impl Demo<'_> {
    fn rows(&self) -> Result<[ActorsRow; 2]> {
        let [store, analytics] = [&self.parts[0], &self.parts[1]].map(|of| of.application.name);
        Ok([self.inco.row(store)?, self.inco.row(analytics)?])
    }

    /// Runs all phases, and checks what clients have seen.
    fn watch(&self, quick: bool, live: &mut Live) -> Result<Summary> {
        let [store, analytics] = &self.parts;
        let mut requests = of_store(self.inco, &store.application)?;
        let mut tuples = of_analytics(self.inco, &analytics.application, WINDOW)?;
        wait(&mut requests, store.application.name)?;
        wait(&mut tuples, analytics.application.name)?;
        let unix_ms = clock::unix_ms();
        let wheels = [Wheel::new(store.low), Wheel::new(analytics.low)];
        let is_over = AtomicBool::new(false);
        let (phases, away) = std::thread::scope(|scope| -> Result<_> {
            let of_store = scope.spawn(|| work(&mut requests, &wheels[0], &is_over));
            let of_tuples = scope.spawn(|| work(&mut tuples, &wheels[1], &is_over));
            let have_failed = || of_store.is_finished() || of_tuples.is_finished();
            let shown = self.phases(&wheels, quick, have_failed, live);
            is_over.store(true, Ordering::Relaxed);
            // What clients say comes first: nothing else is right then.
            joined(of_store)?;
            joined(of_tuples)?;
            shown
        })?;
        let moves = self.moves(unix_ms)?;
        let names = [store.application.name, analytics.application.name];
        Ok(Summary::of(phases, moves, &names, end(&requests, &tuples, away)))
    }

    /// All phases, and the way back. The services that have an actor which has not come back.
    fn phases(
        &self,
        wheels: &[Wheel; 2],
        quick: bool,
        have_failed: impl Fn() -> bool,
        live: &mut Live,
    ) -> Result<(Vec<PhaseResult>, Vec<String>)> {
        let started = Instant::now();
        let mut results = Vec::new();
        for phase in phases(quick) {
            for (wheel, part) in std::iter::zip(wheels, self.parts) {
                wheel.set_rate(if phase.rises { part.high } else { part.low });
            }
            let began = Instant::now();
            let mut all = Seen::default();
            let mut goes_on = true;
            while goes_on && !have_failed() {
                self.second()?;
                let (rows, seen) = (self.rows()?, Seen(wheels.each_ref().map(Wheel::take)));
                live.print_line(&line(started, phase.name, self.parts, &rows, &seen));
                let mut is_rising = false;
                for ((wheel, part), row) in std::iter::zip(wheels, self.parts).zip(&rows) {
                    if phase.rises && on_host(row) == 0 && began.elapsed() < RISE_LIMIT {
                        is_rising = true;
                        wheel.set_rate((RISE * wheel.rate()).min(part.limit));
                    }
                }
                goes_on = is_rising || began.elapsed() < phase.lasts;
                all.add(seen);
            }
            results.push(result(phase.name, wheels, &self.rows()?, &all));
        }
        let falls = Instant::now();
        let mut rows = self.rows()?;
        while !rows.iter().all(is_back) && falls.elapsed() < RETURN_LIMIT && !have_failed() {
            self.second()?;
            rows = self.rows()?;
            let seen = Seen(wheels.each_ref().map(Wheel::take));
            live.print_line(&line(started, "low again", self.parts, &rows, &seen));
        }
        let away = rows.iter().filter(|row| !is_back(row));
        Ok((results, away.map(|row| row.service.clone()).collect()))
    }

    fn second(&self) -> Result<()> {
        let end = Instant::now() + Duration::from_secs(1);
        while Instant::now() < end {
            self.interrupt.check()?;
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// The moves that have ended, from the event log.
    fn moves(&self, began_ms: u64) -> Result<Vec<Moved>> {
        let events = self.inco.session().client()?.events(10_000)?;
        let ended = events.into_iter().filter_map(|event| match event.kind {
            EventKind::Actor {
                actor,
                side,
                change: ActorChange::MoveEnded,
                took_us,
                ..
            } => Some(Moved {
                at_s: event.unix_ms.saturating_sub(began_ms) as f64 / 1e3,
                service: event.service.unwrap_or_default(),
                actor,
                to: side.other().name(),
                took_ms: took_us.unwrap_or(0) as f64 / 1e3,
            }),
            _ => None,
        });
        Ok(ended.collect())
    }
}

impl Seen {
    fn add(&mut self, other: Seen) {
        for (of, more) in std::iter::zip(&mut self.0, other.0) {
            of.add(more);
        }
    }
}

fn line(started: Instant, phase: &str, parts: &[Part; 2], rows: &[ActorsRow; 2], seen: &Seen) -> String {
    let mut text = format!("{:5.1} s  {phase:9}", started.elapsed().as_secs_f64());
    for ((part, row), times) in std::iter::zip(parts, rows).zip(&seen.0) {
        text.push_str(&format!(
            "  {}: {:6.0} {}/s, p99 {:7.1} ms, {}.",
            part.application.name,
            times.per_second(),
            part.unit,
            times.percentile_ms(0.99),
            places(row),
        ));
    }
    text
}

fn result(phase: &'static str, wheels: &[Wheel; 2], rows: &[ActorsRow; 2], seen: &Seen) -> PhaseResult {
    let shown = |of: usize| Shown {
        offered_per_s: wheels[of].rate(),
        answered_per_s: seen.0[of].per_second(),
        p50_ms: seen.0[of].percentile_ms(0.5),
        p99_ms: seen.0[of].percentile_ms(0.99),
        on_host: on_host(&rows[of]),
    };
    PhaseResult {
        phase,
        store: shown(0),
        analytics: shown(1),
    }
}

fn end(requests: &actor_load::Load<Store>, tuples: &Analytics, away: Vec<String>) -> End {
    let (judged, wrong_windows) = tuples.compare(&[]);
    let counts = tuples.counts();
    End {
        counts: requests.counts(),
        wrong_keys: requests.workload().wrong_keys().len(),
        analytics: Windows {
            tuples: counts.requests,
            lost: counts.lost,
            windows: judged.exact,
            wrong_windows,
        },
        away,
    }
}
