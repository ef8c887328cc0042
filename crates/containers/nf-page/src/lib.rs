//! A page of shared memory in which a function in a container publishes its counters, so that the host reads
//! them without a system call. The page is untrusted: the host owns the memory, sealed so that the function
//! cannot shrink it, and every value is only the function's claim.
//!
//! Key types: [`PageReader`] (host), [`PageListener`] and [`PageWriter`] (function), [`NfCounters`] (of the instance),
//! [`StageReport`] (of one of its functions).
//!
//! 1. The function binds a unix datagram socket in the directory shared with the host
//!    ([`PageListener::bind`]).
//! 2. The host creates a page ([`PageReader::create`]): a memfd of [`SIZE`] bytes, sealed against shrinking
//!    and growing.
//! 3. The host sends it ([`PageReader::offer`]), and the function maps it ([`PageListener::accept`]) and
//!    writes to it. A restarted host offers a new page, in which the function continues its totals.
//! 4. The control loop reads it with a few loads: the busy time often ([`PageReader::busy_ns`]), all of it less often
//!    ([`PageReader::read`]). Names and counters of the functions are read when somebody asks for them
//!    ([`PageReader::functions`]).
//!
//! Why a socket and not a file: a container can truncate a file in a bind-mounted directory, and the host
//! would get SIGBUS at its next load. A memfd cannot be bind-mounted (`mount` rejects `/proc/<pid>/fd/<n>`
//! with `EINVAL`, because its mount belongs to no namespace), and a file on tmpfs cannot be sealed (`EPERM`).
//!
//! # Layout, version 1: 512 words of 64 bits, native byte order
//!
//! | word | field |
//! | --- | --- |
//! | 0 | magic, written last by the function |
//! | 1 | version |
//! | 2 | instance id, 0 if not configured |
//! | 3 | heartbeat: monotonic clock in ns |
//! | 4 | busy time in ns: time spent on packets, without polling and sleeping |
//! | 5 | CPU time of the process in ns |
//! | 6 | resident memory in bytes |
//! | 7 | ports |
//! | 8 | written by the host: CPU limit in millionths of a CPU, 0 for none |
//! | 9 | layout of what is said of functions: 0 for nothing, 1 as here; written after the names |
//! | 10 | functions, one behind the other |
//! | 11 | metrics of all functions |
//! | 12 | metrics for which there was no room |
//! | 13 | changed configurations that were wrong |
//! | 14 | packets that functions dropped or consumed |
//! | 15 | 1 and the flows of which functions hold state; 0 if that is not said |
//! | 16 + 16 k | port k: packets in |
//! | 17 + 16 k | port k: bytes in |
//! | 18 + 16 k | port k: packets out |
//! | 19 + 16 k | port k: bytes out |
//! | 20 + 16 k | port k: packets dropped because the ring was full |
//! | 21 + 16 k | port k: packets dropped because of an invalid descriptor |
//! | 22 + 16 k | port k: packets dropped because the port had no peer |
//! | 80 + 16 k | function k: its name, 32 bytes, NUL behind it |
//! | 84 + 16 k to 94 + 16 k | function k: the fields of [`StageCounters`] in their order |
//! | 208 + 6 k | metric k: its name, 32 bytes, NUL behind it |
//! | 212 + 6 k | metric k: number of its function; 256 more for a gauge, 512 more for a reason of drops |
//! | 213 + 6 k | metric k: value |
//! | 508 | the time that half of the packets took, from ring to ring, in ns; 0 if that is not said |
//! | 509 | the same of 99 % of them |
//!
//! Other words are 0, or what an earlier release left there. Words 9 to 15 and from 80 on came later: functions that do
//! not write them are read as before, and hosts that do not know them leave them alone.
//!
//! Concurrency: one writer with relaxed stores, any number of readers with relaxed loads. Each number is
//! consistent by itself; two may differ by at most one burst.

// UNSAFETY: the shared mapping is accessed as an array of atomics.
#![expect(unsafe_code)]

use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use serde::{Deserialize, Serialize};

