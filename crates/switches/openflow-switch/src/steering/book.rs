//! The flows that are known: from their first packet until nothing is noticed of them any more.

use std::collections::{BTreeMap, BTreeSet};

use model::{Nanos, Slot};

use super::moves::BucketPhase;
use super::{Link, OPEN_LIMIT, Outgoing, Steering};
use crate::flows::{Flow, FlowId, FlowRow, FlowRule, RuleState};
use crate::rules::Rule;

/// Exact rules kept for flows whose bucket is to move, as a share of all: one in 16.
pub(super) const MOVE_SHARE: usize = 16;
/// Flows looked at in one tick, for their end and for a rule.
pub(super) const TICK_FLOWS: usize = 256;

/// The flows that are known, and the numbers of their rules.
#[derive(Debug)]
pub(super) struct FlowBook {
    pub(super) flows: BTreeMap<FlowId, Flow>,
    /// The rules of flows by their number.
    pub(super) numbers: BTreeMap<u64, FlowId>,
    /// Rules that are being deleted, and what was counted of them.
    pub(super) ending: BTreeMap<u64, (Slot, u64, u64)>,
    pub(super) next_number: u64,
    /// Flows without rules by their packets.
    pub(super) waiting: BTreeSet<(u64, FlowId)>,
    /// The flow that was looked at last for its end.
    pub(super) cursor: Option<FlowId>,
}

impl FlowBook {
    pub(super) fn new() -> FlowBook {
        FlowBook {
            flows: BTreeMap::new(),
            numbers: BTreeMap::new(),
            ending: BTreeMap::new(),
            next_number: 1,
            waiting: BTreeSet::new(),
            cursor: None,
        }
    }

    /// The flow of that rule, and the rule's place in it.
    pub(super) fn rule_mut(&mut self, number: u64) -> Option<(&mut Flow, usize)> {
        let flow = self.flows.get_mut(self.numbers.get(&number)?)?;
        let place = flow.rules.iter().position(|rule| rule.number == number)?;
        Some((flow, place))
    }

    /// The flows for which that holds.
    pub(super) fn those(&self, is_meant: impl Fn(&FlowId, &Flow) -> bool) -> Vec<FlowId> {
        let meant = self.flows.iter().filter(|(id, flow)| is_meant(id, flow));
        meant.map(|(id, _)| *id).collect()
    }
}

impl Steering {
    /// Gives up where these flows are: each is a new one with its next packet, and has the instance of its bucket.
    pub fn purge(&mut self, is_meant: impl Fn(&FlowId, Slot) -> bool) {
        let meant = self.book.those(|id, flow| is_meant(id, flow.slot));
        meant.into_iter().for_each(|id| self.end(id));
    }

    /// A rule of a flow is not there.
    pub(super) fn forget_rule(&mut self, number: u64, state: RuleState) {
        let Some(id) = self.book.numbers.remove(&number) else {
            return;
        };
        let Some(flow) = self.book.flows.get_mut(&id) else {
            return;
        };
        if let Some(place) = flow.rules.iter().position(|rule| rule.number == number) {
            let rule = flow.rules.swap_remove(place);
            flow.packets += rule.packets;
            flow.bytes += rule.bytes;
        }
        self.counted.figures.demotions += u64::from(flow.state.has_rules());
        flow.state = state;
        self.book.waiting.insert((flow.packets, id));
        let place = (flow.service, flow.bucket);
        if let Some(bucket) = self.bucket_mut(place) {
            bucket.on_bucket.insert(id);
            if bucket.phase == BucketPhase::Marking {
                bucket.caught.insert(id);
            }
        }
    }

    /// Counts a packet that came to us, and gives its flow's instance.
    pub(super) fn count(&mut self, id: FlowId, bytes: usize, now: Nanos) -> Option<Slot> {
        let flow = self.book.flows.get_mut(&id)?;
        flow.seen = now;
        if self.book.waiting.remove(&(flow.packets, id)) {
            self.book.waiting.insert((flow.packets + 1, id));
        }
        flow.packets += 1;
        flow.bytes += bytes as u64;
        let sum = self.counted.slots.entry(flow.slot).or_default();
        sum.packets += 1;
        sum.bytes += bytes as u64;
        Some(flow.slot)
    }

    pub(super) fn enter(&mut self, id: FlowId, place: (usize, usize), slot: Slot, now: Nanos) {
        if self.book.flows.len() >= self.settings.flow_limit {
            self.counted.figures.flow_limit += 1;
            let until = Nanos(now.0 + self.settings.idle.of_protocol(protocol_of(&id)).0);
            if let Some(bucket) = self.bucket_mut(place) {
                bucket.unknown_until = until;
            }
            return;
        }
        let Some(bucket) = self.bucket_mut(place) else {
            return;
        };
        bucket.on_bucket.insert(id);
        self.book.flows.insert(id, Flow::on_bucket(place, slot, now));
        self.book.waiting.insert((0, id));
        let sum = self.counted.slots.entry(slot).or_default();
        sum.new_flows += 1;
        sum.live_flows += 1;
        self.pin(id);
    }

