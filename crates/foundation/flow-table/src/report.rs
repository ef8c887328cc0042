//! The table's results: outcomes, rows, counters, errors.

use model::{Direction, FlowKey, Nanos, ServiceId, Slot};

use crate::{Line, TimeoutClass};

/// The flags of a TCP header (byte 13) that the table tracks.
pub mod tcp_flag {
    /// The sender has no more data.
    pub const FIN: u8 = 0x01;
    /// Opens a connection.
    pub const SYN: u8 = 0x02;
    /// Aborts the connection.
    pub const RST: u8 = 0x04;
    /// Acknowledges.
    pub const ACK: u8 = 0x10;
}

/// The state of a TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TcpState {
    /// Not TCP.
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
    /// The word in tables; `-` unless TCP.
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

/// How packets changed the state of their flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowChange {
    /// No change.
    None,
    /// A TCP handshake was acknowledged.
    Established,
    /// A TCP flow ended; it lingers.
    Closed,
    /// A SYN came for a TCP flow that had ended: this is a new flow, without pins.
    Reopened,
}

/// The result of counting packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// The pin of the packets' direction, after the change.
    pub pin: Slot,
    /// What changed.
    pub change: FlowChange,
}

/// Why a flow could not be inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// The table has no free entry for that family.
    Entries,
    /// The flow's buckets are full, and no flow of the first one could move within the bounded work of an
    /// insertion. Rarer than one insertion in a million, even into the last free entry.
    Index,
}

/// The result of one `expire` call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expiry {
    /// Flows ended.
    pub flows: u32,
    /// Flows visited.
    pub visited: u32,
    /// Whether flows may be due that the budget did not reach: call again soon.
    pub behind: bool,
}

/// The progress of a slot's purge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Call again: entries still name the slot.
    Pending,
    /// No entry names the slot; it can be used again.
    Done,
}

/// The position of a dump.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DumpCursor {
    pub(crate) family: u8,
    pub(crate) entry: u32,
}

/// A snapshot of one flow. Pairs are indexed by direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowRow {
    /// The flow.
    pub key: FlowKey,
    /// The direction of its first packet.
    pub opener: Direction,
    /// The service it belongs to.
    pub service: ServiceId,
    /// The pin of each direction.
    pub pins: [Slot; 2],
    /// When each direction was pinned, rounded down to 2.1 ms; `None` if it has no pin or the table keeps no
    /// pin times.
    pub pinned_at: [Option<Nanos>; 2],
    /// Packets of each direction, modulo 2^40.
    pub packets: [u64; 2],
    /// Bytes of each direction, modulo 2^48.
    pub bytes: [u64; 2],
    /// Time since the last packet, in multiples of 2.1 ms.
    pub idle: Nanos,
    /// Its TCP state.
    pub tcp: TcpState,
    /// Packets returned from its instance, if the table counts them.
    pub returned: Option<u64>,
    /// Packets dropped on the way there or back, if the table counts them.
    pub dropped: Option<u64>,
}

/// Events since the table was made or attached. Live flows = [`AttachCounts::flows`](crate::AttachCounts::flows)
/// `+ inserts - expired - purged_flows`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Lookups that hit.
    pub hits: u64,
    /// Lookups that missed.
    pub misses: u64,
    /// New flows.
    pub inserts: u64,
    /// TCP flows restarted in place after they had closed.
    pub reopened: u64,
    /// Flows refused for lack of a free entry.
    pub full_entries: u64,
    /// Flows refused because their buckets were full ([`Full::Index`]).
    pub full_index: u64,
    /// Flows moved within the index to make room; their entries stay in place.
    pub relocations: u64,
    /// Flows expired, by [`TimeoutClass::index`].
    pub expired: [u64; TimeoutClass::COUNT],
    /// Flows purged by key.
    pub purged_flows: u64,
    /// Flows that lost a pin to a purge of its slot.
    pub purged_pins: u64,
    /// Flows that lost a pin to the failure of its instance.
    pub failed_pins: u64,
    /// Flows pinned anew after such a failure.
    pub expected_moves: u64,
    /// Pins refused because the slot is being purged or does not exist; the flow then has no pin.
    pub refused_pins: u64,
}

impl Counters {
    /// Flows expired, over all classes.
    pub fn expired_flows(&self) -> u64 {
        self.expired.iter().sum()
    }

    /// Flows refused for lack of room.
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
        /// Requested.
        flows: usize,
        /// Maximum.
        limit: usize,
    },
    /// A timeout beyond the range of an entry's coarse time.
    #[error("the {} timeout of {} s is longer than {} s", class.name(), timeout.as_secs_f64(), model::Timeouts::LIMIT.as_secs_f64())]
    Timeout {
        /// Its class.
        class: TimeoutClass,
        /// Requested.
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
    /// The storage does not start with a table.
    #[error("the storage holds no flow table")]
    NotATable,
    /// The table was written by a processor of the other byte order.
    #[error("the storage holds a flow table in another byte order")]
    ByteOrder,
    /// The table was left before the machine was started anew: its times mean nothing now.
    #[error(
        "the flow table in the storage was left by another boot of this machine: begin with an empty one"
    )]
    OtherBoot,
    /// The table belongs to another worker, or to another number of workers. Each is (worker, workers).
    #[error(
        "the flow table in the storage belongs to worker {} of {}, not to worker {} of {}: convert it",
        found.0, found.1, expected.0, expected.1
    )]
    OtherWorker {
        /// In the storage.
        found: (u16, u16),
        /// Of this process.
        expected: (u16, u16),
    },
    /// The entries mean something else.
    #[error(
        "the flow table in the storage was made for another configuration ({found:016x}, not {expected:016x}): \
         convert it"
    )]
    OtherConfiguration {
        /// The fingerprint in the storage.
        found: u64,
        /// The fingerprint of this process.
        expected: u64,
    },
    /// The table has another layout version.
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
    /// The header claims more used entries than exist.
    #[error("the flow table in the storage claims {found} used entries of {limit}")]
    HighWater {
        /// In the header.
        found: u64,
        /// Maximum.
        limit: u64,
    },
}
