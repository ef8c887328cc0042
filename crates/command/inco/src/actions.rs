//! The commands by which an operator acts on a running inco. Each has all in this file: its variant with the help, its
//! options, and what it asks for.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use api::types::{CommandEnd, InstanceRow, Outcome, Refusal};
use api::{ApiError, Client, run_dir};
use clap::{Args, Subcommand};
use display::output::{self, WrongUsage};
use model::{Action, InstanceId, InstanceState, KeyChange, PolicyChoice, RolloutState};
use orchestrator::leftovers::{self, Running};

use crate::cli::{ActionArgs, WaitArgs, flow, id};
use crate::client_commands::{connect, unknown_service};
use crate::logs;
use crate::selector::Selector;
use crate::target::Target;
use crate::upgrade::{self, UpgradeArgs};
use crate::wait;

/// Time limit of `inco stop`: enough for 8 programs that ignore SIGTERM; draining is not included.
const STOP_TIME: Duration = Duration::from_secs(60);
/// Polling interval.
const STOP_LOOK: Duration = Duration::from_millis(20);

#[derive(Debug, Subcommand)]
pub(crate) enum ActionCommand {
    /// Run a command in an instance's container
    Exec(ExecArgs),
    /// Set the number of active instances, or return it to the autoscaler
    Scale(ScaleArgs),
    /// Replace the instances of a service, one after the other
    Rollout(RolloutArgs),
    /// Change a policy of a running service
    Policy(PolicyArgs),
    /// Drain instances: they get no new flows and are removed when their flows have ended
    Drain(DrainArgs),
    /// Cancel drains
    Undrain(UndrainArgs),
    /// Unpin flows; their next packets are rescheduled
    Purge(PurgeArgs),
    /// Move a flow to another instance
    Move(MoveArgs),
    /// Disable scale-in of a service (until 0.3 also: pause-in)
    #[command(alias = "pause-in")]
    DisableScaleIn(HoldBackArgs),
    /// Disable scale-out of a service (until 0.3 also: pause-out)
    #[command(alias = "pause-out")]
    DisableScaleOut(HoldBackArgs),
    /// Let the autoscaler of a service only report its decisions
    DryRun(HoldBackArgs),
    /// Reload the configuration of a running inco: apply all changes, or none
    Reload(ReloadArgs),
    /// Have another program take over from a running inco; no flow moves
    Upgrade(UpgradeArgs),
    /// Stop a running inco and remove its containers
    Stop(StopArgs),
}

/// Commands renamed in 0.2. The old names work until 0.3, with a warning.
const OLD_NAMES: [(&str, &str); 2] = [
    ("pause-in", "disable-scale-in"),
    ("pause-out", "disable-scale-out"),
];

/// The warning for the old name of a command.
pub(crate) fn old_name(command: &str) -> Option<String> {
    let (old, new) = OLD_NAMES.iter().find(|(old, _)| *old == command)?;
    Some(format!(
        "warning: `inco {old}` is renamed to `inco {new}`; the old name is removed in 0.3"
    ))
}

