//! The machines are nodes of a swarm of Docker's, each a network namespace with a daemon of its own. One inco with the
//! driver `ebpf` asks the swarm for web servers, and steers to where it places them. Nodes are made by the script of the
//! tests, which is part of this program.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use api::types::InstanceRow;
use images::EngineName;
use model::{Action, InstanceState};
use testbed::network::{Namespace, Network, output};
use testbed::{Dockerd, Environment, Interrupt, Session, WEB_SERVER_IMAGE};

use super::bed::namespace;
use super::load::{Asked, Load};
use super::result::{Cluster, EdgeRow};
use super::{DRAINED, Demo, HIGH, LOST, LOW, MACHINES, Machines};
use crate::args::DemoArgs;
use crate::live::Live;

/// Starts and ends nodes.
const SCRIPT: &str = include_str!("../../../../../scripts/swarm.sh");
/// How long a change may take: a swarm's manager waits for its nodes.
const LIMIT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Packets per second that a web server takes: a high load needs more than one, and a low one does not.
const CAPACITY: &str = "6kpps";

/// The node of a machine. The first node manages the swarm, and runs no web server.
const fn node_of(machine: u8) -> u8 {
    machine + 1
}

/// The address of a node.
fn address_of(node: u8) -> String {
    format!("10.1.0.{}", 10 + node)
}

/// Runs the demo.
///
/// # Errors
/// Something does not start, or the demo was interrupted.
pub(super) fn show(args: &DemoArgs, interrupt: &Interrupt, live: &mut Live) -> Result<Cluster> {
    Dockerd::check_installed()?;
    live.print_line(&format!(
        "inco demo --cluster --engine swarm: {MACHINES} machines, each a network namespace with a Docker of its own, are nodes \
         of a swarm. It places nginx as inco asks, and inco steers to where they are. All of them share this machine's CPUs.\n"
    ));
    let ground = Environment::beside_others("swarm", EngineName::Docker, args.keep_dir, interrupt.clone())?;
    // Apart from inco's files: its sockets end with inco, those of the nodes do not.
    let nodes = Environment::beside_others("nodes", EngineName::Docker, args.keep_dir, interrupt.clone())?;
    let bed = Bed::start(&ground, nodes.directory(), interrupt, |text| {
        live.print_line(text)
    })?;
    let load = Load::start(&bed.client, bed.asked()?)?;
    let mut demo = Demo::new(bed, load, interrupt, args.quick);
    demo.changes(live)?;
    let (bed, mut cluster) = demo.end();
    cluster.edges.push(EdgeRow {
        edge: 1,
        expected_moves: bed.session.client()?.status()?.accounting.expected_moves,
        looks: 0,
        looks_returned: 0,
    });
    cluster.left_behind = bed.stop()?;
    Ok(cluster)
}

impl Demo<'_, Bed<'_>> {
    fn changes(&mut self, live: &mut Live) -> Result<()> {
        self.load.set_clients(LOW);
        self.phase("low load", live, |_| Ok(()))?;
        self.load.set_clients(HIGH);
        self.phase("high load", live, |bed| {
            bed.until("there are two web servers", |rows| active(rows).count() > 1)
        })?;
        self.phase("machine 1 drains", live, |bed| bed.drain(DRAINED))?;
        self.phase("machine 1 is back", live, |bed| {
            bed.set_availability(DRAINED, "active")
        })?;
        self.phase("inco is killed", live, Bed::kill_and_start)?;
        self.load.note_change();
        self.phase("machine 3 is lost", live, |bed| {
            bed.nodes.run("kill", &[&node_of(LOST).to_string()])?;
            bed.until("its web servers are elsewhere", |rows| {
                active(rows).next().is_some() && !rows.iter().any(|row| is_at(row, LOST))
            })
        })?;
        self.load.note_change();
        self.load.set_clients(LOW);
        self.phase("low again", live, |_| Ok(()))
    }
}

/// The nodes of a swarm. Dropping it ends all of them.
struct Nodes {
    folder: PathBuf,
    /// The network in which the script runs.
    network: Network,
}

