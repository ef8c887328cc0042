//! Load by `wrk`, and what it reports.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Serialize;

use crate::network::Namespace;

/// Whether a connection carries one request or many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Connections {
    /// Many requests, one after the other.
    KeepAlive,
    /// One request.
    Close,
}

impl Connections {
    /// Both.
    pub const ALL: [Connections; 2] = [Connections::KeepAlive, Connections::Close];

    /// Its name in tables and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Connections::KeepAlive => "keep-alive",
            Connections::Close => "close",
        }
    }
}

/// What `wrk` reported.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Requests with a complete answer.
    pub requests: u64,
    /// Their rate.
    pub requests_per_s: f64,
    /// Percentiles of the time from a request to the end of its answer, in milliseconds. The time in which a
    /// connection is opened is not part of it.
    pub p50_ms: f64,
    /// The 90th.
    pub p90_ms: f64,
    /// The 99th.
    pub p99_ms: f64,
    /// Requests without a good answer: connections refused or reset, time-outs, and other status codes than 2xx.
    pub failed: u64,
}

/// Has `wrk` tell on its standard error how many requests it has sent, each 256 of them.
const SCRIPT: &str = "local n, text = 0, nil\nfunction init(args) text = wrk.format() end\nfunction request()\n  n = n + \
                      1\n  if n % 256 == 0 then io.stderr:write(n, \"\\n\") end\n  return text\nend\n";

/// What `wrk` asks for.
#[derive(Clone, Copy, Debug)]
pub struct Requests<'a> {
    /// Of what.
    pub url: &'a str,
    /// Whether each request has a connection of its own.
    pub connections: Connections,
    /// Connections at a time.
    pub count: u32,
    /// For how long. Requests that have no answer then are given up, and do not count.
    pub duration: Duration,
    /// After so long, an answer has failed to come.
    pub timeout: Duration,
}

/// A running `wrk`. Dropping it ends it.
#[derive(Debug)]
pub struct Wrk {
    child: Child,
    sent: Arc<AtomicU64>,
    /// What it said on its standard error beside its counts.
    said: Option<std::thread::JoinHandle<String>>,
}

impl Wrk {
    /// Starts one thread of `wrk` in a namespace. `directory` takes its script.
    ///
    /// # Errors
    /// It is not installed.
    pub fn start(client: &Namespace, directory: &Path, requests: &Requests<'_>) -> Result<Wrk> {
        let script = directory.join("wrk.lua");
        // One that runs already may be reading it.
        if !script.exists() {
            std::fs::write(&script, SCRIPT).with_context(|| format!("cannot write {}", script.display()))?;
        }
        let mut command = client.command("wrk");
        command
            .args(["--threads", "1", "--latency"])
            .args(["--timeout", &format!("{}s", requests.timeout.as_secs())])
            .args(["--connections", &requests.count.to_string()])
            .args(["--duration", &format!("{}s", requests.duration.as_secs())]);
        if requests.connections == Connections::Close {
            command.args(["--header", "Connection: close"]);
        }
        let mut child = command
            .arg("--script")
            .arg(script)
            .arg(requests.url)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot run wrk: `apt-get install wrk`")?;
        let sent = Arc::new(AtomicU64::new(0));
        let said = child.stderr.take().map(|err| {
            let sent = Arc::clone(&sent);
            std::thread::spawn(move || {
                let mut said = String::new();
                for line in BufReader::new(err).lines().map_while(Result::ok) {
                    match line.parse() {
                        Ok(count) => sent.store(count, Ordering::Relaxed),
                        Err(_) => said.push_str(&line),
                    }
                }
                said
            })
        });
        Ok(Wrk { child, sent, said })
    }

