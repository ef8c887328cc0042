//! What waits to be sent, and is made when it is sent.

use std::collections::{BTreeMap, VecDeque};

use model::FlowSetup;
use openflow::{FlowFilter, Message, MultipartRequest, WHOLE_PACKET};

use super::batch::Batch;
use super::moves::BucketPhase;
use super::{Link, Steering};
use crate::flows::RuleState;
use crate::rules::{
    BucketWay, HANDOVER_TABLE, OWNER, OWNER_MASK, Rule, TABLE, bucket_rules, packet_in_rule, pin_rule,
};

/// Questions whose answers are still expected, and rules whose last counters are.
pub(super) const OPEN_LIMIT: usize = 65_536;

/// What waits to be sent.
pub(super) enum Outgoing {
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

/// What waits to be sent, and what was sent and is not answered.
pub(super) struct Outbox {
    pub(super) queue: VecDeque<Outgoing>,
    /// Rules that were sent together, until the switch has answered.
    pub(super) batch: Option<Batch>,
    /// Whether the switch may have bundles: it has refused none since the connection was made.
    pub(super) takes_batches: bool,
    /// So many in front of what waits are of a batch that was refused, and go one by one.
    pub(super) alone: usize,
    /// Exact rules that were sent, by transaction.
    pub(super) sent: BTreeMap<u32, u64>,
    /// The transaction of the barrier that a proof waits for.
    pub(super) proof_barrier: Option<u32>,
}

impl Outbox {
    /// Nothing waits, and nothing is known of the switch.
    pub(super) fn new() -> Outbox {
        Outbox {
            queue: VecDeque::new(),
            batch: None,
            takes_batches: true,
            alone: 0,
            sent: BTreeMap::new(),
            proof_barrier: None,
        }
    }

    /// Notes that the rule of a flow was sent.
    pub(super) fn note_sent(&mut self, number: u64, xid: u32) {
        if self.sent.len() >= OPEN_LIMIT {
            self.sent.pop_first();
        }
        self.sent.insert(xid, number);
    }

    /// What waits to be sent, and rules that the switch has not answered for yet.
    pub(super) fn len(&self) -> usize {
        self.queue.len() + self.batch.as_ref().map_or(0, Batch::len)
    }
}

impl Steering {
    /// The wanted rule of that number.
    pub(super) fn pin_of(&self, number: u64) -> Option<Rule> {
        let id = self.book.numbers.get(&number)?;
        let flow = self.book.flows.get(id)?;
        let place = flow.rules.iter().find(|rule| rule.number == number)?.side;
        let side = self.services.get(flow.service)?.rules.sides.get(place)?;
        let ports = &self.instances.get(&flow.slot)?.ports;
        let tuple = id.tuple(side.is_answering);
        Some(pin_rule(side, &tuple, number, ports))
    }

    /// The wanted rule of a bucket in a table.
    pub(super) fn bucket_of(&self, service: usize, side: usize, bucket: usize, table: u8) -> Option<Rule> {
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
            if self.outbox.batch.is_some() {
                self.send_batch(&mut send);
                return;
            }
            let Some(next) = self.outbox.queue.front() else {
                return;
            };
            let message = self.message_of(next);
            let xid = match message.as_ref().map(&mut send) {
                Some(None) => return,
                Some(Some(xid)) => Some(xid),
                None => None,
            };
            self.outbox.alone = self.outbox.alone.saturating_sub(1);
            match (self.outbox.queue.pop_front(), xid) {
                (Some(Outgoing::Pin(number)), Some(xid)) => self.pin_sent(number, xid),
                (Some(Outgoing::Pin(number)), None) => self.forget_rule(number, RuleState::OnBucket),
                (Some(Outgoing::ProofBarrier), _) => self.outbox.proof_barrier = xid,
                (Some(Outgoing::Message(Message::MultipartRequest(_))), _) => self.due.statistics = xid,
                _ => {}
            }
        }
    }

    /// What is sent for it; [`None`] where it is out of date.
    pub(super) fn message_of(&self, next: &Outgoing) -> Option<Message> {
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

    pub(super) fn pin_sent(&mut self, number: u64, xid: u32) {
        self.pin_written(number);
        self.outbox.note_sent(number, xid);
    }

    pub(super) fn pin_written(&mut self, number: u64) {
        let epoch = self.prover.epoch();
        if let Some((flow, rule)) = self.book.rule_mut(number) {
            flow.rule_written(rule, epoch);
        }
    }

    /// What is queued while there is no connection would be out of date: all is compared when there is one.
    pub(super) fn queue(&mut self, next: Outgoing) {
        if matches!(self.link, Link::Up) {
            self.outbox.queue.push_back(next);
        }
    }

    pub(super) fn queue_bucket(&mut self, service: usize, bucket: usize) {
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
}
