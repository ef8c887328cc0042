//! The machines of the demo: network namespaces on one segment, each with an inco and an engine of its own.

use std::fs::{self, Permissions};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use api::types::InstanceRow;
use images::EngineName;
use model::{Action, InstanceState};
use testbed::network::Namespace;
use testbed::{Environment, Interrupt, Session, WEB_SERVER_IMAGE};

use super::load::Asked;
use super::{MACHINES, Machines};
use crate::web::{CONFIGURATION, command, write_configuration};

/// Edges.
pub(super) const EDGES: u8 = 2;
/// The image of the function with memif ports.
pub(super) const FUNCTION_IMAGE: &str = "inco/dns";
/// What clients ask the function, and how it answers.
pub(super) const NAME: &str = "www.example.test";
/// A frame of 1,514 bytes has 50 bytes more in a tunnel.
const MTU: &str = "1600";
/// Packets per second that an instance takes: a high load needs more than one at each machine.
const CAPACITY: &str = "2kpps";
/// How long a change may take.
const LIMIT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The addresses of the services.
fn web() -> SocketAddr {
    ([10, 79, 0, 100], 80).into()
}

fn names() -> SocketAddr {
    ([10, 79, 0, 101], 53).into()
}

/// Whom clients ask.
pub(super) fn asked() -> Asked {
    Asked {
        web: web(),
        names: Some(names()),
        machines: [1, 2, 3].map(answer_of),
    }
}

/// What the web servers of a machine say.
fn answer_of(machine: u8) -> String {
    format!("machine {machine}\n")
}

fn tunnel_address(node: Node) -> String {
    match node {
        Node::Edge(number) => format!("10.79.0.{}", 10 + number),
        Node::Machine(number) => format!("10.79.0.{}", 20 + number),
    }
}

fn report_address(edge: u8) -> String {
    format!("10.79.1.{}", 10 + edge)
}

/// An edge or a machine, from 1 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    Edge(u8),
    Machine(u8),
}

impl Node {
    pub(super) const ALL: [Node; (MACHINES + EDGES) as usize] = [
        Node::Machine(1),
        Node::Machine(2),
        Node::Machine(3),
        Node::Edge(1),
        Node::Edge(2),
    ];

    fn index(self) -> usize {
        match self {
            Node::Machine(number) => usize::from(number) - 1,
            Node::Edge(number) => usize::from(MACHINES + number) - 1,
        }
    }

    pub(super) fn name(self) -> String {
        match self {
            Node::Edge(number) => format!("edge {number}"),
            Node::Machine(number) => format!("machine {number}"),
        }
    }

    /// A name for namespaces and folders.
    fn word(self) -> String {
        self.name().replace(' ', "-")
    }
}

/// A place for each inco's files.
pub(super) fn grounds(engine: EngineName, keep: bool, interrupt: &Interrupt) -> Result<Vec<Environment>> {
    let of = |node: &Node| Environment::beside_others(&node.word(), engine, keep, interrupt.clone());
    Node::ALL.iter().map(of).collect()
}

/// Everything that runs.
pub(super) struct Bed<'g> {
    // In this order: incos end before their networks do.
    sessions: Vec<Session<'g>>,
    nodes: Vec<Namespace>,
    pub(super) client: Namespace,
    interrupt: Interrupt,
    /// The edges that the client's kernel sends to.
    routes: Vec<u8>,
}

