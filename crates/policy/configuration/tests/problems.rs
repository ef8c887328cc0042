//! Accepted configurations, and the messages for invalid ones.

#![allow(clippy::panic, reason = "a test fails by it")]

use configuration::{
    Affinity, Capacity, Configuration, Device, EngineDriver, Facts, PortKind, Problem, Replies, SwitchDriver,
    Unusable, check_facts,
};
use model::{Capabilities, Fallback, Nanos, NetFunction, Probe, Ready, StandbyMode, UplinkId};
use scheduling::{Metric, Settings};

use drivers::parse;

mod drivers;

/// The design's example, with an existing policy.
const EXAMPLE: &str = r#"[switch]
driver = "soft"
workers = [0]                       # CPUs

[[uplink]]
name = "wan"
device = "0000:03:00.0"             # or "memif:/run/inco/wan.sock", "veth:eth1", "pcap:trace.pcap"

[service.firewall]
match = { proto = "tcp", dst = "10.128.0.0/16", dst_port = "80-443" }
image = "inco/firewall:latest"
port = "memif"
command = ["inco-nf", "firewall", "--rules", "/etc/rules"]
ready = "connected"
instances = { min = 3, max = 8, standby = 1, standby_mode = "warm" }
cpus = 1.0
capacity = "10Mpps"
scheduler = "best-fit"
autoscaler = { policy = "smartinco", target = 0.7 }
affinity = "strict"

[engine]
driver = "oci"
"#;

/// The shortest configuration.
const SHORT: &str = r#"[[uplink]]
name = "wan"
device = "memif:wan.sock"
[service.a]
image = "inco/forward"
"#;

fn good(text: &str) -> Configuration {
    parse(text, "inco.toml").unwrap_or_else(|problems| panic!("{}", shown(&problems)))
}

fn shown(problems: &[Problem]) -> String {
    problems.iter().map(|problem| format!("{problem}\n")).collect()
}

fn problems_of(text: &str) -> Vec<String> {
    match parse(text, "inco.toml") {
        Ok(configuration) => panic!("accepted: {configuration:#?}"),
        Err(problems) => problems.iter().map(ToString::to_string).collect(),
    }
}

/// The short configuration with lines added to its service.
fn service_with(lines: &str) -> String {
    format!("{SHORT}{lines}\n")
}

#[test]
fn the_example_of_the_design_is_read() {
    let c = good(EXAMPLE);
    assert_eq!(c.switch.workers, [0]);
    assert_eq!(c.uplinks[0].device, Device::Dpdk("0000:03:00.0".to_owned()));
    let (id, service) = c.service("firewall").unwrap();
    assert_eq!(id.0, 0);
    assert_eq!(service.matches.protocol, Some(6));
    assert_eq!(service.matches.dst.unwrap().bits, 16);
    assert_eq!(service.matches.dst_port, Some(80..=443));
    assert_eq!(service.image.as_deref(), Some("inco/firewall:latest"));
    assert_eq!(service.command.len(), 4);
    assert_eq!(
        (
            service.instances.min,
            service.instances.max,
            service.instances.standby
        ),
        (3, 8, 1)
    );
    assert_eq!(service.instances.standby_mode, StandbyMode::Warm);
    assert_eq!(service.cpus, Some(1.0));
    assert_eq!(service.capacity, Capacity::Pps(10e6));
    assert_eq!(service.scheduler.name(), "best-fit");
    assert!(
        format!("{:?}", service.autoscaler).contains("target: 0.7"),
        "{:?}",
        service.autoscaler
    );
    assert_eq!(service.affinity, Affinity::Strict);
    assert_eq!(c.engine.driver, EngineDriver::Oci);
}

#[test]
fn a_short_configuration_has_sensible_defaults() {
    let c = good(SHORT);
    assert_eq!(c.switch.worker_count(), 1);
    assert!(c.switch.workers.is_empty());
    assert_eq!(c.switch.unmatched, Fallback::Drop);
    let service = &c.services[0];
    assert_eq!(service.uplinks, [UplinkId(0)]);
    assert_eq!(service.port, PortKind::Memif);
    assert_eq!((service.instances.min, service.instances.max), (1, 8));
    assert_eq!(service.capacity, Capacity::Learn);
    assert_eq!(service.autoscaler.name(), "ladder");
    assert!(service.symmetric);
    assert_eq!(c.switch.timeouts.udp, Nanos::from_secs(120));
    assert_eq!(service.ring.port_bytes(1), 2 * (128 + 1024 * (16 + 2048)));
    assert_eq!(c.uplinks[0].device, Device::Memif("wan.sock".into()));
}

#[test]
fn what_is_of_no_service_can_pass_in_both_directions() {
    let uplinks = "[[uplink]]\nname = 'lan'\ndevice = 'memif:lan.sock'\n";
    let text = format!("[switch]\nunmatched = 'opposite'\nother = 'opposite'\n{SHORT}\n{uplinks}");
    let switch = good(&text).switch;
    assert_eq!(
        (switch.unmatched, switch.other),
        (Fallback::Opposite, Fallback::Opposite)
    );
    let [wan, lan] = [UplinkId(0), UplinkId(1)];
    assert_eq!(
        (switch.other.exit(wan), switch.other.exit(lan)),
        (Some(lan), Some(wan))
    );
}

#[test]
fn sizes_and_cpus_are_read_as_docker_and_kubernetes_write_them() {
    let of = |lines: &str| {
        let service = good(&format!("{SHORT}{lines}")).services.remove(0);
        (service.memory_bytes, service.cpus)
    };
    for (memory, bytes) in [
        ("64M", 64 << 20),
        ("64Mi", 64 << 20),
        ("64m", 64 << 20),
        ("1G", 1 << 30),
    ] {
        assert_eq!(of(&format!("memory = '{memory}'\n")).0, bytes, "{memory}");
    }
    for (cpus, number) in [("'500m'", 0.5), ("'2'", 2.0), ("'0.25'", 0.25), ("0.25", 0.25)] {
        assert_eq!(of(&format!("cpus = {cpus}\n")).1, Some(number), "{cpus}");
    }
}

#[test]
fn schedulers_are_read_with_what_they_count_and_their_parameters() {
    let of = |line: &str| {
        let c = good(&service_with(line));
        let service = &c.services[0];
        (service.scheduler.clone(), service.limit)
    };
    let (scheduler, limit) = of("");
    assert_eq!((scheduler.name(), limit), ("best-fit", None));
    assert_eq!(*scheduler.settings(), Settings::default());
    let (scheduler, limit) = of(
        "scheduler = { policy = 'maglev', metric = 'bytes', limit = '8Gbps', slow_start = '250ms', spill = false, \
         table = 1009 }",
    );
    assert_eq!((scheduler.name(), limit), ("maglev", Some(1e9)));
    let settings = Settings {
        metric: Metric::Bytes,
        slow_start: Nanos::from_millis(250),
        spill: false,
    };
    assert_eq!(*scheduler.settings(), settings);
    let (scheduler, limit) =
        of("scheduler = { policy = 'least-connections', metric = 'flows', limit = '2k' }");
    assert_eq!((scheduler.name(), limit), ("least-connections", Some(2000.0)));
    assert_eq!(of("scheduler = { metric = 'busy' }").1, Some(1.0));
    assert_eq!(
        of("scheduler = { policy = 'jbsq', slow_start = '0s' }")
            .0
            .settings()
            .slow_start,
        Nanos::ZERO
    );
}

#[test]
fn a_scheduler_alone_is_read_as_in_the_file() {
    let name =
        |text: &str| configuration::parse_scheduler(text).map(|(scheduler, limit)| (scheduler.name(), limit));
    assert_eq!(name("worst-fit").unwrap(), ("worst-fit", None));
    assert_eq!(name("\"worst-fit\"").unwrap(), ("worst-fit", None));
    let table = " { policy = 'rss', metric = 'flows', limit = 10, ports = false } ";
    assert_eq!(name(table).unwrap(), ("rss", Some(10.0)));
    for (text, said) in [
        ("worstfit", "unknown scheduler \"worstfit\"; write \"worst-fit\""),
        ("", "unknown scheduler \"\""),
        (
            "{ policy = 'rss'",
            "is not a scheduler; write a name, or a table such as",
        ),
        ("'rss'\nlimit = 3", "is not a scheduler; write a name"),
        ("{ policy = 'rss', port = false }", "unknown key; write \"ports\""),
    ] {
        let problems = name(text).unwrap_err();
        assert!(problems[0].to_string().contains(said), "{}", problems[0]);
    }
}

#[test]
fn every_way_of_writing_a_thing_is_read() {
    let c = good(
        r#"
[switch]
workers = [2, 3]
flows = "64k"
timeouts = { udp = "500ms" }
unmatched = "lan"
[[uplink]]
name = "wan"
device = "veth:eth1"
[[uplink]]
name = "lan"
device = "net_pcap0,rx_pcap=a.pcap"
[[uplink]]
name = "third"
device = "03:00.1,representor=[0-3]"
queues = 2
max_frame = "9kB"
[service.web]
uplinks = ["wan", "lan"]
image = "a"
command = ["/x"]
args = ["-v"]
env = { B = 1, A = "two" }
mounts = ["/a:/b:ro", { source = "/c", target = "/d" }]
ready = { exec = ["/bin/check"] }
instances = 4
capacity = 250000
fit = "80%"
autoscaler = "fixed"
match = { proto = 50, src = "2001:db8::/32", vlan = 7 }
[service.sink]
port = "null"
uplinks = ["third"]
env = ["A=b=c"]
cpuset = "0-3,7"
[engine]
driver = "docker"
host = "unix:///run/podman.sock"
"#,
    );
    assert_eq!(c.switch.flows, 64_000);
    assert_eq!(c.switch.unmatched, Fallback::Pass(UplinkId(1)));
    assert_eq!(c.uplinks[2].max_frame, 9000);
    let web = &c.services[0];
    assert_eq!(web.name, "web");
    assert_eq!(web.uplinks, [UplinkId(0), UplinkId(1)]);
    assert_eq!(
        web.env,
        [
            ("A".to_owned(), "two".to_owned()),
            ("B".to_owned(), "1".to_owned())
        ]
    );
    assert_eq!(
        web.mounts.iter().map(|m| m.read_only).collect::<Vec<_>>(),
        [true, false]
    );
    assert_eq!(web.ready, Ready::Exec(vec!["/bin/check".to_owned()]));
    assert_eq!(
        (web.instances.min, web.instances.max, web.instances.standby),
        (4, 4, 0)
    );
    assert_eq!(web.capacity, Capacity::Pps(250_000.0));
    assert_eq!(web.fit, 0.8);
    assert_eq!(c.switch.timeouts.udp, Nanos::from_millis(500));
    assert_eq!(c.switch.timeouts.tcp, Nanos::from_secs(900));
    assert_eq!(web.matches.vlan, Some(7));
    assert_eq!(c.services[1].env, [("A".to_owned(), "b=c".to_owned())]);
    assert!(c.services[1].image.is_none());
    assert!(c.engine.is_local());
}

#[test]
fn a_problem_names_file_line_key_and_what_to_write() {
    let text = EXAMPLE.replace("min = 3, max = 8", "min = 5, max = 3");
    assert_eq!(
        problems_of(&text),
        ["inco.toml:15: service.firewall.instances.min: 5 is more than max (3); write a min of at most 3"]
    );
}

#[test]
fn a_key_in_the_wrong_table_is_reported_with_its_table() {
    for (text, said) in [
        (
            format!("other = 'drop'\n{SHORT}"),
            "inco.toml:1: other: this key belongs to [switch] or [switch.timeouts]; move it there",
        ),
        (
            format!("unmatched = 'drop'\n{SHORT}"),
            "inco.toml:1: unmatched: this key belongs to [switch]; move it there",
        ),
        (
            service_with("max_frame = 1522"),
            "inco.toml:6: service.a.max_frame: this key belongs to [[uplink]]; move it there",
        ),
        // One letter off is a slip.
        (
            service_with("colour = 3"),
            "service.a.colour: unknown key; remove it, or write",
        ),
        (
            service_with("rings = {}"),
            "service.a.rings: unknown key; write \"ring\"",
        ),
    ] {
        let problems = problems_of(&text).join("\n");
        assert!(problems.contains(said), "{said}\n{problems}");
    }
}

