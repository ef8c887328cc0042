//! The short way for a burst: what [`plain`](crate::plain) says of each packet, said for many at once.
//!
//! The headers are turned from rows into columns of 32-bit words, and every rule is one loop over columns without a branch,
//! which the compiler turns into vector instructions. `crate::plain` is its twin for one packet, and the tests hold
//! each against the other.
#![allow(
    clippy::manual_memcpy,
    clippy::needless_range_loop,
    reason = "iterators over columns side by side keep a loop from becoming vector instructions"
)]

use model::{FlowKey, protocol};

use crate::columns::{BURST, PacketColumns};
use crate::headers::{ETHERNET_LEN, IPV4_LEN};
use crate::parse::{PacketInfo, SHORTEST_PLAIN, TCP_LEN, TcpFlags, UDP_LEN};

/// Where the columns begin: at the EtherType, so that they lie at multiples of four bytes.
const FIRST: usize = 12;
const GROUP: usize = PlainBurst::GROUP;
/// As much of a frame as the short way reads.
pub type PlainHeader = [u8; SHORTEST_PLAIN];

/// A burst of packets whose headers are read together.
#[derive(Clone, Debug, Default)]
pub struct PlainBurst {
    words: Words,
    /// What was found.
    pub packets: PacketColumns,
}

/// A column, in groups.
type Column = [[u32; GROUP]; BURST / GROUP];

/// The headers' words, by their place in the frame: `at_16` begins at byte 16. The first byte is in the lowest bits.
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

impl PlainBurst {
    /// Packets whose headers are turned from rows into columns at once.
    pub const GROUP: usize = 8;

    /// The header of a frame of which nothing is known: not plain.
    pub const NOTHING: &'static PlainHeader = &[0; SHORTEST_PLAIN];

    /// Notes the frame in a place of the burst, which begins at the destination address, and gives its header.
    #[inline(always)]
    pub fn put<'f>(&mut self, at: usize, frame: &'f [u8]) -> &'f PlainHeader {
        let header = frame.first_chunk().unwrap_or(PlainBurst::NOTHING);
        let at = at % BURST;
        self.words.at_44.as_flattened_mut()[at] = word(header, 44);
        self.packets.bytes[at] = frame.len() as u32;
        header
    }

    /// Reads the headers of a [`GROUP`](PlainBurst::GROUP) of frames that have been [put](PlainBurst::put): those from place
    /// `first` on, a multiple of that. [`PlainBurst::judge`] then says what they are.
    #[inline(always)]
    pub fn load<W: simd::Words>(&mut self, first: usize, headers: &[&PlainHeader; PlainBurst::GROUP]) {
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

    /// All that [`parse`](crate::parse) says of the plain packet in that place, whose frame this is.
    #[inline]
    pub fn info(&self, at: usize, frame: &[u8]) -> PacketInfo {
        let key = self.packets.key(at);
        let header = frame.first_chunk().unwrap_or(PlainBurst::NOTHING);
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

    /// The DSCP, 0 to 63, of the plain packet in that place.
    #[inline]
    pub fn dscp(&self, at: usize) -> u8 {
        let [.., service] = self.words.at_12.as_flattened()[at].to_le_bytes();
        service >> 2
    }

    /// Says of each of the first `len` packets whether it is plain, and what its flow is.
    #[inline(always)]
    pub fn judge(&mut self, len: usize) {
        /// EtherType IPv4, then version and header length.
        const SHAPE: u32 = 0x0045_0008;
        const SHAPE_MASK: u32 = 0x00ff_ffff;
        /// "More fragments" and the fragment's offset.
        const FRAGMENT: u32 = 0xff3f;
        const CHANGING: u32 = TcpFlags::CHANGING as u32;
        const SYN: u32 = TcpFlags::SYN as u32;
        // Whole groups: the loop then needs no remainder.
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
        let (reverse, changing) = (&mut p.is_reverse[..n], &mut p.is_changing[..n]);
        let opening = &mut p.is_opening[..n];
        let (plain, bytes) = (&mut p.is_plain[..n], &p.bytes[..n]);
        for i in 0..n {
            let has_shape = (at_12[i] & SHAPE_MASK == SHAPE) & (at_20[i] & FRAGMENT == 0);
            // The words of the header add up to -0 in one's complement: twice 16 bits at a time, in whatever byte order.
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
            // The upper four bits of byte 46 count words of four bytes.
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
            changing[i] = all_bits(is_tcp & (at_44[i] >> 24 & CHANGING != 0));
            opening[i] = all_bits(is_tcp & (at_44[i] >> 24 & CHANGING == SYN));
            plain[i] = all_bits(has_shape & has_checksum & (is_udp | is_tcp) & has_lengths);
        }
    }
}

#[inline(always)]
fn all_bits(is: bool) -> u32 {
    if is { u32::MAX } else { 0 }
}

/// The sum of a word's halves.
#[inline(always)]
fn halves(word: u32) -> u32 {
    (word & 0xffff) + (word >> 16)
}

/// Four bytes of a header, the first in the lowest bits.
#[inline(always)]
fn word(header: &[u8; SHORTEST_PLAIN], at: usize) -> u32 {
    u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
}

/// Sixteen bytes of a header.
#[inline(always)]
fn part(header: &[u8; SHORTEST_PLAIN], at: usize) -> &[u8; 16] {
    match header[at..].first_chunk() {
        Some(part) => part,
        None => &[0; 16],
    }
}
