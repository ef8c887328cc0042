use model::{InstanceId, InstanceObservation, InstanceState, Nanos, Observation};
use serde::{Deserialize, Serialize};

use crate::highest::Highest;
use crate::relocation::Moves;
use crate::rise::{Rise, fast_at_least};
use crate::{
    Decision, Parameter, Policy, Quota, Reason, finite, mean_capacity_pps, share, span, vertical,
    within_limits,
};

/// Ring occupancy from which an instance is short of CPU time.
const HOT_OCCUPANCY: f64 = 0.25;
/// A requested quota is not raised again for this time: the engine must apply it and its effect must show.
const QUOTA_AGAIN: Nanos = Nanos::from_millis(10);
/// A quota is lowered only if this share of it is not needed: each change costs a system call.
const QUOTA_LESS: f64 = 0.05;
/// After a change of the count, the time until the prediction alone may change it again.
const COUNT_AGAIN: Nanos = Nanos::from_millis(20);
/// Share of the remaining instances' largest size that the highest need of `calm` must fit before one is removed.
const REST: f64 = 0.9;
/// Parts of a window that keep one value each.
const PARTS: u64 = 20;
/// The share of its quota to which an instance is filled.
const TARGET: f64 = 0.75;
/// The same with the goal `power`. A quarter that is kept free brings instances to a dearer place while those of the cheapest
/// have room; this leaves as much as a place keeps free of its own limit.
const POWER_TARGET: f64 = 0.9;
/// The smallest quota, as a share of the largest, where no other is set.
const LEAST: f64 = 0.1;
/// The rule by which memory adds an instance.
const MEMORY_HIGH: &str = "memory_high";

/// What a service's size and its places are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// Few losses and short queues: instances are filled to 75 %, never get less than their own quota, and stay for half a
    /// minute, as what they get beyond it does. The place with the shortest way is filled first.
    #[default]
    Performance,
    /// Few reserved CPUs: instances are filled to 75 % as well, and give back within a second what they do not need. The
    /// places are filled in their order.
    Cpu,
    /// Few watts: as [`Goal::Cpu`], since a function that polls takes the watts of its whole quota, but instances are filled
    /// to 90 %. The place whose cores take the fewest watts for a packet is filled first.
    Power,
}

impl Goal {
    /// How long an instance keeps a quota that it does not need.
    const fn hold(self) -> Nanos {
        match self {
            Goal::Performance => Nanos::from_secs(30),
            Goal::Cpu | Goal::Power => Nanos::from_secs(1),
        }
    }

    /// The share of its quota to which an instance is filled.
    const fn target(self) -> f64 {
        match self {
            Goal::Performance | Goal::Cpu => TARGET,
            Goal::Power => POWER_TARGET,
        }
    }

    /// How long fewer instances must have sufficed before one is removed. For performance as long as a quota is held: an
    /// instance that a crowd has left is there for the next one, which needs it before a new one can be.
    const fn calm(self) -> Nanos {
        match self {
            Goal::Performance => self.hold(),
            Goal::Cpu | Goal::Power => Nanos::from_secs(20),
        }
    }

    /// How long a burst lasts after its last sign.
    const fn burst(self) -> Nanos {
        match self {
            Goal::Performance => Nanos::from_secs(5),
            Goal::Cpu | Goal::Power => Nanos::from_secs(1),
        }
    }
}

