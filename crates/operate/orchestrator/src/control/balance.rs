//! How evenly a service's load lies on its instances, and the weights that its scheduler has for them.

use api::types::{WeightRow, Weights};
use controller::ServiceStatus;
use model::{InstanceId, InstanceState, Nanos, ServiceId};
use scheduling::Scheduler;
use serde_json::value::Serializer as ToValue;
use switch::SlotCounters;

use super::ControlLoop;

/// Jain's index of these rates; [`None`] if all are 0.
fn jain(rates: &[f64]) -> Option<f64> {
    let sum: f64 = rates.iter().sum();
    let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
    (squares > 0.0).then(|| sum * sum / (squares * rates.len() as f64))
}

/// The highest rate ÷ the lowest; [`None`] if that is 0.
fn max_min(rates: &[f64]) -> Option<f64> {
    let lowest = rates.iter().copied().fold(f64::INFINITY, f64::min);
    let highest = rates.iter().copied().fold(0.0, f64::max);
    (lowest > 0.0 && !rates.is_empty()).then(|| highest / lowest)
}

impl ControlLoop {
    /// Jain's index, and Max/Min, of the active instances' packet rates.
    pub(super) fn balance(&self, service: ServiceId) -> (Option<f64>, Option<f64>) {
        let instances = self.decide.shell.controller().instances().iter();
        let rates: Vec<f64> = instances
            .filter(|of| of.service() == service && of.state() == InstanceState::Active)
            .filter_map(|of| Some(self.gather.collector.slot(of.slot())?.arrivals_stable_pps))
            .collect();
        (jain(&rates), max_min(&rates))
    }

    /// The weights of a service's active instances, if its scheduler has weights.
    pub(super) fn weights(&self, status: &ServiceStatus<'_>) -> Option<Weights> {
        let period = weights_period(&status.plan.scheduler)?;
        let instances = self.decide.shell.controller().instances().iter();
        let active = instances.filter(|of| of.service() == status.id && of.state() == InstanceState::Active);
        let counted: Vec<_> = active
            .filter_map(|of| Some((of.id(), self.gather.reading.slots.get(of.slot().index())?)))
            .collect();
        let total: u64 = counted.iter().map(|(_, of)| of.weight).sum();
        let row = |(instance, of): &(InstanceId, &SlotCounters)| WeightRow {
            instance: *instance,
            weight: of.weight,
            share: of.weight as f64 / total.max(1) as f64,
            period_load: of.period_load,
        };
        Some(Weights {
            period_ms: period.as_millis(),
            instances: counted.iter().map(row).collect(),
        })
    }
}

/// How often the scheduler computes its weights, if it has any.
fn weights_period(scheduler: &Scheduler) -> Option<Nanos> {
    if !scheduler.has_weights() {
        return None;
    }
    let parameters = scheduler.serialize_parameters(ToValue).ok()?;
    let seconds = parameters.get("period")?.as_f64()?;
    Some(Nanos((seconds * 1e9) as u64))
}

#[cfg(test)]
mod tests {
    use super::{jain, max_min};

    #[test]
    fn equal_rates_are_fair_and_one_that_has_all_is_not() {
        assert_eq!((jain(&[5.0; 4]), max_min(&[5.0; 4])), (Some(1.0), Some(1.0)));
        assert_eq!(
            (jain(&[8.0, 0.0, 0.0, 0.0]), max_min(&[8.0, 0.0])),
            (Some(0.25), None)
        );
        assert_eq!((jain(&[]), max_min(&[])), (None, None));
        assert_eq!((jain(&[0.0]), max_min(&[3.0, 1.0])), (None, Some(3.0)));
    }
}
