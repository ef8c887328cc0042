//! Packets of services that know their flows by what packets carry. Such a packet's own key is never in the table: so
//! only packets whose flow is unknown are looked at, and those of other services lose no time.

use model::{AffinityKey, Direction, DropReason, FlowKey, UplinkId, key_bits};
use packet::{Fragment, Offer, PacketInfo, Parsed};

use crate::frame::{Frame as _, FrameMemory};
use crate::message::Destination;
use crate::worker::Worker;
use crate::worker::egress::Decision;
use crate::worker::ingress::{Exception, Origin};
use crate::worker::lookup::{Missed, Outcome};
use crate::worker::moves::Held;

impl<M: FrameMemory> Worker<M> {
    /// Steers a packet whose own flow is not in the table, where that may have another key: in a chain of services, or by
    /// what its packets carry.
    #[cold]
    pub(super) fn steer_unknown(&mut self, frame: M::Frame, info: &PacketInfo, hash: u64, uplink: UplinkId) {
        let Some(frame) = self.take_into_chain(frame, info, &Missed::NEW, uplink) else {
            return;
        };
        if let Some((of, key)) = self.content_service(info, uplink) {
            return self.steer_content(frame, info, (of, key), uplink);
        }
        let Some(frame) = self.look(frame, info, uplink) else {
            return;
        };
        let decision = self.set_up_packet(info, hash, Missed::NEW, (uplink, None));
        self.egress.send(frame, decision, uplink, &mut self.cx);
    }

    /// Steers such a packet that another worker has handed over: this one owns the flow of what it carries.
    #[cold]
    pub(super) fn steer_handed_content(&mut self, frame: M::Frame, uplink: UplinkId) {
        let parsed = packet::parse(frame.bytes());
        if let Parsed::Flow(info) = &parsed
            && let Some(of) = self.content_service(info, uplink)
        {
            return self.steer_content(frame, info, of, uplink);
        }
        // The plan has changed in between.
        let hash = match &parsed {
            Parsed::Flow(info) => self.cx.hasher.hash(&info.key),
            _ => 0,
        };
        let place = 0;
        self.steer_exception(frame, Exception { place, parsed, hash }, uplink);
    }

    /// The service of a packet, if that knows its flows by what packets carry: its place in the plan, and how.
    fn content_service(&self, info: &PacketInfo, uplink: UplinkId) -> Option<(usize, AffinityKey)> {
        let plan = &self.cx.view.plan;
        let tuple = || info.key.tuple(info.direction);
        if !plan.blocks.is_empty() && plan.blocks.find(&tuple(), uplink).is_some() {
            return None;
        }
        let of = plan.classify(tuple, uplink)?;
        let key = plan.services.get(of)?.affinity_key;
        key.reads_content().then_some((of, key))
    }

    fn steer_content(
        &mut self,
        frame: M::Frame,
        info: &PacketInfo,
        (of, key): (usize, AffinityKey),
        uplink: UplinkId,
    ) {
        match packet::parse_content(frame.bytes(), info, key) {
            Parsed::Flow(content) => {
                let content = self.as_listed(frame.bytes(), info, content, of);
                match self.cx.other_owner(&content.key) {
                    Some(owner) => {
                        let to = Destination::Content(uplink);
                        self.egress.hand_off(owner, frame, to, &mut self.cx);
                    }
                    None => self.steer_known_content(frame, &content, of, uplink),
                }
            }
            Parsed::Fragment(fragment) => self.steer_fragment_inside(frame, &fragment, of, uplink),
            Parsed::Other { .. } | Parsed::Invalid(_) => self.cx.discard(frame, DropReason::Malformed),
        }
    }

    /// The packet as one of a listed association, if it is: then all packets of that have one flow.
    fn as_listed(&self, frame: &[u8], info: &PacketInfo, content: PacketInfo, of: usize) -> PacketInfo {
        let services = &self.cx.view.plan.services;
        let Some(service) = services.get(of).filter(|of| !of.associations.is_empty()) else {
            return content;
        };
        let carried = packet::association_of(&content.key.tuple(content.direction));
        match service.association(carried, || packet::header_ends(frame, info)) {
            Some((spi, to)) => packet::as_association(info, spi, to),
            None => content,
        }
    }

    /// The place in the plan of the service that has a flow by what its packets carry. Its key does not say that.
    pub(super) fn place_of_content(&self, key: &FlowKey) -> Option<usize> {
        let vlan = key.tuple(Direction::Forward).vlan;
        if !self.cx.view.has_other_keys || vlan & key_bits::OF_CONTENT == 0 {
            return None;
        }
        let services = &self.cx.view.plan.services;
        services.iter().position(|of| of.affinity_key.reads_content())
    }

    /// Steers a tunnel's packet that carries a fragment. Only the first one says whose flow it is.
    #[cold]
    fn steer_fragment_inside(&mut self, frame: M::Frame, fragment: &Fragment, of: usize, uplink: UplinkId) {
        if let Some(owner) = self.cx.other_owner(&fragment.info.key) {
            let to = Destination::Content(uplink);
            return self.egress.hand_off(owner, frame, to, &mut self.cx);
        }
        let (origin, now) = (Origin::Uplink(uplink), self.cx.now);
        match self.ingress.fragments.offer(fragment, (frame, origin), now) {
            Offer::Resolved { frame, info } => {
                let mut next = Some((frame, info));
                while let Some(((frame, from), info)) = next {
                    match from {
                        Origin::Uplink(uplink) => self.steer_known_content(frame, &info, of, uplink),
                        Origin::Instance(_) | Origin::Chain(_) => self.cx.discard(frame, DropReason::Spoofed),
                    }
                    next = self.ingress.fragments.release();
                }
            }
            Offer::Waiting => {}
            Offer::Refused {
                frame: (frame, _),
                reason,
            } => self.cx.discard(frame, reason),
        }
    }

    /// Steers a packet by the flow of what it carries, which this worker owns.
    fn steer_known_content(&mut self, frame: M::Frame, content: &PacketInfo, of: usize, uplink: UplinkId) {
        let hash = self.cx.hasher.hash(&content.key);
        let outcome = self.lookup.find(content, hash, &self.cx);
        if self.state_moves.holds(&content.key, hash) && !content.is_icmp_error {
            let info = *content;
            return self.hold_for_state(Held {
                frame,
                info,
                hash,
                uplink,
            });
        }
        let decision = match outcome {
            Outcome::Hit { slot, service } => Decision::Instance { slot, service },
            Outcome::Miss(missed) => self.set_up_packet(content, hash, missed, (uplink, Some(of))),
        };
        self.egress.send(frame, decision, uplink, &mut self.cx);
    }
}
