//! From text to a configuration, table by table.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use autoscaling::Autoscaler;
use model::{Nanos, UplinkId, protocol};
use scheduling::{Metric, Scheduler, Settings};
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use crate::defaults as d;
use crate::keys;
use crate::nearest::{list, write_one_of};
use crate::problem::Problem;
use crate::read::{self, Reader, Section};
use crate::types::*;
use crate::units::{self, Wrong};

/// Reads and checks a configuration. `file_name` is what messages call the file.
///
/// # Errors
/// Every problem that can be seen without a machine, in the order of the file.
pub fn parse(text: &str, file_name: &str) -> Result<Configuration, Vec<Problem>> {
    let mut reader = Reader::new(file_name, text);
    if text.len() > d::FILE_LIMIT_BYTES {
        let what = format!(
            "the file has {} bytes, more than {}",
            text.len(),
            d::FILE_LIMIT_BYTES
        );
        reader.wrong_at(0, Wrong::new(what, "write a shorter one"));
        return Err(reader.finish().1);
    }
    let (document, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        for error in errors {
            reader.wrong_at(error.span().map_or(0, |span| span.start), syntax(error.message()));
        }
        let (_, mut problems) = reader.finish();
        // What the parser says about the rest of a line follows from the first thing that is wrong with it.
        problems.dedup_by_key(|problem| problem.line);
        return Err(problems);
    }
    let configuration = read_document(&mut reader, document.get_ref(), file_name);
    if let Some(configuration) = &configuration {
        crate::check::check(&mut reader, configuration);
    }
    let (places, problems) = reader.finish();
    match configuration {
        Some(configuration) if problems.is_empty() => Ok(Configuration {
            places,
            ..configuration
        }),
        _ => Err(problems),
    }
}

fn syntax(message: &str) -> Wrong {
    let write = if message.contains("duplicate key") {
        "remove one of the two"
    } else if message.contains("quote") || message.contains("string") {
        "write key = value, with text in \"quotes\""
    } else {
        "write TOML: [table] headings and key = value lines"
    };
    Wrong::new(format!("this is not TOML: {message}"), write)
}

/// Everything that could be read. `None` where there is nothing to check as a whole.
fn read_document<'a>(
    reader: &mut Reader<'a>,
    document: &'a DeTable<'a>,
    file_name: &str,
) -> Option<Configuration> {
    let top = reader.section(String::new(), "", document);
    let names = uplink_names(&top);
    let before = reader.problems.len();
    let uplinks = read_uplinks(reader, &top);
    let switch = read_switch(reader, &top, &names);
    let engine = read_engine(reader, &top);
    let api = read_api(reader, &top);
    let event_log = read_event_log(reader, &top);
    let services = read_services(reader, &top, &names, switch.worker_count());
    // A whole of which parts are wrong would give errors that follow from others.
    (reader.problems.len() == before || !uplinks.is_empty() && !services.is_empty()).then(|| Configuration {
        file: file_name.to_owned(),
        switch,
        uplinks,
        services,
        engine,
        api,
        event_log,
        places: Default::default(),
    })
}

/// A name that becomes part of container, cgroup and file names.
fn name(text: &str) -> Result<String, Wrong> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if text.is_empty() || text.len() > d::NAME_LIMIT || text.starts_with('-') || !text.chars().all(allowed) {
        let write = format!(
            "write 1 to {} of a-z, 0-9 and -, not beginning with -",
            d::NAME_LIMIT
        );
        return Err(Wrong::new(format!("{text:?} is not a name"), write));
    }
    Ok(text.to_owned())
}

/// The names that uplinks are given, so that what refers to one can be checked although the uplink itself is wrong.
fn uplink_names(top: &Section<'_>) -> Vec<String> {
    let uplinks = top.get("uplink").and_then(|value| value.get_ref().as_array());
    let name = |uplink: &Spanned<DeValue<'_>>| {
        uplink
            .get_ref()
            .as_table()?
            .get("name")?
            .get_ref()
            .as_str()
            .map(str::to_owned)
    };
    uplinks.map_or_else(Vec::new, |uplinks| {
        uplinks
            .iter()
            .map(|uplink| name(uplink).unwrap_or_default())
            .collect()
    })
}

fn uplink_of(names: &[String], text: &str) -> Result<UplinkId, Wrong> {
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
                "write an [[uplink]] of that name".to_owned()
            } else {
                write_one_of(text, known)
            };
            Wrong::new(format!("there is no uplink {text:?}"), write)
        })
}

fn read_uplinks<'a>(reader: &mut Reader<'a>, top: &Section<'a>) -> Vec<Uplink> {
    let example = "[[uplink]], name = \"wan\", device = \"memif:wan.sock\"";
    let Some(value) = top.get("uplink") else {
        reader.wrong(
            "uplink",
            Wrong::new("there is no uplink", format!("write {example}")),
        );
        return Vec::new();
    };
    let Some(items) = value.get_ref().as_array() else {
        reader.wrong("uplink", read::not(value.get_ref(), "a list of uplinks", example));
        return Vec::new();
    };
    if items.is_empty() {
        reader.wrong(
            "uplink",
            Wrong::new("there is no uplink", format!("write {example}")),
        );
    }
    if items.len() > d::UPLINK_LIMIT {
        let what = format!("there are {} uplinks, more than {}", items.len(), d::UPLINK_LIMIT);
        reader.wrong("uplink", Wrong::new(what, "remove some"));
    }
    let mut uplinks = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let path = format!("uplink[{index}]");
        reader.note(&path, item.span().start);
        let Some(table) = item.get_ref().as_table() else {
            reader.wrong(&path, read::not(item.get_ref(), "an uplink", example));
            continue;
        };
        let section = reader.section(path, "uplink[]", table);
        let name = reader.require(&section, "name", "\"wan\"", |v| name(read::text(v)?));
        let device = reader.require(&section, "device", "\"memif:wan.sock\"", |v| {
            device(read::text(v)?)
        });
        let queues = read_u8(reader, &section, "queues", 1, d::QUEUES_MAX).unwrap_or(d::UPLINK_QUEUES);
        let bounds = (u64::from(d::MAX_FRAME_MIN), u64::from(d::MAX_FRAME_MAX));
        let max_frame = reader.read(
            &section,
            "max_frame",
            read::whole(bounds.0, bounds.1, units::size),
        );
        // An uplink that is wrong keeps its place, so that the others keep their numbers.
        uplinks.push(Uplink {
            name: name.unwrap_or_else(|| format!("uplink-{index}")),
            device: device.unwrap_or_else(|| Device::Dpdk(String::new())),
            queues,
            max_frame: max_frame
                .and_then(|bytes| u16::try_from(bytes).ok())
                .unwrap_or(d::MAX_FRAME),
        });
    }
    uplinks
}

fn read_u8<'a>(reader: &mut Reader<'a>, section: &Section<'a>, key: &str, low: u8, high: u8) -> Option<u8> {
    let number = reader.read(
        section,
        key,
        read::whole(u64::from(low), u64::from(high), units::count),
    )?;
    u8::try_from(number).ok()
}

fn read_u32<'a>(
    reader: &mut Reader<'a>,
    section: &Section<'a>,
    key: &str,
    low: u32,
    high: u32,
) -> Option<u32> {
    let number = reader.read(
        section,
        key,
        read::whole(u64::from(low), u64::from(high), units::count),
    )?;
    u32::try_from(number).ok()
}

