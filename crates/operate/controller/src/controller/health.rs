//! What is found out about instances by asking them, and what follows: who takes new flows, and who is replaced.

use model::{AgentReport, EventKind, InstanceState, Nanos, ServiceId};

use super::Controller;
use crate::instance::{Container, Instance};
use crate::message::{Report, ReportKind};

impl Controller {
    pub(super) fn take_report(&mut self, report: &Report) {
        let Some(index) = self.position(report.instance) else {
            return;
        };
        let instance = &mut self.instances[index];
        match &report.kind {
            ReportKind::Listens(found) => {
                if let Err(missing) = found
                    && instance.state == InstanceState::Starting
                {
                    instance.reason.clone_from(missing);
                }
                instance.listens = Some(found.clone());
            }
            ReportKind::Check(verdict) => self.take_verdict(index, verdict),
            ReportKind::Agent(Ok(said)) => self.take_agent(index, said),
            // What it said before has its effect for a while.
            ReportKind::Agent(Err(_)) => {
                let service = instance.service.index();
                if let Some(service) = self.services.get_mut(service) {
                    service.checks.silent_agents += 1;
                }
            }
        }
    }

    fn take_verdict(&mut self, index: usize, verdict: &Result<(), String>) {
        let (now, instance) = (self.now, &mut self.instances[index]);
        let Some(service) = self.services.get_mut(instance.service.index()) else {
            return;
        };
        service.checks.all += 1;
        service.checks.failed += u64::from(verdict.is_err());
        let Some(check) = service.settings.health.as_ref().filter(|_| instance.is_checked()) else {
            return;
        };
        let before = instance.fitness.clone();
        instance.fitness.check(verdict, check, now);
        if instance.state == InstanceState::Starting {
            match verdict {
                Ok(()) => self.ready(index, "its first check has passed"),
                Err(why) => instance.reason.clone_from(why),
            }
            return;
        }
        if instance.fitness.failing().is_none() {
            instance.has_lost_flows = false;
        }
        let (fall, rise) = (check.fall, check.rise);
        let reason = match (before.failing(), instance.fitness.failing()) {
            (None, Some((_, why))) => format!("{fall} checks in a row did not pass: {why}"),
            (Some(_), None) => format!("{rise} checks in a row passed"),
            _ => return,
        };
        self.fitness_changed(index, before.takes(), reason);
    }

    fn take_agent(&mut self, index: usize, said: &AgentReport) {
        let (now, instance) = (self.now, &mut self.instances[index]);
        let service = self.services.get(instance.service.index());
        let Some(agent) = service.and_then(|of| of.settings.agent.as_ref()) else {
            return;
        };
        let before = instance.fitness.clone();
        instance.fitness.agent(said, now + agent.lasts());
        let after = &instance.fitness;
        if (before.takes(), before.percent()) != (after.takes(), after.percent()) {
            let reason = after.words().unwrap_or_else(|| "its agent says so".to_owned());
            self.fitness_changed(index, before.takes(), reason);
        }
    }

    /// Forgets what agents said too long ago, and checks that there are no more.
    pub(super) fn expire_reports(&mut self) {
        for index in 0..self.instances.len() {
            let (now, instance) = (self.now, &mut self.instances[index]);
            let service = self.services.get(instance.service.index());
            let is_checked = service.is_some_and(|of| of.settings.health.is_some());
            let is_over = !is_checked && instance.fitness.fails_checks();
            if !is_over && !instance.fitness.has_agent() {
                continue;
            }
            let (took, percent) = (instance.fitness.takes(), instance.fitness.percent());
            if is_over {
                instance.fitness.forget_checks();
            }
            instance.fitness.expire(now);
            if (took, percent) != (instance.fitness.takes(), instance.fitness.percent()) {
                let why = if is_over {
                    "it is not checked any more"
                } else {
                    "its agent has said nothing more"
                };
                self.fitness_changed(index, took, why.to_owned());
            }
        }
    }

