//! The launcher as a program of its own, for the tests of this crate: `inco` runs itself instead. With the argument
//! `clean-up` it leaves a file that says so.

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    if std::env::args_os()
        .nth(1)
        .is_some_and(|argument| argument == "clean-up")
    {
        let run_dir = std::env::var_os("INCO_RUN_DIR")
            .map(PathBuf::from)
            .unwrap_or_default();
        return match std::fs::write(run_dir.join("cleaned-up"), "") {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    }
    match engine::launcher::main() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}
