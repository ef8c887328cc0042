//! The traffic: single flows, and aggregates of many flows as rates. All random draws happen before the run, so that
//! every policy gets the same traffic.

use std::collections::BTreeMap;
use std::path::Path;

use model::{FlowKey, FlowKeyV4, Nanos, Random, protocol};
use traffic::Mixture;

use crate::Error;
use crate::error::within;
use crate::recording::Recording;
use crate::scenario::{Burst, BurstOf, FlowMix, Noise, Scenario, Traffic};
use crate::time::{seconds, whole_ms};

/// Rate changes per source and run.
pub(crate) const CHANGES_LIMIT: usize = 20_000_000;
/// Single flows per run.
pub(crate) const FLOWS_LIMIT: usize = 5_000_000;
/// Payload bytes of a full packet: divides sizes in bytes into packets.
const FULL_PACKET_BYTES: f64 = 1_460.0;
/// Draws for converting a mixture into classes.
const MIXTURE_DRAWS: usize = 100_000;
/// Shortest lifetime of a flow, in seconds.
const SHORTEST_LIFE_S: f64 = 0.001;
/// Lifetime of a recorded flow, in seconds: longer than any recording.
const RECORDED_LIFE_S: f64 = 1e9;
/// Single flows in a burst of new flows: as many as needed for each to bring at most [`PIECE_SHARE`] of an instance's
/// capacity, within these bounds, because real flows are small.
const BURST_FLOWS: std::ops::RangeInclusive<u64> = 32..=1024;
/// See [`BURST_FLOWS`].
const PIECE_SHARE: f64 = 0.02;

/// A piecewise constant value.
#[derive(Clone, Debug, Default)]
pub(crate) struct Steps {
    changes: Vec<(Nanos, f64)>,
    at: usize,
}

impl Steps {
    fn new(changes: Vec<(Nanos, f64)>) -> Steps {
        Steps { changes, at: 0 }
    }

    /// The value at `now`. Time must not go back.
    pub(crate) fn value(&mut self, now: Nanos) -> f64 {
        while self.changes.get(self.at + 1).is_some_and(|(at, _)| *at <= now) {
            self.at += 1;
        }
        match self.changes.get(self.at) {
            Some((at, value)) if *at <= now => *value,
            _ => 0.0,
        }
    }

    /// The next change after `now`.
    pub(crate) fn next(&self, now: Nanos) -> Option<Nanos> {
        let ahead = self.changes.get(self.at..)?;
        ahead.iter().map(|(at, _)| *at).find(|at| *at > now)
    }

    /// The value at any time.
    pub(crate) fn peek(&self, at: Nanos) -> f64 {
        let place = self.changes.partition_point(|(from, _)| *from <= at);
        place
            .checked_sub(1)
            .and_then(|place| self.changes.get(place))
            .map_or(0.0, |(_, value)| *value)
    }

    /// The product with another value, which is 1 before its first change.
    fn times(self, other: &Steps) -> Steps {
        let mut changes = Vec::with_capacity(self.changes.len() + other.changes.len());
        let (mut a, mut b) = (self.changes.iter().peekable(), other.changes.iter().peekable());
        let (mut value, mut factor) = (0.0, 1.0);
        loop {
            let next = match (a.peek(), b.peek()) {
                (Some((x, _)), Some((y, _))) => (*x).min(*y),
                (Some((x, _)), None) => *x,
                (None, Some((y, _))) => *y,
                (None, None) => break,
            };
            if let Some((_, new)) = a.next_if(|(at, _)| *at == next) {
                value = *new;
            }
            if let Some((_, new)) = b.next_if(|(at, _)| *at == next) {
                factor = *new;
            }
            changes.push((next, value * factor));
        }
        Steps::new(changes)
    }
}

/// A class of an aggregate's flows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Class {
    /// Share of new flows.
    pub(crate) share: f64,
    /// Mean lifetime, in seconds.
    pub(crate) life_s: f64,
    /// Relative rate of one of its flows.
    pub(crate) weight: f64,
}

