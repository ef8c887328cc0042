//! Checks that the packets of a flow stay on one instance.

use std::collections::VecDeque;

/// Earlier connections of a flow that are remembered while packets of them have not returned. Packets of older ones
/// are not judged.
pub const EARLIER_LIMIT: usize = 1024;

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

/// The packets of one connection, and their instance.
#[derive(Clone, Copy, Debug, Default)]
struct Connection {
    /// Number of its first packet in the flow.
    first: u64,
    /// Packets of it that returned.
    returned: u64,
    home: u32,
    previous: u32,
    /// Packets before this one may still come from `previous`.
    moved_at: u64,
    /// The instance, number and first of its mis-steered packets; 0 if they went to several instances.
    strayed_to: u32,
    strayed: u64,
    strayed_at: u64,
    /// By direction, the number after that of its newest packet that returned.
    newest: [u64; 2],
}

impl Connection {
    /// Moves to another instance with packet `sequence`.
    fn moves(&mut self, sequence: u64, instance: u32) {
        self.previous = std::mem::replace(&mut self.home, instance);
        self.moved_at = sequence;
    }

    fn mis_steers(&mut self, sequence: u64, instance: u32) {
        if self.strayed == 0 {
            self.strayed_to = instance;
            self.strayed_at = sequence;
        } else if self.strayed_to != instance {
            self.strayed_to = 0;
        }
        self.strayed_at = self.strayed_at.min(sequence);
        self.strayed += 1;
    }

    fn returned(&mut self, sequence: u64, instance: u32, given_up: &[u32]) -> Steer {
        self.returned += 1;
        if self.home == 0 {
            self.home = instance;
        } else if instance != self.home && (instance != self.previous || sequence >= self.moved_at) {
            if given_up.contains(&self.home) {
                self.moves(sequence, instance);
                return Steer::ExpectedMove;
            }
            self.mis_steers(sequence, instance);
            return Steer::MisSteered;
        }
        Steer::Kept
    }

    /// See [`PinTracker::forgive`].
    fn forgive(&mut self, instance: u32) -> u64 {
        if self.home != instance || self.strayed == 0 || self.strayed_to == 0 {
            return 0;
        }
        let (at, to) = (self.strayed_at, self.strayed_to);
        self.moves(at, to);
        self.strayed_to = 0;
        std::mem::take(&mut self.strayed)
    }
}

/// A flow's instance, by the stamps of its returned packets. Every packet to an instance other than the first is a
/// mis-steer, unless that instance was given up: then the flow may move once. A connection that begins between the
/// same ends ([`PinTracker::begin_again`]) has an instance of its own. Packets of several connections may be under way
/// at once: each is judged by its own.
#[derive(Clone, Debug, Default)]
pub struct PinTracker {
    current: Connection,
    /// Oldest first.
    earlier: VecDeque<Connection>,
}

impl PinTracker {
    /// The flow's instance, 0 if unknown: that of the last connection of which a packet has returned.
    pub fn home(&self) -> u32 {
        match (self.current.home, self.earlier.back()) {
            (0, Some(earlier)) => earlier.home,
            (home, _) => home,
        }
    }

    /// Packet `sequence` begins a new connection; it may get another instance. Call it when that packet is sent.
    pub fn begin_again(&mut self, sequence: u64) {
        let next = Connection {
            first: sequence,
            ..Connection::default()
        };
        let ended = std::mem::replace(&mut self.current, next);
        self.earlier.push_back(ended);
        // The oldest of which all packets are back, and what is over the limit. The last one stays: it may be the home.
        while self.earlier.len() > 1
            && (self.earlier[0].returned >= self.earlier[1].first - self.earlier[0].first
                || self.earlier.len() > EARLIER_LIMIT)
        {
            self.earlier.pop_front();
        }
    }

    /// Instance `instance` was given up, as told after the fact: packets of its connections to one other instance
    /// were their one move, not mis-steers. Returns the moves and those packets.
    pub fn forgive(&mut self, instance: u32) -> (u64, u64) {
        let all = self.earlier.iter_mut().chain([&mut self.current]);
        let forgiven = all.map(|connection| connection.forgive(instance));
        forgiven
            .filter(|packets| *packets > 0)
            .fold((0, 0), |(moves, sum), packets| (moves + 1, sum + packets))
    }

    /// The connection of packet `sequence`; [`None`] if it is not remembered.
    fn connection(&mut self, sequence: u64) -> Option<&mut Connection> {
        if sequence >= self.current.first {
            return Some(&mut self.current);
        }
        let after = self
            .earlier
            .partition_point(|connection| connection.first <= sequence);
        self.earlier.get_mut(after.checked_sub(1)?)
    }

    /// Whether a later packet of the same connection and direction (0 or 1) has returned before packet `sequence`.
    /// Packets of two connections may pass each other: they may have two instances.
    pub fn is_overtaken(&mut self, sequence: u64, direction: usize) -> bool {
        let Some(newest) = self
            .connection(sequence)
            .and_then(|of| of.newest.get_mut(direction))
        else {
            return false;
        };
        let is_overtaken = sequence < *newest;
        *newest = (sequence + 1).max(*newest);
        is_overtaken
    }

