//! The decisions of `ladder`, `inreal`, `threshold`, `predictive`, `hpa` and `kpa` on observations, step by step.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

use autoscaling::{Autoscaler, Decision, Policy as _};
use model::{
    InstanceId, InstanceObservation, InstanceSignals, InstanceState, Nanos, Observation, PlaceObservation,
    ServiceId, Slot,
};

const CAPACITY: f64 = 1e6;

fn observation(wanted: u32, offered: f64) -> Observation {
    let share = offered / f64::from(wanted.max(1));
    Observation {
        service: ServiceId(0),
        at: Nanos::ZERO,
        counter_age: Nanos::ZERO,
        min: 1,
        max: 20,
        wanted,
        offered_fast_pps: offered,
        offered_stable_pps: offered,
        unserved_fast_pps: 0.0,
        hot: false,
        places: Vec::new(),
        instances: (1..=wanted).map(|id| instance(id, share)).collect(),
    }
}

fn instance(id: u32, pps: f64) -> InstanceObservation {
    InstanceObservation {
        id: InstanceId(id),
        slot: Slot(id as u16),
        state: InstanceState::Active,
        capacity_pps: CAPACITY,
        arrivals_fast_pps: pps,
        arrivals_stable_pps: pps,
        ring_drops_fast_pps: 0.0,
        ring_occupancy: 0.0,
        signals: InstanceSignals {
            returns_fast_pps: pps,
            live_flows: 1,
            ..InstanceSignals::default()
        },
        busy: None,
        memory: None,
        cpu_quota: None,
        place: 0,
    }
}

fn policy(name: &str, parameters: serde_json::Value) -> Autoscaler {
    Autoscaler::with_parameters(name, parameters).unwrap()
}

/// Steps every millisecond from `from` on, applying decisions at once, and returns the last one.
fn play(scaler: &mut Autoscaler, seen: &mut Observation, from: u64, ms: u64) -> Decision {
    let mut last = None;
    for at in from..from + ms {
        let decision = scaler.step(seen, Nanos::from_millis(at));
        let offered = (seen.offered_fast_pps, seen.offered_stable_pps, seen.hot);
        let mut next = observation(decision.desired, offered.0);
        (next.offered_stable_pps, next.hot) = (offered.1, offered.2);
        *seen = next;
        last = Some(decision);
    }
    last.unwrap()
}

#[test]
fn ladder_scales_up_within_two_steps_of_a_burst_and_keeps_it() {
    let mut scaler = policy("ladder", serde_json::json!({"burst": "1s"}));
    let mut seen = observation(4, 2.6e6);
    assert_eq!(play(&mut scaler, &mut seen, 1, 10_000).desired, 4);
    // The load doubles within a millisecond: the fast rate shows a tenth of it, the rings are hot.
    seen.offered_fast_pps = 2.6e6 + 2.6e6 * (1.0 - (-0.1f64).exp());
    seen.hot = true;
    let decision = scaler.step(&seen, Nanos::from_millis(10_001));
    assert_eq!(decision.reason.rule, "burst");
    // All 5.2 Mpps, less what chance explains, at 80 %.
    assert_eq!(decision.desired, 7, "{}", decision.reason);
    let mut after = observation(7, 2.6e6);
    assert_eq!(
        scaler.step(&after, Nanos::from_millis(10_002)).reason.rule,
        "burst_lasts"
    );
    assert_eq!(play(&mut scaler, &mut after, 10_003, 900).desired, 7);
    assert_eq!(
        play(&mut scaler, &mut after, 10_903, 200).desired,
        4,
        "what 2.6 Mpps leave at 68 %"
    );
}

/// A burst every two seconds: the second one's instances stay until there was none for `calm`.
#[test]
fn repeated_bursts_do_not_make_the_count_oscillate() {
    let mut scaler = policy("ladder", serde_json::json!({"burst": "500ms", "calm": "4s"}));
    let mut seen = observation(4, 2.6e6);
    let (mut counts, mut fast) = (vec![4], 2.6e6);
    for ms in 1..60_000u64 {
        let bursts = (20_000..40_000).contains(&ms) && ms % 2_000 < 100;
        let now = if bursts { 5e6 } else { 2.6e6 };
        fast += (1.0 - (-0.1f64).exp()) * (now - fast);
        seen.offered_fast_pps = fast;
        let desired = scaler.step(&seen, Nanos::from_millis(ms)).desired;
        if Some(&desired) != counts.last() {
            counts.push(desired);
        }
        seen = observation(desired, 2.6e6);
    }
    // Up within the first burst and down after it, up within the second, and down after the last.
    let turns = |count: &&[u32]| (count[0] < count[1]) != (count[1] < count[2]);
    assert_eq!(counts.windows(3).filter(turns).count(), 3, "{counts:?}");
    assert!(counts.iter().all(|count| *count <= 8), "{counts:?}");
}