impl Nodes {
    /// Starts them, connected to the bridge `lan` of a namespace. They end with this process, whatever ends it.
    fn start(folder: PathBuf, machine: &Namespace) -> Result<Nodes> {
        let nodes = Nodes {
            folder,
            network: machine.network(),
        };
        let ends = "tail --pid=\"$1\" -f /dev/null; exec bash -c \"$2\" swarm down \"$3\"";
        Command::new("setsid")
            .args([
                "bash",
                "-c",
                ends,
                "swarm",
                &std::process::id().to_string(),
                SCRIPT,
            ])
            .arg(&nodes.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start what ends the nodes")?;
        nodes.run("up", &[&node_of(MACHINES).to_string()])?;
        Ok(nodes)
    }

    /// Runs the script.
    fn run(&self, verb: &str, arguments: &[&str]) -> Result<()> {
        let mut command = self.network.command("bash");
        command
            .args(["-c", SCRIPT, "swarm", verb])
            .arg(&self.folder)
            .args(arguments)
            .env("BRIDGE", "lan");
        // The command line has the whole script: no use in an error.
        let ended = command
            .stdin(Stdio::null())
            .output()
            .context("cannot run bash in a network namespace")?;
        if !ended.status.success() {
            let said = String::from_utf8_lossy(&ended.stderr);
            bail!(
                "the nodes of the swarm: {verb}: {}: {}",
                ended.status,
                said.trim()
            );
        }
        Ok(())
    }

    /// The address of a node's Docker.
    fn host(&self, node: u8) -> String {
        format!("unix://{}/n{node}/docker.sock", self.folder.display())
    }

    /// Asks a node's Docker.
    fn docker(&self, node: u8, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new("docker");
        command.args(["--host", &self.host(node)]).args(arguments);
        Ok(output(&mut command)?.trim().to_owned())
    }

    /// What the swarm calls a node.
    fn id(&self, node: u8) -> Result<String> {
        self.docker(node, &["info", "--format", "{{.Swarm.NodeID}}"])
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        // What is not ended now ends with this process.
        let _ = self.run("down", &[]);
    }
}

/// Everything that runs.
struct Bed<'g> {
    // In this order: inco ends before the swarm, and both before their networks.
    session: Session<'g>,
    nodes: Nodes,
    machine: Namespace,
    client: Namespace,
    interrupt: Interrupt,
}

