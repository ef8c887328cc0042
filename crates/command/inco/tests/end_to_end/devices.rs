//! Uplinks that are DPDK devices: captures, and interfaces of the kernel.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::net::UdpSocket;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use api::types::FlowFilter;
use packet::build::{Extension, Frame, Network, Tag, Transport};
use packet::capture::{CaptureReader, CaptureWriter, Captured};
use packet::{Parsed, TcpFlags};

use crate::support::{Engine, IMAGE, Inco, Namespace, PATIENCE, Place, Sniffer, available, data, eventually};

/// Whether this inco has DPDK, and the engine is here.
fn is_here(engine: Engine) -> bool {
    let missing = cfg!(not(feature = "dpdk")).then(|| "inco was built without it".to_owned());
    available("dpdk", missing) && engine.is_here()
}

/// A service of one uplink, or from one to another. Its rings take everything that a capture has at once.
fn service(name: &str, uplinks: &str, arguments: &str, instances: u32) -> String {
    format!(
        r#"
[service.{name}]
uplinks = [{uplinks}]
image = "{IMAGE}"
command = ["/inco-nf", "forward"{arguments}]
memory = "64MiB"
capacity = "1Mpps"
instances = {instances}
scheduler = {{ policy = "round-robin", slow_start = "0s" }}
autoscaler = "fixed"
stop_grace = "200ms"
ring = {{ slots = 16384 }}
"#
    )
}

/// The frames of a capture.
fn frames(file: &Path) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(file).unwrap();
    let reader = CaptureReader::new(&bytes).unwrap();
    reader.map(|captured| captured.unwrap().frame.to_vec()).collect()
}

/// Frames by flow, in their order; what is of none, by itself. Of fragments without ports, those of a datagram.
fn by_flow(frames: &[Vec<u8>]) -> BTreeMap<String, Vec<&[u8]>> {
    let mut flows: BTreeMap<String, Vec<&[u8]>> = BTreeMap::new();
    for frame in frames {
        let flow = match packet::parse(frame) {
            Parsed::Flow(info) => format!("{:?}", info.key),
            Parsed::Fragment(fragment) if fragment.offset == 0 => format!("{:?}", fragment.info.key),
            Parsed::Fragment(fragment) => format!("{:?} {}", fragment.info.key, fragment.identification),
            Parsed::Other { .. } | Parsed::Invalid(_) => "none".to_owned(),
        };
        flows.entry(flow).or_default().push(frame);
    }
    flows
}

/// The same frames, those of a flow in the same order.
fn assert_same(read: &[Vec<u8>], written: &[Vec<u8>], what: &str) {
    assert_eq!(read.len(), written.len(), "{what}");
    let (read, written) = (by_flow(read), by_flow(written));
    assert!(read.keys().eq(written.keys()), "{what}: other flows");
    for (flow, frames) in &read {
        assert!(written[flow] == *frames, "{what}: flow {flow} differs");
    }
}

/// `inco stop`; DPDK may not have left anything either.
fn stop(inco: Inco, place: &Place) {
    let pid = inco.status().pid;
    inco.stop(place);
    let directory = format!("/var/run/dpdk/inco-{pid}");
    assert!(!Path::new(&directory).exists(), "{directory} is left");
}

/// Waits until all uplinks together have sent so many packets.
fn sent(inco: &Inco, packets: u64) {
    let mut status = inco.status();
    let all = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        eventually("every packet is back", PATIENCE, || {
            status = inco.status();
            (status.accounting.returned == packets).then_some(())
        });
    }));
    assert!(all.is_ok(), "not {packets}: {status:#?}\n{}", inco.told());
}

