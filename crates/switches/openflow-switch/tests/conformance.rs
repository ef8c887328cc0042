//! The driver keeps the contract of every switch, over the fake switch: its connection, its database and its monitor
//! port are real sockets.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what goes wrong here fails the test"
)]

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use model::{Nanos, Slot, Tuple};
use openflow_switch::{
    FakeNic, Faults, OpenFlowSwitch, OpenFlowSwitchConfig, PooledPorts, PortDevice, Settings,
};
use openvswitch::Endpoint;
use serde_json::{Value, json};
use switch::conformance::{self, Bed, SERVICE, SLOTS, frame_of, tuple_of};
use switch::{PortKind, PortSpec, Switch};

const BRIDGE: &str = "br0";
const UPLINK: &str = "wan";
const PATIENCE: Duration = Duration::from_secs(10);

/// The numbers of the ports that were made, by name.
type Numbers = Arc<Mutex<BTreeMap<String, u32>>>;

/// As much of Open vSwitch's database as a driver uses: a change is done at once, and no bridge was there before.
struct Database {
    socket: PathBuf,
    numbers: Numbers,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Database {
    fn start(socket: &Path) -> Database {
        let listener = UnixListener::bind(socket).unwrap();
        let (numbers, stop) = (Numbers::default(), Arc::new(AtomicBool::new(false)));
        let (made, stopped) = (Arc::clone(&numbers), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let mut clients = Vec::new();
            for client in listener.incoming() {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                let (client, made) = (client.unwrap(), Arc::clone(&made));
                clients.push(std::thread::spawn(move || answer_all(&client, &made)));
            }
            clients.into_iter().for_each(|client| client.join().unwrap());
        });
        Database {
            socket: socket.to_owned(),
            numbers,
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _wakes_it = UnixStream::connect(&self.socket);
        let _result = self.thread.take().unwrap().join();
    }
}

fn answer_all(mut client: &UnixStream, numbers: &Numbers) {
    let asked = serde_json::Deserializer::from_reader(client).into_iter::<Value>();
    for call in asked.map_while(Result::ok) {
        let operations = call["params"].as_array().unwrap().iter().skip(1);
        let mut numbers = numbers.lock().unwrap();
        let result: Vec<Value> = operations.map(|of| answer(of, &mut numbers)).collect();
        let reply = json!({"id": call["id"], "error": null, "result": result});
        if client.write_all(reply.to_string().as_bytes()).is_err() {
            return;
        }
    }
}

fn answer(operation: &Value, numbers: &mut BTreeMap<String, u32>) -> Value {
    let table = operation["table"].as_str().unwrap();
    match (operation["op"].as_str().unwrap(), table) {
        ("insert", "Interface") => {
            let row = &operation["row"];
            if let Some(number) = row["ofport_request"].as_u64() {
                numbers.insert(row["name"].as_str().unwrap().to_owned(), number as u32);
            }
            json!({"uuid": ["uuid", "0"]})
        }
        ("select", "Open_vSwitch") => {
            json!({"rows": [{"next_cfg": 1, "cur_cfg": 1, "other_config": ["map", [["dpdk-init", "true"]]]}]})
        }
        ("select", "Interface") => {
            let name = operation["where"][0][2].as_str().unwrap();
            json!({"rows": [{"ofport": numbers.get(name)}]})
        }
        ("select", _) => json!({"rows": []}),
        _ => json!({"count": 1}),
    }
}

/// An instance: it gives probes back at once, as a function does, and packets when it is told to.
struct Instance {
    port: u32,
    is_running: bool,
    taken: Vec<Tuple>,
}

struct FakeBed {
    switch: OpenFlowSwitch,
    nic: FakeNic,
    control: UnixListener,
    connection: Option<UnixStream>,
    uplink: u32,
    monitor: (u32, memif::Link),
    instances: BTreeMap<Slot, Instance>,
    received: Vec<Tuple>,
    began: Instant,
    _database: Database,
    _directory: tempfile::TempDir,
}

impl FakeBed {
    fn new() -> FakeBed {
        let directory = tempfile::tempdir().unwrap();
        let of = |name: &str| directory.path().join(name);
        let database = Database::start(&of("db.sock"));
        let control = UnixListener::bind(of("control")).unwrap();
        control.set_nonblocking(true).unwrap();
        let name = |slot: Slot| format!("i{}", slot.0);
        let config = OpenFlowSwitchConfig {
            bridge: BRIDGE.to_owned(),
            datapath: "netdev".to_owned(),
            database: Endpoint::Unix(of("db.sock")),
            control: Endpoint::Unix(of("control")),
            monitor_socket: of("monitor.sock"),
            uplinks: vec![PortDevice::Interface(UPLINK.to_owned())],
            pool: SLOTS
                .map(|slot| PooledPorts {
                    slot,
                    service: SERVICE,
                    devices: vec![PortDevice::Interface(name(slot))],
                })
                .to_vec(),
            services: vec![conformance::service()],
            bucket_bits: 5,
            steering: Settings::default(),
        };
        let switch = OpenFlowSwitch::start(&config).unwrap();
        let client = memif::ClientConfig::new(&config.monitor_socket, 0);
        let monitor = memif::Client::connect_when_ready(&client, PATIENCE).unwrap();
        let numbers = database.numbers.lock().unwrap().clone();
        let instance = |slot: Slot| Instance {
            port: numbers[&name(slot)],
            is_running: false,
            taken: Vec::new(),
        };
        FakeBed {
            switch,
            nic: FakeNic::new(Faults::default(), 1, Nanos::ZERO),
            control,
            connection: None,
            uplink: numbers[UPLINK],
            monitor: (numbers[&format!("{BRIDGE}.mon")], monitor),
            instances: SLOTS.map(|slot| (slot, instance(slot))).into(),
            received: Vec::new(),
            began: Instant::now(),
            _database: database,
            _directory: directory,
        }
    }

