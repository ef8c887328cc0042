//! The core: what comes from the switch goes in, what it is to do comes out.

mod adopt;
mod answers;
mod batch;
mod book;
mod counters;
mod instances;
mod moves;
mod outbox;
mod packets;
mod reconcile;
mod schedule;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use adopt::Adoption;
use answers::Link;
use book::{FlowBook, TICK_FLOWS};
use counters::Counted;
pub use counters::{Fallback, Figures, SlotFigures};
use instances::Instance;
pub use instances::InstanceTerms;
use model::{FlowSetup, Nanos, ServiceId, Slot, Timeouts};
use moves::{BucketPhase, Move};
use openflow::{FlowFilter, Message, MultipartRequest};
use outbox::{OPEN_LIMIT, Outbox, Outgoing};
use scheduling::{Candidates, Scheduler};

use crate::flows::FlowId;
use crate::prover::{Prover, Step};
use crate::rules::{OWNER, OWNER_MASK, ServiceRules, marker_frame, marker_rule};

/// Limits and times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How new flows are set up.
    pub setup: FlowSetup,
    /// Exact rules at most. At the limit new flows stay on their bucket, and those of most packets get rules first
    /// when others end.
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
    /// What a new flow is expected to bring, in the unit of the scheduler's metric; 0 where that is not known.
    flow_load: f32,
}

/// Steers the flows of services by the rules of one switch.
pub struct Steering {
    settings: Settings,
    monitor: u32,
    link: Link,
    services: Vec<Service>,
    instances: BTreeMap<Slot, Instance>,
    /// Instances that have failed, and when nothing that they still give is sent on any more.
    failing: BTreeMap<Slot, u64>,
    /// Until the first connection: what an earlier run may have left in the switch.
    adoption: Option<Adoption>,
    book: FlowBook,
    moves: Vec<Move>,
    fresh: Fresh,
    outbox: Outbox,
    /// Frames that wait for the monitor port.
    injections: VecDeque<Vec<u8>>,
    prover: Prover,
    due: Due,
    counted: Counted,
}

/// Marks and zones of connections that are given out next.
#[derive(Debug)]
struct Fresh {
    mark: u32,
    zone: u16,
}

/// When something is done next.
#[derive(Debug, Default)]
struct Due {
    /// The question for the counters of rules, while it is not answered.
    statistics: Option<u32>,
    statistics_at: Nanos,
    rebalance_at: Nanos,
    /// No exact rules are written before.
    pins_closed_until: Nanos,
    /// When rules are to be compared, because some were refused.
    compare_at: Option<Nanos>,
}

