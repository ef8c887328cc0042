//! Instances that others run: which of them there are to be, and when one leaves.

use std::net::SocketAddr;

use model::{InstanceState, ServiceId, Slot};

use super::Controller;
use crate::instance::{Instance, Port};
use crate::message::CommandError;

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
    pub(super) fn next_back_end(&self, index: usize) -> Option<SocketAddr> {
        let service = &self.services[index];
        let is_there = |at: &&SocketAddr| {
            let mut instances = self.instances.iter().filter(|i| i.service == service.id);
            instances.any(|i| i.back_end == Some(**at))
        };
        let listed = service.settings.back_ends.iter().flatten();
        // Those of an earlier run first: each has its slot again, before another one takes it.
        let had_one = |at: &&SocketAddr| self.resumed_back_ends.values().any(|of| of == *at);
        listed
            .filter(|at| !is_there(at))
            .min_by_key(|at| !had_one(at))
            .copied()
    }

    /// The slot that a server had in an earlier run, if it is free: its flows are still pinned to it.
    pub(super) fn take_slot_of(&mut self, service: ServiceId, at: SocketAddr) -> Option<Slot> {
        let mut resumed = self.resumed_back_ends.iter();
        let slot = resumed.find(|(_, of)| **of == at).map(|(slot, _)| *slot)?;
        let ports = self.services.get(service.index())?.settings.made_ports.as_ref()?;
        let is_there = ports.iter().any(|port| port.slot == slot);
        let used = self
            .slot_used
            .get_mut(slot.index())
            .filter(|used| is_there && !**used)?;
        *used = true;
        Some(slot)
    }

    /// Has those leave that are not listed any more. Those that are listed again stay.
    pub(super) fn follow_back_ends(&mut self, service: ServiceId) {
        for index in 0..self.instances.len() {
            let instance = &self.instances[index];
            let Some(at) = instance.back_end.filter(|_| instance.service == service) else {
                continue;
            };
            let is_listed = self.is_listed(instance);
            match instance.state {
                InstanceState::Active if !is_listed => {
                    self.instances[index].leaving = true;
                    self.drain(index, format!("{at} is not listed any more"));
                }
                InstanceState::Draining if !is_listed => self.instances[index].leaving = true,
                InstanceState::Draining if self.instances[index].is_unlisted => {
                    self.undrain(index, "it is listed again");
                }
                InstanceState::Creating | InstanceState::Starting | InstanceState::Standby if !is_listed => {
                    self.stop(index, format!("{at} is not listed any more"));
                }
                _ => {}
            }
            self.instances[index].is_unlisted = !is_listed;
        }
    }

    fn is_listed(&self, instance: &Instance) -> bool {
        let service = self.services.get(instance.service.index());
        let mut listed = service
            .into_iter()
            .flat_map(|of| of.settings.back_ends.iter().flatten());
        instance.back_end.is_some_and(|at| listed.any(|of| *of == at))
    }

    /// Whether an instance goes on to drain when its flows have ended: an operator has taken a server out that stays
    /// on the list.
    pub(super) fn stays_drained(&self, instance: &Instance) -> bool {
        self.shutdown.is_none() && self.is_listed(instance)
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
    /// Where others run it; [`None`] if inco does.
    pub fn back_end(&self) -> Option<SocketAddr> {
        self.back_end
    }

    /// Whether others run it, and it waits for its first check that passes.
    pub(crate) fn awaits_check(&self) -> bool {
        self.back_end.is_some() && self.port == Port::Up && self.state == InstanceState::Starting
    }
}
