//! Parsers of values, with their error messages.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use model::{
    Association, CAPABILITIES, Capabilities, Fallback, Match, Mount, PortKind, Prefix, Ready, ServiceId,
    StandbyMode, TaskFile, UplinkId, WorkerId, protocol,
};
use placement::{PlaceId, Placement};
use toml::de::DeValue;

use crate::actors;
use crate::keys;
use crate::limits::*;
use crate::nearest::{list, write_one_of};
use crate::read::{At, Reader, Section, float, integer, number, text, texts, word};
use crate::types::*;
use crate::units::{self, ValueError};

/// Parses a name that becomes part of container, cgroup and file names.
pub(crate) fn name(text: &str) -> Result<String, ValueError> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if text.is_empty() || text.len() > NAME_LIMIT || text.starts_with('-') || !text.chars().all(allowed) {
        let write = format!(
            "write 1 to {} characters of a-z, 0-9 and -, not starting with -",
            NAME_LIMIT
        );
        return Err(ValueError::new(format!("{text:?} is not a name"), write));
    }
    Ok(text.to_owned())
}

fn uplink_of(names: &[String], text: &str) -> Result<UplinkId, ValueError> {
    let index = names.iter().position(|name| name == text && !name.is_empty());
    index
        .and_then(|index| u8::try_from(index).ok())
        .map(UplinkId)
        .ok_or_else(|| {
            let known: Vec<&str> = names
                .iter()
                .map(String::as_str)
                .filter(|name| !name.is_empty())
                .collect();
            let write = if known.is_empty() {
                "add an [[uplink]] with that name".to_owned()
            } else {
                write_one_of(text, known)
            };
            ValueError::new(format!("unknown uplink {text:?}"), write)
        })
}

/// Reads the uplinks of the file.
pub(crate) fn uplink_tables(at: At<'_>) -> Result<Vec<Uplink>, ValueError> {
    let example = "[[uplink]], name = \"wan\", device = \"memif:wan.sock\"";
    let Some(items) = at.value.as_array() else {
        return Err(at.wrong_kind("a list of uplinks", example));
    };
    if items.is_empty() {
        return Err(ValueError::new(
            "no uplink is configured",
            format!("write {example}"),
        ));
    }
    if items.len() > UplinkId::LIMIT {
        let (count, limit) = (items.len(), UplinkId::LIMIT);
        let what = format!("{count} uplinks, more than the limit of {limit}");
        at.reader
            .report(at.path, ValueError::new(what, "remove some of them of them"));
    }
    let uplink = |at: At<'_>| match at.value {
        DeValue::Table(_) => at.table(keys::uplink),
        _ => Err(at.wrong_kind("an uplink", example)),
    };
    Ok(at.items(uplink)?.0)
}

/// Reads the places of the file.
pub(crate) fn place_tables(at: At<'_>) -> Result<Vec<Place>, ValueError> {
    let example = "[[place]], name = \"card\", instances = 2";
    let Some(items) = at.value.as_array() else {
        return Err(at.wrong_kind("a list of places", example));
    };
    if items.len() > PlaceId::LIMIT {
        let (count, limit) = (items.len(), PlaceId::LIMIT);
        let what = format!("{count} places, more than the limit of {limit}");
        at.reader
            .report(at.path, ValueError::new(what, "remove some of them"));
    }
    let place = |at: At<'_>| match at.value {
        DeValue::Table(_) => at.table(keys::place),
        _ => Err(at.wrong_kind("a place", example)),
    };
    Ok(at.items(place)?.0)
}

/// Parses the name of a place.
pub(crate) fn place_name(text: &str) -> Result<String, ValueError> {
    if PLACEMENTS.iter().any(|(word, _)| *word == text) {
        let what = format!("{text:?} is a rule of `placement`");
        return Err(ValueError::new(what, "write another name"));
    }
    name(text)
}

/// The rules of placement that have a word.
const PLACEMENTS: [(&str, Placement); 2] = [("auto", Placement::Auto), ("split", Placement::Split)];

/// Reads where the instances of a service run.
pub(crate) fn placement(at: At<'_>) -> Result<Placement, ValueError> {
    let text = at.text()?;
    if let Some((_, rule)) = PLACEMENTS.iter().find(|(word, _)| *word == text) {
        return Ok(*rule);
    }
    let names = &at.reader.places;
    let index = names.iter().position(|name| name == text && !name.is_empty());
    if let Some(index) = index.and_then(|index| u8::try_from(index).ok()) {
        return Ok(Placement::At(PlaceId(index)));
    }
    let known = names.iter().map(String::as_str).filter(|name| !name.is_empty());
    let known: Vec<&str> = known.chain(PLACEMENTS.map(|(word, _)| word)).collect();
    let write = if known.len() > PLACEMENTS.len() {
        write_one_of(text, known)
    } else {
        format!("add a [[place]] with that name, or {}", write_one_of(text, known))
    };
    Err(ValueError::new(format!("unknown place {text:?}"), write))
}

/// Reads the services of the file.
pub(crate) fn service_tables(at: At<'_>) -> Result<Vec<Service>, ValueError> {
    let example = "[service.NAME] above a service's keys";
    let Some(table) = at.value.as_table() else {
        return Err(at.wrong_kind("a table of services", example));
    };
    if table.is_empty() {
        return Err(ValueError::new(
            "no service is configured",
            "write [service.NAME] with an image",
        ));
    }
    if table.len() > ServiceId::LIMIT {
        let (count, limit) = (table.len(), ServiceId::LIMIT);
        let what = format!("{count} services, more than the limit of {limit}");
        at.reader
            .report(at.path, ValueError::new(what, "remove some of them of them"));
    }
    // In the order of the file; the parser sorts keys.
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    let mut services = Vec::new();
    for (key, value) in entries {
        let path = format!("{}.{}", at.path, key.get_ref());
        at.reader.note(&path, key.span().start);
        if let Err(wrong) = name(key.get_ref()) {
            at.reader.report(&path, wrong);
        }
        let service = |at: At<'_>| match at.value {
            DeValue::Table(_) => at.table(keys::service),
            _ => Err(at.wrong_kind("a service", example)),
        };
        let read = at.reader.value(&path, value.get_ref(), service);
        let host = read.as_ref().and_then(|read| actors::host_of(at.reader, read));
        let read = read.map_or_else(Vec::new, |read| by_subnet(read, &at.reader.places));
        for service in read {
            // Problems of one that a subnet makes are those of the service that the file has.
            at.reader
                .note(&format!("{}.{}", at.path, service.name), key.span().start);
            services.push(service);
        }
        services.extend(host);
    }
    // Sides of actors count twice.
    if services.len() > ServiceId::LIMIT && table.len() <= ServiceId::LIMIT {
        let (count, limit) = (services.len(), ServiceId::LIMIT);
        let what =
            format!("{count} services with both sides of those of actors, more than the limit of {limit}");
        at.reader
            .report(at.path, ValueError::new(what, "remove some of them"));
    }
    refuse_twice(at, &services);
    Ok(services)
}

/// The services of a file's service: one for each of its subnets, or itself.
fn by_subnet(mut service: Service, places: &[String]) -> Vec<Service> {
    let subnets = std::mem::take(&mut service.subnets);
    if subnets.is_empty() {
        return vec![service];
    }
    let of = |(place, prefix): (PlaceId, Prefix)| {
        let mut of = service.clone();
        let place_name = places.get(place.index()).map_or("", String::as_str);
        of.name = format!("{}-{place_name}", service.name);
        of.placement = Placement::At(place);
        of.matches.dst = Some(prefix);
        of
    };
    subnets.into_iter().map(of).collect()
}

