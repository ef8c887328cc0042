use model::{Nanos, PlaceId, Slot, mix};
use serde::{Deserialize, Serialize};

use crate::NewFlow;
use crate::bits::Bits;

/// Priorities of flows: the class selector, the upper three bits of the DSCP (RFC 2474 §4.2.2). 7 is the
/// highest.
pub const PRIORITIES: usize = 8;
/// Steps of a fresh instance's ramp. Table-based policies rebuild their table at each step.
pub const RAMP_STEPS: u8 = 16;
/// 2^64 divided by the golden ratio: an odd number without a bit pattern.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
/// Utilisation up to which an instance without flows is idle: a decaying rate reaches 0 slowly.
const IDLE_UTILISATION: f32 = 0.001;

/// An instance that takes new flows, as seen by one worker. Only Active instances are candidates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Its slot.
    pub slot: Slot,
    /// Where it runs.
    pub place: PlaceId,
    /// What it can process, in the unit of the service's metric. Unknown if 0 or less: then nothing fits.
    pub capacity: f32,
    /// Its current load in the same unit: the fast-window rate plus the estimate for flows pinned since that
    /// window began.
    pub load: f32,
    /// How far that is believed, 0 to 1: below 1 where it is a report of another machine that is late. For the policy
    /// `machines`; 1 for all others.
    pub trust: f32,
    /// Its weight against the others, for policies that use weights; 256 where nobody says another one.
    pub weight: u16,
    /// Flows pinned to it.
    pub live_flows: u32,
    /// Time since it became Active.
    pub active_for: Nanos,
    /// Its load by priority of the flows. All zero if unknown: the priorities of the flows pinned to it are
    /// used then.
    pub queues: [f32; PRIORITIES],
}

impl Candidate {
    /// Whether one more flow fits: load < capacity × `fit`, before the flow is added. False if load or
    /// capacity is not a number.
    #[inline]
    pub fn fits(&self, fit: f32) -> bool {
        self.load < self.capacity * fit
    }

    /// Load as a share of the capacity. Without a capacity, the load itself, so that instances of a service
    /// still learning its capacity compare. Infinite if either is not a number.
    #[inline]
    pub fn utilisation(&self) -> f32 {
        let share = if self.capacity > 0.0 {
            self.load / self.capacity
        } else {
            // Not-a-number passes through.
            self.load + 0.0 * self.capacity
        };
        if share >= 0.0 {
            share
        } else if share < 0.0 {
            0.0
        } else {
            f32::INFINITY
        }
    }

    /// Whether it has no flow and no load.
    #[inline]
    fn is_idle(&self) -> bool {
        self.live_flows == 0 && self.utilisation() <= IDLE_UTILISATION
    }

    /// Its capacity for comparisons: 1 if unknown.
    #[inline]
    pub(crate) fn size(&self) -> f32 {
        if self.capacity > 0.0 { self.capacity } else { 1.0 }
    }
}

/// Settings that apply to all candidates of a service.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Terms {
    /// When the loads were read.
    pub at: Nanos,
    /// Share of capacity that may be scheduled, 0 to 1.
    pub fit: f32,
    /// The duration of a fresh instance's ramp; see [`Candidates::ramp`].
    pub slow_start: Nanos,
}

impl Default for Terms {
    fn default() -> Self {
        Terms {
            at: Nanos::ZERO,
            fit: 0.8,
            slow_start: Nanos::ZERO,
        }
    }
}

/// The changing fields of a candidate, while instances and weights stay: see [`Candidates::renew`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Renewed {
    /// See [`Candidate::load`].
    pub load: f32,
    /// See [`Candidate::live_flows`].
    pub live_flows: u32,
    /// See [`Candidate::active_for`].
    pub active_for: Nanos,
}

