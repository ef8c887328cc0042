//! Several edges behind routes of equal cost: each packet of a connection reaches the machine that has it, whichever edge it
//! comes to. Two edges and two machines, each with an inco of its own and a real nginx at each machine; the client's kernel
//! chooses the edge.

use testbed::http::Connection;

use crate::addresses::are_here;
use crate::back_ends::{CLIENTS, SERVICE, is_active, row};
use crate::load_reports::{LISTEN, edge_text, machines_of_edges};
use crate::replies::{replies, through_the_edge};
use crate::support::{Engine, Inco, Load, Namespace, Network, PATIENCE, Place, eventually};
use crate::tunnels::{FIRST, MTU, Machine, SECOND, segment};
use model::InstanceState;

/// Where the second edge takes reports, and the addresses of both for tunnels.
const OTHER_LISTEN: &str = "192.168.7.2:4790";
const EDGES: [&str; 2] = ["10.0.0.1", "10.0.0.3"];
/// The key that both edges have.
const KEY: &str = "3102030405060708090a0b0c0d0e0f10111213141516171b";
/// Connections that stay open, of which the machine each has is known.
const HELD: usize = 24;

/// An edge, and where it runs.
struct Edge<'a> {
    host: &'a Namespace,
    place: &'a Place,
    inco: Inco,
    text: String,
}

impl Edge<'_> {
    fn start<'a>(
        host: &'a Namespace,
        place: &'a Place,
        (listen, address): (&str, &str),
        change: fn(&str) -> String,
    ) -> Edge<'a> {
        let key = place.secret_file("edges.key", KEY).display().to_string();
        let text = change(&edge_text(place, listen));
        let own = "address = \"10.0.0.1\", network = 7 ";
        assert!(text.contains(own), "{text}");
        let text = text.replace(
            own,
            &format!("address = \"{address}\", network = 7, edges_key = \"{key}\" "),
        );
        let text = if address == EDGES[1] {
            // Two workers, of which one has the uplink.
            text.replace("[switch]\n", "[switch]\nworkers = [0, 1]\n")
        } else {
            text
        };
        let inco = host.within(|| place.run(&text));
        is_active(&inco, FIRST);
        is_active(&inco, SECOND);
        Edge {
            host,
            place,
            inco,
            text,
        }
    }

    /// Packets that came back from machines.
    fn came_back(&self) -> u64 {
        self.inco
            .status()
            .workers
            .iter()
            .map(|of| of.looks_returned)
            .sum()
    }

    /// It ends with all that it knows, and another one begins.
    fn anew(mut self) -> Self {
        drop(self.inco.stop_with(self.place, &[]));
        self.inco = self.host.within(|| self.place.run(&self.text));
        is_active(&self.inco, FIRST);
        is_active(&self.inco, SECOND);
        self
    }

    /// `has_just_begun`: where replies pass the edge, some may have come before it knew their machine.
    fn has_no_fault(&self, has_just_begun: bool) {
        let status = self.inco.at_rest();
        assert_eq!(status.accounting.expected_moves, 0, "{status:#?}");
        if !(has_just_begun && self.has_replies()) {
            assert_eq!(status.drops.get("tunnel"), None, "{status:#?}");
        }
    }

    fn has_replies(&self) -> bool {
        self.text.contains("replies = \"edge\"")
    }
}

/// The client's way to the service: by each of these edges, by the hash of addresses and ports.
fn route_by(network: &Network, edges: &[&str]) {
    let hops: Vec<String> = edges
        .iter()
        .map(|at| format!("nexthop via {at} dev br0"))
        .collect();
    network.client_ip(&format!("route replace 10.0.0.100/32 {}", hops.join(" ")));
}

/// Connections that stay open.
struct Held(Vec<(Connection, String)>);

impl Held {
    fn open(network: &Network) -> Held {
        network.as_client(|| {
            let open = |_| {
                let mut connection = Connection::open(SERVICE.parse().unwrap()).unwrap();
                let machine = connection.get("/", false).unwrap();
                (connection, machine)
            };
            Held((0..HELD).map(open).collect())
        })
    }

    fn on(&self, machine: &str) -> usize {
        self.0.iter().filter(|(_, of)| of == machine).count()
    }

    /// Each is answered by its machine.
    fn are_answered(&mut self, when: &str) {
        for (connection, machine) in &mut self.0 {
            let answer = connection.get("/", false);
            assert_eq!(
                answer.as_deref().ok(),
                Some(machine.as_str()),
                "{when}: {answer:?}"
            );
        }
    }
}