/// InReal's orchestration: when to change something, how, and where. The paper (Vogt and
/// others, "Towards In-Network Resource Scaling of VNFs") names the signals and the actions, but no formula and no
/// threshold; these are inco's.
///
/// - **When.** The need of each instance, in CPUs, is what its arrivals and the packets that wait in its ring take of a
///   CPU, over `target`; with `busy_high` also what its function says of its busy time. An instance is short of CPU time if
///   its need exceeds its quota.
/// - **How, growing.** Quota first: it helps flows that are pinned, at once. More instances if the needs of all
///   together exceed the instances' largest size, or if most of them could not clear their rings within `clear` even with
///   it, and would clear them sooner with one instance more. That one takes flows as soon as it has started: at once where
///   one stands by, else after as long as the last new one took. From then on it is assumed to have an equal part of all
///   arrivals, as with short flows; what waits in a ring stays there, because its flows are pinned.
/// - **Memory.** With `memory_high`, one more instance where the memory of instances is fuller than that on average. A quota
///   would not help. The new instance takes no memory from the others; it takes new flows. So the next one comes only when
///   instances have at least as many flows each as then: one whose memory is full without flows would be full again.
/// - **Bursts.** Where rings fill or drop packets, or the load rises above the quotas faster than they follow, all instances get their
///   largest size at once, and the count follows the rate of the last milliseconds.
/// - **How, shrinking.** The reverse: instances go if the highest need of `calm` fits the others' largest size. Then quotas
///   follow the highest need of the last half minute, or with the goals `cpu` and `power` of the last second.
///
/// - **Where.** With several places that are filled in an order, which the goal gives, an instance leaves a place that gets
///   more than its limit for 20 ms, and comes back when the earlier place has had room for it for `calm`, up to 0.8 of the
///   limit: the card up to a guard below its cliff, the host for the rest. One after the other; flows keep their pins.
///
/// Where instances have no quota, it changes count and place alone.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct InReal {
    /// What matters.
    pub goal: Goal,
    /// The share of its quota to which an instance is filled; unset, the goal's.
    #[serde(deserialize_with = "share::positive_or_unset")]
    pub target: Option<f64>,
    /// The time in which an instance is to clear its ring.
    #[serde(serialize_with = "span::serialize", deserialize_with = "span::positive")]
    pub clear: Nanos,
    /// Averaging window of the stable rate.
    #[serde(serialize_with = "span::serialize", deserialize_with = "span::positive")]
    pub window: Nanos,
    /// How long fewer instances must have sufficed before one is removed; unset, the goal's.
    #[serde(with = "span_or_unset")]
    pub calm: Option<Nanos>,
    /// Busy share of its quota to which an instance's function is filled; unset, busy time has no effect.
    #[serde(deserialize_with = "share::positive_or_unset")]
    pub busy_high: Option<f64>,
    /// Share of its limit to which an instance's memory is filled; unset, memory has no effect.
    #[serde(deserialize_with = "share::positive_or_unset")]
    pub memory_high: Option<f64>,
    /// Maximum CPUs per instance; unset, its quota when first seen.
    #[serde(deserialize_with = "share::above_zero_or_unset")]
    pub cpus_max: Option<f64>,
    /// Minimum CPUs per instance; unset, its quota when first seen, and with the goals `cpu` and `power` a tenth of the
    /// maximum.
    #[serde(deserialize_with = "share::above_zero_or_unset")]
    pub cpus_min: Option<f64>,

    #[serde(skip)]
    state: State,
}

/// The state of [`InReal`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    noted: Option<Nanos>,
    capacity_pps: f64,
    /// The largest size of an instance.
    base_cpus: Option<f64>,
    rise: Rise,
    burst_until: Option<Nanos>,
    /// The needs of all instances together, the highest of `calm`.
    highest: Highest<f64>,
    changed: Nanos,
    part: Nanos,
    instances: Vec<Sized>,
    moves: Moves,
    /// Flows of an Active instance, on average, when memory added one last.
    #[serde(default)]
    flows_when_full: Option<f64>,
    /// Instances that are being created, and since when.
    #[serde(default)]
    creating: Vec<(InstanceId, Nanos)>,
    /// How long the last new instance took until it was ready.
    #[serde(default)]
    start: Option<Nanos>,
}

impl State {
    /// Follows the memory of instances that have flows. Where it falls with them, it may be full with fewer flows later,
    /// which have more to keep.
    fn note_memory(&mut self, observation: &Observation, high: f64) {
        for of in &mut self.instances {
            let instance = observation.instances.iter().find(|i| i.id == of.id);
            let seen = instance.and_then(|i| Some((i.signals.live_flows, share_of_memory(i)?)));
            let Some((flows, share)) = seen.filter(|(flows, _)| *flows > 0) else {
                continue;
            };
            let filled = of.memory.get_or_insert(Filled {
                least: share,
                full_with: None,
            });
            filled.least = filled.least.min(share);
            if share > high {
                filled.full_with = Some(flows);
            } else if share <= REST * high
                && let Some(before) = filled.full_with.take()
                && flows as f64 <= REST * before as f64
            {
                self.flows_when_full = None;
            }
        }
    }