    /// The next plan says so, and the event log.
    pub(super) fn fitness_changed(&mut self, index: usize, took: bool, reason: String) {
        let (now, instance) = (self.now, &mut self.instances[index]);
        let takes = instance.fitness.takes();
        if takes && !took {
            instance.fitness.is_back(now);
        }
        self.plan_changed = true;
        let (id, service, weight) = (instance.id, instance.service, instance.fitness.percent());
        let kind = EventKind::Health {
            takes,
            weight,
            reason,
        };
        self.event(Some(service), Some(id), kind);
    }

    /// Active instances of a service that count for nothing, because they take no new flows: others come in their
    /// place. Never more than there are instances that do, and one: a check that is wrong must not replace everything.
    pub(super) fn unfit(&self, service: ServiceId) -> u32 {
        // Nobody comes in the place of a server that others run.
        if self.others_run(service) {
            return 0;
        }
        let active = |i: &Instance| i.state == InstanceState::Active && !i.leaving;
        let unfit = self.count(service, |i| active(i) && !i.fitness.takes());
        let fit = self.count(service, |i| active(i) && i.fitness.takes());
        unfit.min(fit.max(1))
    }

    /// Notes the services of which too few instances pass their checks, so that all of them are used.
    pub(super) fn note_panic(&mut self) {
        for index in 0..self.services.len() {
            let service = &mut self.services[index];
            let Some(check) = &service.settings.health else {
                service.panics = None;
                continue;
            };
            let (id, share) = (service.id, check.panic);
            let all = self.count(id, |i| i.state == InstanceState::Active);
            let fit = self.count(id, |i| {
                i.state == InstanceState::Active && !i.fitness.is_failing()
            });
            let panics = f64::from(fit) < share * f64::from(all);
            let (now, service) = (self.now, &mut self.services[index]);
            let what = "health".to_owned();
            let kind = match service.panics {
                None if panics => {
                    service.panics = Some(now);
                    let reason = format!(
                        "{fit} of {all} active instances pass their checks, less than {:.0} %: all of them are used",
                        share * 100.0
                    );
                    EventKind::Failure { what, reason }
                }
                Some(since) if !panics => {
                    service.panics = None;
                    // While the checks were not believed, nobody's time ran.
                    for instance in self.instances.iter_mut().filter(|of| of.service == id) {
                        instance.fitness.fails_from(now);
                    }
                    let after_ms = now.since(since).as_millis();
                    EventKind::Recovered { what, after_ms }
                }
                _ => continue,
            };
            self.plan_changed = true;
            self.event(Some(id), None, kind);
        }
    }

    /// Whether an instance takes new flows in the next plan, beside those that drain.
    pub(super) fn takes_flows(&self, instance: &Instance) -> bool {
        let panics = self
            .services
            .get(instance.service.index())
            .is_some_and(|service| service.panics.is_some());
        let fitness = &instance.fitness;
        instance.state.takes_new_flows() && !fitness.is_withdrawn() && (panics || !fitness.is_failing())
    }

    /// Whether it goes on failing for so long that another one must take its flows, too.
    pub(super) fn is_lost(&self, instance: &Instance) -> Option<String> {
        let service = self.services.get(instance.service.index())?;
        let (since, why) = instance.fitness.failing()?;
        let lasted: Nanos = self.now.since(since);
        let is_lost = lasted >= service.settings.drain_deadline && service.panics.is_none();
        is_lost.then(|| {
            format!(
                "its checks have not passed for {:.1} s: {why}",
                lasted.as_secs_f64()
            )
        })
    }
}

impl Instance {
    /// Whether its checks count: it serves, and is not frozen.
    pub fn is_checked(&self) -> bool {
        let runs = self.container == Container::Running || self.back_end.is_some();
        self.is_in_plan() && runs || self.awaits_check()
    }
}
