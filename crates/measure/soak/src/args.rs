//! Arguments of `inco soak`.

use std::path::PathBuf;

use clap::Args;

use crate::bed::BedName;

/// Longest run, in minutes: a day has 1.5 million short flows.
const MINUTES_LIMIT: i64 = 24 * 60;

/// Arguments of `inco soak`.
#[derive(Debug, Args)]
#[command(
    after_help = concat!(
        "Examples:\n",
        "  inco soak --minutes 60 --seed 7\n",
        "  inco soak --minutes 5 --bed soft-oci --fault instance-kill,inco-kill\n",
        "  inco soak --minutes 20 --without clock-jump --json | tail -n 1 | jq .ok\n",
        "  inco soak --list      the faults\n\n",
        "Each bed is an inco of its own with traffic of its own. Everything is private to the run: directories, \
         mounts, control\n",
        "groups, Docker engine, Open vSwitch. Two faults reach further: cpu-contention takes all CPUs for seconds, \
         and clock-jump\n",
        "sets the clock of this machine and sets it back within a second, by the monotonic clock (Linux has no wall \
         clock per\n",
        "namespace); a guard process sets it back if this one is killed. Leave them out with --without.\n",
        "The seed gives the sequence of faults. Ctrl-C ends the run; nothing stays. Exit status 1 if a check failed.",
    )
)]
pub struct SoakArgs {
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
