use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// Runs a network function between the switch and this process, over memif.
#[derive(Debug, Parser)]
#[command(name = "inco-nf", version, max_term_width = 110)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) function: Function,
}

/// The built-in functions.
#[derive(Debug, Subcommand)]
pub(crate) enum Function {
    /// Sends every packet back unchanged.
    Forward(Forward),
}

#[derive(Debug, Args)]
pub(crate) struct Forward {
    /// Where to listen for the switch.
    #[arg(
        long,
        env = "INCO_SOCKET",
        default_value = "/run/inco-port/port.sock",
        value_name = "PATH"
    )]
    pub(crate) socket: PathBuf,
    /// Data ports: memif interfaces 0 and, with 2, 1.
    #[arg(long, env = "INCO_PORTS", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    pub(crate) ports: u8,
    /// What comes in by one port goes out by the other. Needs two ports.
    #[arg(long, env = "INCO_CROSS")]
    pub(crate) cross: bool,
    /// This instance's id, for the stamp and the page of counters.
    #[arg(long, env = "INCO_INSTANCE_ID", default_value_t = 0, value_name = "ID")]
    pub(crate) instance_id: u32,
    /// Write the instance's id into the test field of generated packets.
    #[arg(long, env = "INCO_STAMP")]
    pub(crate) stamp: bool,
    /// Work that each packet costs, in nanoseconds of spinning.
    #[arg(long, env = "INCO_COST_NS", default_value_t = 0, value_name = "NS")]
    pub(crate) cost_ns: u64,
    /// Stay just below this share of a CPU, which should be the container's quota: a function that runs into its
    /// quota is stopped for tens of milliseconds. A limit that the host tells by the page comes first.
    #[arg(long, env = "INCO_PACE_CPUS", value_name = "CPUS", value_parser = cpus)]
    pub(crate) pace_cpus: Option<f64>,
    /// How long to rest when the rings have run dry, in microseconds, before asking to be woken: packets gather
    /// meanwhile, and each costs less. 200 where paced, else 0.
    #[arg(long, env = "INCO_REST_US", value_name = "US")]
    pub(crate) rest_us: Option<u64>,
    /// Where to listen for the page of counters that the host shares.
    #[arg(long, env = "INCO_PAGE", value_name = "PATH")]
    pub(crate) page: Option<PathBuf>,
}

impl Forward {
    /// What is wrong with options that are right each by itself.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        if self.cross && self.ports != 2 {
            return Err("--cross needs --ports 2");
        }
        if self.stamp && self.instance_id == 0 {
            return Err("--stamp needs --instance-id above 0");
        }
        Ok(())
    }
}

fn cpus(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(cpus) if cpus.is_finite() && cpus > 0.0 => Ok(cpus),
        _ => Err("a share of a CPU above 0, such as 0.1".into()),
    }
}
