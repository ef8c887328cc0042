//! Releases a bench's system resources when it ends and when it is interrupted.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{Context as _, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Releases one resource.
type Step = Box<dyn FnOnce() + Send>;

/// Pending releases with their numbers, the newest last.
static STEPS: Mutex<(u64, Vec<(u64, Step)>)> = Mutex::new((0, Vec::new()));

fn steps() -> MutexGuard<'static, (u64, Vec<(u64, Step)>)> {
    STEPS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Releases a resource when dropped, or when Ctrl-C or SIGTERM ends the process.
#[must_use = "it is given back at once otherwise"]
pub(super) struct Cleanup(u64);

impl Cleanup {
    /// Registers `step` as the release.
    pub(super) fn by(step: impl FnOnce() + Send + 'static) -> Cleanup {
        let (next, all) = &mut *steps();
        *next += 1;
        all.push((*next, Box::new(step)));
        Cleanup(*next)
    }
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        // The lock is released first: the step may take long.
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

/// Handles the first Ctrl-C or SIGTERM: releases all resources, the newest first, and ends the process with the
/// status that shells use for the signal.
///
/// # Errors
/// Returns an error if the kernel refuses the signal handler or the thread.
pub(super) fn on_signals() -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot listen for signals")?;
    thread::Builder::new()
        .name("inco-signals".to_owned())
        .spawn(move || {
            if let Some(signal) = signals.forever().next() {
                // The list stays locked, so that no resource is registered from here on.
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
            Cleanup::by(move || {
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
