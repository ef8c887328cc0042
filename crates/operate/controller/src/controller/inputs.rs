//! Events of engine and switch.

use std::fmt::Write as _;

use collector::Collector;
use engine::{EngineError, EngineEvent, Exit};
use model::{EventKind, InstanceId, InstanceState, InstanceStep, Nanos};
use switch::SwitchEvent;

use super::{Controller, Target};
use crate::instance::{Container, Op, Port, Rung};
use crate::settings::{ATTACH_AGAIN, CHECK_AGAIN, ROUTE_AGAIN};

/// Characters of a dead program's output that an event contains.
const OUTPUT_SHOWN: usize = 200;

impl Controller {
    pub(super) fn engine_event(&mut self, event: &EngineEvent) {
        match event {
            EngineEvent::Created {
                ticket, pid, address, ..
            } => {
                if let Some(Target::Instance(id, Op::Create)) = self.outstanding.remove(ticket)
                    && let Some(index) = self.position(id)
                {
                    let instance = &mut self.instances[index];
                    instance.op = None;
                    instance.container = Container::Running;
                    instance.pid = (*pid != 0).then_some(*pid);
                    instance.task_at = *address;
                    instance.started = self.now;
                    let place = instance.place;
                    if instance.state == InstanceState::Creating {
                        // Why it is there, where it could be elsewhere.
                        let why = std::mem::take(&mut instance.reason);
                        let mut reason = self.at_place("its program runs", place);
                        if !why.is_empty() {
                            reason = format!("{reason}; {why}");
                        }
                        self.transition(index, InstanceStep::Started, reason);
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
            EngineEvent::EngineDown { place, reason, .. } => self.engine_is_gone(place.as_deref(), reason),
            EngineEvent::EngineUp { place, .. } => self.engine_is_back(place.as_deref()),
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
                let (service, place) = (instance.service, instance.place);
                if instance.state == InstanceState::Creating {
                    let what = self.at_place("it could not be created", place);
                    self.fail(index, format!("{what}: {error}"));
                }
                let wait_s = self.count_failure(service, &error.to_string()).as_secs_f64();
                // An engine that is down is reported once, by its own event.
                if !self.is_down(place) {
                    let reason = format!("{error}; the next try is in {wait_s:.0} s");
                    let what = self.engine_of(place);
                    self.event(Some(service), None, EventKind::Failure { what, reason });
                }
            }
            Op::Resume if !error.is_transient() => {
                self.fail(index, format!("it could not be resumed: {error}"))
            }
            Op::Quota => {
                // Its packets go on with the old quota. Told once.
                let is_first = !instance.retry.has_failed();
                let wait_s = instance.retry.failed(now).as_secs_f64();
                let service = instance.service;
                if is_first {
                    let reason = format!("{error}; the next try is in {wait_s:.0} s");
                    let what = "CPU quota".to_owned();
                    self.event(Some(service), Some(id), EventKind::Failure { what, reason });
                }
            }
            Op::Pause | Op::Resume => {
                // A failed pause is harmless: try again later.
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
            // What a place has is not known while its engine does not answer.
            if should_be && !is_there && !self.is_down(instance.place) {
                self.instances[index].container = Container::Exited;
                self.fail(
                    index,
                    "its container was gone when the engine came back".to_owned(),
                );
            }
        }
        for container in containers {
            if !self.instances.iter().any(|i| i.name == container.name) {
                self.add_orphan(container);
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
                    // What its program lacks may have been found before, and is told once.
                    instance.reason = match &instance.listens {
                        Some(Err(missing)) => missing.clone(),
                        _ => "its port is up".to_owned(),
                    };
                }
            }
            SwitchEvent::AttachFailed { slot, reason } => {
                if let Some(index) = self.at_slot(*slot)
                    && self.instances[index].port == Port::Attaching
                {
                    let instance = &mut self.instances[index];
                    instance.port = Port::Absent;
                    let wait = instance.address().map_or(ATTACH_AGAIN, |_| ROUTE_AGAIN);
                    instance.again = self.now + wait;
                    // Use the paths inside the container.
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
                        format!("it stalled: it returned no packet or probe for {silent} ms"),
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
            SwitchEvent::Mappings(event) => self.mappings_event(*event),
            // The caller handles uplinks, answers and problems that concern no instance.
            SwitchEvent::UplinkUp { .. }
            | SwitchEvent::UplinkDown { .. }
            | SwitchEvent::Trouble { .. }
            | SwitchEvent::Recovered { .. }
            | SwitchEvent::Flows { .. }
            | SwitchEvent::HeavyFlows { .. }
            | SwitchEvent::Signal { .. }
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
    // On one line: what a program writes must not look like lines of ours, nor control the terminal of whoever reads it.
    let words: Vec<&str> = output
        .split(char::is_control)
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    let output = words.join(" ");
    if !output.is_empty() {
        let skip = output.chars().count().saturating_sub(OUTPUT_SHOWN);
        let shown: String = output.chars().skip(skip).collect();
        // Writing to a string cannot fail.
        let _ = write!(reason, "; its last output: {shown}");
    }
    reason
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_wrote_stays_on_one_line() {
        let exit = Exit {
            status: Some(3),
            ..Exit::default()
        };
        assert_eq!(
            exit_reason(&exit, "\u{1b}[2Jno room\r\n\nservice web: fine\n"),
            "its program exited with 3; its last output: [2Jno room service web: fine"
        );
        assert_eq!(exit_reason(&exit, "\n\u{7}"), "its program exited with 3");
    }
}
