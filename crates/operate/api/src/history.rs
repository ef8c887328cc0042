//! The history: the last 15 minutes, one point per second.
//!
//! The ring is bounded by [`POINTS`] and [`INSTANCES`]. It takes at most 5 MB; with eight instances, 0.2 MB.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use model::InstanceId;

use crate::types::{History, InstanceHistory, ServiceHistory, Snapshot, UplinkRow};

/// Time between two snapshots.
pub(crate) const SNAPSHOT_PERIOD: Duration = Duration::from_secs(1);
/// Maximum number of points: 15 minutes.
pub(crate) const POINTS: u32 = 900;
/// Maximum number of instances in a point: those with the lowest ids. The others are counted.
const INSTANCES: usize = 256;

/// One point.
#[derive(Debug)]
struct Point {
    unix_ms: u64,
    offered_pps: f32,
    returned_pps: f32,
    dropped_pps: f32,
    /// Name, active and desired instances.
    services: Box<[(Box<str>, u32, u32)]>,
    instances: Box<[InstancePoint]>,
    omitted: u32,
}

#[derive(Debug)]
struct InstancePoint {
    id: InstanceId,
    /// Its service's index in this point.
    service: u16,
    to_pps: f32,
    dropped_pps: f32,
    live_flows: u32,
    ring_occupancy: f32,
}

#[derive(Debug, Default)]
struct Ring {
    pid: u32,
    points: VecDeque<Point>,
    /// Uptime and drop counters of the newest point.
    uptime_s: f64,
    dropped: u64,
    dropped_by: HashMap<InstanceId, u64>,
}

/// Records snapshots and answers `/v1/history`. Written by one task, read by any.
#[derive(Debug, Default)]
pub(crate) struct Recorder(Mutex<Ring>);

impl Recorder {
    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a snapshot. If the ring is full, it replaces the oldest point.
    pub(crate) fn note(&self, snapshot: &Snapshot) {
        self.ring().note(snapshot);
    }

    /// The newest `points` points.
    pub(crate) fn read(&self, points: u32) -> History {
        self.ring().read(points as usize)
    }
}

impl Ring {
    fn note(&mut self, snapshot: &Snapshot) {
        let status = &snapshot.status;
        let seconds = status.uptime_s - self.uptime_s;
        let is_first = self.points.is_empty();
        let per_second = |now: u64, before: Option<&u64>| match before {
            Some(before) if seconds > 0.0 && !is_first => {
                (now.saturating_sub(*before) as f64 / seconds) as f32
            }
            // Drops before the first point have no known time.
            _ => 0.0,
        };
        let sum = |rate: fn(&UplinkRow) -> f64| status.uplinks.iter().map(rate).sum::<f64>() as f32;
        let service_of = |name: &str| {
            let index = snapshot.services.iter().position(|row| row.name == name);
            index.map_or(u16::MAX, |index| u16::try_from(index).unwrap_or(u16::MAX))
        };
        let point = Point {
            unix_ms: snapshot.unix_ms,
            offered_pps: sum(|uplink| uplink.received_pps),
            returned_pps: sum(|uplink| uplink.sent_pps),
            dropped_pps: per_second(status.accounting.dropped, Some(&self.dropped)),
            services: snapshot
                .services
                .iter()
                .map(|row| (row.name.as_str().into(), row.active, row.desired))
                .collect(),
            instances: snapshot
                .instances
                .iter()
                .take(INSTANCES)
                .map(|row| InstancePoint {
                    id: row.id,
                    service: service_of(&row.service),
                    to_pps: row.to_pps as f32,
                    dropped_pps: per_second(row.dropped_packets, self.dropped_by.get(&row.id)),
                    live_flows: u32::try_from(row.live_flows).unwrap_or(u32::MAX),
                    ring_occupancy: row.ring_occupancy as f32,
                })
                .collect(),
            omitted: snapshot.instances.len().saturating_sub(INSTANCES) as u32,
        };
        self.pid = status.pid;
        self.uptime_s = status.uptime_s;
        self.dropped = status.accounting.dropped;
        self.dropped_by = snapshot
            .instances
            .iter()
            .take(INSTANCES)
            .map(|row| (row.id, row.dropped_packets))
            .collect();
        if self.points.len() == POINTS as usize {
            self.points.pop_front();
        }
        self.points.push_back(point);
    }

