use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// Means are rounded down to multiples of 1/ROUNDING, so that an ended rate becomes 0.
const ROUNDING: f64 = 1e6;
/// The least sum of a whole window's weights.
const WEIGHTS: f64 = 0.9999;
/// The least weight of the newest second: with less, a long window would be nearly unweighted.
const LEAST_WEIGHT: f64 = 0.2;

/// How the seconds of a window are aggregated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Aggregation {
    /// The mean, from the first known second to the last.
    #[default]
    Linear,
    /// Each second weighs less than the one after it; unknown seconds count as 0.
    WeightedExponential,
}

/// The buckets of a KPA window, one per second, as in Knative. Unknown seconds take no space.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Window {
    /// The first second since a whole window was last empty.
    first: u64,
    /// Seconds and their values, newest last.
    seconds: VecDeque<(u64, f64)>,
}

impl Window {
    /// Reserves space for `length` seconds.
    pub(super) fn reserve(&mut self, length: u64) {
        self.seconds.reserve(length as usize + 1);
    }

    /// Adds to a second. Ignores one that is a window or more before the newest.
    pub(super) fn record(&mut self, second: u64, value: f64, length: u64) {
        let newest = self.seconds.back().map(|(at, _)| *at);
        match newest {
            Some(newest) if second + length <= newest => return,
            Some(newest) if second < newest + length => self.first = self.first.min(second),
            _ => {
                self.first = second;
                self.seconds.clear();
            }
        }
        match self.seconds.binary_search_by_key(&second, |(at, _)| *at) {
            Ok(place) => self.seconds[place].1 += value,
            Err(place) => self.seconds.insert(place, (second, value)),
        }
        while self.seconds.front().is_some_and(|(at, _)| at + length <= second) {
            self.seconds.pop_front();
        }
    }

    /// Whether nothing was recorded within the window.
    pub(super) fn is_empty(&self, now: u64, length: u64) -> bool {
        self.seconds
            .back()
            .is_none_or(|(newest, _)| now.saturating_sub(*newest) > length)
    }

    /// The aggregate of the `length` seconds that end at `now`, or at the newest if that is later.
    pub(super) fn value(&self, now: u64, length: u64, aggregation: Aggregation) -> f64 {
        let Some(newest) = self.seconds.back().map(|(at, _)| *at) else {
            return 0.0;
        };
        let now = now.max(newest);
        let missing = now - newest;
        if missing >= length {
            return 0.0;
        }
        let within = self.seconds.iter().rev().take_while(|(at, _)| now - at < length);
        match aggregation {
            Aggregation::Linear => {
                let count = (newest - self.first + 1).min(length - missing);
                let sum: f64 = within.map(|(_, value)| value).sum();
                (sum / count as f64 * ROUNDING).floor() / ROUNDING
            }
            Aggregation::WeightedExponential => {
                let weight = newest_weight(length);
                let weigh =
                    |(at, value): &(u64, f64)| value * weight * (1.0 - weight).powf((now - at) as f64);
                within.map(weigh).sum()
            }
        }
    }
}

/// The weight of the newest of `length` seconds; earlier weights decrease geometrically.
fn newest_weight(length: u64) -> f64 {
    (1.0 - (1.0 - WEIGHTS).powf(1.0 / length as f64)).max(LEAST_WEIGHT)
}

/// The tests of Knative's `bucketing_test.go`, and those of `libkpa`, where its windows have moved. A window
/// there also stores its length; here that is the policy's parameter, and changing it empties the windows.
#[cfg(test)]
mod tests {
    use super::*;

    const LINEAR: Aggregation = Aggregation::Linear;
    const WEIGHTED: Aggregation = Aggregation::WeightedExponential;

    fn window(length: u64, values: impl IntoIterator<Item = (u64, f64)>) -> Window {
        let mut window = Window::default();
        for (second, value) in values {
            window.record(second, value, length);
        }
        window
    }

    fn counting(from: u64, to: u64) -> impl Iterator<Item = (u64, f64)> {
        (from..=to).map(move |second| (second, (second - from + 1) as f64))
    }

    #[track_caller]
    fn near(value: f64, expected: f64) {
        assert!((value - expected).abs() < 1e-12, "{value} {expected}");
    }

