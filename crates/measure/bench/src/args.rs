//! Arguments of `inco bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};

use super::traffic::Ip;

/// Arguments of `inco bench`.
#[derive(Debug, Args)]
#[command(
    after_help = concat!(
        "Examples:\n",
        "  inco bench steer                    against testpmd and OVS-DPDK, from 32 to a million flows\n",
        "  inco bench steer --json --flows 1000\n",
        "  inco bench setup                    new flows per second, by occupancy of the flow table\n",
        "  inco bench flood                    established flows during a flood of new flows\n",
        "  inco bench chain                    a round trip through a function, against OVS-DPDK\n",
        "  inco bench react                    time until an added instance serves\n",
        "  inco bench blocked                  packets lost when instances are added and removed\n",
        "  inco bench idle                     CPU use of an idle inco\n",
        "  inco bench restart                  pause while the next inco takes over after kill -9\n",
        "  inco bench balance                  light and heavy downloads through four functions, by balancer\n",
        "  inco bench hop                      a balancer in the switch, against one in a process of its own\n",
        "  inco bench wake                     a signal wakes a sleeping instance, another one sends it back\n",
        "  inco bench function firewall        a function of the library, against its peer\n",
        "  inco bench actors migrate           an actor moves with its state from a card to its host\n",
        "  inco bench openflow                 scaling, rules and restarts with the switch openflow\n",
        "  inco bench paths                    the same traffic over each path of this machine\n\n",
        "Needs two CPUs, and root for hugepages. docs/benchmarks.md explains each figure.",
    )
)]
pub struct BenchArgs {
    #[command(subcommand)]
    /// The bench.
    pub bench: BenchCommand,
}

/// A bench.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Established flows: packet rate against the I/O limit and OVS-DPDK
    Steer(SteerArgs),
    /// New flows: set-up rate of a core, by occupancy of its flow table
    Setup(SetupArgs),
    /// Established flows during a flood of new flows on another uplink
    Flood(FloodArgs),
    /// Round trip through a function over memif: packet rate and latency against OVS-DPDK
    Chain(ChainArgs),
    /// Scale-out: time from the first packet above the capacity to the first one that an added instance serves
    React(ReactArgs),
    /// Packets lost when instances are added and removed, by scheduler
    Blocked(BlockedArgs),
    /// CPU use of an idle inco
    Idle(IdleArgs),
    /// Restart after kill -9: time until the next inco forwards, by number of flows
    Restart(RestartArgs),
    /// Light and heavy downloads through four functions: fairness and latency by balancer, against RSS and HAProxy
    Balance(BalanceArgs),
    /// Bulk downloads through the programs of the driver ebpf: Gbit/s and CPU time, against a kernel bridge
    Bulk(BulkArgs),
    /// A balancer in the switch against the same one in an extra process: CPU time per packet, loss at a declared rate
    Hop(HopArgs),
    /// Sleeping instances: time from a signal to a fair share of new flows, throughput, forged signals
    Wake(WakeArgs),
    /// A function of the library: packet rate, latency and CPU time per packet, against its peer
    Function(FunctionArgs),
    /// Actors that move between a card and its host: an experiment of the paper, on one machine
    Actors(ActorsArgs),
    /// Switch openflow: bursts of new flows, rules at full rate, an interrupted connection, a killed switch
    Openflow(OpenflowArgs),
    /// Each path between two containers of this machine: Gbit/s, requests/s, packets/s and CPU time, in turns
    Paths(PathsArgs),
    /// The process that `steer` measures
    #[command(hide = true, after_help = "Example: started by inco bench steer")]
    Contestant(ContestantArgs),
    /// The process of a group of actors that `actors isolation` supervises
    #[command(hide = true, after_help = "Example: started by inco bench actors isolation")]
    ActorsGroup,
}

/// The switch that `inco bench steer` measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SteerDriver {
    /// inco's own switch
    Soft,
    /// programs in the kernel
    Ebpf,
}

