//! Sleep and wake-up of a worker.

use std::sync::Arc;

use model::{Nanos, WorkerId};

use crate::frame::FrameMemory;
use crate::idle::{Alarm, Idle, Rest, WakeSet, Waker};
use crate::port::{Port, Queue as _};
use crate::worker::context::Ports;

/// The parts of a worker's sleep.
pub struct Sleep {
    /// Wakes it while it sleeps.
    pub waker: Arc<Waker>,
    /// The descriptors that wake it.
    pub wake_set: WakeSet,
    /// Its policy without packets.
    pub idle: Idle,
    /// The control plane's alarm.
    pub alarm: Arc<Alarm>,
    /// Whether a port's interrupt cannot be watched: the worker then polls the port every 4 ms.
    pub is_unwatched: bool,
}

impl Sleep {
    /// Makes the port's packets wake the worker.
    pub(crate) fn watch<M: FrameMemory>(&mut self, port: &Port<M>) {
        if let Some(fd) = port.wait_fd() {
            // Without a watch the worker polls, up to 4 ms later.
            self.is_unwatched |= self.wake_set.watch(fd).is_err();
        }
    }

    /// Ends that.
    pub(crate) fn unwatch<M: FrameMemory>(&mut self, port: &Port<M>) {
        if let Some(fd) = port.wait_fd() {
            self.wake_set.remove(fd);
        }
    }

    /// Rings the control plane's alarm after a turn that moved packets, if it must react at once.
    pub(crate) fn ring(&self, worker: WorkerId, started: Nanos, received: u64) {
        if self.idle.is_quiet(started) {
            self.alarm.ring();
        }
        self.alarm.ring_at_mark(worker, received);
    }

    /// The next step after a turn that ended at `now` and moved `packets` packets.
    pub(crate) fn rest(&mut self, moved: usize, ended: Nanos) -> Rest {
        self.idle.after(moved, ended)
    }

    /// Sleeps until a packet or a command comes, unless `is_something` reports one after the sleep was announced.
    /// `keeps` says whether the worker has something that can expire.
    pub(crate) fn wait<M: FrameMemory>(
        &self,
        ports: &mut Ports<M>,
        keeps: bool,
        is_something: impl FnOnce() -> bool,
    ) {
        self.waker.before_sleep();
        let mut something = is_something();
        let mut must_be_polled = false;
        ports.for_each(|port| {
            must_be_polled |= port.must_be_polled();
            something |= port.set_wakeups(true);
        });
        if !something {
            self.wake_set.wait(must_be_polled, keeps || self.is_unwatched);
        }
        ports.for_each(|port| {
            port.set_wakeups(false);
        });
        self.waker.after_sleep();
    }
}
