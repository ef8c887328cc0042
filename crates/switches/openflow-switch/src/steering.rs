//! The core: what comes from the switch goes in, what it is to do comes out.

mod adopt;
mod batch;
mod moves;
mod reconcile;
mod schedule;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use model::{FlowKey, FlowSetup, Nanos, ServiceId, Slot, Timeouts, Tuple};
use openflow::{
    Action, ErrorMessage, FlowFilter, FlowRemoved, FlowRemovedReason, FlowStats, Message, MultipartReply,
    MultipartRequest, PacketIn, PacketOut, WHOLE_PACKET,
};
use openvswitch::{DatapathFlow, Offload};
use packet::{PacketInfo, Parsed, parse};
use scheduling::{Candidates, Scheduler};

use crate::flows::{Flow, FlowId, FlowRow, FlowRule, RuleState};
use crate::prover::{Prover, Step};
use crate::rules::{
    BucketWay, Family, HANDOVER_TABLE, OWNER, OWNER_MASK, Rule, ServiceRules, Side, TABLE, Tag, bucket_rules,
    data_port, fallback_number, fallback_rule, has_ports, instance_rules, is_probe, marked_rules,
    marker_frame, marker_rule, packet_in_rule, pin_number, pin_rule, probe_frame,
};
use adopt::Adoption;
use batch::Batch;
use moves::{BucketPhase, Move};

/// Limits and times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How new flows are set up.
    pub setup: FlowSetup,
    /// Exact rules at most. At the limit new flows stay on their bucket, and those of most packets get rules first when
    /// others end.
    pub rule_limit: usize,
    /// Flows known at most. A bucket that has others too stays where it is until they can have ended.
    pub flow_limit: usize,
    /// Messages that wait to be sent, beyond which no exact rules are asked for. Fixed rules and those of buckets are
    /// bounded by their number.
    pub queue_limit: usize,
    /// Frames that wait to be sent by the monitor port; what would be more is dropped and counted.
    pub inject_limit: usize,
    /// Buckets that change their instance at a time.
    pub moves_at_once: usize,
    /// A bucket whose flows do not get rules for so long stays where it is, for now.
    pub move_limit: Nanos,
    /// How often the switch's counters are read.
    pub statistics_every: Nanos,
    /// How often it is looked at whether a bucket should have another instance.
    pub rebalance_every: Nanos,
    /// How often a marker is sent while something is to be proven.
    pub marker_every: Nanos,
    /// A flow without a packet for so long has ended, by its protocol. Each is more than the switch's counters lag.
    pub idle: Timeouts,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            setup: FlowSetup::Proactive,
            rule_limit: 100_000,
            flow_limit: 1_000_000,
            queue_limit: 4096,
            inject_limit: 1024,
            moves_at_once: 4,
            move_limit: Nanos::from_secs(1),
            statistics_every: Nanos::from_millis(500),
            rebalance_every: Nanos::from_millis(10),
            marker_every: Nanos::from_micros(500),
            idle: Timeouts::all(Nanos::from_secs(60)),
        }
    }
}

/// Exact rules kept for flows whose bucket is to move, as a share of all: one in 16.
const MOVE_SHARE: usize = 16;
/// Flows looked at in one tick, for their end and for a rule.
const TICK_FLOWS: usize = 256;
/// After a rule was refused no exact rules are written for so long.
const REFUSED_PAUSE: Nanos = Nanos::from_millis(100);
/// So long after the switch refused a rule that no flow can do without, all rules are compared, and written again where they lack.
const COMPARE_PAUSE: Nanos = Nanos::from_millis(200);
/// Questions whose answers are still expected, and rules whose last counters are.
const OPEN_LIMIT: usize = 65_536;

/// What of an instance counts for scheduling.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct InstanceTerms {
    /// Whether it takes new flows.
    pub takes_flows: bool,
    /// What it can process, in the unit of the service's metric.
    pub capacity: f32,
    /// What it is given, likewise.
    pub load: f32,
    /// Its weight out of 256.
    pub weight: u16,
    /// Since when it has taken new flows.
    pub active_since: Nanos,
}

/// What was counted for an instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotFigures {
    /// Flows that it has now.
    pub live_flows: u64,
    /// Flows that it was given.
    pub new_flows: u64,
    /// Packets of its flows, as far as they are counted.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Probes that it has given back: [`Steering::probe`].
    pub probes_back: u64,
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Copies that came from another instance than the flow's own.
    pub mis_steered: u64,
    /// Packets of buckets without an instance that were sent on when there was one.
    pub held_packets: u64,
    /// Packets for which no instance takes flows.
    pub unserved: u64,
    /// Packets dropped because too many waited for the monitor port, or for the connection.
    pub inject_full: u64,
    /// Flows that found no place among those known.
    pub flow_limit: u64,
    /// Exact rules that were not asked for because of the limit, the queue, or a refusal before; each look counts.
    pub rule_waits: u64,
    /// Exact rules that the switch refused.
    pub refused: u64,
    /// Exact rules that it removed by itself.
    pub evicted: u64,
    /// Other errors that it sent.
    pub errors: u64,
    /// Frames on the monitor port that mean nothing here, and packets of no service.
    pub unknown_frames: u64,
    /// Buckets that were given to another instance.
    pub moved_buckets: u64,
    /// Buckets that stayed where they were because their flows got no rules: [`Settings::move_limit`].
    pub given_up_moves: u64,
    /// Flows that ended because nothing was noticed of them.
    pub ended_flows: u64,
    /// Flows whose instance failed.
    pub failed_flows: u64,
    /// Exact rules in the switch or on their way.
    pub rules: u64,
    /// Messages that wait, and rules for which the switch has not answered yet.
    pub queued: u64,
    /// Batches of exact rules that were written, each in a bundle.
    pub batches: u64,
    /// Those of them of which the switch refused a part, or all: that was written one by one.
    pub split_batches: u64,
    /// How often rules were compared after a connection was made.
    pub reconciled: u64,
    /// Rules that agreed then.
    pub agreed_rules: u64,
}

