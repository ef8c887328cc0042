//! The connection, and what the switch says by it.

use model::{FlowSetup, Nanos};
use openflow::{ErrorMessage, FlowRemoved, FlowRemovedReason, FlowStats, Message, MultipartReply};

use super::{OPEN_LIMIT, Outbox, Steering};
use crate::flows::RuleState;
use crate::rules::pin_number;

/// After a rule was refused no exact rules are written for so long.
pub(super) const REFUSED_PAUSE: Nanos = Nanos::from_millis(100);
/// So long after the switch refused a rule that no flow can do without, all rules are compared, and written again
/// where they lack.
pub(super) const COMPARE_PAUSE: Nanos = Nanos::from_millis(200);

pub(super) enum Link {
    Down,
    /// The rules of ours that are there, as far as they have come.
    Asking {
        xid: Option<u32>,
        found: Vec<FlowStats>,
    },
    Up,
}

impl Steering {
    /// The connection is up: what the switch has of ours is compared with what it should have.
    pub fn connected(&mut self) {
        self.disconnected();
        self.link = Link::Asking {
            xid: None,
            found: Vec::new(),
        };
    }

    /// The connection is gone. The switch goes on by the rules that it has.
    pub fn disconnected(&mut self) {
        self.link = Link::Down;
        self.due.compare_at = None;
        self.due.statistics = None;
        self.due.statistics_at = Nanos::ZERO;
        self.outbox = Outbox::new();
        self.book.ending.clear();
        self.prover.restart();
    }

    /// What the switch said.
    pub fn message(&mut self, xid: u32, message: &Message, now: Nanos) {
        if self.batch_answered(xid, message) {
            return;
        }
        match message {
            Message::BarrierReply if self.outbox.proof_barrier == Some(xid) => {
                self.outbox.proof_barrier = None;
                self.prover.written(now);
            }
            Message::Error(error) => self.refused(xid, error, now),
            Message::FlowRemoved(removed) => self.removed(removed),
            Message::PacketIn(packet) if self.settings.setup == FlowSetup::Reactive => {
                self.packet_in(packet, now);
            }
            Message::MultipartReply {
                more,
                reply: MultipartReply::Flows(flows),
            } => self.flow_statistics(xid, flows, *more, now),
            _ => {}
        }
    }

    pub(super) fn flow_statistics(&mut self, xid: u32, flows: &[FlowStats], more: bool, now: Nanos) {
        if self.due.statistics == Some(xid) {
            flows.iter().for_each(|of| self.counted(of, now));
            if !more {
                self.due.statistics = None;
                self.due.statistics_at = Nanos(now.0 + self.settings.statistics_every.0);
            }
            return;
        }
        if let Link::Asking {
            xid: Some(asked),
            found,
        } = &mut self.link
            && *asked == xid
        {
            // Twice what we may have: the rest is not ours, whatever its cookie says.
            let limit = 2 * self.settings.rule_limit + OPEN_LIMIT;
            let room = limit.saturating_sub(found.len());
            found.extend(flows.iter().take(room).cloned());
            if !more {
                let found = std::mem::take(found);
                self.link = Link::Up;
                if let Some(adoption) = self.adoption.take() {
                    self.take_over(&adoption, &found, now);
                }
                self.reconcile(&found, now);
            }
        }
    }

    pub(super) fn refused(&mut self, xid: u32, error: &ErrorMessage, now: Nanos) {
        let Some(number) = self.outbox.sent.remove(&xid) else {
            self.counted.figures.errors += 1;
            if error.kind == ErrorMessage::FLOW_MOD_FAILED {
                // Without it packets go nowhere.
                self.due.compare_at = self.due.compare_at.or(Some(Nanos(now.0 + COMPARE_PAUSE.0)));
            }
            return;
        };
        self.counted.figures.refused += 1;
        self.due.pins_closed_until = Nanos(now.0 + REFUSED_PAUSE.0);
        self.forget_rule(
            number,
            RuleState::Refused {
                kind: error.kind,
                code: error.code,
            },
        );
    }

    pub(super) fn removed(&mut self, removed: &FlowRemoved) {
        let Some(number) = pin_number(removed.cookie) else {
            return;
        };
        if let Some((slot, packets, bytes)) = self.book.ending.remove(&number) {
            let sum = self.counted.slots.entry(slot).or_default();
            sum.packets += removed.packets.saturating_sub(packets);
            sum.bytes += removed.bytes.saturating_sub(bytes);
            return;
        }
        let Some(id) = self.book.numbers.get(&number).copied() else {
            return;
        };
        if removed.reason != FlowRemovedReason::Deleted {
            self.counted.figures.evicted += 1;
        }
        self.forget_rule(number, RuleState::Evicted);
        self.pin(id);
    }
}
