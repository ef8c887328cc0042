//! Steering established flows, against the limit of input and output and against OVS.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use flow_table::{FlowHasher, Ownership};
use serde::Serialize;

use super::contestant::{Contestant, Measured, measure, median, resume, suspend};
use super::facts::facts;
use super::memif_sinks::MemifSinks;
use super::memory::Memory;
use super::ovs::{self, Ovs};
use super::raw::Raw;
use super::steering::{SinkPort, Spec, Steering, Way, captures};
use super::testpmd::{BURSTS, CACHES, Testpmd, Tuning};
use super::traffic::{Ip, ends, write_capture};
use super::undo::Undo;
use crate::cli::SteerArgs;
use crate::output;
use crate::table::{Table, grouped};

/// How long each contestant is measured in each round.
const WINDOW: Duration = Duration::from_millis(700);
/// The same where the best tuning of the limit is looked for.
const TRIAL: Duration = Duration::from_millis(400);
/// How many new flows OVS is trusted to take in a second, before it is measured.
const OVS_SET_UPS: f64 = 12_000.0;
/// The longest that it is waited for.
const OVS_WARM_UP: Duration = Duration::from_secs(10);
/// Instances that take flows, but for the cases that compare their number.
const TAKING: u16 = 4;
/// Room of the flow tables beside the flows of the bench.
const SPARE_FLOWS: usize = 10_000;

/// One row of the result. Rates are in millions of packets per second and core.
#[derive(Clone, Debug, Serialize)]
struct Row {
    flows: u32,
    size: usize,
    ip: &'static str,
    instances: u16,
    workers: usize,
    /// Whether flows come to either of two workers, whichever owns them.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    crossing: bool,
    port: &'static str,
    mpps: f64,
    io_limit_mpps: f64,
    ovs_mpps: Option<f64>,
    ratio_to_limit: f64,
    ratio_to_ovs: Option<f64>,
}

/// What is measured in one comparison.
#[derive(Clone, Copy, Debug)]
struct Case {
    flows: u32,
    size: usize,
    ip: Ip,
    instances: u16,
    /// How many of them stand by.
    idle: u16,
    workers: usize,
    ownership: Ownership,
    port: SinkPort,
    with_ovs: bool,
}

impl Case {
    /// The flows that come to that worker: as a card deals them that was told to, or any.
    fn flows_of(self, worker: usize) -> impl Iterator<Item = u32> + Clone {
        let hasher = FlowHasher::new([0; 4]).owning(self.ownership);
        (0..self.flows).filter(move |&flow| match self.ownership {
            Ownership::Card => {
                let (src, dst) = ends(self.ip, flow);
                hasher.owner_of(src.ip(), dst.ip(), 0, self.workers) == worker
            }
            Ownership::Keyed => flow as usize % self.workers == worker,
        })
    }
}

