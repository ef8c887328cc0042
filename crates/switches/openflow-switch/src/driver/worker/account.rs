//! Packets that no counter saw, because their ports are gone.

use std::sync::Arc;

use model::{DropReason, Nanos};
use switch::SwitchReading;

use super::Worker;
use crate::driver::lock;
use crate::driver::silence::Watch;

/// How long it may take until nothing moves, before what is missing is counted anyhow.
pub(super) const UNSEEN_PATIENCE: Nanos = Nanos::from_secs(3);
/// The same while it is being proven that nothing moves.
const REST_PATIENCE: Nanos = Nanos::from_secs(10);
/// How long nothing moves before the counters of rules are believed: the switch updates them every 500 ms, and we ask
/// for them every 500 ms at most.
const RULES_LAG: Nanos = Nanos::from_millis(1_500);
/// How long functions may take to connect again after a restart of the switch, before their silence counts.
pub(super) const CONNECT_PATIENCE: Nanos = Nanos::from_secs(5);

/// What a reading of all ports says of all packets together.
#[derive(Clone, Copy, Debug, Default)]
struct Balance {
    /// What any counter has counted, and what we wrote off.
    moved: u64,
    /// Packets in instances, and in those that have failed while their ports are read.
    in_flight: u64,
    /// Packets that came in and that no counter has met since; less than 0 where one has too many.
    missing: i64,
}

/// Whether nothing is inside the switch. That two readings are equal does not say so: a poller that waits for a CPU
/// has a burst in hand that is counted where it came in and nowhere else, and frames of the monitor port may be with
/// us. A proof does: its frames take the same ways several times, and what was before them has left by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    /// Packets move.
    No,
    /// None has moved between two readings. A proof is under way.
    Proving,
    /// It is there. The next reading is asked for after it.
    Proven,
    /// That reading is the same, and the counters of rules are as new.
    Yes,
}

/// What a reading leads to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Settled {
    /// A proof of what was under way is to be begun.
    wants_proof: bool,
    /// Packets to be counted as dropped.
    dropped: [(Option<DropReason>, u64); 2],
    /// By how many packets the sum of what came in is wrong.
    skewed: Option<i64>,
}

/// The balance of all counters: what came in and has not left.
pub(super) struct Account {
    /// Why packets may be missing: they were in ports which are gone.
    gone: Option<DropReason>,
    /// Packets that came before the bridge had rules.
    pub(super) before_rules: u64,
    /// As many may be missing because the switch has dropped them before it looked for a rule. It is one counter for
    /// all of its bridges.
    invalid: u64,
    /// That counter when it was read last; [`None`] before.
    invalid_packets: Option<u64>,
    /// Since when packets may be missing, and the least that was in the sum of all counters.
    since: Nanos,
    least: i64,
    /// What had moved at the last reading.
    moved: u64,
    rest: Rest,
    /// Since when nothing has moved.
    still: Nanos,
    /// The proof under way.
    proof: Option<u64>,
    /// After an earlier run's rules were taken over, until no packet moves: by how many packets the sum of all
    /// counters may be wrong at most, because ports are not read at one moment. As many as moved from the first
    /// reading to the second.
    pub(super) skew: Option<u64>,
    /// By how many it was.
    pub(super) skewed: i64,
}

impl Account {
    /// `gone`: why packets may be missing from the beginning on, which is `now`.
    pub(super) const fn new(gone: Option<DropReason>, now: Nanos) -> Account {
        Account {
            gone,
            before_rules: 0,
            invalid: 0,
            invalid_packets: None,
            since: now,
            least: i64::MAX,
            moved: 0,
            rest: Rest::No,
            still: now,
            proof: None,
            skew: None,
            skewed: 0,
        }
    }

    const fn may_miss(&self) -> bool {
        self.gone.is_some() || self.invalid > 0
    }

    fn begin(&mut self, now: Nanos) {
        self.rest = Rest::No;
        if !self.may_miss() {
            (self.since, self.least) = (now, i64::MAX);
        }
    }

    /// From now on packets may be missing for that reason.
    fn miss(&mut self, reason: DropReason, now: Nanos) {
        self.begin(now);
        // What came before there were rules is little, and was long ago.
        if self.gone.is_none_or(|before| before == DropReason::NoInstance) {
            self.gone = Some(reason);
        }
    }

    /// The switch says how many packets it has dropped since its start before it looked for a rule.
    pub(super) fn note_invalid(&mut self, packets: u64, now: Nanos) {
        let Some(before) = self.invalid_packets.replace(packets) else {
            return;
        };
        // A switch that was started again counts from 0.
        let grown = packets.checked_sub(before).unwrap_or(packets);
        if grown > 0 {
            self.begin(now);
            self.invalid += grown;
        }
    }

