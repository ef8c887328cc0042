//! What is counted: of flows, of instances, of packets that are of no service.

use std::collections::BTreeMap;

use model::{Nanos, Slot};
use openflow::FlowStats;
use openvswitch::{DatapathFlow, Offload};

use super::{Outgoing, Steering};
use crate::flows::{FlowId, FlowRule};
use crate::rules::{Family, Rule, fallback_number, fallback_rule, pin_number};

/// What was counted for an instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotFigures {
    /// Flows that it has now.
    pub live_flows: u64,
    /// Flows that it was given.
    pub new_flows: u64,
    /// Packets of its flows, as far as they are counted.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Probes that it has given back: [`Steering::probe`].
    pub probes_back: u64,
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Copies that came from another instance than the flow's own.
    pub mis_steered: u64,
    /// Packets of buckets without an instance that were sent on when there was one.
    pub held_packets: u64,
    /// Packets for which no instance takes flows.
    pub unserved: u64,
    /// Packets dropped because too many waited for the monitor port, or for the connection.
    pub inject_full: u64,
    /// Flows that found no place among those known.
    pub flow_limit: u64,
    /// Exact rules that were not asked for because of the limit, the queue, or a refusal before; each look counts.
    pub rule_waits: u64,
    /// Exact rules that the switch refused.
    pub refused: u64,
    /// Exact rules that it removed by itself.
    pub evicted: u64,
    /// Other errors that it sent.
    pub errors: u64,
    /// Frames on the monitor port that mean nothing here, and packets of no service.
    pub unknown_frames: u64,
    /// Buckets that were given to another instance.
    pub moved_buckets: u64,
    /// Buckets that stayed where they were because their flows got no rules: [`Settings::move_limit`].
    pub given_up_moves: u64,
    /// Flows that ended because nothing was noticed of them.
    pub ended_flows: u64,
    /// Flows whose instance failed.
    pub failed_flows: u64,
    /// How often a flow was given rules of its own.
    pub promotions: u64,
    /// How often one lost them: it ended, or the switch refused or removed one.
    pub demotions: u64,
    /// Exact rules in the switch or on their way.
    pub rules: u64,
    /// Messages that wait, and rules for which the switch has not answered yet.
    pub queued: u64,
    /// Batches of exact rules that were written, each in a bundle.
    pub batches: u64,
    /// Those of them of which the switch refused a part, or all: that was written one by one.
    pub split_batches: u64,
    /// How often rules were compared after a connection was made.
    pub reconciled: u64,
    /// Rules that agreed then.
    pub agreed_rules: u64,
}

/// What was counted.
#[derive(Debug, Default)]
pub(super) struct Counted {
    pub(super) slots: BTreeMap<Slot, SlotFigures>,
    pub(super) fallbacks: Vec<CountedFallback>,
    pub(super) figures: Figures,
}

/// What happens to packets of an uplink that are of no service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fallback {
    /// The uplink's port.
    pub port: u32,
    /// IP, or what is not.
    pub family: Family,
    /// The port by which they leave; dropped where there is none.
    pub to: Option<u32>,
}

/// A fallback, and what its rule was said to have counted.
#[derive(Clone, Copy, Debug)]
pub(super) struct CountedFallback {
    pub(super) of: Fallback,
    pub(super) last: u64,
    pub(super) packets: u64,
}

impl Steering {
    /// Says what happens to packets that are of no service, from now on.
    pub fn set_fallbacks(&mut self, fallbacks: &[Fallback]) {
        let gone = self.fallback_rules().collect::<Vec<_>>();
        let counted = |of: &Fallback| {
            let before = self
                .counted
                .fallbacks
                .iter()
                .find(|before| (before.of.port, before.of.family) == (of.port, of.family));
            CountedFallback {
                of: *of,
                last: before.map_or(0, |before| before.last),
                packets: before.map_or(0, |before| before.packets),
            }
        };
        self.counted.fallbacks = fallbacks.iter().map(counted).collect();
        let rules = self.fallback_rules().collect::<Vec<_>>();
        // A rule of the same match takes the place of the old one.
        for rule in gone {
            if !rules
                .iter()
                .any(|new| (new.priority, &new.matches) == (rule.priority, &rule.matches))
            {
                self.queue(Outgoing::Delete(rule));
            }
        }
        rules
            .into_iter()
            .for_each(|rule| self.queue(Outgoing::Rule(rule)));
    }

