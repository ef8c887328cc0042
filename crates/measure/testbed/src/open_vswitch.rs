//! A private Open vSwitch that does not affect one of the machine: a database and a switch, with DPDK or with interfaces
//! of a namespace alone, in a directory next to inco's. Both end when it is dropped.

use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::network::{Namespace, Network};

/// Path of Debian's build with DPDK.
const SWITCH: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";
/// Its name as a program.
const PROGRAM: &str = "ovs-vswitchd";
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
/// Maximum time for a daemon to start.
const TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Memory for DPDK's buffers, in MiB, from ordinary pages. Open vSwitch asks for 262,144 packet buffers, and has 1.2 GB
/// resident with them. Where they do not fit it has no port at all, or takes fewer and leaves nothing for messages, so
/// that DPDK panics when peers reconnect.
const MEMORY_MIB: u32 = 2048;
/// Maximum sleep of its poller without packets, in microseconds: leaves CPU time for other processes.
const POLLER_SLEEP_US: u32 = 100;
/// Maximum age of its counters, in milliseconds: the smallest value that Open vSwitch accepts.
const COUNTERS_LAG_MS: u32 = 100;
/// Idle timeout of an entry of its cache, in milliseconds. Open vSwitch revalidates all entries after each change of
/// rules.
const ENTRY_IDLE_MS: u32 = 1_000;

/// Its counters of packets dropped on the way to a controller: between datapath and connection, and in the
/// connection's full queue.
const CONTROLLER_DROPS: [&str; 2] = ["packet_in_overflow", "rconn_overflow"];

/// Lines of its log quoted in an error.
const LOG_LINES: usize = 4;

/// A running Open vSwitch.
#[derive(Debug)]
pub struct OpenVSwitch {
    folder: PathBuf,
    /// Where its interfaces are, without DPDK.
    network: Option<Network>,
    database: Option<Child>,
    switch: Mutex<Option<Child>>,
}

impl OpenVSwitch {
    /// Whether it is installed; the error says what to do.
    ///
    /// # Errors
    /// Returns an error if it is missing.
    pub fn check_installed() -> Result<()> {
        match Path::new(SWITCH).exists() {
            true => Ok(()),
            false => bail!("{SWITCH} is not installed: run `apt-get install openvswitch-switch-dpdk`"),
        }
    }

    /// Starts it in `folder`.
    ///
    /// # Errors
    /// Returns an error if it is not installed or does not start.
    pub fn start(folder: PathBuf) -> Result<OpenVSwitch> {
        OpenVSwitch::check_installed()?;
        OpenVSwitch::start_with(folder, None)
    }

    /// Starts one without DPDK in `folder`, for bridges in userspace (`datapath_type=netdev`) with interfaces of a
    /// namespace.
    ///
    /// # Errors
    /// It is not installed or does not start.
    pub fn start_in(namespace: &Namespace, folder: PathBuf) -> Result<OpenVSwitch> {
        OpenVSwitch::start_with(folder, Some(namespace.network()))
    }

    fn start_with(folder: PathBuf, network: Option<Network>) -> Result<OpenVSwitch> {
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let mut of = OpenVSwitch {
            folder,
            network,
            database: None,
            switch: Mutex::new(None),
        };
        of.run_checked(
            Command::new("ovsdb-tool")
                .arg("create")
                .arg(of.path("conf.db"))
                .arg(SCHEMA),
        )?;
        let socket = of.database();
        let program = "ovsdb-server";
        let mut database = match &of.network {
            Some(network) => network.server(program),
            None => Command::new(program),
        };
        database
            .arg(format!("--remote=punix:{}", socket.display()))
            .arg(format!("--unixctl={}", of.path("db.ctl").display()))
            .arg("--log-file=/dev/null")
            .arg(of.path("conf.db"));
        of.database = Some(of.spawn(database)?);
        wait_until("the database of Open vSwitch", || {
            UnixStream::connect(&socket).is_ok()
        })?;
        if of.network.is_some() {
            of.configure(&["--no-wait", "init"])?;
            of.start_switch()?;
            return Ok(of);
        }
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        of.run_checked(
            of.vsctl()
                .args(["--no-wait", "init", "--", "set", "Open_vSwitch", "."])
                .arg("other_config:dpdk-init=true")
                .arg("other_config:dpdk-lcore-mask=0x1")
                .arg(format!("other_config:pmd-cpu-mask={:#x}", 1_u64 << (cpus - 1).min(63)))
                .arg(format!("other_config:pmd-maxsleep={POLLER_SLEEP_US}"))
                .arg(format!("other_config:max-revalidator={COUNTERS_LAG_MS}"))
                .arg(format!("other_config:max-idle={ENTRY_IDLE_MS}"))
                // Without `--legacy-mem` Open vSwitch adds an option that excludes ordinary pages.
                .arg(format!(
                    "other_config:dpdk-extra=\"--no-pci --no-telemetry --legacy-mem --no-huge -m {MEMORY_MIB} \
                     --file-prefix=inco-demo-{}\"",
                    std::process::id()
                )),
        )?;
        of.start_switch()?;
        Ok(of)
    }

