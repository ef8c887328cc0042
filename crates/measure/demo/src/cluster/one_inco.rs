//! One inco that asks an orchestrator for web servers, and steers to the machines where it places them: what the demos of a
//! swarm and of Kubernetes have in common.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use api::types::InstanceRow;
use model::{Action, InstanceState};
use testbed::network::Namespace;
use testbed::{Environment, Interrupt, Session, WEB_SERVER_IMAGE};

use super::bed::namespace;
use super::load::{Asked, Load};
use super::result::{Cluster, EdgeRow};
use super::{DRAINED, Demo, HIGH, LOST, LOW, MACHINES, Machines};
use crate::live::Live;

const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Packets per second that a web server takes: a high load needs more than one, and a low one does not.
const CAPACITY: &str = "6kpps";

/// What places web servers on machines.
pub(super) trait Orchestrator {
    /// How long a change may take.
    const LIMIT: Duration;

    /// The machine where an instance with that address is.
    fn machine_at(&self, address: Ipv4Addr) -> Option<u8>;

    /// How what the web servers of each machine say begins.
    ///
    /// # Errors
    /// The orchestrator does not answer.
    fn answers(&self) -> Result<[String; MACHINES as usize]>;

    /// Has it place nothing more on a machine, whose instances go on.
    ///
    /// # Errors
    /// It refuses, or does not answer.
    fn pause(&self, machine: u8) -> Result<()>;

    /// Takes a machine out of service whose instances have ended.
    ///
    /// # Errors
    /// It refuses, or does not answer.
    fn put_out_of_service(&self, machine: u8) -> Result<()>;

    /// Has it place instances on a machine again.
    ///
    /// # Errors
    /// It refuses, or does not answer.
    fn put_in_service(&self, machine: u8) -> Result<()>;

    /// A machine loses its power.
    ///
    /// # Errors
    /// Something of it cannot be ended.
    fn lose(&self, machine: u8) -> Result<()>;

    /// What it still has of inco.
    ///
    /// # Errors
    /// It does not answer.
    fn left(&self) -> Result<Vec<String>>;
}

/// The networks around inco: a bridge `lan` to the machines, and a client.
pub(super) struct Networks {
    pub(super) machine: Namespace,
    client: Namespace,
}

impl Networks {
    /// Makes them.
    ///
    /// # Errors
    /// `ip` failed.
    pub(super) fn new() -> Result<Networks> {
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
        Ok(Networks { machine, client })
    }
}

/// Everything that runs.
pub(super) struct Bed<'g, O> {
    // In this order: inco ends before the orchestrator, and both before their networks.
    session: Session<'g>,
    pub(super) orchestrator: O,
    networks: Networks,
    interrupt: Interrupt,
}

