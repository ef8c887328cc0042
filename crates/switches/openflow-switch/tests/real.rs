//! The core against a real `ovs-vswitchd` with its userspace datapath: its cache, its revalidators, its counters.
//! Ports are sockets (Open vSwitch's dummy ports), of which each has its other end here.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what goes wrong here fails the test"
)]

mod tracked;

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use model::{FlowSetup, Nanos, ServiceId, Slot, Timeouts, protocol};
use openflow::{
    Action, ConnectionTracking, Event, Field, FieldKind, FlowMod, Instruction, Limits, Match, Message,
};
use openflow_switch::{InstanceTerms, Part, RuleState, ServiceRules, Settings, Side, Spread, Steering};
use openvswitch::{BridgeSpec, Endpoint, Ovsdb, PortSpec, Reconnecting, Turned};
use real_parts::available;
use scheduling::Scheduler;
use tracked::{Outcome, Tracked};

const LIMIT: Duration = Duration::from_secs(30);
const SERVICE: ServiceId = ServiceId(0);
const WAN: u32 = 1;
const MONITOR: u32 = 9;
const FIRST_INSTANCE: u32 = 100;
const INSTANCES: u16 = 4;
/// New flows for each number of instances.
const FLOWS_EACH: u32 = 100;

/// One end of a port: frames with their lengths before them.
struct Line {
    stream: UnixStream,
    received: Vec<u8>,
    unsent: Vec<u8>,
}