/// A linear rise: its mean lags by the averaging window. The lag is added, so that instances are there in
/// time.
#[test]
fn a_rise_is_detected_before_its_mean_follows() {
    let mut scaler = policy("ladder", serde_json::json!({}));
    let mut seen = observation(4, 2.6e6);
    play(&mut scaler, &mut seen, 1, 1_000);
    let (mut fast, mut wanted) = (2.6e6, 4);
    for ms in 1..=100u32 {
        let now = 2.6e6 + 0.05e6 * f64::from(ms);
        fast += (1.0 - (-0.1f64).exp()) * (now - fast);
        let mut seen = observation(wanted, 2.6e6);
        seen.offered_fast_pps = fast;
        wanted = scaler
            .step(&seen, Nanos::from_millis(1_000 + u64::from(ms)))
            .desired;
        if ms > 40 {
            let needed = now / (0.8 * CAPACITY);
            assert!(
                f64::from(wanted) > needed - 0.4,
                "{wanted} of {needed} at {ms} ms"
            );
            assert!(
                f64::from(wanted) < needed + 1.25,
                "{wanted} of {needed} at {ms} ms"
            );
        }
    }
}

/// One of eight has more flows than it can carry: they are pinned, and a ninth instance would not help.
#[test]
fn no_instances_are_requested_if_they_would_not_help() {
    let hot = |count: usize| {
        let mut scaler = policy("ladder", serde_json::json!({}));
        let mut seen = observation(8, 5e6);
        let mut desired = 8;
        for ms in 1..500 {
            seen.hot = true;
            for instance in seen.instances.iter_mut().take(count) {
                instance.ring_occupancy = 1.0;
            }
            desired = desired.max(scaler.step(&seen, Nanos::from_millis(ms)).desired);
        }
        desired
    };
    assert_eq!(hot(1), 8);
    assert_eq!(hot(3), 8);
    // Most are hot: their capacity is lower than assumed.
    assert_eq!(hot(4), 9);
}

/// Rings hold a twentieth, and packets wait 5 ms: no ring is hot, yet the capacity is too low. A pause of a
/// few milliseconds is no reason to scale.
#[test]
fn the_backlog_counts_if_a_ring_is_hot() {
    for (hot, packets, rule, desired) in [
        (false, 37_500, "calm", 4),
        (true, 0, "burst", 4),
        // 3 Mpps, and 150 000 packets within 100 ms.
        (true, 37_500, "burst", 6),
        // One instance's backlog justifies at most one more.
        (true, 2_000_000, "burst", 9),
    ] {
        let mut seen = observation(4, 3e6);
        for instance in &mut seen.instances {
            instance.signals.ring_packets = packets;
            instance.ring_occupancy = 0.05;
        }
        let mut scaler = policy("ladder", serde_json::json!({}));
        scaler.step(&seen, Nanos::from_millis(1));
        seen.hot = hot;
        let decision = scaler.step(&seen, Nanos::from_millis(2));
        assert_eq!(
            (decision.reason.rule, decision.desired),
            (rule, desired),
            "{packets}: {}",
            decision.reason
        );
    }
}

/// Without samples the load is unknown.
#[test]
fn missing_samples_keep_the_count() {
    for (gap_ms, least) in [(90, 1), (2_000, 6)] {
        let mut scaler = policy("ladder", serde_json::json!({}));
        let mut seen = observation(6, 0.5e6);
        // The initial count is about to leave the window.
        seen.wanted = 6;
        for ms in 1..29_990u64 {
            assert_eq!(scaler.step(&seen, Nanos::from_millis(ms)).desired, 6);
        }
        let after = 29_990 + gap_ms;
        let mut desired = 6;
        for ms in after..after + 1_000 {
            desired = desired.min(scaler.step(&seen, Nanos::from_millis(ms)).desired);
        }
        assert_eq!(desired, least, "after {gap_ms} ms");
    }
    // Samples with a longer constant interval are not missing.
    let mut scaler = policy("ladder", serde_json::json!({}));
    let seen = observation(6, 0.5e6);
    let step = |scaler: &mut Autoscaler, at: u64| scaler.step(&seen, Nanos::from_millis(500 * at)).desired;
    assert_eq!((1..80).map(|at| step(&mut scaler, at)).min(), Some(1));
}

#[test]
fn random_variation_starts_no_burst() {
    // 30 packets per second on an instance of 40: five in ten milliseconds are no evidence.
    let mut scaler = policy("ladder", serde_json::json!({}));
    let mut seen = observation(1, 20.0);
    seen.instances[0].capacity_pps = 40.0;
    for at in 1..1_000 {
        seen.offered_fast_pps = if at % 50 == 0 { 120.0 } else { 20.0 };
        let decision = scaler.step(&seen, Nanos::from_millis(at));
        assert_eq!(decision.desired, 1, "{}", decision.reason);
    }
}

