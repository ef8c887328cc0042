//! The clocks that the control loop reads.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use model::Nanos;

/// Monotonic time, as the switch has it.
pub(super) fn monotonic() -> Nanos {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Nanos(
        (now.tv_sec as u64)
            .saturating_mul(1_000_000_000)
            .saturating_add(now.tv_nsec as u64),
    )
}

/// Now, in milliseconds since 1970.
pub(super) fn unix_ms() -> u64 {
    since_1970().as_millis() as u64
}

/// The time that has passed since 1970.
pub(super) fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
