//! Creation and start of workers.

use std::collections::VecDeque;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use arc_swap::ArcSwap;
use flow_table::{FlowHasher, FlowTable, TableConfig};
use model::{Slot, WorkerId};
use rtrb::{Consumer, Producer, RingBuffer};
use switch::{SwitchError, Usual};

use super::captures::Captures;
use super::resume::Leftover;
use super::tables::{identity, name_of};
use super::workers::{COMMAND_SLOTS, Plans, WorkerHandle, Workers};
use super::{SoftSwitchConfig, system};
use crate::counters::WorkerCounters;
use crate::ends::Ends;
use crate::frame::FrameMemory;
use crate::idle::{Alarm, Idle, WakeSet, Waker};
use crate::keep::{Keep, WorkerNote};
use crate::message::{Ending, HandOff};
use crate::plan::{LoadBoard, WorkerPlan};
use crate::shares::SharedPins;
use crate::table_memory::TableMemory;
use crate::worker::paths::Paths;
use crate::worker::{CommitPage, HalfOpen, Peers, Sleep, Worker, WorkerParts};

/// The scheduler slice of a worker. It has little work each time that it wakes, and all packets wait for it.
const SLICE: Duration = Duration::from_micros(100);
/// Events that may wait for the control plane: an answer and a sweep per command, and a broken port, for each slot.
const EVENT_SLOTS: usize = 4 * Slot::LIMIT;
/// Frames that may be under way from one worker to another. Four instance rings: the receiver takes a burst a turn.
const HAND_OFF_SLOTS: usize = 4096;

/// What all workers share with the control plane, beside the plan.
#[derive(Clone, Copy)]
pub(super) struct Board<'a> {
    pub(super) loads: &'a Arc<LoadBoard>,
    pub(super) alarm: &'a Arc<Alarm>,
    pub(super) ends: &'a Arc<Ends>,
    pub(super) shares: &'a SharedPins,
}

impl<M: FrameMemory> Workers<M> {
    /// Starts all of them.
    ///
    /// # Errors
    /// Where the system refuses memory, threads or descriptors. None runs then.
    pub(super) fn start(
        config: &SoftSwitchConfig,
        memories: Vec<M>,
        board: Board<'_>,
        leftover: &mut Leftover,
    ) -> Result<Workers<M>, SwitchError> {
        let plan = Arc::new(ArcSwap::from_pointee(WorkerPlan::default()));
        let (paths, part) = match &config.fast {
            None => (None, None),
            Some(_) if !matches!(config.workers.as_slice(), [Some(_)]) => {
                return Err(SwitchError::Unsupported {
                    what: "have a fast path without exactly one worker on a CPU of its own",
                });
            }
            Some(fast) => {
                let flood = (half_open(config).limits[0] / 2).max(1);
                let (paths, parts) = super::paths::Paths::start(fast, flood, board.ends)?;
                (Some(paths), Some(Box::new(Paths::new(parts))))
            }
        };
        let mut workers = Workers {
            handles: Vec::with_capacity(config.workers.len()),
            plans: Plans::new(Arc::clone(&plan)),
            captures: Captures::default(),
            paths,
        };
        let parts = make(config, memories, (&plan, board), leftover, &mut workers.handles)?;
        let started = run(parts, config, part, &mut workers.handles);
        if started.is_err() {
            workers.stop(Ending::Drop);
        }
        started.map(|()| workers)
    }
}

