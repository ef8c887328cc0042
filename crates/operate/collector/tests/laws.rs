//! The guarantees of the windows, for any sample spacing.

use collector::{Collector, EXPECTED_FLOOR_PPS};
use model::{InstanceId, Nanos, ServiceId, Slot};
use proptest::prelude::*;
use scheduling::Metric;
use switch::{FunctionCounters, SwitchReading};

const SECOND: Nanos = Nanos::from_secs(1);

fn one_instance() -> (Collector, SwitchReading) {
    let mut collector = Collector::new();
    let service = collector.add_service(SECOND);
    collector.assign(Slot(3), service, InstanceId(1));
    (collector, SwitchReading::new(1, 1, 1))
}

fn near(a: f64, b: f64, share: f64) -> bool {
    (a - b).abs() <= share * b.abs().max(1.0)
}

proptest! {
    #[test]
    fn both_windows_find_a_constant_rate_for_any_spacing(
        rate in 10u64..20_000_000, gaps_us in proptest::collection::vec(200u64..30_000, 120..200),
    ) {
        let (mut collector, mut raw) = one_instance();
        let mut at = Nanos::from_secs(5);
        let start = at;
        for gap in gaps_us {
            // Counts are integers, so the rate is off by at most one packet per window.
            let packets = (u128::from(rate) * u128::from(at.since(start).0) / 1_000_000_000) as u64;
            raw.at = at;
            raw.slots[3].to_packets = packets;
            raw.services[0].offered_packets = packets;
            collector.sample(&raw);
            at = at + Nanos::from_micros(gap);
        }
        let elapsed = raw.at.since(start).as_secs_f64();
        let slot = collector.slot(Slot(3)).unwrap();
        let offered = collector.service(ServiceId(0));
        let rate = rate as f64;
        let one = 2.0 / elapsed.min(1.0);
        prop_assert!((slot.arrivals_stable_pps - rate).abs() <= one, "{} {rate}", slot.arrivals_stable_pps);
        prop_assert!((offered.offered_stable_pps - rate).abs() <= one, "{} {rate}", offered.offered_stable_pps);
        // The fast rate is within e^(-t/τ) of it, plus a packet per sample.
        let settled = (-elapsed / 0.01).exp();
        prop_assert!((slot.arrivals_fast_pps - rate).abs() <= rate * settled + 5_000.0, "{}", slot.arrivals_fast_pps);
        prop_assert!(slot.ring_drops_fast_pps == 0.0 && slot.signals.returns_fast_pps == 0.0);
    }

    #[test]
    fn the_fast_rate_depends_on_time_and_not_on_the_number_of_samples(
        cuts in proptest::collection::vec(1u64..5_000, 1..40),
    ) {
        // A constant 1 Mpps, once in the given pieces and once in one piece.
        let run = |pieces: &[u64]| {
            let (mut collector, mut raw) = one_instance();
            collector.sample(&raw);
            for piece in pieces {
                raw.at = raw.at + Nanos::from_micros(*piece);
                raw.slots[3].to_packets += piece;
                collector.sample(&raw);
            }
            collector.slot(Slot(3)).unwrap().arrivals_fast_pps
        };
        let whole: u64 = cuts.iter().sum();
        let expected = 1e6 * (1.0 - (-(whole as f64) / 10_000.0).exp());
        prop_assert!(near(run(&cuts), expected, 1e-9), "{} {expected}", run(&cuts));
        prop_assert!(near(run(&cuts), run(&[whole]), 1e-9));
    }

    #[test]
    fn the_rates_of_the_instances_add_up_to_the_services(
        steps in proptest::collection::vec(
            (100u64..20_000, proptest::array::uniform4(0u64..1_000), 0u64..100), 2..300),
    ) {
        let mut collector = Collector::new();
        let service = collector.add_service(SECOND);
        for n in 0..4u16 {
            collector.assign(Slot(n * 7), service, InstanceId(u32::from(n)));
        }
        let mut raw = SwitchReading::new(1, 0, 0);
        for (gap, packets, unserved) in steps {
            raw.at = raw.at + Nanos::from_micros(gap);
            for (n, count) in packets.iter().enumerate() {
                let slot = &mut raw.slots[n * 7];
                slot.to_packets += count - count / 3;
                slot.ring_drops += count / 3;
                raw.services[0].offered_packets += count;
            }
            raw.services[0].unserved += unserved;
            raw.services[0].offered_packets += unserved;
            collector.sample(&raw);
        }
        let rates: Vec<_> = (0..4).map(|n| *collector.slot(Slot(n * 7)).unwrap()).collect();
        let all = collector.service(service);
        let fast: f64 = rates.iter().map(|r| r.arrivals_fast_pps).sum();
        prop_assert!(near(fast + all.unserved_fast_pps, all.offered_fast_pps, 1e-9));
        let stable: f64 = rates.iter().map(|r| r.arrivals_stable_pps).sum();
        prop_assert!(stable <= all.offered_stable_pps * (1.0 + 1e-9));
        for r in &rates {
            prop_assert!(near(r.to_fast_pps() + r.ring_drops_fast_pps, r.arrivals_fast_pps, 1e-9));
        }
    }

    #[test]
    fn the_stable_rate_is_the_mean_over_the_window(
        steps in proptest::collection::vec((500u64..4_000, 0u64..500), 1_000..1_500),
    ) {
        let (mut collector, mut raw) = one_instance();
        let mut history = vec![(Nanos::ZERO, 0u64)];
        collector.sample(&raw);
        for (gap, packets) in steps {
            raw.at = raw.at + Nanos::from_micros(gap);
            raw.slots[3].to_packets += packets;
            collector.sample(&raw);
            history.push((raw.at, raw.slots[3].to_packets));
        }
        prop_assume!(raw.at > SECOND);
        let begin = raw.at - SECOND;
        // The window's start is known to within one step of 1/64 s (and a sample's gap, 4 ms).
        let slack = Nanos::from_micros(15_625 + 4_000);
        let count_at = |t: Nanos| history.iter().rev().find(|(at, _)| *at <= t).map_or(0, |(_, n)| *n);
        let low = (raw.slots[3].to_packets - count_at(begin + slack)) as f64;
        let high = (raw.slots[3].to_packets - count_at(begin - slack)) as f64;
        let stable = collector.slot(Slot(3)).unwrap().arrivals_stable_pps;
        prop_assert!((low - 1e-6..=high + 1e-6).contains(&stable), "{low} {stable} {high}");
    }

    #[test]
    fn a_flow_counts_once_in_the_load_from_its_pin_on(flows in 1u64..50, each in 1_000u64..50_000) {
        let (mut collector, mut raw) = one_instance();
        let at_ms = |n: u64| Nanos::from_millis(n);
        // Flows of that rate exist, so that a new one's rate is known.
        for ms in 0..1_000 {
            raw.at = at_ms(ms);
            raw.slots[3].live_flows = 10;
            raw.slots[3].to_packets = ms * each * 10 / 1_000;
            raw.services[0].offered_packets = raw.slots[3].to_packets;
            collector.sample(&raw);
        }
        let before = collector.slot(Slot(3)).unwrap().load_pps();
        prop_assert!(near(before, each as f64 * 10.0, 0.05));
        // Pinned now; their packets start with the next millisecond.
        raw.slots[3].new_flows += flows;
        raw.slots[3].live_flows += flows;
        let expected = before + (flows * each) as f64;
        for ms in 1_000..1_100 {
            raw.at = at_ms(ms);
            raw.slots[3].to_packets += (10 + if ms > 1_000 { flows } else { 0 }) * each / 1_000;
            raw.services[0].offered_packets = raw.slots[3].to_packets;
            collector.sample(&raw);
            let load = collector.slot(Slot(3)).unwrap().load_pps();
            // The estimate uses the current mean rate per flow: it is lower while new flows have no packets.
            let slack = (flows * each) as f64 * (1.0 - 10.0 / (10 + flows) as f64) + before * 0.15;
            prop_assert!((load - expected).abs() <= slack, "{ms}: {load} {expected} ±{slack}");
        }
    }
}

