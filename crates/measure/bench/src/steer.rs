//! Steering of established flows, compared with the I/O limit and with OVS.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use flow_table::{FlowHasher, Ownership};
use serde::Serialize;

use super::cleanup::Cleanup;
use super::contestant::{Contestant, Measured, measure, median, resume, suspend};
use super::facts::facts;
use super::memif_sinks::MemifSinks;
use super::memory::Memory;
use super::naive::{self, Naive};
use super::ovs::{self, Ovs};
use super::raw::Raw;
use super::steering::{MEMIF_LOG2_SLOTS, SCHEDULER, Spec, Steering, Way, captures};
use super::testpmd::{BURSTS, CACHES, Testpmd, Tuning};
use super::traffic::{Ip, ends, write_capture};
use crate::args::{SinkPort, SteerArgs};
use display::output;
use display::table::{Table, grouped};

/// Measured time of each contestant per round.
const WINDOW: Duration = Duration::from_millis(700);
/// Measured time per candidate in the search for the limit's best tuning.
const TRIAL: Duration = Duration::from_millis(400);
/// New flows per second that OVS is assumed to set up before it is measured.
const OVS_SET_UPS: f64 = 12_000.0;
/// Maximum warm-up time of OVS.
const OVS_WARM_UP: Duration = Duration::from_secs(10);
/// Instances that take flows, except in the cases that vary their number.
const ACTIVE_INSTANCES: u16 = 4;
/// Capacity of the flow tables beyond the bench's flows.
const SPARE_FLOWS: usize = 10_000;

/// One row of the result. Rates are in millions of packets per second and core.
#[derive(Clone, Debug, Serialize)]
struct Row {
    flows: u32,
    size: usize,
    ip: &'static str,
    instances: u16,
    workers: usize,
    /// Whether a flow may arrive at either of two workers, whichever owns it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    crossing: bool,
    port: &'static str,
    mpps: f64,
    io_limit_mpps: f64,
    ovs_mpps: Option<f64>,
    /// Rate of the plain flow table in C, if it takes part.
    naive_mpps: Option<f64>,
    ratio_to_limit: f64,
    ratio_to_ovs: Option<f64>,
    /// `None` also if the plain flow table missed its minimum rate.
    ratio_to_naive: Option<f64>,
    /// Ratio to the first case of the same comparison.
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio_to_first: Option<f64>,
}

/// The parameters of one measurement.
#[derive(Clone, Copy, Debug)]
struct Case {
    flows: u32,
    size: usize,
    ip: Ip,
    instances: u16,
    /// Standby instances among them.
    idle: u16,
    workers: usize,
    ownership: Ownership,
    port: SinkPort,
    with_ovs: bool,
}

impl Case {
    /// Whether OVS takes part.
    fn has_room_in_ovs(self) -> bool {
        self.with_ovs && self.flows as usize <= ovs::FRAMES_LIMIT
    }

    /// Whether the plain flow table takes part: only with one worker and DPDK's sinks.
    fn has_naive(self) -> bool {
        self.workers == 1 && self.port == SinkPort::NetNull
    }

    /// Appends a measurement to the raw results.
    fn note(self, raw: &mut Raw, round: &str, who: &dyn Contestant, tuning: &str, measured: Measured) {
        raw.row(&[
            self.flows.to_string(),
            self.size.to_string(),
            self.ip.name().to_owned(),
            self.instances.to_string(),
            self.workers.to_string(),
            self.port.name().to_owned(),
            round.to_owned(),
            who.name().to_owned(),
            tuning.to_owned(),
            measured.packets.to_string(),
            format!("{:.6}", measured.seconds),
            format!("{:.4}", measured.mpps()),
            who.commands().join(" && "),
        ]);
    }

    /// The flows that arrive at a worker: those that a configured card would deal to it, or an arbitrary share.
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

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (flows, instances) = (grouped(self.flows.into()), self.instances);
        let (size, ip, port) = (self.size, self.ip.name(), self.port.name());
        write!(
            f,
            "{flows} flows, {size} B, {ip}, {instances} instances on {port}"
        )?;
        f.write_str(match (self.workers, self.ownership) {
            (1, _) => "",
            (_, Ownership::Card) => ", two workers",
            (_, Ownership::Keyed) => ", two workers, half of the packets cross",
        })
    }
}