    /// `TestTimedFloat64BucketsSimple`, `ManyReps` and `ManyRepsWithNonMonotonicalOrder`: values of one
    /// second add up, in any order.
    #[test]
    fn values_of_one_second_add_up() {
        let simple = window(120, [(0, 1.0), (0, 10.0), (1, 1.0), (3, 1.0)]);
        assert_eq!(simple.seconds, [(0, 11.0), (1, 1.0), (3, 1.0)]);
        assert!(Window::default().is_empty(0, 120));
        for order in [[0, 1, 2, 3, 4], [0, 3, 2, 1, 4]] {
            let values = (0..5).flat_map(|p| (0..5).map(move |t| (order[p], (p + t) as f64)));
            let many = window(60, values);
            assert_eq!(many.seconds.iter().map(|(_, sum)| sum).sum::<f64>(), 100.0);
            assert!(many.seconds.iter().map(|(at, _)| *at).eq(0..5), "{many:?}");
        }
    }

    /// `TestTimedFloat64BucketsWindowAverage`.
    #[test]
    fn window_average() {
        let mut five = Window::default();
        let mean = |window: &Window, now| window.value(now, 5, LINEAR);
        five.record(100, 1.0, 5);
        assert_eq!(mean(&five, 100), 1.0, "from the first value on");
        for (second, value) in counting(100, 104).skip(1) {
            five.record(second, value, 5);
        }
        assert_eq!(mean(&five, 104), 15.0 / 5.0);
        assert_eq!(mean(&five, 103), 15.0 / 5.0, "`now` lags behind");
        assert_eq!(mean(&five, 106), (15.0 - 1.0 - 2.0) / 3.0, "a short hole");
        assert_eq!(mean(&five, 110), 0.0, "a long hole");
        assert!(!five.is_empty(109, 5) && five.is_empty(110, 5));
        five.record(106, 91.0, 5);
        assert_eq!(
            mean(&five, 106),
            (15.0 - 1.0 - 2.0 + 91.0) / 5.0,
            "written with a hole"
        );
        five.record(160, 1984.0, 5);
        assert_eq!(
            mean(&five, 160),
            1984.0,
            "much later: from the first value on again"
        );
        five.record(157, 4.0, 5);
        assert_eq!(mean(&five, 160), (4.0 + 1984.0) / 4.0, "an earlier time");
        five.record(161, 5.0, 5);
        assert_eq!(mean(&five, 161), (4.0 + 1984.0 + 5.0) / 5.0);
        five.record(158, 10.0, 5);
        let expected = (4.0 + 10.0 + 1984.0 + 5.0) / 5.0;
        assert_eq!(mean(&five, 161), expected, "an earlier time again");
        for too_early in [155, 156] {
            five.record(too_early, 10.0, 5);
            assert_eq!(mean(&five, 161), expected, "{too_early}");
        }
        five.record(166, 10.0, 5);
        assert_eq!(mean(&five, 166), 10.0, "nothing for exactly the window");
    }

    /// `collector_test.go`: `TestMetricCollectorScraperMovingTime`, `TestMetricCollectorScraper` (no data
    /// until five seconds before the window's end) and `TestMetricCollectorRecord` (a value from before the
    /// window).
    #[test]
    fn collected_windows() {
        let both = |window: [&Window; 2], now| {
            [(window[0], 60), (window[1], 6)].map(|(w, s)| w.value(now, s, LINEAR))
        };
        let moving = [60, 6].map(|length| window(length, [(0, 30.0), (1, 40.0)]));
        assert_eq!(both(moving.each_ref(), 1), [35.0, 35.0]);
        let still = [60, 6].map(|length| window(length, [(0, 50.0)]));
        assert_eq!(both(still.each_ref(), 0), [50.0, 50.0]);
        assert_eq!(both(still.each_ref(), 55), [50.0, 0.0]);
        let outdated = [60, 6].map(|length| window(length, [(0, 100.0), (70, 10.0)]));
        assert_eq!(both(outdated.each_ref(), 70), [10.0, 10.0]);
        assert!(
            Window::default().is_empty(0, 60),
            "TestMetricCollectorNoDataError"
        );
    }

    /// `TestDescendingRecord`: a 5 in every second, backwards.
    #[test]
    fn descending_record() {
        let descending = window(5, (0..=8).rev().map(|second| (second, 5.0)));
        assert_eq!(descending.value(5, 5, LINEAR), 5.0);
    }