#[test]
fn ladder_raises_and_lowers_quotas_before_the_count() {
    let mut scaler = policy(
        "ladder",
        serde_json::json!({"cpus_max": 2.0, "burst": "10ms", "calm": "500ms"}),
    );
    let mut seen = observation(2, 1.9e6);
    for instance in &mut seen.instances {
        (instance.cpu_quota, instance.ring_occupancy) = (Some(1.0), 0.5);
        (instance.arrivals_fast_pps, instance.arrivals_stable_pps) = (0.95e6, 0.95e6);
    }
    seen.offered_stable_pps = 1.3e6;
    seen.hot = true;
    let decision = scaler.step(&seen, Nanos::from_millis(1));
    assert_eq!(decision.desired, 2, "{}", decision.reason);
    let cpus: Vec<f64> = decision.quotas.iter().map(|quota| quota.cpus).collect();
    assert_eq!(cpus.len(), 2);
    assert!(cpus.iter().all(|cpus| (1.1..=1.5).contains(cpus)), "{cpus:?}");
    assert!(decision.case.is_some());
    assert!(
        scaler.step(&seen, Nanos::from_millis(2)).quotas.is_empty(),
        "it is under way"
    );

    // The load is gone: quotas fall, second by second, before the count does.
    let mut calm = observation(2, 0.3e6);
    for (instance, cpus) in calm.instances.iter_mut().zip(&cpus) {
        (instance.cpu_quota, instance.capacity_pps) = (Some(*cpus), CAPACITY * cpus);
    }
    let mut steps = (3..2_500).map(|at| scaler.step(&calm, Nanos::from_millis(at)));
    let decision = steps.find(|decision| !decision.quotas.is_empty()).unwrap();
    assert_eq!((decision.desired, decision.reason.rule), (2, "quota_first"));
    assert!(
        decision.quotas.iter().all(|quota| quota.cpus == 1.0),
        "{:?}",
        decision.quotas
    );
    for instance in &mut calm.instances {
        (instance.cpu_quota, instance.capacity_pps) = (Some(1.0), CAPACITY);
    }
    let mut counts = (1_100..3_600).map(|at| scaler.step(&calm, Nanos::from_millis(at)).desired);
    assert!(counts.any(|count| count == 1));
}

#[test]
fn threshold_takes_one_step_at_a_time_and_quota_first() {
    let mut scaler = policy("threshold", serde_json::json!({"cpus_max": 1.25}));
    let mut seen = observation(2, 1.7e6);
    for instance in &mut seen.instances {
        instance.cpu_quota = Some(1.0);
    }
    let first = scaler.step(&seen, Nanos::from_secs(1));
    assert_eq!(
        (first.desired, first.quotas.len(), first.quotas[0].cpus),
        (2, 2, 1.25)
    );
    for instance in &mut seen.instances {
        instance.cpu_quota = Some(1.25);
    }
    assert_eq!(
        scaler.step(&seen, Nanos::from_millis(1_500)).reason.rule,
        "between_steps"
    );
    let second = scaler.step(&seen, Nanos::from_secs(2));
    assert_eq!((second.desired, second.reason.rule), (3, "above_high"));
    seen.offered_stable_pps = 0.4e6;
    let down = scaler.step(&seen, Nanos::from_secs(4));
    assert_eq!(
        (down.desired, down.quotas.len(), down.reason.rule),
        (2, 2, "below_low_quota")
    );
    for instance in &mut seen.instances {
        instance.cpu_quota = Some(1.0);
    }
    assert_eq!(scaler.step(&seen, Nanos::from_secs(6)).desired, 1);
}

/// A periodic load: from 1 to 5 Mpps and back within 40 s.
fn wave(at_s: f64) -> f64 {
    3e6 - 2e6 * (at_s / 40.0 * std::f64::consts::TAU).cos()
}

/// How often the forecast exceeded the load's own count, and how often it would have in shadow mode, over ten
/// periods.
fn forecasts(parameters: serde_json::Value) -> (u32, u32) {
    let mut scaler = policy("predictive", parameters);
    let mut seen = observation(5, wave(0.0));
    let (mut ahead, mut shadowed) = (0, 0);
    for at in 1..4_000u64 {
        let load = wave(at as f64 / 10.0);
        (seen.offered_fast_pps, seen.offered_stable_pps) = (load, load);
        let decision = scaler.step(&seen, Nanos::from_millis(100 * at));
        if let Some(fit) = scaler.take_fit() {
            scaler.give(fit.run());
        }
        ahead += u32::from(decision.reason.rule == "forecast");
        shadowed += u32::from(decision.shadow.is_some_and(|would| would > decision.desired));
        seen.wanted = decision.desired;
    }
    (ahead, shadowed)
}

#[test]
fn an_accurate_forecast_adds_instances_or_reports_them_in_shadow_mode() {
    let seasonal = |shadow: bool| serde_json::json!({"season": "40s", "lead": "4s", "shadow": shadow, "scale_down_window": "1s"});
    let (ahead, shadowed) = forecasts(seasonal(false));
    assert!(ahead > 0 && shadowed == 0, "{ahead} {shadowed}");
    let (ahead, shadowed) = forecasts(seasonal(true));
    assert!(ahead == 0 && shadowed > 0, "{ahead} {shadowed}");
}

