//! Arguments of `inco demo`.

use std::path::PathBuf;

use clap::Args;
use images::EngineName;
use testbed::SwitchName;

/// Arguments of `inco demo`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  inco demo\n  inco demo --quick --engine docker\n  inco demo --all\n  inco demo --full --json > summary.json\n\nStops cleanly with Ctrl-C."
)]
pub struct DemoArgs {
    /// Only one scheduler, in under 45 s
    #[arg(long, conflicts_with_all = ["all", "full"])]
    pub quick: bool,
    /// Three schedulers, and a second between two new flows: three minutes
    #[arg(long)]
    pub all: bool,
    /// What --all does, and also: saturation of one instance and of 1 to 8, and packets of 64, 512 and 1500 bytes
    #[arg(long)]
    pub full: bool,
    /// What runs the containers
    #[arg(long, value_enum, default_value_t)]
    pub engine: EngineName,
    /// What forwards the packets
    #[arg(long, value_enum, default_value_t)]
    pub switch: SwitchName,
    /// Only these schedulers; by default round-robin and best-fit, with --all also worst-fit, with --quick only
    /// best-fit
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = configuration::scheduler_name)]
    pub scheduler: Vec<String>,
    /// Print the summary as JSON, and nothing else
    #[arg(long)]
    pub json: bool,
    /// Where the report goes
    #[arg(long, value_name = "FILE", default_value = "demo-report.html")]
    pub report: PathBuf,
    /// Leave configurations and logs of the runs in their directory
    #[arg(long)]
    pub keep_dir: bool,
    /// Milliseconds between two new flows, for a shorter run than is shown to people
    #[arg(long, hide = true, value_name = "MS", value_parser = clap::value_parser!(u64).range(10..=60_000))]
    pub flow_interval_ms: Option<u64>,
}
