//! The model of a cluster: flows through edges to machines and their instances. The live code decides: `edge-steering` at
//! edges, with load reports as bytes; the scheduler of `scheduling` at machines; Maglev's tables. Modelled are flows,
//! with a constant rate each, routers, times on the way, and failures. There are no queues: a load beyond a capacity is
//! counted, and loses nothing.
//!
//! A step is an interval of reports:
//! 1. What happens at this time; flows that end.
//! 2. Machines publish the loads of their instances and report. All do so at once, so that edges err alike.
//! 3. Edges take the reports. Flows whose pins are void get another machine.
//! 4. New flows, one after the other: edge, machine, instance.

mod agreement;
mod edge;
mod flows;
mod keys;
mod machine;
mod measure;

use std::collections::VecDeque;

use edge_steering::{MachineId, Member};
use model::{Nanos, Random, Slot, mix};

pub use keys::{Agreement, Cluster, EDGES_LIMIT, Ecmp, Event};

use self::edge::{Cut, Edge, Owners, Routers};
use self::flows::{Flow, Flows, bit};
use self::machine::{Machine, Phase};
use self::measure::Measure;
use crate::Error;
use crate::load::{Aggregate, Class, Compiled};
use crate::outcome::{Outcome, Point};
use crate::scenario::Scenario;
use crate::time::seconds;

/// The flows that live at the beginning arrive over this time.
const FILL: Nanos = Nanos::from_secs(1);
/// Between two samples of the balance, and two points of the series.
const SAMPLE: Nanos = Nanos::from_millis(500);
/// New flows of a run.
const FLOWS_LIMIT: u64 = 50_000_000;

/// A rolling update under way.
struct Rolling {
    waiting: VecDeque<usize>,
    under_way: Vec<usize>,
    at_a_time: usize,
    restart: Nanos,
}

struct Run<'a> {
    scenario: &'a Scenario,
    cluster: &'a Cluster,
    now: Nanos,
    interval: u32,
    random: Random,
    machines: Vec<Machine>,
    /// Which machines are members, and the members before they last changed: an edge that begins is told of both.
    is_member: Vec<bool>,
    members_before: Vec<Member>,
    edges: Vec<Edge>,
    routers: Routers,
    owners: Owners,
    flows: Flows,
    rolling: Option<Rolling>,
    /// Edges that died, and when routers notice; and those that come back, and when.
    unnoticed: Vec<(Nanos, u8)>,
    coming_back: Vec<(Nanos, u8)>,
    /// Pins that are announced to other edges at the end of the interval: the flow and its edge.
    unannounced: Vec<(u32, u8)>,
    measure: Measure,
}

/// Runs one variant with one seed.
pub(crate) fn run(
    scenario: &Scenario,
    cluster: &Cluster,
    compiled: Compiled,
    seed: u64,
) -> Result<Outcome, Error> {
    if !compiled.singles.is_empty() {
        return Err(Error::value(
            "traffic",
            "a cluster's traffic has the kind \"aggregate\" or \"series\"",
        ));
    }
    let step = Nanos::from_millis(cluster.report_ms);
    let end = seconds(scenario.duration_s);
    let warm_up = seconds(scenario.warm_up_s);
    let machines: Vec<Machine> = (0..cluster.machines as u16)
        .map(|id| Machine::new(MachineId(id), scenario))
        .collect::<Result<_, _>>()?;
    let mut run = Run {
        scenario,
        cluster,
        now: Nanos::ZERO,
        interval: 0,
        random: Random::new(seed),
        is_member: vec![true; machines.len()],
        members_before: Vec::new(),
        machines,
        edges: Vec::new(),
        routers: Routers::new(cluster.ecmp),
        owners: Owners::new(),
        flows: Flows::new((end.0 / step.0) as usize + 1),
        rolling: None,
        unnoticed: Vec::new(),
        coming_back: Vec::new(),
        unannounced: Vec::new(),
        measure: Measure::default(),
    };
    for _ in 0..cluster.edges {
        run.start_edge();
    }
    run.set_routers();
    let mut events: Vec<&Event> = cluster.event.iter().collect();
    events.sort_by(|a, b| a.at_s().total_cmp(&b.at_s()));
    let mut events = events.into_iter().peekable();
    let mut arrivals: Vec<Arrivals> = compiled.aggregates.into_iter().map(Arrivals::new).collect();
    let mut sampled = Nanos::ZERO;
    let mut is_warm = false;
    while run.now < end {
        if !is_warm && run.now >= warm_up {
            is_warm = true;
            run.measure = Measure::default();
        }
        while let Some(event) = events.next_if(|event| seconds(event.at_s()) <= run.now) {
            run.begin_event(event)?;
        }
        run.go_on();
        run.end_flows();
        run.exchange_reports();
        run.move_void_pins();
        run.add_flows(&mut arrivals, step)?;
        if run.now >= sampled {
            sampled = run.now + SAMPLE;
            run.sample();
        }
        let offered: u64 = run.machines.iter().map(Machine::offered_milli_pps).sum();
        run.measure.counts.offered += offered as f64 / 1e3 * step.as_secs_f64();
        run.now = run.now + step;
        run.interval += 1;
    }
    Ok(run.outcome(seed, end.since(warm_up)))
}

