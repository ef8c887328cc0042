//! Reaction time: from the first packet beyond capacity to the first packet returned by an added instance.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use model::{InstanceId, InstanceState};
use serde::Serialize;
use traffic::{Control, Generator, LengthSource, MemifPort, Phase, Profile, Rate, Span, Verify};

use super::cleanup::Cleanup;
use super::facts::facts;
use super::observed::{ObservedPort, Observer};
use super::raw::Raw;
use crate::args::{AddedFrom, ReactArgs};
use display::output;
use display::table::Table;
use images::EngineName;
use testbed::{Environment, FORWARD_IMAGE, Interrupt, Session, SwitchName, make_image};

/// Configured capacity of an instance, in packets per second. It is far below the actual capacity: the bench measures
/// when the next instance serves, not packet loss until then.
const CAPACITY_PPS: f64 = 20e3;
/// Packets per second before the load step and after it.
const BASE_PPS: f64 = 5e3;
const STEP_PPS: f64 = 200e3;
const BASE_FLOWS: u32 = 8;
const STEP_FLOWS: u32 = 32;
/// New flows per second from the step on, of one packet each. The added instance gets some of them.
const ARRIVALS: f64 = 10e3;
/// Time before the step.
const BASE_TIME: Duration = Duration::from_millis(400);
/// Address ranges (`10.N.0.1` and following) of the flows before the step and after it.
const BASE_GROUP: u8 = 0;
const STEP_GROUP: u8 = 1;
const ARRIVALS_GROUP: u8 = 64;
/// Maximum time to wait for the added instance.
const REACTION_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time until only one instance is active again.
const TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Nice value of the generator. It yields the CPU to inco, because it stands for a network, which takes no CPU time.
const GENERATOR_NICE: i32 = 10;
/// Maximum discarded rounds per counted round; beyond it the machine is too busy to measure.
const FALSE_STARTS: u32 = 4;

impl AddedFrom {
    const ALL: [AddedFrom; 4] = [
        AddedFrom::Warm,
        AddedFrom::Paused,
        AddedFrom::Oci,
        AddedFrom::Docker,
    ];

    fn name(self) -> &'static str {
        match self {
            AddedFrom::Warm => "warm",
            AddedFrom::Paused => "paused",
            AddedFrom::Oci => "oci",
            AddedFrom::Docker => "docker",
        }
    }

    fn engine(self) -> EngineName {
        match self {
            AddedFrom::Docker => EngineName::Docker,
            _ => EngineName::Oci,
        }
    }

    /// Number and kind of standbys.
    fn standby(self) -> (u32, &'static str) {
        match self {
            AddedFrom::Warm => (1, "warm"),
            AddedFrom::Paused => (1, "paused"),
            AddedFrom::Oci | AddedFrom::Docker => (0, "warm"),
        }
    }
}

/// One row of the result.
#[derive(Clone, Debug, Serialize)]
struct Row {
    from: &'static str,
    reactions: usize,
    p50_ms: f64,
    p99_ms: f64,
    max_ms: f64,
}

/// Runs the bench.
pub(super) fn run(args: &ReactArgs) -> Result<()> {
    let mut raw = Raw::new(&facts(false), &["from", "round", "reaction_ms"]);
    let mut rows = Vec::new();
    for from in AddedFrom::ALL {
        if !args.from.is_empty() && !args.from.contains(&from) {
            continue;
        }
        let measured = measure(from, args.rounds);
        let times = match measured {
            Ok(times) => times,
            // The other origins are still useful, unless this one was requested.
            Err(error) if args.from.is_empty() => {
                output::complain(&format!("inco: {} is left out: {error:#}", from.name()));
                continue;
            }
            Err(error) => return Err(error),
        };
        for (round, ms) in (1..).zip(&times) {
            let round: u32 = round;
            raw.row(&[from.name().to_owned(), round.to_string(), format!("{ms:.4}")]);
        }
        rows.push(row(from, times));
        raw.write(&args.csv)?;
    }
    if rows.is_empty() {
        bail!("nothing could be measured");
    }
    if args.json {
        return output::json(&rows, output::is_terminal());
    }
    let mut table = Table::new(&["added from", ">reactions", ">p50", ">p99", ">max"]);
    for row in &rows {
        table.row([
            row.from.to_owned(),
            row.reactions.to_string(),
            format!("{:.2} ms", row.p50_ms),
            format!("{:.2} ms", row.p99_ms),
            format!("{:.2} ms", row.max_ms),
        ]);
    }
    output::text(&table.text())?;
    output::line(format!(
        "Time from the first packet above the capacity to the first packet that the added instance returned. All \
         reactions: {}",
        args.csv.display()
    ))
}

