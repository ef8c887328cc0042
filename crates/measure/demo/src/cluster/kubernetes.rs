//! The machines are nodes of a cluster of Kubernetes, each a network namespace with a kubelet and a containerd of its own. One
//! inco with the driver `ebpf` asks the cluster for web servers, and steers to the addresses of their Pods. The control plane
//! is that of a kubeconfig, or one that runs for the demo alone. The script of the tests starts it, and the nodes.

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use images::EngineName;
use testbed::network::Namespace;
use testbed::{Environment, Interrupt, WEB_SERVER_IMAGE};

use super::MACHINES;
use super::bed::namespace;
use super::cluster_api::{ClusterApi, server};
use super::one_inco::{Bed, Networks, Orchestrator, configuration, site};
use super::relay::Relay;
use super::result::Cluster;
use super::script::Started;
use crate::args::DemoArgs;
use crate::live::Live;

/// Starts and ends the control plane and nodes.
const SCRIPT: &str = include_str!("../../../../../scripts/kubernetes.sh");
/// How long a node may take until it takes Pods.
const READY_LIMIT: Duration = Duration::from_secs(90);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Runs the demo.
///
/// # Errors
/// Something does not start, or the demo was interrupted.
pub(super) fn show(args: &DemoArgs, interrupt: &Interrupt, live: &mut Live) -> Result<Cluster> {
    live.print_line(&format!(
        "inco demo --cluster --engine kubernetes: {MACHINES} machines, each a network namespace with a kubelet and a containerd \
         of its own, are nodes of a cluster. It places Pods with nginx as inco asks, and inco steers to where they are. All \
         of them share this machine's CPUs.\n"
    ));
    let ground = Environment::beside_others("pods", EngineName::Oci, args.keep_dir, interrupt.clone())?;
    // Apart from inco's files: its sockets end with inco, those of the nodes do not.
    let folder = Environment::beside_others("nodes", EngineName::Oci, args.keep_dir, interrupt.clone())?;
    let networks = Networks::new()?;
    let mut nodes = Nodes::of(args.kubeconfig.as_deref(), folder.directory(), &networks, live)?;
    nodes.join(folder.directory(), &networks, interrupt, live)?;
    live.print_line("starting inco ...");
    let text = configuration_at(&nodes.kubeconfig, &nodes.name);
    Bed::start(&ground, "pods", &text, networks, nodes, interrupt)?.show(args.quick, live)
}

fn configuration_at(kubeconfig: &Path, namespace: &str) -> String {
    configuration(
        &format!(
            "[engine]\ndriver = \"kubernetes\"\npull = \"never\"\n[kubernetes]\nkubeconfig = {:?}\nnamespace = {namespace:?}\n",
            kubeconfig.display().to_string()
        ),
        &format!(
            "kubernetes = {{ configs = [\"site:/etc/site\"], reserved_cpus = 0.1, node_selector = {{ \"inco.dev/demo\" = \
             {namespace:?} }}, tolerations = [{{ key = \"inco.dev/demo\", operator = \"Exists\" }}] }}\n"
        ),
    )
}

/// The nodes of the demo. Dropping it ends them, and their control plane where it is the demo's own.
struct Nodes {
    // In this order: nodes end before the cluster forgets them, and both before the control plane.
    machines: Vec<Started>,
    api: ClusterApi,
    _relays: Vec<Relay>,
    _control: Option<Started>,
    networks: Vec<Namespace>,
    kubeconfig: PathBuf,
    /// Of the namespace, and what the names of nodes begin with.
    name: String,
}

impl Nodes {
    /// The cluster of a kubeconfig, or one of its own, and the networks of the nodes.
    fn of(given: Option<&Path>, folder: &Path, networks: &Networks, live: &mut Live) -> Result<Nodes> {
        let name = format!("inco-demo-{}", std::process::id());
        let (control, kubeconfig) = match given {
            Some(file) => {
                let found = file.canonicalize();
                let found =
                    found.with_context(|| format!("--kubeconfig: {} cannot be read", file.display()))?;
                (None, found)
            }
            None => {
                live.print_line("starting a control plane ...");
                let (control, file) = control_plane(&folder.join("control"))?;
                (Some(control), file)
            }
        };
        let server = server(&kubeconfig)?;
        let of_nodes: Result<Vec<Namespace>> = (1..=MACHINES)
            .map(|machine| network_of(machine, &networks.machine))
            .collect();
        let of_nodes = of_nodes?;
        // Neither inco's machine nor a node has another way to the API server.
        let all = of_nodes.iter().chain([&networks.machine]);
        let relays: Result<Vec<Relay>> = all.map(|network| Relay::start(network, server)).collect();
        let names = (1..=MACHINES).map(|machine| node_name(&name, machine)).collect();
        Ok(Nodes {
            machines: Vec::new(),
            api: ClusterApi::at(&kubeconfig, &name, names)?,
            _relays: relays?,
            _control: control,
            networks: of_nodes,
            kubeconfig,
            name,
        })
    }

