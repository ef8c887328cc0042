//! `inco upgrade`: another program takes over from the one that runs.
//!
//! 1. The API accepts no client any more, and answers those that it has. Its listeners go to the launcher, so that
//!    clients wait and are not refused. The control loop then leaves flows, rings, sockets and containers to the next
//!    run, as for `inco stop --keep`.
//! 2. This process becomes a guard: it executes its own program again as `inco guard`. Its threads, memory and devices
//!    are gone then, and it still has its process id.
//! 3. The guard starts the new program beside itself, which takes everything over.
//! 4. Once the new program's API answers, systemd is told its process id, and the guard ends. Without systemd the
//!    guard passes signals on and ends as the new program does.
//! 5. If the new program ends or does not answer by the deadline, the guard ends it and executes the old program
//!    again, which takes everything over in turn.
//!
//! The guard also holds what the launcher keeps. The new program does not begin with less than that. So the death of
//! a launcher, the one before or the new one, ends in step 5 and loses nothing.
//!
//! A guard that is killed is a crash like any other: the next run takes over.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use api::run_dir::run_dir;
use api::{Client, Listeners, Tcp};
use clock::monotonic;
use display::output;
use engine::launcher::Launcher;
use keeper::Keeper;
use model::{EventKind, Nanos};
use rustix::process::{Pid, Signal, kill_process};
use sd_notify::NotifyState;
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::daemon::launcher_command;
use crate::service_manager::{self, tell};

/// The argument that makes the program a guard.
pub const GUARD: &str = "guard";
/// The option of `inco run` with what the run before says.
const HAND_OVER: &str = "--hand-over";
/// The API's listeners, among what the launcher keeps.
const LISTENERS: &str = "inco/api";
/// How often the guard looks.
const LOOK: Duration = Duration::from_millis(5);
/// How often the guard shows systemd that it lives.
const LIFE_SIGN: Duration = Duration::from_secs(1);
/// This program, also if its file has been replaced.
const THIS_PROGRAM: &str = "/proc/self/exe";

/// What was asked for.
#[derive(Clone, Debug)]
pub(crate) struct Upgrade {
    pub(crate) program: PathBuf,
    /// By when it must serve.
    pub(crate) deadline: Duration,
}

/// What a run says to the one that takes over from it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HandOver {
    /// Its version.
    from: String,
    /// The number of its last event.
    pub(crate) events: u64,
    /// How many entries the launcher keeps of it.
    #[serde(default)]
    pub(crate) kept: usize,
    /// When its workers had stopped.
    left: Nanos,
    /// Why the program that was to take over did not: this one has run before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    failure: Option<String>,
}

impl HandOver {
    /// From a run whose last event has that number, and that left so many entries with the launcher, now.
    pub(crate) fn now(events: u64, kept: usize) -> HandOver {
        HandOver {
            from: env!("CARGO_PKG_VERSION").to_owned(),
            events,
            kept,
            left: monotonic(),
            failure: None,
        }
    }

    /// Reads the value of the option.
    ///
    /// # Errors
    /// It is none of an inco.
    pub fn parse(text: &str) -> Result<HandOver, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    /// The event of the run that took over.
    pub(crate) fn event(&self) -> EventKind {
        match &self.failure {
            None => EventKind::Upgraded {
                from: self.from.clone(),
                to: env!("CARGO_PKG_VERSION").to_owned(),
                pause_ms: monotonic().since(self.left).as_millis(),
            },
            Some(reason) => EventKind::Failure {
                what: "upgrade".to_owned(),
                reason: format!("{reason}; inco {} goes on", self.from),
            },
        }
    }

    fn arguments(&self) -> Result<[OsString; 2]> {
        Ok([HAND_OVER.into(), serde_json::to_string(self)?.into()])
    }
}

/// Where an API listens. Its listeners are of use to a next run that listens there, too.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Where {
    socket: PathBuf,
    tcp: Option<SocketAddr>,
}

impl Where {
    pub(crate) fn of(socket: &Path, tcp: Option<&Tcp>) -> Where {
        Where {
            socket: socket.to_owned(),
            tcp: tcp.map(|tcp| tcp.address),
        }
    }

    /// Has the launcher keep the listeners for the next run, so that clients wait and are not refused.
    pub(crate) fn keep(&self, keeper: &Keeper, listeners: &Listeners) {
        let files: Vec<_> = [&listeners.unix, &listeners.tcp]
            .into_iter()
            .flatten()
            .map(AsFd::as_fd)
            .collect();
        let kept = serde_json::to_string(self)
            .map_err(anyhow::Error::from)
            .and_then(|note| Ok(keeper.keep(LISTENERS, &note, &files)?));
        if let Err(error) = kept {
            tracing::warn!(%error, "the API listens anew: clients are refused until then");
        }
    }

