//! `inco demo --actors`: a replicated store of actors on two sides, under load by clients over the network. The load
//! rises, and replicas move to the host; it falls, and they come back. No request may be lost, answered twice or
//! answered with another value than the client's last.
//!
//! STAND-IN: the card is a container with a fifth of a CPU of this machine, and the host one with a whole CPU.

mod load;

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use api::types::ActorsRow;
use display::output;
use engine::ImageRef;
use images::EngineName;
use model::{ActorChange, ActorSide, EventKind};
use serde::Serialize;
use testbed::network::{Link, Namespace, run as command};
use testbed::{Environment, Interrupt, Session, SwitchName};

use super::args::DemoArgs;
use super::live::Live;
use load::{Counts, Load, Window};

/// The address of the store, and the port of its first replica.
const ADDRESS: &str = "10.78.0.100";
const PORT: u16 = 7000;
/// The client's address.
const CLIENT: &str = "10.78.0.2/24";
const REPLICAS: usize = 3;
const SERVICE: &str = "store";
/// The share of a CPU that the card has; the host has a whole one.
const CARD_CPUS: f64 = 0.2;
/// How long the store may take to answer at all.
const BEGIN_LIMIT: Duration = Duration::from_secs(30);
/// How long replicas may take to come back after the load.
const RETURN_LIMIT: Duration = Duration::from_secs(30);
/// What the high load rises by each second, until a replica has gone to the host: how much a card carries depends on the
/// machine, and on how this program was built.
const RISE: f64 = 1.5;
/// Requests per second at most, and how long a load may rise.
const RATE_LIMIT: f64 = 40_000.0;
const RISE_LIMIT: Duration = Duration::from_secs(20);

/// A phase of the load.
struct Phase {
    name: &'static str,
    rate: f64,
    lasts: Duration,
    /// Whether the rate rises, and the phase lasts, until a replica is on the host.
    rises: bool,
}

/// A rate that the card carries, and one that rises until it keeps the card busier than it is to be.
fn phases(quick: bool) -> [Phase; 3] {
    let (low, high, seconds) = if quick {
        (50.0, 4_000.0, 5)
    } else {
        (50.0, 4_000.0, 10)
    };
    let phase = |name, rate, seconds| Phase {
        name,
        rate,
        lasts: Duration::from_secs(seconds),
        rises: rate > low,
    };
    [
        phase("low load", low, seconds / 2),
        phase("high load", high, seconds),
        phase("low again", low, seconds / 2),
    ]
}

/// What a phase showed.
#[derive(Debug, Serialize)]
struct PhaseResult {
    phase: &'static str,
    /// Requests per second that were intended, at the end of the phase.
    offered_per_s: f64,
    /// Requests per second that were answered.
    answered_per_s: f64,
    /// Times from the intended sending of a request to its answer, in milliseconds.
    p50_ms: f64,
    p99_ms: f64,
    /// Actors on the host at its end.
    on_host: usize,
}

/// A move that has ended.
#[derive(Debug, Serialize)]
struct Moved {
    at_s: f64,
    actor: String,
    to: &'static str,
    took_ms: f64,
}

/// The result.
#[derive(Debug, Serialize)]
struct Summary {
    phases: Vec<PhaseResult>,
    moves: Vec<Moved>,
    requests: u64,
    lost: u64,
    answered_twice: u64,
    wrong_answers: u64,
    /// Requests that were sent again: another replica led, or no answer came in time. Each was executed once.
    asked_again: u64,
    failed_checks: Vec<&'static str>,
}

