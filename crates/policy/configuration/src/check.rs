//! Checks between the parts of a configuration.

mod back_ends;
mod external;
mod moves;
mod placed;
mod places;
mod ports;
mod reports;
mod tunnels;

use std::ops::RangeInclusive;

use model::{
    AffinityKey, Capabilities, Fallback, Match, Nanos, NetFunction, PortKind, Prefix, Slot, UplinkId, Vip,
};

use crate::chains::check_chains;
use crate::problem::Positions;
use crate::read::Reader;
use crate::types::*;
use crate::units::ValueError;

/// Shortest timeout of flows of other protocols where associations are listed.
const ASSOCIATIONS_TIMEOUT_MIN: Nanos = Nanos::from_secs(1);

pub(crate) fn check(reader: &mut Reader, configuration: &Configuration) {
    check_limits(reader, configuration);
    places::check(reader, configuration);
    crate::actors::check(reader, configuration);
    // The host's side of a service of actors is like the card's.
    let mut written = configuration.clone();
    written.services.retain(Service::is_written);
    let configuration = &written;
    check_uplinks(reader, configuration);
    check_engine(reader, configuration);
    check_devices(reader, configuration);
    check_switch(reader, configuration);
    back_ends::check(reader, configuration);
    placed::check(reader, configuration);
    tunnels::check(reader, configuration);
    reports::check(reader, configuration);
    external::check(reader, configuration);
    moves::check(reader, configuration);
    check_overlaps(reader, configuration);
    check_chains(reader, configuration);
}

fn line_of(positions: &Positions, key: &str) -> usize {
    positions.of(key).line
}

fn check_uplinks(reader: &mut Reader, configuration: &Configuration) {
    let uplinks = &configuration.uplinks;
    for (index, uplink) in uplinks.iter().enumerate() {
        for (earlier, other) in uplinks.iter().enumerate().take(index) {
            if other.name == uplink.name && !other.name.is_empty() {
                let line = line_of(&reader.positions, &format!("uplink[{earlier}].name"));
                let what = format!("line {line} already has an uplink {:?}", uplink.name);
                reader.report(
                    &format!("uplink[{index}].name"),
                    ValueError::new(what, "write another name"),
                );
            }
            let same = match (&uplink.device, &other.device) {
                // Two links on one socket would take each other's peers.
                (Device::Memif(a), Device::Memif(b)) => a == b,
                // Several uplinks may read one capture; written files are checked below.
                (Device::Pcap(_), Device::Pcap(_)) => false,
                (Device::Dpdk(a), Device::Dpdk(b)) => {
                    let address =
                        |text: &str| text.split(',').next().unwrap_or_default().to_ascii_lowercase();
                    !a.is_empty() && (a == b || address(a) == address(b) && !a.contains("representor"))
                }
                (a, b) => a == b,
            };
            if same {
                let what = format!("uplink {:?} already uses this device", other.name);
                reader.report(
                    &format!("uplink[{index}].device"),
                    ValueError::new(what, "write another device"),
                );
            }
        }
        // Opening a file for writing truncates it.
        for written in uplink.device.captures_written() {
            let reads = |other: &Uplink| other.device.captures_read().contains(&written);
            let writes = |other: &Uplink| other.device.captures_written().contains(&written);
            let earlier = uplinks.iter().take(index);
            let twice = uplink
                .device
                .captures_written()
                .iter()
                .filter(|file| **file == written)
                .count()
                > 1;
            if twice || uplinks.iter().any(reads) || earlier.clone().any(writes) {
                let what = format!(
                    "{} is already read or written by another capture",
                    written.display()
                );
                let wrong = ValueError::new(what, "write a different file after tx=");
                reader.report(&format!("uplink[{index}].device"), wrong);
                break;
            }
        }
    }
}

