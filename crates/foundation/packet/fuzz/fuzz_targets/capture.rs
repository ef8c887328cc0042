//! Arbitrary bytes as a capture file, with and without a valid file header: no panic, and no more frames than
//! fit.
#![no_main]

use packet::capture::{CaptureReader, CaptureWriter};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut file = CaptureWriter::new().into_bytes();
    file.extend(bytes);
    for bytes in [bytes, &file] {
        if let Ok(reader) = CaptureReader::new(bytes) {
            assert!(reader.filter_map(Result::ok).count() * 16 <= bytes.len());
        }
    }
});
