use std::path::{Path, PathBuf};

use thiserror::Error;

/// Why an image was not downloaded.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RegistryError {
    /// The text is no reference to an image.
    #[error(
        "{text:?} is no reference to an image in a registry: {reason}; write [HOST[:PORT]/]NAME[:TAG][@DIGEST]"
    )]
    BadReference {
        /// As it was given.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
    /// No connection, or none by TLS.
    #[error("{host} cannot be reached: {reason}")]
    Unreachable {
        /// The registry, or where it redirected to.
        host: String,
        /// What was seen, and what to do.
        reason: String,
    },
    /// It does not answer in time.
    #[error("{host} sent nothing for {seconds} s")]
    Silent {
        /// The registry, or where it redirected to.
        host: String,
        /// The limit.
        seconds: u64,
    },
    /// It sends, but would not end within days.
    #[error("{host} sends too slowly; try again later")]
    Slow {
        /// The registry, or where it redirected to.
        host: String,
    },
    /// The registry does not give this image to this client.
    #[error("{host} refuses {image}{}: {advice}", said.as_ref().map(|text| format!(" ({text})")).unwrap_or_default())]
    Denied {
        /// The registry.
        host: String,
        /// The image.
        image: String,
        /// The registry's own words.
        said: Option<String>,
        /// Which credentials were used, and what to do.
        advice: String,
    },
    /// Docker's configuration cannot be used.
    #[error("the credentials in {} cannot be used: {reason}", file.display())]
    Credentials {
        /// The file.
        file: PathBuf,
        /// What is wrong with it, and what to do.
        reason: String,
    },
    /// There is no such image.
    #[error("{host} has no image {image}: check its name and tag")]
    Missing {
        /// The registry.
        host: String,
        /// The image.
        image: String,
    },
    /// The registry has had enough requests of this client.
    #[error("{host} takes no more requests for now{}: try again later, or log in with `docker login`", said.as_ref().map(|text| format!(" ({text})")).unwrap_or_default())]
    TooManyRequests {
        /// The registry.
        host: String,
        /// The registry's own words.
        said: Option<String>,
    },
    /// An answer that no registry may give.
    #[error("{host} answered wrongly when asked for {what}: {reason}")]
    BadAnswer {
        /// The registry, or where it redirected to.
        host: String,
        /// What it was asked for.
        what: String,
        /// What is wrong with the answer.
        reason: String,
    },
    /// The connection broke in the middle.
    #[error("{host} sent {got} of {bytes} bytes of {what}, and the connection broke")]
    Truncated {
        /// The registry, or where it redirected to.
        host: String,
        /// What it was asked for.
        what: String,
        /// What arrived.
        got: u64,
        /// Its size.
        bytes: u64,
    },
    /// More than a limit.
    #[error("{image} is refused: {what} is {bytes} bytes, {limit} may be")]
    TooLarge {
        /// The image.
        image: String,
        /// What is too large.
        what: String,
        /// Its size, or what of it was read.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// What arrived is not what its name says.
    #[error("{what} from {host} has the digest {found}, and is named {expected}: it was damaged or replaced")]
    Digest {
        /// The registry, or where it redirected to.
        host: String,
        /// What it was asked for.
        what: String,
        /// Its name.
        expected: String,
        /// What was computed.
        found: String,
    },
    /// The image cannot run here.
    #[error("{image} cannot be used: {reason}")]
    Unusable {
        /// The image.
        image: String,
        /// Why.
        reason: String,
    },
    /// A system call failed.
    #[error("cannot {action} {}: {reason}", path.display())]
    Io {
        /// What was to be done.
        action: &'static str,
        /// To which file.
        path: PathBuf,
        /// The kernel's answer.
        reason: String,
    },
}

impl RegistryError {
    pub(crate) fn io(action: &'static str, path: &Path, error: &std::io::Error) -> RegistryError {
        RegistryError::Io {
            action,
            path: path.to_owned(),
            reason: error.to_string(),
        }
    }

    /// Whether the same request may succeed a moment later.
    pub(crate) fn is_transient(&self) -> bool {
        matches!(
            self,
            RegistryError::Unreachable { .. }
                | RegistryError::Silent { .. }
                | RegistryError::Truncated { .. }
        )
    }
}
