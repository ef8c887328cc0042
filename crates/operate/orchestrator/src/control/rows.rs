//! Builds the rows of answers (status, services, instances, flows) from the gathered and decided state.

use std::collections::BTreeMap;

use api::types::{
    Accounting, CollectorStatus, EngineStatus, FlowExplanation, FlowRow, InstanceRow, ParameterRow,
    PercentilesUs, PlaceRow, Policies, PolicyRow, PortPool, ReactionStatus, ReactionTimes, Refusal,
    ServicePolicies, ServiceRow, Snapshot, Status, UplinkRow, Watts, WorkerRow, drops_by_reason,
};
use autoscaling::Autoscaler;
use clock::{monotonic, unix_ms};
use collector::{SAMPLE_PERIOD, SlotRates};
use controller::Failing;
use model::{
    Direction, FlowKey, InstanceId, InstanceState, Nanos, PolicyChoice, ServiceId, Setting, UplinkId,
    WorkerId,
};
use scheduling::Scheduler;
use serde_json::value::Serializer as ToValue;

use super::ControlLoop;

/// Makes rows of a policy's parameters. Schedulers and autoscalers have distinct parameter types of the same form.
macro_rules! parameter_rows {
    ($parameters:expr) => {
        $parameters
            .unwrap_or_default()
            .iter()
            .map(|of| ParameterRow {
                name: of.name.to_owned(),
                kind: of.kind.to_owned(),
                default: of.default.to_owned(),
                meaning: of.meaning.to_owned(),
            })
            .collect()
    };
}

fn object(value: serde_json::Value) -> Option<serde_json::Map<String, serde_json::Value>> {
    match value {
        serde_json::Value::Object(map) => Some(map),
        _ => None,
    }
}

/// From this number of consecutive failures, it is a crash loop.
const LOOP: u32 = 3;

/// The active instances that take no new flows, in words.
fn unfit_text(instances: &[&controller::Instance]) -> Option<String> {
    let active = instances.iter().filter(|of| of.state() == InstanceState::Active);
    let unfit = active.clone().filter(|of| !of.fitness().takes());
    let (first, words) = unfit
        .clone()
        .find_map(|of| Some((of.id(), of.fitness().words()?)))?;
    let (all, count) = (active.count(), unfit.count());
    Some(format!(
        "{count} of {all} active instances take no new flows; {first} is {words}"
    ))
}

/// Describes how a service fails.
fn failing_text(of: Failing<'_>, now: Nanos) -> String {
    let Failing {
        failures,
        last,
        next_try,
    } = of;
    let what = if failures < LOOP { "failing" } else { "crash loop" };
    let plural = if failures == 1 { "" } else { "s" };
    let next = match next_try.since(now).as_secs_f64().ceil() {
        0.0 => String::new(),
        seconds => format!("; next try in {seconds:.0} s"),
    };
    format!("{what} ({failures} failure{plural}, last: {last}{next})")
}

/// The mean time between two packets for an instance, in seconds. Below one packet a second it is not known: the mean is
/// that of ten milliseconds.
pub(super) fn gap_s(rates: &SlotRates) -> Option<f64> {
    (rates.arrivals_fast_pps >= 1.0).then(|| 1.0 / rates.arrivals_fast_pps)
}

