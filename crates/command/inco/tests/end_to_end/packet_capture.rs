//! `inco capture`: a file that tshark reads, with each packet of the generator at each point, and drops by reason.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;

use crate::addresses::{are_here, nginx};
use crate::support::{Engine, IMAGE, Network, PATIENCE, Place, eventually, kill, text};

/// What is not for port 9 belongs to no service.
const CONFIGURATION: &str = r#"
[[uplink]]
name = "wan"
device = "memif:wan.sock"

[service.forward]
match = { proto = "udp", dst_port = "DST_PORT" }
image = "IMAGE"
command = ["/inco-nf", "forward"]
memory = "64MiB"
instances = { min = 1, max = 2, standby = 0 }
autoscaler = "fixed"
"#;

const LOAD: &str = r#"
uplink_wait = "5s"
settle = "1s"
[[phase]]
duration = "1s"
flows = 3
rate_per_flow = "50pps"
"#;

/// Whether tshark is here.
fn has_tshark() -> bool {
    let version = Command::new("tshark").arg("--version").output();
    let missing = version.err().map(|error| format!("tshark: {error}"));
    real_parts::available("tshark", missing)
}

/// A capture that runs, once inco has begun it.
fn begin(place: &Place, file: &Path, arguments: &[&str]) -> Child {
    let name = file.to_str().unwrap();
    let mut command = place.inco(&["capture", "-w", name]);
    command.args(arguments).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    eventually("the capture begins", PATIENCE, || {
        std::fs::metadata(file)
            .is_ok_and(|file| file.len() > 0)
            .then_some(())
    });
    child
}

/// A packet as tshark shows it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Shown {
    point: String,
    comment: String,
    length: String,
    source_port: String,
    payload: String,
}