/// Reports names that a subnet makes and the file has, and services beyond the limit.
fn refuse_twice(at: At<'_>, services: &[Service]) {
    for (index, service) in services.iter().enumerate() {
        if services.iter().take(index).any(|of| of.name == service.name) {
            let path = format!("{}.{}", at.path, service.name);
            let what = format!("there are two services {}: one is by `subnets`", service.name);
            at.reader
                .report(&path, ValueError::new(what, "give the other one another name"));
        }
    }
    if services.len() > ServiceId::LIMIT {
        let what = format!(
            "{} services with those of `subnets`, more than the limit of {}",
            services.len(),
            ServiceId::LIMIT
        );
        at.reader
            .report(at.path, ValueError::new(what, "remove some of them"));
    }
}

/// Reads the subnets of places.
pub(crate) fn subnets(at: At<'_>) -> Result<Vec<(PlaceId, Prefix)>, ValueError> {
    let example = "{ card = \"10.128.0.0/24\", host = \"10.128.1.0/24\" }";
    let Some(table) = at.value.as_table().filter(|table| !table.is_empty()) else {
        return Err(at.wrong_kind("a table of places with a prefix each", example));
    };
    let mut subnets = Vec::new();
    for (key, value) in table {
        let path = format!("{}.{}", at.path, key.get_ref());
        at.reader.note(&path, key.span().start);
        let place = at.reader.places.iter().position(|name| name == key.get_ref());
        let place = place.and_then(|index| u8::try_from(index).ok());
        match place {
            Some(place) => {
                let prefix = at.reader.value(&path, value.get_ref(), text(prefix));
                subnets.extend(prefix.map(|prefix| (PlaceId(place), prefix)));
            }
            None => {
                let what = format!("there is no place {:?}", key.get_ref());
                let write = write_one_of(key.get_ref(), at.reader.places.iter().map(String::as_str));
                at.reader.report(&path, ValueError::new(what, write));
            }
        }
    }
    subnets.sort_by_key(|(place, _)| *place);
    Ok(subnets)
}

/// Reads the CPUs of workers; each may occur once.
pub(crate) fn workers(at: At<'_>) -> Result<Vec<u16>, ValueError> {
    let mut known = Vec::new();
    let cpu = |at: At<'_>| {
        let cpu = number(0, u64::from(CPU_LIMIT) - 1)(at)?;
        if known.contains(&cpu) {
            let what = format!("CPU {cpu} is listed twice");
            return Err(ValueError::new(what, "write each CPU once"));
        }
        known.push(cpu);
        Ok(cpu)
    };
    let (cpus, count) = at.items(cpu)?;
    if count > WorkerId::LIMIT {
        let what = format!("{count} workers, more than the limit of {}", WorkerId::LIMIT);
        return Err(ValueError::new(what, "remove some of them of them"));
    }
    Ok(cpus)
}

/// What happens to packets of no service where nothing is said.
pub(crate) const fn usual_fallback(can: Capabilities) -> Fallback {
    if can.passes_to_host {
        Fallback::Host
    } else {
        Fallback::Drop
    }
}

/// Reads the addresses of a service: one, or one of each IP version.
pub(crate) fn addresses(at: At<'_>) -> Result<Vec<IpAddr>, ValueError> {
    const WRITE: &str = "write one, for example \"10.0.0.100\", or a list of one IPv4 and one IPv6 address";
    let one = |text: &str| {
        let address: Option<IpAddr> = text.parse().ok();
        address
            .filter(|of| !of.is_unspecified() && !of.is_multicast() && !of.is_loopback())
            .ok_or_else(|| ValueError::new(format!("{text:?} is not an address that hosts have"), WRITE))
    };
    if at.value.as_str().is_some() {
        return Ok(vec![one(at.text()?)?]);
    }
    let (addresses, count) = at.items(text(one))?;
    let of_v4 = addresses.iter().filter(|address| address.is_ipv4()).count();
    if count == 0 || of_v4 > 1 || addresses.len() - of_v4 > 1 {
        return Err(ValueError::new(format!("{count} addresses"), WRITE));
    }
    Ok(addresses)
}

/// Reads one prefix, or one of each IP version.
pub(crate) fn prefixes(at: At<'_>) -> Result<Vec<Prefix>, ValueError> {
    const WRITE: &str = "write one, for example \"10.0.0.128/25\", or a list of one IPv4 and one IPv6 prefix";
    if at.value.as_str().is_some() {
        return Ok(vec![prefix(at.text()?)?]);
    }
    let (prefixes, count) = at.items(text(prefix))?;
    let of_v4 = prefixes.iter().filter(|of| of.address.is_ipv4()).count();
    if count == 0 || of_v4 > 1 || prefixes.len() - of_v4 > 1 {
        return Err(ValueError::new(format!("{count} prefixes"), WRITE));
    }
    Ok(prefixes)
}

/// Reads a list of prefixes.
pub(crate) fn external_prefixes(at: At<'_>) -> Result<Vec<Prefix>, ValueError> {
    if at.value.as_str().is_some() {
        return Ok(vec![prefix(at.text()?)?]);
    }
    at.items(text(prefix)).map(|(prefixes, _)| prefixes)
}

/// Parses the address of a host.
pub(crate) fn address(text: &str) -> Result<Option<IpAddr>, ValueError> {
    let address: Option<IpAddr> = text.parse().ok();
    address
        .filter(|of| !of.is_unspecified() && !of.is_multicast())
        .map(Some)
        .ok_or_else(|| {
            ValueError::new(
                format!("{text:?} is not the address of a host"),
                "write one, for example \"192.0.2.2\"",
            )
        })
}

/// Parses an end of a tunnel.
pub(crate) fn tunnel_end(text: &str) -> Result<Option<Ipv4Addr>, ValueError> {
    match address(text)? {
        Some(IpAddr::V4(address)) if !address.is_broadcast() && !address.is_loopback() => Ok(Some(address)),
        _ => {
            let what = format!("{text:?} is not the IPv4 address of an end of tunnels");
            Err(ValueError::new(what, "write one, for example \"10.9.0.1\""))
        }
    }
}

/// Reads the far ends of tunnels.
pub(crate) fn tunnel_ends(at: At<'_>) -> Result<Vec<Ipv4Addr>, ValueError> {
    let (ends, count) = at.items(text(tunnel_end))?;
    if count > MACHINES_LIMIT {
        let what = format!("{count} machines, and there can be {MACHINES_LIMIT}");
        return Err(ValueError::new(what, "write fewer"));
    }
    Ok(ends.into_iter().flatten().collect())
}

/// Machines that may send into one end of tunnels at most: each packet's sender is looked for among them.
const MACHINES_LIMIT: usize = 64;

/// Reads where edges take load reports.
pub(crate) fn edges(at: At<'_>) -> Result<Vec<SocketAddr>, ValueError> {
    let (edges, count) = at.items(text(edge))?;
    if count > EDGES_LIMIT {
        let what = format!("{count} edges, and there can be {EDGES_LIMIT}");
        return Err(ValueError::new(what, "write fewer"));
    }
    Ok(edges)
}

