//! What may be written on the command line.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use api::{Endpoint, Remote, run_dir};
use clap::{Args, Parser, Subcommand};
use display::output::WrongUsage;
use images::EngineName;
use orchestrator::upgrade::HandOver;

use crate::actions::ActionCommand;
use crate::actors::ActorsArgs;
use crate::selector::Selector;

/// The in-network container orchestrator: pins every new flow to one of N containers of a network function, accounts
/// for every packet, and adds and removes containers with the load.
#[derive(Debug, Parser)]
#[command(
    name = "inco",
    version,
    propagate_version = true,
    arg_required_else_help = true
)]
#[command(
    after_help = concat!(
        "Examples:\n",
        "  inco demo                   the whole system on this machine\n",
        "  inco run -f inco.toml       the orchestrator in the foreground\n",
        "  inco instances --watch      the state of its containers\n\n",
        "Exit status: 0, 1 (failed) or 2 (invalid usage or configuration).",
    )
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the whole system on this machine, with a live view and a report
    Demo(demo::DemoArgs),
    /// Run the orchestrator in the foreground
    Run(RunArgs),
    /// Check a configuration: show its plan, or its problems with their lines
    Check(CheckArgs),
    /// Check whether this machine has what inco needs, and show what to change
    Doctor(DoctorArgs),
    /// Show the state of a running inco: workers, uplinks, drops, accounting
    Status(StatusArgs),
    /// List services: active and desired instances, rates, load, flows
    Services(ServicesArgs),
    /// List instances: state, rates, flows, ring occupancy
    Instances(InstancesArgs),
    /// List actors with their sides, or move, pause, resume or stop one
    Actors(ActorsArgs),
    /// List flows and their instances
    Flows(FlowsArgs),
    /// Show all information about a service or an instance on one page
    Describe(DescribeArgs),
    /// Show the decision of a policy for a given input, or the reason of a flow's instance
    Explain(ExplainArgs),
    /// List events with their reasons
    Events(EventsArgs),
    /// Show the output of containers, including ended ones
    Logs(LogsArgs),
    /// Capture packets at an uplink, before and after an instance, or where they are dropped
    Capture(CaptureArgs),
    /// Show services, instances, flows and events live in a terminal, and control them
    #[cfg(feature = "top")]
    Top(TopArgs),
    #[command(flatten)]
    Action(ActionCommand),
    /// Generate traffic against an uplink and measure loss, order, duplicates, latency and mis-steers
    Traffic(TrafficArgs),
    /// Run clients of a service of actors: a store, transactions or analytics; measure and check what it answers
    Load(actor_load::LoadArgs),
    /// Create, list and remove images of network functions
    Image(ImageArgs),
    /// Make the services of this node out of objects of a Kubernetes cluster, and write their status there
    #[cfg(feature = "kubernetes")]
    Operator(crate::operator_command::OperatorArgs),
    /// Simulate traffic with the same policies: an hour in a second
    #[cfg(feature = "simulation")]
    #[command(subcommand, after_help = "Example:\n  inco sim run scenarios/agh-hour.toml")]
    Sim(crate::sim_command::args::SimCommand),
    /// Print the completion script of a shell
    Completions(CompletionsArgs),
    /// Print names of a running inco, one per line, for completions
    #[command(hide = true)]
    Names(NamesArgs),
    /// Write man pages into a directory
    #[command(hide = true)]
    Man(ManArgs),
    /// Run for minutes under traffic and random faults, and check that inco keeps its promises
    #[cfg(feature = "soak")]
    Soak(soak::SoakArgs),
    /// Benchmark the data plane against its peers
    #[cfg(feature = "dpdk")]
    Bench(bench::BenchArgs),
}

