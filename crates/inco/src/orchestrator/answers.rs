//! What the control loop answers when it is asked how things are.

use api::types::{
    Accounting, CollectorStatus, EngineStatus, FlowRow, InstanceRow, ReactionStatus, ReactionTimes,
    ServiceRow, Status, UplinkRow, WorkerRow, drops_by_reason,
};
use collector::{SAMPLE_PERIOD, SlotCounters};
use model::{Direction, InstanceId, InstanceState, Nanos, ServiceId, Slot, UplinkId, WorkerId};

use super::control::ControlLoop;

impl ControlLoop {
    pub(super) fn status(&self, now: Nanos) -> Status {
        let reading = &self.reading;
        let controller = self.shell.controller();
        let cost = self.collector.cost();
        let uptime = self.started.elapsed().as_secs_f64();
        let workers = reading
            .workers
            .iter()
            .enumerate()
            .map(|(index, figures)| {
                let rates = self.collector.worker(WorkerId(index as u8));
                let gaps = self.longest_gaps.get(index).copied().unwrap_or_default();
                let longest_gap = gaps.into_iter().max().unwrap_or_default();
                WorkerRow {
                    worker: index as u8,
                    cpu: self.configuration.switch.workers.get(index).copied(),
                    busy: rates.busy,
                    awake: rates.awake,
                    longest_gap_us: longest_gap.0 as f64 / 1e3,
                    received_packets: figures.received,
                    handed_off_packets: figures.handed_off,
                    held_moves: figures.held_moves,
                    early_moves: figures.early_moves,
                    live_flows: figures.live_flows,
                }
            })
            .collect();
        let uplinks = self
            .configuration
            .uplinks
            .iter()
            .zip(&reading.counters.uplinks)
            .enumerate()
            .map(|(index, (uplink, counters))| {
                let rates = self.collector.uplink(UplinkId(index as u8));
                UplinkRow {
                    name: uplink.name.clone(),
                    device: uplink.device.to_string(),
                    up: self.uplinks_up.get(index).copied().unwrap_or(false),
                    received_packets: counters.received_packets,
                    received_bytes: counters.received_bytes,
                    sent_packets: counters.sent_packets,
                    sent_bytes: counters.sent_bytes,
                    dropped_packets: counters.dropped,
                    missed_packets: counters.missed_packets,
                    failed_packets: counters.failed_packets,
                    received_pps: rates.received_pps,
                    sent_pps: rates.sent_pps,
                }
            })
            .collect();
        let down = controller.engine_down_since();
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            file: self.configuration.file.clone(),
            uptime_s: uptime,
            engine: EngineStatus {
                driver: self.engine_driver.to_owned(),
                up: down.is_none(),
                down_ms: down.map_or(0, |since| now.since(since).as_millis()),
            },
            workers,
            uplinks,
            drops: drops_by_reason(&reading.counters.drops),
            accounting: Accounting {
                offered: reading.offered(),
                returned: reading.sent(),
                originated: reading.originated(),
                dropped: reading.dropped(),
                in_flight: reading.in_flight(),
                expected_moves: reading.counters.slots.iter().map(|s| s.expected_moves).sum(),
            },
            collector: CollectorStatus {
                period_us: SAMPLE_PERIOD.0 / 1000,
                samples: cost.samples,
                mean_us: cost.mean_ns() as f64 / 1e3,
                longest_us: cost.max_ns as f64 / 1e3,
                cpu: cost.total_ns as f64 / 1e9 / uptime.max(1e-3),
            },
            reactions: reactions(controller.reactions()),
            live_flows: reading.workers.iter().map(|w| w.live_flows).sum(),
            flow_limit: reading.workers.iter().map(|w| w.flow_limit).sum(),
            events: self.events.newest(),
        }
    }

    pub(super) fn service_rows(&self) -> Vec<ServiceRow> {
        let controller = self.shell.controller();
        controller
            .services()
            .zip(&self.configuration.services)
            .map(|(status, service)| {
                let rates = self.collector.service(status.id);
                let plan = self.services.iter().find(|plan| plan.id == status.id);
                let scheduler = plan.map(|plan| &plan.scheduler);
                let of_service: Vec<_> = controller
                    .instances()
                    .iter()
                    .filter(|i| i.service() == status.id)
                    .collect();
                let count = |states: &[InstanceState]| {
                    of_service.iter().filter(|i| states.contains(&i.state())).count() as u32
                };
                let active = count(&[InstanceState::Active]);
                let capacity = status.capacity_pps * f64::from(active);
                let counters = self
                    .reading
                    .counters
                    .services
                    .get(status.id.index())
                    .copied()
                    .unwrap_or_default();
                let dropped: u64 = of_service
                    .iter()
                    .map(|i| self.since_baseline(i.slot()).ring_drops)
                    .sum();
                ServiceRow {
                    name: status.name.to_owned(),
                    image: service.image.clone(),
                    scheduler: scheduler.map_or("", |s| s.name()).to_owned(),
                    metric: scheduler.map_or("", |s| s.settings().metric.name()).to_owned(),
                    autoscaler: status.autoscaler.to_owned(),
                    active,
                    desired: status.wanted,
                    fixed: status.manual,
                    min: status.min,
                    max: status.max,
                    standby: count(&[InstanceState::Standby]),
                    starting: count(&[InstanceState::Creating, InstanceState::Starting]),
                    draining: count(&[InstanceState::Draining]),
                    live_flows: rates.live_flows,
                    offered_packets: counters.offered_packets,
                    dropped_packets: counters.unserved + dropped,
                    offered_pps: rates.offered_fast_pps,
                    returned_pps: of_service
                        .iter()
                        .filter_map(|i| self.collector.slot(i.slot()))
                        .map(|r| r.returns_fast_pps)
                        .sum(),
                    new_flows_per_s: of_service
                        .iter()
                        .filter_map(|i| self.collector.slot(i.slot()))
                        .map(|r| r.new_flows_fast_per_s)
                        .sum(),
                    utilisation: (capacity > 0.0).then(|| rates.offered_stable_pps / capacity),
                    reason: status.reason.to_owned(),
                }
            })
            .collect()
    }

    pub(super) fn instance_rows(&self, now: Nanos) -> Vec<InstanceRow> {
        let controller = self.shell.controller();
        let rows = controller.instances().iter().map(|instance| {
            let slot = instance.slot();
            let rates = self.collector.slot(slot).filter(|r| r.id == instance.id());
            let counters = self.since_baseline(slot);
            let service = self.configuration.services.get(instance.service().index());
            let capacity = controller
                .services()
                .find(|s| s.id == instance.service())
                .map(|s| s.capacity_pps)
                .filter(|pps| *pps > 0.0);
            let has_container = instance.container() != controller::Container::Absent;
            InstanceRow {
                id: instance.id(),
                service: service.map(|s| s.name.clone()).unwrap_or_default(),
                state: instance.state(),
                state_ms: now.since(instance.since()).as_millis(),
                slot: slot.is_some().then_some(slot.0),
                container: has_container.then(|| instance.name().to_owned()),
                pid: instance.pid(),
                adopted: instance.is_adopted(),
                to_pps: rates.map_or(0.0, |r| r.to_fast_pps),
                back_pps: rates.map_or(0.0, |r| r.returns_fast_pps),
                to_packets: counters.to_packets,
                back_packets: counters.back_packets,
                live_flows: rates.map_or(0, |r| r.live_flows),
                ring_occupancy: rates.map_or(0.0, |r| r.ring_occupancy),
                dropped_packets: counters.ring_drops
                    + counters.too_large
                    + counters.lost
                    + counters.function.map_or(0, |f| f.dropped),
                capacity_pps: capacity,
                cpu_quota: instance.cpus(),
                busy: rates.and_then(|r| r.busy),
                memory_bytes: counters.function.map(|f| f.memory_bytes).or_else(|| {
                    self.usage
                        .get(&slot)
                        .map(|u| u.memory_bytes)
                        .filter(|bytes| *bytes > 0)
                }),
                reason: instance.reason().to_owned(),
            }
        });
        rows.collect()
    }

    /// What a slot's counters have grown by since its present instance got it.
    fn since_baseline(&self, slot: Slot) -> SlotCounters {
        let now = self
            .reading
            .counters
            .slots
            .get(slot.index())
            .copied()
            .unwrap_or_default();
        let before = self.baselines.get(&slot).copied().unwrap_or_default();
        SlotCounters {
            to_packets: now.to_packets.wrapping_sub(before.to_packets),
            back_packets: now.back_packets.wrapping_sub(before.back_packets),
            ring_drops: now.ring_drops.wrapping_sub(before.ring_drops),
            too_large: now.too_large.wrapping_sub(before.too_large),
            lost: now.lost.wrapping_sub(before.lost),
            ..now
        }
    }

    pub(super) fn flow_row(&self, row: &flow_table::FlowRow) -> FlowRow {
        let instance = |direction: Direction| -> Option<InstanceId> {
            let slot = row.pins.get(direction.index()).copied().filter(|s| s.is_some())?;
            self.shell
                .controller()
                .instances()
                .iter()
                .find(|i| i.slot() == slot)
                .map(|i| i.id())
        };
        let (opener, other) = (row.opener, row.opener.flipped());
        let both = |values: [u64; 2]| match opener {
            Direction::Forward => values,
            Direction::Reverse => [values[1], values[0]],
        };
        FlowRow {
            flow: row.key.tuple(opener).to_string(),
            service: self.service_name(row.service),
            forward: instance(opener),
            reverse: instance(other),
            packets: both(row.packets),
            bytes: both(row.bytes),
            idle_ms: row.idle.as_millis(),
            state: row.tcp.name().to_owned(),
            pps: None,
            error_pps: None,
        }
    }

    pub(super) fn heavy_row(&self, heavy: &eswitch::HeavyFlow) -> FlowRow {
        FlowRow {
            pps: Some(f64::from(heavy.pps)),
            error_pps: Some(f64::from(heavy.error_pps)),
            ..self.flow_row(&heavy.row)
        }
    }

    fn service_name(&self, id: ServiceId) -> String {
        self.configuration
            .services
            .get(id.index())
            .map(|s| s.name.clone())
            .unwrap_or_default()
    }
}

/// How fast the loop reacted so far.
fn reactions(of: &controller::Reactions) -> ReactionStatus {
    let ms = |time: Nanos| time.0 as f64 / 1e6;
    let times = |of: &controller::Times| ReactionTimes {
        count: of.count,
        p50_ms: of.quantile(0.5).map(ms),
        p99_ms: of.quantile(0.99).map(ms),
        max_ms: (of.count > 0).then(|| ms(of.longest)),
    };
    ReactionStatus {
        detect: times(&of.detect),
        undrain: times(&of.undrain),
        activate: times(&of.activate),
        resume: times(&of.resume),
        create_and_activate: times(&of.create_and_activate),
        create: times(&of.create),
        drain: times(&of.drain),
    }
}