/// The candidates of one service on one worker.
///
/// 1. Whenever loads or instances are published: [`begin`](Candidates::begin), then
///    [`push`](Candidates::push) each Active instance **in ascending order of slot**.
/// 2. For each new flow: [`Scheduler::pick`](crate::Scheduler::pick), then [`pin`](Candidates::pin) the flow
///    to the candidate picked.
///
/// Allocates only in [`Candidates::new`], for up to [`Slot::LIMIT`] candidates.
#[derive(Clone, Debug)]
pub struct Candidates {
    terms: Terms,
    /// The first `count` are the list. During a rebuild, those behind them belong to the previous list: they
    /// are still to come, or have left.
    rows: Vec<Candidate>,
    count: usize,
    /// The ramp step of each, up to [`RAMP_STEPS`].
    steps: Box<[u8]>,
    highest_step: u8,
    /// Total load and capacity of the candidates at the highest step, when the list was built.
    grown_load: f32,
    grown_capacity: f32,
    /// The candidates that a flow fits, and the idle ones.
    fitting: Bits,
    idle: Bits,
    /// Index in `rows` by slot; valid only if that row has the slot.
    places: Box<[u16]>,
    /// Whether any candidate ever had load above the lowest priority.
    has_priorities: bool,
    revision: u64,
    shape: u64,
    pins: u64,
    pinned: usize,
}

impl Default for Candidates {
    fn default() -> Self {
        Self::new()
    }
}

impl Candidates {
    /// An empty list.
    pub fn new() -> Candidates {
        Candidates {
            terms: Terms::default(),
            rows: Vec::with_capacity(Slot::LIMIT),
            count: 0,
            steps: vec![0; Slot::LIMIT].into_boxed_slice(),
            highest_step: 0,
            grown_load: 0.0,
            grown_capacity: 0.0,
            fitting: Bits::new(),
            idle: Bits::new(),
            places: vec![0; Slot::LIMIT].into_boxed_slice(),
            has_priorities: false,
            revision: 0,
            shape: 0,
            pins: 0,
            pinned: 0,
        }
    }

    /// Starts a new list.
    pub fn begin(&mut self, terms: Terms) {
        self.terms = terms;
        self.rows.truncate(self.count);
        self.count = 0;
        self.empty();
    }

    /// Clears the data derived from the rows.
    fn empty(&mut self) {
        self.highest_step = 0;
        self.grown_load = 0.0;
        self.grown_capacity = 0.0;
        self.fitting.clear();
        self.idle.clear();
        self.revision += 1;
        self.shape = 0;
        self.pins = 0;
    }

    /// Adds the next one. Ignores one whose slot does not exist or is not above the last one's.
    // Always inlined: callers without priorities pass zeros, which then need no summing.
    #[inline(always)]
    pub fn push(&mut self, mut candidate: Candidate) {
        let at = self.count;
        let last = self.rows().last();
        if last.is_some_and(|last| last.slot >= candidate.slot) || candidate.slot.index() >= Slot::LIMIT {
            return;
        }
        // Usually it has the same index as in the previous list.
        let mut before = self.rows.get(at);
        if before.is_some_and(|row| row.slot < candidate.slot) {
            let left = self
                .rows
                .iter()
                .skip(at)
                .take_while(|row| row.slot < candidate.slot);
            let left = left.count();
            self.rows.drain(at..at + left);
            before = self.rows.get(at);
        }
        let before = before.filter(|row| row.slot == candidate.slot);
        if total(&candidate.queues) > 0.0 {
            self.has_priorities = true;
        } else {
            let before = before.map(|row| &row.queues);
            candidate.queues = carried_queues(before, candidate.load, self.has_priorities);
        }
        if before.is_none() {
            self.rows.insert(at, candidate);
        } else if let Some(row) = self.rows.get_mut(at) {
            *row = candidate;
        }
        self.count += 1;
        self.derive(at, &candidate);
    }

