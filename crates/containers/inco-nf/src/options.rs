//! The command line: `inco-nf NAME [OPTIONS] [-- NAME [OPTIONS]]...`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{ArgMatches, Args, FromArgMatches as _, ValueEnum};
use functions::{Entry, STAGES_LIMIT, Setup};
use model::PortBlock;

/// What the program is to do.
#[derive(Debug)]
pub(crate) enum Command {
    /// Run functions.
    Run(Run),
    /// On the host: watch how busy functions are.
    Manager(Manager),
    /// On the host: send a signal.
    Signal(Send),
}

/// Functions, and how they are run.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) options: Options,
    /// The functions of the chain, as packets from port 0 pass them.
    pub(crate) stages: Vec<Named>,
}

/// A function by its name, with its configuration.
#[derive(Debug)]
pub(crate) struct Named {
    pub(crate) entry: &'static Entry,
    pub(crate) configuration: Configuration,
}

/// Where the text of a configuration is.
#[derive(Debug)]
pub(crate) enum Configuration {
    /// In this file, which may change.
    File(PathBuf),
    /// This is it.
    Text(String),
}

/// The name of the function `forward`, which has options of its own.
const FORWARD: &str = "forward";
const MANAGER: &str = "manager";
const SIGNAL: &str = "signal";

/// Reads the arguments of the program, the first of which is its name.
///
/// # Errors
/// Wrong usage, or a request for help.
pub(crate) fn parse(
    library: &'static [Entry],
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<Command, clap::Error> {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let mut segments = arguments.split(|argument| argument == "--");
    let first = segments.next().unwrap_or_default();
    let mut program = program(library, true);
    let matches = program.try_get_matches_from_mut(first)?;
    let wrong = |program: &mut clap::Command, what: &str| program.error(ErrorKind::ArgumentConflict, what);
    let (name, of_first) = matches
        .subcommand()
        .ok_or_else(|| program.error(ErrorKind::MissingSubcommand, "which function?"))?;
    match name {
        MANAGER | SIGNAL if first.len() < arguments.len() => {
            return Err(wrong(&mut program, &format!("{name} is in no chain")));
        }
        MANAGER => {
            let manager = Manager::from_arg_matches(of_first)?;
            return match manager.check() {
                Ok(()) => Ok(Command::Manager(manager)),
                Err(mistake) => Err(wrong(&mut program, mistake)),
            };
        }
        SIGNAL => return Ok(Command::Signal(Send::from_arg_matches(of_first)?)),
        _ => {}
    }
    let options = Options::from_arg_matches(of_first)?;
    let setup = options.setup(0);
    options.check().map_err(|mistake| wrong(&mut program, mistake))?;
    let mut stages = vec![named(library, name, of_first)?];
    for segment in segments {
        let name_first = [OsString::from("inco-nf")];
        let words = name_first.iter().chain(segment);
        let matches = self::program(library, false).try_get_matches_from(words)?;
        if let Some((name, of_next)) = matches.subcommand() {
            stages.push(named(library, name, of_next)?);
        }
    }
    if stages.len() > STAGES_LIMIT {
        let what = format!("a chain has at most {STAGES_LIMIT} functions");
        return Err(wrong(&mut program, &what));
    }
    for of in &stages {
        // What is in a file is checked where it is read.
        if let Configuration::Text(text) = &of.configuration
            && let Err(error) = of.entry.compile(text, &setup)
        {
            let what = format!("{}: {error}", of.entry.about().name);
            return Err(program.error(ErrorKind::ValueValidation, what));
        }
    }
    Ok(Command::Run(Run { options, stages }))
}

/// The program's commands; those behind `--` have the options of functions alone.
fn program(library: &[Entry], is_first: bool) -> clap::Command {
    let mut program = clap::Command::new("inco-nf")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Runs network functions connected to the switch over memif, or to network interfaces.")
        .after_help(CHAINS)
        .max_term_width(110)
        .subcommand_required(true)
        .arg_required_else_help(true);
    for entry in library {
        let about = entry.about();
        let mut command = ConfigurationOptions::augment_args(clap::Command::new(about.name));
        if about.name == FORWARD {
            command = ForwardOptions::augment_args(command);
        }
        if is_first {
            command = Options::augment_args(command);
        }
        program = program.subcommand(command.about(format!("{}.", about.help)));
    }
    if is_first {
        let manager = Manager::augment_args(clap::Command::new(MANAGER)).about(
            "On the host: watches the CPUs of functions, and wakes instances or sends them to sleep by signals.",
        );
        let signal = Send::augment_args(clap::Command::new(SIGNAL))
            .about("On the host: sends one signal of an instance.");
        program = program.subcommand(manager).subcommand(signal);
    }
    program
}

const CHAINS: &str = "\
Chains: inco-nf FUNCTION [OPTIONS] -- FUNCTION [OPTIONS] -- ...
Packets from port 0 pass the functions in this order, packets from port 1 in the opposite one. The options of ports
belong to the first function. A chain has at most 8 functions.";

/// A function by its name and options.
fn named(library: &'static [Entry], name: &str, matches: &ArgMatches) -> Result<Named, clap::Error> {
    let entry = functions::find(library, name)
        .map_err(|error| clap::Error::raw(ErrorKind::InvalidSubcommand, error))?;
    let given = ConfigurationOptions::from_arg_matches(matches)?;
    let configuration = match (given.config, given.config_text) {
        (Some(file), _) => Configuration::File(file),
        (None, Some(text)) => Configuration::Text(text),
        (None, None) if name == FORWARD => {
            Configuration::Text(ForwardOptions::from_arg_matches(matches)?.text())
        }
        (None, None) => Configuration::Text(String::new()),
    };
    Ok(Named { entry, configuration })
}

/// Where the configuration of a function is.
#[derive(Debug, Args)]
struct ConfigurationOptions {
    /// The file of the function's configuration. When it changes, or on SIGHUP, it is read again, without a loss of
    /// packets; while it is wrong, the function goes on with the one before.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The function's configuration itself.
    #[arg(long, value_name = "TEXT", conflicts_with = "config")]
    config_text: Option<String>,
}

/// The configuration of `forward`, as options.
#[derive(Debug, Args)]
struct ForwardOptions {
    /// Write the instance's id into the test field of generated packets.
    #[arg(long, env = "INCO_STAMP", conflicts_with_all = ["config", "config_text"])]
    stamp: bool,
    /// Simulated work per packet, in nanoseconds of CPU time.
    #[arg(long, env = "INCO_COST_NS", conflicts_with_all = ["config", "config_text"], default_value_t = 0, value_name = "NS")]
    cost_ns: u64,
    /// Simulated work per byte of a packet, in nanoseconds of CPU time, such as 12.4.
    #[arg(long, env = "INCO_COST_NS_PER_BYTE", conflicts_with_all = ["config", "config_text"], default_value_t = 0.0, value_name = "NS", allow_negative_numbers = true)]
    cost_ns_per_byte: f64,
}

impl ForwardOptions {
    fn text(&self) -> String {
        format!(
            "cost_ns = {}\ncost_ns_per_byte = {:?}\nstamp = {}\n",
            self.cost_ns, self.cost_ns_per_byte, self.stamp
        )
    }
}

/// A role in the memif protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    /// The switch connects, and owns the memory.
    Server,
    /// The switch listens.
    Client,
}

