//! Instances with two kinds of ports in one service, behind one address: a function over memif is replaced by a server with
//! the kernel's network, and functions at one place serve beside servers at another.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use api::types::{FlowPage, InstanceRow};
use model::InstanceId;

use crate::addresses::are_here;
use crate::support::{Engine, Inco, Network, PATIENCE, Place, eventually, within_network_of};
use crate::upgrade::copy_of_inco;

/// Clients, each with one flow.
const CLIENTS: u16 = 24;
const SERVER: &str = "10.0.0.53:53";
const ZONE: &str = "$ORIGIN example.test.\n$TTL 300\n@ SOA ns1 hostmaster 1 7200 900 1209600 60\n@ NS ns1\nns1 A \
                    192.0.2.53\nwww A 192.0.2.80\n";

/// The address of www.example.test is asked for, once more after a second without an answer. Returns its last byte.
fn answer(client: &UdpSocket, number: u16) -> u8 {
    let mut question = number.to_be_bytes().to_vec();
    question.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in ["www", "example", "test"] {
        question.push(label.len() as u8);
        question.extend(label.as_bytes());
    }
    question.extend([0, 0, 1, 0, 1]);
    let mut answer = [0; 512];
    for _ in 0..5 {
        client.send(&question).unwrap();
        if let Ok(len) = client.recv(&mut answer) {
            assert_eq!(answer[..2], question[..2]);
            let [network @ .., last] = &answer[len - 4..len] else {
                panic!("{:?}", &answer[..len]);
            };
            assert_eq!(network, [192, 0, 2], "{:?}", &answer[..len]);
            return *last;
        }
    }
    panic!("nobody answers {:?}", client.local_addr());
}

fn ask(client: &UdpSocket, number: u16) {
    assert_eq!(answer(client, number), 80);
}

fn ask_all(clients: &[UdpSocket], round: u16) {
    for (number, client) in (0..).zip(clients) {
        ask(client, round * CLIENTS + number);
    }
}

/// Clients with the ports from this one on.
fn clients_at(network: &Network, first: u16) -> Vec<UdpSocket> {
    network.as_client(|| {
        let bound = (0..CLIENTS).map(|number| {
            let client = UdpSocket::bind(("10.0.0.2", first + number)).unwrap();
            client.connect(SERVER).unwrap();
            client.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
            client
        });
        bound.collect()
    })
}

/// The instance of each flow.
fn pins(place: &Place) -> BTreeMap<String, InstanceId> {
    let page: FlowPage = serde_json::from_str(&place.must(&["flows", "--json"])).unwrap();
    let pins = page.flows.into_iter().map(|row| (row.flow, row.forward.unwrap()));
    pins.collect()
}

