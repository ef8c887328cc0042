//! Deficit round-robin that interrupts a message when it has run for a quantum. iPipe's cards cannot interrupt (section
//! 6); Shinjuku (Kaffes and others, NSDI 2019) shows what that costs at high dispersion.

use model::Nanos;

use crate::{Group, Policy, Settings};

#[derive(Debug)]
pub(crate) struct Preemptive;

impl Policy for Preemptive {
    fn initial(&self) -> Group {
        Group::Drr
    }

    fn slice(&self, settings: &Settings) -> Option<Nanos> {
        Some(settings.quantum)
    }
}
