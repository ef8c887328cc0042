//! When a change of rules is in force: not when the switch answers a barrier, but when its datapath forwards by it.
//!
//! A switch that keeps decisions in a cache (Open vSwitch's megaflows, and what it has offloaded of them) goes over
//! the cache in rounds after rules have changed. A marker is a frame of ours that comes back with the number that a
//! rule gives it: when the number is the newest, the round under way has reached the marker's own entry. Entries that
//! this round visited before the change are still old, and the next round may visit the marker before them; so only
//! when the marker has followed **three** changes, one after the other, has a round that began after the first been
//! completed. One more is for decisions that were being made while the rules changed and entered the cache after.
//!
//! All of that counts from the first change of the marker's rule on, which therefore comes after what it is to prove:
//! there is a barrier before it, since a switch may carry out what is between two barriers in any order.

use model::Nanos;

use crate::rules::ROUNDS;

/// Changes that the marker must follow. See above.
const CHANGES: u8 = 4;

/// What is to be done next for the proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Send a barrier: what was written before is to be carried out before what follows.
    Separate,
    /// Write the marker's rule with this number, and a barrier behind it.
    Write(u8),
    /// Send a marker.
    Mark,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    /// What was changed in this epoch and before is proven at the end.
    covers: u64,
    changes_left: u8,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    ToSeparate,
    ToWrite,
    Written,
    Marking(Nanos),
}

/// Proves that changes are in force, one run after another.
#[derive(Debug)]
pub(crate) struct Prover {
    /// Changes made now belong to it.
    epoch: u64,
    proven: u64,
    wanted: u64,
    round: u8,
    run: Option<Run>,
    every: Nanos,
}

impl Prover {
    /// Sends a marker each `every`.
    pub(crate) fn new(every: Nanos) -> Prover {
        Prover {
            epoch: 1,
            proven: 0,
            wanted: 0,
            round: 0,
            run: None,
            every: Nanos(every.0.max(1)),
        }
    }

    /// Asks for a proof of everything written up to now; it is there when [`Prover::is_proven`] says so of this
    /// number.
    pub(crate) fn want(&mut self) -> u64 {
        self.wanted = self.epoch;
        self.epoch
    }

    pub(crate) fn is_proven(&self, epoch: u64) -> bool {
        self.proven >= epoch
    }

    /// What is written now is in force when this is proven. It is not asked for.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The connection is new, or rules were written anew: what was under way proves nothing.
    pub(crate) fn restart(&mut self) {
        self.run = None;
    }

    pub(crate) fn next(&mut self, now: Nanos) -> Option<Step> {
        let run = match &mut self.run {
            Some(run) => run,
            None if self.wanted > self.proven => {
                let covers = self.epoch;
                self.epoch += 1;
                self.run.insert(Run {
                    covers,
                    changes_left: CHANGES,
                    phase: Phase::ToSeparate,
                })
            }
            None => return None,
        };
        match run.phase {
            Phase::ToSeparate => {
                run.phase = Phase::ToWrite;
                Some(Step::Separate)
            }
            Phase::ToWrite => {
                self.round = (self.round + 1) % ROUNDS;
                run.phase = Phase::Written;
                Some(Step::Write(self.round))
            }
            Phase::Marking(at) if now >= at => {
                run.phase = Phase::Marking(Nanos(now.0 + self.every.0));
                Some(Step::Mark)
            }
            Phase::Written | Phase::Marking(_) => None,
        }
    }

    /// The barrier behind the marker's rule was answered.
    pub(crate) fn written(&mut self, now: Nanos) {
        if let Some(run) = &mut self.run
            && run.phase == Phase::Written
        {
            run.phase = Phase::Marking(now);
        }
    }

    /// A marker came back with that number.
    pub(crate) fn marked(&mut self, round: u8) {
        let Some(run) = &mut self.run else { return };
        if round != self.round || matches!(run.phase, Phase::ToSeparate | Phase::ToWrite) {
            return;
        }
        run.changes_left -= 1;
        run.phase = Phase::ToWrite;
        if run.changes_left == 0 {
            self.proven = run.covers;
            self.run = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_takes_as_many_changes_as_it_must() {
        let mut prover = Prover::new(Nanos(10));
        assert_eq!(prover.next(Nanos(0)), None, "no proof is wanted");
        let epoch = prover.want();
        assert_eq!(prover.next(Nanos(0)), Some(Step::Separate));
        for _ in 0..CHANGES {
            assert!(!prover.is_proven(epoch));
            let Some(Step::Write(round)) = prover.next(Nanos(0)) else {
                panic!("no rule is written");
            };
            assert_eq!(prover.next(Nanos(5)), None, "before the barrier");
            prover.written(Nanos(5));
            assert_eq!(prover.next(Nanos(5)), Some(Step::Mark));
            assert_eq!(prover.next(Nanos(14)), None);
            assert_eq!(prover.next(Nanos(15)), Some(Step::Mark));
            prover.marked(round.wrapping_sub(1) % ROUNDS);
            assert!(!prover.is_proven(epoch), "an old number says nothing");
            prover.marked(round);
        }
        assert!(prover.is_proven(epoch));
        assert_eq!(prover.next(Nanos(20)), None);
        let later = prover.want();
        assert!(!prover.is_proven(later), "what was written since is not");
    }
}
