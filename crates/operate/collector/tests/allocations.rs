//! Sampling does not allocate once every uplink and worker has been seen.
// UNSAFETY: a counting allocator needs `unsafe impl GlobalAlloc`.
#![expect(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use collector::Collector;
use model::{InstanceId, Nanos, Slot};
use switch::SwitchReading;

struct Counting;

thread_local! {
    // Per thread: the test harness allocates concurrently.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: forwards every call to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's contract is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract is the same.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_sample_of_256_instances_allocates_nothing() {
    let mut collector = Collector::new();
    let service = collector.add_service(Nanos::from_secs(1));
    for n in 0..256u16 {
        collector.assign(Slot(n), service, InstanceId(u32::from(n)));
    }
    let mut raw = SwitchReading::new(1, 2, 2);
    collector.sample(&raw);
    let before = ALLOCATIONS.get();
    for _ in 0..2_000 {
        raw.at = raw.at + Nanos::from_millis(1);
        for slot in &mut raw.slots[..256] {
            slot.to_packets += 10;
            slot.new_flows += 1;
        }
        collector.sample(&raw);
        collector.record_cost(1);
    }
    assert_eq!(ALLOCATIONS.get() - before, 0);
}
