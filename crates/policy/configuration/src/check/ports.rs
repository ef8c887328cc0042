//! Checks of services against what the switch's driver can do with their ports, of each variant of their instances.

use model::{Capabilities, Match, PortKind, Probe, Ready, UplinkKind, VipMode};

use super::{directions, has_own_addresses};
use crate::read::Reader;
use crate::types::*;
use crate::units::ValueError;
use crate::variants::Variant;

pub(super) fn check(reader: &mut Reader, configuration: &Configuration, service: &Service) {
    let kinds = service.port_kinds();
    for variant in service.variants() {
        check_variant(reader, configuration, &variant, &kinds);
    }
}

/// Whether programs with such ports use the kernel's network: they end connections.
fn ends_connections(port: PortKind) -> bool {
    matches!(port, PortKind::Routed | PortKind::Kernel)
}

/// Whether the switch sees what instances with such ports take.
fn has_rings(port: PortKind) -> bool {
    !ends_connections(port) && port != PortKind::Frames
}

/// Suggests another driver that has the capability.
pub(super) fn or_other(drivers: Drivers, does: &dyn Fn(&Capabilities) -> bool) -> String {
    let mut others = SwitchDriver::WORDS
        .iter()
        .filter(|(_, other)| does(&drivers(*other)));
    let other = others
        .next()
        .map(|(word, _)| format!(", or driver = \"{word}\" in [switch]"));
    other.unwrap_or_default()
}

