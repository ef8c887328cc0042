//! A process that is killed at any instruction leaves a table that another one can take over.
//!
//! The process is this test program again, under `ptrace`. The table's storage is read-only for it, so that it stops
//! at each store; that instruction alone is let through. Whenever one has changed the storage, a copy of that is
//! attached: it is what a killed process would have left. What is found in it is compared with an undisturbed table
//! before and after the operation. So these are the stores of the program as it was compiled, in their order.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::FileExt;
use std::process::{Child, ChildStdout, Command, Stdio};

use flow_table::{
    AttachCounts, Burst, DumpCursor, FlowHasher, FlowRow, FlowTable, Identity, InTurn, Line, LookupOutcome,
    TableConfig, TcpState, tcp_flag,
};
use model::{Direction, FlowKey, Nanos, ServiceId, Slot, Timeouts, Tuple, protocol};
use nix::libc;
use nix::sys::ptrace;
use nix::sys::signal::{Signal, raise};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, gettid};
use packet::{PacketColumns, TcpFlags};
use proptest::prelude::*;
use rustix::param::page_size;
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};
use zerocopy::IntoBytes as _;

type Table = FlowTable<Vec<Line>>;
type Rows = HashMap<FlowKey, FlowRow>;

const HASHER: FlowHasher = FlowHasher::new([21, 22, 23, 24]);
const IDENTITY: Identity = Identity {
    boot: [7; 16],
    configuration: 7,
    worker: 0,
    workers: 1,
};
/// Small, so that entries are used again and flows move within the index.
const SIZE: TableConfig = TableConfig {
    ipv4_flows: 24,
    ipv6_flows: 6,
    return_counters: true,
    pin_times: true,
};
const TIMEOUTS: Timeouts = Timeouts {
    tcp_handshake: Nanos::from_secs(30),
    tcp: Nanos::from_secs(600),
    tcp_linger: Nanos::from_secs(10),
    udp: Nanos::from_secs(60),
    icmp: Nanos::from_secs(5),
    sctp: Nanos::from_secs(5),
    other: Nanos::from_secs(5),
};
/// An entry stores the 26 lower bits of the tick in two halves. Here the lower one is about to overflow.
const START: Nanos = Nanos((60 * (1 << 13) - 100) << 21);
const KEYS: u32 = 40;
/// The operations of the killed process, in its environment.
const SCRIPT: &str = "INCO_TEST_SCRIPT";
/// Has the C library of that process fill and copy memory by vectors: a string instruction stops at each byte.
const NO_STRING_INSTRUCTIONS: &str =
    "glibc.cpu.x86_rep_stosb_threshold=1000000000:glibc.cpu.x86_rep_movsb_threshold=1000000000";
/// What it says before where its storage is.
const STORAGE_AT: &str = "storage at ";

/// An operation: a letter and numbers, so that it fits into the environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    /// Inserts a flow that is not there; counts its first packet apart.
    Insert {
        key: u32,
        pins: [u16; 2],
    },
    /// Inserts a flow with the packet that opens it.
    Open {
        key: u32,
        pin: u16,
    },
    /// Counts packets of a flow.
    Hit {
        key: u32,
        reverse: bool,
        packets: u32,
        flags: u8,
    },
    SetPin {
        key: u32,
        reverse: bool,
        pin: u16,
    },
    SetPins {
        key: u32,
        pins: [u16; 2],
    },
    Returned {
        key: u32,
    },
    Purge {
        key: u32,
    },
    PurgeSlot {
        slot: u16,
        budget: usize,
    },
    FailSlot {
        slot: u16,
        budget: usize,
    },
    /// Time passes, and flows expire.
    Expire {
        millis: u64,
    },
    /// The storage is given back and attached again, some time later.
    Attach {
        millis: u64,
    },
}

