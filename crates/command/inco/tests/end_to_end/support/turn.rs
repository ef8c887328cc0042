//! Who uses the machine: tests mostly wait, so some run beside each other, and those that measure do not.

use std::sync::{Condvar, Mutex, PoisonError};

/// Places for tests. Most tests wait: three of them use a third of a machine with two CPUs. With four, some tests see
/// pauses of seconds.
const PLACES: usize = 3;
/// What a test takes that uses a CPU, or that cannot be late.
const PLACES_OF_A_CPU: usize = 2;

static FREE: Mutex<usize> = Mutex::new(PLACES);
static GIVEN_BACK: Condvar = Condvar::new();

/// The right to run, for as long as it is there.
pub(super) struct Turn {
    places: usize,
}

impl Turn {
    /// For a test that mostly waits.
    pub(super) fn beside_others() -> Turn {
        Turn::of(1)
    }

    /// For a test that uses a CPU, or that cannot be late: few run beside it.
    pub(super) fn with_a_cpu() -> Turn {
        Turn::of(PLACES_OF_A_CPU)
    }

    /// For a test that measures: nothing runs beside it.
    pub(super) fn quiet() -> Turn {
        Turn::of(PLACES)
    }

    /// That of another place of the same test.
    pub(super) fn shared() -> Turn {
        Turn::of(0)
    }

    fn of(places: usize) -> Turn {
        let free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        let enough = GIVEN_BACK.wait_while(free, |free| *free < places);
        *enough.unwrap_or_else(PoisonError::into_inner) -= places;
        Turn { places }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *FREE.lock().unwrap_or_else(PoisonError::into_inner) += self.places;
        GIVEN_BACK.notify_all();
    }
}
