//! Every frame of the public captures, parsed by both parsers.

use std::collections::BTreeMap;
use std::path::PathBuf;

use packet::capture::CaptureReader;

use crate::oracle::{self, Kind};

#[test]
fn both_parsers_agree_on_every_captured_frame() {
    let Some(data) = real_parts::data() else { return };
    let mut files: Vec<PathBuf> = std::fs::read_dir(data.join("trex"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "pcap"))
        .collect();
    files.sort();
    files.push(data.join("opennetvm_64B_download.pcap"));
    assert!(files.len() >= 28, "{} captures", files.len());
    let mut total: BTreeMap<Kind, u64> = BTreeMap::new();
    for file in files {
        let bytes = std::fs::read(&file).unwrap();
        let mut kinds: BTreeMap<Kind, u64> = BTreeMap::new();
        for captured in CaptureReader::new(&bytes).unwrap() {
            let captured = captured.unwrap_or_else(|e| panic!("{}: {e}", file.display()));
            let kind =
                oracle::compare(captured.frame).unwrap_or_else(|why| panic!("{}: {why}", file.display()));
            *kinds.entry(kind).or_default() += 1;
            *total.entry(kind).or_default() += 1;
        }
        println!("{:32} {kinds:?}", file.file_name().unwrap().to_string_lossy());
    }
    println!("{:32} {total:?}", "all");
    assert!(total[&Kind::Flow] > 25_000, "{total:?}");
}