    /// Measures how long new instances take.
    fn note_starts(&mut self, observation: &Observation, now: Nanos) {
        for instance in &observation.instances {
            let known = self.creating.iter().position(|(id, _)| *id == instance.id);
            match (instance.state, known) {
                (InstanceState::Creating, None) => self.creating.push((instance.id, now)),
                (InstanceState::Standby | InstanceState::Active, Some(at)) => {
                    let (_, since) = self.creating.swap_remove(at);
                    self.start = Some(now.since(since));
                }
                _ => {}
            }
        }
        let is_there = |id: InstanceId| observation.instances.iter().any(|of| of.id == id);
        self.creating.retain(|(id, _)| is_there(*id));
    }
}

/// In how many seconds an instance empties its ring with its largest quota, and with one instance more beside it; infinity
/// for never.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Clears {
    by_quota_s: f64,
    with_one_more_s: f64,
}

impl Clears {
    /// Of a ring with so many `packets`, to which `arrivals_pps` come and from which `most_pps` can leave, where `active`
    /// instances are used and a further one takes flows after `start_s`.
    fn predict(packets: f64, (arrivals_pps, most_pps): (f64, f64), active: usize, start_s: f64) -> Clears {
        let empty_s = |packets: f64, spare_pps: f64| match spare_pps > 0.0 {
            true => packets / spare_pps,
            false => f64::INFINITY,
        };
        let spare_pps = most_pps - arrivals_pps;
        let by_quota_s = empty_s(packets, spare_pps);
        let rest = packets - spare_pps * start_s;
        let share = active as f64 / (active as f64 + 1.0);
        let with_one_more_s = match rest > 0.0 {
            true => start_s + empty_s(rest, most_pps - share * arrivals_pps),
            false => by_quota_s,
        };
        Clears {
            by_quota_s,
            with_one_more_s,
        }
    }

    /// Whether one more instance is better: it never ends without, or sooner with it.
    fn wants_one_more(self) -> bool {
        self.by_quota_s.is_infinite() || self.with_one_more_s < self.by_quota_s
    }

    /// The reason with these figures; without those that are infinite.
    fn told(self, reason: Reason, start_s: f64) -> Reason {
        let figures = [
            ("clears_ms", self.by_quota_s),
            ("clears_with_one_more_ms", self.with_one_more_s),
            ("start_ms", start_s),
        ];
        let finite = figures.into_iter().filter(|(_, seconds)| seconds.is_finite());
        finite.fold(reason, |reason, (name, seconds)| reason.with(name, 1e3 * seconds))
    }
}

/// What is known of an instance.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sized {
    id: InstanceId,
    /// The quota that was asked for last, and when.
    asked: Option<(f64, Nanos)>,
    /// Its highest need of the time that it holds a quota.
    highest: Highest<f64>,
    part: Nanos,
    /// Where memory counts, and it was seen with flows.
    #[serde(default)]
    memory: Option<Filled>,
}

/// What is known of an instance's memory.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Filled {
    /// The least share of its limit that was seen while it had flows.
    least: f64,
    /// The flows that it had when it was last above `memory_high`, until it has room again.
    full_with: Option<u64>,
}

impl Default for InReal {
    fn default() -> Self {
        InReal {
            goal: Goal::default(),
            target: None,
            clear: Nanos::from_millis(100),
            window: Nanos::from_secs(5),
            calm: None,
            busy_high: None,
            memory_high: None,
            cpus_max: None,
            cpus_min: None,
            state: State::default(),
        }
    }
}

impl InReal {
    fn target(&self) -> f64 {
        self.target.unwrap_or(self.goal.target())
    }

    fn calm(&self) -> Nanos {
        self.calm.unwrap_or(self.goal.calm())
    }

    /// The smallest and the largest size of an instance; [`None`] where instances have no quotas.
    fn sizes(&self) -> Option<(f64, f64)> {
        let base = self.state.base_cpus?;
        let most = self.cpus_max.unwrap_or(base);
        let least = match self.goal {
            Goal::Performance => base,
            Goal::Cpu | Goal::Power => LEAST * most,
        };
        Some((self.cpus_min.unwrap_or(least).min(most), most))
    }

