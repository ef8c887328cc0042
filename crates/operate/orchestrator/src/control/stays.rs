//! Events of flows that were to move with their state, and stay where they are: the first at once, and then at most one a
//! second for each instance, with all since the one before.

use std::collections::HashMap;

use model::{EventKind, Nanos, Slot};
use switch::SlotCounters;

/// Between two events of one instance.
const PERIOD: Nanos = Nanos::from_secs(1);

/// At a limit, refused, without room, gone: as counted.
type Counts = [u64; 4];

fn counts(of: &SlotCounters) -> Counts {
    [
        of.stayed_at_limit,
        of.stayed_refused,
        of.stayed_without_room,
        of.stayed_gone,
    ]
}

/// What has been told of each slot, and when.
#[derive(Debug, Default)]
pub(super) struct Stays(HashMap<Slot, (Counts, Option<Nanos>)>);

impl Stays {
    /// The slot has a new instance. What was counted before is the earlier one's.
    pub(super) fn begin(&mut self, slot: Slot, counters: &SlotCounters) {
        self.0.insert(slot, (counts(counters), None));
    }

    /// The event that is due now, if any.
    pub(super) fn due(&mut self, slot: Slot, counters: &SlotCounters, now: Nanos) -> Option<EventKind> {
        let counted = counts(counters);
        let (told, at) = self.0.entry(slot).or_default();
        if *told == counted || at.is_some_and(|at| now.since(at) < PERIOD) {
            return None;
        }
        let before = std::mem::replace(told, counted);
        *at = Some(now);
        let [at_limit, refused, without_room, gone] =
            std::array::from_fn(|reason| counted[reason].saturating_sub(before[reason]));
        Some(EventKind::Stayed {
            at_limit,
            refused,
            without_room,
            gone,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stays_is_told_once_a_second_and_never_of_an_earlier_instance() {
        let mut stays = Stays::default();
        let mut counters = SlotCounters {
            stayed_refused: 7,
            ..SlotCounters::default()
        };
        stays.begin(Slot(1), &counters);
        assert_eq!(stays.due(Slot(1), &counters, Nanos::ZERO), None);
        let mut told = [0; 4];
        let mut events = 0;
        for ms in 0..3000 {
            counters.stayed_at_limit += 2;
            counters.stayed_gone += 1;
            if let Some(EventKind::Stayed {
                at_limit,
                refused,
                without_room,
                gone,
            }) = stays.due(Slot(1), &counters, Nanos::from_millis(ms))
            {
                events += 1;
                let more = [at_limit, refused, without_room, gone];
                told = std::array::from_fn(|at| told[at] + more[at]);
            }
        }
        assert_eq!(events, 3);
        assert_eq!(told, [4002, 0, 0, 2001]);
        // The rest is told when its second is over.
        let rest = stays.due(Slot(1), &counters, Nanos::from_secs(9));
        assert!(matches!(
            rest,
            Some(EventKind::Stayed {
                at_limit: 1998,
                gone: 999,
                ..
            })
        ));
        assert_eq!(stays.due(Slot(1), &counters, Nanos::from_secs(99)), None);
    }
}
