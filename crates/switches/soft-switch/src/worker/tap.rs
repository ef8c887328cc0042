//! Captures on the worker's side: copies of packets for a [`Capture`]. While none runs, a burst costs one branch at each
//! point where it may be seen.

use std::sync::Arc;

use model::{CapturePoint, DropReason, FlowKey, InstanceId, Nanos, ServiceId, Slot, Tuple, UplinkId};
use packet::Parsed;
use switch::{Capture, CapturedPacket, Sighting};

use crate::frame::{Frame as _, FrameMemory};
use crate::port::Queue as _;
use crate::worker::context::{Context, Ports};
use crate::worker::{BURST_FRAMES, Worker};

/// The capture that runs, if one does.
pub(crate) struct Tap {
    capture: Option<Arc<Capture>>,
    /// Packets of the current burst from an uplink. Whether their flows belong to the wanted instance is known after
    /// it is steered.
    #[expect(
        clippy::vec_box,
        reason = "a copy goes back into the queue in the box that it came in"
    )]
    arrived: Vec<Box<CapturedPacket>>,
}

/// The addresses and ports of a frame.
fn tuple_of(bytes: &[u8]) -> Option<Tuple> {
    match packet::parse(bytes) {
        Parsed::Flow(info) | Parsed::Fragment(packet::Fragment { info, .. }) => {
            Some(info.key.tuple(info.direction))
        }
        Parsed::Other { .. } | Parsed::Invalid(_) => None,
    }
}

impl Tap {
    pub(crate) fn new() -> Tap {
        Tap {
            capture: None,
            arrived: Vec::with_capacity(BURST_FRAMES),
        }
    }

    /// Whether a capture runs.
    #[inline(always)]
    pub(crate) fn is_on(&self) -> bool {
        self.capture.is_some()
    }

    /// Shows the capture frames of an instance, at that point. Nothing happens while none runs.
    #[inline(always)]
    pub(crate) fn see_instance<'a>(
        &self,
        at: (CapturePoint, Nanos),
        of: Seen,
        frames: impl Iterator<Item = &'a [u8]>,
    ) {
        if let Some(capture) = &self.capture {
            see_all(capture, at, of, frames);
        }
    }

    /// Shows the capture a dropped frame.
    #[cold]
    pub(crate) fn see_dropped(&self, at: Nanos, of: Seen, reason: DropReason, bytes: &[u8]) {
        if let Some(capture) = &self.capture {
            let seen = Sighting {
                reason: Some(reason),
                ..of.sighting(CapturePoint::Dropped, at, bytes)
            };
            capture.see(seen, bytes);
        }
    }
}

#[cold]
fn see_all<'a>(
    capture: &Capture,
    (point, at): (CapturePoint, Nanos),
    of: Seen,
    frames: impl Iterator<Item = &'a [u8]>,
) {
    if !capture.looks_at(point) {
        return;
    }
    for bytes in frames {
        capture.see(of.sighting(point, at, bytes), bytes);
    }
}

/// Whose a packet is, as far as that is known.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) uplink: Option<UplinkId>,
    pub(crate) leaves: bool,
    pub(crate) slot: Option<Slot>,
    pub(crate) instance: Option<InstanceId>,
    pub(crate) service: Option<ServiceId>,
}

impl Seen {
    fn sighting(self, point: CapturePoint, at: Nanos, bytes: &[u8]) -> Sighting {
        Sighting {
            uplink: self.uplink,
            leaves: self.leaves,
            slot: self.slot,
            instance: self.instance,
            service: self.service,
            ..Sighting::at(point, at, tuple_of(bytes))
        }
    }
}

/// The part of a capture in a port: what finds the port's queue full.
pub struct PortTap {
    capture: Arc<Capture>,
    of: Seen,
}

impl PortTap {
    /// Shows the capture a frame that found no room.
    #[cold]
    pub(crate) fn see_full(&self, bytes: &[u8]) {
        let reason = match self.of.leaves {
            true => DropReason::UplinkRingFull,
            false => DropReason::InstanceRingFull,
        };
        self.see_refused(reason, bytes);
    }

    /// Shows the capture a frame that is longer than the port carries.
    #[cold]
    pub(crate) fn see_too_large(&self, bytes: &[u8]) {
        self.see_refused(DropReason::TooLarge, bytes);
    }

    fn see_refused(&self, reason: DropReason, bytes: &[u8]) {
        // A port does not know when the turn began.
        let seen = Sighting {
            reason: Some(reason),
            ..self.of.sighting(CapturePoint::Dropped, clock::monotonic(), bytes)
        };
        self.capture.see(seen, bytes);
    }
}

