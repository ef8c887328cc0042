//! When what is looked at now and then is looked at again.

use model::Nanos;

/// Interval of the checks for closed ports: the end of a peer is detected well within 100 ms.
const PORTS_PERIOD: Nanos = Nanos::from_millis(5);
/// Interval of reading devices: reading a card's counters can take 0.1 ms.
const DEVICES_PERIOD: Nanos = Nanos::from_millis(100);

/// The next checks; the first ones are due at once.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Checks {
    ports: Nanos,
    devices: Nanos,
}

impl Checks {
    /// Whether ports are to be looked at now.
    pub(super) fn ports_are_due(&mut self, now: Nanos) -> bool {
        is_due(&mut self.ports, PORTS_PERIOD, now)
    }

    /// Whether devices are to be read now.
    pub(super) fn devices_are_due(&mut self, now: Nanos) -> bool {
        is_due(&mut self.devices, DEVICES_PERIOD, now)
    }
}

fn is_due(next: &mut Nanos, period: Nanos, now: Nanos) -> bool {
    let is_due = now >= *next;
    if is_due {
        *next = now + period;
    }
    is_due
}
