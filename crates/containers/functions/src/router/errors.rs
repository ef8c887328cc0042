//! ICMP errors to the senders of packets that cannot be forwarded.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use model::{Nanos, protocol};
use packet::PacketInfo;
use packet::build::Frame;

use crate::burst::Burst;

use super::configuration::Settings;

/// Bytes of an ICMP error over IPv4 with its header, at most (RFC 1812, 4.3.2.3).
const BYTES_LIMIT_V4: usize = 576;
/// Over IPv6: the smallest link (RFC 4443, 2.4).
const BYTES_LIMIT_V6: usize = 1280;
/// Bytes of IPv4, IPv6 and ICMP headers.
const HEADER_V4: usize = 20;
const HEADER_V6: usize = 40;
const ICMP: usize = 8;
/// Bytes of Ethernet's header with as many tags as the parser takes, at most.
const LINK_LIMIT: usize = 32;
/// Errors that may come at once, in parts of a second's: a tenth.
const BURST_PARTS: u64 = 10;

/// Why a packet cannot be forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// No hop is left.
    Expired,
    /// No route leads to its destination.
    Unreachable,
}

impl Cause {
    /// Type and code.
    const fn kind(self, is_v6: bool) -> (u8, u8) {
        match (self, is_v6) {
            (Cause::Expired, false) => (11, 0),
            (Cause::Expired, true) => (3, 0),
            (Cause::Unreachable, false) => (3, 0),
            (Cause::Unreachable, true) => (1, 0),
        }
    }
}

/// Sends errors at a limited rate: the generic cell rate algorithm (ITU-T I.371), in nanoseconds.
#[derive(Debug)]
pub(super) struct Errors {
    /// Between two errors in the long run; 0: none are sent.
    interval: u64,
    /// How far the next one may be ahead of its time.
    tolerance: u64,
    /// When the next error is due.
    next: u64,
    sent: u64,
    limited: u64,
}

impl Errors {
    pub(super) fn new(per_s: u32) -> Errors {
        let mut errors = Errors {
            interval: 0,
            tolerance: 0,
            next: 0,
            sent: 0,
            limited: 0,
        };
        errors.set_rate(per_s);
        errors
    }

    pub(super) fn set_rate(&mut self, per_s: u32) {
        const SECOND: u64 = 1_000_000_000;
        self.interval = SECOND.checked_div(u64::from(per_s)).unwrap_or(0);
        self.tolerance = SECOND / BURST_PARTS;
    }

    /// Errors that were sent, and others that were not.
    pub(super) fn counts(&self) -> [u64; 2] {
        [self.sent, self.limited]
    }

    /// Answers a packet with an error, unless that is not allowed, too much, or there is no address to send it from.
    pub(super) fn send(
        &mut self,
        burst: &mut Burst,
        index: usize,
        info: &PacketInfo,
        cause: Cause,
        settings: &Settings,
        now: Nanos,
    ) {
        let frame = burst.frame(index);
        if self.interval == 0 || !is_answerable(info, frame) {
            return;
        }
        let Some(from) = frame.get(usize::from(info.l3_offset)..) else {
            return;
        };
        let is_v6 = from.first().is_some_and(|first| first >> 4 == 6);
        let Some((src, dst)) = ends(from, is_v6, settings) else {
            return;
        };
        if self.next > now.0 + self.tolerance {
            self.limited += 1;
            return;
        }
        let room = match is_v6 {
            false => BYTES_LIMIT_V4 - HEADER_V4 - ICMP,
            true => BYTES_LIMIT_V6 - HEADER_V6 - ICMP,
        };
        let quoted = from.len().min(info.l3_len as usize).min(room);
        // The answer needs its own place, and the packet that it quotes is in the burst's memory, too.
        let mut copy = [0; BYTES_LIMIT_V6];
        let quoted = &mut copy[..quoted];
        quoted.copy_from_slice(&from[..quoted.len()]);
        let mut link = [0; LINK_LIMIT];
        let link_len = usize::from(info.l3_offset).min(link.len());
        link[..link_len].copy_from_slice(&frame[..link_len]);
        let (kind, code) = cause.kind(is_v6);
        let Ok(error) = Frame::icmp(src, dst, kind, code, [0; 4], quoted) else {
            return;
        };
        // Behind the same tags, whatever they are: only what is behind the frame's own header is taken.
        let untagged = 14;
        let len = error.len() - untagged + link_len;
        let Some(mut packet) = burst.originate(len) else {
            self.limited += 1;
            return;
        };
        let mut whole = [0; BYTES_LIMIT_V6 + 14];
        let Ok(written) = error.write(&mut whole) else {
            packet.consume();
            return;
        };
        let out = packet.frame_mut();
        // The link's addresses, turned round, and its tags.
        out[..link_len].copy_from_slice(&link[..link_len]);
        out[..6].copy_from_slice(&link[6..12]);
        out[6..12].copy_from_slice(&link[..6]);
        if let Some(mac) = settings.mac {
            out[6..12].copy_from_slice(&mac);
        }
        out[link_len..].copy_from_slice(&whole[untagged..written]);
        packet.answer();
        self.next = self.next.max(now.0) + self.interval;
        self.sent += 1;
    }
}

/// Whether a packet may be answered with an error (RFC 1122, 3.2.2; RFC 4443, 2.4 e): not an error itself, and on a link
/// with Ethernet's header and tags. Later fragments are not, either: the caller asks only about others.
fn is_answerable(info: &PacketInfo, frame: &[u8]) -> bool {
    let message = frame.get(usize::from(info.l4_offset)).copied().unwrap_or(0);
    let is_error = match info.protocol {
        // Unreachable, quench, redirect, exceeded, parameter.
        protocol::ICMP => matches!(message, 3 | 4 | 5 | 11 | 12),
        // Below 128 are errors; 137 is a redirect.
        protocol::ICMPV6 => message < 128 || message == 137,
        _ => false,
    };
    !info.is_icmp_error && !is_error && usize::from(info.l3_offset) <= LINK_LIMIT
}

/// From whom and to whom an error goes.
fn ends(header: &[u8], is_v6: bool, settings: &Settings) -> Option<(IpAddr, IpAddr)> {
    if is_v6 {
        let dst: [u8; 16] = *header.get(8..)?.first_chunk()?;
        Some((settings.address_v6?.into(), Ipv6Addr::from(dst).into()))
    } else {
        let dst: [u8; 4] = *header.get(12..)?.first_chunk()?;
        Some((settings.address?.into(), Ipv4Addr::from(dst).into()))
    }
}
