//! Prepared picks: the scheduler's next decisions, which the program takes one by one.
//!
//! The program pins a new flow inline. It cannot run a scheduler, so the scheduler runs ahead: it picks for the next
//! flows on the loads of this moment. When some were taken or the loads change, the rest is made anew; so a pick is as
//! old as the last turn of the control loop in which something changed.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use model::{Direction, FlowKey, FlowKeyV4, Nanos, ServiceId, Slot, mix, protocol};
use scheduling::{Candidate, Candidates, NewFlow, PRIORITIES, RSS_ENTRIES, Scheduler, Settings, Terms};
use switch::{Plan, ServicePlan, SwitchReading};

use crate::layout::{ENTRIES, PICKS, SLOTS, ServiceRow, by};

/// Picks that are prepared at least: a burst of new flows between two turns.
const AHEAD_MIN: u32 = 128;
/// Picks that are prepared at most.
const AHEAD_MAX: u32 = PICKS as u32;
/// How often picks are made anew while an instance's share of new flows rises.
const RAMP_EVERY: Nanos = Nanos::from_millis(10);

/// What the switch knows of instances at this moment.
pub(crate) struct Now<'a> {
    pub(crate) at: Nanos,
    pub(crate) plan: &'a Plan,
    /// By slot.
    pub(crate) loads: &'a [f32],
    /// Flows by slot.
    pub(crate) live: &'a dyn Fn(Slot) -> u32,
    /// Whether an instance can be given flows, beside what the plan says.
    pub(crate) is_usable: &'a dyn Fn(Slot) -> bool,
    /// Whether loads, or who can be picked, may have changed since the last time.
    pub(crate) has_changed: bool,
}

/// Who picks for a service.
pub(crate) struct Picker {
    pub(crate) id: ServiceId,
    /// As it was after the last pick that the program took.
    scheduler: Scheduler,
    /// What the prepared picks were made from.
    candidates: Candidates,
    /// What a new flow is expected to bring, in the service's metric.
    pub(crate) expected: f32,
    /// How many had been taken when the prepared ones were made, and how many those were.
    from: u32,
    prepared: u32,
    /// How many to prepare.
    ahead: u32,
    made_at: Nanos,
    /// The number of the next random hash.
    draws: u64,
    /// Who was in the tables by hash, and how the shares of those that start slowly were.
    listed: Vec<(Slot, u16)>,
    shape: u64,
}

/// A flow that may come. Nothing is known of it but that its hash is as random as any.
const ANY: FlowKey = FlowKey::V4(FlowKeyV4 {
    a: [0; 4],
    b: [0; 4],
    a_port: 0,
    b_port: 0,
    vlan: 0,
    protocol: 0,
    zero: 0,
});

fn flow(hash: u64, expected: f32) -> NewFlow<'static> {
    NewFlow {
        key: &ANY,
        direction: Direction::Forward,
        hash,
        expected,
        dscp: 0,
        among: &[],
    }
}

/// Whether the policy's hash of a flow depends on its ports.
fn has_ports(scheduler: &Scheduler) -> bool {
    let of = |port| {
        let key = FlowKey::V4(FlowKeyV4 {
            a: [192, 0, 2, 1],
            b: [192, 0, 2, 2],
            a_port: port,
            b_port: 80,
            vlan: 0,
            protocol: protocol::TCP,
            zero: 0,
        });
        let flow = NewFlow {
            key: &key,
            ..flow(0, 0.0)
        };
        scheduler.hash(&flow)
    };
    of(1000) != of(1001)
}

/// How the program picks for a policy.
fn way(scheduler: &Scheduler) -> u32 {
    match scheduler.name() {
        "maglev" => by::FLOW,
        "source-hash" => by::SOURCE,
        "rss" if has_ports(scheduler) => by::RSS,
        "rss" => by::RSS_WITHOUT_PORTS,
        _ => by::PREPARED,
    }
}

impl Picker {
    pub(crate) fn new(service: &ServicePlan, row: &ServiceRow) -> Picker {
        Picker {
            id: service.id,
            scheduler: service.scheduler.clone(),
            candidates: Candidates::new(),
            expected: 0.0,
            from: row.moving.taken.load(Acquire),
            prepared: 0,
            ahead: AHEAD_MIN,
            made_at: Nanos::ZERO,
            draws: 0,
            listed: Vec::new(),
            shape: 0,
        }
    }

    /// Replaces the scheduler.
    pub(crate) fn set_scheduler(&mut self, scheduler: Scheduler) {
        self.scheduler = scheduler;
        self.prepared = 0;
        self.listed.clear();
    }

