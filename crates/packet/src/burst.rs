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

use model::protocol;

use crate::columns::{BURST, PacketColumns};
use crate::headers::{ETHERNET_LEN, IPV4_LEN};
use crate::parse::{SHORTEST_PLAIN, TCP_LEN, TcpFlags, UDP_LEN};

/// Where the columns begin: at the EtherType, so that they lie at multiples of four bytes.
const FIRST: usize = 12;
const GROUP: usize = PlainBurst::GROUP;
/// A frame of which nothing is known: not plain.
const NOTHING: [u8; SHORTEST_PLAIN] = [0; SHORTEST_PLAIN];

/// A burst of packets whose headers are read together.
#[derive(Clone, Debug, Default)]
pub struct PlainBurst {
    words: Words,
    /// What was found.
    pub packets: PacketColumns,
}

/// The headers' words, by their place in the frame: `at_16` begins at byte 16. The first byte is in the lowest bits.
#[derive(Clone, Debug)]
#[repr(align(64))]
struct Words {
    at_12: [u32; BURST],
    at_16: [u32; BURST],
    at_20: [u32; BURST],
    at_24: [u32; BURST],
    at_28: [u32; BURST],
    at_32: [u32; BURST],
    at_36: [u32; BURST],
    at_44: [u32; BURST],
}

impl Default for Words {
    fn default() -> Words {
        let none = [0; BURST];
        Words {
            at_12: none,
            at_16: none,
            at_20: none,
            at_24: none,
            at_28: none,
            at_32: none,
            at_36: none,
            at_44: none,
        }
    }
}

impl PlainBurst {
    /// Packets whose headers are turned from rows into columns at once.
    pub const GROUP: usize = 8;

    /// Reads up to [`GROUP`](PlainBurst::GROUP) frames of the burst, which begin at the destination address: those from
    /// place `first` on, a multiple of that. [`PlainBurst::judge`] then says what they are.
    #[inline(always)]
    pub fn load(&mut self, first: usize, frames: &[&[u8]; PlainBurst::GROUP]) {
        let mut rows = [[0; 8]; GROUP];
        let mut lengths = [0; GROUP];
        for i in 0..GROUP {
            let frame = frames[i];
            let header = match frame.first_chunk::<SHORTEST_PLAIN>() {
                Some(header) => header,
                None => &NOTHING,
            };
            // The word at 40 is of no interest, that at 44 is.
            rows[i] = [
                word(header, FIRST),
                word(header, 16),
                word(header, 20),
                word(header, 24),
                word(header, 28),
                word(header, 32),
                word(header, 36),
                word(header, 44),
            ];
            lengths[i] = frame.len() as u32;
        }
        let columns = simd::transposed(&rows);
        let words = &mut self.words;
        put(&mut words.at_12, first, &columns[0]);
        put(&mut words.at_16, first, &columns[1]);
        put(&mut words.at_20, first, &columns[2]);
        put(&mut words.at_24, first, &columns[3]);
        put(&mut words.at_28, first, &columns[4]);
        put(&mut words.at_32, first, &columns[5]);
        put(&mut words.at_36, first, &columns[6]);
        put(&mut words.at_44, first, &columns[7]);
        put(&mut self.packets.bytes, first, &lengths);
    }

    /// Says of each of the first `len` packets whether it is plain, and what its flow is.
    #[inline(always)]
    pub fn judge(&mut self, len: usize) {
        /// EtherType IPv4, then version and header length.
        const SHAPE: u32 = 0x0045_0008;
        const SHAPE_MASK: u32 = 0x00ff_ffff;
        /// "More fragments" and the fragment's offset.
        const FRAGMENT: u32 = 0xff3f;
        const CHANGING: u32 = (TcpFlags::SYN | TcpFlags::FIN | TcpFlags::RST) as u32;
        // Whole groups: the loop then needs no remainder.
        self.packets.len = len.min(BURST);
        let n = (self.packets.len + GROUP - 1) & !(GROUP - 1) & (2 * BURST - 1);
        let w = &self.words;
        let (at_12, at_16, at_20, at_24) = (&w.at_12[..n], &w.at_16[..n], &w.at_20[..n], &w.at_24[..n]);
        let (at_28, at_32, at_36, at_44) = (&w.at_28[..n], &w.at_32[..n], &w.at_36[..n], &w.at_44[..n]);
        let p = &mut self.packets;
        let (a, b) = (&mut p.a[..n], &mut p.b[..n]);
        let (ports, protocols) = (&mut p.ports[..n], &mut p.protocol[..n]);
        let (reverse, changing) = (&mut p.is_reverse[..n], &mut p.is_changing[..n]);
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

/// Writes a group's words into their places of a column.
#[inline(always)]
fn put(column: &mut [u32; BURST], first: usize, words: &[u32; GROUP]) {
    if let Some(places) = column.get_mut(first..first + GROUP) {
        // By word: a call to copy so few would cost more.
        for i in 0..GROUP {
            places[i] = words[i];
        }
    }
}
