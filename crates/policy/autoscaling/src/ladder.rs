use std::collections::VecDeque;

use model::{InstanceId, InstanceObservation, InstanceState, Nanos, Observation};
use serde::{Deserialize, Serialize};

use crate::highest::Highest;
use crate::relocation::Moves;
use crate::rise::{Rise, fast_at_least};
use crate::{
    Decision, Parameter, Policy, Quota, Reason, finite, mean_capacity_pps, share, span, vertical,
    within_limits, work,
};

/// Ring occupancy from which an instance is hot.
const HOT_OCCUPANCY: f64 = 0.25;
/// A burst's count plans to clear the ring backlog within this time.
const BACKLOG_SPAN_S: f64 = 0.1;
/// Samples are missing after this time, and three times the last interval.
const MISSING: Nanos = Nanos::from_millis(100);
/// A requested quota is not changed again for this time: the engine must apply it and its effect must show.
const QUOTA_UP_AGAIN: Nanos = Nanos::from_millis(10);
/// The same for reductions, which are not urgent.
const QUOTA_DOWN_AGAIN: Nanos = Nanos::from_secs(1);
/// Largest factor of a quota increase, and of a decrease.
const QUOTA_UP: f64 = 1.5;
const QUOTA_DOWN: f64 = 0.5;
/// If rings stay hot although all wanted instances work, one more instance is tried after this time.
const STILL_HOT: Nanos = Nanos::from_millis(20);
/// The bucket size of the record of stable rates.
const BUCKET: Nanos = Nanos::from_millis(100);
/// The time constant of the mean of busy time: long enough that a single burst of packets does not show.
const BUSY_WINDOW: Nanos = Nanos::from_secs(1);
/// Containers that may be started within [`FLAP_SPAN`] before scaling down pauses.
const FLAP_BUDGET: usize = 30;
/// See [`FLAP_BUDGET`].
const FLAP_SPAN: Nanos = Nanos::from_secs(300);

/// inco's own autoscaler. It escalates through a ladder, cheapest step first: CPU quota, another place, a cancelled
/// drain, a standby, a new container (the controller chooses among the last three in that order).
///
/// - **Calm.** As many instances as keep the stable rate at `target` of their capacity. Scales down only if
///   the highest stable rate of `calm` fits `down_target` of the remaining capacity.
/// - **Burst.** Starts when a ring is hot, or when the fast rate exceeds `ceiling` of the capacity by more
///   than chance explains. Then the last milliseconds decide. The fast rates are exponential means and lag
///   behind a rise; the lag is added. If a ring is hot, arrivals since the last observation count, and the
///   backlog is to be cleared within 100 ms. A burst ends `burst` after its last sign (`calm`, if it soon
///   follows another) and releases its instances at once: standbys make taking them back cheap.
/// - **Places.** With several places that are filled in an order, an instance leaves one that gets more than its limit for
///   20 ms, and comes back after `calm`, in steps that change neither quotas nor the count. While one is on its way,
///   no instance is tried for rings that stay hot.
/// - **Missing samples.** The load meanwhile is unknown, so the count is kept for `calm`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ladder {
    /// Target utilisation outside bursts.
    #[serde(deserialize_with = "share::positive")]
    pub target: f64,
    /// Utilisation above which the fast rate decides.
    #[serde(deserialize_with = "share::positive")]
    pub ceiling: f64,
    /// Share of the remaining capacity that the highest stable rate of `calm` must fit before scaling down.
    #[serde(deserialize_with = "share::positive")]
    pub down_target: f64,
    /// Averaging window of the stable rate.
    #[serde(serialize_with = "span::serialize", deserialize_with = "span::positive")]
    pub window: Nanos,
    /// How long fewer instances must have sufficed before scaling down.
    #[serde(with = "span")]
    pub calm: Nanos,
    /// How long a burst lasts after its last sign. One that starts within `calm` of the previous burst's end
    /// lasts `calm`: an oscillating load must not change the count with every swing.
    #[serde(with = "span")]
    pub burst: Nanos,
    /// Busy share of instances' time above which the stable count is too low; unset, busy time has no effect.
    #[serde(deserialize_with = "share::positive_or_unset")]
    pub busy_high: Option<f64>,
    /// Busy share of the remaining instances' time that the busiest second of `calm` must fit before scaling down,
    /// where `busy_high` is set.
    #[serde(deserialize_with = "share::positive")]
    pub busy_low: f64,
    /// Maximum CPUs per instance; unset keeps the quotas.
    pub cpus_max: Option<f64>,
    /// Minimum CPUs per instance; unset, its quota when first seen.
    pub cpus_min: Option<f64>,
    /// Maximum CPUs of all instances; unset, no limit.
    pub cpus_total: Option<f64>,

    #[serde(skip)]
    state: State,
}