    /// Prepares picks for the program where that is due.
    pub(crate) fn prepare(&mut self, row: &ServiceRow, now: &Now<'_>) {
        let taken = row.moving.taken.load(Acquire);
        let used = taken.wrapping_sub(self.from);
        let ramps = self
            .candidates
            .rows()
            .iter()
            .any(|of| of.active_for < self.candidates.terms().slow_start);
        let is_due = used > 0 || now.has_changed || ramps && now.at.since(self.made_at) >= RAMP_EVERY;
        if !is_due {
            return;
        }
        // The scheduler itself follows what was taken. What came after the prepared ones was not its choice.
        for _ in 0..used.min(self.prepared) {
            self.draws += 1;
            pick(
                &mut self.scheduler,
                &mut self.candidates,
                mix(self.draws),
                self.expected,
            );
        }
        // Four times as many as the last turn took, at once when that was more, and slowly less.
        let wanted = used.saturating_mul(4).clamp(AHEAD_MIN, AHEAD_MAX);
        self.ahead = wanted.max(self.ahead - self.ahead / 64);
        self.list(now);
        if self.scheduler.has_weights() {
            self.scheduler.follow(&self.candidates);
        }
        let is_other = self.write_tables(row);
        let left = self.prepared.saturating_sub(used);
        if !is_other && self.listed.len() == 1 && left >= self.ahead / 2 {
            // There is nothing to choose.
            (self.from, self.prepared, self.made_at) = (taken, left, now.at);
            return;
        }
        let mut ahead = self.scheduler.clone();
        let mut candidates = self.candidates.clone();
        let mut draws = self.draws;
        let mut count = 0;
        if way(&self.scheduler) == by::PREPARED {
            for number in 0..self.ahead {
                draws += 1;
                let Some(slot) = pick(&mut ahead, &mut candidates, mix(draws), self.expected) else {
                    break;
                };
                row.picks[taken.wrapping_add(number) as usize % PICKS].store(slot.0, Relaxed);
                count += 1;
            }
        }
        row.filled.store(taken.wrapping_add(count), Release);
        row.refill_at.store(taken.wrapping_add(count / 2), Relaxed);
        (self.from, self.prepared, self.made_at) = (taken, count, now.at);
    }

    /// Adds the scheduler's weights to a reading.
    pub(crate) fn show_weights(&self, into: &mut SwitchReading) {
        for (index, row) in self.candidates.rows().iter().enumerate() {
            if let Some(of) = self.scheduler.weighing(&self.candidates, index)
                && let Some(counters) = into.slots.get_mut(row.slot.index())
            {
                counters.weight = u64::from(of.weight);
                counters.period_load = of.counted as u64;
            }
        }
    }

    /// Lists who can be picked.
    fn list(&mut self, now: &Now<'_>) {
        let Some(service) = now.plan.service(self.id) else {
            return;
        };
        self.candidates.begin(Terms {
            at: now.at,
            fit: service.fit,
            slow_start: self.scheduler.settings().slow_start,
        });
        for (slot, of) in now.plan.instances() {
            if of.service != self.id || !of.state.takes_new_flows() || !(now.is_usable)(slot) {
                continue;
            }
            self.candidates.push(Candidate {
                slot,
                place: of.place,
                capacity: now.plan.capacity(of),
                load: now.loads.get(slot.index()).copied().unwrap_or_default(),
                trust: 1.0,
                weight: of.weight,
                live_flows: (now.live)(slot),
                active_for: now.at.since(of.active_since),
                queues: [0.0; PRIORITIES],
            });
        }
    }

    /// Writes the tables by hash where who can be picked has changed. Gives whether it has.
    fn write_tables(&mut self, row: &ServiceRow) -> bool {
        let listed: Vec<_> = self
            .candidates
            .rows()
            .iter()
            .map(|of| (of.slot, of.weight))
            .collect();
        let way = way(&self.scheduler);
        let shape = if way == by::PREPARED {
            0
        } else {
            self.candidates.shape()
        };
        if listed == self.listed && shape == self.shape {
            return false;
        }
        self.shape = shape;
        row.by.store(way, Relaxed);
        if !listed.is_empty() {
            let mut maglev = self.maglev();
            for (entry, to) in row.table.iter().enumerate().take(ENTRIES) {
                let slot = match &mut maglev {
                    Some((scheduler, candidates)) => {
                        // The middle of the part of all hashes that the entry stands for.
                        let hash = (2 * entry as u64 + 1) << 51;
                        pick(scheduler, candidates, hash, 0.0)
                    }
                    None => listed.get(entry % RSS_ENTRIES % listed.len()).map(|of| of.0),
                };
                to.store(slot.unwrap_or(Slot(0)).0, Relaxed);
            }
        }
        for (to, (slot, _)) in row.active.iter().zip(&listed) {
            to.store(slot.0, Relaxed);
        }
        row.actives.store(listed.len().min(SLOTS) as u32, Release);
        self.listed = listed;
        true
    }

    /// Maglev over the candidates, without their loads; [`None`] for the policy `rss`, which deals its entries in turn.
    /// Where a scheduler prepares picks, the table is for the middle of connections: a slow start changes nothing in it.
    fn maglev(&self) -> Option<(Scheduler, Candidates)> {
        if self.scheduler.name() == "rss" {
            return None;
        }
        let settings = Settings {
            spill: false,
            ..*self.scheduler.settings()
        };
        let scheduler = match self.scheduler.name() {
            "maglev" => self.scheduler.clone(),
            _ => Scheduler::from_name("maglev").ok()?,
        };
        let mut scheduler = scheduler.with_settings(settings);
        let mut candidates = self.candidates.clone();
        if way(&self.scheduler) == by::PREPARED {
            candidates.begin(Terms {
                slow_start: Nanos::ZERO,
                ..*self.candidates.terms()
            });
            self.candidates.rows().iter().for_each(|of| candidates.push(*of));
        }
        scheduler.settle(&candidates);
        Some((scheduler, candidates))
    }
}

/// The scheduler's next decision.
fn pick(scheduler: &mut Scheduler, candidates: &mut Candidates, hash: u64, expected: f32) -> Option<Slot> {
    let flow = flow(hash, expected);
    let index = scheduler.pick(&flow, candidates).index()?;
    let slot = candidates.get(index)?.slot;
    candidates.pin(index, &flow);
    Some(slot)
}