impl ActionCommand {
    /// Runs the command and returns the exit status.
    pub(crate) fn run(&self) -> anyhow::Result<ExitCode> {
        match self {
            ActionCommand::Exec(args) => return exec(args).map(ExitCode::from),
            ActionCommand::Scale(args) => scale(args),
            ActionCommand::Rollout(args) => rollout(args),
            ActionCommand::Policy(args) => policy(args),
            ActionCommand::Drain(args) => drain(args),
            ActionCommand::Undrain(args) => undrain(args),
            ActionCommand::Purge(args) => purge(args),
            ActionCommand::Move(args) => move_flow(args),
            ActionCommand::DisableScaleIn(args) => {
                hold_back(args, |service, on| Action::PauseIn { service, on })
            }
            ActionCommand::DisableScaleOut(args) => {
                hold_back(args, |service, on| Action::PauseOut { service, on })
            }
            ActionCommand::DryRun(args) => hold_back(args, |service, on| Action::DryRun { service, on }),
            ActionCommand::Reload(args) => reload(args),
            ActionCommand::Upgrade(args) => upgrade::run(args),
            ActionCommand::Stop(args) => stop(args),
        }?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Sends an action and prints the result. Returns the client.
pub(crate) fn run_action(args: &ActionArgs, action: &Action) -> anyhow::Result<Client> {
    let client = connect(&args.connection)?;
    let outcome = client
        .act(action)
        .with_context(|| format!("cannot {}", action_in_words(action)))?;
    print_outcome(args, &outcome)?;
    if let Some(how) = permanent_form(action) {
        output::complain(&format!("inco: this lasts until `inco stop`; to keep it, {how}"));
    }
    Ok(client)
}

fn print_outcome(args: &ActionArgs, outcome: &Outcome) -> anyhow::Result<()> {
    if args.json {
        output::json(outcome, true)
    } else {
        output::line(&outcome.result)
    }
}

/// The action in words, after "cannot".
fn action_in_words(action: &Action) -> &'static str {
    match action {
        Action::Policy { .. } => "set the policy",
        Action::Record { .. } => "record decisions",
        Action::Rollout { cancel: false, .. } => "roll out",
        Action::Rollout { cancel: true, .. } => "cancel the rollout",
        Action::Purge { .. } => "unpin flows",
        Action::Move { .. } => "move the flow",
        Action::PauseIn { on: true, .. } => "disable scale-in",
        Action::PauseIn { on: false, .. } => "enable scale-in",
        Action::PauseOut { on: true, .. } => "disable scale-out",
        Action::PauseOut { on: false, .. } => "enable scale-out",
        Action::DryRun { on: true, .. } => "begin the dry run",
        Action::DryRun { on: false, .. } => "end the dry run",
        Action::Range { .. } => "bound the number of instances",
        Action::Resize { .. } => "set the CPU quota",
        Action::ActorMove { .. } => "move the actor",
        Action::ActorPause { .. } => "pause the actor",
        Action::ActorResume { .. } => "resume the actor",
        Action::ActorStop { .. } => "stop the actor",
        Action::Scale { .. }
        | Action::Drain { .. }
        | Action::Exec { .. }
        | Action::Undrain { .. }
        | Action::Reload { .. }
        | Action::Upgrade { .. }
        | Action::Stop { .. } => action.name(),
    }
}

/// How to make a run-time change permanent in the configuration.
fn permanent_form(action: &Action) -> Option<String> {
    match action {
        Action::Scale {
            service,
            instances: Some(instances),
        } => Some(format!("write instances = {instances} into [service.{service}]")),
        Action::Resize {
            service,
            cpus: Some(cpus),
        } => Some(format!("write cpus = {cpus} into [service.{service}]")),
        Action::Range { service, min, max } if min.is_some() || max.is_some() => {
            let limits = [("min", min), ("max", max)].into_iter();
            let limits: Vec<String> = limits
                .filter_map(|(key, limit)| Some(format!("{key} = {}", limit.as_ref()?)))
                .collect();
            Some(format!(
                "write {} into [service.{service}.instances]",
                limits.join(" and ")
            ))
        }
        Action::Policy {
            service,
            scheduler: Some(choice),
            ..
        } => Some(format!(
            "write the scheduler {} into [service.{service}]",
            choice.policy
        )),
        Action::Policy {
            service,
            autoscaler: Some(choice),
            ..
        } => Some(format!(
            "write the autoscaler {} into [service.{service}]",
            choice.policy
        )),
        Action::PauseIn { on: true, .. }
        | Action::PauseOut { on: true, .. }
        | Action::DryRun { on: true, .. } => Some("repeat the command after each start".to_owned()),
        _ => None,
    }
}

#[derive(Debug, Args)]
#[command(
    after_help = concat!(
        "Examples:\n",
        "  inco exec firewall/3 -- /bin/ip -s link\n",
        "  inco exec 3 --json -- /bin/cat /proc/meminfo\n\n",
        "Only for root on inco's machine. The command is confined like the container's program, has no input and a \
         time limit of 8 s. The first 64 KiB of its output are shown. The exit status is the command's, or 128 plus \
         the signal that ended it. Each command is recorded in the event log.",
    )
)]
pub(crate) struct ExecArgs {
    /// An instance, by its service and id
    #[arg(value_name = "SERVICE/ID")]
    target: String,
    /// Program and arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
    #[command(flatten)]
    common: ActionArgs,
}