fn row(from: AddedFrom, mut times_ms: Vec<f64>) -> Row {
    times_ms.sort_by(f64::total_cmp);
    // The percentile `of_100` by nearest rank.
    let at = |of_100: usize| {
        let rank = (times_ms.len() * of_100).div_ceil(100).max(1);
        times_ms.get(rank - 1).copied().unwrap_or_default()
    };
    Row {
        from: from.name(),
        reactions: times_ms.len(),
        p50_ms: at(50),
        p99_ms: at(99),
        max_ms: at(100),
    }
}

/// The measured inco's configuration: one instance, and a second one under load.
fn configuration(from: AddedFrom, engine: &str) -> String {
    let (standby, mode) = from.standby();
    format!(
        r#"# Written by `inco bench react`.
[engine]
driver = {engine:?}

[switch]
flows = 65536
timeouts = {{ udp = "150ms" }}

[[uplink]]
name = "wan"
device = "memif:wan.sock"

[service.forward]
image = {FORWARD_IMAGE:?}
command = ["/inco-nf", "forward", "--stamp"]
cpus = 1.0
memory = "64MiB"
ready = "connected"
ready_deadline = "30s"
capacity = "{CAPACITY_PPS:.0}pps"
instances = {{ min = 1, max = 2, standby = {standby}, standby_mode = {mode:?} }}
scheduler = {{ policy = "round-robin", slow_start = "0s", spill = false }}
autoscaler = {{ policy = "ladder", window = "100ms", calm = "100ms", burst = "100ms" }}
"#
    )
}

/// Reaction times, in milliseconds.
fn measure(from: AddedFrom, rounds: u32) -> Result<Vec<f64>> {
    make_image(from.engine())?;
    let ground = Environment::new(from.engine(), SwitchName::Soft, false, Interrupt::default())?;
    let directory = ground.directory().to_owned();
    // If the bench is interrupted; inco itself ends with this process.
    let _removed = Cleanup::by(move || {
        let _gone = std::fs::remove_dir_all(directory);
    });
    let text = configuration(from, ground.engine_word());
    let mut session = Session::start(&ground, &format!("react-{}", from.name()), &text, 1)?;
    let mut port = [ObservedPort::new(session.uplink()?, StepWatch::default())];
    let (mut times, mut false_starts) = (Vec::new(), 0);
    while times.len() < rounds as usize {
        let serving = wait_for_one_instance(&mut session, from)?;
        match react(&mut port, serving)? {
            Reaction::After(ms) => times.push(ms),
            // After a time without a CPU, the switch processes a backlog at more than an instance's capacity.
            Reaction::Early => false_starts += 1,
        }
        if false_starts > rounds * FALSE_STARTS {
            bail!(
                "in {false_starts} rounds an instance was added before the load rose ({} rounds counted): other \
                 programs use the CPUs; measure on an idle machine",
                times.len()
            );
        }
    }
    if false_starts > 0 {
        output::complain(&format!(
            "inco: {}: {false_starts} more rounds do not count: an instance was added before the load rose, because \
             other programs use the CPUs",
            from.name()
        ));
    }
    drop(port);
    let left = session.stop()?;
    if !left.is_empty() {
        bail!("inco left behind: {}", left.join(", "));
    }
    Ok(times)
}

