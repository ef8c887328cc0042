//! Runs containers: creates, pauses, limits, stops, removes and lists them, and reports when one has ended. It is
//! independent of services, flows and policies, and makes no decisions: the controller does.
//!
//! Key types: [`Engine`] (the contract), [`ContainerSpec`] (what to run), [`Request`] and [`EngineEvent`] (its
//! messages), [`EngineError`]. Implementations: [`OciEngine`] (embedded, with a [`Launcher`]), [`DockerEngine`]
//! (Docker or Podman), [`SwarmEngine`] (a swarm of Docker's on several machines),
//! [`KubernetesEngine`] (Pods of a Kubernetes cluster), [`PlacesEngine`] (the engines of several places as one) and [`FakeEngine`] (deterministic, for
//! the simulation).
//!
//! The life of a container:
//! 1. [`Request::Create`] creates it and starts its program; [`EngineEvent::Created`] reports that the program runs.
//!    A failed create leaves nothing behind.
//! 2. It may be paused, resumed, given another CPU quota, and commands may run in it, any number of times.
//! 3. [`Request::Stop`] ends its program, or the program ends by itself: [`EngineEvent::Exited`], once.
//! 4. [`Request::Remove`] kills it if it still runs, and removes its processes, cgroup, mounts and files.
//!
//! Dropping an engine leaves its containers running; the next one finds them with [`Engine::list`].

// UNSAFETY: the launcher forks and unshares, for which std has no safe function; tokio takes a pidfd only by an
// unsafe call. Each is allowed where it stands.

mod attended;
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
#[cfg(any(feature = "docker", feature = "kubernetes"))]
mod fate;
mod front;
mod function;
#[cfg(feature = "docker")]
mod holder;
mod host_files;
pub mod image;
mod kubernetes_config;
pub mod launcher;
mod layers;
#[cfg(any(feature = "docker", feature = "kubernetes"))]
mod link;
pub mod logs;
mod none;
mod oci;
mod places;
#[cfg(feature = "kubernetes")]
mod pod;
#[cfg(feature = "kubernetes")]
mod pods;
#[cfg(not(feature = "kubernetes"))]
#[path = "pods_left_out.rs"]
mod pods;
mod port;
mod program;
mod seccomp;
mod stage;
#[cfg(feature = "docker")]
mod swarm;
#[cfg(not(feature = "docker"))]
#[path = "swarm_left_out.rs"]
mod swarm;
mod unpack;
mod users;
mod wire;

pub use attended::AttendedLauncher;
pub use container::{
    Container, ContainerSpec, ContainerState, CpuQuota, Exchange, Exit, ImageRef, Label, MAX_NAME_BYTES,
    OPEN_FILES, PIDS_LIMIT, Task, TaskAsk, Usage,
};
pub use docker::{DockerEngine, import_into_docker};
pub use docker_config::{DEFAULT_HOST, DockerConfig};
pub use error::EngineError;
pub use fake::{FakeConfig, FakeEngine, Faults, Latency};
pub use function::{Given, SYS};
pub use kubernetes_config::KubernetesConfig;
pub use launcher::{Launcher, LauncherCommand};
pub use none::NoEngine;
pub use oci::{OciConfig, OciEngine, functions_in_use};
pub use places::PlacesEngine;
pub use pods::KubernetesEngine;
pub use program::Program;
pub use swarm::SwarmEngine;
pub use unpack::{LeftOut, Owner};

use std::fmt;
use std::net::SocketAddr;

use model::Nanos;

/// A request id of the caller; the answer carries the same one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// Requests without an answer that an engine accepts; one more fails with [`EngineError::Busy`].
pub const MAX_REQUESTS: usize = 1024;

/// Bytes of a program's output that [`EngineEvent::Exited`] carries.
pub const MAX_OUTPUT_BYTES: usize = 2048;

/// Bytes that are kept of a command's output: the first part. The rest is dropped.
pub const MAX_COMMAND_OUTPUT_BYTES: usize = 64 * 1024;

/// A request about one container.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Create the container and start its program. Answered by [`EngineEvent::Created`].
    Create(Box<ContainerSpec>),
    /// Freeze all processes of the container.
    Pause {
        /// The container.
        name: String,
    },
    /// Thaw a paused container.
    Resume {
        /// The container.
        name: String,
    },
    /// Set or lift its CPU quota.
    SetQuota {
        /// The container.
        name: String,
        /// The quota; `None` lifts it.
        quota: Option<CpuQuota>,
    },
    /// End the program by the stop signal of its image, which is SIGTERM unless the image names another one, and kill
    /// it after `grace`. Done when it has ended, at once if it already had. A
    /// paused container is resumed first.
    Stop {
        /// The container.
        name: String,
        /// Time between that signal and SIGKILL; zero kills at once.
        grace: Nanos,
    },
    /// Kill its processes and remove the container. Done at once if there is no such container.
    Remove {
        /// The container.
        name: String,
    },
    /// Run a command beside its program, with the same confinement and environment and without input. Done if it
    /// exits with 0; failed otherwise, or if it is killed after `limit`. It runs concurrently with other requests and
    /// ends with the container's program.
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
    /// The container's name.
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

    /// The verb in errors and logs.
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