/// Runs the bench.
pub(super) fn run(args: &SteerArgs) -> Result<()> {
    let mut raw = None;
    let mut rows = Vec::new();
    let mut hash_rows = Vec::new();
    let with_ovs = !args.no_ovs && ovs::is_there();
    for case in cases(args, with_ovs) {
        output::complain(&format!(
            "{} flows, {} B, {}, {} instances on {}{} ...",
            grouped(case.flows.into()),
            case.size,
            case.ip.name(),
            case.instances,
            case.port.name(),
            match (case.workers, case.ownership) {
                (1, _) => "",
                (_, Ownership::Card) => ", two workers",
                (_, Ownership::Keyed) => ", two workers, half of the packets cross",
            }
        ));
        let (row, hash) = compare(args, case, &mut raw)?;
        rows.push(row);
        hash_rows.push(hash);
        // Long before the last case somebody may have seen enough.
        if let Some(raw) = &raw {
            raw.write(&args.csv)?;
        }
    }
    if args.json {
        return output::json(&rows, output::is_terminal());
    }
    let headings = [
        ">flows",
        ">size",
        "ip",
        ">instances",
        ">workers",
        "port",
        ">inco",
        ">limit",
        ">ovs exact",
        ">ovs hash",
        ">÷ limit",
        ">÷ ovs",
    ];
    let mut table = Table::new(&headings);
    for (row, hash) in rows.iter().zip(hash_rows) {
        let optional =
            |value: Option<f64>, digits: usize| value.map_or("-".to_owned(), |v| format!("{v:.digits$}"));
        table.row([
            grouped(row.flows.into()),
            row.size.to_string(),
            row.ip.to_owned(),
            row.instances.to_string(),
            format!(
                "{}{}",
                row.workers,
                if row.crossing { " (half cross)" } else { "" }
            ),
            row.port.to_owned(),
            format!("{:.1}", row.mpps),
            format!("{:.1}", row.io_limit_mpps),
            optional(row.ovs_mpps, 2),
            optional(hash, 2),
            format!("{:.2}", row.ratio_to_limit),
            optional(row.ratio_to_ovs, 1),
        ]);
    }
    output::text(&table.text())?;
    output::line(format!(
        "Mpps per core; the limit is testpmd without a look-up. Every measurement: {}",
        args.csv.display()
    ))
}

fn cases(args: &SteerArgs, with_ovs: bool) -> Vec<Case> {
    let plain = |flows| Case {
        flows,
        size: 64,
        ip: Ip::V4,
        instances: TAKING,
        idle: 0,
        workers: 1,
        ownership: Ownership::Card,
        port: args.port,
        with_ovs,
    };
    let mut cases: Vec<Case> = args.flows.iter().map(|&flows| plain(flows)).collect();
    if args.full {
        let more = Case {
            with_ovs: false,
            ..plain(10_000)
        };
        cases.extend([512, 1500].map(|size| Case { size, ..more }));
        cases.push(Case { ip: Ip::V6, ..more });
        cases.extend([Ownership::Card, Ownership::Keyed].map(|ownership| Case {
            workers: 2,
            ownership,
            ..more
        }));
        cases.extend([4, 16, 64, 256].map(|instances| Case {
            instances,
            port: SinkPort::Null,
            ..more
        }));
        cases.extend([TAKING, 64].map(|instances| Case {
            instances,
            idle: instances - TAKING,
            port: SinkPort::Memif,
            ..more
        }));
    }
    cases
}

fn allowed_cpus() -> Result<Vec<usize>> {
    let allowed = rustix::thread::sched_getaffinity(None).context("cannot tell which CPUs may be used")?;
    Ok((0..rustix::thread::CpuSet::MAX_CPU)
        .filter(|&cpu| allowed.is_set(cpu))
        .collect())
}

/// The CPU for everything else, and the one that is measured: the first and the last that we may use.
pub(super) fn cpus() -> Result<(usize, usize)> {
    match allowed_cpus()?.as_slice() {
        [first, .., last] => Ok((*first, *last)),
        _ => anyhow::bail!("a bench needs two CPUs: one that is measured, one for everything else"),
    }
}

/// A CPU for each worker: the last ones. On a machine with as many as workers one of them has everything else, too, which
/// takes time from that worker but not from its processor time.
fn worker_cpus(workers: usize) -> Result<Vec<usize>> {
    let all = allowed_cpus()?;
    let first = all.len().checked_sub(workers);
    let last = first.and_then(|first| all.get(first..));
    Ok(last
        .with_context(|| format!("{workers} workers need as many CPUs; there are {}", all.len()))?
        .to_vec())
}