/// Many flows, as rates.
#[derive(Clone, Debug)]
pub(crate) struct Aggregate {
    /// Packets per second of all flows.
    pub(crate) pps: Steps,
    /// New flows per second.
    pub(crate) new_flows: Steps,
    pub(crate) classes: Vec<Class>,
    /// Its index in the scenario.
    pub(crate) source: usize,
}

/// One flow, or several with the same pin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Single {
    pub(crate) at: Nanos,
    pub(crate) lasts: Option<Nanos>,
    pub(crate) repeat: bool,
    /// Number of flows it stands for.
    pub(crate) flows: f64,
    /// Packets per second of all of them.
    pub(crate) pps: f64,
    /// The index in [`Compiled::factors`] of its rate factor.
    pub(crate) factor: usize,
    pub(crate) dscp: u8,
    /// Packets to process before it ends, if that ends it.
    pub(crate) volume: Option<u64>,
    /// Its source's index in the scenario.
    pub(crate) source: usize,
}

/// The traffic of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Compiled {
    pub(crate) aggregates: Vec<Aggregate>,
    /// In order of start.
    pub(crate) singles: Vec<Single>,
    pub(crate) factors: Vec<Steps>,
    /// Bytes per packet, by source.
    pub(crate) bytes: Vec<f64>,
}

