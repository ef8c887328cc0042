//! The clients of the demo: connections to web servers, and questions to the function. Each counts what fails, by the machine
//! that should have answered.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use testbed::http::Connection;
use testbed::network::Namespace;

use super::MACHINES;
use super::bed::NAME;

/// Requests of connections, one after the other.
const REQUESTS: [u32; 6] = [1, 1, 30, 1, 4, 120];
/// Clients of the web servers at most, and of the function.
pub(super) const CLIENTS_MAX: u32 = 32;
const ASKING: u32 = 2;
/// Between two requests of a client.
const PAUSE: Duration = Duration::from_millis(4);
/// How long a question waits for its answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);
/// How often it is asked.
const ASKED: u32 = 3;
/// Questions by one socket, and so in one flow.
const QUESTIONS: u32 = 50;
/// Failures of which the cause is kept.
const CAUSES: usize = 5;

/// Whom clients ask, and who answers.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) web: SocketAddr,
    /// The function, where there is one.
    pub(super) names: Option<SocketAddr>,
    /// How what the web servers of each machine say begins. The rest may differ between servers.
    pub(super) machines: [String; MACHINES as usize],
}

/// What was counted since the last look.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    /// Requests that each machine has answered.
    pub(super) answered: [u64; MACHINES as usize],
    /// Questions that each has answered.
    pub(super) named: [u64; MACHINES as usize],
    /// Requests that failed, questions without an answer, and answers of another server or machine than the one before, in
    /// connections and flows during which no machine was away.
    pub(super) failed: u64,
    pub(super) unanswered: u64,
    pub(super) moved: u64,
    /// The same where one was.
    pub(super) by_loss: u64,
    /// Questions that were asked again.
    pub(super) asked_again: u64,
    pub(super) longest: Duration,
    pub(super) causes: Vec<String>,
}

impl Counts {
    pub(super) fn requests(&self) -> u64 {
        self.answered.iter().sum()
    }

    fn note_answer(&mut self, machine: usize, took: Duration) {
        if let Some(count) = self.answered.get_mut(machine) {
            *count += 1;
        }
        self.longest = self.longest.max(took);
    }

    fn note_cause(&mut self, cause: String) {
        if self.causes.len() < CAUSES {
            self.causes.push(cause);
        }
    }
}

struct Shared {
    asked: Asked,
    counts: Mutex<Counts>,
    is_over: AtomicBool,
    /// Clients that ask now.
    clients: AtomicU32,
    /// How often a machine went away or came back.
    changes: AtomicU32,
}