    /// Has the nodes join the cluster, with the web server's image.
    fn join(
        &mut self,
        folder: &Path,
        networks: &Networks,
        interrupt: &Interrupt,
        live: &mut Live,
    ) -> Result<()> {
        self.api.make_namespace()?;
        live.print_line("starting the nodes ...");
        let image = folder.join("nginx.tar");
        let file = File::create(&image).with_context(|| format!("cannot write {}", image.display()))?;
        images::store().write_tar(&WEB_SERVER_IMAGE.into(), file)?;
        for (machine, network) in (1..).zip(&self.networks) {
            let environment = vec![
                ("NODE", node_name(&self.name, machine)),
                ("NODE_ADDRESS", address_of(machine)),
                ("PODS", format!("10.88.{machine}.0/24")),
                ("LABEL", self.name.clone()),
            ];
            let node = Started::new(
                SCRIPT,
                &folder.join(format!("n{machine}")),
                Some(network.network()),
                environment,
            )?;
            node.run("join", &[&self.kubeconfig.display().to_string()])?;
            node.run(
                "image",
                &[
                    &format!("docker.io/library/{WEB_SERVER_IMAGE}:latest"),
                    &image.display().to_string(),
                ],
            )?;
            self.machines.push(node);
            let pods = format!("10.88.{machine}.0/24");
            let route = ["route", "add", &pods, "via", &address_of(machine)];
            networks.machine.ip(&route)?;
        }
        self.until("the nodes are ready", interrupt, |nodes| {
            nodes.api.has_account()
                && (1..=MACHINES).all(|machine| nodes.api.is_ready(&node_name(&nodes.name, machine)))
        })?;
        self.api.make_site("nginx.conf", &site("$server_addr"))
    }

    fn until(&self, what: &str, interrupt: &Interrupt, is_so: impl Fn(&Nodes) -> bool) -> Result<()> {
        let since = Instant::now();
        while !is_so(self) {
            interrupt.check()?;
            if since.elapsed() > READY_LIMIT {
                bail!(
                    "not within {} s: {what}; the kubelets' logs are kept with --keep-dir",
                    READY_LIMIT.as_secs()
                );
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    fn node(&self, machine: u8) -> String {
        node_name(&self.name, machine)
    }
}

impl Orchestrator for Nodes {
    // A cluster takes a node as lost after a time of its own, 50 s if it was not set.
    const LIMIT: Duration = Duration::from_secs(120);

    fn machine_at(&self, address: Ipv4Addr) -> Option<u8> {
        match address.octets() {
            [10, 88, machine, _] => Some(machine),
            _ => None,
        }
    }

    fn answers(&self) -> Result<[String; MACHINES as usize]> {
        Ok([1, 2, 3].map(|machine| format!("10.88.{machine}.")))
    }

    fn pause(&self, machine: u8) -> Result<()> {
        self.api.set_schedulable(&self.node(machine), false)
    }

    fn put_out_of_service(&self, _machine: u8) -> Result<()> {
        // It has no Pod of inco's any more, and gets none.
        Ok(())
    }

    fn put_in_service(&self, machine: u8) -> Result<()> {
        self.api.set_schedulable(&self.node(machine), true)
    }

    fn lose(&self, machine: u8) -> Result<()> {
        let index = usize::from(machine) - 1;
        let network = self.networks.get(index).context("the machine has no network")?;
        network.ip(&["link", "del", "eth0"])?;
        self.machines
            .get(index)
            .context("the machine does not run")?
            .run("kill", &[])
    }

    fn left(&self) -> Result<Vec<String>> {
        let pods = self.api.pods()?;
        Ok(pods.into_iter().map(|name| format!("Pod {name}")).collect())
    }
}

fn node_name(name: &str, machine: u8) -> String {
    format!("{name}-{machine}")
}

fn address_of(machine: u8) -> String {
    format!("10.1.0.{}", 10 + machine)
}

/// The network of a node, connected to the bridge `lan` of inco's machine, which is its gateway.
fn network_of(machine: u8, to: &Namespace) -> Result<Namespace> {
    let network = namespace(&format!("node-{machine}"))?;
    let near = format!("to-n{machine}");
    to.connect(&near, &network, "eth0")?;
    to.ip(&["link", "set", &near, "master", "lan", "up"])?;
    let address = format!("{}/24", address_of(machine));
    network.ip(&["address", "add", &address, "dev", "eth0"])?;
    network.ip(&["link", "set", "eth0", "up"])?;
    network.ip(&["route", "add", "default", "via", "10.1.0.1"])?;
    network.forward()?;
    Ok(network)
}

/// A control plane of its own, and its kubeconfig.
fn control_plane(folder: &Path) -> Result<(Started, PathBuf)> {
    let free = || -> Result<String> {
        let listener = TcpListener::bind("127.0.0.1:0").context("there is no free port")?;
        Ok(listener.local_addr()?.port().to_string())
    };
    let environment = vec![("PORT", free()?), ("ETCD_PORT", free()?)];
    let control = Started::new(SCRIPT, folder, None, environment)?;
    control.run("up", &["kube-controller-manager", "kube-scheduler"])?;
    Ok((control, folder.join("kubeconfig")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_right() {
        let text = configuration_at(Path::new("/etc/inco/kubeconfig"), "inco-demo-1");
        let read = orchestrator::load::parse(&text, "pods.toml").unwrap();
        assert_eq!(read.services.len(), 1);
    }
}
