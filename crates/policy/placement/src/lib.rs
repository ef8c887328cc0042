//! Chooses the place of a service's next instance, and the place where one is taken away first. It is pure: it knows
//! no engine, no container and no clock, and keeps no state.
//!
//! Key types: [`Placement`] (the rule of a service), [`Room`] (a place as it is now), [`PlaceId`],
//! [`order`] (which place comes first for a goal), [`estimate`](mod@estimate) (a model of what a load takes at each place).
//!
//! 1. The controller counts what is at each place: a [`Room`] for each, in the order of the file, with its rank for the
//!    goal of the service.
//! 2. [`Placement::choose`] gives the place of the next instance, or says why there is none.
//! 3. [`Placement::leaves`] gives the place from which an instance leaves first.
#![forbid(unsafe_code)]

pub mod estimate;
pub mod order;

use std::fmt;

pub use model::PlaceId;
pub use order::{Costs, Goal};

/// The share of the load at which a place collapses up to which it is filled: a margin for bursts, and for the error of
/// what its owner knows. InReal's BlueField-2 collapses at 40 Mpps, and is given 36 Mpps.
pub const GUARD: f64 = 0.9;

/// Where the instances of a service run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// At the first place, in the order of [`Room::rank`], that has room. A later one is used while all before it are
    /// full, and is left first.
    #[default]
    Auto,
    /// At the place with the most room in proportion to its limits.
    Split,
    /// At this place only.
    At(PlaceId),
}

/// What is at a place now, and its limits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Room {
    /// Whether its engine does not answer. Nothing can be created there.
    pub is_down: bool,
    /// Instances of all services there, without those that leave.
    pub instances: u32,
    /// Most instances; [`None`] for no limit.
    pub instance_limit: Option<u32>,
    /// Packets per second that its instances can process together, or that they get if that is more.
    pub pps: f64,
    /// Most packets per second; [`None`] for no limit.
    pub pps_limit: Option<f64>,
    /// The part of [`Needs::pps`] and [`Needs::cpus`] that an instance has there, above 0 and at most 1.
    pub share: f64,
    /// Packets per second of a whole CPU there; [`None`] if [`Needs::pps`] says what an instance processes.
    pub core_pps: Option<f64>,
    /// Cores there that no instance has to itself; [`None`] if the place has no list of its cores.
    pub free_cores: Option<u32>,
    /// Bytes per second on the link to it for [`Room::pps`], in one direction.
    pub link_bytes_per_s: f64,
    /// Most bytes per second on that link; [`None`] for no limit.
    pub link_limit: Option<f64>,
    /// Its position in the order in which [`Placement::Auto`] fills the places: see [`order::ranks`]. Of equal ones, the
    /// first in the configuration comes first.
    pub rank: u8,
}

/// Empty, without limits.
impl Default for Room {
    fn default() -> Self {
        Room {
            is_down: false,
            instances: 0,
            instance_limit: None,
            pps: 0.0,
            pps_limit: None,
            share: 1.0,
            core_pps: None,
            free_cores: None,
            link_bytes_per_s: 0.0,
            link_limit: None,
            rank: 0,
        }
    }
}

/// What a new instance needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Needs {
    /// Packets per second that it can process; 0 while that is unknown.
    pub pps: f64,
    /// CPUs that it has.
    pub cpus: f64,
    /// Cores that it is to have to itself.
    pub cores: u32,
    /// Mean bytes of its packets on a link, with what Ethernet adds; 0 while that is unknown.
    pub wire_bytes: f64,
}

/// One CPU, shared with others, and an unknown capacity.
impl Default for Needs {
    fn default() -> Self {
        Needs {
            pps: 0.0,
            cpus: 1.0,
            cores: 0,
            wire_bytes: 0.0,
        }
    }
}

impl Room {
    /// Packets per second that one more instance can process there; 0 while that is unknown.
    fn pps_of(&self, needs: Needs) -> f64 {
        self.share * self.core_pps.map_or(needs.pps, |pps| pps * needs.cpus)
    }

