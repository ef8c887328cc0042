//! Machines behind tunnels: an edge gives connections to two machines through VXLAN, each with an inco and a real nginx of
//! its own; replies go straight to the client.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use model::InstanceState;

use crate::addresses::{are_here, nginx};
use crate::back_ends::{CLIENTS, SERVICE, all_are_answered, is_active, row};
use crate::support::{Engine, Inco, Load, Namespace, Network, PATIENCE, Place, bridge, eventually};

pub(crate) const FIRST: &str = "10.0.0.11:4789";
pub(crate) const SECOND: &str = "10.0.0.12:4789";
/// A frame of 1,514 bytes has 50 bytes more in a tunnel.
pub(crate) const MTU: &str = "1600";

/// The edge: all of its instances are machines.
pub(crate) const EDGE: &str = "[switch]\ndriver = \"soft\"\ntimeouts = { tcp = \"3s\" }\n[[uplink]]\nname = \"wan\"\ndevice = \
                    \"kernel:eth1\"\nmax_frame = 1572\ntunnel = { address = \"10.0.0.1\", network = 7 \
                    }\n[service.web]\nport = \"tunnel\"\nvip = { address = \"10.0.0.100\", ports = 80 }\ninstances = { from = \
                    [\"10.0.0.11:4789\", \"10.0.0.12:4789\"] }\nscheduler = { policy = \"round-robin\", slow_start = \"0s\" \
                    }\ndrain_deadline = \"30s\"\n";

/// One segment: the client with its bridge, the edge, and the machines.
pub(crate) fn segment() -> Network {
    let network = Network::new();
    network.client_ip(&format!(
        "{}\naddress flush dev eth0\nlink set eth0 mtu {MTU} master br0\naddress add \
         10.0.0.2/24 dev br0\nlink set br0 mtu 1500 up",
        bridge("br0")
    ));
    network.machine_ip(&format!("link set eth1 mtu {MTU}"));
    network
}

/// A machine with an inco, and one nginx that says its name.
pub(crate) struct Machine {
    pub(crate) host: Namespace,
    pub(crate) place: Place,
    pub(crate) inco: Inco,
    port: String,
    configuration: String,
}

impl Machine {
    /// By a driver, behind the edge.
    fn by(network: &Network, beside: &Place, number: u8, driver: &str) -> Machine {
        Machine::with(network, beside, (number, &["10.0.0.1"]), |_, _, text| {
            by(driver, &text)
        })
    }

    /// With the driver `soft`, and what `change` makes of its network and its configuration.
    pub(crate) fn with(
        network: &Network,
        beside: &Place,
        (number, from): (u8, &[&str]),
        change: impl FnOnce(&Namespace, &Place, String) -> String,
    ) -> Machine {
        let host = Namespace::new();
        let port = format!("to-{number}");
        network.client_ip(&format!(
            "link add {port} type veth peer name eth1 netns {}\nlink set {port} mtu {MTU} master br0 up",
            host.pid()
        ));
        host.ip(&format!("link set lo up\nlink set eth1 mtu {MTU} up"));
        let place = beside.beside();
        let srv = place.path("srv");
        std::fs::create_dir(&srv).unwrap();
        std::fs::write(srv.join("index.html"), format!("machine {number}")).unwrap();
        let text = nginx(&place, Engine::Oci, "soft", "instances = 1\n");
        let device = "device = \"kernel:eth1\"\n";
        let tunnel = format!(
            "{device}max_frame = 1572\ntunnel = {{ address = \"10.0.0.1{number}\", network = 7, from = {from:?} }}\n"
        );
        let text = change(&host, &place, text.replace(device, &tunnel));
        let inco = host.within(|| place.run(&text));
        inco.settled(1, 0);
        Machine {
            host,
            place,
            inco,
            port,
            configuration: text,
        }
    }

    /// Its inco is killed, and another one goes on.
    pub(crate) fn with_another_inco(mut self) -> Machine {
        drop(self.inco.kill());
        self.inco = self.host.within(|| self.place.run(&self.configuration));
        self
    }