/// A step's duration does not depend on a fit's: the fit runs off the loop, and nothing depends on it before
/// its result is returned.
#[test]
fn a_fit_runs_off_the_loop_and_foreign_results_are_ignored() {
    let path = |scaler: &Autoscaler| {
        let Autoscaler::Predictive(policy) = scaler else {
            unreachable!()
        };
        let state = serde_json::to_value(policy.state()).unwrap();
        (state["path"].as_array().unwrap().len(), state["passed"].clone())
    };
    let mut scaler = policy("predictive", serde_json::json!({}));
    let seen = observation(5, 3e6);
    let (mut fits, mut fitted) = (Vec::new(), None);
    for at_s in 0..60 {
        scaler.step(&seen, Nanos::from_secs(at_s));
        if let Some(fit) = scaler.take_fit() {
            fits.push(at_s);
            fitted.get_or_insert(fit.run());
        }
        if at_s < 25 {
            assert_eq!(path(&scaler).0, 0, "at {at_s} s");
        } else if at_s == 25 {
            let mut other = policy("predictive", serde_json::json!({}));
            other.give(fitted.clone().unwrap());
            assert_eq!(path(&other).0, 0);
            scaler.give(fitted.clone().unwrap());
            // Two seconds of lead and thirty until the next fit, of which five have passed.
            assert_eq!(path(&scaler), (32, 5.into()));
        }
    }
    assert_eq!(fits, [20, 50]);
}

#[test]
fn a_forecast_of_noise_is_not_used() {
    let mut scaler = policy(
        "predictive",
        serde_json::json!({"step": "100ms", "lead": "500ms"}),
    );
    let mut seen = observation(5, 3.4e6);
    let mut random = 1u64;
    for at in 1..3_000u64 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let noise = (random >> 33) as f64 / f64::from(1u32 << 31) - 0.5;
        seen.offered_fast_pps = 3.4e6 * (1.0 + 0.4 * noise);
        let decision = scaler.step(&seen, Nanos::from_millis(100 * at));
        assert_eq!(decision.desired, 5, "{}", decision.reason);
    }
}

#[test]
fn hpa_decides_every_period_and_kpa_panics_within_its_window() {
    let mut scaler = policy("hpa", serde_json::json!({"target_percent": 50, "period": "5s"}));
    let mut seen = observation(2, 1.8e6);
    // At first no instance has a whole sample.
    assert_eq!(play(&mut scaler, &mut seen, 0, 4_999).desired, 2);
    for at in (5..40).step_by(5) {
        let decision = scaler.step(&seen, Nanos::from_secs(at));
        seen.wanted = decision.desired;
    }
    assert_eq!(seen.wanted, 4, "1.8 Mpps at half of the capacity");

    let mut scaler = policy("kpa", serde_json::json!({}));
    let mut seen = observation(1, 0.5e6);
    assert_eq!(play(&mut scaler, &mut seen, 0, 20_000).desired, 1);
    (seen.offered_fast_pps, seen.offered_stable_pps) = (7e6, 7e6);
    let decision = play(&mut scaler, &mut seen, 20_000, 8_000);
    assert_eq!(decision.desired, 10);
    // A low load does not end the panic before its window.
    (seen.offered_fast_pps, seen.offered_stable_pps) = (0.5e6, 0.5e6);
    assert_eq!(play(&mut scaler, &mut seen, 28_000, 50_000).desired, 10);
    assert!(play(&mut scaler, &mut seen, 78_000, 60_000).desired < 10);
}

/// Instances with that quota each, which carry that many packets per second together.
fn sized(instances: u32, cpus: f64, pps: f64) -> Observation {
    let mut seen = observation(instances, pps);
    for instance in &mut seen.instances {
        (instance.cpu_quota, instance.capacity_pps) = (Some(cpus), CAPACITY * cpus);
    }
    seen
}

#[test]
fn inreal_raises_quotas_first_and_adds_instances_beyond_the_largest_size() {
    let parameters = serde_json::json!({"cpus_max": 1.0, "target": 0.8, "calm": "1s"});
    let mut scaler = policy("inreal", parameters);
    // Packets for 0.34 of a CPU each, which is 0.8 of 0.425.
    let decision = scaler.step(&sized(2, 0.4, 0.68e6), Nanos::from_millis(1));
    assert_eq!(
        (decision.desired, decision.reason.rule),
        (2, "quota"),
        "{}",
        decision.reason
    );
    let cpus: Vec<f64> = decision.quotas.iter().map(|quota| quota.cpus).collect();
    assert!(
        cpus.len() == 2 && cpus.iter().all(|cpus| (cpus - 0.425).abs() < 1e-9),
        "{cpus:?}"
    );
    let next = scaler.step(&sized(2, 0.4, 0.68e6), Nanos::from_millis(2));
    assert!(next.quotas.is_empty(), "it is under way");
    // A burst: all get their largest size, and 2.5 CPUs are needed.
    let decision = scaler.step(&sized(2, 0.425, 2e6), Nanos::from_millis(20));
    assert_eq!(
        (decision.desired, decision.reason.rule),
        (3, "quota_exhausted"),
        "{}",
        decision.reason
    );
    assert!(decision.quotas.iter().all(|quota| quota.cpus == 1.0) && decision.quotas.len() == 2);
    let case = decision.case.unwrap();
    let again = autoscaling::explain::explain(&case.to_string()).unwrap();
    let again = serde_json::to_value(again).unwrap();
    assert_eq!(again["steps"][0]["replicas"], 3, "{again}");
}