    fn read(&self, points: usize) -> History {
        let skipped = self.points.len().saturating_sub(points);
        let points = || self.points.iter().skip(skipped);
        let figures = |figure: fn(&Point) -> f32| points().map(|point| rounded(figure(point))).collect();
        let mut services: BTreeMap<&str, ServiceHistory> = BTreeMap::new();
        let mut instances: BTreeMap<InstanceId, InstanceHistory> = BTreeMap::new();
        for (index, point) in points().enumerate() {
            for (name, active, desired) in &point.services {
                let of = services.entry(name).or_insert_with(|| ServiceHistory {
                    name: name.to_string(),
                    first: index as u32,
                    ..ServiceHistory::default()
                });
                of.active.push(*active);
                of.desired.push(*desired);
            }
            for instance in &point.instances {
                let of = instances.entry(instance.id).or_insert_with(|| InstanceHistory {
                    id: instance.id,
                    service: point
                        .services
                        .get(usize::from(instance.service))
                        .map_or(String::new(), |(name, ..)| name.to_string()),
                    first: index as u32,
                    to_pps: Vec::new(),
                    dropped_pps: Vec::new(),
                    live_flows: Vec::new(),
                    ring_occupancy: Vec::new(),
                });
                of.to_pps.push(rounded(instance.to_pps));
                of.dropped_pps.push(rounded(instance.dropped_pps));
                of.live_flows.push(instance.live_flows);
                of.ring_occupancy
                    .push((f64::from(instance.ring_occupancy) * 1000.0).round() / 1000.0);
            }
        }
        History {
            pid: self.pid,
            period_ms: SNAPSHOT_PERIOD.as_millis() as u32,
            unix_ms: points().map(|point| point.unix_ms).collect(),
            offered_pps: figures(|point| point.offered_pps),
            returned_pps: figures(|point| point.returned_pps),
            dropped_pps: figures(|point| point.dropped_pps),
            services: services.into_values().collect(),
            instances: instances.into_values().collect(),
            omitted_instances: points().map(|point| point.omitted).max().unwrap_or(0),
        }
    }
}

/// Rounds to a tenth, which suffices for charts and keeps the answer short.
fn rounded(rate: f32) -> f64 {
    (f64::from(rate) * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use model::InstanceState;

    use super::*;
    use crate::types::{Accounting, InstanceRow, ServiceRow, Status};

    fn snapshot(second: u64, ids: impl Iterator<Item = u32>) -> Snapshot {
        Snapshot {
            unix_ms: second * 1000,
            status: Status {
                pid: 7,
                uptime_s: second as f64,
                accounting: Accounting {
                    dropped: second * 10,
                    ..Accounting::default()
                },
                ..Status::default()
            },
            services: vec![ServiceRow {
                name: "web".to_owned(),
                active: second as u32,
                desired: 3,
                ..ServiceRow::default()
            }],
            instances: ids
                .map(|id| InstanceRow {
                    id: InstanceId(id),
                    service: "web".to_owned(),
                    place: None,
                    core: None,
                    state: InstanceState::Active,
                    state_ms: 0,
                    slot: None,
                    container: None,
                    address: None,
                    name: None,
                    pid: None,
                    adopted: false,
                    to_pps: 12.34,
                    back_pps: 0.0,
                    to_packets: 0,
                    back_packets: 0,
                    live_flows: 5,
                    ring_occupancy: 0.25,
                    dropped_packets: second * 2,
                    capacity_pps: None,
                    cpu_quota: None,
                    cpu: Some(0.53),
                    busy: None,
                    gap_us: None,
                    ring_wait_us: None,
                    function_us: None,
                    held_up: 0.0,
                    watts: None,
                    memory_bytes: None,
                    report: None,
                    reason: String::new(),
                })
                .collect(),
            ..Snapshot::default()
        }
    }

    #[test]
    fn the_newest_quarter_of_an_hour_is_kept() {
        let recorder = Recorder::default();
        for second in 0..2000 {
            recorder.note(&snapshot(second, 1..=2));
        }
        let history = recorder.read(POINTS);
        assert_eq!(history.unix_ms.len(), 900);
        assert_eq!(history.unix_ms.first(), Some(&1_100_000));
        assert_eq!(history.unix_ms.last(), Some(&1_999_000));
        assert_eq!(history.dropped_pps, vec![10.0; 900]);
        assert_eq!(history.services[0].active.len(), 900);
        assert_eq!(history.instances.len(), 2);
        assert_eq!(history.instances[1].service, "web");
        assert_eq!(history.instances[1].to_pps, vec![12.3; 900]);
        assert_eq!(history.instances[1].dropped_pps, vec![2.0; 900]);
    }

    #[test]
    fn a_shorter_part_is_the_newest_one() {
        let recorder = Recorder::default();
        for second in 0..50 {
            recorder.note(&snapshot(second, 1..=1));
        }
        let history = recorder.read(10);
        assert_eq!(history.unix_ms.first(), Some(&40_000));
        assert_eq!(history.instances[0].live_flows, vec![5; 10]);
    }

    #[test]
    fn an_instance_begins_where_it_was_first_seen_and_ends_where_it_was_last_seen() {
        let recorder = Recorder::default();
        recorder.note(&snapshot(0, 1..=1));
        recorder.note(&snapshot(1, 1..=2));
        recorder.note(&snapshot(2, 2..=2));
        let history = recorder.read(POINTS);
        let spans: Vec<_> = history
            .instances
            .iter()
            .map(|of| (of.id.0, of.first, of.to_pps.len()))
            .collect();
        assert_eq!(spans, [(1, 0, 2), (2, 1, 2)]);
        // Its first point has no earlier counter to compare with.
        assert_eq!(history.instances[1].dropped_pps, [0.0, 2.0]);
    }

    #[test]
    fn memory_is_bounded_whatever_comes() {
        let recorder = Recorder::default();
        for second in 0..2000_u32 {
            recorder.note(&snapshot(second.into(), second * 10..second * 10 + 300));
        }
        let ring = recorder.ring();
        assert_eq!(ring.points.len(), 900);
        assert!(ring.points.iter().all(|point| point.instances.len() == INSTANCES));
        assert_eq!(ring.dropped_by.len(), INSTANCES);
        drop(ring);
        assert_eq!(recorder.read(1).omitted_instances, 44);
    }
}
