//! Functions on the host beside a card: inco and Open vSwitch as on the card, and the containers by the host's Docker
//! engine, which is reached over TLS alone. What a card has for it is played: see [`FileFunction`].

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use api::types::{FlowFilter, InstanceRow, PortPool};
use model::{InstanceId, InstanceState};

use crate::support::{
    Authority, Engine, FileFunction, Inco, Ovs, PATIENCE, Place, PrivateDockerd, assert_clean_without_stamps,
    eventually, text,
};

const IMAGE: &str = "inco-test/frames";
/// What the containers run, beside what it needs.
const PROGRAMS: [&str; 2] = ["/bin/dash", "/bin/dd"];
/// Writes each frame of the only function that the container has back to where it was read.
const FORWARD: &str = "set -- /dev/vfio/[0-9]*; exec 0<>\"$1\" 1>&0; exec /bin/dd bs=64K";
const COUNT: usize = 2;

/// An image with these programs of this machine, and what they are linked with, in the store of inco.
fn make_image(place: &Place) {
    let root = place.path("root");
    let mut files = BTreeSet::new();
    for program in PROGRAMS {
        let linked = Command::new("ldd").arg(program).output().unwrap();
        let linked = text(&linked.stdout);
        let words = linked.split_whitespace().filter(|word| word.starts_with('/'));
        files.extend(words.map(str::to_owned));
        files.insert(program.to_owned());
    }
    for file in files {
        let to = root.join(file.trim_start_matches('/'));
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(&file, &to).unwrap();
    }
    place.must(&[
        "image",
        "import",
        IMAGE,
        root.to_str().unwrap(),
        "--",
        PROGRAMS[0],
        "-c",
        FORWARD,
    ]);
}

fn configuration(ovs: &Ovs, dockerd: &PrivateDockerd, keys: &Path, functions: &[FileFunction]) -> String {
    let devices: Vec<String> = (functions.iter().enumerate())
        .map(|(index, of)| of.toml(&format!("0000:81:00.{index}")))
        .collect();
    format!(
        r#"
{}
[switch.timeouts]
udp = "5s"
[engine]
driver = "docker"
host = "{}"
tls = "{}"
[[uplink]]
name = "wan"
device = "memif:wan.sock"
[service.frames]
image = "{IMAGE}"
memory = "64MiB"
symmetric = false
capacity = "10kpps"
scheduler = "round-robin"
instances = {COUNT}
stop_grace = "200ms"
port = "device"
devices = [{}]
"#,
        ovs.toml(),
        dockerd.host(),
        keys.display(),
        devices.join(", "),
    )
}

/// As in [`LOAD`].
const FLOWS: u32 = 32;
const LOAD: &str = r#"
uplink_wait = "5s"
settle = "10s"
verify = "payload"
[[phase]]
duration = "2s"
flows = 32
rate_per_flow = "20pps"
"#;

/// Traffic of which every packet comes back once, in order, unchanged, and by the instance of its flow. The program
/// in the containers does not stamp: each instance had the packets of its flows, and no others meanwhile. How many
/// had some.
fn every_packet_comes_back(inco: &Inco, place: &Place) -> usize {
    let before = inco.instances();
    let mut traffic = place.traffic(LOAD);
    let mut instances = BTreeMap::new();
    let mut look = || {
        let page = inco.client().flows(&FlowFilter::default()).unwrap();
        for flow in page.flows {
            let first = *instances.entry(flow.flow.clone()).or_insert(flow.forward);
            assert_eq!(first, flow.forward, "{} has changed its instance", flow.flow);
        }
    };
    while traffic.is_running() {
        look();
        std::thread::sleep(Duration::from_millis(50));
    }
    let report = traffic.report();
    assert_clean_without_stamps(&report);
    let c = &report.counts;
    // Each flow sends as many.
    let each = c.offered_packets / u64::from(FLOWS);
    assert!(
        each > 30 && c.offered_packets == each * u64::from(FLOWS),
        "{c:#?}"
    );
    let mut expected: BTreeMap<InstanceId, (u64, u64)> = BTreeMap::new();
    for instance in instances.values() {
        let (to, back) = expected.entry(instance.unwrap()).or_default();
        (*to, *back) = (*to + each, *back + each);
    }
    assert_eq!(instances.len(), FLOWS as usize);
    let with_flows = expected.len();
    for row in &before {
        expected.entry(row.id).or_default();
    }
    let mut last = BTreeMap::new();
    let counted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        eventually("all packets are counted where they went", PATIENCE, || {
            let since = |row: InstanceRow| {
                let earlier = before.iter().find(|earlier| earlier.id == row.id).unwrap();
                let to = row.to_packets - earlier.to_packets;
                (row.id, (to, row.back_packets - earlier.back_packets))
            };
            last = inco.instances().into_iter().map(since).collect();
            (last == expected).then_some(())
        });
    }));
    assert!(counted.is_ok(), "{last:?} {expected:?} {}", inco.told());
    eventually("the flows have ended", PATIENCE, || {
        let page = inco.client().flows(&FlowFilter::default()).unwrap();
        page.flows.is_empty().then_some(())
    });
    with_flows
}