impl Op {
    fn to_text(self) -> String {
        match self {
            Op::Insert { key, pins } => format!("i {key} {} {}", pins[0], pins[1]),
            Op::Open { key, pin } => format!("o {key} {pin}"),
            Op::Hit {
                key,
                reverse,
                packets,
                flags,
            } => format!("h {key} {} {packets} {flags}", u8::from(reverse)),
            Op::SetPin { key, reverse, pin } => format!("p {key} {} {pin}", u8::from(reverse)),
            Op::SetPins { key, pins } => format!("P {key} {} {}", pins[0], pins[1]),
            Op::Returned { key } => format!("r {key}"),
            Op::Purge { key } => format!("x {key}"),
            Op::PurgeSlot { slot, budget } => format!("s {slot} {budget}"),
            Op::FailSlot { slot, budget } => format!("f {slot} {budget}"),
            Op::Expire { millis } => format!("e {millis}"),
            Op::Attach { millis } => format!("a {millis}"),
        }
    }

    fn of_text(text: &str) -> Op {
        let (kind, numbers) = text.split_once(' ').unwrap();
        let n: Vec<u64> = numbers.split(' ').map(|n| n.parse().unwrap()).collect();
        let key = n[0] as u32;
        match kind {
            "i" => Op::Insert {
                key,
                pins: [n[1] as u16, n[2] as u16],
            },
            "o" => Op::Open {
                key,
                pin: n[1] as u16,
            },
            "h" => Op::Hit {
                key,
                reverse: n[1] == 1,
                packets: n[2] as u32,
                flags: n[3] as u8,
            },
            "p" => Op::SetPin {
                key,
                reverse: n[1] == 1,
                pin: n[2] as u16,
            },
            "P" => Op::SetPins {
                key,
                pins: [n[1] as u16, n[2] as u16],
            },
            "r" => Op::Returned { key },
            "x" => Op::Purge { key },
            "s" => Op::PurgeSlot {
                slot: n[0] as u16,
                budget: n[1] as usize,
            },
            "f" => Op::FailSlot {
                slot: n[0] as u16,
                budget: n[1] as usize,
            },
            "e" => Op::Expire { millis: n[0] },
            "a" => Op::Attach { millis: n[0] },
            _ => panic!("no operation: {text}"),
        }
    }
}

/// Flow `i`: every fourth one is IPv6; IPv4 ones are TCP and UDP in turn.
fn tuple(i: u32) -> Tuple {
    let (src, dst): (IpAddr, IpAddr) = if i.is_multiple_of(4) {
        (
            Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, i as u16).into(),
            Ipv6Addr::LOCALHOST.into(),
        )
    } else {
        (
            Ipv4Addr::from(0x0a00_0000 + i).into(),
            Ipv4Addr::new(192, 0, 2, 1).into(),
        )
    };
    Tuple {
        src,
        dst,
        src_port: 1000,
        dst_port: 80,
        protocol: if i % 4 < 2 { protocol::TCP } else { protocol::UDP },
        vlan: 0,
    }
}

fn key(i: u32) -> FlowKey {
    FlowKey::new(&tuple(i)).0
}

fn direction(reverse: bool) -> Direction {
    if reverse {
        Direction::Reverse
    } else {
        Direction::Forward
    }
}

/// A table with the time that it has been told.
struct Bench {
    table: Option<Table>,
    now: Nanos,
    packets: PacketColumns,
    burst: Burst,
}

impl Bench {
    fn new() -> Bench {
        let storage = vec![Line::ZERO; SIZE.lines_needed().unwrap()];
        let table = FlowTable::new(storage, &SIZE, &TIMEOUTS, HASHER, &IDENTITY, START).unwrap();
        Bench {
            table: Some(table),
            now: START,
            packets: PacketColumns::default(),
            burst: Burst::default(),
        }
    }

