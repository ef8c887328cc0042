//! The journal: numbers each event, keeps recent ones in memory, writes them to files and counts them by kind.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use api::EventLog;
use api::counters::EventLogCounters;
use api::types::UnwrittenEvents;
use clock::{monotonic, unix_ms};
use configuration::Configuration;
use model::{Event, EventKind, InstanceState};

use super::event_files::EventFiles;
use api::run_dir::in_run_dir;

/// The possible actions of an autoscaler's decision.
pub(super) const DECISIONS: [&str; 4] = ["out", "in", "resize", "relocate"];

pub(super) struct Journal {
    log: EventLog,
    files: EventFiles,
    /// The newest event's number.
    sequence: u64,
    /// Number of events by kind.
    counts: BTreeMap<&'static str, u64>,
    /// Number of autoscaler decisions, by service and action.
    decisions: BTreeMap<(String, &'static str), u64>,
    /// Number of instances that failed, by service.
    failed: BTreeMap<String, u64>,
}

impl Journal {
    /// Continues the files of the event log, after event number `newest` or the last one that they have.
    ///
    /// # Errors
    /// The files cannot be written.
    pub(super) fn start(configuration: &Configuration, log: EventLog, newest: u64) -> Result<Journal> {
        let of = &configuration.event_log;
        let directory = in_run_dir(of.directory.as_deref().unwrap_or(Path::new("events")));
        let (files, written) = EventFiles::start(&directory, of.file_bytes, of.files)?;
        Ok(Journal {
            log,
            files,
            sequence: newest.max(written),
            counts: BTreeMap::new(),
            decisions: BTreeMap::new(),
            failed: BTreeMap::new(),
        })
    }

    /// Adds an event of the present time without service and instance.
    pub(super) fn add(&mut self, kind: EventKind) {
        self.push(new_event(None, kind));
    }

    /// Numbers an event of any source and publishes it.
    pub(super) fn push(&mut self, mut event: Event) {
        self.sequence += 1;
        event.sequence = self.sequence;
        self.count(&event);
        warn_of(&event);
        let event = Arc::new(event);
        self.files.write(Arc::clone(&event));
        self.log.push(event);
    }

    fn count(&mut self, event: &Event) {
        *self.counts.entry(event.kind.name()).or_default() += 1;
        let decision = match &event.kind {
            EventKind::Scaled { from, to, .. } => Some(if to > from { "out" } else { "in" }),
            EventKind::Resized { .. } => Some("resize"),
            EventKind::Relocated { .. } => Some("relocate"),
            _ => None,
        };
        if let (EventKind::State { to, .. }, Some(service)) = (&event.kind, &event.service)
            && *to == InstanceState::Failed
        {
            *self.failed.entry(service.clone()).or_default() += 1;
        }
        if let (Some(decision), Some(service)) = (decision, &event.service) {
            *self.decisions.entry((service.clone(), decision)).or_default() += 1;
        }
    }

    /// The number of the newest event.
    pub(super) fn newest(&self) -> u64 {
        self.sequence
    }

    /// Number of events by kind; contains every kind.
    pub(super) fn counts(&self) -> BTreeMap<String, u64> {
        let count = |kind: &&'static str| {
            let count = self.counts.get(*kind).copied().unwrap_or(0);
            ((*kind).to_owned(), count)
        };
        EventKind::NAMES.iter().map(count).collect()
    }

    /// Number of decisions of a service's autoscaler, by action.
    pub(super) fn decisions(&self, service: &str) -> BTreeMap<String, u64> {
        let count = |decision: &'static str| {
            let key = (service.to_owned(), decision);
            let count = self.decisions.get(&key).copied().unwrap_or(0);
            (decision.to_owned(), count)
        };
        DECISIONS.map(count).into()
    }

    /// Number of a service's instances that failed.
    pub(super) fn failed_instances(&self, service: &str) -> u64 {
        self.failed.get(service).copied().unwrap_or(0)
    }

    /// Events that are missing in the files.
    pub(super) fn unwritten(&self) -> Option<UnwrittenEvents> {
        self.files.unwritten()
    }

    pub(super) fn file_counters(&self) -> EventLogCounters {
        self.files.counters()
    }
}

/// Writes what went wrong, and its end, to inco's own log: whoever reads only that log misses no failure.
fn warn_of(event: &Event) {
    let service = event.service.as_deref();
    let instance = event.instance.map(|id| id.0);
    match &event.kind {
        EventKind::State {
            to: InstanceState::Failed,
            reason,
            ..
        } => tracing::warn!(service, instance, reason, "an instance failed"),
        EventKind::Failure { what, reason } => tracing::warn!(service, instance, what, reason, "a failure"),
        EventKind::Recovered { what, after_ms } => tracing::warn!(what, after_ms, "a failure has ended"),
        EventKind::Uplink {
            uplink,
            up: false,
            detail,
        } => tracing::warn!(uplink, detail, "an uplink is down"),
        EventKind::Action {
            action,
            by,
            request,
            refused: true,
            result,
        } if action == "reload" && request["check"] != true => {
            tracing::warn!(by, result, "a reload is refused")
        }
        _ => {}
    }
}

/// An event of the present time, without a number.
pub(super) fn new_event(service: Option<String>, kind: EventKind) -> Event {
    Event {
        sequence: 0,
        at: monotonic(),
        unix_ms: unix_ms(),
        service,
        instance: None,
        kind,
    }
}
