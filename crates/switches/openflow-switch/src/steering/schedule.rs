//! What a scheduler means where the switch forwards: it chooses the instance of a bucket, that is of all flows that
//! will begin with these bits, and not that of each flow.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::Ipv4Addr;

use model::{FlowSetup, Nanos, Slot, Tuple, protocol};
use scheduling::{Candidate, NewFlow, PRIORITIES, Terms};

use super::Steering;
use super::moves::{BucketPhase, Target};
use crate::flows::FlowId;

/// What a bucket brings where nothing is known of loads: any two instances then compare by their buckets.
const UNKNOWN_SHARE: f32 = 1.0;

impl Steering {
    /// Fills in the candidates of a service, and gives what a bucket brings, in the unit of its metric.
    fn fill(&mut self, service: usize, moved: &BTreeMap<Slot, f32>, now: Nanos) -> f32 {
        let Some(of) = self.services.get_mut(service) else {
            return UNKNOWN_SHARE;
        };
        let mut owned: BTreeMap<Slot, f32> = moved.clone();
        for slot in of.buckets.iter().filter_map(|bucket| bucket.slot) {
            *owned.entry(slot).or_default() += 1.0;
        }
        let mut load = 0.0;
        let mine = || {
            self.instances
                .iter()
                .filter(|(_, instance)| instance.service == service)
        };
        for (_, instance) in mine() {
            load += instance.terms.load.max(0.0);
        }
        // Rates die away after the last packet. What is left of them is less than one flow brings, says where flows
        // were, and would send all of the next ones elsewhere.
        let is_loaded = load > 0.0 && load >= of.flow_load;
        let share = match is_loaded {
            true => load / of.buckets.len() as f32,
            false => UNKNOWN_SHARE,
        };
        of.candidates.begin(Terms {
            at: now,
            slow_start: of.scheduler.settings().slow_start,
            fit: of.rules.fit,
        });
        for (slot, instance) in mine() {
            let terms = instance.terms;
            if !terms.takes_flows || self.failing.contains_key(slot) || !self.prover.is_proven(instance.epoch)
            {
                continue;
            }
            let buckets = owned.get(slot).copied().unwrap_or_default();
            let measured = if is_loaded { terms.load } else { 0.0 };
            of.candidates.push(Candidate {
                slot: *slot,
                place: terms.place,
                capacity: terms.capacity,
                // What is measured is late; what its buckets should bring is not.
                load: match self.settings.setup {
                    FlowSetup::Proactive => measured.max(buckets * share),
                    FlowSetup::Reactive => terms.load,
                },
                trust: 1.0,
                weight: terms.weight,
                live_flows: self
                    .counted
                    .slots
                    .get(slot)
                    .map_or(0, |sum| sum.live_flows as u32),
                active_for: Nanos(now.0.saturating_sub(terms.active_since.0)),
                queues: [0.0; PRIORITIES],
            });
        }
        share
    }

    fn choose(&mut self, service: usize, id: &FlowId, share: f32) -> Option<usize> {
        let of = self.services.get_mut(service)?;
        let mut hasher = DefaultHasher::new();
        id.key.hash(&mut hasher);
        let flow = NewFlow {
            key: &id.key,
            direction: id.opens(),
            hash: hasher.finish(),
            expected: share,
            dscp: 0,
            among: &[],
        };
        let index = of.scheduler.pick(&flow, &of.candidates).index()?;
        of.candidates.pin(index, &flow);
        Some(index)
    }

    /// The instance for a flow that comes to us by itself.
    pub(super) fn pick(&mut self, service: usize, id: &FlowId, now: Nanos) -> Option<Slot> {
        self.fill(service, &BTreeMap::new(), now);
        let index = self.choose(service, id, UNKNOWN_SHARE)?;
        self.services
            .get(service)?
            .candidates
            .get(index)
            .map(|row| row.slot)
    }

    /// Gives instances to buckets that have none, and other ones to buckets whose instance the scheduler would not
    /// choose any more.
    pub(super) fn rebalance(&mut self, now: Nanos) {
        for service in 0..self.services.len() {
            self.assign(service, now);
            if self.may_move() {
                let targets = self.targets(service, now);
                if !targets.is_empty() {
                    self.begin_move(targets, now);
                }
            }
        }
    }