    /// Starts a new list of the same instances, with the load, flows and age that `now` returns for each.
    /// Equals [`begin`](Candidates::begin) and a [`push`](Candidates::push) of each without loads by
    /// priority, in fewer steps. Only for a caller that guarantees that instances, capacities, trust and weights are
    /// unchanged.
    pub fn renew(&mut self, terms: Terms, mut now: impl FnMut(usize, &Candidate) -> Renewed) {
        self.terms = terms;
        self.rows.truncate(self.count);
        self.revision += 1;
        self.pins = 0;
        let mut highest_step = 0;
        let (mut grown_load, mut grown_capacity) = (0.0, 0.0);
        let mut has_other_steps = false;
        let rows = self
            .rows
            .chunks_mut(Bits::OF_WORD)
            .zip(self.steps.chunks_mut(Bits::OF_WORD));
        for (word, (rows, steps)) in rows.enumerate() {
            let (mut fitting, mut idle) = (0, 0);
            for (bit, (row, place)) in rows.iter_mut().zip(steps).enumerate() {
                let renewed = now(word * Bits::OF_WORD + bit, row);
                let Renewed {
                    load,
                    live_flows,
                    active_for,
                } = renewed;
                // A copy: reading as a whole what was just written in parts would stall on store forwarding.
                let mut fresh = *row;
                (fresh.load, fresh.live_flows, fresh.active_for) = (load, live_flows, active_for);
                fresh.queues = carried_queues(Some(&row.queues), load, self.has_priorities);
                let step = ramp_step(active_for, terms.slow_start);
                has_other_steps |= step != *place;
                *place = step;
                if step > highest_step {
                    (highest_step, grown_load, grown_capacity) = (step, 0.0, 0.0);
                }
                if step == highest_step {
                    grown_load += load;
                    grown_capacity += fresh.capacity;
                }
                fitting |= u64::from(fresh.fits(terms.fit)) << bit;
                idle |= u64::from(fresh.is_idle()) << bit;
                (row.load, row.live_flows, row.active_for) = (load, live_flows, active_for);
                row.queues = fresh.queues;
            }
            self.fitting.put_word(word, fitting);
            self.idle.put_word(word, idle);
        }
        (self.highest_step, self.grown_load, self.grown_capacity) =
            (highest_step, grown_load, grown_capacity);
        if has_other_steps {
            let rows = self.rows.iter().zip(&self.steps);
            self.shape = rows.fold(0, |shape, (row, step)| with_row(shape, row, *step));
        }
    }

    /// Updates the derived data for the row at `index`, after those before it.
    // Always inlined: the caller's registers then need not be stored first.
    #[inline(always)]
    fn derive(&mut self, index: usize, row: &Candidate) {
        if let Some(place) = self.places.get_mut(row.slot.index()) {
            *place = index as u16;
        }
        let step = ramp_step(row.active_for, self.terms.slow_start);
        if let Some(place) = self.steps.get_mut(index) {
            *place = step;
        }
        if step > self.highest_step {
            (self.highest_step, self.grown_load, self.grown_capacity) = (step, 0.0, 0.0);
        }
        if step == self.highest_step {
            self.grown_load += row.load;
            self.grown_capacity += row.capacity;
        }
        self.shape = with_row(self.shape, row, step);
        self.note(index, row);
    }

    /// Removes one, if present: it takes no new flows from now on.
    pub fn remove(&mut self, slot: Slot) {
        if let Some(at) = self.index_of(slot) {
            self.rows.truncate(self.count);
            self.rows.remove(at);
            self.count -= 1;
            self.empty();
            let rows = std::mem::take(&mut self.rows);
            for (index, row) in rows.iter().enumerate() {
                self.derive(index, row);
            }
            self.rows = rows;
        }
    }

    /// Adds a newly pinned flow to the load and flow count of the candidate at `index`.
    #[inline]
    pub fn pin(&mut self, index: usize, flow: &NewFlow<'_>) {
        self.pin_many(index, flow, 1.0);
    }

