//! The pairs of interfaces between this machine's network and instances. All are there before any container. A thread
//! makes those again that went with their container, because the kernel takes its time to remove an interface.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use model::Slot;

use crate::Error;
use crate::links::{Link, Links};

/// The MAC address of the next hop of every instance. It never leaves the machine.
pub const GATEWAY_MAC: [u8; 6] = [0x02, 0x69, 0x6e, 0x63, 0x6f, 0x00];

/// Where health checks come from. Neither address is anybody's: link-local, and of the prefix that is discarded (RFC
/// 6666). The driver's program in the kernel has them, too.
pub const CHECKER_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 2);
/// The same for IPv6.
pub const CHECKER_V6: Ipv6Addr = Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 2);

/// Whether an address is that of health checks.
pub fn is_checker(address: IpAddr) -> bool {
    address == CHECKER_V4 || address == CHECKER_V6
}

/// The name of the host's end of a slot's pair.
pub fn host_end(prefix: &str, slot: Slot) -> String {
    format!("{prefix}{}", slot.0)
}

/// The name of the container's end before it is moved there.
pub fn container_end(prefix: &str, slot: Slot) -> String {
    format!("{prefix}c{}", slot.0)
}

/// The prefix of the pairs of all slots that carry whole frames to and from the data port of that number, 0 or 1, where
/// `prefix` is that of the pairs for the kernel's network.
pub fn frames_prefix(prefix: &str, port: u8) -> String {
    let mark = if port == 0 { 'f' } else { 'g' };
    format!("{prefix}{mark}")
}

/// The MAC address of a slot's instance. It never leaves the machine.
pub fn instance_mac(slot: Slot) -> [u8; 6] {
    let [high, low] = (slot.0 + 1).to_be_bytes();
    [0x02, 0x69, 0x6e, 0x63, high, low]
}

/// How pairs are made.
#[derive(Clone, Debug)]
pub struct Pairs {
    /// What the names of the host's ends begin with, at most 9 bytes.
    pub prefix: String,
    /// The longest packet that they carry, without the Ethernet header.
    pub mtu: u32,
    /// Whether this machine's own network has no part in the pairs: for a switch that takes frames beside it. The
    /// host's ends then do not have [`GATEWAY_MAC`], but an address that nobody learns.
    pub is_apart: bool,
}

impl Pairs {
    /// Makes a pair, in the place of one of that name. Gives the host's end.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn make(&self, links: &mut Links, slot: Slot) -> Result<Link, Error> {
        let interface = host_end(&self.prefix, slot);
        let there = container_end(&self.prefix, slot);
        let made = links
            .remove(&interface)
            .and_then(|()| {
                let here = (interface.as_str(), (!self.is_apart).then_some(GATEWAY_MAC));
                links.make_pair(here, (&there, instance_mac(slot)), self.mtu)
            })
            .and_then(|()| {
                if self.is_apart {
                    set_apart(&interface)
                } else {
                    Ok(())
                }
            })
            .and_then(|()| links.find(&interface));
        made.map_err(|source| Error { interface, source })
    }

    /// The slot of a host's end of ours.
    pub fn slot_of(&self, name: &str) -> Option<Slot> {
        let number = name.strip_prefix(&self.prefix)?.parse().ok()?;
        Some(Slot(number)).filter(|slot| slot.index() < Slot::LIMIT && host_end(&self.prefix, *slot) == name)
    }

    /// Removes all pairs of that prefix.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn remove_all(&self, links: &mut Links) -> Result<(), Error> {
        let all = links.list().map_err(|source| Error {
            interface: format!("{}*", self.prefix),
            source,
        })?;
        for link in all.into_iter().filter(|link| self.slot_of(&link.name).is_some()) {
            let interface = link.name;
            let removed = links.remove(&interface);
            removed.map_err(|source| Error { interface, source })?;
        }
        Ok(())
    }
}

/// Has this machine's own network ignore an interface that has no carrier yet.
fn set_apart(interface: &str) -> io::Result<()> {
    for (family, setting, value) in [("ipv6", "disable_ipv6", "1"), ("ipv4", "forwarding", "0")] {
        let path = format!("/proc/sys/net/{family}/conf/{interface}/{setting}");
        match std::fs::write(path, value) {
            // A kernel without IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => other?,
        }
    }
    Ok(())
}

/// The thread that makes pairs again.
pub struct Remaker<E> {
    jobs: Option<Sender<Slot>>,
    done: Receiver<(Slot, Result<Link, E>)>,
    thread: Option<JoinHandle<()>>,
}

impl<E: Send + 'static> Remaker<E> {
    /// Starts it. `make` makes a pair, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// The system has no more sockets or threads.
    pub fn start(
        mut make: impl FnMut(&mut Links, Slot) -> Result<Link, E> + Send + 'static,
    ) -> io::Result<Remaker<E>> {
        let mut links = Links::new()?;
        let (jobs, todo) = channel::<Slot>();
        let (tell, done) = channel();
        let work = move || {
            for slot in todo {
                if tell.send((slot, make(&mut links, slot))).is_err() {
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
    pub fn remake(&self, slot: Slot) {
        if let Some(jobs) = &self.jobs {
            // The thread lives as long as this sender.
            let _ = jobs.send(slot);
        }
    }

    /// What has been made since the last call.
    pub fn done(&self) -> Option<(Slot, Result<Link, E>)> {
        self.done.try_recv().ok()
    }

    /// Ends it.
    pub fn stop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // It says nothing when it ends.
            let _ = thread.join();
        }
    }
}
