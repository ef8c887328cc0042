use std::io;

use thiserror::Error;

/// Why an instance cannot be asked.
#[derive(Debug, Error)]
pub enum HealthError {
    /// The kernel does not tell what its program listens on.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel's answer is none that is known.
    #[error("the kernel's answer about sockets is not understood")]
    Answer,
}
