use std::io;
use std::path::PathBuf;

use aya::util::KernelVersion;
use thiserror::Error;

/// Why the driver cannot be had, or cannot go on.
#[derive(Debug, Error)]
pub enum EbpfError {
    /// The kernel is too old.
    #[error("the driver ebpf needs Linux {}.{} or newer, and this is {found}; use driver = \"soft\"", MINIMUM.0, MINIMUM.1)]
    Kernel {
        /// What runs here.
        found: String,
    },
    /// The file system for programs is missing.
    #[error("{}: {source}; mount it: mount -t bpf bpf /sys/fs/bpf", place.display())]
    FileSystem {
        /// Where it belongs.
        place: PathBuf,
        /// The system's word.
        source: io::Error,
    },
    /// The kernel refuses the programs.
    #[error("the kernel does not load the programs: {reason}")]
    Load {
        /// Why.
        reason: String,
    },
    /// A program cannot be attached.
    #[error("interface {interface}: {reason}")]
    Attach {
        /// Where.
        interface: String,
        /// Why.
        reason: String,
    },
    /// An interface cannot be made, or is not there.
    #[error(transparent)]
    Interface(#[from] interfaces::Error),
    /// A limit of the driver.
    #[error("{what}: {asked} is more than {limit}")]
    Limit {
        /// What there are too many of.
        what: &'static str,
        /// How many were asked for.
        asked: usize,
        /// How many there can be.
        limit: usize,
    },
    /// The system refuses something else.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Its word.
        source: io::Error,
    },
}

/// The oldest kernel on which the programs load.
pub const MINIMUM: (u8, u8) = (6, 1);

/// Whether this kernel is new enough.
///
/// # Errors
/// It is not.
pub(crate) fn check_kernel() -> Result<(), EbpfError> {
    let oldest = KernelVersion::new(MINIMUM.0, MINIMUM.1, 0);
    // One that does not say its version is tried.
    if KernelVersion::current().map_or(true, |runs| runs >= oldest) {
        return Ok(());
    }
    let found = rustix::system::uname().release().to_string_lossy().into_owned();
    Err(EbpfError::Kernel { found })
}

/// An error with its causes in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(of) = cause {
        let said = of.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = of.source();
    }
    text
}