impl Steering {
    /// Nothing is known and nothing is connected. `monitor`: the switch's number of the monitor port, whose other end
    /// is ours.
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
            flow_load: 0.0,
        });
        Steering {
            monitor,
            link: Link::Down,
            services: services.collect(),
            instances: BTreeMap::new(),
            failing: BTreeMap::new(),
            adoption: None,
            book: FlowBook::new(),
            moves: Vec::new(),
            // 0 is the mark of connections without one.
            fresh: Fresh { mark: 1, zone: 0 },
            outbox: Outbox::new(),
            injections: VecDeque::new(),
            prover: Prover::new(settings.marker_every),
            due: Due::default(),
            counted: Counted::default(),
            settings,
        }
    }

    /// Asks for a proof that what was written up to now is in force; [`Steering::is_proven`] tells of it.
    pub fn want_proof(&mut self) -> u64 {
        self.prover.want()
    }

    /// Whether it is.
    pub fn is_proven(&self, proof: u64) -> bool {
        matches!(self.link, Link::Up) && self.outbox.len() == 0 && self.prover.is_proven(proof)
    }

    /// Replaces the scheduler of a service. Flows and buckets stay where they are until it moves buckets.
    pub fn set_scheduler(&mut self, service: ServiceId, scheduler: Scheduler) {
        if let Some(of) = self.services.iter_mut().find(|of| of.rules.id == service) {
            of.scheduler = scheduler;
        }
    }

    /// Says what a new flow of a service is expected to bring, in the unit of its scheduler's metric.
    pub fn set_flow_load(&mut self, service: ServiceId, load: f32) {
        if let Some(of) = self.services.iter_mut().find(|of| of.rules.id == service) {
            of.flow_load = load;
        }
    }

    fn bucket_mut(&mut self, (service, bucket): (usize, usize)) -> Option<&mut Bucket> {
        self.services.get_mut(service)?.buckets.get_mut(bucket)
    }

    fn bucket(&self, (service, bucket): (usize, usize)) -> Option<&Bucket> {
        self.services.get(service)?.buckets.get(bucket)
    }

    /// Looks at the time: ends flows, gives rules to those that wait, reads counters, proves, and moves buckets.
    pub fn tick(&mut self, now: Nanos) {
        self.end_idle_flows(now);
        if !matches!(self.link, Link::Up) {
            return;
        }
        // What waits to be sent is sent first.
        if self.due.compare_at.is_some_and(|at| now >= at) && self.outbox.len() == 0 {
            self.connected();
            return;
        }
        while let Some(step) = self.prover.next(now) {
            match step {
                Step::Separate => self
                    .outbox
                    .queue
                    .push_back(Outgoing::Message(Message::BarrierRequest)),
                Step::Write(round) => {
                    self.outbox
                        .queue
                        .push_back(Outgoing::Rule(marker_rule(self.monitor, round)));
                    self.outbox.queue.push_back(Outgoing::ProofBarrier);
                }
                Step::Mark => {
                    // Another one follows if this one finds no room.
                    let _sent = self.inject(marker_frame());
                }
            }
        }
        let silent = |(slot, silent): (&Slot, &u64)| self.prover.is_proven(*silent).then_some(*slot);
        let gone: Vec<Slot> = self.failing.iter().filter_map(silent).collect();
        gone.into_iter().for_each(|slot| self.forget(slot, now));
        let is_absent = |of: &Instance| !of.is_attached && now >= of.awaited_until;
        let absent = self.instances.iter().filter(|(_, of)| is_absent(of));
        let absent: Vec<Slot> = absent.map(|(slot, _)| *slot).collect();
        absent.into_iter().for_each(|slot| self.forget(slot, now));
        if now >= self.due.pins_closed_until {
            let heaviest: Vec<FlowId> = self
                .book
                .waiting
                .iter()
                .rev()
                .take(TICK_FLOWS)
                .map(|(_, id)| *id)
                .collect();
            heaviest.into_iter().for_each(|id| self.pin(id));
        }
        if self.due.statistics.is_none() && now >= self.due.statistics_at {
            let filter = FlowFilter {
                cookie: OWNER,
                cookie_mask: OWNER_MASK,
                ..FlowFilter::default()
            };
            self.due.statistics_at = Nanos(u64::MAX);
            let ask = Message::MultipartRequest(MultipartRequest::Flows(filter));
            self.outbox.queue.push_back(Outgoing::Message(ask));
        }
        if self.settings.setup == FlowSetup::Proactive {
            self.step_moves(now);
            if now >= self.due.rebalance_at {
                self.due.rebalance_at = Nanos(now.0 + self.settings.rebalance_every.0);
                self.rebalance(now);
            }
        }
    }

    /// The buckets of a service by instance; those of [`None`] have none.
    pub fn buckets(&self, service: model::ServiceId) -> Vec<Option<Slot>> {
        let of = self.services.iter().find(|of| of.rules.id == service);
        of.map(|of| of.buckets.iter().map(|bucket| bucket.slot).collect())
            .unwrap_or_default()
    }

    /// Whether every new flow of a service comes to an instance.
    pub fn is_spread(&self, service: ServiceId) -> bool {
        // Of those that come to us by themselves each is given one.
        self.settings.setup == FlowSetup::Reactive || self.buckets(service).iter().all(Option::is_some)
    }

    /// Whether buckets are changing their instance.
    pub fn is_moving(&self) -> bool {
        !self.moves.is_empty()
    }

    /// Whether everything that was written is in force.
    pub fn is_settled(&self) -> bool {
        matches!(self.link, Link::Up) && self.outbox.len() == 0 && self.moves.is_empty()
    }
}
