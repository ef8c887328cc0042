//! Tests against a private `ovs-vswitchd` with Open vSwitch's dummy datapath: rules, counters, packets,
//! bundles, and a restart of the switch.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

mod bed;
mod messages;
mod switch;
mod tls;