/// Two instances at the card, which has a limit of 1.5 Mpps, and one at the host.
fn placed(card: [f64; 2], host: f64) -> Observation {
    let mut seen = observation(3, 0.0);
    seen.min = 3;
    for (instance, (pps, place)) in seen
        .instances
        .iter_mut()
        .zip([(card[0], 0), (card[1], 0), (host, 1)])
    {
        (instance.arrivals_fast_pps, instance.arrivals_stable_pps) = (pps, pps);
        instance.place = place;
    }
    let place = |name: &str, arrivals_pps: f64, limit_pps: Option<f64>| PlaceObservation {
        name: name.to_owned(),
        arrivals_pps,
        limit_pps,
        has_room: true,
        rank: 0,
    };
    let of_card = card[0] + card[1];
    seen.places = vec![place("card", of_card, Some(1.5e6)), place("host", host, None)];
    seen
}

#[test]
fn inreal_leaves_a_place_above_its_limit_and_comes_back_when_the_load_falls() {
    let mut scaler = policy("inreal", serde_json::json!({"calm": "1s"}));
    let mut at = 0;
    let mut until = |seen: &Observation, ms: u64| {
        let mut found = Vec::new();
        for _ in 0..ms {
            at += 1;
            let decision = scaler.step(seen, Nanos::from_millis(at));
            assert_eq!(decision.desired, 3, "{}", decision.reason);
            found.extend(decision.relocation.map(|of| (at, of, decision.case.unwrap())));
        }
        found
    };
    assert_eq!(until(&placed([0.8e6, 0.7e6], 0.1e6), 100), [], "at its limit");
    // 0.1 Mpps too much: the smallest instance that is enough leaves, once it has lasted for 20 ms.
    let found = until(&placed([0.9e6, 0.7e6], 0.1e6), 100);
    let [(121, of, case)] = &found[..] else {
        panic!("{found:?}");
    };
    assert_eq!((of.instance, of.to_place), (InstanceId(2), 1));
    assert_eq!(
        of.reason.to_string(),
        "above_limit_of_place: place_pps 1600000, limit_pps 1500000, instance_pps 700000"
    );
    let again = autoscaling::explain::explain(&case.to_string()).unwrap();
    let again = serde_json::to_value(again).unwrap();
    assert_eq!(again["steps"][0]["relocation"]["to_place"], 1, "{again}");
    // Room for 0.8 of the limit only: else it would go to and fro.
    assert_eq!(until(&placed([0.6e6, 0.5e6], 0.2e6), 3_000), []);
    let found = until(&placed([0.6e6, 0.3e6], 0.2e6), 1_500);
    let [(at, of, _)] = &found[..] else {
        panic!("{found:?}");
    };
    assert_eq!(*at, 3_200 + 1_001, "after `calm`");
    assert_eq!((of.instance, of.to_place), (InstanceId(3), 0));
    assert_eq!(of.reason.rule, "earlier_place_has_room");
    // Nothing takes an instance that no place has room for.
    let mut full = placed([0.9e6, 0.9e6], 0.1e6);
    full.places[1].has_room = false;
    assert_eq!(until(&full, 2_000), []);
}

/// The order of the places is the observation's: here the host comes first.
#[test]
fn an_instance_comes_back_to_the_place_of_the_lowest_rank() {
    let mut scaler = policy("inreal", serde_json::json!({"calm": "1s", "goal": "power"}));
    let mut seen = placed([0.2e6, 0.3e6], 0.1e6);
    (seen.places[0].rank, seen.places[1].rank) = (1, 0);
    let mut found = Vec::new();
    for ms in 1..=1_200 {
        found.extend(scaler.step(&seen, Nanos::from_millis(ms)).relocation);
    }
    let [of] = &found[..] else {
        panic!("{found:?}");
    };
    assert_eq!((of.instance, of.to_place), (InstanceId(1), 1), "{}", of.reason);
    assert_eq!(of.reason.rule, "earlier_place_has_room");
}