    fn known(&self, id: InstanceId) -> Option<&Sized> {
        self.state.instances.iter().find(|of| of.id == id)
    }

    /// Its quota, or the last one that was asked for.
    fn quota_of(&self, instance: &InstanceObservation) -> Option<f64> {
        let asked = self.known(instance.id).and_then(|of| of.asked);
        asked.map(|(cpus, _)| cpus).or(instance.cpu_quota)
    }

    /// The share of the instances' quotas above which the load is a burst.
    fn ceiling(&self) -> f64 {
        0.5 + 0.5 * self.target()
    }

    /// Whether this observation shows that the load rises faster than quotas follow it.
    fn is_burst(&self, observation: &Observation) -> bool {
        let active = || {
            observation
                .instances
                .iter()
                .filter(|i| i.state == InstanceState::Active)
        };
        let size = |i: &InstanceObservation| {
            let grown = self
                .quota_of(i)
                .zip(i.cpu_quota)
                .map(|(asked, has)| asked / has.max(1e-6));
            finite(i.capacity_pps) * grown.unwrap_or(1.0)
        };
        let capacity: f64 = active().map(size).sum();
        observation.unserved_fast_pps > 0.0
            || active().any(is_hot)
            || (capacity > 0.0 && self.state.rise.rising_at_least(observation) > self.ceiling() * capacity)
    }

    /// The size of all instances, in CPUs, that carries what comes now and clears the rings.
    fn burst_needs(&self, observation: &Observation) -> f64 {
        let rise = &self.state.rise;
        let rising = rise.rising_at_least(observation);
        let demand = match observation.hot {
            true => rising.max(rise.now_at_least()),
            false => rising,
        };
        let waiting: u64 = observation.instances.iter().map(|i| i.signals.ring_packets).sum();
        let per_cpu = self.state.capacity_pps / self.mean_quota(observation);
        (demand + waiting as f64 / self.clear.as_secs_f64().max(1e-3)) / (per_cpu * self.target()).max(1e-6)
    }

    /// The mean quota of instances that are used, to which their mean capacity belongs; 1 without quotas.
    fn mean_quota(&self, observation: &Observation) -> f64 {
        let quotas = || observation.instances.iter().filter_map(|i| i.cpu_quota);
        let count = quotas().count();
        if count == 0 {
            return self.state.base_cpus.unwrap_or(1.0).max(1e-6);
        }
        (quotas().sum::<f64>() / count as f64).max(1e-6)
    }

    /// What its function says that it takes, in CPUs; 0 where busy time has no effect.
    fn work(&self, instance: &InstanceObservation) -> f64 {
        let busy = instance.busy.filter(|busy| busy.is_finite());
        self.busy_high
            .zip(busy)
            .map_or(0.0, |(high, busy)| busy.clamp(0.0, 1.0) / high)
    }

    /// The share of its limit that an instance's memory takes, if it says something of flows: it had room once while it had
    /// some. Otherwise it is full without them, or inco has not seen it fill.
    fn filled(&self, instance: &InstanceObservation) -> Option<f64> {
        let room = REST * self.memory_high?;
        let known = self.known(instance.id)?.memory?;
        share_of_memory(instance).filter(|_| known.least <= room)
    }

    /// The mean of that over the Active instances.
    fn mean_filled(&self, observation: &Observation) -> Option<f64> {
        let (mut sum, mut count) = (0.0, 0u32);
        for instance in &observation.instances {
            if instance.state == InstanceState::Active
                && let Some(share) = self.filled(instance)
            {
                sum += share;
                count += 1;
            }
        }
        (count > 0).then(|| sum / f64::from(count))
    }

    /// Whether memory is a reason for one more instance.
    fn is_full(&self, observation: &Observation) -> bool {
        let (Some(high), Some(share)) = (self.memory_high, self.mean_filled(observation)) else {
            return false;
        };
        let flows = flows_each(observation);
        let before = self.state.flows_when_full.unwrap_or_default();
        share > high && flows > 0.0 && flows >= before
    }

    /// A reason with the figures of memory, where it counts.
    fn with_memory(&self, reason: Reason, observation: &Observation) -> Reason {
        match self.memory_high.zip(self.mean_filled(observation)) {
            Some((high, share)) => reason.with("memory", share).with(MEMORY_HIGH, high),
            None => reason,
        }
    }

