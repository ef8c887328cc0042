//! A path with its two ends: a client, and a server with nginx and iperf3.

mod card;
mod inco;
mod kernel;
mod ovs;

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use testbed::http::Connection;
use testbed::network::{Link, Namespace, Network, output, run};
use testbed::{Environment, Interrupt, OpenVSwitch, Session};
use traffic::Port;

use super::port::{KernelPort, mac};
use crate::args::{PathName, PathScope};
use crate::contestant::KilledOnDrop;

pub(super) use card::Card;

/// How long a path may take to serve.
const START_LIMIT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// The interface of an end.
const END: &str = "eth0";
/// The first port of iperf3; each connection has a server of its own.
pub(super) const FIRST_PORT: u16 = 5201;
/// The last one.
pub(super) const LAST_PORT: u16 = FIRST_PORT + 31;
/// Redis, the last of three tiers.
pub(super) const STORE_PORT: u16 = 6379;
/// The application, the middle one.
pub(super) const APPLICATION_PORT: u16 = 8080;
/// Connections of the first tier to the application that stay.
const KEPT: u32 = 64;
/// What clients ask for.
pub(super) const PAGE: &str = "page";
/// Its size: a small answer.
pub(super) const PAGE_BYTES: u64 = 1024;
/// Bytes of layer 3 in a tunnel of VXLAN over links of 1500.
const TUNNEL_MTU: &str = "1450";
/// The name of the client's namespace.
const CLIENT: &str = "client";
/// What all namespaces of this bench begin with; the process id follows.
const PREFIX: &str = "inco-paths-";

/// What the beds of a run share.
pub(super) struct Ground {
    environment: Environment,
    root: PathBuf,
    interrupt: Interrupt,
    card: Option<Card>,
}

/// A path that is up. Fields are in the order in which they are to end.
pub(super) struct Bed<'g> {
    programs: Vec<KilledOnDrop>,
    session: Option<Session<'g>>,
    _switches: Vec<OpenVSwitch>,
    _card: Vec<card::Taken>,
    client: Namespace,
    server: Option<Network>,
    _namespaces: Vec<Namespace>,
    _links: Vec<Link>,
    /// What the client asks.
    address: &'static str,
    /// The client's own address.
    own: &'static str,
    /// Who takes the client's packets to that address.
    next_hop: &'static str,
    /// From where the generator sends: the first of some addresses that nobody has.
    source: &'static str,
    /// Where the generator of packets is.
    generator: Place,
    /// Servers of iperf3 that listen.
    servers: u16,
    /// Whether redis was started.
    has_store: bool,
}

/// Where packets of the generator enter and leave.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In by the client's interface, out by the server's.
    Ends,
    /// In and out by the client's interface.
    Client,
    /// The uplink of inco.
    Uplink,
}

impl Ground {
    /// The directory of the run, with what nginx serves. Removes what a killed bench left.
    pub(super) fn new(environment: Environment, interrupt: Interrupt, card: Option<Card>) -> Result<Ground> {
        remove_leftovers()?;
        let root = environment.directory().join("paths");
        fs::create_dir_all(&root).with_context(|| format!("cannot make {}", root.display()))?;
        let page = root.join(PAGE);
        File::create(&page)
            .and_then(|made| made.set_len(PAGE_BYTES))
            .with_context(|| format!("cannot write {}", page.display()))?;
        for (name, inside) in [
            ("container.conf", Path::new("/srv")),
            ("namespace.conf", root.as_path()),
        ] {
            let file = root.join(name);
            fs::write(&file, nginx(inside)).with_context(|| format!("cannot write {}", file.display()))?;
        }
        Ok(Ground {
            environment,
            root,
            interrupt,
            card,
        })
    }

    /// The card that was named.
    pub(super) fn card(&self) -> Option<&Card> {
        self.card.as_ref()
    }

    /// The directory of the run.
    pub(super) fn directory(&self) -> &Path {
        self.environment.directory()
    }

