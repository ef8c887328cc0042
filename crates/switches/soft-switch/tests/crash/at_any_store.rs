//! A run is killed after each store of some turns, from the first packet that it takes to the end of its commit.
//!
//! The run is a process, and its worker runs an instruction at a time under `ptrace`. The keeper is in this process,
//! so all memory that outlives the run is here, too. Whenever an instruction has changed some of it, the next run
//! starts with a copy of all of it: with what a killed process would have left. These are the stores of the program as
//! it was compiled, in their order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use keeper::Entry;
use memif::Link;
use model::FlowKey;
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use rustix::fs::{FileType, fstat};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use shared_memory::OwnMemory;
use switch::Switch as _;

use crate::kept::Kept;
use crate::peers::{Listeners, Numbers, Packet, Peers, add, put, take};
use crate::run::{INSTANCES, Process, Run};

/// An instruction takes some microseconds so: a turn that does not end is noticed within a minute.
const INSTRUCTIONS_LIMIT: u64 = 5_000_000;
/// Runs that end meanwhile at most.
const ENDING: usize = 16;
/// Words of the page where a worker notes its turns: which one is noted, and which one is done.
const NOTED: usize = 1;
const DONE: usize = 2;

/// What tells files apart.
fn inode(file: impl std::os::fd::AsFd) -> u64 {
    fstat(file).unwrap().st_ino
}

fn kind(file: &OwnedFd) -> FileType {
    FileType::from_raw_mode(fstat(file).unwrap().st_mode)
}

/// Everything that a run has changed in what outlives it, by file.
type Memory = BTreeMap<u64, Rc<Vec<u8>>>;

/// The turn that the worker noted last, in its page.
fn noted(page: &[u8]) -> u64 {
    let (words, _) = page.as_chunks::<8>();
    u64::from_le_bytes(words[NOTED])
}

/// A process whose worker is stopped, what a keeper has of it, and its peers.
struct Victim {
    kept: Kept,
    process: Process,
    worker: Pid,
    entries: Vec<Entry>,
    /// The files of memory. They are read while the worker is stopped.
    files: BTreeMap<u64, OwnMemory>,
    /// Which of them is the page where the worker notes its turns.
    page: u64,
    peers: Peers,
}