    pub(crate) fn stop(self) {
        drop(self.inco.stop_with(&self.place, &[]));
        self.place.is_left_clean();
        drop(self.host);
    }
}

/// A configuration with another driver.
fn by(driver: &str, text: &str) -> String {
    text.replace("driver = \"soft\"", &format!("driver = \"{driver}\""))
}

/// Both machines behind the edge, with the driver `soft`, and what `change` makes of their configurations.
pub(crate) fn two_machines(network: &Network, beside: &Place, change: fn(&str) -> String) -> Vec<Machine> {
    let machine = |number| {
        Machine::with(network, beside, (number, &["10.0.0.1"]), |_, _, text| {
            change(&text)
        })
    };
    [1, 2].map(machine).into()
}

/// Clients, once both machines have answered.
fn load_on_both(network: &Network) -> Load {
    once_both_answer(Load::start(network, SERVICE.parse().unwrap(), CLIENTS))
}

pub(crate) fn once_both_answer(load: Load) -> Load {
    eventually("both answer", PATIENCE, || {
        (load.first_answers().len() == 2).then_some(())
    });
    load
}

pub(crate) fn asked_for_more(load: &Load) {
    let asked = load.requests();
    eventually("many requests are answered", PATIENCE, || {
        (load.requests() > asked + 300).then_some(())
    });
}

/// A machine is drained and comes back, and the edge is killed and restarted: no request fails. Then a machine is cut off:
/// its flows move once, and it is back when it answers again.
fn machines_are_drained_and_lost_and_an_edge_is_restarted(edge_driver: &str, drivers: [&str; 2]) {
    if !are_here(Engine::Oci, &["nginx"]) {
        return;
    }
    let (place, network) = (Place::with_a_cpu(), segment());
    let machines = [(1, drivers[0]), (2, drivers[1])];
    let machines = machines.map(|(number, driver)| Machine::by(&network, &place, number, driver));
    let text = by(edge_driver, EDGE);
    let mut edge = network.run(&place, &text);
    is_active(&edge, FIRST);
    is_active(&edge, SECOND);

    let load = load_on_both(&network);
    let id = row(&edge, FIRST).unwrap().id.to_string();
    place.must(&["drain", &id]);
    eventually("the first one is empty", PATIENCE, || {
        row(&edge, FIRST).filter(|row| row.state == InstanceState::Draining && row.live_flows == 0)
    });
    let before = row(&edge, FIRST).unwrap().to_packets;
    asked_for_more(&load);
    assert_eq!(row(&edge, FIRST).unwrap().to_packets, before);
    place.must(&["undrain", &id]);
    is_active(&edge, FIRST);
    asked_for_more(&load);

    drop(edge.kill());
    edge = network.run(&place, &text);
    is_active(&edge, FIRST);
    is_active(&edge, SECOND);
    asked_for_more(&load);
    let outcome = load.end();
    assert!(
        outcome.failures == 0 && outcome.servers == 2,
        "{outcome:#?}\n{}\n{:#?}",
        edge.told(),
        edge.status().drops
    );
    let status = edge.at_rest();
    assert_eq!(status.accounting.expected_moves, 0, "{status:#?}");

    // What the edge put into tunnels, the machines took out: both ends count, and nothing is lost between them.
    for (machine, address) in machines.iter().zip([FIRST, SECOND]) {
        let told = machine.inco.at_rest();
        assert_eq!(told.drops.get("tunnel"), None, "{address}: {told:#?}");
    }

    let load = Load::start(&network, SERVICE.parse().unwrap(), CLIENTS);
    asked_for_more(&load);
    network.client_ip(&format!("link set {} down", machines[1].port));
    eventually("the machine is known to be lost", PATIENCE, || {
        row(&edge, SECOND).filter(|row| row.state != InstanceState::Active)
    });
    let _some_failed = load.end();
    all_are_answered(&network, &edge, 1);
    // For as long as it is cut off, the other one serves all.
    let load = Load::start(&network, SERVICE.parse().unwrap(), CLIENTS);
    let seconds = if real_parts::is_full_length() { 30 } else { 1 };
    std::thread::sleep(Duration::from_secs(seconds));
    let outcome = load.end();
    assert!(outcome.failures == 0 && outcome.servers == 1, "{outcome:#?}");
    network.client_ip(&format!("link set {} up", machines[1].port));
    is_active(&edge, SECOND);
    all_are_answered(&network, &edge, 2);

    drop(edge.stop_with(&place, &[]));
    machines.into_iter().for_each(Machine::stop);
}