/// Checks what engines on other machines need.
fn check_engine(reader: &mut Reader, configuration: &Configuration) {
    for (place, engine) in configuration.engines() {
        // A kubeconfig says by itself how the connection is encrypted.
        if engine.answers_here() || engine.tls.is_some() || engine.driver == EngineDriver::Kubernetes {
            continue;
        }
        let what = "the engine is on another machine and the connection to it is not encrypted";
        let write = "write tls = \"DIR\", a directory with ca.pem, cert.pem and key.pem";
        let key = match place {
            Some(place) => format!("place[{}].host", place.0),
            None => "engine.host".to_owned(),
        };
        reader.report(&key, ValueError::new(what, write));
    }
    for service in &configuration.services {
        let mut engines = configuration.engines_of(service).into_iter();
        let is_elsewhere = |engine: &Engine| !engine.is_local() && !engine.is_orchestrator();
        let Some(engine) = engines.find(is_elsewhere) else {
            continue;
        };
        let key = |name: &str| format!("service.{}.{name}", service.name);
        if let Some(variant) = service.variants().find(|of| of.service.port == PortKind::Memif) {
            let what = format!(
                "a memif port shares memory, and the containers of {} are on another machine",
                engine.host
            );
            let write = "write an engine on this machine ([engine] host = \"unix:///run/docker.sock\"), or port = \
                         \"device\"";
            reader.report(&variant.key("port"), ValueError::new(what, write));
        }
        for (index, device) in service.devices.iter().enumerate() {
            if matches!(device.function, NetFunction::Pci { vfio: None, .. }) {
                let what =
                    "the VFIO group of a function on the engine's machine is not known on this machine";
                let write = "write vfio = \"/dev/vfio/N\"; on the engine's machine, `readlink \
                             /sys/bus/pci/devices/ADDRESS/iommu_group` ends in N";
                reader.report(
                    &format!("{}[{index}]", key("devices")),
                    ValueError::new(what, write),
                );
            }
        }
    }
}

/// Checks the functions of network cards for instances.
fn check_devices(reader: &mut Reader, configuration: &Configuration) {
    let mut known: Vec<(&InstanceDevice, String)> = Vec::new();
    for service in &configuration.services {
        let key = |name: &str| format!("service.{}.{name}", service.name);
        if service.port != PortKind::Device {
            if !service.devices.is_empty() {
                let wrong = ValueError::new(
                    "devices need port = \"device\", and this service has another kind",
                    "write port = \"device\", or remove this key",
                );
                reader.report(&key("devices"), wrong);
            }
            continue;
        }
        let needed = service.instance_limit() as usize * service.uplinks.len();
        if service.devices.len() < needed || service.devices.len() % service.uplinks.len().max(1) != 0 {
            let what = format!(
                "{} devices for {} instances, standby included; they need {needed}, {} each",
                service.devices.len(),
                service.instance_limit(),
                service.uplinks.len()
            );
            let write = "write one device per data port of each instance, or a smaller max or standby";
            reader.report(&key("devices"), ValueError::new(what, write));
        }
        for (index, device) in service.devices.iter().enumerate() {
            let place = format!("{}[{index}]", key("devices"));
            let same = |(other, _): &&(&InstanceDevice, String)| {
                other.representor == device.representor || other.function == device.function
            };
            if let Some((_, other)) = known.iter().find(same) {
                let what = format!(
                    "{other} (line {}) already uses it",
                    line_of(&reader.positions, other)
                );
                reader.report(
                    &place,
                    ValueError::new(what, "write another representor and function"),
                );
            }
            known.push((device, place.clone()));
            let is_moved = !matches!(device.function, NetFunction::Pci { .. });
            let mut engines = configuration.engines_of(service).into_iter();
            if is_moved && engines.any(|engine| engine.driver != EngineDriver::Oci) {
                let wrong = ValueError::new(
                    "Docker cannot move a network interface of the machine into a container",
                    "write pci = \"ADDRESS\" of a function that vfio-pci has, or driver = \"oci\" in [engine]",
                );
                reader.report(&place, wrong);
            }
        }
    }
}