/// Runs a command and returns its exit status, or 128 plus the signal that ended it.
fn exec(args: &ExecArgs) -> anyhow::Result<u8> {
    let target = Target::of(&args.target);
    let Some(instance) = target.instance else {
        let service = &args.target;
        return Err(WrongUsage(format!(
            "{service} is a service: write which instance, as {service}/3; `inco instances {service}` lists them"
        ))
        .into());
    };
    let client = connect(&args.common.connection)?;
    if let Some(service) = target.service {
        let rows = client.instances()?;
        if !rows
            .iter()
            .any(|row| row.id == instance && row.service == service)
        {
            let error = format!("{service} has no instance {instance}");
            return Err(Refusal::new(error, "see `inco instances`").into());
        }
    }
    let command = args.command.clone();
    let outcome = client.act(&Action::Exec { instance, command })?;
    let end = outcome.command.clone().unwrap_or_default();
    if args.common.json {
        output::json(&outcome, true)?;
    } else {
        logs::write(&end.output)?;
        if end.cut {
            output::complain("inco: the output is cut: only its first part is stored");
        }
    }
    Ok(status_of(&end))
}

/// As in a shell.
fn status_of(end: &CommandEnd) -> u8 {
    let status = end.status.or_else(|| end.signal.map(|signal| 128 + signal));
    status.and_then(|status| u8::try_from(status).ok()).unwrap_or(1)
}

#[derive(Debug, Args)]
#[command(
    override_usage = "inco scale [OPTIONS] <SERVICE> <INSTANCES | --auto | --min N | --max N | --whole-range | --cpus CPUS | --file-cpus>",
    after_help = concat!(
        "Examples:\n",
        "  inco scale firewall 5\n",
        "  inco scale firewall 5 --wait --timeout 30\n",
        "  inco scale firewall --auto\n",
        "  inco scale firewall --min 2 --max 6      the autoscaler decides within this range\n",
        "  inco scale firewall --whole-range        the range of the file holds again\n",
        "  inco scale firewall --cpus 0.6           the CPU quota of each instance\n",
        "  inco scale firewall --file-cpus          the quota of the file holds again\n\n",
        "A range lies within the limits of the file, min and max of `instances`. No flow moves.",
    )
)]
pub(crate) struct ScaleArgs {
    /// The service
    service: String,
    /// Number of active instances, within the service's limits
    #[arg(required_unless_present_any = ["auto", "min", "max", "whole_range", "cpus", "file_cpus"], conflicts_with = "auto")]
    instances: Option<u32>,
    /// Let the autoscaler decide again
    #[arg(long, conflicts_with = "wait")]
    auto: bool,
    /// Minimum of active instances from now on; the file's if absent
    #[arg(long, value_name = "INSTANCES", conflicts_with_all = ["instances", "auto"])]
    min: Option<u32>,
    /// Maximum of active instances from now on; the file's if absent
    #[arg(long, value_name = "INSTANCES", conflicts_with_all = ["instances", "auto"])]
    max: Option<u32>,
    /// Undo --min and --max
    #[arg(long, conflicts_with_all = ["instances", "auto", "min", "max"])]
    whole_range: bool,
    /// CPU quota of each instance from now on, also of new ones; the autoscaler changes no quota meanwhile
    #[arg(long, conflicts_with_all = ["instances", "auto", "min", "max", "whole_range", "wait"])]
    cpus: Option<f64>,
    /// Undo --cpus
    #[arg(long, conflicts_with_all = ["instances", "auto", "min", "max", "whole_range", "cpus", "wait"])]
    file_cpus: bool,
    #[command(flatten)]
    wait: WaitArgs,
    #[command(flatten)]
    common: ActionArgs,
}

fn scale(args: &ScaleArgs) -> anyhow::Result<()> {
    let service = args.service.clone();
    let action = if args.whole_range || args.min.is_some() || args.max.is_some() {
        let (min, max) = (args.min, args.max);
        Action::Range { service, min, max }
    } else if args.file_cpus || args.cpus.is_some() {
        let cpus = args.cpus;
        Action::Resize { service, cpus }
    } else {
        let instances = if args.auto { None } else { args.instances };
        Action::Scale { service, instances }
    };
    let client = run_action(&args.common, &action)?;
    let services = std::slice::from_ref(&args.service);
    wait::until(&args.wait, &client, |snapshot| {
        wait::for_active(snapshot, services)
    })
}

