//! The time of a request of each workload of iPipe's Table 3, beside the paper's: `cargo run --release -p functions
//! --example table3 [BYTES]`. Workloads take turns in one process; the quickest round of each counts. A request is copied
//! into a burst, processed, and its answer is read; what that takes without a function is in all of them.

use std::hint::black_box;
use std::io::{self, Write};
use std::time::Instant;

use functions::workloads::{REQUEST_BYTES, SETUP, TABLE, Workload};
use functions::{Burst, Chain, Error, LIBRARY, RECEIVED_LIMIT, find};
use model::Nanos;

/// Requests of a workload, which come again in each round: 16 MB, so that they are not in a cache.
const REQUESTS: usize = 16_384;
const ROUNDS: usize = 7;
/// Between two requests, as functions see it: 0.8 Gbit/s of 1 KB.
const GAP: Nanos = Nanos::from_micros(10);

struct Running {
    of: &'static Workload,
    chain: Chain,
    requests: Vec<Vec<u8>>,
    now: Nanos,
    /// With one request in a burst, and with as many as it takes.
    quickest_ns: [f64; 2],
}

fn main() -> Result<(), Error> {
    let bytes = std::env::args().nth(1).and_then(|word| word.parse().ok());
    let bytes = bytes.unwrap_or(REQUEST_BYTES);
    let mut burst = Burst::new();
    let make = |of: &'static Workload| -> Result<Running, Error> {
        let stage = find(LIBRARY, of.function)?.make(&of.configuration(), &SETUP)?;
        Ok(Running {
            of,
            chain: Chain::new(vec![stage])?,
            requests: of.requests(REQUESTS, bytes, 1),
            now: Nanos::from_secs(1),
            quickest_ns: [f64::MAX; 2],
        })
    };
    let mut all = TABLE.iter().map(make).collect::<Result<Vec<_>, _>>()?;
    for _ in 0..ROUNDS {
        for running in &mut all {
            for (at, size) in [1, RECEIVED_LIMIT].into_iter().enumerate() {
                let ns = running.round(&mut burst, size);
                running.quickest_ns[at] = running.quickest_ns[at].min(ns);
            }
        }
    }
    all.sort_by(|a, b| b.of.paper_us.total_cmp(&a.of.paper_us));
    let mut out = io::stdout().lock();
    let _ = writeln!(
        out,
        "{:<16} {:<28} {:>8} {:>12} {:>12}   ({bytes} bytes, us per request)",
        "application", "computation", "paper", "burst of 1", "burst of 32"
    );
    for Running { of, quickest_ns, .. } in &all {
        let [one, many] = quickest_ns.map(|ns| ns / 1000.0);
        let _ = writeln!(
            out,
            "{:<16} {:<28} {:>8.2} {one:>12.3} {many:>12.3}",
            of.application, of.computation, of.paper_us
        );
    }
    Ok(())
}

impl Running {
    /// Nanoseconds per request.
    fn round(&mut self, burst: &mut Burst, size: usize) -> f64 {
        let start = Instant::now();
        for requests in self.requests.chunks(size) {
            self.now = self.now + Nanos(GAP.0 * requests.len() as u64);
            burst.begin(0, 0);
            for request in requests {
                burst.push(request);
            }
            self.chain.process(burst, self.now);
            for extent in burst.leaving() {
                black_box(burst.bytes_of(extent));
            }
            self.chain.tick(0, burst, 0, self.now);
        }
        start.elapsed().as_nanos() as f64 / self.requests.len() as f64
    }
}
