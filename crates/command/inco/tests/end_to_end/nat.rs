//! Instances of `nat` behind one set of external addresses: each owns a block of ports, and what comes back finds it.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use api::types::InstanceRow;
use model::{DropReason, EventKind, InstanceState, PortBlock, protocol};
use packet::build::Frame;
use packet::{Parsed, TcpFlags};

use crate::support::{Engine, IMAGE, Inco, PATIENCE, Place, changes, eventually, kill};

/// A host keeps its ports of the function's own blocks for as long: with eight ports each there is room for 504 hosts.
/// A mapping ends four seconds after its last packet, and the switch forgets a flow before that.
const CONFIGURATION: &str = r#"
[[uplink]]
name = "lan"
device = "memif:lan.sock"

[[uplink]]
name = "wan"
device = "memif:wan.sock"

[switch]
timeouts = { udp = "3s", tcp = "3s", tcp_handshake = "3s", tcp_linger = "100ms" }

[service.nat]
image = "IMAGE"
command = ["/inco-nf", "nat", "--cross", "--config-text", """
inside = ["10.0.0.0/8"]
mappings_limit = 4096
block_ports = 8
udp_timeout_s = 4
tcp_established_timeout_s = 4
tcp_transitory_timeout_s = 4
"""]
uplinks = ["lan", "wan"]
match = { src = "10.0.0.0/8" }
external = { addresses = ["203.0.113.0/31"], block = 4032, lifetime = "5s" }
affinity_key = "source"
memory = "64MiB"
instances = { min = 1, max = 8, standby = 0 }
autoscaler = "fixed"
scheduler = { policy = "round-robin", slow_start = "0s" }
drain_deadline = "60s"
"#;

/// Inside hosts that have a connection at any time, one after the other.
const HOSTS: usize = 64;
/// Each connection has so many requests, one every [`PAUSE`], each to one of [`REMOTES`].
const REQUESTS: u32 = 60;
const PAUSE: Duration = Duration::from_millis(20);
const REMOTES: u8 = 2;
/// In a request, from far away: a packet that no request was sent to.
const ANSWER: u8 = 1;
const STRANGER: u8 = 2;
/// An answer that has not come by then is lost.
const LOST_AFTER: Duration = Duration::from_secs(30);

/// A connection of an inside host.
#[derive(Clone, Copy)]
struct Connection {
    id: u32,
    inside: SocketAddrV4,
    is_tcp: bool,
    asked: u32,
    /// Answers of the present request that have not come, and when it was sent.
    missing: u8,
    at: Instant,
}

/// What has been seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Seen {
    requests: u64,
    answers: u64,
    connections: u64,
    wrong: Vec<String>,
    /// External endpoints of each block.
    blocks: BTreeMap<(Ipv4Addr, u16), u64>,
}

/// The networks on both sides.
struct Networks {
    inside: memif::Link,
    outside: memif::Link,
    connections: Vec<Connection>,
    next: u32,
    /// The connection that each external endpoint stood for last.
    external: BTreeMap<(bool, SocketAddrV4), u32>,
    /// The external endpoint of each connection, by the remote: after a scaling, a new flow of a host can be at another
    /// instance than those that it has.
    mapped: BTreeMap<(u32, SocketAddrV4), SocketAddrV4>,
    seen: Seen,
}

fn remote(number: u8) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(198, 51, 100, number), 443)
}

/// A packet with the number of its connection, that of its request, and what it is.
fn frame(is_tcp: bool, [src, dst]: [SocketAddrV4; 2], flags: u8, payload: &[u8]) -> Vec<u8> {
    let (src, dst) = (SocketAddr::V4(src), SocketAddr::V4(dst));
    let frame = if is_tcp {
        Frame::tcp(src, dst, TcpFlags(flags), payload)
    } else {
        Frame::udp(src, dst, payload)
    };
    frame.unwrap().to_vec().unwrap()
}

fn payload(connection: u32, request: u32, what: u8) -> [u8; 9] {
    let mut bytes = [what; 9];
    bytes[..4].copy_from_slice(&connection.to_be_bytes());
    bytes[4..8].copy_from_slice(&request.to_be_bytes());
    bytes
}