#[test]
fn machines_behind_tunnels_are_drained_and_lost_and_an_edge_is_restarted() {
    machines_are_drained_and_lost_and_an_edge_is_restarted("soft", ["soft", "soft"]);
}

#[test]
fn the_same_with_an_edge_of_ebpf_before_machines_of_both_drivers() {
    machines_are_drained_and_lost_and_an_edge_is_restarted("ebpf", ["ebpf", "soft"]);
}

#[test]
fn the_same_with_an_edge_of_soft_before_machines_of_both_drivers() {
    machines_are_drained_and_lost_and_an_edge_is_restarted("soft", ["ebpf", "soft"]);
}

/// What comes and goes: all of these at one machine, then at the other one.
#[derive(Clone, Copy)]
enum Change {
    Drain,
    Undrain,
    ScaleOut,
    EdgeKilled,
    ScaleIn,
    MachineKilled,
}

const CHANGES: [Change; 6] = [
    Change::Drain,
    Change::Undrain,
    Change::ScaleOut,
    Change::EdgeKilled,
    Change::ScaleIn,
    Change::MachineKilled,
];

/// Machines, instances and the edge come and go in order: no request fails, no flow moves, and no packet of a tunnel is
/// refused.
#[test]
fn nothing_is_broken_while_machines_instances_and_the_edge_come_and_go() {
    if !are_here(Engine::Oci, &["nginx"]) {
        return;
    }
    let count = if real_parts::is_full_length() { 204 } else { 12 };
    let (place, network) = (Place::with_a_cpu(), segment());
    let mut machines = two_machines(&network, &place, |text| {
        text.replace(
            "instances = 1\n",
            "instances = { min = 1, max = 2, standby = 0 }\n",
        )
    });
    let mut edge = network.run(&place, EDGE);
    is_active(&edge, FIRST);
    is_active(&edge, SECOND);
    let load = load_on_both(&network);
    let nothing_moved = |inco: &Inco| {
        let status = inco.status();
        assert_eq!(status.accounting.expected_moves, 0, "{status:#?}");
        assert_eq!(status.drops.get("tunnel"), None, "{status:#?}");
    };
    for (event, change) in CHANGES.into_iter().cycle().take(count).enumerate() {
        let at = event / CHANGES.len() % 2;
        let address = [FIRST, SECOND][at];
        let id = row(&edge, address).unwrap().id.to_string();
        match change {
            Change::Drain => {
                place.must(&["drain", &id]);
                eventually("the machine is empty", PATIENCE, || {
                    row(&edge, address)
                        .filter(|row| row.state == InstanceState::Draining && row.live_flows == 0)
                });
            }
            Change::Undrain => {
                place.must(&["undrain", &id]);
                is_active(&edge, address);
            }
            Change::ScaleOut | Change::ScaleIn => {
                let instances = if matches!(change, Change::ScaleOut) { 2 } else { 1 };
                let machine = &machines[at];
                machine.place.must(&["scale", "web", &instances.to_string()]);
                machine.inco.settled(instances, 0);
            }
            Change::EdgeKilled => {
                nothing_moved(&edge);
                drop(edge.kill());
                edge = network.run(&place, EDGE);
                is_active(&edge, FIRST);
                is_active(&edge, SECOND);
            }
            Change::MachineKilled => {
                let machine = machines.remove(at);
                nothing_moved(&machine.inco);
                let machine = machine.with_another_inco();
                machine.inco.settled(1, 0);
                machines.insert(at, machine);
            }
        }
        asked_for_more(&load);
    }
    let outcome = load.end();
    assert!(
        outcome.failures == 0 && outcome.servers == 2,
        "{outcome:#?}\n{}\n{:#?}",
        edge.told(),
        edge.status().drops
    );
    edge.at_rest();
    for inco in machines.iter().map(|machine| &machine.inco).chain([&edge]) {
        nothing_moved(inco);
    }
    drop(edge.stop_with(&place, &[]));
    machines.into_iter().for_each(Machine::stop);
}

