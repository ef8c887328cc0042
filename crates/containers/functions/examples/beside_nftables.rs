//! What a packet costs in `nat`, `limiter` and `monitor`, in CPU time, and in the kernel with rules of nftables that do the
//! same. Needs root and nft.
//!
//! cargo run --release -p functions --example beside_nftables
//!
//! Of the functions: the copy of the frame into the burst, the function, and reading the frame that leaves. Of the
//! kernel: what a frame costs that is sent into a veth, forwarded, and dropped behind another veth, without what one
//! costs that is dropped behind the first. "alone" is the difference that the rules make.

#![allow(clippy::unwrap_used, reason = "what goes wrong ends the measurement")]

use std::hint::black_box;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use functions::{Burst, Chain, LIBRARY, RECEIVED_LIMIT, Setup, find};
use model::Nanos;
use packet::build::Frame;
use packet_socket::{Config, PacketSocket};
use real_parts::Namespace;
use rustix::time::{ClockId, clock_gettime};

const CONFIG: Config = Config {
    slots: 1024,
    frame_bytes: 1514,
};
/// Repetitions; the quickest counts.
const ROUNDS: usize = 5;
/// Packets of a repetition, at least.
const PACKETS: usize = 200_000;
/// Bytes of a UDP payload: the shortest frame, of 60 bytes.
const PAYLOAD: usize = 18;
/// The MAC address of the router's first interface.
const ROUTER_MAC: &str = "02:00:00:00:00:02";

const NAT: &str = "inside = [\"10.0.0.0/8\"]\nexternal = [\"192.0.2.1:1024-65535\", \"192.0.2.2:1024-65535\", \
                   \"192.0.2.3:1024-65535\", \"192.0.2.4:1024-65535\", \"192.0.2.5:1024-65535\"]\n\
                   block_ports = 128\n";
const LIMITER: &str = "[[rule]]\nrate = \"100Mpps\"\nburst_packets = 100000000\n";
const MASQUERADE: &str =
    "table ip nat { chain post { type nat hook postrouting priority 100; oifname \"b1\" masquerade; }; }";
const METERS: &str = "table ip filter { set m { type ipv4_addr; size 1048576; flags dynamic; }; \
                      chain forward { type filter hook forward priority 0; \
                      add @m { ip saddr limit rate over 1000000/second burst 100000 packets } drop; }; }";

/// The CPU time of this thread.
fn cpu() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// UDP packets, one for each flow. Hosts have 128 flows each.
fn flows(count: usize) -> Vec<Vec<u8>> {
    let frame = |at: usize| {
        let host = at / 128;
        let to = SocketAddr::from(([198, 51, 100, (host % 250) as u8], 53));
        let from = SocketAddr::from((
            [10, (host >> 16) as u8, (host >> 8) as u8, host as u8],
            1024 + (at % 128) as u16,
        ));
        let mut frame = Frame::udp(from, to, &[0; PAYLOAD]).unwrap();
        frame.dst_mac = [2, 0, 0, 0, 0, 2];
        frame.to_vec().unwrap()
    };
    (0..count).map(frame).collect()
}

/// One packet from each of so many sources.
fn sources(count: usize) -> Vec<Vec<u8>> {
    let to = SocketAddr::from(([198, 51, 100, 1], 53));
    let frame = |at: usize| {
        let from = SocketAddr::from(([10, (at >> 16) as u8, (at >> 8) as u8, at as u8], 1024));
        let mut frame = Frame::udp(from, to, &[0; PAYLOAD]).unwrap();
        frame.dst_mac = [2, 0, 0, 0, 0, 2];
        frame.to_vec().unwrap()
    };
    (0..count).map(frame).collect()
}

/// In an order in which neighbours in time are none in memory.
fn shuffled(mut frames: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let mut random = model::Random::new(1);
    for at in (1..frames.len()).rev() {
        frames.swap(at, random.below(at as u64 + 1) as usize);
    }
    frames
}

/// Nanoseconds of CPU time per packet in a function; [`None`]: around none.
fn function(name: Option<(&str, &str)>, frames: &[Vec<u8>]) -> f64 {
    let setup = Setup {
        instance: 1,
        ports: 2,
        seed: 3,
    };
    let mut chain = name.map(|(name, text)| {
        let stage = find(LIBRARY, name).unwrap().make(text, &setup).unwrap();
        Chain::new(vec![stage]).unwrap()
    });
    let mut burst = Burst::new();
    let mut now = Nanos::from_secs(1);
    let mut best = f64::MAX;
    // The first round begins flows.
    for round in 0..=ROUNDS {
        let began = cpu();
        let (mut packets, mut left) = (0, 0);
        while packets < PACKETS {
            for frames in frames.chunks(RECEIVED_LIMIT) {
                burst.begin(0, 1);
                for frame in frames {
                    burst.push(frame);
                }
                if let Some(chain) = &mut chain {
                    chain.process(&mut burst, now);
                }
                for extent in burst.leaving() {
                    black_box(burst.bytes_of(extent));
                }
                left += burst.leaving().len();
                packets += frames.len();
                now = now + Nanos::from_micros(1);
            }
        }
        assert!(chain.is_none() || left == packets, "{left} of {packets}");
        if round > 0 {
            best = best.min((cpu() - began).as_nanos() as f64 / packets as f64);
        }
    }
    best
}

