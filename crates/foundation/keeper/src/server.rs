//! The server: part of a process with one thread, which polls it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen,
    socket_with,
};

use crate::client::open;
use crate::message::{Answer, Ask, Received, borrowed, check_peer, receive, send};
use crate::store::Store;
use crate::{Error, Keeper, MAX_CLIENTS, SOCKET};

/// Messages of one client that are answered before others have their turn.
const AT_ONCE: usize = 64;

/// What clients ordered of the server's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Nothing.
    None,
    /// To end.
    Leave,
}

/// Keeps what clients give it.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    inode: Option<u64>,
    listener: OwnedFd,
    clients: Vec<OwnedFd>,
    store: Store,
    linger: Option<Duration>,
    order: Order,
}

fn inode(path: &Path) -> Option<u64> {
    std::fs::symlink_metadata(path).ok().map(|data| data.ino())
}

/// The socket of a server before it has its name: no longer than that.
fn unfinished(run_dir: &Path, process: u32) -> PathBuf {
    run_dir.join(format!(".{process}"))
}

/// Replaces the socket of a run directory by one that this process listens on.
fn listen_in(run_dir: &Path) -> Result<OwnedFd, Error> {
    let fresh = unfinished(run_dir, std::process::id());
    let address = SocketAddrUnix::new(&fresh).map_err(Error::unreachable)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let listener =
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(Error::unreachable)?;
    // Nothing may be there.
    let _ = std::fs::remove_file(&fresh);
    bind(&listener, &address).map_err(Error::unreachable)?;
    rustix::fs::chmod(&fresh, Mode::RUSR | Mode::WUSR).map_err(Error::unreachable)?;
    listen(&listener, MAX_CLIENTS as i32).map_err(Error::unreachable)?;
    rustix::fs::rename(&fresh, run_dir.join(SOCKET)).map_err(Error::unreachable)?;
    Ok(listener)
}

impl Server {
    /// Listens in this run directory. A server that listens there already is replaced: this one takes all that it
    /// keeps, and the other one's process is told to end. Whenever one of the two dies, the socket is that of a server
    /// that has everything.
    ///
    /// # Errors
    /// [`Error::Unreachable`] where the socket cannot be made, or the server that is there does not answer. That one
    /// goes on then.
    pub fn bind(run_dir: &Path) -> Result<Server, Error> {
        let path = run_dir.join(SOCKET);
        let before = Keeper::connect(run_dir)?;
        let mut store = Store::default();
        for entry in before.as_ref().map_or(Ok(Vec::new()), Keeper::take)? {
            store.keep(entry.name, entry.note, entry.files)?;
        }
        let listener = listen_in(run_dir)?;
        if let Some(Err(error)) = before.as_ref().map(Keeper::dismiss) {
            tracing::warn!(%error, "the keeper before may stay");
        }
        Ok(Server {
            inode: inode(&path),
            path,
            listener,
            clients: Vec::new(),
            store,
            linger: None,
            order: Order::None,
        })
    }

    /// Removes what a process left that died in [`Server::bind`].
    pub fn remove_unfinished(run_dir: &Path, process: u32) {
        // Most die elsewhere: nothing is there.
        let _ = std::fs::remove_file(unfinished(run_dir, process));
    }

    /// The descriptors to wait for: [`Server::serve`] has something to do when one is readable.
    pub fn files(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let clients = self.clients.iter().map(AsFd::as_fd);
        clients.chain([self.listener.as_fd()])
    }

    /// Whether it keeps nothing.
    pub fn is_empty(&self) -> bool {
        self.store.count() == 0
    }

    /// How long the last client wanted everything kept after its end; [`None`] until the next one takes over.
    pub fn linger(&self) -> Option<Duration> {
        self.linger
    }

    /// Answers what is there. Never waits.
    pub fn serve(&mut self) -> Order {
        self.welcome();
        for client in std::mem::take(&mut self.clients) {
            if self.answer(&client) {
                self.clients.push(client);
            }
        }
        self.stay_reachable();
        self.order
    }

    /// The socket may be that of a server that was to replace this one. Where that has died since, this one listens
    /// again. Where it lives and has let go of this one, this one is of no use: the other has all entries.
    fn stay_reachable(&mut self) {
        if inode(&self.path) == self.inode || self.is_empty() {
            return;
        }
        match open(&self.path) {
            Ok(_) if self.clients.is_empty() => self.order = Order::Leave,
            Ok(_) | Err(Error::Stranger { .. }) => {}
            Err(_) => {
                let listener = self.path.parent().map(listen_in);
                // Where that fails, another attempt follows within a second.
                if let Some(Ok(listener)) = listener {
                    self.listener = listener;
                    self.inode = inode(&self.path);
                }
            }
        }
    }

    fn welcome(&mut self) {
        while self.clients.len() < MAX_CLIENTS {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let client = match accept_with(&self.listener, flags) {
                Ok(client) => client,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(_) => return,
            };
            match check_peer(client.as_fd()) {
                Ok(()) => self.clients.push(client),
                Err(error) => tracing::warn!(%error, "a stranger asked the keeper"),
            }
        }
    }

    /// False once the client has gone, or is to go.
    fn answer(&mut self, client: &OwnedFd) -> bool {
        for _ in 0..AT_ONCE {
            let (answer, files) = match receive(client.as_fd(), RecvFlags::DONTWAIT) {
                Ok(Received::Nothing) => return true,
                Ok(Received::Closed) | Err(_) => return false,
                Ok(Received::Nonsense(reason)) => {
                    let reason = reason.to_owned();
                    (Some(Answer::Refused { reason }), Vec::new())
                }
                Ok(Received::Message(ask, files)) => self.obey(ask, files),
            };
            let Some(answer) = answer else { continue };
            // A client that does not read its answers is let go: its entries stay.
            let sent = send(client.as_fd(), &answer, &files, SendFlags::DONTWAIT);
            if sent.is_err() {
                return false;
            }
        }
        true
    }

    fn obey(&mut self, ask: Ask, files: Vec<OwnedFd>) -> (Option<Answer>, Vec<BorrowedFd<'_>>) {
        let answer = match ask {
            Ask::Keep { name, note } => match self.store.keep(name, note, files) {
                Ok(()) => Answer::Done,
                Err(error) => Answer::Refused {
                    reason: error.to_string(),
                },
            },
            Ask::Forget { name } => {
                self.store.forget(&name);
                return (None, Vec::new());
            }
            Ask::Status => Answer::Status {
                entries: self.store.count(),
            },
            Ask::Names { after } => {
                if after.is_empty() {
                    // Who reads all entries takes over: the server no longer waits for a successor.
                    self.linger = None;
                }
                Answer::Names {
                    names: self.store.names(&after),
                }
            }
            Ask::Fetch { name } => match self.store.get(&name) {
                Some(kept) => {
                    let note = kept.note.clone();
                    return (Some(Answer::Entry { note }), borrowed(&kept.files));
                }
                None => Answer::Refused {
                    reason: format!("there is nothing under {name:?}"),
                },
            },
            Ask::Linger { milliseconds } => {
                self.linger = Some(Duration::from_millis(milliseconds));
                Answer::Done
            }
            Ask::Clear => {
                self.store.clear();
                Answer::Done
            }
            Ask::Leave => {
                self.store.clear();
                self.order = Order::Leave;
                Answer::Done
            }
        };
        (Some(answer), Vec::new())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The next server may have made its own.
        if inode(&self.path) == self.inode {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
