//! The interfaces of instances with kernel ports: which there are, and how a container's end is set up.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use anyhow::{Context, Result};
use configuration::{Configuration, Service};
use controller::MadePort;
use interfaces::{GATEWAY_MAC, container_end, frames_prefix, host_end, instance_mac};
use model::{InterfaceSetup, NetFunction, PortKind, Prefix, Slot, VipMode};

use crate::pool;

/// The name of the interface in a container.
const INTERFACE: &str = "eth0";
/// The next hop of instances. Nobody has it: its MAC address is known beforehand.
const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
/// An Ethernet header with two VLAN tags.
const HEADER_BYTES: u16 = 22;
/// The smallest MTU of IPv6 (RFC 8200 §5).
const MTU_MIN: u16 = 1280;
/// The ports for connections that programs open, as Linux has them.
const LOCAL_PORTS: (u16, u16) = (32_768, 60_999);
/// The run directory whose interfaces have the plain prefix.
const USUAL_RUN_DIR: &str = "/run/inco";

/// A name for a run directory, the same in each run, and the prefix of its interfaces.
pub(super) fn names(run_dir: &Path) -> (String, String) {
    let bytes = run_dir.as_os_str().as_encoded_bytes().iter();
    // FNV-1a: the same in every build, because the next run must find it.
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    });
    let prefix = if run_dir == Path::new(USUAL_RUN_DIR) {
        "inco".to_owned()
    } else {
        format!("i{:05x}-", hash & 0xf_ffff)
    };
    (format!("{hash:016x}"), prefix)
}

/// What an instance's interface carries: the longest frame of every uplink.
pub(super) fn mtu(configuration: &Configuration) -> u16 {
    let frames = configuration.uplinks.iter().map(|uplink| uplink.max_frame);
    frames
        .min()
        .unwrap_or_default()
        .saturating_sub(HEADER_BYTES)
        .max(MTU_MIN)
}

/// The addresses of a slot's instance for itself, if there are such.
pub(super) fn own_addresses(configuration: &Configuration) -> impl Fn(Slot) -> Result<Vec<IpAddr>> {
    let prefixes = &configuration.switch.ebpf.instance_addresses;
    let one = |prefix: &Prefix, slot: Slot| {
        let number = u32::from(slot.0) + 1;
        let address = match prefix.first() {
            IpAddr::V4(first) => IpAddr::V4(Ipv4Addr::from(u32::from(first).wrapping_add(number))),
            IpAddr::V6(first) => IpAddr::V6(Ipv6Addr::from(u128::from(first).wrapping_add(number.into()))),
        };
        let fits = prefix.contains(address) && Prefix::of(address) != *prefix;
        fits.then_some(address).with_context(|| {
            format!(
                "switch.ebpf.instance_addresses: {}/{} has too few addresses for all instances; write a \
                 shorter prefix",
                prefix.address, prefix.bits
            )
        })
    };
    move |slot| prefixes.iter().map(|prefix| one(prefix, slot)).collect()
}