/// Bytes of a page.
pub const SIZE: usize = 4096;
/// Ports per page. A function has one or two.
pub const PORTS_LIMIT: usize = 4;
const WORDS: usize = SIZE / 8;
const MAGIC: u64 = u64::from_be_bytes(*b"inco-nf\x01");
const VERSION: u64 = 1;
const PORT_BASE: usize = 16;
const PORT_WORDS: usize = 16;
/// Functions per page.
pub const STAGES_LIMIT: usize = 8;
/// Metrics per page, of all functions together.
pub const METRICS_LIMIT: usize = 50;
/// Bytes of a name, with at least one NUL behind it.
const NAME_BYTES: usize = 32;
const NAME_WORDS: usize = NAME_BYTES / 8;
/// The layout of what is said of functions.
const FUNCTIONS: u64 = 1;
const STAGE_BASE: usize = PORT_BASE + PORTS_LIMIT * PORT_WORDS;
const STAGE_WORDS: usize = 16;
const METRIC_BASE: usize = STAGE_BASE + STAGES_LIMIT * STAGE_WORDS;
const METRIC_WORDS: usize = NAME_WORDS + 2;
/// In the word of a metric, above the number of its function.
const IS_GAUGE: u64 = 1 << 8;
const IS_REASON: u64 = 1 << 9;

mod word {
    pub(super) const MAGIC: usize = 0;
    pub(super) const VERSION: usize = 1;
    pub(super) const INSTANCE: usize = 2;
    pub(super) const HEARTBEAT: usize = 3;
    pub(super) const BUSY: usize = 4;
    pub(super) const CPU: usize = 5;
    pub(super) const RSS: usize = 6;
    pub(super) const PORTS: usize = 7;
    pub(super) const CPU_LIMIT: usize = 8;
    pub(super) const FUNCTIONS: usize = 9;
    pub(super) const STAGES: usize = 10;
    pub(super) const METRICS: usize = 11;
    pub(super) const METRICS_LEFT_OUT: usize = 12;
    pub(super) const RELOADS_FAILED: usize = 13;
    pub(super) const DROPPED_BY_FUNCTIONS: usize = 14;
    pub(super) const HELD_FLOWS: usize = 15;
    pub(super) const TOOK_P50: usize = 508;
    pub(super) const TOOK_P99: usize = 509;
}

const _: () = assert!(STAGE_BASE == 80 && METRIC_BASE == 208);
const _: () = assert!(
    word::MAGIC < 8 && word::VERSION < 8 && word::BUSY < 8,
    "words of one cache line"
);
const _: () = assert!(METRIC_BASE + METRICS_LIMIT * METRIC_WORDS <= word::TOOK_P50 && word::TOOK_P99 < WORDS);

/// A page error.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused to create, seal or map the memory.
    #[error("cannot {doing} the page of counters: {source}")]
    Memory {
        /// The operation.
        doing: &'static str,
        /// The cause.
        source: std::io::Error,
    },
    /// An error of the socket over which pages are sent.
    #[error("cannot {doing} {}: {source}", path.display())]
    Socket {
        /// The operation.
        doing: &'static str,
        /// The socket.
        path: PathBuf,
        /// The cause.
        source: Errno,
    },
    /// The path is not a socket.
    #[error("{} is not a socket", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// The host sent something other than a sealed page of the right size.
    #[error("the received descriptor is not a page: {0}")]
    NotAPage(&'static str),
}

fn memory(doing: &'static str) -> impl FnOnce(std::io::Error) -> Error {
    move |source| Error::Memory { doing, source }
}

/// A port's totals since the function started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortCounters {
    /// Packets received from the switch.
    pub packets_in: u64,
    /// Their bytes, without frame check sequence.
    pub bytes_in: u64,
    /// Packets returned to the switch.
    pub packets_out: u64,
    /// Bytes of `packets_out`.
    pub bytes_out: u64,
    /// Packets dropped because the return ring was full.
    pub dropped_ring_full: u64,
    /// Invalid descriptor chains.
    pub dropped_malformed: u64,
    /// Packets dropped because the output port had no peer.
    pub dropped_unconnected: u64,
}

impl PortCounters {
    fn to_words(self) -> [u64; 7] {
        [
            self.packets_in,
            self.bytes_in,
            self.packets_out,
            self.bytes_out,
            self.dropped_ring_full,
            self.dropped_malformed,
            self.dropped_unconnected,
        ]
    }

    fn from_words(w: [u64; 7]) -> PortCounters {
        PortCounters {
            packets_in: w[0],
            bytes_in: w[1],
            packets_out: w[2],
            bytes_out: w[3],
            dropped_ring_full: w[4],
            dropped_malformed: w[5],
            dropped_unconnected: w[6],
        }
    }

    /// Counts packets that went to the switch.
    pub fn sent(&mut self, packets: u64, bytes: u64) {
        self.packets_out += packets;
        self.bytes_out += bytes;
    }

    /// The sum of all drops at the port.
    pub fn dropped(&self) -> u64 {
        self.dropped_ring_full
            .saturating_add(self.dropped_malformed)
            .saturating_add(self.dropped_unconnected)
    }
}

