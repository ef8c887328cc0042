//! The event model: every packet or request passes its instance's queue, for latency. Arrivals are Poisson.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use hdrhistogram::Histogram;
use model::{Nanos, Random, Slot};

use crate::Error;
use crate::card::{CardSwitch, PacketInTransit};
use crate::control::{ControlLoop, SERVICE, SlotChange};
use crate::load::Compiled;
use crate::outcome::{Interval, Recorder};
use crate::queue::Request;
use crate::scenario::{Scenario, Work};
use crate::sides::{Moves, Sides};
use crate::steering::Steering;
use crate::time::whole_ms;

/// Longest distinguished latency, in nanoseconds: an hour.
const LATENCY_LIMIT_NS: u64 = 3_600_000_000_000;
/// Sources with separate latencies.
const SOURCES_LIMIT: usize = 16;

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SimulationEvent {
    /// A server of that slot's instance has finished its job. The instance's number identifies it after the
    /// slot is reused.
    Done { slot: u16, instance: u32, server: u32 },
    /// The next packet of a single flow, with the generation of its slot.
    Single { flow: u32, use_of: u32 },
    /// The next packet of an aggregate, with the generation of its rate.
    Aggregate { index: u32, rate: u32 },
}

#[derive(Clone, Copy, Debug)]
struct Flow {
    single: usize,
    number: u64,
    slot: Slot,
    ends: Option<u64>,
    left: Option<u64>,
    use_of: u32,
    lives: bool,
}

#[derive(Debug)]
struct Place {
    station: Sides,
    instance: u32,
    live: u64,
    to: u64,
    to_bytes: u64,
    back: u64,
    drops: u64,
    new_flows: u64,
    busy_ns: u64,
    arrivals: u64,
    served: u64,
}

/// A flow of an aggregate: its key number and its pin.
#[derive(Clone, Copy, Debug)]
struct Member {
    number: u64,
    slot: Slot,
}

/// An aggregate's flows of one class.
type Members = Vec<Member>;

struct Events<'a> {
    scenario: &'a Scenario,
    compiled: Compiled,
    heap: BinaryHeap<Reverse<(u64, SimulationEvent)>>,
    places: Vec<Option<Place>>,
    instances: u32,
    flows: Vec<Flow>,
    free: Vec<usize>,
    next_single: usize,
    members: Vec<Vec<Members>>,
    part: Vec<f64>,
    rates: Vec<(f64, u32)>,
    steering: Steering,
    /// Where a card's rules steer packets.
    card: Option<CardSwitch>,
    random: Random,
    numbers: u64,
    latency: Histogram<u64>,
    by_source: Vec<Histogram<u64>>,
    /// Of short and of long requests, where the service times are of two kinds.
    by_kind: [Histogram<u64>; 2],
    finished: Vec<u64>,
    counted_from: u64,
    interval: Interval,
    offered: u64,
    offered_bytes: u64,
    unserved: u64,
    events: u64,
}

/// Runs a scenario with one seed and records it.
pub(crate) fn run(
    scenario: &Scenario,
    compiled: Compiled,
    seed: u64,
    recorder: &mut Recorder,
) -> Result<(), Error> {
    let mut control = ControlLoop::new(scenario, seed)?;
    let zero = control.zero;
    let end = zero + crate::time::seconds(scenario.duration_s);
    let mut events = Events::new(scenario, compiled, seed)?;
    events.take_over(&mut control);
    if let Some(card) = &mut events.card {
        card.set_terms(&control);
        card.settle();
    }
    let step = Nanos::from_millis(scenario.step.min_ms);
    while control.now < end {
        let from = control.now.since(zero);
        let mut to = (control.now + step).min(end);
        if let Some(due) = control.next_due() {
            to = to.min(whole_ms(due).max(control.now + step));
        }
        to = to.min(zero + recorder.next_at(from).max(from + Nanos::from_millis(1)));
        events.play(&mut control, from.0, to.since(zero).0);
        control.now = to;
        if control.turn() {
            events.take_over(&mut control);
        }
        let interval = events.interval(recorder);
        recorder.note(&control, &interval, to.since(zero));
        recorder.record(to.since(zero), &mut control, |slot| {
            events.place(slot).map_or(0.0, |place| place.live as f64)
        });
    }
    recorder.finish(&control);
    events.record_result(recorder);
    Ok(())
}

