//! What the ports of Open vSwitch count, put together to counters that only grow.
//!
//! A memif port of DPDK shows no counters while it has no peer: they are 0 then, and continue where they were when a
//! peer connects again. What it had counted since it was last read is hidden until then. Of an uplink that
//! is made up for by what the ports of the instances say.

use std::ops::AddAssign;

use model::Nanos;
use openflow::PortStats;

/// A port whose age has grown by so much less than time has passed is another one. Clocks and ages are coarse.
const AGE_TOLERANCE: Nanos = Nanos::from_millis(500);

/// When the counters were asked for, and when the answer was here: they were read in between.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) asked: Nanos,
    pub(super) answered: Nanos,
}

/// A counter of the switch's, which begins anew when its port does.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Growing {
    before: u64,
    last: u64,
    /// What of it is not counted any more.
    forgotten: u64,
}

impl Growing {
    fn read(&mut self, now: u64) {
        // 0: no peer is connected. Less than before: the counter was reset.
        if now > 0 && now < self.last {
            self.begin_anew();
        }
        self.last = self.last.max(now);
    }

    fn begin_anew(&mut self) {
        self.before += self.last;
        self.last = 0;
    }

    pub(super) const fn total(self) -> u64 {
        self.before + self.last - self.forgotten
    }

    const fn forget(&mut self) {
        self.forgotten = self.before + self.last;
    }
}

/// The counters of a port.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PortCounters {
    pub(super) received_packets: Growing,
    pub(super) received_bytes: Growing,
    pub(super) sent_packets: Growing,
    pub(super) sent_bytes: Growing,
    pub(super) dropped: Growing,
    /// Whether the last reading showed none of what was counted before.
    is_hidden: bool,
    /// The same of what was sent alone: no peer is there that takes any.
    is_unconnected: bool,
    duration_ns: u64,
    /// When the last answer was here; 0 before the first.
    answered: Nanos,
}

impl PortCounters {
    /// Whether this reading is of a port that was made since the last one. It may be older than the other one was
    /// then, where it could not be read for a while.
    pub(super) fn was_made_anew(&self, of: &PortStats, at: Asked) -> bool {
        let Some(grown) = of.duration_ns.checked_sub(self.duration_ns) else {
            return true;
        };
        let passed = at.asked.since(self.answered);
        self.answered != Nanos::ZERO && grown + AGE_TOLERANCE.0 < passed.0
    }

    /// Whether a port has lost its peer.
    pub(super) const fn is_left(&self) -> bool {
        self.is_hidden
    }

    /// Whether it has no peer that takes packets.
    pub(super) const fn is_unconnected(&self) -> bool {
        self.is_unconnected
    }

    /// Takes a reading in.
    pub(super) fn read(&mut self, of: &PortStats, at: Asked) {
        let is_new = self.was_made_anew(of, at);
        self.duration_ns = of.duration_ns;
        self.answered = at.answered;
        let counters = [
            (&mut self.received_packets, of.received_packets),
            (&mut self.received_bytes, of.received_bytes),
            (&mut self.sent_packets, of.sent_packets),
            (&mut self.sent_bytes, of.sent_bytes),
            (&mut self.dropped, of.sent_dropped),
        ];
        for (counter, now) in counters {
            if is_new {
                counter.begin_anew();
            }
            counter.read(known(now));
        }
        let was = |counter: &Growing, now: u64| known(now) == 0 && counter.total() > 0;
        self.is_unconnected = was(&self.sent_packets, of.sent_packets);
        self.is_hidden = self.is_unconnected || was(&self.received_packets, of.received_packets);
    }

    /// Counts from 0 again: another instance has the port.
    pub(super) const fn forget(&mut self) {
        self.received_packets.forget();
        self.received_bytes.forget();
        self.sent_packets.forget();
        self.sent_bytes.forget();
        self.dropped.forget();
    }

    /// Packets received, and sent, where `carried` is what the other ports have had of it at least.
    pub(super) fn carried(&self, carried: Carried) -> (u64, u64) {
        let (received, sent) = (self.received_packets.total(), self.sent_packets.total());
        if !self.is_hidden {
            // One port is read before the other: only of one that is at rest the others know better.
            return (received, sent);
        }
        let sent_by_others = carried.sent_or_dropped.saturating_sub(self.dropped.total());
        (received.max(carried.received), sent.max(sent_by_others))
    }
}

/// A counter that a switch does not have is all ones.
const fn known(counter: u64) -> u64 {
    if counter == u64::MAX { 0 } else { counter }
}

