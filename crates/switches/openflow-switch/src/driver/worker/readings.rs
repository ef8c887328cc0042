//! The counters of ports, as what each instance and each uplink has had.

use std::collections::BTreeMap;
use std::sync::Arc;

use flow_table::AttachCounts;
use model::{DropReason, InstanceState, Nanos, Slot};
use openflow::{Message, MultipartRequest, PortStats, port};
use switch::{Resumed, SwitchEvent};

use super::{Base, DataPort, Phase, Worker};
use crate::Family;
use crate::driver::counters::{Asked, Carried, PortCounters};
use crate::driver::offloaded::OffloadedFlows;
use crate::driver::silence::Silence;
use crate::driver::{DATA_PORTS, FIRST_INSTANCE, FIRST_UPLINK, lock};
use crate::steering::Fallback;

/// How often the counters of ports are read. A reading of all takes the switch less than a millisecond.
pub(super) const PORTS_EVERY: Nanos = Nanos::from_millis(10);
/// How often it is looked which flows the hardware has. A list of ten thousand takes the switch some ten
/// milliseconds.
pub(super) const OFFLOADED_EVERY: Nanos = Nanos::from_secs(1);
/// After this long without an answer they are asked for again.
pub(super) const PORTS_PATIENCE: Nanos = Nanos::from_millis(500);
/// How long probes that an instance has taken may be on their way back. A function need not give them back.
pub(super) const PROBE_PATIENCE: Nanos = Nanos::from_millis(100);
/// How long probes may wait for their place in an instance's ring. One that no ring took would be missed for good.
pub(super) const PROBE_LIMIT: Nanos = Nanos::from_secs(2);
/// Probes that an instance which was taken over gets at most, and how far apart, until one comes back. Who has not
/// given one back is not judged by its silence; one that keeps them for good gets no more than these.
pub(super) const INTRODUCTIONS: u8 = 5;
pub(super) const INTRODUCTION_EVERY: Nanos = Nanos::from_millis(100);

/// Which flows the hardware has.
pub(super) struct Hardware {
    pub(super) flows: OffloadedFlows,
    pub(super) is_asked: bool,
    pub(super) ask_at: Nanos,
}

/// What the ports of the bridge have counted.
pub(super) struct Ports {
    pub(super) uplinks: Vec<PortCounters>,
    /// The ports for instances, by slot: they were made at the start, and each instance of a slot has them.
    pub(super) pool: BTreeMap<Slot, Vec<PortCounters>>,
    /// What instances have had of each uplink.
    pub(super) carried: Vec<Carried>,
    /// The question for the counters, and when it was asked.
    pub(super) asked: Option<(u32, Nanos)>,
    pub(super) ask_at: Nanos,
    pub(super) found: Vec<PortStats>,
}

impl Worker {
    pub(super) fn take_offloaded(&mut self, now: Nanos) {
        while let Some(found) = self.hardware.flows.found() {
            self.hardware.is_asked = false;
            self.steering.set_offloaded(found.flows.as_deref());
            if let Some(packets) = found.invalid_packets {
                self.account.note_invalid(packets, now);
            }
        }
    }

    pub(super) fn ask_ports(&mut self, now: Nanos) {
        if let Some((_, since)) = self.ports.asked
            && now.since(since) < PORTS_PATIENCE
        {
            return;
        }
        if now < self.ports.ask_at {
            return;
        }
        if let Some(connection) = self.switch.connection.connection() {
            let ask = Message::MultipartRequest(MultipartRequest::Ports(port::ANY));
            if let Ok(xid) = connection.send(&ask) {
                self.ports.asked = Some((xid, now));
                self.ports.ask_at = now + PORTS_EVERY;
                self.ports.found.clear();
            }
        }
    }

    pub(super) fn ask_offloaded(&mut self, now: Nanos) {
        if !self.hardware.is_asked && now >= self.hardware.ask_at {
            self.hardware.is_asked = true;
            self.hardware.ask_at = now + OFFLOADED_EVERY;
            self.hardware.flows.ask();
        }
    }

