//! What an earlier run left: taken over at the start, each part by itself. What cannot be used is forgotten, with a
//! line in the log that says why.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ::memif::{ControlEvent, Link, LinkState, Unfinished};
use flow_table::{FlowHasher, FlowTable};
use model::{Slot, UplinkId};
use packet_socket::{Config, PacketSocket};
use serde::de::DeserializeOwned;
use switch::{Resumed, SwitchError};

use super::identities::{self, Identities};
use super::{SoftSwitchConfig, UplinkDevice, system};
use crate::ends;
use crate::frame::FrameMemory;
use crate::keep::{Keep, KeptAs, ListenerNote, NOT_OF_A_SWITCH, PortNote, PortsNote, SocketNote, WorkerNote};
use crate::numbering::{self, Numbering};
use crate::plan::home;
use crate::port::{Connection, kernel, memif};
use crate::shares;
use crate::table_memory::TableMemory;
use crate::worker::CommitPage;

/// What each worker gets of an earlier run.
#[derive(Default)]
pub(super) struct WorkerShare {
    pub(super) table: Option<FlowTable<TableMemory>>,
    pub(super) commit: Option<CommitPage>,
}

/// The ports of an instance, until it is attached again, or that of an uplink.
pub(super) enum KeptPort {
    /// Links to that socket.
    Links { socket: PathBuf, links: Vec<Link> },
    /// The packet sockets of interfaces.
    Sockets(Vec<KeptSocket>),
}

/// The packet socket of an interface.
pub(super) struct KeptSocket {
    interface: String,
    socket: Box<PacketSocket>,
    pub(super) in_use: Arc<AtomicBool>,
}

impl KeptPort {
    /// Whether the port is there.
    pub(super) fn is_at(&self, address: &Path) -> bool {
        match self {
            KeptPort::Links { socket, .. } => socket == address,
            KeptPort::Sockets(sockets) => {
                let names: Vec<&str> = sockets.iter().map(|of| &*of.interface).collect();
                Path::new(&names.join(",")) == address
            }
        }
    }

    /// Its links, if it has such.
    pub(super) fn links(&self) -> &[Link] {
        match self {
            KeptPort::Links { links, .. } => links,
            KeptPort::Sockets(_) => &[],
        }
    }

    /// How many ports these are.
    pub(super) fn ports(&self) -> usize {
        match self {
            KeptPort::Links { links, .. } => links.len(),
            KeptPort::Sockets(sockets) => sockets.len(),
        }
    }

    /// Whether it goes on.
    fn goes_on(&mut self) -> bool {
        match self {
            KeptPort::Links { links, .. } => links
                .iter_mut()
                .all(|link| matches!(link.control.poll(), Ok(ControlEvent::None))),
            KeptPort::Sockets(sockets) => sockets.iter().all(|of| of.socket.monitor().trouble().is_none()),
        }
    }

    /// The port as connections, which are kept as that.
    pub(super) fn connections<M: FrameMemory>(self, kept: KeptAs) -> Vec<Connection<M>> {
        match self {
            KeptPort::Links { links, .. } => memif::connections(links, kept),
            KeptPort::Sockets(sockets) => {
                let again = sockets.into_iter().map(|of| {
                    let in_use = Arc::clone(&of.in_use);
                    let again = kernel::connected_again(&of.interface, *of.socket, in_use, kept.clone());
                    again.inspect_err(|error| {
                        tracing::warn!(%error, "a kernel port is not taken over");
                        of.in_use.store(false, Ordering::Release);
                    })
                });
                // All of an instance's, or none.
                again.collect::<Result<_, _>>().unwrap_or_default()
            }
        }
    }
}

/// The peer of an uplink.
pub(super) struct KeptPeer {
    pub(super) serial: u64,
    pub(super) connected: KeptPort,
}

