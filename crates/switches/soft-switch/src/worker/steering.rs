//! The order of the stages for a burst: ingress, lookup, set-up, egress. Packets go forward only, in their order.

use flow_table::LookupOutcome;
use model::{DropReason, FlowKey, UplinkId, protocol};
use packet::{Offer, PacketInfo, Parsed};

use crate::frame::{Frame as _, FrameMemory};
use crate::message::{Destination, HandOff};
use crate::worker::egress::{Addressee, Decision};
use crate::worker::ingress::{Exception, Origin};
use crate::worker::lookup::{Missed, Outcome};
use crate::worker::moves::Held;
use crate::worker::outbox::Hits;
use crate::worker::replies::ByEdge;
use crate::worker::returns::ByUplink;
use crate::worker::set_up::Opening;
use crate::worker::unknown::TcpPart;
use crate::worker::{BURST_FRAMES, BURSTS_PER_TURN, NEW_FLOWS_PER_TURN, Worker, chain, returns};

impl<M: FrameMemory> Worker<M> {
    /// Takes bursts from all uplinks.
    pub(super) fn poll_uplinks(&mut self) -> usize {
        let mut moved = 0;
        for uplink in (0..UplinkId::LIMIT as u8).map(UplinkId) {
            for _ in 0..BURSTS_PER_TURN {
                let set_ups = self.set_up.count;
                let packets = self.poll_uplink(uplink);
                moved += packets;
                if packets < BURST_FRAMES || self.set_up.count - set_ups > NEW_FLOWS_PER_TURN {
                    break;
                }
            }
        }
        moved
    }

    pub(super) fn poll_uplink(&mut self, uplink: UplinkId) -> usize {
        let packets = self
            .ingress
            .receive(uplink, &mut self.parser, &mut self.lookup, &mut self.cx);
        if packets > 0 {
            self.steer(uplink);
        }
        packets + self.end_looks(uplink)
    }

    /// Takes frames from other workers: as many as each may have handed over in one of its turns.
    pub(super) fn poll_peers(&mut self) -> usize {
        let mut moved = 0;
        for peer in 0..self.ingress.peers() {
            for _ in 0..BURSTS_PER_TURN {
                let packets = self.poll_peer(peer);
                moved += packets;
                if packets < BURST_FRAMES {
                    break;
                }
            }
        }
        moved
    }

    fn poll_peer(&mut self, peer: usize) -> usize {
        let mut arrived = self.ingress.take_handed_over(peer);
        let taken = arrived.len();
        // Frames to steer are gathered into one burst per uplink; a frame of another kind ends the burst.
        let mut burst = None;
        for HandOff { frame, to } in arrived.drain(..) {
            if let Some(uplink) = burst
                && to != Destination::Steering(uplink)
            {
                self.steer_gathered(uplink);
                burst = None;
            }
            match to {
                Destination::Steering(uplink) => {
                    self.ingress.frames.push(frame);
                    burst = Some(uplink);
                }
                Destination::Content(uplink) => self.steer_handed_content(frame, uplink),
                Destination::Look(uplink) => self.steer_handed_look(frame, uplink),
                Destination::CameBack { uplink, from, asked } => {
                    self.look_further(frame, (from, asked), uplink);
                }
                Destination::Instance {
                    slot,
                    instance,
                    service,
                    port,
                } => {
                    let to = Addressee {
                        slot,
                        instance,
                        service,
                        port,
                    };
                    self.egress.send_to_own_instance(frame, to, &mut self.cx);
                }
                Destination::Message { slot, port } => {
                    self.egress.tell(frame, slot, port, &mut self.cx);
                }
                Destination::Said { slot } => self.cx.hear(slot, frame),
                Destination::Uplink(uplink) => self.egress.send_to_own_uplink(frame, uplink, &mut self.cx),
                Destination::Return(of) => {
                    returns::send_counted::<ByUplink, M>(frame, of, &mut self.returned().1);
                }
                Destination::Reply(of) => {
                    returns::send_counted::<ByEdge, M>(frame, of, &mut self.returned().1);
                }
                Destination::OfMachine(from) => self.take_reply(frame, from),
                Destination::Passed(from) => chain::pass_on(frame, from, &mut self.returned().1),
            }
        }
        self.ingress.put_back(arrived);
        if let Some(uplink) = burst {
            self.steer_gathered(uplink);
        }
        self.cx.counters.figures.taken_over.add(taken as u64);
        taken
    }

    fn steer_gathered(&mut self, uplink: UplinkId) {
        self.parser
            .parse(&self.ingress.frames, &self.cx, &mut self.lookup.table);
        self.steer(uplink);
    }

