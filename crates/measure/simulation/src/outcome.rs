//! The result of a run: totals, time series, decisions, and the metrics used by checks, sweeps and
//! comparisons.

use std::collections::{BTreeMap, VecDeque};

use model::{EventKind, InstanceId, InstanceState, Nanos, Slot};
use serde::Serialize;

use crate::control::ControlLoop;
use crate::scenario::{Scenario, Traffic};
use crate::site::Site;
use crate::time::seconds;

/// Approximate number of points in a series.
const POINTS: f64 = 400.0;
/// An interval has loss if this share of the offered packets is lost.
const LOSS_SHARE: f64 = 1e-3;
/// Decisions kept; further ones are counted.
pub const DECISIONS_LIMIT: usize = 20_000;

/// The counts of one step.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interval {
    pub(crate) offered: f64,
    pub(crate) served: f64,
    pub(crate) lost_ring: f64,
    pub(crate) lost_stalled: f64,
    pub(crate) lost_unserved: f64,
    pub(crate) lost_failed: f64,
    pub(crate) overcommitted: f64,
    pub(crate) moved: f64,
    /// Seconds that served packets were on their way to places and back, in sum.
    pub(crate) way_s: f64,
}

/// A point of the series. Rates are packets per second, means since the previous point.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Time in seconds.
    pub at_s: f64,
    /// Offered.
    pub offered_pps: f64,
    /// Processed.
    pub served_pps: f64,
    /// Lost, for any reason.
    pub lost_pps: f64,
    /// Wanted Active instances.
    pub wanted: u32,
    /// Active instances.
    pub active: u32,
    /// Instances that exist and are not frozen.
    pub running: u32,
    /// By instance.
    pub instances: Vec<InstancePoint>,
}

/// An instance at a point of the series.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct InstancePoint {
    /// The instance.
    pub id: InstanceId,
    /// Flows pinned to it.
    pub flows: f64,
    /// Arriving packets per second, mean since the previous point.
    pub arrivals_pps: f64,
    /// Packets processed per second.
    pub served_pps: f64,
    /// Whether it takes new flows.
    pub active: bool,
}

/// A decision of the autoscaler or a manual one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Decision {
    /// Time in seconds.
    pub at_s: f64,
    /// Wanted Active instances before.
    pub from: u32,
    /// Wanted Active instances after.
    pub to: u32,
    /// The policy.
    pub policy: String,
    /// The reason.
    pub reason: String,
}

/// The result of one simulated run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// Metrics by name; names end in units.
    pub metrics: BTreeMap<String, f64>,
    /// The time series.
    pub series: Vec<Point>,
    /// The decisions.
    pub decisions: Vec<Decision>,
}

/// Records a run and computes its [`Outcome`].
#[derive(Debug)]
pub(crate) struct Recorder {
    every: Nanos,
    next: Nanos,
    warm_up: Nanos,
    duration: Nanos,
    last: Nanos,
    since_point: Nanos,
    /// Counts since the last point.
    sum: Interval,
    by_slot: Vec<(f64, f64)>,
    total: Interval,
    series: Vec<Point>,
    decisions: Vec<Decision>,
    decisions_left_out: u64,
    instance_s: f64,
    reserved_cpu_s: f64,
    active_s: f64,
    wanted_s: f64,
    power: Option<[f64; 2]>,
    sites: Vec<Site>,
    /// By place: instances and CPUs, times seconds.
    at_places: Vec<(f64, f64)>,
    relocations: u64,
    energy_j: f64,
    active_max: u32,
    starts: u64,
    changes: VecDeque<Nanos>,
    changes_count: u64,
    changes_per_min: usize,
    longest_quiet: Nanos,
    bytes: Option<u32>,
    pub(crate) extra: BTreeMap<String, f64>,
}

