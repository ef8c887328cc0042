//! Arguments of `inco load`.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use display::output::WrongUsage;

use crate::analytics::{self, Analytics};
use crate::store::{self, Store};
use crate::transactions::{self, Transactions};
use crate::{Load, Pace, Report, Workload};

/// How long an application may take to answer at all.
const BEGIN_LIMIT: Duration = Duration::from_secs(10);

/// Arguments of `inco load`.
#[derive(Debug, Args)]
#[command(after_help = concat!(
    "Examples:\n",
    "  inco load store 10.0.0.76:7400 10.0.0.76:7401 10.0.0.76:7402 --check\n",
    "  inco load transactions 10.0.0.72:7200 --rate 500 --duration 60",
))]
pub struct LoadArgs {
    #[command(subcommand)]
    application: Application,
}

/// The application.
#[derive(Debug, Subcommand)]
enum Application {
    /// Read and write keys of a replicated store
    #[command(after_help = concat!(
        "Examples:\n",
        "  inco load store 10.0.0.70:7000 10.0.0.70:7001 10.0.0.70:7002\n",
        "  inco load store 10.0.0.70:7000 --rate 2000 --duration 60 --keys 100 --check",
    ))]
    Store {
        /// The replicas, in the order of their indices
        #[arg(required = true, value_name = "ADDRESS:PORT")]
        replicas: Vec<SocketAddr>,
        #[command(flatten)]
        load: RequestArgs,
        /// Keys, of which the n-th most frequent is asked for in proportion to 1/n^0.99
        #[arg(long, default_value_t = 1_000_000, value_name = "COUNT")]
        keys: u64,
        /// The share of requests that read
        #[arg(long, default_value_t = 0.95, value_name = "SHARE")]
        reads: f64,
        /// Bytes of a value
        #[arg(long, default_value_t = 100, value_name = "BYTES")]
        value_bytes: usize,
    },
    /// Run transactions, each of which reads two keys and writes one of them
    #[command(after_help = concat!(
        "Examples:\n",
        "  inco load transactions 10.0.0.72:7200\n",
        "  inco load transactions 10.0.0.72:7200 --keys 50 --duration 30 --check --json",
    ))]
    Transactions {
        /// The coordinator
        #[arg(value_name = "ADDRESS:PORT")]
        coordinator: SocketAddr,
        #[command(flatten)]
        load: RequestArgs,
        /// Keys, of which the n-th most frequent is asked for in proportion to 1/n^0.99
        #[arg(long, default_value_t = 1_000_000, value_name = "COUNT")]
        keys: u64,
        /// Bytes of a value
        #[arg(long, default_value_t = 100, value_name = "BYTES")]
        value_bytes: usize,
    },
    /// Send made-up messages with tags, and read the most frequent tags of each window
    #[command(after_help = concat!(
        "Examples:\n",
        "  inco load analytics 10.0.0.74:7300 10.0.0.74:7301 --results 10.0.0.74:7302\n",
        "  inco load analytics 10.0.0.74:7300 --results 10.0.0.74:7302 --rate 5000 --check",
    ))]
    Analytics {
        /// The filters: a source for each, numbered in their order
        #[arg(required = true, value_name = "ADDRESS:PORT")]
        filters: Vec<SocketAddr>,
        /// The aggregator
        #[arg(long, value_name = "ADDRESS:PORT")]
        results: SocketAddr,
        /// Tuples per second
        #[arg(long, default_value_t = 1_000.0, value_name = "PER_SECOND")]
        rate: f64,
        #[command(flatten)]
        run: RunArgs,
        /// Tags
        #[arg(long, default_value_t = 500, value_name = "COUNT")]
        keys: u64,
        /// What a message needs to be counted: half of them have it
        #[arg(long, default_value = "inco", value_name = "TEXT")]
        pattern: String,
        /// Rows of a window, as the service has it
        #[arg(long, default_value_t = 10, value_name = "COUNT")]
        n: usize,
        /// Slots of a window, as the service has it
        #[arg(long, default_value_t = 10, value_name = "COUNT")]
        slots: u64,
        /// Milliseconds of a slot, as the service has it
        #[arg(long, default_value_t = 1_000, value_name = "MS")]
        slot_time: u64,
    },
}

