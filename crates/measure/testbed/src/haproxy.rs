//! HAProxy as a peer.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::network::Namespace;

/// How long it may take to accept connections.
const LIMIT: Duration = Duration::from_secs(5);

/// HAProxy in TCP mode with two threads and a master process, which gives a connection to the server that has the
/// fewest. Dropping it ends it.
#[derive(Debug)]
pub struct Haproxy {
    directory: PathBuf,
    address: &'static str,
    /// What its configuration has about health checks.
    checks: &'static str,
    master: Option<Child>,
}

impl Haproxy {
    /// For connections to port 80 of an address, with its files in `directory`. Not started yet: its first servers
    /// start it. It opens connections to them to check whether they serve.
    pub fn new(directory: &Path, address: &'static str) -> Haproxy {
        Haproxy {
            directory: directory.to_owned(),
            address,
            checks: "  default-server check inter 200ms fall 2 rise 1\n",
            master: None,
        }
    }

    /// The same without checks: no server is left out because it is slow.
    #[must_use]
    pub fn without_checks(mut self) -> Haproxy {
        self.checks = "";
        self
    }

    fn socket(&self) -> PathBuf {
        self.directory.join("haproxy.sock")
    }

    /// Has it balance over these servers in that namespace from now on.
    ///
    /// # Errors
    /// It is not installed, or refuses its configuration.
    pub fn set(&mut self, balancer: &Namespace, servers: &[Ipv4Addr]) -> Result<()> {
        let socket = self.socket();
        let file = self.directory.join("haproxy.cfg");
        let mut text = format!(
            "global\n  nbthread 2\n  maxconn 8000\n  stats socket {} level admin expose-fd listeners\n\ndefaults\n  \
             mode tcp\n  timeout connect 2s\n  timeout client 30s\n  timeout server 30s\n\nlisten web\n  bind \
             {}:80\n  balance leastconn\n{}",
            socket.display(),
            self.address,
            self.checks,
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
