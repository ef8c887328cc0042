//! Open vSwitch forwards, and inco steers with its rules. Measures packet loss while flows begin in bursts, instances
//! are added and removed, flows get and lose rules all the time, rules are written at full speed, the table is too small,
//! the connection is cut, and the switch is killed.
//!
//! Each case runs its own inco with real containers, as a user would; all share one Open vSwitch started by the
//! bench. Every packet is numbered and stamped by its instance.

mod relay;
mod rules;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use api::types::{FlowFilter, Status};
use serde::Serialize;
use traffic::{
    Control, Counts, Generator, LatencyUs, LengthSource, Phase, Profile, Rate, Report, Span, Trains, Verify,
};

use super::cleanup::Cleanup;
use super::facts::facts;
use super::raw::Raw;
use crate::args::{OpenflowArgs, OpenflowCase};
use display::output;
use display::table::{Table, grouped, short};
use images::EngineName;
use relay::Relay;
use testbed::{Environment, FORWARD_IMAGE, Interrupt, Session, SwitchName, make_image};

/// Minimum and maximum number of instances.
const MIN_INSTANCES: u32 = 3;
const MAX_INSTANCES: u32 = 8;
const SERVICE: &str = "forward";
/// The bridge that inco creates by default.
const BRIDGE: &str = "br-inco";
/// Rate within a burst, in packets per second: 64 packets in 0.64 ms, like a sender with a full window.
const BURST_PPS: f64 = 100e3;
/// Long-lived flows, and their total packets per second.
const ESTABLISHED: u32 = 100;
const ESTABLISHED_PPS: f64 = 10e3;
/// New flows per second besides them, packets of each, and packets per second within each.
const NEW_FLOWS_PER_S: f64 = 50.0;
const NEW_PACKETS: u32 = 4;
const NEW_PPS: f64 = 1e3;
/// Pause of flows that get and lose their rules: each has lost it by then.
const PAUSE: Duration = Duration::from_secs(2);
/// Pause of flows that lose it at about the time at which they go on. One in so many of the others has one.
const SHORT_PAUSE: Duration = Duration::from_millis(1_100);
const SHORT_PAUSES: u32 = 8;
/// The case with too few rules: rules, flows, and total packets per second.
const SMALL_TABLE: u32 = 1_000;
const MANY_FLOWS: u32 = 10_000;
const MANY_FLOWS_PPS: f64 = 20e3;
/// Capacity of a sufficient table, in rules.
const LARGE_TABLE: u32 = 100_000;
/// Idle timeout of flows. Short flows occupy a rule for this long after their last packet.
const IDLE: Duration = Duration::from_secs(1);
/// Idle timeout in cases with long-lived flows: none expires while the switch is away.
const LONG_IDLE: Duration = Duration::from_secs(120);
/// Maximum wait for a free slot in the uplink's ring: Open vSwitch's pollers pause while a port is created.
const UPLINK_WAIT: Duration = Duration::from_secs(2);
/// Due times are multiples of this, so that the generator sleeps between bursts.
const TICK: Duration = Duration::from_micros(200);
/// Maximum time for flows to get their rules, and for packets to return.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum time in flight of the last packets.
const IDLE_SLEEP: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

impl OpenflowCase {
    const ALL: [OpenflowCase; 7] = [
        OpenflowCase::Bursts,
        OpenflowCase::Changes,
        OpenflowCase::Reactive,
        OpenflowCase::Rules,
        OpenflowCase::Limit,
        OpenflowCase::Cut,
        OpenflowCase::Restart,
    ];

    fn name(self) -> &'static str {
        match self {
            OpenflowCase::Bursts => "bursts",
            OpenflowCase::Changes => "changes",
            OpenflowCase::Reactive => "reactive",
            OpenflowCase::Rules => "rules",
            OpenflowCase::Limit => "limit",
            OpenflowCase::Cut => "cut",
            OpenflowCase::Restart => "restart",
        }
    }

    fn setup(self) -> &'static str {
        match self {
            OpenflowCase::Reactive => "reactive",
            _ => "proactive",
        }
    }
}