/// The counters published by a function.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NfCounters {
    /// Its instance id, 0 if not configured.
    pub instance: u32,
    /// Time of the last update: the monotonic clock in ns.
    pub heartbeat_ns: u64,
    /// Busy time, in ns.
    pub busy_ns: u64,
    /// CPU time of the process, in ns.
    pub cpu_ns: u64,
    /// Resident memory in bytes.
    pub rss_bytes: u64,
    /// Its ports; the first [`NfCounters::port_count`] are in use.
    pub ports: [PortCounters; PORTS_LIMIT],
    /// Ports in use.
    pub port_count: usize,
    /// Packets that functions dropped or consumed.
    pub dropped_by_functions: u64,
    /// Changed configurations that were wrong.
    pub reloads_failed: u64,
    /// Flows, mappings or sessions of which its functions hold state, if that is said.
    pub held_flows: Option<u64>,
    /// Time from ring to ring of half of the packets and of 99 % of them in a recent second, in ns, if that is said.
    pub took_ns: Option<[u64; 2]>,
}

impl NfCounters {
    /// The sum over all ports.
    pub fn total(&self) -> PortCounters {
        let mut total = [0u64; 7];
        for port in &self.ports[..self.port_count.min(PORTS_LIMIT)] {
            for (sum, word) in total.iter_mut().zip(port.to_words()) {
                *sum = sum.saturating_add(word);
            }
        }
        PortCounters::from_words(total)
    }
}

/// What became of the packets of one function, and what it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageCounters {
    /// Packets that it was given.
    pub packets: u64,
    /// Packets that went on.
    pub forwarded: u64,
    /// Packets that went back as answers.
    pub answered: u64,
    /// Packets that were for the function itself.
    pub consumed: u64,
    /// Packets that it dropped.
    pub dropped: u64,
    /// Packets that it made.
    pub originated: u64,
    /// Packets that it wanted to make, and that found no room.
    pub refused: u64,
    /// Configurations that it has taken since it started.
    pub reloads: u64,
    /// Entries of its configuration.
    pub entries: u64,
    /// Flows that it holds state of.
    pub flows: u64,
    /// How many of them it can hold.
    pub flows_limit: u64,
}

impl StageCounters {
    fn to_words(self) -> [u64; 11] {
        [
            self.packets,
            self.forwarded,
            self.answered,
            self.consumed,
            self.dropped,
            self.originated,
            self.refused,
            self.reloads,
            self.entries,
            self.flows,
            self.flows_limit,
        ]
    }

    fn from_words(w: [u64; 11]) -> StageCounters {
        StageCounters {
            packets: w[0],
            forwarded: w[1],
            answered: w[2],
            consumed: w[3],
            dropped: w[4],
            originated: w[5],
            refused: w[6],
            reloads: w[7],
            entries: w[8],
            flows: w[9],
            flows_limit: w[10],
        }
    }
}

const _: () = assert!(NAME_WORDS + 11 <= STAGE_WORDS);

/// What a number of a function is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MetricKind {
    /// Packets dropped for that reason.
    Reason,
    /// A total.
    Counter,
    /// How many there are now.
    Gauge,
}

/// The name of a number of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricName<'a> {
    /// The number of the function, from 0 on.
    pub stage: usize,
    /// Up to 31 lower-case letters, digits and underscores.
    pub name: &'a str,
    /// What it is.
    pub kind: MetricKind,
}

/// A number of a function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetricReport {
    /// Its name: 1 to 31 lower-case letters, digits and underscores.
    pub name: String,
    /// What it is.
    pub kind: MetricKind,
    /// Its value.
    pub value: u64,
}

/// What is said of a function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageReport {
    /// Its place among the functions that have a valid name, as packets from port 0 pass them; from 0 on.
    pub stage: usize,
    /// Its name: 1 to 31 lower-case letters, digits and underscores.
    pub name: String,
    /// Its packets.
    pub counters: StageCounters,
    /// What it counts besides. No two of one kind have the same name.
    pub metrics: Vec<MetricReport>,
}

/// A mapping of a page, which keeps the memory alive without the descriptor.
#[derive(Debug)]
struct Page {
    map: MmapRaw,
}

impl Page {
    fn map(fd: BorrowedFd<'_>) -> Result<Page, Error> {
        let map = MmapOptions::new().len(SIZE).map_raw(&fd).map_err(memory("map"))?;
        Ok(Page { map })
    }