    fn apply(&mut self, op: Op) {
        if let Op::Expire { millis } | Op::Attach { millis } = op {
            self.now = self.now + Nanos::from_millis(millis);
        }
        let now = self.now;
        if let Op::Attach { .. } = op {
            let storage = self.table.take().unwrap().into_storage();
            self.table = Some(FlowTable::attach(storage, &IDENTITY, &TIMEOUTS, now, &InTurn(3)).unwrap());
            return;
        }
        let table = self.table.as_mut().unwrap();
        let found = |table: &mut Table, i| table.lookup(&key(i), HASHER.hash(&key(i)));
        match op {
            Op::Insert { key: i, pins } => {
                if found(table, i).is_none() {
                    let (key, opener) = FlowKey::new(&tuple(i));
                    let hash = HASHER.hash(&key);
                    // There may be no room.
                    let _ = table.insert(&key, hash, opener, pins.map(Slot), ServiceId(i as u16 % 5), now);
                }
            }
            Op::Open { key: i, pin } => {
                let (FlowKey::V4(key), opener) = FlowKey::new(&tuple(i)) else {
                    return;
                };
                let (packets, burst) = (&mut self.packets, &mut self.burst);
                packets.len = 0;
                packets.push(Some(key), opener, TcpFlags(TcpFlags::SYN), 60);
                burst.fill::<simd::scalar::Words>(packets);
                table.prefetch_buckets(burst, packets);
                table.resolve_candidates(burst);
                if table.lookup_in_burst(burst, 0) == LookupOutcome::Miss && burst.is_opening(0) {
                    let _ = table.open(burst, 0, [Slot(pin); 2], ServiceId(i as u16 % 5), now);
                }
            }
            Op::Hit {
                key: i,
                reverse,
                packets,
                flags,
            } => {
                if let Some(entry) = found(table, i) {
                    let bytes = u64::from(packets) * 1000;
                    table.hit(entry, direction(reverse), packets, bytes, now, flags);
                }
            }
            Op::SetPin { key: i, reverse, pin } => {
                if let Some(entry) = found(table, i) {
                    table.set_pin(entry, direction(reverse), Slot(pin), now);
                }
            }
            Op::SetPins { key: i, pins } => {
                if let Some(entry) = found(table, i) {
                    table.set_pins(entry, pins.map(Slot), now);
                }
            }
            Op::Returned { key: i } => {
                if let Some(entry) = found(table, i) {
                    table.count_returned(entry, 3);
                }
            }
            Op::Purge { key: i } => {
                table.purge(&key(i), HASHER.hash(&key(i)));
            }
            Op::PurgeSlot { slot, budget } => {
                table.purge_slot(Slot(slot), budget);
            }
            Op::FailSlot { slot, budget } => {
                table.fail_slot(Slot(slot), budget);
            }
            Op::Expire { .. } => {
                table.expire(now, 64);
            }
            Op::Attach { .. } => {}
        }
    }

    fn rows(&self) -> Rows {
        rows(self.table.as_ref().unwrap(), self.now)
    }
}

fn rows(table: &Table, now: Nanos) -> Rows {
    let mut rows = Rows::new();
    let mut cursor = Some(DumpCursor::default());
    while let Some(from) = cursor {
        cursor = table.dump(from, 1000, now, |row| {
            assert!(rows.insert(row.key, row).is_none(), "twice in the table: {row:?}");
        });
    }
    rows
}

/// The process that is killed: it stops before each operation and after the last. Run alone, it does nothing.
#[test]
fn the_process_that_is_killed() {
    let Ok(script) = std::env::var(SCRIPT) else { return };
    let script: Vec<Op> = script.split(',').map(Op::of_text).collect();
    let mut bench = Bench::new();
    let storage = bench.table.take().unwrap().into_storage();
    let (at, len) = (storage.as_ptr().addr(), storage.len());
    bench.table = Some(FlowTable::attach(storage, &IDENTITY, &TIMEOUTS, START, &InTurn(3)).unwrap());
    // First: the other process waits for this thread as soon as it knows it.
    ptrace::traceme().unwrap();
    println!("\n{STORAGE_AT}{at} {len} {}", gettid());
    std::io::stdout().flush().unwrap();
    for op in script {
        raise(Signal::SIGSTOP).unwrap();
        bench.apply(op);
    }
    raise(Signal::SIGSTOP).unwrap();
}

