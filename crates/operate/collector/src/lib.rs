//! Turns counters into rates, windows and observations. The collector never reads a counter, a clock or a
//! file, and never decides anything.
//!
//! Key types: [`SwitchReading`] (what the caller reads from the switch), [`Collector`] (the windows),
//! [`SlotRates`] and [`ServiceRates`] (the results), [`Cost`] (the cost of sampling).
//!
//! Use:
//! 1. [`Collector::add_service`] for each service, [`Collector::assign`] for each instance that gets a slot.
//! 2. Every millisecond fill a reused [`SwitchReading`], call [`Collector::sample`], then
//!    [`Collector::record_cost`] with the elapsed time. Nothing is allocated.
//! 3. [`Collector::observe`] fills an autoscaler's [`Observation`]; [`Collector::slot`] gives the load that
//!    the scheduler's candidates start from.
//!
//! Rates are correct for any sample spacing: a late sample covers the time that has really passed.
//!
//! ```text
//! fast   exponentially weighted mean, time constant 10 ms:  f ← f + (1 − e^(−dt/10 ms)) · (Δcount/dt − f)
//! stable (count now − count one window ago) / window, the count then read off a history of 64 steps
//! held   as fast, time constant 250 ms
//! load   max(fast, held arrivals) + pending;  pending ← pending · e^(−dt/10 ms) + new flows · expected rate of a flow
//! ```
//! `pending` falls exactly as the fast rate of a new flow rises, so `load` contains a flow's expected rate
//! once, from the moment it is pinned. `held` covers pauses in which nothing arrives because the sender or
//! the switch got no CPU: after ten milliseconds every instance would look idle, and the next new flows would
//! all go to one that is full.

mod cost;
mod held_up;
mod ring_wait;
mod under_way;
mod window;

use model::{
    InstanceId, InstanceSignals, Nanos, Observation, Percentiles, ServiceId, Slot, UplinkId, WorkerId,
};
use scheduling::Metric;
use switch::{SlotCounters, SwitchReading, WorkerTotals};

pub use cost::Cost;
use held_up::HeldUp;
use ring_wait::RingWait;
use under_way::UnderWay;
use window::{Clock, Count, History, follow, number};

/// The time constant of the fast window.
pub const FAST_WINDOW: Nanos = Nanos::from_millis(10);
/// The time constant of the rate below which a load does not fall: several times the longest scheduling
/// pause.
pub const HELD_WINDOW: Nanos = Nanos::from_millis(250);
/// The time between two samples.
pub const SAMPLE_PERIOD: Nanos = Nanos::from_millis(1);
/// Largest step of [`SlotRates::waiting`] between two samples. After a longer gap the sampler itself had no CPU: then an
/// instance may have had none either, and may not know yet of what is in its ring.
pub const WAITING_STEP: Nanos = Nanos::from_millis(2);
/// A worker without a turn for so long has no CPU: it never sleeps longer than 20 ms.
const TURN_LIMIT: Nanos = Nanos::from_millis(30);
/// A packet that has not come back from an instance for so long does not come: functions drop packets.
pub const PASSAGE: Nanos = Nanos::from_millis(200);
/// A ring is hot if this share is occupied in two consecutive samples.
pub const HOT_OCCUPANCY: f64 = 0.25;
/// Least expected packets per second of a new flow. A service of silent flows has no known rate per flow, and
/// a burst of new flows must not look free.
pub const EXPECTED_FLOOR_PPS: f64 = 1.0;
/// The time constant of the learned capacity: several quota periods, so that a throttled instance shows its
/// mean throughput.
pub const LEARNING_WINDOW: Nanos = Nanos::from_secs(1);
/// The share of the weight of a long busy run required before a capacity counts as learned: 0.25 s.
const LEARNED_ENOUGH: f64 = 0.22;

