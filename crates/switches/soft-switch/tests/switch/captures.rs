//! Real captures through three functions.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use model::{Fallback, FlowKey, Match, UplinkId};
use packet::capture::CaptureReader;

use crate::bed::{Bed, echo, service, stamp, unstamped};

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

#[test]
fn every_packet_of_every_capture_comes_back_unchanged_and_each_flow_from_one_instance() {
    let Some(data) = real_parts::data() else { return };
    let services = vec![service(0, &[0], Match::default())];
    let mut bed = Bed::with_frames(2, 1, services, 10_000, |_| {});
    bed.plan.other = Fallback::Pass(UplinkId(0));
    for slot in 0..3 {
        bed.add(slot, 0, 1, echo);
    }
    let mut total = 0;
    let mut malformed = 0;
    for file in captures(&data) {
        let bytes = std::fs::read(&file).unwrap();
        let frames: Vec<_> = CaptureReader::new(&bytes)
            .unwrap()
            .map(|c| c.unwrap().frame.to_vec())
            .collect();
        assert!(!frames.is_empty(), "{}", file.display());
        let mut instance_of: HashMap<FlowKey, u8> = HashMap::new();
        for burst in frames.chunks(200) {
            let is_refused = |f: &&Vec<u8>| matches!(packet::parse(f), packet::Parsed::Invalid(_));
            let refused = burst.iter().filter(is_refused).count();
            malformed += refused as u64;
            bed.send(0, burst.iter().map(Vec::as_slice));
            let out = bed.take_all(0, burst.len() - refused);
            let mut expected: HashMap<Vec<u8>, i32> = HashMap::new();
            for frame in burst.iter().filter(|f| !is_refused(f)) {
                *expected.entry(unstamped(frame)).or_default() += 1;
            }
            for frame in &out {
                *expected.entry(unstamped(frame)).or_default() -= 1;
                match packet::parse(frame) {
                    packet::Parsed::Flow(info) => {
                        let pinned = *instance_of.entry(info.key).or_insert(stamp(frame));
                        assert_eq!(pinned, stamp(frame), "{}: {:?} moved", file.display(), info.key);
                    }
                    packet::Parsed::Fragment(_) => {}
                    other => assert!(matches!(other, packet::Parsed::Other { .. }), "{other:?}"),
                }
            }
            assert!(
                expected.values().all(|n| *n == 0),
                "{}: a packet came back changed",
                file.display()
            );
        }
        total += frames.len() as u64;
    }
    bed.assert_accounts_close();
    assert_eq!(bed.reading.offered(), total);
    assert_eq!(bed.reading.dropped(), malformed);
    assert!(
        malformed * 100 < total,
        "{malformed} of {total} packets were refused"
    );
    bed.finish();
}
