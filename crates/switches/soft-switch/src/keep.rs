//! What is kept for the next run: flow tables, the workers' commits, and the rings and sockets of ports. The next run
//! goes on with them, so that no flow moves and no packet is lost that a ring can hold.
//!
//! | entry | descriptors |
//! | --- | --- |
//! | `table/WORKER` | the memory of a flow table |
//! | `turn/WORKER` | the page where a worker notes what it commits |
//! | `port/SLOT` | the links of an instance's data ports |
//! | `uplink/NAME/SERIAL` | the link of an uplink's peer; with a serial number, since the next one may come before this one has gone |
//! | `listener/NAME` | the socket on which an uplink waits for peers |

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use keeper::Keeper;
use memif::{Link, LinkState};
use model::Slot;
use serde::{Deserialize, Serialize};

/// Who keeps a switch's state, and what it means.
#[derive(Clone, Debug)]
pub struct Keep {
    keeper: Arc<Keeper>,
    /// A fingerprint of which service has which number.
    pub(crate) services: u64,
    /// The boot of this machine.
    pub(crate) boot: [u8; 16],
    is_leaving: Arc<AtomicBool>,
}

impl Keep {
    /// State that `keeper` keeps. Until [`Keep::begin`] nothing is forgotten that is dropped: a run that does not
    /// start leaves what it found. A flow table of an earlier run is taken over if it was of the same boot of this
    /// machine, and if `services`, a fingerprint of which service has which number, is the same.
    pub fn new(keeper: Arc<Keeper>, services: u64, boot: [u8; 16]) -> Keep {
        Keep {
            keeper,
            services,
            boot,
            is_leaving: Arc::new(AtomicBool::new(true)),
        }
    }

    /// Who keeps it.
    pub fn keeper(&self) -> &Keeper {
        &self.keeper
    }

    /// From now on what ends is forgotten.
    pub fn begin(&self) {
        self.is_leaving.store(false, Ordering::Relaxed);
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
        let note = serde_json::to_string(note).unwrap_or_default();
        if let Err(error) = self.keeper.keep(name, &note, files) {
            tracing::warn!(name, %error, "this is not kept for the next run");
        }
    }
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
        if let Some((keep, name)) = &self.0.0
            && !keep.is_leaving()
        {
            keep.keeper.forget(name);
        }
    }
}
