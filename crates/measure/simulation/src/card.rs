//! A card that forwards by rules, for the event model: the live driver's steering and the fake switch of its
//! tests.
//!
//! Every packet is a frame that matches the switch's current rules. The effects of the card follow from where
//! and when frames arrive; none is assumed.

use std::collections::{BTreeMap, VecDeque};

use model::{FlowKey, Nanos, Slot, Timeouts, protocol};
use openflow::Field;
use openflow_switch::{
    FakeNic, Faults, InstanceTerms, Part, ServiceRules, Settings, Side, SlotFigures, Spread, SteeredNic,
    Steering,
};
use packet::TcpFlags;
use packet::build::{Frame, Network, Transport};
use scheduling::{Metric, Scheduler};

use crate::Error;
use crate::card_keys::Card;
use crate::control::{ControlLoop, SERVICE, scheduler_of};
use crate::load::key_of;
use crate::outcome::{Interval, Recorder};
use crate::scenario::Scenario;
use crate::time::seconds;

/// The card's clock at the start of the scenario: by then it is connected and its first rules are written.
const START_TIME: Nanos = Nanos::from_secs(2);
/// The live driver's maximum sleep.
const MAX_SLEEP: Nanos = Nanos::from_micros(500);
/// A packet in transit for longer than this is lost.
const PACKET_TIMEOUT: Nanos = Nanos::from_secs(5);
/// Ports of the card.
const UPLINK: u32 = 1;
const MONITOR: u32 = 2;
const FIRST_INSTANCE: u32 = 16;

impl Card {
    fn faults(&self) -> Faults {
        let (low, high) = self.port_us.bounds();
        let ns = |value: f64, unit: f64| Nanos((value * unit).round() as u64);
        Faults {
            rule_limit: self.places,
            refuse_one_in: self.refuse_one_in,
            knows_no_bundles: false,
            garbage_one_in: self.garbage_one_in,
            packet_in_flood: 0,
            control_delay: ns(self.control_ms, 1e6),
            rule_time: ns(self.rules_per_s.map_or(0.0, f64::recip), 1e9),
            reorders: self.reorders,
            round: ns(self.round_ms, 1e6),
            port_delay: (ns(low, 1e3), ns(high, 1e3)),
            counter_lag: ns(self.counters_ms, 1e6),
        }
    }

    fn settings(&self) -> Settings {
        Settings {
            setup: self.setup,
            rule_limit: self.rules,
            statistics_every: Nanos::from_millis(200),
            idle: Timeouts::all(seconds(self.idle_s)),
            ..Settings::default()
        }
    }

    fn service(&self, fit: f32) -> ServiceRules {
        let bits = self.buckets.ilog2() as u8;
        let of_port = bits / 2;
        ServiceRules {
            id: SERVICE,
            sides: vec![Side {
                uplink: 0,
                port: UPLINK,
                data_port: 0,
                is_answering: false,
                fields: vec![Field::eth_type(0x0800), Field::ip_proto(protocol::TCP)],
            }],
            spread: Spread {
                parts: vec![(Part::SourcePort, of_port), (Part::SourceAddress, bits - of_port)],
            },
            uplinks: vec![UPLINK],
            fit,
        }
    }
}

/// A packet in transit through the card.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PacketInTransit {
    /// The number of its flow.
    pub(crate) number: u64,
    pub(crate) flow: Option<u32>,
    pub(crate) source: usize,
    pub(crate) actor: u64,
    /// Send time.
    pub(crate) at: u64,
}

/// The arrivals of a flow's packets.
#[derive(Clone, Copy, Debug)]
struct FlowArrivals {
    slot: Slot,
    /// The highest packet number that arrived.
    newest: u64,
}

/// The card and its results.
pub(crate) struct CardSwitch {
    joined: SteeredNic,
    scheduler: Scheduler,
    limit: Option<f64>,
    turned: Nanos,
    /// Times at which the connection goes down or up.
    changes: VecDeque<(Nanos, bool)>,
    known: BTreeMap<u64, FlowArrivals>,
    passing: BTreeMap<u64, PacketInTransit>,
    next: u64,
    /// Counters of the slot's earlier instances.
    before: BTreeMap<Slot, SlotFigures>,
    counted_from: Nanos,
    mis_steered: u64,
    reordered: u64,
    duplicated: u64,
    lost: u64,
    rules_max: u64,
    /// Sums over samples: flows, and flows without rules.
    flows: f64,
    on_bucket: f64,
}

