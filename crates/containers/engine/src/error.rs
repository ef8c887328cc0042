use std::path::{Path, PathBuf};

use model::Nanos;
use rustix::io::Errno;
use thiserror::Error;

use crate::OPEN_FILES;

/// An error of an engine.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum EngineError {
    /// No container of that name.
    #[error("there is no container {name}")]
    NotFound {
        /// The name asked for.
        name: String,
    },
    /// A container of that name exists.
    #[error("a container {name} exists already")]
    NameTaken {
        /// The name asked for.
        name: String,
    },
    /// The name is invalid.
    #[error(
        "{name:?} cannot name a container: it takes up to 128 of a-z, A-Z, 0-9, '.', '_' and '-', and starts with \"inco-\""
    )]
    BadName {
        /// The name asked for.
        name: String,
    },
    /// No image of that name.
    #[error(
        "there is no image {image}: get it by `inco image pull {image}`, `inco image import` or `inco image build`; `inco image list` shows those that are there"
    )]
    ImageMissing {
        /// The image asked for.
        image: String,
    },
    /// Neither Docker nor our store has an image of that name.
    #[error(
        "Docker has no image {image}: get it by `docker pull {image}`, `docker load` or `docker build --tag {image}`"
    )]
    NotInDocker {
        /// The image asked for.
        image: String,
    },
    /// The node that was to run it has no image of that name, and did not get it.
    #[error(
        "a node has no image {image}, and did not get it from a registry ({reason}): put it into a registry, or \
         load it on each node"
    )]
    NotAtNodes {
        /// The image asked for.
        image: String,
        /// The orchestrator's words.
        reason: String,
    },
    /// This engine cannot do that with any container.
    #[error("the engine {driver} cannot {verb} {name}: {driver} has no such request")]
    Unsupported {
        /// The engine.
        driver: &'static str,
        /// What it was asked.
        verb: &'static str,
        /// The container.
        name: String,
    },
    /// The source of an import is no image, or an invalid one.
    #[error("cannot import {}: {reason}", path.display())]
    BadImage {
        /// The archive or folder.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        reason: String,
    },
    /// An imported image has no entrypoint: a root file system names none.
    #[error("which program it runs is not said")]
    NoProgram,
    /// The specification is invalid.
    #[error("the container cannot have {what}: {reason}")]
    BadSpec {
        /// Which part of the specification.
        what: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A function of a card cannot be given to a container.
    #[error("{what}: {write}")]
    NoFunction {
        /// Which one, and what is the matter.
        what: String,
        /// What to do.
        write: String,
    },
    /// The container has ended and cannot be paused, resumed or limited.
    #[error("container {name} has ended")]
    NotRunning {
        /// The container.
        name: String,
    },
    /// The container's program did not start.
    #[error("container {name} did not start: {reason}")]
    Start {
        /// The container.
        name: String,
        /// The runtime's words.
        reason: String,
    },
    /// A command that ran in the container did not exit with 0.
    #[error("the command in {name} {reason}")]
    Command {
        /// The container.
        name: String,
        /// How it ended: `exited with 1`.
        reason: String,
    },
    /// This program was built without that engine.
    #[error("this inco was built without the {engine} engine; `make build` makes one with it")]
    LeftOut {
        /// Which one.
        engine: &'static str,
    },
    /// The engine does not answer.
    #[error("the container engine does not answer: {reason}")]
    Unavailable {
        /// What was seen.
        reason: String,
    },
    /// The engine answered with an error that has no variant of its own.
    #[error("the container engine could not {verb} {name}: {reason}")]
    Refused {
        /// What it was asked.
        verb: &'static str,
        /// The container.
        name: String,
        /// The engine's words.
        reason: String,
    },
    /// The request exceeded its time limit.
    #[error("could not {verb} {name} within {} ms", after.as_millis())]
    Timeout {
        /// What was asked.
        verb: &'static str,
        /// The container.
        name: String,
        /// The limit.
        after: Nanos,
    },
    /// More requests in hand than the limit.
    #[error("the engine has {limit} requests in hand and takes no more")]
    Busy {
        /// [`MAX_REQUESTS`](crate::MAX_REQUESTS).
        limit: usize,
    },
    /// The limit of open files is too low for containers.
    #[error(
        "the hard limit of open files is {hard}, and a container gets {OPEN_FILES}: run `ulimit -Hn {OPEN_FILES}` before inco, or write LimitNOFILE={OPEN_FILES} in its unit"
    )]
    FewOpenFiles {
        /// The limit.
        hard: u64,
    },
    /// The request needs root.
    #[error("{what} takes root: run inco as root")]
    NeedsRoot {
        /// What was to be done.
        what: &'static str,
    },
    /// A system call failed.
    #[error("cannot {action} {}: {errno}", path.display())]
    Io {
        /// What was to be done.
        action: &'static str,
        /// To which file.
        path: PathBuf,
        /// The kernel's answer.
        errno: Errno,
    },
}

impl EngineError {
    /// Whether a retry of the same request may succeed.
    pub const fn is_transient(&self) -> bool {
        matches!(
            self,
            EngineError::Unavailable { .. } | EngineError::Timeout { .. } | EngineError::Busy { .. }
        )
    }

    /// Converts an error of the standard library.
    pub fn io(action: &'static str, path: &Path, error: &std::io::Error) -> EngineError {
        let errno = error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error);
        EngineError::Io {
            action,
            path: path.to_path_buf(),
            errno,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_what_where_and_why() {
        let error = EngineError::io(
            "read",
            Path::new("/nowhere"),
            &std::fs::read("/nowhere-at-all").unwrap_err(),
        );
        assert_eq!(
            error.to_string(),
            "cannot read /nowhere: No such file or directory (os error 2)"
        );
        let timeout = EngineError::Timeout {
            verb: "pause",
            name: "inco-a-1".into(),
            after: Nanos::from_millis(2_000),
        };
        assert_eq!(timeout.to_string(), "could not pause inco-a-1 within 2000 ms");
        assert!(timeout.is_transient());
        assert!(!error.is_transient());
    }
}
