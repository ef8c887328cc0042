//! What instances' functions say of how busy they are, as a need for instances. It comes from containers: each value is
//! bounded, and one instance among N moves the need by one instance at most. A function that publishes nothing more
//! counts as idle after some milliseconds.

use model::{InstanceState, Nanos, Observation};

use crate::{Parameter, share};

/// How many instances are busy all the time, in sum; [`None`] if no Active instance tells. Those that do not tell count
/// as the mean of the others.
pub(crate) fn busy_instances(observation: &Observation) -> Option<f64> {
    let (mut sum, mut telling, mut active) = (0.0, 0u32, 0u32);
    for instance in &observation.instances {
        if instance.state != InstanceState::Active {
            continue;
        }
        active += 1;
        if let Some(busy) = instance.busy.filter(|busy| busy.is_finite()) {
            sum += busy.clamp(0.0, 1.0);
            telling += 1;
        }
    }
    (telling > 0).then(|| sum * f64::from(active) / f64::from(telling))
}

/// The parameter `busy_high` of policies.
pub(crate) const HIGH: Parameter = Parameter::new(
    "busy_high",
    "share, above 0 and at most 1",
    "busy time has no effect",
    "Busy share of the instances' time, as their functions tell it, above which instances are added.",
);
/// The parameter `busy_low`.
pub(crate) const LOW: Parameter = Parameter::new(
    "busy_low",
    "share, above 0 and at most 1",
    "0.5",
    "With `busy_high`: busy share of the remaining instances' time up to which instances are removed.",
);

/// An exponential mean with that time constant, after another value; [`None`] if there is no value now.
pub(crate) fn mean(
    before: Option<(f64, Nanos)>,
    value: Option<f64>,
    (now, over): (Nanos, Nanos),
) -> Option<f64> {
    let value = value?;
    let Some((mean, at)) = before else {
        return Some(value);
    };
    let weight = -(-now.since(at).as_secs_f64() / over.as_secs_f64().max(1e-3)).exp_m1();
    Some(mean + weight * (value - mean))
}

/// Instances that so much work keeps busy for that share of their time.
pub(crate) fn count_for(busy_instances: f64, share: f64) -> u32 {
    share::whole(busy_instances / share)
}

#[cfg(test)]
mod tests {
    use model::{InstanceId, InstanceObservation, InstanceSignals, ServiceId, Slot};

    use super::*;

    fn observation(busy: &[Option<f64>]) -> Observation {
        let instances = (0..).zip(busy).map(|(id, busy)| InstanceObservation {
            id: InstanceId(id),
            slot: Slot(id as u16),
            state: InstanceState::Active,
            capacity_pps: 0.0,
            arrivals_fast_pps: 0.0,
            arrivals_stable_pps: 0.0,
            ring_drops_fast_pps: 0.0,
            ring_occupancy: 0.0,
            signals: InstanceSignals::default(),
            busy: *busy,
            memory: None,
            cpu_quota: None,
            place: 0,
        });
        Observation {
            service: ServiceId(0),
            at: Nanos(1),
            counter_age: Nanos::ZERO,
            min: 1,
            max: 10,
            wanted: busy.len() as u32,
            offered_fast_pps: 0.0,
            offered_stable_pps: 0.0,
            unserved_fast_pps: 0.0,
            hot: false,
            places: Vec::new(),
            instances: instances.collect(),
        }
    }

    #[test]
    fn a_lie_moves_the_need_by_one_instance_at_most() {
        let of = |lie: f64| busy_instances(&observation(&[Some(0.2), Some(0.2), Some(lie)])).unwrap();
        assert!((of(0.2) - 0.6).abs() < 1e-9);
        for lie in [1e300, 7.0, 1.0] {
            assert!((of(lie) - 1.4).abs() < 1e-9);
        }
        assert!((of(-5.0) - 0.4).abs() < 1e-9);
        // It then counts as one that does not tell.
        for lie in [f64::NAN, f64::INFINITY] {
            assert!((of(lie) - 0.6).abs() < 1e-9);
        }
        assert_eq!(busy_instances(&observation(&[None, None])), None);
        assert_eq!(busy_instances(&observation(&[])), None);
    }

    #[test]
    fn the_count_keeps_instances_busy_for_a_share_of_their_time() {
        assert_eq!(count_for(0.8, 0.8), 1);
        assert_eq!(count_for(0.1 + 0.7, 0.8), 1);
        assert_eq!(count_for(0.81, 0.8), 2);
        assert_eq!(count_for(0.0, 0.8), 0);
    }
}
