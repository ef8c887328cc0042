//! Checks that the packets of a flow stay on one instance.

/// How a returned packet was steered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steer {
    /// It has no instance stamp.
    Unstamped,
    /// It went to the flow's instance.
    Kept,
    /// The flow moved, as allowed.
    ExpectedMove,
    /// It went to another instance.
    MisSteered,
}

/// A flow's instance, by the stamps of its returned packets. If a move was allowed
/// ([`PinTracker::allow_move_from`], [`PinTracker::allow_move`]) the flow may move once. Otherwise every
/// packet to an instance other than the first is a mis-steer.
#[derive(Clone, Copy, Debug, Default)]
pub struct PinTracker {
    home: u32,
    previous: u32,
    /// Packets before this one may still come from `previous`.
    moved_at: u64,
    /// The flow's first packet after its idle timeout; 0 if there was none.
    idle_until: u64,
    allowed: bool,
    /// The first packet of a new connection between the same ends; 0 if there was none.
    began_again: u64,
    /// The instance, number and first of its mis-steered packets; 0 if they went to several instances.
    strayed_to: u32,
    strayed: u64,
    strayed_at: u64,
}

impl PinTracker {
    /// The flow's instance, 0 if unknown.
    pub fn home(&self) -> u32 {
        self.home
    }

    /// The flow was idle for its timeout before packet `sequence`, which may find a new instance.
    pub fn allow_move_from(&mut self, sequence: u64) {
        self.idle_until = sequence;
    }

    /// Packet `sequence` opens a new connection after the end of the previous one; it may get another instance.
    pub fn begin_again(&mut self, sequence: u64) {
        self.began_again = sequence;
    }

    /// The flow's instance was declared failed or purged: the flow may move once.
    pub fn allow_move(&mut self) {
        self.allowed = true;
    }

    /// The flow's instance was declared failed after the fact: packets to one other instance since then were
    /// the flow's one move, not mis-steers. Returns their number.
    pub fn allow_single_move(&mut self) -> u64 {
        if self.strayed == 0 || self.strayed_to == 0 {
            return 0;
        }
        self.previous = self.home;
        self.home = self.strayed_to;
        self.moved_at = self.strayed_at;
        self.strayed_to = 0;
        std::mem::take(&mut self.strayed)
    }

    /// Counts a mis-steer.
    fn mis_steers(&mut self, sequence: u64, instance: u32) -> Steer {
        if self.strayed == 0 {
            self.strayed_to = instance;
            self.strayed_at = sequence;
        } else if self.strayed_to != instance {
            self.strayed_to = 0;
        }
        self.strayed_at = self.strayed_at.min(sequence);
        self.strayed += 1;
        Steer::MisSteered
    }

    /// Records the instance of packet `sequence`.
    pub fn returned(&mut self, sequence: u64, instance: u32) -> Steer {
        if instance == 0 {
            return Steer::Unstamped;
        }
        if self.began_again != 0 && sequence >= self.began_again {
            if instance != self.home {
                self.previous = self.home;
                self.home = instance;
                self.moved_at = self.began_again;
            }
            self.began_again = 0;
            return Steer::Kept;
        }
        let came_back = self.idle_until != 0 && sequence >= self.idle_until;
        if self.home == 0 {
            self.home = instance;
        } else if instance != self.home {
            if came_back || self.allowed {
                self.previous = self.home;
                self.home = instance;
                self.moved_at = sequence;
                self.allowed = false;
                self.idle_until = 0;
                return Steer::ExpectedMove;
            }
            return if instance == self.previous && sequence < self.moved_at {
                Steer::Kept
            } else {
                self.mis_steers(sequence, instance)
            };
        }
        if came_back {
            self.idle_until = 0;
        }
        Steer::Kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_packet_away_from_home_is_a_mis_steer() {
        let mut p = PinTracker::default();
        let got: Vec<_> = [(0, 5), (1, 6), (2, 6), (3, 5), (4, 0)]
            .map(|(s, i)| p.returned(s, i))
            .to_vec();
        use Steer::{Kept, MisSteered, Unstamped};
        assert_eq!(got, [Kept, MisSteered, MisSteered, Kept, Unstamped]);
        assert_eq!(p.home(), 5);
    }

    #[test]
    fn a_declared_failure_allows_one_move_and_packets_in_flight() {
        let mut p = PinTracker::default();
        p.returned(0, 5);
        p.allow_move();
        assert_eq!(p.returned(1, 5), Steer::Kept);
        assert_eq!(p.returned(3, 6), Steer::ExpectedMove);
        assert_eq!(p.returned(2, 5), Steer::Kept, "sent before the move, came late");
        assert_eq!(p.returned(4, 5), Steer::MisSteered);
        assert_eq!(p.returned(5, 7), Steer::MisSteered, "only one move was allowed");
    }

    #[test]
    fn an_idle_flow_may_move_only_with_its_next_packet() {
        let mut p = PinTracker::default();
        p.returned(0, 5);
        p.allow_move_from(10);
        assert_eq!(p.returned(9, 6), Steer::MisSteered);
        assert_eq!(p.returned(10, 6), Steer::ExpectedMove);
        p.allow_move_from(20);
        assert_eq!(p.returned(20, 6), Steer::Kept);
        assert_eq!(
            p.returned(21, 7),
            Steer::MisSteered,
            "it had come back to its home"
        );
    }

    #[test]
    fn a_new_connection_has_an_instance_of_its_own() {
        let mut p = PinTracker::default();
        p.returned(0, 5);
        p.begin_again(3);
        assert_eq!(p.returned(3, 6), Steer::Kept);
        assert_eq!(p.returned(2, 5), Steer::Kept, "of the connection before, late");
        assert_eq!(p.returned(4, 5), Steer::MisSteered);
        p.begin_again(6);
        assert_eq!(p.returned(6, 6), Steer::Kept);
        assert_eq!(p.returned(7, 5), Steer::MisSteered, "it had its instance");
    }

    #[test]
    fn a_move_declared_late_is_not_a_mis_steer() {
        let mut pin = PinTracker::default();
        assert_eq!(pin.allow_single_move(), 0);
        for (sequence, instance) in [(1, 7), (2, 7), (3, 9), (4, 9)] {
            pin.returned(sequence, instance);
        }
        assert_eq!((pin.allow_single_move(), pin.home()), (2, 9));
        assert_eq!(pin.returned(5, 9), Steer::Kept);
        assert_eq!(pin.returned(6, 7), Steer::MisSteered, "it moved, and stays there");
        // One move is allowed, not several.
        let mut pin = PinTracker::default();
        for (sequence, instance) in [(1, 7), (2, 8), (3, 9)] {
            pin.returned(sequence, instance);
        }
        assert_eq!((pin.allow_single_move(), pin.home()), (0, 7));
    }
}
