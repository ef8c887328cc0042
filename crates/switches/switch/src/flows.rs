//! Which flows are asked for, and what is told of them beside a [`FlowRow`].

use std::net::IpAddr;

use flow_table::FlowRow;
use model::{Direction, FlowKey, ServiceId, Slot};

/// The heaviest flows that a request gets at most, of each worker.
pub const HEAVY_FLOW_LIMIT: usize = 64;

/// Which flows are wanted. Empty fields match all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowFilter {
    /// Of this service.
    pub service: Option<ServiceId>,
    /// Pinned to this instance.
    pub slot: Option<Slot>,
    /// Has this address on either end.
    pub address: Option<IpAddr>,
    /// This flow alone, in each service that it passes.
    pub key: Option<FlowKey>,
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
        if self.key.is_some_and(|k| row.key.at_hop(0) != k.at_hop(0)) {
            return false;
        }
        self.address.is_none_or(|a| {
            let tuple = row.key.tuple(Direction::Forward);
            tuple.src == a || tuple.dst == a
        })
    }
}

/// A flow and what it brings now.
#[derive(Clone, Copy, Debug)]
pub struct HeavyFlow {
    /// The flow, with its exact counters.
    pub row: FlowRow,
    /// Packets per second that it brings, over the last second: an estimate, never too low by more than its samples
    /// are.
    pub pps: f32,
    /// How much of `pps` may be other flows'.
    pub error_pps: f32,
}
