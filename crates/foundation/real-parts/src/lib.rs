//! Which real parts this machine has for tests, and where they are. For tests alone: nothing that is built for users
//! depends on it.
//!
//! A test that needs a part which is missing says so and skips. `INCO_REQUIRE` lists the parts, with commas, whose
//! absence is a failure.
#![forbid(unsafe_code)]
#![allow(
    clippy::panic,
    clippy::print_stderr,
    reason = "a test fails by it, and says why it skips"
)]

use std::path::{Path, PathBuf};

/// Whether `INCO_REQUIRE` names the part.
pub fn is_required(part: &str) -> bool {
    std::env::var("INCO_REQUIRE").is_ok_and(|parts| parts.split(',').any(|word| word == part))
}

/// Whether a part may be tested here. `missing` says what is missing of it.
///
/// # Panics
/// Where it is required and something is missing: that is the failure of the test.
pub fn available(part: &str, missing: Option<String>) -> bool {
    let Some(missing) = missing else { return true };
    assert!(!is_required(part), "{part} is required, but {missing}");
    eprintln!("skipped: {part} is not tested, since {missing}");
    false
}

/// Where captures and traces are, if they are: the folder that `INCO_DATA` names, from the root of the workspace, or
/// `../shared/data`.
pub fn data_folder() -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let named = std::env::var_os("INCO_DATA");
    workspace.join(named.unwrap_or_else(|| "../shared/data".into()))
}

/// [`data_folder`], if there are captures in it.
///
/// # Panics
/// Where `data` is required and they are missing.
pub fn data() -> Option<PathBuf> {
    let folder = data_folder();
    let missing = (!folder.join("trex").is_dir())
        .then(|| format!("there are no captures in {}: set INCO_DATA", folder.display()));
    available("data", missing).then_some(folder)
}
