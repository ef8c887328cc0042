//! A run in a process of its own ends while packets pass at full rate, many times over: it is killed, or its worker
//! panics in a turn.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::time::{Duration, Instant};

use switch::Switch as _;

use crate::bed::PATIENCE;
use crate::kept::Kept;
use crate::peers::{Listeners, Packet, Peers, put, take};
use crate::run::{INSTANCES, Process, RING_SLOTS, Run};

/// Runs that are killed, and runs that panic.
const KILLS: u64 = 100;
const PANICS: u64 = 20;
const FLOWS: u32 = 16;
/// Packets that are on their way at most: each ring has room for all of them, so none is lost for want of it. A long
/// one takes two places.
const WINDOW: u64 = RING_SLOTS as u64 / 2;

/// A sequence of numbers, the same in each test.
struct Random(u64);

impl Random {
    /// One below `limit`.
    fn below(&mut self, limit: u64) -> u64 {
        // Marsaglia's xorshift.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// The peers of all runs: each packet has a number in its flow, and comes to each of them in that order.
struct Traffic {
    peers: Peers,
    sent: u64,
    back: u64,
    /// How many packets each flow has had at each point of its way.
    sent_of: BTreeMap<u32, u32>,
    served_of: BTreeMap<u32, u32>,
    back_of: BTreeMap<u32, u32>,
    /// The function that each flow is at.
    function_of: BTreeMap<u32, usize>,
}

/// It is the next one of its flow.
fn assert_next(numbers: &mut BTreeMap<u32, u32>, packet: Packet) {
    let last = numbers.entry(packet.flow).or_default();
    assert_eq!(packet.number, *last + 1, "of flow {}", packet.flow);
    *last += 1;
}

impl Traffic {
    fn new(peers: Peers) -> Traffic {
        Traffic {
            peers,
            sent: 0,
            back: 0,
            sent_of: BTreeMap::new(),
            served_of: BTreeMap::new(),
            back_of: BTreeMap::new(),
            function_of: BTreeMap::new(),
        }
    }

    /// Sends up to that many new packets, as many as the window leaves.
    fn send(&mut self, random: &mut Random, limit: u64) {
        let count = (WINDOW - (self.sent - self.back)).min(limit);
        let next = |_| {
            let flow = random.below(FLOWS.into()) as u32;
            let number = self.sent_of.entry(flow).or_default();
            *number += 1;
            let number = *number;
            Packet { flow, number }.frame(if random.below(50) == 0 { 300 } else { 60 })
        };
        let frames: Vec<_> = (0..count).map(next).collect();
        put(&mut self.peers.network, &frames);
        self.sent += count;
    }

    /// The functions give back what they got, and the network takes what has come.
    fn turn(&mut self) {
        for (number, function) in self.peers.functions.iter_mut().enumerate() {
            let frames = take(function);
            for frame in &frames {
                let packet = Packet::of(frame);
                assert_next(&mut self.served_of, packet);
                let first = *self.function_of.entry(packet.flow).or_insert(number);
                assert_eq!(number, first, "flow {} has moved", packet.flow);
            }
            put(function, &frames);
        }
        let back = take(&mut self.peers.network);
        for frame in &back {
            assert_next(&mut self.back_of, Packet::of(frame));
        }
        self.back += back.len() as u64;
        if back.is_empty() {
            std::thread::sleep(Duration::from_micros(20));
        }
    }
}

/// Ends run after run: `end` says when, and how, and each time it gives whether the run is still to end.
struct Runs {
    kept: Kept,
    random: Random,
    traffic: Option<Traffic>,
    listeners: Listeners,
    ends: u64,
}

impl Runs {
    fn new() -> Runs {
        let kept = Kept::start();
        Runs {
            listeners: Listeners::new(kept.directory.path()),
            kept,
            random: Random(0x1ac0_5eed),
            traffic: None,
            ends: 0,
        }
    }

    /// The next run, which panics after so many frames.
    fn start(&mut self, panics_after: u64) -> Process {
        self.ends += 1;
        let process = Process::start(&self.kept, panics_after, false);
        if self.traffic.is_none() {
            let peers = Peers::connect(self.kept.directory.path(), &mut self.listeners);
            self.traffic = Some(Traffic::new(peers));
        }
        process
    }

    /// Packets pass until something holds.
    fn pass_until(&mut self, mut holds: impl FnMut(&Traffic) -> bool) {
        let traffic = self.traffic.as_mut().unwrap();
        let ends = Instant::now() + PATIENCE;
        while !holds(traffic) {
            traffic.send(&mut self.random, 16);
            traffic.turn();
            assert!(Instant::now() < ends, "in run {}", self.ends);
        }
    }

    /// One more run takes over what the last one left: all packets come back, and each flow has counted its own.
    fn finish(mut self) {
        let directory = self.kept.directory.path();
        let mut run = Run::start(directory, self.kept.run().unwrap(), u64::MAX, false);
        let resumed = run.switch.resumed().unwrap();
        let found = (
            resumed.flows.flows,
            resumed.instances,
            resumed.uplinks,
            &resumed.rejected,
        );
        assert_eq!(found, (FLOWS.into(), INSTANCES.into(), 1, &Vec::new()));
        assert_eq!(resumed.flows.rejected_entries(), 0);
        let traffic = self.traffic.as_mut().unwrap();
        run.until("all packets are back", |_| {
            traffic.turn();
            traffic.back == traffic.sent
        });
        run.assert_accounts_close();
        let counted: u64 = run.flows().iter().flat_map(|row| row.packets).sum();
        // Packets of a turn that ended in the middle count twice.
        let most = traffic.sent + self.ends * WINDOW;
        assert!(
            (traffic.sent..=most).contains(&counted),
            "{counted} of {}",
            traffic.sent
        );
        assert!(traffic.sent > 10 * self.ends, "hardly a packet passed");
        eprintln!("{} runs, {} packets, {counted} counted", self.ends, traffic.sent);
        run.switch.leave();
    }
}

#[test]
fn a_run_that_is_killed_at_any_time_loses_doubles_and_moves_nothing() {
    let mut runs = Runs::new();
    for round in 0..KILLS {
        let mut process = runs.start(u64::MAX);
        let wait = Duration::from_micros(runs.random.below(8_000));
        // Each fourth one may not have begun to serve.
        if round % 4 > 0 {
            let before = runs.traffic.as_ref().unwrap().back;
            runs.pass_until(|traffic| traffic.back > before);
        }
        let since = Instant::now();
        runs.pass_until(|_| since.elapsed() >= wait);
        process.child.kill().unwrap();
        process.child.wait().unwrap();
    }
    runs.finish();
}

#[test]
fn a_worker_that_panics_in_a_turn_loses_doubles_and_moves_nothing() {
    let mut runs = Runs::new();
    for _ in 0..PANICS {
        let after = 1 + runs.random.below(2_000);
        let mut process = runs.start(after);
        let mut ended = None;
        runs.pass_until(|_| {
            ended = process.child.try_wait().unwrap();
            ended.is_some()
        });
        assert_eq!(ended.unwrap().signal(), Some(nix::libc::SIGABRT));
    }
    runs.finish();
}
