//! Flows of which nothing is known but what a packet says: the middle of a TCP connection, what an ICMP error is about,
//! SYN packets of which there are too many to pin each. They go by a hash without a secret.

use flow_table::FlowHasher;
use model::{Direction, DropReason, FlowKey, Nanos, ServiceId};
use packet::TcpFlags;
use scheduling::NewFlow;
use switch::Plan;

use crate::frame::FrameMemory;
use crate::shares::Shared;
use crate::worker::context::Context;
use crate::worker::egress::Decision;
use crate::worker::set_up::{Opening, SetUp};

/// The hash by which flows go of which nothing is known. It has no secret: each run, and each machine, has the same.
const PUBLIC: FlowHasher = FlowHasher::new([0; 4]);

/// What a packet is of a TCP connection without an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TcpPart {
    /// It is none, or it has an entry.
    None,
    /// The first one.
    Opens,
    /// The answer to the first one.
    Answers,
    /// A later one.
    Middle,
}

impl TcpPart {
    pub(super) fn of(flags: TcpFlags) -> TcpPart {
        match flags.0 & (TcpFlags::SYN | TcpFlags::ACK) {
            TcpFlags::SYN => TcpPart::Opens,
            of if of & TcpFlags::SYN != 0 => TcpPart::Answers,
            _ => TcpPart::Middle,
        }
    }
}

/// How many connections of a service may be half open on a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HalfOpen {
    /// That many of IPv4, and that many in all before the next one of IPv6.
    pub limits: [u32; 2],
    /// How long one may stay half open.
    pub timeout: Nanos,
}

impl HalfOpen {
    /// As many as there may be.
    pub const ANY: HalfOpen = HalfOpen {
        limits: [u32::MAX; 2],
        timeout: Nanos::ZERO,
    };

    pub(super) fn is_reached(&self, key: &FlowKey, count: u32) -> bool {
        let [v4, v6] = self.limits;
        count
            >= match key {
                FlowKey::V4(_) => v4,
                FlowKey::V6(_) => v6,
            }
    }
}

impl SetUp {
    /// The flows that share an instance go on to do so: `flow`, one of them by its key and its opener's direction, has
    /// not ended.
    #[inline]
    pub(crate) fn go_on_sharing(
        &self,
        plan: &Plan,
        service: ServiceId,
        flow: &dyn Fn() -> (FlowKey, Direction),
        now: Nanos,
    ) {
        let Some(shares) = self.shares.get() else { return };
        let tuple = || {
            let (key, opener) = flow();
            key.tuple(opener)
        };
        if let Some(of) = plan
            .service(service)
            .and_then(|service| Shared::of(service, tuple))
        {
            shares.go_on(&of, now);
        }
    }

    /// The instance of a packet that makes no entry: an ICMP error about an unknown flow, a SYN where too many
    /// connections are half open, or the answer to such a one. It goes where the next packet of its flow would go that is
    /// not the first: so the acknowledgement of the connection finds the same instance, and is pinned. `place`: that of
    /// the service.
    #[cold]
    pub(super) fn pass_on<M: FrameMemory>(
        &mut self,
        opening: &Opening<'_>,
        place: usize,
        cx: &Context<M>,
    ) -> Decision {
        let refused = |service| Decision::Refused {
            service,
            reason: DropReason::NoInstance,
        };
        let Some((service, state)) = cx.view.plan.services.get(place).zip(self.services.get_mut(place))
        else {
            return Decision::Fallback(cx.view.plan.unmatched);
        };
        let (key, direction) = (opening.key, opening.direction);
        let shared = Shared::of(service, || key.tuple(direction));
        let known = shared.zip(self.shares.get()).and_then(|(of, shares)| {
            shares.find(&of, cx.now, |slot| state.candidates.index_of(slot).is_some())
        });
        let machines = service.machines.as_deref().zip(cx.ends.tunnels().edges());
        let first = machines.and_then(|(machines, hasher)| {
            let sequence = state.machines.of(machines, hasher.hash(key));
            state.first_taker(&sequence)
        });
        let flow = NewFlow {
            key,
            direction,
            hash: public_hash(key, shared.as_ref()),
            expected: 0.0,
            dscp: opening.dscp,
            among: first.as_slice(),
        };
        let slot = known.or_else(|| {
            let index = state.pick_by_hash(&flow).index()?;
            Some(state.candidates.get(index)?.slot)
        });
        let Some(slot) = slot else {
            if opening.part == TcpPart::Opens {
                cx.counters.services[service.id].unserved.add(1);
            }
            return refused(service.id);
        };
        if opening.part == TcpPart::Opens {
            state.by_hash_until = cx.now + self.half_open.timeout;
            cx.counters.services[service.id].flooded.add(1);
        }
        Decision::Instance {
            slot,
            service: service.id,
        }
    }
}

/// The hash of a flow by which it goes if nothing is known of it: of what it has in common with those with which it
/// shares an instance, else of its key.
pub(super) fn public_hash(key: &FlowKey, shared: Option<&Shared>) -> u64 {
    match shared {
        Some(shared) => PUBLIC.hash(&FlowKey::new(&shared.tuple()).0),
        None => PUBLIC.hash(key),
    }
}