/// `kinds`: the kinds of ports of all instances of the service.
fn check_variant(
    reader: &mut Reader,
    configuration: &Configuration,
    variant: &Variant<'_>,
    kinds: &[PortKind],
) {
    let (service, switch) = (&*variant.service, &configuration.switch);
    let (can, name, drivers) = (&switch.can, switch.driver.name(), reader.drivers);
    let or_other = |does: &dyn Fn(&Capabilities) -> bool| or_other(drivers, does);
    let has_stall_after = reader
        .positions
        .has(&format!("service.{}.stall_after", service.name));
    let mut wrong = |key: &str, what: &str, write: String| {
        reader.report(
            &variant.key(key),
            ValueError::new(format!("the driver {name} {what}"), write),
        );
    };
    let is_routed = service.port == PortKind::Routed;
    if is_routed && !can.connects(service.port) {
        let what = "reaches no servers that others run";
        let other = or_other(&|can| can.connects(PortKind::Routed));
        if service.instances.are_others() {
            wrong("instances.from", what, format!("remove it{other}"));
        } else {
            let what = "reaches no instances on other machines by their addresses";
            wrong("port", what, format!("write another port{other}"));
        }
    } else if !can.connects(service.port) {
        let known = can.ports.iter().find(|kind| **kind != PortKind::Null);
        let known = known.map_or("null", |kind| kind.name());
        let write = format!(
            "write port = \"{known}\"{}",
            or_other(&|can| can.connects(service.port))
        );
        let what = match service.port {
            PortKind::Frames if can.connects(PortKind::Kernel) => {
                "gives packets to the network of an instance, which ends connections, and sees none come back"
            }
            _ => "does not support this kind of port",
        };
        wrong("port", what, write);
    }
    if service.affinity == Affinity::Relaxed && service.port == PortKind::Kernel && can.relaxed_moves {
        let what = "moves no flow of an instance that ends connections";
        wrong("affinity", what, "write affinity = \"strict\"".to_owned());
    }
    if service.affinity == Affinity::Relaxed && !can.relaxed_moves {
        let what = "cannot hold the packets of a flow while it moves";
        let write = format!(
            "write affinity = \"strict\"{}",
            or_other(&|can| can.relaxed_moves)
        );
        wrong("affinity", what, write);
    }
    if !can.affinity_keys.contains(&service.affinity_key) {
        let what = "picks an instance for each flow by itself";
        let has = |can: &Capabilities| can.affinity_keys.contains(&service.affinity_key);
        let write = format!("write affinity_key = \"flow\"{}", or_other(&has));
        wrong("affinity_key", what, write);
    }
    if service.flow_counters && !can.return_matching {
        let what = "does not count returned packets for each flow";
        let write = format!(
            "write flow_counters = false{}",
            or_other(&|can| can.return_matching)
        );
        wrong("flow_counters", what, write);
    }
    if service.signals && !can.signals {
        let what = "does not see signals of instances";
        let write = format!("write signals = false{}", or_other(&|can| can.signals));
        wrong("signals", what, write);
    }
    let sees_stalls = |can: &Capabilities| can.ring_occupancy || can.probes;
    if has_stall_after && !sees_stalls(can) {
        let what = "does not see whether an instance takes packets";
        let write = format!("write health in its place{}", or_other(&sees_stalls));
        wrong("stall_after", what, write);
    }
    let (is_end, has_rings) = (ends_connections(service.port), has_rings(service.port));
    if has_stall_after && sees_stalls(can) && !kinds.iter().copied().any(self::has_rings) {
        let what = "does not see whether a program takes packets from an interface";
        let write = match is_end {
            true => "write health in its place",
            false => "write health = { command = [...] } in its place",
        };
        wrong("stall_after", what, write.to_owned());
    }
    if service.ready == Ready::Consumes && (!can.probes || !has_rings) {
        let what = "cannot see whether an instance takes packets";
        let write = "write ready = \"connected\" or { exec = [...] }".to_owned();
        wrong("ready", what, write);
    }
    let shows_listeners = service.port == PortKind::Frames || is_end && service.vip.is_some();
    if service.ready == Ready::Listens && !shows_listeners {
        let what = "sees who listens only in the network of a kernel port, at the address of its service";
        let write = "write ready = \"connected\" or { exec = [...] }".to_owned();
        wrong("ready", what, write);
    }
    let is_asked = can.checks && kinds.iter().copied().any(ends_connections) && service.vip.is_some();
    let needs = if can.checks {
        "asks instances over their network only with port = \"kernel\" and vip"
    } else {
        "does not ask instances over their network"
    };
    if service
        .health
        .as_ref()
        .is_some_and(|of| !matches!(of.probe, Probe::Command(_)))
        && !is_asked
    {
        let write = "write health = { command = [...] }, or remove it".to_owned();
        wrong("health", needs, write);
    }
    if service.port == PortKind::Null && service.health.is_some() {
        wrong("health", "has nothing to check in a sink", "remove it".to_owned());
    }
    if service.agent.is_some() && !is_asked {
        wrong("agent", needs, "remove it".to_owned());
    }
    if !service.symmetric && (!can.returns || is_end) {
        let what = "gives both directions of a flow to one instance, which answers for itself";
        wrong("symmetric", what, "write symmetric = true".to_owned());
    }
    match &service.vip {
        Some(vip) if !can.vips.contains(&vip.mode) => {
            let has_any = !can.vips.is_empty();
            let what = if has_any {
                "cannot do that mode"
            } else {
                "gives services no address"
            };
            let words: Vec<String> = can
                .vips
                .iter()
                .map(|mode| format!("mode = \"{}\"", mode.name()))
                .collect();
            let here = if has_any {
                words.join(" or ")
            } else {
                "match in its place".to_owned()
            };
            let write = format!("write {here}{}", or_other(&|can| can.vips.contains(&vip.mode)));
            wrong(if has_any { "vip.mode" } else { "vip" }, what, write);
        }
        Some(vip) if vip.mode == VipMode::Dnat && !is_end => {
            let what = "translates to the addresses of instances that have a network of their own";
            wrong(
                "vip.mode",
                what,
                "write port = \"kernel\", or mode = \"l2\"".to_owned(),
            );
        }
        Some(vip) if !is_routed && vip.mode == VipMode::Dnat && !has_own_addresses(configuration, vip) => {
            let what = "translates to addresses of instances' own, of the same IP version";
            let write = "write instance_addresses = \"10.0.0.128/25\" in [switch.ebpf]".to_owned();
            wrong("vip.mode", what, write);
        }
        Some(_)
            if service.matches
                != Match {
                    vlan: service.matches.vlan,
                    ..Match::default()
                } =>
        {
            let what = "takes the packets to the address of a service that has one";
            wrong(
                "match",
                what,
                "remove all keys of match but vlan, or vip".to_owned(),
            );
        }
        Some(_)
            if service.uplinks.iter().any(|id| {
                let uplink = configuration.uplinks.get(id.index());
                uplink.is_some_and(|uplink| uplink.device.kind() != UplinkKind::Kernel)
            }) =>
        {
            let what = "answers for the address of a service on interfaces of the kernel";
            let write = "write uplinks with device = \"kernel:INTERFACE\"".to_owned();
            wrong("uplinks", what, write);
        }
        None if is_end && can.returns => {
            let what = "is the next hop of instances with kernel ports, which needs an address";
            let write =
                "write vip = { address = \"10.0.0.100\", ports = \"80\" }, or port = \"memif\"".to_owned();
            wrong("vip", what, write);
        }
        _ if is_end && can.returns && service.uplinks.len() > 1 => {
            let what = "gives an instance with a kernel port one uplink";
            wrong("uplinks", what, "write one".to_owned());
        }
        None if !can.returns && service.matches.is_any() => {
            let what = "has instances that end connections, and this service says neither address nor match";
            let write = "write vip = { address = \"10.0.0.100\", ports = \"80\" }".to_owned();
            wrong("vip", what, write);
        }
        _ => {}
    }
    if service.symmetric && !can.sees_openers && directions(service).len() == 1 {
        let what = "cannot tell from this match which end opened a flow, and so cannot pin both directions to \
                    one instance";
        let write = "write symmetric = false, or a match for one direction only".to_owned();
        wrong("symmetric", what, write);
    }
}
