//! The driver for programs in this machine's kernel.

use std::path::Path;

use anyhow::Result;
use configuration::{Configuration, Device, Unusable};
use ebpf_switch::{CAPABILITIES, EbpfSwitch, EbpfSwitchConfig, PreparedPort, TunnelEnd};
use model::{PortKind, UplinkId};
use soft_switch::Keep;
use switch::Capabilities;

use super::kernel_ports::{made_ports, mtu, names, own_addresses, ports};
use super::{Driver, Started};
use crate::pool;
use api::run_dir::run_dir;

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
            ports: ports(configuration, &config.prefix)?,
            made_ports: made_ports(configuration, &config.prefix)?,
        })
    }

    fn clean_up(&self, run_dir: &Path) -> Result<()> {
        let (name, prefix) = names(run_dir);
        Ok(ebpf_switch::remove_all(&name, &prefix)?)
    }
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
    for of in pool::slots(configuration) {
        let is_own = of.kind == PortKind::Kernel;
        for slot in of.slots {
            ports.push(PreparedPort {
                slot,
                service: of.id,
                own: if is_own { own(slot)? } else { Vec::new() },
                egress: of.service.egress,
                kind: of.kind,
            });
        }
    }
    let switch = &configuration.switch;
    let [first, second, ..] = secret;
    Ok(EbpfSwitchConfig {
        name,
        prefix,
        uplinks,
        tunnel: tunnel(configuration),
        ports,
        mtu: mtu(configuration),
        flows: [u32::try_from(switch.flows)?, u32::try_from(switch.flows_ipv6)?],
        timeouts: switch.timeouts,
        half_open: switch.ebpf.half_open,
        shares: configuration
            .services
            .iter()
            .any(|service| service.affinity_key.shares_addresses()),
        hash_key: [first, second],
    })
}

/// The near end of tunnels, if an uplink has one.
fn tunnel(configuration: &Configuration) -> Option<TunnelEnd> {
    let mut uplinks = (0..).map(UplinkId).zip(&configuration.uplinks);
    uplinks.find_map(|(uplink, of)| {
        let tunnel = of.tunnel.as_ref()?;
        Some(TunnelEnd {
            uplink,
            max_frame: usize::from(of.max_frame),
            address: tunnel.address,
            network: tunnel.network,
            from: tunnel.from.clone(),
        })
    })
}

#[cfg(test)]
mod tests {
    use model::{NetFunction, Slot};

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
        let made = made_ports(&configuration, &config.prefix).unwrap();
        assert_eq!(made.iter().map(Vec::len).collect::<Vec<_>>(), [6]);
        let NetFunction::Port(setup) = &made[0][1].functions[0] else {
            panic!("{made:?}");
        };
        let addresses: Vec<String> = setup
            .addresses
            .iter()
            .map(|(ip, bits)| format!("{ip}/{bits}"))
            .collect();
        assert_eq!(addresses, ["10.0.0.130/32", "10.0.0.100/32", "2001:db8::100/128"]);
        assert_eq!(setup.local_ports, None);
        let checked = &ports(&configuration, &config.prefix).unwrap()[1].1;
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
        let made = made_ports(&configuration, &config.prefix).unwrap();
        let NetFunction::Port(setup) = &made[0][1].functions[0] else {
            panic!("{made:?}");
        };
        let addresses: Vec<String> = setup.addresses.iter().map(|(ip, _)| ip.to_string()).collect();
        assert_eq!(addresses, ["10.0.0.130", "2001:db8:1::2"]);
        // There it is checked, too.
        let (slot, port) = &ports(&configuration, &config.prefix).unwrap()[1];
        let checked: Vec<String> = port.addresses.iter().map(ToString::to_string).collect();
        assert_eq!((*slot, checked), (Slot(1), addresses));
    }

    #[test]
    fn a_prefix_with_too_few_addresses_is_refused() {
        let few = TEXT.replace("/25", "/30");
        let configuration = crate::load::parse(&few, "a.toml").unwrap();
        let error = format!("{:#}", config(&configuration, [1, 2, 3, 4]).unwrap_err());
        assert!(error.contains("too few addresses"), "{error}");
    }
}