/// 10 flows of 1,000 packets of 500 bytes per second each, on an instance that is busy a quarter of the time;
/// then a new flow, which counts in every metric before its first packet.
#[test]
fn the_load_is_available_in_every_metric() {
    let (mut collector, mut raw) = one_instance();
    for ms in 0..1_000 {
        raw.at = Nanos::from_millis(ms);
        raw.slots[3].live_flows = 10;
        raw.slots[3].to_packets = ms * 10;
        raw.slots[3].to_bytes = ms * 5_000;
        raw.slots[3].function = Some(FunctionCounters {
            busy_ns: ms * 250_000,
            ..FunctionCounters::default()
        });
        raw.services[0].offered_packets = ms * 10;
        raw.services[0].offered_bytes = ms * 5_000;
        collector.sample(&raw);
    }
    let capacity = 40_000.0;
    let loads = |collector: &Collector| {
        let service = collector.service(ServiceId(0));
        let slot = *collector.slot(Slot(3)).unwrap();
        [Metric::Packets, Metric::Bytes, Metric::Flows, Metric::Busy]
            .map(|metric| slot.load(metric, &service, capacity))
    };
    let [packets, bytes, flows, busy] = loads(&collector);
    assert!(
        near(packets, 10_000.0, 0.02) && near(bytes, 5e6, 0.02),
        "{packets} {bytes}"
    );
    assert!(flows == 10.0 && (busy - 0.25).abs() < 0.01, "{flows} {busy}");
    raw.at = Nanos::from_millis(1_000);
    raw.slots[3].new_flows += 1;
    raw.slots[3].live_flows += 1;
    raw.slots[3].to_packets += 10;
    raw.slots[3].to_bytes += 5_000;
    raw.services[0].offered_packets += 10;
    raw.services[0].offered_bytes += 5_000;
    raw.slots[3].function = Some(FunctionCounters {
        busy_ns: 1_000 * 250_000,
        ..FunctionCounters::default()
    });
    collector.sample(&raw);
    let [packets, bytes, flows, busy] = loads(&collector);
    assert!(
        near(packets, 10_900.0, 0.03) && near(bytes, 5.45e6, 0.03),
        "{packets} {bytes}"
    );
    assert!(
        flows == 11.0 && (busy - (0.25 + 900.0 / capacity)).abs() < 0.01,
        "{flows} {busy}"
    );
    // Without published busy time it derives from the packets.
    raw.at = Nanos::from_millis(1_001);
    raw.slots[3].function = None;
    collector.sample(&raw);
    let [packets, _, _, busy] = loads(&collector);
    assert!(near(busy, packets / capacity, 1e-9));
}

