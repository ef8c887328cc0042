//! The cores: threads that take messages, run actors and say what they have done.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use actor_scheduling::groups::Decided;
use actor_scheduling::{ActorId, CoreId, PolicyName, Queues};
use model::Nanos;

use crate::actor::Context;
use crate::dispatch::{Batch, Dispatch, Row, Stopped};
use crate::error::Error;
use crate::message::{Address, Message, Refusal};
use crate::registration::Registration;

/// What a runtime is made with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Which core runs which actor next.
    pub policy: PolicyName,
    /// Whether its cores share what is served first come, first served, or steal it from each other.
    pub queues: Queues,
    /// Cores; at least 1.
    pub cores: u16,
    /// Numbers of actors are below this.
    pub actors_limit: u32,
    /// As in [`actor_scheduling::Settings`].
    pub quantum: Nanos,
    /// As in [`actor_scheduling::Settings`].
    pub tail_threshold: Nanos,
    /// As in [`actor_scheduling::Settings`].
    pub hysteresis: f64,
    /// What a core without a message does.
    pub idle: Idle,
}

impl Settings {
    /// One core that polls and runs messages in the order in which they come, for actors with numbers below `actors_limit`.
    pub fn first_come(actors_limit: u32) -> Settings {
        Settings {
            policy: PolicyName::Fcfs,
            queues: Queues::Shared,
            cores: 1,
            actors_limit,
            quantum: Nanos::from_micros(50),
            tail_threshold: Nanos::MAX,
            hysteresis: 0.1,
            idle: Idle::Poll,
        }
    }
}

/// What a core without a message does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// It looks again at once, as a core that polls a network does.
    Poll,
    /// It sleeps until a message is delivered, or for so long: then it asks [`Outside::poll`] again.
    Sleep(Duration),
}

/// What lies outside of a runtime: a network, the other side. A free core looks after it.
pub trait Outside: Send {
    /// Adds the messages that have come by `now`, in order; few enough that actors do not wait for long.
    fn poll(&mut self, now: Nanos, into: &mut Vec<Message>);

    /// Takes the messages for addresses outside; all of them.
    fn send(&mut self, messages: &mut Vec<Message>);
}

/// What a core has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreCounts {
    /// Messages that ended on it.
    pub served: u64,
    /// Batches that it took.
    pub batches: u64,
    /// Messages that it took from another core's line.
    pub stolen: u64,
    /// Time in which actors ran.
    pub ran: Nanos,
}

/// An actor that runs now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Running {
    /// The core.
    pub core: CoreId,
    /// The actor.
    pub actor: ActorId,
    /// Since when.
    pub since: Nanos,
}

/// Of a core, for others to read: relaxed, since each value is read by itself.
#[derive(Default)]
struct CoreState {
    /// The actor that runs and since when; 0 where none does.
    since: AtomicU64,
    actor: AtomicU32,
    served: AtomicU64,
    batches: AtomicU64,
    stolen: AtomicU64,
    ran: AtomicU64,
}

/// The bit of an actor in [`Shared::leaves`].
fn bit(actor: ActorId) -> u64 {
    1 << (actor.0 % 64)
}

struct Shared {
    dispatch: Mutex<Dispatch>,
    /// Cores that sleep wait here; how many there are changes under the lock of `dispatch`.
    delivered: Condvar,
    sleepers: AtomicUsize,
    /// Locked before `dispatch`, where both are.
    outside: Mutex<Box<dyn Outside>>,
    /// Whose messages whoever holds `outside` hands over now: a bit for each actor, modulo 64.
    leaves: AtomicU64,
    cores: Vec<CoreState>,
    ends: AtomicBool,
    idle: Idle,
}

/// A side's actors, and who serves them. Clones are the same runtime.
#[derive(Clone)]
pub struct Runtime {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runtime")
            .field("cores", &self.shared.cores.len())
            .finish_non_exhaustive()
    }
}