/// Two namespaces with a veth each way. The second one forwards.
struct Bed {
    router: Namespace,
    sender: PacketSocket,
    _host: Namespace,
}

impl Bed {
    fn new(rules: &str) -> Bed {
        let (host, router) = (Namespace::new("host"), Namespace::new("router"));
        for of in [&host, &router] {
            of.set("ipv6/conf/default/disable_ipv6", "1");
        }
        for (here, there) in [("a0", "a1"), ("b0", "b1")] {
            host.ip(&format!(
                "link add name {here} type veth peer name {there} netns {}",
                router.name
            ));
            host.ip(&format!("link set {here} up"));
        }
        router.ip(&format!("link set a1 address {ROUTER_MAC}"));
        for (interface, address) in [("a1", "10.255.255.254/8"), ("b1", "192.0.2.1/24")] {
            router.ip(&format!("addr add {address} dev {interface}"));
            router.ip(&format!("link set {interface} up"));
        }
        router.ip("neigh add 192.0.2.254 lladdr 02:00:00:00:00:99 nud permanent dev b1");
        router.ip("route add default via 192.0.2.254");
        router.set("ipv4/ip_forward", "1");
        if !rules.is_empty() {
            let arguments = ["netns", "exec", &router.name, "nft", rules];
            assert!(Command::new("ip").args(arguments).status().unwrap().success());
        }
        let sender = host.within(|| PacketSocket::open("a0", CONFIG).unwrap());
        Bed {
            router,
            sender,
            _host: host,
        }
    }

    /// Packets that have left the router.
    fn forwarded(&self) -> usize {
        let text = self
            .router
            .within(|| std::fs::read_to_string("/proc/thread-self/net/dev").unwrap());
        let line = text
            .lines()
            .find_map(|line| line.trim().strip_prefix("b1:"))
            .unwrap();
        line.split_whitespace().nth(9).unwrap().parse().unwrap()
    }

    fn ns_per_packet(&mut self, frames: &[Vec<u8>], are_forwarded: bool) -> f64 {
        let mut best = f64::MAX;
        for round in 0..=ROUNDS {
            let before = self.forwarded();
            let began = cpu();
            let mut packets = 0;
            while packets < PACKETS {
                for frames in frames.chunks(RECEIVED_LIMIT) {
                    let (_, sender) = self.sender.rings();
                    frames.iter().for_each(|frame| sender.put(frame).unwrap());
                    sender.send().unwrap();
                    packets += frames.len();
                }
            }
            let spent = cpu() - began;
            let forwarded = self.forwarded() - before;
            assert!(
                forwarded * 100 >= packets * 99 || !are_forwarded,
                "{forwarded} of {packets} were forwarded"
            );
            if round > 0 {
                best = best.min(spent.as_nanos() as f64 / packets as f64);
            }
        }
        best
    }
}

/// What the kernel takes for a packet, without the sender.
fn kernel(rules: &str, frames: &[Vec<u8>]) -> f64 {
    let mut bed = Bed::new(rules);
    let all = bed.ns_per_packet(frames, true);
    let nobodys: Vec<Vec<u8>> = frames
        .iter()
        .take(1024)
        .cloned()
        .map(|mut frame| {
            frame[12..14].copy_from_slice(&[0x88, 0xb5]);
            frame
        })
        .collect();
    all - bed.ns_per_packet(&nobodys, false)
}

fn main() {
    let many = |count| shuffled(flows(count));
    let cases = [
        ("nat", NAT, "flows", 1_000, many(1_000), MASQUERADE),
        ("nat", NAT, "flows", 60_000, many(60_000), MASQUERADE),
        ("nat", NAT, "flows", 250_000, many(250_000), ""),
        (
            "limiter",
            LIMITER,
            "sources",
            1_000,
            shuffled(sources(1_000)),
            METERS,
        ),
        (
            "limiter",
            LIMITER,
            "sources",
            1_000_000,
            shuffled(sources(1_000_000)),
            METERS,
        ),
        ("monitor", "", "flows", 1_000, many(1_000), ""),
        ("monitor", "", "flows", 60_000, many(60_000), ""),
    ];
    println!(
        "CPU time of a 60-byte packet, in ns     function  no function  alone | nftables  no rules  alone   ratio"
    );
    for (name, text, what, count, frames, rules) in cases {
        let (ours, none) = (function(Some((name, text)), &frames), function(None, &frames));
        print!(
            "{name:8} {count:>9} {what:8}            {ours:9.1}    {none:9.1} {:6.1} |",
            ours - none
        );
        if rules.is_empty() {
            println!("        -         -      -       -");
            continue;
        }
        let (theirs, forwarding) = (kernel(rules, &frames), kernel("", &frames));
        let alone = theirs - forwarding;
        println!("{theirs:9.1} {forwarding:9.1} {alone:6.1} {:7.1}", theirs / ours);
    }
}
