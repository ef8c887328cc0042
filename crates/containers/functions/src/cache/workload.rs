//! Requests for a measurement of caches: the same ones for this function and for another server.

use model::mix;

use super::HEADER;

/// Requests for keys, most of them reads: frames' payloads, one behind the other, always the same for a seed.
///
/// ```
/// use functions::cache::Workload;
///
/// let mut workload = Workload::new(1000, 64, 90, 1);
/// let mut payload = Vec::new();
/// workload.fill(0, &mut payload);
/// assert!(payload[8..].starts_with(b"set key-0 0 0 64\r\n"));
/// workload.next(&mut payload);
/// assert!(payload.len() > 8);
/// ```
#[derive(Clone, Debug)]
pub struct Workload {
    keys: u64,
    value_bytes: usize,
    reads_percent: u64,
    seed: u64,
    sent: u64,
}

impl Workload {
    /// Requests for that many keys with values of `value_bytes` bytes. `reads_percent` of them read a value, the others
    /// store one.
    pub fn new(keys: u64, value_bytes: usize, reads_percent: u64, seed: u64) -> Workload {
        Workload {
            keys: keys.max(1),
            value_bytes,
            reads_percent,
            seed,
            sent: 0,
        }
    }

    /// The request that stores the value of a key, below the number of keys: for each of them once, before a
    /// measurement.
    pub fn fill(&mut self, key: u64, payload: &mut Vec<u8>) {
        self.begin(payload);
        self.store(key, payload);
    }

    /// The next request: keys are drawn evenly.
    pub fn next(&mut self, payload: &mut Vec<u8>) {
        self.begin(payload);
        let drawn = mix(self.seed ^ mix(self.sent));
        let key = (drawn >> 8) % self.keys;
        if drawn % 100 < self.reads_percent {
            payload.extend_from_slice(format!("get key-{key}\r\n").as_bytes());
        } else {
            self.store(key, payload);
        }
    }

    /// The header, with a number that tells requests apart.
    fn begin(&mut self, payload: &mut Vec<u8>) {
        self.sent += 1;
        let mut header = [0; HEADER];
        header[..2].copy_from_slice(&(self.sent as u16).to_be_bytes());
        header[5] = 1;
        payload.clear();
        payload.extend_from_slice(&header);
    }

    fn store(&self, key: u64, payload: &mut Vec<u8>) {
        payload.extend_from_slice(format!("set key-{key} 0 0 {}\r\n", self.value_bytes).as_bytes());
        payload.resize(payload.len() + self.value_bytes, b'v');
        payload.extend_from_slice(b"\r\n");
    }
}
