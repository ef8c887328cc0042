//! What every driver must do, as a suite: a driver gives a [`Bed`], which is a switch with a network before it and
//! instances behind it, and calls [`run`]. Of what a driver need not be able to do, the suite tests the ability or
//! its refusal.
#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "what goes wrong here fails a driver's test"
)]

mod blocks;
mod chains;
mod content;
mod optional;
mod plans;
mod sharing;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use model::{
    FlowKey, Generation, InstanceId, InstanceState, Match, Nanos, PlaceId, ServiceId, Slot, Tuple, protocol,
};
use packet::Parsed;
use scheduling::Scheduler;

use crate::{
    Change, Edit, Edits, FlowFilter, FlowRow, Plan, PortSpec, ServicePlan, SlotPlan, Switch, SwitchError,
    SwitchEvent, SwitchReading, SwitchRequest,
};

/// How long the suite waits for something that must come.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long it waits before it looks again whether flows are shared.
const PAUSE: Duration = Duration::from_millis(100);
/// The service of a bed.
pub const SERVICE: ServiceId = ServiceId(0);
/// The slots that a bed must have.
pub const SLOTS: [Slot; 3] = [Slot(0), Slot(1), Slot(2)];
/// The UDP port of the service.
const PORT: u16 = 80;
/// Flows of a case.
const FLOWS: u32 = 60;

/// A switch under test with one uplink.
pub trait Bed {
    /// The switch.
    fn switch(&mut self) -> &mut dyn Switch;

    /// Starts the instance of a slot, one of [`SLOTS`], and says where its port is.
    fn start_instance(&mut self, slot: Slot) -> PortSpec;

    /// Ends the instance of a slot as a crash does.
    fn kill_instance(&mut self, slot: Slot);

    /// Packets come from the network.
    fn offer(&mut self, packets: &[Tuple]);

    /// What the instance was given since the last call. It keeps them until [`Bed::give_back`].
    fn take(&mut self, slot: Slot) -> Vec<Tuple>;

    /// The instance gives packets back. Where instances are the ends of connections
    /// ([`Capabilities::returns`](crate::Capabilities::returns) is false), it answers each: an answer has the packet's
    /// addresses the other way around.
    fn give_back(&mut self, slot: Slot, packets: &[Tuple]);

    /// What came back to the network since the last call, answers with the addresses of what they answer.
    fn received(&mut self) -> Vec<Tuple>;

    /// Lets a moment pass. Gives the time, as [`Switch::poll`] takes it.
    fn wait(&mut self) -> Nanos;
}

/// The plan that a bed starts with, for drivers that must know services beforehand: one service of the UDP packets to
/// one port, in both directions.
pub fn service() -> ServicePlan {
    ServicePlan {
        matches: Match {
            protocol: Some(protocol::UDP),
            dst_port: Some(PORT..=PORT),
            ..Match::default()
        },
        ..ServicePlan::of_all(SERVICE, Scheduler::from_name("round-robin").unwrap())
    }
}

/// A UDP packet as bytes. To the port of GTP-U it carries a UDP packet from a host whose number is the upper byte of its
/// source port, and to that of ESP in UDP an association of that number.
pub fn frame_of(tuple: &Tuple) -> Vec<u8> {
    let udp = |src, dst, payload: &[u8]| packet::build::Frame::udp(src, dst, payload)?.to_vec();
    let [number, _] = tuple.src_port.to_be_bytes();
    let payload = match tuple.dst_port {
        content::GTP_U => {
            let host = SocketAddr::from(([10, 200, 0, number], 5000));
            let inner = udp(host, SocketAddr::from(([198, 51, 100, 1], 53)), b"inside").unwrap();
            let inner = &inner[14..];
            // A user packet without optional fields. Each tunnel has an identifier of its own.
            let mut gtp = vec![0x30, 0xff, 0, inner.len() as u8];
            gtp.extend(u32::from(tuple.src_port).to_be_bytes());
            [gtp.as_slice(), inner].concat()
        }
        content::ESP_IN_UDP => [&[0, 0, 0x10, number][..], b"sequence number and so on"].concat(),
        _ => b"eighteen bytes fit".to_vec(),
    };
    let (src, dst) = (
        SocketAddr::new(tuple.src, tuple.src_port),
        SocketAddr::new(tuple.dst, tuple.dst_port),
    );
    udp(src, dst, &payload).unwrap()
}

