use std::collections::VecDeque;

use model::{InstanceId, InstanceObservation, InstanceState, Nanos, Observation};
use serde::{Deserialize, Serialize};

use crate::highest::Highest;
use crate::{
    Decision, Parameter, Policy, Quota, Reason, finite, mean_capacity_pps, share, span, vertical,
    within_limits,
};

/// The time constant of the fast rates: what the collector makes them with.
const FAST_S: f64 = 0.010;
/// Standard deviations of a Poisson count that a rate must be above a limit by: chance does not start a burst.
const SIGMAS: f64 = 3.0;
/// A ring that is this full is hot.
const HOT_OCCUPANCY: f64 = 0.25;
/// Within this span a burst's count takes in what waits in rings.
const BACKLOG_SPAN_S: f64 = 0.1;
/// Samples that stay away for longer than this, and three times as long as the last one did, are missing.
const MISSING: Nanos = Nanos::from_millis(100);
/// A quota that was asked for is left alone for so long: the engine has to carry it out, and its effect to show.
const QUOTA_UP_AGAIN: Nanos = Nanos::from_millis(10);
/// The same on the way down, which is in no hurry.
const QUOTA_DOWN_AGAIN: Nanos = Nanos::from_secs(1);
/// A quota grows at most by this factor at once, and shrinks at most to this share.
const QUOTA_UP: f64 = 1.5;
const QUOTA_DOWN: f64 = 0.5;
/// Rings that stay hot although all that is wanted works: so long until one more instance is tried.
const STILL_HOT: Nanos = Nanos::from_millis(20);
/// A place of the record of calm rates.
const BUCKET: Nanos = Nanos::from_millis(100);
/// Containers that may be started within [`FLAP_SPAN`] before scaling down stops for a while.
const FLAP_BUDGET: usize = 30;
/// See [`FLAP_BUDGET`].
const FLAP_SPAN: Nanos = Nanos::from_secs(300);

/// inco's own autoscaler. What it climbs, cheapest first: CPU quota, a drain taken back, a standby, a new container
/// (the controller takes the last three in that order).
///
/// - **Calm.** As many instances as keep the stable rate at `target` of their capacity; fewer only where the highest
///   stable rate of `calm` fits `down_target` of what is left.
/// - **Burst.** A ring ran hot, or the fast rate is above `ceiling` of the capacity by more than chance explains. Then the
///   last milliseconds decide: the fast rates are exponential means, which lag behind a rise; that lag is added, and where
///   a ring ran hot what arrived since the observation before counts. What waits in rings is to be gone within 100 ms. A
///   burst ends `burst` after its last sign (`calm`, where it follows soon on another), and gives back what it took at
///   once: standby makes taking it again cheap.
/// - **Missing samples.** What went on while there were none is not known: what there is stays for `calm`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ladder {
    /// The share of capacity that instances should be used to in calm times.
    #[serde(deserialize_with = "share::positive")]
    pub target: f64,
    /// The share of capacity beyond which there is no time to wait for a mean.
    #[serde(deserialize_with = "share::positive")]
    pub ceiling: f64,
    /// The share of the capacity of fewer instances that the highest stable rate of `calm` must fit.
    #[serde(deserialize_with = "share::positive")]
    pub down_target: f64,
    /// The span of the stable rate.
    #[serde(serialize_with = "span::serialize", deserialize_with = "span::positive")]
    pub window: Nanos,
    /// For how long fewer instances must have been enough.
    #[serde(with = "span")]
    pub calm: Nanos,
    /// How long a burst lasts after its last sign. One that begins within `calm` of the end of the one before lasts
    /// `calm`: load that swings must not change the count with every swing.
    #[serde(with = "span")]
    pub burst: Nanos,
    /// CPUs that an instance may be given at most; unset, quotas stay as they are.
    pub cpus_max: Option<f64>,
    /// CPUs that an instance keeps at least; unset, those that it has when it is first seen.
    pub cpus_min: Option<f64>,
    /// CPUs that all instances together may be given; unset, no limit.
    pub cpus_total: Option<f64>,

    #[serde(skip)]
    state: State,
}

