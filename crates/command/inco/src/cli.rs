//! What may be written on the command line.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use api::{Endpoint, Remote, run_dir};
use clap::{Args, Parser, Subcommand};
use display::output::WrongUsage;
use images::EngineName;

use crate::actions::ActionCommand;
use crate::selector::Selector;

/// The in-network container orchestrator: gives every new flow to one of N containers of a network function, keeps it
/// there, counts what happens, and adds and removes containers as the load moves.
#[derive(Debug, Parser)]
#[command(
    name = "inco",
    version,
    propagate_version = true,
    arg_required_else_help = true
)]
#[command(
    after_help = "Example:\n  inco demo                   the whole loop on this machine\n  inco run -f inco.toml       the orchestrator, in the foreground\n  inco instances --watch      what its containers do\n\nExit status: 0, 1 (failed) or 2 (wrong usage, wrong configuration)."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show the whole loop on this machine, live, with a report at the end
    Demo(demo::DemoArgs),
    /// Run the orchestrator in the foreground
    Run(RunArgs),
    /// Say what a configuration would do, or what is wrong with it and where
    Check(CheckArgs),
    /// Check whether this machine has what inco needs, and say what to change
    Doctor(DoctorArgs),
    /// Show how a running inco fares: workers, uplinks, drops, accounting
    Status(StatusArgs),
    /// List services: active and desired instances, rates, load, flows
    Services(ServicesArgs),
    /// List instances: state, rates, flows, ring occupancy
    Instances(InstancesArgs),
    /// List flows and the instances that they are pinned to
    Flows(FlowsArgs),
    /// Show everything that is known of a service or an instance, on one page
    Describe(DescribeArgs),
    /// Say what a policy decides in a situation that is written down, and why
    Explain(ExplainArgs),
    /// List what happened, and why
    Events(EventsArgs),
    /// Show what containers write, also those that have ended
    Logs(LogsArgs),
    /// Show services, instances, flows and events live in a terminal, and act on them
    #[cfg(feature = "top")]
    Top(TopArgs),
    #[command(flatten)]
    Action(ActionCommand),
    /// Generate traffic against an uplink and measure loss, order, duplicates, latency and mis-steers
    Traffic(TrafficArgs),
    /// Make and list images of network functions
    Image(ImageArgs),
    /// Play traffic against the same policies in simulation: an hour in a second
    #[cfg(feature = "simulation")]
    #[command(subcommand, after_help = "Example:\n  inco sim run scenarios/agh-hour.toml")]
    Sim(crate::sim_command::args::SimCommand),
    /// Print what a shell needs to complete commands and options
    Completions(CompletionsArgs),
    /// Print what a running inco has, a name on each line, for completions
    #[command(hide = true)]
    Names(NamesArgs),
    /// Write the manual's pages into a directory
    #[command(hide = true)]
    Man(ManArgs),
    /// Measure the data plane side by side with its peers
    #[cfg(feature = "dpdk")]
    Bench(bench::BenchArgs),
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  inco run -f examples/forward.toml\n  INCO_LOG=debug inco run\n  inco run --log-format json 2> inco.log\n  INCO_RUN_DIR=/tmp/inco inco run -f inco.toml\n\nCtrl-C and SIGTERM remove everything. Containers of an earlier run that was killed are taken over."
)]
pub(crate) struct RunArgs {
    /// The configuration
    #[arg(short, long, value_name = "FILE", default_value = "inco.toml")]
    pub(crate) file: PathBuf,
    /// Check and say what would be done, and start nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// How log lines are written, to standard error
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) log_format: orchestrator::LogFormat,
    /// End, in good order, when that process ends
    #[arg(long, hide = true, value_name = "PID")]
    pub(crate) with_process: Option<i32>,
}

