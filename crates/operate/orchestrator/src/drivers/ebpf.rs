//! The driver for programs in this machine's kernel.

use anyhow::Result;
use configuration::Configuration;
use ebpf_switch::CAPABILITIES;
use soft_switch::Keep;
use switch::Capabilities;

use super::{Driver, Started};

/// The driver `ebpf`.
pub(super) struct Ebpf;

impl Driver for Ebpf {
    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn start(&self, _: &Configuration, _: [u64; 4], _: Option<Keep>) -> Result<Started> {
        anyhow::bail!("the driver ebpf is not in this build yet")
    }
}