/// Everything of an earlier run that is still to be used.
#[derive(Default)]
pub(super) struct Leftover {
    pub(super) workers: Vec<WorkerShare>,
    /// The hasher of the tables: all workers have the same.
    pub(super) hasher: Option<FlowHasher>,
    pub(super) ports: BTreeMap<Slot, KeptPort>,
    pub(super) peers: BTreeMap<String, KeptPeer>,
    pub(super) listeners: BTreeMap<String, OwnedFd>,
    pub(super) identities: Option<Identities>,
    pub(super) resumed: Resumed,
    /// The memory of uplinks' neighbours.
    pub(super) neighbours: Option<OwnedFd>,
    /// The memory of the pins that flows share.
    pub(super) shares: Option<OwnedFd>,
    /// What these say of the services, where each has the number that it has now.
    pub(super) shares_of: Option<u64>,
    /// Which numbers services had.
    pub(super) numbering: Option<Numbering>,
    /// Whether there is an earlier run.
    pub(super) has_any: bool,
}

/// What the keeper had under a name.
pub(super) struct Found {
    pub(super) name: String,
    note: String,
    files: Vec<OwnedFd>,
}

impl Found {
    fn note<T: DeserializeOwned>(&self) -> Result<T, String> {
        serde_json::from_str(&self.note).map_err(|_| "its note is not of this version".to_owned())
    }

    /// Its only descriptor.
    pub(super) fn one_file(&mut self) -> Result<OwnedFd, String> {
        match self.files.len() {
            1 => self.files.pop().ok_or_else(String::new),
            count => Err(format!("it has {count} descriptors instead of one")),
        }
    }
}

impl Leftover {
    /// Takes everything over that can be.
    ///
    /// # Errors
    /// [`SwitchError::System`] where the keeper does not answer: a run that began without what is there would lose
    /// it.
    pub(super) fn take(config: &SoftSwitchConfig) -> Result<Leftover, SwitchError> {
        let mut leftover = Leftover::default();
        let workers = config.workers.len();
        leftover.workers.resize_with(workers, WorkerShare::default);
        let Some(keep) = &config.keep else {
            return Ok(leftover);
        };
        let entries = keep.keeper().take().map_err(|error| {
            system(
                "cannot take over the flows of an earlier run",
                std::io::Error::other(error),
            )
        })?;
        leftover.resumed.taken_at = clock::monotonic();
        leftover.has_any = !entries.is_empty();
        let mut found: Vec<Found> = entries
            .into_iter()
            .filter(|entry| !entry.name.starts_with(NOT_OF_A_SWITCH))
            .map(|entry| Found {
                name: entry.name,
                note: entry.note,
                files: entry.files,
            })
            .collect();
        // What the workers did not finish comes first: rings need it. Of two peers of an uplink the newer one.
        found.sort_by_key(|found| {
            let serial = found
                .name
                .rsplit_once('/')
                .and_then(|(_, last)| last.parse().ok());
            (!found.name.starts_with("turn/"), Reverse(serial.unwrap_or(0_u64)))
        });
        let mut tables = Vec::new();
        for entry in found {
            if entry.name.starts_with("table/") {
                tables.push(entry);
                continue;
            }
            let name = entry.name.clone();
            if let Err(reason) = leftover.put(entry, config) {
                leftover.reject(&name, &reason, keep);
            }
        }
        leftover.put_tables(tables, config, keep);
        keep.keep_numbering(&keep.numbering);
        // All rings are where the last turn was to bring them.
        for share in &mut leftover.workers {
            if let Some(page) = &mut share.commit {
                page.finish_earlier();
            }
        }
        let resumed = &mut leftover.resumed;
        resumed.attached_at = clock::monotonic();
        resumed.instances = leftover.ports.len();
        resumed.uplinks = leftover.peers.len();
        if resumed.flows.flows > 0 || resumed.instances + resumed.uplinks > 0 {
            let (flows, instances, uplinks) = (resumed.flows.flows, resumed.instances, resumed.uplinks);
            let counts = resumed.flows;
            tracing::info!(
                flows,
                instances,
                uplinks,
                ?counts,
                "taken over from an earlier run"
            );
        }
        Ok(leftover)
    }

    /// Notes that this part is not taken over.
    pub(super) fn reject(&mut self, name: &str, reason: &str, keep: &Keep) {
        tracing::warn!(name, reason, "this part of an earlier run is not taken over");
        self.resumed.rejected.push(format!("{name}: {reason}"));
        keep.forget(name);
    }

