//! Arguments of `inco soak`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::bed::BedName;

/// Longest run, in minutes: a day has 1.5 million short flows.
const MINUTES_LIMIT: i64 = 24 * 60;

/// Arguments of `inco soak`.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = concat!(
        "Examples:\n",
        "  inco soak --minutes 60 --seed 7\n",
        "  inco soak --minutes 5 --bed soft-oci --fault instance-kill,inco-kill\n",
        "  inco soak --minutes 20 --without clock-jump --json | tail -n 1 | jq .ok\n",
        "  inco soak --list      the faults\n",
        "  inco soak actors --duration 1h\n\n",
        "Each bed is an inco of its own with traffic of its own. Everything is private to the run: directories, \
         mounts, control groups, Docker engine, Open vSwitch. Two faults reach further: cpu-contention takes all \
         CPUs for seconds, and clock-jump sets the clock of this machine and sets it back within a second, by the \
         monotonic clock (Linux has no wall clock per namespace); a guard process sets it back if this one is \
         killed. Leave them out with --without. The seed gives the sequence of faults. Ctrl-C ends the run; nothing \
         stays. Exit status 1 if a check failed.",
    )
)]
pub struct SoakArgs {
    /// What else there is
    #[command(subcommand)]
    pub other: Option<Other>,
    /// Minutes of traffic and faults; start and clean-up take at most 90 s more
    #[arg(long, value_name = "N", default_value_t = 10,
          value_parser = clap::value_parser!(u32).range(1..=MINUTES_LIMIT))]
    pub minutes: u32,
    /// Seed of the sequence of faults; default: a random one, which is printed
    #[arg(long, value_name = "S")]
    pub seed: Option<u64>,
    /// Only these beds: SWITCH-ENGINE
    #[arg(long, value_name = "BED", value_delimiter = ',', value_enum, default_values_t = BedName::ALL)]
    pub bed: Vec<BedName>,
    /// Only these faults
    #[arg(long, value_name = "FAULT", value_delimiter = ',', value_parser = crate::faults::name)]
    pub fault: Vec<&'static str>,
    /// Not these faults
    #[arg(long, value_name = "FAULT", value_delimiter = ',', value_parser = crate::faults::name)]
    pub without: Vec<&'static str>,
    /// List the faults and end
    #[arg(long)]
    pub list: bool,
    /// Print the verdict as JSON, in the last line
    #[arg(long)]
    pub json: bool,
    /// Copy configurations and logs to this directory at the end
    #[arg(long, value_name = "DIRECTORY")]
    pub logs: Option<PathBuf>,
    /// Clean up in that directory when standard input ends
    #[arg(long, hide = true, value_name = "DIRECTORY")]
    pub guard: Option<PathBuf>,
}

/// Other runs.
#[derive(Debug, Subcommand)]
pub enum Other {
    /// The applications made of actors under faults: the store, transactions and analytics, each with its checker
    Actors(ActorsArgs),
}

/// Arguments of `inco soak actors`.
#[derive(Debug, Args)]
#[command(
    after_help = concat!(
        "Examples:\n",
        "  inco soak actors\n",
        "  inco soak actors --duration 1h --seed 7 --json | tail -n 1 | jq .ok\n\n",
        "Real processes and containers, with clients over the network. Faults: either side of an application is \
         killed under load, or cut off for up to 0.6 s; clients are cut off; actors move. What is checked: \
         docs/soak.md. The seed gives the sequence of faults. Ctrl-C ends the run; nothing stays. Exit status 1 if a \
         check failed.",
    )
)]
pub struct ActorsArgs {
    /// For how long faults happen; start and clean-up take some seconds more
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    pub duration: Duration,
    /// Seed of the sequence of faults; default: a random one, which is printed
    #[arg(long, value_name = "S")]
    pub seed: Option<u64>,
    /// Print the verdict as JSON, in the last line
    #[arg(long)]
    pub json: bool,
}

/// A duration with its unit, up to a day.
fn duration(text: &str) -> Result<Duration, String> {
    let nanos = configuration::parse_span(text).map_err(|wrong| wrong.to_string())?;
    let duration = Duration::from_nanos(nanos.0);
    let longest = Duration::from_secs(60 * MINUTES_LIMIT as u64);
    if duration < Duration::from_secs(10) || duration > longest {
        return Err("write 10s to 24h".to_owned());
    }
    Ok(duration)
}
