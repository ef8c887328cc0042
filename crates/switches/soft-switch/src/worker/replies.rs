//! Replies that return through the edge.
//!
//! At a machine, what an instance answers goes into the tunnel to the edge that sent the flow's last packet; what it sends
//! of its own leaves directly. At the edge, it comes out of the tunnel. The flow's pin says whether it is the machine's; it
//! is counted with the flow, and leaves by the uplink of the service, from the edge's own MAC address. One whose flow has no
//! pin here leaves, too, if it is from an address of a service of that machine: another edge may have pinned it.

use std::net::Ipv4Addr;

use flow_table::EntryIndex;
use model::{DropReason, Slot};
use packet::{ICMP_ERROR_LIMIT, PacketInfo, Parsed};
use switch::ServicePlan;

use crate::frame::{Frame as _, FrameMemory};
use crate::message::{Destination, Returned};
use crate::tunnels::Tunnels;
use crate::worker::Worker;
use crate::worker::egress::Decision;
use crate::worker::returns::{ByUplink, Exit, Onward};

/// Into the tunnel to an edge, if it is a reply.
pub(crate) struct ByEdge;

impl Exit for ByEdge {
    fn handed(of: Returned) -> Destination {
        Destination::Reply(of)
    }

    fn leave<M: FrameMemory>(mut frame: M::Frame, of: Returned, to: &mut Onward<'_, M>) {
        let cx = &mut *to.cx;
        let parsed = packet::parse(frame.bytes());
        // Of an instance that has left the plan, all that it sends is.
        let service = cx.view.plan.service(cx.view.routes[of.slot].service);
        let is_reply = service.is_none_or(|service| is_reply(&parsed, service));
        let Some(info) = info_of(&parsed).filter(|_| is_reply) else {
            return ByUplink::leave(frame, of, to);
        };
        let hash = cx.hasher.hash(&info.key);
        let tunnels = cx.ends.tunnels();
        let limit = tunnels.frame_limit();
        let mac = cx.ends.mac(of.uplink);
        let tunnel = mac.and_then(|mac| tunnels.way_back((of.uplink, mac), hash, cx.now));
        let Some(tunnel) = tunnel else {
            return cx.discard_of(frame, cx.seen(of.slot), DropReason::NoNeighbour);
        };
        if frame.len() > limit {
            return tell_instance(frame, of, to);
        }
        cx.see_leaving(frame.bytes(), of.uplink, Some(of.slot));
        if !Tunnels::wrap(&tunnel, &mut frame) {
            return cx.discard_of(frame, cx.seen(of.slot), DropReason::TooLarge);
        }
        cx.counters.slots[of.slot].replies.add(1);
        to.egress.send_to_uplink(frame, of.uplink, to.cx);
    }
}

/// Drops a reply that is too long for the tunnel, and tells the instance how long one may be, as a router on the way would.
#[cold]
fn tell_instance<M: FrameMemory>(mut frame: M::Frame, of: Returned, to: &mut Onward<'_, M>) {
    let cx = &mut *to.cx;
    cx.counters.drop_packets(DropReason::TooLarge, 1);
    cx.tap
        .see_dropped(cx.now, cx.seen(of.slot), DropReason::TooLarge, frame.bytes());
    let limit = cx.ends.tunnels().frame_limit();
    if !cx.ends.tunnels().may_tell_sender() {
        return cx.memory.give(frame);
    }
    let mut error = [0; ICMP_ERROR_LIMIT];
    // From where the reply was to go: what neighbours are known stays so.
    let client = frame.bytes().first_chunk().copied().unwrap_or_default();
    let written = packet::too_big(frame.bytes(), limit, client, &mut error);
    let place = written.and_then(|len| Some((error.get(..len)?, frame.room().get_mut(..len)?)));
    let Some((error, place)) = place else {
        return cx.memory.give(frame);
    };
    place.copy_from_slice(error);
    frame.set_len(error.len());
    // Nobody offered it.
    let counters = &cx.counters.slots[of.slot];
    counters.originated.add(1);
    counters.back_packets.add(1);
    let service = cx.view.routes[of.slot].service;
    let decision = Decision::Instance {
        slot: of.slot,
        service,
    };
    to.egress.send(frame, decision, of.uplink, to.cx);
}