/// The result of a case, or of one attempt at it.
#[derive(Clone, Debug, Default, Serialize)]
struct Row {
    case: &'static str,
    /// Sending time, in seconds.
    sent_s: f64,
    flows: u64,
    /// Offered packets, and those that did not return.
    offered: u64,
    lost: u64,
    /// Lost packets that found the uplink full or without a peer.
    lost_at_uplink: u64,
    /// Lost packets in flight when the switch ended, or due until it was back, as counted by the generator.
    lost_in_restarts: u64,
    /// Lost packets that inco counted as dropped, by reason.
    dropped: BTreeMap<String, u64>,
    /// Lost packets that Open vSwitch dropped on the way to inco, by its counter (`ovs-appctl coverage/show`).
    dropped_by_switch: BTreeMap<&'static str, u64>,
    /// Lost packets that no counter of inco or Open vSwitch explains.
    unaccounted: i64,
    duplicated: u64,
    reordered: u64,
    mis_steered: u64,
    latency_us: LatencyUs,
    /// Packets sent late by the generator because the machine was too busy.
    sent_late: u64,
    /// Buckets that moved to another instance.
    moved_buckets: u64,
    /// How often a flow got rules of its own, and how often one lost them.
    promotions: u64,
    demotions: u64,
    /// Rules per second that Open vSwitch accepted, at full speed or at a set rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    rules_per_s: Option<f64>,
    /// Milliseconds from the restarted switch's first answer to the first returned packet.
    #[serde(skip_serializing_if = "Option::is_none")]
    back_after_ms: Option<f64>,
    /// Milliseconds from the restarted switch's first answer until all flows have their rules.
    #[serde(skip_serializing_if = "Option::is_none")]
    rules_after_ms: Option<f64>,
    /// Milliseconds from the end of the switch to the new one's first answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    away_ms: Option<f64>,
}

impl Row {
    fn of(
        case: OpenflowCase,
        report: &Report,
        status: &Status,
        dropped_by_switch: BTreeMap<&'static str, u64>,
    ) -> Row {
        let Counts {
            offered_packets,
            lost_at_uplink,
            lost_in_restarts,
            duplicated,
            reordered,
            mis_steered,
            ..
        } = report.counts;
        let in_neither =
            status.accounting.gap() + i64::try_from(status.accounting.in_flight).unwrap_or(i64::MAX);
        let by_switch = dropped_by_switch.values().sum::<u64>();
        Row {
            case: case.name(),
            sent_s: report.sending_s,
            flows: report.flow_count as u64,
            offered: offered_packets,
            lost: report.lost,
            lost_at_uplink,
            lost_in_restarts,
            unaccounted: in_neither.saturating_sub_unsigned(by_switch),
            dropped: status.drops.clone(),
            dropped_by_switch,
            duplicated,
            reordered,
            mis_steered,
            latency_us: report.latency_us,
            sent_late: report.generator.late_packets,
            moved_buckets: status.workers.iter().map(|worker| worker.held_moves).sum(),
            promotions: status.workers.iter().map(|worker| worker.promotions).sum(),
            demotions: status.workers.iter().map(|worker| worker.demotions).sum(),
            ..Row::default()
        }
    }