#[derive(Debug)]
struct Bucket {
    slot: Option<Slot>,
    /// The zone in which its connections are marked.
    zone: u16,
    phase: BucketPhase,
    /// Flows that have no rules of their own.
    on_bucket: BTreeSet<FlowId>,
    /// Until then it may have flows that are not known.
    unknown_until: Nanos,
    /// Flows that need rules of their own before it goes on in its move.
    caught: BTreeSet<FlowId>,
}

struct Service {
    rules: ServiceRules,
    buckets: Vec<Bucket>,
    scheduler: Scheduler,
    candidates: Candidates,
}

struct Instance {
    service: usize,
    ports: Vec<u32>,
    /// What the switch remembers of connections that are its: no other instance has or had it.
    mark: u32,
    terms: InstanceTerms,
    /// When its own rules are in force.
    epoch: u64,
    /// Whether it was attached: else it is known from rules of an earlier run alone.
    is_attached: bool,
    /// Until then one of an earlier run has time to be as it was: its buckets stay, and if it is not attached by then it is gone.
    awaited_until: Nanos,
}

/// What waits to be sent.
enum Outgoing {
    /// An exact rule, by its number.
    Pin(u64),
    /// A bucket's rule, as it is when it is sent.
    Bucket {
        service: usize,
        side: usize,
        bucket: usize,
        table: u8,
    },
    Rule(Rule),
    Delete(Rule),
    Message(Message),
    /// The barrier of a proof.
    ProofBarrier,
}

enum Link {
    Down,
    /// The rules of ours that are there, as far as they have come.
    Asking {
        xid: Option<u32>,
        found: Vec<FlowStats>,
    },
    Up,
}

/// Steers the flows of services by the rules of one switch.
pub struct Steering {
    settings: Settings,
    monitor: u32,
    services: Vec<Service>,
    instances: BTreeMap<Slot, Instance>,
    /// Instances that have failed, and when nothing that they still give is sent on any more.
    failing: BTreeMap<Slot, u64>,
    /// Until the first connection: what an earlier run may have left in the switch.
    adoption: Option<Adoption>,
    flows: BTreeMap<FlowId, Flow>,
    /// The rules of flows by their number.
    numbers: BTreeMap<u64, FlowId>,
    /// Rules that are being deleted, and what was counted of them.
    ending: BTreeMap<u64, (Slot, u64, u64)>,
    next_number: u64,
    next_mark: u32,
    next_zone: u16,
    /// Flows without rules by their packets.
    waiting: BTreeSet<(u64, FlowId)>,
    outbox: VecDeque<Outgoing>,
    /// Rules that were sent together, until the switch has answered.
    batch: Option<Batch>,
    /// Whether the switch has not shown that it knows no bundles, since the connection was made.
    takes_batches: bool,
    /// So many in front of what waits are of a batch that was refused, and go one by one.
    alone: usize,
    injections: VecDeque<Vec<u8>>,
    prover: Prover,
    proof_barrier: Option<u32>,
    moves: Vec<Move>,
    link: Link,
    /// Exact rules that were sent, by transaction.
    sent: BTreeMap<u32, u64>,
    statistics: Option<u32>,
    statistics_at: Nanos,
    rebalance_at: Nanos,
    pins_closed_until: Nanos,
    /// When rules are to be compared, because some were refused.
    compare_at: Option<Nanos>,
    cursor: Option<FlowId>,
    slots: BTreeMap<Slot, SlotFigures>,
    fallbacks: Vec<CountedFallback>,
    figures: Figures,
}

/// What happens to packets of an uplink that are of no service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fallback {
    /// The uplink's port.
    pub port: u32,
    /// IP, or what is not.
    pub family: Family,
    /// The port by which they leave; dropped where there is none.
    pub to: Option<u32>,
}

/// A fallback, and what its rule was said to have counted.
#[derive(Clone, Copy, Debug)]
struct CountedFallback {
    of: Fallback,
    last: u64,
    packets: u64,
}

impl Steering {
    /// Nothing is known and nothing is connected. `monitor`: the switch's number of the monitor port, whose other end is
    /// ours.
    pub fn new(settings: Settings, services: Vec<(ServiceRules, Scheduler)>, monitor: u32) -> Steering {
        let services = services.into_iter().map(|(rules, scheduler)| Service {
            buckets: (0..match settings.setup {
                FlowSetup::Proactive => rules.spread.buckets(),
                // All flows come to us: there is one rule for them.
                FlowSetup::Reactive => 1,
            })
                .map(|_| Bucket {
                    slot: None,
                    zone: 0,
                    phase: BucketPhase::Steady,
                    on_bucket: BTreeSet::new(),
                    unknown_until: Nanos::ZERO,
                    caught: BTreeSet::new(),
                })
                .collect(),
            rules,
            scheduler,
            candidates: Candidates::new(),
        });
        Steering {
            monitor,
            services: services.collect(),
            instances: BTreeMap::new(),
            failing: BTreeMap::new(),
            adoption: None,
            flows: BTreeMap::new(),
            numbers: BTreeMap::new(),
            ending: BTreeMap::new(),
            next_number: 1,
            next_mark: 1,
            next_zone: 0,
            waiting: BTreeSet::new(),
            outbox: VecDeque::new(),
            batch: None,
            takes_batches: true,
            alone: 0,
            injections: VecDeque::new(),
            prover: Prover::new(settings.marker_every),
            proof_barrier: None,
            moves: Vec::new(),
            link: Link::Down,
            sent: BTreeMap::new(),
            statistics: None,
            statistics_at: Nanos::ZERO,
            rebalance_at: Nanos::ZERO,
            pins_closed_until: Nanos::ZERO,
            compare_at: None,
            cursor: None,
            slots: BTreeMap::new(),
            fallbacks: Vec::new(),
            figures: Figures::default(),
            settings,
        }
    }