#[derive(Debug, Args)]
#[command(
    after_help = concat!(
        "Examples:\n",
        "  inco rollout firewall --wait\n",
        "  inco rollout firewall --status\n",
        "  inco rollout firewall --cancel\n\n",
        "It replaces standbys first, then active instances. A replacement takes new flows before an old instance \
         drains, so the number of active instances never falls. A replacement that fails aborts the rollout; the \
         remaining old instances keep running.",
    )
)]
pub(crate) struct RolloutArgs {
    /// The service
    service: String,
    /// Show its progress; exit status 1 if it was aborted
    #[arg(long, conflicts_with_all = ["cancel", "wait"])]
    status: bool,
    /// Cancel it; instances that are not replaced yet keep running
    #[arg(long, conflicts_with = "wait")]
    cancel: bool,
    #[command(flatten)]
    wait: WaitArgs,
    #[command(flatten)]
    common: ActionArgs,
}

fn rollout(args: &RolloutArgs) -> anyhow::Result<()> {
    if args.status {
        return rollout_status(args);
    }
    let (service, cancel) = (args.service.clone(), args.cancel);
    let client = run_action(&args.common, &Action::Rollout { service, cancel })?;
    wait::until(&args.wait, &client, |snapshot| {
        wait::for_rollout(snapshot, &args.service)
    })
}

/// The state of a rollout.
fn rollout_status(args: &RolloutArgs) -> anyhow::Result<()> {
    let services = connect(&args.common.connection)?.services()?;
    let name = &args.service;
    let Some(row) = services.iter().find(|row| row.name == *name) else {
        let hint = unknown_service(name, &services);
        return Err(Refusal::new(format!("unknown service {name:?}"), hint).into());
    };
    if args.common.json {
        output::json(&row.rollout, true)?;
    }
    match &row.rollout {
        _ if args.common.json => {}
        None => output::line(format!("{name} had no rollout since inco started"))?,
        Some(of) => output::line(format!(
            "{name}: {}, {} of {} replaced: {}",
            of.state.name(),
            of.replaced,
            of.total,
            of.reason
        ))?,
    }
    match &row.rollout {
        Some(of) if of.state == RolloutState::Aborted => anyhow::bail!("the rollout of {name} was aborted"),
        _ => Ok(()),
    }
}

#[derive(Debug, Args)]
#[command(
    after_help = concat!(
        "Examples:\n",
        "  inco policy firewall --scheduler worst-fit\n",
        "  inco policy firewall --scheduler maglev --set table=4093 --set slow_start=5s\n",
        "  inco policy firewall --autoscaler smartinco --set target=0.6 --set window=2s\n",
        "  inco policy firewall --record 3        record the next three scheduling decisions\n\n",
        "No pinned flow moves. The number of instances stays until the new autoscaler decides. \
         docs/reference/configuration.md lists the parameters.",
    )
)]
pub(crate) struct PolicyArgs {
    /// The service
    service: String,
    /// The new scheduler
    #[arg(long, value_name = "NAME", value_parser = configuration::scheduler_name, required_unless_present_any = ["autoscaler", "record"],
          conflicts_with = "autoscaler")]
    scheduler: Option<String>,
    /// The new autoscaler
    #[arg(long, value_name = "NAME", value_parser = autoscaler)]
    autoscaler: Option<String>,
    /// A parameter of the policy; others have their defaults
    #[arg(long, value_name = "NAME=VALUE", value_parser = parameter, conflicts_with = "record")]
    set: Vec<(String, serde_json::Value)>,
    /// Record this number of scheduling decisions, with their inputs, in the event log
    #[arg(long, value_name = "N", conflicts_with_all = ["scheduler", "autoscaler"],
          value_parser = clap::value_parser!(u32).range(1..=i64::from(Action::RECORD_LIMIT)))]
    record: Option<u32>,
    #[command(flatten)]
    common: ActionArgs,
}