/// Generates a scenario's traffic for one seed. `data` is the data folder, `beside` the scenario's own.
pub(crate) fn compile(scenario: &Scenario, seed: u64, data: &Path, beside: &Path) -> Result<Compiled, Error> {
    let mut compiled = Compiled::default();
    let end = seconds(scenario.duration_s);
    let instance_pps = scenario.instances.capacity_pps.of(usize::MAX);
    compiled.bytes = scenario
        .traffic
        .iter()
        .map(|source| f64::from(source.bytes()))
        .collect();
    for (index, source) in scenario.traffic.iter().enumerate() {
        // A source's random draws do not depend on other sources.
        let mut random = Random::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (index as u64 + 1));
        let key = |name: &str| format!("traffic.{index}.{name}");
        match source {
            Traffic::Flows {
                count,
                pps,
                start_s,
                interval_s,
                lasts_s,
                repeat,
                spread_s,
                factor,
                dscp,
                by_volume,
                ..
            } => {
                within(&key("pps"), *pps, 0.0, 1e12)?;
                within(&key("start_s"), *start_s, 0.0, 1e9)?;
                within(&key("interval_s"), *interval_s, 0.0, 1e9)?;
                within(&key("spread_s"), *spread_s, 0.0, 1e9)?;
                within(&key("count"), *count as f64, 0.0, FLOWS_LIMIT as f64)?;
                if let Some(lasts_s) = lasts_s {
                    within(&key("lasts_s"), *lasts_s, SHORTEST_LIFE_S, 1e9)?;
                }
                let place = compiled.factors.len();
                let mut changes = vec![(Nanos::ZERO, 1.0)];
                changes.extend(factor.iter().map(|(at_s, value)| (seconds(*at_s), *value)));
                changes.sort_by_key(|(at, _)| *at);
                compiled.factors.push(Steps::new(changes));
                for n in 0..*count {
                    let spread = if *spread_s > 0.0 {
                        random.unit() * spread_s
                    } else {
                        0.0
                    };
                    compiled.singles.push(Single {
                        at: seconds(start_s + interval_s * n as f64 + spread),
                        lasts: lasts_s.map(seconds),
                        repeat: *repeat,
                        flows: 1.0,
                        pps: *pps,
                        factor: place,
                        dscp: *dscp,
                        volume: lasts_s
                            .filter(|_| *by_volume)
                            .map(|lasts_s| (lasts_s * pps).ceil() as u64),
                        source: index,
                    });
                }
            }
            Traffic::Aggregate {
                points,
                smooth,
                period_s,
                flows,
                noise,
                burst,
                ..
            } => {
                if points.is_empty() || points.windows(2).any(|pair| pair[0].0 >= pair[1].0) {
                    return Err(Error::value(
                        key("points"),
                        "write [[seconds, new flows/s, packets/s], …] in ascending order of seconds",
                    ));
                }
                for (_, new_flows, pps) in points {
                    within(&key("points"), *new_flows, 0.0, 1e12)?;
                    within(&key("points"), *pps, 0.0, 1e15)?;
                }
                if let Some(period_s) = period_s {
                    within(&key("period_s"), *period_s, 0.1, 1e9)?;
                }
                let (new_flows, pps) = sampled(points, *smooth, *period_s, scenario.duration_s);
                let classes = classes(flows, data, &key("flows"))?;
                compiled.aggregate(
                    pps,
                    new_flows,
                    classes,
                    noise,
                    burst,
                    instance_pps,
                    end,
                    index,
                    &mut random,
                    &key,
                )?;
            }
            Traffic::Series {
                file,
                from_s,
                peak_pps,
                flows,
                noise,
                burst,
                ..
            } => {
                let path = data.join(file);
                let rows = read_series(&path)?;
                let rows: Vec<_> = rows.into_iter().filter(|row| row.0 >= *from_s).collect();
                let most = rows.iter().map(|row| row.2).fold(0.0, f64::max);
                if most <= 0.0 {
                    return Err(Error::Data {
                        path,
                        problem: format!("the trace has no packets after second {from_s}"),
                    });
                }
                let scale = peak_pps.map_or(1.0, |peak| peak / most);
                let at = |row: &(f64, f64, f64)| seconds(row.0 - from_s);
                let new_flows = rows.iter().map(|row| (at(row), row.1 * scale)).collect();
                let pps = rows.iter().map(|row| (at(row), row.2 * scale)).collect();
                let classes = classes(flows, data, &key("flows"))?;
                compiled.aggregate(
                    Steps::new(pps),
                    Steps::new(new_flows),
                    classes,
                    noise,
                    burst,
                    instance_pps,
                    end,
                    index,
                    &mut random,
                    &key,
                )?;
            }
            Traffic::Recording { file } => {
                let recording = Recording::load(&beside.join(file))?;
                compiled.aggregates.push(Aggregate {
                    pps: Steps::new(recording.rates().map(|(at, _, pps)| (at, pps)).collect()),
                    new_flows: Steps::new(recording.rates().map(|(at, flows, _)| (at, flows)).collect()),
                    // Flow lifetimes were not recorded; none ends here.
                    classes: vec![Class {
                        share: 1.0,
                        life_s: RECORDED_LIFE_S,
                        weight: 1.0,
                    }],
                    source: index,
                });
            }
            Traffic::Capture { file, speed, repeat } => {
                within(&key("speed"), *speed, 1e-6, 1e6)?;
                compiled.capture(&data.join(file), *speed, *repeat, end, index)?;
            }
        }
    }
    compiled.singles.sort_by_key(|single| single.at);
    if compiled.singles.len() > FLOWS_LIMIT {
        return Err(Error::value(
            "traffic",
            format!("more than {FLOWS_LIMIT} single flows"),
        ));
    }
    if compiled
        .aggregates
        .iter()
        .any(|a| a.pps.changes.len() > CHANGES_LIMIT)
    {
        return Err(Error::value(
            "traffic",
            format!("more than {CHANGES_LIMIT} changes of rate in one source"),
        ));
    }
    Ok(compiled)
}

