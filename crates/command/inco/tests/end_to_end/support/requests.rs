//! HTTP requests of a test's own clients. Each answer is checked, and each failure is kept with its cause.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use testbed::http::Connection;

use super::Network;

/// Failures of which the cause is kept.
const CAUSES_LIMIT: usize = 20;
/// Requests of the connections of a client, one after the other: short ones, and some that outlast a scale change.
const REQUESTS: [u32; 6] = [1, 1, 30, 1, 4, 120];
/// The pause between two requests of a connection.
const PAUSE: Duration = Duration::from_millis(2);

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
        network.as_client(|| Load::here(to, clients))
    }

    /// In the namespace of this thread.
    pub(crate) fn here(to: SocketAddr, clients: usize) -> Load {
        Load::choosing(move |_| Some(to), clients)
    }

    /// The same; each connection goes to what is chosen for its number, once there is any.
    pub(crate) fn choosing(
        to: impl Fn(usize) -> Option<SocketAddr> + Send + Sync + 'static,
        clients: usize,
    ) -> Load {
        let (tally, to) = (Arc::new(Tally::default()), Arc::new(to));
        let start = |number| {
            let (tally, to) = (Arc::clone(&tally), Arc::clone(&to));
            std::thread::spawn(move || client(&tally, &*to, number))
        };
        let clients = (0..clients).map(start).collect();
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
fn client(tally: &Tally, to: &dyn Fn(usize) -> Option<SocketAddr>, number: usize) {
    for (connection, requests) in REQUESTS.iter().cycle().enumerate().skip(number) {
        if tally.stop.load(Relaxed) {
            return;
        }
        let Some(to) = to(connection) else {
            std::thread::sleep(PAUSE);
            continue;
        };
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
    let mut connection = Connection::open(to).map_err(|error| format!("{error:#}"))?;
    let mut first: Option<String> = None;
    for number in 1..=requests {
        let server = connection
            .get("/", number == requests)
            .map_err(|cause| format!("request {number} of {requests}, of {first:?}: {cause:#}"))?;
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
