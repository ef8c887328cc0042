//! The run directory: sockets and state of a running inco.

use std::path::{Path, PathBuf};

/// `$INCO_RUN_DIR`, or `/run/inco`.
pub fn run_dir() -> PathBuf {
    match std::env::var_os("INCO_RUN_DIR") {
        Some(directory) if !directory.is_empty() => PathBuf::from(directory),
        _ => PathBuf::from("/run/inco"),
    }
}

/// Resolves a path of the configuration; relative paths are in the run directory.
pub fn in_run_dir(path: &Path) -> PathBuf {
    run_dir().join(path)
}

/// The API's socket: the given one, or the default in the run directory.
pub fn api_socket(given: Option<&Path>) -> PathBuf {
    in_run_dir(given.unwrap_or(Path::new("api.sock")))
}
