//! The driver for programs in this machine's kernel.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use anyhow::{Context, Result};
use configuration::{Configuration, Device, Service, Unusable};
use controller::PortPlace;
use ebpf_switch::{
    CAPABILITIES, EbpfSwitch, EbpfSwitchConfig, GATEWAY_MAC, PreparedPort, container_end, host_end,
    instance_mac,
};
use model::{AffinityKey, InterfaceSetup, NetFunction, Prefix, ServiceId, Slot, VipMode};
use soft_switch::Keep;
use switch::Capabilities;

use super::{Driver, Started};
use crate::pool;
use api::run_dir::run_dir;

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

/// The driver `ebpf`.
pub(super) struct Ebpf;

impl Driver for Ebpf {
    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn loads_programs(&self) -> bool {
        true
    }

    fn check(&self, _: &configuration::Switch) -> Result<(), (&'static str, Unusable)> {
        ebpf_switch::check().map_err(|error| {
            let wrong = Unusable::new(error.to_string(), "write driver = \"soft\"");
            ("switch.driver", wrong)
        })
    }

    fn start(&self, configuration: &Configuration, secret: [u64; 4], _: Option<Keep>) -> Result<Started> {
        let config = config(configuration, secret)?;
        let switch = EbpfSwitch::start(&config)?;
        Ok(Started {
            switch: Box::new(switch),
            ports: ports(configuration, &config),
            places: Some(places(configuration, &config)),
        })
    }

    fn clean_up(&self, run_dir: &Path) -> Result<()> {
        let (name, prefix) = names(run_dir);
        Ok(ebpf_switch::remove_all(&name, &prefix)?)
    }
}

/// The name of what is pinned for a run directory, and the prefix of its interfaces.
fn names(run_dir: &Path) -> (String, String) {
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

fn config(configuration: &Configuration, secret: [u64; 4]) -> Result<EbpfSwitchConfig> {
    let (name, prefix) = names(&run_dir());
    let mut uplinks = Vec::new();
    for uplink in &configuration.uplinks {
        match &uplink.device {
            Device::Kernel(interface) => uplinks.push(interface.clone()),
            other => anyhow::bail!(
                "uplink {:?}: {other} is none of the kernel's interfaces",
                uplink.name
            ),
        }
    }
    let own = own_addresses(configuration);
    let mut ports = Vec::new();
    for (id, service, slots) in of_services(configuration) {
        for slot in slots {
            ports.push(PreparedPort {
                slot,
                service: id,
                own: own(slot)?,
                egress: service.egress,
            });
        }
    }
    let switch = &configuration.switch;
    let [first, second, ..] = secret;
    Ok(EbpfSwitchConfig {
        name,
        prefix,
        uplinks,
        ports,
        mtu: mtu(configuration),
        flows: [u32::try_from(switch.flows)?, u32::try_from(switch.flows_ipv6)?],
        timeouts: switch.timeouts,
        half_open: switch.ebpf.half_open,
        shares: configuration
            .services
            .iter()
            .any(|service| service.affinity_key != AffinityKey::Flow),
        hash_key: [first, second],
    })
}

/// The services with the slots of their instances.
fn of_services(configuration: &Configuration) -> impl Iterator<Item = (ServiceId, &Service, Vec<Slot>)> {
    let numbered = (0..).map(ServiceId);
    numbered
        .zip(pool::slots(configuration))
        .map(|(id, (service, slots))| (id, service, slots))
}

/// What an instance's interface carries: the longest frame of every uplink.
fn mtu(configuration: &Configuration) -> u16 {
    let frames = configuration.uplinks.iter().map(|uplink| uplink.max_frame);
    frames
        .min()
        .unwrap_or_default()
        .saturating_sub(HEADER_BYTES)
        .max(MTU_MIN)
}

/// The addresses of a slot's instance for itself, if there are such.
fn own_addresses(configuration: &Configuration) -> impl Fn(Slot) -> Result<Vec<IpAddr>> {
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
                "switch.ebpf.instance_addresses: {}/{} has too few addresses for the places of all instances; write a \
                 shorter prefix",
                prefix.address, prefix.bits
            )
        })
    };
    move |slot| prefixes.iter().map(|prefix| one(prefix, slot)).collect()
}

/// The slots and port settings for each service's instances.
fn places(configuration: &Configuration, config: &EbpfSwitchConfig) -> Vec<Vec<PortPlace>> {
    let of_slot = |slot: Slot| config.ports.iter().find(|port| port.slot == slot);
    let of_service = |(_, service, slots): (ServiceId, &Service, Vec<Slot>)| -> Vec<PortPlace> {
        let count = slots.len();
        let place = |(number, slot): (usize, Slot)| {
            let own = of_slot(slot).map_or(&[][..], |port| port.own.as_slice());
            // Its own address first: the kernel takes it for connections that the program opens.
            let of_all = service.vip.iter().filter(|vip| vip.mode == VipMode::L2);
            let vips = of_all.flat_map(|vip| &vip.addresses);
            let addresses = own
                .iter()
                .chain(vips)
                .map(|address| (*address, Prefix::of(*address).bits));
            let setup = InterfaceSetup {
                host: container_end(&config.prefix, slot),
                name: INTERFACE.to_owned(),
                mac: instance_mac(slot),
                mtu: config.mtu,
                addresses: addresses.collect(),
                gateway_v4: GATEWAY_V4,
                gateway_v6: GATEWAY_V6,
                gateway_mac: GATEWAY_MAC,
                local_ports: own.is_empty().then(|| local_ports(number, count)),
            };
            PortPlace {
                slot,
                mounts: Vec::new(),
                env: Vec::new(),
                functions: vec![NetFunction::Port(setup)],
            }
        };
        (0..).zip(slots).map(place).collect()
    };
    of_services(configuration).map(of_service).collect()
}

