//! The machines are nodes of a swarm of Docker's, each a network namespace with a daemon of its own. One inco with the
//! driver `ebpf` asks the swarm for web servers, and steers to where it places them. Nodes are made by the script of the
//! tests, which is part of this program.

use std::net::Ipv4Addr;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use images::EngineName;
use testbed::network::output;
use testbed::{Dockerd, Environment, Interrupt, WEB_SERVER_IMAGE};

use super::MACHINES;
use super::one_inco::{Bed, Networks, Orchestrator, configuration, site};
use super::result::Cluster;
use super::script::Started;
use crate::args::DemoArgs;
use crate::live::Live;

/// Starts and ends nodes.
const SCRIPT: &str = include_str!("../../../../../scripts/swarm.sh");

/// The node of a machine. The first node manages the swarm, and runs no web server.
const fn node_of(machine: u8) -> u8 {
    machine + 1
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
    let folder = Environment::beside_others("nodes", EngineName::Docker, args.keep_dir, interrupt.clone())?;
    let networks = Networks::new()?;
    live.print_line("starting the nodes of the swarm ...");
    let nodes = Nodes::start(&ground, &folder, &networks, interrupt)?;
    live.print_line("starting inco ...");
    let text = configuration_at(&nodes.host(1));
    Bed::start(&ground, "swarm", &text, networks, nodes, interrupt)?.show(args.quick, live)
}

fn configuration_at(manager: &str) -> String {
    configuration(
        &format!("[engine]\ndriver = \"swarm\"\nhost = {manager:?}\n"),
        "swarm = { configs = [\"site:/etc/site/nginx.conf\"], constraints = [\"node.role == worker\"] }\n",
    )
}

/// The nodes of a swarm. Dropping it ends all of them.
struct Nodes(Started);

impl Nodes {
    /// Starts them, connected to the bridge `lan`, and gives them the web server.
    fn start(
        ground: &Environment,
        folder: &Environment,
        networks: &Networks,
        interrupt: &Interrupt,
    ) -> Result<Nodes> {
        let network = Some(networks.machine.network());
        let bridge = vec![("BRIDGE", "lan".to_owned())];
        let nodes = Nodes(Started::new(SCRIPT, folder.directory(), network, bridge)?);
        nodes.0.run("up", &[&node_of(MACHINES).to_string()])?;
        let image = images::store().resolve(&WEB_SERVER_IMAGE.into())?.1;
        for node in 1..=node_of(MACHINES) {
            interrupt.check()?;
            images::deliver(EngineName::Docker, &nodes.host(node), &image)?;
        }
        let file = ground.directory().join("site.conf");
        // The swarm fills in the node.
        std::fs::write(&file, site("{{.Node.ID}}"))
            .with_context(|| format!("cannot write {}", file.display()))?;
        let file = file.display().to_string();
        nodes.docker(
            1,
            &["config", "create", "--template-driver", "golang", "site", &file],
        )?;
        nodes.docker(1, &["node", "update", "--availability", "drain", &nodes.id(1)?])?;
        Ok(nodes)
    }

    /// The address of a node's Docker.
    fn host(&self, node: u8) -> String {
        format!("unix://{}/n{node}/docker.sock", self.0.folder().display())
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

    fn set_availability(&self, machine: u8, availability: &str) -> Result<()> {
        let id = self.id(node_of(machine))?;
        let update = ["node", "update", "--availability", availability, &id];
        self.docker(1, &update).map(drop)
    }
}

impl Orchestrator for Nodes {
    // A swarm's manager waits for its nodes.
    const LIMIT: Duration = Duration::from_secs(60);

    fn machine_at(&self, address: Ipv4Addr) -> Option<u8> {
        let [10, 1, 0, last] = address.octets() else {
            return None;
        };
        (1..=MACHINES).find(|machine| last == 10 + node_of(*machine))
    }

    fn answers(&self) -> Result<[String; MACHINES as usize]> {
        let [first, second, third] = [1, 2, 3].map(|machine| self.id(node_of(machine)));
        Ok([first?, second?, third?])
    }

    fn pause(&self, machine: u8) -> Result<()> {
        self.set_availability(machine, "pause")
    }

    fn put_out_of_service(&self, machine: u8) -> Result<()> {
        self.set_availability(machine, "drain")
    }

    fn put_in_service(&self, machine: u8) -> Result<()> {
        self.set_availability(machine, "active")
    }

    fn lose(&self, machine: u8) -> Result<()> {
        self.0.run("kill", &[&node_of(machine).to_string()])
    }

    fn left(&self) -> Result<Vec<String>> {
        let services = self.docker(1, &["service", "ls", "--format", "service {{.Name}}"])?;
        Ok(services.lines().map(str::to_owned).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_right() {
        let read =
            orchestrator::load::parse(&configuration_at("unix:///run/docker.sock"), "swarm.toml").unwrap();
        assert_eq!(read.services.len(), 1);
    }
}
