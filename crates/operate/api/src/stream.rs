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

use crate::event_log::{EventLog, Events};
use crate::question::{Asker, Question};
use crate::routes::{EVENT_PAGE, Shared, StreamQuery};

/// Time between two snapshots.
const SNAPSHOT_PERIOD: Duration = Duration::from_secs(1);
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

/// The newest snapshot, for all streams together: the control loop is asked once a second however many listen, and not
/// at all where nobody does.
#[derive(Debug, Default)]
pub(crate) struct Snapshots {
    newest: watch::Sender<Option<Arc<str>>>,
    wanted: Notify,
}

impl Snapshots {
    fn subscribe(&self) -> watch::Receiver<Option<Arc<str>>> {
        let mut receiver = self.newest.subscribe();
        receiver.mark_changed();
        self.wanted.notify_one();
        receiver
    }

    /// Keeps it new for as long as the control loop answers.
    pub(crate) async fn refresh(self: Arc<Self>, asker: Asker) {
        loop {
            while self.newest.receiver_count() == 0 {
                self.newest.send_replace(None);
                self.wanted.notified().await;
            }
            // A loop that has no time for it will have some later.
            if let Ok(snapshot) = asker.ask(Question::Snapshot).await
                && let Ok(text) = serde_json::to_string(&snapshot)
            {
                self.newest.send_replace(Some(text.into()));
            }
            tokio::time::sleep(SNAPSHOT_PERIOD).await;
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
