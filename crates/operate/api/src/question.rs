use std::sync::{Arc, OnceLock};
use std::thread::Thread;

use model::{Action, InstanceId, Setting};
use tokio::sync::{mpsc, oneshot};

use crate::counters::Counters;
use crate::types::{
    FlowExplanation, FlowFilter, FlowPage, InstanceRow, LogPiece, LogRow, Outcome, Policies, Refusal,
    ServiceRow, Snapshot, Status,
};

/// Questions that may wait for the control loop. It takes them every millisecond, so more means that it hangs.
pub const QUESTION_LIMIT: usize = 256;

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// As the event log has it: `uid 0` over the unix socket, `token NAME` over TCP, `signal`.
    pub name: String,
    /// Whether it may change anything.
    pub may_act: bool,
    /// Whether it is root on this machine, over the unix socket.
    pub is_root: bool,
}

/// Where an answer goes. It may be dropped: who asked is then told that there is none.
#[derive(Debug)]
pub struct Answer<T>(oneshot::Sender<T>);

impl<T> Answer<T> {
    /// Gives the answer. Whether somebody still waits for it does not matter.
    pub fn give(self, answer: T) {
        let _ = self.0.send(answer);
    }

    /// Whether nobody waits for it any more.
    pub fn is_abandoned(&self) -> bool {
        self.0.is_closed()
    }
}

/// What the API asks of the control loop.
#[derive(Debug)]
pub enum Question {
    /// How is everything?
    Status(Answer<Status>),
    /// What services are there?
    Services(Answer<Vec<ServiceRow>>),
    /// What settings has the service of that name?
    Settings(String, Answer<Result<Vec<Setting>, Refusal>>),
    /// Of which containers of the service of that name is output kept?
    Logs(String, Answer<Result<Vec<LogRow>, Refusal>>),
    /// What did the container of that service's instance write from that position on?
    Log(String, InstanceId, u64, Answer<Result<LogPiece, Refusal>>),
    /// What instances are there?
    Instances(Answer<Vec<InstanceRow>>),
    /// Which flows are there? The filter's flow is one that could be parsed.
    Flows(FlowFilter, Answer<Result<FlowPage, Refusal>>),
    /// All of that, of one moment.
    Snapshot(Answer<Snapshot>),
    /// Where is this flow, since when, and why? It is one that could be parsed.
    Explain(String, Answer<Result<FlowExplanation, Refusal>>),
    /// What policies are there?
    Policies(Answer<Policies>),
    /// How does every counter stand?
    Counters(Answer<Box<Counters>>),
    /// Do something. Whoever asks may.
    Act(Action, Caller, Answer<Result<Outcome, Refusal>>),
}

/// Makes the queue of questions.
pub fn questions() -> (Asker, Inbox) {
    let (sender, receiver) = mpsc::channel(QUESTION_LIMIT);
    let taker = Arc::default();
    let asker = Asker {
        questions: sender,
        taker: Arc::clone(&taker),
    };
    let inbox = Inbox {
        questions: receiver,
        taker,
    };
    (asker, inbox)
}

/// The control loop's end of the queue.
#[derive(Debug)]
pub struct Inbox {
    questions: mpsc::Receiver<Question>,
    taker: Arc<OnceLock<Thread>>,
}

impl Inbox {
    /// From now on each question unparks this thread, which may sleep meanwhile.
    pub fn wake_this_thread(&self) {
        // Only one thread ever takes questions.
        let _is_it_already = self.taker.set(std::thread::current());
    }

    /// The next question, without waiting for one.
    pub fn take(&mut self) -> Option<Question> {
        self.questions.try_recv().ok()
    }

    /// The next question; [`None`] once nobody can ask any more.
    pub async fn next(&mut self) -> Option<Question> {
        self.questions.recv().await
    }

    /// The same, blocking this thread: for a loop that has nothing else to do.
    pub fn wait(&mut self) -> Option<Question> {
        self.questions.blocking_recv()
    }
}

/// The API's end of the queue. Never waits for room: a loop that does not take questions is one to complain about.
#[derive(Clone, Debug)]
pub struct Asker {
    questions: mpsc::Sender<Question>,
    taker: Arc<OnceLock<Thread>>,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoAnswer {
    /// The queue is full.
    Busy,
    /// The control loop has ended.
    Ended,
}

impl Asker {
    /// Asks for something without waiting for what comes of it: for a signal, which nobody answers. Whether it could
    /// be put into the queue.
    pub fn act(&self, action: Action, caller: Caller) -> bool {
        let (sender, _receiver) = oneshot::channel();
        self.put(Question::Act(action, caller, Answer(sender))).is_ok()
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// [`NoAnswer`] where the control loop is too busy, or has ended.
    pub(crate) async fn ask<T>(&self, question: impl FnOnce(Answer<T>) -> Question) -> Result<T, NoAnswer> {
        let (sender, receiver) = oneshot::channel();
        self.put(question(Answer(sender)))?;
        receiver.await.map_err(|_| NoAnswer::Ended)
    }

    fn put(&self, question: Question) -> Result<(), NoAnswer> {
        self.questions.try_send(question).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => NoAnswer::Busy,
            mpsc::error::TrySendError::Closed(_) => NoAnswer::Ended,
        })?;
        if let Some(taker) = self.taker.get() {
            taker.unpark();
        }
        Ok(())
    }
}