    fn words(&self) -> &[AtomicU64; WORDS] {
        // SAFETY: the mapping is SIZE bytes long, page-aligned, readable and writable, and lives as long as
        // `self`. It was sealed against shrinking before mapping, so no load can fault. The other process may
        // write at any time, so it is only accessed as atomics.
        unsafe { &*self.map.as_mut_ptr().cast::<[AtomicU64; WORDS]>() }
    }

    fn load(&self, at: usize) -> u64 {
        self.words()[at].load(Ordering::Relaxed)
    }

    fn store(&self, at: usize, value: u64) {
        self.words()[at].store(value, Ordering::Relaxed);
    }

    /// Writes a name; what is longer than a name is left out.
    fn store_name(&self, at: usize, name: &str) {
        let mut bytes = [0; NAME_BYTES];
        for (to, from) in bytes[..NAME_BYTES - 1].iter_mut().zip(name.bytes()) {
            *to = from;
        }
        for (k, word) in bytes.as_chunks::<8>().0.iter().enumerate() {
            self.store(at + k, u64::from_ne_bytes(*word));
        }
    }

    /// Reads a name, if there is a valid one.
    fn load_name(&self, at: usize) -> Option<String> {
        let mut bytes = [0; NAME_BYTES];
        for (k, word) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *word = self.load(at + k).to_ne_bytes();
        }
        let len = bytes.iter().position(|byte| *byte == 0)?;
        let is_valid = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'_';
        if len == 0 || !bytes[..len].iter().all(is_valid) {
            return None;
        }
        std::str::from_utf8(&bytes[..len]).ok().map(str::to_owned)
    }

    fn is_written(&self) -> bool {
        self.words()[word::MAGIC].load(Ordering::Acquire) == MAGIC && self.load(word::VERSION) == VERSION
    }
}

/// The host's side of a page.
#[derive(Debug)]
pub struct PageReader {
    page: Page,
    memfd: OwnedFd,
}