fn check_limits(reader: &mut Reader, configuration: &Configuration) {
    let total: u64 = configuration
        .services
        .iter()
        .map(|service| u64::from(service.instance_limit()) * service.port_kinds().len() as u64)
        .sum();
    if total > Slot::LIMIT as u64 {
        // Name the service with the largest demand.
        let largest = configuration
            .services
            .iter()
            .max_by_key(|service| service.instance_limit());
        let key = largest.map_or_else(
            || "service".to_owned(),
            |service| format!("service.{}.instances", service.name),
        );
        let what = format!(
            "the services need {total} slots, one for each instance and kind of port, standby included, more than the \
             switch's limit of {}",
            Slot::LIMIT
        );
        reader.report(&key, ValueError::new(what, "write a smaller max or standby"));
    }
    for (index, uplink) in configuration.uplinks.iter().enumerate() {
        let workers = configuration.switch.worker_count();
        if uplink.queues > 1 && matches!(uplink.device, Device::Pcap(_)) {
            let wrong = ValueError::new("a capture has only one queue", "remove it");
            reader.report(&format!("uplink[{index}].queues"), wrong);
        } else if usize::from(uplink.queues) > workers {
            let what = format!("{} queues, more than the {workers} workers", uplink.queues);
            let write = format!("write at most {workers}, or more CPUs in switch.workers");
            reader.report(&format!("uplink[{index}].queues"), ValueError::new(what, write));
        }
    }
    for service in &configuration.services {
        let per_buffer = service.ring.buffer_bytes;
        for uplink in service
            .uplinks
            .iter()
            .filter_map(|id| configuration.uplinks.get(id.index()))
        {
            // A frame that needs more buffers than the ring has could never pass.
            if u64::from(uplink.max_frame) > u64::from(per_buffer) * u64::from(service.ring.slots / 2) {
                let what = format!(
                    "the longest frame of uplink {} needs more than half a ring",
                    uplink.name
                );
                let write = "write a larger buffer_bytes or more slots";
                reader.report(
                    &format!("service.{}.ring", service.name),
                    ValueError::new(what, write),
                );
            }
        }
    }
}

/// Checks the configuration against the switch's capabilities.
fn check_switch(reader: &mut Reader, configuration: &Configuration) {
    let switch = &configuration.switch;
    for (key, of) in [
        ("switch.unmatched", switch.unmatched),
        ("switch.other", switch.other),
    ] {
        if of == Fallback::Host && !switch.can.passes_to_host {
            let what = format!(
                "the driver {} takes uplinks away from this machine's own network",
                switch.driver.name()
            );
            reader.report(key, ValueError::new(what, "write \"drop\" or an uplink's name"));
        }
    }
    let (can, name, drivers) = (&switch.can, switch.driver.name(), reader.drivers);
    let or_other = |does: &dyn Fn(&Capabilities) -> bool| ports::or_other(drivers, does);
    for (index, uplink) in configuration.uplinks.iter().enumerate() {
        let kind = uplink.device.kind();
        if !can.uplinks.contains(&kind) {
            let what = format!("the driver {name} cannot use {} as an uplink", kind.name());
            let known: Vec<&str> = can.uplinks.iter().map(|kind| kind.name()).collect();
            let write = format!(
                "write {}{}",
                known.join(" or "),
                or_other(&|can| can.uplinks.contains(&kind))
            );
            reader.report(&format!("uplink[{index}].device"), ValueError::new(what, write));
        }
        if let Some(limit) = can.max_frame.filter(|limit| uplink.max_frame > *limit) {
            let what = format!("the driver {name} carries frames of at most {limit} bytes");
            let carries = |can: &Capabilities| can.max_frame.is_none_or(|limit| uplink.max_frame <= limit);
            let write = format!("write {limit}{}", or_other(&carries));
            reader.report(
                &format!("uplink[{index}].max_frame"),
                ValueError::new(what, write),
            );
        }
    }
    let mut ports = 1 + configuration.uplinks.len() as u64;
    for service in &configuration.services {
        if service.signals && service.autoscaler.name() != "fixed" {
            let what = format!(
                "the autoscaler {} decides, and signals would, too",
                service.autoscaler.name()
            );
            let wrong = ValueError::new(what, "write autoscaler = \"fixed\", or remove signals");
            reader.report(&format!("service.{}.signals", service.name), wrong);
        }
        if service.affinity_key.reads_content() {
            let mut wrong = |key: &str, what: &str, write: &str| {
                let what = format!("affinity_key = \"{}\" {what}", service.affinity_key.name());
                let key = format!("service.{}.{key}", service.name);
                reader.report(&key, ValueError::new(what, write));
            };
            let mut others = configuration.services.iter();
            let has_other = |of: &&Service| of.affinity_key.reads_content() && of.name != service.name;
            if let Some(other) = others.find(has_other) {
                let what = format!("is for one service, and {} has such a key, too", other.name);
                wrong("affinity_key", &what, "write \"flow\" for one of them");
            }
            if service.vip.is_some() {
                let what = "is for functions, which have no address of the service";
                wrong("vip", what, "write match in its place");
            }
            if service.flow_counters {
                let what = "does not count returned packets for each flow";
                wrong("flow_counters", what, "write flow_counters = false");
            }
            let is_spi = service.affinity_key == AffinityKey::Spi;
            match service.affinity {
                Affinity::Relaxed if is_spi && !service.move_state => {
                    let what = "moves flows with their state only";
                    wrong(
                        "affinity",
                        what,
                        "write affinity = \"strict\", or move_state = true, too",
                    );
                }
                Affinity::Relaxed if !is_spi => {
                    wrong("affinity", "moves no flows", "write affinity = \"strict\"");
                }
                _ => {}
            }
        }
        if service.affinity_key != AffinityKey::Spi && !service.associations.is_empty() {
            let key = format!("service.{}.associations", service.name);
            let what = format!(
                "affinity_key = \"{}\" knows no associations",
                service.affinity_key.name()
            );
            reader.report(
                &key,
                ValueError::new(what, "write affinity_key = \"spi\", or remove them"),
            );
        }
        // The switch sees to them four times a second.
        let other = configuration.switch.timeouts.other;
        if !service.associations.is_empty() && other < ASSOCIATIONS_TIMEOUT_MIN {
            let what = format!(
                "flows of associations would end: service {} lists some",
                service.name
            );
            reader.report(
                "switch.timeouts.other",
                ValueError::new(what, "write at least \"1s\""),
            );
        }
        ports::check(reader, configuration, service);
        ports += match service.port {
            PortKind::Device => service.devices.iter().filter(|of| of.is_of_dpdk()).count() as u64,
            PortKind::Memif
            | PortKind::Kernel
            | PortKind::Frames
            | PortKind::Routed
            | PortKind::Tunnel
            | PortKind::Null => {
                u64::from(service.made_ports(switch.spare_ports())) * service.uplinks.len() as u64
            }
        };
    }
    if let Some(limit) = can.dpdk_port_limit.filter(|limit| ports > u64::from(*limit)) {
        let what = format!(
            "{ports} ports for uplinks, monitor, instances and spare_ports, more than the driver {name}'s limit of \
             {limit}"
        );
        let largest = configuration
            .services
            .iter()
            .max_by_key(|service| service.instance_limit());
        let key = largest.map_or_else(
            || "service".to_owned(),
            |service| format!("service.{}.instances", service.name),
        );
        let write = "write a smaller max, standby or switch.openflow.spare_ports";
        reader.report(&key, ValueError::new(what, write));
    }
}