    /// Sets a path up, and waits until it serves.
    ///
    /// # Errors
    /// The machine lacks something, or the path does not serve.
    pub(super) fn start(&self, path: PathName, scope: PathScope) -> Result<Bed<'_>> {
        let mut bed = match path {
            PathName::Bridge => kernel::bridge(scope)?,
            PathName::Nftables => kernel::nftables(self, scope)?,
            PathName::Vxlan => kernel::vxlan()?,
            PathName::Ovs => ovs::bridge(self, scope)?,
            PathName::OvsVxlan => ovs::vxlan(self)?,
            PathName::Ebpf | PathName::SoftKernel | PathName::Hybrid => inco::container(self, path, scope)?,
            PathName::AfXdp | PathName::Memif | PathName::Esp => inco::function(self, path)?,
            PathName::Device | PathName::Representors | PathName::CardRules => {
                let card = self.card().context("`--device` names no functions of a card")?;
                card.start(path)?
            }
        };
        bed.begin(self)?;
        Ok(bed)
    }
}

/// The configuration of nginx, whose files are in `inside`. It is the first of three tiers, too: the application is at
/// the client's end, whose address is in the path.
fn nginx(inside: &Path) -> String {
    let clients = [kernel::NEAR, kernel::FAR];
    let upstreams = clients.map(|of| {
        format!("  upstream {of} {{\n    server {of}:{APPLICATION_PORT};\n    keepalive {KEPT};\n  }}\n")
    });
    let locations = clients.map(|of| {
        format!(
            "    location /tiers/{of} {{\n      proxy_pass http://{of};\n      proxy_http_version 1.1;\n      \
             proxy_set_header Connection \"\";\n    }}\n"
        )
    });
    format!(
        "daemon off;\nmaster_process off;\nuser root;\nerror_log stderr warn;\npid /tmp/inco-paths.pid;\nevents {{}}\nhttp {{\n  \
         access_log off;\n  keepalive_requests 1000000000;\n  client_body_temp_path /tmp/inco-paths-body;\n  proxy_temp_path \
         /tmp/inco-paths-proxy;\n  fastcgi_temp_path /tmp/inco-paths-fastcgi;\n  uwsgi_temp_path /tmp/inco-paths-uwsgi;\n  \
         scgi_temp_path /tmp/inco-paths-scgi;\n{}  server {{\n    listen 80 backlog=1024;\n    root {};\n{}  }}\n}}\n",
        upstreams.concat(),
        inside.display(),
        locations.concat()
    )
}

impl<'g> Bed<'g> {
    /// A bed whose server is the network of a namespace.
    fn of(client: Namespace, server: Namespace, hosts: Vec<Namespace>, address: &'static str) -> Bed<'g> {
        let network = server.network();
        let mut namespaces = hosts;
        namespaces.push(server);
        Bed {
            programs: Vec::new(),
            session: None,
            _switches: Vec::new(),
            _card: Vec::new(),
            client,
            server: Some(network),
            _namespaces: namespaces,
            _links: Vec::new(),
            address,
            own: kernel::NEAR,
            next_hop: address,
            source: kernel::SOURCE,
            generator: Place::Ends,
            servers: 0,
            has_store: false,
        }
    }

    /// Starts the web server, and waits until it answers.
    fn begin(&mut self, ground: &'g Ground) -> Result<()> {
        let Some(server) = &self.server else { return Ok(()) };
        if self.session.is_none() {
            let log = File::create(ground.directory().join("nginx.log")).context("cannot make nginx.log")?;
            let mut command = server.server("nginx");
            command
                .arg("-c")
                .arg(ground.root.join("namespace.conf"))
                .stderr(log);
            self.programs.push(spawn(command, "nginx-light")?);
        }
        let to: SocketAddr = format!("{}:80", self.address)
            .parse()
            .context("the server's address")?;
        let path = format!("/{PAGE}");
        self.wait(&ground.interrupt, "the server does not answer", |bed| {
            let length = bed
                .client
                .within(|| Connection::open(to)?.fetch(&path, true, |_| {}))?;
            ensure!(length == PAGE_BYTES, "the answer has {length} bytes");
            Ok(())
        })
    }

    pub(super) fn wait(
        &self,
        interrupt: &Interrupt,
        what: &'static str,
        done: impl Fn(&Bed<'_>) -> Result<()>,
    ) -> Result<()> {
        let since = Instant::now();
        loop {
            interrupt.check()?;
            match done(self) {
                Ok(()) => return Ok(()),
                Err(error) if since.elapsed() > START_LIMIT => return Err(error.context(what)),
                Err(_) => std::thread::sleep(POLL_INTERVAL),
            }
        }
    }

    /// The client's namespace.
    pub(super) fn client(&self) -> &Namespace {
        &self.client
    }

    /// What clients ask.
    pub(super) fn address(&self) -> &'static str {
        self.address
    }

    /// The client's own address.
    pub(super) fn own(&self) -> &'static str {
        self.own
    }

