use model::{Histogram, Nanos};

/// Most times kept per kind of reaction; newer ones replace the oldest.
pub const REACTION_LIMIT: usize = 1024;

/// The times of one kind of reaction.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Times {
    /// The latest ones, in no order.
    latest: Vec<Nanos>,
    /// How many there were in total.
    pub count: u64,
    /// The longest of all.
    pub longest: Nanos,
    /// Distribution of all times.
    pub histogram: Histogram,
}

impl Times {
    pub(crate) fn note(&mut self, time: Nanos) {
        if self.latest.len() < REACTION_LIMIT {
            self.latest.push(time);
        } else if let Some(place) = self.latest.get_mut((self.count as usize) % REACTION_LIMIT) {
            *place = time;
        }
        self.count += 1;
        self.histogram.note(time);
        self.longest = self.longest.max(time);
    }

    /// The latest times, at most [`REACTION_LIMIT`], in no order.
    pub fn latest(&self) -> &[Nanos] {
        &self.latest
    }

    /// The quantile `share` (0 to 1) of the latest times; [`None`] if there are none.
    pub fn quantile(&self, share: f64) -> Option<Nanos> {
        let mut sorted = self.latest.clone();
        sorted.sort_unstable();
        let rank = (share.clamp(0.0, 1.0) * sorted.len() as f64).ceil() as usize;
        sorted.get(rank.saturating_sub(1)).copied()
    }
}

/// Reaction times of the control loop.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reactions {
    /// From the first observation that was hot or over the target to the decision to add instances or CPU quota.
    pub detect: Times,
    /// From the decision until every worker gives new flows to the instance, by cancelling a drain.
    pub undrain: Times,
    /// The same, with a warm standby.
    pub activate: Times,
    /// The same, with a paused standby.
    pub resume: Times,
    /// The same, with an instance that was created or on its way to ready.
    pub create_and_activate: Times,
    /// From the request to create an instance until it was ready.
    pub create: Times,
    /// From the start of the drain until the instance had no flows, including drains that ended at the deadline.
    pub drain: Times,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_the_latest_and_the_longest_is_of_all() {
        let mut times = Times::default();
        assert_eq!(times.quantile(0.5), None);
        times.note(Nanos(1_000_000));
        for n in 1..=REACTION_LIMIT as u64 {
            times.note(Nanos(n));
        }
        assert_eq!(times.latest().len(), REACTION_LIMIT);
        assert_eq!(times.count, REACTION_LIMIT as u64 + 1);
        assert_eq!(times.longest, Nanos(1_000_000));
        assert_eq!(times.quantile(1.0), Some(Nanos(REACTION_LIMIT as u64)));
        assert_eq!(times.quantile(0.5), Some(Nanos(REACTION_LIMIT as u64 / 2)));
        assert_eq!(times.quantile(0.0), Some(Nanos(1)));
    }
}
