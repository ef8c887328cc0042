//! What can go wrong, each with what to do about it where there is something to do.

use std::io;
use std::path::PathBuf;

/// Why a link could not be made or was lost.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A limit of this crate or of the protocol is exceeded by the caller's configuration.
    #[error("memif configuration: {0}")]
    Configuration(&'static str),
    /// Nobody listens on the socket (yet): worth trying again.
    #[error("nobody listens on {}: {source}", path.display())]
    NotListening {
        /// The socket's path.
        path: PathBuf,
        /// What the kernel said: no such file, or connection refused.
        source: io::Error,
    },
    /// Something else lies where the socket should: a link is not followed, since whoever owns the directory could make it
    /// name any socket of this machine.
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
    /// The process or the machine has no file descriptor left.
    #[error(
        "no file descriptor left (limit of this process: {limit}): raise it with `ulimit -n`; a link takes {per_link}"
    )]
    FileDescriptors {
        /// The process' soft limit, 0 when unlimited or unknown.
        limit: u64,
        /// Descriptors that a link of one queue pair takes.
        per_link: u32,
    },
    /// The peer did not answer in time.
    #[error("the peer sent no {expected} in time")]
    Timeout {
        /// The message that was due.
        expected: &'static str,
    },
    /// The peer closed the control socket.
    #[error("the peer closed the control socket{}", if during.is_empty() { String::new() } else { format!(" before {during}") })]
    Closed {
        /// The message that was due; empty when the link stood.
        during: &'static str,
    },
    /// The peer sent a DISCONNECT.
    #[error("the peer disconnected: {reason}")]
    Disconnected {
        /// The peer's words.
        reason: String,
    },
    /// The peer broke the protocol.
    #[error("the peer broke the memif protocol: {0}")]
    Protocol(#[from] ProtocolError),
    /// The shared memory could not be made.
    #[error("cannot make {bytes} bytes of shared memory{}: {source}", if *hugepages { " from huge pages (are any reserved? see /proc/sys/vm/nr_hugepages)" } else { "" })]
    Memory {
        /// Bytes asked for.
        bytes: u64,
        /// Whether huge pages were asked for.
        hugepages: bool,
        /// What the kernel said.
        source: io::Error,
    },
    /// A system call failed.
    #[error("{doing}: {source}")]
    System {
        /// What was tried.
        doing: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

impl Error {
    /// Whether the same call may succeed a little later: nobody listened yet, the peer was still busy with an earlier link
    /// of this interface, or (DPDK while it starts) it listened before it had the interface.
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

    /// A failed system call; running out of file descriptors gets its own variant.
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

    /// [`Error::FileDescriptors`] with this process' limit.
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

/// How a peer broke the protocol during the handshake. The text goes to the peer in a DISCONNECT.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// A message has another length than 128 bytes.
    #[error("message of {bytes} bytes instead of 128")]
    MessageSize {
        /// Bytes received.
        bytes: usize,
    },
    /// A message type that does not exist.
    #[error("unknown message type {value}")]
    MessageType {
        /// The type field.
        value: u16,
    },
    /// A message that has no place at this point.
    #[error("unexpected {received}")]
    Unexpected {
        /// What came.
        received: &'static str,
    },
    /// The peer does not speak version 2.0.
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
        /// The mode field.
        mode: u8,
    },
    /// The interface id is not served here.
    #[error("interface id {interface_id} not found")]
    UnknownInterface {
        /// The id in INIT.
        interface_id: u32,
    },
    /// The interface id has a live link.
    #[error("already connected")]
    AlreadyConnected,
    /// The secret is missing or wrong.
    #[error("incorrect secret")]
    Secret,
    /// A message that must carry exactly one file descriptor carried another number.
    #[error("{message} with {descriptors} file descriptors instead of one")]
    DescriptorCount {
        /// The message.
        message: &'static str,
        /// How many came.
        descriptors: usize,
    },
    /// More regions or rings than the limit, or an index out of order.
    #[error("{what} index {index} is out of order or above the limit of {limit}")]
    Index {
        /// "region" or "ring".
        what: &'static str,
        /// The index that the peer gave.
        index: u16,
        /// How many there may be.
        limit: u16,
    },
    /// A region is not sealed against shrinking: the peer could pull memory from under this process.
    #[error("region {index} is not sealed against shrinking (F_SEAL_SHRINK); with DPDK use zero-copy=no")]
    UnsealedRegion {
        /// The region.
        index: u16,
    },
    /// A region is empty, above the limit, or its file is smaller than the peer says.
    #[error("region {index} of {bytes} bytes: its file has {file_bytes}, the limit is {limit}")]
    RegionSize {
        /// The region.
        index: u16,
        /// Bytes that the peer declares.
        bytes: u64,
        /// Bytes that the file has.
        file_bytes: u64,
        /// Bytes that are allowed.
        limit: u64,
    },
    /// A ring does not lie within its region, is not aligned, or has an impossible size.
    #[error("ring {index}: 2^{log2_slots} slots at offset {offset} of region {region} do not fit there")]
    RingPlace {
        /// The ring's index.
        index: u16,
        /// The region it should lie in.
        region: u16,
        /// Its first byte there.
        offset: u32,
        /// Its size.
        log2_slots: u8,
    },
    /// A ring does not begin with memif's cookie.
    #[error("ring {index} does not begin with the memif cookie")]
    Cookie {
        /// The ring's index.
        index: u16,
    },
    /// There are rings in one direction only, or none.
    #[error(
        "{client_to_server} rings to the server and {server_to_client} back: as many each way wanted, at least one"
    )]
    RingCount {
        /// Rings from client to server.
        client_to_server: usize,
        /// Rings from server to client.
        server_to_client: usize,
    },
    /// The descriptor for interrupts is neither an eventfd nor a socket.
    #[error("the interrupt descriptor of ring {index} is neither an eventfd nor a socket")]
    InterruptDescriptor {
        /// The ring's index.
        index: u16,
    },
}

/// Why a frame was not put into a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum TxError {
    /// The consumer has not emptied enough slots.
    #[error("ring full")]
    Full,
    /// The frame needs more slots than the ring has, or is empty.
    #[error("frame of a length that this ring cannot carry")]
    TooLarge,
    /// The peer broke the rules of the ring; nothing can be sent on this link any more.
    #[error("the peer broke the rules of the ring")]
    Violated,
}

/// Why a packet taken from a ring is not given to the caller. It is gone from the ring, and counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum RxError {
    /// A descriptor points outside of the shared memory, is longer than its buffer, or a chain does not end.
    #[error("bad descriptor")]
    BadDescriptor,
    /// The packet is longer than the caller's buffer.
    #[error("packet of {len} bytes is longer than the buffer")]
    TooLarge {
        /// The packet's bytes.
        len: usize,
    },
}
