//! Clients of the applications that `actor-applications` has, over UDP: `inco load`. They say how long requests took, and
//! whether the application kept its promise.
//!
//! - [`Load`] runs clients that have one request at a time each. A [`Workload`] says what they ask: [`store::Store`],
//!   [`transactions::Transactions`], and of what is measured beside the store [`caches::Cache`].
//! - [`analytics::Analytics`] has sources that send tuples, and a reader of windows.
//!
//! **Open loop** (with a rate): requests have intended times, and times count from these, also if no client was free (no
//! coordinated omission). **Closed loop** (without one): each client asks again when it has its answer.
#![forbid(unsafe_code)]

pub mod analytics;
mod args;
pub mod caches;
mod clients;
pub mod store;
mod times;
pub mod transactions;
mod wire;
mod zipf;

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use display::output;
use serde::Serialize;

pub use args::LoadArgs;
pub use clients::{Counts, Heard, Load, Workload};
pub use times::Times;

/// What a run has shown.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Requests that were begun; of analytics, tuples.
    pub requests: u64,
    /// Answered requests in a second.
    pub per_second: f64,
    /// Times from the intended sending of a request to its answer, in milliseconds: so many took at most this.
    pub p50_ms: f64,
    /// The same of 99 in 100.
    pub p99_ms: f64,
    /// The same of 999 in 1,000.
    pub p999_ms: f64,
    /// Requests without an answer at the end.
    pub lost: u64,
    /// Answers that came a second time to a request that was sent once.
    pub answered_twice: u64,
    /// Requests that were sent again.
    pub sent_again: u64,
    /// Transactions that were aborted.
    pub aborted: u64,
    /// What was checked, and how much: operations, transactions or windows.
    pub checked: Option<String>,
}

impl Report {
    fn new(requests: u64, times: &Times, counts: Counts) -> Report {
        Report {
            requests,
            per_second: times.per_second(),
            p50_ms: times.percentile_ms(0.5),
            p99_ms: times.percentile_ms(0.99),
            p999_ms: times.percentile_ms(0.999),
            lost: counts.lost,
            answered_twice: counts.twice,
            sent_again: counts.again,
            aborted: 0,
            checked: None,
        }
    }

    fn text(&self) -> String {
        let mut text = format!(
            "{} requests, {:.0} answered/s; p50 {:.2} ms, p99 {:.2} ms, p99.9 {:.2} ms\n{} lost, {} answered twice, {} \
             sent again, {} aborted\n",
            self.requests,
            self.per_second,
            self.p50_ms,
            self.p99_ms,
            self.p999_ms,
            self.lost,
            self.answered_twice,
            self.sent_again,
            self.aborted,
        );
        if let Some(checked) = &self.checked {
            text.push_str(&format!("checked: {checked}\n"));
        }
        text
    }
}

/// A number that nobody else has.
///
/// # Errors
/// The kernel has none.
pub fn drawn() -> Result<u64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .context("cannot get random bytes")?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Runs `inco load`.
///
/// # Errors
/// Nobody answers, a request was lost or answered twice, or a promise was broken.
pub fn run(args: &LoadArgs) -> Result<()> {
    let report = args.run()?;
    if args.is_json() {
        output::json(&report, true)?;
    } else {
        output::text(&report.text())?;
    }
    if report.lost > 0 {
        bail!("{} requests have no answer", report.lost);
    }
    if report.answered_twice > 0 {
        bail!("{} requests were answered twice", report.answered_twice);
    }
    Ok(())
}

/// How requests come.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Requests per second, or as many as clients can have answered.
    pub rate: Option<f64>,
    /// For how long.
    pub lasts: Duration,
}
