//! The ports of instances: pairs of interfaces whose host's end has the program.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use interfaces::{Link, Links, Pairs, Remaker, host_end};
use model::{PortKind, ServiceId, Slot};

use crate::error::EbpfError;
use crate::kernel::{Kernel, Program};

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
    /// What leads to the instance: an interface that is made for it; or, where others run it, routes or a tunnel. Then
    /// it has no addresses here.
    pub kind: PortKind,
}

/// Makes a pair, in the place of one of that name, and attaches the program. Gives the host's end.
pub(crate) fn make(
    pairs: &Pairs,
    links: &mut Links,
    kernel: &Mutex<Kernel>,
    slot: Slot,
) -> Result<Link, EbpfError> {
    let link = pairs.make(links, slot)?;
    attach(pairs, kernel, slot)?;
    Ok(link)
}

/// Attaches the program to the host's end.
pub(crate) fn attach(pairs: &Pairs, kernel: &Mutex<Kernel>, slot: Slot) -> Result<(), EbpfError> {
    lock(kernel).attach(Program::Instance, &host_end(&pairs.prefix, slot), slot.0)
}

/// Starts the thread that makes pairs again.
pub(crate) fn remaker(pairs: Pairs, kernel: Arc<Mutex<Kernel>>) -> std::io::Result<Remaker<EbpfError>> {
    Remaker::start(move |links, slot| make(&pairs, links, &kernel, slot))
}

pub(crate) fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
