//! The one table of keys: it refuses unknown ones, and the reference is generated from it.

/// What holds where a key is not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyDefault {
    /// It must be written.
    Required,
    /// As if this TOML value had been written.
    Value(&'static str),
    /// Something that is no value, in words.
    Words(&'static str),
}

/// A key of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// Its table: `switch`, `uplink[]`, `service.NAME`, `service.NAME.match`.
    pub table: &'static str,
    /// Its name in that table.
    pub name: &'static str,
    /// What may be written, in words.
    pub kind: &'static str,
    /// An example of it, as TOML.
    pub example: &'static str,
    /// What holds where it is not written.
    pub default: KeyDefault,
    /// What it does.
    pub meaning: &'static str,
}

use KeyDefault::{Required, Value, Words};

const fn key(
    table: &'static str,
    name: &'static str,
    kind: &'static str,
    example: &'static str,
    default: KeyDefault,
    meaning: &'static str,
) -> Key {
    Key {
        table,
        name,
        kind,
        example,
        default,
        meaning,
    }
}

const TOP: &str = "";
const SWITCH: &str = "switch";
const TIMEOUTS: &str = "switch.timeouts";
const OPENFLOW: &str = "switch.openflow";
const UPLINK: &str = "uplink[]";
const SERVICE: &str = "service.NAME";
const MATCH: &str = "service.NAME.match";
const MOUNT: &str = "service.NAME.mounts[]";
const DEVICE: &str = "service.NAME.devices[]";
const READY: &str = "service.NAME.ready";
const INSTANCES: &str = "service.NAME.instances";
pub(crate) const SCHEDULER: &str = "service.NAME.scheduler";
const AUTOSCALER: &str = "service.NAME.autoscaler";
const RING: &str = "service.NAME.ring";
const ENGINE: &str = "engine";
const API: &str = "api";
const EVENT_LOG: &str = "event_log";

/// Tables of the configuration, in the order of the reference, each with what it is.
pub const TABLES: &[(&str, &str)] = &[
    (SWITCH, "What forwards packets."),
    (
        TIMEOUTS,
        "How long a flow may be idle before it ends, at most 18h each.",
    ),
    (
        OPENFLOW,
        "The bridge of Open vSwitch that forwards, where the driver is `openflow`. Its ports are memif links, so Open vSwitch \
         must run with DPDK. How it steers, and what it cannot do: [smartnic](../smartnic.md).",
    ),
    (
        UPLINK,
        "Ports towards the network, each under a heading `[[uplink]]` of its own; at least one, at most 8.",
    ),
    (
        SERVICE,
        "Network functions, each under a heading with its name, as `[service.firewall]`; at least one, at most 64.",
    ),
    (
        MATCH,
        "Which packets are the service's. All that is written must hold; without any, every IP packet of the \
         service's uplinks is meant. A symmetric service also takes the packets of the opposite direction. Where a \
         packet is of two services, the narrower match wins: one whose every packet is also of the other. Two \
         matches that overlap without that are refused; where only opposite directions overlap, the first in the file \
         wins.",
    ),
    (
        MOUNT,
        "Files and directories of this machine in a container, as tables or as text: `\"/etc/rules:/etc/rules:ro\"`.",
    ),
    (
        DEVICE,
        "For `port = \"device\"`: the functions of a card, or other network interfaces, of which each instance gets one per uplink: \
         the first instance the first ones, and so on. What a container gets, and the commands that make functions: \
         [smartnic](../smartnic.md).",
    ),
    (READY, "A command as the condition for being ready."),
    (
        INSTANCES,
        "How many containers. A bare number is that many, always: `instances = 3`.",
    ),
    (
        SCHEDULER,
        "The scheduler, what it counts, and its parameters. A bare name is that policy with its defaults. What each does, \
         and when to use it: [policies](../policies.md).",
    ),
    (
        AUTOSCALER,
        "The autoscaler and its parameters. A bare name is that policy with its defaults.",
    ),
    (
        RING,
        "The rings of shared memory between the switch and an instance, one in each direction for every queue.",
    ),
    (ENGINE, "What runs containers."),
    (
        API,
        "How inco is asked: always over a unix socket (mode 0660), and over the network where `listen` is written: by TLS, and \
         with a token in each request.",
    ),
    (
        EVENT_LOG,
        "The files of events: JSON, one event on each line. `events.jsonl` is written, `events.jsonl.1` is the one before it.",
    ),
];