    /// Case-specific remarks.
    fn remark(&self) -> String {
        let mut words = Vec::new();
        if let Some(rate) = self.rules_per_s {
            words.push(format!("{} rules/s", short(rate)));
        }
        if let Some(away) = self.away_ms {
            words.push(format!("away {away:.0} ms"));
        }
        if let Some(back) = self.back_after_ms {
            words.push(format!("packets back after {back:.0} ms"));
        }
        if let Some(rules) = self.rules_after_ms {
            words.push(format!("rules after {rules:.0} ms"));
        }
        if self.moved_buckets > 0 {
            words.push(format!("{} buckets moved", self.moved_buckets));
        }
        if self.promotions + self.demotions > 0 {
            let [got, lost] = [self.promotions, self.demotions].map(grouped);
            words.push(format!("{got} got a rule, {lost} lost it"));
        }
        if self.lost_at_uplink > 0 {
            words.push(format!("{} lost at the uplink", grouped(self.lost_at_uplink)));
        }
        if self.lost_in_restarts > 0 {
            words.push(format!("{} lost in the restart", grouped(self.lost_in_restarts)));
        }
        if self.unaccounted != 0 {
            words.push(format!("{} unaccounted for", self.unaccounted));
        }
        let dropped = self.dropped.iter().filter(|(_, packets)| **packets > 0);
        words.extend(dropped.map(|(reason, packets)| format!("{} {reason}", grouped(*packets))));
        let by_switch = self.dropped_by_switch.iter().filter(|(_, packets)| **packets > 0);
        words.extend(by_switch.map(|(counter, packets)| format!("{} {counter}", grouped(*packets))));
        words.join(", ")
    }
}

/// Runs the bench.
pub(super) fn run(args: &OpenflowArgs) -> Result<()> {
    make_image(EngineName::Oci)?;
    let ground = Environment::new(EngineName::Oci, SwitchName::Openflow, false, Interrupt::default())?;
    let directory = ground.directory().to_owned();
    // If the bench is interrupted; inco itself ends with this process.
    let _removed = Cleanup::by(move || {
        let _gone = std::fs::remove_dir_all(directory);
    });
    let mut rows = Vec::new();
    for case in OpenflowCase::ALL {
        if !args.cases.is_empty() && !args.cases.contains(&case) {
            continue;
        }
        output::complain(&format!("inco: {}, {} s ...", case.name(), args.seconds));
        let bench = Bench {
            args,
            ground: &ground,
            case,
            dropped_before: RefCell::default(),
        };
        rows.extend(bench.rows().with_context(|| case.name())?);
    }
    write(&rows, args)?;
    if args.json {
        return output::json(&rows, output::is_terminal());
    }
    let mut table = Table::new(&[
        "case",
        ">flows",
        ">packets",
        ">lost",
        ">doubled",
        ">reordered",
        ">mis-steered",
        ">p50",
        ">p99",
        "",
    ]);
    for row in &rows {
        table.row([
            row.case.to_owned(),
            grouped(row.flows),
            grouped(row.offered),
            grouped(row.lost),
            grouped(row.duplicated),
            grouped(row.reordered),
            grouped(row.mis_steered),
            format!("{:.2} ms", row.latency_us.p50 / 1e3),
            format!("{:.2} ms", row.latency_us.p99 / 1e3),
            row.remark(),
        ]);
    }
    output::text(&table.text())?;
    output::line(format!("All figures: {}", args.csv.display()))
}

fn write(rows: &[Row], args: &OpenflowArgs) -> Result<()> {
    let columns = [
        "case",
        "sent_s",
        "flows",
        "offered",
        "lost",
        "lost_at_uplink",
        "lost_in_restarts",
        "dropped",
        "dropped_by_switch",
        "unaccounted",
        "duplicated",
        "reordered",
        "mis_steered",
        "latency_us_p50",
        "latency_us_p99",
        "latency_us_max",
        "sent_late",
        "moved_buckets",
        "promotions",
        "demotions",
        "rules_per_s",
        "away_ms",
        "back_after_ms",
        "rules_after_ms",
    ];
    let mut raw = Raw::new(&facts(false), &columns);
    let or_none = |value: Option<f64>| value.map(|value| format!("{value:.1}")).unwrap_or_default();
    for row in rows {
        let dropped: Vec<String> = (row.dropped.iter())
            .map(|(reason, packets)| format!("{reason} {packets}"))
            .collect();
        let dropped_by_switch: Vec<String> = (row.dropped_by_switch.iter())
            .map(|(counter, packets)| format!("{counter} {packets}"))
            .collect();
        raw.row(&[
            row.case.to_owned(),
            format!("{:.3}", row.sent_s),
            row.flows.to_string(),
            row.offered.to_string(),
            row.lost.to_string(),
            row.lost_at_uplink.to_string(),
            row.lost_in_restarts.to_string(),
            dropped.join(" "),
            dropped_by_switch.join(" "),
            row.unaccounted.to_string(),
            row.duplicated.to_string(),
            row.reordered.to_string(),
            row.mis_steered.to_string(),
            format!("{:.1}", row.latency_us.p50),
            format!("{:.1}", row.latency_us.p99),
            format!("{:.1}", row.latency_us.max),
            row.sent_late.to_string(),
            row.moved_buckets.to_string(),
            row.promotions.to_string(),
            row.demotions.to_string(),
            or_none(row.rules_per_s),
            or_none(row.away_ms),
            or_none(row.back_after_ms),
            or_none(row.rules_after_ms),
        ]);
    }
    raw.write(&args.csv)
}

