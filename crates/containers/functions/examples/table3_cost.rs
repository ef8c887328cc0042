//! Serves requests of a workload of iPipe's Table 3, and prints nothing: for valgrind's callgrind, which counts the
//! instructions and simulates caches.
//!
//! ```text
//! cargo build --release -p functions --example table3_cost
//! valgrind --tool=callgrind --cache-sim=yes --D1=32768,4,128 --I1=32768,4,128 --LL=4194304,16,128 \
//!     --toggle-collect='table3_cost::serve' target/release/examples/table3_cost limiter 65536
//! ```
//! The caches are those of a LiquidIOII CN2350 (Table 1): 32 KB a core, 4 MB for all, lines of 128 B. Each request is
//! served twice, and only the second time counts: what requests begin is there then. Counted are the copy into the burst
//! and the function, in bursts of 32.

#![allow(clippy::unwrap_used, reason = "a bench")]

use functions::workloads::{REQUEST_BYTES, SETUP, TABLE};
use functions::{Burst, Chain, LIBRARY, RECEIVED_LIMIT, find};
use model::Nanos;

/// Between two bursts, as the function sees it: 0.8 Gbit/s of 1 KB.
const GAP: Nanos = Nanos::from_micros(10 * RECEIVED_LIMIT as u64);

fn turn(chain: &mut Chain, burst: &mut Burst, requests: &[Vec<u8>], now: Nanos) {
    burst.begin(0, 0);
    for request in requests {
        assert!(burst.push(request));
    }
    chain.process(burst, now);
    if chain.due().is_some_and(|due| due <= now) {
        let _more = chain.tick(0, burst, 0, now);
    }
}

/// What is counted.
#[inline(never)]
fn serve(chain: &mut Chain, burst: &mut Burst, requests: &[Vec<u8>], now: Nanos) {
    turn(chain, burst, requests, now);
}

fn main() {
    let mut words = std::env::args().skip(1);
    let (function, count) = (words.next().unwrap(), words.next().unwrap().parse().unwrap());
    let of = TABLE.iter().find(|of| of.function == function).unwrap();
    let stage = find(LIBRARY, of.function)
        .unwrap()
        .make(&of.configuration(), &SETUP)
        .unwrap();
    let (mut chain, mut burst) = (Chain::new(vec![stage]).unwrap(), Burst::new());
    let requests = of.requests(count, REQUEST_BYTES, 1);
    let mut now = Nanos::from_secs(1);
    for requests in requests.chunks(RECEIVED_LIMIT) {
        now = now + GAP;
        turn(&mut chain, &mut burst, requests, now);
    }
    for requests in requests.chunks(RECEIVED_LIMIT) {
        now = now + GAP;
        serve(&mut chain, &mut burst, requests, now);
    }
}
