use std::collections::BTreeMap;
use std::net::SocketAddr;

use flow_table::AttachCounts;
use model::{Nanos, Slot};

/// What a switch took over from an earlier run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resumed {
    /// When whoever kept it had handed everything over: monotonic time.
    pub taken_at: Nanos,
    /// When flow tables and rings were ready for use: monotonic time.
    pub attached_at: Nanos,
    /// What became of the flows, of all workers.
    pub flows: AttachCounts,
    /// Tables that were converted: of another size, another number of workers, or another release.
    pub converted: usize,
    /// Live flows by slot, for those that have some.
    pub live: BTreeMap<Slot, u64>,
    /// Instances whose rings were taken over.
    pub instances: usize,
    /// Uplinks whose peer is still connected.
    pub uplinks: usize,
    /// Where others run instances of it, by slot.
    pub back_ends: BTreeMap<Slot, SocketAddr>,
    /// What could not be used, and why, a line each.
    pub rejected: Vec<String>,
}

impl Resumed {
    /// Whether there was nothing of an earlier run.
    pub fn is_empty(&self) -> bool {
        let nothing = Resumed {
            taken_at: self.taken_at,
            attached_at: self.attached_at,
            ..Resumed::default()
        };
        *self == nothing
    }
}