/// A lock whose holder panicked: the program ends by that panic. What it held is read for the last report.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Runtime {
    /// A runtime without actors.
    pub fn new(settings: &Settings, outside: Box<dyn Outside>) -> Runtime {
        let cores = settings.cores.max(1);
        let scheduler = actor_scheduling::Settings {
            policy: settings.policy,
            cores,
            actors: settings.actors_limit,
            quantum: settings.quantum,
            tail_threshold: settings.tail_threshold,
            hysteresis: settings.hysteresis,
        };
        let dispatch = Dispatch::new(scheduler, settings.queues);
        Runtime {
            shared: Arc::new(Shared {
                dispatch: Mutex::new(dispatch),
                delivered: Condvar::new(),
                sleepers: AtomicUsize::new(0),
                outside: Mutex::new(outside),
                leaves: AtomicU64::new(0),
                cores: (0..cores).map(|_| CoreState::default()).collect(),
                ends: AtomicBool::new(false),
                idle: settings.idle,
            }),
        }
    }

    /// Registers an actor, and has it prepare its state. What it sends to actors in that is delivered at once.
    ///
    /// # Errors
    /// The number is taken or above the limit, or the registration has no instance.
    pub fn register(&self, actor: ActorId, mut of: Registration) -> Result<(), Error> {
        let mut outbox = Vec::new();
        for instance in &mut of.instances {
            let mut context = Context {
                objects: instance.objects.as_mut(),
                me: actor,
                now: clock::monotonic(),
                until: None,
                sent_from: outbox.len(),
                outbox: &mut outbox,
                failure: None,
            };
            instance.actor.init(&mut context);
            if let Some(reason) = context.failure {
                return Err(Error::Failed(actor, reason));
            }
        }
        self.adopt(actor, of)?;
        outbox.retain(|message| matches!(message.to, Address::Actor(_)));
        self.deliver_all(outbox);
        Ok(())
    }

    /// Registers an actor whose state is there already.
    ///
    /// # Errors
    /// As [`register`](Runtime::register).
    pub fn adopt(&self, actor: ActorId, of: Registration) -> Result<(), Error> {
        lock(&self.shared.dispatch).register(actor, of)
    }

    /// Has no message of an actor start from now on. Its mailbox takes messages meanwhile.
    ///
    /// # Errors
    /// Nobody has that number.
    pub fn pause(&self, actor: ActorId) -> Result<(), Error> {
        lock(&self.shared.dispatch).pause(actor, true)
    }

    /// Has a paused actor go on.
    ///
    /// # Errors
    /// Nobody has that number.
    pub fn resume(&self, actor: ActorId) -> Result<(), Error> {
        lock(&self.shared.dispatch).pause(actor, false)?;
        self.shared.wake();
        Ok(())
    }

    /// Ends an actor, with the messages that wait for it: one that runs, after the message that it runs.
    /// [`take_stopped`](Runtime::take_stopped) has it then.
    ///
    /// # Errors
    /// Nobody has that number.
    pub fn stop(&self, actor: ActorId, reason: &str) -> Result<(), Error> {
        lock(&self.shared.dispatch).stop(actor, reason)
    }

    /// Takes an actor out, with the messages that wait for it.
    ///
    /// # Errors
    /// Nobody has that number, or the actor runs: pause it first.
    pub fn remove(&self, actor: ActorId) -> Result<(Registration, Vec<Message>), Error> {
        lock(&self.shared.dispatch).remove(actor)
    }

    /// Puts a message into its receiver's mailbox.
    ///
    /// # Errors
    /// The mailbox is full, the receiver is unknown or the body too long; each is counted.
    pub fn deliver(&self, message: Message) -> Result<(), Refusal> {
        lock(&self.shared.dispatch).accept(message)?;
        self.shared.wake();
        Ok(())
    }

    /// Delivers all of these; refused ones are counted where they belong. Returns how many were taken.
    pub fn deliver_all(&self, messages: impl IntoIterator<Item = Message>) -> usize {
        let mut dispatch = lock(&self.shared.dispatch);
        let taken = messages
            .into_iter()
            .filter_map(|message| dispatch.accept(message).ok())
            .count();
        drop(dispatch);
        self.shared.wake();
        taken
    }

    /// Puts a message into its receiver's mailbox, also if that actor's messages are [diverted](Runtime::divert).
    ///
    /// # Errors
    /// As [`deliver`](Runtime::deliver).
    pub fn deliver_here(&self, message: Message) -> Result<(), Refusal> {
        lock(&self.shared.dispatch).accept_here(message)?;
        self.shared.wake();
        Ok(())
    }

    /// Puts a message that waited elsewhere into its receiver's mailbox, however full that is, also if that actor's messages
    /// are [diverted](Runtime::divert). The caller limits their number.
    ///
    /// # Errors
    /// As [`deliver`](Runtime::deliver), except that a mailbox is never full.
    pub fn deliver_held(&self, message: Message) -> Result<(), Refusal> {
        lock(&self.shared.dispatch).accept_held(message)?;
        self.shared.wake();
        Ok(())
    }

    /// Has messages for an actor leave from now on, whoever sends them: [`take_diverted`](Runtime::take_diverted) has
    /// them, at most [`DIVERTED_LIMIT`](crate::DIVERTED_LIMIT) of all such actors. It need not be registered.
    ///
    /// # Errors
    /// The number is above the limit.
    pub fn divert(&self, actor: ActorId) -> Result<(), Error> {
        lock(&self.shared.dispatch).divert(actor)
    }

    /// Has messages for an actor go to its mailbox again. Those that nobody has taken yet go first.
    pub fn stop_diverting(&self, actor: ActorId) {
        lock(&self.shared.dispatch).stop_diverting(actor);
        self.shared.wake();
    }

    /// Takes the messages for actors that are diverted, in order.
    pub fn take_diverted(&self, into: &mut Vec<Message>) {
        into.extend(lock(&self.shared.dispatch).diverted.drain(..));
    }

    /// Whether an actor neither runs nor has a message that waits, and all that it has sent is where it goes. That stays so
    /// if its messages are diverted.
    pub fn is_quiet(&self, actor: ActorId) -> bool {
        let dispatch = lock(&self.shared.dispatch);
        dispatch.is_quiet(actor) && self.shared.leaves.load(Ordering::Acquire) & bit(actor) == 0
    }

    /// How all actors stand.
    pub fn actors(&self) -> Vec<Row> {
        lock(&self.shared.dispatch).rows()
    }

    /// The actors that have failed since the last call.
    pub fn take_stopped(&self) -> Vec<Stopped> {
        std::mem::take(&mut lock(&self.shared.dispatch).stopped)
    }

    /// What was decided about groups since the last call, oldest first: the last
    /// [`DECIDED_LIMIT`](crate::DECIDED_LIMIT).
    pub fn take_decided(&self) -> Vec<Decided> {
        lock(&self.shared.dispatch).decided.drain(..).collect()
    }

    /// Messages for nobody, too long ones, and diverted ones beyond the limit.
    pub fn undeliverable(&self) -> u64 {
        lock(&self.shared.dispatch).undeliverable
    }

    /// What each core has done.
    pub fn cores(&self) -> Vec<CoreCounts> {
        let cores = self.shared.cores.iter();
        cores
            .map(|core| CoreCounts {
                served: core.served.load(Ordering::Relaxed),
                batches: core.batches.load(Ordering::Relaxed),
                stolen: core.stolen.load(Ordering::Relaxed),
                ran: Nanos(core.ran.load(Ordering::Relaxed)),
            })
            .collect()
    }

    /// The actors that run now. One may have ended just before.
    pub fn running(&self) -> Vec<Running> {
        let cores = (0..).map(CoreId).zip(&self.shared.cores);
        cores
            .filter_map(|(core, of)| {
                let since = Nanos(of.since.load(Ordering::Acquire));
                let actor = ActorId(of.actor.load(Ordering::Relaxed));
                (since > Nanos::ZERO).then_some(Running { core, actor, since })
            })
            .collect()
    }

    /// A core, for a thread that serves actors. Each number has one.
    pub fn core(&self, core: CoreId) -> Core {
        Core {
            core,
            shared: Arc::clone(&self.shared),
            batch: Batch::default(),
            outbox: Vec::new(),
            inbox: Vec::new(),
            leaving: Vec::new(),
        }
    }

    /// Starts a thread for each core. `prepare` is its first action: it may bind the thread to a CPU.
    ///
    /// # Errors
    /// A thread cannot be started; those that were go on until [`Threads`] is dropped.
    pub fn start(&self, prepare: impl Fn(CoreId) + Clone + Send + 'static) -> Result<Threads, Error> {
        let mut threads = Threads {
            shared: Arc::clone(&self.shared),
            threads: Vec::new(),
        };
        for number in 0..self.shared.cores.len() {
            let (mut core, prepare) = (self.core(CoreId(number as u16)), prepare.clone());
            let thread = std::thread::Builder::new()
                .name(format!("actors-{number}"))
                .spawn(move || {
                    prepare(core.core);
                    core.serve();
                })
                .map_err(Error::Thread)?;
            threads.threads.push(thread);
        }
        Ok(threads)
    }
}