/// The ends of a packet, and its payload.
fn read(bytes: &[u8]) -> (bool, [SocketAddrV4; 2], u8, [u8; 9]) {
    let Parsed::Flow(info) = packet::parse(bytes) else {
        panic!("no packet of a flow: {bytes:02x?}");
    };
    let tuple = info.key.tuple(info.direction);
    let end = |address, port| match SocketAddr::new(address, port) {
        SocketAddr::V4(end) => end,
        SocketAddr::V6(end) => panic!("{end}"),
    };
    let is_tcp = tuple.protocol == protocol::TCP;
    let at = usize::from(info.l4_offset) + if is_tcp { 20 } else { 8 };
    let payload: [u8; 9] = bytes[at..at + 9].try_into().unwrap();
    let ends = [end(tuple.src, tuple.src_port), end(tuple.dst, tuple.dst_port)];
    (is_tcp, ends, info.tcp_flags.0, payload)
}

fn words([a, b, c, d, e, f, g, h, what]: [u8; 9]) -> (u32, u32, u8) {
    (
        u32::from_be_bytes([a, b, c, d]),
        u32::from_be_bytes([e, f, g, h]),
        what,
    )
}

fn receive(link: &mut memif::Link, mut each: impl FnMut(&[u8])) {
    let rx = &mut link.queues[0].rx;
    let mut buffer = vec![0; 2048];
    while let Some(Ok(len)) = rx.pop(&mut buffer) {
        each(&buffer[..len]);
    }
    rx.release();
}

fn send(link: &mut memif::Link, frames: &[Vec<u8>]) {
    let tx = &mut link.queues[0].tx;
    for frame in frames {
        let until = Instant::now() + PATIENCE;
        while tx.push(frame).is_err() {
            tx.flush();
            assert!(Instant::now() < until, "the switch takes nothing");
            std::thread::yield_now();
        }
    }
    tx.flush();
}

impl Networks {
    fn new(place: &Place, inco: &Inco) -> Networks {
        let [inside, outside] = inco.networks(place);
        Networks {
            inside,
            outside,
            connections: Vec::new(),
            next: 0,
            external: BTreeMap::new(),
            mapped: BTreeMap::new(),
            seen: Seen::default(),
        }
    }

    /// A new connection of the host with that number.
    fn open(&mut self, host: usize, now: Instant) -> Connection {
        self.next += 1;
        let id = self.next;
        // Hosts change, so that new ones come to instances that are new; a host has one connection at a time.
        let [.., a, b] = (host as u32 + HOSTS as u32 * (id / HOSTS as u32 % 200)).to_be_bytes();
        Connection {
            id,
            inside: SocketAddrV4::new(Ipv4Addr::new(10, 0, a, b), 1024 + (id % 60_000) as u16),
            is_tcp: id.is_multiple_of(2),
            asked: 0,
            missing: 0,
            at: now,
        }
    }

    fn turn(&mut self, opens: bool) {
        let now = Instant::now();
        while opens && self.connections.len() < HOSTS {
            let connection = self.open(self.connections.len(), now);
            self.connections.push(connection);
        }
        let mut requests = Vec::new();
        for at in 0..self.connections.len() {
            let of = self.connections[at];
            if of.missing > 0 {
                if now - of.at > LOST_AFTER {
                    self.seen
                        .wrong
                        .push(format!("connection {} has no answer", of.id));
                    self.connections[at].missing = 0;
                }
                continue;
            }
            if now - of.at < PAUSE || of.asked == REQUESTS {
                continue;
            }
            let to = remote((of.asked % u32::from(REMOTES)) as u8);
            let flags = match of.asked {
                // The first to each remote.
                asked if asked < u32::from(REMOTES) => TcpFlags::SYN,
                asked if asked + u32::from(REMOTES) >= REQUESTS => TcpFlags::FIN | TcpFlags::ACK,
                _ => TcpFlags::ACK,
            };
            let asks = payload(of.id, of.asked, 0);
            requests.push(frame(of.is_tcp, [of.inside, to], flags, &asks));
            let of = &mut self.connections[at];
            (of.asked, of.missing, of.at) = (of.asked + 1, 2, now);
            self.seen.requests += 1;
        }
        send(&mut self.inside, &requests);
        self.far_away();
        self.back_inside();
        for host in (0..self.connections.len()).rev() {
            let of = self.connections[host];
            if of.asked == REQUESTS && of.missing == 0 {
                self.seen.connections += 1;
                if opens {
                    self.connections[host] = self.open(host, now);
                } else {
                    self.connections.remove(host);
                }
            }
        }
    }

