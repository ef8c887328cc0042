//! Draining instances that translate: another instance, the heir, takes over their flows, mappings and blocks of external
//! ports, in the steps that the crate `switch` describes.

use collector::Collector;
use model::{Generation, InstanceId, InstanceState, Nanos, ServiceId, Slot};
use switch::{MappingsEvent, MappingsPlan, MappingsRequest, SwitchRequest};

use super::Controller;
use crate::instance::Instance;

/// How long after a step that did not succeed it is tried again. Mappings in its way end meanwhile.
const AGAIN: Nanos = Nanos::from_secs(1);
/// Interval of counting the mappings in inherited blocks.
const COUNTED_EVERY: Nanos = Nanos::from_secs(1);

/// How far a hand-over is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The plan names the heir.
    Named,
    /// Its flows move there.
    Flows,
    /// The heir gets all mappings.
    Mappings,
    /// It did not get all. Again at that time.
    Again(Nanos),
    /// A plan gives it the blocks; [`None`] until it is published.
    Blocks(Option<Generation>),
    /// Flows that came to the blocks until then move; last tried at that time.
    Rest(Nanos),
}

/// The instance that takes over what a draining one has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Heir {
    pub(crate) id: InstanceId,
    pub(crate) step: Step,
    /// Whether an instance has had mappings of it: then it takes no new flows any more.
    pub(crate) has_begun: bool,
}

impl Instance {
    /// Whether another instance has mappings of it.
    pub(crate) fn hands_over(&self) -> bool {
        self.heir.is_some_and(|heir| heir.has_begun)
    }
}

impl Controller {
    /// Whether instances of a service have heirs.
    fn has_heirs(&self, service: ServiceId) -> bool {
        let service = self.services.get(service.index());
        service.is_some_and(|of| of.blocks.is_some() && of.settings.plan.moves_state)
    }

    /// Gives each draining instance an heir, or another one where that takes no new flows any more.
    pub(super) fn name_heirs(&mut self) {
        for index in 0..self.instances.len() {
            let instance = &self.instances[index];
            let is_it = |of: &Instance| of.state == InstanceState::Draining && of.is_in_plan();
            if !is_it(instance) || !self.has_heirs(instance.service) {
                continue;
            }
            let takes = |of: &&Instance| {
                of.service == instance.service && of.state == InstanceState::Active && of.is_in_plan()
            };
            let known = |id: InstanceId| Some(&self.instances[self.position(id)?]);
            let named = instance.heir.and_then(|heir| known(heir.id));
            if named.is_some_and(|of| takes(&of)) {
                continue;
            }
            // One that drains itself has copies, which go to its own heir.
            let its = named.and_then(|of| of.heir).and_then(|heir| known(heir.id));
            let blocks = &self.services[instance.service.index()].blocks;
            let fewest = |of: &&Instance| {
                let inherited = blocks.as_ref().map_or(0, |blocks| blocks.owned(of.id).count());
                (inherited, of.id)
            };
            let all = self.instances.iter().filter(takes);
            let Some(id) = its
                .filter(takes)
                .or_else(|| all.min_by_key(fewest))
                .map(|of| of.id)
            else {
                continue;
            };
            let instance = &mut self.instances[index];
            let has_begun = instance.hands_over();
            instance.heir = Some(Heir {
                id,
                step: Step::Named,
                has_begun,
            });
            if let Some(drain) = &mut instance.drain {
                // Every worker must know who it is.
                (drain.generation, drain.acknowledged) = (None, None);
            }
            self.plan_changed = true;
        }
    }

    /// For the next plan.
    pub(super) fn mappings_plan(&self) -> MappingsPlan {
        let slot_of = |id: InstanceId| {
            let of = &self.instances[self.position(id)?];
            of.is_in_plan().then_some(of.slot)
        };
        let draining = self
            .instances
            .iter()
            .filter(|of| of.state == InstanceState::Draining);
        let heirs = draining.filter_map(|of| Some((slot_of(of.id)?, slot_of(of.heir?.id)?)));
        let services = self.services.iter();
        let blocks = services.flat_map(|of| {
            let blocks = of
                .blocks
                .iter()
                .flat_map(|blocks| blocks.inherited(&self.instances));
            blocks.filter_map(|(block, owner)| Some((of.id, block, slot_of(owner)?)))
        });
        MappingsPlan {
            heirs: heirs.collect(),
            blocks: blocks.collect(),
        }
    }

