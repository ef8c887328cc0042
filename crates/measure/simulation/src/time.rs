//! Times of a simulation lie on the control loop's steps.

use model::Nanos;

/// Rounds up to a whole millisecond, the control loop's finest step.
pub(crate) fn whole_ms(at: Nanos) -> Nanos {
    Nanos(at.0.div_ceil(1_000_000) * 1_000_000)
}

/// Seconds as whole milliseconds, rounded up, so that all changes lie on the control loop's steps.
pub(crate) fn seconds(seconds: f64) -> Nanos {
    // Round first: 0.1 + 0.2 must not become 301 ms.
    whole_ms(Nanos(
        ((seconds.max(0.0) * 1e9).round() as u64).div_euclid(1_000) * 1_000,
    ))
}
