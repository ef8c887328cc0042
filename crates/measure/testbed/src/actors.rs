//! A running inco with services of actors, and a network for their clients: the applications of iPipe as a user would
//! configure them.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use api::types::{ActorsRow, InstanceRow};
use engine::ImageRef;
use model::ActorSide;

use crate::network::{Link, Namespace, run as command};
use crate::{Environment, Session};

/// A side that takes no packet for so long has failed, in seconds: other programs use the CPUs, too, and a run may stop a side
/// for a while.
const STALL_AFTER_S: u32 = 3;
/// The address of the clients.
const CLIENT: &str = "10.78.0.2/24";

/// An application as a service of actors.
#[derive(Clone, Debug)]
pub struct Application {
    /// The service's name.
    pub name: &'static str,
    /// Its address, in the clients' network.
    pub address: &'static str,
    /// Its first port.
    pub port: u16,
    /// What it is.
    pub kind: Kind,
    /// Lines of the table `sides` of its configuration.
    pub sides: String,
}

/// The applications.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The key-value store with so many replicas, each with a port, which moves as a whole.
    Store {
        /// How many.
        replicas: usize,
    },
    /// A coordinator with a port, and two participants.
    Transactions,
    /// Two filters with ports, two counters with their rankers, and an aggregator with a port.
    Analytics {
        /// Slots of a window.
        slots: u64,
        /// Milliseconds of a slot.
        slot_time: u64,
        /// Rows of a window.
        n: usize,
    },
    /// A counter in a process of its own, with a port, and so many actors that offend when they are told to, each with a
    /// process and a port.
    Offenders {
        /// How many.
        count: u16,
        /// What they may use for a message, in milliseconds of CPU time.
        budget_ms: u64,
    },
}

impl Kind {
    fn ports(self) -> u16 {
        match self {
            Kind::Store { replicas } => replicas as u16,
            Kind::Transactions => 1,
            Kind::Analytics { .. } => 3,
            Kind::Offenders { count, .. } => count + 1,
        }
    }
}

impl Application {
    /// The address of each of its ports.
    ///
    /// # Errors
    /// Its address is none.
    pub fn addresses(&self) -> Result<Vec<std::net::SocketAddr>> {
        let address: std::net::IpAddr = self.address.parse()?;
        let ports = self.port..self.port + self.kind.ports();
        Ok(ports.map(|port| (address, port).into()).collect())
    }

    /// The configuration of its service, with this folder for its data.
    pub fn configuration(&self, data: &Path) -> String {
        let Application { name, address, .. } = self;
        let ports = format!("{}-{}", self.port, self.port + self.kind.ports() - 1);
        let mut text = format!(
            "[service.{name}]\nkind = \"actors\"\nvip = {{ address = {address:?}, ports = {ports:?} }}\ncpus = \
             1.0\nmemory = \"512MiB\"\nstall_after = \"{STALL_AFTER_S}s\"\nmounts = [\"{}:/data\"]\n",
            data.display(),
        );
        let mut actor = |actor: &str, kind: &str, options: &str, more: &str| {
            text.push_str(&format!(
                "[[service.{name}.actors]]\nname = {actor:?}\nkind = {kind:?}\nregion = \"16MiB\"\nobjects = \
                 131072\noptions = {{ {options} }}\n{more}"
            ));
        };
        match self.kind {
            Kind::Store { replicas } => store(replicas, self.port, &mut actor),
            Kind::Transactions => {
                let port = format!("ports = {}\n", self.port);
                let options = "participants = \"@left,@right\", journal = \"@journal\", tick = 20";
                actor("coordinator", "transactions-coordinator", options, &port);
                for side in ["left", "right"] {
                    let options = "coordinator = \"@coordinator\"";
                    actor(side, "transactions-participant", options, "");
                }
                let options = "coordinator = \"@coordinator\", folder = \"/data\"";
                actor("journal", "transactions-journal", options, "side = \"host\"\n");
            }
            Kind::Analytics { slots, slot_time, n } => {
                for of in 0..2 {
                    let port = format!("ports = {}\n", self.port + of);
                    let options = "patterns = \"inco\", counters = \"@counter0,@counter1\"";
                    actor(&format!("filter{of}"), "analytics-filter", options, &port);
                    let options = format!(
                        "ranker = \"@ranker{of}\", sources = 2, slots = {slots}, slot_time = {slot_time}, keys = 1000"
                    );
                    actor(&format!("counter{of}"), "analytics-counter", &options, "");
                    let options = format!("aggregator = \"@aggregator\", n = {n}");
                    actor(&format!("ranker{of}"), "analytics-ranker", &options, "");
                }
                let (port, options) = (
                    format!("ports = {}\n", self.port + 2),
                    format!("rankers = \"@ranker0,@ranker1\", n = {n}"),
                );
                actor("aggregator", "analytics-aggregator", &options, &port);
            }
            Kind::Offenders { count, budget_ms } => {
                let options = |name: &str| format!("process = {name:?}, budget_ms = {budget_ms}");
                let port = |of: u16| format!("ports = {}\n", self.port + of);
                actor("neighbour", "counter", &options("neighbour"), &port(0));
                for of in 1..=count {
                    let name = format!("offender{of}");
                    actor(&name, "offender", &options(&name), &port(of));
                }
            }
        }
        text.push_str(&format!("[service.{name}.sides]\n{}", self.sides));
        text
    }
}