/// Quota first, then a place, then more instances.
#[test]
fn ladder_moves_an_instance_before_it_tries_one_more() {
    let steps = |cpus_max: Option<f64>, has_places: bool| {
        let mut scaler = match cpus_max {
            Some(most) => policy("ladder", serde_json::json!({"cpus_max": most})),
            None => policy("ladder", serde_json::json!({})),
        };
        // At the card 1.8 Mpps of 1.5 arrive, and its rings stay hot.
        let mut seen = placed([0.9e6, 0.9e6], 0.1e6);
        seen.hot = true;
        seen.max = 8;
        for instance in &mut seen.instances {
            (instance.capacity_pps, instance.cpu_quota) = (1e6, Some(0.5));
            instance.ring_occupancy = 0.5;
        }
        (seen.offered_fast_pps, seen.offered_stable_pps) = (1.7e6, 1.7e6);
        if !has_places {
            seen.places.clear();
        }
        let mut rungs = Vec::new();
        for ms in 1..=80 {
            let decision = scaler.step(&seen, Nanos::from_millis(ms));
            if !decision.quotas.is_empty() {
                rungs.push((ms, "quota"));
                for quota in &decision.quotas {
                    let instance = seen.instances.iter_mut().find(|i| i.id == quota.instance);
                    instance.unwrap().cpu_quota = Some(quota.cpus);
                }
            }
            if let Some(of) = decision.relocation {
                assert_eq!((decision.desired, of.to_place), (3, 1), "{}", decision.reason);
                rungs.push((ms, "place"));
            }
            if decision.desired > 3 {
                assert_eq!(decision.reason.rule, "still_hot");
                rungs.push((ms, "count"));
                break;
            }
        }
        rungs
    };
    assert_eq!(steps(None, false), [(21, "count")], "as without places");
    assert_eq!(
        steps(None, true),
        [(21, "place")],
        "and no more while it is on its way"
    );
    assert_eq!(steps(Some(0.5), false), [(21, "count")]);
    let all = steps(Some(0.6), true);
    assert_eq!((all[0].1, all.last().unwrap().1), ("quota", "place"), "{all:?}");
}

#[test]
fn inreal_adds_an_instance_where_rings_would_be_cleared_too_late() {
    let mut scaler = policy(
        "inreal",
        serde_json::json!({"cpus_max": 1.0, "target": 1.0, "clear": "10ms"}),
    );
    let mut seen = sized(2, 1.0, 1.9e6);
    scaler.step(&seen, Nanos::from_millis(1));
    // What two instances at their largest carry beside their arrivals, in 10 ms: 500 packets each.
    seen.instances[0].signals.ring_packets = 400;
    let decision = scaler.step(&seen, Nanos::from_millis(100));
    assert_eq!(decision.desired, 2, "{}", decision.reason);
    seen.instances[0].signals.ring_packets = 600;
    let decision = scaler.step(&seen, Nanos::from_millis(101));
    assert_eq!(
        (decision.desired, decision.reason.rule),
        (3, "clears_too_late"),
        "{}",
        decision.reason
    );
    seen.wanted = 3;
    let decision = scaler.step(&seen, Nanos::from_millis(110));
    assert_eq!(decision.desired, 3, "the third one is on its way");
}

/// 600 packets leave in 12 ms, beside what comes. An instance that is ready after that is of no use, one that stands by is.
#[test]
fn inreal_adds_no_instance_that_comes_when_the_ring_is_clear() {
    let decide = |start_ms: u64, has_standby: bool| {
        let parameters = serde_json::json!({"cpus_max": 1.0, "target": 1.0, "clear": "10ms"});
        let mut scaler = policy("inreal", parameters);
        let mut seen = sized(2, 1.0, 1.9e6);
        // The second instance is seen from its creation on.
        seen.instances[1].state = InstanceState::Creating;
        scaler.step(&seen, Nanos::from_millis(1));
        seen.instances[1].state = InstanceState::Active;
        scaler.step(&seen, Nanos::from_millis(1 + start_ms));
        if has_standby {
            let mut third = seen.instances[1].clone();
            (third.id, third.state) = (InstanceId(3), InstanceState::Standby);
            (third.arrivals_fast_pps, third.arrivals_stable_pps) = (0.0, 0.0);
            seen.instances.push(third);
        }
        seen.instances[0].signals.ring_packets = 600;
        let decision = scaler.step(&seen, Nanos::from_millis(500));
        (decision.desired, decision.reason.to_string())
    };
    let (desired, reason) = decide(11, false);
    assert_eq!(desired, 3, "{reason}");
    // 50 packets are left after 11 ms, and with a third of the arrivals gone 367 leave in a millisecond.
    let figures = "clears_ms 12, clears_with_one_more_ms 11.136, start_ms 11";
    assert!(
        reason.starts_with("clears_too_late") && reason.ends_with(figures),
        "{reason}"
    );
    let (desired, reason) = decide(13, false);
    assert_eq!(desired, 2, "{reason}");
    let (desired, reason) = decide(13, true);
    assert_eq!(desired, 3, "{reason}");
}