/// That process, stopped.
struct Victim {
    child: Child,
    thread: Pid,
    memory: File,
    at: u64,
    lines: usize,
    /// Where its code has the instruction `syscall`.
    system_call: u64,
    /// Kept open: the runner of that process writes to it when the test takes long.
    _output: BufReader<ChildStdout>,
}

/// Keeps this thread, and the processes that it starts, on the CPU where it is. Each stop is two switches between them,
/// which take longer from one idle CPU to another.
fn stay_on_this_cpu() {
    let mut one = CpuSet::new();
    one.set(sched_getcpu());
    sched_setaffinity(None, &one).unwrap();
}

impl Victim {
    fn start(script: &[Op]) -> Victim {
        stay_on_this_cpu();
        let text: Vec<String> = script.iter().map(|op| op.to_text()).collect();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_process_that_is_killed", "--nocapture"])
            .env(SCRIPT, text.join(","))
            .env("GLIBC_TUNABLES", NO_STRING_INSTRUCTIONS)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let said = output
            .by_ref()
            .lines()
            .map(Result::unwrap)
            .find_map(|line| line.strip_prefix(STORAGE_AT).map(str::to_owned))
            .unwrap();
        let numbers: Vec<u64> = said.split(' ').map(|n| n.parse().unwrap()).collect();
        let mut victim = Victim {
            memory: File::open(format!("/proc/{}/mem", child.id())).unwrap(),
            thread: Pid::from_raw(numbers[2] as i32),
            at: numbers[0],
            lines: numbers[1] as usize,
            system_call: 0,
            _output: output,
            child,
        };
        assert_eq!(
            victim.wait(),
            Signal::SIGSTOP,
            "it stops before its first operation"
        );
        // A test that is killed leaves no stopped process behind.
        ptrace::setoptions(victim.thread, ptrace::Options::PTRACE_O_EXITKILL).unwrap();
        // It has stopped in a system call, so that the instruction before is one.
        victim.system_call = ptrace::getregs(victim.thread).unwrap().rip - 2;
        let code = ptrace::read(victim.thread, victim.system_call as ptrace::AddressType).unwrap();
        assert_eq!(code as u16, 0x050f, "the code of `syscall`");
        victim.protect(libc::PROT_READ);
        victim
    }

    /// Waits until it stops; returns by which signal.
    fn wait(&self) -> Signal {
        match waitpid(self.thread, Some(WaitPidFlag::__WALL)).unwrap() {
            WaitStatus::Stopped(_, signal) => signal,
            other => panic!("{other:?}"),
        }
    }

    /// Runs one instruction.
    fn step(&self) {
        ptrace::step(self.thread, None).unwrap();
        assert_eq!(self.wait(), Signal::SIGTRAP);
    }

    /// The pages of its storage: where they start, and how many bytes they have.
    fn pages(&self) -> (u64, u64) {
        let page = page_size() as u64;
        let start = self.at / page * page;
        let end = (self.at + (self.lines * size_of::<Line>()) as u64).next_multiple_of(page);
        (start, end - start)
    }

    /// Has it call `mprotect` for its storage, and go on where it was.
    fn protect(&self, protection: libc::c_int) {
        let registers = ptrace::getregs(self.thread).unwrap();
        let (start, len) = self.pages();
        let call = libc::user_regs_struct {
            rip: self.system_call,
            rax: libc::SYS_mprotect as u64,
            // Not in a system call that might have to be started again.
            orig_rax: u64::MAX,
            rdi: start,
            rsi: len,
            rdx: protection as u64,
            ..registers
        };
        ptrace::setregs(self.thread, call).unwrap();
        self.step();
        assert_eq!(ptrace::getregs(self.thread).unwrap().rax, 0, "mprotect");
        ptrace::setregs(self.thread, registers).unwrap();
    }

