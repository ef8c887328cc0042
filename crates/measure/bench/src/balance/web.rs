//! The server and its client: light and heavy downloads.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Serialize;
use testbed::http::Connection;
use testbed::network::Namespace;
use testbed::wrk::{Connections, Requests, Wrk};

use crate::contestant::KilledOnDrop;

/// The address of the server that the client of inco asks.
pub(super) const ADDRESS: &str = "10.79.1.1";

/// Downloads of one kind.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Downloads {
    name: &'static str,
    /// At a time, each with a connection of its own.
    connections: u32,
    bytes: u64,
    /// The server sends no faster.
    bytes_per_s: u64,
    /// What the server sends at once, before it waits.
    #[serde(skip)]
    part_bytes: u64,
    /// The longest wait for an answer, beyond the duration of the load.
    #[serde(skip)]
    patience: Duration,
}

/// Three at a time, as in the paper. One is as much as a function carries (73 MB/s there, for 10 s).
pub(super) const HEAVY: Downloads = Downloads {
    name: "heavy",
    connections: 3,
    bytes: 20_000_000,
    bytes_per_s: 10_000_000,
    // 5 ms: nginx waits for whole milliseconds.
    part_bytes: 50_000,
    patience: Duration::from_secs(60),
};

/// 300 at a time, as in the paper. Its rate is to that of a heavy one as there: 200 KB/s to 73 MB/s, for 1 s.
pub(super) const LIGHT: Downloads = Downloads {
    name: "light",
    connections: 300,
    bytes: 5_480,
    bytes_per_s: 27_400,
    // A segment.
    part_bytes: 1_448,
    patience: Duration::from_secs(20),
};

/// nginx, which ends when this is dropped.
pub(super) struct Server {
    _nginx: KilledOnDrop,
    _namespace: Namespace,
}

impl Server {
    /// Starts it in its namespace, with its files in `directory`.
    ///
    /// # Errors
    /// It is not installed.
    pub(super) fn start(namespace: Namespace, directory: &Path) -> Result<Server> {
        let root = directory.join("web");
        fs::create_dir_all(&root).with_context(|| format!("cannot make {}", root.display()))?;
        let mut locations = String::new();
        for of in [HEAVY, LIGHT] {
            let file = root.join(of.name);
            // Zeros, which take no memory.
            File::create(&file)
                .and_then(|made| made.set_len(of.bytes))
                .with_context(|| format!("cannot write {}", file.display()))?;
            locations.push_str(&format!(
                "    location = /{} {{ limit_rate {}; sendfile_max_chunk {}; }}\n",
                of.name, of.bytes_per_s, of.part_bytes
            ));
        }
        let inside = root.display();
        let text = format!(
            "daemon off;\nmaster_process off;\nerror_log stderr warn;\npid {inside}/nginx.pid;\nevents {{ \
             worker_connections 8192; }}\nhttp {{\n  access_log off;\n  sendfile on;\n  client_body_temp_path \
             {inside}/body;\n  proxy_temp_path {inside}/proxy;\n  fastcgi_temp_path {inside}/fastcgi;\n  uwsgi_temp_path \
             {inside}/uwsgi;\n  scgi_temp_path {inside}/scgi;\n  server {{\n    listen 80 backlog=4096;\n    root \
             {inside};\n{locations}  }}\n}}\n"
        );
        let file = root.join("nginx.conf");
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        let log = File::create(directory.join("nginx.log")).context("cannot make nginx.log")?;
        let child = namespace
            .command("nginx")
            .arg("-c")
            .arg(file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("cannot run nginx: `apt-get install nginx-light`")?;
        Ok(Server {
            _nginx: KilledOnDrop::new(child),
            _namespace: namespace,
        })
    }
}

/// One light download.
///
/// # Errors
/// There is no whole answer.
pub(super) fn ask_once(address: &str) -> Result<()> {
    let address: SocketAddr = format!("{address}:80").parse().context("the server's address")?;
    let mut connection = Connection::open(address)?;
    connection.get(&format!("/{}", LIGHT.name), true).map(drop)
}

/// Starts heavy and light downloads.
///
/// # Errors
/// `wrk` is not installed.
pub(super) fn start_load(
    client: &Namespace,
    directory: &Path,
    address: &str,
    duration: Duration,
) -> Result<(Wrk, Wrk)> {
    let start = |of: Downloads| {
        let requests = Requests {
            url: &format!("http://{address}/{}", of.name),
            connections: Connections::Close,
            count: of.connections,
            duration,
            timeout: duration + of.patience,
        };
        Wrk::start(client, directory, &requests)
    };
    Ok((start(HEAVY)?, start(LIGHT)?))
}