fn compare(args: &SteerArgs, case: Case, raw: &mut Option<Raw>) -> Result<(Row, Option<f64>)> {
    let folder = Folder::new()?;
    let (control, cpu) = cpus()?;
    let worker_cpus = worker_cpus(case.workers)?;
    let with_ovs = case.with_ovs && case.flows as usize <= ovs::FRAMES_LIMIT;
    let captures = captures(&folder.path, case.workers);
    let mut frames = 0;
    for (worker, capture) in captures.iter().enumerate() {
        let flows = case.flows_of(worker);
        frames = flows.clone().count().max(frames);
        write_capture(capture, case.ip, flows, case.size)?;
    }
    let memory = Memory::reserve(2, case.flows as usize, with_ovs);
    let columns = [
        "flows",
        "size",
        "ip",
        "instances",
        "workers",
        "port",
        "round",
        "contestant",
        "tuning",
        "packets",
        "cpu_seconds",
        "mpps",
        "command",
    ];
    let raw = raw.get_or_insert_with(|| Raw::new(&facts(memory.is_huge()), &columns));
    let mut note = |round: &str, who: &dyn Contestant, tuning: &str, measured: Measured| {
        raw.row(&[
            case.flows.to_string(),
            case.size.to_string(),
            case.ip.name().to_owned(),
            case.instances.to_string(),
            case.workers.to_string(),
            case.port.name().to_owned(),
            round.to_owned(),
            who.name().to_owned(),
            tuning.to_owned(),
            measured.packets.to_string(),
            format!("{:.6}", measured.seconds),
            format!("{:.4}", measured.mpps()),
            who.commands().join(" && "),
        ]);
    };
    let (mut limit, tuning) = best_limit(&captures, case, &memory, (control, &worker_cpus), &mut note)?;
    let sinks = match case.port {
        SinkPort::Memif => Some(MemifSinks::start(&folder.path, case.instances, control)?),
        SinkPort::NetNull | SinkPort::Null => None,
    };
    let mut steering = Steering::start(&Spec {
        way: Way::Sinks {
            captures: captures.clone(),
            frames,
            port: case.port,
            huge: memory.is_huge(),
        },
        instances: case.instances,
        active: case.instances - case.idle,
        sockets: sinks
            .as_ref()
            .map(|sinks| sinks.sockets.clone())
            .unwrap_or_default(),
        cpus: worker_cpus,
        control_cpu: control,
        table_flows: case.flows as usize + SPARE_FLOWS,
        return_counters: false,
        is_dealt: case.ownership == Ownership::Card,
    })?;
    suspend(&steering)?;
    let mut ovs = None;
    if let Some(capture) = captures.first().filter(|_| with_ovs) {
        let flows = (case.ip, case.flows);
        let started = Ovs::start(
            &folder.path.join("ovs"),
            capture,
            flows,
            case.instances.into(),
            &memory,
            (control, cpu),
        )
        .and_then(|mut ovs| {
            let warm_up = Duration::from_secs_f64(f64::from(case.flows) / OVS_SET_UPS).min(OVS_WARM_UP);
            measure(&mut ovs, warm_up, TRIAL)?;
            Ok(ovs)
        });
        match started {
            Ok(started) => ovs = Some(started),
            // What the others do is worth knowing without it.
            Err(error) => {
                output::complain(&format!("inco: without OVS, which does not take part: {error:#}"))
            }
        }
    }
    let has_ovs = ovs.is_some();
    let text = format!("burst {} cache {}", tuning.burst, tuning.cache);
    let mut rounds = Vec::new();
    for round in 1..=args.rounds {
        let round = round.to_string();
        let io = measure(&mut limit, Duration::ZERO, WINDOW)?;
        note(&round, &limit, &text, io);
        let ours = measure(&mut steering, Duration::ZERO, WINDOW)?;
        note(&round, &steering, "", ours);
        let theirs = match &mut ovs {
            Some(ovs) => {
                let theirs = measure(ovs, Duration::ZERO, WINDOW)?;
                note(&round, ovs, "", theirs);
                Some(theirs.mpps())
            }
            None => None,
        };
        rounds.push((ours.mpps(), io.mpps(), theirs));
    }
    steering_is_right(&mut steering, case)?;
    let mut hash = None;
    if let Some(ovs) = ovs.as_mut().filter(|_| !args.json) {
        // Its control side must run to take the group.
        resume(ovs)?;
        ovs.select_by_hash(case.instances.into())?;
        let mut rates = Vec::new();
        for round in 1..=args.rounds {
            let theirs = measure(ovs, Duration::ZERO, WINDOW)?;
            note(&round.to_string(), ovs, "", theirs);
            rates.push(theirs.mpps());
        }
        hash = Some(median(rates));
    }
    let theirs = || rounds.iter().filter_map(|r| r.2);
    let some = |value: f64| has_ovs.then_some(value);
    let row = Row {
        flows: case.flows,
        size: case.size,
        ip: case.ip.name(),
        instances: case.instances,
        workers: case.workers,
        crossing: case.workers > 1 && case.ownership == Ownership::Keyed,
        port: case.port.name(),
        mpps: median(rounds.iter().map(|r| r.0)),
        io_limit_mpps: median(rounds.iter().map(|r| r.1)),
        ovs_mpps: some(median(theirs())),
        ratio_to_limit: median(rounds.iter().map(|r| r.0 / r.1)),
        ratio_to_ovs: some(median(rounds.iter().filter_map(|r| Some(r.0 / r.2?)))),
    };
    Ok((row, hash))
}

