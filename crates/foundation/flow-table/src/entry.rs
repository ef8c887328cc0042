//! The layout of one flow's words; see the crate's page for the picture.

use model::{Direction, FlowKey, FlowKeyV4, FlowKeyV6, Slot, protocol};

use crate::TcpState;

/// A key as words. One holds ports, VLAN and protocol; its upper byte is free and holds the entry's
/// [`State`]. The addresses take one word (IPv4) or four (IPv6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyWords<const N: usize> {
    pub(crate) ports: u64,
    pub(crate) addresses: [u64; N],
}

/// The bits of the ports word that belong to the key.
pub(crate) const PORTS_MASK: u64 = u64::MAX >> 8;

#[inline(always)]
fn ports(a_port: u16, b_port: u16, vlan: u16, protocol: u8) -> u64 {
    u64::from(a_port) | u64::from(b_port) << 16 | u64::from(vlan) << 32 | u64::from(protocol) << 48
}

impl KeyWords<1> {
    #[inline(always)]
    pub(crate) fn v4(key: &FlowKeyV4) -> Self {
        let (a, b) = (u32::from_le_bytes(key.a), u32::from_le_bytes(key.b));
        KeyWords {
            ports: ports(key.a_port, key.b_port, key.vlan, key.protocol),
            addresses: [u64::from(a) | u64::from(b) << 32],
        }
    }

    #[inline(always)]
    pub(crate) fn vlan(self) -> u16 {
        (self.ports >> 32) as u16
    }

    pub(crate) fn key(self) -> FlowKey {
        let [addresses] = self.addresses;
        FlowKey::V4(FlowKeyV4 {
            a: (addresses as u32).to_le_bytes(),
            b: ((addresses >> 32) as u32).to_le_bytes(),
            a_port: self.ports as u16,
            b_port: (self.ports >> 16) as u16,
            vlan: (self.ports >> 32) as u16,
            protocol: protocol_of(self.ports),
            zero: 0,
        })
    }
}

impl KeyWords<4> {
    #[inline(always)]
    pub(crate) fn v6(key: &FlowKeyV6) -> Self {
        let (a, b) = (u128::from_le_bytes(key.a), u128::from_le_bytes(key.b));
        KeyWords {
            ports: ports(key.a_port, key.b_port, key.vlan, key.protocol),
            addresses: [a as u64, (a >> 64) as u64, b as u64, (b >> 64) as u64],
        }
    }

    pub(crate) fn key(self) -> FlowKey {
        let [a0, a1, b0, b1] = self.addresses.map(u128::from);
        FlowKey::V6(FlowKeyV6 {
            a: (a0 | a1 << 64).to_le_bytes(),
            b: (b0 | b1 << 64).to_le_bytes(),
            a_port: self.ports as u16,
            b_port: (self.ports >> 16) as u16,
            vlan: (self.ports >> 32) as u16,
            protocol: protocol_of(self.ports),
            zero: 0,
        })
    }
}

/// The protocol of a ports word.
#[inline(always)]
pub(crate) const fn protocol_of(ports: u64) -> u8 {
    (ports >> 48) as u8
}

/// The upper byte of an entry's first word: phase in bits 0–2 (0: free entry), the opener's direction in bit
/// 3, "this direction's pin was lost with its failed instance" in bits 4 and 5, "the carry words are in use"
/// in bit 6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State(pub(crate) u8);

impl State {
    const PHASE: u8 = 0b111;
    const OPENER: u8 = 1 << 3;
    const MOVED: u8 = 1 << 4;
    const CARRIED: u8 = 1 << 6;

    #[inline(always)]
    pub(crate) const fn of(ports: u64) -> State {
        State((ports >> 56) as u8)
    }

    #[inline(always)]
    pub(crate) const fn put(self, ports: u64) -> u64 {
        ports & PORTS_MASK | (self.0 as u64) << 56
    }

    /// The state of a new flow.
    pub(crate) const fn new(protocol: u8, opener: Direction) -> State {
        let phase = if protocol == protocol::TCP {
            Phase::HANDSHAKE
        } else {
            Phase::NOT_TCP
        };
        State(phase.0 | if opener.index() == 0 { 0 } else { State::OPENER })
    }

    #[inline(always)]
    pub(crate) const fn phase(self) -> Phase {
        Phase(self.0 & State::PHASE)
    }