/// How the instance of each slot is reached alone: at the addresses of its service, or at its own where those are
/// translated.
fn ports(configuration: &Configuration, config: &EbpfSwitchConfig) -> Vec<(Slot, health::Port)> {
    let services = &configuration.services;
    let port = |of: &PreparedPort| {
        let vip = services.get(of.service.index())?.vip.as_ref()?;
        let addresses = match vip.mode {
            VipMode::L2 => &vip.addresses,
            VipMode::Dnat => &of.own,
        };
        let port = health::Port {
            interface: host_end(&config.prefix, of.slot),
            mac: instance_mac(of.slot),
            gateway_mac: GATEWAY_MAC,
            addresses: addresses.clone(),
            mtu: config.mtu,
        };
        Some((of.slot, port))
    };
    config.ports.iter().filter_map(port).collect()
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

    const TEXT: &str = "[switch]\ndriver = \"ebpf\"\nebpf = { instance_addresses = \"10.0.0.128/25\" }\n\
                        [[uplink]]\nname = \"wan\"\ndevice = \"kernel:eth1\"\n[service.web]\nimage = \"nginx\"\n\
                        vip = { address = [\"10.0.0.100\", \"2001:db8::100\"], ports = \"80,443\" }\n\
                        instances = { max = 3, standby = 1 }\n";

    #[test]
    fn each_place_has_its_interface() {
        let configuration = crate::load::parse(TEXT, "a.toml").unwrap();
        let config = config(&configuration, [1, 2, 3, 4]).unwrap();
        assert_eq!(config.ports.len(), 6);
        assert_eq!((config.uplinks, config.mtu), (vec!["eth1".to_owned()], 1500));
        let config = super::config(&configuration, [1, 2, 3, 4]).unwrap();
        let places = places(&configuration, &config);
        assert_eq!(places.iter().map(Vec::len).collect::<Vec<_>>(), [6]);
        let NetFunction::Port(setup) = &places[0][1].functions[0] else {
            panic!("{:?}", places[0][1]);
        };
        let addresses: Vec<String> = setup
            .addresses
            .iter()
            .map(|(ip, bits)| format!("{ip}/{bits}"))
            .collect();
        assert_eq!(addresses, ["10.0.0.130/32", "10.0.0.100/32", "2001:db8::100/128"]);
        assert_eq!(setup.local_ports, None);
        let checked = &ports(&configuration, &config)[1].1;
        assert_eq!(checked.addresses[0].to_string(), "10.0.0.100");
        assert_eq!((checked.mac, checked.mtu), (setup.mac, setup.mtu));
    }

    #[test]
    fn an_instance_whose_address_is_translated_has_its_own_only() {
        let text = TEXT
            .replace("\"80,443\"", "80, mode = \"dnat\", target_port = 8080")
            .replace(
                "\"10.0.0.128/25\"",
                "[\"10.0.0.128/25\", \"2001:db8:1::/64\"], half_open = 100",
            );
        let configuration = crate::load::parse(&text, "a.toml").unwrap();
        let config = config(&configuration, [1, 2, 3, 4]).unwrap();
        assert_eq!((config.half_open, config.shares), (Some(100), false));
        let places = places(&configuration, &config);
        let NetFunction::Port(setup) = &places[0][1].functions[0] else {
            panic!("{:?}", places[0][1]);
        };
        let addresses: Vec<String> = setup.addresses.iter().map(|(ip, _)| ip.to_string()).collect();
        assert_eq!(addresses, ["10.0.0.130", "2001:db8:1::2"]);
        // There it is checked, too.
        let (slot, port) = &ports(&configuration, &config)[1];
        let checked: Vec<String> = port.addresses.iter().map(ToString::to_string).collect();
        assert_eq!((*slot, checked), (Slot(1), addresses));
    }

    #[test]
    fn instances_without_an_address_of_their_own_have_ports_of_their_own() {
        let ranges: Vec<_> = (0..6).map(|number| local_ports(number, 6)).collect();
        assert_eq!(ranges[0].0, 32_768);
        assert!(ranges.windows(2).all(|pair| pair[0].1 < pair[1].0), "{ranges:?}");
        assert!(ranges[5].1 <= 60_999);
        let few = TEXT.replace("/25", "/30");
        let configuration = crate::load::parse(&few, "a.toml").unwrap();
        let error = format!("{:#}", config(&configuration, [1, 2, 3, 4]).unwrap_err());
        assert!(error.contains("too few addresses"), "{error}");
    }

    #[test]
    fn names_fit_into_those_of_interfaces() {
        let (name, prefix) = names(Path::new("/tmp/other"));
        assert_ne!(name, names(Path::new(USUAL_RUN_DIR)).0);
        assert!(
            container_end(&prefix, Slot(1023)).len() <= ebpf_switch::NAME_LIMIT,
            "{prefix}"
        );
        assert_eq!(names(Path::new(USUAL_RUN_DIR)).1, "inco");
    }
}
