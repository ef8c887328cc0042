//! The network of a bed whose instances are web servers: clients in a network namespace, with connections that last and
//! with one connection for each request. An answer names its instance.
//!
//! A request counts as a packet, and a connection that lasts as a flow. One that breaks is opened again: if another
//! instance answers, it has moved.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use model::Random;
use testbed::http::Connection;
use testbed::network::{Link, Namespace, run};
use traffic::{Counts, FlowNow, Interval};

use crate::bed::BedName;
use crate::garbage::{self, Garbage};

/// The address of the service whose instances carry it, and that of the one for which it is translated.
pub(crate) const ADDRESSES: [&str; 2] = ["10.79.0.100", "2001:db8:79::100"];
/// Addresses of instances' own.
pub(crate) const OWN_ADDRESSES: [&str; 2] = ["10.79.0.128/25", "2001:db8:79::1:0/112"];
/// The clients'.
const CLIENT: [&str; 2] = ["10.79.0.2/24", "2001:db8:79::2/64"];
const CLIENT_INTERFACE: &str = "eth0";
/// Clients with a connection that lasts, and those with short ones.
const LASTING: u32 = 24;
const SHORT: u32 = 6;
/// The pause between two requests of a client.
const PAUSE: Duration = Duration::from_millis(40);
/// An observation is numbered anew so often: as the generator's.
const INTERVAL: Duration = Duration::from_millis(20);

/// What clients share.
#[derive(Default)]
struct Shared {
    ends: AtomicBool,
    holds: AtomicBool,
    /// Requests under way.
    open: AtomicU64,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    counts: Counts,
    flows: Vec<FlowNow>,
    longest: Duration,
    /// Why requests failed since the last rest.
    causes: Vec<String>,
}

/// Running clients.
pub(crate) struct Web {
    shared: Arc<Shared>,
    clients: Vec<JoinHandle<()>>,
    started: Instant,
    uplink: String,
    _link: Link,
    client: Namespace,
}

/// The name of the client's namespace, and that of the uplink, of a bed of this soak.
pub(crate) fn names(bed: BedName) -> (String, String) {
    let process = std::process::id();
    let bed = bed as u8;
    (
        format!("inco-soak-{process}-{bed}"),
        format!("incos{}-{bed}", process % 1_000_000),
    )
}

/// The namespace of the client with a link into this one.
///
/// # Errors
/// iproute2 fails.
pub(crate) fn link(bed: BedName) -> Result<(Namespace, Link)> {
    let (name, uplink) = names(bed);
    let client = Namespace::new(name)?;
    let link = Link::into(&uplink, &client, CLIENT_INTERFACE)?;
    run("ip", &["link", "set", &uplink, "up"])?;
    for address in CLIENT {
        client.ip(&["address", "add", address, "dev", CLIENT_INTERFACE, "nodad"])?;
    }
    client.ip(&["link", "set", CLIENT_INTERFACE, "up"])?;
    Ok((client, link))
}

impl Web {
    /// Starts the clients.
    ///
    /// # Errors
    /// There are no threads.
    pub(crate) fn start(bed: BedName, (client, link): (Namespace, Link)) -> Result<Web> {
        let to: Vec<SocketAddr> = ADDRESSES
            .iter()
            .map(|address| Ok(SocketAddr::new(address.parse()?, 80)))
            .collect::<Result<_>>()?;
        let shared = Arc::new(Shared::default());
        lock(&shared).flows = (0..LASTING)
            .map(|index| FlowNow {
                index,
                ..FlowNow::default()
            })
            .collect();
        let clients = client.within(|| {
            let start = |number: u32| {
                let shared = Arc::clone(&shared);
                // They take turns, those of each kind.
                let to = to[number as usize % to.len()];
                let builder = std::thread::Builder::new().name("soak-client".to_owned());
                let started = builder.spawn(move || ask(&shared, to, number));
                started.context("cannot start a client")
            };
            (0..LASTING + SHORT).map(start).collect::<Result<Vec<_>>>()
        })?;
        Ok(Web {
            shared,
            clients,
            started: Instant::now(),
            uplink: names(bed).1,
            _link: link,
            client,
        })
    }

    /// The newest observation and its number.
    pub(crate) fn newest(&self) -> (u64, Interval) {
        let since = self.started.elapsed();
        let seen = lock(&self.shared);
        let interval = Interval {
            at_s: since.as_secs_f64(),
            counts: seen.counts,
            flows: seen.flows.clone(),
            ..Interval::default()
        };
        ((since.as_millis() / INTERVAL.as_millis()) as u64, interval)
    }

    pub(crate) fn hold(&self, hold: bool) {
        self.shared.holds.store(hold, Ordering::SeqCst);
    }

    /// Whether no request is under way.
    pub(crate) fn is_taken(&self) -> bool {
        self.shared.open.load(Ordering::SeqCst) == 0
    }

    pub(crate) fn begin_outages(&self) {
        let mut seen = lock(&self.shared);
        seen.longest = Duration::ZERO;
        seen.causes.clear();
    }