    pub(super) fn fallback_rules(&self) -> impl Iterator<Item = Rule> + '_ {
        let numbered = self.counted.fallbacks.iter().enumerate();
        numbered.map(|(index, fallback)| {
            let Fallback { port, family, to } = fallback.of;
            fallback_rule(index, port, family, to)
        })
    }

    /// Packets that a fallback's rules were said to have met, in the order in which they were given.
    pub fn fallback_packets(&self) -> impl Iterator<Item = (Fallback, u64)> + '_ {
        self.counted
            .fallbacks
            .iter()
            .map(|fallback| (fallback.of, fallback.packets))
    }

    pub(super) fn counted(&mut self, of: &FlowStats, now: Nanos) {
        let fallback = fallback_number(of.cookie).and_then(|number| self.counted.fallbacks.get_mut(number));
        if let Some(fallback) = fallback {
            // A switch that was started again has begun to count anew.
            fallback.packets += of.packets.checked_sub(fallback.last).unwrap_or(of.packets);
            fallback.last = of.packets;
            return;
        }
        let Some((flow, rule)) = pin_number(of.cookie).and_then(|number| self.book.rule_mut(number)) else {
            return;
        };
        let before = &flow.rules[rule];
        let (packets, bytes) = match of.packets.checked_sub(before.packets) {
            Some(packets) => (packets, of.bytes.saturating_sub(before.bytes)),
            // A switch that was started again has begun to count anew.
            None => (of.packets, of.bytes),
        };
        // Rules of both directions are in one reading: what the second one adds is of the same span.
        let span = now.since(flow.counted_at);
        if span > Nanos::ZERO {
            flow.pps = packets as f32 / span.as_secs_f64() as f32;
            flow.counted_at = now;
        }
        if packets == 0 {
            return;
        }
        flow.seen = now;
        flow.rules[rule].packets = of.packets;
        flow.rules[rule].bytes = of.bytes;
        let slot = flow.slot;
        let sum = self.counted.slots.entry(slot).or_default();
        sum.packets += packets;
        sum.bytes += bytes;
    }

    /// What the switch says of the flows that its hardware has; [`None`] where that is not known. One that is not
    /// among them is forwarded in software.
    pub fn set_offloaded(&mut self, found: Option<&[DatapathFlow]>) {
        for flow in self.book.flows.values_mut() {
            flow.offload = found.map(|_| Offload::None);
        }
        for (of, is_answering) in (found.unwrap_or_default().iter()).flat_map(|of| [(of, false), (of, true)])
        {
            let Some(flow) = self.book.flows.get_mut(&FlowId::new(&of.tuple, is_answering)) else {
                continue;
            };
            let sides = self
                .services
                .get(flow.service)
                .map(|of| of.rules.sides.as_slice());
            let is_its = |rule: &FlowRule| {
                let side = sides.and_then(|sides| sides.get(rule.side));
                side.is_some_and(|side| side.is_answering == is_answering)
            };
            if flow.rules.iter().any(is_its) {
                flow.offload = Some(match (flow.offload, of.offload) {
                    (None | Some(Offload::None), offload) => offload,
                    (Some(Offload::Full), Offload::Full) => Offload::Full,
                    _ => Offload::Partial,
                });
            }
        }
    }

    /// What was counted.
    pub fn figures(&self) -> Figures {
        Figures {
            rules: self.book.numbers.len() as u64,
            queued: self.outbox.len() as u64,
            ..self.counted.figures
        }
    }

    /// What was counted for an instance.
    pub fn slot_figures(&self, slot: Slot) -> SlotFigures {
        self.counted.slots.get(&slot).copied().unwrap_or_default()
    }
}
