//! Tests against a private `ovs-vswitchd` with Open vSwitch's dummy datapath: rules, counters, packets,
//! bundles, and a restart of the switch.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use openflow::{
    Action, BundleControl, BundleStep, ErrorMessage, Event, Field, FieldKind, FlowCommand, FlowFilter,
    FlowFlags, FlowMod, FlowStats, Instruction, Limits, Match, Message, MultipartReply, MultipartRequest,
    PacketOut, Role, Version,
};
use openvswitch::{
    BridgeSpec, DatapathFlow, Endpoint, Keys, Offload, Ovsdb, OvsdbError, PortSpec, Reconnecting, Turned,
    Unixctl, datapath_flows,
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use real_parts::available;

const LIMIT: Duration = Duration::from_secs(20);

/// A switch and its database in their own directory.
struct Switch {
    directory: tempfile::TempDir,
    database: Child,
    switch: Child,
}

impl Switch {
    /// [`None`] without Open vSwitch or root.
    fn start() -> Option<Switch> {
        let missing = ["ovsdb-server", "ovs-vswitchd", "ovsdb-tool"]
            .iter()
            .find(|program| Command::new(program).arg("--version").output().is_err());
        if !available("ovs", missing.map(|program| format!("there is no {program}"))) {
            return None;
        }
        let directory = tempfile::Builder::new().prefix("ovs").tempdir_in("/tmp").unwrap();
        let of = |name: &str| directory.path().join(name).display().to_string();
        let created = Command::new("ovsdb-tool")
            .args([
                "create",
                &of("conf.db"),
                "/usr/share/openvswitch/vswitch.ovsschema",
            ])
            .status()
            .unwrap();
        assert!(created.success());
        let database = in_place(directory.path(), "ovsdb-server")
            .args([of("conf.db"), format!("--remote=punix:{}", of("db.sock"))])
            // As Open vSwitch's own scripts start it: other listeners and keys are in the database.
            .args([
                "--remote=db:Open_vSwitch,Open_vSwitch,manager_options",
                "--private-key=db:Open_vSwitch,SSL,private_key",
                "--certificate=db:Open_vSwitch,SSL,certificate",
                "--ca-cert=db:Open_vSwitch,SSL,ca_cert",
            ])
            .spawn()
            .unwrap();
        until("the database listens", || Path::new(&of("db.sock")).exists());
        let made = Command::new("ovs-vsctl")
            .args([
                format!("--db=unix:{}", of("db.sock")),
                "--no-wait".into(),
                "init".into(),
            ])
            .status();
        assert!(made.unwrap().success());
        let switch = vswitchd(directory.path());
        Some(Switch {
            directory,
            database,
            switch,
        })
    }

    fn endpoint(&self, name: &str) -> Endpoint {
        Endpoint::Unix(self.directory.path().join(name))
    }

    fn database(&self) -> Ovsdb {
        Ovsdb::connect(&self.endpoint("db.sock"), LIMIT).unwrap()
    }

    /// Injects a packet into a port.
    fn receive(&self, port: &str, packet: &str) {
        let said = self.tool("ovs-appctl", &["netdev-dummy/receive", port, packet]);
        assert_eq!(said, "", "{said}");
    }

    fn tool(&self, program: &str, arguments: &[&str]) -> String {
        let output = Command::new(program)
            .args(arguments)
            .env("OVS_RUNDIR", self.directory.path())
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap()
    }

    /// A bridge with two ports, numbers 1 and 2.
    fn bridge(&self) -> Vec<u32> {
        let mut database = self.database();
        database
            .ensure_bridge(&BridgeSpec {
                name: "br0".into(),
                datapath: "dummy".into(),
                external_ids: BTreeMap::from([("owner".into(), "test".into())]),
                listens: None,
            })
            .unwrap();
        let ports = [port("p1", 1), port("p2", 2)];
        let numbers = database.ensure_ports("br0", &ports).unwrap();
        // Existing ones stay.
        assert_eq!(database.ensure_ports("br0", &ports).unwrap(), numbers);
        numbers
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        for child in [&mut self.switch, &mut self.database] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn in_place(directory: &Path, program: &str) -> Command {
    let mut command = Command::new(program);
    command
        .args([
            format!(
                "--log-file={}",
                directory.join(format!("{program}.log")).display()
            ),
            "-vconsole:off".to_owned(),
            format!("--pidfile={}", directory.join(format!("{program}.pid")).display()),
        ])
        .env("OVS_RUNDIR", directory)
        .env("OVS_DBDIR", directory)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

fn vswitchd(directory: &Path) -> Child {
    let database = format!("unix:{}", directory.join("db.sock").display());
    let mut command = in_place(directory, "ovs-vswitchd");
    command.args([
        database,
        "--enable-dummy".to_owned(),
        "--disable-system".to_owned(),
    ]);
    command.spawn().unwrap()
}

fn port(name: &str, number: u16) -> PortSpec {
    PortSpec {
        name: name.into(),
        kind: "dummy".into(),
        options: BTreeMap::new(),
        number: Some(number),
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let since = Instant::now();
    while !done() {
        assert!(since.elapsed() < LIMIT, "not within {LIMIT:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A controller on a connection.
struct Controller {
    began: Instant,
    connection: Reconnecting,
    turned: Vec<Turned>,
}

impl Controller {
    fn new(endpoint: Endpoint) -> Controller {
        Controller {
            began: Instant::now(),
            connection: Reconnecting::new(endpoint, Limits::default()),
            turned: Vec::new(),
        }
    }

    fn turn(&mut self) {
        let now = self.began.elapsed().as_nanos() as u64;
        self.connection.turn(now, &mut self.turned);
    }

    fn send(&mut self, message: &Message) -> u32 {
        self.connection.connection().unwrap().send(message).unwrap()
    }

    /// Turns until `pick` accepts a result.
    fn wait<T>(&mut self, what: &str, mut pick: impl FnMut(&Turned) -> Option<T>) -> T {
        let since = Instant::now();
        loop {
            self.turn();
            let found = self.turned.iter().position(|turned| {
                if let Turned::Said(Event::Message {
                    message: Message::Error(error),
                    ..
                }) = turned
                {
                    panic!("the switch refused something: {error:?}");
                }
                pick(turned).is_some()
            });
            if let Some(place) = found {
                let turned = self.turned.remove(place);
                return pick(&turned).unwrap();
            }
            assert!(
                since.elapsed() < LIMIT,
                "not within {LIMIT:?}: {what}; {:?}",
                self.turned
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The next error, and the transaction id of the refused message.
    fn error(&mut self, what: &str) -> (u32, ErrorMessage) {
        let since = Instant::now();
        loop {
            self.turn();
            let error = |turned: &Turned| match turned {
                Turned::Said(Event::Message {
                    xid,
                    message: Message::Error(error),
                }) => Some((*xid, error.clone())),
                _ => None,
            };
            if let Some(place) = self.turned.iter().position(|turned| error(turned).is_some()) {
                return error(&self.turned.remove(place)).unwrap();
            }
            assert!(since.elapsed() < LIMIT, "not within {LIMIT:?}: {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn message<T>(&mut self, what: &str, mut pick: impl FnMut(u32, &Message) -> Option<T>) -> T {
        self.wait(what, |turned| match turned {
            Turned::Said(Event::Message { xid, message }) => pick(*xid, message),
            Turned::Said(Event::Garbled { kind, error }) => panic!("{kind}: {error}"),
            _ => None,
        })
    }

    fn up(&mut self) {
        let tables = self.wait("up", |turned| match turned {
            Turned::Up(features) => Some(features.tables),
            _ => None,
        });
        assert!(tables > 100);
        // Packet-ins and events require a nonzero miss length.
        self.send(&Message::SetConfig {
            flags: 0,
            miss_send_bytes: 0xffff,
        });
    }

    fn barrier(&mut self) {
        let asked = self.send(&Message::BarrierRequest);
        self.message("a barrier's reply", |xid, message| {
            (xid == asked && *message == Message::BarrierReply).then_some(())
        });
    }

    fn flows(&mut self, filter: FlowFilter) -> Vec<FlowStats> {
        let asked = self.send(&Message::MultipartRequest(MultipartRequest::Flows(filter)));
        let mut flows = Vec::new();
        loop {
            let (part, more) = self.message("flows", |xid, message| match message {
                Message::MultipartReply {
                    more,
                    reply: MultipartReply::Flows(flows),
                } if xid == asked => Some((flows.clone(), *more)),
                _ => None,
            });
            flows.extend(part);
            if !more {
                return flows;
            }
        }
    }

    fn sent_by(&mut self, port: u32) -> u64 {
        let asked = self.send(&Message::MultipartRequest(MultipartRequest::Ports(port)));
        self.message("counters of a port", |xid, message| match message {
            Message::MultipartReply {
                reply: MultipartReply::Ports(ports),
                ..
            } if xid == asked => Some(ports.first().unwrap().sent_packets),
            _ => None,
        })
    }
}

fn udp(port: u16) -> Match {
    Match::new([
        Field::in_port(1),
        Field::eth_type(0x0800),
        Field::ip_proto(17),
        Field::source("10.0.0.7".parse().unwrap()),
        Field::destination("10.128.0.1".parse().unwrap()),
        Field::u16(FieldKind::UDP_SRC, 1000),
        Field::u16(FieldKind::UDP_DST, port),
    ])
}

fn rule(port: u16, cookie: u64, actions: Vec<Action>) -> FlowMod {
    FlowMod {
        cookie,
        priority: 100,
        flags: FlowFlags::SEND_REMOVED,
        matches: udp(port),
        instructions: vec![Instruction::ApplyActions(actions)],
        ..FlowMod::default()
    }
}

const PACKET: &str = "in_port(1),eth(src=02:00:00:00:00:01,dst=02:00:00:00:00:02),eth_type(0x0800),\
                      ipv4(src=10.0.0.7,dst=10.128.0.1,proto=17,tos=0,ttl=64,frag=no),udp(src=1000,dst=9)";

#[test]
fn rules_packets_and_counters_go_both_ways() {
    let Some(switch) = Switch::start() else { return };
    assert_eq!(switch.bridge(), [1, 2]);
    let mut controller = Controller::new(switch.endpoint("br0.mgmt"));
    controller.up();
    let own = rule(
        9,
        0x77,
        vec![Action::output(2), Action::output(openflow::port::CONTROLLER)],
    );
    controller.send(&Message::FlowMod(own.clone()));
    controller.barrier();
    let shown = switch.tool("ovs-ofctl", &["-O", "OpenFlow15", "dump-flows", "br0"]);
    assert!(
        shown.contains("priority=100,udp,in_port=p1,nw_src=10.0.0.7,nw_dst=10.128.0.1,tp_src=1000,tp_dst=9")
            || shown.contains(
                "priority=100,udp,in_port=1,nw_src=10.0.0.7,nw_dst=10.128.0.1,tp_src=1000,tp_dst=9"
            ),
        "{shown}"
    );
    switch.receive("p1", PACKET);
    let data = controller.message("the packet", |_, message| match message {
        Message::PacketIn(packet) if packet.in_port() == Some(1) && packet.cookie == 0x77 => {
            Some(packet.data.clone())
        }
        _ => None,
    });
    assert_eq!(data[..6], [2, 0, 0, 0, 0, 2]);
    until("it left by port 2", || controller.sent_by(2) == 1);
    // Datapath counters reach OpenFlow with the next revalidation.
    let all = || FlowFilter {
        cookie: 0x77,
        cookie_mask: u64::MAX,
        ..FlowFilter::default()
    };
    until("it is counted", || {
        let flows = controller.flows(all());
        assert_eq!(flows.len(), 1);
        assert_eq!((&flows[0].matches, flows[0].priority), (&own.matches, 100));
        assert_eq!(flows[0].instructions, own.instructions);
        flows[0].packets == 1
    });
    let packet = PacketOut {
        in_port: openflow::port::CONTROLLER,
        actions: vec![Action::output(2)],
        data,
    };
    controller.send(&Message::PacketOut(packet));
    until("ours left, too", || controller.sent_by(2) == 2);
    controller.send(&Message::FlowMod(FlowMod {
        command: FlowCommand::Delete,
        cookie: 0x77,
        cookie_mask: u64::MAX,
        table: openflow::ALL_TABLES,
        ..FlowMod::default()
    }));
    let removed = controller.message("its end", |_, message| match message {
        Message::FlowRemoved(removed) => Some((removed.cookie, removed.packets, removed.matches.clone())),
        _ => None,
    });
    assert_eq!(removed, (0x77, 1, own.matches));
}

/// Every message kind that this crate's controller sends or receives, in both versions.
#[test]
fn every_message_kind_works_in_both_versions() {
    let Some(switch) = Switch::start() else { return };
    switch.bridge();
    let database = format!("--db=unix:{}", switch.directory.path().join("db.sock").display());
    for (version, name) in [(Version::V13, "OpenFlow13"), (Version::V15, "OpenFlow15")] {
        let set = [&database, "set", "bridge", "br0", &format!("protocols={name}")];
        assert_eq!(switch.tool("ovs-vsctl", &set), "");
        // Hello, features, set-config.
        let mut controller = Controller::new(switch.endpoint("br0.mgmt"));
        controller.up();
        // The switch's own tool shows the version in use.
        let shown = switch.tool("ovs-ofctl", &["-O", name, "show", "br0"]);
        assert!(
            shown.contains("OFPT_FEATURES_REPLY") && shown.contains("p2"),
            "{version:?}: {shown}"
        );

        let asked = controller.send(&Message::EchoRequest(b"are you there".to_vec()));
        let other = controller.send(&Message::MultipartRequest(MultipartRequest::Description));
        // Replies come in order: an unanswered echo would have been an error before this.
        controller.message("who it is", |xid, message| match message {
            Message::MultipartReply {
                reply: MultipartReply::Description(of),
                ..
            } if xid == other && of.hardware.contains("Open vSwitch") => Some(()),
            _ => None,
        });
        assert!(asked < other);
        controller.send(&Message::RoleRequest {
            role: Role::Primary,
            generation: 7,
        });
        controller.message("the role", |_, message| match message {
            Message::RoleReply { role, .. } if *role == Role::Primary => Some(()),
            _ => None,
        });

        // A bundle with a rule; then a packet arrives, and another is sent.
        let flags = BundleControl::ATOMIC | BundleControl::ORDERED;
        let step = |step| {
            Message::BundleControl(BundleControl {
                bundle: 9,
                step,
                flags,
            })
        };
        let own = rule(
            9,
            0x99,
            vec![Action::output(2), Action::output(openflow::port::CONTROLLER)],
        );
        controller.send(&step(BundleStep::Open));
        controller.send(&Message::BundleAdd {
            bundle: 9,
            flags,
            xid: 0,
            message: Box::new(Message::FlowMod(own.clone())),
        });
        controller.send(&step(BundleStep::Commit));
        controller.message("the commit", |_, message| match message {
            Message::BundleControl(control) if control.step == BundleStep::CommitDone => Some(()),
            _ => None,
        });
        controller.barrier();
        let before = controller.sent_by(2);
        switch.receive("p1", PACKET);
        let data = controller.message("the packet", |_, message| match message {
            Message::PacketIn(packet) if packet.cookie == 0x99 => Some(packet.data.clone()),
            _ => None,
        });
        controller.send(&Message::PacketOut(PacketOut {
            in_port: openflow::port::CONTROLLER,
            actions: vec![Action::output(2)],
            data,
        }));
        until("both left by port 2", || controller.sent_by(2) == before + 2);

        // Statistics: of each flow, their sum, tables and ports.
        let filter = FlowFilter {
            cookie: 0x99,
            cookie_mask: u64::MAX,
            ..FlowFilter::default()
        };
        until("it is counted", || {
            controller.flows(filter.clone())[0].packets == 1
        });
        controller.send(&Message::MultipartRequest(MultipartRequest::Aggregate(filter)));
        controller.message("the sum", |_, message| match message {
            Message::MultipartReply {
                reply: MultipartReply::Aggregate(sum),
                ..
            } if (sum.flows, sum.packets) == (1, 1) => Some(()),
            _ => None,
        });
        controller.send(&Message::MultipartRequest(MultipartRequest::Tables));
        controller.message("tables", |_, message| match message {
            Message::MultipartReply {
                reply: MultipartReply::Tables(tables),
                ..
            } if tables.iter().map(|of| of.active).sum::<u32>() == 1 => Some(()),
            _ => None,
        });
        controller.send(&Message::MultipartRequest(MultipartRequest::PortDescriptions));
        controller.message("ports", |_, message| match message {
            Message::MultipartReply {
                reply: MultipartReply::PortDescriptions(ports),
                ..
            } if ports.iter().any(|port| port.name == "p2") => Some(()),
            _ => None,
        });

        // An error reports the problem, and the removal of the rule is reported.
        let bad = controller.send(&Message::FlowMod(FlowMod {
            table: openflow::ALL_TABLES,
            ..own.clone()
        }));
        let error = controller.error("the refusal");
        assert_eq!((error.0, error.1.kind), (bad, ErrorMessage::FLOW_MOD_FAILED));
        controller.send(&Message::FlowMod(FlowMod {
            command: FlowCommand::Delete,
            cookie: 0x99,
            cookie_mask: u64::MAX,
            table: openflow::ALL_TABLES,
            ..FlowMod::default()
        }));
        controller.message("its end", |_, message| match message {
            Message::FlowRemoved(removed) if (removed.cookie, removed.packets) == (0x99, 1) => Some(()),
            _ => None,
        });
    }
}

#[test]
fn a_bundle_is_atomic() {
    let Some(switch) = Switch::start() else { return };
    switch.bridge();
    let mut controller = Controller::new(switch.endpoint("br0.mgmt"));
    controller.up();
    let flags = BundleControl::ATOMIC | BundleControl::ORDERED;
    let step = |step| {
        Message::BundleControl(BundleControl {
            bundle: 5,
            step,
            flags,
        })
    };
    controller.send(&step(BundleStep::Open));
    for number in 0..500 {
        controller.send(&Message::BundleAdd {
            bundle: 5,
            flags,
            xid: 0,
            message: Box::new(Message::FlowMod(rule(
                number,
                number.into(),
                vec![Action::output(2)],
            ))),
        });
    }
    controller.barrier();
    assert_eq!(
        controller.flows(FlowFilter::default()),
        [],
        "nothing is done before"
    );
    controller.send(&step(BundleStep::Commit));
    controller.message("the commit", |_, message| match message {
        Message::BundleControl(control) if control.step == BundleStep::CommitDone => Some(()),
        _ => None,
    });
    let mut cookies: Vec<u64> = controller
        .flows(FlowFilter::default())
        .iter()
        .map(|flow| flow.cookie)
        .collect();
    cookies.sort_unstable();
    assert_eq!(cookies, (0..500).collect::<Vec<_>>());
}

#[test]
fn a_restarted_switch_is_reconnected() {
    let Some(mut switch) = Switch::start() else { return };
    switch.bridge();
    let mut controller = Controller::new(switch.endpoint("br0.mgmt"));
    controller.up();
    controller.send(&Message::FlowMod(rule(9, 1, vec![Action::output(2)])));
    controller.barrier();
    switch.switch.kill().unwrap();
    switch.switch.wait().unwrap();
    controller.wait("down", |turned| matches!(turned, Turned::Down(_)).then_some(()));
    assert!(!controller.connection.is_up());
    switch.switch = vswitchd(switch.directory.path());
    controller.turned.clear();
    controller.up();
    assert_eq!(
        controller.flows(FlowFilter::default()),
        [],
        "its rules went with it"
    );
}

#[test]
fn creation_failures_are_reported_with_the_reason() {
    let Some(switch) = Switch::start() else { return };
    switch.bridge();
    let mut database = switch.database();
    let wrong = PortSpec {
        kind: "nonsense".into(),
        ..port("p9", 9)
    };
    match database.ensure_ports("br0", &[wrong]) {
        Err(OvsdbError::Interface { interface, what }) => {
            assert_eq!(interface, "p9");
            assert!(what.contains("could not open network device p9"), "{what}");
        }
        other => panic!("{other:?}"),
    }
    database.delete_ports("br0", &["p9", "p1", "not-there"]).unwrap();
    assert_eq!(database.interface("p1").unwrap().number, None);
    database
        .set_other_config(&BTreeMap::from([("max-revalidator".into(), "100".into())]))
        .unwrap();
    database.delete_bridge("br0").unwrap();
    database.delete_bridge("br0").unwrap();
    assert!(!switch.directory.path().join("br0.mgmt").exists());
    let nowhere = Ovsdb::connect(&switch.endpoint("nobody.sock"), LIMIT);
    assert!(matches!(nowhere, Err(OvsdbError::Socket { .. })));
}

/// An authority like that of `ovs-pki`: its certificates name no address.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "an authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        Authority { issuer }
    }

    /// A key and a certificate signed by this authority, as files in that directory.
    fn keys(&self, directory: &Path, whose: &str) -> Keys {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        // A certificate with its authority's name would count as self-signed.
        params.distinguished_name.push(DnType::CommonName, whose);
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        let write = |name: &str, text: String| {
            let path = directory.join(format!("{whose}-{name}.pem"));
            std::fs::write(&path, text).unwrap();
            path
        };
        Keys {
            certificate: write("cert", signed.pem()),
            key: write("key", key.serialize_pem()),
            ca: write("ca", self.issuer.pem()),
        }
    }
}

/// A TCP port of this machine without a listener, for now.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

#[test]
fn everything_works_over_tls_and_untrusted_peers_are_rejected() {
    let Some(switch) = Switch::start() else { return };
    let directory = switch.directory.path();
    let (authority, stranger) = (Authority::new(), Authority::new());
    let theirs = authority.keys(directory, "switch");
    let ours = authority.keys(directory, "inco");
    let database = format!("--db=unix:{}", directory.join("db.sock").display());
    let (manager, control) = (free_port(), free_port());
    let text = |path: &Path| path.display().to_string();
    let set = [
        &database,
        "set-ssl",
        &text(&theirs.key),
        &text(&theirs.certificate),
        &text(&theirs.ca),
        "--",
        "set-manager",
        &format!("pssl:{manager}:127.0.0.1"),
    ];
    assert_eq!(switch.tool("ovs-vsctl", &set), "");
    let endpoint = |port: u16, keys: &Keys| {
        let endpoint: Endpoint = format!("ssl:127.0.0.1:{port}").parse().unwrap();
        endpoint.with_keys(Some(keys))
    };

    let since = Instant::now();
    let mut database = loop {
        let tried = Ovsdb::connect(&endpoint(manager, &ours), LIMIT)
            .and_then(|mut database| database.other_config("none").map(|_| database));
        match tried {
            Ok(database) => break database,
            Err(error) => assert!(since.elapsed() < LIMIT, "no answer over TLS: {error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let bridge = BridgeSpec {
        name: "br0".into(),
        datapath: "dummy".into(),
        external_ids: BTreeMap::new(),
        listens: endpoint(control, &ours).passive(),
    };
    database.ensure_bridge(&bridge).unwrap();
    let ports = [port("p1", 1), port("p2", 2)];
    assert_eq!(database.ensure_ports("br0", &ports).unwrap(), [1, 2]);

    let mut controller = Controller::new(endpoint(control, &ours));
    controller.up();
    // More than fits a socket's buffer, both ways.
    for port in 1..=2000 {
        let own = rule(port, u64::from(port), vec![Action::output(2)]);
        controller.send(&Message::FlowMod(own));
    }
    controller.barrier();
    assert_eq!(controller.flows(FlowFilter::default()).len(), 2000);

    // A certificate of another authority is rejected by both sides.
    let mixed = Keys {
        ca: ours.ca.clone(),
        ..stranger.keys(directory, "stranger")
    };
    let trusting_others = Keys {
        ca: mixed.certificate.with_file_name("stranger-ca.pem"),
        ..ours.clone()
    };
    for keys in [&mixed, &trusting_others] {
        let refused = Ovsdb::connect(&endpoint(manager, keys), LIMIT)
            .and_then(|mut database| database.other_config("none"))
            .unwrap_err();
        assert!(matches!(refused, OvsdbError::Socket { .. }), "{refused}");
        let mut controller = Controller::new(endpoint(control, keys));
        let what = controller.wait("refused", |turned| match turned {
            Turned::Down(error) => Some(Some(error.to_string())),
            Turned::Up(_) => Some(None),
            Turned::Said(_) => None,
        });
        assert!(what.is_some(), "it was accepted");
    }
    // Without keys, or with none in the files, the error says what is missing.
    let bare: Endpoint = format!("ssl:127.0.0.1:{manager}").parse().unwrap();
    let error = Ovsdb::connect(&bare, LIMIT).unwrap_err().to_string();
    assert!(error.contains("needs a certificate"), "{error}");
    let empty = Keys {
        ca: directory.join("conf.db"),
        ..ours
    };
    let error = Ovsdb::connect(&endpoint(manager, &empty), LIMIT)
        .unwrap_err()
        .to_string();
    assert!(error.contains("conf.db"), "{error}");
}

#[test]
fn a_bridge_listens_on_tcp() {
    let Some(switch) = Switch::start() else { return };
    let control: Endpoint = format!("tcp:127.0.0.1:{}", free_port()).parse().unwrap();
    let bridge = BridgeSpec {
        name: "br0".into(),
        datapath: "dummy".into(),
        external_ids: BTreeMap::new(),
        listens: control.passive(),
    };
    switch.database().ensure_bridge(&bridge).unwrap();
    Controller::new(control).up();
}

#[test]
fn offloaded_flows_are_read_from_the_switch() {
    let Some(switch) = Switch::start() else { return };
    switch.bridge();
    let mut controller = Controller::new(switch.endpoint("br0.mgmt"));
    controller.up();
    controller.send(&Message::FlowMod(rule(9, 0x77, vec![Action::output(2)])));
    controller.barrier();
    switch.receive("p1", PACKET);
    let mut control = Unixctl::connect(switch.directory.path(), LIMIT).unwrap();
    let mut flows: Vec<DatapathFlow> = Vec::new();
    until("the packet's flow is in the datapath", || {
        flows = datapath_flows(&control.dump_flows("dummy", "all").unwrap()).collect();
        !flows.is_empty()
    });
    let [flow] = flows.as_slice() else {
        panic!("{flows:?}");
    };
    assert_eq!(flow.offload, Offload::None);
    let tuple = flow.tuple;
    assert_eq!(
        (
            tuple.src,
            tuple.dst,
            tuple.src_port,
            tuple.dst_port,
            tuple.protocol
        ),
        (
            "10.0.0.7".parse().unwrap(),
            "10.128.0.1".parse().unwrap(),
            1000,
            9,
            17
        )
    );
    // There is no card here.
    assert_eq!(control.offloaded_flows("dummy").unwrap(), []);
    let refused = control.dump_flows("dummy", "bogus").unwrap_err();
    assert!(
        matches!(&refused, OvsdbError::Refused { what } if what.contains("bogus")),
        "{refused}"
    );
    drop(switch);
}