    /// Says what happens to packets that are of no service, from now on.
    pub fn set_fallbacks(&mut self, fallbacks: &[Fallback]) {
        let gone = self.fallback_rules().collect::<Vec<_>>();
        let counted = |of: &Fallback| {
            let before = self
                .fallbacks
                .iter()
                .find(|before| (before.of.port, before.of.family) == (of.port, of.family));
            CountedFallback {
                of: *of,
                last: before.map_or(0, |before| before.last),
                packets: before.map_or(0, |before| before.packets),
            }
        };
        self.fallbacks = fallbacks.iter().map(counted).collect();
        let rules = self.fallback_rules().collect::<Vec<_>>();
        // A rule of the same match takes the place of the old one.
        for rule in gone {
            if !rules
                .iter()
                .any(|new| (new.priority, &new.matches) == (rule.priority, &rule.matches))
            {
                self.queue(Outgoing::Delete(rule));
            }
        }
        rules
            .into_iter()
            .for_each(|rule| self.queue(Outgoing::Rule(rule)));
    }

    fn fallback_rules(&self) -> impl Iterator<Item = Rule> + '_ {
        let numbered = self.fallbacks.iter().enumerate();
        numbered.map(|(index, fallback)| {
            let Fallback { port, family, to } = fallback.of;
            fallback_rule(index, port, family, to)
        })
    }

    /// Packets that a fallback's rules were said to have met, in the order in which they were given.
    pub fn fallback_packets(&self) -> impl Iterator<Item = (Fallback, u64)> + '_ {
        self.fallbacks
            .iter()
            .map(|fallback| (fallback.of, fallback.packets))
    }

    // Instances.

    /// An instance of that service is at these ports of the switch, one per data port. It takes no flows yet.
    pub fn attach(&mut self, slot: Slot, service: model::ServiceId, ports: Vec<u32>) {
        let Some(service) = self.services.iter().position(|of| of.rules.id == service) else {
            return;
        };
        let epoch = self.prover.want();
        if let Some(instance) = self.instances.get_mut(&slot).filter(|of| !of.is_attached) {
            instance.is_attached = true;
            instance.epoch = epoch;
            return;
        }
        let instance = Instance {
            service,
            is_attached: true,
            awaited_until: Nanos::ZERO,
            ports,
            mark: self.next_mark,
            terms: InstanceTerms::default(),
            epoch,
        };
        // 0 is the mark of connections without one.
        self.next_mark = self.next_mark.checked_add(1).unwrap_or(1);
        self.instances.insert(slot, instance);
        for rule in self.rules_of(slot) {
            self.queue(Outgoing::Rule(rule));
        }
    }

    /// What of an instance counts from now on.
    pub fn set_terms(&mut self, slot: Slot, terms: InstanceTerms) {
        if let Some(instance) = self.instances.get_mut(&slot) {
            instance.terms = terms;
            if terms.takes_flows {
                instance.awaited_until = Nanos::ZERO;
            }
        }
    }

    /// Sends a probe to a data port of the instance. What the instance gives back of it is counted, and leaves by no uplink.
    pub fn probe(&mut self, slot: Slot, data_port: u8) {
        self.inject(Tag::Instance(slot, data_port).put(&probe_frame()));
    }

    /// Whether the rules of an instance are in force: its frames go where they should.
    pub fn is_in_force(&self, slot: Slot) -> bool {
        let of = self.instances.get(&slot);
        matches!(self.link, Link::Up) && of.is_some_and(|of| self.prover.is_proven(of.epoch))
    }

    /// Asks for a proof that what was written up to now is in force; [`Steering::is_proven`] tells of it.
    pub fn want_proof(&mut self) -> u64 {
        self.prover.want()
    }

    /// Whether it is.
    pub fn is_proven(&self, proof: u64) -> bool {
        matches!(self.link, Link::Up) && self.queued() == 0 && self.prover.is_proven(proof)
    }

    /// Replaces the scheduler of a service. Flows and buckets stay where they are until it moves buckets.
    pub fn set_scheduler(&mut self, service: ServiceId, scheduler: Scheduler) {
        if let Some(of) = self.services.iter_mut().find(|of| of.rules.id == service) {
            of.scheduler = scheduler;
        }
    }

    /// Gives up where these flows are: each is a new one with its next packet, and has the instance of its bucket.
    pub fn purge(&mut self, is_meant: impl Fn(&FlowId, Slot) -> bool) {
        let meant: Vec<FlowId> = (self.flows.iter())
            .filter(|(id, flow)| is_meant(id, flow.slot))
            .map(|(id, _)| *id)
            .collect();
        meant.into_iter().for_each(|id| self.end(id));
    }

    /// Whether new flows may still be given to the instance.
    pub fn may_get_flows(&self, slot: Slot) -> bool {
        let has = |bucket: &Bucket| bucket.slot == Some(slot) || self.moves_to(slot);
        self.instances
            .get(&slot)
            .and_then(|instance| self.services.get(instance.service))
            .is_some_and(|service| service.buckets.iter().any(has))
    }

    /// Whether the instance has no flow and gets none.
    pub fn is_drained(&self, slot: Slot) -> bool {
        self.slot_figures(slot).live_flows == 0 && !self.may_get_flows(slot)
    }

    /// The instance has failed, which does not say that it is dead: what it still gives is sent on no more. When that is in
    /// force it is gone, and not before: others may have its flows then.
    pub fn fail(&mut self, slot: Slot) {
        if !self.instances.contains_key(&slot) || self.failing.contains_key(&slot) {
            return;
        }
        let rules = self.rules_of(slot).into_iter();
        for rule in rules.filter(Rule::is_return) {
            self.queue(Outgoing::Delete(rule));
        }
        let silent = self.prover.want();
        self.failing.insert(slot, silent);
    }

    /// Whether it has failed and has not gone yet.
    pub fn is_failing(&self, slot: Slot) -> bool {
        self.failing.contains_key(&slot)
    }

    /// The instance is gone. Flows that it has left are given to others when they next show themselves. One that has failed goes by
    /// itself: see [`Steering::fail`].
    pub fn remove(&mut self, slot: Slot, now: Nanos) {
        if !self.failing.contains_key(&slot) {
            self.forget(slot, now);
        }
    }

    /// The instance is gone, also one that has failed while the switch could not be told.
    pub(crate) fn forget(&mut self, slot: Slot, now: Nanos) {
        let rules = self.rules_of(slot);
        self.failing.remove(&slot);
        let lost: Vec<FlowId> = (self.flows.iter())
            .filter(|(_, flow)| flow.slot == slot)
            .map(|(id, _)| *id)
            .collect();
        self.figures.failed_flows += lost.len() as u64;
        lost.into_iter().for_each(|id| self.end(id));
        self.leave_moves(slot, now);
        let Some(instance) = self.instances.remove(&slot) else {
            return;
        };
        let mut changed = Vec::new();
        if let Some(service) = self.services.get_mut(instance.service) {
            for (index, bucket) in service.buckets.iter_mut().enumerate() {
                if bucket.slot == Some(slot) {
                    bucket.slot = None;
                    changed.push(index);
                }
            }
        }
        changed
            .into_iter()
            .for_each(|bucket| self.queue_bucket(instance.service, bucket));
        rules
            .into_iter()
            .for_each(|rule| self.queue(Outgoing::Delete(rule)));
        self.rebalance_at = now;
    }

    // The connection.

    /// The connection is up: what the switch has of ours is compared with what it should have.
    pub fn connected(&mut self) {
        self.disconnected();
        self.link = Link::Asking {
            xid: None,
            found: Vec::new(),
        };
    }

    /// The connection is gone. The switch goes on by the rules that it has.
    pub fn disconnected(&mut self) {
        self.link = Link::Down;
        self.compare_at = None;
        self.outbox.clear();
        self.batch = None;
        self.takes_batches = true;
        self.alone = 0;
        self.sent.clear();
        self.ending.clear();
        self.statistics = None;
        self.statistics_at = Nanos::ZERO;
        self.proof_barrier = None;
        self.prover.restart();
    }

    /// What the switch said.
    pub fn message(&mut self, xid: u32, message: &Message, now: Nanos) {
        if self.batch_answered(xid, message) {
            return;
        }
        match message {
            Message::BarrierReply if self.proof_barrier == Some(xid) => {
                self.proof_barrier = None;
                self.prover.written(now);
            }
            Message::Error(error) => self.refused(xid, error, now),
            Message::FlowRemoved(removed) => self.removed(removed),
            Message::PacketIn(packet) if self.settings.setup == FlowSetup::Reactive => {
                self.packet_in(packet, now);
            }
            Message::MultipartReply {
                more,
                reply: MultipartReply::Flows(flows),
            } => self.flow_statistics(xid, flows, *more, now),
            _ => {}
        }
    }

    fn flow_statistics(&mut self, xid: u32, flows: &[FlowStats], more: bool, now: Nanos) {
        if self.statistics == Some(xid) {
            flows.iter().for_each(|of| self.counted(of, now));
            if !more {
                self.statistics = None;
                self.statistics_at = Nanos(now.0 + self.settings.statistics_every.0);
            }
            return;
        }
        if let Link::Asking {
            xid: Some(asked),
            found,
        } = &mut self.link
            && *asked == xid
        {
            // Twice what we may have: the rest is not ours, whatever its cookie says.
            let limit = 2 * self.settings.rule_limit + OPEN_LIMIT;
            let room = limit.saturating_sub(found.len());
            found.extend(flows.iter().take(room).cloned());
            if !more {
                let found = std::mem::take(found);
                self.link = Link::Up;
                if let Some(adoption) = self.adoption.take() {
                    self.take_over(&adoption, &found, now);
                }
                self.reconcile(&found, now);
            }
        }
    }

    fn counted(&mut self, of: &FlowStats, now: Nanos) {
        let fallback = fallback_number(of.cookie).and_then(|number| self.fallbacks.get_mut(number));
        if let Some(fallback) = fallback {
            // A switch that was started again has begun to count anew.
            fallback.packets += of.packets.checked_sub(fallback.last).unwrap_or(of.packets);
            fallback.last = of.packets;
            return;
        }
        let Some((flow, rule)) = pin_number(of.cookie).and_then(|number| self.rule_mut(number)) else {
            return;
        };
        let (packets, bytes) = (
            of.packets.saturating_sub(flow.rules[rule].packets),
            of.bytes.saturating_sub(flow.rules[rule].bytes),
        );
        // Rules of both directions are in one reading: what the second one adds is of the same span.
        let span = now.since(flow.counted_at);
        if span > Nanos::ZERO {
            flow.pps = packets as f32 / span.as_secs_f64() as f32;
            flow.counted_at = now;
        }
        if packets == 0 {
            return;
        }
        flow.seen = now;
        flow.rules[rule].packets = of.packets;
        flow.rules[rule].bytes = of.bytes;
        let slot = flow.slot;
        let sum = self.slots.entry(slot).or_default();
        sum.packets += packets;
        sum.bytes += bytes;
    }

    /// The flow of that rule, and the rule's place in it.
    fn rule_mut(&mut self, number: u64) -> Option<(&mut Flow, usize)> {
        let flow = self.flows.get_mut(self.numbers.get(&number)?)?;
        let place = flow.rules.iter().position(|rule| rule.number == number)?;
        Some((flow, place))
    }

    fn refused(&mut self, xid: u32, error: &ErrorMessage, now: Nanos) {
        let Some(number) = self.sent.remove(&xid) else {
            self.figures.errors += 1;
            if error.kind == ErrorMessage::FLOW_MOD_FAILED {
                // Without it packets go nowhere.
                self.compare_at = self.compare_at.or(Some(Nanos(now.0 + COMPARE_PAUSE.0)));
            }
            return;
        };
        self.figures.refused += 1;
        self.pins_closed_until = Nanos(now.0 + REFUSED_PAUSE.0);
        self.forget_rule(
            number,
            RuleState::Refused {
                kind: error.kind,
                code: error.code,
            },
        );
    }

    fn removed(&mut self, removed: &FlowRemoved) {
        let Some(number) = pin_number(removed.cookie) else {
            return;
        };
        if let Some((slot, packets, bytes)) = self.ending.remove(&number) {
            let sum = self.slots.entry(slot).or_default();
            sum.packets += removed.packets.saturating_sub(packets);
            sum.bytes += removed.bytes.saturating_sub(bytes);
            return;
        }
        let Some(id) = self.numbers.get(&number).copied() else {
            return;
        };
        if removed.reason != FlowRemovedReason::Deleted {
            self.figures.evicted += 1;
        }
        self.forget_rule(number, RuleState::Evicted);
        self.pin(id);
    }

    /// A rule of a flow is not there.
    fn forget_rule(&mut self, number: u64, state: RuleState) {
        let Some(id) = self.numbers.remove(&number) else {
            return;
        };
        let Some(flow) = self.flows.get_mut(&id) else {
            return;
        };
        if let Some(place) = flow.rules.iter().position(|rule| rule.number == number) {
            let rule = flow.rules.swap_remove(place);
            flow.packets += rule.packets;
            flow.bytes += rule.bytes;
        }
        flow.state = state;
        self.waiting.insert((flow.packets, id));
        let place = (flow.service, flow.bucket);
        if let Some(bucket) = self.bucket_mut(place) {
            bucket.on_bucket.insert(id);
            if bucket.phase == BucketPhase::Marking {
                bucket.caught.insert(id);
            }
        }
    }

    fn bucket_mut(&mut self, (service, bucket): (usize, usize)) -> Option<&mut Bucket> {
        self.services.get_mut(service)?.buckets.get_mut(bucket)
    }

    fn bucket(&self, (service, bucket): (usize, usize)) -> Option<&Bucket> {
        self.services.get(service)?.buckets.get(bucket)
    }

    /// What the switch says of the flows that its hardware has; [`None`] where that is not known. One that is not among them
    /// is forwarded in software.
    pub fn set_offloaded(&mut self, found: Option<&[DatapathFlow]>) {
        for flow in self.flows.values_mut() {
            flow.offload = found.map(|_| Offload::None);
        }
        for (of, is_answering) in (found.unwrap_or_default().iter()).flat_map(|of| [(of, false), (of, true)])
        {
            let Some(flow) = self.flows.get_mut(&FlowId::new(&of.tuple, is_answering)) else {
                continue;
            };
            let sides = self
                .services
                .get(flow.service)
                .map(|of| of.rules.sides.as_slice());
            let is_its = |rule: &FlowRule| {
                let side = sides.and_then(|sides| sides.get(rule.side));
                side.is_some_and(|side| side.is_answering == is_answering)
            };
            if flow.rules.iter().any(is_its) {
                flow.offload = Some(match (flow.offload, of.offload) {
                    (None | Some(Offload::None), offload) => offload,
                    (Some(Offload::Full), Offload::Full) => Offload::Full,
                    _ => Offload::Partial,
                });
            }
        }
    }

    // Packets.

    /// A frame came out of the monitor port.
    pub fn monitor(&mut self, frame: &[u8], now: Nanos) {
        match Tag::take(frame) {
            Some((Tag::Marked(round), _)) => self.prover.marked(round),
            Some((Tag::Instance(slot, _), packet)) if is_probe(&packet) => {
                self.slots.entry(slot).or_default().probes_back += 1;
            }
            Some((Tag::Instance(slot, uplink), packet)) => self.copied(slot, uplink, &packet, now),
            Some((Tag::Held(uplink), packet)) => self.held(uplink, &packet, now),
            Some((Tag::Marker, _)) | None => self.figures.unknown_frames += 1,
        }
    }

    /// The service, the side and the flow of a packet that was received on an uplink.
    fn find(&self, uplink: u8, packet: &[u8]) -> Option<(usize, usize, FlowId, usize)> {
        let tuple = seen_by_switch(packet)?;
        self.find_tuple(|side| side.uplink == uplink, &tuple)
    }

    /// The same of a packet with these addresses, as it travels, where such sides are its.
    fn find_tuple(
        &self,
        is_its: impl Fn(&Side) -> bool,
        tuple: &Tuple,
    ) -> Option<(usize, usize, FlowId, usize)> {
        self.services.iter().enumerate().find_map(|(index, service)| {
            let takes = |side: &Side| is_its(side) && side.takes(tuple);
            let place = service.rules.sides.iter().position(takes)?;
            let is_answering = service.rules.sides.get(place)?.is_answering;
            let bucket = match self.settings.setup {
                FlowSetup::Proactive => service.rules.spread.bucket(tuple, is_answering),
                FlowSetup::Reactive => 0,
            };
            Some((index, place, FlowId::new(tuple, is_answering), bucket))
        })
    }

    fn copied(&mut self, slot: Slot, uplink: u8, packet: &[u8], now: Nanos) {
        let Some((service, _, id, bucket)) = self.find(uplink, packet) else {
            self.figures.unknown_frames += 1;
            return;
        };
        if !self.flows.contains_key(&id) {
            if !self.instances.contains_key(&slot) {
                return;
            }
            self.enter(id, (service, bucket), slot, now);
        }
        if let Some(of) = self.count(id, packet.len(), now)
            && of != slot
        {
            self.figures.mis_steered += 1;
        }
    }

    fn held(&mut self, uplink: u8, packet: &[u8], now: Nanos) {
        let Some((service, side, id, bucket)) = self.find(uplink, packet) else {
            self.figures.unknown_frames += 1;
            return;
        };
        if !self.flows.contains_key(&id) {
            let slot = self.bucket((service, bucket)).and_then(|bucket| bucket.slot);
            let Some(slot) = slot else {
                self.figures.unserved += 1;
                return;
            };
            self.enter(id, (service, bucket), slot, now);
        }
        let slot = match self.count(id, packet.len(), now) {
            Some(slot) => slot,
            // It found no place among the flows known.
            None => match self.bucket((service, bucket)).and_then(|bucket| bucket.slot) {
                Some(slot) => slot,
                None => return,
            },
        };
        let number = self.services.get(service).and_then(|of| of.rules.sides.get(side));
        let number = number.map_or(0, |side| side.data_port);
        self.figures.held_packets += 1;
        self.inject(Tag::Instance(slot, number).put(packet));
    }

    fn inject(&mut self, frame: Vec<u8>) {
        if self.injections.len() >= self.settings.inject_limit {
            self.figures.inject_full += 1;
            return;
        }
        self.injections.push_back(frame);
    }

    /// Counts a packet that came to us, and gives its flow's instance.
    fn count(&mut self, id: FlowId, bytes: usize, now: Nanos) -> Option<Slot> {
        let flow = self.flows.get_mut(&id)?;
        flow.seen = now;
        if self.waiting.remove(&(flow.packets, id)) {
            self.waiting.insert((flow.packets + 1, id));
        }
        flow.packets += 1;
        flow.bytes += bytes as u64;
        let sum = self.slots.entry(flow.slot).or_default();
        sum.packets += 1;
        sum.bytes += bytes as u64;
        Some(flow.slot)
    }

    fn enter(&mut self, id: FlowId, place: (usize, usize), slot: Slot, now: Nanos) {
        if self.flows.len() >= self.settings.flow_limit {
            self.figures.flow_limit += 1;
            let until = Nanos(now.0 + self.settings.idle.of_protocol(protocol_of(&id)).0);
            if let Some(bucket) = self.bucket_mut(place) {
                bucket.unknown_until = until;
            }
            return;
        }
        let Some(bucket) = self.bucket_mut(place) else {
            return;
        };
        bucket.on_bucket.insert(id);
        self.flows.insert(id, Flow::on_bucket(place, slot, now));
        self.waiting.insert((0, id));
        let sum = self.slots.entry(slot).or_default();
        sum.new_flows += 1;
        sum.live_flows += 1;
        self.pin(id);
    }

    /// Asks for the exact rules of a flow that has none, where it may have some now.
    fn pin(&mut self, id: FlowId) {
        let Some(flow) = self.flows.get(&id) else { return };
        let (place, packets) = ((flow.service, flow.bucket), flow.packets);
        if flow.state.has_rules() {
            return;
        }
        let Some(service) = self.services.get(place.0) else {
            return;
        };
        let has = |side: usize| flow.rules.iter().any(|rule| rule.side == side);
        let missing: Vec<usize> = (service.rules.sides.iter().enumerate())
            .filter(|(index, side)| side.takes(&id.tuple(side.is_answering)) && !has(*index))
            .map(|(index, _)| index)
            .collect();
        let is_caught = (service.buckets.get(place.1)).is_some_and(|bucket| bucket.caught.contains(&id));
        let reserve = match is_caught {
            true => 0,
            false => self.settings.rule_limit / MOVE_SHARE,
        };
        let has_room = matches!(self.link, Link::Up)
            && self.queued() < self.settings.queue_limit
            && self.numbers.len() + missing.len() + reserve <= self.settings.rule_limit;
        if !has_room {
            self.figures.rule_waits += 1;
            return;
        }
        self.waiting.remove(&(packets, id));
        if let Some(bucket) = self.bucket_mut(place) {
            bucket.on_bucket.remove(&id);
        }
        for side in missing {
            let number = self.next_number;
            self.next_number += 1;
            self.numbers.insert(number, id);
            self.outbox.push_back(Outgoing::Pin(number));
            if let Some(flow) = self.flows.get_mut(&id) {
                flow.state = RuleState::Queued;
                flow.rules.push(FlowRule {
                    number,
                    side,
                    packets: 0,
                    bytes: 0,
                });
            }
        }
    }

    /// The rule of that number as it should be.
    fn pin_of(&self, number: u64) -> Option<Rule> {
        let id = self.numbers.get(&number)?;
        let flow = self.flows.get(id)?;
        let place = flow.rules.iter().find(|rule| rule.number == number)?.side;
        let side = self.services.get(flow.service)?.rules.sides.get(place)?;
        let ports = &self.instances.get(&flow.slot)?.ports;
        let tuple = id.tuple(side.is_answering);
        Some(pin_rule(side, &tuple, number, ports))
    }

    /// A bucket's rule in a table as it should be.
    fn bucket_of(&self, service: usize, side: usize, bucket: usize, table: u8) -> Option<Rule> {
        let of = self.services.get(service)?;
        if self.settings.setup == FlowSetup::Reactive {
            return packet_in_rule(&of.rules, service, side).filter(|rule| rule.table == table);
        }
        let state = of.buckets.get(bucket)?;
        let instance = state
            .slot
            .and_then(|slot| Some((slot, self.instances.get(&slot)?)));
        let to = instance.map(|(slot, instance)| (slot, instance.ports.as_slice()));
        let way = match state.phase {
            BucketPhase::Steady => BucketWay::Plain,
            BucketPhase::Marking | BucketPhase::Asking => BucketWay::Tracked {
                zone: state.zone,
                mark: instance.map(|(_, instance)| instance.mark),
            },
        };
        let rules = bucket_rules(&of.rules, service, side, bucket, to, way, self.monitor)?;
        rules.into_iter().find(|rule| rule.table == table)
    }

    /// The rules of an instance that do not change while it is there.
    fn rules_of(&self, slot: Slot) -> Vec<Rule> {
        let Some(instance) = self.instances.get(&slot) else {
            return Vec::new();
        };
        let Some(service) = self.services.get(instance.service) else {
            return Vec::new();
        };
        let (of, ports) = (&service.rules, &instance.ports);
        let mut rules = instance_rules(slot, ports, &of.uplinks, self.monitor);
        if self.failing.contains_key(&slot) {
            rules.retain(|rule| !rule.is_return());
        }
        if self.settings.setup == FlowSetup::Proactive {
            rules.extend(marked_rules(slot, instance.mark, ports, &of.sides, self.monitor));
        }
        rules
    }

    /// The flow has ended, or has to begin anew: its rules go.
    fn end(&mut self, id: FlowId) {
        let rules: Vec<Rule> = self
            .flows
            .get(&id)
            .map(|flow| {
                flow.rules
                    .iter()
                    .filter_map(|rule| self.pin_of(rule.number))
                    .collect()
            })
            .unwrap_or_default();
        rules
            .into_iter()
            .for_each(|rule| self.queue(Outgoing::Delete(rule)));
        let Some(flow) = self.flows.remove(&id) else {
            return;
        };
        for rule in &flow.rules {
            self.numbers.remove(&rule.number);
            if self.ending.len() < OPEN_LIMIT {
                self.ending
                    .insert(rule.number, (flow.slot, rule.packets, rule.bytes));
            }
        }
        self.waiting.remove(&(flow.packets, id));
        if let Some(bucket) = self.bucket_mut((flow.service, flow.bucket)) {
            bucket.on_bucket.remove(&id);
            bucket.caught.remove(&id);
        }
        let sum = self.slots.entry(flow.slot).or_default();
        sum.live_flows = sum.live_flows.saturating_sub(1);
    }

    fn packet_in(&mut self, packet: &PacketIn, now: Nanos) {
        let Some(side_port) = packet.in_port() else { return };
        let uplink = self.services.iter().find_map(|service| {
            let side = service.rules.sides.iter().find(|side| side.port == side_port)?;
            Some(side.uplink)
        });
        let Some((service, side, id, bucket)) = uplink.and_then(|uplink| self.find(uplink, &packet.data))
        else {
            self.figures.unknown_frames += 1;
            return;
        };
        if !self.flows.contains_key(&id) {
            let Some(slot) = self.pick(service, &id, now) else {
                self.figures.unserved += 1;
                return;
            };
            self.enter(id, (service, bucket), slot, now);
        }
        let Some(slot) = self.count(id, packet.data.len(), now) else {
            return;
        };
        let number = self.services.get(service).and_then(|of| of.rules.sides.get(side));
        let number = number.map_or(0, |side| side.data_port);
        let Some(instance) = self.instances.get(&slot) else {
            return;
        };
        if self.queued() >= 2 * self.settings.queue_limit {
            self.figures.inject_full += 1;
            return;
        }
        self.outbox
            .push_back(Outgoing::Message(Message::PacketOut(PacketOut {
                in_port: side_port,
                actions: vec![Action::output(data_port(&instance.ports, number))],
                data: packet.data.clone(),
            })));
    }

    // Time, and what goes out.

    /// Looks at the time: ends flows, gives rules to those that wait, reads counters, proves, and moves buckets.
    pub fn tick(&mut self, now: Nanos) {
        self.end_idle_flows(now);
        if !matches!(self.link, Link::Up) {
            return;
        }
        // What waits to be sent is sent first.
        if self.compare_at.is_some_and(|at| now >= at) && self.queued() == 0 {
            self.connected();
            return;
        }
        while let Some(step) = self.prover.next(now) {
            match step {
                Step::Separate => self.outbox.push_back(Outgoing::Message(Message::BarrierRequest)),
                Step::Write(round) => {
                    self.outbox
                        .push_back(Outgoing::Rule(marker_rule(self.monitor, round)));
                    self.outbox.push_back(Outgoing::ProofBarrier);
                }
                // Another one follows if this one finds no room.
                Step::Mark => self.inject(marker_frame()),
            }
        }
        let silent = |(slot, silent): (&Slot, &u64)| self.prover.is_proven(*silent).then_some(*slot);
        let gone: Vec<Slot> = self.failing.iter().filter_map(silent).collect();
        gone.into_iter().for_each(|slot| self.forget(slot, now));
        let is_absent = |of: &Instance| !of.is_attached && now >= of.awaited_until;
        let absent = self.instances.iter().filter(|(_, of)| is_absent(of));
        let absent: Vec<Slot> = absent.map(|(slot, _)| *slot).collect();
        absent.into_iter().for_each(|slot| self.forget(slot, now));
        if now >= self.pins_closed_until {
            let heaviest: Vec<FlowId> = self
                .waiting
                .iter()
                .rev()
                .take(TICK_FLOWS)
                .map(|(_, id)| *id)
                .collect();
            heaviest.into_iter().for_each(|id| self.pin(id));
        }
        if self.statistics.is_none() && now >= self.statistics_at {
            let filter = FlowFilter {
                cookie: OWNER,
                cookie_mask: OWNER_MASK,
                ..FlowFilter::default()
            };
            self.statistics_at = Nanos(u64::MAX);
            let ask = Message::MultipartRequest(MultipartRequest::Flows(filter));
            self.outbox.push_back(Outgoing::Message(ask));
        }
        if self.settings.setup == FlowSetup::Proactive {
            self.step_moves(now);
            if now >= self.rebalance_at {
                self.rebalance_at = Nanos(now.0 + self.settings.rebalance_every.0);
                self.rebalance(now);
            }
        }
    }

    fn end_idle_flows(&mut self, now: Nanos) {
        // Deletions wait for the switch too; without it flows have not ended, they are only not seen.
        if !matches!(self.link, Link::Up) || self.queued() >= self.settings.queue_limit {
            return;
        }
        let from = self
            .cursor
            .map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        let looked: Vec<(FlowId, bool)> = (self.flows.range((from, std::ops::Bound::Unbounded)))
            .take(TICK_FLOWS)
            .map(|(id, flow)| {
                let idle = self.settings.idle.of_protocol(protocol_of(id));
                (*id, now.0.saturating_sub(flow.seen.0) > idle.0)
            })
            .collect();
        self.cursor = looked.last().map(|(id, _)| *id);
        for (id, _) in looked.into_iter().filter(|(_, has_ended)| *has_ended) {
            self.figures.ended_flows += 1;
            self.end(id);
        }
    }

    /// Gives what waits to `send`, in order, until it answers [`None`]: there is no room now. It answers a message's
    /// transaction id otherwise.
    pub fn send(&mut self, mut send: impl FnMut(&Message) -> Option<u32>) {
        if let Link::Asking { xid, .. } = &mut self.link {
            if xid.is_none() {
                let filter = FlowFilter {
                    cookie: OWNER,
                    cookie_mask: OWNER_MASK,
                    ..FlowFilter::default()
                };
                // Open vSwitch tells of packets and of rules that are gone to those who want whole packets.
                let want = Message::SetConfig {
                    flags: 0,
                    miss_send_bytes: WHOLE_PACKET,
                };
                *xid = send(&want)
                    .and_then(|_| send(&Message::MultipartRequest(MultipartRequest::Flows(filter))));
            }
            return;
        }
        loop {
            self.begin_batch();
            if self.batch.is_some() {
                self.send_batch(&mut send);
                return;
            }
            let Some(next) = self.outbox.front() else { return };
            let message = self.message_of(next);
            let xid = match message.as_ref().map(&mut send) {
                Some(None) => return,
                Some(Some(xid)) => Some(xid),
                None => None,
            };
            self.alone = self.alone.saturating_sub(1);
            match (self.outbox.pop_front(), xid) {
                (Some(Outgoing::Pin(number)), Some(xid)) => self.pin_sent(number, xid),
                (Some(Outgoing::Pin(number)), None) => self.forget_rule(number, RuleState::OnBucket),
                (Some(Outgoing::ProofBarrier), _) => self.proof_barrier = xid,
                (Some(Outgoing::Message(Message::MultipartRequest(_))), _) => self.statistics = xid,
                _ => {}
            }
        }
    }

    /// What is sent for it; [`None`] where it is out of date.
    fn message_of(&self, next: &Outgoing) -> Option<Message> {
        match next {
            Outgoing::Pin(number) => self.pin_of(*number).map(|rule| rule.add()),
            Outgoing::Bucket {
                service,
                side,
                bucket,
                table,
            } => {
                let rule = self.bucket_of(*service, *side, *bucket, *table);
                rule.map(|rule| rule.add())
            }
            Outgoing::Rule(rule) => Some(rule.add()),
            Outgoing::Delete(rule) => Some(rule.delete()),
            Outgoing::Message(message) => Some(message.clone()),
            Outgoing::ProofBarrier => Some(Message::BarrierRequest),
        }
    }

    fn pin_sent(&mut self, number: u64, xid: u32) {
        self.pin_written(number);
        if self.sent.len() >= OPEN_LIMIT {
            self.sent.pop_first();
        }
        self.sent.insert(xid, number);
    }

    fn pin_written(&mut self, number: u64) {
        let epoch = self.prover.epoch();
        if let Some((flow, _)) = self.rule_mut(number) {
            flow.state = RuleState::Installed;
            flow.epoch = epoch;
        }
    }

    /// The next frame for the monitor port.
    pub fn next_injection(&mut self) -> Option<Vec<u8>> {
        self.injections.pop_front()
    }

    /// What is queued while there is no connection would be out of date: all is compared when there is one.
    fn queue(&mut self, next: Outgoing) {
        if matches!(self.link, Link::Up) {
            self.outbox.push_back(next);
        }
    }

    fn queue_bucket(&mut self, service: usize, bucket: usize) {
        let sides = self.services.get(service).map_or(0, |of| of.rules.sides.len());
        // What packets meet comes last: it may send them on to the other.
        for (side, table) in (0..sides).flat_map(|side| [(side, HANDOVER_TABLE), (side, TABLE)]) {
            self.queue(Outgoing::Bucket {
                service,
                side,
                bucket,
                table,
            });
        }
    }

    // Looking in.

    /// What was counted.
    pub fn figures(&self) -> Figures {
        Figures {
            rules: self.numbers.len() as u64,
            queued: self.queued() as u64,
            ..self.figures
        }
    }

    /// What was counted for an instance.
    pub fn slot_figures(&self, slot: Slot) -> SlotFigures {
        self.slots.get(&slot).copied().unwrap_or_default()
    }

    /// How many flows are known.
    pub fn flow_count(&self) -> usize {
        self.flows.len()
    }

    /// Every flow, in the order of their keys.
    pub fn flows(&self) -> impl Iterator<Item = FlowRow> + '_ {
        self.flows.iter().filter_map(|(id, flow)| {
            let service = self.services.get(flow.service)?;
            Some(flow.row(*id, service.rules.id))
        })
    }

    /// The buckets of a service by instance; those of [`None`] have none.
    pub fn buckets(&self, service: model::ServiceId) -> Vec<Option<Slot>> {
        let of = self.services.iter().find(|of| of.rules.id == service);
        of.map(|of| of.buckets.iter().map(|bucket| bucket.slot).collect())
            .unwrap_or_default()
    }

    /// Whether buckets are changing their instance.
    pub fn is_moving(&self) -> bool {
        !self.moves.is_empty()
    }

    /// Whether everything that was written is in force.
    pub fn is_settled(&self) -> bool {
        matches!(self.link, Link::Up) && self.queued() == 0 && self.moves.is_empty()
    }
}

