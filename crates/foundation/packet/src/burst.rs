//! Fast-path validation of a burst: the checks of [`parse_fast`](crate::parse_fast), for many packets at
//! once.
//!
//! Headers are transposed from rows into columns of 32-bit words. Each rule is one branch-free loop over
//! columns, which the compiler vectorizes. `crate::parse_fast` is the scalar twin; the tests compare both.
#![allow(
    clippy::manual_memcpy,
    clippy::needless_range_loop,
    reason = "zipped iterators over columns prevent vectorization"
)]

use model::{FlowKey, protocol};

use crate::columns::{BURST, PacketColumns};
use crate::headers::{ETHERNET_LEN, IPV4_LEN};
use crate::parse::{FAST_PATH_BYTES, PacketInfo, TCP_LEN, TcpFlags, UDP_LEN};

/// Offset of the first column: the EtherType, so that the columns are aligned to four bytes.
const FIRST: usize = 12;
const GROUP: usize = HeaderBurst::GROUP;
/// The bytes of a frame that the fast path reads.
pub type HeaderBytes = [u8; FAST_PATH_BYTES];

/// The headers of a burst, in columns.
#[derive(Clone, Debug, Default)]
pub struct HeaderBurst {
    words: Words,
    /// The parsed packets.
    pub packets: PacketColumns,
}

/// One column, in groups.
type Column = [[u32; GROUP]; BURST / GROUP];

/// The header words, by their offset in the frame: `at_16` starts at byte 16. The first byte is in the lowest
/// bits.
#[derive(Clone, Debug, Default)]
#[repr(align(64))]
struct Words {
    at_12: Column,
    at_16: Column,
    at_20: Column,
    at_24: Column,
    at_28: Column,
    at_32: Column,
    at_36: Column,
    at_40: Column,
    at_44: Column,
}

impl HeaderBurst {
    /// Packets whose headers are transposed together.
    pub const GROUP: usize = 8;

    /// Stands in for a frame too short for the fast path; never valid.
    pub const EMPTY: &'static HeaderBytes = &[0; FAST_PATH_BYTES];