/// Settings of an inco that differ between cases.
struct CaseSettings<'a> {
    setup: &'static str,
    rules: u32,
    idle: Duration,
    database: &'a Path,
    /// The bridge's OpenFlow socket, unless it is the default one.
    control: Option<&'a Path>,
}

impl CaseSettings<'_> {
    /// The configuration file, as a user would write it. The number of instances is set manually.
    fn configuration(&self) -> String {
        let control = self
            .control
            .map(|path| format!("control = \"unix:{}\"\n", path.display()));
        format!(
            r#"# Written by `inco bench openflow`.
[engine]
driver = "oci"

[switch]
driver = "openflow"
timeouts = {{ udp = "{}ms" }}

[switch.openflow]
database = "unix:{}"
setup = {:?}
rules = {}
{}
[[uplink]]
name = "wan"
device = "memif:wan.sock"

[service.{SERVICE}]
image = {FORWARD_IMAGE:?}
command = ["/inco-nf", "forward", "--stamp", "--rest-us", "200"]
cpus = 1.0
memory = "64MiB"
ready = "connected"
ready_deadline = "30s"
symmetric = false
capacity = "50kpps"
instances = {{ min = {MIN_INSTANCES}, max = {MAX_INSTANCES} }}
scheduler = {{ policy = "round-robin", slow_start = "0s", spill = false }}
ring = {{ slots = 4096 }}
"#,
            self.idle.as_millis(),
            self.database.display(),
            self.setup,
            self.rules,
            control.unwrap_or_default(),
        )
    }
}

/// A case to run.
struct Bench<'a> {
    args: &'a OpenflowArgs,
    ground: &'a Environment,
    case: OpenflowCase,
    /// Open vSwitch's counters of packets dropped on the way to a controller, when the last inco was started.
    dropped_before: RefCell<BTreeMap<&'static str, u64>>,
}

