//! The control plane's handles of the workers: the commands to each, and the plan in use.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
use model::{Generation, Nanos, Slot, WorkerId};
use rtrb::{Consumer, Producer};
use switch::{Capture, SwitchError, SwitchReading, Usual};

use super::captures::Captures;
use super::paths::{Doors, Paths};
use crate::counters::WorkerCounters;
use crate::frame::FrameMemory;
use crate::idle::{Alarm, Waker};
use crate::message::{Command, Ending, WorkerEvent};
use crate::plan::WorkerPlan;

/// Commands that may wait for a worker. One per slot and some more: all instances can be removed at once.
pub(super) const COMMAND_SLOTS: usize = 2 * Slot::LIMIT;
/// Interval at which a stopping switch checks whether its workers have stopped.
const STOP_STEP: Duration = Duration::from_micros(100);

/// One worker.
pub(super) struct WorkerHandle<M: FrameMemory> {
    pub(super) commands: Producer<Command<M>>,
    /// Commands that found the ring full and must not be lost: those that follow from events, not from a call.
    pub(super) backlog: VecDeque<Command<M>>,
    pub(super) events: Consumer<WorkerEvent<M>>,
    pub(super) counters: Arc<WorkerCounters>,
    pub(super) waker: Arc<Waker>,
    pub(super) usual: Usual,
    pub(super) thread: Option<JoinHandle<()>>,
}

impl<M: FrameMemory> WorkerHandle<M> {
    fn send_backlog(&mut self) {
        let mut sent = false;
        while let Some(command) = self.backlog.pop_front() {
            if let Err(rtrb::PushError::Full(command)) = self.commands.push(command) {
                self.backlog.push_front(command);
                break;
            }
            sent = true;
        }
        if sent {
            self.waker.wake();
        }
    }
}

/// The published plans, and the conditions of the next one.
pub(super) struct Plans {
    in_force: Arc<ArcSwap<WorkerPlan>>,
    /// Published plans that a worker may still hold, oldest first. They are freed here, not there.
    kept: VecDeque<Arc<WorkerPlan>>,
    /// Instances that failed since the last plan: the next one moves their flows.
    failing: Vec<Slot>,
    /// Outstanding answers of workers to a failed instance.
    failures: usize,
    /// The plan that waits for these answers. Commands wait behind it.
    held: Option<WorkerPlan>,
}

impl Plans {
    pub(super) fn new(in_force: Arc<ArcSwap<WorkerPlan>>) -> Plans {
        Plans {
            in_force,
            kept: VecDeque::new(),
            failing: Vec::new(),
            failures: 0,
            held: None,
        }
    }
}

/// All workers.
pub(super) struct Workers<M: FrameMemory> {
    pub(super) handles: Vec<WorkerHandle<M>>,
    pub(super) plans: Plans,
    pub(super) captures: Captures,
    /// What writes the rules of the fast path beside the worker, if there is one.
    pub(super) paths: Option<Paths>,
}

impl<M: FrameMemory> Workers<M> {
    /// Where the fast path takes interfaces over, if there is one.
    pub(super) fn doors(&self) -> Option<Arc<Doors>> {
        self.paths.as_ref().map(|paths| Arc::clone(&paths.doors))
    }

    /// Number of workers.
    pub(super) fn len(&self) -> usize {
        self.handles.len()
    }

    // ---- commands ---------------------------------------------------------------------------------------------

    /// Sends a command to a worker, in the order of the calls, whether its ring has room now or later.
    pub(super) fn command(&mut self, worker: usize, command: Command<M>) {
        let is_free = self.plans.held.is_none();
        if let Some(handle) = self.handles.get_mut(worker) {
            handle.backlog.push_back(command);
            if is_free {
                handle.send_backlog();
            }
        }
    }

    /// Whether every worker takes a command now, or as soon as a plan is out that is held.
    pub(super) fn have_room(&self) -> Result<(), SwitchError> {
        let may_wait = match self.plans.held {
            Some(_) => COMMAND_SLOTS,
            None => 0,
        };
        let mut handles = self.handles.iter();
        match handles.position(|of| of.commands.slots() == 0 || of.backlog.len() > may_wait) {
            Some(worker) => Err(SwitchError::WorkerStuck {
                worker,
                pending: COMMAND_SLOTS,
            }),
            None => Ok(()),
        }
    }

    /// Sends a command to every worker, or to none.
    pub(super) fn broadcast(&mut self, make: impl Fn() -> Command<M>) -> Result<(), SwitchError> {
        self.have_room()?;
        self.command_all(make);
        Ok(())
    }

    /// Has every worker copy packets for a capture, if none runs.
    pub(super) fn begin_capture(&mut self, capture: &Arc<Capture>) -> Result<(), SwitchError> {
        self.have_room()?;
        self.captures.begin(capture)?;
        self.command_all(|| Command::Capture(Arc::clone(capture)));
        Ok(())
    }

    /// Sends a command to every worker, whether its ring has room now or later.
    pub(super) fn command_all(&mut self, make: impl Fn() -> Command<M>) {
        for worker in 0..self.len() {
            self.command(worker, make());
        }
    }

    /// The next event of that worker.
    pub(super) fn next_event(&mut self, worker: usize) -> Option<WorkerEvent<M>> {
        self.handles.get_mut(worker)?.events.pop().ok()
    }