/// Runs the bench.
pub(super) fn run(args: &SteerArgs) -> Result<()> {
    let mut raw = None;
    let mut rows = Vec::new();
    let mut hash_rows = Vec::new();
    let with_ovs = !args.no_ovs && ovs::is_there();
    for cases in cases(args, with_ovs) {
        for case in &cases {
            output::complain(&format!("{case} ..."));
        }
        for (row, hash) in compare(args, &cases, &mut raw)? {
            rows.push(row);
            hash_rows.push(hash);
        }
        // Written after each comparison, so that an interrupted bench keeps its results.
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
        ">naive",
        ">÷ limit",
        ">÷ ovs",
        ">÷ naive",
        ">÷ first",
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
            optional(row.naive_mpps, 1),
            format!("{:.2}", row.ratio_to_limit),
            optional(row.ratio_to_ovs, 1),
            optional(row.ratio_to_naive, 2),
            optional(row.ratio_to_first, 2),
        ]);
    }
    output::text(&table.text())?;
    output::line(format!(
        "Mpps per core; the limit is testpmd without a lookup; naive: a plain flow table in C; ÷ first: to the \
         first of rows measured in turn. All measurements: {}",
        args.csv.display()
    ))
}

/// The comparisons; the cases of one are measured in turn.
fn cases(args: &SteerArgs, with_ovs: bool) -> Vec<Vec<Case>> {
    let plain = |flows| Case {
        flows,
        size: 64,
        ip: args.ip,
        instances: ACTIVE_INSTANCES,
        idle: 0,
        workers: 1,
        ownership: Ownership::Card,
        port: args.port,
        with_ovs,
    };
    let mut cases: Vec<Vec<Case>> = args.flows.iter().map(|&flows| vec![plain(flows)]).collect();
    if args.full {
        let more = Case {
            with_ovs: false,
            ..plain(10_000)
        };
        cases.extend([512, 1500].map(|size| vec![Case { size, ..more }]));
        cases.push(vec![Case { ip: Ip::V6, ..more }]);
        let two = [Ownership::Card, Ownership::Keyed].map(|ownership| Case {
            workers: 2,
            ownership,
            ..more
        });
        cases.push([more].into_iter().chain(two).collect());
        let on_null = [4, 16, 64, 256].map(|instances| Case {
            instances,
            port: SinkPort::Null,
            ..more
        });
        cases.push(on_null.to_vec());
        let on_memif = [ACTIVE_INSTANCES, 64].map(|instances| Case {
            instances,
            idle: instances - ACTIVE_INSTANCES,
            port: SinkPort::Memif,
            ..more
        });
        cases.push(on_memif.to_vec());
    }
    cases
}

fn allowed_cpus() -> Result<Vec<usize>> {
    let allowed = rustix::thread::sched_getaffinity(None).context("cannot tell which CPUs may be used")?;
    Ok((0..rustix::thread::CpuSet::MAX_CPU)
        .filter(|&cpu| allowed.is_set(cpu))
        .collect())
}

/// The CPU for everything else and the measured CPU: the first and the last that this process may use.
pub(super) fn cpus() -> Result<(usize, usize)> {
    match allowed_cpus()?.as_slice() {
        [first, .., last] => Ok((*first, *last)),
        _ => anyhow::bail!("a bench needs two CPUs: one for the measured thread, one for everything else"),
    }
}

/// One CPU per worker: the last ones. If there are no more CPUs than workers, one worker shares its CPU with
/// everything else, which does not count as its CPU time.
fn worker_cpus(workers: usize) -> Result<Vec<usize>> {
    let all = allowed_cpus()?;
    let first = all.len().checked_sub(workers);
    let last = first.and_then(|first| all.get(first..));
    Ok(last
        .with_context(|| format!("{workers} workers need {workers} CPUs; available: {}", all.len()))?
        .to_vec())
}

/// Measures these cases in turn, one round of each at a time; returns their rows, and OVS's rate with a hash.
fn compare(args: &SteerArgs, cases: &[Case], raw: &mut Option<Raw>) -> Result<Vec<(Row, Option<f64>)>> {
    let folder = Folder::new()?;
    let frames = cases.iter().map(|case| case.flows as usize).max().unwrap_or(0);
    // The limit and inco for each case, and the plain flow table if it takes part.
    let with_naive = || cases.iter().filter(|case| case.has_naive());
    let memory = Memory::reserve(
        2 * cases.len() + with_naive().count(),
        frames,
        with_naive()
            .map(|case| naive::table_mib(case.flows as usize, case.ip) + 1)
            .sum(),
        cases.iter().any(|case| case.has_room_in_ovs()),
    );
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
    let naive = match with_naive().next() {
        Some(_) => Some(naive::compile(&folder.path)?),
        None => None,
    };
    let mut bouts = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        bouts.push(Comparison::start(
            *case,
            &folder.path.join(number.to_string()),
            naive.as_deref(),
            &memory,
            raw,
        )?);
    }
    for round in 1..=args.rounds {
        for bout in &mut bouts {
            bout.round(&round.to_string(), raw)?;
        }
    }
    let first: Vec<f64> = match bouts.as_slice() {
        [first, _, ..] => first.rounds.iter().map(|round| round.ours).collect(),
        _ => Vec::new(),
    };
    let mut rows = Vec::new();
    for mut bout in bouts {
        bout.check_steering()?;
        let hash = match args.json {
            true => None,
            false => bout.hash(args.rounds, raw)?,
        };
        rows.push((bout.row(&first), hash));
    }
    Ok(rows)
}