    /// Stores a frame's length at index `at` and returns its header. The frame starts at the destination
    /// address.
    #[inline(always)]
    pub fn put<'f>(&mut self, at: usize, frame: &'f [u8]) -> &'f HeaderBytes {
        let header = frame.first_chunk().unwrap_or(HeaderBurst::EMPTY);
        let at = at % BURST;
        self.words.at_44.as_flattened_mut()[at] = word(header, 44);
        self.packets.bytes[at] = frame.len() as u32;
        header
    }

    /// Transposes the headers of one [`GROUP`](HeaderBurst::GROUP) of frames that were
    /// [put](HeaderBurst::put) from index `first` on, a multiple of the group size. Call
    /// [`HeaderBurst::validate`] afterwards.
    #[inline(always)]
    pub fn load<W: simd::Words>(&mut self, first: usize, headers: &[&HeaderBytes; HeaderBurst::GROUP]) {
        let group = first / GROUP % (BURST / GROUP);
        let w = &mut self.words;
        let mut parts = [&[0; 16]; GROUP];
        for i in 0..GROUP {
            parts[i] = part(headers[i], FIRST);
        }
        let (at_12, at_16) = (&mut w.at_12[group], &mut w.at_16[group]);
        W::columns(&parts, [at_12, at_16, &mut w.at_20[group], &mut w.at_24[group]]);
        for i in 0..GROUP {
            parts[i] = part(headers[i], FIRST + 16);
        }
        let (at_28, at_32) = (&mut w.at_28[group], &mut w.at_32[group]);
        W::columns(&parts, [at_28, at_32, &mut w.at_36[group], &mut w.at_40[group]]);
    }

    /// What [`parse`](crate::parse) returns for the fast-path packet at `at`. `frame` is its frame.
    #[inline]
    pub fn info(&self, at: usize, frame: &[u8]) -> PacketInfo {
        let key = self.packets.key(at);
        let header = frame.first_chunk().unwrap_or(HeaderBurst::EMPTY);
        let is_tcp = key.protocol == protocol::TCP;
        PacketInfo {
            key: FlowKey::V4(key),
            direction: self.packets.direction(at),
            protocol: key.protocol,
            tcp_flags: TcpFlags(if is_tcp { header[47] } else { 0 }),
            is_icmp_error: false,
            dscp: header[15] >> 2,
            vlan: 0,
            l3_offset: ETHERNET_LEN as u16,
            l4_offset: (ETHERNET_LEN + IPV4_LEN) as u16,
            l3_len: u32::from(u16::from_be_bytes([header[16], header[17]])),
            frame_len: self.packets.bytes[at],
        }
    }

    /// The DSCP, 0 to 63, of the fast-path packet at `at`.
    #[inline]
    pub fn dscp(&self, at: usize) -> u8 {
        let [.., service] = self.words.at_12.as_flattened()[at].to_le_bytes();
        service >> 2
    }

    /// Marks which of the first `len` packets the fast path takes, and fills in their flow columns.
    #[inline(always)]
    pub fn validate(&mut self, len: usize) {
        /// EtherType IPv4, then version and header length.
        const SHAPE: u32 = 0x0045_0008;
        const SHAPE_MASK: u32 = 0x00ff_ffff;
        /// "More fragments" and the fragment's offset.
        const FRAGMENT: u32 = 0xff3f;
        const SYN_FIN_RST: u32 = TcpFlags::SYN_FIN_RST as u32;
        const SYN: u32 = TcpFlags::SYN as u32;
        // Round up to whole groups, so that the loops have no remainder.
        self.packets.len = len.min(BURST);
        let n = (self.packets.len + GROUP - 1) & !(GROUP - 1) & (2 * BURST - 1);
        let w = &self.words;
        let (at_12, at_16) = (&w.at_12.as_flattened()[..n], &w.at_16.as_flattened()[..n]);
        let (at_20, at_24) = (&w.at_20.as_flattened()[..n], &w.at_24.as_flattened()[..n]);
        let (at_28, at_32) = (&w.at_28.as_flattened()[..n], &w.at_32.as_flattened()[..n]);
        let (at_36, at_44) = (&w.at_36.as_flattened()[..n], &w.at_44.as_flattened()[..n]);
        let p = &mut self.packets;
        let (a, b) = (&mut p.a[..n], &mut p.b[..n]);
        let (ports, protocols) = (&mut p.ports[..n], &mut p.protocol[..n]);
        let (reverse, changing) = (&mut p.is_reverse[..n], &mut p.has_syn_fin_rst[..n]);
        let opening = &mut p.is_opening[..n];
        let (fast, bytes) = (&mut p.is_fast[..n], &p.bytes[..n]);
        for i in 0..n {
            let has_shape = (at_12[i] & SHAPE_MASK == SHAPE) & (at_20[i] & FRAGMENT == 0);
            // The header's one's complement sum is -0. Adding 16-bit halves works in any byte order.
            let sum = (at_12[i] >> 16)
                + halves(at_16[i])
                + halves(at_20[i])
                + halves(at_24[i])
                + halves(at_28[i])
                + (at_32[i] & 0xffff);
            let has_checksum = halves(sum) == 0xffff;
            let protocol = at_20[i] >> 24;
            let is_udp = protocol == u32::from(protocol::UDP);
            let is_tcp = protocol == u32::from(protocol::TCP);
            let total_len = (at_16[i].swap_bytes() >> 16) as i32;
            let udp_len = at_36[i].swap_bytes() & 0xffff;
            // The upper four bits of byte 46 are the header length in words of four bytes.
            let tcp_len = at_44[i] >> 18 & 0x3c;
            let transport_len = if is_udp { udp_len } else { tcp_len } as i32;
            let shortest = if is_udp { UDP_LEN } else { TCP_LEN } as i32;
            let has_lengths = (total_len + ETHERNET_LEN as i32 <= bytes[i] as i32)
                & (transport_len >= shortest)
                & (transport_len + IPV4_LEN as i32 <= total_len);
            let src = at_24[i] >> 16 | at_28[i] << 16;
            let dst = at_28[i] >> 16 | at_32[i] << 16;
            let src_port = at_32[i].swap_bytes() & 0xffff;
            let dst_port = at_36[i].swap_bytes() >> 16;
            let (src_number, dst_number) = (src.swap_bytes(), dst.swap_bytes());
            let is_reverse = (src_number > dst_number) | ((src_number == dst_number) & (src_port > dst_port));
            a[i] = if is_reverse { dst } else { src };
            b[i] = if is_reverse { src } else { dst };
            ports[i] = if is_reverse {
                dst_port | src_port << 16
            } else {
                src_port | dst_port << 16
            };
            protocols[i] = protocol << 16;
            reverse[i] = all_bits(is_reverse);
            changing[i] = all_bits(is_tcp & (at_44[i] >> 24 & SYN_FIN_RST != 0));
            opening[i] = all_bits(is_tcp & (at_44[i] >> 24 & SYN_FIN_RST == SYN));
            fast[i] = all_bits(has_shape & has_checksum & (is_udp | is_tcp) & has_lengths);
        }
    }
}

#[inline(always)]
fn all_bits(is: bool) -> u32 {
    if is { u32::MAX } else { 0 }
}

/// The sum of a word's two halves.
#[inline(always)]
fn halves(word: u32) -> u32 {
    (word & 0xffff) + (word >> 16)
}

/// Four header bytes, the first in the lowest bits.
#[inline(always)]
fn word(header: &[u8; FAST_PATH_BYTES], at: usize) -> u32 {
    u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
}

/// Sixteen header bytes.
#[inline(always)]
fn part(header: &[u8; FAST_PATH_BYTES], at: usize) -> &[u8; 16] {
    match header[at..].first_chunk() {
        Some(part) => part,
        None => &[0; 16],
    }
}
