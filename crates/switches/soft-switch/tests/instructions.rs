//! What a packet of a known flow costs, one of a new flow, and one between memif ports there and back, in
//! instructions, which no busy machine changes: counted by valgrind's callgrind, so that a slower commit is noticed.
//! A machine without valgrind says so and skips.

#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use model::Nanos;
use packet::TcpFlags;
use soft_switch::{BURST_FRAMES, Device, Frame, FrameMemory, Port, Sizes, Unsendable};

mod bare;

use bare::chain::{Chain, TURN_PACKETS};

/// Turns of a run, in the variable's value; the run is this test program again.
const TURNS: &str = "INCO_TEST_TURNS";
/// The traffic of a run.
const TRAFFIC: &str = "INCO_TEST_TRAFFIC";
const FLOWS: usize = 1000;
/// New flows that there are for a run.
const NEW_FLOWS: usize = 10_000;
/// Frames that a worker takes in a turn, at most.
const TURN_FRAMES: u64 = 4 * BURST_FRAMES as u64;

/// Frames without a memory: only their bytes matter.
struct Frames;

#[derive(Clone, Copy)]
struct Bytes(&'static [u8]);

impl Frame for Bytes {
    #[inline(always)]
    fn bytes(&self) -> &[u8] {
        self.0
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut []
    }
    fn room(&mut self) -> &mut [u8] {
        &mut []
    }
    fn set_len(&mut self, len: usize) {
        self.0 = self.0.get(..len).unwrap_or(self.0);
    }
}

impl FrameMemory for Frames {
    type Frame = Bytes;
    type Device = Known;
    type Registration = ();
    fn register_thread() {}
    fn take(&mut self) -> Option<Bytes> {
        None
    }
    fn give(&mut self, _frame: Bytes) {}
    fn frame_limit(&self) -> usize {
        usize::MAX
    }
}

/// A source of the same flows over and over; or of so many that each is new.
struct Known {
    frames: Vec<Bytes>,
    next: usize,
}

impl Known {
    fn new(traffic: &str) -> Known {
        let flows = match traffic {
            "new" => NEW_FLOWS,
            _ => FLOWS,
        };
        let frame = |flow: usize| {
            let [.., a, b] = flow.to_be_bytes();
            let (src, dst) = match traffic {
                "ipv6" => (format!("[2001:db8::{flow:x}]:1000"), "[2001:db8:1::1]:80"),
                _ => (format!("10.0.{a}.{b}:1000"), "192.0.2.1:80"),
            };
            let (src, dst) = (src.parse().unwrap(), dst.parse().unwrap());
            let built = match traffic {
                "tcp" => packet::build::Frame::tcp(src, dst, TcpFlags(TcpFlags::ACK), &[0; 10]),
                _ => packet::build::Frame::udp(src, dst, &[0; 22]),
            };
            Bytes(built.unwrap().to_vec().unwrap().leak())
        };
        Known {
            frames: (0..flows).map(frame).collect(),
            next: 0,
        }
    }
}

impl Device<Bytes> for Known {
    fn receive(&mut self, into: &mut Vec<Bytes>, limit: usize) {
        for _ in 0..limit {
            into.push(self.frames[self.next]);
            self.next = (self.next + 1) % self.frames.len();
        }
    }
    fn send(&mut self, frames: &mut Vec<Bytes>, _longest: usize, _known: Option<Sizes>) -> Unsendable {
        frames.clear();
        Unsendable::default()
    }
}

/// So many turns of a worker between a network and four functions, each with 256 packets there and as many back.
fn run_chain(is_counted: bool, turns: u64) {
    let mut chain = Chain::new(FLOWS as u32, 4, is_counted);
    let mut step = || {
        chain.send();
        chain.turn();
        chain.take()
    };
    // The first turns take fewer, and what the last one sent is back after the next.
    for _ in 0..4 * FLOWS / BURST_FRAMES {
        step();
    }
    let allocations = allocation_counter::measure(|| {
        for _ in 0..turns {
            assert_eq!(step(), TURN_PACKETS as u64);
        }
    });
    assert_eq!(allocations.count_total, 0);
}

/// Packets that a turn takes: of new flows one burst.
fn turn_frames(traffic: &str) -> u64 {
    match traffic {
        "new" => BURST_FRAMES as u64,
        _ => TURN_FRAMES,
    }
}

/// Instances.
fn sinks(traffic: &str) -> usize {
    match traffic {
        "wide" => 256,
        _ => 4,
    }
}

/// So many turns of a worker with its sinks, each with 256 packets of 1000 flows, or 64 of as many new ones. No turn
/// but the first ones allocates.
fn run(traffic: &str, turns: u64) {
    let sinks = (0..sinks(traffic)).map(|_| Port::null()).collect();
    let mut bare = bare::bare(20_000, Frames, sinks);
    let source = Known::new(traffic);
    let flows = source.frames.len() as u64;
    bare.attach_uplink(Port::device(source, Arc::new(AtomicBool::new(true))));
    let mut now = Nanos::from_secs(1);
    let mut turn = |bare: &mut bare::Bare<Frames>| {
        now = now + Nanos::from_micros(5);
        bare.worker.turn(now)
    };
    let first_turns = match traffic {
        "new" => FLOWS / BURST_FRAMES,
        _ => 2 * FLOWS / BURST_FRAMES,
    };
    for _ in 0..first_turns {
        turn(&mut bare);
    }
    let allocations = allocation_counter::measure(|| {
        for _ in 0..turns {
            assert_eq!(turn(&mut bare) as u64, turn_frames(traffic));
        }
    });
    assert_eq!(allocations.count_total, 0);
    let sent: u64 = bare.counters.slots.iter().map(|slot| slot.to_packets.get()).sum();
    assert!(sent >= turns * turn_frames(traffic));
    let pinned: u64 = bare.counters.slots.iter().map(|slot| slot.new_flows.get()).sum();
    let seen = match traffic {
        "new" => sent,
        _ => flows,
    };
    assert_eq!(pinned, seen);
}

fn run_any(traffic: &str, turns: u64) {
    match traffic {
        "chain" => run_chain(false, turns),
        "counted" => run_chain(true, turns),
        _ => run(traffic, turns),
    }
}

/// Instructions of a run's turns.
fn counted(traffic: &str, turns: u64) -> u64 {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg("--toggle-collect=*Worker*::turn")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "a_run_that_is_counted", "--nocapture"])
        .env(TURNS, turns.to_string())
        .env(TRAFFIC, traffic)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let (_, count) = said.split_once("Collected : ").unwrap();
    count.split_whitespace().next().unwrap().parse().unwrap()
}

