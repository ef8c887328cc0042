//! Where an instance's data ports are.

use std::path::PathBuf;

use model::Nanos;

/// A kind of ports, by the word for it. A driver declares those that it can connect
/// ([`Capabilities::ports`](crate::Capabilities::ports)), and reads a [`PortSpec`] of that kind as it likes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortKind(pub &'static str);

impl PortKind {
    /// The instance listens on a memif socket, the [`PortSpec::address`]; its ports are the interfaces from 0 on.
    pub const MEMIF: PortKind = PortKind("memif");
    /// The switch made the ports of the slot when it started, and the instance was told of them.
    pub const PREPARED: PortKind = PortKind("prepared");
    /// A sink that takes everything.
    pub const NULL: PortKind = PortKind("null");
}

/// An instance's data ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSpec {
    /// What they are. What follows counts where the kind has such a thing.
    pub kind: PortKind,
    /// Where they are, as the switch sees it.
    pub address: PathBuf,
    /// Data ports: one per uplink of the service, one or two.
    pub data_ports: u8,
    /// Queue pairs per port; a switch may use fewer.
    pub queues: u16,
    /// Slots per ring, a power of two.
    pub ring_slots: u32,
    /// Bytes per buffer; longer frames are chained.
    pub buffer_bytes: u32,
    /// How long to go on trying: the instance may still be starting.
    pub deadline: Nanos,
}

impl PortSpec {
    /// Slots per ring where nothing else is said.
    pub const RING_SLOTS: u32 = 1024;
    /// Bytes per buffer where nothing else is said: a frame of 1,518 bytes with room to spare.
    pub const BUFFER_BYTES: u32 = 2048;
    /// How long an attempt to connect goes on where nothing else is said.
    pub const DEADLINE: Nanos = Nanos::from_secs(10);

    /// One port of that kind with one queue pair, of the usual size.
    pub fn new(kind: PortKind, address: impl Into<PathBuf>) -> PortSpec {
        PortSpec {
            kind,
            address: address.into(),
            data_ports: 1,
            queues: 1,
            ring_slots: Self::RING_SLOTS,
            buffer_bytes: Self::BUFFER_BYTES,
            deadline: Self::DEADLINE,
        }
    }
}