impl Recorder {
    pub(crate) fn new(scenario: &Scenario) -> Recorder {
        let duration = seconds(scenario.duration_s);
        // Whole milliseconds, and whole seconds in long runs.
        let every_ms = (scenario.duration_s * 1e3 / POINTS).ceil().max(1.0) as u64;
        let every_ms = match every_ms {
            0..=999 => [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000]
                .into_iter()
                .find(|ms| *ms >= every_ms)
                .unwrap_or(1_000),
            ms => ms.div_ceil(1_000) * 1_000,
        };
        let mut sizes = scenario.traffic.iter().map(|traffic| match traffic {
            Traffic::Flows { bytes, .. }
            | Traffic::Aggregate { bytes, .. }
            | Traffic::Series { bytes, .. } => Some(*bytes),
            Traffic::Capture { .. } | Traffic::Recording { .. } => None,
        });
        let first = sizes.next().flatten();
        Recorder {
            every: Nanos::from_millis(every_ms),
            next: Nanos::from_millis(every_ms),
            warm_up: seconds(scenario.warm_up_s),
            duration,
            last: Nanos::ZERO,
            since_point: Nanos::ZERO,
            sum: Interval::default(),
            by_slot: Vec::new(),
            total: Interval::default(),
            series: Vec::new(),
            decisions: Vec::new(),
            decisions_left_out: 0,
            instance_s: 0.0,
            reserved_cpu_s: 0.0,
            active_s: 0.0,
            wanted_s: 0.0,
            power: scenario.instances.power_w,
            sites: scenario.place.clone(),
            at_places: vec![(0.0, 0.0); scenario.place.len()],
            relocations: 0,
            energy_j: 0.0,
            active_max: 0,
            starts: 0,
            changes: VecDeque::new(),
            changes_count: 0,
            changes_per_min: 0,
            longest_quiet: Nanos::ZERO,
            bytes: first.filter(|first| sizes.all(|size| size == Some(*first))),
            extra: BTreeMap::new(),
        }
    }

    /// When the next point is due.
    pub(crate) fn next_at(&self, now: Nanos) -> Nanos {
        if now < self.warm_up {
            self.next.min(self.warm_up)
        } else {
            self.next
        }
    }

    /// Packets arrived and processed since the last point, for slots from 0 to `slots`; each step adds to them.
    pub(crate) fn instances(&mut self, slots: usize) -> &mut [(f64, f64)] {
        if self.by_slot.len() < slots {
            self.by_slot.resize(slots, (0.0, 0.0));
        }
        &mut self.by_slot
    }

    /// Adds a step that ended at `now`.
    pub(crate) fn note(&mut self, control: &ControlLoop, interval: &Interval, now: Nanos) {
        let counted = now > self.warm_up;
        let dt = now.since(self.last);
        self.last = now;
        let dt_s = dt.as_secs_f64();
        add(&mut self.sum, interval);
        let (active, running) = (control.active, control.running);
        if counted {
            add(&mut self.total, interval);
            self.instance_s += f64::from(running) * dt_s;
            self.reserved_cpu_s += control.reserved_cpus * dt_s;
            self.active_s += f64::from(active) * dt_s;
            self.wanted_s += f64::from(control.target()) * dt_s;
            self.active_max = self.active_max.max(active);
            if let Some([idle, each]) = self.power {
                self.energy_j += (idle + each * f64::from(running)) * dt_s;
            }
            for (sums, (count, cpus)) in self.at_places.iter_mut().zip(&control.at_places) {
                sums.0 += f64::from(*count) * dt_s;
                sums.1 += cpus * dt_s;
            }
        }
        for event in &control.events {
            let at = event.at.since(control.zero);
            match &event.kind {
                EventKind::Scaled {
                    from,
                    to,
                    policy,
                    reason,
                    ..
                } => {
                    if self.decisions.len() < DECISIONS_LIMIT {
                        self.decisions.push(Decision {
                            at_s: at.as_secs_f64(),
                            from: *from,
                            to: *to,
                            policy: policy.clone(),
                            reason: reason.clone(),
                        });
                    } else {
                        self.decisions_left_out += 1;
                    }
                    if counted {
                        let before = self.changes.back().copied().unwrap_or(self.warm_up);
                        self.longest_quiet = self.longest_quiet.max(at.since(before));
                        self.changes_count += 1;
                        self.changes.push_back(at);
                        while self
                            .changes
                            .front()
                            .is_some_and(|first| at.since(*first) >= Nanos::from_secs(60))
                        {
                            self.changes.pop_front();
                        }
                        self.changes_per_min = self.changes_per_min.max(self.changes.len());
                    }
                }
                EventKind::Relocated { .. } if counted => self.relocations += 1,
                EventKind::State {
                    to: InstanceState::Starting,
                    ..
                } if counted => self.starts += 1,
                _ => {}
            }
        }
    }