impl Bench<'_> {
    fn rows(&self) -> Result<Vec<Row>> {
        match self.case {
            OpenflowCase::Bursts | OpenflowCase::Reactive => self.bursts(),
            OpenflowCase::Changes => self.changes(),
            OpenflowCase::Rules => self.rules(),
            OpenflowCase::Limit => self.limit(),
            OpenflowCase::Cut => self.interrupt_control(),
            OpenflowCase::Restart => self.restart(),
        }
    }

    fn span(&self) -> Duration {
        Duration::from_secs(self.args.seconds)
    }

    fn open_vswitch(&self) -> Result<&testbed::OpenVSwitch> {
        self.ground.open_vswitch().context("no Open vSwitch was started")
    }

    /// Starts an inco with the minimum number of instances.
    fn start(&self, rules: u32, idle: Duration, control: Option<&Path>) -> Result<Session<'_>> {
        let database = self.open_vswitch()?.database();
        self.dropped_before
            .replace(self.open_vswitch()?.controller_drops()?);
        let terms = CaseSettings {
            setup: self.case.setup(),
            rules,
            idle,
            database: &database,
            control,
        };
        Session::start(
            self.ground,
            self.case.name(),
            &terms.configuration(),
            MIN_INSTANCES,
        )
    }

    /// Stops it and collects its counters.
    fn stop(&self, session: Session<'_>, report: &Report) -> Result<Row> {
        let since = Instant::now();
        let status = loop {
            let status = session.client()?.status()?;
            let rests = status.accounting.in_flight == 0 && status.accounting.gap() == 0;
            if rests || since.elapsed() > IDLE_SLEEP {
                break status;
            }
            thread::sleep(POLL_INTERVAL);
        };
        let before = self.dropped_before.take();
        let mut dropped = self.open_vswitch()?.controller_drops()?;
        for (counter, packets) in &mut dropped {
            // The counters of a restarted switch begin at 0.
            *packets = packets.saturating_sub(before.get(counter).copied().unwrap_or(0));
        }
        let row = Row::of(self.case, report, &status, dropped);
        let left = session.stop()?;
        if !left.is_empty() {
            bail!("inco left behind: {}", left.join(", "));
        }
        Ok(row)
    }

    /// Minimum, maximum and minimum number of instances, each for a third of the time.
    fn scale_out_and_in(&self, session: &mut Session<'_>) -> Result<()> {
        let began = Instant::now();
        for (number, instances) in (1..).zip([MIN_INSTANCES, MAX_INSTANCES, MIN_INSTANCES]) {
            session.scale(SERVICE, instances)?;
            session.note(&session.client()?.instances()?);
            wait(session, began + self.span() * number / 3)?;
        }
        Ok(())
    }

    fn bursts(&self) -> Result<Vec<Row>> {
        let new_flows = f64::from(self.args.new_flows);
        let phase = Phase {
            // Arrivals are random, so their number varies slightly. Sending ends after the last flow.
            flows: (new_flows * self.span().as_secs_f64()).ceil() as u32,
            arrivals: Some(new_flows),
            lengths: Some(LengthSource::Packets(self.args.burst)),
            rate_per_flow: Some(Rate(BURST_PPS)),
            ..phase(0, self.span() * 2)
        };
        let mut session = self.start(LARGE_TABLE, IDLE, None)?;
        let report = with_traffic(&mut session, vec![phase], |session| {
            self.scale_out_and_in(session)
        })?;
        Ok(vec![self.stop(session, &report)?])
    }

    /// Flows that pause get a rule with each of their trains, and lose it in each pause. A flow that has lost it begins anew: its
    /// next train may have another instance.
    fn changes(&self) -> Result<Vec<Row>> {
        let trains = |group, per_s: u32, pause: Duration| {
            let sends = f64::from(self.args.burst - 1) / BURST_PPS;
            Phase {
                flows: (f64::from(per_s) * (sends + pause.as_secs_f64())).ceil() as u32,
                rate_per_flow: Some(Rate(BURST_PPS)),
                trains: Some(Trains {
                    packets: self.args.burst,
                    pause: Span(pause),
                }),
                ..phase(group, self.span() * 2)
            }
        };
        let phases = vec![
            trains(0, self.args.new_flows, PAUSE),
            trains(64, self.args.new_flows.div_ceil(SHORT_PAUSES), SHORT_PAUSE),
        ];
        let mut session = self.start(LARGE_TABLE, IDLE, None)?;
        let profile = Profile {
            idle_timeout: Some(Span(IDLE)),
            ..profile(phases)
        };
        let report = with_profile(&mut session, profile, |session| {
            let began = Instant::now();
            wait(session, began + self.span())
        })?;
        Ok(vec![self.stop(session, &report)?])
    }

    fn rules(&self) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        // Without a limit first; then half of the reached rate, until nothing is lost.
        let mut limit = f64::INFINITY;
        loop {
            let mut session = self.start(LARGE_TABLE, LONG_IDLE, None)?;
            let bridge = self.open_vswitch()?.control(BRIDGE);
            let mut rate = 0.0;
            let report = with_traffic(&mut session, established(self.span() * 10), |session| {
                wait_for_rules(session, ESTABLISHED)?;
                rate = rules::write(&bridge, self.args.rules, self.args.bundle, limit)?;
                Ok(())
            })?;
            let row = Row {
                rules_per_s: Some(rate),
                ..self.stop(session, &report)?
            };
            let is_enough = row.lost == 0 || rate < 1e3;
            rows.push(row);
            if is_enough {
                return Ok(rows);
            }
            limit = rate / 2.0;
        }
    }

    fn limit(&self) -> Result<Vec<Row>> {
        let phase = Phase {
            flows: MANY_FLOWS,
            rate: Some(Rate(MANY_FLOWS_PPS)),
            ..phase(0, self.span() * 2)
        };
        let mut session = self.start(SMALL_TABLE, LONG_IDLE, None)?;
        let report = with_traffic(&mut session, vec![phase], |session| {
            self.scale_out_and_in(session)
        })?;
        Ok(vec![self.stop(session, &report)?])
    }

    fn interrupt_control(&self) -> Result<Vec<Row>> {
        let listen = self.open_vswitch()?.control("relay");
        let mut relay = Relay::new(listen.clone(), self.open_vswitch()?.control(BRIDGE));
        relay.open()?;
        let mut session = self.start(LARGE_TABLE, LONG_IDLE, Some(&listen))?;
        let mut phases = established(self.span() * 2);
        phases.push(background_phase(self.span() * 2));
        let report = with_traffic(&mut session, phases, |session| {
            wait_for_rules(session, ESTABLISHED)?;
            let began = Instant::now();
            relay.interrupt_control();
            wait(session, began + self.span() / 2)?;
            relay.open()?;
            wait(session, began + self.span())
        })?;
        Ok(vec![self.stop(session, &report)?])
    }

    fn restart(&self) -> Result<Vec<Row>> {
        let mut session = self.start(LARGE_TABLE, LONG_IDLE, None)?;
        let (mut away, mut back, mut ruled) = (0.0, 0.0, 0.0);
        session.scale(SERVICE, MAX_INSTANCES)?;
        let report = with_traffic(&mut session, established(self.span() * 4), |session| {
            wait_for_rules(session, ESTABLISHED)?;
            // The buckets of most instances move: only exact rules keep the flows in place.
            session.scale(SERVICE, MIN_INSTANCES)?;
            let began = Instant::now();
            wait(session, began + self.span() / 4)?;
            let (killed, answered) = self.open_vswitch()?.kill_and_start()?;
            let returned = session.client()?.status()?.accounting.returned;
            wait_until(session, "packets come back", |session| {
                Ok(session.client()?.status()?.accounting.returned > returned)
            })?;
            let ms = |span: Duration| span.as_secs_f64() * 1e3;
            (away, back) = (ms(answered - killed), ms(answered.elapsed()));
            wait_for_rules(session, ESTABLISHED)?;
            ruled = ms(answered.elapsed());
            let now = Instant::now();
            wait(session, now + self.span() / 4)
        })?;
        Ok(vec![Row {
            away_ms: Some(away),
            back_after_ms: Some(back),
            rules_after_ms: Some(ruled),
            ..self.stop(session, &report)?
        }])
    }
}