    /// What an instance's packets take, in CPUs, or in instances where it has no quota.
    fn need(&self, instance: &InstanceObservation) -> f64 {
        let per_cpu = finite(instance.capacity_pps) / instance.cpu_quota.unwrap_or(1.0).max(1e-6);
        let fast = fast_at_least(instance.arrivals_fast_pps);
        let arrivals = fast.max(finite(instance.arrivals_stable_pps));
        let backlog = instance.signals.ring_packets as f64 / self.clear.as_secs_f64().max(1e-3);
        let by_packets = if per_cpu > 0.0 {
            (arrivals / self.target() + backlog) / per_cpu
        } else {
            0.0
        };
        by_packets.max(self.work(instance))
    }

    /// The needs of all instances together. What finds no instance counts as well.
    fn needs(&self, observation: &Observation) -> f64 {
        let needs: f64 = observation
            .instances
            .iter()
            .filter(|i| serves(i))
            .map(|i| self.need(i))
            .sum();
        let per_cpu = self.state.capacity_pps / self.mean_quota(observation);
        let unserved = finite(observation.unserved_fast_pps);
        needs
            + if per_cpu > 0.0 {
                unserved / (self.target() * per_cpu)
            } else {
                0.0
            }
    }

    /// The size of all instances, in CPUs, that the stable rate needs, or the work of their functions, or their memory.
    fn calm_needs(&self, observation: &Observation) -> f64 {
        let per_cpu = self.state.capacity_pps / self.mean_quota(observation);
        let by_rate = match per_cpu > 0.0 {
            true => finite(observation.offered_stable_pps) / (self.target() * per_cpu),
            false => 0.0,
        };
        let work: f64 = observation
            .instances
            .iter()
            .filter(|i| serves(i))
            .map(|i| self.work(i))
            .sum();
        // Whether or not it is a reason for more: what is there must fit the others.
        let memory = self.memory_high.map_or(0.0, |high| {
            let serving = observation.instances.iter().filter(|i| serves(i));
            let filled: f64 = serving.filter_map(share_of_memory).sum();
            filled / high * self.sizes().map_or(1.0, |(_, most)| most)
        });
        by_rate.max(work).max(memory)
    }

    /// In how many seconds one more instance takes flows, as far as is known: at once before any start was seen.
    fn start_s(&self, observation: &Observation) -> f64 {
        match self.state.start {
            Some(start) if observation.count(InstanceState::Standby) == 0 => start.as_secs_f64(),
            _ => 0.0,
        }
    }

    /// Of the slowest ring, if most of the Active instances could not clear theirs in time with their largest quota, and would
    /// sooner with one instance more.
    fn stays_behind(&self, observation: &Observation, most: f64) -> Option<Clears> {
        let count = observation.count(InstanceState::Active);
        let start_s = self.start_s(observation);
        let clears = |instance: &InstanceObservation| {
            let per_cpu = finite(instance.capacity_pps) / instance.cpu_quota.unwrap_or(1.0).max(1e-6);
            let rates = (finite(instance.arrivals_fast_pps), per_cpu * most);
            Clears::predict(instance.signals.ring_packets as f64, rates, count, start_s)
        };
        let active = observation
            .instances
            .iter()
            .filter(|i| i.state == InstanceState::Active && i.signals.ring_packets > 0);
        let behind = active
            .map(clears)
            .filter(|of| of.by_quota_s > self.clear.as_secs_f64() && of.wants_one_more());
        let (mut behind_count, mut slowest) = (0, None);
        for of in behind {
            behind_count += 1;
            slowest = slowest
                .filter(|slowest: &Clears| slowest.by_quota_s >= of.by_quota_s)
                .or(Some(of));
        }
        slowest.filter(|_| 2 * behind_count >= count)
    }

