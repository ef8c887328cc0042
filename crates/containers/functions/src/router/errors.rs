//! ICMP errors to the senders of packets that cannot be forwarded.

use std::net::IpAddr;

use model::Nanos;
use packet::{ICMP_ERROR_LIMIT, IcmpError, PacketInfo, icmp_error, may_be_answered};

use crate::burst::Burst;

use super::configuration::Settings;

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
        if self.interval == 0 || !may_be_answered(info, frame) {
            return;
        }
        let version = frame.get(usize::from(info.l3_offset)).map(|first| first >> 4);
        let is_v6 = version == Some(6);
        let Some(src) = (if is_v6 {
            settings.address_v6.map(IpAddr::from)
        } else {
            settings.address.map(IpAddr::from)
        }) else {
            return;
        };
        if self.next > now.0 + self.tolerance {
            self.limited += 1;
            return;
        }
        let error = IcmpError {
            kind: cause.kind(is_v6),
            word: [0; 4],
        };
        // In a place of its own: the packet that it quotes is in the burst's memory, too.
        let mut out = [0; ICMP_ERROR_LIMIT];
        let written = icmp_error(frame, info, src, error, settings.mac, &mut out);
        let Some(written) = written.and_then(|len| out.get(..len)) else {
            return;
        };
        let Some(mut packet) = burst.originate(written.len()) else {
            self.limited += 1;
            return;
        };
        packet.frame_mut().copy_from_slice(written);
        packet.answer();
        self.next = self.next.max(now.0) + self.interval;
        self.sent += 1;
    }
}
