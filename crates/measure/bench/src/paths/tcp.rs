//! Bulk data over TCP: iperf3, which works in one thread, with a process for each connection.

use std::io::Read as _;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;
use testbed::{CpuTime, Interrupt};

use super::bed::{Bed, FIRST_PORT, Ground};
use super::outcome::Figures;

/// How much longer than its turn a client may take.
const PATIENCE: Duration = Duration::from_secs(15);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// A connection that is not there after so long has failed, in milliseconds.
const CONNECT_LIMIT_MS: &str = "5000";

/// A client, which ends with this.
struct Client(Child);

impl Drop for Client {
    fn drop(&mut self) {
        // It has ended already where all went well.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a client reports.
#[derive(Debug, Deserialize)]
struct Report {
    error: Option<String>,
    end: Option<End>,
}

#[derive(Debug, Deserialize)]
struct End {
    sum_sent: Sum,
    sum_received: Sum,
}

#[derive(Debug, Deserialize)]
struct Sum {
    bytes: u64,
    seconds: f64,
    retransmits: Option<u64>,
}

/// A turn: so many connections for so long.
pub(super) fn turn(
    bed: &mut Bed<'_>,
    ground: &Ground,
    interrupt: &Interrupt,
    streams: u32,
    seconds: u64,
) -> Result<Figures> {
    let streams = u16::try_from(streams).context("that many connections")?;
    bed.serve(ground, streams)?;
    let before = CpuTime::now()?;
    let mut clients = Vec::new();
    for port in (FIRST_PORT..).take(streams.into()) {
        clients.push(start(bed, port, seconds)?);
    }
    let limit = Instant::now() + Duration::from_secs(seconds) + PATIENCE;
    let mut ended = Vec::new();
    for client in &mut clients {
        loop {
            interrupt.check()?;
            if client
                .0
                .try_wait()
                .context("cannot query the state of iperf3")?
                .is_some()
            {
                break;
            }
            if Instant::now() > limit {
                bail!("iperf3 did not end {} s after its time", PATIENCE.as_secs());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
    let cpu = CpuTime::now()? - before;
    for client in &mut clients {
        let mut text = String::new();
        if let Some(output) = &mut client.0.stdout {
            output.read_to_string(&mut text).context("the report of iperf3")?;
        }
        ended.push(parse(&text)?);
    }
    figures(&ended, cpu.busy_s)
}

fn start(bed: &Bed<'_>, port: u16, seconds: u64) -> Result<Client> {
    let child = bed
        .client()
        .command("iperf3")
        .args(["--json", "--interval", "0", "--connect-timeout", CONNECT_LIMIT_MS])
        .args(["--client", bed.address(), "--port", &port.to_string()])
        .args(["--time", &seconds.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot run iperf3: `apt-get install iperf3`")?;
    Ok(Client(child))
}

fn parse(text: &str) -> Result<End> {
    let report: Report =
        serde_json::from_str(text).with_context(|| format!("this is no report of iperf3: {text:?}"))?;
    match (report.error, report.end) {
        (None, Some(end)) => Ok(end),
        (error, _) => bail!("iperf3: {}", error.unwrap_or_else(|| "no result".to_owned())),
    }
}

/// What all connections carried.
fn figures(ended: &[End], cpu_s: f64) -> Result<Figures> {
    let bits: f64 = ended.iter().map(|end| end.sum_received.bytes as f64 * 8.0).sum();
    let seconds = ended
        .iter()
        .map(|end| end.sum_received.seconds)
        .fold(0.0, f64::max);
    if bits == 0.0 || seconds == 0.0 {
        bail!("no byte arrived");
    }
    let retransmits: u64 = ended.iter().filter_map(|end| end.sum_sent.retransmits).sum();
    Ok(Figures {
        gbps: Some(bits * 1e-9 / seconds),
        cpu_s_per_gbit: Some(cpu_s / (bits * 1e-9)),
        retransmits: Some(retransmits as f64),
        ..Figures::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_arrived_counts_and_what_was_sent_again_is_told() {
        let of = |bytes: u64, seconds: f64| {
            let text = format!(
                r#"{{"start": {{}}, "end": {{"sum_sent": {{"bytes": 999, "seconds": 1, "retransmits": 3}},
                    "sum_received": {{"bytes": {bytes}, "seconds": {seconds}}}}}}}"#
            );
            parse(&text).unwrap()
        };
        let figures = figures(&[of(125_000_000, 1.0), of(125_000_000, 2.0)], 0.5).unwrap();
        assert_eq!((figures.gbps, figures.cpu_s_per_gbit), (Some(1.0), Some(0.25)));
        assert_eq!(figures.retransmits, Some(6.0));
    }

    #[test]
    fn a_connection_without_data_is_an_error() {
        let refused = r#"{"start": {}, "end": {}, "error": "unable to connect to server"}"#;
        let error = serde_json::from_str::<Report>(refused);
        assert!(error.is_err() || parse(refused).is_err());
        assert!(parse("").is_err());
        assert!(figures(&[], 1.0).is_err());
    }
}
