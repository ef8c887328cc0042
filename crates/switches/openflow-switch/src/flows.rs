//! What is known of each flow: the truth, of which the switch's rules are a copy.

use std::borrow::Cow;

use model::{Direction, FlowKey, Nanos, ServiceId, Slot, Tuple};
use openvswitch::Offload;

/// A flow: its key, and the direction in which packets travel that open it. Where a service is not symmetric, the two
/// directions of a key are two flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlowId {
    /// Its key.
    pub key: FlowKey,
    opens_in_reverse: bool,
}

impl FlowId {
    /// The flow of a packet with these addresses. `is_answering`: it travels against the opening direction.
    pub fn new(tuple: &Tuple, is_answering: bool) -> FlowId {
        let (key, direction) = FlowKey::new(tuple);
        FlowId {
            key,
            opens_in_reverse: (direction == Direction::Reverse) != is_answering,
        }
    }

    /// The direction in which it was opened.
    pub fn opens(&self) -> Direction {
        if self.opens_in_reverse {
            Direction::Reverse
        } else {
            Direction::Forward
        }
    }

    /// The addresses of its packets that travel so.
    pub fn tuple(&self, is_answering: bool) -> Tuple {
        let direction = self.opens();
        self.key.tuple(if is_answering {
            direction.flipped()
        } else {
            direction
        })
    }
}

/// How a flow's rules are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleState {
    /// It has none: its bucket's rule forwards it, and the bucket stays where it is until the flow ends.
    OnBucket,
    /// Some of them are to be written.
    Queued,
    /// All of them were written, and none was refused.
    Installed,
    /// The switch refused one of them.
    Refused {
        /// Kind of the error (`ofp_error_type`).
        kind: u16,
        /// Which one of that kind.
        code: u16,
    },
    /// The switch has removed one of them by itself.
    Evicted,
}

impl RuleState {
    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            RuleState::OnBucket => "on_bucket",
            RuleState::Queued => "queued",
            RuleState::Installed => "installed",
            RuleState::Refused { .. } => "refused",
            RuleState::Evicted => "evicted",
        }
    }

    /// The word for it, and why.
    pub fn told(&self) -> Cow<'static, str> {
        match self {
            RuleState::Refused { kind, code } => match (*kind, *code) {
                (FLOW_MOD_FAILED, TABLE_FULL) => "refused (its table is full)".into(),
                (FLOW_MOD_FAILED, NOT_PERMITTED) => "refused (not permitted)".into(),
                (kind, code) => format!("refused (error {kind}, {code})").into(),
            },
            other => other.name().into(),
        }
    }

    /// Whether rules of its own forward it, or will.
    pub(crate) const fn has_rules(self) -> bool {
        matches!(self, RuleState::Queued | RuleState::Installed)
    }
}

/// `OFPET_FLOW_MOD_FAILED`, and two of its codes.
const FLOW_MOD_FAILED: u16 = 5;
const TABLE_FULL: u16 = 1;
const NOT_PERMITTED: u16 = 4;

/// A flow, as shown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlowRow {
    /// Which.
    pub id: FlowId,
    /// Of which service.
    pub service: ServiceId,
    /// Where its instance is.
    pub slot: Slot,
    /// When it was noticed, and with that pinned there.
    pub pinned_at: Nanos,
    /// How its rules are.
    pub state: RuleState,
    /// How much of it the hardware does; [`None`] where that is not known.
    pub offload: Option<Offload>,
    /// Packets, both directions: counted here and by the switch.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets per second, from the last reading of its rules to the one before.
    pub pps: f32,
    /// When the switch's part of the counters was read. The switch itself may have counted up to its own lag earlier.
    pub counted_at: Nanos,
    /// When a packet of it was last noticed.
    pub seen: Nanos,
}

/// One of a flow's rules.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlowRule {
    pub(crate) number: u64,
    pub(crate) side: usize,
    /// Whether it was written, and not refused since.
    pub(crate) is_written: bool,
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Flow {
    pub(crate) service: usize,
    pub(crate) bucket: usize,
    pub(crate) slot: Slot,
    pub(crate) pinned_at: Nanos,
    pub(crate) state: RuleState,
    pub(crate) rules: Vec<FlowRule>,
    /// What was counted here and by rules that are gone.
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    /// When the last of its rules was written: the proof to wait for.
    pub(crate) epoch: u64,
    pub(crate) counted_at: Nanos,
    /// Packets per second, as the last reading has them.
    pub(crate) pps: f32,
    pub(crate) offload: Option<Offload>,
    pub(crate) seen: Nanos,
}

impl Flow {
    /// One without rules, on its bucket, which has been seen now.
    pub(crate) fn on_bucket((service, bucket): (usize, usize), slot: Slot, now: Nanos) -> Flow {
        Flow {
            service,
            bucket,
            slot,
            pinned_at: now,
            state: RuleState::OnBucket,
            rules: Vec::new(),
            packets: 0,
            bytes: 0,
            epoch: 0,
            counted_at: now,
            pps: 0.0,
            offload: None,
            seen: now,
        }
    }

    /// One of its rules was written. It counts as forwarded by its rules when it has all of them: one that lacks a rule
    /// on one of its sides stays as it is, and is on its bucket there, whatever becomes of the others.
    pub(crate) fn rule_written(&mut self, rule: usize, epoch: u64) {
        self.rules[rule].is_written = true;
        self.epoch = epoch;
        if self.state == RuleState::Queued && self.rules.iter().all(|rule| rule.is_written) {
            self.state = RuleState::Installed;
        }
    }

    /// The switch does not have one of its rules, which is to be written again.
    pub(crate) fn rule_lacks(&mut self, rule: usize) {
        self.rules[rule].is_written = false;
        if self.state == RuleState::Installed {
            self.state = RuleState::Queued;
        }
    }

    /// The row that shows it.
    pub(crate) fn row(&self, id: FlowId, service: ServiceId) -> FlowRow {
        let of = |pick: fn(&FlowRule) -> u64| self.rules.iter().map(pick).sum::<u64>();
        FlowRow {
            id,
            service,
            slot: self.slot,
            pinned_at: self.pinned_at,
            state: self.state,
            offload: self.offload,
            packets: self.packets + of(|rule| rule.packets),
            bytes: self.bytes + of(|rule| rule.bytes),
            pps: self.pps,
            counted_at: self.counted_at,
            seen: self.seen,
        }
    }
}
