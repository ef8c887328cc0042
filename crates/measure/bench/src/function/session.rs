//! The cases of a run, measured one after the other: the function and its peer in turns, round after round.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use display::output;
use display::table::{Table, grouped};
use dpdk::{Eal, EalConfig, Errno};
use model::Nanos;
use serde::Serialize;

use super::side::Side;
use crate::args::FunctionArgs;
use crate::contestant::median;
use crate::facts::facts;
use crate::raw::Raw;

/// Memory of DPDK's tables, in MiB: a million routes of IPv6.
const EAL_MIB: u32 = 1536;

/// What is measured.
#[derive(Clone, Debug)]
pub(super) struct Case {
    /// In words.
    pub(super) name: String,
    /// Rules, routes, flows, buckets, records, keys or requests.
    pub(super) entries: u64,
    /// Bytes of a packet on the wire, with its check sequence.
    pub(super) size: usize,
}

impl Case {
    /// A case of packets of `size` bytes.
    pub(super) fn new(name: impl Into<String>, entries: usize, size: usize) -> Case {
        Case {
            name: name.into(),
            entries: entries as u64,
            size,
        }
    }
}

/// Who does the same work.
pub(super) struct Peer<'p> {
    name: &'static str,
    /// Or why it cannot take part.
    side: Result<Box<dyn Side + 'p>>,
}

impl<'p> Peer<'p> {
    /// A peer that takes part.
    pub(super) fn is(name: &'static str, side: impl Side + 'p) -> Peer<'p> {
        Peer {
            name,
            side: Ok(Box::new(side)),
        }
    }

    /// A peer, or why it is missing.
    pub(super) fn of<S: Side + 'p>(name: &'static str, side: Result<S>) -> Peer<'p> {
        Peer {
            name,
            side: side.map(|side| Box::new(side) as Box<dyn Side + 'p>),
        }
    }
}

/// One row of the result.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) function: &'static str,
    pub(super) case: String,
    /// Rules, routes, flows, buckets, records, keys or requests.
    pub(super) entries: u64,
    /// Bytes of a packet on the wire, with its check sequence.
    pub(super) size: usize,
    /// Millions of packets per second of CPU time; of a service, per second of wall time.
    pub(super) mpps: f64,
    /// The same in Gbit/s of these packets.
    pub(super) gbps: f64,
    pub(super) cpu_ns_per_packet: f64,
    /// Time of a burst of 32 packets from its first one in to its last one out; none where packets do not pass.
    pub(super) latency_p50_us: Option<f64>,
    pub(super) latency_p99_us: Option<f64>,
    pub(super) peer: Option<&'static str>,
    /// The peer's rate, in the unit of `mpps`.
    pub(super) peer_rate: Option<f64>,
    /// The median of the rounds' ratios.
    pub(super) ratio_to_peer: Option<f64>,
    /// Of a service.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(super) service: Option<ServiceCost>,
}

/// What packets cost in a service.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct ServiceCost {
    /// The quota of the function's container.
    pub(super) cpus: f64,
    /// The function's CPU time of a packet where it is alone, in nanoseconds.
    pub(super) peer_cpu_ns_per_packet: f64,
    /// The function's CPU time of a packet in the service ÷ alone: the median of the rounds' ratios.
    pub(super) cpu_ratio_to_peer: f64,
    /// CPU time of all threads of inco for a packet there and back, in nanoseconds.
    pub(super) switch_cpu_ns_per_packet: f64,
}

/// A run.
pub(super) struct Session {
    function: &'static str,
    rounds: u32,
    turn: Nanos,
    rows: Vec<Row>,
    raw: Raw,
    /// Peers that did not take part, each with its reason.
    missing: BTreeSet<String>,
}

