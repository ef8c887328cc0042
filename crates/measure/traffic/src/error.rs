use std::path::PathBuf;

use crate::lengths::MixtureProblem;

/// What can go wrong before or while traffic is sent. What happens to packets is not an error but a number in the
/// report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file that the profile needs.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The profile is not TOML, or has a key that does not exist.
    #[error("{0}")]
    Toml(Box<toml::de::Error>),
    /// A value of the profile that makes no sense.
    #[error("{key}: {write}")]
    Profile {
        /// Where, such as `phase[0].flows`.
        key: String,
        /// What to write instead.
        write: &'static str,
    },
    /// A frame that is too small for the test field, or too large.
    #[error(
        "size: {size} is not from {minimum} to {limit} bytes on the wire ({form:?} needs at least {minimum} for the test field)"
    )]
    FrameSize {
        /// What was asked for, in bytes on the wire.
        size: u16,
        /// The least that this form of packet can be.
        minimum: u16,
        /// The most.
        limit: u16,
        /// The form.
        form: Box<stamp::Form>,
    },
    /// An error of a phase or a capture.
    #[error("{source_name}[{index}].{error}")]
    Within {
        /// `phase` or `capture`.
        source_name: &'static str,
        /// Which, from 0.
        index: usize,
        /// What is wrong with it.
        error: Box<Error>,
    },
    /// A number with a unit that is not one.
    #[error("{value:?} is not a quantity such as {example}")]
    Unit {
        /// What was written.
        value: String,
        /// What it could be.
        example: &'static str,
    },
    /// A mixture of flow lengths that cannot be used.
    #[error("{}: {reason}", path.display())]
    Mixture {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: MixtureProblem,
    },
    /// A capture that cannot be read.
    #[error("{}: {source}", path.display())]
    Capture {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: packet::Error,
    },
    /// A capture without a frame that can be sent.
    #[error("{}: {reason}", path.display())]
    CaptureFrames {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The profile names more uplinks than there are ports.
    #[error("the profile uses uplink {needed}, but only {given} were given (counted from 0)")]
    Uplinks {
        /// Highest uplink in the profile.
        needed: usize,
        /// Ports that the generator was given.
        given: usize,
    },
    /// A frame is larger than its uplink takes.
    #[error("a frame of {frame_bytes} bytes does not fit uplink {uplink}, which takes up to {limit}")]
    UplinkFrame {
        /// Bytes in memory.
        frame_bytes: usize,
        /// Which uplink.
        uplink: usize,
        /// What it takes, in bytes.
        limit: usize,
    },
    /// The shared-memory port.
    #[error(transparent)]
    Memif(#[from] memif::Error),
    /// Nobody connected to the port's socket in time.
    #[error("no memif client came to {}", path.display())]
    NoClient {
        /// The socket.
        path: PathBuf,
    },
    /// A system call that must not fail.
    #[error("{doing}: {source}")]
    System {
        /// What was tried.
        doing: &'static str,
        /// Why not.
        source: std::io::Error,
    },
}

impl Error {
    pub(crate) fn within(self, source_name: &'static str, index: usize) -> Error {
        Error::Within {
            source_name,
            index,
            error: Box::new(self),
        }
    }
}