/// Edges of a machine at most. Each is sent a hundred reports a second.
const EDGES_LIMIT: usize = 16;

fn edge(text: &str) -> Result<SocketAddr, ValueError> {
    let address = text.parse::<SocketAddr>().ok();
    let known = address.filter(|of| !of.ip().is_unspecified() && !of.ip().is_multicast() && of.port() != 0);
    known.ok_or_else(|| {
        let what = format!("{text:?} is not the IP address of an edge with a port");
        ValueError::new(what, "write `listen` of the edge, for example \"192.0.2.1:4790\"")
    })
}

/// Parses where an edge takes load reports.
pub(crate) fn reports_listen(text: &str) -> Result<SocketAddr, ValueError> {
    let address = text.parse::<SocketAddr>().ok().filter(|of| of.port() != 0);
    address.ok_or_else(|| {
        let what = format!("{text:?} is not an IP address with a port");
        ValueError::new(
            what,
            "write an address of this machine and a port, for example \"192.0.2.1:4790\"",
        )
    })
}

/// Reads the machines whose load reports an edge takes.
pub(crate) fn reporting_machines(at: At<'_>) -> Result<Vec<ReportingMachine>, ValueError> {
    let machine = |at: At<'_>| match at.value {
        DeValue::Table(_) => at.table(keys::reporting_machine),
        _ => {
            let example = "{ number = 1, address = \"10.9.0.11\", key = \"/etc/inco/machine-1.key\" }";
            Err(at.wrong_kind("a machine", example))
        }
    };
    Ok(at.items(machine)?.0)
}

/// Reads the prefixes of a selector.
pub(crate) fn selected_prefixes(at: At<'_>) -> Result<Vec<Prefix>, ValueError> {
    let prefixes = external_prefixes(at)?;
    if prefixes.len() > Association::PREFIXES_LIMIT {
        let what = format!("{} prefixes", prefixes.len());
        let write = "write at most 64, and another entry of the same association for the others";
        return Err(ValueError::new(what, write));
    }
    Ok(prefixes)
}

/// Reads security associations.
pub(crate) fn associations(at: At<'_>) -> Result<Vec<Association>, ValueError> {
    let association = |at: At<'_>| match at.value {
        DeValue::Table(_) => at.table(keys::association_table),
        _ => Err(at.wrong_kind("an association", "{ spi = 0x1001, to = \"192.0.2.2\" }")),
    };
    let (associations, count) = at.items(association)?;
    if count > Association::LIMIT {
        return Err(ValueError::new(
            format!("{count} associations"),
            "write at most 256: one entry can have several prefixes",
        ));
    }
    Ok(associations.into_iter().flatten().collect())
}

/// Reads ports and ranges of ports with commas.
pub(crate) fn ports(at: At<'_>) -> Result<Vec<RangeInclusive<u16>>, ValueError> {
    const WRITE: &str = "write ports and ranges, for example \"80,443,8000-8099\"";
    if at.value.as_str().is_none() {
        return port_range(at).map(|range| vec![range]);
    }
    let mut ranges: Vec<RangeInclusive<u16>> = Vec::new();
    for part in at.text()?.split(',') {
        let range = range_of_ports(part.trim())?;
        if *range.start() == 0
            || ranges
                .iter()
                .any(|of| of.start() <= range.end() && range.start() <= of.end())
        {
            return Err(ValueError::new(
                format!("port {part:?} is 0, or there twice"),
                WRITE,
            ));
        }
        ranges.push(range);
    }
    if ranges.len() > VIP_RANGES {
        let what = format!("{} ranges, more than the limit of {VIP_RANGES}", ranges.len());
        return Err(ValueError::new(what, WRITE));
    }
    Ok(ranges)
}

/// Reads `"drop"`, `"host"`, `"opposite"` or the name of an uplink.
pub(crate) fn fallback(at: At<'_>) -> Result<Fallback, ValueError> {
    match (at.text()?, at.reader.uplinks.len()) {
        ("drop", _) => Ok(Fallback::Drop),
        ("host", _) => Ok(Fallback::Host),
        ("opposite", 2) => Ok(Fallback::Opposite),
        ("opposite", count) => {
            let what = format!("\"opposite\" needs two uplinks; {count} are configured");
            Err(ValueError::new(what, "write an uplink's name, or \"drop\""))
        }
        (name, _) => uplink_of(&at.reader.uplinks, name)
            .map(Fallback::Pass)
            .map_err(|wrong| ValueError::new(wrong.what, format!("{}, or \"drop\"", wrong.write))),
    }
}

/// Parses an uplink's device.
pub(crate) fn device(text: &str) -> Result<Device, ValueError> {
    const FORMS: &str = "write a PCI address (\"0000:03:00.0\"), a DPDK device (\"net_...\"), \"memif:SOCKET\", \
                         \"veth:INTERFACE\", \"kernel:INTERFACE\" or \"pcap:FILE\"";
    let wrong = || ValueError::new(format!("{text:?} is not a device"), FORMS);
    let (prefix, rest) = text.split_once(':').unwrap_or((text, ""));
    let filled = |what: &str| {
        if rest.is_empty() {
            Err(ValueError::new(format!("{text:?} has no {what}"), FORMS))
        } else {
            Ok(rest)
        }
    };
    match prefix {
        "memif" => socket_path(filled("socket")?).map(Device::Memif),
        "veth" => interface_name(filled("interface")?).map(Device::Veth),
        "kernel" => interface_name(filled("interface")?).map(Device::Kernel),
        "pcap" => capture(filled("file")?).map(Device::Pcap),
        "pci" | "vdev" | "auxiliary" if !rest.is_empty() => Ok(Device::Dpdk(text.to_owned())),
        _ if is_pci_address(text) => Ok(Device::Dpdk(text.to_owned())),
        _ if text.starts_with("net_") && text.len() > "net_".len() => Ok(Device::Dpdk(text.to_owned())),
        _ if text.contains(':') => {
            let near = crate::nearest::nearest(prefix, ["memif", "veth", "kernel", "pcap"]);
            Err(near.map_or_else(wrong, |near| {
                ValueError::new(wrong().what, format!("write \"{near}:{rest}\""))
            }))
        }
        _ => Err(wrong()),
    }
}

fn interface_name(text: &str) -> Result<String, ValueError> {
    // The kernel's limit on interface names, excluding the final NUL.
    if text.len() > 15 || text.contains(['/', ' ', ',', '=']) {
        let what = format!("{text:?} is not a valid name of a network interface");
        return Err(ValueError::new(what, "write the name that `ip link` shows"));
    }
    Ok(text.to_owned())
}

/// Parses `FILE`, followed by `,loop` and `,tx=FILE` if present. DPDK reads the names too, so a name cannot contain a
/// comma.
fn capture(text: &str) -> Result<Capture, ValueError> {
    const FORMS: &str = "write \"pcap:FILE\", \"pcap:FILE,tx=FILE\" or \"pcap:FILE,loop\"; a file name cannot \
                         contain a comma";
    let mut parts = text.split(',');
    let file = parts.next().unwrap_or_default();
    if file.is_empty() {
        return Err(ValueError::new(format!("\"pcap:{text}\" has no file"), FORMS));
    }
    let mut capture = Capture {
        file: PathBuf::from(file),
        tx: None,
        repeats: false,
    };
    for part in parts {
        match part.split_once('=') {
            None if part == "loop" && !capture.repeats => capture.repeats = true,
            Some(("tx", file)) if !file.is_empty() && capture.tx.is_none() => {
                capture.tx = Some(PathBuf::from(file));
            }
            _ => {
                return Err(ValueError::new(
                    format!("unknown option {part:?} of a capture"),
                    FORMS,
                ));
            }
        }
    }
    Ok(capture)
}