    /// Remotes answer, and a stranger sends to the same external endpoint.
    fn far_away(&mut self) {
        let mut answers = Vec::new();
        let (seen, external, mapped) = (&mut self.seen, &mut self.external, &mut self.mapped);
        let connections = &self.connections;
        receive(&mut self.outside, |bytes| {
            let (is_tcp, [from, to], flags, asked) = read(bytes);
            let (id, request, _) = words(asked);
            if ![Ipv4Addr::new(203, 0, 113, 0), Ipv4Addr::new(203, 0, 113, 1)].contains(from.ip()) {
                seen.wrong.push(format!("{from} is not external"));
            }
            // An external endpoint stands for one connection at a time, and a flow keeps its own.
            let before = external.insert((is_tcp, from), id).filter(|before| *before != id);
            if let Some(before) = before
                && connections.iter().any(|of| of.id == before)
            {
                seen.wrong.push(format!("{from} stands for {before} and {id}"));
            }
            if !mapped.contains_key(&(id, to)) {
                let block = (from.port() - 1024) / 4032;
                *seen.blocks.entry((*from.ip(), block)).or_default() += 1;
            }
            let first = *mapped.entry((id, to)).or_insert(from);
            if first != from {
                seen.wrong.push(format!(
                    "connection {id} to {to} came from {first} and then from {from}"
                ));
            }
            let flags = if flags & TcpFlags::SYN != 0 {
                flags | TcpFlags::ACK
            } else {
                flags
            };
            answers.push(frame(is_tcp, [to, from], flags, &payload(id, request, ANSWER)));
            let stranger = remote(100 + (request % 100) as u8);
            let flags = TcpFlags::ACK;
            answers.push(frame(
                is_tcp,
                [stranger, from],
                flags,
                &payload(id, request, STRANGER),
            ));
        });
        send(&mut self.outside, &answers);
    }

    fn back_inside(&mut self) {
        let (seen, connections) = (&mut self.seen, &mut self.connections);
        receive(&mut self.inside, |bytes| {
            let (is_tcp, [from, to], _, said) = read(bytes);
            let (id, request, what) = words(said);
            let Some(of) = connections.iter_mut().find(|of| of.id == id) else {
                seen.wrong
                    .push(format!("{from} answers connection {id}, which is over"));
                return;
            };
            let sender = match what {
                ANSWER => remote((request % u32::from(REMOTES)) as u8),
                _ => remote(100 + (request % 100) as u8),
            };
            if (to, is_tcp, request + 1, from) != (of.inside, of.is_tcp, of.asked, sender) {
                seen.wrong
                    .push(format!("what {from} sent to {} came to {to}", of.inside));
                return;
            }
            of.missing = of.missing.saturating_sub(1);
            seen.answers += 1;
        });
    }
}

/// The networks at work, in a thread.
struct Load {
    opens: Arc<AtomicBool>,
    ended: Arc<AtomicU64>,
    wrong: Arc<Mutex<Vec<String>>>,
    thread: JoinHandle<Seen>,
}

