//! Controls Open vSwitch: [`Connection`] speaks OpenFlow to a bridge, [`Ovsdb`] configures bridges and ports.
//!
//! Every wait has a limit. A [`Connection`] never blocks: [`Connection::turn`] reads and writes what it can
//! and returns the events; [`Reconnecting`] re-establishes it when it ends. [`Ovsdb`] is used during set-up
//! and tear-down, and blocks at most for its owner's limit.
//!
//! inco connects to the bridge's own socket (`NAME.mgmt` in Open vSwitch's run directory) or to a TCP port on
//! which the bridge listens (`ptcp:`, or `pssl:` with TLS), so that inco decides when to retry.
#![forbid(unsafe_code)]

mod connection;
mod datapath;
mod endpoint;
mod ovsdb;
mod rpc;
mod tls;

pub use connection::{Connection, ConnectionError, Reconnecting, Turned};
pub use datapath::{DatapathFlow, Offload, Unixctl, datapath_flows};
pub use endpoint::{Endpoint, EndpointError};
pub use ovsdb::{BridgeSpec, InterfaceStatus, Ovsdb, OvsdbError, PortSpec};
pub use tls::Keys;
