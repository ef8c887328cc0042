//! Follows the events of a bed, over all its incos: flows of an instance may move once an event names it as failed or
//! purged, and no others.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use api::Client;
use model::{Event, EventKind, InstanceState};
use traffic::Control;

/// Wait before the next attempt, without an inco.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Events of an inco that are read again after a connection has ended.
const EVENTS_READ: usize = 10_000;

/// What events said so far.
#[derive(Clone, Debug, Default)]
struct Followed {
    /// The inco, and its newest event that was seen.
    pid: u32,
    sequence: u64,
    /// Instances named as failed or purged since [`Follower::begin`], and why.
    named: BTreeMap<u32, String>,
}

/// A thread that reads events until it is dropped.
pub(crate) struct Follower {
    followed: Arc<Mutex<Followed>>,
    ends: Arc<AtomicBool>,
}

impl Follower {
    /// Follows the incos that answer on `socket`, one after the other.
    ///
    /// # Errors
    /// There is no thread.
    pub(crate) fn start(socket: PathBuf, control: Arc<Control>) -> Result<Follower> {
        let followed = Arc::new(Mutex::new(Followed::default()));
        let ends = Arc::new(AtomicBool::new(false));
        std::thread::Builder::new()
            .name("soak-events".to_owned())
            .spawn({
                let (followed, ends) = (Arc::clone(&followed), Arc::clone(&ends));
                // It ends with its inco's stream of events.
                move || {
                    while !ends.load(Ordering::Relaxed) {
                        let _ended = follow(&socket, &followed, &control);
                        std::thread::sleep(POLL_INTERVAL);
                    }
                }
            })
            .context("cannot start the thread that follows events")?;
        Ok(Follower { followed, ends })
    }

    /// Whether all events of this inco up to `sequence` were seen.
    pub(crate) fn has_seen(&self, pid: u32, sequence: u64) -> bool {
        let followed = lock(&self.followed);
        followed.pid == pid && followed.sequence >= sequence
    }

    /// Forgets the instances that were named so far; returns them with the reasons.
    pub(crate) fn begin(&self) -> BTreeMap<u32, String> {
        std::mem::take(&mut lock(&self.followed).named)
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
    }
}

fn lock(followed: &Mutex<Followed>) -> MutexGuard<'_, Followed> {
    followed.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads the events of one inco until it ends. Events that were seen before are skipped by their number.
fn follow(socket: &std::path::Path, followed: &Mutex<Followed>, control: &Control) -> Result<()> {
    let client = Client::connect(socket)?;
    let pid = client.status()?.pid;
    for event in client.follow_events(EVENTS_READ)? {
        let event = event?;
        let mut now = lock(followed);
        if now.pid != pid {
            now.pid = pid;
            now.sequence = 0;
        }
        if event.sequence <= now.sequence {
            continue;
        }
        if let Some((instance, reason)) = given_up(&event) {
            // Before anybody can read that the event was seen.
            control.expect_moves_from(instance);
            now.named.insert(instance, reason.to_owned());
        }
        now.sequence = event.sequence;
    }
    Ok(())
}

/// The instance whose flows may move from now on, and why.
fn given_up(event: &Event) -> Option<(u32, &str)> {
    let reason = match &event.kind {
        EventKind::State { to, reason, .. } if *to == InstanceState::Failed => reason,
        EventKind::Unpinned { reason } => reason,
        _ => return None,
    };
    Some((event.instance?.0, reason))
}
