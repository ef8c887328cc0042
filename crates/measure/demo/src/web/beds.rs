//! A balancer with web servers behind it and a client before it: inco, or a peer.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use model::InstanceState;
use testbed::{Environment, Haproxy, Session, WEB_SERVER_IMAGE};

use super::network::{self, ADDRESS, Link, Namespace};
use super::peers::Peer;
use super::servers::{self, Server, Servers};

/// How long connections of a removed server may last: the service's `drain_deadline`.
pub(super) const DRAIN: Duration = Duration::from_secs(5);
/// The service's name.
const SERVICE: &str = "web";
/// Bytes of a page: the size of nginx's own welcome page.
const PAGE_BYTES: usize = 612;
/// Instances at most.
pub(super) const MAX: u32 = 6;

/// What balances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Balancer {
    /// inco with the driver `ebpf`
    Inco,
    /// inco with the driver `soft`, whose instances have kernel ports; not among all
    #[serde(rename = "inco")]
    IncoSoft,
    /// HAProxy in TCP mode
    Haproxy,
    /// Destination NAT by nftables
    Nftables,
    /// No balancer: the kernel's routing to one server, for the phase of speed
    Routing,
}

impl Balancer {
    pub(super) const ALL: [Balancer; 4] = [
        Balancer::Inco,
        Balancer::Haproxy,
        Balancer::Nftables,
        Balancer::Routing,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Balancer::Inco | Balancer::IncoSoft => "inco",
            Balancer::Haproxy => "haproxy",
            Balancer::Nftables => "nftables",
            Balancer::Routing => "routing",
        }
    }

    /// What moves the packets.
    pub(super) fn driver(self) -> &'static str {
        match self {
            Balancer::Inco => "ebpf",
            Balancer::IncoSoft => "soft",
            Balancer::Haproxy => "sockets",
            Balancer::Nftables => "conntrack",
            Balancer::Routing => "kernel",
        }
    }

    /// Whether it can have more than one server.
    pub(super) fn scales(self) -> bool {
        self != Balancer::Routing
    }
}

/// A client, a balancer and its servers.
pub(super) enum Bed<'g> {
    Inco(Box<IncoBed<'g>>),
    Peer(Box<PeerBed>),
}

/// inco with its instances.
pub(super) struct IncoBed<'g> {
    session: Session<'g>,
    client: Namespace,
    _link: Link,
}

/// A peer with its servers.
pub(super) struct PeerBed {
    // In this order: servers are removed while their links exist.
    servers: Servers,
    active: Vec<Server>,
    /// Removed from the balancer: with the time at which they end.
    draining: Vec<(Instant, Server)>,
    peer: Peer,
    balancer: Namespace,
    client: Namespace,
    is_direct: bool,
}