/// Whether the text is `0000:03:00.0` or `03:00.0`, with optional DPDK device arguments after a comma.
fn is_pci_address(text: &str) -> bool {
    let address = text.split(',').next().unwrap_or_default();
    let hex = |part: &str, digits: RangeInclusive<usize>| {
        digits.contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let Some((place, function)) = address.rsplit_once('.') else {
        return false;
    };
    let parts: Vec<&str> = place.split(':').collect();
    let function_is = matches!(function.as_bytes(), [b'0'..=b'7']);
    function_is
        && match parts.as_slice() {
            [bus, device] => hex(bus, 2..=2) && hex(device, 2..=2),
            [domain, bus, device] => hex(domain, 4..=8) && hex(bus, 2..=2) && hex(device, 2..=2),
            _ => false,
        }
}

/// Parses the path of a unix socket.
pub(crate) fn socket_path(text: &str) -> Result<PathBuf, ValueError> {
    if text.is_empty() || text.ends_with('/') {
        return Err(ValueError::new(
            format!("{text:?} is not a file"),
            "write the socket's path",
        ));
    }
    if text.len() > SOCKET_PATH_LIMIT {
        let what = format!(
            "the path has {} bytes; the limit for a unix socket is {}",
            text.len(),
            SOCKET_PATH_LIMIT
        );
        return Err(ValueError::new(what, "write a shorter one"));
    }
    Ok(PathBuf::from(text))
}

/// Parses a bridge's name. Its own interface has the same name, and its ports' names begin with it.
pub(crate) fn bridge(text: &str) -> Result<String, ValueError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if text.is_empty() || text.len() > 15 || !text.chars().all(allowed) {
        return Err(ValueError::new(
            format!("{text:?} is not a valid name of a bridge"),
            "write at most 15 letters, digits, - and _",
        ));
    }
    Ok(text.to_owned())
}

/// Parses an endpoint in Open vSwitch's notation.
pub(crate) fn ovs_endpoint(text: &str) -> Result<String, ValueError> {
    let is_one = match text.split_once(':') {
        Some(("unix", path)) => path.starts_with('/'),
        Some(("tcp" | "ssl", host)) => host
            .rsplit_once(':')
            .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)),
        _ => false,
    };
    if is_one {
        Ok(text.to_owned())
    } else {
        Err(ValueError::new(
            format!("{text:?} is not an endpoint of Open vSwitch"),
            "write unix:/path/to/socket, tcp:HOST:PORT or ssl:HOST:PORT",
        ))
    }
}

/// The same, for an endpoint on which a bridge is to listen.
pub(crate) fn ovs_control(text: &str) -> Result<String, ValueError> {
    let control = ovs_endpoint(text)?;
    match control.strip_prefix("tcp:").or(control.strip_prefix("ssl:")) {
        Some(address) if address.parse::<SocketAddr>().is_err() => Err(ValueError::new(
            "the bridge listens on an IP address, not on a host name",
            "write an IP address, for example tcp:192.0.2.1:6653",
        )),
        _ => Ok(control),
    }
}

/// Parses the address of an engine.
pub(crate) fn host(text: &str) -> Result<String, ValueError> {
    let wrong = |what: String| {
        Err(ValueError::new(
            what,
            "write \"unix:///path\" or \"tcp://host:port\"",
        ))
    };
    match text.split_once("://") {
        Some(("unix", path)) if path.starts_with('/') => socket_path(path).map(|_| text.to_owned()),
        Some(("tcp", authority)) => {
            let port = authority
                .trim_end_matches('/')
                .rsplit_once(':')
                .and_then(|(host, port)| (!host.is_empty()).then(|| port.parse::<u16>().ok()).flatten());
            match port {
                Some(1..) => Ok(text.to_owned()),
                _ => wrong(format!("{text:?} has no valid host and port")),
            }
        }
        _ => wrong(format!("{text:?} is not an engine's address")),
    }
}

/// Parses the TCP address of the API.
pub(crate) fn listen(text: &str) -> Result<SocketAddr, ValueError> {
    let write = "write an address of this machine and a port: \"0.0.0.0:8443\", \"[::1]:8443\"";
    let address = text.parse();
    address.map_err(|_| ValueError::new(format!("{text:?} is not an IP address with a port"), write))
}

/// Reads an image's name.
pub(crate) fn image(at: At<'_>) -> Result<String, ValueError> {
    let example = "the name of an image, for example \"inco/forward\"";
    let text = at.value.as_str();
    let text = text.ok_or_else(|| at.wrong_kind("an image", example))?;
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-/:@".contains(c);
    // Docker's limit on a reference.
    if text.is_empty()
        || text.len() > 255
        || text.starts_with(['-', '/', ':', '.'])
        || !text.chars().all(allowed)
    {
        return Err(ValueError::new(
            format!("{text:?} is not a valid name of an image"),
            format!("write {example}"),
        ));
    }
    Ok(text.to_owned())
}

/// Reads registries: host, and port if there is one.
pub(crate) fn registries(at: At<'_>) -> Result<Vec<String>, ValueError> {
    let names = texts(at)?;
    if names.len() > REGISTRIES_MAX {
        let what = format!("there are {} registries", names.len());
        return Err(ValueError::new(what, format!("write at most {REGISTRIES_MAX}")));
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || ".-:[]".contains(c);
    match names
        .iter()
        .find(|name| name.is_empty() || name.len() > 255 || !name.chars().all(allowed))
    {
        None => Ok(names),
        Some(wrong) => Err(ValueError::new(
            format!("{wrong:?} is no registry"),
            "write host and port, as in the names of its images: \"10.0.0.5:5000\"",
        )),
    }
}

/// Reads an environment: a table, or a list of `NAME=value`.
pub(crate) fn env(at: At<'_>) -> Result<Vec<(String, String)>, ValueError> {
    const EXAMPLE: &str = "write { NAME = \"value\" } or [\"NAME=value\"]";
    let mut env = BTreeMap::new();
    match at.value {
        DeValue::Table(table) => {
            for (name, value) in table {
                let text = match value.get_ref() {
                    DeValue::String(text) => text.to_string(),
                    DeValue::Integer(number) => number.to_string(),
                    DeValue::Float(number) => number.to_string(),
                    DeValue::Boolean(value) => value.to_string(),
                    _ => {
                        return Err(ValueError::new(
                            format!("{} is not text", name.get_ref()),
                            EXAMPLE,
                        ));
                    }
                };
                env.insert(name.get_ref().to_string(), text);
            }
        }
        DeValue::Array(_) => {
            for item in texts(at)? {
                let Some((name, text)) = item.split_once('=') else {
                    return Err(ValueError::new(format!("{item:?} is not NAME=value"), EXAMPLE));
                };
                env.insert(name.to_owned(), text.to_owned());
            }
        }
        _ => {
            let write = "{ NAME = \"value\" } or [\"NAME=value\"]";
            return Err(at.wrong_kind("an environment", write));
        }
    }
    for (name, text) in &env {
        if name.is_empty() || name.contains(['=', '\0']) || text.contains('\0') {
            return Err(ValueError::new(
                format!("{name:?} is not a valid environment variable"),
                EXAMPLE,
            ));
        }
    }
    Ok(env.into_iter().collect())
}

/// Parses an absolute path without `..`.
pub(crate) fn absolute(text: &str) -> Result<PathBuf, ValueError> {
    let path = Path::new(text);
    let climbs = path
        .components()
        .any(|part| part == std::path::Component::ParentDir);
    if !path.is_absolute() || climbs || text.contains('\0') {
        let what = format!("{text:?} is not an absolute path without \"..\"");
        return Err(ValueError::new(what, "write a path that starts with /"));
    }
    Ok(path.to_owned())
}

/// Reads the functions of a network card for the instances.
pub(crate) fn devices(at: At<'_>) -> Result<Vec<InstanceDevice>, ValueError> {
    let device = |at: At<'_>| match at.value {
        DeValue::Table(_) => at.table(keys::device_table),
        _ => Err(at.wrong_kind("a device", "{ representor = \"pf0vf0\", pci = \"0000:03:00.2\" }")),
    };
    Ok(at.items(device)?.0.into_iter().flatten().collect())
}