    /// The same for `flows` flows like this one, at least one.
    #[inline]
    pub fn pin_many(&mut self, index: usize, flow: &NewFlow<'_>, flows: f32) {
        let Some(row) = self
            .rows
            .get_mut(..self.count)
            .and_then(|rows| rows.get_mut(index))
        else {
            return;
        };
        let load = flow.expected * flows;
        row.load += load;
        row.live_flows = row.live_flows.saturating_add(nearest(flows).max(1));
        let priority = flow.priority() as u32;
        self.has_priorities |= priority > 0;
        // All are written, not only the one that grows: the next reader reads them together and would stall
        // on a narrower write in the store buffer.
        row.queues = if self.has_priorities {
            std::array::from_fn(|at| row.queues[at] + if at as u32 == priority { load } else { 0.0 })
        } else {
            let [lowest, ..] = row.queues;
            of_lowest(lowest + load)
        };
        let fits = row.fits(self.terms.fit);
        self.pins += 1;
        self.pinned = index;
        self.fitting.put(index, fits);
        // It has a flow now.
        self.idle.put(index, false);
    }

    /// Updates the data derived from a row.
    #[inline]
    fn note(&mut self, index: usize, row: &Candidate) {
        self.fitting.put(index, row.fits(self.terms.fit));
        self.idle.put(index, row.is_idle());
    }

    /// Number of candidates.
    #[inline]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// All candidates, in ascending order of slot.
    #[inline]
    pub fn rows(&self) -> &[Candidate] {
        self.rows.get(..self.count).unwrap_or_default()
    }

    /// The one at `index`.
    #[inline]
    pub fn get(&self, index: usize) -> Option<&Candidate> {
        self.rows().get(index)
    }

    /// The index of the candidate in that slot.
    #[inline]
    pub fn index_of(&self, slot: Slot) -> Option<usize> {
        let index = usize::from(*self.places.get(slot.index())?);
        self.get(index)
            .is_some_and(|row| row.slot == slot)
            .then_some(index)
    }

    /// The settings that apply to all.
    #[inline]
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Whether a flow fits the one at `index`.
    #[inline]
    pub fn fits(&self, index: usize) -> bool {
        self.fitting.get(index)
    }

    /// The first candidate from `start` on, wrapping, that a flow fits.
    #[inline]
    pub fn next_fitting(&self, start: usize) -> Option<usize> {
        self.fitting.next(start, self.count)
    }

    /// The first idle candidate from `start` on, wrapping.
    #[inline]
    pub fn next_idle(&self, start: usize) -> Option<usize> {
        self.idle.next(start, self.count)
    }

    /// The share of its full part that the candidate should get now, above 0 and at most 1. Rises in 16 steps
    /// from 1/16 when it becomes Active to 1 at the end of [`Terms::slow_start`]. Relative to the highest
    /// ramp of all, so that instances started together get full shares.
    ///
    /// Limits how fast a fresh instance catches up under policies that prefer little-used instances;
    /// otherwise all new flows would stampede to it. It yields to need: it is never below the utilisation of
    /// the grown instances' fitting capacity, so that an instance added because the others are nearly full is
    /// used at once.
    #[inline]
    pub fn ramp(&self, index: usize) -> f32 {
        match self.steps.get(index) {
            Some(step) if *step < self.highest_step => self.fresh_ramp(*step),
            _ => 1.0,
        }
    }

    /// The ramp of a fresh candidate: kept off the hot path.
    #[cold]
    fn fresh_ramp(&self, step: u8) -> f32 {
        let by_age = f32::from(step) / f32::from(self.highest_step);
        by_age.max(f32::from(self.need()) / f32::from(RAMP_STEPS))
    }