#[test]
fn restarted_counters_and_reused_slots_make_no_spike() {
    let (mut collector, mut raw) = one_instance();
    for ms in 0..100 {
        raw.at = Nanos::from_millis(ms);
        raw.slots[3].to_packets += 1_000;
        collector.sample(&raw);
    }
    raw.at = Nanos::from_millis(100);
    raw.slots[3].to_packets = 1_000;
    collector.sample(&raw);
    let rates = *collector.slot(Slot(3)).unwrap();
    assert!(near(rates.arrivals_fast_pps, 1e6, 0.001), "{rates:?}");

    collector.release(Slot(3));
    assert_eq!(collector.slot(Slot(3)), None);
    collector.assign(Slot(3), ServiceId(0), InstanceId(2));
    for ms in 101..300 {
        raw.at = Nanos::from_millis(ms);
        collector.sample(&raw);
    }
    let rates = *collector.slot(Slot(3)).unwrap();
    assert_eq!(
        (rates.id, rates.arrivals_fast_pps, rates.arrivals_stable_pps),
        (InstanceId(2), 0.0, 0.0)
    );
}

#[test]
fn a_late_instance_uses_its_services_window() {
    let (mut collector, mut raw) = one_instance();
    for ms in 0..5_000 {
        if ms == 4_500 {
            collector.assign(Slot(9), ServiceId(0), InstanceId(9));
        }
        raw.at = Nanos::from_millis(ms);
        raw.slots[3].to_packets += 100;
        raw.services[0].offered_packets += 100;
        if ms > 4_500 {
            raw.slots[9].to_packets += 100;
            raw.services[0].offered_packets += 100;
        }
        collector.sample(&raw);
    }
    let (old, new) = (
        *collector.slot(Slot(3)).unwrap(),
        *collector.slot(Slot(9)).unwrap(),
    );
    let all = collector.service(ServiceId(0)).offered_stable_pps;
    assert!(near(new.arrivals_stable_pps, 50_000.0, 0.01), "{new:?}");
    assert!(near(old.arrivals_stable_pps + new.arrivals_stable_pps, all, 1e-9));
}

