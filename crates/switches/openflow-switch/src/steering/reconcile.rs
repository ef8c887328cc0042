//! After a connection was made: what the switch has of ours is compared with what it should have. Rules that agree
//! are not touched; exact rules are written before those of buckets.

use std::collections::BTreeMap;

use model::Nanos;
use openflow::{Action, FlowStats, Instruction, Match, Message};

use super::{Outgoing, Steering};
use crate::rules::{HANDOVER_TABLE, Rule, TABLE, is_ours};

impl Steering {
    pub(super) fn reconcile(&mut self, found: &[FlowStats], now: Nanos) {
        self.counted.figures.reconciled += 1;
        let mut there: BTreeMap<(u8, u16, Match), &FlowStats> = (found.iter())
            .filter(|flow| is_ours(flow.cookie))
            .map(|flow| ((flow.table, flow.priority, flow.matches.clone()), flow))
            .collect();
        let mut agreed = 0;
        let mut lacks = |rule: &Rule| match there.remove(&(rule.table, rule.priority, rule.matches.clone())) {
            Some(flow) if flow.cookie == rule.cookie && actions(flow) == Some(rule.actions.as_slice()) => {
                agreed += 1;
                false
            }
            _ => true,
        };
        let mut first = Vec::new();
        let mut last = Vec::new();
        for slot in self.instances.keys() {
            let rules = self.rules_of(*slot).into_iter();
            first.extend(rules.filter(&mut lacks).map(Outgoing::Rule));
        }
        first.extend(self.fallback_rules().filter(&mut lacks).map(Outgoing::Rule));
        let numbers: Vec<u64> = self.book.numbers.keys().copied().collect();
        for number in numbers {
            let Some(rule) = self.pin_of(number) else { continue };
            if !lacks(&rule) {
                // It may have been sent without an answer.
                self.pin_written(number);
                continue;
            }
            if let Some((flow, rule)) = self.book.rule_mut(number) {
                flow.rule_lacks(rule);
            }
            first.push(Outgoing::Pin(number));
        }
        for (index, service) in self.services.iter().enumerate() {
            for side in 0..service.rules.sides.len() {
                for bucket in 0..service.buckets.len() {
                    // In the order in which they must come into force: what packets meet is last.
                    for table in [HANDOVER_TABLE, TABLE] {
                        if self
                            .bucket_of(index, side, bucket, table)
                            .is_some_and(|rule| lacks(&rule))
                        {
                            last.push(Outgoing::Bucket {
                                service: index,
                                side,
                                bucket,
                                table,
                            });
                        }
                    }
                }
            }
        }
        // The marker's rule changes all the time, and is written before each use.
        let extra = there.into_values().map(|flow| {
            Outgoing::Delete(Rule {
                table: flow.table,
                priority: flow.priority,
                cookie: flow.cookie,
                matches: flow.matches.clone(),
                actions: Vec::new(),
            })
        });
        self.outbox.queue = first.into_iter().chain(extra).collect();
        self.outbox
            .queue
            .push_back(Outgoing::Message(Message::BarrierRequest));
        self.outbox.queue.extend(last);
        self.counted.figures.agreed_rules += agreed;
        // Nothing was counted meanwhile: that a flow was not noticed does not say that it has ended.
        self.book.flows.values_mut().for_each(|flow| flow.seen = now);
        self.due.statistics_at = now;
        // A proof that was asked for before holds for nothing that was written now.
        let epoch = self.prover.want();
        self.instances
            .values_mut()
            .for_each(|instance| instance.epoch = instance.epoch.max(epoch));
        for of in &mut self.moves {
            of.wait_for(epoch);
        }
        self.failing
            .values_mut()
            .for_each(|silent| *silent = (*silent).max(epoch));
    }
}

fn actions(flow: &FlowStats) -> Option<&[Action]> {
    match flow.instructions.as_slice() {
        [Instruction::ApplyActions(actions)] => Some(actions),
        // A rule that drops.
        [] => Some(&[]),
        _ => None,
    }
}