impl Victim {
    fn start(counts_returns: bool) -> Victim {
        let kept = Kept::start();
        let directory = kept.directory.path();
        let mut listeners = Listeners::new(directory);
        let mut process = Process::start(&kept, u64::MAX, counts_returns);
        let peers = Peers::connect(directory, &mut listeners);
        process.serves();
        let entries = kept.client().take().unwrap();
        // The numbers of services are a file that no worker writes.
        let of_workers = entries.iter().filter(|entry| entry.name != "tables/services");
        let kept_files = of_workers.flat_map(|entry| &entry.files);
        let of_memory = kept_files.filter(|file| kind(file) == FileType::RegularFile);
        let files = of_memory.map(|file| (inode(file), OwnMemory::open(file.as_fd()).unwrap()));
        let files = files.collect();
        let page = entries.iter().find(|entry| entry.name == "turn/0").unwrap();
        let page = inode(&page.files[0]);
        let tasks = std::fs::read_dir(format!("/proc/{}/task", process.child.id())).unwrap();
        let is_worker = |task: &std::fs::DirEntry| {
            std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name == "inco-worker-0\n")
        };
        let worker = tasks.map(Result::unwrap).find(is_worker).unwrap();
        let worker = Pid::from_raw(worker.file_name().to_str().unwrap().parse().unwrap());
        let victim = Victim {
            kept,
            process,
            worker,
            entries,
            files,
            page,
            peers,
        };
        // A test that is killed leaves no stopped process behind.
        ptrace::seize(worker, ptrace::Options::PTRACE_O_EXITKILL).unwrap();
        victim.stop();
        victim
    }

    fn stop(&self) {
        ptrace::interrupt(self.worker).unwrap();
        self.wait();
    }

    fn wait(&self) {
        match waitpid(self.worker, Some(WaitPidFlag::__WALL)).unwrap() {
            WaitStatus::Stopped(_, Signal::SIGTRAP) | WaitStatus::PtraceEvent(_, Signal::SIGTRAP, _) => {}
            other => panic!("{other:?}"),
        }
    }

    /// Whether the worker has taken all that its peers have for it, and has ended that turn.
    fn is_idle(&mut self) -> bool {
        let words = self.files[&self.page].words();
        let [noted, done] = [NOTED, DONE].map(|at| words[at].load(Ordering::Acquire));
        let links = self.peers.functions.iter_mut().chain([&mut self.peers.network]);
        let mut rings = links.map(|link| link.queues[0].tx.occupancy());
        noted == done && rings.all(|waiting| waiting == 0)
    }

    /// Lets the worker run until it has taken all that there is.
    fn run_on(&mut self) {
        ptrace::cont(self.worker, None).unwrap();
        while !self.is_idle() {
            std::thread::sleep(Duration::from_micros(50));
        }
        self.stop();
    }

    /// Runs the worker an instruction at a time until it has taken all that there is. Gives all memory as it was at
    /// first and after each change.
    fn step_on(&mut self) -> Vec<Memory> {
        let files = self.files.iter();
        let mut last: Memory = files
            .map(|(inode, memory)| (*inode, Rc::new(memory.bytes().to_vec())))
            .collect();
        let mut all = vec![last.clone()];
        for _ in 0..INSTRUCTIONS_LIMIT {
            ptrace::step(self.worker, None).unwrap();
            self.wait();
            let mut is_changed = false;
            for (inode, memory) in &self.files {
                if *memory.bytes() != **last[inode] {
                    last.insert(*inode, Rc::new(memory.bytes().to_vec()));
                    is_changed = true;
                }
            }
            if is_changed {
                all.push(last.clone());
                if self.is_idle() {
                    return all;
                }
            }
        }
        panic!("the worker does not end its turn");
    }

    /// A keeper and peers that have a copy of that memory in place of the run's.
    fn copy(&self, memory: &Memory) -> (Kept, Peers) {
        let copies: BTreeMap<u64, OwnedFd> = memory
            .iter()
            .map(|(inode, bytes)| {
                let (file, _mapping) = shared_memory::create("copy", bytes.len(), false).unwrap();
                let file = File::from(file);
                file.write_all_at(bytes, 0).unwrap();
                (*inode, file.into())
            })
            .collect();
        let same = |file: BorrowedFd<'_>| {
            let copy = copies.get(&inode(file)).map_or(file, |copy| copy.as_fd());
            copy.try_clone_to_owned().unwrap()
        };
        let kept = Kept::start();
        let client = kept.client();
        let mut sockets = BTreeMap::new();
        for entry in &self.entries {
            let mut files: Vec<OwnedFd> = entry.files.iter().map(|file| same(file.as_fd())).collect();
            // The first one of a link is its control socket.
            if entry.name.starts_with("port/") || entry.name.starts_with("uplink/") {
                let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
                let (here, there) = socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap();
                files[0] = here;
                sockets.insert(entry.name.as_str(), there);
            }
            let files: Vec<_> = files.iter().map(|file| file.as_fd()).collect();
            client.keep(&entry.name, &entry.note, &files).unwrap();
        }
        let mut peer = |link: &Link, name: &str| {
            let mut files: Vec<OwnedFd> = link.files().into_iter().map(same).collect();
            files[0] = sockets.remove(name).unwrap();
            Link::resume(link.state(), files, |_| None).unwrap()
        };
        let peers = Peers {
            network: peer(&self.peers.network, "uplink/uplink/1"),
            functions: (0..)
                .zip(&self.peers.functions)
                .map(|(slot, link)| peer(link, &format!("port/{slot}")))
                .collect(),
        };
        (kept, peers)
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.process.child.kill();
        // A traced thread is there until its tracer has seen its end.
        while waitpid(self.worker, Some(WaitPidFlag::__WALL))
            .is_ok_and(|status| !matches!(status, WaitStatus::Exited(..) | WaitStatus::Signaled(..)))
        {
        }
    }
}