    pub(super) fn ports_counted(&mut self, xid: u32, ports: Vec<PortStats>, more: bool, now: Nanos) {
        let Some((_, asked)) = self.ports.asked.filter(|(asked, _)| *asked == xid) else {
            return;
        };
        self.ports.found.extend(ports);
        if more {
            return;
        }
        self.ports.asked = None;
        let at = Asked {
            asked,
            answered: clock::monotonic(),
        };
        let found = std::mem::take(&mut self.ports.found);
        let is_anew = |(index, counters): (u32, &PortCounters)| {
            let of_port = found.iter().find(|stats| stats.port == FIRST_UPLINK + index);
            of_port.is_some_and(|stats| counters.was_made_anew(stats, at))
        };
        if (0..).zip(&self.ports.uplinks).any(is_anew) {
            self.note_restart(now);
        }
        for stats in found {
            let uplink = stats.port.checked_sub(FIRST_UPLINK).map(|index| index as usize);
            if let Some(counters) = uplink.and_then(|index| self.ports.uplinks.get_mut(index)) {
                counters.read(&stats, at);
            } else if let Some(place) = stats.port.checked_sub(FIRST_INSTANCE) {
                let slot = Slot((place / DATA_PORTS) as u16);
                let number = (place % DATA_PORTS) as usize;
                let Some(counters) = self.ports.pool.get_mut(&slot).and_then(|of| of.get_mut(number)) else {
                    continue;
                };
                counters.read(&stats, at);
                if let Some(attachment) = self.attachments.get_mut(&slot)
                    && let Some(port) = attachment.ports.get_mut(number)
                {
                    port.counters = *counters;
                }
            }
        }
        if self.adoption.is_some() {
            if self.steering.figures().reconciled > 0 {
                self.begin_to_count(now);
            }
            return;
        }
        self.count_instances(now);
        self.count_switch(now);
        self.let_go(now);
        self.settle_unseen(now);
    }

    /// Once the rules of an earlier run are read, says what is known from them.
    pub(super) fn note_taken_over(&mut self, now: Nanos) {
        let is_read = self.steering.figures().reconciled > 0;
        let Some(waiting) = self.adoption.as_mut().filter(|of| is_read && !of.is_known) else {
            return;
        };
        waiting.is_known = true;
        let live = |slot: &Slot| (*slot, self.steering.slot_figures(*slot).live_flows);
        let live: BTreeMap<Slot, u64> = (self.ports.pool.keys().map(live))
            .filter(|(_, flows)| *flows > 0)
            .collect();
        let flows: u64 = live.values().sum();
        let awaited = self.ports.pool.keys();
        let instances = awaited.filter(|slot| self.steering.is_awaited(**slot)).count();
        tracing::info!(flows, instances, "taken over from the rules of an earlier run");
        lock(&self.above.shared).resumed = Some(Resumed {
            taken_at: waiting.since,
            attached_at: now,
            flows: AttachCounts {
                flows,
                ..AttachCounts::default()
            },
            live,
            instances,
            uplinks: self.ports.uplinks.len(),
            ..Resumed::default()
        });
    }

    /// What an earlier run left is taken over: what its ports have counted is not this run's.
    pub(super) fn begin_to_count(&mut self, now: Nanos) {
        self.ports.uplinks.iter_mut().for_each(PortCounters::forget);
        let pooled = self.ports.pool.values_mut().flatten();
        pooled.for_each(PortCounters::forget);
        self.account.skew = Some(u64::MAX);
        for (slot, service, until) in self.adoption.take().map(|of| of.attach).unwrap_or_default() {
            self.attach(slot, service, until, now);
        }
    }