fn captures_are_replayed_and_written(engine: Engine) {
    if !is_here(engine) {
        return;
    }
    let Some(data) = data() else { return };
    let place = Place::new();
    // Jumbo frames, and PPPoE, which passes by the functions.
    let captures = ["http_get", "jumbo", "Video_Calls", "asa_exploit"];
    let read = |index: usize| data.join(format!("trex/{}.pcap", captures[index]));
    let written = |index: usize| place.path(&format!("{}.out.pcap", captures[index]));
    let mut text = format!("[switch]\nother = \"u3\"\n{}", engine.toml());
    let mut services = String::new();
    for index in 0..captures.len() {
        let _ = write!(
            text,
            "[[uplink]]\nname = \"u{index}\"\ndevice = \"pcap:{},tx={}\"\nmax_frame = 9022\n",
            read(index).display(),
            written(index).display()
        );
        services += &service(&format!("s{index}"), &format!("\"u{index}\""), "", 1);
    }
    let inco = place.run(&(text + &services));
    let all: Vec<_> = (0..captures.len()).map(|index| frames(&read(index))).collect();
    let total: usize = all.iter().map(Vec::len).sum();
    assert!(total > 2000, "{total}");
    sent(&inco, total as u64);
    let status = inco.at_rest();
    assert_eq!(status.accounting.offered, total as u64, "{status:#?}");
    assert!(status.drops.is_empty(), "{:#?}", status.drops);
    for (row, frames) in status.uplinks.iter().zip(&all) {
        let counts = (
            row.received_packets,
            row.sent_packets,
            row.missed_packets,
            row.failed_packets,
        );
        let count = frames.len() as u64;
        assert_eq!(counts, (count, count, 0, 0), "{row:#?}");
        assert_eq!(row.sent_bytes, row.received_bytes, "{row:#?}");
    }
    stop(inco, &place);
    for (index, read) in all.iter().enumerate() {
        let written = frames(&written(index));
        assert_same(read, &written, captures[index]);
        // One instance keeps the order of all that it is given.
        let of_ip = |frames: &[Vec<u8>]| -> Vec<Vec<u8>> {
            let is_ip = |frame: &&Vec<u8>| !matches!(packet::parse(frame), Parsed::Other { .. });
            frames.iter().filter(is_ip).cloned().collect()
        };
        assert!(
            of_ip(read) == of_ip(&written),
            "{}: out of order",
            captures[index]
        );
    }
}

#[test]
fn captures_are_replayed_and_written_frame_by_frame_oci() {
    captures_are_replayed_and_written(Engine::Oci);
}

#[test]
fn captures_are_replayed_and_written_frame_by_frame_docker() {
    captures_are_replayed_and_written(Engine::Docker);
}

/// Frames of every kind of header that is parsed: with and without tags, options and extension headers, fragments
/// whose last one comes first, and an ICMP error about one of the flows.
fn frames_of_every_kind() -> Vec<Vec<u8>> {
    let body = [1, 4, 0, 0, 0, 0];
    let extensions = [
        Extension {
            number: 0,
            body: &body,
        },
        Extension {
            number: 60,
            body: &body,
        },
    ];
    let v4 = |options| Network::V4 {
        src: [10, 1, 2, 3],
        dst: [192, 0, 2, 9],
        dscp: 46,
        ttl: 9,
        identification: 77,
        options,
    };
    let v6 = |extensions| Network::V6 {
        src: [0x20; 16],
        dst: [0x30; 16],
        dscp: 10,
        hop_limit: 3,
        extensions,
    };
    let udp = Transport::Udp {
        src_port: 5,
        dst_port: 6,
    };
    let tcp = Transport::Tcp {
        src_port: 7,
        dst_port: 8,
        sequence: 9,
        acknowledgement: 10,
        flags: TcpFlags(0x12),
        options: &[2, 4, 5, 0xb4],
    };
    let sctp = Transport::Sctp {
        src_port: 9,
        dst_port: 10,
        tag: 11,
    };
    let echo = |kind| Transport::Icmp {
        kind,
        code: 0,
        word: [0, 1, 0, 2],
    };
    let tags = [Tag::service(100), Tag::vlan(200)];
    let mut frames = Vec::new();
    for (network, kind) in [
        (v4(&[]), 8),
        (v4(&[1, 1, 1, 1]), 8),
        (v6(&[][..]), 128),
        (v6(&extensions[..1]), 128),
        (v6(&extensions[..]), 128),
    ] {
        for transport in [udp, tcp, sctp, echo(kind)] {
            for tags in [&[][..], &tags[..1], &tags[..]] {
                let plain = Frame::new(network, transport, b"a payload of some bytes");
                frames.push(Frame { tags, ..plain }.to_vec().unwrap());
            }
        }
    }
    let long = vec![7; 3000];
    let datagram = Frame::new(v4(&[]), udp, &long).to_vec().unwrap();
    frames.extend(
        packet::build::fragment(&datagram, 1500, 78)
            .unwrap()
            .into_iter()
            .rev(),
    );
    let [router, source] = ["192.0.2.1", "10.1.2.3"].map(|address| address.parse().unwrap());
    let unreachable = Frame::icmp(router, source, 3, 3, [0; 4], &frames[0][14..42]).unwrap();
    frames.push(unreachable.to_vec().unwrap());
    frames
}

