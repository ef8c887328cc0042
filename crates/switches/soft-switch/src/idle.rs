//! What a worker does when there is little to do: it sleeps, so that an idle orchestrator burns no core. And what
//! tells a control plane that sleeps, too, of the first packet.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::thread::Thread;

use model::{Nanos, Polling, WorkerId};
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use switch::WakeUp;

/// Packets per turn from which on a worker does not pause: the load is then high enough that the next burst is
/// already there.
const BUSY_PACKETS: usize = 16;
/// How long it pauses after a small burst. With 1024 slots a ring fills in this time only above 30 Mpps, and the
/// pause adds at most this much latency.
const PAUSE: Nanos = Nanos::from_micros(30);
/// Without a packet for this long it waits on its file descriptors instead.
const QUIET: Nanos = Nanos::from_millis(2);
/// The longest sleep of a worker that has nothing to watch the time for.
const LONGEST_IDLE_WAIT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};
/// The longest sleep of one that has: flows that expire leave the count within 10 ms, on an idle worker too.
const LONGEST_WAIT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 4_000_000,
};
/// The longest sleep where a port can only be polled: what a packet there may wait at most.
const LONGEST_BLIND_WAIT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 500_000,
};
/// What a worker's packets are counted in that are compared with the usual: the time between two looks of the control
/// plane.
const A_MOMENT: Nanos = Nanos::from_millis(1);
/// Looks that follow each other more closely are taken for this far apart: a few packets are no high rate then.
const SHORTEST_LOOK: Nanos = Nanos::from_micros(200);
/// For how long what came counts as usual, once to twice: bursts that come again and again ring no more.
const USUAL_SPAN: Nanos = Nanos::from_millis(100);
/// So many packets are always usual: as many as a worker that was away for a moment finds at a low rate.
const RISE_MIN: u64 = 32;
/// The mark of a worker that is not to ring.
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

    /// Wakes the worker if it sleeps or is about to. What it should see must be in its ring before this call.
    pub fn wake(&self) {
        // Pairs with the fence in `before_sleep`: either it sees our message or we see that it sleeps.
        fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::Relaxed) {
            // The counter can only be full where the worker is woken anyway.
            let _already_woken = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// Announces a sleep. After it, the worker looks into its rings once more before it sleeps.
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

/// Wakes the control plane's thread before its time: when packets come after a time without any, and when more of
/// them come than usual. Workers ring it; that costs them a look while nothing of that happens, and else a system
/// call.
#[derive(Debug)]
pub struct Alarm {
    thread: Thread,
    is_set: AtomicBool,
    /// By worker: at how many packets received since it began it rings.
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

    /// Wakes the thread where the alarm is set. What the thread should see must be counted before this call.
    pub fn ring(&self) {
        // Pairs with the fence in `set`: either it sees our counters or we see that it is set.
        fence(Ordering::SeqCst);
        if self.is_set.load(Ordering::Relaxed) {
            self.thread.unpark();
        }
    }

    /// Has that worker ring once it has received so many packets in all; once, until it is marked again.
    pub fn mark(&self, worker: WorkerId, received: u64) {
        if let Some(mark) = self.marks.get(worker.index()) {
            mark.store(received, Ordering::Relaxed);
        }
    }

    /// Rings where that worker, which has `received` so many packets in all, has reached its mark.
    #[inline]
    pub fn look(&self, worker: WorkerId, received: u64) {
        if let Some(mark) = self.marks.get(worker.index()) {
            let at = mark.load(Ordering::Relaxed);
            // One that was marked anew meanwhile looks again in its next turn.
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

/// What a worker usually receives, from which follows how much is more than usual.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usual {
    at: Nanos,
    received: u64,
    /// The most packets in [`A_MOMENT`], in the span before this one and in this one.
    most: [u64; 2],
    span_began: Nanos,
}

impl Usual {
    /// Takes in that at `now` the worker has `received` so many packets in all. Gives the number from which on more
    /// than usual have come: half as many again as the most in a millisecond of the last tenth of a second, and
    /// [`RISE_MIN`].
    pub(crate) fn mark(&mut self, received: u64, now: Nanos) -> u64 {
        let span = now.since(self.at).max(SHORTEST_LOOK);
        let came = received.saturating_sub(self.received);
        let in_a_moment = u128::from(came) * u128::from(A_MOMENT.0) / u128::from(span.0);
        self.at = now;
        self.received = received;
        if now.since(self.span_began) >= USUAL_SPAN {
            self.most = [self.most[1], 0];
            self.span_began = now;
        }
        self.most[1] = self.most[1].max(in_a_moment as u64);
        let usual = self.most[0].max(self.most[1]);
        received
            .saturating_add(usual)
            .saturating_add(usual / 2)
            .saturating_add(RISE_MIN)
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

    /// Whether no packet has come for a while at `now`: the next one is the first after a quiet time.
    pub fn is_quiet(&self, now: Nanos) -> bool {
        now.since(self.last_packet) >= QUIET
    }

    /// What to do after a turn at `now` that moved that many packets.
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

    /// Sleeps until a descriptor has become readable: for at most half a millisecond where a port `must_be_polled`, 4
    /// ms where time goes on for something that the worker `keeps`, such as a flow, and else 20 ms.
    pub fn wait(&self, must_be_polled: bool, keeps: bool) {
        let mut events = [std::mem::MaybeUninit::<epoll::Event>::uninit(); 8];
        let longest = match (must_be_polled, keeps) {
            (true, _) => &LONGEST_BLIND_WAIT,
            (false, true) => &LONGEST_WAIT,
            (false, false) => &LONGEST_IDLE_WAIT,
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
        alarm.look(first, u64::MAX - 1);
        assert!(!alarm.take_rise(), "no mark is set");
        alarm.mark(first, 100);
        alarm.mark(second, 50);
        alarm.look(first, 99);
        assert!(!alarm.take_rise());
        alarm.look(second, 70);
        assert!(alarm.take_rise());
        assert!(!alarm.take_rise(), "it was taken");
        for received in 100..200 {
            alarm.look(first, received);
            alarm.look(second, received);
        }
        assert!(alarm.take_rise());
        alarm.look(first, 300);
        assert!(!alarm.take_rise(), "it has rung for that mark");
        alarm.mark(first, 301);
        alarm.look(first, 301);
        assert!(alarm.take_rise());
    }

    const NONE: [u64; 0] = [];

    /// When `Usual` says within a second that more than usual has come, where the control plane looks when it is told
    /// so, and else each millisecond. `packets` says how many have come by then, in the given number of microseconds.
    fn rises(packets: impl Fn(u64) -> u64) -> Vec<u64> {
        let (mut usual, mut rises) = (Usual::default(), Vec::new());
        let (mut mark, mut looked_us) = (u64::MAX, 0);
        for us in (0..2_000_000).step_by(50) {
            let received = packets(us);
            let has_risen = received >= mark;
            if has_risen {
                rises.push(us);
            }
            if has_risen || us - looked_us >= 1000 {
                looked_us = us;
                mark = usual.mark(received, Nanos::from_micros(us));
            }
        }
        rises.retain(|us| *us >= 1_000_000);
        rises
    }

    #[test]
    fn a_rise_is_noticed_within_a_part_of_a_millisecond_and_a_steady_rate_is_none() {
        for rate_per_ms in [0, 1, 5, 200, 10_000] {
            assert_eq!(rises(|us| us * rate_per_ms / 1000), NONE, "{rate_per_ms} per ms");
        }
        let step = 1_500_000;
        let noticed = rises(|us| us * 5 / 1000 + us.saturating_sub(step) * 200 / 1000);
        assert!((step..step + 250).contains(&noticed[0]), "{noticed:?}");
        assert!(noticed.len() <= 8, "{noticed:?}");
        let small = rises(|us| us + us.saturating_sub(step) / 4);
        assert_eq!(small, NONE, "a quarter more is no rise");
    }

    #[test]
    fn bursts_that_come_again_and_again_become_usual() {
        // 640 packets at once, every 20 ms; a train after a tenth of a second without any is noticed, once.
        assert_eq!(rises(|us| us / 20_000 * 640), NONE);
        let rare = rises(|us| us / 500_000 * 640);
        assert!(rare.len() <= 2, "{rare:?}");
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
