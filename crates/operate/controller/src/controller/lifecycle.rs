//! The instances' own transitions, and the plan that follows from them.

use std::sync::Arc;

use collector::Collector;
use engine::{Request, Ticket};
use model::{EventKind, Generation, InstanceState, InstanceStep, Nanos, Ready, ServiceId, StandbyMode};
use switch::{Edits, Plan, PortSpec, ServicePlan, SlotPlan, SwitchRequest};

use super::hand_over::Step;
use super::places::capacity_of;
use super::{Controller, Target};
use crate::instance::{Container, Drain, Instance, Op, Port, Rung};
use crate::settings::{CHECK_LIMIT, YOUNG};

impl Controller {
    /// Whether an instance is Active or Standby with no work pending. This is the common case, so one check finds it.
    #[inline]
    pub(super) fn is_at_rest(&self, instance: &Instance) -> bool {
        let Some(service) = self.services.get(instance.service.index()) else {
            return false;
        };
        let is_at_rest = match instance.state {
            InstanceState::Active => {
                instance.wanted_cpus == instance.cpus
                    && instance.fitness.failing().is_none()
                    && self.now.since(instance.since) < service.settings.stall_after
            }
            InstanceState::Standby => !instance.for_active && instance.container == Container::Paused,
            _ => false,
        };
        is_at_rest && !service.back_off.has_failed()
    }

    /// Advances one instance as far as possible. False if it was removed from the list.
    pub(super) fn advance(&mut self, index: usize, collector: &mut Collector) -> bool {
        match self.instances[index].state {
            InstanceState::Creating => {}
            InstanceState::Starting => self.advance_starting(index, collector),
            InstanceState::Standby => {}
            InstanceState::Active => self.advance_serving(index, collector),
            InstanceState::Draining => {
                self.advance_serving(index, collector);
                self.advance_draining(index, collector);
            }
            InstanceState::Stopping | InstanceState::Failed => self.advance_leaving(index, collector),
            InstanceState::Gone => {}
        }
        if self.instances[index].state == InstanceState::Standby {
            // It may have become ready or been parked in this step: advance it further now.
            self.advance_standby(index);
        }
        if self.instances[index].state == InstanceState::Gone {
            let instance = self.instances.remove(index);
            if let Some(used) = self.slot_used.get_mut(instance.slot.index()) {
                *used = false;
            }
            self.give_block_back(&instance);
            if self.has_container(instance.service) && self.shutdown != Some(true) {
                self.out.remove_dirs.push(instance.socket_dir);
            }
            return false;
        }
        true
    }

    pub(super) fn advance_starting(&mut self, index: usize, collector: &mut Collector) {
        let now = self.now;
        let Some(service) = self.services.get(self.instances[index].service.index()) else {
            return;
        };
        let deadline = service.settings.ready_deadline;
        let place = self.instances[index].place;
        let ready = ReadyKind::of(service.settings.ready_at(place));
        let usual_kind = service.settings.port_at(place);
        let is_down = self.is_down(place);
        let instance = &mut self.instances[index];
        // A server that others run may come at any time.
        if now.since(instance.started) >= deadline && instance.back_end.is_none() {
            let seconds = deadline.as_secs_f64();
            let port = &service.settings.port;
            let last = match (&service.settings.socket_dir_in_container, instance.port) {
                (Some(dir), Port::Attaching)
                    if instance.port_kind.has_socket()
                        && !service.settings.makes_ports(instance.port_kind) =>
                {
                    format!("nothing answers on {}", dir.join(&port.address).display())
                }
                _ => instance.reason.clone(),
            };
            let reason = format!("it was not ready within {seconds:.0} s: {last}");
            self.fail(index, reason);
            return;
        }
        if instance.container == Container::Paused {
            // An adopted instance that was paused: it must run before it can connect.
            if instance.op.is_none() && !is_down && instance.retry.is_over(now) {
                self.submit_simple(index, Op::Resume);
            }
            return;
        }
        match instance.port {
            Port::Absent if now >= instance.again => {
                instance.port = Port::Attaching;
                collector.assign(instance.slot, instance.service, instance.id);
                let port = &service.settings.port;
                self.out.switch.push(SwitchRequest::Attach {
                    slot: instance.slot,
                    service: instance.service,
                    port: PortSpec {
                        kind: instance.port_kind,
                        address: instance.socket_dir.join(&port.address),
                        back_end: instance.address(),
                        ..port.clone()
                    },
                });
            }
            Port::Up if instance.has_served => self.ready(index, "its ports are up, and its flows wait"),
            // What its service asks of its instances now need not be what this one can be asked.
            Port::Up if instance.port_kind != usual_kind => self.ready(index, "its ports are up"),
            // Its first check says so.
            Port::Up if instance.address().is_some() && service.settings.health.is_some() => {}
            Port::Up => match ready {
                ReadyKind::Connected => self.ready(index, "its ports are up"),
                ReadyKind::Consumes => {
                    let taken = collector.slot(instance.slot).map_or(0, |rates| rates.consumed);
                    match instance.probed {
                        None => {
                            instance.probed = Some(taken);
                            self.out.switch.push(SwitchRequest::Probe(instance.slot));
                        }
                        Some(before) if taken > before => self.ready(index, "it consumed the probe packet"),
                        Some(_) => {}
                    }
                }
                ReadyKind::Listens if instance.listens == Some(Ok(())) => {
                    self.ready(index, "its program listens");
                }
                ReadyKind::Listens => {}
                ReadyKind::Exec => {
                    if !instance.check_running && now >= instance.again && !is_down {
                        self.check(index);
                    }
                }
            },
            _ => {}
        }
    }