/// Arguments of `inco bench steer`.
#[derive(Debug, Args)]
#[command(
    after_help = concat!(
        "Examples:\n",
        "  inco bench steer\n",
        "  inco bench steer --full --csv all.csv\n",
        "  inco bench steer --json --flows 32,1000 --rounds 5\n",
        "  inco bench steer --ip ipv6 --flows 10000 --no-ovs\n",
        "  inco bench steer --driver ebpf      CPU time of the programs: established, new, a flood of SYNs",

    )
)]
pub struct SteerArgs {
    /// The switch that steers; `ebpf` has rows of its own, and of the options --flows (at most 10,000), --rounds, --csv
    /// and --json
    #[arg(long, value_enum, default_value = "soft")]
    pub driver: SteerDriver,
    /// Numbers of flows, each measured separately
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "N",
        default_values_t = [32, 1_000, 10_000, 100_000, 1_000_000],
        value_parser = clap::value_parser!(u32).range(1..=4_000_000)
    )]
    pub flows: Vec<u32>,
    /// Rounds; the result is the median of their ratios
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Port kind of the instances
    #[arg(long, value_enum, default_value = "net_null")]
    pub port: SinkPort,
    /// IP version of the packets
    #[arg(long, value_enum, default_value = "ipv4")]
    pub ip: Ip,
    /// Also measure packets of 512 and 1500 bytes, IPv6, two workers, 4 to 256 instances, and 64 memif instances with
    /// 60 of them idle
    #[arg(long)]
    pub full: bool,
    /// Do not measure OVS
    #[arg(long)]
    pub no_ovs: bool,
    /// File for all measurements, with their command lines
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
    /// Capacity of the flow table for IPv4
    #[arg(long, value_name = "N", default_value_t = flow_table::TableConfig::LIMIT)]
    pub flows: usize,
    /// Rounds; the result is their median
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// File for all measurements
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
    #[arg(
        long,
        value_name = "N",
        default_value_t = 10_000,
        value_parser = clap::value_parser!(u32).range(1..=100_000)
    )]
    pub flows: u32,
    /// Capacity of the flow table for IPv4; the flood continues when it is full
    #[arg(long, value_name = "N", default_value_t = flow_table::TableConfig::LIMIT)]
    pub table: usize,
    /// Rounds, each without and with the flood; the result is the median of their ratios
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// File for all measurements
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
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1_000,
        value_parser = clap::value_parser!(u32).range(1..=100_000)
    )]
    pub flows: u32,
    /// Packet size on the wire, in bytes
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(64..=1518))]
    pub size: u16,
    /// Rounds; the result is the median of their ratios
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Do not measure OVS
    #[arg(long)]
    pub no_ovs: bool,
    /// File for all measurements, with their command lines
    #[arg(long, value_name = "FILE", default_value = "bench-chain.csv")]
    pub csv: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `inco bench react`.
#[derive(Debug, Args)]
#[command(
    after_help = concat!(
        "Examples:\n",
        "  sudo inco bench react\n",
        "  sudo inco bench react --json --from warm,oci --rounds 100\n\n",
        "Containers of inco's own engine need root.",
    )
)]
pub struct ReactArgs {
    /// Measure only these origins of the added instance; default: all that this machine supports
    #[arg(long, value_enum, value_delimiter = ',', value_name = "WHERE")]
    pub from: Vec<AddedFrom>,
    /// Number of additions per origin
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// File for all reactions
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
    /// Measure only these schedulers
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    pub scheduler: Vec<String>,
    /// Number of additions and removals of an instance per scheduler
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub changes: u32,
    /// File for all rows
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
    /// Number of instances, which are sinks without containers
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub instances: u16,
    /// Duration of the measurement, in seconds
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub seconds: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `inco bench restart`.
#[derive(Debug, Args)]
#[command(
    after_help = concat!(
        "Examples:\n",
        "  sudo inco bench restart\n",
        "  sudo inco bench restart --json --flows 1000000 --rounds 5\n\n",
        "Containers of inco's own engine need root.",
    )
)]
pub struct RestartArgs {
    /// Numbers of flows in the table, each measured separately
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "N",
        default_values_t = [1_000_000, 16_000_000],
        value_parser = clap::value_parser!(u32).range(1..=16_000_000)
    )]
    pub flows: Vec<u32>,
    /// Rounds; the result is their median
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// File for all rounds
    #[arg(long, value_name = "FILE", default_value = "bench-restart.csv")]
    pub csv: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `inco bench balance`.
