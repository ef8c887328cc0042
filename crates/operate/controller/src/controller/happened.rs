//! Events of engine and switch, and commands of operators.

use std::fmt::Write as _;

use collector::Collector;
use engine::{EngineError, EngineEvent, Exit};
use model::{EventKind, InstanceId, InstanceState, InstanceStep, Nanos, RolloutState, ServiceId};
use scheduling::Scheduler;
use switch::{Change, SwitchEvent, SwitchRequest};

use super::{Controller, Service, Target};
use crate::instance::{Container, Op, Port, Rung};
use crate::message::{Command, CommandError, HoldBack};
use crate::settings::{ATTACH_AGAIN, CHECK_AGAIN, ServiceSettings};

/// Characters of a dead program's output that an event contains.
const OUTPUT_SHOWN: usize = 200;

impl Controller {
    pub(super) fn engine_event(&mut self, event: &EngineEvent) {
        match event {
            EngineEvent::Created { ticket, pid, .. } => {
                if let Some(Target::Instance(id, Op::Create)) = self.outstanding.remove(ticket)
                    && let Some(index) = self.position(id)
                {
                    let instance = &mut self.instances[index];
                    instance.op = None;
                    instance.container = Container::Running;
                    instance.pid = (*pid != 0).then_some(*pid);
                    instance.started = self.now;
                    if instance.state == InstanceState::Creating {
                        self.transition(index, InstanceStep::Started, "its program runs");
                    }
                }
            }
            EngineEvent::Done { ticket, .. } => match self.outstanding.remove(ticket) {
                Some(Target::Instance(id, op)) => self.op_done(id, op),
                Some(Target::Check(id)) => self.check_ended(id, Ok(())),
                Some(Target::Orphan(name)) => {
                    self.orphans.retain(|orphan| orphan.name != name);
                    self.out
                        .remove_dirs
                        .push(self.settings.run_dir.join("instances").join(name));
                }
                None => {}
            },
            EngineEvent::Failed { ticket, error, .. } => match self.outstanding.remove(ticket) {
                Some(Target::Instance(id, op)) => self.op_failed(id, op, error),
                Some(Target::Check(id)) => self.check_ended(id, Err(error)),
                Some(Target::Orphan(name)) => {
                    let now = self.now;
                    if let Some(orphan) = self.orphans.iter_mut().find(|orphan| orphan.name == name) {
                        orphan.removing = false;
                        orphan.retry.failed(now);
                    }
                }
                None => {}
            },
            EngineEvent::Exited {
                name, exit, output, ..
            } => {
                if let Some(index) = self.instances.iter().position(|i| i.name == *name) {
                    self.instances[index].container = Container::Exited;
                    if !matches!(self.instances[index].op, Some(Op::Stop | Op::Remove)) {
                        self.fail(index, exit_reason(exit, output));
                    }
                }
            }
            EngineEvent::EngineDown { reason, .. } => {
                if self.engine_down.is_none() {
                    self.engine_down = Some(self.now);
                    let reason = format!("{reason}; steering goes on, scaling waits until it answers");
                    self.event(
                        None,
                        None,
                        EventKind::Failure {
                            what: "engine".to_owned(),
                            reason,
                        },
                    );
                }
            }
            EngineEvent::EngineUp { .. } => {
                if let Some(since) = self.engine_down.take() {
                    let after_ms = self.now.since(since).as_millis();
                    self.event(
                        None,
                        None,
                        EventKind::Recovered {
                            what: "engine".to_owned(),
                            after_ms,
                        },
                    );
                }
                for service in &mut self.services {
                    service.back_off.now_again();
                }
                for instance in &mut self.instances {
                    instance.retry.now_again();
                }
                for orphan in &mut self.orphans {
                    orphan.retry.now_again();
                }
                self.out.list_containers = true;
                self.listing_since = Some(self.now);
            }
        }
    }

    pub(super) fn op_done(&mut self, id: InstanceId, op: Op) {
        let Some(index) = self.position(id) else { return };
        let instance = &mut self.instances[index];
        instance.op = None;
        match op {
            Op::Create => {}
            Op::Pause => instance.container = Container::Paused,
            Op::Resume => instance.container = Container::Running,
            Op::Quota => {
                instance.cpus = instance.wanted_cpus;
                self.plan_changed = true;
                instance.retry.worked();
            }
            Op::Stop => instance.container = Container::Exited,
            Op::Remove => {
                instance.container = Container::Absent;
                self.transition(index, InstanceStep::Removed, "its container is removed");
            }
        }
    }

