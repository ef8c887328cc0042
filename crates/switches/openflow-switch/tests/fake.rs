//! The core against a switch that lags its rules: every packet is numbered and looked at where it arrives.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what goes wrong here fails the test"
)]

mod tracked;

use std::collections::VecDeque;

use model::{FlowSetup, Nanos, ServiceId, Slot, Timeouts, protocol};
use openflow::Field;
use openflow_switch::{
    FakeNic, Fallback, Family, Faults, InstanceTerms, Part, RuleState, ServiceRules, Settings, Side, Spread,
    SteeredNic, Steering,
};
use openvswitch::{DatapathFlow, Offload, datapath_flows};
use proptest::prelude::*;
use scheduling::Scheduler;
use tracked::{Outcome, Tracked};

/// Ports of the switch.
const WAN: u32 = 1;
const LAN: u32 = 2;
const MONITOR: u32 = 9;
const FIRST_INSTANCE: u32 = 100;
const SERVICE: ServiceId = ServiceId(0);
const INSTANCES: u16 = 8;
/// A step of simulated time while packets are on their way.
const STEP: Nanos = Nanos::from_micros(40);

fn service(symmetric: bool) -> ServiceRules {
    let network = "10.128.0.0".parse().unwrap();
    let side = |uplink, port, is_answering, own: Field| Side {
        uplink,
        port,
        data_port: 0,
        is_answering,
        fields: vec![
            Field::eth_type(0x0800),
            Field::ip_proto(protocol::UDP),
            own.masked(&[255, 255, 0, 0]),
        ],
    };
    let mut sides = vec![side(0, WAN, false, Field::destination(network))];
    if symmetric {
        sides.push(side(1, LAN, true, Field::source(network)));
    }
    ServiceRules {
        id: SERVICE,
        sides,
        spread: Spread {
            parts: vec![(Part::SourcePort, 3), (Part::SourceAddress, 1)],
        },
        uplinks: vec![WAN, LAN],
        fit: 1.0,
    }
}

/// A switch, its controller, and those who send.
struct World {
    now: Nanos,
    joined: SteeredNic,
    packets: Tracked,
    /// The longest queue that was seen.
    queued: u64,
}

impl World {
    fn new(faults: Faults, settings: Settings, symmetric: bool, seed: u64) -> World {
        let now = Nanos::ZERO;
        let scheduler = Scheduler::from_name("round-robin").unwrap();
        World {
            now,
            joined: SteeredNic::new(
                FakeNic::new(faults, seed, now),
                Steering::new(settings, vec![(service(symmetric), scheduler)], MONITOR),
                MONITOR,
            ),
            packets: Tracked::default(),
            queued: 0,
        }
    }

    fn connect(&mut self) {
        self.joined.connect(self.now);
    }

    fn cut(&mut self) {
        self.joined.cut(self.now);
    }

    /// Who steers ends without a word, and another one begins where it was. Instances are found again a little later.
    fn steer_anew(&mut self, settings: Settings, symmetric: bool, instances: u16) {
        self.cut();
        let scheduler = Scheduler::from_name("round-robin").unwrap();
        self.joined.steering = Steering::new(settings, vec![(service(symmetric), scheduler)], MONITOR);
        let place = |slot| (Slot(slot), SERVICE, vec![FIRST_INSTANCE + u32::from(slot)]);
        self.joined
            .steering
            .adopt((0..INSTANCES).map(place), Nanos::from_secs(1));
        self.connect();
        self.run(Nanos::from_millis(5));
        for slot in 0..instances {
            let port = FIRST_INSTANCE + u32::from(slot);
            self.joined.steering.attach(Slot(slot), SERVICE, vec![port]);
        }
    }

    fn scale(&mut self, active: u16, known: u16) {
        for slot in 0..known {
            let terms = InstanceTerms {
                takes_flows: slot < active,
                capacity: 1e6,
                weight: 256,
                ..InstanceTerms::default()
            };
            self.joined.steering.set_terms(Slot(slot), terms);
        }
    }

    /// Sends the next packet of a flow.
    fn send(&mut self, flow: u32, is_answering: bool) {
        let frame = self.packets.next(flow, is_answering);
        let port = if is_answering { LAN } else { WAN };
        self.joined.nic.packet(port, &frame, self.now);
    }

    fn step(&mut self) {
        self.step_by(STEP);
    }

