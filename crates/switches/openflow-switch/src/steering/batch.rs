//! Rules that wait at the same time are written in one bundle: Open vSwitch pauses after each change of its rules
//! until all of its pollers have been at rest, and a bundle is one change.
//!
//! One batch is in progress at a time, and nothing is sent behind it until the switch has answered. So a message that
//! depends on a rule follows it, even if the batch is refused and its rules are written one by one. Rules that arrive
//! meanwhile wait here, in a bounded queue, and form the next batch.

use std::collections::{BTreeSet, VecDeque};

use model::FlowSetup;
use openflow::{BundleControl, BundleStep, Message};

use super::{Outgoing, Steering};
use crate::flows::RuleState;

/// Rules in a batch at most. Of batches of 256 Open vSwitch takes three times as many rules as one by one.
const BATCH_LIMIT: usize = 256;
/// Fewer are written one by one, without waiting for an answer.
const BATCH_FROM: usize = 8;
/// The bundle's number: there is one at a time.
const BUNDLE: u32 = 1;
const FLAGS: u16 = BundleControl::ATOMIC | BundleControl::ORDERED;

/// Rules that are written together.
#[derive(Default)]
pub(super) struct Batch {
    /// Not given to the connection yet.
    unsent: VecDeque<Outgoing>,
    /// In the bundle, by their transactions.
    added: Vec<(u32, Outgoing)>,
    /// Transactions of the other messages, as far as they were given to the connection.
    open: Option<u32>,
    commit: Option<u32>,
    barrier: Option<u32>,
    /// Transactions that were answered with an error.
    refused: BTreeSet<u32>,
    is_done: bool,
}

impl Batch {
    /// Rules in it.
    pub(super) fn len(&self) -> usize {
        self.unsent.len() + self.added.len()
    }

    fn has(&self, xid: u32) -> bool {
        [self.open, self.commit, self.barrier].contains(&Some(xid))
            || self.added.iter().any(|(of, _)| *of == xid)
    }
}

impl Steering {
    /// Takes what waits in front for a batch, where it is enough for one.
    pub(super) fn begin_batch(&mut self) {
        // Packets that come to us wait behind the rules of their flows.
        let may = self.outbox.takes_batches
            && self.outbox.alone == 0
            && self.settings.setup == FlowSetup::Proactive;
        if !may || self.outbox.batch.is_some() {
            return;
        }
        let is_of_flow = |next: &&Outgoing| matches!(next, Outgoing::Pin(_) | Outgoing::Delete(_));
        let waiting = self.outbox.queue.iter().take(BATCH_LIMIT);
        let together = waiting.take_while(is_of_flow).count();
        if together >= BATCH_FROM {
            self.outbox.batch = Some(Batch {
                unsent: self.outbox.queue.drain(..together).collect(),
                ..Batch::default()
            });
        }
    }

    /// Gives what is left of the batch to `send`, until there is no room.
    pub(super) fn send_batch(&mut self, send: &mut impl FnMut(&Message) -> Option<u32>) {
        let Some(mut batch) = self.outbox.batch.take() else {
            return;
        };
        let _no_room = self.send_rest(&mut batch, send);
        self.outbox.batch = Some(batch);
    }

    fn send_rest(&mut self, batch: &mut Batch, send: &mut impl FnMut(&Message) -> Option<u32>) -> Option<()> {
        let control = |step| {
            Message::BundleControl(BundleControl {
                bundle: BUNDLE,
                step,
                flags: FLAGS,
            })
        };
        if batch.open.is_none() {
            batch.open = Some(send(&control(BundleStep::Open))?);
        }
        while let Some(next) = batch.unsent.front() {
            let add = self.message_of(next).map(|message| Message::BundleAdd {
                bundle: BUNDLE,
                flags: FLAGS,
                xid: 0,
                message: Box::new(message),
            });
            let xid = match &add {
                Some(add) => Some(send(add)?),
                None => None,
            };
            match (batch.unsent.pop_front(), xid) {
                (Some(next), Some(xid)) => batch.added.push((xid, next)),
                (Some(Outgoing::Pin(number)), None) => self.forget_rule(number, RuleState::OnBucket),
                _ => {}
            }
        }
        if batch.commit.is_none() {
            batch.commit = Some(send(&control(BundleStep::Commit))?);
        }
        if batch.barrier.is_none() {
            batch.barrier = Some(send(&Message::BarrierRequest)?);
        }
        Some(())
    }

    /// Takes an answer to the batch under way. Whether it was one.
    pub(super) fn batch_answered(&mut self, xid: u32, message: &Message) -> bool {
        let Some(batch) = self.outbox.batch.as_mut().filter(|batch| batch.has(xid)) else {
            return false;
        };
        match message {
            Message::Error(_) => drop(batch.refused.insert(xid)),
            Message::BundleControl(control) => batch.is_done |= control.step == BundleStep::CommitDone,
            Message::BarrierReply if batch.barrier == Some(xid) => self.end_batch(),
            _ => {}
        }
        true
    }

    /// The switch has answered all of it. What it has not taken is written one by one: each rule that it refuses is
    /// then told by its own error.
    fn end_batch(&mut self) {
        let Some(batch) = self.outbox.batch.take() else {
            return;
        };
        let is_refused = |xid: Option<u32>| xid.is_some_and(|xid| batch.refused.contains(&xid));
        // A switch that refuses to open one, or does not answer the commit, has no bundles.
        self.outbox.takes_batches = batch.is_done || !is_refused(batch.open) && is_refused(batch.commit);
        self.counted.figures.batches += 1;
        let mut alone = Vec::new();
        for (xid, rule) in batch.added {
            match rule {
                rule if !batch.is_done || batch.refused.contains(&xid) => alone.push(rule),
                Outgoing::Pin(number) => self.pin_written(number),
                _ => {}
            }
        }
        self.counted.figures.split_batches += u64::from(!alone.is_empty());
        self.outbox.alone = alone.len();
        for rule in alone.into_iter().rev() {
            self.outbox.queue.push_front(rule);
        }
    }
}
