//! Where a running inco keeps its sockets and state.

use std::path::{Path, PathBuf};

/// `$INCO_RUN_DIR`, or `/run/inco`.
pub fn run_dir() -> PathBuf {
    match std::env::var_os("INCO_RUN_DIR") {
        Some(directory) if !directory.is_empty() => PathBuf::from(directory),
        _ => PathBuf::from("/run/inco"),
    }
}

/// A path of the configuration: relative ones are in the run directory.
pub fn in_run_dir(path: &Path) -> PathBuf {
    run_dir().join(path)
}

/// The API's socket: the one that is given, or the one in the run directory.
pub fn api_socket(given: Option<&Path>) -> PathBuf {
    in_run_dir(given.unwrap_or(Path::new("api.sock")))
}
