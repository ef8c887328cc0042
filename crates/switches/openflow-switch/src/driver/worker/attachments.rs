//! Instances on their way in and out.

use model::{DropReason, Nanos, ServiceId, Slot};
use switch::{SlotCounters, SwitchError, SwitchEvent};

use super::{INTRODUCTIONS, Worker};
use crate::driver::counters::{Carried, Growing, PortCounters};
use crate::driver::silence::Watch;
use crate::driver::{instance_port, lock};

/// How long the removal of an instance waits for a proof: without a switch there is none.
pub(super) const REMOVE_PATIENCE: Nanos = Nanos::from_secs(1);

/// An instance, and where it is on its way in or out.
pub(super) struct Attachment {
    pub(super) service: ServiceId,
    pub(super) ports: Vec<DataPort>,
    pub(super) phase: Phase,
    pub(super) failed: bool,
    /// Probes that those before it in its slot had given back.
    pub(super) probes_back_before: u64,
    /// Probes that its port has dropped, at most: they are no packets.
    pub(super) probes_dropped: u64,
    /// When the last probe was sent to it.
    pub(super) probed: Nanos,
    /// What the ports and probes had counted when it was attached; [`None`] before.
    pub(super) base: Option<Base>,
    /// What its slot had counted for those that had it before.
    pub(super) before: SlotCounters,
    /// By how many packets more came back than went out, at the last reading.
    pub(super) excess: u64,
    /// Whether it still takes packets.
    pub(super) watch: Watch,
    /// After a restart of the switch: until then it may connect again.
    pub(super) connects_until: Nanos,
    /// Probes that it still gets without need, until it has given one back: it was taken over, and has not been asked
    /// yet.
    pub(super) introductions: u8,
}

/// A port of an instance.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DataPort {
    /// Since the instance has it.
    pub(super) counters: PortCounters,
    /// Probes sent to it.
    pub(super) probes: u64,
    /// When the instance was attached: what was sent to it or dropped, the probes among that, and what had come back.
    pub(super) given_before: u64,
    pub(super) probes_before: u64,
    pub(super) back_before: u64,
    /// What of it is in what its uplink has carried.
    pub(super) carried: Carried,
}

impl DataPort {
    pub(super) fn given(&self) -> u64 {
        self.counters.sent_packets.total() + self.counters.dropped.total()
    }

    pub(super) fn note_base(&mut self) {
        self.given_before = self.given();
        self.probes_before = self.probes;
        self.back_before = self.counters.received_packets.total();
        self.carried = Carried::default();
    }