impl RunArgs {
    /// The check that a dry run is.
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
    after_help = "Examples:\n  inco check -f inco.toml\n  inco check -f inco.toml && inco reload      beside a running inco\n  inco check -f inco.toml --offline      on a machine that is not the one meant\n\nExit status 2 where something is wrong; each problem names file, line, key and what to write. What the inco\nuses that runs with the same run directory is not in use by another program."
)]
pub(crate) struct CheckArgs {
    /// The configuration
    #[arg(short, long, value_name = "FILE", default_value = "inco.toml")]
    pub(crate) file: PathBuf,
    /// Do not look whether this machine has what the configuration names
    #[arg(long)]
    pub(crate) offline: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  inco doctor\n  inco doctor -f inco.toml      also what this configuration needs\n  inco doctor --json | jq '.[] | select(.health != \"ok\")'\n\nEach check says ok, warn or fail, what was found, and what to change. Exit status 1 where one fails."
)]
pub(crate) struct DoctorArgs {
    /// A configuration that this machine is to run
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  inco completions bash > /etc/bash_completion.d/inco\n  inco completions zsh > /usr/share/zsh/vendor-completions/_inco\n  inco completions fish > ~/.config/fish/completions/inco.fish"
)]
pub(crate) struct CompletionsArgs {
    /// For which shell
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

/// What a running inco has names for.
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

    /// The word on the command line.
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
    /// Of what
    #[arg(value_enum)]
    pub(crate) names: Names,
    #[command(flatten)]
    pub(crate) place: Where,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  inco man target/man && man -l target/man/inco-run.1")]
pub(crate) struct ManArgs {
    /// Where they go; it is made where it is missing
    pub(crate) directory: PathBuf,
}

/// How a running inco is found.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Where {
    /// The API's socket; by default api.sock in $INCO_RUN_DIR or /run/inco
    #[arg(long, value_name = "PATH", conflicts_with = "url")]
    pub(crate) socket: Option<PathBuf>,
    /// An inco on another machine, asked over TLS; by default $INCO_URL
    #[arg(long, value_name = "https://HOST:PORT")]
    pub(crate) url: Option<String>,
    /// A file with the token for --url; by default $INCO_TOKEN_FILE
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// A file with the certificate to trust with --url, in PEM; by default $INCO_CA_FILE
    #[arg(long, value_name = "FILE")]
    pub(crate) ca_file: Option<PathBuf>,
}

impl Where {
    /// What the options name, or else the environment, or else the socket in the run directory.
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

/// How something is shown.
#[derive(Clone, Debug, Args)]
pub(crate) struct Show {
    #[command(flatten)]
    pub(crate) place: Where,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Show it again and again, every second or every SECONDS
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", value_parser = seconds)]
    pub(crate) watch: Option<Duration>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| format!("{text:?} is not a number of seconds"))?;
    // Below a tenth the terminal is all that changes, above a day nobody watches.
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
    pub(crate) show: Show,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  inco services\n  inco services --wide      with standbys, policies and the whole reason\n  inco services --json | jq '.[].active'\n\nLOAD is that of the busiest instance, as a share of its capacity."
)]
pub(crate) struct ServicesArgs {
    /// All columns, and no line cut at 100 characters
    #[arg(long)]
    pub(crate) wide: bool,
    #[command(flatten)]
    pub(crate) show: Show,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  inco instances\n  inco instances firewall --watch 0.5\n  inco instances --selector service=firewall,state!=active\n  inco instances --json | jq '.[] | select(.state == \"active\")'"
)]
pub(crate) struct InstancesArgs {
    /// Only those of this service
    pub(crate) service: Option<String>,
    /// Only those of which all this holds; the keys are service, state and adopted
    #[arg(short = 'l', long, value_name = "KEY=VALUE,...")]
    pub(crate) selector: Option<Selector>,
    #[command(flatten)]
    pub(crate) show: Show,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  inco flows --service firewall --limit 20\n  inco flows --instance 3\n  inco flows --top 10 --watch\n  inco flows --address 10.0.0.7\n  inco flows --flow 'tcp 10.0.0.7:1000 > 10.128.0.1:443'"
)]
pub(crate) struct FlowsArgs {
    /// Only flows of this service
    #[arg(long, value_name = "NAME")]
    pub(crate) service: Option<String>,
    /// Only flows pinned to this instance
    #[arg(long, value_name = "ID")]
    pub(crate) instance: Option<u32>,
    /// Only flows with this address on either end
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) address: Option<IpAddr>,
    /// Only this flow, in either direction
    #[arg(long, value_name = "FLOW", value_parser = flow)]
    pub(crate) flow: Option<String>,
    /// Only the N that bring the most packets now, the heaviest first
    #[arg(long, value_name = "N", conflicts_with_all = ["limit", "flow"],
          value_parser = clap::value_parser!(u32).range(1..=i64::from(api::types::FlowFilter::TOP_LIMIT)))]
    pub(crate) top: Option<u32>,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = api::types::FlowFilter::DEFAULT_LIMIT,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(api::types::FlowFilter::LIMIT)))]
    pub(crate) limit: u32,
    #[command(flatten)]
    pub(crate) show: Show,
}

