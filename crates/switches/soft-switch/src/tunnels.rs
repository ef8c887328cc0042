//! Tunnels (VXLAN) by an uplink: the near end, the machines at the far ends, and who may send here.
//!
//! A far end is a neighbour on the uplink's segment. The uplink's home worker asks for its MAC address by ARP, each second
//! once it is known: so a machine that answers no more is noticed, whoever sends packets. All workers read what one
//! writes, in single stores.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use model::{DropReason, Nanos, Slot, UplinkId};
use packet::vxlan::{self, Opening, Tunnel};

use crate::counters::WorkerCounters;
use crate::frame::{Frame, FrameMemory};
use crate::id_map::SlotMap;

/// How often a machine is asked whose MAC address is known, and one whose is not.
const ASK_KNOWN: Nanos = Nanos::from_secs(1);
const ASK_UNKNOWN: Nanos = Nanos::from_millis(50);
/// A machine that has not answered so many questions does not answer.
const QUESTIONS_LIMIT: u32 = 3;

/// Senders that are told between two looks at the machines, 10 ms, that their packet is too big, at most: the rate of errors
/// has a limit (RFC 1812, section 4.3.2.8; RFC 4443, section 2.4).
const ERRORS_LIMIT: u32 = 10;

/// Bytes of two VLAN tags, which the longest frame of an uplink has beside the MTU. Outer packets have no tags.
const TAGS: usize = 8;

/// The near end of tunnels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelEnd {
    /// The uplink that carries them.
    pub uplink: UplinkId,
    /// Its address, which no other network stack has.
    pub address: Ipv4Addr,
    /// The network's number (VNI).
    pub network: u32,
    /// Far ends whose packets are taken out of the tunnel.
    pub from: Vec<Ipv4Addr>,
}

/// The tunnels of a switch.
#[derive(Debug, Default)]
pub(crate) struct Tunnels {
    end: Option<TunnelEnd>,
    /// The longest frame of its uplink, in bytes.
    max_frame: usize,
    far: SlotMap<Far>,
    /// Errors about packets that are too big, since the last look at the machines.
    errors: AtomicU32,
}

/// The machine of a slot.
#[derive(Debug, Default)]
struct Far {
    /// Its address; 0: the slot has none.
    address: AtomicU32,
    /// Its MAC address; 0: it is not known.
    mac: AtomicU64,
    /// Questions since it answered last, and when it was asked.
    unanswered: AtomicU32,
    asked_at: AtomicU64,
}

impl Tunnels {
    /// With that end, on an uplink of frames of at most `max_frame` bytes.
    pub(crate) fn new(end: Option<TunnelEnd>, max_frame: usize) -> Tunnels {
        Tunnels {
            end,
            max_frame,
            far: SlotMap::default(),
            errors: AtomicU32::new(0),
        }
    }

