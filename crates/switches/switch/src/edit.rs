//! What a switch changes in packets on their way to an instance and back. What a driver can do it declares in
//! [`Capabilities::edits`](crate::Capabilities::edits).

use std::net::IpAddr;

use model::EditKind;

/// What the switch changes in a packet. What undoes it follows from the slot alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Edit {
    /// Nothing.
    #[default]
    None,
    /// Its MAC addresses, those that are given.
    Mac {
        /// The destination.
        destination: Option<[u8; 6]>,
        /// The source.
        source: Option<[u8; 6]>,
    },
    /// The address and port of the service's end: to these, or back from them. No switch does that yet.
    Translate {
        /// The address.
        address: IpAddr,
        /// The port, where that changes, too.
        port: Option<u16>,
    },
    /// Its place: it is put into a tunnel, or taken out of it. No switch does that for an instance with other ports; a
    /// port of the kind `tunnel` does it by itself.
    Tunnel {
        /// The near end.
        local: IpAddr,
        /// The far end.
        remote: IpAddr,
        /// The network's number.
        network: u32,
    },
}

/// The edits of an instance's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Edits {
    /// On the way to the instance.
    pub to_instance: Edit,
    /// On the way back, before the packet is counted with its flow.
    pub to_uplink: Edit,
}

impl Edit {
    /// Of which kind it is; [`None`] where nothing changes.
    pub fn kind(&self) -> Option<EditKind> {
        match self {
            Edit::None => None,
            Edit::Mac { .. } => Some(EditKind::Mac),
            Edit::Translate { .. } => Some(EditKind::Translate),
            Edit::Tunnel { .. } => Some(EditKind::Tunnel),
        }
    }
}
