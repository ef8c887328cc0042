//! OVS-DPDK as a peer: one exact rule per flow, like an eSwitch with a rule for each flow, or a group that selects by
//! hash.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::contestant::{Contestant, KilledOnDrop, command_line};
use super::memory::Memory;
use super::traffic::{Ip, ends};

/// Path of Debian's build with DPDK.
pub(super) const PROGRAM: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
/// Maximum number of a capture's frames: OVS's pool has 262,144 mbufs.
pub(super) const FRAMES_LIMIT: usize = 200_000;
/// Maximum time for a daemon to start or to read a file of rules.
const TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum sleep of its poller between memif ports, in microseconds.
const POLLER_SLEEP_US: u32 = 100;
/// Slots of its memif rings as a power of two, as in `inco traffic`.
const MEMIF_LOG2_SLOTS: u8 = 12;
/// Maximum number of megaflows: more than any bench has flows.
const FLOW_LIMIT: usize = 1_000_000;

/// How OVS steers flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rules {
    /// One rule per flow; instances in turn.
    Exact,
    /// One rule with a group that selects the port by the flow's hash.
    Hash,
}

/// A running OVS with its database, in its own folder.
pub(super) struct Ovs {
    folder: PathBuf,
    daemon: KilledOnDrop,
    _database: KilledOnDrop,
    rules: Rules,
    commands: Vec<String>,
}

/// Whether it is installed.
pub(super) fn is_there() -> bool {
    Path::new(PROGRAM).exists()
}

/// A port of DPDK.
struct NewPort {
    name: String,
    number: u32,
    devargs: String,
    queues: u16,
}

impl NewPort {
    /// A memif port. In the role `client` the socket must exist already.
    fn memif(name: String, number: u32, role: &str, socket: &Path) -> NewPort {
        NewPort {
            devargs: format!(
                "net_memif{number},role={role},id=0,socket={},socket-abstract=no,rsize={MEMIF_LOG2_SLOTS}",
                socket.display()
            ),
            name,
            number,
            // One transmit queue for its poller and one for its main thread.
            queues: 2,
        }
    }
}

impl Ovs {
    /// Starts it with the capture as source and `instances` sinks; it forwards on CPU `cpu`.
    pub(super) fn start(
        folder: &Path,
        capture: &Path,
        (ip, flows): (Ip, u32),
        instances: u32,
        memory: &Memory,
        cpus: (usize, usize),
    ) -> Result<Ovs> {
        let mut ovs = Ovs::boot(folder, memory, cpus, None)?;
        for instance in 1..=instances {
            ovs.add_port(&NewPort {
                name: format!("i{instance}"),
                number: instance,
                devargs: format!("net_null{instance},no-rx=1"),
                queues: 1,
            })?;
        }
        ovs.add_rules(&exact_rules(flows_of(ip, flows), instances, "")?)?;
        // The source comes last, so that no packet arrives before the rules.
        ovs.add_port(&NewPort {
            name: "source".to_owned(),
            number: instances + 1,
            devargs: format!("net_pcap0,rx_pcap={},infinite_rx=1", capture.display()),
            queues: 1,
        })?;
        wait_until("OVS's source", || ovs.packets().is_ok_and(|packets| packets > 0))
            .with_context(|| ovs.log_tail())?;
        Ok(ovs)
    }

    /// Starts it between a memif uplink on which it listens and instances that listen on their sockets. One rule per
    /// flow steers to the instances in turn; another returns their packets to the uplink. Its poller sleeps without
    /// packets.
    pub(super) fn start_chain(
        folder: &Path,
        uplink: &Path,
        instances: &[PathBuf],
        flows: impl IntoIterator<Item = (SocketAddr, SocketAddr)>,
        memory: &Memory,
        cpus: (usize, usize),
    ) -> Result<Ovs> {
        let mut ovs = Ovs::boot(folder, memory, cpus, Some(POLLER_SLEEP_US))?;
        let count = instances.len() as u32;
        let number = count + 1;
        for (instance, socket) in (1..).zip(instances) {
            ovs.add_port(&NewPort::memif(
                format!("i{instance}"),
                instance,
                "client",
                socket,
            ))?;
        }
        ovs.add_port(&NewPort::memif("up".to_owned(), number, "server", uplink))?;
        let mut rules = exact_rules(flows, count, &format!("in_port={number},"))?;
        for instance in 1..=count {
            writeln!(rules, "in_port={instance},actions=output:{number}")?;
        }
        ovs.add_rules(&rules)?;
        wait_until("OVS's uplink", || uplink.exists()).with_context(|| ovs.log_tail())?;
        Ok(ovs)
    }