    /// Records a point if one is due. `flows` returns the flows pinned to a slot.
    pub(crate) fn record(&mut self, now: Nanos, control: &mut ControlLoop, flows: impl Fn(Slot) -> f64) {
        control.events.clear();
        if now < self.next && now < self.duration {
            return;
        }
        let dt_s = now.since(self.since_point).as_secs_f64().max(1e-9);
        self.since_point = now;
        self.next = self.next + self.every;
        let mut instances = Vec::new();
        for instance in control.instances() {
            let is_active = instance.state() == InstanceState::Active;
            if instance.is_in_plan() {
                let (arrivals, served) = self
                    .by_slot
                    .get(instance.slot().index())
                    .copied()
                    .unwrap_or_default();
                instances.push(InstancePoint {
                    id: instance.id(),
                    flows: flows(instance.slot()),
                    arrivals_pps: arrivals / dt_s,
                    served_pps: served / dt_s,
                    active: is_active,
                });
            }
        }
        let sum = std::mem::take(&mut self.sum);
        self.by_slot.fill((0.0, 0.0));
        self.series.push(Point {
            at_s: now.as_secs_f64(),
            offered_pps: sum.offered / dt_s,
            served_pps: sum.served / dt_s,
            lost_pps: sum.lost() / dt_s,
            wanted: control.target(),
            active: control.active,
            running: control.running,
            instances,
        });
    }

    /// Ends the run.
    pub(crate) fn finish(&mut self, control: &ControlLoop) {
        let before = self.changes.back().copied().unwrap_or(self.warm_up);
        self.longest_quiet = self.longest_quiet.max(self.last.since(before));
        let active = control
            .instances()
            .iter()
            .filter(|i| i.state() == InstanceState::Active)
            .count();
        self.extra.insert("active_end".to_owned(), active as f64);
        let detect = &control.reactions().detect;
        if let Some(median) = detect.quantile(0.5) {
            let ms = |time: Nanos| time.as_secs_f64() * 1e3;
            self.extra.insert("reaction_ms_p50".to_owned(), ms(median));
            self.extra
                .insert("reaction_ms_max".to_owned(), ms(detect.longest));
        }
    }

