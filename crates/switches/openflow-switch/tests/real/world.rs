//! A switch, its controller, and those who send.

use std::time::{Duration, Instant};

use model::{FlowSetup, Nanos, Slot, Timeouts, protocol};
use openflow::{Event, Field, Limits};
use openflow_switch::{InstanceTerms, Part, ServiceRules, Settings, Side, Spread, Steering};
use openvswitch::{Endpoint, Reconnecting, Turned};
use scheduling::Scheduler;

use crate::ovs::{FIRST_INSTANCE, INSTANCES, LIMIT, Line, MONITOR, Ovs, SERVICE, WAN};
use crate::tracked::{Outcome, Tracked};

pub(crate) struct World {
    pub(crate) ovs: Ovs,
    pub(crate) began: Instant,
    pub(crate) connection: Reconnecting,
    pub(crate) turned: Vec<Turned>,
    pub(crate) steering: Steering,
    pub(crate) wan: Line,
    pub(crate) monitor: Line,
    pub(crate) instances: Vec<Line>,
    pub(crate) packets: Tracked,
    /// Copies of packets that came out of the monitor port: those of flows without a rule of their own.
    pub(crate) copies: u64,
}

impl World {
    pub(crate) fn start(setup: FlowSetup, max_revalidator_ms: u32) -> Option<World> {
        World::start_with(setup, max_revalidator_ms, Nanos::from_secs(10))
    }

    /// The same, where a flow has ended after that time without a packet.
    pub(crate) fn start_with(setup: FlowSetup, max_revalidator_ms: u32, idle: Nanos) -> Option<World> {
        let ovs = Ovs::start()?;
        ovs.bridge(max_revalidator_ms);
        let (wan, monitor, instances) = ovs.lines();
        let rules = ServiceRules {
            id: SERVICE,
            sides: vec![Side {
                uplink: 0,
                port: WAN,
                data_port: 0,
                is_answering: false,
                fields: vec![Field::eth_type(0x0800), Field::ip_proto(protocol::UDP)],
            }],
            spread: Spread {
                parts: vec![(Part::SourcePort, 4)],
            },
            uplinks: vec![WAN],
            fit: 1.0,
        };
        let settings = Settings {
            setup,
            statistics_every: Nanos::from_millis(50),
            idle: Timeouts::all(idle),
            ..Settings::default()
        };
        let scheduler = Scheduler::from_name("round-robin").unwrap();
        let mut world = World {
            began: Instant::now(),
            connection: Reconnecting::new(Endpoint::Unix(ovs.of("br0.mgmt").into()), Limits::default()),
            turned: Vec::new(),
            steering: Steering::new(settings, vec![(rules, scheduler)], MONITOR),
            ovs,
            wan,
            monitor,
            instances,
            packets: Tracked::default(),
            copies: 0,
        };
        for slot in 0..INSTANCES {
            world
                .steering
                .attach(Slot(slot), SERVICE, vec![FIRST_INSTANCE + u32::from(slot)]);
        }
        world.scale(INSTANCES);
        world.until("buckets have instances, if there are any", |world| {
            let buckets = world.steering.buckets(SERVICE);
            world.steering.is_settled() && (buckets.len() == 1 || !buckets.contains(&None))
        });
        world.run(Duration::from_millis(100));
        Some(world)
    }

    pub(crate) fn scale(&mut self, active: u16) {
        for slot in 0..INSTANCES {
            let terms = InstanceTerms {
                takes_flows: slot < active,
                capacity: 1e6,
                ..InstanceTerms::default()
            };
            self.steering.set_terms(Slot(slot), terms);
        }
    }

    pub(crate) fn turn(&mut self) {
        let now = Nanos(self.began.elapsed().as_nanos() as u64);
        self.connection.turn(now.0, &mut self.turned);
        for turned in self.turned.drain(..) {
            match turned {
                Turned::Up(_) => self.steering.connected(),
                Turned::Said(Event::Message { xid, message }) => self.steering.message(xid, &message, now),
                Turned::Said(_) => {}
                Turned::Down(_) => self.steering.disconnected(),
            }
        }
        while let Some(frame) = self.monitor.receive() {
            // Behind the tag that says whose it is.
            self.copies += u64::from(frame.get(16..18) == Some([0x08, 0x00].as_slice()));
            self.steering.monitor(&frame, now);
        }
        self.steering.tick(now);
        while let Some(frame) = self.steering.next_injection() {
            self.monitor.send(&frame);
        }
        if let Some(connection) = self.connection.connection() {
            self.steering.send(|message| connection.send(message).ok());
        }
        for (slot, line) in self.instances.iter_mut().enumerate() {
            while let Some(frame) = line.receive() {
                self.packets.arrived(FIRST_INSTANCE + slot as u32, &frame);
            }
        }
        self.wan.flush();
        self.monitor.flush();
    }

    pub(crate) fn until(&mut self, what: &str, is_so: impl Fn(&World) -> bool) {
        let since = Instant::now();
        while !is_so(self) {
            assert!(
                since.elapsed() < LIMIT,
                "not within {LIMIT:?}: {what}; {:?}",
                self.steering.figures()
            );
            self.turn();
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    pub(crate) fn run(&mut self, span: Duration) {
        let since = Instant::now();
        while since.elapsed() < span {
            self.turn();
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    pub(crate) fn outcome(&mut self) -> Outcome {
        let since = Instant::now();
        while self.packets.missing() > 0 && since.elapsed() < Duration::from_secs(2) {
            self.run(Duration::from_millis(10));
        }
        self.packets.outcome()
    }

    /// New flows, each with a few packets at once and a few later, while the number of instances changes.
    pub(crate) fn flows_while_scaling(&mut self, scales: &[u16], flows_each: u32) {
        let mut flow = 0;
        for active in scales {
            self.scale(*active);
            for _ in 0..flows_each {
                for _ in 0..4 {
                    let frame = self.packets.next(flow, false);
                    self.wan.send(&frame);
                }
                // An older one goes on.
                let frame = self.packets.next(flow.saturating_sub(20), false);
                self.wan.send(&frame);
                flow += 1;
                // A dummy port loses what it has no time for: no more is under way than it can hold.
                self.until("few packets are under way", |world| world.packets.missing() < 30);
            }
        }
    }
}
