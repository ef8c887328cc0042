//! Giving buckets to other instances, step by step; the crate's documentation says why each is needed.

use model::{Nanos, Slot};

use super::Steering;
use crate::flows::{FlowId, RuleState};
use crate::rules::Way;

/// Moves that may wait for quiet, or for flows to end, while another one begins.
const HELD_MOVES: usize = 8;

/// Where a bucket is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BucketPhase {
    /// Its rule sends to its instance.
    Steady,
    /// Likewise, and its flows get no rules.
    Frozen,
    /// Its rule sends to us.
    Held,
}

/// Buckets on their way to other instances, together.
#[derive(Debug)]
pub(super) struct Move {
    buckets: Vec<Target>,
    phase: Phase,
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
    Freeze,
    Hold,
    Turn { since: Nanos },
    Release,
}

impl Steering {
    /// Begins to give these buckets to other instances.
    pub(super) fn begin_move(&mut self, buckets: Vec<Target>) {
        for target in &buckets {
            if let Some(bucket) = self.bucket_mut(target.place()) {
                bucket.phase = BucketPhase::Frozen;
            }
        }
        let epoch = self.prover.want();
        self.moves.push(Move {
            buckets,
            phase: Phase::Freeze,
            epoch,
        });
    }

    /// Whether another move can begin: none is under way, but for those that wait for flows to end.
    pub(super) fn may_move(&self) -> bool {
        let waits = |of: &Move| matches!(of.phase, Phase::Turn { .. });
        self.moves.len() <= HELD_MOVES && self.moves.iter().all(waits)
    }

    pub(super) fn moves_to(&self, slot: Slot) -> bool {
        self.moves
            .iter()
            .flat_map(|of| &of.buckets)
            .any(|target| target.to == slot)
    }

    pub(super) fn step_moves(&mut self, now: Nanos) {
        let mut moves = std::mem::take(&mut self.moves);
        moves.retain_mut(|of| self.step_move(of, now));
        moves.append(&mut self.moves);
        self.moves = moves;
    }

    /// Whether the move goes on.
    fn step_move(&mut self, of: &mut Move, now: Nanos) -> bool {
        let is_proven = self.prover.is_proven(of.epoch);
        match of.phase {
            Phase::Freeze if is_proven => {
                for target in &of.buckets {
                    self.set_phase(target, BucketPhase::Held);
                    self.catch(target);
                }
                of.phase = Phase::Hold;
                of.epoch = self.prover.want();
            }
            Phase::Hold if is_proven => {
                for target in &of.buckets {
                    if let Some(bucket) = self.bucket_mut(target.place()) {
                        bucket.slot = Some(target.to);
                    }
                }
                of.phase = Phase::Turn { since: now };
                of.epoch = self.prover.want();
            }
            Phase::Turn { since } => {
                let is_late = now.0.saturating_sub(since.0) > self.settings.hold_limit.0;
                let is_ready =
                    |target: &Target| self.is_protected(target) && (is_late || self.is_quiet(target, now));
                let (ready, rest): (Vec<Target>, Vec<Target>) =
                    of.buckets.iter().copied().partition(is_ready);
                of.buckets = rest;
                if !ready.is_empty() {
                    for target in &ready {
                        self.figures.restless_releases += u64::from(!self.is_quiet(target, now));
                        self.set_phase(target, BucketPhase::Steady);
                    }
                    let epoch = self.prover.want();
                    self.moves.push(Move {
                        buckets: ready,
                        phase: Phase::Release,
                        epoch,
                    });
                }
                if is_proven {
                    // For what has been caught meanwhile.
                    of.epoch = self.prover.want();
                }
                return !of.buckets.is_empty();
            }
            Phase::Release if is_proven => {
                self.figures.moved_buckets += of.buckets.len() as u64;
                self.rebalance_at = now;
                return false;
            }
            Phase::Freeze | Phase::Hold | Phase::Release => {}
        }
        true
    }

    fn set_phase(&mut self, target: &Target, phase: BucketPhase) {
        if let Some(bucket) = self.bucket_mut(target.place()) {
            bucket.phase = phase;
            if phase == BucketPhase::Steady {
                bucket.caught.clear();
            }
        }
        self.queue_bucket(target.service, target.bucket);
    }

    /// Gives rules through us to the bucket's flows that have none.
    fn catch(&mut self, target: &Target) {
        let Some(bucket) = self.bucket_mut(target.place()) else {
            return;
        };
        bucket.caught = bucket.on_bucket.clone();
        for id in bucket.on_bucket.clone() {
            if let Some(flow) = self.flows.get_mut(&id)
                && flow.rules.is_empty()
            {
                flow.way = Way::Loop;
            }
            self.pin(id);
        }
    }

    /// Whether rules of its own that are in force forward the flow.
    pub(super) fn has_proven_rules(&self, id: &FlowId) -> bool {
        self.flows
            .get(id)
            .is_some_and(|flow| flow.state == RuleState::Installed && self.prover.is_proven(flow.epoch))
    }

    /// Whether every flow of the old instance has rules of its own that are in force.
    fn is_protected(&self, target: &Target) -> bool {
        self.bucket(target.place()).is_none_or(|bucket| {
            bucket.caught.iter().all(|id| {
                let stays = self.flows.get(id).is_none_or(|flow| flow.slot == target.to);
                stays || self.has_proven_rules(id)
            })
        })
    }

    /// Whether no flow that the bucket's rule forwards has sent lately: none would lose its order by a shorter way.
    fn is_quiet(&self, target: &Target, now: Nanos) -> bool {
        self.bucket(target.place())
            .is_none_or(|bucket| now.0.saturating_sub(bucket.restless_at.0) > self.settings.quiet.0)
    }

    /// The instance is gone: buckets on their way to or from it stay with the other one.
    pub(super) fn leave_moves(&mut self, slot: Slot) {
        let moves = std::mem::take(&mut self.moves);
        let meets = |of: &Move| {
            of.buckets
                .iter()
                .any(|target| target.from == slot || target.to == slot)
        };
        let (over, rest): (Vec<Move>, Vec<Move>) = moves.into_iter().partition(meets);
        self.moves = rest;
        for of in over {
            // Those that do not meet it go on by themselves, from the beginning or the end of a hold.
            let others: Vec<Target> = (of.buckets.iter().copied())
                .filter(|target| target.from != slot && target.to != slot)
                .collect();
            for target in of
                .buckets
                .iter()
                .filter(|target| target.from == slot || target.to == slot)
            {
                let left = if target.from == slot {
                    target.to
                } else {
                    target.from
                };
                if let Some(bucket) = self.bucket_mut(target.place()) {
                    bucket.slot = Some(left);
                }
                self.set_phase(target, BucketPhase::Steady);
            }
            if !others.is_empty() {
                self.moves.push(Move {
                    buckets: others,
                    ..of
                });
            }
        }
    }
}
