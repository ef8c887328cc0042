//! Instances that others run: which of them there are to be, and when one leaves.

use std::net::SocketAddr;

use model::{BackEnd, BackEndState, EventKind, InstanceState, ServiceId, Slot};

use super::Controller;
use super::commands::with_id;
use crate::instance::{Instance, Port};
use crate::message::CommandError;

/// What is said of a server that does not serve at the moment.
const NOT_READY: &str = "it is not ready, as those say who run it";

impl Controller {
    /// Whether others run the instances of a service.
    pub(super) fn others_run(&self, service: ServiceId) -> bool {
        let service = self.services.get(service.index());
        service.is_some_and(|of| of.settings.back_ends.is_some())
    }

    /// Refuses what only a service can do whose instances inco runs.
    pub(super) fn must_run(&self, service: &str) -> Result<(), CommandError> {
        let mut services = self.services.iter();
        let of = services.find(|of| of.settings.name == service && of.settings.back_ends.is_some());
        match of {
            Some(_) => Err(CommandError::OthersRun {
                service: service.to_owned(),
            }),
            None => Ok(()),
        }
    }

    /// A server of the list that is no instance yet; [`None`] if all are, or if inco runs the instances.
    pub(super) fn next_back_end(&self, index: usize) -> Option<BackEnd> {
        let service = &self.services[index];
        // One that has the address of another one comes once that has gone: an answer is known by its address alone.
        let is_there = |of: &&BackEnd| {
            let mut instances = self.instances.iter().filter(|i| i.service == service.id);
            instances.any(|i| i.back_end == Some(of.at))
        };
        let listed = service.settings.back_ends.iter().flatten();
        // Those of an earlier run first: each has its slot again, before another one takes it.
        let next = listed
            .filter(|of| !is_there(of) && self.is_wanted(of, None))
            .min_by_key(|of| !self.had_slot(of.at));
        next.cloned()
    }

    /// Whether the slot that it had in an earlier run waits for it.
    fn had_slot(&self, at: SocketAddr) -> bool {
        self.resumed_back_ends.values().any(|of| *of == at)
    }

    /// Whether a server of the list is to be an instance. One that does not take new flows comes only if it has flows
    /// of an earlier run.
    fn is_wanted(&self, of: &BackEnd, instance: Option<&Instance>) -> bool {
        let comes = |i: &Instance| {
            use InstanceState::{Creating, Standby, Starting};
            matches!(i.state, Creating | Starting | Standby) && i.has_served
        };
        match of.state {
            BackEndState::Serving => true,
            BackEndState::NotReady => instance.is_some() || self.had_slot(of.at),
            BackEndState::Draining => instance.map_or_else(|| self.had_slot(of.at), comes),
        }
    }

    /// The slot that a server had in an earlier run, if it is free: its flows are still pinned to it.
    pub(super) fn take_slot_of(&mut self, service: ServiceId, at: SocketAddr) -> Option<Slot> {
        let mut resumed = self.resumed_back_ends.iter();
        let slot = resumed.find(|(_, of)| **of == at).map(|(slot, _)| *slot)?;
        // Should it go and come again, it has no flows there any more.
        self.resumed_back_ends.remove(&slot);
        if !self.has_made_port(service, slot) {
            return None;
        }
        let used = self.slot_used.get_mut(slot.index()).filter(|used| !**used)?;
        *used = true;
        Some(slot)
    }

    fn has_made_port(&self, service: ServiceId, slot: Slot) -> bool {
        let service = self.services.get(service.index());
        service.is_some_and(|of| of.settings.made_ports.iter().any(|port| port.slot == slot))
    }

    /// Until others say which servers there are, they are those that had flows in an earlier run.
    pub(super) fn resume_followed(&mut self) {
        for index in 0..self.services.len() {
            let service = &self.services[index];
            if service.settings.followed.is_none() {
                continue;
            }
            let resumed = self.resumed_back_ends.iter();
            let there = resumed.filter(|(slot, _)| self.has_made_port(service.id, **slot));
            let list: Vec<BackEnd> = there.map(|(_, at)| BackEnd::at(*at)).collect();
            let service = &mut self.services[index];
            let count = list.len() as u32;
            service.settings.back_ends = Some(list);
            (service.settings.min, service.settings.max) = (count, count);
            service.limits = (count, count);
            service.wanted = count;
        }
    }

    /// Others say which servers there are.
    pub(super) fn set_back_ends(&mut self, id: ServiceId, list: &[BackEnd]) -> Result<String, CommandError> {
        let service = with_id(&mut self.services, id)?;
        let name = &service.settings.name;
        let said = format!("{name}: others run {} servers", list.len());
        if service.settings.followed.is_some() {
            service.settings.back_ends = Some(list.to_vec());
            service.back_ends_changed = true;
        }
        Ok(said)
    }