    /// What it lacks for one more instance; [`None`] if there is room. The first one on a link may be able to process more
    /// than it carries.
    pub fn lacks(&self, needs: Needs) -> Option<Lack> {
        let has_pps = self
            .pps_limit
            .is_none_or(|limit| self.pps < limit && self.pps + self.pps_of(needs) <= limit);
        let link = self.link_bytes_per_s + self.pps_of(needs) * needs.wire_bytes;
        let has_link = self
            .link_limit
            .is_none_or(|limit| self.link_bytes_per_s <= 0.0 || link <= limit);
        if self.instance_limit.is_some_and(|limit| self.instances >= limit) {
            Some(Lack::Instances)
        } else if !has_pps {
            Some(Lack::Capacity)
        } else if !has_link {
            Some(Lack::Link)
        } else if needs.cores > 0 && self.free_cores.is_none_or(|free| free < needs.cores) {
            Some(Lack::Cores)
        } else {
            None
        }
    }

    /// Whether there is room for one more instance.
    pub fn fits(&self, needs: Needs) -> bool {
        self.lacks(needs).is_none()
    }

    /// How full it is with one more instance, or with as many as now if `needs` is [`None`]: 1 is at its limit. 0 where
    /// it has no limit.
    fn fill(&self, needs: Option<Needs>) -> f64 {
        let (more, more_pps) = needs.map_or((0, 0.0), |needs| (1, self.pps_of(needs)));
        let more_bytes = needs.map_or(0.0, |needs| more_pps * needs.wire_bytes);
        let of_instances = self
            .instance_limit
            .map(|limit| f64::from(self.instances + more) / f64::from(limit.max(1)));
        let of_pps = self.pps_limit.map(|limit| (self.pps + more_pps) / limit);
        let of_link = self
            .link_limit
            .map(|limit| (self.link_bytes_per_s + more_bytes) / limit);
        let all = [of_instances, of_pps, of_link];
        all.into_iter().flatten().fold(0.0, f64::max)
    }
}

/// What a place lacks for one more instance. Of several, the first of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// It has as many instances as it may have.
    Instances,
    /// Its instances would process more packets per second than it may have.
    Capacity,
    /// Its link would carry more than it can.
    Link,
    /// Too few of its cores are free.
    Cores,
}

/// Why no place takes one more instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRoom {
    /// Each permitted place is at a limit.
    Full,
    /// Too few cores are free for one that has cores to itself.
    Cores,
    /// The engine of a permitted place does not answer, and the others are full.
    Down,
}

impl fmt::Display for NoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NoRoom::Full => "its places are full",
            NoRoom::Cores => "too few cores are free at its places",
            NoRoom::Down => "no engine of its places answers that has room",
        })
    }
}

impl Placement {
    /// The place of the next instance. `rooms` are all places in the order of the configuration.
    ///
    /// # Errors
    /// No permitted place has room and answers.
    pub fn choose(self, rooms: &[Room], needs: Needs) -> Result<PlaceId, NoRoom> {
        let fitting = || self.permitted(rooms).filter(|(_, room)| room.fits(needs));
        let mut up = fitting().filter(|(_, room)| !room.is_down);
        let chosen = match self {
            // Of equal ones, the first.
            Placement::Auto => up.min_by_key(|(_, room)| room.rank),
            Placement::At(_) => up.next(),
            Placement::Split => up.min_by(|(_, a), (_, b)| {
                let fill = |room: &Room| room.fill(Some(needs));
                fill(a).total_cmp(&fill(b))
            }),
        };
        chosen.map(|(place, _)| place).ok_or_else(|| {
            let no_cores = Needs { cores: 0, ..needs };
            if fitting().next().is_some() {
                NoRoom::Down
            } else if self.permitted(rooms).any(|(_, room)| room.fits(no_cores)) {
                NoRoom::Cores
            } else {
                NoRoom::Full
            }
        })
    }

