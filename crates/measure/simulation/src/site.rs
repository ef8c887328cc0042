//! The keys of a scenario's `[[place]]`: where instances run, as `[[place]]` of inco.toml says it.

use configuration::Placement;
use model::{Nanos, Slot};
use placement::estimate::WIRE_BYTES;
use placement::{GUARD, PlaceId};
use serde::Deserialize;

use crate::Error;
use crate::error::within;
use crate::scenario::Scenario;

/// A place.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Site {
    /// Its name.
    pub name: String,
    /// Packets per second of a whole CPU there. Left out: `instances.capacity_pps`.
    #[serde(default)]
    pub core_pps: Option<f64>,
    /// Most packets per second for which it has instances.
    #[serde(default)]
    pub capacity_pps: Option<f64>,
    /// The load beyond which it processes less: of each packet, `instances.receive_share` of the cost is spent even if it
    /// is dropped. It is given 0.9 of it.
    #[serde(default)]
    pub collapse_pps: Option<f64>,
    /// Most instances.
    #[serde(default)]
    pub instances: Option<u32>,
    /// Microseconds from the switch to the place, one way.
    #[serde(default)]
    pub latency_us: f64,
    /// What the link to it carries, in bits per second in each direction, frames with 24 bytes of Ethernet each.
    #[serde(default)]
    pub link_bps: Option<f64>,
    /// Power model: `[idle watts, watts per CPU of its instances]`. Never a measurement.
    #[serde(default)]
    pub power_w: Option<[f64; 2]>,
}

impl Site {
    /// The place as the controller knows it.
    pub(crate) fn settings(&self) -> controller::Place {
        let guarded = self.collapse_pps.map(|pps| GUARD * pps);
        controller::Place {
            instances: self.instances,
            capacity_pps: self.capacity_pps.into_iter().chain(guarded).reduce(f64::min),
            core_pps: self.core_pps,
            latency: Nanos((self.latency_us * 1e3) as u64),
            link_bytes_per_s: self.link_bps.map(|bps| bps / 8.0),
            watts_per_core: self.power_w.map(|[_, each]| each),
            ..controller::Place::new(self.name.clone())
        }
    }

    /// Seconds of a packet there and back.
    pub(crate) fn way_s(&self) -> f64 {
        2e-6 * self.latency_us
    }

    /// The share of what is sent to it that the place processes of `pps` together with `bytes` a second, at most 1. What
    /// its link does not carry does not arrive.
    pub(crate) fn processed_share(&self, pps: f64, bytes: f64, receive_share: f64) -> f64 {
        let on_link = bytes + WIRE_BYTES * pps;
        let arrives = match self.link_bps {
            Some(bps) if on_link > bps / 8.0 => pps * bps / 8.0 / on_link,
            _ => pps,
        };
        let processed = match self.collapse_pps {
            Some(peak) if arrives > peak => (peak - receive_share * arrives) / (1.0 - receive_share),
            _ => arrives,
        };
        if pps > 0.0 {
            (processed / pps).max(0.0)
        } else {
            1.0
        }
    }

    fn check(&self, index: usize) -> Result<(), Error> {
        let key = |name: &str| format!("place.{index}.{name}");
        for (name, pps) in [
            ("core_pps", self.core_pps),
            ("capacity_pps", self.capacity_pps),
            ("collapse_pps", self.collapse_pps),
            ("link_bps", self.link_bps),
        ] {
            if let Some(pps) = pps {
                within(&key(name), pps, 1e-3, 1e13)?;
            }
        }
        within(&key("latency_us"), self.latency_us, 0.0, 1e6)?;
        for watts in self.power_w.into_iter().flatten() {
            within(&key("power_w"), watts, 0.0, 1e5)?;
        }
        Ok(())
    }
}

/// The rule of `service.placement` among the places.
pub(crate) fn placement_of(scenario: &Scenario) -> Result<Placement, Error> {
    let written = scenario.service.placement.as_str();
    let index = scenario.place.iter().position(|place| place.name == written);
    match (written, index.and_then(|index| u8::try_from(index).ok())) {
        ("auto", _) => Ok(Placement::Auto),
        ("split", _) => Ok(Placement::Split),
        (_, Some(index)) => Ok(Placement::At(PlaceId(index))),
        (other, None) => {
            let problem = format!("unknown place {other:?}; write auto, split or the name of a place");
            Err(Error::value("service.placement", problem))
        }
    }
}

/// Checks the places.
pub(crate) fn check(scenario: &Scenario) -> Result<(), Error> {
    placement_of(scenario)?;
    within("place", scenario.place.len() as f64, 0.0, PlaceId::LIMIT as f64)?;
    for (index, place) in scenario.place.iter().enumerate() {
        place.check(index)?;
    }
    Ok(())
}

/// By slot, the place of the instance in it.
#[derive(Clone, Debug, Default)]
pub(crate) struct PlaceOfSlot(Vec<u8>);

impl PlaceOfSlot {
    pub(crate) fn set(&mut self, slot: Slot, place: PlaceId) {
        if self.0.len() <= slot.index() {
            self.0.resize(slot.index() + 1, 0);
        }
        if let Some(of) = self.0.get_mut(slot.index()) {
            *of = place.0;
        }
    }

    /// The position of its place.
    pub(crate) fn of(&self, slot: usize) -> usize {
        self.0.get(slot).copied().map_or(0, usize::from)
    }
}
