//! An edge's view of the machines of a service, and the pick.

use model::{Nanos, mix};

use crate::Look;
use crate::report::{ServiceLoad, Serving};
use crate::sequences::{Sequences, draws_beyond};

/// Machines of a cluster at most: numbers are below it.
pub const MACHINES_LIMIT: usize = 1_024;
/// Draws beyond the sequence, before all machines are searched in order.
const DRAWS_BEYOND: u64 = 64;
/// A machine's number in the cluster, below [`MACHINES_LIMIT`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MachineId(pub u16);

impl MachineId {
    /// As an index.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A machine of the cluster.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Member {
    /// Its number.
    pub id: MachineId,
    /// What its places in the hash come from. All edges have the same.
    pub name: u64,
    /// Its share of flows by hash, relative to others'. All edges have the same.
    pub weight: f32,
}

/// When a report loses its effect. Times are in intervals of reports, so that one late or lost datagram changes nothing.
///
/// A report tells of the past. Who goes by old figures sends all to those that were idle then (Mitzenmacher, "How Useful Is
/// Old Information?", IEEE TPDS 11(1), 2000), so loads must count less the older they are (Dahlin, "Interpreting Stale Load
/// Information", IEEE TPDS 11(10), 2000). Here a report's age gives the chance that a pick goes by it at all. Otherwise the
/// flow goes to the first of its two machines, so that in the limit a machine gets its share by hash, no more and no less.
/// To draw an old load to the mean of all, instead, gives a machine more than that: most others are a little above the mean.
///
/// A machine gets nothing only if it gives no other sign of life either: whoever answers packets is there, and to leave it
/// out would load all others with its share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The interval of reports.
    pub interval: Nanos,
    /// Until then a report counts in full.
    pub fresh: u32,
    /// From then on, the chance that a pick goes by it is halved after each so many intervals.
    pub half_life: u32,
    /// Without a sign of life for so long, the machine gets a new flow only if no other one of its sequence takes any.
    pub silent: u32,
    /// Without one for so long, it has failed, and its flows move, unless most machines are silent.
    pub lost: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            interval: Nanos::from_millis(10),
            fresh: 3,
            half_life: 5,
            silent: 20,
            lost: 100,
        }
    }
}

impl Settings {
    /// How far a report of that age is believed: 1 while it is fresh, then the chance that a pick goes by it at all.
    pub fn trust(&self, age: Nanos) -> f32 {
        self.trust_after(age.0 as f32 / self.interval.0.max(1) as f32)
    }

    fn trust_after(&self, intervals: f32) -> f32 {
        let late = (intervals - self.fresh as f32).max(0.0);
        (-late / self.half_life.max(1) as f32).exp2()
    }
}

/// Whether the pick of a flow goes by loads that are believed so far. Otherwise it goes to the first of its two machines.
#[inline]
pub fn goes_by_load(hash: u64, trust: f32) -> bool {
    trust >= 1.0 || unit(hash) < trust
}

/// What an edge does with a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// Its reports come: it gets new flows by its load.
    Fresh,
    /// Its last report is old: it gets new flows by its load or by its share of hashes.
    Stale,
    /// It has given no sign of life for long, or never reported: it gets new flows only where there is no other.
    Silent,
    /// It gets no new flows, and keeps those that it has.
    Draining,
    /// It gets no new flows, and its flows move.
    Leaving,
    /// It does not answer: likewise.
    Failed,
    /// It is not of the cluster.
    Absent,
}

/// Why a machine was picked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// It is less loaded than the other choice.
    LessLoaded,
    /// It is the only one of the flow's sequence that takes new flows.
    OnlyChoice,
    /// Nothing is known that is better: it is the first by hash.
    Hashed,
    /// None of its sequence takes new flows. Another edge would not find it.
    Beyond,
}

/// The result of a pick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Picked {
    /// The machine.
    pub machine: MachineId,
    /// Why.
    pub rule: Rule,
}

