//! Decides how many instances there are, and which.

use autoscaling::Decision;
use collector::Collector;
use engine::{CpuQuota, Exchange, Request};
use model::{
    EventKind, InstanceId, InstanceObservation, InstanceSignals, InstanceState, InstanceStep, Nanos,
    ServiceId, Slot,
};

use super::places::{capacity_of, whole_cpus};
use super::{Controller, scaler_name};
use crate::instance::{Container, Instance, Op, Port, Rung};
use crate::settings::{
    CAPACITY_STEP, ENV_EXTERNAL, LABEL_CORE, LABEL_EXTERNAL, LABEL_INSTANCE, LABEL_PLACE, LABEL_PORT,
    LABEL_SERVICE, LABEL_SLOT, OLDEST_COUNTERS, SAME_EVENT_AGAIN,
};

/// An overload that is not seen for this long has ended; a later one is reported again.
const OVERLOAD_GAP: Nanos = Nanos::from_millis(20);

/// Instances of a service, by state.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    /// Active ones, without those that an operator drains.
    active: u32,
    leaving: u32,
    /// Those on their way to Active.
    coming: u32,
    /// Those in the pool or on their way there.
    pooled: u32,
}

/// Memory in use as a share of its limit, at most 1, if both are known.
fn share_of_memory(bytes: Option<u64>, limit: Option<u64>) -> Option<f64> {
    let (bytes, limit) = bytes.zip(limit.filter(|bytes| *bytes > 0))?;
    Some((bytes as f64 / limit as f64).min(1.0))
}

impl Controller {
    /// Fills every service's observation and runs its autoscaler, if there are new counters.
    pub(super) fn observe(&mut self, collector: &mut Collector) {
        let sampled_at = collector.sampled_at();
        let is_new = sampled_at > self.sampled_at && self.now.since(sampled_at) <= OLDEST_COUNTERS;
        if !is_new {
            return;
        }
        self.sampled_at = sampled_at;
        for index in 0..self.services.len() {
            let service = &mut self.services[index];
            let rates = collector.service(service.id);
            if service.settings.capacity_pps.is_none()
                && let Some(learned) = rates.learned_capacity_pps
                && (learned - service.capacity_pps).abs() > CAPACITY_STEP * learned
            {
                service.capacity_pps = learned;
                self.plan_changed = true;
            }
            let frame_bytes = rates.bytes_per_packet;
            if (frame_bytes - service.frame_bytes).abs() > CAPACITY_STEP * frame_bytes {
                service.frame_bytes = frame_bytes;
                // What a link carries of them is a part of capacities.
                self.plan_changed |= self
                    .settings
                    .places
                    .iter()
                    .any(|of| of.link_bytes_per_s.is_some());
            }
            // Instances from before a reload have the limit of then, until they are replaced.
            let memory_limit = service.settings.container.as_ref().and_then(|of| of.memory_bytes);
            let observation = &mut service.observation;
            observation.wanted = service.wanted;
            let mut count = 0;
            for instance in self.instances.iter().filter(|i| i.service == service.id) {
                let slot = if instance.port == Port::Up {
                    instance.slot
                } else {
                    Slot::NONE
                };
                let cpu_quota = whole_cpus(&self.settings.places, instance);
                let capacity_pps = capacity_of(
                    &self.settings.places,
                    &service.settings,
                    (service.capacity_pps, service.frame_bytes),
                    instance,
                );
                let rates = collector.slot(slot).filter(|rates| rates.id == instance.id);
                let memory = share_of_memory(rates.and_then(|rates| rates.memory_bytes), memory_limit);
                // Usually these are the instances of the previous step; their counts are filled in below.
                match observation.instances.get_mut(count) {
                    Some(seen) if seen.id == instance.id => {
                        seen.slot = slot;
                        seen.state = instance.state;
                        seen.capacity_pps = capacity_pps;
                        seen.cpu_quota = cpu_quota;
                        seen.memory = memory;
                        seen.place = instance.place.0;
                    }
                    _ => {
                        observation.instances.truncate(count);
                        observation.instances.push(InstanceObservation {
                            id: instance.id,
                            slot,
                            state: instance.state,
                            capacity_pps,
                            arrivals_fast_pps: 0.0,
                            arrivals_stable_pps: 0.0,
                            ring_drops_fast_pps: 0.0,
                            ring_occupancy: 0.0,
                            signals: InstanceSignals::default(),
                            busy: None,
                            memory,
                            cpu_quota,
                            place: instance.place.0,
                        });
                    }
                }
                count += 1;
            }
            observation.instances.truncate(count);
            collector.observe(observation);
            self.observe_places(index);
            self.decide(index);
            self.report_overload(index, rates.overcommitted, collector);
        }
    }