/// What the ports of instances, and the rules for what is of no service, say that an uplink has carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Carried {
    /// Packets that came by it.
    pub(super) received: u64,
    /// Packets that were given to it: it has sent them, or dropped them.
    pub(super) sent_or_dropped: u64,
}

impl AddAssign for Carried {
    fn add_assign(&mut self, more: Carried) {
        self.received += more.received;
        self.sent_or_dropped += more.sent_or_dropped;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asked and answered at that time.
    fn at(ms: u64) -> Asked {
        Asked {
            asked: Nanos::from_millis(ms),
            answered: Nanos::from_millis(ms),
        }
    }

    /// Of a port that was made at 0, unless it is younger than before.
    fn read(port: &mut PortCounters, age_ms: u64, received: u64, sent: u64) {
        let stats = PortStats {
            received_packets: received,
            sent_packets: sent,
            duration_ns: age_ms * 1_000_000,
            ..PortStats::default()
        };
        port.read(&stats, at(age_ms));
    }

    fn totals(port: &PortCounters) -> (u64, u64) {
        port.carried(Carried::default())
    }

    #[test]
    fn a_port_whose_peer_has_left_loses_nothing_and_counts_nothing_twice() {
        let mut port = PortCounters::default();
        read(&mut port, 10, 45_242, 45_242);
        // The last eight came after this reading; then the network left.
        read(&mut port, 20, 0, 0);
        assert_eq!(totals(&port), (45_242, 45_242));
        let by_instances = Carried {
            received: 45_250,
            sent_or_dropped: 45_250,
        };
        assert_eq!(port.carried(by_instances), (45_250, 45_250));
        // It is back: the switch counts on.
        read(&mut port, 30, 45_250, 45_250);
        assert_eq!(totals(&port), (45_250, 45_250));
        read(&mut port, 40, 45_350, 45_349);
        assert_eq!(totals(&port), (45_350, 45_349));
    }

    #[test]
    fn while_it_shows_its_counters_they_are_what_counts() {
        let mut port = PortCounters::default();
        read(&mut port, 10, 100, 90);
        // The instances' ports are read later, when more has passed.
        let later = Carried {
            received: 104,
            sent_or_dropped: 95,
        };
        assert_eq!(port.carried(later), (100, 90));
    }

    #[test]
    fn what_an_uplink_dropped_it_has_not_sent() {
        let mut port = PortCounters::default();
        read(&mut port, 10, 100, 90);
        let stats = PortStats {
            sent_dropped: 6,
            duration_ns: 20_000_000,
            ..PortStats::default()
        };
        port.read(&stats, at(20));
        let carried = Carried {
            received: 100,
            sent_or_dropped: 100,
        };
        assert_eq!(port.carried(carried), (100, 94));
    }

    #[test]
    fn a_port_that_was_made_anew_begins_at_nothing() {
        let mut port = PortCounters::default();
        read(&mut port, 1000, 3, 3);
        // More than before at once: its age alone tells.
        let of_age = |duration_ns| PortStats {
            duration_ns,
            ..PortStats::default()
        };
        assert!(port.was_made_anew(&of_age(5_000_000), at(1_010)));
        assert!(!port.was_made_anew(&of_age(1_010_000_000), at(1_010)));
        // No reading for 4 s. The port is older than the other one was, but was absent in between.
        assert!(port.was_made_anew(&of_age(2_000_000_000), at(5_000)));
        assert!(!port.was_made_anew(&of_age(5_000_000_000), at(5_000)));
        read(&mut port, 5, 7, 7);
        assert_eq!(totals(&port), (10, 10));
    }

    #[test]
    fn the_next_instance_of_a_port_counts_what_comes_after_the_last_ones() {
        let mut port = PortCounters::default();
        read(&mut port, 10, 100, 90);
        // Its instance has gone.
        read(&mut port, 20, 0, 0);
        port.forget();
        assert_eq!(totals(&port), (0, 0));
        read(&mut port, 30, 0, 0);
        read(&mut port, 40, 103, 95);
        assert_eq!(totals(&port), (3, 5));
        // A switch that was started again counts from 0.
        read(&mut port, 5, 2, 1);
        assert_eq!(totals(&port), (5, 6));
    }

    #[test]
    fn a_counter_that_was_reset_continues() {
        let mut port = PortCounters::default();
        read(&mut port, 10, 100, 100);
        read(&mut port, 20, 2, 1);
        assert_eq!(totals(&port), (102, 101));
    }

    #[test]
    fn a_counter_that_a_switch_does_not_have_counts_nothing() {
        let mut port = PortCounters::default();
        read(&mut port, 10, u64::MAX, 5);
        read(&mut port, 20, u64::MAX, 6);
        assert_eq!(totals(&port), (0, 6));
    }
}
