use std::sync::{Arc, OnceLock};
use std::thread::Thread;

use model::{Action, InstanceId, Setting};
use tokio::sync::{mpsc, oneshot};

use crate::capture::{CaptureQuery, RunningCapture};
use crate::counters::Counters;
use crate::types::{
    ActorsRow, FlowExplanation, FlowFilter, FlowPage, InstanceRow, LogPiece, LogRow, Outcome, Policies,
    Refusal, ServiceRow, Snapshot, Status,
};

/// Capacity of the request queue. The control loop empties it every millisecond, so a full queue means that the loop
/// hangs.
pub const REQUEST_QUEUE_LIMIT: usize = 256;

/// The requester.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Its name in the event log: `uid 0` over the unix socket, `token NAME` over TCP, `signal`, and `earlier run` for
    /// what was set before inco ended.
    pub name: String,
    /// Whether it can send actions.
    pub may_act: bool,
    /// Whether it is root on this machine, over the unix socket.
    pub is_root: bool,
}

/// The reply channel of a request. If it is dropped, the requester gets an error.
#[derive(Debug)]
pub struct Answer<T>(oneshot::Sender<T>);

impl<T> Answer<T> {
    /// Of a request for whose result nobody waits.
    pub fn unheard() -> Answer<T> {
        Answer(oneshot::channel().0)
    }

    /// Sends the answer. Without effect if the requester does not wait any more.
    pub fn give(self, answer: T) {
        let _ = self.0.send(answer);
    }
}

/// A request to the control loop.
#[derive(Debug)]
pub enum ControlRequest {
    /// The status.
    Status(Answer<Status>),
    /// All services.
    Services(Answer<Vec<ServiceRow>>),
    /// The settings of the service with this name.
    Settings(String, Answer<Result<Vec<Setting>, Refusal>>),
    /// The containers with stored output of the service with this name.
    Logs(String, Answer<Result<Vec<LogRow>, Refusal>>),
    /// The output of an instance's container, from a position on.
    Log(String, InstanceId, u64, Answer<Result<LogPiece, Refusal>>),
    /// All instances.
    Instances(Answer<Vec<InstanceRow>>),
    /// All services of actors.
    Actors(Answer<Vec<ActorsRow>>),
    /// Flows that match a filter. The filter's flow is valid.
    Flows(FlowFilter, Answer<Result<FlowPage, Refusal>>),
    /// Status, services and instances at one moment.
    Snapshot(Answer<Snapshot>),
    /// The explanation of a flow. Its text is valid.
    Explain(String, Answer<Result<FlowExplanation, Refusal>>),
    /// All policies.
    Policies(Answer<Policies>),
    /// All counters.
    Counters(Answer<Box<Counters>>),
    /// The beginning of a capture. Its query is valid, and the caller has the right to it.
    Capture(CaptureQuery, Caller, Answer<Result<RunningCapture, Refusal>>),
    /// An action. The caller has the right to send it.
    Act(Action, Caller, Answer<Result<Outcome, Refusal>>),
}

/// Creates the request queue.
pub fn request_queue() -> (RequestSender, RequestReceiver) {
    let (sender, receiver) = mpsc::channel(REQUEST_QUEUE_LIMIT);
    let taker = Arc::default();
    let asker = RequestSender {
        requests: sender,
        taker: Arc::clone(&taker),
    };
    let inbox = RequestReceiver {
        requests: receiver,
        taker,
    };
    (asker, inbox)
}

/// The control loop's end of the queue.
#[derive(Debug)]
pub struct RequestReceiver {
    requests: mpsc::Receiver<ControlRequest>,
    taker: Arc<OnceLock<Thread>>,
}

impl RequestReceiver {
    /// Lets each new request unpark this thread.
    pub fn wake_this_thread(&self) {
        // Only one thread takes requests.
        let _is_it_already = self.taker.set(std::thread::current());
    }

    /// The next request, without waiting.
    pub fn take(&mut self) -> Option<ControlRequest> {
        self.requests.try_recv().ok()
    }

    /// Waits for the next request; [`None`] when all senders are dropped.
    pub async fn next(&mut self) -> Option<ControlRequest> {
        self.requests.recv().await
    }

    /// The same, blocking this thread.
    pub fn wait(&mut self) -> Option<ControlRequest> {
        self.requests.blocking_recv()
    }
}

/// The API's end of the queue. It never waits at a full queue: that is an error.
#[derive(Clone, Debug)]
pub struct RequestSender {
    requests: mpsc::Sender<ControlRequest>,
    taker: Arc<OnceLock<Thread>>,
}

/// Why a request has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoAnswer {
    /// The queue is full.
    Busy,
    /// The control loop has ended.
    Ended,
}

impl RequestSender {
    /// Sends an action without waiting for its result, for signals. Whether it was put into the queue.
    pub fn act(&self, action: Action, caller: Caller) -> bool {
        self.put(ControlRequest::Act(action, caller, Answer::unheard()))
            .is_ok()
    }

    /// Sends a request and waits for the answer.
    ///
    /// # Errors
    /// [`NoAnswer`] if the queue is full or the control loop has ended.
    pub(crate) async fn ask<T>(
        &self,
        control_request: impl FnOnce(Answer<T>) -> ControlRequest,
    ) -> Result<T, NoAnswer> {
        let (sender, receiver) = oneshot::channel();
        self.put(control_request(Answer(sender)))?;
        receiver.await.map_err(|_| NoAnswer::Ended)
    }

    fn put(&self, control_request: ControlRequest) -> Result<(), NoAnswer> {
        self.requests
            .try_send(control_request)
            .map_err(|error| match error {
                mpsc::error::TrySendError::Full(_) => NoAnswer::Busy,
                mpsc::error::TrySendError::Closed(_) => NoAnswer::Ended,
            })?;
        if let Some(taker) = self.taker.get() {
            taker.unpark();
        }
        Ok(())
    }
}