    /// The quotas that are too small, and those of which a part is not needed. In a burst all get the largest.
    fn quotas(&self, observation: &Observation, in_burst: bool, now: Nanos) -> Vec<Quota> {
        let Some((least, most)) = self.sizes() else {
            return Vec::new();
        };
        let change = |instance: &InstanceObservation| {
            let has = self.quota_of(instance)?;
            let known = self.known(instance.id);
            let asked = known.and_then(|of| of.asked).map(|(_, at)| now.since(at));
            let need = match in_burst {
                true => most,
                false => self.need(instance).clamp(least, most),
            };
            let waits = |limit: Nanos| asked.is_some_and(|since| since < limit);
            let cpus = if need > has * (1.0 + vertical::SAME) {
                (!waits(QUOTA_AGAIN)).then_some(need)?
            } else {
                let highest = known
                    .and_then(|of| of.highest.get())?
                    .clamp(least, most)
                    .max(need);
                // A new instance has not seen its load yet.
                (highest < (1.0 - QUOTA_LESS) * has && !waits(self.goal.hold())).then_some(highest)?
            };
            Some(Quota {
                instance: instance.id,
                cpus,
            })
        };
        observation
            .instances
            .iter()
            .filter(|i| serves(i))
            .filter_map(change)
            .collect()
    }
}

