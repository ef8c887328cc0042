//! Every frame of the public captures, parsed by both parsers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use packet::capture::CaptureReader;

use crate::oracle::{self, Kind};

fn data() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let data = root.join(std::env::var("INCO_DATA").unwrap_or_else(|_| "../shared/data".into()));
    if data.join("trex").is_dir() {
        return Some(data);
    }
    let required = std::env::var("INCO_REQUIRE").unwrap_or_default();
    assert!(
        !required.split(',').any(|part| part == "data"),
        "the captures are required (INCO_REQUIRE) and not in {}: set INCO_DATA",
        data.display()
    );
    eprintln!(
        "skipped: no captures in {}; set INCO_DATA to their folder",
        data.display()
    );
    None
}

#[test]
fn both_parsers_agree_on_every_captured_frame() {
    let Some(data) = data() else { return };
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