impl Shared {
    /// Hands over what is to leave. Whoever has `outside` takes all of it, also what other cores wait to hand over, so that
    /// the answers of an actor leave in the order in which it made them, on whichever cores it ran.
    fn hand_over(&self, leaving: &mut Vec<Message>) {
        let mut outside = lock(&self.outside);
        let mut dispatch = lock(&self.dispatch);
        std::mem::swap(&mut dispatch.leaving, leaving);
        // Seen by whoever sees, by the lock, that they do not wait here any more.
        self.leaves.store(senders(leaving), Ordering::Release);
        drop(dispatch);
        if !leaving.is_empty() {
            outside.send(leaving);
            leaving.clear();
            self.leaves.store(0, Ordering::Release);
        }
    }

    /// Wakes the cores that sleep. A system call, so only where one does.
    fn wake(&self) {
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            self.delivered.notify_all();
        }
    }
}

/// The bits of the actors that have sent these.
fn senders(messages: &[Message]) -> u64 {
    messages.iter().fold(0, |bits, message| match message.from {
        Address::Actor(actor) => bits | bit(actor),
        Address::Outside(_) => bits,
    })
}

/// The threads of a runtime; dropped, they end after what they run.
pub struct Threads {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for Threads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Threads")
            .field("threads", &self.threads.len())
            .finish_non_exhaustive()
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Relaxed);
        // A core between its look at the flag and its sleep holds this lock.
        drop(lock(&self.shared.dispatch));
        self.shared.delivered.notify_all();
        for thread in self.threads.drain(..) {
            // One that has panicked has said so.
            let _ended = thread.join();
        }
    }
}