/// The state of [`Ladder`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    noted: Option<Nanos>,
    capacity_pps: f64,
    base_cpus: Option<f64>,
    rise: Rise,
    /// When the burst ends, and when the last one ended.
    burst_until: Option<Nanos>,
    burst_ended: Option<Nanos>,
    /// Whether the burst started soon after the last one.
    recurs: bool,
    hot_since: Option<Nanos>,
    changed: Nanos,
    /// The highest stable rate of `calm`.
    calm: Highest<f64>,
    bucket: Nanos,
    starts: VecDeque<Nanos>,
    quotas: Vec<Asked>,
    /// How many instances are busy all the time, in sum: the mean, and the highest one of `calm`.
    #[serde(default)]
    busy: Option<f64>,
    #[serde(default)]
    calm_busy: Highest<f64>,
    #[serde(default)]
    moves: Moves,
}

/// A requested quota.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    instance: InstanceId,
    cpus: f64,
    at: Nanos,
}

impl Default for Ladder {
    fn default() -> Self {
        Ladder {
            // From simulation (scenario agh-hour): a ceiling of 0.85 loses four times as much, a target of
            // 0.8 three times. A target of 0.7 loses a third for 1 % more instance-time, but changes the
            // count under constant noise.
            target: 0.75,
            ceiling: 0.8,
            down_target: 0.68,
            window: Nanos::from_secs(5),
            calm: Nanos::from_secs(30),
            burst: Nanos::from_secs(5),
            busy_high: None,
            busy_low: 0.5,
            cpus_max: None,
            cpus_min: None,
            cpus_total: None,
            state: State::default(),
        }
    }
}

impl Ladder {
    /// Instances needed for that rate at that share of their capacity.
    fn count_for(&self, pps: f64, share: f64) -> u32 {
        let capacity = self.state.capacity_pps * share;
        if capacity <= 0.0 {
            return 0;
        }
        share::whole(pps / capacity)
    }

    /// Whether this observation shows a burst.
    fn is_burst(&self, observation: &Observation) -> bool {
        let capacity = self.state.capacity_pps * f64::from(observation.wanted);
        let above = capacity > 0.0 && self.state.rise.rising_at_least(observation) > self.ceiling * capacity;
        observation.hot || observation.unserved_fast_pps > 0.0 || above
    }

    /// Whether at least half of the Active instances are hot. Then their capacity is lower than assumed, and
    /// more instances help. If only a few are hot, the cause is their pinned flows, which more instances
    /// cannot take.
    fn most_are_hot(observation: &Observation) -> bool {
        let active = || {
            let instances = observation.instances.iter();
            instances.filter(|i| i.state == InstanceState::Active)
        };
        2 * active().filter(|i| is_hot(i)).count() >= active().count()
    }

    /// The instance's quota, including the last requested one.
    fn quota_of(&self, instance: &InstanceObservation) -> Option<f64> {
        let asked = self
            .state
            .quotas
            .iter()
            .find(|asked| asked.instance == instance.id);
        asked.map(|asked| asked.cpus).or(instance.cpu_quota)
    }

    /// Increased quotas for the hot instances, and the capacity they add, in packets per second.
    fn quotas_up(&self, observation: &Observation, now: Nanos) -> (Vec<Quota>, f64) {
        let (mut quotas, mut gained) = (Vec::new(), 0.0);
        let Some(most) = self.cpus_max else {
            return (quotas, gained);
        };
        let given: f64 = observation
            .instances
            .iter()
            .filter_map(|i| self.quota_of(i))
            .sum();
        let mut left = self.cpus_total.map_or(f64::INFINITY, |total| total - given);
        for instance in &observation.instances {
            if !is_hot(instance) || !serves(instance) {
                continue;
            }
            let (Some(has), Some(now_has)) = (self.quota_of(instance), instance.cpu_quota) else {
                continue;
            };
            let waits = self
                .state
                .quotas
                .iter()
                .any(|asked| asked.instance == instance.id && now.since(asked.at) < QUOTA_UP_AGAIN);
            // Pending requests count as applied.
            gained += finite(instance.capacity_pps) * (has / now_has.max(1e-6) - 1.0).max(0.0);
            if waits {
                continue;
            }
            let load = finite(instance.arrivals_fast_pps) / (self.ceiling * instance.capacity_pps.max(1.0));
            let cpus = (has * load.clamp(1.0, QUOTA_UP))
                .min(most)
                .min(has + left.max(0.0));
            if cpus > has * (1.0 + vertical::SAME) {
                left -= cpus - has;
                gained += finite(instance.capacity_pps) * (cpus - has) / now_has.max(1e-6);
                quotas.push(Quota {
                    instance: instance.id,
                    cpus,
                });
            }
        }
        (quotas, gained)
    }

