//! The table of all keys. Each row has a key's name, parser, default, reload behaviour and documentation. The rows
//! generate the reader of each table, the refusal of unknown keys, the reference and the rules of a reload.
//!
//! To add a key, add a row here and a field to the type in `types.rs`.

use std::ops::RangeInclusive;

use actor_scheduling::migration;
use autoscaling::Autoscaler;
use model::{
    ActorSide, AffinityKey, AgentCheck, Association, External, FlowSetup, HealthCheck, Match, Mount, Nanos,
    NetFunction, PodOptions, Polling, PortKind, Probe, Ready, Selector, StandbyMode, TableFull, TaskNetwork,
    TaskOptions, TaskProtocol, Timeouts, UplinkId, Vip, VipMode,
};
use scheduling::{Metric, Scheduler, Settings};
use toml::de::DeTable;

use crate::actors::{
    ActorMember, Moves, POLICIES, QUEUES, ServiceKind, Sides, actor_name, actor_ports, actor_tables,
    kind as actor_kind, make_card,
};
use crate::key::{Key, KeyDefault, Reload};
use crate::limits::*;
use crate::policies::{autoscaler, known_autoscaler, known_scheduler, limit_in, scheduler, with_parameters};
use crate::read::{Reader, boolean, bytes, number, path, power_of_two, share, span, text, texts, word};
use crate::types::*;
use crate::units::ValueError;
use crate::values::*;
use crate::variants::{AtPlace, at_tables, finish_variants};

/// `[required]`, `[= "TOML"]`, `[or "words"]`, `[or "words" => value]` or `[keys]` as a [`KeyDefault`].
macro_rules! default_of {
    ([required]) => {
        KeyDefault::Required
    };
    ([= $toml:literal]) => {
        KeyDefault::Value($toml)
    };
    ([or $words:literal $(=> $value:expr)?]) => {
        KeyDefault::Words($words)
    };
    ([keys]) => {
        KeyDefault::Words("the defaults of its keys")
    };
    ([keys $words:literal]) => {
        KeyDefault::Words($words)
    };
}

/// The value of a key, or its default if it is missing or invalid.
macro_rules! value_of {
    ($reader:ident, $section:ident, $name:expr, $value:expr, [required]) => {{
        $reader.required($section, $name);
        // A configuration in which it is missing or invalid is refused.
        $reader.read($section, $name, $value).unwrap_or_default()
    }};
    ($reader:ident, $section:ident, $name:expr, $value:expr, [= $toml:literal]) => {
        match $reader.read($section, $name, $value) {
            Some(value) => value,
            None => $reader.default($toml, $value),
        }
    };
    ($reader:ident, $section:ident, $name:expr, $value:expr, [or $words:literal]) => {
        $reader.read($section, $name, $value)
    };
    ($reader:ident, $section:ident, $name:expr, $value:expr, [or $words:literal => $default:expr]) => {
        match $reader.read($section, $name, $value) {
            Some(value) => value,
            None => $default,
        }
    };
    ($reader:ident, $section:ident, $name:expr, $table:expr, [keys $($words:literal)?]) => {
        match $reader.read($section, $name, |at| at.table($table)) {
            Some(value) => value,
            None => $table($reader, $section.key($name), None, &[]),
        }
    };
}

macro_rules! name_of {
    ($field:ident) => {
        stringify!($field)
    };
    ($field:ident $name:literal) => {
        $name
    };
}

/// Declares tables. A table: its reader, the reader's result, its path, its description, its rows, and an expression
/// over the values, with checks between keys. A row: the field, `as` and the key's name if that differs, the parser,
/// the default, the reload behaviour, the permitted values, an example, and the meaning.
macro_rules! tables {
    ($(
        $read:ident($reader:ident, $section:ident) -> $type:ty = $table:literal: $about:literal {
            $(
                $field:ident $(as $name:literal)?: $value:expr, $default:tt, $reload:ident,
                $kind:literal, $example:literal, $meaning:literal;
            )*
        } => $made:block
    )*) => {
        /// All tables with their descriptions, in the order of the reference.
        pub const TABLES: &[(&str, &str)] = &[$(($table, $about),)*];

        /// All keys.
        pub const KEYS: &[Key] = &[$($(Key {
            table: $table,
            name: name_of!($field $($name)?),
            kind: $kind,
            example: $example,
            default: default_of!($default),
            reload: Reload::$reload,
            meaning: $meaning,
        },)*)*];

        $(
            /// Reads the table's keys and those in `own`; without a table, uses the defaults.
            pub(crate) fn $read(
                $reader: &mut Reader, path: String, table: Option<&DeTable<'_>>, own: &[&str],
            ) -> $type {
                let $section = &$reader.section(path, $table, own, table);
                $(
                    let $field = value_of!($reader, $section, name_of!($field $($name)?), $value, $default);
                    $reader.keep($section, name_of!($field $($name)?), Reload::$reload, &$field);
                )*
                $made
            }
        )*
    };
}