#[test]
fn each_problem_is_reported() {
    // (a line of the service, its message)
    let cases = [
        (
            "instance = 3",
            "service.a.instance: unknown key; write \"instances\"",
        ),
        (
            "colour = 3",
            "service.a.colour: unknown key; remove it, or write one of ",
        ),
        ("image2 = 'a'", "write \"image\""),
        (
            "instances = { min = 1, max = 2, standby = 3 }",
            "standby: 3 is more than max (2); write a standby of at most 2",
        ),
        (
            "instances = { min = 0 }",
            "instances.min: 0 is less than 1; write a whole number from 1 to 1024",
        ),
        ("instances = 0", "service.a.instances: 0 is less than 1"),
        (
            "instances = { max = 4, sleep = true, standby = 2 }",
            "instances.standby: with sleep = true, every instance that is not active runs and waits; remove standby",
        ),
        (
            "instances = { max = 4, sleep = true, standby_mode = 'paused' }",
            "remove standby_mode",
        ),
        (
            "signals = true",
            "service.a.signals: the autoscaler ladder decides, and signals would, too; write autoscaler = \"fixed\"",
        ),
        (
            "move_state = true",
            "service.a.move_state: this cannot be together with affinity = \"strict\"; write affinity = \"relaxed\"",
        ),
        (
            "move_state = true\naffinity = 'relaxed'\nsymmetric = false",
            "service.a.move_state: this cannot be together with symmetric = false; write symmetric = true",
        ),
        (
            "instances = { max = 1020, standby = 8 }",
            "more than the switch's limit of 1024; write a smaller max or standby",
        ),
        (
            "scheduler = 'bestfit'",
            "unknown scheduler \"bestfit\"; write \"best-fit\"",
        ),
        (
            "scheduler = 'xyz'",
            "write one of \"round-robin\", \"best-fit\", \"worst-fit\"",
        ),
        (
            "scheduler = { policy = 'maglef' }",
            "service.a.scheduler.policy: unknown scheduler \"maglef\"; write \"maglev\"",
        ),
        (
            "scheduler = { policy = 'maglev', table = 1000 }",
            "service.a.scheduler.table: invalid value: integer `1000`; write a prime from 3 to 1048573, for example \
             1009",
        ),
        (
            "scheduler = { policy = 'jbsq', lamda = 0.5 }",
            "service.a.scheduler.lamda: unknown key; write \"lambda\"",
        ),
        (
            "scheduler = { policy = 'rss', lambda = 0.5 }",
            "service.a.scheduler.lambda: unknown key; ",
        ),
        (
            "scheduler = { metric = 'bits' }",
            "service.a.scheduler.metric: unknown value \"bits\"; write \"bytes\"",
        ),
        (
            "scheduler = { metric = 'bytes' }",
            "service.a.scheduler.limit: this key is missing; write limit = \"10Gbps\"",
        ),
        (
            "scheduler = { metric = 'bytes', limit = '10Mpps' }",
            "service.a.scheduler.limit: unknown unit \"Mpps\" for a bit rate",
        ),
        (
            "scheduler = { limit = 10 }",
            "service.a.scheduler.limit: the limit of the metric packets is the service's `capacity`",
        ),
        (
            "scheduler = { slow_start = '2h' }",
            "service.a.scheduler.slow_start: the duration is more than 1h",
        ),
        (
            "scheduler = { slow_start = 2 }",
            "service.a.scheduler.slow_start: the number 2 is not a duration",
        ),
        (
            "autoscaler = 'smartinko'",
            "unknown autoscaler \"smartinko\"; write \"smartinco\"",
        ),
        (
            "autoscaler = { policy = 'x' }",
            "service.a.autoscaler.policy: unknown autoscaler \"x\"",
        ),
        ("autoscaler = { target = 1.5 }", "service.a.autoscaler.target: "),
        (
            "autoscaler = { tarket = 0.5 }",
            "service.a.autoscaler.tarket: unknown key; write \"target\"",
        ),
        (
            "autoscaler = { window = '5 parsecs' }",
            "service.a.autoscaler.window: ",
        ),
        (
            "capacity = '0Mpps'",
            "service.a.capacity: 0 packets per second is out of range",
        ),
        (
            "capacity = '10Mbps'",
            "unknown unit \"Mbps\" for a packet rate; write a number and one of pps, kpps",
        ),
        ("capacity = 'lots'", "\"lots\" is not a packet rate"),
        (
            "fit = 0",
            "service.a.fit: 0 is out of range; write a number above 0 and at most 1",
        ),
        ("fit = '120%'", "service.a.fit: 1.2 is out of range"),
        ("fit = nan", "service.a.fit: NaN is out of range"),
        (
            "cpus = 0",
            "service.a.cpus: 0 is out of range; write a number of CPUs of at least 0.001",
        ),
        ("cpus = 'two'", "the text \"two\" is not a number of CPUs"),
        (
            "cpuset = '3-1'",
            "\"3-1\" is not a list of CPUs; write numbers and ranges, for example \"0-3,7\"",
        ),
        (
            "capabilities = ['CHOWN', 'NET_RAW']",
            "service.a.capabilities: \"NET_RAW\" is no capability that a container may have; write some of AUDIT_WRITE, ",
        ),
        (
            "drain_deadline = 60",
            "the number 60 is not a duration; write text with a unit",
        ),
        (
            "drain_deadline = '60'",
            "service.a.drain_deadline: \"60\" has no unit",
        ),
        (
            "drain_deadline = '0s'",
            "service.a.drain_deadline: the duration is 0",
        ),
        (
            "stall_after = '5ms'",
            "service.a.stall_after: the duration is less than 10ms",
        ),
        (
            "stall_after = '2m'",
            "service.a.stall_after: the duration is more than 1m",
        ),
        (
            "memory = '1MiB'",
            "service.a.memory: 1048576 is less than 6291456",
        ),
        ("memory = '64 mebi'", "unknown unit \"mebi\" for a size"),
        (
            "port = 'mem'",
            "service.a.port: unknown value \"mem\"; write \"memif\"",
        ),
        (
            "symmetric = 'yes'",
            "the text \"yes\" is not true or false; write true or false, without quotes",
        ),
        (
            "uplinks = ['lan']",
            "service.a.uplinks[0]: unknown uplink \"lan\"; write \"wan\"",
        ),
        ("uplinks = []", "the list has 0 uplinks"),
        (
            "uplinks = ['wan', 'wan']",
            "service.a.uplinks[1]: this uplink is listed twice",
        ),
        (
            "ring = { slots = 1000 }",
            "service.a.ring.slots: 1000 is not a power of two; write 512 or 1024",
        ),
        ("queues = 2", "service.a.queues: 2 is more than 1"),
        (
            "command = 'inco-nf forward'",
            "is not a list of text; write a list of text",
        ),
        ("command = ['a', 1]", "the number 1 in the list is not text"),
        (
            "mounts = ['etc:/etc']",
            "service.a.mounts[0]: \"etc\" is not an absolute path",
        ),
        (
            "mounts = ['/a:/b:rx']",
            "is not a mount; write \"/source:/target:ro\"",
        ),
        ("mounts = ['/a:/../b']", "is not an absolute path without \"..\""),
        ("mounts = ['./../a:/b']", "is not an absolute path without \"..\""),
        ("mounts = ['./a:./b']", "\"./b\" is not an absolute path"),
        (
            "mounts = [{ source = '/a' }]",
            "service.a.mounts[0].target: this key is missing; write target =",
        ),
        ("env = ['A']", "service.a.env: \"A\" is not NAME=value"),
        ("env = { A = [] }", "A is not text"),
        (
            "ready = { exe = [] }",
            "service.a.ready.exe: unknown key; write \"exec\"",
        ),
        (
            "ready = { exec = [] }",
            "service.a.ready.exec: the list has no program",
        ),
        (
            "match = { proto = 'tpc' }",
            "unknown protocol \"tpc\"; write \"tcp\", or a number",
        ),
        ("match = { proto = 300 }", "300 is more than 255"),
        (
            "match = { dst = '10.0.0.1/8' }",
            "has bits set beyond the prefix length; write \"10.0.0.0/8\"",
        ),
        (
            "match = { dst = '10.0.0.0/33' }",
            "/33 is longer than an address; write at most /32",
        ),
        ("match = { dst = '10.0.0/8' }", "is not an address or prefix"),
        ("match = { dst = '10.0.0.0/+8' }", "is not an address or prefix"),
        (
            "match = { src = '::/0', dst = '10.0.0.0/8' }",
            "have different IP versions",
        ),
        (
            "match = { proto = 'icmp', dst = '::/0' }",
            "icmp is a protocol of IPv4, and the address is IPv6; write \"icmpv6\"",
        ),
        (
            "match = { dst_port = 80 }",
            "match.dst_port: a port needs a protocol, and proto is missing; write proto = ",
        ),
        (
            "match = { proto = 'icmp', dst_port = 80 }",
            "this protocol has no ports",
        ),
        (
            "match = { proto = 'tcp', dst_port = '443-80' }",
            "the range \"443-80\" is empty; write \"80-443\"",
        ),
        (
            "match = { proto = 'tcp', dst_port = 70000 }",
            "70000 is more than 65535",
        ),
        ("match = { vlan = 4095 }", "4095 is more than 4094"),
        ("match = 'tcp'", "the text \"tcp\" is not a table"),
    ];
    for (line, said) in cases {
        let problems = problems_of(&service_with(line));
        assert_eq!(problems.len(), 1, "{line}: {problems:#?}");
        assert!(
            problems[0].starts_with("inco.toml:6: "),
            "{line}: {}",
            problems[0]
        );
        assert!(
            problems[0].contains(said),
            "{line}:\n  {}\n  has no\n  {said}",
            problems[0]
        );
    }
}

#[test]
fn problems_outside_of_services_are_reported() {
    let uplink = "[[uplink]]\nname = 'wan'\ndevice = 'memif:w'\n";
    let service = "[service.a]\nimage = 'a'\n";
    let with = |head: &str, tail: &str| format!("{head}{uplink}{tail}{service}");
    let cases = [
        (
            with("[swich]\n", ""),
            "inco.toml:1: swich: unknown key; write \"switch\"",
        ),
        (
            with("[switch]\nworkers = [0, 0]\n", ""),
            "inco.toml:2: switch.workers[1]: CPU 0 is listed twice",
        ),
        (
            with("[switch]\nworkers = [99999]\n", ""),
            "switch.workers[0]: 99999 is more than 8191",
        ),
        (
            with("[switch]\nflows = 10\n", ""),
            "switch.flows: 10 is less than 1024",
        ),
        (
            with("[switch]\nunmatched = 'lan'\n", ""),
            "unknown uplink \"lan\"; write \"wan\", or \"drop\"",
        ),
        (
            with("[switch]\nother = 'opposite'\n", ""),
            "switch.other: \"opposite\" needs two uplinks; 1 are configured; write an uplink's name, or \"drop\"",
        ),
        (
            with("[switch]\ndriver = 'hybrid'\nworkers = [0, 1]\n", ""),
            "switch.workers: the driver hybrid has one worker, on a CPU of its own",
        ),
        (
            with("[switch]\ndriver = 'hybrid'\nworkers = [0]\nhybrid = { rules = 5_000 }\n", ""),
            "switch.hybrid.rules: 5000 is more than 4000",
        ),
        (
            with("[switch]\ndriver = 'hardware'\n", ""),
            "switch.driver: unknown value \"hardware\"; write one of \"soft\", \"openflow\"",
        ),
        (
            with("[switch]\npoll = 1\n", ""),
            "the number 1 is not text; write one of \"adaptive\", \"busy\"",
        ),
        (
            service.to_owned(),
            "inco.toml:1: uplink: no uplink is configured; write [[uplink]]",
        ),
        (
            uplink.to_owned(),
            "service: no service is configured; write [service.NAME]",
        ),
        (
            with("", "queues = 2\n"),
            "inco.toml:4: uplink[0].queues: 2 queues, more than the 1 workers",
        ),
        (
            with("", "max_frame = 20000\n"),
            "uplink[0].max_frame: 20000 is more than 16384",
        ),
        (with("", "mtu = 1500\n"), "uplink[0].mtu: unknown key"),
        (
            with("", uplink),
            "inco.toml:5: uplink[1].name: line 2 already has an uplink \"wan\"; write another name",
        ),
        (
            with("", "[[uplink]]\nname = 'b'\ndevice = 'memif:w'\n"),
            "inco.toml:6: uplink[1].device: uplink \"wan\" already uses this",
        ),
        (
            with("", "[[uplink]]\nname = 'b'\ndevice = 'memiv:w'\n"),
            "is not a device; write \"memif:w\"",
        ),
        (
            with("", "[[uplink]]\nname = 'b'\ndevice = 'eth1'\n"),
            "\"eth1\" is not a device; write a PCI address",
        ),
        (
            with(
                "",
                "[[uplink]]\nname = 'b'\ndevice = 'veth:averyverylonginterface'\n",
            ),
            "is not a valid name of a network interface",
        ),
        (
            with("", "[[uplink]]\nname = 'b'\ndevice = 'veth:eth1,qpairs=2'\n"),
            "is not a valid name of a network interface",
        ),
        (
            with("", "[[uplink]]\nname = 'b'\ndevice = 'pcap:,tx=b'\n"),
            "\"pcap:,tx=b\" has no file; write \"pcap:FILE\", \"pcap:FILE,tx=FILE\" or \"pcap:FILE,loop\"",
        ),
        (
            with("", "[[uplink]]\nname = 'b'\ndevice = 'pcap:a,fast'\n"),
            "inco.toml:6: uplink[1].device: unknown option \"fast\" of a capture; write \"pcap:FILE\"",
        ),
        (
            with("", "[[uplink]]\nname = 'b'\ndevice = 'pcap:a,tx=b,tx=c'\n"),
            "unknown option \"tx=c\" of a capture",
        ),
        (
            with("", "[[uplink]]\nname = 'b'\ndevice = 'pcap:a,tx=a'\n"),
            "inco.toml:6: uplink[1].device: a is already read or written by another capture; write a different file",
        ),
        (
            with(
                "",
                "[[uplink]]\nname = 'b'\ndevice = 'pcap:a,tx=out'\n[[uplink]]\nname = 'c'\n\
                 device = 'net_pcap0,tx_pcap=out'\n",
            ),
            "inco.toml:9: uplink[2].device: out is already read or written by another capture",
        ),
        (
            "[switch]\nworkers = [0, 1]\n[[uplink]]\nname = 'b'\ndevice = 'pcap:a'\nqueues = 2\n[service.a]\n\
             port = 'null'\n"
                .to_owned(),
            "inco.toml:6: uplink[0].queues: a capture has only one queue; remove it",
        ),
        (
            with("", "[[uplink]]\nname = 'b'\n"),
            "inco.toml:4: uplink[1].device: this key is missing",
        ),
        (
            with("", "[[uplink]]\nname = 'B'\ndevice = 'net_null0'\n"),
            "uplink[1].name: \"B\" is not a name; write 1 to 32 characters of",
        ),
        (
            with("", "[service.A]\nimage = 'b'\nmatch = { vlan = 1 }\n"),
            "service.A: \"A\" is not a name",
        ),
        (
            with("", "[service.b]\n"),
            "inco.toml:4: service.b.image: this key is missing; write image = \"inco/forward\"",
        ),
        (
            with("[api]\nsocket = '/run/'\n", ""),
            "api.socket: \"/run/\" is not a file",
        ),
        (
            with("[engine]\ndriver = 'podman'\n", ""),
            "engine.driver: unknown value \"podman\"; write one of \"oci\", \"docker\"",
        ),
        (
            with("[engine]\nhost = 'unix:///a'\n", ""),
            "engine.host: the oci engine is embedded and has no such key",
        ),
        (
            with("[engine]\ndriver = 'docker'\nhost = 'localhost'\n", ""),
            "\"localhost\" is not an engine's address",
        ),
        (
            with("[engine]\ndriver = 'docker'\nhost = 'tcp://h'\n", ""),
            "\"tcp://h\" has no valid host and port",
        ),
        (
            with("[engine]\npull = 'always'\n", ""),
            "engine.pull: unknown value \"always\"; write one of \"missing\", \"never\"",
        ),
        (
            with("[engine]\nname = 'edge-1'\n", ""),
            "engine.name: instances of this engine are those of this machine alone; remove it",
        ),
        (
            with("[engine]\nplain_http = ['http://a:5000']\n", ""),
            "\"http://a:5000\" is no registry; write host and port",
        ),
        (
            with(&format!("[engine]\nplain_http = {:?}\n", ["a"; 65]), ""),
            "there are 65 registries; write at most 64",
        ),
        ("a = [1,\n".to_owned(), "this is not TOML"),
        (
            "a = 1\na = 2\n".to_owned(),
            "inco.toml:2: this is not TOML: duplicate key; remove one of the two",
        ),
    ];
    for (text, said) in cases {
        let problems = problems_of(&text);
        assert!(
            problems.iter().any(|problem| problem.contains(said)),
            "{text}\n{problems:#?}\nhave no\n{said}"
        );
        if !text.contains("[service.b]")
            && !text.starts_with("a =")
            && text.contains("[service.a]")
            && text.contains("uplink")
        {
            assert!(problems.len() <= 2, "{text}\n{problems:#?}");
        }
    }
}

