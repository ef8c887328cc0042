//! When a worker sleeps, and what wakes it.

use std::sync::Arc;

use model::{Nanos, WorkerId};

use crate::frame::FrameMemory;
use crate::idle::{Alarm, Idle, Rest, WakeSet, Waker};
use crate::port::{Port, Queue as _};
use crate::worker::context::Ports;

/// What a worker sleeps by.
pub struct Sleep {
    /// Wakes it while it sleeps.
    pub waker: Arc<Waker>,
    /// The descriptors that wake it.
    pub wake_set: WakeSet,
    /// How it behaves when there is nothing to do.
    pub idle: Idle,
    /// Rung at the first packet after a quiet time.
    pub alarm: Arc<Alarm>,
    /// Whether a port's interrupt could not be watched: the clock wakes the worker for it.
    pub is_unwatched: bool,
}

impl Sleep {
    /// The port's packets wake the worker from now on.
    pub(crate) fn watch<M: FrameMemory>(&mut self, port: &Port<M>) {
        if let Some(fd) = port.wait_fd() {
            // Not watched means woken by the clock, 4 ms later.
            self.is_unwatched |= self.wake_set.watch(fd).is_err();
        }
    }

    /// They do no more.
    pub(crate) fn forget<M: FrameMemory>(&mut self, port: &Port<M>) {
        if let Some(fd) = port.wait_fd() {
            self.wake_set.forget(fd);
        }
    }

    /// Rings the control plane's alarm after a turn that moved packets, where it is to know of them at once.
    pub(crate) fn ring(&self, worker: WorkerId, started: Nanos, received: u64) {
        if self.idle.is_quiet(started) {
            self.alarm.ring();
        }
        self.alarm.look(worker, received);
    }

    /// What to do after a turn that ended then and moved that many packets.
    pub(crate) fn rest(&mut self, moved: usize, ended: Nanos) -> Rest {
        self.idle.after(moved, ended)
    }

    /// Sleeps until a packet or a command comes, unless `is_something` says, once the sleep is announced, that one is
    /// there. `keeps` says whether time goes on for something that the worker keeps.
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
