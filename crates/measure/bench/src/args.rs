//! Arguments of `inco bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};

use super::traffic::Ip;

/// Arguments of `inco bench`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  inco bench steer                    against testpmd and OVS-DPDK, from 32 to a million flows\n  inco bench steer --json --flows 1000\n  inco bench setup                    new flows per second, by how full the table is\n  inco bench flood                    established flows while new ones flood the switch\n  inco bench chain                    a whole chain with a function, against OVS-DPDK\n  inco bench react                    how soon an added instance serves\n  inco bench blocked                  what is lost when instances come and go\n  inco bench idle                     what inco costs while nothing happens\n  inco bench openflow                 what becomes of packets where Open vSwitch forwards\n\nNeeds two CPUs, and root for hugepages. docs/benchmarks.md explains each figure."
)]
pub struct BenchArgs {
    #[command(subcommand)]
    /// Which one.
    pub bench: BenchCommand,
}

/// A bench.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Established flows to their instances: against the limit of input and output, and OVS-DPDK
    Steer(SteerArgs),
    /// New flows: how many a core sets up in a second, by how full its table is
    Setup(SetupArgs),
    /// Established flows, while a flood of new ones arrives on another uplink
    Flood(FloodArgs),
    /// Generator, switch, a function's process, switch, generator, all over memif: against OVS-DPDK
    Chain(ChainArgs),
    /// From the first packet beyond capacity to the first one that an added instance serves
    React(ReactArgs),
    /// Packets that are lost when instances are added and removed, by scheduler
    Blocked(BlockedArgs),
    /// What inco costs while nothing happens
    Idle(IdleArgs),
    /// Open vSwitch forwards: bursts of new flows, rules at full speed, a cut connection, a killed switch
    Openflow(OpenflowArgs),
    /// The process that `steer` measures
    #[command(hide = true, after_help = "Example: started by inco bench steer")]
    Contestant(ContestantArgs),
}