#[derive(Debug, Args)]
#[command(
    after_help = concat!(
        "Examples:\n",
        "  inco run -f examples/forward.toml\n",
        "  INCO_LOG=debug inco run\n",
        "  inco run --log-format json 2> inco.log\n",
        "  INCO_RUN_DIR=/tmp/inco inco run -f inco.toml\n\n",
        "Ctrl-C and SIGTERM remove all containers. Containers of a killed run are adopted.",
    )
)]
pub(crate) struct RunArgs {
    /// The configuration file
    #[arg(short, long, value_name = "FILE", default_value = "inco.toml")]
    pub(crate) file: PathBuf,
    /// Only check the configuration and show the plan
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Format of log lines on standard error
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) log_format: orchestrator::LogFormat,
    /// Shut down when this process ends
    #[arg(long, hide = true, value_name = "PID")]
    pub(crate) with_process: Option<i32>,
    /// What the run says from which this one takes over
    #[arg(long, hide = true, value_name = "JSON", value_parser = HandOver::parse)]
    pub(crate) hand_over: Option<HandOver>,
}

impl RunArgs {
    /// The arguments of `inco check` for a dry run.
    pub(crate) fn check(&self) -> CheckArgs {
        CheckArgs {
            file: self.file.clone(),
            offline: false,
            json: false,
        }
    }
}

#[derive(Debug, Args)]
#[command(
    after_help = concat!(
        "Examples:\n",
        "  inco check -f inco.toml\n",
        "  inco check -f inco.toml && inco reload      beside a running inco\n",
        "  inco check -f inco.toml --offline      on a machine other than the target\n\n",
        "Exit status 2 if the configuration has a problem; each problem names file, line, key and what to write. \
         Sockets and addresses of an inco that runs in the same run directory count as free.",
    )
)]
pub(crate) struct CheckArgs {
    /// The configuration file
    #[arg(short, long, value_name = "FILE", default_value = "inco.toml")]
    pub(crate) file: PathBuf,
    /// Do not check whether this machine has what the configuration names
    #[arg(long)]
    pub(crate) offline: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = concat!(
        "Examples:\n",
        "  inco doctor\n",
        "  inco doctor -f inco.toml      also check the needs of this configuration\n",
        "  inco doctor --json | jq '.[] | select(.health != \"ok\")'\n\n",
        "Each check reports ok, warn or fail, what it found, and what to change. Exit status 1 if a check fails.",
    )
)]
pub(crate) struct DoctorArgs {
    /// Also check the needs of this configuration
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = concat!(
        "Examples:\n",
        "  inco completions bash > /etc/bash_completion.d/inco\n",
        "  inco completions zsh > /usr/share/zsh/vendor-completions/_inco\n",
        "  inco completions fish > ~/.config/fish/completions/inco.fish",
    )
)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

/// A kind of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Names {
    /// Services
    Services,
    /// Ids of instances
    Instances,
    /// Services, and instances as SERVICE/ID
    Targets,
}

impl Names {
    pub(crate) const ALL: [Names; 3] = [Names::Services, Names::Instances, Names::Targets];

