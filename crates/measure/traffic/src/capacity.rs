//! Measures a system's capacity: the highest rate with almost no loss.

use crate::Error;
use crate::report::Report;
use crate::units::Rate;

/// Finds the highest rate between `low` and `high` with a loss of at most `loss_limit` (0.001: one packet in a
/// thousand). Bisects `steps` times on a logarithmic scale: 6 steps reach 2 % over a range of 1 to 4. `run` performs
/// one run at the given rate. Returns `None` if even `low` loses more.
///
/// # Errors
/// Returns the first error of `run`.
pub fn highest_rate(
    low: Rate,
    high: Rate,
    steps: u32,
    loss_limit: f64,
    mut run: impl FnMut(Rate) -> Result<Report, Error>,
) -> Result<Option<Rate>, Error> {
    let mut holds = |rate: Rate| Ok::<bool, Error>(run(rate)?.loss_ratio() <= loss_limit);
    if !holds(low)? {
        return Ok(None);
    }
    if holds(high)? {
        return Ok(Some(high));
    }
    let (mut low, mut high) = (low.0, high.0);
    for _ in 0..steps {
        let middle = (low * high).sqrt();
        if holds(Rate(middle))? {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok(Some(Rate(low)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A system that forwards `capacity` packets per second and drops the rest.
    fn system(capacity: f64) -> impl FnMut(Rate) -> Result<Report, Error> {
        move |rate| {
            let mut report = Report::default();
            report.counts.offered_packets = rate.0 as u64;
            report.lost = (rate.0 - capacity).max(0.0) as u64;
            Ok(report)
        }
    }

    #[test]
    fn the_knee_is_found() {
        for capacity in [12_000.0, 30_000.0, 39_000.0] {
            let found = highest_rate(Rate(10_000.0), Rate(40_000.0), 6, 0.001, system(capacity))
                .unwrap()
                .unwrap();
            assert!(
                (found.0 / capacity - 1.0).abs() < 0.025,
                "{found:?} for {capacity}"
            );
        }
        let beyond = |capacity| highest_rate(Rate(10.0), Rate(20.0), 6, 0.001, system(capacity)).unwrap();
        assert_eq!(beyond(5.0), None);
        assert_eq!(beyond(50.0), Some(Rate(20.0)));
    }
}