/// How often each rule decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// [`Rule::LessLoaded`].
    pub less_loaded: u64,
    /// Of these, picks of which one was [`Standing::Stale`].
    pub stale: u64,
    /// [`Rule::OnlyChoice`].
    pub only_choice: u64,
    /// [`Rule::Hashed`].
    pub hashed: u64,
    /// [`Rule::Beyond`].
    pub beyond: u64,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    is_member: bool,
    /// Told by another source than silence.
    has_failed: bool,
    state: Serving,
    /// Of the last report, in the unit of the metric.
    capacity: f32,
    used: f32,
    live_flows: u32,
    reported_at: Option<Nanos>,
    /// The last sign of life.
    heard_at: Option<Nanos>,
    /// Flows that this edge gave it since the last report.
    given: f32,
    standing: Standing,
    /// The estimated utilisation that a pick compares, and the chance that it does.
    estimate: f32,
    weight: f32,
    /// What a flow adds to it.
    per_flow: f32,
}

const ABSENT: Row = Row {
    is_member: false,
    has_failed: false,
    state: Serving::Serving,
    capacity: 0.0,
    used: 0.0,
    live_flows: 0,
    reported_at: None,
    heard_at: None,
    given: 0.0,
    standing: Standing::Absent,
    estimate: 0.0,
    weight: 0.0,
    per_flow: 0.0,
};

impl Row {
    /// Its utilisation as reported, 0 to 1. Without a capacity it is full.
    fn reported(&self) -> f32 {
        if self.capacity > 0.0 {
            self.used / self.capacity
        } else {
            1.0
        }
    }
}

/// The machines of one service, as one edge sees them. Only [`Machines::new`] and [`Machines::set_members`] allocate.
#[derive(Clone, Debug)]
pub struct Machines {
    settings: Settings,
    rows: Vec<Row>,
    members: usize,
    sequences: Sequences,
    /// Those before the members last changed, if there were any.
    before: Option<Sequences>,
    /// Whether most are silent: then it is this edge that does not hear, not they that do not speak.
    is_blind: bool,
    counts: Counts,
}

impl Machines {
    /// Without a machine.
    pub fn new(settings: Settings) -> Machines {
        Machines {
            settings,
            rows: vec![ABSENT; MACHINES_LIMIT],
            members: 0,
            sequences: Sequences::empty(),
            before: None,
            is_blind: false,
            counts: Counts::default(),
        }
    }

    /// Says which machines there are. A drain or a failure is no change of members: what hash leads to whom stays, and
    /// flows are found. Members that are beyond the limit, and all but the first of a number, are ignored.
    ///
    /// It builds a table of 65,537 entries, which takes milliseconds: not on the path of packets.
    pub fn set_members(&mut self, members: &[Member]) {
        let mut of: Vec<Member> = members
            .iter()
            .copied()
            .filter(|member| member.id.index() < MACHINES_LIMIT)
            .collect();
        // Edges agree, whatever the order in which they learn of machines.
        of.sort_by_key(|member| (member.name, member.id));
        let mut rows = vec![ABSENT; MACHINES_LIMIT];
        of.retain(|member| {
            let index = member.id.index();
            let is_first = !rows[index].is_member;
            if is_first {
                rows[index] = self.rows[index];
                if !rows[index].is_member {
                    rows[index].is_member = true;
                    rows[index].standing = Standing::Silent;
                }
            }
            is_first
        });
        self.rows = rows;
        let before = self.members > 0;
        self.members = of.len();
        let sequences = std::mem::replace(&mut self.sequences, Sequences::new(of));
        self.before = before.then_some(sequences);
    }

    /// Forgets which members there were before: no flow is left from then.
    pub fn settle(&mut self) {
        self.before = None;
    }

    /// Takes an accepted report of a machine. It is current: it counts each flow that the edge gave the machine before,
    /// but for those under way, whose time is short beside the interval.
    pub fn reported(&mut self, machine: MachineId, load: &ServiceLoad, now: Nanos) {
        if let Some(row) = self.rows.get_mut(machine.index()).filter(|row| row.is_member) {
            row.state = load.state;
            row.capacity = load.capacity as f32;
            row.used = load.capacity.saturating_sub(load.capacity_left) as f32;
            row.live_flows = load.live_flows;
            row.reported_at = Some(now);
            row.heard_at = Some(now);
            row.has_failed = false;
            // The dispatcher counts on from the last figure that it has (van der Boor, Borst and van Leeuwaarden,
            // "Hyper-Scalable JSQ with Sparse Feedback", Proc. ACM Meas. Anal. Comput. Syst. 3(1), 2019).
            row.given = 0.0;
        }
    }

