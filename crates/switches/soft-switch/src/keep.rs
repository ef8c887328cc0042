//! What is kept for the next run: flow tables, the workers' commits, and the rings and sockets of ports. The next run
//! goes on with them, so that no flow moves and no packet is lost that a ring can hold.
//!
//! | entry | descriptors |
//! | --- | --- |
//! | `table/WORKER` | the memory of a flow table |
//! | `turn/WORKER` | the page where a worker notes what it commits |
//! | `port/SLOT` | the links of an instance's data ports, or the packet socket of its kernel port |
//! | `uplink/NAME/SERIAL` | the link of an uplink's peer, or the packet socket of its interface; with a serial number, since the next one may come before this one has gone |
//! | `neighbours/all` | the memory of uplinks' neighbours, with kernel ports |
//! | `shares/all` | the memory of the pins that flows share, with `affinity_key` |
//! | `slots/instances` | the page that says which instance each slot has |
//! | `listener/NAME` | the socket on which an uplink waits for peers |
//! | `tables/services` | a file that says which number each service has in the flow tables |

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use keeper::Keeper;
use memif::{Link, LinkState};
use model::Slot;
use packet_socket::{Config, PacketSocket};
use serde::{Deserialize, Serialize};

use crate::numbering::{self, Numbering};

/// The names of entries that are not a switch's begin with this.
pub const NOT_OF_A_SWITCH: &str = "inco/";

/// Who keeps a switch's state, and what it means.
#[derive(Clone, Debug)]
pub struct Keep {
    keeper: Arc<Keeper>,
    /// Which service has which number, at the start.
    pub(crate) numbering: Numbering,
    /// The boot of this machine.
    pub(crate) boot: [u8; 16],
    /// Whether new flow tables may lie in reserved huge pages.
    pub(crate) hugepages: bool,
    is_leaving: Arc<AtomicBool>,
    /// Changes that wait for [`Keep::begin`]; [`None`] after it.
    changes: Arc<Mutex<Option<Changes>>>,
}

/// What is to be kept, or, with [`None`], forgotten, by name.
type Changes = BTreeMap<String, Option<(String, Vec<OwnedFd>)>>;

impl Keep {
    /// State that `keeper` keeps. Until [`Keep::begin`] nothing changes there: a run that does not start leaves what
    /// it found. Flow tables of an earlier run are taken over if they are of the same boot of this machine. Where
    /// services have other numbers than in `numbering`, tables are converted.
    pub fn new(keeper: Arc<Keeper>, numbering: Numbering, boot: [u8; 16]) -> Keep {
        Keep {
            keeper,
            numbering,
            boot,
            hugepages: true,
            is_leaving: Arc::new(AtomicBool::new(true)),
            changes: Arc::new(Mutex::new(Some(Changes::new()))),
        }
    }

    /// The same; whether new flow tables may lie in reserved huge pages. Without this they may.
    #[must_use]
    pub fn in_hugepages(mut self, may: bool) -> Keep {
        self.hugepages = may;
        self
    }

    /// Who keeps it.
    pub fn keeper(&self) -> &Arc<Keeper> {
        &self.keeper
    }

    /// The switch has started: makes the changes that waited. From now on each is made at once.
    pub fn begin(&self) {
        self.is_leaving.store(false, Ordering::Relaxed);
        let changes = self.waiting().take().unwrap_or_default();
        for (name, change) in changes {
            match change {
                Some((note, files)) => {
                    let files: Vec<BorrowedFd<'_>> = files.iter().map(|file| file.as_fd()).collect();
                    self.give(&name, &note, &files);
                }
                None => self.keeper.forget(&name),
            }
        }
    }

    /// Services were added: these are all of them now.
    pub fn renumber(&self, all: Numbering) {
        self.keep_numbering(&all.of_tables(self.numbering.tables));
    }

    /// Has these numbers kept.
    pub(crate) fn keep_numbering(&self, numbering: &Numbering) {
        match numbering.to_file() {
            Ok(file) => self.keep(numbering::NAME, &(), &[file.as_fd()]),
            Err(error) => tracing::warn!(%error, "the numbers of services are not kept for the next run"),
        }
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, Option<Changes>> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves everything to the next run: what is dropped from now on is not forgotten.
    pub(crate) fn leave(&self) {
        self.is_leaving.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::Relaxed)
    }