    /// What was read, as what each instance was given and gave back. Those that have taken probes are attached.
    pub(super) fn count_instances(&mut self, now: Nanos) {
        let mut attached = Vec::new();
        let mut probes = Vec::new();
        let mut stalled = Vec::new();
        let shared = Arc::clone(&self.above.shared);
        let mut shared = lock(&shared);
        let counters = &mut shared.reading;
        for (slot, attachment) in &mut self.attachments {
            let figures = self.steering.slot_figures(*slot);
            let totals = attachment.totals(figures.probes_back);
            if let Phase::Probing { until, taken } = attachment.phase
                && attachment.base.is_none()
            {
                if !self.steering.is_in_force(*slot) {
                    continue;
                }
                let is_taken = |port: &DataPort| port.counters.sent_packets.total() > 0;
                if !attachment.ports.iter().all(is_taken) {
                    for (number, port) in attachment.ports.iter_mut().enumerate() {
                        if !is_taken(port) {
                            port.probes += 1;
                            attachment.probed = now;
                            probes.push((*slot, number as u8));
                        }
                    }
                    continue;
                }
                let (since, last) = taken.unwrap_or((now, Base::default()));
                attachment.phase = Phase::Probing {
                    until,
                    taken: Some((since, totals)),
                };
                // None is under way any more that would be taken for a packet. What the port's last instance had
                // after its counters could be read for the last time is in them, too: so they have to stand still.
                let are_sent = totals == last && totals.sent_packets + totals.dropped >= totals.probes;
                let are_back = totals.received_packets >= totals.sent_packets
                    && totals.probes_back >= totals.received_packets;
                let waited = now.since(since);
                if !are_sent && waited < PROBE_LIMIT || !are_back && waited < PROBE_PATIENCE {
                    continue;
                }
                attachment.base = Some(Base {
                    // One may have come back after the ports were read.
                    probes_back: totals.probes_back.min(totals.received_packets),
                    ..totals
                });
                attachment.ports.iter_mut().for_each(DataPort::note_base);
                attachment.phase = Phase::Up;
                attached.push(*slot);
            }
            if matches!(attachment.phase, Phase::Probing { .. }) && self.steering.is_in_force(*slot) {
                // It has been there all the time.
                attachment.phase = Phase::Up;
                attached.push(*slot);
            }
            let Some(base) = attachment.base else { continue };
            let state = self.wanted.plan.slot(*slot).map(|row| row.state);
            let serves = matches!(state, Some(InstanceState::Active | InstanceState::Draining))
                && attachment.phase == Phase::Up
                && !attachment.failed;
            if totals.probes_back > 0 {
                attachment.introductions = 0;
            } else if attachment.introductions > 0
                && serves
                && now.since(attachment.probed) >= INTRODUCTION_EVERY
                && let Some(port) = attachment.ports.first_mut()
            {
                attachment.introductions -= 1;
                port.probes += 1;
                attachment.probed = now;
                probes.push((*slot, 0));
            }
            // Who does not give probes back cannot be asked. Who has to connect again could not get them: its port
            // would count them as dropped packets.
            let is_left = attachment.ports.iter().any(|port| port.counters.is_left());
            let is_unconnected = attachment.ports.iter().any(|port| port.counters.is_unconnected());
            let connects = is_left && now < attachment.connects_until;
            let may_be_silent = !serves || totals.probes_back == 0 || connects;
            let given = totals.sent_packets + totals.dropped;
            let service = (self.wanted.plan.services.iter()).find(|of| of.id == attachment.service);
            let stall_after = service.map_or(Nanos::ZERO, |of| of.stall_after);
            let back = totals.received_packets;
            match (attachment.watch).look(given, back, may_be_silent, stall_after, now) {
                Silence::None => {}
                // Nobody is there who could take a probe.
                Silence::Ask if is_unconnected => {}
                Silence::Ask => {
                    if let Some(port) = attachment.ports.first_mut() {
                        port.probes += 1;
                        attachment.probed = now;
                        probes.push((*slot, 0));
                    }
                }
                Silence::Stalled(silent) => stalled.push((*slot, silent)),
            }
            // A probe may be in the port's counter of what came back before it is here.
            let under_way = totals.probes.saturating_sub(totals.probes_back);
            let is_fresh = now.since(attachment.probed) < PROBE_LIMIT;
            let probes_back = totals.probes_back + if is_fresh { under_way } else { 0 };
            let back_later = probes_back.saturating_sub(base.probes_back);
            for (port, uplink) in (attachment.ports.iter_mut()).zip(service.map_or(&[][..], |of| &of.uplinks))
            {
                if let Some(carried) = self.ports.carried.get_mut(usize::from(uplink.0)) {
                    *carried += port.newly_carried(back_later, attachment.failed);
                }
            }
            let Some(place) = counters.slots.get_mut(slot.index()) else {
                continue;
            };
            let before = attachment.before;
            let since = |now: u64, base: u64| now.saturating_sub(base);
            if is_unconnected || attachment.failed {
                // The port has dropped them, or has lost them with its peer: the switch does not say which.
                let gone = since(totals.probes - base.probes, totals.probes_back - base.probes_back);
                let dropped = since(totals.dropped, base.dropped);
                attachment.probes_dropped = attachment.probes_dropped.max(gone.min(dropped));
            }
            let probes_dropped = attachment.probes_dropped;
            let probes_later = since(totals.probes, base.probes + probes_dropped);
            let to = since(since(totals.sent_packets, base.sent_packets), probes_later);
            let back = since(since(totals.received_packets, base.received_packets), back_later);
            // A packet that came back is read before those that went out are: only what stays too much was made
            // there.
            let excess = back.saturating_sub(to);
            let originated = excess.min(attachment.excess);
            attachment.excess = excess;
            let offered_before = place.to_packets + place.ring_drops;
            let bytes_before = place.to_bytes;
            place.to_packets = place.to_packets.max(before.to_packets + to);
            place.to_bytes = place
                .to_bytes
                .max(before.to_bytes + since(totals.sent_bytes, base.sent_bytes));
            place.back_packets = place.back_packets.max(before.back_packets + back);
            place.back_bytes = place
                .back_bytes
                .max(before.back_bytes + since(totals.received_bytes, base.received_bytes));
            place.ring_drops = place
                .ring_drops
                .max(before.ring_drops + since(totals.dropped, base.dropped + probes_dropped));
            place.originated = place.originated.max(before.originated + originated);
            place.consumed = before.consumed + totals.probes_back.saturating_sub(base.probes_back);
            let offered = (place.to_packets + place.ring_drops).saturating_sub(offered_before);
            if let Some(service) = counters.services.get_mut(attachment.service.index()) {
                service.offered_packets += offered;
                service.offered_bytes += place.to_bytes.saturating_sub(bytes_before);
            }
        }
        drop(shared);
        for (slot, number) in probes {
            if !self.steering.probe(slot, number)
                && let Some(attachment) = self.attachments.get_mut(&slot)
                && let Some(port) = attachment.ports.get_mut(usize::from(number))
            {
                // It was not sent.
                port.probes -= 1;
            }
        }
        for (slot, silent) in stalled {
            self.tell(SwitchEvent::Stalled { slot, silent });
        }
        for slot in attached {
            self.tell(SwitchEvent::Attached {
                slot,
                peer: format!("a port of {}", self.bridge),
            });
        }
        self.count_flows();
    }