    fn step_by(&mut self, step: Nanos) {
        self.now.0 += step.0;
        let was_connected = self.joined.is_connected();
        for delivered in self.joined.turn(self.now) {
            assert!(delivered.port >= FIRST_INSTANCE, "to the port {}", delivered.port);
            self.packets.arrived(delivered.port, &delivered.frame);
        }
        assert_eq!(
            self.joined.is_connected(),
            was_connected,
            "both ends speak OpenFlow"
        );
        self.queued = self.queued.max(self.joined.steering.figures().queued);
    }

    fn run(&mut self, span: Nanos) {
        let until = self.now.0 + span.0;
        while self.now.0 < until {
            self.step();
        }
    }

    fn until(&mut self, what: &str, is_so: impl Fn(&World) -> bool) {
        let until = self.now.0 + Nanos::from_secs(20).0;
        while !is_so(self) {
            assert!(
                self.now.0 < until,
                "not within 20 s: {what}; {:?}",
                self.joined.steering.figures()
            );
            self.step();
        }
    }

    /// Connected, with so many instances, and every bucket given out and in force.
    fn ready(&mut self, instances: u16) {
        for slot in 0..instances {
            let port = FIRST_INSTANCE + u32::from(slot);
            self.joined.steering.attach(Slot(slot), SERVICE, vec![port]);
        }
        self.scale(instances, instances);
        self.connect();
        self.until("buckets have instances, if there are any", |world| {
            let buckets = world.joined.steering.buckets(SERVICE);
            world.joined.steering.is_settled() && (buckets.len() == 1 || !buckets.contains(&None))
        });
        self.run(Nanos::from_millis(20));
    }

    fn outcome(&mut self) -> Outcome {
        self.run(Nanos::from_millis(50));
        self.packets.outcome()
    }
}

/// A chance of its own, so that a failure shows the seed that repeats it.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

fn quick(setup: FlowSetup) -> Settings {
    Settings {
        setup,
        statistics_every: Nanos::from_millis(100),
        rebalance_every: Nanos::from_millis(1),
        idle: Timeouts::all(Nanos::from_secs(5)),
        ..Settings::default()
    }
}

/// New flows all the time while the number of instances changes: one each 400 µs or so, of which the newest 25 send,
/// each every 160 µs or so. `span`: how long each number of instances lasts.
fn traffic_while_scaling(world: &mut World, seed: u64, symmetric: bool, scales: &[u16], span: Nanos) {
    let mut chance = Chance(seed);
    let mut next = world.packets.flows.len() as u32;
    let mut live: VecDeque<u32> = VecDeque::new();
    for active in scales {
        world.scale(*active, INSTANCES);
        for _ in 0..span.0 / STEP.0 {
            if live.is_empty() || chance.below(10) == 0 {
                live.push_back(next);
                next += 1;
            }
            if live.len() > 25 {
                live.pop_front();
            }
            for _ in 0..6 {
                let place = chance.below(live.len() as u64) as usize;
                world.send(live[place], symmetric && chance.below(2) == 0);
            }
            world.step();
        }
    }
}

fn lagging(round_us: u64, control_us: u64, port_us: u64) -> Faults {
    Faults {
        round: Nanos::from_micros(round_us),
        control_delay: Nanos::from_micros(control_us),
        port_delay: (Nanos::from_micros(2), Nanos::from_micros(port_us)),
        ..Faults::default()
    }
}

fn assert_none_astray(world: &mut World) {
    let outcome = world.outcome();
    let figures = world.joined.steering.figures();
    assert_eq!(
        (
            outcome.lost,
            outcome.duplicated,
            outcome.reordered,
            outcome.mis_steered,
            figures.mis_steered
        ),
        (0, 0, 0, 0, 0),
        "{outcome:?} {figures:?}"
    );
}

fn none_astray_while_scaling(faults: Faults, symmetric: bool, seed: u64, scales: &[u16]) {
    let mut world = World::new(faults, quick(FlowSetup::Proactive), symmetric, seed);
    world.ready(INSTANCES);
    traffic_while_scaling(&mut world, seed, symmetric, scales, Nanos::from_millis(120));
    world.until("buckets have stopped moving", |world| {
        !world.joined.steering.is_moving()
    });
    assert_none_astray(&mut world);
}