fn read_span<'a>(reader: &mut Reader<'a>, section: &Section<'a>, key: &str, default: Nanos) -> Nanos {
    let of = |value: &DeValue<'_>| {
        let text = value.as_str().ok_or_else(|| {
            read::not(
                value,
                "a span of time",
                "text with a unit of ns, us, ms, s, m, h, d, for example \"50ms\"",
            )
        })?;
        let span = units::span(text)?;
        if span == Nanos::ZERO {
            return Err(Wrong::new("it is zero", "write a longer span"));
        }
        Ok(span)
    };
    reader.read(section, key, of).unwrap_or(default)
}

/// A device of an uplink.
fn device(text: &str) -> Result<Device, Wrong> {
    const FORMS: &str = "write a PCI address (\"0000:03:00.0\"), a DPDK device (\"net_...\"), \"memif:SOCKET\", \
                         \"veth:INTERFACE\" or \"pcap:FILE\"";
    let wrong = || Wrong::new(format!("{text:?} is not a device"), FORMS);
    let (prefix, rest) = text.split_once(':').unwrap_or((text, ""));
    let filled = |what: &str| {
        if rest.is_empty() {
            Err(Wrong::new(format!("{text:?} names no {what}"), FORMS))
        } else {
            Ok(rest)
        }
    };
    match prefix {
        "memif" => socket_path(filled("socket")?).map(Device::Memif),
        "veth" => {
            let interface = filled("interface")?;
            // The kernel's limit on interface names, without the final NUL.
            if interface.len() > 15 || interface.contains(['/', ' ', ',', '=']) {
                let what = format!("{interface:?} cannot be a network interface");
                return Err(Wrong::new(what, "write the name that `ip link` shows"));
            }
            Ok(Device::Veth(interface.to_owned()))
        }
        "pcap" => capture(filled("file")?).map(Device::Pcap),
        "pci" | "vdev" | "auxiliary" if !rest.is_empty() => Ok(Device::Dpdk(text.to_owned())),
        _ if is_pci_address(text) => Ok(Device::Dpdk(text.to_owned())),
        _ if text.starts_with("net_") && text.len() > "net_".len() => Ok(Device::Dpdk(text.to_owned())),
        _ if text.contains(':') => {
            let near = crate::nearest::nearest(prefix, ["memif", "veth", "pcap"]);
            Err(near.map_or_else(wrong, |near| {
                Wrong::new(wrong().what, format!("write \"{near}:{rest}\""))
            }))
        }
        _ => Err(wrong()),
    }
}

/// `FILE`, and after commas `loop` and `tx=FILE`. DPDK reads the names, so that none can have a comma.
fn capture(text: &str) -> Result<Capture, Wrong> {
    const FORMS: &str =
        "write \"pcap:FILE\", \"pcap:FILE,tx=FILE\" or \"pcap:FILE,loop\"; a file's name has no comma";
    let mut parts = text.split(',');
    let file = parts.next().unwrap_or_default();
    if file.is_empty() {
        return Err(Wrong::new(format!("\"pcap:{text}\" names no file"), FORMS));
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
            _ => return Err(Wrong::new(format!("{part:?} is no part of a capture"), FORMS)),
        }
    }
    Ok(capture)
}

/// `0000:03:00.0` or `03:00.0`, with DPDK's device arguments after a comma.
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

fn socket_path(text: &str) -> Result<PathBuf, Wrong> {
    if text.is_empty() || text.ends_with('/') {
        return Err(Wrong::new(
            format!("{text:?} is not a file"),
            "write the socket's path",
        ));
    }
    if text.len() > d::SOCKET_PATH_LIMIT {
        let what = format!(
            "the path has {} bytes; a unix socket's has at most {}",
            text.len(),
            d::SOCKET_PATH_LIMIT
        );
        return Err(Wrong::new(what, "write a shorter one"));
    }
    Ok(PathBuf::from(text))
}

fn cpu(value: &DeValue<'_>) -> Result<u16, Wrong> {
    let number = read::whole(0, u64::from(d::CPU_LIMIT) - 1, units::count)(value)?;
    u16::try_from(number).map_err(|_| Wrong::new("it is no CPU", "write a smaller number"))
}

fn read_switch<'a>(reader: &mut Reader<'a>, top: &Section<'a>, names: &[String]) -> Switch {
    let mut switch = Switch {
        driver: SwitchDriver::Soft,
        workers: Vec::new(),
        poll: Poll::Adaptive,
        flows: d::FLOWS,
        flows_ipv6: d::FLOWS / d::FLOWS_IPV6_PART,
        timeouts: Timeouts {
            tcp: d::TCP,
            tcp_handshake: d::TCP_HANDSHAKE,
            tcp_linger: d::TCP_LINGER,
            udp: d::UDP,
            sctp: d::SCTP,
            icmp: d::ICMP,
            other: d::OTHER,
        },
        unmatched: Fallback::Drop,
        other: Fallback::Drop,
        hugepages: Hugepages::Auto,
        dpdk_args: Vec::new(),
        openflow: OpenFlow {
            bridge: d::BRIDGE.to_owned(),
            datapath: Datapath::Netdev,
            database: d::OVSDB.to_owned(),
            control: None,
            tls: None,
            setup: FlowSetup::Proactive,
            rules: d::RULES,
            buckets: d::BUCKETS,
            spare_ports: d::SPARE_PORTS,
        },
    };
    let Some(section) = reader.subsection(top, "switch", "switch") else {
        return switch;
    };
    let drivers = read::word(&[("soft", SwitchDriver::Soft), ("openflow", SwitchDriver::OpenFlow)]);
    switch.driver = reader.read(&section, "driver", drivers).unwrap_or(switch.driver);
    read_openflow(reader, &section, &mut switch);
    if let Some(items) = reader.read(&section, "workers", read::array) {
        for (index, item) in items.iter().enumerate() {
            let path = format!("switch.workers[{index}]");
            reader.note(&path, item.span().start);
            match cpu(item.get_ref()) {
                Ok(cpu) if switch.workers.contains(&cpu) => {
                    let wrong = Wrong::new(
                        format!("CPU {cpu} is there twice"),
                        "write one worker for each CPU",
                    );
                    reader.wrong(&path, wrong);
                }
                Ok(cpu) => switch.workers.push(cpu),
                Err(wrong) => reader.wrong(&path, wrong),
            }
        }
        if items.len() > d::WORKER_LIMIT {
            let what = format!("there are {} workers, more than {}", items.len(), d::WORKER_LIMIT);
            reader.wrong("switch.workers", Wrong::new(what, "remove some"));
        }
    }
    let polls = read::word(&[("adaptive", Poll::Adaptive), ("busy", Poll::Busy)]);
    switch.poll = reader.read(&section, "poll", polls).unwrap_or(switch.poll);
    let flows = || read::whole(d::FLOWS_MIN, d::FLOWS_MAX, units::count);
    switch.flows = reader.read(&section, "flows", flows()).unwrap_or(switch.flows);
    let part = (switch.flows / d::FLOWS_IPV6_PART).max(d::FLOWS_MIN);
    switch.flows_ipv6 = reader.read(&section, "flows_ipv6", flows()).unwrap_or(part);
    switch.timeouts = read_timeouts(reader, &section, switch.timeouts);
    for (key, fallback) in [("unmatched", &mut switch.unmatched), ("other", &mut switch.other)] {
        let of = |value| match read::text(value)? {
            "drop" => Ok(Fallback::Drop),
            name => uplink_of(names, name)
                .map(Fallback::Pass)
                .map_err(|wrong| Wrong::new(wrong.what, format!("{}, or \"drop\"", wrong.write))),
        };
        *fallback = reader.read(&section, key, of).unwrap_or(Fallback::Drop);
    }
    let hugepages = &[
        ("auto", Hugepages::Auto),
        ("on", Hugepages::On),
        ("off", Hugepages::Off),
    ];
    switch.hugepages = reader
        .read(&section, "hugepages", read::word(hugepages))
        .unwrap_or(switch.hugepages);
    switch.dpdk_args = reader
        .read(&section, "dpdk_args", read::texts)
        .unwrap_or_default();
    switch
}

