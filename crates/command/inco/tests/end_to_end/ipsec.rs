//! Instances of `ipsec`: each association is at one of them, and drains move it with its sequence number or its window.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use functions::{Burst, Chain, LIBRARY, Setup};
use model::{InstanceId, protocol};
use packet::Parsed;
use packet::build::Frame;

use crate::state_moves::drain;
use crate::support::{Engine, IMAGE, Inco, PATIENCE, Place, eventually};

/// Associations of each direction.
const ASSOCIATIONS: u8 = 8;
/// Hosts on each side of an association.
const HOSTS: u64 = 5;
/// Requests of each that are under way.
const WINDOW: u64 = 8;
/// Protected packets of the peer that may come again.
const KEPT: usize = 200;
/// A request that has no answer by then is lost.
const LOST_AFTER: Duration = Duration::from_secs(30);

const CONFIGURATION: &str = r#"
[[uplink]]
name = "lan"
device = "memif:lan.sock"

[[uplink]]
name = "wan"
device = "memif:wan.sock"

[switch]
WORKERS

[service.gateway]
image = "IMAGE"
command = ["/inco-nf", "ipsec", "--cross", "--config", "/gateway.toml"]
mounts = ["GATEWAY:/gateway.toml:ro"]
uplinks = ["lan", "wan"]
affinity_key = "spi"
affinity = "relaxed"
move_state = true
associations = [ASSOCIATIONS]
memory = "64MiB"
instances = { min = 1, max = 4, standby = 0 }
autoscaler = "fixed"
scheduler = { policy = "round-robin", slow_start = "0s" }
drain_deadline = "60s"
"#;

/// The configuration of one end: 1 or 2.
pub(crate) fn gateway(side: u8) -> String {
    let other = 3 - side;
    let each = |number: u8| {
        let secret = |direction: u8| {
            let byte = format!("{:02x}", 16 * direction + number);
            format!(
                "suite = \"aes-256-gcm\"\nkey = \"{}\"\nsalt = \"{}\"\n",
                byte.repeat(32),
                byte.repeat(4)
            )
        };
        format!(
            "[[outbound]]\nname = \"out-{number}\"\nspi = {}\n{}source = \"192.0.2.{side}\"\n\
             destination = \"192.0.2.{other}\"\n\
             [[inbound]]\nname = \"in-{number}\"\nspi = {}\n{}destination = \"192.0.2.{side}\"\n\
             [[policy]]\nsource = [\"10.{side}.{number}.0/24\"]\ndestination = [\"10.{other}.{number}.0/24\"]\n\
             action = \"protect\"\noutbound = \"out-{number}\"\ninbound = [\"in-{number}\"]\n",
            spi(side, number),
            secret(side),
            spi(other, number),
            secret(other),
        )
    };
    (1..=ASSOCIATIONS).map(each).collect()
}

/// The index of an association for what that side protects.
fn spi(side: u8, number: u8) -> u32 {
    0x1000 * u32::from(side) + u32::from(number)
}

fn configuration(workers: &str, file: &Path) -> String {
    let each = |number: u8| {
        format!(
            "{{ spi = {}, to = \"192.0.2.2\", src = [\"10.1.{number}.0/24\"], dst = [\"10.2.{number}.0/24\"] }}, \
             {{ spi = {}, to = \"192.0.2.1\" }}, ",
            spi(1, number),
            spi(2, number)
        )
    };
    let associations: String = (1..=ASSOCIATIONS).map(each).collect();
    CONFIGURATION
        .replace("IMAGE", IMAGE)
        .replace("WORKERS", workers)
        .replace("GATEWAY", &file.display().to_string())
        .replace("[ASSOCIATIONS]", &format!("[{associations}]"))
}

/// The gateway of the other side, in this process.
struct Peer {
    chain: Chain,
    burst: Burst,
    began: Instant,
}

impl Peer {
    fn new() -> Peer {
        let setup = Setup {
            instance: 0,
            ports: 2,
            seed: 77,
            external: None,
        };
        let entry = LIBRARY.iter().find(|of| of.about().name == "ipsec").unwrap();
        Peer {
            chain: Chain::new(vec![entry.make(&gateway(2), &setup).unwrap()]).unwrap(),
            burst: Burst::new(),
            began: Instant::now(),
        }
    }

    /// What leaves of a frame.
    fn pass(&mut self, frame: &[u8]) -> Option<Vec<u8>> {
        self.burst.begin(0, 1);
        assert!(self.burst.push(frame));
        let now = model::Nanos(self.began.elapsed().as_nanos() as u64);
        self.chain.process(&mut self.burst, now);
        let extent = *self.burst.leaving().first()?;
        Some(self.burst.bytes_of(&extent).to_vec())
    }