    /// Whether one more sender may be told now that its packet is too big.
    #[cold]
    pub(crate) fn may_tell_sender(&self) -> bool {
        // Beyond the limit it does not count further.
        let is_below = |errors| (errors < ERRORS_LIMIT).then_some(errors + 1);
        self.errors
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, is_below)
            .is_ok()
    }

    /// Whether the uplink has an end of tunnels.
    pub(crate) fn end(&self, uplink: UplinkId) -> Option<&TunnelEnd> {
        self.end.as_ref().filter(|end| end.uplink == uplink)
    }

    /// Whether packets of tunnels are taken out there: then others answer for services' addresses.
    #[inline]
    pub(crate) fn receives(&self, uplink: UplinkId) -> bool {
        self.end(uplink).is_some_and(|end| !end.from.is_empty())
    }

    /// The end, if there is one.
    pub(crate) fn only(&self) -> Option<&TunnelEnd> {
        self.end.as_ref()
    }

    /// The longest frame that a tunnel carries, in bytes: what the interface's MTU leaves.
    pub(crate) fn frame_limit(&self) -> usize {
        self.max_frame.saturating_sub(TAGS + vxlan::OVERHEAD)
    }

    /// A slot has a machine at that address from now on, or none.
    pub(crate) fn set(&self, slot: Slot, address: Option<Ipv4Addr>) {
        let far = &self.far[slot];
        far.mac.store(0, Ordering::Relaxed);
        far.unanswered.store(0, Ordering::Relaxed);
        far.asked_at.store(0, Ordering::Relaxed);
        far.address
            .store(address.map_or(0, Ipv4Addr::to_bits), Ordering::Release);
    }

    /// The machine of a slot, once its MAC address is known.
    #[inline]
    pub(crate) fn find(&self, slot: Slot) -> Option<(Ipv4Addr, [u8; 6])> {
        let far = &self.far[slot];
        let (address, mac) = (
            far.address.load(Ordering::Acquire),
            far.mac.load(Ordering::Relaxed),
        );
        let [_, _, bytes @ ..] = mac.to_be_bytes();
        (address != 0 && mac != 0).then_some((address.into(), bytes))
    }

    /// The machine of a slot does not answer any more, and another one does. If none does, it is this machine that does not
    /// hear.
    pub(crate) fn is_silent(&self, slot: Slot) -> bool {
        // Of one that is known, and asked each second.
        let unanswered = |far: &Far| {
            let is_known = far.mac.load(Ordering::Relaxed) != 0;
            is_known.then(|| far.unanswered.load(Ordering::Relaxed))
        };
        let is_it = unanswered(&self.far[slot]).is_some_and(|count| count > QUESTIONS_LIMIT);
        // What is lost for all is not answered by any for as long.
        is_it
            && self
                .far
                .iter()
                .any(|far| unanswered(far).is_some_and(|count| count <= 1))
    }

    /// Calls `ask` with the slot and the address of each machine that is to be asked now.
    #[cold]
    pub(crate) fn questions(&self, now: Nanos, mut ask: impl FnMut(&TunnelEnd, Slot, Ipv4Addr)) {
        let Some(end) = &self.end else { return };
        self.errors.store(0, Ordering::Relaxed);
        for (slot, far) in (0..).map(Slot).zip(self.far.iter()) {
            let address = far.address.load(Ordering::Acquire);
            if address == 0 {
                continue;
            }
            let is_known = far.mac.load(Ordering::Relaxed) != 0;
            let pause = if is_known { ASK_KNOWN } else { ASK_UNKNOWN };
            let asked_at = far.asked_at.load(Ordering::Relaxed);
            if asked_at == 0 || now.since(Nanos(asked_at)) >= pause {
                far.asked_at.store(now.0.max(1), Ordering::Relaxed);
                // Only one worker writes while it asks; an answer sets it to 0.
                let unanswered = far.unanswered.load(Ordering::Relaxed).saturating_add(1);
                far.unanswered.store(unanswered, Ordering::Relaxed);
                ask(end, slot, address.into());
            }
        }
    }

    /// A frame came in by an uplink that no service takes: learns from it, if it is the answer to a question.
    #[cold]
    pub(crate) fn hear(&self, uplink: UplinkId, frame: &[u8]) {
        let Some((from, mac)) = self.end(uplink).and_then(|end| vxlan::reply(frame, end.address)) else {
            return;
        };
        let mac = mac.into_iter().fold(0, |mac, byte| mac << 8 | u64::from(byte));
        for far in self.far.iter() {
            let asked = far.asked_at.load(Ordering::Relaxed) != 0;
            if asked && far.address.load(Ordering::Acquire) == from.to_bits() {
                far.mac.store(mac, Ordering::Relaxed);
                far.unanswered.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Takes frames that came in by an uplink out of their tunnels. What is not to be taken out becomes empty, is counted
    /// and leaves the list.
    pub(crate) fn open<M: FrameMemory>(
        &self,
        uplink: UplinkId,
        frames: &mut Vec<M::Frame>,
        memory: &mut M,
        counters: &WorkerCounters,
        mut see_dropped: impl FnMut(&[u8]),
    ) {
        let Some(end) = self.end(uplink) else { return };
        let mut dropped = 0;
        for frame in frames.extract_if(.., |frame| match vxlan::open(frame.bytes(), end.address) {
            Opening::Other => false,
            Opening::Inner { from, network, at } if network == end.network && end.from.contains(&from) => {
                let len = at.len();
                frame.bytes_mut().copy_within(at, 0);
                frame.set_len(len);
                false
            }
            Opening::Inner { .. } | Opening::Malformed => true,
        }) {
            see_dropped(frame.bytes());
            dropped += 1;
            memory.give(frame);
        }
        counters.drop_packets(DropReason::Tunnel, dropped);
    }

    /// Puts a frame into the tunnel to the machine of a slot. Whether it has room in front.
    #[inline]
    pub(crate) fn wrap<F: Frame>(tunnel: &Tunnel, frame: &mut F) -> bool {
        let (len, hash) = (frame.len(), vxlan::flow_hash(frame.bytes()));
        let Some(front) = frame.add_front(vxlan::OVERHEAD) else {
            return false;
        };
        let header = front.first_chunk_mut::<{ vxlan::OVERHEAD }>();
        header.is_some_and(|header| tunnel.put(header, len, hash).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_of_errors_has_a_limit() {
        let end = TunnelEnd {
            uplink: UplinkId(0),
            address: Ipv4Addr::new(10, 0, 0, 1),
            network: 7,
            from: Vec::new(),
        };
        let tunnels = Tunnels::new(Some(end), 1_522);
        let told = || (0..1_000).filter(|_| tunnels.may_tell_sender()).count();
        for look in 0..3 {
            assert_eq!(told(), ERRORS_LIMIT as usize);
            assert_eq!(told(), 0);
            tunnels.questions(Nanos::from_millis(10 * look), |_, _, _| {});
        }
    }
}