/// A machine takes nothing out of tunnels whose sender it does not know, and says so.
#[test]
fn a_machine_refuses_tunnels_of_strangers() {
    for driver in ["soft", "ebpf"] {
        strangers_are_refused_by(driver);
    }
}

fn strangers_are_refused_by(driver: &str) {
    if !are_here(Engine::Oci, &["nginx", "curl"]) {
        return;
    }
    let (place, network) = (Place::with_a_cpu(), segment());
    let machine = Machine::with(&network, &place, (1, &["10.0.0.9"]), |_, _, text| {
        by(driver, &text)
    });
    let edge = network.run(
        &place,
        &EDGE.replace("[\"10.0.0.11:4789\", \"10.0.0.12:4789\"]", "[\"10.0.0.11:4789\"]"),
    );
    is_active(&edge, FIRST);
    let refused = network.client("curl", &["-s", "--max-time", "2", "http://10.0.0.100/"]);
    assert!(!{ refused }.status().unwrap().success());
    eventually("it is counted", PATIENCE, || {
        machine
            .inco
            .status()
            .drops
            .get("tunnel")
            .filter(|count| **count > 0)
            .copied()
    });
    drop(edge.stop_with(&place, &[]));
    machine.stop();
}

/// The way to a machine takes smaller packets than the client's network: the client is told, and sends smaller ones.
#[test]
fn a_client_is_told_how_big_packets_of_a_tunnel_may_be() {
    a_client_is_told_by("soft", "soft");
}

#[test]
fn a_client_is_told_by_programs_how_big_packets_of_a_tunnel_may_be() {
    a_client_is_told_by("ebpf", "ebpf");
}

fn a_client_is_told_by(edge: &str, machine: &str) {
    if !are_here(Engine::Oci, &["nginx"]) {
        return;
    }
    let (place, network) = (Place::with_a_cpu(), segment());
    let machine = Machine::by(&network, &place, 1, machine);
    let text = by(edge, EDGE)
        .replace("max_frame = 1572", "max_frame = 1522")
        .replace("[\"10.0.0.11:4789\", \"10.0.0.12:4789\"]", "[\"10.0.0.11:4789\"]");
    let edge = network.run(&place, &text);
    is_active(&edge, FIRST);
    let answers = network.as_client(|| {
        let mut connection = TcpStream::connect(SERVICE).unwrap();
        connection.set_read_timeout(Some(PATIENCE)).unwrap();
        let body = "x".repeat(100_000);
        let requests = format!(
            "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}GET / HTTP/1.1\r\nHost: x\r\nConnection: \
             close\r\n\r\n",
            body.len()
        );
        connection.write_all(requests.as_bytes()).unwrap();
        let mut answers = String::new();
        connection.read_to_string(&mut answers).unwrap();
        answers
    });
    // The second answer comes once all of the first request has come.
    assert!(
        answers.contains(" 405 ") && answers.ends_with("machine 1"),
        "{answers}"
    );
    let status = edge.at_rest();
    assert!(status.drops["too_large"] > 0, "{status:#?}");
    let route = network
        .client("ip", &["route", "get", "10.0.0.100"])
        .output()
        .unwrap();
    let route = String::from_utf8_lossy(&route.stdout).into_owned();
    assert!(route.contains(" mtu 1450"), "{route}");
    drop(edge.stop_with(&place, &[]));
    machine.stop();
}