    fn put(&mut self, mut entry: Found, config: &SoftSwitchConfig) -> Result<(), String> {
        let workers = config.workers.len();
        let name = std::mem::take(&mut entry.name);
        let (kind, rest) = name.split_once('/').ok_or("its name says nothing")?;
        match kind {
            "turn" => {
                let worker = worker_of(rest, &entry, workers)?;
                let page = CommitPage::open(&entry.one_file()?).map_err(|error| error.to_string())?;
                let page = page.ok_or("the page is not of this version")?;
                self.share(worker)?.commit = Some(page);
            }
            "port" => {
                let slot = Slot(rest.parse().map_err(|_| "there is no such slot")?);
                let note = match entry.note()? {
                    PortNote::Links(note) => note,
                    PortNote::Sockets(notes) => {
                        let unfinished = self.unfinished(home(slot, 0, 1, workers));
                        self.ports.insert(slot, sockets_again(notes, entry, unfinished)?);
                        return Ok(());
                    }
                };
                check_queues(&note, workers)?;
                let mut files = entry.files.into_iter();
                let unfinished = |queue, queues| {
                    let worker = home(slot, queue, queues, workers);
                    self.workers.get(worker)?.commit.as_ref()?.unfinished()
                };
                let links = note.links.iter().map(|state| {
                    let queues = state.queues();
                    let files = files.by_ref().take(state.files()).collect();
                    Link::resume(state, files, |queue| unfinished(queue, queues))
                });
                let links = links
                    .collect::<Result<Vec<Link>, _>>()
                    .map_err(|error| error.to_string())?;
                let socket = note.socket;
                self.ports.insert(slot, KeptPort::Links { socket, links });
            }
            "uplink" => {
                let (uplink, serial) = rest.rsplit_once('/').ok_or("its name says nothing")?;
                let serial: u64 = serial.parse().map_err(|_| "its name says nothing")?;
                // The older one was about to go, and the positions that a worker noted are the newer one's.
                if self.peers.contains_key(uplink) {
                    return Err("another peer has taken its place".to_owned());
                }
                let note = match entry.note()? {
                    PortNote::Links(note) => note,
                    PortNote::Sockets(notes) => {
                        let id = notes.first().and_then(|note| interface_id(config, uplink, note));
                        let id = id.ok_or("there is no such uplink any more")?;
                        let unfinished = self.unfinished(id.index() % workers);
                        let connected = sockets_again(notes, entry, unfinished)?;
                        self.peers
                            .insert(uplink.to_owned(), KeptPeer { serial, connected });
                        return Ok(());
                    }
                };
                let id = uplink_id(config, uplink, &note.socket).ok_or("there is no such uplink any more")?;
                check_queues(&note, workers)?;
                let state = note.links.first().ok_or("it has no link")?;
                let unfinished = |queue: usize| -> Option<Unfinished> {
                    let worker = (id.index() + queue) % workers;
                    self.workers.get(worker)?.commit.as_ref()?.unfinished_of(id)
                };
                let link = Link::resume(state, entry.files, unfinished).map_err(|error| error.to_string())?;
                let connected = KeptPort::Links {
                    socket: note.socket,
                    links: vec![link],
                };
                self.peers
                    .insert(uplink.to_owned(), KeptPeer { serial, connected });
            }
            "listener" => {
                let note: ListenerNote = entry.note()?;
                if uplink_id(config, rest, &note.path).is_none() {
                    let _gone = std::fs::remove_file(&note.path);
                    return Err("there is no such uplink any more".to_owned());
                }
                self.listeners.insert(rest.to_owned(), entry.one_file()?);
            }
            _ if name == shares::NAME => self.shares = Some(entry.one_file()?),
            _ if name == numbering::NAME => {
                let numbering = Numbering::of_file(entry.one_file()?).map_err(|error| error.to_string())?;
                self.numbering = Some(numbering);
            }
            _ if name == ends::NAME => self.neighbours = Some(entry.one_file()?),
            _ if name == identities::NAME => {
                let page = Identities::open(&entry.one_file()?).map_err(|error| error.to_string())?;
                self.identities = Some(page.ok_or("the page is not of this version")?);
            }
            _ => return Err("this version of inco does not know what it is".to_owned()),
        }
        Ok(())
    }