impl Compiled {
    #[allow(
        clippy::too_many_arguments,
        reason = "two callers, each with all of them at hand"
    )]
    fn aggregate(
        &mut self,
        pps: Steps,
        new_flows: Steps,
        classes: Vec<Class>,
        noise: &Option<Noise>,
        bursts: &[Burst],
        instance_pps: f64,
        end: Nanos,
        source: usize,
        random: &mut Random,
        key: &dyn Fn(&str) -> String,
    ) -> Result<(), Error> {
        let mut pps = pps;
        if let Some(noise) = noise {
            within(&key("noise.every_s"), noise.every_s, 0.001, 1e9)?;
            within(&key("noise.share"), noise.share, 0.0, 1.0)?;
            let every = seconds(noise.every_s);
            let count = (end.0 / every.0.max(1)) as usize + 1;
            if count > CHANGES_LIMIT {
                return Err(Error::value(
                    key("noise.every_s"),
                    format!("more than {CHANGES_LIMIT} changes"),
                ));
            }
            let changes = (0..count as u64).map(|n| {
                let factor = 1.0 + noise.share * (2.0 * random.unit() - 1.0);
                (Nanos(n * every.0), factor)
            });
            pps = pps.times(&Steps::new(changes.collect()));
        }
        let calm = pps.clone();
        for burst in bursts {
            let (low, high) = burst.every_s.bounds();
            within(&key("burst.every_s"), low, 0.01, 1e9)?;
            within(&key("burst.every_s"), high, low, 1e9)?;
            let (low, high) = burst.length_ms.bounds();
            within(&key("burst.length_ms"), low, 1.0, 1e9)?;
            within(&key("burst.length_ms"), high, low, 1e9)?;
            let (low, high) = burst.factor.bounds();
            within(&key("burst.factor"), low, 1.0, 1e6)?;
            within(&key("burst.factor"), high, low, 1e6)?;
            within(&key("burst.rise_ms"), burst.rise_ms, 0.0, 1e6)?;
            let last = burst.to_s.map_or(end, seconds).min(end);
            let mut at = seconds(burst.from_s);
            let mut factors: Vec<(Nanos, f64)> = Vec::new();
            loop {
                at = at + seconds(burst.every_s.at(random.unit()));
                let length = seconds(burst.length_ms.at(random.unit()) / 1e3).max(Nanos::from_millis(1));
                let factor = burst.factor.at(random.unit());
                if at >= last {
                    break;
                }
                let stages = if burst.rise_ms > 0.0 {
                    ((burst.rise_ms / 2.0).ceil() as u64).clamp(1, 32)
                } else {
                    1
                };
                let rise = seconds(burst.rise_ms / 1e3).min(length);
                match burst.of {
                    BurstOf::Packets => {
                        for stage in 1..=stages {
                            let from = at + Nanos(rise.0 * (stage - 1) / stages);
                            factors.push((from, 1.0 + (factor - 1.0) * stage as f64 / stages as f64));
                        }
                        factors.push((at + length, 1.0));
                    }
                    BurstOf::Flows => {
                        let extra = calm.peek(at) * (factor - 1.0);
                        let flows = (new_flows.peek(at) * (factor - 1.0) * length.as_secs_f64()).max(1.0);
                        let pieces = (extra / (PIECE_SHARE * instance_pps)).ceil() as u64;
                        let pieces = pieces.clamp(*BURST_FLOWS.start(), *BURST_FLOWS.end()).max(stages);
                        let place = self.factors.len();
                        if place == 0 || self.factors[place - 1].changes.as_slice() != [(Nanos::ZERO, 1.0)] {
                            self.factors.push(Steps::new(vec![(Nanos::ZERO, 1.0)]));
                        }
                        for piece in 0..pieces {
                            let start = at + Nanos(rise.0 * (piece * stages / pieces) / stages);
                            self.singles.push(Single {
                                at: whole_ms(start),
                                lasts: Some((at + length).since(start).max(Nanos::from_millis(1))),
                                repeat: false,
                                flows: flows / pieces as f64,
                                pps: extra / pieces as f64,
                                factor: self.factors.len() - 1,
                                dscp: 0,
                                volume: None,
                                source,
                            });
                        }
                    }
                }
                at = at + length;
            }
            if !factors.is_empty() {
                pps = pps.times(&Steps::new(factors));
            }
        }
        self.aggregates.push(Aggregate {
            pps,
            new_flows,
            classes,
            source,
        });
        Ok(())
    }

    fn capture(
        &mut self,
        path: &Path,
        speed: f64,
        repeat: bool,
        end: Nanos,
        source: usize,
    ) -> Result<(), Error> {
        let bytes = read(path)?;
        let data = |problem: String| Error::Data {
            path: path.to_owned(),
            problem,
        };
        let reader = packet::capture::CaptureReader::new(&bytes).map_err(|error| data(error.to_string()))?;
        // By key: first, last, packets, DSCP.
        let mut flows: BTreeMap<FlowKey, (u64, u64, u64, u8)> = BTreeMap::new();
        let (mut packets, mut bytes) = (0u64, 0u64);
        let (mut first, mut last) = (u64::MAX, 0);
        for captured in reader {
            let captured = captured.map_err(|error| data(error.to_string()))?;
            // Skips frames without a flow, and later fragments, which have no ports.
            let info = match packet::parse(captured.frame) {
                packet::Parsed::Flow(info) => info,
                packet::Parsed::Fragment(fragment) if fragment.is_first() => fragment.info,
                _ => continue,
            };
            let at = captured.timestamp_ns;
            (first, last) = (first.min(at), last.max(at));
            let flow = flows.entry(info.key).or_insert((at, at, 0, info.dscp));
            flow.0 = flow.0.min(at);
            flow.1 = flow.1.max(at);
            flow.2 += 1;
            packets += 1;
            bytes += captured.frame.len() as u64;
        }
        if flows.is_empty() {
            return Err(data("no packet of the capture belongs to a flow".to_owned()));
        }
        if let Some(of_source) = self.bytes.get_mut(source) {
            *of_source = bytes as f64 / packets as f64;
        }
        let factor = self.factors.len();
        self.factors.push(Steps::new(vec![(Nanos::ZERO, 1.0)]));
        let scaled = |ns: u64| Nanos((ns as f64 / speed) as u64);
        let length = scaled(last - first) + Nanos::from_millis(1);
        let mut round = Nanos::ZERO;
        while round < end {
            for (from, to, packets, dscp) in flows.values() {
                let lasts = whole_ms(scaled(to - from)).max(Nanos::from_millis(1));
                self.singles.push(Single {
                    at: whole_ms(round + scaled(from - first)),
                    lasts: Some(lasts),
                    repeat: false,
                    flows: 1.0,
                    pps: *packets as f64 / lasts.as_secs_f64(),
                    factor,
                    dscp: *dscp,
                    volume: None,
                    source,
                });
            }
            if self.singles.len() > FLOWS_LIMIT {
                return Err(data(format!(
                    "with its repetitions the capture has more than {FLOWS_LIMIT} flows"
                )));
            }
            round = round + length;
            if !repeat {
                break;
            }
        }
        Ok(())
    }
}