/// The rates of a round, in millions of packets per second.
#[derive(Clone, Copy, Debug)]
struct Round {
    ours: f64,
    limit: f64,
    naive: Option<f64>,
    ovs: Option<f64>,
}

/// The contestants of a case. Only the measured one runs.
struct Comparison {
    case: Case,
    limit: Testpmd,
    tuning: Tuning,
    steering: Steering,
    naive: Option<Naive>,
    ovs: Option<Ovs>,
    rounds: Vec<Round>,
    /// Receive the packets that inco sends to memif instances.
    _sinks: Option<MemifSinks>,
}

impl Comparison {
    fn start(
        case: Case,
        folder: &Path,
        naive: Option<&Path>,
        memory: &Memory,
        raw: &mut Raw,
    ) -> Result<Comparison> {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let (control, cpu) = cpus()?;
        let worker_cpus = worker_cpus(case.workers)?;
        let captures = captures(folder, case.workers);
        let mut frames = 0;
        for (worker, capture) in captures.iter().enumerate() {
            let flows = case.flows_of(worker);
            frames = flows.clone().count().max(frames);
            write_capture(capture, case.ip, flows, case.size)?;
        }
        let (limit, tuning) = best_limit(&captures, case, memory, (control, &worker_cpus), raw)?;
        let sinks = match case.port {
            SinkPort::Memif => Some(MemifSinks::start(folder, case.instances, control)?),
            SinkPort::NetNull | SinkPort::Null => None,
        };
        let steering = Steering::start(&Spec {
            scheduler: SCHEDULER.to_owned(),
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
            log2_slots: MEMIF_LOG2_SLOTS,
            cpus: worker_cpus,
            control_cpu: control,
            table_flows: case.flows as usize + SPARE_FLOWS,
            return_counters: false,
            is_dealt: case.ownership == Ownership::Card,
        })?;
        suspend(&steering)?;
        let mut plain = None;
        if let (Some(program), Some(capture), true) = (naive, captures.first(), case.has_naive()) {
            let flows = (case.ip, case.flows);
            let mut started = Naive::start(program, capture, flows, case.instances, memory, (control, cpu))?;
            measure(&mut started, Duration::ZERO, TRIAL)?;
            plain = Some(started);
        }
        let mut ovs = None;
        if let Some(capture) = captures.first().filter(|_| case.has_room_in_ovs()) {
            let flows = (case.ip, case.flows);
            let started = Ovs::start(
                &folder.join("ovs"),
                capture,
                flows,
                case.instances.into(),
                memory,
                (control, cpu),
            )
            .and_then(|mut ovs| {
                let warm_up = Duration::from_secs_f64(f64::from(case.flows) / OVS_SET_UPS).min(OVS_WARM_UP);
                measure(&mut ovs, warm_up, TRIAL)?;
                Ok(ovs)
            });
            match started {
                Ok(started) => ovs = Some(started),
                // The other results are still useful.
                Err(error) => output::complain(&format!("inco: OVS is left out: {error:#}")),
            }
        }
        Ok(Comparison {
            case,
            limit,
            tuning,
            steering,
            naive: plain,
            ovs,
            rounds: Vec::new(),
            _sinks: sinks,
        })
    }

    /// Measures each contestant once.
    fn round(&mut self, round: &str, raw: &mut Raw) -> Result<()> {
        let case = self.case;
        let text = format!("burst {} cache {}", self.tuning.burst, self.tuning.cache);
        let limit = measure(&mut self.limit, Duration::ZERO, WINDOW)?;
        case.note(raw, round, &self.limit, &text, limit);
        let ours = measure(&mut self.steering, Duration::ZERO, WINDOW)?;
        case.note(raw, round, &self.steering, "", ours);
        let others = [
            self.naive.as_mut().map(|naive| naive as &mut dyn Contestant),
            self.ovs.as_mut().map(|ovs| ovs as &mut dyn Contestant),
        ];
        let mut rates = [None; 2];
        for (other, rate) in others.into_iter().zip(&mut rates) {
            if let Some(other) = other {
                let measured = measure(other, Duration::ZERO, WINDOW)?;
                case.note(raw, round, other, "", measured);
                *rate = Some(measured.mpps());
            }
        }
        let [naive, ovs] = rates;
        self.rounds.push(Round {
            ours: ours.mpps(),
            limit: limit.mpps(),
            naive,
            ovs,
        });
        Ok(())
    }

