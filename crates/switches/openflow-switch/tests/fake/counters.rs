//! What is counted, and how late.

use model::{FlowSetup, Nanos, Slot};
use openflow_switch::{Fallback, Family, Faults, RuleState};
use openvswitch::{DatapathFlow, Offload, datapath_flows};

use crate::world::{FIRST_INSTANCE, WAN, World, lagging, quick};

#[test]
fn what_the_hardware_has_of_a_flow_is_shown_with_it() {
    let mut world = World::new(lagging(1_000, 200, 30), quick(FlowSetup::Proactive), true, 1);
    world.ready(2);
    for flow in 0..4 {
        world.send(flow, false);
    }
    let is_installed = |world: &World| {
        let installed = |row: openflow_switch::FlowRow| row.state == RuleState::Installed;
        world
            .joined
            .steering
            .flows()
            .filter(|row| installed(*row))
            .count()
            == 4
    };
    world.until("all flows have rules", is_installed);
    let offloads = |world: &World| -> Vec<Option<Offload>> {
        let rows = world.joined.steering.flows();
        rows.map(|row| row.offload).collect()
    };
    assert_eq!(offloads(&world), [None; 4]);
    let ids: Vec<_> = world.joined.steering.flows().map(|row| row.id).collect();
    let line = |flow: usize, is_answering: bool, how: &str| {
        let of = ids[flow].tuple(is_answering);
        format!(
            "ufid:1, recirc_id(0),in_port(p0),eth_type(0x0800),ipv4(src={},dst={},proto={},frag=no),\
             udp(src={},dst={}), packets:3, bytes:300, used:0.1s, offloaded:{how}, dp:tc, actions:pf0sf1\n",
            of.src, of.dst, of.protocol, of.src_port, of.dst_port
        )
    };
    // Both directions of the first flow, one of the second, one of the third only found by the hardware; and one that
    // is gone.
    let said = line(0, false, "yes") + &line(0, true, "yes") + &line(1, true, "yes");
    let said = said + &line(2, false, "yes") + &line(2, true, "partial") + "ufid:2, nonsense\n";
    let found: Vec<DatapathFlow> = datapath_flows(&said).collect();
    world.joined.steering.set_offloaded(Some(&found));
    let expected = [Offload::Full, Offload::Full, Offload::Partial, Offload::None].map(Some);
    assert_eq!(offloads(&world), expected);
    // The hardware has given them up.
    world.joined.steering.set_offloaded(Some(&[]));
    assert_eq!(offloads(&world), [Some(Offload::None); 4]);
    world.joined.steering.set_offloaded(None);
    assert_eq!(offloads(&world), [None; 4]);
}

#[test]
fn counters_are_as_late_as_the_hardware_shows_them() {
    for lag_ms in [50, 400] {
        let faults = Faults {
            counter_lag: Nanos::from_millis(lag_ms),
            ..lagging(1_000, 100, 30)
        };
        let mut world = World::new(faults, quick(FlowSetup::Proactive), false, 12);
        world.ready(1);
        world.send(0, false);
        let is_installed = |row: openflow_switch::FlowRow| row.state == RuleState::Installed;
        world.until("it has a rule", |world| {
            world.joined.steering.flows().any(is_installed)
        });
        world.run(Nanos::from_millis(1_000));
        let counted = |world: &World| world.joined.steering.flows().next().map_or(0, |row| row.packets);
        let mut oldest = 0;
        for _ in 0..8 {
            let (before, since) = (counted(&world), world.now);
            world.send(0, false);
            world.until("it is counted", |world| counted(world) > before);
            oldest = oldest.max(world.now.since(since).as_millis());
            world.run(Nanos::from_millis(37));
        }
        // Until they are shown, and then until they are read, which is every 100 ms.
        let expected = lag_ms / 2..=lag_ms + 110;
        assert!(expected.contains(&oldest), "{oldest} ms with {lag_ms} ms");
    }
}

#[test]
fn probes_come_back_and_packets_of_no_service_are_counted() {
    let mut world = World::new(Faults::default(), quick(FlowSetup::Proactive), false, 5);
    let dropped = |family| Fallback {
        port: WAN,
        family,
        to: None,
    };
    world
        .joined
        .steering
        .set_fallbacks(&[Family::Ipv4, Family::Ipv6, Family::Other].map(dropped));
    world.ready(2);
    // What the instance gives back of a probe goes to no uplink.
    let mut frame = vec![0; 60];
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    world.joined.nic.packet(FIRST_INSTANCE + 1, &frame, world.now);
    // An ARP request, of no service.
    frame[12..14].copy_from_slice(&[0x08, 0x06]);
    world.joined.nic.packet(WAN, &frame, world.now);
    world.until("the probe is back", |world| {
        world.joined.steering.slot_figures(Slot(1)).probes_back == 1
    });
    let counted = |world: &World| -> Vec<u64> {
        let of = world.joined.steering.fallback_packets();
        of.map(|(_, packets)| packets).collect()
    };
    world.until("the other packet is counted", |world| counted(world) == [0, 0, 1]);
    // They may change: the rule of the same match takes the place of the old one, and nothing is counted twice.
    world
        .joined
        .steering
        .set_fallbacks(&[Family::Ipv4, Family::Ipv6].map(dropped));
    world.run(Nanos::from_millis(300));
    assert_eq!(counted(&world), [0, 0]);
    assert_eq!(world.joined.steering.figures().errors, 0);
}
