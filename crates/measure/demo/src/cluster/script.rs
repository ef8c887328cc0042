//! A script of the project's tests that starts machines of an orchestrator, as a part of this program.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use testbed::network::Network;

/// The verb that ends what a script started.
const DOWN: &str = "down";

/// What a script started in a folder. Dropping it ends all of it, and so does the end of this process, whatever ends it.
pub(super) struct Started {
    script: &'static str,
    folder: PathBuf,
    /// Where the script runs; [`None`]: in the network of this process.
    network: Option<Network>,
    environment: Vec<(&'static str, String)>,
}

impl Started {
    /// A script with its folder and its environment, of which nothing runs yet.
    ///
    /// # Errors
    /// There is no bash, or no `setsid`.
    pub(super) fn new(
        script: &'static str,
        folder: &Path,
        network: Option<Network>,
        environment: Vec<(&'static str, String)>,
    ) -> Result<Started> {
        let started = Started {
            script,
            folder: folder.to_owned(),
            network,
            environment,
        };
        let ends = "tail --pid=\"$1\" -f /dev/null; exec bash -c \"$2\" script down \"$3\"";
        let arguments = ["-c", ends, "script", &std::process::id().to_string(), script];
        started
            .command("setsid")
            .arg("bash")
            .args(arguments)
            .arg(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start what ends the machines")?;
        Ok(started)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = match &self.network {
            Some(network) => network.command(program),
            None => Command::new(program),
        };
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs the script with a verb, the folder and these arguments.
    ///
    /// # Errors
    /// It fails: with what it said.
    pub(super) fn run(&self, verb: &str, arguments: &[&str]) -> Result<()> {
        let mut command = self.command("bash");
        command
            .args(["-c", self.script, "script", verb])
            .arg(&self.folder)
            .args(arguments);
        if verb == DOWN {
            // Ctrl-C is for the demo, which ends all of it.
            command.process_group(0);
        }
        // The command line has the whole script: no use in an error.
        let ended = command.stdin(Stdio::null()).output().context("cannot run bash")?;
        if !ended.status.success() {
            let said = String::from_utf8_lossy(&ended.stderr);
            bail!("{verb} of the machines: {}: {}", ended.status, said.trim());
        }
        Ok(())
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // What is not ended now ends with this process.
        let _ = self.run(DOWN, &[]);
    }
}