impl Load {
    fn begin(mut networks: Networks) -> Load {
        let (opens, ended) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU64::new(0)));
        let wrong = Arc::new(Mutex::new(Vec::new()));
        let thread = std::thread::spawn({
            let (opens, ended) = (Arc::clone(&opens), Arc::clone(&ended));
            let wrong = Arc::clone(&wrong);
            move || {
                loop {
                    let goes_on = opens.load(Ordering::Relaxed);
                    networks.turn(goes_on);
                    ended.store(networks.seen.connections, Ordering::Relaxed);
                    wrong.lock().unwrap().clone_from(&networks.seen.wrong);
                    if !goes_on && networks.connections.is_empty() {
                        return networks.seen;
                    }
                    std::thread::sleep(Duration::from_micros(500));
                }
            }
        });
        Load {
            opens,
            ended,
            wrong,
            thread,
        }
    }

    /// Waits until so many more connections have begun and ended.
    fn more(&self, connections: u64) {
        let until = self.ended.load(Ordering::Relaxed) + connections;
        eventually("connections end", 2 * PATIENCE, || {
            assert!(!self.thread.is_finished(), "the networks have failed");
            let wrong = self.wrong.lock().unwrap().clone();
            assert!(wrong.is_empty(), "{wrong:#?}");
            (self.ended.load(Ordering::Relaxed) >= until).then_some(())
        });
    }

    /// Opens no more connections, and waits for the end of those that there are.
    fn end(self) -> Seen {
        self.opens.store(false, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// The external ports that the program of an instance was given.
fn block_of(row: &InstanceRow) -> PortBlock {
    let environ = std::fs::read(format!("/proc/{}/environ", row.pid.unwrap())).unwrap();
    let mut variables = environ.split(|byte| *byte == 0);
    let value = variables
        .find_map(|of| of.strip_prefix(b"INCO_EXTERNAL="))
        .unwrap();
    std::str::from_utf8(value).unwrap().parse().unwrap()
}

fn blocks_of(rows: &[InstanceRow]) -> Vec<PortBlock> {
    let mut blocks: Vec<PortBlock> = rows.iter().map(block_of).collect();
    blocks.sort_unstable();
    for pair in blocks.windows(2) {
        assert!(!pair[0].overlaps(&pair[1]), "{blocks:?}");
    }
    blocks
}

fn start(place: &Place) -> Inco {
    let inco = place.run(&CONFIGURATION.replace("IMAGE", IMAGE));
    inco.settled(1, 0);
    inco
}

#[test]
fn eight_instances_translate_and_nothing_reaches_the_wrong_host() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::quiet();
    let inco = start(&place);
    let load = Load::begin(Networks::new(&place, &inco));
    load.more(20);
    place.must(&["scale", "nat", "8"]);
    let rows = inco.settled(8, 0);
    blocks_of(&rows);
    // Each connection lasts for more than a second: these have begun after all were there.
    load.more(3 * HOSTS as u64);
    place.must(&["scale", "nat", "1"]);
    eventually("seven instances drain and end", 2 * PATIENCE, || {
        (inco.instances().len() == 1).then_some(())
    });
    load.more(HOSTS as u64);
    let seen = load.end();
    assert_eq!(seen.wrong, Vec::<String>::new());
    assert_eq!(seen.answers, 2 * seen.requests, "{seen:?}");
    assert_eq!(seen.blocks.len(), 8, "{:?}", seen.blocks);
    println!(
        "{} connections, {} requests and {} answers over blocks {:?}",
        seen.connections, seen.requests, seen.answers, seen.blocks
    );
    // None was cut short: the last mapping of each had ended.
    let events = inco.events();
    for row in rows.iter().filter(|row| inco.instance(row.id).is_none()) {
        let end = changes(&events, row.id)
            .into_iter()
            .find(|(_, to, _)| *to == InstanceState::Stopping);
        assert_eq!(end.unwrap().2, "its last flow has ended", "{}", row.id);
    }
    let status = inco.at_rest();
    assert_eq!(status.accounting.dropped, 0, "{:#?}", status.drops);
    inco.stop(&place);
}

/// Mappings would live for ten minutes: a drain ends at once all the same, because they move. What comes back finds them
/// wherever they are, with the external endpoint that they had.
#[test]
fn a_drain_ends_at_once_and_each_mapping_keeps_its_external_endpoint() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::with_a_cpu();
    let configuration = CONFIGURATION
        .replace("IMAGE", IMAGE)
        .replace("_timeout_s = 4", "_timeout_s = 600")
        .replace("lifetime = \"5s\"", "lifetime = \"10m\"")
        // One instance has the hosts of all, and each of its own keeps its ports until the end.
        .replace("block_ports = 8", "block_ports = 2")
        .replace(
            "affinity_key",
            "affinity = \"relaxed\"\nmove_state = true\naffinity_key",
        );
    let inco = place.run(&configuration);
    inco.settled(1, 0);
    let load = Load::begin(Networks::new(&place, &inco));
    load.more(20);
    place.must(&["scale", "nat", "8"]);
    let rows = inco.settled(8, 0);
    let blocks = blocks_of(&rows);
    load.more(2 * HOSTS as u64);
    place.must(&["scale", "nat", "1"]);
    let left = inco.settled(1, 0);
    load.more(HOSTS as u64);
    // The last one has the blocks of all, and hands them on.
    place.must(&["scale", "nat", "2"]);
    let two = inco.settled(2, 0);
    assert!(!blocks.contains(&block_of(two.last().unwrap())), "{blocks:?}");
    load.more(HOSTS as u64);
    place.must(&["drain", &left[0].id.to_string()]);
    eventually("the one that had all is gone", 2 * PATIENCE, || {
        inco.instance(left[0].id).is_none().then_some(())
    });
    load.more(HOSTS as u64);
    let seen = load.end();
    let functions = place.must(&["instances", "--functions", "--json"]);
    assert_eq!(seen.wrong, Vec::<String>::new(), "{functions}");
    assert_eq!(seen.answers, 2 * seen.requests, "{seen:?}");
    let workers = &inco.status().workers;
    let moved: u64 = workers.iter().map(|of| of.state_moves).sum();
    println!(
        "{moved} flows moved; {} requests, {} answers",
        seen.requests, seen.answers
    );
    assert!(moved > HOSTS as u64);
    let events = inco.events();
    for row in rows.iter().filter(|row| inco.instance(row.id).is_none()) {
        let end = changes(&events, row.id)
            .into_iter()
            .find(|(_, to, _)| *to == InstanceState::Stopping);
        assert_eq!(end.unwrap().2, "its flows have moved", "{}", row.id);
    }
    let status = inco.at_rest();
    assert_eq!(status.accounting.dropped, 0, "{:#?}", status.drops);
    inco.stop(&place);
}