    pub(super) fn decide(&mut self, index: usize) {
        let now = self.now;
        let service = &mut self.services[index];
        let scaler = &mut service.settings.autoscaler;
        let decision = scaler.step(&service.observation, now);
        if let Some(fit) = scaler.take_fit() {
            self.out.fits.push((service.id, fit));
        }
        if service.wanted < service.settings.max && scaler.is_overloaded(&service.observation) {
            service.overloaded_since.get_or_insert(now);
            service.overloaded_at = now;
        } else if now.since(service.overloaded_at) > OVERLOAD_GAP {
            service.overloaded_since = None;
        }
        // Enforce the limits here, whatever the policy returned.
        let desired = decision
            .desired
            .max(service.settings.min)
            .min(service.settings.max);
        let would = desired;
        let desired = service.held_back.allowed(would, service.wanted);
        let is_held = desired != would;
        service.shadow = service.shadow.filter(|_| is_held || decision.shadow.is_some());
        if !decision.quotas.is_empty() && !service.held_back.dry_run && service.cpus.is_none() {
            let is_more = self.resize(index, &decision);
            let since = &mut self.services[index].overloaded_since;
            if let Some(since) = since.take_if(|_| is_more) {
                self.reactions.detect.note(now.since(since));
            }
        }
        if let Some(relocation) = decision.relocation {
            self.relocate(index, relocation, &decision);
        }
        if let Some(would) = decision.shadow.or(is_held.then_some(would)) {
            self.report_shadow(index, would, &decision);
        }
        let service = &mut self.services[index];
        if service.manual || desired == service.wanted {
            return;
        }
        let from = std::mem::replace(&mut service.wanted, desired);
        service.reason = decision.reason.to_string();
        if desired > from
            && let Some(since) = service.overloaded_since.take()
        {
            self.reactions.detect.note(now.since(since));
        }
        let (id, policy) = (service.id, scaler_name(&service.settings.autoscaler));
        let kind = EventKind::Scaled {
            from,
            to: desired,
            policy,
            reason: service.reason.clone(),
            case: decision.case,
        };
        self.event(Some(id), None, kind);
    }

    /// Reports what a restricted autoscaler would do, when that changes.
    fn report_shadow(&mut self, index: usize, would: u32, decision: &Decision) {
        let service = &mut self.services[index];
        let wanted = service.wanted;
        if service.shadow.replace(would) == Some(would) || would == wanted {
            return;
        }
        let kind = EventKind::Shadowed {
            wanted,
            would,
            policy: scaler_name(&service.settings.autoscaler),
            reason: decision.reason.to_string(),
        };
        let id = service.id;
        self.event(Some(id), None, kind);
    }

    /// Records the quotas of instances. The engine applies those that differ. Returns whether one has become larger.
    fn resize(&mut self, index: usize, decision: &Decision) -> bool {
        let service = &self.services[index];
        let (id, policy) = (service.id, scaler_name(&service.settings.autoscaler));
        let mut is_more = false;
        for quota in &decision.quotas {
            let Some(at) = self.position(quota.instance) else {
                continue;
            };
            let place = self.instances[at].place;
            let to_cpus = self.quota_at(place, CpuQuota::of_cpus(quota.cpus)).cpus();
            let instance = &mut self.instances[at];
            if instance.service != id || instance.wanted_cpus == Some(to_cpus) {
                continue;
            }
            let from_cpus = instance.wanted_cpus.replace(to_cpus);
            is_more |= from_cpus.is_some_and(|from| to_cpus > from);
            let kind = EventKind::Resized {
                from_cpus,
                to_cpus,
                policy: policy.clone(),
                reason: decision.reason.to_string(),
                case: decision.case.clone(),
            };
            self.event(Some(id), Some(quota.instance), kind);
        }
        is_more
    }

    /// Reports ring drops and overcommitted flows: at most one event a second per subject.
    pub(super) fn report_overload(&mut self, index: usize, overcommitted: u64, collector: &Collector) {
        let now = self.now;
        let service = &mut self.services[index];
        let id = service.id;
        let flows = overcommitted.saturating_sub(service.overcommitted_told);
        if flows > 0
            && service
                .overcommitted_at
                .is_none_or(|at| now.since(at) >= SAME_EVENT_AGAIN)
        {
            service.overcommitted_told = overcommitted;
            service.overcommitted_at = Some(now);
            self.event(Some(id), None, EventKind::Overcommitted { flows });
        }
        if !self.services[index].observation.hot {
            return;
        }
        for at in 0..self.instances.len() {
            let instance = &mut self.instances[at];
            if instance.service != id || instance.hot_told.is_some_and(|t| now.since(t) < SAME_EVENT_AGAIN) {
                continue;
            }
            if let Some(rates) = collector.slot(instance.slot)
                && rates.hot
            {
                instance.hot_told = Some(now);
                let (instance, occupancy) = (instance.id, rates.ring_occupancy);
                self.event(Some(id), Some(instance), EventKind::Hot { occupancy });
            }
        }
    }