    #[inline(always)]
    pub(crate) const fn with_phase(self, phase: Phase) -> State {
        State(self.0 & !State::PHASE | phase.0)
    }

    /// Whether only SYN, FIN and RST can change the state: not TCP, or established (phases 1 and 3).
    #[inline(always)]
    pub(crate) const fn is_established(self) -> bool {
        self.0 & 0b101 == 0b001
    }

    #[inline(always)]
    pub(crate) const fn is_free(self) -> bool {
        self.phase().0 == 0
    }

    pub(crate) const fn opener(self) -> Direction {
        if self.0 & State::OPENER == 0 {
            Direction::Forward
        } else {
            Direction::Reverse
        }
    }

    #[inline(always)]
    pub(crate) const fn is_carried(self) -> bool {
        self.0 & State::CARRIED != 0
    }

    pub(crate) const fn carried(self) -> State {
        State(self.0 | State::CARRIED)
    }

    pub(crate) const fn is_moved(self, direction: usize) -> bool {
        self.0 & State::MOVED << direction != 0
    }

    pub(crate) const fn with_moved(self, direction: usize, moved: bool) -> State {
        let bit = State::MOVED << direction;
        State(if moved { self.0 | bit } else { self.0 & !bit })
    }

    /// Whether a flow of this protocol can have this state; false for a free entry.
    pub(crate) const fn is_valid(self, protocol: u8) -> bool {
        let phase = self.phase().0;
        let phases = if protocol == protocol::TCP {
            Phase::HANDSHAKE.0 <= phase && phase <= Phase::CLOSED.0
        } else {
            phase == Phase::NOT_TCP.0
        };
        phases && self.0 >> 7 == 0
    }
}

/// The TCP phase of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Phase(u8);

impl Phase {
    pub(crate) const NOT_TCP: Phase = Phase(1);
    pub(crate) const HANDSHAKE: Phase = Phase(2);
    pub(crate) const ESTABLISHED: Phase = Phase(3);
    const FIN_FORWARD: Phase = Phase(4);
    const FIN_REVERSE: Phase = Phase(5);
    pub(crate) const CLOSED: Phase = Phase(6);

    pub(crate) const fn half_closed(direction: Direction) -> Phase {
        match direction {
            Direction::Forward => Phase::FIN_FORWARD,
            Direction::Reverse => Phase::FIN_REVERSE,
        }
    }

    pub(crate) const fn tcp(self) -> TcpState {
        match self {
            Phase::HANDSHAKE => TcpState::Handshake,
            Phase::ESTABLISHED => TcpState::Established,
            Phase::FIN_FORWARD => TcpState::FinForward,
            Phase::FIN_REVERSE => TcpState::FinReverse,
            Phase::CLOSED => TcpState::Closed,
            _ => TcpState::None,
        }
    }
}

/// A direction's word: low parts of the packet count in bits 0–15 and of the byte count in 16–39, the pin in
/// 40–50, half of the last packet's tick in 51–63 (the upper half with `Forward`, the lower one with
/// `Reverse`).
pub(crate) mod half {
    use model::Slot;

    pub(crate) const PACKETS_BITS: u32 = 16;
    pub(crate) const BYTES_BITS: u32 = 24;
    pub(crate) const PACKETS_MASK: u64 = (1 << PACKETS_BITS) - 1;
    pub(crate) const BYTES_MASK: u64 = (1 << BYTES_BITS) - 1;
    pub(crate) const COUNTERS_BITS: u32 = PACKETS_BITS + BYTES_BITS;
    pub(crate) const COUNTERS_MASK: u64 = (1 << COUNTERS_BITS) - 1;
    pub(crate) const PIN_SHIFT: u32 = COUNTERS_BITS;
    pub(crate) const PIN_MASK: u64 = (1 << 11) - 1;
    pub(crate) const SEEN_SHIFT: u32 = 51;
    pub(crate) const SEEN_BITS: u32 = 13;
    pub(crate) const BELOW_SEEN: u64 = (1 << SEEN_SHIFT) - 1;

    /// The bits of a pin to a slot below [`Slot::LIMIT`], or of no pin.
    #[inline(always)]
    pub(crate) const fn usable_pin(slot: Slot) -> u64 {
        (slot.0 as u64 & PIN_MASK) << PIN_SHIFT
    }