    /// A packet came from a machine: it lives, whatever becomes of its reports.
    pub fn heard(&mut self, machine: MachineId, now: Nanos) {
        if let Some(row) = self.rows.get_mut(machine.index()) {
            row.heard_at = Some(now);
        }
    }

    /// A machine has failed, says someone who knows: its engine, or whoever watches it. Its next report revokes it.
    pub fn fail(&mut self, machine: MachineId) {
        if let Some(row) = self.rows.get_mut(machine.index()).filter(|row| row.is_member) {
            row.has_failed = true;
            row.standing = Standing::Failed;
        }
    }

    /// Brings all estimates to this time. Once an interval, after its reports.
    pub fn renew(&mut self, now: Nanos) {
        let settings = self.settings;
        let intervals = |at: Nanos| now.since(at).0 as f32 / settings.interval.0.max(1) as f32;
        let (mut used, mut flows) = (0.0_f64, 0_u64);
        let (mut silent, mut ever) = (0, 0);
        for row in self.rows.iter().filter(|row| row.is_member) {
            let (Some(at), Some(heard_at)) = (row.reported_at, row.heard_at) else {
                silent += 1;
                continue;
            };
            ever += 1;
            silent += usize::from(intervals(heard_at) >= settings.silent as f32);
            let age = intervals(at);
            if age <= settings.fresh as f32 && row.state == Serving::Serving {
                used += f64::from(row.used);
                flows += u64::from(row.live_flows);
            }
        }
        self.is_blind = 2 * silent > self.members || ever == 0;
        let per_flow = if flows > 0 { used / flows as f64 } else { 0.0 };
        for row in self.rows.iter_mut().filter(|row| row.is_member) {
            row.per_flow = if row.capacity > 0.0 {
                per_flow as f32 / row.capacity
            } else {
                0.0
            };
            let age = row.reported_at.map_or(f32::INFINITY, intervals);
            // 1 of a fresh report, 0 of none.
            row.weight = settings.trust_after(age);
            row.estimate = row.reported() + row.given * row.per_flow;
            let unheard = row.heard_at.map_or(0.0, intervals);
            row.standing = match row.state {
                _ if row.has_failed => Standing::Failed,
                // Who says nothing more has left.
                _ if unheard >= settings.lost as f32 && !self.is_blind => Standing::Failed,
                Serving::Leaving => Standing::Leaving,
                Serving::Draining => Standing::Draining,
                Serving::Serving if row.reported_at.is_none() => Standing::Silent,
                Serving::Serving if unheard >= settings.silent as f32 => Standing::Silent,
                Serving::Serving if age > settings.fresh as f32 => Standing::Stale,
                Serving::Serving => Standing::Fresh,
            };
        }
    }

    /// Picks the machine of a new flow: of the first two of its sequence that take new flows the less loaded one, by the
    /// last report and the flows that this edge gave it since. [`None`] if no machine takes any. Does not allocate.
    ///
    /// If most machines are silent, all by their share of hashes: the edge is cut off from reports, not the machines from
    /// the world, and nothing is known that would be better.
    pub fn pick(&mut self, hash: u64) -> Option<Picked> {
        let (mut first, mut silent) = (None, None);
        let mut sequence = self.sequences.of(hash);
        let picked = loop {
            let Some(machine) = sequence.next() else {
                break match (first, silent) {
                    (Some(machine), _) => Picked {
                        machine,
                        rule: Rule::OnlyChoice,
                    },
                    (None, Some(machine)) => Picked {
                        machine,
                        rule: Rule::Hashed,
                    },
                    (None, None) => Picked {
                        machine: self.beyond(hash)?,
                        rule: Rule::Beyond,
                    },
                };
            };
            match (self.standing(machine), first) {
                // Who is heard by chance must not get the share of all others.
                (Standing::Silent, _) if self.is_blind => {
                    break Picked {
                        machine: first.unwrap_or(machine),
                        rule: Rule::Hashed,
                    };
                }
                (Standing::Silent, _) => silent = silent.or(Some(machine)),
                (Standing::Fresh | Standing::Stale, None) => first = Some(machine),
                (Standing::Fresh | Standing::Stale, Some(other)) => {
                    let weight = self.weight(machine).min(self.weight(other));
                    if !goes_by_load(hash, weight) {
                        break Picked {
                            machine: other,
                            rule: Rule::Hashed,
                        };
                    }
                    self.counts.stale += u64::from(weight < 1.0);
                    let is_less = self.estimate(machine) < self.estimate(other);
                    break Picked {
                        machine: if is_less { machine } else { other },
                        rule: Rule::LessLoaded,
                    };
                }
                _ => {}
            }
        };
        *match picked.rule {
            Rule::LessLoaded => &mut self.counts.less_loaded,
            Rule::OnlyChoice => &mut self.counts.only_choice,
            Rule::Hashed => &mut self.counts.hashed,
            Rule::Beyond => &mut self.counts.beyond,
        } += 1;
        if let Some(row) = self.rows.get_mut(picked.machine.index()) {
            row.given += 1.0;
            row.estimate += row.per_flow;
        }
        Some(picked)
    }

