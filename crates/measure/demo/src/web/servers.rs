//! The web servers that peers balance: the containers that inco would make, made by its engine alone.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use engine::launcher::{Launcher, LauncherCommand};
use engine::{ContainerSpec, CpuQuota, Engine, EngineEvent, OciConfig, OciEngine, Request, Ticket};
use model::{InterfaceSetup, Mount, Nanos, NetFunction};

use super::network::{Link, Namespace};

/// Where a server finds its configuration.
pub(crate) const CONFIGURATION: &str = "/etc/inco-web";
/// The first address of a server is the one after this.
const FIRST: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 10);
/// The next hop of servers.
const GATEWAY: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
const GATEWAY_MAC: [u8; 6] = [0x02, 0x69, 0x6e, 0x63, 0x6f, 0x00];
/// The longest packet, in bytes.
const MTU: u16 = 1500;
/// Memory of a server.
const MEMORY_BYTES: u64 = 128 << 20;
/// How long a server may take to accept connections, or the engine to answer.
const LIMIT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The program of a server.
pub(crate) fn command() -> Vec<String> {
    ["/usr/sbin/nginx", "-c", &format!("{CONFIGURATION}/nginx.conf")]
        .map(str::to_owned)
        .to_vec()
}

/// Writes the configuration of the servers into a directory and returns it: one worker that answers with these bytes.
pub(crate) fn write_configuration(directory: &Path, body: &str) -> Result<PathBuf> {
    let directory = directory.join("nginx");
    std::fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
    let text = format!(
        "daemon off;\nworker_processes 1;\nerror_log stderr warn;\npid /tmp/nginx.pid;\nevents {{ worker_connections 8192; \
         }}\nhttp {{\n  access_log off;\n  default_type text/plain;\n  client_body_temp_path /tmp/body;\n  \
         proxy_temp_path /tmp/proxy;\n  fastcgi_temp_path /tmp/fastcgi;\n  uwsgi_temp_path /tmp/uwsgi;\n  \
         scgi_temp_path /tmp/scgi;\n  server {{\n    listen 80 backlog=4096;\n    location / {{ return 200 \"{body}\"; \
         }}\n  }}\n}}\n"
    );
    let file = directory.join("nginx.conf");
    std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(directory)
}

/// A running server.
pub(super) struct Server {
    name: String,
    pid: u32,
    pub(super) address: Ipv4Addr,
    _link: Link,
}

