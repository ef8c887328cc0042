//! Where instances of a service run: at the first place up to its limit, beyond it at the next, and back when the load
//! falls. A card beyond its cliff takes fewer packets, not more (InReal, section 3), so its limit is below it. Which place
//! is the first, the observation says: [`PlaceObservation::rank`].

use model::{InstanceId, InstanceObservation, InstanceState, Nanos, Observation, PlaceObservation};
use serde::{Deserialize, Serialize};

use crate::{Reason, Relocation, finite};

/// The share of its limit up to which a place takes an instance back. More would send it away again at the next rise.
const BACK: f64 = 0.8;
/// How long a place must get more than its limit before an instance leaves it.
const ABOVE: Nanos = Nanos::from_millis(20);

/// What is known of moves between places, for policies that want them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Moves {
    /// Since when a place gets more than its limit, and since when an earlier place has room for an instance of a later.
    above_since: Option<Nanos>,
    room_since: Option<Nanos>,
    /// The last instance that was wanted elsewhere, and when.
    relocated: Option<(InstanceId, Nanos)>,
}

impl Moves {
    /// Records an observation.
    pub(crate) fn note(&mut self, observation: &Observation, now: Nanos) {
        let since = |known: Option<Nanos>, holds: bool| holds.then(|| known.unwrap_or(now));
        self.above_since = since(self.above_since, away(observation).is_some());
        self.room_since = since(self.room_since, back(observation).is_some());
    }

    /// Whether the last instance that was wanted elsewhere is still where it was, and not for longer than `calm`.
    fn is_under_way(&self, observation: &Observation, calm: Nanos, now: Nanos) -> bool {
        let is_active = |id| {
            let mut all = observation.instances.iter();
            all.any(|i| i.id == id && i.state == InstanceState::Active)
        };
        self.relocated
            .is_some_and(|(id, at)| is_active(id) && now.since(at) < calm)
    }

    /// Whether an instance is to be elsewhere, or is on its way there.
    pub(crate) fn is_wanted(&self, observation: &Observation, calm: Nanos, now: Nanos) -> bool {
        self.is_under_way(observation, calm, now) || self.judge(observation, calm, now).is_some()
    }

    /// The instance that is wanted elsewhere: one at a time. It comes back after `calm`.
    pub(crate) fn judge(&self, observation: &Observation, calm: Nanos, now: Nanos) -> Option<Relocation> {
        let lasts = |since: Option<Nanos>, span| since.is_some_and(|since| now.since(since) >= span);
        if self.is_under_way(observation, calm, now) {
            None
        } else if lasts(self.above_since, ABOVE) {
            away(observation)
        } else if lasts(self.room_since, calm) {
            back(observation)
        } else {
            None
        }
    }

    /// Records what was decided.
    pub(crate) fn commit(&mut self, decided: Option<Relocation>, now: Nanos) {
        if let Some(relocation) = decided {
            self.relocated = Some((relocation.instance, now));
            self.room_since = None;
        }
    }
}

/// An instance of a place that gets more than its limit, and a place that takes it: the smallest that is enough, or
/// else the largest.
fn away(observation: &Observation) -> Option<Relocation> {
    let places = || (0_u8..).zip(&observation.places);
    places().find_map(|(from, place)| {
        let limit = place.limit_pps.filter(|limit| place.arrivals_pps > *limit)?;
        let excess = place.arrivals_pps - limit;
        let there = || active(observation).filter(|(of, _)| of.place == from);
        let enough = there().filter(|(_, pps)| *pps >= excess);
        let enough = enough.min_by(|(_, a), (_, b)| a.total_cmp(b));
        let (instance, pps) = enough.or_else(|| there().max_by(|(_, a), (_, b)| a.total_cmp(b)))?;
        let others = places().filter(|(to, of)| *to != from && takes(of, pps, 1.0));
        // Of equal ones, the first.
        let (to, _) = others.min_by_key(|(_, of)| of.rank)?;
        let rule = "above_limit_of_place";
        Some(relocation(
            instance.id,
            to,
            rule,
            (place.arrivals_pps, limit),
            pps,
        ))
    })
}

/// An instance of a later place for which an earlier one has room, the smallest first. Of such places, the earliest.
fn back(observation: &Observation) -> Option<Relocation> {
    let order = |index: u8| {
        let place = observation.places.get(usize::from(index));
        (place.map_or(u8::MAX, |place| place.rank), index)
    };
    let places = (0_u8..).zip(&observation.places);
    let found = places.filter_map(|(to, place)| {
        let later = active(observation).filter(|(of, _)| order(of.place) > order(to));
        let (instance, pps) = later.min_by(|(_, a), (_, b)| a.total_cmp(b))?;
        takes(place, pps, BACK).then_some((to, place, instance, pps))
    });
    let (to, place, instance, pps) = found.min_by_key(|(to, ..)| order(*to))?;
    let limit = place.limit_pps.unwrap_or(f64::INFINITY);
    let rule = "earlier_place_has_room";
    Some(relocation(
        instance.id,
        to,
        rule,
        (place.arrivals_pps, limit),
        pps,
    ))
}

/// Its Active instances, with the packets per second that each gets.
fn active(observation: &Observation) -> impl Iterator<Item = (&InstanceObservation, f64)> {
    let active = observation.instances.iter();
    let active = active.filter(|of| of.state == InstanceState::Active);
    active.map(|of| {
        (
            of,
            finite(of.arrivals_fast_pps).max(finite(of.arrivals_stable_pps)),
        )
    })
}

fn takes(place: &PlaceObservation, pps: f64, share: f64) -> bool {
    let fits = |limit| place.arrivals_pps + pps <= share * limit;
    place.has_room && place.limit_pps.is_none_or(fits)
}

fn relocation(
    instance: InstanceId,
    to_place: u8,
    rule: &'static str,
    (place_pps, limit_pps): (f64, f64),
    instance_pps: f64,
) -> Relocation {
    let reason = Reason::new(rule)
        .with("place_pps", place_pps)
        .with("limit_pps", limit_pps)
        .with("instance_pps", instance_pps);
    Relocation {
        instance,
        to_place,
        reason,
    }
}