fn autoscaler(text: &str) -> Result<String, String> {
    match autoscaling::Autoscaler::from_name(text) {
        Ok(policy) => Ok(policy.name().to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// A value is parsed as JSON; if that fails, it is text.
fn parameter(text: &str) -> Result<(String, serde_json::Value), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => {
            let value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
            Ok((name.to_owned(), value))
        }
        _ => Err(format!("{text:?} is not NAME=VALUE")),
    }
}

fn policy(args: &PolicyArgs) -> anyhow::Result<()> {
    let service = args.service.clone();
    let choice = |name: &Option<String>| {
        name.as_ref().map(|policy| PolicyChoice {
            policy: policy.clone(),
            parameters: args.set.iter().cloned().collect(),
        })
    };
    let action = match args.record {
        Some(decisions) => Action::Record { service, decisions },
        None => Action::Policy {
            service,
            scheduler: choice(&args.scheduler),
            autoscaler: choice(&args.autoscaler),
        },
    };
    run_action(&args.common, &action).map(drop)
}

#[derive(Debug, Args)]
#[command(
    override_usage = "inco drain [OPTIONS] <ID... | --selector KEY=VALUE,...>",
    after_help = concat!(
        "Examples:\n",
        "  inco drain 3\n",
        "  inco drain 3 4 5 --wait      returns when they have no flows\n",
        "  inco drain --selector service=firewall,adopted=true",
    )
)]
pub(crate) struct DrainArgs {
    /// Ids of the instances, as in `inco instances`
    #[arg(required_unless_present = "selector", value_name = "ID", value_parser = id)]
    instances: Vec<u32>,
    /// Active instances that meet all requirements, instead of ids; the keys are service, place, state and adopted
    #[arg(short = 'l', long, value_name = "KEY=VALUE,...", conflicts_with = "instances")]
    selector: Option<Selector>,
    #[command(flatten)]
    wait: WaitArgs,
    #[command(flatten)]
    common: ActionArgs,
}

fn drain(args: &DrainArgs) -> anyhow::Result<()> {
    let ids = selected_instances(
        &args.common,
        &args.instances,
        args.selector.as_ref(),
        InstanceState::Active,
    )?;
    run_on_each(&args.common, &ids, |instance| Action::Drain { instance })?;
    let instances: Vec<InstanceId> = ids.into_iter().map(InstanceId).collect();
    let client = connect(&args.common.connection)?;
    wait::until(&args.wait, &client, |snapshot| {
        Ok(wait::for_drained(snapshot, &instances))
    })
}

#[derive(Debug, Args)]
#[command(
    override_usage = "inco undrain [OPTIONS] <ID... | --selector KEY=VALUE,...>",
    after_help = "Examples:\n  inco undrain 3\n  inco undrain --selector service=firewall"
)]
pub(crate) struct UndrainArgs {
    /// Ids of the instances, as in `inco instances`
    #[arg(required_unless_present = "selector", value_name = "ID", value_parser = id)]
    instances: Vec<u32>,
    /// Draining instances that meet all requirements, instead of ids; the keys are service, place, state and adopted
    #[arg(short = 'l', long, value_name = "KEY=VALUE,...", conflicts_with = "instances")]
    selector: Option<Selector>,
    #[command(flatten)]
    common: ActionArgs,
}

fn undrain(args: &UndrainArgs) -> anyhow::Result<()> {
    let ids = selected_instances(
        &args.common,
        &args.instances,
        args.selector.as_ref(),
        InstanceState::Draining,
    )?;
    run_on_each(&args.common, &ids, |instance| Action::Undrain { instance })
}

/// Sends the same action for several instances; a failure does not stop the rest.
fn run_on_each(
    args: &ActionArgs,
    instances: &[u32],
    action: impl Fn(InstanceId) -> Action,
) -> anyhow::Result<()> {
    let mut failed = 0;
    let mut last = None;
    for instance in instances {
        if let Err(error) = run_action(args, &action(InstanceId(*instance))) {
            if error.downcast_ref::<output::OutputClosed>().is_some() || instances.len() == 1 {
                return Err(error);
            }
            failed += 1;
            output::complain(&format!("inco: {}", output::explain(&error)));
            last = Some(error);
        }
    }
    match last {
        None => Ok(()),
        Some(_) => anyhow::bail!("{failed} of {} failed", instances.len()),
    }
}

/// The named instances, or the selected ones in that state.
fn selected_instances(
    args: &ActionArgs,
    named: &[u32],
    selector: Option<&Selector>,
    state: InstanceState,
) -> anyhow::Result<Vec<u32>> {
    let Some(selector) = selector else {
        return Ok(named.to_vec());
    };
    let rows = connect(&args.connection)?.instances()?;
    let is_meant = |row: &&InstanceRow| row.state == state && selector.selects(row);
    let ids: Vec<u32> = rows.iter().filter(is_meant).map(|row| row.id.0).collect();
    if ids.is_empty() {
        anyhow::bail!("no {} instance is selected; see `inco instances`", state.name());
    }
    Ok(ids)
}

