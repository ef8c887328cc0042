//! The fluid model: packets as rates. All rates are constant within a step, so queues and losses are exact
//! for any step length.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use collector::HOT_OCCUPANCY;
use model::{Nanos, Random, Slot};

use crate::Error;
use crate::control::{ControlLoop, SERVICE, SlotChange};
use crate::load::{Class, Compiled, Single, nearest, whole};
use crate::outcome::{Interval, Recorder};
use crate::scenario::{Capacities, Instances, Scenario};
use crate::site::Site;
use crate::steering::Steering;
use crate::time::whole_ms;

/// Minimum and maximum picks for an aggregate's new flows in a step, one per millisecond in between. Each pick stands
/// for several flows; there are never more picks than flows.
const PICKS: (f64, f64) = (8.0, 64.0);
/// An instance is busy if offered at least this share of its capacity.
const BUSY_SHARE: f64 = 0.01;
/// Fewer of an aggregate's flows on an instance without new flows count as none.
const HALF_A_FLOW: f64 = 0.5;
/// Thousandths of a packet per second: rates of single flows are summed as integers, so that an ended flow leaves no
/// rounding error.
const MILLI: f64 = 1_000.0;

/// The model of one slot's instance.
#[derive(Clone, Debug, Default)]
struct Place {
    /// Its position among the scenario's places.
    site: usize,
    queue: f64,
    /// Rate of single flows by factor, in thousandths of packets per second.
    singles_milli: Vec<u64>,
    /// The same in thousandths of bytes per second.
    singles_milli_bytes: Vec<u64>,
    single_flows: f64,
    /// Number of entries in [`Fluid::flows`] on this instance.
    singles: usize,
    /// The quota in CPUs and its period in seconds, if any.
    quota: Option<(f64, f64)>,
    to: f64,
    to_bytes: f64,
    back: f64,
    drops: f64,
    new_flows: f64,
    busy_ns: f64,
    throttled_ns: f64,
}

/// Live flows of the aggregates. Each class is contiguous by slot, so that updating a class on all instances
/// is one loop.
#[derive(Clone, Debug, Default)]
struct Live {
    slots: usize,
    /// By aggregate, class and slot.
    flows: Vec<f64>,
    /// By slot: the sum after the last step.
    sums: Vec<f64>,
    /// By slot: the weight of the current aggregate's flows.
    weights: Vec<f64>,
}

/// An aggregate's new flows in a step.
#[derive(Clone, Debug, Default)]
struct NewFlows {
    /// Flows per pick, by class.
    each: Vec<f64>,
    /// By slot: 1 if picked, else 0.
    picked: Vec<f64>,
    /// The slots of repeated picks, in order.
    again: Vec<Slot>,
}

impl NewFlows {
    fn clear(&mut self, slots: usize) {
        self.each.clear();
        self.again.clear();
        self.picked.clear();
        self.picked.resize(slots, 0.0);
    }

    fn pick(&mut self, slot: Slot) {
        match self.picked.get_mut(slot.index()) {
            Some(picked) if *picked == 0.0 => *picked = 1.0,
            _ => self.again.push(slot),
        }
    }

    /// Adds a class's flows for repeated picks.
    fn add_again(&self, live: &mut [f64], each: f64) {
        for slot in &self.again {
            if let Some(live) = live.get_mut(slot.index()) {
                *live += each;
            }
        }
    }
}

impl Live {
    /// Reserves space for `slots` slots.
    fn grow(&mut self, classes: usize, slots: usize) {
        if slots <= self.slots {
            return;
        }
        let mut flows = vec![0.0; classes * slots];
        for class in 0..classes {
            let before = &self.flows[class * self.slots..(class + 1) * self.slots];
            flows[class * slots..][..before.len()].copy_from_slice(before);
        }
        self.flows = flows;
        self.slots = slots;
        self.sums.resize(slots, 0.0);
        self.weights.resize(slots, 0.0);
    }

    /// The classes in that range, each as a slice by slot.
    fn classes(&self, range: Range<usize>) -> impl Iterator<Item = &[f64]> {
        let flows = self.flows.get(range.start * self.slots..range.end * self.slots);
        flows.unwrap_or_default().chunks_exact(self.slots.max(1))
    }

    /// The flows of one slot, by class.
    fn of_slot(&mut self, slot: Slot) -> impl Iterator<Item = &mut f64> {
        let there = slot.index() < self.slots;
        let flows = self.flows.chunks_exact_mut(self.slots.max(1));
        flows.filter_map(move |class| if there { class.get_mut(slot.index()) } else { None })
    }

