//! The highest value of a sliding span of time.

use std::collections::VecDeque;

use model::Nanos;
use serde::{Deserialize, Serialize};

/// Values of a span, but for those that a later one is not below: what is left falls, so the first is the highest.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Highest<T>(VecDeque<(Nanos, T)>);

impl<T> Default for Highest<T> {
    fn default() -> Self {
        Highest(VecDeque::new())
    }
}

impl<T: Copy + PartialOrd> Highest<T> {
    /// Room for so many values in all.
    pub(crate) fn reserve(&mut self, values: usize) {
        let missing = values.saturating_sub(self.0.len());
        self.0.reserve(missing);
    }

    /// Forgets what is older than `span`.
    pub(crate) fn forget(&mut self, now: Nanos, span: Nanos) {
        while self.0.front().is_some_and(|(at, _)| now.since(*at) > span) {
            self.0.pop_front();
        }
    }

    /// Takes in the next value. Counts within limits never make it longer than there are counts.
    pub(crate) fn add(&mut self, now: Nanos, value: T) {
        while self.0.back().is_some_and(|(_, before)| *before <= value) {
            self.0.pop_back();
        }
        self.0.push_back((now, value));
    }

    /// The highest that is not forgotten.
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
        fn it_is_the_highest_of_the_span(values in prop::collection::vec((0u64..50, 0u32..9), 1..60), span in 0u64..200) {
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