    /// Brings the service to its wanted count of instances and its pool to its size.
    pub(super) fn reconcile(&mut self, index: usize, collector: &Collector) {
        self.advance_rollout(index);
        let service = &self.services[index];
        let (id, wanted) = (service.id, service.wanted);
        let (min, max) = (service.settings.min, service.settings.max);
        let (sleep, most) = (service.settings.sleep, service.limits.1);
        let standby = service.settings.standby;
        let pool = if sleep { most } else { standby };

        let mut there = self.tally(id);
        if there.leaving > 0 {
            self.drain_leaving(id, wanted, min, max);
            there = self.tally(id);
        }
        while there.active + there.coming < wanted {
            if !self.add_one(index) {
                break;
            }
            there = self.tally(id);
        }
        while there.active + there.coming > wanted {
            let spare = if there.coming > 0 {
                self.give_up_one(id, pool)
            } else {
                self.drain_one(id, collector)
            };
            if !spare {
                break;
            }
            there = self.tally(id);
        }
        let pool = if sleep {
            // One that drains will be in the pool.
            let drains = self.count(id, |i| i.state == InstanceState::Draining);
            most.saturating_sub(there.active + there.leaving + there.coming + drains)
        } else {
            standby
        };
        let mut pooled = there.pooled;
        // Active instances come before the pool.
        while pooled < pool && there.active + there.coming >= wanted && self.create(index, false) {
            pooled += 1;
        }
        if pooled >= pool && there.active + there.coming >= wanted {
            // None waits for room any more; the next one that does is told.
            self.services[index].no_room_told = false;
        }
        while pooled > pool {
            let youngest = self
                .instances
                .iter()
                .rposition(|i| i.service == id && i.is_for_pool());
            let Some(at) = youngest else { break };
            self.stop(at, "the pool is larger than configured");
            pooled -= 1;
        }
    }

    /// Counts a service's instances.
    fn tally(&self, id: ServiceId) -> Tally {
        let mut tally = Tally::default();
        for instance in self.instances.iter().filter(|i| i.service == id) {
            match instance.state {
                InstanceState::Active if instance.leaving => tally.leaving += 1,
                InstanceState::Active => tally.active += 1,
                _ => {
                    tally.coming += u32::from(instance.is_on_its_way());
                    tally.pooled += u32::from(instance.is_for_pool());
                }
            }
        }
        tally.active -= self.unfit(id);
        tally
    }

    /// Drains instances that an operator drains, or that a rollout replaces, as soon as the service has enough
    /// without them. At the service's maximum, one must leave before its replacement can come.
    pub(super) fn drain_leaving(&mut self, id: ServiceId, wanted: u32, min: u32, max: u32) {
        for index in 0..self.instances.len() {
            let instance = &self.instances[index];
            if instance.service != id || !instance.leaving || instance.state != InstanceState::Active {
                continue;
            }
            let active = self.count(id, |i| i.state == InstanceState::Active);
            let others = self.count(id, |i| i.state == InstanceState::Active && !i.leaving);
            if let Some(place) = self.instances[index].relocates_to {
                if others >= wanted {
                    let name = self.place_name(place).unwrap_or_default();
                    let reason = format!("relocated to {name}; its replacement is ready");
                    self.drain(index, reason);
                }
            } else if self.is_being_replaced(&self.instances[index]) {
                if others >= wanted {
                    self.drain(index, "its replacement is ready");
                }
            } else if others >= min || active >= max {
                self.drain(index, "drained by an operator");
            }
        }
    }

