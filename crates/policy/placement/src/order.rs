//! In which order [`Placement::Auto`](crate::Placement::Auto) fills the places: by what their owner wrote of them, and by
//! what the service is to be good for. Places that do not differ keep the order of the configuration.

use std::fmt;

use crate::PlaceId;

/// Latencies, CPUs and watts that differ by a smaller share are equal.
pub const SAME: f64 = 0.02;

/// What a placement is to be good for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Goal {
    /// The least loss, then the shortest latency: the place with the shortest way comes first.
    #[default]
    Performance,
    /// The fewest CPUs of places other than the first, as little loss provided: places keep their order.
    Cpu,
    /// The fewest watts, as little loss provided: the place whose busy cores take the least for a packet comes first.
    Power,
}

impl Goal {
    /// Their names.
    pub const WORDS: [(&'static str, Goal); 3] = [
        ("performance", Goal::Performance),
        ("cpu", Goal::Cpu),
        ("power", Goal::Power),
    ];
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = Goal::WORDS.iter().find(|(_, goal)| goal == self);
        f.write_str(word.map_or("", |(word, _)| word))
    }
}

/// What a place costs a service, as its owner wrote it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Costs {
    /// Seconds from the switch to the place, one way.
    pub latency_s: f64,
    /// Watts of a busy core, if known.
    pub watts_per_core: Option<f64>,
    /// Packets per second of a whole CPU there; 0 while that is unknown.
    pub pps_per_core: f64,
}

impl Costs {
    /// What counts for the goal; [`None`] if it is unknown.
    fn of(&self, goal: Goal) -> Option<f64> {
        match goal {
            Goal::Performance => Some(self.latency_s),
            Goal::Cpu => Some(0.0),
            // Idle watts are taken whether or not instances are there: inco switches no machine off.
            Goal::Power => self
                .watts_per_core
                .filter(|_| self.pps_per_core > 0.0)
                .map(|watts| watts / self.pps_per_core),
        }
    }
}

/// By place, its position in the order for a goal. The order of `places` is kept where a figure is unknown, and among
/// those that do not differ by more than [`SAME`]. Places beyond [`PlaceId::LIMIT`] are left out.
pub fn ranks(goal: Goal, places: impl Iterator<Item = Costs>) -> [u8; PlaceId::LIMIT] {
    let mut costs = [None; PlaceId::LIMIT];
    let mut count = 0;
    for (slot, place) in costs.iter_mut().zip(places) {
        *slot = place.of(goal);
        count += 1;
    }
    let places = costs.get_mut(..count).unwrap_or_default();
    if places.iter().any(Option::is_none) {
        places.fill(Some(0.0));
    }
    let mut ranks = [0; PlaceId::LIMIT];
    for rank in 0..count as u8 {
        let known = || costs.iter().take(count).flatten();
        let least = known().copied().fold(f64::INFINITY, f64::min);
        let is_next = |cost: &Option<f64>| cost.is_some_and(|cost| cost <= least * (1.0 + SAME));
        if let Some(next) = costs.iter().position(is_next) {
            ranks[next] = rank;
            costs[next] = None;
        }
    }
    ranks
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn place(latency_s: f64, watts: f64, pps_per_core: f64) -> Costs {
        Costs {
            latency_s,
            watts_per_core: Some(watts),
            pps_per_core,
        }
    }

    fn first(goal: Goal, places: &[Costs]) -> Vec<u8> {
        ranks(goal, places.iter().copied())[..places.len()].to_vec()
    }

    #[test]
    fn each_goal_has_its_order() {
        // A far host that is quick, a near card that is frugal, and a second one that is equal to it.
        let places = [
            place(5e-6, 11.0, 12.5e6),
            place(0.0, 2.0, 5e6),
            place(0.0, 2.02, 5e6),
        ];
        assert_eq!(first(Goal::Performance, &places), [2, 0, 1]);
        assert_eq!(first(Goal::Cpu, &places), [0, 1, 2]);
        assert_eq!(first(Goal::Power, &places), [2, 0, 1]);
        let differs = [places[0], places[1], place(0.0, 1.9, 5e6)];
        assert_eq!(first(Goal::Power, &differs), [2, 1, 0]);
    }

    #[test]
    fn places_keep_their_order_where_a_figure_is_unknown() {
        let unknown = Costs {
            watts_per_core: None,
            ..place(0.0, 0.0, 5e6)
        };
        assert_eq!(first(Goal::Power, &[place(0.0, 9.0, 5e6), unknown]), [0, 1]);
        let no_pps = place(0.0, 1.0, 0.0);
        assert_eq!(first(Goal::Power, &[place(0.0, 9.0, 5e6), no_pps]), [0, 1]);
        assert_eq!(first(Goal::Performance, &[]), [0_u8; 0]);
    }

    proptest! {
        /// Each rank is given once, and no place comes after one that costs more than it does, beyond what is equal.
        #[test]
        fn ranks_are_an_order_of_the_costs(latencies in prop::collection::vec(0_u32..50, 1..16)) {
            let places: Vec<Costs> = latencies.iter().map(|us| place(f64::from(*us), 1.0, 1.0)).collect();
            let ranks = first(Goal::Performance, &places);
            let mut sorted = ranks.clone();
            sorted.sort_unstable();
            prop_assert_eq!(sorted, (0..places.len() as u8).collect::<Vec<_>>());
            for (a, rank_a) in places.iter().zip(&ranks) {
                for (b, rank_b) in places.iter().zip(&ranks) {
                    prop_assert!(a.latency_s <= b.latency_s * (1.0 + SAME) || rank_a > rank_b);
                }
            }
        }
    }
}