    /// Requests that it has sent by now.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Whether it has ended.
    pub fn is_over(&mut self) -> Result<bool> {
        Ok(self
            .child
            .try_wait()
            .context("cannot query the state of wrk")?
            .is_some())
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// It failed, or its report cannot be read.
    pub fn end(mut self) -> Result<Load> {
        let mut text = String::new();
        if let Some(out) = &mut self.child.stdout {
            out.read_to_string(&mut text)
                .context("cannot read the report of wrk")?;
        }
        let status = self.child.wait().context("cannot wait for wrk")?;
        if !status.success() {
            let said = self
                .said
                .take()
                .and_then(|thread| thread.join().ok())
                .unwrap_or_default();
            bail!("wrk ended with {status}: {}", said.trim());
        }
        parse(&text).with_context(|| format!("this report of wrk has no figures: {text:?}"))
    }
}

impl Drop for Wrk {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads the report of `wrk --latency`; [`None`] if the number of requests or their rate is missing.
fn parse(text: &str) -> Option<Load> {
    let mut load = Load::default();
    let (mut has_requests, mut has_rate) = (false, false);
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["50%", time] => load.p50_ms = milliseconds(time)?,
            ["90%", time] => load.p90_ms = milliseconds(time)?,
            ["99%", time] => load.p99_ms = milliseconds(time)?,
            [count, "requests", "in", ..] => {
                load.requests = count.parse().ok()?;
                has_requests = true;
            }
            ["Socket", "errors:", errors @ ..] => {
                let counts = errors
                    .iter()
                    .filter_map(|word| word.trim_end_matches(',').parse::<u64>().ok());
                load.failed += counts.sum::<u64>();
            }
            ["Non-2xx", .., count] => load.failed += count.parse::<u64>().ok()?,
            ["Requests/sec:", rate] => {
                load.requests_per_s = rate.parse().ok()?;
                has_rate = true;
            }
            _ => {}
        }
    }
    (has_requests && has_rate).then_some(load)
}

/// A time with its unit: `812.00us`, `1.25ms`, `1.01s`, `2.00m`.
fn milliseconds(text: &str) -> Option<f64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let value: f64 = digits.parse().ok()?;
    let factor = match text.get(digits.len()..)? {
        "us" => 1e-3,
        "ms" => 1.0,
        "s" => 1e3,
        "m" => 60e3,
        _ => return None,
    };
    Some(value * factor)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by it")]
mod tests {
    use super::*;

    #[test]
    fn a_report_with_errors_is_read() {
        let text = "Running 5s test @ http://10.77.0.100/\n  1 threads and 32 connections\n  Thread Stats   Avg      \
                    Stdev     Max   +/- Stdev\n    Latency   312.45us  201.1us   9.00ms   91.20%\n    Req/Sec    \
                    98.12k     4.10k  107.20k    70.00%\n  Latency Distribution\n     50%  271.00us\n     75%  \
                    350.00us\n     90%  512.00us\n     99%    1.25ms\n  488214 requests in 5.00s, 398.21MB read\n  \
                    Socket errors: connect 1, read 2, write 3, timeout 4\n  Non-2xx or 3xx responses: \
                    5\nRequests/sec:  97640.12\nTransfer/sec:     79.64MB\n";
        let load = parse(text).unwrap();
        let expected = Load {
            requests: 488_214,
            requests_per_s: 97_640.12,
            p50_ms: 0.271,
            p90_ms: 0.512,
            p99_ms: 1.25,
            failed: 15,
        };
        assert_eq!(load, expected);
    }

    #[test]
    fn a_report_without_figures_is_none() {
        assert_eq!(
            parse("unable to connect to 10.77.0.100:http Connection refused\n"),
            None
        );
        assert_eq!(parse("12 requests in 1.00s, 2KB read\n"), None);
    }

    #[test]
    fn times_have_units() {
        assert_eq!(milliseconds("1.01s"), Some(1010.0));
        assert_eq!(milliseconds("2.00m"), Some(120_000.0));
        assert_eq!(milliseconds("2.00"), None);
    }
}