/// Hashes keys as the flow table does.
const HASHER: flow_table::FlowHasher = flow_table::FlowHasher::new([1, 2, 3, 4]);

/// The key and hash of a flow number: a unique 5-tuple.
pub(crate) fn key_of(number: u64) -> (FlowKey, u64) {
    let [a, b, c, d, e, f, g, h] = Random::new(number).bits().to_le_bytes();
    // The client's address is always the lower one.
    let key = FlowKey::V4(FlowKeyV4 {
        a: [10, a & 127, b, c],
        b: [10, 128 | d, e, f],
        a_port: u16::from_le_bytes([g, h]) | 1024,
        b_port: 443,
        vlan: 0,
        protocol: protocol::TCP,
        zero: 0,
    });
    (key, HASHER.hash(&key))
}

/// Truncates a count, which is never below 0.
pub(crate) fn whole(count: f64) -> u64 {
    // A conversion to the signed type takes one instruction.
    count as i64 as u64
}

/// Rounds a count to the nearest integer, halves up.
pub(crate) fn nearest(count: f64) -> u64 {
    let whole = count as i64;
    (whole + i64::from(count - whole as f64 >= 0.5)) as u64
}

fn sampled(
    points: &[(f64, f64, f64)],
    smooth: bool,
    period_s: Option<f64>,
    duration_s: f64,
) -> (Steps, Steps) {
    let (mut new_flows, mut pps) = (Vec::new(), Vec::new());
    let mut round_s = 0.0;
    loop {
        for (index, (at_s, flows, packets)) in points.iter().enumerate() {
            let next = points.get(index + 1);
            let last_s = period_s.unwrap_or(f64::INFINITY);
            if *at_s >= last_s {
                break;
            }
            let pieces = match next {
                // A change over seconds in steps of a tenth of a second; over hours in a hundred steps.
                Some(next) if smooth => (((next.0 - at_s) * 10.0).round() as u64).clamp(1, 100),
                _ => 1,
            };
            for piece in 0..pieces {
                let share = if pieces == 1 {
                    0.0
                } else {
                    (piece as f64 + 0.5) / pieces as f64
                };
                let (to_s, to_flows, to_packets) = next.copied().unwrap_or((*at_s, *flows, *packets));
                let at = seconds(round_s + at_s + (to_s - at_s) * piece as f64 / pieces as f64);
                new_flows.push((at, flows + (to_flows - flows) * share));
                pps.push((at, packets + (to_packets - packets) * share));
            }
        }
        match period_s {
            Some(period_s) if round_s + period_s < duration_s && pps.len() < CHANGES_LIMIT => {
                round_s += period_s
            }
            _ => break,
        }
    }
    (Steps::new(new_flows), Steps::new(pps))
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => Error::NoData {
            path: path.to_owned(),
        },
        _ => Error::Read {
            path: path.to_owned(),
            source,
        },
    })
}

