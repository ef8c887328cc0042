//! Packets that no counter saw, because their ports are gone.

use model::{DropReason, Nanos};

use super::Worker;
use crate::driver::lock;
use crate::driver::silence::Watch;

/// How long it may take until nothing moves, before what is missing is counted anyhow.
pub(super) const UNSEEN_PATIENCE: Nanos = Nanos::from_secs(3);
/// How long functions may take to connect again after a restart of the switch, before their silence counts.
pub(super) const CONNECT_PATIENCE: Nanos = Nanos::from_secs(5);

/// Packets that were in ports which are gone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unseen {
    pub(super) reason: DropReason,
    pub(super) since: Nanos,
    /// The least that was missing in the sum of all counters.
    pub(super) least: i64,
}

/// The balance of all counters: what came in and has not left.
pub(super) struct Account {
    /// What no counter saw of packets whose ports are gone.
    pub(super) unseen: Option<Unseen>,
    /// What had moved at the last reading.
    pub(super) moved: u64,
    /// After an earlier run's rules were taken over, until no packet moves: by how many packets the sum of all
    /// counters may be wrong at most, because ports are not read at one moment. As many as moved from the first
    /// reading to the second.
    pub(super) skew: Option<u64>,
    /// By how many it was.
    pub(super) skewed: i64,
}

impl Worker {
    /// The switch was started again: what instances had not given back is lost with its rings.
    pub(super) fn note_restart(&mut self, now: Nanos) {
        let mut shared = lock(&self.above.shared);
        for slot in &mut shared.reading.slots {
            let gone = slot.back_packets + slot.lost + slot.kept;
            slot.lost += (slot.to_packets + slot.originated).saturating_sub(gone);
        }
        drop(shared);
        for attachment in self.attachments.values_mut() {
            attachment.watch = Watch::default();
            attachment.connects_until = now + CONNECT_PATIENCE;
        }
        self.miss(DropReason::Shutdown, now);
    }

    /// From now on packets may be missing for that reason.
    pub(super) fn miss(&mut self, reason: DropReason, since: Nanos) {
        self.account.unseen.get_or_insert(Unseen {
            reason,
            since,
            least: i64::MAX,
        });
    }

    /// A port that is gone takes with it what it counted since it was read last, at most `PORTS_EVERY` before: what
    /// became of those packets is in the counters of the uplinks alone. Once nothing moves they are what is missing
    /// there; where something always does, the least that was missing at any reading, since ports are not read at one
    /// moment.
    pub(super) fn settle_unseen(&mut self, now: Nanos) {
        let mut shared = lock(&self.above.shared);
        let reading = &mut shared.reading;
        let slots = reading.slots.iter();
        let inside: u64 = slots
            .map(|slot| slot.to_packets + slot.back_packets + slot.ring_drops)
            .sum();
        let moved = reading.offered() + reading.sent() + inside;
        let rests = std::mem::replace(&mut self.account.moved, moved) == moved;
        if self.account.skew == Some(u64::MAX) {
            self.account.skew = Some(moved);
        }
        let in_flight = reading.in_flight();
        let came = reading.offered() + reading.originated();
        let missing = came.cast_signed() - (reading.sent() + reading.dropped() + in_flight).cast_signed();
        if rests
            && in_flight == 0
            && self.account.unseen.is_none()
            && let Some(limit) = self.account.skew.take()
            && missing.unsigned_abs() <= limit
            && let Some(uplink) = reading.uplinks.first_mut()
        {
            uplink.received_packets = uplink.received_packets.saturating_add_signed(-missing);
            self.account.skewed = -missing;
        }
        let Some(unseen) = &mut self.account.unseen else {
            return;
        };
        unseen.least = unseen.least.min(missing);
        let is_under_way = in_flight > 0 || self.attachments.values().any(|of| of.failed);
        let is_over = rests && !is_under_way;
        if !is_over && now.since(unseen.since) < UNSEEN_PATIENCE {
            return;
        }
        let missing = if is_over { missing } else { unseen.least };
        if let Some(drops) = reading.drops.get_mut(unseen.reason.index()) {
            *drops += u64::try_from(missing).unwrap_or(0);
        }
        (unseen.since, unseen.least) = (now, i64::MAX);
        if is_over {
            self.account.unseen = None;
        }
    }
}
