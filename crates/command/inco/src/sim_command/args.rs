//! What may be written after `inco sim`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(crate) enum SimCommand {
    /// Play a scenario and say whether it came out as it expects
    Run(SimRunArgs),
    /// Play two scenarios and show how their figures differ
    Compare(SimCompareArgs),
    /// Play a scenario with many values of its parameters, and show the Pareto front of loss and instance-time
    Sweep(SimSweepArgs),
}

/// What is played, and how often.
#[derive(Clone, Debug, Args)]
pub(crate) struct Play {
    /// Runs of each variant, each with its own seed; figures are then means with 95 % confidence intervals. By
    /// default as many as the scenario's expectation is meant for, mostly 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=simulation::SEEDS_LIMIT))]
    pub(crate) seeds: Option<u64>,
    /// Only these variants
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) variant: Vec<String>,
    /// Set a key of every variant, as in service.autoscaler.target=0.6
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// The folder of traces, mixtures and captures; by default $INCO_DATA or ../shared/data
    #[arg(long, value_name = "FOLDER")]
    pub(crate) data: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  inco sim run scenarios/smartinco-schedulers.toml\n  inco sim run scenarios/agh-hour.toml --variant ladder,hpa-55 --seeds 5\n  inco sim run scenarios/smartinco-sizes.toml --set service.autoscaler.target=0.7 --json\n\nExit status: 1 where the scenario's expectation is not met. Everything that it prints is simulated."
)]
pub(crate) struct SimRunArgs {
    /// The scenario
    #[arg(value_name = "SCENARIO.toml")]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) play: Play,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Write a page with plots
    #[arg(long, value_name = "FILE.html")]
    pub(crate) report: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  inco sim compare scenarios/smartinco-schedulers.toml scenarios/smartinco-all-schedulers.toml --report compared.html\n\nVariants are paired by their names. Everything that it prints is simulated."
)]
pub(crate) struct SimCompareArgs {
    /// One scenario
    #[arg(value_name = "A.toml")]
    pub(crate) a: PathBuf,
    /// The other
    #[arg(value_name = "B.toml")]
    pub(crate) b: PathBuf,
    #[command(flatten)]
    pub(crate) play: Play,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Write a page with plots
    #[arg(long, value_name = "FILE.html")]
    pub(crate) report: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  inco sim sweep scenarios/agh-hour.toml --variant ladder --seeds 1 --vary service.autoscaler.target=0.65,0.75,0.85 --vary service.standby=0,4,8\n\nA combination marked with * is on the Pareto front: no other loses less without needing more instance-time.\nEverything that it prints is simulated."
)]
pub(crate) struct SimSweepArgs {
    /// The scenario
    #[arg(value_name = "SCENARIO.toml")]
    pub(crate) file: PathBuf,
    /// A key and its values; several of these make all combinations
    #[arg(long, required = true, value_name = "KEY=VALUE,VALUE,…")]
    pub(crate) vary: Vec<String>,
    #[command(flatten)]
    pub(crate) play: Play,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Write a page with a plot
    #[arg(long, value_name = "FILE.html")]
    pub(crate) report: Option<PathBuf>,
}
