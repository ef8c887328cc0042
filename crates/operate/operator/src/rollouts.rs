//! Rollouts of services of which a new configuration makes other instances. inco replaces none by a reload alone.
//!
//! 1. What is to be rolled out is noted in a file before the configuration counts as accepted. So no end of the operator
//!    loses it.
//! 2. Before inco is asked, the number of its newest event is noted. So the next operator sees whether that was heard.
//! 3. The note stays until inco says how the rollout has ended. An inco that has started again meanwhile is asked again.

use std::collections::{BTreeMap, BTreeSet};

use api::types::ServiceRow;
use api::{ApiError, Client};
use model::{Action, Event, EventKind, Rollout, RolloutState};

use crate::files::Files;

/// The services of the second text of which other instances are made than of the first one.
pub type Differ<'a> = &'a dyn Fn(&str, &str) -> Vec<String>;

/// How many events are looked through for a rollout.
const EVENTS: usize = 1000;

/// How far a rollout of this operator is: [`None`]: inco was not asked; else inco's newest event before it was asked.
type Asked = Option<u64>;

/// What is rolled out, and what is to be.
pub(crate) struct Rollouts<'a> {
    differ: Differ<'a>,
    files: &'a Files,
    pending: BTreeMap<String, Asked>,
    /// Those of which inco has said to this process that they have begun.
    begun: BTreeSet<String>,
    /// Why the last turn has failed.
    problem: Option<String>,
}

/// What is to be done of a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// An earlier one is under way, whose replacements may be of before the change.
    Cancel,
    Ask,
    Wait,
    /// It has ended.
    Forget,
}

/// `is_begun` says whether inco has begun the one that it was asked for.
fn next(asked: Asked, there: Option<&Rollout>, is_begun: impl FnOnce(u64) -> bool) -> Next {
    let is_running = there.is_some_and(|of| of.state == RolloutState::Running);
    match (asked, there) {
        (None, _) if is_running => Next::Cancel,
        (None, _) => Next::Ask,
        // inco has started again, which ends a rollout, or was never asked.
        (Some(_), None) => Next::Ask,
        (Some(_), Some(_)) if is_running => Next::Wait,
        (Some(newest), Some(_)) if is_begun(newest) => Next::Forget,
        (Some(_), Some(_)) => Next::Ask,
    }
}

/// Whether these events say that a rollout of the service has begun after that one. Those that do not reach back so far count
/// as if they did.
fn has_begun(events: &[Event], service: &str, after: u64) -> bool {
    let is_it =
        |of: &&Event| matches!(of.kind, EventKind::Rollout { .. }) && of.service.as_deref() == Some(service);
    let oldest = events.iter().map(|of| of.sequence).min();
    oldest.is_some_and(|of| of > after.saturating_add(1))
        || events.iter().filter(is_it).any(|of| of.sequence > after)
}

