//! What a DMA engine is declared to do: a model, since a machine without a card has none.

use model::Nanos;

/// Latency and bandwidth of a DMA engine, in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Declared {
    /// From the last byte that leaves one side until the other side can read it. It does not depend on the size.
    pub latency: Nanos,
    /// Bytes per second that leave a side.
    pub bytes_per_second: u64,
}

impl Declared {
    /// A card writes to the memory of its host: what one core of a LiquidIO writes in blocks of 2 KB, and the upper end
    /// of half a microsecond to one for a small write (iPipe, SIGCOMM 2019, section 2.2.5).
    pub const CARD_TO_HOST: Declared = Declared {
        latency: Nanos(1_000),
        bytes_per_second: 2_100_000_000,
    };
    /// A card reads what its host has for it: the same for reading.
    pub const HOST_TO_CARD: Declared = Declared {
        latency: Nanos(1_000),
        bytes_per_second: 1_400_000_000,
    };
    /// As fast as this machine copies: for tests.
    pub const AT_ONCE: Declared = Declared {
        latency: Nanos(0),
        bytes_per_second: u64::MAX,
    };

    /// The time that so many bytes take to leave, rounded to a nanosecond.
    pub fn time_of(self, bytes: u64) -> Nanos {
        let rate = u128::from(self.bytes_per_second.max(1));
        let nanos = (u128::from(bytes) * 1_000_000_000 + rate / 2) / rate;
        Nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_in_proportion_to_bytes() {
        assert_eq!(Declared::CARD_TO_HOST.time_of(2_100), Nanos(1_000));
        assert_eq!(Declared::CARD_TO_HOST.time_of(2), Nanos(1));
        assert_eq!(Declared::AT_ONCE.time_of(1 << 20), Nanos(0));
        assert_eq!(
            Declared::HOST_TO_CARD.time_of(u64::MAX).0 / 1_000_000_000,
            u64::MAX / 1_400_000_000
        );
    }
}