impl Policy for InReal {
    const NAME: &'static str = "inreal";
    const PARAMETERS: &'static [Parameter] = &[
        Parameter::new(
            "goal",
            "\"performance\", \"cpu\" or \"power\"",
            "\"performance\"",
            "Short queues, few reserved CPUs, or few watts: sets `cpus_min`, how long unneeded quota is held (30 s, 1 s, 1 s), \
             `target`, `calm` and the order of places.",
        ),
        Parameter::new(
            "target",
            "share, above 0 and at most 1",
            "0.75, with the goal power 0.9",
            "The share of its quota to which an instance is filled.",
        ),
        Parameter::new(
            "clear",
            "duration above 0",
            "100ms",
            "The time in which an instance is to clear its ring.",
        ),
        Parameter::new(
            "window",
            "duration above 0",
            "5s",
            "Averaging window of the stable rate.",
        ),
        Parameter::new(
            "calm",
            "duration",
            "30s, with the goals cpu and power 20s",
            "How long fewer instances must have sufficed before one is removed.",
        ),
        Parameter::new(
            "busy_high",
            "share, above 0 and at most 1",
            "busy time has no effect",
            "Share of its quota that an instance's function may be busy, as it tells it.",
        ),
        Parameter::new(
            MEMORY_HIGH,
            "share, above 0 and at most 1",
            "memory has no effect",
            "Share of its limit (`memory`) that an instance's memory may take, on average of the instances. For functions whose \
             memory grows with their flows.",
        ),
        Parameter::new(
            "cpus_max",
            "CPUs",
            "its quota when first seen",
            "Maximum CPUs per instance.",
        ),
        Parameter::new(
            "cpus_min",
            "CPUs",
            "its quota when first seen, with the goals cpu and power a tenth of the maximum",
            "Minimum CPUs per instance.",
        ),
    ];

    const RELOCATES: bool = true;

    crate::keeps_state!(window);

    fn goal(&self) -> Goal {
        self.goal
    }

    fn note(&mut self, observation: &Observation, now: Nanos) {
        if self.state.noted == Some(now) {
            return;
        }
        if let Some(capacity_pps) = mean_capacity_pps(observation) {
            self.state.capacity_pps = capacity_pps;
        }
        if self.state.base_cpus.is_none() {
            self.state.base_cpus = vertical::least_quota(observation);
        }
        let (hold, calm) = (self.goal.hold(), self.calm());
        if self.state.noted.is_none() {
            self.state.highest.reserve(PARTS as usize + 2);
            // As after a restart: existing instances were needed.
            let size = self.sizes().map_or(1.0, |(_, most)| most);
            self.state.highest.add(now, f64::from(observation.wanted) * size);
        }
        let span_s = self.state.noted.map(|before| now.since(before).as_secs_f64());
        self.state.rise.note(observation, span_s);
        self.state.noted = Some(now);
        let exists = |id: InstanceId| observation.instances.iter().any(|i| i.id == id && serves(i));
        self.state.instances.retain(|of| exists(of.id));
        for instance in observation.instances.iter().filter(|i| serves(i)) {
            let need = self.need(instance);
            match self.state.instances.iter_mut().find(|of| of.id == instance.id) {
                Some(of) => note_highest(&mut of.highest, &mut of.part, need, hold, now),
                None => {
                    let mut highest = Highest::default();
                    highest.reserve(PARTS as usize + 2);
                    // It keeps its first quota for the whole time.
                    highest.add(now, instance.cpu_quota.unwrap_or(need));
                    self.state.instances.push(Sized {
                        id: instance.id,
                        asked: None,
                        highest,
                        part: now,
                        memory: None,
                    });
                }
            }
        }
        if let Some(high) = self.memory_high {
            self.state.note_memory(observation, high);
        }
        let needs = self.calm_needs(observation);
        let state = &mut self.state;
        state.note_starts(observation, now);
        state.moves.note(observation, now);
        note_highest(&mut state.highest, &mut state.part, needs, calm, now);
    }

    fn judge(&self, observation: &Observation, now: Nanos) -> Decision {
        let current = within_limits(observation.wanted, observation);
        let most = self.sizes().map_or(1.0, |(_, most)| most);
        let all_work = observation.count(InstanceState::Active) as u32 >= current;
        let may = now.since(self.state.changed) >= COUNT_AGAIN;
        let is_full = all_work && may && self.is_full(observation);
        if self.state.capacity_pps <= 0.0 && self.busy_high.is_none() || most <= 0.0 {
            // Memory is known before a capacity is.
            let (desired, rule) = match is_full {
                true => limited(current.saturating_add(1), MEMORY_HIGH, observation),
                false => (current, "capacity_unknown"),
            };
            return Decision::count(desired, self.with_memory(Reason::new(rule), observation));
        }
        let needs = self.needs(observation);
        let highest = self.state.highest.get().map_or(needs, |of| of.max(needs));
        let lasts = self.state.burst_until.is_some_and(|until| now < until);
        let in_burst = self.is_burst(observation);
        let quotas = self.quotas(observation, in_burst || lasts, now);
        let needs = if in_burst {
            needs.max(self.burst_needs(observation))
        } else {
            needs
        };
        let reason = Reason::new("calm")
            .with("needed_cpus", needs)
            .with("highest_cpus", highest)
            .with("largest_cpus", most)
            .with("current", f64::from(current))
            .with("quotas", quotas.len() as f64);
        let reason = self.with_memory(reason, observation);
        let up = share::whole(needs / most);
        let down = share::whole(highest / (REST * most));
        let behind = (all_work && may && up <= current)
            .then(|| self.stays_behind(observation, most))
            .flatten();
        let (count, rule) = if up > current {
            (up, "quota_exhausted")
        } else if behind.is_some() {
            (current.saturating_add(1), "clears_too_late")
        } else if is_full {
            (current.saturating_add(1), MEMORY_HIGH)
        } else if down < current && !in_burst && !lasts {
            (down.max(up), "fewer_suffice")
        } else if quotas.is_empty() {
            (current, "calm")
        } else {
            (current, "quota")
        };
        let reason = match behind {
            Some(clears) => clears.told(reason, self.start_s(observation)),
            None => reason,
        };
        let (desired, rule) = limited(count, rule, observation);
        Decision {
            quotas,
            relocation: self.state.moves.judge(observation, self.calm(), now),
            ..Decision::count(desired, reason.named(rule))
        }
    }

    fn commit(&mut self, observation: &Observation, decision: &Decision, now: Nanos) {
        for quota in &decision.quotas {
            let known = self.state.instances.iter_mut().find(|of| of.id == quota.instance);
            if let Some(of) = known {
                of.asked = Some((quota.cpus, now));
            }
        }
        self.state.moves.commit(decision.relocation, now);
        if decision.desired != observation.wanted {
            self.state.changed = now;
        }
        if decision.reason.rule == MEMORY_HIGH {
            self.state.flows_when_full = Some(flows_each(observation));
        }
        if self.is_burst(observation) {
            self.state.burst_until = Some(now + self.goal.burst());
        }
    }

    fn is_overloaded(&self, observation: &Observation) -> bool {
        self.is_burst(observation)
    }
}

/// A duration, or nothing.
mod span_or_unset {
    use model::Nanos;
    use serde::{Deserialize, Deserializer, Serialize as _, Serializer};

    use crate::span;