/// Whether instances have addresses of their own of each IP version that the service has.
fn has_own_addresses(configuration: &Configuration, vip: &Vip) -> bool {
    let own = &configuration.switch.ebpf.instance_addresses;
    vip.addresses
        .iter()
        .all(|of| own.iter().any(|prefix| prefix.address.is_ipv4() == of.is_ipv4()))
}

fn check_overlaps(reader: &mut Reader, configuration: &Configuration) {
    let services = &configuration.services;
    // What is behind another service takes no packets by a match.
    let takes_packets = |of: &&Service| configuration.previous(of).is_none();
    for (index, service) in services.iter().enumerate().filter(|(_, of)| takes_packets(of)) {
        for other in services.iter().take(index).filter(takes_packets) {
            let here = is_subset(service, other);
            let there = is_subset(other, service);
            let same = here && there;
            if !same && (here || there || !overlaps(service, other)) {
                continue;
            }
            let key = format!("service.{}.match", service.name);
            let line = line_of(&reader.positions, &format!("service.{}.match", other.name));
            let what = if same {
                format!("service {} (line {line}) matches the same packets", other.name)
            } else {
                format!(
                    "a packet can match both this service and service {} (line {line})",
                    other.name
                )
            };
            let write =
                "write matches without common packets, or one match that lies entirely within the other";
            reader.report(&key, ValueError::new(what, write));
        }
    }
}

/// The directions of a service's packets: its match, and the reverse if it is symmetric.
fn directions(service: &Service) -> Vec<Match> {
    let mut all = service.all_matches();
    if service.symmetric {
        let back: Vec<Match> = all.iter().map(Match::reversed).collect();
        all.extend(back.into_iter().filter(|back| service.matches != *back));
    }
    all
}

