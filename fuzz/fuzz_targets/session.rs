//! A stream cut anywhere: memory stays bounded, and nothing but an error ends the session.
#![no_main]

use libfuzzer_sys::fuzz_target;
use openflow::{Limits, Session, Side};

fuzz_target!(|chunks: Vec<Vec<u8>>| {
    for side in [Side::Controller, Side::Switch] {
        let mut session = Session::new(side, Limits::default(), 0);
        'chunks: for (now, chunk) in chunks.iter().enumerate() {
            session.receive(chunk, now as u64);
            loop {
                match session.next_event() {
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(_) => break 'chunks,
                }
            }
            assert!(session.output().len() <= Limits::default().output_bytes + 65_536);
        }
    }
});