/// The parts of each worker; the other ends of its rings go into the handles.
fn make<M: FrameMemory>(
    config: &SoftSwitchConfig,
    memories: Vec<M>,
    (plan, board): (&Arc<ArcSwap<WorkerPlan>>, Board<'_>),
    leftover: &mut Leftover,
    handles: &mut Vec<WorkerHandle<M>>,
) -> Result<Vec<WorkerParts<M>>, SwitchError> {
    let count = config.workers.len();
    let hasher = FlowHasher::new(config.hash_key).owning(config.ownership);
    let hasher = leftover.hasher.unwrap_or(hasher);
    let leaving = Arc::new(AtomicUsize::new(0));
    let wakers: Vec<Arc<Waker>> = (0..count)
        .map(|_| Waker::new().map(Arc::new))
        .collect::<Result<_, _>>()
        .map_err(|e| system("making an eventfd for a worker", e.into()))?;
    let (to_peers, from_peers) = hand_off_rings::<M>(count);
    let mut parts = Vec::with_capacity(count);
    let each = memories
        .into_iter()
        .zip(&wakers)
        .zip(to_peers.into_iter().zip(from_peers));
    for (index, ((memory, waker), (to, from))) in each.enumerate() {
        let (commands, worker_commands) = RingBuffer::new(COMMAND_SLOTS);
        let (worker_events, events) = RingBuffer::new(EVENT_SLOTS);
        let counters = Arc::new(WorkerCounters::default());
        let left = leftover.workers.get_mut(index).map(std::mem::take);
        let left = left.unwrap_or_default();
        let table = match left.table {
            Some(table) => table,
            None => new_table(config, index, hasher)?,
        };
        let commit = match (left.commit, &config.keep) {
            (None, Some(keep)) => Some(new_commit(config, index, keep)?),
            (commit, _) => commit,
        };
        parts.push(WorkerParts {
            id: WorkerId(index as u8),
            memory,
            table,
            commit,
            fragment_key: [
                config.hash_key[0] ^ config.hash_key[2],
                config.hash_key[1] ^ config.hash_key[3],
            ],
            plan: Arc::clone(plan),
            loads: Arc::clone(board.loads),
            ends: Arc::clone(board.ends),
            shares: board.shares.clone(),
            half_open: half_open(config),
            counters: Arc::clone(&counters),
            commands: worker_commands,
            events: worker_events,
            peers: Peers {
                to,
                from,
                wakers: (wakers.iter().enumerate())
                    .map(|(peer, waker)| (peer != index).then(|| Arc::clone(waker)))
                    .collect(),
                leaving: Arc::clone(&leaving),
            },
            sleep: Sleep {
                wake_set: WakeSet::new(waker)
                    .map_err(|e| system("making an epoll set for a worker", e.into()))?,
                waker: Arc::clone(waker),
                idle: Idle::new(config.polling),
                alarm: Arc::clone(board.alarm),
                is_unwatched: false,
            },
        });
        handles.push(WorkerHandle {
            commands,
            backlog: VecDeque::new(),
            events,
            counters,
            waker: Arc::clone(waker),
            usual: Usual::default(),
            thread: None,
        });
    }
    Ok(parts)
}

/// A worker's part of the connections that may be half open: addresses are spread over the workers by their hash. Those
/// of IPv6 have a smaller table, of which they take no more than a quarter.
fn half_open(config: &SoftSwitchConfig) -> HalfOpen {
    let quarter = |flows: usize| u32::try_from(flows / 4).unwrap_or(u32::MAX).max(1);
    let TableConfig {
        ipv4_flows,
        ipv6_flows,
        ..
    } = config.table;
    let own = |all: u32| all.div_ceil(config.workers.len().max(1) as u32);
    let limit = config.half_open.map_or_else(|| quarter(ipv4_flows), own);
    HalfOpen {
        limits: [limit, limit.min(quarter(ipv6_flows))],
        timeout: config.timeouts.tcp_handshake,
    }
}

/// An empty table for a worker, kept for the next run where somebody keeps it.
fn new_table(
    config: &SoftSwitchConfig,
    worker: usize,
    hasher: FlowHasher,
) -> Result<FlowTable<TableMemory>, SwitchError> {
    let lines = config.table.lines_needed().map_err(SwitchError::Table)?;
    let no_memory = |e| system("memory for a flow table", e);
    let (file, storage) = match &config.keep {
        Some(keep) => TableMemory::in_file(lines, keep.hugepages).map(|(file, memory)| (Some(file), memory)),
        None => TableMemory::new(lines).map(|memory| (None, memory)),
    }
    .map_err(no_memory)?;
    let of = config.keep.as_ref().map(|keep| identity(config, keep, worker));
    let (of, now) = (of.unwrap_or_default(), clock::monotonic());
    let table = FlowTable::new(storage, &config.table, &config.timeouts, hasher, &of, now)
        .map_err(SwitchError::Table)?;
    if let (Some(keep), Some(file)) = (&config.keep, file) {
        keep_table(keep, worker, config.workers.len(), &file);
    }
    Ok(table)
}

/// Keeps the memory of a worker's table, of so many workers, for the next run.
pub(super) fn keep_table(keep: &Keep, worker: usize, workers: usize, file: &OwnedFd) {
    keep.keep(&name_of(worker), &WorkerNote { workers }, &[file.as_fd()]);
}

/// A new page for what a worker commits, kept for the next run.
fn new_commit(config: &SoftSwitchConfig, worker: usize, keep: &Keep) -> Result<CommitPage, SwitchError> {
    let (file, page) = CommitPage::in_file().map_err(|e| system("memory for a worker's commits", e))?;
    let workers = config.workers.len();
    keep.keep(
        &format!("turn/{worker}"),
        &WorkerNote { workers },
        &[file.as_fd()],
    );
    Ok(page)
}

/// Starts a thread for each worker, on its CPU.
fn run<M: FrameMemory>(
    parts: Vec<WorkerParts<M>>,
    config: &SoftSwitchConfig,
    mut paths: Option<Box<Paths>>,
    handles: &mut [WorkerHandle<M>],
) -> Result<(), SwitchError> {
    let each = parts.into_iter().zip(&config.workers).zip(handles);
    for (index, ((worker, cpu), handle)) in each.enumerate() {
        let cpu = *cpu;
        let paths = paths.take();
        let thread = std::thread::Builder::new()
            .name(format!("inco-worker-{index}"))
            .spawn(move || {
                let is_pinned = cpu.is_some_and(pin_to);
                if let Err(error) = cpu_slice::of_this_thread(SLICE) {
                    tracing::debug!(%error, "a worker has no short slice and waits longer where others use its CPU");
                }
                let _ends = EndsWithPanic;
                // The queue of one CPU keeps the order between both paths.
                let paths = paths.filter(|_| is_pinned);
                Worker::new(worker).beside(paths).run(clock::monotonic);
            })
            .map_err(|e| system("starting a worker", e))?;
        handle.thread = Some(thread);
    }
    Ok(())
}

/// Ends the process when its thread panics, in each profile. Without this worker its flows would get nothing; the next
/// run goes on where the last committed turn ended.
struct EndsWithPanic;

impl Drop for EndsWithPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

/// Whether this thread is on that CPU alone.
fn pin_to(cpu: usize) -> bool {
    let mut set = rustix::thread::CpuSet::new();
    if cpu < rustix::thread::CpuSet::MAX_CPU {
        set.set(cpu);
    }
    let pinned = rustix::thread::sched_setaffinity(None, &set);
    if let Err(error) = &pinned {
        tracing::warn!(cpu, %error, "a worker could not be pinned to its CPU and runs on any");
    }
    pinned.is_ok()
}

/// A ring per ordered pair of workers: the producers by sender and receiver, the consumers by receiver and sender.
#[expect(clippy::type_complexity, reason = "two square matrices of ring ends")]
fn hand_off_rings<M: FrameMemory>(
    workers: usize,
) -> (
    Vec<Vec<Option<Producer<HandOff<M::Frame>>>>>,
    Vec<Vec<Option<Consumer<HandOff<M::Frame>>>>>,
) {
    let mut to: Vec<Vec<_>> = (0..workers)
        .map(|_| (0..workers).map(|_| None).collect())
        .collect();
    let mut from: Vec<Vec<_>> = (0..workers)
        .map(|_| (0..workers).map(|_| None).collect())
        .collect();
    for sender in 0..workers {
        for receiver in (0..workers).filter(|r| *r != sender) {
            let (producer, consumer) = RingBuffer::new(HAND_OFF_SLOTS);
            to[sender][receiver] = Some(producer);
            from[receiver][sender] = Some(consumer);
        }
    }
    (to, from)
}
