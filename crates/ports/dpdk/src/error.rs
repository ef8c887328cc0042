//! The crate's errors.

use std::fmt;

/// An operating system error number, as returned by DPDK.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", std::io::Error::from_raw_os_error(self.0))
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// The crate's error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An invalid device string.
    #[error("device {given:?} {problem}: write {write}")]
    Device {
        /// The device string.
        given: String,
        /// The problem.
        problem: &'static str,
        /// The correction.
        write: String,
    },
    /// [`Eal::init`](crate::Eal::init) was called before in this process.
    #[error("DPDK is already initialised in this process")]
    EalRuns,
    /// An argument that would make EAL exit, or that no C string can hold.
    #[error("DPDK argument {0:?} is not allowed")]
    EalArgument(String),
    /// EAL did not start; its log on standard error has the details.
    #[error("DPDK did not start ({0}) with the arguments {1}; see its log above")]
    EalInit(Errno, String),
    /// No thread for EAL could be started.
    #[error("cannot start a thread for DPDK: {0}")]
    Thread(Errno),
    /// The calling thread is registered already, or is one of EAL's own.
    #[error("this thread is already registered with DPDK")]
    ThreadRegistered,
    /// More pools than the limit.
    #[error("no more than {0} mempools in one process")]
    TooManyPools(usize),
    /// An impossible pool configuration.
    #[error("a mempool of {mbufs} mbufs of {frame_bytes} B is not possible: {why}")]
    PoolConfig {
        /// Requested mbufs.
        mbufs: u32,
        /// Requested room per frame, in bytes.
        frame_bytes: u16,
        /// The reason.
        why: &'static str,
    },
    /// The pool is empty.
    #[error("no free mbuf")]
    NoMbuf,
    /// A frame that does not fit an mbuf of this pool.
    #[error("a frame of {frame_bytes} B does not fit an mbuf with room for {room_bytes} B")]
    FrameTooLarge {
        /// The frame's length in bytes.
        frame_bytes: usize,
        /// The room in bytes.
        room_bytes: usize,
    },
    /// The device is already in use.
    #[error("device {0} is in use already")]
    PortInUse(String),
    /// The device has no port.
    #[error("device {0} has no network port")]
    NoPort(String),
    /// The device has several ports.
    #[error("device {device} has {ports} ports, one is expected: name one, such as {device},representor=0")]
    SeveralPorts {
        /// The device.
        device: String,
        /// Number of ports.
        ports: usize,
    },
    /// Queues of the port are still in use.
    #[error("{queues} queues of port {port} are still in use")]
    QueuesInUse {
        /// The port.
        port: String,
        /// Number of queues.
        queues: usize,
    },
    /// More queues than the device supports.
    #[error("{port} has {has} {direction} queues, but {wanted} were requested")]
    TooManyQueues {
        /// The port.
        port: String,
        /// `receive` or `transmit`.
        direction: &'static str,
        /// Available queues.
        has: u16,
        /// Requested queues.
        wanted: u16,
    },
    /// DPDK refused a call.
    #[error("{what} {device}: {errno}")]
    Refused {
        /// The operation.
        what: &'static str,
        /// The device.
        device: String,
        /// The error number.
        errno: Errno,
    },
}

impl Error {
    #[cfg(feature = "link")]
    pub(crate) fn refused(what: &'static str, device: &str, ret: i32) -> Error {
        Error::Refused {
            what,
            device: device.to_owned(),
            errno: Errno(ret.saturating_abs()),
        }
    }
}
