//! One measurement: sends a profile into a running inco and records what happens.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use api::types::{FlowFilter, InstanceRow, ServiceRow, Status};
use model::{Event, EventKind, FunctionChange, InstanceId, InstanceState};
use traffic::{Control, Generator, Interval, LatencyUs, Profile, Report};

use super::function::Function;
use testbed::Session;

/// Sampling interval while traffic runs, in milliseconds.
pub(super) const SAMPLE_MS: u64 = 200;
/// Interval between two comparisons of pins, for packets without a stamp.
const PINS_PERIOD: Duration = Duration::from_secs(1);
/// Maximum time in flight of packets that the generator counts as lost.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);

/// An instance in one sample.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct InstanceNow {
    pub(super) id: InstanceId,
    pub(super) state: InstanceState,
    /// Packets per second that it returned since the previous sample.
    pub(super) back_pps: f64,
    pub(super) flows: u64,
    pub(super) ring_occupancy: f64,
}

/// The state at one time.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Sample {
    /// Seconds since the start of the traffic.
    pub(super) at_s: f64,
    /// Flows that send.
    pub(super) flows: usize,
    pub(super) offered_pps: f64,
    pub(super) returned_pps: f64,
    pub(super) latency_us: LatencyUs,
    /// Packets known to be lost so far.
    pub(super) lost: u64,
    /// Packets dropped so far, by reason.
    pub(super) drops: std::collections::BTreeMap<String, u64>,
    pub(super) lost_at_uplink: u64,
    pub(super) mis_steered: u64,
    pub(super) duplicated: u64,
    pub(super) reordered: u64,
    pub(super) active: u32,
    pub(super) wanted: u32,
    pub(super) standby: u32,
    pub(super) starting: u32,
    pub(super) draining: u32,
    pub(super) instances: Vec<InstanceNow>,
    /// Events since the previous sample.
    pub(super) events: Vec<Event>,
}

/// The observations of one run.
#[derive(Clone, Debug, Default)]
pub(super) struct Recording {
    pub(super) samples: Vec<Sample>,
    pub(super) report: Report,
    /// The status after the run, with no packet in flight.
    pub(super) status: Status,
    /// Start of the traffic on the monotonic clock of events, in seconds.
    pub(super) began_s: f64,
    /// Flows whose pin changed; only for packets without a stamp.
    pub(super) pins_moved: Option<u64>,
    /// Packets that the function in the instances was given, by its own account; [`None`] for `forward` alone.
    pub(super) function_packets: Option<u64>,
    /// Resources that remained after the end.
    pub(super) left: Vec<String>,
}

impl Recording {
    /// Every event of the run with its time since the start of the traffic, in seconds.
    pub(super) fn events(&self) -> impl Iterator<Item = (f64, &Event)> {
        let events = self.samples.iter().flat_map(|sample| &sample.events);
        events.map(|event| (event.at.0 as f64 / 1e9 - self.began_s, event))
    }
}

/// What runs in an instance, as far as the measurement relies on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Instance {
    /// `forward` stamps packets with their instance. Behind it may be a function, by its name, whose packets are counted.
    Stamping(Option<&'static str>),
    /// A program that stamps no packets: pins are compared.
    Silent,
}

impl Instance {
    /// `forward` alone.
    pub(super) const STAMPING: Instance = Instance::Stamping(None);

    /// `forward`, with this function behind it.
    pub(super) fn stamping(function: Option<&'static Function>) -> Instance {
        Instance::Stamping(function.map(|function| function.name))
    }
}

