//! `inco upgrade`.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use api::types::{Refusal, Status};
use api::{Client, run_dir};
use clap::Args;
use display::event::event_sentence;
use display::output;
use model::{Action, Event, EventKind};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::cli::ActionArgs;
use crate::client_commands::connect;

/// How long the program before may take, beside the deadline, to leave everything and to take it over again.
const AROUND: Duration = Duration::from_secs(60);
/// Polling interval.
const LOOK: Duration = Duration::from_millis(10);

#[derive(Debug, Args)]
#[command(
    after_help = concat!(
        "Examples:\n",
        "  inco upgrade                              after a new package was installed\n",
        "  ./inco upgrade --deadline 30              to the program that is run here\n",
        "  inco upgrade --program /opt/inco/bin/inco\n\n",
        "Only for root on inco's machine. The new program takes over flows, rings, sockets and containers. If it \
         does not serve by the deadline, the program before goes on, and the exit status is 1. A program that does \
         not accept the configuration in use is refused at once.",
    )
)]
pub(crate) struct UpgradeArgs {
    /// The program that takes over; default: the one that runs this command
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Seconds within which it must serve
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=600))]
    deadline: u32,
    #[command(flatten)]
    common: ActionArgs,
}

pub(crate) fn run(args: &UpgradeArgs) -> anyhow::Result<()> {
    let program = program(args.program.as_deref())?;
    let client = connect(&args.common.connection)?;
    let before = client.status()?;
    check_configuration(&program, &before)?;
    let action = Action::Upgrade {
        binary: program.display().to_string(),
        deadline_s: args.deadline,
    };
    client.act(&action).context("cannot upgrade")?;
    let limit = AROUND + Duration::from_secs(u64::from(args.deadline));
    let events = events_after(&client, before.events, limit)?;
    let Some(outcome) = events.iter().find(|event| is_outcome(event)) else {
        bail!("inco has not told its outcome: see its log");
    };
    if matches!(outcome.kind, EventKind::Failure { .. }) {
        bail!("the upgrade is undone: {}", event_sentence(outcome));
    }
    if args.common.json {
        return output::json(&events, true);
    }
    events
        .iter()
        .filter(|event| is_outcome(event) || matches!(event.kind, EventKind::Started { .. }))
        .try_for_each(|event| output::line(event_sentence(event)))
}

/// The program to take over, which must be one that nobody else can change.
fn program(given: Option<&Path>) -> anyhow::Result<PathBuf> {
    let path = match given {
        Some(path) => path.to_owned(),
        None => std::env::current_exe().context("cannot find the program of this command")?,
    };
    let path = path
        .canonicalize()
        .with_context(|| format!("cannot find {}", path.display()))?;
    let data = path
        .metadata()
        .with_context(|| format!("cannot look at {}", path.display()))?;
    let name = path.display();
    let own = Path::new("/proc/self").metadata()?.uid();
    if !data.is_file() || data.mode() & 0o111 == 0 {
        bail!("{name} is not a program: name an inco, or make it executable with chmod");
    }
    if data.mode() & 0o022 != 0 || (data.uid() != 0 && data.uid() != own) {
        bail!("other users can change {name}: chown it to root and chmod it to 755");
    }
    let version = output_of(Command::new(&path).arg("--version"), &path)?;
    if !version.status.success() || !version.stdout.starts_with(b"inco ") {
        bail!("{name} is not an inco: `{name} --version` does not tell a version of inco");
    }
    Ok(path)
}

/// Whether the program accepts the configuration in use.
fn check_configuration(program: &Path, running: &Status) -> anyhow::Result<()> {
    // Its path may be relative to where inco was started.
    let folder = format!("/proc/{}/cwd", running.pid);
    let mut check = Command::new(program);
    check
        .args(["check", "-f", &running.file])
        .env("INCO_RUN_DIR", run_dir::run_dir())
        .current_dir(folder);
    let checked = in_network_of(running.pid, || output_of(&mut check, program))?;
    if checked.status.success() {
        return Ok(());
    }
    let problems = String::from_utf8_lossy(&checked.stderr).trim_end().to_owned();
    let refused = format!(
        "{} does not accept the configuration:\n{problems}",
        program.display()
    );
    Err(Refusal::new(refused, "nothing has changed").into())
}

/// Runs something in the network namespace of a process, which has the interfaces that its configuration names.
fn in_network_of<T: Send>(pid: u32, run: impl FnOnce() -> anyhow::Result<T> + Send) -> anyhow::Result<T> {
    let path = format!("/proc/{pid}/ns/net");
    let namespace = File::open(&path).with_context(|| format!("cannot open {path}"))?;
    // What a thread starts is in the thread's namespace.
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
                .with_context(|| format!("cannot enter {path}"))?;
            run()
        });
        thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

fn output_of(command: &mut Command, program: &Path) -> anyhow::Result<Output> {
    command
        .output()
        .with_context(|| format!("cannot run {}", program.display()))
}

fn is_outcome(event: &Event) -> bool {
    match &event.kind {
        EventKind::Upgraded { .. } => true,
        EventKind::Failure { what, .. } => what == "upgrade",
        _ => false,
    }
}

/// Events after that number, once there is the outcome and what was taken over.
fn events_after(client: &Client, newest: u64, limit: Duration) -> anyhow::Result<Vec<Event>> {
    let since = Instant::now();
    loop {
        let events = client.again().and_then(|client| client.events(1000));
        if let Ok(mut events) = events {
            events.retain(|event| event.sequence > newest);
            let has = |wanted: fn(&Event) -> bool| events.iter().any(wanted);
            if has(is_outcome) && has(|event| matches!(event.kind, EventKind::Started { .. })) {
                return Ok(events);
            }
        }
        if since.elapsed() > limit {
            bail!("inco does not answer after {} s: see its log", limit.as_secs());
        }
        thread::sleep(LOOK);
    }
}