    /// Keeps something. Where that fails, the switch works, and the next run begins this part anew.
    pub(crate) fn keep(&self, name: &str, note: &impl Serialize, files: &[BorrowedFd<'_>]) {
        let note = match serde_json::to_string(note) {
            Ok(note) => note,
            Err(error) => return tracing::warn!(name, %error, "this is not kept for the next run"),
        };
        let mut waiting = self.waiting();
        let Some(changes) = waiting.as_mut() else {
            drop(waiting);
            return self.give(name, &note, files);
        };
        let files = files.iter().map(|file| file.try_clone_to_owned());
        match files.collect() {
            Ok(files) => drop(changes.insert(name.to_owned(), Some((note, files)))),
            Err(error) => tracing::warn!(name, %error, "this is not kept for the next run"),
        }
    }

    fn give(&self, name: &str, note: &str, files: &[BorrowedFd<'_>]) {
        if let Err(error) = self.keeper.keep(name, note, files) {
            tracing::warn!(name, %error, "this is not kept for the next run");
        }
    }

    /// Sends what could not be sent when an entry was let go, because the keeper was slow.
    pub(crate) fn send_forgotten(&self) {
        if self.waiting().is_none() {
            self.keeper.send_forgotten();
        }
    }

    /// Lets an entry go.
    pub(crate) fn forget(&self, name: &str) {
        match self.waiting().as_mut() {
            Some(changes) => drop(changes.insert(name.to_owned(), None)),
            None => self.keeper.forget(name),
        }
    }
}

/// A port as it is kept.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum PortNote {
    Links(PortsNote),
    Sockets(Vec<SocketNote>),
}

/// A packet socket, as it is kept.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SocketNote {
    pub(crate) interface: String,
    /// The sizes of its rings.
    pub(crate) slots: u32,
    pub(crate) frame_bytes: u32,
}

/// The ports of an instance, as they are kept.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PortsNote {
    /// The socket on which the instance was reached: no other instance ever has the same.
    pub(crate) socket: PathBuf,
    pub(crate) links: Vec<LinkState>,
}

/// A socket that is listened on.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ListenerNote {
    pub(crate) path: PathBuf,
}

/// Something of a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct WorkerNote {
    /// Workers in all.
    pub(crate) workers: usize,
}

/// As what a connection is kept.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeptAs(Option<(Keep, String)>);

impl KeptAs {
    /// As the ports of the instance in that slot.
    pub(crate) fn ports(keep: Option<&Keep>, slot: Slot) -> KeptAs {
        KeptAs(keep.map(|keep| (keep.clone(), format!("port/{}", slot.0))))
    }

    /// As the link of an uplink's peer.
    pub(crate) fn uplink(keep: Option<&Keep>, name: &str, serial: u64) -> KeptAs {
        KeptAs(keep.map(|keep| (keep.clone(), format!("uplink/{name}/{serial}"))))
    }

    /// Keeps these links to that socket.
    pub(crate) fn keep(&self, socket: &Path, links: &[Link]) {
        if let Some((keep, name)) = &self.0 {
            let note = PortsNote {
                socket: socket.to_owned(),
                links: links.iter().map(|link| link.state().clone()).collect(),
            };
            let files: Vec<BorrowedFd<'_>> = links.iter().flat_map(Link::files).collect();
            keep.keep(name, &note, &files);
        }
    }

    /// Keeps sockets with these sizes, each of an interface.
    pub(crate) fn keep_sockets<'a>(
        &self,
        config: Config,
        sockets: impl IntoIterator<Item = (&'a str, &'a mut PacketSocket)>,
    ) {
        let Some((keep, name)) = &self.0 else { return };
        let (mut notes, mut files) = (Vec::new(), Vec::new());
        for (interface, socket) in sockets {
            match socket.keep() {
                Ok(kept) => files.extend([kept.socket, kept.positions]),
                Err(error) => return tracing::warn!(name, %error, "this is not kept for the next run"),
            }
            notes.push(SocketNote {
                interface: interface.to_owned(),
                slots: config.slots,
                frame_bytes: config.frame_bytes,
            });
        }
        let files: Vec<BorrowedFd<'_>> = files.iter().map(OwnedFd::as_fd).collect();
        keep.keep(name, &notes, &files);
    }

    /// What has it forgotten when it is dropped.
    pub(crate) fn until_dropped(self) -> Forgotten {
        Forgotten(self)
    }
}

/// Forgets what was kept when it is dropped, unless everything is left to the next run.
#[derive(Debug)]
pub(crate) struct Forgotten(KeptAs);

impl Drop for Forgotten {
    fn drop(&mut self) {
        let Some((keep, name)) = &self.0.0 else { return };
        if !keep.is_leaving() {
            keep.forget(name);
        } else if let Some(changes) = keep.waiting().as_mut() {
            // It was never given away.
            changes.remove(name);
        }
    }
}
