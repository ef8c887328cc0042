//! Instances with two kinds of ports in one service: a function over memif is replaced by a server with the kernel's
//! network, behind one address.

use std::collections::BTreeMap;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::time::Duration;

use api::types::FlowPage;
use model::InstanceId;

use crate::support::{Engine, Network, PATIENCE, Place, available, eventually, within_network_of};
use crate::upgrade::copy_of_inco;

/// Clients, each with one flow.
const CLIENTS: u16 = 24;
const SERVER: &str = "10.0.0.53:53";
const ZONE: &str = "$ORIGIN example.test.\n$TTL 300\n@ SOA ns1 hostmaster 1 7200 900 1209600 60\n@ NS ns1\nns1 A \
                    192.0.2.53\nwww A 192.0.2.80\n";

/// The address of www.example.test is asked for, once more after a second without an answer.
fn ask(client: &UdpSocket, number: u16) {
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
            assert!(answer[..len].ends_with(&[192, 0, 2, 80]), "{:?}", &answer[..len]);
            return;
        }
    }
    panic!("nobody answers {:?}", client.local_addr());
}

fn ask_all(clients: &[UdpSocket], round: u16) {
    for (number, client) in (0..).zip(clients) {
        ask(client, round * CLIENTS + number);
    }
}

/// The instance of each flow.
fn pins(place: &Place) -> BTreeMap<String, InstanceId> {
    let page: FlowPage = serde_json::from_str(&place.must(&["flows", "--json"])).unwrap();
    let pins = page.flows.into_iter().map(|row| (row.flow, row.forward.unwrap()));
    pins.collect()
}

#[test]
fn a_function_over_memif_is_replaced_by_a_server_with_the_kernels_network() {
    let dnsmasq = Path::new("/usr/sbin/dnsmasq").exists();
    if !Engine::Oci.is_here()
        || !available(
            "servers",
            (!dnsmasq).then(|| "dnsmasq is not installed".to_owned()),
        )
    {
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
    let clients: Vec<UdpSocket> = network.as_client(|| {
        let bound = (0..CLIENTS).map(|number| {
            let client = UdpSocket::bind(("10.0.0.2", 20_000 + number)).unwrap();
            client.connect(SERVER).unwrap();
            client.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
            client
        });
        bound.collect()
    });
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
    let more: Vec<UdpSocket> = network.as_client(|| {
        let bound = (0..CLIENTS).map(|number| {
            let client = UdpSocket::bind(("10.0.0.2", 30_000 + number)).unwrap();
            client.connect(SERVER).unwrap();
            client.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
            client
        });
        bound.collect()
    });
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
