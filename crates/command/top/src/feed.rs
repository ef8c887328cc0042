//! Queries inco periodically and executes actions in a thread of its own, so that the terminal never waits.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use api::types::FlowFilter;
use api::{ApiError, Client, Endpoint};
use model::{Action, InstanceId};

use super::history::KEPT;
use super::state::{Observed, Update};
use display::output;

/// Pause before the next attempt while no inco answers.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// Events kept for display.
const EVENTS: usize = 60;
/// inco's history, in seconds.
const HISTORY_SECONDS: u64 = 900;
/// Number of an instance's largest flows to query.
const FLOWS: u32 = 20;

enum FeedRequest {
    Act(Action),
    LookAt(Option<InstanceId>),
}

/// The channels to the thread. Dropping this ends the thread.
pub(super) struct Feed {
    orders: Sender<FeedRequest>,
    updates: Receiver<Update>,
}

impl Feed {
    /// Starts querying the inco there. It need not run yet.
    pub(super) fn start(endpoint: Endpoint, interval: Duration) -> std::io::Result<Feed> {
        let (orders, received) = mpsc::channel();
        let (told, updates) = mpsc::channel();
        std::thread::Builder::new()
            .name("inco-top".to_owned())
            .spawn(move || {
                let mut asking = Poller {
                    endpoint,
                    client: None,
                    interval,
                    instance: None,
                    events: None,
                };
                asking.run(&received, &told);
            })?;
        Ok(Feed { orders, updates })
    }

    /// The next update, if any.
    pub(super) fn take(&self) -> Option<Update> {
        self.updates.try_recv().ok()
    }

    /// Requests an action; its outcome is an update.
    pub(super) fn act(&self, action: Action) {
        let _ended = self.orders.send(FeedRequest::Act(action));
    }

    /// Queries the largest flows of this instance from now on, the first time immediately.
    pub(super) fn set_instance(&self, instance: Option<InstanceId>) {
        let _ended = self.orders.send(FeedRequest::LookAt(instance));
    }
}

struct Poller {
    endpoint: Endpoint,
    client: Option<Client>,
    interval: Duration,
    instance: Option<InstanceId>,
    /// inco's pid and its number of events at the last query; events are queried again when either changes.
    events: Option<(u32, u64)>,
}

impl Poller {
    fn run(&mut self, orders: &Receiver<FeedRequest>, told: &Sender<Update>) {
        loop {
            let update = self.poll().unwrap_or_else(|error| {
                self.client = None;
                self.events = None;
                Update::Gone(error.to_string())
            });
            let pause = match update {
                Update::Gone(_) => RETRY_INTERVAL,
                _ => self.interval,
            };
            if told.send(update).is_err() {
                return;
            }
            let until = Instant::now() + pause;
            match orders.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(FeedRequest::Act(action)) => {
                    let outcome = self.act(&action);
                    if told.send(Update::Done(outcome)).is_err() {
                        return;
                    }
                }
                Ok(FeedRequest::LookAt(instance)) => self.instance = instance,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn poll(&mut self) -> Result<Update, ApiError> {
        let is_new = self.client.is_none();
        let client = connected(&mut self.client, &self.endpoint)?;
        // inco keeps one point per second, so there is no history for shorter intervals.
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
            actors,
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
        let observed = Observed {
            status,
            services,
            instances,
            actors,
            past,
            events,
            flows,
        };
        self.events = now;
        Ok(Update::Observed(Box::new(observed)))
    }

    /// Executes an action and returns its outcome as a sentence.
    fn act(&mut self, action: &Action) -> Result<String, String> {
        let done = connected(&mut self.client, &self.endpoint).and_then(|client| client.act(action));
        match done {
            Ok(outcome) => Ok(outcome.result),
            Err(error) => Err(output::explain(&error.into())),
        }
    }
}

fn connected<'a>(client: &'a mut Option<Client>, endpoint: &Endpoint) -> Result<&'a Client, ApiError> {
    match client {
        Some(client) => Ok(client),
        None => Ok(client.insert(Client::connect_to(endpoint.clone())?)),
    }
}