    /// Takes a reading in. `is_failing`: an instance has failed whose ports are still read. `is_proven`: whether the
    /// proof that was begun last is there.
    ///
    /// A port that is gone takes with it what it counted since it was read last, at most `PORTS_EVERY` before: what
    /// became of those packets is in the counters of the uplinks alone. Once nothing moves they are what is missing
    /// there; where something always does, the least that was missing at any reading, since ports are not read at one
    /// moment.
    fn read(&mut self, of: Balance, is_failing: bool, is_proven: bool, now: Nanos) -> Settled {
        let mut settled = Settled::default();
        let is_same = std::mem::replace(&mut self.moved, of.moved) == of.moved;
        if self.skew == Some(u64::MAX) {
            self.skew = Some(of.moved);
        }
        if !self.may_miss() && self.skew.is_none() {
            self.rest = Rest::No;
            return settled;
        }
        self.rest = match self.rest {
            _ if !is_same || of.in_flight > 0 || is_failing => Rest::No,
            Rest::No => {
                settled.wants_proof = true;
                self.still = now;
                Rest::Proving
            }
            Rest::Proving if is_proven => Rest::Proven,
            Rest::Proving => Rest::Proving,
            Rest::Proven if now.since(self.still) < RULES_LAG => Rest::Proven,
            Rest::Proven | Rest::Yes => Rest::Yes,
        };
        let is_at_rest = self.rest == Rest::Yes;
        if !self.may_miss() {
            if is_at_rest
                && self
                    .skew
                    .take()
                    .is_some_and(|limit| of.missing.unsigned_abs() <= limit)
            {
                settled.skewed = Some(-of.missing);
            }
            return settled;
        }
        self.least = self.least.min(of.missing);
        let patience = match self.rest {
            Rest::No => UNSEEN_PATIENCE,
            // Soon it is known exactly.
            _ => REST_PATIENCE,
        };
        if !is_at_rest && now.since(self.since) < patience {
            return settled;
        }
        let missing = if is_at_rest { of.missing } else { self.least };
        let missing = u64::try_from(missing).unwrap_or(0);
        let invalid = missing.min(self.invalid);
        settled.dropped = [
            (Some(DropReason::Malformed), invalid),
            (self.gone, missing - invalid),
        ];
        (self.since, self.least) = (now, i64::MAX);
        self.invalid -= invalid;
        if is_at_rest {
            (self.gone, self.invalid, self.rest) = (None, 0, Rest::No);
        }
        settled
    }
}

impl Worker {
    /// The switch was started again: what instances had not given back is lost with its rings.
    pub(super) fn note_restart(&mut self, now: Nanos) {
        let shared = Arc::clone(&self.above.shared);
        let mut shared = lock(&shared);
        for slot in &mut shared.reading.slots {
            let gone = slot.back_packets + slot.lost + slot.kept;
            slot.lost += (slot.to_packets + slot.originated).saturating_sub(gone);
        }
        for (slot, attachment) in &mut self.attachments {
            attachment.watch = Watch::default();
            attachment.connects_until = now + CONNECT_PATIENCE;
            if let Some(place) = shared.reading.slots.get(slot.index()) {
                let probes_back = self.steering.slot_figures(*slot).probes_back;
                attachment.begin_anew(*place, probes_back, self.steering.queued_probes(*slot));
            }
        }
        drop(shared);
        self.miss(DropReason::Shutdown, now);
    }

    /// From now on packets may be missing for that reason.
    pub(super) fn miss(&mut self, reason: DropReason, since: Nanos) {
        self.account.miss(reason, since);
    }

    /// Counts packets that no counter saw, as far as this reading tells.
    pub(super) fn settle_unseen(&mut self, now: Nanos) {
        let is_proven = (self.account.proof).is_some_and(|proof| self.steering.is_proven(proof));
        let is_failing = self.attachments.values().any(|of| of.failed);
        let shared = Arc::clone(&self.above.shared);
        let mut shared = lock(&shared);
        let reading = &mut shared.reading;
        let settled = self.account.read(balance(reading), is_failing, is_proven, now);
        if settled.wants_proof {
            self.account.proof = Some(self.steering.want_proof());
        }
        for (reason, count) in settled.dropped {
            if reason == Some(DropReason::NoInstance) {
                // Its counter is written anew with each reading.
                self.account.before_rules += count;
            }
            if let Some(drops) = reason.and_then(|reason| reading.drops.get_mut(reason.index())) {
                *drops += count;
            }
        }
        if let Some(skewed) = settled.skewed
            && let Some(uplink) = reading.uplinks.first_mut()
        {
            uplink.received_packets = uplink.received_packets.saturating_add_signed(skewed);
            self.account.skewed = skewed;
        }
    }
}