impl<'a> Rollouts<'a> {
    pub(crate) fn new(files: &'a Files, differ: Differ<'a>) -> Rollouts<'a> {
        let pending = files.rollouts().unwrap_or_else(|problem| {
            tracing::warn!(
                "{problem}; what an earlier operator has not rolled out stays as it is: use `inco rollout`"
            );
            BTreeMap::new()
        });
        Rollouts {
            differ,
            files,
            pending,
            begun: BTreeSet::new(),
            problem: None,
        }
    }

    /// Notes the services whose instances the change makes others of.
    pub(crate) fn note(&mut self, before: &str, after: &str) -> Result<(), String> {
        if before.is_empty() {
            return Ok(());
        }
        let services = (self.differ)(before, after);
        if services.is_empty() {
            return Ok(());
        }
        for service in services {
            self.begun.remove(&service);
            self.pending.insert(service, None);
        }
        self.files.keep_rollouts(&self.pending)
    }

    /// Does what is to be done now.
    pub(crate) fn advance(&mut self, client: &Client) {
        if self.pending.is_empty() {
            return;
        }
        let problem = self.turn(client).err();
        if problem.is_some() && problem != self.problem {
            let problem = problem.as_deref().unwrap_or_default();
            tracing::warn!("a rollout waits: {problem}");
        }
        self.problem = problem;
    }

    fn turn(&mut self, client: &Client) -> Result<(), String> {
        let rows = client.services().map_err(|error| error.to_string())?;
        let mut problem = Ok(());
        for (service, asked) in self.pending.clone() {
            let row = rows.iter().find(|row| row.name == service);
            // What is wrong with one of them holds up no other one.
            if let Err(of_this) = self.step(client, &service, asked, row) {
                problem = Err(of_this);
            }
        }
        problem
    }

    fn step(
        &mut self,
        client: &Client,
        service: &str,
        asked: Asked,
        row: Option<&ServiceRow>,
    ) -> Result<(), String> {
        let said = |error: ApiError| format!("{service}: {error}");
        let Some(row) = row else {
            // It went with its object.
            return self.set(service, None);
        };
        let has_said = self.begun.contains(service);
        let is_begun = |after| {
            let events = || client.events(EVENTS);
            has_said || events().is_ok_and(|events| has_begun(&events, service, after))
        };
        let act = |cancel| {
            let service = service.to_owned();
            client.act(&Action::Rollout { service, cancel }).map_err(said)
        };
        match next(asked, row.rollout.as_ref(), is_begun) {
            Next::Wait => return Ok(()),
            Next::Forget => return self.set(service, None),
            Next::Cancel => drop(act(true)?),
            Next::Ask => {}
        }
        let newest = client.status().map_err(said)?.events;
        self.set(service, Some(newest))?;
        let outcome = act(false)?;
        self.begun.insert(service.to_owned());
        tracing::info!("{}", outcome.result);
        Ok(())
    }

    /// Notes that inco is asked; [`None`]: that there is nothing to be done any more.
    fn set(&mut self, service: &str, asked: Asked) -> Result<(), String> {
        match asked {
            Some(_) => {
                self.pending.insert(service.to_owned(), asked);
            }
            None => {
                self.pending.remove(service);
                self.begun.remove(service);
            }
        }
        self.files.keep_rollouts(&self.pending)
    }

    /// How far that of a service is: whether it goes on, and what is to be said; [`None`]: none goes on, and none has
    /// failed.
    pub(crate) fn progress(&self, service: &str, there: Option<&Rollout>) -> Option<(bool, String)> {
        let is_pending = self.pending.contains_key(service);
        match there {
            Some(of) if of.state == RolloutState::Running => {
                let text = format!(
                    "{} of {} instances are replaced: {}",
                    of.replaced, of.total, of.reason
                );
                Some((true, text))
            }
            _ if is_pending => {
                let why = self.problem.as_deref().unwrap_or("inco is asked for it");
                Some((true, format!("its instances are to be replaced: {why}")))
            }
            Some(of) if of.state == RolloutState::Aborted => {
                let (replaced, total, why) = (of.replaced, of.total, &of.reason);
                Some((
                    false,
                    format!(
                        "the replacement of its instances has ended at {replaced} of {total}: {why}; the others go on as they \
                         are: correct the object, or use `inco rollout {service}` on the node"
                    ),
                ))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by it")]
    use std::path::PathBuf;

    use super::*;

    fn rollout(state: RolloutState) -> Rollout {
        Rollout {
            state,
            replaced: 1,
            total: 3,
            reason: "why".to_owned(),
        }
    }

    #[test]
    fn inco_is_asked_once_and_again_after_its_start() {
        use RolloutState::{Aborted, Finished, Running};
        let of = |asked, state: Option<RolloutState>, is_begun| {
            next(asked, state.map(rollout).as_ref(), |_| is_begun)
        };
        for state in [None, Some(Finished), Some(Aborted)] {
            assert_eq!(of(None, state, true), Next::Ask);
            // It was noted, and not said any more.
            assert_eq!(of(Some(7), state, false), Next::Ask);
        }
        assert_eq!(of(None, Some(Running), true), Next::Cancel);
        assert_eq!(of(Some(7), Some(Running), false), Next::Wait);
        assert_eq!(of(Some(7), Some(Finished), true), Next::Forget);
        assert_eq!(of(Some(7), Some(Aborted), true), Next::Forget);
        // inco has started again, and begun nothing since.
        assert_eq!(of(Some(7), None, true), Next::Ask);
    }

    #[test]
    fn what_is_noted_is_there_for_the_next_operator() {
        let folder = tempfile::tempdir().unwrap();
        let files = Files {
            base: PathBuf::new(),
            file: folder.path().join("inco.toml"),
        };
        let differ = |before: &str, after: &str| match before == after {
            true => Vec::new(),
            false => vec!["web".to_owned()],
        };
        let mut rollouts = Rollouts::new(&files, &differ);
        // Nothing was accepted before.
        rollouts.note("", "a").unwrap();
        rollouts.note("a", "a").unwrap();
        assert_eq!(rollouts.progress("web", None), None);
        rollouts.note("a", "b").unwrap();
        let again = || Rollouts::new(&files, &differ);
        assert_eq!(again().pending, BTreeMap::from([("web".to_owned(), None)]));
        rollouts.set("web", Some(7)).unwrap();
        assert_eq!(again().pending, BTreeMap::from([("web".to_owned(), Some(7))]));
        // Another change while inco replaces instances.
        rollouts.begun.insert("web".to_owned());
        rollouts.note("b", "c").unwrap();
        assert!(rollouts.begun.is_empty());
        assert_eq!(again().pending, BTreeMap::from([("web".to_owned(), None)]));
        rollouts.set("web", None).unwrap();
        assert!(again().pending.is_empty());
        // What cannot be read holds up nothing.
        std::fs::write(folder.path().join("inco.toml.rollouts"), "{").unwrap();
        assert!(again().pending.is_empty());
    }

    #[test]
    fn only_what_goes_on_and_what_has_failed_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let files = Files {
            base: PathBuf::new(),
            file: folder.path().join("inco.toml"),
        };
        let differ = |_: &str, _: &str| vec!["web".to_owned()];
        let mut rollouts = Rollouts::new(&files, &differ);
        let of = |rollouts: &Rollouts<'_>, state| rollouts.progress("web", Some(&rollout(state)));
        let running = Some((true, "1 of 3 instances are replaced: why".to_owned()));
        assert_eq!(of(&rollouts, RolloutState::Running), running);
        assert_eq!(of(&rollouts, RolloutState::Finished), None);
        let (goes_on, text) = of(&rollouts, RolloutState::Aborted).unwrap();
        assert!(!goes_on && text.contains("at 1 of 3: why"), "{text}");
        rollouts.note("a", "b").unwrap();
        assert!(of(&rollouts, RolloutState::Finished).is_some_and(|(goes_on, _)| goes_on));
    }
}