#[derive(Debug, Args)]
#[command(
    override_usage = "inco purge [OPTIONS] <ID | --flow FLOW>",
    after_help = concat!(
        "Examples:\n",
        "  inco purge 3                                           all flows of instance 3\n",
        "  inco purge --flow 'udp 10.0.0.7:53 > 10.128.0.1:5353'  only this flow",
    )
)]
pub(crate) struct PurgeArgs {
    /// All flows of this instance
    #[arg(value_name = "ID", value_parser = id, required_unless_present = "flow", conflicts_with = "flow")]
    instance: Option<u32>,
    /// Only this flow
    #[arg(long, value_name = "FLOW", value_parser = flow, conflicts_with = "wait")]
    flow: Option<String>,
    #[command(flatten)]
    wait: WaitArgs,
    #[command(flatten)]
    common: ActionArgs,
}

fn purge(args: &PurgeArgs) -> anyhow::Result<()> {
    let action = match (args.instance, &args.flow) {
        (Some(instance), None) => Action::Purge {
            instance: Some(InstanceId(instance)),
            flow: None,
        },
        (None, Some(flow)) => Action::Purge {
            instance: None,
            flow: Some(flow.clone()),
        },
        _ => {
            return Err(WrongUsage("purge needs an instance's id or --flow".to_owned()).into());
        }
    };
    // The time of inco's clock, before the flows are unpinned.
    let before = match args.wait.wait {
        true => connect(&args.common.connection)?.snapshot()?.unix_ms,
        false => 0,
    };
    let client = run_action(&args.common, &action)?;
    let instance = InstanceId(args.instance.unwrap_or_default());
    wait::until(&args.wait, &client, |_| {
        wait::for_unpinned(&client, instance, before)
    })
}

#[derive(Debug, Args)]
#[command(
    after_help = concat!(
        "Example:\n",
        "  inco move 'udp 10.0.0.7:53 > 10.128.0.1:5353' 5\n\n",
        "Requires affinity = \"relaxed\" of the service. The flow's packets are held until earlier ones have \
         returned, so they stay in order.",
    )
)]
pub(crate) struct MoveArgs {
    /// The flow
    #[arg(value_name = "FLOW", value_parser = flow)]
    flow: String,
    /// Id of the new instance, as in `inco instances`
    #[arg(value_name = "ID", value_parser = id)]
    instance: u32,
    #[command(flatten)]
    common: ActionArgs,
}

fn move_flow(args: &MoveArgs) -> anyhow::Result<()> {
    run_action(
        &args.common,
        &Action::Move {
            flow: args.flow.clone(),
            instance: InstanceId(args.instance),
        },
    )
    .map(drop)
}

#[derive(Debug, Args)]
#[command(
    after_help = concat!(
        "Examples:\n",
        "  inco disable-scale-in firewall\n",
        "  inco disable-scale-out firewall --off\n",
        "  inco dry-run firewall\n\n",
        "What the autoscaler would do is in `inco services` and, as dry-run decisions, in `inco events`.",
    )
)]
pub(crate) struct HoldBackArgs {
    /// The service
    service: String,
    /// Undo it
    #[arg(long)]
    off: bool,
    #[command(flatten)]
    common: ActionArgs,
}

fn hold_back(args: &HoldBackArgs, action: fn(String, bool) -> Action) -> anyhow::Result<()> {
    run_action(&args.common, &action(args.service.clone(), !args.off)).map(drop)
}

#[derive(Debug, Args)]
#[command(
    after_help = concat!(
        "Examples:\n",
        "  inco check -f inco.toml && inco reload\n",
        "  inco reload --check --diff      the changes of a reload, with old and new values\n",
        "  inco reload --check --json | jq '.changes[] | select(.needs_restart)'\n\n",
        "Policies, limits, matches and new services change under traffic; no flow moves. A file with a problem, or \
         with a change that needs a restart, changes nothing; the error names the key. SIGHUP has the same effect. \
         Exit status 1 if the reload is refused, or with --check would be.",
    )
)]
pub(crate) struct ReloadArgs {
    /// Change nothing; show what would change, and whether it needs a restart
    #[arg(long, conflicts_with = "wait")]
    check: bool,
    /// Show each changed key with its old and its new value
    #[arg(long)]
    diff: bool,
    #[command(flatten)]
    wait: WaitArgs,
    #[command(flatten)]
    common: ActionArgs,
}

