//! A message that can be understood can be written, and what was written can be understood. It need not be the same:
//! names that are no text are read as far as they are.
#![no_main]

use libfuzzer_sys::fuzz_target;
use openflow::{Version, decode, encode};

fuzz_target!(|bytes: &[u8]| {
    for version in Version::ALL {
        let Ok((xid, message)) = decode(version, bytes) else { continue };
        let mut written = Vec::new();
        if encode(version, xid, &message, &mut written).is_ok() {
            assert!(decode(version, &written).is_ok());
        }
    }
});