/// With an independent parser as judge of what is well formed: all of that comes back as it was, and nothing else
/// does.
#[test]
fn every_kind_of_header_passes_the_containers_and_malformed_frames_are_dropped() {
    if !is_here(Engine::Oci) {
        return;
    }
    let place = Place::new();
    let good = frames_of_every_kind();
    // Each cut off within its headers.
    let cut: Vec<Vec<u8>> = good
        .iter()
        .take(60)
        .map(|frame| frame[..frame.len() - 30].to_vec())
        .collect();
    let is_whole = |frame: &Vec<u8>| etherparse::PacketHeaders::from_ethernet_slice(frame).is_ok();
    assert!(good.iter().all(is_whole) && !cut.iter().any(is_whole));
    let mut capture = CaptureWriter::new();
    for frame in good.iter().chain(&cut) {
        capture.push(&Captured {
            timestamp_ns: 0,
            frame,
            original_len: frame.len() as u32,
        });
    }
    let (read, written) = (place.path("in.pcap"), place.path("out.pcap"));
    std::fs::write(&read, capture.into_bytes()).unwrap();
    let inco = place.run(&format!(
        "[[uplink]]\nname = \"wan\"\ndevice = \"pcap:{},tx={}\"\n{}{}",
        read.display(),
        written.display(),
        service("all", "\"wan\"", "", 3),
        Engine::Oci.toml()
    ));
    sent(&inco, good.len() as u64);
    let status = inco.at_rest();
    let dropped = BTreeMap::from([("malformed".to_owned(), cut.len() as u64)]);
    assert_eq!(status.drops, dropped, "{status:#?}");
    assert!(inco.instances().iter().all(|row| row.back_packets > 0));
    stop(inco, &place);
    let back = frames(&written);
    assert_same(&good, &back, "of every kind");
    for (before, after) in by_flow(&good)
        .values()
        .flatten()
        .zip(by_flow(&back).values().flatten())
    {
        let read = |frame| etherparse::PacketHeaders::from_ethernet_slice(frame).unwrap();
        assert_eq!(read(before), read(after));
    }
}

/// DPDK's own words for the same device, with several instances: each flow keeps its order.
#[test]
fn a_capture_device_of_dpdk_is_replayed_through_three_instances() {
    if !is_here(Engine::Oci) {
        return;
    }
    let Some(data) = data() else { return };
    let place = Place::new();
    let read = data.join("opennetvm_64B_download.pcap");
    let written = place.path("out.pcap");
    let uplink = format!(
        "[[uplink]]\nname = \"wan\"\ndevice = \"net_pcap0,rx_pcap={},tx_pcap={}\"\n",
        read.display(),
        written.display()
    );
    let inco = place.run(&format!(
        "{uplink}{}{}",
        service("all", "\"wan\"", "", 3),
        Engine::Oci.toml()
    ));
    let all = frames(&read);
    sent(&inco, all.len() as u64);
    let status = inco.at_rest();
    assert!(status.drops.is_empty(), "{:#?}", status.drops);
    let rows = inco.instances();
    assert!(
        rows.len() == 3 && rows.iter().all(|i| i.back_packets > 0),
        "{rows:#?}"
    );
    stop(inco, &place);
    assert_same(&all, &frames(&written), "opennetvm");
}

