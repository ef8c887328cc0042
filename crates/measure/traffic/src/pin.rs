//! Whether the packets of a flow stay with one instance.

/// What a returned packet says about its flow's pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steer {
    /// No instance stamped it.
    Unstamped,
    /// It went where the flow lives.
    Kept,
    /// The flow moved, and it was allowed to.
    ExpectedMove,
    /// It went to another instance.
    MisSteered,
}

/// Where a flow lives, by the stamps of its returned packets. A flow that was told it may move
/// ([`PinTracker::allow_move_from`], [`PinTracker::allow_move`]) may do so once; otherwise every packet that went to
/// another instance than the flow's first one is a mis-steer.
#[derive(Clone, Copy, Debug, Default)]
pub struct PinTracker {
    home: u32,
    previous: u32,
    /// Packets before this one may still come from `previous`.
    moved_at: u64,
    /// With this packet the flow came back after its idle timeout; 0 where it did not.
    idle_until: u64,
    allowed: bool,
    /// Where its mis-steered packets went, how many they are, and the first one; 0 where they went to several places.
    strayed_to: u32,
    strayed: u64,
    strayed_at: u64,
}

impl PinTracker {
    /// Instance where the flow lives, 0 where nothing is known.
    pub fn home(&self) -> u32 {
        self.home
    }

    /// The flow was silent for its idle timeout before packet `sequence`: that packet may find a new home.
    pub fn allow_move_from(&mut self, sequence: u64) {
        self.idle_until = sequence;
    }

    /// The flow's instance was declared failed (or purged): it may move once, whenever that is.
    pub fn allow_move(&mut self) {
        self.allowed = true;
    }

    /// The flow's instance was declared failed, some time after it did fail: packets that went to one other instance since were no
    /// mis-steers, but the flow's one move. Gives how many they were.
    pub fn forgive_move(&mut self) -> u64 {
        if self.strayed == 0 || self.strayed_to == 0 {
            return 0;
        }
        self.previous = self.home;
        self.home = self.strayed_to;
        self.moved_at = self.strayed_at;
        self.strayed_to = 0;
        std::mem::take(&mut self.strayed)
    }

    /// Notes a mis-steer.
    fn strays(&mut self, sequence: u64, instance: u32) -> Steer {
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

    /// Records where packet `sequence` went.
    pub fn returned(&mut self, sequence: u64, instance: u32) -> Steer {
        if instance == 0 {
            return Steer::Unstamped;
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
                self.strays(sequence, instance)
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
    fn a_declared_failure_allows_one_move_and_packets_still_under_way() {
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
    fn an_idle_flow_may_move_only_with_the_packet_that_ends_its_silence() {
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
    fn a_move_that_is_declared_late_is_no_mis_steer() {
        let mut pin = PinTracker::default();
        assert_eq!(pin.forgive_move(), 0);
        for (sequence, instance) in [(1, 7), (2, 7), (3, 9), (4, 9)] {
            pin.returned(sequence, instance);
        }
        assert_eq!((pin.forgive_move(), pin.home()), (2, 9));
        assert_eq!(pin.returned(5, 9), Steer::Kept);
        assert_eq!(pin.returned(6, 7), Steer::MisSteered, "it moved, and stays there");
        // One move is allowed, not a walk through several instances.
        let mut pin = PinTracker::default();
        for (sequence, instance) in [(1, 7), (2, 8), (3, 9)] {
            pin.returned(sequence, instance);
        }
        assert_eq!((pin.forgive_move(), pin.home()), (0, 7));
    }
}