impl Session {
    /// A run without rows.
    pub(super) fn new(args: &FunctionArgs) -> Session {
        Session {
            function: "",
            rounds: args.rounds,
            turn: Nanos::from_millis(args.milliseconds),
            rows: Vec::new(),
            raw: Raw::new(
                &facts(false),
                &[
                    "function",
                    "case",
                    "entries",
                    "size",
                    "round",
                    "mpps",
                    "peer",
                    "peer_mpps",
                ],
            ),
            missing: BTreeSet::new(),
        }
    }

    /// What follows is about this function.
    pub(super) fn begin(&mut self, function: &'static str) {
        self.function = function;
    }

    /// What is measured now.
    pub(super) fn function(&self) -> &'static str {
        self.function
    }

    /// DPDK, for its tables. It is started once.
    ///
    /// # Errors
    /// DPDK does not start, for instance for lack of memory.
    pub(super) fn eal(&self) -> Result<Eal> {
        if let Some(eal) = Eal::running() {
            return Ok(eal);
        }
        let mut config = EalConfig::new(format!("inco-bench-function-{}", std::process::id()));
        config.memory_mib = EAL_MIB;
        Eal::init(&config.args()).context("DPDK does not start")
    }

    /// Measures a case: a turn of each side that does not count, then as many rounds as the user wants.
    ///
    /// # Errors
    /// A side fails.
    pub(super) fn case(&mut self, case: &Case, ours: &mut dyn Side, peer: Option<Peer<'_>>) -> Result<()> {
        output::complain(&format!(
            "{}: {}, {} bytes …",
            self.function, case.name, case.size
        ));
        let mut peer = match peer {
            None => None,
            Some(Peer { name, side: Ok(side) }) => Some((name, side)),
            Some(Peer {
                name,
                side: Err(error),
            }) => {
                let reason = format!("{name} does not take part: {}", output::explain(&error));
                if !self.missing.contains(&reason) {
                    output::complain(&reason);
                }
                self.missing.insert(reason);
                None
            }
        };
        ours.turn(self.turn)?;
        if let Some((_, peer)) = &mut peer {
            peer.turn(self.turn)?;
        }
        let (mut rates, mut of_peer, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for round in 1..=self.rounds {
            let rate = ours.turn(self.turn)?.mpps();
            rates.push(rate);
            let theirs = match &mut peer {
                Some((_, peer)) => Some(peer.turn(self.turn)?.mpps()),
                None => None,
            };
            if let Some(theirs) = theirs {
                of_peer.push(theirs);
                ratios.push(rate / theirs);
            }
            self.raw.row(&[
                self.function.to_owned(),
                case.name.clone(),
                case.entries.to_string(),
                case.size.to_string(),
                round.to_string(),
                format!("{rate:.4}"),
                peer.as_ref().map_or("", |(name, _)| name).to_owned(),
                theirs.map_or(String::new(), |theirs| format!("{theirs:.4}")),
            ]);
        }
        let mut latencies = ours.latencies()?;
        latencies.sort_unstable();
        let mpps = median(rates);
        self.rows.push(Row {
            function: self.function,
            case: case.name.clone(),
            entries: case.entries,
            size: case.size,
            mpps,
            gbps: mpps * case.size as f64 * 8.0 / 1e3,
            cpu_ns_per_packet: 1e3 / mpps,
            latency_p50_us: percentile(&latencies, 50),
            latency_p99_us: percentile(&latencies, 99),
            peer: peer.as_ref().map(|(name, _)| *name),
            peer_rate: peer.is_some().then(|| median(of_peer)),
            ratio_to_peer: peer.is_some().then(|| median(ratios)),
            service: None,
        });
        Ok(())
    }

    /// The results.
    pub(super) fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The results as text.
    pub(super) fn table(&self) -> String {
        let mut table = Table::new(&[
            "function",
            "case",
            ">entries",
            ">bytes",
            ">Mpps",
            ">Gbit/s",
            ">ns",
            ">p50 us",
            ">p99 us",
            "peer",
            ">peer Mpps",
            ">ratio",
        ]);
        let optional = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
        for row in &self.rows {
            table.row([
                row.function.to_owned(),
                row.case.clone(),
                grouped(row.entries),
                row.size.to_string(),
                format!("{:.2}", row.mpps),
                format!("{:.2}", row.gbps),
                format!("{:.1}", row.cpu_ns_per_packet),
                optional(row.latency_p50_us),
                optional(row.latency_p99_us),
                row.peer.unwrap_or("-").to_owned(),
                optional(row.peer_rate),
                optional(row.ratio_to_peer),
            ]);
        }
        let mut text = table.text();
        for reason in &self.missing {
            text.push_str(reason);
            text.push('\n');
        }
        text
    }

    /// How it was measured.
    pub(super) fn note(&self, csv: &Path) -> String {
        format!(
            "Rates are per second of CPU time, on one thread, in bursts of 32. A function and its peer take turns of {} ms; \
             medians of {} rounds. p50 and p99: a burst, from its first packet in to its last one out. All rounds: {}",
            self.turn.as_millis(),
            self.rounds,
            csv.display()
        )
    }

    /// Writes all rounds.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn write_raw(&self, csv: &Path) -> Result<()> {
        self.raw.write(csv)
    }
}

