//! Open vSwitch from outside: [`Connection`] speaks OpenFlow to one of its bridges, [`Ovsdb`] makes bridges and ports.
//!
//! Nothing here waits without a limit. A [`Connection`] never blocks: [`Connection::turn`] reads what is there, writes what
//! fits, and gives what was said; [`Reconnecting`] makes a new one when it ends. [`Ovsdb`] is asked while things are set
//! up and taken down, and blocks for at most the time that its owner gives.
//!
//! inco connects to the bridge's own socket (`NAME.mgmt` in Open vSwitch's run directory) or to a TCP port on which the
//! bridge listens (`ptcp:`, or `pssl:` with TLS), so that it is inco which decides when to try again.
#![forbid(unsafe_code)]

mod connection;
mod datapath;
mod endpoint;
mod ovsdb;
mod rpc;
mod tls;

pub use connection::{Connection, ConnectionError, Reconnecting, Turned};
pub use datapath::{Control, DatapathFlow, Offload, datapath_flows};
pub use endpoint::{Endpoint, EndpointError};
pub use ovsdb::{BridgeSpec, InterfaceStatus, Ovsdb, OvsdbError, PortSpec};
pub use tls::Keys;