impl<'g> Bed<'g> {
    /// Makes the networks, and starts machines, then edges.
    ///
    /// # Errors
    /// A program is missing, or something does not start.
    pub(super) fn start(
        grounds: &'g [Environment],
        interrupt: &Interrupt,
        mut tell: impl FnMut(&str),
    ) -> Result<Bed<'g>> {
        let client = namespace("client")?;
        for (bridge, mac) in [("br0", "02:00:00:00:00:b0"), ("rep0", "02:00:00:00:00:b1")] {
            client.ip(&[
                "link",
                "add",
                bridge,
                "address",
                mac,
                "type",
                "bridge",
                "mcast_snooping",
                "0",
            ])?;
            client.ip(&["link", "set", bridge, "up"])?;
        }
        client.ip(&["address", "add", "10.79.0.2/24", "dev", "br0"])?;
        client.within(|| {
            // By addresses and ports, so that the connections of one client use all edges.
            fs::write("/proc/sys/net/ipv4/fib_multipath_hash_policy", "1")
                .context("the kernel has no routes of equal cost")
        })?;
        let mut bed = Bed {
            sessions: Vec::new(),
            nodes: Vec::new(),
            client,
            interrupt: interrupt.clone(),
            routes: Vec::new(),
        };
        for (number, node) in (1..).zip(Node::ALL) {
            bed.connect(node, number)?;
        }
        // Only now: the bridge has the MTU of its smallest member.
        bed.client.ip(&["link", "set", "br0", "mtu", "1500"])?;
        for (node, ground) in Node::ALL.into_iter().zip(grounds) {
            tell(&format!("starting {} ...", node.name()));
            let text = match node {
                Node::Machine(number) => machine(number, ground)?,
                Node::Edge(number) => edge(number, ground)?,
            };
            let instances = if matches!(node, Node::Machine(_)) {
                1
            } else {
                u32::from(MACHINES)
            };
            let network = &bed.nodes[node.index()];
            let session = network.within(|| Session::start(ground, &node.word(), &text, instances))?;
            bed.sessions.push(session);
        }
        bed.route_by(&[1, 2])?;
        Ok(bed)
    }

    /// Connects a node to both segments.
    fn connect(&mut self, node: Node, number: u8) -> Result<()> {
        let network = namespace(&node.word())?;
        for (near, bridge, far) in [("to", "br0", "eth1"), ("rep", "rep0", "rep")] {
            let near = format!("{near}-{}", node.word());
            self.client.connect(&near, &network, far)?;
            self.client
                .ip(&["link", "set", &near, "mtu", MTU, "master", bridge, "up"])?;
            let mac = format!("02:00:00:00:{:02x}:{number:02x}", bridge.len());
            network.ip(&["link", "set", far, "address", &mac, "mtu", MTU, "up"])?;
        }
        let address = match node {
            Node::Edge(number) => report_address(number),
            Node::Machine(number) => format!("10.79.1.{}", 20 + number),
        };
        network.ip(&["address", "add", &format!("{address}/24"), "dev", "rep"])?;
        self.nodes.push(network);
        Ok(())
    }

    /// The client's kernel spreads what it sends to the services over these edges, as routers do.
    ///
    /// # Errors
    /// `ip` failed.
    pub(super) fn route_by(&mut self, edges: &[u8]) -> Result<()> {
        for service in [web(), names()] {
            let to = format!("{}/32", service.ip());
            let hops = edges.iter().map(|edge| tunnel_address(Node::Edge(*edge)));
            let hops: Vec<String> = hops
                .flat_map(|at| {
                    [
                        "nexthop".to_owned(),
                        "via".to_owned(),
                        at,
                        "dev".to_owned(),
                        "br0".to_owned(),
                    ]
                })
                .collect();
            let words = ["route", "replace", &to].into_iter();
            let words: Vec<&str> = words.chain(hops.iter().map(String::as_str)).collect();
            self.client.ip(&words)?;
        }
        self.routes = edges.to_vec();
        Ok(())
    }

    pub(super) fn session(&self, node: Node) -> Result<&Session<'g>> {
        self.sessions.get(node.index()).context("it does not run")
    }

    fn session_mut(&mut self, node: Node) -> Result<&mut Session<'g>> {
        self.sessions.get_mut(node.index()).context("it does not run")
    }

    /// What an edge knows of a machine, for each service.
    fn rows_of(&self, edge: u8, machine: u8) -> Result<Vec<InstanceRow>> {
        let address = format!("{}:4789", tunnel_address(Node::Machine(machine)));
        let rows = self.session(Node::Edge(edge))?.client()?.instances()?;
        let its = |row: &InstanceRow| row.address.as_ref() == Some(&address);
        Ok(rows.into_iter().filter(its).collect())
    }

    /// Whether each running edge sees the machine in that state, and has no flow of it where `is_empty`.
    ///
    /// # Errors
    /// It takes too long, or the demo was interrupted.
    pub(super) fn wait_for(&self, machine: u8, state: Option<InstanceState>, is_empty: bool) -> Result<()> {
        let is_so = |row: &InstanceRow| match state {
            Some(state) => row.state == state && (!is_empty || row.live_flows == 0),
            None => row.state != InstanceState::Active,
        };
        self.until(&format!("machine {machine} is {state:?} at the edges"), || {
            for edge in &self.routes {
                let rows = self.rows_of(*edge, machine)?;
                // A machine that is lost is not listed, or it starts.
                if (state.is_some() && rows.is_empty()) || !rows.iter().all(is_so) {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }

    fn until(&self, what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
        let since = Instant::now();
        while !is_so()? {
            self.interrupt.check()?;
            if since.elapsed() > LIMIT {
                bail!("not within {} s: {what}", LIMIT.as_secs());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Has both edges give a machine no new flows, or give it some again.
    ///
    /// # Errors
    /// An edge refuses it.
    pub(super) fn drain(&self, machine: u8, drains: bool) -> Result<()> {
        for edge in 1..=EDGES {
            for row in self.rows_of(edge, machine)? {
                let instance = row.id;
                let action = if drains {
                    Action::Drain { instance }
                } else {
                    Action::Undrain { instance }
                };
                self.session(Node::Edge(edge))?.client()?.act(&action)?;
            }
        }
        Ok(())
    }

    /// Takes a machine off the network, or puts it back.
    ///
    /// # Errors
    /// `ip` failed.
    pub(super) fn cut_off(&self, machine: u8, is_off: bool) -> Result<()> {
        let port = format!("to-{}", Node::Machine(machine).word());
        self.client
            .ip(&["link", "set", &port, if is_off { "down" } else { "up" }])
    }

    /// Kills the inco of an edge.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub(super) fn kill_edge(&mut self, edge: u8) -> Result<()> {
        self.session_mut(Node::Edge(edge))?.kill()
    }

    /// Starts the inco of an edge again, and waits until it knows all machines.
    ///
    /// # Errors
    /// It does not start.
    pub(super) fn start_edge(&mut self, edge: u8) -> Result<()> {
        let node = Node::Edge(edge);
        let session = self.sessions.get_mut(node.index()).context("it does not run")?;
        let network = self.nodes.get(node.index()).context("it has no network")?;
        network.within(|| session.start_again())?;
        session.wait_until_ready(MACHINES.into())
    }

    /// Stops an edge with all that it knows; [`Bed::start_edge`] starts it anew.
    ///
    /// # Errors
    /// It did not end cleanly.
    pub(super) fn stop_edge(&mut self, edge: u8) -> Result<()> {
        self.session_mut(Node::Edge(edge))?.stop_for_now()
    }

    /// Stops everything. Returns what was left in the system.
    ///
    /// # Errors
    /// An inco did not end cleanly.
    pub(super) fn stop(self) -> Result<Vec<String>> {
        let mut left = Vec::new();
        for mut session in self.sessions {
            let rows = session.client()?.instances()?;
            session.note(&rows);
            left.extend(session.stop()?);
        }
        Ok(left)
    }
}

impl Machines for Bed<'_> {
    fn servers(&self) -> Result<Vec<u32>> {
        let count = |number| -> Result<u32> {
            let rows = self.session(Node::Machine(number))?.client()?.services()?;
            Ok(rows
                .iter()
                .filter(|row| row.name == "web")
                .map(|row| row.active)
                .sum())
        };
        (1..=MACHINES).map(count).collect()
    }
}

pub(super) fn namespace(role: &str) -> Result<Namespace> {
    Namespace::new(format!("inco-cluster-{}-{role}", std::process::id()))
}

/// Writes a key that only its owner may read.
fn write_key(directory: &Path, name: &str, byte: u8) -> Result<String> {
    let file = directory.join(name);
    let written = fs::write(&file, format!("{byte:02x}").repeat(24))
        .and_then(|()| fs::set_permissions(&file, Permissions::from_mode(0o400)));
    written.with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file.display().to_string())
}

/// What an uplink of a node is.
fn uplink(node: Node, more: &str) -> String {
    format!(
        "[[uplink]]\nname = \"wan\"\ndevice = \"kernel:eth1\"\nmax_frame = 1572\ntunnel = {{ address = {:?}, network = 7, {more} \
         }}\n",
        tunnel_address(node)
    )
}

/// The configuration of a machine: web servers, and a function with memif ports.
fn machine(number: u8, ground: &Environment) -> Result<String> {
    let directory = ground.directory();
    let servers = write_configuration(directory, &answer_of(number))?;
    let zone = directory.join("zone");
    fs::create_dir_all(&zone).with_context(|| format!("cannot make {}", zone.display()))?;
    let records = format!(
        "$ORIGIN example.test.\n$TTL 60\n@ SOA ns1 hostmaster 1 7200 900 1209600 60\n@ NS ns1\nns1 A {0}\nwww A \
         192.0.2.{number}\n",
        names().ip()
    );
    fs::write(zone.join("example.zone"), records).context("cannot write the zone")?;
    let edges: Vec<String> = (1..=EDGES).map(|edge| tunnel_address(Node::Edge(edge))).collect();
    let to: Vec<String> = (1..=EDGES)
        .map(|edge| format!("{}:4790", report_address(edge)))
        .collect();
    let key = write_key(directory, "machine.key", number)?;
    Ok(format!(
        "# Written by `inco demo --cluster`.\n[engine]\ndriver = {:?}\n[switch]\ndriver = \"soft\"\n{}[reports]\nmachine = \
         {number}\nto = {to:?}\nkey = {key:?}\n[service.web]\nvip = {{ address = \"{}\", ports = 80 }}\nport = \
         \"kernel\"\nimage = {WEB_SERVER_IMAGE:?}\ncommand = {:?}\nmounts = [\"{}:{CONFIGURATION}:ro\"]\ncpus = 0.3\nmemory = \
         \"128MiB\"\ncapacity = {CAPACITY:?}\ninstances = {{ min = 1, max = 3, standby = 0 }}\nscheduler = {{ policy = \
         \"least-connections\", slow_start = \"0s\" }}\ndrain_deadline = \"5s\"\n[service.names]\nvip = {{ address = \"{}\", \
         ports = 53 }}\nimage = {FUNCTION_IMAGE:?}\ncommand = [\"/inco-nf\", \"dns\", \"--config\", \
         \"/zone/example.zone\"]\nmounts = [\"{}:/zone:ro\"]\ncpus = 0.1\nmemory = \"64MiB\"\ncapacity = \
         \"50kpps\"\ninstances = {{ min = 1, max = 2, standby = 0 }}\n",
        ground.engine_word(),
        uplink(Node::Machine(number), &format!("from = {edges:?}")),
        web().ip(),
        command(),
        servers.display(),
        names().ip(),
        zone.display(),
    ))
}

/// The configuration of an edge: all of its instances are machines.
fn edge(number: u8, ground: &Environment) -> Result<String> {
    let directory = ground.directory();
    let key = write_key(directory, "edges.key", 0xed)?;
    let mut text = format!(
        "# Written by `inco demo --cluster`.\n[switch]\ndriver = \"soft\"\ntimeouts = {{ tcp = \"3s\", udp = \"2s\" }}\n{}[reports]\nlisten = \
         \"{}:4790\"\n",
        uplink(Node::Edge(number), &format!("edges_key = {key:?}")),
        report_address(number),
    );
    let mut machines = Vec::new();
    for machine in 1..=MACHINES {
        let address = tunnel_address(Node::Machine(machine));
        let key = write_key(directory, &format!("machine-{machine}.key"), machine)?;
        text.push_str(&format!(
            "[[reports.machines]]\nnumber = {machine}\naddress = {address:?}\nkey = {key:?}\n"
        ));
        machines.push(format!("{address}:4789"));
    }
    for (name, at) in [("web", web()), ("names", names())] {
        text.push_str(&format!(
            "[service.{name}]\nport = \"tunnel\"\nvip = {{ address = \"{}\", ports = {} }}\ninstances = {{ from = {machines:?} \
             }}\nscheduler = \"machines\"\ndrain_deadline = \"30s\"\n",
            at.ip(),
            at.port(),
        ));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configurations_are_right() {
        let directory =
            Environment::beside_others("test", EngineName::Oci, false, Interrupt::default()).unwrap();
        for text in [machine(2, &directory).unwrap(), edge(1, &directory).unwrap()] {
            let read = orchestrator::load::parse(&text, "cluster.toml").unwrap();
            assert_eq!(read.services.len(), 2);
        }
    }
}
