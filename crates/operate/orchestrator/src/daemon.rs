//! `inco run`.

use std::io::IsTerminal as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use configuration::Configuration;
use engine::launcher::{Launcher, LauncherCommand};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, getrlimit, pidfd_open, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::load;
use crate::log::{self, LogFormat};
use crate::machine::Machine;
use crate::privileges;
use crate::pull::pull_missing;
use crate::service_manager::{self, ServiceManager};
use crate::upgrade::{self, HandOver};
use crate::{Orchestrator, Place, Reloader, StopRequest};
use api::run_dir::{api_socket, run_dir};
use display::output;

/// Runs the orchestrator with the configuration in `file` until it is stopped. With `with_process`, stops when that
/// process exits. `hand_over`: of the run from which this one takes over, in an upgrade.
///
/// # Errors
/// The configuration is invalid, this machine lacks something it needs, or something could not be removed at the end.
pub fn run(
    file: &Path,
    log_format: LogFormat,
    with_process: Option<i32>,
    hand_over: Option<HandOver>,
) -> Result<()> {
    let mut configuration = load::load_for_this_machine(file, &Machine::now())?;
    if pull_missing(&configuration, &output::complain)? > 0 {
        // What depends on the images is checked now.
        configuration = load::load_for_this_machine(file, &Machine::now())?;
    }
    let launcher = start_launcher(&configuration)?;
    raise_open_files();
    log::start(log_format);
    let dropped = privileges::drop_unneeded(&configuration).context("cannot drop capabilities")?;
    tracing::debug!(?dropped, "capabilities dropped");
    let place = Place {
        run_dir: run_dir(),
        socket: api_socket(configuration.api.socket.as_deref()),
    };
    let services: Vec<_> = configuration.services.iter().map(|s| s.name.clone()).collect();
    let uplinks: Vec<_> = configuration.uplinks.iter().map(|u| u.name.clone()).collect();
    let socket = place.socket.clone();
    let orchestrator = Orchestrator::start(configuration, place, launcher, hand_over)?;
    listen_to_signals(orchestrator.stopper(), orchestrator.reloader())?;
    if let Some(pid) = with_process {
        stop_with(pid, orchestrator.stopper())?;
    }
    output::line(format!(
        "inco runs: {} {} on {} {}; ask it at {} (`inco status`), end it with Ctrl-C or `inco stop`",
        if services.len() == 1 {
            "service"
        } else {
            "services"
        },
        services.join(", "),
        if uplinks.len() == 1 { "uplink" } else { "uplinks" },
        uplinks.join(", "),
        socket.display(),
    ))?;
    let watched = orchestrator.stopper();
    let mut manager = ServiceManager::ready();
    while !orchestrator.is_finished() {
        let is_urgent = watched.upgrade().is_some();
        std::thread::sleep(Duration::from_millis(if is_urgent { 1 } else { 50 }));
        if watched.asked().is_some() && watched.upgrade().is_none() {
            manager.stopping();
        }
        manager.turned(watched.turns());
    }
    let summary = orchestrator.wait()?;
    if let (Some(upgrade), Some(hand_over)) = (watched.upgrade(), summary.hand_over) {
        return Err(upgrade::become_guard(upgrade, socket, hand_over));
    }
    if !summary.left.is_empty() {
        bail!(
            "some containers could not be removed within a minute; `inco run` adopts them, `inco stop` tries again. \
             Left: {}",
            summary.left.join("; ")
        );
    }
    let reading = &summary.reading;
    output::line(format!(
        "inco has ended: {} packets offered, {} originated, {} returned, {} delivered, {} dropped",
        reading.offered(),
        reading.originated(),
        reading.sent(),
        reading.delivered(),
        reading.dropped(),
    ))
}

/// Lets this process open as many files as the system allows: a link to an instance takes four, and as many
/// duplicates that are kept.
fn raise_open_files() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let all = Rlimit {
        current: maximum,
        maximum,
    };
    // Where it may not, links are refused with their own error.
    let _ = setrlimit(Resource::Nofile, all);
}

/// How this program runs its launcher, which runs it to clean up.
pub(crate) fn launcher_command() -> LauncherCommand {
    LauncherCommand::this_program(["launcher"]).cleaning_up_by("stop")
}

/// Starts the launcher. It makes containers for the embedded engine. It keeps for the next run what inco's own switch
/// and the API have open. It forks, so it must start before any thread and any memory mapping.
///
/// # Errors
/// The launcher cannot be started, or another inco has one in the same run directory.
fn start_launcher(configuration: &Configuration) -> Result<Option<Launcher>> {
    // Root needs it even without containers, to remove those of an earlier run.
    let is_needed = configuration.has_containers() || rustix::process::geteuid().is_root();
    if !is_needed {
        return Ok(None);
    }
    let launcher = Launcher::start(launcher_command(), &run_dir()).context("cannot start the launcher")?;
    Ok(Some(launcher))
}

/// The first Ctrl-C or SIGTERM shuts down and removes the containers. SIGTERM of systemd, which may start inco again,
/// keeps them for `linger`. The second stops at once and leaves the
/// containers to the next run. SIGHUP reloads the configuration, unless it reports that the terminal closed: then
/// inco shuts down.
fn listen_to_signals(stop: Arc<StopRequest>, reloader: Reloader) -> Result<()> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).context("cannot listen for signals")?;
    let had_terminal = std::io::stdin().is_terminal();
    std::thread::Builder::new()
        .name("inco-signals".to_owned())
        .spawn(move || {
            let mut asked = false;
            for signal in signals.forever() {
                let terminal_is_gone = had_terminal && !std::io::stdin().is_terminal();
                if signal == SIGHUP && !terminal_is_gone {
                    if !reloader.ask() {
                        output::complain("the reload is refused: too many requests are waiting");
                    }
                    continue;
                }
                if asked {
                    output::complain(
                        "ended immediately; `inco run` adopts the remaining containers, `inco stop` removes them",
                    );
                    std::process::exit(1);
                }
                asked = true;
                if signal == SIGTERM && service_manager::may_start_again() {
                    output::complain("stopping: containers, flows and rings are kept for the next run");
                    stop.ask_to_linger();
                    continue;
                }
                output::complain("stopping: containers are being removed (repeat the signal to end immediately)");
                stop.ask(false);
            }
        })
        .context("cannot start the thread for signals")?;
    Ok(())
}

/// Shuts down when process `pid` exits, even if it was killed. (A parent-death signal comes once for each thread of
/// the parent, and the second signal would leave the containers.)
fn stop_with(pid: i32, stop: Arc<StopRequest>) -> Result<()> {
    let pid = Pid::from_raw(pid).context("0 is not a process id")?;
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else {
        stop.ask(false);
        return Ok(());
    };
    std::thread::Builder::new()
        .name("inco-process".to_owned())
        .spawn(move || {
            // The pidfd becomes readable when the process exits.
            while poll(&mut [PollFd::new(&process, PollFlags::IN)], None) == Err(Errno::INTR) {}
            stop.ask(false);
        })
        .context("cannot start the thread that watches a process")?;
    Ok(())
}