/// What an uplink does not carry is dropped by name, whichever way it goes.
#[test]
fn frames_longer_than_an_uplink_carries_are_counted_both_ways() {
    if !is_here(Engine::Oci) {
        return;
    }
    let Some(data) = data() else { return };
    let place = Place::new();
    let jumbo = data.join("trex/jumbo.pcap");
    let all = frames(&jumbo);
    let (short, long): (Vec<_>, Vec<_>) = all.iter().cloned().partition(|frame| frame.len() <= 1522);
    assert!(!short.is_empty() && !long.is_empty());
    let packets = |frames: &[Vec<u8>]| frames.len() as u64;
    // On the way in: the uplink beside it makes the room for longer ones.
    let out = place.path("in.pcap");
    let text = format!(
        "[[uplink]]\nname = \"wan\"\ndevice = \"pcap:{},tx={}\"\n[[uplink]]\nname = \"lan\"\n\
         device = \"memif:lan.sock\"\nmax_frame = 9022\n{}{}",
        jumbo.display(),
        out.display(),
        service("all", "\"wan\"", "", 1),
        Engine::Oci.toml()
    );
    let inco = place.run(&text);
    sent(&inco, packets(&short));
    let status = inco.at_rest();
    let dropped = BTreeMap::from([("too_large".to_owned(), packets(&long))]);
    assert_eq!(
        (status.accounting.offered, &status.drops),
        (packets(&all), &dropped)
    );
    stop(inco, &place);
    assert_same(&short, &frames(&out), "in");

    // On the way out.
    let out = place.path("out.pcap");
    let text = format!(
        "[[uplink]]\nname = \"wan\"\ndevice = \"pcap:{}\"\nmax_frame = 9022\n\
         [[uplink]]\nname = \"lan\"\ndevice = \"net_pcap7,tx_pcap={}\"\n{}{}",
        jumbo.display(),
        out.display(),
        service("all", "\"wan\", \"lan\"", ", \"--cross\"", 1),
        Engine::Oci.toml()
    );
    let inco = place.run(&text);
    sent(&inco, packets(&short));
    let status = inco.at_rest();
    assert_eq!(
        (status.accounting.offered, &status.drops),
        (packets(&all), &dropped)
    );
    assert_eq!(status.uplinks[1].dropped_packets, packets(&long));
    stop(inco, &place);
    assert_same(&short, &frames(&out), "out");
}

/// A pair of interfaces: `wan0` in the namespace that inco runs in, `net0` in another one, with an address and a
/// neighbour that does not exist: 10.128.0.1.
struct Wire {
    inco: Namespace,
    network: Namespace,
}

