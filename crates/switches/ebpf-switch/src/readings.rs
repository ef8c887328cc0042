//! Counters: what the CPUs have counted, as the control plane reads it. No system call.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use model::Slot;
use switch::{ServiceCounters, SlotCounters, SwitchReading, UplinkCounters, WorkerTotals};

use crate::kernel::Shared;
use crate::layout::{Counts, DROPS, EPOCHS, SLOT_TUNNEL};

/// The sum over all CPUs.
fn sum(shared: &Shared, of: impl Fn(&Counts) -> &AtomicU64) -> u64 {
    let counts = shared.counts().iter();
    counts.fold(0, |sum: u64, row| sum.wrapping_add(of(row).load(Relaxed)))
}

/// Flows that a slot has in one of its epochs.
pub(crate) fn live_in(shared: &Shared, slot: Slot, epoch: u32) -> u64 {
    let at = epoch as usize % EPOCHS;
    let started = sum(shared, |of| &of.slots[slot.index()].started[at]);
    let ended = sum(shared, |of| &of.slots[slot.index()].ended[at]);
    // The CPUs are not read at one moment.
    started
        .checked_sub(ended)
        .filter(|live| *live < 1 << 40)
        .unwrap_or(0)
}

/// Flows that a slot has.
pub(crate) fn live(shared: &Shared, slot: Slot) -> u64 {
    live_in(
        shared,
        slot,
        shared.world().slots[slot.index()].epoch.load(Relaxed),
    )
}

/// Reads every counter of these slots.
pub(crate) fn read(
    shared: &Shared,
    slots: impl Iterator<Item = Slot>,
    flow_limit: u64,
    into: &mut SwitchReading,
) {
    for slot in slots {
        let of = |field: fn(&crate::layout::SlotCounts) -> &AtomicU64| {
            sum(shared, |row| field(&row.slots[slot.index()]))
        };
        let to = &mut into.slots[slot.index()];
        let (to_packets, to_bytes) = (of(|row| &row.to_packets), of(|row| &row.to_bytes));
        let back = of(|row| &row.back_packets);
        // What goes into a tunnel leaves by an uplink, so it counts as returned, too; nothing else comes back.
        let is_tunnel = shared.world().slots[slot.index()].flags.load(Relaxed) & SLOT_TUNNEL != 0;
        let counted = SlotCounters {
            to_packets,
            to_bytes,
            back_packets: if is_tunnel { to_packets } else { back },
            back_bytes: if is_tunnel {
                to_bytes
            } else {
                of(|row| &row.back_bytes)
            },
            // What comes from an instance is its own: nothing is passed on.
            originated: back,
            new_flows: of(|row| &row.new_flows),
            expected_moves: of(|row| &row.expected_moves),
            live_flows: live(shared, slot),
            return_unmatched: of(|row| &row.spoofed),
            ..SlotCounters::default()
        };
        to.set_counted(&counted);
        to.delivered = if is_tunnel { 0 } else { to_packets };
    }
    for (at, to) in into.services.iter_mut().enumerate() {
        let of = |field: fn(&crate::layout::ServiceCounts) -> &AtomicU64| {
            sum(shared, |row| field(&row.services[at]))
        };
        *to = ServiceCounters {
            offered_packets: of(|row| &row.offered_packets),
            offered_bytes: of(|row| &row.offered_bytes),
            unserved: of(|row| &row.unserved),
            unpinned: of(|row| &row.unpinned),
            unprepared: of(|row| &row.ran_out),
            flooded: of(|row| &row.flooded),
            recovered: of(|row| &row.recovered),
            ..ServiceCounters::default()
        };
    }
    for (at, to) in into.uplinks.iter_mut().enumerate() {
        let of = |field: fn(&crate::layout::UplinkCounts) -> &AtomicU64| {
            sum(shared, |row| field(&row.uplinks[at]))
        };
        *to = UplinkCounters {
            received_packets: of(|row| &row.received_packets),
            received_bytes: of(|row| &row.received_bytes),
            sent_packets: of(|row| &row.sent_packets),
            sent_bytes: of(|row| &row.sent_bytes),
            dropped: of(|row| &row.dropped),
            ..UplinkCounters::default()
        };
    }
    for (at, reason) in DROPS.iter().enumerate() {
        into.drops[reason.index()] = sum(shared, |row| &row.drops[at]);
    }
    let live = |family: usize| {
        let started = sum(shared, |row| &row.started[family]);
        started.saturating_sub(sum(shared, |row| &row.ended[family]))
    };
    if let Some(worker) = into.workers.first_mut() {
        let received = into.uplinks.iter().map(|of| of.received_packets).sum();
        *worker = WorkerTotals {
            generation: into.acknowledged.0,
            received,
            live_flows: live(0) + live(1),
            flow_limit,
            table_full: sum(shared, |row| &row.table_full),
            passed: (0..into.uplinks.len())
                .map(|at| sum(shared, |row| &row.uplinks[at].passed))
                .sum(),
            ..WorkerTotals::default()
        };
    }
}