    /// Records the instance of packet `sequence`. `given_up` are the instances whose flows may move.
    pub fn returned(&mut self, sequence: u64, instance: u32, given_up: &[u32]) -> Steer {
        if instance == 0 {
            return Steer::Unstamped;
        }
        match self.connection(sequence) {
            Some(connection) => connection.returned(sequence, instance, given_up),
            None => Steer::Kept,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_packet_away_from_home_is_a_mis_steer() {
        let mut p = PinTracker::default();
        let got: Vec<_> = [(0, 5), (1, 6), (2, 6), (3, 5), (4, 0)]
            .map(|(s, i)| p.returned(s, i, &[]))
            .to_vec();
        use Steer::{Kept, MisSteered, Unstamped};
        assert_eq!(got, [Kept, MisSteered, MisSteered, Kept, Unstamped]);
        assert_eq!(p.home(), 5);
    }

    #[test]
    fn a_given_up_instance_allows_one_move_and_packets_in_flight() {
        let mut p = PinTracker::default();
        p.returned(0, 5, &[]);
        assert_eq!(p.returned(1, 5, &[5]), Steer::Kept);
        assert_eq!(p.returned(3, 6, &[5]), Steer::ExpectedMove);
        assert_eq!(
            p.returned(2, 5, &[5]),
            Steer::Kept,
            "sent before the move, came late"
        );
        assert_eq!(p.returned(4, 5, &[5]), Steer::MisSteered);
        assert_eq!(
            p.returned(5, 7, &[5]),
            Steer::MisSteered,
            "only one move was allowed"
        );
        assert_eq!(
            p.returned(6, 7, &[5, 6]),
            Steer::ExpectedMove,
            "the next one was given up, too"
        );
    }

    #[test]
    fn no_other_instance_may_be_left() {
        let mut p = PinTracker::default();
        p.returned(0, 5, &[]);
        assert_eq!(p.returned(1, 6, &[6, 7]), Steer::MisSteered);
        assert_eq!(p.forgive(6), (0, 0));
    }

    #[test]
    fn a_new_connection_has_an_instance_of_its_own() {
        let mut p = PinTracker::default();
        p.returned(0, 5, &[]);
        p.begin_again(3);
        assert_eq!(p.home(), 5);
        assert_eq!(p.returned(3, 6, &[]), Steer::Kept);
        assert_eq!(
            p.returned(2, 5, &[]),
            Steer::Kept,
            "of the connection before, late"
        );
        assert_eq!(
            p.returned(1, 6, &[]),
            Steer::MisSteered,
            "of the connection before, astray"
        );
        assert_eq!(p.returned(4, 5, &[]), Steer::MisSteered);
        p.begin_again(6);
        assert_eq!(p.returned(6, 6, &[]), Steer::Kept);
        assert_eq!(p.returned(7, 5, &[]), Steer::MisSteered, "it had its instance");
    }

    /// A refused connection is two packets, so that many fit into the rings.
    #[test]
    fn many_connections_under_way_at_once_are_judged_each_by_its_own() {
        let mut p = PinTracker::default();
        let count = EARLIER_LIMIT as u64;
        (1..count).for_each(|n| p.begin_again(2 * n));
        let instance = |n: u64| 1 + (n % 3) as u32;
        for n in 0..count {
            assert_eq!(p.returned(2 * n, instance(n), &[]), Steer::Kept, "{n}");
            assert_eq!(
                p.returned(2 * n + 1, instance(n + 1), &[]),
                Steer::MisSteered,
                "{n}"
            );
        }
        // Those that are back are forgotten: the memory does not grow with the run.
        for n in count..10 * count {
            p.begin_again(2 * n);
            assert_eq!(p.returned(2 * n, 1, &[]), Steer::Kept);
            assert_eq!(p.returned(2 * n + 1, 1, &[]), Steer::Kept);
        }
        assert_eq!(p.earlier.len(), 1);
    }

    #[test]
    fn packets_are_overtaken_within_their_connection_alone() {
        let mut p = PinTracker::default();
        assert!(!p.is_overtaken(0, 0) && !p.is_overtaken(2, 0));
        assert!(p.is_overtaken(1, 0), "by packet 2");
        assert!(!p.is_overtaken(1, 1), "the other direction");
        p.begin_again(5);
        assert!(!p.is_overtaken(6, 0));
        assert!(!p.is_overtaken(4, 0), "that was another connection");
        assert!(p.is_overtaken(3, 0), "by packet 4 of its own");
        assert!(p.is_overtaken(5, 0));
    }

    #[test]
    fn a_move_that_is_told_late_is_not_a_mis_steer() {
        let mut pin = PinTracker::default();
        assert_eq!(pin.forgive(7), (0, 0));
        for (sequence, instance) in [(1, 7), (2, 7), (3, 9), (4, 9)] {
            pin.returned(sequence, instance, &[]);
        }
        assert_eq!((pin.forgive(8), pin.forgive(7), pin.home()), ((0, 0), (1, 2), 9));
        assert_eq!(pin.returned(5, 9, &[7]), Steer::Kept);
        assert_eq!(
            pin.returned(6, 7, &[7]),
            Steer::MisSteered,
            "it moved, and stays there"
        );
        // One move is allowed, not several.
        let mut pin = PinTracker::default();
        for (sequence, instance) in [(1, 7), (2, 8), (3, 9)] {
            pin.returned(sequence, instance, &[]);
        }
        assert_eq!((pin.forgive(7), pin.home()), ((0, 0), 7));
    }
}
