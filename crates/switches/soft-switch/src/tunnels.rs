//! Tunnels (VXLAN) by an uplink: the near end, the machines at the far ends, and who may send here.
//!
//! A far end is a neighbour on the uplink's segment. The uplink's home worker asks for its MAC address by ARP, each second
//! once it is known: so a machine that answers no more is noticed, whoever sends packets. All workers read what one
//! writes, in single stores.

use std::cell::Cell;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use flow_table::FlowHasher;
use model::{DropReason, Nanos, Slot, UplinkId};
use packet::vxlan::{self, Mark, Opening, Tunnel};
use packet::{Fragment, Parsed};

use crate::counters::WorkerCounters;
use crate::frame::{Frame, FrameMemory};
use crate::id_map::SlotMap;
use crate::neighbours::number;
use crate::ways_back::WaysBack;

/// How often a machine is asked whose MAC address is known, and one whose is not.
const ASK_KNOWN: Nanos = Nanos::from_secs(1);
const ASK_UNKNOWN: Nanos = Nanos::from_millis(50);
/// A machine that has not answered so many questions does not answer.
const QUESTIONS_LIMIT: u32 = 3;

/// Senders that are told between two looks at the machines, 10 ms, that their packet is too big, at most: the rate of errors
/// has a limit (RFC 1812, section 4.3.2.8; RFC 4443, section 2.4).
pub(crate) const ERRORS_LIMIT: u32 = 10;

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
    /// The key of the hash by which a flow's machines are found, where other edges give flows to the same machines: all
    /// edges have it.
    pub edges_key: Option<[u64; 4]>,
}

/// Packets of tunnels that are not steered as others are.
pub(crate) struct Opened<F> {
    /// Those that a machine sent back, which does not know their flow: taken out of the tunnel, the machine's slot, and how
    /// many machines had been asked before it.
    pub(crate) came_back: Vec<(F, Slot, u8)>,
    /// Those that go back to an edge: as they are to leave.
    pub(crate) going_back: Vec<F>,
    /// Those whose flow another worker may know, with that worker.
    pub(crate) elsewhere: Vec<(F, usize)>,
    /// What an edge took out that was not asked for: replies, if they are from a machine, and its address.
    pub(crate) replies: Vec<(F, Ipv4Addr)>,
}

impl<F> Opened<F> {
    pub(crate) fn with_capacity(frames: usize) -> Opened<F> {
        Opened {
            came_back: Vec::with_capacity(frames),
            going_back: Vec::with_capacity(frames),
            elsewhere: Vec::with_capacity(frames),
            replies: Vec::with_capacity(frames),
        }
    }
}

/// Who knows the flow of a packet that an edge looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// This worker knows it, or the packet begins it.
    Here,
    /// If a worker knows it, this one.
    At(usize),
    /// Nobody here.
    No,
}

/// What becomes of a frame that came in by an uplink with an end of tunnels.
#[derive(Clone, Copy)]
enum Fate {
    Stays,
    Dropped,
    /// It is for another edge: a bridge that has not learnt that one's port gives it to all.
    OfOthers,
    CameBack(Slot, u8),
    GoesBack,
    Elsewhere(usize),
    Reply(Ipv4Addr),
}

/// The tunnels of a switch.
#[derive(Debug, Default)]
pub(crate) struct Tunnels {
    end: Option<TunnelEnd>,
    /// The hash that all edges have.
    edges: Option<FlowHasher>,
    /// The longest frame of its uplink, in bytes.
    max_frame: usize,
    far: SlotMap<Far>,
    /// Where edges are, and which flow came by which.
    ways_back: WaysBack,
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
            edges: end.as_ref().and_then(|end| end.edges_key).map(FlowHasher::new),
            ways_back: end
                .as_ref()
                .map_or_else(WaysBack::default, |end| WaysBack::new(&end.from)),
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

    /// Whether frames of that uplink go through [`Tunnels::open`]. `by_edge`: replies of a service return through the edge.
    #[inline]
    pub(crate) fn opens(&self, uplink: UplinkId, by_edge: bool) -> bool {
        self.end(uplink)
            .is_some_and(|end| by_edge || !end.from.is_empty() || end.edges_key.is_some())
    }

    /// Notes by which edge the flows of these frames come, which are still in their tunnels.
    pub(crate) fn note_edges<F: Frame>(
        &self,
        uplink: UplinkId,
        frames: &[F],
        hasher: &FlowHasher,
        now: Nanos,
    ) {
        let Some(end) = self.end(uplink).filter(|_| self.ways_back.are_to_note()) else {
            return;
        };
        for bytes in frames.iter().map(F::bytes) {
            if let Opening::Inner {
                from,
                network,
                at,
                mark,
            } = vxlan::open(bytes, end.address)
                && network == end.network
                && mark.came_back().is_none()
            {
                let inner = bytes.get(at).unwrap_or_default();
                let hash = || match packet::parse(inner) {
                    Parsed::Flow(info) | Parsed::Fragment(Fragment { info, .. }) => {
                        Some(hasher.hash(&info.key))
                    }
                    Parsed::Other { .. } | Parsed::Invalid(_) => None,
                };
                let mac = bytes.get(6..).and_then(<[u8]>::first_chunk).copied();
                self.ways_back.note(from, hash, mac.unwrap_or_default(), now);
            }
        }
    }

    /// The tunnel by which a reply of the flow with that hash returns, from `mac` of the uplink, if an edge is known.
    pub(crate) fn way_back(
        &self,
        (uplink, mac): (UplinkId, [u8; 6]),
        hash: u64,
        now: Nanos,
    ) -> Option<Tunnel> {
        let end = self.end(uplink)?;
        let (to, next) = self.ways_back.find(hash, now)?;
        Some(Tunnel {
            macs: [mac, next],
            ends: [end.address, to],
            network: end.network,
            mark: Mark::NONE,
        })
    }