    /// Reduces unneeded quotas step by step.
    fn quotas_down(&self, observation: &Observation, now: Nanos) -> Vec<Quota> {
        let (Some(_), Some(least)) = (self.cpus_max, self.cpus_min.or(self.state.base_cpus)) else {
            return Vec::new();
        };
        let lower = |instance: &InstanceObservation| {
            let has = self.quota_of(instance)?;
            let asked = self
                .state
                .quotas
                .iter()
                .find(|asked| asked.instance == instance.id);
            if asked.is_some_and(|asked| now.since(asked.at) < QUOTA_DOWN_AGAIN) {
                return None;
            }
            let used = finite(instance.arrivals_stable_pps.max(instance.arrivals_fast_pps));
            let needed = has * used / (self.target * instance.capacity_pps.max(1.0));
            let cpus = needed.max(QUOTA_DOWN * has).max(least);
            // Only if a tenth is unneeded: each change costs a system call, and a mistake costs a burst.
            (cpus < 0.9 * has).then_some(Quota {
                instance: instance.id,
                cpus,
            })
        };
        let instances = observation.instances.iter();
        instances.filter(|i| serves(i)).filter_map(lower).collect()
    }

    /// Instances that the work of functions needs, and those that it must leave; 0 where busy time has no effect.
    fn count_by_busy(&self) -> (u32, u32) {
        let (Some(high), Some(busy)) = (self.busy_high, self.state.busy) else {
            return (0, 0);
        };
        let up = work::count_for(busy, high);
        let highest = self.state.calm_busy.get().map_or(busy, |most| most.max(busy));
        (up, work::count_for(highest, self.busy_low.min(high)).max(up))
    }

    /// The count outside bursts, and why.
    fn calm_count(&self, observation: &Observation, current: u32, now: Nanos) -> (u32, Reason) {
        let stable = finite(observation.offered_stable_pps);
        let reason = Reason::new("calm")
            .with("stable_pps", stable)
            .with("capacity_pps", self.state.capacity_pps)
            .with("current", f64::from(current));
        let reason = match (self.busy_high, self.state.busy) {
            (Some(high), Some(busy)) => reason.with("busy_instances", busy).with("busy_high", high),
            _ => reason,
        };
        let (busy_up, busy_down) = self.count_by_busy();
        let by_rate = self.count_for(stable, self.target);
        let up = by_rate.max(busy_up);
        if up > current {
            let rule = if by_rate > current {
                "above_target"
            } else {
                "above_busy_high"
            };
            return (up, reason.named(rule));
        }
        let highest = self.state.calm.get().map_or(stable, |pps| pps.max(stable));
        let down = self.count_for(highest, self.down_target).max(up).max(busy_down);
        if down >= current {
            return (current, reason);
        }
        let reason = reason.with("highest_pps", highest);
        let recent = self
            .state
            .starts
            .iter()
            .filter(|at| now.since(**at) <= FLAP_SPAN)
            .count();
        if recent >= FLAP_BUDGET {
            return (current, reason.named("flap_budget"));
        }
        (down, reason.named("below_target"))
    }
}