/// Changing the window takes effect at once, and bursts of packets every 20 ms do not distort the rate.
#[test]
fn a_changed_window_keeps_its_history() {
    for (before_ms, after_ms, known_ms) in [
        (1_000, 5_000, 1_000),
        (5_000, 1_000, 1_000),
        (1_000, 1_000, 1_000),
        (200, 60_000, 200),
    ] {
        let mut collector = Collector::new();
        let service = collector.add_service(Nanos::from_millis(before_ms));
        collector.assign(Slot(3), service, InstanceId(1));
        let mut raw = SwitchReading::new(1, 1, 1);
        let mut sample = |collector: &mut Collector, ms: u64| {
            raw.at = Nanos::from_millis(ms);
            // Histories reach back a little further than their windows.
            let rate = if ms < 10_000 - known_ms * 3 / 2 { 500 } else { 100 };
            if ms.is_multiple_of(20) {
                raw.slots[3].to_packets += 20 * rate;
                raw.services[0].offered_packets += 20 * rate;
            }
            collector.sample(&raw);
            [
                collector.service(service).offered_stable_pps,
                collector.slot(Slot(3)).unwrap().arrivals_stable_pps,
            ]
        };
        for ms in 0..10_000 {
            sample(&mut collector, ms);
        }
        collector.set_stable_window(service, Nanos::from_millis(after_ms));
        for ms in 10_000..10_050 {
            for pps in sample(&mut collector, ms) {
                assert!(near(pps, 100_000.0, 0.15), "{before_ms} {after_ms} {ms}: {pps}");
            }
        }
        // And it fills up to its length.
        for ms in 10_050..10_000 + 2 * after_ms {
            sample(&mut collector, ms);
        }
        let [all, one] = sample(&mut collector, 10_000 + 2 * after_ms);
        assert!(
            near(all, 100_000.0, 0.03) && near(one, all, 1e-9),
            "{after_ms}: {all} {one}"
        );
    }
}

#[test]
fn a_silent_gap_longer_than_the_window_is_exact_too() {
    let (mut collector, mut raw) = one_instance();
    collector.sample(&raw);
    raw.at = Nanos::from_secs(10);
    raw.slots[3].to_packets = 10_000;
    collector.sample(&raw);
    let rates = collector.slot(Slot(3)).unwrap();
    assert!(near(rates.arrivals_stable_pps, 1_000.0, 1e-9), "{rates:?}");
    assert!(near(rates.arrivals_fast_pps, 1_000.0, 1e-9), "{rates:?}");
    assert_eq!(collector.cost().late, 1);
}

#[test]
fn a_ring_is_hot_when_full_or_a_quarter_full_twice_and_is_reported_once() {
    let (mut collector, mut raw) = one_instance();
    let mut ms = 0;
    let mut hot = |collector: &mut Collector, raw: &mut SwitchReading, used: u64| {
        ms += 1;
        raw.at = Nanos::from_millis(ms);
        raw.slots[3].ring_slots = 1_024;
        raw.slots[3].ring_used = used;
        collector.sample(raw);
        collector.slot(Slot(3)).unwrap().hot
    };
    assert!(!hot(&mut collector, &mut raw, 0));
    assert!(!hot(&mut collector, &mut raw, 256));
    assert!(!hot(&mut collector, &mut raw, 255));
    assert!(!hot(&mut collector, &mut raw, 256));
    assert!(hot(&mut collector, &mut raw, 256));
    raw.slots[3].ring_drops += 1;
    assert!(hot(&mut collector, &mut raw, 0));
    raw.slots[3].hot += 1;
    assert!(hot(&mut collector, &mut raw, 0));
    assert!(!hot(&mut collector, &mut raw, 0));
    let mut seen = observation();
    collector.observe(&mut seen);
    assert!(seen.hot);
    collector.observe(&mut seen);
    assert!(!seen.hot);
}

