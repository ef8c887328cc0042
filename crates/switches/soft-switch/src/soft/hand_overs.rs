//! Instances that hand their mappings over: their clients get the heir, and all workers say when their flows have moved.

use std::collections::BTreeMap;

use model::Slot;
use switch::{MappingsEvent, MappingsRequest, Plan, SwitchError, SwitchEvent};

use super::workers::Workers;
use crate::frame::FrameMemory;
use crate::message::Command;
use crate::plan::home;
use crate::shares::SharesMaker;

/// What is known of them.
#[derive(Debug, Default)]
pub(super) struct HandOvers {
    heirs: Vec<(Slot, Slot)>,
    /// Workers that have moved the flows of a slot, since it was purged.
    moved: BTreeMap<Slot, usize>,
}

impl HandOvers {
    /// A plan is to be published.
    pub(super) fn follow(&mut self, plan: &Plan, shares: &SharesMaker) {
        let heirs = &plan.mappings.heirs;
        for (slot, heir) in heirs.iter().filter(|of| !self.heirs.contains(of)) {
            shares.inherit(*slot, *heir);
        }
        self.heirs.clone_from(heirs);
    }

    /// The flows of a slot are to get others.
    pub(super) fn purge(&mut self, slot: Slot, shares: &SharesMaker) {
        if let Some((_, heir)) = self.heirs.iter().find(|(from, _)| *from == slot) {
            // A worker may have picked the slot by the plan before.
            shares.inherit(slot, *heir);
            self.moved.insert(slot, 0);
        }
        shares.forget(slot);
    }

    /// Hands a request to the worker that has the first queue of the instance.
    pub(super) fn request<M: FrameMemory>(
        &self,
        request: MappingsRequest,
        workers: &mut Workers<M>,
    ) -> Result<(), SwitchError> {
        let (MappingsRequest::HandOver { from: slot, .. } | MappingsRequest::Count { slot, .. }) = request;
        workers.have_room()?;
        workers.command(home(slot, 0, 1, workers.len()), Command::Mappings(request));
        Ok(())
    }

    /// What a worker tells. That flows have moved is told when all workers have said so.
    pub(super) fn told(&mut self, event: MappingsEvent, workers: usize) -> Option<SwitchEvent> {
        if let MappingsEvent::FlowsMoved { slot } = event {
            let moved = self.moved.get_mut(&slot)?;
            *moved += 1;
            if *moved < workers {
                return None;
            }
            self.moved.remove(&slot);
        }
        Some(SwitchEvent::Mappings(event))
    }
}