#[test]
fn a_function_over_memif_is_replaced_by_a_server_with_the_kernels_network() {
    if !are_here(Engine::Oci, &["dnsmasq"]) {
        return;
    }
    let (place, network) = (Place::with_a_cpu(), Network::new());
    place.must(&["image", "import", "dnsmasq"]);
    let zone = place.file("zone", ZONE);
    let configuration = |service: &str| {
        format!(
            "{}[switch]\ndriver = \"soft\"\nebpf = {{ instance_addresses = \"10.0.0.128/25\" }}\n[[uplink]]\nname = \
             \"wan\"\ndevice = \"kernel:eth1\"\n[service.dns]\nvip = {{ address = \"10.0.0.53\", ports = \"53\" \
             }}\nmemory = \"64MiB\"\ninstances = {{ min = 2, max = 4, standby = 0 }}\nautoscaler = \
             \"fixed\"\nscheduler = {{ policy = \"round-robin\", slow_start = \"0s\" }}\ndrain_deadline = \
             \"1s\"\n{service}",
            Engine::Oci.toml()
        )
    };
    let function = configuration(&format!(
        "port = \"memif\"\nimage = \"inco-test/forward\"\ncommand = [\"/inco-nf\", \"dns\", \"--config\", \
         \"/zone\"]\nmounts = [\"{}:/zone:ro\"]\n",
        zone.display()
    ));
    let server = configuration(
        "port = \"kernel\"\nimage = \"dnsmasq\"\nargs = [\"--no-resolv\", \"--no-hosts\", \
         \"--address=/example.test/192.0.2.80\"]\n",
    );
    let inco = network.run(&place, &function);
    let memif: Vec<InstanceId> = inco.settled(2, 0).iter().map(|row| row.id).collect();
    let clients = clients_at(&network, 20_000);
    ask_all(&clients, 0);
    let before = pins(&place);
    assert_eq!(before.len(), usize::from(CLIENTS));
    assert!(before.values().all(|id| memif.contains(id)), "{before:?}");

    // The next inco makes instances of the other kind; those that are there keep theirs, and their flows. Who asks for it
    // need not be in the network that has the uplink.
    place.file("inco.toml", &server);
    let program = copy_of_inco(&place, "next");
    let said = place.must(&["upgrade", "--program", program.to_str().unwrap()]);
    assert!(said.contains("adopted 2 containers"), "{said}");
    ask_all(&clients, 1);
    assert_eq!(pins(&place), before, "{}", inco.told());
    place.must(&["scale", "dns", "4"]);
    let rows = inco.settled(4, 0);
    ask_all(&clients, 2);
    assert_eq!(pins(&place), before, "{}", inco.told());
    // New flows go to both kinds.
    let more = clients_at(&network, 30_000);
    ask_all(&more, 3);
    let now = pins(&place);
    let flows_of = |id: InstanceId| now.values().filter(|of| **of == id).count();
    assert!(rows.iter().all(|row| flows_of(row.id) >= 3), "{now:?}");

    // A rollout leaves instances of the new kind alone.
    place.must(&["rollout", "dns", "--wait"]);
    let rows = inco.settled(4, 0);
    assert!(rows.iter().all(|row| !memif.contains(&row.id)), "{rows:#?}");
    ask_all(&clients, 4);
    ask_all(&more, 5);
    eventually("no flow is at an instance that is gone", PATIENCE, || {
        let is_there = |id: &InstanceId| rows.iter().any(|row| row.id == *id);
        pins(&place).values().all(is_there).then_some(())
    });

    // All the way back.
    place.file("inco.toml", &function);
    let said = network.as_machine(|| place.must(&["upgrade", "--program", program.to_str().unwrap()]));
    assert!(said.contains("adopted 4 containers"), "{said}");
    let before = pins(&place);
    ask_all(&clients, 6);
    let after = pins(&place);
    assert!(
        before.iter().all(|(flow, id)| after.get(flow) == Some(id)),
        "{before:?} {after:?}"
    );
    // What stays opens connections of its own as before.
    let listener = network.as_client(|| TcpListener::bind("10.0.0.2:0").unwrap());
    let outside = listener.local_addr().unwrap();
    for row in inco.settled(4, 0) {
        let here = within_network_of(row.pid.unwrap(), || {
            TcpStream::connect_timeout(&outside, PATIENCE)
                .unwrap()
                .local_addr()
                .unwrap()
        });
        assert_eq!(listener.accept().unwrap().1, here);
    }
    place.must(&["rollout", "dns", "--wait"]);
    inco.settled(4, 0);
    ask_all(&clients, 7);
    inco.stop(&place);
    place.is_left_clean();
}

/// What functions over memif answer, at the place `fast`.
const OF_ZONE: u8 = 80;

/// A service with functions over memif at the place `fast`, and servers with the kernel's network at the place `plain`,
/// which answer with that byte.
fn two_kinds(place: &Place, driver: &str, answer: u8) -> String {
    format!(
        "{}[switch]\n{driver}\nebpf = {{ instance_addresses = \"10.0.0.128/25\" }}\n[[uplink]]\nname = \"wan\"\ndevice = \
         \"kernel:eth1\"\n[[place]]\nname = \"fast\"\ninstances = 2\n[[place]]\nname = \"plain\"\n[service.dns]\nvip = {{ \
         address = \"10.0.0.53\", ports = \"53\" }}\nmemory = \"64MiB\"\ninstances = {{ min = 3, max = 5, standby = 1 \
         }}\nautoscaler = \"fixed\"\nscheduler = {{ policy = \"round-robin\", slow_start = \"0s\" }}\ndrain_deadline = \
         \"1s\"\nhealth = {{ dns = \"www.example.test\" }}\nimage = \"inco-test/forward\"\ncommand = [\"/inco-nf\", \"dns\", \
         \"--config\", \"/zone\"]\nmounts = [\"{}:/zone:ro\"]\n[service.dns.at.plain]\nport = \"kernel\"\nimage = \
         \"dnsmasq\"\nargs = [\"--no-resolv\", \"--no-hosts\", \"--address=/example.test/192.0.2.{answer}\"]\n",
        Engine::Oci.toml(),
        place.path("zone").display()
    )
}

/// The instances at a place.
fn at(rows: &[InstanceRow], place: &str) -> BTreeSet<InstanceId> {
    let there = rows.iter().filter(|row| row.place.as_deref() == Some(place));
    there.map(|row| row.id).collect()
}

