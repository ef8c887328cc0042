//! Giving buckets to other instances, step by step; the crate's documentation says why each is needed.

use std::collections::BTreeSet;

use model::{Nanos, Slot};

use super::{Outgoing, Steering};
use crate::flows::{FlowId, RuleState};
use crate::rules::{ZONES, forget_marks};

/// Moves that may wait for flows to get rules, or to end, while another one begins.
const WAITING_MOVES: usize = 8;

/// Where a bucket is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BucketPhase {
    /// Its rule sends to its instance.
    Steady,
    /// The switch remembers the instance of each connection that meets it: it is still the old one.
    Marking,
    /// Likewise, and connections of which it remembers nothing are the new one's.
    Asking,
}

/// Buckets on their way to other instances, together.
#[derive(Debug)]
pub(super) struct Move {
    buckets: Vec<Target>,
    phase: Phase,
    since: Nanos,
    /// What the phase waits for.
    epoch: u64,
}

impl Move {
    /// What it waits for holds no earlier than that.
    pub(super) fn wait_for(&mut self, epoch: u64) {
        self.epoch = self.epoch.max(epoch);
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    pub(super) service: usize,
    pub(super) bucket: usize,
    pub(super) from: Slot,
    pub(super) to: Slot,
}

impl Target {
    fn place(&self) -> (usize, usize) {
        (self.service, self.bucket)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Until connections are marked.
    Mark,
    /// Until the flows known before have their rules.
    Cover,
    /// Until the new instance's flows come to it.
    Ask,
    /// Until the old instance's flows have their rules.
    Leave,
    /// Until the bucket's rule is the new instance's.
    Release,
}

impl Steering {
    /// Begins to give these buckets to other instances.
    pub(super) fn begin_move(&mut self, buckets: Vec<Target>, now: Nanos) {
        for target in &buckets {
            let zone = self.fresh.zone;
            self.fresh.zone = (zone + 1) % ZONES;
            if let Some(bucket) = self.bucket_mut(target.place()) {
                bucket.zone = zone;
            }
            // An earlier inco, or an earlier move, may have left marks there.
            self.queue(Outgoing::Message(forget_marks(zone)));
            self.set_phase(target, BucketPhase::Marking);
        }
        self.push_move(buckets, Phase::Mark, now);
    }

    /// Goes on where an earlier run was with these buckets: the switch asks for their connections, and sends others
    /// to where they are by now. Of the flows that are not theirs none is known yet.
    pub(super) fn go_on_asking(&mut self, places: &BTreeSet<(usize, usize)>, now: Nanos) {
        let target = |(service, bucket): &(usize, usize)| {
            let to = self.bucket((*service, *bucket))?.slot?;
            Some(Target {
                service: *service,
                bucket: *bucket,
                from: to,
                to,
            })
        };
        let targets = places.iter().filter_map(target).collect();
        self.push_move(targets, Phase::Leave, now);
    }

    fn push_move(&mut self, buckets: Vec<Target>, phase: Phase, now: Nanos) {
        if buckets.is_empty() {
            return;
        }
        let epoch = self.prover.want();
        self.moves.push(Move {
            buckets,
            phase,
            since: now,
            epoch,
        });
    }

    /// Whether another move can begin: none is under way, but for those that wait for flows.
    pub(super) fn may_move(&self) -> bool {
        let waits = |of: &Move| matches!(of.phase, Phase::Cover | Phase::Leave);
        self.moves.len() <= WAITING_MOVES && self.moves.iter().all(waits)
    }

    pub(super) fn moves_to(&self, slot: Slot) -> bool {
        self.moves
            .iter()
            .flat_map(|of| &of.buckets)
            .any(|target| target.to == slot)
    }

    pub(super) fn step_moves(&mut self, now: Nanos) {
        for of in std::mem::take(&mut self.moves) {
            self.step_move(of, now);
        }
    }