tables! {
    document(reader, section) -> Configuration = "":
        ""
    {
        switch: switch, [keys], Keys,
            "table", "", "See `[switch]`.";
        uplinks as "uplink": uplink_tables, [or "must be written"], Restart,
            "tables", "", "See `[[uplink]]`.";
        services as "service": service_tables, [or "must be written"], Keys,
            "tables", "", "See `[service.NAME]`.";
        places as "place": place_tables, [or "none" => Vec::new()], Restart,
            "tables", "", "See `[[place]]`.";
        engine: engine, [keys], Keys,
            "table", "", "See `[engine]`.";
        kubernetes: kubernetes, [keys], Keys,
            "table", "", "See `[kubernetes]`.";
        reports: reports, [keys], Keys,
            "table", "", "See `[reports]`.";
        api: api, [keys], Keys,
            "table", "", "See `[api]`.";
        event_log: event_log, [keys], Keys,
            "table", "", "See `[event_log]`.";
    } => {
        let example = "write [[uplink]], name = \"wan\", device = \"memif:wan.sock\"";
        reader.missing(section, "uplink", || ValueError::new("no uplink is configured", example));
        let example = "write [service.NAME] with an image";
        reader.missing(section, "service", || ValueError::new("no service is configured", example));
        Configuration {
            file: String::new(),
            switch,
            uplinks: uplinks.unwrap_or_default(),
            services: services.unwrap_or_default(),
            places,
            engine,
            kubernetes,
            reports,
            api,
            event_log,
            positions: Default::default(),
            values: Default::default(),
        }
    }

    switch(reader, section) -> Switch = "switch":
        "The packet switch."
    {
        driver: word(SwitchDriver::WORDS), [= "\"soft\""], Restart,
            "`\"soft\"`, `\"openflow\"`, `\"ebpf\"` or `\"hybrid\"`", "\"soft\"",
            "The driver: `soft` is inco's own switch; `openflow` is a bridge of Open vSwitch (`[switch.openflow]`, \
             [smartnic](../smartnic.md)); `ebpf` is programs in this machine's kernel, for ordinary containers behind an \
             address (`[switch.ebpf]`, [ebpf](../ebpf.md)); `hybrid` is `soft`, with programs in the kernel for flows that \
             are worth it (`[switch.hybrid]`, [hybrid](../hybrid.md)).";
        workers: workers, [or "one worker without a CPU of its own" => Vec::new()], Restart,
            "list of CPU numbers", "[2, 3]",
            "The CPUs of the workers, one worker per CPU. Isolate them from other work (`isolcpus`) for the best \
             latency.";
        poll: word(Polling::WORDS), [= "\"adaptive\""], Restart,
            "`\"adaptive\"` or `\"busy\"`", "\"busy\"",
            "How an idle worker waits: `adaptive` sleeps until a packet or a timer wakes it; `busy` polls and uses \
             its whole CPU.";
        // At 10,000 new flows a second and a mean lifetime of 60 s, 600,000 flows are live. The next power of two
        // leaves enough room for hashing.
        flows: number::<u64>(FLOWS_MIN, FLOWS_MAX), [= "1048576"], Restart,
            "number of flows", "\"4M\"",
            "Capacity of each worker's flow table for IPv4. `table_full` of the service applies to new flows beyond \
             it.";
        flows_ipv6: number(FLOWS_MIN, FLOWS_MAX),
            [or "a quarter of `flows`" => (flows / FLOWS_IPV6_PART).max(FLOWS_MIN)], Restart,
            "number of flows", "\"1M\"", "Capacity of each worker's flow table for IPv6, whose entries are larger.";
        unmatched: fallback,
            [or "`\"drop\"`; with the driver `ebpf`, `\"host\"`" => usual_fallback((reader.drivers)(driver))], Applies,
            "`\"drop\"`, `\"host\"`, an uplink's name or `\"opposite\"`", "\"wan\"",
            "What to do with IP packets that match no service: drop them, leave them to this machine's own network \
             (`\"host\"`, with the driver `ebpf` only), or send them to an uplink. `\"opposite\"` \
             needs two uplinks and sends a packet to the one on which it did not arrive.";
        other: fallback,
            [or "`\"drop\"`; with the driver `ebpf`, `\"host\"`" => usual_fallback((reader.drivers)(driver))], Applies,
            "`\"drop\"`, `\"host\"`, an uplink's name or `\"opposite\"`", "\"opposite\"",
            "What to do with packets other than IP (ARP, LLDP): drop them, leave them to this machine's own network \
             (`\"host\"`, with the driver `ebpf` only), or send them to an uplink. \
             `\"opposite\"` needs two uplinks and sends a packet to the one on which it did not arrive, so that ARP \
             works in both directions.";
        hugepages: word(Hugepages::WORDS), [= "\"auto\""], Restart,
            "`\"auto\"`, `\"on\"` or `\"off\"`", "\"on\"",
            "Whether DPDK's buffers use hugepages: `auto` if enough are free, `on` always, `off` never. Only for \
             uplinks that are DPDK devices.";
        dpdk_args: texts, [= "[]"], Restart,
            "list of text", "[\"--log-level=5\"]", "Arguments for DPDK's environment abstraction layer (EAL), added \
                                                    to inco's own.";
        timeouts: timeouts, [keys], Keys,
            "table", "{ udp = \"30s\" }", "See the table below.";
        openflow: openflow, [keys], Keys,
            "table", "{ rules = 10_000 }", "See the table below.";
        ebpf: ebpf, [keys], Keys,
            "table", "{ spare_ports = 4 }", "See the table below.";
        hybrid: hybrid, [keys], Keys,
            "table", "{ rules = 1000 }", "See the table below.";
    } => {
        // A driver's own keys are in the table named after it.
        for (other, _) in SwitchDriver::WORDS {
            // Kernel ports have their keys there, whichever driver connects them.
            let has_some = *other == "ebpf" && matches!(driver, SwitchDriver::Soft | SwitchDriver::Hybrid);
            if *other != driver.name() && !has_some && section.get(other).is_some() {
                let what = format!("these keys belong to the driver {other}, which is not the selected driver");
                let write = format!("write driver = \"{other}\" in [switch], or remove them");
                reader.report(&section.key(other), ValueError::new(what, write));
            }
        }
        let can = (reader.drivers)(driver);
        let switch = Switch {
            driver, can, workers, poll, flows, flows_ipv6, timeouts, unmatched, other, hugepages, dpdk_args, openflow, ebpf,
            hybrid,
        };
        if driver == SwitchDriver::Hybrid && switch.workers.len() != 1 {
            let what = "the driver hybrid has one worker, on a CPU of its own: packets of a flow keep their order between the \
                        two paths because one CPU has all of the slow one";
            let write = "write the number of one CPU, workers = [1]";
            reader.report(&section.key("workers"), ValueError::new(what, write));
        }
        reader.workers = switch.worker_count();
        reader.usual_port = can.usual_port();
        switch
    }

    timeouts(reader, section) -> Timeouts = "switch.timeouts":
        "Idle time after which a flow is removed from the flow table, at most 18h each."
    {
        // IPVS' default. Longer than the keep-alives of proxies and browsers (45 to 300 s).
        tcp: span(Nanos(1), Timeouts::LIMIT), [= "\"15m\""], Restart,
            "duration", "\"300s\"", "Established TCP flows.";
        // Time for three retransmissions of a SYN; short enough to forget a flood soon.
        tcp_handshake: span(Nanos(1), Timeouts::LIMIT), [= "\"10s\""], Restart,
            "duration", "\"5s\"", "TCP flows whose handshake is not complete.";
        // A retransmitted FIN (at most 1 s later by default) still finds its pin.
        tcp_linger: span(Nanos(1), Timeouts::LIMIT), [= "\"2s\""], Restart,
            "duration", "\"500ms\"", "TCP flows after FIN or RST, so that late packets still find their pin.";
        // The minimum of RFC 4787 (REQ-5) for a NAT.
        udp: span(Nanos(1), Timeouts::LIMIT), [= "\"2m\""], Restart,
            "duration", "\"30s\"", "UDP.";
        // As for TCP; SCTP heartbeats come every 30 s.
        sctp: span(Nanos(1), Timeouts::LIMIT), [= "\"15m\""], Restart,
            "duration", "\"300s\"", "SCTP.";
        // The minimum of RFC 5508 (REQ-2) for a NAT.
        icmp: span(Nanos(1), Timeouts::LIMIT), [= "\"60s\""], Restart,
            "duration", "\"10s\"", "ICMP queries (ping).";
        // GRE and ESP: as for UDP, since tunnels use its keep-alives.
        other: span(Nanos(1), Timeouts::LIMIT), [= "\"2m\""], Restart,
            "duration", "\"60s\"", "All other protocols.";
    } => {
        Timeouts { tcp, tcp_handshake, tcp_linger, udp, sctp, icmp, other }
    }

    openflow(reader, section) -> OpenFlow = "switch.openflow":
        "The bridge of Open vSwitch for the driver `openflow`. Its ports are memif links, so Open vSwitch must run \
         with DPDK. [smartnic](../smartnic.md) describes how it steers and its limits."
    {
        bridge: text(bridge), [= "\"br-inco\""], Restart,
            "name of at most 15 bytes", "\"br-nf\"",
            "Name of the bridge. inco creates it at start and removes it at the end.";
        datapath: word(Datapath::WORDS), [= "\"netdev\""], Restart,
            "`\"netdev\"` or `\"system\"`", "\"netdev\"",
            "The datapath: `netdev` is Open vSwitch's own; `system` is the kernel's, which has no memif ports.";
        // The path in Debian's Open vSwitch.
        database: text(ovs_endpoint), [= "\"unix:/run/openvswitch/db.sock\""], Restart,
            "`unix:/PATH`, `tcp:HOST:PORT` or `ssl:HOST:PORT`", "\"unix:/usr/local/var/run/openvswitch/db.sock\"",
            "Endpoint of Open vSwitch's database (OVSDB).";
        control: text(ovs_control), [or "`BRIDGE.mgmt` beside the database's socket"], Restart,
            "`unix:/PATH`, `tcp:ADDRESS:PORT` or `ssl:ADDRESS:PORT`", "\"tcp:127.0.0.1:6653\"",
            "Endpoint on which the bridge accepts OpenFlow connections. inco configures it if it is an IP address.";
        tls: path, [or "none"], Restart,
            "directory", "\"/etc/inco/ovs\"",
            "Directory with `ca.pem` (the authority of Open vSwitch's certificate), `cert.pem` and `key.pem` \
             (inco's own), for `ssl:` endpoints.";
        setup: word(FlowSetup::WORDS), [= "\"proactive\""], Restart,
            "`\"proactive\"` or `\"reactive\"`", "\"reactive\"",
            "How new flows are set up: `proactive` installs rules before the packets arrive; `reactive` sends the \
             first packets of a flow to inco, which can reorder or lose packets until the rule is installed.";
        rules: number(16, RULES_MAX), [= "100000"], Restart,
            "number, 16 to 4,000,000", "10_000",
            "Maximum number of exact rules, one per flow and direction. Further flows stay on the rule of their \
             bucket.";
        buckets: power_of_two(number(1, BUCKETS_MAX)), [= "64"], Restart,
            "power of two, 1 to 4096", "256",
            "Number of parts into which bits of addresses and ports divide the new flows of a service. The \
             scheduler picks an instance for each part. More buckets spread the load more finely; each one is a \
             rule in the switch.";
        spare_ports: number(0, 1000), [= "2"], Restart,
            "number, 0 to 1000", "4",
            "Ports for draining instances, in addition to those for `max` and `standby` instances. inco creates all \
             ports of a service before there is traffic, because Open vSwitch stops polling while it creates one. A \
             new instance needs a free port.";
    } => {
        let is_tls = |place: &String| place.starts_with("ssl:");
        let needs_keys = is_tls(&database) || control.as_ref().is_some_and(is_tls);
        if needs_keys && tls.is_none() {
            let write = "write tls = \"DIR\", a directory with ca.pem, cert.pem and key.pem";
            reader.report(&section.key("tls"), ValueError::new("ssl: needs certificates", write));
        }
        if !needs_keys && tls.is_some() {
            let write = "write database = \"ssl:HOST:PORT\", or remove it";
            let wrong = ValueError::new("certificates are used by ssl: endpoints only", write);
            reader.report(&section.key("tls"), wrong);
        }
        let openflow = OpenFlow { bridge, datapath, database, control, tls, setup, rules, buckets, spare_ports };
        if openflow.control().is_none() {
            let what = "the bridge's OpenFlow endpoint cannot be derived from a database on another machine";
            reader.report(&section.key("database"), ValueError::new(what, "write control = \"tcp:ADDRESS:6653\""));
        }
        if datapath == Datapath::System {
            let wrong = ValueError::new(
                "the kernel's datapath has no memif ports, and the monitor port is a memif port",
                "write datapath = \"netdev\"",
            );
            reader.report(&section.key("datapath"), wrong);
        }
        openflow
    }

    ebpf(reader, section) -> Ebpf = "switch.ebpf":
        "The programs in the kernel, for the driver `ebpf`. [ebpf](../ebpf.md) describes what they do and their limits. \
         The first two keys are also for kernel ports with the driver `soft`, and the third one for all of its services."
    {
        instance_addresses: prefixes, [or "none: instances use their service's address"], Restart,
            "prefix, or a list of one of IPv4 and one of IPv6", "\"10.0.0.128/25\"",
            "Addresses of instances' own: one for each place of an instance, from the prefix's second address on. An \
             instance opens connections from it, and with `mode = \"dnat\"` serves there. inco answers for them on the \
             uplinks of their service.";
        spare_ports: number(0, 1000), [= "2"], Restart,
            "number, 0 to 1000", "4",
            "Ports for draining instances, in addition to those for `max` and `standby` instances. inco creates all \
             ports of a service at its start. A new instance needs a free port.";
        half_open: number(1, 1 << 30),
            [or "a quarter of `flows`, of each worker; with the driver `ebpf`, of the smaller of `flows` and `flows_ipv6`"], Restart,
            "number", "20000",
            "TCP connections of a service that may be half open. Above that, a SYN is sent on by its hash and makes no \
             entry; the client's acknowledgement does. So a flood of SYN packets fills no table. With the driver `soft` \
             each worker has an equal part.";
    } => {
        let instance_addresses = instance_addresses.unwrap_or_default();
        Ebpf { instance_addresses, spare_ports, half_open }
    }

    hybrid(reader, section) -> Hybrid = "switch.hybrid":
        "Which flows the driver `hybrid` gives to programs in the kernel: those of ordinary containers (`port = \"kernel\"`) \
         behind an uplink `kernel:INTERFACE` that are worth it. [hybrid](../hybrid.md) describes how, and its limits."
    {
        rules: number(1, HYBRID_RULES_MAX), [= "4000"], Restart,
            "number, 1 to 4,000", "1000",
            "Flows that have a rule at a time, at most. Beyond it, a flow takes the place of one that saves half as much.";
        promotions_per_second: number(1, 1_000_000), [= "20000"], Restart,
            "number", "1000",
            "Flows that get a rule in a second, at most; a tenth of them at once.";
        window: span(Nanos(1_000_000), Nanos(60_000_000_000)), [= "\"1s\""], Restart,
            "duration, 1ms to 60s", "\"100ms\"",
            "In which span a flow has to save the CPU time of some rules to get one, and how often each rule is looked at. \
             One that saved less than a quarter of its cost in that span is removed.";
        costs: path, [or "figures of one machine, as docs/paths.md has them"], Restart,
            "file", "\"/etc/inco/paths.toml\"",
            "What a packet costs on both paths: the file that `inco bench paths` has written on this machine.";
    } => {
        Hybrid { rules, promotions_per_second, window, costs }
    }

    uplink(reader, section) -> Uplink = "uplink[]":
        "A port towards the network. 1 to 8 uplinks, each with its own heading `[[uplink]]`."
    {
        name: text(name), [required], Restart,
            "name", "\"wan\"", "Its name in services, counters and commands.";
        device: text(device), [required], Restart,
            "device", "\"memif:wan.sock\"",
            "The device. A DPDK device: a PCI address or `net_...`. `memif:SOCKET`: a memif link; a relative path \
             is in inco's run directory. `veth:INTERFACE`: a network interface of the kernel. \
             `kernel:INTERFACE`: the same, with the drivers `ebpf` and `soft`: it stays with the kernel. `pcap:FILE`: a \
             capture, received once and as fast as possible, when each service of the uplink has its `min` active \
             instances. `pcap:FILE,tx=FILE` writes transmitted packets to a second capture; without it they are \
             discarded. `pcap:FILE,loop` repeats the capture. A `veth:` uplink receives no IPv4 fragments: the \
             kernel reassembles them first, and packets longer than `max_frame` are dropped. The slower \
             `net_pcap0,iface=INTERFACE` receives fragments unchanged.";
        // More queues help only with as many workers.
        queues: number(1, QUEUES_MAX), [= "1"], Restart,
            "number, 1 to 64", "2",
            "Queues in each direction, each served by one worker. With as many queues as workers, a card that \
             supports it delivers each packet to the worker that owns its flow. Otherwise some packets are handed \
             off between workers.";
        // 1,500 bytes of payload, 14 of Ethernet header, two VLAN tags of 4.
        max_frame: bytes(MAX_FRAME_MIN, MAX_FRAME_MAX), [= "1522"], Restart,
            "bytes, 60 to 16384", "9022",
            "Maximum frame length, from the destination address to the end of the payload. Longer frames are \
             dropped as `too_large`.";
        tunnel: |at| at.table(tunnel_table), [or "none"], Restart,
            "table", "{ address = \"10.9.0.1\", network = 7 }",
            "With the drivers `soft` and `ebpf`, and `kernel:INTERFACE`: the near end of tunnels to other machines, at one uplink. See the \
             table below and [many machines](../many-machines.md).";
    } => {
        Uplink { name, device, queues, max_frame, tunnel }
    }

    tunnel_table(reader, section) -> UplinkTunnel = "uplink[].tunnel":
        "The near end of tunnels (VXLAN) at an uplink. Services with `port = \"tunnel\"` send by it; what machines of `from` \
         send is taken out of the tunnel, and steered as if it had come without one. inco does not answer for addresses of \
         services at an uplink with `from`: who sends into the tunnel does."
    {
        address: text(tunnel_end), [required], Restart,
            "IPv4 address", "\"10.9.0.1\"",
            "Its address. inco answers ARP for it; no network stack of this machine has it.";
        network: number(0, (1 << 24) - 1), [required], Restart,
            "number, below 16777216", "7", "The network's number (VNI), the same at both ends.";
        from: tunnel_ends, [= "[]"], Restart,
            "list of at most 64 IPv4 addresses", "[\"10.9.0.1\", \"10.9.0.2\"]",
            "The far ends whose packets are taken out. Those of others are dropped as `tunnel`.";
        edges_key: path, [or "none"], Restart,
            "path", "\"/etc/inco/edges.key\"",
            "Where several edges give flows to the same machines: the file of a key that all of them have, 48 hexadecimal digits \
             (`openssl rand -hex 24`), which only its owner may read. A connection that another edge has given to a machine is \
             then found. Needs `scheduler = \"machines\"` and the driver `soft`.";
    } => {
        let address = address.unwrap_or(std::net::Ipv4Addr::UNSPECIFIED);
        UplinkTunnel { address, network, from, edges_key }
    }

    service(reader, section) -> Service = "service.NAME":
        "A network function, or actors. 1 to 64 services, each with its name in its heading, for example \
         `[service.firewall]`. One of actors counts as two."
    {
        kind: word(ServiceKind::WORDS), [= "\"containers\""], Restart,
            "`\"containers\"` or `\"actors\"`", "\"actors\"",
            "What its instances are: containers that packets are given to, or the two sides of a service of actors \
             (`actors` and `sides`, [actors](../actors.md)). With `actors`, the card's side has the service's name and its \
             packets, and the host's side is shown as `NAME-host`; each is one instance, at the place of the name `card` or \
             `host` where there is one; and `image` is `inco/actors` unless it is written.";
        actors: actor_tables, [= "[]"], Restart,
            "list of actors", "[{ name = \"counter\", kind = \"counter\" }]",
            "With `kind = \"actors\"`: its actors. See the table below.";
        sides: sides_table, [keys], Keys,
            "table", "{ policy = \"hybrid\", card_cores = 2 }",
            "With `kind = \"actors\"`: how card and host run them. See the table below.";
        matches as "match": matches, [keys "every IP packet of its uplinks"], Keys,
            "table", "{ proto = \"tcp\", dst = \"10.128.0.0/16\", dst_port = \"80-443\" }",
            "The packets of the service. See the table below.";
        vip: |at| at.table(vip), [or "none"], Restart,
            "table", "{ address = \"10.0.0.100\", ports = \"80,443\" }",
            "The address of the service, which clients connect to, with the drivers `ebpf` and `soft`. It takes the place of \
             `match`. \
             See the table below.";
        external: |at| at.table(external_table), [or "none"], Restart,
            "table", "{ addresses = [\"203.0.113.0/30\"] }",
            "The external addresses of a service that translates addresses and ports, with the driver `soft`. inco gives \
             each instance a block of their ports, and the packets to it. See the table below.";
        egress: boolean, [= "true"], Restart,
            "true or false", "false",
            "Whether instances may open connections. With `port = \"kernel\"` only.";
        uplinks: uplinks, [or "the first uplink" => vec![UplinkId(0)]], Restart,
            "list of one or two uplink names", "[\"wan\", \"lan\"]",
            "The uplinks on which its packets arrive. Packets that an instance sends on data port k leave by uplink \
             k of this list.";
        next: text(|name| Ok(name.to_owned())), [or "none"], Applies,
            "name of a service", "\"ids\"",
            "The service that gets what its instances return, before it leaves by an uplink; what comes back passes both in \
             the opposite order. That service has no `match` of its own. Up to seven services can be in a row, all with the \
             same `uplinks`. With the driver `soft`, and ports that give packets back: `memif` or `frames`. A reload \
             that changes it moves no pinned flow. See [chains](../tasks/chain.md).";
        image: image, [or "none; required unless `port = \"null\"`"], Instances,
            "image name", "\"inco/forward\"",
            "The container's image: one that `inco image list` shows, one of a registry, for example `nginx:1.27` or \
             `localhost:5000/lab/ids@sha256:...`, or, with the engine `docker`, one of Docker.";
        port: word(PortKind::WORDS),
            [or "`\"memif\"`; with the driver `ebpf`, `\"kernel\"`" => reader.usual_port], Restart,
            "`\"memif\"`, `\"device\"`, `\"kernel\"`, `\"frames\"`, `\"routed\"` or `\"null\"`", "\"null\"",
            "The kind of data port: `memif` is rings of shared memory; `device` is a function of a card \
             (`devices`), with the driver `openflow` only; `kernel` is an ordinary network interface in the container, \
             with the drivers `ebpf` and `soft`, and needs `vip` with `soft`; `frames` is an interface without an address \
             for each uplink, `eth0` and `eth1`, from which a function takes whole frames by packet sockets, with `soft`: it \
             has `CAP_NET_RAW` for them. See [functions on interfaces](../kernel-ports.md#functions-on-interfaces); \
             `null` is a sink without a container, for benches; `routed` is an address in the network that this machine's routes \
             lead to, with the driver `ebpf` only: of instances in a [swarm](../tasks/swarm.md) or in [Kubernetes](../tasks/kubernetes.md). A service with `from` in \
             `instances` has it by itself; `tunnel`, with `soft` and `ebpf`, leads to the machines of `from` through VXLAN: see \
             [many machines](../many-machines.md).";
        command: texts, [= "[]"], Instances,
            "list of text", "[\"/inco-nf\", \"forward\"]", "Program and arguments; replaces the image's own.";
        args: texts, [= "[]"], Instances,
            "list of text", "[\"--cost-ns\", \"100\"]", "Arguments, appended to the command.";
        env: env, [= "{}"], Instances,
            "table, or list of `\"NAME=value\"`", "{ LEVEL = \"info\" }", "Environment variables of the program.";
        mounts: mounts, [= "[]"], Instances,
            "list of mounts", "[\"/etc/rules:/etc/rules:ro\"]", "Files and directories of this machine in the \
                                                                 container. See the table below.";
        devices: devices, [= "[]"], Restart,
            "list of devices", "[{ representor = \"pf0vf0\", pci = \"0000:03:00.2\" }]",
            "For `port = \"device\"`: the functions of a card for its instances. See the table below.";
        // Enough for a DPDK program with 128 MiB of buffers; small enough to contain a leak.
        memory_bytes as "memory": bytes(MEMORY_MIN_BYTES, 1 << 50), [= "\"512MiB\""], Instances,
            "size, at least 6MiB", "\"256MiB\"",
            "Memory limit of one container. The kernel kills the program beyond it. The rings belong to the switch \
             and are not counted.";
        // A DPDK program has about five; the limit stops a fork bomb.
        processes: number(1, 65_536), [= "64"], Instances,
            "number, 1 to 65536", "16", "Maximum number of processes and threads in one container.";
        cpuset: text(cpuset), [or "every CPU"], Instances,
            "list of CPUs such as `\"0-3,7\"`", "\"4-7\"", "The CPUs on which its containers may run.";
        hugepages: boolean, [= "false"], Instances,
            "true or false", "true", "Whether a container can use the machine's hugepages.";
        user_namespace: boolean, [= "true"], Instances,
            "true or false", "false",
            "Whether root in the container is an unprivileged user on the host. Write `false` only for programs \
             that need rights which a user namespace cannot give, such as some drivers of cards. Engine `oci` only; \
             with Docker, Docker's own settings apply.";
        // Docker's, without the one to send any packet: an instance speaks from its own address only.
        capabilities: capabilities, [or "none; with `port = \"kernel\"` those of Docker without `NET_RAW`"], Instances,
            "list of names", "[\"NET_BIND_SERVICE\"]",
            "The capabilities of the program, in the container's user namespace: some of `AUDIT_WRITE`, `CHOWN`, \
             `DAC_OVERRIDE`, `FOWNER`, `FSETID`, `KILL`, `MKNOD`, `NET_BIND_SERVICE`, `SETFCAP`, `SETGID`, \
             `SETPCAP`, `SETUID`, `SYS_CHROOT`. `[]` is none. With `port = \"frames\"` it has `NET_RAW` \
             beside them. A program that its image does not run as root cannot use them, as with Docker.";
        ready: ready,
            [or "`\"connected\"`; with `port = \"kernel\"` and `vip`, or `port = \"frames\"`, `\"listens\"`" =>
                usual_ready(port, vip.is_some())], Instances,
            "`\"connected\"`, `\"consumes\"`, `\"listens\"` or a table", "{ exec = [\"/bin/check\"] }",
            "When an instance is ready: `connected` when its data ports are up; `consumes` when it has also taken a \
             probe packet; `listens` when its program also serves each port of `vip` (of a range, any port): a socket \
             of TCP listens there, or one of UDP has the port, at one of the service's addresses or at all; with \
             `port = \"frames\"`, when it takes frames from each interface; a table when a command in the container succeeds.";
        health: |at| at.table(health_table), [or "none"], Applies,
            "table", "{ http = \"/\" }",
            "How instances are checked while they run. See the table below.";
        agent: |at| at.table(agent_table), [or "none"], Applies,
            "table", "{ port = 8080 }",
            "Agents in the instances that say how much each takes. See the table below.";
        // A local image starts within 0.2 s. DPDK's EAL takes a few seconds with many hugepages.
        ready_deadline: span(Nanos(1), Nanos::MAX), [= "\"10s\""], Applies,
            "duration", "\"30s\"",
            "Time from the start of the program until it must be ready; an instance that is not ready by then has \
             failed.";
        // Shorter pauses are the scheduling of a busy machine.
        stall_after: span(Nanos::from_millis(10), Nanos::from_secs(60)), [= "\"100ms\""], Applies,
            "duration, 10 ms to 60 s", "\"500ms\"",
            "Time after which an instance that takes no packet although some wait for it has failed. With a CPU \
             limit, three of its periods if that is longer; with `driver = \"openflow\"`, at least 1 s.";
        instances: instances,
            [or "the defaults of its keys" => instances_table(reader, section.key("instances"), None, &[])], Applies,
            "table, or a number", "{ min = 3, max = 8, standby = 1, standby_mode = \"warm\" }",
            "The number of instances. See the table below.";
        placement: placement, [= "\"auto\""], Applies,
            "`\"auto\"`, `\"split\"` or the name of a place", "\"split\"",
            "Where its instances run, of the places of the file (`[[place]]`, [places](../places.md)). `auto`: at the \
             first that has room, in their order; those at the last leave first. `split`: at the one with the most room \
             in proportion to its limits. A name: there only. Running instances stay where they are.";
        at: at_tables, [or "none" => Vec::new()], Ports,
            "table of places", "{ host = { image = \"inco/forward\", args = [\"--stamp\"] } }",
            "What its instances at a place have in the place of its own image, program or kind of port, for each such place. See \
             the table below, and [two kinds of instances](../places.md#two-kinds-of-instances). Another kind of port at a \
             place needs a restart.";
        subnets: subnets, [or "none"], Restart,
            "table of places, each with a prefix", "{ card = \"10.128.0.0/24\", host = \"10.128.1.0/24\" }",
            "Binds destination subnets to places: in place of this service there is one for each place, with the name \
             `NAME-PLACE`, that `placement` and, as `dst` of its `match`, the prefix. All other keys are the same. Then there is \
             no `placement`, `dst`, `vip` and `external`. Chains name such services by their own names.";
        cpus: cpus, [or "no limit" => Cpus::NoLimit], Instances,
            "number of CPUs, at least 0.001, or `\"exclusive\"`", "0.5",
            "CPU limit of one container; 0.5 is half a CPU. `exclusive`: a CPU of its place for each instance, which no \
             other instance uses. See [places](../places.md#a-core-for-each-instance).";
        capacity: capacity, [= "\"learn\""], Applies,
            "packet rate, or `\"learn\"`", "\"10Mpps\"",
            "Packet rate that one instance can process, for schedulers and autoscalers. `learn` measures it in \
             operation.";
        // The last flow may exceed the share. If it brings a tenth of the capacity, a tenth is left for bursts.
        fit: share, [= "0.8"], Rules,
            "share, above 0 and at most 1", "0.7",
            "Share of the capacity up to which schedulers fill an instance. An instance takes a new flow while its \
             load is below this share, so the last flow can exceed it. Write a smaller share if single flows are \
             large.";
        // The paper's recommendation, since it leaves whole instances free to be removed.
        scheduler: |at| scheduler(at, scheduler_table), [= "\"best-fit\""], Applies,
            "table, or a policy's name", "{ policy = \"worst-fit\", metric = \"bytes\", limit = \"1Gbps\" }",
            "Picks the instance for a new flow. See the table below.";
        // Ours.
        autoscaler: |at| autoscaler(at, autoscaler_table), [= "\"ladder\""], Applies,
            "table, or a policy's name", "{ policy = \"ladder\", target = 0.6 }",
            "Decides the number of instances. See the table below.";
        affinity: word(Affinity::WORDS), [= "\"strict\""], Counts,
            "`\"strict\"` or `\"relaxed\"`", "\"relaxed\"",
            "Whether flows may move away from a working instance. `\"strict\"`: never; a drain waits until its \
             flows have ended. `\"relaxed\"`: a drain moves flows to other instances at once; for functions that \
             keep no state per flow, or share it. To keep the order, inco holds the packets of a moving flow until \
             its earlier packets have returned, for at most 1 ms and 256 packets. A move that exceeds this limit \
             counts as early. `relaxed` counts returned packets per flow, like `flow_counters`. If the function \
             changes addresses or ports, every move is early.";
        affinity_key: word(AffinityKey::WORDS), [= "\"flow\""], Restart,
            "`\"flow\"`, `\"addresses\"`, `\"source\"`, `\"inner\"` or `\"spi\"`", "\"source\"",
            "Which flows share an instance: with `source` those of one client address, with `addresses` those between \
             one client and one service address, with the others none. New flows go to another instance once theirs \
             drains or has failed. With `inner` the flow of a tunnel's packet (GTP-U, VXLAN, IP in IP) is that of the \
             packet inside, with `spi` that of an ESP packet is its security association: see \
             [tunnels](../tunnels.md).";
        associations: associations, [= "[]"], Applies,
            "list of associations", "[{ spi = 0x1001, to = \"192.0.2.2\", src = [\"10.1.0.0/16\"], dst = [\"10.2.0.0/16\"] }]",
            "With `affinity_key = \"spi\"`: security associations that have one instance for as long as they are listed, and \
             the packets that enter them. See the table below.";
        symmetric: boolean, [= "true"], Restart,
            "true or false", "false",
            "Whether both directions of a flow are pinned to one instance. With `false`, each direction is pinned \
             separately.";
        table_full: word(TableFull::WORDS), [= "\"hash\""], Applies,
            "`\"hash\"` or `\"drop\"`", "\"drop\"",
            "What to do with a new flow when the flow table is full: `hash` sends its packets by hash without a \
             pin, `drop` drops them. Both are counted.";
        // Most flows end within this time, and one forgotten connection does not keep an instance alive.
        drain_deadline: span(Nanos(1), Nanos::MAX), [= "\"60s\""], Applies,
            "duration", "\"5m\"",
            "Time after which the remaining flows of a draining instance are unpinned and rescheduled.";
        // A drained function only needs to close files.
        stop_grace: span(Nanos(1), Nanos::MAX), [= "\"2s\""], Applies,
            "duration", "\"500ms\"",
            "Time between SIGTERM and SIGKILL when a container stops.";
        ring: ring, [keys], Keys,
            "table", "{ slots = 2048 }", "See the table below.";
        // A function with one thread serves one queue pair.
        queues: number(1, reader.queues_max()), [= "1"], Instances,
            "number, 1 to the number of workers", "1",
            "Queue pairs of each data port. With fewer queue pairs than workers, home workers serve them.";
        flow_counters: boolean, [= "false"], Counts,
            "true or false", "true",
            "Whether returned packets are counted per flow. This costs one more lookup per packet.";
        move_state: boolean, [= "false"], Applies,
            "true or false", "true",
            "Whether a drain moves flows with the state of their function, for at most 50 ms and 4,096 packets. It needs \
             `affinity = \"relaxed\"`. See [moves with state](../functions.md#moves-with-state).";
        replies: word(Replies::WORDS), [= "\"direct\""], Applies,
            "`\"direct\"` or `\"edge\"`", "\"edge\"",
            "With tunnels and the driver `soft`: how replies return. With `\"direct\"` they leave by the uplink of the machine. With \
             `\"edge\"` the machine sends them through the tunnel to the edge that sent the flow's last packet, and the edge \
             sends them on. Write it at the edge and at its machines. See [many machines](../many-machines.md#replies-through-the-edge).";
        swarm: |at| at.table(swarm_table), [or "the defaults of its keys"], Instances,
            "table", "{ constraints = [\"node.labels.edge == true\"] }",
            "With the engine `swarm`: what the swarm is asked about its instances. See the table below.";
        pods as "kubernetes": |at| at.table(pod_table), [or "the defaults of its keys"], Instances,
            "table", "{ node_selector = { disk = \"fast\" } }",
            "With the engine `kubernetes`: what Kubernetes is asked about its Pods. See the table below.";
        signals: boolean, [= "false"], Restart,
            "true or false", "true",
            "Whether the host's manager (`inco-nf manager`) decides which instances take new flows, by signals through \
             their ports. It needs `autoscaler = \"fixed\"`. See [signals](../signals.md).";
    } => {
        let port = if instances.are_others() && section.get("port").is_none() { PortKind::Routed } else { port };
        let is_routed = port == PortKind::Routed;
        let is_remote = is_routed || port == PortKind::Tunnel;
        let ready = if is_remote && section.get("ready").is_none() { Ready::Connected } else { ready };
        let has_container = port.has_container() || is_routed && !instances.are_others();
        if has_container && kind == ServiceKind::Containers {
            reader.required(section, "image");
        }
        let (scheduler, limit) = scheduler;
        let (exclusive, cpus) = (cpus == Cpus::Exclusive, cpus.limit());
        let first_port = vip.as_ref().and_then(|vip: &Vip| Some(*vip.instance_ports().first()?.start()));
        let external = external.flatten();
        // Servers at addresses in the network have a port each.
        let first_port = first_port.filter(|_| !is_routed).unwrap_or_default();
        let health = health.flatten().map(|of| of.at_port(first_port));
        let name = section.path.trim_start_matches("service.").to_owned();
        let subnets = subnets.unwrap_or_default();
        if !subnets.is_empty() {
            let has = |key: &&str| section.get(key).is_some();
            let mut twice: Vec<String> =
                ["placement", "vip", "external"].into_iter().filter(has).map(|key| section.key(key)).collect();
            twice.extend(matches.dst.is_some().then(|| section.key("match.dst")));
            for key in twice {
                let what = "`subnets` says that for each place";
                reader.report(&key, ValueError::new(what, "remove it, or `subnets`"));
            }
        }
        let mut service = Service {
            name, matches, vip, external, egress, uplinks, next, image, port, devices, command, args, env, mounts, memory_bytes, processes, cpuset,
            hugepages, user_namespace, capabilities, ready, health, agent, ready_deadline, stall_after, instances, placement, at, subnets, cpus, exclusive, capacity, fit, scheduler, limit, autoscaler,
            affinity, affinity_key, associations, symmetric, table_full, drain_deadline, stop_grace, ring, queues, flow_counters, move_state,
            replies, signals, swarm, pods, part: None,
        };
        finish_variants(reader, section, &mut service);
        match kind {
            ServiceKind::Actors => make_card(reader, section, &mut service, actors, sides),
            ServiceKind::Containers => {
                let has = |key: &&str| section.get(key).is_some() && (*key != "actors" || !actors.is_empty());
                for key in ["actors", "sides"].into_iter().filter(has) {
                    let what = "this key is for a service of actors";
                    reader.report(&section.key(key), ValueError::new(what, "write kind = \"actors\", or remove it"));
                }
            }
        }
        service
    }

    at_place(reader, section) -> AtPlace = "service.NAME.at.PLACE":
        "What the instances of a service at that place have in the place of its own keys. All other keys are the same for all of \
         its instances."
    {
        port: word(PortKind::WORDS), [or "that of the service"], Restart,
            "`\"memif\"`, `\"kernel\"` or `\"frames\"`", "\"frames\"", "The kind of their data ports.";
        image: image, [or "that of the service"], Applies, "image name", "\"nginx\"", "Their image.";
        command: texts, [or "the image's own, with `image`; else that of the service"], Applies,
            "list of text", "[\"/inco-nf\", \"forward\"]", "Program and arguments.";
        args: texts, [or "none, with `image`; else those of the service"], Applies,
            "list of text", "[\"--stamp\"]", "Arguments, appended to the command.";
        ready: ready, [or "what is usual for the kind of port, with `port`; else that of the service"], Applies,
            "as `ready` of the service", "\"connected\"", "When such an instance is ready.";
    } => {
        if [port.is_none(), image.is_none(), command.is_none(), args.is_none(), ready.is_none()] == [true; 5] {
            let write = "write port, image, command, args or ready, or remove it";
            reader.report(&section.path, ValueError::new("it says nothing of its own", write));
        }
        AtPlace { port, image, command, args, ready, ..AtPlace::default() }
    }

    actor(reader, section) -> ActorMember = "service.NAME.actors[]":
        "An actor of a service, at most 256: a message handler with private state in objects, which runs on one of the two \
         sides and can move to the other one. The first one gets the packets of the service, unless `entry` or `ports` says \
         otherwise. The payload of a UDP packet is a message, and what the actor answers leaves as a packet."
    {
        name: text(actor_name), [required], Restart,
            "name", "\"counter\"", "Its name in `inco actors`, events and metrics.";
        kind: text(actor_kind), [required], Restart,
            "kind", "\"counter\"",
            "What it is made from. The program of `inco/actors` has the kinds of [actors](../actors.md#kinds); one of your own \
             has its own.";
        options: env, [= "{}"], Restart,
            "table", "{ next = \"@ranker\" }",
            "Options of its kind. `@NAME` is another actor of the service; several values are written with commas.";
        side: word(ActorSide::WORDS), [= "\"card\""], Restart,
            "`\"card\"` or `\"host\"`", "\"host\"", "Where it begins.";
        group: text(actor_name), [or "none: it moves alone"], Restart,
            "name", "\"ranking\"", "Actors with the same group move together.";
        ports: actor_ports, [or "none" => Vec::new()], Restart,
            "ports and ranges with commas, or one port", "\"7001\"",
            "Packets to these ports of the service are its messages. At most 64.";
        mailbox: number(1, 1 << 20), [= "1024"], Restart,
            "number of messages", "4096", "Messages that wait for it, at most. Further ones are refused and counted.";
        held: number(1, 1 << 20), [= "65536"], Restart,
            "number of messages", "\"100k\"", "Messages that are held for it while it moves, at most.";
        // The smallest useful one; the state of most functions.
        region_bytes as "region": bytes(4 << 10, u64::from(u32::MAX - 15)), [= "\"1MiB\""], Restart,
            "size, at least 4KiB", "\"64MiB\"", "Memory for its objects, on each side. What does not fit is an error of this actor.";
        objects: number(1, 1 << 24), [= "4096"], Restart,
            "number", "\"100k\"", "Objects that it has at a time, at most.";
    } => {
        ActorMember { name, kind, options, side, group, ports, mailbox, held, region_bytes, objects }
    }

    sides_table(reader, section) -> Sides = "service.NAME.sides":
        "How card and host run the actors of a service, and when actors move."
    {
        policy: word(POLICIES), [= "\"hybrid\""], Restart,
            "`\"fcfs\"`, `\"drr\"`, `\"hybrid\"` or `\"preemptive\"`", "\"fcfs\"",
            "Which core runs which actor next: first come, first served; deficit round-robin; iPipe's division of both; or \
             round-robin that interrupts. See [actors](../actors.md#the-runtime).";
        card_cores: number(1, 64), [= "1"], Restart,
            "number, 1 to 64", "2", "Threads of the card's side that run actors.";
        host_cores: number(1, 64), [= "1"], Restart,
            "number, 1 to 64", "4", "Threads of the host's side that run actors.";
        card_queues: word(QUEUES), [= "\"per-core\""], Restart,
            "`\"per-core\"` or `\"shared\"`", "\"shared\"",
            "What the threads of the card's side serve first come, first served: messages of a client go to one thread, and \
             a thread without any steals from the others; or all threads serve one line.";
        host_queues: word(QUEUES), [= "\"per-core\""], Restart,
            "`\"per-core\"` or `\"shared\"`", "\"shared\"", "The same of the host's side.";
        quantum: span(Nanos(1), Nanos::from_secs(1)), [= "\"50us\""], Restart,
            "duration, at most 1 s", "\"20us\"", "What an actor may run in each round of deficit round-robin.";
        tail_threshold: span(Nanos(1), Nanos::from_secs(60)), [= "\"1ms\""], Restart,
            "duration, at most 60 s", "\"200us\"",
            "The tail of response times (mean + 3 standard deviations) above which `hybrid` serves an actor in turns.";
        hysteresis: share, [= "0.1"], Restart,
            "share, above 0 and at most 1", "0.2", "Margin below the threshold at which the actor returns to the line.";
        rest: span(Nanos::ZERO, Nanos::from_millis(100)), [= "\"100us\""], Restart,
            "duration, at most 100 ms", "\"0s\"", "How long a thread without a message sleeps; `0s`: it polls.";
        // Long enough for a merge of tables on a busy machine.
        budget: span(Nanos::from_millis(10), Nanos::from_secs(600)), [= "\"5s\""], Applies,
            "duration, 10 ms to 10m", "\"1s\"",
            "How long one message may run. inco ends the side of an actor that exceeds it, stops this actor, and starts the \
             others again with their objects.";
        entry: text(actor_name), [or "the first actor"], Restart,
            "name of an actor", "\"filter\"", "The actor that gets the packets that belong to no other one.";
        moves: word(Moves::WORDS), [= "\"auto\""], Applies,
            "`\"auto\"` or `\"manual\"`", "\"manual\"",
            "Who decides when an actor moves: inco, by the figures below, or an operator (`inco actors move`).";
        overload: span(Nanos::from_micros(1), Nanos::from_secs(60)), [= "\"1ms\""], Applies,
            "duration, 1 us to 60 s", "\"300us\"",
            "The mean response time of the card's messages above which the actor with the highest load goes to the host.";
        busy: share, [= "0.9"], Applies,
            "share, above 0 and at most 1", "0.8",
            "The share of the time of the card's threads above which it goes, too.";
        // Half of the default of `mailbox`: its actor goes before messages are refused.
        backlog: number(1, 1 << 20), [= "512"], Applies,
            "number of messages", "2000",
            "The number of messages that wait for an actor of the card above which this actor goes to the host, whatever its load \
             (iPipe's Q_thresh). An actor whose `mailbox` is not greater does not go by it.";
        spare: share, [= "0.5"], Applies,
            "share, above 0 and at most 1", "0.3",
            "The actor with the lowest load on the host comes back if the card's threads would be busy for at most this share.";
        margin: share, [= "0.2"], Applies,
            "share, above 0 and at most 1", "0.5", "Margin below `overload` and `backlog` at which actors come back.";
        patience: span(Nanos::from_millis(10), Nanos::from_secs(600)), [= "\"200ms\""], Applies,
            "duration, 10 ms to 10m", "\"1s\"", "How long the card must be overloaded, or a mailbox be too long, before an actor goes.";
        settle: span(Nanos::from_millis(10), Nanos::from_secs(3600)), [= "\"2s\""], Applies,
            "duration, 10 ms to 1h", "\"10s\"", "How long it must have room before one comes back.";
        pause: span(Nanos::from_millis(10), Nanos::from_secs(600)), [= "\"500ms\""], Applies,
            "duration, 10 ms to 10m", "\"2s\"", "From one move to the next decision.";
    } => {
        let migration = migration::Settings {
            overload_us: overload.0 as f64 / 1_000.0, busy, backlog: Some(backlog), spare, hysteresis: margin, patience, settle,
            pause,
        };
        Sides {
            policy, cores: [card_cores, host_cores], queues: [card_queues, host_queues], quantum, tail_threshold, hysteresis, rest, budget, entry, moves, migration,
        }
    }

    matches(reader, section) -> Match = "service.NAME.match":
        "The packets of the service. A packet matches if all keys match; without any key, every IP packet of the \
         service's uplinks matches. A symmetric service also matches packets of the opposite direction. If two \
         services match a packet, the narrower match wins: the one whose packets are all matched by the other, too. \
         Other overlaps are refused. If only opposite directions overlap, the first service in the file wins."
    {
        protocol as "proto": protocol_number, [or "any"], Rules,
            "`tcp`, `udp`, `sctp`, `icmp`, `icmpv6`, or a number", "\"tcp\"", "IP protocol.";
        src: text(prefix), [or "any"], Rules,
            "address or prefix", "\"192.0.2.0/24\"", "Source address or prefix, IPv4 or IPv6.";
        dst: text(prefix), [or "any"], Rules,
            "address or prefix", "\"2001:db8::/32\"", "Destination address or prefix, IPv4 or IPv6.";
        src_port: port_range, [or "any"], Rules,
            "port, or range of ports", "\"1024-65535\"", "Source port or range; needs `proto`.";
        dst_port: port_range, [or "any"], Rules,
            "port, or range of ports", "\"80-443\"", "Destination port or range; needs `proto`.";
        vlan: number(0, 4094), [or "any"], Rules,
            "number, 0 to 4094", "42", "Outermost VLAN id; 0 matches untagged packets.";
    } => {
        let matches = Match { protocol, src, dst, src_port, dst_port, vlan };
        check_match(reader, section, &matches);
        matches
    }

    vip(reader, section) -> Vip = "service.NAME.vip":
        "The address of a service. Its packets are those to these addresses and ports, of TCP and UDP."
    {
        addresses as "address": addresses, [required], Restart,
            "address, or a list of one IPv4 and one IPv6 address", "[\"10.0.0.100\", \"2001:db8::100\"]",
            "The address. inco answers ARP and neighbour solicitations for it on the service's uplinks, announces it, \
             and answers ping.";
        ports: ports, [required], Restart,
            "ports and ranges with commas, or one port", "\"80,443,8000-8099\"", "The ports that are served there.";
        mode: word(VipMode::WORDS), [= "\"l2\""], Restart,
            "`\"l2\"` or `\"dnat\"`", "\"l2\"",
            "How instances serve it: with `l2` each instance has the address, and nothing is rewritten; with `dnat` \
             each has an address of its own, of `instance_addresses` in `[switch.ebpf]`, and inco translates.";
        target_port: number(1, 65_535), [or "the port itself"], Restart,
            "port", "8080",
            "With `mode = \"dnat\"`, the port that instances serve in the place of the one in `ports`.";
    } => {
        if target_port.is_some() && mode != VipMode::Dnat {
            let wrong = ValueError::new("ports are translated in one mode only", "write mode = \"dnat\", or remove it");
            reader.report(&section.key("target_port"), wrong);
        }
        if target_port.is_some() && ports.iter().map(|range: &RangeInclusive<u16>| range.len()).sum::<usize>() != 1 {
            let what = "several ports become one, and answers have only that";
            let wrong = ValueError::new(what, "write one port in ports, or remove target_port");
            reader.report(&section.key("target_port"), wrong);
        }
        Vip { addresses, ports, mode, target_port }
    }

    external_table(reader, section) -> Option<ExternalPorts> = "service.NAME.external":
        "The external addresses to which the instances of a service translate. Their ports from 1024 on are divided into \
         blocks. An instance owns one block from its start to its end, or until a drain with `move_state` hands it to another \
         instance. Its program learns it from the environment \
         variable `INCO_EXTERNAL`: `203.0.113.0:1024-5055` ([nat](../functions/nat.md)). Packets to an external address go \
         to the owner of their port, before any `match`; those to a port that nobody owns are dropped as `port_block`."
    {
        addresses: external_prefixes, [required], Restart,
            "list of IPv4 addresses and prefixes", "[\"203.0.113.0/30\"]",
            "The addresses, at most 256. They must be routed to the uplinks of the service.";
        // 16 blocks an address: 8 instances, standbys, draining ones and reserved blocks fit on one.
        block: number(External::BLOCK_PORTS_MIN.into(), External::PORTS.into()), [= "4032"], Restart,
            "number of ports, 256 to 64512", "8064",
            "Ports of a block. There must be more blocks than `max` and `standby` instances together, because a rollout \
             needs one more. Write more addresses if blocks must not run out while some are reserved.";
        // The longest of the function `nat`: established TCP connections, the least of RFC 5382.
        lifetime: span(Nanos(1), Nanos::from_secs(604_800)), [= "\"7440s\""], Restart,
            "duration, at most 168h", "\"10m\"",
            "For how long a mapping may live without a packet, by the configuration of the function. The block of an \
             instance that ended with mappings is reserved for that long, also over a restart of inco.";
    } => {
        let external = External::new(&addresses, block);
        if let Err(error) = &external && section.get("addresses").is_some() {
            let write = "write addresses = [\"203.0.113.0/30\"]: IPv4, each once";
            reader.report(&section.key("addresses"), ValueError::new(error.to_string(), write));
        }
        external.ok().map(|external| ExternalPorts { external, lifetime })
    }

    association_table(reader, section) -> Option<Association> = "service.NAME.associations[]":
        "A security association, at most 256 of a service. Its packets have one instance, also after a time without any. \
         With `src`, `dst` or `proto`, packets without protection from and to these addresses go to its instance, too: the \
         first entry that has a packet decides, so write them in the order of the function's policies \
         ([ipsec](../functions/ipsec.md#several-instances)). Several entries may be about one association."
    {
        spi: number(Association::SPI_MIN.into(), u32::MAX.into()), [required], Applies,
            "number, at least 256", "0x1001", "Its index, as its packets carry it.";
        to: text(address), [required], Applies,
            "address", "\"192.0.2.2\"", "The destination of its packets: the other gateway, or this one.";
        src: selected_prefixes, [= "[]"], Applies,
            "list of at most 64 prefixes", "[\"10.1.0.0/16\"]", "Sources of the packets that enter it. An empty list: any.";
        dst: selected_prefixes, [= "[]"], Applies,
            "list of at most 64 prefixes", "[\"10.2.0.0/16\"]",
            "Destinations of the packets that enter it. An empty list: any.";
        protocol as "proto": protocol_number, [or "any"], Applies,
            "`tcp`, `udp`, `sctp`, `icmp`, `icmpv6`, or a number", "\"tcp\"", "IP protocol of the packets that enter it.";
    } => {
        let is_outbound = !src.is_empty() || !dst.is_empty() || protocol.is_some();
        let protects = is_outbound.then_some(Selector { sources: src, destinations: dst, protocol });
        Some(Association { spi, to: to?, protects })
    }

    mount_table(reader, section) -> Mount = "service.NAME.mounts[]":
        "A file or directory of this machine in the container, as a table or as text: `\"/etc/rules:/etc/rules:ro\"`."
    {
        source: text(host_path), [required], Applies,
            "absolute path, or one that begins with `./`", "\"/etc/rules\"",
            "Path on this machine; `./` is the directory of this file.";
        target: text(absolute), [required], Applies,
            "absolute path", "\"/etc/rules\"", "Path in the container.";
        read_only: boolean, [= "false"], Applies,
            "true or false", "true", "Whether the mount is read-only.";
    } => {
        Mount { source, target, read_only }
    }

    swarm_table(reader, section) -> TaskOptions = "service.NAME.swarm":
        "What the swarm is asked about the instances of a service, with `driver = \"swarm\"` in `[engine]`. Each instance is a \
         service of the swarm with one task. Limits are `cpus`, `memory` and `processes` of the service. See \
         [swarm](../tasks/swarm.md)."
    {
        network: word(TaskNetwork::WORDS), [= "\"published\""], Applies,
            "`\"published\"` or `\"host\"`", "\"host\"",
            "How an instance is reached at its node. `published`: at a port that the node chooses, which leads to the \
             container's own. `host`: the container is in the network of its node, and each node has at most one.";
        protocol: word(TaskProtocol::WORDS), [= "\"tcp\""], Applies,
            "`\"tcp\"` or `\"udp\"`", "\"udp\"", "What instances speak at their port.";
        constraints: texts, [= "[]"], Applies,
            "list of text", "[\"node.labels.edge == true\", \"node.role == worker\"]",
            "What a node must be for an instance, in Docker's words.";
        spread: texts, [= "[]"], Applies,
            "list of text", "[\"node.labels.rack\"]",
            "Over what instances of one service of the swarm are spread, in Docker's words (placement preferences).";
        reserved_cpus: task_cpus, [or "none"], Applies,
            "CPUs", "0.5", "CPUs that a node keeps for an instance. The swarm places it where so much is not kept for others.";
        reserved_memory_bytes as "reserved_memory": bytes(1, 1 << 50), [or "none"], Applies,
            "size", "\"256MiB\"", "Memory that a node keeps for an instance.";
        secrets: task_files, [= "[]"], Applies,
            "list of `\"NAME\"` or `\"NAME:/PATH\"`", "[\"key:/etc/tls/key.pem\"]",
            "Secrets of the swarm as files in the container; without a path, in `/run/secrets`.";
        configs: task_files, [= "[]"], Applies,
            "list of `\"NAME\"` or `\"NAME:/PATH\"`", "[\"site:/etc/nginx/nginx.conf\"]",
            "Configs of the swarm as files in the container; without a path, in `/`.";
    } => {
        TaskOptions {
            network, protocol, constraints, spread, reserved_cpus, reserved_memory_bytes, secrets, configs,
        }
    }

    pod_table(reader, section) -> PodOptions = "service.NAME.kubernetes":
        "What Kubernetes is asked about the Pods of a service, with `driver = \"kubernetes\"` in `[engine]`. Each instance is a \
         Pod. Limits are `cpus` and `memory` of the service. See [kubernetes](../tasks/kubernetes.md)."
    {
        node_selector: node_labels, [= "{}"], Applies,
            "table of text", "{ \"kubernetes.io/arch\" = \"amd64\" }", "Labels that a node must have for an instance.";
        tolerations: kubernetes_list, [or "none"], Applies,
            "list of tables", "[{ key = \"edge\", operator = \"Exists\", effect = \"NoSchedule\" }]",
            "Taints of nodes that an instance tolerates, in Kubernetes' words. The API server checks them.";
        affinity: kubernetes_table, [or "none"], Applies,
            "table", "{ nodeAffinity = { requiredDuringSchedulingIgnoredDuringExecution = { nodeSelectorTerms = [{ matchExpressions = [{ key = \"edge\", operator = \"Exists\" }] }] } } }",
            "To which nodes, and to which other Pods, an instance is drawn, in Kubernetes' words. The API server checks them.";
        pull_secrets: texts, [= "[]"], Applies,
            "list of text", "[\"registry-login\"]", "Secrets with the login for the registry of the image.";
        service_account: text(kubernetes_name), [or "none: without a token"], Applies,
            "name", "\"web\"", "The account whose token an instance gets.";
        reserved_cpus: task_cpus, [or "as many as `cpus`"], Applies,
            "CPUs", "0.5", "CPUs that a node keeps for an instance (its request). Kubernetes places it where so much is not kept for others.";
        reserved_memory_bytes as "reserved_memory": bytes(1, 1 << 50), [or "as much as `memory`"], Applies,
            "size", "\"256MiB\"", "Memory that a node keeps for an instance (its request).";
        secrets: task_files, [= "[]"], Applies,
            "list of `\"NAME\"` or `\"NAME:/DIRECTORY\"`", "[\"key:/etc/tls\"]",
            "Secrets whose keys are files in the container; without a directory, in `/run/secrets/NAME`.";
        configs: task_files, [= "[]"], Applies,
            "list of `\"NAME\"` or `\"NAME:/DIRECTORY\"`", "[\"site:/etc/nginx\"]",
            "ConfigMaps whose keys are files in the container; without a directory, in `/run/configs/NAME`.";
    } => {
        PodOptions {
            node_selector, tolerations, affinity, pull_secrets, service_account, reserved_cpus, reserved_memory_bytes,
            secrets, configs,
        }
    }

    device_table(reader, section) -> Option<InstanceDevice> = "service.NAME.devices[]":
        "For `port = \"device\"`: functions of a card, or other network interfaces. Each instance gets one per \
         uplink, in the order of the list. [smartnic](../smartnic.md) shows the commands that create functions and \
         what a container gets."
    {
        representor: text(representor), [required], Restart,
            "network interface or DPDK device", "\"pf0vf0\"",
            "The bridge's end: a network interface on the machine of Open vSwitch, or a DPDK device there such as \
             `0000:03:00.0,representor=vf0`.";
        pci: text(pci), [or "one of `pci`, `sf`, `interface`"], Restart,
            "PCI address", "\"0000:03:00.2\"",
            "The instance's end, a virtual function. If it is bound to `vfio-pci`, the container gets its device \
             files and `INCO_PCI`; otherwise its network interface and `INCO_INTERFACES`.";
        sf: number(0, u64::from(u32::MAX)), [or "one of `pci`, `sf`, `interface`"], Restart,
            "number", "1", "The instance's end, a scalable function. The container gets its network interface.";
        interface: text(interface), [or "one of `pci`, `sf`, `interface`"], Restart,
            "name of an interface", "\"enp3s0f0v0\"",
            "The instance's end, named by its network interface: a function, or an end of a veth pair.";
        mac: text(mac), [or "any"], Restart,
            "MAC address", "\"02:00:00:00:00:11\"",
            "The function's MAC address. A different address on the card is reported as a problem.";
        vfio: text(absolute), [or "the group that this machine reports"], Restart,
            "path", "\"/dev/vfio/42\"",
            "Device file of the function's VFIO group on the engine's machine. Required if that is another machine.";
    } => {
        let written = ["pci", "sf", "interface"].iter().filter(|key| section.get(key).is_some()).count();
        if written != 1 {
            let what = format!("{written} of the keys pci, sf and interface are present; exactly one is needed");
            let write = "write one: pci = \"0000:03:00.2\", sf = 1 or interface = \"enp3s0f0v0\"";
            reader.report(&section.path, ValueError::new(what, write));
        }
        let pci = pci.map(|address| NetFunction::Pci { address, vfio });
        let function = pci.or(sf.map(NetFunction::Sf)).or(interface.map(NetFunction::Interface))?;
        (!representor.is_empty()).then_some(InstanceDevice { representor, function, mac })
    }

    ready_table(reader, section) -> Ready = "service.NAME.ready":
        "Readiness by a command."
    {
        exec: program, [required], Applies,
            "list of text", "[\"/bin/check\"]", "The command. The instance is ready when it exits with status 0.";
    } => {
        Ready::Exec(exec)
    }

    health_table(reader, section) -> Option<HealthCheck> = "service.NAME.health":
        "A check of each instance, again and again. `tcp`, `http` and `dns` go through the instance's own interface as \
         packets of the network do, to the service's address, or with `mode = \"dnat\"` to the instance's own address \
         and port: with `port = \"kernel\"` and `vip` only. They come from 169.254.1.2 or 100::2. Servers of `from` are asked \
         from this machine's own address. An instance that fails gets no new flows and keeps those that it has; another one comes \
         in its place, and if it goes on failing for `drain_deadline`, it is removed. One that is back begins with a \
         small share of new flows (`slow_start` of `scheduler`)."
    {
        tcp: number(1, 65_535), [or "one of `tcp`, `http`, `dns`, `command`"], Applies,
            "port", "80", "It accepts a connection at that port.";
        http: text(http_path), [or "one of `tcp`, `http`, `dns`, `command`"], Applies,
            "path", "\"/healthz\"", "It answers a request for that path with status 2xx or 3xx.";
        dns: text(dns_name), [or "one of `tcp`, `http`, `dns`, `command`"], Applies,
            "name", "\"example.com\"",
            "It answers a question for that name, over UDP. That the name does not exist is an answer.";
        command: program, [or "one of `tcp`, `http`, `dns`, `command`"], Applies,
            "list of text", "[\"/bin/check\"]", "That command, run in its container, exits with status 0.";
        port: number(1, 65_535), [or "the first port that instances serve"], Applies,
            "port", "8080", "The port for `http` and `dns`.";
        // HAProxy's and IPVS' checks are as frequent by default, give or take.
        every: span(Nanos::from_millis(10), Nanos::from_secs(3600)), [= "\"1s\""], Applies,
            "duration, 10 ms to 1h", "\"200ms\"", "From the beginning of one check to that of the next.";
        timeout: span(Nanos::from_millis(1), Nanos::from_secs(3600)),
            [or "half of `every`" => Nanos(every.0 / 2)], Applies,
            "duration, at most `every`", "\"100ms\"", "How long one check may take.";
        fall: number(1, 100), [= "3"], Applies,
            "number, 1 to 100", "2", "An instance fails after so many checks in a row that did not pass.";
        rise: number(1, 100), [= "2"], Applies,
            "number, 1 to 100", "5", "It is back after so many in a row that passed.";
        panic: share, [= "0.5"], Applies,
            "share, above 0 and at most 1", "0.3",
            "If a smaller share of a service's active instances pass, all of them are used: then the check is more \
             likely wrong than all of them.";
    } => {
        let written = ["tcp", "http", "dns", "command"].iter().filter(|key| section.get(key).is_some()).count();
        if written != 1 {
            let what = format!("{written} of the keys tcp, http, dns and command are present; exactly one is needed");
            let write = "write one: tcp = 80, http = \"/\", dns = \"example.com\" or command = [\"/bin/check\"]";
            reader.report(&section.path, ValueError::new(what, write));
        }
        if section.get("port").is_some() && (tcp.is_some() || command.is_some()) {
            let wrong = ValueError::new("port is for http and dns", "remove it");
            reader.report(&section.key("port"), wrong);
        }
        if timeout > every {
            let wrong = ValueError::new("a check may not take longer than until the next one", "write at most `every`");
            reader.report(&section.key("timeout"), wrong);
        }
        // 0: the service's first port, which is known later.
        let port: u16 = port.unwrap_or(0);
        let probe = tcp.map(Probe::Tcp)
            .or(http.map(|path| Probe::Http(port, path)))
            .or(dns.map(|name| Probe::Dns(port, name)))
            .or(command.map(Probe::Command))?;
        Some(HealthCheck { probe, every, timeout, fall, rise, panic })
    }

    agent_table(reader, section) -> AgentCheck = "service.NAME.agent":
        "Agents in the instances, as HAProxy's `agent-check` has them. inco connects to the port of each; the agent \
         writes one line. `75%`: its share of new flows, of what it would have (with policies that have weights: \
         [policies](../policies.md)). `drain`, `maint`: no new flows, until `ready`. `down`, `failed`, `stopped`: it \
         fails, as by `health`, until `up`. What was not said again for three times `every` has no effect any more. \
         With `port = \"kernel\"` and `vip` only."
    {
        port: number(1, 65_535), [required], Applies,
            "port", "8080", "The port of the agents.";
        // HAProxy's `agent-inter`.
        every: span(Nanos::from_millis(10), Nanos::from_secs(3600)), [= "\"2s\""], Applies,
            "duration, 10 ms to 1h", "\"500ms\"", "How often each is asked.";
    } => {
        AgentCheck { port, every }
    }

    endpoints_of(reader, section) -> KubernetesService = "service.NAME.instances.from[]":
        "A Kubernetes Service whose endpoints are instances, one of at most 16, as in `from = [{ service = \"shop/web\", weight = 9 }, \
         { service = \"shop/canary\" }]`. Each gets new flows by its weight, however many endpoints it has: those that are ready share that \
         equally. What would go to a Service without any goes to the others."
    {
        service: text(kubernetes_service), [required], Applies,
            "`\"NAMESPACE/SERVICE\"`", "\"shop/web\"", "The Service.";
        endpoint_port as "port": endpoint_port, [or "the only one of the Service"], Applies,
            "name, or number, 1 to 65535", "\"http\"",
            "The port of its endpoints: its name in the Service, or its number at the endpoints (`targetPort`).";
        weight: number(1, 1_000_000), [= "1"], Applies,
            "number, 1 to 1000000", "9",
            "Its share of new flows against that of the others, with the schedulers `maglev`, `least-connections` and `weighted`.";
    } => {
        let (namespace, name) = service;
        KubernetesService { namespace, name, port: endpoint_port, weight }
    }

    instances_table(reader, section) -> Instances = "service.NAME.instances":
        "The number of instances. A number alone is a fixed count: `instances = 3`."
    {
        from: origin, [or "none: inco runs them" => Origin::Inco], Applies,
            "list of addresses with ports, `\"kubernetes:NAMESPACE/SERVICE\"`, or list of tables", "[\"10.0.0.5:80\", \"10.0.0.6:80\"]",
            "Servers that others run, as the instances: inco neither starts nor stops them. They are listed, or are the \
             endpoints of a Kubernetes Service, or of several ones with weights, each in a table ([kubernetes](../tasks/kubernetes.md)). With the driver `ebpf`: \
             see [back ends](../back-ends.md). With `soft`, and with `port = \"tunnel\"`, they are machines behind tunnels: see \
             [many machines](../many-machines.md).";
        endpoint_port as "port": endpoint_port, [or "the only one of the Service"], Applies,
            "name, or number, 1 to 65535", "\"http\"",
            "The port of the endpoints of a Kubernetes Service: its name in the Service, or its number at the endpoints \
             (`targetPort`).";
        // With zero, the first packets of a service would wait for a container to start.
        min: number(1, INSTANCE_LIMIT), [= "1"], Applies,
            "number, 1 to 1024", "3", "Minimum number of active instances.";
        // The maximum in the paper's experiment.
        max: number(1, INSTANCE_LIMIT), [or "8, or `min` if that is more; with `from` as many as it lists; 64 of a \
             Kubernetes Service" => match &from {
                Origin::Inco => 8.max(min),
                Origin::Addresses(all) => all.len() as u32,
                Origin::Kubernetes(_) => ENDPOINTS_USUAL,
            }], Applies,
            "number, at least `min`", "8",
            "Maximum number of active instances. With `from`: how many servers there may be without a new start of inco.";
        sleep: boolean, [= "false"], Applies,
            "true or false", "true",
            "Whether all `max` instances run and are connected, and those that are not active sleep: they take no new \
             flows and keep those that they have. Instead of `standby`.";
        // With one, the first scale-out takes microseconds instead of a container's start.
        standby: number(0, INSTANCE_LIMIT), [or "1; 0 with `sleep` or `from`, or if `instances` is a number" =>
            u32::from(!sleep && from == Origin::Inco)], Applies,
            "number, at most `max`", "2", "Instances that are ready in addition to the active ones.";
        standby_mode: word(StandbyMode::WORDS), [= "\"warm\""], Applies,
            "`\"warm\"` or `\"paused\"`", "\"paused\"",
            "State of standby instances: `warm` is running and becomes active within microseconds; `paused` is \
             frozen, uses no CPU and must be resumed first.";
    } => {
        let most = |what: u32| format!("{what} is more than max ({max})");
        let min = match &from {
            Origin::Inco => min,
            Origin::Addresses(all) => all.len() as u32,
            // As many as there are endpoints, which is known later.
            Origin::Kubernetes(_) => 0,
        };
        for key in ["min", "sleep", "standby", "standby_mode"].into_iter().filter(|_| from != Origin::Inco) {
            if section.get(key).is_some() {
                let wrong = ValueError::new("all servers of `from` are used", format!("remove {key}"));
                reader.report(&section.key(key), wrong);
            }
        }
        let mut from = from;
        let is_list = section.get("from").is_some_and(|of| of.get_ref().is_array());
        match &mut from {
            Origin::Kubernetes(_) if endpoint_port.is_some() && is_list => {
                let write = "write it in the tables of `from`";
                reader.report(&section.key("port"), ValueError::new("each Service of `from` has its own", write));
            }
            Origin::Kubernetes(services) if !is_list => {
                services.iter_mut().for_each(|of| of.port = endpoint_port.clone());
            }
            Origin::Kubernetes(_) => {}
            Origin::Inco | Origin::Addresses(_) if endpoint_port.is_some() => {
                let what = "it is the port of the endpoints of a Kubernetes Service";
                let write = "remove it, or write from = \"kubernetes:NAMESPACE/SERVICE\"";
                reader.report(&section.key("port"), ValueError::new(what, write));
            }
            Origin::Inco | Origin::Addresses(_) => {}
        }
        if from != Origin::Inco && min > max {
            let wrong = ValueError::new(format!("from has {min} servers"), format!("write at least {min}"));
            reader.report(&section.key("max"), wrong);
        } else if min > max {
            let wrong = ValueError::new(most(min), format!("write a min of at most {max}"));
            reader.report(&section.key("min"), wrong);
        } else if standby > max {
            let wrong = ValueError::new(most(standby), format!("write a standby of at most {max}"));
            reader.report(&section.key("standby"), wrong);
        }
        if sleep && (standby > 0 || standby_mode != StandbyMode::Warm) {
            let key = if standby > 0 { "standby" } else { "standby_mode" };
            let what = "with sleep = true, every instance that is not active runs and waits";
            reader.report(&section.key(key), ValueError::new(what, format!("remove {key}")));
        }
        Instances { from, min, max, standby, standby_mode, sleep }
    }

    scheduler_table(reader, section) -> (Scheduler, Option<f64>) = "service.NAME.scheduler":
        "The scheduler, its load metric and its parameters. A name alone selects the policy with its defaults. \
         [policies](../policies.md) describes each policy and when to use it."
    {
        policy: text(known_scheduler), [= "\"best-fit\""], Applies,
            "scheduler", "\"worst-fit\"", "The policy.";
        metric: word(Metric::WORDS), [= "\"packets\""], Applies,
            "`\"packets\"`, `\"bytes\"`, `\"flows\"` or `\"busy\"`", "\"busy\"",
            "The load metric: packets per second, bytes per second, flows, or the share of time for which the \
             function is busy. If the function does not report it, `busy` is its packet rate ÷ `capacity`.";
        limit: limit_in(metric),
            [or "`capacity` for packets, 1 for `busy`; required for the others"], Applies,
            "bit rate for `bytes`, number for `flows`, share for `busy`", "\"10Gbps\"",
            "Load that one instance can take, in units of the metric.";
        slow_start: span(Nanos::ZERO, SLOW_START_MAX), [= "\"1s\""], Applies,
            "duration, at most 1h", "\"5s\"",
            "Time over which the share of new flows for a new instance rises to the full share; `0s` turns it off.";
        spill: boolean, [or "true; false with `machines`" => policy != BY_REPORTS], Applies,
            "true or false", "false",
            "Whether a flow that does not fit (`fit`) on the instance of the policy's choice goes to the next \
             instance on which it fits.";
    } => {
        match metric {
            Metric::Bytes => reader.required(section, "limit"),
            Metric::Flows => {
                let wrong = || ValueError::new("this key is missing", "write limit = 1000");
                reader.missing(section, "limit", wrong);
            }
            Metric::Packets | Metric::Busy => {}
        }
        let settings = Settings { metric, slow_start, spill };
        let make = |own| Scheduler::with_parameters(policy, settings, own);
        let scheduler = with_parameters(reader, section, policy, Scheduler::parameters_of(policy), make);
        (scheduler.unwrap_or_default(), limit.or((metric == Metric::Busy).then_some(1.0)))
    }

    autoscaler_table(reader, section) -> Autoscaler = "service.NAME.autoscaler":
        "The autoscaler and its parameters. A name alone selects the policy with its defaults."
    {
        policy: text(known_autoscaler), [= "\"ladder\""], Applies,
            "autoscaler", "\"smartinco\"", "The policy.";
    } => {
        let make = |own| Autoscaler::with_parameters(policy, own);
        let autoscaler = with_parameters(reader, section, policy, Autoscaler::parameters_of(policy), make);
        autoscaler.unwrap_or_default()
    }

    ring(reader, section) -> Ring = "service.NAME.ring":
        "The rings of shared memory between the switch and an instance: one per queue and direction."
    {
        // 1 ms at 1 Mpps. 256 ports with 4096 descriptors would need 4 GiB.
        slots: power_of_two(number(RING_SLOTS_MIN, RING_SLOTS_MAX)), [= "1024"], Instances,
            "power of two, 64 to 16384", "2048",
            "Descriptors per ring. Slots ÷ packet rate is the longest pause of the function without loss.";
        // One frame of 1,522 bytes; also the default of DPDK's memif driver.
        buffer_bytes: bytes(BUFFER_BYTES_MIN, BUFFER_BYTES_MAX), [= "2048"], Instances,
            "bytes, 128 to 16384", "4096", "Size of one buffer. Longer frames use several buffers.";
    } => {
        Ring { slots, buffer_bytes }
    }

    place(reader, section) -> Place = "place[]":
        "A place where instances run: CPUs of this machine, a card, another machine. At most 16, each with its own \
         heading `[[place]]`. Where nothing else decides, `placement = \"auto\"` fills them in their order. Without any, all instances run on \
         this machine, or where `[engine]` says. See [places](../places.md)."
    {
        name: text(place_name), [required], Restart,
            "name", "\"card\"", "Its name in services, tables, labels and events; neither `auto` nor `split`.";
        driver as "engine": word(EngineDriver::WORDS), [or "that of `[engine]`; with `host`, `\"docker\"`"], Restart,
            "`\"oci\"` or `\"docker\"`", "\"docker\"", "What makes its containers.";
        host: text(host), [or "that of `[engine]`"], Restart,
            "`unix:///...` or `tcp://HOST:PORT`", "\"tcp://192.168.100.2:2376\"",
            "Address of its Docker or Podman. Memif ports need an engine on this machine.";
        tls: path, [or "that of `[engine]`, for its host"], Restart,
            "directory", "\"/etc/inco/card-tls\"",
            "For an engine on another machine: directory with `ca.pem`, `cert.pem` and `key.pem`.";
        cpus: text(cpuset), [or "every CPU"], Restart,
            "list of CPUs such as `\"0-3,7\"`", "\"0-3\"",
            "The CPUs on which its containers run. Places on one machine have different ones.";
        share: share, [= "1.0"], Restart,
            "above 0, at most 1", "0.4",
            "The part of a service's `cpus`, and so of its `capacity`, that an instance has there. For a machine that \
             stands in for one with slower cores.";
        instances: number(1, INSTANCE_LIMIT), [or "no limit"], Restart,
            "number, 1 to 1024", "8", "Most instances of all services there, without those that drain.";
        capacity_pps as "capacity": pps, [or "no limit"], Restart,
            "packets per second", "\"36Mpps\"",
            "Most packets per second for which it has instances: the sum of their capacities, or what they get if that is \
             more.";
        collapse_pps as "collapse": pps, [or "unknown"], Restart,
            "packets per second", "\"40Mpps\"",
            "The load beyond which the place takes fewer packets, not more. It is given 0.9 of it, or `capacity` if that is \
             less. inco does not measure it.";
        core_pps as "core_capacity": pps, [or "that of the service"], Restart,
            "packets per second", "\"5Mpps\"",
            "What one of its cores processes. An instance there has that, times its CPUs, as its `capacity`.";
        ports: port_kinds, [or "all kinds"], Restart,
            "list of kinds of ports", "[\"memif\", \"kernel\"]",
            "The kinds of ports that instances can have there. A service with another kind may not be placed there.";
        latency: span(Nanos::ZERO, Nanos::from_secs(1)), [= "\"0s\""], Restart,
            "duration, at most 1 s", "\"1us\"",
            "Time from the switch to the place, one way. `placement = \"auto\"` fills the place with the shortest way first, unless \
             the service's goal is another.";
        bandwidth_bytes_per_s as "bandwidth": bandwidth, [or "no limit"], Restart,
            "bits per second", "\"100Gbps\"",
            "What the link between the switch and the place carries in each direction. No more instances are placed there than it \
             carries the packets of, and no capacity there is larger.";
        idle_watts: watts, [or "unknown"], Restart,
            "watts", "42",
            "What the place consumes without load. For `inco explain placement`: inco switches no place off.";
        watts_per_core: watts, [or "unknown"], Restart,
            "watts", "11",
            "What a busy core consumes more. With `goal = \"power\"`, `placement = \"auto\"` fills the place with the fewest \
             watts for a packet first. Without a meter, watts of instances are a MODEL from it.";
        lost_after: span(Nanos::from_millis(100), Nanos::MAX), [= "\"10s\""], Restart,
            "duration, at least 100 ms", "\"5s\"",
            "How long an engine on another machine may not answer before the instances there have failed. On this \
             machine, instances go on without their engine.";
    } => {
        if driver == Some(EngineDriver::Oci) {
            for key in ["host", "tls"].into_iter().filter(|key| section.get(key).is_some()) {
                let what = "the oci engine is embedded and has no such key";
                reader.report(&section.key(key), ValueError::new(what, "remove it, or write engine = \"docker\""));
            }
        }
        Place {
            name, driver, host, tls, cpus, share, instances, capacity_pps, collapse_pps, core_pps, ports, latency, bandwidth_bytes_per_s,
            idle_watts, watts_per_core, lost_after,
        }
    }

    engine(reader, section) -> Engine = "engine":
        "The container engine."
    {
        driver: word(EngineDriver::WORDS), [= "\"oci\""], Restart,
            "`\"oci\"`, `\"docker\"`, `\"swarm\"` or `\"kubernetes\"`", "\"docker\"",
            "`oci` is embedded and needs no daemon; `docker` uses Docker or Podman; `swarm` has a swarm of Docker's place \
             each instance on one of its machines ([swarm](../tasks/swarm.md)); `kubernetes` makes a Pod for each instance in \
             the cluster of `[kubernetes]` ([kubernetes](../tasks/kubernetes.md)).";
        host: text(host), [= "\"unix:///run/docker.sock\""], Restart,
            "`unix:///...` or `tcp://HOST:PORT`", "\"tcp://192.0.2.7:2376\"",
            "Address of Docker, Podman or a manager of the swarm. Ports of kind `memif` need an engine on this machine.";
        tls: path, [or "none"], Restart,
            "directory", "\"/etc/inco/tls\"",
            "For a remote engine: directory with `ca.pem`, `cert.pem` and `key.pem`, as for Docker's own command.";
        name: text(kubernetes_name),
            [or "with `swarm` and `kubernetes`: `$NODE_NAME`, else the id in `/etc/machine-id`, else the host name"], Restart,
            "name", "\"edge-1\"",
            "With `swarm` and `kubernetes`: the name of this machine among those that have instances there. inco knows its \
             instances by it and by the run directory, and leaves those of others alone. Write it where machines share an id, \
             as copies of one image do. Before it changes, `inco stop` removes the instances, which are known by the old name.";
        linger: span(Nanos(0), Nanos::MAX), [= "\"30s\""], Applies,
            "span of time", "\"2m\"",
            "After SIGTERM of systemd: how long containers, flows and rings wait for the next `inco run`. Then they \
             are removed.";
        pull: word(Pull::WORDS), [= "\"missing\""], Applies,
            "`\"missing\"` or `\"never\"`", "\"never\"",
            "Whether `inco run` and `inco reload` pull the image of a service from its registry if it is not on this \
             machine. With `never`, `inco image pull` does it. Images named `inco/...` are never pulled. With the engine \
             `kubernetes`: whether nodes get an image that they lack.";
        plain_http: registries, [= "[]"], Applies,
            "list of `HOST:PORT`", "[\"10.0.0.5:5000\"]",
            "Registries that are asked without TLS. Whoever controls the network can then replace tags. A registry \
             on this machine (`localhost`, `127.0.0.1`) needs no entry.";
    } => {
        let unknown = match driver {
            EngineDriver::Oci => Some("the oci engine is embedded and has no such key"),
            EngineDriver::Kubernetes => Some("[kubernetes] says where the API server is"),
            EngineDriver::Docker | EngineDriver::Swarm => None,
        };
        if let Some(what) = unknown {
            for key in ["host", "tls"].into_iter().filter(|key| section.get(key).is_some()) {
                reader.report(&section.key(key), ValueError::new(what, "remove it, or write driver = \"docker\""));
            }
        }
        let engine = Engine { driver, host, tls, name, linger, pull, plain_http };
        if !engine.is_orchestrator() && section.get("name").is_some() {
            let what = "instances of this engine are those of this machine alone";
            let write = "remove it, or write driver = \"swarm\" or \"kubernetes\"";
            reader.report(&section.key("name"), ValueError::new(what, write));
        }
        engine
    }

    api(reader, section) -> Api = "api":
        "The API. inco always serves it on a unix socket (mode 0660). With `listen`, it also serves it on the \
         network, over TLS and with a token in each request."
    {
        socket: text(socket_path), [or "`api.sock` in the run directory: `$INCO_RUN_DIR`, or `/run/inco`"], Restart,
            "path", "\"/run/inco/api.sock\"", "Unix socket of the API, used by `inco status` and the other commands.";
        listen: text(listen), [or "the unix socket only"], Restart,
            "address and port", "\"0.0.0.0:8443\"",
            "Address for the API and the web page over TLS. Needs `certificate`, `key` and `tokens`.";
        certificate: path, [or "none"], Restart,
            "path", "\"/etc/inco/api.pem\"", "Certificate and its chain, as PEM.";
        key: path, [or "none"], Restart,
            "path", "\"/etc/inco/api.key\"", "Private key of the certificate, as PEM.";
        tokens: path, [or "none"], Restart,
            "path", "\"/etc/inco/tokens\"",
            "File with the API's tokens. Each line has a role (`read` or `admin`), a name for the event log, and a \
             token of at least 32 characters (`openssl rand -hex 32`). Only owner and group may have read access to \
             the file.";
    } => {
        let needed = ["certificate", "key", "tokens"];
        if section.get("listen").is_some() {
            needed.into_iter().for_each(|key| reader.required(section, key));
        } else if let Some(key) = needed.into_iter().find(|key| section.get(key).is_some()) {
            let write = "write listen = \"0.0.0.0:8443\", or remove this key";
            reader.report(&section.key(key), ValueError::new("this key needs listen, which is missing", write));
        }
        let files = certificate.zip(key).zip(tokens);
        let tcp = listen.zip(files).map(|(listen, ((certificate, key), tokens))| ApiTcp {
            listen, certificate, key, tokens,
        });
        Api { socket, tcp }
    }

    kubernetes(reader, section) -> Kubernetes = "kubernetes":
        "The Kubernetes cluster of services with `instances.from = \"kubernetes:NAMESPACE/SERVICE\"`, and of the engine \
         `kubernetes`, which takes a change with the next start of inco. See [kubernetes](../tasks/kubernetes.md)."
    {
        kubeconfig: path,
            [or "the account of the Pod in which inco runs; else `$KUBECONFIG`, else `~/.kube/config`"], Applies,
            "path", "\"/etc/inco/kubeconfig\"",
            "The file that says where the API server is and who inco is there. It is read again after each failure, so \
             credentials may change.";
        context: text(known_context), [or "the kubeconfig's current one"], Applies,
            "context", "\"production\"", "The context of the kubeconfig.";
        namespace: text(kubernetes_name), [or "that of the context, or of the Pod in which inco runs"], Restart,
            "name", "\"edge\"", "Where the engine `kubernetes` has its Pods.";
    } => {
        Kubernetes { kubeconfig, context, namespace }
    }

    reports(reader, section) -> Reports = "reports":
        "Load reports, by which an edge picks a machine behind a tunnel (`scheduler = \"machines\"`). A machine has `machine`, \
         `to` and `key`, an edge `listen` and `machines`. See [many machines](../many-machines.md)."
    {
        machine: number(0, MACHINE_NUMBER_MAX), [or "none"], Applies,
            "number, below 1024", "1", "The number of this machine, which no other machine of its edges has.";
        to: edges, [= "[]"], Applies,
            "list of at most 16 addresses with ports", "[\"192.0.2.1:4790\"]",
            "Where the edges of this machine take reports: each gets one every 10 ms, by UDP.";
        key: path, [or "none"], Applies,
            "path", "\"/etc/inco/machine.key\"",
            "The file of this machine's key: 48 hexadecimal digits (`openssl rand -hex 24`), which only its owner may read. Its \
             edges have the same one.";
        listen: text(reports_listen), [or "none"], Restart,
            "address and port", "\"192.0.2.1:4790\"",
            "Where this edge takes reports, by UDP. The network there should have no strangers, though they gain nothing.";
        machines: reporting_machines, [= "[]"], Applies,
            "list of tables", "[]", "The machines whose reports this edge takes. See the table below.";
    } => {
        let needed = |reader: &mut Reader, of: &[&str]| {
            if of.iter().any(|key| section.get(key).is_some()) {
                of.iter().for_each(|key| reader.required(section, key));
            }
        };
        needed(reader, &["to", "machine", "key"]);
        needed(reader, &["listen", "machines"]);
        let sends = machine.zip(key).map(|(machine, key)| SentReports { machine, to, key });
        let takes = listen.map(|listen| TakenReports { listen, machines });
        Reports { sends, takes }
    }

    reporting_machine(reader, section) -> ReportingMachine = "reports.machines[]":
        "A machine whose load reports an edge takes. Each has its own heading `[[reports.machines]]`."
    {
        number: number(0, MACHINE_NUMBER_MAX), [required], Applies,
            "number, below 1024", "1", "`machine` in its own file.";
        address: text(tunnel_end), [required], Applies,
            "IPv4 address", "\"10.9.0.2\"", "Its address for tunnels, as in `instances.from`.";
        key: path, [required], Applies,
            "path", "\"/etc/inco/machine-1.key\"",
            "The file of its key, which only the owner of the file may read. Each machine has another one.";
    } => {
        ReportingMachine { number, address, key }
    }

    event_log(reader, section) -> EventLog = "event_log":
        "The event log: files with one JSON event per line. `events.jsonl` is the current file, `events.jsonl.1` \
         the previous one."
    {
        directory: path, [or "`events` in the run directory: `$INCO_RUN_DIR`, or `/run/inco`"], Restart,
            "path", "\"/var/log/inco\"",
            "Directory of the files. The run directory is usually in memory and is lost when the machine restarts.";
        // About ten thousand events.
        file_bytes as "file_size": bytes(64 << 10, 1 << 30), [= "\"8MiB\""], Restart,
            "size", "\"64MiB\"", "Maximum size of one file, 64KiB to 1GiB. inco then starts a new file.";
        // The files may be in memory.
        files: number(1, 1000), [= "4"], Restart,
            "number", "10", "Number of files to keep, including the current one, 1 to 1000.";
    } => {
        EventLog { directory, file_bytes, files }
    }
}