/// Where packets come from, and how the functions are run.
#[derive(Debug, Args)]
pub(crate) struct Options {
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
    /// As client, and with interfaces: slots per ring, a power of two.
    #[arg(long, env = "INCO_RING_SLOTS", default_value_t = 1024, value_parser = slots, value_name = "SLOTS")]
    pub(crate) ring_slots: u32,
    /// As client: bytes per buffer, a multiple of 64.
    #[arg(long, env = "INCO_BUFFER_BYTES", default_value_t = 2048, value_name = "BYTES")]
    pub(crate) buffer_bytes: u32,
    /// Network interfaces as data ports, one or two, separated by commas, instead of a memif socket. Needs CAP_NET_RAW.
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
    /// For functions that translate: the external ports that this instance owns, such as 203.0.113.0:1024-5055.
    #[arg(long, env = "INCO_EXTERNAL", value_name = "ADDRESS:PORTS")]
    pub(crate) external: Option<PortBlock>,
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
    /// The file behind which records of functions are written, such as the alerts of `ids` and the log of `nat`; default:
    /// standard output. When it is moved away, another one is begun.
    #[arg(long, env = "INCO_RECORDS", value_name = "FILE")]
    pub(crate) records: Option<PathBuf>,
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
    fn check(&self) -> Result<(), &'static str> {
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

impl Options {
    /// What functions learn of the instance.
    pub(crate) fn setup(&self, seed: u64) -> Setup {
        Setup {
            instance: self.instance_id,
            ports: self.ports,
            seed,
            external: self.external,
        }
    }

    /// Validates combinations of options.
    fn check(&self) -> Result<(), &'static str> {
        if self.cross && self.ports != 2 {
            return Err("--cross needs --ports 2");
        }
        if !self.interfaces.is_empty() && self.interfaces.len() != usize::from(self.ports) {
            return Err("--interfaces needs as many as there are --ports");
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
