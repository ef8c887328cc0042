//! OVS-DPDK as a peer: one exact rule for each flow, which is what an eSwitch does that is told of each flow, or a group
//! that selects by hash.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::contestant::{Contestant, Killed, shown};
use super::memory::Memory;
use super::traffic::{Ip, ends};

/// Debian's build with DPDK.
pub(super) const PROGRAM: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
/// Mbufs of OVS's pool that a capture may take: the pool has 262,144.
pub(super) const FRAMES_LIMIT: usize = 200_000;
/// How long a daemon may take to start, and to take a file of rules.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);
/// Megaflows that it may have: more than any bench has flows.
const FLOW_LIMIT: usize = 1_000_000;

/// How flows get to instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rules {
    /// A rule for each flow, in turn to each instance.
    Exact,
    /// One rule, whose group selects a port by the flow's hash.
    Hash,
}

/// A running OVS with its database, in a folder of its own.
pub(super) struct Ovs {
    folder: PathBuf,
    daemon: Killed,
    _database: Killed,
    rules: Rules,
    commands: Vec<String>,
}

/// Whether it is installed.
pub(super) fn is_there() -> bool {
    Path::new(PROGRAM).exists()
}

impl Ovs {
    /// Starts it with the capture as source and `instances` sinks; it forwards on that CPU.
    pub(super) fn start(
        folder: &Path,
        capture: &Path,
        flows: (Ip, u32),
        instances: u32,
        memory: &Memory,
        (control, cpu): (usize, usize),
    ) -> Result<Ovs> {
        let folder = folder.to_owned();
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let mut commands = Vec::new();
        let mut run = |command: &mut Command| -> Result<()> {
            commands.push(shown(command));
            finish(&folder, command)
        };
        let database = folder.join("conf.db");
        let socket = folder.join("db.sock");
        run(Command::new("ovsdb-tool")
            .arg("create")
            .arg(&database)
            .arg(SCHEMA))?;
        let mut server = Command::new("ovsdb-server");
        server
            .arg(format!("--remote=punix:{}", socket.display()))
            .arg(format!("--unixctl={}", folder.join("db.ctl").display()))
            .arg("--log-file=/dev/null")
            .arg(&database);
        let server = spawn(&folder, &mut server)?;
        until("the database of OVS", || socket.exists())?;
        let vsctl = || {
            let mut command = Command::new("ovs-vsctl");
            command.arg(format!("--db=unix:{}", socket.display()));
            command
        };
        run(vsctl()
            .args([
                "--no-wait",
                "set",
                "Open_vSwitch",
                ".",
                "other_config:dpdk-init=true",
            ])
            .args([
                format!("other_config:dpdk-lcore-mask={:#x}", 1_u64 << control),
                format!("other_config:pmd-cpu-mask={:#x}", 1_u64 << cpu),
                format!("other_config:dpdk-socket-mem={}", Memory::ovs_mib()),
                format!("other_config:flow-limit={FLOW_LIMIT}"),
                "other_config:smc-enable=true".to_owned(),
                format!(
                    "other_config:dpdk-extra=\"--no-pci --no-telemetry {} --file-prefix=inco-bench-ovs-{}\"",
                    memory.kind(),
                    std::process::id()
                ),
            ]))?;
        let mut daemon = Command::new(PROGRAM);
        daemon
            .arg(format!("unix:{}", socket.display()))
            .arg(format!("--unixctl={}", folder.join("vs.ctl").display()))
            .arg(format!("--log-file={}", folder.join("vs.log").display()));
        let daemon = spawn(&folder, &mut daemon)?;
        until("OVS", || folder.join("vs.ctl").exists())?;
        run(vsctl().args(["--timeout=30", "add-br", "br0", "--"]).args([
            "set",
            "bridge",
            "br0",
            "datapath_type=netdev",
            "fail-mode=secure",
        ]))?;
        for instance in 1..=instances {
            let name = format!("i{instance}");
            run(vsctl()
                .args(["--timeout=30", "add-port", "br0", &name, "--"])
                .args([
                    "set".to_owned(),
                    "interface".to_owned(),
                    name.clone(),
                    "type=dpdk".to_owned(),
                    format!("ofport_request={instance}"),
                    format!("options:dpdk-devargs=net_null{instance},no-rx=1"),
                ]))?;
        }
        let mut ovs = Ovs {
            folder: folder.clone(),
            daemon,
            _database: server,
            rules: Rules::Exact,
            commands: Vec::new(),
        };
        let rules = folder.join("rules");
        std::fs::write(&rules, exact_rules(flows, instances)?).context("cannot write the rules")?;
        run(Command::new("ovs-ofctl").args(["add-flows", "br0"]).arg(&rules))?;
        // The source comes last: no packet meets a bridge without rules.
        run(vsctl()
            .args(["--timeout=60", "add-port", "br0", "source", "--"])
            .args([
                "set".to_owned(),
                "interface".to_owned(),
                "source".to_owned(),
                "type=dpdk".to_owned(),
                format!("ofport_request={}", instances + 1),
                format!(
                    "options:dpdk-devargs=net_pcap0,rx_pcap={},infinite_rx=1",
                    capture.display()
                ),
            ]))?;
        ovs.commands = commands;
        until("OVS's source", || ovs.packets().is_ok_and(|packets| packets > 0)).with_context(|| {
            let log = std::fs::read_to_string(folder.join("vs.log")).unwrap_or_default();
            let last: Vec<&str> = log
                .lines()
                .rev()
                .filter(|line| line.contains("ERR") || line.contains("WARN"))
                .take(5)
                .collect();
            format!("OVS says: {}", last.join(" | "))
        })?;
        Ok(ovs)
    }