impl Policy for Ladder {
    const NAME: &'static str = "ladder";
    const PARAMETERS: &'static [Parameter] = &[
        Parameter::new(
            "target",
            "share, above 0 and at most 1",
            "0.75",
            "Target utilisation outside bursts.",
        ),
        Parameter::new(
            "ceiling",
            "share, above 0 and at most 1",
            "0.8",
            "Utilisation above which the fast rate decides, not the stable rate.",
        ),
        Parameter::new(
            "down_target",
            "share, above 0 and at most 1",
            "0.68",
            "Share of the remaining capacity that the highest stable rate of `calm` must fit before scaling down.",
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
            "30s",
            "How long fewer instances must have sufficed before scaling down.",
        ),
        Parameter::new(
            "burst",
            "duration",
            "5s",
            "How long a burst lasts after its last sign; one within `calm` of the previous burst lasts `calm`.",
        ),
        work::HIGH,
        work::LOW,
        Parameter::new(
            "cpus_max",
            "CPUs",
            "quotas stay unchanged",
            "Maximum CPUs of a hot instance; raised before adding instances.",
        ),
        Parameter::new(
            "cpus_min",
            "CPUs",
            "its current CPUs",
            "Minimum CPUs per instance.",
        ),
        Parameter::new("cpus_total", "CPUs", "no limit", "Maximum CPUs of all instances."),
    ];

    const RELOCATES: bool = true;

    crate::keeps_state!(window);

    fn note(&mut self, observation: &Observation, now: Nanos) {
        if self.state.noted == Some(now) {
            return;
        }
        let state = &mut self.state;
        if let Some(capacity_pps) = mean_capacity_pps(observation) {
            state.capacity_pps = capacity_pps;
        }
        if state.base_cpus.is_none() {
            state.base_cpus = vertical::least_quota(observation);
        }
        // Existing instances were needed.
        let found = f64::from(observation.wanted) * state.capacity_pps * self.down_target;
        match state.noted {
            Some(before) => {
                let span_s = now.since(before).as_secs_f64();
                if span_s > MISSING.as_secs_f64().max(3.0 * state.rise.span_s) {
                    state.calm.add(now, found);
                }
                state.rise.note(observation, Some(span_s));
            }
            None => {
                state.rise.note(observation, None);
                // Reserve all space now, so that later steps do not allocate.
                state.calm.reserve((self.calm.0 / BUCKET.0) as usize + 4);
                state.starts.reserve(FLAP_BUDGET + 1);
                if self.busy_high.is_some() {
                    state.calm_busy.reserve((self.calm.0 / BUCKET.0) as usize + 4);
                }
                // As after a restart: it stays for a whole window.
                state.calm.add(now, found);
            }
        }
        if self.busy_high.is_some() {
            let busy = work::busy_instances(observation);
            state.busy = work::mean(state.busy.zip(state.noted), busy, (now, BUSY_WINDOW));
        }
        state.moves.note(observation, now);
        state.noted = Some(now);
        if observation.hot {
            state.hot_since.get_or_insert(now);
        } else {
            state.hot_since = None;
        }
        if now.since(state.bucket) >= BUCKET || state.bucket == Nanos::ZERO {
            state.bucket = now;
            let stable = finite(observation.offered_stable_pps);
            state.calm.forget(now, self.calm);
            state.calm.add(now, stable);
            if let Some(busy) = state.busy {
                state.calm_busy.forget(now, self.calm);
                state.calm_busy.add(now, busy);
            }
        }
        state
            .quotas
            .retain(|asked| observation.instances.iter().any(|i| i.id == asked.instance));
        while state.starts.front().is_some_and(|at| now.since(*at) > FLAP_SPAN) {
            state.starts.pop_front();
        }
    }

    fn judge(&self, observation: &Observation, now: Nanos) -> Decision {
        let current = within_limits(observation.wanted, observation);
        let is_unknown = self.state.capacity_pps <= 0.0;
        if is_unknown && self.count_by_busy().0 <= current {
            return Decision::count(current, Reason::new("capacity_unknown"));
        }
        let (calm, calm_reason) = self.calm_count(observation, current, now);
        let limited = |count: u32, reason: Reason, quotas: Vec<Quota>| {
            let desired = within_limits(count, observation);
            let reason = match desired {
                desired if desired < count && desired == current => reason.named("at_max"),
                desired if desired > count && desired == current => reason.named("at_min"),
                _ => reason,
            };
            // A place comes after quotas, and a new instance goes to a place with room by itself.
            let may_move = quotas.is_empty() && desired == current;
            let relocation = may_move.then(|| self.state.moves.judge(observation, self.calm, now));
            Decision {
                quotas,
                relocation: relocation.flatten(),
                ..Decision::count(desired, reason)
            }
        };
        if self.is_burst(observation) {
            // Without a hot ring the last step may be a single packet train.
            let demand = if observation.hot {
                fast_at_least(observation.offered_fast_pps).max(self.state.rise.now_at_least())
            } else {
                self.state.rise.rising_at_least(observation)
            };
            let backlog = backlog_pps(observation);
            let demand = demand + backlog;
            let (quotas, gained) = self.quotas_up(observation, now);
            let needed = self.count_for(demand - gained, self.ceiling).max(calm);
            let reason = Reason::new("burst")
                .with("demand_pps", demand)
                .with("fast_pps", finite(observation.offered_fast_pps))
                .with("capacity_pps", self.state.capacity_pps)
                .with("current", f64::from(current))
                .with("quota_gain_pps", gained)
                .with("backlog_pps", backlog);
            let working = observation.count(InstanceState::Active) as u32 >= current;
            let still_hot = self
                .state
                .hot_since
                .is_some_and(|since| now.since(since) >= STILL_HOT)
                && now.since(self.state.changed) >= STILL_HOT;
            if needed <= current
                && observation.hot
                && still_hot
                && working
                && Self::most_are_hot(observation)
                && quotas.is_empty()
                && gained <= 0.0
                && !self.state.moves.is_wanted(observation, self.calm, now)
            {
                return limited(current.saturating_add(1), reason.named("still_hot"), quotas);
            }
            return limited(needed.max(current), reason, quotas);
        }
        if let Some(until) = self.state.burst_until
            && now < until
        {
            // Never scale down in a burst.
            let reason = calm_reason.named("burst_lasts");
            return limited(
                calm.max(current),
                if calm > current { calm_reason } else { reason },
                Vec::new(),
            );
        }
        let quotas = self.quotas_down(observation, now);
        let raised = self.cpus_max.is_some()
            && self.state.base_cpus.is_some_and(|base| {
                let base = self.cpus_min.unwrap_or(base);
                observation
                    .instances
                    .iter()
                    .filter_map(|i| self.quota_of(i))
                    .any(|has| has > base * (1.0 + vertical::SAME))
            });
        if calm < current && raised {
            // Quota goes first.
            return limited(current, calm_reason.named("quota_first"), quotas);
        }
        limited(calm, calm_reason, quotas)
    }

    fn commit(&mut self, observation: &Observation, decision: &Decision, now: Nanos) {
        // In a burst, a load beyond the calm count is a sign as well.
        let is_needed = self.state.burst_until.is_some() && {
            let current = within_limits(observation.wanted, observation);
            let (calm, _) = self.calm_count(observation, current, now);
            self.state.rise.rising_at_least(observation)
                > self.ceiling * self.state.capacity_pps * f64::from(calm)
        };
        if self.is_burst(observation) || is_needed {
            if self.state.burst_until.is_none() {
                let ended = self.state.burst_ended;
                self.state.recurs = ended.is_some_and(|ended| now.since(ended) < self.calm);
            }
            let lasts = if self.state.recurs { self.calm } else { self.burst };
            self.state.burst_until = Some(now + lasts.max(self.burst));
        } else if self.state.burst_until.is_some_and(|until| now >= until) {
            self.state.burst_until = None;
            self.state.burst_ended = Some(now);
        }
        let state = &mut self.state;
        state.moves.commit(decision.relocation, now);
        for quota in &decision.quotas {
            let asked = Asked {
                instance: quota.instance,
                cpus: quota.cpus,
                at: now,
            };
            match state
                .quotas
                .iter_mut()
                .find(|asked| asked.instance == quota.instance)
            {
                Some(place) => *place = asked,
                None => state.quotas.push(asked),
            }
        }
        if decision.desired != observation.wanted {
            state.changed = now;
        }
        // Only starting containers counts: standbys and cancelled drains are cheap.
        let more = decision.desired.saturating_sub(observation.wanted) as usize;
        if more > 0 {
            let ready =
                observation.count(InstanceState::Standby) + observation.count(InstanceState::Draining);
            for _ in 0..more.saturating_sub(ready).min(FLAP_BUDGET) {
                if state.starts.len() >= FLAP_BUDGET {
                    state.starts.pop_front();
                }
                state.starts.push_back(now);
            }
        }
    }

    fn is_overloaded(&self, observation: &Observation) -> bool {
        self.is_burst(observation)
    }
}

/// Whether the instance's ring is filling up or full.
fn is_hot(instance: &InstanceObservation) -> bool {
    instance.ring_occupancy >= HOT_OCCUPANCY || instance.ring_drops_fast_pps > 0.0
}

/// Whether it receives packets.
fn serves(instance: &InstanceObservation) -> bool {
    matches!(instance.state, InstanceState::Active | InstanceState::Draining)
}

/// The ring backlog as a rate that clears it within [`BACKLOG_SPAN_S`]. An instance's backlog belongs to its
/// pinned flows, so it counts at most as one more instance.
fn backlog_pps(observation: &Observation) -> f64 {
    let waits = |instance: &InstanceObservation| {
        (instance.signals.ring_packets as f64 / BACKLOG_SPAN_S).min(finite(instance.capacity_pps))
    };
    observation
        .instances
        .iter()
        .filter(|i| serves(i))
        .map(waits)
        .sum()
}