/// Options of all.
#[derive(Clone, Debug, Args)]
struct RunArgs {
    /// For how many seconds
    #[arg(long, default_value_t = 10.0, value_name = "SECONDS")]
    duration: f64,
    /// Record all, and check at the end that the application has kept its promise: each key of the store is linearizable,
    /// transactions are serialisable, windows are exact
    #[arg(long)]
    check: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Options of clients with requests.
#[derive(Clone, Debug, Args)]
struct RequestArgs {
    /// Requests per second (open loop); default: each client asks again when it has its answer (closed loop)
    #[arg(long, value_name = "PER_SECOND")]
    rate: Option<f64>,
    /// Clients, each with one request at a time
    #[arg(long, default_value_t = 32, value_name = "COUNT")]
    clients: usize,
    #[command(flatten)]
    run: RunArgs,
}

fn positive(name: &str, value: f64) -> Result<f64> {
    if value.is_finite() && value > 0.0 && value <= 1e7 {
        return Ok(value);
    }
    let what = format!("--{name} {value}: write a number above 0 and up to 10,000,000");
    Err(WrongUsage(what).into())
}

impl RunArgs {
    fn pace(&self, rate: Option<f64>) -> Result<Pace> {
        let seconds = positive("duration", self.duration)?;
        Ok(Pace {
            rate: rate.map(|rate| positive("rate", rate)).transpose()?,
            lasts: Duration::from_secs_f64(seconds),
        })
    }
}

fn no_answer(of: SocketAddr) -> String {
    let seconds = BEGIN_LIMIT.as_secs();
    format!("{of} has not answered for {seconds} s: is the service there, and a route to it?")
}

/// Runs clients; gives what they have shown, and what they were asking.
fn requests<W: Workload>(workload: W, args: &RequestArgs, to: &[SocketAddr]) -> Result<(Report, Load<W>)> {
    let pace = args.run.pace(args.rate)?;
    if !(1..=10_000).contains(&args.clients) {
        return Err(WrongUsage("--clients: write 1 to 10000".to_owned()).into());
    }
    let mut load = Load::new(workload, args.clients, to)?;
    if !load.wait(BEGIN_LIMIT)? {
        bail!(no_answer(to[0]));
    }
    let times = load.run(pace, || true)?;
    load.settle()?;
    let counts = load.counts();
    Ok((Report::new(counts.requests, &times, counts), load))
}

impl LoadArgs {
    pub(crate) fn is_json(&self) -> bool {
        match &self.application {
            Application::Store { load, .. } | Application::Transactions { load, .. } => load.run.json,
            Application::Analytics { run, .. } => run.json,
        }
    }

    /// Runs the clients.
    pub(crate) fn run(&self) -> Result<Report> {
        match &self.application {
            Application::Store {
                replicas,
                load,
                keys,
                reads,
                value_bytes,
            } => {
                let settings = store::Settings {
                    keys: *keys,
                    reads: *reads,
                    written: 0,
                    value_bytes: *value_bytes,
                    records: load.run.check,
                };
                let (mut report, of) = requests(Store::new(settings)?, load, replicas)?;
                if load.run.check {
                    let checked = of.workload().check()?;
                    report.checked = Some(format!("{checked} operations, each key linearizable"));
                }
                Ok(report)
            }
            Application::Transactions {
                coordinator,
                load,
                keys,
                value_bytes,
            } => {
                let settings = transactions::Settings {
                    keys: *keys,
                    value_bytes: *value_bytes,
                    records: load.run.check,
                };
                let (mut report, of) = requests(Transactions::new(settings)?, load, &[*coordinator])?;
                report.aborted = of.workload().aborted();
                if load.run.check {
                    let checked = of.workload().check()?;
                    report.checked = Some(format!("{checked} transactions, strictly serialisable"));
                }
                Ok(report)
            }
            Application::Analytics {
                filters,
                results,
                rate,
                run,
                keys,
                pattern,
                n,
                slots,
                slot_time,
            } => {
                let settings = analytics::Settings {
                    keys: *keys,
                    pattern: pattern.clone(),
                    n: *n,
                    slots: *slots,
                    slot_time: *slot_time,
                };
                let pace = run.pace(Some(*rate))?;
                let mut of = Analytics::new(settings, filters, *results)?;
                if !of.wait(BEGIN_LIMIT)? {
                    bail!(no_answer(filters[0]));
                }
                let times = of.run(pace, || true)?;
                of.settle()?;
                let mut report = Report::new(of.counts().requests, &times, of.counts());
                if run.check {
                    let windows = of.check()?;
                    if windows == 0 {
                        bail!("no window lies in the run as a whole: write a longer --duration");
                    }
                    report.checked = Some(format!("{windows} windows, exact"));
                }
                Ok(report)
            }
        }
    }
}