    pub(crate) fn outcome(mut self, seed: u64) -> Outcome {
        let total = &self.total;
        let span_s = self.duration.since(self.warm_up).as_secs_f64();
        let mut metrics = std::mem::take(&mut self.extra);
        let mut watts = Some(0.0);
        for (site, (instance_s, cpu_s)) in self.sites.iter().zip(&self.at_places) {
            metrics.insert(format!("{}_instance_s", site.name), *instance_s);
            metrics.insert(format!("{}_cpu_s", site.name), *cpu_s);
            let of_site = site.power_w.map(|[idle, each]| idle + each * cpu_s / span_s);
            watts = watts.zip(of_site).map(|(sum, of)| sum + of);
        }
        if !self.sites.is_empty() {
            metrics.insert("relocations".to_owned(), self.relocations as f64);
            let way_us = 1e6 * total.way_s / total.served.max(1.0);
            metrics.insert("way_us_mean".to_owned(), way_us);
            metrics.extend(watts.map(|watts| ("model_power_w_mean".to_owned(), watts)));
        }
        let mut put = |name: &str, value: f64| {
            metrics.insert(name.to_owned(), value);
        };
        put("offered_packets", total.offered);
        put("served_packets", total.served);
        put("lost_packets", total.lost());
        put(
            "lost_share",
            if total.offered > 0.0 {
                total.lost() / total.offered
            } else {
                0.0
            },
        );
        put("lost_ring_packets", total.lost_ring);
        put("lost_stalled_packets", total.lost_stalled);
        put("lost_unserved_packets", total.lost_unserved);
        put("lost_failed_packets", total.lost_failed);
        put("overcommitted_flows", total.overcommitted);
        put("moved_flows", total.moved);
        put("instance_s", self.instance_s);
        put("reserved_cpu_s", self.reserved_cpu_s);
        put("active_s", self.active_s);
        put("active_mean", self.active_s / span_s);
        put("active_max", f64::from(self.active_max));
        put("starts", self.starts as f64);
        put("changes", self.changes_count as f64);
        put("changes_per_min_max", self.changes_per_min as f64);
        put("quiet_s_max", self.longest_quiet.as_secs_f64());
        if self.power.is_some() {
            put("model_power_w_mean", self.energy_j / span_s);
        }
        let counted: Vec<&Point> = self
            .series
            .iter()
            .filter(|point| point.at_s > self.warm_up.as_secs_f64())
            .collect();
        put(
            "throughput_pps_max",
            counted.iter().map(|p| p.served_pps).fold(0.0, f64::max),
        );
        let tail = &counted[counted.len() - counted.len().div_ceil(10)..];
        let mean = |of: &[&Point], pick: fn(&Point) -> f64| {
            of.iter().map(|p| pick(p)).sum::<f64>() / (of.len().max(1) as f64)
        };
        let end_pps = mean(tail, |p| p.served_pps);
        put("throughput_pps_end", end_pps);
        if let Some(bytes) = self.bytes {
            put("throughput_gbps_end", end_pps * f64::from(bytes) * 8.0 / 1e9);
        }
        put("lost_pps_end", mean(tail, |p| p.lost_pps));
        put("offered_pps_end", mean(tail, |p| p.offered_pps));
        // The first loss that lasts for two points or more.
        let lossy = |p: &Point| p.lost_pps > LOSS_SHARE * p.offered_pps;
        let first = counted
            .windows(2)
            .position(|pair| lossy(pair[0]) && lossy(pair[1]));
        let knee = first.and_then(|index| counted.get(index));
        put(
            "loss_free_s",
            knee.map_or(self.duration.as_secs_f64(), |p| p.at_s),
        );
        put(
            "loss_free_pps",
            counted
                .iter()
                .take(first.unwrap_or(counted.len()))
                .map(|p| p.offered_pps)
                .fold(0.0, f64::max),
        );
        put(
            "loss_free_flows",
            counted
                .iter()
                .take(first.unwrap_or(counted.len()))
                .map(|p| p.instances.iter().map(|i| i.flows).sum::<f64>())
                .fold(0.0, f64::max),
        );
        // Fairness in the last tenth: the share of the least served instance relative to an even share.
        let share_min = |p: &Point| {
            let rates: Vec<f64> = p
                .instances
                .iter()
                .filter(|i| i.active)
                .map(|i| i.arrivals_pps)
                .collect();
            let sum: f64 = rates.iter().sum();
            let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
            if sum > 0.0 {
                least * rates.len() as f64 / sum
            } else {
                1.0
            }
        };
        put("least_share_end", mean(tail, share_min));
        // How evenly arrivals are spread over Active instances.
        let (mut jain, mut spread, mut most, mut count) = (0.0, 0.0, 0.0_f64, 0.0);
        for point in &counted {
            let rates: Vec<f64> = point
                .instances
                .iter()
                .filter(|i| i.active)
                .map(|i| i.arrivals_pps)
                .collect();
            let (sum, squares) = rates
                .iter()
                .fold((0.0, 0.0), |(sum, squares), r| (sum + r, squares + r * r));
            if rates.len() > 1 && sum > 0.0 {
                count += 1.0;
                jain += sum * sum / (squares * rates.len() as f64);
                let (low, high) = rates.iter().fold((f64::INFINITY, 0.0_f64), |(low, high), r| {
                    (low.min(*r), high.max(*r))
                });
                // An idle instance would make the ratio infinite: it is limited to 1000.
                spread += (high / low.max(high * 1e-3)).min(1e3);
                most = most.max(high);
            }
        }
        put("jain_mean", if count > 0.0 { jain / count } else { 1.0 });
        put("max_min_mean", if count > 0.0 { spread / count } else { 1.0 });
        put("instance_pps_max", most);
        Outcome {
            seed,
            metrics,
            series: self.series,
            decisions: self.decisions,
        }
    }
}

impl Interval {
    pub(crate) fn lost(&self) -> f64 {
        self.lost_ring + self.lost_stalled + self.lost_unserved + self.lost_failed
    }
}

fn add(sum: &mut Interval, of: &Interval) {
    sum.offered += of.offered;
    sum.served += of.served;
    sum.lost_ring += of.lost_ring;
    sum.lost_stalled += of.lost_stalled;
    sum.lost_unserved += of.lost_unserved;
    sum.lost_failed += of.lost_failed;
    sum.overcommitted += of.overcommitted;
    sum.moved += of.moved;
    sum.way_s += of.way_s;
}
