//! Lookup: the instance that a packet's flow is pinned to. This stage owns the flow table.

use flow_table::{EntryIndex, FlowTable};
use model::{ServiceId, Slot, UplinkId};
use packet::{PacketInfo, Parsed};
use switch::ServicePlan;

use crate::frame::{Frame as _, FrameMemory};
use crate::table_memory::TableMemory;
use crate::worker::context::Context;
use crate::worker::elephants::Elephants;

/// The outcome of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is pinned to that instance, which serves.
    Hit { slot: Slot, service: ServiceId },
    /// It has no instance in this direction.
    Miss(Missed),
}

/// A flow, or the direction of a flow, without an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Missed {
    /// Its entry, if it is in the table: not pinned in this direction yet; or its instance is gone; or the packet
    /// opens a new connection with the key of an ended one, which may get another instance.
    pub(crate) entry: Option<EntryIndex>,
    /// Its remaining pin to an instance that does not serve any more.
    pub(crate) lost: Slot,
}

impl Missed {
    /// A flow that is not in the table.
    pub(crate) const NEW: Missed = Missed {
        entry: None,
        lost: Slot::NONE,
    };
}

/// The flows of a worker.
pub(crate) struct Lookup {
    pub(crate) table: FlowTable<TableMemory>,
    /// The heaviest of them.
    pub(crate) elephants: Box<Elephants>,
}

impl Lookup {
    pub(crate) fn new(table: FlowTable<TableMemory>) -> Lookup {
        Lookup {
            elephants: Box::new(Elephants::new(table.hasher().key()[0])),
            table,
        }
    }

    /// Records a burst for the heaviest flows. A flow of another worker is counted there.
    #[inline]
    pub(crate) fn sample<M: FrameMemory>(
        &mut self,
        frames: &[M::Frame],
        uplink: UplinkId,
        cx: &mut Context<M>,
    ) {
        let mut flow = None;
        self.elephants.note(frames.len(), cx.now, |drawn| {
            let Parsed::Flow(info) = packet::parse(frames.get(drawn)?.bytes()) else {
                return None;
            };
            let is_own = cx.other_owner(&info.key).is_none();
            flow = is_own.then(|| (info.key, cx.hasher.hash(&info.key)));
            flow
        });
        if let (Some((key, hash)), Some((paths, with))) = (flow, cx.paths()) {
            paths.draw((&key, hash), uplink, &self.table, &with);
        }
    }

    /// Looks a packet's flow up, and counts the packet.
    pub(crate) fn find<M: FrameMemory>(&mut self, info: &PacketInfo, hash: u64, cx: &Context<M>) -> Outcome {
        let Some(entry) = self.table.lookup(&info.key, hash) else {
            return Outcome::Miss(Missed::NEW);
        };
        if !info.is_icmp_error {
            let (direction, bytes) = (info.direction, u64::from(info.frame_len));
            self.table
                .hit(entry, direction, 1, bytes, cx.now, info.tcp_flags.0);
        }
        // An error goes where its flow goes and is counted with the service, but it does not keep the flow alive.
        self.outcome(info, entry, cx)
    }

    /// Looks the flow of a packet up that was counted when it came.
    pub(crate) fn find_again<M: FrameMemory>(
        &mut self,
        info: &PacketInfo,
        hash: u64,
        cx: &Context<M>,
    ) -> Outcome {
        match self.table.lookup(&info.key, hash) {
            Some(entry) => self.outcome(info, entry, cx),
            None => Outcome::Miss(Missed::NEW),
        }
    }

    #[inline]
    fn outcome<M: FrameMemory>(&self, info: &PacketInfo, entry: EntryIndex, cx: &Context<M>) -> Outcome {
        let pin = self.table.pin(entry, info.direction);
        let route = &cx.view.routes[pin];
        if route.serves {
            Outcome::Hit {
                slot: pin,
                service: route.service,
            }
        } else {
            self.without_pin(info, entry, pin, cx)
        }
    }

    /// The outcome for a flow without an instance in the packet's direction. A flow that was in a chain of services,
    /// which is no more, has its instance in the other direction alone. With external addresses each direction has an
    /// owner of its own.
    #[cold]
    fn without_pin<M: FrameMemory>(
        &self,
        info: &PacketInfo,
        entry: EntryIndex,
        lost: Slot,
        cx: &Context<M>,
    ) -> Outcome {
        let other = self.table.pin(entry, info.direction.flipped());
        let route = &cx.view.routes[other];
        let shares_pin = |of: &ServicePlan| of.symmetric && of.next.is_none() && of.external.is_none();
        if !lost.is_some() && route.serves && cx.view.plan.service(route.service).is_some_and(shares_pin) {
            return Outcome::Hit {
                slot: other,
                service: route.service,
            };
        }
        Outcome::Miss(Missed {
            entry: Some(entry),
            lost,
        })
    }

    /// Whether flows of the entry's service may move from an instance that serves.
    pub(crate) fn is_relaxed<M: FrameMemory>(&self, entry: EntryIndex, cx: &Context<M>) -> bool {
        cx.view
            .plan
            .service(self.table.service(entry))
            .is_some_and(|service| service.relaxed)
    }
}
