use model::{Nanos, Slot};
use serde::{Deserialize, Serialize};

use crate::NewFlow;
use crate::bits::Bits;

/// Priorities that a flow can have: the class selector, the upper three bits of its DSCP (RFC 2474 §4.2.2). 7 is the
/// highest.
pub const PRIORITIES: usize = 8;
/// Steps in which an instance is brought up to its full share. Policies with a table make it anew at each.
pub const RAMP_STEPS: u8 = 16;
/// An odd number without a pattern: 2^64 divided by the golden ratio.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
/// Utilisation up to which an instance without a flow counts as idle: a rate that decays reaches 0 only slowly.
const IDLE_UTILISATION: f32 = 0.001;

/// An instance that takes new flows, as one worker sees it. Only Active instances are candidates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Its place in the data plane.
    pub slot: Slot,
    /// What it can process, in the unit of the service's metric; 0 or less, where that is not known, fits nothing.
    pub capacity: f32,
    /// What it is given, in the same unit: the fast-window figure, and the estimate of the flows pinned since that
    /// window began.
    pub load: f32,
    /// Its share among the candidates for policies that use weights, out of 256.
    pub weight: u16,
    /// Flows pinned to it.
    pub live_flows: u32,
    /// How long it has been taking new flows.
    pub active_for: Nanos,
    /// Its load by the priority of the flows that bring it. All zero where the giver does not know: then the shares of
    /// the flows that were pinned to it are used.
    pub queues: [f32; PRIORITIES],
}

impl Candidate {
    /// Whether one more flow fits: load < capacity × `fit`, before the flow is added. A load or capacity that is
    /// not a number fits nothing.
    #[inline]
    pub fn fits(&self, fit: f32) -> bool {
        self.load < self.capacity * fit
    }

    /// Load as a share of the capacity. Where no capacity is known, the load alone: instances of a service whose
    /// capacity has yet to be learned still compare. Infinite where either is not a number.
    #[inline]
    pub fn utilisation(&self) -> f32 {
        let share = if self.capacity > 0.0 {
            self.load / self.capacity
        } else {
            // What is not a number stays so.
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

    /// Whether it has no flow and nothing to do.
    #[inline]
    fn is_idle(&self) -> bool {
        self.live_flows == 0 && self.utilisation() <= IDLE_UTILISATION
    }

    /// What it can process as a factor to compare instances by: 1 where it is not known.
    #[inline]
    pub(crate) fn size(&self) -> f32 {
        if self.capacity > 0.0 { self.capacity } else { 1.0 }
    }
}

/// What holds for all candidates of a service.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Terms {
    /// When the loads were read.
    pub at: Nanos,
    /// Share of capacity that scheduling may use, 0 to 1.
    pub fit: f32,
    /// The time in which a fresh instance is brought up to its full share; see [`Candidates::ramp`].
    pub slow_start: Nanos,
}

impl Default for Terms {
    fn default() -> Self {
        Terms {
            at: Nanos::ZERO,
            fit: 0.9,
            slow_start: Nanos::ZERO,
        }
    }
}

/// What changes of a candidate while the instances and their weights stay: see [`Candidates::renew`].
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
/// 1. [`begin`](Candidates::begin) anew whenever loads or instances are published, and [`push`](Candidates::push) each
///    Active instance **in ascending order of slot**.
/// 2. [`Scheduler::pick`](crate::Scheduler::pick) from them, and [`pin`](Candidates::pin) the flow to the one picked.
///
/// Up to [`Slot::LIMIT`] candidates nothing is allocated after [`Candidates::new`].
#[derive(Clone, Debug)]
pub struct Candidates {
    terms: Terms,
    /// The first `count` are the list. While it is filled, those behind them are of the list before and are yet to come in
    /// it, or have left.
    rows: Vec<Candidate>,
    count: usize,
    /// The ramp of each, in steps of [`RAMP_STEPS`].
    steps: Box<[u8]>,
    highest_step: u8,
    /// Load and capacity of those at the highest step, as the list was filled in.
    grown_load: f32,
    grown_capacity: f32,
    /// Those that a flow fits, and those that have nothing to do.
    fitting: Bits,
    idle: Bits,
    /// Where in `rows` a slot is, if `rows` says so too.
    places: Box<[u16]>,
    /// Whether a load above the lowest priority was ever in one of them.
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
    /// None yet.
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

