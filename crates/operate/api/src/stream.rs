//! What goes on for as long as somebody listens. Nothing waits for a reader and nothing piles up for one: events are
//! read from the log when there is room for them, and of the snapshots there is only the newest.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::response::sse::{Event as Message, KeepAlive, Sse};
use futures_util::Stream;
use futures_util::stream::unfold;
use model::Event;
use serde::Serialize;
use tokio::sync::{Notify, watch};
use tokio::time::MissedTickBehavior;

use crate::event_log::{EventLog, Events};
use crate::history::{Recorder, SNAPSHOT_PERIOD};
use crate::question::{Asker, Question};
use crate::routes::{EVENT_PAGE, Shared, StreamQuery};
use crate::types::{History, Snapshot};

/// Time after which a stream that has nothing to say shows that it lives.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Events in one piece of a stream: a reader that is slow is given them in such portions.
const STREAM_PAGE: usize = 100;

/// A line of the stream of events.
#[derive(Serialize)]
#[serde(untagged)]
enum Line<'a> {
    Event(&'a Event),
    /// Events were forgotten before they could be told.
    Missed {
        missed: u64,
    },
}

/// Events as JSON lines.
pub(crate) fn lines(events: &Events) -> String {
    let mut text = String::new();
    let missed = (events.missed > 0).then_some(Line::Missed {
        missed: events.missed,
    });
    for line in missed
        .into_iter()
        .chain(events.events.iter().map(|event| Line::Event(event)))
    {
        // Numbers and text: there is nothing in an event that JSON could not say.
        if let Ok(line) = serde_json::to_string(&line) {
            text.push_str(&line);
            text.push('\n');
        }
    }
    text
}

/// The head, then what comes, as it comes.
pub(crate) fn follow(log: EventLog, head: String, told: u64) -> Body {
    Body::new(Follow {
        log,
        told,
        ready: Some(head),
        waiting: None,
    })
}

type Waiting = Pin<Box<dyn Future<Output = ()> + Send>>;

struct Follow {
    log: EventLog,
    told: u64,
    ready: Option<String>,
    waiting: Option<Waiting>,
}

impl axum::body::HttpBody for Follow {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<hyper::body::Frame<Bytes>, Self::Error>>> {
        loop {
            if let Some(text) = self.ready.take().filter(|text| !text.is_empty()) {
                return Poll::Ready(Some(Ok(hyper::body::Frame::data(Bytes::from(text)))));
            }
            if self.waiting.is_none() {
                let (log, told) = (self.log.clone(), self.told);
                self.waiting = Some(Box::pin(async move { log.after(told).await }));
            }
            if let Some(waiting) = &mut self.waiting
                && waiting.as_mut().poll(context).is_pending()
            {
                return Poll::Pending;
            }
            self.waiting = None;
            let events = self.log.since(self.told, EVENT_PAGE);
            self.told = events.events.last().map_or(self.told, |event| event.sequence);
            self.ready = Some(lines(&events));
        }
    }
}

/// The newest snapshot for all streams together, and the history. The control loop is asked once a second however
/// many listen; the text is made only where somebody does.
#[derive(Debug, Default)]
pub(crate) struct Snapshots {
    newest: watch::Sender<Option<Arc<str>>>,
    wanted: Notify,
    history: Recorder,
}

impl Snapshots {
    fn subscribe(&self) -> watch::Receiver<Option<Arc<str>>> {
        let mut receiver = self.newest.subscribe();
        receiver.mark_changed();
        self.wanted.notify_one();
        receiver
    }

    /// The newest points of the history, one a second.
    pub(crate) fn history(&self, points: u32) -> History {
        self.history.read(points)
    }

    fn publish(&self, snapshot: &Snapshot) {
        // Numbers and text: there is nothing in a snapshot that JSON could not say.
        if let Ok(text) = serde_json::to_string(snapshot) {
            self.newest.send_replace(Some(text.into()));
        }
    }

    /// Keeps both new for as long as the control loop answers.
    pub(crate) async fn refresh(self: Arc<Self>, asker: Asker) {
        let mut newest = None;
        let mut ticks = tokio::time::interval(SNAPSHOT_PERIOD);
        // A loop that has no time for it will have some later.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {
                    let Ok(snapshot) = asker.ask(Question::Snapshot).await else {
                        continue;
                    };
                    self.history.note(&snapshot);
                    match self.newest.receiver_count() {
                        0 => drop(self.newest.send_replace(None)),
                        _ => self.publish(&snapshot),
                    }
                    newest = Some(snapshot);
                }
                // The first reader need not wait for the next second.
                () = self.wanted.notified() => {
                    let is_told = self.newest.borrow().is_some();
                    if let Some(snapshot) = newest.as_ref().filter(|_| !is_told) {
                        self.publish(snapshot);
                    }
                }
            }
        }
    }
}

struct Live {
    log: EventLog,
    told: u64,
    /// Read and not yet told, the next one last.
    ready: Vec<Message>,
    snapshots: watch::Receiver<Option<Arc<str>>>,
}

/// Snapshots and events for as long as the reader stays.
pub(crate) fn live(
    shared: &Shared,
    query: &StreamQuery,
) -> Sse<impl Stream<Item = Result<Message, Infallible>> + use<>> {
    let log = shared.events.clone();
    let newest = log.newest();
    let told = match (query.since, query.last) {
        // A number that is not reached yet is one of an earlier run: everything is told anew.
        (Some(since), _) if since > newest => 0,
        (Some(since), _) => since,
        (None, last) => newest.saturating_sub(u64::from(last.unwrap_or(0))),
    };
    let live = Live {
        log,
        told,
        ready: Vec::new(),
        snapshots: shared.snapshots.subscribe(),
    };
    let messages = unfold(live, |mut live| async move {
        let message = live.next().await;
        Some((Ok(message), live))
    });
    Sse::new(messages).keep_alive(KeepAlive::new().interval(KEEP_ALIVE))
}

impl Live {
    async fn next(&mut self) -> Message {
        loop {
            if let Some(message) = self.ready.pop() {
                return message;
            }
            tokio::select! {
                // The sender lives as long as the server does.
                _ = self.snapshots.changed() => {
                    let newest = self.snapshots.borrow_and_update().clone();
                    if let Some(newest) = newest {
                        return Message::default().event("snapshot").data(newest);
                    }
                }
                () = self.log.after(self.told) => self.read(),
            }
        }
    }

    fn read(&mut self) {
        let events = self.log.since(self.told, STREAM_PAGE);
        self.told = events.events.last().map_or(self.told, |event| event.sequence);
        let missed = (events.missed > 0).then(|| {
            let missed = events.missed;
            Message::default()
                .event("missed")
                .data(format!("{{\"missed\":{missed}}}"))
        });
        let told = events.events.iter().filter_map(|event| {
            let text = serde_json::to_string(&**event).ok()?;
            let message = Message::default()
                .event("happened")
                .id(event.sequence.to_string());
            Some(message.data(text))
        });
        self.ready = missed.into_iter().chain(told).collect();
        self.ready.reverse();
    }
}
