//! The pairs of interfaces between this machine's network and instances. All are there before any container. A thread
//! makes those again that went with their container, because the kernel takes its time to remove an interface.

use std::io;
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use model::{ServiceId, Slot};

use crate::error::EbpfError;
use crate::kernel::{Kernel, Program};
use crate::links::{Link, Links};

/// The MAC address of the host's ends, which is the next hop of every instance. It never leaves the machine.
pub const GATEWAY_MAC: [u8; 6] = [0x02, 0x69, 0x6e, 0x63, 0x6f, 0x00];

/// The port of an instance that may come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreparedPort {
    /// The place of the instance.
    pub slot: Slot,
    /// Whose instances have it.
    pub service: ServiceId,
    /// The addresses that the instance has for itself, beside the service's: one of each IP version at most.
    pub own: Vec<IpAddr>,
    /// Whether the instance may open connections.
    pub egress: bool,
}

/// The name of the host's end of a slot's pair.
pub fn host_end(prefix: &str, slot: Slot) -> String {
    format!("{prefix}{}", slot.0)
}

/// The name of the container's end before it is moved there.
pub fn container_end(prefix: &str, slot: Slot) -> String {
    format!("{prefix}c{}", slot.0)
}

/// The MAC address of a slot's instance. It never leaves the machine.
pub fn instance_mac(slot: Slot) -> [u8; 6] {
    let [high, low] = (slot.0 + 1).to_be_bytes();
    [0x02, 0x69, 0x6e, 0x63, high, low]
}

/// How pairs are made.
#[derive(Clone, Debug)]
pub(crate) struct Pairs {
    pub(crate) prefix: String,
    pub(crate) mtu: u32,
}

impl Pairs {
    /// Makes a pair, in the place of one of that name, and attaches the program. Gives the host's end.
    pub(crate) fn make(
        &self,
        links: &mut Links,
        kernel: &Mutex<Kernel>,
        slot: Slot,
    ) -> Result<Link, EbpfError> {
        let name = host_end(&self.prefix, slot);
        let wrong = |source: io::Error| EbpfError::Interface {
            interface: name.clone(),
            source,
        };
        links.remove(&name).map_err(wrong)?;
        let there = container_end(&self.prefix, slot);
        links
            .make_pair(&name, GATEWAY_MAC, &there, instance_mac(slot), self.mtu)
            .map_err(wrong)?;
        self.attach(kernel, slot)?;
        links.find(&name).map_err(wrong)
    }

    /// Attaches the program to the host's end.
    pub(crate) fn attach(&self, kernel: &Mutex<Kernel>, slot: Slot) -> Result<(), EbpfError> {
        lock(kernel).attach(Program::Instance, &host_end(&self.prefix, slot), slot.0)
    }

    /// The slot of a host's end of ours.
    pub(crate) fn slot_of(&self, name: &str) -> Option<Slot> {
        let number = name.strip_prefix(&self.prefix)?.parse().ok()?;
        Some(Slot(number)).filter(|slot| slot.index() < Slot::LIMIT && host_end(&self.prefix, *slot) == name)
    }
}

/// The thread that makes pairs again.
pub(crate) struct Remaker {
    jobs: Option<Sender<Slot>>,
    done: Receiver<(Slot, Result<Link, EbpfError>)>,
    thread: Option<JoinHandle<()>>,
}

impl Remaker {
    pub(crate) fn start(pairs: Pairs, kernel: Arc<Mutex<Kernel>>) -> io::Result<Remaker> {
        let (jobs, todo) = channel::<Slot>();
        let (tell, done) = channel();
        let work = move || {
            let mut links = Links::new();
            for slot in todo {
                let made = match &mut links {
                    Ok(links) => pairs.make(links, &kernel, slot),
                    Err(error) => Err(EbpfError::System {
                        what: "netlink",
                        source: io::Error::from(error.kind()),
                    }),
                };
                if tell.send((slot, made)).is_err() {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("inco-ports".to_owned()).spawn(work)?;
        Ok(Remaker {
            jobs: Some(jobs),
            done,
            thread: Some(thread),
        })
    }

    /// Makes the pair of that slot again. [`Remaker::done`] tells when it is there.
    pub(crate) fn remake(&self, slot: Slot) {
        if let Some(jobs) = &self.jobs {
            // The thread lives as long as this sender.
            let _ = jobs.send(slot);
        }
    }

    /// What has been made since the last call.
    pub(crate) fn done(&self) -> Option<(Slot, Result<Link, EbpfError>)> {
        self.done.try_recv().ok()
    }

    pub(crate) fn stop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // It says nothing when it ends.
            let _ = thread.join();
        }
    }
}

pub(crate) fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