    /// Asks for the exact rules of a flow that has none, where it may have some now.
    pub(super) fn pin(&mut self, id: FlowId) {
        let Some(flow) = self.book.flows.get(&id) else {
            return;
        };
        let (place, packets) = ((flow.service, flow.bucket), flow.packets);
        if flow.state.has_rules() {
            return;
        }
        let Some(service) = self.services.get(place.0) else {
            return;
        };
        let has = |side: usize| flow.rules.iter().any(|rule| rule.side == side);
        let missing: Vec<usize> = (service.rules.sides.iter().enumerate())
            .filter(|(index, side)| side.takes(&id.tuple(side.is_answering)) && !has(*index))
            .map(|(index, _)| index)
            .collect();
        let is_caught = (service.buckets.get(place.1)).is_some_and(|bucket| bucket.caught.contains(&id));
        let reserve = match is_caught {
            true => 0,
            false => self.settings.rule_limit / MOVE_SHARE,
        };
        let has_room = matches!(self.link, Link::Up)
            && self.outbox.len() < self.settings.queue_limit
            && self.book.numbers.len() + missing.len() + reserve <= self.settings.rule_limit;
        if !has_room {
            self.counted.figures.rule_waits += 1;
            return;
        }
        self.book.waiting.remove(&(packets, id));
        if let Some(bucket) = self.bucket_mut(place) {
            bucket.on_bucket.remove(&id);
        }
        self.counted.figures.promotions += u64::from(!missing.is_empty());
        for side in missing {
            let number = self.book.next_number;
            self.book.next_number += 1;
            self.book.numbers.insert(number, id);
            self.outbox.queue.push_back(Outgoing::Pin(number));
            if let Some(flow) = self.book.flows.get_mut(&id) {
                flow.state = RuleState::Queued;
                flow.rules.push(FlowRule {
                    number,
                    side,
                    is_written: false,
                    packets: 0,
                    bytes: 0,
                });
            }
        }
    }

    /// The flow has ended, or has to begin anew: its rules go.
    pub(super) fn end(&mut self, id: FlowId) {
        let rules: Vec<Rule> = self
            .book
            .flows
            .get(&id)
            .map(|flow| {
                flow.rules
                    .iter()
                    .filter_map(|rule| self.pin_of(rule.number))
                    .collect()
            })
            .unwrap_or_default();
        rules
            .into_iter()
            .for_each(|rule| self.queue(Outgoing::Delete(rule)));
        let Some(flow) = self.book.flows.remove(&id) else {
            return;
        };
        self.counted.figures.demotions += u64::from(flow.state.has_rules());
        for rule in &flow.rules {
            self.book.numbers.remove(&rule.number);
            if self.book.ending.len() < OPEN_LIMIT {
                self.book
                    .ending
                    .insert(rule.number, (flow.slot, rule.packets, rule.bytes));
            }
        }
        self.book.waiting.remove(&(flow.packets, id));
        if let Some(bucket) = self.bucket_mut((flow.service, flow.bucket)) {
            bucket.on_bucket.remove(&id);
            bucket.caught.remove(&id);
        }
        let sum = self.counted.slots.entry(flow.slot).or_default();
        sum.live_flows = sum.live_flows.saturating_sub(1);
    }

    pub(super) fn end_idle_flows(&mut self, now: Nanos) {
        // Deletions wait for the switch too; without it flows have not ended, they are only not seen.
        if !matches!(self.link, Link::Up) || self.outbox.len() >= self.settings.queue_limit {
            return;
        }
        let from = self
            .book
            .cursor
            .map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        let looked: Vec<(FlowId, bool)> = (self.book.flows.range((from, std::ops::Bound::Unbounded)))
            .take(TICK_FLOWS)
            .map(|(id, flow)| {
                let idle = self.settings.idle.of_protocol(protocol_of(id));
                (*id, now.0.saturating_sub(flow.seen.0) > idle.0)
            })
            .collect();
        self.book.cursor = looked.last().map(|(id, _)| *id);
        for (id, _) in looked.into_iter().filter(|(_, has_ended)| *has_ended) {
            self.counted.figures.ended_flows += 1;
            self.end(id);
        }
    }

    /// How many flows are known.
    pub fn flow_count(&self) -> usize {
        self.book.flows.len()
    }

    /// Every flow, in the order of their keys.
    pub fn flows(&self) -> impl Iterator<Item = FlowRow> + '_ {
        self.book.flows.iter().filter_map(|(id, flow)| {
            let service = self.services.get(flow.service)?;
            Some(flow.row(*id, service.rules.id))
        })
    }
}

pub(super) fn protocol_of(id: &FlowId) -> u8 {
    id.tuple(false).protocol
}
