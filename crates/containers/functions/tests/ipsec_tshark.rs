//! An independent program reads what the function `ipsec` sends: tshark decrypts the packets and checks them.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::process::Command;

use functions::{Burst, Chain, LIBRARY, Setup, find};
use model::Nanos;
use packet::build::Frame;
use packet::capture::{CaptureWriter, Captured};

#[test]
fn tshark_reads_what_enters_a_tunnel() {
    let version = Command::new("tshark").arg("--version").output();
    let missing = version.err().map(|error| format!("tshark: {error}"));
    if !real_parts::available("tshark", missing) {
        return;
    }
    let key = |byte: u8, len: usize| format!("{byte:02x}").repeat(len);
    let suites = [
        (
            "aes-128-gcm",
            16,
            0,
            "AES-GCM with 16 octet ICV [RFC4106]",
            "NULL",
        ),
        (
            "aes-256-gcm",
            32,
            0,
            "AES-GCM with 16 octet ICV [RFC4106]",
            "NULL",
        ),
        (
            "aes-256-ctr-hmac-sha1-96",
            32,
            20,
            "AES-CTR [RFC3686]",
            "HMAC-SHA-1-96 [RFC2404]",
        ),
    ];
    for (suite, key_len, authentication_len, cipher, authentication) in suites {
        for udp in ["", "udp_destination_port = 4500\n"] {
            let text = format!(
                "[[outbound]]\nname = \"out\"\nspi = 0x1001\nsuite = {suite:?}\nkey = {:?}\nsalt = {:?}\n\
                 authentication_key = {:?}\nsource = \"192.0.2.1\"\ndestination = \"192.0.2.2\"\n{udp}\
                 [[policy]]\naction = \"protect\"\noutbound = \"out\"\n",
                key(0xa1, key_len),
                key(0xb2, 4),
                key(0xc3, authentication_len),
            );
            let setup = Setup {
                instance: 1,
                ports: 2,
                seed: 7,
                external: None,
            };
            let stage = find(LIBRARY, "ipsec").unwrap().make(&text, &setup).unwrap();
            let mut chain = Chain::new(vec![stage]).unwrap();
            let mut burst = Burst::new();
            burst.begin(0, 1);
            let lengths = [0, 1, 2, 3, 4, 100, 1000, 1300];
            for len in lengths {
                for ends in [
                    ["10.1.0.5:7000", "10.2.0.6:7001"],
                    ["[fd01::5]:7000", "[fd02::6]:7001"],
                ] {
                    let [src, dst] = ends.map(|end| end.parse().unwrap());
                    let payload = vec![0x5a; len];
                    let frame = Frame::udp(src, dst, &payload).unwrap();
                    assert!(burst.push(&frame.to_vec().unwrap()));
                }
            }
            chain.process(&mut burst, Nanos::ZERO);
            let mut capture = CaptureWriter::new();
            for extent in burst.leaving() {
                let frame = burst.bytes_of(extent);
                capture.push(&Captured {
                    timestamp_ns: 0,
                    frame,
                    original_len: frame.len() as u32,
                });
            }
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("tunnel.pcap");
            fs::write(&path, capture.into_bytes()).unwrap();
            let association = format!(
                "uat:esp_sa:\"IPv4\",\"192.0.2.1\",\"192.0.2.2\",\"0x00001001\",\"{cipher}\",\"0x{}{}\",\
                 \"{authentication}\",\"{}\"",
                key(0xa1, key_len),
                key(0xb2, 4),
                if authentication_len == 0 {
                    String::new()
                } else {
                    format!("0x{}", key(0xc3, authentication_len))
                },
            );
            let output = Command::new("tshark")
                .args([
                    "-o",
                    "esp.enable_encryption_decode:TRUE",
                    "-o",
                    "esp.enable_authentication_check:TRUE",
                ])
                .args(["-o", &association, "-r"])
                .arg(&path)
                .args(["-T", "fields", "-E", "occurrence=l"])
                .args([
                    "-e",
                    "esp.sequence",
                    "-e",
                    "udp.dstport",
                    "-e",
                    "udp.length",
                    "-e",
                    "esp.icv_good",
                ])
                .output()
                .unwrap();
            let lines = String::from_utf8(output.stdout).unwrap();
            let mut expected = String::new();
            for (at, len) in lengths.iter().flat_map(|len| [len, len]).enumerate() {
                expected += &format!("{}\t7001\t{}\t1\n", at + 1, len + 8);
            }
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(lines, expected, "{suite} {udp}: {said}");
        }
    }
}