/// Waits for one active instance and all standbys; returns the active one.
fn wait_for_one_instance(session: &mut Session<'_>, from: AddedFrom) -> Result<InstanceId> {
    let (standby, _) = from.standby();
    let since = Instant::now();
    loop {
        session.check()?;
        let services = session.client()?.services()?;
        let instances = session.client()?.instances()?;
        session.note(&instances);
        let is_calm = |row: &api::types::ServiceRow| {
            row.active == 1 && row.standby == standby && row.starting == 0 && row.draining == 0
        };
        let there = instances
            .iter()
            .filter(|row| row.state != InstanceState::Gone)
            .count();
        let active = instances.iter().find(|row| row.state == InstanceState::Active);
        if let Some(active) = active
            && services.iter().all(is_calm)
            && there == 1 + standby as usize
        {
            return Ok(active.id);
        }
        if since.elapsed() > TIMEOUT {
            bail!("more than one instance is left after {} s", TIMEOUT.as_secs());
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// The time of the first packet from another instance.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Reaction {
    /// Milliseconds after the load step.
    After(f64),
    /// Before the load step.
    Early,
}

/// Raises the load above the capacity of `serving` until another instance serves.
fn react(port: &mut [ObservedPort<MemifPort, StepWatch>; 1], serving: InstanceId) -> Result<Reaction> {
    let phase = |group: u8, start: Duration, duration: Duration| Phase {
        start: Span(start),
        duration: Span(duration),
        src: std::net::IpAddr::from([10, group, 0, 1]),
        ..Phase::default()
    };
    let profile = Profile {
        interval: Span::from_millis(1),
        settle: Span::from_millis(20),
        verify: Verify::Off,
        phases: vec![
            Phase {
                flows: BASE_FLOWS,
                rate: Some(Rate(BASE_PPS)),
                ..phase(BASE_GROUP, Duration::ZERO, BASE_TIME + REACTION_TIMEOUT)
            },
            Phase {
                flows: STEP_FLOWS,
                rate: Some(Rate(STEP_PPS)),
                ..phase(STEP_GROUP, BASE_TIME, REACTION_TIMEOUT)
            },
            Phase {
                flows: (ARRIVALS * REACTION_TIMEOUT.as_secs_f64()) as u32,
                arrivals: Some(ARRIVALS),
                lengths: Some(LengthSource::Packets(1)),
                rate_per_flow: Some(Rate(ARRIVALS)),
                ..phase(ARRIVALS_GROUP, BASE_TIME, REACTION_TIMEOUT)
            },
        ],
        ..Profile::default()
    };
    port[0].observer.watch_for(serving);
    let generator = Generator::new(profile)?;
    let control = Control::new();
    let seen = Arc::clone(&port[0].observer.seen);
    // In a thread of its own, so that the nice value applies to it alone.
    std::thread::scope(|scope| {
        let running = scope.spawn(|| -> Result<()> {
            let nice = rustix::process::getpriority_process(None)?;
            rustix::process::setpriority_process(None, nice + GENERATOR_NICE)
                .context("cannot lower the generator's priority")?;
            generator.run(port, &control, |_| {
                if seen.is_complete() {
                    control.stop();
                }
            })?;
            Ok(())
        });
        running
            .join()
            .map_err(|_| anyhow!("the generator ended with a panic"))?
    })?;
    let waited = || {
        format!(
            "no second instance returned a packet within {} s",
            REACTION_TIMEOUT.as_secs()
        )
    };
    seen.reaction().with_context(waited)
}

/// Times of the two packets on the monotonic clock, in ns; 0 for not yet.
#[derive(Debug, Default)]
struct StepTimes {
    beyond_ns: AtomicU64,
    served_ns: AtomicU64,
}

impl StepTimes {
    fn is_complete(&self) -> bool {
        self.reaction().is_some()
    }

    /// The reaction, once known.
    fn reaction(&self) -> Option<Reaction> {
        let (beyond, served) = (self.beyond_ns.load(Relaxed), self.served_ns.load(Relaxed));
        let has_begun_early = served > 0 && (beyond == 0 || served < beyond);
        match has_begun_early {
            true => Some(Reaction::Early),
            false => (served > 0).then(|| Reaction::After((served - beyond) as f64 / 1e6)),
        }
    }
}

/// Records when the first packet of the step is sent and when the first packet of another instance returns.
#[derive(Default)]
struct StepWatch {
    serving: u32,
    seen: Arc<StepTimes>,
}

impl StepWatch {
    /// Resets the record.
    fn watch_for(&mut self, serving: InstanceId) {
        self.serving = stamp::instance_mark(serving.0);
        self.seen = Arc::default();
    }

    fn note(place: &AtomicU64) {
        if place.load(Relaxed) == 0 {
            place.store(clock::monotonic().0, Relaxed);
        }
    }
}

impl Observer for StepWatch {
    fn sent(&mut self, frame: &[u8]) {
        if is_of_step(frame) {
            Self::note(&self.seen.beyond_ns);
        }
    }

    fn returned(&mut self, frame: &[u8]) {
        let stamp = stamp::read(frame);
        if stamp.is_some_and(|stamp| stamp.instance != 0 && stamp.instance != self.serving) {
            Self::note(&self.seen.served_ns);
        }
    }
}

/// Whether a frame's source address belongs to the step.
fn is_of_step(frame: &[u8]) -> bool {
    frame.get(27).is_some_and(|group| *group >= STEP_GROUP)
}

#[cfg(test)]
mod tests {
    use traffic::{LoopbackPort, Port as _};

    use super::*;

    #[test]
    fn percentiles_are_times_that_were_seen() {
        let row = row(AddedFrom::Warm, (1..=200).rev().map(f64::from).collect());
        assert_eq!((row.p50_ms, row.p99_ms, row.max_ms), (100.0, 198.0, 200.0));
        let one = super::row(AddedFrom::Oci, vec![7.0]);
        assert_eq!((one.p50_ms, one.p99_ms, one.max_ms), (7.0, 7.0, 7.0));
    }

    #[test]
    fn configurations_are_right() {
        for from in AddedFrom::ALL {
            let engine = if from == AddedFrom::Docker {
                "docker"
            } else {
                "oci"
            };
            let text = configuration(from, engine);
            let read = orchestrator::load::parse(&text, "react.toml").unwrap();
            let instances = &read.services[0].instances;
            assert_eq!(
                (instances.min, instances.max, instances.standby),
                (1, 2, from.standby().0)
            );
        }
    }

    #[test]
    fn an_instance_that_served_before_the_load_rose_did_not_react_to_it() {
        let seen = |beyond: u64, served: u64| StepTimes {
            beyond_ns: beyond.into(),
            served_ns: served.into(),
        };
        assert_eq!(seen(0, 0).reaction(), None);
        assert_eq!(seen(5, 0).reaction(), None);
        assert_eq!(seen(5, 2_000_005).reaction(), Some(Reaction::After(2.0)));
        assert_eq!(seen(0, 7).reaction(), Some(Reaction::Early));
        assert_eq!(seen(9, 7).reaction(), Some(Reaction::Early));
    }

    #[test]
    fn the_two_packets_are_noted() {
        let profile = |group: u8| Profile {
            settle: Span::from_millis(1),
            phases: vec![Phase {
                duration: Span::from_millis(2),
                rate: Some(Rate(1e3)),
                src: std::net::IpAddr::from([10, group, 0, 1]),
                ..Phase::default()
            }],
            ..Profile::default()
        };
        let mut port = [ObservedPort::new(LoopbackPort::new(64), StepWatch::default())];
        port[0].observer.watch_for(InstanceId(3));
        let send = |port: &mut [ObservedPort<LoopbackPort, StepWatch>; 1], group| {
            let generator = Generator::new(profile(group)).unwrap();
            generator.run(port, &Control::new(), |_| {}).unwrap();
            let seen = &port[0].observer.seen;
            let noted = |place: &AtomicU64| place.load(Relaxed) > 0;
            (noted(&seen.beyond_ns), noted(&seen.served_ns))
        };
        assert_eq!(send(&mut port, BASE_GROUP), (false, false));
        assert_eq!(
            send(&mut port, STEP_GROUP),
            (true, false),
            "no instance has stamped it"
        );
        let mut frame = Vec::new();
        for (instance, is_other) in [(3, false), (4, true)] {
            let stamp = stamp::Stamp {
                instance: stamp::instance_mark(instance),
                ..stamp::Stamp::default()
            };
            frame.clear();
            let (src, dst) = super::super::traffic::ends(super::super::traffic::Ip::V4, 1);
            frame.extend(
                packet::build::Frame::udp(src, dst, &stamp.to_bytes())
                    .unwrap()
                    .to_vec()
                    .unwrap(),
            );
            port[0].push(&frame);
            port[0].flush();
            let mut buffer = [0; 2048];
            port[0].receive(&mut buffer).unwrap();
            assert_eq!(
                port[0].observer.seen.is_complete(),
                is_other,
                "instance {instance}"
            );
        }
    }
}
