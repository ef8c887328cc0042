//! What systemd is told, where it started us: that inco is ready, that its control loop turns, that it stops. Elsewhere
//! nothing is told to nobody.

use std::time::{Duration, Instant};

use sd_notify::NotifyState;

/// Tells systemd how inco is.
pub(crate) struct ServiceManager {
    /// Between two signs of life: half of what systemd waits for.
    interval: Option<Duration>,
    told: Instant,
    turns: u64,
    stops: bool,
}

impl ServiceManager {
    /// Says that inco is ready: the switch forwards, the API answers.
    pub(crate) fn ready() -> ServiceManager {
        tell(NotifyState::Ready);
        ServiceManager {
            interval: sd_notify::watchdog_enabled().map(|limit| limit / 2),
            told: Instant::now(),
            turns: 0,
            stops: false,
        }
    }

    /// Takes how often the control loop has turned; where it still turns, that is a sign of life.
    pub(crate) fn turned(&mut self, turns: u64) {
        let is_due = self
            .interval
            .is_some_and(|interval| self.told.elapsed() >= interval);
        if is_due && turns != self.turns {
            self.turns = turns;
            self.told = Instant::now();
            tell(NotifyState::Watchdog);
        }
    }

    /// Says, once, that inco stops.
    pub(crate) fn stopping(&mut self) {
        if !std::mem::replace(&mut self.stops, true) {
            tell(NotifyState::Stopping);
        }
    }
}

fn tell(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!(%error, "systemd could not be told how inco is");
    }
}