#[test]
fn a_remote_engine_is_refused_where_memory_is_shared() {
    let text = format!("{SHORT}[engine]\ndriver = 'docker'\nhost = 'tcp://192.0.2.1:2376'\ntls = '/tls'\n");
    assert_eq!(
        problems_of(&text),
        [
            "inco.toml:4: service.a.port: a memif port shares memory, and the containers of tcp://192.0.2.1:2376 are \
             on another machine; write an engine on this machine ([engine] host = \"unix:///run/docker.sock\"), or \
             port = \"device\""
        ]
    );
    good(&text.replace("image = \"inco/forward\"", "port = \"null\""));
    let bare = text.replace("image = \"inco/forward\"", "port = \"null\"");
    let bare = bare.split("tls =").next().unwrap();
    assert!(problems_of(bare)[0].contains("a directory with ca.pem, cert.pem and key.pem"));
}

#[test]
fn all_problems_come_at_once_in_the_order_of_the_file() {
    let problems = parse(
        "[switch]\npol = 1\n[[uplink]]\nname = 'W'\ndevice = 'memif:a'\n[service.a]\nimage = 'a'\n\
         capacity = '1Mbps'\nfit = 2\n",
        "inco.toml",
    )
    .unwrap_err();
    let lines: Vec<usize> = problems.iter().map(|problem| problem.line).collect();
    assert_eq!(lines, [2, 4, 8, 9], "{}", shown(&problems));
    assert!(problems.iter().all(|problem| problem.column == 1));
}

/// A configuration of services with these matches on one uplink.
fn services(matches: &[(&str, &str)]) -> String {
    let mut text = String::from(
        "[[uplink]]\nname = 'wan'\ndevice = 'net_null0'\n[[uplink]]\nname = 'lan'\ndevice = 'net_null1'\n",
    );
    for (name, rest) in matches {
        text.push_str(&format!("[service.{name}]\nimage = 'a'\n{rest}\n"));
    }
    text
}

#[test]
fn overlapping_matches_are_refused_unless_one_is_narrower() {
    let web = "match = { proto = 'tcp', dst_port = '80-443' }";
    let cases = [
        // (first, second, whether they may coexist)
        (web, "match = { proto = 'udp' }", true),
        (web, "", true),
        ("", "", false),
        (web, web, false),
        (web, "match = { proto = 'tcp', dst_port = 443 }", true),
        (web, "match = { proto = 'tcp', dst_port = '443-500' }", false),
        (web, "match = { proto = 'tcp', dst_port = '444-500' }", true),
        (web, "match = { dst = '10.0.0.0/8' }", false),
        (web, "match = { dst = '10.0.0.0/8' }\nuplinks = ['lan']", true),
        (
            "match = { dst = '10.0.0.0/8' }",
            "match = { dst = '10.1.0.0/16' }",
            true,
        ),
        (
            "match = { dst = '10.0.0.0/8' }",
            "match = { dst = '2001:db8::/32' }",
            true,
        ),
        (
            "match = { src = '10.0.0.0/8' }",
            "match = { dst = '2001:db8::/32' }",
            true,
        ),
        // Between the two networks: the first service in the file.
        (
            "match = { dst = '10.0.0.0/8' }",
            "match = { dst = '11.0.0.0/8' }",
            true,
        ),
        (
            "symmetric = false\nmatch = { dst = '10.0.0.0/8' }",
            "symmetric = false\nmatch = { dst = '11.0.0.0/8' }",
            true,
        ),
        // One receives packets from the network by symmetry, the other by its match.
        (
            "match = { dst = '10.0.0.0/8' }",
            "match = { src = '10.0.0.0/8' }",
            false,
        ),
        ("match = { vlan = 1 }", "match = { vlan = 2 }", true),
        ("match = { vlan = 1 }", "match = { proto = 'udp' }", false),
    ];
    for (first, second, stands) in cases {
        let text = services(&[("one", first), ("two", second)]);
        match parse(&text, "inco.toml") {
            Ok(_) => assert!(stands, "accepted: {first} | {second}"),
            Err(problems) => {
                assert!(!stands, "{first} | {second}: {}", shown(&problems));
                assert_eq!(problems.len(), 1);
                assert!(
                    problems[0].key == "service.two.match" && problems[0].what.contains("service one (line ")
                );
            }
        }
    }
}

#[test]
fn narrower_matches_are_tried_first() {
    let c = good(&services(&[
        ("all", ""),
        ("net", "match = { dst = '10.0.0.0/8' }"),
        (
            "web",
            "match = { proto = 'tcp', dst_port = '80-443', dst = '10.0.0.0/8' }",
        ),
        (
            "one",
            "match = { proto = 'tcp', dst_port = 443, dst = '10.1.0.0/16' }",
        ),
        ("other", "uplinks = ['lan']"),
    ]));
    let names: Vec<&str> = c
        .match_order()
        .iter()
        .map(|index| c.services[*index].name.as_str())
        .collect();
    assert_eq!(names, ["one", "web", "net", "all", "other"]);
}

#[test]
fn devices_are_shown_as_they_are_written() {
    for (written, read, tx) in [
        ("memif:wan.sock", None, None),
        ("veth:eth1", None, None),
        ("pcap:a.pcap", Some("a.pcap"), None),
        ("pcap:/a/b.pcap,loop", Some("/a/b.pcap"), None),
        (
            "pcap:a.pcap,loop,tx=/o/ut.pcap",
            Some("a.pcap"),
            Some("/o/ut.pcap"),
        ),
        ("0000:03:00.0", None, None),
        (
            "net_pcap0,rx_pcap=a.pcap,tx_pcap=b.pcap",
            Some("a.pcap"),
            Some("b.pcap"),
        ),
    ] {
        let text = format!("[[uplink]]\nname = 'wan'\ndevice = '{written}'\n[service.a]\nport = 'null'\n");
        let device = &good(&text).uplinks[0].device;
        assert_eq!(device.to_string(), written);
        let first = |paths: Vec<&std::path::Path>| paths.first().map(|path| path.display().to_string());
        assert_eq!(first(device.captures_read()).as_deref(), read, "{written}");
        assert_eq!(first(device.captures_written()).as_deref(), tx, "{written}");
    }
}

/// A machine that lacks the given things.
struct Machine(&'static [&'static str]);

impl Machine {
    fn has(&self, what: &str) -> Result<(), Unusable> {
        if self.0.contains(&what) {
            return Err(Unusable::new(
                format!("there is no {what}"),
                format!("provide {what}"),
            ));
        }
        Ok(())
    }
}

impl Facts for Machine {
    fn cpu(&self, cpu: u16) -> Result<(), Unusable> {
        self.has(&format!("cpu {cpu}"))
    }
    fn device(&self, uplink: &configuration::Uplink) -> Result<(), Unusable> {
        self.has(match uplink.device {
            Device::Memif(_) => "memif",
            Device::Veth(_) => "veth",
            Device::Pcap(_) => "pcap",
            Device::Dpdk(_) => "dpdk",
            Device::Kernel(_) => "kernel",
        })
    }
    fn interface(&self, name: &str) -> Result<(), Unusable> {
        self.has(name)
    }
    fn function(
        &self,
        _: &configuration::Engine,
        device: &configuration::InstanceDevice,
    ) -> Result<(), Unusable> {
        self.has(&device.function.to_string())
    }
    fn engine(&self, _: &configuration::Engine) -> Result<(), Unusable> {
        self.has("engine")
    }
    fn image(&self, _: &configuration::Engine, image: &str) -> Result<(), Unusable> {
        self.has(image)
    }
    fn api_socket(&self, _: Option<&std::path::Path>) -> Result<(), Unusable> {
        self.has("api")
    }
    fn path(&self, path: &std::path::Path) -> Result<(), Unusable> {
        self.has(&path.display().to_string())
    }
    fn program(
        &self,
        _: &configuration::Engine,
        service: &configuration::Service,
        command: &[String],
    ) -> Result<(), Unusable> {
        match command.first() {
            Some(program) => self.has(program),
            None => self.has(&format!("program of {}", service.name)),
        }
    }
    fn report_key(&self, file: &std::path::Path) -> Result<(), Unusable> {
        self.has(&file.display().to_string())
    }
    fn takes_reports(&self, at: std::net::SocketAddr) -> Result<(), Unusable> {
        self.has(&at.to_string())
    }
    fn listen(&self, tcp: &configuration::ApiTcp) -> Result<(), Unusable> {
        self.has(&tcp.listen.to_string())
    }
    fn certificate(&self, _: &configuration::ApiTcp) -> Result<(), Unusable> {
        self.has("pair")
    }
    fn kubernetes(&self, _: &configuration::Kubernetes) -> Result<(), Unusable> {
        self.has("cluster")
    }
    fn tokens(&self, _: &configuration::ApiTcp) -> Result<(), Unusable> {
        self.has("tokens")
    }
    fn event_log(&self, _: Option<&std::path::Path>) -> Result<(), Unusable> {
        self.has("event log")
    }
    fn switch(&self, of: &configuration::Switch) -> Result<(), (&'static str, Unusable)> {
        let bridge = self.has(&of.openflow.bridge);
        bridge.map_err(|unusable| ("switch.openflow.bridge", unusable))
    }
    fn hugepages(&self) -> Result<(), Unusable> {
        self.has("hugepages")
    }
}

#[test]
fn missing_parts_of_the_machine_are_reported_at_their_key() {
    let text = service_with("mounts = ['/rules:/rules']\ncpuset = '1-2'\nhugepages = true")
        + "[switch]\nworkers = [3]\nhugepages = 'on'\n[engine]\ndriver = 'docker'\n";
    let c = good(&text);
    assert_eq!(check_facts(&c, &Machine(&[])), []);
    let cases: [(&'static [&'static str], &str); 9] = [
        (
            &["cpu 3"],
            "inco.toml:10: switch.workers[0]: there is no cpu 3; provide cpu 3",
        ),
        (
            &["cpu 2"],
            "inco.toml:7: service.a.cpuset: there is no cpu 2; provide cpu 2",
        ),
        (
            &["memif"],
            "inco.toml:3: uplink[0].device: there is no memif; provide memif",
        ),
        (
            &["engine"],
            "inco.toml:12: engine.host: there is no engine; provide engine",
        ),
        (
            &["engine", "inco/forward"],
            "inco.toml:12: engine.host: there is no engine; provide engine",
        ),
        (
            &["inco/forward"],
            "inco.toml:5: service.a.image: there is no inco/forward; provide inco/forward",
        ),
        (
            &["/rules"],
            "inco.toml:6: service.a.mounts[0]: there is no /rules; provide /rules",
        ),
        (&["api"], "inco.toml:1: api.socket: there is no api; provide api"),
        (
            &["hugepages"],
            "inco.toml:8: service.a.hugepages: there is no hugepages; provide hugepages\n\
                          inco.toml:11: switch.hugepages: there is no hugepages; provide hugepages",
        ),
    ];
    for (lacks, said) in cases {
        assert_eq!(shown(&check_facts(&c, &Machine(lacks))).trim_end(), said);
    }
}

/// An engine is asked for the images of the places that it has, where the service may be.
#[test]
fn the_image_of_a_place_is_that_of_the_service_there() {
    let text = SHORT.to_owned()
        + "at.host = { image = 'dnsmasq' }\n[[place]]\nname = 'card'\ninstances = 4\n[[place]]\nname = 'host'\n";
    let lacks = |text: &str, image: &'static str| {
        let lacking: &'static [&'static str] = Vec::leak(vec![image]);
        shown(&check_facts(&good(text), &Machine(lacking)))
    };
    assert_eq!(
        lacks(&text, "dnsmasq"),
        "inco.toml:6: service.a.at.host.image: there is no dnsmasq; provide dnsmasq\n"
    );
    assert_eq!(
        lacks(&text, "inco/forward"),
        "inco.toml:5: service.a.image: there is no inco/forward; provide inco/forward\n"
    );
    let at = |place: &str| text.replace("at.host", &format!("placement = '{place}'\nat.host"));
    assert_eq!(lacks(&at("card"), "dnsmasq"), "");
    assert_eq!(lacks(&at("host"), "inco/forward"), "");
    assert!(lacks(&at("host"), "dnsmasq").contains("service.a.at.host.image"));
}