/// Parses the switch's end of a device: a network interface or a DPDK device.
pub(crate) fn representor(text: &str) -> Result<String, ValueError> {
    if text.contains([':', ',']) && !text.contains(char::is_whitespace) {
        return Ok(text.to_owned());
    }
    interface(text)
}

/// Parses the name of a network interface.
pub(crate) fn interface(text: &str) -> Result<String, ValueError> {
    let allowed = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'/' | b':');
    if (1..=15).contains(&text.len()) && text != "." && text != ".." && text.bytes().all(allowed) {
        return Ok(text.to_owned());
    }
    Err(ValueError::new(
        format!("{text:?} is not a valid name of a network interface"),
        "write a name that `ip link` shows, of at most 15 bytes",
    ))
}

/// Parses a PCI address such as `0000:03:00.2`.
pub(crate) fn pci(text: &str) -> Result<String, ValueError> {
    let is_hex =
        |text: &str, digits: usize| text.len() == digits && text.bytes().all(|b| b.is_ascii_hexdigit());
    let parts: Vec<&str> = text.split([':', '.']).collect();
    match parts.as_slice() {
        [domain, bus, device, function]
            if is_hex(domain, 4)
                && is_hex(bus, 2)
                && is_hex(device, 2)
                && is_hex(function, 1)
                && text.rfind(':') < text.find('.') =>
        {
            Ok(text.to_ascii_lowercase())
        }
        _ => Err(ValueError::new(
            format!("{text:?} is not a PCI address"),
            "write it in full, as `lspci -D` shows it: \"0000:03:00.2\"",
        )),
    }
}

/// Parses a MAC address such as `02:00:00:00:00:11`.
pub(crate) fn mac(text: &str) -> Result<MacAddress, ValueError> {
    let bytes: Vec<Option<u8>> = text
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16).ok().filter(|_| byte.len() == 2))
        .collect();
    let bytes = bytes.into_iter().collect::<Option<Vec<u8>>>();
    match bytes.and_then(|bytes| <[u8; 6]>::try_from(bytes).ok()) {
        Some(bytes) if bytes[0] & 1 == 0 => Ok(MacAddress(bytes)),
        _ => Err(ValueError::new(
            format!("{text:?} is not the MAC address of one device"),
            "write six bytes, for example \"02:00:00:00:00:11\"",
        )),
    }
}

/// Reads mounts: tables, or text as in compose.
pub(crate) fn mounts(at: At<'_>) -> Result<Vec<Mount>, ValueError> {
    let mount = |at: At<'_>| match at.value {
        DeValue::String(text) => mount(text),
        DeValue::Table(_) => at.table(keys::mount_table),
        _ => Err(at.wrong_kind("a mount", "\"/source:/target:ro\"")),
    };
    Ok(at.items(mount)?.0)
}

/// Reads the secrets or configs of a swarm for a container.
pub(crate) fn task_files(at: At<'_>) -> Result<Vec<TaskFile>, ValueError> {
    let file = |at: At<'_>| {
        let text = at.text()?;
        let (name, target) = match text.split_once(':') {
            Some((name, target)) => (name, Some(absolute(target)?)),
            None => (text, None),
        };
        let name = name.to_owned();
        if name.is_empty() || name.contains('/') {
            let what = format!("{text:?} begins with no name");
            return Err(ValueError::new(what, "write \"NAME\" or \"NAME:/PATH\""));
        }
        Ok(TaskFile { name, target })
    };
    Ok(at.items(file)?.0)
}

/// Reads labels of nodes.
pub(crate) fn node_labels(at: At<'_>) -> Result<Vec<(String, String)>, ValueError> {
    const WRITE: &str = "{ \"kubernetes.io/arch\" = \"amd64\" }";
    let table = at
        .value
        .as_table()
        .ok_or_else(|| at.wrong_kind("a table", WRITE))?;
    let one = |(key, value): (
        &toml::Spanned<std::borrow::Cow<'_, str>>,
        &toml::Spanned<DeValue<'_>>,
    )| {
        let text = value.get_ref().as_str();
        let what = || ValueError::new(format!("{} is not text", key.get_ref()), format!("write {WRITE}"));
        Ok((key.get_ref().to_string(), text.ok_or_else(what)?.to_owned()))
    };
    table.iter().map(one).collect()
}

/// Reads a list of tables in Kubernetes' words; as JSON.
pub(crate) fn kubernetes_list(at: At<'_>) -> Result<String, ValueError> {
    let is_list = at
        .value
        .as_array()
        .is_some_and(|all| all.iter().all(|of| of.get_ref().is_table()));
    match is_list {
        true => Ok(json(at.value)?.to_string()),
        false => Err(at.wrong_kind("a list of tables", "[{ key = \"edge\", operator = \"Exists\" }]")),
    }
}

/// Reads a table in Kubernetes' words; as JSON.
pub(crate) fn kubernetes_table(at: At<'_>) -> Result<String, ValueError> {
    match at.value.is_table() {
        true => Ok(json(at.value)?.to_string()),
        false => Err(at.wrong_kind("a table", "a table such as { nodeAffinity = { ... } }")),
    }
}

/// A value as JSON has it.
fn json(value: &DeValue<'_>) -> Result<serde_json::Value, ValueError> {
    Ok(match value {
        DeValue::String(text) => text.as_ref().into(),
        DeValue::Integer(number) => {
            let number = i64::from_str_radix(number.as_str(), number.radix());
            let write = |_| ValueError::new("this number is too large", "write a smaller one");
            number.map_err(write)?.into()
        }
        DeValue::Float(number) => {
            let wrong = |_| ValueError::new("this is no number", "write one such as 0.5");
            number.as_str().parse::<f64>().map_err(wrong)?.into()
        }
        DeValue::Boolean(value) => (*value).into(),
        DeValue::Datetime(time) => time.to_string().into(),
        DeValue::Array(all) => all
            .iter()
            .map(|of| json(of.get_ref()))
            .collect::<Result<_, _>>()?,
        DeValue::Table(table) => {
            let one = |(key, of): (
                &toml::Spanned<std::borrow::Cow<'_, str>>,
                &toml::Spanned<DeValue<'_>>,
            )| { Ok((key.get_ref().to_string(), json(of.get_ref())?)) };
            let all: Result<serde_json::Map<_, _>, ValueError> = table.iter().map(one).collect();
            all?.into()
        }
    })
}

