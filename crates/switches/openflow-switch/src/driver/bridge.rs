//! The bridge in the database of Open vSwitch, and its ports.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use model::Slot;
use openvswitch::{BridgeSpec, Ovsdb, OvsdbError, PortSpec};
use scheduling::Scheduler;

use super::{DATA_PORTS, FIRST_INSTANCE, FIRST_UPLINK, MONITOR, OpenFlowSwitchConfig, PortDevice};
use crate::rules::ServiceRules;

/// The mark on a bridge that inco has made, and may remove.
pub(super) const MARK: (&str, &str) = ("inco", "switch");
/// The key of what is in a bridge of ours: one that has the same can be gone on with.
pub(super) const CONTENT: &str = "inco-content";
/// Slots of the monitor port's rings, as a power of two.
pub(super) const MONITOR_LOG2_SLOTS: u8 = 14;

/// Queue pairs of a memif port of Open vSwitch: it sends by one for each thread that polls and one for its main
/// thread, and a memif link has as many back.
pub(super) fn queue_pairs(pmd_cpu_mask: Option<&str>) -> u16 {
    let digits = pmd_cpu_mask.unwrap_or_default();
    let digits = digits.strip_prefix("0x").unwrap_or(digits);
    let pollers: u32 = digits
        .chars()
        .filter_map(|digit| digit.to_digit(16))
        .map(u32::count_ones)
        .sum();
    // Without a mask there is one on each NUMA node.
    u16::try_from(pollers.max(1)).unwrap_or(u16::MAX - 1) + 1
}

pub(super) fn monitor_name(bridge: &str) -> String {
    format!("{bridge}.mon")
}

/// What is written on a bridge of ours: that it is, and what all of it follows from.
pub(super) fn mark(
    config: &OpenFlowSwitchConfig,
    services: &[(ServiceRules, Scheduler)],
    queue_pairs: u16,
) -> BTreeMap<String, String> {
    let mut hasher = DefaultHasher::new();
    let rules: Vec<&ServiceRules> = services.iter().map(|(rules, _)| rules).collect();
    format!(
        "{} {:?} {} {:?} {:?} {rules:?} {:?} {queue_pairs}",
        config.datapath,
        config.control.passive(),
        config.monitor_socket.display(),
        config.uplinks,
        config.pool,
        config.steering.setup,
    )
    .hash(&mut hasher);
    BTreeMap::from([
        (MARK.0.to_owned(), MARK.1.to_owned()),
        (CONTENT.to_owned(), format!("{:016x}", hasher.finish())),
    ])
}

pub(super) fn memif_port(
    bridge: &str,
    number: u32,
    name: String,
    arguments: &str,
    queue_pairs: u16,
) -> PortSpec {
    PortSpec {
        options: BTreeMap::from([
            (
                "dpdk-devargs".to_owned(),
                format!("net_memif_{bridge}_{number},{arguments},socket-abstract=no"),
            ),
            ("n_rxq".to_owned(), queue_pairs.to_string()),
        ]),
        name,
        kind: "dpdk".to_owned(),
        number: u16::try_from(number).ok(),
    }
}

/// A port to that device; of several memif ports with one socket, interface `id`.
pub(super) fn device_port(
    bridge: &str,
    number: u32,
    name: String,
    device: &PortDevice,
    id: usize,
    queue_pairs: u16,
) -> PortSpec {
    match device {
        PortDevice::Memif(socket) => {
            let arguments = format!("role=server,id={id},socket={}", socket.display());
            memif_port(bridge, number, name, &arguments, queue_pairs)
        }
        PortDevice::Interface(interface) => PortSpec {
            name: interface.clone(),
            kind: String::new(),
            options: BTreeMap::new(),
            number: u16::try_from(number).ok(),
        },
        PortDevice::Dpdk(devargs) => PortSpec {
            name,
            kind: "dpdk".to_owned(),
            options: BTreeMap::from([("dpdk-devargs".to_owned(), devargs.clone())]),
            number: u16::try_from(number).ok(),
        },
    }
}

/// The number of an instance's data port.
pub(super) fn instance_port(slot: Slot, data_port: usize) -> u32 {
    FIRST_INSTANCE + DATA_PORTS * u32::from(slot.0) + data_port as u32
}

/// Makes the bridge, the monitor port, the uplinks and the ports for instances.
pub(super) fn first_ports(
    database: &mut Ovsdb,
    config: &OpenFlowSwitchConfig,
    mark: BTreeMap<String, String>,
    queue_pairs: u16,
) -> Result<(), OvsdbError> {
    let bridge = &config.bridge;
    database.ensure_bridge(&BridgeSpec {
        name: bridge.clone(),
        datapath: config.datapath.clone(),
        external_ids: mark,
        listens: config.control.passive(),
    })?;
    let monitor = format!(
        "role=client,id=0,socket={},rsize={MONITOR_LOG2_SLOTS}",
        config.monitor_socket.display()
    );
    let mut ports = vec![memif_port(
        bridge,
        MONITOR,
        monitor_name(bridge),
        &monitor,
        queue_pairs,
    )];
    for (index, uplink) in (0_u32..).zip(&config.uplinks) {
        let number = FIRST_UPLINK + index;
        let name = format!("{bridge}.up{index}");
        ports.push(device_port(bridge, number, name, uplink, 0, queue_pairs));
    }
    for of in &config.pool {
        for (id, device) in of.devices.iter().enumerate() {
            let number = instance_port(of.slot, id);
            let name = format!("{bridge}.i{}.{id}", of.slot.0);
            ports.push(device_port(bridge, number, name, device, id, queue_pairs));
        }
    }
    let numbers = database.ensure_ports(bridge, &ports)?;
    // The rules rest on the numbers that were asked for.
    for (port, number) in ports.iter().zip(numbers) {
        if port.number.map(u32::from) != Some(number) {
            return Err(OvsdbError::Interface {
                interface: port.name.clone(),
                what: format!("it has the number {number}, which was not asked for"),
            });
        }
    }
    Ok(())
}