pub(crate) fn flow(text: &str) -> Result<String, String> {
    api::parse_tuple(text)
        .map(|tuple| tuple.to_string())
        .map_err(|error| error.to_string())
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  inco describe firewall\n  inco describe firewall/3\n  inco describe firewall --all      also the settings that have their defaults\n  inco describe firewall --json | jq .decisions"
)]
pub(crate) struct DescribeArgs {
    /// A service, or an instance by its service and id
    #[arg(value_name = "SERVICE|SERVICE/ID")]
    pub(crate) target: String,
    /// Show the settings that have their defaults as well
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) act: Act,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  inco logs firewall/3 --follow\n  inco logs firewall --tail 20      of each container the last 20 lines, with the instance before each\n  inco logs firewall > firewall.log\n\nKept is the newest MiB of each container, and 16 MiB of all containers of a service, also of those that have ended; an inco that starts again begins anew. A terminal gets ? for control characters."
)]
pub(crate) struct LogsArgs {
    /// A service, or an instance by its service and id
    #[arg(value_name = "SERVICE|SERVICE/ID")]
    pub(crate) target: String,
    /// Go on with what comes; of an instance, until its container ends
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Only so many lines of each container, the last ones
    #[arg(short = 'n', long, value_name = "LINES")]
    pub(crate) tail: Option<u32>,
    #[command(flatten)]
    pub(crate) place: Where,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  inco events\n  inco events --follow --service firewall\n  inco events --json --last 1000 > events.jsonl"
)]
pub(crate) struct EventsArgs {
    /// Go on with those that come
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// The newest so many
    #[arg(short = 'n', long, value_name = "N", default_value_t = 100,
          value_parser = clap::value_parser!(u32).range(0..=api::EVENT_LIMIT as i64))]
    pub(crate) last: u32,
    /// Only those about this service
    #[arg(long, value_name = "NAME")]
    pub(crate) service: Option<String>,
    /// Print JSON, an event on each line
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) place: Where,
}

