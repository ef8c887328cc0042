//! Real captures through `forward` containers.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use model::InstanceState;

use crate::support::{Engine, IMAGE, Place, assert_clean, assert_undisturbed, assert_undisturbed_but, data};

fn configuration(engine: Engine) -> String {
    format!(
        r#"
[switch]
# The PPPoE of asa_exploit.pcap is no IP: it passes by the function.
other = "wan"

[[uplink]]
name = "wan"
device = "memif:wan.sock"
# jumbo.pcap
max_frame = 9022

[service.forward]
image = "{IMAGE}"
command = ["/inco-nf", "forward", "--stamp"]
cpus = 0.5
memory = "64MiB"
capacity = "50kpps"
instances = {{ min = 3, max = 3, standby = 0 }}
scheduler = "round-robin"
autoscaler = "fixed"
ring = {{ slots = 4096 }}
{}"#,
        engine.toml()
    )
}

fn captures(data: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(data.join("trex"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "pcap"))
        .collect();
    files.push(data.join("opennetvm_64B_download.pcap"));
    files.sort();
    files
}

/// Packets of a capture, by the headers of its records alone.
fn packets_in(file: &Path) -> u64 {
    let bytes = std::fs::read(file).unwrap();
    let is_big_endian = bytes[0] == 0xa1;
    let word = |at: usize| {
        let word = bytes[at..at + 4].try_into().unwrap();
        if is_big_endian {
            u32::from_be_bytes(word)
        } else {
            u32::from_le_bytes(word)
        }
    };
    let (mut at, mut packets) = (24, 0);
    while at + 16 <= bytes.len() {
        at += 16 + word(at + 8) as usize;
        packets += 1;
    }
    packets
}

/// All at once, the longest ones at the rates at which they all end together.
fn profile(files: &[PathBuf]) -> String {
    let mut profile = "uplink_wait = \"5s\"\nsettle = \"10s\"\ntick = \"500us\"\n".to_owned();
    for file in files {
        let rate = (packets_in(file) / 3).max(100);
        let _ = write!(
            profile,
            "[[capture]]\nfile = {:?}\nrate = \"{rate}pps\"\n",
            file.display().to_string()
        );
    }
    profile
}

fn comes_back_unchanged(engine: Engine) {
    if !engine.is_here() {
        return;
    }
    let Some(data) = data() else { return };
    let files = captures(&data);
    assert!(files.len() > 20, "{files:?}");
    let packets: u64 = files.iter().map(|file| packets_in(file)).sum();
    let place = Place::with_a_cpu();
    let inco = place.run(&configuration(engine));
    inco.settled(3, 0);
    let report = place.traffic(&profile(&files)).report();

    // Each flow on one instance; unchanged but for the stamp.
    let pppoe = packets_in(&data.join("trex/asa_exploit.pcap"));
    assert_undisturbed_but(&report, pppoe);
    assert_eq!(report.counts.offered_packets + report.skipped_frames, packets);
    assert_eq!(report.lost, 0, "{:#?}", report.counts);
    let status = inco.at_rest();
    assert!(status.drops.is_empty(), "{:#?}", status.drops);
    // Every instance had some of them, and together they had all but the PPPoE.
    let rows = inco.instances();
    assert!(
        rows.iter()
            .all(|i| i.state == InstanceState::Active && i.back_packets > 0),
        "{rows:#?}"
    );
    let served: u64 = rows.iter().map(|i| i.back_packets).sum();
    assert_eq!(served, report.counts.returned_packets - pppoe);
    inco.stop(&place);
}

#[test]
fn captures_come_back_unchanged_and_each_flow_from_one_instance_oci() {
    comes_back_unchanged(Engine::Oci);
}

#[test]
fn captures_come_back_unchanged_and_each_flow_from_one_instance_docker() {
    comes_back_unchanged(Engine::Docker);
}

/// Each SYN after a RST or FIN is a connection of its own, and gets the next instance. None of its packets goes to
/// another one.
#[test]
fn refused_and_ended_connections_are_no_mis_steers() {
    const REPEAT: u64 = 100;
    if !Engine::Oci.is_here() {
        return;
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../measure/traffic/tests/captures/refused-connections.pcap");
    let packets = packets_in(&file) * REPEAT;
    let place = Place::with_a_cpu();
    let inco = place.run(&configuration(Engine::Oci));
    inco.settled(3, 0);
    let text = profile(std::slice::from_ref(&file));
    let (head, _rate) = text.rsplit_once("rate =").unwrap();
    let report = place
        .traffic(&format!("{head}rate = \"15kpps\"\nrepeat = {REPEAT}\n"))
        .report();
    assert_clean(&report);
    assert_eq!(report.counts.offered_packets, packets);
    let status = inco.at_rest();
    assert!(status.drops.is_empty(), "{:#?}", status.drops);
    // The 5 refused ports alone would be 5 flows: that every instance has about a third says that they were new ones.
    let rows = inco.instances();
    let served = |row: &api::types::InstanceRow| row.back_packets > packets / 4;
    assert!(rows.iter().all(served), "{rows:#?}");
    inco.stop(&place);
}

/// Without a setting for them: frames longer than usual are dropped as such, and what is no IP as not IP.
#[test]
fn what_is_not_configured_is_dropped_by_name() {
    if !Engine::Oci.is_here() {
        return;
    }
    let Some(data) = data() else { return };
    let place = Place::with_a_cpu();
    let text = configuration(Engine::Oci)
        .replace("other = \"wan\"", "")
        .replace("max_frame = 9022", "")
        .replace("min = 3, max = 3", "min = 1, max = 1");
    let inco = place.run(&text);
    inco.settled(1, 0);
    let files = [data.join("trex/jumbo.pcap"), data.join("trex/asa_exploit.pcap")];
    let report = place.traffic(&profile(&files)).report();
    assert_undisturbed(&report);
    let status = inco.at_rest();
    assert_eq!(
        report.lost,
        status.drops.values().sum::<u64>(),
        "{:#?}",
        status.drops
    );
    assert_eq!(status.drops.get("other"), Some(&41), "{:#?}", status.drops);
    assert!(
        status.drops.get("too_large").is_some_and(|n| *n > 0),
        "{:#?}",
        status.drops
    );
    assert_eq!(status.drops.len(), 2, "{:#?}", status.drops);
    inco.stop(&place);
}
