//! The two windows: a count with its fast rate, and a history that gives a mean over a sliding span.

use model::Nanos;

use crate::Step;

/// Steps of the stable window: the count one window ago is read between two steps, so its error is below one step's
/// change of rate.
const STEPS: usize = 64;
/// One step more on each side of the window, so that there is always one at or before its beginning.
const PLACES: usize = STEPS + 2;

/// What was counted between two readings. A counter that is below where it was began again at 0, and all of it is new.
#[inline]
pub(crate) fn counted(value: u64, last: u64) -> u64 {
    if value < last { value } else { value - last }
}

/// What was counted since the reading before, in whose place this one is noted.
#[inline]
pub(crate) fn follow(last: &mut u64, value: u64) -> u64 {
    counted(value, std::mem::replace(last, value))
}

/// A count as a number. By way of the signed type, which is fewer instructions; no counter of ours uses its sign, and what a
/// function writes there does no harm.
#[inline]
pub(crate) fn number(count: u64) -> f64 {
    (count & i64::MAX as u64) as i64 as f64
}

/// A counter as it is followed from sample to sample.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Count {
    last: Option<u64>,
    /// Counted since it has been followed; goes on over a counter that begins again.
    pub(crate) total: u64,
    /// Per second, exponentially weighted.
    pub(crate) fast: f64,
}

impl Count {
    /// Follows the counter to `value`.
    #[inline]
    pub(crate) fn read(&mut self, value: u64, step: &Step) {
        let counted = counted(value, self.last.unwrap_or(value));
        self.last = Some(value);
        self.total = self.total.wrapping_add(counted);
        step.fast(&mut self.fast, step.rate(counted));
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
    /// Where the current sample is noted, if it is a step.
    due: Option<usize>,
    /// The last step at or before the window's beginning, its place and that of the next step, if there is one.
    from: usize,
    first: usize,
    next: Option<usize>,
    /// The share of the way to the next step at which the window begins.
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
            due: None,
            from: 0,
            first: 0,
            next: None,
            share: 0.0,
            span_s: 0.0,
        }
    }

    /// A clock for another window that knows the steps of this one, as far as it has place for them; and where each of
    /// these is in the histories of this one.
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

    /// Moves to the sample at `now`: says whether it is a step and finds the window's beginning.
    pub(crate) fn advance(&mut self, now: Nanos) {
        let newest = self.times[self.taken.wrapping_sub(1) % PLACES];
        let is_due = self.taken == 0 || now.since(newest) >= self.interval;
        self.due = is_due.then_some(self.taken % PLACES);
        if let Some(place) = self.due {
            self.times[place] = now;
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
        self.first = from % PLACES;
        self.next = (from + 1 < self.taken).then_some((from + 1) % PLACES);
        let first = self.times[self.first];
        let (begin, share) = if begin <= first || now.0 < self.window.0 {
            // Not a whole window of history yet: what there is counts, undiluted.
            (first, 0.0)
        } else if let Some(next) = self.next {
            let next = self.times[next];
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

/// What a counter was at each step of a clock.
#[derive(Debug)]
pub(crate) struct History([u64; PLACES]);

impl Default for History {
    fn default() -> Self {
        History([0; PLACES])
    }
}

impl History {
    /// What is in these places.
    pub(crate) fn of_places(&self, places: &[usize]) -> History {
        let mut history = History::default();
        for (to, from) in history.0.iter_mut().zip(places) {
            *to = self.0[*from];
        }
        history
    }

    /// Notes the count where the clock's current sample is a step.
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
        // A history younger than its clock holds zeros: nothing was counted before it began.
        let counted = next.saturating_sub(first);
        let at_begin = number(first) + number(counted) * clock.share;
        let since = number(total) - at_begin;
        if since > 0.0 { since / clock.span_s } else { 0.0 }
    }
}
