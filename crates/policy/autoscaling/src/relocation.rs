//! Where instances of a service run: at the first place up to its limit, beyond it at the next, and back when the load
//! falls. A card beyond its cliff takes fewer packets, not more (InReal, section 3), so its limit is below it.

use model::{InstanceId, InstanceObservation, InstanceState, Observation, PlaceObservation};

use crate::{Reason, Relocation, finite};

/// The share of its limit up to which a place takes an instance back. More would send it away again at the next rise.
const BACK: f64 = 0.8;

/// An instance of a place that gets more than its limit, and a place that takes it: the smallest that is enough, or
/// else the largest.
pub(crate) fn away(observation: &Observation) -> Option<Relocation> {
    let places = || (0_u8..).zip(&observation.places);
    places().find_map(|(from, place)| {
        let limit = place.limit_pps.filter(|limit| place.arrivals_pps > *limit)?;
        let excess = place.arrivals_pps - limit;
        let there = || active(observation).filter(|(of, _)| of.place == from);
        let enough = there().filter(|(_, pps)| *pps >= excess);
        let enough = enough.min_by(|(_, a), (_, b)| a.total_cmp(b));
        let (instance, pps) = enough.or_else(|| there().max_by(|(_, a), (_, b)| a.total_cmp(b)))?;
        let (to, _) = places().find(|(to, of)| *to != from && takes(of, pps, 1.0))?;
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

/// An instance of a later place for which an earlier one has room, the smallest first.
pub(crate) fn back(observation: &Observation) -> Option<Relocation> {
    let mut places = (0_u8..).zip(&observation.places);
    places.find_map(|(to, place)| {
        let later = active(observation).filter(|(of, _)| of.place > to);
        let (instance, pps) = later.min_by(|(_, a), (_, b)| a.total_cmp(b))?;
        let limit = place.limit_pps.unwrap_or(f64::INFINITY);
        let rule = "earlier_place_has_room";
        takes(place, pps, BACK).then(|| relocation(instance.id, to, rule, (place.arrivals_pps, limit), pps))
    })
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
