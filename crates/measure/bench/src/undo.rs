//! What a bench takes from the machine and gives back: when it ends, and when it is interrupted.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{Context as _, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// What gives something back.
type Step = Box<dyn FnOnce() + Send>;

/// What is still to be given back, each with its number, the newest last.
static STEPS: Mutex<(u64, Vec<(u64, Step)>)> = Mutex::new((0, Vec::new()));

fn steps() -> MutexGuard<'static, (u64, Vec<(u64, Step)>)> {
    STEPS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives something back when it is dropped, or before the process ends by Ctrl-C or SIGTERM, whichever comes first.
#[must_use = "it is given back at once otherwise"]
pub(super) struct Undo(u64);

impl Undo {
    /// That `step` gives back.
    pub(super) fn by(step: impl FnOnce() + Send + 'static) -> Undo {
        let (next, all) = &mut *steps();
        *next += 1;
        all.push((*next, Box::new(step)));
        Undo(*next)
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        // Not while the list is locked: the step may take a while.
        let step = {
            let (_, all) = &mut *steps();
            let place = all.iter().position(|(number, _)| *number == self.0);
            place.map(|place| all.remove(place).1)
        };
        if let Some(step) = step {
            step();
        }
    }
}

/// From now on the first Ctrl-C or SIGTERM gives everything back, the newest first, and ends the process with the status
/// that shells use for that.
///
/// # Errors
/// Where the system takes no handler or gives no thread.
pub(super) fn on_signals() -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot listen for signals")?;
    thread::Builder::new()
        .name("inco-signals".to_owned())
        .spawn(move || {
            if let Some(signal) = signals.forever().next() {
                // The list stays locked: nothing new is taken from here on.
                let (_, all) = &mut *steps();
                while let Some((_, step)) = all.pop() {
                    step();
                }
                std::process::exit(128 + signal);
            }
        })
        .context("cannot start the thread for signals")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn each_is_given_back_once() {
        let count = Arc::new(AtomicU32::new(0));
        let add = |n| {
            let count = Arc::clone(&count);
            Undo::by(move || {
                count.fetch_add(n, Ordering::Relaxed);
            })
        };
        let (one, ten) = (add(1), add(10));
        drop(one);
        assert_eq!(count.load(Ordering::Relaxed), 1);
        drop(ten);
        assert_eq!(count.load(Ordering::Relaxed), 11);
    }
}