fn reload(args: &ReloadArgs) -> anyhow::Result<()> {
    let action = Action::Reload { check: args.check };
    let client = connect(&args.common.connection)?;
    let outcome = client.act(&action).context("cannot reload")?;
    let is_refused = args.check && outcome.changes.iter().any(|change| change.needs_restart);
    if args.common.json {
        output::json(&outcome, true)?;
    } else {
        if args.diff {
            output::text(&changes_text(&outcome.changes))?;
        }
        if !is_refused {
            output::line(&outcome.result)?;
        }
    }
    if is_refused {
        anyhow::bail!(outcome.result);
    }
    let services = changed_services(&outcome.changes);
    wait::until(&args.wait, &client, |snapshot| {
        wait::for_active(snapshot, &services)
    })
}

/// The changed services, each once.
fn changed_services(changes: &[KeyChange]) -> Vec<String> {
    let name = |change: &KeyChange| {
        let key = change.key.strip_prefix("service.")?;
        key.split('.').next().map(str::to_owned)
    };
    let mut services: Vec<String> = changes.iter().filter_map(name).collect();
    services.dedup();
    services
}

/// One line per key: old and new value.
fn changes_text(changes: &[KeyChange]) -> String {
    let line = |change: &KeyChange| {
        let restart = if change.needs_restart {
            " (needs a restart)"
        } else {
            ""
        };
        // Text of a file must not control the terminal.
        let text = change.to_string().replace(|c: char| c.is_control(), "?");
        format!("{text}{restart}\n")
    };
    changes.iter().map(line).collect()
}

#[derive(Debug, Args)]
#[command(
    after_help = concat!(
        "Examples:\n",
        "  inco stop             stops inco and removes its containers\n",
        "  inco stop --keep      keeps the containers for the next `inco run`\n\n",
        "Without a running inco, it removes the containers that a killed or kept one left.",
    )
)]
pub(crate) struct StopArgs {
    /// Keep the containers running; the next run adopts them
    #[arg(long)]
    keep: bool,
    /// Do not wait until inco has ended
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    common: ActionArgs,
}

fn stop(args: &StopArgs) -> anyhow::Result<()> {
    let client = match Client::connect_to(args.common.connection.endpoint()?) {
        Ok(client) => client,
        Err(error @ ApiError::NotRunning { .. }) => return remove_leftovers(args, error.into()),
        Err(error) => return Err(error.into()),
    };
    let outcome = match client.act(&Action::Stop { keep: args.keep }) {
        // It was killed in an upgrade: its launcher has the socket open, and nobody answers.
        Err(error @ ApiError::NoAnswer { .. })
            if client.socket().is_some() && Running::of(&run_dir::run_dir()).is_none() =>
        {
            return remove_leftovers(args, error.into());
        }
        answer => answer.context("cannot stop")?,
    };
    if !args.no_wait {
        let started = Instant::now();
        let mut told = false;
        while client.again().is_ok() {
            if started.elapsed() > STOP_TIME {
                anyhow::bail!("inco still runs after {} s: see its log", STOP_TIME.as_secs());
            }
            if !told && started.elapsed() > Duration::from_secs(1) {
                told = true;
                output::complain("inco: waiting for its containers to end");
            }
            std::thread::sleep(STOP_LOOK);
        }
    }
    print_outcome(&args.common, &outcome)
}

/// If no inco answers: removes the containers of an inco that was killed or kept them.
fn remove_leftovers(args: &StopArgs, error: anyhow::Error) -> anyhow::Result<()> {
    if args.keep {
        return Err(error);
    }
    let run_dir = run_dir::run_dir();
    let Some(containers) = leftovers::remove(&run_dir)? else {
        let place = run_dir.display();
        anyhow::bail!(
            "nothing to stop: no inco runs with the run directory {place}, and none has left containers"
        );
    };
    let containers = match containers {
        1 => "1 container".to_owned(),
        count => format!("{count} containers"),
    };
    let result = format!("inco was not running; {containers} of an earlier run are removed");
    print_outcome(&args.common, &Outcome::new(result))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_a_status_as_in_a_shell() {
        let end = |status, signal| CommandEnd {
            status,
            signal,
            ..CommandEnd::default()
        };
        assert_eq!(status_of(&end(Some(3), None)), 3);
        assert_eq!(status_of(&end(None, Some(9))), 137);
        assert_eq!(status_of(&end(None, None)), 1);
    }
}
