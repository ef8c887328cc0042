use std::ops::{Add, Sub};

use serde::{Deserialize, Serialize};

/// A point on the monotonic clock, or a span of it, in nanoseconds. It is always an argument: nothing below the
/// shell reads a clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Nanos(pub u64);

impl Nanos {
    /// The clock's start.
    pub const ZERO: Nanos = Nanos(0);
    /// The longest span: no limit.
    pub const MAX: Nanos = Nanos(u64::MAX);

    /// A span of `n` microseconds.
    pub const fn from_micros(n: u64) -> Nanos {
        Nanos(n.saturating_mul(1_000))
    }

    /// A span of `n` milliseconds.
    pub const fn from_millis(n: u64) -> Nanos {
        Nanos(n.saturating_mul(1_000_000))
    }

    /// A span of `n` seconds.
    pub const fn from_secs(n: u64) -> Nanos {
        Nanos(n.saturating_mul(1_000_000_000))
    }

    /// The span in whole milliseconds, rounded down.
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// The span in seconds.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// The span since `earlier`; zero where `earlier` is later.
    pub const fn since(self, earlier: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add for Nanos {
    type Output = Nanos;
    fn add(self, span: Nanos) -> Nanos {
        Nanos(self.0.saturating_add(span.0))
    }
}

impl Sub for Nanos {
    type Output = Nanos;
    fn sub(self, earlier: Nanos) -> Nanos {
        self.since(earlier)
    }
}