    pub(super) fn serialize<S: Serializer>(of: &Option<Nanos>, serializer: S) -> Result<S::Ok, S::Error> {
        of.map(|of| of.as_secs_f64()).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Nanos>, D::Error> {
        #[derive(Deserialize)]
        struct Span(#[serde(deserialize_with = "span::deserialize")] Nanos);
        Ok(Option::<Span>::deserialize(deserializer)?.map(|of| of.0))
    }
}

/// The count within the observation's limits, and the rule, or which limit keeps the count as it is.
fn limited(count: u32, rule: &'static str, observation: &Observation) -> (u32, &'static str) {
    let current = within_limits(observation.wanted, observation);
    let desired = within_limits(count, observation);
    let rule = match desired {
        desired if desired < count && desired == current => "at_max",
        desired if desired > count && desired == current => "at_min",
        _ => rule,
    };
    (desired, rule)
}

/// The share of its limit that an instance's memory takes, if known.
fn share_of_memory(instance: &InstanceObservation) -> Option<f64> {
    let share = instance.memory.filter(|share| share.is_finite())?;
    Some(share.clamp(0.0, 1.0))
}

/// Flows of an Active instance, on average.
fn flows_each(observation: &Observation) -> f64 {
    let active = observation
        .instances
        .iter()
        .filter(|i| i.state == InstanceState::Active);
    let flows: u64 = active.map(|i| i.signals.live_flows).sum();
    flows as f64 / observation.count(InstanceState::Active).max(1) as f64
}

/// Whether the instance's ring is filling up or full.
fn is_hot(instance: &InstanceObservation) -> bool {
    instance.ring_occupancy >= HOT_OCCUPANCY || instance.ring_drops_fast_pps > 0.0
}

/// Adds a value to the maximum of a window, at most [`PARTS`] times in its length; a new maximum always.
fn note_highest(highest: &mut Highest<f64>, part: &mut Nanos, value: f64, window: Nanos, now: Nanos) {
    if highest.get().is_none_or(|most| value > most) || now.since(*part).0 >= window.0 / PARTS {
        *part = now;
        highest.add(now, value);
        highest.forget(now, window);
    }
}

/// Whether it receives packets.
fn serves(instance: &InstanceObservation) -> bool {
    matches!(instance.state, InstanceState::Active | InstanceState::Draining)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1,000 packets wait, 0.9 million come in a second and a million can leave: 10 ms. With a second instance it is 0.45
    /// million that come, and 550 packets go in a millisecond.
    #[test]
    fn one_more_instance_clears_a_ring_sooner_if_it_starts_in_time() {
        let clears = |start_s| Clears::predict(1_000.0, (0.9e6, 1e6), 1, start_s);
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
        near(clears(0.0).by_quota_s, 0.010);
        near(clears(0.0).with_one_more_s, 0.001 / 0.55);
        // After 4.5 ms 550 packets wait.
        near(clears(0.0045).with_one_more_s, 0.0055);
        assert!(clears(0.0045).wants_one_more());
        // It comes when the ring is empty.
        assert_eq!(clears(0.010), clears(1.0));
        near(clears(1.0).with_one_more_s, 0.010);
        assert!(!clears(1.0).wants_one_more());
    }

    #[test]
    fn a_ring_that_never_clears_wants_one_more() {
        // 100 packets more wait after each millisecond. Then 0.55 million come in a second, and 450 go in a millisecond.
        let clears = Clears::predict(100.0, (1.1e6, 1e6), 1, 0.001);
        assert!(clears.by_quota_s.is_infinite() && clears.wants_one_more());
        assert!((clears.with_one_more_s - (0.001 + 200.0 / 0.45e6)).abs() < 1e-9);
        // One is too few, and still better than none.
        let clears = Clears::predict(100.0, (2.1e6, 1e6), 1, 0.001);
        assert!(clears.with_one_more_s.is_infinite() && clears.wants_one_more());
    }

    #[test]
    fn what_is_pinned_does_not_leave_for_a_new_instance() {
        let clears = Clears::predict(1_000.0, (0.0, 1e6), 1, 0.0);
        assert_eq!(clears.by_quota_s, clears.with_one_more_s);
        assert!(!clears.wants_one_more(), "nothing comes that it could take");
    }
}
