//! Writes to standard output and error without panicking where nobody reads.

use std::fmt;
use std::io::{self, Write as _};

use serde::Serialize;
use thiserror::Error;

/// Nobody reads our output any more: there is nothing to tell, and nothing went wrong.
#[derive(Debug, Error)]
#[error("the output was closed")]
pub struct OutputClosed;

/// The command or the configuration is wrong: exit status 2.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct WrongUsage(pub String);

/// Somebody pressed Ctrl-C, or asked for the end by SIGTERM: exit status 130.
#[derive(Debug, Error)]
#[error("interrupted; nothing is left running")]
pub struct Interrupted;

/// Writes text to standard output as it is.
pub fn text(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(OutputClosed.into()),
        other => Ok(other?),
    }
}

/// Writes a line to standard output.
pub fn line(line: impl fmt::Display) -> anyhow::Result<()> {
    text(&format!("{line}\n"))
}

/// Writes a value as JSON: on several lines to a person, on one to a program.
pub fn json(value: &impl Serialize, pretty: bool) -> anyhow::Result<()> {
    let written = if pretty {
        serde_json::to_string_pretty(value)?
    } else {
        serde_json::to_string(value)?
    };
    line(written)
}

/// Writes a line to standard error, if anybody reads it.
pub fn complain(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// An error and its causes in one line. Many errors end with their cause already: it is not said twice.
pub fn explain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Whether standard output is a terminal.
pub fn is_terminal() -> bool {
    std::io::IsTerminal::is_terminal(&io::stdout())
}

#[cfg(test)]
mod tests {
    use anyhow::{Context as _, anyhow};

    use super::*;

    #[test]
    fn a_cause_is_said_once() {
        let cause = io::Error::from(io::ErrorKind::NotFound);
        let own = anyhow!(cause).context("nobody listens: entity not found");
        assert_eq!(explain(&own), "nobody listens: entity not found");
        let own = Err::<(), _>(anyhow!("no room"))
            .context("cannot write")
            .unwrap_err();
        assert_eq!(explain(&own), "cannot write: no room");
    }
}