    /// What its uplink has carried at least since this was asked the last time. `probes_back`: at most so many of
    /// what came back are probes. `has_failed`: what its instance still gives is sent on no more, or soon will not be.
    pub(super) fn newly_carried(&mut self, probes_back: u64, has_failed: bool) -> Carried {
        let probes = self.probes - self.probes_before;
        let received = self.given().saturating_sub(self.given_before + probes);
        let back = self.counters.received_packets.total();
        let back = back.saturating_sub(self.back_before + probes_back);
        let back = if has_failed { 0 } else { back };
        let new = Carried {
            received: received.saturating_sub(self.carried.received),
            sent_or_dropped: back.saturating_sub(self.carried.sent_or_dropped),
        };
        self.carried += new;
        new
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Base {
    pub(super) sent_packets: u64,
    pub(super) sent_bytes: u64,
    pub(super) received_packets: u64,
    pub(super) received_bytes: u64,
    pub(super) dropped: u64,
    pub(super) probes: u64,
    pub(super) probes_back: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Its rules are on their way, then probes. `taken`: since when all of its ports have taken some, and what the
    /// last reading found.
    Probing {
        until: Nanos,
        taken: Option<(Nanos, Base)>,
    },
    /// Attached.
    Up,
    /// Its rules are being removed; whether it is told that it could not be attached, or else that it is removed.
    Leaving {
        /// [`None`] while it has failed and what it still gives may be sent on.
        proof: Option<u64>,
        since: Nanos,
        never_attached: bool,
    },
    /// Nothing is sent to it any more. Its counters are read once again.
    Left { never_attached: bool },
}

impl Attachment {
    /// What its ports, and probes, have counted so far. `probes_back`: what its slot has given back of probes.
    pub(super) fn totals(&self, probes_back: u64) -> Base {
        let sum = |of: fn(&PortCounters) -> Growing| -> u64 {
            self.ports.iter().map(|port| of(&port.counters).total()).sum()
        };
        Base {
            sent_packets: sum(|port| port.sent_packets),
            sent_bytes: sum(|port| port.sent_bytes),
            received_packets: sum(|port| port.received_packets),
            received_bytes: sum(|port| port.received_bytes),
            dropped: sum(|port| port.dropped),
            probes: self.ports.iter().map(|port| port.probes).sum(),
            probes_back: probes_back - self.probes_back_before,
        }
    }

    /// The switch was started again: probes on their way are lost with its rings, and it does not tell which of them
    /// it had counted. What comes now is counted anew, beside what its slot has `counted`. `queued`: probes that have
    /// not been sent yet.
    pub(super) fn begin_anew(&mut self, counted: SlotCounters, probes_back: u64, queued: u64) {
        if self.base.is_none() {
            return;
        }
        let totals = self.totals(probes_back);
        self.base = Some(Base {
            probes: totals.probes - queued,
            ..totals
        });
        self.before = counted;
        (self.excess, self.probes_dropped) = (0, 0);
        self.ports.iter_mut().for_each(DataPort::note_base);
        if let Some(port) = self.ports.first_mut() {
            port.probes_before = port.probes_before.saturating_sub(queued);
        }
    }
}

impl Worker {
    pub(super) fn attach(&mut self, slot: Slot, service: ServiceId, until: Nanos, now: Nanos) {
        if self.attachments.contains_key(&slot) {
            self.tell(SwitchEvent::AttachFailed {
                slot,
                reason: SwitchError::SlotInUse { slot }.to_string(),
            });
            return;
        }
        if let Some(waiting) = &mut self.adoption
            && now < until
        {
            waiting.attach.push((slot, service, until));
            return;
        }
        let Some(pooled) = self.ports.pool.get_mut(&slot) else {
            self.attach_failed(slot, format!("no ports were made for {slot}"));
            return;
        };
        // One of an earlier run has been counted since this one reads counters.
        let is_back = self.steering.is_awaited(slot);
        if !is_back {
            pooled.iter_mut().for_each(PortCounters::forget);
        }
        let counters = pooled.iter().copied();
        let ports = counters.map(|counters| DataPort {
            counters,
            ..DataPort::default()
        });
        let ports: Vec<DataPort> = ports.collect();
        let numbers = (0..ports.len()).map(|port| instance_port(slot, port)).collect();
        let before = {
            let shared = lock(&self.above.shared);
            shared.reading.slots.get(slot.index()).copied()
        };
        self.attachments.insert(
            slot,
            Attachment {
                service,
                ports,
                phase: Phase::Probing { until, taken: None },
                failed: false,
                probes_back_before: self.steering.slot_figures(slot).probes_back,
                probes_dropped: 0,
                probed: Nanos::ZERO,
                base: is_back.then(Base::default),
                before: before.unwrap_or_default(),
                excess: 0,
                watch: Watch::default(),
                connects_until: Nanos::ZERO,
                introductions: if is_back { INTRODUCTIONS } else { 0 },
            },
        );
        if self.steering.is_failing(slot) {
            self.steering.forget(slot, now);
        }
        self.steering.attach(slot, service, numbers);
    }

    pub(super) fn attach_failed(&self, slot: Slot, reason: String) {
        self.tell(SwitchEvent::AttachFailed { slot, reason });
    }

    /// What the instance still had when its ports went: lost where it failed, else kept by it.
    pub(super) fn close(&self, slot: Slot, attachment: &Attachment) -> u64 {
        let mut shared = lock(&self.above.shared);
        let counters = &mut shared.reading;
        let Some(sum) = counters.slots.get_mut(slot.index()) else {
            return 0;
        };
        let outstanding =
            (sum.to_packets + sum.originated).saturating_sub(sum.back_packets + sum.lost + sum.kept);
        sum.live_flows = 0;
        if attachment.failed {
            // Some may have come back since the last reading: how many are lost shows in the uplinks.
            sum.lost += outstanding;
            return outstanding;
        }
        sum.kept += outstanding;
        if let Some(drops) = counters.drops.get_mut(DropReason::Function.index()) {
            *drops += outstanding;
        }
        outstanding
    }

    pub(super) fn detach(&mut self, slot: Slot, now: Nanos) {
        self.steering.remove(slot, now);
        self.wanted.loads.remove(&slot);
        match self.attachments.get_mut(&slot) {
            Some(attachment) => match &mut attachment.phase {
                Phase::Leaving { never_attached, .. } | Phase::Left { never_attached } => {
                    *never_attached = false;
                }
                Phase::Probing { .. } | Phase::Up => {
                    attachment.phase = Phase::Leaving {
                        proof: None,
                        since: now,
                        never_attached: false,
                    };
                }
            },
            None => self.tell(SwitchEvent::Detached { slot, outstanding: 0 }),
        }
    }

    pub(super) fn probe(&mut self, slot: Slot, now: Nanos) {
        let Some(attachment) = self.attachments.get_mut(&slot) else {
            return;
        };
        if let Some(port) = attachment.ports.first_mut() {
            port.probes += u64::from(self.steering.probe(slot, 0));
            attachment.probed = now;
        }
    }

    /// Carries those on that are on their way in or out.
    pub(super) fn step_attachments(&mut self, now: Nanos) {
        let mut failed = Vec::new();
        for (slot, attachment) in &mut self.attachments {
            if let Phase::Leaving { proof, .. } = &mut attachment.phase
                && proof.is_none()
                && !self.steering.is_failing(*slot)
            {
                *proof = Some(self.steering.want_proof());
            }
            match attachment.phase {
                Phase::Probing { until, .. } if now > until => failed.push(*slot),
                Phase::Leaving {
                    proof,
                    since,
                    never_attached,
                } if proof.is_some_and(|proof| self.steering.is_proven(proof))
                    || now.since(since) > REMOVE_PATIENCE =>
                {
                    attachment.phase = Phase::Left { never_attached };
                    if self.switch.connection.connection().is_some() {
                        // What was asked for before this is no reading of its end.
                        self.ports.asked = None;
                        self.ports.ask_at = now;
                    }
                }
                _ => {}
            }
        }
        if self.switch.connection.connection().is_none() {
            self.let_go(now);
        }
        for slot in failed {
            self.steering.remove(slot, now);
            if let Some(attachment) = self.attachments.get_mut(&slot) {
                attachment.phase = Phase::Leaving {
                    proof: None,
                    since: now,
                    never_attached: true,
                };
            }
        }
    }

    /// Gives the ports of those that have left back. Without a switch there is no last reading.
    pub(super) fn let_go(&mut self, now: Nanos) {
        let left = |(slot, attachment): (&Slot, &Attachment)| match attachment.phase {
            Phase::Left { never_attached } => Some((*slot, never_attached)),
            _ => None,
        };
        let left: Vec<(Slot, bool)> = self.attachments.iter().filter_map(left).collect();
        for (slot, never_attached) in left {
            let Some(attachment) = self.attachments.remove(&slot) else {
                continue;
            };
            if never_attached {
                self.attach_failed(slot, "it takes no packets from its port".to_owned());
            } else {
                if attachment.failed {
                    self.miss(DropReason::InstanceLost, now);
                }
                let outstanding = self.close(slot, &attachment);
                self.tell(SwitchEvent::Detached { slot, outstanding });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use openflow::PortStats;

    use super::*;
    use crate::driver::counters::Asked;

    /// An instance whose port has counted so much, after so many ms.
    fn read(of: &mut Attachment, ms: u64, sent: u64, received: u64) {
        let at = Nanos::from_millis(ms);
        let stats = PortStats {
            sent_packets: sent,
            received_packets: received,
            duration_ns: at.0,
            ..PortStats::default()
        };
        let at = Asked {
            asked: at,
            answered: at,
        };
        of.ports[0].counters.read(&stats, at);
    }

    fn attached() -> Attachment {
        Attachment {
            service: ServiceId(0),
            ports: vec![DataPort::default()],
            phase: Phase::Up,
            failed: false,
            probes_back_before: 0,
            probes_dropped: 1,
            probed: Nanos::ZERO,
            base: Some(Base::default()),
            before: SlotCounters::default(),
            excess: 2,
            watch: Watch::default(),
            connects_until: Nanos::ZERO,
            introductions: 0,
        }
    }

    #[test]
    fn what_a_failed_instance_gives_back_is_carried_by_no_uplink() {
        let mut of = attached();
        read(&mut of, 1000, 100, 60);
        let carried = of.ports[0].newly_carried(0, false);
        assert_eq!((carried.received, carried.sent_or_dropped), (100, 60));
        // It has failed, and goes on with what it had.
        read(&mut of, 1010, 103, 100);
        let carried = of.ports[0].newly_carried(0, true);
        assert_eq!((carried.received, carried.sent_or_dropped), (3, 0));
    }

    #[test]
    fn probes_that_were_lost_with_the_switch_are_not_taken_for_packets_later() {
        let mut of = attached();
        read(&mut of, 1000, 100, 95);
        // Three probes: one came back, one was lost with the switch, one waits to be sent.
        of.ports[0].probes = 3;
        let counted = SlotCounters {
            to_packets: 98,
            back_packets: 94,
            lost: 4,
            ..SlotCounters::default()
        };
        of.begin_anew(counted, 1, 1);
        // The new switch gives it seven packets, and the probe that waited.
        read(&mut of, 10, 8, 8);
        let (base, totals) = (of.base.unwrap(), of.totals(2));
        assert_eq!(
            totals.sent_packets - base.sent_packets - (totals.probes - base.probes),
            7
        );
        assert_eq!(totals.probes_back - base.probes_back, 1);
        assert_eq!((of.before, of.excess, of.probes_dropped), (counted, 0, 0));
        assert_eq!(of.ports[0].newly_carried(1, false).received, 7);
    }
}
