//! What is known of an actor, or of a group, from the messages that it has served.

use crate::Ended;

/// Samples that count, about, in the moments of an actor.
const OF_ACTOR: u32 = 100;

/// Mean and variance that move with their samples: exponentially weighted, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moments {
    mean: f64,
    variance: f64,
    samples: u64,
    weight: f64,
}

impl Moments {
    /// Moments in which about so many samples count; at least 1.
    pub fn of_last(samples: u32) -> Moments {
        Moments {
            mean: 0.0,
            variance: 0.0,
            samples: 0,
            weight: 1.0 / f64::from(samples.max(1)),
        }
    }

    /// Adds a sample. The first ones weigh more: the mean of few samples is their mean.
    pub fn add(&mut self, value: f64) {
        self.samples += 1;
        let weight = self.weight.max(1.0 / self.samples as f64);
        let off = value - self.mean;
        self.mean += weight * off;
        self.variance = (1.0 - weight) * (self.variance + weight * off * off);
    }

    /// The mean.
    pub fn mean(&self) -> f64 {
        self.mean
    }

    /// Mean + 3 standard deviations: iPipe's approximation of the 99th percentile, and its measure of dispersion.
    pub fn tail(&self) -> f64 {
        self.mean + 3.0 * self.variance.max(0.0).sqrt()
    }

    /// Number of samples.
    pub fn samples(&self) -> u64 {
        self.samples
    }
}

/// The statistics of an actor.
#[derive(Clone, Copy, Debug)]
pub struct ActorStatistics {
    response: Moments,
    service: Moments,
}

impl Default for ActorStatistics {
    fn default() -> Self {
        ActorStatistics {
            response: Moments::of_last(OF_ACTOR),
            service: Moments::of_last(OF_ACTOR),
        }
    }
}

impl ActorStatistics {
    pub(crate) fn count(&mut self, ended: &Ended) {
        self.response.add(ended.response.0 as f64);
        self.service.add(ended.service.0 as f64);
    }

    /// Response times, from a message's arrival to its end.
    pub fn response(&self) -> &Moments {
        &self.response
    }

    /// Run times of messages.
    pub fn service(&self) -> &Moments {
        &self.service
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_of_few_samples_are_theirs_and_of_many_follow() {
        let mut moments = Moments::of_last(100);
        for value in [10.0, 20.0, 30.0] {
            moments.add(value);
        }
        assert!((moments.mean() - 20.0).abs() < 1e-9, "{moments:?}");
        let variance = (100.0 + 0.0 + 100.0) / 3.0;
        assert!(
            (moments.tail() - (20.0 + 3.0 * f64::sqrt(variance))).abs() < 1e-9,
            "{moments:?}"
        );
        for _ in 0..2_000 {
            moments.add(500.0);
        }
        assert!((moments.mean() - 500.0).abs() < 0.1, "{moments:?}");
        assert!(moments.tail() < 510.0, "{moments:?}");
    }
}
