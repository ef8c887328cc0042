//! Any bytes as a capture file, also behind a right file header: no panic, and no more frames than there is room for.
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