    /// Starts the database and the switch with a bridge without ports. `sleep_us` is the maximum sleep of its poller;
    /// without it, the poller never sleeps.
    fn boot(
        folder: &Path,
        memory: &Memory,
        (control, cpu): (usize, usize),
        sleep_us: Option<u32>,
    ) -> Result<Ovs> {
        let folder = folder.to_owned();
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let database = folder.join("conf.db");
        let socket = folder.join("db.sock");
        let mut commands = Vec::new();
        let mut create = Command::new("ovsdb-tool");
        create.arg("create").arg(&database).arg(SCHEMA);
        run(&folder, &mut commands, &mut create)?;
        let mut server = Command::new("ovsdb-server");
        server
            .arg(format!("--remote=punix:{}", socket.display()))
            .arg(format!("--unixctl={}", folder.join("db.ctl").display()))
            .arg("--log-file=/dev/null")
            .arg(&database);
        let server = spawn(&folder, &mut server)?;
        wait_until("the database of OVS", || socket.exists())?;
        let (memory_key, extra) = memory.ovs_options();
        let mut options = vec![
            "dpdk-init=true".to_owned(),
            format!("dpdk-lcore-mask={:#x}", 1_u64 << control),
            format!("pmd-cpu-mask={:#x}", 1_u64 << cpu),
            format!("flow-limit={FLOW_LIMIT}"),
            "smc-enable=true".to_owned(),
            format!(
                "dpdk-extra=\"--no-pci --no-telemetry {extra} --file-prefix=inco-bench-ovs-{}\"",
                std::process::id()
            ),
        ];
        options.extend(memory_key);
        options.extend(sleep_us.map(|us| format!("pmd-maxsleep={us}")));
        let mut set = vsctl(&folder);
        set.args(["--no-wait", "set", "Open_vSwitch", "."]);
        set.args(options.iter().map(|option| format!("other_config:{option}")));
        run(&folder, &mut commands, &mut set)?;
        let mut daemon = Command::new("unshare");
        // A network namespace of its own: the datapath has an interface with a fixed name, which another OVS of the
        // machine may use.
        daemon
            .args(["--net", PROGRAM])
            .arg(format!("unix:{}", socket.display()))
            .arg(format!("--unixctl={}", folder.join("vs.ctl").display()))
            .arg(format!("--log-file={}", folder.join("vs.log").display()));
        let daemon = spawn(&folder, &mut daemon)?;
        wait_until("OVS", || folder.join("vs.ctl").exists())?;
        let mut bridge = vsctl(&folder);
        bridge.args(["--timeout=60", "add-br", "br0", "--"]).args([
            "set",
            "bridge",
            "br0",
            "datapath_type=netdev",
            "fail-mode=secure",
        ]);
        let ovs = Ovs {
            folder,
            daemon,
            _database: server,
            rules: Rules::Exact,
            commands,
        };
        ovs.with(&mut bridge)
    }

    /// Runs a command that must succeed; returns `self`.
    fn with(mut self, command: &mut Command) -> Result<Ovs> {
        self.command(command)?;
        Ok(self)
    }

    fn command(&mut self, command: &mut Command) -> Result<()> {
        run(&self.folder, &mut self.commands, command).with_context(|| self.log_tail())
    }

    fn add_port(&mut self, port: &NewPort) -> Result<()> {
        let mut add = vsctl(&self.folder);
        add.args(["--timeout=60", "add-port", "br0", &port.name, "--"])
            .args([
                "set".to_owned(),
                "interface".to_owned(),
                port.name.clone(),
                "type=dpdk".to_owned(),
                format!("ofport_request={}", port.number),
                format!("options:n_rxq={}", port.queues),
                format!("options:dpdk-devargs=\"{}\"", port.devargs),
            ]);
        self.command(&mut add)
    }

    fn add_rules(&mut self, rules: &str) -> Result<()> {
        let file = self.folder.join("rules");
        std::fs::write(&file, rules).context("cannot write the rules")?;
        self.command(Command::new("ovs-ofctl").args(["add-flows", "br0"]).arg(&file))
    }

    /// The last lines of its log.
    fn log_tail(&self) -> String {
        let log = std::fs::read_to_string(self.folder.join("vs.log")).unwrap_or_default();
        let last: Vec<&str> = log
            .lines()
            .rev()
            .filter(|line| ["ERR", "WARN", "EMER"].iter().any(|word| line.contains(word)))
            .take(5)
            .collect();
        format!("OVS reports: {}", last.join(" | "))
    }

    /// Replaces the rules per flow by one group that selects by hash.
    pub(super) fn select_by_hash(&mut self, instances: u32) -> Result<()> {
        let buckets: String = (1..=instances).map(|i| format!(",bucket=output:{i}")).collect();
        let group = format!("group_id=1,type=select,selection_method=dp_hash{buckets}");
        for args in [
            vec!["-O", "OpenFlow15", "add-group", "br0", group.as_str()],
            vec!["-O", "OpenFlow15", "del-flows", "br0"],
            vec!["-O", "OpenFlow15", "add-flow", "br0", "actions=group:1"],
        ] {
            self.command(Command::new("ovs-ofctl").args(args))?;
        }
        self.rules = Rules::Hash;
        Ok(())
    }
}