    /// Runs the readiness command in the instance's container.
    fn check(&mut self, index: usize) {
        let Some(instance) = self.instances.get_mut(index) else {
            return;
        };
        let service = self.services.get(instance.service.index());
        let Some(Ready::Exec(command)) = service.map(|s| s.settings.ready_at(instance.place)) else {
            return;
        };
        instance.check_running = true;
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.outstanding.insert(ticket, Target::Check(instance.id));
        let request = Request::Exec {
            name: instance.name.clone(),
            command: command.clone(),
            limit: CHECK_LIMIT,
        };
        self.out.engine.push((ticket, request));
    }

    /// The instance is ready: it joins the pool, or becomes Active if it is wanted there.
    pub(super) fn ready(&mut self, index: usize, reason: &str) {
        if !self.transition(index, InstanceStep::Ready, reason) {
            return;
        }
        let now = self.now;
        let instance = &mut self.instances[index];
        instance.ready = Some(now);
        if !instance.adopted {
            self.reactions.create.note(now.since(instance.requested));
        }
    }

    pub(super) fn advance_standby(&mut self, index: usize) {
        let now = self.now;
        let paused_pool = self
            .services
            .get(self.instances[index].service.index())
            .is_some_and(|s| {
                s.settings.standby_mode == StandbyMode::Paused && s.settings.container.is_some()
            });
        let instance = &self.instances[index];
        let may_ask = instance.op.is_none() && !self.is_down(instance.place) && instance.retry.is_over(now);
        let (id, service) = (instance.id, instance.service);
        if instance.for_active && instance.container == Container::Paused {
            if may_ask {
                self.submit_simple(index, Op::Resume);
            }
        } else if instance.for_active {
            let max = self.services.get(service.index()).map_or(0, |s| s.settings.max);
            let active = self.count(service, |i| i.state == InstanceState::Active) - self.unfit(service);
            // In a rollout, the predecessor drains as soon as this instance takes flows.
            let beside = self.count(service, |i| self.is_being_replaced(i));
            // A pause in progress must end first.
            if active < max + beside && !matches!(self.instances[index].op, Some(Op::Pause | Op::Resume)) {
                let is_manual = self.services.get(service.index()).is_some_and(|of| of.manual);
                let takes_signals = self
                    .services
                    .get(service.index())
                    .is_some_and(|of| of.settings.plan.signals);
                let by = match (is_manual, takes_signals) {
                    (true, _) => "manual",
                    (false, true) => "signal",
                    (false, false) => "autoscaler",
                };
                self.transition(index, InstanceStep::Activate, by);
                self.instances[index].drain = None;
            }
        } else if paused_pool && may_ask && instance.container == Container::Running {
            // Pause only after every worker knows that it takes no flows, so that no packet waits in a paused
            // instance.
            if instance.drain.is_none_or(|drain| drain.acknowledged.is_some()) {
                self.submit_simple(index, Op::Pause);
            }
        }
        if let Some(ready) = self.position(id).and_then(|at| self.instances[at].ready) {
            self.reset_failures(service, ready);
        }
    }