impl Wire {
    fn new(mtu: u32) -> Wire {
        let (inco, network) = (Namespace::new(), Namespace::new());
        inco.ip(&format!(
            "link add wan0 mtu {mtu} type veth peer name net0 mtu {mtu} netns {}\nlink set wan0 up",
            network.pid()
        ));
        network.ip("link set net0 up
            addr add 10.0.0.1/16 dev net0
            route add 10.128.0.0/16 dev net0
            neigh add 10.128.0.1 lladdr 02:00:00:00:00:99 dev net0");
        Wire { inco, network }
    }
}

const FLOWS: u16 = 20;
const PACKETS: usize = 50;

/// The kernel sends UDP from its own stack, and every frame comes back unchanged, those of a flow in order. Each
/// datagram is so many frames: fragments where it is more than one.
fn kernel_traffic_comes_back(wire: &Wire, frames_each: usize) {
    wire.network.within(|| {
        let mut sniffer = Sniffer::new();
        let sockets: Vec<UdpSocket> = (0..FLOWS)
            .map(|flow| {
                let socket = UdpSocket::bind(("10.0.0.1", 4000 + flow)).unwrap();
                socket.connect(("10.128.0.1", 53)).unwrap();
                socket
            })
            .collect();
        // Each frame is seen as it leaves, and then as it comes back.
        let mut seen: HashMap<Vec<u8>, usize> = HashMap::new();
        let (mut left, mut back) = (Vec::new(), Vec::new());
        for number in 0..PACKETS {
            for (flow, socket) in sockets.iter().enumerate() {
                // Up to 1,472 bytes: the MTU less both headers. A fragment carries at most 1,480 of them and the UDP
                // header.
                let len = (frames_each - 1) * 1480 + 18 + number * 29 + flow - 8 * (frames_each - 1).min(1);
                let mut payload = vec![number as u8; len];
                payload[..2].copy_from_slice(&[flow as u8, number as u8]);
                socket.send(&payload).unwrap();
            }
            // The next ones when these are back: none is lost for want of room.
            let until = Instant::now() + PATIENCE;
            while back.len() < sockets.len() * (number + 1) * frames_each {
                let Some(frame) = sniffer.next() else {
                    let (left, back) = (left.len(), back.len());
                    assert!(
                        Instant::now() < until,
                        "round {number}: {left} frames left, {back} came back"
                    );
                    std::thread::sleep(Duration::from_micros(100));
                    continue;
                };
                let times = seen.entry(frame.clone()).or_default();
                *times += 1;
                match *times {
                    1 => left.push(frame),
                    2 => back.push(frame),
                    _ => panic!("a frame came back twice: {frame:?}"),
                }
            }
        }
        assert_eq!(left.len(), usize::from(FLOWS) * PACKETS * frames_each);
        assert_same(&left, &back, "from the kernel");
    });
}

fn an_interface_of_the_kernel_is_an_uplink(
    engine: Engine,
    switch: &str,
    device: &str,
    uplink: &str,
    frames_each: usize,
) -> Option<api::types::Status> {
    if !is_here(engine) {
        return None;
    }
    let place = Place::new();
    let wire = Wire::new(1500);
    let text = format!(
        "{switch}[[uplink]]\nname = \"wan\"\ndevice = \"{device}\"\n{uplink}{}{}",
        service("all", "\"wan\"", "", 3),
        engine.toml()
    );
    let inco = wire.inco.within(|| place.run(&text));
    inco.settled(3, 0);
    kernel_traffic_comes_back(&wire, frames_each);
    let status = inco.at_rest();
    let packets = u64::from(FLOWS) * (PACKETS * frames_each) as u64;
    assert_eq!(status.accounting.offered, packets, "{status:#?}");
    assert_eq!(status.accounting.returned, packets, "{status:#?}");
    assert!(status.drops.is_empty(), "{:#?}", status.drops);
    let rows = inco.instances();
    assert!(rows.iter().all(|i| i.back_packets > 0), "{rows:#?}");
    stop(inco, &place);
    Some(status)
}

#[test]
fn a_veth_interface_in_a_namespace_is_an_uplink_oci() {
    an_interface_of_the_kernel_is_an_uplink(Engine::Oci, "", "veth:wan0", "", 1);
}

#[test]
fn a_veth_interface_in_a_namespace_is_an_uplink_docker() {
    an_interface_of_the_kernel_is_an_uplink(Engine::Docker, "", "veth:wan0", "", 1);
}

/// The next run opens the device again. Pins are in memory that the launcher keeps: no flow moves.
#[test]
fn no_flow_moves_where_a_killed_inco_had_a_device() {
    if !is_here(Engine::Oci) {
        return;
    }
    let place = Place::new();
    let wire = Wire::new(1500);
    let text = format!(
        "[[uplink]]\nname = \"wan\"\ndevice = \"veth:wan0\"\n{}{}",
        service("all", "\"wan\"", "", 3),
        Engine::Oci.toml()
    );
    let pins = |inco: &Inco| -> BTreeMap<String, _> {
        let page = inco.client().flows(&FlowFilter::default()).unwrap();
        assert!(page.complete);
        let rows = page.flows.iter();
        rows.map(|row| (row.flow.clone(), row.forward.unwrap())).collect()
    };
    let first = wire.inco.within(|| place.run(&text));
    first.settled(3, 0);
    kernel_traffic_comes_back(&wire, 1);
    let before = pins(&first);
    assert_eq!(before.len(), usize::from(FLOWS));
    assert!(before.values().collect::<BTreeSet<_>>().len() == 3, "{before:?}");
    first.kill();
    let second = wire.inco.within(|| place.run(&text));
    second.settled(3, 0);
    assert_eq!(pins(&second), before);
    kernel_traffic_comes_back(&wire, 1);
    assert_eq!(pins(&second), before);
    let status = second.at_rest();
    assert_eq!(status.accounting.expected_moves, 0, "{status:#?}");
    assert_eq!(
        status.accounting.returned,
        u64::from(FLOWS) * PACKETS as u64,
        "{status:#?}"
    );
    stop(second, &place);
}

/// What is lost at a device while inco is away: from the kill to the first packet that the next run forwards.
#[test]
fn the_gap_of_a_device_after_a_kill_9_is_reported() {
    if !is_here(Engine::Oci) {
        return;
    }
    let place = Place::quiet();
    let wire = Wire::new(1500);
    let file = place.file(
        "inco.toml",
        &format!(
            "[[uplink]]\nname = \"wan\"\ndevice = \"veth:wan0\"\n{}{}",
            service("all", "\"wan\"", "", 1),
            Engine::Oci.toml()
        ),
    );
    let run = || {
        let mut command = place.inco(&["run", "-f", file.to_str().unwrap()]);
        command.env("INCO_LOG", "info");
        wire.inco.within(|| place.start(command))
    };
    let first = run();
    first.settled(1, 0);
    let probes = Probes::default();
    std::thread::scope(|scope| {
        scope.spawn(|| wire.network.within(|| probes.go_on()));
        eventually("probes come back", PATIENCE, || {
            (probes.back.load(Ordering::Relaxed) > 100).then_some(())
        });
        first.kill();
        let (killed, sent_before) = (Instant::now(), probes.sent.load(Ordering::Relaxed));
        let back_before = probes.back.load(Ordering::Relaxed);
        let second = run();
        eventually("probes come back again", PATIENCE, || {
            (probes.back.load(Ordering::Relaxed) > back_before + 10).then_some(())
        });
        let gap = killed.elapsed();
        let lost = probes.sent.load(Ordering::Relaxed) - sent_before;
        probes.ends.store(true, Ordering::Relaxed);
        let log = second.log();
        let started = log
            .lines()
            .find(|line| line.contains("DPDK has started"))
            .unwrap();
        println!(
            "killed, started again and forwarded {gap:?} later; one packet a millisecond: {lost} lost; {started}"
        );
        assert!(lost > 0, "a device is closed while inco is away");
        stop(second, &place);
    });
}

/// A packet each millisecond, and how many were sent and came back.
#[derive(Default)]
struct Probes {
    sent: AtomicU64,
    back: AtomicU64,
    ends: AtomicBool,
}

impl Probes {
    /// Sends, in the network namespace of the caller, until it is told to end.
    fn go_on(&self) {
        let mut sniffer = Sniffer::new();
        let socket = UdpSocket::bind(("10.0.0.1", 4000)).unwrap();
        socket.connect(("10.128.0.1", 53)).unwrap();
        let mut due = Instant::now();
        let mut seen = 0;
        while !self.ends.load(Ordering::Relaxed) {
            socket.send(b"probe").unwrap();
            let sent = self.sent.fetch_add(1, Ordering::Relaxed) + 1;
            due += Duration::from_millis(1);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            while let Some(frame) = sniffer.next() {
                seen += u64::from(frame.windows(5).any(|part| part == b"probe"));
            }
            // Each is seen as it leaves, and those that come back once more.
            self.back.store(seen.saturating_sub(sent), Ordering::Relaxed);
        }
    }
}

/// By libpcap, since the kernel would put them together for `veth:`.
#[test]
fn fragments_pass_an_interface_that_libpcap_opens() {
    an_interface_of_the_kernel_is_an_uplink(Engine::Oci, "", "net_pcap0,iface=wan0", "", 3);
}

/// Two queues of one interface for two workers: each has its share, and flows stay whole and in order.
#[test]
fn two_queues_of_an_uplink_serve_two_workers() {
    let cpus = rustix::thread::sched_getaffinity(None).unwrap();
    let cpus: Vec<usize> = (0..rustix::thread::CpuSet::MAX_CPU)
        .filter(|cpu| cpus.is_set(*cpu))
        .collect();
    let [first, second, ..] = cpus[..] else {
        available("cpus", Some("two workers need two CPUs".to_owned()));
        return;
    };
    let switch = format!("[switch]\nworkers = [{first}, {second}]\n");
    let status =
        an_interface_of_the_kernel_is_an_uplink(Engine::Oci, &switch, "veth:wan0", "queues = 2\n", 1);
    let Some(status) = status else { return };
    let received: Vec<u64> = status
        .workers
        .iter()
        .map(|worker| worker.received_packets)
        .collect();
    assert!(
        received.len() == 2 && received.iter().all(|packets| *packets > 0),
        "{received:?}"
    );
}

/// What the kernel would drop without a word is refused before it gets there, and counted.
#[test]
fn frames_beyond_the_mtu_of_an_interface_are_counted() {
    if !is_here(Engine::Oci) {
        return;
    }
    let Some(data) = data() else { return };
    let place = Place::new();
    let wire = Wire::new(1400);
    let capture = data.join("trex/http_get.pcap");
    let uplinks = format!(
        "[[uplink]]\nname = \"wan\"\ndevice = \"pcap:{}\"\n[[uplink]]\nname = \"lan\"\ndevice = \"veth:wan0\"\n",
        capture.display()
    );
    let rest = service("all", "\"wan\", \"lan\"", ", \"--cross\"", 1) + &Engine::Oci.toml();
    // An uplink that does not carry what it should is refused at once.
    let file = place.file("inco.toml", &format!("{uplinks}{rest}"));
    let check = wire
        .inco
        .within(|| place.output(&["check", "-f", file.to_str().unwrap()]));
    let said = crate::support::text(&check.stderr);
    assert_eq!(check.status.code(), Some(2), "{said}");
    let expected = "uplink[1].device: the MTU of wan0 is 1400 B; frames of 1522 B need 1500 B; run `ip link set \
                    wan0 mtu 1500`, or write max_frame = 1422";
    assert!(said.contains(expected), "{said}");

    let inco = wire
        .inco
        .within(|| place.run(&format!("{uplinks}max_frame = 1422\n{rest}")));
    let all = frames(&capture);
    // The kernel allows 1,414 bytes without a tag.
    let (short, long): (Vec<_>, Vec<_>) = all.iter().cloned().partition(|frame| frame.len() <= 1414);
    assert!(!short.is_empty() && !long.is_empty());
    sent(&inco, short.len() as u64);
    let status = inco.at_rest();
    let dropped = BTreeMap::from([("too_large".to_owned(), long.len() as u64)]);
    assert_eq!(
        (status.accounting.offered, &status.drops),
        (all.len() as u64, &dropped)
    );
    let sent_bytes: usize = short.iter().map(Vec::len).sum();
    assert_eq!(
        status.uplinks[1].sent_bytes, sent_bytes as u64,
        "{:#?}",
        status.uplinks
    );
    stop(inco, &place);
}

/// Hugepages of the machine, reserved for a test or taken away for it, and given back as they were.
struct Hugepages {
    before: u64,
}

impl Hugepages {
    const COUNT: &str = "/proc/sys/vm/nr_hugepages";