#[test]
fn edges_come_and_go_and_each_connection_keeps_its_machine() {
    edges_come_and_go(str::to_owned);
}

#[test]
fn the_same_with_replies_through_the_edges() {
    edges_come_and_go(through_the_edge);
}

/// `change` is made in the configurations of edges and machines.
fn edges_come_and_go(change: fn(&str) -> String) {
    if !are_here(Engine::Oci, &["nginx"]) {
        return;
    }
    let cycles = if real_parts::is_full_length() { 20 } else { 2 };
    let (place, network) = (Place::with_a_cpu(), segment());
    let machines = machines_of_edges(&network, &place, (&[LISTEN, OTHER_LISTEN], &EDGES), change);
    let other_host = Namespace::new();
    network.client_ip(&format!(
        "link add to-edge type veth peer name eth1 netns {0}\nlink set to-edge mtu {MTU} master br0 up",
        other_host.pid()
    ));
    network.machine_ip(&format!(
        "link add rep-e type veth peer name rep netns {}\nlink set rep-e master rep0 up",
        other_host.pid()
    ));
    other_host.ip(&format!(
        "link set lo up\nlink set eth1 mtu {MTU} up\naddress add 192.168.7.2/24 dev rep\nlink set rep up"
    ));
    network.as_client(|| {
        std::fs::write("/proc/sys/net/ipv4/fib_multipath_hash_policy", "1").unwrap();
    });
    let other_place = place.beside();
    let mut first = Edge::start(network.machine(), &place, (LISTEN, EDGES[0]), change);
    let mut second = Edge::start(&other_host, &other_place, (OTHER_LISTEN, EDGES[1]), change);

    route_by(&network, &EDGES[..1]);
    let mut held = Held::open(&network);
    assert!(held.on("machine 1") > 0 && held.on("machine 2") > 0);
    let load = Load::start(&network, SERVICE.parse().unwrap(), CLIENTS);
    let more = |what: &str| {
        let asked = load.requests();
        eventually(what, PATIENCE, || (load.requests() > asked + 300).then_some(()));
    };
    more("requests by the first edge");

    // All connections come to an edge that knows none of them.
    route_by(&network, &EDGES[1..]);
    more("requests by the second edge");
    held.are_answered("at the second edge");
    assert!(second.came_back() > 0, "{:#?}", second.inco.status());
    for cycle in 0..cycles {
        // An edge leaves, and one without any pin joins.
        first = first.anew();
        route_by(&network, &EDGES);
        more("requests by both edges");
        held.are_answered(&format!("cycle {cycle}, at both edges"));

        // A machine drains, and its connections change their edge.
        let [id, other_id] = [&first, &second].map(|edge| row(&edge.inco, FIRST).unwrap().id.to_string());
        place.must(&["drain", &id]);
        other_place.must(&["drain", &other_id]);
        for edge in [&first, &second] {
            eventually("it is draining", PATIENCE, || {
                row(&edge.inco, FIRST).filter(|row| row.state == InstanceState::Draining)
            });
        }
        route_by(&network, &EDGES[..1]);
        more("requests while a machine drains");
        held.are_answered(&format!("cycle {cycle}, while a machine drains"));
        second = second.anew();
        place.must(&["undrain", &id]);
        is_active(&first.inco, FIRST);

        // An edge dies: its packets on the way are sent again, to the other one.
        route_by(&network, &EDGES);
        more("requests before an edge dies");
        drop(first.inco.kill());
        route_by(&network, &EDGES[1..]);
        more("requests after an edge has died");
        held.are_answered(&format!("cycle {cycle}, after an edge has died"));
        first = Edge::start(network.machine(), &place, (LISTEN, EDGES[0]), change);
    }
    held.are_answered("at the end");
    drop(held);
    let outcome = load.end();
    assert!(
        outcome.failures == 0 && outcome.servers == 2,
        "{outcome:#?}\n{}\n{}",
        first.inco.told(),
        second.inco.told()
    );
    first.has_no_fault(true);
    second.has_no_fault(false);
    // The first one has just begun, and has had no request.
    assert_eq!(replies(&second.inco, None) > 0, second.has_replies());
    for machine in &machines {
        let status = machine.inco.at_rest();
        assert_eq!(status.accounting.expected_moves, 0, "{status:#?}");
        assert_eq!(status.drops.get("tunnel"), None, "{status:#?}");
    }
    for edge in [first, second] {
        drop(edge.inco.stop_with(edge.place, &[]));
    }
    machines.into_iter().for_each(Machine::stop);
}
