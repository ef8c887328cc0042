//! What a burst costs around a function, in nanoseconds per packet: with none, and with chains of functions that do
//! nothing. The copy of the frames is in all of them: `cargo run --release -p functions --example burst_rate`.

use std::hint::black_box;
use std::io::{self, Write};
use std::time::Instant;

use functions::{Burst, Chain, Error, LIBRARY, RECEIVED_LIMIT, Setup, find};
use model::Nanos;

const BURSTS: u32 = 200_000;
/// Repetitions; the quickest counts.
const ROUNDS: u32 = 7;

fn main() -> Result<(), Error> {
    let setup = Setup {
        instance: 1,
        ports: 1,
        seed: 0,
    };
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{:>8} {:>16} {:>16}", "bytes", "functions", "ns per packet");
    for len in [60, 1514] {
        for count in [0, 1, 3] {
            let stages = (0..count).map(|_| find(LIBRARY, "forward")?.make("", &setup));
            let stages = stages.collect::<Result<Vec<_>, Error>>()?;
            let mut chain = Chain::new(stages).ok();
            let ns = (0..ROUNDS).map(|_| measure(&mut chain, &vec![7; len]));
            let ns = ns.fold(f64::MAX, f64::min);
            let _ = writeln!(out, "{len:8} {count:16} {ns:16.2}");
        }
    }
    Ok(())
}

/// Nanoseconds per packet.
fn measure(chain: &mut Option<Chain>, frame: &[u8]) -> f64 {
    let mut burst = Burst::new();
    let start = Instant::now();
    for _ in 0..BURSTS {
        burst.begin(0, 0);
        for _ in 0..RECEIVED_LIMIT {
            burst.push(black_box(frame));
        }
        if let Some(chain) = chain {
            chain.process(&mut burst, Nanos::ZERO);
        }
        for extent in burst.leaving() {
            black_box(burst.bytes_of(extent));
        }
    }
    start.elapsed().as_nanos() as f64 / f64::from(BURSTS) / RECEIVED_LIMIT as f64
}
