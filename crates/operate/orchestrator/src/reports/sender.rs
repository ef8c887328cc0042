//! The thread of a machine that sends its load to its edges.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clock::{monotonic, wall};
use edge_steering::{DATAGRAM_LIMIT, GREETING_BYTES, MachineId, ServiceLoad, Settings, Towards};
use model::Nanos;
use signal::Key;

use super::Ending;

/// What nobody renewed for so long is not sent: a control loop that hangs must not look well.
const BOARD_LIMIT: Nanos = Nanos::from_secs(1);
/// Answers of an edge that are read between two reports. It sends one.
const ANSWERS: usize = 8;

/// What the control loop has the thread send, and what became of it.
#[derive(Debug)]
pub(crate) struct Board {
    /// The loads, and when they were told.
    told: Mutex<Option<(Nanos, Vec<ServiceLoad>)>>,
    edges: Vec<Edge>,
}

/// Counters of one edge.
#[derive(Debug)]
struct Edge {
    to: SocketAddr,
    is_known: AtomicBool,
    sent: AtomicU64,
    failed: AtomicU64,
}

/// What became of the reports to an edge.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) to: SocketAddr,
    /// Whether the edge has said for which run of it reports are.
    pub(crate) is_known: bool,
    pub(crate) sent: u64,
    pub(crate) failed: u64,
}

impl Board {
    /// Says what is sent from now on, in any order. It keeps the list's memory.
    pub(crate) fn tell(&self, now: Nanos, loads: impl Iterator<Item = ServiceLoad>) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, list) = told.get_or_insert_with(|| (now, Vec::new()));
        *at = now;
        list.clear();
        list.extend(loads);
        list.sort_unstable_by_key(|load| load.service);
    }

    /// What became of the reports, by edge.
    pub(crate) fn edges(&self) -> impl Iterator<Item = Sent> {
        self.edges.iter().map(|edge| Sent {
            to: edge.to,
            is_known: edge.is_known.load(Ordering::Relaxed),
            sent: edge.sent.load(Ordering::Relaxed),
            failed: edge.failed.load(Ordering::Relaxed),
        })
    }

    /// Copies what is to be sent now. False if there is nothing, or if it is too old.
    fn read(&self, now: Nanos, into: &mut Vec<ServiceLoad>) -> bool {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        match &*told {
            Some((at, list)) if now.since(*at) < BOARD_LIMIT => {
                into.clone_from(list);
                true
            }
            _ => false,
        }
    }
}

/// The thread, and what it sends.
#[derive(Debug)]
pub(crate) struct Sender {
    board: Arc<Board>,
    _thread: Ending,
}

impl Sender {
    /// Sends reports of this machine to these edges from now on, once there is something to send.
    ///
    /// # Errors
    /// No thread can be started.
    pub(crate) fn start(machine: MachineId, key: &Key, to: &[SocketAddr]) -> io::Result<Sender> {
        let edges = to.iter().map(|to| Edge {
            to: *to,
            is_known: AtomicBool::new(false),
            sent: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        });
        let board = Arc::new(Board {
            told: Mutex::new(None),
            edges: edges.collect(),
        });
        // The wall clock: higher in each run. An edge that knows a higher one says so.
        let incarnation = wall().0.max(1);
        let ways = to.iter().map(|_| Way {
            socket: None,
            towards: Towards::new(machine, key.clone(), incarnation),
        });
        let mut ways: Vec<Way> = ways.collect();
        let shared = Arc::clone(&board);
        let thread = Ending::start("inco-reports", move |ends| run(&shared, &mut ways, ends))?;
        Ok(Sender {
            board,
            _thread: thread,
        })
    }

    /// What it sends.
    pub(crate) fn board(&self) -> &Board {
        &self.board
    }
}

/// The way to one edge.
struct Way {
    /// Connected, so that the kernel drops what others send there. [`None`]: there is no route yet.
    socket: Option<UdpSocket>,
    towards: Towards,
}

fn run(board: &Board, ways: &mut [Way], ends: &AtomicBool) {
    let interval = Duration::from_nanos(Settings::default().interval.0);
    let mut loads = Vec::new();
    let mut next = Instant::now();
    while !ends.load(Ordering::Acquire) {
        if board.read(monotonic(), &mut loads) {
            for (way, edge) in ways.iter_mut().zip(&board.edges) {
                way.hear(edge);
                let counter = match way.send(edge.to, &loads) {
                    Ok(()) => &edge.sent,
                    Err(_) => &edge.failed,
                };
                counter.fetch_add(1, Ordering::Relaxed);
            }
        }
        next += interval;
        let now = Instant::now();
        if next <= now {
            // A thread that was held up does not make up for it.
            next = now + interval;
        }
        std::thread::park_timeout(next - now);
    }
}

impl Way {
    fn send(&mut self, to: SocketAddr, loads: &[ServiceLoad]) -> io::Result<()> {
        let mut datagram = [0; DATAGRAM_LIMIT];
        let bytes = self
            .towards
            .write(loads, &mut datagram)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let socket = match &mut self.socket {
            Some(socket) => socket,
            none => none.insert(connected(to)?),
        };
        socket.send(bytes).map(drop)
    }

    /// Takes what the edge has answered.
    fn hear(&mut self, edge: &Edge) {
        let Some(socket) = &self.socket else { return };
        let mut datagram = [0; GREETING_BYTES + 1];
        for _ in 0..ANSWERS {
            // An error is what became of an earlier report: it was counted as sent, and did not arrive.
            let Ok(length) = socket.recv(&mut datagram) else {
                break;
            };
            if self.towards.hear(datagram.get(..length).unwrap_or_default()) {
                edge.is_known.store(true, Ordering::Relaxed);
            }
        }
    }
}

fn connected(to: SocketAddr) -> io::Result<UdpSocket> {
    let any: SocketAddr = match to {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(to)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}
