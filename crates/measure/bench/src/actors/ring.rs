//! The channel between two sides.

use actor_channel::Declared;
use anyhow::Result;

use super::{Outcome, Row};

const NOTE: &str = "MODEL: latency and bandwidth of the DMA engine are declared; no card is in this machine.";

/// Measures it.
pub(super) fn measure() -> Result<Outcome> {
    let mut rows = Vec::new();
    for (case, declared) in [
        ("card to host", Declared::CARD_TO_HOST),
        ("host to card", Declared::HOST_TO_CARD),
    ] {
        let latency_us = declared.latency.0 as f64 / 1e3;
        rows.push(
            Row::plain(format!("MODEL {case}, declared latency"), latency_us, "us").paper("0.5 to 2 us"),
        );
        let gigabytes = declared.bytes_per_second as f64 / 1e9;
        rows.push(
            Row::plain(format!("MODEL {case}, declared bandwidth"), gigabytes, "GB/s")
                .paper("2.1 GB/s written, 1.4 GB/s read by a core in blocks of 2 KB"),
        );
    }
    Ok(Outcome { rows, note: NOTE })
}