#[test]
fn refusals_of_run_are_found_by_check() {
    let text = service_with("ready = { exec = ['/bin/check'] }")
        .replace("[service.a]", "[service.a]\nqueues = 1")
        + "[api]\nlisten = '127.0.0.1:1'\ncertificate = '/a'\nkey = '/b'\ntokens = '/c'\n[event_log]\n\
           directory = '/d'\n";
    let c = good(&text);
    assert_eq!(check_facts(&c, &Machine(&[])), []);
    for (lacks, said) in [
        (&["program of a"], "service.a.image: there is no program of a; "),
        (&["/bin/check"], "service.a.ready: there is no /bin/check; "),
        (&["127.0.0.1:1"], "api.listen: there is no 127.0.0.1:1; "),
        (&["pair"], "api.certificate: there is no pair; "),
        (&["/b"], "api.key: there is no /b; "),
        (&["tokens"], "api.tokens: there is no tokens; "),
        (&["event log"], "event_log.directory: there is no event log; "),
    ] {
        let told = shown(&check_facts(&c, &Machine(lacks)));
        assert!(
            told.contains(said) && told.trim_end().lines().count() == 1,
            "{told}"
        );
    }
    let rules = good(
        &service_with("symmetric = false\ncommand = ['prog']")
            .replace("[[uplink]]", "[switch]\ndriver = 'openflow'\n[[uplink]]"),
    );
    let told = shown(&check_facts(&rules, &Machine(&["br-inco", "prog"])));
    assert!(
        told.contains("switch.openflow.bridge: there is no br-inco; ")
            && told.contains("service.a.command: there is no prog; "),
        "{told}"
    );
    // Without the image its programs are unknown.
    let told = shown(&check_facts(&rules, &Machine(&["inco/forward", "prog"])));
    assert!(
        told.contains("service.a.image: there is no inco/forward") && !told.contains("prog"),
        "{told}"
    );
}

#[test]
fn the_api_over_the_network_needs_a_certificate_and_tokens() {
    let all = "listen = \"0.0.0.0:8443\"\ncertificate = \"/a\"\nkey = \"/b\"\ntokens = \"/c\"\n";
    let tcp = good(&format!("{SHORT}[api]\n{all}"))
        .api
        .tcp
        .unwrap_or_else(|| panic!("no network"));
    assert_eq!(tcp.listen.port(), 8443);
    assert_eq!(good(SHORT).api.tcp, None);
    for (text, said) in [
        (
            all.replace("tokens", "# "),
            "api.tokens: this key is missing; write tokens = ",
        ),
        (
            all.replace("certificate", "# "),
            "api.certificate: this key is missing",
        ),
        (
            all.replace("listen", "# "),
            "api.certificate: this key needs listen, which is missing",
        ),
        (
            all.replace("0.0.0.0:8443", "8443"),
            "api.listen: \"8443\" is not an IP address with a port",
        ),
        (
            all.replace("/c", ""),
            "api.tokens: the path is empty; write a path",
        ),
    ] {
        let problems = problems_of(&format!("{SHORT}[api]\n{text}"));
        assert!(
            problems.iter().any(|problem| problem.contains(said)),
            "{problems:?} has no {said}"
        );
    }
}

#[test]
fn a_bridge_of_open_vswitch_is_read() {
    use configuration::SwitchDriver;
    use model::FlowSetup;
    let text = |switch: &str, service: &str| {
        format!("[switch]\ndriver = \"openflow\"\n{switch}{SHORT}symmetric = false\n{service}\n")
    };
    let of = good(&text("", "")).switch;
    assert_eq!((of.driver, of.worker_count()), (SwitchDriver::OpenFlow, 1));
    assert_eq!(
        of.openflow.control().unwrap(),
        "unix:/run/openvswitch/br-inco.mgmt"
    );
    let of = good(&text(
        "openflow = { bridge = \"br-nf\", database = \"tcp:[::1]:6640\", control = \"tcp:[::1]:6653\", setup = \
         \"reactive\", rules = 500, buckets = 16 }\n",
        "",
    ))
    .switch
    .openflow;
    assert_eq!((of.setup, of.rules, of.buckets), (FlowSetup::Reactive, 500, 16));
    assert_eq!(of.control().unwrap(), "tcp:[::1]:6653");
    let of = good(&text(
        "openflow = { database = \"ssl:card:6640\", control = \"ssl:192.0.2.1:6653\", tls = \"/etc/ovs\" }\n",
        "",
    ))
    .switch
    .openflow;
    assert_eq!(of.tls.unwrap().to_str(), Some("/etc/ovs"));
    for (switch, service, said) in [
        (
            "openflow = { buckets = 48 }\n",
            "",
            "48 is not a power of two; write 32 or 64",
        ),
        (
            "openflow = { bridge = \"a bridge\" }\n",
            "",
            "is not a valid name of a bridge",
        ),
        (
            "openflow = { database = \"/run/db.sock\" }\n",
            "",
            "write unix:/path/to/socket, tcp:HOST:PORT or ssl:HOST:PORT",
        ),
        (
            "openflow = { database = \"ssl:card:6640\", control = \"ssl:192.0.2.1:6653\" }\n",
            "",
            "write tls = \"DIR\"",
        ),
        (
            "openflow = { tls = \"/etc/ovs\" }\n",
            "",
            "certificates are used by ssl: endpoints only",
        ),
        (
            "openflow = { control = \"tcp:card:6653\" }\n",
            "",
            "write an IP address",
        ),
        (
            "openflow = { database = \"tcp:card:6640\" }\n",
            "",
            "write control = \"tcp:ADDRESS:6653\"",
        ),
        (
            "openflow = { datapath = \"system\" }\n",
            "",
            "write datapath = \"netdev\"",
        ),
        ("", "affinity = \"relaxed\"", "cannot hold the packets of a flow"),
        ("", "flow_counters = true", "does not count returned packets"),
        (
            "",
            "instances = { min = 1, max = 40 }",
            "more than the driver openflow's limit of 32",
        ),
    ] {
        let problems = problems_of(&text(switch, service)).join("\n");
        assert!(problems.contains(said), "{said}\n{problems}");
    }
    let both_ways = problems_of(&format!("[switch]\ndriver = \"openflow\"\n{SHORT}")).join("\n");
    assert!(both_ways.contains("write symmetric = false"), "{both_ways}");
    let unused = problems_of(&format!("[switch]\nopenflow = {{ rules = 100 }}\n{SHORT}")).join("\n");
    assert!(unused.contains("driver = \"openflow\""), "{unused}");
}

#[test]
fn an_address_that_is_translated_needs_those_of_instances() {
    let text = |vip: &str, ebpf: &str, service: &str| {
        let text = SHORT.replace("memif:wan.sock", "kernel:eth0");
        format!("{text}vip = {{ {vip} }}\n{service}\n[switch]\ndriver = \"ebpf\"\nebpf = {{ {ebpf} }}\n")
    };
    let both = "address = [\"10.0.0.100\", \"2001:db8::100\"], ports = 80, mode = \"dnat\"";
    let own = "instance_addresses = [\"10.0.1.0/24\", \"2001:db8:1::/64\"]";
    let read = good(&text(
        &format!("{both}, target_port = 8080"),
        own,
        "affinity_key = \"source\"",
    ));
    let service = &read.services[0];
    assert_eq!(service.affinity_key, model::AffinityKey::Source);
    assert_eq!(service.vip.as_ref().unwrap().target_port, Some(8080));
    assert_eq!(read.switch.ebpf.instance_addresses.len(), 2);
    let l2 = "address = \"10.0.0.100\", ports = 80, target_port = 8080";
    let many = "address = \"10.0.0.100\", ports = \"80,443\", mode = \"dnat\", target_port = 8080";
    for (vip, ebpf, said) in [
        (both, "", "write instance_addresses"),
        (
            both,
            "instance_addresses = \"10.0.1.0/24\"",
            "of the same IP version",
        ),
        (
            both,
            "instance_addresses = [\"10.0.1.0/24\", \"10.0.2.0/24\"]",
            "2 prefixes",
        ),
        (l2, own, "write mode = \"dnat\", or remove it"),
        (many, own, "write one port in ports"),
    ] {
        let problems = problems_of(&text(vip, ebpf, "")).join("\n");
        assert!(problems.contains(said), "{said}\n{problems}");
    }
    // Not every driver does that.
    let shares = "affinity_key = \"source\"";
    let not_here = "write affinity_key = \"flow\", or driver = \"soft\" in [switch]";
    let translates = "vip = { address = \"10.0.0.100\", ports = 80, mode = \"dnat\" }";
    for (line, driver, said) in [
        (shares, "openflow", not_here),
        (translates, "soft", "write port = \"kernel\", or mode = \"l2\""),
        (
            translates,
            "openflow",
            "write match in its place, or driver = \"soft\" in [switch]",
        ),
    ] {
        let text = format!("{SHORT}{line}\n[switch]\ndriver = \"{driver}\"\n");
        let problems = problems_of(&text).join("\n");
        assert!(problems.contains(said), "{said}\n{problems}");
    }
}

#[test]
fn external_addresses_are_for_functions_that_translate() {
    let read = good(&format!(
        "{SHORT}external = {{ addresses = [\"203.0.113.0/31\", \"198.51.100.7\"], block = 8064, lifetime = \"10m\" }}\n"
    ));
    let ports = read.services[0].external.as_ref().expect("external");
    assert_eq!(
        (ports.external.blocks(), ports.lifetime),
        (24, Nanos::from_secs(600))
    );
    let least = good(&format!("{SHORT}external = {{ addresses = \"203.0.113.1\" }}\n"));
    let ports = least.services[0].external.as_ref().expect("external");
    assert_eq!(
        (ports.external.blocks(), ports.lifetime),
        (16, Nanos::from_secs(7440))
    );
    let some = "external = { addresses = [\"203.0.113.0/30\"] }";
    good(&format!(
        "{SHORT}{some}\naffinity = \"relaxed\"\nmove_state = true\n"
    ));
    for (lines, said) in [
        ("external = { }", "external.addresses: this key is missing"),
        ("external = { addresses = [] }", "0 addresses; there are 1 to 256"),
        (
            "external = { addresses = [\"10.0.0.0/8\"] }",
            "16777216 addresses",
        ),
        ("external = { addresses = [\"2001:db8::1\"] }", "is not of IPv4"),
        (
            "external = { addresses = [\"203.0.113.0/30\", \"203.0.113.2\"] }",
            "203.0.113.2 is in two of the prefixes",
        ),
        (
            "external = { addresses = [\"203.0.113.1\"], block = 255 }",
            "block",
        ),
        (
            "external = { addresses = [\"203.0.113.1\"], block = 8064 }\ninstances = { min = 1, max = 7, standby = 1 }",
            "8 blocks for 8 instances, standby included, and one more for a rollout",
        ),
        (
            &format!("{some}\naffinity = \"relaxed\""),
            "service.a.affinity: this cannot be together with external; write affinity = \"strict\", or move_state = \
             true, too",
        ),
        (
            &format!("{some}\naffinity_key = \"spi\""),
            "write \"flow\" or \"source\"",
        ),
        (&format!("{some}\nport = \"null\""), "write port = \"memif\""),
        (
            &format!("{some}\nvip = {{ address = \"10.0.0.100\", ports = 80 }}"),
            "service.a.vip: this cannot be together with external",
        ),
        (
            &format!(
                "{some}\nmatch = {{ src = \"10.0.0.0/8\" }}\n[service.b]\nimage = \"x\"\nmatch = {{ src = \
                 \"11.0.0.0/8\" }}\nexternal = {{ addresses = [\"203.0.113.3\"] }}"
            ),
            "service.b.external: service a (line 6) has one of these addresses",
        ),
    ] {
        let problems = problems_of(&format!("{SHORT}{lines}\n")).join("\n");
        assert!(problems.contains(said), "{said}\n{problems}");
    }
}

#[test]
fn flows_by_what_packets_carry_are_for_one_service_of_a_function() {
    for word in ["inner", "spi"] {
        let key = format!("affinity_key = \"{word}\"");
        let read = good(&format!("{SHORT}{key}\n"));
        assert_eq!(read.services[0].affinity_key.name(), word);
        for (driver, said) in [("openflow", "driver = \"soft\""), ("ebpf", "driver = \"soft\"")] {
            let text = format!("{SHORT}{key}\n[switch]\ndriver = \"{driver}\"\n");
            let problems = problems_of(&text).join("\n");
            let not_here = format!("write affinity_key = \"flow\", or {said}");
            assert!(problems.contains(&not_here), "{driver}: {problems}");
        }
        for (more, said) in [
            ("flow_counters = true", "write flow_counters = false"),
            ("affinity = \"relaxed\"", "write affinity = \"strict\""),
            (
                "vip = { address = \"10.0.0.100\", ports = 80 }",
                "write match in its place",
            ),
            (
                "[service.other]\nimage = \"x\"\nmatch = { dst_port = 9 }\naffinity_key = \"inner\"",
                "is for one service",
            ),
        ] {
            let problems = problems_of(&format!("{SHORT}{key}\n{more}\n")).join("\n");
            assert!(problems.contains(said), "{said}: {problems}");
        }
    }
}

#[test]
fn associations_are_for_services_that_know_them() {
    let spi = "affinity_key = \"spi\"";
    let of_b =
        "{ spi = 0x1001, to = \"192.0.2.2\", src = [\"10.1.0.0/16\", \"fd01::/16\"], proto = \"udp\" }";
    let list = format!("associations = [{of_b}, {{ spi = 256, to = \"2001:db8::1\" }}]");
    let moves = "affinity = \"relaxed\"\nmove_state = true";
    let read = good(&format!("{SHORT}{spi}\n{list}\n{moves}\n"));
    let [outbound, inbound] = read.services[0].associations.as_slice() else {
        panic!("{:?}", read.services[0].associations);
    };
    assert_eq!((outbound.spi, outbound.to), (0x1001, [192, 0, 2, 2].into()));
    let protects = outbound.protects.as_ref().unwrap();
    let has = |src: [u8; 4], protocol| protects.has(src.into(), [10, 2, 0, 1].into(), protocol);
    assert!(has([10, 1, 2, 3], 17) && !has([10, 1, 2, 3], 6) && !has([10, 3, 2, 3], 17));
    assert_eq!((inbound.spi, inbound.protects.as_ref()), (256, None));
    let many = format!("associations = [{}]", vec![of_b; 257].join(", "));
    let prefixes = vec!["\"10.1.0.0/16\""; 65].join(", ");
    let wide = format!("associations = [{{ spi = 256, to = \"192.0.2.2\", dst = [{prefixes}] }}]");
    for (lines, said) in [
        (list.as_str(), "write affinity_key = \"spi\""),
        (&format!("{spi}\n{many}"), "257 associations; write at most 256"),
        (&format!("{spi}\n{wide}"), "65 prefixes; write at most 64"),
        (
            &format!("{spi}\nassociations = [{{ spi = 255, to = \"192.0.2.2\" }}]"),
            "256",
        ),
        (
            &format!("{spi}\nassociations = [{{ spi = 256, to = \"224.0.0.1\" }}]"),
            "is not the address of a host",
        ),
        (&format!("{spi}\nassociations = [{{ spi = 256 }}]"), "to"),
        (
            &format!("{spi}\n{list}\n[switch]\ntimeouts = {{ other = \"900ms\" }}"),
            "write at least \"1s\"",
        ),
        (
            &format!("{spi}\naffinity = \"relaxed\""),
            "or move_state = true, too",
        ),
        (
            &format!("affinity_key = \"inner\"\n{moves}"),
            "moves no flows; write affinity = \"strict\"",
        ),
    ] {
        let problems = problems_of(&format!("{SHORT}{lines}\n")).join("\n");
        assert!(problems.contains(said), "{said}: {problems}");
    }
}