    /// Makes `count` pages of 2 MiB free, those in use aside; `None`, said, where the machine does not give them.
    fn make_free(count: u64) -> Option<Hugepages> {
        let before = std::fs::read_to_string(Self::COUNT)
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        let all = Hugepages { before };
        let in_use = before.saturating_sub(Hugepages::free());
        Hugepages::set(in_use + count);
        let is_so = Hugepages::free() == count;
        if !is_so {
            available(
                "hugepages",
                Some(format!("the machine does not give {count} of them")),
            );
        }
        is_so.then_some(all)
    }

    fn set(count: u64) {
        std::fs::write(Self::COUNT, count.to_string()).unwrap();
    }

    fn free() -> u64 {
        let text = std::fs::read_to_string("/proc/meminfo").unwrap();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("HugePages_Free:"))
            .unwrap();
        line.trim().parse().unwrap()
    }
}

impl Drop for Hugepages {
    fn drop(&mut self) {
        Hugepages::set(self.before);
    }
}

/// A run with one small capture; gives what it looks like while it goes on, and its log.
fn small_run<T>(place: &Place, switch: &str, look: impl FnOnce(&Inco) -> T) -> Option<(T, String)> {
    let capture = data()?.join("trex/udp_10_pkts.pcap");
    let text = format!(
        "[switch]\n{switch}\n[[uplink]]\nname = \"wan\"\ndevice = \"pcap:{}\"\n{}{}",
        capture.display(),
        service("all", "\"wan\"", "", 1),
        Engine::Oci.toml()
    );
    let inco = place.run(&text);
    sent(&inco, 10);
    let seen = look(&inco);
    let log = inco.log();
    stop(inco, place);
    Some((seen, log))
}