impl CardSwitch {
    pub(crate) fn new(card: &Card, scenario: &Scenario, seed: u64) -> Result<CardSwitch, Error> {
        let (scheduler, limit) = scheduler_of(scenario)?;
        let services = vec![(card.service(scenario.service.fit), scheduler.clone())];
        let mut joined = SteeredNic::new(
            FakeNic::new(card.faults(), seed ^ 0xca4d, Nanos::ZERO),
            Steering::new(card.settings(), services, MONITOR),
            MONITOR,
        );
        joined.connect(Nanos::ZERO);
        let cuts = card.cut.iter().flat_map(|(at_s, lasts_s)| {
            let from = START_TIME + seconds(*at_s);
            [(from, false), (from + seconds(*lasts_s), true)]
        });
        Ok(CardSwitch {
            joined,
            scheduler,
            limit,
            turned: Nanos::ZERO,
            changes: cuts.collect(),
            known: BTreeMap::new(),
            passing: BTreeMap::new(),
            next: 0,
            before: BTreeMap::new(),
            counted_from: START_TIME + seconds(scenario.warm_up_s),
            mis_steered: 0,
            reordered: 0,
            duplicated: 0,
            lost: 0,
            rules_max: 0,
            flows: 0.0,
            on_bucket: 0.0,
        })
    }

    /// Writes the first rules before the scenario starts.
    pub(crate) fn settle(&mut self) {
        while self.turned < START_TIME {
            self.turn((self.turned + MAX_SLEEP).min(START_TIME));
        }
    }

    // ---- instances -----------------------------------------------------------------------------------------------

    pub(crate) fn attach(&mut self, slot: Slot) {
        let steering = &mut self.joined.steering;
        self.before.insert(slot, steering.slot_figures(slot));
        steering.attach(slot, SERVICE, vec![FIRST_INSTANCE + u32::from(slot.0)]);
    }

    /// Removes the instance; returns its number of flows.
    pub(crate) fn remove(&mut self, slot: Slot) -> u64 {
        let flows = self.joined.steering.slot_figures(slot).live_flows;
        self.joined.steering.remove(slot, self.turned);
        self.forget_pins(slot);
        flows
    }

    /// Unpins its flows; returns their number.
    pub(crate) fn unpin(&mut self, slot: Slot) -> u64 {
        let flows = self.joined.steering.slot_figures(slot).live_flows;
        self.joined.steering.purge(|_, of| of == slot);
        self.forget_pins(slot);
        flows
    }

    fn forget_pins(&mut self, slot: Slot) {
        for known in self.known.values_mut().filter(|known| known.slot == slot) {
            known.slot = Slot::NONE;
        }
    }

    /// Live flows as reported by the driver, and flows given to the instance.
    pub(crate) fn flows_of(&self, slot: Slot, drains: bool) -> (u64, u64) {
        let steering = &self.joined.steering;
        let figures = steering.slot_figures(slot);
        let before = self.before.get(&slot).copied().unwrap_or_default();
        // A draining instance is not empty while it may still receive flows.
        let may_get = u64::from(drains && steering.may_get_flows(slot));
        let fresh = figures.new_flows.saturating_sub(before.new_flows);
        (figures.live_flows.max(may_get), fresh)
    }

    /// Passes the table and each instance's rates from the collector to the steering.
    pub(crate) fn set_terms(&mut self, control: &ControlLoop) {
        let metric = self.scheduler.settings().metric;
        let service = control.collector.service(SERVICE);
        let capacity_pps =
            (control.plan.instances().next()).map_or(0.0, |(_, row)| f64::from(row.capacity_pps));
        let flow_load = service.expected(metric, capacity_pps) as f32;
        self.joined.steering.set_flow_load(SERVICE, flow_load);
        for (slot, row) in control.plan.instances() {
            let load = match (metric, control.collector.slot(slot)) {
                (Metric::Flows, _) => self.joined.steering.slot_figures(slot).live_flows as f64,
                (_, Some(rates)) => rates.load(metric, &service, f64::from(row.capacity_pps)),
                (_, None) => 0.0,
            };
            let terms = InstanceTerms {
                place: row.place,
                takes_flows: row.state.takes_new_flows(),
                capacity: self.limit.map_or(row.capacity_pps, |limit| limit as f32),
                load: load as f32,
                weight: row.weight,
                active_since: START_TIME + row.active_since.since(control.zero),
            };
            self.joined.steering.set_terms(slot, terms);
        }
    }

    // ---- packets -------------------------------------------------------------------------------------------------

    /// A packet of a flow arrives.
    pub(crate) fn send(&mut self, packet: PacketInTransit) {
        let id = self.next;
        self.next += 1;
        self.known.entry(packet.number).or_insert(FlowArrivals {
            slot: Slot::NONE,
            newest: 0,
        });
        self.passing.insert(id, packet);
        if let Some(frame) = frame_of(packet.number, id) {
            self.joined
                .nic
                .packet(UPLINK, &frame, START_TIME + Nanos(packet.at));
        }
    }

    /// The flow has ended.
    pub(crate) fn forget(&mut self, number: u64) {
        self.known.remove(&number);
    }

    /// When the card's next turn is due, in scenario time.
    pub(crate) fn next_at(&self) -> u64 {
        let sleep = self.turned + MAX_SLEEP;
        let next = self.joined.nic.next_delivery();
        let next = next.map_or(sleep, |at| at.min(sleep));
        // Time always advances, whatever is due.
        next.max(Nanos(self.turned.0 + 1)).since(START_TIME).0
    }