    /// Steers the parsed burst of that uplink. Packets of established flows take the fast path, a step at a time for
    /// the whole burst, so that cache misses of several packets overlap.
    fn steer(&mut self, uplink: UplinkId) {
        let is_captured = self.cx.tap.is_on();
        if is_captured {
            self.see_arriving(uplink);
        }
        if self.egress.lanes_are_stale {
            let table = &self.lookup.table;
            let moves = &self.state_moves;
            let is_usable = |slot| table.is_slot_usable(slot) && !moves.holds_for(slot);
            self.egress.draw_lanes(&self.cx, is_usable);
        }
        // The lists are taken out and put back, so that their memory is used again.
        let mut frames = std::mem::take(&mut self.ingress.frames);
        let count = frames.len();
        self.egress
            .outboxes
            .begin_burst(count, self.parser.sizes, &mut self.cx);
        let places = self.parser.exceptions(count);
        if places != 0 {
            self.ingress
                .parse_exceptions(&frames, places, &self.lookup, &self.cx);
        }
        self.lookup.sample(&frames, uplink, &mut self.cx);
        let mut exceptions = std::mem::take(&mut self.ingress.exceptions);
        let mut others = exceptions.drain(..).peekable();
        let mut rest = frames.drain(..);
        let mut place = 0;
        while place < count {
            if self.parser.burst.has_candidate(place) {
                let hits = Hits {
                    table: &mut self.lookup.table,
                    burst: &self.parser.burst,
                    from: place,
                    now: self.cx.now,
                    lanes: &self.egress.lanes[uplink],
                };
                let bytes = &self.parser.headers.packets.bytes;
                (place, rest) = self.egress.outboxes.put_hits(hits, bytes, rest, &self.cx);
                if place == count {
                    break;
                }
            }
            if self.cx.workers > 1
                && let Some(owner) = self.parser.other_owner(place)
            {
                let Some(frame) = rest.next() else { break };
                let to = Destination::Steering(uplink);
                self.egress.hand_off(owner, frame, to, &mut self.cx);
                place += 1;
                continue;
            }
            let outcome = self.lookup.table.lookup_in_burst(&mut self.parser.burst, place);
            if outcome == LookupOutcome::Hit {
                continue;
            }
            let Some(frame) = rest.next() else { break };
            match outcome {
                LookupOutcome::Miss if self.cx.view.has_other_keys => {
                    let info = self.parser.headers.info(place, frame.bytes());
                    self.steer_unknown(frame, &info, self.parser.burst.hash(place), uplink);
                }
                LookupOutcome::Miss if self.parser.burst.is_opening(place) => {
                    let decision = self.open(frame.bytes(), place, uplink);
                    self.egress.send(frame, decision, uplink, &mut self.cx);
                }
                LookupOutcome::Miss => self.steer_new(frame, place, uplink),
                _ => match others.next_if(|exception| exception.place == place) {
                    Some(exception) => self.steer_exception(frame, exception, uplink),
                    None => self.steer_unestablished(frame, place, uplink),
                },
            }
            place += 1;
        }
        drop(rest);
        drop(others);
        self.ingress.frames = frames;
        self.ingress.exceptions = exceptions;
        if is_captured {
            self.see_arrived();
        }
    }

    /// Sets up the unknown flow of a packet of the current burst, with these bytes.
    #[inline(always)]
    fn open(&mut self, bytes: &[u8], place: usize, uplink: UplinkId) -> Decision {
        let (burst, packets) = (&*self.parser.burst, &self.parser.headers.packets);
        let opening = Opening {
            key: &FlowKey::V4(packets.key(place)),
            direction: packets.direction(place),
            hash: burst.hash(place),
            dscp: self.parser.headers.dscp(place),
            uplink,
            is_icmp_error: false,
            part: if packets.key(place).protocol == protocol::TCP {
                TcpPart::of(self.parser.headers.info(place, bytes).tcp_flags)
            } else {
                TcpPart::None
            },
            of: None,
        };
        let (now, table) = (self.cx.now, &mut self.lookup.table);
        self.set_up
            .open(&opening, None, table, &mut self.cx, |table, to| {
                table.open(burst, place, to.pins, to.service, now)?;
                Ok(false)
            })
    }

    /// Steers a packet of the current burst whose flow is unknown and which cannot open it on the fast path.
    fn steer_new(&mut self, frame: M::Frame, place: usize, uplink: UplinkId) {
        let info = self.parser.headers.info(place, frame.bytes());
        let hash = self.parser.burst.hash(place);
        let decision = self.set_up_packet(&info, hash, Missed::NEW, (uplink, None));
        self.egress.send(frame, decision, uplink, &mut self.cx);
    }

    /// Steers a packet of the current burst that was parsed for the fast path and needs the slow path: it changes its
    /// flow, or the flow is not established, without a lane, or a new one of IPv6.
    fn steer_unestablished(&mut self, frame: M::Frame, place: usize, uplink: UplinkId) {
        if !self.parser.burst.is_v6(place) {
            let info = self.parser.headers.info(place, frame.bytes());
            return self.steer_packet(frame, &info, self.parser.burst.hash(place), uplink);
        }
        let parsed = packet::parse(frame.bytes());
        let hash = self.parser.burst.hash(place);
        let exception = Exception { place, parsed, hash };
        self.steer_exception(frame, exception, uplink);
    }