#[test]
fn waiting_counts_time_without_consumption_or_throttling() {
    let (mut collector, mut raw) = one_instance();
    let sample = |collector: &mut Collector, raw: &mut SwitchReading| {
        raw.at = raw.at + Nanos::from_millis(1);
        collector.sample(raw);
        collector.slot(Slot(3)).unwrap().waiting.as_millis()
    };
    raw.slots[3].ring_slots = 1_024;
    raw.slots[3].ring_used = 5;
    sample(&mut collector, &mut raw);
    for n in 1..=20 {
        assert_eq!(sample(&mut collector, &mut raw), n);
    }
    raw.slots[3].throttled_ns += 1_000_000;
    assert_eq!(sample(&mut collector, &mut raw), 20);
    // A machine-wide stall of half a second says little about one instance.
    raw.at = raw.at + Nanos::from_millis(500);
    assert_eq!(sample(&mut collector, &mut raw), 22);
    raw.slots[3].throttled_ns += 10_000_000;
    assert_eq!(sample(&mut collector, &mut raw), 13);
    // Reported once for the last ten samples.
    raw.slots[3].throttled_ns += 10_000_000;
    assert_eq!(sample(&mut collector, &mut raw), 4);
    raw.slots[3].consumed += 1;
    assert_eq!(sample(&mut collector, &mut raw), 0);
    raw.slots[3].ring_used = 0;
    assert_eq!(sample(&mut collector, &mut raw), 0);
    assert_eq!(sample(&mut collector, &mut raw), 0);
}

/// What is in the interface of an instance, or in its function, is in no ring.
#[test]
fn an_instance_holds_nothing_once_all_came_back_or_nothing_came_for_a_while() {
    let (mut collector, mut raw) = one_instance();
    let mut after = |raw: &mut SwitchReading, ms: u64| {
        for _ in 0..ms {
            raw.at = raw.at + Nanos::from_millis(1);
            collector.sample(raw);
        }
        collector.slot(Slot(3)).unwrap().holds_nothing
    };
    // What an earlier instance of the slot kept.
    raw.slots[3].to_packets = 10;
    raw.slots[3].back_packets = 7;
    assert!(after(&mut raw, 1));
    raw.slots[3].to_packets += 5;
    assert!(!after(&mut raw, 1));
    raw.slots[3].back_packets += 4;
    assert!(!after(&mut raw, 150));
    raw.slots[3].back_packets += 1;
    assert!(after(&mut raw, 1));
    // Of a function that drops packets, one does not come.
    raw.slots[3].to_packets += 2;
    assert!(!after(&mut raw, 200));
    assert!(after(&mut raw, 1));
    raw.slots[3].to_packets += 1;
    raw.slots[3].back_packets += 3;
    assert!(!after(&mut raw, 1), "counters are read once a millisecond");
    assert!(after(&mut raw, 1));
    // A ring says it at once.
    raw.slots[3].back_used = 1;
    assert!(!after(&mut raw, 1));
}

