//! The thread of an edge that takes load reports of machines.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

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
const SPAN: Nanos = Nanos::from_millis(10);
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

/// What the thread and the control loop share. Both lists have the machines in the same order. Who needs both locks takes
/// that of the doors first; the control loop does so for other machines only.
#[derive(Debug)]
struct Shared {
    doors: Mutex<Vec<Door>>,
    heard: Mutex<Vec<Heard>>,
    refused: [AtomicU64; Refusal::ALL.len()],
    unknown: AtomicU64,
    answered: AtomicU64,
}

/// The thread, and what it has heard.
#[derive(Debug)]
pub(crate) struct Receiver {
    shared: Arc<Shared>,
    /// This run of the edge.
    audience: u64,
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
        let shared = Arc::new(Shared {
            doors: Mutex::default(),
            heard: Mutex::default(),
            refused: Default::default(),
            unknown: AtomicU64::new(0),
            answered: AtomicU64::new(0),
        });
        let told = Arc::clone(&shared);
        let thread = Ending::start("inco-reports", move |ends| take(&socket, &told, ends))?;
        let receiver = Receiver {
            shared,
            audience,
            _thread: thread,
        };
        receiver.follow(machines);
        Ok(receiver)
    }

    /// Takes reports of these machines from now on. What is known of those that were there with the same key stays.
    pub(crate) fn follow(&self, machines: impl IntoIterator<Item = (MachineId, Key)>) {
        let mut doors = locked(&self.shared.doors);
        let mut heard = locked(&self.shared.heard);
        let mut before: Vec<(Door, Heard)> = doors.drain(..).zip(heard.drain(..)).collect();
        for (machine, key) in machines {
            let known = before
                .iter()
                .position(|(door, _)| door.machine == machine && door.key == key);
            let (door, said) = match known {
                Some(index) => before.swap_remove(index),
                None => (Door::new(machine, key, self.audience), Heard::default()),
            };
            doors.push(door);
            heard.push(said);
        }
    }

    /// Calls `see` with each machine, by its place in the order in which they were given, and what it reported last.
    pub(crate) fn heard(&self, mut see: impl FnMut(usize, &Heard)) {
        for (index, heard) in locked(&self.shared.heard).iter().enumerate() {
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

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What lets reports of a machine in.
#[derive(Debug)]
struct Door {
    machine: MachineId,
    key: Key,
    gate: Gate,
    answered_at: Option<Nanos>,
}

impl Door {
    fn new(machine: MachineId, key: Key, audience: u64) -> Door {
        Door {
            machine,
            gate: Gate::new(machine, key.clone(), audience),
            key,
            answered_at: None,
        }
    }
}

/// How much the thread does for who has no key.
#[derive(Debug, Default)]
struct Patience {
    since: Nanos,
    /// Refused since then.
    refused: u32,
}

impl Patience {
    /// Notes a datagram without effect. How long the thread rests now, if it does.
    fn refuse(&mut self, now: Nanos) -> Option<Duration> {
        if now.since(self.since) >= SPAN {
            (self.since, self.refused) = (now, 0);
        }
        self.refused += 1;
        (self.refused >= REFUSED_LIMIT).then(|| Duration::from_nanos((self.since + SPAN).since(now).0))
    }
}

fn take(socket: &UdpSocket, shared: &Shared, ends: &AtomicBool) {
    // One byte more: what is too long stays too long.
    let mut datagram = [0; DATAGRAM_LIMIT + 1];
    let mut patience = Patience::default();
    while !ends.load(Ordering::Acquire) {
        // Without a datagram nothing came for a while, an earlier answer did not arrive, or the kernel lacks memory.
        let (is_report, now) = match socket.recv_from(&mut datagram) {
            Ok((length, from)) => {
                let (bytes, now) = (datagram.get(..length).unwrap_or_default(), monotonic());
                (look(socket, shared, (bytes, from), now), now)
            }
            Err(_) => (false, monotonic()),
        };
        if !is_report && let Some(rest) = patience.refuse(now) {
            std::thread::park_timeout(rest);
        }
    }
}

/// Looks at a datagram. Whether it is a report that was accepted.
fn look(socket: &UdpSocket, shared: &Shared, (bytes, from): (&[u8], SocketAddr), now: Nanos) -> bool {
    let count = |counter: &AtomicU64| {
        counter.fetch_add(1, Ordering::Relaxed);
    };
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
    let mut doors = locked(&shared.doors);
    let mut all = doors.iter_mut().enumerate();
    let Some((index, door)) = all.find(|(_, door)| door.machine == machine) else {
        count(&shared.unknown);
        return false;
    };
    let why = match door.gate.accept(bytes) {
        Ok(report) => {
            if let Some(heard) = locked(&shared.heard).get_mut(index) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_looked_at_up_to_a_limit_in_each_span() {
        let mut patience = Patience::default();
        let begin = Nanos::from_secs(5);
        let mut looked = 0;
        let mut now = begin;
        // As fast as it comes: a microsecond each.
        while now.since(begin) < Nanos::from_secs(1) {
            looked += 1;
            now = now + Nanos::from_micros(1);
            if let Some(rest) = patience.refuse(now) {
                assert!(rest <= Duration::from_nanos(SPAN.0));
                now = now + Nanos(u64::try_from(rest.as_nanos()).unwrap());
            }
        }
        assert!(
            (90 * REFUSED_LIMIT..=101 * REFUSED_LIMIT).contains(&looked),
            "{looked}"
        );
        // A machine that sends a hundred reports to an earlier run never has it rest.
        for n in 0..10_000 {
            assert_eq!(patience.refuse(now + Nanos::from_millis(10 * n)), None);
        }
    }
}
