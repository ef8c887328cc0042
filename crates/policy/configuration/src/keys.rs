//! The table of all keys. Each row has a key's name, parser, default, reload behaviour and documentation. The rows
//! generate the reader of each table, the refusal of unknown keys, the reference and the rules of a reload.
//!
//! To add a key, add a row here and a field to the type in `types.rs`.

use autoscaling::Autoscaler;
use model::{
    FlowSetup, Match, Mount, Nanos, NetFunction, Polling, PortKind, Ready, StandbyMode, TableFull, Timeouts,
    UplinkId,
};
use scheduling::{Metric, Scheduler, Settings};
use toml::de::DeTable;

use crate::key::{Key, KeyDefault, Reload};
use crate::limits::*;
use crate::policies::{autoscaler, known_autoscaler, known_scheduler, limit_in, scheduler, with_parameters};
use crate::read::{Reader, boolean, bytes, number, path, power_of_two, share, span, text, texts, word};
use crate::types::*;
use crate::units::Wrong;
use crate::values::*;

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
        KeyDefault::Words("its keys' defaults")
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
        engine: engine, [keys], Keys,
            "table", "", "See `[engine]`.";
        api: api, [keys], Keys,
            "table", "", "See `[api]`.";
        event_log: event_log, [keys], Keys,
            "table", "", "See `[event_log]`.";
    } => {
        let example = "write [[uplink]], name = \"wan\", device = \"memif:wan.sock\"";
        reader.missing(section, "uplink", || Wrong::new("there is no uplink", example));
        let example = "write [service.NAME] with an image";
        reader.missing(section, "service", || Wrong::new("there is no service", example));
        Configuration {
            file: String::new(),
            switch,
            uplinks: uplinks.unwrap_or_default(),
            services: services.unwrap_or_default(),
            engine,
            api,
            event_log,
            places: Default::default(),
            values: Default::default(),
        }
    }

    switch(reader, section) -> Switch = "switch":
        "What forwards packets."
    {
        driver: word(SwitchDriver::WORDS), [= "\"soft\""], Restart,
            "`\"soft\"` or `\"openflow\"`", "\"soft\"",
            "What forwards: `soft` is inco's own switch, `openflow` a bridge of Open vSwitch: see \
             `[switch.openflow]`, and [smartnic](../smartnic.md).";
        workers: workers, [or "one worker, on whichever CPU is free" => Vec::new()], Restart,
            "list of CPU numbers", "[2, 3]",
            "One worker on each of these CPUs. Best are CPUs that the kernel keeps free of other work (`isolcpus`).";
        poll: word(Polling::WORDS), [= "\"adaptive\""], Restart,
            "`\"adaptive\"` or `\"busy\"`", "\"busy\"",
            "What a worker does when no packet comes: sleep a little, or go on asking, which uses its whole CPU.";
        // At 10,000 new flows a second and a mean lifetime of 60 s, 600,000 flows are live. The next power of two
        // leaves enough room for hashing.
        flows: number::<u64>(FLOWS_MIN, FLOWS_MAX), [= "1048576"], Restart,
            "number of flows", "\"4M\"",
            "IPv4 flows that each worker's table holds. What happens beyond is each service's `table_full`.";
        flows_ipv6: number(FLOWS_MIN, FLOWS_MAX),
            [or "a quarter of `flows`" => (flows / FLOWS_IPV6_PART).max(FLOWS_MIN)], Restart,
            "number of flows", "\"1M\"", "The same for IPv6, whose entries are larger.";
        unmatched: fallback, [= "\"drop\""], Applies,
            "`\"drop\"`, an uplink's name or `\"opposite\"`", "\"wan\"",
            "IP packets that are of no service: drop them, or pass them to that uplink. `\"opposite\"`, with two \
             uplinks: to the one that they did not come in by.";
        other: fallback, [= "\"drop\""], Applies,
            "`\"drop\"`, an uplink's name or `\"opposite\"`", "\"opposite\"",
            "Packets that are not IP (ARP, LLDP): drop them, or pass them to that uplink. `\"opposite\"`, with two \
             uplinks: to the one that they did not come in by, so that ARP works in both directions.";
        hugepages: word(Hugepages::WORDS), [= "\"auto\""], Restart,
            "`\"auto\"`, `\"on\"` or `\"off\"`", "\"on\"",
            "Memory of DPDK's buffers, where an uplink is a DPDK device: from hugepages where enough are free, \
             always, or never.";
        dpdk_args: texts, [= "[]"], Restart,
            "list of text", "[\"--log-level=5\"]", "Arguments for DPDK's environment layer, after inco's own.";
        timeouts: timeouts, [keys], Keys,
            "table", "{ udp = \"30s\" }", "See below.";
        openflow: openflow, [keys], Keys,
            "table", "{ rules = 10_000 }", "See below.";
    } => {
        // A driver's own keys are in the table named after it.
        for (other, _) in SwitchDriver::WORDS {
            if *other != driver.name() && section.get(other).is_some() {
                let what = format!("these keys are for the driver {other}, and another one is chosen");
                let write = format!("write driver = \"{other}\" in [switch], or remove them");
                reader.wrong(&section.key(other), Wrong::new(what, write));
            }
        }
        let can = (reader.drivers)(driver);
        let switch = Switch {
            driver, can, workers, poll, flows, flows_ipv6, timeouts, unmatched, other, hugepages, dpdk_args, openflow,
        };
        reader.workers = switch.worker_count();
        switch
    }

    timeouts(reader, section) -> Timeouts = "switch.timeouts":
        "How long a flow may be idle before it ends, at most 18h each."
    {
        // IPVS' default. Longer than the keep-alives of proxies and browsers (45 to 300 s).
        tcp: span(Nanos(1), Timeouts::LIMIT), [= "\"15m\""], Restart,
            "span of time", "\"300s\"", "A TCP flow in use.";
        // Time for three retransmissions of a SYN; short enough to forget a flood soon.
        tcp_handshake: span(Nanos(1), Timeouts::LIMIT), [= "\"10s\""], Restart,
            "span of time", "\"5s\"", "A TCP flow whose handshake is not complete.";
        // A retransmitted FIN (at most 1 s later by default) still finds its pin.
        tcp_linger: span(Nanos(1), Timeouts::LIMIT), [= "\"2s\""], Restart,
            "span of time", "\"500ms\"", "A TCP flow after its end by FIN or RST, for late packets.";
        // The minimum of RFC 4787 (REQ-5) for a NAT.
        udp: span(Nanos(1), Timeouts::LIMIT), [= "\"2m\""], Restart,
            "span of time", "\"30s\"", "UDP.";
        // As for TCP; SCTP heartbeats come every 30 s.
        sctp: span(Nanos(1), Timeouts::LIMIT), [= "\"15m\""], Restart,
            "span of time", "\"300s\"", "SCTP.";
        // The minimum of RFC 5508 (REQ-2) for a NAT.
        icmp: span(Nanos(1), Timeouts::LIMIT), [= "\"60s\""], Restart,
            "span of time", "\"10s\"", "ICMP queries (ping).";
        // GRE and ESP: as for UDP, since tunnels use its keep-alives.
        other: span(Nanos(1), Timeouts::LIMIT), [= "\"2m\""], Restart,
            "span of time", "\"60s\"", "Every other protocol.";
    } => {
        Timeouts { tcp, tcp_handshake, tcp_linger, udp, sctp, icmp, other }
    }

    openflow(reader, section) -> OpenFlow = "switch.openflow":
        "The bridge of Open vSwitch that forwards, where the driver is `openflow`. Its ports are memif links, so \
         Open vSwitch must run with DPDK. How it steers, and what it cannot do: [smartnic](../smartnic.md)."
    {
        bridge: text(bridge), [= "\"br-inco\""], Restart,
            "name, at most 15 bytes", "\"br-nf\"",
            "The bridge: inco makes it when it starts and removes it when it ends.";
        datapath: word(Datapath::WORDS), [= "\"netdev\""], Restart,
            "`\"netdev\"` or `\"system\"`", "\"netdev\"",
            "Where it forwards: in Open vSwitch itself, or in the kernel, which has no memif ports.";
        // The path in Debian's Open vSwitch.
        database: text(ovs_endpoint), [= "\"unix:/run/openvswitch/db.sock\""], Restart,
            "`unix:/PATH`, `tcp:HOST:PORT` or `ssl:HOST:PORT`", "\"unix:/usr/local/var/run/openvswitch/db.sock\"",
            "Where the database of Open vSwitch listens.";
        control: text(ovs_control), [or "`BRIDGE.mgmt` beside the database's socket"], Restart,
            "`unix:/PATH`, `tcp:ADDRESS:PORT` or `ssl:ADDRESS:PORT`", "\"tcp:127.0.0.1:6653\"",
            "Where the bridge listens for OpenFlow. At an address it is made to.";
        tls: path, [or "none"], Restart,
            "directory", "\"/etc/inco/ovs\"",
            "For `ssl:`: where `ca.pem` (the authority of Open vSwitch's certificate), `cert.pem` and `key.pem` \
             (inco's own) are.";
        setup: word(FlowSetup::WORDS), [= "\"proactive\""], Restart,
            "`\"proactive\"` or `\"reactive\"`", "\"reactive\"",
            "How new flows are set up: by rules that are there before any packet, or by sending their first packets \
             to inco, which may reorder or lose packets meanwhile.";
        rules: number(16, RULES_MAX), [= "100000"], Restart,
            "number, 16 to 4,000,000", "10_000",
            "Exact rules, one for each flow and direction, at most. Flows beyond stay on the rule of their bucket.";
        buckets: power_of_two(number(1, BUCKETS_MAX)), [= "64"], Restart,
            "power of two, 1 to 4096", "256",
            "Parts of each service's new flows, by bits of their addresses and ports: a scheduler chooses the \
             instance of each part. More are finer, and each has a rule in the switch.";
        spare_ports: number(0, 1000), [= "2"], Restart,
            "number, 0 to 1000", "4",
            "Each service's ports are made before there is traffic, because its pollers stand still while Open \
             vSwitch makes one: for `max` and `standby` instances, and so many more for those that drain. Without a \
             port that is free there are no more instances.";
    } => {
        let is_tls = |place: &String| place.starts_with("ssl:");
        let needs_keys = is_tls(&database) || control.as_ref().is_some_and(is_tls);
        if needs_keys && tls.is_none() {
            let write = "write tls = \"DIR\", a directory with ca.pem, cert.pem and key.pem";
            reader.wrong(&section.key("tls"), Wrong::new("ssl: needs keys", write));
        }
        if !needs_keys && tls.is_some() {
            let write = "write database = \"ssl:HOST:PORT\", or remove it";
            reader.wrong(&section.key("tls"), Wrong::new("keys are for ssl: alone", write));
        }
        let openflow = OpenFlow { bridge, datapath, database, control, tls, setup, rules, buckets, spare_ports };
        if openflow.control().is_none() {
            let what = "where the bridge listens does not follow from a database on another machine";
            reader.wrong(&section.key("database"), Wrong::new(what, "write control = \"tcp:ADDRESS:6653\""));
        }
        if datapath == Datapath::System {
            let wrong = Wrong::new(
                "the kernel's datapath has no memif ports, and the monitor port is one",
                "write datapath = \"netdev\"",
            );
            reader.wrong(&section.key("datapath"), wrong);
        }
        openflow
    }

    uplink(reader, section) -> Uplink = "uplink[]":
        "Ports towards the network, each under a heading `[[uplink]]` of its own; at least one, at most 8."
    {
        name: text(name), [required], Restart,
            "name", "\"wan\"", "What services, counters and commands call it.";
        device: text(device), [required], Restart,
            "device", "\"memif:wan.sock\"",
            "What it is attached to: a DPDK device (a PCI address or `net_...`), `memif:SOCKET` (a relative path is \
             one in inco's run directory), `veth:INTERFACE` (a network interface of the kernel), or `pcap:FILE` (a \
             capture, received once, as fast as it can be read, when each service of the uplink has its `min` \
             active instances). `pcap:FILE,tx=FILE` writes what leaves by it into a second capture; without, it is \
             discarded. `pcap:FILE,loop` begins again at the end. IPv4 fragments do not pass a `veth:` uplink: the \
             kernel puts them together before DPDK sees them, and what is then longer than `max_frame` is dropped. \
             `net_pcap0,iface=INTERFACE`, slower, is given them as they are.";
        // More queues help only with as many workers.
        queues: number(1, QUEUES_MAX), [= "1"], Restart,
            "number, 1 to 64", "2",
            "Queues in each direction: each is served by a worker of its own. A card with as many queues as there \
             are workers deals packets to the worker that owns their flow, where it can; from any other source some \
             cross between workers.";
        // 1,500 bytes of payload, 14 of Ethernet header, two VLAN tags of 4.
        max_frame: bytes(MAX_FRAME_MIN, MAX_FRAME_MAX), [= "1522"], Restart,
            "bytes, 60 to 16384", "9022",
            "The longest frame, from its first address to the end of its payload. Longer ones are dropped as \
             `too_large`.";
    } => {
        Uplink { name, device, queues, max_frame }
    }

    service(reader, section) -> Service = "service.NAME":
        "Network functions, each under a heading with its name, as `[service.firewall]`; at least one, at most 64."
    {
        matches as "match": matches, [keys "every IP packet of its uplinks"], Keys,
            "table", "{ proto = \"tcp\", dst = \"10.128.0.0/16\", dst_port = \"80-443\" }",
            "Which packets are its. See below.";
        uplinks: uplinks, [or "the first uplink" => vec![UplinkId(0)]], Restart,
            "list of one or two uplink names", "[\"wan\", \"lan\"]",
            "Where its packets come in. What an instance sends on its k-th data port leaves by the k-th uplink.";
        image: image, [or "none; required unless `port = \"null\"`"], Applies,
            "image name", "\"inco/forward\"",
            "What is in a container: an image that `inco image list` shows, or one that Docker has.";
        port: word(PortKind::WORDS), [= "\"memif\""], Restart,
            "`\"memif\"`, `\"device\"` or `\"null\"`", "\"null\"",
            "How an instance is attached: by rings of shared memory; with the driver `openflow` also by a function \
             of a card (`devices`); or as a sink without a container, for benches.";
        command: texts, [= "[]"], Applies,
            "list of text", "[\"/inco-nf\", \"forward\"]", "Program and arguments, instead of the image's own.";
        args: texts, [= "[]"], Applies,
            "list of text", "[\"--cost-ns\", \"100\"]", "Arguments after the command.";
        env: env, [= "{}"], Applies,
            "table, or list of `\"NAME=value\"`", "{ LEVEL = \"info\" }", "Environment of the program.";
        mounts: mounts, [= "[]"], Applies,
            "list of mounts", "[\"/etc/rules:/etc/rules:ro\"]", "What it sees of this machine. See below.";
        devices: devices, [= "[]"], Restart,
            "list of devices", "[{ representor = \"pf0vf0\", pci = \"0000:03:00.2\" }]",
            "For `port = \"device\"`: the functions of a card that its instances get. See below.";
        // Enough for a DPDK program with 128 MiB of buffers; small enough to contain a leak.
        memory_bytes as "memory": bytes(MEMORY_MIN_BYTES, 1 << 50), [= "\"512MiB\""], Applies,
            "size, at least 6MiB", "\"256MiB\"",
            "Memory of one container; beyond it the kernel ends its program. The rings are the switch's, not \
             counted here.";
        // A DPDK program has about five; the limit stops a fork bomb.
        processes: number(1, 65_536), [= "64"], Applies,
            "number, 1 to 65536", "16", "Processes and threads of one container.";
        cpuset: text(cpuset), [or "every CPU"], Applies,
            "CPUs, as `\"0-3,7\"`", "\"4-7\"", "CPUs that its containers may run on.";
        hugepages: boolean, [= "false"], Applies,
            "true or false", "true", "Whether a container sees the machine's hugepages.";
        user_namespace: boolean, [= "true"], Applies,
            "true or false", "false",
            "Whether a container's root is nobody on the host. `false` only for what needs rights that no user \
             namespace gives, as some drivers of cards do. Only for the engine `oci`: Docker does as it is set up.";
        ready: ready, [= "\"connected\""], Applies,
            "`\"connected\"`, `\"consumes\"` or a table", "{ exec = [\"/bin/check\"] }",
            "When an instance counts as ready: its data ports are up, it took a probe packet, or a command in the \
             container succeeds.";
        // A local image starts within 0.2 s. DPDK's EAL takes a few seconds with many hugepages.
        ready_deadline: span(Nanos(1), Nanos::MAX), [= "\"10s\""], Applies,
            "span of time", "\"30s\"",
            "How long that may take from the program's start; then the instance has failed.";
        instances: instances,
            [or "its keys' defaults" => instances_table(reader, section.key("instances"), None, &[])], Applies,
            "table, or a number", "{ min = 3, max = 8, standby = 1, standby_mode = \"warm\" }",
            "How many. See below.";
        cpus: cpus, [or "no limit"], Applies,
            "number of CPUs, at least 0.001", "0.5", "CPU time that one container may use: 0.5 is half a CPU.";
        capacity: capacity, [= "\"learn\""], Applies,
            "packet rate, or `\"learn\"`", "\"10Mpps\"",
            "What one instance can process, for schedulers and autoscalers. `learn` measures it while it works.";
        // The last flow may exceed the share. If it brings a tenth of the capacity, a tenth is left for bursts.
        fit: share, [= "0.8"], Rules,
            "share, above 0 and at most 1", "0.7",
            "Share of the capacity up to which scheduling fills an instance: it takes a new flow while its load is \
             below. The last flow can raise the load above it: write less where single flows are large.";
        // The paper's recommendation, since it leaves whole instances free to be removed.
        scheduler: |at| scheduler(at, scheduler_table), [= "\"best-fit\""], Applies,
            "table, or a policy's name", "{ policy = \"worst-fit\", metric = \"bytes\", limit = \"1Gbps\" }",
            "Which instance a new flow is given to. See below.";
        // Ours.
        autoscaler: |at| autoscaler(at, autoscaler_table), [= "\"ladder\""], Applies,
            "table, or a policy's name", "{ policy = \"ladder\", target = 0.6 }",
            "How many instances are wanted. See below.";
        affinity: word(Affinity::WORDS), [= "\"strict\""], Counts,
            "`\"strict\"` or `\"relaxed\"`", "\"relaxed\"",
            "Whether a flow may be moved while its instance is well. `\"strict\"`: never, so that a drain waits for \
             its flows to end. `\"relaxed\"`, for a function that keeps no state per flow or shares it: a drain \
             moves them to other instances at once. A flow's packets are then held until those before are back, so \
             that none overtakes another: at most 1 ms and 256 packets, after which they go on and the move counts \
             as early. Counts returned packets per flow, as `flow_counters` does. With a function that changes \
             addresses or ports every move is early.";
        symmetric: boolean, [= "true"], Restart,
            "true or false", "false",
            "Whether both directions of a flow go to one instance. Otherwise each is pinned on its own.";
        table_full: word(TableFull::WORDS), [= "\"hash\""], Applies,
            "`\"hash\"` or `\"drop\"`", "\"drop\"",
            "A new flow that finds the flow table full: sent by hash without a pin, or dropped. Both are counted.";
        // Most flows end within this time, and one forgotten connection does not keep an instance alive.
        drain_deadline: span(Nanos(1), Nanos::MAX), [= "\"60s\""], Applies,
            "span of time", "\"5m\"",
            "How long a draining instance may keep flows; those left then are given to others.";
        // A drained function only needs to close files.
        stop_grace: span(Nanos(1), Nanos::MAX), [= "\"2s\""], Applies,
            "span of time", "\"500ms\"",
            "How long a program may take to end by itself (SIGTERM) before it is killed.";
        ring: ring, [keys], Keys,
            "table", "{ slots = 2048 }", "See below.";
        // A function with one thread serves one queue pair.
        queues: number(1, reader.queues_max()), [= "1"], Applies,
            "number, 1 to the number of workers", "1",
            "Queue pairs of each data port. With fewer than workers, an instance has home workers that serve them.";
        flow_counters: boolean, [= "false"], Counts,
            "true or false", "true",
            "Whether returned packets are counted per flow, too: one more look into the flow table for each.";
    } => {
        if port.has_container() {
            reader.required(section, "image");
        }
        let (scheduler, limit) = scheduler;
        let name = section.path.trim_start_matches("service.").to_owned();
        Service {
            name, matches, uplinks, image, port, devices, command, args, env, mounts, memory_bytes, processes, cpuset,
            hugepages, user_namespace, ready, ready_deadline, instances, cpus, capacity, fit, scheduler, limit, autoscaler, affinity,
            symmetric, table_full, drain_deadline, stop_grace, ring, queues, flow_counters,
        }
    }

    matches(reader, section) -> Match = "service.NAME.match":
        "Which packets are the service's. All that is written must hold; without any, every IP packet of the \
         service's uplinks is meant. A symmetric service also takes the packets of the opposite direction. Where a \
         packet is of two services, the narrower match wins: one whose every packet is also of the other. Two \
         matches that overlap without that are refused; where only opposite directions overlap, the first in the \
         file wins."
    {
        protocol as "proto": protocol_number, [or "any"], Rules,
            "`tcp`, `udp`, `sctp`, `icmp`, `icmpv6`, or a number", "\"tcp\"", "The IP protocol.";
        src: text(prefix), [or "any"], Rules,
            "address or prefix", "\"192.0.2.0/24\"", "Source addresses, IPv4 or IPv6.";
        dst: text(prefix), [or "any"], Rules,
            "address or prefix", "\"2001:db8::/32\"", "Destination addresses, IPv4 or IPv6.";
        src_port: port_range, [or "any"], Rules,
            "port, or range of ports", "\"1024-65535\"", "Source ports; needs `proto`.";
        dst_port: port_range, [or "any"], Rules,
            "port, or range of ports", "\"80-443\"", "Destination ports; needs `proto`.";
        vlan: number(0, 4094), [or "any"], Rules,
            "number, 0 to 4094", "42", "The outermost VLAN id; 0 for packets without a tag.";
    } => {
        let matches = Match { protocol, src, dst, src_port, dst_port, vlan };
        check_match(reader, section, &matches);
        matches
    }

    mount_table(reader, section) -> Mount = "service.NAME.mounts[]":
        "Files and directories of this machine in a container, as tables or as text: \
         `\"/etc/rules:/etc/rules:ro\"`."
    {
        source: text(absolute), [required], Applies,
            "absolute path", "\"/etc/rules\"", "On this machine.";
        target: text(absolute), [required], Applies,
            "absolute path", "\"/etc/rules\"", "In the container.";
        read_only: boolean, [= "false"], Applies,
            "true or false", "true", "Whether the container may only read it.";
    } => {
        Mount { source, target, read_only }
    }

    device_table(reader, section) -> Option<InstanceDevice> = "service.NAME.devices[]":
        "For `port = \"device\"`: the functions of a card, or other network interfaces, of which each instance gets \
         one per uplink: the first instance the first ones, and so on. What a container gets, and the commands that \
         make functions: [smartnic](../smartnic.md)."
    {
        representor: text(representor), [required], Restart,
            "interface, or device of DPDK", "\"pf0vf0\"",
            "The end that the bridge gets: a network interface of the machine of Open vSwitch, or a device of DPDK \
             there, as `0000:03:00.0,representor=vf0`.";
        pci: text(pci), [or "one of `pci`, `sf`, `interface`"], Restart,
            "PCI address", "\"0000:03:00.2\"",
            "The instance's end, a virtual function. Where `vfio-pci` has it, the container gets its device files \
             and `INCO_PCI`; else its network interface and `INCO_INTERFACES`.";
        sf: number(0, u64::from(u32::MAX)), [or "one of `pci`, `sf`, `interface`"], Restart,
            "number", "1", "The instance's end, a scalable function: the container gets its network interface.";
        interface: text(interface), [or "one of `pci`, `sf`, `interface`"], Restart,
            "name of an interface", "\"enp3s0f0v0\"",
            "The instance's end by the name of its network interface: a function's, or an end of a veth pair.";
        mac: text(mac), [or "any"], Restart,
            "Ethernet address", "\"02:00:00:00:00:11\"",
            "The address that the function must have: another one is a mistake in the file or on the card.";
        vfio: text(absolute), [or "what this machine says"], Restart,
            "path", "\"/dev/vfio/42\"",
            "The device file of the function's group on the engine's machine: needed where that is another one.";
    } => {
        let written = ["pci", "sf", "interface"].iter().filter(|key| section.get(key).is_some()).count();
        if written != 1 {
            let what = format!("{written} of pci, sf and interface say what the instance gets");
            let write = "write one of them: pci = \"0000:03:00.2\", sf = 1 or interface = \"enp3s0f0v0\"";
            reader.wrong(&section.path, Wrong::new(what, write));
        }
        let pci = pci.map(|address| NetFunction::Pci { address, vfio });
        let function = pci.or(sf.map(NetFunction::Sf)).or(interface.map(NetFunction::Interface))?;
        (!representor.is_empty()).then_some(InstanceDevice { representor, function, mac })
    }

    ready_table(reader, section) -> Ready = "service.NAME.ready":
        "A command as the condition for being ready."
    {
        exec: program, [required], Applies,
            "list of text", "[\"/bin/check\"]", "The command; ready when it exits with 0.";
    } => {
        Ready::Exec(exec)
    }

    instances_table(reader, section) -> Instances = "service.NAME.instances":
        "How many containers. A bare number is that many, always: `instances = 3`."
    {
        // With zero, the first packets of a service would wait for a container to start.
        min: number(1, INSTANCE_LIMIT), [= "1"], Applies,
            "number, 1 to 1024", "3", "Active instances at least.";
        // The maximum in the paper's experiment.
        max: number(1, INSTANCE_LIMIT), [or "8, or `min` where that is more" => 8.max(min)], Applies,
            "number, at least `min`", "8", "Active instances at most.";
        // With one, the first scale-out takes microseconds instead of a container's start.
        standby: number(0, INSTANCE_LIMIT), [or "1; 0 where `instances` is a number" => 1], Applies,
            "number, at most `max`", "2", "Instances that are kept ready beside the active ones.";
        standby_mode: word(StandbyMode::WORDS), [= "\"warm\""], Applies,
            "`\"warm\"` or `\"paused\"`", "\"paused\"",
            "How they wait: running (activating one costs microseconds), or frozen (no CPU; it costs a resume).";
    } => {
        let most = |what: u32| format!("{what} is more than max ({max})");
        if min > max {
            let wrong = Wrong::new(most(min), format!("write a min of at most {max}"));
            reader.wrong(&section.key("min"), wrong);
        } else if standby > max {
            let wrong = Wrong::new(most(standby), format!("write a standby of at most {max}"));
            reader.wrong(&section.key("standby"), wrong);
        }
        Instances { min, max, standby, standby_mode }
    }

    scheduler_table(reader, section) -> (Scheduler, Option<f64>) = "service.NAME.scheduler":
        "The scheduler, what it counts, and its parameters. A bare name is that policy with its defaults. What each \
         does, and when to use it: [policies](../policies.md)."
    {
        policy: text(known_scheduler), [= "\"best-fit\""], Applies,
            "scheduler", "\"worst-fit\"", "The policy.";
        metric: word(Metric::WORDS), [= "\"packets\""], Applies,
            "`\"packets\"`, `\"bytes\"`, `\"flows\"` or `\"busy\"`", "\"busy\"",
            "What loads are counted in: packets or bytes per second, flows, or the share of time in which a \
             function is busy (where it does not tell, its packets ÷ `capacity`).";
        limit: limit_in(metric),
            [or "`capacity` for packets, 1 for `busy`; must be written for the others"], Applies,
            "bit rate for `bytes`, number for `flows`, share for `busy`", "\"10Gbps\"",
            "What one instance takes in that metric.";
        slow_start: span(Nanos::ZERO, SLOW_START_MAX), [= "\"1s\""], Applies,
            "span of time, at most 1h", "\"5s\"",
            "The time in which a fresh instance is brought up to its full share of new flows; `0s` for none.";
        spill: boolean, [= "true"], Applies,
            "true or false", "false",
            "Whether a flow that does not fit (`fit`) where the policy would have it goes to the next instance that \
             it fits.";
    } => {
        match metric {
            Metric::Bytes => reader.required(section, "limit"),
            Metric::Flows => reader.missing(section, "limit", || Wrong::new("this key is missing", "write limit = 1000")),
            Metric::Packets | Metric::Busy => {}
        }
        let settings = Settings { metric, slow_start, spill };
        let make = |own| Scheduler::with_parameters(policy, settings, own);
        let scheduler = with_parameters(reader, section, policy, Scheduler::parameters_of(policy), make);
        (scheduler.unwrap_or_default(), limit.or((metric == Metric::Busy).then_some(1.0)))
    }

    autoscaler_table(reader, section) -> Autoscaler = "service.NAME.autoscaler":
        "The autoscaler and its parameters. A bare name is that policy with its defaults."
    {
        policy: text(known_autoscaler), [= "\"ladder\""], Applies,
            "autoscaler", "\"smartinco\"", "The policy.";
    } => {
        let make = |own| Autoscaler::with_parameters(policy, own);
        let autoscaler = with_parameters(reader, section, policy, Autoscaler::parameters_of(policy), make);
        autoscaler.unwrap_or_default()
    }

    ring(reader, section) -> Ring = "service.NAME.ring":
        "The rings of shared memory between the switch and an instance, one in each direction for every queue."
    {
        // 1 ms at 1 Mpps. 256 ports with 4096 descriptors would need 4 GiB.
        slots: power_of_two(number(RING_SLOTS_MIN, RING_SLOTS_MAX)), [= "1024"], Applies,
            "power of two, 64 to 16384", "2048",
            "Descriptors. Slots ÷ packet rate is the longest pause of the function that loses nothing.";
        // One frame of 1,522 bytes; also the default of DPDK's memif driver.
        buffer_bytes: bytes(BUFFER_BYTES_MIN, BUFFER_BYTES_MAX), [= "2048"], Applies,
            "bytes, 128 to 16384", "4096", "One buffer. Longer frames use several.";
    } => {
        Ring { slots, buffer_bytes }
    }

    engine(reader, section) -> Engine = "engine":
        "What runs containers."
    {
        driver: word(EngineDriver::WORDS), [= "\"oci\""], Restart,
            "`\"oci\"` or `\"docker\"`", "\"docker\"",
            "`oci` is embedded and needs no daemon; `docker` speaks to Docker or Podman.";
        host: text(host), [= "\"unix:///run/docker.sock\""], Restart,
            "`unix:///...` or `tcp://HOST:PORT`", "\"tcp://192.0.2.7:2376\"",
            "Where Docker or Podman answers. Ports of shared memory need an engine on this machine.";
        tls: path, [or "none"], Restart,
            "directory", "\"/etc/inco/tls\"",
            "For a remote engine: where `ca.pem`, `cert.pem` and `key.pem` are, as for Docker's own command.";
    } => {
        if driver == EngineDriver::Oci {
            for key in ["host", "tls"].into_iter().filter(|key| section.get(key).is_some()) {
                let what = "the oci engine is embedded and has no such key";
                reader.wrong(&section.key(key), Wrong::new(what, "remove it, or write driver = \"docker\""));
            }
        }
        Engine { driver, host, tls }
    }

    api(reader, section) -> Api = "api":
        "How inco is asked: always over a unix socket (mode 0660), and over the network where `listen` is written: \
         by TLS, and with a token in each request."
    {
        socket: text(socket_path), [or "`api.sock` in the run directory: `$INCO_RUN_DIR`, or `/run/inco`"], Restart,
            "path", "\"/run/inco/api.sock\"", "The unix socket that `inco status` and the others ask.";
        listen: text(listen), [or "no network"], Restart,
            "address and port", "\"0.0.0.0:8443\"",
            "Where the API and its page are to be had over TLS. Needs `certificate`, `key` and `tokens`.";
        certificate: path, [or "none"], Restart,
            "path", "\"/etc/inco/api.pem\"", "The certificate and those that it rests on, as PEM.";
        key: path, [or "none"], Restart,
            "path", "\"/etc/inco/api.key\"", "The certificate's private key, as PEM.";
        tokens: path, [or "none"], Restart,
            "path", "\"/etc/inco/tokens\"",
            "Who may ask: on each line a role (`read` or `admin`), a name for the event log, and a token of at \
             least 32 characters (`openssl rand -hex 32`). Others than owner and group may not read the file.";
    } => {
        let needed = ["certificate", "key", "tokens"];
        if section.get("listen").is_some() {
            needed.into_iter().for_each(|key| reader.required(section, key));
        } else if let Some(key) = needed.into_iter().find(|key| section.get(key).is_some()) {
            let write = "write listen = \"0.0.0.0:8443\", or take this away";
            reader.wrong(&section.key(key), Wrong::new("nothing listens over the network", write));
        }
        let files = certificate.zip(key).zip(tokens);
        let tcp = listen.zip(files).map(|(listen, ((certificate, key), tokens))| ApiTcp {
            listen, certificate, key, tokens,
        });
        Api { socket, tcp }
    }

    event_log(reader, section) -> EventLog = "event_log":
        "The files of events: JSON, one event on each line. `events.jsonl` is written, `events.jsonl.1` is the one \
         before it."
    {
        directory: path, [or "`events` in the run directory: `$INCO_RUN_DIR`, or `/run/inco`"], Restart,
            "path", "\"/var/log/inco\"",
            "Where the files are. The run directory is usually memory, and gone after a restart of the machine.";
        // About ten thousand events.
        file_bytes as "file_size": bytes(64 << 10, 1 << 30), [= "\"8MiB\""], Restart,
            "size", "\"64MiB\"", "Of one file, 64KiB to 1GiB; the next event then begins another one.";
        // The files may be in memory.
        files: number(1, 1000), [= "4"], Restart,
            "number", "10", "Files that are kept, the one that is written included, 1 to 1000.";
    } => {
        EventLog { directory, file_bytes, files }
    }
}
