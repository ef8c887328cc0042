//! A chain of three replicas behind one switch, each a service with an address of its own: what a client was told stays when
//! the one in the middle fails.

use std::net::UdpSocket;
use std::path::{Path, PathBuf};

use model::InstanceState;

use crate::support::{Engine, IMAGE, Inco, Network, PATIENCE, Place, eventually, kill};

/// The client, which is the router between the replicas as well.
const CLIENT: &str = "10.0.0.2";
const CLIENT_MAC: &str = "02:00:00:00:00:0c";
/// The replicas, from the head to the tail.
const REPLICAS: [(&str, &str); 3] = [
    ("head", "10.0.0.11"),
    ("middle", "10.0.0.12"),
    ("tail", "10.0.0.13"),
];
const PORT: u16 = 9105;
const KEYS: u64 = 200;

const WRITE: u8 = 1;
const READ: u8 = 2;
const ANSWER: u8 = 128;
const HEADER: usize = 48;

/// The configuration of a replica between its neighbours.
fn replica(address: &str, before: Option<&str>, behind: Option<&str>) -> String {
    let neighbour = |role: &str, address: Option<&str>| {
        address.map_or(String::new(), |address| {
            format!("[{role}]\naddress = \"{address}:{PORT}\"\nmac = \"{CLIENT_MAC}\"\n")
        })
    };
    let number = address.rsplit('.').next().unwrap();
    format!(
        "address = \"{address}:{PORT}\"\nmac = \"02:00:00:00:00:{number}\"\nkeys_limit = 1024\n{}{}",
        neighbour("predecessor", before),
        neighbour("successor", behind),
    )
}

/// A service for each replica. Updates go one way and acknowledgements the other way between the same two endpoints: each
/// direction of such a flow has a service of its own.
fn configuration(files: &[PathBuf; 3]) -> String {
    let services = REPLICAS.iter().zip(files).map(|((name, address), file)| {
        format!(
            "[service.{name}]\nvip = {{ address = \"{address}\", ports = \"{PORT}\" }}\nsymmetric = false\nport = \
             \"memif\"\nimage = \"{IMAGE}\"\ncommand = [\"/inco-nf\", \"replica\", \"--config\", \
             \"/replica.toml\"]\nmounts = [\"{}:/replica.toml:ro\"]\nmemory = \"64MiB\"\ninstances = 1\n",
            file.display()
        )
    });
    format!(
        "{}[switch]\ndriver = \"soft\"\n[[uplink]]\nname = \"wan\"\ndevice = \"kernel:eth1\"\n{}",
        Engine::Oci.toml(),
        services.collect::<String>()
    )
}

/// Sends a request to a replica until somebody answers it. The answer, its value, and who sent it.
fn ask(socket: &UdpSocket, to: &str, kind: u8, key: u64, value: &[u8]) -> (Vec<u8>, Vec<u8>, String) {
    let number = (key as u32) << 2 | u32::from(kind);
    let mut request = vec![0; HEADER];
    request[0] = kind;
    if kind == WRITE {
        request[2..4].copy_from_slice(&(value.len() as u16).to_be_bytes());
    }
    request[4..8].copy_from_slice(&number.to_be_bytes());
    request[8..16].copy_from_slice(&key.to_be_bytes());
    request.extend(value);
    // Of a read, room for the answer.
    request.resize(HEADER + 64, 0);
    eventually("an answer", PATIENCE, || {
        socket.send_to(&request, (to, PORT)).unwrap();
        let mut answer = vec![0; 1500];
        while let Ok((len, from)) = socket.recv_from(&mut answer) {
            // One to an earlier attempt of another request.
            if answer[0] != kind + ANSWER || answer[4..8] != request[4..8] {
                continue;
            }
            answer.truncate(len);
            let value = answer.split_off(HEADER);
            return Some((answer, value, from.ip().to_string()));
        }
        None
    })
}

fn value_of(key: u64) -> Vec<u8> {
    format!("value of {key}").into_bytes()
}

/// Writes at the head. The answer comes from the tail: all have it then.
fn write(socket: &UdpSocket, keys: std::ops::Range<u64>) {
    for key in keys {
        let (answer, _, from) = ask(socket, REPLICAS[0].1, WRITE, key, &value_of(key));
        assert_eq!((answer[1], from.as_str()), (0, REPLICAS[2].1), "{answer:?}");
    }
}

