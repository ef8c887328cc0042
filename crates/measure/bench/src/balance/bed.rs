//! What stands between the client and the server: a balancer, the switch with its functions, and links.

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use testbed::network::{Link, Namespace, run};
use testbed::{Environment, FORWARD_IMAGE, Haproxy, Interrupt, Session};

use super::PERIOD;
use super::outcome::{Reading, Taken};
use super::web::{self, Server};
use crate::args::Balancer;

/// Functions behind the balancer.
pub(super) const FUNCTIONS: u8 = 4;
/// CPUs of a function. All four, the switch, the client and the server share two CPUs, and the functions are to be what
/// limits.
const CPUS: f64 = 0.16;
/// Packets per second that a function can process while it carries a heavy download: of three packets two are full
/// frames, the third one acknowledges them. `--pace-cpus` uses 0.95 of the CPU time.
const CAPACITY_PPS: u32 = 10_200;
/// How long the whole path may take to serve.
const START_LIMIT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The addresses of the server are those of this network, from 1 on; HAProxy knows one for each function.
const SERVER_NETWORK: [u8; 3] = [10, 79, 1];
/// What asks the server, the client or HAProxy, and the network of both.
const ASKER: Ipv4Addr = Ipv4Addr::new(10, 79, 0, 2);
const NETWORK: &str = "10.79.0.0/16";
/// Where HAProxy listens, the client before it, and their network.
const HAPROXY: &str = "10.78.0.1";
const CLIENT_OF_HAPROXY: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);
const NETWORK_OF_HAPROXY: &str = "10.78.0.0/24";

/// A function and what a packet costs it.
#[derive(Debug)]
pub(super) struct Function {
    pub(super) name: &'static str,
    pub(super) image: &'static str,
    pub(super) command: Vec<String>,
    /// In words, for tables.
    pub(super) cost: String,
}

/// The cost of an inspection: at full frames a CPU carries 73 MB/s, as the paper's Snort carries one heavy flow.
pub(super) const COST_NS: u32 = 2_000;
pub(super) const COST_NS_PER_BYTE: f64 = 12.4;
/// [`CPUS`], as an option.
pub(super) const PACE_CPUS: &str = "0.16";

/// `forward` with that cost, declared.
pub(super) fn forward() -> Function {
    let (cost_ns, per_byte) = (COST_NS.to_string(), COST_NS_PER_BYTE.to_string());
    let command = [
        "/inco-nf",
        "forward",
        "--cross",
        "--cost-ns",
        &cost_ns,
        "--cost-ns-per-byte",
        &per_byte,
        "--pace-cpus",
        PACE_CPUS,
    ];
    Function {
        name: "forward",
        image: FORWARD_IMAGE,
        command: command.map(str::to_owned).to_vec(),
        cost: "2 µs a packet and 12.4 ns a byte, with 0.16 CPUs".to_owned(),
    }
}

/// A client, a balancer, functions and a server. Fields are in the order in which they are to end.
pub(super) struct Bed<'g> {
    session: Session<'g>,
    haproxy: Option<(Haproxy, Namespace)>,
    _server: Server,
    client: Namespace,
    _links: [Link; 2],
}

fn address(function: u8) -> Ipv4Addr {
    let [a, b, c] = SERVER_NETWORK;
    Ipv4Addr::new(a, b, c, function)
}

fn addresses() -> impl Iterator<Item = Ipv4Addr> {
    (1..=FUNCTIONS).map(address)
}

fn namespace(role: &str) -> Result<Namespace> {
    let namespace = Namespace::new(format!("inco-bench-{}-{role}", std::process::id()))?;
    // As many ports as connections may wait for their end.
    let ports = "net.ipv4.ip_local_port_range=1024 65535";
    testbed::network::output(namespace.command("sysctl").args(["-qw", ports]))?;
    Ok(namespace)
}

