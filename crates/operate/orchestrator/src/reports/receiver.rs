//! The thread of an edge that takes load reports of machines.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clock::monotonic;
use edge_steering::{DATAGRAM_LIMIT, Gate, MachineId, Refusal, ServiceLoad, machine_of};
use model::Nanos;
use rustix::rand::{GetRandomFlags, getrandom};
use signal::Key;

use super::Ending;

/// How long the thread waits for a datagram before it looks whether it is to end.
const WAIT: Duration = Duration::from_millis(100);
/// Refused datagrams in a [`SPAN`] at most. With more, the thread rests until it is over, so that a flood costs little of
/// a CPU: reports get lost then, and lose effect.
const REFUSED_LIMIT: u32 = 1_000;
const SPAN: Duration = Duration::from_millis(10);
/// A machine gets an answer this often at most.
const ANSWER_EVERY: Nanos = Nanos::from_millis(5);
/// The reason of a datagram about a machine that is not listed.
const UNKNOWN_MACHINE: &str = "unknown_machine";

/// What a machine reported last.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heard {
    /// When it came; [`None`] before the first.
    pub(crate) at: Option<Nanos>,
    /// Its services, in ascending order of their numbers.
    pub(crate) loads: Vec<ServiceLoad>,
    /// Reports accepted.
    accepted: u64,
}

impl Heard {
    /// Takes over what another one says, in the memory that is there.
    pub(crate) fn follow(&mut self, other: &Heard) {
        (self.at, self.accepted) = (other.at, other.accepted);
        self.loads.clone_from(&other.loads);
    }
}

/// What became of datagrams.
#[derive(Clone, Debug)]
pub(crate) struct Taken {
    /// Reports accepted, by machine, in the order in which they were given.
    pub(crate) accepted: Vec<u64>,
    /// Datagrams refused, by reason: all reasons.
    pub(crate) refused: BTreeMap<&'static str, u64>,
    /// First reports that were answered.
    pub(crate) answered: u64,
}

/// What the thread writes and the control loop reads.
#[derive(Debug)]
struct Shared {
    heard: Mutex<Vec<Heard>>,
    refused: [AtomicU64; Refusal::ALL.len()],
    unknown: AtomicU64,
    answered: AtomicU64,
}

/// The thread, and what it has heard.
#[derive(Debug)]
pub(crate) struct Receiver {
    shared: Arc<Shared>,
    _thread: Ending,
}

impl Receiver {
    /// Takes reports of these machines from now on.
    ///
    /// # Errors
    /// The address cannot be bound, there are no random bytes, or no thread.
    pub(crate) fn start(
        listen: SocketAddr,
        machines: impl IntoIterator<Item = (MachineId, Key)>,
    ) -> io::Result<Receiver> {
        let socket = UdpSocket::bind(listen)?;
        socket.set_read_timeout(Some(WAIT))?;
        let mut run = [0; 8];
        getrandom(&mut run, GetRandomFlags::empty())?;
        // 0 is what a machine writes that knows no run of this edge.
        let audience = u64::from_ne_bytes(run).max(1);
        let gates: Vec<Door> = machines
            .into_iter()
            .map(|(machine, key)| Door {
                machine,
                gate: Gate::new(machine, key, audience),
                answered_at: None,
            })
            .collect();
        let shared = Arc::new(Shared {
            heard: Mutex::new(vec![Heard::default(); gates.len()]),
            refused: Default::default(),
            unknown: AtomicU64::new(0),
            answered: AtomicU64::new(0),
        });
        let told = Arc::clone(&shared);
        let thread = Ending::start("inco-reports", move |ends| take(&socket, gates, &told, ends))?;
        Ok(Receiver {
            shared,
            _thread: thread,
        })
    }

    /// Calls `see` with each machine, by its place in the order in which they were given, and what it reported last.
    pub(crate) fn heard(&self, mut see: impl FnMut(usize, &Heard)) {
        let heard = self.shared.heard.lock().unwrap_or_else(PoisonError::into_inner);
        for (index, heard) in heard.iter().enumerate() {
            see(index, heard);
        }
    }

    /// What became of datagrams so far.
    pub(crate) fn taken(&self) -> Taken {
        let mut accepted = Vec::new();
        self.heard(|_, heard| accepted.push(heard.accepted));
        let refused = Refusal::ALL.iter().map(|of| of.name()).zip(&self.shared.refused);
        let unknown = (UNKNOWN_MACHINE, &self.shared.unknown);
        Taken {
            accepted,
            refused: refused
                .chain([unknown])
                .map(|(reason, count)| (reason, count.load(Ordering::Relaxed)))
                .collect(),
            answered: self.shared.answered.load(Ordering::Relaxed),
        }
    }
}

/// What lets reports of a machine in.
struct Door {
    machine: MachineId,
    gate: Gate,
    answered_at: Option<Nanos>,
}

fn take(socket: &UdpSocket, mut doors: Vec<Door>, shared: &Shared, ends: &AtomicBool) {
    // One byte more: what is too long stays too long.
    let mut datagram = [0; DATAGRAM_LIMIT + 1];
    let mut span = Instant::now();
    let mut refused = 0;
    while !ends.load(Ordering::Acquire) {
        let Ok((length, from)) = socket.recv_from(&mut datagram) else {
            // Nothing came, or an earlier answer did not arrive.
            continue;
        };
        let bytes = datagram.get(..length).unwrap_or_default();
        if look(socket, &mut doors, shared, (bytes, from), monotonic()) {
            continue;
        }
        if span.elapsed() >= SPAN {
            (span, refused) = (Instant::now(), 0);
        }
        refused += 1;
        if refused >= REFUSED_LIMIT {
            std::thread::park_timeout(SPAN.saturating_sub(span.elapsed()));
        }
    }
}

/// Looks at a datagram. Whether it is a report that was accepted.
fn look(
    socket: &UdpSocket,
    doors: &mut [Door],
    shared: &Shared,
    (bytes, from): (&[u8], SocketAddr),
    now: Nanos,
) -> bool {
    let count = |counter: &AtomicU64| drop(counter.fetch_add(1, Ordering::Relaxed));
    let refuse = |why: Refusal| {
        let place = Refusal::ALL.iter().position(|of| *of == why);
        if let Some(counter) = place.and_then(|place| shared.refused.get(place)) {
            count(counter);
        }
    };
    let Some(machine) = machine_of(bytes) else {
        refuse(Refusal::Malformed);
        return false;
    };
    let mut all = doors.iter_mut().enumerate();
    let Some((index, door)) = all.find(|(_, door)| door.machine == machine) else {
        count(&shared.unknown);
        return false;
    };
    let why = match door.gate.accept(bytes) {
        Ok(report) => {
            let mut heard = shared.heard.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(heard) = heard.get_mut(index) {
                heard.at = Some(now);
                heard.accepted += 1;
                heard.loads.clear();
                heard.loads.extend(report.services());
            }
            return true;
        }
        Err(why) => why,
    };
    let is_due = door.answered_at.is_none_or(|at| now.since(at) >= ANSWER_EVERY);
    let may_be_known = matches!(why, Refusal::OtherEdge | Refusal::Replayed);
    if may_be_known
        && is_due
        && let Some(answer) = door.gate.answer(bytes)
        && socket.send_to(&answer, from).is_ok()
    {
        door.answered_at = Some(now);
        count(&shared.answered);
    } else {
        refuse(why);
    }
    false
}
