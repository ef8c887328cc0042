//! Instances that translate hand flows, mappings and blocks of external ports to an heir when they are drained.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what goes wrong here fails the test"
)]

use std::collections::{BTreeMap, BTreeSet};

use autoscaling::Autoscaler;
use collector::Collector;
use controller::{
    Command, CommandError, CommandId, Controller, Inputs, Outputs, ReservedBlock, ServiceSettings, Settings,
};
use model::{
    Action, External, Generation, InstanceId, InstanceState, Nanos, PortBlock, Prefix, ServiceId, Slot,
};
use proptest::prelude::*;
use scheduling::Scheduler;
use switch::{
    MappingsEvent, MappingsRequest, Plan, Resumed, ServicePlan, SwitchEvent, SwitchReading, SwitchRequest,
};

const LIFETIME: Nanos = Nanos::from_secs(100);

/// A service without containers: an instance is there as soon as its port is. Its mappings are a number by block and slot.
struct Bed {
    controller: Controller,
    collector: Collector,
    reading: SwitchReading,
    now: Nanos,
    plan: Plan,
    acknowledged: Generation,
    switch: Vec<SwitchEvent>,
    requests: Vec<SwitchRequest>,
    reserved: Vec<ReservedBlock>,
    /// Whether a hand-over is complete, and whether the switch answers at all.
    is_complete: bool,
    answers: bool,
    /// Mappings of each block that an instance has.
    mappings: BTreeMap<(Slot, u16), u32>,
}

fn external() -> External {
    let prefix = Prefix {
        address: [203, 0, 113, 0].into(),
        bits: 31,
    };
    External::new(&[prefix], 8064).unwrap()
}

impl Bed {
    fn new(count: u32) -> Bed {
        let plan = ServicePlan {
            external: Some(external()),
            moves_state: true,
            ..ServicePlan::of_all(ServiceId(0), Scheduler::default())
        };
        let service = ServiceSettings {
            min: 1,
            max: 8,
            plan,
            mapping_lifetime: LIFETIME,
            drain_deadline: Nanos::from_secs(5),
            ..ServiceSettings::new("nat", None, Autoscaler::from_name("fixed").unwrap())
        };
        let mut controller = Controller::new(Settings::default(), vec![service]);
        controller.adopt(&[], &Resumed::default(), Nanos::ZERO);
        let mut collector = Collector::new();
        collector.add_service(Nanos::from_secs(1));
        let mut bed = Bed {
            controller,
            collector,
            reading: SwitchReading::new(1, 0, 1),
            now: Nanos::ZERO,
            plan: Plan::default(),
            acknowledged: Generation(0),
            switch: Vec::new(),
            requests: Vec::new(),
            reserved: Vec::new(),
            is_complete: true,
            answers: true,
            mappings: BTreeMap::new(),
        };
        bed.run(20);
        if count > 1 {
            bed.scale(count);
        }
        bed.run(20);
        bed
    }

    /// A step of a millisecond; gives the answer to the command.
    fn step(&mut self, command: Option<Command>) -> Option<Result<String, CommandError>> {
        self.now = self.now + Nanos::from_millis(1);
        self.reading.at = self.now;
        self.collector.sample(&self.reading);
        let commands: Vec<_> = command.into_iter().map(|of| (CommandId(1), of)).collect();
        let switch = std::mem::take(&mut self.switch);
        let inputs = Inputs {
            switch: &switch,
            acknowledged: self.acknowledged,
            commands: &commands,
            ..Inputs::default()
        };
        let mut out = Outputs::default();
        self.controller
            .step(inputs, &mut self.collector, self.now, &mut out);
        for request in &out.switch {
            self.carry_out(request);
        }
        self.requests.extend(out.switch);
        if let Some(reserved) = out.reserved {
            self.reserved = reserved;
        }
        self.check();
        out.answers.pop().map(|(_, answer)| answer)
    }