    /// Why it has dropped packets, with how many.
    fn drops(&self) -> Vec<(&'static str, u64)> {
        let stage = &self.chain.stages()[0];
        let reasons = stage.about().reasons.iter().map(|of| of.name);
        reasons
            .zip(stage.dropped().iter().copied())
            .filter(|of| of.1 > 0)
            .collect()
    }
}

/// What one association has seen.
#[derive(Clone, Debug, Default)]
struct Association {
    sent: u64,
    /// How many requests of each host have come to the peer. Those of different hosts may come by different workers.
    asked: [u64; HOSTS as usize],
    /// Answers that are to come back, in their order, and how many have.
    open: VecDeque<u64>,
    answered: u64,
    /// Protected answers, the newest last.
    wires: Vec<Vec<u8>>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    of: Vec<Association>,
    pub(crate) again: u64,
    pub(crate) wrong: Vec<String>,
}

struct Networks {
    lan: memif::Link,
    wan: memif::Link,
    peer: Peer,
    seen: Seen,
    turns: usize,
    /// When the last packet came.
    news: Instant,
}

/// A packet between the networks behind the gateways, from one of several hosts.
fn clear(side: u8, number: u8, at: u64) -> Vec<u8> {
    let host = |side: u8| IpAddr::from([10, side, number, 1 + (at % HOSTS) as u8]);
    let [src, dst] = [side, 3 - side].map(|side| SocketAddr::new(host(side), 1000));
    let payload = [&[number][..], &at.to_be_bytes()].concat();
    Frame::udp(src, dst, &payload).unwrap().to_vec().unwrap()
}

/// The association and the number of a packet without protection.
fn read(bytes: &[u8]) -> Option<(usize, u64)> {
    let Parsed::Flow(info) = packet::parse(bytes) else {
        return None;
    };
    let payload = bytes.get(usize::from(info.l4_offset) + 8..)?;
    let is_udp = info.protocol == protocol::UDP;
    let (number, at) = payload.split_first().filter(|_| is_udp)?;
    Some((
        usize::from(*number).checked_sub(1)?,
        u64::from_be_bytes(*at.first_chunk()?),
    ))
}

pub(crate) fn receive(link: &mut memif::Link) -> Vec<Vec<u8>> {
    let rx = &mut link.queues[0].rx;
    let (mut buffer, mut frames) = (vec![0; 2048], Vec::new());
    while let Some(Ok(len)) = rx.pop(&mut buffer) {
        frames.push(buffer[..len].to_vec());
    }
    rx.release();
    frames
}

pub(crate) fn send(link: &mut memif::Link, frames: &[Vec<u8>]) {
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
    fn turn(&mut self, asks: bool) {
        self.turns += 1;
        let mut requests = Vec::new();
        for number in 1..=ASSOCIATIONS {
            let of = &mut self.seen.of[usize::from(number) - 1];
            while asks && of.sent - of.answered < WINDOW {
                of.sent += 1;
                requests.push(clear(1, number, of.sent));
            }
        }
        send(&mut self.lan, &requests);
        let mut answers = Vec::new();
        let had_news = self.news;
        for wire in receive(&mut self.wan) {
            self.news = Instant::now();
            let Some((number, at)) = self.peer.pass(&wire).as_deref().and_then(read) else {
                self.seen
                    .wrong
                    .push(format!("the peer drops: {:?}", self.peer.drops()));
                continue;
            };
            let of = &mut self.seen.of[number];
            let asked = &mut of.asked[(at % HOSTS) as usize];
            if (at - 1) / HOSTS != *asked {
                let what = format!("{number}: request {at} after {asked} of that host");
                self.seen.wrong.push(what);
            }
            *asked += 1;
            of.open.push_back(at);
            let answer = self.peer.pass(&clear(2, number as u8 + 1, at)).unwrap();
            of.wires.push(answer.clone());
            if of.wires.len() > KEPT {
                of.wires.remove(0);
            }
            answers.push(answer);
        }
        // One that has come already, or will: it is the later one then that must not pass.
        let again = &self.seen.of[self.turns % usize::from(ASSOCIATIONS)];
        let is_again = again.wires.get(self.turns * 31 % KEPT).cloned();
        // Not while nothing comes: rings of an instance without a CPU would be full of them.
        if let Some(wire) = is_again.filter(|_| self.news > had_news) {
            self.seen.again += 1;
            answers.push(wire);
        }
        send(&mut self.wan, &answers);
        for frame in receive(&mut self.lan) {
            self.news = Instant::now();
            let Some((number, at)) = read(&frame) else {
                self.seen.wrong.push(format!("it came back as {frame:02x?}"));
                continue;
            };
            let of = &mut self.seen.of[number];
            let expected = of.open.pop_front();
            if expected != Some(at) {
                let what = format!("{number}: answer {at} and not {expected:?}");
                self.seen.wrong.push(what);
            }
            of.answered += 1;
        }
        let is_open = self.seen.of.iter().any(|of| of.answered < of.sent);
        if is_open && self.news.elapsed() > LOST_AFTER {
            self.seen.wrong.push("nothing comes back".to_owned());
        }
    }
}