    /// The name on the command line.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Names::Services => "services",
            Names::Instances => "instances",
            Names::Targets => "targets",
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  inco names services")]
pub(crate) struct NamesArgs {
    /// The kind of names
    #[arg(value_enum)]
    pub(crate) names: Names,
    #[command(flatten)]
    pub(crate) connection: ConnectionArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  inco man target/man && man -l target/man/inco-run.1")]
pub(crate) struct ManArgs {
    /// The directory; it is created if it does not exist
    pub(crate) directory: PathBuf,
}

/// The endpoint of a running inco.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ConnectionArgs {
    /// The API's socket; default: api.sock in $INCO_RUN_DIR or /run/inco
    #[arg(long, value_name = "PATH", conflicts_with = "url")]
    pub(crate) socket: Option<PathBuf>,
    /// URL of an inco on another machine, over TLS; default: $INCO_URL
    #[arg(long, value_name = "https://HOST:PORT")]
    pub(crate) url: Option<String>,
    /// File with the token for --url; default: $INCO_TOKEN_FILE
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// File with the certificate to trust with --url, in PEM; default: $INCO_CA_FILE
    #[arg(long, value_name = "FILE")]
    pub(crate) ca_file: Option<PathBuf>,
}

impl ConnectionArgs {
    /// The endpoint of the options, the environment, or the socket in the run directory, in this order.
    pub(crate) fn endpoint(&self) -> anyhow::Result<Endpoint> {
        let of = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let url = match (&self.url, &self.socket) {
            (Some(url), _) => Some(url.clone()),
            (None, Some(_)) => None,
            (None, None) => of("INCO_URL").map(|url| url.to_string_lossy().into_owned()),
        };
        let Some(url) = url else {
            return Ok(Endpoint::Socket(run_dir::api_socket(self.socket.as_deref())));
        };
        let file = |given: &Option<PathBuf>, option: &str, name: &str| {
            let file = given.clone().or_else(|| of(name).map(PathBuf::from));
            file.ok_or_else(|| WrongUsage(format!("{url} needs {option} FILE, or ${name}")))
        };
        let token = file(&self.token_file, "--token-file", "INCO_TOKEN_FILE")?;
        let certificate = file(&self.ca_file, "--ca-file", "INCO_CA_FILE")?;
        Ok(Endpoint::Remote(Box::new(Remote::new(
            &url,
            &token,
            &certificate,
        )?)))
    }
}

/// Output options.
#[derive(Clone, Debug, Args)]
pub(crate) struct OutputArgs {
    #[command(flatten)]
    pub(crate) connection: ConnectionArgs,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Repeat every second, or every SECONDS
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", value_parser = seconds)]
    pub(crate) watch: Option<Duration>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| format!("{text:?} is not a number of seconds"))?;
    // Below 0.1 s the terminal cannot show more; more than a day is a typing error.
    if !(0.1..=86_400.0).contains(&seconds) {
        return Err("write 0.1 to 86400 seconds".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  inco status\n  inco status --watch\n  inco status --json | jq .accounting"
)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = concat!(
        "Examples:\n",
        "  inco services\n",
        "  inco services --wide      with standbys, policies and the full reason\n",
        "  inco services --json | jq '.[].active'\n\n",
        "LOAD is the load of the busiest instance, as a share of its capacity.",
    )
)]
pub(crate) struct ServicesArgs {
    /// Show all columns, and do not cut lines at 100 characters
    #[arg(long)]
    pub(crate) wide: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = concat!(
        "Examples:\n",
        "  inco instances\n",
        "  inco instances firewall --watch 0.5\n",
        "  inco instances --selector service=firewall,state!=active\n",
        "  inco instances --json | jq '.[] | select(.state == \"active\")'\n\n",
        "FOR is the time in this state, RING the occupied share of its ring, CPU its part of LIMIT (or of one CPU), \
         LIMIT its CPUs, CAPACITY the packets per second that it can process.",
    )
)]
pub(crate) struct InstancesArgs {
    /// Only instances of this service
    pub(crate) service: Option<String>,
    /// Only instances that meet all requirements; the keys are service, place, state and adopted
    #[arg(short = 'l', long, value_name = "KEY=VALUE,...")]
    pub(crate) selector: Option<Selector>,
    /// What their functions say of themselves: packets, drops by reason, their own counters
    #[arg(long)]
    pub(crate) functions: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = concat!(
        "Examples:\n",
        "  inco flows --service firewall --limit 20\n",
        "  inco flows --instance 3\n",
        "  inco flows --top 10 --watch\n",
        "  inco flows --address 10.0.0.7\n",
        "  inco flows --flow 'tcp 10.0.0.7:1000 > 10.128.0.1:443'\n\n",
        "TX counts packets in the direction of FLOW, RX those in the opposite one. IDLE is the time since its last packet. \
         With --top, +- is the part of PPS that may be of other flows.",
    )
)]
pub(crate) struct FlowsArgs {
    /// Only flows of this service
    #[arg(long, value_name = "NAME")]
    pub(crate) service: Option<String>,
    /// Only flows pinned to this instance
    #[arg(long, value_name = "ID", value_parser = id)]
    pub(crate) instance: Option<u32>,
    /// Only flows with this address on either end
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) address: Option<IpAddr>,
    /// Only this flow, in either direction
    #[arg(long, value_name = "FLOW", value_parser = flow)]
    pub(crate) flow: Option<String>,
    /// Only the N flows with the highest packet rates, the highest first
    #[arg(long, value_name = "N", conflicts_with_all = ["limit", "flow"],
          value_parser = clap::value_parser!(u32).range(1..=i64::from(api::types::FlowFilter::TOP_LIMIT)))]
    pub(crate) top: Option<u32>,
    /// Maximum number of flows
    #[arg(long, value_name = "N", default_value_t = api::types::FlowFilter::DEFAULT_LIMIT,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(api::types::FlowFilter::LIMIT)))]
    pub(crate) limit: u32,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// The id of an instance.