    /// Checks that the packets reached the right instances.
    fn check_steering(&mut self) -> Result<()> {
        let case = self.case;
        resume(&self.steering)?;
        // A worker without a CPU of its own cannot process all packets handed to it, nor can the thread that empties
        // memif ports. The rate does not include packets dropped for that.
        let may_be_dropped = case.workers > 1 || case.port == SinkPort::Memif;
        let checked = self.steering.check(case.flows.into(), may_be_dropped);
        suspend(&self.steering)?;
        checked?;
        if let Some(naive) = &mut self.naive {
            resume(naive)?;
            let known = naive.flows();
            suspend(naive)?;
            let known = known?;
            anyhow::ensure!(
                known == u64::from(case.flows),
                "the plain flow table has {known} of {} flows",
                case.flows
            );
        }
        Ok(())
    }

    /// OVS's rate with a group that selects by hash, if OVS takes part.
    fn hash(&mut self, rounds: u32, raw: &mut Raw) -> Result<Option<f64>> {
        let Some(ovs) = &mut self.ovs else {
            return Ok(None);
        };
        // Its control thread must run to accept the group.
        resume(ovs)?;
        ovs.select_by_hash(self.case.instances.into())?;
        let mut rates = Vec::new();
        for round in 1..=rounds {
            let theirs = measure(ovs, Duration::ZERO, WINDOW)?;
            self.case.note(raw, &round.to_string(), ovs, "", theirs);
            rates.push(theirs.mpps());
        }
        Ok(Some(median(rates)))
    }

    /// The result. `first` has inco's rates, by round, of the first case of the comparison; empty if there is only
    /// one case.
    fn row(&self, first: &[f64]) -> Row {
        let (case, rounds) = (self.case, || self.rounds.iter());
        let some = |value: f64| self.ovs.is_some().then_some(value);
        let plain = |value: f64| self.naive.is_some().then_some(value);
        let reached = median(rounds().filter_map(|r| Some(r.naive? / r.limit)));
        let is_valid = reached >= naive::floor(case.flows);
        if self.naive.is_some() && !is_valid {
            output::complain(&format!(
                "inco: {case}: no ratio to the plain flow table: it reached {reached:.2} of the I/O limit; {:.2} is \
                 required",
                naive::floor(case.flows)
            ));
        }
        Row {
            flows: case.flows,
            size: case.size,
            ip: case.ip.name(),
            instances: case.instances,
            workers: case.workers,
            crossing: case.workers > 1 && case.ownership == Ownership::Keyed,
            port: case.port.name(),
            mpps: median(rounds().map(|r| r.ours)),
            io_limit_mpps: median(rounds().map(|r| r.limit)),
            ovs_mpps: some(median(rounds().filter_map(|r| r.ovs))),
            naive_mpps: plain(median(rounds().filter_map(|r| r.naive))),
            ratio_to_naive: plain(median(rounds().filter_map(|r| Some(r.ours / r.naive?))))
                .filter(|_| is_valid),
            ratio_to_limit: median(rounds().map(|r| r.ours / r.limit)),
            ratio_to_ovs: some(median(rounds().filter_map(|r| Some(r.ours / r.ovs?)))),
            ratio_to_first: (!first.is_empty())
                .then(|| median(rounds().zip(first).map(|(round, first)| round.ours / first))),
        }
    }
}

/// The limit, with the best burst and cache size for this case.
fn best_limit(
    captures: &[PathBuf],
    case: Case,
    memory: &Memory,
    cpus: (usize, &[usize]),
    raw: &mut Raw,
) -> Result<(Testpmd, Tuning)> {
    let frames = case.flows as usize;
    let captures: Vec<&Path> = captures.iter().map(PathBuf::as_path).collect();
    let start = |tuning| Testpmd::start(&captures, frames, tuning, memory, cpus);
    let mut best: Option<(f64, Tuning)> = None;
    let mut last = None;
    for cache in CACHES {
        // Two at once would need twice the memory.
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
            case.note(
                raw,
                "trial",
                &limit,
                &format!("burst {burst} cache {cache}"),
                tried,
            );
            resume(&limit)?;
            if best.is_none_or(|(mpps, _)| tried.mpps() > mpps) {
                best = Some((tried.mpps(), tuning));
            }
        }
        last = Some((limit, cache));
    }
    let (_, tuning) = best.context("the I/O limit was not measured")?;
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

/// A folder for captures and databases, removed when dropped.
pub(super) struct Folder {
    pub(super) path: std::path::PathBuf,
    _removed: Cleanup,
}

impl Folder {
    /// Creates an empty one.
    pub(super) fn new() -> Result<Folder> {
        let path = std::env::temp_dir().join(format!("inco-bench-{}", std::process::id()));
        std::fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        let removed = path.clone();
        Ok(Folder {
            path,
            _removed: Cleanup::by(move || {
                let _gone = std::fs::remove_dir_all(removed);
            }),
        })
    }
}