#[test]
fn inreal_removes_instances_first_and_then_lowers_quotas() {
    let parameters = serde_json::json!({"goal": "cpu", "target": 0.8, "calm": "2s", "cpus_min": 0.05});
    let mut scaler = policy("inreal", parameters);
    let mut at = 1;
    let mut until = |scaler: &mut Autoscaler, seen: &Observation, ends: fn(&Decision) -> bool| loop {
        let decision = scaler.step(seen, Nanos::from_millis(at));
        at += 1;
        assert!(at < 10_000, "{}", decision.reason);
        if ends(&decision) {
            break (decision, at);
        }
    };
    // Its first quota is kept for the time that is held, and the instances for the calm.
    let (decision, when) = until(&mut scaler, &sized(3, 1.0, 0.3e6), |of| !of.quotas.is_empty());
    assert_eq!((decision.desired, when > 1_000), (3, true), "{}", decision.reason);
    assert!(
        decision
            .quotas
            .iter()
            .all(|quota| (quota.cpus - 0.125).abs() < 1e-9),
        "{:?}",
        decision.quotas
    );
    let (decision, when) = until(&mut scaler, &sized(3, 0.125, 0.3e6), |of| of.desired < 3);
    assert_eq!(
        (decision.desired, decision.reason.rule),
        (1, "fewer_suffice"),
        "{}",
        decision.reason
    );
    assert!(when > 2_000);
    // Never below the smallest.
    let (decision, _) = until(&mut scaler, &sized(1, 0.4, 1e3), |of| !of.quotas.is_empty());
    assert!(decision.quotas[0].cpus >= 0.05, "{:?}", decision.quotas);
}

#[test]
fn inreal_changes_the_count_alone_where_there_are_no_quotas() {
    let mut scaler = policy("inreal", serde_json::json!({"target": 0.5}));
    let decision = scaler.step(&observation(2, 1.4e6), Nanos::from_millis(1));
    assert_eq!(
        (decision.desired, decision.quotas.len()),
        (3, 0),
        "{}",
        decision.reason
    );
}

#[test]
fn inreal_refuses_sizes_that_are_none() {
    for wrong in [0.0, -1.0] {
        for key in ["cpus_max", "cpus_min", "memory_high"] {
            let refused = Autoscaler::with_parameters("inreal", serde_json::json!({key: wrong})).unwrap_err();
            assert!(refused.to_string().contains("above 0"), "{refused}");
        }
    }
}

/// A service whose load needs one instance, and whose instances share the flows evenly. What is decided happens at once.
struct Filling {
    scaler: Autoscaler,
    at_ms: u64,
    capacity_pps: f64,
    /// When each instance came; the last one leaves first.
    born_ms: Vec<u64>,
    decisions: Vec<Decision>,
}

impl Filling {
    fn new(parameters: serde_json::Value) -> Filling {
        Filling {
            scaler: policy("inreal", parameters),
            at_ms: 0,
            capacity_pps: CAPACITY,
            born_ms: vec![0],
            decisions: Vec::new(),
        }
    }

    /// `flows` of the service, by seconds from now on. `memory` is the share of an instance by its flows and its age in
    /// seconds. Returns the number of instances at the end.
    fn go_on(
        &mut self,
        seconds: u64,
        flows: impl Fn(f64) -> f64,
        memory: impl Fn(f64, f64) -> Option<f64>,
    ) -> usize {
        for step in 1..=10 * seconds {
            self.at_ms += 100;
            let count = self.born_ms.len();
            let live = flows(step as f64 / 10.0) as u64 / count as u64;
            let mut seen = observation(count as u32, 1e5);
            for (instance, born_ms) in seen.instances.iter_mut().zip(&self.born_ms) {
                let age_s = (self.at_ms - born_ms) as f64 / 1e3;
                instance.capacity_pps = self.capacity_pps;
                instance.signals.live_flows = live;
                instance.memory = memory(live as f64, age_s);
            }
            let decision = self.scaler.step(&seen, Nanos::from_millis(self.at_ms));
            self.born_ms.resize(decision.desired as usize, self.at_ms);
            if decision.desired as usize != count {
                self.decisions.push(decision);
            }
        }
        self.born_ms.len()
    }
}

/// Full to 0.9 with 1,000 flows.
fn by_flows(flows: f64, _age_s: f64) -> Option<f64> {
    Some(0.1 + 0.0008 * flows)
}

#[test]
fn inreal_adds_instances_where_flows_fill_memory_and_removes_them_with_the_flows() {
    let mut service = Filling::new(serde_json::json!({"memory_high": 0.9}));
    let count = service.go_on(400, |s| 20.0 * s, by_flows);
    assert!((8..=9).contains(&count), "{count} for 8,000 flows");
    for decision in &service.decisions {
        assert_eq!(
            (decision.reason.rule, decision.quotas.len()),
            ("memory_high", 0),
            "{}",
            decision.reason
        );
    }
    let reason = service.decisions[0].reason.to_string();
    assert!(reason.contains("memory 0.90"), "{reason}");
    let before = service.decisions.len();
    assert_eq!(
        service.go_on(300, |_| 8_000.0, by_flows),
        count,
        "neither more nor fewer"
    );
    assert_eq!(service.decisions.len(), before);
    // One would be full with 1,500, and two are not.
    assert_eq!(service.go_on(300, |_| 1_500.0, by_flows), 2);
    assert!(
        service.decisions[before..]
            .iter()
            .all(|of| of.reason.rule == "fewer_suffice")
    );
    assert_eq!(service.go_on(300, |_| 10.0, by_flows), 1);
    // Never more than `max`.
    assert_eq!(service.go_on(2_000, |s| 20.0 * s, by_flows), 20);
}