    /// Brings one more instance towards Active, in the cheapest way. False if nothing can be done now.
    pub(super) fn add_one(&mut self, index: usize) -> bool {
        let service = &self.services[index];
        let (id, max) = (service.id, service.settings.max);
        let active = self.count(id, |i| i.state == InstanceState::Active) - self.unfit(id);
        let placement = service.settings.placement;
        let rooms = self.rooms_for(index);
        let only = self.relocation_target(id);
        // The first of those at the place that is preferred.
        let find = |test: &dyn Fn(&Instance) -> bool| {
            let all = self.instances.iter().enumerate();
            let is_there = |i: &Instance| only.is_none_or(|place| i.place == place);
            let found = all.filter(|(_, i)| i.service == id && is_there(i) && test(i));
            found
                .min_by_key(|(_, i)| placement.rank(rooms.as_slice(), i.place))
                .map(|(at, _)| at)
        };
        if active < max
            && let Some(at) = find(&|i| {
                i.state == InstanceState::Draining
                    && !i.leaving
                    && i.port == Port::Up
                    && i.fitness.takes()
                    && !i.hands_over()
            })
        {
            self.undrain(at, "the load rose again");
            return true;
        }
        let is_ready =
            |i: &Instance| i.is_for_pool() && i.state == InstanceState::Standby && i.fitness.takes();
        let warm = find(&|i| is_ready(i) && i.container != Container::Paused && i.op.is_none());
        let found = match warm {
            Some(at) => Some((at, Rung::Warm)),
            // An instance that is being paused or resumed counts as paused.
            None => match find(&is_ready) {
                Some(at) => Some((at, Rung::Paused)),
                None => find(&|i| i.is_for_pool() && i.state == InstanceState::Starting)
                    .or_else(|| find(&Instance::is_for_pool))
                    .map(|at| (at, Rung::Create)),
            },
        };
        if let Some((at, rung)) = found {
            let instance = &mut self.instances[at];
            instance.for_active = true;
            instance.decided = Some((self.now, rung, None));
            return true;
        }
        self.create(index, true)
    }

    /// Gives up the youngest instance on its way to Active: it goes to the pool if there is room, else it is stopped. Not one
    /// that has flows of an earlier run: it becomes Active, and drains then.
    pub(super) fn give_up_one(&mut self, id: ServiceId, pool: u32) -> bool {
        let pooled = self.count(id, Instance::is_for_pool);
        let candidate = |i: &Instance| i.is_on_its_way() && !i.has_served;
        let first = self.leaves_first(id, candidate);
        let youngest = self
            .instances
            .iter()
            .rposition(|i| i.service == id && candidate(i) && first.is_none_or(|place| i.place == place));
        let Some(at) = youngest else { return false };
        if pooled < pool {
            let instance = &mut self.instances[at];
            instance.for_active = false;
            instance.decided = None;
        } else {
            self.stop(at, "the instance is not needed any more");
        }
        true
    }

    /// Drains one Active instance: first one that a rollout replaces, else one that takes no new flows, else the one
    /// with the fewest live flows, the youngest if equal; where there are places, at the one that is left first.
    pub(super) fn drain_one(&mut self, id: ServiceId, collector: &Collector) -> bool {
        let flows = |i: &Instance| collector.slot(i.slot).map_or(0, |rates| rates.signals.live_flows);
        let is_first = |i: &Instance| self.is_replaced(i) || !i.fitness.takes();
        let candidate = |i: &Instance| i.state == InstanceState::Active && !i.leaving;
        let has_first = self
            .instances
            .iter()
            .any(|i| i.service == id && candidate(i) && is_first(i));
        let first = match has_first {
            true => None,
            false => self.leaves_first(id, candidate),
        };
        let victim = self
            .instances
            .iter()
            .enumerate()
            .filter(|(_, i)| i.service == id && candidate(i))
            .filter(|(_, i)| first.is_none_or(|place| i.place == place))
            .min_by_key(|(_, i)| {
                (
                    !self.is_replaced(i),
                    i.fitness.takes(),
                    flows(i),
                    std::cmp::Reverse(i.id),
                )
            })
            .map(|(at, i)| (at, flows(i)));
        let Some((at, flows)) = victim else { return false };
        let reason = match first {
            Some(place) => format!(
                "{}; it has the fewest flows there ({flows})",
                self.at_place("scale-in", place)
            ),
            None => format!("scale-in; it has the fewest flows ({flows})"),
        };
        self.drain(at, reason);
        true
    }