    /// Starts the switch and waits until it answers.
    fn start_switch(&self) -> Result<()> {
        let mut switch = match &self.network {
            Some(network) => network.server(PROGRAM),
            None => {
                // Under this name inco finds its control socket: by its process id, next to the database.
                let program = self.path(PROGRAM);
                if !program.exists() {
                    std::os::unix::fs::symlink(SWITCH, &program)
                        .with_context(|| format!("cannot make {}", program.display()))?;
                }
                // A higher priority: a poller that waits for the CPU delays every packet. A network namespace of its
                // own: the datapath has an interface with a fixed name, which another Open vSwitch of the machine may
                // use.
                let mut command = Command::new("unshare");
                command.args(["--net", "nice", "-n", "-20"]).arg(program);
                command
            }
        };
        switch
            .arg(format!("unix:{}", self.database().display()))
            .arg("--pidfile")
            .arg(format!("--log-file={}", self.path("switch.log").display()));
        *self.switch() = Some(self.spawn(switch)?);
        wait_until("Open vSwitch", || self.check().is_err() || self.answers())?;
        self.check()
    }

    /// Returns an error if the switch has ended by itself.
    pub fn check(&self) -> Result<()> {
        match self.switch().as_mut().map(Child::try_wait) {
            Some(Ok(Some(status))) => bail!("Open vSwitch has ended ({status}): {}", self.log_tail()),
            _ => Ok(()),
        }
    }

    /// The last lines of its log.
    fn log_tail(&self) -> String {
        let log = std::fs::read_to_string(self.path("switch.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().rev().take(LOG_LINES).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    /// Runs `ovs-vsctl` with these arguments. Returns what it said.
    ///
    /// # Errors
    /// It refused them, or the switch did not follow.
    pub fn configure(&self, arguments: &[&str]) -> Result<String> {
        self.run_checked(self.vsctl().arg("--timeout=10").args(arguments))
    }

    /// Whether it answers and DPDK, if it has it, is initialised; it answers briefly before that too.
    fn answers(&self) -> bool {
        let asked = Command::new("ovs-appctl")
            .env("OVS_RUNDIR", &self.folder)
            .arg(format!("--target={PROGRAM}"))
            .arg(match self.network {
                Some(_) => "version",
                None => "dpdk/log-list",
            })
            .stdin(Stdio::null())
            .output();
        asked.is_ok_and(|output| output.status.success())
    }

    /// Kills the switch with its datapath and ports, and starts it again; the database keeps running. Returns the
    /// time of the kill and the time of the new switch's first answer.
    ///
    /// # Errors
    /// Returns an error if it does not start again.
    pub fn kill_and_start(&self) -> Result<(Instant, Instant)> {
        end(&mut self.switch());
        let killed = Instant::now();
        self.start_switch()?;
        Ok((killed, Instant::now()))
    }

    /// The process id of the switch, if it runs.
    pub fn process(&self) -> Option<u32> {
        self.switch().as_ref().map(Child::id)
    }

    /// Packets for a controller that it has dropped since its start, by the counter's name in `ovs-appctl
    /// coverage/show`. Counters at 0 are absent.
    ///
    /// # Errors
    /// Returns an error if it does not answer.
    pub fn controller_drops(&self) -> Result<BTreeMap<&'static str, u64>> {
        let mut command = Command::new("ovs-appctl");
        command.arg(format!("--target={PROGRAM}")).arg("coverage/show");
        let said = self.run_checked(&mut command)?;
        let total = |name: &str| {
            let line = said
                .lines()
                .find(|line| line.split_whitespace().next() == Some(name))?;
            line.rsplit_once("total:")?.1.trim().parse().ok()
        };
        Ok(CONTROLLER_DROPS
            .map(|name| (name, total(name).unwrap_or(0)))
            .into())
    }

    /// The OpenFlow socket of the bridge `bridge`.
    pub fn control(&self, bridge: &str) -> PathBuf {
        self.path(&format!("{bridge}.mgmt"))
    }

    fn switch(&self) -> MutexGuard<'_, Option<Child>> {
        self.switch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The database's socket.
    pub fn database(&self) -> PathBuf {
        self.path("db.sock")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn vsctl(&self) -> Command {
        let mut command = Command::new("ovs-vsctl");
        command.arg(format!("--db=unix:{}", self.database().display()));
        command
    }

    /// Runs a command and returns its output; an exit status other than 0 is an error.
    fn run_checked(&self, command: &mut Command) -> Result<String> {
        let output = command
            .env("OVS_RUNDIR", &self.folder)
            .stdin(Stdio::null())
            .output()
            .with_context(|| {
                format!("cannot run {command:?}; run `apt-get install openvswitch-switch-dpdk`")
            })?;
        if !output.status.success() {
            bail!(
                "{command:?} failed: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn spawn(&self, mut command: Command) -> Result<Child> {
        command
            .env("OVS_RUNDIR", &self.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {command:?}"))
    }
}

impl Drop for OpenVSwitch {
    fn drop(&mut self) {
        end(&mut self.switch());
        end(&mut self.database);
        let _none = std::fs::remove_dir_all(&self.folder);
    }
}

/// Kills the daemon and reaps it.
fn end(daemon: &mut Option<Child>) {
    if let Some(mut daemon) = daemon.take() {
        let _ended = daemon.kill();
        let _status = daemon.wait();
    }
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) -> Result<()> {
    let start = Instant::now();
    while !is_so() {
        if start.elapsed() > TIMEOUT {
            bail!("timed out after {} s: {what} does not exist", TIMEOUT.as_secs());
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}