fn read_openflow<'a>(reader: &mut Reader<'a>, section: &Section<'a>, switch: &mut Switch) {
    let Some(section) = reader.subsection(section, "openflow", "switch.openflow") else {
        return;
    };
    if switch.driver != SwitchDriver::OpenFlow {
        let wrong = Wrong::new(
            "these keys are for the driver openflow, and another one is chosen",
            "write driver = \"openflow\" in [switch], or remove them",
        );
        reader.wrong("switch.openflow", wrong);
    }
    let of = &mut switch.openflow;
    if let Some(bridge) = reader.read(&section, "bridge", |v| bridge(read::text(v)?)) {
        of.bridge = bridge;
    }
    let datapaths = read::word(&[("netdev", Datapath::Netdev), ("system", Datapath::System)]);
    of.datapath = reader
        .read(&section, "datapath", datapaths)
        .unwrap_or(of.datapath);
    if let Some(database) = reader.read(&section, "database", |v| ovs_endpoint(read::text(v)?)) {
        of.database = database;
    }
    of.control = reader.read(&section, "control", |v| {
        let control = ovs_endpoint(read::text(v)?)?;
        let address = control.strip_prefix("tcp:").or(control.strip_prefix("ssl:"));
        match address {
            Some(address) if address.parse::<SocketAddr>().is_err() => Err(Wrong::new(
                "the bridge listens at an address and not at a name",
                "write the address, as in tcp:192.0.2.1:6653",
            )),
            _ => Ok(control),
        }
    });
    of.tls = reader.read(&section, "tls", |v| directory(read::text(v)?));
    let needs = [Some(&of.database), of.control.as_ref()]
        .into_iter()
        .flatten()
        .any(|place| place.starts_with("ssl:"));
    if needs != of.tls.is_some() {
        let wrong = if needs {
            Wrong::new(
                "ssl: needs keys",
                "write tls = \"DIR\", a directory with ca.pem, cert.pem and key.pem",
            )
        } else {
            Wrong::new(
                "keys are for ssl: alone",
                "write database = \"ssl:HOST:PORT\", or remove it",
            )
        };
        reader.wrong(&section.key("tls"), wrong);
    }
    let setups = read::word(&[
        ("proactive", FlowSetup::Proactive),
        ("reactive", FlowSetup::Reactive),
    ]);
    of.setup = reader.read(&section, "setup", setups).unwrap_or(of.setup);
    of.rules = read_u32(reader, &section, "rules", 16, d::RULES_MAX).unwrap_or(of.rules);
    let buckets = reader.read(&section, "buckets", |v| {
        let number = read::whole(1, u64::from(d::BUCKETS_MAX), units::count)(v)?;
        match u16::try_from(number) {
            Ok(number) if number.is_power_of_two() => Ok(number),
            _ => Err(Wrong::new(
                format!("{number} is no power of two"),
                format!(
                    "write {}",
                    number.next_power_of_two().min(u64::from(d::BUCKETS_MAX))
                ),
            )),
        }
    });
    of.buckets = buckets.unwrap_or(of.buckets);
    of.spare_ports = read_u32(reader, &section, "spare_ports", 0, 1000).unwrap_or(of.spare_ports);
    if of.control().is_none() {
        let wrong = Wrong::new(
            "where the bridge listens does not follow from a database on another machine",
            "write control = \"tcp:ADDRESS:6653\"",
        );
        reader.wrong(&section.key("database"), wrong);
    }
}

/// A bridge's name: its own interface has it, and names of its ports begin with it.
fn bridge(text: &str) -> Result<String, Wrong> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if text.is_empty() || text.len() > 15 || !text.chars().all(allowed) {
        return Err(Wrong::new(
            format!("{text:?} is no name for a bridge"),
            "write at most 15 letters, digits, - and _",
        ));
    }
    Ok(text.to_owned())
}

/// Where somebody listens, as Open vSwitch writes it.
fn directory(text: &str) -> Result<PathBuf, Wrong> {
    if text.is_empty() {
        return Err(Wrong::new("it is empty", "write a directory"));
    }
    Ok(PathBuf::from(text))
}

fn ovs_endpoint(text: &str) -> Result<String, Wrong> {
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
        Err(Wrong::new(
            format!("{text:?} is no place where Open vSwitch listens"),
            "write unix:/path/to/socket, tcp:HOST:PORT or ssl:HOST:PORT",
        ))
    }
}

fn read_engine<'a>(reader: &mut Reader<'a>, top: &Section<'a>) -> Engine {
    let mut engine = Engine {
        driver: EngineDriver::Oci,
        host: d::DOCKER_HOST.to_owned(),
        tls: None,
    };
    let Some(section) = reader.subsection(top, "engine", "engine") else {
        return engine;
    };
    let drivers = read::word(&[("oci", EngineDriver::Oci), ("docker", EngineDriver::Docker)]);
    engine.driver = reader.read(&section, "driver", drivers).unwrap_or(engine.driver);
    if let Some(host) = reader.read(&section, "host", |v| host(read::text(v)?)) {
        engine.host = host;
    }
    engine.tls = reader.read(&section, "tls", |v| directory(read::text(v)?));
    if engine.driver == EngineDriver::Oci {
        for key in ["host", "tls"] {
            if section.get(key).is_some() {
                let what = "the oci engine is embedded and has no such key";
                reader.wrong(
                    &section.key(key),
                    Wrong::new(what, "remove it, or write driver = \"docker\""),
                );
            }
        }
    }
    engine
}

fn host(text: &str) -> Result<String, Wrong> {
    let wrong = |what: String| Err(Wrong::new(what, "write \"unix:///path\" or \"tcp://host:port\""));
    match text.split_once("://") {
        Some(("unix", path)) if path.starts_with('/') => socket_path(path).map(|_| text.to_owned()),
        Some(("tcp", authority)) => {
            let port = authority
                .trim_end_matches('/')
                .rsplit_once(':')
                .and_then(|(host, port)| (!host.is_empty()).then(|| port.parse::<u16>().ok()).flatten());
            match port {
                Some(1..) => Ok(text.to_owned()),
                _ => wrong(format!("{text:?} has no host and port")),
            }
        }
        _ => wrong(format!("{text:?} is not an engine's address")),
    }
}

fn read_api<'a>(reader: &mut Reader<'a>, top: &Section<'a>) -> Api {
    let Some(section) = reader.subsection(top, "api", "api") else {
        return Api::default();
    };
    let socket = reader.read(&section, "socket", |v| socket_path(read::text(v)?));
    let listen = reader.read(&section, "listen", |v| {
        let text = read::text(v)?;
        let write = "write an address of this machine and a port: \"0.0.0.0:8443\", \"[::1]:8443\"";
        let parsed = text.parse();
        parsed.map_err(|_| Wrong::new(format!("{text:?} is no address with a port"), write))
    });
    let tcp = match listen {
        None => {
            let without = ["certificate", "key", "tokens"]
                .into_iter()
                .find(|key| section.get(key).is_some());
            if let Some(key) = without {
                let wrong = Wrong::new(
                    "nothing listens over the network",
                    "write listen = \"0.0.0.0:8443\", or take this away",
                );
                reader.wrong(&section.key(key), wrong);
            }
            None
        }
        Some(listen) => {
            let mut path = |key: &str, example| reader.require(&section, key, example, file_path);
            let certificate = path("certificate", "\"/etc/inco/api.pem\"");
            let key = path("key", "\"/etc/inco/api.key\"");
            let tokens = path("tokens", "\"/etc/inco/tokens\"");
            certificate
                .zip(key)
                .zip(tokens)
                .map(|((certificate, key), tokens)| ApiTcp {
                    listen,
                    certificate,
                    key,
                    tokens,
                })
        }
    };
    Api { socket, tcp }
}

