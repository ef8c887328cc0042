use model::{Direction, FlowKeyV4};

use crate::parse::TcpFlags;

/// Packets that are looked at together: DPDK's customary burst, twice, which halves the cost per burst.
pub const BURST: usize = 64;

/// All bits of a column's word: yes. No is 0.
const YES: u32 = u32::MAX;

/// A burst of packets, field by field instead of packet by packet, as vector instructions want it: what is found in the
/// headers of IPv4 packets, and what a flow table needs of them. Columns with a yes or no hold `u32::MAX` or 0.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub struct PacketColumns {
    /// [`FlowKeyV4::a`], its first byte in the lowest bits.
    pub a: [u32; BURST],
    /// [`FlowKeyV4::b`], likewise.
    pub b: [u32; BURST],
    /// [`FlowKeyV4::a_port`] in the lower half, [`FlowKeyV4::b_port`] in the upper one.
    pub ports: [u32; BURST],
    /// [`FlowKeyV4::vlan`] in the lower half, [`FlowKeyV4::protocol`] in the eight bits above it.
    pub protocol: [u32; BURST],
    /// Whether the packet travels [`Direction::Reverse`].
    pub is_reverse: [u32; BURST],
    /// Whether it may change more than its flow's counters: TCP with SYN, FIN or RST.
    pub is_changing: [u32; BURST],
    /// Whether a TCP flow begins with it as it should: SYN, and neither FIN nor RST.
    pub is_opening: [u32; BURST],
    /// Whether the columns above say what the packet is. Where they do not, they mean nothing.
    pub is_plain: [u32; BURST],
    /// Its length in bytes.
    pub bytes: [u32; BURST],
    /// Packets in the burst; what the columns hold beyond means nothing.
    pub len: usize,
}

impl Default for PacketColumns {
    fn default() -> PacketColumns {
        PacketColumns {
            a: [0; BURST],
            b: [0; BURST],
            ports: [0; BURST],
            protocol: [0; BURST],
            is_reverse: [0; BURST],
            is_changing: [0; BURST],
            is_opening: [0; BURST],
            is_plain: [0; BURST],
            bytes: [0; BURST],
            len: 0,
        }
    }
}

/// How long the packets of a burst are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Bytes of all.
    pub bytes: u64,
    /// Bytes of the shortest one; `u32::MAX` where there is none.
    pub shortest: u32,
    /// Bytes of the longest one; 0 where there is none.
    pub longest: u32,
}

impl PacketColumns {
    /// How long the packets are.
    #[inline(always)]
    #[allow(
        clippy::needless_range_loop,
        reason = "an iterator's own functions are compiled for every processor, not for the one of a kernel"
    )]
    pub fn lengths(&self) -> Lengths {
        let mut all = Lengths {
            bytes: 0,
            shortest: u32::MAX,
            longest: 0,
        };
        let bytes = &self.bytes[..self.len.min(BURST)];
        for at in 0..bytes.len() {
            all.bytes += u64::from(bytes[at]);
            all.shortest = all.shortest.min(bytes[at]);
            all.longest = all.longest.max(bytes[at]);
        }
        all
    }

    /// Appends a packet, or one that is not plain where there is no key. `flags` are 0 where it is not TCP. Nothing happens
    /// in a full burst.
    pub fn push(&mut self, key: Option<FlowKeyV4>, direction: Direction, flags: TcpFlags, bytes: u32) {
        let at = self.len;
        if at >= BURST {
            return;
        }
        let yes = |is: bool| if is { YES } else { 0 };
        let fields = key.unwrap_or_default();
        self.a[at] = u32::from_le_bytes(fields.a);
        self.b[at] = u32::from_le_bytes(fields.b);
        self.ports[at] = u32::from(fields.a_port) | u32::from(fields.b_port) << 16;
        self.protocol[at] = u32::from(fields.vlan) | u32::from(fields.protocol) << 16;
        self.is_reverse[at] = yes(direction == Direction::Reverse);
        self.is_changing[at] = yes(flags.0 & TcpFlags::CHANGING != 0);
        self.is_opening[at] = yes(flags.0 & TcpFlags::CHANGING == TcpFlags::SYN);
        self.is_plain[at] = yes(key.is_some());
        self.bytes[at] = bytes;
        self.len = at + 1;
    }

    /// The key of a plain packet.
    #[inline(always)]
    pub fn key(&self, at: usize) -> FlowKeyV4 {
        let at = at % BURST;
        FlowKeyV4 {
            a: self.a[at].to_le_bytes(),
            b: self.b[at].to_le_bytes(),
            a_port: self.ports[at] as u16,
            b_port: (self.ports[at] >> 16) as u16,
            vlan: self.protocol[at] as u16,
            protocol: (self.protocol[at] >> 16) as u8,
            zero: 0,
        }
    }

    /// The direction in which a plain packet travels.
    #[inline(always)]
    pub fn direction(&self, at: usize) -> Direction {
        if self.is_reverse[at % BURST] == 0 {
            Direction::Forward
        } else {
            Direction::Reverse
        }
    }

    /// The plain packets, a bit each.
    #[inline(always)]
    pub fn plain(&self) -> u64 {
        const { assert!(BURST <= u64::BITS as usize, "a place has a bit") };
        let len = self.len.min(BURST);
        if self.are_all_plain() {
            return u64::MAX.checked_shr((BURST - len) as u32).unwrap_or(0);
        }
        let bits = self.is_plain[..len].iter().enumerate();
        bits.fold(0, |plain, (at, is)| plain | u64::from(is & 1) << at)
    }

    /// Whether all packets are plain.
    #[inline(always)]
    pub fn are_all_plain(&self) -> bool {
        let len = self.len.min(BURST);
        self.is_plain[..len].iter().fold(YES, |all, is| all & is) == YES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_back_from_their_columns() {
        let mut columns = PacketColumns::default();
        let key = FlowKeyV4 {
            a: [10, 0, 0, 1],
            b: [192, 168, 1, 2],
            a_port: 1024,
            b_port: 80,
            vlan: 7,
            protocol: 6,
            zero: 0,
        };
        for _ in 0..BURST + 1 {
            columns.push(Some(key), Direction::Reverse, TcpFlags(TcpFlags::SYN), 64);
        }
        assert_eq!((columns.len, columns.key(63)), (BURST, key));
        assert!(columns.are_all_plain());
        assert_eq!(columns.plain(), u64::MAX);
        for len in [0, 1, 63] {
            columns.len = len;
            assert_eq!(columns.plain(), (1 << len) - 1);
        }
        columns.len = 3;
        columns.push(None, Direction::Forward, TcpFlags(0), 64);
        assert!(!columns.are_all_plain());
        assert_eq!(columns.plain(), 0b111);
        assert_eq!((columns.is_plain[2], columns.is_plain[3]), (YES, 0));
    }
}
