//! An Open vSwitch of the demo's own, so that it touches none of the machine's: a database and a switch with DPDK in a
//! directory beside the demo's, which end with it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
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

/// A running Open vSwitch.
#[derive(Debug)]
pub(super) struct OpenVSwitch {
    folder: PathBuf,
    daemons: Vec<Child>,
}

impl OpenVSwitch {
    /// Starts it in a folder of its own.
    ///
    /// # Errors
    /// Where it is not installed, or does not start.
    pub(super) fn start(folder: PathBuf) -> Result<OpenVSwitch> {
        if !Path::new(SWITCH).exists() {
            bail!("there is no {SWITCH}: apt-get install openvswitch-switch-dpdk");
        }
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let mut of = OpenVSwitch {
            folder,
            daemons: Vec::new(),
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
        of.spawn(database)?;
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
                // Without `--legacy-mem` Open vSwitch adds an option that does not go with ordinary pages.
                .arg(format!(
                    "other_config:dpdk-extra=\"--no-pci --no-telemetry --legacy-mem --no-huge -m {MEMORY_MIB} --file-prefix=inco-demo-{}\"",
                    std::process::id()
                )),
        )?;
        // A poller that waits for its turn delays every packet: it comes before what it serves.
        let mut switch = Command::new("nice");
        switch
            .args(["-n", "-20", SWITCH])
            .arg(format!("unix:{}", socket.display()))
            .arg(format!("--unixctl={}", of.path("switch.ctl").display()))
            .arg(format!("--log-file={}", of.path("switch.log").display()));
        of.spawn(switch)?;
        until("Open vSwitch", || of.path("switch.ctl").exists())?;
        Ok(of)
    }

    /// The database's socket.
    pub(super) fn database(&self) -> PathBuf {
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

    fn must(&self, command: &mut Command) -> Result<()> {
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
        Ok(())
    }

    fn spawn(&mut self, mut command: Command) -> Result<()> {
        let child = command
            .env("OVS_RUNDIR", &self.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {command:?}"))?;
        self.daemons.push(child);
        Ok(())
    }
}

impl Drop for OpenVSwitch {
    fn drop(&mut self) {
        for daemon in self.daemons.iter_mut().rev() {
            // One that has ended already is only waited for.
            let _ended = daemon.kill();
            let _status = daemon.wait();
        }
        let _none = std::fs::remove_dir_all(&self.folder);
    }
}

fn until(what: &str, is_so: impl Fn() -> bool) -> Result<()> {
    let start = Instant::now();
    while !is_so() {
        if start.elapsed() > PATIENCE {
            bail!("{what} is not there after {} s", PATIENCE.as_secs());
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}