impl<M: FrameMemory> Ports<M> {
    /// Gives each port its part in the capture, or takes it away.
    #[cold]
    fn tap(&mut self, capture: Option<&Arc<Capture>>) {
        let wanted = capture.filter(|capture| capture.looks_at(CapturePoint::Dropped));
        let part = |of: Seen| {
            wanted.map(|capture| PortTap {
                capture: Arc::clone(capture),
                of,
            })
        };
        for (uplink, port) in (0..).map(UplinkId).zip(self.uplinks.iter_mut()) {
            if let Some(port) = port {
                port.tap(part(Seen {
                    uplink: Some(uplink),
                    leaves: true,
                    ..Seen::default()
                }));
            }
        }
        for &slot in &self.attached {
            if let Some(instance) = &mut self.instances[slot] {
                let of = instance.seen(slot);
                instance.ports().for_each(|port| port.tap(part(of)));
            }
        }
    }
}

impl<M: FrameMemory> Context<M> {
    /// Shows the capture a frame that leaves by an uplink, of that instance.
    #[inline(always)]
    pub(crate) fn see_leaving(&self, bytes: &[u8], uplink: UplinkId, slot: Option<Slot>) {
        if self.tap.is_on() {
            self.see_all_leaving([bytes].into_iter(), uplink, slot);
        }
    }

    /// The same with several.
    #[cold]
    pub(crate) fn see_all_leaving<'a>(
        &self,
        frames: impl Iterator<Item = &'a [u8]>,
        uplink: UplinkId,
        slot: Option<Slot>,
    ) {
        let Some(capture) = &self.tap.capture else { return };
        let route = slot.map(|slot| &self.view.routes[slot]);
        let of = Seen {
            uplink: Some(uplink),
            leaves: true,
            slot,
            instance: route.map(|route| route.instance),
            service: route.map(|route| route.service),
        };
        see_all(capture, (CapturePoint::Uplink, self.now), of, frames);
    }
}

impl<M: FrameMemory> Worker<M> {
    /// Begins a capture, in place of the one before.
    pub(super) fn begin_capture(&mut self, capture: Arc<Capture>) {
        self.cx.ports.tap(Some(&capture));
        self.cx.tap.capture = Some(capture);
    }

    /// Gives ports that came meanwhile their part in the capture.
    pub(super) fn tap_new_ports(&mut self) {
        let Context { ports, tap, .. } = &mut self.cx;
        if tap.is_on() {
            ports.tap(tap.capture.as_ref());
        }
    }

    /// Forgets a capture that is over. The control plane frees it.
    #[cold]
    pub(super) fn end_capture(cx: &mut Context<M>) {
        let Context { ports, tap, .. } = cx;
        if tap.capture.as_ref().is_some_and(|capture| capture.is_over()) {
            ports.tap(None);
            tap.capture = None;
        }
    }

    /// Shows the capture the burst that came by an uplink: those of its packets that this worker steers.
    #[cold]
    pub(super) fn see_arriving(&mut self, uplink: UplinkId) {
        let cx = &mut self.cx;
        let Some(capture) = &cx.tap.capture else { return };
        if !capture.looks_at(CapturePoint::Uplink) {
            return;
        }
        for frame in &self.ingress.frames {
            let bytes = frame.bytes();
            let tuple = tuple_of(bytes);
            if tuple.is_some_and(|tuple| cx.other_owner(&FlowKey::new(&tuple).0).is_some()) {
                continue;
            }
            let plan = &cx.view.plan;
            let place = tuple.and_then(|tuple| plan.classify(|| tuple, uplink));
            let seen = Sighting {
                uplink: Some(uplink),
                service: place.and_then(|place| Some(plan.services.get(place)?.id)),
                ..Sighting::at(CapturePoint::Uplink, cx.now, tuple)
            };
            if capture.slot().is_none() {
                capture.see(seen, bytes);
            } else if capture.wants(&seen)
                && let Some(copy) = capture.copy(seen, bytes)
            {
                cx.tap.arrived.push(copy);
            }
        }
    }

    /// Shows the capture those packets of the burst whose flows have turned out to be of the wanted instance.
    #[cold]
    pub(super) fn see_arrived(&mut self) {
        let Context {
            tap, hasher, view, ..
        } = &mut self.cx;
        let Some(capture) = &tap.capture else { return };
        for mut copy in tap.arrived.drain(..) {
            let pins = copy.seen.tuple.and_then(|tuple| {
                let (key, _) = FlowKey::new(&tuple);
                let entry = self.lookup.table.lookup(&key, hasher.hash(&key))?;
                Some(self.lookup.table.pins(entry))
            });
            match capture.slot() {
                Some(slot) if pins.is_some_and(|pins| pins.contains(&slot)) => {
                    copy.seen.slot = Some(slot);
                    copy.seen.instance = Some(view.routes[slot].instance);
                    capture.put(copy);
                }
                _ => capture.give_back(copy),
            }
        }
    }
}