    /// The turn that a worker has not finished.
    fn unfinished(&self, worker: usize) -> Option<u64> {
        let page = self.workers.get(worker)?.commit.as_ref()?;
        page.unfinished().map(|of| of.turn)
    }

    fn share(&mut self, worker: usize) -> Result<&mut WorkerShare, String> {
        self.workers
            .get_mut(worker)
            .ok_or_else(|| "there is no such worker any more".to_owned())
    }

    /// The slots that flows are pinned to.
    pub(super) fn pinned(&self) -> BTreeSet<Slot> {
        self.resumed.live.keys().copied().collect()
    }

    /// Lets the ports go whose instance has ended meanwhile, and that nobody attaches any more.
    pub(super) fn drop_ended(&mut self, keep: &Keep) {
        self.ports.retain(|slot, ports| {
            let is_there = ports.goes_on();
            if !is_there {
                keep.forget(&format!("port/{}", slot.0));
            }
            is_there
        });
    }
}

/// Goes on with the sockets of interfaces.
fn sockets_again(notes: Vec<SocketNote>, entry: Found, unfinished: Option<u64>) -> Result<KeptPort, String> {
    let count = entry.files.len();
    if notes.is_empty() || count != 2 * notes.len() {
        return Err(format!("it has {count} descriptors for {} sockets", notes.len()));
    }
    let mut files = entry.files.into_iter();
    let mut sockets = Vec::new();
    for note in notes {
        let (Some(socket), Some(positions)) = (files.next(), files.next()) else {
            break;
        };
        let SocketNote {
            interface,
            slots,
            frame_bytes,
        } = note;
        let config = Config { slots, frame_bytes };
        let kept = packet_socket::Kept { socket, positions };
        let socket = PacketSocket::resume(&interface, config, kept, unfinished);
        sockets.push(KeptSocket {
            socket: Box::new(socket.map_err(|error| error.to_string())?),
            interface,
            in_use: Arc::default(),
        });
    }
    let mut port = KeptPort::Sockets(sockets);
    let goes_on = port.goes_on();
    goes_on
        .then_some(port)
        .ok_or_else(|| "its interface is down".to_owned())
}

/// The uplink of that name, if it has that interface and its frames are as long.
fn interface_id(config: &SoftSwitchConfig, name: &str, note: &SocketNote) -> Option<UplinkId> {
    let mut uplinks = (0..).map(UplinkId).zip(&config.uplinks);
    let (id, _) = uplinks.find(|(_, uplink)| {
        let rings = kernel::uplink_rings(uplink.max_frame);
        let is_it =
            matches!(&uplink.device, UplinkDevice::Kernel { interface } if *interface == note.interface);
        uplink.name == name && is_it && (rings.slots, rings.frame_bytes) == (note.slots, note.frame_bytes)
    })?;
    Some(id)
}

/// Whether there is a worker for each queue.
fn check_queues(note: &PortsNote, workers: usize) -> Result<(), String> {
    match note.links.iter().map(LinkState::queues).max() {
        Some(queues) if queues > workers => {
            Err(format!("it has {queues} queues, and there are {workers} workers"))
        }
        _ => Ok(()),
    }
}

fn worker_of(name: &str, entry: &Found, workers: usize) -> Result<usize, String> {
    let note: WorkerNote = entry.note()?;
    if note.workers != workers {
        return Err(format!("there were {} workers, and now {workers}", note.workers));
    }
    name.parse().map_err(|_| "its name says nothing".to_owned())
}

/// The uplink of that name, if peers reach it at that socket.
fn uplink_id(config: &SoftSwitchConfig, name: &str, path: &std::path::Path) -> Option<UplinkId> {
    let mut uplinks = (0..).map(UplinkId).zip(&config.uplinks);
    let is_it =
        |device: &UplinkDevice| matches!(device, UplinkDevice::Memif { socket, .. } if socket == path);
    let (id, _) = uplinks.find(|(_, uplink)| uplink.name == name && is_it(&uplink.device))?;
    Some(id)
}
