use model::{Histogram, Nanos};

/// Times that one kind of reaction is remembered for at most; of more, the latest.
pub const REACTION_LIMIT: usize = 1024;

/// The times of one kind of reaction.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Times {
    /// The latest ones, not in order.
    latest: Vec<Nanos>,
    /// How many there were in all.
    pub count: u64,
    /// The longest of all.
    pub longest: Nanos,
    /// All of them, by how long they took.
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

    /// The latest ones, at most [`REACTION_LIMIT`], not in order.
    pub fn latest(&self) -> &[Nanos] {
        &self.latest
    }

    /// The time within which that share (0 to 1) of the latest ones were done; [`None`] where there are none.
    pub fn quantile(&self, share: f64) -> Option<Nanos> {
        let mut sorted = self.latest.clone();
        sorted.sort_unstable();
        let rank = (share.clamp(0.0, 1.0) * sorted.len() as f64).ceil() as usize;
        sorted.get(rank.saturating_sub(1)).copied()
    }
}

/// How fast the loop reacts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reactions {
    /// From the first observation that was hot or over the target to the decision for more instances.
    pub detect: Times,
    /// From the decision until every worker gives new flows to the instance: a drain taken back.
    pub undrain: Times,
    /// The same: a warm standby.
    pub activate: Times,
    /// The same: a paused standby.
    pub resume: Times,
    /// The same: an instance that had to be created, or was on its way.
    pub create_and_activate: Times,
    /// From the request to create an instance until it was ready.
    pub create: Times,
    /// From the drain until the instance had no flow left, deadlines included.
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