fn shown(file: &Path, filter: &str) -> Vec<Shown> {
    let output = Command::new("tshark")
        .args(["-n", "-r"])
        .arg(file)
        .args(["-Y", filter, "-T", "fields", "-E", "separator=|"])
        .args([
            "-e",
            "frame.interface_name",
            "-e",
            "frame.comment",
            "-e",
            "frame.len",
        ])
        .args(["-e", "udp.srcport", "-e", "udp.payload"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let row = |line: &str| {
        let mut fields = line.split('|').map(str::to_owned);
        let mut next = || fields.next().unwrap_or_default();
        Shown {
            point: next(),
            comment: next(),
            length: next(),
            source_port: next(),
            payload: next(),
        }
    };
    text(&output.stdout).lines().map(row).collect()
}

#[test]
fn each_packet_of_a_flow_is_captured_at_each_point() {
    if !Engine::Oci.is_here() || !has_tshark() {
        return;
    }
    let place = Place::new();
    let inco = place.run(
        &CONFIGURATION
            .replace("IMAGE", IMAGE)
            .replace("DST_PORT", "1-65535"),
    );
    inco.settled(1, 0);
    let file = place.path("all.pcapng");
    let arguments = ["forward", "--seconds", "8", "--snaplen", "2000"];
    let capture = begin(&place, &file, &arguments);

    // One at a time.
    let second = place.output(&["capture", "-w", "-"]);
    assert_eq!(second.status.code(), Some(1));
    assert!(
        text(&second.stderr).contains("a capture runs already"),
        "{}",
        text(&second.stderr)
    );

    let counts = place.traffic(LOAD).report().counts;
    assert_eq!(
        (counts.returned_packets, counts.altered),
        (counts.offered_packets, 0),
        "{counts:#?}"
    );
    let offered = counts.offered_packets as usize;
    let told = text(&capture.wait_with_output().unwrap().stderr);
    assert!(
        told.contains(&format!("{} packets captured\n", 4 * offered)),
        "{told}, of {offered} packets"
    );

    let all = shown(&file, "udp");
    let of = |point: &str, word: &str| -> Vec<Shown> {
        let rows = all
            .iter()
            .filter(|row| row.point == point && row.comment.contains(word));
        let mut rows: Vec<Shown> = rows.cloned().collect();
        rows.sort_by(|a, b| a.payload.cmp(&b.payload));
        rows
    };
    let before = of("before", "instance=forward/1 flow=udp ");
    let after = of("after", "instance=forward/1 flow=udp ");
    assert_eq!((before.len(), after.len()), (offered, offered), "{all:#?}");
    let at_uplink = of("uplink", "uplink=wan flow=udp ");
    assert_eq!(at_uplink.len(), 2 * offered);
    // The function changes nothing, and each packet is another one.
    for (i, row) in before.iter().enumerate() {
        let same = |other: &Shown| {
            (&row.payload, &row.length, &row.source_port)
                == (&other.payload, &other.length, &other.source_port)
        };
        assert!(same(&after[i]) && same(&at_uplink[2 * i]) && same(&at_uplink[2 * i + 1]));
        assert!(!row.payload.is_empty());
        assert!(i == 0 || before[i - 1].payload != row.payload);
    }
    let inbound = shown(&file, "frame.packet_flags_direction == 1");
    let outbound = shown(&file, "frame.packet_flags_direction == 2");
    assert_eq!((inbound.len(), outbound.len()), (offered, offered));

    // One flow of them, at an instance that exists, until enough packets are there.
    let flow = before[0].comment.split("flow=").nth(1).unwrap().to_owned();
    let file = place.path("flow.pcapng");
    let arguments = [flow.as_str(), "--point", "before", "--packets", "20"];
    let capture = begin(&place, &file, &arguments);
    let counts = place.traffic(LOAD).report().counts;
    assert_eq!(counts.returned_packets, counts.offered_packets, "{counts:#?}");
    let told = text(&capture.wait_with_output().unwrap().stderr);
    assert!(told.contains("20 packets captured"), "{told}");
    let of_flow = shown(&file, "udp");
    assert_eq!(of_flow.len(), 20);
    for row in &of_flow {
        assert_eq!(
            (row.point.as_str(), &row.source_port),
            ("before", &before[0].source_port)
        );
    }
    let captures = inco.events().into_iter().filter(|event| {
        matches!(&event.kind, model::EventKind::Action { action, refused, .. } if action == "capture" && !refused)
    });
    assert_eq!(captures.count(), 2);
    inco.stop(&place);
}

#[test]
fn drops_are_captured_by_their_reason_and_a_client_that_goes_ends_its_capture() {
    if !Engine::Oci.is_here() || !has_tshark() {
        return;
    }
    let place = Place::new();
    // No packet of the generator goes there.
    let inco = place.run(&CONFIGURATION.replace("IMAGE", IMAGE).replace("DST_PORT", "1"));
    inco.settled(1, 0);
    // Its client goes away.
    let gone = place.path("gone.pcapng");
    let mut client = begin(&place, &gone, &["--seconds", "3600"]);
    client.kill().unwrap();
    client.wait().unwrap();

    let file = place.path("drops.pcapng");
    let mut running = None;
    eventually("the capture before it has ended", PATIENCE, || {
        let mut command = place.inco(&["capture", "--drops", "unmatched", "--packets", "30", "-w"]);
        let mut child = command.arg(&file).stderr(Stdio::piped()).spawn().unwrap();
        eventually("it begins or is refused", PATIENCE, || {
            let has_begun = std::fs::metadata(&file).is_ok_and(|file| file.len() > 0);
            (has_begun || child.try_wait().unwrap().is_some()).then_some(())
        });
        running = child.try_wait().unwrap().is_none().then_some(child);
        running.is_some().then_some(())
    });
    let traffic = place.traffic(LOAD);
    let told = text(&running.unwrap().wait_with_output().unwrap().stderr);
    assert!(told.contains("30 packets captured"), "{told}");
    drop(traffic);
    let drops = shown(&file, "udp");
    assert_eq!(drops.len(), 30);
    for row in &drops {
        assert_eq!(row.point, "dropped");
        assert!(row.comment.starts_with("reason=unmatched flow=udp "), "{row:?}");
    }

    // The file of one that runs is valid, and so is that of one whose size is limited.
    let traffic = place.traffic(&LOAD.replace("1s", "60s"));
    let file = place.path("interrupted.pcapng");
    let capture = begin(&place, &file, &["--drops", "--packets", "1000000"]);
    eventually("packets are in it", PATIENCE, || {
        std::fs::metadata(&file)
            .is_ok_and(|file| file.len() > 5000)
            .then_some(())
    });
    kill(capture.id(), Signal::INT);
    let ended = capture.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(0));
    let (told, rows) = (text(&ended.stderr), shown(&file, "udp").len());
    assert!(
        rows > 0 && told.contains(&format!("{rows} packets captured; ended")),
        "{rows}: {told}"
    );

    let file = place.path("limited.pcapng");
    let mut limited = None;
    eventually("the capture before it has ended", PATIENCE, || {
        let mut command = place.inco(&["capture", "--drops", "--bytes", "5000", "-w"]);
        let output = command.arg(&file).output().unwrap();
        limited = output.status.success().then(|| text(&output.stderr));
        limited.is_some().then_some(())
    });
    let (told, rows) = (limited.unwrap(), shown(&file, "udp").len());
    assert!(
        told.contains(&format!("{rows} packets captured\n")),
        "{rows}: {told}"
    );
    // There was no room for one more.
    let bytes = std::fs::metadata(&file).unwrap().len();
    assert!((4700..=5000).contains(&bytes), "{bytes}");
    let told = Command::new("capinfos")
        .args(["-c", "-M"])
        .arg(&file)
        .output()
        .unwrap();
    assert!(told.status.success(), "{}", text(&told.stderr));
    assert!(
        text(&told.stdout).contains(&format!("{rows}\n")),
        "{}",
        text(&told.stdout)
    );
    drop(traffic);

    let refused = place.output(&["capture", "--drops", "unheard_of", "-w", "-"]);
    assert_eq!(refused.status.code(), Some(1));
    let told = text(&refused.stderr);
    assert!(
        told.contains("unknown reason \"unheard_of\"") && told.contains("unmatched"),
        "{told}"
    );
    inco.stop(&place);
}

#[test]
fn packets_of_an_ordinary_server_are_captured_at_its_kernel_port() {
    if !are_here(Engine::Oci, &["nginx", "curl"]) || !has_tshark() {
        return;
    }
    let (place, network) = (Place::new(), Network::new());
    let inco = network.run(&place, &nginx(&place, Engine::Oci, "soft", "instances = 2\n"));
    let rows = inco.settled(2, 0);
    let file = place.path("web.pcapng");
    let capture = begin(&place, &file, &["web"]);
    assert_eq!(network.get("http://10.0.0.100/").unwrap(), "served\n");
    // The client's last packet is the one that says that it has all.
    eventually("the connection has ended", PATIENCE, || {
        let ended = shown(&file, "frame.interface_name == \"after\" && tcp.flags.fin == 1");
        (!ended.is_empty()).then_some(())
    });
    kill(capture.id(), Signal::INT);
    assert!(capture.wait_with_output().unwrap().status.success());
    // The request is there at each step, and the answer as well, as often as TCP sent them. tshark takes the second step
    // for a repetition, and looks no further into it than TCP.
    let asked = shown(&file, "tcp.len > 0 && tcp.dstport == 80");
    let answered = shown(&file, "tcp.len > 0 && tcp.srcport == 80");
    let at = |rows: &[Shown], point: &str| rows.iter().filter(|row| row.point == point).count();
    for (rows, first, second) in [(&asked, "uplink", "before"), (&answered, "after", "uplink")] {
        let ends = (rows[0].point.as_str(), rows[rows.len() - 1].point.as_str());
        assert_eq!(ends, (first, second), "{rows:#?}");
        let (times, again) = (at(rows, first), at(rows, second));
        assert_eq!((times, times + again), (again, rows.len()), "{rows:#?}");
    }
    let instance = |row: &Shown| {
        let words = row
            .comment
            .split(' ')
            .find_map(|word| word.strip_prefix("instance=web/"));
        words.unwrap_or_default().to_owned()
    };
    let served = instance(&asked[asked.len() - 1]);
    assert!(
        answered.iter().all(|row| instance(row) == served),
        "{answered:#?}"
    );
    assert!(rows.iter().any(|row| row.id.0.to_string() == served), "{served}");
    inco.stop(&place);
}

#[test]
fn a_switch_in_the_kernel_refuses_captures_and_says_what_to_use() {
    if !are_here(Engine::Oci, &["nginx", "curl"]) {
        return;
    }
    let (place, network) = (Place::new(), Network::new());
    let inco = network.run(&place, &nginx(&place, Engine::Oci, "ebpf", "instances = 1\n"));
    inco.settled(1, 0);
    let file = place.path("none.pcapng");
    let refused = place.output(&["capture", "-w", file.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(1));
    let told = text(&refused.stderr);
    assert!(told.contains("cannot capture packets: use tcpdump"), "{told}");
    assert!(told.contains("driver = \"soft\""), "{told}");
    assert!(!file.exists());
    inco.stop(&place);
}
