//! Who uses the machine: tests mostly wait, so some run beside each other, and those that measure do not.
//!
//! With `INCO_TURNS=FILE`, each turn adds a line to a file when it ends: how long it was in seconds, its places, the test.

use std::io::Write as _;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Places for tests on a machine with two CPUs. Most tests wait: three of them use a third of it, but for moments in which
/// they make namespaces and containers.
const PLACES: usize = 4;
/// What a test takes that uses a CPU, or that cannot be late. One such test runs at a time: beside a second one, some
/// see pauses of seconds.
const PLACES_OF_A_CPU: usize = 2;

/// Who is there, and who waits.
struct Hall {
    free: usize,
    /// Tests that use a CPU and have no turn yet.
    waiting_for_a_cpu: usize,
    /// Whether one has its turn.
    is_cpu_taken: bool,
}

static HALL: Mutex<Hall> = Mutex::new(Hall {
    free: PLACES,
    waiting_for_a_cpu: 0,
    is_cpu_taken: false,
});
static CHANGED: Condvar = Condvar::new();

fn hall() -> MutexGuard<'static, Hall> {
    HALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until the hall is so.
fn wait(hall: MutexGuard<'static, Hall>, is_so: impl Fn(&Hall) -> bool) -> MutexGuard<'static, Hall> {
    CHANGED
        .wait_while(hall, |hall| !is_so(hall))
        .unwrap_or_else(PoisonError::into_inner)
}

/// The right to run, for as long as it is there.
pub(super) struct Turn {
    places: usize,
    has_cpu: bool,
    since: Instant,
}

impl Turn {
    /// For a test that mostly waits. It leaves room for a test that uses a CPU where one waits and none runs.
    pub(super) fn beside_others() -> Turn {
        let mut hall = wait(hall(), |hall| {
            let is_kept = hall.waiting_for_a_cpu > 0 && !hall.is_cpu_taken;
            hall.free > if is_kept { PLACES_OF_A_CPU } else { 0 }
        });
        hall.free -= 1;
        Turn {
            places: 1,
            has_cpu: false,
            since: Instant::now(),
        }
    }

    /// For a test that uses a CPU, or that cannot be late: few run beside it, and none of its kind.
    pub(super) fn with_a_cpu() -> Turn {
        let mut before = hall();
        before.waiting_for_a_cpu += 1;
        let mut hall = wait(before, |hall| !hall.is_cpu_taken && hall.free >= PLACES_OF_A_CPU);
        hall.waiting_for_a_cpu -= 1;
        hall.is_cpu_taken = true;
        hall.free -= PLACES_OF_A_CPU;
        Turn {
            places: PLACES_OF_A_CPU,
            has_cpu: true,
            since: Instant::now(),
        }
    }

    /// For a test that measures: nothing runs beside it.
    pub(super) fn quiet() -> Turn {
        let mut hall = wait(hall(), |hall| hall.free == PLACES);
        hall.free = 0;
        Turn {
            places: PLACES,
            has_cpu: false,
            since: Instant::now(),
        }
    }

    /// That of another place of the same test.
    pub(super) fn shared() -> Turn {
        Turn {
            places: 0,
            has_cpu: false,
            since: Instant::now(),
        }
    }
}

impl Turn {
    fn note(&self) {
        let Some(file) = std::env::var_os("INCO_TURNS") else {
            return;
        };
        let file = std::fs::OpenOptions::new().create(true).append(true).open(file);
        let seconds = self.since.elapsed().as_secs_f64();
        let thread = std::thread::current();
        let test = thread.name().unwrap_or_default();
        if let Ok(mut file) = file {
            let _ = writeln!(file, "{seconds:.1}\t{}\t{test}", self.places);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.note();
        let mut hall = hall();
        hall.free += self.places;
        hall.is_cpu_taken &= !self.has_cpu;
        drop(hall);
        CHANGED.notify_all();
    }
}
