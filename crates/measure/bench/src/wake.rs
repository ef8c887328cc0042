//! SmartLB's third experiment: three instances are active and one sleeps. A signal wakes it while new flows arrive;
//! another one sends it back. Before that, forged signals.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use model::{InstanceId, InstanceState};
use serde::Serialize;
use signal::{Key, Signal, Wish};
use traffic::{Control, Counts, Generator, LengthSource, MemifPort, Phase, Profile, Rate, Span, Verify};

use super::cleanup::Cleanup;
use super::contestant::median;
use super::facts::facts;
use super::observed::{ObservedPort, Observer};
use super::raw::Raw;
use crate::args::WakeArgs;
use display::output;
use display::table::Table;
use images::EngineName;
use testbed::{Environment, FORWARD_IMAGE, Interrupt, Session, SwitchName, make_image};

/// Instances that are active before the signal; one more sleeps.
const ACTIVE: u32 = 3;
/// CPU of an instance, and the work for each packet: some 4,500 packets a second.
const CPUS: f64 = 0.1;
const COST_NS: u64 = 20_000;
/// New flows per second of one packet each, by which shares are measured.
const NEW_FLOWS: f64 = 4_000.0;
/// Flows per second of so many packets each at so many packets per second: the load, more than three instances can do.
const LOAD_FLOWS: f64 = 120.0;
const LOAD_PACKETS: u32 = 100;
const LOAD_PPS: f64 = 200.0;
/// Flows that last for the whole run: none may move.
const LONG_FLOWS: u32 = 24;
const LONG_PPS: f64 = 25.0;
/// The second byte of their addresses.
const NEW_GROUP: u8 = 64;
const LOAD_GROUP: u8 = 32;
/// When the parts of a run begin, from its start.
const FORGED_AT: Duration = Duration::from_millis(2_000);
const WAKE_AT: Duration = Duration::from_millis(4_000);
const SLEEP_AT: Duration = Duration::from_millis(8_000);
const END: Duration = Duration::from_millis(10_000);
/// Shares are those of so much time.
const WINDOW_NS: u64 = 10_000_000;
/// The aim of the experiment: this part of the fair share within two seconds.
const AIM: f64 = 0.8;
/// How long inco has for a state.
const TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The result of one run.
#[derive(Clone, Debug, Serialize)]
struct Run {
    /// From the signal to the first packet of a new flow that the woken instance gave back, in milliseconds.
    first_flow_ms: f64,
    /// From the signal to the end of the first 10 ms in which it had 0.8 of its fair share of new flows.
    fair_share_ms: f64,
    /// Its share of new flows until the second signal, divided by the fair share.
    of_fair_share: f64,
    /// Packets per second that came back before the signal and after it.
    before_pps: f64,
    after_pps: f64,
    /// Flows that had another instance than their first, over the whole run.
    moved_flows: u64,
    /// New flows that it got later than 20 ms after the signal to sleep.
    flows_asleep: u64,
    /// Forged signals that were sent, and those that were refused. None changed anything.
    forged: u64,
    refused: u64,
}

/// The medians of all runs.
#[derive(Clone, Debug, Serialize)]
struct Outcome {
    runs: Vec<Run>,
    first_flow_ms: f64,
    fair_share_ms: f64,
    of_fair_share: f64,
    throughput_ratio: f64,
    moved_flows: u64,
    flows_asleep: u64,
}

