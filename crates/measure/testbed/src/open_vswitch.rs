//! An Open vSwitch of its own, so that it touches none of the machine's: a database and a switch with DPDK in a
//! directory beside inco's, which end with it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Debian's build with DPDK.
const SWITCH: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
/// How long a daemon may take to start.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);
/// Memory for DPDK's buffers, in MiB, from ordinary pages.
const MEMORY_MIB: u32 = 512;
/// How long its poller may sleep when nothing comes, in microseconds: the machine has other work.
const POLLER_SLEEP_US: u32 = 100;
/// How late its counters may be, in milliseconds: the least that it can do.
const COUNTERS_LAG_MS: u32 = 100;
/// How long an entry of its cache stays without a packet, in milliseconds: it goes over all of them after each change of rules.
const ENTRY_IDLE_MS: u32 = 1_000;

/// What it counts when it drops a packet on its way to a controller: between its datapath and the connection, and where too many
/// wait for the connection.
const CONTROLLER_DROPS: [&str; 2] = ["packet_in_overflow", "rconn_overflow"];

/// Lines of its log that an error quotes.
const LOG_LINES: usize = 4;

/// A running Open vSwitch.
#[derive(Debug)]
pub struct OpenVSwitch {
    folder: PathBuf,
    database: Option<Child>,
    switch: Mutex<Option<Child>>,
}

impl OpenVSwitch {
    /// Starts it in a folder of its own.
    ///
    /// # Errors
    /// Where it is not installed, or does not start.
    pub fn start(folder: PathBuf) -> Result<OpenVSwitch> {
        if !Path::new(SWITCH).exists() {
            bail!("there is no {SWITCH}: apt-get install openvswitch-switch-dpdk");
        }
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let mut of = OpenVSwitch {
            folder,
            database: None,
            switch: Mutex::new(None),
        };
        of.must(
            Command::new("ovsdb-tool")
                .arg("create")
                .arg(of.path("conf.db"))
                .arg(SCHEMA),
        )?;
        let socket = of.database();
        let mut database = Command::new("ovsdb-server");
        database
            .arg(format!("--remote=punix:{}", socket.display()))
            .arg(format!("--unixctl={}", of.path("db.ctl").display()))
            .arg("--log-file=/dev/null")
            .arg(of.path("conf.db"));
        of.database = Some(of.spawn(database)?);
        until("the database of Open vSwitch", || socket.exists())?;
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        of.must(
            of.vsctl()
                .args(["--no-wait", "init", "--", "set", "Open_vSwitch", "."])
                .arg("other_config:dpdk-init=true")
                .arg("other_config:dpdk-lcore-mask=0x1")
                .arg(format!("other_config:pmd-cpu-mask={:#x}", 1_u64 << (cpus - 1).min(63)))
                .arg(format!("other_config:pmd-maxsleep={POLLER_SLEEP_US}"))
                .arg(format!("other_config:max-revalidator={COUNTERS_LAG_MS}"))
                .arg(format!("other_config:max-idle={ENTRY_IDLE_MS}"))
                // Without `--legacy-mem` Open vSwitch adds an option that does not go with ordinary pages.
                .arg(format!(
                    "other_config:dpdk-extra=\"--no-pci --no-telemetry --legacy-mem --no-huge -m {MEMORY_MIB} --file-prefix=inco-demo-{}\"",
                    std::process::id()
                )),
        )?;
        of.start_switch()?;
        Ok(of)
    }

    /// Starts the switch, and waits until it answers.
    fn start_switch(&self) -> Result<()> {
        // A poller that waits for its turn delays every packet: it comes before what it serves. And in a network of its own:
        // its datapath has an interface of a fixed name, which another Open vSwitch of the machine may have.
        let mut switch = Command::new("unshare");
        switch
            .args(["--net", "nice", "-n", "-20", SWITCH])
            .arg(format!("unix:{}", self.database().display()))
            .arg(format!("--unixctl={}", self.path("switch.ctl").display()))
            .arg(format!("--log-file={}", self.path("switch.log").display()));
        *self.switch() = Some(self.spawn(switch)?);
        until("Open vSwitch", || self.check().is_err() || self.answers())?;
        self.check()
    }

    /// Fails where the switch has ended by itself.
    pub fn check(&self) -> Result<()> {
        match self.switch().as_mut().map(Child::try_wait) {
            Some(Ok(Some(status))) => bail!("Open vSwitch has ended ({status}): {}", self.last_words()),
            _ => Ok(()),
        }
    }

    /// The end of its log.
    fn last_words(&self) -> String {
        let log = std::fs::read_to_string(self.path("switch.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().rev().take(LOG_LINES).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    /// Whether it answers, and its DPDK has been set up: for a moment before that it answers, too.
    fn answers(&self) -> bool {
        let asked = Command::new("ovs-appctl")
            .arg(format!("--target={}", self.path("switch.ctl").display()))
            .arg("dpdk/log-list")
            .stdin(Stdio::null())
            .output();
        asked.is_ok_and(|output| output.status.success())
    }

    /// Kills the switch, its datapath and its ports with it, and starts it again; the database goes on. Gives when it was
    /// killed, and when the new one answered.
    ///
    /// # Errors
    /// Where it does not start again.
    pub fn kill_and_start(&self) -> Result<(Instant, Instant)> {
        end(&mut self.switch());
        let killed = Instant::now();
        self.start_switch()?;
        Ok((killed, Instant::now()))
    }

    /// How often it has dropped a packet that was to be sent to a controller, since it was started: by the name that its counter has in
    /// `ovs-appctl coverage/show`, which leaves out those that are 0.
    ///
    /// # Errors
    /// Where it does not answer.
    pub fn controller_drops(&self) -> Result<BTreeMap<&'static str, u64>> {
        let mut command = Command::new("ovs-appctl");
        command
            .arg(format!("--target={}", self.path("switch.ctl").display()))
            .arg("coverage/show");
        let said = self.must(&mut command)?;
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

    /// The socket on which a bridge of that name takes OpenFlow.
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

    /// Runs it, and gives what it says.
    fn must(&self, command: &mut Command) -> Result<String> {
        let output = command
            .env("OVS_RUNDIR", &self.folder)
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("cannot run {command:?}; apt-get install openvswitch-switch-dpdk"))?;
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

/// Kills it. One that has ended already is only waited for.
fn end(daemon: &mut Option<Child>) {
    if let Some(mut daemon) = daemon.take() {
        let _ended = daemon.kill();
        let _status = daemon.wait();
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) -> Result<()> {
    let start = Instant::now();
    while !is_so() {
        if start.elapsed() > PATIENCE {
            bail!("{what} is not there after {} s", PATIENCE.as_secs());
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}