fn read_text(path: &Path) -> Result<String, Error> {
    String::from_utf8(read(path)?).map_err(|_| Error::Data {
        path: path.to_owned(),
        problem: "the file is not UTF-8 text".to_owned(),
    })
}

/// Parses `second,flows,packets,…` with a heading.
fn read_series(path: &Path) -> Result<Vec<(f64, f64, f64)>, Error> {
    let text = read_text(path)?;
    let mut rows = Vec::new();
    for (number, line) in text.lines().enumerate().skip(1) {
        let mut cells = line.split(',').map(|cell| cell.trim().parse::<f64>());
        let row = match (cells.next(), cells.next(), cells.next()) {
            (Some(Ok(second)), Some(Ok(flows)), Some(Ok(packets)))
                if second.is_finite()
                    && flows.is_finite()
                    && packets.is_finite()
                    && flows >= 0.0
                    && packets >= 0.0 =>
            {
                (second, flows, packets)
            }
            _ => {
                return Err(Error::Data {
                    path: path.to_owned(),
                    problem: format!("line {}: {line:?} is not second,flows,packets", number + 1),
                });
            }
        };
        if rows.last().is_some_and(|last: &(f64, f64, f64)| last.0 >= row.0) {
            return Err(Error::Data {
                path: path.to_owned(),
                problem: format!("line {}: seconds must increase", number + 1),
            });
        }
        rows.push(row);
    }
    Ok(rows)
}