    pub(crate) fn longest_outage_ms(&self) -> u64 {
        lock(&self.shared).longest.as_millis() as u64
    }

    /// Why requests have failed since the last rest.
    pub(crate) fn causes(&self) -> Vec<String> {
        lock(&self.shared).causes.clone()
    }

    /// The uplink's interface is down for so long.
    pub(crate) fn flap(&self, away: Duration) -> Result<()> {
        run("ip", &["link", "set", &self.uplink, "down"])?;
        std::thread::sleep(away);
        run("ip", &["link", "set", &self.uplink, "up"])
    }

    /// Somebody else in the clients' network sends that many frames of garbage.
    ///
    /// # Errors
    /// They cannot be sent, or no client has sent anything.
    pub(crate) fn send_garbage(&self, frames: u64, random: Random) -> Result<()> {
        let services = ADDRESSES
            .iter()
            .map(|of| Ok(of.parse()?))
            .collect::<Result<_>>()?;
        let mut garbage = Garbage::new(random, services, garbage::capture(&self.uplink)?);
        self.client
            .within(|| garbage::send(CLIENT_INTERFACE, frames, &mut garbage))
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.clients.iter().any(JoinHandle::is_finished) {
            bail!("a client has ended by itself");
        }
        Ok(())
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::SeqCst);
        for client in self.clients.drain(..) {
            let _ended = client.join();
        }
    }
}

fn lock(shared: &Shared) -> MutexGuard<'_, Seen> {
    shared.seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A client: one request after the other.
fn ask(shared: &Shared, to: SocketAddr, number: u32) {
    let is_lasting = number < LASTING;
    let mut connection = None;
    while !shared.ends.load(Ordering::SeqCst) {
        // First, so that nobody finds it open after the hold.
        shared.open.fetch_add(1, Ordering::SeqCst);
        if !shared.holds.load(Ordering::SeqCst) {
            let is_new = connection.is_none();
            let began = Instant::now();
            let answer = request(&mut connection, to, !is_lasting);
            note(shared, number, is_new, &answer, began.elapsed());
            if answer.is_err() || !is_lasting {
                connection = None;
            }
        }
        shared.open.fetch_sub(1, Ordering::SeqCst);
        std::thread::sleep(PAUSE);
    }
}

/// The instance that answers.
fn request(connection: &mut Option<Connection>, to: SocketAddr, is_last: bool) -> Result<u32> {
    let open = match connection {
        Some(open) => open,
        None => connection.insert(Connection::open(to)?),
    };
    instance(&open.get("/", is_last)?)
}

/// The id at the end of a container's name.
fn instance(name: &str) -> Result<u32> {
    let id = name.trim().rsplit_once('-').and_then(|(_, id)| id.parse().ok());
    id.with_context(|| format!("an answer of nobody: {name:?}"))
}

/// Counts a request. `is_new`: its connection was opened for it.
fn note(shared: &Shared, number: u32, is_new: bool, answer: &Result<u32>, took: Duration) {
    let seen = &mut *lock(shared);
    let mut flow = seen.flows.get_mut(number as usize);
    seen.longest = seen.longest.max(took);
    seen.counts.offered_packets += 1;
    if let Some(flow) = &mut flow {
        flow.offered_packets += 1;
    }
    let instance = match answer {
        Ok(instance) => *instance,
        Err(error) => {
            seen.causes.push(format!("{error:#}"));
            return;
        }
    };
    seen.counts.returned_packets += 1;
    if let Some(flow) = flow {
        flow.returned_packets += 1;
        if flow.instance != 0 && flow.instance != instance {
            match is_new {
                true => seen.counts.expected_moves += 1,
                false => seen.counts.mis_steered += 1,
            }
        }
        flow.instance = instance;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_count_as_packets_and_connections_as_flows() {
        let shared = Shared::default();
        lock(&shared).flows = vec![FlowNow::default(); 2];
        let note = |number, is_new, answer| note(&shared, number, is_new, &answer, Duration::from_millis(3));
        note(0, true, Ok(1));
        note(0, false, Ok(1));
        // A short connection has no flow.
        note(2, true, Ok(7));
        assert_eq!(lock(&shared).counts.missing(), 0);
        note(0, false, Err(anyhow::anyhow!("reset")));
        note(0, true, Ok(2));
        let counts = lock(&shared).counts;
        assert_eq!(
            (counts.missing(), counts.expected_moves, counts.mis_steered),
            (1, 1, 0)
        );
        // Another instance on the same connection.
        note(0, false, Ok(3));
        let seen = lock(&shared);
        assert_eq!((seen.counts.expected_moves, seen.counts.mis_steered), (1, 1));
        let flow = &seen.flows[0];
        assert_eq!(
            (flow.offered_packets, flow.returned_packets, flow.instance),
            (5, 4, 3)
        );
        assert_eq!(seen.causes, ["reset"]);
    }

    #[test]
    fn an_answer_names_its_instance() {
        assert_eq!(instance("inco-1958a86a-forward-12\n").unwrap(), 12);
        assert!(instance("nobody").is_err());
    }
}