    /// Runs until a store to the pages of its storage has been made; returns false if this operation has ended instead.
    fn runs_to_a_store(&self) -> bool {
        ptrace::cont(self.thread, None).unwrap();
        match self.wait() {
            Signal::SIGSTOP => false,
            Signal::SIGSEGV => {
                let registers = ptrace::getregs(self.thread).unwrap();
                self.protect(libc::PROT_READ | libc::PROT_WRITE);
                self.step();
                self.protect(libc::PROT_READ);
                let went_on = ptrace::getregs(self.thread).unwrap() != registers;
                assert!(went_on, "it writes where it may not: {registers:#x?}");
                true
            }
            other => panic!("{other:?}"),
        }
    }

    fn read(&self, into: &mut Vec<Line>) {
        into.resize(self.lines, Line::ZERO);
        self.memory.read_exact_at(into.as_mut_bytes(), self.at).unwrap();
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        // A traced thread is there until its tracer has seen its end, and the process until its threads are gone.
        while waitpid(self.thread, Some(WaitPidFlag::__WALL))
            .is_ok_and(|status| !matches!(status, WaitStatus::Exited(..) | WaitStatus::Signaled(..)))
        {
        }
        let _ = self.child.wait();
    }
}

/// Whether a flow that was found after a crash is as it was before the operation, or as it is after it. Words that
/// need not agree may be of both.
fn is_between(found: &FlowRow, before: Option<&FlowRow>, after: Option<&FlowRow>, aged: Nanos) -> bool {
    let either =
        |is_like: &dyn Fn(&FlowRow) -> bool| before.is_some_and(is_like) || after.is_some_and(is_like);
    let reopened = before.is_some_and(|row| row.tcp == TcpState::Closed)
        && after.is_some_and(|row| row.tcp == TcpState::Handshake);
    let counts = (0..2).all(|d| {
        either(&|row| (row.packets[d], row.bytes[d]) == (found.packets[d], found.bytes[d]))
            || reopened && (found.packets[d], found.bytes[d]) == (0, 0)
    });
    // A flow is not older than it was: it would end too early.
    let idle = before.is_some_and(|row| found.idle <= row.idle + aged)
        || after.is_some_and(|row| found.idle <= row.idle);
    let instance = |row: &FlowRow| {
        (found.pins, found.pinned_at, found.service, found.opener)
            == (row.pins, row.pinned_at, row.service, row.opener)
    };
    either(&instance)
        && counts
        && idle
        && either(&|row| found.tcp == row.tcp)
        && either(&|row| (found.returned, found.dropped) == (row.returned, row.dropped))
}

/// Attaches what a killed process left, and compares. `aged` is by how much flows are older after the operation.
fn check(left: &[Line], before: &Rows, after: &Rows, aged: Nanos, now: Nanos) -> AttachCounts {
    let attach = |lines: Vec<Line>| FlowTable::attach(lines, &IDENTITY, &TIMEOUTS, now, &InTurn(3)).unwrap();
    let mut table = attach(left.to_vec());
    let counts = *table.attach_counts();
    assert_eq!(counts.rejected_entries(), 0, "{counts:?}");
    let found = rows(&table, now);
    assert_eq!((found.len() as u64, found.len()), (counts.flows, table.flows()));
    let keys: HashSet<&FlowKey> = found.keys().chain(before.keys()).chain(after.keys()).collect();
    for key in keys {
        let (before, after) = (before.get(key), after.get(key));
        match found.get(key) {
            None => assert!(before.is_none() || after.is_none(), "lost: {before:?} {after:?}"),
            Some(row) => {
                assert!(
                    is_between(row, before, after, aged),
                    "{row:#?}\n{before:#?}\n{after:#?}"
                );
                let entry = table.lookup(key, HASHER.hash(key)).unwrap();
                assert_eq!(table.pins(entry), row.pins);
            }
        }
    }
    // What was repaired is whole: attached once more, there is nothing to repair.
    let again = attach(table.into_storage());
    let flows = found.len() as u64;
    assert_eq!(
        *again.attach_counts(),
        AttachCounts {
            flows,
            ..AttachCounts::default()
        }
    );
    assert_eq!(rows(&again, now), found);
    counts
}

