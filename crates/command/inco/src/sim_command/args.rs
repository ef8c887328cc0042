//! The arguments of `inco sim`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(crate) enum SimCommand {
    /// Play a scenario and check its expectation
    Run(SimRunArgs),
    /// Play two scenarios and compare their figures
    Compare(SimCompareArgs),
    /// Play a scenario with many values of its parameters and show the Pareto front of loss and instance-time
    Sweep(SimSweepArgs),
}

/// Selection of variants and seeds, and the output.
#[derive(Clone, Debug, Args)]
pub(crate) struct Play {
    /// Number of runs of each variant, each with its own seed. With more than one, figures are means with 95 %
    /// confidence intervals. Default: the number that the scenario's expectation needs, mostly 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=simulation::SEEDS_LIMIT))]
    pub(crate) seeds: Option<u64>,
    /// Play only these variants
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) variant: Vec<String>,
    /// Set a key of every variant, for example service.autoscaler.target=0.6
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// The folder of traces, mixtures and captures; default: $INCO_DATA or ../shared/data
    #[arg(long, value_name = "FOLDER")]
    pub(crate) data: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Write a page with plots
    #[arg(long, value_name = "FILE.html")]
    pub(crate) report: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(
    after_help = concat!(
        "Examples:\n",
        "  inco sim run scenarios/smartinco-schedulers.toml\n",
        "  inco sim run scenarios/agh-hour.toml --variant ladder,hpa-55 --seeds 5\n",
        "  inco sim run scenarios/smartinco-sizes.toml --set service.autoscaler.target=0.7 --json\n\n",
        "Exit status 1 if the scenario's expectation is not met. All output is simulated.",
    )
)]
pub(crate) struct SimRunArgs {
    /// The scenario
    #[arg(value_name = "SCENARIO.toml")]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) play: Play,
}

#[derive(Debug, Args)]
#[command(
    after_help = concat!(
        "Example:\n",
        "  inco sim compare scenarios/smartinco-schedulers.toml scenarios/smartinco-all-schedulers.toml \\\n",
        "    --report compared.html\n\n",
        "Variants are paired by name. All output is simulated.",
    )
)]
pub(crate) struct SimCompareArgs {
    /// The first scenario
    #[arg(value_name = "A.toml")]
    pub(crate) a: PathBuf,
    /// The second scenario
    #[arg(value_name = "B.toml")]
    pub(crate) b: PathBuf,
    #[command(flatten)]
    pub(crate) play: Play,
}

#[derive(Debug, Args)]
#[command(
    after_help = concat!(
        "Example:\n",
        "  inco sim sweep scenarios/agh-hour.toml --variant ladder --seeds 1 \\\n",
        "    --vary service.autoscaler.target=0.65,0.75,0.85 --vary service.standby=0,4,8\n\n",
        "A combination with * is on the Pareto front: no other one loses fewer packets without more instance-time. \
         All output is simulated.",
    )
)]
pub(crate) struct SimSweepArgs {
    /// The scenario
    #[arg(value_name = "SCENARIO.toml")]
    pub(crate) file: PathBuf,
    /// A key and its values; with several keys, all combinations are played
    #[arg(long, required = true, value_name = "KEY=VALUE,VALUE,…")]
    pub(crate) vary: Vec<String>,
    #[command(flatten)]
    pub(crate) play: Play,
}