    fn sum(&self, slot: Slot) -> f64 {
        self.sums.get(slot.index()).copied().unwrap_or(0.0)
    }

    /// A step of one aggregate's flows, whose classes start at `from`: adds the new ones, weighs those
    /// present during the step, applies the decay of each class, and adds the rest to the sums.
    fn step(&mut self, classes: &[Class], from: usize, fresh: &NewFlows, left: &[f64]) {
        self.weights.fill(0.0);
        let mut rows = self.flows.chunks_exact_mut(self.slots.max(1)).skip(from);
        let mut index = 0;
        while let (Some(class), Some(live)) = (classes.get(index), rows.next()) {
            let of_class = |index: usize, class: &Class| Change {
                each: fresh.each.get(index).copied().unwrap_or(0.0),
                weight: class.weight,
                left: left.get(index).copied().unwrap_or(0.0),
            };
            let first = of_class(index, class);
            fresh.add_again(live, first.each);
            let columns = (&mut *self.weights, &mut *self.sums);
            match (classes.get(index + 1), rows.next()) {
                (Some(class), Some(next)) => {
                    let second = of_class(index + 1, class);
                    fresh.add_again(next, second.each);
                    step_two((live, next), (first, second), &fresh.picked, columns);
                }
                _ => step_one(live, first, &fresh.picked, columns),
            }
            index += 2;
        }
    }
}

/// The change of one class of flows in a step.
#[derive(Clone, Copy, Debug)]
struct Change {
    /// Flows that start per picked slot.
    each: f64,
    weight: f64,
    /// The share left at the end.
    left: f64,
}

impl Change {
    /// The flows during the step and after it.
    #[inline]
    fn of(&self, live: f64, picked: f64) -> (f64, f64) {
        let there = live + picked * self.each;
        (there, there * self.left)
    }
}

/// [`Live::step`] for one class, with the weights and sums by slot. A separate function, so that the compiler
/// sees that the slices do not alias, and vectorizes.
#[inline(never)]
fn step_one(live: &mut [f64], change: Change, picked: &[f64], columns: (&mut [f64], &mut [f64])) {
    let columns = columns.0.iter_mut().zip(columns.1);
    for ((live, picked), (weights, sum)) in live.iter_mut().zip(picked).zip(columns) {
        let (there, then) = change.of(*live, *picked);
        *weights += change.weight * there;
        *sum += then;
        *live = then;
    }
}

/// The same for two classes at once, which saves half of the memory accesses for the sums.
#[inline(never)]
fn step_two(
    live: (&mut [f64], &mut [f64]),
    change: (Change, Change),
    picked: &[f64],
    columns: (&mut [f64], &mut [f64]),
) {
    let columns = columns.0.iter_mut().zip(columns.1);
    let live = live.0.iter_mut().zip(live.1);
    for (((first, second), picked), (weights, sum)) in live.zip(picked).zip(columns) {
        let (there, then) = change.0.of(*first, *picked);
        let (there_too, then_too) = change.1.of(*second, *picked);
        *weights = *weights + change.0.weight * there + change.1.weight * there_too;
        *sum = *sum + then + then_too;
        (*first, *second) = (then, then_too);
    }
}

/// Distributes arrivals by weight.
#[inline(never)]
fn share(weights: &[f64], pps: &mut [f64], bytes: &mut [f64], of: impl Fn(f64) -> (f64, f64)) {
    for ((weight, pps), bytes) in weights.iter().zip(pps).zip(bytes) {
        let (more_pps, more_bytes) = of(*weight);
        *pps += more_pps;
        *bytes += more_bytes;
    }
}

#[derive(Clone, Copy, Debug)]
struct Flow {
    single: usize,
    /// Its key number.
    number: u64,
    /// [`Slot::NONE`] while no instance accepts it.
    slot: Slot,
    ends: Option<Nanos>,
}

impl Compiled {
    /// A single flow's rate: thousandths of packets and thousandths of bytes per second.
    fn milli(&self, single: &Single) -> (u64, u64) {
        let packets = single.pps * MILLI;
        let bytes = packets * self.bytes[single.source];
        (packets.round() as u64, bytes.round() as u64)
    }
}

