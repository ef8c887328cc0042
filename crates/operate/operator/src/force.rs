//! Has inco take the configuration file: by a reload, or where a change needs a start, by a take-over of its own program,
//! in which no flow moves.

use std::path::Path;
use std::time::{Duration, Instant};

use api::{ApiError, Client};
use model::{Action, Event, EventKind};

/// Within how long the program must serve that takes over, in seconds.
const DEADLINE_S: u32 = 30;
/// How long the outcome of a take-over is waited for.
const OUTCOME: Duration = Duration::from_secs(90);
/// How often it is asked for.
const LOOK: Duration = Duration::from_millis(100);
/// How many events are looked through for it.
const EVENTS: usize = 1000;

/// How it has ended.
pub(crate) enum Applied {
    /// inco has it; what it says, unless nothing has changed.
    Done(Option<String>),
    /// inco refuses it and goes on with what it had: why.
    Refused(String),
    /// Nobody knows: why.
    Unknown(String),
}

fn failed(error: &ApiError) -> Applied {
    match error {
        ApiError::Refused(refusal) => Applied::Refused(refusal.to_string()),
        other => Applied::Unknown(other.to_string()),
    }
}

pub(crate) fn bring_in_force(client: &Client, program: &Path) -> Applied {
    let looked = match client.act(&Action::Reload { check: true }) {
        Ok(outcome) => outcome,
        Err(error) => return failed(&error),
    };
    if looked.changes.is_empty() {
        return Applied::Done(None);
    }
    if looked.changes.iter().any(|change| change.needs_restart) {
        return take_over(client, program);
    }
    match client.act(&Action::Reload { check: false }) {
        Ok(outcome) => Applied::Done(Some(outcome.result)),
        Err(error) => failed(&error),
    }
}

fn take_over(client: &Client, program: &Path) -> Applied {
    let newest = match client.status() {
        Ok(status) => status.events,
        Err(error) => return failed(&error),
    };
    let action = Action::Upgrade {
        binary: program.display().to_string(),
        deadline_s: DEADLINE_S,
    };
    if let Err(error) = client.act(&action) {
        return failed(&error);
    }
    let since = Instant::now();
    while since.elapsed() < OUTCOME {
        let events = client.again().and_then(|client| client.events(EVENTS));
        let outcome = events.ok().and_then(|events| {
            let later = events.iter().filter(|event| event.sequence > newest);
            later.filter_map(outcome).next()
        });
        if let Some(outcome) = outcome {
            return outcome;
        }
        std::thread::sleep(LOOK);
    }
    Applied::Unknown(format!(
        "inco does not say how its start ended within {} s; see its log",
        OUTCOME.as_secs()
    ))
}

fn outcome(event: &Event) -> Option<Applied> {
    match &event.kind {
        EventKind::Upgraded { pause_ms, .. } => Some(Applied::Done(Some(format!(
            "inco has started again with the configuration within {pause_ms} ms; no flow has moved"
        )))),
        EventKind::Failure { what, reason } if what == "upgrade" => Some(Applied::Refused(reason.clone())),
        _ => None,
    }
}