    /// Sends that worker the commands that wait for room in its ring.
    pub(super) fn send_backlog(&mut self, worker: usize) {
        if self.plans.held.is_none()
            && let Some(handle) = self.handles.get_mut(worker)
        {
            handle.send_backlog();
        }
    }

    // ---- plans ------------------------------------------------------------------------------------------------

    /// Publishes a plan as soon as all workers have passed on the packets that failed instances returned, so that
    /// packets of flows that the plan moves come after them.
    pub(super) fn publish(&mut self, plan: WorkerPlan) {
        if self.plans.failures > 0 {
            self.plans.held = Some(plan);
        } else {
            self.put_in_force(plan);
        }
        for slot in std::mem::take(&mut self.plans.failing) {
            self.command_all(|| Command::PurgeSlot { slot, failed: true });
        }
    }

    fn put_in_force(&mut self, plan: WorkerPlan) {
        let old = self.plans.in_force.swap(Arc::new(plan));
        self.plans.kept.push_back(old);
        for handle in &self.handles {
            handle.waker.wake();
        }
    }

    /// Reports the failure of the instance in that slot to every worker.
    pub(super) fn fail(&mut self, slot: Slot) -> Result<(), SwitchError> {
        self.have_room()?;
        for handle in &mut self.handles {
            // Not behind a plan that is held until such commands are answered. There is room.
            if handle.commands.push(Command::FailInstance { slot }).is_ok() {
                self.plans.failures += 1;
            }
            handle.waker.wake();
        }
        self.plans.failing.push(slot);
        Ok(())
    }

    /// A worker has passed on the packets that a failed instance returned.
    pub(super) fn failure_answered(&mut self) {
        self.plans.failures = self.plans.failures.saturating_sub(1);
        if self.plans.failures == 0
            && let Some(plan) = self.plans.held.take()
        {
            self.put_in_force(plan);
            self.handles.iter_mut().for_each(WorkerHandle::send_backlog);
        }
    }

    /// The instance in that slot is detached: its pins go with it, and not with the next plan.
    pub(super) fn forget_failure(&mut self, slot: Slot) {
        self.plans.failing.retain(|failing| *failing != slot);
    }

    /// The newest plan by which every worker steers.
    pub(super) fn acknowledged(&self) -> Generation {
        let generations = self.handles.iter().map(|of| of.counters.figures.generation.get());
        Generation(generations.min().unwrap_or(0))
    }

    /// Frees the plans and captures that no worker uses any more.
    pub(super) fn free_old(&mut self) {
        self.captures.free_old();
        let acknowledged = self.acknowledged();
        let kept = &mut self.plans.kept;
        while kept.front().is_some_and(|plan| plan.generation < acknowledged) {
            kept.pop_front();
        }
    }

    // ---- counters ---------------------------------------------------------------------------------------------

    /// Sums the counters of all workers; of slots, only of the first `slots_used`.
    pub(super) fn add_to(&self, into: &mut SwitchReading, slots_used: usize) {
        for (at, (handle, totals)) in self.handles.iter().zip(&mut into.workers).enumerate() {
            let counters = &handle.counters;
            // Of all groups, that of the slots is too long to be set to zero first a thousand times a second.
            let slots = counters.slots.iter().take(slots_used);
            slots.zip(&mut into.slots).for_each(|(part, sum)| match at {
                0 => part.begin(sum),
                _ => part.add_to(sum),
            });
            let services = counters.services.iter().zip(&mut into.services);
            services.for_each(|(part, sum)| part.add_to(sum));
            let uplinks = counters.uplinks.iter().zip(&mut into.uplinks);
            uplinks.for_each(|(part, sum)| part.add_to(sum));
            let drops = counters.drops.iter().zip(&mut into.drops);
            drops.for_each(|(part, sum)| *sum += part.get());
            counters.figures.add_to(totals);
        }
    }

    /// Sets the alarm's mark of each worker by the number of packets that it has received.
    pub(super) fn mark(&mut self, reading: &SwitchReading, alarm: &Alarm) {
        for ((id, handle), totals) in (0..).zip(&mut self.handles).zip(&reading.workers) {
            let mark = handle.usual.mark(totals.received, reading.at);
            alarm.mark(WorkerId(id), mark);
        }
    }

    pub(super) fn take_longest_gaps(&mut self) -> Vec<Nanos> {
        let handles = self.handles.iter();
        let gaps = handles.map(|of| Nanos(of.counters.figures.longest_gap_ns.reset()));
        gaps.collect()
    }

    // ---- the end ----------------------------------------------------------------------------------------------

    /// Ends all of them.
    pub(super) fn stop(&mut self, ending: Ending) {
        // The workers get all packets again.
        if let Some(paths) = &mut self.paths {
            paths.stop();
        }
        for handle in &mut self.handles {
            handle.backlog.push_back(Command::Stop(ending));
        }
        // A worker without room for its answers takes no commands: both rings are emptied until all have ended.
        let runs = |of: &WorkerHandle<M>| of.thread.as_ref().is_some_and(|thread| !thread.is_finished());
        while self.handles.iter().any(runs) {
            for handle in &mut self.handles {
                while handle.events.pop().is_ok() {}
                handle.send_backlog();
            }
            std::thread::sleep(STOP_STEP);
        }
        for handle in &mut self.handles {
            handle.backlog.clear();
            if let Some(thread) = handle.thread.take()
                && thread.join().is_err()
            {
                tracing::error!("a worker ended with a panic");
            }
        }
    }
}
