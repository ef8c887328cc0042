//! The clocks that inco reads. It converts what the kernel says and keeps nothing; pure crates take times as
//! arguments.
#![forbid(unsafe_code)]

use model::Nanos;
use rustix::time::{ClockId, clock_gettime};

/// Monotonic time since boot, without time in suspend: the time of every event, of the flow table and of the engines.
#[inline]
pub fn monotonic() -> Nanos {
    read(ClockId::Monotonic)
}

/// CPU time of the calling thread.
#[inline]
pub fn thread_cpu() -> Nanos {
    read(ClockId::ThreadCPUTime)
}

/// CPU time of all threads of this process.
#[inline]
pub fn process_cpu() -> Nanos {
    read(ClockId::ProcessCPUTime)
}

/// Wall-clock time since 1970.
#[inline]
pub fn wall() -> Nanos {
    read(ClockId::Realtime)
}

/// Wall-clock time, in milliseconds since 1970.
#[inline]
pub fn unix_ms() -> u64 {
    wall().as_millis()
}

#[inline]
fn read(clock: ClockId) -> Nanos {
    let time = clock_gettime(clock);
    // Neither is negative: no clock here begins before 1970.
    Nanos(
        (time.tv_sec as u64)
            .saturating_mul(1_000_000_000)
            .saturating_add(time.tv_nsec as u64),
    )
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    use super::*;

    #[test]
    fn clocks_count_in_their_units() {
        let (wall, mono, cpu) = (unix_ms(), monotonic(), thread_cpu());
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        assert!(since_1970.as_millis() as u64 - wall < 1_000);
        while thread_cpu() < cpu + Nanos::from_millis(2) {}
        let passed = monotonic().since(mono);
        assert!(passed >= Nanos::from_millis(2));
        assert!(passed < Nanos(Duration::from_secs(60).as_nanos() as u64));
        assert!(process_cpu() >= thread_cpu());
    }
}