    pub(super) fn op_failed(&mut self, id: InstanceId, op: Op, error: &EngineError) {
        let Some(index) = self.position(id) else { return };
        let now = self.now;
        let instance = &mut self.instances[index];
        instance.op = None;
        match op {
            Op::Create => {
                let service = instance.service;
                if instance.state == InstanceState::Creating {
                    self.fail(index, format!("it could not be created: {error}"));
                }
                let wait_s = self.count_failure(service, &error.to_string()).as_secs_f64();
                // An engine that is down is reported once, by its own event.
                if self.engine_down.is_none() {
                    let reason = format!("{error}; the next try comes in {wait_s:.0} s");
                    let what = "engine".to_owned();
                    self.event(Some(service), None, EventKind::Failure { what, reason });
                }
            }
            Op::Resume if !error.is_transient() => {
                self.fail(index, format!("it could not be resumed: {error}"))
            }
            Op::Pause | Op::Resume | Op::Quota => {
                // A failed pause or resize is harmless: try again later.
                instance.retry.failed(now);
            }
            // Remove also ends a program that could not be stopped.
            Op::Stop => instance.container = Container::Exited,
            Op::Remove => {
                instance.retry.failed(now);
            }
        }
    }

    /// Compares the engine's containers with the instances. Exits may have been missed while the engine was down.
    pub(super) fn compare_containers(&mut self, containers: &[engine::Container]) {
        let since = self.listing_since.take().unwrap_or(self.now);
        for index in 0..self.instances.len() {
            let instance = &self.instances[index];
            let is_there = containers
                .iter()
                .any(|c| c.name == instance.name && c.state != engine::ContainerState::Exited);
            let should_be = matches!(instance.container, Container::Running | Container::Paused)
                && instance.requested < since
                && instance.op.is_none();
            if should_be && !is_there {
                self.instances[index].container = Container::Exited;
                self.fail(
                    index,
                    "its container was gone when the engine came back".to_owned(),
                );
            }
        }
        for container in containers {
            if !self.instances.iter().any(|i| i.name == container.name) {
                self.add_orphan(&container.name);
            }
        }
    }

    pub(super) fn switch_event(&mut self, event: &SwitchEvent, collector: &mut Collector) {
        match event {
            SwitchEvent::Attached { slot, .. } => {
                if let Some(index) = self.at_slot(*slot)
                    && self.instances[index].port == Port::Attaching
                {
                    let instance = &mut self.instances[index];
                    instance.port = Port::Up;
                    "its port is up".clone_into(&mut instance.reason);
                }
            }
            SwitchEvent::AttachFailed { slot, reason } => {
                if let Some(index) = self.at_slot(*slot)
                    && self.instances[index].port == Port::Attaching
                {
                    let instance = &mut self.instances[index];
                    instance.port = Port::Absent;
                    instance.again = self.now + ATTACH_AGAIN;
                    // Use the paths that the program knows.
                    let in_container = self.services.get(instance.service.index());
                    let in_container =
                        in_container.and_then(|of| of.settings.socket_dir_in_container.as_ref());
                    instance.reason = match in_container {
                        Some(dir) => {
                            reason.replace(&*instance.socket_dir.to_string_lossy(), &dir.to_string_lossy())
                        }
                        None => reason.clone(),
                    };
                    collector.release(*slot);
                }
            }
            SwitchEvent::PortDown { slot, .. } => {
                if let Some(index) = self.at_slot(*slot)
                    && self.instances[index].port == Port::Up
                {
                    self.fail(index, "its data port went down".to_owned());
                }
            }
            SwitchEvent::Stalled { slot, silent } => {
                if let Some(index) = self.at_slot(*slot)
                    && self.instances[index].port == Port::Up
                    && self.instances[index].container != Container::Paused
                {
                    let silent = silent.as_millis();
                    self.fail(
                        index,
                        format!(
                            "it stalled: packets and probes went to it, and nothing came back for {silent} ms"
                        ),
                    );
                }
            }
            SwitchEvent::PlanRefused { generation, .. } => {
                if *generation == self.plan.generation {
                    self.plan_refused = Some(*generation);
                    self.plan_back_off.failed(self.now);
                }
            }
            SwitchEvent::DetachFailed { slot } => {
                if let Some(index) = self.at_slot(*slot)
                    && self.instances[index].port == Port::Detaching
                {
                    let instance = &mut self.instances[index];
                    instance.port = Port::Up;
                    instance.again = self.now + ATTACH_AGAIN;
                }
            }
            SwitchEvent::Detached { slot, outstanding } => {
                if let Some(index) = self.at_slot(*slot)
                    && self.instances[index].port == Port::Detaching
                {
                    self.instances[index].port = Port::Absent;
                    collector.release(*slot);
                    // An instance that stops in good order dropped its outstanding packets on purpose.
                    if *outstanding > 0 && self.instances[index].state == InstanceState::Failed {
                        let service = self.instances[index].service;
                        let id = self.instances[index].id;
                        let reason = format!("{outstanding} packets were lost with it");
                        let what = "instance".to_owned();
                        self.event(Some(service), Some(id), EventKind::Failure { what, reason });
                    }
                }
            }
            // The caller handles uplinks, answers and problems that concern no instance.
            SwitchEvent::UplinkUp { .. }
            | SwitchEvent::UplinkDown { .. }
            | SwitchEvent::Trouble { .. }
            | SwitchEvent::Recovered { .. }
            | SwitchEvent::Flows { .. }
            | SwitchEvent::HeavyFlows { .. }
            | SwitchEvent::Recorded(_) => {}
        }
    }

