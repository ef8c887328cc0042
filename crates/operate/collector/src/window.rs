//! The two windows: a counter with its fast rate, and a history for the mean over a sliding window.

use model::Nanos;
use switch::grown;

use crate::Step;

/// Steps of the stable window. The count one window ago is interpolated between two steps, so the error is
/// below one step's change of rate.
const STEPS: usize = 64;
/// One step more on each side, so that there is always one at or before the window's start.
const PLACES: usize = STEPS + 2;

/// The increase since the last reading; stores this one.
#[inline]
pub(crate) fn follow(last: &mut u64, value: u64) -> u64 {
    grown(value, std::mem::replace(last, value))
}

/// A count as a float, by way of the signed type, which takes fewer instructions. No counter uses the sign
/// bit, and a function that sets it does no harm.
#[inline]
pub(crate) fn number(count: u64) -> f64 {
    (count & i64::MAX as u64) as i64 as f64
}

/// A counter tracked across samples.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Count {
    last: Option<u64>,
    /// Total since tracking began; continues when the counter restarts.
    pub(crate) total: u64,
    /// Exponentially weighted rate per second.
    pub(crate) fast: f64,
}

impl Count {
    /// Updates the counter to `value`.
    #[inline]
    pub(crate) fn read(&mut self, value: u64, step: &Step) {
        let counted = grown(value, self.last.unwrap_or(value));
        self.last = Some(value);
        self.total = self.total.wrapping_add(counted);
        step.fast(&mut self.fast, step.rate(counted));
    }
}

/// The time steps of one service's histories, and the window's start within them.
#[derive(Debug)]
pub(crate) struct Clock {
    window: Nanos,
    interval: Nanos,
    times: [Nanos; PLACES],
    /// Steps taken; the newest is at `taken - 1`, modulo the number of places.
    taken: usize,
    /// Where to store the current sample, if it is a step.
    due: Option<usize>,
    /// The last step at or before the window's start: its place and that of the next step, if any.
    from: usize,
    first: usize,
    next: Option<usize>,
    /// The fraction of the way to the next step at which the window starts.
    share: f64,
    /// Seconds that the window covers; shorter at first, without history.
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
            due: None,
            from: 0,
            first: 0,
            next: None,
            share: 0.0,
            span_s: 0.0,
        }
    }

    /// A clock for another window with the steps of this one that fit, and their places in this one's
    /// histories.
    pub(crate) fn with_window(&self, window: Nanos) -> (Clock, Vec<usize>) {
        let mut clock = Clock::new(window);
        let mut kept = Vec::with_capacity(PLACES);
        let mut last = None;
        for place in (self.taken.saturating_sub(PLACES)..self.taken).map(|step| step % PLACES) {
            let at = self.times[place];
            if last.is_none_or(|last| at.since(last) >= clock.interval) {
                clock.times[kept.len()] = at;
                kept.push(place);
                last = Some(at);
            }
        }
        clock.taken = kept.len();
        (clock, kept)
    }

    /// Advances to the sample at `now`: determines whether it is a step, and the window's start.
    pub(crate) fn advance(&mut self, now: Nanos) {
        let newest = self.times[self.taken.wrapping_sub(1) % PLACES];
        let is_due = self.taken == 0 || now.since(newest) >= self.interval;
        self.due = is_due.then_some(self.taken % PLACES);
        if let Some(place) = self.due {
            self.times[place] = now;
            self.taken += 1;
        }
        let begin = now - self.window;
        // The start advances with time, so this takes at most a few steps.
        let oldest = self.taken.saturating_sub(PLACES);
        let mut from = self.from.max(oldest);
        while from + 1 < self.taken && self.times[(from + 1) % PLACES] <= begin {
            from += 1;
        }
        self.from = from;
        self.first = from % PLACES;
        self.next = (from + 1 < self.taken).then_some((from + 1) % PLACES);
        let first = self.times[self.first];
        let (begin, share) = if begin <= first || now.0 < self.window.0 {
            // Less than a window of history: use what there is, undiluted.
            (first, 0.0)
        } else if let Some(next) = self.next {
            let next = self.times[next];
            (
                begin,
                begin.since(first).0 as f64 / next.since(first).0.max(1) as f64,
            )
        } else {
            // No sample for a whole window: the count since then covers all that time.
            (first, 0.0)
        };
        self.share = share;
        self.span_s = now.since(begin).as_secs_f64();
    }
}

/// A counter's value at each step of a clock.
#[derive(Debug)]
pub(crate) struct History([u64; PLACES]);

impl Default for History {
    fn default() -> Self {
        History([0; PLACES])
    }
}

impl History {
    /// The values at these places.
    pub(crate) fn of_places(&self, places: &[usize]) -> History {
        let mut history = History::default();
        for (to, from) in history.0.iter_mut().zip(places) {
            *to = self.0[*from];
        }
        history
    }

    /// Stores the count if the clock's current sample is a step.
    #[inline]
    pub(crate) fn push(&mut self, clock: &Clock, total: u64) {
        if let Some(place) = clock.due {
            self.0[place] = total;
        }
    }

    /// The mean rate over the clock's window, which ends with a count of `total`.
    #[inline]
    pub(crate) fn rate(&self, clock: &Clock, total: u64) -> f64 {
        if clock.span_s <= 0.0 {
            return 0.0;
        }
        let first = self.0[clock.first];
        let next = clock.next.map_or(total, |next| self.0[next]);
        // A history younger than its clock holds zeros: nothing was counted before it started.
        let counted = next.saturating_sub(first);
        let at_begin = number(first) + number(counted) * clock.share;
        let since = number(total) - at_begin;
        if since > 0.0 { since / clock.span_s } else { 0.0 }
    }
}
