//! First come, first served, by any free core.

use crate::{Group, Policy};

#[derive(Debug)]
pub(crate) struct Fcfs;

impl Policy for Fcfs {
    fn initial(&self) -> Group {
        Group::Fcfs
    }
}
