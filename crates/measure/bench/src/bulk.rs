//! Bulk downloads from a web server: the programs of the driver `ebpf` against a kernel bridge.
//!
//! ```text
//! inco     client - veth - programs of inco - veth - nginx in a container
//! bridge   client - veth - bridge ----------- veth - nginx in a namespace
//! ```
//! A bridge neither chooses a server nor remembers a flow: it is the least that the kernel does between two interfaces.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use display::output;
use display::table::Table;
use images::EngineName;
use serde::Serialize;
use testbed::http::Connection;
use testbed::network::{Link, Namespace, run as run_program};
use testbed::{CpuTime, Environment, Interrupt, Session, SwitchName, WEB_SERVER_IMAGE};

use super::contestant::{KilledOnDrop, median};
use super::facts::facts;
use super::raw::Raw;
use crate::args::BulkArgs;

/// Where clients reach the server.
const ADDRESS: &str = "10.77.1.100";
/// The client's address with its network.
const CLIENT: &str = "10.77.1.2/24";
/// What is downloaded, again and again.
const FILE: &str = "file";
const FILE_BYTES: u64 = 16 << 20;
/// Connections at a time.
const CONNECTIONS: usize = 2;
/// Duration of a turn.
const TURN: Duration = Duration::from_secs(1);
/// Turns of each path in a round.
const TURNS: usize = 2;
/// How long a path may take to serve.
const START_LIMIT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// What was downloaded, and what that took.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    bytes: u64,
    seconds: f64,
    /// CPU time of the whole machine: client, server, path, and whatever else ran.
    cpu_s: f64,
}

impl Sum {
    fn gbps(&self) -> f64 {
        self.bytes as f64 * 8e-9 / self.seconds
    }

    fn cpu_s_per_gb(&self) -> f64 {
        self.cpu_s / (self.bytes as f64 * 1e-9)
    }
}

/// One row of the result.
#[derive(Clone, Debug, Serialize)]
struct Row {
    path: &'static str,
    connections: usize,
    /// Gigabits of bodies per second: the median of the rounds.
    gbps: f64,
    /// CPU time of the whole machine for 10⁹ bytes, in seconds.
    cpu_s_per_gb: f64,
}

#[derive(Clone, Debug, Serialize)]
struct Outcome {
    rows: Vec<Row>,
    /// inco ÷ bridge: the medians of the rounds' ratios.
    ratio: f64,
    cpu_ratio: f64,
}

/// A client and a server with something between them. Fields are in the order in which they are to end.
struct Between<'g> {
    name: &'static str,
    session: Option<Session<'g>>,
    _server: Option<(KilledOnDrop, Namespace)>,
    _bridge: Option<Namespace>,
    client: Namespace,
    _link: Option<Link>,
}

/// Runs the bench.
pub(super) fn run(args: &BulkArgs) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("containers of inco's own engine need root: run it with sudo");
    }
    let interrupt = Interrupt::listen()?;
    testbed::make_web_server_image()?;
    let ground = Environment::new(EngineName::Oci, SwitchName::Soft, false, interrupt.clone())?;
    let root = write_files(ground.directory())?;
    let paths = [
        Between::of_inco(&ground, &root)?,
        Between::of_bridge(&root, &ground)?,
    ];
    for path in &paths {
        path.wait_until_it_serves(&interrupt)?;
    }
    let columns = ["path", "round", "bytes", "seconds", "cpu_seconds"];
    let mut raw = Raw::new(&facts(false), &columns);
    let mut rounds = [Vec::new(), Vec::new()];
    for round in 1..=args.rounds {
        let mut sums = [Sum::default(); 2];
        for _ in 0..TURNS {
            for (path, sum) in paths.iter().zip(&mut sums) {
                interrupt.check()?;
                path.download(sum)?;
            }
        }
        for ((path, sum), rounds) in paths.iter().zip(sums).zip(&mut rounds) {
            raw.row(&[
                path.name.to_owned(),
                round.to_string(),
                sum.bytes.to_string(),
                format!("{:.3}", sum.seconds),
                format!("{:.3}", sum.cpu_s),
            ]);
            rounds.push(sum);
        }
        raw.write(&args.csv)?;
    }
    let rows = paths.iter().zip(&rounds).map(|(path, rounds)| Row {
        path: path.name,
        connections: CONNECTIONS,
        gbps: median(rounds.iter().map(Sum::gbps)),
        cpu_s_per_gb: median(rounds.iter().map(Sum::cpu_s_per_gb)),
    });
    let [inco, bridge] = &rounds;
    let ratio = |of: fn(&Sum) -> f64| median(inco.iter().zip(bridge).map(|(a, b)| of(a) / of(b)));
    let outcome = Outcome {
        rows: rows.collect(),
        ratio: ratio(Sum::gbps),
        cpu_ratio: ratio(Sum::cpu_s_per_gb),
    };
    for path in paths {
        path.stop()?;
    }
    tell(&outcome, args)
}