pub(crate) fn id(text: &str) -> Result<u32, String> {
    let wrong = |_| "an instance's id is a number, as in `inco instances`".to_owned();
    text.parse().map_err(wrong)
}

pub(crate) fn flow(text: &str) -> Result<String, String> {
    api::parse_tuple(text)
        .map(|tuple| tuple.to_string())
        .map_err(|error| error.to_string())
}

#[derive(Debug, Args)]
#[command(
    after_help = concat!(
        "Examples:\n",
        "  inco describe firewall\n",
        "  inco describe firewall/3\n",
        "  inco describe firewall --all      also settings with default values\n",
        "  inco describe firewall --json | jq .decisions",
    )
)]
pub(crate) struct DescribeArgs {
    /// A service, or an instance by its service and id
    #[arg(value_name = "SERVICE|SERVICE/ID")]
    pub(crate) target: String,
    /// Also show settings with default values
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) common: ActionArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = concat!(
        "Examples:\n",
        "  inco logs firewall/3 --follow\n",
        "  inco logs firewall --tail 20      the last 20 lines of each container, with a prefix\n",
        "  inco logs firewall > firewall.log\n\n",
        "inco stores the last MiB of each container and 16 MiB of all containers of a service, including ended ones. \
         A restart of inco clears it. On a terminal, control characters are shown as ?.",
    )
)]
pub(crate) struct LogsArgs {
    /// A service, or an instance by its service and id
    #[arg(value_name = "SERVICE|SERVICE/ID")]
    pub(crate) target: String,
    /// Continue with new output; for an instance, until its container ends
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Only the last lines of each container
    #[arg(short = 'n', long, value_name = "LINES")]
    pub(crate) tail: Option<u32>,
    #[command(flatten)]
    pub(crate) connection: ConnectionArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = concat!(
        "Examples:\n",
        "  inco capture firewall/3 -w firewall.pcapng\n",
        "  inco capture 'udp 10.0.0.7:1024 > 10.128.0.1:9' --point before -w flow.pcapng\n",
        "  inco capture --drops -w drops.pcapng      dropped packets, each with its reason\n",
        "  inco capture firewall --drops instance_ring_full --packets 20 -w -\n",
        "  inco capture -w - | tshark -r - -T fields -e frame.interface_name -e frame.comment\n\n",
        "The file is pcapng, with one interface for each point. A packet's comment has the reason of its drop, its \
         instance, uplink and flow. One capture runs at a time; Ctrl-C ends it, and the file is valid. Packets that \
         come faster than the file is written are left out and counted: no packet is dropped or delayed for a \
         capture. `driver = \"ebpf\"` and \"openflow\" cannot capture: use tcpdump.",
    )
)]
pub(crate) struct CaptureArgs {
    /// Only packets of this service, instance or flow; default: all
    #[arg(value_name = "SERVICE|ID|FLOW")]
    pub(crate) target: Option<String>,
    /// Where to capture: all also has dropped packets
    #[arg(long, value_name = "POINT", default_value = "all",
          value_parser = clap::builder::PossibleValuesParser::new(["uplink", "before", "after", "all"]))]
    pub(crate) point: String,
    /// Only dropped packets; of one reason, if it is named
    #[arg(long, value_name = "REASON", num_args = 0..=1, conflicts_with = "point")]
    pub(crate) drops: Option<Option<String>>,
    /// End after N packets
    #[arg(long, value_name = "N", default_value_t = api::CaptureQuery::PACKETS,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(api::CaptureQuery::PACKETS_LIMIT)))]
    pub(crate) packets: u32,
    /// End before the file has more than N bytes
    #[arg(long, value_name = "N", default_value_t = api::CaptureQuery::BYTES,
          value_parser = clap::value_parser!(u32).range(i64::from(api::CaptureQuery::BYTES_LEAST)..))]
    pub(crate) bytes: u32,
    /// End after N seconds
    #[arg(long, value_name = "N", default_value_t = api::CaptureQuery::SECONDS,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(api::CaptureQuery::SECONDS_LIMIT)))]
    pub(crate) seconds: u32,
    /// Bytes to keep of each packet
    #[arg(long, value_name = "BYTES", default_value_t = api::CaptureQuery::SNAPLEN,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(api::CaptureQuery::SNAPLEN_LIMIT)))]
    pub(crate) snaplen: u32,
    /// The file to write; - for standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) write: PathBuf,
    #[command(flatten)]
    pub(crate) connection: ConnectionArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = concat!(
        "Examples:\n",
        "  inco events\n",
        "  inco events --follow --service firewall\n",
        "  inco events --json --last 1000 > events.jsonl",
    )
)]
pub(crate) struct EventsArgs {
    /// Continue with new events
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Number of newest events
    #[arg(short = 'n', long, value_name = "N", default_value_t = 100,
          value_parser = clap::value_parser!(u32).range(0..=api::EVENT_LIMIT as i64))]
    pub(crate) last: u32,
    /// Only events of this service
    #[arg(long, value_name = "NAME")]
    pub(crate) service: Option<String>,
    /// Print JSON, one event per line
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) connection: ConnectionArgs,
}