    /// The hash by which a flow's machines are found, where there are other edges.
    #[inline]
    pub(crate) fn edges(&self) -> Option<&FlowHasher> {
        self.edges.as_ref()
    }

    /// The address of the machine of a slot.
    pub(crate) fn address(&self, slot: Slot) -> Option<Ipv4Addr> {
        match self.far[slot].address.load(Ordering::Acquire) {
            0 => None,
            address => Some(address.into()),
        }
    }

    /// The slot of the machine with that address.
    #[cold]
    fn slot_of(&self, address: Ipv4Addr) -> Option<Slot> {
        let mut slots = (0..).map(Slot).zip(self.far.iter());
        let its = |far: &Far| far.address.load(Ordering::Acquire) == address.to_bits();
        slots.find_map(|(slot, far)| its(far).then_some(slot))
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

    /// A frame came in by an uplink that no service takes: learns from it, if it is the answer to a question, or an edge asks.
    #[cold]
    pub(crate) fn hear(&self, uplink: UplinkId, frame: &[u8], now: Nanos) {
        let Some(end) = self.end(uplink) else { return };
        if let Some((from, mac)) = vxlan::question(frame, end.address) {
            return self.ways_back.hear(from, mac, now);
        }
        let Some((from, mac)) = vxlan::reply(frame, end.address) else {
            return;
        };
        let mac = number(mac);
        for far in self.far.iter() {
            let asked = far.asked_at.load(Ordering::Relaxed) != 0;
            if asked && far.address.load(Ordering::Acquire) == from.to_bits() {
                far.mac.store(mac, Ordering::Relaxed);
                far.unanswered.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Takes frames that came in by an uplink out of their tunnels. What is not to be taken out is counted and leaves the
    /// list. `by_edge`: an edge takes replies out. `known` says of a packet whose flow an edge looks for who knows it.
    pub(crate) fn open<M: FrameMemory>(
        &self,
        (uplink, mac, by_edge): (UplinkId, Option<[u8; 6]>, bool),
        frames: &mut Vec<M::Frame>,
        opened: &mut Opened<M::Frame>,
        (memory, counters): (&mut M, &WorkerCounters),
        mut known: impl FnMut(&[u8]) -> Known,
        mut see_dropped: impl FnMut(DropReason, &[u8]),
    ) {
        let Some(end) = self.end(uplink) else { return };
        let fate = Cell::new(Fate::Stays);
        for frame in frames.extract_if(.., |frame| {
            fate.set(self.fate((end, mac, by_edge), frame, &mut known));
            !matches!(fate.get(), Fate::Stays)
        }) {
            match fate.get() {
                Fate::CameBack(slot, asked) => opened.came_back.push((frame, slot, asked)),
                Fate::GoesBack => opened.going_back.push(frame),
                Fate::Elsewhere(worker) => opened.elsewhere.push((frame, worker)),
                Fate::Reply(from) => opened.replies.push((frame, from)),
                other => {
                    let reason = if matches!(other, Fate::OfOthers) {
                        DropReason::Unmatched
                    } else {
                        DropReason::Tunnel
                    };
                    see_dropped(reason, frame.bytes());
                    counters.drop_packets(reason, 1);
                    memory.give(frame);
                }
            }
        }
    }

    /// What becomes of a frame. One that stays or came back is taken out of its tunnel; one that goes back is made ready.
    fn fate<F: Frame>(
        &self,
        (end, mac, by_edge): (&TunnelEnd, Option<[u8; 6]>, bool),
        frame: &mut F,
        known: &mut impl FnMut(&[u8]) -> Known,
    ) -> Fate {
        let to = frame.bytes().first_chunk::<6>();
        if end.edges_key.is_some() && to.is_some_and(|to| to[0] & 1 == 0 && mac.is_some_and(|mac| mac != *to))
        {
            return Fate::OfOthers;
        }
        let (from, at, mark) = match vxlan::open(frame.bytes(), end.address) {
            Opening::Other => return Fate::Stays,
            Opening::Inner {
                from,
                network,
                at,
                mark,
            } if network == end.network => (from, at, mark),
            Opening::Inner { .. } | Opening::Malformed => return Fate::Dropped,
        };
        let fate = match mark.came_back() {
            Some(asked) if end.edges_key.is_some() => match self.slot_of(from) {
                Some(slot) => Fate::CameBack(slot, asked),
                None => return Fate::Dropped,
            },
            None if end.from.contains(&from) => Fate::Stays,
            None if by_edge && end.from.is_empty() && !mark.is_looking() => Fate::Reply(from),
            _ => return Fate::Dropped,
        };
        if mark.is_looking() {
            match known(frame.bytes().get(at.clone()).unwrap_or_default()) {
                Known::Here => {}
                Known::At(worker) => return Fate::Elsewhere(worker),
                Known::No => {
                    vxlan::turn_back(frame.bytes_mut(), &at);
                    return Fate::GoesBack;
                }
            }
        }
        let len = at.len();
        frame.bytes_mut().copy_within(at, 0);
        frame.set_len(len);
        // Who answers from the address that a packet was sent to does so from this machine's: from the edge's, bridges
        // would learn that the edge is here.
        if let (Fate::Stays, Some(mac), Some(to)) = (fate, mac, frame.bytes_mut().first_chunk_mut::<6>()) {
            *to = mac;
        }
        fate
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
            edges_key: None,
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