/// Reads the name of an object of Kubernetes.
pub(crate) fn kubernetes_name(text: &str) -> Result<String, ValueError> {
    let is_taken =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.';
    if text.is_empty() || text.len() > 253 || !text.bytes().all(is_taken) {
        let what = format!("{text:?} is no name of an object of Kubernetes");
        return Err(ValueError::new(what, "write one of a-z, 0-9, '-' and '.'"));
    }
    Ok(text.to_owned())
}

/// Reads a number of CPUs.
pub(crate) fn task_cpus(at: At<'_>) -> Result<f64, ValueError> {
    let write = || ValueError::new("this is no number of CPUs", "write a number such as 0.5");
    cpus(at)?.limit().ok_or_else(write)
}

/// Parses a path of this machine: an absolute one, or one that begins at the configuration's own directory.
pub(crate) fn host_path(text: &str) -> Result<PathBuf, ValueError> {
    let Some(rest) = text.strip_prefix("./") else {
        return absolute(text);
    };
    absolute(&format!("/{rest}"))?;
    Ok(text.into())
}

/// Parses `/source:/target[:ro|rw]`, as in compose.
fn mount(text: &str) -> Result<Mount, ValueError> {
    let parts: Vec<&str> = text.split(':').collect();
    let (from, target, read_only) = match parts.as_slice() {
        [from, target] => (from, target, false),
        [from, target, "ro"] => (from, target, true),
        [from, target, "rw"] => (from, target, false),
        _ => {
            return Err(ValueError::new(
                format!("{text:?} is not a mount"),
                "write \"/source:/target:ro\"",
            ));
        }
    };
    Ok(Mount {
        source: host_path(from)?,
        target: absolute(target)?,
        read_only,
    })
}

/// Parses a CPU set such as `0-3,7`.
///
/// # Errors
/// The text is not a valid set.
pub(crate) fn cpus_of(text: &str) -> Result<Vec<u16>, ValueError> {
    let wrong = || {
        ValueError::new(
            format!("{text:?} is not a list of CPUs"),
            "write numbers and ranges, for example \"0-3,7\"",
        )
    };
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.trim().parse::<u16>().ok().filter(|cpu| *cpu < CPU_LIMIT);
        match (number(first), number(last)) {
            (Some(first), Some(last)) if first <= last => cpus.extend(first..=last),
            _ => return Err(wrong()),
        }
    }
    cpus.sort_unstable();
    cpus.dedup();
    Ok(cpus)
}

/// Validates a CPU set and keeps its notation.
pub(crate) fn cpuset(text: &str) -> Result<String, ValueError> {
    cpus_of(text).map(|_| text.to_owned())
}

/// Reads capabilities: their names, each once.
pub(crate) fn capabilities(at: At<'_>) -> Result<Vec<String>, ValueError> {
    let mut names = texts(at)?;
    let write = || format!("write some of {}", CAPABILITIES.join(", "));
    if let Some(name) = names.iter().find(|name| !CAPABILITIES.contains(&name.as_str())) {
        let what = format!("{name:?} is no capability that a container may have");
        return Err(ValueError::new(what, write()));
    }
    names.sort();
    names.dedup();
    Ok(names)
}

/// Reads a readiness condition: a word, or a table with a command.
pub(crate) fn ready(at: At<'_>) -> Result<Ready, ValueError> {
    if at.value.is_table() {
        return at.table(keys::ready_table);
    }
    match word(&[("connected", 0), ("consumes", 1), ("listens", 2)])(at)? {
        1 => Ok(Ready::Consumes),
        2 => Ok(Ready::Listens),
        _ => Ok(Ready::Connected),
    }
}

/// When an instance is ready where nothing is said.
pub(crate) fn usual_ready(port: PortKind, has_vip: bool) -> Ready {
    if port == PortKind::Frames || port == PortKind::Kernel && has_vip {
        Ready::Listens
    } else {
        Ready::Connected
    }
}

/// Parses the path of a request.
pub(crate) fn http_path(text: &str) -> Result<String, ValueError> {
    if !text.starts_with('/')
        || text.len() > HTTP_PATH_LIMIT
        || !text.bytes().all(|byte| byte.is_ascii_graphic())
    {
        return Err(ValueError::new(
            format!("{text:?} is not a path of a request"),
            format!("write one as \"/healthz\", of at most {HTTP_PATH_LIMIT} characters without blanks"),
        ));
    }
    Ok(text.to_owned())
}

/// Parses a name of DNS.
pub(crate) fn dns_name(text: &str) -> Result<String, ValueError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let is_label = |label: &str| (1..=63).contains(&label.len()) && label.chars().all(allowed);
    let name = text.strip_suffix('.').unwrap_or(text);
    if name.len() > 253 || !(name.is_empty() || name.split('.').all(is_label)) {
        return Err(ValueError::new(
            format!("{text:?} is not a name of DNS"),
            "write one as \"example.com\"; \".\" is the root",
        ));
    }
    Ok(text.to_owned())
}

/// Reads a program with its arguments.
pub(crate) fn program(at: At<'_>) -> Result<Vec<String>, ValueError> {
    let command = texts(at)?;
    if command.first().is_none_or(String::is_empty) {
        return Err(ValueError::new(
            "the list has no program",
            "write [\"/bin/check\"]",
        ));
    }
    Ok(command)
}

/// Reads the number of instances: a table, or a fixed number.
pub(crate) fn instances(at: At<'_>) -> Result<Instances, ValueError> {
    if at.value.is_table() {
        return at.table(keys::instances_table);
    }
    let count = number(1, INSTANCE_LIMIT)(at)?;
    Ok(Instances {
        from: Origin::Inco,
        min: count,
        max: count,
        standby: 0,
        standby_mode: StandbyMode::Warm,
        sleep: false,
    })
}

/// Reads who runs instances.
pub(crate) fn origin(at: At<'_>) -> Result<Origin, ValueError> {
    let is_table = |of: &toml::Spanned<DeValue<'_>>| of.get_ref().is_table();
    match at.value {
        DeValue::String(text) => {
            let service = text
                .strip_prefix("kubernetes:")
                .ok_or_else(|| wrong_service(format!("{text:?} names no Service of Kubernetes")));
            let (namespace, name) = kubernetes_service(service?)?;
            Ok(Origin::Kubernetes(vec![KubernetesService {
                namespace,
                name,
                port: None,
                weight: 1,
            }]))
        }
        DeValue::Array(all) if all.iter().any(is_table) => kubernetes_services(at).map(Origin::Kubernetes),
        _ => back_ends(at).map(Origin::Addresses),
    }
}

fn wrong_service(what: String) -> ValueError {
    let write = "write \"kubernetes:NAMESPACE/SERVICE\", a list such as [\"10.0.0.5:80\"], or one such as [{ service = \
                 \"NAMESPACE/SERVICE\", weight = 9 }]";
    ValueError::new(what, write)
}