    /// Gives all flows to a group that selects by hash, instead of a rule each.
    pub(super) fn select_by_hash(&mut self, instances: u32) -> Result<()> {
        let buckets: String = (1..=instances).map(|i| format!(",bucket=output:{i}")).collect();
        let group = format!("group_id=1,type=select,selection_method=dp_hash{buckets}");
        for args in [
            vec!["-O", "OpenFlow15", "add-group", "br0", group.as_str()],
            vec!["-O", "OpenFlow15", "del-flows", "br0"],
            vec!["-O", "OpenFlow15", "add-flow", "br0", "actions=group:1"],
        ] {
            let mut command = Command::new("ovs-ofctl");
            command.args(args);
            self.commands.push(shown(&command));
            finish(&self.folder, &mut command)?;
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

/// The count of a line such as `  packets received: 8129024`.
fn received(line: &str) -> Option<u64> {
    line.trim_start()
        .strip_prefix("packets received:")?
        .trim()
        .parse()
        .ok()
}

fn exact_rules((ip, flows): (Ip, u32), instances: u32) -> Result<String> {
    let (family, src_key, dst_key) = match ip {
        Ip::V4 => ("udp", "nw_src", "nw_dst"),
        Ip::V6 => ("udp6", "ipv6_src", "ipv6_dst"),
    };
    let mut rules = String::new();
    for flow in 0..flows {
        let (src, dst) = ends(ip, flow);
        writeln!(
            rules,
            "{family},{src_key}={},{dst_key}={},tp_src={},tp_dst={},actions=output:{}",
            src.ip(),
            dst.ip(),
            src.port(),
            dst.port(),
            flow % instances + 1
        )?;
    }
    Ok(rules)
}

fn spawn(folder: &Path, command: &mut Command) -> Result<Killed> {
    let child = command
        .env("OVS_RUNDIR", folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| {
            format!(
                "cannot start {}; `scripts/setup.sh bench` installs it",
                shown(command)
            )
        })?;
    Ok(Killed::when_done(child))
}

fn finish(folder: &Path, command: &mut Command) -> Result<()> {
    let output = command
        .env("OVS_RUNDIR", folder)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {}", shown(command)))?;
    if !output.status.success() {
        bail!(
            "{} failed: {}",
            shown(command),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
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

/// Asks a daemon of OVS over its control socket, which speaks JSON-RPC.
fn ask(socket: &Path, method: &str) -> Result<String> {
    let of = || format!("OVS does not answer at {}", socket.display());
    let mut stream = UnixStream::connect(socket).with_context(of)?;
    stream.set_read_timeout(Some(PATIENCE)).with_context(of)?;
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
                    .with_context(|| format!("OVS says no to {method}: {error}"));
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
        let rules = exact_rules((Ip::V4, 3), 2).unwrap();
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
