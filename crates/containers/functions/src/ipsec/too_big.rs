//! Answers to packets that are too long for a tunnel (RFC 1191, RFC 4443).

use std::net::{Ipv4Addr, Ipv6Addr};

use model::Nanos;
use packet::checksum;

use super::headers::{IPV4, IPV6, Ip};
use crate::burst::Packet;

/// Answers a second, at most, and as many at once.
pub const ANSWERS_PER_S: u64 = 100;
/// Bytes of an ICMP error before what it quotes.
const ICMP: usize = 8;
/// Bytes of the longest answer: what every host takes (RFC 1812, section 4.3.2.3; RFC 4443, section 2.4).
const LONGEST_V4: usize = 576;
const LONGEST_V6: usize = 1280;
const HOPS: u8 = 64;

/// How many answers are left in this second.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Budget {
    second: u64,
    used: u64,
}

impl Budget {
    /// Takes one answer, if there is one left.
    pub(super) fn take(&mut self, now: Nanos) -> bool {
        let second = now.0 / 1_000_000_000;
        if second != self.second {
            *self = Budget { second, used: 0 };
        }
        let has_one = self.used < ANSWERS_PER_S;
        self.used += u64::from(has_one);
        has_one
    }
}

/// Turns a packet into the answer that packets of more than `mtu` bytes of layer 3 do not pass. False, and no change,
/// if there must be none: no error answers an error, a multicast, or a later fragment (RFC 1122, section 3.2.2).
pub(super) fn answer(packet: &mut Packet<'_>, ip: &Ip, mtu: usize) -> bool {
    if !may_answer(packet.frame(), ip) {
        return false;
    }
    let (header, longest) = if ip.is_v6 {
        (IPV6, LONGEST_V6)
    } else {
        (IPV4, LONGEST_V4)
    };
    let before = header + ICMP;
    let quoted = ip.len.min(longest - before);
    let surplus = packet.len() - (ip.at + quoted);
    if packet.headroom() < before || !packet.shrink_back(surplus) || packet.grow_front(before).is_none() {
        return false;
    }
    let frame = packet.frame_mut();
    frame.copy_within(before..before + ip.at, 0);
    if let Some(macs) = frame.first_chunk_mut::<12>() {
        macs.rotate_left(6);
    }
    let Some(answer) = frame.get_mut(ip.at..) else {
        return false;
    };
    // The packet's destination answers: it lies behind the tunnel, and its address fits every filter on the way back.
    if ip.is_v6 {
        write_v6(answer, ip, mtu)
    } else {
        write_v4(answer, ip, mtu)
    }
    .is_some()
}

fn may_answer(frame: &[u8], ip: &Ip) -> bool {
    let kind = frame.get(ip.transport).copied().unwrap_or(0);
    let is_error = match ip.protocol {
        1 => !ip.is_v6 && !matches!(kind, 0 | 8 | 13 | 14),
        58 => ip.is_v6 && kind < 128,
        _ => false,
    };
    if ip.is_v6 {
        let src = Ipv6Addr::from(ip.src);
        !is_error && !src.is_multicast() && !src.is_unspecified()
    } else {
        let (src, dst) = (Ipv4Addr::from(ip.src as u32), Ipv4Addr::from(ip.dst as u32));
        let is_later = frame
            .get(ip.at + 6..ip.at + 8)
            .is_none_or(|of| of[0] & 0x1f != 0 || of[1] != 0);
        let is_one = |of: Ipv4Addr| !of.is_multicast() && !of.is_broadcast() && !of.is_unspecified();
        !is_error && !is_later && is_one(src) && is_one(dst)
    }
}

fn write_v4(answer: &mut [u8], ip: &Ip, mtu: usize) -> Option<()> {
    let len = u16::try_from(answer.len()).ok()?.to_be_bytes();
    let (header, message) = answer.split_first_chunk_mut::<IPV4>()?;
    let (src, dst) = ((ip.dst as u32).to_be_bytes(), (ip.src as u32).to_be_bytes());
    *header = [
        0x45, 0, len[0], len[1], 0, 0, 0, 0, HOPS, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    header[12..16].copy_from_slice(&src);
    header[16..].copy_from_slice(&dst);
    let sum = checksum::internet(header);
    [header[10], header[11]] = sum.to_be_bytes();
    let mtu = u16::try_from(mtu).ok()?.to_be_bytes();
    *message.first_chunk_mut::<ICMP>()? = [3, 4, 0, 0, 0, 0, mtu[0], mtu[1]];
    let sum = checksum::internet(message).to_be_bytes();
    message.get_mut(2..4)?.copy_from_slice(&sum);
    Some(())
}

fn write_v6(answer: &mut [u8], ip: &Ip, mtu: usize) -> Option<()> {
    let (header, message) = answer.split_first_chunk_mut::<IPV6>()?;
    let len = u16::try_from(message.len()).ok()?.to_be_bytes();
    let (src, dst) = (ip.dst.to_be_bytes(), ip.src.to_be_bytes());
    header[..8].copy_from_slice(&[0x60, 0, 0, 0, len[0], len[1], 58, HOPS]);
    header[8..24].copy_from_slice(&src);
    header[24..].copy_from_slice(&dst);
    let mtu = u32::try_from(mtu).ok()?.to_be_bytes();
    *message.first_chunk_mut::<ICMP>()? = [2, 0, 0, 0, mtu[0], mtu[1], mtu[2], mtu[3]];
    let pseudo = checksum::pseudo_v6(src, dst, 58, message.len());
    let sum = (!checksum::add(pseudo, checksum::sum(message))).to_be_bytes();
    message.get_mut(2..4)?.copy_from_slice(&sum);
    Some(())
}