    /// The first address of the generator's packets.
    pub(super) fn source(&self) -> &'static str {
        self.source
    }

    /// Has servers of iperf3 listen, on ports from [`FIRST_PORT`] on.
    ///
    /// # Errors
    /// It is not installed.
    pub(super) fn serve(&mut self, ground: &Ground, count: u16) -> Result<()> {
        let server = self.server.as_ref().context("this path has no server")?;
        let first = self.programs.len();
        for number in self.servers..count {
            let mut command = server.server("iperf3");
            let port = FIRST_PORT + number;
            command.args(["--server", "--port", &port.to_string()]);
            self.programs.push(spawn(command, "iperf3")?);
        }
        for (number, program) in (self.servers..).zip(self.programs.get(first..).unwrap_or_default()) {
            let port = FIRST_PORT + number;
            self.wait(&ground.interrupt, "iperf3 does not listen", |_| {
                // The process is in the server's network, and so is what this file lists.
                let mut listed = String::new();
                for family in ["tcp", "tcp6"] {
                    let file = format!("/proc/{}/net/{family}", program.pid());
                    listed
                        .push_str(&fs::read_to_string(&file).with_context(|| format!("cannot read {file}"))?);
                }
                ensure!(listens(&listed, port), "nobody listens on port {port}");
                Ok(())
            })?;
        }
        self.servers = self.servers.max(count);
        Ok(())
    }

    /// Has redis serve at the server's end, unless it does; whether it does is to be seen.
    ///
    /// # Errors
    /// It is not installed.
    pub(super) fn store(&mut self, ground: &Ground) -> Result<()> {
        if self.has_store {
            return Ok(());
        }
        let server = self.server.as_ref().context("this path has no server")?;
        let mut command = server.server("redis-server");
        command.args([
            "--port",
            &STORE_PORT.to_string(),
            "--bind",
            "0.0.0.0",
            "--protected-mode",
            "no",
        ]);
        command
            .args(["--save", "", "--appendonly", "no", "--dir"])
            .arg(&ground.root);
        self.programs.push(spawn(command, "redis-server")?);
        self.has_store = true;
        Ok(())
    }

    /// Where a generator of packets sends and receives.
    ///
    /// # Errors
    /// The kernel refuses a packet socket, or the uplink does not answer.
    pub(super) fn port(&self) -> Result<Box<dyn Port>> {
        let client = self.client.network();
        let port = match self.generator {
            Place::Uplink => {
                let session = self.session.as_ref().context("this path has no uplink")?;
                return Ok(Box::new(session.uplink()?));
            }
            Place::Client => KernelPort::open(&client, &client, END, None)?,
            Place::Ends => {
                let server = self.server.as_ref().context("this path has no server")?;
                let listed = output(self.client.command("ip").args(["neigh", "show", self.next_hop]))?;
                let words: Vec<&str> = listed.split_whitespace().collect();
                let address = words.iter().position(|word| *word == "lladdr");
                let address = address.and_then(|place| words.get(place + 1)).copied();
                let to = address.and_then(mac);
                let to = to.with_context(|| format!("{} has no MAC address: {listed:?}", self.next_hop))?;
                KernelPort::open(&client, server, END, Some(to))?
            }
        };
        Ok(Box::new(port))
    }

    /// Ends it all.
    ///
    /// # Errors
    /// inco left something behind.
    pub(super) fn stop(mut self) -> Result<()> {
        self.programs.clear();
        let left = self.session.take().map(Session::stop).transpose()?;
        match left.unwrap_or_default() {
            left if left.is_empty() => Ok(()),
            left => bail!("inco left behind: {}", left.join(", ")),
        }
    }
}