impl<M: FrameMemory> Worker<M> {
    /// Takes a packet that came out of the tunnel from that address, at an edge.
    pub(super) fn take_reply(&mut self, mut frame: M::Frame, from: Ipv4Addr) {
        let parsed = packet::parse(frame.bytes());
        let Some(info) = info_of(&parsed) else {
            return self.cx.discard(frame, DropReason::Tunnel);
        };
        if let Some(owner) = self.cx.other_owner(&info.key) {
            let to = Destination::OfMachine(from);
            return self.egress.hand_off(owner, frame, to, &mut self.cx);
        }
        let is_to_one = frame.bytes().first().is_some_and(|first| first & 1 == 0);
        let Some((slot, entry)) = self.sender(&parsed, info, from).filter(|_| is_to_one) else {
            return self.cx.discard(frame, DropReason::Tunnel);
        };
        if entry.is_none() && matches!(parsed, Parsed::Flow(_)) && !info.is_icmp_error {
            self.find_by_reply(info, slot);
        }
        let (cx, table) = (&mut self.cx, &mut self.lookup.table);
        let counters = &cx.counters.slots[slot];
        counters.replies.add(1);
        match entry {
            Some(entry) if !info.is_icmp_error => {
                let bytes = u64::from(info.frame_len);
                table.hit(entry, info.direction, 1, bytes, cx.now, info.tcp_flags.0);
                table.count_returned(entry, 1);
                if table.pins(entry) == [Slot::NONE; 2] {
                    // It opened the connection anew.
                    table.set_pins(entry, [slot; 2], cx.now);
                }
            }
            Some(_) => {}
            None => counters.return_unmatched.add(1),
        }
        let uplink = cx.view.routes[slot].first_uplink();
        // Bridges would learn from the machine's own address that the machine is here.
        if let (Some(mac), Some(source)) = (cx.ends.mac(uplink), frame.bytes_mut().get_mut(6..12)) {
            source.copy_from_slice(&mac);
        }
        cx.see_leaving(frame.bytes(), uplink, Some(slot));
        self.egress.send_to_uplink(frame, uplink, cx);
    }

    /// A machine answers in a flow that has no pin here: if it is looked for, it is found.
    fn find_by_reply(&mut self, info: &PacketInfo, slot: Slot) {
        let Some(hasher) = self.cx.ends.tunnels().edges() else {
            return;
        };
        let (hash, own_hash) = (hasher.hash(&info.key), self.cx.hasher.hash(&info.key));
        if self.looks.find(hash).is_some() && self.lookup.table.lookup(&info.key, own_hash).is_none() {
            self.looks.forget(hash);
            let service = self.cx.view.routes[slot].service;
            self.pin(info, info.direction.flipped(), (slot, service));
        }
    }

    /// The slot of the machine at that address, if a packet can be its reply, and the packet's flow, if that is pinned to it.
    fn sender(
        &mut self,
        parsed: &Parsed,
        info: &PacketInfo,
        from: Ipv4Addr,
    ) -> Option<(Slot, Option<EntryIndex>)> {
        let (cx, table) = (&self.cx, &mut self.lookup.table);
        let tunnels = cx.ends.tunnels();
        let is_of = |slot: Slot| tunnels.address(slot) == Some(from);
        let replies = |slot: Slot| {
            let service = cx.view.plan.service(cx.view.routes[slot].service);
            service.is_some_and(|service| service.replies_by_edge && is_reply(parsed, service))
        };
        // Fragments do not all have ports.
        let entry = match parsed {
            Parsed::Flow(_) => table.lookup(&info.key, cx.hasher.hash(&info.key)),
            _ => None,
        };
        let pins = entry.map_or([Slot::NONE; 2], |entry| table.pins(entry));
        if pins != [Slot::NONE; 2] {
            // Another machine's flow is not this one's to answer.
            let slot = pins.into_iter().find(|slot| is_of(*slot))?;
            return replies(slot).then_some((slot, entry));
        }
        let mut slots = cx.view.plan.instances().map(|(slot, _)| slot);
        let slot = slots.find(|slot| is_of(*slot) && replies(*slot))?;
        Some((slot, None))
    }
}

/// What is known of a packet with a flow.
fn info_of(parsed: &Parsed) -> Option<&PacketInfo> {
    match parsed {
        Parsed::Flow(info) => Some(info),
        Parsed::Fragment(fragment) => Some(&fragment.info),
        Parsed::Other { .. } | Parsed::Invalid(_) => None,
    }
}

/// Whether a packet of an instance of that service answers one of the service's own.
fn is_reply(parsed: &Parsed, service: &ServicePlan) -> bool {
    let Some(info) = info_of(parsed) else { return false };
    let tuple = info.key.tuple(info.direction);
    match parsed {
        // It has no ports.
        Parsed::Fragment(fragment) if !fragment.is_first() => {
            let vip = service.vip.as_ref();
            vip.is_none_or(|vip| vip.addresses.contains(&tuple.src))
        }
        _ => service.is_reply(&tuple),
    }
}