/// The rates of one slot's instance, per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SlotRates {
    /// The instance.
    pub id: InstanceId,
    /// Its service.
    pub service: ServiceId,
    /// When its counters were last read; zero before that.
    pub at: Nanos,
    /// Packets forwarded to it or dropped because its ring was full, fast window.
    pub arrivals_fast_pps: f64,
    /// The same, over [`HELD_WINDOW`].
    pub arrivals_held_pps: f64,
    /// The same, stable window.
    pub arrivals_stable_pps: f64,
    /// Bytes of the packets put into its ring, fast window.
    pub to_fast_bytes_per_s: f64,
    /// The same, over [`HELD_WINDOW`].
    pub to_held_bytes_per_s: f64,
    /// Packets dropped because its ring was full, fast window.
    pub ring_drops_fast_pps: f64,
    /// What is seen of its counters as they are.
    pub signals: InstanceSignals,
    /// Expected packets per second of flows pinned too recently to show in the fast rate.
    pub pending_pps: f64,
    /// Occupied share of the ring towards it, 0 to 1.
    pub ring_occupancy: f64,
    /// Total flows pinned to the slot, as counted at `at`. A worker adds its later pins to
    /// [`SlotRates::load_pps`].
    pub new_flows: u64,
    /// Whether no packet was in its rings or on its way through it: what it was given has come back, or nothing was given
    /// to it for [`PASSAGE`].
    pub holds_nothing: bool,
    /// How long it has left packets in its ring without consuming any, excluding throttled time and time in which a
    /// worker had no CPU (of which it may not have been told), and at most [`WAITING_STEP`] per sample.
    pub waiting: Nanos,
    /// What was excluded from that: for so long it could not run, had not been told of its packets, or was not seen.
    pub excused: Nanos,
    /// Descriptors consumed since it was assigned.
    pub consumed: u64,
    /// The function's busy share of time, fast window, if published.
    pub busy: Option<f64>,
    /// Its memory in bytes, if known.
    pub memory_bytes: Option<u64>,
    /// How long packets waited in its ring in the last second, one packet a millisecond at most; none if none did come.
    pub ring_wait: Option<Percentiles>,
    /// Share of time in which it could not run: throttled by its quota, or waiting for a CPU. Held window.
    pub held_up: f64,
    /// Flows, mappings or sessions that the function holds, if published.
    pub held_flows: Option<u64>,
    /// Whether its ring was hot in this sample.
    pub hot: bool,
}

impl SlotRates {
    /// Packets put into its ring, fast window.
    pub fn to_fast_pps(&self) -> f64 {
        (self.arrivals_fast_pps - self.ring_drops_fast_pps).max(0.0)
    }

    /// Its load for scheduling: the higher of fast and held rate, plus the expected rate of recent pins.
    pub fn load_pps(&self) -> f64 {
        self.arrivals_fast_pps.max(self.arrivals_held_pps) + self.pending_pps
    }

    /// Its load in another metric; `service` is its service's rates. Busy time is the function's own, or else
    /// its packets as a share of `capacity_pps`.
    pub fn load(&self, metric: Metric, service: &ServiceRates, capacity_pps: f64) -> f64 {
        let pending_flows = || self.pending_pps / service.expected_pps.max(EXPECTED_FLOOR_PPS);
        match metric {
            Metric::Packets => self.load_pps(),
            Metric::Bytes => {
                let rate = self.to_fast_bytes_per_s.max(self.to_held_bytes_per_s);
                rate + pending_flows() * service.expected(Metric::Bytes, capacity_pps)
            }
            // Flows count as soon as they are pinned.
            Metric::Flows => self.signals.live_flows as f64,
            Metric::Busy => match self.busy {
                Some(busy) => busy + pending_flows() * service.expected(Metric::Busy, capacity_pps),
                None if capacity_pps > 0.0 => self.load_pps() / capacity_pps,
                None => 0.0,
            },
        }
    }
}