    /// The listeners that the run before left, as far as they are there. The launcher goes on keeping them.
    pub(crate) fn take(&self, launcher: &mut Launcher) -> Result<Listeners> {
        let Some(entry) = launcher.keeper()?.take_one(LISTENERS)? else {
            return Ok(Listeners::default());
        };
        let mut files = entry.files.into_iter();
        let (unix, tcp) = (files.next(), files.next());
        let kept: Option<Where> = serde_json::from_str(&entry.note).ok();
        Ok(Listeners {
            unix: unix.filter(|_| kept.as_ref().is_some_and(|kept| kept.socket == self.socket)),
            tcp: tcp.filter(|_| kept.as_ref().is_some_and(|kept| kept.tcp == self.tcp)),
        })
    }

    /// The network address at which a listener is kept.
    pub(crate) fn kept_tcp(keeper: &Keeper) -> Option<SocketAddr> {
        let entry = keeper.take_one(LISTENERS).ok()??;
        let kept: Where = serde_json::from_str(&entry.note).ok()?;
        kept.tcp
    }

    /// They are in use again.
    pub(crate) fn forget(keeper: &Keeper) {
        keeper.forget(LISTENERS);
    }
}

/// What the guard is to do.
#[derive(Debug, Serialize, Deserialize)]
struct Order {
    program: PathBuf,
    deadline: Duration,
    /// The API's socket.
    socket: PathBuf,
    hand_over: HandOver,
}

/// Makes this process the guard of an upgrade. Returns only if that fails.
pub(crate) fn become_guard(upgrade: &Upgrade, socket: PathBuf, hand_over: HandOver) -> anyhow::Error {
    let order = Order {
        program: upgrade.program.clone(),
        deadline: upgrade.deadline,
        socket,
        hand_over,
    };
    let order = match serde_json::to_string(&order) {
        Ok(order) => order,
        Err(error) => return error.into(),
    };
    let error = Command::new(THIS_PROGRAM)
        .args([GUARD, &order])
        .args(own_arguments())
        .exec();
    anyhow::Error::new(error)
        .context("cannot become the guard of an upgrade; `inco run` takes over what is kept")
}

/// The arguments of this `inco run`, as its user wrote them.
fn own_arguments() -> Vec<OsString> {
    let mut arguments: Vec<_> = std::env::args_os().skip(1).collect();
    if let Some(at) = arguments.iter().position(|argument| argument == HAND_OVER) {
        arguments.truncate(at);
    }
    arguments
}

/// The guard: what `inco guard ORDER run ...` does. Becomes the old program where the new one does not serve.
///
/// # Errors
/// The order is none, or the old program cannot be executed again.
pub fn guard() -> Result<ExitCode> {
    let mut arguments = std::env::args_os().skip(2);
    let order = arguments.next().unwrap_or_default();
    let order: Order = serde_json::from_str(&order.to_string_lossy())
        .context("the guard of an upgrade is run by inco, not by hand")?;
    let arguments: Vec<_> = arguments.collect();
    let signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).context("cannot listen for signals")?;
    let mut held = Held::take(order.hand_over.kept);
    let started = Command::new(&order.program)
        .args(&arguments)
        .args(order.hand_over.arguments()?)
        // Its life signs are asked for under its own process id.
        .env_remove("WATCHDOG_PID")
        // Each signal comes by the guard, once.
        .process_group(0)
        .spawn();
    let failure = match started {
        Ok(child) => match (New { child, signals }).watched(&order, &mut held) {
            Ok(status) => return status,
            Err(failure) => failure,
        },
        Err(error) => format!("cannot start {}: {error}", order.program.display()),
    };
    held.restore();
    let hand_over = HandOver {
        failure: Some(failure),
        // The new program may have let entries go.
        kept: 0,
        ..order.hand_over
    };
    let error = Command::new(THIS_PROGRAM)
        .args(arguments)
        .args(hand_over.arguments()?)
        .exec();
    Err(error).context("cannot go back to the program before; `inco run` takes over what is kept")
}

/// What the launcher keeps, held here as well: whichever launcher dies while one replaces the other, the program
/// before finds everything.
struct Held(Option<Keeper>);

impl Held {
    /// So many entries are kept.
    fn take(kept: usize) -> Held {
        if kept == 0 {
            return Held(None);
        }
        let taken = Keeper::connect(&run_dir()).and_then(|keeper| {
            keeper.as_ref().map(Keeper::take).transpose()?;
            Ok(keeper)
        });
        Held(taken.unwrap_or_else(|error| {
            output::complain(&format!(
                "only the launcher has flows and rings meanwhile: {error}"
            ));
            None
        }))
    }

    /// The new program has it. A peer would notice no end of a connection that is open here.
    fn let_go(&mut self) {
        self.0 = None;
    }