    /// `at`: only counters read after this time are newer than the acknowledged plan.
    pub(super) fn note_acknowledged(&mut self, at: Nanos) {
        let (now, acknowledged) = (self.now, self.acknowledged);
        if acknowledged == self.plan.generation {
            self.plan_back_off.worked();
        }
        for instance in &mut self.instances {
            if let Some(drain) = &mut instance.drain
                && drain.acknowledged.is_none()
                && drain
                    .generation
                    .is_some_and(|generation| generation <= acknowledged)
            {
                drain.acknowledged = Some(at);
            }
            if let Some((decided, rung, Some(generation))) = instance.decided
                && generation <= acknowledged
            {
                instance.decided = None;
                let took = now.since(decided);
                match rung {
                    Rung::Undrain => self.reactions.undrain.note(took),
                    Rung::Warm => self.reactions.activate.note(took),
                    Rung::Paused => self.reactions.resume.note(took),
                    Rung::Create => self.reactions.create_and_activate.note(took),
                }
            }
        }
    }

    pub(super) fn check_ended(&mut self, id: InstanceId, result: Result<(), &EngineError>) {
        let Some(index) = self.position(id) else { return };
        let instance = &mut self.instances[index];
        instance.check_running = false;
        if instance.state != InstanceState::Starting {
            return;
        }
        match result {
            Ok(()) => self.ready(index, "its readiness command exited with 0"),
            Err(error) => {
                instance.again = self.now + CHECK_AGAIN;
                instance.reason = match error {
                    EngineError::Command { reason, .. } => format!("its readiness command {reason}"),
                    other => format!("its readiness command: {other}"),
                };
            }
        }
    }

    /// Replaces a service's scheduler. The unit of loads and capacities may change.
    fn set_scheduler(
        &mut self,
        id: ServiceId,
        scheduler: &Scheduler,
        limit: Option<f32>,
        written: &str,
    ) -> Result<String, CommandError> {
        let service = self
            .services
            .get_mut(id.index())
            .ok_or(CommandError::UnknownService { service: id })?;
        let plan = &mut service.settings.plan;
        let before = std::mem::replace(&mut plan.scheduler, scheduler.clone());
        plan.limit = limit;
        self.plan_changed = true;
        self.out.switch.push(SwitchRequest::Change(Change::SetScheduler {
            service: id,
            scheduler: scheduler.clone(),
        }));
        Ok(format!(
            "{}: {} -> {written}",
            service.settings.name,
            before.name()
        ))
    }

