use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Runs a network function connected to the switch over memif.
#[derive(Debug, Parser)]
#[command(name = "inco-nf", version, max_term_width = 110)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) function: Function,
}

/// The built-in functions.
#[derive(Debug, Subcommand)]
pub(crate) enum Function {
    /// Returns every packet unchanged.
    Forward(Forward),
}

/// A role in the memif protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    /// The switch connects, and owns the memory.
    Server,
    /// The switch listens.
    Client,
}

#[derive(Debug, Args)]
pub(crate) struct Forward {
    /// The memif socket shared with the switch.
    #[arg(
        long,
        env = "INCO_SOCKET",
        default_value = "/run/inco-port/port.sock",
        value_name = "PATH"
    )]
    pub(crate) socket: PathBuf,
    /// Who listens on the socket: this process as `server`, or the switch, to which it connects as `client`.
    #[arg(long, env = "INCO_ROLE", value_enum, default_value = "server")]
    pub(crate) role: Role,
    /// As client: queue pairs per port. The switch may send on any of those it supports.
    #[arg(long, env = "INCO_QUEUES", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256), value_name = "PAIRS")]
    pub(crate) queues: u16,
    /// As client: slots per ring, a power of two.
    #[arg(long, env = "INCO_RING_SLOTS", default_value_t = 1024, value_parser = slots, value_name = "SLOTS")]
    pub(crate) ring_slots: u32,
    /// As client: bytes per buffer, a multiple of 64.
    #[arg(long, env = "INCO_BUFFER_BYTES", default_value_t = 2048, value_name = "BYTES")]
    pub(crate) buffer_bytes: u32,
    /// Network interfaces as data ports, one or two, separated by commas, instead of a memif socket.
    #[arg(
        long,
        env = "INCO_INTERFACES",
        value_delimiter = ',',
        num_args = 1,
        value_name = "NAMES"
    )]
    pub(crate) interfaces: Vec<String>,
    /// Data ports: memif interfaces 0 and, with 2, 1.
    #[arg(long, env = "INCO_PORTS", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    pub(crate) ports: u8,
    /// Forward from each port to the other. Needs two ports.
    #[arg(long, env = "INCO_CROSS")]
    pub(crate) cross: bool,
    /// This instance's id, for the stamp and the page of counters.
    #[arg(long, env = "INCO_INSTANCE_ID", default_value_t = 0, value_name = "ID")]
    pub(crate) instance_id: u32,
    /// Write the instance's id into the test field of generated packets.
    #[arg(long, env = "INCO_STAMP")]
    pub(crate) stamp: bool,
    /// Simulated work per packet, in nanoseconds of spinning.
    #[arg(long, env = "INCO_COST_NS", default_value_t = 0, value_name = "NS")]
    pub(crate) cost_ns: u64,
    /// Stay just below this share of a CPU, which should be the container's quota: the kernel throttles a
    /// function that exceeds its quota for tens of milliseconds. A limit set by the host in the page takes
    /// precedence.
    #[arg(long, env = "INCO_PACE_CPUS", value_name = "CPUS", value_parser = cpus)]
    pub(crate) pace_cpus: Option<f64>,
    /// How long to rest when the rings are empty, in microseconds, before requesting a wake-up: packets
    /// accumulate meanwhile, and each costs less. 200 if paced, else 0.
    #[arg(long, env = "INCO_REST_US", value_name = "US")]
    pub(crate) rest_us: Option<u64>,
    /// Socket on which the host offers the page of counters.
    #[arg(long, env = "INCO_PAGE", value_name = "PATH")]
    pub(crate) page: Option<PathBuf>,
}

impl Forward {
    /// Validates combinations of options.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        if self.cross && self.ports != 2 {
            return Err("--cross needs --ports 2");
        }
        if !self.interfaces.is_empty() && self.interfaces.len() != usize::from(self.ports) {
            return Err("--interfaces needs as many as there are --ports");
        }
        if self.stamp && self.instance_id == 0 {
            return Err("--stamp needs --instance-id above 0");
        }
        Ok(())
    }
}

fn slots(text: &str) -> Result<u32, String> {
    let (least, most) = (1 << memif::MIN_LOG2_SLOTS, 1 << memif::MAX_LOG2_SLOTS);
    match text.parse::<u32>() {
        Ok(slots) if slots.is_power_of_two() && (least..=most).contains(&slots) => Ok(slots),
        _ => Err(format!("a power of two, {least} to {most}")),
    }
}

fn cpus(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(cpus) if cpus.is_finite() && cpus > 0.0 => Ok(cpus),
        _ => Err("a share of a CPU above 0, such as 0.1".into()),
    }
}