    pub(super) fn advance_serving(&mut self, index: usize, collector: &Collector) {
        let now = self.now;
        let instance = &self.instances[index];
        let service = instance.service;
        if let Some(ready) = instance.ready {
            self.reset_failures(service, ready);
        }
        let instance = &self.instances[index];
        let stall_after = self
            .services
            .get(service.index())
            .map_or(Nanos(u64::MAX), |s| s.settings.stall_after);
        // Packets that waited while it was paused do not count as a stall.
        if now.since(instance.since) >= stall_after
            && let Some(rates) = collector.slot(instance.slot)
            && rates.waiting >= stall_after
        {
            let [waited, excused] = [rates.waiting, rates.excused].map(|of| of.as_millis());
            let beside = match excused {
                0 => String::new(),
                ms => format!(", not counting {ms} ms in which it or inco had no CPU"),
            };
            self.fail(
                index,
                format!("it stalled: its ring is not empty and it consumed nothing for {waited} ms{beside}"),
            );
            return;
        }
        if let Some(reason) = self.is_lost(&self.instances[index]) {
            match self.instances[index].back_end {
                Some(_) => self.give_flows_away(index, reason),
                None => self.fail(index, reason),
            }
            return;
        }
        let instance = &self.instances[index];
        if instance.wanted_cpus != instance.cpus
            && instance.op.is_none()
            && !self.is_down(instance.place)
            && instance.container == Container::Running
            && instance.retry.is_over(now)
        {
            self.submit_simple(index, Op::Quota);
        }
    }

    pub(super) fn advance_draining(&mut self, index: usize, collector: &Collector) {
        let now = self.now;
        let instance = &self.instances[index];
        if instance.state != InstanceState::Draining {
            return;
        }
        let has_handed_over = self.hand_over(index, collector);
        let instance = &self.instances[index];
        let Some(drain) = instance.drain else { return };
        let service = instance.service;
        let Some(settings) = self.services.get(service.index()).map(|s| &s.settings) else {
            return;
        };
        // One that goes to sleep keeps its flows until they end.
        let sleeps = settings.sleep && !instance.leaving && self.shutdown.is_none();
        let deadline = if sleeps {
            Nanos(u64::MAX)
        } else {
            settings.drain_deadline
        };
        let may_move = settings.plan.relaxed && !drain.moves && drain.acknowledged.is_some() && !sleeps;
        if may_move && self.count(service, |i| i.state == InstanceState::Active) > 0 {
            self.unpin(index, "it is drained, and `affinity` is relaxed".to_owned());
            if let Some(drain) = &mut self.instances[index].drain {
                drain.moves = true;
            }
            return;
        }
        let stays = self.stays_drained(instance);
        if drain.serves && self.shutdown.is_none() {
            // It is the only one that there is.
            return;
        }
        let rates = collector.slot(instance.slot);
        // Their ports are nobody else's until the last one has ended.
        let mappings = match settings.plan.external {
            Some(_) if instance.block.is_some() => rates.and_then(|rates| rates.held_flows).unwrap_or(0),
            _ => 0,
        };
        // Only counters read after the acknowledgement prove that no worker will add a flow.
        let is_empty = rates.is_some_and(|rates| {
            drain.acknowledged.is_some_and(|at| rates.at > at)
                && rates.signals.live_flows == 0
                && rates.holds_nothing
                && mappings == 0
                && has_handed_over
        });
        let reason = if stays && (is_empty || drain.moves) {
            return;
        } else if is_empty && drain.moves {
            "its flows have moved".to_owned()
        } else if is_empty {
            "its last flow has ended".to_owned()
        } else if now.since(drain.since) >= deadline {
            let flows = rates.map_or(0, |rates| rates.signals.live_flows);
            let mut reason = format!("the drain's deadline passed with {flows} flows left");
            if mappings > 0 {
                reason += &format!(" and {mappings} mappings");
            }
            self.unpin(index, reason.clone());
            if let Some(drain) = self.instances[index].drain.as_mut().filter(|_| stays) {
                drain.moves = true;
                return;
            }
            reason
        } else {
            return;
        };
        self.reactions.drain.note(now.since(drain.since));
        if self.has_room_in_pool(service)
            && self.shutdown.is_none()
            && !self.is_replaced(&self.instances[index])
            && !self.instances[index].hands_over()
        {
            self.transition(index, InstanceStep::Park, reason);
            let instance = &mut self.instances[index];
            instance.for_active = false;
            instance.leaving = false;
            instance.relocates_to = None;
            // Every worker must know the Standby plan before it may be paused.
            instance.drain = Some(Drain {
                since: now,
                generation: None,
                acknowledged: None,
                moves: false,
                serves: false,
            });
        } else {
            self.stop(index, reason);
        }
    }