/// A run of the fluid model.
pub(crate) struct Fluid<'a> {
    instances: &'a Instances,
    sites: &'a [Site],
    min_step: Nanos,
    max_step: Nanos,
    compiled: Compiled,
    /// Start of each aggregate's classes among all.
    class_at: Vec<usize>,
    classes: usize,
    live: Live,
    /// Flows without an instance, by aggregate and class.
    homeless: Vec<f64>,
    /// Accumulated fractions of new flows, by aggregate.
    part: Vec<f64>,
    /// By aggregate.
    fresh: Vec<NewFlows>,
    next_single: usize,
    flows: Vec<Flow>,
    free: Vec<usize>,
    ends: BinaryHeap<Reverse<(Nanos, usize)>>,
    waiting: Vec<usize>,
    places: Vec<Place>,
    /// By slot: arriving packets and bytes per second.
    arrivals_pps: Vec<f64>,
    arrivals_bytes: Vec<f64>,
    /// The slots of the table, in ascending order.
    used: Vec<Slot>,
    /// By slot: whether it is in the table.
    is_used: Vec<bool>,
    steering: Steering,
    random: Random,
    numbers: u64,
    offered: f64,
    offered_bytes: f64,
    unserved: f64,
    overcommitted: f64,
    moved: f64,
    /// The share of each class left after a step of `decay_s` seconds.
    decay: Vec<f64>,
    decay_s: f64,
    factors: Vec<f64>,
    /// Whether a queue was growing or shrinking in the last step.
    moving: bool,
    /// Seconds after the last step until a filling ring is hot or full.
    crossing_s: Option<f64>,
    lost_failed: f64,
    interval: Interval,
}

/// Runs a scenario with one seed and records it.
pub(crate) fn run(
    scenario: &Scenario,
    compiled: Compiled,
    seed: u64,
    recorder: &mut Recorder,
) -> Result<(), Error> {
    let mut control = ControlLoop::new(scenario, seed)?;
    let mut fluid = Fluid::new(scenario, compiled, seed)?;
    let zero = control.zero;
    let end = zero + crate::time::seconds(scenario.duration_s);
    let mut step = fluid.min_step;
    fluid.take_over(&mut control);
    while control.now < end {
        let from = control.now;
        let changed = fluid.start_and_end(&control, from.since(zero));
        if changed {
            step = fluid.min_step;
        }
        let mut to = from + step;
        for bound in [
            fluid.next_change(from.since(zero)).map(|at| zero + at),
            control.next_due(),
            fluid.next_crossing(from),
            Some(zero + recorder.next_at(from.since(zero))),
            Some(end),
        ]
        .into_iter()
        .flatten()
        {
            to = to.min(whole_ms(bound).max(from + fluid.min_step));
        }
        fluid.advance(&mut control, recorder, from.since(zero), to.since(from));
        control.now = to;
        let disturbed = control.turn();
        recorder.note(&control, &fluid.interval, to.since(zero));
        if disturbed {
            fluid.take_over(&mut control);
        }
        recorder.record(to.since(zero), &mut control, |slot| fluid.flows_of(slot));
        step = if disturbed || fluid.moving {
            fluid.min_step
        } else {
            Nanos((step.0 * 2).min(fluid.max_step.0))
        };
    }
    recorder.finish(&control);
    Ok(())
}

