//! A step in which nothing changes allocates nothing, with several hundred instances.

use autoscaling::Autoscaler;
use collector::Collector;
use controller::{Controller, Inputs, Outputs, ServiceSettings, Settings};
use counting_allocator::{Counting, allocations};
use model::{InstanceState, Nanos};
use switch::{Delays, FakeConfig, FakeSwitch, Switch as _, SwitchReading};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn an_idle_step_of_256_instances_allocates_nothing() {
    let scaler = Autoscaler::from_name("smartinco").unwrap();
    // Sinks without a container: only the controller is measured.
    let mut service = ServiceSettings::new("sink", None, scaler);
    (service.min, service.max, service.capacity_pps) = (256, 256, Some(1e6));
    let mut collector = Collector::new();
    collector.add_service(Nanos::from_secs(1));
    let mut controller = Controller::new(Settings::default(), vec![service]);
    let mut raw = SwitchReading::new(1, 1, 1);
    let mut out = Outputs::default();
    let mut switch = FakeSwitch::new(FakeConfig {
        delays: Delays::NONE,
        ..FakeConfig::default()
    });
    let mut told = Vec::new();
    let mut idle_step = 0;
    let mut took = Vec::with_capacity(2_000);
    for ms in 1..2_000 {
        raw.at = Nanos::from_millis(ms);
        for slot in collector.assigned().to_vec() {
            raw.slots[slot.index()].to_packets += 1;
        }
        raw.services[0].offered_packets += 256;
        collector.sample(&raw);
        switch.advance(raw.at, |_| true);
        switch.poll(raw.at, &mut told);
        let acknowledged = switch.acknowledged();
        let is_acknowledged = acknowledged > controller.acknowledged();
        let before = allocations();
        let inputs = Inputs {
            switch: &told,
            acknowledged,
            ..Inputs::default()
        };
        let began = std::time::Instant::now();
        controller.step(inputs, &mut collector, raw.at, &mut out);
        let allocated = allocations() - before;
        let elapsed = began.elapsed();
        let is_quiet = told.is_empty() && !is_acknowledged && out.is_empty();
        told.clear();
        for request in out.switch.drain(..) {
            switch.submit(request, &mut told);
        }
        if is_quiet {
            idle_step += 1;
            took.push(elapsed);
            assert_eq!(allocated, 0, "at {ms} ms");
        }
    }
    assert!(idle_step > 1_900);
    assert!(
        controller
            .instances()
            .iter()
            .all(|i| i.state() == InstanceState::Active)
    );
    took.sort_unstable();
    println!("median idle step with 256 instances: {:?}", took[took.len() / 2]);
}