/// Gives an interface its addresses in a network. What is sent there is controlled by CUBIC, Linux's default, whatever
/// this machine has: a namespace may not choose it, but its routes may.
fn join(namespace: &Namespace, interface: &str, addresses: &[Ipv4Addr], network: &str) -> Result<()> {
    for address in addresses {
        let address = format!("{address}/32");
        namespace.ip(&["address", "add", &address, "dev", interface])?;
    }
    namespace.ip(&["link", "set", interface, "up"])?;
    namespace.ip(&["route", "add", network, "dev", interface, "congctl", "cubic"])
}

/// A link from inco's uplink into a namespace.
fn uplink(name: &str, to: &Namespace) -> Result<(Link, String)> {
    let near = format!("incob{}{name}", std::process::id() % 1_000_000);
    let link = Link::into(&near, to, "eth0")?;
    run("ip", &["link", "set", &near, "up"])?;
    Ok((link, near))
}

fn configuration(engine: &str, uplinks: [&str; 2], function: &Function, balancer: Balancer) -> String {
    let [wan, lan] = uplinks;
    let mut text = format!(
        "# Written by `inco bench balance`.\n[engine]\ndriver = {engine:?}\n\n[switch]\nflows = 262144\nother = \
         \"opposite\"\n\n[[uplink]]\nname = \"wan\"\ndevice = \"kernel:{wan}\"\n\n[[uplink]]\nname = \"lan\"\ndevice = \
         \"kernel:{lan}\"\n"
    );
    let mut service = |name: &str, destination: &str, instances: u8| {
        text.push_str(&format!(
            "\n[service.{name}]\nmatch = {{ proto = \"tcp\", dst = {destination:?}, dst_port = 80 }}\nuplinks = [\"wan\", \
             \"lan\"]\nimage = {:?}\ncommand = {:?}\ncpus = {CPUS}\nmemory = \"256MiB\"\nready = \"connected\"\ncapacity = \
             \"{CAPACITY_PPS}pps\"\ninstances = {instances}\nautoscaler = \"fixed\"\nstall_after = \"5s\"\n{}",
            function.image,
            function.command,
            scheduler(balancer),
        ));
    };
    match balancer {
        Balancer::Haproxy => {
            for (number, address) in (1..).zip(addresses()) {
                service(&format!("function{number}"), &format!("{address}/32"), 1);
            }
        }
        _ => service("function", &format!("{}/24", address(0)), FUNCTIONS),
    }
    text
}

/// The line with a service's scheduler. Nothing but the paper's period is other than inco's defaults; without `spill`
/// a policy is what its paper or a card does.
fn scheduler(balancer: Balancer) -> String {
    let period = PERIOD.as_millis();
    match balancer {
        Balancer::Rss => "scheduler = { policy = \"rss\", spill = false }\n".to_owned(),
        Balancer::Weighted => format!("scheduler = {{ policy = \"weighted\", period = \"{period}ms\" }}\n"),
        Balancer::WeightedAlone => {
            format!("scheduler = {{ policy = \"weighted\", period = \"{period}ms\", spill = false }}\n")
        }
        Balancer::Default | Balancer::Haproxy => String::new(),
    }
}

