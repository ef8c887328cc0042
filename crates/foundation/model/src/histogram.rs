use crate::Nanos;

/// A histogram of durations with fixed bounds, from 10 µs to 100 s, three per decade. It neither grows nor
/// forgets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    counts: [u64; Histogram::BOUNDS.len() + 1],
    sum: Nanos,
}

impl Histogram {
    /// Upper bounds, inclusive. Values above the last one are counted too.
    pub const BOUNDS: [Nanos; 22] = {
        let mut bounds = [Nanos::ZERO; 22];
        let (mut index, mut decade) = (0, 10_000);
        while index < bounds.len() {
            bounds[index] = Nanos(match index % 3 {
                0 => decade,
                1 => decade / 10 * 25,
                _ => decade * 5,
            });
            if index % 3 == 2 {
                decade *= 10;
            }
            index += 1;
        }
        bounds
    };

    /// Counts a duration.
    pub fn note(&mut self, span: Nanos) {
        let place = Self::BOUNDS.partition_point(|bound| *bound < span);
        if let Some(count) = self.counts.get_mut(place) {
            *count += 1;
        }
        self.sum = self.sum + span;
    }

    /// Counts per bucket; the last bucket holds values above all bounds.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Total count.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Sum of all durations.
    pub fn sum(&self) -> Nanos {
        self.sum
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram {
            counts: [0; Histogram::BOUNDS.len() + 1],
            sum: Nanos::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_counted_under_the_first_bound_it_does_not_exceed() {
        let mut histogram = Histogram::default();
        for span in [0, 10_000, 10_001, 25_000, 100_000_000_000, 100_000_000_001] {
            histogram.note(Nanos(span));
        }
        let counts = histogram.counts();
        assert_eq!(counts[0], 2, "0 and 10 us");
        assert_eq!(counts[1], 2, "10.001 us and 25 us");
        assert_eq!(counts[Histogram::BOUNDS.len() - 1], 1, "100 s");
        assert_eq!(counts[Histogram::BOUNDS.len()], 1, "more");
        assert_eq!(histogram.count(), 6);
        assert_eq!(histogram.sum(), Nanos(200_000_045_002));
    }

    #[test]
    fn bounds_increase_three_per_decade() {
        let bounds = Histogram::BOUNDS;
        assert!(bounds.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(bounds[..4], [10_000, 25_000, 50_000, 100_000].map(Nanos));
        assert_eq!(bounds[21], Nanos::from_secs(100));
    }
}
