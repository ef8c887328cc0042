//! Limits events about uplinks: a peer that connects and leaves a thousand times a second must not fill the event
//! log. Suppressed changes are counted and reported with the next event.

use model::Nanos;

/// Changes reported without delay.
const BURST: u32 = 10;
/// After a burst, one event per period.
const PERIOD: Nanos = Nanos::from_secs(1);

/// The changes of one uplink.
#[derive(Debug)]
pub(super) struct UplinkEvents {
    /// Events that are permitted now.
    left: u32,
    /// When one more is permitted.
    refill: Nanos,
    /// The newest suppressed change.
    held: Option<(bool, String)>,
    /// Number of suppressed changes.
    held_back: u64,
}

impl Default for UplinkEvents {
    fn default() -> UplinkEvents {
        UplinkEvents {
            left: BURST,
            refill: Nanos::ZERO,
            held: None,
            held_back: 0,
        }
    }
}

impl UplinkEvents {
    /// Records a change: whether the uplink has a peer, and the peer's name or the reason of its loss.
    pub(super) fn change(&mut self, up: bool, detail: &str) {
        self.held_back += u64::from(self.held.is_some());
        self.held = Some((up, detail.to_owned()));
    }

    /// The event due now, if any: always the newest change, with the number of suppressed ones before it.
    pub(super) fn due(&mut self, now: Nanos) -> Option<(bool, String)> {
        self.held.as_ref()?;
        while self.left < BURST && now >= self.refill {
            self.left += 1;
            self.refill = self.refill + PERIOD;
        }
        self.left = self.left.checked_sub(1)?;
        if self.left + 1 == BURST {
            self.refill = now + PERIOD;
        }
        let (up, detail) = self.held.take()?;
        Some(match std::mem::take(&mut self.held_back) {
            0 => (up, detail),
            1 => (up, format!("{detail} (1 earlier change was not reported)")),
            many => (up, format!("{detail} ({many} earlier changes were not reported)")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_reconnects_all_the_time_is_reported_once_a_second() {
        let mut events = UplinkEvents::default();
        let (mut told, mut last) = (Vec::new(), (false, String::new()));
        // One change per millisecond for five seconds.
        for ms in 0..5000 {
            events.change(ms % 2 == 0, &format!("change {ms}"));
            told.extend(events.due(Nanos::from_millis(ms)));
        }
        for ms in 5000..7000 {
            if let Some(event) = events.due(Nanos::from_millis(ms)) {
                last = event.clone();
                told.push(event);
            }
        }
        assert!((14..=17).contains(&told.len()), "{}", told.len());
        // All changes are counted, and the last state is reported.
        let not_told: u64 = told
            .iter()
            .filter_map(|(_, detail)| detail.split_once('(')?.1.split(' ').next()?.parse::<u64>().ok())
            .sum();
        assert_eq!(not_told + told.len() as u64, 5000);
        assert!(!last.0 && last.1.starts_with("change 4999 ("), "{last:?}");
        assert!(told[..10].iter().all(|(_, detail)| !detail.contains('(')));
    }

    #[test]
    fn rare_changes_are_all_reported() {
        let mut events = UplinkEvents::default();
        for second in 1..100 {
            let now = Nanos::from_secs(10 * second);
            events.change(second % 2 == 0, "peer");
            assert_eq!(events.due(now), Some((second % 2 == 0, "peer".to_owned())));
            assert_eq!(events.due(now), None);
        }
    }
}