/// What the others count. Alone it makes a few turns, and sees that they do not allocate.
#[test]
fn a_run_that_is_counted() {
    let turns = std::env::var(TURNS).map_or(20, |turns| turns.parse().unwrap());
    match std::env::var(TRAFFIC) {
        Ok(traffic) => run_any(&traffic, turns),
        Err(_) => ["udp", "tcp", "wide", "ipv6", "new", "chain", "counted"]
            .into_iter()
            .for_each(|traffic| run_any(traffic, turns)),
    }
}

/// Instructions of a worker's turns per packet, the source's and the sinks' included: what was counted with AVX2, and
/// a tenth more. In the development profile, and in the release profile. `wide`: one packet for each of 256 instances in
/// a turn; publishing a ring at the turn's end costs as much as a quarter of a packet.
const DEV: [(&str, f64); 7] = [
    ("udp", 532.0),
    ("tcp", 532.0),
    ("wide", 870.0),
    ("ipv6", 924.0),
    ("new", 1723.0),
    ("chain", 1083.0),
    ("counted", 1639.0),
];
const RELEASE: [(&str, f64); 7] = [
    ("udp", 172.0),
    ("tcp", 172.0),
    ("wide", 304.0),
    ("ipv6", 408.0),
    ("new", 1108.0),
    ("chain", 470.0),
    ("counted", 680.0),
];

#[test]
fn a_packet_costs_no_more_instructions_than_it_did() {
    let found = Command::new("valgrind").arg("--version").output();
    let missing = found
        .err()
        .map(|_| "valgrind is not installed (scripts/setup.sh test)".to_owned());
    if !real_parts::available("valgrind", missing) {
        return;
    }
    if simd::Level::detect() == simd::Level::Every {
        real_parts::available(
            "avx2",
            Some("the limits are those of processors with AVX2".to_owned()),
        );
        return;
    }
    let limits = if cfg!(debug_assertions) { DEV } else { RELEASE };
    for (traffic, limit) in limits {
        let (few, many) = (10, 60);
        let more = counted(traffic, many) - counted(traffic, few);
        let cost = more as f64 / ((many - few) * turn_frames(traffic)) as f64;
        eprintln!("{traffic}: {cost:.1} instructions per packet");
        assert!(cost > 0.0, "nothing was counted");
        assert!(
            cost < limit,
            "{traffic}: {cost:.1} instructions per packet; the limit is {limit}"
        );
    }
}