#[cfg(feature = "top")]
#[derive(Debug, Args)]
#[command(
    after_help = concat!(
        "Examples:\n",
        "  inco top\n",
        "  inco top --interval 0.5\n",
        "  NO_COLOR=1 inco top --ascii\n\n",
        "The last line shows keys; ? lists all of them. No action runs without a y. inco top waits if inco does not \
         run, and reconnects.",
    )
)]
pub(crate) struct TopArgs {
    /// Seconds between two updates
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub(crate) interval: Duration,
    /// Use only ASCII characters
    #[arg(long)]
    pub(crate) ascii: bool,
    #[command(flatten)]
    pub(crate) connection: ConnectionArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = concat!(
        "Examples:\n",
        "  inco explain scheduler --input case.json\n",
        "  inco explain autoscaler --input case.json\n",
        "  inco events --json | jq -c 'select(.event == \"scaled\") | .case // empty' | tail -n 1 |\n",
        "    inco explain autoscaler --input -\n",
        "  inco policy firewall --record 1\n",
        "  inco events --json | jq -c 'select(.event == \"picked\")' | tail -n 1 |\n",
        "    inco explain scheduler --input -",
    )
)]
pub(crate) struct ExplainArgs {
    #[command(subcommand)]
    pub(crate) command: ExplainCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ExplainCommand {
    /// Show the instances that a scheduler picks for new flows
    #[command(after_help = concat!(
        "Example:\n",
        "  inco explain scheduler --input case.json\n\n",
        "docs/policies.md describes the input. Exit status 2 if it is invalid.",
    ))]
    Scheduler(ExplainInput),
    /// Show the number and size of instances that an autoscaler decides
    #[command(
        after_help = concat!(
            "Example:\n",
            "  echo '{\"policy\":\"hpa\",\"replicas\":3,\n",
            "    \"spec\":{\"metrics\":[{\"kind\":\"value\",\"value\":20000,\"target\":15000}]}}' |\n",
            "    inco explain autoscaler --input -\n\n",
            "docs/policies.md describes the input. Exit status 2 if it is invalid.",
        )
    )]
    Autoscaler(ExplainInput),
    /// Show what is decided about actors and cores, by what their sides have reported
    #[command(after_help = concat!(
        "Examples:\n",
        "  inco events --json | jq -c 'select(.event == \"actor\" and .case)' | tail -n 1 |\n",
        "    inco explain actors --input -\n",
        "  inco explain actors --input case.json --json\n\n",
        "The input is a line of the event log, or the case in it. Exit status 2 if it is invalid.",
    ))]
    Actors(ExplainInput),
    /// Compare what a load takes at each place and over all of them, by a model
    Placement(ExplainPlacementArgs),
    /// Show the instance of a flow of a running inco, since when, and why
    Flow(ExplainFlowArgs),
}