    /// The place from which one instance leaves first, of those where `can` says that one can.
    pub fn leaves(self, rooms: &[Room], can: impl Fn(PlaceId) -> bool) -> Option<PlaceId> {
        let candidates = || all(rooms).filter(|(place, _)| can(*place));
        let last = match self {
            // Of equal ones, the last.
            Placement::Auto => candidates().max_by_key(|(_, room)| room.rank),
            // Those that an earlier rule put elsewhere leave first.
            Placement::At(own) => candidates()
                .find(|(place, _)| *place != own)
                .or_else(|| candidates().next()),
            // The last of those that are equally full, so that it is the reverse of `choose`.
            Placement::Split => candidates().max_by(|(_, a), (_, b)| a.fill(None).total_cmp(&b.fill(None))),
        };
        last.map(|(place, _)| place)
    }

    /// How much an instance there is preferred where there are several to take into use: the smallest first.
    pub fn rank(self, rooms: &[Room], place: PlaceId) -> (u8, u8) {
        match self {
            Placement::Auto => (rooms.get(place.index()).map_or(0, |room| room.rank), place.0),
            Placement::At(own) => (u8::from(place != own), 0),
            Placement::Split => (0, 0),
        }
    }

    /// Whether the service may have instances there.
    pub fn permits(self, place: PlaceId) -> bool {
        match self {
            Placement::Auto | Placement::Split => true,
            Placement::At(own) => place == own,
        }
    }

    fn permitted(self, rooms: &[Room]) -> impl Iterator<Item = (PlaceId, &Room)> {
        all(rooms).filter(move |(place, _)| self.permits(*place))
    }
}

