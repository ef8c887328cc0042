//! The driver keeps the contract of every switch, over the fake switch: its connection, its database and its monitor
//! port are real sockets.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what goes wrong here fails the test"
)]

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::Ipv4Addr;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use model::{Generation, InstanceId, InstanceState, Nanos, PlaceId, Slot, Tuple, protocol};
use openflow_switch::{
    FakeNic, Faults, OpenFlowSwitch, OpenFlowSwitchConfig, PooledPorts, PortDevice, Settings,
};
use openvswitch::Endpoint;
use serde_json::{Value, json};
use switch::conformance::{self, Bed, SERVICE, SLOTS, frame_of, tuple_of};
use switch::{Edits, Plan, PortKind, PortSpec, SlotPlan, Switch, SwitchEvent, SwitchReading, SwitchRequest};

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
    /// While the switch's poller waits for a CPU: the packets that it has taken out of its ports.
    in_hand: Option<Vec<(u32, Vec<u8>)>>,
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
            in_hand: None,
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
        if let Some(in_hand) = &mut self.in_hand {
            in_hand.push((port, frame.to_vec()));
            return;
        }
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
        if self.in_hand.is_some() {
            return;
        }
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

impl FakeBed {
    /// The poller gets a CPU again.
    fn go_on(&mut self) {
        let now = self.now();
        for (port, frame) in self.in_hand.take().unwrap() {
            self.nic.packet(port, &frame, now);
        }
    }

    fn ask(&mut self, request: SwitchRequest) {
        self.switch.request(request).unwrap();
    }

    /// Publishes a plan with these active instances.
    fn publish(&mut self, generation: u64, active: &[Slot]) {
        let row = |slot: Slot| {
            active.contains(&slot).then(|| SlotPlan {
                instance: InstanceId(u32::from(slot.0) + 1),
                service: SERVICE,
                place: PlaceId::default(),
                state: InstanceState::Active,
                capacity_pps: 1e6,
                active_since: Nanos::ZERO,
                weight: 256,
                block: None,
                edits: Edits::default(),
            })
        };
        self.ask(SwitchRequest::Publish(Arc::new(Plan {
            generation: Generation(generation),
            services: vec![conformance::service()],
            slots: SLOTS.map(row).to_vec(),
            ..Plan::default()
        })));
        self.until("the plan is in force", |_, reading, _| {
            reading.acknowledged.0 >= generation
        });
    }

    fn until(
        &mut self,
        what: &str,
        mut holds: impl FnMut(&mut FakeBed, &SwitchReading, &[SwitchEvent]) -> bool,
    ) -> SwitchReading {
        let (began, mut events) = (Instant::now(), Vec::new());
        let mut reading = SwitchReading::new(1, 1, 32);
        loop {
            let now = self.wait();
            self.switch.poll(now, &mut events);
            self.switch.read(&mut reading);
            if holds(self, &reading, &events) {
                return reading;
            }
            assert!(
                began.elapsed() < PATIENCE,
                "not within {PATIENCE:?}: {what}: {reading:?}"
            );
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

/// What came in and is at no counter since.
fn missing(reading: &SwitchReading) -> i64 {
    let left = reading.sent() + reading.dropped() + reading.in_flight();
    (reading.offered() + reading.originated()).cast_signed() - left.cast_signed()
}

/// Where a machine has too few CPUs the poller waits in the middle of a burst, for longer than between many readings
/// of the counters.
#[test]
fn what_a_poller_has_in_hand_is_not_counted_as_lost_with_an_instance() {
    const BURST: usize = 5;
    let mut bed = FakeBed::new();
    bed.publish(1, &[]);
    for slot in [SLOTS[0], SLOTS[1]] {
        let port = bed.start_instance(slot);
        let service = SERVICE;
        bed.ask(SwitchRequest::Attach { slot, service, port });
        bed.until("it is attached", |_, _, events| {
            let is_it =
                |event: &SwitchEvent| matches!(event, SwitchEvent::Attached { slot: of, .. } if *of == slot);
            events.iter().any(is_it)
        });
    }
    bed.publish(2, &[SLOTS[0], SLOTS[1]]);
    bed.kill_instance(SLOTS[0]);
    bed.ask(SwitchRequest::Fail(SLOTS[0]));
    bed.publish(3, &[SLOTS[1]]);
    bed.ask(SwitchRequest::Detach(SLOTS[0]));
    bed.until("it is detached", |_, _, events| {
        events
            .iter()
            .any(|event| matches!(event, SwitchEvent::Detached { .. }))
    });
    bed.in_hand = Some(Vec::new());
    let packets: Vec<Tuple> = (0..BURST as u16)
        .map(|flow| Tuple {
            src: Ipv4Addr::new(10, 0, 0, 1).into(),
            dst: Ipv4Addr::new(192, 0, 2, 1).into(),
            src_port: 1000 + flow,
            dst_port: *conformance::service().matches.dst_port.unwrap().start(),
            protocol: protocol::UDP,
            vlan: 0,
        })
        .collect();
    bed.offer(&packets);
    let since = bed.now();
    let reading = bed.until("twenty readings are over", |bed, _, _| {
        bed.now().since(since) > Nanos::from_millis(200)
    });
    assert_eq!(missing(&reading), BURST as i64, "{reading:?}");
    bed.go_on();
    let mut taken = Vec::new();
    bed.until("all are at the other one", |bed, _, _| {
        taken.extend(bed.take(SLOTS[1]));
        taken.len() == BURST
    });
    bed.give_back(SLOTS[1], &taken);
    let reading = bed.until("all have returned", |_, reading, _| {
        reading.sent() == BURST as u64 && reading.in_flight() == 0
    });
    assert_eq!((missing(&reading), reading.dropped()), (0, 0), "{reading:?}");
    bed.switch.stop();
}