    /// Whether the pool takes an instance that has drained.
    fn has_room_in_pool(&self, id: ServiceId) -> bool {
        let Some(service) = self.services.get(id.index()) else {
            return false;
        };
        let pooled = self.count(id, Instance::is_for_pool);
        if !service.settings.sleep {
            return pooled < service.settings.standby;
        }
        let others = self.count(id, |i| i.state == InstanceState::Active || i.is_on_its_way());
        pooled + others < service.limits.1
    }

    /// Unpins all its flows: each moves on its next packet.
    pub(super) fn unpin(&mut self, index: usize, reason: String) {
        let instance = &self.instances[index];
        let (slot, service, id) = (instance.slot, instance.service, instance.id);
        self.out.switch.push(SwitchRequest::PurgeSlot(slot));
        self.event(Some(service), Some(id), EventKind::Unpinned { reason });
    }

    /// Stopping and Failed: detach from the switch, then remove from the engine.
    pub(super) fn advance_leaving(&mut self, index: usize, collector: &mut Collector) {
        let now = self.now;
        let keep = self.shutdown == Some(true);
        let acknowledged = self.acknowledged;
        let instance = &mut self.instances[index];
        match instance.port {
            Port::Up | Port::Attaching => {
                if instance
                    .left_plan
                    .is_some_and(|generation| generation <= acknowledged)
                {
                    if now < instance.again {
                        return;
                    }
                    instance.port = Port::Detaching;
                    // It has had its last packet. What a failed one says may be old.
                    let held = collector.slot(instance.slot).and_then(|rates| rates.held_flows);
                    instance.has_mappings &= instance.state == InstanceState::Failed || held != Some(0);
                    self.out.switch.push(SwitchRequest::Detach(instance.slot));
                }
                return;
            }
            Port::Detaching => return,
            Port::Absent => {}
        }
        if instance.op.is_some() {
            return;
        }
        let is_failed = instance.state == InstanceState::Failed;
        if !self.has_container(self.instances[index].service) || (keep && !is_failed) {
            collector.release(self.instances[index].slot);
            let reason = if keep {
                "its container keeps running"
            } else {
                "its port is removed"
            };
            self.transition(index, InstanceStep::Removed, reason);
            return;
        }
        let instance = &self.instances[index];
        if self.is_down(instance.place) || !instance.retry.is_over(now) {
            return;
        }
        let is_alive = matches!(
            self.instances[index].container,
            Container::Running | Container::Paused
        );
        if is_alive && !is_failed {
            self.submit_simple(index, Op::Stop);
        } else {
            self.submit_simple(index, Op::Remove);
        }
    }

    pub(super) fn remove_orphans(&mut self) {
        if self.orphans.is_empty() || self.shutdown == Some(true) {
            return;
        }
        for index in 0..self.orphans.len() {
            let is_down = self.is_down(self.orphans[index].place);
            let orphan = &mut self.orphans[index];
            if is_down || orphan.removing || !orphan.retry.is_over(self.now) {
                continue;
            }
            orphan.removing = true;
            let name = orphan.name.clone();
            let ticket = Ticket(self.next_ticket);
            self.next_ticket += 1;
            self.outstanding.insert(ticket, Target::Orphan(name.clone()));
            self.out.engine.push((ticket, Request::Remove { name }));
        }
    }

