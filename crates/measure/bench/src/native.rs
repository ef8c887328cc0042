//! Peers in C, compiled for this CPU when a bench starts.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context as _, Result, bail};

use super::contestant::{KilledOnDrop, command_line};

/// What programs that take turns include.
const TURNS: &str = include_str!("../native/turns.h");

/// Compiles `source` into the program `name` in `folder`, with the flags that pkg-config has for `library`.
///
/// # Errors
/// There is no C compiler, or no such library; `package` names what to install.
pub(super) fn compile(
    folder: &Path,
    name: &str,
    source: &str,
    library: &str,
    package: &str,
) -> Result<PathBuf> {
    let (file, program) = (folder.join(format!("{name}.c")), folder.join(name));
    for (file, text) in [(&file, source), (&folder.join("turns.h"), TURNS)] {
        std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    let flags = Command::new("pkg-config")
        .args(["--cflags", "--libs", library])
        .output()
        .context("cannot run pkg-config; `scripts/setup.sh bench` installs it")?;
    if !flags.status.success() {
        bail!("pkg-config finds no {library}; {package} has it");
    }
    let flags = String::from_utf8_lossy(&flags.stdout);
    let output = Command::new("cc")
        .args(["-O3", "-march=native", "-o"])
        .args([&program, &file])
        .args(flags.split_whitespace())
        .output()
        .context("cannot run cc; `scripts/setup.sh bench` installs it")?;
    if !output.status.success() {
        bail!("cc refuses {name}.c: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(program)
}

/// A running program that answers each line with numbers.
pub(super) struct Native {
    child: KilledOnDrop,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    commands: Vec<String>,
}

impl Native {
    /// Starts it.
    ///
    /// # Errors
    /// The program cannot be started.
    pub(super) fn start(mut command: Command) -> Result<Native> {
        let commands = vec![command_line(&command)];
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {}", commands.concat()))?;
        let input = child.stdin.take().context("a peer has no input")?;
        let output = BufReader::new(child.stdout.take().context("a peer has no output")?);
        Ok(Native {
            child: KilledOnDrop::new(child),
            input,
            output,
            commands,
        })
    }

    /// Sends a line and reads the two numbers that it answers.
    ///
    /// # Errors
    /// It has ended.
    pub(super) fn ask(&mut self, line: &str) -> Result<(u64, u64)> {
        let gone = || format!("a peer ended; it was started by: {}", self.commands.concat());
        writeln!(self.input, "{line}").with_context(gone)?;
        loop {
            let mut line = String::new();
            if self.output.read_line(&mut line).with_context(gone)? == 0 {
                bail!(gone());
            }
            // Lines printed by libraries come first.
            let numbers: Vec<u64> = line.split_whitespace().map_while(|n| n.parse().ok()).collect();
            if let [first, second] = numbers.as_slice() {
                return Ok((*first, *second));
            }
        }
    }

    /// Its process id.
    pub(super) fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// The command line that started it.
    pub(super) fn commands(&self) -> &[String] {
        &self.commands
    }
}