/// Reads a list of Services.
fn kubernetes_services(at: At<'_>) -> Result<Vec<KubernetesService>, ValueError> {
    let one = |at: At<'_>| match at.value {
        DeValue::Table(_) => at.table(keys::endpoints_of),
        _ => Err(at.wrong_kind("a Service", "{ service = \"NAMESPACE/SERVICE\", weight = 9 }")),
    };
    let (all, count) = at.items(one)?;
    if count > KUBERNETES_SERVICES_LIMIT {
        let what = format!("{count} Services, and there can be {KUBERNETES_SERVICES_LIMIT}");
        return Err(ValueError::new(what, "remove some of them"));
    }
    let is_same = |a: &KubernetesService, b: &KubernetesService| {
        (&a.namespace, &a.name, &a.port) == (&b.namespace, &b.name, &b.port)
    };
    let mut each = all.iter().enumerate();
    let twice = each.find(|(place, one)| all[..*place].iter().any(|of| is_same(of, one)));
    match twice {
        Some((_, one)) => Err(ValueError::new(
            format!("{one} is in the list twice"),
            "write it once, with the sum of the weights",
        )),
        None => Ok(all),
    }
}

/// Reads `NAMESPACE/SERVICE`.
pub(crate) fn kubernetes_service(text: &str) -> Result<(String, String), ValueError> {
    let Some((namespace, name)) = text.split_once('/') else {
        return Err(wrong_service(format!("{text:?} has no namespace")));
    };
    for (what, part) in [("a namespace", namespace), ("a Service", name)] {
        if !is_dns_label(part) {
            return Err(wrong_service(format!(
                "{part:?} is not the name of {what}: 1 to 63 characters of a-z, 0-9 and -, not at the ends"
            )));
        }
    }
    Ok((namespace.to_owned(), name.to_owned()))
}

/// Whether Kubernetes takes it as a name (RFC 1123, section 2.1).
fn is_dns_label(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_edge = |c: char| c != '-';
    (1..=63).contains(&text.len())
        && text.chars().all(allowed)
        && text.starts_with(is_edge)
        && text.ends_with(is_edge)
}

/// Reads the port of endpoints: a name or a number.
pub(crate) fn endpoint_port(at: At<'_>) -> Result<EndpointPort, ValueError> {
    match at.value.as_str() {
        Some(name) if is_dns_label(name) && name.contains(|c: char| c.is_ascii_lowercase()) => {
            Ok(EndpointPort::Name(name.to_owned()))
        }
        Some(text) => Err(ValueError::new(
            format!("{text:?} is not the name of a port"),
            "write the name that the port has in the Service, such as \"http\", or a number without quotes",
        )),
        None => number(1, 65_535)(at).map(EndpointPort::Number),
    }
}

/// The context of a kubeconfig: any text.
pub(crate) fn known_context(text: &str) -> Result<String, ValueError> {
    if text.trim().is_empty() {
        let write = "write a name that `kubectl config get-contexts` shows";
        return Err(ValueError::new("the context has no name", write));
    }
    Ok(text.to_owned())
}

/// Reads where others run instances.
fn back_ends(at: At<'_>) -> Result<Vec<SocketAddr>, ValueError> {
    const WRITE: &str = "write a list such as [\"10.0.0.5:80\", \"10.0.0.6:80\"], each server once";
    let one = |text: &str| {
        let at: Option<SocketAddr> = text.parse().ok();
        at.filter(|at| {
            let ip = at.ip();
            at.port() != 0 && !ip.is_unspecified() && !ip.is_multicast() && !ip.is_loopback()
        })
        .ok_or_else(|| {
            let what = format!("{text:?} is not the address of a server in the network, with its port");
            ValueError::new(what, WRITE)
        })
    };
    let (all, count) = at.items(text(one))?;
    if count == 0 {
        return Err(ValueError::new("the list has no server", WRITE));
    }
    if count > INSTANCE_LIMIT as usize {
        let what = format!("{count} servers, and there can be {INSTANCE_LIMIT}");
        return Err(ValueError::new(what, WRITE));
    }
    let twice = all.iter().enumerate().find(|(at, one)| all[..*at].contains(one));
    match twice {
        Some((_, one)) => Err(ValueError::new(format!("{one} is in the list twice"), WRITE)),
        None => Ok(all),
    }
}

/// The CPUs of a container.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Cpus {
    /// As many as there are.
    NoLimit,
    /// At most so many.
    Limit(f64),
    /// One that no other instance uses.
    Exclusive,
}

impl Cpus {
    pub(crate) fn limit(self) -> Option<f64> {
        match self {
            Cpus::Limit(cpus) => Some(cpus),
            Cpus::NoLimit | Cpus::Exclusive => None,
        }
    }
}

/// Reads the CPUs of a container.
pub(crate) fn cpus(at: At<'_>) -> Result<Cpus, ValueError> {
    let write = format!("write a number of CPUs of at least {CPUS_MIN}, for example 0.5 or \"500m\"");
    let cpus = match at.value {
        DeValue::String(text) if text == "exclusive" => return Ok(Cpus::Exclusive),
        DeValue::String(text) => units::cpus(text),
        value => float(value),
    };
    let cpus = cpus.ok_or_else(|| ValueError::new(at.wrong_kind("a number of CPUs", "").what, &*write))?;
    if !(CPUS_MIN..=f64::from(CPU_LIMIT)).contains(&cpus) {
        return Err(ValueError::new(format!("{cpus} is out of range"), write));
    }
    Ok(Cpus::Limit(cpus))
}

/// What one instance can process.
pub(crate) fn capacity(at: At<'_>) -> Result<Capacity, ValueError> {
    let pps = match at.value {
        DeValue::String(text) if text == "learn" => return Ok(Capacity::Learn),
        DeValue::String(text) => units::rate(text)
            .map_err(|wrong| ValueError::new(wrong.what, format!("{}, or \"learn\"", wrong.write)))?,
        value => float(value).ok_or_else(|| at.wrong_kind("a packet rate", "\"10Mpps\", or \"learn\""))?,
    };
    in_range(pps).map(Capacity::Pps)
}

/// Reads a packet rate.
pub(crate) fn pps(at: At<'_>) -> Result<f64, ValueError> {
    let pps = match at.value {
        DeValue::String(text) => units::rate(text)?,
        value => float(value).ok_or_else(|| at.wrong_kind("a packet rate", "\"10Mpps\""))?,
    };
    in_range(pps)
}

/// Reads what a link carries, as bytes per second.
pub(crate) fn bandwidth(at: At<'_>) -> Result<f64, ValueError> {
    let rate = units::bit_rate(at.text()?)?;
    if rate > 0.0 && rate.is_finite() {
        Ok(rate)
    } else {
        Err(ValueError::new(
            "the bit rate is not above 0",
            "write a bit rate, for example \"100Gbps\"",
        ))
    }
}

/// Reads electrical power.
pub(crate) fn watts(at: At<'_>) -> Result<f64, ValueError> {
    let watts = float(at.value).ok_or_else(|| at.wrong_kind("watts", "a number, for example 42"))?;
    if (0.0..=100_000.0).contains(&watts) {
        Ok(watts)
    } else {
        let what = format!("{watts} W is out of range");
        Err(ValueError::new(what, "write a number from 0 to 100000"))
    }
}