#[cfg(feature = "top")]
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  inco top\n  inco top --interval 0.5\n  NO_COLOR=1 inco top --ascii\n\nKeys are shown below; ? tells them all. Nothing is done without a y. It waits for an inco that does not run, and goes on\nwhen it comes back."
)]
pub(crate) struct TopArgs {
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub(crate) interval: Duration,
    /// Only ASCII, also where the locale has more
    #[arg(long)]
    pub(crate) ascii: bool,
    #[command(flatten)]
    pub(crate) place: Where,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  inco explain scheduler --input case.json\n  inco explain autoscaler --input case.json\n  inco events --json | jq -c 'select(.event == \"scaled\") | .case' | tail -n 1 | inco explain autoscaler --input -\n  inco policy firewall --record 1 && inco events --json | jq -c 'select(.event == \"picked\")' | tail -n 1 | inco explain scheduler --input -"
)]
pub(crate) struct ExplainArgs {
    #[command(subcommand)]
    pub(crate) command: ExplainCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ExplainCommand {
    /// Which instance each of some new flows is given to
    #[command(
        after_help = "Example:\n  inco explain scheduler --input case.json\n\nThe shapes are in docs/policies.md. Exit status 2 where the input is wrong."
    )]
    Scheduler(ExplainInput),
    /// How many instances, and how large
    #[command(
        after_help = "Example:\n  echo '{\"policy\":\"hpa\",\"replicas\":3,\"spec\":{\"metrics\":[{\"kind\":\"value\",\"value\":20000,\"target\":15000}]}}' | inco explain autoscaler --input -\n\nThe shapes are in docs/policies.md. Exit status 2 where the input is wrong."
    )]
    Autoscaler(ExplainInput),
    /// Where a flow of a running inco is, since when, and why there
    Flow(ExplainFlowArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  inco explain flow 'tcp 10.0.0.7:1000 > 10.128.0.1:443'")]
pub(crate) struct ExplainFlowArgs {
    /// Which one, in either direction
    #[arg(value_name = "FLOW", value_parser = flow)]
    pub(crate) flow: String,
    #[command(flatten)]
    pub(crate) act: Act,
}

#[derive(Debug, Args)]
pub(crate) struct ExplainInput {
    /// The situation, as JSON; - for standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) input: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Whether a command waits until what it asked for is there.
#[derive(Clone, Debug, Args)]
pub(crate) struct WaitArgs {
    /// Return when it is done; exit status 1 where it is not in time, with what is still missing
    #[arg(long)]
    pub(crate) wait: bool,
    /// For how long, at most
    #[arg(long, value_name = "SECONDS", default_value = "300", requires = "wait", value_parser = seconds)]
    pub(crate) timeout: Duration,
}

/// How an action is asked for.
#[derive(Clone, Debug, Args)]
pub(crate) struct Act {
    #[command(flatten)]
    pub(crate) place: Where,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  inco traffic -f examples/profiles/ramp.toml --uplink memif:wan.sock\n  inco traffic -f profile.toml --uplink memif:/run/inco/wan.sock --json > report.json\n\nThe inco at the other end is asked which instances fail or are purged: moves of their flows are counted apart, as\nexpected. Where there is none (an instance's own socket, another program), every packet that comes back from another\ninstance than its flow's first one counts as mis-steered."
)]
pub(crate) struct TrafficArgs {
    /// What to send
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Where to: the uplink of a running inco, or an instance's socket. Relative paths are in the run directory
    #[arg(long, value_name = "memif:SOCKET", default_value = "memif:wan.sock", value_parser = memif_socket)]
    pub(crate) uplink: PathBuf,
    /// A second uplink, where what was sent on the first comes back and the opposite direction is sent
    #[arg(long, value_name = "memif:SOCKET", value_parser = memif_socket)]
    pub(crate) second_uplink: Option<PathBuf>,
    /// The API's socket of the inco that has the uplinks; by default the one in the run directory, if it has them
    #[arg(long, value_name = "SOCKET")]
    pub(crate) api: Option<PathBuf>,
    /// Print the report as JSON, and nothing else
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
    after_help = "Examples:\n  inco image build forward\n  inco image import testpmd\n  inco image list"
)]
pub(crate) struct ImageArgs {
    #[command(subcommand)]
    pub(crate) command: ImageCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// Make an image of a built-in function: FROM scratch, with one static program
    Build(ImageBuildArgs),
    /// Make an image of one with layers, of a root file system, or of this machine's dpdk-testpmd
    Import(ImageImportArgs),
    /// List images
    List(ImageListArgs),
    /// Remove an image
    Remove(ImageRemoveArgs),
}

/// Where an image goes to.
#[derive(Clone, Debug, Args)]
pub(crate) struct ImageEngine {
    /// Which engine is to have it. Docker gets a copy of inco's own
    #[arg(long, value_enum, default_value_t)]
    pub(crate) engine: EngineName,
    /// Where Docker or Podman answers
    #[arg(long, value_name = "ADDRESS", default_value = engine::DEFAULT_HOST)]
    pub(crate) host: String,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  inco image build forward\n  inco image build forward --engine docker\n  inco image build forward --name lab/forward:2"
)]
pub(crate) struct ImageBuildArgs {
    /// The function
    pub(crate) function: String,
    /// The image's name; by default inco/FUNCTION
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
    after_help = "Examples:\n  docker save lab/ids > ids.tar && inco image import lab/ids ids.tar\n  inco image import lab/ids ./oci-layout -- /usr/bin/ids --fast     runs this instead of what it says itself\n  inco image import lab/swap ./rootfs -- /usr/bin/swap\n  inco image import testpmd                                         this machine's dpdk-testpmd with its libraries\n\nAn image with layers (an OCI image layout, or what docker save writes) says what it runs, where and as whom. A root\nfile system (a directory, or what docker export writes) needs a COMMAND."
)]
pub(crate) struct ImageImportArgs {
    /// The image's name; `testpmd` without a source means this machine's dpdk-testpmd
    pub(crate) name: String,
    /// A tar archive or a directory: an image with layers, or a root file system
    pub(crate) source: Option<PathBuf>,
    /// Program and arguments of its containers, instead of those that the image says
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
    /// Environment of its containers
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
    /// The image's name
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
}