fn protocol_of(id: &FlowId) -> u8 {
    id.tuple(false).protocol
}

/// A packet's addresses as a switch matches them: those of its own header, also in an ICMP error; ports only where the
/// protocol has ports that rules match, and none in fragments.
fn seen_by_switch(packet: &[u8]) -> Option<Tuple> {
    let (info, is_whole) = match parse(packet) {
        Parsed::Flow(info) => (info, true),
        Parsed::Fragment(fragment) => (fragment.info, false),
        Parsed::Other { .. } | Parsed::Invalid(_) => return None,
    };
    let (src, dst) = own_addresses(packet, &info)?;
    let ports = info.key.tuple(info.direction);
    let has_ports = is_whole && !info.is_icmp_error && has_ports(info.protocol);
    Some(Tuple {
        src,
        dst,
        src_port: if has_ports { ports.src_port } else { 0 },
        dst_port: if has_ports { ports.dst_port } else { 0 },
        protocol: info.protocol,
        vlan: info.vlan,
    })
}

fn own_addresses(packet: &[u8], info: &PacketInfo) -> Option<(std::net::IpAddr, std::net::IpAddr)> {
    let header = packet.get(usize::from(info.l3_offset)..)?;
    Some(match info.key {
        FlowKey::V4(_) => {
            let of = |from: usize| header.get(from..)?.first_chunk::<4>().copied();
            (of(12)?.into(), of(16)?.into())
        }
        FlowKey::V6(_) => {
            let of = |from: usize| header.get(from..)?.first_chunk::<16>().copied();
            (of(8)?.into(), of(24)?.into())
        }
    })
}