    /// Reports failed instances and publishes a changed plan. The plan omits them, so that their flows move.
    pub(super) fn publish(&mut self) {
        for slot in self.fail_slots.drain(..) {
            self.out.switch.push(SwitchRequest::Fail(slot));
        }
        if self.plan_refused == Some(self.plan.generation) && self.plan_back_off.is_over(self.now) {
            self.plan_changed = true;
        }
        if self.plan_changed {
            self.plan_changed = false;
            self.plan_refused = None;
            let generation = Generation(self.plan.generation.0 + 1);
            let now = self.now;
            let mut slots = Vec::new();
            let takers = self.takers();
            for (instance, takes) in self.instances.iter_mut().zip(takers) {
                if instance.is_in_plan() {
                    let service = self.services.get(instance.service.index());
                    let capacity = service.map_or(0.0, |s| {
                        let usual = (s.capacity_pps, s.frame_bytes);
                        capacity_of(&self.settings.places, &s.settings, usual, instance)
                    });
                    let place = instance.slot.index();
                    slots.resize(slots.len().max(place + 1), None);
                    slots[place] = Some(SlotPlan {
                        instance: instance.id,
                        service: instance.service,
                        place: instance.place,
                        state: match (instance.state, takes) {
                            (_, true) => InstanceState::Active,
                            (InstanceState::Active, false) => InstanceState::Draining,
                            (state, false) => state,
                        },
                        capacity_pps: capacity as f32,
                        active_since: instance
                            .fitness
                            .back_since()
                            .unwrap_or_default()
                            .max(instance.since),
                        weight: instance.fitness.weight(),
                        block: instance.block,
                        edits: Edits::default(),
                    });
                } else if matches!(instance.state, InstanceState::Stopping | InstanceState::Failed) {
                    instance.left_plan.get_or_insert(generation);
                }
                if let Some(drain) = &mut instance.drain {
                    // It must be known to everybody that it takes no more, from the last time that it did. Its time
                    // begins then, too.
                    if takes || drain.serves {
                        (drain.since, drain.generation, drain.acknowledged) = (now, None, None);
                    }
                    drain.serves = takes;
                    if !takes {
                        drain.generation.get_or_insert(generation);
                    }
                }
                if let Some(heir) = &mut instance.heir
                    && heir.step == Step::Blocks(None)
                {
                    heir.step = Step::Blocks(Some(generation));
                }
                if instance.state == InstanceState::Active
                    && let Some((_, _, published)) = &mut instance.decided
                {
                    published.get_or_insert(generation);
                }
            }
            let matching = &self.settings.matching;
            let mut services: Vec<ServicePlan> = Vec::with_capacity(self.services.len());
            let next = matching.next.iter().copied().chain(std::iter::repeat(None));
            services.extend(self.services.iter().zip(next).map(|(service, next)| ServicePlan {
                next,
                ..service.settings.plan.clone()
            }));
            // A stable sort: services not listed come last, by id.
            let place = |id| matching.order.iter().position(|of| *of == id);
            services.sort_by_key(|service| place(service.id).unwrap_or(usize::MAX));
            self.plan = Arc::new(Plan {
                generation,
                services,
                slots,
                unmatched: matching.unmatched,
                other: matching.other,
                mappings: self.mappings_plan(),
            });
            self.out
                .switch
                .push(SwitchRequest::Publish(Arc::clone(&self.plan)));
        }
    }

    /// For each instance, whether the next plan gives it new flows. Where no other instance of a service does, those
    /// that drain go on.
    fn takers(&self) -> Vec<bool> {
        let takes = |i: &Instance| i.is_in_plan() && self.takes_flows(i);
        let mut takers: Vec<bool> = self.instances.iter().map(takes).collect();
        for service in &self.services {
            let of = |i: &&Instance| i.service == service.id && i.is_in_plan();
            let mut all = self.instances.iter().zip(&takers);
            if all.any(|(i, takes)| *takes && i.service == service.id) || self.shutdown.is_some() {
                continue;
            }
            let drains = |i: &&Instance| of(i) && i.state == InstanceState::Draining && i.fitness.takes();
            for (i, takes) in self.instances.iter().zip(&mut takers) {
                *takes |= drains(&i);
            }
        }
        takers
    }

    /// Takes one transition of the state machine and reports it. An invalid transition changes nothing and returns
    /// false.
    pub(super) fn transition(&mut self, index: usize, step: InstanceStep, reason: impl Into<String>) -> bool {
        let now = self.now;
        let instance = &mut self.instances[index];
        let from = instance.state;
        let Ok(to) = from.step(step) else {
            debug_assert!(false, "invalid transition: {step:?} in state {from:?}");
            return false;
        };
        let reason = reason.into();
        instance.state = to;
        instance.since = now;
        instance.reason.clone_from(&reason);
        if instance.port == Port::Up || instance.port == Port::Attaching {
            self.plan_changed = true;
        }
        let (service, id) = (instance.service, instance.id);
        if let Some(of) = self.services.get_mut(service.index()) {
            of.back_ends_changed = true;
        }
        self.event(Some(service), Some(id), EventKind::State { from, to, reason });
        true
    }