/// A command whose output the caller gets. It runs as [`Request::Exec`] does.
pub struct Execution {
    /// The container.
    pub name: String,
    /// Program and arguments, a few KiB at most.
    pub command: Vec<String>,
    /// How long it may take; it is killed then.
    pub limit: Nanos,
    /// Called with the result, on a thread of the engine: it must not block. Dropped if the engine has ended.
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
    /// Exit status or signal.
    pub exit: Exit,
    /// The first [`MAX_COMMAND_OUTPUT_BYTES`] that it wrote to its standard output and error.
    pub output: Vec<u8>,
}

impl Executed {
    /// The answer to [`Request::Exec`]: an error unless the command exited with 0.
    ///
    /// # Errors
    /// [`EngineError::Command`].
    pub fn verdict(&self, name: &str) -> Result<(), EngineError> {
        if self.exit.status == Some(0) {
            return Ok(());
        }
        let skipped = self.output.len().saturating_sub(MAX_OUTPUT_BYTES);
        let output = String::from_utf8_lossy(self.output.get(skipped..).unwrap_or_default());
        Err(self.exit.failed_command(name, &output))
    }
}

/// An answer or a notification. Every request has exactly one answer: `Created`, `Done` or `Failed`. Times are
/// `CLOCK_MONOTONIC` (for the fake: the times given to it).
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
        /// Where its program is reached over the network, if an orchestrator placed it.
        address: Option<SocketAddr>,
        /// When the program ran.
        at: Nanos,
        /// Time from the request to `at`.
        took: Nanos,
    },
    /// The answer to a successful request other than a create.
    Done {
        /// The request's.
        ticket: Ticket,
        /// When.
        at: Nanos,
        /// Time from the request to `at`.
        took: Nanos,
    },
    /// The answer to a failed request.
    Failed {
        /// The request's.
        ticket: Ticket,
        /// Why.
        error: EngineError,
        /// When.
        at: Nanos,
    },
    /// A container's program has ended: by itself, by a signal, or by a stop or removal. Sent once per container,
    /// before the `Done` of the stop or removal.
    Exited {
        /// The container.
        name: String,
        /// Exit status or signal, as far as known.
        exit: Exit,
        /// The end of its standard output and error, up to [`MAX_OUTPUT_BYTES`]; empty if unknown.
        output: String,
        /// When the engine noticed it.
        at: Nanos,
    },
    /// The engine does not answer. Until [`EngineEvent::EngineUp`] requests that need it fail at once with
    /// [`EngineError::Unavailable`]. Containers run on; on this machine their ends are still reported.
    EngineDown {
        /// The place whose engine it is, of a [`PlacesEngine`].
        place: Option<String>,
        /// What was seen.
        reason: String,
        /// When.
        at: Nanos,
    },
    /// The engine answers again. Containers may have ended meanwhile: [`Engine::list`] returns their states.
    EngineUp {
        /// The place whose engine it is, of a [`PlacesEngine`].
        place: Option<String>,
        /// When.
        at: Nanos,
        /// Duration of the outage.
        after: Nanos,
    },
}

/// What an engine need not be able to do with a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// [`Request::Pause`] and [`Request::Resume`].
    pub pause: bool,
    /// [`Request::SetQuota`].
    pub quota: bool,
    /// [`Request::Exec`] and [`Engine::execute`].
    pub commands: bool,
    /// [`Engine::usage`].
    pub usage: bool,
}

impl Abilities {
    /// All of them.
    pub const ALL: Abilities = Abilities {
        pause: true,
        quota: true,
        commands: true,
        usage: true,
    };
}

/// The contract of an engine. [`submit`](Engine::submit), [`execute`](Engine::execute) and [`poll`](Engine::poll)
/// never block, so that a loop of 1 ms can call them: threads of the engine do the work, several creates at once.
/// Requests for one container are served in the order of submission, except [`Request::Exec`].
pub trait Engine: Send {
    /// Its name in tables and labels: `oci`, `docker`, `swarm`, `kubernetes`, `fake`.
    fn driver(&self) -> &'static str;

    /// Whether its containers run on this machine, so that memif sockets can be shared with them.
    fn is_local(&self) -> bool;

    /// What it can do beyond creating, stopping, removing and listing. What it lacks it refuses, with
    /// [`EngineError::Unsupported`].
    fn abilities(&self) -> Abilities {
        Abilities::ALL
    }

    /// Submits a request. [`poll`](Engine::poll) returns its answer.
    fn submit(&mut self, ticket: Ticket, request: Request);

    /// Runs a command in a container. As [`submit`](Engine::submit), it never blocks.
    fn execute(&mut self, execution: Execution);

    /// Appends the events since the last call, oldest first.
    fn poll(&mut self, events: &mut Vec<EngineEvent>);

    /// The containers with this label, by name, including those of an earlier run. From this call on their ends are
    /// reported. May block for up to 5 s. Of a [`PlacesEngine`], those at places whose engine has reported that it does
    /// not answer are left out.
    ///
    /// A run that was killed during a pause may have left a container without its quota: set the quotas of adopted
    /// containers again. One in the state [`ContainerState::Exited`] can only be removed.
    ///
    /// # Errors
    /// [`EngineError::Unavailable`] and [`EngineError::Timeout`].
    fn list(&mut self, label: &Label) -> Result<Vec<Container>, EngineError>;

    /// The resources that a running container has used. Reads a few small files: microseconds.
    ///
    /// # Errors
    /// [`EngineError::NotFound`], also for a container on another machine.
    fn usage(&self, name: &str) -> Result<Usage, EngineError>;
}
