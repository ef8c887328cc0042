use model::{Nanos, protocol};

use crate::TableError;
use crate::entry::{Phase, State, protocol_of};

/// Table time: ticks of 2^21 ns (2.1 ms) of the caller's clock.
pub(crate) const TICK_SHIFT: u32 = 21;

#[inline(always)]
pub(crate) const fn tick(now: Nanos) -> u64 {
    now.0 >> TICK_SHIFT
}

/// How long a flow lives after its last packet. Each value is at most [`TimeoutPolicy::LIMIT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeoutPolicy {
    /// TCP before its handshake is acknowledged.
    pub tcp_handshake: Nanos,
    /// TCP in use, or closed by one end.
    pub tcp_established: Nanos,
    /// TCP after RST or FIN from both ends: time for packets still on their way.
    pub tcp_linger: Nanos,
    /// UDP.
    pub udp: Nanos,
    /// ICMP of both families.
    pub icmp: Nanos,
    /// SCTP.
    pub sctp: Nanos,
    /// Every other protocol.
    pub other: Nanos,
}

impl TimeoutPolicy {
    /// The longest timeout: 18 h, just below half of the wrap-around of an entry's coarse time.
    pub const LIMIT: Nanos = Nanos::from_secs(18 * 3600);

    pub(crate) fn ticks(&self) -> Result<[u32; TimeoutClass::COUNT], TableError> {
        let mut ticks = [0; TimeoutClass::COUNT];
        for (&class, ticks) in TimeoutClass::ALL.iter().zip(&mut ticks) {
            let timeout = self.of(class);
            if timeout > TimeoutPolicy::LIMIT {
                return Err(TableError::Timeout { class, timeout });
            }
            // One tick more, because the last packet's tick is rounded down: never early, at most two ticks
            // late.
            *ticks = timeout.0.div_ceil(1 << TICK_SHIFT) as u32 + 1;
        }
        Ok(ticks)
    }

    /// The timeout of a class.
    pub const fn of(&self, class: TimeoutClass) -> Nanos {
        match class {
            TimeoutClass::TcpHandshake => self.tcp_handshake,
            TimeoutClass::TcpEstablished => self.tcp_established,
            TimeoutClass::TcpLinger => self.tcp_linger,
            TimeoutClass::Udp => self.udp,
            TimeoutClass::Icmp => self.icmp,
            TimeoutClass::Sctp => self.sctp,
            TimeoutClass::Other => self.other,
        }
    }
}

impl Default for TimeoutPolicy {
    /// Handshake 10 s, established 1 h, linger 2 s, UDP 60 s, ICMP 10 s, SCTP 5 min, others 60 s.
    fn default() -> TimeoutPolicy {
        TimeoutPolicy {
            tcp_handshake: Nanos::from_secs(10),
            tcp_established: Nanos::from_secs(3600),
            tcp_linger: Nanos::from_secs(2),
            udp: Nanos::from_secs(60),
            icmp: Nanos::from_secs(10),
            sctp: Nanos::from_secs(300),
            other: Nanos::from_secs(60),
        }
    }
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
            TimeoutPolicy::LIMIT.0,
        ] {
            let policy = TimeoutPolicy {
                udp: Nanos(nanos),
                ..TimeoutPolicy::default()
            };
            let ticks = policy.ticks().unwrap()[TimeoutClass::Udp.index()];
            for seen in [0, 1, (1 << TICK_SHIFT) - 1, 12_345_678_901] {
                let due = (tick(Nanos(seen)) + u64::from(ticks)) << TICK_SHIFT;
                assert!(due > seen + nanos || nanos == 0 && due >= seen);
                assert!(due <= seen + nanos + (2 << TICK_SHIFT));
            }
        }
    }

    #[test]
    fn a_timeout_beyond_the_limit_is_rejected() {
        let policy = TimeoutPolicy {
            sctp: Nanos(TimeoutPolicy::LIMIT.0 + 1),
            ..TimeoutPolicy::default()
        };
        assert_eq!(
            policy.ticks(),
            Err(TableError::Timeout {
                class: TimeoutClass::Sctp,
                timeout: Nanos(TimeoutPolicy::LIMIT.0 + 1)
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
