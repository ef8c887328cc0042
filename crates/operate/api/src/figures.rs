//! The API's own counters.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use axum::http::StatusCode;

use crate::counters::ApiCounters;

/// Counters of the API's own thread.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    /// Requests by status; about ten different ones occur.
    requests: Mutex<BTreeMap<u16, u64>>,
    pub(crate) unix_connections: AtomicU64,
    pub(crate) tcp_connections: AtomicU64,
    pub(crate) dropped_connections: AtomicU64,
}

impl Figures {
    pub(crate) fn answered(&self, status: StatusCode) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        *requests.entry(status.as_u16()).or_default() += 1;
    }

    pub(crate) fn read(&self) -> ApiCounters {
        let connections = [("unix", &self.unix_connections), ("tcp", &self.tcp_connections)];
        ApiCounters {
            requests: self
                .requests
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone(),
            connections: connections
                .map(|(listener, count)| (listener.to_owned(), count.load(Ordering::Relaxed)))
                .into(),
            dropped_connections: self.dropped_connections.load(Ordering::Relaxed),
        }
    }
}

/// Counts a connection while it exists.
pub(crate) struct Counted<'a>(&'a AtomicU64);

impl<'a> Counted<'a> {
    pub(crate) fn new(count: &'a AtomicU64) -> Counted<'a> {
        count.fetch_add(1, Ordering::Relaxed);
        Counted(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