    /// Begins a new list.
    pub fn begin(&mut self, terms: Terms) {
        self.terms = terms;
        self.rows.truncate(self.count);
        self.count = 0;
        self.empty();
    }

    /// Forgets what is derived from the rows.
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

    /// Adds the next one. One whose slot is not higher than the last one's, or does not exist, is left out.
    // Always: callers that do not know priorities say so with zeros, which then need not be added up.
    #[inline(always)]
    pub fn push(&mut self, mut candidate: Candidate) {
        let at = self.count;
        let last = self.rows().last();
        if last.is_some_and(|last| last.slot >= candidate.slot) || candidate.slot.index() >= Slot::LIMIT {
            return;
        }
        // Mostly it is there that it was in the list before.
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

    /// Begins a new list of the same instances, each with the load, flows and age that `now` gives for it and its index: what
    /// [`begin`](Candidates::begin) and a [`push`](Candidates::push) of each come to, its load by priority not known, in
    /// fewer steps. For a caller that knows that no instance has come or left and that none has another capacity or weight.
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
                // A copy, so that nothing is read as a whole that was written in parts just before: that has to wait.
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

    /// What follows from the row at `index`, after those of the rows before it.
    // Always: what a caller has in registers need not be put together first.
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

    /// Takes one out, where it is in: it takes no new flows from now on.
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

    /// Notes that the flow was pinned to the candidate at `index`: its load and flows grow by it.
    #[inline]
    pub fn pin(&mut self, index: usize, flow: &NewFlow<'_>) {
        self.pin_many(index, flow, 1.0);
    }

    /// The same for as many flows like this one, for whoever counts flows by the thousand; at least one.
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
        // All of them are written, not the one that grows alone: who reads them next reads them together, and would have to
        // wait until a narrower write has left the processor's store buffer.
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
        // It has a flow.
        self.idle.put(index, false);
    }

    /// Keeps what is known of a row in step with it.
    #[inline]
    fn note(&mut self, index: usize, row: &Candidate) {
        self.fitting.put(index, row.fits(self.terms.fit));
        self.idle.put(index, row.is_idle());
    }

    /// How many there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// All of them, in ascending order of slot.
    #[inline]
    pub fn rows(&self) -> &[Candidate] {
        self.rows.get(..self.count).unwrap_or_default()
    }

    /// The one at `index`.
    #[inline]
    pub fn get(&self, index: usize) -> Option<&Candidate> {
        self.rows().get(index)
    }

    /// Where the one in that slot is.
    #[inline]
    pub fn index_of(&self, slot: Slot) -> Option<usize> {
        let index = usize::from(*self.places.get(slot.index())?);
        self.get(index)
            .is_some_and(|row| row.slot == slot)
            .then_some(index)
    }

    /// What holds for all.
    #[inline]
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Whether a flow fits the one at `index`.
    #[inline]
    pub fn fits(&self, index: usize) -> bool {
        self.fitting.get(index)
    }

    /// The first that a flow fits, looked for from `start` on and around.
    #[inline]
    pub fn next_fitting(&self, start: usize) -> Option<usize> {
        self.fitting.next(start, self.count)
    }

    /// The first that has no flow and nothing to do, looked for from `start` on and around.
    #[inline]
    pub fn next_idle(&self, start: usize) -> Option<usize> {
        self.idle.next(start, self.count)
    }

    /// The share of its full part that the one at `index` should get now, above 0 and at most 1: 1/16 when it becomes
    /// Active, rising in 16 steps to 1 at the end of [`Terms::slow_start`], as a part of the highest of all, so that
    /// instances that begin together get full shares.
    ///
    /// It bounds how fast a fresh instance catches up where policies go by how little an instance has (a stampede of
    /// all new flows to it). It yields to need: it is never below the share of their fitting capacity that the grown
    /// instances use, so that one which was added because the others are nearly full is of use at once.
    #[inline]
    pub fn ramp(&self, index: usize) -> f32 {
        match self.steps.get(index) {
            Some(step) if *step < self.highest_step => self.fresh_ramp(*step),
            _ => 1.0,
        }
    }

