//! An Open vSwitch of a test's own: a database and a switch with DPDK, in a folder.

use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::{available, eventually};

/// Debian's build with DPDK.
const SWITCH: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";
/// The name by which it is known when it is installed, and by which its files are found.
const PROGRAM: &str = "ovs-vswitchd";
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
/// DPDK takes its time to start.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running Open vSwitch. Dropping it ends it.
pub(crate) struct Ovs {
    folder: tempfile::TempDir,
    database: Child,
    switch: Option<Child>,
    /// Whether it is in this machine's network, and not in one of its own.
    is_in_ours: bool,
}

impl Ovs {
    /// Whether it is installed; said or failed where not.
    pub(crate) fn is_here() -> bool {
        let missing = (!Path::new(SWITCH).exists()).then(|| format!("there is no {SWITCH}"));
        available("ovs", missing)
    }

    /// [`None`] where it is not installed.
    pub(crate) fn start() -> Option<Ovs> {
        Ovs::start_in(false)
    }

    /// The same in this machine's network: it has this machine's interfaces and listens at its addresses. No other
    /// Open vSwitch may run in it.
    pub(crate) fn start_here() -> Option<Ovs> {
        Ovs::start_in(true)
    }

    fn start_in(is_in_ours: bool) -> Option<Ovs> {
        if !Ovs::is_here() {
            return None;
        }
        let folder = tempfile::Builder::new().prefix("ovs-").tempdir().unwrap();
        let of = |name: &str| folder.path().join(name);
        symlink(SWITCH, of(PROGRAM)).unwrap();
        run(Command::new("ovsdb-tool")
            .arg("create")
            .arg(of("conf.db"))
            .arg(SCHEMA));
        let database = spawn(
            folder.path(),
            Command::new("ovsdb-server")
                .arg(format!("--remote=punix:{}", of("db.sock").display()))
                .arg(format!("--unixctl={}", of("db.ctl").display()))
                .arg("--log-file=/dev/null")
                // As Open vSwitch's own scripts start it: where else it listens, and its keys, are in the database.
                .args([
                    "--remote=db:Open_vSwitch,Open_vSwitch,manager_options",
                    "--private-key=db:Open_vSwitch,SSL,private_key",
                    "--certificate=db:Open_vSwitch,SSL,certificate",
                    "--ca-cert=db:Open_vSwitch,SSL,ca_cert",
                ])
                .arg(of("conf.db")),
        );
        eventually("the database listens", PATIENCE, || {
            UnixStream::connect(of("db.sock")).ok().map(drop)
        });
        let mut ovs = Ovs {
            folder,
            database,
            switch: None,
            is_in_ours,
        };
        // One CPU may have to do for all: the poller sleeps when nothing comes.
        let cpus = std::thread::available_parallelism().unwrap().get();
        let dpdk = format!(
            "other_config:dpdk-extra=\"--no-pci --no-telemetry --legacy-mem --no-huge -m 2048 \
             --file-prefix={}\"",
            ovs.folder.path().file_name().unwrap().display()
        );
        run(ovs.vsctl().args(["--no-wait", "init"]));
        run(ovs
            .vsctl()
            .args([
                "--no-wait",
                "set",
                "Open_vSwitch",
                ".",
                "other_config:dpdk-init=true",
            ])
            .args([
                "other_config:dpdk-lcore-mask=0x1",
                "other_config:max-revalidator=100",
            ])
            .args(["other_config:pmd-maxsleep=100", &dpdk])
            .arg(format!("other_config:pmd-cpu-mask={:#x}", 1_u64 << (cpus - 1))));
        ovs.start_switch();
        Some(ovs)
    }

