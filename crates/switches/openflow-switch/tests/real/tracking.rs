//! What the steps of a move count on.

use std::time::{Duration, Instant};

use openflow::{
    Action, ConnectionTracking, Event, Field, FieldKind, FlowMod, Instruction, Limits, Match, Message,
};
use openvswitch::{Endpoint, Reconnecting, Turned};

use crate::ovs::{FIRST_INSTANCE, FLOWS_EACH, INSTANCES, LIMIT, Ovs, WAN};
use crate::tracked::{Outcome, Tracked};

/// The other way to pin: the switch's own table of connections remembers the instance of a flow's first packet.
/// Buckets are given to other instances at any time, without any protocol.
#[test]
fn connection_tracking_pins_without_a_race() {
    let Some(ovs) = Ovs::start() else { return };
    ovs.bridge(500);
    let (mut wan, _monitor, mut instances) = ovs.lines();
    let mut connection = Reconnecting::new(Endpoint::Unix(ovs.of("br0.mgmt").into()), Limits::default());
    let began = Instant::now();
    let (mut packets, mut turned) = (Tracked::default(), Vec::new());
    let udp = |more: Vec<Field>| {
        Match::new(
            [Field::eth_type(0x0800), Field::ip_proto(17)]
                .into_iter()
                .chain(more),
        )
    };
    let rule = |table, priority, matches, actions| {
        Message::FlowMod(FlowMod {
            table,
            priority,
            matches,
            instructions: vec![Instruction::ApplyActions(actions)],
            ..FlowMod::default()
        })
    };
    let track = |commit, table, actions| {
        Action::ConnectionTracking(ConnectionTracking {
            commit,
            zone: 1,
            table,
            actions,
        })
    };
    let bucket = |number: u16, slot: u32| {
        let mark = Field::u32(FieldKind::CT_MARK, slot + 1);
        let bits = Field::u16(FieldKind::UDP_SRC, number).masked(&15_u16.to_be_bytes());
        let actions = vec![
            track(true, None, vec![Action::SetField(mark)]),
            Action::output(FIRST_INSTANCE + slot),
        ];
        rule(
            1,
            100,
            udp(vec![Field::u32(FieldKind::CT_MARK, 0), bits]),
            actions,
        )
    };
    let mut rules = vec![rule(
        0,
        100,
        udp(vec![Field::in_port(WAN)]),
        vec![track(false, Some(1), Vec::new())],
    )];
    for slot in 0..u32::from(INSTANCES) {
        let marked = udp(vec![Field::u32(FieldKind::CT_MARK, slot + 1)]);
        rules.push(rule(1, 200, marked, vec![Action::output(FIRST_INSTANCE + slot)]));
    }
    rules.extend((0..16).map(|number| bucket(number, 0)));
    let (mut flow, mut moved) = (0, 0_u32);
    let mut waiting = rules;
    while flow < 4 * FLOWS_EACH || packets.missing() > 0 {
        assert!(began.elapsed() < LIMIT, "{flow} {}", packets.missing());
        connection.turn(began.elapsed().as_nanos() as u64, &mut turned);
        for turned in turned.drain(..) {
            if let Turned::Said(Event::Message {
                message: Message::Error(error),
                ..
            }) = turned
            {
                panic!("the switch refused something: {error:?}");
            }
        }
        if let Some(connection) = connection.connection() {
            for message in waiting.drain(..) {
                connection.send(&message).unwrap();
            }
            if flow < 4 * FLOWS_EACH && packets.missing() < 30 && began.elapsed() > Duration::from_secs(1) {
                for of in [flow, flow, flow, flow, flow.saturating_sub(20)] {
                    wan.send(&packets.next(of, false));
                }
                flow += 1;
                // One bucket goes elsewhere between any two flows.
                moved += 1;
                waiting.push(bucket((moved * 7 % 16) as u16, moved % u32::from(INSTANCES)));
            }
        }
        for (slot, line) in instances.iter_mut().enumerate() {
            while let Some(frame) = line.receive() {
                packets.arrived(FIRST_INSTANCE + slot as u32, &frame);
            }
        }
        wan.flush();
        std::thread::sleep(Duration::from_micros(100));
    }
    let outcome = packets.outcome();
    println!("connection tracking: {flow} flows, {moved} buckets moved, {outcome:?}");
    assert_eq!(outcome, Outcome::default());
}