/// Arguments of `inco bench steer`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  inco bench steer\n  inco bench steer --full --csv all.csv\n  inco bench steer --json --flows 32,1000 --rounds 5\n  inco bench steer --ip ipv6 --flows 10000 --no-ovs"
)]
pub struct SteerArgs {
    /// How many flows, each number on its own
    #[arg(long, value_delimiter = ',', value_name = "N", default_values_t = [32, 1_000, 10_000, 100_000, 1_000_000], value_parser = clap::value_parser!(u32).range(1..=4_000_000))]
    pub flows: Vec<u32>,
    /// Rounds; the medians of their ratios count
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// What the instances' ports are
    #[arg(long, value_enum, default_value = "net_null")]
    pub port: SinkPort,
    /// The packets' addresses
    #[arg(long, value_enum, default_value = "ipv4")]
    pub ip: Ip,
    /// Also packets of 512 and 1500 bytes, IPv6, two workers, 4 to 256 instances, and 64 memif instances of which 60
    /// idle
    #[arg(long)]
    pub full: bool,
    /// Leave OVS out
    #[arg(long)]
    pub no_ovs: bool,
    /// Where every measurement goes, with its command lines
    #[arg(long, value_name = "FILE", default_value = "bench-steer.csv")]
    pub csv: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `inco bench setup`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  inco bench setup\n  inco bench setup --json --flows 1000000")]
pub struct SetupArgs {
    /// IPv4 flows that the table has room for
    #[arg(long, value_name = "N", default_value_t = flow_table::TableConfig::LIMIT)]
    pub flows: usize,
    /// Rounds; their medians count
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Where every measurement goes
    #[arg(long, value_name = "FILE", default_value = "bench-setup.csv")]
    pub csv: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `inco bench flood`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  inco bench flood\n  inco bench flood --json --flows 1000")]
pub struct FloodArgs {
    /// Established flows
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub flows: u32,
    /// IPv4 flows that the table has room for; the flood goes on when it is full
    #[arg(long, value_name = "N", default_value_t = flow_table::TableConfig::LIMIT)]
    pub table: usize,
    /// Rounds, each without and with the flood; the median of their ratios counts
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Where every measurement goes
    #[arg(long, value_name = "FILE", default_value = "bench-flood.csv")]
    pub csv: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `inco bench chain`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  inco bench chain\n  inco bench chain --json --flows 32 --rounds 5")]
pub struct ChainArgs {
    /// Flows
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub flows: u32,
    /// Bytes of a packet on the wire
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(64..=1518))]
    pub size: u16,
    /// Rounds; the medians of their ratios count
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Leave OVS out
    #[arg(long)]
    pub no_ovs: bool,
    /// Where every measurement goes, with its command lines
    #[arg(long, value_name = "FILE", default_value = "bench-chain.csv")]
    pub csv: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `inco bench react`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  sudo inco bench react\n  sudo inco bench react --json --from warm,oci --rounds 100\n\nContainers of inco's own engine need root."
)]
pub struct ReactArgs {
    /// Only instances added from there; by default all that this machine has
    #[arg(long, value_enum, value_delimiter = ',', value_name = "WHERE")]
    pub from: Vec<AddedFrom>,
    /// How often one is added, for each
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Where every reaction goes
    #[arg(long, value_name = "FILE", default_value = "bench-react.csv")]
    pub csv: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `inco bench blocked`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  inco bench blocked\n  inco bench blocked --json --scheduler best-fit,round-robin"
)]
pub struct BlockedArgs {
    /// Only these schedulers
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    pub scheduler: Vec<String>,
    /// How often an instance comes and goes, for each scheduler
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub changes: u32,
    /// Where every row goes
    #[arg(long, value_name = "FILE", default_value = "bench-blocked.csv")]
    pub csv: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `inco bench idle`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  inco bench idle\n  inco bench idle --json --instances 64")]
pub struct IdleArgs {
    /// Instances; they are sinks without containers
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub instances: u16,
    /// How long it is watched, in seconds
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub seconds: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `inco bench openflow`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  sudo inco bench openflow\n  sudo inco bench openflow bursts reactive --seconds 10\n  sudo inco bench openflow rules --rules 20000 --json\n\nContainers of inco's own engine need root. It starts an Open vSwitch of its own (apt-get install\nopenvswitch-switch-dpdk)."
)]
pub struct OpenflowArgs {
    /// Only these cases
    #[arg(value_enum, value_name = "CASE")]
    pub cases: Vec<OpenflowCase>,
    /// How long instances come and go, and connections are cut, in seconds
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: u64,
    /// New flows per second in `bursts` and `reactive`
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub new_flows: u32,
    /// Packets of each of them, sent within a moment
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub burst: u32,
    /// Rules that are written in `rules`
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub rules: u32,
    /// How many of them are written together (a bundle); 1: each by itself
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub bundle: u32,
    /// Where all figures go
    #[arg(long, value_name = "FILE", default_value = "bench-openflow.csv")]
    pub csv: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of a contestant's process.
#[derive(Debug, Args)]
pub struct ContestantArgs {
    /// What it is to do, as JSON
    #[arg(long)]
    pub spec: String,
}

/// The port kind of the instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum SinkPort {
    /// DPDK's own sink, as the peers have; at most 28 of them
    #[value(name = "net_null")]
    NetNull,
    /// inco's own sink
    #[value(name = "null")]
    Null,
    /// memif ports, which a thread of the bench empties
    #[value(name = "memif")]
    Memif,
}

/// The origin of the added instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AddedFrom {
    /// A standby that runs
    Warm,
    /// A standby that is frozen
    Paused,
    /// A new container of inco's own engine
    Oci,
    /// A new container of Docker
    Docker,
}

/// A case of `inco bench openflow`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OpenflowCase {
    /// New flows, each a burst, while instances go 3, 8, 3; set up proactively
    Bursts,
    /// The same, set up reactively
    Reactive,
    /// Rules written at full speed, and slower until established flows lose nothing
    Rules,
    /// 1,000 rules for 10,000 flows while instances go 3, 8, 3
    Limit,
    /// The controller's connection cut for half of the time
    Cut,
    /// ovs-vswitchd killed, and started again
    Restart,
}