    /// A turn at a scenario time; returns arrived packets with their instance.
    pub(crate) fn turn_at(&mut self, at: u64) -> Vec<(Slot, PacketInTransit)> {
        self.turn(START_TIME + Nanos(at))
    }

    fn turn(&mut self, now: Nanos) -> Vec<(Slot, PacketInTransit)> {
        while let Some((at, comes)) = self.changes.front().copied()
            && at <= now
        {
            self.changes.pop_front();
            if comes {
                self.joined.connect(now);
            } else {
                self.joined.cut(now);
            }
        }
        self.turned = now;
        let mut arrived = Vec::new();
        for delivered in self.joined.turn(now) {
            let Some(slot) = delivered.port.checked_sub(FIRST_INSTANCE) else {
                continue;
            };
            let Some(id) = id_of(&delivered.frame) else {
                continue;
            };
            let slot = Slot(slot as u16);
            match self.passing.remove(&id) {
                Some(packet) => {
                    self.classify(slot, id, &packet);
                    arrived.push((slot, packet));
                }
                None => self.duplicated += u64::from(now >= self.counted_from),
            }
        }
        arrived
    }

    /// Checks that a packet arrived at its flow's instance, and in order.
    fn classify(&mut self, slot: Slot, id: u64, packet: &PacketInTransit) {
        let is_counted = START_TIME + Nanos(packet.at) >= self.counted_from;
        let Some(known) = self.known.get_mut(&packet.number) else {
            return;
        };
        if known.slot == Slot::NONE {
            known.slot = slot;
        }
        self.mis_steered += u64::from(is_counted && known.slot != slot);
        self.reordered += u64::from(is_counted && known.newest > id);
        known.newest = known.newest.max(id);
    }

    // ---- figures -------------------------------------------------------------------------------------------------

    /// The card's losses since the last call.
    pub(crate) fn count(&mut self, interval: &mut Interval) {
        let is_lost = |packet: &PacketInTransit| self.turned > START_TIME + Nanos(packet.at) + PACKET_TIMEOUT;
        let mut lost = 0_u64;
        while let Some(first) = self.passing.first_entry().filter(|first| is_lost(first.get())) {
            lost += u64::from(START_TIME + Nanos(first.get().at) >= self.counted_from);
            first.remove();
        }
        interval.lost_unserved += lost as f64;
        self.lost += lost;
        if self.turned < self.counted_from {
            return;
        }
        let rules = self.joined.steering.figures().rules;
        let flows = self.joined.steering.flow_count() as u64;
        self.rules_max = self.rules_max.max(rules);
        self.flows += flows as f64;
        self.on_bucket += flows.saturating_sub(rules) as f64;
    }

    pub(crate) fn record_result(&self, recorder: &mut Recorder) {
        let figures = self.joined.steering.figures();
        let share = |part: f64, of: f64| if of > 0.0 { part / of } else { 0.0 };
        for (name, value) in [
            ("card_mis_steered_packets", self.mis_steered as f64),
            ("card_reordered_packets", self.reordered as f64),
            ("card_duplicated_packets", self.duplicated as f64),
            ("card_lost_packets", self.lost as f64),
            ("card_on_bucket_share", share(self.on_bucket, self.flows)),
            ("card_rules_max", self.rules_max as f64),
            ("card_refused_rules", figures.refused as f64),
            ("card_moved_buckets", figures.moved_buckets as f64),
            ("card_given_up_moves", figures.given_up_moves as f64),
        ] {
            recorder.extra.insert(name.to_owned(), value);
        }
    }
}

/// A frame of that flow that carries a packet's number.
fn frame_of(number: u64, id: u64) -> Option<Vec<u8>> {
    let FlowKey::V4(key) = key_of(number).0 else {
        return None;
    };
    let network = Network::V4 {
        src: key.a,
        dst: key.b,
        dscp: 0,
        ttl: 64,
        identification: 0,
        options: &[],
    };
    let frame = Frame {
        dst_mac: [2, 0, 0, 0, 0, 1],
        src_mac: [2, 0, 0, 0, 0, 2],
        tags: &[],
        network,
        transport: Transport::Tcp {
            src_port: key.a_port,
            dst_port: key.b_port,
            sequence: 0,
            acknowledgement: 0,
            flags: TcpFlags(TcpFlags::ACK),
            options: &[],
        },
        payload: &id.to_be_bytes(),
    };
    frame.to_vec().ok()
}

/// The number in a frame, at its end.
fn id_of(frame: &[u8]) -> Option<u64> {
    frame.last_chunk().copied().map(u64::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_carries_its_flow_and_number() {
        let frame = frame_of(7, 1 << 40).unwrap();
        assert_eq!(id_of(&frame), Some(1 << 40));
        let packet::Parsed::Flow(info) = packet::parse(&frame) else {
            unreachable!("it is TCP over IPv4");
        };
        assert_eq!(info.key, key_of(7).0);
    }
}