/// What was seen on the way through a script.
#[derive(Debug, Default)]
struct Seen {
    stores: u64,
    repaired: AttachCounts,
}

/// Kills the process after each store of a script.
fn kill_everywhere(script: &[Op]) -> Seen {
    let victim = Victim::start(script);
    let mut undisturbed = Bench::new();
    let mut seen = Seen::default();
    let (mut last, mut left) = (Vec::new(), Vec::new());
    victim.read(&mut last);
    for &op in script {
        let before = undisturbed.rows();
        let aged = match op {
            // Counted in ticks from the one that was current.
            Op::Expire { millis } => Nanos::from_millis(millis) + Nanos(1 << 21),
            _ => Nanos::ZERO,
        };
        undisturbed.apply(op);
        let after = undisturbed.rows();
        while victim.runs_to_a_store() {
            victim.read(&mut left);
            if left != last {
                seen.stores += 1;
                let (before, after, now) = (&before, &after, undisturbed.now);
                let at = std::panic::AssertUnwindSafe(|| check(&left, before, after, aged, now));
                let Ok(counts) = std::panic::catch_unwind(at) else {
                    panic!("after store {} of {script:?}, in {op:?}", seen.stores);
                };
                seen.repaired += counts;
                std::mem::swap(&mut left, &mut last);
            }
        }
        // Nothing was written unseen.
        victim.read(&mut left);
        assert!(left == last, "{op:?}");
    }
    seen
}

/// Every kind of operation, each in its cases.
#[test]
fn a_crash_at_any_store_leaves_every_flow_with_its_instance() {
    let mut script = vec![
        // Entries that were never used.
        Op::Insert { key: 1, pins: [1, 1] },
        Op::Insert { key: 2, pins: [1, 2] },
        Op::Insert { key: 4, pins: [3, 3] },
        Op::Open { key: 3, pin: 2 },
        Op::Open { key: 5, pin: 1 },
        Op::Hit {
            key: 1,
            reverse: false,
            packets: 1,
            flags: tcp_flag::SYN,
        },
        Op::Hit {
            key: 1,
            reverse: true,
            packets: 1,
            flags: tcp_flag::SYN | tcp_flag::ACK,
        },
        Op::Hit {
            key: 1,
            reverse: false,
            packets: 1,
            flags: tcp_flag::ACK,
        },
        // Counters that carry, first and again.
        Op::Hit {
            key: 2,
            reverse: false,
            packets: 70_000,
            flags: 0,
        },
        Op::Hit {
            key: 2,
            reverse: true,
            packets: 70_000,
            flags: 0,
        },
        Op::Hit {
            key: 4,
            reverse: false,
            packets: 70_000,
            flags: tcp_flag::ACK,
        },
        Op::Returned { key: 2 },
        // The upper half of the time changes.
        Op::Expire { millis: 1_000 },
        Op::Hit {
            key: 2,
            reverse: false,
            packets: 1,
            flags: 0,
        },
        Op::Hit {
            key: 4,
            reverse: true,
            packets: 2,
            flags: tcp_flag::ACK,
        },
        // Moves.
        Op::SetPin {
            key: 2,
            reverse: true,
            pin: 4,
        },
        Op::SetPins { key: 1, pins: [4, 4] },
        Op::SetPins { key: 4, pins: [5, 6] },
        Op::PurgeSlot { slot: 4, budget: 1 },
        Op::PurgeSlot { slot: 4, budget: 100 },
        Op::FailSlot { slot: 1, budget: 3 },
        Op::SetPins { key: 5, pins: [2, 2] },
        Op::FailSlot { slot: 1, budget: 100 },
        // The end of a connection, and a new one in its place.
        Op::Hit {
            key: 1,
            reverse: false,
            packets: 1,
            flags: tcp_flag::FIN | tcp_flag::ACK,
        },
        Op::Hit {
            key: 1,
            reverse: true,
            packets: 1,
            flags: tcp_flag::FIN | tcp_flag::ACK,
        },
        Op::Returned { key: 1 },
        Op::Hit {
            key: 1,
            reverse: false,
            packets: 1,
            flags: tcp_flag::SYN,
        },
        Op::SetPins { key: 1, pins: [2, 2] },
        // Entries that are used again.
        Op::Purge { key: 2 },
        Op::Purge { key: 4 },
        Op::Insert { key: 6, pins: [5, 5] },
        Op::Open { key: 7, pin: 6 },
        Op::Insert { key: 8, pins: [6, 6] },
        Op::Expire { millis: 45_000 },
        Op::Expire { millis: 16_000 },
        Op::Insert { key: 9, pins: [1, 3] },
        Op::Attach { millis: 0 },
        Op::Attach { millis: 20_000 },
        Op::Open { key: 10, pin: 3 },
    ];
    // Up to the last entry, so that flows move within the index.
    script.extend((11..KEYS).map(|key| Op::Insert { key, pins: [1, 1] }));
    script.push(Op::Expire { millis: 700_000 });
    let seen = kill_everywhere(&script);
    eprintln!("{seen:?}");
    // The stores were there to be killed at, and what has to be repaired was found.
    let least = script.len() as u64 * 5;
    assert!(seen.stores > least, "{seen:?}");
    let AttachCounts {
        redone,
        unfinished,
        unindexed,
        unpinned,
        ..
    } = seen.repaired;
    assert!(
        redone > 0 && unfinished > 0 && unindexed > 0 && unpinned > 0,
        "{seen:?}"
    );
}

