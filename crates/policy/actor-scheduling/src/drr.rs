//! Deficit round-robin over all actors, by all cores.

use crate::{Group, Policy};

#[derive(Debug)]
pub(crate) struct Drr;

impl Policy for Drr {
    fn initial(&self) -> Group {
        Group::Drr
    }
}