    fn now(&self) -> Nanos {
        Nanos(self.began.elapsed().as_nanos() as u64)
    }

    /// A frame comes in by that port.
    fn put(&mut self, port: u32, frame: &[u8]) {
        let counters = self.nic.port(port);
        counters.received_packets += 1;
        counters.received_bytes += frame.len() as u64;
        let now = self.now();
        self.nic.packet(port, frame, now);
    }

    /// Carries messages both ways.
    fn turn_connection(&mut self) {
        let now = self.now();
        if self.connection.is_none()
            && let Ok((stream, _)) = self.control.accept()
        {
            stream.set_nonblocking(true).unwrap();
            self.connection = Some(stream);
        }
        let Some(stream) = &mut self.connection else {
            return;
        };
        let mut buffer = [0; 65_536];
        loop {
            match stream.read(&mut buffer) {
                Ok(0) => return,
                Ok(read) => self.nic.receive(&buffer[..read], now).unwrap(),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        self.nic.tick(now);
        while !self.nic.output().is_empty() {
            match stream.write(self.nic.output()) {
                Ok(written) => self.nic.written(written),
                Err(_) => break,
            }
        }
    }

    /// Carries frames from the switch to the other ends of its ports, and what the driver injects.
    fn turn_ports(&mut self) {
        let mut buffer = [0; 2048];
        while let Some(Ok(length)) = self.monitor.1.queues[0].rx.pop(&mut buffer) {
            self.put(self.monitor.0, &buffer[..length]);
        }
        let pair = &mut self.monitor.1.queues[0];
        pair.rx.release();
        let mut probes = Vec::new();
        let now = self.now();
        for delivered in self.nic.delivered(now) {
            let counters = self.nic.port(delivered.port);
            let is_monitor = delivered.port == self.monitor.0;
            let instance = self.instances.values_mut().find(|of| of.port == delivered.port);
            if instance.as_ref().is_some_and(|of| !of.is_running) {
                counters.sent_dropped += 1;
                continue;
            }
            counters.sent_packets += 1;
            counters.sent_bytes += delivered.frame.len() as u64;
            match (instance, tuple_of(&delivered.frame)) {
                _ if is_monitor => self.monitor.1.queues[0].tx.push(&delivered.frame).unwrap(),
                (Some(instance), Some(tuple)) => instance.taken.push(tuple),
                (Some(_), None) => probes.push(delivered),
                (None, tuple) => self.received.extend(tuple),
            }
        }
        self.monitor.1.queues[0].tx.flush();
        for probe in probes {
            self.put(probe.port, &probe.frame);
        }
    }
}

impl Bed for FakeBed {
    fn switch(&mut self) -> &mut dyn Switch {
        &mut self.switch
    }

    fn start_instance(&mut self, slot: Slot) -> PortSpec {
        self.instances.get_mut(&slot).unwrap().is_running = true;
        PortSpec {
            deadline: Nanos(PATIENCE.as_nanos() as u64),
            ..PortSpec::new(PortKind::Device, "")
        }
    }

    fn kill_instance(&mut self, slot: Slot) {
        let instance = self.instances.get_mut(&slot).unwrap();
        instance.is_running = false;
        instance.taken.clear();
    }

    fn offer(&mut self, packets: &[Tuple]) {
        for tuple in packets {
            self.put(self.uplink, &frame_of(tuple));
        }
    }

    fn take(&mut self, slot: Slot) -> Vec<Tuple> {
        std::mem::take(&mut self.instances.get_mut(&slot).unwrap().taken)
    }

    fn give_back(&mut self, slot: Slot, packets: &[Tuple]) {
        let port = self.instances[&slot].port;
        for tuple in packets {
            self.put(port, &frame_of(tuple));
        }
    }

    fn received(&mut self) -> Vec<Tuple> {
        std::mem::take(&mut self.received)
    }

    fn wait(&mut self) -> Nanos {
        std::thread::sleep(Duration::from_micros(200));
        self.turn_connection();
        self.turn_ports();
        self.now()
    }
}

#[test]
fn the_driver_conforms() {
    conformance::run(FakeBed::new);
}
