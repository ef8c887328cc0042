//! Who uses the machine: tests mostly wait, so some run beside each other, and those that measure do not.

use std::fs::File;
use std::sync::{Condvar, Mutex, PoisonError};

use rustix::fs::{FlockOperation, flock};

/// Places for tests. Most tests wait; more of them would be late for what they wait for on a machine with two CPUs:
/// with four, while other suites ran, an instance took nothing for the 100 ms after which it counts as stalled.
const PLACES: usize = 2;
/// What a test takes that uses a CPU, or that cannot be late.
const PLACES_OF_A_CPU: usize = 2;
/// The variable with the file that other suites lock, shared, while they run.
const QUIET_FILE: &str = "INCO_QUIET_FILE";

static FREE: Mutex<usize> = Mutex::new(PLACES);
static GIVEN_BACK: Condvar = Condvar::new();

/// The right to run, for as long as it is there.
pub(super) struct Turn {
    places: usize,
    _quiet: Option<File>,
}

impl Turn {
    /// For a test that mostly waits.
    pub(super) fn beside_others() -> Turn {
        Turn::of(1, None)
    }

    /// For a test that uses a CPU, or that cannot be late: few run beside it.
    pub(super) fn with_a_cpu() -> Turn {
        Turn::of(PLACES_OF_A_CPU, None)
    }

    /// For a test that measures: it waits for the other tests and suites.
    pub(super) fn quiet() -> Turn {
        let file = std::env::var_os(QUIET_FILE).map(|path| {
            let file = File::options().create(true).append(true).open(path).unwrap();
            flock(&file, FlockOperation::LockExclusive).unwrap();
            file
        });
        Turn::of(PLACES, file)
    }

    /// That of another place of the same test.
    pub(super) fn shared() -> Turn {
        Turn::of(0, None)
    }

    fn of(places: usize, quiet: Option<File>) -> Turn {
        let free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        let enough = GIVEN_BACK.wait_while(free, |free| *free < places);
        *enough.unwrap_or_else(PoisonError::into_inner) -= places;
        Turn {
            places,
            _quiet: quiet,
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *FREE.lock().unwrap_or_else(PoisonError::into_inner) += self.places;
        GIVEN_BACK.notify_all();
    }
}
