//! Programs in C that take turns with a function.

use std::process::Command;

use anyhow::Result;
use model::Nanos;

use super::side::Side;
use crate::contestant::Measured;
use crate::native::Native;

/// A program that includes `native/turns.h`: a peer of a function.
pub(super) struct Turns(Native);

impl Turns {
    /// Starts it, and lets it work for a moment.
    ///
    /// # Errors
    /// It cannot be started, or refuses its arguments.
    pub(super) fn start(command: Command) -> Result<Turns> {
        let mut turns = Turns(Native::start(command)?);
        turns.0.ask("1")?;
        Ok(turns)
    }
}

impl Side for Turns {
    fn turn(&mut self, time: Nanos) -> Result<Measured> {
        let (packets, ns) = self.0.ask(&time.0.to_string())?;
        Ok(Measured {
            packets,
            seconds: ns as f64 / 1e9,
        })
    }
}
