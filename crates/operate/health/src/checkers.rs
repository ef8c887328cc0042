//! Checks again and again, each instance on threads of its own: one that does not answer delays no other.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use model::InstanceId;

use crate::probe::{self, Passed};
use crate::remote;
use crate::wire::{Port, Wire};
use crate::{HealthError, Question};

/// Stack of a thread that checks: the packets are elsewhere.
const STACK_BYTES: usize = 256 * 1024;

/// What a thread checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Aspect {
    /// Whether the instance serves.
    Health,
    /// What its agent says.
    Agent,
}

/// Where an instance is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// Through its interface.
    Interface(Port),
    /// At an address that this machine's routes lead to. A question to port 0 is one to this port.
    Network(SocketAddr),
}

/// A check that is repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repeated {
    /// Where the instance is.
    pub way: Way,
    /// What it is asked.
    pub question: Question,
    /// From the beginning of one check to that of the next.
    pub every: Duration,
    /// How long one may take.
    pub timeout: Duration,
}

/// The verdict of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Of which instance.
    pub instance: InstanceId,
    /// What was checked.
    pub aspect: Aspect,
    /// What was found, or why it did not pass.
    pub found: Result<Passed, String>,
}

/// The threads that check.
pub struct Checkers {
    running: BTreeMap<(InstanceId, Aspect), Sender<()>>,
    tell: Sender<Verdict>,
    told: Receiver<Verdict>,
}

impl Default for Checkers {
    fn default() -> Checkers {
        let (tell, told) = channel();
        Checkers {
            running: BTreeMap::new(),
            tell,
            told,
        }
    }
}

impl Checkers {
    /// Checks those, in their order, and nobody else: `check` says how. Call it each turn; what is checked already costs nothing.
    ///
    /// # Errors
    /// A thread cannot be started. The next call tries again.
    pub fn follow(
        &mut self,
        wanted: &[(InstanceId, Aspect)],
        check: impl Fn(InstanceId, Aspect) -> Option<Repeated>,
    ) -> Result<(), HealthError> {
        // A thread whose sender has gone ends by itself, after the check that it is in.
        self.running.retain(|of, _| wanted.binary_search(of).is_ok());
        for of in wanted {
            if !self.running.contains_key(of)
                && let Some(repeated) = check(of.0, of.1)
            {
                let stop = start(*of, repeated, self.tell.clone())?;
                self.running.insert(*of, stop);
            }
        }
        Ok(())
    }

    /// Ends all: how they are checked has changed.
    pub fn forget(&mut self) {
        self.running.clear();
    }

    /// The next verdict on somebody who is still checked.
    pub fn verdict(&mut self) -> Option<Verdict> {
        loop {
            let verdict = self.told.try_recv().ok()?;
            if self.running.contains_key(&(verdict.instance, verdict.aspect)) {
                return Some(verdict);
            }
        }
    }
}

fn start(
    (instance, aspect): (InstanceId, Aspect),
    of: Repeated,
    tell: Sender<Verdict>,
) -> Result<Sender<()>, HealthError> {
    let (stop, stopped) = channel::<()>();
    let work = move || {
        let mut wire = None;
        let mut next = Instant::now();
        loop {
            let found = check(&mut wire, &of);
            let verdict = Verdict {
                instance,
                aspect,
                found,
            };
            if tell.send(verdict).is_err() {
                return;
            }
            // One that was late does not bring the following ones forward.
            let now = Instant::now();
            next = (next + of.every).max(now);
            match stopped.recv_timeout(next - now) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    };
    thread::Builder::new()
        .name("inco-check".to_owned())
        .stack_size(STACK_BYTES)
        .spawn(work)
        .map_err(|source| HealthError::System {
            what: "start a thread",
            source,
        })?;
    Ok(stop)
}

fn check(wire: &mut Option<Wire>, of: &Repeated) -> Result<Passed, String> {
    let port = match &of.way {
        Way::Interface(port) => port,
        Way::Network(at) => return remote::ask(*at, &of.question, of.timeout),
    };
    let open = match wire {
        Some(open) => open,
        None => {
            let opened = Wire::open(port);
            wire.insert(opened.map_err(|error| format!("it cannot be checked: {error}"))?)
        }
    };
    let found = probe::ask(open, port, &of.question, of.timeout);
    if found.is_err() {
        // Its interface may be another one of that name now.
        *wire = None;
    }
    found
}