/// What [`Ladder`] remembers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    noted: Option<Nanos>,
    capacity_pps: f64,
    base_cpus: Option<f64>,
    /// The fast rate of the observation before, and what arrived since then, per second.
    fast_pps: f64,
    now_pps: f64,
    /// The mean of the fast rate, made as the fast rate is: what that is ahead of it by is its rise within its time
    /// constant.
    smooth_pps: f64,
    /// How long the last observation spans.
    span_s: f64,
    /// Until when the burst lasts, and when the last one ended.
    burst_until: Option<Nanos>,
    burst_ended: Option<Nanos>,
    /// Whether it began soon after the last one.
    recurs: bool,
    hot_since: Option<Nanos>,
    changed: Nanos,
    /// The highest stable rate of `calm`.
    calm: Highest<f64>,
    bucket: Nanos,
    starts: VecDeque<Nanos>,
    quotas: Vec<Asked>,
}

/// A quota that was asked for.
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
            // Found in simulation (the scenario agh-hour): a ceiling of 0.85 loses four times as much, a target of 0.8 three
            // times. One of 0.7 loses a third for 1 % more instance-time, but changes the count under constant noise.
            target: 0.75,
            ceiling: 0.8,
            down_target: 0.68,
            window: Nanos::from_secs(5),
            calm: Nanos::from_secs(30),
            burst: Nanos::from_secs(5),
            cpus_max: None,
            cpus_min: None,
            cpus_total: None,
            state: State::default(),
        }
    }
}

impl Ladder {
    /// How many instances carry that rate at that share of their capacity.
    fn count_for(&self, pps: f64, share: f64) -> u32 {
        let capacity = self.state.capacity_pps * share;
        if capacity <= 0.0 {
            return 0;
        }
        share::whole(pps / capacity)
    }

    /// The fast rate, less what chance explains.
    fn fast_at_least(&self, observation: &Observation) -> f64 {
        let fast = finite(observation.offered_fast_pps);
        (fast - SIGMAS * (fast / (2.0 * FAST_S)).sqrt()).max(0.0)
    }

    /// What arrives now, less what chance explains: the fast rate, and where it rises what it lags behind by. A mean
    /// of 10 ms lags behind an even rise by 10 ms, and so does the mean of the mean; one packet train shows in the last
    /// step and hardly in this.
    fn rising_at_least(&self, observation: &Observation) -> f64 {
        let fast = self.fast_at_least(observation);
        let level = fast + (self.state.fast_pps - self.state.smooth_pps).max(0.0);
        fast.max(level.min(self.now_at_least()))
    }

    /// What arrived in the last step, less what chance explains.
    fn now_at_least(&self) -> f64 {
        if self.state.span_s <= 0.0 {
            return 0.0;
        }
        let now = self.state.now_pps;
        (now - SIGMAS * (now / self.state.span_s).sqrt()).max(0.0)
    }

    /// Whether this moment is a sign of a burst.
    fn is_burst(&self, observation: &Observation) -> bool {
        let capacity = self.state.capacity_pps * f64::from(observation.wanted);
        let above = capacity > 0.0 && self.rising_at_least(observation) > self.ceiling * capacity;
        observation.hot || observation.unserved_fast_pps > 0.0 || above
    }

    /// Whether at least half of the Active instances are hot: then they can do less than was thought, and more of them
    /// help. Where a few are, it is their pinned flows, which more instances would not take off them.
    fn most_are_hot(observation: &Observation) -> bool {
        let active = || {
            let instances = observation.instances.iter();
            instances.filter(|i| i.state == InstanceState::Active)
        };
        2 * active().filter(|i| is_hot(i)).count() >= active().count()
    }

    /// The instance's quota, that which was asked for last included.
    fn quota_of(&self, instance: &InstanceObservation) -> Option<f64> {
        let asked = self
            .state
            .quotas
            .iter()
            .find(|asked| asked.instance == instance.id);
        asked.map(|asked| asked.cpus).or(instance.cpu_quota)
    }

    /// Quotas for the hot instances, and how much capacity that adds, in packets per second.
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
            // What is under way counts as there.
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

