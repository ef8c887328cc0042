//! Arbitrary fragments in any order: each is returned exactly once and none is left behind.
#![no_main]

use packet::build::Frame;
use packet::{Fragment, FragmentTracker, Offer, Parsed, build, parse};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let frame = Frame::udp(([10, 0, 0, 1], 1).into(), ([10, 0, 0, 2], 2).into(), &[0; 100]);
    let Some(Parsed::Fragment(template)) = frame
        .and_then(|frame| frame.to_vec())
        .and_then(|frame| build::fragment(&frame, 60, 1))
        .ok()
        .and_then(|fragments| Some(parse(fragments.first()?)))
    else {
        return;
    };
    let mut tracker = FragmentTracker::new([1, 2]);
    let mut now = model::Nanos::ZERO;
    let mut held = 0;
    for step in bytes.chunks_exact(4) {
        let fragment = Fragment {
            identification: u32::from(step[0] % 8),
            offset: u16::from(step[1] % 32),
            len: 8 * u16::from(step[2] % 8 + 1),
            more: step[2] & 0x80 == 0,
            ..template
        };
        now = now + model::Nanos::from_millis(u64::from(step[3]));
        while tracker.expire(now).is_some() {
            held -= 1;
        }
        if matches!(tracker.offer(&fragment, (), now), Offer::Waiting) {
            held += 1;
        }
        while tracker.release().is_some() {
            held -= 1;
        }
        assert_eq!(tracker.occupied(), held);
    }
    while tracker.drain().is_some() {
        held -= 1;
    }
    assert_eq!((tracker.occupied(), held), (0, 0));
});