#[derive(Debug, Args)]
#[command(after_help = concat!(
    "Example:\n",
    "  inco explain placement -f examples/host-and-card.toml --load 15kpps\n",
    "  grep '\"relocated\"' events.jsonl | tail -n 1 |\n",
    "    inco explain placement -f examples/host-and-card.toml --event -\n\n",
    "All figures are of a MODEL, with a band for what it leaves open. It takes what the file says of the places. See \
     docs/places.md.",
))]
pub(crate) struct ExplainPlacementArgs {
    /// The configuration file, with [[place]]
    #[arg(short, long, value_name = "FILE", default_value = "inco.toml")]
    pub(crate) file: PathBuf,
    /// The load, for example 30Mpps
    #[arg(long, value_name = "RATE", value_parser = rate, required_unless_present = "event")]
    pub(crate) load: Option<f64>,
    /// A file with a line of the event log, or - for standard input: the load and the service are those of the decision
    #[arg(long, value_name = "INPUT", conflicts_with_all = ["load", "service"])]
    pub(crate) event: Option<PathBuf>,
    /// The service; not needed if only one has containers
    #[arg(long, value_name = "SERVICE")]
    pub(crate) service: Option<String>,
    /// What a placement is to be good for: performance, cpu or power; otherwise what the autoscaler of the service is for
    #[arg(long, value_name = "GOAL", value_parser = goal)]
    pub(crate) goal: Option<configuration::Goal>,
    /// Capacity of an instance, where the file does not say it
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub(crate) capacity: Option<f64>,
    /// Bytes of a frame
    #[arg(long, value_name = "BYTES", default_value = "64", value_parser = clap::value_parser!(u16).range(60..))]
    pub(crate) frame_bytes: u16,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = configuration::parse_rate(text).map_err(|wrong| wrong.to_string())?;
    if rate > 0.0 {
        Ok(rate)
    } else {
        Err("write a rate above 0".to_owned())
    }
}

