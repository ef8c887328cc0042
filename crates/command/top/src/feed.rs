//! Asks inco every so often, and does what it is told to, on a thread of its own: the terminal never waits.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use api::types::{Action, FlowFilter};
use api::{ApiError, Client};
use model::InstanceId;

use super::history::KEPT;
use super::state::{Seen, Update};
use display::output;

/// Before inco is looked for again where none answers.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// Events that are kept to be shown: some screens.
const EVENTS: usize = 60;
/// What inco keeps at most, in seconds.
const HISTORY_SECONDS: u64 = 900;
/// The largest flows of an instance.
const FLOWS: u32 = 20;

enum Order {
    Act(Action),
    LookAt(Option<InstanceId>),
}

/// The thread's two ends. It ends when this is dropped.
pub(super) struct Feed {
    orders: Sender<Order>,
    updates: Receiver<Update>,
}

impl Feed {
    /// Starts asking the inco on that socket. There need not be one yet.
    pub(super) fn start(socket: PathBuf, interval: Duration) -> std::io::Result<Feed> {
        let (orders, received) = mpsc::channel();
        let (told, updates) = mpsc::channel();
        std::thread::Builder::new()
            .name("inco-top".to_owned())
            .spawn(move || {
                let mut asking = Asking {
                    socket,
                    client: None,
                    interval,
                    instance: None,
                    events: None,
                };
                asking.run(&received, &told);
            })?;
        Ok(Feed { orders, updates })
    }

    /// What is new, if anything.
    pub(super) fn take(&self) -> Option<Update> {
        self.updates.try_recv().ok()
    }

    /// Has something done; what came of it is an update.
    pub(super) fn act(&self, action: Action) {
        let _ended = self.orders.send(Order::Act(action));
    }

    /// Asks for the largest flows of this instance from now on, at once for the first time.
    pub(super) fn look_at(&self, instance: Option<InstanceId>) {
        let _ended = self.orders.send(Order::LookAt(instance));
    }
}

struct Asking {
    socket: PathBuf,
    client: Option<Client>,
    interval: Duration,
    instance: Option<InstanceId>,
    /// Process and count of events when they were asked for last: they are asked for again where there are more.
    events: Option<(u32, u64)>,
}

impl Asking {
    fn run(&mut self, orders: &Receiver<Order>, told: &Sender<Update>) {
        loop {
            let update = self.look().unwrap_or_else(|error| {
                self.client = None;
                self.events = None;
                Update::Gone(error.to_string())
            });
            let pause = match update {
                Update::Gone(_) => LOOK_AGAIN,
                _ => self.interval,
            };
            if told.send(update).is_err() {
                return;
            }
            let until = Instant::now() + pause;
            match orders.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Order::Act(action)) => {
                    let outcome = self.act(&action);
                    if told.send(Update::Done(outcome)).is_err() {
                        return;
                    }
                }
                Ok(Order::LookAt(instance)) => self.instance = instance,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn look(&mut self) -> Result<Update, ApiError> {
        let is_new = self.client.is_none();
        let client = connected(&mut self.client, &self.socket)?;
        // inco keeps a point a second: for a shorter interval there are none.
        let past = match self.interval.as_secs() {
            seconds @ 1.. if is_new => {
                let wanted = (KEPT as u64).saturating_mul(seconds).min(HISTORY_SECONDS);
                Some((client.history(wanted as u32)?, seconds as usize))
            }
            _ => None,
        };
        let api::types::Snapshot {
            status,
            services,
            instances,
            ..
        } = client.snapshot()?;
        let now = Some((status.pid, status.events));
        let events = if self.events == now {
            None
        } else {
            Some(client.events(EVENTS)?)
        };
        let flows = match self.instance {
            None => Vec::new(),
            Some(instance) => {
                let filter = FlowFilter {
                    instance: Some(instance),
                    top: Some(FLOWS),
                    ..FlowFilter::default()
                };
                client.flows(&filter)?.flows
            }
        };
        let seen = Seen {
            status,
            services,
            instances,
            past,
            events,
            flows,
        };
        self.events = now;
        Ok(Update::Seen(Box::new(seen)))
    }

    /// Does it, and says in a sentence what came of it.
    fn act(&mut self, action: &Action) -> Result<String, String> {
        let done = connected(&mut self.client, &self.socket).and_then(|client| client.act(action));
        match done {
            Ok(outcome) => Ok(outcome.result),
            Err(error) => Err(output::explain(&error.into())),
        }
    }
}

fn connected<'a>(client: &'a mut Option<Client>, socket: &Path) -> Result<&'a Client, ApiError> {
    match client {
        Some(client) => Ok(client),
        None => Ok(client.insert(Client::connect(socket)?)),
    }
}