impl<'g, O: Orchestrator> Bed<'g, O> {
    /// Starts inco.
    ///
    /// # Errors
    /// It does not start.
    pub(super) fn start(
        ground: &'g Environment,
        name: &str,
        text: &str,
        // In this order: where inco does not start, the orchestrator ends before its networks, too.
        networks: Networks,
        orchestrator: O,
        interrupt: &Interrupt,
    ) -> Result<Bed<'g, O>> {
        let session = networks
            .machine
            .within(|| Session::start(ground, name, text, 1))?;
        Ok(Bed {
            session,
            orchestrator,
            networks,
            interrupt: interrupt.clone(),
        })
    }

    /// Shows the changes under load, and stops everything.
    ///
    /// # Errors
    /// A change takes too long, or the demo was interrupted.
    pub(super) fn show(self, quick: bool, live: &mut Live) -> Result<Cluster> {
        let asked = Asked {
            web: ([10, 79, 0, 100], 80).into(),
            names: None,
            machines: self.orchestrator.answers()?,
        };
        let interrupt = self.interrupt.clone();
        let load = Load::start(&self.networks.client, asked)?;
        let mut demo = Demo::new(self, load, &interrupt, quick);
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

    fn until(&self, what: &str, is_so: impl Fn(&[InstanceRow]) -> bool) -> Result<()> {
        let since = Instant::now();
        loop {
            let rows = self.session.client()?.instances()?;
            if is_so(&rows) {
                return Ok(());
            }
            self.interrupt.check()?;
            if since.elapsed() > O::LIMIT {
                bail!("not within {} s: {what}: {rows:?}", O::LIMIT.as_secs());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Whether an instance is at that machine.
    fn is_at(&self, row: &InstanceRow, machine: u8) -> bool {
        let host = row
            .address
            .as_deref()
            .and_then(|address| address.rsplit_once(':'));
        let address = host.and_then(|(host, _)| host.parse().ok());
        address.and_then(|address| self.orchestrator.machine_at(address)) == Some(machine)
    }

    /// Whether web servers are active, and none is at that machine.
    fn are_elsewhere(&self, rows: &[InstanceRow], machine: u8) -> bool {
        active(rows).next().is_some() && !rows.iter().any(|row| self.is_at(row, machine))
    }

    /// In order: nothing more is placed there, the web servers there end after their connections, and then the orchestrator may
    /// end what is left.
    fn drain(&self, machine: u8) -> Result<()> {
        self.orchestrator.pause(machine)?;
        let client = self.session.client()?;
        for row in client.instances()? {
            if self.is_at(&row, machine) {
                client.act(&Action::Drain { instance: row.id })?;
            }
        }
        self.until("the web servers of the machine have ended", |rows| {
            self.are_elsewhere(rows, machine)
        })?;
        self.orchestrator.put_out_of_service(machine)
    }

    /// Kills inco; the next one goes on.
    fn kill_and_start(&mut self) -> Result<()> {
        self.session.kill()?;
        let session = &mut self.session;
        self.networks.machine.within(|| session.start_again())?;
        self.session.wait_until_ready(1)
    }

    /// Stops everything. Returns what was left in the system.
    fn stop(self) -> Result<Vec<String>> {
        let mut left = self.session.stop()?;
        left.extend(self.orchestrator.left()?);
        Ok(left)
    }
}

impl<O: Orchestrator> Machines for Bed<'_, O> {
    fn servers(&self) -> Result<Vec<u32>> {
        let rows = self.session.client()?.instances()?;
        let count = |machine| active(&rows).filter(|row| self.is_at(row, machine)).count() as u32;
        Ok((1..=MACHINES).map(count).collect())
    }
}

impl<O: Orchestrator> Demo<'_, Bed<'_, O>> {
    fn changes(&mut self, live: &mut Live) -> Result<()> {
        self.load.set_clients(LOW);
        self.phase("low load", live, |_| Ok(()))?;
        self.load.set_clients(HIGH);
        self.phase("high load", live, |bed| {
            bed.until("there are two web servers", |rows| active(rows).count() > 1)
        })?;
        self.phase("machine 1 drains", live, |bed| bed.drain(DRAINED))?;
        self.phase("machine 1 is back", live, |bed| {
            bed.orchestrator.put_in_service(DRAINED)
        })?;
        self.phase("inco is killed", live, Bed::kill_and_start)?;
        self.load.note_change();
        self.phase("machine 3 is lost", live, |bed| {
            bed.orchestrator.lose(LOST)?;
            bed.until("its web servers are elsewhere", |rows| {
                bed.are_elsewhere(rows, LOST)
            })
        })?;
        self.load.note_change();
        self.load.set_clients(LOW);
        self.phase("low again", live, |_| Ok(()))
    }
}

fn active(rows: &[InstanceRow]) -> impl Iterator<Item = &InstanceRow> {
    rows.iter().filter(|row| row.state == InstanceState::Active)
}

/// A web server that says at which machine it is, as `place` has it, and which one it is.
pub(super) fn site(place: &str) -> String {
    format!(
        "daemon off;\nmaster_process off;\nuser root;\nerror_log stderr warn;\npid /tmp/nginx.pid;\nevents {{ \
         worker_connections 1024; }}\nhttp {{\n  access_log off;\n  client_body_temp_path /tmp/b;\n  proxy_temp_path \
         /tmp/p;\n  fastcgi_temp_path /tmp/f;\n  uwsgi_temp_path /tmp/u;\n  scgi_temp_path /tmp/s;\n  keepalive_timeout \
         1h;\n  keepalive_requests 1000000;\n  server {{\n    listen 8080;\n    location / {{ return 200 \"{place} \
         $hostname\"; }}\n  }}\n}}\n"
    )
}

/// The configuration of inco with an engine, where `/etc/site/nginx.conf` is [`site`]: what the engine is, and what it is asked.
pub(super) fn configuration(engine: &str, asked: &str) -> String {
    format!(
        "# Written by `inco demo --cluster`.\n[switch]\ndriver = \"ebpf\"\n[[uplink]]\nname = \"wan\"\ndevice = \
         \"kernel:eth1\"\n[[uplink]]\nname = \"lan\"\ndevice = \"kernel:lan\"\n{engine}[service.web]\nuplinks = \
         [\"wan\"]\nport = \"routed\"\nimage = {WEB_SERVER_IMAGE:?}\ncommand = [\"/usr/sbin/nginx\", \"-c\", \
         \"/etc/site/nginx.conf\"]\nvip = {{ address = \"10.79.0.100\", ports = 80, mode = \"dnat\", target_port = 8080 \
         }}\ncapacity = {CAPACITY:?}\ninstances = {{ min = 1, max = 4, standby = 0 }}\nhealth = {{ http = \"/\", every = \
         \"100ms\", fall = 3, rise = 1 }}\n{asked}scheduler = {{ policy = \"least-connections\", slow_start = \"0s\" \
         }}\ndrain_deadline = \"30s\"\n"
    )
}