fn goal(text: &str) -> Result<configuration::Goal, String> {
    let words = configuration::Goal::WORDS;
    let found = words.iter().find(|(word, _)| *word == text);
    found
        .map(|(_, goal)| *goal)
        .ok_or_else(|| "write performance, cpu or power".to_owned())
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  inco explain flow 'tcp 10.0.0.7:1000 > 10.128.0.1:443'")]
pub(crate) struct ExplainFlowArgs {
    /// The flow, in either direction
    #[arg(value_name = "FLOW", value_parser = flow)]
    pub(crate) flow: String,
    #[command(flatten)]
    pub(crate) common: ActionArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ExplainInput {
    /// The input as JSON; - is standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) input: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Whether a command waits until its request has taken effect.
#[derive(Clone, Debug, Args)]
pub(crate) struct WaitArgs {
    /// Wait until it is done; exit status 1 on timeout, with what is missing
    #[arg(long)]
    pub(crate) wait: bool,
    /// Time limit of --wait
    #[arg(long, value_name = "SECONDS", default_value = "300", requires = "wait", value_parser = seconds)]
    pub(crate) timeout: Duration,
}

/// Options of actions.
#[derive(Clone, Debug, Args)]
pub(crate) struct ActionArgs {
    #[command(flatten)]
    pub(crate) connection: ConnectionArgs,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = concat!(
        "Examples:\n",
        "  inco traffic -f examples/profiles/ramp.toml --uplink memif:wan.sock\n",
        "  inco traffic -f profile.toml --uplink memif:/run/inco/wan.sock --json > report.json\n\n",
        "It asks the inco of the uplink which instances fail or are purged, and counts moves of their flows \
         separately, as expected. Without an inco (an instance's own socket, another program), a packet that returns \
         from another instance than the first one of its flow counts as mis-steered.",
    )
)]
pub(crate) struct TrafficArgs {
    /// The traffic profile
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// The uplink of a running inco, or an instance's socket. Relative paths are in the run directory
    #[arg(long, value_name = "memif:SOCKET", default_value = "memif:wan.sock", value_parser = memif_socket)]
    pub(crate) uplink: PathBuf,
    /// A second uplink, which receives the packets of the first and sends the opposite direction
    #[arg(long, value_name = "memif:SOCKET", value_parser = memif_socket)]
    pub(crate) second_uplink: Option<PathBuf>,
    /// The API's socket of the inco with these uplinks; default: the one in the run directory
    #[arg(long, value_name = "SOCKET")]
    pub(crate) api: Option<PathBuf>,
    /// Print only the report, as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

fn memif_socket(text: &str) -> Result<PathBuf, String> {
    match text.strip_prefix("memif:") {
        Some(socket) if !socket.is_empty() => Ok(PathBuf::from(socket)),
        _ => Err(format!(
            "{text:?} is not a memif uplink: write memif:SOCKET, for example memif:wan.sock"
        )),
    }
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  inco image pull nginx:1.27\n  inco image import nginx\n  inco image build forward\n  \
                  inco image list"
)]
pub(crate) struct ImageArgs {
    #[command(subcommand)]
    pub(crate) command: ImageCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// Create an image of a built-in function: FROM scratch, with one static program
    Build(ImageBuildArgs),
    /// Get images from a registry
    Pull(ImagePullArgs),
    /// Create an image from one with layers, a root file system, or a program of this machine
    Import(ImageImportArgs),
    /// List images
    List(ImageListArgs),
    /// Remove an image
    Remove(ImageRemoveArgs),
}

#[derive(Debug, Args)]
#[command(
    after_help = concat!(
        "Examples:\n",
        "  inco image pull nginx:1.27                            from Docker's registry\n",
        "  inco image pull localhost:5000/lab/ids                from a registry of this machine, without TLS\n",
        "  inco image pull registry.lan/lab/ids@sha256:5891b5...  by its digest\n",
        "  inco image pull 10.0.0.5:5000/lab/ids --plain-http    from another machine, without TLS\n\n",
        "Logins come from ~/.docker/config.json (or DOCKER_CONFIG), where `docker login` writes them. Authorities of \
         a registry are /etc/docker/certs.d/REGISTRY/*.crt, beside those of this machine. `inco run` pulls missing \
         images of its configuration by itself.",
    )
)]
pub(crate) struct ImagePullArgs {
    /// Names of images: [REGISTRY/]NAME[:TAG][@DIGEST]
    #[arg(required = true)]
    pub(crate) names: Vec<String>,
    /// Ask their registries without TLS
    #[arg(long)]
    pub(crate) plain_http: bool,
    #[command(flatten)]
    pub(crate) to: ImageEngine,
    /// Print JSON: an image per line
    #[arg(long)]
    pub(crate) json: bool,
}