impl PageReader {
    /// Creates a page: a memfd of [`SIZE`] bytes that cannot shrink or grow.
    pub fn create() -> Result<PageReader, Error> {
        let memfd = rustix::fs::memfd_create("inco-nf-page", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(|e| memory("make")(e.into()))?;
        rustix::fs::ftruncate(&memfd, SIZE as u64).map_err(|e| memory("size")(e.into()))?;
        rustix::fs::fcntl_add_seals(&memfd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(|e| memory("seal")(e.into()))?;
        let page = Page::map(memfd.as_fd())?;
        // First touch in the host, so that the memory is allocated and charged to the host.
        page.store(word::MAGIC, 0);
        Ok(PageReader { page, memfd })
    }

    /// Sends the page to the function that listens on `socket`, which may be in a directory writable by a
    /// hostile function: symbolic links are rejected, and the call never blocks.
    pub fn offer(&self, socket: &Path) -> Result<(), Error> {
        let failed = |doing| {
            move |source| Error::Socket {
                doing,
                path: socket.to_path_buf(),
                source,
            }
        };
        let place = rustix::fs::open(
            socket,
            OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .map_err(failed("open"))?;
        let kind = rustix::fs::fstat(&place).map_err(failed("look at"))?.st_mode;
        if rustix::fs::FileType::from_raw_mode(kind) != rustix::fs::FileType::Socket {
            return Err(Error::NotASocket {
                path: socket.to_path_buf(),
            });
        }
        // Connect through the descriptor, to exactly the inode that was checked.
        let by_descriptor = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&place));
        let address = SocketAddrUnix::new(by_descriptor).map_err(failed("name"))?;
        let stream = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )
        .map_err(failed("make a socket for"))?;
        rustix::net::connect(&stream, &address).map_err(failed("connect to"))?;
        let descriptors = [self.memfd.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        rustix::net::sendmsg(
            &stream,
            &[IoSlice::new(b"page")],
            &mut ancillary,
            SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
        )
        .map_err(failed("send the page to"))?;
        Ok(())
    }

    /// Publishes the CPU limit, in CPUs, so that the function paces itself below it; 0 for none. Functions
    /// without pacing ignore it.
    pub fn set_cpu_limit(&self, cpus: f64) {
        self.page.store(word::CPU_LIMIT, (cpus * 1e6) as u64);
    }

    /// The published counters; `None` if there are none yet or their version differs. No system call. Every
    /// number is the function's claim: compare it, never index with it.
    pub fn read(&self) -> Option<NfCounters> {
        let page = &self.page;
        if !page.is_written() {
            return None;
        }
        Some(NfCounters {
            instance: page.load(word::INSTANCE) as u32,
            heartbeat_ns: page.load(word::HEARTBEAT),
            busy_ns: page.load(word::BUSY),
            cpu_ns: page.load(word::CPU),
            rss_bytes: page.load(word::RSS),
            port_count: (page.load(word::PORTS) as usize).min(PORTS_LIMIT),
            ports: std::array::from_fn(|k| {
                PortCounters::from_words(std::array::from_fn(|w| page.load(PORT_BASE + PORT_WORDS * k + w)))
            }),
            dropped_by_functions: page.load(word::DROPPED_BY_FUNCTIONS),
            reloads_failed: page.load(word::RELOADS_FAILED),
            held_flows: page.load(word::HELD_FLOWS).checked_sub(1),
            took_ns: Some([word::TOOK_P50, word::TOOK_P99].map(|at| page.load(at)))
                .filter(|took| took[0] > 0),
        })
    }

    /// Of what [`PageReader::read`] gives, the busy time alone. It lies with the words that say whether there is any, so
    /// that a reader which looks often takes one cache line of the page.
    pub fn busy_ns(&self) -> Option<u64> {
        let page = &self.page;
        page.is_written().then(|| page.load(word::BUSY))
    }

    /// What is said of the functions, at most [`STAGES_LIMIT`] of them with [`METRICS_LIMIT`] metrics altogether. What
    /// has no valid name is left out, and so is a second metric with a name and kind. No system call.
    pub fn functions(&self) -> Vec<StageReport> {
        let page = &self.page;
        let layout = page.words()[word::FUNCTIONS].load(Ordering::Acquire);
        if !page.is_written() || layout != FUNCTIONS {
            return Vec::new();
        }
        let count = |at: usize, limit: usize| (page.load(at).min(limit as u64)) as usize;
        let mut metrics: [Vec<MetricReport>; STAGES_LIMIT] = Default::default();
        for k in 0..count(word::METRICS, METRICS_LIMIT) {
            let at = METRIC_BASE + METRIC_WORDS * k;
            let what = page.load(at + NAME_WORDS);
            let kind = match (what & IS_REASON != 0, what & IS_GAUGE != 0) {
                (true, _) => MetricKind::Reason,
                (false, true) => MetricKind::Gauge,
                (false, false) => MetricKind::Counter,
            };
            let of_stage = metrics.get_mut((what & (IS_GAUGE - 1)) as usize);
            let (Some(of_stage), Some(name)) = (of_stage, page.load_name(at)) else {
                continue;
            };
            if !of_stage.iter().any(|of| of.name == name && of.kind == kind) {
                let value = page.load(at + NAME_WORDS + 1);
                of_stage.push(MetricReport { name, kind, value });
            }
        }
        let stages = metrics
            .into_iter()
            .take(count(word::STAGES, STAGES_LIMIT))
            .enumerate();
        let named = stages.filter_map(|(k, metrics)| {
            let at = STAGE_BASE + STAGE_WORDS * k;
            let name = page.load_name(at)?;
            let words = std::array::from_fn(|w| page.load(at + NAME_WORDS + w));
            Some((name, StageCounters::from_words(words), metrics))
        });
        let numbered = named.enumerate();
        numbered
            .map(|(stage, (name, counters, metrics))| StageReport {
                stage,
                name,
                counters,
                metrics,
            })
            .collect()
    }
}

/// The function's socket on which the host offers pages. Dropping it removes the socket file.
#[derive(Debug)]
pub struct PageListener {
    socket: OwnedFd,
    path: PathBuf,
}

impl PageListener {
    /// Binds a new socket at `path`, replacing a stale one.
    pub fn bind(path: &Path) -> Result<PageListener, Error> {
        let failed = |doing| {
            move |source| Error::Socket {
                doing,
                path: path.to_path_buf(),
                source,
            }
        };
        let socket = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )
        .map_err(failed("make a socket for"))?;
        match rustix::fs::unlink(path) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(source) => return Err(failed("replace")(source)),
        }
        let address = SocketAddrUnix::new(path).map_err(failed("name"))?;
        rustix::net::bind(&socket, &address).map_err(failed("bind"))?;
        Ok(PageListener {
            socket,
            path: path.to_path_buf(),
        })
    }

    /// The offered page, if any. Does not block.
    pub fn accept(&self) -> Result<Option<PageWriter>, Error> {
        let failed = |doing| {
            move |source| Error::Socket {
                doing,
                path: self.path.clone(),
                source,
            }
        };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0u8; 8];
        match rustix::net::recvmsg(
            &self.socket,
            &mut [IoSliceMut::new(&mut byte)],
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT,
        ) {
            Ok(_) => {}
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(source) => return Err(failed("receive on")(source)),
        }
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(mut descriptors) = message
                && let Some(memfd) = descriptors.next()
            {
                return PageWriter::new(memfd).map(Some);
            }
        }
        Err(Error::NotAPage("it has no file descriptor"))
    }
}