/// The configuration, as a user would write it.
fn configuration(engine: &str, uplink: &str, data: &Path) -> String {
    let mut text = format!(
        "# Written by `inco demo --actors`.\n[engine]\ndriver = {engine:?}\n[switch]\ndriver = \"soft\"\nflows = \
         65536\n[[uplink]]\nname = \"wan\"\ndevice = \"kernel:{uplink}\"\n[[place]]\nname = \"card\"\nshare = \
         {CARD_CPUS}\n[[place]]\nname = \"host\"\n[service.{SERVICE}]\nkind = \"actors\"\nvip = {{ address = \
         {ADDRESS:?}, ports = \"{PORT}-{}\" }}\ncpus = 1.0\nmemory = \"256MiB\"\nmounts = [\"{}:/data\"]\n",
        PORT + REPLICAS as u16 - 1,
        data.display(),
    );
    let all: Vec<String> = (0..REPLICAS).map(|of| format!("@consensus{of}")).collect();
    for of in 0..REPLICAS {
        let mut actor = |name: &str, options: &str, more: &str| {
            text.push_str(&format!(
                "[[service.{SERVICE}.actors]]\nname = \"{name}{of}\"\nkind = \"store-{name}\"\ngroup = \
                 \"replica{of}\"\nregion = \"8MiB\"\nobjects = 65536\noptions = {{ {options} }}\n{more}"
            ));
        };
        let port = PORT + of as u16;
        actor(
            "consensus",
            &format!(
                "me = {of}, seed = {of}, tick = 20, memtable = \"@memtable{of}\", replicas = \"{}\"",
                all.join(",")
            ),
            &format!("ports = {port}\n"),
        );
        actor(
            "memtable",
            &format!(
                "consensus = \"@consensus{of}\", tables = \"@tables{of}\", compaction = \"@compaction{of}\""
            ),
            "",
        );
        let folder = format!("folder = \"/data/{of}\"");
        actor(
            "tables",
            &format!("memtable = \"@memtable{of}\", compaction = \"@compaction{of}\", {folder}"),
            "",
        );
        actor(
            "compaction",
            &format!("memtable = \"@memtable{of}\", tables = \"@tables{of}\", {folder}"),
            "",
        );
    }
    text.push_str(&format!(
        "[service.{SERVICE}.sides]\nmoves = \"auto\"\noverload = \"5ms\"\nbusy = 0.03\nspare = 0.015\npatience = \
         \"300ms\"\nsettle = \"1500ms\"\npause = \"500ms\"\n"
    ));
    text
}

/// Runs the demo.
///
/// # Errors
/// Something does not start, the demo was interrupted, or a promise was broken.
pub(super) fn run(args: &DemoArgs) -> Result<()> {
    if args.engine != EngineName::Oci {
        bail!("inco demo --actors: the sides are made by the engine oci; leave --engine out");
    }
    let interrupt = Interrupt::listen()?;
    let image = ImageRef::from(configuration::ACTORS_IMAGE);
    images::build_function(images::ACTORS, &image)?;
    let ground = Environment::new(args.engine, SwitchName::Soft, args.keep_dir, interrupt.clone())?;
    let mut live = Live::new(args.json);
    let shown = show(&ground, &interrupt, args.quick, &mut live);
    live.end();
    let summary = shown?;
    if args.json {
        output::json(&summary, true)?;
    } else {
        output::text(&summary.text())?;
    }
    if !summary.failed_checks.is_empty() {
        bail!(
            "the demo failed these checks: {}",
            summary.failed_checks.join("; ")
        );
    }
    Ok(())
}

/// The client's namespace, and inco's uplink towards it.
fn client() -> Result<(Namespace, Link, String)> {
    let client = Namespace::new(format!("inco-actors-{}", std::process::id()))?;
    let uplink = format!("incoa{}", std::process::id() % 1_000_000);
    let link = Link::into(&uplink, &client, "eth0")?;
    command("ip", &["link", "set", &uplink, "up"])?;
    client.ip(&["address", "add", CLIENT, "dev", "eth0"])?;
    client.ip(&["link", "set", "eth0", "up"])?;
    Ok((client, link, uplink))
}