#[test]
fn kernel_ports_of_the_soft_switch_need_an_address_and_an_interface() {
    let text = |device: &str, service: &str| {
        let text = SHORT.replace("memif:wan.sock", device);
        format!("{text}port = \"kernel\"\n{service}\n")
    };
    let vip = "vip = { address = \"10.0.0.100\", ports = \"80,443\" }";
    let read = good(&text("kernel:eth0", vip));
    assert_eq!(read.services[0].port, PortKind::Kernel);
    let health = "health = { tcp = 80 }\nagent = { port = 8080 }";
    good(&text("kernel:eth0", &format!("{vip}\n{health}")));
    let dnat = vip.replace(" }", ", mode = \"dnat\" }");
    let own = "[switch]\nebpf = { instance_addresses = \"10.0.1.0/24\" }";
    good(&text("kernel:eth0", &format!("{dnat}\n{health}\n{own}")));
    assert_eq!(read.switch.spare_ports(), 2);
    let flood =
        format!("{vip}\naffinity_key = \"source\"\n[switch]\nebpf = {{ spare_ports = 3, half_open = 100 }}");
    let read = good(&text("kernel:eth0", &flood));
    assert_eq!(read.switch.ebpf.half_open, Some(100));
    assert_eq!(read.services[0].affinity_key, model::AffinityKey::Source);
    for (device, service, said) in [
        ("kernel:eth0", String::new(), "write vip = {"),
        (
            "veth:eth0",
            vip.to_owned(),
            "write uplinks with device = \"kernel:INTERFACE\"",
        ),
        ("kernel:eth0", dnat, "write instance_addresses"),
        (
            "kernel:eth0",
            format!("{vip}\nready = \"consumes\""),
            "write ready = \"connected\"",
        ),
        (
            "kernel:eth0",
            format!("{vip}\nsymmetric = false"),
            "write symmetric = true",
        ),
        (
            "kernel:eth0",
            format!("{vip}\naffinity = \"relaxed\""),
            "write affinity = \"strict\"",
        ),
    ] {
        let problems = problems_of(&text(device, &service)).join("\n");
        assert!(problems.contains(said), "{said}\n{problems}");
    }
}

#[test]
fn functions_on_interfaces_need_no_address_and_have_no_rings() {
    let text = |keys: &str| format!("{SHORT}port = \"frames\"\n{keys}\n");
    let read = good(&text(""));
    assert_eq!(read.services[0].port, PortKind::Frames);
    assert_eq!(read.services[0].ready, Ready::Listens);
    good(&text("ready = \"connected\""));
    good(&text("next = \"b\"\n[service.b]\nimage = \"inco/forward\""));
    good(&text("external = { addresses = [\"203.0.113.0/30\"] }"));
    let vip = "vip = { address = \"10.0.0.100\", ports = \"80\" }";
    let with_vip = |keys: &str| text(&format!("{vip}\n{keys}")).replace("memif:wan.sock", "kernel:eth0");
    good(&with_vip(""));
    for (text, said) in [
        (text("ready = \"consumes\""), "write ready = \"connected\""),
        (
            text("affinity = \"relaxed\"\nmove_state = true"),
            "write port = \"memif\"",
        ),
        (
            text("stall_after = \"1s\""),
            "service.a.stall_after: the driver soft does not see whether a program takes packets from an interface; \
             write health = { command = [...] } in its place",
        ),
        (
            text("capabilities = [\"NET_RAW\"]"),
            "is no capability that a container may have",
        ),
        (with_vip("health = { tcp = 80 }"), "service.a.health"),
        (
            with_vip("").replace(" }", ", mode = \"dnat\" }"),
            "service.a.vip.mode",
        ),
        (
            format!("[switch]\ndriver = \"ebpf\"\n{}", with_vip("")),
            "sees none come back; write port = \"kernel\", or driver = \"soft\"",
        ),
        (
            format!("[switch]\ndriver = \"openflow\"\n{}", text("")),
            "does not support this kind of port; write port = \"memif\", or driver = \"soft\"",
        ),
    ] {
        let problems = problems_of(&text).join("\n");
        assert!(problems.contains(said), "{said}\n{problems}");
    }
}

#[test]
fn functions_of_a_card_are_read_and_must_be_enough() {
    use configuration::MacAddress;
    let text = |service: &str, more: &str| {
        format!(
            "[switch]\ndriver = \"openflow\"\n{more}{SHORT}symmetric = false\nport = \"device\"\n{service}\n"
        )
    };
    let two = "instances = 2\ndevices = [\n\
               { representor = \"pf0vf0\", pci = \"0000:03:00.2\", mac = \"02:00:00:00:00:1A\" },\n\
               { representor = \"0000:03:00.0,representor=sf1\", sf = 1 },\n]";
    let service = good(&text(two, "")).services.remove(0);
    assert_eq!(service.port, PortKind::Device);
    let [vf, sf] = service.devices.as_slice() else {
        panic!("{:?}", service.devices);
    };
    let pci = NetFunction::Pci {
        address: "0000:03:00.2".into(),
        vfio: None,
    };
    assert_eq!(vf.function, pci);
    assert_eq!(vf.mac, Some(MacAddress([2, 0, 0, 0, 0, 0x1a])));
    assert_eq!(vf.mac.unwrap().to_string(), "02:00:00:00:00:1a");
    assert_eq!((sf.function.clone(), sf.is_of_dpdk()), (NetFunction::Sf(1), true));
    assert!(!vf.is_of_dpdk());

    let one = |entry: &str| format!("instances = 1\ndevices = [{entry}]");
    for (service, more, said) in [
        (
            one("{ pci = \"0000:03:00.2\" }"),
            "",
            "service.a.devices[0].representor: this key is missing; write representor = \"pf0vf0\"",
        ),
        (
            one("{ representor = \"pf0vf0\" }"),
            "",
            "service.a.devices[0]: 0 of the keys pci, sf and interface are present; exactly one is needed; write one: \
             pci",
        ),
        (
            one("{ representor = \"pf0vf0\", sf = 1, interface = \"a\" }"),
            "",
            "2 of the keys pci, sf and interface",
        ),
        (
            one("{ representor = \"pf0vf0\", pci = \"03:00.2\" }"),
            "",
            "\"03:00.2\" is not a PCI address; write it in full",
        ),
        (
            one("{ representor = \"pf0vf0\", sf = 1, mac = \"01:00:00:00:00:01\" }"),
            "",
            "is not the MAC address of one device; write six bytes",
        ),
        (
            one("{ representor = \"a very long name of one\", sf = 1 }"),
            "",
            "is not a valid name of a network interface",
        ),
        (one("\"pf0vf0\""), "", "write { representor = \"pf0vf0\", pci ="),
        (
            two.replace("instances = 2", "instances = { min = 1, max = 3 }"),
            "",
            "2 devices for 4 instances, standby included; they need 4, 1 each",
        ),
        (
            two.replace("sf = 1", "pci = \"0000:03:00.2\""),
            "",
            "service.a.devices[0] (line 12) already uses it",
        ),
        (
            two.to_owned(),
            "[engine]\ndriver = \"docker\"\n",
            "Docker cannot move a network interface of the machine",
        ),
        (
            one("{ representor = \"pf0vf0\", pci = \"0000:03:00.2\" }"),
            "[engine]\ndriver = \"docker\"\nhost = \"tcp://192.168.100.1:2376\"\ntls = \"/etc/host\"\n",
            "the VFIO group of a function on the engine's machine is not known on this machine; write vfio = \"/dev/vfio/N\"",
        ),
    ] {
        let problems = problems_of(&text(&service, more)).join("\n");
        assert!(problems.contains(said), "{said}\n{problems}");
    }
    let soft = problems_of(&format!("{SHORT}port = \"device\"\n{two}\n")).join("\n");
    assert!(
        soft.contains(
            "the driver soft does not support this kind of port; write port = \"memif\", or driver = \
                       \"openflow\" in [switch]"
        ),
        "{soft}"
    );
    let unused = problems_of(&format!(
        "[switch]\ndriver = \"openflow\"\n{SHORT}symmetric = false\n{two}\n"
    ))
    .join("\n");
    assert!(
        unused.contains("write port = \"device\", or remove this key"),
        "{unused}"
    );

    // Checks that need the machine.
    let c = good(&text(two, ""));
    let facts = check_facts(&c, &Machine(&["pf0vf0", "scalable function 1"]));
    let told: Vec<String> = facts.iter().map(ToString::to_string).collect();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(
        told[0].contains("service.a.devices[0].representor: there is no pf0vf0"),
        "{told:?}"
    );
    assert!(
        told[1].contains("service.a.devices[1]: there is no scalable function 1"),
        "{told:?}"
    );
}

/// A service with an address, for the driver of ordinary containers, and these keys of it.
fn with_an_address(keys: &str) -> String {
    format!(
        "[switch]\ndriver = 'ebpf'\n[[uplink]]\nname = 'wan'\ndevice = 'kernel:eth1'\n[service.a]\nimage = 'nginx'\nvip \
         = {{ address = '10.0.0.100', ports = '80,443' }}\n{keys}\n"
    )
}

#[test]
fn a_kernel_port_with_an_address_is_ready_when_its_program_listens() {
    let ready = |text: &str| good(text).services[0].ready.clone();
    assert_eq!(ready(&with_an_address("")), Ready::Listens);
    assert_eq!(ready(&with_an_address("ready = 'connected'")), Ready::Connected);
    assert_eq!(ready(SHORT), Ready::Connected);
    let said = problems_of(&format!("{SHORT}ready = 'listens'\n")).join("\n");
    assert!(
        said.contains("sees who listens only in the network of a kernel port")
            && said.contains("ready = \"connected\""),
        "{said}"
    );
}

#[test]
fn a_health_check_has_one_kind_and_its_defaults() {
    let of = |keys: &str| good(&with_an_address(keys)).services[0].health.clone().unwrap();
    let http = of("health = { http = '/healthz' }");
    assert_eq!(
        http.probe,
        Probe::Http(80, "/healthz".to_owned()),
        "the first port"
    );
    assert_eq!(
        (http.every, http.timeout),
        (Nanos::from_secs(1), Nanos::from_millis(500))
    );
    assert_eq!((http.fall, http.rise, http.panic), (3, 2, 0.5));
    let dns = of("health = { dns = '.', port = 53, every = '200ms' }");
    assert_eq!(
        (dns.probe, dns.timeout),
        (Probe::Dns(53, ".".to_owned()), Nanos::from_millis(100))
    );
    assert_eq!(of("health = { tcp = 443 }").probe, Probe::Tcp(443));
    // Where ports are translated, it is the instance's.
    let dnat = with_an_address("health = { http = '/' }")
        .replace("'80,443'", "80, mode = 'dnat', target_port = 8080")
        .replace("'ebpf'", "'ebpf'\nebpf = { instance_addresses = '10.0.1.0/24' }");
    let dnat = good(&dnat).services[0].health.clone().unwrap();
    assert_eq!(dnat.probe, Probe::Http(8080, "/".to_owned()));
    for (keys, expected) in [
        (
            "health = {}",
            "service.a.health: 0 of the keys tcp, http, dns and command are present; exactly one is needed; write one",
        ),
        ("health = { tcp = 80, http = '/' }", "2 of the keys"),
        (
            "health = { http = 'index' }",
            "service.a.health.http: \"index\" is not a path of a request",
        ),
        ("health = { http = '/a b' }", "is not a path of a request"),
        (
            "health = { dns = 'a..b' }",
            "service.a.health.dns: \"a..b\" is not a name of DNS",
        ),
        (
            "health = { tcp = 80, port = 81 }",
            "service.a.health.port: port is for http and dns; remove it",
        ),
        ("health = { tcp = 0 }", "service.a.health.tcp: 0 is less than 1"),
        (
            "health = { tcp = 80, timeout = '2s' }",
            "service.a.health.timeout: a check may not take longer",
        ),
        (
            "health = { tcp = 80, fall = 0 }",
            "service.a.health.fall: 0 is less than 1",
        ),
        (
            "health = { command = [] }",
            "service.a.health.command: the list has no program",
        ),
        (
            "health = { tcp = 80, evry = '1s' }",
            "service.a.health.evry: unknown key; write \"every\"",
        ),
        ("agent = {}", "service.a.agent.port: this key is missing"),
    ] {
        let said = problems_of(&with_an_address(keys)).join("\n");
        assert!(said.contains(expected), "{keys}: {said}");
    }
    // All problems at once.
    let said = problems_of(&with_an_address(
        "health = { tcp = 0, fall = 0 }\nagent = { port = 0 }",
    ));
    assert_eq!(said.len(), 3, "{said:?}");
    // Over the network, a check needs an interface of the kernel and an address.
    for keys in ["health = { tcp = 80 }", "agent = { port = 80 }"] {
        for (driver, expected) in [
            (
                "soft",
                "asks instances over their network only with port = \"kernel\" and vip",
            ),
            ("openflow", "does not ask instances over their network"),
        ] {
            let text = format!("{SHORT}{keys}\n[switch]\ndriver = \"{driver}\"\n");
            let said = problems_of(&text).join("\n");
            assert!(said.contains(expected), "{said}");
        }
    }
    assert!(
        good(&format!("{SHORT}health = {{ command = ['/bin/check'] }}\n")).services[0]
            .health
            .is_some()
    );
}