#[test]
fn functions_of_the_host_are_run_by_its_docker_engine_over_tls() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::quiet();
    let Some(ovs) = Ovs::start_here() else { return };
    let authority = Authority::new("the host's authority");
    let server = authority.keys(place.path("host"));
    let ours = authority.keys(place.path("card"));
    let Some(dockerd) = PrivateDockerd::start_over_tls(&place.path("docker"), server, ours.clone()) else {
        return;
    };
    make_image(&place);
    let functions: Vec<FileFunction> = (0..COUNT).map(FileFunction::make).collect();
    let inco = place.run(&configuration(&ovs, &dockerd, &ours, &functions));
    let first = inco.settled(COUNT, 0);
    assert_eq!(inco.status().ports, Some(PortPool { made: 2, taken: 2 }));
    let ports = ovs.watch_ports();

    // Each container has one function of its own.
    let names = dockerd.output(&["ps", "--format", "{{.Names}}"]).unwrap();
    let devices = |name: &str| {
        let format = "{{range .HostConfig.Devices}}{{.PathOnHost}} {{end}}";
        let listed = dockerd.output(&["inspect", "--format", format, name]).unwrap();
        listed
            .split_whitespace()
            .map(str::to_owned)
            .collect::<BTreeSet<_>>()
    };
    let mut had: Vec<BTreeSet<String>> = names.lines().map(devices).collect();
    let mut expected: Vec<BTreeSet<String>> = (functions.iter())
        .map(|of| {
            ["/dev/vfio/vfio", of.file().to_str().unwrap()]
                .map(str::to_owned)
                .into()
        })
        .collect();
    had.sort();
    expected.sort();
    assert_eq!(had, expected);

    // A new instance gets buckets of the other one, some at a time: flows may still all come to that one, the next do
    // not.
    let both_serve = || (0..2).any(|_| every_packet_comes_back(&inco, &place) == COUNT);
    assert!(both_serve(), "{:#?}", inco.instances());

    // One ends on the host: that is told over the connection, and the next one has its function.
    let killed = first[0].container.clone().unwrap();
    assert!(dockerd.output(&["kill", &killed]).is_some());
    eventually("another one is there", PATIENCE, || {
        let rows = inco.instances();
        let is_new = |i: &InstanceRow| i.id.0 > first[1].id.0 && i.state == InstanceState::Active;
        (rows.len() == COUNT && rows.iter().any(is_new)).then_some(())
    });
    inco.note_traces();
    assert!(both_serve(), "{:#?}", inco.instances());
    ports.assert_as_before();

    // The containers' processes were the host's.
    let (_said, traces) = inco.stop_with(&place, &[]);
    eventually("nothing of inco is left", PATIENCE, || {
        traces.left().is_empty().then_some(())
    });
    assert_eq!(
        dockerd.output(&["ps", "-aq"]).unwrap(),
        "",
        "no container is left"
    );
    assert_eq!(ovs.bridges(), "", "the bridge is removed");
    assert_eq!(ovs.complaints(), "");
}
