//! The state of TCP connections behind one mapping, as far as a mapping's lifetime depends on it (RFC 5382, RFC 7857).
//!
//! A mapping is one internal endpoint. Nearly always that is one connection, and its state is followed exactly. Where
//! a host uses one port for several connections at once, the mapping has the lifetime of an established connection from
//! then on: it lives too long rather than too short.

use packet::TcpFlags;

/// What is known of the connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Phase {
    /// The inside has sent; nothing has come back.
    Opening = 0,
    /// The outside has answered.
    Answered = 1,
    /// Both ends have sent, and the inside again.
    Established = 2,
    /// Both have sent FIN.
    Closed = 3,
    /// One has sent RST, which somebody else may have forged.
    Reset = 4,
}

/// The state in one byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State(u8);

const PHASE: u8 = 0x07;
/// FIN was sent by the inside, and by the outside.
const FIN_INSIDE: u8 = 0x08;
const FIN_OUTSIDE: u8 = 0x10;
/// There have been several connections at once.
const SHARED: u8 = 0x20;
/// A connection has begun at this instance: what another one knows of the mapping is about an earlier connection.
const BEGAN_HERE: u8 = 0x40;

/// What a packet does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) state: State,
    /// The mapping's idle time begins anew.
    pub(super) refreshes: bool,
}

impl State {
    pub(super) const NEW: State = State(Phase::Opening as u8);

    /// A state as a byte, to be moved to another instance; [`None`] if it is none.
    pub(super) fn from_byte(byte: u8) -> Option<State> {
        let is_known =
            byte & PHASE <= Phase::Reset as u8 && byte & !(PHASE | FIN_INSIDE | FIN_OUTSIDE | SHARED) == 0;
        is_known.then_some(State(byte))
    }

    pub(super) fn byte(self) -> u8 {
        self.0 & !BEGAN_HERE
    }

    pub(super) fn phase(self) -> Phase {
        match self.0 & PHASE {
            0 => Phase::Opening,
            1 => Phase::Answered,
            2 => Phase::Established,
            3 => Phase::Closed,
            _ => Phase::Reset,
        }
    }

    fn with(self, phase: Phase) -> State {
        State(self.0 & !PHASE | phase as u8)
    }

    /// Whether the mapping has the lifetime of an established connection.
    #[inline(always)]
    pub(super) fn is_established(self) -> bool {
        self.0 & PHASE == Phase::Established as u8
    }

    /// What is known of the connections where two instances have seen parts of them: the longer lifetime of the two, and
    /// each FIN that one of them has seen. `newer`: what another instance knows.
    pub(super) fn merged(self, newer: State) -> State {
        if self.0 & BEGAN_HERE != 0 {
            return self;
        }
        let seen = (self.0 | newer.0) & (FIN_INSIDE | FIN_OUTSIDE | SHARED);
        let phase = if self.is_established() {
            Phase::Established
        } else {
            newer.phase()
        };
        State(seen | phase as u8).closed()
    }

    /// After a packet from the inside; `is_same`: to the remote endpoint of the packet before it.
    #[inline]
    pub(super) fn outbound(self, flags: TcpFlags, is_same: bool) -> Step {
        // The common case first: data in an established connection.
        if self.is_established() && is_same && flags.0 & TcpFlags::SYN_FIN_RST == 0 {
            return Step {
                state: self,
                refreshes: true,
            };
        }
        let phase = self.phase();
        if flags.rst() {
            // RFC 7857, section 7.1: it does not refresh.
            let state = match self.0 & SHARED {
                0 if is_same => self.with(Phase::Reset),
                _ => self,
            };
            return Step {
                state,
                refreshes: false,
            };
        }
        let mut state = self;
        if !is_same {
            state.0 &= !(FIN_INSIDE | FIN_OUTSIDE);
            state.0 |= if phase == Phase::Established { SHARED } else { 0 };
        }
        let next = match phase {
            _ if state.0 & SHARED != 0 => Phase::Established,
            // A new connection: an old one between the same ends is over.
            _ if flags.syn() => {
                state.0 = state.0 & !(FIN_INSIDE | FIN_OUTSIDE) | BEGAN_HERE;
                Phase::Opening
            }
            Phase::Opening => Phase::Opening,
            Phase::Answered if is_same => Phase::Established,
            Phase::Answered => Phase::Opening,
            Phase::Established => Phase::Established,
            // Acknowledges the last FIN.
            Phase::Closed if is_same => Phase::Closed,
            // Another connection, that began before this one ended; or the RST was not one of the connection.
            Phase::Closed | Phase::Reset => Phase::Established,
        };
        if flags.fin() {
            state.0 |= FIN_INSIDE;
        }
        Step {
            state: state.with(next).closed(),
            refreshes: true,
        }
    }

    /// After a packet from the outside; `is_same`: from the remote endpoint to which the inside has sent last.
    #[inline]
    pub(super) fn inbound(self, flags: TcpFlags, is_same: bool) -> Step {
        let unchanged = |refreshes| Step {
            state: self,
            refreshes,
        };
        if !is_same {
            return unchanged(false);
        }
        let phase = self.phase();
        if phase == Phase::Established && flags.0 & TcpFlags::SYN_FIN_RST == 0 {
            return unchanged(true);
        }
        if flags.rst() {
            let state = match self.0 & SHARED {
                0 => self.with(Phase::Reset),
                _ => self,
            };
            return Step {
                state,
                refreshes: false,
            };
        }
        let mut state = self;
        if flags.fin() {
            state.0 |= FIN_OUTSIDE;
        }
        match phase {
            Phase::Opening => state = state.with(Phase::Answered),
            Phase::Closed | Phase::Reset => return unchanged(false),
            Phase::Answered | Phase::Established => {}
        }
        Step {
            state: state.closed(),
            refreshes: true,
        }
    }