/// The engine of an image.
#[derive(Clone, Debug, Args)]
pub(crate) struct ImageEngine {
    /// The engine. Docker gets a copy of inco's image
    #[arg(long, value_enum, default_value_t)]
    pub(crate) engine: EngineName,
    /// Address of Docker or Podman
    #[arg(long, value_name = "ADDRESS", default_value = engine::DEFAULT_HOST)]
    pub(crate) host: String,
}

#[derive(Debug, Args)]
#[command(
    after_help = concat!(
        "Examples:\n",
        "  inco image build forward\n",
        "  inco image build forward --engine docker\n",
        "  inco image build actors                    for services of actors\n",
        "  inco image build forward --name lab/forward:2",
    )
)]
pub(crate) struct ImageBuildArgs {
    /// The function, or `actors` for the program of a service of actors
    pub(crate) function: String,
    /// Name of the image; default: inco/FUNCTION
    #[arg(long)]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) to: ImageEngine,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = concat!(
        "Examples:\n",
        "  inco image import ids.tar                                      the output of docker save\n",
        "  inco image import lab/ids ids.tar                              the same under another name\n",
        "  inco image import lab/ids ./oci-layout -- /usr/bin/ids --fast  with another program\n",
        "  inco image import lab/swap ./rootfs -- /usr/bin/swap           a root file system\n",
        "  inco image import nginx                                        this machine's nginx\n",
        "  inco image import lab/proxy /usr/sbin/haproxy\n\n",
        "An image with layers (an OCI image layout, or the output of docker save) defines its program, working \
         directory and user. A root file system (a directory, or the output of docker export) needs a COMMAND. A \
         program of this machine brings its libraries; of nginx, haproxy, redis-server and testpmd inco knows the \
         rest. For a program, arguments after -- replace the usual ones.",
    )
)]
pub(crate) struct ImageImportArgs {
    /// Name of the image. Alone: a tar archive or directory with layers, or the name of a program of this machine
    pub(crate) name: String,
    /// A tar archive or a directory: an image with layers, or a root file system. Or a program of this machine
    pub(crate) source: Option<PathBuf>,
    /// Program and arguments of its containers, instead of the image's own
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
    /// Environment variables of its containers
    #[arg(long, value_name = "NAME=VALUE", value_parser = env)]
    pub(crate) env: Vec<(String, String)>,
    #[command(flatten)]
    pub(crate) to: ImageEngine,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

fn env(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!("{text:?} is not NAME=VALUE")),
    }
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  inco image list")]
pub(crate) struct ImageListArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  inco image remove inco/forward")]
pub(crate) struct ImageRemoveArgs {
    /// Name of the image
    pub(crate) name: String,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_an_example() {
        fn look(command: &clap::Command) {
            let help = command
                .get_after_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            assert!(
                help.contains("Example"),
                "inco {} has no example",
                command.get_name()
            );
            command.get_subcommands().for_each(look);
        }
        look(&Cli::command());
    }

    /// The terminal breaks prose where it ends. A command that it breaks cannot be copied.
    #[test]
    fn examples_fit_into_a_line_and_prose_has_no_breaks_of_its_own() {
        fn look(command: &clap::Command) {
            let help = command
                .get_after_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            for paragraph in help.split("\n\n") {
                let is_prose = !paragraph.contains("\n  ");
                assert!(!is_prose || !paragraph.contains('\n'), "{paragraph}");
                for line in paragraph.lines().filter(|_| !is_prose) {
                    assert!(line.chars().count() <= 100, "{line}");
                }
            }
            command.get_subcommands().for_each(look);
        }
        look(&Cli::command());
    }
}