fn op() -> impl Strategy<Value = Op> {
    let flags = prop_oneof![
        5 => Just(tcp_flag::ACK),
        3 => Just(tcp_flag::SYN),
        3 => Just(tcp_flag::FIN | tcp_flag::ACK),
        1 => Just(tcp_flag::RST),
    ];
    let millis = prop_oneof![5 => 3_u64..2_000, 2 => 10_000_u64..40_000, 1 => 100_000_u64..900_000];
    let packets = prop_oneof![4 => 1_u32..9, 1 => 60_000_u32..200_000];
    let (key, pin) = (0..KEYS, 0_u16..7);
    prop_oneof![
        8 => (key.clone(), [pin.clone(), pin.clone()]).prop_map(|(key, pins)| Op::Insert { key, pins }),
        8 => (key.clone(), pin.clone()).prop_map(|(key, pin)| Op::Open { key, pin }),
        8 => (key.clone(), any::<bool>(), packets, flags)
            .prop_map(|(key, reverse, packets, flags)| Op::Hit { key, reverse, packets, flags }),
        3 => (key.clone(), any::<bool>(), pin.clone()).prop_map(|(key, reverse, pin)| Op::SetPin { key, reverse, pin }),
        3 => (key.clone(), [pin.clone(), pin.clone()]).prop_map(|(key, pins)| Op::SetPins { key, pins }),
        1 => key.clone().prop_map(|key| Op::Returned { key }),
        2 => key.prop_map(|key| Op::Purge { key }),
        2 => (pin.clone(), 1_usize..40).prop_map(|(slot, budget)| Op::PurgeSlot { slot, budget }),
        2 => (pin, 1_usize..40).prop_map(|(slot, budget)| Op::FailSlot { slot, budget }),
        6 => millis.prop_map(|millis| Op::Expire { millis }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 12,
        max_shrink_iters: 20,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_crash_on_a_random_walk_loses_and_moves_no_flow(script in prop::collection::vec(op(), 50..60)) {
        let seen = kill_everywhere(&script);
        prop_assert!(seen.stores > 50);
    }

    #[test]
    fn operations_survive_the_environment(op in op()) {
        prop_assert_eq!(Op::of_text(&op.to_text()), op);
    }
}
