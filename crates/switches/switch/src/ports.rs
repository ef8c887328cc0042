//! Where an instance's data ports are.

use std::net::SocketAddr;
use std::path::PathBuf;

use model::{Nanos, PortKind};

/// An instance's data ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSpec {
    /// What they are, one of [`Capabilities::ports`](crate::Capabilities::ports). What follows counts where such
    /// ports have it; a switch with [`Capabilities::prepared_ports`](crate::Capabilities::prepared_ports) has made
    /// them before.
    pub kind: PortKind,
    /// Where they are, as the switch sees it.
    pub address: PathBuf,
    /// Where others run it, if [`kind`](Self::kind) is [`PortKind::Routed`].
    pub back_end: Option<SocketAddr>,
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
            back_end: None,
            data_ports: 1,
            queues: 1,
            ring_slots: Self::RING_SLOTS,
            buffer_bytes: Self::BUFFER_BYTES,
            deadline: Self::DEADLINE,
        }
    }
}