/// The slots and port settings for each service's instances; none for other kinds of ports.
pub(super) fn made_ports(configuration: &Configuration, prefix: &str) -> Result<Vec<Vec<MadePort>>> {
    let own = own_addresses(configuration);
    let mtu = mtu(configuration);
    let frames_setup = |slot, port: u8| InterfaceSetup {
        host: container_end(&frames_prefix(prefix, port), slot),
        name: format!("eth{port}"),
        mac: instance_mac(slot),
        mtu,
        addresses: Vec::new(),
        gateway_v4: GATEWAY_V4,
        gateway_v6: GATEWAY_V6,
        gateway_mac: GATEWAY_MAC,
        local_ports: None,
    };
    let of_kind = |service: &Service, kind: PortKind, slots: Vec<Slot>| -> Result<Vec<MadePort>> {
        match kind {
            PortKind::Kernel => {}
            PortKind::Frames => {
                let made = slots.into_iter().map(|slot| {
                    let ports = 0..service.uplinks.len() as u8;
                    let functions = ports.map(|port| NetFunction::Frames(frames_setup(slot, port)));
                    MadePort {
                        slot,
                        kind,
                        mounts: Vec::new(),
                        env: Vec::new(),
                        functions: functions.collect(),
                    }
                });
                return Ok(made.collect());
            }
            PortKind::Routed | PortKind::Tunnel => {
                let made = slots.into_iter().map(|slot| MadePort {
                    slot,
                    kind,
                    mounts: Vec::new(),
                    env: Vec::new(),
                    functions: Vec::new(),
                });
                return Ok(made.collect());
            }
            PortKind::Memif | PortKind::Device | PortKind::Null => return Ok(Vec::new()),
        }
        let count = slots.len();
        let place = |(number, slot): (usize, Slot)| -> Result<MadePort> {
            let own = own(slot)?;
            // Its own address first: the kernel takes it for connections that the program opens.
            let of_all = service.vip.iter().filter(|vip| vip.mode == VipMode::L2);
            let vips = of_all.flat_map(|vip| &vip.addresses);
            let addresses = own
                .iter()
                .chain(vips)
                .map(|address| (*address, Prefix::of(*address).bits));
            let setup = InterfaceSetup {
                host: container_end(prefix, slot),
                name: INTERFACE.to_owned(),
                mac: instance_mac(slot),
                mtu,
                addresses: addresses.collect(),
                gateway_v4: GATEWAY_V4,
                gateway_v6: GATEWAY_V6,
                gateway_mac: GATEWAY_MAC,
                local_ports: own.is_empty().then(|| local_ports(number, count)),
            };
            Ok(MadePort {
                slot,
                kind,
                mounts: Vec::new(),
                env: Vec::new(),
                functions: vec![NetFunction::Port(setup)],
            })
        };
        (0..).zip(slots).map(place).collect()
    };
    let mut made = vec![Vec::new(); configuration.services.len()];
    for of in pool::slots(configuration) {
        if let Some(ports) = made.get_mut(of.id.index()) {
            ports.extend(of_kind(of.service, of.kind, of.slots)?);
        }
    }
    Ok(made)
}

/// How the instance of each slot is reached alone: at the addresses of its service, or at its own where those are
/// translated.
pub(super) fn ports(configuration: &Configuration, prefix: &str) -> Result<Vec<(Slot, health::Port)>> {
    let own = own_addresses(configuration);
    let mtu = mtu(configuration);
    let mut ports = Vec::new();
    for of in pool::slots(configuration).filter(|of| of.kind == PortKind::Kernel) {
        let Some(vip) = &of.service.vip else {
            continue;
        };
        for slot in of.slots {
            let addresses = match vip.mode {
                VipMode::L2 => vip.addresses.clone(),
                VipMode::Dnat => own(slot)?,
            };
            let port = health::Port {
                interface: host_end(prefix, slot),
                mac: instance_mac(slot),
                gateway_mac: GATEWAY_MAC,
                addresses,
                mtu,
            };
            ports.push((slot, port));
        }
    }
    Ok(ports)
}

/// The ports for connections that the program of one of so many instances opens. Those of two instances differ: both
/// open connections from the service's address.
fn local_ports(number: usize, count: usize) -> (u16, u16) {
    let (first, last) = LOCAL_PORTS;
    let each = (usize::from(last - first) + 1) / count.max(1);
    let begin = usize::from(first) + number * each;
    let port = |of: usize| u16::try_from(of).unwrap_or(last);
    (port(begin), port(begin + each.max(1) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_without_an_address_of_their_own_have_ports_of_their_own() {
        let ranges: Vec<_> = (0..6).map(|number| local_ports(number, 6)).collect();
        assert_eq!(ranges[0].0, 32_768);
        assert!(ranges.windows(2).all(|pair| pair[0].1 < pair[1].0), "{ranges:?}");
        assert!(ranges[5].1 <= 60_999);
    }

    #[test]
    fn names_fit_into_those_of_interfaces() {
        let (name, prefix) = names(Path::new("/tmp/other"));
        assert_ne!(name, names(Path::new(USUAL_RUN_DIR)).0);
        assert!(
            container_end(&frames_prefix(&prefix, 1), Slot(1023)).len() <= interfaces::NAME_LIMIT,
            "{prefix}"
        );
        assert_eq!(names(Path::new(USUAL_RUN_DIR)).1, "inco");
    }
}
