//! Arbitrary bytes: no panic, and every offset lies within the frame.
#![no_main]

use packet::{Parsed, parse};

libfuzzer_sys::fuzz_target!(|frame: &[u8]| {
    if let Parsed::Flow(info) = parse(frame) {
        assert!(usize::from(info.l4_offset) <= frame.len());
        assert!(usize::from(info.l3_offset) + info.l3_len as usize <= frame.len());
    }
});