impl<'a> Fluid<'a> {
    fn new(scenario: &'a Scenario, compiled: Compiled, seed: u64) -> Result<Fluid<'a>, Error> {
        let mut class_at = Vec::new();
        let mut classes = 0;
        for aggregate in &compiled.aggregates {
            class_at.push(classes);
            classes += aggregate.classes.len();
        }
        let factors = compiled.factors.len();
        Ok(Fluid {
            instances: &scenario.instances,
            sites: &scenario.place,
            min_step: Nanos::from_millis(scenario.step.min_ms),
            max_step: Nanos::from_millis(scenario.step.max_ms),
            class_at,
            classes,
            live: Live::default(),
            homeless: vec![0.0; classes],
            part: vec![0.0; compiled.aggregates.len()],
            fresh: vec![NewFlows::default(); compiled.aggregates.len()],
            next_single: 0,
            flows: Vec::new(),
            free: Vec::new(),
            ends: BinaryHeap::new(),
            waiting: Vec::new(),
            places: Vec::new(),
            arrivals_pps: Vec::new(),
            arrivals_bytes: Vec::new(),
            used: Vec::new(),
            is_used: Vec::new(),
            steering: Steering::new(scenario)?,
            random: Random::new(seed ^ 0xf1_01d5),
            numbers: seed << 32,
            offered: 0.0,
            offered_bytes: 0.0,
            unserved: 0.0,
            overcommitted: 0.0,
            moved: 0.0,
            decay: vec![1.0; classes],
            decay_s: 0.0,
            factors: vec![0.0; factors],
            moving: false,
            crossing_s: None,
            lost_failed: 0.0,
            interval: Interval::default(),
            compiled,
        })
    }

    fn place(&mut self, slot: Slot) -> Option<&mut Place> {
        self.places.get_mut(slot.index())
    }

    fn flows_of(&self, slot: Slot) -> f64 {
        let single = self.places.get(slot.index()).map_or(0.0, |p| p.single_flows);
        single + self.live.sum(slot)
    }

    /// Applies the control loop's slot changes and rebuilds the candidates.
    fn take_over(&mut self, control: &mut ControlLoop) {
        for change in std::mem::take(&mut control.changes) {
            match change {
                SlotChange::NewFlows(slot) => {
                    if self.places.len() <= slot.index() {
                        self.places.resize_with(slot.index() + 1, Place::default);
                    }
                    self.live.grow(self.classes, self.places.len());
                    self.arrivals_pps.resize(self.places.len(), 0.0);
                    self.arrivals_bytes.resize(self.places.len(), 0.0);
                    self.live.of_slot(slot).for_each(|live| *live = 0.0);
                    let factors = self.factors.len();
                    if let Some(place) = self.place(slot) {
                        *place = Place {
                            singles_milli: vec![0; factors],
                            singles_milli_bytes: vec![0; factors],
                            ..Place::default()
                        };
                    }
                    control.raw.slots[slot.index()] = switch::SlotCounters {
                        ring_slots: u64::from(self.instances.ring_slots),
                        ..switch::SlotCounters::default()
                    };
                }
                SlotChange::Unpinned(slot) => self.unpin(slot),
                SlotChange::Failed(slot) => {
                    let lost = self
                        .place(slot)
                        .map_or(0.0, |place| std::mem::take(&mut place.queue));
                    self.lost_failed += lost;
                    self.unpin(slot);
                }
                SlotChange::Gone(slot) => {
                    self.unpin(slot);
                    if let Some(place) = self.place(slot) {
                        place.queue = 0.0;
                    }
                }
            }
        }
        self.used.clear();
        self.used.extend(control.plan.instances().map(|(slot, _)| slot));
        self.is_used.clear();
        self.is_used.resize(self.places.len(), false);
        for slot in &self.used {
            if let Some(is_used) = self.is_used.get_mut(slot.index()) {
                *is_used = true;
            }
        }
        for slot in self.used.clone() {
            let quota = control
                .quota(slot)
                .map(|quota| (quota.cpus(), f64::from(quota.period_us) / 1e6));
            let site = control.place_of_slot.of(slot.index());
            if let Some(place) = self.place(slot) {
                place.quota = quota;
                place.site = site;
            }
        }
    }

    /// Unpins a slot's flows for rescheduling.
    fn unpin(&mut self, slot: Slot) {
        let Some(place) = self.places.get_mut(slot.index()) else {
            return;
        };
        self.moved += place.single_flows;
        for (homeless, live) in self.homeless.iter_mut().zip(self.live.of_slot(slot)) {
            self.moved += *live;
            *homeless += std::mem::take(live);
        }
        if let Some(sum) = self.live.sums.get_mut(slot.index()) {
            *sum = 0.0;
        }
        place.singles_milli.fill(0);
        place.singles_milli_bytes.fill(0);
        place.single_flows = 0.0;
        place.singles = 0;
        for (index, flow) in self.flows.iter_mut().enumerate() {
            if flow.slot == slot {
                flow.slot = Slot::NONE;
                self.waiting.push(index);
            }
        }
    }

    /// The next change of rates or single flows after `now`.
    fn next_change(&self, now: Nanos) -> Option<Nanos> {
        let aggregates = self.compiled.aggregates.iter();
        let rates = aggregates.flat_map(|a| [a.pps.next(now), a.new_flows.next(now)]);
        let factors = self.compiled.factors.iter().map(|factor| factor.next(now));
        let starts = [self
            .compiled
            .singles
            .get(self.next_single)
            .map(|single| single.at)];
        let ends = [self.ends.peek().map(|Reverse((at, _))| *at)];
        rates.chain(factors).chain(starts).chain(ends).flatten().min()
    }

    /// When a filling ring is next hot or full.
    fn next_crossing(&self, now: Nanos) -> Option<Nanos> {
        self.crossing_s
            .map(|after| now + Nanos((after * 1e9).min(1e18) as u64))
    }

    /// Ends and starts single flows that are due, and retries those without an instance. Returns whether there were
    /// any.
    fn start_and_end(&mut self, control: &ControlLoop, now: Nanos) -> bool {
        let mut changed = false;
        while let Some(Reverse((at, index))) = self.ends.peek().copied()
            && at <= now
        {
            self.ends.pop();
            changed = true;
            let flow = self.flows[index];
            let single = self.compiled.singles[flow.single];
            self.leave(&flow);
            if flow.slot == Slot::NONE {
                self.waiting.retain(|waiting| *waiting != index);
            }
            self.flows[index].slot = Slot::NONE;
            self.flows[index].ends = None;
            self.free.push(index);
            if single.repeat {
                self.begin(flow.single, now);
            }
        }
        while let Some(single) = self.compiled.singles.get(self.next_single)
            && single.at <= now
        {
            changed = true;
            self.begin(self.next_single, now);
            self.next_single += 1;
        }
        let (places, live) = (&self.places, &self.live);
        self.steering.relist(control, |slot| {
            places.get(slot.index()).map_or(0.0, |place| place.single_flows) + live.sum(slot)
        });
        if !self.waiting.is_empty() && !self.steering.is_empty() {
            changed = true;
            for index in std::mem::take(&mut self.waiting) {
                let flow = self.flows[index];
                let single = self.compiled.singles[flow.single];
                let slot = self.steering.pick(flow.number, single.flows, single.dscp);
                self.flows[index].slot = slot;
                if let Some(place) = self.places.get_mut(slot.index()) {
                    place.new_flows += single.flows;
                    place.single_flows += single.flows;
                    place.singles += 1;
                    let (milli, milli_bytes) = self.compiled.milli(&single);
                    place.singles_milli[single.factor] += milli;
                    place.singles_milli_bytes[single.factor] += milli_bytes;
                } else {
                    self.waiting.push(index);
                }
            }
        }
        changed
    }

    fn begin(&mut self, single: usize, now: Nanos) {
        self.numbers += 1;
        let flow = Flow {
            single,
            number: self.numbers,
            slot: Slot::NONE,
            ends: self.compiled.singles[single].lasts.map(|lasts| now + lasts),
        };
        let index = match self.free.pop() {
            Some(index) => {
                self.flows[index] = flow;
                index
            }
            None => {
                self.flows.push(flow);
                self.flows.len() - 1
            }
        };
        if let Some(ends) = flow.ends {
            self.ends.push(Reverse((ends, index)));
        }
        self.waiting.push(index);
    }

    fn leave(&mut self, flow: &Flow) {
        let single = self.compiled.singles[flow.single];
        if let Some(place) = self.places.get_mut(flow.slot.index()) {
            place.single_flows = (place.single_flows - single.flows).max(0.0);
            place.singles = place.singles.saturating_sub(1);
            let (milli, milli_bytes) = self.compiled.milli(&single);
            let of_factor = &mut place.singles_milli[single.factor];
            *of_factor = of_factor.saturating_sub(milli);
            let of_factor = &mut place.singles_milli_bytes[single.factor];
            *of_factor = of_factor.saturating_sub(milli_bytes);
        }
    }

    /// The aggregates' new flows of a step, in a limited number of picks.
    fn pin_new_flows(&mut self, now: Nanos, dt_s: f64) {
        for index in 0..self.compiled.aggregates.len() {
            self.fresh[index].clear(self.places.len());
            let aggregate = &mut self.compiled.aggregates[index];
            let rate = aggregate.new_flows.value(now);
            let wants = aggregate.pps.value(now) > 0.0;
            let (from, to) = (
                self.class_at[index],
                self.class_at[index] + aggregate.classes.len(),
            );
            let mut fresh = self.part[index] + rate * dt_s;
            if wants && fresh < 1.0 {
                // Arriving packets need a sender.
                let mut live = self
                    .live
                    .classes(from..to)
                    .flatten()
                    .chain(&self.homeless[from..to]);
                if live.all(|live| *live <= 0.0) {
                    fresh = 1.0;
                }
            }
            let whole = fresh.floor();
            self.part[index] = fresh - whole;
            let again: f64 = self.homeless[from..to].iter().sum();
            let total = whole + again;
            if total <= 0.0 {
                continue;
            }
            if self.steering.is_empty() {
                for class in 0..to - from {
                    self.homeless[from + class] +=
                        whole * self.compiled.aggregates[index].classes[class].share;
                }
                continue;
            }
            let picks = total.ceil().min((dt_s * 1e3).clamp(PICKS.0, PICKS.1)).max(1.0);
            let each = total / picks;
            let fresh = &mut self.fresh[index];
            let classes = self.compiled.aggregates[index].classes.iter();
            let of_class = classes.zip(&self.homeless[from..to]);
            fresh
                .each
                .extend(of_class.map(|(class, again)| (whole * class.share + again) / picks));
            self.homeless[from..to].fill(0.0);
            let (random, places) = (&mut self.random, &mut self.places);
            // Each number is a key of its own, if the scheduler uses keys.
            let numbers = || random.bits();
            self.steering.pick_often(picks as u64, each, numbers, |slot| {
                if let Some(place) = places.get_mut(slot.index()) {
                    place.new_flows += each;
                    fresh.pick(slot);
                }
            });
        }
    }

    /// Advances rates, queues and counters by one step.
    fn advance(&mut self, control: &mut ControlLoop, recorder: &mut Recorder, now: Nanos, dt: Nanos) {
        let dt_s = dt.as_secs_f64();
        if self.compiled.aggregates.iter().any(|a| !a.classes.is_empty()) {
            self.pin_new_flows(now, dt_s);
        }
        for (value, factor) in self.factors.iter_mut().zip(&mut self.compiled.factors) {
            *value = factor.value(now);
        }
        self.interval = Interval {
            overcommitted: std::mem::take(&mut self.steering.overcommitted),
            moved: std::mem::take(&mut self.moved),
            lost_failed: std::mem::take(&mut self.lost_failed),
            ..Interval::default()
        };
        self.follow_decay(dt_s);
        self.arrivals(now, dt_s);
        self.die_out(control);
        self.serve(control, recorder, dt_s);
        self.overcommitted += self.interval.overcommitted;
        let service = &mut control.raw.services[SERVICE.index()];
        service.offered_packets = whole(self.offered);
        service.offered_bytes = whole(self.offered_bytes);
        service.unserved = whole(self.unserved);
        service.overcommitted = whole(self.overcommitted);
    }

    /// Arrivals by slot during a step; advances the aggregates' flows to its end.
    fn arrivals(&mut self, now: Nanos, dt_s: f64) {
        self.arrivals_pps.fill(0.0);
        self.arrivals_bytes.fill(0.0);
        let with_singles = if self.flows.is_empty() {
            &[][..]
        } else {
            &self.used
        };
        for slot in with_singles {
            if let Some(place) = self.places.get(slot.index())
                && place.singles > 0
            {
                let of = |milli: &[u64]| -> f64 {
                    let singles = milli.iter().zip(&self.factors);
                    singles
                        .filter(|(milli, _)| **milli > 0)
                        .map(|(milli, factor)| *milli as f64 / MILLI * factor)
                        .sum()
                };
                self.arrivals_pps[slot.index()] = of(&place.singles_milli);
                self.arrivals_bytes[slot.index()] = of(&place.singles_milli_bytes);
            }
        }
        let (mut unserved, mut unserved_bytes) = (0.0, 0.0);
        for index in &self.waiting {
            let single = self.compiled.singles[self.flows[*index].single];
            let pps = single.pps * self.factors[single.factor];
            unserved += pps;
            unserved_bytes += pps * self.compiled.bytes[single.source];
        }
        self.live.sums.fill(0.0);
        for (index, aggregate) in self.compiled.aggregates.iter_mut().enumerate() {
            let pps = aggregate.pps.value(now);
            let at = self.class_at[index];
            let homeless = aggregate.classes.iter().zip(&self.homeless[at..]);
            let homeless: f64 = homeless.map(|(class, live)| class.weight * live).sum();
            self.live
                .step(&aggregate.classes, at, &self.fresh[index], &self.decay[at..]);
            let weights = &mut self.live.weights;
            if self.used.len() < self.places.len() {
                for (weight, is_used) in weights.iter_mut().zip(&self.is_used) {
                    if !is_used {
                        *weight = 0.0;
                    }
                }
            }
            let total = weights.iter().fold(homeless, |total, weight| total + weight);
            let bytes = self.compiled.bytes[aggregate.source];
            if total <= 0.0 {
                unserved += pps;
                unserved_bytes += pps * bytes;
                continue;
            }
            share(
                weights,
                &mut self.arrivals_pps,
                &mut self.arrivals_bytes,
                |weight| {
                    let pps = pps * weight / total;
                    (pps, pps * bytes)
                },
            );
            unserved += pps * homeless / total;
            unserved_bytes += pps * homeless / total * bytes;
        }
        // Nothing arrives at unused slots.
        let served: f64 = self.arrivals_pps.iter().sum();
        let served_bytes: f64 = self.arrivals_bytes.iter().sum();
        self.interval.offered = (served + unserved) * dt_s;
        self.interval.lost_unserved = unserved * dt_s;
        self.offered += self.interval.offered;
        self.offered_bytes += (served_bytes + unserved_bytes) * dt_s;
        self.unserved += self.interval.lost_unserved;
    }

    /// Each instance's capacity and queue, and the counters for the collector.
    fn serve(&mut self, control: &mut ControlLoop, recorder: &mut Recorder, dt_s: f64) {
        let instances = self.instances;
        let ring = f64::from(instances.ring_slots);
        let arrivals_pps = &self.arrivals_pps;
        let arrivals_bytes = &self.arrivals_bytes;
        let places = || {
            let places = self.places.iter().zip(arrivals_pps).zip(&self.is_used);
            places.filter_map(|((place, arrivals), is_used)| is_used.then_some((place, *arrivals)))
        };
        let each = match &instances.capacity_pps {
            Capacities::One(pps) => *pps,
            by_busy @ Capacities::ByBusy(_) => {
                let alone = by_busy.of(1);
                let busy =
                    places().filter(|(place, arrivals)| *arrivals > BUSY_SHARE * alone || place.queue > 0.0);
                by_busy.of(busy.count())
            }
        };
        // The share of what arrives that each place processes at most.
        let share_of = |(index, site): (usize, &Site)| {
            let arriving = arrivals_pps.iter().zip(arrivals_bytes);
            let all = self.places.iter().zip(arriving).zip(&self.is_used);
            let there = all.filter(|((place, _), is_used)| **is_used && place.site == index);
            let sum = there.fold((0.0, 0.0), |sum, ((_, (pps, bytes)), _)| {
                (sum.0 + pps, sum.1 + bytes)
            });
            site.processed_share(sum.0, sum.1, instances.receive_share)
        };
        let shares: Vec<f64> = self.sites.iter().enumerate().map(share_of).collect();
        let sites = self.sites;
        let capacity_of = |place: &Place, arrivals: f64| {
            let cpus = place
                .quota
                .map_or(instances.threads, |(cpus, _)| cpus.min(instances.threads));
            let site = sites.get(place.site);
            let capacity = site.and_then(|site| site.core_pps).unwrap_or(each) * cpus;
            if let Some(share) = shares.get(place.site).filter(|share| **share < 1.0) {
                return capacity.min(share * arrivals);
            }
            // With places, these collapse, not instances.
            if site.is_some() {
                return capacity;
            }
            if instances.receive_share > 0.0 && arrivals > capacity {
                let spent = instances.receive_share * arrivals;
                ((capacity - spent) / (1.0 - instances.receive_share)).max(0.0)
            } else {
                capacity
            }
        };
        let wants = |place: &Place, arrivals: f64| {
            let capacity = capacity_of(place, arrivals);
            if place.queue > 0.0 {
                capacity
            } else {
                capacity.min(arrivals)
            }
        };
        // The shortage of the shared capacity.
        let short = instances.total_pps.and_then(|total| {
            let demand: f64 = places().map(|(place, arrivals)| wants(place, arrivals)).sum();
            (demand > total).then_some((total, demand))
        });
        self.moving = false;
        self.crossing_s = None;
        let interval = &mut self.interval;
        let noted = recorder.instances(self.places.len());
        let arriving = self.arrivals_pps.iter().zip(&self.arrivals_bytes);
        let columns = self.places.iter_mut().zip(&mut control.raw.slots).zip(noted);
        let columns = columns.zip(arriving).zip(&self.live.sums).zip(&self.is_used);
        for (((((place, raw), noted), (arrivals, bytes)), live), is_used) in columns {
            if !is_used {
                continue;
            }
            let (arrivals, bytes) = (*arrivals, *bytes);
            let capacity = short.map_or_else(
                || capacity_of(place, arrivals),
                |(total, demand)| wants(place, arrivals) * total / demand,
            );
            let could = capacity * dt_s;
            // The common case: no queue, and everything is processed at once.
            let is_light = place.queue == 0.0 && arrivals <= capacity && place.quota.is_none();
            let (kept, taken) = if is_light {
                let taken = arrivals * dt_s;
                noted.0 += taken;
                raw.ring_used = 0;
                (taken, taken)
            } else {
                let mut stalled = 0.0;
                if let Some((cpus, period_s)) = place.quota {
                    // A polling function uses its whole quota at any load, and stalls for the rest of each period.
                    // Packets that exceed the ring meanwhile are lost.
                    let still_s = period_s * (1.0 - cpus / instances.threads).max(0.0);
                    if still_s > 0.0 {
                        let room = (ring - place.queue).max(0.0);
                        let over = (arrivals * still_s - room).max(0.0);
                        // The ring drops packets beyond the capacity in any case.
                        stalled = (over / period_s).min((arrivals - (arrivals - capacity).max(0.0)).max(0.0));
                        place.throttled_ns += still_s / period_s * dt_s * 1e9;
                        raw.throttled_ns = whole(place.throttled_ns);
                    }
                }
                let arriving = (arrivals - stalled) * dt_s;
                let before = place.queue;
                let after = (before + arriving - could).max(0.0);
                let dropped = (after - ring).max(0.0);
                place.queue = after.min(ring);
                let lost_stalled = stalled * dt_s;
                let lost = dropped + lost_stalled;
                if lost > 0.0 {
                    place.drops += lost;
                    raw.ring_drops = whole(place.drops);
                }
                interval.lost_ring += dropped;
                interval.lost_stalled += lost_stalled;
                self.moving |= (place.queue - before).abs() > 1e-6;
                noted.0 += arriving + lost_stalled;
                let net = arrivals - capacity;
                if net > 0.0 {
                    let levels = [HOT_OCCUPANCY * ring, ring];
                    if let Some(level) = levels.into_iter().find(|level| place.queue < level - 1e-6) {
                        let after = (level - place.queue) / net;
                        self.crossing_s = Some(self.crossing_s.map_or(after, |soonest| soonest.min(after)));
                    }
                }
                raw.ring_used = whole(place.queue);
                (arriving - dropped, before + arriving - dropped - place.queue)
            };
            place.to += kept;
            place.back += taken;
            if arrivals > 0.0 {
                // Packets in the ring have the same mean size as arriving ones.
                place.to_bytes += kept * bytes / arrivals;
            }
            place.busy_ns += if could > 0.0 {
                (taken / could).min(1.0) * dt_s * 1e9
            } else {
                dt_s * 1e9
            };
            interval.served += taken;
            interval.way_s += sites.get(place.site).map_or(0.0, Site::way_s) * taken;
            noted.1 += taken;

            raw.to_packets = whole(place.to);
            raw.to_bytes = whole(place.to_bytes);
            raw.back_packets = whole(place.back);
            raw.consumed = raw.back_packets;
            raw.new_flows = whole(place.new_flows);
            raw.live_flows = nearest(place.single_flows + live);
            let function = raw.function.get_or_insert_default();
            function.packets = raw.back_packets;
            function.busy_ns = whole(place.busy_ns);
        }
    }

    /// Updates the decay factors to the step's length.
    fn follow_decay(&mut self, dt_s: f64) {
        if dt_s.to_bits() != self.decay_s.to_bits() {
            self.decay_s = dt_s;
            let lives = self.compiled.aggregates.iter().flat_map(|a| a.classes.iter());
            for (decay, class) in self.decay.iter_mut().zip(lives) {
                *decay = (-dt_s / class.life_s).exp();
            }
        }
    }

    /// Ends fractions below half a flow on instances without new flows, and flows without an instance.
    fn die_out(&mut self, control: &ControlLoop) {
        if self.classes == 0 {
            return;
        }
        for (slot, row) in control.plan.instances() {
            if !row.state.takes_new_flows()
                && let Some(sum) = self.live.sums.get_mut(slot.index())
                && *sum < HALF_A_FLOW
            {
                *sum = 0.0;
                self.live.of_slot(slot).for_each(|live| *live = 0.0);
            }
        }
        for (live, decay) in self.homeless.iter_mut().zip(&self.decay) {
            *live *= decay;
        }
    }
}