/// A core: what a thread calls again and again.
pub struct Core {
    core: CoreId,
    shared: Arc<Shared>,
    batch: Batch,
    outbox: Vec<Message>,
    inbox: Vec<Message>,
    leaving: Vec<Message>,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core")
            .field("core", &self.core)
            .finish_non_exhaustive()
    }
}

impl Core {
    /// Serves until the [`Threads`] are dropped.
    fn serve(&mut self) {
        while !self.shared.ends.load(Ordering::Relaxed) {
            if self.turn() > 0 {
                continue;
            }
            match self.shared.idle {
                Idle::Poll => std::hint::spin_loop(),
                Idle::Sleep(limit) => {
                    let dispatch = lock(&self.shared.dispatch);
                    let has_some = dispatch.has_for(self.core) || !dispatch.diverted.is_empty();
                    if !has_some && !self.shared.ends.load(Ordering::Relaxed) {
                        self.shared.sleepers.fetch_add(1, Ordering::Relaxed);
                        let _woken = self.shared.delivered.wait_timeout(dispatch, limit);
                        self.shared.sleepers.fetch_sub(1, Ordering::Relaxed);
                    }
                }
            }
        }
    }

    /// A turn: what has come from outside is delivered; a batch is taken and run; what the actors have sent is delivered.
    /// Returns how many messages have ended.
    pub fn turn(&mut self) -> usize {
        let shared = Arc::clone(&self.shared);
        let mut now = clock::monotonic();
        // One core looks outside at a time, so that what it finds is delivered in order.
        if let Ok(mut outside) = shared.outside.try_lock() {
            outside.poll(now, &mut self.inbox);
            if !self.inbox.is_empty() {
                let mut dispatch = lock(&shared.dispatch);
                for message in self.inbox.drain(..) {
                    // A refusal is counted.
                    let _refused = dispatch.accept(message);
                }
                drop(dispatch);
                shared.wake();
            }
        }
        let mut dispatch = lock(&shared.dispatch);
        dispatch.take(self.core, &mut self.batch);
        let slice = dispatch.slice();
        drop(dispatch);
        if self.batch.runs.is_empty() {
            return 0;
        }
        let ended = self.run(&mut now, slice);
        let mut dispatch = lock(&shared.dispatch);
        dispatch.finish(self.core, &mut self.batch);
        dispatch.accept_all(&mut self.outbox);
        let (has_more, leaves) = (dispatch.has_some(), !dispatch.leaving.is_empty());
        drop(dispatch);
        if has_more {
            shared.wake();
        }
        if leaves {
            shared.hand_over(&mut self.leaving);
        }
        ended
    }

    /// Runs the batch; no lock is held.
    fn run(&mut self, now: &mut Nanos, slice: Option<Nanos>) -> usize {
        let state = &self.shared.cores[self.core.index()];
        let (mut ended, began) = (0, *now);
        for run in &mut self.batch.runs {
            state.actor.store(run.actor.0, Ordering::Relaxed);
            state.since.store(now.0, Ordering::Release);
            let sent_before = self.outbox.len();
            let mut context = Context {
                objects: run.instance.objects.as_mut(),
                me: run.actor,
                now: *now,
                until: slice.map(|slice| *now + slice),
                sent_from: sent_before,
                outbox: &mut self.outbox,
                failure: None,
            };
            let all = run.messages.len();
            run.ended = run
                .instance
                .actor
                .exec_all(&mut run.messages, &mut context)
                .min(all);
            run.failure = context.failure;
            let at = clock::monotonic();
            run.ran = at.since(*now);
            run.at = at;
            run.sent = (self.outbox.len() - sent_before) as u64;
            ended += run.ended;
            *now = at;
        }
        state.since.store(0, Ordering::Release);
        add(&state.served, ended as u64);
        add(&state.batches, 1);
        add(&state.stolen, if self.batch.is_stolen { ended as u64 } else { 0 });
        add(&state.ran, now.since(began).0);
        ended
    }
}

/// Adds to a counter that only this thread writes.
fn add(counter: &AtomicU64, value: u64) {
    counter.store(counter.load(Ordering::Relaxed) + value, Ordering::Relaxed);
}