impl Line {
    fn connect(path: &Path) -> Line {
        let since = Instant::now();
        loop {
            if let Ok(stream) = UnixStream::connect(path) {
                stream.set_nonblocking(true).unwrap();
                return Line {
                    stream,
                    received: Vec::new(),
                    unsent: Vec::new(),
                };
            }
            assert!(since.elapsed() < LIMIT, "nobody listens at {}", path.display());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn send(&mut self, frame: &[u8]) {
        self.unsent.extend_from_slice(&(frame.len() as u16).to_be_bytes());
        self.unsent.extend_from_slice(frame);
        self.flush();
    }

    fn flush(&mut self) {
        match self.stream.write(&self.unsent) {
            Ok(written) => drop(self.unsent.drain(..written)),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
        }
    }

    fn receive(&mut self) -> Option<Vec<u8>> {
        let mut buffer = [0; 16_384];
        match self.stream.read(&mut buffer) {
            Ok(read) => self.received.extend_from_slice(&buffer[..read]),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
        }
        let length = usize::from(u16::from_be_bytes(*self.received.first_chunk::<2>()?));
        let frame = self.received.get(2..2 + length)?.to_vec();
        self.received.drain(..2 + length);
        Some(frame)
    }
}

/// A switch and its database in a directory of their own.
struct Ovs {
    directory: tempfile::TempDir,
    children: Vec<Child>,
}

impl Drop for Ovs {
    fn drop(&mut self) {
        for child in self.children.iter_mut().rev() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Ovs {
    /// [`None`] where Open vSwitch is not installed.
    fn start() -> Option<Ovs> {
        let missing = ["ovsdb-server", "ovs-vswitchd", "ovsdb-tool"]
            .iter()
            .find(|program| Command::new(program).arg("--version").output().is_err());
        if !available("ovs", missing.map(|program| format!("there is no {program}"))) {
            return None;
        }
        let directory = tempfile::Builder::new().prefix("ovs").tempdir_in("/tmp").unwrap();
        let mut ovs = Ovs {
            directory,
            children: Vec::new(),
        };
        let run = |command: &mut Command| assert!(command.output().unwrap().status.success(), "{command:?}");
        run(Command::new("ovsdb-tool").args([
            "create",
            &ovs.of("conf.db"),
            "/usr/share/openvswitch/vswitch.ovsschema",
        ]));
        ovs.spawn(
            "ovsdb-server",
            &[ovs.of("conf.db"), format!("--remote=punix:{}", ovs.of("db.sock"))],
        );
        let since = Instant::now();
        while !Path::new(&ovs.of("db.sock")).exists() {
            assert!(since.elapsed() < LIMIT, "the database does not listen");
            std::thread::sleep(Duration::from_millis(2));
        }
        run(Command::new("ovs-vsctl").args([
            &format!("--db=unix:{}", ovs.of("db.sock")),
            "--no-wait",
            "init",
        ]));
        ovs.start_switch();
        Some(ovs)
    }

    /// A bridge with all ports. `max_revalidator_ms`: how long the switch may leave counters unread.
    fn bridge(&self, max_revalidator_ms: u32) {
        let mut database = Ovsdb::connect(&Endpoint::Unix(self.of("db.sock").into()), LIMIT).unwrap();
        let lag = BTreeMap::from([("max-revalidator".to_owned(), max_revalidator_ms.to_string())]);
        database.set_other_config(&lag).unwrap();
        database
            .ensure_bridge(&BridgeSpec {
                name: "br0".into(),
                datapath: "dummy".into(),
                external_ids: BTreeMap::new(),
                listens: None,
            })
            .unwrap();
        let instances = (0..INSTANCES).map(|slot| FIRST_INSTANCE + u32::from(slot));
        let numbers: Vec<u32> = [WAN, MONITOR].into_iter().chain(instances).collect();
        let spec = |number: &u32| PortSpec {
            name: format!("p{number}"),
            kind: "dummy".into(),
            options: BTreeMap::from([(
                "pstream".into(),
                format!("punix:{}", self.of(&format!("p{number}"))),
            )]),
            number: Some(*number as u16),
        };
        let ports: Vec<PortSpec> = numbers.iter().map(spec).collect();
        assert_eq!(database.ensure_ports("br0", &ports).unwrap(), numbers);
    }

    /// The other ends of the ports: wide area, monitor, instances.
    fn lines(&self) -> (Line, Line, Vec<Line>) {
        let line = |number: u32| Line::connect(Path::new(&self.of(&format!("p{number}"))));
        let instances = (0..INSTANCES).map(|slot| line(FIRST_INSTANCE + u32::from(slot)));
        (line(WAN), line(MONITOR), instances.collect())
    }

    /// The switch; its database is the first child.
    fn start_switch(&mut self) {
        let arguments = [
            format!("unix:{}", self.of("db.sock")),
            "--enable-dummy".to_owned(),
            "--disable-system".to_owned(),
        ];
        self.spawn("ovs-vswitchd", &arguments);
    }

    fn kill_switch(&mut self) {
        let mut switch = self.children.pop().unwrap();
        switch.kill().unwrap();
        switch.wait().unwrap();
    }

    fn of(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    fn spawn(&mut self, program: &str, arguments: &[String]) {
        let child = Command::new(program)
            .args(arguments)
            .arg(format!("--unixctl={}", self.of(&format!("{program}.ctl"))))
            .arg(format!("--log-file={}", self.of(&format!("{program}.log"))))
            .arg("-vconsole:off")
            .env("OVS_RUNDIR", self.directory.path())
            .env("OVS_DBDIR", self.directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        self.children.push(child.unwrap());
    }
}

struct World {
    ovs: Ovs,
    began: Instant,
    connection: Reconnecting,
    turned: Vec<Turned>,
    steering: Steering,
    wan: Line,
    monitor: Line,
    instances: Vec<Line>,
    packets: Tracked,
}

impl World {
    fn start(setup: FlowSetup, max_revalidator_ms: u32) -> Option<World> {
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
            idle: Timeouts::all(Nanos::from_secs(10)),
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

    fn scale(&mut self, active: u16) {
        for slot in 0..INSTANCES {
            let terms = InstanceTerms {
                takes_flows: slot < active,
                capacity: 1e6,
                ..InstanceTerms::default()
            };
            self.steering.set_terms(Slot(slot), terms);
        }
    }

    fn turn(&mut self) {
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

    fn until(&mut self, what: &str, is_so: impl Fn(&World) -> bool) {
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

    fn run(&mut self, span: Duration) {
        let since = Instant::now();
        while since.elapsed() < span {
            self.turn();
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    fn outcome(&mut self) -> Outcome {
        let since = Instant::now();
        while self.packets.missing() > 0 && since.elapsed() < Duration::from_secs(2) {
            self.run(Duration::from_millis(10));
        }
        self.packets.outcome()
    }

    /// New flows, each with a few packets at once and a few later, while the number of instances changes.
    fn flows_while_scaling(&mut self, scales: &[u16], flows_each: u32) {
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

#[test]
fn flows_keep_their_instance_while_buckets_move() {
    let Some(mut world) = World::start(FlowSetup::Proactive, 500) else {
        return;
    };
    world.flows_while_scaling(&[4, 1, 4, 2], FLOWS_EACH);
    world.until("buckets have stopped moving", |world| !world.steering.is_moving());
    let outcome = world.outcome();
    let flows = 4 * u64::from(FLOWS_EACH);
    let figures = world.steering.figures();
    println!("{outcome:?} {figures:?}");
    assert_eq!(outcome, Outcome::default(), "{figures:?}");
    assert!(
        figures.moved_buckets >= 12 && figures.mis_steered == 0 && figures.rules == flows,
        "{figures:?}"
    );
    // Open vSwitch gives what a flow had until its rules changed to the rules that it has then: packets of which a
    // copy came here may be counted by the exact rule too, and none is missing.
    let sum = |world: &World| -> u64 {
        let slots = (0..INSTANCES).map(|slot| world.steering.slot_figures(Slot(slot)).packets);
        slots.sum()
    };
    world.until("all is counted", |world| sum(world) >= flows * 5);
    assert!(sum(&world) < 2 * flows * 5, "{}", sum(&world));
}

/// An instance that was taken for dead goes on to give back packets: none of those that it gives after another
/// instance was given one of its flows leaves.
#[test]
fn what_a_failed_instance_sends_later_goes_nowhere() {
    let Some(mut world) = World::start(FlowSetup::Proactive, 500) else {
        return;
    };
    world.flows_while_scaling(&[4], 40);
    world.until("flows have rules", |world| world.steering.figures().rules == 40);
    let port = FIRST_INSTANCE + 1;
    let lost: Vec<u32> = (world.packets.flows.iter())
        .filter(|(_, sent)| sent.instance == Some(port))
        .map(|(flow, _)| *flow)
        .collect();
    assert!(!lost.is_empty());
    // Until then what it gives leaves.
    let frame = world.packets.next(lost[0], false);
    world.wan.send(&frame);
    world.instances[1].send(&frame);
    let since = Instant::now();
    while world.wan.receive().is_none() {
        assert!(since.elapsed() < LIMIT, "nothing that an instance gives leaves");
        world.run(Duration::from_micros(500));
    }
    for flow in &lost {
        world.packets.flows.get_mut(flow).unwrap().instance = None;
    }
    world.steering.fail(Slot(1));
    let now = Nanos(world.began.elapsed().as_nanos() as u64);
    world.steering.remove(Slot(1), now);
    let is_elsewhere = |world: &World| {
        let mut flows = lost.iter().filter_map(|flow| world.packets.flows.get(flow));
        flows.any(|sent| sent.instance.is_some_and(|of| of != port))
    };
    let (mut sent, mut moved_at) = (0_u32, None);
    let since = Instant::now();
    while moved_at.is_none_or(|at| sent < at + 500) {
        assert!(
            since.elapsed() < LIMIT,
            "its flows stay: {:?}",
            world.steering.figures()
        );
        // What the failed one still gives has its number at the end.
        let mut frame = world.packets.next(lost[sent as usize % lost.len()], false);
        world.wan.send(&frame);
        let end = frame.len() - 4;
        frame[end..].copy_from_slice(&sent.to_be_bytes());
        world.instances[1].send(&frame);
        sent += 1;
        world.run(Duration::from_micros(500));
        while let Some(frame) = world.wan.receive() {
            let number = u32::from_be_bytes(*frame.last_chunk().unwrap());
            assert!(
                moved_at.is_none_or(|at| number < at),
                "{number} left after {moved_at:?}"
            );
        }
        // Where it was given one before it failed, a packet may come to it late: it is nobody's by then.
        for flow in &lost {
            let sent = world.packets.flows.get_mut(flow).unwrap();
            sent.instance = sent.instance.filter(|of| *of != port);
        }
        if moved_at.is_none() && is_elsewhere(&world) {
            moved_at = Some(sent);
        }
    }
    assert_eq!(world.steering.figures().failed_flows, lost.len() as u64);
}

#[test]
fn counters_are_as_late_as_the_switch_is_told() {
    for lag_ms in [100, 500] {
        let Some(mut world) = World::start(FlowSetup::Proactive, lag_ms) else {
            return;
        };
        let frame = world.packets.next(1, false);
        world.wan.send(&frame);
        world.until("it has a rule", |world| world.steering.figures().rules == 1);
        world.run(Duration::from_millis(1200));
        let counted = |world: &World| world.steering.flows().next().map_or(0, |flow| flow.packets);
        let mut ages = Vec::new();
        for _ in 0..8 {
            let before = counted(&world);
            let frame = world.packets.next(1, false);
            world.wan.send(&frame);
            let since = Instant::now();
            world.until("it is counted", |world| counted(world) > before);
            ages.push(since.elapsed().as_millis());
            // Not in step with the switch.
            world.run(Duration::from_millis(13));
        }
        ages.sort_unstable();
        println!("max-revalidator {lag_ms} ms: counted after {ages:?} ms, read every 50 ms");
        assert!(ages[7] < 3000, "{ages:?}");
    }
}

#[test]
fn the_reactive_way_keeps_instances() {
    let Some(mut world) = World::start(FlowSetup::Reactive, 500) else {
        return;
    };
    world.flows_while_scaling(&[4, 1], 50);
    let outcome = world.outcome();
    println!("{outcome:?} {:?}", world.steering.figures());
    assert_eq!(outcome.mis_steered, 0, "{outcome:?}");
    assert_eq!(world.steering.flows().count(), 100);
}

#[test]
fn a_killed_switch_gets_its_pins_back_before_its_buckets() {
    let Some(mut world) = World::start(FlowSetup::Proactive, 500) else {
        return;
    };
    world.flows_while_scaling(&[4, 1], FLOWS_EACH);
    world.until("buckets have moved", |world| {
        (1..INSTANCES).all(|slot| !world.steering.may_get_flows(Slot(slot)))
    });
    let outcome = world.outcome();
    assert_eq!((outcome.lost, outcome.mis_steered), (0, 0), "{outcome:?}");
    world.ovs.kill_switch();
    world.ovs.start_switch();
    let since = Instant::now();
    (world.wan, world.monitor, world.instances) = world.ovs.lines();
    let has_ports = since.elapsed();
    // Flows go on before it has any rule: what comes too early is lost, and nothing goes astray.
    for round in 0..5 {
        for flow in 0..2 * FLOWS_EACH {
            let frame = world.packets.next(flow, false);
            world.wan.send(&frame);
            world.run(Duration::from_millis(if round == 0 { 2 } else { 1 }));
        }
    }
    world.until("it is settled", |world| world.steering.is_settled());
    let outcome = world.outcome();
    println!(
        "restarted: ports after {has_ports:?}, {outcome:?} {:?}",
        world.steering.figures()
    );
    assert_eq!((outcome.duplicated, outcome.mis_steered), (0, 0), "{outcome:?}");
    // All is as it was.
    let frame = world.packets.next(0, false);
    world.wan.send(&frame);
    let missing = world.packets.missing();
    world.until("it arrives", |world| world.packets.missing() < missing);
}

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

#[test]
fn exact_rules_are_written_while_flows_go_on() {
    let Some(mut world) = World::start(FlowSetup::Proactive, 500) else {
        return;
    };
    // A table of its own, of which no packet knows: writing is measured, not looking up.
    let pin = |number: u32| {
        Message::FlowMod(FlowMod {
            table: 7,
            priority: 300,
            matches: Match::new([
                Field::in_port(WAN),
                Field::eth_type(0x0800),
                Field::ip_proto(17),
                Field::source(Ipv4Addr::from(number >> 16).into()),
                Field::destination(Ipv4Addr::new(10, 128, 0, 1).into()),
                Field::u16(FieldKind::UDP_SRC, number as u16),
                Field::u16(FieldKind::UDP_DST, 80),
            ]),
            instructions: vec![Instruction::ApplyActions(vec![Action::output(FIRST_INSTANCE)])],
            ..FlowMod::default()
        })
    };
    world.flows_while_scaling(&[4], 20);
    let count = std::env::var("INCO_FULL_LENGTH").map_or(5_000, |_| 100_000);
    let since = Instant::now();
    let mut written = 0;
    while written < count {
        let connection = world.connection.connection().unwrap();
        while written < count && connection.waiting_bytes() < 64 << 10 {
            connection.send(&pin(written)).unwrap();
            written += 1;
        }
        if world.packets.missing() < 10 {
            let frame = world.packets.next(written % 20, false);
            world.wan.send(&frame);
        }
        world.turn();
    }
    // A proof waits behind them.
    world.scale(3);
    world.until("buckets move", |world| world.steering.is_moving());
    world.until("buckets have moved", |world| !world.steering.is_moving());
    let rate = f64::from(count) / since.elapsed().as_secs_f64();
    let outcome = world.outcome();
    println!(
        "{count} rules, then buckets moved, in {:?}: {rate:.0} rules/s; {outcome:?}",
        since.elapsed()
    );
    assert_eq!(outcome, Outcome::default(), "{:?}", world.steering.figures());
}

impl World {
    /// Has these flows begin all at once: copies of their first packets come to us, as if each had met the rule of an
    /// instance.
    fn begin_together(&mut self, flows: std::ops::Range<u32>) {
        let now = Nanos(self.began.elapsed().as_nanos() as u64);
        let mut packets = Tracked::default();
        for flow in flows {
            let mut frame = packets.next(flow, false);
            // The tag of an instance is its slot and one more, with the uplink as its priority.
            frame.splice(
                12..12,
                [0x81, 0x00, 0x00, 1 + (flow % u32::from(INSTANCES)) as u8],
            );
            self.steering.monitor(&frame, now);
        }
    }

    fn installed(&self) -> usize {
        let flows = self.steering.flows();
        flows.filter(|flow| flow.state == RuleState::Installed).count()
    }

    /// How many rules the switch's first table has.
    fn rules(&self) -> usize {
        let output = Command::new("ovs-ofctl")
            .args(["-O", "OpenFlow15", "--no-stats", "dump-flows"])
            .arg(format!("unix:{}", self.ovs.of("br0.mgmt")))
            .arg("table=0")
            .output()
            .unwrap();
        String::from_utf8(output.stdout)
            .unwrap()
            .matches("priority=")
            .count()
    }
}

#[test]
fn rules_that_wait_together_go_in_bundles_and_a_refused_one_goes_alone() {
    let Some(mut world) = World::start(FlowSetup::Proactive, 500) else {
        return;
    };
    let before = world.rules();
    let count = 4_000;
    let since = Instant::now();
    world.begin_together(0..count);
    world.until("all have rules", |world| world.installed() == count as usize);
    let rate = f64::from(count) / since.elapsed().as_secs_f64();
    let figures = world.steering.figures();
    println!(
        "{count} rules of flows in {} batches: {rate:.0} rules/s",
        figures.batches
    );
    assert_eq!(world.rules() - before, count as usize);
    assert!(figures.batches >= u64::from(count) / 256, "{figures:?}");
    assert_eq!(
        (figures.split_batches, figures.refused, figures.errors),
        (0, 0, 0)
    );

    // A table that has room for 60 of 100 more.
    let limited = Command::new("ovs-vsctl")
        .arg(format!("--db=unix:{}", world.ovs.of("db.sock")))
        .args(["--timeout=10", "--id=@table", "create", "Flow_Table"])
        .arg(format!("flow_limit={}", world.rules() + 60))
        .args(["--", "set", "Bridge", "br0", "flow_tables:0=@table"])
        .output()
        .unwrap();
    assert!(limited.status.success(), "{limited:?}");
    world.begin_together(count..count + 100);
    // The others are tried again, and refused again, all the time.
    world.until(
        "as many as there is room for, and the others are refused",
        |world| {
            let refused = RuleState::Refused { kind: 5, code: 1 };
            let others = world.steering.flows().filter(|flow| flow.state == refused);
            world.installed() == count as usize + 60 && others.count() == 40
        },
    );
    assert!(world.steering.figures().split_batches > 0);
    assert_eq!(world.rules() - before, count as usize + 60);
}