    /// Quotas that are more than is needed, given back step by step.
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
            // Only where a tenth of it is not needed: each change costs a system call, and a mistake a burst.
            (cpus < 0.9 * has).then_some(Quota {
                instance: instance.id,
                cpus,
            })
        };
        let instances = observation.instances.iter();
        instances.filter(|i| serves(i)).filter_map(lower).collect()
    }

    /// The count of calm times, and why.
    fn calm_count(&self, observation: &Observation, current: u32, now: Nanos) -> (u32, Reason) {
        let stable = finite(observation.offered_stable_pps);
        let reason = Reason::new("calm")
            .with("stable_pps", stable)
            .with("capacity_pps", self.state.capacity_pps)
            .with("current", f64::from(current));
        let up = self.count_for(stable, self.target);
        if up > current {
            return (up, reason.named("above_target"));
        }
        let highest = self.state.calm.get().map_or(stable, |pps| pps.max(stable));
        let down = self.count_for(highest, self.down_target).max(up);
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
            "The share of capacity that instances should be used to in calm times.",
        ),
        Parameter::new(
            "ceiling",
            "share, above 0 and at most 1",
            "0.8",
            "Above it the last milliseconds decide, not the stable rate.",
        ),
        Parameter::new(
            "down_target",
            "share, above 0 and at most 1",
            "0.68",
            "What the highest stable rate of `calm` must leave of fewer instances.",
        ),
        Parameter::new(
            "window",
            "span of time above 0",
            "5s",
            "The span of the stable rate.",
        ),
        Parameter::new(
            "calm",
            "span of time",
            "30s",
            "For how long fewer instances must have been enough.",
        ),
        Parameter::new(
            "burst",
            "span of time",
            "5s",
            "How long a burst lasts after its last sign; one that comes within `calm` of the one before lasts `calm`.",
        ),
        Parameter::new(
            "cpus_max",
            "CPUs",
            "quotas stay as they are",
            "CPUs that a hot instance may be given; that comes before more instances.",
        ),
        Parameter::new(
            "cpus_min",
            "CPUs",
            "those that it has",
            "CPUs that an instance keeps at least.",
        ),
        Parameter::new(
            "cpus_total",
            "CPUs",
            "no limit",
            "CPUs that all instances together may be given.",
        ),
    ];

    type State = State;

    fn state(&self) -> &State {
        &self.state
    }

    fn restore(&mut self, state: State) {
        self.state = state;
    }

    fn stable_window(&self) -> Nanos {
        self.window
    }

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
        let fast = finite(observation.offered_fast_pps);
        // What there is was needed by somebody.
        let found = f64::from(observation.wanted) * state.capacity_pps * self.down_target;
        match state.noted {
            Some(before) => {
                let span_s = now.since(before).as_secs_f64();
                if span_s > MISSING.as_secs_f64().max(3.0 * state.span_s) {
                    state.calm.add(now, found);
                }
                state.span_s = span_s;
                let weight = -(-state.span_s / FAST_S).exp_m1();
                state.now_pps = (state.fast_pps + (fast - state.fast_pps) / weight.max(1e-6)).max(0.0);
                state.smooth_pps += weight * (fast - state.smooth_pps);
            }
            None => {
                state.smooth_pps = fast;
                // Room for all of it, so that none is made later.
                state.calm.reserve((self.calm.0 / BUCKET.0) as usize + 4);
                state.starts.reserve(FLAP_BUDGET + 1);
                // As after a restart: it stays for a whole span.
                state.calm.add(now, found);
            }
        }
        state.fast_pps = fast;
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
        if self.state.capacity_pps <= 0.0 {
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
            Decision {
                quotas,
                ..Decision::count(desired, reason)
            }
        };
        if self.is_burst(observation) {
            // Where a ring says so the last step counts; else it may be one packet train.
            let demand = if observation.hot {
                self.fast_at_least(observation).max(self.now_at_least())
            } else {
                self.rising_at_least(observation)
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
            {
                return limited(current.saturating_add(1), reason.named("still_hot"), quotas);
            }
            return limited(needed.max(current), reason, quotas);
        }
        if let Some(until) = self.state.burst_until
            && now < until
        {
            // Never down in a burst.
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
        // In a burst what the count of calm times would not carry is a sign as well.
        let is_needed = self.state.burst_until.is_some() && {
            let current = within_limits(observation.wanted, observation);
            let (calm, _) = self.calm_count(observation, current, now);
            self.rising_at_least(observation) > self.ceiling * self.state.capacity_pps * f64::from(calm)
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
        // Only what needs a container started counts: standby and a drain taken back are cheap.
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

/// Whether packets are given to it.
fn serves(instance: &InstanceObservation) -> bool {
    matches!(instance.state, InstanceState::Active | InstanceState::Draining)
}

/// What waits in rings, as a rate that would have it gone within [`BACKLOG_SPAN_S`]. What waits on one instance is of
/// flows that are pinned to it: at most as much as one more instance takes.
fn backlog_pps(observation: &Observation) -> f64 {
    let waits = |instance: &InstanceObservation| {
        (instance.ring_packets as f64 / BACKLOG_SPAN_S).min(finite(instance.capacity_pps))
    };
    observation
        .instances
        .iter()
        .filter(|i| serves(i))
        .map(waits)
        .sum()
}
