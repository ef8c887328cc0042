//! The launcher as a program of its own, for the tests of this crate: `inco` runs itself instead.

use std::process::ExitCode;

fn main() -> ExitCode {
    match engine::launcher::main() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}