#[derive(Debug, Args)]
#[command(
    after_help = concat!(
        "Examples:\n",
        "  sudo inco bench balance\n",
        "  sudo inco bench balance --json --rounds 5 --seconds 36 > balance.json\n",
        "  sudo inco bench balance --balancer rss,weighted,weighted-alone\n\n",
        "Containers of inco's own engine need root. It starts nginx, wrk and haproxy in network namespaces of its \
         own (apt-get install nginx-light wrk haproxy). Stops cleanly with Ctrl-C.",
    )
)]
pub struct BalanceArgs {
    /// Measure only with these functions; default: all
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAME")]
    pub function: Vec<BalancedFunction>,
    /// Measure only these; default: all but weighted-alone
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAME")]
    pub balancer: Vec<Balancer>,
    /// Duration of each turn, in seconds
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u64).range(2..=600))]
    pub seconds: u64,
    /// Turns of each balancer; requests are added up, other figures are the median
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// File for all turns
    #[arg(long, value_name = "FILE", default_value = "bench-balance.csv")]
    pub csv: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// The functions that `inco bench balance` has in its instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BalancedFunction {
    /// forward, with the declared cost of an inspection
    Forward,
    /// ids, with as many rules as make an inspection cost that much on this machine
    Ids,
}

impl BalancedFunction {
    /// All of them.
    pub(super) const ALL: &[BalancedFunction] = &[BalancedFunction::Forward, BalancedFunction::Ids];
}

/// What balances in `inco bench balance`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Balancer {
    /// inco with the scheduler rss, as a network card
    Rss,
    /// inco with the scheduler weighted
    Weighted,
    /// The same without spill: SmartLB's algorithm alone
    WeightedAlone,
    /// inco with the scheduler that it has by default
    Default,
    /// HAProxy, by the number of connections (leastconn)
    Haproxy,
}

impl Balancer {
    /// Those that are measured unless others are asked for.
    pub(super) const USUAL: [Balancer; 4] = [
        Balancer::Rss,
        Balancer::Weighted,
        Balancer::Default,
        Balancer::Haproxy,
    ];

    /// Its name in results.
    pub(super) fn name(self) -> &'static str {
        match self {
            Balancer::Rss => "rss",
            Balancer::Weighted => "weighted",
            Balancer::WeightedAlone => "weighted-alone",
            Balancer::Default => "default",
            Balancer::Haproxy => "haproxy",
        }
    }

    /// Whether the others are compared with it.
    pub(super) fn is_peer(self) -> bool {
        matches!(self, Balancer::Rss | Balancer::Haproxy)
    }
}

/// Arguments of `inco bench bulk`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  sudo inco bench bulk\n  sudo inco bench bulk --json --rounds 9\n\nContainers of inco's own \
                  engine need root, and the server needs nginx."
)]
pub struct BulkArgs {
    /// Rounds; the result is the median of their ratios
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// File for all rounds
    #[arg(long, value_name = "FILE", default_value = "bench-bulk.csv")]
    pub csv: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `inco bench hop`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  inco bench hop\n  inco bench hop --json --rounds 5")]
pub struct HopArgs {
    /// Flows
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1_000,
        value_parser = clap::value_parser!(u32).range(1..=100_000)
    )]
    pub flows: u32,
    /// Rounds; the result is the median of their ratios
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// File for all measurements
    #[arg(long, value_name = "FILE", default_value = "bench-hop.csv")]
    pub csv: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `inco bench wake`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  sudo inco bench wake\n  sudo inco bench wake --json --rounds 5\n\nContainers of inco's own \
                  engine need root."
)]
pub struct WakeArgs {
    /// Runs; the result is their median
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// File for all runs
    #[arg(long, value_name = "FILE", default_value = "bench-wake.csv")]
    pub csv: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `inco bench function`.
#[derive(Debug, Args)]
#[command(
    after_help = concat!(
        "Examples:\n",
        "  inco bench function firewall\n",
        "  sudo inco bench function nat --json\n",
        "  inco bench function all --rounds 9 --milliseconds 100\n",
        "  sudo inco bench function firewall --service      as the instance of a service, and alone\n\n",
        "Peers in the kernel (nftables) and --service need root. A peer that is missing is left out, with the \
         reason.",
    )
)]
pub struct FunctionArgs {
    /// The function, or `all`
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
    /// Only this: the function with 0.2 CPUs as the one instance of a service, and alone
    #[arg(long)]
    pub service: bool,
    /// Rounds; the result is the median of their ratios
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// CPU time of a turn of the function or of its peer, in milliseconds
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub milliseconds: u64,
    /// File for all rounds
    #[arg(long, value_name = "FILE", default_value = "bench-function.csv")]
    pub csv: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `inco bench actors`.
#[derive(Debug, Args)]
#[command(after_help = concat!(
    "Examples:\n",
    "  inco bench actors ring\n",
    "  inco bench actors scheduler --json\n",
    "  inco bench actors characterisation",
))]
pub struct ActorsArgs {
    /// The experiment
    #[arg(value_enum, value_name = "EXPERIMENT")]
    pub experiment: ActorsExperiment,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// An experiment of `inco bench actors`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ActorsExperiment {
    /// The channel between the two sides: messages per second, and messages torn by reordered writes
    Ring,
    /// An actor with 32 MiB of objects moves to the host under load: time of each phase, messages lost, its state
    Migrate,
    /// The schedulers at low and high dispersion: 99th percentiles, simulated and on two threads
    Scheduler,
    /// What a message costs the runtime, apart from what its actor does
    Dispatch,
    /// A key-value store with the runtime and without: CPU time of a request
    Overhead,
    /// Actors that loop, write where they may not, or are flooded: what their neighbours notice
    Isolation,
    /// The replicated store behind inco, with memcached and redis beside it: requests per CPU-second, and times. Needs root
    Store,
    /// The side with the leader of the replicated store is killed: longest time without an answer. Needs root
    Crash,
    /// MODEL: host CPU time of a request with a card ÷ without one, of three applications. Needs root
    Cores,
    /// The workloads of iPipe's Table 3 as actors: the time of a request of each
    Table3,
    /// MODEL: cores that cards need for line rate, and their computing headroom, by packet size
    Characterisation,
}

