//! A switch that is played, its controller, and those who send.

use std::collections::VecDeque;

use model::{FlowSetup, Nanos, ServiceId, Slot, Timeouts, protocol};
use openflow::Field;
use openflow_switch::{
    FakeNic, Faults, InstanceTerms, Part, ServiceRules, Settings, Side, Spread, SteeredNic, Steering,
};
use scheduling::Scheduler;

use crate::tracked::{Outcome, Tracked};

/// Ports of the switch.
pub(crate) const WAN: u32 = 1;
pub(crate) const LAN: u32 = 2;
pub(crate) const MONITOR: u32 = 9;
pub(crate) const FIRST_INSTANCE: u32 = 100;
pub(crate) const SERVICE: ServiceId = ServiceId(0);
pub(crate) const INSTANCES: u16 = 8;
/// A step of simulated time while packets are on their way.
pub(crate) const STEP: Nanos = Nanos::from_micros(40);

pub(crate) fn service(symmetric: bool) -> ServiceRules {
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
pub(crate) struct World {
    pub(crate) now: Nanos,
    pub(crate) joined: SteeredNic,
    pub(crate) packets: Tracked,
    /// The longest queue that was seen.
    pub(crate) queued: u64,
}

impl World {
    pub(crate) fn new(faults: Faults, settings: Settings, symmetric: bool, seed: u64) -> World {
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

    pub(crate) fn connect(&mut self) {
        self.joined.connect(self.now);
    }

    pub(crate) fn cut(&mut self) {
        self.joined.cut(self.now);
    }

    /// Who steers ends without a word, and another one begins where it was. Instances are found again a little later.
    pub(crate) fn steer_anew(&mut self, settings: Settings, symmetric: bool, instances: u16) {
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

    pub(crate) fn scale(&mut self, active: u16, known: u16) {
        self.set_active(|slot| slot < active, known);
    }

    /// Only that instance takes new flows.
    pub(crate) fn turn_to(&mut self, only: Slot, known: u16) {
        self.set_active(|slot| Slot(slot) == only, known);
    }

    fn set_active(&mut self, is_active: impl Fn(u16) -> bool, known: u16) {
        for slot in 0..known {
            let terms = InstanceTerms {
                takes_flows: is_active(slot),
                capacity: 1e6,
                weight: 256,
                ..InstanceTerms::default()
            };
            self.joined.steering.set_terms(Slot(slot), terms);
        }
    }

    /// Sends the next packet of a flow.
    pub(crate) fn send(&mut self, flow: u32, is_answering: bool) {
        let frame = self.packets.next(flow, is_answering);
        let port = if is_answering { LAN } else { WAN };
        self.joined.nic.packet(port, &frame, self.now);
    }

    pub(crate) fn step(&mut self) {
        self.step_by(STEP);
    }

    pub(crate) fn step_by(&mut self, step: Nanos) {
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

    pub(crate) fn run(&mut self, span: Nanos) {
        let until = self.now.0 + span.0;
        while self.now.0 < until {
            self.step();
        }
    }

    pub(crate) fn until(&mut self, what: &str, is_so: impl Fn(&World) -> bool) {
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
    pub(crate) fn ready(&mut self, instances: u16) {
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

    pub(crate) fn outcome(&mut self) -> Outcome {
        self.run(Nanos::from_millis(50));
        self.packets.outcome()
    }
}

/// A chance of its own, so that a failure shows the seed that repeats it.
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

pub(crate) fn quick(setup: FlowSetup) -> Settings {
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
pub(crate) fn traffic_while_scaling(
    world: &mut World,
    seed: u64,
    symmetric: bool,
    scales: &[u16],
    span: Nanos,
) {
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

pub(crate) fn lagging(round_us: u64, control_us: u64, port_us: u64) -> Faults {
    Faults {
        round: Nanos::from_micros(round_us),
        control_delay: Nanos::from_micros(control_us),
        port_delay: (Nanos::from_micros(2), Nanos::from_micros(port_us)),
        ..Faults::default()
    }
}

pub(crate) fn assert_none_astray(world: &mut World) {
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

/// Whether the long way round is wanted: minutes instead of seconds.
pub(crate) fn full_length() -> bool {
    real_parts::is_full_length()
}

/// Long flows, each with packets all the time.
pub(crate) fn long_flows(world: &mut World, flows: std::ops::Range<u32>, rounds: u32, step: Nanos) {
    for _ in 0..rounds {
        for flow in flows.clone() {
            world.send(flow, false);
            world.step_by(step);
        }
    }
}