fn show(ground: &Environment, interrupt: &Interrupt, quick: bool, live: &mut Live) -> Result<Summary> {
    live.print_line(&format!(
        "inco demo --actors: a store with {REPLICAS} replicas of four actors each, behind {ADDRESS}. The card (a \
         stand-in: {CARD_CPUS} of a CPU) and the host (a whole CPU) are two containers behind inco's switch. inco moves \
         replicas by load. Clients are real, and so is what they count.\n"
    ));
    let data = ground.directory().join("data");
    fs::create_dir_all(&data).with_context(|| format!("cannot make {}", data.display()))?;
    // Root of a container is another user here.
    fs::set_permissions(&data, Permissions::from_mode(0o777))?;
    let (client, _link, uplink) = client()?;
    let text = configuration(ground.engine_word(), &uplink, &data);
    // Sockets stay in the network where they were made.
    let mut load = client.within(|| Load::new(ADDRESS, PORT, REPLICAS))?;
    let session = Session::start(ground, "actors", &text, 1)?;
    let shown = watch(&session, &mut load, interrupt, quick, live);
    let left = session.stop()?;
    let summary = shown?;
    if !left.is_empty() {
        bail!("inco left behind: {}", left.join("; "));
    }
    Ok(summary)
}

/// The service as it is now.
fn service(session: &Session<'_>) -> Result<ActorsRow> {
    let rows = session.client()?.actors()?;
    let row = rows.into_iter().find(|of| of.service == SERVICE);
    row.context("inco does not know the service of actors")
}

fn on_host(row: &ActorsRow) -> usize {
    let is_there = |side: Option<ActorSide>| side == Some(ActorSide::Host);
    row.actors.iter().filter(|of| is_there(of.side)).count()
}

/// Where each replica is: its actors move together.
fn places(row: &ActorsRow) -> String {
    let mut replicas: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for actor in &row.actors {
        let side = actor.side.map_or("moves", ActorSide::name);
        let sides = replicas
            .entry(actor.group.as_deref().unwrap_or(&actor.actor))
            .or_default();
        if !sides.contains(&side) {
            sides.push(side);
        }
    }
    let texts = replicas
        .iter()
        .map(|(replica, sides)| format!("{replica} {}", sides.join("+")));
    texts.collect::<Vec<_>>().join(", ")
}

fn watch(
    session: &Session<'_>,
    load: &mut Load,
    interrupt: &Interrupt,
    quick: bool,
    live: &mut Live,
) -> Result<Summary> {
    let began = Instant::now();
    while !load.is_answered()? {
        interrupt.check()?;
        if began.elapsed() > BEGIN_LIMIT {
            bail!("the store has not answered within {} s", BEGIN_LIMIT.as_secs());
        }
    }
    let started = Instant::now();
    let unix_ms = clock::unix_ms();
    let mut results = Vec::new();
    for phase in phases(quick) {
        let phase_began = Instant::now();
        let mut all = Window::default();
        let (mut rate, mut goes_on) = (phase.rate, true);
        while goes_on {
            interrupt.check()?;
            let window = load.run(rate, Duration::from_secs(1))?;
            let row = service(session)?;
            let is_rising = phase.rises && on_host(&row) == 0 && phase_began.elapsed() < RISE_LIMIT;
            if is_rising {
                rate = (RISE * rate).min(RATE_LIMIT);
            }
            goes_on = is_rising || phase_began.elapsed() < phase.lasts;
            live.print_line(&format!(
                "{:5.1} s  {:9}  {:6.0} requests/s  p99 {:8.1} ms  {}",
                started.elapsed().as_secs_f64(),
                phase.name,
                window.per_second(),
                window.percentile_ms(0.99),
                places(&row),
            ));
            all.add(window);
        }
        results.push(PhaseResult {
            phase: phase.name,
            offered_per_s: rate,
            answered_per_s: all.per_second(),
            p50_ms: all.percentile_ms(0.5),
            p99_ms: all.percentile_ms(0.99),
            on_host: on_host(&service(session)?),
        });
    }
    // What was not answered yet, and the way back.
    let rate = phases(quick)[2].rate;
    let falls = Instant::now();
    let mut is_back = false;
    while !is_back && falls.elapsed() < RETURN_LIMIT {
        interrupt.check()?;
        load.run(rate, Duration::from_millis(500))?;
        let row = service(session)?;
        is_back = row.actors.iter().all(|of| of.side == Some(ActorSide::Card));
    }
    load.settle()?;
    let row = service(session)?;
    live.print_line(&format!(
        "{:5.1} s  at the end: {}\n",
        started.elapsed().as_secs_f64(),
        places(&row)
    ));
    let moves = moves(session, unix_ms)?;
    Ok(Summary::of(results, moves, load.counts(), is_back))
}