impl Contestant for Ovs {
    fn name(&self) -> &'static str {
        match self.rules {
            Rules::Exact => "ovs-exact",
            Rules::Hash => "ovs-dp-hash",
        }
    }

    fn commands(&self) -> &[String] {
        &self.commands
    }

    fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    fn packets(&mut self) -> Result<u64> {
        let answer = ask(&self.folder.join("vs.ctl"), "dpif-netdev/pmd-stats-show")?;
        Ok(answer.lines().filter_map(received).sum())
    }
}

/// The number in a line such as `  packets received: 8129024`.
fn received(line: &str) -> Option<u64> {
    line.trim_start()
        .strip_prefix("packets received:")?
        .trim()
        .parse()
        .ok()
}

/// Source and destination of the bench's flows.
fn flows_of(ip: Ip, flows: u32) -> impl Iterator<Item = (SocketAddr, SocketAddr)> {
    (0..flows).map(move |flow| ends(ip, flow))
}

/// One rule per flow, with the instances in turn. `also` is an additional match.
fn exact_rules(
    flows: impl IntoIterator<Item = (SocketAddr, SocketAddr)>,
    instances: u32,
    also: &str,
) -> Result<String> {
    let mut rules = String::new();
    for ((src, dst), instance) in flows.into_iter().zip((0..instances).cycle()) {
        let (family, src_key, dst_key) = match src {
            SocketAddr::V4(_) => ("udp", "nw_src", "nw_dst"),
            SocketAddr::V6(_) => ("udp6", "ipv6_src", "ipv6_dst"),
        };
        writeln!(
            rules,
            "{family},{also}{src_key}={},{dst_key}={},tp_src={},tp_dst={},actions=output:{}",
            src.ip(),
            dst.ip(),
            src.port(),
            dst.port(),
            instance + 1
        )?;
    }
    Ok(rules)
}

/// `ovs-vsctl` for the database in that folder.
fn vsctl(folder: &Path) -> Command {
    let mut command = Command::new("ovs-vsctl");
    command.arg(format!("--db=unix:{}", folder.join("db.sock").display()));
    command
}

/// Runs a command to its end; appends it to `commands`.
fn run(folder: &Path, commands: &mut Vec<String>, command: &mut Command) -> Result<()> {
    commands.push(command_line(command));
    finish(folder, command)
}

fn spawn(folder: &Path, command: &mut Command) -> Result<KilledOnDrop> {
    let child = command
        .env("OVS_RUNDIR", folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| {
            format!(
                "cannot start {}; `scripts/setup.sh bench` installs it",
                command_line(command)
            )
        })?;
    Ok(KilledOnDrop::new(child))
}

fn finish(folder: &Path, command: &mut Command) -> Result<()> {
    let output = command
        .env("OVS_RUNDIR", folder)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {}", command_line(command)))?;
    if !output.status.success() {
        bail!(
            "{} failed: {}",
            command_line(command),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}

/// Waits for a condition of a started process.
pub(super) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) -> Result<()> {
    let start = Instant::now();
    while !is_so() {
        if start.elapsed() > TIMEOUT {
            bail!("timed out after {} s: {what} does not exist", TIMEOUT.as_secs());
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// Sends a request to an OVS daemon over its control socket (JSON-RPC).
fn ask(socket: &Path, method: &str) -> Result<String> {
    let of = || format!("OVS does not answer at {}", socket.display());
    let mut stream = UnixStream::connect(socket).with_context(of)?;
    stream.set_read_timeout(Some(TIMEOUT)).with_context(of)?;
    let request = serde_json::json!({ "id": 0, "method": method, "params": [] });
    stream
        .write_all(request.to_string().as_bytes())
        .with_context(of)?;
    let mut text = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let count = stream.read(&mut chunk).with_context(of)?;
        text.extend_from_slice(&chunk[..count]);
        match serde_json::from_slice::<serde_json::Value>(&text) {
            Ok(answer) => {
                let error = &answer["error"];
                let result = answer["result"].as_str();
                return result
                    .map(str::to_owned)
                    .with_context(|| format!("OVS refuses {method}: {error}"));
            }
            Err(error) if error.is_eof() && count > 0 => {}
            Err(error) => bail!("OVS's answer to {method} is not JSON: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read() {
        assert_eq!(received("  packets received: 8129024"), Some(8_129_024));
        assert_eq!(received("  packet recirculations: 1"), None);
    }

    #[test]
    fn each_flow_has_a_rule() {
        let rules = exact_rules(flows_of(Ip::V4, 3), 2, "").unwrap();
        assert_eq!(rules.lines().count(), 3);
        assert!(
            rules
                .lines()
                .next()
                .unwrap()
                .ends_with("tp_src=1024,tp_dst=80,actions=output:1"),
            "{rules}"
        );
    }
}
