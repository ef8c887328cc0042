//! The crate's errors, with the remedy where there is one.

use std::io;
use std::path::PathBuf;

/// Why a link could not be established or was lost.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The caller's configuration exceeds a limit of this crate or the protocol.
    #[error("memif configuration: {0}")]
    Configuration(&'static str),
    /// No process listens on the socket (yet): worth retrying.
    #[error("no listener on {}: {source}", path.display())]
    NotListening {
        /// The socket's path.
        path: PathBuf,
        /// What the kernel said: no such file, or connection refused.
        source: io::Error,
    },
    /// Something else lies where the socket should: a link is not followed, since whoever owns the directory could
    /// make it name any socket of this machine.
    #[error("{} is {found}, not a socket: the server must bind its socket there", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
        /// What lies there.
        found: &'static str,
    },
    /// Another process listens on the path already.
    #[error("{} is in use: another process listens on it", path.display())]
    AddressInUse {
        /// The socket's path.
        path: PathBuf,
    },
    /// The process or the machine has no file descriptors left.
    #[error(
        "no file descriptor left (limit of this process: {limit}): raise it with `ulimit -n`; a link takes {per_link}"
    )]
    FileDescriptors {
        /// The process's soft limit, 0 if unlimited or unknown.
        limit: u64,
        /// Descriptors of a link with one queue pair.
        per_link: u32,
    },
    /// The peer did not reply in time.
    #[error("the peer sent no {expected} in time")]
    Timeout {
        /// The expected message.
        expected: &'static str,
    },
    /// The peer closed the control socket.
    #[error("the peer closed the control socket{}", if during.is_empty() { String::new() } else { format!(" before {during}") })]
    Closed {
        /// The expected message; empty if the link was established.
        during: &'static str,
    },
    /// The peer sent a DISCONNECT.
    #[error("the peer disconnected: {reason}")]
    Disconnected {
        /// The peer's reason.
        reason: String,
    },
    /// The peer violated the protocol.
    #[error("the peer violated the memif protocol: {0}")]
    Protocol(#[from] ProtocolError),
    /// The shared memory could not be allocated.
    #[error("cannot allocate {bytes} bytes of shared memory{}: {source}", if *hugepages { " from huge pages (are any reserved? see /proc/sys/vm/nr_hugepages)" } else { "" })]
    Memory {
        /// Requested bytes.
        bytes: u64,
        /// Whether huge pages were requested.
        hugepages: bool,
        /// The kernel's error.
        source: io::Error,
    },
    /// What was kept of a link cannot be used.
    #[error("the link that was kept cannot go on: {what}")]
    Kept {
        /// What is wrong with it.
        what: &'static str,
    },
    /// A system call failed.
    #[error("{doing}: {source}")]
    System {
        /// The operation.
        doing: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

impl Error {
    /// Whether a retry may succeed: no process listened yet, the peer was still ending an earlier link of
    /// this interface, or (DPDK while it starts) it listened before it had the interface.
    pub fn is_worth_retrying(&self) -> bool {
        match self {
            Error::NotListening { .. } | Error::Timeout { .. } | Error::Closed { .. } => true,
            Error::Disconnected { reason } => {
                reason.eq_ignore_ascii_case("already connected")
                    || reason.eq_ignore_ascii_case("ID not found")
            }
            _ => false,
        }
    }

    /// A failed system call; running out of file descriptors has its own variant.
    pub(crate) fn system(doing: &'static str, errno: rustix::io::Errno) -> Error {
        if errno == rustix::io::Errno::MFILE || errno == rustix::io::Errno::NFILE {
            Error::out_of_descriptors()
        } else {
            Error::System {
                doing,
                source: errno.into(),
            }
        }
    }

    /// [`Error::FileDescriptors`] with this process's limit.
    pub(crate) fn out_of_descriptors() -> Error {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile)
            .current
            .unwrap_or(0);
        Error::FileDescriptors {
            limit,
            per_link: crate::client::DESCRIPTORS_PER_LINK,
        }
    }
}

/// A protocol violation by the peer during the handshake. The text is sent to the peer in a DISCONNECT.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// A message of the wrong length.
    #[error("message of {bytes} bytes instead of 128")]
    MessageSize {
        /// Bytes received.
        bytes: usize,
    },
    /// An unknown message type.
    #[error("unknown message type {value}")]
    MessageType {
        /// The type field.
        value: u16,
    },
    /// A message out of sequence.
    #[error("unexpected {received}")]
    Unexpected {
        /// The message.
        received: &'static str,
    },
    /// The peer does not support version 2.0.
    #[error("incompatible memif version {min:#06x} to {max:#06x}, 2.0 wanted")]
    Version {
        /// Lowest version of the peer.
        min: u16,
        /// Highest version of the peer.
        max: u16,
    },
    /// Not an Ethernet interface.
    #[error("interface mode {mode} is not Ethernet")]
    Mode {
        /// The requested mode.
        mode: u8,
    },
    /// No such interface id.
    #[error("interface id {interface_id} not found")]
    UnknownInterface {
        /// The id in INIT.
        interface_id: u32,
    },
    /// The interface id has an active link.
    #[error("already connected")]
    AlreadyConnected,
    /// A missing or wrong secret.
    #[error("incorrect secret")]
    Secret,
    /// A message with a number of file descriptors other than one.
    #[error("{message} with {descriptors} file descriptors instead of one")]
    DescriptorCount {
        /// The message.
        message: &'static str,
        /// Number of descriptors.
        descriptors: usize,
    },
    /// Too many regions or rings, or an index out of order.
    #[error("{what} index {index} is out of order or above the limit of {limit}")]
    Index {
        /// "region" or "ring".
        what: &'static str,
        /// The peer's index.
        index: u16,
        /// The limit.
        limit: u16,
    },
    /// A region that is not sealed against shrinking: the peer could remove memory that this process maps.
    #[error("region {index} is not sealed against shrinking (F_SEAL_SHRINK); with DPDK use zero-copy=no")]
    UnsealedRegion {
        /// The region.
        index: u16,
    },
    /// A region that is empty, too large, or larger than its file.
    #[error("region {index} of {bytes} bytes: its file has {file_bytes}, the limit is {limit}")]
    RegionSize {
        /// The region.
        index: u16,
        /// Bytes declared by the peer.
        bytes: u64,
        /// Bytes of the file.
        file_bytes: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// A ring outside its region, misaligned, or of an impossible size.
    #[error("ring {index}: 2^{log2_slots} slots at offset {offset} of region {region} do not fit there")]
    RingPlace {
        /// The ring's index.
        index: u16,
        /// Its region.
        region: u16,
        /// Its offset in the region.
        offset: u32,
        /// Its size.
        log2_slots: u8,
    },
    /// A ring without memif's cookie.
    #[error("ring {index} does not begin with the memif cookie")]
    Cookie {
        /// The ring's index.
        index: u16,
    },
    /// Not the same number of rings in both directions, or none.
    #[error(
        "{client_to_server} rings to the server and {server_to_client} back: as many each way wanted, at least one"
    )]
    RingCount {
        /// Rings from client to server.
        client_to_server: usize,
        /// Rings from server to client.
        server_to_client: usize,
    },
    /// An interrupt descriptor that is neither an eventfd nor a socket.
    #[error("the interrupt descriptor of ring {index} is neither an eventfd nor a socket")]
    InterruptDescriptor {
        /// The ring's index.
        index: u16,
    },
}

/// Why a frame was not added to a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum TxError {
    /// The ring has too few free slots.
    #[error("ring full")]
    Full,
    /// The frame is empty, or needs more slots than the ring has.
    #[error("frame of a length that this ring cannot carry")]
    TooLarge,
    /// The peer violated the protocol; nothing can be sent on this link any more.
    #[error("the peer violated the ring protocol")]
    Violated,
}

/// Why a packet was not delivered. It was removed from the ring and counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum RxError {
    /// A descriptor outside the shared memory or longer than its buffer, or an endless chain.
    #[error("bad descriptor")]
    BadDescriptor,
    /// The packet is longer than the caller's buffer.
    #[error("packet of {len} bytes is longer than the buffer")]
    TooLarge {
        /// Length of the packet.
        len: usize,
    },
}
