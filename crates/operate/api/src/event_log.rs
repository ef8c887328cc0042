use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::Event;
use tokio::sync::watch;

/// Maximum number of events: hours of a busy day, in some tens of megabytes. Older events are removed; a reader that
/// requests them gets the number of missed ones.
pub const EVENT_LIMIT: usize = 65_536;

/// The newest events, for readers of the API. Pushing waits for a reader at most for the copy of a few thousand
/// pointers.
#[derive(Clone, Debug)]
pub struct EventLog {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    events: Mutex<VecDeque<Arc<Event>>>,
    limit: usize,
    /// The newest event's sequence number; followers wait for its change.
    newest: watch::Sender<u64>,
}

/// A page of events, oldest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Events {
    /// The events.
    pub events: Vec<Arc<Event>>,
    /// The number of requested events that are already removed.
    pub missed: u64,
}

impl Default for EventLog {
    fn default() -> Self {
        Self::with_limit(EVENT_LIMIT)
    }
}

impl EventLog {
    /// An empty log that keeps the newest `limit` events, at least one.
    pub fn with_limit(limit: usize) -> EventLog {
        let shared = Shared {
            events: Mutex::default(),
            limit: limit.max(1),
            newest: watch::Sender::new(0),
        };
        EventLog {
            shared: Arc::new(shared),
        }
    }

    fn events(&self) -> MutexGuard<'_, VecDeque<Arc<Event>>> {
        // The queue of pointers is consistent after each operation, even after a panic.
        self.shared.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an event. Sequence numbers must increase.
    pub fn push(&self, event: impl Into<Arc<Event>>) {
        let event = event.into();
        let sequence = event.sequence;
        {
            let mut events = self.events();
            if events.len() == self.shared.limit {
                events.pop_front();
            }
            events.push_back(event);
        }
        self.shared.newest.send_replace(sequence);
    }

    /// The sequence number of the newest event; 0 if there is none.
    pub fn newest(&self) -> u64 {
        *self.shared.newest.borrow()
    }

    /// The oldest events after number `since`, at most `limit`.
    pub fn since(&self, since: u64, limit: usize) -> Events {
        let events = self.events();
        let start = events.partition_point(|event| event.sequence <= since);
        let missed = match events.front() {
            Some(oldest) if start == 0 => oldest.sequence.saturating_sub(since + 1),
            _ => 0,
        };
        Events {
            events: events.iter().skip(start).take(limit).cloned().collect(),
            missed,
        }
    }

    /// The newest events, at most `limit`, oldest first.
    pub fn last(&self, limit: usize) -> Events {
        let events = self.events();
        let start = events.len().saturating_sub(limit);
        Events {
            events: events.iter().skip(start).cloned().collect(),
            missed: 0,
        }
    }

    /// Waits until there is an event after number `since`.
    pub async fn after(&self, since: u64) {
        let mut newest = self.shared.newest.subscribe();
        // The sender lives as long as the log, so waiting cannot fail.
        let _ = newest.wait_for(|newest| *newest > since).await;
    }
}

#[cfg(test)]
mod tests {
    use model::{EventKind, Nanos};

    use super::*;

    fn event(sequence: u64) -> Event {
        Event {
            sequence,
            at: Nanos(sequence),
            unix_ms: 0,
            service: None,
            instance: None,
            kind: EventKind::Stopping { keep: false },
        }
    }

    fn numbers(events: &Events) -> Vec<u64> {
        events.events.iter().map(|event| event.sequence).collect()
    }

    #[test]
    fn what_is_forgotten_is_counted() {
        let log = EventLog::with_limit(3);
        assert_eq!(log.since(0, 10), Events::default());
        (1..=5).for_each(|sequence| log.push(event(sequence)));
        assert_eq!(log.newest(), 5);
        let events = log.since(0, 10);
        assert_eq!((numbers(&events), events.missed), (vec![3, 4, 5], 2));
        let events = log.since(2, 2);
        assert_eq!((numbers(&events), events.missed), (vec![3, 4], 0));
        let events = log.since(4, 10);
        assert_eq!((numbers(&events), events.missed), (vec![5], 0));
        assert_eq!(numbers(&log.since(5, 10)), Vec::<u64>::new());
        assert_eq!(numbers(&log.last(2)), [4, 5]);
    }

    #[tokio::test]
    async fn followers_are_woken() {
        let log = EventLog::default();
        let waiting = tokio::spawn({
            let log = log.clone();
            async move {
                log.after(1).await;
                numbers(&log.since(1, 10))
            }
        });
        log.push(event(1));
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        log.push(event(2));
        assert_eq!(waiting.await.unwrap(), [2]);
    }
}