fn steering_is_right(steering: &mut Steering, case: Case) -> Result<()> {
    resume(steering)?;
    // Of several workers one that has no CPU of its own cannot take all that the others hand to it, nor can the thread that
    // empties memif ports. What is dropped then is not in the rate.
    let may_be_dropped = case.workers > 1 || case.port == SinkPort::Memif;
    let checked = steering.check(case.flows.into(), may_be_dropped);
    suspend(steering)?;
    checked
}

/// The limit with the burst and the cache that are best for it here.
fn best_limit(
    captures: &[PathBuf],
    case: Case,
    memory: &Memory,
    cpus: (usize, &[usize]),
    note: &mut impl FnMut(&str, &dyn Contestant, &str, Measured),
) -> Result<(Testpmd, Tuning)> {
    let frames = case.flows as usize;
    let captures: Vec<&Path> = captures.iter().map(PathBuf::as_path).collect();
    let start = |tuning| Testpmd::start(&captures, frames, tuning, memory, cpus);
    let mut best: Option<(f64, Tuning)> = None;
    let mut last = None;
    for cache in CACHES {
        // Two at once would take the memory of two.
        drop(last.take());
        let first = Tuning {
            burst: BURSTS[0],
            cache,
        };
        let mut limit = start(first)?;
        for burst in BURSTS {
            limit.set_burst(burst)?;
            let tuning = Tuning { burst, cache };
            let tried = measure(&mut limit, Duration::ZERO, TRIAL)?;
            note("trial", &limit, &format!("burst {burst} cache {cache}"), tried);
            resume(&limit)?;
            if best.is_none_or(|(mpps, _)| tried.mpps() > mpps) {
                best = Some((tried.mpps(), tuning));
            }
        }
        last = Some((limit, cache));
    }
    let (_, tuning) = best.context("the limit was never measured")?;
    let mut limit = match last.take() {
        Some((limit, cache)) if cache == tuning.cache => limit,
        other => {
            drop(other);
            start(tuning)?
        }
    };
    limit.set_burst(tuning.burst)?;
    limit.packets()?;
    suspend(&limit)?;
    Ok((limit, tuning))
}

/// A folder for captures and databases that goes with its owner.
pub(super) struct Folder {
    pub(super) path: std::path::PathBuf,
    _removed: Undo,
}

impl Folder {
    /// An empty one.
    pub(super) fn new() -> Result<Folder> {
        let path = std::env::temp_dir().join(format!("inco-bench-{}", std::process::id()));
        std::fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        let removed = path.clone();
        Ok(Folder {
            path,
            _removed: Undo::by(move || {
                let _gone = std::fs::remove_dir_all(removed);
            }),
        })
    }
}
