//! Sliding-window maximum.

use std::collections::VecDeque;

use model::Nanos;
use serde::{Deserialize, Serialize};

/// The values of a window that are above all later ones: a decreasing sequence whose first value is the
/// maximum.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Highest<T>(VecDeque<(Nanos, T)>);

impl<T> Default for Highest<T> {
    fn default() -> Self {
        Highest(VecDeque::new())
    }
}

impl<T: Copy + PartialOrd> Highest<T> {
    /// Reserves space for `values` values.
    pub(crate) fn reserve(&mut self, values: usize) {
        let missing = values.saturating_sub(self.0.len());
        self.0.reserve(missing);
    }

    /// Removes values older than `span`.
    pub(crate) fn forget(&mut self, now: Nanos, span: Nanos) {
        while self.0.front().is_some_and(|(at, _)| now.since(*at) > span) {
            self.0.pop_front();
        }
    }

    /// Adds the next value. The length is bounded by the number of distinct values.
    pub(crate) fn add(&mut self, now: Nanos, value: T) {
        while self.0.back().is_some_and(|(_, before)| *before <= value) {
            self.0.pop_back();
        }
        self.0.push_back((now, value));
    }

    /// The maximum of the window.
    pub(crate) fn get(&self) -> Option<T> {
        self.0.front().map(|(_, value)| *value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_is_the_maximum_of_the_window(values in prop::collection::vec((0u64..50, 0u32..9), 1..60), span in 0u64..200) {
            let (mut highest, mut all, mut now) = (Highest::default(), Vec::new(), Nanos::ZERO);
            for (after, value) in values {
                now = now + Nanos(after);
                highest.forget(now, Nanos(span));
                highest.add(now, value);
                all.push((now, value));
                let within = all.iter().filter(|(at, _)| now.since(*at) <= Nanos(span));
                prop_assert_eq!(highest.get(), within.map(|(_, value)| *value).max());
                prop_assert!(highest.0.len() <= 9);
            }
        }
    }
}