#[test]
fn the_ports_of_an_instance_that_failed_are_reserved_over_a_restart() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::new();
    let configuration = CONFIGURATION
        .replace("IMAGE", IMAGE)
        .replace("lifetime = \"5s\"", "lifetime = \"10m\"");
    let inco = place.run(&configuration);
    inco.settled(1, 0);
    place.must(&["scale", "nat", "3"]);
    let rows = inco.settled(3, 0);
    let before = blocks_of(&rows);
    // One dies; what comes for it reaches nobody.
    let lost = block_of(&rows[0]);
    let mut networks = Networks::new(&place, &inco);
    kill(rows[0].pid.unwrap(), rustix::process::Signal::KILL);
    eventually("it is replaced", PATIENCE, || {
        inco.instance(rows[0].id).is_none().then_some(())
    });
    let after = inco.settled(3, 0);
    let blocks = blocks_of(&after);
    assert!(!blocks.contains(&lost) && before.iter().filter(|block| blocks.contains(block)).count() == 2);
    let to = SocketAddrV4::new(lost.address, lost.first + 5);
    send(
        &mut networks.outside,
        &[frame(false, [remote(1), to], 0, &payload(0, 0, STRANGER))],
    );
    eventually("it is dropped", PATIENCE, || {
        let drops = inco.status().drops;
        (drops.get(DropReason::PortBlock.name()) == Some(&1)).then_some(())
    });
    drop(networks);
    // The next run knows who has what, and what nobody may have.
    let traces = inco.kill();
    let inco = place.run(&configuration);
    let again = inco.settled(3, 0);
    assert!(again.iter().all(|row| row.adopted), "{again:#?}");
    assert_eq!(blocks_of(&again), blocks);
    place.must(&["scale", "nat", "8"]);
    let all = blocks_of(&inco.settled(8, 0));
    assert!(
        !all.contains(&lost) && blocks.iter().all(|block| all.contains(block)),
        "{all:?}"
    );
    let is_wait = |kind: &EventKind| matches!(kind, EventKind::Failure { what, .. } if what == "external");
    assert!(!inco.events().iter().any(|event| is_wait(&event.kind)));
    inco.stop(&place);
    traces.assert_nothing_left();
    assert!(!place.run_dir().join("port-blocks").exists());
}