/// Runs the bench.
pub(super) fn run(args: &WakeArgs) -> Result<()> {
    let columns = [
        "run",
        "first_flow_ms",
        "fair_share_ms",
        "of_fair_share",
        "before_pps",
        "after_pps",
        "moved_flows",
        "flows_asleep",
        "forged",
        "refused",
    ];
    let mut raw = Raw::new(&facts(false), &columns);
    let mut runs = Vec::new();
    for number in 1..=args.rounds {
        let run = measure()?;
        raw.row(&[
            number.to_string(),
            format!("{:.3}", run.first_flow_ms),
            format!("{:.3}", run.fair_share_ms),
            format!("{:.3}", run.of_fair_share),
            format!("{:.0}", run.before_pps),
            format!("{:.0}", run.after_pps),
            run.moved_flows.to_string(),
            run.flows_asleep.to_string(),
            run.forged.to_string(),
            run.refused.to_string(),
        ]);
        raw.write(&args.csv)?;
        runs.push(run);
    }
    let of = |of: fn(&Run) -> f64| median(runs.iter().map(of));
    let outcome = Outcome {
        first_flow_ms: of(|run| run.first_flow_ms),
        fair_share_ms: of(|run| run.fair_share_ms),
        of_fair_share: of(|run| run.of_fair_share),
        throughput_ratio: of(|run| run.after_pps / run.before_pps),
        moved_flows: runs.iter().map(|run| run.moved_flows).sum(),
        flows_asleep: runs.iter().map(|run| run.flows_asleep).sum(),
        runs,
    };
    if args.json {
        return output::json(&outcome, output::is_terminal());
    }
    let mut table = Table::new(&[
        ">run",
        ">first flow",
        ">fair share",
        ">÷ fair",
        ">before pps",
        ">after pps",
        ">moved",
        ">asleep",
        ">forged",
        ">refused",
    ]);
    for (number, run) in (1..).zip(&outcome.runs) {
        let number: u32 = number;
        table.row([
            number.to_string(),
            format!("{:.2} ms", run.first_flow_ms),
            format!("{:.2} ms", run.fair_share_ms),
            format!("{:.2}", run.of_fair_share),
            format!("{:.0}", run.before_pps),
            format!("{:.0}", run.after_pps),
            run.moved_flows.to_string(),
            run.flows_asleep.to_string(),
            run.forged.to_string(),
            run.refused.to_string(),
        ]);
    }
    output::text(&table.text())?;
    output::line(format!(
        "Times from the signal. Throughput after ÷ before: {:.2}. Moved flows, and new flows of the instance asleep, \
         must be 0. All runs: {}",
        outcome.throughput_ratio,
        args.csv.display()
    ))
}

fn configuration(engine: &str) -> String {
    let max = ACTIVE + 1;
    format!(
        r#"# Written by `inco bench wake`.
[engine]
driver = {engine:?}

[switch]
flows = 262144
timeouts = {{ udp = "1s" }}

[[uplink]]
name = "wan"
device = "memif:wan.sock"

[service.forward]
image = {FORWARD_IMAGE:?}
command = ["/inco-nf", "forward", "--stamp", "--cost-ns", "{COST_NS}", "--pace-cpus", "{CPUS}"]
cpus = {CPUS}
memory = "64MiB"
ready = "connected"
ready_deadline = "30s"
capacity = "1Mpps"
fit = 1.0
ring = {{ slots = 256 }}
instances = {{ min = {ACTIVE}, max = {max}, sleep = true }}
scheduler = {{ policy = "weighted", slow_start = "0s", spill = false }}
autoscaler = "fixed"
signals = true
stall_after = "5s"
"#
    )
}

/// One inco, from its start to its end.
fn measure() -> Result<Run> {
    make_image(EngineName::Oci)?;
    let ground = Environment::new(EngineName::Oci, SwitchName::Soft, false, Interrupt::default())?;
    let directory = ground.directory().to_owned();
    let of_cleanup = directory.clone();
    // If the bench is interrupted; inco itself ends with this process.
    let _removed = Cleanup::by(move || {
        let _gone = fs::remove_dir_all(of_cleanup);
    });
    let text = configuration(ground.engine_word());
    let mut session = Session::start(&ground, "wake", &text, ACTIVE)?;
    let sleeper = wait_for(&mut session, InstanceState::Standby, 1)?;
    let handset = Handset::of(&directory, sleeper)?;
    let port = ObservedPort::new(session.uplink()?, Witness::new(sleeper));
    let run = experiment(&mut session, port, &handset, sleeper);
    let left = session.stop()?;
    let run = run?;
    if !left.is_empty() {
        bail!("inco left behind: {}", left.join(", "));
    }
    Ok(run)
}