    /// Requests one more instance from the engine. False if that must wait.
    pub(super) fn create(&mut self, index: usize, for_active: bool) -> bool {
        let Some(place) = self.choose_place(index) else {
            return false;
        };
        let is_creating = |i: &&Instance| i.op == Some(Op::Create) && i.place == place;
        let creating = self.instances.iter().filter(is_creating).count();
        let service = &self.services[index];
        if self.is_down(place)
            || creating >= self.settings.creates_at_once as usize
            || !service.back_off.is_over(self.now)
        {
            return false;
        }
        let id = service.id;
        let back_end = self.next_back_end(index);
        if back_end.is_none() && self.others_run(id) {
            return false;
        }
        let instance_id = InstanceId(self.next_id);
        let Ok(block) = self.take_block(index, instance_id) else {
            return false;
        };
        let slot = back_end.as_ref().and_then(|of| self.take_slot_of(id, of.at));
        let has_served = slot.is_some();
        let port_kind = self.services[index].settings.port_at(place);
        let Some(slot) = slot.or_else(|| self.take_slot(id, port_kind)) else {
            self.put_block_back(index, block);
            if !std::mem::replace(&mut self.services[index].no_slot_told, true) {
                let reason = match self.services[index].settings.made_ports_of(port_kind).count() {
                    made @ 1.. => format!(
                        "all {made} ports of its instances are in use, draining instances included; a new instance \
                         waits for a free port"
                    ),
                    0 => format!(
                        "all {} slots are in use; a new instance waits for a free slot",
                        Slot::LIMIT
                    ),
                };
                self.event(
                    Some(id),
                    None,
                    EventKind::Failure {
                        what: "switch".to_owned(),
                        reason,
                    },
                );
            }
            return false;
        };
        self.services[index].no_slot_told = false;
        self.next_id = self.next_id.saturating_add(1);
        let why_there = self.why_there(index, place);
        let mut instance = self.new_instance(instance_id, (id, place), slot, for_active);
        instance.reason = why_there.unwrap_or_default();
        instance.block = block;
        (instance.back_end, instance.has_served) = (back_end.as_ref().map(|of| of.at), has_served);
        if let Some(of) = back_end {
            instance.fitness.told_weight(of.weight);
            (instance.back_end_id, instance.back_end_name) = (of.id, of.name);
        }
        instance.core = self.take_core(index, place);
        let container = self.services[index].settings.container_at(place).cloned();
        let Some(mut spec) = container else {
            // Nothing to create: a sink exists when its port does, and others run the rest.
            let reason = match instance.back_end {
                Some(at) => format!("others run it at {at}"),
                None => "it has no container".to_owned(),
            };
            self.instances.push(instance);
            self.transition(self.instances.len() - 1, InstanceStep::Started, reason);
            return true;
        };
        let by_hand = self.services[index].cpus;
        let settings = &self.services[index].settings;
        spec.name.clone_from(&instance.name);
        let mark = self.settings.label();
        spec.labels.insert(mark.key, mark.value.unwrap_or_default());
        spec.labels
            .insert(LABEL_SERVICE.to_owned(), settings.name.clone());
        spec.labels
            .insert(LABEL_INSTANCE.to_owned(), instance_id.0.to_string());
        spec.labels.insert(LABEL_SLOT.to_owned(), slot.0.to_string());
        spec.labels
            .insert(LABEL_PORT.to_owned(), port_kind.name().to_owned());
        let blocks = self.services[index].blocks.as_ref();
        if let Some(ports) = blocks.zip(block).and_then(|(of, block)| of.ports_of(block)) {
            spec.labels.insert(LABEL_EXTERNAL.to_owned(), ports.to_string());
            spec.env.push((ENV_EXTERNAL.to_owned(), ports.to_string()));
        }
        let made_port = settings.made_ports_of(port_kind).find(|port| port.slot == slot);
        if let Some(port) = made_port {
            spec.mounts.extend(port.mounts.iter().cloned());
            spec.env.extend(port.env.iter().cloned());
            spec.functions.clone_from(&port.functions);
        }
        spec.exchange = settings.socket_dir_in_container.clone().map(|target| Exchange {
            source: instance.socket_dir.clone(),
            target,
        });
        spec.env
            .push(("INCO_INSTANCE_ID".to_owned(), instance_id.0.to_string()));
        spec.cpu = by_hand.map(CpuQuota::of_cpus).or(spec.cpu);
        if let Some(of) = self.settings.places.get(place.index()) {
            spec.place = Some(of.name.clone());
            spec.labels.insert(LABEL_PLACE.to_owned(), of.name.clone());
            spec.cpuset = of.cpuset.clone().or(spec.cpuset);
            spec.cpu = spec.cpu.map(|quota| self.quota_at(place, quota));
        }
        if let Some(cpu) = instance.core {
            spec.labels.insert(LABEL_CORE.to_owned(), cpu.to_string());
            spec.cpuset = Some(cpu.to_string());
        }
        instance.cpus = spec.cpu.map(|quota| quota.cpus());
        instance.wanted_cpus = instance.cpus;
        self.instances.push(instance);
        let at = self.instances.len() - 1;
        self.submit(at, Op::Create, Request::Create(Box::new(spec)));
        true
    }
}
