//! Writes to standard output and error without a panic if they are closed.

use std::fmt;
use std::io::{self, Write as _};

use serde::Serialize;
use thiserror::Error;

/// The reader has closed the output. The program ends silently and successfully.
#[derive(Debug, Error)]
#[error("the output was closed")]
pub struct OutputClosed;

/// The command line or the configuration is invalid: exit status 2.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct WrongUsage(pub String);

/// The user pressed Ctrl-C or the process got SIGTERM: exit status 130.
#[derive(Debug, Error)]
#[error("interrupted; everything is stopped")]
pub struct Interrupted;

/// Writes text to standard output unchanged.
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

/// Writes a value as JSON: on several lines if `pretty`, otherwise on one.
pub fn json(value: &impl Serialize, pretty: bool) -> anyhow::Result<()> {
    let written = if pretty {
        serde_json::to_string_pretty(value)?
    } else {
        serde_json::to_string(value)?
    };
    line(written)
}

/// Writes a line to standard error; ignores errors.
pub fn complain(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Writes text over the last line of standard error, without an end of the line; ignores errors. For terminals.
pub fn rewrite(text: &str) {
    // To the first column, and clear what is there.
    let _ = write!(io::stderr().lock(), "\r\x1b[K{text}");
}

/// Text of others on one line, for a terminal: what a program in a container wrote must neither look like lines of ours
/// nor control the terminal.
pub fn plain(text: &str) -> String {
    text.replace(|c: char| c.is_control(), " ")
}

/// An error and its causes in one line. Omits a cause that ends the text already.
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
    fn text_of_others_stays_on_its_line() {
        assert_eq!(
            plain("it said: \u{1b}[2Jno\r\nservice web: fine\u{9b}1m"),
            "it said:  [2Jno  service web: fine 1m"
        );
    }

    #[test]
    fn a_cause_is_said_once() {
        let cause = io::Error::from(io::ErrorKind::NotFound);
        let own = anyhow!(cause).context("no listener: entity not found");
        assert_eq!(explain(&own), "no listener: entity not found");
        let own = Err::<(), _>(anyhow!("no room"))
            .context("cannot write")
            .unwrap_err();
        assert_eq!(explain(&own), "cannot write: no room");
    }
}
