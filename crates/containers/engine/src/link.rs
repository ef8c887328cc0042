//! What engines behind an API share: how they are asked, whether they answer, and what is told of containers.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::Future;
use std::rc::Rc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use clock::monotonic;
use model::Nanos;
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::{EngineError, EngineEvent, Exit, Ticket};

/// An error of a client of an API.
pub(crate) trait ClientError: std::error::Error {
    /// Whether the engine itself is what failed, and not what it was asked.
    fn is_connection(&self) -> bool;

    /// Whether the same may succeed later: it is asked too often, or has no leader at the moment.
    fn is_passing(&self) -> bool;

    /// The error in our words, of who was asked what.
    fn refused(self, verb: &'static str, name: &str) -> EngineError;
}

/// The connection to an engine, and to who hears of its containers.
#[derive(Debug)]
pub(crate) struct Link {
    events: Sender<EngineEvent>,
    /// Since when it does not answer.
    down_since: Cell<Option<Nanos>>,
}

impl Link {
    /// One that tells its events there.
    pub(crate) fn new(events: Sender<EngineEvent>) -> Link {
        Link {
            events,
            down_since: Cell::new(None),
        }
    }

    /// Tells an event. That nobody hears it any more is no error.
    pub(crate) fn tell(&self, event: EngineEvent) {
        let _ = self.events.send(event);
    }

    /// Tells that a program has ended.
    pub(crate) fn tell_end(&self, name: String, exit: Exit, output: String) {
        self.tell(EngineEvent::Exited {
            name,
            exit,
            output,
            at: monotonic(),
        });
    }

    /// Answers a request other than a successful create.
    pub(crate) fn answer(&self, ticket: Ticket, since: Nanos, served: Result<(), EngineError>) {
        let at = monotonic();
        self.tell(match served {
            Ok(()) => EngineEvent::Done {
                ticket,
                at,
                took: at.since(since),
            },
            Err(error) => EngineEvent::Failed { ticket, error, at },
        });
    }

    /// Whether it does not answer.
    #[cfg(feature = "kubernetes")]
    pub(crate) fn is_down(&self) -> bool {
        self.down_since.get().is_some()
    }

    /// It does not answer: told once, until [`Link::up`].
    pub(crate) fn down(&self, reason: &str) {
        if self.down_since.get().is_none() {
            let at = monotonic();
            self.down_since.set(Some(at));
            self.tell(EngineEvent::EngineDown {
                place: None,
                reason: reason.to_owned(),
                at,
            });
        }
    }

    /// It answers.
    pub(crate) fn up(&self) {
        if let Some(since) = self.down_since.take() {
            let at = monotonic();
            self.tell(EngineEvent::EngineUp {
                place: None,
                at,
                after: at.since(since),
            });
        }
    }

    /// Asks the engine, within a time. One that fails to answer counts as down from then on.
    pub(crate) async fn ask<T, E: ClientError>(
        &self,
        verb: &'static str,
        name: &str,
        limit: Duration,
        asked: impl Future<Output = Result<T, E>>,
    ) -> Result<T, EngineError> {
        if self.down_since.get().is_some() {
            return Err(EngineError::Unavailable {
                reason: "it has not answered since".to_owned(),
            });
        }
        match timeout(limit, asked).await {
            Ok(Ok(answer)) => Ok(answer),
            // Who asked tries again by itself.
            Ok(Err(error)) if error.is_passing() => Err(EngineError::Unavailable {
                reason: error.to_string(),
            }),
            Ok(Err(error)) => {
                if error.is_connection() {
                    self.down(&error.to_string());
                }
                Err(error.refused(verb, name))
            }
            Err(_) => Err(late(verb, name, limit)),
        }
    }
}

/// It took longer than it may.
pub(crate) fn late(verb: &'static str, name: &str, limit: Duration) -> EngineError {
    EngineError::Timeout {
        verb,
        name: name.to_owned(),
        after: Nanos(limit.as_nanos() as u64),
    }
}

/// Where requests for one container wait for each other.
#[derive(Debug, Default)]
pub(crate) struct Turns(RefCell<HashMap<String, Rc<Mutex<()>>>>);

impl Turns {
    /// The turn of a container, to be locked by tasks in the order of their making.
    pub(crate) fn of(&self, name: &str) -> Rc<Mutex<()>> {
        Rc::clone(self.0.borrow_mut().entry(name.to_owned()).or_default())
    }

    /// Forgets a turn for which nobody waits.
    pub(crate) fn give_back(&self, name: &str, turn: Rc<Mutex<()>>) {
        // Nobody has it but the table and the caller.
        if Rc::strong_count(&turn) == 2 {
            self.0.borrow_mut().remove(name);
        }
    }
}