fn file_path(value: &DeValue<'_>) -> Result<PathBuf, Wrong> {
    match read::text(value)? {
        "" => Err(Wrong::new("it is empty", "write a path")),
        text => Ok(PathBuf::from(text)),
    }
}

fn read_event_log<'a>(reader: &mut Reader<'a>, top: &Section<'a>) -> EventLog {
    let default = EventLog::default();
    let Some(section) = reader.subsection(top, "event_log", "event_log") else {
        return default;
    };
    let bytes = read::whole(64 << 10, 1 << 30, units::size);
    EventLog {
        directory: reader.read(&section, "directory", file_path),
        file_bytes: reader
            .read(&section, "file_size", bytes)
            .unwrap_or(default.file_bytes),
        files: read_u32(reader, &section, "files", 1, 1000).unwrap_or(default.files),
    }
}

fn read_services<'a>(
    reader: &mut Reader<'a>,
    top: &Section<'a>,
    uplinks: &[String],
    workers: usize,
) -> Vec<Service> {
    let example = "write [service.NAME] with an image";
    let Some(value) = top.get("service") else {
        reader.wrong("service", Wrong::new("there is no service", example));
        return Vec::new();
    };
    let Some(table) = value.get_ref().as_table() else {
        let wrong = read::not(
            value.get_ref(),
            "a table of services",
            "[service.NAME] above a service's keys",
        );
        reader.wrong("service", wrong);
        return Vec::new();
    };
    if table.is_empty() {
        reader.wrong("service", Wrong::new("there is no service", example));
    }
    if table.len() > d::SERVICE_LIMIT {
        let what = format!(
            "there are {} services, more than {}",
            table.len(),
            d::SERVICE_LIMIT
        );
        reader.wrong("service", Wrong::new(what, "remove some"));
    }
    reader.note_keys(&Section::new("service".to_owned(), table));
    // In the order of the file: the parser sorts keys.
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    let mut services = Vec::new();
    for (key, value) in entries {
        let path = format!("service.{}", key.get_ref());
        if let Err(wrong) = name(key.get_ref()) {
            reader.wrong(&path, wrong);
        }
        let Some(table) = value.get_ref().as_table() else {
            reader.wrong(
                &path,
                read::not(
                    value.get_ref(),
                    "a service",
                    "[service.NAME] above a service's keys",
                ),
            );
            continue;
        };
        let section = reader.section(path, "service.NAME", table);
        services.push(read_service(reader, &section, key.get_ref(), uplinks, workers));
    }
    services
}

fn read_service<'a>(
    reader: &mut Reader<'a>,
    section: &Section<'a>,
    name: &str,
    uplinks: &[String],
    workers: usize,
) -> Service {
    let port = read::word(&[
        ("memif", PortKind::Memif),
        ("device", PortKind::Device),
        ("null", PortKind::Null),
    ]);
    let port = reader.read(section, "port", port).unwrap_or(PortKind::Memif);
    let image = if port != PortKind::Null {
        reader.require(section, "image", "\"inco/forward\"", image)
    } else {
        reader.read(section, "image", image)
    };
    let affinity = read::word(&[("strict", Affinity::Strict), ("relaxed", Affinity::Relaxed)]);
    let table_full = read::word(&[("hash", TableFull::Hash), ("drop", TableFull::Drop)]);
    let memory = read::whole(d::MEMORY_MIN_BYTES, 1 << 50, units::size);
    let (scheduler, limit) = read_scheduler(reader, section);
    let queues_max = u8::try_from(workers).unwrap_or(d::QUEUES_MAX).min(d::QUEUES_MAX);
    Service {
        name: name.to_owned(),
        matches: read_match(reader, section),
        uplinks: read_service_uplinks(reader, section, uplinks),
        image,
        port,
        devices: read_devices(reader, section),
        command: reader.read(section, "command", read::texts).unwrap_or_default(),
        args: reader.read(section, "args", read::texts).unwrap_or_default(),
        env: reader.read(section, "env", env).unwrap_or_default(),
        mounts: read_mounts(reader, section),
        memory_bytes: reader.read(section, "memory", memory).unwrap_or(d::MEMORY_BYTES),
        processes: read_u32(reader, section, "processes", 1, 65_536).unwrap_or(d::PROCESSES),
        cpuset: reader.read(section, "cpuset", |v| {
            let text = read::text(v)?;
            cpus_of(text).map(|_| text.to_owned())
        }),
        hugepages: reader.read(section, "hugepages", read::boolean).unwrap_or(false),
        ready: read_ready(reader, section),
        ready_deadline: read_span(reader, section, "ready_deadline", d::READY_DEADLINE),
        instances: read_instances(reader, section),
        cpus: reader.read(section, "cpus", cpus),
        capacity: reader
            .read(section, "capacity", capacity)
            .unwrap_or(Capacity::Learn),
        fit: reader.read(section, "fit", share).unwrap_or(d::FIT),
        scheduler,
        limit,
        autoscaler: read_autoscaler(reader, section),
        affinity: reader
            .read(section, "affinity", affinity)
            .unwrap_or(Affinity::Strict),
        symmetric: reader.read(section, "symmetric", read::boolean).unwrap_or(true),
        table_full: reader
            .read(section, "table_full", table_full)
            .unwrap_or(TableFull::Hash),
        drain_deadline: read_span(reader, section, "drain_deadline", d::DRAIN_DEADLINE),
        stop_grace: read_span(reader, section, "stop_grace", d::STOP_GRACE),
        ring: read_ring(reader, section),
        queues: read_u8(reader, section, "queues", 1, queues_max).unwrap_or(d::QUEUES),
        flow_counters: reader
            .read(section, "flow_counters", read::boolean)
            .unwrap_or(false),
    }
}

fn image(value: &DeValue<'_>) -> Result<String, Wrong> {
    let example = "the name of an image, for example \"inco/forward\"";
    let text = value
        .as_str()
        .ok_or_else(|| read::not(value, "an image", example))?;
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-/:@".contains(c);
    // Docker's limit on a reference.
    if text.is_empty()
        || text.len() > 255
        || text.starts_with(['-', '/', ':', '.'])
        || !text.chars().all(allowed)
    {
        return Err(Wrong::new(
            format!("{text:?} is not an image"),
            format!("write {example}"),
        ));
    }
    Ok(text.to_owned())
}