/// What the peers have got and what flows have, since the beginning.
#[derive(Clone, Default)]
struct Passed {
    /// The packets that each function has.
    at: [Numbers; INSTANCES as usize],
    /// Those that have come back.
    back: Numbers,
    /// How many packets of each flow the network has sent, and how many the functions have returned.
    sent: BTreeMap<u32, u64>,
    returned: BTreeMap<u32, u64>,
}

fn total(numbers: &Numbers) -> usize {
    numbers.values().map(Vec::len).sum()
}

fn count(into: &mut BTreeMap<u32, u64>, frames: &[Vec<u8>]) {
    for frame in frames {
        *into.entry(Packet::of(frame).flow).or_default() += 1;
    }
}

impl Passed {
    /// Takes what has come to the peers. Gives the functions' frames.
    fn take(&mut self, peers: &mut Peers) -> Vec<Vec<Vec<u8>>> {
        add(&mut self.back, &take(&mut peers.network));
        let each = self.at.iter_mut().zip(&mut peers.functions);
        let each = each.map(|(at, link)| {
            let frames = take(link);
            add(at, &frames);
            frames
        });
        each.collect()
    }

    /// How many packets have come to each peer.
    fn totals(&self) -> (usize, usize) {
        (self.at.iter().map(total).sum(), total(&self.back))
    }

    /// The packets of each flow in their order, whichever function had them. No flow was at two.
    fn by_flow(&self) -> Numbers {
        let mut all = Numbers::new();
        for (flow, numbers) in self.at.iter().flatten() {
            assert!(
                all.insert(*flow, numbers.clone()).is_none(),
                "flow {flow} has moved"
            );
        }
        all
    }

    fn send(&mut self, peers: &mut Peers, frames: &[Vec<u8>]) {
        count(&mut self.sent, frames);
        put(&mut peers.network, frames);
    }

    fn give_back(&mut self, peers: &mut Peers, frames: &[Vec<Vec<u8>>]) {
        for (link, frames) in peers.functions.iter_mut().zip(frames) {
            count(&mut self.returned, frames);
            put(link, frames);
        }
    }
}

/// What is done in a turn: frames that come on the uplink, and whether the functions give back all that they have.
struct Turn {
    frames: Vec<Vec<u8>>,
    gives_back: bool,
}

/// The victim and what it has done.
struct Test {
    victim: Victim,
    /// Whether it counts packets that come back with their flows.
    counts_returns: bool,
    passed: Passed,
    /// Frames that the functions have and have not given back.
    held: Vec<Vec<Vec<u8>>>,
    numbers: BTreeMap<u32, u32>,
    seen: Seen,
}

/// What was seen on the way.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    stores: u64,
    /// Packets of killed turns that the next run counted with their flows once more.
    counted_twice: u64,
}

impl Test {
    fn start(counts_returns: bool) -> Test {
        Test {
            victim: Victim::start(counts_returns),
            counts_returns,
            passed: Passed::default(),
            held: vec![Vec::new(); usize::from(INSTANCES)],
            numbers: BTreeMap::new(),
            seen: Seen::default(),
        }
    }

    /// The victim goes on and nobody kills it: each of these flows has so many packets, there and back.
    fn pass(&mut self, flows: &[u32], times: usize) {
        for _ in 0..times {
            let frames = self.frames(flows, 60);
            self.passed.send(&mut self.victim.peers, &frames);
            self.victim.run_on();
            self.take();
            let held = std::mem::replace(&mut self.held, vec![Vec::new(); usize::from(INSTANCES)]);
            self.passed.give_back(&mut self.victim.peers, &held);
            self.victim.run_on();
            self.take();
        }
    }

