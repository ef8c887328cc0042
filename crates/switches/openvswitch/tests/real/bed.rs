//! A private switch and its database, and who controls it.

use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use openflow::{
    Action, ErrorMessage, Event, Field, FieldKind, FlowFilter, FlowFlags, FlowMod, FlowStats, Instruction,
    Limits, Match, Message, MultipartReply, MultipartRequest,
};
use openvswitch::{BridgeSpec, Endpoint, Ovsdb, PortSpec, Reconnecting, Turned};
use real_parts::available;

pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// A switch and its database in their own directory.
pub(crate) struct Switch {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) database: Child,
    pub(crate) switch: Child,
}

impl Switch {
    /// [`None`] without Open vSwitch or root.
    pub(crate) fn start() -> Option<Switch> {
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
        until("the database listens", || {
            UnixStream::connect(of("db.sock")).is_ok()
        });
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

    pub(crate) fn endpoint(&self, name: &str) -> Endpoint {
        Endpoint::Unix(self.directory.path().join(name))
    }

    pub(crate) fn database(&self) -> Ovsdb {
        Ovsdb::connect(&self.endpoint("db.sock"), LIMIT).unwrap()
    }

    /// Injects a packet into a port.
    pub(crate) fn receive(&self, port: &str, packet: &str) {
        let said = self.tool("ovs-appctl", &["netdev-dummy/receive", port, packet]);
        assert_eq!(said, "", "{said}");
    }

    pub(crate) fn tool(&self, program: &str, arguments: &[&str]) -> String {
        let output = Command::new(program)
            .args(arguments)
            .env("OVS_RUNDIR", self.directory.path())
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap()
    }

    /// A bridge with two ports, numbers 1 and 2.
    pub(crate) fn bridge(&self) -> Vec<u32> {
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

pub(crate) fn in_place(directory: &Path, program: &str) -> Command {
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

pub(crate) fn vswitchd(directory: &Path) -> Child {
    let database = format!("unix:{}", directory.join("db.sock").display());
    let mut command = in_place(directory, "ovs-vswitchd");
    command.args([
        database,
        "--enable-dummy".to_owned(),
        "--disable-system".to_owned(),
    ]);
    command.spawn().unwrap()
}

pub(crate) fn port(name: &str, number: u16) -> PortSpec {
    PortSpec {
        name: name.into(),
        kind: "dummy".into(),
        options: BTreeMap::new(),
        number: Some(number),
    }
}

pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let since = Instant::now();
    while !done() {
        assert!(since.elapsed() < LIMIT, "not within {LIMIT:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A controller on a connection.
pub(crate) struct Controller {
    pub(crate) began: Instant,
    pub(crate) connection: Reconnecting,
    pub(crate) turned: Vec<Turned>,
}

impl Controller {
    pub(crate) fn new(endpoint: Endpoint) -> Controller {
        Controller {
            began: Instant::now(),
            connection: Reconnecting::new(endpoint, Limits::default()),
            turned: Vec::new(),
        }
    }

    pub(crate) fn turn(&mut self) {
        let now = self.began.elapsed().as_nanos() as u64;
        self.connection.turn(now, &mut self.turned);
    }

    pub(crate) fn send(&mut self, message: &Message) -> u32 {
        self.connection.connection().unwrap().send(message).unwrap()
    }

    /// Turns until `pick` accepts a result.
    pub(crate) fn wait<T>(&mut self, what: &str, mut pick: impl FnMut(&Turned) -> Option<T>) -> T {
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
    pub(crate) fn error(&mut self, what: &str) -> (u32, ErrorMessage) {
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

    pub(crate) fn message<T>(&mut self, what: &str, mut pick: impl FnMut(u32, &Message) -> Option<T>) -> T {
        self.wait(what, |turned| match turned {
            Turned::Said(Event::Message { xid, message }) => pick(*xid, message),
            Turned::Said(Event::Garbled { kind, error }) => panic!("{kind}: {error}"),
            _ => None,
        })
    }

    pub(crate) fn up(&mut self) {
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

    pub(crate) fn barrier(&mut self) {
        let asked = self.send(&Message::BarrierRequest);
        self.message("a barrier's reply", |xid, message| {
            (xid == asked && *message == Message::BarrierReply).then_some(())
        });
    }

    pub(crate) fn flows(&mut self, filter: FlowFilter) -> Vec<FlowStats> {
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

    pub(crate) fn sent_by(&mut self, port: u32) -> u64 {
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

pub(crate) fn udp(port: u16) -> Match {
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

pub(crate) fn rule(port: u16, cookie: u64, actions: Vec<Action>) -> FlowMod {
    FlowMod {
        cookie,
        priority: 100,
        flags: FlowFlags::SEND_REMOVED,
        matches: udp(port),
        instructions: vec![Instruction::ApplyActions(actions)],
        ..FlowMod::default()
    }
}

pub(crate) const PACKET: &str = "in_port(1),eth(src=02:00:00:00:00:01,dst=02:00:00:00:00:02),eth_type(0x0800),\
                      ipv4(src=10.0.0.7,dst=10.128.0.1,proto=17,tos=0,ttl=64,frag=no),udp(src=1000,dst=9)";

/// A TCP port of this machine without a listener, for now.
pub(crate) fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}