/// The moves that have ended, from the event log.
fn moves(session: &Session<'_>, began_ms: u64) -> Result<Vec<Moved>> {
    let events = session.client()?.events(10_000)?;
    let ended = events.into_iter().filter_map(|event| match event.kind {
        EventKind::Actor {
            actor,
            side,
            change: ActorChange::MoveEnded,
            took_us,
            ..
        } => Some(Moved {
            at_s: event.unix_ms.saturating_sub(began_ms) as f64 / 1e3,
            actor,
            to: side.other().name(),
            took_ms: took_us.unwrap_or(0) as f64 / 1e3,
        }),
        _ => None,
    });
    Ok(ended.collect())
}

impl Summary {
    fn of(phases: Vec<PhaseResult>, moves: Vec<Moved>, counts: Counts, is_back: bool) -> Summary {
        let to = |side: &str| moves.iter().filter(|of| of.to == side).count();
        let checks = [
            (counts.lost == 0, "a request was lost"),
            (counts.twice == 0, "a request was answered twice"),
            (
                counts.wrong == 0,
                "an answer had another value than the client's last",
            ),
            (to("host") > 0, "no actor moved to the host under load"),
            (is_back && to("card") > 0, "not all actors came back"),
        ];
        let failed = checks.into_iter().filter(|(is_kept, _)| !is_kept);
        Summary {
            failed_checks: failed.map(|(_, what)| what).collect(),
            phases,
            moves,
            requests: counts.requests,
            lost: counts.lost,
            answered_twice: counts.twice,
            wrong_answers: counts.wrong,
            asked_again: counts.again,
        }
    }

    fn text(&self) -> String {
        let mut table = display::table::Table::new(&[
            "phase",
            ">offered/s",
            ">answered/s",
            ">p50 ms",
            ">p99 ms",
            ">on host",
        ]);
        for of in &self.phases {
            table.row([
                of.phase.to_owned(),
                format!("{:.0}", of.offered_per_s),
                format!("{:.0}", of.answered_per_s),
                format!("{:.1}", of.p50_ms),
                format!("{:.1}", of.p99_ms),
                of.on_host.to_string(),
            ]);
        }
        let mut text = table.text();
        for of in &self.moves {
            text.push_str(&format!(
                "{:5.1} s  {} moved to the {} in {:.1} ms\n",
                of.at_s, of.actor, of.to, of.took_ms
            ));
        }
        text.push_str(&format!(
            "\n{} requests: lost {}, answered twice {}, wrong answers {}; sent again {}. Times count from the intended \
             sending.\n",
            self.requests, self.lost, self.answered_twice, self.wrong_answers, self.asked_again
        ));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_promise_fails_the_demo() {
        let moved = |to| Moved {
            at_s: 1.0,
            actor: "consensus0".to_owned(),
            to,
            took_ms: 2.0,
        };
        let of =
            |counts, is_back| Summary::of(Vec::new(), vec![moved("host"), moved("card")], counts, is_back);
        let right = of(Counts::default(), true);
        assert!(right.failed_checks.is_empty(), "{right:?}");
        assert!(right.text().contains("lost 0, answered twice 0"));
        assert_eq!(of(Counts::default(), false).failed_checks.len(), 1);
        let lost = Counts {
            lost: 1,
            wrong: 1,
            twice: 2,
            ..Counts::default()
        };
        assert_eq!(of(lost, true).failed_checks.len(), 3);
    }
}