/// The addresses of a packet of the suite; [`None`] for any other one, such as a probe.
pub fn tuple_of(frame: &[u8]) -> Option<Tuple> {
    match packet::parse(frame) {
        Parsed::Flow(info) => Some(info.key.tuple(info.direction)),
        _ => None,
    }
}

/// A case: its name, and what it does.
type Case = (&'static str, fn(&mut Conforming<'_>));

/// The cases.
const CASES: &[Case] = &[
    (
        "plans are acknowledged by their generation",
        plans_are_acknowledged,
    ),
    ("edits are done or refused", edits_are_done_or_refused),
    (
        "plans are carried out or refused",
        plans::that_ask_for_more_are_refused,
    ),
    ("flows are shared, pinned and returned", flows_are_pinned),
    (
        "flows of a client share an instance",
        sharing::flows_of_a_client_share_an_instance,
    ),
    (
        "flows inside of tunnels are pinned",
        content::flows_inside_are_pinned,
    ),
    (
        "security associations are pinned",
        content::associations_are_pinned,
    ),
    (
        "flows pass the services of a chain there and back",
        chains::flows_pass_each_service,
    ),
    (
        "packets to external addresses go by port blocks",
        blocks::packets_go_to_the_owner_of_their_port,
    ),
    (
        "a drain takes no new flows and keeps its own",
        a_drain_keeps_its_flows,
    ),
    (
        "a slot is free once its instance is detached",
        a_slot_is_used_again,
    ),
    (
        "the flows of a failed instance move",
        flows_of_a_failed_instance_move,
    ),
    ("flows are listed and purged", flows_are_listed_and_purged),
    (
        "what a driver cannot do it refuses",
        optional::works_or_is_refused,
    ),
    (
        "what a driver does not see stays 0",
        optional::what_is_not_seen_stays_0,
    ),
];

/// Runs every case, each on a bed of its own.
///
/// # Panics
/// Where the driver does not keep the contract; the name of the case is said.
pub fn run<B: Bed>(mut bed: impl FnMut() -> B) {
    for (name, case) in CASES {
        eprintln!("case: {name}");
        let mut bed = bed();
        let mut conforming = Conforming::new(&mut bed);
        case(&mut conforming);
        conforming.bed.switch().stop();
    }
}

/// A bed in a case, and what has been asked of its switch.
struct Conforming<'a> {
    bed: &'a mut dyn Bed,
    plan: Plan,
    reading: SwitchReading,
    events: Vec<SwitchEvent>,
    /// What each instance was given, in all.
    given: BTreeMap<Slot, Vec<Tuple>>,
}

/// A packet of that flow. Every flow has a pair of hosts of its own.
fn packet_of(flow: u32) -> Tuple {
    let [_, a, b, c] = flow.to_be_bytes();
    Tuple {
        src: IpAddr::V4(Ipv4Addr::new(10, a, b, c)),
        dst: IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
        src_port: 1000 + (flow % 60_000) as u16,
        dst_port: PORT,
        protocol: protocol::UDP,
        vlan: 0,
    }
}

