//! The orchestrator connects switch, collector, controller, engine and API, and runs the control loop.
//!
//! Threads: the switch's workers, the engine's own, the API's, and the control loop. The loop wakes every
//! millisecond, or sooner if a worker reports a rising packet rate. It reads all counters, runs one step of the
//! controller and carries the decisions out. The loop never blocks on another thread.
#![forbid(unsafe_code)]

pub mod case;
mod control;
pub mod daemon;
mod drivers;
pub mod host;
pub mod leftovers;
pub mod load;
mod log;
pub mod machine;
mod pool;
mod privileges;
mod pull;
mod reports;
mod service_manager;
pub mod upgrade;
mod wiring;

use model::Action;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use api::{Caller, EventLog, Listeners, RequestSender, Server, ServerSettings, request_queue};
use configuration::Configuration;
use engine::launcher::Launcher;

use crate::leftovers::{Mark, remove_folders};
use crate::upgrade::{HandOver, Upgrade, Where};
use control::ControlLoop;
pub(crate) use control::Summary;
pub use control::{raise_priority, secret};
pub use controller::goal_of;
pub use drivers::{flow_tables_mib, loads_programs, longest_packet, passes_to_host};
pub use log::{LogFormat, start as start_log};

/// Paths of an orchestrator's sockets and state.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// The run directory: `/run/inco`, or the value of `INCO_RUN_DIR`.
    pub(crate) run_dir: PathBuf,
    /// The API's socket.
    pub(crate) socket: PathBuf,
}

/// A running orchestrator. Dropping it early leaves the containers running.
pub(crate) struct Orchestrator {
    thread: Option<JoinHandle<Result<Summary>>>,
    stop: Arc<StopRequest>,
    asker: RequestSender,
}

/// Requests reloads of a running orchestrator.
#[derive(Clone, Debug)]
pub(crate) struct Reloader(RequestSender);

impl Reloader {
    /// Requests a reload, as a signal does. The event log has the result. Returns whether the request was queued.
    pub(crate) fn ask(&self) -> bool {
        let caller = Caller {
            name: "signal".to_owned(),
            may_act: true,
            is_root: false,
        };
        self.0.act(Action::Reload { check: false }, caller)
    }
}

/// State shared with the loop: the stop request and the number of turns.
#[derive(Debug, Default)]
pub(crate) struct StopRequest {
    stop: AtomicBool,
    keep: AtomicBool,
    lingers: AtomicBool,
    upgrade: OnceLock<Upgrade>,
    turns: AtomicU64,
}

impl StopRequest {
    /// Requests the shutdown. With `keep`, containers continue to run.
    pub(crate) fn ask(&self, keep: bool) {
        self.keep.store(keep, Ordering::Relaxed);
        self.stop.store(true, Ordering::Release);
    }

    /// Requests the shutdown by a service manager that may start inco again: everything is kept for
    /// [`configuration::Engine::linger`], where that is possible.
    pub(crate) fn ask_to_linger(&self) {
        self.lingers.store(true, Ordering::Relaxed);
        self.ask(true);
    }

    /// Requests the shutdown for another program, which takes over. False if one was requested already.
    pub(crate) fn ask_to_upgrade(&self, upgrade: Upgrade) -> bool {
        let is_first = self.asked().is_none() && self.upgrade.set(upgrade).is_ok();
        if is_first {
            self.ask(true);
        }
        is_first
    }

    /// The program that is to take over.
    pub(crate) fn upgrade(&self) -> Option<&Upgrade> {
        self.upgrade.get()
    }

    /// Whether what is kept is to be removed if no next run comes.
    pub(crate) fn lingers(&self) -> bool {
        self.lingers.load(Ordering::Relaxed)
    }

    /// [`None`] without a request; else whether containers continue to run.
    pub(crate) fn asked(&self) -> Option<bool> {
        self.stop
            .load(Ordering::Acquire)
            .then(|| self.keep.load(Ordering::Relaxed))
    }

