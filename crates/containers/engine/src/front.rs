//! The caller's side of an engine that runs on a thread of its own: requests go in, events come out, and neither call
//! blocks.

use std::fmt;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use clock::monotonic;
use model::Nanos;

use crate::{Container, EngineError, EngineEvent, Execution, Label, MAX_REQUESTS, Request, Ticket};

/// How long [`Engine::list`](crate::Engine::list) waits at most.
pub(crate) const LIST_LIMIT: Duration = Duration::from_secs(5);

/// The scheduler slice of a function: longer than a worker's, since all packets wait for a worker, and shorter than
/// the default.
const SLICE: Duration = Duration::from_micros(300);

/// Shortens the scheduler slice of a function's process, so that packets wait less for its CPU. A failure is only
/// logged.
pub(crate) fn shorten_slice(pid: u32) {
    if let Err(error) = cpu_slice::of_process(pid, SLICE) {
        tracing::debug!(pid, %error, "a container has no short slice and waits longer where others use its CPU");
    }
}

/// What the thread is told.
pub(crate) enum Command {
    /// To be answered with one event that ends it.
    Request {
        ticket: Ticket,
        request: Request,
        since: Nanos,
    },
    /// To be answered by what it brings itself.
    Execute { execution: Execution, since: Nanos },
    /// Which containers have that label.
    List {
        label: Label,
        answer: Sender<Result<Vec<Container>, EngineError>>,
    },
    /// The thread is to end.
    Quit,
}

/// Sends to the thread and wakes it; false where it has ended.
type Post = Box<dyn Fn(Command) -> bool + Send>;

/// The caller's side. Dropping it ends the thread and waits for that.
pub(crate) struct Front {
    post: Post,
    events: Receiver<EngineEvent>,
    /// Requests without an answer yet.
    in_hand: usize,
    /// Answers to requests that never reached the thread.
    refused: Vec<EngineEvent>,
    thread: Option<JoinHandle<()>>,
}

impl Front {
    /// Starts the thread.
    ///
    /// # Errors
    /// [`EngineError::Io`] where the system has no thread to give.
    pub(crate) fn start(
        post: Post,
        events: Receiver<EngineEvent>,
        run: impl FnOnce() + Send + 'static,
    ) -> Result<Front, EngineError> {
        let thread = std::thread::Builder::new()
            .name("inco-engine".to_owned())
            .spawn(run)
            .map_err(|error| EngineError::io("start", Path::new("engine thread"), &error))?;
        Ok(Front {
            post,
            events,
            in_hand: 0,
            refused: Vec::new(),
            thread: Some(thread),
        })
    }

    /// As [`Engine::submit`](crate::Engine::submit).
    pub(crate) fn submit(&mut self, ticket: Ticket, request: Request) {
        let since = monotonic();
        let error = if self.in_hand >= MAX_REQUESTS {
            EngineError::Busy { limit: MAX_REQUESTS }
        } else if (self.post)(Command::Request {
            ticket,
            request,
            since,
        }) {
            self.in_hand += 1;
            return;
        } else {
            gone()
        };
        self.refused.push(EngineEvent::Failed {
            ticket,
            error,
            at: since,
        });
    }

    /// As [`Engine::execute`](crate::Engine::execute).
    pub(crate) fn execute(&self, execution: Execution) {
        let since = monotonic();
        // A thread that has ended drops it.
        (self.post)(Command::Execute { execution, since });
    }

    /// As [`Engine::poll`](crate::Engine::poll).
    pub(crate) fn poll(&mut self, events: &mut Vec<EngineEvent>) {
        events.append(&mut self.refused);
        while let Ok(event) = self.events.try_recv() {
            if matches!(
                event,
                EngineEvent::Created { .. } | EngineEvent::Done { .. } | EngineEvent::Failed { .. }
            ) {
                self.in_hand = self.in_hand.saturating_sub(1);
            }
            events.push(event);
        }
    }

    /// As [`Engine::list`](crate::Engine::list).
    pub(crate) fn list(&self, label: &Label) -> Result<Vec<Container>, EngineError> {
        let (answer, listed) = channel();
        let label = label.clone();
        if !(self.post)(Command::List { label, answer }) {
            return Err(gone());
        }
        listed
            .recv_timeout(LIST_LIMIT)
            .map_err(|_| EngineError::Timeout {
                verb: "list",
                name: "the containers".to_owned(),
                after: Nanos(LIST_LIMIT.as_nanos() as u64),
            })?
    }
}

impl fmt::Debug for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Front")
            .field("in_hand", &self.in_hand)
            .finish_non_exhaustive()
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        (self.post)(Command::Quit);
        if let Some(thread) = self.thread.take() {
            // Where it panicked, that was said on standard error.
            let _ = thread.join();
        }
    }
}

fn gone() -> EngineError {
    EngineError::Unavailable {
        reason: "its thread has ended".to_owned(),
    }
}