    /// The bits of a tick that an entry stores.
    pub(crate) const SEEN_MASK: u64 = (1 << (2 * SEEN_BITS)) - 1;

    /// The stored bits of the tick at which a flow was last seen.
    #[inline(always)]
    pub(crate) const fn seen_of(forward: u64, reverse: u64) -> u64 {
        (forward >> SEEN_SHIFT) << SEEN_BITS | reverse >> SEEN_SHIFT
    }

    /// The bits of a tick in the words of `Forward` and `Reverse`.
    #[inline(always)]
    pub(crate) const fn seen(tick: u64) -> [u64; 2] {
        [tick >> SEEN_BITS << SEEN_SHIFT, tick << SEEN_SHIFT]
    }
}

/// The stored pin of a direction's word, even if its slot is being purged.
#[inline(always)]
pub(crate) const fn raw_pin(word: u64) -> Slot {
    let pin = (word >> half::PIN_SHIFT & half::PIN_MASK) as u16;
    if pin as usize >= Slot::LIMIT {
        Slot::NONE
    } else {
        Slot(pin)
    }
}

/// The word with another pin; a slot beyond the limit becomes no pin.
#[inline(always)]
pub(crate) const fn with_pin(word: u64, slot: Slot) -> u64 {
    let pin = if slot.index() < Slot::LIMIT {
        slot.0 as u64
    } else {
        half::PIN_MASK
    };
    word & !(half::PIN_MASK << half::PIN_SHIFT) | pin << half::PIN_SHIFT
}

/// Whether a pin found in storage is possible.
pub(crate) const fn is_pin_valid(word: u64) -> bool {
    let pin = word >> half::PIN_SHIFT & half::PIN_MASK;
    (pin as usize) < Slot::LIMIT || pin == half::PIN_MASK
}

#[cfg(test)]
mod tests {
    use model::FlowKeyV6;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn keys_survive_the_round_trip_through_words(a: [u8; 16], b: [u8; 16], a_port: u16, b_port: u16, vlan: u16, protocol: u8) {
            let v6 = FlowKeyV6 { a, b, a_port, b_port, vlan, protocol, zero: 0 };
            prop_assert_eq!(KeyWords::v6(&v6).key(), FlowKey::V6(v6));
            let (Some(a), Some(b)) = (a.first_chunk(), b.first_chunk()) else { unreachable!() };
            let v4 = FlowKeyV4 { a: *a, b: *b, a_port, b_port, vlan, protocol, zero: 0 };
            let words = KeyWords::v4(&v4);
            prop_assert_eq!(words.key(), FlowKey::V4(v4));
            prop_assert_eq!(words.ports & !PORTS_MASK, 0);
            prop_assert_eq!(protocol_of(words.ports), protocol);
            let state = State::new(protocol, Direction::Reverse).carried();
            prop_assert_eq!(state.put(words.ports) & PORTS_MASK, words.ports);
            prop_assert_eq!(State::of(state.put(words.ports)), state);
            prop_assert!(state.is_valid(protocol) && !state.is_free());
        }

        #[test]
        fn writing_a_pin_changes_nothing_else_in_the_word(word: u64, slot in 0_u16..=u16::MAX) {
            let with = with_pin(word, Slot(slot));
            let expected = if usize::from(slot) < Slot::LIMIT { Slot(slot) } else { Slot::NONE };
            prop_assert_eq!(raw_pin(with), expected);
            prop_assert!(is_pin_valid(with));
            let others = !(half::PIN_MASK << half::PIN_SHIFT);
            prop_assert_eq!(with & others, word & others);
        }
    }

    #[test]
    fn state_flags_are_independent() {
        let state = State::new(protocol::TCP, Direction::Forward);
        assert_eq!(state.opener(), Direction::Forward);
        for phase in 0..=7_u8 {
            let established = [Phase::NOT_TCP, Phase::ESTABLISHED].contains(&Phase(phase));
            assert_eq!(State(phase).is_established(), established);
        }
        let moved = state.with_moved(1, true).carried().with_phase(Phase::CLOSED);
        assert!(moved.is_moved(1) && !moved.is_moved(0) && moved.is_carried());
        assert_eq!(moved.phase(), Phase::CLOSED);
        assert!(!moved.with_moved(1, false).is_moved(1));
    }
}
