//! Runs containers: creates, pauses, limits, stops, removes and lists them, and says when one has ended. It knows
//! nothing of services, flows or policies, and never decides anything: the controller does.
//!
//! Key types: [`Engine`] (what the controller talks to), [`ContainerSpec`] (what is to run), [`Request`] and
//! [`EngineEvent`] (what is asked and what came of it), [`EngineError`]. Implementations: [`OciEngine`] (embedded, by
//! way of a [`Launcher`]), [`DockerEngine`] (Docker or Podman) and [`FakeEngine`] (deterministic, for the simulation).
//!
//! The life of a container:
//! 1. [`Request::Create`] makes it and starts its program; [`EngineEvent::Created`] says that the program runs. A
//!    create that failed leaves nothing behind.
//! 2. It may be paused, resumed and given another CPU quota, and commands may be run in it, any number of times.
//! 3. [`Request::Stop`] ends its program, or the program ends by itself: [`EngineEvent::Exited`], once.
//! 4. [`Request::Remove`] ends it where it still runs, and leaves nothing of it: no process, cgroup, mount or file.
//!
//! Dropping an engine leaves its containers running; the next one finds them by [`Engine::list`].

// UNSAFETY: the launcher forks and unshares, which std has no safe form of; tokio takes a pidfd only by an unsafe call. Each is
// allowed where it stands.

mod bundle;
pub mod cgroup;
mod container;
#[cfg(feature = "docker")]
mod docker;
#[cfg(not(feature = "docker"))]
#[path = "docker_left_out.rs"]
mod docker;
mod docker_config;
mod error;
pub mod exchange;
mod fake;
mod front;
mod function;
pub mod image;
pub mod launcher;
mod layers;
pub mod logs;
mod none;
mod oci;
mod program;
mod seccomp;
mod stage;
mod unpack;
mod wire;

pub use container::{
    Container, ContainerSpec, ContainerState, CpuQuota, Exchange, Exit, ImageRef, Label, MAX_NAME_BYTES,
    OPEN_FILES, PIDS_LIMIT, Usage,
};
pub use docker::{DockerEngine, import_into_docker};
pub use docker_config::{DEFAULT_HOST, DockerConfig};
pub use error::EngineError;
pub use fake::{FakeConfig, FakeEngine, Faults, Latency};
pub use function::{Given, SYS};
pub use launcher::{Launcher, LauncherCommand};
pub use none::NoEngine;
pub use oci::{OciConfig, OciEngine, functions_in_use};
pub use program::Program;
pub use unpack::{LeftOut, Owner};

use std::fmt;

use model::Nanos;

/// The caller's number for a request; its answer carries the same one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// Requests that an engine may have in hand at once; one more fails with [`EngineError::Busy`].
pub const MAX_REQUESTS: usize = 1024;

/// How much of a program's output goes with [`EngineEvent::Exited`], in bytes.
pub const MAX_OUTPUT_BYTES: usize = 2048;

/// How much is kept of what a command in a container writes, in bytes: the first part. More is refused to the command, or dropped.
pub const MAX_COMMAND_OUTPUT_BYTES: usize = 64 * 1024;

/// Something to do with one container.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Make the container and start its program. Answered by [`EngineEvent::Created`].
    Create(Box<ContainerSpec>),
    /// Freeze every process of the container.
    Pause {
        /// The container.
        name: String,
    },
    /// Let a paused container go on.
    Resume {
        /// The container.
        name: String,
    },
    /// Give it another CPU quota, or none.
    SetQuota {
        /// The container.
        name: String,
        /// The quota; `None` lifts it.
        quota: Option<CpuQuota>,
    },
    /// Ask the program to end (SIGTERM), and kill it after `grace`. Done when it has ended; done at once where it
    /// already had. A paused container is resumed for it.
    Stop {
        /// The container.
        name: String,
        /// How long the program may take to end by itself; zero kills at once.
        grace: Nanos,
    },
    /// Kill what still runs in it and leave nothing of it. Done at once where there is no such container.
    Remove {
        /// The container.
        name: String,
    },
    /// Run a command in it, beside its program and confined as that is, with its environment and no input. Done when it has
    /// exited with 0; otherwise, and when it is killed after `limit`, failed. It waits for no other request, and none
    /// waits for it; with the container's program it ends, too.
    Exec {
        /// The container.
        name: String,
        /// Program and arguments, a few KiB at most.
        command: Vec<String>,
        /// How long it may take.
        limit: Nanos,
    },
}

impl Request {
    /// The container that it is about.
    pub fn name(&self) -> &str {
        match self {
            Request::Create(spec) => &spec.name,
            Request::Pause { name }
            | Request::Resume { name }
            | Request::SetQuota { name, .. }
            | Request::Stop { name, .. }
            | Request::Remove { name }
            | Request::Exec { name, .. } => name,
        }
    }

    /// The word for it in errors and logs.
    pub const fn verb(&self) -> &'static str {
        match self {
            Request::Create(_) => "create",
            Request::Pause { .. } => "pause",
            Request::Resume { .. } => "resume",
            Request::SetQuota { .. } => "set the CPU quota of",
            Request::Stop { .. } => "stop",
            Request::Remove { .. } => "remove",
            Request::Exec { .. } => "run a command in",
        }
    }
}

