//! What can fail.

use std::fmt;

/// An operating system's error number, as DPDK gives it.
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

/// What can fail in this crate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A device string that names no kind of device.
    #[error("device {given:?} {problem}: write {write}")]
    Device {
        /// What was given.
        given: String,
        /// What is wrong with it.
        problem: &'static str,
        /// What to write instead.
        write: String,
    },
    /// [`Eal::init`](crate::Eal::init) was called before in this process.
    #[error("DPDK is already initialised in this process")]
    EalRuns,
    /// An argument that EAL would end the process for, or that no C string can hold.
    #[error("DPDK argument {0:?} cannot be passed on")]
    EalArgument(String),
    /// EAL did not start; its log on standard error says more.
    #[error("DPDK did not start ({0}) with the arguments {1}; what it says stands above")]
    EalInit(Errno, String),
    /// A thread for EAL could not be started.
    #[error("no thread for DPDK: {0}")]
    Thread(Errno),
    /// The calling thread is registered already, or is one of EAL's own.
    #[error("this thread is known to DPDK already")]
    ThreadRegistered,
    /// More pools than the limit.
    #[error("no more than {0} mempools in one process")]
    TooManyPools(usize),
    /// A pool's figures that cannot be.
    #[error("a mempool of {mbufs} mbufs of {frame_bytes} B is not possible: {why}")]
    PoolConfig {
        /// How many mbufs were asked for.
        mbufs: u32,
        /// Room for a frame in each, in bytes.
        frame_bytes: u16,
        /// Why not.
        why: &'static str,
    },
    /// The pool is empty.
    #[error("no free mbuf")]
    NoMbuf,
    /// A frame that is larger than an mbuf of this pool.
    #[error("a frame of {frame_bytes} B does not fit an mbuf with room for {room_bytes} B")]
    FrameTooLarge {
        /// The frame's length in bytes.
        frame_bytes: usize,
        /// The room in bytes.
        room_bytes: usize,
    },
    /// The device is in use already.
    #[error("device {0} is in use already")]
    PortInUse(String),
    /// The device came up without a port.
    #[error("device {0} has no network port")]
    NoPort(String),
    /// The device has several ports.
    #[error("device {device} has {ports} ports, one is expected: name one, such as {device},representor=0")]
    SeveralPorts {
        /// The device.
        device: String,
        /// How many ports it has.
        ports: usize,
    },
    /// Queues of the port are still in use.
    #[error("{queues} queues of port {port} are still in use")]
    QueuesInUse {
        /// The port.
        port: String,
        /// How many queues.
        queues: usize,
    },
    /// More queues than the device has.
    #[error("{port} has {has} {direction} queues, {wanted} were asked for")]
    TooManyQueues {
        /// The port.
        port: String,
        /// `receive` or `transmit`.
        direction: &'static str,
        /// What it has.
        has: u16,
        /// What was asked for.
        wanted: u16,
    },
    /// A call that DPDK refused.
    #[error("{what} {device}: {errno}")]
    Refused {
        /// What was tried.
        what: &'static str,
        /// On what.
        device: String,
        /// Why not.
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