    fn carry_out(&mut self, request: &SwitchRequest) {
        match request {
            SwitchRequest::Publish(plan) => {
                self.plan = Plan::clone(plan);
                self.acknowledged = plan.generation;
            }
            SwitchRequest::Attach { slot, .. } => self.switch.push(SwitchEvent::Attached {
                slot: *slot,
                peer: String::new(),
            }),
            SwitchRequest::Detach(slot) => {
                self.mappings.retain(|(at, _), _| at != slot);
                self.switch.push(SwitchEvent::Detached {
                    slot: *slot,
                    outstanding: 0,
                });
            }
            SwitchRequest::PurgeSlot(slot) if self.answers => {
                if let Some(heir) = self.plan.mappings.heir(*slot) {
                    let flows = std::mem::take(&mut self.reading.slots[slot.index()].live_flows);
                    self.reading.slots[heir.index()].live_flows += flows;
                    let event = MappingsEvent::FlowsMoved { slot: *slot };
                    self.switch.push(SwitchEvent::Mappings(event));
                }
            }
            SwitchRequest::Mappings(MappingsRequest::HandOver { from, to }) if self.answers => {
                if self.is_complete {
                    let given: Vec<(u16, u32)> = self
                        .mappings
                        .iter()
                        .filter(|((at, _), _)| at == from)
                        .map(|((_, block), count)| (*block, *count))
                        .collect();
                    self.mappings
                        .extend(given.into_iter().map(|(block, count)| ((*to, block), count)));
                }
                let event = MappingsEvent::HandedOver {
                    slot: *from,
                    is_complete: self.is_complete,
                };
                self.switch.push(SwitchEvent::Mappings(event));
            }
            SwitchRequest::Mappings(MappingsRequest::Count { slot, ports }) if self.answers => {
                let block = external().block_of(ports.address.into(), ports.first).unwrap();
                let event = MappingsEvent::Counted {
                    slot: *slot,
                    ports: *ports,
                    mappings: self.mappings.get(&(*slot, block)).copied().unwrap_or(0),
                };
                self.switch.push(SwitchEvent::Mappings(event));
            }
            _ => {}
        }
    }

    /// Each block has one instance in the plan.
    fn check(&self) {
        let own = self
            .plan
            .instances()
            .filter_map(|(slot, row)| Some((row.block?, slot)));
        let inherited = self
            .plan
            .mappings
            .blocks
            .iter()
            .map(|(_, block, slot)| (*block, *slot));
        let all: Vec<(u16, Slot)> = own.chain(inherited).collect();
        let blocks: BTreeSet<u16> = all.iter().map(|(block, _)| *block).collect();
        assert_eq!(blocks.len(), all.len(), "{all:?}");
        // Who has mappings and is no draining instance has their block, or is an heir.
        for (from, to) in &self.plan.mappings.heirs {
            let state = |slot: Slot| self.plan.slot(slot).unwrap().state;
            assert!(state(*from) == InstanceState::Draining && self.plan.slot(*to).is_some());
        }
    }

    fn run(&mut self, steps: u32) {
        for _ in 0..steps {
            self.step(None);
        }
    }

    fn scale(&mut self, count: u32) {
        let service = "nat".to_owned();
        let instances = Some(count);
        self.step(Some(Action::Scale { service, instances }.into()))
            .unwrap()
            .unwrap();
    }

    fn drain(&mut self, instance: InstanceId) {
        self.step(Some(Action::Drain { instance }.into()))
            .unwrap()
            .unwrap();
    }

    fn ids(&self, state: InstanceState) -> Vec<InstanceId> {
        let instances = self.controller.instances().iter();
        instances
            .filter(|of| of.state() == state)
            .map(|of| of.id())
            .collect()
    }

    fn slot(&self, id: InstanceId) -> Slot {
        let mut instances = self.controller.instances().iter();
        instances.find(|of| of.id() == id).unwrap().slot()
    }

    fn ports(&self, id: InstanceId) -> PortBlock {
        let mut instances = self.controller.instances().iter();
        self.controller
            .external_ports(instances.find(|of| of.id() == id).unwrap())
            .unwrap()
    }

    /// Each active instance has flows, and mappings in its block.
    fn fill(&mut self) {
        for id in self.ids(InstanceState::Active) {
            let (slot, ports) = (self.slot(id), self.ports(id));
            let block = external().block_of(ports.address.into(), ports.first).unwrap();
            self.reading.slots[slot.index()].live_flows += 5;
            self.mappings.insert((slot, block), 7);
        }
        self.run(5);
    }
}

