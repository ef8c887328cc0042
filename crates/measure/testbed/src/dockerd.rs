//! A private Docker engine that does not affect one of the machine: everything is in one directory, and its
//! containers are in a control group of its own. It can be killed and started again; its containers go on meanwhile.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use engine::cgroup::{Cgroup, Hierarchy, ROOT, Version};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};

/// Maximum time until it answers.
const START_LIMIT: Duration = Duration::from_secs(30);
/// Maximum time to end after SIGTERM.
const STOP_LIMIT: Duration = Duration::from_secs(15);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Where it listens and how it is asked.
#[derive(Clone, Debug, Default)]
pub struct DockerdAccess {
    /// Its address, as in a configuration; empty: a socket in its directory.
    pub host: String,
    /// Further options of `dockerd`: its keys.
    pub daemon: Vec<String>,
    /// Further options of `docker`: the keys of who asks.
    pub client: Vec<String>,
}

/// A running `dockerd`. Dropping it removes its containers and ends it.
#[derive(Debug)]
pub struct Dockerd {
    directory: PathBuf,
    /// The parent of its containers' control groups.
    group: Cgroup,
    daemon: Option<Child>,
    access: DockerdAccess,
}

impl Dockerd {
    /// Whether `dockerd` and `docker` are installed; the error says what to do.
    ///
    /// # Errors
    /// Returns an error if one of them is missing.
    pub fn check_installed() -> Result<()> {
        for program in ["dockerd", "docker"] {
            if Command::new(program).arg("--version").output().is_err() {
                bail!("{program} is not installed: run `apt-get install docker.io`");
            }
        }
        Ok(())
    }

    /// Starts it in `directory`, with containers in the control group `group`.
    ///
    /// # Errors
    /// Returns an error with the end of its log if it does not answer.
    pub fn start(directory: &Path, group: &str, access: DockerdAccess) -> Result<Dockerd> {
        Dockerd::check_installed()?;
        fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
        let mut access = access;
        if access.host.is_empty() {
            access.host = format!("unix://{}", directory.join("docker.sock").display());
        }
        let mut dockerd = Dockerd {
            directory: directory.to_owned(),
            group: make_group(group)?,
            daemon: None,
            access,
        };
        dockerd.go_on()?;
        Ok(dockerd)
    }

    /// Its address, as in a configuration.
    pub fn host(&self) -> &str {
        &self.access.host
    }

    /// The process id of the daemon, if it runs.
    pub fn process(&self) -> Option<u32> {
        self.daemon.as_ref().map(Child::id)
    }

    /// The parent of its containers' control groups.
    pub fn group(&self) -> &Cgroup {
        &self.group
    }

    /// Ends the daemon in order; its containers go on.
    ///
    /// # Errors
    /// Returns an error if it does not end in time; it is killed then.
    pub fn pause(&mut self) -> Result<()> {
        self.signal(Signal::TERM);
        let since = Instant::now();
        while let Some(daemon) = &mut self.daemon {
            if daemon.try_wait().context("cannot wait for dockerd")?.is_some() {
                self.daemon = None;
            } else if since.elapsed() > STOP_LIMIT {
                self.kill();
                bail!("dockerd did not end within {} s", STOP_LIMIT.as_secs());
            } else {
                std::thread::sleep(POLL_INTERVAL);
            }
        }
        Ok(())
    }

    /// Kills the daemon with its containerd; its containers go on.
    pub fn kill(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _ended = daemon.kill();
            let _status = daemon.wait();
        }
        // It does not end with dockerd for certain, and the next dockerd does not start beside one that is ending.
        let file = self.directory.join("exec/containerd/containerd.pid");
        if let Some(pid) = fs::read_to_string(&file)
            .ok()
            .and_then(|text| text.trim().parse().ok())
        {
            let name = || fs::read_to_string(format!("/proc/{pid}/comm"));
            let since = Instant::now();
            while name().is_ok_and(|name| name.trim() == "containerd") && since.elapsed() < STOP_LIMIT {
                send(pid, Signal::KILL);
                std::thread::sleep(POLL_INTERVAL);
            }
            let _removed = fs::remove_file(&file);
        }
    }

    /// Sends a signal to the daemon, if it runs.
    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = self.process() {
            send(pid, signal);
        }
    }

    /// Starts the daemon, for the first time or again, and waits until it answers.
    ///
    /// # Errors
    /// Returns an error with the end of its log if it does not answer.
    pub fn go_on(&mut self) -> Result<()> {
        let log = self.directory.join("log");
        let open = || File::options().create(true).append(true).open(&log);
        let outputs = open().and_then(|out| Ok((out, open()?)));
        let (out, err) = outputs.with_context(|| format!("cannot write {}", log.display()))?;
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
            .args(&self.access.daemon)
            .arg(format!("--host={}", self.access.host))
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .spawn()
            .context("cannot start dockerd")?;
        self.daemon = Some(daemon);
        let since = Instant::now();
        while self.output(&["version"]).is_none() {
            let ended = self.daemon.as_mut().map(Child::try_wait);
            if matches!(ended, Some(Ok(Some(_)))) || since.elapsed() > START_LIMIT {
                let log = fs::read_to_string(&log).unwrap_or_default();
                let last: Vec<&str> = log.lines().rev().take(4).collect();
                bail!(
                    "dockerd does not answer: {}",
                    last.into_iter().rev().collect::<Vec<_>>().join("\n")
                );
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// The output of `docker` with these arguments; [`None`] if it fails.
    pub fn output(&self, arguments: &[&str]) -> Option<String> {
        let asked = Command::new("docker")
            .args(["--host", &self.access.host])
            .args(&self.access.client)
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .ok()?;
        asked
            .status
            .success()
            .then(|| String::from_utf8_lossy(&asked.stdout).into_owned())
    }
}

/// Sends a signal to a process, unless it has ended.
fn send(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _gone = kill_process(pid, signal);
    }
}

/// Containers of a daemon at most, in a test.
const PROGRAMS: usize = 16;

/// A control group for the containers of a daemon, with the weight of one program for each. All containers of a
/// daemon otherwise have the weight of one program together, and beside a build wait for more than a second for a CPU: inco
/// then takes them for stalled.
fn make_group(name: &str) -> Result<Cgroup> {
    let hierarchy = Hierarchy::at(ROOT)?;
    let tree = match hierarchy.version() {
        Version::V1 => Path::new(ROOT).join("cpu"),
        Version::V2 => PathBuf::from(ROOT),
    };
    let directory = tree.join(name);
    fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
    let group = hierarchy.group(name);
    group.weigh(PROGRAMS);
    Ok(group)
}

impl Drop for Dockerd {
    fn drop(&mut self) {
        // There are containers only if somebody has failed to remove them.
        let ids = self.output(&["ps", "-aq"]).unwrap_or_default();
        let ids: Vec<&str> = ids.split_whitespace().collect();
        if !ids.is_empty() {
            let _removed = self.output(&[&["rm", "-f"], ids.as_slice()].concat());
        }
        let _ended = self.pause();
        let _removed = self.group.remove();
        // It mounts its data directory on itself, and leaves that.
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let targets = mounts.lines().filter_map(|line| line.split_whitespace().nth(4));
        let mut targets: Vec<&str> = targets
            .filter(|at| Path::new(at).starts_with(&self.directory))
            .collect();
        while let Some(target) = targets.pop() {
            let _gone = unmount(target, UnmountFlags::DETACH);
        }
    }
}