impl ControlLoop {
    pub(super) fn status(&self, now: Nanos) -> Status {
        let reading = &self.gather.reading;
        let controller = self.decide.shell.controller();
        let cost = self.gather.collector.cost();
        let uptime = self.started.elapsed().as_secs_f64();
        let workers = reading
            .workers
            .iter()
            .enumerate()
            .map(|(index, figures)| {
                let rates = self.gather.collector.worker(WorkerId(index as u8));
                let longest_gap = self.gather.gaps.longest(index);
                WorkerRow {
                    worker: index as u8,
                    cpu: self.configuration.switch.workers.get(index).copied(),
                    busy: rates.busy,
                    awake: rates.awake,
                    longest_gap_us: longest_gap.0 as f64 / 1e3,
                    ..WorkerRow::of(figures)
                }
            })
            .collect();
        let uplinks = self
            .configuration
            .uplinks
            .iter()
            .zip(&reading.uplinks)
            .enumerate()
            .map(|(index, (uplink, counters))| {
                let rates = self.gather.collector.uplink(UplinkId(index as u8));
                UplinkRow {
                    name: uplink.name.clone(),
                    device: uplink.device.to_string(),
                    up: self.gather.uplinks.get(index).is_some_and(|state| state.is_up),
                    received_pps: rates.received_pps,
                    sent_pps: rates.sent_pps,
                    ..UplinkRow::of(counters)
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
                driver: self.decide.shell.engine().driver().to_owned(),
                up: down.is_none(),
                down_ms: down.map_or(0, |since| now.since(since).as_millis()),
            },
            places: self.place_rows(now),
            workers,
            uplinks,
            ports: controller.made_ports().map(|(made, taken)| PortPool {
                made: made as u32,
                taken: taken as u32,
            }),
            drops: drops_by_reason(&reading.drops),
            accounting: Accounting {
                offered: reading.offered(),
                returned: reading.sent(),
                delivered: reading.delivered(),
                originated: reading.originated(),
                dropped: reading.dropped(),
                in_flight: reading.in_flight(),
                expected_moves: reading.slots.iter().map(|s| s.expected_moves).sum(),
            },
            collector: CollectorStatus {
                period_us: SAMPLE_PERIOD.0 / 1000,
                samples: cost.samples,
                mean_us: cost.mean_ns() as f64 / 1e3,
                longest_us: cost.max_ns as f64 / 1e3,
                cpu: cost.total_ns as f64 / 1e9 / uptime.max(1e-3),
            },
            resumed: self.resumed(),
            failing: controller
                .services()
                .filter_map(|of| Some((of.name.to_owned(), failing_text(of.failing?, now))))
                .collect(),
            reactions: reactions(controller.reactions()),
            reports: self.reports.status(now),
            live_flows: reading.workers.iter().map(|w| w.live_flows).sum(),
            flow_limit: reading.workers.iter().map(|w| w.flow_limit).sum(),
            events: self.journal.newest(),
            unwritten_events: self.journal.unwritten(),
        }
    }

    pub(super) fn service_rows(&self, now: Nanos) -> Vec<ServiceRow> {
        let controller = self.decide.shell.controller();
        controller
            .services()
            .zip(&self.configuration.services)
            .map(|(status, service)| {
                let rates = self.gather.collector.service(status.id);
                let scheduler = &status.plan.scheduler;
                let of_service: Vec<_> = controller
                    .instances()
                    .iter()
                    .filter(|i| i.service() == status.id)
                    .collect();
                let count = |states: &[InstanceState]| {
                    of_service.iter().filter(|i| states.contains(&i.state())).count() as u32
                };
                let active = count(&[InstanceState::Active]);
                let counters = self
                    .gather
                    .reading
                    .services
                    .get(status.id.index())
                    .copied()
                    .unwrap_or_default();
                let dropped: u64 = of_service
                    .iter()
                    .map(|i| self.gather.since_baseline(i.slot()).ring_drops)
                    .sum();
                let (jain, max_min) = self.balance(status.id);
                let highest = self.highest_load(&of_service);
                ServiceRow {
                    name: status.name.to_owned(),
                    image: service.image.clone(),
                    next: service.next.clone(),
                    scheduler: scheduler.name().to_owned(),
                    metric: scheduler.settings().metric.name().to_owned(),
                    autoscaler: status.autoscaler.name().to_owned(),
                    active,
                    places: of_service
                        .iter()
                        .filter(|i| i.state() == InstanceState::Active)
                        .filter_map(|i| self.place_name(i))
                        .fold(BTreeMap::new(), |mut places, name| {
                            *places.entry(name).or_default() += 1;
                            places
                        }),
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
                        .filter_map(|i| self.gather.collector.slot(i.slot()))
                        .map(|r| r.signals.returns_fast_pps)
                        .sum(),
                    new_flows_per_s: of_service
                        .iter()
                        .filter_map(|i| self.gather.collector.slot(i.slot()))
                        .map(|r| r.signals.new_flows_fast_per_s)
                        .sum(),
                    utilisation: self
                        .active_capacity_pps(status.id)
                        .map(|pps| rates.offered_stable_pps / pps),
                    highest_utilisation: highest.map(|(load, _)| load),
                    highest_instance: highest.map(|(_, id)| id),
                    reason: status.reason.to_owned(),
                    failing: status
                        .failing
                        .map(|of| failing_text(of, now))
                        .or_else(|| unfit_text(&of_service)),
                    rollout: status.rollout.cloned(),
                    pause_in: status.held_back.pause_in,
                    pause_out: status.held_back.pause_out,
                    dry_run: status.held_back.dry_run,
                    would: status.would,
                    jain,
                    max_min,
                    weights: self.weights(&status),
                }
            })
            .collect()
    }

    /// The highest load among the instances that take new flows, with its instance, if their capacity is known.
    fn highest_load(&self, instances: &[&controller::Instance]) -> Option<(f64, InstanceId)> {
        let controller = self.decide.shell.controller();
        let active = instances.iter().filter(|i| i.state() == InstanceState::Active);
        let loads = active.filter_map(|instance| {
            let rates = self.gather.collector.slot(instance.slot())?;
            let load = rates.arrivals_stable_pps / controller.capacity_pps(instance)?;
            Some((load, instance.id()))
        });
        loads.max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)))
    }

    /// All keys of a service in the running configuration.
    pub(super) fn settings(&self, service: &str) -> Result<Vec<Setting>, Refusal> {
        self.service_id(service)?;
        let service = self.configuration.service(service);
        Ok(service.map_or_else(Vec::new, |(_, service)| self.configuration.settings_of(service)))
    }

    pub(super) fn snapshot(&self, now: Nanos) -> Snapshot {
        Snapshot {
            unix_ms: unix_ms(),
            status: self.status(now),
            services: self.service_rows(now),
            instances: self.instance_rows(now),
            actors: self.actors.rows(),
        }
    }

    pub(super) fn policies(&self) -> Policies {
        Policies {
            schedulers: Scheduler::NAMES
                .iter()
                .map(|name| PolicyRow {
                    name: (*name).to_owned(),
                    parameters: parameter_rows!(Scheduler::parameters_of(name)),
                })
                .collect(),
            autoscalers: Autoscaler::NAMES
                .iter()
                .map(|name| PolicyRow {
                    name: (*name).to_owned(),
                    parameters: parameter_rows!(Autoscaler::parameters_of(name)),
                })
                .collect(),
            services: self
                .decide
                .shell
                .controller()
                .services()
                .map(|status| {
                    let scheduler = &status.plan.scheduler;
                    ServicePolicies {
                        service: status.name.to_owned(),
                        scheduler: PolicyChoice {
                            policy: scheduler.name().to_owned(),
                            parameters: scheduler
                                .serialize_parameters(ToValue)
                                .ok()
                                .and_then(object)
                                .unwrap_or_default(),
                        },
                        autoscaler: PolicyChoice {
                            policy: status.autoscaler.name().to_owned(),
                            parameters: status
                                .autoscaler
                                .serialize_parameters(ToValue)
                                .ok()
                                .and_then(object)
                                .unwrap_or_default(),
                        },
                    }
                })
                .collect(),
        }
    }

    /// Explains the placement of a flow. `row` is its entry in the flow table.
    pub(super) fn explain_flow(&self, flow: String, row: Option<&switch::FlowRow>) -> FlowExplanation {
        let steered_by = self.decide.shell.controller().plan();
        let tuple = api::parse_tuple(&flow).ok();
        let place = tuple.as_ref().and_then(|tuple| {
            let mut uplinks = (0u8..).map(UplinkId).take(self.configuration.uplinks.len());
            uplinks.find_map(|uplink| steered_by.classify(|| *tuple, uplink))
        });
        let plan = place.and_then(|place| steered_by.services.get(place));
        let service = plan.and_then(|plan| self.configuration.services.get(plan.id.index()));
        let scheduler = plan.map(|plan| plan.scheduler.name().to_owned());
        let pinned = row.map(|row| self.flow_row(row));
        let instances = self.decide.shell.controller().instances();
        let id = pinned.as_ref().and_then(|row| row.forward.or(row.reverse));
        let instance = id.and_then(|id| instances.iter().find(|i| i.id() == id));
        let since = pinned.as_ref().and_then(|row| {
            let is_answer = tuple.is_some_and(|tuple| tuple.to_string() != row.flow);
            row.since_unix_ms[usize::from(is_answer)]
        });
        let mut why = Vec::new();
        match (&pinned, instance) {
            (Some(row), Some(instance)) => {
                why.push(format!(
                    "the scheduler picked instance {} of {}; the flow stays there until it ends, is purged or moved, \
                     or the instance fails",
                    instance.id(),
                    row.service,
                ));
                if instance.state() == InstanceState::Draining {
                    why.push("the instance drains: it keeps this flow and takes no new ones".to_owned());
                }
                if row.forward != row.reverse && row.reverse.is_some() && row.forward.is_some() {
                    why.push(
                        "each direction has an instance of its own: the service is not symmetric".to_owned(),
                    );
                }
            }
            (Some(_), None) => why.push(
                "its instance is gone: its next packet is given to another one, counted as an expected move"
                    .to_owned(),
            ),
            (None, _) => {
                why.push("no packet of it is in the flow table: it has not come, or it has ended".to_owned())
            }
        }
        if let (Some(_), Some(tuple)) = (&pinned, &tuple) {
            why.extend(self.publish.switch.path_of(&FlowKey::new(tuple).0));
        }
        match (service, &scheduler) {
            (Some(service), Some(scheduler)) if pinned.is_none() => {
                let active = instances.iter().filter(|i| {
                    plan.is_some_and(|plan| plan.id == i.service()) && i.state() == InstanceState::Active
                });
                why.push(format!(
                    "its next packet is matched by {} and given by {scheduler} to one of {} active instances",
                    service.name,
                    active.count(),
                ));
            }
            (None, _) if pinned.is_none() => {
                why.push("no service matches it: see `unmatched` of [switch]".to_owned())
            }
            (None, _) => why.push("no service matches it any more: the match was changed since".to_owned()),
            _ => {}
        }
        FlowExplanation {
            flow,
            service: pinned
                .as_ref()
                .map(|row| row.service.clone())
                .or_else(|| service.map(|service| service.name.clone())),
            matched_by: service.map(crate::load::service_text),
            instance_state: instance.map(|instance| instance.state()),
            since_unix_ms: since,
            scheduler,
            pinned,
            why,
            events: Vec::new(),
        }
    }

    pub(super) fn instance_rows(&self, now: Nanos) -> Vec<InstanceRow> {
        let controller = self.decide.shell.controller();
        let rows = controller.instances().iter().map(|instance| {
            let slot = instance.slot();
            let rates = self.gather.collector.slot(slot).filter(|r| r.id == instance.id());
            let counters = self.gather.since_baseline(slot);
            let service = self.configuration.services.get(instance.service().index());
            let has_container = instance.container() != controller::Container::Absent;
            InstanceRow {
                id: instance.id(),
                service: service.map(|s| s.name.clone()).unwrap_or_default(),
                place: self.place_name(instance),
                state: instance.state(),
                state_ms: now.since(instance.since()).as_millis(),
                slot: slot.is_some().then_some(slot.0),
                container: has_container.then(|| instance.name().to_owned()),
                address: instance.address().map(|at| at.to_string()),
                name: instance.back_end_name().map(str::to_owned),
                pid: instance.pid(),
                adopted: instance.is_adopted(),
                to_pps: rates.map_or(0.0, |r| r.to_fast_pps()),
                back_pps: rates.map_or(0.0, |r| r.signals.returns_fast_pps),
                to_packets: counters.to_packets,
                back_packets: counters.back_packets,
                live_flows: rates.map_or(0, |r| r.signals.live_flows),
                ring_occupancy: rates.map_or(0.0, |r| r.ring_occupancy),
                dropped_packets: counters.drops().map(|(_, packets)| packets).sum(),
                capacity_pps: controller.capacity_pps(instance),
                cpu_quota: instance.cpus(),
                core: instance.core(),
                cpu: self.gather.cpu_share(slot, instance.cpus()),
                busy: rates.and_then(|r| r.busy),
                gap_us: rates.and_then(gap_s).map(|s| s * 1e6),
                ring_wait_us: rates.and_then(|r| r.ring_wait).map(PercentilesUs::from),
                function_us: counters.function.and_then(|f| f.took).map(PercentilesUs::from),
                held_up: rates.map_or(0.0, |r| r.held_up),
                watts: self.watts_of(instance),
                memory_bytes: counters.memory_bytes(),
                report: service.and_then(|of| self.reports.row(instance, &of.name, now)),
                reason: instance
                    .fitness()
                    .words()
                    .unwrap_or_else(|| instance.reason().to_owned()),
            }
        });
        rows.collect()
    }

    /// Watts of an instance, if there is a meter or a model of its place.
    pub(super) fn watts_of(&self, instance: &controller::Instance) -> Option<Watts> {
        let controller = self.decide.shell.controller();
        let (is_here, place) = (controller.is_here(instance.place()), instance.place());
        let each = self.configuration.places.get(place.index());
        let each = each.and_then(|of| of.watts_per_core);
        let there = || controller.instances().iter().filter(|of| of.place() == place);
        let model = each.map(|each| (each, there().count() as u32));
        let cpus = self.gather.cpus(instance.slot())?;
        self.gather.meter.watts(cpus, is_here, model)
    }

    /// The name of an instance's place, if it has a container and places are configured.
    pub(super) fn place_name(&self, instance: &controller::Instance) -> Option<String> {
        let service = self.configuration.services.get(instance.service().index())?;
        let place = self.decide.shell.controller().place_name(instance.place());
        place.filter(|_| service.has_containers()).map(str::to_owned)
    }

    /// What is at each place.
    fn place_rows(&self, now: Nanos) -> Vec<PlaceRow> {
        let configured = self.configuration.places_with_ids();
        let statuses = self.decide.shell.controller().place_statuses();
        configured
            .zip(statuses)
            .map(|((id, _), of)| PlaceRow {
                name: of.place.name.clone(),
                engine: EngineStatus {
                    driver: self.configuration.engine_at(id).driver.name().to_owned(),
                    up: of.down_since.is_none(),
                    down_ms: of.down_since.map_or(0, |since| now.since(since).as_millis()),
                },
                cpus: of.place.cpuset.clone(),
                instances: of.room.instances,
                instance_limit: of.room.instance_limit,
                pps: of.room.pps,
                pps_limit: of.room.pps_limit,
            })
            .collect()
    }

    pub(super) fn flow_row(&self, row: &switch::FlowRow) -> FlowRow {
        let instance = |direction: Direction| -> Option<InstanceId> {
            let slot = row.pins.get(direction.index()).copied().filter(|s| s.is_some())?;
            self.decide
                .shell
                .controller()
                .instances()
                .iter()
                .find(|i| i.slot() == slot)
                .map(|i| i.id())
        };
        let (opener, other) = (row.opener, row.opener.flipped());
        let (now, wall) = (monotonic(), clock::wall());
        let since = |direction: Direction| {
            let at = row.pinned_at[direction.index()]?;
            Some(wall.since(now.since(at)).as_millis())
        };
        let both = |values: [u64; 2]| match opener {
            Direction::Forward => values,
            Direction::Reverse => [values[1], values[0]],
        };
        FlowRow {
            flow: row.key.tuple(opener).to_string(),
            service: self.service_name(row.service),
            forward: instance(opener),
            reverse: instance(other),
            since_unix_ms: [since(opener), since(other)],
            packets: both(row.packets),
            bytes: both(row.bytes),
            idle_ms: row.idle.as_millis(),
            state: row.tcp.name().to_owned(),
            pps: None,
            error_pps: None,
            rule: None,
        }
    }

    pub(super) fn heavy_row(&self, heavy: &switch::HeavyFlow) -> FlowRow {
        FlowRow {
            pps: Some(f64::from(heavy.pps)),
            error_pps: Some(f64::from(heavy.error_pps)),
            ..self.flow_row(&heavy.row)
        }
    }

    pub(super) fn service_name(&self, id: ServiceId) -> String {
        self.configuration
            .services
            .get(id.index())
            .map(|s| s.name.clone())
            .unwrap_or_default()
    }
}

/// Reaction times so far.
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