    pub(super) fn drain(&mut self, index: usize, reason: impl Into<String>) {
        if self.transition(index, InstanceStep::Drain, reason) {
            let now = self.now;
            let instance = &mut self.instances[index];
            instance.drain = Some(Drain {
                since: now,
                generation: None,
                acknowledged: None,
                moves: false,
                serves: false,
            });
            instance.decided = None;
        }
    }

    /// Gives it new flows again, unless another instance has its mappings.
    pub(super) fn undrain(&mut self, index: usize, reason: &str) {
        if self.instances[index].hands_over() {
            return;
        }
        if self.transition(index, InstanceStep::Undrain, reason) {
            let now = self.now;
            let instance = &mut self.instances[index];
            instance.drain = None;
            instance.heir = None;
            instance.leaving = false;
            instance.relocates_to = None;
            instance.for_active = true;
            instance.decided = Some((now, Rung::Undrain, None));
        }
    }

    /// Stops an instance, from any state.
    pub(super) fn stop(&mut self, index: usize, reason: impl Into<String>) {
        let reason = reason.into();
        match self.instances[index].state {
            InstanceState::Stopping | InstanceState::Failed | InstanceState::Gone => return,
            InstanceState::Active => {
                self.drain(index, reason.as_str());
            }
            _ => {}
        }
        if self.transition(index, InstanceStep::Stop, reason) {
            let instance = &mut self.instances[index];
            instance.drain = None;
            instance.decided = None;
            instance.for_active = false;
            instance.retry.worked();
        }
    }

    /// Fails an instance: its flows move at once, and another replaces it.
    pub(super) fn fail(&mut self, index: usize, reason: String) {
        let now = self.now;
        let instance = &self.instances[index];
        let (service, state) = (instance.service, instance.state);
        if matches!(
            state,
            InstanceState::Failed | InstanceState::Stopping | InstanceState::Gone
        ) {
            return;
        }
        let (slot, had_flows) = (instance.slot, instance.is_in_plan());
        let is_replacement = self.is_replacement(instance).then_some(instance.id);
        let is_young = instance.ready.is_none_or(|ready| now.since(ready) < YOUNG);
        // A failed create is counted where its error is known.
        if is_young && state != InstanceState::Creating {
            self.count_failure(service, &reason);
        }
        let why = is_replacement.map(|id| format!("replacement {id} failed: {reason}"));
        if self.transition(index, InstanceStep::Fail, reason) {
            if had_flows {
                self.fail_slots.push(slot);
            }
            let instance = &mut self.instances[index];
            instance.drain = None;
            instance.decided = None;
            instance.for_active = false;
            instance.retry.worked();
            if let Some(why) = why {
                self.abort_rollout(service.index(), why);
            }
        }
    }

    /// Records a failed create or young death and returns the wait until the next create.
    pub(super) fn count_failure(&mut self, service: ServiceId, reason: &str) -> Nanos {
        let now = self.now;
        let Some(service) = self.services.get_mut(service.index()) else {
            return Nanos::ZERO;
        };
        let failures = service.failures.as_ref().map_or(0, |(failures, _)| *failures);
        service.failures = Some((failures.saturating_add(1), reason.to_owned()));
        service.back_off.failed(now)
    }

    /// Resets the failure count after an instance that became ready later has grown old.
    pub(super) fn reset_failures(&mut self, service: ServiceId, ready: Nanos) {
        if self.now.since(ready) >= YOUNG
            && let Some(service) = self.services.get_mut(service.index())
        {
            service.back_off.worked_since(ready);
            if !service.back_off.has_failed() {
                service.failures = None;
            }
        }
    }
}

/// [`Ready`] without its command, so that a step does not copy it.
enum ReadyKind {
    Connected,
    Consumes,
    Listens,
    Exec,
}

impl ReadyKind {
    fn of(ready: &Ready) -> ReadyKind {
        match ready {
            Ready::Connected => ReadyKind::Connected,
            Ready::Consumes => ReadyKind::Consumes,
            Ready::Listens => ReadyKind::Listens,
            Ready::Exec(_) => ReadyKind::Exec,
        }
    }
}
