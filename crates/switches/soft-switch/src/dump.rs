//! Reading a worker's flows without stopping it.

use std::net::IpAddr;

use flow_table::{DumpCursor, FlowRow};
use model::{FlowKey, ServiceId, Slot};

use crate::worker::{ELEPHANT_LIMIT, HeavyFlow};

/// Entries of its table that a worker looks at per step, once a millisecond: about 20 µs, and four million a second.
pub(crate) const DUMP_ENTRIES_PER_STEP: usize = 4096;

/// Which flows are wanted. Empty fields match all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowFilter {
    /// Of this service.
    pub service: Option<ServiceId>,
    /// Pinned to this instance.
    pub slot: Option<Slot>,
    /// Has this address on either end.
    pub address: Option<IpAddr>,
    /// This flow alone.
    pub key: Option<FlowKey>,
}

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
            rows: Vec::with_capacity(ELEPHANT_LIMIT),
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

impl FlowFilter {
    /// Whether a row is wanted.
    pub fn matches(&self, row: &FlowRow) -> bool {
        if self.slot.is_some_and(|s| !row.pins.contains(&s)) {
            return false;
        }
        if self.service.is_some_and(|s| row.service != s) {
            return false;
        }
        if self.key.is_some_and(|k| row.key != k) {
            return false;
        }
        self.address.is_none_or(|a| {
            let tuple = row.key.tuple(model::Direction::Forward);
            tuple.src == a || tuple.dst == a
        })
    }
}
