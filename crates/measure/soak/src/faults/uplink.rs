//! The uplink's peer leaves and comes back.

use anyhow::Result;
use model::Random;

use super::{Fault, Injected};
use crate::bed::Bed;
use crate::check::Losses;
use crate::guard::Guard;
use crate::plan::milliseconds;

/// The peer leaves several times.
pub(super) struct Flap;

impl Fault for Flap {
    fn name(&self) -> &'static str {
        "uplink-flap"
    }

    fn about(&self) -> &'static str {
        "disconnects the network from the uplink for 5 ms to 0.5 s"
    }

    fn inject(&self, bed: &mut Bed, random: &mut Random, _guard: &mut Guard) -> Result<Injected> {
        let away = milliseconds(random, 5, 500);
        bed.network()?.flap(away)?;
        let mut injected = Injected::alone(format!("the network was away for {} ms", away.as_millis()));
        injected.excuse.losses = Losses::UnderWay;
        injected.lasts = away;
        Ok(injected)
    }
}