/// Starts a program that lasts; `package` is what to install if it is missing.
fn spawn(mut command: Command, package: &str) -> Result<KilledOnDrop> {
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot run {command:?}: `apt-get install {package}`"))?;
    Ok(KilledOnDrop::new(child))
}

/// Whether `/proc/net/tcp` lists a socket that listens on the port.
fn listens(listed: &str, port: u16) -> bool {
    let port = format!(":{port:04X}");
    listed.lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        matches!(words.as_slice(), [_, local, _, "0A", ..] if local.ends_with(&port))
    })
}

fn namespace(role: &str) -> Result<Namespace> {
    let namespace = Namespace::new(format!("{PREFIX}{}-{role}", std::process::id()))?;
    let quiet = "net.ipv6.conf.all.disable_ipv6=1";
    output(namespace.command("sysctl").args(["-qw", quiet]))?;
    Ok(namespace)
}

/// An end: a namespace with an interface, whose other end is `near` in its host.
fn end(role: &str, host: &Namespace, near: &str, address: &str) -> Result<Namespace> {
    let end = namespace(role)?;
    host.connect(near, &end, END)?;
    host.ip(&["link", "set", near, "up"])?;
    address_of(&end, address)?;
    Ok(end)
}

/// Gives an end its address.
fn address_of(end: &Namespace, address: &str) -> Result<()> {
    end.ip(&["address", "add", address, "dev", END])?;
    end.ip(&["link", "set", END, "up"])
}

/// A bridge in the network of this process.
fn bridge_name() -> String {
    format!("incop{}b", std::process::id() % 1_000_000)
}

/// Removes namespaces and bridges of benches that were killed; what ran there ended with them.
fn remove_leftovers() -> Result<()> {
    let listed = output(Command::new("ip").args(["netns", "list"]))?;
    for name in listed.lines().filter_map(|line| line.split_whitespace().next()) {
        let Some(pid) = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()) else {
            continue;
        };
        if !Path::new("/proc").join(pid).exists() {
            run("ip", &["netns", "del", name])?;
        }
    }
    let bridges = output(Command::new("ip").args(["-brief", "link", "show", "type", "bridge"]))?;
    for name in bridges.lines().filter_map(|line| line.split_whitespace().next()) {
        let pid = name.strip_prefix("incop").and_then(|rest| rest.strip_suffix('b'));
        if let Some(pid) = pid.filter(|pid| pid.parse::<u32>().is_ok())
            && !Path::new("/proc").join(pid).exists()
        {
            run("ip", &["link", "del", name])?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_that_listen_are_found() {
        let listed = "  sl  local_address rem_address   st\n   0: 00000000:1451 00000000:0000 0A 00000000\n   1: \
                      0100007F:1452 0100007F:1451 01 00000000\n";
        assert!(listens(listed, 5201));
        assert!(!listens(listed, 5202) && !listens("", 5201));
    }

    #[test]
    fn one_server_has_what_both_ends_ask_for() {
        let text = nginx(Path::new("/srv"));
        assert!(
            text.contains("root /srv;") && text.contains("listen 80"),
            "{text}"
        );
    }
}
