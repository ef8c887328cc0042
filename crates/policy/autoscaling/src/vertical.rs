//! Shared by policies that change CPU quotas.

use model::{InstanceState, Observation};

/// Quotas that differ by less than this share are equal.
pub(crate) const SAME: f64 = 0.02;

/// The smallest quota of an Active instance, if they have quotas.
pub(crate) fn least_quota(observation: &Observation) -> Option<f64> {
    let active = observation
        .instances
        .iter()
        .filter(|i| i.state == InstanceState::Active);
    active.filter_map(|i| i.cpu_quota).reduce(f64::min)
}
