//! All counters for `/v1/counters` and `/metrics`, from values that the loop already has.

use std::collections::BTreeMap;

use api::counters::{
    ActorCounters, ActorSideCounters, ControlCounters, Counters, EngineCounters, InstanceCounters,
    ResumedCounters, ServiceCounters, SignalCounters, SpanCounts, UplinkCounters, WorkerCounters,
};
use api::types::{Watts, WattsSource};
use clock::monotonic;
use model::{DropReason, InstanceState, Nanos, ServiceId};
use switch::{Resumed, SlotCounters};

use super::ControlLoop;
use super::rows::gap_s;

impl ControlLoop {
    pub(super) fn counters(&self) -> Counters {
        let reading = &self.gather.reading;
        let controller = self.decide.shell.controller();
        let calls = self.decide.shell.engine_calls();
        let reactions = controller.reactions();
        let kinds = [
            ("detect", &reactions.detect),
            ("undrain", &reactions.undrain),
            ("activate", &reactions.activate),
            ("resume", &reactions.resume),
            ("create_and_activate", &reactions.create_and_activate),
            ("create", &reactions.create),
            ("drain", &reactions.drain),
        ];
        Counters {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            start_unix_s: self.started_unix_s,
            uplinks: self.uplink_counters(),
            services: self.service_counters(),
            instances: self.instance_counters(),
            functions: self.gather.pages.counters(),
            actors: self.actors.rows().iter().flat_map(ActorCounters::of).collect(),
            actor_sides: self
                .actors
                .rows()
                .iter()
                .flat_map(ActorSideCounters::of)
                .collect(),
            workers: self.worker_counters(),
            drops: DropReason::ALL
                .iter()
                .zip(&reading.drops)
                .map(|(reason, packets)| (reason.name().to_owned(), *packets))
                .collect(),
            originated_packets: reading.originated(),
            in_flight_packets: reading.in_flight(),
            reactions: kinds
                .into_iter()
                .map(|(kind, times)| (kind.to_owned(), SpanCounts::from(&times.histogram)))
                .collect(),
            engine: EngineCounters {
                driver: self.decide.shell.engine().driver().to_owned(),
                up: controller.engine_down_since().is_none(),
                calls: calls
                    .took
                    .iter()
                    .map(|(call, took)| ((*call).to_owned(), SpanCounts::from(took)))
                    .collect(),
                failures: calls
                    .failed
                    .iter()
                    .map(|(call, n)| ((*call).to_owned(), *n))
                    .collect(),
            },
            control: self.control_counters(),
            signals: SignalCounters {
                accepted: self.signals.accepted(),
                refused: self.signals.refused(),
            },
            reports: self.reports.counters(monotonic()),
            events: self.journal.counts(),
            actions: self.apply.counts(),
            event_log: self.journal.file_counters(),
            // With nothing taken over each kind is there, with 0.
            resumed: self
                .resumed()
                .unwrap_or_else(|| resumed_counters(&Resumed::default())),
            // The API counts its own requests.
            api: Default::default(),
        }
    }

    /// What the switch took over from an earlier run; [`None`] if there was nothing.
    pub(super) fn resumed(&self) -> Option<ResumedCounters> {
        let of = self.publish.switch.resumed().filter(|of| !of.is_empty())?;
        Some(resumed_counters(of))
    }

    fn uplink_counters(&self) -> Vec<UplinkCounters> {
        let all = self
            .configuration
            .uplinks
            .iter()
            .zip(&self.gather.reading.uplinks);
        all.zip(&self.gather.uplinks)
            .map(|((uplink, counters), state)| UplinkCounters {
                name: uplink.name.clone(),
                up: state.is_up,
                ..UplinkCounters::of(counters)
            })
            .collect()
    }

    /// Capacity in packets per second of all active instances of a service; [`None`] while it is not known.
    pub(super) fn active_capacity_pps(&self, service: ServiceId) -> Option<f64> {
        let controller = self.decide.shell.controller();
        let active = controller
            .instances()
            .iter()
            .filter(|i| i.service() == service && i.state() == InstanceState::Active);
        let pps: f64 = active.filter_map(|i| controller.capacity_pps(i)).sum();
        (pps > 0.0).then_some(pps)
    }

