use model::{Direction, FlowKeyV4};

use crate::parse::TcpFlags;

/// Packets processed together: twice DPDK's usual burst of 32, which halves the cost per burst.
pub const BURST: usize = 64;

/// A true column word has all bits set; a false one is 0.
const YES: u32 = u32::MAX;

/// A burst of parsed IPv4 packets in structure-of-arrays form, for vector instructions. Holds what the flow
/// table needs of the headers. Boolean columns hold `u32::MAX` or 0.
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
    /// Whether the packet has SYN, FIN or RST, and so may change its flow's TCP state.
    pub has_syn_fin_rst: [u32; BURST],
    /// Whether the packet opens a TCP connection: SYN without FIN or RST.
    pub is_opening: [u32; BURST],
    /// Whether the fast path takes the packet. If not, its other columns are meaningless.
    pub is_fast: [u32; BURST],
    /// Its length in bytes.
    pub bytes: [u32; BURST],
    /// Packets in the burst. Columns beyond `len` are meaningless.
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
            has_syn_fin_rst: [0; BURST],
            is_opening: [0; BURST],
            is_fast: [0; BURST],
            bytes: [0; BURST],
            len: 0,
        }
    }
}

/// Total, shortest and longest frame length of a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Bytes of all.
    pub bytes: u64,
    /// Bytes of the shortest one; `u32::MAX` if the burst is empty.
    pub shortest: u32,
    /// Bytes of the longest one; 0 if the burst is empty.
    pub longest: u32,
}

impl PacketColumns {
    /// The lengths of the burst's packets.
    #[inline(always)]
    #[allow(
        clippy::needless_range_loop,
        reason = "iterator adapters are not inlined into the kernel, so they lack its target features"
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

    /// Appends a packet; one without a key is not for the fast path. `flags` are 0 unless it is TCP. Does
    /// nothing if the burst is full.
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
        self.has_syn_fin_rst[at] = yes(flags.0 & TcpFlags::SYN_FIN_RST != 0);
        self.is_opening[at] = yes(flags.0 & TcpFlags::SYN_FIN_RST == TcpFlags::SYN);
        self.is_fast[at] = yes(key.is_some());
        self.bytes[at] = bytes;
        self.len = at + 1;
    }

    /// The key of a fast-path packet.
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

    /// The direction of a fast-path packet.
    #[inline(always)]
    pub fn direction(&self, at: usize) -> Direction {
        if self.is_reverse[at % BURST] == 0 {
            Direction::Forward
        } else {
            Direction::Reverse
        }
    }

    /// Mask of the packets that the fast path takes.
    #[inline(always)]
    pub fn fast_mask(&self) -> u64 {
        const { assert!(BURST <= u64::BITS as usize, "one bit per packet") };
        let len = self.len.min(BURST);
        if self.all_fast() {
            return u64::MAX.checked_shr((BURST - len) as u32).unwrap_or(0);
        }
        let bits = self.is_fast[..len].iter().enumerate();
        bits.fold(0, |plain, (at, is)| plain | u64::from(is & 1) << at)
    }

    /// Whether the fast path takes all packets.
    #[inline(always)]
    pub fn all_fast(&self) -> bool {
        let len = self.len.min(BURST);
        self.is_fast[..len].iter().fold(YES, |all, is| all & is) == YES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_survive_the_round_trip_through_columns() {
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
        assert!(columns.all_fast());
        assert_eq!(columns.fast_mask(), u64::MAX);
        for len in [0, 1, 63] {
            columns.len = len;
            assert_eq!(columns.fast_mask(), (1 << len) - 1);
        }
        columns.len = 3;
        columns.push(None, Direction::Forward, TcpFlags(0), 64);
        assert!(!columns.all_fast());
        assert_eq!(columns.fast_mask(), 0b111);
        assert_eq!((columns.is_fast[2], columns.is_fast[3]), (YES, 0));
    }
}