    fn step_move(&mut self, of: Move, now: Nanos) {
        if !self.prover.is_proven(of.epoch) {
            self.moves.push(of);
            return;
        }
        match of.phase {
            Phase::Mark => {
                for target in &of.buckets {
                    self.catch(target);
                }
                self.push_move(of.buckets, Phase::Cover, now);
            }
            Phase::Cover => {
                let (ready, rest): (Vec<Target>, Vec<Target>) =
                    (of.buckets.iter().copied()).partition(|target| self.are_caught_covered(target));
                for target in &ready {
                    self.settle(target, target.to);
                    self.set_phase(target, BucketPhase::Asking);
                }
                self.push_move(ready, Phase::Ask, now);
                if now.since(of.since) > self.settings.move_limit {
                    for target in &rest {
                        self.counted.figures.given_up_moves += 1;
                        self.settle(target, target.from);
                        self.set_phase(target, BucketPhase::Steady);
                    }
                } else {
                    self.wait_on(of, rest);
                }
            }
            Phase::Ask => {
                for target in &of.buckets {
                    self.catch(target);
                }
                self.push_move(of.buckets, Phase::Leave, now);
            }
            Phase::Leave => {
                let (ready, rest): (Vec<Target>, Vec<Target>) =
                    (of.buckets.iter().copied()).partition(|target| self.are_old_flows_covered(target, now));
                for target in &ready {
                    self.set_phase(target, BucketPhase::Steady);
                }
                self.push_move(ready, Phase::Release, now);
                self.wait_on(of, rest);
            }
            Phase::Release => {
                let is_there =
                    |target: &&Target| self.bucket(target.place()).and_then(|of| of.slot) == Some(target.to);
                self.counted.figures.moved_buckets += of.buckets.iter().filter(is_there).count() as u64;
                for target in &of.buckets {
                    if let Some(zone) = self.bucket(target.place()).map(|bucket| bucket.zone) {
                        self.queue(Outgoing::Message(forget_marks(zone)));
                    }
                }
                self.due.rebalance_at = now;
            }
        }
    }

    /// Goes on waiting for the flows of these buckets: for a proof of the rules that were written meanwhile, if there
    /// are some.
    fn wait_on(&mut self, of: Move, rest: Vec<Target>) {
        if rest.is_empty() {
            return;
        }
        let is_written = |id: &FlowId| {
            let flow = self.book.flows.get(id);
            flow.is_some_and(|flow| flow.state == RuleState::Installed && !self.prover.is_proven(flow.epoch))
        };
        let waits = |target: &Target| {
            let bucket = self.bucket(target.place());
            bucket.is_some_and(|bucket| bucket.caught.iter().any(is_written))
        };
        let epoch = match rest.iter().any(waits) {
            true => self.prover.want(),
            false => of.epoch,
        };
        self.moves.push(Move {
            buckets: rest,
            epoch,
            ..of
        });
    }

    /// The bucket is that instance's from now on.
    fn settle(&mut self, target: &Target, slot: Slot) {
        if let Some(bucket) = self.bucket_mut(target.place()) {
            bucket.slot = Some(slot);
        }
    }

    fn set_phase(&mut self, target: &Target, phase: BucketPhase) {
        if let Some(bucket) = self.bucket_mut(target.place()) {
            bucket.phase = phase;
            bucket.caught.clear();
        }
        self.queue_bucket(target.service, target.bucket);
    }

    /// Notes the bucket's flows that have no rules of their own, and asks for some.
    fn catch(&mut self, target: &Target) {
        let Some(bucket) = self.bucket_mut(target.place()) else {
            return;
        };
        bucket.caught = bucket.on_bucket.clone();
        for id in bucket.caught.clone() {
            self.pin(id);
        }
    }

    /// Whether rules of its own that are in force forward the flow, on **each** of its sides: its state says that none
    /// of them is refused, lacking or still to be written. Where one is, the flow is on its bucket there, and the move
    /// waits for it.
    fn has_proven_rules(&self, id: &FlowId) -> bool {
        self.book
            .flows
            .get(id)
            .is_some_and(|flow| flow.state == RuleState::Installed && self.prover.is_proven(flow.epoch))
    }

    /// Whether every flow that may not have a mark has rules of its own that are in force.
    fn are_caught_covered(&self, target: &Target) -> bool {
        self.bucket(target.place())
            .is_none_or(|bucket| bucket.caught.iter().all(|id| self.has_proven_rules(id)))
    }

    /// Whether every flow of the old instance is known, and has rules of its own that are in force.
    fn are_old_flows_covered(&self, target: &Target, now: Nanos) -> bool {
        let is_new = |id: &FlowId| self.book.flows.get(id).is_none_or(|flow| flow.slot == target.to);
        self.bucket(target.place()).is_none_or(|bucket| {
            if now < bucket.unknown_until {
                return false;
            }
            let mut flows = bucket.caught.iter().chain(&bucket.on_bucket);
            flows.all(|id| is_new(id) || self.has_proven_rules(id))
        })
    }

    /// The instance is gone: buckets on their way to or from it stay with the other one.
    pub(super) fn leave_moves(&mut self, slot: Slot, now: Nanos) {
        let moves = std::mem::take(&mut self.moves);
        let mut left = Vec::new();
        for mut of in moves {
            let (over, others): (Vec<Target>, Vec<Target>) =
                (of.buckets.into_iter()).partition(|target| target.from == slot || target.to == slot);
            for target in &over {
                let stays = if target.from == slot {
                    target.to
                } else {
                    target.from
                };
                self.settle(target, stays);
                self.set_phase(target, BucketPhase::Steady);
            }
            left.extend(over);
            if !others.is_empty() {
                of.buckets = others;
                self.moves.push(of);
            }
        }
        self.push_move(left, Phase::Release, now);
    }
}
