//! Packets on their way through an instance, which no ring shows: in its interface, or in its function.

use model::Nanos;
use switch::SlotCounters;

use crate::PASSAGE;

/// Whether an instance has been given packets that may still come back.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct UnderWay {
    /// What earlier instances of the slot did not give back.
    before: u64,
    /// When packets were last given to it; [`None`] where all have come back.
    given_at: Option<Nanos>,
}

impl UnderWay {
    /// Begins to follow an instance.
    pub(crate) fn start(&mut self, raw: &SlotCounters) {
        self.before = owed(raw);
    }

    /// Takes one reading; `arrived` says whether packets came for it since the last one.
    #[inline]
    pub(crate) fn sample(&mut self, raw: &SlotCounters, arrived: bool, now: Nanos) -> bool {
        if arrived {
            self.given_at = Some(now);
        } else if let Some(given_at) = self.given_at
            && (owed(raw) == self.before || now.since(given_at) >= PASSAGE)
        {
            self.given_at = None;
        }
        self.given_at.is_some()
    }
}

/// Packets that were given to the slot's instances and have not come back, as far as their ends are known.
fn owed(raw: &SlotCounters) -> u64 {
    let given = raw.to_packets.wrapping_add(raw.originated);
    let ended = [raw.back_packets, raw.lost, raw.kept, raw.delivered];
    ended.into_iter().fold(given, u64::wrapping_sub)
}