/// What needs an ability is accepted with each driver that has it, and refused with each that has not.
#[test]
fn what_a_driver_cannot_do_is_refused() {
    let base = |driver: &str| {
        let (device, address) = match driver {
            "ebpf" => ("kernel:eth1", "vip = { address = '10.0.0.100', ports = 80 }\n"),
            _ => ("memif:wan.sock", "match = { proto = 'udp', dst_port = 80 }\n"),
        };
        format!(
            "[[uplink]]\nname = 'wan'\ndevice = '{device}'\n[service.a]\nimage = 'a'\nautoscaler = 'fixed'\n{address}"
        )
    };
    type Ability = (
        &'static str,
        &'static str,
        fn(&Capabilities) -> bool,
        &'static str,
    );
    // Keys of the service, keys of the switch, who can do it, and what the others say.
    let abilities: [Ability; 11] = [
        (
            "affinity = 'relaxed'",
            "",
            |can| can.relaxed_moves,
            "cannot hold the packets of a flow while it moves; write affinity = \"strict\", or driver = \"soft\"",
        ),
        (
            "flow_counters = true",
            "",
            |can| can.return_matching,
            "does not count returned packets for each flow; write flow_counters = false, or driver = \"soft\"",
        ),
        (
            "external = { addresses = ['203.0.113.0/30'] }",
            "",
            |can| can.port_blocks,
            "does not know who owns an external port; remove it, or write driver = \"soft\" in [switch]",
        ),
        (
            "signals = true",
            "",
            |can| can.signals,
            "does not see signals of instances; write signals = false, or driver = \"soft\"",
        ),
        (
            "health = { tcp = 80 }",
            "",
            |can| can.checks && can.usual_port() == PortKind::Kernel,
            "instances over their network",
        ),
        (
            "agent = { port = 8080 }",
            "",
            |can| can.checks && can.usual_port() == PortKind::Kernel,
            "instances over their network",
        ),
        (
            "ready = 'consumes'",
            "",
            |can| can.probes,
            "cannot see whether an instance takes packets; write ready = \"connected\"",
        ),
        (
            "stall_after = '1s'",
            "",
            |can| can.ring_occupancy || can.probes,
            "does not see whether an instance takes packets; write health in its place, or driver = \"soft\"",
        ),
        (
            "affinity_key = 'source'",
            "",
            |can| can.affinity_keys.contains(&model::AffinityKey::Source),
            "picks an instance for each flow by itself; write affinity_key = \"flow\", or driver = \"soft\"",
        ),
        (
            "",
            "unmatched = 'host'",
            |can| can.passes_to_host,
            "takes uplinks away from this machine's own network; write \"drop\" or an uplink's name",
        ),
        (
            "symmetric = false",
            "",
            |can| can.returns,
            "gives both directions of a flow to one instance, which answers for itself",
        ),
    ];
    let (mut had, mut lacked) = ([0; 11], [0; 11]);
    for (driver, _) in SwitchDriver::WORDS {
        let workers = if *driver == "hybrid" {
            "workers = [0]\n"
        } else {
            ""
        };
        let can = good(&format!(
            "{}[switch]\ndriver = '{driver}'\n{workers}",
            base(driver)
        ))
        .switch
        .can;
        for (number, (service, switch, has, said)) in abilities.iter().enumerate() {
            let text = format!(
                "{}{service}\n[switch]\ndriver = '{driver}'\n{workers}{switch}\n",
                base(driver)
            );
            let problems = match parse(&text, "inco.toml") {
                Ok(_) => Vec::new(),
                Err(problems) => problems.iter().map(ToString::to_string).collect(),
            };
            if has(&can) {
                had[number] += 1;
                assert_eq!(problems, Vec::<String>::new(), "{driver}: {service}{switch}");
            } else {
                lacked[number] += 1;
                let names = |line: &String| line.contains(&format!("the driver {driver} "));
                assert!(
                    problems.len() == 1 && problems.iter().all(names) && problems[0].contains(said),
                    "{driver}: {service}{switch}: {problems:?}"
                );
            }
        }
    }
    assert!(
        had.iter().chain(&lacked).all(|count| *count > 0),
        "{had:?} {lacked:?}"
    );
}

/// Services of these names, each with these keys.
fn chain_of(of: &[(&str, &str)]) -> String {
    let mut text =
        "[[uplink]]\nname = \"wan\"\ndevice = \"memif:wan.sock\"\n[[uplink]]\nname = \"lan\"\ndevice = \
                    \"memif:lan.sock\"\n"
            .to_owned();
    for (name, keys) in of {
        text += &format!("[service.{name}]\nimage = \"x\"\n{keys}\n");
    }
    text
}

#[test]
fn a_chain_of_services_is_checked_as_a_whole() {
    let read = good(&chain_of(&[
        ("a", "next = \"b\"\nmatch = { proto = \"udp\" }"),
        ("b", "next = \"c\""),
        ("c", ""),
        // Without a match, too: what is behind another service takes no packets by one.
        ("d", ""),
    ]));
    let before: Vec<Option<&str>> = read
        .services
        .iter()
        .map(|of| read.previous(of).map(|of| of.name.as_str()))
        .collect();
    assert_eq!(before, [None, Some("a"), Some("b"), None]);
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let row = |count: usize| -> Vec<(&str, String)> {
        let next = |at: usize| names.get(at + 1).filter(|_| at + 1 < count);
        let keys = |at| next(at).map_or_else(String::new, |next| format!("next = \"{next}\""));
        (0..count).map(|at| (names[at], keys(at))).collect()
    };
    let seven = row(7);
    good(&chain_of(
        &seven
            .iter()
            .map(|(name, keys)| (*name, keys.as_str()))
            .collect::<Vec<_>>(),
    ));
    let eight = row(8);
    let eight: Vec<(&str, &str)> = eight.iter().map(|(name, keys)| (*name, keys.as_str())).collect();
    for (of, key, said) in [
        (
            &eight[..],
            "service.a.next",
            "this chain has more than 7 services",
        ),
        (
            &[("a", "next = \"c\""), ("b", "")],
            "service.a.next",
            "there is no service \"c\"; write b",
        ),
        (
            &[("a", "next = \"b\"")],
            "service.a.next",
            "there is no service \"b\"; remove it",
        ),
        (
            &[("a", "next = \"a\"")],
            "service.a.next",
            "this chain has no end: a > a",
        ),
        (
            &[
                ("a", "next = \"b\""),
                ("b", "next = \"c\""),
                ("c", "next = \"a\""),
            ],
            "service.c.next",
            "this chain has no end: c > a > b > c",
        ),
        (
            &[("a", "next = \"c\""), ("b", "next = \"c\""), ("c", "")],
            "service.b.next",
            "c is already the next service of a (line 9)",
        ),
        (
            &[
                ("a", "next = \"b\"\nuplinks = [\"wan\", \"lan\"]"),
                ("b", "uplinks = [\"lan\", \"wan\"]"),
            ],
            "service.a.next",
            "b has other uplinks",
        ),
        (
            &[("a", "next = \"b\""), ("b", "match = { proto = \"udp\" }")],
            "service.b.match",
            "b gets what a returns, and no packets besides; remove it",
        ),
        (
            &[("a", "next = \"b\""), ("b", "symmetric = false")],
            "service.b.symmetric",
            "write symmetric = true",
        ),
        (
            &[("a", "next = \"b\"\naffinity = \"relaxed\""), ("b", "")],
            "service.a.affinity",
            "moves no flow",
        ),
        (
            &[("a", "next = \"b\"\nflow_counters = true"), ("b", "")],
            "service.a.flow_counters",
            "does not count returned packets",
        ),
        (
            &[("a", "next = \"b\"\naffinity_key = \"inner\""), ("b", "")],
            "service.a.affinity_key",
            "by their addresses and ports",
        ),
        (
            &[("a", "next = \"b\""), ("b", "port = \"kernel\"")],
            "service.b.port",
            "a program with a kernel port ends connections",
        ),
    ] {
        let problems = problems_of(&chain_of(of));
        let found = problems
            .iter()
            .any(|problem| problem.contains(key) && problem.contains(said));
        assert!(found, "{key}: {said}\n{}", problems.join("\n"));
    }
    for driver in ["openflow", "ebpf"] {
        let text = chain_of(&[("a", "next = \"b\""), ("b", "")]);
        let problems = problems_of(&format!("{text}[switch]\ndriver = \"{driver}\"\n")).join("\n");
        let said = format!(
            "service.a.next: the driver {driver} gives what an instance returns to its uplink, and does not see it; \
             remove it, or driver = \"soft\" in [switch]"
        );
        assert!(problems.contains(&said), "{said}\n{problems}");
    }
}

/// A service of servers that others run, with lines in the place of those that it has.
fn others_servers(change: &[(&str, &str)]) -> String {
    let mut text = "[switch]\ndriver = \"ebpf\"\n[[uplink]]\nname = \"wan\"\ndevice = \"kernel:eth1\"\n[service.web]\nvip = \
                    { address = \"10.0.0.100\", ports = 80, mode = \"dnat\" }\ninstances = { from = [\"10.1.0.11:8080\", \
                    \"10.1.0.12:80\"] }\nhealth = { http = \"/\" }\n"
        .to_owned();
    for (from, to) in change {
        assert!(text.contains(from), "{from}");
        text = text.replace(from, to);
    }
    text
}

/// A service whose instances a swarm places, with lines in the place of those that it has.
fn in_swarm(change: &[(&str, &str)]) -> String {
    let mut text = "[switch]\ndriver = \"ebpf\"\n[engine]\ndriver = \"swarm\"\n[[uplink]]\nname = \"wan\"\ndevice = \
                    \"kernel:eth1\"\n[service.web]\nport = \"routed\"\nimage = \"nginx\"\nvip = { address = \"10.0.0.100\", \
                    ports = 80, mode = \"dnat\", target_port = 8080 }\nhealth = { http = \"/\" }\n"
        .to_owned();
    for (from, to) in change {
        assert!(text.contains(from), "{from}");
        text = text.replace(from, to);
    }
    text
}

#[test]
fn a_swarm_places_instances() {
    let all = "swarm = { network = \"host\", protocol = \"tcp\", constraints = [\"node.role == worker\"], spread = \
               [\"node.labels.rack\"], reserved_cpus = 0.5, reserved_memory = \"1MiB\", secrets = [\"key\"], configs = \
               [\"site:/etc/a.conf\"] }\nhealth = { tcp = 8080 }\nagent = { port = 9000 }\n";
    let read = good(&in_swarm(&[]));
    let service = &read.services[0];
    assert!(service.has_containers() && service.swarm.is_none() && !read.engine.is_local());
    assert_eq!(
        (service.port, &service.ready),
        (PortKind::Routed, &Ready::Connected)
    );
    // At the port that its node publishes.
    let probe = service.health.as_ref().map(|of| of.probe.clone());
    assert_eq!(probe, Some(model::Probe::Http(0, "/".to_owned())));
    let read = good(&in_swarm(&[("health = { http = \"/\" }\n", all)]));
    let options = read.services[0].swarm.clone().unwrap();
    assert_eq!(options.network, model::TaskNetwork::Host);
    assert_eq!(options.constraints, ["node.role == worker"]);
    assert_eq!(
        (options.reserved_cpus, options.reserved_memory_bytes),
        (Some(0.5), Some(1 << 20))
    );
    assert_eq!(
        (options.secrets[0].name.as_str(), &options.secrets[0].target),
        ("key", &None)
    );
    assert_eq!(options.configs[0].target, Some("/etc/a.conf".into()));
}

#[test]
fn what_a_swarm_cannot_do_is_reported() {
    let with = |line: &str| format!("{line}\nhealth");
    for (from, to, key, said) in [
        (
            "\"ebpf\"",
            "\"soft\"".to_owned(),
            "service.web.port",
            "the driver soft reaches no instances",
        ),
        (
            "port = \"routed\"",
            "port = \"kernel\"".to_owned(),
            "service.web.port",
            "write port = \"routed\"",
        ),
        (
            "\"swarm\"",
            "\"docker\"".to_owned(),
            "service.web.port",
            "or driver = \"swarm\" or \"kubernetes\" in [engine]",
        ),
        (
            "mode = \"dnat\", target_port = 8080",
            "mode = \"l2\"".to_owned(),
            "service.web.vip.mode",
            "write mode = \"dnat\"",
        ),
        (
            "ports = 80,",
            "ports = \"80,443\",".to_owned(),
            "service.web.vip.ports",
            "at one port",
        ),
        (
            "health = { http = \"/\" }",
            String::new(),
            "service.web.health",
            "by its check alone",
        ),
        (
            "http = \"/\"",
            "command = [\"/a\"]".to_owned(),
            "service.web.health",
            "runs no command",
        ),
        (
            "http = \"/\"",
            "tcp = 8080".to_owned(),
            "service.web.health",
            "before the instance does",
        ),
        (
            "http = \"/\"",
            "dns = \"a.b\"".to_owned(),
            "service.web.health",
            "another protocol",
        ),
        (
            "http = \"/\"",
            "http = \"/\", port = 81".to_owned(),
            "service.web.health.port",
            "alone",
        ),
        (
            "health",
            with("agent = { port = 81 }"),
            "service.web.agent",
            "another one",
        ),
        (
            "health",
            with("ready = \"listens\""),
            "service.web.ready",
            "first check has passed",
        ),
        (
            "health",
            with("instances = { standby_mode = \"paused\" }"),
            "service.web.instances.standby_mode",
            "pauses no instance",
        ),
        (
            "health",
            with("cpuset = \"0\""),
            "service.web.cpuset",
            "does not choose the CPUs",
        ),
        (
            "health",
            with("hugepages = true"),
            "service.web.hugepages",
            "no hugepages",
        ),
        (
            "health",
            with("cpus = 1\nautoscaler = { policy = \"ladder\", cpus_max = 2 }"),
            "service.web.autoscaler.cpus_max",
            "keeps its limits",
        ),
        (
            "health",
            with("swarm = { secrets = [\"\"] }"),
            "service.web.swarm.secrets",
            "begins with no name",
        ),
        (
            "[[uplink]]",
            "[[place]]\nname = \"a\"\n[[uplink]]".to_owned(),
            "engine.driver",
            "is no place among others",
        ),
    ] {
        let problems = problems_of(&in_swarm(&[(from, &to)])).join("\n");
        let found = problems
            .lines()
            .any(|line| line.contains(key) && line.contains(said));
        assert!(found, "{key}: {said}\n{problems}");
    }
    let elsewhere = service_with("swarm = { network = \"host\" }");
    let problems = problems_of(&elsewhere).join("\n");
    assert!(problems.contains("only a swarm is asked that"), "{problems}");
}

