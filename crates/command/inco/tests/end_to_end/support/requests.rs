//! HTTP requests over connections of a test's own. Each answer is checked, and each failure is kept with its cause.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::Network;

/// A request without an answer for so long has failed. A lost packet is sent again after 0.2 s, a lost SYN after 1 s.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);
/// The longest header of an answer, in bytes.
const HEADER_LIMIT: usize = 4096;
/// Failures of which the cause is kept.
const CAUSES_LIMIT: usize = 20;
/// Requests of the connections of a client, one after the other: short ones, and some that outlast a scale change.
const REQUESTS: [u32; 6] = [1, 1, 30, 1, 4, 120];
/// The pause between two requests of a connection.
const PAUSE: Duration = Duration::from_millis(2);

/// A connection to a server.
pub(crate) struct Connection {
    stream: TcpStream,
}

impl Connection {
    pub(crate) fn open(to: SocketAddr) -> Result<Connection, String> {
        let failed = |error: std::io::Error| format!("no connection to {to}: {error}");
        let stream = TcpStream::connect_timeout(&to, ANSWER_LIMIT).map_err(failed)?;
        stream.set_read_timeout(Some(ANSWER_LIMIT)).map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        Ok(Connection { stream })
    }

    /// Asks for a path, and gives the body. The server closes the connection after the last one.
    pub(crate) fn get(&mut self, path: &str, is_last: bool) -> Result<String, String> {
        let mut body = Vec::new();
        self.fetch(path, is_last, |part| body.extend_from_slice(part))?;
        String::from_utf8(body).map_err(|error| error.to_string())
    }

    /// The same, for a body that is taken in parts. Gives its length.
    pub(crate) fn fetch(
        &mut self,
        path: &str,
        is_last: bool,
        mut take: impl FnMut(&[u8]),
    ) -> Result<u64, String> {
        let failed = |error: std::io::Error| format!("no answer: {error}");
        let after = if is_last { "Connection: close\r\n" } else { "" };
        let request = format!("GET {path} HTTP/1.1\r\nHost: web\r\n{after}\r\n");
        self.stream.write_all(request.as_bytes()).map_err(failed)?;
        let mut part = vec![0; 1 << 16];
        let mut header = Vec::new();
        let body = loop {
            let count = self.stream.read(&mut part).map_err(failed)?;
            header.extend_from_slice(&part[..count]);
            if let Some(end) = header.windows(4).position(|four| four == b"\r\n\r\n") {
                break header.split_off(end + 4);
            }
            if count == 0 || header.len() > HEADER_LIMIT {
                return Err(format!(
                    "the connection ends after {} bytes of a header",
                    header.len()
                ));
            }
        };
        let header = String::from_utf8_lossy(&header).into_owned();
        let mut lines = header.lines();
        let length = lines
            .clone()
            .find_map(|line| line.strip_prefix("Content-Length: "));
        let (Some("HTTP/1.1 200 OK"), Some(length)) = (lines.next(), length) else {
            return Err(format!("the answer is {header:?}"));
        };
        let length: u64 = length.trim().parse().map_err(|_| format!("{header:?}"))?;
        let mut got = body.len() as u64;
        take(&body);
        while got < length {
            let count = self.stream.read(&mut part).map_err(failed)?;
            if count == 0 {
                return Err(format!("the connection ends after {got} of {length} bytes"));
            }
            got += count as u64;
            take(&part[..count]);
        }
        match got == length {
            true => Ok(got),
            false => Err(format!("{got} bytes came instead of {length}")),
        }
    }
}

/// What came of the requests.
#[derive(Default)]
struct Tally {
    stop: AtomicBool,
    requests: AtomicU64,
    failures: AtomicU64,
    causes: Mutex<Vec<String>>,
    /// When each server answered first.
    servers: Mutex<BTreeMap<String, Instant>>,
    /// The longest request, in nanoseconds.
    longest: AtomicU64,
}

/// Clients that open connections and ask until they are stopped. The body of an answer names its server.
pub(crate) struct Load {
    tally: Arc<Tally>,
    clients: Vec<JoinHandle<()>>,
}

/// What came of a load.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) requests: u64,
    pub(crate) failures: u64,
    pub(crate) servers: usize,
    pub(crate) longest: Duration,
}

impl Load {
    pub(crate) fn start(network: &Network, to: SocketAddr, clients: usize) -> Load {
        let tally = Arc::new(Tally::default());
        let clients = network.as_client(|| {
            let start = |number| {
                let tally = Arc::clone(&tally);
                std::thread::spawn(move || client(&tally, to, number))
            };
            (0..clients).map(start).collect()
        });
        Load { tally, clients }
    }

    /// Requests that were answered until now.
    pub(crate) fn requests(&self) -> u64 {
        self.tally.requests.load(Relaxed)
    }

    /// When the servers that have answered until now did so first, in this order.
    pub(crate) fn first_answers(&self) -> Vec<Instant> {
        let mut all: Vec<_> = self.tally.servers.lock().unwrap().values().copied().collect();
        all.sort_unstable();
        all
    }

    /// Ends it once each client has finished its connection.
    pub(crate) fn end(mut self) -> Outcome {
        self.tally.stop.store(true, Relaxed);
        for client in self.clients.drain(..) {
            client.join().unwrap();
        }
        for cause in self.tally.causes.lock().unwrap().iter() {
            eprintln!("a request failed: {cause}");
        }
        Outcome {
            requests: self.requests(),
            failures: self.tally.failures.load(Relaxed),
            servers: self.tally.servers.lock().unwrap().len(),
            longest: Duration::from_nanos(self.tally.longest.load(Relaxed)),
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.tally.stop.store(true, Relaxed);
    }
}

/// One client: a connection after the other.
fn client(tally: &Tally, to: SocketAddr, number: usize) {
    for requests in REQUESTS.iter().cycle().skip(number) {
        if tally.stop.load(Relaxed) {
            return;
        }
        if let Err(cause) = converse(tally, to, *requests) {
            tally.failures.fetch_add(1, Relaxed);
            let mut causes = tally.causes.lock().unwrap();
            if causes.len() < CAUSES_LIMIT {
                causes.push(cause);
            }
        }
    }
}

/// A connection with so many requests, all of which one server answers.
fn converse(tally: &Tally, to: SocketAddr, requests: u32) -> Result<(), String> {
    let mut began = Instant::now();
    let mut connection = Connection::open(to)?;
    let mut first: Option<String> = None;
    for number in 1..=requests {
        let server = connection
            .get("/", number == requests)
            .map_err(|cause| format!("request {number} of {requests}, of {first:?}: {cause}"))?;
        tally.requests.fetch_add(1, Relaxed);
        tally
            .longest
            .fetch_max(began.elapsed().as_nanos() as u64, Relaxed);
        if *first.get_or_insert_with(|| server.clone()) != server {
            return Err(format!("{first:?} and {server:?} answer on one connection"));
        }
        tally
            .servers
            .lock()
            .unwrap()
            .entry(server)
            .or_insert_with(Instant::now);
        std::thread::sleep(PAUSE);
        began = Instant::now();
    }
    Ok(())
}
