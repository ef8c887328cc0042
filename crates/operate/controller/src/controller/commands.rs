//! What operators, and a changed configuration, ask for.

use collector::Collector;
use engine::CpuQuota;
use model::{Action, EventKind, InstanceId, InstanceState, RolloutState, ServiceId};
use scheduling::Scheduler;
use signal::Wish;
use switch::{Change, SwitchRequest};

use super::{Controller, HeldBack, Service};
use crate::instance::{Container, Port, Rung};
use crate::message::{Command, CommandError};
use crate::settings::ServiceSettings;

impl Controller {
    pub(super) fn command(
        &mut self,
        command: &Command,
        collector: &mut Collector,
    ) -> Result<String, CommandError> {
        if self.shutdown.is_some() {
            return Err(CommandError::ShuttingDown);
        }
        match *command {
            Command::Action(ref action) => self.action(action),
            Command::Autoscaler {
                service: id,
                ref autoscaler,
            } => {
                let service = with_id(&mut self.services, id)?;
                collector.set_stable_window(id, autoscaler.stable_window());
                let before = std::mem::replace(&mut service.settings.autoscaler, (**autoscaler).clone());
                Ok(format!("{autoscaler} decides instead of {before}"))
            }
            Command::AddService { ref settings } => {
                let id = collector.add_service(settings.autoscaler.stable_window());
                self.services.push(Service::new(id, (**settings).clone()));
                self.plan_changed = true;
                Ok(format!("service {} is configured", settings.name))
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
            Command::BackEnds { service, ref list } => self.set_back_ends(service, list),
            Command::Signal { instance, wish } => self.signal(instance, wish),
            Command::Match(ref matching) => {
                self.settings.matching = matching.clone();
                self.plan_changed = true;
                Ok("the new matches are in force".to_owned())
            }
        }
    }

    /// Carries out an operator's action. A new one has an arm here if it concerns the state of services or instances.
    fn action(&mut self, action: &Action) -> Result<String, CommandError> {
        match *action {
            Action::Scale {
                ref service,
                instances,
            } => self.scale(service, instances),
            Action::Range {
                ref service,
                min,
                max,
            } => self.set_range(service, min, max),
            Action::Resize { ref service, cpus } => self.set_cpus(service, cpus),
            Action::Rollout { ref service, cancel } => self.set_rollout(service, cancel),
            Action::PauseIn { ref service, on } => {
                self.hold_back(service, on, "ask for fewer instances", |held| &mut held.pause_in)
            }
            Action::PauseOut { ref service, on } => {
                self.hold_back(service, on, "ask for more instances", |held| &mut held.pause_out)
            }
            Action::DryRun { ref service, on } => {
                self.hold_back(service, on, "change anything", |held| &mut held.dry_run)
            }
            Action::Drain { instance: id } => {
                let index = self.known(id)?;
                let instance = &mut self.instances[index];
                let result = match instance.state {
                    InstanceState::Active => {
                        format!("instance {id}: the drain starts when its service has a replacement")
                    }
                    InstanceState::Draining => format!("instance {id} is already draining"),
                    state => return Err(wrong_state(id, state, action)),
                };
                instance.leaving = true;
                Ok(result)
            }
            Action::Undrain { instance: id } => {
                let index = self.known(id)?;
                let instance = &self.instances[index];
                match instance.state {
                    InstanceState::Active if instance.leaving => {
                        self.instances[index].leaving = false;
                        self.instances[index].relocates_to = None;
                        Ok(format!("instance {id} keeps its flows and takes new ones again"))
                    }
                    InstanceState::Active => Ok(format!("instance {id} is not draining")),
                    InstanceState::Draining if !instance.hands_over() => {
                        let service = self.service(instance.service)?;
                        let active = self.count(service.id, |i| i.state == InstanceState::Active);
                        within_limits(&service.settings, active + 1)?;
                        self.undrain(index, "undrained by an operator");
                        Ok(format!("instance {id} takes new flows again"))
                    }
                    state => Err(wrong_state(id, state, action)),
                }
            }
            Action::Purge {
                instance: Some(id), ..
            } => {
                let index = self.known(id)?;
                let instance = &self.instances[index];
                if !instance.is_in_plan() {
                    return Err(wrong_state(id, instance.state, action));
                }
                self.unpin(index, "purged by an operator".to_owned());
                Ok(format!(
                    "the flows of instance {id} are unpinned: their next packets are rescheduled"
                ))
            }
            Action::Stop { keep } => {
                self.event(None, None, EventKind::Stopping { keep });
                self.shutdown = Some(keep);
                let (reason, result) = if keep {
                    (
                        "inco stops; the container keeps running",
                        "the containers keep running",
                    )
                } else {
                    ("inco stops", "all containers are removed")
                };
                for index in 0..self.instances.len() {
                    self.stop(index, reason);
                }
                Ok(result.to_owned())
            }
            _ => Err(CommandError::NotForController {
                action: action.name(),
            }),
        }
    }

    fn scale(&mut self, name: &str, count: Option<u32>) -> Result<String, CommandError> {
        self.must_run(name)?;
        let service = self.named(name)?;
        let Some(count) = count else {
            service.manual = false;
            return Ok(format!("{} decides again", service.settings.autoscaler.name()));
        };
        within_limits(&service.settings, count)?;
        service.manual = true;
        let from = std::mem::replace(&mut service.wanted, count);
        if from != count {
            let id = service.id;
            let kind = EventKind::Scaled {
                from,
                to: count,
                policy: "manual".to_owned(),
                reason: "set by an operator".to_owned(),
                case: None,
            };
            self.event(Some(id), None, kind);
        }
        Ok(format!("from {from} to {count} active instances"))
    }

    /// Bounds the number of active instances within the limits of the file. Without limits it is theirs again.
    fn set_range(&mut self, name: &str, min: Option<u32>, max: Option<u32>) -> Result<String, CommandError> {
        self.must_run(name)?;
        let service = self.named(name)?;
        let (least, most) = service.limits;
        let (from, to) = (min.unwrap_or(least), max.unwrap_or(most));
        if let Some(count) = [from, to]
            .into_iter()
            .find(|count| !(least..=most).contains(count))
        {
            return Err(CommandError::OutOfLimits {
                service: name.to_owned(),
                count,
                min: least,
                max: most,
            });
        }
        if from > to {
            return Err(CommandError::EmptyRange { min: from, max: to });
        }
        service.range = (min.is_some() || max.is_some()).then_some((from, to));
        (service.settings.min, service.settings.max) = (from, to);
        let reason = format!("an operator allows {from} to {to}");
        let id = service.id;
        self.keep_within_limits(id, reason);
        Ok(format!("{name}: {from} to {to} active instances"))
    }

    /// Sets the quota of all instances, or that of the file again.
    fn set_cpus(&mut self, name: &str, cpus: Option<f64>) -> Result<String, CommandError> {
        let service = self.named(name)?;
        let in_file = service.settings.container.as_ref().and_then(|spec| spec.cpu);
        let Some(in_file) = in_file else {
            return Err(CommandError::NoQuota {
                service: name.to_owned(),
            });
        };
        if let Some(cpus) = cpus.filter(|cpus| !(0.001..=1024.0).contains(cpus)) {
            return Err(CommandError::BadQuota {
                cpus: cpus.to_string(),
            });
        }
        service.cpus = cpus;
        let quota = cpus.map_or(in_file, CpuQuota::of_cpus);
        let (id, mut changed) = (service.id, 0);
        for at in 0..self.instances.len() {
            let to_cpus = self.quota_at(self.instances[at].place, quota).cpus();
            let instance = &mut self.instances[at];
            if instance.service != id || instance.wanted_cpus == Some(to_cpus) {
                continue;
            }
            changed += 1;
            let (instance, from_cpus) = (instance.id, instance.wanted_cpus.replace(to_cpus));
            let kind = EventKind::Resized {
                from_cpus,
                to_cpus,
                policy: "manual".to_owned(),
                reason: "set by an operator".to_owned(),
                case: None,
            };
            self.event(Some(id), Some(instance), kind);
        }
        Ok(format!(
            "{name}: {:.3} CPUs for each instance; {changed} change",
            quota.cpus()
        ))
    }

    /// Brings the wanted count within the service's limits.
    pub(super) fn keep_within_limits(&mut self, id: ServiceId, reason: String) {
        let Some(service) = self.services.get_mut(id.index()) else {
            return;
        };
        let (min, max) = (service.settings.min, service.settings.max);
        (service.observation.min, service.observation.max) = (min, max);
        let to = service.wanted.max(min).min(max);
        let from = std::mem::replace(&mut service.wanted, to);
        if from != to {
            let kind = EventKind::Scaled {
                from,
                to,
                policy: "limits".to_owned(),
                reason,
                case: None,
            };
            self.event(Some(id), None, kind);
        }
    }

    /// Carries out a signal of an instance that was found genuine: the instance takes new flows, or goes to sleep.
    fn signal(&mut self, id: InstanceId, wish: Wish) -> Result<String, CommandError> {
        let index = self.known(id)?;
        let instance = &self.instances[index];
        let (state, leaving) = (instance.state, instance.leaving);
        let is_there = instance.port == Port::Up && instance.container != Container::Paused;
        let service = with_id(&mut self.services, instance.service)?;
        if service.manual {
            return Err(CommandError::Manual {
                service: service.settings.name.clone(),
            });
        }
        let has_effect = match (wish, state) {
            _ if leaving => false,
            (Wish::Wake, InstanceState::Standby) => !instance.for_active && is_there,
            (Wish::Wake, InstanceState::Draining) => is_there,
            (Wish::Sleep, InstanceState::Active) => true,
            _ => false,
        };
        if !has_effect {
            return Err(CommandError::WrongState {
                instance: id,
                state,
                action: wish.name(),
            });
        }
        let from = service.wanted;
        let to = match wish {
            Wish::Wake => from + 1,
            Wish::Sleep => from.saturating_sub(1),
        };
        within_limits(&service.settings, to)?;
        if service.held_back.allowed(to, from) != to {
            return Err(CommandError::HeldBack {
                service: service.settings.name.clone(),
            });
        }
        service.wanted = to;
        service.reason = format!("signal {wish} of instance {id}");
        let (reason, of) = (service.reason.clone(), service.id);
        let kind = EventKind::Scaled {
            from,
            to,
            policy: "signal".to_owned(),
            reason: reason.clone(),
            case: None,
        };
        self.event(Some(of), Some(id), kind);
        match state {
            InstanceState::Standby => {
                let now = self.now;
                let instance = &mut self.instances[index];
                instance.for_active = true;
                instance.decided = Some((now, Rung::Warm, None));
            }
            InstanceState::Draining => self.undrain(index, &reason),
            _ => self.drain(index, reason.clone()),
        }
        Ok(reason)
    }

    fn set_rollout(&mut self, name: &str, cancel: bool) -> Result<String, CommandError> {
        self.must_run(name)?;
        let service = self.named(name)?;
        let index = service.id.index();
        let running = service.rollout.as_ref().map(|rollout| &rollout.status);
        let running = running.filter(|status| status.state == RolloutState::Running);
        match (running, cancel) {
            (Some(status), false) => Err(CommandError::RollsOut {
                service: name.to_owned(),
                replaced: status.replaced,
                total: status.total,
            }),
            (Some(_), true) => {
                self.abort_rollout(index, "canceled by an operator".to_owned());
                Ok(format!(
                    "{name}: the rollout is cancelled; the other instances keep running"
                ))
            }
            (None, true) => Ok(format!("{name}: no rollout is under way")),
            (None, false) => {
                let total = self.begin_rollout(index);
                Ok(format!("{name}: the rollout of {total} instances has begun"))
            }
        }
    }

    /// Restricts the autoscaler of a service, or lifts the restriction.
    fn hold_back(
        &mut self,
        name: &str,
        on: bool,
        what: &str,
        place: fn(&mut HeldBack) -> &mut bool,
    ) -> Result<String, CommandError> {
        let service = self.named(name)?;
        *place(&mut service.held_back) = on;
        let policy = service.settings.autoscaler.name();
        let word = if on { "not" } else { "again" };
        Ok(format!("{policy} may {word} {what}"))
    }

    /// Replaces a service's scheduler. The unit of loads and capacities may change.
    fn set_scheduler(
        &mut self,
        id: ServiceId,
        scheduler: &Scheduler,
        limit: Option<f32>,
        written: &str,
    ) -> Result<String, CommandError> {
        let service = with_id(&mut self.services, id)?;
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
        let service = with_id(&mut self.services, id)?;
        let before = std::mem::replace(&mut service.settings, settings.clone());
        service.settings.made_ports = before.made_ports;
        if settings.followed.is_some() {
            // Those that are there go on until others have said which there are.
            service.settings.back_ends = before.back_ends;
            (service.settings.min, service.settings.max) = (before.min, before.max);
        }
        service.back_ends_changed = true;
        // Whoever corrects the image or the command of a crash loop does not wait for the end of its pause.
        service.back_off.retry_now();
        service.settings.plan.recovers |= before.plan.recovers;
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
        // The plan contains weights and capacities.
        self.plan_changed = true;
        service.limits = (service.settings.min, service.settings.max);
        if let Some((min, max)) = service.range {
            // As much of it as the file still allows.
            let within = |count: u32| count.clamp(service.limits.0, service.limits.1);
            (service.settings.min, service.settings.max) = (within(min), within(max));
        }
        let (min, max) = (service.settings.min, service.settings.max);
        self.keep_within_limits(id, format!("the configuration allows {min} to {max}"));
        if settings.followed.is_none() {
            self.follow_back_ends(id);
        }
        Ok(format!("the settings of service {} have changed", settings.name))
    }

    fn named(&mut self, name: &str) -> Result<&mut Service, CommandError> {
        let mut services = self.services.iter_mut();
        services
            .find(|service| service.settings.name == name)
            .ok_or_else(|| CommandError::UnknownService {
                service: name.to_owned(),
            })
    }

    /// The place of an instance in the list.
    fn known(&self, id: InstanceId) -> Result<usize, CommandError> {
        self.position(id)
            .ok_or(CommandError::UnknownInstance { instance: id })
    }
}

pub(super) fn with_id(services: &mut [Service], id: ServiceId) -> Result<&mut Service, CommandError> {
    let service = services.get_mut(id.index());
    service.ok_or_else(|| CommandError::UnknownService {
        service: id.0.to_string(),
    })
}

fn wrong_state(instance: InstanceId, state: InstanceState, action: &Action) -> CommandError {
    CommandError::WrongState {
        instance,
        state,
        action: action.name(),
    }
}

fn within_limits(settings: &ServiceSettings, count: u32) -> Result<(), CommandError> {
    if (settings.min..=settings.max).contains(&count) {
        return Ok(());
    }
    Err(CommandError::OutOfLimits {
        service: settings.name.clone(),
        count,
        min: settings.min,
        max: settings.max,
    })
}