/// The networks at work, in a thread.
pub(crate) struct Load {
    asks: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    wrong: Arc<Mutex<Vec<String>>>,
    thread: JoinHandle<Seen>,
}

impl Load {
    pub(crate) fn begin(place: &Place, inco: &Inco) -> Load {
        let [lan, wan] = inco.networks(place);
        let mut networks = Networks {
            lan,
            wan,
            peer: Peer::new(),
            seen: Seen {
                of: vec![Association::default(); ASSOCIATIONS.into()],
                ..Seen::default()
            },
            turns: 0,
            news: Instant::now(),
        };
        let (asks, answered) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU64::new(0)));
        let wrong = Arc::new(Mutex::new(Vec::new()));
        let thread = std::thread::spawn({
            let (asks, answered, wrong) = (Arc::clone(&asks), Arc::clone(&answered), Arc::clone(&wrong));
            move || {
                loop {
                    let goes_on = asks.load(Ordering::Relaxed);
                    networks.turn(goes_on);
                    let seen = &networks.seen;
                    let least = seen.of.iter().map(|of| of.answered).min().unwrap_or(0);
                    answered.store(least, Ordering::Relaxed);
                    wrong.lock().unwrap().clone_from(&seen.wrong);
                    let is_over = seen.of.iter().all(|of| of.answered == of.sent);
                    if !goes_on && is_over || seen.wrong.len() > 10 {
                        return networks.seen;
                    }
                    std::thread::sleep(Duration::from_micros(500));
                }
            }
        });
        Load {
            asks,
            answered,
            wrong,
            thread,
        }
    }

    /// Waits until each association has had so many more answers.
    pub(crate) fn more(&self, inco: &Inco, answers: u64) {
        let until = self.answered.load(Ordering::Relaxed) + answers;
        eventually("answers come", 2 * PATIENCE, || {
            let wrong = self.wrong.lock().unwrap().clone();
            assert!(
                wrong.is_empty(),
                "{wrong:#?}\n{}\n{:#?}",
                inco.told(),
                inco.status()
            );
            (self.answered.load(Ordering::Relaxed) >= until).then_some(())
        });
    }

    pub(crate) fn end(self) -> Seen {
        self.asks.store(false, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

fn live_flows(inco: &Inco) -> u64 {
    inco.status().workers.iter().map(|of| of.live_flows).sum()
}

fn associations_move(workers: &str) {
    let place = Place::new();
    let file = place.file("gateway.toml", &gateway(1));
    let inco = place.run(&configuration(workers, &file));
    inco.settled(1, 0);
    place.must(&["scale", "gateway", "2"]);
    inco.settled(2, 0);
    let load = Load::begin(&place, &inco);
    load.more(&inco, 50);
    assert_eq!(live_flows(&inco), 2 * u64::from(ASSOCIATIONS));
    // Each association is somewhere, and both instances have some.
    let mut moved = 0;
    for drained in [1, 2, 3] {
        let of = inco.instance(InstanceId(drained)).unwrap();
        moved += of.live_flows;
        drain(&place, &inco, InstanceId(drained));
        load.more(&inco, 50);
        inco.settled(2, 0);
    }
    load.more(&inco, 300);
    let seen = load.end();
    assert_eq!(seen.wrong, Vec::<String>::new());
    let status = inco.status();
    let sum = |of: fn(&api::types::WorkerRow) -> u64| status.workers.iter().map(of).sum::<u64>();
    // One that is at its limit of 50 ms, or finds no room, is tried again.
    let cancelled = sum(|of| of.state_moves_refused + of.state_moves_gone);
    let packets: u64 = seen.of.iter().map(|of| of.answered).sum();
    println!(
        "{} associations moved, {cancelled} did not, {} were late; {packets} packets in each direction, {} came again",
        sum(|of| of.state_moves),
        sum(|of| of.state_moves_at_limit),
        seen.again
    );
    assert!(moved >= 2 * u64::from(ASSOCIATIONS), "{moved}");
    assert_eq!((sum(|of| of.state_moves), cancelled), (moved, 0));
    assert!(seen.again > 100, "{}", seen.again);
    // Of a packet and its copy one passes. inco sees that of an instance when it has gone.
    let only_copies = status.drops.keys().all(|reason| reason == "function");
    assert!(
        only_copies && status.accounting.dropped <= seen.again,
        "{:#?}",
        status.drops
    );
    inco.stop(&place);
}

#[test]
fn drains_move_associations_with_their_numbers_and_windows() {
    if Engine::Oci.is_here() {
        associations_move("");
    }
}

#[test]
fn drains_move_associations_between_workers() {
    if Engine::Oci.is_here() {
        associations_move("workers = [0, 1]");
    }
}