#[test]
fn a_drain_hands_everything_to_an_heir_and_ends_at_once() {
    let mut bed = Bed::new(2);
    bed.fill();
    let [kept, drained] = bed.ids(InstanceState::Active)[..] else {
        panic!("two are active");
    };
    let (slot, heir, ports) = (bed.slot(drained), bed.slot(kept), bed.ports(drained));
    let block = external().block_of(ports.address.into(), ports.first).unwrap();
    bed.scale(1);
    bed.run(20);
    assert_eq!(bed.ids(InstanceState::Active), [kept]);
    assert_eq!(bed.controller.instances().len(), 1);
    let steps: Vec<&SwitchRequest> = bed
        .requests
        .iter()
        .filter(|of| {
            matches!(of, SwitchRequest::PurgeSlot(_))
                || matches!(of, SwitchRequest::Mappings(MappingsRequest::HandOver { .. }))
        })
        .collect();
    assert!(
        matches!(
            steps[..],
            [
                SwitchRequest::PurgeSlot(first),
                SwitchRequest::Mappings(MappingsRequest::HandOver { from, to }),
                SwitchRequest::PurgeSlot(second),
            ] if [*first, *from, *second] == [slot; 3] && *to == heir
        ),
        "{steps:?}"
    );
    assert_eq!(bed.plan.mappings.blocks, [(ServiceId(0), block, heir)]);
    // The next run knows whose it is, and a new instance does not get it.
    let told: Vec<String> = bed.reserved.iter().map(ToString::to_string).collect();
    assert_eq!(told, [format!("@{} {ports} nat", kept.0)]);
    bed.scale(2);
    bed.run(1500);
    let new = bed.ids(InstanceState::Active)[1];
    assert_ne!(bed.ports(new), ports);
    assert_eq!(bed.plan.mappings.blocks, [(ServiceId(0), block, heir)]);
    // It is free as soon as its last mapping has ended.
    bed.mappings.insert((heir, block), 0);
    bed.run(1100);
    assert!(bed.plan.mappings.blocks.is_empty() && bed.reserved.is_empty());
}

#[test]
fn what_an_heir_does_not_take_is_tried_again_and_there_is_no_way_back() {
    let mut bed = Bed::new(2);
    bed.fill();
    let drained = bed.ids(InstanceState::Active)[1];
    bed.is_complete = false;
    bed.scale(1);
    bed.run(2500);
    let asked = |of: &&SwitchRequest| matches!(of, SwitchRequest::Mappings(MappingsRequest::HandOver { .. }));
    assert_eq!(bed.requests.iter().filter(asked).count(), 3);
    assert_eq!(bed.ids(InstanceState::Draining), [drained]);
    let refused = bed
        .step(Some(Action::Undrain { instance: drained }.into()))
        .unwrap();
    assert!(
        matches!(refused, Err(CommandError::WrongState { .. })),
        "{refused:?}"
    );
    // A rising load takes another one.
    bed.scale(2);
    bed.run(20);
    assert_eq!(bed.ids(InstanceState::Draining), [drained]);
    assert_eq!(bed.ids(InstanceState::Active).len(), 2);
    bed.is_complete = true;
    bed.run(1100);
    assert!(bed.ids(InstanceState::Draining).is_empty());
    assert_eq!(bed.plan.mappings.blocks.len(), 1);
}

#[test]
fn another_one_takes_the_place_of_an_heir_that_fails() {
    let mut bed = Bed::new(3);
    bed.fill();
    let all = bed.ids(InstanceState::Active);
    bed.is_complete = false;
    bed.scale(2);
    bed.run(20);
    let (slot, failing) = bed.plan.mappings.heirs[0];
    assert_eq!(slot, bed.slot(all[2]));
    bed.is_complete = true;
    bed.switch.push(SwitchEvent::PortDown {
        slot: failing,
        reason: "it broke".to_owned(),
    });
    bed.run(100);
    let other = all[..2]
        .iter()
        .find(|id| bed.ids(InstanceState::Active).contains(id))
        .unwrap();
    assert!(bed.ids(InstanceState::Draining).is_empty());
    let slots: Vec<Slot> = bed.plan.mappings.blocks.iter().map(|of| of.2).collect();
    assert_eq!(slots, [bed.slot(*other)]);
    // What the failed one had is reserved, its own block and no other.
    let reserved = bed.reserved.iter().filter(|of| of.owner.is_none());
    assert_eq!(reserved.count(), 1);
}