    fn service_counters(&self) -> Vec<ServiceCounters> {
        let controller = self.decide.shell.controller();
        controller
            .services()
            .map(|status| {
                let counters = self.gather.reading.services.get(status.id.index()).copied();
                let counters = counters.unwrap_or_default();
                let of_instances = self.gather.baselines.of_service(status.id, &self.gather.reading);
                let rates = self.gather.collector.service(status.id);
                let states: BTreeMap<String, u32> = InstanceState::WORDS
                    .iter()
                    .filter(|(_, state)| *state != InstanceState::Gone)
                    .map(|(name, state)| {
                        let instances = controller.instances().iter();
                        let count = instances.filter(|i| i.service() == status.id && i.state() == *state);
                        ((*name).to_owned(), count.count() as u32)
                    })
                    .collect();
                let held = status.held_back;
                let (jain, max_min) = self.balance(status.id);
                ServiceCounters {
                    name: status.name.to_owned(),
                    live_flows: rates.live_flows,
                    states,
                    desired: status.wanted,
                    unfit: controller
                        .instances()
                        .iter()
                        .filter(|i| i.service() == status.id && i.state() == InstanceState::Active)
                        .filter(|i| !i.fitness().takes())
                        .count() as u32,
                    checks: status.checks.all,
                    failed_checks: status.checks.failed,
                    silent_agents: status.checks.silent_agents,
                    failed_instances: self.journal.failed_instances(status.name),
                    failures_in_a_row: status.failing.map_or(0, |of| of.failures),
                    min: status.min,
                    max: status.max,
                    utilisation: self
                        .active_capacity_pps(status.id)
                        .map(|pps| rates.offered_stable_pps / pps),
                    capacity_pps: (status.capacity_pps > 0.0).then_some(status.capacity_pps),
                    jain,
                    max_min,
                    held_back: [
                        ("pause_in", held.pause_in),
                        ("pause_out", held.pause_out),
                        ("dry_run", held.dry_run),
                    ]
                    .map(|(how, on)| (how.to_owned(), on))
                    .into(),
                    decisions: self.journal.decisions(status.name),
                    scheduler: status.plan.scheduler.name().to_owned(),
                    autoscaler: status.autoscaler.name().to_owned(),
                    ..ServiceCounters::of(&counters, &of_instances)
                }
            })
            .collect()
    }

    fn instance_counters(&self) -> Vec<InstanceCounters> {
        let controller = self.decide.shell.controller();
        let instances = controller.instances().iter();
        instances
            .map(|instance| {
                let slot = instance.slot();
                let rates = self
                    .gather
                    .collector
                    .slot(slot)
                    .filter(|rates| rates.id == instance.id());
                // Without a slot of its own it has no counters.
                let counters = match rates {
                    Some(_) => self.gather.since_baseline(slot),
                    None => SlotCounters::default(),
                };
                let function = counters.function;
                let ring_wait = rates.and_then(|rates| rates.ring_wait);
                let took = function.and_then(|function| function.took);
                let seconds = |time: Nanos| time.as_secs_f64();
                let drops = counters.drops();
                let watts = self.watts_of(instance);
                let is_metered = |of: &Watts| of.source != WattsSource::Model;
                let model = watts.filter(|of| !is_metered(of));
                InstanceCounters {
                    id: instance.id().0,
                    service: self.service_name(instance.service()),
                    place: self.place_name(instance),
                    state: instance.state().name().to_owned(),
                    drops: drops
                        .map(|(reason, packets)| (reason.to_owned(), packets))
                        .collect(),
                    cpu_s: self.gather.cpu_time(slot),
                    busy_s: function.map(|f| f.busy_ns as f64 / 1e9),
                    gap_s: rates.and_then(gap_s),
                    ring_wait_p50_s: ring_wait.map(|of| seconds(of.p50)),
                    ring_wait_p99_s: ring_wait.map(|of| seconds(of.p99)),
                    function_p50_s: took.map(|of| seconds(of.p50)),
                    function_p99_s: took.map(|of| seconds(of.p99)),
                    held_up: rates.map_or(0.0, |rates| rates.held_up),
                    watts: watts.filter(is_metered).map(|of| of.expected),
                    model_watts: model.map(|of| of.expected),
                    model_watts_low: model.map(|of| of.low),
                    model_watts_high: model.map(|of| of.high),
                    memory_bytes: counters.memory_bytes(),
                    cpu_quota: instance.cpus(),
                    utilisation: rates
                        .zip(controller.capacity_pps(instance))
                        .map(|(rates, pps)| rates.arrivals_fast_pps / pps),
                    ..InstanceCounters::of(&counters)
                }
            })
            .collect()
    }

    fn worker_counters(&self) -> Vec<WorkerCounters> {
        let workers = self.gather.reading.workers.iter().enumerate();
        workers
            .map(|(index, of)| WorkerCounters {
                worker: index as u8,
                longest_gap_s: self.gather.gaps.longest(index).0 as f64 / 1e9,
                ..WorkerCounters::of(of)
            })
            .collect()
    }

    fn control_counters(&self) -> ControlCounters {
        let cost = self.gather.collector.cost();
        ControlCounters {
            samples: cost.samples,
            sampling_s: cost.total_ns as f64 / 1e9,
            longest_sample_s: cost.max_ns as f64 / 1e9,
            observing_cpu_s: self.gather.observing_cpu.as_secs_f64(),
            lag: SpanCounts::from(&self.lag),
            plan_generation: self.decide.shell.controller().plan().generation.0,
            plan_acknowledged: self.gather.reading.acknowledged.0,
            reloads: self.apply.reloads.0,
            reloads_refused: self.apply.reloads.1,
        }
    }
}

/// What a switch took over, as the API tells it.
fn resumed_counters(of: &Resumed) -> ResumedCounters {
    let by_kind =
        |kinds: [(&'static str, u64); 6]| kinds.map(|(kind, count)| (kind.to_owned(), count)).into();
    ResumedCounters {
        flows: of.flows.flows,
        converted_tables: of.converted as u64,
        instances: of.instances as u64,
        uplinks: of.uplinks as u64,
        repaired: by_kind(of.flows.repaired()),
        rejected: by_kind(of.flows.rejected()),
        unusable: of.rejected.clone(),
        taken_at_ns: of.taken_at.0,
        attached_at_ns: of.attached_at.0,
    }
}
