//! Services of actors: a thread for each, which supervises its two sides. The control loop tells it which instances
//! begin and end, and takes what it has to say. Nothing here waits for a side, so the loop stays on time.

mod look;
mod supervised;

use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use anyhow::{Context as _, Result};
use api::types::{ActorsRow, Outcome, Refusal};
use configuration::{Actors, Configuration, Service, Sides};
use controller::{Container, Instance};
use keeper::Keeper;
use model::{Action, ActorSide, Event, InstanceId};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::ControlLoop;
use super::request::Asked;
use supervised::Supervised;

/// The socket in an instance's directory on which its side listens for inco.
const CONTROL_SOCKET: &str = "actors.sock";

/// What the control loop tells a thread.
enum Order {
    /// A process of this side listens there.
    Began(ActorSide, PathBuf),
    /// The process of this side has ended, with all that it had started.
    Ended(ActorSide),
    /// An operator wants something.
    Act(Asked),
    /// A reload has changed how actors move.
    Sides(Box<Sides>),
}

/// What a thread has to say.
#[derive(Default)]
struct Said {
    /// How things stand.
    row: ActorsRow,
    events: Vec<Event>,
    /// Sides whose processes the control loop is to end.
    to_end: [bool; 2],
    answers: Vec<(Asked, Result<Outcome, Refusal>)>,
}

type Shared = Arc<Mutex<Said>>;

/// A thread that panicked has said what it has said.
fn lock(shared: &Shared) -> MutexGuard<'_, Said> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A service of actors, as the control loop knows it.
struct Handle {
    service: String,
    /// Nothing once it is to end.
    orders: Option<Sender<Order>>,
    shared: Shared,
    /// The processes that the thread knows.
    instances: [Option<InstanceId>; 2],
    thread: Option<JoinHandle<()>>,
}

impl Handle {
    fn start(service: &str, actors: &Arc<Actors>, keeper: Option<Arc<Keeper>>) -> Result<Handle> {
        let (orders, inbox): (Sender<Order>, Receiver<Order>) = mpsc::channel();
        let shared = Shared::default();
        let supervised = Supervised::new(service, Arc::clone(actors), keeper, Arc::clone(&shared))
            .with_context(|| format!("the service of actors {service:?}"))?;
        let thread = std::thread::Builder::new()
            .name("inco-actors".to_owned())
            .spawn(move || supervised.run(&inbox))
            .context("cannot start the thread of a service of actors")?;
        Ok(Handle {
            service: service.to_owned(),
            orders: Some(orders),
            shared,
            instances: [None, None],
            thread: Some(thread),
        })
    }
}

impl Drop for Handle {
    /// Waits for the thread: it may be giving something to the keeper.
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

/// The state of this part.
#[derive(Default)]
pub(super) struct ActorServices(Vec<Handle>);

impl ActorServices {
    /// Begins the services of actors that are not known yet, and tells the others how actors move now.
    pub(super) fn follow(
        &mut self,
        configuration: &Configuration,
        keeper: Option<&Arc<Keeper>>,
    ) -> Result<()> {
        for part in configuration.services.iter().filter(|of| of.is_written()) {
            let Some(part) = &part.part else { continue };
            match self.0.iter().find(|of| of.service == part.service) {
                Some(known) => {
                    if let Some(orders) = &known.orders {
                        let _ended = orders.send(Order::Sides(Box::new(part.of.sides.clone())));
                    }
                }
                None => self
                    .0
                    .push(Handle::start(&part.service, &part.of, keeper.cloned())?),
            }
        }
        Ok(())
    }

    /// Ends the threads. The sides go on.
    pub(super) fn leave(&mut self) {
        self.0.clear();
    }

    /// How things stand.
    pub(super) fn rows(&self) -> Vec<ActorsRow> {
        self.0.iter().map(|of| lock(&of.shared).row.clone()).collect()
    }
}

/// The instance of a side whose process runs.
fn running<'i>(instances: &'i [Instance], side: &(usize, &Service)) -> Option<&'i Instance> {
    let mut own = instances.iter().filter(|of| of.service().index() == side.0);
    own.find(|of| of.container() == Container::Running)
}