    /// Steers an exception.
    pub(super) fn steer_exception(&mut self, frame: M::Frame, exception: Exception, uplink: UplinkId) {
        match exception.parsed {
            Parsed::Flow(info) => match self.cx.other_owner(&info.key) {
                Some(owner) => {
                    let to = Destination::Steering(uplink);
                    self.egress.hand_off(owner, frame, to, &mut self.cx);
                }
                None => self.steer_packet(frame, &info, exception.hash, uplink),
            },
            Parsed::Fragment(fragment) => {
                if let Some(owner) = self.cx.other_owner(&fragment.info.key) {
                    let to = Destination::Steering(uplink);
                    return self.egress.hand_off(owner, frame, to, &mut self.cx);
                }
                let offer =
                    self.ingress
                        .fragments
                        .offer(&fragment, (frame, Origin::Uplink(uplink)), self.cx.now);
                match offer {
                    Offer::Resolved { frame, info } => {
                        // The ports are known only now.
                        let mut next = Some((frame, info));
                        while let Some(((frame, from), info)) = next {
                            let hash = self.cx.hasher.hash(&info.key);
                            match from {
                                Origin::Uplink(uplink) => self.steer_packet(frame, &info, hash, uplink),
                                // The network speaks for an instance.
                                Origin::Instance(_) | Origin::Chain(_) => {
                                    self.cx.discard(frame, DropReason::Spoofed)
                                }
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
            Parsed::Other { .. } => {
                let other = (self.cx.view.plan.other, DropReason::Other);
                self.egress.fall_back(frame, uplink, other, &mut self.cx);
            }
            Parsed::Invalid(reason) => self.cx.discard(frame, reason),
        }
    }

    /// Steers one packet of a flow that this worker owns: lookup, and set-up at a miss.
    pub(super) fn steer_packet(
        &mut self,
        mut frame: M::Frame,
        info: &PacketInfo,
        hash: u64,
        uplink: UplinkId,
    ) {
        let outcome = self.lookup.find(info, hash, &self.cx);
        if self.state_moves.holds(&info.key, hash) && !info.is_icmp_error {
            let held = Held {
                frame,
                info: *info,
                hash,
                uplink,
            };
            return self.hold_for_state(held);
        }
        let decision = match outcome {
            Outcome::Hit { slot, service } => Decision::Instance { slot, service },
            Outcome::Miss(missed) => {
                if missed.entry.is_none() && self.cx.view.has_other_keys {
                    return self.steer_unknown(frame, info, hash, uplink);
                }
                match self.take_into_chain(frame, info, &missed, uplink) {
                    Some(left) => frame = left,
                    None => return,
                }
                if self.moves.must_wait(&missed, info, hash, &self.lookup, &self.cx) {
                    let held = Held {
                        frame,
                        info: *info,
                        hash,
                        uplink,
                    };
                    return self.hold(held);
                }
                self.set_up_packet(info, hash, missed, (uplink, None))
            }
        };
        self.egress.send(frame, decision, uplink, &mut self.cx);
    }

    /// Steers a packet without a pin into its chain of services. Gives it back where it has none.
    #[inline]
    pub(super) fn take_into_chain(
        &mut self,
        frame: M::Frame,
        info: &PacketInfo,
        missed: &Missed,
        uplink: UplinkId,
    ) -> Option<M::Frame> {
        if !self.cx.view.chains.are_there {
            return Some(frame);
        }
        chain::take_in(frame, info, missed, uplink, &mut self.returned().1)
    }

    /// `from`: the uplink, and the place of the packet's service in the plan if its key does not say that.
    pub(super) fn set_up_packet(
        &mut self,
        info: &PacketInfo,
        hash: u64,
        missed: Missed,
        from: (UplinkId, Option<usize>),
    ) -> Decision {
        self.set_up
            .place(info, hash, missed, from, &mut self.lookup, &mut self.cx)
    }

    #[cold]
    fn hold(&mut self, held: Held<M::Frame>) {
        if let Err(held) = self.moves.hold(held, self.cx.now) {
            self.release_moves();
            self.send_held(held);
        }
    }

    /// Releases held packets of moving flows.
    #[cold]
    pub(super) fn release_moves(&mut self) {
        self.moves.settle(&self.lookup, &self.cx);
        let before = self.moves.len();
        while let Some(held) = self.moves.next() {
            self.send_held(held);
        }
        if self.moves.len() < before {
            // Makes room in the outboxes for the rest of a current burst.
            self.egress.outboxes.flush(&mut self.cx);
        }
    }

    /// Sends a held packet, counted on arrival, to the instance of its flow. The first one sets the flow up.
    pub(super) fn send_held(&mut self, held: Held<M::Frame>) {
        let Held {
            frame,
            info,
            hash,
            uplink,
        } = held;
        let decision = match self.lookup.find_again(&info, hash, &self.cx) {
            Outcome::Hit { slot, service } => Decision::Instance { slot, service },
            Outcome::Miss(missed) => {
                let of = self.place_of_content(&info.key);
                let decision = self.set_up_packet(&info, hash, missed, (uplink, of));
                if missed.entry.is_some() && matches!(decision, Decision::Instance { .. }) {
                    self.cx.counters.figures.held_moves.add(1);
                }
                decision
            }
        };
        self.egress.send(frame, decision, uplink, &mut self.cx);
    }
}