impl<'g> Bed<'g> {
    /// Starts a balancer with one server that may use `cpus` CPUs; [`None`]: as many as there are.
    ///
    /// # Errors
    /// A program is missing, or something does not start.
    pub(super) fn start(ground: &'g Environment, balancer: Balancer, cpus: Option<f64>) -> Result<Bed<'g>> {
        let configuration =
            servers::write_configuration(ground.directory(), &"inco ".repeat(123)[..PAGE_BYTES])?;
        if matches!(balancer, Balancer::Inco | Balancer::IncoSoft) {
            let (client, link, uplink) = network::client_of_inco()?;
            let quota = cpus.map_or(String::new(), |cpus| format!("cpus = {cpus}\n"));
            let text = format!(
                "# Written by `inco demo --web`.\n[engine]\ndriver = {:?}\n\n[switch]\ndriver = {:?}\n\n[[uplink]]\nname \
                 = \"wan\"\ndevice = \"kernel:{uplink}\"\n\n[service.{SERVICE}]\nvip = {{ address = {ADDRESS:?}, ports = \
                 \"80\" }}\nport = \"kernel\"\nimage = {WEB_SERVER_IMAGE:?}\ncommand = {:?}\nmounts = [\"{}:{}:ro\"]\n{quota}memory = \
                 \"128MiB\"\ninstances = {{ min = 1, max = {MAX}, standby = 0 }}\nscheduler = {{ policy = \
                 \"least-connections\", slow_start = \"0s\" }}\ndrain_deadline = \"{}s\"\n",
                ground.engine_word(),
                balancer.driver(),
                servers::command(),
                configuration.display(),
                servers::CONFIGURATION,
                DRAIN.as_secs(),
            );
            let session = Session::start(ground, "web", &text, 1)?;
            return Ok(Bed::Inco(Box::new(IncoBed {
                session,
                client,
                _link: link,
            })));
        }
        let (client, namespace) = network::client_and_balancer()?;
        let mut bed = PeerBed {
            servers: Servers::new(ground.directory(), &configuration, cpus)?,
            active: Vec::new(),
            draining: Vec::new(),
            peer: match balancer {
                Balancer::Haproxy => Peer::Haproxy(Haproxy::new(ground.directory(), ADDRESS)),
                Balancer::Nftables => Peer::Nftables,
                Balancer::Routing | Balancer::Inco | Balancer::IncoSoft => Peer::Routing,
            },
            balancer: namespace,
            client,
            is_direct: balancer == Balancer::Routing,
        };
        bed.set(1)?;
        Ok(Bed::Peer(Box::new(bed)))
    }

    /// The client's namespace.
    pub(super) fn client(&self) -> &Namespace {
        match self {
            Bed::Inco(bed) => &bed.client,
            Bed::Peer(bed) => &bed.client,
        }
    }

    /// The address that clients use.
    pub(super) fn address(&self) -> String {
        match self {
            Bed::Peer(bed) if bed.is_direct => match bed.active.first() {
                Some(server) => server.address.to_string(),
                None => ADDRESS.to_owned(),
            },
            Bed::Inco(_) | Bed::Peer(_) => ADDRESS.to_owned(),
        }
    }

    /// Asks for so many servers. Those of a peer are there when this returns, inco's come by themselves.
    ///
    /// # Errors
    /// The balancer refuses it, or a server does not start.
    pub(super) fn scale(&mut self, count: u32) -> Result<()> {
        match self {
            Bed::Inco(bed) => bed.session.ask_for(SERVICE, count),
            Bed::Peer(bed) => bed.set(count as usize),
        }
    }

    /// Kills the program of one active server.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn kill_one(&mut self) -> Result<()> {
        match self {
            Bed::Inco(bed) => {
                let rows = bed.session.client()?.instances()?;
                let active = rows.iter().find(|row| row.state == InstanceState::Active);
                let pid = active
                    .and_then(|row| row.pid)
                    .context("inco has no active instance")?;
                let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
                let pid = pid.context("an instance has no process id")?;
                rustix::process::kill_process(pid, rustix::process::Signal::KILL)
                    .context("cannot kill an instance")
            }
            Bed::Peer(bed) => {
                bed.active.first().context("there is no server")?.kill();
                Ok(())
            }
        }
    }

    /// Does what is due: ends servers of a peer that have drained.
    ///
    /// # Errors
    /// inco has ended, or a server cannot be removed.
    pub(super) fn poll(&mut self) -> Result<()> {
        match self {
            Bed::Inco(bed) => bed.session.check(),
            Bed::Peer(bed) => bed.end_drained(),
        }
    }

    /// Connections of each active server, where the balancer tells.
    ///
    /// # Errors
    /// inco does not answer.
    pub(super) fn connections(&self) -> Result<Vec<Option<u64>>> {
        match self {
            Bed::Inco(bed) => {
                let rows = bed.session.client()?.instances()?;
                let active = rows.iter().filter(|row| row.state == InstanceState::Active);
                Ok(active.map(|row| Some(row.live_flows)).collect())
            }
            Bed::Peer(bed) => Ok(vec![None; bed.active.len()]),
        }
    }

    /// Stops everything. Returns what inco left in the system.
    ///
    /// # Errors
    /// inco did not end cleanly.
    pub(super) fn stop(self) -> Result<Vec<String>> {
        match self {
            Bed::Inco(bed) => bed.session.stop(),
            Bed::Peer(mut bed) => {
                for server in std::mem::take(&mut bed.active) {
                    bed.servers.remove(server)?;
                }
                for (_, server) in std::mem::take(&mut bed.draining) {
                    bed.servers.remove(server)?;
                }
                Ok(Vec::new())
            }
        }
    }
}

impl PeerBed {
    fn set(&mut self, count: usize) -> Result<()> {
        while self.active.len() < count {
            let server = self.servers.add(&self.balancer)?;
            self.active.push(server);
        }
        let end = Instant::now() + DRAIN;
        let removed = self.active.split_off(count.min(self.active.len()));
        let addresses: Vec<_> = self.active.iter().map(|server| server.address).collect();
        if addresses.is_empty() {
            bail!("a balancer needs a server");
        }
        self.peer.set(&self.balancer, &addresses)?;
        self.draining
            .extend(removed.into_iter().map(|server| (end, server)));
        Ok(())
    }

    fn end_drained(&mut self) -> Result<()> {
        let now = Instant::now();
        let (over, left) = std::mem::take(&mut self.draining)
            .into_iter()
            .partition(|(end, _)| *end <= now);
        self.draining = left;
        for (_, server) in over {
            self.servers.remove(server)?;
        }
        Ok(())
    }
}
