//! The two windows: a count with its fast rate, and a history that gives a mean over a sliding span.

use model::Nanos;

use crate::Step;

/// Steps of the stable window: the count one window ago is read between two steps, so its error is below one step's
/// change of rate.
const STEPS: usize = 64;
/// One step more on each side of the window, so that there is always one at or before its beginning.
const PLACES: usize = STEPS + 2;

/// A counter as it is followed from sample to sample.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Count {
    last: Option<u64>,
    /// Counted since it has been followed; goes on over a counter that begins again.
    pub(crate) total: u64,
    /// Counted since the sample before.
    pub(crate) delta: u64,
    /// Per second, exponentially weighted.
    pub(crate) fast: f64,
}

impl Count {
    /// Follows the counter to `value`; gives what was counted since the sample before.
    #[inline]
    pub(crate) fn read(&mut self, value: u64, step: &Step) -> u64 {
        if self.last == Some(value) && self.fast == 0.0 {
            // It counts nothing, as most do: so it stays.
            self.delta = 0;
            return 0;
        }
        self.delta = match self.last {
            None => 0,
            // Below where it was: it began again at 0, and all of it is new.
            Some(last) if value < last => value,
            Some(last) => value - last,
        };
        self.last = Some(value);
        self.total = self.total.wrapping_add(self.delta);
        self.fast += step.weight * (self.delta as f64 * step.per_s - self.fast);
        self.delta
    }
}

/// When the histories of one service take their steps, and where in them the window begins.
#[derive(Debug)]
pub(crate) struct Clock {
    window: Nanos,
    interval: Nanos,
    times: [Nanos; PLACES],
    /// Steps taken so far; the newest is in place `taken - 1`, modulo the places.
    taken: usize,
    /// Whether the current sample is a step.
    due: bool,
    now: Nanos,
    /// Place of the last step at or before the window's beginning, and the share of the way to the next step at
    /// which the window begins.
    from: usize,
    share: f64,
    /// Seconds that the window spans; shorter than it should be while there is no history.
    span_s: f64,
}

impl Clock {
    pub(crate) fn new(window: Nanos) -> Clock {
        let window = window.max(crate::SAMPLE_PERIOD);
        Clock {
            window,
            interval: Nanos(window.0 / STEPS as u64),
            times: [Nanos::ZERO; PLACES],
            taken: 0,
            due: false,
            now: Nanos::ZERO,
            from: 0,
            share: 0.0,
            span_s: 0.0,
        }
    }

    /// Moves to the sample at `now`: says whether it is a step and finds the window's beginning.
    pub(crate) fn advance(&mut self, now: Nanos) {
        self.now = now;
        let newest = self.times[self.taken.wrapping_sub(1) % PLACES];
        self.due = self.taken == 0 || now.since(newest) >= self.interval;
        if self.due {
            self.times[self.taken % PLACES] = now;
            self.taken += 1;
        }
        let begin = now - self.window;
        // The beginning moves on with time, and so does the place: at most a few steps each time.
        let oldest = self.taken.saturating_sub(PLACES);
        let mut from = self.from.max(oldest);
        while from + 1 < self.taken && self.times[(from + 1) % PLACES] <= begin {
            from += 1;
        }
        self.from = from;
        let first = self.times[from % PLACES];
        let (begin, share) = if begin <= first || now.0 < self.window.0 {
            // Not a whole window of history yet: what there is counts, undiluted.
            (first, 0.0)
        } else if from + 1 < self.taken {
            let next = self.times[(from + 1) % PLACES];
            (
                begin,
                begin.since(first).0 as f64 / next.since(first).0.max(1) as f64,
            )
        } else {
            // Nothing was sampled for a whole window: what was counted since spans all that time.
            (first, 0.0)
        };
        self.share = share;
        self.span_s = now.since(begin).as_secs_f64();
    }
}

/// What some counters were at each step of a clock.
#[derive(Debug)]
pub(crate) struct History<const N: usize> {
    counts: [[u64; N]; PLACES],
}

impl<const N: usize> Default for History<N> {
    fn default() -> Self {
        History {
            counts: [[0; N]; PLACES],
        }
    }
}

impl<const N: usize> History<N> {
    /// Notes the counts where the clock's current sample is a step.
    pub(crate) fn push(&mut self, clock: &Clock, totals: [u64; N]) {
        if clock.due {
            self.counts[clock.taken.wrapping_sub(1) % PLACES] = totals;
        }
    }

    /// The mean rates over the clock's window, which ends with counts of `totals`.
    pub(crate) fn rates(&self, clock: &Clock, totals: [u64; N]) -> [f64; N] {
        if clock.span_s <= 0.0 {
            return [0.0; N];
        }
        let first = &self.counts[clock.from % PLACES];
        let next = if clock.from + 1 < clock.taken {
            &self.counts[(clock.from + 1) % PLACES]
        } else {
            &totals
        };
        std::array::from_fn(|at| {
            // A history younger than its clock holds zeros: nothing was counted before it began.
            let counted = next[at].saturating_sub(first[at]);
            let at_begin = first[at] as f64 + counted as f64 * clock.share;
            (totals[at] as f64 - at_begin).max(0.0) / clock.span_s
        })
    }
}