impl<'a> Events<'a> {
    fn new(scenario: &'a Scenario, compiled: Compiled, seed: u64) -> Result<Events<'a>, Error> {
        let histogram = || {
            Histogram::new_with_bounds(1, LATENCY_LIMIT_NS, 3)
                .map_err(|error| Error::value("latency", error.to_string()))
        };
        let sources = scenario.traffic.len().min(SOURCES_LIMIT);
        Ok(Events {
            scenario,
            heap: BinaryHeap::new(),
            places: Vec::new(),
            instances: 0,
            flows: Vec::new(),
            free: Vec::new(),
            next_single: 0,
            members: compiled
                .aggregates
                .iter()
                .map(|a| vec![Members::new(); a.classes.len()])
                .collect(),
            part: vec![0.0; compiled.aggregates.len()],
            rates: vec![(0.0, 0); compiled.aggregates.len()],
            steering: Steering::new(scenario)?,
            card: (scenario.card.as_ref())
                .map(|card| CardSwitch::new(card, scenario, seed))
                .transpose()?,
            random: Random::new(seed ^ 0xe7e_475),
            numbers: seed << 32,
            latency: histogram()?,
            by_source: (0..sources).map(|_| histogram()).collect::<Result<_, _>>()?,
            by_kind: [histogram()?, histogram()?],
            finished: vec![0; sources],
            counted_from: crate::time::seconds(scenario.warm_up_s).0,
            interval: Interval::default(),
            offered: 0,
            offered_bytes: 0,
            unserved: 0,
            events: 0,
            compiled,
        })
    }

    fn place(&self, slot: Slot) -> Option<&Place> {
        self.places.get(slot.index()).and_then(Option::as_ref)
    }

    fn take_over(&mut self, control: &mut ControlLoop) {
        for change in std::mem::take(&mut control.changes) {
            match change {
                SlotChange::NewFlows(slot) => {
                    if self.places.len() <= slot.index() {
                        self.places.resize_with(slot.index() + 1, || None);
                    }
                    self.instances += 1;
                    self.places[slot.index()] = Some(Place {
                        station: Sides::new(
                            &self.scenario.queue,
                            self.scenario.instances.ring_slots as usize,
                        ),
                        instance: self.instances,
                        live: 0,
                        to: 0,
                        to_bytes: 0,
                        back: 0,
                        drops: 0,
                        new_flows: 0,
                        busy_ns: 0,
                        arrivals: 0,
                        served: 0,
                    });
                    control.raw.slots[slot.index()] = switch::SlotCounters::default();
                    if let Some(card) = &mut self.card {
                        card.attach(slot);
                    }
                }
                SlotChange::Unpinned(slot) => {
                    self.unpin(slot);
                    if let Some(card) = &mut self.card {
                        self.interval.moved += card.unpin(slot) as f64;
                    }
                }
                SlotChange::Failed(slot) | SlotChange::Gone(slot) => {
                    self.unpin(slot);
                    if let Some(card) = &mut self.card {
                        self.interval.moved += card.remove(slot) as f64;
                    }
                    if let Some(place) = self.places.get_mut(slot.index()).and_then(Option::take) {
                        self.interval.lost_failed += place.station.len() as f64;
                    }
                }
            }
        }
        let busy = self
            .places
            .iter()
            .flatten()
            .filter(|place| place.station.len() > 0)
            .count();
        let each = self.scenario.instances.capacity_pps.of(busy.max(1));
        let serving = control.plan.instances().count().max(1) as f64;
        let each = self
            .scenario
            .instances
            .total_pps
            .map_or(each, |total| each.min(total / serving));
        for (slot, _) in control.plan.instances() {
            let quota = control.quota(slot);
            if let Some(Some(place)) = self.places.get_mut(slot.index()) {
                place
                    .station
                    .set_speed(each, self.scenario.instances.threads, quota);
            }
        }
    }

    fn unpin(&mut self, slot: Slot) {
        for flow in self
            .flows
            .iter_mut()
            .filter(|flow| flow.lives && flow.slot == slot)
        {
            flow.slot = Slot::NONE;
            self.interval.moved += 1.0;
        }
        for member in self
            .members
            .iter_mut()
            .flatten()
            .flatten()
            .filter(|member| member.slot == slot)
        {
            member.slot = Slot::NONE;
            self.interval.moved += 1.0;
        }
        if let Some(Some(place)) = self.places.get_mut(slot.index()) {
            place.live = 0;
        }
    }

    /// The instance of a new flow. With a card, its rules decide for each packet.
    fn pin(&mut self, number: u64, dscp: u8) -> Slot {
        if self.card.is_some() {
            return Slot::NONE;
        }
        let slot = self.steering.pick(number, 1.0, dscp);
        if let Some(Some(place)) = self.places.get_mut(slot.index()) {
            place.live += 1;
            place.new_flows += 1;
        }
        slot
    }

    fn remove_live(&mut self, number: u64, slot: Slot) {
        if let Some(card) = &mut self.card {
            card.forget(number);
        }
        if let Some(Some(place)) = self.places.get_mut(slot.index()) {
            place.live = place.live.saturating_sub(1);
        }
    }

    /// All events between `from` and `to`.
    fn play(&mut self, control: &mut ControlLoop, from: u64, to: u64) {
        let places = &self.places;
        if let Some(card) = &mut self.card {
            card.set_terms(control);
        }
        self.steering.relist(control, |slot| {
            places
                .get(slot.index())
                .and_then(Option::as_ref)
                .map_or(0.0, |place| place.live as f64)
        });
        self.flows_come_and_go(from, to);
        loop {
            let next = self.heap.peek().map_or(to, |Reverse((at, _))| *at).min(to);
            if let Some(card) = &mut self.card
                && card.next_at() <= next
            {
                let at = card.next_at();
                for (slot, packet) in card.turn_at(at) {
                    self.arrive(at, slot, packet);
                }
                continue;
            }
            let Some(Reverse((at, happening))) = self.heap.peek().copied() else {
                break;
            };
            if at >= to {
                break;
            }
            self.heap.pop();
            self.events += 1;
            match happening {
                SimulationEvent::Done {
                    slot,
                    instance,
                    server,
                } => self.done(at, slot, instance, server),
                SimulationEvent::Single { flow, use_of } => self.single_packet(at, flow, use_of),
                SimulationEvent::Aggregate { index, rate } => self.aggregate_packet(at, index, rate),
            }
        }
        self.count(control);
    }

    fn flows_come_and_go(&mut self, from: u64, to: u64) {
        let (now, dt_s) = (Nanos(from), (to - from) as f64 / 1e9);
        for index in 0..self.flows.len() {
            let flow = self.flows[index];
            if flow.lives && flow.ends.is_some_and(|ends| ends <= from) {
                self.end_flow(index, from);
            }
        }
        while let Some(single) = self.compiled.singles.get(self.next_single)
            && single.at <= now
        {
            self.begin(self.next_single, from);
            self.next_single += 1;
        }
        for index in 0..self.compiled.aggregates.len() {
            let pps = self.compiled.aggregates[index].pps.value(now);
            let fresh = self.compiled.aggregates[index].new_flows.value(now);
            self.part[index] += fresh * dt_s;
            let none = self.members[index].iter().all(Vec::is_empty);
            if none && pps > 0.0 && self.part[index] < 1.0 {
                self.part[index] = 1.0;
            }
            while self.part[index] >= 1.0 {
                self.part[index] -= 1.0;
                let mut drawn = self.random.unit();
                let classes = &self.compiled.aggregates[index].classes;
                let mut class = classes.len() - 1;
                for (place, of) in classes.iter().enumerate() {
                    if drawn <= of.share {
                        class = place;
                        break;
                    }
                    drawn -= of.share;
                }
                self.numbers += 1;
                let slot = self.pin(self.numbers, 0);
                let number = self.numbers;
                self.members[index][class].push(Member { number, slot });
            }
            for class in 0..self.members[index].len() {
                let life_s = self.compiled.aggregates[index].classes[class].life_s;
                let expected = self.members[index][class].len() as f64 * -(-dt_s / life_s).exp_m1();
                // The expected number; the fractional part is rounded randomly.
                let mut ends =
                    expected.floor() as usize + usize::from(self.random.unit() <= expected.fract());
                // The last flow stays while packets arrive, because they need a sender.
                let there: usize = self.members[index].iter().map(Vec::len).sum();
                if pps > 0.0 {
                    ends = ends.min(there.saturating_sub(1));
                }
                for _ in 0..ends.min(self.members[index][class].len()) {
                    let count = self.members[index][class].len();
                    let at = (self.random.bits() % count as u64) as usize;
                    let member = self.members[index][class].swap_remove(at);
                    self.remove_live(member.number, member.slot);
                }
            }
            if self.rates[index].0 != pps {
                self.rates[index] = (pps, self.rates[index].1.wrapping_add(1));
                self.next_aggregate(index, from);
            }
        }
    }

    fn next_aggregate(&mut self, index: usize, now: u64) {
        let (pps, rate) = self.rates[index];
        if pps > 0.0 {
            let after = (self.random.exponential() / pps * 1e9) as u64;
            self.heap.push(Reverse((
                now + after,
                SimulationEvent::Aggregate {
                    index: index as u32,
                    rate,
                },
            )));
        }
    }

    fn next_of_single(&mut self, index: usize, now: u64) {
        let flow = self.flows[index];
        let single = &self.compiled.singles[flow.single];
        let factor = self.compiled.factors[single.factor].peek(Nanos(now));
        let pps = single.pps * factor;
        let wait_s = if pps > 0.0 {
            self.random.exponential() / pps
        } else {
            // Idle for now: check again in a millisecond.
            1e-3
        };
        let at = now + (wait_s * 1e9) as u64;
        let flow = SimulationEvent::Single {
            flow: index as u32,
            use_of: flow.use_of,
        };
        self.heap.push(Reverse((at, flow)));
    }

    fn begin(&mut self, single: usize, now: u64) {
        let of = self.compiled.singles[single];
        self.numbers += 1;
        let slot = self.pin(self.numbers, of.dscp);
        let index = self.free.pop().unwrap_or_else(|| {
            self.flows.push(Flow {
                single,
                number: 0,
                slot,
                ends: None,
                left: None,
                use_of: 0,
                lives: false,
            });
            self.flows.len() - 1
        });
        let use_of = self.flows[index].use_of.wrapping_add(1);
        self.flows[index] = Flow {
            single,
            number: self.numbers,
            slot,
            ends: of
                .lasts
                .filter(|_| of.volume.is_none())
                .map(|lasts| now + lasts.0),
            left: of.volume,
            use_of,
            lives: true,
        };
        self.next_of_single(index, now);
    }

    fn end_flow(&mut self, index: usize, now: u64) {
        let flow = self.flows[index];
        let single = self.compiled.singles[flow.single];
        self.flows[index].lives = false;
        self.free.push(index);
        self.remove_live(flow.number, flow.slot);
        if now >= self.counted_from
            && let Some(finished) = self.finished.get_mut(single.source)
        {
            *finished += 1;
        }
        if single.repeat {
            self.begin(flow.single, now);
        }
    }

    fn single_packet(&mut self, at: u64, index: u32, use_of: u32) {
        let index = index as usize;
        let flow = self.flows[index];
        if !flow.lives || flow.use_of != use_of {
            return;
        }
        let single = self.compiled.singles[flow.single];
        if self.compiled.factors[single.factor].peek(Nanos(at)) > 0.0 {
            let mut slot = flow.slot;
            if slot == Slot::NONE {
                slot = self.pin(flow.number, single.dscp);
                self.flows[index].slot = slot;
            }
            let packet = PacketInTransit {
                number: flow.number,
                flow: Some(index as u32),
                source: single.source,
                actor: flow.number,
                at,
            };
            self.packet(slot, packet);
        }
        self.next_of_single(index, at);
    }

    fn aggregate_packet(&mut self, at: u64, index: u32, rate: u32) {
        let place = index as usize;
        if self.rates[place].1 != rate {
            return;
        }
        let aggregate = &self.compiled.aggregates[place];
        let members = &mut self.members[place];
        let total: f64 = aggregate
            .classes
            .iter()
            .zip(members.iter())
            .map(|(c, m)| c.weight * m.len() as f64)
            .sum();
        let mut drawn = self.random.unit() * total;
        let mut chosen = None;
        for (class, of) in aggregate.classes.iter().enumerate() {
            let weight = of.weight * members[class].len() as f64;
            if weight > 0.0 {
                chosen = Some((
                    class,
                    ((drawn / of.weight) as usize).min(members[class].len() - 1),
                ));
                if drawn <= weight {
                    break;
                }
            }
            drawn -= weight;
        }
        let source = aggregate.source;
        if let Some((class, member)) = chosen {
            let Member { number, mut slot } = members[class][member];
            if slot == Slot::NONE {
                self.numbers += 1;
                slot = self.pin(self.numbers, 0);
                self.members[place][class][member].slot = slot;
            }
            let packet = PacketInTransit {
                number,
                flow: None,
                source,
                actor: self.random.bits(),
                at,
            };
            self.packet(slot, packet);
        }
        self.next_aggregate(place, at);
    }

    fn bytes_of(&self, packet: &PacketInTransit) -> u64 {
        self.compiled.bytes.get(packet.source).copied().unwrap_or(0.0) as u64
    }

    /// A packet of a flow pinned to `slot`, unless a card's rules steer it.
    fn packet(&mut self, slot: Slot, packet: PacketInTransit) {
        self.offered += 1;
        self.offered_bytes += self.bytes_of(&packet);
        self.interval.offered += 1.0;
        if let Some(card) = &mut self.card {
            card.send(packet);
        } else if self.place(slot).is_some() {
            self.arrive(packet.at, slot, packet);
        } else {
            self.unserved += 1;
            self.interval.lost_unserved += 1.0;
        }
    }

    /// A packet arrives at an instance.
    fn arrive(&mut self, at: u64, slot: Slot, packet: PacketInTransit) {
        let bytes = self.bytes_of(&packet);
        let Some(Some(place)) = self.places.get_mut(slot.index()) else {
            self.interval.lost_failed += 1.0;
            return;
        };
        place.arrivals += 1;
        let queue = &self.scenario.queue;
        let actor = (packet.actor % u64::from(queue.actors)) as u32;
        let work = match queue.service {
            Work::Capacity => None,
            Work::CapacityExponential => Some(place.station.work_ns() * self.random.exponential()),
            Work::Exponential { mean_us } => Some(mean_us * 1e3 * self.random.exponential()),
            Work::Bimodal {
                short_us,
                long_us,
                long_share,
                by_actor,
            } => {
                let is_long = if by_actor {
                    // The last actors are the slow ones.
                    f64::from(actor) + 0.5 > f64::from(queue.actors) * (1.0 - long_share)
                } else {
                    self.random.unit() <= long_share
                };
                Some(1e3 * if is_long { long_us } else { short_us })
            }
        };
        let job = Request {
            arrived: packet.at,
            work_ns: work.unwrap_or_else(|| place.station.work_ns()),
            actor,
            source: packet.source as u32,
            flow: packet.flow.unwrap_or(u32::MAX),
        };
        if place.station.take(job) {
            place.to += 1;
            place.to_bytes += bytes;
        } else {
            place.drops += 1;
            self.interval.lost_ring += 1.0;
            return;
        }
        while let Some((server, until)) = place.station.start(at) {
            let done = SimulationEvent::Done {
                slot: slot.0,
                instance: place.instance,
                server,
            };
            self.heap.push(Reverse((until, done)));
        }
    }

    fn done(&mut self, at: u64, slot: u16, instance: u32, server: u32) {
        let Some(Some(place)) = self.places.get_mut(usize::from(slot)) else {
            return;
        };
        if place.instance != instance {
            return;
        }
        let Some((job, worked)) = place.station.finish(server, at) else {
            return;
        };
        place.busy_ns += worked;
        if job.is_some() {
            place.back += 1;
            place.served += 1;
            self.interval.served += 1.0;
        }
        while let Some((server, until)) = place.station.start(at) {
            let done = SimulationEvent::Done {
                slot,
                instance,
                server,
            };
            self.heap.push(Reverse((until, done)));
        }
        let Some(job) = job else { return };
        if job.arrived >= self.counted_from {
            let took = at.saturating_sub(job.arrived).max(1);
            self.latency.saturating_record(took);
            if let Work::Bimodal { short_us, .. } = self.scenario.queue.service {
                let is_long = job.work_ns > short_us * 1e3;
                self.by_kind[usize::from(is_long)].saturating_record(took);
            }
            if let Some(of) = self.by_source.get_mut(job.source as usize) {
                of.saturating_record(took);
            }
        }
        if let Some(flow) = self.flows.get_mut(job.flow as usize)
            && let Some(left) = &mut flow.left
            && flow.lives
        {
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.end_flow(job.flow as usize, at);
            }
        }
    }

