//! Scheduler slices of threads, and whether child threads inherit real-time priority.
//!
//! From Linux 6.12 on (EEVDF) a thread can set its slice. A waking thread preempts the running one if its
//! slice is shorter and it has not exceeded its share. Otherwise it waits for the end of the other's slice,
//! which the kernel checks at its next tick, up to 4 ms later. A shorter slice gives no larger share of a
//! CPU. Older kernels accept the call and ignore it.
//!
//! Only threads that packets wait for should have a short slice: threads with short slices do not preempt
//! each other.

// UNSAFETY: neither std nor rustix offers these two system calls.

use std::io;
use std::time::Duration;

use rustix::process::Pid;

/// Linux's shortest and longest slice.
pub const LIMITS: (Duration, Duration) = (Duration::from_micros(100), Duration::from_millis(100));

/// Sets the slice of this thread and of threads that it starts later.
///
/// # Errors
/// As [`of_thread`].
pub fn of_this_thread(slice: Duration) -> io::Result<()> {
    of_thread(None, slice)
}

/// Sets the slice of all threads of a process and of threads that they start later. Threads that end
/// meanwhile are ignored.
///
/// # Errors
/// No such process, and as [`of_thread`].
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

/// Makes threads that this one starts later begin with the default priority. A real-time thread would
/// otherwise start real-time threads.
///
/// # Errors
/// The system call is unknown or not permitted.
pub fn keep_priority_to_this_thread() -> io::Result<()> {
    change(None, |attributes| {
        attributes.sched_flags |= libc::SCHED_FLAG_RESET_ON_FORK as u64;
        true
    })
}

/// Sets the slice of a thread, by default this one, clamped to [`LIMITS`]. Real-time and idle-priority
/// threads are unchanged.
///
/// # Errors
/// The system call is unknown or not permitted, or there is no such thread.
fn of_thread(thread: Option<Pid>, slice: Duration) -> io::Result<()> {
    change(thread, |attributes| {
        // For these policies this is the slice, in nanoseconds.
        attributes.sched_runtime = slice.clamp(LIMITS.0, LIMITS.1).as_nanos() as u64;
        [libc::SCHED_OTHER, libc::SCHED_BATCH].contains(&(attributes.sched_policy as i32))
    })
}

/// Changes a thread's scheduling attributes, by default this thread's, if `change` returns true.
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
    // SAFETY: the structure is exclusively ours and outlives the call, which writes at most the stated size.
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
    // SAFETY: as before; this call only reads.
    #[expect(unsafe_code)]
    let set = unsafe { libc::syscall(libc::SYS_sched_setattr, id, &raw const attributes, 0) };
    match set {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::channel;

    use super::*;

    const SLICE: Duration = Duration::from_micros(300);
    /// One test changes all threads of this process, those of the others among them.
    static THREADS: Mutex<()> = Mutex::new(());

    /// A scheduling field of this thread, by name; `None` if the kernel does not report it.
    fn told(name: &str) -> Option<String> {
        let text = std::fs::read_to_string("/proc/thread-self/sched").ok()?;
        let line = text.lines().find(|line| line.starts_with(name))?;
        line.split(':').nth(1).map(|value| value.trim().to_owned())
    }

    fn nice() -> i32 {
        rustix::process::getpriority_process(None).unwrap()
    }

    /// Linux reports the slice from 6.12 on, which introduced it for ordinary threads.
    fn assert_slice(slice: Duration) {
        match told("se.slice") {
            Some(told) => assert_eq!(told, slice.as_nanos().to_string()),
            None => println!("skipped: this kernel does not report slices"),
        }
    }

    #[test]
    fn child_threads_inherit_the_slice_but_not_the_priority() {
        let _mine = THREADS.lock();
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
    fn child_threads_do_not_run_in_real_time() {
        let policy = || told("policy");
        if policy().is_none() {
            return println!("skipped: this kernel does not report policies");
        }
        std::thread::spawn(move || {
            let is_in_real_time = change(None, |attributes| {
                attributes.sched_policy = libc::SCHED_FIFO as u32;
                attributes.sched_priority = 1;
                true
            });
            if is_in_real_time.is_err() {
                return println!("skipped: real-time priority is not permitted");
            }
            let inherits = std::thread::spawn(policy).join().unwrap();
            assert_eq!(inherits.as_deref(), Some("1"), "inherited by default");
            keep_priority_to_this_thread().unwrap();
            assert_eq!(policy().as_deref(), Some("1"));
            let begins = std::thread::spawn(policy).join().unwrap();
            assert_eq!(begins.as_deref(), Some("0"));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn every_thread_of_a_process_gets_the_slice() {
        let _mine = THREADS.lock();
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