    /// How many flows each instance has. One that drains and may still be given some is not empty, nor is one whose
    /// flows may still come to it although they were purged.
    pub(super) fn count_flows(&mut self) {
        let shared = Arc::clone(&self.above.shared);
        let mut shared = lock(&shared);
        for slot in self.attachments.keys() {
            let figures = self.steering.slot_figures(*slot);
            let drains =
                (self.wanted.plan.slot(*slot)).is_some_and(|row| row.state == InstanceState::Draining);
            let may_get =
                drains && self.steering.may_get_flows(*slot) || self.wanted.purged.contains_key(slot);
            if let Some(place) = shared.reading.slots.get_mut(slot.index()) {
                place.live_flows = figures.live_flows.max(u64::from(may_get));
                place.new_flows = place.new_flows.max(figures.new_flows);
            }
        }
    }

    pub(super) fn count_switch(&mut self, now: Nanos) {
        let figures = self.steering.figures();
        let mut shared = lock(&self.above.shared);
        let counters = &mut shared.reading;
        for (uplink, (sum, port)) in
            (FIRST_UPLINK..).zip(counters.uplinks.iter_mut().zip(&self.ports.uplinks))
        {
            let carried = self.ports.carried.get((uplink - FIRST_UPLINK) as usize);
            let mut carried = carried.copied().unwrap_or_default();
            for (fallback, packets) in self.steering.fallback_packets() {
                carried.received += packets * u64::from(fallback.port == uplink);
                carried.sent_or_dropped += packets * u64::from(fallback.to == Some(uplink));
            }
            let (mut received, sent) = port.carried(carried);
            if uplink == FIRST_UPLINK {
                received = received.saturating_add_signed(self.account.skewed);
            }
            sum.received_packets = sum.received_packets.max(received);
            sum.received_bytes = port.received_bytes.total();
            sum.sent_packets = sum.sent_packets.max(sent);
            sum.sent_bytes = port.sent_bytes.total();
            sum.dropped = port.dropped.total();
        }
        let full_rings = counters.slots.iter().map(|slot| slot.ring_drops).sum();
        let full_uplinks = counters.uplinks.iter().map(|uplink| uplink.dropped).sum();
        let met = |is_meant: fn(Fallback) -> bool| -> u64 {
            let of = self.steering.fallback_packets();
            of.filter(|(fallback, _)| is_meant(*fallback))
                .map(|(_, packets)| packets)
                .sum()
        };
        let unmatched = met(|of| of.to.is_none() && of.family != Family::Other);
        let other = met(|of| of.to.is_none() && of.family == Family::Other);
        for (reason, packets) in [
            (DropReason::InstanceRingFull, full_rings),
            (DropReason::UplinkRingFull, full_uplinks),
            (DropReason::Unmatched, unmatched),
            (DropReason::Other, other),
            (
                DropReason::NoInstance,
                figures.unserved + self.account.before_rules,
            ),
            (DropReason::HandOffFull, figures.inject_full),
        ] {
            if let Some(drops) = counters.drops.get_mut(reason.index()) {
                *drops = packets;
            }
        }
        if let Some(worker) = counters.workers.first_mut() {
            worker.passed = met(|of| of.to.is_some());
            worker.received = counters
                .uplinks
                .iter()
                .map(|uplink| uplink.received_packets)
                .sum();
        }
        counters.at = now;
    }
}