    /// The first of a flow's sequence that takes new flows: what a pick by hash alone would choose, without any load.
    pub fn by_hash(&self, hash: u64) -> Option<MachineId> {
        let mut sequence = self.sequences.of(hash);
        sequence
            .find(|machine| self.takes_new_flows(*machine))
            .or_else(|| self.beyond(hash))
    }

    /// The machines that can have the pin of a flow that another edge has picked a machine for. Edges with the same
    /// members look in the same ones, whatever they know of loads.
    pub fn look(&self, hash: u64) -> Look {
        let mut look = Look::default();
        let mut add = |machine: MachineId| {
            if !matches!(self.standing(machine), Standing::Failed | Standing::Absent) {
                look.add(machine);
            }
        };
        let mut now = self.sequences.of(hash);
        now.by_ref().take(2).for_each(&mut add);
        if let Some(before) = &self.before {
            before.of(hash).take(2).for_each(&mut add);
        }
        now.for_each(add);
        look
    }

    /// Whether the pins of a machine are void: its flows get another machine with their next packet, once.
    #[inline]
    pub fn must_move(&self, machine: MachineId) -> bool {
        matches!(
            self.standing(machine),
            Standing::Leaving | Standing::Failed | Standing::Absent
        )
    }

    /// What is done with a machine.
    #[inline]
    pub fn standing(&self, machine: MachineId) -> Standing {
        self.rows
            .get(machine.index())
            .map_or(Standing::Absent, |row| row.standing)
    }

    /// The estimated utilisation of a machine, which picks compare: 0 to 1, more if it is overloaded.
    pub fn estimate(&self, machine: MachineId) -> f32 {
        self.rows.get(machine.index()).map_or(0.0, |row| row.estimate)
    }

    /// Whether most machines are silent.
    pub fn is_blind(&self) -> bool {
        self.is_blind
    }

    /// How often each rule decided.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    fn weight(&self, machine: MachineId) -> f32 {
        self.rows.get(machine.index()).map_or(0.0, |row| row.weight)
    }

    fn takes_new_flows(&self, machine: MachineId) -> bool {
        match self.standing(machine) {
            Standing::Fresh | Standing::Stale => true,
            Standing::Silent => self.is_blind,
            _ => false,
        }
    }

    /// A machine that takes new flows, beyond the sequence of a hash; if there is none, a silent one.
    fn beyond(&self, hash: u64) -> Option<MachineId> {
        let drawn = draws_beyond(hash, DRAWS_BEYOND).filter_map(|hash| self.sequences.at(hash));
        let all = || (0..MACHINES_LIMIT as u16).map(MachineId);
        drawn
            .chain(all())
            .find(|machine| self.takes_new_flows(*machine))
            .or_else(|| all().find(|machine| self.standing(*machine) == Standing::Silent))
    }
}

/// A number from 0 to 1 out of a hash, which does not depend on the machines of its sequence.
fn unit(hash: u64) -> f32 {
    (mix(!hash) >> 40) as f32 / (1_u32 << 24) as f32
}

#[cfg(test)]
mod tests;