    /// That of one which is younger than others: out of the way of those that are not.
    #[cold]
    fn fresh_ramp(&self, step: u8) -> f32 {
        let by_age = f32::from(step) / f32::from(self.highest_step);
        by_age.max(f32::from(self.need()) / f32::from(RAMP_STEPS))
    }

    /// How much of what may be used of the grown instances is used, in steps of [`RAMP_STEPS`], rounded down: loads
    /// change a little all the time, and tables are made by it.
    #[inline]
    fn need(&self) -> u8 {
        let usable = self.grown_capacity * self.terms.fit;
        if usable > 0.0 {
            // What is not a number becomes 0.
            (f32::from(RAMP_STEPS) * self.grown_load / usable).clamp(0.0, f32::from(RAMP_STEPS)) as u8
        } else {
            0
        }
    }

    /// The utilisation by which instances compare: that of a fresh one counts for more, as if it were as small as its
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

    /// Another number whenever the list was made anew.
    #[inline]
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// Another number whenever the slots, their weights or their ramps are others.
    #[inline]
    pub(crate) fn shape(&self) -> u64 {
        let mut steps = self.steps.iter().take(self.count);
        if steps.all(|step| *step == self.highest_step) {
            return self.shape;
        }
        mix(self.shape ^ u64::from(self.need()))
    }

    /// How many flows were pinned since the list was made, and to which candidate the last one was.
    #[inline]
    pub(crate) fn pins(&self) -> (u64, usize) {
        (self.pins, self.pinned)
    }
}

/// A list's [shape](Candidates::shape) with one more row at its end.
#[inline]
fn with_row(shape: u64, row: &Candidate, step: u8) -> u64 {
    let identity = u64::from(row.slot.0) | u64::from(row.weight) << 16 | u64::from(step) << 32;
    // Each step is undone by nothing but itself, so lists that differ in one place never look alike.
    let mixed = (shape ^ identity).wrapping_mul(SPREAD);
    mixed.rotate_left(29).wrapping_add(1)
}

/// A load whose priorities are not known has those of the flows pinned so far, of which the list before knows.
#[inline]
fn carried_queues(before: Option<&[f32; PRIORITIES]>, load: f32, has_priorities: bool) -> [f32; PRIORITIES] {
    let load = if load > 0.0 { load } else { 0.0 };
    if let Some(queues) = before {
        let [lowest, ..] = *queues;
        let before = if has_priorities { total(queues) } else { lowest };
        if before > 0.0 {
            // What is left when all flows have ended is no memory of them.
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

/// A load by priority, all of it of the lowest.
#[inline]
fn of_lowest(load: f32) -> [f32; PRIORITIES] {
    let mut queues = [0.0; PRIORITIES];
    queues[0] = load;
    queues
}

/// The load of all priorities.
#[inline]
fn total(queues: &[f32; PRIORITIES]) -> f32 {
    queues.iter().sum()
}

/// The nearest whole number; halves go up, and what is below 0 or not a number is 0.
#[inline]
fn nearest(count: f32) -> u32 {
    let whole = count as u32;
    whole.saturating_add(u32::from(count - whole as f32 >= 0.5))
}

/// Where an instance of that age is on its way up.
#[inline]
fn ramp_step(active_for: Nanos, slow_start: Nanos) -> u8 {
    if active_for >= slow_start {
        return RAMP_STEPS;
    }
    // Below `slow_start`, so less than all steps.
    let passed = u128::from(active_for.0) * u128::from(RAMP_STEPS) / u128::from(slow_start.0.max(1));
    (passed as u8 + 1).min(RAMP_STEPS)
}

/// Spreads the bits of a number over all of it (the finaliser of SplitMix64: Steele, Lea, Flood, OOPSLA 2014).
#[inline]
pub(crate) const fn mix(mut n: u64) -> u64 {
    n = n.wrapping_add(SPREAD);
    n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

/// A number below `limit`, from uniform bits.
#[inline]
pub(crate) const fn below(bits: u32, limit: usize) -> usize {
    ((bits as u64 * limit as u64) >> 32) as usize
}
