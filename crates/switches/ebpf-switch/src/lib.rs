//! Steering by programs in the kernel: a program at each uplink pins new flows and redirects packets into the network
//! namespaces of instances, and a program at each instance's interface sends what comes back out.

use model::{Capabilities, PortKind};

/// What the driver can do beyond what every switch does.
pub const CAPABILITIES: Capabilities = Capabilities {
    ports: &[PortKind::Kernel],
    prepared_ports: true,
    sees_openers: true,
    flow_counters: true,
    ..Capabilities::NONE
};