/// What a worker has put into a ring is told with the end of its turn.
#[test]
fn time_in_which_a_worker_has_no_cpu_is_no_waiting() {
    let (mut collector, mut raw) = one_instance();
    raw.slots[3].ring_slots = 1_024;
    raw.slots[3].ring_used = 5;
    let mut after = |ms: u64, turns: u64| {
        for _ in 0..ms {
            raw.at = raw.at + Nanos::from_millis(1);
            raw.workers[0].turns += turns;
            collector.sample(&raw);
        }
        collector.slot(Slot(3)).unwrap().waiting.as_millis()
    };
    after(1, 1);
    assert_eq!(after(40, 1), 40);
    // It may sleep for 20 ms.
    assert_eq!(after(30, 0), 70);
    // It did not: the instance may not have been told of its packets for all this time.
    assert_eq!(after(1, 0), 39);
    assert_eq!(after(500, 0), 39);
    assert_eq!(after(10, 1), 49);
    // Once for each gap.
    assert_eq!(after(40, 0), 48);
    assert_eq!(collector.slot(Slot(3)).unwrap().excused, Nanos::from_millis(573));
}

#[test]
fn capacity_is_learned_only_from_instances_with_packets_waiting() {
    let (mut collector, mut raw) = one_instance();
    collector.assign(Slot(4), ServiceId(0), InstanceId(2));
    let learned = |collector: &Collector| collector.service(ServiceId(0)).learned_capacity_pps;
    for ms in 0..2_000u64 {
        raw.at = Nanos::from_millis(ms);
        // The first one is throttled for nine of ten milliseconds; the second is mostly idle.
        raw.slots[3].ring_used = 500;
        raw.slots[3].consumed += if ms % 10 == 0 { 400 } else { 0 };
        raw.slots[4].consumed += 1;
        collector.sample(&raw);
        if ms < 200 {
            assert_eq!(learned(&collector), None, "{ms}");
        }
    }
    assert!(
        near(learned(&collector).unwrap(), 40_000.0, 0.02),
        "{:?}",
        learned(&collector)
    );
}

#[test]
fn a_new_flow_of_a_silent_service_has_the_least_expected_rate() {
    let (mut collector, mut raw) = one_instance();
    raw.slots[3].live_flows = 5;
    collector.sample(&raw);
    assert_eq!(collector.service(ServiceId(0)).expected_pps, EXPECTED_FLOOR_PPS);
}

#[test]
fn samples_that_do_not_advance_are_ignored() {
    let (mut collector, mut raw) = one_instance();
    raw.at = Nanos::from_millis(5);
    collector.sample(&raw);
    raw.slots[3].to_packets = 100;
    collector.sample(&raw);
    raw.at = Nanos::from_millis(4);
    collector.sample(&raw);
    assert_eq!(collector.slot(Slot(3)).unwrap().arrivals_fast_pps, 0.0);
    raw.at = Nanos::from_millis(6);
    collector.sample(&raw);
    assert!(collector.slot(Slot(3)).unwrap().arrivals_fast_pps > 0.0);
}

fn observation() -> model::Observation {
    model::Observation {
        service: ServiceId(0),
        at: Nanos::ZERO,
        counter_age: Nanos::ZERO,
        min: 1,
        max: 8,
        wanted: 1,
        offered_fast_pps: 0.0,
        offered_stable_pps: 0.0,
        unserved_fast_pps: 0.0,
        hot: false,
        places: Vec::new(),
        instances: Vec::new(),
    }
}

#[test]
fn a_pause_of_the_switch_does_not_make_an_instance_look_idle() {
    let (mut collector, mut raw) = one_instance();
    raw.slots[3].live_flows = 4;
    for ms in 0..1_000 {
        raw.at = Nanos::from_millis(ms);
        raw.slots[3].to_packets += 8;
        collector.sample(&raw);
    }
    for ms in 1_000..1_030 {
        raw.at = Nanos::from_millis(ms);
        collector.sample(&raw);
    }
    let rates = *collector.slot(Slot(3)).unwrap();
    assert!(
        rates.arrivals_fast_pps < 1_000.0,
        "three time constants: {rates:?}"
    );
    assert!(near(rates.load_pps(), 8_000.0 * 0.887, 0.05), "{rates:?}");
    // When its flows have really ended it is idle again within a second.
    for ms in 1_030..2_000 {
        raw.at = Nanos::from_millis(ms);
        collector.sample(&raw);
    }
    assert!(collector.slot(Slot(3)).unwrap().load_pps() < 8_000.0 * 0.03);
}