/// Arguments of `inco bench openflow`.
#[derive(Debug, Args)]
#[command(
    after_help = concat!(
        "Examples:\n",
        "  sudo inco bench openflow\n",
        "  sudo inco bench openflow bursts reactive --seconds 10\n",
        "  sudo inco bench openflow rules --rules 20000 --json\n\n",
        "Containers of inco's own engine need root. It starts an Open vSwitch of its own (apt-get install \
         openvswitch-switch-dpdk).",
    )
)]
pub struct OpenflowArgs {
    /// Run only these cases
    #[arg(value_enum, value_name = "CASE")]
    pub cases: Vec<OpenflowCase>,
    /// Duration of scaling and of interruptions, in seconds
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: u64,
    /// New flows per second in `bursts` and `reactive`; trains per second in `changes`
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub new_flows: u32,
    /// Packets of each new flow or train, sent as a burst
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub burst: u32,
    /// Number of rules in the case `rules`
    #[arg(
        long,
        value_name = "N",
        default_value_t = 100_000,
        value_parser = clap::value_parser!(u32).range(1..=1_000_000)
    )]
    pub rules: u32,
    /// Rules per bundle; 1 writes each rule separately
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub bundle: u32,
    /// File for all figures
    #[arg(long, value_name = "FILE", default_value = "bench-openflow.csv")]
    pub csv: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `inco bench paths`.
#[derive(Debug, Args)]
#[command(
    after_help = concat!(
        "Examples:\n",
        "  sudo inco bench paths\n",
        "  sudo inco bench paths --path bridge,ebpf --work tcp --json\n",
        "  sudo inco bench paths --scope across --duration 10 --html paths.html --costs paths.toml\n",
        "  sudo inco bench paths --device eth2,eth3    two functions of a card, joined by the card\n\n",
        "The paths of a card were tried with stand-ins alone, never with a card. Needs root, and iperf3, nginx, \
         redis, wrk, nftables, ethtool and Open vSwitch for what each of them measures. A path that this machine \
         lacks is listed with the reason. docs/paths.md explains each path and figure. Stops cleanly with Ctrl-C.",
    )
)]
pub struct PathsArgs {
    /// Only between containers of one host, or only across hosts; default: both
    #[arg(long, value_enum, value_name = "SCOPE")]
    pub scope: Option<PathScope>,
    /// Only these paths
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAME")]
    pub path: Vec<PathName>,
    /// Only this work; default: all
    #[arg(long, value_enum, value_delimiter = ',', value_name = "WORK")]
    pub work: Vec<PathWork>,
    /// Two functions of a card that nothing uses, as the ends of the paths device, representors and card-rules. They go
    /// into namespaces for a turn, and back
    #[arg(long, value_delimiter = ',', value_name = "INTERFACE,INTERFACE")]
    pub device: Vec<String>,
    /// Their representors, in the same order, of a card in the mode switchdev: a bridge or rules of the card join them
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "INTERFACE,INTERFACE",
        requires = "device"
    )]
    pub representors: Vec<String>,
    /// Accept virtual interfaces in place of a card's, to try the commands: tables, JSON and files say so, and --costs
    /// leaves them out
    #[arg(long, requires = "device")]
    pub stand_in: bool,
    /// Numbers of TCP connections at a time, each measured separately
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "N",
        default_values_t = [1, 4, 12],
        value_parser = clap::value_parser!(u32).range(1..=32)
    )]
    pub streams: Vec<u32>,
    /// Also 24 and 32 connections at a time
    #[arg(long)]
    pub many_streams: bool,
    /// Duration of a turn, in seconds
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=60))]
    pub duration: u64,
    /// Rounds; the result is their median, with the range
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// File for all turns
    #[arg(long, value_name = "FILE", default_value = "bench-paths.csv")]
    pub csv: PathBuf,
    /// File for the report, an HTML page
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// File for the costs of each path, for policies, in TOML
    #[arg(long, value_name = "FILE")]
    pub costs: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Where the ends of a path are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum PathScope {
    /// Two containers of one host
    Local,
    /// Containers of two hosts: network namespaces with an uplink between them
    Across,
}

