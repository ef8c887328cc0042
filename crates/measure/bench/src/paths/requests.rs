//! HTTP requests: wrk, which asks nginx for a small page over connections that last.

use std::time::Duration;

use anyhow::{Result, ensure};
use testbed::CpuTime;
use testbed::wrk::{Connections, Requests, Wrk};

use super::bed::{Bed, Ground, PAGE};
use super::outcome::Figures;

/// Connections at a time.
pub(super) const CONNECTIONS: u32 = 16;
/// An answer that takes longer has failed.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A turn.
pub(super) fn turn(bed: &Bed<'_>, ground: &Ground, seconds: u64) -> Result<Figures> {
    ask(bed, ground, &format!("http://{}/{PAGE}", bed.address()), seconds)
}

/// Asks for that all the time.
pub(super) fn ask(bed: &Bed<'_>, ground: &Ground, url: &str, seconds: u64) -> Result<Figures> {
    let requests = Requests {
        url,
        connections: Connections::KeepAlive,
        count: CONNECTIONS,
        duration: Duration::from_secs(seconds),
        timeout: TIMEOUT,
    };
    let before = CpuTime::now()?;
    let load = Wrk::start(bed.client(), ground.directory(), &requests)?.end()?;
    let cpu = CpuTime::now()? - before;
    ensure!(load.requests > 0, "no request was answered");
    ensure!(load.failed == 0, "{} requests failed", load.failed);
    Ok(Figures {
        requests_per_s: Some(load.requests_per_s),
        cpu_us_per_request: Some(cpu.busy_s * 1e6 / load.requests as f64),
        p50_us: Some(load.p50_ms * 1e3),
        p99_us: Some(load.p99_ms * 1e3),
        ..Figures::default()
    })
}
