//! Slots whose flows move away, and how far the search for these flows is.

use flow_table::DumpCursor;
use model::{InstanceId, Nanos, Slot};

use crate::worker::context::View;

/// When flows that could not move are tried again: an instance that had no CPU has had its turn by then.
const AGAIN_AFTER: Nanos = Nanos::from_millis(500);

/// An instance with its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) slot: Slot,
    pub(super) instance: InstanceId,
}

impl Place {
    pub(super) fn of(slot: Slot, view: &View) -> Place {
        let instance = view.routes[slot].instance;
        Place { slot, instance }
    }

    /// Whether it is there, and serves.
    pub(super) fn serves(self, view: &View) -> bool {
        let route = &view.routes[self.slot];
        route.serves && route.instance == self.instance
    }
}

/// A slot whose flows move away.
pub(super) struct Emptying {
    pub(super) place: Place,
    /// Where the search for its flows goes on; [`None`] when all have been seen.
    pub(super) cursor: Option<DumpCursor>,
    /// When the search begins anew, because moves were cancelled for a reason that may pass.
    again_at: Option<Nanos>,
    /// Whether the control plane waits for the end of these moves. It has them tried again itself.
    pub(super) is_awaited: bool,
}

impl Emptying {
    pub(super) fn new(place: Place, is_awaited: bool) -> Emptying {
        Emptying {
            place,
            cursor: Some(DumpCursor::default()),
            again_at: None,
            is_awaited,
        }
    }

    /// Has the flows that stay tried again after a while.
    pub(super) fn try_again(&mut self, now: Nanos) {
        if !self.is_awaited {
            self.again_at = Some(now + AGAIN_AFTER);
        }
    }

    /// Whether flows that could not move are to be tried again now.
    pub(super) fn is_due(&self, now: Nanos) -> bool {
        self.again_at.is_some_and(|at| at <= now)
    }

    /// Begins the search anew if that is due.
    pub(super) fn begin_again(&mut self, now: Nanos) {
        if self.is_due(now) {
            self.again_at = None;
            self.cursor = Some(DumpCursor::default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A search that has seen all flows, one of which could not move at `now`.
    fn searched(is_awaited: bool, now: Nanos) -> Emptying {
        let place = Place {
            slot: Slot(1),
            instance: InstanceId(7),
        };
        let mut of = Emptying::new(place, is_awaited);
        of.cursor = None;
        of.try_again(now);
        of
    }

    #[test]
    fn a_search_begins_anew_after_half_a_second() {
        let now = Nanos::from_millis(3);
        let mut of = searched(false, now);
        of.begin_again(now + Nanos::from_millis(499));
        assert!(of.cursor.is_none() && !of.is_due(now + Nanos::from_millis(499)));
        of.begin_again(now + Nanos::from_millis(500));
        assert!(of.cursor.is_some());
        // Once: what stays again says so again.
        assert!(!of.is_due(Nanos(u64::MAX)));
    }

    /// An instance that has an heir: the control plane tries the rest again itself.
    #[test]
    fn the_worker_does_not_begin_a_search_anew_whose_end_is_awaited() {
        let mut of = searched(true, Nanos::ZERO);
        of.begin_again(Nanos(u64::MAX));
        assert!(of.cursor.is_none() && !of.is_due(Nanos(u64::MAX)));
    }
}