    /// The used share of the grown instances' fitting capacity, in steps of [`RAMP_STEPS`], rounded down:
    /// loads fluctuate, and tables depend on it.
    #[inline]
    fn need(&self) -> u8 {
        let usable = self.grown_capacity * self.terms.fit;
        if usable > 0.0 {
            // Not-a-number becomes 0.
            (f32::from(RAMP_STEPS) * self.grown_load / usable).clamp(0.0, f32::from(RAMP_STEPS)) as u8
        } else {
            0
        }
    }

    /// The utilisation used for comparison: a fresh instance counts as smaller, by its
    /// [ramp](Candidates::ramp).
    #[inline]
    pub(crate) fn ramped_utilisation(&self, index: usize) -> f32 {
        let Some(row) = self.get(index) else {
            return f32::INFINITY;
        };
        let ramp = self.ramp(index);
        if ramp < 1.0 {
            row.utilisation() / ramp
        } else {
            row.utilisation()
        }
    }

    /// Changes whenever the list is rebuilt.
    #[inline]
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// Changes whenever slots, weights or ramps change.
    #[inline]
    pub fn shape(&self) -> u64 {
        let mut steps = self.steps.iter().take(self.count);
        if steps.all(|step| *step == self.highest_step) {
            return self.shape;
        }
        mix(self.shape ^ u64::from(self.need()))
    }

    /// How many flows were pinned since the list was built, and the candidate of the last one.
    #[inline]
    pub(crate) fn pins(&self) -> (u64, usize) {
        (self.pins, self.pinned)
    }
}

/// A list's [shape](Candidates::shape) with one more row.
#[inline]
fn with_row(shape: u64, row: &Candidate, step: u8) -> u64 {
    let identity = u64::from(row.slot.0) | u64::from(row.weight) << 16 | u64::from(step) << 32;
    // Each step is a bijection, so lists that differ in one row never collide.
    let mixed = (shape ^ identity).wrapping_mul(SPREAD);
    mixed.rotate_left(29).wrapping_add(1)
}

/// If a load's priorities are unknown, the priorities of the flows pinned so far, from the previous list.
#[inline]
fn carried_queues(before: Option<&[f32; PRIORITIES]>, load: f32, has_priorities: bool) -> [f32; PRIORITIES] {
    let load = if load > 0.0 { load } else { 0.0 };
    if let Some(queues) = before {
        let [lowest, ..] = *queues;
        let before = if has_priorities { total(queues) } else { lowest };
        if before > 0.0 {
            // A leftover below any flow is rounding, not load.
            let scale = load / before;
            return if has_priorities {
                queues.map(|queue| queue * scale)
            } else {
                of_lowest(lowest * scale)
            };
        }
    }
    of_lowest(load)
}

/// A load with the lowest priority only.
#[inline]
fn of_lowest(load: f32) -> [f32; PRIORITIES] {
    let mut queues = [0.0; PRIORITIES];
    queues[0] = load;
    queues
}

/// The sum over all priorities.
#[inline]
fn total(queues: &[f32; PRIORITIES]) -> f32 {
    queues.iter().sum()
}

/// Rounds to the nearest integer, halves up; 0 for negative numbers and not-a-number.
#[inline]
fn nearest(count: f32) -> u32 {
    let whole = count as u32;
    whole.saturating_add(u32::from(count - whole as f32 >= 0.5))
}

/// The ramp step of an instance of that age.
#[inline]
fn ramp_step(active_for: Nanos, slow_start: Nanos) -> u8 {
    if active_for >= slow_start {
        return RAMP_STEPS;
    }
    // Below `slow_start`, so fewer than all steps.
    let passed = u128::from(active_for.0) * u128::from(RAMP_STEPS) / u128::from(slow_start.0.max(1));
    (passed as u8 + 1).min(RAMP_STEPS)
}

/// A number below `limit`, from uniform bits.
#[inline]
pub(crate) const fn below(bits: u32, limit: usize) -> usize {
    ((bits as u64 * limit as u64) >> 32) as usize
}