#[test]
fn memory_that_is_always_near_its_limit_costs_a_service_one_instance() {
    let fills = |_: f64, age_s: f64| Some((0.1 + 0.01 * age_s).min(0.95));
    // A cache that is emptied every two minutes.
    let is_emptied = |_: f64, age_s: f64| Some((0.1 + 0.015 * (age_s % 120.0)).min(0.95));
    for memory in [&fills as &dyn Fn(f64, f64) -> Option<f64>, &is_emptied] {
        let mut service = Filling::new(serde_json::json!({"memory_high": 0.9}));
        assert_eq!(service.go_on(3_600, |_| 1_000.0, memory), 2);
        let rules: Vec<_> = service.decisions.iter().map(|of| of.reason.rule).collect();
        assert_eq!(rules, ["memory_high"]);
    }
    // As many flows each as then: one more. It stays one, however often they come.
    let mut service = Filling::new(serde_json::json!({"memory_high": 0.9}));
    assert_eq!(service.go_on(600, |_| 1_000.0, fills), 2);
    for _ in 0..5 {
        assert_eq!(service.go_on(300, |_| 2_000.0, fills), 3);
        assert_eq!(service.go_on(300, |_| 1_000.0, fills), 3);
    }
}

#[test]
fn memory_that_says_nothing_of_flows_adds_no_instance() {
    let rises = |s: f64| 100.0 * s;
    let full = |_: f64, _: f64| Some(0.99);
    let high = || Filling::new(serde_json::json!({"memory_high": 0.9}));
    // Full from the first flow on: allocated before, or filled in an earlier run of inco.
    assert_eq!(high().go_on(100, rises, full), 1);
    let mut service = high();
    let loads = |_: f64, age_s: f64| Some((0.1 * age_s).min(0.99));
    assert_eq!(service.go_on(20, |_| 0.0, loads), 1);
    assert_eq!(service.go_on(100, rises, loads), 1);
    assert_eq!(high().go_on(100, rises, |_, _| None), 1);
    assert_eq!(high().go_on(100, rises, |_, _| Some(f64::NAN)), 1);
    // Off by default.
    assert_eq!(Filling::new(serde_json::json!({})).go_on(100, rises, by_flows), 1);
}

#[test]
fn memory_that_fell_with_the_flows_may_be_full_with_fewer_of_them() {
    let mut service = Filling::new(serde_json::json!({"memory_high": 0.9}));
    assert_eq!(service.go_on(60, |s| (20.0 * s).min(1_002.0), by_flows), 2);
    assert_eq!(
        service.go_on(120, |s| (1_002.0 - 20.0 * s).max(10.0), by_flows),
        1
    );
    // Each has ten times as much to keep.
    let heavy = |flows: f64, _: f64| Some(0.1 + 0.008 * flows);
    assert_eq!(service.go_on(60, |s| (5.0 * s).min(150.0), heavy), 2);
}

#[test]
fn memory_counts_before_a_capacity_is_known() {
    let mut service = Filling::new(serde_json::json!({"memory_high": 0.9}));
    service.capacity_pps = 0.0;
    assert_eq!(service.go_on(150, |s| 20.0 * s, by_flows), 3);
    assert_eq!(service.decisions[0].reason.rule, "memory_high");
}

/// Removes these keys, at any depth.
fn strip(value: &mut serde_json::Value, keys: &[&str]) {
    match value {
        serde_json::Value::Object(map) => {
            map.retain(|key, _| !keys.contains(&key.as_str()));
            map.values_mut().for_each(|value| strip(value, keys));
        }
        serde_json::Value::Array(list) => list.iter_mut().for_each(|value| strip(value, keys)),
        _ => {}
    }
}

#[test]
fn a_decision_by_memory_is_explained_by_its_case_and_so_is_one_from_before_memory_counted() {
    let explained = |case: &serde_json::Value| {
        let answer = autoscaling::explain::explain(&case.to_string()).unwrap();
        let answer = serde_json::to_value(answer).unwrap();
        let step = &answer["steps"][0];
        (step["replicas"].clone(), step["reason"]["rule"].clone())
    };
    let mut service = Filling::new(serde_json::json!({"memory_high": 0.9}));
    service.go_on(60, |s| 20.0 * s, by_flows);
    let case = service.decisions[0].case.as_ref().unwrap();
    assert_eq!(explained(case), (2.into(), "memory_high".into()));

    let mut scaler = policy("inreal", serde_json::json!({}));
    let decision = scaler.step(&sized(2, 1.0, 2.4e6), Nanos::from_millis(1));
    let mut case = *decision.case.unwrap();
    let answer = explained(&case);
    strip(&mut case, &["memory", "memory_high", "flows_when_full"]);
    assert!(!case.to_string().contains("memory"), "{case}");
    assert_eq!(explained(&case), answer);
    assert_eq!(answer.1, "quota_exhausted");
}