/// Flows from the address range of `group`, so that phases do not share flows.
fn phase(group: u8, duration: Duration) -> Phase {
    Phase {
        duration: Span(duration),
        src: IpAddr::V4(Ipv4Addr::new(10, group, 0, 1)),
        ..Phase::default()
    }
}

fn established(duration: Duration) -> Vec<Phase> {
    vec![Phase {
        flows: ESTABLISHED,
        rate: Some(Rate(ESTABLISHED_PPS)),
        ..phase(0, duration)
    }]
}

fn background_phase(duration: Duration) -> Phase {
    Phase {
        flows: (NEW_FLOWS_PER_S * duration.as_secs_f64()).ceil() as u32,
        arrivals: Some(NEW_FLOWS_PER_S),
        lengths: Some(LengthSource::Packets(NEW_PACKETS)),
        rate_per_flow: Some(Rate(NEW_PPS)),
        ..phase(64, duration)
    }
}

/// Sends until `script` returns, then returns the generator's report.
fn with_traffic(
    session: &mut Session<'_>,
    phases: Vec<Phase>,
    script: impl FnOnce(&mut Session<'_>) -> Result<()>,
) -> Result<Report> {
    with_profile(session, profile(phases), script)
}

fn profile(phases: Vec<Phase>) -> Profile {
    Profile {
        tick: Span(TICK),
        uplink_wait: Span(UPLINK_WAIT),
        settle: Span::from_millis(1000),
        verify: Verify::Exact,
        phases,
        ..Profile::default()
    }
}

fn with_profile(
    session: &mut Session<'_>,
    profile: Profile,
    script: impl FnOnce(&mut Session<'_>) -> Result<()>,
) -> Result<Report> {
    let generator = Generator::new(profile)?;
    let mut port = [session.uplink()?];
    let control = Arc::new(Control::new());
    let sending = thread::Builder::new()
        .name("bench-traffic".to_owned())
        .spawn({
            let control = Arc::clone(&control);
            move || generator.run(&mut port, &control, |_| {})
        })
        .context("cannot start the thread that sends")?;
    let done = script(session);
    control.stop();
    let report = sending
        .join()
        .map_err(|_| anyhow!("the thread that sends ended with a panic"))?;
    done?;
    Ok(report?)
}

/// Waits until the time `until`. Returns an error if inco ends earlier.
fn wait(session: &mut Session<'_>, until: Instant) -> Result<()> {
    while Instant::now() < until {
        session.check()?;
        thread::sleep(POLL_INTERVAL.min(until.saturating_duration_since(Instant::now())));
    }
    Ok(())
}

/// Waits until the condition holds. Returns an error on timeout.
fn wait_until(
    session: &mut Session<'_>,
    what: &str,
    mut is_so: impl FnMut(&Session<'_>) -> Result<bool>,
) -> Result<()> {
    let since = Instant::now();
    while !is_so(session)? {
        session.check()?;
        if since.elapsed() > TIMEOUT {
            bail!("timed out after {} s: {what}", TIMEOUT.as_secs());
        }
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// Waits until at least `flows` flows have rules.
fn wait_for_rules(session: &mut Session<'_>, flows: u32) -> Result<()> {
    wait_until(session, "flows have rules", |session| {
        let filter = FlowFilter {
            limit: Some(FlowFilter::LIMIT),
            ..FlowFilter::default()
        };
        let rows = session.client()?.flows(&filter)?.flows;
        let installed =
            |rule: &Option<String>| rule.as_deref().is_some_and(|rule| rule.starts_with("installed"));
        Ok(rows.iter().filter(|row| installed(&row.rule)).count() >= flows as usize)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations_are_right() {
        for case in OpenflowCase::ALL {
            let terms = CaseSettings {
                setup: case.setup(),
                rules: SMALL_TABLE,
                idle: IDLE,
                database: Path::new("/tmp/ovs/db.sock"),
                control: (case == OpenflowCase::Cut).then_some(Path::new("/tmp/relay.sock")),
            };
            let read = orchestrator::load::parse(&terms.configuration(), "openflow.toml").unwrap();
            let of = &read.services[0];
            assert_eq!(
                (of.instances.min, of.instances.max),
                (MIN_INSTANCES, MAX_INSTANCES)
            );
        }
    }

    #[test]
    fn a_row_names_what_is_unusual() {
        let row = Row {
            rules_per_s: Some(9_000.0),
            moved_buckets: 12,
            promotions: 5_000,
            demotions: 4_000,
            dropped: BTreeMap::from([("instance_ring_full".to_owned(), 7), ("other".to_owned(), 0)]),
            dropped_by_switch: BTreeMap::from([("packet_in_overflow", 0), ("rconn_overflow", 5)]),
            ..Row::default()
        };
        assert_eq!(
            row.remark(),
            "9.00k rules/s, 12 buckets moved, 5,000 got a rule, 4,000 lost it, 7 instance_ring_full, 5 rconn_overflow"
        );
    }
}
