//! The fluid model: packets as rates. Within a step all rates are constant, so queues and losses are exact whatever
//! the step's length.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use model::{Nanos, Slot};
use traffic::Random;

use crate::Error;
use crate::control::{Control, SERVICE, SlotChange};
use crate::load::{Compiled, Single, whole_ms};
use crate::outcome::{Interval, Recorder};
use crate::scenario::{Instances, Scenario};
use crate::steering::Steering;

/// Picks at most, and at least where there are so many flows, for an aggregate's new flows of one step: each then
/// stands for several flows. In between, one for each millisecond.
const PICKS: (f64, f64) = (8.0, 64.0);
/// Share of its capacity that an instance must be offered to count as busy.
const BUSY_SHARE: f64 = 0.01;
/// Fewer flows than this of an aggregate on an instance that takes no new ones are none.
const HALF_A_FLOW: f64 = 0.5;
/// Thousandths of a packet per second: rates of single flows are summed as whole numbers, so that nothing is left of
/// a flow that has ended.
const MILLI: f64 = 1_000.0;

/// One slot's instance as it is modelled.
#[derive(Clone, Debug, Default)]
struct Place {
    queue: f64,
    /// Rate of single flows by factor, in thousandths of packets per second.
    singles_milli: Vec<u64>,
    /// The same in thousandths of bytes per second.
    singles_milli_bytes: Vec<u64>,
    single_flows: f64,
    /// How many entries of [`Fluid::flows`] it has.
    singles: usize,
    /// Live flows by aggregate and class, one after the other, and their sum at the end of the last step.
    live: Vec<f64>,
    live_flows: f64,
    /// The weight of the live flows of the aggregate at hand.
    weight: f64,
    /// Arrivals and capacity of the last step, in packets per second.
    arrivals_pps: f64,
    capacity_pps: f64,
    /// Bytes per second that arrive.
    arrivals_bytes: f64,
    /// CPUs by quota and the quota's period in seconds, where it has one.
    quota: Option<(f64, f64)>,
    to: f64,
    to_bytes: f64,
    back: f64,
    drops: f64,
    new_flows: f64,
    busy_ns: f64,
    throttled_ns: f64,
}

impl Place {
    fn flows(&self) -> f64 {
        self.single_flows + self.live_flows
    }
}

#[derive(Clone, Copy, Debug)]
struct Flow {
    single: usize,
    /// Its key's number.
    number: u64,
    /// [`Slot::NONE`] while no instance takes it.
    slot: Slot,
    ends: Option<Nanos>,
}

impl Compiled {
    /// The rate of a single flow in thousandths of packets, and of bytes, per second.
    fn milli(&self, single: &Single) -> (u64, u64) {
        let packets = single.pps * MILLI;
        let bytes = packets * self.bytes[single.source];
        (packets.round() as u64, bytes.round() as u64)
    }
}

/// A run of the fluid model.
pub(crate) struct Fluid<'a> {
    instances: &'a Instances,
    min_step: Nanos,
    max_step: Nanos,
    compiled: Compiled,
    /// Where each aggregate's classes begin in [`Place::live`].
    class_at: Vec<usize>,
    classes: usize,
    /// Flows without an instance, as [`Place::live`].
    homeless: Vec<f64>,
    /// Parts of new flows that were not whole yet, by aggregate.
    part: Vec<f64>,
    /// What one pick stands for, by class of the aggregate at hand.
    each: Vec<f64>,
    next_single: usize,
    flows: Vec<Flow>,
    free: Vec<usize>,
    ends: BinaryHeap<Reverse<(Nanos, usize)>>,
    waiting: Vec<usize>,
    places: Vec<Place>,
    used: Vec<Slot>,
    steering: Steering,
    random: Random,
    numbers: u64,
    offered: f64,
    offered_bytes: f64,
    unserved: f64,
    overcommitted: f64,
    moved: f64,
    /// What is left of each class after a step of `decay_s` seconds.
    decay: Vec<f64>,
    decay_s: f64,
    factors: Vec<f64>,
    /// Whether a queue was on its way up or down in the last step.
    moving: bool,
    lost_failed: f64,
}

