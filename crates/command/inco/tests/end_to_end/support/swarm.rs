//! A manager of Docker's Swarm of a test's own, in a network of its own.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use rustix::process::Signal;

use super::{PATIENCE, available, eventually, text};

/// What a daemon's network has, before the daemon takes its place.
const NETWORK: &str = "ip link set lo up && ip link add e0 type bridge && ip address add 10.77.0.1/24 dev e0 && ip link set e0 \
                       up && exec dockerd \"$@\"";

/// `dockerd` with everything in one directory, as the only node. It removes what it has and ends when it is dropped.
pub(crate) struct SwarmManager {
    program: Child,
    host: String,
}

impl SwarmManager {
    /// Starts one; `None`, said or failed, where there is no `dockerd`.
    pub(crate) fn start(directory: &Path) -> Option<SwarmManager> {
        let version = Command::new("dockerd").arg("--version").output();
        if !available("docker", version.err().map(|error| format!("dockerd: {error}"))) {
            return None;
        }
        std::fs::create_dir_all(directory).unwrap();
        let path = |name: &str| directory.join(name).display().to_string();
        let host = format!("unix://{}", path("docker.sock"));
        let log = std::fs::File::create(path("log")).unwrap();
        let program = Command::new("setpriv")
            .args([
                "--pdeathsig",
                "TERM",
                "unshare",
                "--net",
                "sh",
                "-c",
                NETWORK,
                "sh",
            ])
            .args([
                "--data-root",
                &path("data"),
                "--exec-root",
                &path("exec"),
                "--pidfile",
                &path("pid"),
            ])
            .args(["--host", &host, "--bridge", "none", "--iptables=false"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let manager = SwarmManager { program, host };
        eventually("dockerd answers", PATIENCE, || {
            manager.docker(&["version"]).status.success().then_some(())
        });
        let made = manager.docker(&["swarm", "init", "--advertise-addr", "10.77.0.1"]);
        assert!(made.status.success(), "{}", text(&made.stderr));
        Some(manager)
    }

    /// Its table in a configuration.
    pub(crate) fn toml(&self) -> String {
        format!("[engine]\ndriver = \"swarm\"\nhost = \"{}\"\n", self.host)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        super::kill(self.program.id(), signal);
    }

    /// The services that there are, by their names.
    pub(crate) fn services(&self) -> Vec<String> {
        let listed = self.docker(&["service", "ls", "--format", "{{.Name}} {{.Replicas}}"]);
        text(&listed.stdout).lines().map(str::to_owned).collect()
    }

    fn docker(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new("docker");
        command.args(["--host", &self.host]).args(arguments);
        command.output().unwrap()
    }
}

impl Drop for SwarmManager {
    fn drop(&mut self) {
        // A test that failed may have stopped it, and its containers would outlive it.
        self.signal(Signal::CONT);
        self.docker(&["swarm", "leave", "--force"]);
        for id in text(&self.docker(&["ps", "--all", "--quiet"]).stdout).lines() {
            self.docker(&["rm", "--force", id]);
        }
        self.signal(Signal::TERM);
        let _ended = self.program.wait();
    }
}