fn all(rooms: &[Room]) -> impl DoubleEndedIterator<Item = (PlaceId, &Room)> {
    rooms
        .iter()
        .enumerate()
        .map(|(index, room)| (PlaceId(index as u8), room))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CARD: PlaceId = PlaceId(0);
    const HOST: PlaceId = PlaceId(1);

    fn limited(instances: u32, limit: u32) -> Room {
        Room {
            instances,
            instance_limit: Some(limit),
            ..Room::default()
        }
    }

    fn free() -> Room {
        Room::default()
    }

    fn one() -> Needs {
        Needs::default()
    }

    #[test]
    fn auto_fills_the_places_in_their_order() {
        let mut rooms = [limited(0, 2), limited(0, 2), free()];
        let mut chosen = Vec::new();
        for _ in 0..6 {
            let place = Placement::Auto.choose(&rooms, one()).unwrap();
            rooms[place.index()].instances += 1;
            chosen.push(place.0);
        }
        assert_eq!(chosen, [0, 0, 1, 1, 2, 2]);
    }

    #[test]
    fn auto_leaves_the_last_place_first() {
        let rooms = [limited(2, 2), limited(1, 2), free()];
        let has = |place: PlaceId| rooms[place.index()].instances > 0;
        assert_eq!(Placement::Auto.leaves(&rooms, has), Some(HOST));
        assert_eq!(Placement::Auto.leaves(&rooms, |place| place == CARD), Some(CARD));
        assert_eq!(Placement::Auto.leaves(&rooms, |_| false), None);
    }

    #[test]
    fn split_spreads_in_proportion_to_the_limits() {
        let mut rooms = [limited(0, 2), limited(0, 4)];
        for _ in 0..6 {
            let place = Placement::Split.choose(&rooms, one()).unwrap();
            rooms[place.index()].instances += 1;
            // Neither place is more than one instance ahead of the other.
            let ahead = f64::from(rooms[0].instances) / 2.0 - f64::from(rooms[1].instances) / 4.0;
            assert!(ahead.abs() <= 0.5, "{rooms:?}");
        }
        assert_eq!(rooms, [limited(2, 2), limited(4, 4)]);
        assert_eq!(Placement::Split.choose(&rooms, one()), Err(NoRoom::Full));
        assert_eq!(
            Placement::Split.leaves(&[limited(2, 2), limited(1, 4)], |_| true),
            Some(CARD)
        );
        assert_eq!(
            Placement::Split.leaves(&rooms, |_| true),
            Some(HOST),
            "the last of equals"
        );
    }

    #[test]
    fn a_place_takes_packets_up_to_its_limit() {
        let at = |pps: f64| Room {
            pps,
            pps_limit: Some(36e6),
            ..Room::default()
        };
        let needs = |pps: f64| Needs {
            pps,
            ..Needs::default()
        };
        for (pps, more, place) in [
            (0.0, 12e6, CARD),
            (24e6, 12e6, CARD),
            (24e6, 13e6, HOST),
            // While the capacity is unknown, what it gets now counts.
            (35e6, 0.0, CARD),
            (36e6, 0.0, HOST),
        ] {
            let rooms = [at(pps), free()];
            assert_eq!(
                Placement::Auto.choose(&rooms, needs(more)),
                Ok(place),
                "{pps} {more}"
            );
        }
    }

    #[test]
    fn the_order_is_that_of_the_ranks() {
        let ranked = |rank, of: Room| Room { rank, ..of };
        let rooms = [ranked(1, free()), ranked(0, limited(1, 2))];
        assert_eq!(Placement::Auto.choose(&rooms, one()), Ok(HOST));
        assert_eq!(Placement::Auto.leaves(&rooms, |_| true), Some(CARD));
        assert!(Placement::Auto.rank(&rooms, HOST) < Placement::Auto.rank(&rooms, CARD));
        let full = [ranked(1, free()), ranked(0, limited(2, 2))];
        assert_eq!(Placement::Auto.choose(&full, one()), Ok(CARD));
    }

    #[test]
    fn a_link_takes_what_it_carries_and_at_least_one_instance() {
        let needs = Needs {
            pps: 3.0,
            wire_bytes: 100.0,
            ..Needs::default()
        };
        let of = |link_bytes_per_s| Room {
            link_bytes_per_s,
            link_limit: Some(1_000.0),
            ..free()
        };
        let room = of(600.0);
        assert!(room.fits(needs) && !of(701.0).fits(needs));
        let larger = Needs { pps: 30.0, ..needs };
        assert!(
            of(0.0).fits(larger) && !of(1.0).fits(larger),
            "the first one fills it"
        );
        assert!(
            of(999.0).fits(Needs {
                wire_bytes: 0.0,
                ..needs
            }),
            "of unknown length"
        );
        assert_eq!(Placement::Split.choose(&[of(600.0), of(300.0)], needs), Ok(HOST));
    }

    #[test]
    fn what_a_core_processes_counts_where_it_is_known() {
        let card = Room {
            pps_limit: Some(10e6),
            core_pps: Some(4e6),
            share: 0.5,
            ..Room::default()
        };
        let needs = |cpus| Needs {
            pps: 100e6,
            cpus,
            ..Needs::default()
        };
        let rooms = [card, free()];
        assert_eq!(Placement::Auto.choose(&rooms, needs(5.0)), Ok(CARD));
        assert_eq!(Placement::Auto.choose(&rooms, needs(5.1)), Ok(HOST));
    }

    #[test]
    fn a_place_whose_engine_is_down_gets_nothing() {
        let down = Room {
            is_down: true,
            ..free()
        };
        let rooms = [down, free()];
        assert_eq!(Placement::Auto.choose(&rooms, one()), Ok(HOST));
        assert_eq!(Placement::Split.choose(&rooms, one()), Ok(HOST));
        assert_eq!(Placement::At(CARD).choose(&rooms, one()), Err(NoRoom::Down));
        assert_eq!(Placement::At(HOST).choose(&rooms, one()), Ok(HOST));
        let rooms = [down, limited(1, 1)];
        assert_eq!(Placement::Auto.choose(&rooms, one()), Err(NoRoom::Down));
    }

    #[test]
    fn own_cores_must_be_free() {
        let cores = |free_cores| Room {
            free_cores,
            ..Room::default()
        };
        let needs = Needs {
            cores: 2,
            ..Needs::default()
        };
        assert_eq!(
            Placement::Auto.choose(&[cores(Some(1)), cores(Some(2))], needs),
            Ok(HOST)
        );
        let rooms = [cores(Some(1)), cores(None)];
        assert_eq!(Placement::Auto.choose(&rooms, needs), Err(NoRoom::Cores));
        assert_eq!(Placement::Auto.choose(&rooms, one()), Ok(CARD));
    }

    #[test]
    fn what_a_place_lacks_is_the_first_of_its_limits() {
        let mut room = Room {
            pps: 9.0,
            pps_limit: Some(10.0),
            link_bytes_per_s: 900.0,
            link_limit: Some(1_000.0),
            free_cores: Some(0),
            ..limited(2, 2)
        };
        let needs = Needs {
            pps: 2.0,
            cpus: 1.0,
            cores: 1,
            wire_bytes: 100.0,
        };
        assert_eq!(room.lacks(needs), Some(Lack::Instances));
        room.instances = 1;
        assert_eq!(room.lacks(needs), Some(Lack::Capacity));
        room.pps = 8.0;
        assert_eq!(room.lacks(needs), Some(Lack::Link));
        room.link_bytes_per_s = 800.0;
        assert_eq!(room.lacks(needs), Some(Lack::Cores));
        room.free_cores = Some(1);
        assert_eq!(room.lacks(needs), None);
        assert!(room.fits(needs));
    }

    #[test]
    fn those_that_a_former_rule_put_elsewhere_leave_first() {
        let rooms = [limited(1, 4), limited(3, 4)];
        assert_eq!(Placement::At(CARD).leaves(&rooms, |_| true), Some(HOST));
        assert_eq!(
            Placement::At(CARD).leaves(&rooms, |place| place == CARD),
            Some(CARD)
        );
        let rooms = [free(), free()];
        let rank = |placement: Placement, place| placement.rank(&rooms, place);
        assert!(rank(Placement::At(CARD), CARD) < rank(Placement::At(CARD), HOST));
        assert!(rank(Placement::Auto, CARD) < rank(Placement::Auto, HOST));
    }

    fn any_room() -> impl Strategy<Value = Room> {
        (
            any::<bool>(),
            0_u32..5,
            prop::option::of(1_u32..5),
            0.0_f64..10.0,
            prop::option::of(1.0_f64..10.0),
            (0.1_f64..=1.0, prop::option::of(0_u32..4)),
            (0_u8..3, prop::option::of(10.0_f64..2_000.0)),
        )
            .prop_map(
                |(
                    is_down,
                    instances,
                    instance_limit,
                    pps,
                    pps_limit,
                    (share, free_cores),
                    (rank, link_limit),
                )| Room {
                    is_down,
                    instances,
                    instance_limit,
                    pps,
                    pps_limit,
                    share,
                    core_pps: None,
                    free_cores,
                    link_bytes_per_s: 100.0 * pps,
                    link_limit,
                    rank,
                },
            )
    }

    fn any_placement() -> impl Strategy<Value = Placement> {
        prop_oneof![
            Just(Placement::Auto),
            Just(Placement::Split),
            (0_u8..4).prop_map(|place| Placement::At(PlaceId(place)))
        ]
    }

    proptest! {
        #[test]
        fn what_is_chosen_has_room_and_answers(
            rooms in prop::collection::vec(any_room(), 1..4),
            placement in any_placement(),
            pps in 0.0_f64..5.0,
            cores in 0_u32..3,
        ) {
            let needs = Needs { pps, cores, cpus: 1.0, wire_bytes: 100.0 };
            match placement.choose(&rooms, needs) {
                Ok(place) => {
                    let room = rooms[place.index()];
                    prop_assert!(room.fits(needs) && !room.is_down && placement.permits(place));
                    if placement == Placement::Auto {
                        let is_earlier = |of: PlaceId| placement.rank(&rooms, of) < placement.rank(&rooms, place);
                        let mut earlier = all(&rooms).filter(|(of, _)| is_earlier(*of));
                        prop_assert!(earlier.all(|(_, room)| room.is_down || !room.fits(needs)));
                    }
                }
                Err(_) => prop_assert!(all(&rooms)
                    .filter(|(place, _)| placement.permits(*place))
                    .all(|(_, room)| room.is_down || !room.fits(needs))),
            }
        }

        #[test]
        fn one_leaves_wherever_one_can(
            rooms in prop::collection::vec(any_room(), 1..4),
            placement in any_placement(),
            only in 0_usize..4,
        ) {
            let can = |place: PlaceId| place.index() == only;
            let expected = (only < rooms.len()).then_some(PlaceId(only as u8));
            prop_assert_eq!(placement.leaves(&rooms, can), expected);
        }
    }
}
