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
    /// On the host: watches the CPUs of functions, and wakes instances or sends them to sleep by signals.
    Manager(Manager),
    /// On the host: sends one signal of an instance.
    Signal(Send),
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
    /// Simulated work per byte of a packet, in nanoseconds of spinning, such as 12.4.
    #[arg(long, env = "INCO_COST_NS_PER_BYTE", default_value_t = 0.0, value_name = "NS", value_parser = ns_per_byte)]
    pub(crate) cost_ns_per_byte: f64,
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
    /// Socket on which the host's manager hands over signals, which leave by the first data port.
    #[arg(long, env = "INCO_SIGNALS", value_name = "PATH")]
    pub(crate) signals: Option<PathBuf>,
}

/// What tells how busy a function is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Watch {
    /// CPU time of its control group, as a share of its quota, or of one CPU without a quota.
    Group,
    /// The share of time in which the CPUs that it may use are busy: for functions with CPUs of their own.
    Cpus,
}

#[derive(Debug, Args)]
#[command(
    after_help = concat!(
        "Examples:\n",
        "  inco-nf manager\n",
        "  inco-nf manager --service web --up 0.7 --down 0.2\n\n",
        "It manages the services whose configuration has `signals = true`, one instance at a time.",
    )
)]
pub(crate) struct Manager {
    /// The run directory of inco.
    #[arg(long, env = "INCO_RUN_DIR", default_value = "/run/inco", value_name = "DIR")]
    pub(crate) run_dir: PathBuf,
    /// Manage this service only.
    #[arg(long, value_name = "NAME")]
    pub(crate) service: Option<String>,
    /// Wake an instance when an active one is at least this busy.
    #[arg(long, default_value_t = 0.8, value_parser = share, value_name = "SHARE")]
    pub(crate) up: f64,
    /// Send one to sleep when it is at most this busy, and the others then stay below three quarters of --up.
    #[arg(long, default_value_t = 0.3, value_parser = share, value_name = "SHARE")]
    pub(crate) down: f64,
    /// How often CPUs are looked at, in milliseconds.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(10..=10_000), value_name = "MS")]
    pub(crate) period_ms: u64,
    /// Over how long use is averaged, and the least time between two signals of a service, in milliseconds.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(10..=60_000), value_name = "MS")]
    pub(crate) window_ms: u64,
    /// How long an instance must be that idle before it goes to sleep, in milliseconds.
    #[arg(long, default_value_t = 3_000, value_parser = clap::value_parser!(u64).range(10..=3_600_000), value_name = "MS")]
    pub(crate) hold_ms: u64,
    /// What tells how busy a function is.
    #[arg(long, value_enum, default_value = "group")]
    pub(crate) watch: Watch,
}

impl Manager {
    /// Validates combinations of options.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        if self.down >= self.up {
            return Err("--down must be below --up");
        }
        Ok(())
    }
}

/// What a signal is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Wish {
    /// The instance takes new flows.
    Wake,
    /// It takes no new flows and keeps those that it has.
    Sleep,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  inco-nf signal wake 7")]
pub(crate) struct Send {
    /// What is to happen.
    #[arg(value_enum)]
    pub(crate) wish: Wish,
    /// The instance's id.
    pub(crate) instance: u32,
    /// The run directory of inco.
    #[arg(long, env = "INCO_RUN_DIR", default_value = "/run/inco", value_name = "DIR")]
    pub(crate) run_dir: PathBuf,
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if share > 0.0 && share <= 1.0 => Ok(share),
        _ => Err("a share above 0 and at most 1, such as 0.8".into()),
    }
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

/// A packet of the longest length then takes at most some tens of milliseconds.
const NS_PER_BYTE_LIMIT: f64 = 1_000.0;

fn ns_per_byte(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(ns) if (0.0..=NS_PER_BYTE_LIMIT).contains(&ns) => Ok(ns),
        _ => Err(format!("nanoseconds, 0 to {NS_PER_BYTE_LIMIT}")),
    }
}

fn cpus(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(cpus) if cpus.is_finite() && cpus > 0.0 => Ok(cpus),
        _ => Err("a share of a CPU above 0, such as 0.1".into()),
    }
}