/// The rules of the two come into force one after the other, and in any order. Both ends send from the beginning on.
#[test]
fn both_directions_of_a_new_connection_have_one_instance() {
    for seed in 0..2 {
        let faults = Faults {
            reorders: true,
            ..lagging(1_000, 3_000, 30)
        };
        let mut world = World::new(faults, quick(FlowSetup::Proactive), true, seed);
        world.ready(4);
        let mut next = 0..;
        for active in [1, 4] {
            world.scale(active, 4);
            for flow in next.by_ref().take(750) {
                world.send(flow, flow % 2 == 0);
                world.send(flow, flow % 2 != 0);
                world.run(Nanos(4 * STEP.0));
            }
        }
        world.until("buckets have stopped moving", |world| {
            !world.joined.steering.is_moving()
        });
        assert!(world.joined.steering.figures().moved_buckets >= 8);
        assert_none_astray(&mut world);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 4, max_shrink_iters: 0, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn no_packet_is_lost_doubled_or_sent_elsewhere(
        seed: u64,
        symmetric: bool,
        round_us in 300_u64..12_000,
        control_us in 10_u64..2_000,
        port_us in 5_u64..200,
        reorders: bool,
        rule_us in 0_u64..100,
        scales in prop::collection::vec(1_u16..=INSTANCES, 2..4),
    ) {
        let faults = Faults {
            reorders,
            rule_time: Nanos::from_micros(rule_us),
            ..lagging(round_us, control_us, port_us)
        };
        none_astray_while_scaling(faults, symmetric, seed, &scales);
    }

    #[test]
    fn a_switch_that_refuses_and_talks_nonsense_sends_nothing_astray(
        seed: u64,
        refuse_one_in in 1_u64..5,
        rule_limit in 150_usize..400,
        scales in prop::collection::vec(1_u16..=INSTANCES, 2..3),
    ) {
        let mut world = World::new(lagging(1_000, 200, 30), quick(FlowSetup::Proactive), true, seed);
        world.ready(INSTANCES);
        let places = world.joined.nic.cookies().len() + rule_limit;
        world.joined.nic.set_faults(Faults {
            refuse_one_in, rule_limit: places, garbage_one_in: 5, packet_in_flood: 3, ..lagging(1_000, 200, 30)
        });
        traffic_while_scaling(&mut world, seed, true, &scales, Nanos::from_millis(60));
        assert_none_astray(&mut world);
        let figures = world.joined.steering.figures();
        prop_assert!(figures.refused > 0, "{figures:?}");
        prop_assert!(world.queued < 5_000, "{}", world.queued);
        prop_assert!(world.joined.nic.cookies().len() <= places);
    }
}

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
            "ufid:1, recirc_id(0),in_port(p0),eth_type(0x0800),ipv4(src={},dst={},proto={},frag=no),udp(src={},dst={}), \
             packets:3, bytes:300, used:0.1s, offloaded:{how}, dp:tc, actions:pf0sf1\n",
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

/// Whether the long way round is wanted: minutes instead of seconds.
fn full_length() -> bool {
    std::env::var("INCO_FULL_LENGTH").is_ok()
}

/// 1,000 new flows a second, each a burst of 64 packets.
fn bursts_while_scaling(world: &mut World, seed: u64, scales: &[u16], span: Nanos) {
    let mut chance = Chance(seed);
    let mut live: Vec<(u32, u32)> = Vec::new();
    let mut next = world.packets.flows.len() as u32;
    for active in scales {
        world.scale(*active, INSTANCES);
        for _ in 0..span.0 / STEP.0 {
            if chance.below(Nanos::from_millis(1).0 / STEP.0) == 0 {
                live.push((next, 64));
                next += 1;
            }
            for (flow, left) in &mut live {
                // Four in a step: the burst lasts 640 µs.
                for _ in 0..4 {
                    world.send(*flow, false);
                }
                *left -= 4;
            }
            live.retain(|(_, left)| *left > 0);
            world.step();
        }
    }
}

#[test]
fn bursts_keep_their_order_too() {
    let mut world = World::new(lagging(5_000, 300, 30), quick(FlowSetup::Proactive), false, 7);
    world.ready(INSTANCES);
    let span = Nanos::from_millis(if full_length() { 20_000 } else { 400 });
    bursts_while_scaling(&mut world, 7, &[3, 8, 3], span);
    world.until("buckets have stopped moving", |world| {
        !world.joined.steering.is_moving()
    });
    assert_none_astray(&mut world);
    let figures = world.joined.steering.figures();
    assert!(
        figures.moved_buckets > 20 && world.packets.flows.len() > 1_000,
        "{figures:?}"
    );
    println!(
        "proactive: {} flows, nothing astray, {} buckets moved",
        world.packets.flows.len(),
        figures.moved_buckets
    );
}

#[test]
fn the_reactive_way_loses_the_order_and_no_flow() {
    let mut world = World::new(lagging(5_000, 300, 30), quick(FlowSetup::Reactive), false, 7);
    world.ready(INSTANCES);
    bursts_while_scaling(&mut world, 7, &[3, 8, 3], Nanos::from_millis(150));
    let outcome = world.outcome();
    assert_eq!(outcome.mis_steered, 0);
    // A packet that comes after the rule overtakes those that are still with the controller: this can be seen.
    assert!(outcome.reordered > 0, "{outcome:?}");
    println!("reactive: {} flows, {outcome:?}", world.packets.flows.len());
}

/// Long flows, each with packets all the time.
fn long_flows(world: &mut World, flows: std::ops::Range<u32>, rounds: u32, step: Nanos) {
    for _ in 0..rounds {
        for flow in flows.clone() {
            world.send(flow, false);
            world.step_by(step);
        }
    }
}

#[test]
fn a_full_table_leaves_flows_on_their_buckets_and_the_heaviest_get_rules() {
    let settings = Settings {
        rule_limit: 100,
        idle: Timeouts::all(Nanos::from_millis(300)),
        ..quick(FlowSetup::Proactive)
    };
    let mut world = World::new(lagging(1_000, 100, 30), settings, false, 3);
    world.ready(4);
    long_flows(&mut world, 0..400, 2, STEP);
    world.scale(1, 4);
    long_flows(&mut world, 0..400, 3, STEP);
    let pinned = world
        .joined
        .steering
        .flows()
        .filter(|flow| flow.state == RuleState::Installed)
        .count();
    assert!((90..=100).contains(&pinned), "{pinned}");
    assert!(world.joined.steering.figures().rules <= 100 && world.joined.steering.figures().rule_waits > 0);
    // Some go on: when the others have ended, those get the rules, and buckets can move.
    long_flows(&mut world, 300..340, 250, STEP);
    let pinned = world
        .joined
        .steering
        .flows()
        .filter(|flow| flow.state == RuleState::Installed)
        .count();
    assert_eq!(
        (pinned, world.joined.steering.flows().count()),
        (40, 40),
        "{:?}",
        world.joined.steering.figures()
    );
    assert_none_astray(&mut world);
    world.until("the others have no buckets", |world| {
        (1..4).all(|slot| !world.joined.steering.may_get_flows(Slot(slot)))
    });
}

#[test]
fn ten_times_more_flows_than_rules_send_nothing_astray() {
    let (rules, flows) = if full_length() {
        (1_000, 10_000)
    } else {
        (100, 1_000)
    };
    let settings = Settings {
        rule_limit: rules,
        ..quick(FlowSetup::Proactive)
    };
    let mut world = World::new(lagging(1_000, 100, 30), settings, false, 10);
    world.ready(8);
    for active in [8, 3, 8, 3] {
        world.scale(active, INSTANCES);
        long_flows(&mut world, 0..flows, 2, STEP);
        assert!(world.joined.steering.figures().rules <= rules as u64);
    }
    assert_none_astray(&mut world);
}

#[test]
fn draining_ends_with_the_last_flow() {
    let settings = Settings {
        idle: Timeouts::all(Nanos::from_millis(200)),
        ..quick(FlowSetup::Proactive)
    };
    let mut world = World::new(lagging(1_000, 100, 30), settings, true, 4);
    world.ready(2);
    long_flows(&mut world, 0..32, 20, STEP);
    let of = |world: &World, slot| world.joined.steering.slot_figures(Slot(slot)).live_flows;
    assert_eq!(of(&world, 0) + of(&world, 1), 32);
    let left = of(&world, 1);
    assert!(left > 0);
    world.scale(1, 2);
    for _ in 0..20 {
        long_flows(&mut world, 0..32, 10, STEP);
        assert_eq!(of(&world, 1), left, "flows stay until they end");
    }
    assert!(!world.joined.steering.may_get_flows(Slot(1)) && !world.joined.steering.is_drained(Slot(1)));
    assert_none_astray(&mut world);
    world.until("it is drained", |world| world.joined.steering.is_drained(Slot(1)));
    // What the switch counted has come here, with the counters of rules that are gone.
    world.until("all is counted", |world| {
        let sum: u64 = (0..2)
            .map(|slot| world.joined.steering.slot_figures(Slot(slot)).packets)
            .sum();
        sum == world
            .packets
            .flows
            .values()
            .map(|sent| u64::from(sent.packets))
            .sum::<u64>()
    });
    world.joined.steering.remove(Slot(1), world.now);
    world.run(Nanos::from_millis(10));
    assert_eq!(world.joined.steering.figures().failed_flows, 0);
    long_flows(&mut world, 100..132, 3, STEP);
    assert_none_astray(&mut world);
}

#[test]
fn flows_of_an_instance_that_failed_begin_anew_elsewhere() {
    let mut world = World::new(lagging(1_000, 100, 30), quick(FlowSetup::Proactive), false, 5);
    world.ready(3);
    long_flows(&mut world, 0..60, 10, STEP);
    let lost: Vec<u32> = (world.packets.flows.iter())
        .filter(|(_, sent)| sent.instance == Some(FIRST_INSTANCE + 2))
        .map(|(flow, _)| *flow)
        .collect();
    world.joined.steering.remove(Slot(2), world.now);
    world.run(Nanos::from_millis(50));
    assert_eq!(world.joined.steering.figures().failed_flows, lost.len() as u64);
    assert!(!lost.is_empty());
    for flow in lost {
        world.packets.flows.get_mut(&flow).unwrap().instance = None;
    }
    long_flows(&mut world, 0..60, 10, STEP);
    assert_eq!(world.joined.steering.slot_figures(Slot(2)).live_flows, 0);
    assert_none_astray(&mut world);
}

#[test]
fn a_cut_connection_is_not_noticed_by_flows() {
    let mut world = World::new(lagging(1_000, 100, 30), quick(FlowSetup::Proactive), false, 6);
    world.ready(4);
    long_flows(&mut world, 0..50, 10, STEP);
    let rules = world.joined.nic.cookies();
    world.cut();
    // 30 s, in which new flows come too: they go by their buckets.
    long_flows(&mut world, 0..60, 500, Nanos::from_millis(1));
    assert_none_astray(&mut world);
    assert_eq!(world.joined.nic.cookies(), rules);
    world.connect();
    world.until("new flows have rules", |world| {
        world.joined.steering.figures().rules == 60
    });
    let figures = world.joined.steering.figures();
    let marker = 1;
    assert_eq!(figures.agreed_rules, rules.len() as u64 - marker, "{figures:?}");
    long_flows(&mut world, 0..60, 10, STEP);
    assert_none_astray(&mut world);
}

#[test]
fn a_switch_that_was_restarted_gets_its_pins_before_its_buckets() {
    let mut world = World::new(lagging(1_000, 100, 30), quick(FlowSetup::Proactive), false, 8);
    world.ready(4);
    long_flows(&mut world, 0..200, 5, STEP);
    // Buckets have moved since: only pins keep flows where they are.
    world.scale(1, 4);
    long_flows(&mut world, 0..200, 30, STEP);
    world.until("buckets have moved", |world| {
        (1..4).all(|slot| !world.joined.steering.may_get_flows(Slot(slot)))
    });
    assert_none_astray(&mut world);
    world.cut();
    world.joined.nic.restart(world.now);
    world.connect();
    long_flows(&mut world, 0..200, 30, STEP);
    world.run(Nanos::from_millis(50));
    let (outcome, dropped) = (world.outcome(), world.joined.nic.dropped());
    assert_eq!((outcome.duplicated, outcome.mis_steered), (0, 0), "{outcome:?}");
    assert!(
        dropped > 0 && outcome.lost == dropped,
        "what is lost is counted: {dropped} {outcome:?}"
    );
}

/// An instance that was taken for dead goes on to give back packets that it had: none leaves after the first one of
/// its flow that another instance was given.
#[test]
fn what_a_failed_instance_sends_later_goes_nowhere() {
    for seed in 0..8 {
        let mut world = World::new(lagging(5_000, 200, 30), quick(FlowSetup::Proactive), false, seed);
        world.ready(3);
        long_flows(&mut world, 0..60, 10, STEP);
        world.until("flows have rules", |world| {
            world.joined.steering.figures().rules == 60
        });
        let port = FIRST_INSTANCE + 2;
        let lost: Vec<u32> = (world.packets.flows.iter())
            .filter(|(_, sent)| sent.instance == Some(port))
            .map(|(flow, _)| *flow)
            .collect();
        assert!(!lost.is_empty());
        for flow in &lost {
            world.packets.flows.get_mut(flow).unwrap().instance = None;
        }
        world.joined.steering.fail(Slot(2));
        // Without the table's word: it is not in the table any more.
        world.joined.steering.remove(Slot(2), world.now);
        let mut sent_on = 0;
        let mut served = 0;
        for round in 0..2_500 {
            let flow = lost[round % lost.len()];
            // What the failed one still had, and what the flow sends.
            let frame = world.packets.next(flow, false);
            world.joined.nic.packet(port, &frame, world.now);
            world.joined.nic.packet(WAN, &frame, world.now);
            world.now.0 += STEP.0;
            for delivered in world.joined.turn(world.now) {
                match delivered.port {
                    WAN | LAN if served > 0 => panic!("seed {seed}: sent on after {served} were served"),
                    WAN | LAN => sent_on += 1,
                    to => served += u32::from(to != port),
                }
            }
        }
        assert!(sent_on > 0, "it goes on until the switch has it");
        assert!(served > 1_000, "its flows go on elsewhere: {served}");
    }
}

/// Also the rules that no flow can do without, from the beginning.
#[test]
fn rules_that_were_refused_are_written_again() {
    let faults = Faults {
        refuse_one_in: 3,
        ..lagging(1_000, 100, 30)
    };
    let mut world = World::new(faults, quick(FlowSetup::Proactive), true, 11);
    world.ready(4);
    world.until("all that was refused is there", |world| {
        let is_in_force = |slot| world.joined.steering.is_in_force(Slot(slot));
        let cookies = world.joined.nic.cookies();
        // One per uplink and two tables for each of 16 buckets; two to, one from and one for probes of each instance,
        // and one for marks on each uplink; the marker's.
        cookies.len() > 2 * 2 * 16 + 4 * 6 && (0..4).all(is_in_force)
    });
    long_flows(&mut world, 0..40, 20, STEP);
    assert_none_astray(&mut world);
    assert!(world.joined.steering.figures().errors > 0);
}

#[test]
fn who_steers_anew_finds_every_flow_and_touches_no_rule() {
    let settings = Settings {
        idle: Timeouts::all(Nanos::from_millis(300)),
        ..quick(FlowSetup::Proactive)
    };
    let mut world = World::new(lagging(2_000, 100, 30), settings.clone(), true, 12);
    world.ready(4);
    long_flows(&mut world, 0..60, 20, STEP);
    world.scale(2, 4);
    for _ in 0..20 {
        long_flows(&mut world, 0..60, 10, STEP);
    }
    assert!(
        !world.joined.steering.may_get_flows(Slot(3)),
        "its buckets have moved"
    );
    // Nobody steers, and flows begin.
    world.cut();
    long_flows(&mut world, 0..90, 10, STEP);
    let pins = |world: &World| -> Vec<u64> {
        let cookies = world.joined.nic.cookies().into_iter();
        // The third byte says what a rule is for.
        cookies.filter(|cookie| (cookie >> 40) & 0xff == 3).collect()
    };
    let before = pins(&world);
    assert_eq!(before.len(), 120, "60 flows, both ways");
    let buckets = world.joined.steering.buckets(SERVICE);
    world.steer_anew(settings, true, 4);
    assert_eq!(world.joined.steering.flows().count(), 60);
    assert_eq!(world.joined.steering.buckets(SERVICE), buckets);
    assert_eq!(pins(&world), before);
    // Another plan, at once: nothing may move before those that nobody knows have shown themselves, or ended.
    world.scale(4, 4);
    for _ in 0..40 {
        long_flows(&mut world, 0..90, 10, STEP);
    }
    assert_eq!(world.joined.steering.flows().count(), 90);
    world.until("buckets move again", |world| {
        world.joined.steering.may_get_flows(Slot(3))
    });
    for _ in 0..20 {
        long_flows(&mut world, 0..90, 10, STEP);
    }
    assert_none_astray(&mut world);
    assert_eq!(world.joined.steering.figures().evicted, 0);
}

/// Wherever it was, also in the middle of moves.
#[test]
fn who_steers_anew_goes_on_where_the_one_before_was() {
    for seed in 0..10 {
        let settings = quick(FlowSetup::Proactive);
        let mut world = World::new(lagging(3_000, 300, 50), settings.clone(), false, seed);
        world.ready(INSTANCES);
        for (round, scale) in [2, 7, 3].into_iter().enumerate() {
            let at = seed.wrapping_mul(7_919) % 23 + 3 * round as u64;
            traffic_while_scaling(&mut world, seed, false, &[scale], Nanos::from_millis(2 * at + 1));
            world.steer_anew(settings.clone(), false, INSTANCES);
            traffic_while_scaling(&mut world, seed, false, &[scale], Nanos::from_millis(60));
        }
        assert_none_astray(&mut world);
    }
}

#[test]
fn an_instance_that_is_not_found_again_is_gone() {
    let settings = quick(FlowSetup::Proactive);
    let mut world = World::new(lagging(1_000, 100, 30), settings.clone(), false, 13);
    world.ready(3);
    long_flows(&mut world, 0..60, 10, STEP);
    let of_it = |world: &World| {
        world
            .joined
            .steering
            .flows()
            .filter(|row| row.slot == Slot(2))
            .count()
    };
    assert!(of_it(&world) > 0);
    world.steer_anew(settings, false, 2);
    world.scale(2, 2);
    assert!(of_it(&world) > 0, "it may come back");
    world.until("it is gone", |world| of_it(world) == 0);
    world.run(Nanos::from_millis(20));
    assert!(!world.joined.steering.buckets(SERVICE).contains(&Some(Slot(2))));
}

#[test]
fn an_evicted_rule_is_written_again_and_its_absence_seen() {
    let mut world = World::new(lagging(1_000, 100, 30), quick(FlowSetup::Proactive), false, 9);
    world.ready(2);
    long_flows(&mut world, 0..40, 10, STEP);
    world.scale(1, 2);
    long_flows(&mut world, 0..40, 60, STEP);
    world.until("buckets have moved", |world| {
        !world.joined.steering.may_get_flows(Slot(1))
    });
    assert_none_astray(&mut world);
    let before = world.joined.nic.cookies();
    for cookie in &before {
        world.joined.nic.evict(*cookie);
    }
    // Everything is gone, and pins come back by themselves.
    long_flows(&mut world, 0..40, 10, STEP);
    let figures = world.joined.steering.figures();
    assert_eq!(figures.evicted, 40, "{figures:?}");
    assert_eq!(figures.rules, 40);
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

/// Four instances, and a switch that writes a rule in 0.1 ms.
fn one_by_one(faults: Faults, settings: Settings) -> World {
    let faults = Faults {
        rule_time: Nanos::from_micros(100),
        ..faults
    };
    let mut world = World::new(faults, settings, false, 5);
    world.ready(4);
    assert_eq!(world.joined.steering.figures().batches, 0);
    world
}

/// The first packets of that many flows come at once, and as many rules wait together.
fn begin_together(world: &mut World, flows: std::ops::Range<u32>) {
    let count = flows.len();
    let before = world.joined.steering.flow_count();
    flows.for_each(|flow| world.send(flow, false));
    world.until("all flows are known", |world| {
        world.joined.steering.flow_count() == before + count
    });
}

fn installed(world: &World) -> usize {
    let flows = world.joined.steering.flows();
    flows.filter(|flow| flow.state == RuleState::Installed).count()
}

#[test]
fn rules_that_wait_together_are_written_together() {
    let settings = Settings {
        idle: Timeouts::all(Nanos::from_millis(400)),
        ..quick(FlowSetup::Proactive)
    };
    let mut world = one_by_one(lagging(1_000, 100, 30), settings);
    let before = world.joined.nic.cookies().len();
    begin_together(&mut world, 0..100);
    assert_eq!(
        installed(&world),
        0,
        "before the switch has answered it is not said to have them"
    );
    assert!(world.joined.steering.figures().queued >= 100);
    world.until("all have rules", |world| installed(world) == 100);
    let figures = world.joined.steering.figures();
    assert!((1..20).contains(&figures.batches), "{figures:?}");
    assert_eq!(
        (figures.split_batches, figures.refused, figures.errors),
        (0, 0, 0)
    );
    long_flows(&mut world, 0..100, 3, STEP);
    assert_none_astray(&mut world);
    // Rules of flows that end go together, too.
    world.until("all have ended", |world| world.joined.steering.flow_count() == 0);
    world.until("their rules are gone", |world| {
        world.joined.nic.cookies().len() == before && world.joined.steering.is_settled()
    });
}

#[test]
fn a_refused_rule_takes_no_other_of_its_batch_with_it() {
    let mut world = one_by_one(lagging(1_000, 100, 30), quick(FlowSetup::Proactive));
    let places = world.joined.nic.cookies().len() + 99;
    world.joined.nic.set_faults(Faults {
        rule_limit: places,
        ..lagging(1_000, 100, 30)
    });
    begin_together(&mut world, 0..100);
    world.until("all but one have rules", |world| {
        installed(world) == 99 && world.joined.steering.figures().refused == 1
    });
    let figures = world.joined.steering.figures();
    assert!(figures.split_batches > 0, "{figures:?}");
    let refused: Vec<RuleState> = (world.joined.steering.flows())
        .map(|flow| flow.state)
        .filter(|state| *state != RuleState::Installed)
        .collect();
    assert_eq!(
        refused,
        [RuleState::Refused { kind: 5, code: 1 }],
        "the table is full"
    );
    world.joined.nic.set_faults(lagging(1_000, 100, 30));
    world.until("it has its rule when there is room", |world| {
        installed(world) == 100
    });
    long_flows(&mut world, 0..100, 3, STEP);
    assert_none_astray(&mut world);
}

/// Refusals at random, while buckets move.
#[test]
fn batches_of_which_many_rules_are_refused_send_nothing_astray() {
    let (mut batches, mut split) = (0, 0);
    for seed in 0..4 {
        let faults = Faults {
            refuse_one_in: 100,
            reorders: seed % 2 == 0,
            ..lagging(1_000, 300, 30)
        };
        let mut world = World::new(faults, quick(FlowSetup::Proactive), true, seed);
        world.ready(4);
        for (round, active) in (0..).zip([4, 2, 4, 1]) {
            world.scale(active, 4);
            begin_together(&mut world, round * 60..(round + 1) * 60);
            long_flows(&mut world, 0..(round + 1) * 60, 4, STEP);
        }
        world.until("all have rules", |world| installed(world) == 240);
        let figures = world.joined.steering.figures();
        batches += figures.batches;
        split += figures.split_batches;
        assert_none_astray(&mut world);
    }
    assert!(0 < split && split < batches, "{split} of {batches}");
}

#[test]
fn a_switch_that_knows_no_bundles_gets_each_rule_by_itself() {
    let faults = Faults {
        knows_no_bundles: true,
        ..lagging(1_000, 100, 30)
    };
    let mut world = one_by_one(faults, quick(FlowSetup::Proactive));
    for round in 0..3 {
        begin_together(&mut world, round * 100..(round + 1) * 100);
        world.until("all have rules", |world| {
            installed(world) == (round as usize + 1) * 100
        });
    }
    let figures = world.joined.steering.figures();
    assert_eq!(
        (figures.batches, figures.split_batches, figures.refused),
        (1, 1, 0),
        "tried once"
    );
    long_flows(&mut world, 0..300, 3, STEP);
    assert_none_astray(&mut world);
}

/// At every moment of a batch: before it is there, while it is written, and after, when the answer is lost.
#[test]
fn a_connection_that_is_cut_in_a_batch_loses_no_rule() {
    let mut cut_in_a_batch = 0;
    for steps in 0..40 {
        let mut world = one_by_one(lagging(1_000, 100, 30), quick(FlowSetup::Proactive));
        begin_together(&mut world, 0..100);
        world.run(Nanos(steps * 10 * STEP.0));
        cut_in_a_batch += u32::from(installed(&world) < 100);
        world.cut();
        world.run(Nanos::from_millis(2));
        assert_eq!(
            world.joined.steering.figures().queued,
            0,
            "after a cut nothing waits"
        );
        world.connect();
        world.until("all have rules", |world| {
            installed(world) == 100 && world.joined.steering.is_settled()
        });
        let cookies = world.joined.nic.cookies().into_iter();
        // The kind is in bits 40 to 47: 3 is a flow's.
        assert_eq!(cookies.filter(|cookie| cookie >> 40 & 0xff == 3).count(), 100);
        long_flows(&mut world, 0..100, 3, STEP);
        assert_none_astray(&mut world);
    }
    assert!((5..40).contains(&cut_in_a_batch), "{cut_in_a_batch}");
}
