//! Packets from instances whose addresses are translated. A flow of the service is known by the service's address, and
//! one that the instance has opened by its own, which may be another worker's. So such a packet is looked up as the
//! service's first, and then as the instance's own.

use model::{DropReason, FlowKey, Slot, Tuple};
use packet::{Fragment, Offer, PacketInfo, Parsed, Translation, Way};

use crate::frame::{Frame as _, FrameMemory};
use crate::message::{FlowOf, Returned};
use crate::worker::ends;
use crate::worker::ingress::Origin;
use crate::worker::returns::{Exit, Onward, discard_spoofed, send_as_it_is};

/// Sends a packet out, translated if it is the service's.
pub(crate) fn send<X: Exit, M: FrameMemory>(
    frame: M::Frame,
    of: Returned,
    translation: &Translation,
    to: &mut Onward<'_, M>,
) {
    match packet::parse(frame.bytes()) {
        Parsed::Flow(info) => send_packet::<X, M>(frame, &info, of, translation, to),
        Parsed::Fragment(fragment) => send_fragment::<X, M>(frame, &fragment, of, translation, to),
        Parsed::Other { .. } | Parsed::Invalid(_) => discard_spoofed(frame, of.slot, to.cx),
    }
}

fn send_packet<X: Exit, M: FrameMemory>(
    frame: M::Frame,
    info: &PacketInfo,
    of: Returned,
    translation: &Translation,
    to: &mut Onward<'_, M>,
) {
    let Some(known) = as_of_service(info, translation) else {
        return send_as_it_is::<X, M>(frame, of, to);
    };
    let mut of = of;
    if of.flow == FlowOf::Unknown && to.cx.other_owner(&known.key).is_none() {
        of.flow = match pins(&known.key, to) {
            Some(_) => FlowOf::Service,
            None => FlowOf::Instance {
                or_service: answers(&known, of.slot, to),
            },
        };
    }
    if let FlowOf::Instance { or_service } = of.flow
        && to.cx.other_owner(&info.key).is_none()
    {
        if !or_service || pins(&info.key, to).is_some() {
            return send_as_it_is::<X, M>(frame, of, to);
        }
        of.flow = FlowOf::Service;
    }
    let owner = match of.flow {
        FlowOf::Unknown | FlowOf::Service => to.cx.other_owner(&known.key),
        FlowOf::Instance { .. } => to.cx.other_owner(&info.key),
    };
    match owner {
        Some(owner) => to.egress.hand_off(owner, frame, X::handed(of), to.cx),
        None => send_translated::<X, M>(frame, &known, of, translation, to),
    }
}

/// Sends a fragment out. Only the first one says whose flow it is.
#[cold]
fn send_fragment<X: Exit, M: FrameMemory>(
    frame: M::Frame,
    fragment: &Fragment,
    of: Returned,
    translation: &Translation,
    to: &mut Onward<'_, M>,
) {
    let sent = fragment.info.key.tuple(fragment.info.direction);
    let Some(src) = translation.service_address(sent.src) else {
        return send_as_it_is::<X, M>(frame, of, to);
    };
    // A flow's owner depends on its addresses alone.
    let (key, _) = FlowKey::new(&Tuple { src, ..sent });
    if let Some(owner) = to.cx.other_owner(&key) {
        return to.egress.hand_off(owner, frame, X::handed(of), to.cx);
    }
    let now = to.cx.now;
    let offered = to
        .ingress
        .fragments
        .offer(fragment, (frame, Origin::Instance(of)), now);
    match offered {
        Offer::Resolved { frame, info } => {
            let mut next = Some((frame, info));
            while let Some(((frame, from), info)) = next {
                match from {
                    Origin::Instance(of) => {
                        send_known_fragment::<X, M>(frame, &info, of, translation, to);
                    }
                    // The network speaks for an instance.
                    Origin::Uplink(_) | Origin::Chain(_) => to.cx.discard(frame, DropReason::Spoofed),
                }
                next = to.ingress.fragments.release();
            }
        }
        Offer::Waiting => {}
        Offer::Refused {
            frame: (frame, _),
            reason,
        } => to.cx.discard(frame, reason),
    }
}

fn send_known_fragment<X: Exit, M: FrameMemory>(
    frame: M::Frame,
    info: &PacketInfo,
    of: Returned,
    translation: &Translation,
    to: &mut Onward<'_, M>,
) {
    match as_of_service(info, translation) {
        Some(known) if pins(&known.key, to).is_some() || answers(&known, of.slot, to) => {
            send_translated::<X, M>(frame, &known, of, translation, to);
        }
        _ if to.cx.ends.opens(of.slot) == Some(false) => discard_spoofed(frame, of.slot, to.cx),
        // Those of an instance's own flows are not counted with them.
        _ => X::leave(frame, of, to),
    }
}

/// Counts a packet with the service's flow, which is this worker's, and sends it out.
fn send_translated<X: Exit, M: FrameMemory>(
    mut frame: M::Frame,
    known: &PacketInfo,
    of: Returned,
    translation: &Translation,
    to: &mut Onward<'_, M>,
) {
    // An answer needs no permission to open connections.
    if !ends::count(known, of.slot, true, to.lookup, to.cx) {
        discard_spoofed(frame, of.slot, to.cx);
    } else if !translation.apply(frame.bytes_mut(), Way::Out) {
        to.cx.discard(frame, DropReason::Malformed);
    } else {
        X::leave(frame, of, to);
    }
}

/// The packet as the service's.
fn as_of_service(info: &PacketInfo, translation: &Translation) -> Option<PacketInfo> {
    let tuple = translation.of_service(&info.key.tuple(info.direction))?;
    let (key, direction) = FlowKey::new(&tuple);
    Some(PacketInfo {
        key,
        direction,
        ..*info
    })
}

/// The pins of a flow that is this worker's, if it is there.
fn pins<M: FrameMemory>(key: &FlowKey, to: &mut Onward<'_, M>) -> Option<[Slot; 2]> {
    let hash = to.cx.hasher.hash(key);
    let entry = to.lookup.table.lookup(key, hash)?;
    Some(to.lookup.table.pins(entry))
}

/// Whether a packet comes from a port of the service and opens no connection.
fn answers<M: FrameMemory>(known: &PacketInfo, slot: Slot, to: &Onward<'_, M>) -> bool {
    let sent = known.key.tuple(known.direction);
    let asked = sent.reversed();
    let service = to.cx.view.plan.service(to.cx.view.routes[slot].service);
    let vip = service.and_then(|service| service.vip.as_ref());
    vip.is_some_and(|vip| vip.takes(&asked)) && !ends::is_opening(known)
}
