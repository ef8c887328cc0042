//! Sleep of idle workers, so that an idle orchestrator uses no core; and the alarm that wakes a sleeping control
//! plane at the first packet.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::thread::Thread;

use model::{Nanos, Polling, WorkerId};
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use switch::WakeUp;

/// From this number of packets per turn on, a worker does not pause: the next burst is then already waiting.
const BUSY_PACKETS: usize = 16;
/// Length of the pause after a small burst. With 1024 slots a ring fills in this time only above 30 Mpps, and the
/// pause adds at most this much latency.
const PAUSE: Nanos = Nanos::from_micros(30);
/// After this time without a packet it waits on its file descriptors instead.
const QUIET: Nanos = Nanos::from_millis(2);
/// The longest sleep of a worker without flows or other timed work.
const LONGEST_IDLE_WAIT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};
/// The longest sleep of a worker with timed work: expired flows leave the count within 10 ms, on an idle worker too.
const LONGEST_WAIT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 4_000_000,
};
/// The longest sleep with a port that must be polled: the longest wait of a packet there.
const LONGEST_BLIND_WAIT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 500_000,
};
/// The mark of a worker that must not ring.
const UNMARKED: u64 = u64::MAX;

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

    /// Wakes the worker if it sleeps or is about to. Put messages into its ring before this call.
    pub fn wake(&self) {
        // Pairs with the fence in `before_sleep`: either the worker sees the message, or this thread sees the sleep.
        fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::Relaxed) {
            // The counter is full only if the worker is being woken already.
            let _already_woken = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// Announces a sleep. After it, the worker polls its rings once more before it sleeps.
    pub fn before_sleep(&self) {
        self.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
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

/// Wakes the control plane's thread early: at the first packet after a quiet time, and when more packets than usual
/// arrive. Workers ring it. Without a ring that costs them a load, else a system call.
#[derive(Debug)]
pub struct Alarm {
    thread: Thread,
    is_set: AtomicBool,
    /// By worker: the number of packets received in all at which it rings.
    marks: [AtomicU64; WorkerId::LIMIT],
    has_risen: AtomicBool,
}

impl Alarm {
    /// An alarm for that thread, not set yet.
    pub fn of(thread: Thread) -> Alarm {
        Alarm {
            thread,
            is_set: AtomicBool::new(false),
            marks: [const { AtomicU64::new(UNMARKED) }; WorkerId::LIMIT],
            has_risen: AtomicBool::new(false),
        }
    }

    /// Wakes the thread if the alarm is set. Update the counters that it reads before this call.
    pub fn ring(&self) {
        // Pairs with the fence in `set`: either the thread sees the counters, or this worker sees the alarm.
        fence(Ordering::SeqCst);
        if self.is_set.load(Ordering::Relaxed) {
            self.thread.unpark();
        }
    }

    /// Makes a worker ring once when it has received `mark` packets in all; it rings again only after another mark.
    pub fn mark(&self, worker: WorkerId, received: u64) {
        if let Some(mark) = self.marks.get(worker.index()) {
            mark.store(received, Ordering::Relaxed);
        }
    }

    /// Rings if the worker has `received` as many packets in all as its mark says.
    #[inline]
    pub fn ring_at_mark(&self, worker: WorkerId, received: u64) {
        if let Some(mark) = self.marks.get(worker.index()) {
            let at = mark.load(Ordering::Relaxed);
            // With a new mark in the meantime, the worker compares again in its next turn.
            let reached = received >= at
                && mark
                    .compare_exchange(at, UNMARKED, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok();
            if reached {
                self.has_risen.store(true, Ordering::Release);
                self.thread.unpark();
            }
        }
    }
}

impl WakeUp for Alarm {
    fn set(&self) {
        self.is_set.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    fn clear(&self) {
        self.is_set.store(false, Ordering::Relaxed);
    }

    fn take_rise(&self) -> bool {
        self.has_risen.swap(false, Ordering::Acquire)
    }
}

/// The next step of a worker after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// The next turn at once.
    None,
    /// A short pause, without looking at descriptors.
    Pause,
    /// Wait for a packet or a command.
    Wait,
}

/// The state between turns.
#[derive(Clone, Copy, Debug, Default)]
pub struct Idle {
    polling: Polling,
    last_packet: Nanos,
}

impl Idle {
    /// The state of a worker that starts.
    pub fn new(polling: Polling) -> Idle {
        Idle {
            polling,
            last_packet: Nanos::ZERO,
        }
    }

    /// Whether it is quiet at `now`: the next packet is the first after a quiet time.
    pub fn is_quiet(&self, now: Nanos) -> bool {
        now.since(self.last_packet) >= QUIET
    }

    /// The next step after a turn at `now` that moved `packets` packets.
    pub fn after(&mut self, packets: usize, now: Nanos) -> Rest {
        if packets > 0 {
            self.last_packet = now;
        }
        match self.polling {
            Polling::Busy => Rest::None,
            Polling::Adaptive if packets >= BUSY_PACKETS => Rest::None,
            Polling::Adaptive if self.is_quiet(now) => Rest::Wait,
            Polling::Adaptive => Rest::Pause,
        }
    }

    /// Sleeps for a short while.
    pub fn pause() {
        let span = Timespec {
            tv_sec: 0,
            tv_nsec: PAUSE.0 as i64,
        };
        // An interrupted sleep only makes the turn earlier.
        let _interrupted = rustix::thread::nanosleep(&span);
    }
}

/// The descriptors that wake a worker. They are edge-triggered, so that none has to be read.
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
    /// The system's error if it is in the set already or cannot be watched.
    pub fn watch(&self, fd: BorrowedFd<'_>) -> rustix::io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(0), flags)
    }

    /// Removes a descriptor. No effect for one that is not in the set.
    pub fn remove(&self, fd: BorrowedFd<'_>) {
        let _not_in_it = epoll::delete(&self.epoll, fd);
    }

    /// Sleeps until a descriptor becomes readable: for at most 0.5 ms if a port `must_be_polled`, 4 ms if the worker
    /// `keeps` something that can expire, such as a flow, and else 20 ms.
    pub fn wait(&self, must_be_polled: bool, keeps: bool) {
        let mut events = [std::mem::MaybeUninit::<epoll::Event>::uninit(); 8];
        let longest = match (must_be_polled, keeps) {
            (true, _) => &LONGEST_BLIND_WAIT,
            (false, true) => &LONGEST_WAIT,
            (false, false) => &LONGEST_IDLE_WAIT,
        };
        // An interrupted wait only makes the turn earlier.
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

    #[test]
    fn an_alarm_that_is_set_wakes_its_thread_once_it_sleeps() {
        let (give, take) = std::sync::mpsc::channel();
        let sleeper = std::thread::spawn(move || {
            let alarm = std::sync::Arc::new(Alarm::of(std::thread::current()));
            alarm.set();
            give.send(std::sync::Arc::clone(&alarm)).unwrap();
            let began = std::time::Instant::now();
            std::thread::park_timeout(std::time::Duration::from_secs(60));
            began.elapsed()
        });
        take.recv().unwrap().ring();
        assert!(sleeper.join().unwrap().as_secs() < 60);
    }

    #[test]
    fn a_worker_rings_once_for_each_mark() {
        let alarm = Alarm::of(std::thread::current());
        let (first, second) = (WorkerId(0), WorkerId(1));
        alarm.ring_at_mark(first, u64::MAX - 1);
        assert!(!alarm.take_rise(), "no mark is set");
        alarm.mark(first, 100);
        alarm.mark(second, 50);
        alarm.ring_at_mark(first, 99);
        assert!(!alarm.take_rise());
        alarm.ring_at_mark(second, 70);
        assert!(alarm.take_rise());
        assert!(!alarm.take_rise(), "it was taken");
        for received in 100..200 {
            alarm.ring_at_mark(first, received);
            alarm.ring_at_mark(second, received);
        }
        assert!(alarm.take_rise());
        alarm.ring_at_mark(first, 300);
        assert!(!alarm.take_rise(), "it has rung for that mark");
        alarm.mark(first, 301);
        alarm.ring_at_mark(first, 301);
        assert!(alarm.take_rise());
    }

    #[test]
    fn quiet_begins_two_milliseconds_after_the_last_packet() {
        let mut idle = Idle::new(Polling::Busy);
        idle.after(1, Nanos::from_millis(10));
        assert!(!idle.is_quiet(Nanos::from_millis(11)));
        idle.after(0, Nanos::from_millis(12));
        assert!(idle.is_quiet(Nanos::from_millis(12)));
        idle.after(1, Nanos::from_millis(13));
        assert!(!idle.is_quiet(Nanos::from_millis(14)));
    }
}