impl<'g> Bed<'g> {
    fn start(
        ground: &'g Environment,
        folder: &Path,
        interrupt: &Interrupt,
        mut tell: impl FnMut(&str),
    ) -> Result<Bed<'g>> {
        let (machine, client) = (namespace("inco")?, namespace("client")?);
        client.connect("eth0", &machine, "eth1")?;
        client.ip(&["address", "add", "10.79.0.2/24", "dev", "eth0"])?;
        client.ip(&["link", "set", "eth0", "up"])?;
        let bridge = "link add lan address 02:00:00:00:00:b0 type bridge mcast_snooping 0";
        for words in [
            bridge,
            "address add 10.1.0.1/24 dev lan",
            "link set lan up",
            "link set eth1 up",
        ] {
            machine.ip(&words.split(' ').collect::<Vec<&str>>())?;
        }
        tell("starting the nodes of the swarm ...");
        let nodes = Nodes::start(folder.to_owned(), &machine)?;
        let image = images::store().resolve(&WEB_SERVER_IMAGE.into())?.1;
        for node in 1..=node_of(MACHINES) {
            interrupt.check()?;
            images::deliver(EngineName::Docker, &nodes.host(node), &image)?;
        }
        let site = ground.directory().join("site.conf");
        std::fs::write(&site, SITE).with_context(|| format!("cannot write {}", site.display()))?;
        let site = site.display().to_string();
        nodes.docker(
            1,
            &["config", "create", "--template-driver", "golang", "site", &site],
        )?;
        nodes.docker(1, &["node", "update", "--availability", "drain", &nodes.id(1)?])?;
        tell("starting inco ...");
        let text = configuration(&nodes.host(1));
        let session = machine.within(|| Session::start(ground, "swarm", &text, 1))?;
        Ok(Bed {
            session,
            nodes,
            machine,
            client,
            interrupt: interrupt.clone(),
        })
    }

    /// Whom clients ask.
    fn asked(&self) -> Result<Asked> {
        let [first, second, third] = [1, 2, 3].map(|machine| self.nodes.id(node_of(machine)));
        Ok(Asked {
            web: ([10, 79, 0, 100], 80).into(),
            names: None,
            machines: [first?, second?, third?],
        })
    }

    fn until(&self, what: &str, is_so: impl Fn(&[InstanceRow]) -> bool) -> Result<()> {
        let since = Instant::now();
        loop {
            let rows = self.session.client()?.instances()?;
            if is_so(&rows) {
                return Ok(());
            }
            self.interrupt.check()?;
            if since.elapsed() > LIMIT {
                bail!("not within {} s: {what}: {rows:?}", LIMIT.as_secs());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    fn set_availability(&self, machine: u8, availability: &str) -> Result<()> {
        let id = self.nodes.id(node_of(machine))?;
        let update = ["node", "update", "--availability", availability, &id];
        self.nodes.docker(1, &update).map(drop)
    }

    /// In order: the swarm places nothing more there, the web servers there end after their connections, and then the swarm may
    /// end what is left.
    fn drain(&self, machine: u8) -> Result<()> {
        self.set_availability(machine, "pause")?;
        let client = self.session.client()?;
        for row in client.instances()? {
            if is_at(&row, machine) {
                client.act(&Action::Drain { instance: row.id })?;
            }
        }
        self.until("the web servers of the machine have ended", |rows| {
            active(rows).next().is_some() && !rows.iter().any(|row| is_at(row, machine))
        })?;
        self.set_availability(machine, "drain")
    }

    /// Kills inco; the next one goes on.
    fn kill_and_start(&mut self) -> Result<()> {
        self.session.kill()?;
        let session = &mut self.session;
        self.machine.within(|| session.start_again())?;
        self.session.wait_until_ready(1)
    }

    /// Stops everything. Returns what was left in the system.
    fn stop(self) -> Result<Vec<String>> {
        let mut left = self.session.stop()?;
        let services = self
            .nodes
            .docker(1, &["service", "ls", "--format", "service {{.Name}}"])?;
        left.extend(services.lines().map(str::to_owned));
        Ok(left)
    }
}

impl Machines for Bed<'_> {
    fn servers(&self) -> Result<Vec<u32>> {
        let rows = self.session.client()?.instances()?;
        let count = |machine| active(&rows).filter(|row| is_at(row, machine)).count() as u32;
        Ok((1..=MACHINES).map(count).collect())
    }
}

fn active(rows: &[InstanceRow]) -> impl Iterator<Item = &InstanceRow> {
    rows.iter().filter(|row| row.state == InstanceState::Active)
}

/// Whether an instance is at that machine.
fn is_at(row: &InstanceRow, machine: u8) -> bool {
    let address = row
        .address
        .as_deref()
        .and_then(|address| address.rsplit_once(':'));
    address.is_some_and(|(host, _)| host == address_of(node_of(machine)))
}

/// A web server that says at which node it is, and which one it is. The swarm fills in the node.
const SITE: &str = "daemon off;\nmaster_process off;\nuser root;\nerror_log stderr warn;\npid /tmp/nginx.pid;\nevents { \
                    worker_connections 1024; }\nhttp {\n  access_log off;\n  client_body_temp_path /tmp/b;\n  \
                    proxy_temp_path /tmp/p;\n  fastcgi_temp_path /tmp/f;\n  uwsgi_temp_path /tmp/u;\n  scgi_temp_path \
                    /tmp/s;\n  keepalive_timeout 1h;\n  keepalive_requests 1000000;\n  server {\n    listen 8080;\n    \
                    location / { return 200 \"{{.Node.ID}} $hostname\"; }\n  }\n}\n";

fn configuration(manager: &str) -> String {
    format!(
        "# Written by `inco demo --cluster --engine swarm`.\n[switch]\ndriver = \"ebpf\"\n[[uplink]]\nname = \"wan\"\ndevice = \
         \"kernel:eth1\"\n[[uplink]]\nname = \"lan\"\ndevice = \"kernel:lan\"\n[engine]\ndriver = \"swarm\"\nhost = \
         {manager:?}\n[service.web]\nuplinks = [\"wan\"]\nport = \"routed\"\nimage = {WEB_SERVER_IMAGE:?}\ncommand = \
         [\"/usr/sbin/nginx\", \"-c\", \"/etc/site.conf\"]\nvip = {{ address = \"10.79.0.100\", ports = 80, mode = \
         \"dnat\", target_port = 8080 }}\ncapacity = {CAPACITY:?}\ninstances = {{ min = 1, max = 4, standby = 0 \
         }}\nhealth = {{ http = \"/\", every = \"100ms\", fall = 3, rise = 1 }}\nswarm = {{ configs = \
         [\"site:/etc/site.conf\"], constraints = [\"node.role == worker\"] }}\nscheduler = {{ policy = \
         \"least-connections\", slow_start = \"0s\" }}\ndrain_deadline = \"30s\"\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_right() {
        let read =
            orchestrator::load::parse(&configuration("unix:///run/docker.sock"), "swarm.toml").unwrap();
        assert_eq!(read.services.len(), 1);
    }
}