/// Every key.
pub const KEYS: &[Key] = &[
    key(
        TOP,
        "switch",
        "table",
        "",
        Words("its keys' defaults"),
        "See `[switch]`.",
    ),
    key(TOP, "uplink", "tables", "", Required, "See `[[uplink]]`."),
    key(TOP, "service", "tables", "", Required, "See `[service.NAME]`."),
    key(
        TOP,
        "engine",
        "table",
        "",
        Words("its keys' defaults"),
        "See `[engine]`.",
    ),
    key(
        TOP,
        "api",
        "table",
        "",
        Words("its keys' defaults"),
        "See `[api]`.",
    ),
    key(
        TOP,
        "event_log",
        "table",
        "",
        Words("its keys' defaults"),
        "See `[event_log]`.",
    ),
    key(
        SWITCH,
        "driver",
        "`\"soft\"` or `\"openflow\"`",
        "\"soft\"",
        Value("\"soft\""),
        "What forwards: `soft` is inco's own switch, `openflow` a bridge of Open vSwitch: see `[switch.openflow]`, and \
         [smartnic](../smartnic.md).",
    ),
    key(
        SWITCH,
        "workers",
        "list of CPU numbers",
        "[2, 3]",
        Words("one worker, on whichever CPU is free"),
        "One worker on each of these CPUs. Best are CPUs that the kernel keeps free of other work (`isolcpus`).",
    ),
    key(
        SWITCH,
        "poll",
        "`\"adaptive\"` or `\"busy\"`",
        "\"busy\"",
        Value("\"adaptive\""),
        "What a worker does when no packet comes: sleep a little, or go on asking, which uses its whole CPU.",
    ),
    key(
        SWITCH,
        "flows",
        "number of flows",
        "\"4M\"",
        Value("1048576"),
        "IPv4 flows that each worker's table holds. What happens beyond is each service's `table_full`.",
    ),
    key(
        SWITCH,
        "flows_ipv6",
        "number of flows",
        "\"1M\"",
        Words("a quarter of `flows`"),
        "The same for IPv6, whose entries are larger.",
    ),
    key(
        SWITCH,
        "unmatched",
        "`\"drop\"` or an uplink's name",
        "\"wan\"",
        Value("\"drop\""),
        "IP packets that are of no service: drop them, or pass them to that uplink.",
    ),
    key(
        SWITCH,
        "other",
        "`\"drop\"` or an uplink's name",
        "\"wan\"",
        Value("\"drop\""),
        "Packets that are not IP (ARP, LLDP): drop them, or pass them to that uplink.",
    ),
    key(
        SWITCH,
        "hugepages",
        "`\"auto\"`, `\"on\"` or `\"off\"`",
        "\"on\"",
        Value("\"auto\""),
        "Memory of DPDK's buffers, where an uplink is a DPDK device: from hugepages where enough are free, always, or never.",
    ),
    key(
        SWITCH,
        "dpdk_args",
        "list of text",
        "[\"--log-level=5\"]",
        Value("[]"),
        "Arguments for DPDK's environment layer, after inco's own.",
    ),
    key(
        SWITCH,
        "timeouts",
        "table",
        "{ udp = \"30s\" }",
        Words("its keys' defaults"),
        "See below.",
    ),
    key(
        SWITCH,
        "openflow",
        "table",
        "{ rules = 10_000 }",
        Words("its keys' defaults"),
        "See below.",
    ),
    key(
        OPENFLOW,
        "bridge",
        "name, at most 15 bytes",
        "\"br-nf\"",
        Value("\"br-inco\""),
        "The bridge: inco makes it when it starts and removes it when it ends.",
    ),
    key(
        OPENFLOW,
        "datapath",
        "`\"netdev\"` or `\"system\"`",
        "\"netdev\"",
        Value("\"netdev\""),
        "Where it forwards: in Open vSwitch itself, or in the kernel, which has no memif ports.",
    ),
    key(
        OPENFLOW,
        "database",
        "`unix:/PATH`, `tcp:HOST:PORT` or `ssl:HOST:PORT`",
        "\"unix:/usr/local/var/run/openvswitch/db.sock\"",
        Value("\"unix:/run/openvswitch/db.sock\""),
        "Where the database of Open vSwitch listens.",
    ),
    key(
        OPENFLOW,
        "control",
        "`unix:/PATH`, `tcp:ADDRESS:PORT` or `ssl:ADDRESS:PORT`",
        "\"tcp:127.0.0.1:6653\"",
        Words("`BRIDGE.mgmt` beside the database's socket"),
        "Where the bridge listens for OpenFlow. At an address it is made to.",
    ),
    key(
        OPENFLOW,
        "tls",
        "directory",
        "\"/etc/inco/ovs\"",
        Words("none"),
        "For `ssl:`: where `ca.pem` (the authority of Open vSwitch's certificate), `cert.pem` and `key.pem` (inco's own) are.",
    ),
    key(
        OPENFLOW,
        "setup",
        "`\"proactive\"` or `\"reactive\"`",
        "\"reactive\"",
        Value("\"proactive\""),
        "How new flows are set up: by rules that are there before any packet, or by sending their first packets to inco, which \
         may reorder or lose packets meanwhile.",
    ),
    key(
        OPENFLOW,
        "rules",
        "number, 16 to 4,000,000",
        "10_000",
        Value("100000"),
        "Exact rules, one for each flow and direction, at most. Flows beyond stay on the rule of their bucket.",
    ),
    key(
        OPENFLOW,
        "buckets",
        "power of two, 1 to 4096",
        "256",
        Value("64"),
        "Parts of each service's new flows, by bits of their addresses and ports: a scheduler chooses the instance of each part. More \
         are finer, and each has a rule in the switch.",
    ),
    key(
        OPENFLOW,
        "spare_ports",
        "number, 0 to 1000",
        "4",
        Value("2"),
        "Each service's ports are made before there is traffic, because its pollers stand still while Open vSwitch makes one: for \
         `max` and `standby` instances, and so many more for those that drain. Without a port that is free there are no more \
         instances.",
    ),
    key(
        TIMEOUTS,
        "tcp",
        "span of time",
        "\"300s\"",
        Value("\"15m\""),
        "A TCP flow in use.",
    ),
    key(
        TIMEOUTS,
        "tcp_handshake",
        "span of time",
        "\"5s\"",
        Value("\"10s\""),
        "A TCP flow whose handshake is not complete.",
    ),
    key(
        TIMEOUTS,
        "tcp_linger",
        "span of time",
        "\"500ms\"",
        Value("\"2s\""),
        "A TCP flow after its end by FIN or RST, for late packets.",
    ),
    key(
        TIMEOUTS,
        "udp",
        "span of time",
        "\"30s\"",
        Value("\"2m\""),
        "UDP.",
    ),
    key(
        TIMEOUTS,
        "sctp",
        "span of time",
        "\"300s\"",
        Value("\"15m\""),
        "SCTP.",
    ),
    key(
        TIMEOUTS,
        "icmp",
        "span of time",
        "\"10s\"",
        Value("\"60s\""),
        "ICMP queries (ping).",
    ),
    key(
        TIMEOUTS,
        "other",
        "span of time",
        "\"60s\"",
        Value("\"2m\""),
        "Every other protocol.",
    ),
    key(
        UPLINK,
        "name",
        "name",
        "\"wan\"",
        Required,
        "What services, counters and commands call it.",
    ),
    key(
        UPLINK,
        "device",
        "device",
        "\"0000:03:00.0\"",
        Required,
        "What it is attached to: a DPDK device (a PCI address or `net_...`), `memif:SOCKET` (a relative path is one in \
         inco's run directory), `veth:INTERFACE` (a network interface of the kernel), or `pcap:FILE` (a capture, \
         received once, as fast as it can be read, when each service of the uplink has its `min` active instances). \
         `pcap:FILE,tx=FILE` writes what leaves by it into a second capture; without, it is discarded. \
         `pcap:FILE,loop` begins again at the end. IPv4 fragments do not pass a `veth:` uplink: the kernel puts them together \
         before DPDK sees them, and what is then longer than `max_frame` is dropped. `net_pcap0,iface=INTERFACE`, slower, is \
         given them as they are.",
    ),
    key(
        UPLINK,
        "queues",
        "number, 1 to 64",
        "2",
        Value("1"),
        "Queues in each direction: each is served by a worker of its own. A card with as many queues as there are workers deals packets \
         to the worker that owns their flow, where it can; from any other source some cross between workers.",
    ),
    key(
        UPLINK,
        "max_frame",
        "bytes, 60 to 16384",
        "9022",
        Value("1522"),
        "The longest frame, from its first address to the end of its payload. Longer ones are dropped as `too_large`.",
    ),
    key(
        SERVICE,
        "match",
        "table",
        "{ proto = \"tcp\", dst = \"10.128.0.0/16\", dst_port = \"80-443\" }",
        Words("every IP packet of its uplinks"),
        "Which packets are its. See below.",
    ),
    key(
        SERVICE,
        "uplinks",
        "list of one or two uplink names",
        "[\"wan\", \"lan\"]",
        Words("the first uplink"),
        "Where its packets come in. What an instance sends on its k-th data port leaves by the k-th uplink.",
    ),
    key(
        SERVICE,
        "image",
        "image name",
        "\"inco/forward\"",
        Words("none; required unless `port = \"null\"`"),
        "What is in a container: an image that `inco image list` shows, or one that Docker has.",
    ),
    key(
        SERVICE,
        "port",
        "`\"memif\"`, `\"device\"` or `\"null\"`",
        "\"null\"",
        Value("\"memif\""),
        "How an instance is attached: by rings of shared memory; with the driver `openflow` also by a function of a card (`devices`); \
         or as a sink without a container, for benches.",
    ),
    key(
        SERVICE,
        "command",
        "list of text",
        "[\"/inco-nf\", \"forward\"]",
        Value("[]"),
        "Program and arguments, instead of the image's own.",
    ),
    key(
        SERVICE,
        "args",
        "list of text",
        "[\"--cost-ns\", \"100\"]",
        Value("[]"),
        "Arguments after the command.",
    ),
    key(
        SERVICE,
        "env",
        "table, or list of `\"NAME=value\"`",
        "{ LEVEL = \"info\" }",
        Value("{}"),
        "Environment of the program.",
    ),
    key(
        SERVICE,
        "mounts",
        "list of mounts",
        "[\"/etc/rules:/etc/rules:ro\"]",
        Value("[]"),
        "What it sees of this machine. See below.",
    ),
    key(
        SERVICE,
        "devices",
        "list of devices",
        "[{ representor = \"pf0vf0\", pci = \"0000:03:00.2\" }]",
        Value("[]"),
        "For `port = \"device\"`: the functions of a card that its instances get. See below.",
    ),
    key(
        SERVICE,
        "memory",
        "size, at least 6MiB",
        "\"256MiB\"",
        Value("\"512MiB\""),
        "Memory of one container; beyond it the kernel ends its program. The rings are the switch's, not counted here.",
    ),
    key(
        SERVICE,
        "processes",
        "number, 1 to 65536",
        "16",
        Value("64"),
        "Processes and threads of one container.",
    ),
    key(
        SERVICE,
        "cpuset",
        "CPUs, as `\"0-3,7\"`",
        "\"4-7\"",
        Words("every CPU"),
        "CPUs that its containers may run on.",
    ),
    key(
        SERVICE,
        "hugepages",
        "true or false",
        "true",
        Value("false"),
        "Whether a container sees the machine's hugepages.",
    ),
    key(
        SERVICE,
        "ready",
        "`\"connected\"`, `\"consumes\"` or a table",
        "{ exec = [\"/bin/check\"] }",
        Value("\"connected\""),
        "When an instance counts as ready: its data ports are up, it took a probe packet, or a command in the \
         container succeeds.",
    ),
    key(
        SERVICE,
        "ready_deadline",
        "span of time",
        "\"30s\"",
        Value("\"10s\""),
        "How long that may take from the program's start; then the instance has failed.",
    ),
    key(
        SERVICE,
        "instances",
        "table, or a number",
        "{ min = 3, max = 8, standby = 1, standby_mode = \"warm\" }",
        Words("its keys' defaults"),
        "How many. See below.",
    ),
    key(
        SERVICE,
        "cpus",
        "number of CPUs, at least 0.001",
        "0.5",
        Words("no limit"),
        "CPU time that one container may use: 0.5 is half a CPU.",
    ),
    key(
        SERVICE,
        "capacity",
        "packet rate, or `\"learn\"`",
        "\"10Mpps\"",
        Value("\"learn\""),
        "What one instance can process, for schedulers and autoscalers. `learn` measures it while it works.",
    ),
    key(
        SERVICE,
        "fit",
        "share, above 0 and at most 1",
        "0.8",
        Value("0.9"),
        "Share of the capacity that scheduling may use: an instance takes a new flow while its load is below.",
    ),
    key(
        SERVICE,
        "scheduler",
        "table, or a policy's name",
        "{ policy = \"worst-fit\", metric = \"bytes\", limit = \"1Gbps\" }",
        Value("\"best-fit\""),
        "Which instance a new flow is given to. See below.",
    ),
    key(
        SERVICE,
        "autoscaler",
        "table, or a policy's name",
        "{ policy = \"ladder\", target = 0.6 }",
        Value("\"ladder\""),
        "How many instances are wanted. See below.",
    ),
    key(
        SERVICE,
        "affinity",
        "`\"strict\"` or `\"relaxed\"`",
        "\"relaxed\"",
        Value("\"strict\""),
        "Whether a flow may be moved while its instance is well. `\"strict\"`: never, so that a drain waits for its flows \
         to end. `\"relaxed\"`, for a function that keeps no state per flow or shares it: a drain moves them to other \
         instances at once. A flow's packets are then held until those before are back, so that none overtakes another: at \
         most 1 ms and 256 packets, after which they go on and the move counts as early. Counts returned packets per \
         flow, as `flow_counters` does. With a function that changes addresses or ports every move is early.",
    ),
    key(
        SERVICE,
        "symmetric",
        "true or false",
        "false",
        Value("true"),
        "Whether both directions of a flow go to one instance. Otherwise each is pinned on its own.",
    ),
    key(
        SERVICE,
        "table_full",
        "`\"hash\"` or `\"drop\"`",
        "\"drop\"",
        Value("\"hash\""),
        "A new flow that finds the flow table full: sent by hash without a pin, or dropped. Both are counted.",
    ),
    key(
        SERVICE,
        "drain_deadline",
        "span of time",
        "\"5m\"",
        Value("\"60s\""),
        "How long a draining instance may keep flows; those left then are given to others.",
    ),
    key(
        SERVICE,
        "stop_grace",
        "span of time",
        "\"500ms\"",
        Value("\"2s\""),
        "How long a program may take to end by itself (SIGTERM) before it is killed.",
    ),
    key(
        SERVICE,
        "ring",
        "table",
        "{ slots = 2048 }",
        Words("its keys' defaults"),
        "See below.",
    ),
    key(
        SERVICE,
        "queues",
        "number, 1 to the number of workers",
        "1",
        Value("1"),
        "Queue pairs of each data port. With fewer than workers, an instance has home workers that serve them.",
    ),
    key(
        SERVICE,
        "flow_counters",
        "true or false",
        "true",
        Value("false"),
        "Whether returned packets are counted per flow, too: one more look into the flow table for each.",
    ),
    key(
        MATCH,
        "proto",
        "`tcp`, `udp`, `sctp`, `icmp`, `icmpv6`, or a number",
        "\"tcp\"",
        Words("any"),
        "The IP protocol.",
    ),
    key(
        MATCH,
        "src",
        "address or prefix",
        "\"192.0.2.0/24\"",
        Words("any"),
        "Source addresses, IPv4 or IPv6.",
    ),
    key(
        MATCH,
        "dst",
        "address or prefix",
        "\"2001:db8::/32\"",
        Words("any"),
        "Destination addresses, IPv4 or IPv6.",
    ),
    key(
        MATCH,
        "src_port",
        "port, or range of ports",
        "\"1024-65535\"",
        Words("any"),
        "Source ports; needs `proto`.",
    ),
    key(
        MATCH,
        "dst_port",
        "port, or range of ports",
        "\"80-443\"",
        Words("any"),
        "Destination ports; needs `proto`.",
    ),
    key(
        MATCH,
        "vlan",
        "number, 0 to 4094",
        "42",
        Words("any"),
        "The outermost VLAN id; 0 for packets without a tag.",
    ),
    key(
        MOUNT,
        "source",
        "absolute path",
        "\"/etc/rules\"",
        Required,
        "On this machine.",
    ),
    key(
        MOUNT,
        "target",
        "absolute path",
        "\"/etc/rules\"",
        Required,
        "In the container.",
    ),
    key(
        MOUNT,
        "read_only",
        "true or false",
        "true",
        Value("false"),
        "Whether the container may only read it.",
    ),
    key(
        DEVICE,
        "representor",
        "interface, or device of DPDK",
        "\"pf0vf0\"",
        Required,
        "The end that the bridge gets: a network interface of the machine of Open vSwitch, or a device of DPDK there, as \
         `0000:03:00.0,representor=vf0`.",
    ),
    key(
        DEVICE,
        "pci",
        "PCI address",
        "\"0000:03:00.2\"",
        Words("one of `pci`, `sf`, `interface`"),
        "The instance's end, a virtual function. Where `vfio-pci` has it, the container gets its device files and `INCO_PCI`; else its \
         network interface and `INCO_INTERFACES`.",
    ),
    key(
        DEVICE,
        "sf",
        "number",
        "1",
        Words("one of `pci`, `sf`, `interface`"),
        "The instance's end, a scalable function: the container gets its network interface.",
    ),
    key(
        DEVICE,
        "interface",
        "name of an interface",
        "\"enp3s0f0v0\"",
        Words("one of `pci`, `sf`, `interface`"),
        "The instance's end by the name of its network interface: a function's, or an end of a veth pair.",
    ),
    key(
        DEVICE,
        "mac",
        "Ethernet address",
        "\"02:00:00:00:00:11\"",
        Words("any"),
        "The address that the function must have: another one is a mistake in the file or on the card.",
    ),
    key(
        DEVICE,
        "vfio",
        "path",
        "\"/dev/vfio/42\"",
        Words("what this machine says"),
        "The device file of the function's group on the engine's machine: needed where that is another one.",
    ),
    key(
        READY,
        "exec",
        "list of text",
        "[\"/bin/check\"]",
        Required,
        "The command; ready when it exits with 0.",
    ),
    key(
        INSTANCES,
        "min",
        "number, 1 to 1024",
        "3",
        Value("1"),
        "Active instances at least.",
    ),
    key(
        INSTANCES,
        "max",
        "number, at least `min`",
        "8",
        Words("8, or `min` where that is more"),
        "Active instances at most.",
    ),
    key(
        INSTANCES,
        "standby",
        "number, at most `max`",
        "2",
        Words("1; 0 where `instances` is a number"),
        "Instances that are kept ready beside the active ones.",
    ),
    key(
        INSTANCES,
        "standby_mode",
        "`\"warm\"` or `\"paused\"`",
        "\"paused\"",
        Value("\"warm\""),
        "How they wait: running (activating one costs microseconds), or frozen (no CPU; it costs a resume).",
    ),
    key(
        SCHEDULER,
        "policy",
        "scheduler",
        "\"worst-fit\"",
        Value("\"best-fit\""),
        "The policy.",
    ),
    key(
        SCHEDULER,
        "metric",
        "`\"packets\"`, `\"bytes\"`, `\"flows\"` or `\"busy\"`",
        "\"busy\"",
        Value("\"packets\""),
        "What loads are counted in: packets or bytes per second, flows, or the share of time in which a function is busy \
         (where it does not tell, its packets ÷ `capacity`).",
    ),
    key(
        SCHEDULER,
        "limit",
        "bit rate for `bytes`, number for `flows`, share for `busy`",
        "\"10Gbps\"",
        Words("`capacity` for packets, 1 for `busy`; must be written for the others"),
        "What one instance takes in that metric.",
    ),
    key(
        SCHEDULER,
        "slow_start",
        "span of time, at most 1h",
        "\"5s\"",
        Value("\"1s\""),
        "The time in which a fresh instance is brought up to its full share of new flows; `0s` for none.",
    ),
    key(
        SCHEDULER,
        "spill",
        "true or false",
        "false",
        Value("true"),
        "Whether a flow that does not fit (`fit`) where the policy would have it goes to the next instance that it fits.",
    ),
    key(
        AUTOSCALER,
        "policy",
        "autoscaler",
        "\"smartinco\"",
        Value("\"ladder\""),
        "The policy.",
    ),
    key(
        RING,
        "slots",
        "power of two, 64 to 16384",
        "2048",
        Value("1024"),
        "Descriptors. Slots ÷ packet rate is the longest pause of the function that loses nothing.",
    ),
    key(
        RING,
        "buffer_bytes",
        "bytes, 128 to 16384",
        "4096",
        Value("2048"),
        "One buffer. Longer frames use several.",
    ),
    key(
        ENGINE,
        "driver",
        "`\"oci\"` or `\"docker\"`",
        "\"docker\"",
        Value("\"oci\""),
        "`oci` is embedded and needs no daemon; `docker` speaks to Docker or Podman.",
    ),
    key(
        ENGINE,
        "host",
        "`unix:///...` or `tcp://HOST:PORT`",
        "\"tcp://192.0.2.7:2376\"",
        Value("\"unix:///run/docker.sock\""),
        "Where Docker or Podman answers. Ports of shared memory need an engine on this machine.",
    ),
    key(
        ENGINE,
        "tls",
        "directory",
        "\"/etc/inco/tls\"",
        Words("none"),
        "For a remote engine: where `ca.pem`, `cert.pem` and `key.pem` are, as for Docker's own command.",
    ),
    key(
        API,
        "socket",
        "path",
        "\"/run/inco/api.sock\"",
        Words("`api.sock` in the run directory: `$INCO_RUN_DIR`, or `/run/inco`"),
        "The unix socket that `inco status` and the others ask.",
    ),
    key(
        API,
        "listen",
        "address and port",
        "\"0.0.0.0:8443\"",
        Words("no network"),
        "Where the API and its page are to be had over TLS. Needs `certificate`, `key` and `tokens`.",
    ),
    key(
        API,
        "certificate",
        "path",
        "\"/etc/inco/api.pem\"",
        Words("none"),
        "The certificate and those that it rests on, as PEM.",
    ),
    key(
        API,
        "key",
        "path",
        "\"/etc/inco/api.key\"",
        Words("none"),
        "The certificate's private key, as PEM.",
    ),
    key(
        API,
        "tokens",
        "path",
        "\"/etc/inco/tokens\"",
        Words("none"),
        "Who may ask: on each line a role (`read` or `admin`), a name for the event log, and a token of at least 32 \
         characters (`openssl rand -hex 32`). Others than owner and group may not read the file.",
    ),
    key(
        EVENT_LOG,
        "directory",
        "path",
        "\"/var/log/inco\"",
        Words("`events` in the run directory: `$INCO_RUN_DIR`, or `/run/inco`"),
        "Where the files are. The run directory is usually memory, and gone after a restart of the machine.",
    ),
    key(
        EVENT_LOG,
        "file_size",
        "size",
        "\"64MiB\"",
        Value("\"8MiB\""),
        "Of one file, 64KiB to 1GiB; the next event then begins another one.",
    ),
    key(
        EVENT_LOG,
        "files",
        "number",
        "10",
        Value("4"),
        "Files that are kept, the one that is written included, 1 to 1000.",
    ),
];

/// The keys of a table.
pub(crate) fn of_table(table: &str) -> impl Iterator<Item = &'static Key> {
    KEYS.iter().filter(move |key| key.table == table)
}
