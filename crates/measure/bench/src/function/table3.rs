//! The workloads of iPipe's Table 3: the time of a request of each.

use std::hint::black_box;

use anyhow::Result;
use functions::workloads::{REQUEST_BYTES, SETUP, TABLE, Workload};
use functions::{Burst, Chain, LIBRARY, RECEIVED_LIMIT, find};
use model::Nanos;

use super::session::{Case, Session};
use super::side::{Side, Work};

/// What was measured.
pub(super) const NOTE: &str = "the workloads of iPipe's Table 3 (SIGCOMM 2019, appendix A), with requests of 1 KB: the copy of a \
    request into the burst, the function, and reading what it sends";

/// Requests of a workload, which come again and again: 16 MB, so that they are not in a cache of the processor.
const REQUESTS: usize = 16_384;
/// Between two requests, as functions see it: 0.8 Gbit/s of 1 KB.
const GAP: Nanos = Nanos::from_micros(10);
/// Bytes of the check sequence, which is on the wire only.
const CHECK: usize = 4;

/// Measures it: the most expensive workload of the paper first.
pub(super) fn measure(session: &mut Session) -> Result<()> {
    let mut table: Vec<&Workload> = TABLE.iter().collect();
    table.sort_by(|a, b| b.paper_us.total_cmp(&a.paper_us));
    for of in table {
        row(session, of)?;
    }
    Ok(())
}

/// Measures the function that the session is about, if the table has it.
pub(super) fn measure_one(session: &mut Session) -> Result<()> {
    let name = session.function();
    TABLE
        .iter()
        .filter(|of| of.function == name)
        .try_for_each(|of| row(session, of))
}

fn row(session: &mut Session, of: &Workload) -> Result<()> {
    let requests = of.requests(REQUESTS, REQUEST_BYTES, 1);
    let case = Case::new(
        format!("{}: {}", of.function, of.application),
        requests.len(),
        REQUEST_BYTES + CHECK,
    );
    session.case(&case, &mut serving(of, &requests)?, None)
}

/// A function that serves requests, in bursts of 32. A packet may leave later than in its burst, or not at all: queues are
/// full.
fn serving<'r>(of: &Workload, requests: &'r [Vec<u8>]) -> Result<impl Side + use<'r>> {
    let stage = find(LIBRARY, of.function)?.make(&of.configuration(), &SETUP)?;
    let mut chain = Chain::new(vec![stage])?;
    let mut burst = Burst::new();
    let mut now = Nanos::from_secs(1);
    let mut serve = move |requests: &[Vec<u8>]| {
        for requests in requests.chunks(RECEIVED_LIMIT) {
            now = now + Nanos(GAP.0 * requests.len() as u64);
            burst.begin(0, 0);
            for request in requests {
                burst.push(request);
            }
            chain.process(&mut burst, now);
            read(&burst);
            if chain.tick(0, &mut burst, 0, now) {
                read(&burst);
            }
        }
        requests.len() as u64
    };
    // What requests begin is there, and queues are full.
    serve(requests);
    let mut at = 0;
    Ok(Work(move || {
        // A look at the clock after each 256.
        let end = (at + 8 * RECEIVED_LIMIT).min(requests.len());
        let served = serve(&requests[at..end]);
        at = if end < requests.len() { end } else { 0 };
        Ok(served)
    }))
}

fn read(burst: &Burst) {
    for extent in burst.leaving() {
        black_box(burst.bytes_of(extent));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_workload_is_served_again_and_again() {
        for of in TABLE {
            let requests = of.requests(300, REQUEST_BYTES, 1);
            let turn = serving(of, &requests)
                .unwrap()
                .turn(Nanos::from_millis(1))
                .unwrap();
            assert!(turn.packets >= 256, "{}: {turn:?}", of.application);
        }
    }
}