fn env(value: &DeValue<'_>) -> Result<Vec<(String, String)>, Wrong> {
    const EXAMPLE: &str = "write { NAME = \"value\" } or [\"NAME=value\"]";
    let mut env = BTreeMap::new();
    match value {
        DeValue::Table(table) => {
            for (name, value) in table {
                let text = match value.get_ref() {
                    DeValue::String(text) => text.to_string(),
                    DeValue::Integer(number) => number.to_string(),
                    DeValue::Float(number) => number.to_string(),
                    DeValue::Boolean(value) => value.to_string(),
                    _ => return Err(Wrong::new(format!("{} is not text", name.get_ref()), EXAMPLE)),
                };
                env.insert(name.get_ref().to_string(), text);
            }
        }
        DeValue::Array(_) => {
            for item in read::texts(value)? {
                let Some((name, text)) = item.split_once('=') else {
                    return Err(Wrong::new(format!("{item:?} has no ="), EXAMPLE));
                };
                env.insert(name.to_owned(), text.to_owned());
            }
        }
        _ => {
            return Err(read::not(
                value,
                "an environment",
                "{ NAME = \"value\" } or [\"NAME=value\"]",
            ));
        }
    }
    for (name, text) in &env {
        if name.is_empty() || name.contains(['=', '\0']) || text.contains('\0') {
            return Err(Wrong::new(
                format!("{name:?} cannot be in an environment"),
                EXAMPLE,
            ));
        }
    }
    Ok(env.into_iter().collect())
}

fn absolute(text: &str) -> Result<PathBuf, Wrong> {
    let path = Path::new(text);
    let climbs = path
        .components()
        .any(|part| part == std::path::Component::ParentDir);
    if !path.is_absolute() || climbs || text.contains('\0') {
        let what = format!("{text:?} is not an absolute path without \"..\"");
        return Err(Wrong::new(what, "write one that begins with /"));
    }
    Ok(path.to_owned())
}

fn read_devices<'a>(reader: &mut Reader<'a>, section: &Section<'a>) -> Vec<InstanceDevice> {
    let Some(items) = reader.read(section, "devices", read::array) else {
        return Vec::new();
    };
    let mut devices = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let path = format!("{}[{index}]", section.key("devices"));
        reader.note(&path, item.span().start);
        let DeValue::Table(table) = item.get_ref() else {
            let example = "{ representor = \"pf0vf0\", pci = \"0000:03:00.2\" }";
            reader.wrong(&path, read::not(item.get_ref(), "a device", example));
            continue;
        };
        let device = reader.section(path.clone(), "service.NAME.devices[]", table);
        let representor = reader.require(&device, "representor", "\"pf0vf0\"", |v| {
            representor(read::text(v)?)
        });
        let pci = reader.read(&device, "pci", |v| pci(read::text(v)?));
        let sf = read_u32(reader, &device, "sf", 0, u32::MAX);
        let interface = reader.read(&device, "interface", |v| interface(read::text(v)?));
        let mac = reader.read(&device, "mac", |v| mac(read::text(v)?));
        let vfio = reader.read(&device, "vfio", |v| absolute(read::text(v)?));
        let functions = [
            pci.map(CardFunction::Pci),
            sf.map(CardFunction::Sf),
            interface.map(CardFunction::Interface),
        ];
        let written = ["pci", "sf", "interface"]
            .iter()
            .filter(|key| device.get(key).is_some())
            .count();
        if written != 1 {
            let what = format!("{written} of pci, sf and interface say what the instance gets");
            let write = "write one of them: pci = \"0000:03:00.2\", sf = 1 or interface = \"enp3s0f0v0\"";
            reader.wrong(&path, Wrong::new(what, write));
        }
        if let (Some(representor), Some(function)) = (representor, functions.into_iter().flatten().next()) {
            devices.push(InstanceDevice {
                representor,
                function,
                mac,
                vfio,
            });
        }
    }
    devices
}

/// The switch's end of a device: an interface, or a device of DPDK.
fn representor(text: &str) -> Result<String, Wrong> {
    if text.contains([':', ',']) && !text.contains(char::is_whitespace) {
        return Ok(text.to_owned());
    }
    interface(text)
}

/// A name as the kernel takes it.
fn interface(text: &str) -> Result<String, Wrong> {
    let allowed = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'/' | b':');
    if (1..=15).contains(&text.len()) && text != "." && text != ".." && text.bytes().all(allowed) {
        return Ok(text.to_owned());
    }
    Err(Wrong::new(
        format!("{text:?} is no name of a network interface"),
        "write one of `ip link`, at most 15 bytes",
    ))
}

/// `0000:03:00.2`.
fn pci(text: &str) -> Result<String, Wrong> {
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
        _ => Err(Wrong::new(
            format!("{text:?} is no PCI address"),
            "write it in full, as `lspci -D` shows it: \"0000:03:00.2\"",
        )),
    }
}

/// `02:00:00:00:00:11`.
fn mac(text: &str) -> Result<MacAddress, Wrong> {
    let bytes: Vec<Option<u8>> = text
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16).ok().filter(|_| byte.len() == 2))
        .collect();
    let bytes = bytes.into_iter().collect::<Option<Vec<u8>>>();
    match bytes.and_then(|bytes| <[u8; 6]>::try_from(bytes).ok()) {
        Some(bytes) if bytes[0] & 1 == 0 => Ok(MacAddress(bytes)),
        _ => Err(Wrong::new(
            format!("{text:?} is no Ethernet address of one device"),
            "write six bytes, as \"02:00:00:00:00:11\"",
        )),
    }
}

fn read_mounts<'a>(reader: &mut Reader<'a>, section: &Section<'a>) -> Vec<Mount> {
    let Some(items) = reader.read(section, "mounts", read::array) else {
        return Vec::new();
    };
    let mut mounts = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let path = format!("{}[{index}]", section.key("mounts"));
        reader.note(&path, item.span().start);
        match item.get_ref() {
            DeValue::String(text) => match mount(text) {
                Ok(mount) => mounts.push(mount),
                Err(wrong) => reader.wrong(&path, wrong),
            },
            DeValue::Table(table) => {
                let mount = reader.section(path, "service.NAME.mounts[]", table);
                let source = reader.require(&mount, "source", "\"/etc/rules\"", |v| absolute(read::text(v)?));
                let target = reader.require(&mount, "target", "\"/etc/rules\"", |v| absolute(read::text(v)?));
                let read_only = reader.read(&mount, "read_only", read::boolean).unwrap_or(false);
                if let (Some(source), Some(target)) = (source, target) {
                    mounts.push(Mount {
                        source,
                        target,
                        read_only,
                    });
                }
            }
            other => reader.wrong(&path, read::not(other, "a mount", "\"/source:/target:ro\"")),
        }
    }
    mounts
}

/// `/source:/target[:ro|rw]`, as in compose.
fn mount(text: &str) -> Result<Mount, Wrong> {
    let parts: Vec<&str> = text.split(':').collect();
    let (source, target, read_only) = match parts.as_slice() {
        [source, target] => (source, target, false),
        [source, target, "ro"] => (source, target, true),
        [source, target, "rw"] => (source, target, false),
        _ => {
            return Err(Wrong::new(
                format!("{text:?} is not a mount"),
                "write \"/source:/target:ro\"",
            ));
        }
    };
    Ok(Mount {
        source: absolute(source)?,
        target: absolute(target)?,
        read_only,
    })
}

/// The CPUs of a set written as `0-3,7`.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn cpus_of(text: &str) -> Result<Vec<u16>, Wrong> {
    let wrong = || {
        Wrong::new(
            format!("{text:?} is not a set of CPUs"),
            "write numbers and ranges, as \"0-3,7\"",
        )
    };
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.trim().parse::<u16>().ok().filter(|cpu| *cpu < d::CPU_LIMIT);
        match (number(first), number(last)) {
            (Some(first), Some(last)) if first <= last => cpus.extend(first..=last),
            _ => return Err(wrong()),
        }
    }
    cpus.sort_unstable();
    cpus.dedup();
    Ok(cpus)
}