/// The rates of one service, in packets per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ServiceRates {
    /// Offered: forwarded or dropped. Fast window.
    pub offered_fast_pps: f64,
    /// The same, stable window.
    pub offered_stable_pps: f64,
    /// Dropped because no instance is Active, fast window.
    pub unserved_fast_pps: f64,
    /// Pins of its flows on all instances; a flow pinned to two instances counts twice.
    pub live_flows: u64,
    /// Expected packets per second of a new flow, at least [`EXPECTED_FLOOR_PPS`].
    pub expected_pps: f64,
    /// Learned capacity of one instance in packets per second, measured while it had packets waiting;
    /// [`None`] until there was enough such time.
    pub learned_capacity_pps: Option<f64>,
    /// New flows scheduled to an instance that they did not fit, since the service was added.
    pub overcommitted: u64,
    /// Mean bytes per offered packet, fast window.
    pub bytes_per_packet: f64,
}

impl ServiceRates {
    /// A new flow's expected load in that metric.
    pub fn expected(&self, metric: Metric, capacity_pps: f64) -> f64 {
        match metric {
            Metric::Packets => self.expected_pps,
            Metric::Bytes => self.expected_pps * self.bytes_per_packet,
            Metric::Flows => 1.0,
            Metric::Busy if capacity_pps > 0.0 => self.expected_pps / capacity_pps,
            Metric::Busy => 0.0,
        }
    }
}

/// The rates of one uplink, fast window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UplinkRates {
    /// Packets received.
    pub received_pps: f64,
    /// Their bytes.
    pub received_bytes_per_s: f64,
    /// Packets sent.
    pub sent_pps: f64,
    /// Their bytes.
    pub sent_bytes_per_s: f64,
    /// Packets dropped on the way out.
    pub dropped_pps: f64,
}

/// The rates of one worker, fast window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WorkerRates {
    /// Share of time in turns that moved packets.
    pub busy: f64,
    /// Share of time not asleep.
    pub awake: f64,
    /// Turns of its loop per second.
    pub turns_per_s: f64,
}

