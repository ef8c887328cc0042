//! Ingress: bursts of frames come from uplinks and from other workers, and exceptions are listed.

use model::{DropReason, UplinkId};
use packet::{FragmentTracker, Parsed};
use rtrb::Consumer;

use crate::BURST_FRAMES;
use crate::frame::{Frame as _, FrameMemory};
use crate::message::{HandOff, Passed, Returned};
use crate::port::Queue as _;
use crate::tunnels::Opened;
use crate::worker::context::Context;
use crate::worker::looks::known;
use crate::worker::lookup::Lookup;
use crate::worker::parse::Parser;
use crate::worker::tap::Seen;

/// A packet of a burst that is not fast-path eligible.
pub(crate) struct Exception {
    /// Its place in the burst.
    pub(crate) place: usize,
    pub(crate) parsed: Parsed,
    /// Its flow's hash, where it is [`Parsed::Flow`].
    pub(crate) hash: u64,
}

/// Where a fragment came from.
#[derive(Clone, Copy)]
pub(crate) enum Origin {
    /// The network, by that uplink.
    Uplink(UplinkId),
    /// An instance whose packets are translated.
    Instance(Returned),
    /// An instance of a chain of services.
    Chain(Passed),
}

/// The first stage of a packet.
pub(crate) struct Ingress<M: FrameMemory> {
    /// Received frames of the current burst.
    pub(crate) frames: Vec<M::Frame>,
    /// The exceptions among them, in their order.
    pub(crate) exceptions: Vec<Exception>,
    /// Packets of tunnels that are not steered with the burst.
    pub(crate) opened: Opened<M::Frame>,
    /// Fragments that wait for their first one.
    pub(crate) fragments: FragmentTracker<(M::Frame, Origin)>,
    /// Datagrams in fragments that instances send which end connections, by instance. None waits here.
    pub(crate) own_fragments: FragmentTracker<()>,
    /// Rings from the other workers, by worker; `None` at its own place.
    from_peers: Vec<Option<Consumer<HandOff<M::Frame>>>>,
    /// Frames from another worker.
    arrived: Vec<HandOff<M::Frame>>,
}

impl<M: FrameMemory> Ingress<M> {
    pub(crate) fn new(
        fragment_key: [u64; 2],
        from_peers: Vec<Option<Consumer<HandOff<M::Frame>>>>,
    ) -> Ingress<M> {
        Ingress {
            frames: Vec::with_capacity(BURST_FRAMES),
            exceptions: Vec::with_capacity(BURST_FRAMES),
            opened: Opened::with_capacity(BURST_FRAMES),
            fragments: FragmentTracker::new(fragment_key),
            own_fragments: FragmentTracker::new(fragment_key),
            from_peers,
            arrived: Vec::with_capacity(BURST_FRAMES),
        }
    }

    /// Receives a burst from an uplink, and parses it. Gives how many packets it has.
    #[inline(always)]
    pub(crate) fn receive(
        &mut self,
        uplink: UplinkId,
        parser: &mut Parser,
        lookup: &mut Lookup,
        cx: &mut Context<M>,
    ) -> usize {
        let Some(port) = &mut cx.ports.uplinks[uplink] else {
            return 0;
        };
        let mut received = port.receive(&mut cx.memory, &mut self.frames, BURST_FRAMES);
        if received.packets == 0 && received.bad + received.too_large == 0 {
            return 0;
        }
        cx.ports.uplinks_gave = true;
        let all = self.frames.len();
        if cx.ends.tunnels().opens(uplink, cx.view.replies_by_edge) {
            let mut frames = std::mem::take(&mut self.frames);
            self.open(&mut frames, uplink, lookup, cx);
            self.frames = frames;
        }
        let away = (all - self.frames.len()) as u64;
        let (mut lengths, segments) = parser.parse(&self.frames, cx, &mut lookup.table);
        if let Some(port) = &mut cx.ports.uplinks[uplink]
            && !port.are_valid(lengths.longest as usize, segments)
        {
            received.too_large += port.linearize_or_drop(&mut self.frames, &mut cx.memory);
            (lengths, _) = parser.parse(&self.frames, cx, &mut lookup.table);
        }
        let packets = self.frames.len();
        let bad = received.bad + received.too_large;
        let counters = &cx.counters.uplinks[uplink];
        counters.received_packets.add(packets as u64 + away + bad);
        counters.received_bytes.add(lengths.bytes);
        cx.counters.figures.received.add(packets as u64 + away + bad);
        cx.counters.drop_packets(DropReason::BadDescriptor, received.bad);
        cx.counters.drop_packets(DropReason::TooLarge, received.too_large);
        packets
    }

    /// Takes frames that came in by an uplink with an end of tunnels out of these.
    pub(crate) fn open(
        &mut self,
        frames: &mut Vec<M::Frame>,
        uplink: UplinkId,
        lookup: &mut Lookup,
        cx: &mut Context<M>,
    ) {
        let by_edge = cx.view.replies_by_edge;
        if by_edge {
            cx.ends.tunnels().note_edges(uplink, frames, &cx.hasher, cx.now);
        }
        let (tap, now) = (&mut cx.tap, cx.now);
        let of = Seen {
            uplink: Some(uplink),
            ..Seen::default()
        };
        cx.ends.tunnels().open(
            (uplink, cx.ends.mac(uplink), by_edge),
            frames,
            &mut self.opened,
            (&mut cx.memory, &cx.counters),
            known(&mut lookup.table, &cx.view, cx.hasher, (cx.id, cx.workers)),
            |reason, bytes| tap.see_dropped(now, of, reason, bytes),
        );
    }

    /// Parses the frames of the burst in these places, and prefetches the table entries of their flows.
    #[cold]
    pub(crate) fn parse_exceptions(
        &mut self,
        frames: &[M::Frame],
        places: u64,
        lookup: &Lookup,
        cx: &Context<M>,
    ) {
        for (place, frame) in frames.iter().enumerate() {
            if places >> place & 1 == 0 {
                continue;
            }
            let parsed = packet::parse(frame.bytes());
            let mut hash = 0;
            if let Parsed::Flow(info) = &parsed {
                hash = cx.hasher.hash(&info.key);
                lookup.table.prefetch(&info.key, hash);
            }
            self.exceptions.push(Exception { place, parsed, hash });
        }
        for Exception { parsed, hash, .. } in &self.exceptions {
            if let Parsed::Flow(info) = parsed {
                lookup.table.prefetch_candidate(&info.key, *hash);
            }
        }
    }

    /// Number of workers that may hand frames over, this one included.
    pub(crate) fn peers(&self) -> usize {
        self.from_peers.len()
    }

    /// Takes a burst of frames from another worker. The list is to be [given back](Ingress::put_back).
    pub(crate) fn take_handed_over(&mut self, peer: usize) -> Vec<HandOff<M::Frame>> {
        let mut arrived = std::mem::take(&mut self.arrived);
        if let Some(Some(ring)) = self.from_peers.get_mut(peer)
            && let Ok(chunk) = ring.read_chunk(ring.slots().min(BURST_FRAMES))
        {
            arrived.extend(chunk);
        }
        arrived
    }

    /// Takes the empty list back, so that its room is used again.
    pub(crate) fn put_back(&mut self, arrived: Vec<HandOff<M::Frame>>) {
        self.arrived = arrived;
    }

    /// Frames from other workers.
    pub(crate) fn in_rings(&self) -> usize {
        self.from_peers.iter().flatten().map(Consumer::slots).sum()
    }
}
