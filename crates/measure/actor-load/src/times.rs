//! How long requests took.

use std::time::Duration;

/// The times of the requests that were answered in a while.
#[derive(Clone, Debug, Default)]
pub struct Times {
    pub(crate) lasted: Duration,
    pub(crate) ms: Vec<f64>,
}

impl Times {
    /// Answered requests in a second.
    pub fn per_second(&self) -> f64 {
        self.ms.len() as f64 / self.lasted.as_secs_f64().max(1e-9)
    }

    /// Answered requests.
    pub fn count(&self) -> usize {
        self.ms.len()
    }

    /// The time that this share of the requests took at most, in milliseconds; 0 without any.
    pub fn percentile_ms(&self, share: f64) -> f64 {
        let mut times = self.ms.clone();
        times.sort_by(f64::total_cmp);
        let place = (share * times.len() as f64).ceil() as usize;
        times.get(place.saturating_sub(1)).copied().unwrap_or(0.0)
    }

    /// Takes the others in, as of the time after these.
    pub fn add(&mut self, other: Times) {
        self.lasted += other.lasted;
        self.ms.extend(other.ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_all_times() {
        let second = |ms: std::ops::RangeInclusive<i32>| Times {
            lasted: Duration::from_secs(1),
            ms: ms.map(f64::from).collect(),
        };
        let mut times = second(1..=50);
        times.add(second(51..=100));
        let found = (times.percentile_ms(0.5), times.percentile_ms(0.99));
        assert_eq!(found, (50.0, 99.0));
        assert_eq!((times.per_second(), times.count()), (50.0, 100));
        assert_eq!(Times::default().percentile_ms(0.99), 0.0);
    }
}