    /// Starts the switch, or starts it again: as a service manager does.
    pub(crate) fn start_switch(&mut self) {
        // In a network of its own: its datapath has an interface of a fixed name, which another one of the machine
        // may have.
        let mut command = Command::new(if self.is_in_ours { "nice" } else { "unshare" });
        if !self.is_in_ours {
            command.args(["--net", "nice"]);
        }
        self.switch = Some(spawn(
            self.folder.path(),
            command
                .args(["-n", "-20"])
                .arg(self.of(PROGRAM))
                .arg(format!("unix:{}", self.of("db.sock").display()))
                .arg("--pidfile")
                .arg(format!("--log-file={}", self.of("vs.log").display())),
        ));
        let (folder, log) = (self.folder.path(), self.of("vs.log"));
        let switch = self.switch.as_mut().unwrap();
        eventually("the switch answers", PATIENCE, || {
            if let Some(status) = switch.try_wait().unwrap() {
                let log = std::fs::read_to_string(&log).unwrap_or_default();
                panic!("the switch has ended while it started, {status}:\n{log}");
            }
            let answers = Command::new("ovs-appctl")
                .env("OVS_RUNDIR", folder)
                .arg("version")
                .stderr(Stdio::null())
                .output()
                .unwrap();
            answers.status.success().then_some(())
        });
    }

    /// Kills the switch, its datapath and its ports with it; the database goes on.
    pub(crate) fn kill_switch(&mut self) {
        let mut switch = self.switch.take().unwrap();
        switch.kill().unwrap();
        switch.wait().unwrap();
    }

    /// The table `[switch]` of a configuration that uses it, up to `[switch.openflow]` and its keys.
    pub(crate) fn toml(&self) -> String {
        format!(
            "[switch]\ndriver = \"openflow\"\n[switch.openflow]\ndatabase = \"unix:{}\"\n",
            self.of("db.sock").display()
        )
    }

    /// Has the database listen at that port of this machine over TLS, with the keys of that directory.
    pub(crate) fn listen_over_tls(&self, port: u16, keys: &Path) {
        let of = |name: &str| keys.join(name).display().to_string();
        run(self
            .vsctl()
            .args([
                "--timeout=10",
                "set-ssl",
                &of("key.pem"),
                &of("cert.pem"),
                &of("ca.pem"),
            ])
            .args(["--", "set-manager", &format!("pssl:{port}:127.0.0.1")]));
    }

    /// Where its bridges are made to listen for OpenFlow, one a line.
    pub(crate) fn controllers(&self) -> String {
        let mut command = self.vsctl();
        command.args(["--timeout=10", "--bare", "--columns=target", "list", "Controller"]);
        super::text(&command.output().unwrap().stdout)
    }

    /// Sets a key of its `other_config`.
    pub(crate) fn set(&self, setting: &str) {
        run(self
            .vsctl()
            .args(["--timeout=10", "set", "Open_vSwitch", "."])
            .arg(format!("other_config:{setting}")));
    }

    /// From now on a bridge's first table takes so many rules at most, as a card's may.
    pub(crate) fn limit_rules(&self, bridge: &str, rules: usize) {
        run(self
            .vsctl()
            .args(["--timeout=10", "--id=@table", "create", "Flow_Table"])
            .arg(format!("flow_limit={rules}"))
            .args(["--", "set", "Bridge", bridge, "flow_tables:0=@table"]));
    }

    /// How many rules a bridge's first table has.
    pub(crate) fn rules(&self, bridge: &str) -> usize {
        let output = Command::new("ovs-ofctl")
            .args(["-O", "OpenFlow15", "--no-stats", "dump-flows"])
            .arg(format!("unix:{}", self.of(&format!("{bridge}.mgmt")).display()))
            .arg("table=0")
            .output()
            .unwrap();
        super::text(&output.stdout)
            .lines()
            .filter(|line| line.contains("priority="))
            .count()
    }

    /// What it has logged that is worse than news, but for ports that it tried to start while nobody listened at
    /// their socket yet, or any more: it tries again.
    pub(crate) fn complaints(&self) -> String {
        let log = std::fs::read_to_string(self.of("vs.log")).unwrap_or_default();
        complaints_of(&log)
    }