/// A configuration of a device and a sink alone.
fn bare(place: &Place, switch: &str) -> std::path::PathBuf {
    let rest = "[[uplink]]\nname = \"wan\"\ndevice = \"net_null0\"\n[service.all]\nport = \"null\"\n";
    place.file("inco.toml", &format!("[switch]\n{switch}\n{rest}"))
}

#[test]
fn the_buffers_of_dpdk_are_in_the_configured_hugepages() {
    /// Fewer than the buffers take: 64 MiB and more.
    const FEW: u64 = 30;
    if !is_here(Engine::Oci) {
        return;
    }
    let place = Place::quiet();
    let in_hugepages = |inco: &Inco| {
        let maps = std::fs::read_to_string(format!("/proc/{}/smaps", inco.status().pid)).unwrap();
        let of_size = |size: &str| {
            maps.lines()
                .any(|line| line.starts_with("KernelPageSize:") && line.contains(size))
        };
        assert!(of_size(" 4 kB"));
        of_size(" 2048 kB")
    };
    if let Some(_none) = Hugepages::make_free(0) {
        let file = bare(&place, "hugepages = \"on\"");
        let output = place.output(&["run", "-f", file.to_str().unwrap()]);
        let said = crate::support::text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        let expected = "inco.toml:2: switch.hugepages: no free hugepages; run `sysctl vm.nr_hugepages=512`";
        assert!(said.contains(expected) && said.lines().count() == 1, "{said}");
        let Some((takes, _)) = small_run(&place, "hugepages = \"auto\"", in_hugepages) else {
            return;
        };
        assert!(!takes);
    }
    if let Some(_few) = Hugepages::make_free(FEW) {
        let file = bare(&place, "hugepages = \"on\"");
        let output = place.output(&["run", "-f", file.to_str().unwrap()]);
        let said = crate::support::text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        let expected = ["switch.hugepages: DPDK's buffers take ", "vm.nr_hugepages=N"];
        assert!(expected.iter().all(|words| said.contains(words)), "{said}");
    }
    let Some(_many) = Hugepages::make_free(128) else {
        return;
    };
    for (wanted, takes) in [("on", true), ("auto", true), ("off", false)] {
        let switch = format!("hugepages = \"{wanted}\"");
        let Some((took, _)) = small_run(&place, &switch, in_hugepages) else {
            return;
        };
        assert_eq!(took, takes, "{wanted}");
    }
}

#[test]
fn arguments_for_dpdk_reach_it() {
    if !is_here(Engine::Oci) {
        return;
    }
    let place = Place::new();
    let (Some(((), quiet)), Some(((), talking))) = (
        small_run(&place, "", |_| ()),
        small_run(&place, "dpdk_args = [\"--log-level=debug\"]", |_| ()),
    ) else {
        return;
    };
    let says = |log: &str| log.lines().any(|line| line.starts_with("EAL:"));
    assert!(!says(&quiet) && says(&talking), "{quiet}\n---\n{talking}");
    // What it does not know ends in one line of ours.
    let file = bare(&place, "dpdk_args = [\"--nonsense\"]");
    let output = place.output(&["run", "-f", file.to_str().unwrap()]);
    let said = crate::support::text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let last = said.lines().last().unwrap_or_default();
    assert!(
        last.starts_with("inco: DPDK did not start") && last.contains("--nonsense"),
        "{said}"
    );
}
