//! The contract of a fast path: who writes rules, who opens them, and what is shared.

use std::net::IpAddr;
use std::os::fd::BorrowedFd;

/// The packets of a flow in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Way {
    /// The entrance by which they come.
    pub entrance: u32,
    /// Where they come from.
    pub src: IpAddr,
    /// Where they go.
    pub dst: IpAddr,
    /// The source port and the destination port.
    pub ports: [u16; 2],
    /// The IP protocol: TCP or UDP.
    pub protocol: u8,
    /// Their VLAN; 0: they have no tag.
    pub vlan: u16,
}

/// Where the fast path sends the packets of a [`Way`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// The index of the interface.
    pub ifindex: u32,
    /// Not out by it, but into the network namespace of its other end.
    pub to_peer: bool,
    /// The new destination and source.
    pub macs: [[u8; 6]; 2],
    /// Packets that do not come from this neighbour are passed up.
    pub from: Option<[u8; 6]>,
    /// The VLAN of what leaves; 0: it has no tag.
    pub vlan: u16,
}

/// What a fast path cannot do, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FastError {
    /// What was tried.
    pub what: String,
    /// The system's answer.
    pub reason: String,
}

impl std::fmt::Display for FastError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "fast path: {}: {}", self.what, self.reason)
    }
}

impl std::error::Error for FastError {}

/// A fast path in front of the rings of one worker. Three threads use it.
///
/// 1. The control plane has it take over interfaces: [`FastPath::enter`], before the worker has the socket.
/// 2. Who writes rules inserts them, shut, and removes them. These calls make system calls.
/// 3. The worker opens and shuts rules, reads counts and numbers, and makes markers. These calls read and write memory.
///
/// Entrances and passages have numbers, which their users give: the limits are [`FastPath::entrances`] and
/// [`FastPath::passages`]. A number beyond has no effect.
pub trait FastPath: Send + Sync {
    /// Entrances at most.
    fn entrances(&self) -> u32;

    /// Passages at most.
    fn passages(&self) -> u32;

    /// Has the fast path take packets in front of that socket of an interface. At an interface with a way out, markers are
    /// sent back in.
    ///
    /// # Errors
    /// The system's.
    fn enter(
        &self,
        interface: &str,
        entrance: u32,
        socket: BorrowedFd<'_>,
        is_way_out: bool,
    ) -> Result<u32, FastError>;

    /// Inserts a rule, shut. What is counted of its passage goes on.
    ///
    /// # Errors
    /// The system's.
    fn insert(&self, passage: u32, way: &Way, exit: &Exit) -> Result<(), FastError>;

    /// Removes a rule, which is shut.
    ///
    /// # Errors
    /// The system's.
    fn remove(&self, way: &Way) -> Result<(), FastError>;

    /// Waits until no packet is on its way by a rule that was removed before.
    fn settle(&self);

    /// Says that the worker is there, for so many nanoseconds of monotonic time: after that nothing is taken.
    fn attend(&self, until_ns: u64);

    /// Whether something that was decided was not carried out, so that nothing is taken any more. Tries to repair that.
    ///
    /// # Errors
    /// The system's.
    fn repair(&self) -> Result<bool, FastError>;

    /// Opens a rule. It takes packets when the flow's earlier ones are done.
    fn open(&self, passage: u32, entrance: u32);

    /// Shuts it: the next packet is passed up.
    fn shut(&self, passage: u32);

    /// Packets and bytes that were taken by that passage, ever.
    fn counted(&self, passage: u32) -> (u64, u64);

    /// CPUs that may put packets into a ring.
    fn cpus(&self) -> usize;

    /// How many packets of an entrance were passed up, and numbered.
    fn passed(&self, entrance: u32) -> u64;

    /// How many that CPU has begun to put into the ring.
    fn begun(&self, entrance: u32, cpu: usize) -> u64;

    /// How many it is through with.
    fn placed(&self, entrance: u32, cpu: usize) -> u64;

    /// The marker that says, behind what was committed, that all up to this number is done.
    fn marker(&self, entrance: u32, number: u64) -> [u8; 60];
}
