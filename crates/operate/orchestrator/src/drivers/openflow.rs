//! The driver for a bridge of Open vSwitch.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use configuration::{Configuration, Device, Unusable};
use model::Nanos;
use openflow_switch::{CAPABILITIES, OpenFlowSwitch, OpenFlowSwitchConfig, PortDevice};
use openvswitch::{Endpoint, Keys, Ovsdb};
use serde::{Deserialize, Serialize};
use soft_switch::Keep;
use switch::Capabilities;

use super::{Driver, Started, make_parent};
use crate::host::unreadable;
use crate::{pool, wiring};
use api::run_dir::in_run_dir;

/// The socket of a bridge's monitor port, in the run directory.
const MONITOR_SOCKET: &str = "monitor.sock";
/// Interval of reading rule counters. Some thousand rules take the switch about ten milliseconds.
const RULE_STATISTICS_EVERY: Nanos = Nanos::from_millis(200);
/// Timeout of Open vSwitch's database.
const OVS_TIME: Duration = Duration::from_secs(2);

/// The driver `openflow`.
pub(super) struct OpenFlow;

impl Driver for OpenFlow {
    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn check(&self, of: &configuration::Switch) -> Result<(), (&'static str, Unusable)> {
        let of = &of.openflow;
        if let Some(keys) = &of.tls {
            fs::metadata(keys).map_err(|error| ("switch.openflow.tls", unreadable(keys, &error)))?;
        }
        let wrong = |what: String| {
            let write =
                "start Open vSwitch (`systemctl start openvswitch-switch`), or correct database and tls";
            ("switch.openflow.database", Unusable::new(what, write))
        };
        let database = ovs_database(of).map_err(|error| wrong(format!("{error:#}")))?;
        let connected = Ovsdb::connect(&database, OVS_TIME).map(drop);
        connected.map_err(|error| wrong(format!("Open vSwitch's database does not answer ({error})")))
    }

    fn sockets(&self, configuration: &Configuration) -> Vec<PathBuf> {
        let mut sockets = vec![in_run_dir(Path::new(MONITOR_SOCKET))];
        let devices = pool::ports(configuration).into_iter().flat_map(|of| of.devices);
        sockets.extend(devices.filter_map(|device| match device {
            PortDevice::Memif(socket) => Some(socket),
            PortDevice::Interface(_) | PortDevice::Dpdk(_) => None,
        }));
        sockets
    }

    fn bridge(&self, configuration: &Configuration) -> Option<Bridge> {
        let of = &configuration.switch.openflow;
        let uplinks = configuration.uplinks.iter();
        let uplinks = uplinks.filter_map(|uplink| Some(in_run_dir(uplink.device.socket()?)));
        Some(Bridge {
            name: of.bridge.clone(),
            database: of.database.clone(),
            tls: of.tls.clone(),
            sockets: self.sockets(configuration).into_iter().chain(uplinks).collect(),
        })
    }

    fn start(&self, configuration: &Configuration, _: [u64; 4], _: Option<Keep>) -> Result<Started> {
        start(configuration)
    }
}

/// A bridge as a run has left it: what is needed to remove it without that run's configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Bridge {
    name: String,
    /// Where Open vSwitch's database listens.
    database: String,
    /// The directory of the keys for it.
    tls: Option<PathBuf>,
    /// The sockets of its ports: Open vSwitch listens there, and inco on the monitor port's.
    pub(crate) sockets: Vec<PathBuf>,
}

impl Bridge {
    /// Whether both are the same bridge of the same Open vSwitch.
    pub(crate) fn is_same_as(&self, other: &Bridge) -> bool {
        (&self.name, &self.database) == (&other.name, &other.database)
    }

    /// Removes it with its rules, ports and sockets.
    ///
    /// # Errors
    /// Open vSwitch's database does not answer.
    pub(crate) fn remove(&self) -> Result<()> {
        let database = endpoint(&self.database, self.tls.as_deref())?;
        openflow_switch::remove_bridge(&database, &self.name, &self.sockets).with_context(|| {
            format!(
                "the bridge {} of an earlier run stays in Open vSwitch: start it and run `inco stop`",
                self.name
            )
        })
    }
}

/// The endpoint of Open vSwitch's database.
///
/// # Errors
/// The endpoint cannot be parsed.
fn ovs_database(of: &configuration::OpenFlow) -> Result<Endpoint> {
    endpoint(&of.database, of.tls.as_deref())
}

fn endpoint(database: &str, tls: Option<&Path>) -> Result<Endpoint> {
    let database: Endpoint = database.parse().context("switch.openflow.database")?;
    Ok(database.with_keys(tls.map(ovs_keys).as_ref()))
}

fn ovs_keys(directory: &Path) -> Keys {
    Keys {
        certificate: directory.join("cert.pem"),
        key: directory.join("key.pem"),
        ca: directory.join("ca.pem"),
    }
}

fn start(configuration: &Configuration) -> Result<Started> {
    let of = &configuration.switch.openflow;
    let mut uplinks = Vec::new();
    for uplink in &configuration.uplinks {
        uplinks.push(match &uplink.device {
            Device::Memif(socket) => {
                let socket = in_run_dir(socket);
                make_parent(uplink, &socket)?;
                PortDevice::Memif(socket)
            }
            Device::Veth(interface) => PortDevice::Interface(interface.clone()),
            Device::Dpdk(device) => PortDevice::Dpdk(device.clone()),
            Device::Pcap(_) => anyhow::bail!("uplink {:?}: Open vSwitch reads no captures", uplink.name),
            Device::Kernel(_) => anyhow::bail!("uplink {:?}: write veth:INTERFACE", uplink.name),
        });
    }
    let pool = pool::ports(configuration);
    for device in pool.iter().flat_map(|of| &of.devices) {
        if let PortDevice::Memif(socket) = device
            && let Some(directory) = socket.parent()
        {
            fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
        }
    }
    let control = of.control().context("switch.openflow.control is missing")?;
    let control: Endpoint = control.parse().context("switch.openflow.control")?;
    let config = OpenFlowSwitchConfig {
        bridge: of.bridge.clone(),
        datapath: of.datapath.name().to_owned(),
        database: ovs_database(of)?,
        control: control.with_keys(of.tls.as_deref().map(ovs_keys).as_ref()),
        monitor_socket: in_run_dir(Path::new(MONITOR_SOCKET)),
        uplinks,
        pool,
        services: wiring::service_plans(configuration),
        bucket_bits: of.buckets.ilog2() as u8,
        steering: openflow_switch::Settings {
            setup: of.setup,
            rule_limit: of.rules as usize,
            idle: configuration.switch.timeouts,
            statistics_every: RULE_STATISTICS_EVERY,
            ..openflow_switch::Settings::default()
        },
    };
    let switch = OpenFlowSwitch::start(&config)?;
    let made_ports = pool::made_ports(configuration, switch.queue_pairs());
    Ok(Started {
        switch: Box::new(switch),
        made_ports,
        ports: Vec::new(),
    })
}