    /// Takes the next step of a draining instance, whose workers know its drain. Whether it may end: it has nothing more
    /// to hand over, or no heir.
    pub(super) fn hand_over(&mut self, index: usize, collector: &Collector) -> bool {
        let now = self.now;
        let instance = &self.instances[index];
        let (id, slot) = (instance.id, instance.slot);
        if !self.has_heirs(instance.service) {
            return true;
        }
        let Some(heir) = instance.heir else { return true };
        // What it inherits itself is complete first.
        let is_heir = |of: &Instance| {
            let step = of.heir.filter(|heir| heir.id == id).map(|heir| heir.step);
            of.state == InstanceState::Draining && step.is_some_and(|step| !matches!(step, Step::Rest(_)))
        };
        let is_known = instance.drain.is_some_and(|drain| drain.acknowledged.is_some());
        let next = match heir.step {
            Step::Named if is_known && !self.instances.iter().any(is_heir) => {
                self.unpin(
                    index,
                    format!("it is drained, and instance {} is its heir", heir.id),
                );
                Step::Flows
            }
            Step::Again(at) if now >= at => {
                self.ask_to_hand_over(slot, heir.id);
                Step::Mappings
            }
            Step::Blocks(Some(generation)) if generation <= self.acknowledged => {
                self.out.switch.push(SwitchRequest::PurgeSlot(slot));
                Step::Rest(now)
            }
            Step::Rest(at) => {
                // What was read before may lack flows of workers that had the plan before.
                let rates = collector.slot(slot).filter(|rates| rates.at > at);
                let live = rates.map_or(0, |rates| rates.signals.live_flows);
                if live > 0 && now.since(at) >= AGAIN {
                    self.out.switch.push(SwitchRequest::PurgeSlot(slot));
                    self.set_step(index, Step::Rest(now));
                }
                return rates.is_some();
            }
            _ => return false,
        };
        self.set_step(index, next);
        if let Some(drain) = &mut self.instances[index].drain {
            drain.moves = true;
        }
        false
    }

    fn set_step(&mut self, index: usize, step: Step) {
        let instance = &mut self.instances[index];
        if let Some(heir) = &mut instance.heir {
            let has_begun = std::mem::replace(&mut heir.has_begun, true);
            heir.step = step;
            if !has_begun && let Some(blocks) = &mut self.services[instance.service.index()].blocks {
                // The next run is to know.
                blocks.note_change();
            }
        }
    }

    fn ask_to_hand_over(&mut self, from: Slot, to: InstanceId) {
        if let Some(at) = self.position(to) {
            let to = self.instances[at].slot;
            let request = MappingsRequest::HandOver { from, to };
            self.out.switch.push(SwitchRequest::Mappings(request));
        }
    }

    pub(super) fn mappings_event(&mut self, event: MappingsEvent) {
        let now = self.now;
        let (MappingsEvent::FlowsMoved { slot }
        | MappingsEvent::HandedOver { slot, .. }
        | MappingsEvent::Counted { slot, .. }) = event;
        let Some(index) = self.at_slot(slot) else { return };
        let instance = &self.instances[index];
        let (id, service) = (instance.id, instance.service);
        let heir = instance
            .heir
            .filter(|_| instance.state == InstanceState::Draining);
        match (event, heir) {
            (MappingsEvent::FlowsMoved { .. }, Some(heir)) if heir.step == Step::Flows => {
                self.ask_to_hand_over(slot, heir.id);
                self.set_step(index, Step::Mappings);
            }
            (MappingsEvent::HandedOver { is_complete, .. }, Some(heir)) if heir.step == Step::Mappings => {
                if !is_complete {
                    return self.set_step(index, Step::Again(now + AGAIN));
                }
                if let Some(blocks) = &mut self.services[service.index()].blocks {
                    blocks.pass_on(id, heir.id);
                }
                self.instances[index].block = None;
                self.plan_changed = true;
                self.set_step(index, Step::Blocks(None));
            }
            (
                MappingsEvent::Counted {
                    ports, mappings: 0, ..
                },
                _,
            ) if !self.is_heir(id) => {
                let own = instance.block;
                if let Some(blocks) = &mut self.services[service.index()].blocks
                    && blocks.end_inherited(id, own, &ports, now)
                {
                    self.plan_changed = true;
                }
            }
            _ => {}
        }
    }

    /// Whether an instance may still get mappings of another one.
    fn is_heir(&self, id: InstanceId) -> bool {
        let mut all = self.instances.iter();
        all.any(|of| of.heir.is_some_and(|heir| heir.id == id))
    }

    /// Has the mappings in inherited blocks counted, at intervals.
    pub(super) fn count_inherited(&mut self) {
        if self.now < self.counted + COUNTED_EVERY {
            return;
        }
        self.counted = self.now;
        for service in &self.services {
            let Some(blocks) = &service.blocks else { continue };
            for (block, owner) in blocks.inherited(&self.instances) {
                let instance = self.position(owner).map(|at| &self.instances[at]);
                let serves = instance.filter(|of| of.state == InstanceState::Active && of.is_in_plan());
                if let Some((of, ports)) = serves.zip(blocks.ports_of(block))
                    && !self.is_heir(owner)
                {
                    let request = MappingsRequest::Count { slot: of.slot, ports };
                    self.out.switch.push(SwitchRequest::Mappings(request));
                }
            }
        }
    }
}