/// Converts a flow mix to classes.
fn classes(mix: &FlowMix, data: &Path, key: &str) -> Result<Vec<Class>, Error> {
    let pace = |pace_pps: f64| within(key, pace_pps, 1e-3, 1e12);
    let found = match mix {
        FlowMix::Default => vec![Class {
            share: 1.0,
            life_s: 1.0,
            weight: 1.0,
        }],
        FlowMix::Classes { classes } => classes
            .iter()
            .map(|(share, life_s, weight)| Class {
                share: *share,
                life_s: *life_s,
                weight: *weight,
            })
            .collect(),
        FlowMix::Mixture { mixture, pace_pps } => {
            pace(*pace_pps)?;
            let path = data.join(mixture);
            // Reported like any other missing file.
            read(&path)?;
            let mixture = Mixture::load(&path).map_err(|error| Error::Data {
                path: path.clone(),
                problem: error.to_string(),
            })?;
            let mut random = Random::new(1);
            // Bins by powers of four of the length: number of flows and packets.
            let mut bins = [(0.0, 0.0); 16];
            for _ in 0..MIXTURE_DRAWS {
                let length = mixture.draw(&mut random);
                let bin = &mut bins[(length.ilog2() / 2) as usize];
                bin.0 += 1.0;
                bin.1 += f64::from(length);
            }
            bins.iter()
                .filter(|(count, _)| *count > 0.0)
                .map(|(count, packets)| Class {
                    share: count / MIXTURE_DRAWS as f64,
                    life_s: packets / count / pace_pps,
                    weight: 1.0,
                })
                .collect()
        }
        FlowMix::Cdf { cdf, pace_pps } => {
            pace(*pace_pps)?;
            let path = data.join(cdf);
            let text = read_text(&path)?;
            let mut before: Option<(f64, f64)> = None;
            let mut classes = Vec::new();
            for (number, line) in text
                .lines()
                .enumerate()
                .filter(|(_, line)| !line.trim().is_empty())
            {
                let mut cells = line.split_whitespace().map(str::parse::<f64>);
                let (Some(Ok(size)), Some(Ok(probability))) = (cells.next(), cells.next()) else {
                    return Err(Error::Data {
                        path,
                        problem: format!("line {}: {line:?} is not a size and a probability", number + 1),
                    });
                };
                if let Some((from, below)) = before
                    && probability > below
                {
                    let packets = ((from + size) / 2.0 / FULL_PACKET_BYTES).max(1.0);
                    classes.push(Class {
                        share: probability - below,
                        life_s: packets / pace_pps,
                        weight: 1.0,
                    });
                }
                before = Some((size, probability));
            }
            classes
        }
    };
    let total: f64 = found.iter().map(|class| class.share).sum();
    let sound = |class: &Class| {
        class.share.is_finite()
            && class.share >= 0.0
            && class.life_s.is_finite()
            && class.life_s > 0.0
            && class.weight.is_finite()
            && class.weight > 0.0
    };
    if found.is_empty() || !found.iter().all(sound) || total <= 0.0 {
        return Err(Error::value(
            key,
            "each class needs a share of 0 or more, and a life and a weight above 0",
        ));
    }
    Ok(found
        .into_iter()
        .map(|class| Class {
            share: class.share / total,
            life_s: class.life_s.max(SHORTEST_LIFE_S),
            weight: class.weight,
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_hold_until_they_change_and_multiply() {
        let ms = Nanos::from_millis;
        let mut steps = Steps::new(vec![(ms(1), 2.0), (ms(5), 3.0)])
            .times(&Steps::new(vec![(ms(4), 10.0), (ms(5), 1.0)]));
        let values: Vec<f64> = (0..7).map(|n| steps.value(ms(n))).collect();
        assert_eq!(values, [0.0, 2.0, 2.0, 2.0, 20.0, 3.0, 3.0]);
        assert_eq!(
            Steps::new(vec![(ms(1), 2.0), (ms(5), 3.0)]).next(ms(1)),
            Some(ms(5))
        );
        assert_eq!(steps.next(ms(6)), None);
    }

    #[test]
    fn points_repeat_and_are_smoothed() {
        let points = [(0.0, 0.0, 0.0), (1.0, 10.0, 100.0)];
        let (_, mut pps) = sampled(&points, true, Some(2.0), 4.0);
        assert!((pps.value(seconds(0.5)) - 55.0).abs() < 1e-9);
        assert_eq!(pps.value(seconds(1.5)), 100.0);
        assert!((pps.value(seconds(2.5)) - 55.0).abs() < 1e-9);
        assert_eq!(pps.value(seconds(3.5)), 100.0);
    }

    #[test]
    fn every_flow_has_a_unique_key() {
        let keys: std::collections::BTreeSet<_> = (0..10_000).map(|n| key_of(n).0).collect();
        assert_eq!(keys.len(), 10_000);
    }
}
