//! A Docker engine of a test's own, which it may stop.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use engine::cgroup::{Cgroup, Hierarchy, Version};
use rustix::process::Signal;

use super::{PATIENCE, available, eventually, free_port, kill, mounts_under};

/// `dockerd` with everything in one directory. It removes what it has and ends when it is dropped.
pub(crate) struct PrivateDockerd {
    directory: PathBuf,
    /// Where its containers are.
    group: Cgroup,
    daemon: Option<Child>,
    remote: Option<Remote>,
}

/// How one is reached that is only reached over TLS, as from another machine.
struct Remote {
    port: u16,
    /// The keys of the daemon, and those of who asks it.
    server: PathBuf,
    client: PathBuf,
}

impl PrivateDockerd {
    /// Starts one; `None`, said or failed, where there is no `dockerd`.
    pub(crate) fn start(directory: &Path) -> Option<PrivateDockerd> {
        PrivateDockerd::start_as(directory, None)
    }

    /// The same, which listens at an address of this machine alone, for those with keys of its authority.
    pub(crate) fn start_over_tls(
        directory: &Path,
        server: PathBuf,
        client: PathBuf,
    ) -> Option<PrivateDockerd> {
        let remote = Remote {
            port: free_port(),
            server,
            client,
        };
        PrivateDockerd::start_as(directory, Some(remote))
    }

    fn start_as(directory: &Path, remote: Option<Remote>) -> Option<PrivateDockerd> {
        let is_there = Command::new("dockerd").arg("--version").output().is_ok();
        if !available("docker", (!is_there).then(|| "there is no dockerd".to_owned())) {
            return None;
        }
        std::fs::create_dir_all(directory).unwrap();
        let mut dockerd = PrivateDockerd {
            directory: directory.to_owned(),
            group: make_group(),
            daemon: None,
            remote,
        };
        dockerd.go_on();
        Some(dockerd)
    }

    /// For `host` in a configuration.
    pub(crate) fn host(&self) -> String {
        match &self.remote {
            Some(remote) => format!("tcp://127.0.0.1:{}", remote.port),
            None => format!("unix://{}", self.directory.join("docker.sock").display()),
        }
    }

    /// Ends the daemon; its containers go on.
    pub(crate) fn pause(&mut self) {
        let mut daemon = self.daemon.take().unwrap();
        kill(daemon.id(), Signal::TERM);
        daemon.wait().unwrap();
    }

    /// Starts it, for the first time or again.
    pub(crate) fn go_on(&mut self) {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.directory.join("log"))
            .unwrap();
        let path = |option: &str, name: &str| format!("--{option}={}", self.directory.join(name).display());
        let daemon = Command::new("dockerd")
            .args([
                "--iptables=false",
                "--ip6tables=false",
                "--bridge=none",
                "--live-restore",
                "--exec-opt=native.cgroupdriver=cgroupfs",
            ])
            .arg(format!("--cgroup-parent=/{}", self.group.path()))
            .args([
                path("data-root", "data"),
                path("exec-root", "exec"),
                path("pidfile", "pid"),
            ])
            .args(self.remote.iter().flat_map(|remote| tls(&remote.server)))
            .arg(format!("--host={}", self.host()))
            .stdin(Stdio::null())
            .stdout(Stdio::from(log.try_clone().unwrap()))
            .stderr(Stdio::from(log))
            .spawn()
            .unwrap();
        self.daemon = Some(daemon);
        eventually("the Docker engine answers", PATIENCE, || {
            let ended = self.daemon.as_mut().unwrap().try_wait().unwrap();
            let log = || std::fs::read_to_string(self.directory.join("log")).unwrap_or_default();
            assert!(ended.is_none(), "dockerd ended: {}", log());
            self.docker(&["version"]).then_some(())
        });
    }

    fn docker(&self, arguments: &[&str]) -> bool {
        self.output(arguments).is_some()
    }

    /// What `docker` says of it; [`None`] where it fails.
    pub(crate) fn output(&self, arguments: &[&str]) -> Option<String> {
        let asked = Command::new("docker")
            .args(["--host", &self.host()])
            .args(self.remote.iter().flat_map(|remote| tls(&remote.client)))
            .args(arguments)
            .output()
            .ok()?;
        asked.status.success().then(|| super::text(&asked.stdout))
    }
}

/// A control group for the containers of a daemon, with the weight that inco gives its own. All containers of a daemon
/// otherwise have the weight of one program together, and beside a build wait for more than a second for a CPU: inco
/// then takes them for stalled.
fn make_group() -> Cgroup {
    static MADE: AtomicUsize = AtomicUsize::new(0);
    let root = Path::new("/sys/fs/cgroup");
    let hierarchy = Hierarchy::at(root).unwrap();
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    let name = format!("test-dockerd-{}-{number}", std::process::id());
    let tree = match hierarchy.version() {
        Version::V1 => root.join("cpu"),
        Version::V2 => root.to_owned(),
    };
    std::fs::create_dir(tree.join(&name)).unwrap();
    let group = hierarchy.group(&name);
    group.raise_weight();
    group
}

/// Options by which `docker` and `dockerd` show the keys of a directory, and want to see some of their authority.
fn tls(keys: &Path) -> [String; 4] {
    let option = |name: &str, file: &str| format!("--{name}={}", keys.join(file).display());
    [
        "--tlsverify".to_owned(),
        option("tlscacert", "ca.pem"),
        option("tlscert", "cert.pem"),
        option("tlskey", "key.pem"),
    ]
}

impl Drop for PrivateDockerd {
    fn drop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            // Where the test failed there may be some; otherwise there is nothing to remove.
            if let Some(ids) = self.output(&["ps", "-aq"]) {
                let ids: Vec<&str> = ids.split_whitespace().collect();
                if !ids.is_empty() {
                    let mut all = vec!["rm", "-f"];
                    all.extend(ids);
                    self.docker(&all);
                }
            }
            if let Some(pid) = i32::try_from(daemon.id())
                .ok()
                .and_then(rustix::process::Pid::from_raw)
            {
                let _gone = rustix::process::kill_process(pid, Signal::TERM);
            }
            let _status = daemon.wait();
        }
        let _gone = self.group.remove();
        // It mounts its data directory on itself, and leaves that.
        for target in mounts_under(&self.directory).into_iter().rev() {
            let _gone = rustix::mount::unmount(&target, rustix::mount::UnmountFlags::DETACH);
        }
    }
}
