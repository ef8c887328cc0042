use model::{Nanos, Timeouts, protocol};

use crate::TableError;
use crate::entry::{Phase, State, protocol_of};

/// Table time: ticks of 2^21 ns (2.1 ms) of the caller's clock.
pub(crate) const TICK_SHIFT: u32 = 21;

#[inline(always)]
pub(crate) const fn tick(now: Nanos) -> u64 {
    now.0 >> TICK_SHIFT
}

/// The timeout of each class in ticks.
pub(crate) fn ticks(timeouts: &Timeouts) -> Result<[u32; TimeoutClass::COUNT], TableError> {
    let mut ticks = [0; TimeoutClass::COUNT];
    for (&class, ticks) in TimeoutClass::ALL.iter().zip(&mut ticks) {
        let timeout = class.timeout(timeouts);
        if timeout > Timeouts::LIMIT {
            return Err(TableError::Timeout { class, timeout });
        }
        // One tick more, because the last packet's tick is rounded down: never early, at most two ticks late.
        *ticks = timeout.0.div_ceil(1 << TICK_SHIFT) as u32 + 1;
    }
    Ok(ticks)
}

/// The timeout that applies to a flow; the reason for its expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TimeoutClass {
    /// TCP before its handshake is acknowledged.
    TcpHandshake,
    /// TCP in use.
    TcpEstablished,
    /// TCP after its end.
    TcpLinger,
    /// UDP.
    Udp,
    /// ICMP of both families.
    Icmp,
    /// SCTP.
    Sctp,
    /// Every other protocol.
    Other,
}

impl TimeoutClass {
    /// Every class, in the order of the counters.
    pub const ALL: [TimeoutClass; TimeoutClass::COUNT] = [
        TimeoutClass::TcpHandshake,
        TimeoutClass::TcpEstablished,
        TimeoutClass::TcpLinger,
        TimeoutClass::Udp,
        TimeoutClass::Icmp,
        TimeoutClass::Sctp,
        TimeoutClass::Other,
    ];
    /// Number of classes.
    pub const COUNT: usize = 7;

    /// Its timeout.
    pub const fn timeout(self, of: &Timeouts) -> Nanos {
        match self {
            TimeoutClass::TcpHandshake => of.tcp_handshake,
            TimeoutClass::TcpEstablished => of.tcp,
            TimeoutClass::TcpLinger => of.tcp_linger,
            TimeoutClass::Udp => of.udp,
            TimeoutClass::Icmp => of.icmp,
            TimeoutClass::Sctp => of.sctp,
            TimeoutClass::Other => of.other,
        }
    }

    /// The word in tables and labels.
    pub const fn name(self) -> &'static str {
        match self {
            TimeoutClass::TcpHandshake => "tcp_handshake",
            TimeoutClass::TcpEstablished => "tcp_established",
            TimeoutClass::TcpLinger => "tcp_linger",
            TimeoutClass::Udp => "udp",
            TimeoutClass::Icmp => "icmp",
            TimeoutClass::Sctp => "sctp",
            TimeoutClass::Other => "other",
        }
    }

    /// Index of its counter.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The class of an entry, from its first word.
    #[inline(always)]
    pub(crate) const fn of(ports: u64) -> TimeoutClass {
        match protocol_of(ports) {
            protocol::TCP => match State::of(ports).phase() {
                Phase::HANDSHAKE => TimeoutClass::TcpHandshake,
                Phase::CLOSED => TimeoutClass::TcpLinger,
                _ => TimeoutClass::TcpEstablished,
            },
            protocol::UDP => TimeoutClass::Udp,
            protocol::ICMP | protocol::ICMPV6 => TimeoutClass::Icmp,
            protocol::SCTP => TimeoutClass::Sctp,
            _ => TimeoutClass::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_never_early_and_at_most_two_ticks_late() {
        for nanos in [
            0,
            1,
            (1 << TICK_SHIFT) - 1,
            1 << TICK_SHIFT,
            1_000_000_000,
            Timeouts::LIMIT.0,
        ] {
            let policy = Timeouts {
                udp: Nanos(nanos),
                ..Timeouts::default()
            };
            let ticks = ticks(&policy).unwrap()[TimeoutClass::Udp.index()];
            for seen in [0, 1, (1 << TICK_SHIFT) - 1, 12_345_678_901] {
                let due = (tick(Nanos(seen)) + u64::from(ticks)) << TICK_SHIFT;
                assert!(due > seen + nanos || nanos == 0 && due >= seen);
                assert!(due <= seen + nanos + (2 << TICK_SHIFT));
            }
        }
    }

    #[test]
    fn a_timeout_beyond_the_limit_is_rejected() {
        let policy = Timeouts {
            sctp: Nanos(Timeouts::LIMIT.0 + 1),
            ..Timeouts::default()
        };
        assert_eq!(
            ticks(&policy),
            Err(TableError::Timeout {
                class: TimeoutClass::Sctp,
                timeout: Nanos(Timeouts::LIMIT.0 + 1)
            })
        );
    }

    #[test]
    fn indices_follow_the_list() {
        for (index, class) in TimeoutClass::ALL.iter().enumerate() {
            assert_eq!(class.index(), index);
        }
    }
}
