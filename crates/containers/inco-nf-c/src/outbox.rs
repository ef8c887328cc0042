//! Packets that a function in C makes during a call.

use functions::{Burst, FRAME_BYTES_LIMIT, RECEIVED_LIMIT, Verdict};

/// Bytes of frames in one call, at most: as many of the usual longest length as there may be, and more of one that is
/// longer.
const BYTES_LIMIT: usize = 4 * FRAME_BYTES_LIMIT;

/// `struct inco_outbox`: copies of frames, until the burst has room for them. It does not allocate after its start.
#[derive(Debug)]
pub struct Outbox {
    bytes: Vec<u8>,
    /// Where each frame ends, and the port by which it leaves.
    ends: Vec<(usize, u8)>,
}

impl Outbox {
    pub(crate) fn new() -> Outbox {
        Outbox {
            bytes: Vec::with_capacity(BYTES_LIMIT),
            ends: Vec::with_capacity(RECEIVED_LIMIT),
        }
    }

    /// Takes a copy of a frame. False if there is no room for it.
    pub(crate) fn push(&mut self, frame: &[u8], port: u8) -> bool {
        let fits = (1..=FRAME_BYTES_LIMIT).contains(&frame.len())
            && self.bytes.len() + frame.len() <= BYTES_LIMIT
            && self.ends.len() < RECEIVED_LIMIT;
        if fits {
            self.bytes.extend_from_slice(frame);
            self.ends.push((self.bytes.len(), port));
        }
        fits
    }

    /// Gives all frames to the burst, which counts those that it has no room for.
    pub(crate) fn flush(&mut self, burst: &mut Burst, ports: u8) {
        let mut begin = 0;
        for (end, port) in self.ends.drain(..) {
            let frame = self.bytes.get(begin..end).unwrap_or_default();
            begin = end;
            if let Some(mut packet) = burst.originate(frame.len()) {
                packet.frame_mut().copy_from_slice(frame);
                packet.decide(Verdict::Forward(port.min(ports.saturating_sub(1))));
            }
        }
        self.bytes.clear();
    }
}