impl<'a> Conforming<'a> {
    fn new(bed: &'a mut dyn Bed) -> Conforming<'a> {
        let mut conforming = Conforming {
            bed,
            plan: Plan {
                services: vec![service()],
                ..Plan::default()
            },
            reading: SwitchReading::new(1, 1, 32),
            events: Vec::new(),
            given: BTreeMap::new(),
        };
        conforming.publish();
        conforming
    }

    fn ask(&mut self, request: SwitchRequest) {
        self.bed.switch().request(request).unwrap();
    }

    fn until(&mut self, what: &str, mut holds: impl FnMut(&mut Conforming<'a>) -> bool) {
        let began = Instant::now();
        loop {
            let now = self.bed.wait();
            self.bed.switch().poll(now, &mut self.events);
            self.bed.switch().read(&mut self.reading);
            for slot in SLOTS {
                let taken = self.bed.take(slot);
                self.given.entry(slot).or_default().extend(taken);
            }
            if holds(self) {
                return;
            }
            assert!(
                began.elapsed() < PATIENCE,
                "not within {PATIENCE:?}: {what}: {:?}",
                self.events
            );
        }
    }

    fn publish(&mut self) {
        self.plan.generation.0 += 1;
        let plan = Arc::new(self.plan.clone());
        self.ask(SwitchRequest::Publish(Arc::clone(&plan)));
        self.until("the plan is acknowledged", |of| {
            of.reading.acknowledged >= plan.generation
        });
    }

    fn set_state(&mut self, slot: Slot, state: Option<InstanceState>) {
        self.set_state_with(slot, state, None);
    }

    fn set_state_with(&mut self, slot: Slot, state: Option<InstanceState>, block: Option<u16>) {
        let service = self.service_of(slot);
        let slots = &mut self.plan.slots;
        slots.resize(slots.len().max(slot.index() + 1), None);
        slots[slot.index()] = state.map(|state| SlotPlan {
            instance: InstanceId(u32::from(slot.0) + 1),
            service,
            place: PlaceId::default(),
            state,
            capacity_pps: 1e6,
            active_since: Nanos::ZERO,
            weight: 256,
            block,
            edits: Edits::default(),
        });
        self.publish();
    }

    /// The service of a slot. Of two, the first has the first slot, and its next one the others.
    fn service_of(&self, slot: Slot) -> ServiceId {
        self.plan.services[0]
            .next
            .filter(|_| slot != SLOTS[0])
            .unwrap_or(SERVICE)
    }

    fn attach(&mut self, slot: Slot) {
        let (port, service) = (self.bed.start_instance(slot), self.service_of(slot));
        self.events.clear();
        self.ask(SwitchRequest::Attach { slot, service, port });
        self.until("the instance is attached", |of| {
            let failed = of
                .events
                .iter()
                .find(|e| matches!(e, SwitchEvent::AttachFailed { .. }));
            assert!(failed.is_none(), "{failed:?}");
            let is_it = |e: &SwitchEvent| matches!(e, SwitchEvent::Attached { slot: s, .. } if *s == slot);
            of.events.iter().any(is_it)
        });
    }

    fn add(&mut self, slot: Slot) {
        self.attach(slot);
        self.set_state(slot, Some(InstanceState::Active));
    }

    /// Takes an instance out of the plan and its port away. Gives how many packets it still held.
    fn remove(&mut self, slot: Slot) -> u64 {
        self.set_state(slot, None);
        self.ask(SwitchRequest::Detach(slot));
        let mut held = None;
        self.until("the instance is detached", |of| {
            held = held.or(of.events.iter().find_map(|e| match e {
                SwitchEvent::Detached { slot: s, outstanding } if *s == slot => Some(*outstanding),
                _ => None,
            }));
            held.is_some()
        });
        self.events.clear();
        held.unwrap()
    }

    /// Sends a packet of each flow. Gives the slot that each came to.
    fn send(&mut self, flows: std::ops::Range<u32>) -> BTreeMap<u32, Slot> {
        self.given.clear();
        let packets: Vec<Tuple> = flows.clone().map(packet_of).collect();
        self.bed.offer(&packets);
        self.until("every packet is at an instance", |of| {
            of.given.values().map(Vec::len).sum::<usize>() >= packets.len()
        });
        let mut at = BTreeMap::new();
        for (slot, given) in &self.given {
            for tuple in given {
                let flow = flows.clone().find(|flow| packet_of(*flow) == *tuple);
                let flow = flow.unwrap_or_else(|| panic!("{tuple} was not sent"));
                assert!(at.insert(flow, *slot).is_none(), "flow {flow} came twice");
            }
        }
        at
    }

    /// Has all instances give back what they were given, and waits for it.
    fn give_all_back(&mut self) {
        let given = std::mem::take(&mut self.given);
        let count: usize = given.values().map(Vec::len).sum();
        for (slot, packets) in &given {
            self.bed.give_back(*slot, packets);
        }
        let mut came = Vec::new();
        self.until("what was given back comes to the network", |of| {
            came.extend(of.bed.received());
            came.len() >= count
        });
        assert_eq!(came.len(), count);
    }

    fn flows(&mut self, filter: FlowFilter, limit: usize) -> (Vec<FlowRow>, bool) {
        self.ask(SwitchRequest::Flows { id: 7, filter, limit });
        let mut found = None;
        self.until("the flows are listed", |of| {
            let listed = of
                .events
                .iter()
                .position(|e| matches!(e, SwitchEvent::Flows { id: 7, .. }));
            if let Some(SwitchEvent::Flows { rows, complete, .. }) = listed.map(|at| of.events.remove(at)) {
                found = Some((rows, complete));
            }
            found.is_some()
        });
        found.unwrap()
    }
}

fn plans_are_acknowledged(of: &mut Conforming<'_>) {
    let before = of.reading.acknowledged;
    assert_eq!(before, Generation(1));
    // Generations need not be consecutive: the publisher chooses them.
    of.plan.generation = Generation(40);
    of.publish();
    assert_eq!(of.reading.acknowledged, Generation(41));
}

fn edits_are_done_or_refused(of: &mut Conforming<'_>) {
    let address = "192.0.2.9".parse().unwrap();
    let edits = [
        Edit::Mac {
            destination: Some([2, 0, 0, 0, 0, 9]),
            source: None,
        },
        Edit::Translate { address, port: None },
        Edit::Tunnel {
            local: address,
            remote: address,
            network: 7,
        },
    ];
    let can = of.bed.switch().capabilities();
    of.add(SLOTS[0]);
    for edit in edits {
        for (to_instance, to_uplink) in [(edit, Edit::None), (Edit::None, edit)] {
            let before = of.plan.clone();
            of.plan.generation.0 += 1;
            let row = of.plan.slots[SLOTS[0].index()].as_mut().unwrap();
            row.edits = Edits {
                to_instance,
                to_uplink,
            };
            let plan = Arc::new(of.plan.clone());
            let asked = of.bed.switch().request(SwitchRequest::Publish(plan));
            let kind = edit.kind().unwrap();
            if can.edits.contains(&kind) {
                asked.unwrap();
                of.until("the plan is acknowledged", |of| {
                    of.reading.acknowledged >= of.plan.generation
                });
            } else {
                let refused = asked.unwrap_err();
                let said = refused.to_string();
                assert!(matches!(refused, SwitchError::Edit { slot, .. } if slot == SLOTS[0]));
                assert!(said.contains("slot 0") && said.contains(kind.name()), "{said}");
                // The plan before stays in force.
                of.plan = before;
            }
        }
    }
    of.send(0..FLOWS);
    assert_eq!(of.reading.acknowledged, of.plan.generation);
    of.give_all_back();
}

fn flows_are_pinned(of: &mut Conforming<'_>) {
    of.add(SLOTS[0]);
    of.add(SLOTS[1]);
    let mut first = BTreeMap::new();
    let began = Instant::now();
    // A switch that shares header bits out, and not flows, gives an instance that came its share after a while.
    loop {
        let begun = first.len() as u32;
        let fresh = of.send(begun..begun + FLOWS);
        of.give_all_back();
        let has_flows = |slot: Slot| fresh.values().any(|of| *of == slot);
        let is_shared = has_flows(SLOTS[0]) && has_flows(SLOTS[1]);
        first.extend(fresh);
        if is_shared {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "one of two instances gets no flow");
        let sent = Instant::now();
        of.until("a while passes", |_| sent.elapsed() > PAUSE);
    }
    let begun = first.len() as u32;
    of.add(SLOTS[2]);
    assert_eq!(of.send(0..begun), first, "an instance that came has moved a flow");
    of.give_all_back();
    let sent = 2 * u64::from(begun);
    of.until("all is counted", |of| {
        of.reading.in_flight() == 0 && of.reading.sent() == sent
    });
    let (offered, originated) = (of.reading.offered(), of.reading.originated());
    let (delivered, dropped) = (of.reading.delivered(), of.reading.dropped());
    assert_eq!(
        offered + originated,
        of.reading.sent() + delivered + dropped,
        "{offered} offered, {originated} originated, {delivered} delivered, {dropped} dropped"
    );
    let can = of.bed.switch().capabilities();
    assert_eq!((originated > 0, delivered > 0), (!can.returns, !can.returns));
    assert_eq!(of.reading.offered(), sent);
    assert_eq!(of.reading.dropped(), 0);
    let to: u64 = of.reading.slots.iter().map(|slot| slot.to_packets).sum();
    assert_eq!(to, sent);
}

fn a_drain_keeps_its_flows(of: &mut Conforming<'_>) {
    of.add(SLOTS[0]);
    of.add(SLOTS[1]);
    let first = of.send(0..FLOWS);
    of.give_all_back();
    of.set_state(SLOTS[0], Some(InstanceState::Draining));
    assert_eq!(of.send(0..FLOWS), first, "a drain has moved a flow");
    of.give_all_back();
    let fresh = of.send(FLOWS..2 * FLOWS);
    assert!(
        fresh.values().all(|slot| *slot == SLOTS[1]),
        "one that drains took a new flow"
    );
    of.give_all_back();
    // Where its pins are taken away, the other one has all.
    of.ask(SwitchRequest::PurgeSlot(SLOTS[0]));
    of.until("it has no flow", |of| {
        of.reading.slots[SLOTS[0].index()].live_flows == 0
    });
    let moved = of.send(0..FLOWS);
    assert!(moved.values().all(|slot| *slot == SLOTS[1]), "{moved:?}");
    of.give_all_back();
    assert_eq!(of.remove(SLOTS[0]), 0);
}

fn a_slot_is_used_again(of: &mut Conforming<'_>) {
    let slot = SLOTS[0];
    of.attach(slot);
    of.events.clear();
    let port = PortSpec::new(of.bed.switch().capabilities().ports[0], "nobody.sock");
    let again = SwitchRequest::Attach {
        slot,
        service: SERVICE,
        port,
    };
    // Refused at once, or told.
    let mut told = Vec::new();
    of.bed.switch().submit(again, &mut told);
    of.events.append(&mut told);
    of.until("a second attachment fails", |of| {
        let is_it = |e: &SwitchEvent| matches!(e, SwitchEvent::AttachFailed { slot: s, .. } if *s == slot);
        of.events.iter().any(is_it)
    });
    assert_eq!(of.remove(slot), 0);
    of.bed.kill_instance(slot);
    // As often as one likes, and also where there never was one.
    assert_eq!(of.remove(SLOTS[1]), 0);
    of.add(slot);
    of.send(0..FLOWS);
    of.give_all_back();
    of.bed.kill_instance(slot);
}

fn flows_of_a_failed_instance_move(of: &mut Conforming<'_>) {
    of.add(SLOTS[0]);
    of.add(SLOTS[1]);
    let first = of.send(0..FLOWS);
    of.give_all_back();
    // What a failed instance gave back since the last reading may count as lost with it.
    of.until("all is counted", |of| of.reading.in_flight() == 0);
    of.bed.kill_instance(SLOTS[0]);
    of.ask(SwitchRequest::Fail(SLOTS[0]));
    of.set_state(SLOTS[0], None);
    let after = of.send(0..FLOWS);
    for (flow, slot) in &first {
        assert_eq!(after[flow], SLOTS[1], "flow {flow} was at {slot}");
    }
    of.give_all_back();
    assert_eq!(of.remove(SLOTS[0]), 0);
    of.until("all is counted", |of| of.reading.in_flight() == 0);
}

fn flows_are_listed_and_purged(of: &mut Conforming<'_>) {
    of.add(SLOTS[0]);
    let at = of.send(0..FLOWS);
    of.give_all_back();
    // A switch that is told of its flows lists them a moment after their packets.
    let began = Instant::now();
    let (rows, complete) = loop {
        let (rows, complete) = of.flows(FlowFilter::default(), 10_000);
        if rows.len() >= at.len() || began.elapsed() > PATIENCE {
            break (rows, complete);
        }
    };
    assert_eq!((rows.len(), complete), (at.len(), true));
    assert!(
        rows.iter()
            .all(|row| row.service == SERVICE && row.pins.contains(&SLOTS[0]))
    );
    let (rows, complete) = of.flows(FlowFilter::default(), 10);
    assert_eq!((rows.len(), complete), (10, false));
    let key = FlowKey::new(&packet_of(3)).0;
    let one = FlowFilter {
        key: Some(key),
        ..FlowFilter::default()
    };
    assert_eq!(of.flows(one.clone(), 10).0.len(), 1);
    of.ask(SwitchRequest::Change(Change::PurgeFlow(key)));
    let mut left = 1;
    let began = Instant::now();
    while left > 0 {
        left = of.flows(one.clone(), 10).0.len();
        assert!(began.elapsed() < PATIENCE, "the flow keeps its pin");
    }
}
