//! A Docker engine of a test's own, which it may stop.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;

use super::{PATIENCE, available, eventually, kill, mounts_under};

/// `dockerd` with everything in one directory. It removes what it has and ends when it is dropped.
pub(crate) struct PrivateDockerd {
    directory: PathBuf,
    daemon: Option<Child>,
}

impl PrivateDockerd {
    /// Starts one; `None`, said or failed, where there is no `dockerd`.
    pub(crate) fn start(directory: &Path) -> Option<PrivateDockerd> {
        let is_there = Command::new("dockerd").arg("--version").output().is_ok();
        if !available("docker", (!is_there).then(|| "there is no dockerd".to_owned())) {
            return None;
        }
        std::fs::create_dir_all(directory).unwrap();
        let mut dockerd = PrivateDockerd {
            directory: directory.to_owned(),
            daemon: None,
        };
        dockerd.go_on();
        Some(dockerd)
    }

    /// For `host` in a configuration.
    pub(crate) fn host(&self) -> String {
        format!("unix://{}", self.directory.join("docker.sock").display())
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
            ])
            .args([
                path("data-root", "data"),
                path("exec-root", "exec"),
                path("pidfile", "pid"),
            ])
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
        let asked = Command::new("docker")
            .args(["--host", &self.host()])
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        asked.is_ok_and(|status| status.success())
    }
}

impl Drop for PrivateDockerd {
    fn drop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            // Where the test failed there may be some; otherwise there is nothing to remove.
            let listed = Command::new("docker")
                .args(["--host", &self.host(), "ps", "-aq"])
                .output();
            if let Ok(listed) = listed {
                let ids = super::text(&listed.stdout);
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
        // It mounts its data directory on itself, and leaves that.
        for target in mounts_under(&self.directory).into_iter().rev() {
            let _gone = rustix::mount::unmount(&target, rustix::mount::UnmountFlags::DETACH);
        }
    }
}
