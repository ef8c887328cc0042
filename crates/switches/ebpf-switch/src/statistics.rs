//! What the programs cost: how often each has run and for how long, as the kernel counts it on request.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use aya::maps::MapData;
use aya::programs::loaded_programs;
use aya::sys::{Stats, enable_stats};

use crate::error::{EbpfError, chain};
use crate::kernel::pins_of;

/// Has the kernel count for as long as this is there. Each run of a program takes some tens of nanoseconds more then.
pub struct Statistics {
    _counts: OwnedFd,
    /// The map that all programs of the switch have.
    map: u32,
}

/// What a program has cost since it was loaded, while somebody had the kernel count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Its name; the kernel keeps 15 bytes of it.
    pub program: String,
    /// How often it ran: once for each packet, or each step of the walk over the flows.
    pub runs: u64,
    /// For how long.
    pub time: Duration,
}

impl Statistics {
    /// Begins, for the switch of that name.
    ///
    /// # Errors
    /// There is no such switch, or the kernel refuses.
    pub fn start(name: &str) -> Result<Statistics, EbpfError> {
        let world = MapData::from_pin(pins_of(name).join("world")).and_then(|data| data.info());
        let map = world.map_err(|error| refused(&error))?.id();
        let counts = enable_stats(Stats::RunTime).map_err(|error| refused(&error))?;
        Ok(Statistics { _counts: counts, map })
    }

    /// The costs of the switch's programs. After a take-over, those of both runs may be there for a moment.
    ///
    /// # Errors
    /// The kernel's.
    pub fn read(&self) -> Result<Vec<Cost>, EbpfError> {
        let mut costs = Vec::new();
        for program in loaded_programs() {
            // One that is unloaded meanwhile is not ours.
            let Ok(info) = program else { continue };
            let maps = info.map_ids().map_err(|error| refused(&error))?;
            if maps.is_some_and(|maps| maps.contains(&self.map)) {
                costs.push(Cost {
                    program: info.name_as_str().unwrap_or_default().to_owned(),
                    runs: info.run_count(),
                    time: info.run_time(),
                });
            }
        }
        Ok(costs)
    }
}

fn refused(error: &dyn std::error::Error) -> EbpfError {
    EbpfError::System {
        what: "the programs' statistics",
        source: io::Error::other(chain(error)),
    }
}