    /// `TestTimedFloat64BucketsHoles`, `TestTimeWindowAverageNegativeValues`, `...BoundaryConditions` and
    /// `...WithLargeGap` (two-second buckets there, one-second ones here: 10 s of 2 s are 5).
    #[test]
    fn holes_and_ends() {
        let mut holes = window(5, counting(0, 4));
        holes.record(8, 2.0, 5);
        assert_eq!(holes.seconds.iter().map(|(_, value)| value).sum::<f64>(), 7.0);
        assert_eq!(holes.value(8, 5, LINEAR), 7.0 / 5.0, "5, three zeros, 2");

        let mut negative = window(5, [(0, -10.0), (1, -20.0), (2, -30.0)]);
        assert_eq!(negative.value(2, 5, LINEAR), -20.0);
        negative.record(3, 40.0, 5);
        negative.record(4, 50.0, 5);
        assert_eq!(negative.value(4, 5, LINEAR), 6.0);

        let ends = window(5, counting(0, 4));
        assert_eq!(ends.value(4, 5, LINEAR), 15.0 / 5.0);
        assert_eq!(ends.value(9, 5, LINEAR), 0.0, "a gap of the window");
        assert_eq!(
            ends.value(8, 5, LINEAR),
            5.0,
            "a gap of one less: the newest is left"
        );
        let gap = window(30, counting(0, 9));
        assert!(gap.value(32, 30, LINEAR) >= 0.0 && gap.value(37, 30, LINEAR) >= 0.0);
    }

    /// The results of `TestTimedFloat64BucketsWindowUpdate` for windows of 5, 10 and 4 seconds over the same
    /// values.
    #[test]
    fn windows_of_other_lengths() {
        assert_eq!(window(5, counting(0, 5)).value(5, 5, LINEAR), 20.0 / 5.0);
        let as_known = window(10, counting(0, 5).skip(1));
        assert_eq!(as_known.value(5, 10, LINEAR), 20.0 / 5.0, "as many as there are");
        let one_more = window(10, counting(0, 6).skip(1));
        assert_eq!(one_more.value(6, 10, LINEAR), 27.0 / 6.0);
        assert_eq!(window(4, counting(0, 6)).value(6, 4, LINEAR), 22.0 / 4.0);
    }

    /// `TestRoundToNDigits`, to the six digits of a window.
    #[test]
    fn rounding() {
        for (value, rounded) in [(3.6e-17, 0.0), (12_345.0, 12_345.0), (1.234_567_8, 1.234_567)] {
            assert_eq!(window(5, [(7, value)]).value(7, 5, LINEAR), rounded);
        }
    }

    /// `TestTimeWindowWeightedAverage`.
    #[test]
    fn weighted_average() {
        let m = newest_weight(5);
        let mut five = window(5, [(0, 2.0)]);
        near(five.value(0, 5, WEIGHTED), 2.0 * m);
        near(five.value(1, 5, WEIGHTED), 2.0 * m * (1.0 - m));
        five.record(1, 2.0, 5);
        near(five.value(1, 5, WEIGHTED), 2.0 * m * (1.0 - m) + 2.0 * m);
        for (second, value) in (2..7).zip([2.0, 3.0, 4.0, 5.0, 6.0]) {
            five.record(second, value, 5);
        }
        let expected: f64 = (0..5)
            .map(|age| f64::from(6 - age) * m * (1.0 - m).powi(age))
            .sum();
        near(five.value(6, 5, WEIGHTED), expected);
        assert_eq!(five.value(16, 5, WEIGHTED), 0.0);
    }

    /// `TestWeightedTimeWindowResizeWindow` (its figure is rounded to three digits), `...AverageWithZeros`,
    /// `...WithPositiveValuesThenZeros`, and the examples of the sources: windows of 10 and 3 seconds over the same
    /// values, and the least weight.
    #[test]
    fn weighted_windows() {
        let rolled = window(5, counting(0, 5)).value(5, 5, WEIGHTED);
        assert_eq!((rolled * 1e3).round() / 1e3, 5.812);
        let positive = (0..10).map(|second| (second, 50.0));
        let zeros = (10..20).map(|second| (second, 0.0));
        for ended in [window(10, zeros.clone()), window(10, positive.chain(zeros))] {
            for now in [19, 14, 22] {
                assert_eq!(ended.value(now, 10, WEIGHTED), 0.0);
            }
        }
        let load = [1.0, 3.0, 5.0, 4.0, 6.0, 7.0, 2.0, 8.0, 10.0, 20.0];
        for (length, expected) in [(10, 15.430_728_028_666_296), (3, 19.530_732_247_258_655)] {
            let values = (1..).zip(load);
            near(window(length, values).value(10, length, WEIGHTED), expected);
        }
        assert_eq!(newest_weight(60), 0.2);
    }
}