    /// The stores were there to be killed at, and some of the killed turns had counted packets already.
    fn end(&self) {
        let Seen {
            stores,
            counted_twice,
        } = self.seen;
        eprintln!("{stores} stores, {counted_twice} packets counted twice");
        assert!(stores > 100 && counted_twice > 0);
    }

    /// Takes what has come to the peers. The functions hold it.
    fn take(&mut self) {
        let new = self.passed.take(&mut self.victim.peers);
        self.held
            .iter_mut()
            .zip(new)
            .for_each(|(held, new)| held.extend(new));
    }

    /// The next packets of flows, with so many bytes of payload.
    fn frames(&mut self, flows: &[u32], bytes: usize) -> Vec<Vec<u8>> {
        let frame = |flow: &u32| {
            let number = self.numbers.entry(*flow).or_default();
            *number += 1;
            let (flow, number) = (*flow, *number);
            Packet { flow, number }.frame(bytes)
        };
        flows.iter().map(frame).collect()
    }

    /// The victim does a turn, and is killed after each store of it.
    fn kill_in(&mut self, turn: &Turn) {
        let before = self.passed.clone();
        self.passed.send(&mut self.victim.peers, &turn.frames);
        if turn.gives_back {
            let held = std::mem::replace(&mut self.held, vec![Vec::new(); usize::from(INSTANCES)]);
            self.passed.give_back(&mut self.victim.peers, &held);
        }
        let left = self.victim.step_on();
        self.take();
        let noted = |memory: &Memory| noted(&memory[&self.victim.page]);
        let last = left.last().map(noted);
        let mut ending = VecDeque::new();
        for (store, memory) in left.iter().enumerate() {
            let check = || self.check(memory, &before, Some(noted(memory)) == last);
            let counted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check));
            let Ok(counted) = counted else {
                panic!("killed after store {store} of {}", left.len());
            };
            self.seen.counted_twice += counted.0;
            ending.push_back(counted.1);
            if ending.len() > ENDING {
                ending.pop_front().unwrap().join().unwrap();
            }
            self.seen.stores += 1;
        }
    }

    /// The next run goes on with that memory. Gives how many packets flows have counted twice, and a thread in which
    /// the run ends: its listener takes 0.1 s for that.
    fn check(&self, memory: &Memory, before: &Passed, is_noted: bool) -> (u64, JoinHandle<()>) {
        let (kept, mut peers) = self.victim.copy(memory);
        let directory = self.victim.kept.directory.path();
        let mut run = Run::start(directory, kept.run().unwrap(), u64::MAX, self.counts_returns);
        let resumed = run.switch.resumed().unwrap();
        assert_eq!(
            (resumed.rejected.as_slice(), resumed.flows.rejected_entries()),
            (&[][..], 0)
        );
        assert_eq!((resumed.instances, resumed.uplinks), (INSTANCES.into(), 1));
        // What the turn was to do is done, once.
        let mut passed = before.clone();
        let all = self.passed.totals();
        let mut held = vec![Vec::new(); usize::from(INSTANCES)];
        run.until("the turn is done", |_| {
            let new = passed.take(&mut peers);
            held.iter_mut().zip(new).for_each(|(held, new)| held.extend(new));
            let (at, back) = passed.totals();
            at >= all.0 && back >= all.1
        });
        // Then the functions give back what they have, and each flow has another packet, there and back.
        passed.sent = self.passed.sent.clone();
        passed.returned = self.passed.returned.clone();
        let mut expected = self.passed.by_flow();
        let mut back = self.passed.back.clone();
        let next = self.numbers.iter().map(|(flow, number)| (*flow, number + 1));
        let next: Vec<_> = next
            .map(|(flow, number)| Packet { flow, number }.frame(60))
            .collect();
        for frames in [Vec::new(), next] {
            passed.send(&mut peers, &frames);
            add(&mut expected, &frames);
            run.until("all has come", |_| {
                let new = passed.take(&mut peers);
                held.iter_mut().zip(new).for_each(|(held, new)| held.extend(new));
                passed.totals().0 >= total(&expected)
            });
            held.iter().for_each(|frames| add(&mut back, frames));
            passed.give_back(&mut peers, &held);
            held.iter_mut().for_each(Vec::clear);
            run.until("all is back", |_| {
                passed.take(&mut peers);
                passed.totals().1 >= total(&back)
            });
        }
        assert_eq!(passed.by_flow(), expected);
        assert_eq!(passed.back, back);
        for (at, old) in passed.at.iter().zip(&before.at) {
            assert!(old.keys().all(|flow| at.contains_key(flow)));
        }
        run.assert_accounts_close();
        let twice = self.assert_counters(&mut run, &passed, before, is_noted);
        let end = move || {
            run.switch.leave();
            drop((run, peers, kept));
        };
        (twice, std::thread::spawn(end))
    }

    /// Each flow has counted its packets. Those of the turn that was killed it may have counted twice, unless that
    /// turn was noted already.
    fn assert_counters(&self, run: &mut Run, passed: &Passed, before: &Passed, is_noted: bool) -> u64 {
        let mut twice = 0;
        let mut seen = BTreeSet::new();
        for row in run.flows() {
            let FlowKey::V4(key) = row.key else {
                panic!("{row:?}")
            };
            let [_, a, b, c] = if key.a[0] == 10 { key.a } else { key.b };
            let flow = u32::from_be_bytes([0, a, b, c]);
            assert!(seen.insert(flow), "twice in the table: {row:?}");
            let of = |counts: &BTreeMap<u32, u64>| counts.get(&flow).copied().unwrap_or(0);
            let figures = [
                (
                    row.packets.iter().sum(),
                    of(&passed.sent),
                    of(&self.passed.sent) - of(&before.sent),
                ),
                (
                    row.returned.unwrap(),
                    of(&passed.returned),
                    of(&self.passed.returned) - of(&before.returned),
                ),
            ];
            let count = if self.counts_returns { 2 } else { 1 };
            for (counted, exact, of_turn) in figures.into_iter().take(count) {
                let most = exact + if is_noted { 0 } else { of_turn };
                assert!(
                    (exact..=most).contains(&counted),
                    "{counted}, not {exact} to {most}: {row:?}"
                );
                twice += counted - exact;
            }
        }
        assert_eq!(seen, passed.sent.keys().copied().collect());
        twice
    }
}

