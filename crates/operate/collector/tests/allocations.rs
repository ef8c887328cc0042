//! Sampling does not allocate once every uplink and worker has been seen.

use collector::Collector;
use counting_allocator::{Counting, allocations};
use model::{InstanceId, Nanos, Slot};
use switch::SwitchReading;

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
    let before = allocations();
    for _ in 0..2_000 {
        raw.at = raw.at + Nanos::from_millis(1);
        for slot in &mut raw.slots[..256] {
            slot.to_packets += 10;
            slot.new_flows += 1;
        }
        collector.sample(&raw);
        collector.record_cost(1);
    }
    assert_eq!(allocations() - before, 0);
}
