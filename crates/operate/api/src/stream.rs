//! Live streams. They never wait for a reader and buffer nothing for one: events are read from the log when the
//! connection can take them, and only the newest snapshot is kept.

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

use crate::control_request::{ControlRequest, RequestSender};
use crate::event_log::{EventLog, Events};
use crate::history::{Recorder, SNAPSHOT_PERIOD};
use crate::routes::{EVENT_PAGE, Shared, StreamQuery};
use crate::types::{History, Snapshot};

/// Interval of keep-alive messages on an idle stream.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Maximum number of events in one chunk of a stream.
const STREAM_PAGE: usize = 100;

/// A line of the stream of events.
#[derive(Serialize)]
#[serde(untagged)]
enum Line<'a> {
    Event(&'a Event),
    /// Number of events that were overwritten before they were sent.
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
        // An event has only numbers and text, which JSON can represent.
        if let Ok(line) = serde_json::to_string(&line) {
            text.push_str(&line);
            text.push('\n');
        }
    }
    text
}

/// The first events, then new events as they occur.
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

/// The newest snapshot, shared by all streams, and the history. The control loop gets one request per second,
/// independent of the number of streams. The snapshot is serialised only if a stream is open.
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

    /// The newest points of the history, one per second.
    pub(crate) fn history(&self, points: u32) -> History {
        self.history.read(points)
    }

    fn publish(&self, snapshot: &Snapshot) {
        // A snapshot has only numbers and text, which JSON can represent.
        if let Ok(text) = serde_json::to_string(snapshot) {
            self.newest.send_replace(Some(text.into()));
        }
    }

    /// Refreshes both while the control loop answers.
    pub(crate) async fn refresh(self: Arc<Self>, asker: RequestSender) {
        let mut newest = None;
        let mut ticks = tokio::time::interval(SNAPSHOT_PERIOD);
        // A busy control loop is asked again later.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {
                    let Ok(snapshot) = asker.ask(ControlRequest::Snapshot).await else {
                        continue;
                    };
                    self.history.note(&snapshot);
                    match self.newest.receiver_count() {
                        0 => drop(self.newest.send_replace(None)),
                        _ => self.publish(&snapshot),
                    }
                    newest = Some(snapshot);
                }
                // The first reader does not wait for the next second.
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
    /// Events that are read and not yet sent, the next one last.
    ready: Vec<Message>,
    snapshots: watch::Receiver<Option<Arc<str>>>,
}

/// A stream of snapshots and events.
pub(crate) fn live(
    shared: &Shared,
    query: &StreamQuery,
) -> Sse<impl Stream<Item = Result<Message, Infallible>> + use<>> {
    let log = shared.events.clone();
    let newest = log.newest();
    let told = match (query.since, query.last) {
        // A number beyond the newest is of an earlier run: the stream starts from the beginning.
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