/// The actors of a store: four for each replica.
fn store(replicas: usize, port: u16, actor: &mut impl FnMut(&str, &str, &str, &str)) {
    let all: Vec<String> = (0..replicas).map(|of| format!("@consensus{of}")).collect();
    for of in 0..replicas {
        let group = format!("group = \"replica{of}\"\n");
        let folder = format!("folder = \"/data/{of}\"");
        let mut part = |name: &str, options: &str, more: &str| {
            actor(
                &format!("{name}{of}"),
                &format!("store-{name}"),
                options,
                &format!("{group}{more}"),
            );
        };
        part(
            "consensus",
            &format!(
                "me = {of}, seed = {of}, tick = 20, memtable = \"@memtable{of}\", replicas = \"{}\"",
                all.join(",")
            ),
            &format!("ports = {}\n", port + of as u16),
        );
        part(
            "memtable",
            &format!(
                "consensus = \"@consensus{of}\", tables = \"@tables{of}\", compaction = \"@compaction{of}\""
            ),
            "",
        );
        let rest = format!("compaction = \"@compaction{of}\", {folder}");
        part("tables", &format!("memtable = \"@memtable{of}\", {rest}"), "");
        let rest = format!("tables = \"@tables{of}\", {folder}");
        part("compaction", &format!("memtable = \"@memtable{of}\", {rest}"), "");
    }
}

/// The running inco.
pub struct Applications<'g> {
    // In the order in which they end.
    session: Session<'g>,
    _link: Link,
    clients: Namespace,
}

impl<'g> Applications<'g> {
    /// Starts inco with these services, of which each has two sides: the card with this share of a CPU and the host with
    /// a whole one. Makes the image of the sides.
    ///
    /// # Errors
    /// inco does not start, or the clients' network cannot be made.
    pub fn start(
        ground: &'g Environment,
        name: &str,
        card_cpus: f64,
        applications: &[Application],
    ) -> Result<Applications<'g>> {
        Applications::start_with_data(ground, name, card_cpus, applications, ground.directory())
    }

    /// The same with the data of the services in this directory.
    ///
    /// # Errors
    /// As of [`start`](Applications::start).
    pub fn start_with_data(
        ground: &'g Environment,
        name: &str,
        card_cpus: f64,
        applications: &[Application],
        data: &Path,
    ) -> Result<Applications<'g>> {
        images::build_function(images::ACTORS, &ImageRef::from(configuration::ACTORS_IMAGE))?;
        let id = std::process::id();
        let clients = Namespace::new(format!("inco-{name}-{id}"))?;
        let uplink = format!("incoa{}", id % 1_000_000);
        let link = Link::into(&uplink, &clients, "eth0")?;
        command("ip", &["link", "set", &uplink, "up"])?;
        clients.ip(&["address", "add", CLIENT, "dev", "eth0"])?;
        clients.ip(&["link", "set", "eth0", "up"])?;
        let mut text = format!(
            "# Written by `inco`.\n[engine]\ndriver = {:?}\n[switch]\ndriver = \"soft\"\nflows = \
             65536\n[[uplink]]\nname = \"wan\"\ndevice = \"kernel:{uplink}\"\n[[place]]\nname = \"card\"\nshare = \
             {card_cpus:?}\n[[place]]\nname = \"host\"\n",
            ground.engine_word(),
        );
        for application in applications {
            let data = folder(data, application.name)?;
            text.push_str(&application.configuration(&data));
        }
        let session = Session::start(ground, name, &text, 1)?;
        Ok(Applications {
            session,
            _link: link,
            clients,
        })
    }

    /// The network of the clients. Their sockets stay in it.
    pub fn clients(&self) -> &Namespace {
        &self.clients
    }

    /// The running inco.
    pub fn session(&self) -> &Session<'g> {
        &self.session
    }

    /// A service as it is now.
    ///
    /// # Errors
    /// inco does not answer, or has no such service.
    pub fn row(&self, service: &str) -> Result<ActorsRow> {
        let rows = self.session.client()?.actors()?;
        let row = rows.into_iter().find(|of| of.service == service);
        row.with_context(|| format!("inco has no service of actors `{service}`"))
    }

    /// The process of a side of a service, while there is one.
    ///
    /// # Errors
    /// As of [`row`](Applications::row).
    pub fn pid(&self, service: &str, side: ActorSide) -> Result<Option<u32>> {
        let row = self.row(service)?;
        let of = row.sides.iter().find(|of| of.side == side);
        let Some(id) = of.filter(|of| of.runs).and_then(|of| of.instance) else {
            return Ok(None);
        };
        let all: Vec<InstanceRow> = self.session.client()?.instances()?;
        Ok(all.into_iter().find(|of| of.id == id).and_then(|of| of.pid))
    }

    /// Stops inco.
    ///
    /// # Errors
    /// inco did not end cleanly, or something of it remains.
    pub fn stop(self) -> Result<()> {
        let left = self.session.stop()?;
        if !left.is_empty() {
            bail!("inco left behind: {}", left.join("; "));
        }
        Ok(())
    }
}

fn folder(parent: &Path, name: &str) -> Result<PathBuf> {
    let data = parent.join(format!("data-{name}"));
    // That of an earlier run.
    if data.exists() {
        fs::remove_dir_all(&data).with_context(|| format!("cannot remove {}", data.display()))?;
    }
    fs::create_dir_all(&data).with_context(|| format!("cannot make {}", data.display()))?;
    // Root of a container is another user here.
    fs::set_permissions(&data, Permissions::from_mode(0o777))?;
    Ok(data)
}
