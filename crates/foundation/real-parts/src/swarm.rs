//! A real swarm of Docker's on this machine, for tests.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::available;

/// The programs that have to be there.
const PROGRAMS: [&str; 5] = ["dockerd", "docker", "docker-proxy", "containerd", "setsid"];

/// A swarm whose nodes are network namespaces with a daemon of Docker's each. It ends with this value.
pub struct Swarm {
    folder: PathBuf,
}

/// Whether what a swarm needs is here.
pub fn has_swarm() -> bool {
    let is_there = |program: &&str| {
        let folders = std::env::var("PATH").unwrap_or_default();
        let mut folders = folders.split(':').chain(["/usr/sbin", "/sbin"]);
        folders.any(|folder| Path::new(folder).join(program).exists())
    };
    let missing = PROGRAMS.iter().find(|program| !is_there(program));
    let missing = missing.map(|program| format!("{program} is not installed: apt-get install docker.io"));
    // Its namespaces need it.
    let is_root =
        std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    available("root", (!is_root).then(|| "this is not run as root".to_owned())) && available("swarm", missing)
}

impl Swarm {
    /// Starts one with that many nodes, of which the first manages it, and with its state in a folder. Where a bridge of
    /// this network namespace is named, nodes are behind it, from 10.1.0.11 on, with the gateway 10.1.0.1.
    ///
    /// # Panics
    /// Where it does not start.
    pub fn start(folder: &Path, nodes: u8, bridge: Option<&str>) -> Swarm {
        let swarm = Swarm {
            folder: folder.to_owned(),
        };
        let count = nodes.to_string();
        let mut command = swarm.script("up");
        command.arg(count);
        if let Some(bridge) = bridge {
            command.env("BRIDGE", bridge);
        }
        run(command);
        swarm
    }

    /// The address of a node's Docker.
    pub fn host(&self, node: u8) -> String {
        format!("unix://{}/n{node}/docker.sock", self.folder.display())
    }

    /// Asks a node's Docker; what it writes.
    ///
    /// # Panics
    /// Where it refuses.
    pub fn docker(&self, node: u8, arguments: &[&str]) -> String {
        let mut command = Command::new("docker");
        command.args(["--host", &self.host(node)]).args(arguments);
        run(command)
    }

    /// A node loses its power.
    ///
    /// # Panics
    /// Where it is not there.
    pub fn kill(&self, node: u8) {
        self.with_node("kill", node);
    }

    /// Ends the daemon of a node, and leaves its containers.
    ///
    /// # Panics
    /// Where it does not run.
    pub fn stop_daemon(&self, node: u8) {
        self.with_node("stop", node);
    }

    /// Starts the daemon of a node again.
    ///
    /// # Panics
    /// Where it does not start.
    pub fn start_daemon(&self, node: u8) {
        self.with_node("start", node);
    }

    fn with_node(&self, verb: &str, node: u8) {
        let mut command = self.script(verb);
        command.arg(node.to_string());
        run(command);
    }

    fn script(&self, verb: &str) -> Command {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../scripts/swarm.sh");
        let mut command = Command::new(script);
        command.arg(verb).arg(&self.folder);
        command
    }
}

impl Drop for Swarm {
    fn drop(&mut self) {
        let _ended = self.script("down").output();
    }
}

/// Runs a command; what it writes.
fn run(mut command: Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