impl Shared {
    fn note(&self, note: impl FnOnce(&mut Counts)) {
        note(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn changes(&self) -> u32 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Whether a machine was away at any time since there were so many changes.
    fn was_away(&self, changes: u32) -> bool {
        changes % 2 == 1 || changes != self.changes()
    }
}

/// Running clients. Dropping it ends them.
pub(super) struct Load {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    /// Starts clients in the client's network.
    ///
    /// # Errors
    /// The network is gone, or there can be no more threads.
    pub(super) fn start(client: &Namespace, asked: Asked) -> Result<Load> {
        let asking = if asked.names.is_some() { ASKING } else { 0 };
        let shared = Arc::new(Shared {
            asked,
            counts: Mutex::default(),
            is_over: AtomicBool::new(false),
            clients: AtomicU32::new(0),
            changes: AtomicU32::new(0),
        });
        let threads = client.within(|| {
            let spawn = |number: u32| {
                let shared = Arc::clone(&shared);
                let run = move || match shared.asked.names {
                    Some(names) if number >= CLIENTS_MAX => questions(&shared, names),
                    _ => connections(&shared, number),
                };
                let name = format!("client-{number}");
                std::thread::Builder::new()
                    .name(name)
                    .spawn(run)
                    .context("cannot start a thread")
            };
            (0..CLIENTS_MAX + asking).map(spawn).collect()
        })?;
        Ok(Load { shared, threads })
    }

    /// So many clients of the web servers ask from now on.
    pub(super) fn set_clients(&self, clients: u32) {
        self.shared.clients.store(clients, Ordering::Relaxed);
    }

    /// A machine goes away, or comes back.
    pub(super) fn note_change(&self) {
        self.shared.changes.fetch_add(1, Ordering::Relaxed);
    }

    /// What was counted since the last call.
    pub(super) fn take(&self) -> Counts {
        let mut taken = Counts::default();
        self.shared.note(|counts| taken = std::mem::take(counts));
        taken
    }

    /// Ends the clients, each with its connection. What was counted since the last look.
    pub(super) fn end(mut self) -> Counts {
        self.shared.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // One that has panicked has said so.
            let _ = thread.join();
        }
        self.take()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
    }
}

/// A connection after the other.
fn connections(shared: &Shared, number: u32) {
    for requests in REQUESTS.iter().cycle().skip(number as usize) {
        while number >= shared.clients.load(Ordering::Relaxed) && !shared.is_over() {
            std::thread::sleep(Duration::from_millis(20));
        }
        if shared.is_over() {
            return;
        }
        let changes = shared.changes();
        if let Err(cause) = connection(shared, *requests, changes) {
            note_failure(shared, changes, &cause, |counts| &mut counts.failed);
        }
    }
}

fn connection(shared: &Shared, requests: u32, changes: u32) -> Result<()> {
    let mut began = Instant::now();
    let mut connection = Connection::open(shared.asked.web)?;
    let mut first = None;
    for number in 1..=requests {
        let answer = connection.get("/", number == requests)?;
        let machines = &shared.asked.machines;
        let machine = machines
            .iter()
            .position(|machine| answer.starts_with(machine.as_str()))
            .with_context(|| format!("the answer is {answer:?}"))?;
        shared.note(|counts| {
            counts.note_answer(machine, began.elapsed());
        });
        note_answerer(shared, changes, &mut first, answer);
        std::thread::sleep(PAUSE);
        began = Instant::now();
    }
    Ok(())
}

/// Something failed in a connection or a flow that began when there had been so many changes.
fn note_failure(
    shared: &Shared,
    changes: u32,
    cause: &anyhow::Error,
    count: impl FnOnce(&mut Counts) -> &mut u64,
) {
    let by_loss = shared.was_away(changes);
    shared.note(|counts| {
        if by_loss {
            counts.by_loss += 1;
        } else {
            *count(counts) += 1;
            counts.note_cause(format!("{cause:#}"));
        }
    });
}

/// A server or a machine has answered in a connection or a flow.
fn note_answerer<A: Clone + PartialEq>(shared: &Shared, changes: u32, first: &mut Option<A>, answerer: A) {
    let has_moved = first
        .replace(answerer.clone())
        .is_some_and(|first| first != answerer);
    if has_moved {
        let by_loss = shared.was_away(changes);
        shared.note(|counts| {
            *(if by_loss {
                &mut counts.by_loss
            } else {
                &mut counts.moved
            }) += 1
        });
    }
}

/// Questions to the function, each of which its machine answers with its number.
fn questions(shared: &Shared, names: SocketAddr) {
    while !shared.is_over() {
        let changes = shared.changes();
        if let Err(cause) = flow_of_questions(shared, names, changes) {
            note_failure(shared, changes, &cause, |counts| &mut counts.unanswered);
        }
    }
}

fn flow_of_questions(shared: &Shared, names: SocketAddr, changes: u32) -> Result<()> {
    let socket = UdpSocket::bind("0.0.0.0:0").context("no socket")?;
    socket.connect(names).context("no way to the function")?;
    socket
        .set_read_timeout(Some(ANSWER_LIMIT))
        .context("no timeout")?;
    let mut first = None;
    for id in 0..QUESTIONS as u16 {
        if shared.is_over() {
            return Ok(());
        }
        let mut times = 1;
        socket.send(&question(id)).context("a question cannot be sent")?;
        let mut answer = [0; 512];
        let machine = loop {
            let Ok(len) = socket.recv(&mut answer) else {
                // As a resolver does: UDP sends nothing again.
                ensure!(
                    times < ASKED,
                    "a question was asked {ASKED} times and has no answer"
                );
                times += 1;
                shared.note(|counts| counts.asked_again += 1);
                socket.send(&question(id)).context("a question cannot be sent")?;
                continue;
            };
            let answer = answer.get(..len).unwrap_or_default();
            if answer.get(..2) == Some(&id.to_be_bytes()) {
                // Its last four bytes are the address that was asked for.
                break match answer {
                    [.., 192, 0, 2, machine] => *machine,
                    _ => bail!("a question has a wrong answer: {answer:02x?}"),
                };
            }
        };
        shared.note(|counts| {
            if let Some(count) = counts.named.get_mut(usize::from(machine).wrapping_sub(1)) {
                *count += 1;
            }
        });
        note_answerer(shared, changes, &mut first, machine);
        std::thread::sleep(2 * PAUSE);
    }
    Ok(())
}

/// A question for the address of [`NAME`] (RFC 1035, section 4).
fn question(id: u16) -> Vec<u8> {
    let mut bytes = id.to_be_bytes().to_vec();
    bytes.extend([0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in NAME.split('.') {
        bytes.push(label.len() as u8);
        bytes.extend(label.as_bytes());
    }
    bytes.extend([0, 0, 1, 0, 1]);
    bytes
}