/// Sends a profile and records the run. `each` is called for every sample.
///
/// # Errors
/// Returns an error if inco ends or does not answer, the profile is invalid, or the demo was interrupted. The traffic
/// has stopped by then.
pub(super) fn run(
    session: &mut Session<'_>,
    profile: Profile,
    instance: Instance,
    mut each: impl FnMut(&Sample, &Recording),
) -> Result<Recording> {
    let generator = Generator::new(profile)?;
    // inco counts from its start: the counts of earlier profiles in the same session are subtracted.
    let before = session.client()?.status()?;
    let mut port = [session.uplink()?];
    let control = Arc::new(Control::new());
    let (told, intervals) = channel();
    let sending = std::thread::Builder::new()
        .name("demo-traffic".to_owned())
        .spawn({
            let control = Arc::clone(&control);
            move || {
                generator.run(&mut port, &control, |interval| {
                    // The receiver is dropped only if the run is aborted.
                    let _ = told.send(interval.clone());
                })
            }
        })
        .context("cannot start the thread that sends")?;
    let mut watch = Watch::new(instance, before);
    let watched = loop {
        match intervals.recv_timeout(Duration::from_secs(1)) {
            Ok(first) => {
                let mut due = vec![first];
                due.extend(intervals.try_iter());
                if let Err(error) = watch.look(session, &due, &control, &mut each) {
                    break Err(error);
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break Ok(()),
        }
        if let Err(error) = session.interrupt().check().and_then(|()| session.check()) {
            break Err(error);
        }
    };
    control.stop();
    let report = sending
        .join()
        .map_err(|_| anyhow!("the thread that sends ended with a panic"))?;
    watched?;
    watch.recording.report = report?;
    watch.rest(session)?;
    Ok(watch.recording)
}

/// The state of a run that is being recorded.
struct Watch {
    recording: Recording,
    /// inco's counters before the first packet.
    before: Status,
    last_event: u64,
    last_look: Option<(Instant, HashMap<InstanceId, u64>)>,
    pins: HashMap<String, Option<InstanceId>>,
    pins_at: Instant,
    /// The function whose packets are counted.
    function: Option<&'static str>,
    /// The packets that it was given in instances, by their own account.
    function_packets: HashMap<u32, u64>,
}

impl Watch {
    fn new(instance: Instance, before: Status) -> Watch {
        let function = match instance {
            Instance::Stamping(function) => function,
            Instance::Silent => None,
        };
        let recording = Recording {
            began_s: clock::monotonic().0 as f64 / 1e9,
            pins_moved: (instance == Instance::Silent).then_some(0),
            ..Recording::default()
        };
        Watch {
            recording,
            before,
            last_event: 0,
            last_look: None,
            pins: HashMap::new(),
            pins_at: Instant::now(),
            function,
            function_packets: HashMap::new(),
        }
    }

    fn look(
        &mut self,
        session: &mut Session<'_>,
        intervals: &[Interval],
        control: &Control,
        each: &mut impl FnMut(&Sample, &Recording),
    ) -> Result<()> {
        let client = session.client()?;
        let (services, instances, status) = (client.services()?, client.instances()?, client.status()?);
        let status = passed(status, &self.before);
        let events = self.new_events(session)?;
        for event in &events {
            if let (
                EventKind::State {
                    to: InstanceState::Failed,
                    ..
                },
                Some(id),
            ) = (&event.kind, event.instance)
            {
                // Its flows move to other instances, as expected.
                control.expect_moves_from(id.0);
            }
        }
        session.note(&instances);
        let mut sample = sample(intervals, &services, &status);
        sample.instances = self.instances(&instances);
        sample.events = events;
        self.compare_pins(session)?;
        each(&sample, &self.recording);
        self.recording.samples.push(sample);
        Ok(())
    }

    fn new_events(&mut self, session: &Session<'_>) -> Result<Vec<Event>> {
        let mut events = session.client()?.events(api::EVENT_LIMIT.min(200))?;
        events.retain(|event| event.sequence > self.last_event);
        self.last_event = events.last().map_or(self.last_event, |event| event.sequence);
        for event in &events {
            if let (
                EventKind::Function {
                    function,
                    change: FunctionChange::Ended,
                    packets,
                    ..
                },
                Some(id),
            ) = (&event.kind, event.instance)
                && self.function == Some(function.as_str())
            {
                self.function_packets.insert(id.0, *packets);
            }
        }
        Ok(events)
    }

    fn instances(&mut self, rows: &[InstanceRow]) -> Vec<InstanceNow> {
        let now = Instant::now();
        let passed = self
            .last_look
            .as_ref()
            .map(|(at, _)| now.duration_since(*at).as_secs_f64());
        let before = |id: InstanceId| {
            self.last_look
                .as_ref()
                .and_then(|(_, packets)| packets.get(&id))
                .copied()
        };
        let shown = rows.iter().filter(|row| row.state != InstanceState::Gone);
        let instances = shown
            .map(|row| InstanceNow {
                id: row.id,
                state: row.state,
                back_pps: match (before(row.id), passed) {
                    (Some(before), Some(passed)) if passed > 0.0 => {
                        row.back_packets.saturating_sub(before) as f64 / passed
                    }
                    _ => row.back_pps,
                },
                flows: row.live_flows,
                ring_occupancy: row.ring_occupancy,
            })
            .collect();
        self.last_look = Some((now, rows.iter().map(|row| (row.id, row.back_packets)).collect()));
        instances
    }

    /// Counts flows whose pin changed since the last comparison.
    fn compare_pins(&mut self, session: &Session<'_>) -> Result<()> {
        let Some(moved) = &mut self.recording.pins_moved else {
            return Ok(());
        };
        if self.pins_at.elapsed() < PINS_PERIOD {
            return Ok(());
        }
        self.pins_at = Instant::now();
        let filter = FlowFilter {
            limit: Some(FlowFilter::LIMIT),
            ..FlowFilter::default()
        };
        for flow in session.client()?.flows(&filter)?.flows {
            if let Some(before) = self.pins.insert(flow.flow, flow.forward)
                && before != flow.forward
            {
                *moved += 1;
            }
        }
        Ok(())
    }

    /// Waits until no packet is in flight and functions have told of all that came back, then reads the final counters.
    fn rest(&mut self, session: &mut Session<'_>) -> Result<()> {
        let since = Instant::now();
        loop {
            let status = session.client()?.status()?;
            let events = self.new_events(session)?;
            if let Some(last) = self.recording.samples.last_mut() {
                last.events.extend(events);
            }
            let is_told = self.ask_functions(session)?;
            let rests = status.accounting.in_flight == 0 && status.accounting.gap() == 0;
            if rests && is_told || since.elapsed() > DRAIN_LIMIT {
                self.recording.status = passed(status, &self.before);
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Counts the packets that the function was given in all instances. Whether they are as many as came back.
    fn ask_functions(&mut self, session: &mut Session<'_>) -> Result<bool> {
        let Some(name) = self.function else {
            return Ok(true);
        };
        for of in session.client()?.counters()?.functions {
            if of.name == name {
                self.function_packets.insert(of.instance, of.packets);
            }
        }
        let packets = self.function_packets.values().sum();
        self.recording.function_packets = Some(packets);
        Ok(packets >= self.recording.report.counts.returned_packets)
    }
}

/// The counts since `before`. Gauges keep their current values.
fn passed(mut status: Status, before: &Status) -> Status {
    let (now, then) = (&mut status.accounting, &before.accounting);
    for (count, earlier) in [
        (&mut now.offered, then.offered),
        (&mut now.returned, then.returned),
        (&mut now.originated, then.originated),
        (&mut now.dropped, then.dropped),
        (&mut now.expected_moves, then.expected_moves),
    ] {
        *count = count.saturating_sub(earlier);
    }
    for (reason, count) in &mut status.drops {
        *count = count.saturating_sub(before.drops.get(reason).copied().unwrap_or_default());
    }
    status.drops.retain(|_, count| *count > 0);
    status
}

/// A sample from the generator's and inco's figures since the previous one.
fn sample(intervals: &[Interval], services: &[ServiceRow], status: &Status) -> Sample {
    let length: f64 = intervals.iter().map(|interval| interval.length_s).sum();
    let per_second = |count: fn(&Interval) -> u64| {
        let packets: u64 = intervals.iter().map(count).sum();
        if length > 0.0 {
            packets as f64 / length
        } else {
            0.0
        }
    };
    let sum = |count: fn(&ServiceRow) -> u32| services.iter().map(count).sum();
    let last = intervals.last().cloned().unwrap_or_default();
    Sample {
        at_s: last.at_s,
        flows: last.flows.iter().filter(|flow| flow.is_active).count(),
        offered_pps: per_second(|interval| interval.offered_packets),
        returned_pps: per_second(|interval| interval.returned_packets),
        latency_us: last.latency_us,
        lost: last.lost_so_far.max(last.counts.lost_at_uplink),
        drops: status.drops.clone(),
        lost_at_uplink: last.counts.lost_at_uplink,
        mis_steered: last.counts.mis_steered,
        duplicated: last.counts.duplicated,
        reordered: last.counts.reordered,
        active: sum(|row| row.active),
        wanted: sum(|row| row.desired),
        standby: sum(|row| row.standby),
        starting: sum(|row| row.starting),
        draining: sum(|row| row.draining),
        instances: Vec::new(),
        events: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_profile_counts_from_its_own_start() {
        let status = |offered, dropped, ring| {
            let mut status = Status::default();
            status.accounting.offered = offered;
            status.accounting.dropped = dropped;
            status.accounting.returned = offered - dropped;
            status.drops = [("instance_ring_full", ring), ("function", dropped - ring)]
                .map(|(reason, count)| (reason.to_owned(), count))
                .into();
            status
        };
        let since_then = passed(status(1000, 50, 40), &status(600, 30, 20));
        assert_eq!(
            (since_then.accounting.offered, since_then.accounting.gap()),
            (400, 0)
        );
        assert_eq!(since_then.drops, [("instance_ring_full".to_owned(), 20)].into());
    }

    #[test]
    fn rates_of_several_intervals_are_those_of_their_whole_time() {
        let interval = |at_s, length_s, packets| Interval {
            at_s,
            length_s,
            offered_packets: packets,
            returned_packets: packets / 2,
            ..Interval::default()
        };
        let intervals = [interval(0.2, 0.2, 200), interval(0.5, 0.3, 800)];
        let services = [ServiceRow {
            active: 3,
            desired: 4,
            standby: 1,
            ..ServiceRow::default()
        }];
        let sample = sample(&intervals, &services, &Status::default());
        assert_eq!(
            (sample.at_s, sample.offered_pps, sample.returned_pps),
            (0.5, 2000.0, 1000.0)
        );
        assert_eq!((sample.active, sample.wanted, sample.standby), (3, 4, 1));
    }
}
