//! The OpenFlow driver keeps the contract of every switch over a real Open vSwitch with DPDK.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use memif::{Client, ClientConfig, Link, RingConfig};
use model::{Nanos, Slot, Tuple};
use openflow_switch::{OpenFlowSwitch, OpenFlowSwitchConfig, PooledPorts, PortDevice, Settings};
use openvswitch::Endpoint;
use switch::conformance::{self, Bed, SERVICE, SLOTS, frame_of, tuple_of};
use switch::{PortKind, PortSpec, Switch};
use testbed::OpenVSwitch;

/// Debian's build with DPDK.
const PROGRAM: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";
const BRIDGE: &str = "br0";
const PATIENCE: Duration = Duration::from_secs(20);

struct RealBed {
    switch: OpenFlowSwitch,
    uplink: Link,
    instances: BTreeMap<Slot, Link>,
    directory: tempfile::TempDir,
    began: Instant,
}

/// The socket of a port, in a directory of a bed's own.
fn socket_of(directory: &Path, port: &str) -> PathBuf {
    directory.join(format!("{port}.sock"))
}

fn name_of(slot: Slot) -> String {
    format!("i{}", slot.0)
}

/// Connects to a port, as a function does.
fn connect(socket: PathBuf, queues: u16) -> Link {
    let config = ClientConfig {
        ring: RingConfig {
            queues,
            ..RingConfig::default()
        },
        ..ClientConfig::new(socket, 0)
    };
    Client::connect_when_ready(&config, PATIENCE).unwrap()
}

/// Takes all frames that wait. Those of the suite are given; the others, which are probes, go back at once.
fn take(link: &mut Link) -> Vec<Tuple> {
    let mut taken = Vec::new();
    let mut buffer = [0; 2048];
    for pair in &mut link.queues {
        while let Some(Ok(length)) = pair.rx.pop(&mut buffer) {
            let frame = &buffer[..length];
            match tuple_of(frame) {
                Some(tuple) => taken.push(tuple),
                None => pair.tx.push(frame).unwrap(),
            }
        }
        pair.rx.release();
        pair.tx.flush();
    }
    taken
}

fn give(link: &mut Link, packets: &[Tuple]) {
    let tx = &mut link.queues[0].tx;
    for tuple in packets {
        tx.push(&frame_of(tuple)).unwrap();
    }
    tx.flush();
}

impl RealBed {
    fn new(ovs: &OpenVSwitch) -> RealBed {
        let directory = tempfile::tempdir().unwrap();
        let device = |name: &str| PortDevice::Memif(socket_of(directory.path(), name));
        let pooled = |slot| PooledPorts {
            slot,
            service: SERVICE,
            devices: vec![device(&name_of(slot))],
        };
        let switch = OpenFlowSwitch::start(&OpenFlowSwitchConfig {
            bridge: BRIDGE.to_owned(),
            datapath: "netdev".to_owned(),
            database: Endpoint::Unix(ovs.database()),
            control: Endpoint::Unix(ovs.control(BRIDGE)),
            monitor_socket: socket_of(directory.path(), "monitor"),
            uplinks: vec![device("wan")],
            pool: SLOTS.map(pooled).to_vec(),
            services: vec![conformance::service()],
            bucket_bits: 5,
            steering: Settings::default(),
        });
        let switch = switch.unwrap();
        RealBed {
            uplink: connect(socket_of(directory.path(), "wan"), switch.queue_pairs()),
            switch,
            instances: BTreeMap::new(),
            directory,
            began: Instant::now(),
        }
    }
}

impl Bed for RealBed {
    fn switch(&mut self) -> &mut dyn Switch {
        &mut self.switch
    }

    fn start_instance(&mut self, slot: Slot) -> PortSpec {
        let socket = socket_of(self.directory.path(), &name_of(slot));
        let link = connect(socket.clone(), self.switch.queue_pairs());
        self.instances.insert(slot, link);
        PortSpec {
            deadline: Nanos(PATIENCE.as_nanos() as u64),
            ..PortSpec::new(PortKind::Memif, socket)
        }
    }

    fn kill_instance(&mut self, slot: Slot) {
        self.instances.remove(&slot);
    }

    fn offer(&mut self, packets: &[Tuple]) {
        give(&mut self.uplink, packets);
    }

    fn take(&mut self, slot: Slot) -> Vec<Tuple> {
        self.instances.get_mut(&slot).map(take).unwrap_or_default()
    }

    fn give_back(&mut self, slot: Slot, packets: &[Tuple]) {
        if let Some(link) = self.instances.get_mut(&slot) {
            give(link, packets);
        }
    }

    fn received(&mut self) -> Vec<Tuple> {
        take(&mut self.uplink)
    }

    fn wait(&mut self) -> Nanos {
        std::thread::sleep(Duration::from_micros(200));
        Nanos(self.began.elapsed().as_nanos() as u64)
    }
}

#[test]
fn the_openflow_driver_conforms_over_open_vswitch() {
    let missing = (!Path::new(PROGRAM).exists()).then(|| format!("there is no {PROGRAM}"));
    if !real_parts::available("ovs", missing) {
        return;
    }
    let folder = tempfile::Builder::new().prefix("ovs-").tempdir().unwrap();
    let ovs = OpenVSwitch::start(folder.path().join("ovs")).unwrap();
    conformance::run(|| RealBed::new(&ovs));
}