/// Whether one packet can match both services, each in the direction of its match. It is no conflict if one service's
/// match meets the other's reverse: the first in the order of matches then gets both directions of the flow. So
/// services on ports 80 and 443 can coexist, although a packet may go from port 80 to port 443.
fn overlaps(a: &Service, b: &Service) -> bool {
    let of_b = b.all_matches();
    a.uplinks
        .iter()
        .any(|uplink: &UplinkId| b.uplinks.contains(uplink))
        && a.all_matches()
            .iter()
            .any(|a| of_b.iter().any(|b| matches_overlap(a, b)))
}

fn matches_overlap(a_match: &Match, b_match: &Match) -> bool {
    intersect(a_match.protocol, b_match.protocol, |a, b| a == b)
        && intersect(a_match.vlan, b_match.vlan, |a, b| a == b)
        && intersect(a_match.src, b_match.src, prefixes_intersect)
        && intersect(a_match.dst, b_match.dst, prefixes_intersect)
        && families_intersect(a_match, b_match)
        && intersect(
            a_match.src_port.as_ref(),
            b_match.src_port.as_ref(),
            ranges_intersect,
        )
        && intersect(
            a_match.dst_port.as_ref(),
            b_match.dst_port.as_ref(),
            ranges_intersect,
        )
}

/// Whether every packet that matches `a` also matches `b`, judged by the two matches alone.
fn is_subset(a: &Service, b: &Service) -> bool {
    let inside = |a: &Match, b: &Match| {
        within(a.protocol, b.protocol, |a, b| a == b)
            && within(a.vlan, b.vlan, |a, b| a == b)
            && within(a.src, b.src, |a, b| a.is_within(&b))
            && within(a.dst, b.dst, |a, b| a.is_within(&b))
            && within(a.src_port.as_ref(), b.src_port.as_ref(), range_within)
            && within(a.dst_port.as_ref(), b.dst_port.as_ref(), range_within)
    };
    a.uplinks.iter().all(|uplink| b.uplinks.contains(uplink))
        && directions(a)
            .iter()
            .all(|a| directions(b).iter().any(|b| inside(a, b)))
}

fn intersect<T>(a: Option<T>, b: Option<T>, both: impl Fn(T, T) -> bool) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => both(a, b),
        _ => true,
    }
}

fn within<T>(a: Option<T>, b: Option<T>, both: impl Fn(T, T) -> bool) -> bool {
    match (a, b) {
        (_, None) => true,
        (None, Some(_)) => false,
        (Some(a), Some(b)) => both(a, b),
    }
}

/// Whether a packet of one IP version can match both: `a` may require IPv4 and `b` IPv6.
fn families_intersect(a: &Match, b: &Match) -> bool {
    let family = |m: &Match| m.src.or(m.dst).map(|prefix| prefix.address.is_ipv4());
    intersect(family(a), family(b), |a, b| a == b)
}

fn prefixes_intersect(a: Prefix, b: Prefix) -> bool {
    a.is_within(&b) || b.is_within(&a)
}

fn range_within(a: &RangeInclusive<u16>, b: &RangeInclusive<u16>) -> bool {
    b.contains(a.start()) && b.contains(a.end())
}

fn ranges_intersect(a: &RangeInclusive<u16>, b: &RangeInclusive<u16>) -> bool {
    a.start() <= b.end() && b.start() <= a.end()
}

impl Configuration {
    /// Indices of the services in the order in which their matches must be tried: narrower before wider, else in the
    /// order of the file.
    pub fn match_order(&self) -> Vec<usize> {
        let mut left: Vec<usize> = (0..self.services.len()).collect();
        let mut order = Vec::with_capacity(left.len());
        let strictly = |a: &Service, b: &Service| is_subset(a, b) && !is_subset(b, a);
        while !left.is_empty() {
            let narrowest = |candidate: &usize| {
                let candidate = &self.services[*candidate];
                !left
                    .iter()
                    .any(|other| strictly(&self.services[*other], candidate))
            };
            // Strict narrowness is a partial order, so a narrowest service always exists.
            let place = left.iter().position(narrowest).unwrap_or_default();
            order.push(left.remove(place));
        }
        order
    }
}