/// What is carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum PathWork {
    /// Bulk data: iperf3, a process for each connection
    Tcp,
    /// HTTP requests: wrk and nginx
    Requests,
    /// HTTP requests through nginx, an application and redis, which are in turn at the two ends
    Tiers,
    /// Packets of 64 bytes: the highest rates without loss (NDR) and with 0.5 % of loss (PDR)
    Packets,
    /// Packets of 64 bytes at a fixed rate, of large flows alone: what one costs
    MixLarge,
    /// The same, half of the packets of large flows, half of small ones
    MixHalf,
    /// The same, of small flows alone
    MixSmall,
}

/// A path between two containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum PathName {
    /// veth pairs on a bridge of the kernel
    Bridge,
    /// veth pairs, routed, with rules of nftables that translate the service's address
    Nftables,
    /// Programs of the driver ebpf
    Ebpf,
    /// inco's own switch with interfaces of the kernel
    SoftKernel,
    /// The same with programs in the kernel for flows that are worth it: the driver hybrid
    Hybrid,
    /// inco's own switch with an uplink over AF_XDP
    AfXdp,
    /// inco's own switch with memif
    Memif,
    /// Open vSwitch, in userspace
    Ovs,
    /// A tunnel of VXLAN by the kernel
    Vxlan,
    /// A tunnel of VXLAN by Open vSwitch, in userspace
    OvsVxlan,
    /// A tunnel of ESP by the function ipsec
    Esp,
    /// Two functions of a card, joined by the card: needs --device
    Device,
    /// Two functions of a card, whose representors a bridge of the kernel joins: needs --representors, too
    Representors,
    /// Two functions of a card, joined by rules that the card has: needs --representors, too
    CardRules,
}

/// Arguments of a contestant's process.
#[derive(Debug, Args)]
pub struct ContestantArgs {
    /// Its task, as JSON
    #[arg(long)]
    pub spec: String,
}

/// The port kind of the instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum SinkPort {
    /// DPDK's own sink, as for the peers; at most 28 instances
    #[value(name = "net_null")]
    NetNull,
    /// inco's own sink
    #[value(name = "null")]
    Null,
    /// memif ports that a thread of the bench empties
    #[value(name = "memif")]
    Memif,
}

/// The origin of the added instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AddedFrom {
    /// A warm standby
    Warm,
    /// A paused standby
    Paused,
    /// A new container of the engine oci
    Oci,
    /// A new container of the engine docker
    Docker,
}

/// A case of `inco bench openflow`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OpenflowCase {
    /// New flows in bursts while instances scale from 3 to 8 to 3, set up proactively
    Bursts,
    /// Flows that get a rule and lose it, again and again
    Changes,
    /// The first case, set up reactively
    Reactive,
    /// Rules written at full rate, then at lower rates until established flows lose nothing
    Rules,
    /// 1,000 rules for 10,000 flows while instances scale from 3 to 8 to 3
    Limit,
    /// The controller's connection interrupted for half of the time
    Cut,
    /// ovs-vswitchd killed and restarted
    Restart,
}
