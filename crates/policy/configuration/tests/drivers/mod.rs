//! Parses configurations with the capabilities of inco's own drivers.

use configuration::{Configuration, Problem, SwitchDriver};
use model::Capabilities;

fn capabilities(driver: SwitchDriver) -> Capabilities {
    match driver {
        SwitchDriver::Soft => soft_switch::CAPABILITIES,
        SwitchDriver::OpenFlow => openflow_switch::CAPABILITIES,
        SwitchDriver::Ebpf => ebpf_switch::CAPABILITIES,
        SwitchDriver::Hybrid => soft_switch::FAST_CAPABILITIES,
    }
}

pub(crate) fn parse(text: &str, file_name: &str) -> Result<Configuration, Vec<Problem>> {
    configuration::parse(text, file_name, capabilities)
}