impl AsFd for PageListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for PageListener {
    fn drop(&mut self) {
        let _ = rustix::fs::unlink(&self.path);
    }
}

/// The function's side of a page.
#[derive(Debug)]
pub struct PageWriter {
    page: Page,
}

impl PageWriter {
    fn new(memfd: OwnedFd) -> Result<PageWriter, Error> {
        let memfd = File::from(memfd);
        let length = memfd.metadata().map_err(memory("look at"))?.len();
        if length != SIZE as u64 {
            return Err(Error::NotAPage("its size is wrong"));
        }
        match rustix::fs::fcntl_get_seals(&memfd) {
            Ok(seals) if seals.contains(SealFlags::SHRINK) => {}
            _ => return Err(Error::NotAPage("it is not sealed against shrinking")),
        }
        Ok(PageWriter {
            page: Page::map(memfd.as_fd())?,
        })
    }

    /// The CPU limit set by the host, in CPUs, if any.
    pub fn cpu_limit(&self) -> Option<f64> {
        match self.page.load(word::CPU_LIMIT) {
            0 => None,
            millionths => Some(millionths as f64 / 1e6),
        }
    }

    /// Publishes all counters with a few dozen plain stores.
    pub fn publish(&self, counters: &NfCounters) {
        let page = &self.page;
        page.store(word::VERSION, VERSION);
        page.store(word::INSTANCE, u64::from(counters.instance));
        page.store(word::HEARTBEAT, counters.heartbeat_ns);
        page.store(word::BUSY, counters.busy_ns);
        page.store(word::CPU, counters.cpu_ns);
        page.store(word::RSS, counters.rss_bytes);
        let ports = counters.port_count.min(PORTS_LIMIT);
        page.store(word::PORTS, ports as u64);
        for (k, port) in counters.ports[..ports].iter().enumerate() {
            for (w, value) in port.to_words().into_iter().enumerate() {
                page.store(PORT_BASE + PORT_WORDS * k + w, value);
            }
        }
        page.store(word::DROPPED_BY_FUNCTIONS, counters.dropped_by_functions);
        page.store(word::RELOADS_FAILED, counters.reloads_failed);
        let held = counters.held_flows.map_or(0, |flows| flows.saturating_add(1));
        page.store(word::HELD_FLOWS, held);
        let [p50, p99] = counters.took_ns.unwrap_or_default();
        page.store(word::TOOK_P50, p50);
        page.store(word::TOOK_P99, p99);
        page.words()[word::MAGIC].store(MAGIC, Ordering::Release);
    }