/// Reads a list of kinds of ports.
pub(crate) fn port_kinds(at: At<'_>) -> Result<Vec<PortKind>, ValueError> {
    let path = at.path;
    let (kinds, count) = at.items(word(PortKind::WORDS))?;
    if count == 0 {
        let what = format!("{path} is empty: no service could be there");
        return Err(ValueError::new(
            what,
            "write a kind, for example [\"memif\"], or remove it",
        ));
    }
    Ok(kinds)
}

/// The rate, if it can be one.
fn in_range(pps: f64) -> Result<f64, ValueError> {
    // Load is stored as f32. A rate above 1 Tpps is a mistaken unit.
    if pps > 0.0 && pps <= 1e12 {
        Ok(pps)
    } else {
        Err(ValueError::new(
            format!("{pps} packets per second is out of range"),
            "write a rate above 0 and at most 1000 Gpps, for example \"10Mpps\"",
        ))
    }
}

/// Reads the uplinks of a service: one or two, each once.
pub(crate) fn uplinks(at: At<'_>) -> Result<Vec<UplinkId>, ValueError> {
    let (mut known, path) = (Vec::new(), at.path);
    if let Some(count) = at.value.as_array().map(|items| items.len())
        && !(1..=SERVICE_UPLINK_LIMIT).contains(&count)
    {
        let what = format!("the list has {count} uplinks");
        let write = "write one uplink (packets leave on it, too), or two (packets that arrive on one leave on the \
                     other)";
        at.reader.report(path, ValueError::new(what, write));
    }
    let uplink = |at: At<'_>| {
        let uplink = uplink_of(&at.reader.uplinks, at.text()?)?;
        if known.contains(&uplink) {
            let write = "write each uplink once";
            return Err(ValueError::new("this uplink is listed twice", write));
        }
        known.push(uplink);
        Ok(uplink)
    };
    let (uplinks, _) = at.items(uplink)?;
    Ok(if uplinks.is_empty() {
        vec![UplinkId(0)]
    } else {
        uplinks
    })
}

/// Checks the keys of a match against each other.
pub(crate) fn check_match(reader: &mut Reader, section: &Section<'_>, matches: &Match) {
    if let (Some(src), Some(dst)) = (matches.src, matches.dst)
        && src.address.is_ipv4() != dst.address.is_ipv4()
    {
        let what = "src and dst have different IP versions: no packet can match";
        reader.report(
            &section.key("dst"),
            ValueError::new(what, "write both as IPv4 or both as IPv6"),
        );
    }
    let version = matches.src.or(matches.dst).map(|prefix| prefix.address.is_ipv4());
    match (matches.protocol, version) {
        (Some(protocol::ICMP), Some(false)) => {
            reader.report(
                &section.key("proto"),
                ValueError::new(
                    "icmp is a protocol of IPv4, and the address is IPv6",
                    "write \"icmpv6\"",
                ),
            );
        }
        (Some(protocol::ICMPV6), Some(true)) => {
            reader.report(
                &section.key("proto"),
                ValueError::new(
                    "icmpv6 is a protocol of IPv6, and the address is IPv4",
                    "write \"icmp\"",
                ),
            );
        }
        _ => {}
    }
    for (key, ports) in [("src_port", &matches.src_port), ("dst_port", &matches.dst_port)] {
        if ports.is_none() {
            continue;
        }
        let wrong = match matches.protocol {
            Some(protocol::TCP | protocol::UDP | protocol::SCTP) => continue,
            // If `proto` is invalid, only that is reported.
            None if section.get("proto").is_some() => continue,
            None => ValueError::new(
                "a port needs a protocol, and proto is missing",
                "write proto = \"tcp\", \"udp\" or \"sctp\"",
            ),
            Some(_) => ValueError::new(
                "this protocol has no ports",
                "remove it, or write proto = \"tcp\", \"udp\" or \"sctp\"",
            ),
        };
        reader.report(&section.key(key), wrong);
    }
}

const PROTOCOLS: &[(&str, u8)] = &[
    ("tcp", protocol::TCP),
    ("udp", protocol::UDP),
    ("sctp", protocol::SCTP),
    ("icmp", protocol::ICMP),
    ("icmpv6", protocol::ICMPV6),
];

/// Reads an IP protocol: a name or a number.
pub(crate) fn protocol_number(at: At<'_>) -> Result<u8, ValueError> {
    if integer(at.value).is_some() {
        return number(0, 255)(at);
    }
    let names = list(PROTOCOLS.iter().map(|(name, _)| *name));
    let text = at.value.as_str();
    let text = text.ok_or_else(|| at.wrong_kind("a protocol", &format!("one of {names}, or a number")))?;
    PROTOCOLS
        .iter()
        .find(|(name, _)| *name == text)
        .map(|(_, number)| *number)
        .ok_or_else(|| {
            let known: Vec<&str> = PROTOCOLS.iter().map(|(name, _)| *name).collect();
            ValueError::new(
                format!("unknown protocol {text:?}"),
                format!("{}, or a number", write_one_of(text, known)),
            )
        })
}

/// Parses an address or a prefix.
pub(crate) fn prefix(text: &str) -> Result<Prefix, ValueError> {
    let wrong = || {
        ValueError::new(
            format!("{text:?} is not an address or prefix"),
            "write one, for example \"10.128.0.0/16\" or \"2001:db8::/32\"",
        )
    };
    let (address, bits) = text
        .split_once('/')
        .map_or((text, None), |(address, bits)| (address, Some(bits)));
    let address: IpAddr = address.parse().map_err(|_| wrong())?;
    let width = if address.is_ipv4() { 32 } else { 128 };
    let bits = match bits {
        None => width,
        // Digits only: the integer parser would accept "+8".
        Some(bits) if !bits.is_empty() && bits.bytes().all(|byte| byte.is_ascii_digit()) => bits
            .parse::<u8>()
            .ok()
            .filter(|bits| *bits <= width)
            .ok_or_else(|| {
                ValueError::new(
                    format!("/{bits} is longer than an address"),
                    format!("write at most /{width}"),
                )
            })?,
        Some(_) => return Err(wrong()),
    };
    let prefix = Prefix { address, bits };
    let first = prefix.first();
    if first != address {
        let what = format!("{text:?} has bits set beyond the prefix length");
        return Err(ValueError::new(
            what,
            format!("write \"{first}/{bits}\", or \"{address}\" for a single address"),
        ));
    }
    Ok(prefix)
}

/// Reads a port or a range of ports.
pub(crate) fn port_range(at: At<'_>) -> Result<RangeInclusive<u16>, ValueError> {
    if integer(at.value).is_some() {
        let port = number(0, 65_535)(at)?;
        return Ok(port..=port);
    }
    let text = at.value.as_str();
    let text = text.ok_or_else(|| ValueError::new(at.wrong_kind("a range of ports", "").what, PORTS))?;
    range_of_ports(text)
}

const PORTS: &str = "write a port or a range, for example 443 or \"80-443\"";

fn range_of_ports(text: &str) -> Result<RangeInclusive<u16>, ValueError> {
    let number = |text: &str| {
        let text = text.trim();
        text.bytes()
            .all(|byte| byte.is_ascii_digit())
            .then(|| text.parse::<u16>().ok())
            .flatten()
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => Ok(first..=last),
        (Some(first), Some(last)) => Err(ValueError::new(
            format!("the range {text:?} is empty"),
            format!("write \"{last}-{first}\""),
        )),
        _ => Err(ValueError::new(
            format!("{text:?} is not a range of ports"),
            PORTS,
        )),
    }
}
