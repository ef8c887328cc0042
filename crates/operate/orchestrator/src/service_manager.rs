//! Notifies systemd of readiness, life signs and shutdown, if systemd started inco. Does nothing otherwise.

use std::time::{Duration, Instant};

use sd_notify::NotifyState;

/// Whether systemd started this process as a service, and may start it again.
pub(crate) fn may_start_again() -> bool {
    let is_set = |name| std::env::var_os(name).is_some();
    is_set("INVOCATION_ID") && is_set("NOTIFY_SOCKET")
}

/// Sends notifications to systemd.
pub(crate) struct ServiceManager {
    /// Interval of life signs: half of systemd's watchdog timeout.
    interval: Option<Duration>,
    notified: Instant,
    turns: u64,
    stops: bool,
}

impl ServiceManager {
    /// Reports readiness: the switch forwards and the API answers.
    pub(crate) fn ready() -> ServiceManager {
        tell(NotifyState::Ready);
        ServiceManager {
            interval: sd_notify::watchdog_enabled().map(|limit| limit / 2),
            notified: Instant::now(),
            turns: 0,
            stops: false,
        }
    }

    /// Takes the loop's count of turns. Sends a life sign if it has increased.
    pub(crate) fn turned(&mut self, turns: u64) {
        let is_due = self
            .interval
            .is_some_and(|interval| self.notified.elapsed() >= interval);
        if is_due && turns != self.turns {
            self.turns = turns;
            self.notified = Instant::now();
            tell(NotifyState::Watchdog);
        }
    }

    /// Reports the shutdown, once.
    pub(crate) fn stopping(&mut self) {
        if !std::mem::replace(&mut self.stops, true) {
            tell(NotifyState::Stopping);
        }
    }
}

pub(crate) fn tell(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!(%error, "cannot send the status to systemd");
    }
}
