//! What the table gives back: outcomes, rows, counters, errors.

use model::{Direction, FlowKey, Nanos, ServiceId, Slot};

use crate::{Line, TimeoutClass};

/// The flags of a TCP header (byte 13) that the table follows.
pub mod tcp_flag {
    /// The sender has no more to send.
    pub const FIN: u8 = 0x01;
    /// Opens a connection.
    pub const SYN: u8 = 0x02;
    /// Ends it at once.
    pub const RST: u8 = 0x04;
    /// Acknowledges.
    pub const ACK: u8 = 0x10;
}

/// Where a TCP flow is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TcpState {
    /// Not a TCP flow.
    None,
    /// Opened, nothing acknowledged yet.
    Handshake,
    /// In use.
    Established,
    /// The key's first endpoint has sent its FIN.
    FinForward,
    /// The key's second endpoint has sent its FIN.
    FinReverse,
    /// Reset, or closed by both; lingers for what is still on its way.
    Closed,
}

impl TcpState {
    /// The word in tables; `-` for what is not TCP.
    pub const fn name(self) -> &'static str {
        match self {
            TcpState::None => "-",
            TcpState::Handshake => "handshake",
            TcpState::Established => "established",
            TcpState::FinForward => "fin_forward",
            TcpState::FinReverse => "fin_reverse",
            TcpState::Closed => "closed",
        }
    }
}

/// What packets changed in the life of their flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowChange {
    /// Nothing.
    None,
    /// A TCP handshake was acknowledged.
    Established,
    /// A TCP flow ended; it lingers.
    Closed,
    /// A SYN came for a TCP flow that had ended: this is a new flow, without pins.
    Reopened,
}

/// What counting packets tells of their flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// Where the packets' direction is pinned, after the change.
    pub pin: Slot,
    /// What changed.
    pub change: FlowChange,
}

/// Why a flow could not be entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// The table holds as many flows of that family as it can.
    Entries,
    /// The buckets in which this flow may lie are full, and no flow of the first one could move within the bounded work of
    /// an insertion. Less than one insertion in a million even into the last free entry.
    Index,
}

/// What one call of `expire` did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expiry {
    /// Flows that ended.
    pub flows: u32,
    /// Flows that were looked at.
    pub visited: u32,
    /// Whether flows may be due that the budget did not reach: call again soon.
    pub behind: bool,
}

/// How far a purge of a slot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Call again: entries are left that still name the slot.
    Pending,
    /// No entry names the slot; it can be used again.
    Done,
}

/// Where a dump goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DumpCursor {
    pub(crate) family: u8,
    pub(crate) entry: u32,
}

/// What the table knows of one flow. Pairs are indexed by direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowRow {
    /// The flow.
    pub key: FlowKey,
    /// The direction of its first packet.
    pub opener: Direction,
    /// The service that it belongs to.
    pub service: ServiceId,
    /// Where each direction is pinned.
    pub pins: [Slot; 2],
    /// When each direction was pinned to where it is, rounded down to 2.1 ms, where it is pinned and the table notes that.
    pub pinned_at: [Option<Nanos>; 2],
    /// Packets of each direction, modulo 2^40.
    pub packets: [u64; 2],
    /// Bytes of each direction, modulo 2^48.
    pub bytes: [u64; 2],
    /// Time since the last packet, in steps of 2.1 ms.
    pub idle: Nanos,
    /// Where it is in its life.
    pub tcp: TcpState,
    /// Packets that came back from its instance, where the table counts them.
    pub returned: Option<u64>,
    /// Packets dropped on the way there or back, where the table counts them.
    pub dropped: Option<u64>,
}

/// What happened in a table since it was made or attached. Flows now =
/// `attached + inserts - expired - purged_flows`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Look-ups that found their flow.
    pub hits: u64,
    /// Look-ups that did not.
    pub misses: u64,
    /// New flows.
    pub inserts: u64,
    /// TCP flows that began anew in the place of one that had ended.
    pub reopened: u64,
    /// Flows refused because every entry was in use.
    pub full_entries: u64,
    /// Flows refused because of their buckets ([`Full::Index`]).
    pub full_index: u64,
    /// Flows that were moved within the index to make room for another; their entries stayed where they were.
    pub relocations: u64,
    /// Flows that ended by their timeout, by [`TimeoutClass::index`].
    pub expired: [u64; TimeoutClass::COUNT],
    /// Flows ended by a purge of their own.
    pub purged_flows: u64,
    /// Flows that lost a pin to a purge of its slot.
    pub purged_pins: u64,
    /// Flows that lost a pin to the failure of its instance.
    pub failed_pins: u64,
    /// Flows that were given a new place after such a failure.
    pub expected_moves: u64,
    /// Pins to a slot that is being purged, or that does not exist; the flow has no pin then.
    pub refused_pins: u64,
    /// Flows taken over from storage.
    pub attached: u64,
    /// Entries found in storage that cannot be a flow.
    pub attach_dropped: u64,
}

impl Counters {
    /// Flows that ended by a timeout of any class.
    pub fn expired_flows(&self) -> u64 {
        self.expired.iter().sum()
    }

    /// Flows refused for want of room.
    pub fn full(&self) -> u64 {
        self.full_entries + self.full_index
    }
}

/// Why a table could not be made or attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// More flows than one table can hold.
    #[error("{flows} flows are more than the {limit} that a table can hold: use more workers")]
    Capacity {
        /// Asked for.
        flows: usize,
        /// Possible.
        limit: usize,
    },
    /// A timeout that the coarse time of an entry cannot express.
    #[error("the {} timeout of {} s is longer than {} s", class.name(), timeout.as_secs_f64(), crate::TimeoutPolicy::LIMIT.as_secs_f64())]
    Timeout {
        /// Which one.
        class: TimeoutClass,
        /// Asked for.
        timeout: Nanos,
    },
    /// The storage is too short.
    #[error(
        "the storage has {given} lines of {} bytes, the table needs {needed}",
        Line::BYTES
    )]
    StorageTooSmall {
        /// Lines needed.
        needed: usize,
        /// Lines given.
        given: usize,
    },
    /// The storage does not begin with a table.
    #[error("the storage holds no flow table")]
    NotATable,
    /// A table of another version of the layout.
    #[error("the storage holds a flow table of layout version {found}, this program has version {supported}")]
    LayoutVersion {
        /// In the storage.
        found: u64,
        /// Of this program.
        supported: u64,
    },
    /// The header contradicts its checksum or itself.
    #[error("the header of the flow table in the storage is damaged")]
    HeaderDamaged,
    /// The header speaks of more used entries than there are.
    #[error("the flow table in the storage claims {found} used entries of {limit}")]
    HighWater {
        /// In the header.
        found: u64,
        /// There are.
        limit: u64,
    },
}