impl Server {
    /// Kills its program.
    pub(super) fn kill(&self) {
        let pid = i32::try_from(self.pid)
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        if let Some(pid) = pid {
            // Fails only if it has ended by itself.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}

/// An engine with servers behind a balancer's namespace. Dropping it removes them.
pub(super) struct Servers {
    engine: OciEngine,
    configuration: PathBuf,
    cpus: Option<f64>,
    made: Vec<String>,
    tickets: u64,
    count: u8,
    told: Vec<EngineEvent>,
}

impl Servers {
    /// Starts an engine whose state is in `directory`.
    ///
    /// # Errors
    /// The engine cannot start.
    pub(super) fn new(directory: &Path, configuration: &Path, cpus: Option<f64>) -> Result<Servers> {
        let run_dir = directory.join("servers");
        let launcher = Launcher::start(
            LauncherCommand::this_program(["launcher"]).cleaning_up_by("stop"),
            &run_dir,
        )?;
        Ok(Servers {
            engine: OciEngine::start(OciConfig::at(run_dir), launcher)?,
            configuration: configuration.to_owned(),
            cpus,
            made: Vec::new(),
            tickets: 0,
            count: 0,
            told: Vec::new(),
        })
    }

    /// Starts a server that is connected to the balancer's namespace, and waits until it accepts connections.
    ///
    /// # Errors
    /// The container cannot be made, or does not listen in time.
    pub(super) fn add(&mut self, balancer: &Namespace) -> Result<Server> {
        self.count += 1;
        let number = self.count;
        let address = Ipv4Addr::from(u32::from(FIRST) + u32::from(number));
        let (near, far) = (format!("incoq{number}"), format!("server{number}"));
        let link = Link::into(&near, balancer, &far)?;
        let mac = [0x02, 0x69, 0x6e, 0x63, 0x70, number];
        balancer.ip(&["link", "set", &far, "address", &text_of(GATEWAY_MAC), "up"])?;
        let target = format!("{address}/32");
        balancer.ip(&["route", "add", &target, "dev", &far])?;
        let neighbour = [
            "neigh",
            "add",
            &address.to_string(),
            "lladdr",
            &text_of(mac),
            "dev",
            &far,
            "nud",
            "permanent",
        ];
        balancer.ip(&neighbour)?;
        let name = format!("inco-web-{number}");
        let mut spec = ContainerSpec::new(name.clone(), testbed::WEB_SERVER_IMAGE);
        spec.command = command();
        spec.cpu = self.cpus.map(CpuQuota::of_cpus);
        // As inco's service has it.
        spec.memory_bytes = Some(MEMORY_BYTES);
        spec.mounts = vec![Mount {
            source: self.configuration.clone(),
            target: PathBuf::from(CONFIGURATION),
            read_only: true,
        }];
        spec.functions = vec![NetFunction::Port(InterfaceSetup {
            host: near,
            name: "eth0".to_owned(),
            mac,
            mtu: MTU,
            addresses: vec![(address.into(), 32)],
            gateway_v4: GATEWAY,
            gateway_v6: std::net::Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1),
            gateway_mac: GATEWAY_MAC,
            local_ports: None,
        })];
        self.made.push(name.clone());
        let pid = self.request(Request::Create(Box::new(spec)))?;
        let server = Server {
            name,
            pid,
            address,
            _link: link,
        };
        wait_for(balancer, address)?;
        Ok(server)
    }

    /// Ends a server by its image's signal, and removes it.
    ///
    /// # Errors
    /// The engine failed.
    pub(super) fn remove(&mut self, server: Server) -> Result<()> {
        let grace = Nanos::from_secs(2);
        self.request(Request::Stop {
            name: server.name.clone(),
            grace,
        })?;
        self.request(Request::Remove {
            name: server.name.clone(),
        })?;
        self.made.retain(|name| *name != server.name);
        Ok(())
    }

    /// Makes a request and waits for its answer. Returns the process id of a new container, else 0.
    fn request(&mut self, request: Request) -> Result<u32> {
        self.tickets += 1;
        let own = Ticket(self.tickets);
        self.engine.submit(own, request);
        let since = Instant::now();
        loop {
            self.engine.poll(&mut self.told);
            for event in self.told.drain(..) {
                match event {
                    EngineEvent::Created { ticket, pid, .. } if ticket == own => return Ok(pid),
                    EngineEvent::Done { ticket, .. } if ticket == own => return Ok(0),
                    EngineEvent::Failed { ticket, error, .. } if ticket == own => return Err(error.into()),
                    _ => {}
                }
            }
            if since.elapsed() > LIMIT {
                bail!("the engine did not answer within {} s", LIMIT.as_secs());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for name in std::mem::take(&mut self.made) {
            // The launcher removes what is left.
            let _ = self.request(Request::Remove { name });
        }
    }
}

/// Waits until a server accepts connections.
fn wait_for(balancer: &Namespace, address: Ipv4Addr) -> Result<()> {
    let since = Instant::now();
    loop {
        let mut command = balancer.command("nc");
        let tried = super::network::output(command.args(["-z", "-w", "1", &address.to_string(), "80"]));
        match tried {
            Ok(_) => return Ok(()),
            Err(error) if since.elapsed() > LIMIT => {
                return Err(error.context(format!("the server at {address} accepts no connection")));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// A MAC address as iproute2 writes it.
fn text_of(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}
