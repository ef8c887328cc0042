//! How long a thread runs while others wait for its CPU, and whether those that it starts run as it does. The first is its slice, with Linux from 6.12 on (EEVDF). A thread that wakes runs at
//! once where its slice is shorter than that of the one that runs and it has not had more than its share; else it waits for the end
//! of that one's slice, which the kernel looks for at its next tick, up to 4 ms later. Nobody gets more of a CPU by a shorter
//! slice. An older kernel takes the call and goes on as it did.
//!
//! Only what packets wait for should have a short one: a thread that has one and waits keeps the others that have one from running
//! at once.

// UNSAFETY: neither std nor rustix has the two system calls that this is.

use std::io;
use std::time::Duration;

use rustix::process::Pid;

/// The shortest slice and the longest that Linux gives.
pub const LIMITS: (Duration, Duration) = (Duration::from_micros(100), Duration::from_millis(100));

/// Gives this thread a slice, and each that it starts from now on.
///
/// # Errors
/// As [`of_thread`].
pub fn of_this_thread(slice: Duration) -> io::Result<()> {
    of_thread(None, slice)
}

/// Gives every thread of a process a slice, and those that they start from now on. Threads that end meanwhile are no matter.
///
/// # Errors
/// Where there is no such process, and as [`of_thread`].
pub fn of_process(pid: u32, slice: Duration) -> io::Result<()> {
    for entry in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let id = entry?.file_name().to_string_lossy().parse().ok();
        let Some(thread) = id.and_then(Pid::from_raw) else {
            continue;
        };
        match of_thread(Some(thread), slice) {
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            other => other?,
        }
    }
    Ok(())
}

/// Has the threads that this one starts from now on begin as ordinary ones, without its priority: one that runs in real time would
/// else start others that do.
///
/// # Errors
/// The system's, where it knows no such call or forbids it.
pub fn keep_priority_to_this_thread() -> io::Result<()> {
    change(None, |attributes| {
        attributes.sched_flags |= libc::SCHED_FLAG_RESET_ON_FORK as u64;
        true
    })
}

/// Gives a thread a slice, this one where none is named, within [`LIMITS`]. One that runs in real time or only when nothing else
/// does stays as it is.
///
/// # Errors
/// The system's, where it knows no such call, forbids it, or there is no such thread.
fn of_thread(thread: Option<Pid>, slice: Duration) -> io::Result<()> {
    change(thread, |attributes| {
        // For these policies that is the slice, in nanoseconds.
        attributes.sched_runtime = slice.clamp(LIMITS.0, LIMITS.1).as_nanos() as u64;
        [libc::SCHED_OTHER, libc::SCHED_BATCH].contains(&(attributes.sched_policy as i32))
    })
}

/// Changes how a thread is scheduled, this one where none is named, where `change` says so.
///
/// # Errors
/// The system's.
fn change(thread: Option<Pid>, change: impl FnOnce(&mut libc::sched_attr) -> bool) -> io::Result<()> {
    let id = thread.map_or(0, |thread| thread.as_raw_nonzero().get());
    let mut attributes = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the structure is ours alone and outlives the call, which writes as much of it as the size says.
    #[expect(unsafe_code)]
    let got = unsafe {
        libc::syscall(
            libc::SYS_sched_getattr,
            id,
            &raw mut attributes,
            attributes.size,
            0,
        )
    };
    if got != 0 {
        return Err(io::Error::last_os_error());
    }
    if !change(&mut attributes) {
        return Ok(());
    }
    // SAFETY: as before; this call reads.
    #[expect(unsafe_code)]
    let set = unsafe { libc::syscall(libc::SYS_sched_setattr, id, &raw const attributes, 0) };
    match set {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    const SLICE: Duration = Duration::from_micros(300);

    /// What the kernel says of this thread, by name; `None` where it does not tell.
    fn told(name: &str) -> Option<String> {
        let text = std::fs::read_to_string("/proc/thread-self/sched").ok()?;
        let line = text.lines().find(|line| line.starts_with(name))?;
        line.split(':').nth(1).map(|value| value.trim().to_owned())
    }

    fn nice() -> i32 {
        rustix::process::getpriority_process(None).unwrap()
    }

    /// The slice is told from 6.12 on, which gave it to ordinary threads.
    fn assert_slice(slice: Duration) {
        match told("se.slice") {
            Some(told) => assert_eq!(told, slice.as_nanos().to_string()),
            None => println!("skipped: this kernel does not tell slices"),
        }
    }

    #[test]
    fn a_thread_gives_its_slice_to_those_that_it_starts_and_keeps_its_priority() {
        std::thread::spawn(|| {
            rustix::process::setpriority_process(None, nice() + 1).unwrap();
            let before = nice();
            of_this_thread(SLICE).unwrap();
            std::thread::spawn(move || {
                assert_slice(SLICE);
                assert_eq!(nice(), before);
                of_this_thread(Duration::ZERO).unwrap();
                assert_slice(LIMITS.0);
            })
            .join()
            .unwrap();
        })
        .join()
        .unwrap();
    }

    #[test]
    fn what_a_thread_starts_does_not_run_in_real_time() {
        let policy = || told("policy");
        if policy().is_none() {
            return println!("skipped: this kernel does not tell policies");
        }
        std::thread::spawn(move || {
            let is_in_real_time = change(None, |attributes| {
                attributes.sched_policy = libc::SCHED_FIFO as u32;
                attributes.sched_priority = 1;
                true
            });
            if is_in_real_time.is_err() {
                return println!("skipped: real time is not allowed");
            }
            let inherits = std::thread::spawn(policy).join().unwrap();
            assert_eq!(inherits.as_deref(), Some("1"), "as any thread does");
            keep_priority_to_this_thread().unwrap();
            assert_eq!(policy().as_deref(), Some("1"));
            let begins = std::thread::spawn(policy).join().unwrap();
            assert_eq!(begins.as_deref(), Some("0"));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn every_thread_of_a_process_is_given_it() {
        let (go, waits) = channel::<()>();
        let (ready, is_ready) = channel();
        let thread = std::thread::spawn(move || {
            ready.send(()).unwrap();
            waits.recv().unwrap();
            assert_slice(SLICE);
        });
        is_ready.recv().unwrap();
        of_process(std::process::id(), SLICE).unwrap();
        go.send(()).unwrap();
        thread.join().unwrap();
        assert!(of_process(u32::MAX, SLICE).is_err());
    }
}