    /// Has a launcher keep it for the program before, if none does.
    fn restore(&self) {
        let Some(held) = &self.0 else { return };
        let run_dir = run_dir();
        let there =
            Keeper::connect(&run_dir).and_then(|keeper| keeper.map_or(Ok(0), |keeper| keeper.entries()));
        if there.is_ok_and(|entries| entries > 0) {
            return;
        }
        let restored = Launcher::start(launcher_command(), &run_dir).and_then(|mut launcher| {
            let given = held.give_again();
            // It stays, since it keeps something.
            launcher.keeper().map(|_| given)
        });
        let failed = match restored {
            Ok(Ok(_entries)) => return,
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        output::complain(&format!("flows and rings are lost with the launcher: {failed}"));
    }
}

/// The new program.
struct New {
    child: Child,
    signals: Signals,
}

impl New {
    /// Waits until it serves, and then until the guard may end. Fails with the reason to go back.
    fn watched(mut self, order: &Order, held: &mut Held) -> Result<Result<ExitCode>, String> {
        let (serves, since) = (answers(order.socket.clone()), Instant::now());
        let mut told = Instant::now();
        let mut is_to_stop = false;
        let program = order.program.display();
        loop {
            match serves.recv_timeout(LOOK) {
                Ok(()) => {
                    held.let_go();
                    return Ok(self.goes_on());
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(LOOK),
            }
            is_to_stop |= self.pass_signals_on();
            match self.child.try_wait() {
                Ok(Some(status)) if is_to_stop => return Ok(stopped(status)),
                Ok(Some(status)) => return Err(format!("{program} ended before it served: {status}")),
                Ok(None) => {}
                Err(error) => return Err(format!("cannot wait for {program}: {error}")),
            }
            if since.elapsed() > order.deadline && !is_to_stop {
                let _ = self.child.kill();
                let _ = self.child.wait();
                let seconds = order.deadline.as_secs();
                return Err(format!("{program} did not serve within {seconds} s"));
            }
            if told.elapsed() > LIFE_SIGN {
                told = Instant::now();
                tell(NotifyState::Watchdog);
            }
        }
    }

    /// It serves.
    fn goes_on(mut self) -> Result<ExitCode> {
        if service_manager::may_start_again() {
            tell(NotifyState::MainPid(self.child.id()));
            return Ok(ExitCode::SUCCESS);
        }
        let pid = self.child.id();
        std::thread::spawn(move || self.signals.forever().for_each(|signal| pass_on(pid, signal)));
        let status = self.child.wait().context("cannot wait for the new program")?;
        Ok(as_exit_code(status))
    }

    /// Whether one of them is to stop inco.
    fn pass_signals_on(&mut self) -> bool {
        let pid = self.child.id();
        let mut stops = false;
        for signal in self.signals.pending() {
            stops |= signal != SIGHUP;
            pass_on(pid, signal);
        }
        stops
    }
}

fn pass_on(pid: u32, signal: i32) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    if let (Some(pid), Some(signal)) = (pid, Signal::from_named_raw(signal)) {
        // One that has ended is noticed elsewhere.
        let _ = kill_process(pid, signal);
    }
}

/// As a shell says how a program ended.
fn as_exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

/// It was stopped before it served. If it had not come so far as to clean up, this is done here. For systemd, which
/// may start inco again, everything stays.
fn stopped(status: ExitStatus) -> Result<ExitCode> {
    if status.signal().is_none() || service_manager::may_start_again() {
        return Ok(as_exit_code(status));
    }
    Err(Command::new(THIS_PROGRAM).arg("stop").exec()).context("cannot clean up: run `inco stop`")
}

/// Says when the API on that socket answers.
fn answers(socket: PathBuf) -> Receiver<()> {
    let (says, serves) = mpsc::channel();
    std::thread::spawn(move || {
        while Client::connect(&socket)
            .and_then(|client| client.status())
            .is_err()
        {
            std::thread::sleep(LOOK);
        }
        let _waiting = says.send(());
    });
    serves
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_switch_takes_the_listeners_for_its_own() {
        assert!(LISTENERS.starts_with(soft_switch::NOT_OF_A_SWITCH));
    }

    #[test]
    fn a_hand_over_is_read_as_it_was_written() {
        let before = HandOver::now(7, 3);
        let [option, text] = before.arguments().unwrap();
        assert_eq!(option, HAND_OVER);
        let after = HandOver::parse(text.to_str().unwrap()).unwrap();
        assert_eq!((after.events, after.kept, &after.from), (7, 3, &before.from));
        assert!(matches!(after.event(), EventKind::Upgraded { .. }));
        // A newer release may say more.
        let more = r#"{"from":"9.0.0","events":1,"left":5,"failure":"it hung","more":true}"#;
        let EventKind::Failure { what, reason } = HandOver::parse(more).unwrap().event() else {
            panic!("it failed");
        };
        assert_eq!(
            (what.as_str(), reason.as_str()),
            ("upgrade", "it hung; inco 9.0.0 goes on")
        );
        assert!(HandOver::parse("{").is_err());
    }
}