    /// Names the functions and their metrics, once for a page. Those beyond [`STAGES_LIMIT`] and [`METRICS_LIMIT`] are
    /// left out.
    pub fn name_functions<'a>(
        &self,
        stages: impl IntoIterator<Item = &'a str>,
        metrics: impl IntoIterator<Item = MetricName<'a>>,
    ) {
        let page = &self.page;
        let (mut named, mut left_out) = (0, 0);
        for name in stages.into_iter().take(STAGES_LIMIT) {
            page.store_name(STAGE_BASE + STAGE_WORDS * named, name);
            named += 1;
        }
        page.store(word::STAGES, named as u64);
        let mut named = 0;
        for MetricName { stage, name, kind } in metrics {
            if named >= METRICS_LIMIT {
                left_out += 1;
                continue;
            }
            let at = METRIC_BASE + METRIC_WORDS * named;
            page.store_name(at, name);
            let kind = match kind {
                MetricKind::Reason => IS_REASON,
                MetricKind::Counter => 0,
                MetricKind::Gauge => IS_GAUGE,
            };
            page.store(at + NAME_WORDS, stage as u64 | kind);
            named += 1;
        }
        page.store(word::METRICS, named as u64);
        page.store(word::METRICS_LEFT_OUT, left_out);
        page.words()[word::FUNCTIONS].store(FUNCTIONS, Ordering::Release);
    }

    /// Publishes the counters of a function by its number.
    pub fn publish_function(&self, stage: usize, counters: &StageCounters) {
        if stage < STAGES_LIMIT {
            let at = STAGE_BASE + STAGE_WORDS * stage + NAME_WORDS;
            for (w, value) in counters.to_words().into_iter().enumerate() {
                self.page.store(at + w, value);
            }
        }
    }

    /// Publishes the value of a metric by its place in the list of names.
    pub fn publish_metric(&self, metric: usize, value: u64) {
        if metric < METRICS_LIMIT {
            let at = METRIC_BASE + METRIC_WORDS * metric + NAME_WORDS + 1;
            self.page.store(at, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters() -> NfCounters {
        let mut c = NfCounters {
            instance: 7,
            heartbeat_ns: 1,
            busy_ns: 2,
            cpu_ns: 3,
            rss_bytes: 4,
            port_count: 2,
            dropped_by_functions: 5,
            reloads_failed: 6,
            held_flows: Some(7),
            took_ns: Some([8, 9]),
            ..NfCounters::default()
        };
        for (k, port) in c.ports[..2].iter_mut().enumerate() {
            *port = PortCounters::from_words(std::array::from_fn(|w| (10 * k + w) as u64));
        }
        c
    }

    #[test]
    fn a_page_is_sent_and_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("page.sock");
        let listener = PageListener::bind(&path).unwrap();
        assert!(listener.accept().unwrap().is_none());
        let reader = PageReader::create().unwrap();
        assert_eq!(reader.read(), None, "nothing written yet");
        assert_eq!(reader.busy_ns(), None);
        reader.offer(&path).unwrap();
        let writer = listener.accept().unwrap().expect("a page");
        writer.publish(&counters());
        assert_eq!(reader.read(), Some(counters()));
        assert_eq!(reader.read().unwrap().total().packets_in, 10);
        assert_eq!(reader.busy_ns(), Some(counters().busy_ns));

        // A restarted host offers another page.
        let second = PageReader::create().unwrap();
        second.offer(&path).unwrap();
        let writer = listener.accept().unwrap().expect("the second page");
        writer.publish(&counters());
        assert_eq!(writer.cpu_limit(), None);
        second.set_cpu_limit(0.15);
        assert_eq!(writer.cpu_limit(), Some(0.15));
        assert_eq!(second.read(), Some(counters()));
        drop(listener);
        assert!(!path.exists(), "the socket goes with its listener");
    }

    fn pair() -> (PageReader, PageWriter) {
        let reader = PageReader::create().unwrap();
        let writer = PageWriter::new(reader.memfd.try_clone().unwrap()).unwrap();
        (reader, writer)
    }

    fn metric(stage: usize, name: &str, kind: MetricKind) -> MetricName<'_> {
        MetricName { stage, name, kind }
    }

    #[test]
    fn functions_are_named_once_and_counted() {
        let (reader, writer) = pair();
        writer.publish(&counters());
        assert!(reader.functions().is_empty(), "one that does not name them");
        let longest = "a".repeat(NAME_BYTES - 1);
        writer.name_functions(
            ["firewall", "nat_44"],
            [
                metric(1, "mappings", MetricKind::Gauge),
                metric(0, "denied", MetricKind::Reason),
                metric(1, &longest, MetricKind::Counter),
            ],
        );
        let of_second = StageCounters::from_words(std::array::from_fn(|w| w as u64 + 1));
        writer.publish_function(1, &of_second);
        for metric in 0..4 {
            writer.publish_metric(metric, 100 + metric as u64);
        }
        let report = |name: &str, kind, value| MetricReport {
            name: name.to_owned(),
            kind,
            value,
        };
        let expected = [
            StageReport {
                stage: 0,
                name: "firewall".to_owned(),
                counters: StageCounters::default(),
                metrics: vec![report("denied", MetricKind::Reason, 101)],
            },
            StageReport {
                stage: 1,
                name: "nat_44".to_owned(),
                counters: of_second,
                metrics: vec![
                    report("mappings", MetricKind::Gauge, 100),
                    report(&longest, MetricKind::Counter, 102),
                ],
            },
        ];
        assert_eq!(reader.functions(), expected);
        assert_eq!(
            reader.read(),
            Some(counters()),
            "the ports have words of their own"
        );
    }

    #[test]
    fn what_has_no_room_is_left_out() {
        let (reader, writer) = pair();
        writer.publish(&counters());
        let names: Vec<String> = (0..60).map(|k| format!("metric_{k}")).collect();
        let metrics = names.iter().map(|name| metric(0, name, MetricKind::Counter));
        writer.name_functions(["forward"; 9], metrics);
        writer.publish_function(8, &StageCounters::default());
        writer.publish_metric(59, 1);
        let functions = reader.functions();
        assert_eq!(
            (functions.len(), functions[0].metrics.len()),
            (STAGES_LIMIT, METRICS_LIMIT)
        );
        assert_eq!(reader.page.load(word::METRICS_LEFT_OUT), 10);
    }

    #[test]
    fn names_of_a_hostile_function_are_left_out() {
        let (reader, writer) = pair();
        writer.publish(&counters());
        writer.name_functions(
            ["Fire\"wall", "", "real"],
            [
                metric(2, "same", MetricKind::Counter),
                metric(2, "same", MetricKind::Counter),
                metric(2, "two words", MetricKind::Counter),
                metric(200, "nowhere", MetricKind::Counter),
            ],
        );
        // A name without an end.
        for word in 0..NAME_WORDS {
            let at = STAGE_BASE + 2 * STAGE_WORDS;
            assert!(reader.page.load_name(at).is_some());
            writer.page.store(
                METRIC_BASE + 2 * METRIC_WORDS + word,
                u64::from_ne_bytes([b'a'; 8]),
            );
        }
        let functions = reader.functions();
        assert_eq!(functions.len(), 1);
        assert_eq!((functions[0].stage, functions[0].name.as_str()), (0, "real"));
        assert_eq!(functions[0].metrics.len(), 1);
    }

    #[test]
    fn the_function_cannot_shrink_the_memory() {
        let reader = PageReader::create().unwrap();
        assert_eq!(rustix::fs::ftruncate(&reader.memfd, 0), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(&reader.memfd, 8192), Err(Errno::PERM));
        assert_eq!(
            rustix::fs::fcntl_add_seals(&reader.memfd, SealFlags::WRITE),
            Err(Errno::PERM)
        );
    }

    #[test]
    fn symbolic_links_and_files_are_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().join("real.sock");
        let _listener = PageListener::bind(&real).unwrap();
        let link = dir.path().join("page.sock");
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, b"x").unwrap();
        let reader = PageReader::create().unwrap();
        assert!(matches!(reader.offer(&link), Err(Error::NotASocket { .. })));
        assert!(matches!(reader.offer(&file), Err(Error::NotASocket { .. })));
        assert!(matches!(
            reader.offer(&dir.path().join("none")),
            Err(Error::Socket {
                source: Errno::NOENT,
                ..
            })
        ));
    }

    #[test]
    fn the_function_rejects_unsealed_memory() {
        let memfd = rustix::fs::memfd_create("x", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&memfd, SIZE as u64).unwrap();
        assert!(matches!(PageWriter::new(memfd), Err(Error::NotAPage(_))));
        let short = rustix::fs::memfd_create("x", MemfdFlags::ALLOW_SEALING).unwrap();
        assert!(matches!(PageWriter::new(short), Err(Error::NotAPage(_))));
    }

    #[test]
    fn arbitrary_page_contents_never_panic() {
        let reader = PageReader::create().unwrap();
        for at in 0..WORDS {
            reader.page.store(at, u64::MAX);
        }
        assert_eq!(reader.read(), None);
        reader.page.store(word::MAGIC, MAGIC);
        reader.page.store(word::VERSION, VERSION);
        let read = reader.read().unwrap();
        assert_eq!(read.port_count, PORTS_LIMIT);
        assert_eq!(read.total().dropped(), u64::MAX);
        assert!(reader.functions().is_empty());
        reader.page.store(word::FUNCTIONS, FUNCTIONS);
        assert!(reader.functions().is_empty());
        // Bytes of which most are letters, so that there are names.
        let mut random = 7_u64;
        let mut seen = 0;
        for _ in 0..2_000 {
            for at in PORT_BASE..WORDS {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let bytes = random
                    .to_ne_bytes()
                    .map(|byte| b"ab_0\0\0\"\xff"[usize::from(byte >> 5)]);
                reader.page.store(at, u64::from_ne_bytes(bytes));
            }
            for k in 0..METRICS_LIMIT {
                reader
                    .page
                    .store(METRIC_BASE + METRIC_WORDS * k + NAME_WORDS, k as u64 * 37);
            }
            for (number, of) in reader.functions().iter().enumerate() {
                assert_eq!(of.stage, number);
                let names = of.metrics.iter().map(|metric| &metric.name).chain([&of.name]);
                for name in names {
                    seen += 1;
                    let is_letter = |of: u8| matches!(of, b'a'..=b'z' | b'0'..=b'9' | b'_');
                    assert!((1..NAME_BYTES).contains(&name.len()) && name.bytes().all(is_letter));
                }
            }
        }
        assert!(seen > 1_000, "{seen}");
    }
}