fn read_all(socket: &UdpSocket, keys: std::ops::Range<u64>) {
    for key in keys {
        let (answer, value, _) = ask(socket, REPLICAS[2].1, READ, key, &[]);
        assert_eq!((answer[1], value), (0, value_of(key)), "{answer:?}");
    }
}

/// The value of a gauge or total of the one function of a service.
fn metric(place: &Place, service: &str, name: &str) -> u64 {
    let json = place.must(&["instances", "--functions", "--json"]);
    let functions: Vec<api::counters::FunctionCounters> = serde_json::from_str(&json).unwrap();
    let of = functions.iter().find(|of| of.service == service).unwrap();
    *of.totals.get(name).or_else(|| of.gauges.get(name)).unwrap()
}

fn is_active(inco: &Inco, count: usize) {
    eventually("all replicas are active", PATIENCE, || {
        (inco.count(InstanceState::Active) == count).then_some(())
    });
}

#[test]
fn what_a_client_was_told_stays_when_the_middle_of_a_chain_of_replicas_fails() {
    if !Engine::Oci.is_here() {
        return;
    }
    let (place, network) = (Place::with_a_cpu(), Network::new());
    network.client_ip(&format!("link set eth0 address {CLIENT_MAC}"));
    network.as_client(|| {
        for (file, value) in [
            ("ip_forward", "1"),
            ("conf/all/send_redirects", "0"),
            ("conf/eth0/send_redirects", "0"),
        ] {
            std::fs::write(Path::new("/proc/sys/net/ipv4").join(file), value).unwrap();
        }
    });
    let [head, middle, tail] = REPLICAS.map(|of| of.1);
    let chain = [
        replica(head, None, Some(middle)),
        replica(middle, Some(head), Some(tail)),
        replica(tail, Some(middle), None),
    ];
    let files = [0, 1, 2].map(|at| place.file(&format!("{}.toml", REPLICAS[at].0), &chain[at]));
    let inco = network.run(&place, &configuration(&files));
    is_active(&inco, 3);
    let socket = network.as_client(|| UdpSocket::bind((CLIENT, 0)).unwrap());
    socket
        .set_read_timeout(Some(std::time::Duration::from_millis(100)))
        .unwrap();
    write(&socket, 0..KEYS);
    read_all(&socket, 0..KEYS);
    // The head and the middle have applied each update as well, and the head has been told that the tail has them.
    for service in ["head", "middle"] {
        assert!(metric(&place, service, "updates") >= KEYS, "{service}");
    }
    eventually("nothing is pending", PATIENCE, || {
        (metric(&place, "head", "pending") == 0).then_some(())
    });
    // Reads are answered by the tail alone.
    assert_eq!(ask(&socket, middle, READ, 1, &[]).0[1], 3);

    let victim = inco
        .instances()
        .into_iter()
        .find(|row| row.service == "middle")
        .unwrap();
    kill(victim.pid.unwrap(), rustix::process::Signal::KILL);
    // The head takes a write, and the chain does not answer it.
    let mut request = vec![0; HEADER];
    request[0] = WRITE;
    request[8..16].copy_from_slice(&KEYS.to_be_bytes());
    request[2..4].copy_from_slice(&(value_of(KEYS).len() as u16).to_be_bytes());
    request.extend(value_of(KEYS));
    socket.send_to(&request, (head, PORT)).unwrap();
    eventually("the write waits", PATIENCE, || {
        (metric(&place, "head", "pending") == 1).then_some(())
    });
    // Its neighbours get to know each other.
    std::fs::write(&files[0], replica(head, None, Some(tail))).unwrap();
    std::fs::write(&files[2], replica(tail, Some(head), None)).unwrap();
    eventually("the tail has it", PATIENCE, || {
        (ask(&socket, tail, READ, KEYS, &[]).0[1] == 0).then_some(())
    });
    write(&socket, KEYS + 1..2 * KEYS);
    read_all(&socket, 0..2 * KEYS);
    inco.stop(&place);
}
