use std::path::PathBuf;

use crate::lengths::MixtureProblem;

/// Errors before or while sending. Packet loss and the like are figures of the report, not errors.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Cannot read a file of the profile.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The profile is not TOML, or has an unknown key.
    #[error("{0}")]
    Toml(Box<toml::de::Error>),
    /// An invalid value in the profile.
    #[error("{key}: {write}")]
    Profile {
        /// The key, such as `phase[0].flows`.
        key: String,
        /// The correction.
        write: &'static str,
    },
    /// A frame too small for the test field, or too large.
    #[error(
        "size: {size} is not from {minimum} to {limit} bytes on the wire ({form:?} needs at least {minimum} for the \
         test field)"
    )]
    FrameSize {
        /// The requested size, in bytes on the wire.
        size: u16,
        /// The minimum for this packet format.
        minimum: u16,
        /// The maximum.
        limit: u16,
        /// The packet format.
        form: Box<stamp::Form>,
    },
    /// An error within a phase or capture.
    #[error("{source_name}[{index}].{error}")]
    Within {
        /// `phase` or `capture`.
        source_name: &'static str,
        /// Its index, from 0.
        index: usize,
        /// The error.
        error: Box<Error>,
    },
    /// An invalid quantity.
    #[error("{value:?} is not a quantity such as {example}")]
    Unit {
        /// The value.
        value: String,
        /// A valid example.
        example: &'static str,
    },
    /// An unusable mixture of flow lengths.
    #[error("{}: {reason}", path.display())]
    Mixture {
        /// The file.
        path: PathBuf,
        /// The problem.
        reason: MixtureProblem,
    },
    /// An unreadable capture.
    #[error("{}: {source}", path.display())]
    Capture {
        /// The file.
        path: PathBuf,
        /// The problem.
        source: packet::Error,
    },
    /// A capture without a frame that can be sent.
    #[error("{}: {reason}", path.display())]
    CaptureFrames {
        /// The file.
        path: PathBuf,
        /// The problem.
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
    /// A frame larger than its uplink can carry.
    #[error("a frame of {frame_bytes} bytes is too long for uplink {uplink}, whose limit is {limit} bytes")]
    UplinkFrame {
        /// Bytes in memory.
        frame_bytes: usize,
        /// The uplink.
        uplink: usize,
        /// Its limit, in bytes.
        limit: usize,
    },
    /// An error of the memif port.
    #[error(transparent)]
    Memif(#[from] memif::Error),
    /// No client connected to the port's socket in time.
    #[error("no memif client connected to {}", path.display())]
    NoClient {
        /// The socket.
        path: PathBuf,
    },
    /// A failed system call.
    #[error("{doing}: {source}")]
    System {
        /// The operation.
        doing: &'static str,
        /// The cause.
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
