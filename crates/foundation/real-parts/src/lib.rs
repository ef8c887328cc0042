//! Which real parts this machine has for tests, and where they are. For tests alone: nothing that is built for users
//! depends on it.
//!
//! A test that needs a part which is missing says so and skips. `INCO_REQUIRE` lists the parts, with commas, whose
//! absence is a failure. `INCO_SKIPPED` names a file to which each skip adds a line: the part, a tab, what is missing.
#![forbid(unsafe_code)]
#![allow(
    clippy::panic,
    clippy::print_stderr,
    reason = "a test fails by it, and says why it skips"
)]

mod corpora;
mod downloads;
mod kubernetes;
mod namespaces;
mod swarm;
mod talks;

use std::io::Write as _;
use std::path::{Path, PathBuf};

pub use corpora::fuzz_inputs;
pub use downloads::{fetch, serve};
pub use kubernetes::{ApiServer, has_kubernetes, has_kubernetes_node};
pub use namespaces::{Namespace, run};
pub use swarm::{Swarm, has_swarm};
pub use talks::{echo, echoes, finds_a_narrow_path, opens_its_own, refuses};

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
    if let Some(file) = std::env::var_os("INCO_SKIPPED").filter(|name| !name.is_empty()) {
        let line = format!("{part}\t{missing}\n");
        let file = std::fs::OpenOptions::new().append(true).create(true).open(file);
        // One write, so that lines of tests that run beside each other stay whole.
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        assert!(written.is_ok(), "INCO_SKIPPED cannot be written: {written:?}");
    }
    false
}

/// Whether tests take the size that docs/promises.md states, instead of a short one: `INCO_FULL_LENGTH` is set.
pub fn is_full_length() -> bool {
    std::env::var_os("INCO_FULL_LENGTH").is_some()
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
