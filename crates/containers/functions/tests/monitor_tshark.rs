//! An independent program reads what the function `monitor` exports: tshark decodes the messages of IPFIX.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::fs;
use std::net::SocketAddr;
use std::process::Command;

use functions::{Burst, Chain, LIBRARY, RECEIVED_LIMIT, Setup, find};
use model::Nanos;
use packet::build::Frame;
use packet::capture::{CaptureWriter, Captured};

const TEXT: &str = "[export]\ncollector = \"192.0.2.9:4739\"\nsource = \"192.0.2.1:4739\"\ncollector_mac = \
                    \"02:00:00:00:00:01\"\nsource_mac = \"02:00:00:00:00:02\"\nboot_unix_s = 1700000000\n";
const FLOWS: u16 = 100;

/// What the records of a family have in these fields, a line each, in order.
fn decoded(capture: &[u8], fields: &[&str]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("export.pcap");
    fs::write(&path, capture).unwrap();
    let mut tshark = Command::new("tshark");
    tshark
        .args(["-d", "udp.port==4739,cflow", "-T", "fields", "-r"])
        .arg(&path);
    fields.iter().for_each(|field| {
        tshark.args(["-e", field]);
    });
    let output = tshark.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let mut records = Vec::new();
    // A message has the values of all its records in each field.
    for message in text.lines().filter(|line| !line.trim().is_empty()) {
        let columns: Vec<Vec<&str>> = message
            .split('\t')
            .map(|column| column.split(',').collect())
            .collect();
        for at in 0..columns[0].len() {
            let row: Vec<&str> = columns.iter().map(|column| column[at]).collect();
            records.push(row.join(" "));
        }
    }
    records.sort_unstable();
    records
}

fn exported(of: impl Fn(u16) -> [SocketAddr; 2]) -> Vec<u8> {
    let setup = Setup {
        instance: 1,
        ports: 1,
        seed: 7,
        external: None,
    };
    let stage = find(LIBRARY, "monitor").unwrap().make(TEXT, &setup).unwrap();
    let mut chain = Chain::new(vec![stage]).unwrap();
    let mut burst = Burst::new();
    let mut now = Nanos::from_secs(100);
    // As many packets as the number of their flow says, at most four.
    for round in 0..4 {
        let flows: Vec<u16> = (1..=FLOWS).filter(|number| number % 4 >= round).collect();
        for flows in flows.chunks(RECEIVED_LIMIT) {
            burst.begin(0, 0);
            for number in flows {
                let [from, to] = of(*number);
                let payload = vec![0; usize::from(*number)];
                assert!(burst.push(&Frame::udp(from, to, &payload).unwrap().to_vec().unwrap()));
            }
            chain.process(&mut burst, now);
        }
        now = now + Nanos::from_millis(10);
    }
    let mut capture = CaptureWriter::new();
    // Flows are idle after 15 s.
    for _ in 0..2_000 {
        now = now + Nanos::from_millis(10);
        if !chain.tick(0, &mut burst, 0, now) {
            continue;
        }
        for extent in burst.leaving() {
            let frame = burst.bytes_of(extent);
            capture.push(&Captured {
                timestamp_ns: now.0,
                frame,
                original_len: frame.len() as u32,
            });
        }
    }
    capture.into_bytes()
}

#[test]
fn tshark_reads_what_is_exported() {
    let version = Command::new("tshark").arg("--version").output();
    let missing = version.err().map(|error| format!("tshark: {error}"));
    if !real_parts::available("tshark", missing) {
        return;
    }
    let lines = |line: &dyn Fn(u16, u64) -> String| {
        let mut all: Vec<String> = (1..=FLOWS)
            .map(|number| line(number, u64::from(number % 4) + 1))
            .collect();
        all.sort_unstable();
        all
    };
    let of_v4 =
        exported(|number| [([10, 0, 0, 1], 1000 + number), ([192, 0, 2, 1], 53)].map(SocketAddr::from));
    let common = [
        "cflow.srcport",
        "cflow.dstport",
        "cflow.protocol",
        "cflow.packets",
        "cflow.octets",
    ];
    let values = |number: u16, packets: u64, header: u64| {
        let bytes = packets * (header + 8 + u64::from(number));
        format!("{} 53 17 {packets} {bytes}", 1000 + number)
    };
    let fields = [&["cflow.srcaddr", "cflow.dstaddr"][..], &common].concat();
    assert_eq!(
        decoded(&of_v4, &fields),
        lines(&|number, packets| format!("10.0.0.1 192.0.2.1 {}", values(number, packets, 20)))
    );
    let client = |number| SocketAddr::new("2001:db8::1".parse().unwrap(), 1000 + number);
    let of_v6 = exported(|number| {
        [
            client(number),
            SocketAddr::new("2001:db8::2".parse().unwrap(), 53),
        ]
    });
    let fields = [&["cflow.srcaddrv6", "cflow.dstaddrv6"][..], &common].concat();
    assert_eq!(
        decoded(&of_v6, &fields),
        lines(&|number, packets| format!("2001:db8::1 2001:db8::2 {}", values(number, packets, 40)))
    );
}
