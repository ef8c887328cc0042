//! Dumps of a worker's flows, while it forwards packets.

use flow_table::DumpCursor;
use switch::{FlowFilter, FlowRow, HEAVY_FLOW_LIMIT, HeavyFlow};

/// Table entries that a worker reads per step, once a millisecond: about 20 µs, and four million a second.
pub(crate) const DUMP_ENTRIES_PER_STEP: usize = 4096;

/// A dump in progress: it is sent to a worker with room for its rows and comes back filled.
#[derive(Debug)]
pub struct FlowDump {
    /// The number of the dump; the same for every worker's part.
    pub id: u64,
    /// Which flows.
    pub filter: FlowFilter,
    /// The rows found; never more than its capacity when the dump was made.
    pub rows: Vec<FlowRow>,
    /// Maximum number of rows.
    pub limit: usize,
    /// The worker's position in the table, once it has begun.
    pub(crate) cursor: DumpCursor,
    /// Whether the whole table was read; otherwise the limit was reached first.
    pub complete: bool,
}

/// A request for a worker's heaviest flows: it is sent with room for its rows and comes back filled.
#[derive(Debug)]
pub struct HeavyDump {
    /// The number of the request; the same for every worker's part.
    pub id: u64,
    /// Which flows.
    pub filter: FlowFilter,
    /// The flows found, in no order.
    pub rows: Vec<HeavyFlow>,
}

impl HeavyDump {
    /// A request with room for all flows that a worker tracks.
    pub fn new(id: u64, filter: FlowFilter) -> HeavyDump {
        HeavyDump {
            id,
            filter,
            rows: Vec::with_capacity(HEAVY_FLOW_LIMIT),
        }
    }
}

impl FlowDump {
    /// A dump with room for `limit` rows.
    pub fn new(id: u64, filter: FlowFilter, limit: usize) -> FlowDump {
        FlowDump {
            id,
            filter,
            rows: Vec::with_capacity(limit),
            limit,
            cursor: DumpCursor::default(),
            complete: false,
        }
    }
}