    /// Replaces a service's settings.
    fn reconfigure(
        &mut self,
        id: ServiceId,
        settings: &ServiceSettings,
        (autoscaler, scheduler): (bool, bool),
        collector: &mut Collector,
    ) -> Result<String, CommandError> {
        let service = self
            .services
            .get_mut(id.index())
            .ok_or(CommandError::UnknownService { service: id })?;
        let before = std::mem::replace(&mut service.settings, settings.clone());
        service.settings.places = before.places;
        service.settings.plan.id = id;
        if scheduler {
            self.out.switch.push(SwitchRequest::Change(Change::SetScheduler {
                service: id,
                scheduler: settings.plan.scheduler.clone(),
            }));
        } else {
            // The capacity belongs to its scheduler.
            service.settings.plan.scheduler = before.plan.scheduler;
            service.settings.plan.limit = before.plan.limit;
        }
        if autoscaler {
            collector.set_stable_window(id, settings.autoscaler.stable_window());
        } else {
            service.settings.autoscaler = before.autoscaler;
        }
        if settings.capacity_pps != before.capacity_pps {
            service.capacity_pps = settings.capacity_pps.unwrap_or(0.0);
        }
        service.observation.min = settings.min;
        service.observation.max = settings.max;
        // The plan contains weights and capacities.
        self.plan_changed = true;
        let to = service.wanted.max(settings.min).min(settings.max);
        let from = std::mem::replace(&mut service.wanted, to);
        if from != to {
            let kind = EventKind::Scaled {
                from,
                to,
                policy: "limits".to_owned(),
                reason: format!("the configuration allows {} to {}", settings.min, settings.max),
                case: None,
            };
            self.event(Some(id), None, kind);
        }
        Ok(format!("service {} has other settings", settings.name))
    }