fn read_ready<'a>(reader: &mut Reader<'a>, section: &Section<'a>) -> Ready {
    if section
        .get("ready")
        .is_some_and(|value| value.get_ref().is_table())
    {
        let Some(ready) = reader.subsection(section, "ready", "service.NAME.ready") else {
            return Ready::Connected;
        };
        let exec = reader.require(&ready, "exec", "[\"/bin/check\"]", |value| {
            let command = read::texts(value)?;
            if command.first().is_none_or(String::is_empty) {
                return Err(Wrong::new("it names no program", "write [\"/bin/check\"]"));
            }
            Ok(command)
        });
        return exec.map_or(Ready::Connected, Ready::Exec);
    }
    let consumes = read::word(&[("connected", false), ("consumes", true)]);
    match reader.read(section, "ready", consumes) {
        Some(true) => Ready::Consumes,
        _ => Ready::Connected,
    }
}

fn read_instances<'a>(reader: &mut Reader<'a>, section: &Section<'a>) -> Instances {
    let limit = model::Slot::LIMIT as u32;
    let mut instances = Instances {
        min: d::INSTANCES_MIN,
        max: d::INSTANCES_MAX,
        standby: d::STANDBY,
        standby_mode: StandbyMode::Warm,
    };
    let Some(value) = section.get("instances") else {
        return instances;
    };
    if !value.get_ref().is_table() {
        if let Some(number) = read_u32(reader, section, "instances", 1, limit) {
            (instances.min, instances.max, instances.standby) = (number, number, 0);
        }
        return instances;
    }
    let Some(section) = reader.subsection(section, "instances", "service.NAME.instances") else {
        return instances;
    };
    instances.min = read_u32(reader, &section, "min", 1, limit).unwrap_or(d::INSTANCES_MIN);
    let max = read_u32(reader, &section, "max", 1, limit);
    instances.max = max.unwrap_or(d::INSTANCES_MAX.max(instances.min));
    instances.standby = read_u32(reader, &section, "standby", 0, limit).unwrap_or(d::STANDBY);
    let modes = read::word(&[("warm", StandbyMode::Warm), ("paused", StandbyMode::Paused)]);
    instances.standby_mode = reader
        .read(&section, "standby_mode", modes)
        .unwrap_or(StandbyMode::Warm);
    if instances.min > instances.max {
        let wrong = Wrong::new(
            format!("{} is more than max ({})", instances.min, instances.max),
            format!("write a min of at most {}", instances.max),
        );
        reader.wrong(&section.key("min"), wrong);
    } else if instances.standby > instances.max {
        let wrong = Wrong::new(
            format!("{} is more than max ({})", instances.standby, instances.max),
            format!("write a standby of at most {}", instances.max),
        );
        reader.wrong(&section.key("standby"), wrong);
    }
    instances
}

fn cpus(value: &DeValue<'_>) -> Result<f64, Wrong> {
    let write = format!(
        "write a number of CPUs of at least {}, for example 0.5",
        d::CPUS_MIN
    );
    let cpus = read::number(value)
        .ok_or_else(|| Wrong::new(read::not(value, "a number of CPUs", "").what, &*write))?;
    if !(d::CPUS_MIN..=f64::from(d::CPU_LIMIT)).contains(&cpus) {
        return Err(Wrong::new(format!("{cpus} is out of range"), write));
    }
    Ok(cpus)
}

fn share(value: &DeValue<'_>) -> Result<f64, Wrong> {
    let share = match value {
        DeValue::String(text) => units::share(text)?,
        _ => read::number(value)
            .ok_or_else(|| read::not(value, "a share", "a number above 0 and at most 1"))?,
    };
    if share > 0.0 && share <= 1.0 {
        Ok(share)
    } else {
        Err(Wrong::new(
            format!("{share} is out of range"),
            "write a number above 0 and at most 1",
        ))
    }
}

fn capacity(value: &DeValue<'_>) -> Result<Capacity, Wrong> {
    let pps = match value {
        DeValue::String(text) if text == "learn" => return Ok(Capacity::Learn),
        DeValue::String(text) => units::rate(text)
            .map_err(|wrong| Wrong::new(wrong.what, format!("{}, or \"learn\"", wrong.write)))?,
        _ => read::number(value)
            .ok_or_else(|| read::not(value, "a packet rate", "\"10Mpps\", or \"learn\""))?,
    };
    // The load of an instance is kept as f32: beyond 1 Tpps the figure is a slip of the unit.
    if pps > 0.0 && pps <= 1e12 {
        Ok(Capacity::Pps(pps))
    } else {
        Err(Wrong::new(
            format!("{pps} packets per second cannot be"),
            "write more than 0, for example \"10Mpps\"",
        ))
    }
}

/// A scheduler, and what one instance takes in its metric where that is not packets.
fn read_scheduler<'a>(reader: &mut Reader<'a>, section: &Section<'a>) -> (Scheduler, Option<f64>) {
    let default = Scheduler::default;
    let named = |name: &str| {
        Scheduler::from_name(name).map_err(|_| {
            Wrong::new(
                format!("there is no scheduler {name:?}"),
                write_one_of(name, Scheduler::NAMES.to_vec()),
            )
        })
    };
    let Some(value) = section.get("scheduler") else {
        return (default(), None);
    };
    let Some(table) = value.get_ref().as_table() else {
        let of = |value| named(read::text(value)?);
        let scheduler = reader.read(section, "scheduler", of);
        return (scheduler.unwrap_or_else(default), None);
    };
    let path = section.key("scheduler");
    let Some(policy) = read_policy(reader, &path, table, d::SCHEDULER, |name| named(name).map(drop)) else {
        return (default(), None);
    };
    let common = keys::of_table(keys::SCHEDULER).map(|key| key.name);
    let own = Scheduler::parameters_of(policy).unwrap_or_default();
    let known: Vec<&str> = common.chain(own.iter().map(|parameter| parameter.name)).collect();
    let section = reader.section_with(path, &known, table);
    let mut settings = Settings::default();
    if let Some(metric) = reader.read(&section, "metric", read::word(&METRICS)) {
        settings.metric = metric;
    }
    if let Some(spill) = reader.read(&section, "spill", read::boolean) {
        settings.spill = spill;
    }
    let span = |value: &DeValue<'_>| {
        let text = value
            .as_str()
            .ok_or_else(|| read::not(value, "a span of time", "text with a unit, for example \"1s\""))?;
        let span = units::span(text)?;
        if span > d::SLOW_START_MAX {
            return Err(Wrong::new("it is more than 1h", "write a shorter span"));
        }
        Ok(span)
    };
    if let Some(slow_start) = reader.read(&section, "slow_start", span) {
        settings.slow_start = slow_start;
    }
    let limit = read_limit(reader, &section, settings.metric);
    let names: Vec<&str> = own.iter().map(|parameter| parameter.name).collect();
    let make = |parameters| Scheduler::with_parameters(policy, settings, parameters);
    let scheduler = read_parameters(reader, &section, policy, &names, make);
    (scheduler.unwrap_or_else(default), limit)
}

const METRICS: [(&str, Metric); Metric::ALL.len()] = {
    let [packets, bytes, flows, busy] = Metric::ALL;
    [
        (packets.name(), packets),
        (bytes.name(), bytes),
        (flows.name(), flows),
        (busy.name(), busy),
    ]
};