macro_rules! signals {
    (
        {}
        rates { $(#[doc = $rate_doc:tt] $rate:ident = $counter:ident;)* }
        values { $(#[doc = $value_doc:tt] $value:ident = $gauge:ident;)* }
    ) => {
        /// The counters behind the rates of [`InstanceSignals`], or what they have grown by.
        #[derive(Clone, Copy, Debug, Default)]
        struct SignalCounts { $($rate: u64,)* }

        impl SignalCounts {
            #[inline]
            fn of(raw: &SlotCounters) -> SignalCounts {
                SignalCounts { $($rate: raw.$counter,)* }
            }

            /// Follows the counters and the gauges. Returns what the counters have grown by.
            #[inline]
            fn follow(&mut self, raw: &SlotCounters, signals: &mut InstanceSignals, step: &Step) -> SignalCounts {
                let grown = SignalCounts { $($rate: follow(&mut self.$rate, raw.$counter),)* };
                $(step.fast(&mut signals.$rate, step.rate(grown.$rate));)*
                $(signals.$value = raw.$gauge;)*
                grown
            }
        }
    };
}

model::instance_signals! { signals! {} }

/// A slot's counters at the previous sample.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    arrivals: u64,
    to_bytes: u64,
    ring_drops: u64,
    consumed: u64,
    hot: u64,
    throttled_ns: u64,
    signals: SignalCounts,
}

impl Counted {
    #[inline]
    fn of(raw: &SlotCounters) -> Counted {
        Counted {
            arrivals: raw.to_packets.wrapping_add(raw.ring_drops),
            to_bytes: raw.to_bytes,
            ring_drops: raw.ring_drops,
            consumed: raw.consumed,
            hot: raw.hot,
            throttled_ns: raw.throttled_ns,
            signals: SignalCounts::of(raw),
        }
    }

    /// Follows the rarely changing counters: ring drops, hot rings and throttled time.
    #[cold]
    fn follow_rare(&mut self, raw: &SlotCounters) -> (u64, u64, u64) {
        (
            follow(&mut self.ring_drops, raw.ring_drops),
            follow(&mut self.hot, raw.hot),
            follow(&mut self.throttled_ns, raw.throttled_ns),
        )
    }
}

#[derive(Debug)]
struct SlotState {
    rates: SlotRates,
    /// Whether there was a previous sample.
    is_counting: bool,
    last: Counted,
    /// Packets for it since it was assigned.
    arrivals: u64,
    arrivals_history: History,
    /// New flows since the previous sample.
    new_flows: u64,
    /// The function's busy nanoseconds per second, fast window.
    busy_ns: Count,
    ring_wait: RingWait,
    held_up: HeldUp,
    occupied_before: bool,
    /// Whether packets were waiting at the previous sample.
    worked_before: bool,
    under_way: UnderWay,
}

impl SlotState {
    fn new(id: InstanceId, service: ServiceId) -> SlotState {
        SlotState {
            rates: SlotRates {
                id,
                service,
                ..SlotRates::default()
            },
            is_counting: false,
            last: Counted::default(),
            arrivals: 0,
            arrivals_history: History::default(),
            new_flows: 0,
            busy_ns: Count::default(),
            ring_wait: RingWait::new(),
            held_up: HeldUp::default(),
            occupied_before: false,
            worked_before: false,
            under_way: UnderWay::default(),
        }
    }

    /// Takes one reading, except for the pending load, which needs the service. Returns what the instance
    /// consumed if packets were waiting at this sample and the previous one: a measure of its capacity.
    #[inline]
    fn sample(&mut self, raw: &SlotCounters, step: &Step, clock: &Clock) -> Option<u64> {
        if !self.is_counting {
            // Counting starts at the first reading.
            self.is_counting = true;
            self.last = Counted::of(raw);
            self.under_way.start(raw);
            self.ring_wait.start(step.now);
        }
        let last = &mut self.last;
        // The rarely changing counters, compared at once.
        let stands = (raw.ring_drops ^ last.ring_drops)
            | (raw.hot ^ last.hot)
            | (raw.throttled_ns ^ last.throttled_ns);
        let (dropped, hot_events, throttled) = if stands == 0 {
            (0, 0, 0)
        } else {
            last.follow_rare(raw)
        };
        let arrivals = follow(&mut last.arrivals, raw.to_packets.wrapping_add(raw.ring_drops));
        let to_bytes = follow(&mut last.to_bytes, raw.to_bytes);
        let taken = follow(&mut last.consumed, raw.consumed);
        let signals = &mut self.rates.signals;
        self.new_flows = last.signals.follow(raw, signals, step).new_flows_fast_per_s;
        self.arrivals = self.arrivals.wrapping_add(arrivals);
        let arrived = arrivals > 0;

        let rates = &mut self.rates;
        rates.at = step.now;
        let (arrivals, to_bytes) = (step.rate(arrivals), step.rate(to_bytes));
        // In field order, so that two of them take one instruction.
        [rates.arrivals_fast_pps, rates.arrivals_held_pps] =
            step.fast_and_held([rates.arrivals_fast_pps, rates.arrivals_held_pps], arrivals);
        [rates.to_fast_bytes_per_s, rates.to_held_bytes_per_s] =
            step.fast_and_held([rates.to_fast_bytes_per_s, rates.to_held_bytes_per_s], to_bytes);
        if dropped > 0 || rates.ring_drops_fast_pps > 0.0 {
            step.fast(&mut rates.ring_drops_fast_pps, step.rate(dropped));
        }
        self.arrivals_history.push(clock, self.arrivals);
        rates.arrivals_stable_pps = self.arrivals_history.rate(clock, self.arrivals);

        let works = raw.ring_used > 0;
        let occupancy = if works && raw.ring_slots > 0 {
            (raw.ring_used as f64 / raw.ring_slots as f64).min(1.0)
        } else {
            0.0
        };
        let occupied = occupancy >= HOT_OCCUPANCY;
        rates.ring_occupancy = occupancy;
        rates.new_flows = raw.new_flows;
        rates.consumed = rates.consumed.wrapping_add(taken);
        let under_way = self.under_way.sample(raw, arrived, step.now);
        rates.holds_nothing = !works && raw.back_used == 0 && !under_way;
        rates.hot = dropped > 0 || hot_events > 0 || (occupied && self.occupied_before);
        (rates.waiting, rates.excused) = if !works || taken > 0 {
            (Nanos::ZERO, Nanos::ZERO)
        } else {
            // While a worker is held up, an instance may not know yet of what is in its ring.
            let passed = Nanos(step.dt_ns);
            let waited = match step.held_up {
                None => passed.min(WAITING_STEP),
                Some(_) => Nanos::ZERO,
            };
            // Throttled time of several samples may be reported at once, and so is a gap of a worker.
            let told = (Nanos(throttled) + step.held_up.unwrap_or_default()).min(rates.waiting + waited);
            let excused = passed.since(waited) + told;
            ((rates.waiting + waited).since(told), rates.excused + excused)
        };
        rates.busy = raw.function.map(|function| {
            self.busy_ns.read(function.busy_ns, step);
            (self.busy_ns.fast / 1e9).clamp(0.0, 1.0)
        });
        rates.memory_bytes = raw.memory_bytes();
        rates.held_flows = raw.function.and_then(|function| function.held_flows);
        if throttled > 0 {
            rates.held_up = self.held_up.report(Nanos(throttled), step.now, Nanos(step.dt_ns));
        } else if !self.held_up.is_zero() {
            rates.held_up = self.held_up.none(step.now, Nanos(step.dt_ns));
        }
        if works || self.ring_wait.follows() {
            let queue = ring_wait::Queue {
                consumed: rates.consumed,
                taken,
                used: raw.ring_used,
            };
            self.ring_wait.sample(queue, step.now, Nanos(step.dt_ns));
        } else {
            self.ring_wait.none_waits(arrived);
        }
        if self.ring_wait.is_due(step.now) {
            rates.ring_wait = self.ring_wait.turn(step.now, Nanos(step.dt_ns));
        }
        self.occupied_before = occupied;
        let was_busy = works && self.worked_before;
        self.worked_before = works;
        was_busy.then_some(taken)
    }
}

#[derive(Debug)]
struct ServiceState {
    rates: ServiceRates,
    offered: Count,
    offered_bytes: Count,
    unserved: Count,
    overcommitted: Count,
    offered_history: History,
    clock: Clock,
    hot: bool,
    /// The weighted mean consumption of busy instances per second, and the sum of weights.
    learned: f64,
    learned_weight: f64,
}

#[derive(Debug, Default)]
struct UplinkState {
    received: Count,
    received_bytes: Count,
    sent: Count,
    sent_bytes: Count,
    dropped: Count,
}

#[derive(Debug, Default)]
struct WorkerState {
    busy_ns: Count,
    awake_ns: Count,
    turns: Count,
    /// The last sample at which it had turned.
    turned_at: Nanos,
    is_held_up: bool,
}

impl WorkerState {
    /// Takes one reading.
    fn sample(&mut self, raw: &WorkerTotals, step: &Step) {
        let turns = self.turns.total;
        self.busy_ns.read(raw.busy_ns, step);
        self.awake_ns.read(raw.awake_ns, step);
        self.turns.read(raw.turns, step);
        if self.turns.total != turns {
            self.turned_at = step.now;
        }
    }

    /// Some if it has not run for longer than it ever sleeps: what it has put into rings may not have been told yet. With
    /// the time that was not known to be lost before.
    fn held_up(&mut self, now: Nanos) -> Option<Nanos> {
        let gap = now.since(self.turned_at);
        let is_held_up = self.turns.total > 0 && gap > TURN_LIMIT;
        let begins = !std::mem::replace(&mut self.is_held_up, is_held_up);
        is_held_up.then_some(if begins { gap } else { Nanos::ZERO })
    }
}

/// The interval of a sample.
#[derive(Clone, Copy, Debug)]
struct Step {
    now: Nanos,
    dt_ns: u64,
    /// Some if a worker is held up: see [`WorkerState::held_up`].
    held_up: Option<Nanos>,
    per_s: f64,
    /// 1 − e^(−dt/τ): this sample's weight in the fast rate.
    weight: f64,
    /// The same for the held rate.
    held_weight: f64,
    /// The same for the learned capacity.
    learning: f64,
}

impl Step {
    /// A count of this step as a rate per second.
    #[inline]
    fn rate(&self, counted: u64) -> f64 {
        number(counted) * self.per_s
    }

    /// Updates a fast rate with this step's rate.
    #[inline]
    fn fast(&self, mean: &mut f64, rate: f64) {
        *mean += self.weight * (rate - *mean);
    }

    /// Updates a fast and a held rate with this step's rate.
    #[inline]
    fn fast_and_held(&self, means: [f64; 2], rate: f64) -> [f64; 2] {
        let weights = [self.weight, self.held_weight];
        std::array::from_fn(|index| means[index] + weights[index] * (rate - means[index]))
    }
}

/// The windows over all counters. See the crate documentation.
#[derive(Debug)]
pub struct Collector {
    sampled_at: Option<Nanos>,
    age: Nanos,
    /// The assigned slots, in ascending order, with their state.
    assigned: Vec<Slot>,
    states: Vec<SlotState>,
    /// Index by slot; valid only if `assigned` has the slot there.
    places: Box<[u16]>,
    services: Vec<ServiceState>,
    uplinks: Vec<UplinkState>,
    workers: Vec<WorkerState>,
    cost: Cost,
}

impl Default for Collector {
    fn default() -> Self {
        Self::new()
    }
}

impl Collector {
    /// A collector without services and instances.
    pub fn new() -> Collector {
        Collector {
            sampled_at: None,
            age: Nanos::ZERO,
            assigned: Vec::with_capacity(Slot::LIMIT),
            states: Vec::with_capacity(Slot::LIMIT),
            places: vec![0; Slot::LIMIT].into_boxed_slice(),
            services: Vec::new(),
            uplinks: Vec::new(),
            workers: Vec::new(),
            cost: Cost::default(),
        }
    }

    /// Adds the next service (ids count from 0) with the length of its stable window.
    pub fn add_service(&mut self, stable_window: Nanos) -> ServiceId {
        let id = ServiceId(u16::try_from(self.services.len()).unwrap_or(u16::MAX));
        self.services.push(ServiceState {
            rates: ServiceRates {
                expected_pps: EXPECTED_FLOOR_PPS,
                ..ServiceRates::default()
            },
            offered: Count::default(),
            offered_bytes: Count::default(),
            unserved: Count::default(),
            overcommitted: Count::default(),
            offered_history: History::default(),
            clock: Clock::new(stable_window),
            hot: false,
            learned: 0.0,
            learned_weight: 0.0,
        });
        id
    }

    /// Changes the length of a service's stable window. Keeps the history, so that the next observation does
    /// not cover a single millisecond.
    pub fn set_stable_window(&mut self, service: ServiceId, stable_window: Nanos) {
        let Some(state) = self.services.get_mut(service.index()) else {
            return;
        };
        let (clock, places) = state.clock.with_window(stable_window);
        state.clock = clock;
        state.offered_history = state.offered_history.of_places(&places);
        for slot in &mut self.states {
            if slot.rates.service == service {
                slot.arrivals_history = slot.arrivals_history.of_places(&places);
            }
        }
    }

    /// Assigns `slot` to an instance. Its windows restart; the counters at the next sample are the baseline,
    /// whether or not the switch has reset them.
    pub fn assign(&mut self, slot: Slot, service: ServiceId, id: InstanceId) {
        if slot.index() >= Slot::LIMIT || service.index() >= self.services.len() {
            return;
        }
        let fresh = SlotState::new(id, service);
        match self.assigned.binary_search(&slot) {
            Ok(at) => self.states[at] = fresh,
            Err(at) => {
                self.assigned.insert(at, slot);
                self.states.insert(at, fresh);
                self.note_places(at);
            }
        }
    }

    /// Unassigns the slot.
    pub fn release(&mut self, slot: Slot) {
        if let Ok(at) = self.assigned.binary_search(&slot) {
            self.assigned.remove(at);
            self.states.remove(at);
            self.note_places(at);
        }
    }

    /// Updates the indices of the slots from there on.
    fn note_places(&mut self, from: usize) {
        for (at, slot) in self.assigned.iter().enumerate().skip(from) {
            if let Some(place) = self.places.get_mut(slot.index()) {
                *place = at as u16;
            }
        }
    }

    /// The assigned slots, in ascending order: those that [`Collector::sample`] reads.
    pub fn assigned(&self) -> &[Slot] {
        &self.assigned
    }

    /// Takes one reading of all counters, made at `raw.at`. Ignores one not later than the last: its counts
    /// are in the next.
    pub fn sample(&mut self, raw: &SwitchReading) {
        let now = raw.at;
        self.age = raw.age;
        let dt_ns = match self.sampled_at {
            // Counting starts at the first reading.
            None => 0,
            Some(before) if now <= before => return,
            Some(before) => now.since(before).0,
        };
        self.sampled_at = Some(now);
        self.cost.sampled(dt_ns);
        let dt_s = dt_ns as f64 / 1e9;
        let mut step = Step {
            now,
            dt_ns,
            held_up: None,
            per_s: if dt_ns == 0 { 0.0 } else { 1.0 / dt_s },
            weight: -(-dt_s / FAST_WINDOW.as_secs_f64()).exp_m1(),
            held_weight: -(-dt_s / HELD_WINDOW.as_secs_f64()).exp_m1(),
            learning: -(-dt_s / LEARNING_WINDOW.as_secs_f64()).exp_m1(),
        };

        while self.workers.len() < raw.workers.len() {
            self.workers.push(WorkerState::default());
        }
        for (state, counters) in self.workers.iter_mut().zip(&raw.workers) {
            state.sample(counters, &step);
        }
        let held_up = self.workers.iter_mut().map(|worker| worker.held_up(now));
        step.held_up = held_up.max().flatten();

        for (state, counters) in self.services.iter_mut().zip(&raw.services) {
            state.offered.read(counters.offered_packets, &step);
            state.offered_bytes.read(counters.offered_bytes, &step);
            state.unserved.read(counters.unserved, &step);
            state.overcommitted.read(counters.overcommitted, &step);
            state.rates.overcommitted = state.overcommitted.total;
            state.clock.advance(now);
            state.offered_history.push(&state.clock, state.offered.total);
            state.rates.offered_fast_pps = state.offered.fast;
            state.rates.unserved_fast_pps = state.unserved.fast;
            state.rates.offered_stable_pps = state.offered_history.rate(&state.clock, state.offered.total);
            state.rates.live_flows = 0;
        }
        for (slot, state) in self.assigned.iter().zip(&mut self.states) {
            let service = self.services.get_mut(state.rates.service.index());
            let (Some(service), Some(counters)) = (service, raw.slots.get(slot.index())) else {
                continue;
            };
            let taken = state.sample(counters, &step, &service.clock);
            service.rates.live_flows += state.rates.signals.live_flows;
            service.hot |= state.rates.hot;
            if let Some(taken) = taken {
                service.learned += step.learning * (step.rate(taken) - service.learned);
                service.learned_weight += step.learning * (1.0 - service.learned_weight);
            }
        }
        for state in &mut self.services {
            let rates = &mut state.rates;
            let each = match rates.live_flows {
                0 => 0.0,
                flows => rates.offered_fast_pps / flows as f64,
            };
            rates.expected_pps = each.max(EXPECTED_FLOOR_PPS);
            // Both rates decay alike, so their quotient stays a mean.
            if state.offered.fast > 0.0 {
                rates.bytes_per_packet = state.offered_bytes.fast / state.offered.fast;
            }
            rates.learned_capacity_pps = (state.learned_weight >= LEARNED_ENOUGH && state.learned > 0.0)
                .then(|| state.learned / state.learned_weight);
        }
        for state in &mut self.states {
            let service = self.services.get(state.rates.service.index());
            let expected = service.map_or(0.0, |s| s.rates.expected_pps);
            state.rates.pending_pps =
                state.rates.pending_pps * (1.0 - step.weight) + number(state.new_flows) * expected;
        }

        while self.uplinks.len() < raw.uplinks.len() {
            self.uplinks.push(UplinkState::default());
        }
        for (state, counters) in self.uplinks.iter_mut().zip(&raw.uplinks) {
            state.received.read(counters.received_packets, &step);
            state.received_bytes.read(counters.received_bytes, &step);
            state.sent.read(counters.sent_packets, &step);
            state.sent_bytes.read(counters.sent_bytes, &step);
            state.dropped.read(counters.dropped, &step);
        }
    }

    /// The rates of a slot's instance; [`None`] if the slot is unassigned.
    pub fn slot(&self, slot: Slot) -> Option<&SlotRates> {
        let at = usize::from(*self.places.get(slot.index())?);
        let state = self.states.get(at)?;
        (self.assigned.get(at) == Some(&slot)).then_some(&state.rates)
    }

    /// The rates of a service; zero if there is no such service.
    pub fn service(&self, service: ServiceId) -> ServiceRates {
        self.services
            .get(service.index())
            .map(|state| state.rates)
            .unwrap_or_default()
    }

    /// The rates of an uplink; zero if never sampled.
    pub fn uplink(&self, uplink: UplinkId) -> UplinkRates {
        self.uplinks
            .get(uplink.index())
            .map_or_else(UplinkRates::default, |state| UplinkRates {
                received_pps: state.received.fast,
                received_bytes_per_s: state.received_bytes.fast,
                sent_pps: state.sent.fast,
                sent_bytes_per_s: state.sent_bytes.fast,
                dropped_pps: state.dropped.fast,
            })
    }

    /// The rates of a worker; zero if never sampled.
    pub fn worker(&self, worker: WorkerId) -> WorkerRates {
        self.workers
            .get(worker.index())
            .map_or_else(WorkerRates::default, |state| WorkerRates {
                busy: (state.busy_ns.fast / 1e9).clamp(0.0, 1.0),
                awake: (state.awake_ns.fast / 1e9).clamp(0.0, 1.0),
                turns_per_s: state.turns.fast,
            })
    }

    /// The time of the last sample.
    pub fn sampled_at(&self) -> Nanos {
        self.sampled_at.unwrap_or_default()
    }

    /// Fills an observation's figures for the service and for its instances that have a slot. The identity of
    /// service and instances, their states and shares of their limits are the caller's and stay. A hot ring is reported once.
    pub fn observe(&mut self, observation: &mut Observation) {
        observation.at = self.sampled_at();
        observation.counter_age = self.age;
        if let Some(state) = self.services.get_mut(observation.service.index()) {
            observation.offered_fast_pps = state.rates.offered_fast_pps;
            observation.offered_stable_pps = state.rates.offered_stable_pps;
            observation.unserved_fast_pps = state.rates.unserved_fast_pps;
            observation.hot = std::mem::take(&mut state.hot);
        }
        let unknown = SlotRates::default();
        for instance in &mut observation.instances {
            let known = self.slot(instance.slot).filter(|rates| rates.id == instance.id);
            let rates = known.unwrap_or(&unknown);
            instance.arrivals_fast_pps = rates.arrivals_fast_pps;
            instance.arrivals_stable_pps = rates.arrivals_stable_pps;
            instance.signals = rates.signals;
            instance.ring_drops_fast_pps = rates.ring_drops_fast_pps;
            instance.ring_occupancy = rates.ring_occupancy;
            instance.busy = rates.busy;
        }
    }

    /// Records the cost of the last sample, including reading the counters.
    pub fn record_cost(&mut self, ns: u64) {
        self.cost.record(ns);
    }

    /// The cost of sampling so far.
    pub fn cost(&self) -> Cost {
        self.cost
    }
}