/// The same with Pods.
fn in_kubernetes(change: &[(&str, &str)]) -> String {
    let mut all = vec![("\"swarm\"", "\"kubernetes\"")];
    all.extend(change);
    in_swarm(&all)
}

#[test]
fn kubernetes_places_instances() {
    let all = "kubernetes = { node_selector = { disk = \"fast\" }, tolerations = [{ key = \"a\", tolerationSeconds = 5 }], affinity = { \
               nodeAffinity = { any = [true, 0.5] } }, pull_secrets = [\"login\"], service_account = \"web\", reserved_cpus = 0.5, \
               reserved_memory = \"1MiB\", secrets = [\"key\"], configs = [\"site:/etc/site\"] }\nhealth = { tcp = 8080 }\nagent = { \
               port = 9000 }\ncpus = 1\nautoscaler = { policy = \"ladder\", cpus_max = 2 }\n";
    let read = good(&in_kubernetes(&[]));
    let service = &read.services[0];
    assert!(service.has_containers() && service.pods.is_none() && !read.engine.is_local());
    let read = good(&in_kubernetes(&[("health = { http = \"/\" }\n", all)]));
    let options = read.services[0].pods.clone().unwrap();
    assert_eq!(options.node_selector, [("disk".to_owned(), "fast".to_owned())]);
    assert_eq!(
        options.tolerations.as_deref(),
        Some(r#"[{"key":"a","tolerationSeconds":5}]"#)
    );
    assert_eq!(
        options.affinity.as_deref(),
        Some(r#"{"nodeAffinity":{"any":[true,0.5]}}"#)
    );
    assert_eq!(options.service_account.as_deref(), Some("web"));
    assert_eq!(options.configs[0].target, Some("/etc/site".into()));
}

#[test]
fn what_kubernetes_cannot_do_is_reported() {
    let with = |line: &str| format!("{line}\nhealth");
    for (from, to, key, said) in [
        (
            "\"ebpf\"",
            "\"soft\"".to_owned(),
            "service.web.port",
            "the driver soft reaches no instances",
        ),
        (
            "port = \"routed\"",
            "port = \"kernel\"".to_owned(),
            "service.web.port",
            "write port = \"routed\"",
        ),
        (
            "health = { http = \"/\" }",
            String::new(),
            "service.web.health",
            "by its check alone",
        ),
        (
            "http = \"/\"",
            "command = [\"/a\"]".to_owned(),
            "service.web.health",
            "Kubernetes runs no command",
        ),
        (
            "health",
            with("instances = { standby_mode = \"paused\" }"),
            "service.web.instances.standby_mode",
            "Kubernetes pauses no instance",
        ),
        (
            "health",
            with("mounts = [\"/a:/b\"]"),
            "service.web.mounts",
            "on any node",
        ),
        (
            "health",
            with("processes = 5"),
            "service.web.processes",
            "kubelet",
        ),
        (
            "health",
            with("kubernetes = { affinity = 5 }"),
            "service.web.kubernetes.affinity",
            "is not a table",
        ),
        (
            "health",
            with("kubernetes = { tolerations = [5] }"),
            "service.web.kubernetes.tolerations",
            "list of tables",
        ),
        (
            "health",
            with("kubernetes = { node_selector = { a = 1 } }"),
            "service.web.kubernetes.node_selector",
            "not text",
        ),
        (
            "health",
            with("kubernetes = { service_account = \"A\" }"),
            "service.web.kubernetes.service_account",
            "no name",
        ),
        (
            "health",
            with("swarm = { network = \"host\" }"),
            "service.web.swarm",
            "only a swarm is asked that",
        ),
        (
            "[[uplink]]",
            "host = \"unix:///a\"\n[[uplink]]".to_owned(),
            "engine.host",
            "[kubernetes] says where",
        ),
        (
            "[[uplink]]",
            "[[place]]\nname = \"a\"\n[[uplink]]".to_owned(),
            "engine.driver",
            "is no place among others",
        ),
    ] {
        let problems = problems_of(&in_kubernetes(&[(from, &to)])).join("\n");
        let found = problems
            .lines()
            .any(|line| line.contains(key) && line.contains(said));
        assert!(found, "{key}: {said}\n{problems}");
    }
    let problems = problems_of(&service_with("kubernetes = { pull_secrets = [\"a\"] }")).join("\n");
    assert!(problems.contains("only Kubernetes is asked that"), "{problems}");
}

#[test]
fn servers_that_others_run_are_instances() {
    let read = good(&others_servers(&[]));
    let service = &read.services[0];
    assert_eq!(
        (service.port, &service.ready),
        (PortKind::Routed, &Ready::Connected)
    );
    assert!(!service.has_containers() && service.image.is_none());
    assert_eq!(
        (
            service.instances.min,
            service.instances.max,
            service.instances.standby
        ),
        (2, 2, 0)
    );
    let probe = service.health.as_ref().map(|of| of.probe.clone());
    // Each at its own port.
    assert_eq!(probe, Some(model::Probe::Http(0, "/".to_owned())));
    let more = good(&others_servers(&[("12:80\"]", "12:80\"], max = 9")]));
    assert_eq!(
        (more.services[0].instances.min, more.services[0].instances.max),
        (2, 9)
    );
    let changes = read.changes_to(&good(&others_servers(&[(", \"10.1.0.12:80\"", "")])));
    assert!(
        changes.iter().all(|change| !change.needs_restart) && !changes.is_empty(),
        "{changes:?}"
    );
}

#[test]
fn what_servers_that_others_run_cannot_have_is_reported() {
    for (change, key, said) in [
        (
            &[("\"ebpf\"", "\"soft\"")][..],
            "instances.from",
            "the driver soft reaches no servers",
        ),
        (
            &[("\"ebpf\"", "\"openflow\"")],
            "instances.from",
            "or driver = \"ebpf\" in [switch]",
        ),
        (
            &[("mode = \"dnat\"", "mode = \"l2\"")],
            "vip.mode",
            "write mode = \"dnat\"",
        ),
        (
            &[("ports = 80,", "ports = \"80,443\",")],
            "vip.ports",
            "has one port",
        ),
        (
            &[("ports = 80,", "ports = 80, target_port = 81,")],
            "vip.target_port",
            "has its own port",
        ),
        (
            &[("12:80", "12")],
            "instances.from[1]",
            "\"10.1.0.12\" is not the address of a server",
        ),
        (&[("12:80", "12:0")], "instances.from[1]", "with its port"),
        (
            &[("10.1.0.12", "127.0.0.1")],
            "instances.from[1]",
            "in the network",
        ),
        (&[("12:80", "11:8080")], "instances.from", "is in the list twice"),
        (
            &[("10.1.0.12:80", "[2001:db8::1]:80")],
            "instances.from",
            "not the same IP version",
        ),
        (
            &[("10.1.0.12:80", "10.0.0.100:80")],
            "instances.from",
            "the address of the service itself",
        ),
        (
            &[("12:80\"]", "12:80\"], max = 1")],
            "instances.max",
            "from has 2 servers",
        ),
        (
            &[("12:80\"]", "12:80\"], standby = 1")],
            "instances.standby",
            "remove standby",
        ),
        (
            &[("12:80\"]", "12:80\"], min = 1")],
            "instances.min",
            "remove min",
        ),
        (
            &[("{ http = \"/\" }", "{ command = [\"/check\"] }")],
            "health",
            "cannot run a command",
        ),
        (
            &[("health", "ready = \"listens\"\nhealth")],
            "ready",
            "its first check has passed",
        ),
        (
            &[("health", "image = \"nginx\"\nhealth")],
            "image",
            "remove image",
        ),
        (&[("health", "cpus = 1\nhealth")], "cpus", "remove cpus"),
        (
            &[("health", "port = \"kernel\"\nimage = \"nginx\"\nhealth")],
            "port",
            "remove it",
        ),
        (
            &[(
                "instances = { from = [\"10.1.0.11:8080\", \"10.1.0.12:80\"] }",
                "port = \"routed\"",
            )],
            "port",
            "none is listed",
        ),
    ] {
        let problems = problems_of(&others_servers(change)).join("\n");
        let found = problems
            .lines()
            .any(|line| line.contains(&format!("service.web.{key}")) && line.contains(said));
        assert!(found, "{key}: {said}\n{problems}");
    }
}

/// The same service with the endpoints of a Kubernetes Service, and what is written in the place of `from`'s value.
fn endpoints(from: &str, more: &str) -> String {
    others_servers(&[("[\"10.1.0.11:8080\", \"10.1.0.12:80\"]", from)]) + more
}

#[test]
fn endpoints_of_a_kubernetes_service_are_instances() {
    let read = good(&endpoints(
        "\"kubernetes:shop/web\", port = \"http\"",
        "[kubernetes]\nkubeconfig = \"/etc/inco/kubeconfig\"\ncontext = \"x\"\n",
    ));
    let instances = &read.services[0].instances;
    assert_eq!((instances.min, instances.max, instances.standby), (0, 64, 0));
    let [of] = instances.kubernetes() else {
        panic!("one Service")
    };
    assert_eq!(
        (of.to_string().as_str(), &of.port),
        (
            "shop/web",
            &Some(configuration::EndpointPort::Name("http".to_owned()))
        )
    );
    assert_eq!(read.services[0].port, PortKind::Routed);
    assert_eq!(read.kubernetes.context.as_deref(), Some("x"));
    let by_number = good(&endpoints("\"kubernetes:shop/web\", port = 8080, max = 9", ""));
    let instances = &by_number.services[0].instances;
    let port = &instances.kubernetes()[0].port;
    assert_eq!(
        (port, instances.max),
        (&Some(configuration::EndpointPort::Number(8080)), 9)
    );
    let changes = read.changes_to(&by_number);
    let restarts: Vec<_> = changes.iter().filter(|change| change.needs_restart).collect();
    assert!(restarts.is_empty() && changes.len() >= 3, "{changes:?}");
    // The kubeconfig is looked at where it is needed.
    let problems = check_facts(&read, &Machine(&["cluster"]));
    assert!(
        shown(&problems).contains("kubernetes.kubeconfig: there is no cluster"),
        "{problems:?}"
    );
    assert_eq!(
        check_facts(&good(&others_servers(&[])), &Machine(&["cluster"])),
        []
    );
}

#[test]
fn endpoints_of_several_kubernetes_services_are_instances_with_weights() {
    const SEVERAL: &str =
        "[{ service = \"shop/web\", port = \"http\", weight = 9 }, { service = \"test/canary\" }]";
    let read = good(&endpoints(SEVERAL, "scheduler = \"maglev\"\n"));
    let all: Vec<_> = read.services[0]
        .instances
        .kubernetes()
        .iter()
        .map(|of| (of.to_string(), of.port.clone(), of.weight))
        .collect();
    let http = configuration::EndpointPort::Name("http".to_owned());
    let expected = [
        ("shop/web".to_owned(), Some(http), 9),
        ("test/canary".to_owned(), None, 1),
    ];
    assert_eq!(all, expected);
    // A weight is a key that a reload changes, and one Service alone needs no scheduler with weights.
    let other = good(&endpoints(
        &SEVERAL.replace("weight = 9", "weight = 5"),
        "scheduler = \"weighted\"\n",
    ));
    let changes = read.changes_to(&other);
    assert!(changes.iter().all(|change| !change.needs_restart), "{changes:?}");
    assert!(
        changes.iter().any(|change| change.key == "service.web.instances"),
        "{changes:?}"
    );
    assert_eq!(
        good(&endpoints("[{ service = \"shop/web\" }]", "")).services[0]
            .instances
            .max,
        64
    );
}

#[test]
fn mistakes_about_kubernetes_services_are_reported() {
    for (from, more, key, said) in [
        (
            "[{ service = \"shop/web\" }, { service = \"shop/canary\" }]",
            "",
            "service.web.scheduler",
            "\"maglev\", \"least-connections\" or \"weighted\"",
        ),
        (
            "[{ service = \"shop/web\" }, { service = \"shop/web\", weight = 2 }]",
            "scheduler = \"maglev\"\n",
            "service.web.instances.from",
            "shop/web is in the list twice",
        ),
        (
            "[{ service = \"shop/web\" }], port = 80",
            "",
            "service.web.instances.port",
            "write it in the tables of `from`",
        ),
        (
            "[{ service = \"shop/web\", weight = 0 }]",
            "",
            "service.web.instances.from[0].weight",
            "0 is less than 1",
        ),
        (
            "[{ service = \"web\" }]",
            "",
            "service.web.instances.from[0].service",
            "has no namespace",
        ),
        (
            "[{ weight = 3 }]",
            "",
            "service.web.instances.from[0].service",
            "this key is missing",
        ),
        (
            "[{ service = \"shop/web\" }, \"10.0.0.5:80\"]",
            "",
            "service.web.instances.from[1]",
            "NAMESPACE/SERVICE",
        ),
        (
            "\"web\"",
            "",
            "service.web.instances.from",
            "names no Service of Kubernetes",
        ),
        (
            "\"kubernetes:web\"",
            "",
            "service.web.instances.from",
            "has no namespace",
        ),
        (
            "\"kubernetes:Shop/web\"",
            "",
            "service.web.instances.from",
            "\"Shop\" is not the name of a namespace",
        ),
        (
            "\"kubernetes:shop/-web\"",
            "",
            "service.web.instances.from",
            "is not the name of a Service",
        ),
        (
            "\"kubernetes:shop/a/b\"",
            "",
            "service.web.instances.from",
            "is not the name of a Service",
        ),
        (
            "\"kubernetes:shop/web\", port = \"8080\"",
            "",
            "service.web.instances.port",
            "a number without quotes",
        ),
        (
            "\"kubernetes:shop/web\", port = 0",
            "",
            "service.web.instances.port",
            "0",
        ),
        (
            "[\"10.1.0.11:80\"], port = 80",
            "",
            "service.web.instances.port",
            "the endpoints of a Kubernetes Service",
        ),
        (
            "\"kubernetes:shop/web\", min = 1",
            "",
            "service.web.instances.min",
            "remove min",
        ),
        (
            "\"kubernetes:shop/web\"",
            "[kubernetes]\ncontext = \" \"\n",
            "kubernetes.context",
            "has no name",
        ),
        (
            "\"kubernetes:shop/web\"",
            "[kubernetes]\nconfig = \"/a\"\n",
            "kubernetes.config",
            "kubeconfig",
        ),
    ] {
        let problems = problems_of(&endpoints(from, more)).join("\n");
        let found = problems
            .lines()
            .any(|line| line.contains(key) && line.contains(said));
        assert!(found, "{key}: {said}\n{problems}");
    }
    let both = endpoints("\"kubernetes:shop/web\"", "")
        .replace("\"10.0.0.100\"", "[\"10.0.0.100\", \"2001:db8::100\"]");
    let problems = problems_of(&both).join("\n");
    assert!(
        problems.contains("service.web.vip.address: the endpoints of shop/web"),
        "{problems}"
    );
    let soft = endpoints("\"kubernetes:shop/web\"", "").replace("\"ebpf\"", "\"soft\"");
    let problems = problems_of(&soft).join("\n");
    assert!(
        problems.contains("the driver soft reaches no servers"),
        "{problems}"
    );
}

/// Machines behind tunnels, with lines in the place of those that there are.
fn behind_tunnels(change: &[(&str, &str)]) -> String {
    let mut text =
        "[switch]\ndriver = \"soft\"\n[[uplink]]\nname = \"wan\"\ndevice = \"kernel:eth1\"\nmax_frame = \
                    1572\ntunnel = { address = \"10.9.0.1\", network = 7 }\n[service.web]\nport = \"tunnel\"\nvip = { address = \
                    \"10.0.0.100\", ports = 80 }\ninstances = { from = [\"10.9.0.2:4789\", \"10.9.0.3:4789\"] }\n"
            .to_owned();
    for (from, to) in change {
        assert!(text.contains(from), "{from}");
        text = text.replace(from, to);
    }
    text
}

#[test]
fn machines_behind_tunnels_are_instances() {
    for driver in ["\"soft\"", "\"ebpf\""] {
        let read = good(&behind_tunnels(&[("\"soft\"", driver)]));
        let service = &read.services[0];
        assert_eq!(
            (service.port, &service.ready),
            (PortKind::Tunnel, &Ready::Connected)
        );
        assert!(!service.has_containers());
        let tunnel = read.uplinks[0].tunnel.as_ref().unwrap();
        assert_eq!((tunnel.network, tunnel.from.len()), (7, 0));
    }
}

#[test]
fn what_a_tunnel_cannot_do_is_refused() {
    type Case<'a> = (&'a [(&'a str, &'a str)], &'a str, &'a str);
    let cases: [Case<'_>; 15] = [
        (
            &[("7 }", "7, edges_key = \"/k\" }")],
            "service.web.scheduler",
            "write scheduler = \"machines\"",
        ),
        (
            &[("7 }", "7, from = [\"10.9.0.9\"], edges_key = \"/k\" }")],
            "uplink[0].tunnel.edges_key",
            "machines need no key",
        ),
        (
            &[("\"soft\"", "\"openflow\"")],
            "uplink[0].tunnel",
            "has no tunnels",
        ),
        (
            &[("\"soft\"", "\"ebpf\""), ("7 }", "7, edges_key = \"/k\" }")],
            "uplink[0].tunnel.edges_key",
            "the driver ebpf finds no flows",
        ),
        (
            &[
                ("\"soft\"", "\"ebpf\""),
                ("[service.web]", "[service.web]\nscheduler = \"machines\""),
            ],
            "service.web.scheduler",
            "the driver ebpf does not go by reports",
        ),
        (
            &[("kernel:eth1", "memif:w")],
            "uplink[0].tunnel",
            "interfaces of the kernel",
        ),
        (
            &[("max_frame = 1572", "max_frame = 1351")],
            "uplink[0].tunnel",
            "max_frame of the uplink is 1351",
        ),
        (
            &[("7 }", "7, from = [\"10.9.0.1\"] }")],
            "uplink[0].tunnel.from",
            "near end itself",
        ),
        (
            &[("7 }", "7, from = [\"10.9.0.9\"] }")],
            "service.web.port",
            "must not go into another one",
        ),
        (&[("7 }", "16777216 }")], "uplink[0].tunnel.network", "16777215"),
        (
            &[("\"10.9.0.1\"", "\"::1\"")],
            "uplink[0].tunnel.address",
            "IPv4 address",
        ),
        (
            &[("tunnel = { address = \"10.9.0.1\", network = 7 }\n", "")],
            "service.web.port",
            "no uplink has an end",
        ),
        (
            &[("10.9.0.3:4789", "10.9.0.3:80")],
            "service.web.instances.from",
            "UDP port of VXLAN",
        ),
        (
            &[("10.9.0.3:4789", "10.9.0.1:4789")],
            "service.web.instances.from",
            "near end itself",
        ),
        (
            &[("[service.web]", "[service.web]\nhealth = { http = \"/\" }")],
            "service.web.health",
            "remove health",
        ),
    ];
    for (change, key, said) in cases {
        let problems = problems_of(&behind_tunnels(change)).join("\n");
        let found = problems
            .lines()
            .any(|line| line.contains(key) && line.contains(said));
        assert!(found, "{key}: {said}\n{problems}");
    }
}

/// A machine behind an edge, with lines in the place of those that there are.
fn machine(change: &[(&str, &str)]) -> String {
    let mut text = "[switch]\ndriver = \"soft\"\n[[uplink]]\nname = \"wan\"\ndevice = \"kernel:eth1\"\nmax_frame = \
                    1572\ntunnel = { address = \"10.9.0.2\", network = 7, from = [\"10.9.0.1\"] }\n[[uplink]]\nname = \
                    \"lan\"\ndevice = \"kernel:eth2\"\n[service.web]\nuplinks = [\"wan\"]\nimage = \"nginx\"\nreplies = \
                    \"edge\"\n"
        .to_owned();
    for (from, to) in change {
        assert!(text.contains(from), "{from}");
        text = text.replace(from, to);
    }
    text
}

#[test]
fn replies_return_through_the_edge_where_there_is_one() {
    let edge = [(
        "[service.web]",
        "[service.web]\nreplies = \"edge\"\nflow_counters = true",
    )];
    for text in [machine(&[]), behind_tunnels(&edge)] {
        assert_eq!(good(&text).services[0].replies, Replies::Edge);
    }
    let by_default = good(&behind_tunnels(&[]));
    assert_eq!(by_default.services[0].replies, Replies::Direct);
    type Case<'a> = (&'a [(&'a str, &'a str)], &'a str);
    let cases: [Case<'_>; 6] = [
        (
            &[
                ("\"soft\"", "\"ebpf\""),
                ("image", "vip = { address = \"10.0.0.100\", ports = 80 }\nimage"),
            ],
            "the driver ebpf has no replies through the edge",
        ),
        (&[(", from = [\"10.9.0.1\"]", "")], "no edge sends packets"),
        (
            &[("uplinks = [\"wan\"]", "uplinks = [\"lan\"]")],
            "no edge sends packets",
        ),
        (
            &[("uplinks = [\"wan\"]", "uplinks = [\"wan\", \"lan\"]")],
            "no edge sends packets",
        ),
        (
            &[(
                "tunnel = { address = \"10.9.0.2\", network = 7, from = [\"10.9.0.1\"] }\n",
                "",
            )],
            "there is no way to an edge",
        ),
        (
            &[
                ("image", "next = \"other\"\nimage"),
                (
                    "[service.web]",
                    "[service.other]\nuplinks = [\"wan\"]\nimage = \"nginx\"\n[service.web]",
                ),
            ],
            "leaves a chain",
        ),
    ];
    for (change, said) in cases {
        let problems = problems_of(&machine(change)).join("\n");
        let found = problems
            .lines()
            .any(|line| line.contains("service.web.replies") && line.contains(said));
        assert!(found, "{said}\n{problems}");
    }
}

/// An edge that takes load reports.
const TAKES: &str = "scheduler = \"machines\"\n[reports]\nlisten = \"192.0.2.1:4790\"\n[[reports.machines]]\nnumber = \
                     1\naddress = \"10.9.0.2\"\nkey = \"/etc/inco/1.key\"\n[[reports.machines]]\nnumber = 2\naddress = \
                     \"10.9.0.3\"\nkey = \"/etc/inco/2.key\"\n";
/// A machine that sends them.
const SENDS: &str = "[reports]\nmachine = 1\nto = [\"192.0.2.1:4790\"]\nkey = \"/etc/inco/key\"\n";

#[test]
fn load_reports_are_read_at_both_ends() {
    let edge = good(&(behind_tunnels(&[]) + TAKES));
    let takes = edge.reports.takes.as_ref().unwrap();
    assert_eq!(takes.listen.to_string(), "192.0.2.1:4790");
    let machines: Vec<_> = takes
        .machines
        .iter()
        .map(|of| (of.number, of.address.unwrap().to_string()))
        .collect();
    assert_eq!(machines, [(1, "10.9.0.2".to_owned()), (2, "10.9.0.3".to_owned())]);
    assert!(edge.reports.sends.is_none());
    assert_eq!(edge.services[0].scheduler.name(), "machines");
    let text = |problems: Vec<configuration::Problem>| -> String {
        problems.iter().map(|problem| format!("{problem}\n")).collect()
    };
    let lacking = text(check_facts(
        &edge,
        &Machine(&["/etc/inco/2.key", "192.0.2.1:4790"]),
    ));
    assert!(
        lacking.contains("reports.machines[1].key") && lacking.contains("reports.listen"),
        "{lacking}"
    );

    let machine = good(&(SHORT.to_owned() + SENDS));
    let sends = machine.reports.sends.as_ref().unwrap();
    assert_eq!((sends.machine, sends.to.len()), (1, 1));
    assert!(machine.reports.takes.is_none());
    let lacking = text(check_facts(&machine, &Machine(&["/etc/inco/key"])));
    assert!(lacking.contains("reports.key"), "{lacking}");
}

#[test]
fn reports_that_nobody_can_send_or_take_are_refused() {
    let edge = behind_tunnels(&[]) + TAKES;
    let machine = SHORT.to_owned() + SENDS;
    let cases: [(&str, &str, &str, &str, &str); 19] = [
        (
            &edge,
            "\"machines\"",
            "{ policy = \"machines\", spill = true }",
            "service.web.scheduler.spill",
            "from its hash",
        ),
        (
            &edge,
            "listen = \"192.0.2.1:4790\"\n",
            "",
            "reports.listen",
            "missing",
        ),
        (
            &edge,
            "192.0.2.1:4790",
            "192.0.2.1:0",
            "reports.listen",
            "with a port",
        ),
        (
            &edge,
            "number = 2",
            "number = 1",
            "reports.machines[1].number",
            "already has a machine",
        ),
        (
            &edge,
            "number = 2",
            "number = 1024",
            "reports.machines[1].number",
            "1023",
        ),
        (
            &edge,
            "10.9.0.3\"\nkey",
            "10.9.0.2\"\nkey",
            "reports.machines[1].address",
            "already has a machine",
        ),
        (
            &edge,
            "/2.key",
            "/1.key",
            "reports.machines[1].key",
            "already has a machine",
        ),
        (
            &edge,
            "address = \"10.9.0.3\"\n",
            "",
            "reports.machines[1].address",
            "missing",
        ),
        (
            &edge,
            "key = \"/etc/inco/2.key\"\n",
            "",
            "reports.machines[1].key",
            "missing",
        ),
        (
            &edge,
            "\"10.9.0.3\"\nkey",
            "\"10.9.0.9\"\nkey",
            "reports.machines[1].address",
            "no service with",
        ),
        (
            &edge,
            "\"machines\"",
            "\"maglev\"",
            "reports.machines[0].address",
            "no service with",
        ),
        (
            &edge,
            "scheduler =",
            "capacity = \"1kpps\"\nscheduler =",
            "service.web.capacity",
            "its own capacity",
        ),
        (
            &edge,
            "[reports]\n",
            "[reports]\nmachine = 1\nto = [\"192.0.2.1:1\"]\nkey = \"/k\"\n",
            "reports.listen",
            "is no edge",
        ),
        (&machine, "machine = 1\n", "", "reports.machine", "missing"),
        (
            &machine,
            "key = \"/etc/inco/key\"\n",
            "",
            "reports.key",
            "missing",
        ),
        (
            &machine,
            "to = [\"192.0.2.1:4790\"]\n",
            "",
            "reports.to",
            "missing",
        ),
        (&machine, "[\"192.0.2.1:4790\"]", "[]", "reports.to", "no edge"),
        (
            &machine,
            "192.0.2.1:4790",
            "0.0.0.0:4790",
            "reports.to[0]",
            "not the IP address of an edge",
        ),
        (
            &machine,
            "[\"192.0.2.1:4790\"]",
            "[\"192.0.2.1:1\", \"192.0.2.1:1\"]",
            "reports.to[1]",
            "twice",
        ),
    ];
    for (text, from, to, key, said) in cases {
        assert!(text.contains(from), "{from}");
        let problems = problems_of(&text.replace(from, to)).join("\n");
        let found = problems
            .lines()
            .any(|line| line.contains(key) && line.contains(said));
        assert!(found, "{key}: {said}\n{problems}");
    }
    // Who goes by reports.
    let no_tunnel = SHORT.to_owned() + "scheduler = \"machines\"\n";
    let problems = problems_of(&no_tunnel).join("\n");
    assert!(problems.contains("the instances are no such"), "{problems}");
    let no_reports = behind_tunnels(&[]) + "scheduler = \"machines\"\n";
    let problems = problems_of(&no_reports).join("\n");
    assert!(problems.contains("this edge takes none"), "{problems}");
}