/// The new flows of a source.
struct Arrivals {
    of: Aggregate,
    /// The mean of lifetime times weight of its flows.
    weight_s: f64,
    /// The mean lifetime.
    life_s: f64,
    /// Expected flows until the next one: of those that live at the beginning, and of the others.
    until_next: [f64; 2],
}

impl Arrivals {
    fn new(of: Aggregate) -> Arrivals {
        let sum = |f: fn(&Class) -> f64| of.classes.iter().map(f).sum::<f64>();
        Arrivals {
            weight_s: sum(|class| class.share * class.life_s * class.weight),
            life_s: sum(|class| class.share * class.life_s),
            of,
            until_next: [0.0; 2],
        }
    }
}

impl Run<'_> {
    fn members(&self) -> Vec<Member> {
        let of = self.machines.iter().zip(&self.is_member);
        of.filter(|(_, is_member)| **is_member)
            .map(|(machine, _)| Member {
                id: machine.id,
                name: mix(u64::from(machine.id.0)),
                weight: 1.0,
            })
            .collect()
    }

    fn start_edge(&mut self) -> u8 {
        let id = self.edges.len() as u8;
        let audience = self.random.bits();
        let edge = self.new_edge(audience);
        self.edges.push(edge);
        id
    }

    fn new_edge(&self, audience: u64) -> Edge {
        let members = [self.members_before.as_slice(), &self.members()];
        Edge::new(audience, self.cluster.settings(), &self.machines, members)
    }

    /// Routers send to all edges that they believe to be up.
    fn set_routers(&mut self) {
        let unnoticed = |edge: u8| self.unnoticed.iter().any(|(_, of)| *of == edge);
        let edges: Vec<u8> = (0_u8..)
            .zip(&self.edges)
            .filter(|(id, edge)| edge.is_up || unnoticed(*id))
            .map(|(id, _)| id)
            .collect();
        if edges != self.routers.edges {
            self.owners.set(&edges);
            self.routers.set(edges);
        }
    }

    /// A machine has joined or left: `before` were the members.
    fn change_members(&mut self, before: Vec<Member>) {
        self.members_before = before;
        let members = self.members();
        for edge in self.edges.iter_mut().filter(|edge| edge.is_up) {
            edge.machines.set_members(&members);
        }
    }

    fn begin_event(&mut self, event: &Event) -> Result<(), Error> {
        match event {
            Event::MachineFails {
                machine,
                back_after_s,
                ..
            } => {
                let until = back_after_s.map_or(Nanos::MAX, |after_s| self.now + seconds(after_s));
                if let Some(machine) = self.machines.get_mut(usize::from(*machine)) {
                    machine.phase = Phase::Failed { at: self.now, until };
                }
            }
            Event::MachineJoins { .. } => {
                let id = MachineId(self.machines.len() as u16);
                let before = self.members();
                self.machines.push(Machine::new(id, self.scenario)?);
                self.is_member.push(true);
                self.change_members(before);
            }
            Event::MachineLeaves { machine, .. } => {
                if let Some(machine) = self.machines.get_mut(usize::from(*machine)) {
                    machine.phase = Phase::Draining { since: self.now };
                    machine.leaves_for_good = true;
                }
            }
            Event::RollingUpdate {
                at_a_time, restart_s, ..
            } => {
                self.rolling = Some(Rolling {
                    waiting: (0..self.machines.len()).collect(),
                    under_way: Vec::new(),
                    at_a_time: *at_a_time as usize,
                    restart: seconds(*restart_s),
                });
            }
            Event::EdgeJoins { .. } => {
                let edge = self.start_edge();
                self.join(edge);
            }
            Event::EdgeLeaves { edge, .. } => {
                // Routers first, so that no packet is lost.
                if let Some(of) = self.edges.get_mut(usize::from(*edge)) {
                    of.is_up = false;
                }
                self.set_routers();
                self.reroute();
                self.forget(*edge);
            }
            Event::EdgeFails {
                edge, back_after_s, ..
            } => {
                if let Some(of) = self.edges.get_mut(usize::from(*edge)) {
                    of.is_up = false;
                }
                self.unannounced.retain(|(_, of)| of != edge);
                let unnoticed = Nanos::from_millis(self.cluster.ecmp_ms);
                self.unnoticed.push((self.now + unnoticed, *edge));
                if let Some(after_s) = back_after_s {
                    self.coming_back.push((self.now + seconds(*after_s), *edge));
                }
                self.forget(*edge);
            }
            Event::ReportsCut {
                lasts_s,
                edges,
                machines,
                packets,
                ..
            } => {
                let cut = Cut {
                    until: self.now + seconds(*lasts_s),
                    machines: *machines,
                    packets: *packets,
                };
                for (id, edge) in (0_u8..).zip(&mut self.edges) {
                    if edges.is_empty() || edges.contains(&id) {
                        edge.cut = Some(cut);
                    }
                }
            }
        }
        Ok(())
    }

    /// An edge has lost its pins, or needs them no more.
    fn forget(&mut self, edge: u8) {
        for flow in self.flows.iter_mut() {
            flow.pinned_at &= !bit(edge);
        }
        if let Some(edge) = self.edges.get_mut(usize::from(edge)) {
            edge.pins = 0;
        }
    }

    /// Routers send to an edge that has just begun.
    fn join(&mut self, edge: u8) {
        let now = self.now;
        let replies = self.cluster.replies_through_edge;
        if let Some(edge) = self.edges.get_mut(usize::from(edge)) {
            // It asks for reports before routers know of it.
            edge.hear(&self.machines, replies, now);
        }
        self.machines.iter_mut().for_each(Machine::count_report);
        self.copy_pins(edge);
        self.set_routers();
        self.reroute();
    }

    /// What was begun earlier.
    fn go_on(&mut self) {
        let now = self.now;
        // Edges that died.
        let noticed = self.unnoticed.iter().any(|(at, _)| *at <= now);
        if noticed {
            self.unnoticed.retain(|(at, _)| *at > now);
            self.set_routers();
            self.reroute();
        }
        let back: Vec<u8> = self
            .coming_back
            .iter()
            .filter(|(at, _)| *at <= now)
            .map(|(_, edge)| *edge)
            .collect();
        self.coming_back.retain(|(at, _)| *at > now);
        for id in back {
            let audience = self.random.bits();
            let new = self.new_edge(audience);
            if let Some(edge) = self.edges.get_mut(usize::from(id)) {
                let before = (edge.pins_max, edge.reports, edge.report_bytes, edge.refused);
                *edge = new;
                (edge.pins_max, edge.reports, edge.report_bytes, edge.refused) = before;
            }
            self.join(id);
        }
        // Machines.
        let deadline = seconds(self.scenario.service.drain_deadline_s);
        let restart = self
            .rolling
            .as_ref()
            .map_or(Nanos::ZERO, |rolling| rolling.restart);
        let members = self.members();
        let mut have_left = false;
        let mut anew = Vec::new();
        for (machine, is_member) in self.machines.iter_mut().zip(&mut self.is_member) {
            match machine.phase {
                Phase::Draining { since } | Phase::Leaving { since } if machine.live == 0 && now > since => {
                    self.measure.drains_s.push(now.since(since).as_secs_f64());
                    machine.phase = Phase::Down {
                        until: if machine.leaves_for_good {
                            Nanos::MAX
                        } else {
                            now + restart
                        },
                    };
                    have_left |= machine.leaves_for_good;
                    *is_member &= !machine.leaves_for_good;
                }
                Phase::Draining { since } if now.since(since) >= deadline => {
                    machine.phase = Phase::Leaving { since };
                }
                Phase::Down { until } if until <= now => {
                    machine.begin_anew();
                    anew.push((machine.id, now));
                }
                Phase::Failed { at, until } if until <= now => {
                    machine.begin_anew();
                    anew.push((machine.id, at));
                }
                _ => {}
            }
        }
        for (machine, ended_at) in anew {
            self.accept_anew(machine, ended_at);
        }
        if have_left {
            self.change_members(members);
        }
        if let Some(rolling) = &mut self.rolling {
            let machines = &mut self.machines;
            rolling
                .under_way
                .retain(|index| machines.get(*index).is_some_and(|of| of.phase != Phase::Serving));
            while rolling.under_way.len() < rolling.at_a_time
                && let Some(index) = rolling.waiting.pop_front()
            {
                if let Some(machine) = machines.get_mut(index).filter(|of| of.phase == Phase::Serving) {
                    machine.phase = Phase::Draining { since: now };
                    rolling.under_way.push(index);
                }
            }
        }
    }

    /// A machine is back before edges gave its flows to others: it has none of them, and takes those that still come.
    fn accept_anew(&mut self, machine: MachineId, ended_at: Nanos) {
        for number in self.flows.numbers(|flow| flow.machine == machine.0) {
            if let Some(mut flow) = self.flows.get(number).copied() {
                let away_s = self.now.since(ended_at).as_secs_f64();
                self.measure.counts.failed_over += 1;
                self.measure.counts.lost += flow.pps() * away_s.min(self.age_s(&flow));
                flow.slot = self.accept(flow.edge, machine, &flow);
                if let Some(place) = self.flows.get_mut(number) {
                    *place = flow;
                }
            }
        }
    }

    fn end_flows(&mut self) {
        for flow in self.flows.end(self.interval) {
            self.release(&flow);
            let machine = self.machines.get(usize::from(flow.machine));
            if let Some(Phase::Failed { at, .. }) = machine.map(|machine| machine.phase) {
                self.measure.counts.ended_unnoticed += 1;
                self.measure.counts.lost +=
                    flow.pps() * self.now.since(at).as_secs_f64().min(self.age_s(&flow));
            }
            for (id, edge) in (0_u8..).zip(&mut self.edges) {
                edge.pins -= u64::from(flow.is_pinned_at(id));
            }
        }
    }

    fn age_s(&self, flow: &Flow) -> f64 {
        f64::from(self.interval.saturating_sub(flow.born)) * self.cluster.report_ms as f64 / 1e3
    }

    /// A flow leaves its machine.
    fn release(&mut self, flow: &Flow) {
        if let Some(machine) = self.machines.get_mut(usize::from(flow.machine))
            && machine.is_up()
            && flow.slot != Slot::NONE
        {
            machine.release(flow.slot, flow.milli_pps);
        }
    }

    fn exchange_reports(&mut self) {
        for machine in self.machines.iter_mut().filter(|machine| machine.is_up()) {
            machine.renew(self.now);
        }
        let replies = self.cluster.replies_through_edge;
        for edge in self.edges.iter_mut().filter(|edge| edge.is_up) {
            edge.hear(&self.machines, replies, self.now);
        }
        self.machines.iter_mut().for_each(Machine::count_report);
        self.announce();
    }

    fn add_flows(&mut self, arrivals: &mut [Arrivals], step: Nanos) -> Result<(), Error> {
        let step_s = step.as_secs_f64();
        for source in arrivals {
            let new_flows = source.of.new_flows.value(self.now);
            let pps = source.of.pps.value(self.now);
            // What a flow of weight 1 sends, so that all together have the rate.
            let unit_pps = if new_flows > 0.0 {
                pps / (new_flows * source.weight_s)
            } else {
                0.0
            };
            let at_first = if self.now < FILL {
                new_flows * source.life_s * step_s / FILL.as_secs_f64()
            } else {
                0.0
            };
            // Of the flows that live at a time, classes have shares by lifetime, too.
            for (nth, expected) in [at_first, new_flows * step_s].into_iter().enumerate() {
                let mut at = source.until_next[nth];
                while at < expected {
                    at += self.random.exponential();
                    let weight = |class: &Class| {
                        if nth == 0 {
                            class.share * class.life_s / source.life_s
                        } else {
                            class.share
                        }
                    };
                    let mut share = self.random.unit();
                    let class = source.of.classes.iter().find(|class| {
                        share -= weight(class);
                        share <= 0.0
                    });
                    let Some(class) = class.or(source.of.classes.last()).copied() else {
                        continue;
                    };
                    let life_s = class.life_s * self.random.exponential();
                    let intervals = (life_s / step_s).ceil().max(1.0) as u32;
                    let milli_pps = (unit_pps * class.weight * 1e3).min(f64::from(u32::MAX)) as u32;
                    self.add_flow(milli_pps, self.interval.saturating_add(intervals));
                }
                source.until_next[nth] = at - expected;
            }
        }
        if self.measure.counts.new_flows > FLOWS_LIMIT {
            return Err(Error::value(
                "traffic",
                format!("more than {FLOWS_LIMIT} new flows; let it last shorter"),
            ));
        }
        Ok(())
    }

    fn add_flow(&mut self, milli_pps: u32, ends: u32) {
        self.measure.counts.new_flows += 1;
        let hash = self.random.bits();
        let Some(edge) = self.routers.edge(hash) else {
            return;
        };
        if !self.is_edge_up(edge) {
            // The client's first packet is lost. It tries again when routers have noticed.
            self.measure.counts.lost += 1.0;
            return;
        }
        let mut flow = Flow {
            hash,
            milli_pps,
            born: self.interval,
            ends,
            machine: 0,
            slot: Slot::NONE,
            edge,
            pinned_at: 0,
        };
        let Some(machine) = self.set_up(&mut flow) else {
            self.measure.counts.lost += 1.0;
            return;
        };
        flow.machine = machine.0;
        flow.slot = self.accept(edge, machine, &flow);
        let id = self.flows.add(flow);
        self.pinned(id, edge);
    }

    fn is_edge_up(&self, edge: u8) -> bool {
        self.edges.get(usize::from(edge)).is_some_and(|edge| edge.is_up)
    }

    /// A packet of a flow without state reaches a machine, if it does.
    fn accept(&mut self, edge: u8, machine: MachineId, flow: &Flow) -> Slot {
        let is_cut = |of: &Machine| {
            let edge = self.edges.get(usize::from(edge));
            edge.is_some_and(|edge| edge.is_cut_from(of))
        };
        match self.machines.get_mut(machine.index()) {
            Some(machine) if !is_cut(machine) => machine.accept(flow.hash, flow.milli_pps),
            _ => Slot::NONE,
        }
    }

    /// Flows whose pin is void get another machine. It is found out by machine: edges say so of one at a time.
    fn move_void_pins(&mut self) {
        for id in 0..self.edges.len() {
            let Some(edge) = self.edges.get_mut(id).filter(|edge| edge.is_up) else {
                continue;
            };
            let mut newly = vec![false; edge.void.len()];
            let mut is_any = false;
            for (index, void) in edge.void.iter_mut().enumerate() {
                let must_move = edge.machines.must_move(MachineId(index as u16));
                newly[index] = must_move;
                is_any |= must_move && !*void;
                *void = must_move;
            }
            // Flows that were given to a machine that is silent, but not yet lost, are there with those that it had.
            if !is_any {
                continue;
            }
            let is_void = |machine: u16| newly.get(usize::from(machine)).copied().unwrap_or(true);
            for number in self
                .flows
                .numbers(|flow| usize::from(flow.edge) == id && is_void(flow.machine))
            {
                self.move_flow(number);
            }
        }
    }

    /// A flow's pin is void: its next packet picks anew.
    fn move_flow(&mut self, number: u32) {
        let Some(mut flow) = self.flows.get(number).copied() else {
            return;
        };
        let age_s = self.age_s(&flow);
        let cut_off = match (
            self.edges.get(usize::from(flow.edge)),
            self.machines.get(usize::from(flow.machine)),
        ) {
            (Some(edge), Some(machine)) => edge.is_cut_from(machine),
            _ => false,
        };
        let silent_s = f64::from(self.cluster.lost) * self.cluster.report_ms as f64 / 1e3;
        match self
            .machines
            .get(usize::from(flow.machine))
            .map(|machine| machine.phase)
        {
            Some(Phase::Failed { at, .. }) => {
                self.measure.counts.failed_over += 1;
                self.measure.counts.lost += flow.pps() * self.now.since(at).as_secs_f64().min(age_s);
            }
            Some(Phase::Leaving { .. }) => self.measure.counts.drain_moved += 1,
            _ if flow.slot == Slot::NONE || cut_off => {
                self.measure.counts.failed_over += 1;
                self.measure.counts.lost += flow.pps() * age_s.min(silent_s);
            }
            // It was there all the time.
            _ => self.measure.counts.broken += 1,
        }
        self.release(&flow);
        let edge = flow.edge;
        let Some(machine) = self.set_up(&mut flow) else {
            return;
        };
        flow.machine = machine.0;
        flow.slot = self.accept(edge, machine, &flow);
        if let Some(place) = self.flows.get_mut(number) {
            *place = flow;
        }
        self.pinned(number, edge);
    }

    fn sample(&mut self) {
        let serving = || {
            self.machines
                .iter()
                .filter(|machine| machine.phase == Phase::Serving)
        };
        let instances = serving().flat_map(Machine::instance_utilisations);
        self.measure
            .sample(serving().map(Machine::utilisation), instances);
        let offered_pps = self.machines.iter().map(Machine::offered_milli_pps).sum::<u64>() as f64 / 1e3;
        let active = serving().count() as u32 * self.scenario.service.max;
        self.measure.series.push(Point {
            at_s: self.now.as_secs_f64(),
            offered_pps,
            served_pps: offered_pps,
            lost_pps: 0.0,
            wanted: self.scenario.service.max * self.cluster.machines,
            active,
            running: active,
            instances: Vec::new(),
        });
    }

    fn outcome(mut self, seed: u64, counted: Nanos) -> Outcome {
        let mut metrics = self.measure.metrics();
        let mut put = |name: &str, value: f64| {
            metrics.insert(name.to_owned(), value);
        };
        let pins = self.edges.iter().map(|edge| edge.pins_max).max().unwrap_or(0);
        let (bytes, per_flow) = measure::edge_bytes(pins);
        put("live_flows_max", self.flows.live_max as f64);
        put("edge_pins_max", pins as f64);
        put("edge_bytes", bytes);
        put("edge_bytes_per_flow", per_flow);
        let sum = |of: fn(&Edge) -> u64| self.edges.iter().map(of).sum::<u64>() as f64;
        let all_s = self.now.as_secs_f64() * f64::from(self.cluster.edges);
        put("edge_reports_per_s", sum(|edge| edge.reports) / all_s);
        put("edge_report_bytes_per_s", sum(|edge| edge.report_bytes) / all_s);
        put("refused_reports", sum(|edge| edge.refused));
        let picks = |of: fn(edge_steering::Counts) -> u64| {
            self.edges
                .iter()
                .map(|edge| of(edge.machines.counts()))
                .sum::<u64>() as f64
        };
        put("stale_picks", picks(|counts| counts.stale));
        put("only_choice_picks", picks(|counts| counts.only_choice));
        put("hashed_picks", picks(|counts| counts.hashed));
        put("beyond_picks", picks(|counts| counts.beyond));
        let overcommitted: u64 = self.machines.iter().map(|machine| machine.overcommitted).sum();
        put("overcommitted_flows", overcommitted as f64);
        put("counted_s", counted.as_secs_f64());
        Outcome {
            seed,
            metrics,
            series: std::mem::take(&mut self.measure.series),
            decisions: Vec::new(),
        }
    }
}