impl<'g> Bed<'g> {
    /// Starts everything, and waits until the whole path serves.
    ///
    /// # Errors
    /// A program is missing, or something does not start.
    pub(super) fn start(
        ground: &'g Environment,
        interrupt: &Interrupt,
        function: &Function,
        balancer: Balancer,
    ) -> Result<Bed<'g>> {
        let asker = namespace("wan")?;
        let (wan, wan_name) = uplink("w", &asker)?;
        join(&asker, "eth0", &[ASKER], NETWORK)?;
        let lan_namespace = namespace("lan")?;
        let (lan, lan_name) = uplink("l", &lan_namespace)?;
        let servers: Vec<Ipv4Addr> = addresses().collect();
        join(&lan_namespace, "eth0", &servers, NETWORK)?;
        let server = Server::start(lan_namespace, ground.directory())?;
        let uplinks = [wan_name.as_str(), lan_name.as_str()];
        let text = configuration(ground.engine_word(), uplinks, function, balancer);
        let is_haproxy = balancer == Balancer::Haproxy;
        let name = format!("balance-{}", balancer.name());
        let of_each = if is_haproxy { 1 } else { FUNCTIONS };
        let session = Session::start(ground, &name, &text, of_each.into())?;
        let (client, haproxy) = if is_haproxy {
            let (client, haproxy) = before(asker, ground.directory(), &servers)?;
            (client, Some(haproxy))
        } else {
            (asker, None)
        };
        let mut bed = Bed {
            session,
            haproxy,
            _server: server,
            client,
            _links: [wan, lan],
        };
        bed.wait_until_it_serves(interrupt)?;
        Ok(bed)
    }

    fn wait_until_it_serves(&mut self, interrupt: &Interrupt) -> Result<()> {
        let since = Instant::now();
        let address = self.address();
        loop {
            interrupt.check()?;
            self.check()?;
            match self.client.within(|| web::ask_once(address)) {
                Ok(()) => return Ok(()),
                Err(error) if since.elapsed() > START_LIMIT => {
                    return Err(error.context("nothing comes back through the functions"));
                }
                Err(_) => std::thread::sleep(POLL_INTERVAL),
            }
        }
    }

    /// The client's namespace.
    pub(super) fn client(&self) -> &Namespace {
        &self.client
    }

    /// What the client asks.
    pub(super) fn address(&self) -> &'static str {
        match self.haproxy {
            Some(_) => HAPROXY,
            None => web::ADDRESS,
        }
    }

    /// The scheduler that inco uses, if it balances.
    pub(super) fn scheduler(&self) -> Result<Option<String>> {
        if self.haproxy.is_some() {
            return Ok(None);
        }
        let services = self.session.client()?.services()?;
        Ok(services.into_iter().next().map(|row| row.scheduler))
    }

    /// What each function has taken so far.
    pub(super) fn read(&mut self) -> Result<Reading> {
        let rows = self.session.client()?.instances()?;
        self.session.note(&rows);
        let counters = self.session.client()?.counters()?;
        let taken = counters.instances.iter().map(|of| Taken {
            instance: of.id,
            packets: of.to_packets,
            bytes: of.to_bytes,
            flows: of.new_flows,
            dropped_packets: of.drops.values().sum(),
            busy_s: of.busy_s.unwrap_or_default(),
        });
        let mut taken: Vec<Taken> = taken.collect();
        taken.sort_by_key(|of| of.instance);
        if taken.len() != usize::from(FUNCTIONS) {
            bail!("there are {} functions, not {FUNCTIONS}", taken.len());
        }
        Ok(Reading(taken))
    }

    /// # Errors
    /// inco has ended.
    pub(super) fn check(&mut self) -> Result<()> {
        self.session.check()
    }

    /// Stops everything. Gives what inco left in the system.
    pub(super) fn stop(mut self) -> Result<Vec<String>> {
        // Its socket lies among inco's files.
        self.haproxy = None;
        self.session.stop()
    }
}

/// HAProxy in the namespace that asks the server, and a client before it.
fn before(
    asker: Namespace,
    directory: &Path,
    servers: &[Ipv4Addr],
) -> Result<(Namespace, (Haproxy, Namespace))> {
    let client = namespace("client")?;
    let (near, far) = ("front", "eth0");
    asker.connect(near, &client, far)?;
    let address = HAPROXY.parse().context("the address of HAProxy")?;
    join(&asker, near, &[address], NETWORK_OF_HAPROXY)?;
    join(&client, far, &[CLIENT_OF_HAPROXY], NETWORK_OF_HAPROXY)?;
    // Its checks would leave out a function that is slow: that is not what `leastconn` decides.
    let mut haproxy = Haproxy::new(directory, HAPROXY).without_checks();
    haproxy.set(&asker, servers).context("HAProxy")?;
    Ok((client, (haproxy, asker)))
}
