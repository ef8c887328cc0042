//! Which changes of an uplink become events: a peer that connects and leaves a thousand times a second must not fill the event
//! log. What is held back is counted, and told with the next event that there is.

use model::Nanos;

/// Changes that are told at once.
const BURST: u32 = 10;
/// After these, one is told in so long a time.
const PERIOD: Nanos = Nanos::from_secs(1);

/// The changes of one uplink.
#[derive(Debug)]
pub(super) struct UplinkEvents {
    /// Events that may be told now.
    left: u32,
    /// When one more may be.
    refill: Nanos,
    /// The newest change that was not told.
    held: Option<(bool, String)>,
    /// How many were not.
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
    /// Takes a change: whether there is a peer, and who it is or why it is gone.
    pub(super) fn change(&mut self, up: bool, detail: &str) {
        self.held_back += u64::from(self.held.is_some());
        self.held = Some((up, detail.to_owned()));
    }

    /// What is to be told now, if anything: always the newest change, with the number of those before it that were not told.
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
            1 => (up, format!("{detail} (1 change before it was not told)")),
            many => (up, format!("{detail} ({many} changes before it were not told)")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_comes_and_goes_all_the_time_is_told_of_once_a_second() {
        let mut events = UplinkEvents::default();
        let (mut told, mut last) = (Vec::new(), (false, String::new()));
        // A change each millisecond, for five seconds.
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
        // All are counted, and the last state is told.
        let not_told: u64 = told
            .iter()
            .filter_map(|(_, detail)| detail.split_once('(')?.1.split(' ').next()?.parse::<u64>().ok())
            .sum();
        assert_eq!(not_told + told.len() as u64, 5000);
        assert!(!last.0 && last.1.starts_with("change 4999 ("), "{last:?}");
        assert!(told[..10].iter().all(|(_, detail)| !detail.contains('(')));
    }

    #[test]
    fn rare_changes_are_all_told() {
        let mut events = UplinkEvents::default();
        for second in 1..100 {
            let now = Nanos::from_secs(10 * second);
            events.change(second % 2 == 0, "peer");
            assert_eq!(events.due(now), Some((second % 2 == 0, "peer".to_owned())));
            assert_eq!(events.due(now), None);
        }
    }
}