/// Ends a process for sure: by a descriptor, which means no other one.
fn end(instance: &Instance) -> Result<()> {
    let pid = instance.pid().context("its process is not known")?;
    let pid = Pid::from_raw(i32::try_from(pid)?).context("0 is no process")?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    pidfd_send_signal(&process, Signal::KILL)?;
    Ok(())
}

impl ControlLoop {
    /// Tells the threads which processes have begun and ended, and takes what they have to say.
    pub(super) fn attend_actors(&mut self) {
        if self.actors.0.is_empty() {
            return;
        }
        let is_stopping = self.decide.is_stopping();
        let mut answers = Vec::new();
        let mut events = Vec::new();
        let instances = self.decide.shell.controller().instances();
        for handle in &mut self.actors.0 {
            let mut said = lock(&handle.shared);
            events.append(&mut said.events);
            answers.append(&mut said.answers);
            let to_end = std::mem::take(&mut said.to_end);
            let sides = self.configuration.services.iter().enumerate();
            for of in sides {
                let Some(part) = of.1.part.as_ref().filter(|part| part.service == handle.service) else {
                    continue;
                };
                let at = part.side.index();
                let runs = running(instances, &of).filter(|_| !is_stopping);
                if let Some(row) = said.row.sides.get_mut(at) {
                    row.instance = runs.map(Instance::id);
                    let place = runs.and_then(|of| self.configuration.places.get(of.place().index()));
                    row.place = place.map(|place| place.name.clone());
                }
                let known = &mut handle.instances[at];
                let mut orders = Vec::new();
                if known.is_some() && *known != runs.map(Instance::id) {
                    *known = None;
                    orders.push(Order::Ended(part.side));
                }
                if let (None, Some(instance)) = (*known, runs) {
                    *known = Some(instance.id());
                    let socket = instance.socket_dir().join(CONTROL_SOCKET);
                    orders.push(Order::Began(part.side, socket));
                }
                // One that was replaced meanwhile is not meant.
                if to_end[at]
                    && orders.is_empty()
                    && let Some(instance) = runs
                    && let Err(error) = end(instance)
                {
                    tracing::warn!(
                        service = handle.service,
                        side = part.side.name(),
                        "a broken side cannot be ended: {error:#}"
                    );
                }
                for order in orders {
                    if let Some(sender) = &handle.orders {
                        let _ended = sender.send(order);
                    }
                }
            }
        }
        for event in events {
            self.journal.push(event);
        }
        for (asked, result) in answers {
            self.conclude(asked, result);
        }
        if is_stopping {
            self.actors.leave();
        }
    }

    /// Hands what an operator wants with an actor to its service's thread.
    pub(super) fn act_on_actor(&mut self, asked: Asked) {
        let (service, _) = asked.action.target();
        let service = service.unwrap_or_default().to_owned();
        let handle = self.actors.0.iter().find(|of| of.service == service);
        let Some(handle) = handle else {
            let refusal = Refusal::new(
                format!("{service:?} is no service of actors"),
                "`inco actors` shows them",
            );
            return self.conclude(asked, Err(refusal));
        };
        let sent = match &handle.orders {
            Some(orders) => orders.send(Order::Act(asked)).map_err(|error| error.0),
            None => Err(Order::Act(asked)),
        };
        if let Err(Order::Act(asked)) = sent {
            let refusal = Refusal::new("inco is stopping", "start it again");
            self.conclude(asked, Err(refusal));
        }
    }
}

/// Whether an action is about an actor.
pub(super) const fn is_about_actor(action: &Action) -> bool {
    matches!(
        action,
        Action::ActorMove { .. }
            | Action::ActorPause { .. }
            | Action::ActorResume { .. }
            | Action::ActorStop { .. }
    )
}
