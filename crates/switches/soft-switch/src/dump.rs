//! Reading a worker's flows without stopping it.

use flow_table::DumpCursor;
use switch::{FlowFilter, FlowRow, HEAVY_FLOW_LIMIT, HeavyFlow};

/// Entries of its table that a worker looks at per step, once a millisecond: about 20 µs, and four million a second.
pub(crate) const DUMP_ENTRIES_PER_STEP: usize = 4096;

/// A dump under way: it goes to a worker with room for its rows and comes back filled.
#[derive(Debug)]
pub struct FlowDump {
    /// Which dump; the same for every worker's part.
    pub id: u64,
    /// Which flows.
    pub filter: FlowFilter,
    /// The rows found; never more than its capacity when the dump was made.
    pub rows: Vec<FlowRow>,
    /// How many rows are wanted at most.
    pub limit: usize,
    /// Where the worker goes on, once it has begun.
    pub(crate) cursor: DumpCursor,
    /// Whether the whole table has been seen; if not, the limit was reached first.
    pub complete: bool,
}

/// The heaviest flows, asked of a worker: it goes there with room for its rows and comes back filled.
#[derive(Debug)]
pub struct HeavyDump {
    /// Which request; the same for every worker's part.
    pub id: u64,
    /// Which flows.
    pub filter: FlowFilter,
    /// The flows found, in no order.
    pub rows: Vec<HeavyFlow>,
}

impl HeavyDump {
    /// A request with room for all that a worker follows.
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