#[test]
fn a_crash_at_any_store_of_a_turn_loses_doubles_and_moves_nothing() {
    kill_everywhere(true);
}

#[test]
fn nor_does_one_while_packets_go_back_from_ring_to_ring() {
    kill_everywhere(false);
}

fn kill_everywhere(counts_returns: bool) {
    let mut test = Test::start(counts_returns);
    let turn = |frames, gives_back| Turn { frames, gives_back };
    let frames = test.frames(&[0, 1, 0, 2], 60);
    test.kill_in(&turn(frames, false));
    // Known flows and a new one, and packets that come back.
    let frames = test.frames(&[2, 3, 0, 1], 60);
    test.kill_in(&turn(frames, true));
    test.kill_in(&turn(Vec::new(), true));
    if !counts_returns {
        return test.end();
    }
    // Frames of several buffers, there and back.
    let frames = test.frames(&[1, 0], 400);
    test.kill_in(&turn(frames, false));
    let frames = test.frames(&[0, 1], 300);
    test.kill_in(&turn(frames, true));
    // Up to the end of the uplink's ring, and over it.
    test.pass(&[0, 1, 2, 3], 11);
    let frames = test.frames(&[0, 3, 4, 1], 60);
    test.kill_in(&turn(frames, true));
    test.end();
}