    pub(super) fn command(
        &mut self,
        command: &Command,
        collector: &mut Collector,
    ) -> Result<String, CommandError> {
        if self.shutdown.is_some() {
            return Err(CommandError::ShuttingDown);
        }
        match *command {
            Command::Autoscaler {
                service: id,
                ref autoscaler,
            } => {
                let service = self
                    .services
                    .get_mut(id.index())
                    .ok_or(CommandError::UnknownService { service: id })?;
                collector.set_stable_window(id, autoscaler.stable_window());
                let before = std::mem::replace(&mut service.settings.autoscaler, (**autoscaler).clone());
                Ok(format!("{autoscaler} decides instead of {before}"))
            }
            Command::HoldBack { service: id, how, on } => {
                let service = self
                    .services
                    .get_mut(id.index())
                    .ok_or(CommandError::UnknownService { service: id })?;
                let policy = service.settings.autoscaler.name();
                let held = &mut service.held_back;
                let (place, what) = match how {
                    HoldBack::In => (&mut held.pause_in, "ask for fewer instances"),
                    HoldBack::Out => (&mut held.pause_out, "ask for more instances"),
                    HoldBack::DryRun => (&mut held.dry_run, "change anything"),
                };
                *place = on;
                Ok(format!(
                    "{policy} may {} {what}",
                    if on { "not" } else { "again" }
                ))
            }
            Command::AddService { ref settings } => {
                let id = collector.add_service(settings.autoscaler.stable_window());
                self.services.push(Service::new(id, (**settings).clone()));
                self.plan_changed = true;
                Ok(format!("service {} is there", settings.name))
            }
            Command::Reconfigure {
                service: id,
                ref settings,
                autoscaler,
                scheduler,
            } => self.reconfigure(id, settings, (autoscaler, scheduler), collector),
            Command::Scheduler {
                service: id,
                ref scheduler,
                limit,
                ref written,
            } => self.set_scheduler(id, scheduler, limit, written),
            Command::Match(ref matching) => {
                self.settings.matching = matching.clone();
                self.plan_changed = true;
                Ok("packets are matched as it was asked for".to_owned())
            }
            Command::Scale { service: id, count } => {
                let policy = self.service(id)?.settings.autoscaler.name();
                let service = self
                    .services
                    .get_mut(id.index())
                    .ok_or(CommandError::UnknownService { service: id })?;
                let Some(count) = count else {
                    service.manual = false;
                    return Ok(format!("{policy} decides again"));
                };
                let (min, max) = (service.settings.min, service.settings.max);
                if !(min..=max).contains(&count) {
                    let service = service.settings.name.clone();
                    return Err(CommandError::OutOfLimits {
                        service,
                        count,
                        min,
                        max,
                    });
                }
                service.manual = true;
                let from = std::mem::replace(&mut service.wanted, count);
                if from != count {
                    let reason = "set by an operator".to_owned();
                    let kind = EventKind::Scaled {
                        from,
                        to: count,
                        policy: "manual".to_owned(),
                        reason,
                        case: None,
                    };
                    self.event(Some(id), None, kind);
                }
                Ok(format!("from {from} to {count} active instances"))
            }
            Command::Rollout { service: id, cancel } => {
                let index = self.service(id)?.id.index();
                let running = self.services[index]
                    .rollout
                    .as_ref()
                    .map(|rollout| &rollout.status);
                let running = running.filter(|status| status.state == RolloutState::Running);
                let name = self.services[index].settings.name.clone();
                match (running, cancel) {
                    (Some(status), false) => Err(CommandError::RollsOut {
                        service: name,
                        replaced: status.replaced,
                        total: status.total,
                    }),
                    (Some(_), true) => {
                        self.abort_rollout(index, "canceled by an operator".to_owned());
                        Ok(format!("{name}: the instances that are not replaced stay"))
                    }
                    (None, true) => Ok(format!("{name}: no rollout is under way")),
                    (None, false) => {
                        let total = self.begin_rollout(index);
                        Ok(format!(
                            "{name}: {total} instances are replaced, one after the other"
                        ))
                    }
                }
            }
            Command::Drain { instance: id } => {
                let index = self
                    .position(id)
                    .ok_or(CommandError::UnknownInstance { instance: id })?;
                let instance = &mut self.instances[index];
                match instance.state {
                    InstanceState::Active => {
                        instance.leaving = true;
                        Ok(format!(
                            "instance {id}: the drain starts when its service has a replacement"
                        ))
                    }
                    InstanceState::Draining => {
                        instance.leaving = true;
                        Ok(format!("instance {id} is draining already"))
                    }
                    state => Err(CommandError::WrongState {
                        instance: id,
                        state,
                        action: "drain",
                    }),
                }
            }
            Command::Undrain { instance: id } => {
                let index = self
                    .position(id)
                    .ok_or(CommandError::UnknownInstance { instance: id })?;
                let instance = &self.instances[index];
                match instance.state {
                    InstanceState::Active if instance.leaving => {
                        self.instances[index].leaving = false;
                        Ok(format!("instance {id} stays"))
                    }
                    InstanceState::Active => {
                        Ok(format!("instance {id} takes new flows: nothing to take back"))
                    }
                    InstanceState::Draining => {
                        let service = self.service(instance.service)?;
                        let (min, max) = (service.settings.min, service.settings.max);
                        let active = self.count(service.id, |i| i.state == InstanceState::Active);
                        if active >= max {
                            let service = service.settings.name.clone();
                            return Err(CommandError::OutOfLimits {
                                service,
                                count: active + 1,
                                min,
                                max,
                            });
                        }
                        self.undrain(index, "undrained by an operator");
                        Ok(format!("instance {id} takes new flows again"))
                    }
                    state => Err(CommandError::WrongState {
                        instance: id,
                        state,
                        action: "undrain",
                    }),
                }
            }
            Command::Purge { instance: id } => {
                let index = self
                    .position(id)
                    .ok_or(CommandError::UnknownInstance { instance: id })?;
                let instance = &self.instances[index];
                if !instance.is_in_plan() {
                    let state = instance.state;
                    return Err(CommandError::WrongState {
                        instance: id,
                        state,
                        action: "purge",
                    });
                }
                self.unpin(index, "purged by an operator".to_owned());
                Ok(format!(
                    "the flows of instance {id} are unpinned: their next packets are rescheduled"
                ))
            }
            Command::Shutdown { keep } => {
                self.event(None, None, EventKind::Stopping { keep });
                self.shutdown = Some(keep);
                for index in 0..self.instances.len() {
                    self.stop(
                        index,
                        if keep {
                            "inco stops and keeps it running"
                        } else {
                            "inco stops"
                        },
                    );
                }
                Ok(if keep {
                    "containers go on running".to_owned()
                } else {
                    "everything is removed".to_owned()
                })
            }
        }
    }
}

fn exit_reason(exit: &Exit, output: &str) -> String {
    let mut reason = match exit {
        Exit {
            out_of_memory: true, ..
        } => "its container ran out of memory".to_owned(),
        Exit {
            signal: Some(signal), ..
        } => format!("its program was ended by signal {signal}"),
        Exit {
            status: Some(status), ..
        } => format!("its program exited with {status}"),
        _ => "its program ended".to_owned(),
    };
    let output = output.trim();
    if !output.is_empty() {
        let skip = output.chars().count().saturating_sub(OUTPUT_SHOWN);
        let shown: String = output.chars().skip(skip).collect();
        // Writing to a string cannot fail.
        let _ = write!(reason, "; it said last: {shown}");
    }
    reason
}
