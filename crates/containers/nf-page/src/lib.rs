//! A page of shared memory in which a function in a container publishes its counters, so that the host reads
//! them without a system call. The page is untrusted: the host owns the memory, sealed so that the function
//! cannot shrink it, and every value is only the function's claim.
//!
//! Key types: [`PageReader`] (host), [`PageListener`] and [`PageWriter`] (function), [`NfCounters`].
//!
//! 1. The function binds a unix datagram socket in the directory shared with the host
//!    ([`PageListener::bind`]).
//! 2. The host creates a page ([`PageReader::create`]): a memfd of [`SIZE`] bytes, sealed against shrinking
//!    and growing.
//! 3. The host sends it ([`PageReader::offer`]), and the function maps it ([`PageListener::accept`]) and
//!    writes to it. A restarted host offers a new page, in which the function continues its totals.
//! 4. The collector reads it ([`PageReader::read`]) with a few loads.
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
//! | 16 + 16 k | port k: packets in |
//! | 17 + 16 k | port k: bytes in |
//! | 18 + 16 k | port k: packets out |
//! | 19 + 16 k | port k: bytes out |
//! | 20 + 16 k | port k: packets dropped because the ring was full |
//! | 21 + 16 k | port k: packets dropped because of an invalid descriptor |
//! | 22 + 16 k | port k: packets dropped because the port had no peer |
//! | 23 + 16 k | port k: packets stamped |
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
}

const _: () = assert!(PORT_BASE + PORTS_LIMIT * PORT_WORDS <= WORDS);

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
    /// Packets stamped with the instance id.
    pub stamped: u64,
}

impl PortCounters {
    fn to_words(self) -> [u64; 8] {
        [
            self.packets_in,
            self.bytes_in,
            self.packets_out,
            self.bytes_out,
            self.dropped_ring_full,
            self.dropped_malformed,
            self.dropped_unconnected,
            self.stamped,
        ]
    }

    fn from_words(w: [u64; 8]) -> PortCounters {
        PortCounters {
            packets_in: w[0],
            bytes_in: w[1],
            packets_out: w[2],
            bytes_out: w[3],
            dropped_ring_full: w[4],
            dropped_malformed: w[5],
            dropped_unconnected: w[6],
            stamped: w[7],
        }
    }

    /// Counts packets that went to the switch.
    pub fn sent(&mut self, packets: u64, bytes: u64) {
        self.packets_out += packets;
        self.bytes_out += bytes;
    }

    /// The sum of all drops.
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
}

impl NfCounters {
    /// The sum over all ports.
    pub fn total(&self) -> PortCounters {
        let mut total = [0u64; 8];
        for port in &self.ports[..self.port_count.min(PORTS_LIMIT)] {
            for (sum, word) in total.iter_mut().zip(port.to_words()) {
                *sum = sum.saturating_add(word);
            }
        }
        PortCounters::from_words(total)
    }
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
        if page.words()[word::MAGIC].load(Ordering::Acquire) != MAGIC || page.load(word::VERSION) != VERSION {
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
        })
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
        page.words()[word::MAGIC].store(MAGIC, Ordering::Release);
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
        reader.offer(&path).unwrap();
        let writer = listener.accept().unwrap().expect("a page");
        writer.publish(&counters());
        assert_eq!(reader.read(), Some(counters()));
        assert_eq!(reader.read().unwrap().total().packets_in, 10);

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
    }
}