/// Plays a scenario for one seed and records it.
pub(crate) fn run(
    scenario: &Scenario,
    compiled: Compiled,
    seed: u64,
    recorder: &mut Recorder,
) -> Result<(), Error> {
    let mut control = Control::new(scenario, seed)?;
    let mut fluid = Fluid::new(scenario, compiled, seed)?;
    let zero = control.zero;
    let end = zero + crate::load::seconds(scenario.duration_s);
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
        let interval = fluid.advance(&mut control, from.since(zero), to.since(from));
        control.now = to;
        let disturbed = control.turn();
        recorder.note(&control, &interval, to.since(zero));
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
            min_step: Nanos::from_millis(scenario.step.min_ms),
            max_step: Nanos::from_millis(scenario.step.max_ms),
            class_at,
            classes,
            homeless: vec![0.0; classes],
            part: vec![0.0; compiled.aggregates.len()],
            each: Vec::with_capacity(classes),
            next_single: 0,
            flows: Vec::new(),
            free: Vec::new(),
            ends: BinaryHeap::new(),
            waiting: Vec::new(),
            places: Vec::new(),
            used: Vec::new(),
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
            lost_failed: 0.0,
            compiled,
        })
    }

    fn place(&mut self, slot: Slot) -> Option<&mut Place> {
        self.places.get_mut(slot.index())
    }

    fn flows_of(&self, slot: Slot) -> f64 {
        self.places.get(slot.index()).map_or(0.0, Place::flows)
    }

    /// Takes in what the control loop did with slots, and lists the candidates anew.
    fn take_over(&mut self, control: &mut Control) {
        for change in std::mem::take(&mut control.changes) {
            match change {
                SlotChange::Fresh(slot) => {
                    if self.places.len() <= slot.index() {
                        self.places.resize_with(slot.index() + 1, Place::default);
                    }
                    let (classes, factors) = (self.classes, self.factors.len());
                    if let Some(place) = self.place(slot) {
                        *place = Place {
                            live: vec![0.0; classes],
                            singles_milli: vec![0; factors],
                            singles_milli_bytes: vec![0; factors],
                            ..Place::default()
                        };
                    }
                    control.raw.slots[slot.index()] = collector::SlotCounters::default();
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
        self.used.extend(control.rows.iter().map(|row| row.slot));
        for slot in self.used.clone() {
            let quota = control
                .quota(slot)
                .map(|quota| (quota.cpus(), f64::from(quota.period_us) / 1e6));
            if let Some(place) = self.place(slot) {
                place.quota = quota;
            }
        }
    }

    /// The flows of a slot are to be given anew.
    fn unpin(&mut self, slot: Slot) {
        let Some(place) = self.places.get_mut(slot.index()) else {
            return;
        };
        self.moved += place.single_flows;
        for (homeless, live) in self.homeless.iter_mut().zip(&mut place.live) {
            self.moved += *live;
            *homeless += std::mem::take(live);
        }
        place.live_flows = 0.0;
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

    /// When rates or single flows change next, after `now`.
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

    /// When a ring that fills or empties will next be hot, full or empty.
    fn next_crossing(&self, now: Nanos) -> Option<Nanos> {
        let ring = f64::from(self.instances.ring_slots);
        let mut soonest: Option<f64> = None;
        for slot in &self.used {
            let Some(place) = self.places.get(slot.index()) else {
                continue;
            };
            let net = place.arrivals_pps - place.capacity_pps;
            let level = if net > 0.0 {
                [0.25 * ring, ring]
                    .into_iter()
                    .find(|level| place.queue < level - 1e-6)
            } else {
                None
            };
            if let Some(level) = level {
                let after = (level - place.queue) / net;
                soonest = Some(soonest.map_or(after, |soonest: f64| soonest.min(after)));
            }
        }
        soonest.map(|after| now + Nanos((after * 1e9).min(1e18) as u64))
    }

    /// Single flows that end and start now, and those that wait for an instance. Says whether there were any.
    fn start_and_end(&mut self, control: &Control, now: Nanos) -> bool {
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
        let places = &self.places;
        self.steering
            .relist(control, |slot| places.get(slot.index()).map_or(0.0, Place::flows));
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

    /// New flows of the aggregates during a step: in a limited number of picks.
    fn pin_new_flows(&mut self, now: Nanos, dt_s: f64) {
        for index in 0..self.compiled.aggregates.len() {
            let aggregate = &mut self.compiled.aggregates[index];
            let rate = aggregate.new_flows.value(now);
            let wants = aggregate.pps.value(now) > 0.0;
            let (from, to) = (
                self.class_at[index],
                self.class_at[index] + aggregate.classes.len(),
            );
            let mut fresh = self.part[index] + rate * dt_s;
            let live = |live: &[f64]| live.get(from..to).map_or(0.0, |live| live.iter().sum::<f64>());
            if wants && fresh < 1.0 {
                // Packets come in: somebody sends them.
                let there =
                    self.places.iter().map(|place| live(&place.live)).sum::<f64>() + live(&self.homeless);
                if there <= 0.0 {
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
            let classes = self.compiled.aggregates[index].classes.iter();
            let of_class = classes.zip(&self.homeless[from..to]);
            self.each.clear();
            self.each
                .extend(of_class.map(|(class, again)| (whole * class.share + again) / picks));
            self.homeless[from..to].fill(0.0);
            for _ in 0..picks as u64 {
                let number = self.random.bits();
                let slot = self.steering.pick(number, each, 0);
                let Some(place) = self.places.get_mut(slot.index()) else {
                    continue;
                };
                place.new_flows += each;
                for (live, more) in place.live[from..to].iter_mut().zip(&self.each) {
                    *live += more;
                }
            }
        }
    }

    /// Moves rates, queues and counters on by one step.
    fn advance(&mut self, control: &mut Control, now: Nanos, dt: Nanos) -> Interval {
        let dt_s = dt.as_secs_f64();
        if self.compiled.aggregates.iter().any(|a| !a.classes.is_empty()) {
            self.pin_new_flows(now, dt_s);
        }
        for (value, factor) in self.factors.iter_mut().zip(&mut self.compiled.factors) {
            *value = factor.value(now);
        }
        let mut interval = Interval {
            instances: Vec::with_capacity(self.used.len()),
            ..Interval::default()
        };
        self.arrivals(now, dt_s, &mut interval);
        self.serve(dt_s, &mut interval);
        self.die_out(control, dt_s);
        interval.overcommitted = std::mem::take(&mut self.steering.overcommitted);
        self.overcommitted += interval.overcommitted;
        self.count(control);
        interval.moved = std::mem::take(&mut self.moved);
        interval.lost_failed = std::mem::take(&mut self.lost_failed);
        interval
    }

    fn arrivals(&mut self, now: Nanos, dt_s: f64, interval: &mut Interval) {
        for slot in &self.used {
            if let Some(place) = self.places.get_mut(slot.index()) {
                if place.singles == 0 {
                    (place.arrivals_pps, place.arrivals_bytes) = (0.0, 0.0);
                    continue;
                }
                let of = |milli: &[u64]| -> f64 {
                    let singles = milli.iter().zip(&self.factors);
                    singles
                        .filter(|(milli, _)| **milli > 0)
                        .map(|(milli, factor)| *milli as f64 / MILLI * factor)
                        .sum()
                };
                place.arrivals_pps = of(&place.singles_milli);
                place.arrivals_bytes = of(&place.singles_milli_bytes);
            }
        }
        let (mut unserved, mut unserved_bytes) = (0.0, 0.0);
        for index in &self.waiting {
            let single = self.compiled.singles[self.flows[*index].single];
            let pps = single.pps * self.factors[single.factor];
            unserved += pps;
            unserved_bytes += pps * self.compiled.bytes[single.source];
        }
        for (index, aggregate) in self.compiled.aggregates.iter_mut().enumerate() {
            let pps = aggregate.pps.value(now);
            let at = self.class_at[index];
            let weigh = |live: &[f64]| -> f64 {
                aggregate
                    .classes
                    .iter()
                    .zip(live.get(at..).unwrap_or_default())
                    .map(|(class, live)| class.weight * live)
                    .sum()
            };
            let homeless = weigh(&self.homeless);
            let mut total = homeless;
            for slot in &self.used {
                if let Some(place) = self.places.get_mut(slot.index()) {
                    place.weight = weigh(&place.live);
                    total += place.weight;
                }
            }
            let bytes = self.compiled.bytes[aggregate.source];
            if total <= 0.0 {
                unserved += pps;
                unserved_bytes += pps * bytes;
                continue;
            }
            for slot in &self.used {
                if let Some(place) = self.places.get_mut(slot.index()) {
                    let pps = pps * place.weight / total;
                    place.arrivals_pps += pps;
                    place.arrivals_bytes += pps * bytes;
                }
            }
            unserved += pps * homeless / total;
            unserved_bytes += pps * homeless / total * bytes;
        }
        let places = self.used.iter().filter_map(|slot| self.places.get(slot.index()));
        let (served, served_bytes) = places.fold((0.0, 0.0), |(pps, bytes), place| {
            (pps + place.arrivals_pps, bytes + place.arrivals_bytes)
        });
        interval.offered = (served + unserved) * dt_s;
        interval.lost_unserved = unserved * dt_s;
        self.offered += interval.offered;
        self.offered_bytes += (served_bytes + unserved_bytes) * dt_s;
        self.unserved += interval.lost_unserved;
    }

    /// What each instance can process now, and what becomes of its queue.
    fn serve(&mut self, dt_s: f64, interval: &mut Interval) {
        let instances = self.instances;
        let ring = f64::from(instances.ring_slots);
        let alone = instances.capacity_pps.of(1);
        let busy = self
            .used
            .iter()
            .filter_map(|slot| self.places.get(slot.index()))
            .filter(|place| place.arrivals_pps > BUSY_SHARE * alone || place.queue > 0.0)
            .count();
        let each = instances.capacity_pps.of(busy);
        let mut demand = 0.0;
        for slot in &self.used {
            let Some(place) = self.places.get_mut(slot.index()) else {
                continue;
            };
            let cpus = place
                .quota
                .map_or(instances.threads, |(cpus, _)| cpus.min(instances.threads));
            let mut capacity = each * cpus;
            if instances.receive_share > 0.0 && place.arrivals_pps > capacity {
                let spent = instances.receive_share * place.arrivals_pps;
                capacity = ((capacity - spent) / (1.0 - instances.receive_share)).max(0.0);
            }
            place.capacity_pps = capacity;
            demand += if place.queue > 0.0 {
                capacity
            } else {
                capacity.min(place.arrivals_pps)
            };
        }
        if let Some(total) = instances.total_pps
            && demand > total
        {
            for slot in &self.used {
                if let Some(place) = self.places.get_mut(slot.index()) {
                    let wants = if place.queue > 0.0 {
                        place.capacity_pps
                    } else {
                        place.capacity_pps.min(place.arrivals_pps)
                    };
                    place.capacity_pps = wants * total / demand;
                }
            }
        }
        self.moving = false;
        for slot in &self.used {
            let Some(place) = self.places.get_mut(slot.index()) else {
                continue;
            };
            let (arrivals, capacity) = (place.arrivals_pps, place.capacity_pps);
            let mut stalled = 0.0;
            if let Some((cpus, period_s)) = place.quota {
                // A polling function uses its quota up whatever it is offered, and then stands still for the rest of
                // each period: what does not fit the ring meanwhile is lost.
                let still_s = period_s * (1.0 - cpus / instances.threads).max(0.0);
                if still_s > 0.0 {
                    let room = (ring - place.queue).max(0.0);
                    let over = (arrivals * still_s - room).max(0.0);
                    // Beyond the capacity the loss is the ring's anyway.
                    stalled = (over / period_s).min((arrivals - (arrivals - capacity).max(0.0)).max(0.0));
                    place.throttled_ns += still_s / period_s * dt_s * 1e9;
                }
            }
            let arriving = (arrivals - stalled) * dt_s;
            let could = capacity * dt_s;
            let before = place.queue;
            let after = (before + arriving - could).max(0.0);
            let dropped = (after - ring).max(0.0);
            place.queue = after.min(ring);
            let taken = before + arriving - dropped - place.queue;
            let lost_stalled = stalled * dt_s;
            place.to += arriving - dropped;
            place.back += taken;
            if arrivals > 0.0 {
                // What the ring takes is as large as what arrives.
                place.to_bytes += (arriving - dropped) * place.arrivals_bytes / arrivals;
            }
            place.drops += dropped + lost_stalled;
            place.busy_ns += if could > 0.0 {
                (taken / could).min(1.0) * dt_s * 1e9
            } else {
                dt_s * 1e9
            };
            interval.served += taken;
            interval.lost_ring += dropped;
            interval.lost_stalled += lost_stalled;
            self.moving |= (place.queue - before).abs() > 1e-6;
            interval.instances.push((*slot, arriving + lost_stalled, taken));
        }
    }

    /// Flows of the aggregates end.
    fn die_out(&mut self, control: &Control, dt_s: f64) {
        if self.classes == 0 {
            return;
        }
        if dt_s.to_bits() != self.decay_s.to_bits() {
            self.decay_s = dt_s;
            let lives = self.compiled.aggregates.iter().flat_map(|a| a.classes.iter());
            for (decay, class) in self.decay.iter_mut().zip(lives) {
                *decay = (-dt_s / class.life_s).exp();
            }
        }
        for row in &control.rows {
            let Some(place) = self.places.get_mut(row.slot.index()) else {
                continue;
            };
            let mut left = 0.0;
            for (live, decay) in place.live.iter_mut().zip(&self.decay) {
                *live *= decay;
                left += *live;
            }
            if left < HALF_A_FLOW && !row.state.takes_new_flows() {
                place.live.fill(0.0);
                left = 0.0;
            }
            place.live_flows = left;
        }
        for (live, decay) in self.homeless.iter_mut().zip(&self.decay) {
            *live *= decay;
        }
    }

    /// Writes the counters that the collector reads.
    fn count(&mut self, control: &mut Control) {
        for slot in &self.used {
            let (Some(place), Some(raw)) = (
                self.places.get(slot.index()),
                control.raw.slots.get_mut(slot.index()),
            ) else {
                continue;
            };
            raw.to_packets = place.to as u64;
            raw.to_bytes = place.to_bytes as u64;
            raw.back_packets = place.back as u64;
            raw.consumed = place.back as u64;
            raw.ring_drops = place.drops as u64;
            raw.new_flows = place.new_flows as u64;
            raw.live_flows = place.flows().round() as u64;
            raw.ring_used = place.queue.floor() as u64;
            raw.ring_slots = u64::from(self.instances.ring_slots);
            raw.throttled_ns = place.throttled_ns as u64;
            raw.function = Some(collector::FunctionCounters {
                packets: place.back as u64,
                busy_ns: place.busy_ns as u64,
                ..collector::FunctionCounters::default()
            });
        }
        let service = &mut control.raw.services[SERVICE.index()];
        service.offered_packets = self.offered as u64;
        service.offered_bytes = self.offered_bytes as u64;
        service.unserved = self.unserved as u64;
        service.overcommitted = self.overcommitted as u64;
    }
}