    /// Closed if both ends have sent FIN.
    fn closed(self) -> State {
        let both = FIN_INSIDE | FIN_OUTSIDE;
        if self.0 & both == both && self.0 & SHARED == 0 {
            self.with(Phase::Closed)
        } else {
            self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYN: u8 = TcpFlags::SYN;
    const ACK: u8 = TcpFlags::ACK;
    const FIN: u8 = TcpFlags::FIN | ACK;
    const RST: u8 = TcpFlags::RST;

    /// Packets: whether it goes out, its flags, and whether it is one of the connection before.
    fn after(packets: &[(bool, u8, bool)]) -> State {
        packets
            .iter()
            .fold(State::NEW, |state, &(is_out, flags, is_same)| {
                let flags = TcpFlags(flags);
                let step = if is_out {
                    state.outbound(flags, is_same)
                } else {
                    state.inbound(flags, is_same)
                };
                step.state
            })
    }

    const OPEN: [(bool, u8, bool); 3] = [(true, SYN, true), (false, SYN | ACK, true), (true, ACK, true)];

    #[test]
    fn two_instances_that_saw_a_fin_each_know_that_the_connection_is_closed() {
        let moved = |of: State| State::from_byte(of.byte()).unwrap();
        let open = moved(after(&OPEN));
        let opening = moved(after(&OPEN[..1]));
        let inside = open.outbound(TcpFlags(FIN), true).state;
        let outside = open.inbound(TcpFlags(FIN), true).state;
        assert_eq!(inside.merged(outside).phase(), Phase::Closed);
        assert_eq!(open.merged(outside), outside);
        // One that knows of an established connection keeps it.
        assert_eq!(open.merged(opening), open);
        assert_eq!(opening.merged(open), open);
    }

    #[test]
    fn what_another_instance_knows_of_an_earlier_connection_does_not_close_a_new_one() {
        let closed = [&OPEN[..], &[(true, FIN, true), (false, FIN, true)]].concat();
        let earlier = State::from_byte(after(&closed).byte()).unwrap();
        let mut state = earlier;
        for (is_out, flags, is_same) in OPEN {
            state = match is_out {
                true => state.outbound(TcpFlags(flags), is_same).state,
                false => state.inbound(TcpFlags(flags), is_same).state,
            };
            assert_eq!(state.merged(earlier), state);
        }
        assert_eq!(state.phase(), Phase::Established);
    }

    #[test]
    fn a_connection_opens_and_closes() {
        assert_eq!(after(&OPEN[..1]).phase(), Phase::Opening);
        assert_eq!(after(&OPEN[..2]).phase(), Phase::Answered);
        assert_eq!(after(&OPEN).phase(), Phase::Established);
        let half = [&OPEN[..], &[(true, FIN, true), (false, ACK, true)]].concat();
        assert_eq!(
            after(&half).phase(),
            Phase::Established,
            "the outside may go on sending"
        );
        let closed = [&half[..], &[(false, FIN, true), (true, ACK, true)]].concat();
        assert_eq!(after(&closed).phase(), Phase::Closed);
        let again = [&closed[..], &OPEN].concat();
        assert_eq!(after(&again).phase(), Phase::Established);
    }

    #[test]
    fn a_forged_reset_ends_no_connection_that_goes_on() {
        let reset = [&OPEN[..], &[(false, RST, true)]].concat();
        assert_eq!(after(&reset).phase(), Phase::Reset);
        let from_outside = [&reset[..], &[(false, ACK, true)]].concat();
        assert_eq!(after(&from_outside).phase(), Phase::Reset);
        let from_inside = [&reset[..], &[(true, ACK, true)]].concat();
        assert_eq!(after(&from_inside).phase(), Phase::Established);
        let of_another = [&OPEN[..], &[(false, RST, false)]].concat();
        assert_eq!(after(&of_another).phase(), Phase::Established);
        assert!(!after(&OPEN).inbound(TcpFlags(RST), true).refreshes);
        assert!(!after(&OPEN).outbound(TcpFlags(RST), true).refreshes);
        assert!(!after(&OPEN).inbound(TcpFlags(ACK), false).refreshes);
    }

    #[test]
    fn one_of_several_connections_does_not_end_the_mapping() {
        let two = [
            &OPEN[..],
            &[(true, SYN, false), (false, SYN | ACK, true), (true, ACK, true)],
        ]
        .concat();
        let one_closes = [
            &two[..],
            &[(true, FIN, true), (false, FIN, true), (true, ACK, true)],
        ]
        .concat();
        assert_eq!(after(&one_closes).phase(), Phase::Established);
        let one_resets = [&two[..], &[(false, RST, true)]].concat();
        assert_eq!(after(&one_resets).phase(), Phase::Established);
    }

    #[test]
    fn a_connection_of_the_outside_opens_as_well() {
        let opened = after(&[(true, SYN | ACK, false), (false, ACK, true), (true, ACK, true)]);
        assert_eq!(opened.phase(), Phase::Established);
    }

    #[test]
    fn every_state_is_a_byte_and_no_other_byte_is_one() {
        let states = (0..=u8::MAX).filter_map(State::from_byte).count();
        assert_eq!(states, 5 * 8);
        for state in (0..=u8::MAX).filter_map(State::from_byte) {
            assert_eq!(State::from_byte(state.byte()), Some(state));
        }
    }
}
