//! What inco is compared with: HAProxy and nftables in front of the same containers, and the kernel's own routing to
//! one of them.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::network::{ADDRESS, Namespace, output};

/// How long a balancer may take to accept connections.
const LIMIT: Duration = Duration::from_secs(5);

/// A balancer that is told its servers.
pub(super) enum Peer {
    /// HAProxy in TCP mode with two threads.
    Haproxy(Haproxy),
    /// nftables: destination NAT to each server in turn.
    Nftables,
    /// No balancer: the client addresses the first server.
    Routing,
}

impl Peer {
    /// Has it balance over these servers from now on.
    ///
    /// # Errors
    /// It refuses its configuration.
    pub(super) fn set(&mut self, balancer: &Namespace, servers: &[Ipv4Addr]) -> Result<()> {
        match self {
            Peer::Haproxy(haproxy) => haproxy.set(balancer, servers),
            Peer::Nftables => set_rules(balancer, servers),
            Peer::Routing => Ok(()),
        }
    }
}

/// A running HAProxy with a master process. Dropping it ends it.
pub(super) struct Haproxy {
    directory: PathBuf,
    master: Option<Child>,
}

impl Haproxy {
    /// Not started yet: its first servers start it.
    pub(super) fn new(directory: &Path) -> Haproxy {
        Haproxy {
            directory: directory.to_owned(),
            master: None,
        }
    }

    fn socket(&self) -> PathBuf {
        self.directory.join("haproxy.sock")
    }

    fn set(&mut self, balancer: &Namespace, servers: &[Ipv4Addr]) -> Result<()> {
        let socket = self.socket();
        let file = self.directory.join("haproxy.cfg");
        let mut text = format!(
            "global\n  nbthread 2\n  maxconn 8000\n  stats socket {} level admin expose-fd listeners\n\ndefaults\n  \
             mode tcp\n  timeout connect 2s\n  timeout client 30s\n  timeout server 30s\n\nlisten web\n  bind \
             {ADDRESS}:80\n  balance leastconn\n  default-server check inter 200ms fall 2 rise 1\n",
            socket.display()
        );
        for (index, address) in servers.iter().enumerate() {
            let _ = writeln!(text, "  server s{index} {address}:80");
        }
        std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        let Some(master) = &self.master else {
            let log = std::fs::File::create(self.directory.join("haproxy.log"))
                .context("cannot make haproxy.log")?;
            let child = balancer
                .command("haproxy")
                .args(["-W", "-db", "-f"])
                .arg(&file)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(log)
                .spawn()
                .context("cannot run haproxy: `apt-get install haproxy`")?;
            self.master = Some(child);
            return wait_for(&socket);
        };
        let pid = i32::try_from(master.id())
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        let pid = pid.context("haproxy has no process id")?;
        rustix::process::kill_process(pid, rustix::process::Signal::USR2).context("haproxy has ended")
    }
}

impl Drop for Haproxy {
    fn drop(&mut self) {
        let Some(master) = &mut self.master else { return };
        let pid = i32::try_from(master.id())
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        // The master ends its workers. Both fail only if it has ended already.
        let _ = pid.map(|pid| rustix::process::kill_process(pid, rustix::process::Signal::TERM));
        let _ = master.wait();
        // The last of them leaves it.
        let _ = std::fs::remove_file(self.socket());
    }
}

fn wait_for(socket: &Path) -> Result<()> {
    let since = Instant::now();
    while std::os::unix::net::UnixStream::connect(socket).is_err() {
        if since.elapsed() > LIMIT {
            bail!(
                "haproxy does not answer within {} s; see haproxy.log beside {}",
                LIMIT.as_secs(),
                socket.display()
            );
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Replaces the rules in one transaction: established connections keep their server.
fn set_rules(balancer: &Namespace, servers: &[Ipv4Addr]) -> Result<()> {
    let map: Vec<String> = servers
        .iter()
        .enumerate()
        .map(|(index, of)| format!("{index} : {of}"))
        .collect();
    let rules = format!(
        "table ip inco-web {{}}\ndelete table ip inco-web\ntable ip inco-web {{\n  chain prerouting {{\n    type nat \
         hook prerouting priority dstnat;\n    ip daddr {ADDRESS} tcp dport 80 dnat to numgen inc mod {} map {{ {} }}\n  \
         }}\n}}\n",
        servers.len(),
        map.join(", ")
    );
    output(balancer.command("nft").arg(rules)).map(drop)
}