    fn count(&mut self, control: &mut ControlLoop) {
        let ring = u64::from(self.scenario.instances.ring_slots);
        let servers = u64::from(self.scenario.queue.servers);
        if let Some(card) = &mut self.card {
            card.count(&mut self.interval);
            for (slot, row) in control.plan.instances() {
                if let Some(Some(place)) = self.places.get_mut(slot.index()) {
                    let drains = !row.state.takes_new_flows();
                    (place.live, place.new_flows) = card.flows_of(slot, drains);
                }
            }
        }
        for (place, raw) in self.places.iter().zip(control.raw.slots.iter_mut()) {
            let Some(place) = place else { continue };
            raw.to_packets = place.to;
            raw.to_bytes = place.to_bytes;
            raw.back_packets = place.back;
            raw.consumed = place.back;
            raw.ring_drops = place.drops;
            raw.new_flows = place.new_flows;
            raw.live_flows = place.live;
            raw.ring_used = place.station.waiting() as u64;
            raw.ring_slots = ring;
            raw.function = Some(switch::FunctionCounters {
                packets: place.back,
                busy_ns: place.busy_ns / servers,
                ..switch::FunctionCounters::default()
            });
        }
        let service = &mut control.raw.services[SERVICE.index()];
        service.offered_packets = self.offered;
        service.offered_bytes = self.offered_bytes;
        service.unserved = self.unserved;
        service.overcommitted += std::mem::take(&mut self.steering.overcommitted) as u64;
    }