    fn assign(&mut self, service: usize, now: Nanos) {
        let Some(of) = self.services.get(service) else {
            return;
        };
        let free: Vec<usize> = (of.buckets.iter().enumerate())
            .filter(|(_, bucket)| bucket.slot.is_none())
            .map(|(index, _)| index)
            .collect();
        if free.is_empty() {
            return;
        }
        let share = self.fill(service, &BTreeMap::new(), now);
        for bucket in free {
            let Some(index) = self.choose(service, &stand_in(bucket), share) else {
                return;
            };
            let Some(of) = self.services.get_mut(service) else {
                return;
            };
            let slot = of.candidates.get(index).map(|row| row.slot);
            if let Some(bucket) = of.buckets.get_mut(bucket) {
                bucket.slot = slot;
            }
            self.queue_bucket(service, bucket);
        }
    }

    /// Buckets to be moved together: those whose instance takes no flows first, then those of the most used one that
    /// the scheduler would put elsewhere.
    fn targets(&mut self, service: usize, now: Nanos) -> Vec<Target> {
        let Some(of) = self.services.get(service) else {
            return Vec::new();
        };
        let can_move = |bucket: &super::Bucket| {
            bucket.phase == BucketPhase::Steady
                && now >= bucket.unknown_until
                && bucket.on_bucket.len() <= self.free_rules()
        };
        let mut movable: Vec<(usize, Slot)> = (of.buckets.iter().enumerate())
            .filter(|(_, bucket)| can_move(bucket))
            .filter_map(|(index, bucket)| Some((index, bucket.slot?)))
            .filter(|(_, slot)| !self.failing.contains_key(slot))
            .filter(|(_, slot)| (self.instances.get(slot)).is_none_or(|of| now >= of.awaited_until))
            .collect();
        let takes = |slot: &Slot| self.instances.get(slot).is_some_and(|of| of.terms.takes_flows);
        movable.sort_by_key(|(_, slot)| takes(slot));
        let leaving = movable.iter().filter(|(_, slot)| !takes(slot)).count();
        let mut targets = Vec::new();
        let mut moved: BTreeMap<Slot, f32> = BTreeMap::new();
        let limit = self.settings.moves_at_once;
        for (place, (bucket, from)) in movable.iter().copied().enumerate() {
            if targets.len() >= limit {
                break;
            }
            let share = self.fill(service, &moved, now);
            if place >= leaving && !self.is_most_used(service, from) {
                continue;
            }
            let to = self.choose(service, &stand_in(bucket), share);
            let to = to.and_then(|index| self.services.get(service)?.candidates.get(index));
            let Some(to) = to.map(|row| row.slot).filter(|to| *to != from) else {
                continue;
            };
            if place >= leaving && !self.gains(service, from, to, share) {
                continue;
            }
            *moved.entry(from).or_default() -= 1.0;
            *moved.entry(to).or_default() += 1.0;
            targets.push(Target {
                service,
                bucket,
                from,
                to,
            });
        }
        targets
    }

    /// Rules that flows of buckets on their way can have.
    fn free_rules(&self) -> usize {
        self.settings.rule_limit.saturating_sub(self.book.numbers.len()) / 2
    }

    fn is_most_used(&self, service: usize, slot: Slot) -> bool {
        self.services.get(service).is_some_and(|of| {
            let rows = of.candidates.rows();
            let own = rows.iter().find(|row| row.slot == slot);
            own.is_some_and(|own| rows.iter().all(|row| row.utilisation() <= own.utilisation()))
        })
    }

    /// Whether a bucket is better off: its instance is over what it may have and the other one is not, or the other
    /// one would still have less with the bucket than this one without it. `to` has it already, in the candidates.
    fn gains(&self, service: usize, from: Slot, to: Slot, share: f32) -> bool {
        let Some(of) = self.services.get(service) else {
            return false;
        };
        let row = |slot| {
            of.candidates
                .index_of(slot)
                .and_then(|index| of.candidates.get(index))
        };
        let (Some(from), Some(to)) = (row(from), row(to)) else {
            return false;
        };
        let fit = of.candidates.terms().fit;
        if !from.fits(fit) && from.capacity > 0.0 {
            return to.fits(fit);
        }
        let without = Candidate {
            load: from.load - share,
            ..*from
        };
        to.utilisation() < without.utilisation()
    }
}

/// A flow that stands for those of a bucket, for schedulers that go by hash.
fn stand_in(bucket: usize) -> FlowId {
    let tuple = Tuple {
        src: Ipv4Addr::from_bits(bucket as u32).into(),
        dst: Ipv4Addr::UNSPECIFIED.into(),
        src_port: 0,
        dst_port: 0,
        protocol: protocol::UDP,
        vlan: 0,
    };
    FlowId::new(&tuple, false)
}