/// What one instance takes, in a unit that fits the metric.
fn read_limit<'a>(reader: &mut Reader<'a>, section: &Section<'a>, metric: Metric) -> Option<f64> {
    let positive = |number: f64, write: &str| {
        if number > 0.0 && number <= 1e12 {
            Ok(number)
        } else {
            Err(Wrong::new(format!("{number} is out of range"), write))
        }
    };
    match metric {
        Metric::Packets => {
            if section.get("limit").is_some() {
                let wrong = Wrong::new(
                    "the limit in packets is the service's `capacity`",
                    "remove it, or write another metric",
                );
                reader.wrong(&section.key("limit"), wrong);
            }
            None
        }
        Metric::Bytes => reader.require(section, "limit", "\"10Gbps\"", |value| {
            let rate = units::bit_rate(read::text(value)?)?;
            positive(rate, "write a bit rate, for example \"10Gbps\"")
        }),
        Metric::Flows => reader.require(section, "limit", "1000", |value| {
            read::whole(1, u64::from(u32::MAX), units::count)(value).map(|flows| flows as f64)
        }),
        Metric::Busy => Some(reader.read(section, "limit", share).unwrap_or(1.0)),
    }
}

/// The name of a policy in a table of its own; `None` where there is no such policy, which is told.
fn read_policy<'a>(
    reader: &mut Reader<'a>,
    path: &str,
    table: &'a DeTable<'a>,
    default: &'a str,
    is_known: impl FnOnce(&str) -> Result<(), Wrong>,
) -> Option<&'a str> {
    let Some(value) = table.get("policy") else {
        return Some(default);
    };
    reader.note_keys(&Section::new(path.to_owned(), table));
    match read::text(value.get_ref()).and_then(|name| is_known(name).map(|()| name)) {
        Ok(name) => Some(name),
        Err(wrong) => {
            // Which parameters there are depends on the policy, so nothing more can be said.
            reader.wrong(&format!("{path}.policy"), wrong);
            None
        }
    }
}

/// A policy with the parameters that a table gives it; `None` where they do not go together, which is told.
fn read_parameters<'a, T>(
    reader: &mut Reader<'a>,
    section: &Section<'a>,
    policy: &str,
    parameters: &[&str],
    make: impl Fn(ValueDeserializer<'a>) -> Result<T, toml::de::Error>,
) -> Option<T> {
    // Each parameter alone first, so that every wrong one is told with its own key.
    let mut written = DeTable::new();
    for (key, value) in section.table {
        if !parameters.contains(&key.get_ref().as_ref()) {
            continue;
        }
        let one: DeTable<'_> = std::iter::once((key.clone(), value.clone())).collect();
        match make(deserializer(one)) {
            Ok(_) => {
                written.insert(key.clone(), value.clone());
            }
            Err(error) => {
                let message = error.message();
                let (what, write) = match message.split_once(", expected ") {
                    Some((what, expected)) => (what.to_owned(), format!("write {expected}")),
                    None => (
                        message.to_owned(),
                        format!("see the parameters of {policy} in the reference"),
                    ),
                };
                reader.wrong(&section.key(key.get_ref()), Wrong::new(what, write));
            }
        }
    }
    match make(deserializer(written)) {
        Ok(made) => Some(made),
        Err(error) => {
            let wrong = Wrong::new(
                error.message(),
                format!("see the parameters of {policy} in the reference"),
            );
            reader.wrong(&section.path, wrong);
            None
        }
    }
}

/// Reads a scheduler as the configuration's key `scheduler` has it: a name, or an inline table. Gives it in its first
/// state, and what one instance takes in its metric where that is not packets.
///
/// # Errors
/// What is wrong with it.
pub fn parse_scheduler(text: &str) -> Result<(Scheduler, Option<f64>), Vec<Problem>> {
    let trimmed = text.trim();
    let is_toml = trimmed.starts_with(['{', '"', '\'']);
    let value = if is_toml {
        trimmed.to_owned()
    } else {
        format!("{trimmed:?}")
    };
    let document = format!("scheduler = {value}");
    let mut reader = Reader::new("scheduler", &document);
    let (table, errors) = DeTable::parse_recoverable(&document);
    if !errors.is_empty() || table.get_ref().len() != 1 {
        let write = "write a name, or a table such as { policy = \"maglev\", table = 65537 }";
        reader.wrong(
            "scheduler",
            Wrong::new(format!("{trimmed:?} is no scheduler"), write),
        );
        return Err(reader.finish().1);
    }
    let section = Section::new(String::new(), table.get_ref());
    reader.note_keys(&section);
    let read = read_scheduler(&mut reader, &section);
    let problems = reader.finish().1;
    if problems.is_empty() {
        Ok(read)
    } else {
        Err(problems)
    }
}

fn read_autoscaler<'a>(reader: &mut Reader<'a>, section: &Section<'a>) -> Autoscaler {
    let default =
        || Autoscaler::from_name(d::AUTOSCALER).unwrap_or_else(|_| Autoscaler::Ladder(Default::default()));
    let named = |name: &str| {
        Autoscaler::from_name(name).map_err(|_| {
            Wrong::new(
                format!("there is no autoscaler {name:?}"),
                write_one_of(name, Autoscaler::NAMES.to_vec()),
            )
        })
    };
    let Some(value) = section.get("autoscaler") else {
        return default();
    };
    let Some(table) = value.get_ref().as_table() else {
        let of = |value| named(read::text(value)?);
        return reader.read(section, "autoscaler", of).unwrap_or_else(default);
    };
    let path = section.key("autoscaler");
    let Some(policy) = read_policy(reader, &path, table, d::AUTOSCALER, |name| named(name).map(drop)) else {
        return default();
    };
    let parameters: Vec<&str> = Autoscaler::parameters_of(policy)
        .unwrap_or_default()
        .iter()
        .map(|parameter| parameter.name)
        .collect();
    let known: Vec<&str> = std::iter::once("policy")
        .chain(parameters.iter().copied())
        .collect();
    let section = reader.section_with(path, &known, table);
    let make = |parameters| Autoscaler::with_parameters(policy, parameters);
    read_parameters(reader, &section, policy, &parameters, make).unwrap_or_else(default)
}

fn deserializer(table: DeTable<'_>) -> ValueDeserializer<'_> {
    ValueDeserializer::from(Spanned::new(0..0, DeValue::Table(table)))
}

fn read_timeouts<'a>(reader: &mut Reader<'a>, section: &Section<'a>, mut timeouts: Timeouts) -> Timeouts {
    if let Some(section) = reader.subsection(section, "timeouts", "switch.timeouts") {
        for (key, timeout) in [
            ("tcp", &mut timeouts.tcp),
            ("tcp_handshake", &mut timeouts.tcp_handshake),
            ("tcp_linger", &mut timeouts.tcp_linger),
            ("udp", &mut timeouts.udp),
            ("sctp", &mut timeouts.sctp),
            ("icmp", &mut timeouts.icmp),
            ("other", &mut timeouts.other),
        ] {
            *timeout = read_span(reader, &section, key, *timeout);
            if *timeout > d::TIMEOUT_MAX {
                let wrong = Wrong::new("it is more than 18h", "write a shorter span");
                reader.wrong(&section.key(key), wrong);
            }
        }
    }
    timeouts
}