    /// Turns of the loop so far. A loop that hangs makes no more.
    pub(crate) fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }

    fn note_turn(&self) {
        self.turns.fetch_add(1, Ordering::Relaxed);
    }
}

impl Orchestrator {
    /// Starts all parts. Returns once the switch forwards and the API answers; instances follow. `launcher` must have
    /// been started before this process had threads. `hand_over`: of the run from which this one takes over.
    ///
    /// # Errors
    /// The engine, a socket, a device or memory is not available. Nothing runs then.
    pub(crate) fn start(
        configuration: Configuration,
        place: Place,
        mut launcher: Option<Launcher>,
        hand_over: Option<HandOver>,
    ) -> Result<Orchestrator> {
        std::fs::create_dir_all(&place.run_dir).with_context(|| {
            format!(
                "cannot make {}; run as root, or set INCO_RUN_DIR",
                place.run_dir.display()
            )
        })?;
        let events = EventLog::default();
        let (asker, inbox) = request_queue();
        let tcp = configuration.api.tcp.as_ref().map(wiring::tcp);
        let listeners = match &mut launcher {
            Some(launcher) => Where::of(&place.socket, tcp.as_ref()).take(launcher)?,
            None => Listeners::default(),
        };
        let is_handed_over = listeners.unix.is_some();
        // Where this program does not start, the one before goes on with the same socket.
        let give_up = move |server: Server| {
            if is_handed_over {
                drop(server.hand_over());
            }
        };
        let settings = ServerSettings {
            tcp,
            listeners,
            ..ServerSettings::on(&place.socket)
        };
        // First, because it detects another running inco.
        let server = Server::start(settings, asker.clone(), events.clone())?;
        let mark = match Mark::set(&place.run_dir, &place.socket, &configuration) {
            Ok(mark) => mark,
            Err(error) => {
                give_up(server);
                return Err(error);
            }
        };
        if let Err(error) = mark.remove_unused_bridge() {
            tracing::warn!("{error:#}");
        }
        let stop = Arc::new(StopRequest::default());
        let (ready, started) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("inco-control".to_owned())
            .spawn({
                let stop = Arc::clone(&stop);
                move || {
                    let from = (inbox, events, hand_over);
                    let control = ControlLoop::start(configuration, &place, launcher, from, stop);
                    match control {
                        Ok(mut control) => {
                            let _waiting = ready.send(Ok(()));
                            // Until the end: who stops inco waits until its socket has gone.
                            let mut server = Some(server);
                            let summary = control.run(&mut server)?;
                            if summary.left.is_empty() && !summary.kept {
                                if let Err(error) = remove_folders(&place.run_dir) {
                                    tracing::warn!(%error, "a folder stays in the run directory");
                                }
                                mark.remove();
                            }
                            Ok(summary)
                        }
                        Err(error) => {
                            mark.undo();
                            give_up(server);
                            let _waiting = ready.send(Err(error));
                            Err(anyhow!("nothing was started"))
                        }
                    }
                }
            })
            .context("cannot start the control thread")?;
        started.recv().context("the control thread ended")??;
        Ok(Orchestrator {
            thread: Some(thread),
            stop,
            asker,
        })
    }

    /// Stops the orchestrator, from a signal thread.
    pub(crate) fn stopper(&self) -> Arc<StopRequest> {
        Arc::clone(&self.stop)
    }

    /// Reloads the configuration, from a signal thread.
    pub(crate) fn reloader(&self) -> Reloader {
        Reloader(self.asker.clone())
    }

    /// Whether it has ended, for instance after a request over the API.
    pub(crate) fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// Returns the error that ended it.
    pub(crate) fn wait(mut self) -> Result<Summary> {
        let thread = self.thread.take().context("it has already ended")?;
        while !thread.is_finished() {
            std::thread::sleep(Duration::from_millis(20));
        }
        thread
            .join()
            .map_err(|_| anyhow!("the control thread ended with a panic"))?
    }
}

impl Drop for Orchestrator {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.stop.ask(true);
            let _result = thread.join();
        }
    }
}