    fn interval(&mut self, recorder: &mut Recorder) -> Interval {
        let noted = recorder.instances(self.places.len());
        for (place, noted) in self.places.iter_mut().zip(noted) {
            if let Some(place) = place {
                noted.0 += std::mem::take(&mut place.arrivals) as f64;
                noted.1 += std::mem::take(&mut place.served) as f64;
            }
        }
        std::mem::take(&mut self.interval)
    }

    fn record_result(&self, recorder: &mut Recorder) {
        let mut put = |name: String, value: f64| {
            recorder.extra.insert(name, value);
        };
        let us = |ns: u64| ns as f64 / 1e3;
        let mut all = |suffix: &str, of: &Histogram<u64>| {
            if !of.is_empty() {
                put(format!("latency_us_mean{suffix}"), of.mean() / 1e3);
                put(format!("latency_us_p50{suffix}"), us(of.value_at_quantile(0.5)));
                put(format!("latency_us_p99{suffix}"), us(of.value_at_quantile(0.99)));
                put(format!("latency_us_max{suffix}"), us(of.max()));
            }
        };
        all("", &self.latency);
        for (suffix, of) in ["_short", "_long"].into_iter().zip(&self.by_kind) {
            if !of.is_empty() {
                all(suffix, of);
            }
        }
        if self.by_source.len() > 1 {
            for (index, of) in self.by_source.iter().enumerate() {
                all(&format!("_of_{index}"), of);
            }
        }
        for (index, finished) in self.finished.iter().enumerate() {
            put(format!("finished_flows_of_{index}"), *finished as f64);
        }
        put("events".to_owned(), self.events as f64);
        let of_sides: Vec<Moves> = (self.places.iter().flatten())
            .filter_map(|place| place.station.moves())
            .collect();
        if !of_sides.is_empty() {
            let sum = |of: fn(&Moves) -> u64| of_sides.iter().map(of).sum::<u64>() as f64;
            put("moves_to_host".to_owned(), sum(|of| of.to_host));
            put("moves_to_card".to_owned(), sum(|of| of.to_card));
            put("served_on_host".to_owned(), sum(|of| of.served_on_host));
        }
        if let Some(card) = &self.card {
            card.record_result(recorder);
        }
    }
}