fn read_ring<'a>(reader: &mut Reader<'a>, section: &Section<'a>) -> Ring {
    let mut ring = Ring {
        slots: d::RING_SLOTS,
        buffer_bytes: d::BUFFER_BYTES,
    };
    let Some(section) = reader.subsection(section, "ring", "service.NAME.ring") else {
        return ring;
    };
    if let Some(slots) = read_u32(reader, &section, "slots", d::RING_SLOTS_MIN, d::RING_SLOTS_MAX) {
        if slots.is_power_of_two() {
            ring.slots = slots;
        } else {
            let write = format!(
                "write {} or {}",
                slots.next_power_of_two() / 2,
                slots.next_power_of_two()
            );
            reader.wrong(
                &section.key("slots"),
                Wrong::new(format!("{slots} is not a power of two"), write),
            );
        }
    }
    let bounds = (u64::from(d::BUFFER_BYTES_MIN), u64::from(d::BUFFER_BYTES_MAX));
    if let Some(bytes) = reader.read(
        &section,
        "buffer_bytes",
        read::whole(bounds.0, bounds.1, units::size),
    ) {
        ring.buffer_bytes = u32::try_from(bytes).unwrap_or(d::BUFFER_BYTES);
    }
    ring
}

fn read_service_uplinks<'a>(
    reader: &mut Reader<'a>,
    section: &Section<'a>,
    names: &[String],
) -> Vec<UplinkId> {
    let first = vec![UplinkId(0)];
    let Some(items) = reader.read(section, "uplinks", read::array) else {
        return first;
    };
    if items.is_empty() || items.len() > d::SERVICE_UPLINK_LIMIT {
        let what = format!("there are {} uplinks in the list", items.len());
        let write = "write one (packets leave where they came in) or two (in by one, out by the other)";
        reader.wrong(&section.key("uplinks"), Wrong::new(what, write));
    }
    let mut uplinks = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let path = format!("{}[{index}]", section.key("uplinks"));
        reader.note(&path, item.span().start);
        match read::text(item.get_ref()).and_then(|name| uplink_of(names, name)) {
            Ok(id) if uplinks.contains(&id) => {
                let wrong = Wrong::new("this uplink is there twice", "write it once, or another one");
                reader.wrong(&path, wrong);
            }
            Ok(id) => uplinks.push(id),
            Err(wrong) => reader.wrong(&path, wrong),
        }
    }
    if uplinks.is_empty() { first } else { uplinks }
}

fn read_match<'a>(reader: &mut Reader<'a>, section: &Section<'a>) -> Match {
    let Some(section) = reader.subsection(section, "match", "service.NAME.match") else {
        return Match::default();
    };
    let matches = Match {
        protocol: reader.read(&section, "proto", proto),
        src: reader.read(&section, "src", |v| prefix(read::text(v)?)),
        dst: reader.read(&section, "dst", |v| prefix(read::text(v)?)),
        src_port: reader.read(&section, "src_port", ports),
        dst_port: reader.read(&section, "dst_port", ports),
        vlan: reader.read(&section, "vlan", |v| {
            let vlan = read::whole(0, 4094, units::count)(v)?;
            u16::try_from(vlan).map_err(|_| Wrong::new("it is no VLAN", "write 0 to 4094"))
        }),
    };
    if let (Some(src), Some(dst)) = (matches.src, matches.dst)
        && src.address.is_ipv4() != dst.address.is_ipv4()
    {
        let what = "src and dst are of different IP versions: no packet has both";
        reader.wrong(
            &section.key("dst"),
            Wrong::new(what, "write both as IPv4 or both as IPv6"),
        );
    }
    let version = matches.src.or(matches.dst).map(|prefix| prefix.address.is_ipv4());
    match (matches.protocol, version) {
        (Some(protocol::ICMP), Some(false)) => {
            reader.wrong(
                &section.key("proto"),
                Wrong::new("icmp is IPv4's", "write \"icmpv6\""),
            );
        }
        (Some(protocol::ICMPV6), Some(true)) => {
            reader.wrong(
                &section.key("proto"),
                Wrong::new("icmpv6 is IPv6's", "write \"icmp\""),
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
            // Where proto itself is wrong, that is the problem.
            None if section.get("proto").is_some() => continue,
            None => Wrong::new(
                "which protocol's ports is not said",
                "write proto = \"tcp\", \"udp\" or \"sctp\"",
            ),
            Some(_) => Wrong::new(
                "this protocol has no ports",
                "remove it, or write proto = \"tcp\", \"udp\" or \"sctp\"",
            ),
        };
        reader.wrong(&section.key(key), wrong);
    }
    matches
}

const PROTOCOLS: &[(&str, u8)] = &[
    ("tcp", protocol::TCP),
    ("udp", protocol::UDP),
    ("sctp", protocol::SCTP),
    ("icmp", protocol::ICMP),
    ("icmpv6", protocol::ICMPV6),
];

fn proto(value: &DeValue<'_>) -> Result<u8, Wrong> {
    if read::integer(value).is_some() {
        let number = read::whole(0, 255, units::count)(value)?;
        return u8::try_from(number).map_err(|_| Wrong::new("it is no protocol", "write 0 to 255"));
    }
    let names = list(PROTOCOLS.iter().map(|(name, _)| *name));
    let text = value
        .as_str()
        .ok_or_else(|| read::not(value, "a protocol", &format!("one of {names}, or a number")))?;
    PROTOCOLS
        .iter()
        .find(|(name, _)| *name == text)
        .map(|(_, number)| *number)
        .ok_or_else(|| {
            let known: Vec<&str> = PROTOCOLS.iter().map(|(name, _)| *name).collect();
            Wrong::new(
                format!("there is no protocol {text:?} here"),
                format!("{}, or a number", write_one_of(text, known)),
            )
        })
}

fn prefix(text: &str) -> Result<Prefix, Wrong> {
    let wrong = || {
        Wrong::new(
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
        // Only digits: "+8" would be taken by the parser of integers.
        Some(bits) if !bits.is_empty() && bits.bytes().all(|byte| byte.is_ascii_digit()) => bits
            .parse::<u8>()
            .ok()
            .filter(|bits| *bits <= width)
            .ok_or_else(|| {
                Wrong::new(
                    format!("/{bits} is longer than the address"),
                    format!("write at most /{width}"),
                )
            })?,
        Some(_) => return Err(wrong()),
    };
    let first = first_address(address, bits);
    if first != address {
        let what = format!("{text:?} has bits beyond its length");
        return Err(Wrong::new(
            what,
            format!("write \"{first}/{bits}\", or \"{address}\" for the one address"),
        ));
    }
    Ok(Prefix { address, bits })
}

/// The address with all bits after the first `bits` set to 0.
pub(crate) fn first_address(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX
                .checked_shl(32u32.saturating_sub(u32::from(bits)))
                .unwrap_or(0);
            IpAddr::V4((u32::from(v4) & mask).into())
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX
                .checked_shl(128u32.saturating_sub(u32::from(bits)))
                .unwrap_or(0);
            IpAddr::V6((u128::from(v6) & mask).into())
        }
    }
}

fn ports(value: &DeValue<'_>) -> Result<RangeInclusive<u16>, Wrong> {
    const WRITE: &str = "write a port or a range, for example 443 or \"80-443\"";
    if read::integer(value).is_some() {
        let port = read::whole(0, 65_535, units::count)(value)?;
        let port = u16::try_from(port).map_err(|_| Wrong::new("it is no port", WRITE))?;
        return Ok(port..=port);
    }
    let text = value
        .as_str()
        .ok_or_else(|| Wrong::new(read::not(value, "a range of ports", "").what, WRITE))?;
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
        (Some(first), Some(last)) => Err(Wrong::new(
            format!("the range {text:?} is empty"),
            format!("write \"{last}-{first}\""),
        )),
        _ => Err(Wrong::new(format!("{text:?} is not a range of ports"), WRITE)),
    }
}