/// A command for somebody who wants to see what it writes: run as [`Request::Exec`] runs one.
pub struct Execution {
    /// The container.
    pub name: String,
    /// Program and arguments, a few KiB at most.
    pub command: Vec<String>,
    /// How long it may take; it is killed then.
    pub limit: Nanos,
    /// Told what came of it, on a thread of the engine, so that it must not wait for anything. Dropped where the engine has ended.
    pub answer: Box<dyn FnOnce(Result<Executed, EngineError>) + Send>,
}

impl fmt::Debug for Execution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Execution")
            .field("name", &self.name)
            .field("command", &self.command)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

/// How a command in a container ended, and what it wrote.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Executed {
    /// How it ended.
    pub exit: Exit,
    /// The first [`MAX_COMMAND_OUTPUT_BYTES`] that it wrote to its standard output and error.
    pub output: Vec<u8>,
}

impl Executed {
    /// What it is to whoever only asks whether it exited with 0.
    pub(crate) fn verdict(&self, name: &str) -> Result<(), EngineError> {
        if self.exit.status == Some(0) {
            return Ok(());
        }
        let skipped = self.output.len().saturating_sub(MAX_OUTPUT_BYTES);
        let output = String::from_utf8_lossy(self.output.get(skipped..).unwrap_or_default());
        Err(self.exit.failed_command(name, &output))
    }
}

/// What came of a request, or what happened by itself. Every request has exactly one answer: `Created`, `Done` or
/// `Failed`. Times are those of `CLOCK_MONOTONIC` (the fake's: those given to it).
#[derive(Clone, Debug, PartialEq)]
pub enum EngineEvent {
    /// The container's program runs.
    Created {
        /// The request's.
        ticket: Ticket,
        /// The container.
        name: String,
        /// Process id of its program, as this machine sees it; 0 where the engine is on another machine.
        pid: u32,
        /// When the program ran.
        at: Nanos,
        /// Time from the request to `at`.
        took: Nanos,
    },
    /// Any other request was carried out.
    Done {
        /// The request's.
        ticket: Ticket,
        /// When.
        at: Nanos,
        /// Time from the request to `at`.
        took: Nanos,
    },
    /// A request was not carried out.
    Failed {
        /// The request's.
        ticket: Ticket,
        /// Why.
        error: EngineError,
        /// When.
        at: Nanos,
    },
    /// A container's program has ended: by itself, killed, or by a stop or removal. Once for each container, and before the
    /// `Done` of the stop or removal that ended it.
    Exited {
        /// The container.
        name: String,
        /// How it ended, as far as is known.
        exit: Exit,
        /// The end of what the program wrote to its standard output and error, up to [`MAX_OUTPUT_BYTES`]; empty where it is
        /// not known.
        output: String,
        /// When that was noticed.
        at: Nanos,
    },
    /// The engine does not answer: until [`EngineEvent::EngineUp`] creates fail at once with [`EngineError::Unavailable`], and so does
    /// whatever else needs it. Running containers run on, and their ends are still noticed where the engine is on this
    /// machine.
    EngineDown {
        /// What was seen.
        reason: String,
        /// When.
        at: Nanos,
    },
    /// The engine answers again. Containers may have ended meanwhile: [`Engine::list`] says which run.
    EngineUp {
        /// When.
        at: Nanos,
        /// For how long it had been down.
        after: Nanos,
    },
}

/// Runs containers. [`submit`](Engine::submit) and [`poll`](Engine::poll) never block, so that a loop of 1 ms can
/// call them; the work is done on threads of the engine, several creates at once. Requests for one container are
/// carried out in the order in which they were submitted, [`Request::Exec`] apart.
pub trait Engine: Send {
    /// The word for it in tables and labels: `oci`, `docker`, `fake`.
    fn driver(&self) -> &'static str;

    /// Whether its containers run on this machine, so that memif sockets can be shared with them.
    fn is_local(&self) -> bool;

    /// Takes a request. What came of it is told by [`poll`](Engine::poll).
    fn submit(&mut self, ticket: Ticket, request: Request);

    /// Runs a command in a container. As [`submit`](Engine::submit), it never blocks.
    fn execute(&mut self, execution: Execution);

    /// Appends what happened since the last call, oldest first.
    fn poll(&mut self, events: &mut Vec<EngineEvent>);

    /// The containers that carry this label, by name, those of an earlier run among them: from this call on their
    /// ends are told, too. May block for up to 5 s: for starting up and for recovery.
    ///
    /// A run that was killed may have left a container without its quota (in the middle of a pause): set the quotas of those
    /// that are adopted again. One that is [`ContainerState::Exited`] is only left to be removed.
    ///
    /// # Errors
    /// [`EngineError::Unavailable`] and [`EngineError::Timeout`].
    fn list(&mut self, label: &Label) -> Result<Vec<Container>, EngineError>;

    /// What a running container has used so far. Reads a few small files: microseconds.
    ///
    /// # Errors
    /// [`EngineError::NotFound`], also for a container on another machine.
    fn usage(&self, name: &str) -> Result<Usage, EngineError>;
}