/// Each client is answered by an instance of the kind that its flow is pinned to. Returns the pins.
fn answers_are_of_the_pinned_kind(
    place: &Place,
    clients: &[UdpSocket],
    fast: &BTreeSet<InstanceId>,
    of_server: u8,
) -> BTreeMap<String, InstanceId> {
    let answers: Vec<u8> = (0..)
        .zip(clients)
        .map(|(number, of)| answer(of, number))
        .collect();
    let pins = pins(place);
    for (client, answer) in clients.iter().zip(answers) {
        let address = client.local_addr().unwrap().to_string();
        let (_, pinned) = pins.iter().find(|(flow, _)| flow.contains(&address)).unwrap();
        let expected = if fast.contains(pinned) { OF_ZONE } else { of_server };
        assert_eq!(answer, expected, "{address} {pinned} {pins:?}");
    }
    pins
}

/// Packets that rules of the kernel took, of instances at a place.
fn by_rules(inco: &Inco, place: &str) -> u64 {
    let counters = inco.client().counters().unwrap();
    let there = counters
        .instances
        .iter()
        .filter(|of| of.place.as_deref() == Some(place));
    there.map(|of| of.fast_packets).sum()
}

fn instances_of_two_kinds_serve_one_address(driver: &str, has_rules: bool) {
    if !are_here(Engine::Oci, &["dnsmasq"]) {
        return;
    }
    let (place, network) = (Place::with_a_cpu(), Network::new());
    place.must(&["image", "import", "dnsmasq"]);
    place.file("zone", ZONE);
    let text = two_kinds(&place, driver, 81);
    let inco = network.run(&place, &text);
    let rows = inco.settled(3, 1);
    let fast = at(&rows, "fast");
    assert_eq!((fast.len(), at(&rows, "plain").len()), (2, 2), "{rows:#?}");
    // The standby is one of the place that has room.
    place.must(&["scale", "dns", "4"]);
    let rows = inco.settled(4, 1);
    assert_eq!(
        (at(&rows, "fast"), at(&rows, "plain").len()),
        (fast.clone(), 3),
        "{rows:#?}"
    );

    let clients = clients_at(&network, 20_000);
    let before = answers_are_of_the_pinned_kind(&place, &clients, &fast, 81);
    let of_fast = before.values().filter(|id| fast.contains(id)).count();
    let quarter = usize::from(CLIENTS) / 4;
    assert!((quarter..=3 * quarter).contains(&of_fast), "{before:?}");
    eventually("flows of servers have rules", PATIENCE, || {
        for (number, client) in (0..).zip(&clients) {
            answer(client, number);
        }
        (!has_rules || by_rules(&inco, "plain") > 100).then_some(())
    });
    assert_eq!(by_rules(&inco, "fast"), 0, "rules are for kernel ports");
    assert_eq!(
        answers_are_of_the_pinned_kind(&place, &clients, &fast, 81),
        before,
        "{}",
        inco.told()
    );
    let status = inco.at_rest();
    let of = &status.accounting;
    assert_eq!((of.dropped, of.expected_moves), (0, 0), "{:#?}", status.drops);
    assert_eq!(of.offered + of.originated, of.returned + of.delivered, "{of:#?}");

    // The next run knows each by its label, and where its flows are.
    inco.kill();
    let inco = network.run(&place, &text);
    let rows = inco.settled(4, 1);
    assert_eq!((at(&rows, "fast"), at(&rows, "plain").len()), (fast.clone(), 3));
    assert_eq!(
        answers_are_of_the_pinned_kind(&place, &clients, &fast, 81),
        before,
        "{}",
        inco.told()
    );

    // Another program at one place is taken at run time, and a rollout brings it.
    place.file("inco.toml", &two_kinds(&place, driver, 82));
    let said = place.must(&["reload"]);
    assert!(said.contains("service.dns.at"), "{said}");
    place.must(&["rollout", "dns", "--wait"]);
    let old = at(&rows, "plain");
    let rows = inco.settled(4, 1);
    let (fast, plain) = (at(&rows, "fast"), at(&rows, "plain"));
    assert_eq!((fast.len(), plain.len()), (2, 3), "{rows:#?}");
    assert!(plain.is_disjoint(&old), "{rows:#?}");
    answers_are_of_the_pinned_kind(&place, &clients, &fast, 82);
    inco.stop(&place);
    place.is_left_clean();
}

#[test]
fn instances_of_two_kinds_serve_one_address_each_by_its_best_path() {
    instances_of_two_kinds_serve_one_address("driver = \"hybrid\"\nworkers = [0]", true);
}

#[test]
fn instances_of_two_kinds_serve_one_address_soft() {
    instances_of_two_kinds_serve_one_address("driver = \"soft\"", false);
}