    /// Begins to watch its ports.
    pub(crate) fn watch_ports(&self) -> WatchedPorts {
        let changes = self.of("ports");
        let mut monitor = Command::new("ovsdb-client");
        monitor
            .args(["monitor", "--format=csv"])
            .arg(format!("unix:{}", self.of("db.sock").display()))
            .args(["Open_vSwitch", "Interface", "name,ofport"])
            .stdin(Stdio::null())
            .stdout(std::fs::File::create(&changes).unwrap())
            .stderr(Stdio::null());
        let monitor = monitor.spawn().unwrap();
        let first = eventually("the database tells of its ports", PATIENCE, || {
            let told = std::fs::read_to_string(&changes).unwrap();
            told.lines().any(|line| line.contains(".mon")).then_some(told)
        });
        let log = self.of("vs.log");
        let assignments = assignments(&log);
        WatchedPorts {
            monitor,
            changes,
            first,
            log,
            assignments,
        }
    }

    /// Its bridges, one a line.
    pub(crate) fn bridges(&self) -> String {
        let output = self.vsctl().args(["--timeout=10", "list-br"]).output().unwrap();
        super::text(&output.stdout)
    }

    fn vsctl(&self) -> Command {
        let mut command = Command::new("ovs-vsctl");
        command.arg(format!("--db=unix:{}", self.of("db.sock").display()));
        command
    }

    fn of(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

impl Drop for Ovs {
    fn drop(&mut self) {
        for child in self.switch.iter_mut().chain([&mut self.database]) {
            let _ended = child.kill();
            let _ended = child.wait();
        }
    }
}

/// As [`Ovs::complaints`]. A missing listener is three consecutive lines: DPDK's, and two of Open vSwitch,
/// which name the interface. Without the first one they are complaints, whatever their cause is.
fn complaints_of(log: &str) -> String {
    const NOBODY_LISTENS: &str = "memif_connect_client(): Failed to connect socket";
    const FOLLOWS: [&str; 2] = ["start error: Operation not permitted", "Failed to set interface"];
    let mut excused = 0;
    let mut bad = Vec::new();
    for line in log
        .lines()
        .filter(|line| line.contains("|ERR|") || line.contains("|EMER|"))
    {
        if line.contains(NOBODY_LISTENS) {
            excused = FOLLOWS.len();
        } else if excused > 0 && FOLLOWS.iter().any(|known| line.contains(known)) {
            excused -= 1;
        } else {
            bad.push(line);
        }
    }
    bad.join("\n")
}

#[test]
fn a_port_that_cannot_start_is_excused_by_its_cause_alone() {
    let cause = "1|dpdk|ERR|memif_connect_client(): Failed to connect socket: /x/port.sock.";
    let start = "2|netdev_dpdk|ERR|Interface br-inco.i1.0 start error: Operation not permitted";
    let set = "3|dpif_netdev|ERR|Failed to set interface br-inco.i1.0 new configuration";
    let news = "4|bridge|INFO|bridge br-inco: added interface br-inco.i1.0 on port 18";
    let log = |lines: &[&str]| lines.join("\n");
    assert_eq!(complaints_of(&log(&[cause, start, set, news])), "");
    assert_eq!(complaints_of(&log(&[start, set])), log(&[start, set]));
    assert_eq!(complaints_of(&log(&[cause, start, set, set])), set);
}

/// How often it has given its ports to its pollers, which stand still meanwhile.
fn assignments(log: &Path) -> usize {
    let log = std::fs::read_to_string(log).unwrap_or_default();
    log.lines()
        .filter(|line| line.contains("rx queue assignment"))
        .count()
}

/// The ports of a switch since a moment.
pub(crate) struct WatchedPorts {
    monitor: Child,
    changes: PathBuf,
    /// What the database told of them at first.
    first: String,
    log: PathBuf,
    assignments: usize,
}

impl WatchedPorts {
    /// No port has come, gone or changed its number since, also not for a while, and no poller has stood still for
    /// one.
    pub(crate) fn assert_as_before(&self) {
        let told = std::fs::read_to_string(&self.changes).unwrap();
        assert_eq!(told, self.first);
        assert!(self.assignments > 0, "the log does not tell of assignments");
        assert_eq!(assignments(&self.log), self.assignments);
    }
}

impl Drop for WatchedPorts {
    fn drop(&mut self) {
        let _ended = self.monitor.kill();
        let _ended = self.monitor.wait();
    }
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}",
        super::text(&output.stderr)
    );
}

fn spawn(folder: &Path, command: &mut Command) -> Child {
    command
        .env("OVS_RUNDIR", folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}