/// A lookup that DPDK refuses.
pub(super) fn refused(errno: Errno) -> anyhow::Error {
    anyhow!("DPDK refuses a lookup: {errno}")
}

/// A percentile of sorted nanoseconds, in microseconds.
fn percentile(sorted: &[u64], percent: usize) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    sorted.get(last * percent / 100).map(|&ns| ns as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::super::side::Part;
    use super::*;

    fn session() -> Session {
        Session::new(&FunctionArgs {
            name: None,
            service: false,
            rounds: 3,
            milliseconds: 1,
            csv: "unused".into(),
            json: true,
        })
    }

    #[test]
    fn a_row_has_medians_of_turns() {
        let mut session = session();
        session.begin("forward");
        // 1000 packets a millisecond, and half of that.
        let mut ours = Part(|| Ok((1000, Nanos::from_millis(1))));
        let theirs = Part(|| Ok((500, Nanos::from_millis(1))));
        let case = Case::new("some", 7, 1000);
        session
            .case(&case, &mut ours, Some(Peer::is("other", theirs)))
            .unwrap();
        let row = &session.rows()[0];
        assert_eq!((row.mpps, row.gbps, row.cpu_ns_per_packet), (1.0, 8.0, 1000.0));
        assert_eq!(
            (row.peer, row.peer_rate, row.ratio_to_peer),
            (Some("other"), Some(0.5), Some(2.0))
        );
        assert_eq!((row.latency_p50_us, row.entries), (None, 7));
        assert!(session.table().contains("2.00"));
    }

    type Turn = fn() -> Result<(u64, Nanos)>;

    #[test]
    fn a_missing_peer_is_null_and_says_why() {
        let mut session = session();
        let case = Case::new("some", 1, 64);
        for _ in 0..2 {
            let mut ours = Part(|| Ok((1, Nanos::from_millis(1))));
            let missing = || -> Result<Part<Turn>> { bail!("it is not installed") };
            session
                .case(&case, &mut ours, Some(Peer::of("other", missing())))
                .unwrap();
        }
        let json = serde_json::to_value(session.rows()).unwrap();
        assert!(
            json[0]["peer"].is_null() && json[0]["ratio_to_peer"].is_null(),
            "{json}"
        );
        let text = session.table();
        assert_eq!(
            text.matches("other does not take part: it is not installed")
                .count(),
            1,
            "{text}"
        );
    }

    #[test]
    fn percentiles_are_in_microseconds() {
        let sorted: Vec<u64> = (0..=100).map(|n| n * 1000).collect();
        assert_eq!(
            (percentile(&sorted, 50), percentile(&sorted, 99)),
            (Some(50.0), Some(99.0))
        );
        assert_eq!(percentile(&[], 50), None);
    }
}