fn balance(reading: &SwitchReading) -> Balance {
    let inside: u64 = (reading.slots.iter())
        .map(|slot| slot.to_packets + slot.back_packets)
        .sum();
    let (offered, sent, dropped) = (reading.offered(), reading.sent(), reading.dropped());
    let in_flight = reading.in_flight();
    let came = offered + reading.originated();
    Balance {
        moved: offered + sent + dropped + inside,
        in_flight,
        missing: came.cast_signed() - (sent + dropped + in_flight).cast_signed(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Readings each 10 ms.
    struct Readings {
        account: Account,
        now: Nanos,
        proofs: usize,
        is_proven: bool,
    }

    impl Readings {
        fn new() -> Readings {
            let mut account = Account::new(None, Nanos::ZERO);
            account.miss(DropReason::InstanceLost, Nanos::ZERO);
            Readings {
                account,
                now: Nanos::ZERO,
                proofs: 0,
                is_proven: false,
            }
        }

        /// What is counted as lost by one reading.
        fn read(&mut self, moved: u64, in_flight: u64, missing: i64) -> u64 {
            self.now = self.now + Nanos::from_millis(10);
            let of = Balance {
                moved,
                in_flight,
                missing,
            };
            let settled = self.account.read(of, false, self.is_proven, self.now);
            if settled.wants_proof {
                (self.proofs, self.is_proven) = (self.proofs + 1, false);
            }
            let counted = settled.dropped.iter().filter(|(reason, _)| reason.is_some());
            counted.map(|(_, count)| count).sum()
        }
    }

    #[test]
    fn a_burst_in_the_hand_of_a_poller_that_waits_for_a_cpu_is_not_lost() {
        let mut readings = Readings::new();
        // 3 are lost. The poller has 5 more in its hand and does not run, for longer than between many readings.
        for _ in 0..50 {
            assert_eq!(readings.read(1000, 0, 8), 0);
        }
        assert_eq!(readings.proofs, 1);
        // It runs: the 5 are given to an instance, and the proof's frame comes back.
        readings.is_proven = true;
        assert_eq!(readings.read(1005, 5, 3), 0);
        assert_eq!(readings.read(1015, 0, 3), 0);
        // Only a proof that was begun since counts.
        assert_eq!(readings.read(1015, 0, 3), 0);
        assert_eq!((readings.proofs, readings.is_proven), (2, false));
        assert_eq!(readings.read(1015, 0, 3), 0);
        readings.is_proven = true;
        // This reading may be older than the proof, the next ones are not; nor are the counters of rules after a while.
        let since = readings.now;
        while readings.read(1015, 0, 3) == 0 {
            assert!(readings.now.since(since) < RULES_LAG);
        }
        assert!(readings.now.since(since) > RULES_LAG - Nanos::from_millis(50));
        // It is counted once.
        assert!((0..500).all(|_| readings.read(1018, 0, 0) == 0));
    }

    #[test]
    fn where_packets_always_move_the_least_of_all_readings_counts() {
        let mut readings = Readings::new();
        let of = |at: u64| readings.read(1000 * at, at % 7, 3 + (at % 5) as i64);
        assert_eq!((1..=300).map(of).sum::<u64>(), 3);
        // What was too little then is added at rest.
        readings.is_proven = true;
        assert_eq!((0..8).map(|_| readings.read(7, 0, 2)).sum::<u64>(), 0);
        readings.is_proven = true;
        assert_eq!((0..200).map(|_| readings.read(7, 0, 2)).sum::<u64>(), 2);
    }

    #[test]
    fn what_a_port_has_too_much_is_not_taken_back() {
        let mut readings = Readings::new();
        assert!((0..400).all(|_| readings.read(7, 0, -4) == 0));
    }

    #[test]
    fn of_what_is_missing_as_much_is_malformed_as_the_switch_says() {
        let mut account = Account::new(None, Nanos::ZERO);
        let seconds = |second: u64| Nanos::from_secs(second);
        let read = |account: &mut Account, missing: i64| {
            let of = Balance {
                moved: 10,
                in_flight: 0,
                missing,
            };
            let settled = (0..8).map(|at| account.read(of, false, true, seconds(at)));
            settled.map(|of| of.dropped[0].1).sum::<u64>()
        };
        // Before this run, and none of ours.
        account.note_invalid(7, Nanos::ZERO);
        assert_eq!(read(&mut account, 4), 0);
        account.note_invalid(10, Nanos::ZERO);
        assert_eq!(read(&mut account, 0), 0);
        assert_eq!(read(&mut account, 4), 0);
        account.note_invalid(13, Nanos::ZERO);
        assert_eq!(read(&mut account, 4), 3);
        assert_eq!(read(&mut account, 1), 0);
        // It was started again.
        account.note_invalid(2, Nanos::ZERO);
        assert_eq!(read(&mut account, 1), 1);
    }

    #[test]
    fn readings_of_an_earlier_runs_ports_are_set_right_at_rest_within_their_limit() {
        for (missing, skewed) in [(-3, Some(3)), (5, Some(-5)), (11, None)] {
            let mut account = Account::new(None, Nanos::ZERO);
            account.skew = Some(u64::MAX);
            let read = |account: &mut Account, (at, is_proven)| {
                let of = Balance {
                    moved: 10,
                    in_flight: 0,
                    missing,
                };
                account.read(of, false, is_proven, Nanos::from_secs(at)).skewed
            };
            let told = [(0, false), (1, false), (2, true), (3, true)].map(|at| read(&mut account, at));
            assert_eq!(told, [None, None, None, skewed]);
            assert_eq!(account.skew, None);
        }
    }
}