#[test]
fn an_heir_that_is_drained_hands_all_on() {
    let mut bed = Bed::new(4);
    bed.fill();
    // Three at once, among them heirs of others.
    let all = bed.ids(InstanceState::Active);
    bed.scale(1);
    bed.run(50);
    let [last] = bed.ids(InstanceState::Active)[..] else {
        panic!("one is active");
    };
    assert_eq!(bed.controller.instances().len(), 1);
    assert_eq!(bed.plan.mappings.blocks.len(), 3);
    let heir = bed.slot(last);
    assert_eq!(bed.mappings.keys().filter(|(at, _)| *at == heir).count(), 4);
    assert_eq!(bed.reading.slots[heir.index()].live_flows, 20);
    bed.scale(2);
    bed.run(20);
    bed.drain(last);
    bed.run(50);
    let next = *bed
        .ids(InstanceState::Active)
        .iter()
        .find(|id| **id != last)
        .unwrap();
    assert!(!all.contains(&next));
    assert_eq!(bed.plan.mappings.blocks.len(), 4);
    assert!(bed.plan.mappings.blocks.iter().all(|of| of.2 == bed.slot(next)));
}

#[derive(Clone, Debug)]
enum Step {
    Scale(u32),
    Complete(bool),
    Answer(bool),
    Fail(prop::sample::Index),
    End(prop::sample::Index),
    Run(u32),
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Whatever fails, a block has one instance, and nobody gets one whose mappings somebody has.
    #[test]
    fn nobody_gets_a_block_whose_mappings_an_instance_has(
        steps in prop::collection::vec(prop_oneof![
            4 => (1..6_u32).prop_map(Step::Scale),
            1 => any::<bool>().prop_map(Step::Complete),
            1 => any::<bool>().prop_map(Step::Answer),
            1 => any::<prop::sample::Index>().prop_map(Step::Fail),
            2 => any::<prop::sample::Index>().prop_map(Step::End),
            6 => (1..1500_u32).prop_map(Step::Run),
        ], 1..25),
    ) {
        let mut bed = Bed::new(1);
        let mut known: BTreeSet<InstanceId> = BTreeSet::new();
        for step in steps {
            match step {
                Step::Scale(count) => bed.scale(count),
                Step::Complete(is) => bed.is_complete = is,
                Step::Answer(does) => bed.answers = does,
                Step::Fail(which) => {
                    let slots: Vec<Slot> = bed.plan.instances().map(|(slot, _)| slot).collect();
                    if !slots.is_empty() {
                        let slot = *which.get(&slots);
                        bed.mappings.retain(|(at, _), _| *at != slot);
                        bed.reading.slots[slot.index()].live_flows = 0;
                        bed.switch.push(SwitchEvent::PortDown { slot, reason: String::new() });
                    }
                }
                Step::End(which) => {
                    let all: Vec<(Slot, u16)> = bed.mappings.keys().copied().collect();
                    if !all.is_empty() {
                        bed.mappings.insert(*which.get(&all), 0);
                    }
                }
                Step::Run(steps) => bed.run(steps),
            }
            bed.step(None);
            // New instances get mappings, in blocks in which no other one has some.
            for id in bed.ids(InstanceState::Active) {
                if known.insert(id) {
                    let (slot, ports) = (bed.slot(id), bed.ports(id));
                    let block = external().block_of(ports.address.into(), ports.first).unwrap();
                    let others = bed.mappings.iter().filter(|((_, of), count)| *of == block && **count > 0);
                    prop_assert_eq!(others.count(), 0, "block {} of {}", block, id);
                    bed.mappings.insert((slot, block), 3);
                    bed.reading.slots[slot.index()].live_flows = 2;
                }
            }
        }
        // Everything comes to an end.
        (bed.is_complete, bed.answers) = (true, true);
        bed.scale(1);
        bed.run(8_000);
        prop_assert_eq!(bed.controller.instances().len(), 1);
        bed.mappings.values_mut().for_each(|count| *count = 0);
        bed.run(2_100);
        prop_assert!(bed.plan.mappings.blocks.is_empty());
    }
}