/// Waits until so many instances are in that state, and gives the last of them.
fn wait_for(session: &mut Session<'_>, state: InstanceState, count: usize) -> Result<InstanceId> {
    let since = Instant::now();
    loop {
        session.check()?;
        let instances = session.client()?.instances()?;
        session.note(&instances);
        let there: Vec<_> = instances.iter().filter(|row| row.state == state).collect();
        if let Some(last) = there.last()
            && there.len() == count
        {
            return Ok(last.id);
        }
        if since.elapsed() > TIMEOUT {
            bail!(
                "{} instances are {} after {} s, not {count}",
                there.len(),
                state.name(),
                TIMEOUT.as_secs()
            );
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Sends signals of one instance.
struct Handset {
    instance: InstanceId,
    key: Key,
    socket: PathBuf,
    port: UnixDatagram,
}

impl Handset {
    fn of(run_dir: &Path, instance: InstanceId) -> Result<Handset> {
        let file = run_dir.join("signals").join(format!("{}.key", instance.0));
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let known: serde_json::Value = serde_json::from_str(&text)?;
        let word = |key: &str| known.get(key).and_then(|of| of.as_str()).unwrap_or_default();
        Ok(Handset {
            instance,
            key: Key::from_text(word("key"))?,
            socket: PathBuf::from(word("socket")),
            port: UnixDatagram::unbound()?,
        })
    }

    fn signal(&self, wish: Wish) -> Signal {
        Signal {
            wish,
            instance: self.instance.0,
            counter: clock::monotonic().0,
        }
    }

    fn send(&self, frame: &[u8]) -> Result<()> {
        let sent = self.port.send_to(frame, &self.socket);
        sent.with_context(|| format!("cannot send to {}", self.socket.display()))?;
        Ok(())
    }

    /// Sends a genuine signal. Gives when.
    fn genuine(&self, wish: Wish) -> Result<u64> {
        let frame = self.signal(wish).frame(&self.key, [2; 6], [4; 6]);
        let at = clock::monotonic().0;
        self.send(&frame)?;
        Ok(at)
    }

    /// Sends forged signals, one after the other so that the switch looks at each. Gives how many.
    fn forged(&self) -> Result<u64> {
        let other = Key::of_random([0x5a; 24]);
        let signal = self.signal(Wish::Wake);
        let genuine = |signal: &Signal| signal.frame(&self.key, [2; 6], [4; 6]);
        let mut wrong_tag = genuine(&signal);
        wrong_tag[51] ^= 1;
        let mut wrong_version = genuine(&signal);
        wrong_version[14] = 2;
        let mut turned = genuine(&Signal {
            wish: Wish::Sleep,
            ..signal
        });
        turned[12..14].copy_from_slice(&signal::WAKE.to_be_bytes());
        let frames = [
            wrong_tag,
            wrong_version,
            turned,
            signal.frame(&other, [2; 6], [4; 6]),
            genuine(&Signal {
                instance: signal.instance + 1,
                ..signal
            }),
            genuine(&Signal { counter: 1, ..signal }),
        ];
        for frame in &frames {
            self.send(frame)?;
            // The switch looks at one a millisecond, and a function that is busy takes its time.
            std::thread::sleep(Duration::from_millis(30));
        }
        Ok(frames.len() as u64)
    }
}

fn profile() -> Profile {
    let seconds = END.as_secs_f64();
    let phase = |group: u8| Phase {
        duration: Span(END),
        src: std::net::IpAddr::from([10, group, 0, 1]),
        ..Phase::default()
    };
    let arrivals = |group: u8, rate: f64, packets: u32, pps: f64| Phase {
        flows: (rate * seconds * 1.2) as u32,
        arrivals: Some(rate),
        lengths: Some(LengthSource::Packets(packets)),
        rate_per_flow: Some(Rate(pps)),
        ..phase(group)
    };
    Profile {
        settle: Span::from_millis(200),
        verify: Verify::Off,
        phases: vec![
            Phase {
                flows: LONG_FLOWS,
                rate_per_flow: Some(Rate(LONG_PPS)),
                ..phase(0)
            },
            arrivals(LOAD_GROUP, LOAD_FLOWS, LOAD_PACKETS, LOAD_PPS),
            arrivals(NEW_GROUP, NEW_FLOWS, 1, NEW_FLOWS),
        ],
        ..Profile::default()
    }
}

/// Sends traffic, and meanwhile the signals.
fn experiment(
    session: &mut Session<'_>,
    port: ObservedPort<MemifPort, Witness>,
    handset: &Handset,
    sleeper: InstanceId,
) -> Result<Run> {
    let generator = Generator::new(profile())?;
    let control = Control::new();
    let mut ports = [port];
    let refused = |session: &Session<'_>| -> Result<u64> {
        Ok(session.client()?.counters()?.signals.refused.values().sum())
    };
    let (counts, wake, sleep, forged, refused) = std::thread::scope(|scope| -> Result<_> {
        let ports = &mut ports;
        let control = &control;
        let running = scope.spawn(move || generator.run(ports, control, |_| {}));
        let since = Instant::now();
        let mut steps = || -> Result<_> {
            let until = |at: Duration| std::thread::sleep(at.saturating_sub(since.elapsed()));
            until(FORGED_AT);
            let before = refused(session)?;
            let forged = handset.forged()?;
            wait_for(session, InstanceState::Active, ACTIVE as usize)?;
            until(WAKE_AT);
            let refused = refused(session)? - before;
            let wake = handset.genuine(Wish::Wake)?;
            wait_for(session, InstanceState::Active, ACTIVE as usize + 1)?;
            until(SLEEP_AT);
            let sleep = handset.genuine(Wish::Sleep)?;
            wait_for(session, InstanceState::Active, ACTIVE as usize)?;
            Ok((wake, sleep, forged, refused))
        };
        let done = steps();
        if done.is_err() {
            control.stop();
        }
        let report = running
            .join()
            .map_err(|_| anyhow!("the generator ended with a panic"))??;
        let (wake, sleep, forged, refused) = done?;
        Ok((report.counts, wake, sleep, forged, refused))
    })?;
    let [port] = ports;
    let seen = port.observer.seen;
    wait_for(session, InstanceState::Standby, 1)
        .with_context(|| format!("instance {sleeper} did not go back to sleep"))?;
    outcome(&seen, &counts, (wake, sleep), (forged, refused))
}

/// A packet that came back.
#[derive(Clone, Copy, Debug)]
struct Returned {
    at: u64,
    /// Whether it is the only one of its flow.
    is_new: bool,
    /// Whether the woken instance gave it back.
    is_woken: bool,
}

fn outcome(
    seen: &[Returned],
    counts: &Counts,
    (wake, sleep): (u64, u64),
    (forged, refused): (u64, u64),
) -> Result<Run> {
    let in_time = |from: u64, to: u64| seen.iter().filter(move |of| (from..to).contains(&of.at));
    let second = 1_000_000_000;
    let share = |from: u64, to: u64| {
        let new = || in_time(from, to).filter(|of| of.is_new);
        let woken = new().filter(|of| of.is_woken).count();
        woken as f64 / new().count().max(1) as f64
    };
    let fair = 1.0 / f64::from(ACTIVE + 1);
    let first = seen
        .iter()
        .find(|of| of.is_new && of.is_woken)
        .context("no new flow came to the woken instance")?;
    if first.at < wake {
        bail!("the instance had flows before it was woken");
    }
    let windows = (0..)
        .map(|n| wake + n * WINDOW_NS)
        .take_while(|from| *from < sleep);
    let mut ends = windows
        .map(|from| from + WINDOW_NS)
        .filter(|end| share(end - WINDOW_NS, *end) >= AIM * fair);
    let end = ends
        .next()
        .context("the woken instance never had 0.8 of its fair share of new flows")?;
    let ms = |at: u64| (at - wake) as f64 / 1e6;
    // What has been on its way at the signal may come back a moment later.
    let asleep = in_time(sleep + 20_000_000, u64::MAX).filter(|of| of.is_new && of.is_woken);
    Ok(Run {
        first_flow_ms: ms(first.at),
        fair_share_ms: ms(end),
        of_fair_share: share(wake, sleep) / fair,
        before_pps: in_time(wake - second, wake).count() as f64,
        after_pps: in_time(sleep - second, sleep).count() as f64,
        moved_flows: counts.mis_steered + counts.expected_moves,
        flows_asleep: asleep.count() as u64,
        forged,
        refused,
    })
}

/// Notes what comes back.
struct Witness {
    woken: u32,
    seen: Vec<Returned>,
}

impl Witness {
    fn new(woken: InstanceId) -> Witness {
        Witness {
            woken: stamp::instance_mark(woken.0),
            // Twice what can come.
            seen: Vec::with_capacity(600_000),
        }
    }
}

impl Observer for Witness {
    fn returned(&mut self, frame: &[u8]) {
        if let Some(stamp) = stamp::read(frame) {
            self.seen.push(Returned {
                at: clock::monotonic().0,
                // The second byte of the source address.
                is_new: frame.get(27).is_some_and(|group| *group >= NEW_GROUP),
                is_woken: stamp.instance == self.woken,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_times_are_those_after_the_signal() {
        let second = 1_000_000_000;
        let (wake, sleep) = (2 * second, 4 * second);
        // A new flow each millisecond; from 30 ms after the signal every second one is the woken instance's.
        let seen: Vec<Returned> = (0..5_000_u64)
            .map(|n| Returned {
                at: n * 1_000_000,
                is_new: true,
                is_woken: (2_030..4_000).contains(&n) && n % 2 == 0,
            })
            .collect();
        let counts = Counts::default();
        let run = outcome(&seen, &counts, (wake, sleep), (6, 6)).unwrap();
        assert_eq!((run.first_flow_ms, run.fair_share_ms), (30.0, 40.0));
        assert!((run.of_fair_share - 1.97).abs() < 0.01, "{run:?}");
        assert_eq!(
            (run.before_pps, run.after_pps, run.flows_asleep),
            (1_000.0, 1_000.0, 0)
        );
        assert!(outcome(&seen, &counts, (wake + second, sleep), (0, 0)).is_err());
    }
}