fn tell(outcome: &Outcome, args: &BulkArgs) -> Result<()> {
    if args.json {
        return output::json(outcome, output::is_terminal());
    }
    let mut table = Table::new(&["path", ">connections", ">Gbit/s", ">CPU s/GB"]);
    for row in &outcome.rows {
        table.row([
            row.path.to_owned(),
            row.connections.to_string(),
            format!("{:.1}", row.gbps),
            format!("{:.3}", row.cpu_s_per_gb),
        ]);
    }
    output::text(&table.text())?;
    output::line(format!(
        "inco ÷ bridge: {:.2} in Gbit/s, {:.2} in CPU time of the whole machine per byte. All rounds: {}",
        outcome.ratio,
        outcome.cpu_ratio,
        args.csv.display()
    ))
}

/// Writes what the server has, and its configuration. Gives the directory.
fn write_files(directory: &Path) -> Result<std::path::PathBuf> {
    let root = directory.join("bulk");
    fs::create_dir_all(&root).with_context(|| format!("cannot make {}", root.display()))?;
    let file = root.join(FILE);
    // Zeros, which take no memory on the disk.
    File::create(&file)
        .and_then(|made| made.set_len(FILE_BYTES))
        .with_context(|| format!("cannot write {}", file.display()))?;
    let text = "daemon off;\nmaster_process off;\nuser root;\nerror_log stderr warn;\npid /tmp/inco-bulk.pid;\nevents {}\nhttp \
                {\n  access_log off;\n  sendfile on;\n  keepalive_requests 1000000;\n  client_body_temp_path \
                /tmp/inco-bulk-body;\n  proxy_temp_path /tmp/inco-bulk-proxy;\n  fastcgi_temp_path \
                /tmp/inco-bulk-fastcgi;\n  uwsgi_temp_path /tmp/inco-bulk-uwsgi;\n  scgi_temp_path \
                /tmp/inco-bulk-scgi;\n  server {\n    listen 80;\n    root ROOT;\n  }\n}\n";
    for (name, inside) in [
        ("container.conf", Path::new("/srv")),
        ("namespace.conf", root.as_path()),
    ] {
        let file = root.join(name);
        fs::write(&file, text.replace("ROOT", &inside.display().to_string()))
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(root)
}

fn namespace(role: &str) -> Result<Namespace> {
    Namespace::new(format!("inco-bench-{}-{role}", std::process::id()))
}

fn address() -> Result<SocketAddr> {
    format!("{ADDRESS}:80").parse().context("the server's address")
}

impl<'g> Between<'g> {
    fn of_inco(ground: &'g Environment, root: &Path) -> Result<Between<'g>> {
        let client = namespace("bulk")?;
        let uplink = format!("incob{}u", std::process::id() % 1_000_000);
        let link = Link::into(&uplink, &client, "eth0")?;
        run_program("ip", &["link", "set", &uplink, "up"])?;
        set_up(&client, CLIENT)?;
        let text = format!(
            "# Written by `inco bench bulk`.\n[engine]\ndriver = {:?}\n\n[switch]\ndriver = \"ebpf\"\n\n[[uplink]]\nname = \
             \"wan\"\ndevice = \"kernel:{uplink}\"\n\n[service.bulk]\nvip = {{ address = {ADDRESS:?}, ports = \"80\" \
             }}\nport = \"kernel\"\nimage = {WEB_SERVER_IMAGE:?}\ncommand = [\"/usr/sbin/nginx\", \"-c\", \
             \"/srv/container.conf\"]\nmounts = [\"{}:/srv:ro\"]\nmemory = \"256MiB\"\ninstances = 1\nautoscaler = \
             \"fixed\"\n",
            ground.engine_word(),
            root.display(),
        );
        let session = Session::start(ground, "bulk", &text, 1)?;
        Ok(Between {
            name: "inco",
            session: Some(session),
            _server: None,
            _bridge: None,
            client,
            _link: Some(link),
        })
    }

    fn of_bridge(root: &Path, ground: &Environment) -> Result<Between<'g>> {
        let (client, bridge, server) = (namespace("bulk2")?, namespace("bridge")?, namespace("server")?);
        bridge.ip(&["link", "add", "br0", "type", "bridge"])?;
        bridge.ip(&["link", "set", "br0", "up"])?;
        for (near, far) in [("c", &client), ("s", &server)] {
            bridge.connect(near, far, "eth0")?;
            bridge.ip(&["link", "set", near, "master", "br0", "up"])?;
        }
        set_up(&client, CLIENT)?;
        set_up(&server, &format!("{ADDRESS}/24"))?;
        let log = File::create(ground.directory().join("nginx.log")).context("cannot make nginx.log")?;
        let child = server
            .command("nginx")
            .arg("-c")
            .arg(root.join("namespace.conf"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("cannot run nginx: `apt-get install nginx-light`")?;
        Ok(Between {
            name: "bridge",
            session: None,
            _server: Some((KilledOnDrop::new(child), server)),
            _bridge: Some(bridge),
            client,
            _link: None,
        })
    }

    fn wait_until_it_serves(&self, interrupt: &Interrupt) -> Result<()> {
        let (since, to) = (Instant::now(), address()?);
        loop {
            interrupt.check()?;
            let path = format!("/{FILE}");
            match self
                .client
                .within(|| Connection::open(to)?.fetch(&path, true, |_| {}))
            {
                Ok(_) => return Ok(()),
                Err(error) if since.elapsed() > START_LIMIT => {
                    return Err(error.context(format!("{}: the server does not answer", self.name)));
                }
                Err(_) => std::thread::sleep(POLL_INTERVAL),
            }
        }
    }

    /// A turn.
    fn download(&self, sum: &mut Sum) -> Result<()> {
        let (to, path) = (address()?, format!("/{FILE}"));
        let (since, before) = (Instant::now(), CpuTime::now()?);
        let one = || -> Result<u64> {
            let (mut connection, mut bytes) = (Connection::open(to)?, 0);
            while since.elapsed() < TURN {
                bytes += connection.fetch(&path, false, |_| {})?;
            }
            Ok(bytes)
        };
        let bytes = self.client.within(|| {
            std::thread::scope(|scope| {
                let threads: Vec<_> = (0..CONNECTIONS).map(|_| scope.spawn(one)).collect();
                let parts = threads
                    .into_iter()
                    .map(|thread| thread.join().map_err(|_| anyhow!("a client panicked"))?);
                parts.sum::<Result<u64>>()
            })
        })?;
        sum.bytes += bytes;
        sum.seconds += since.elapsed().as_secs_f64();
        sum.cpu_s += (CpuTime::now()? - before).busy_s;
        Ok(())
    }

    fn stop(mut self) -> Result<()> {
        let left = self.session.take().map(Session::stop).transpose()?;
        match left.unwrap_or_default() {
            left if left.is_empty() => Ok(()),
            left => bail!("inco left behind: {}", left.join(", ")),
        }
    }
}

fn set_up(namespace: &Namespace, address: &str) -> Result<()> {
    namespace.ip(&["address", "add", address, "dev", "eth0"])?;
    namespace.ip(&["link", "set", "eth0", "up"])
}