    /// Brings instances in line with what others said, where that or an instance has changed.
    pub(super) fn follow_changed(&mut self) {
        for index in 0..self.services.len() {
            let service = &mut self.services[index];
            let Some(most) = service.settings.followed else {
                continue;
            };
            if !std::mem::take(&mut service.back_ends_changed) {
                continue;
            }
            let id = service.id;
            self.follow_back_ends(id);
            let service = &self.services[index];
            let listed = service.settings.back_ends.iter().flatten();
            let wanted = listed
                .filter(|of| self.is_wanted(of, self.instance_of(id, of)))
                .count();
            let all = u32::try_from(wanted).unwrap_or(u32::MAX);
            let count = all.min(most);
            let service = &mut self.services[index];
            (service.settings.min, service.settings.max) = (count, count);
            service.limits = (count, count);
            let told = std::mem::replace(&mut service.no_place_told, all > most);
            self.keep_within_limits(id, format!("others run {all} servers that can serve"));
            if all > most && !told {
                let reason = format!(
                    "there are {all} servers, and places for {most}: the others get no flows; write a larger \
                     `instances.max`, and start inco again"
                );
                let what = "instances".to_owned();
                self.event(Some(id), None, EventKind::Failure { what, reason });
            }
        }
    }

    /// Has those leave that are not listed any more, and those that are said to end. Those that are listed again stay.
    pub(super) fn follow_back_ends(&mut self, service: ServiceId) {
        use InstanceState::{Active, Creating, Draining, Standby, Starting};
        let is_followed = self
            .services
            .get(service.index())
            .is_some_and(|of| of.settings.followed.is_some());
        for index in 0..self.instances.len() {
            let instance = &self.instances[index];
            let Some(at) = instance.back_end.filter(|_| instance.service == service) else {
                continue;
            };
            let listed = self.listed(instance).cloned();
            let state = listed.as_ref().map(|of| of.state);
            if let Some(of) = listed {
                // Of what an earlier run had, its address alone was known.
                let instance = &mut self.instances[index];
                (instance.back_end_id, instance.back_end_name) = (of.id, of.name);
                let is_new = instance.fitness.told_weight(of.weight);
                self.plan_changed |= is_new && instance.is_in_plan();
            }
            let instance = &self.instances[index];
            let why = match state {
                Some(_) => format!("{at} ends, as those say who run it"),
                None if is_followed => format!("{at} has gone, as those say who run it"),
                None => format!("{at} is not listed any more"),
            };
            let stays = matches!(state, Some(BackEndState::Serving | BackEndState::NotReady));
            match instance.state {
                Active | Draining if state.is_none() && is_followed => {
                    self.unpin(index, why.clone());
                    self.stop(index, why);
                }
                Active if !stays => {
                    self.instances[index].leaving = true;
                    self.drain(index, why);
                }
                Draining if !stays => self.instances[index].leaving = true,
                Draining if instance.is_unlisted => self.undrain(index, "it is listed again"),
                // It has flows that wait for it, and drains once it serves them.
                Creating | Starting | Standby if state.is_some() && instance.has_served => {}
                Creating | Starting | Standby if !stays => self.stop(index, why),
                _ => {}
            }
            self.instances[index].is_unlisted = !stays;
            self.note_ready(index, state);
        }
    }

    /// Takes over whether those who run a server say that it serves.
    fn note_ready(&mut self, index: usize, state: Option<BackEndState>) {
        let (now, instance) = (self.now, &mut self.instances[index]);
        let took = instance.fitness.takes();
        let is_ready = state != Some(BackEndState::NotReady);
        let ready = if is_ready { Ok(()) } else { Err(NOT_READY) };
        if !instance.fitness.told_ready(ready, now) {
            return;
        }
        if instance.fitness.failing().is_none() {
            instance.has_lost_flows = false;
        }
        if instance.is_in_plan() {
            let reason = if is_ready { "it is ready again" } else { NOT_READY };
            self.fitness_changed(index, took, reason.to_owned());
        }
    }

    /// What the list says of an instance.
    fn listed(&self, instance: &Instance) -> Option<&BackEnd> {
        let service = self.services.get(instance.service.index())?;
        let at = instance.back_end?;
        let mut listed = service.settings.back_ends.iter().flatten();
        listed.find(|of| of.is_same(at, instance.back_end_id.as_deref()))
    }

    /// The instance that a server of the list is.
    fn instance_of(&self, service: ServiceId, of: &BackEnd) -> Option<&Instance> {
        let mut instances = self.instances.iter().filter(|i| i.service == service);
        instances.find(|i| {
            let at = i.back_end.filter(|at| *at == of.at);
            at.is_some_and(|at| of.is_same(at, i.back_end_id.as_deref()))
        })
    }

    /// Whether an instance goes on to drain when its flows have ended: an operator has taken a server out that stays
    /// on the list.
    pub(super) fn stays_drained(&self, instance: &Instance) -> bool {
        let listed = self.listed(instance);
        self.shutdown.is_none() && listed.is_some_and(|of| of.state != BackEndState::Draining)
    }

    /// A server goes on failing: others take its flows, and it stays on the list.
    pub(super) fn give_flows_away(&mut self, index: usize, reason: String) {
        if !self.instances[index].has_lost_flows {
            self.instances[index].has_lost_flows = true;
            self.unpin(index, reason);
        }
    }
}

impl Instance {
    /// What people call it, where others run it and have told: the name of a Pod.
    pub fn back_end_name(&self) -> Option<&str> {
        self.back_end_name.as_deref()
    }

    /// Whether it is on another machine, and waits for its first check that passes.
    pub(crate) fn awaits_check(&self) -> bool {
        self.address().is_some() && self.port == Port::Up && self.state == InstanceState::Starting
    }
}
