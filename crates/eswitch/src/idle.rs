//! What a worker does when there is little to do: it sleeps, so that an idle orchestrator burns no core.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use model::Nanos;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};

/// Whether a worker polls without a break or sleeps when it can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Polling {
    /// Sleeps between small bursts, and on its file descriptors when nothing comes.
    #[default]
    Adaptive,
    /// Never sleeps. For a core of its own.
    Busy,
}

/// Packets per turn from which on a worker does not pause: the load is then high enough that the next burst is
/// already there.
const BUSY_PACKETS: usize = 16;
/// How long it pauses after a small burst. With 1024 slots a ring fills in this time only above 30 Mpps, and the
/// pause adds at most this much latency.
const PAUSE: Nanos = Nanos::from_micros(30);
/// Without a packet for this long it waits on its file descriptors instead.
const QUIET: Nanos = Nanos::from_millis(2);
/// The longest sleep: flows that expire leave the count within 10 ms, on an idle worker too.
const LONGEST_WAIT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 4_000_000,
};
/// The longest sleep where a port can only be polled: what a packet there may wait at most.
const LONGEST_BLIND_WAIT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 500_000,
};

/// Wakes a sleeping worker from another thread.
#[derive(Debug)]
pub struct Waker {
    fd: OwnedFd,
    sleeping: AtomicBool,
}

impl Waker {
    /// A waker for one worker.
    ///
    /// # Errors
    /// The system's error where it has no descriptor left.
    pub fn new() -> rustix::io::Result<Waker> {
        Ok(Waker {
            fd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            sleeping: AtomicBool::new(false),
        })
    }

    /// Wakes the worker if it sleeps or is about to. What it should see must be in its ring before this call.
    pub fn wake(&self) {
        // Pairs with the fence in `before_sleep`: either it sees our message or we see that it sleeps.
        std::sync::atomic::fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::Relaxed) {
            // The counter can only be full where the worker is woken anyway.
            let _already_woken = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// Announces a sleep. After it, the worker looks into its rings once more before it sleeps.
    pub fn before_sleep(&self) {
        self.sleeping.store(true, Ordering::Relaxed);
        std::sync::atomic::fence(Ordering::SeqCst);
    }

    /// Ends a sleep.
    pub fn after_sleep(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// What a worker should do after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// The next turn at once.
    None,
    /// A short pause, without looking at descriptors.
    Pause,
    /// Wait for a packet or a command.
    Wait,
}

/// The state between turns from which the rest follows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Idle {
    polling: Polling,
    last_packet: Nanos,
}

impl Idle {
    /// A worker that has just begun.
    pub fn new(polling: Polling) -> Idle {
        Idle {
            polling,
            last_packet: Nanos::ZERO,
        }
    }

    /// What to do after a turn at `now` that moved that many packets.
    pub fn after(&mut self, packets: usize, now: Nanos) -> Rest {
        if packets > 0 {
            self.last_packet = now;
        }
        match self.polling {
            Polling::Busy => Rest::None,
            Polling::Adaptive if packets >= BUSY_PACKETS => Rest::None,
            Polling::Adaptive if now.since(self.last_packet) < QUIET => Rest::Pause,
            Polling::Adaptive => Rest::Wait,
        }
    }

    /// Sleeps for a short while.
    pub fn pause() {
        let span = Timespec {
            tv_sec: 0,
            tv_nsec: PAUSE.0 as i64,
        };
        // An interrupted sleep is an early turn, nothing else.
        let _interrupted = rustix::thread::nanosleep(&span);
    }
}

/// The descriptors that wake a worker. They are watched for edges, so that none has to be read.
#[derive(Debug)]
pub struct WakeSet {
    epoll: OwnedFd,
}

impl WakeSet {
    /// A set with the waker in it.
    ///
    /// # Errors
    /// The system's error where it has no descriptor left.
    pub fn new(waker: &Waker) -> rustix::io::Result<WakeSet> {
        let set = WakeSet {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
        };
        set.watch(waker.as_fd())?;
        Ok(set)
    }

    /// Adds a descriptor.
    ///
    /// # Errors
    /// The system's error where it is in the set already or cannot be watched.
    pub fn watch(&self, fd: BorrowedFd<'_>) -> rustix::io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(0), flags)
    }

    /// Removes a descriptor; one that is not in the set is no matter.
    pub fn forget(&self, fd: BorrowedFd<'_>) {
        let _not_in_it = epoll::delete(&self.epoll, fd);
    }

    /// Sleeps until a descriptor has become readable, for at most 4 ms, or half a millisecond where a port `must_be_polled`.
    pub fn wait(&self, must_be_polled: bool) {
        let mut events = [std::mem::MaybeUninit::<epoll::Event>::uninit(); 8];
        let longest = if must_be_polled {
            &LONGEST_BLIND_WAIT
        } else {
            &LONGEST_WAIT
        };
        // An interrupted wait is an early turn, nothing else.
        let _interrupted = epoll::wait(&self.epoll, &mut events, Some(longest));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_worker_never_rests_and_an_adaptive_one_rests_by_load() {
        let mut busy = Idle::new(Polling::Busy);
        assert_eq!(busy.after(0, Nanos::from_secs(9)), Rest::None);
        let mut adaptive = Idle::new(Polling::Adaptive);
        assert_eq!(adaptive.after(64, Nanos::from_millis(1)), Rest::None);
        assert_eq!(adaptive.after(3, Nanos::from_millis(2)), Rest::Pause);
        assert_eq!(adaptive.after(0, Nanos::from_millis(3)), Rest::Pause);
        assert_eq!(adaptive.after(0, Nanos::from_millis(5)), Rest::Wait);
    }

    #[test]
    fn a_wake_between_announcement_and_sleep_is_not_lost() {
        let waker = Waker::new().unwrap();
        let set = WakeSet::new(&waker).unwrap();
        for _ in 0..100 {
            waker.before_sleep();
            waker.wake();
            let mut events = [std::mem::MaybeUninit::<epoll::Event>::uninit(); 8];
            let long = Timespec {
                tv_sec: 10,
                tv_nsec: 0,
            };
            let (woken, _) = epoll::wait(&set.epoll, &mut events, Some(&long)).unwrap();
            assert_eq!(woken.len(), 1);
            waker.after_sleep();
        }
        waker.wake();
        let mut events = [std::mem::MaybeUninit::<epoll::Event>::uninit(); 8];
        let none = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let (woken, _) = epoll::wait(&set.epoll, &mut events, Some(&none)).unwrap();
        assert!(woken.is_empty(), "a worker that is awake is not written to");
    }
}
