//! The client.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with,
    sockopt,
};

use crate::message::{Answer, Ask, Received, borrowed, check_peer, receive, send};
use crate::store::check;
use crate::{Entry, Error, SOCKET};

/// How long an answer may take. The server's process answers at once, unless it is stopped or starved.
const ANSWER: Duration = Duration::from_secs(2);

/// Attempts of a request whose answer decides how a program starts. Each takes up to [`ANSWER`].
const ATTEMPTS: u32 = 5;

/// A connection to a [`Server`](crate::Server). It has a duplicate of all that it gave, so that it can give
/// everything again to another server ([`Keeper::give_again`]).
#[derive(Debug)]
pub struct Keeper {
    path: PathBuf,
    connection: Mutex<Connection>,
    /// Names to forget that wait for the connection.
    forgotten: Mutex<Vec<String>>,
}

#[derive(Debug)]
struct Connection {
    /// [`None`] after the server has gone.
    socket: Option<OwnedFd>,
    given: BTreeMap<String, (String, Vec<OwnedFd>)>,
}

fn duplicates<'a>(files: impl Iterator<Item = impl AsFd + 'a>) -> Result<Vec<OwnedFd>, Error> {
    files
        .map(|file| fcntl_dupfd_cloexec(file, 3))
        .collect::<Result<_, _>>()
        .map_err(Error::unreachable)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Keeper {
    /// Connects to the server of a run directory; [`None`] if there is none.
    ///
    /// # Errors
    /// [`Error::Stranger`] where another user listens there; [`Error::Unreachable`].
    pub fn connect(run_dir: &Path) -> Result<Option<Keeper>, Error> {
        let path = run_dir.join(SOCKET);
        let socket = match open(&path) {
            Err(Error::Unreachable { source })
                if matches!(
                    source.raw_os_error().map(Errno::from_raw_os_error),
                    Some(Errno::NOENT | Errno::CONNREFUSED)
                ) =>
            {
                return Ok(None);
            }
            other => other?,
        };
        Ok(Some(Keeper {
            path,
            connection: Mutex::new(Connection {
                socket: Some(socket),
                given: BTreeMap::new(),
            }),
            forgotten: Mutex::default(),
        }))
    }

    /// How many entries the server has.
    ///
    /// # Errors
    /// [`Error::Unreachable`] and [`Error::Refused`].
    pub fn entries(&self) -> Result<usize, Error> {
        self.patiently(|connection| match connection.ask(&Ask::Status, &[])?.0 {
            Answer::Status { entries } => Ok(entries),
            other => Err(unexpected(other)),
        })
    }

    /// Asks again, on a new connection, where no answer comes in time.
    fn patiently<T>(&self, mut ask: impl FnMut(&mut Connection) -> Result<T, Error>) -> Result<T, Error> {
        let mut connection = locked(&self.connection);
        let mut attempt = 1;
        loop {
            match ask(&mut connection) {
                Err(Error::Unreachable { .. }) if attempt < ATTEMPTS => {
                    attempt += 1;
                    connection.socket = Some(open(&self.path)?);
                }
                other => return other,
            }
        }
    }

    /// Everything that the server has, in the order of the names. It goes on keeping it until it is told to forget.
    ///
    /// # Errors
    /// [`Error::Unreachable`] and [`Error::Refused`].
    pub fn take(&self) -> Result<Vec<Entry>, Error> {
        self.patiently(|connection| {
            let mut entries: Vec<Entry> = Vec::new();
            loop {
                let after = entries.last().map_or(String::new(), |entry| entry.name.clone());
                let names = connection.names(after)?;
                if names.is_empty() {
                    return Ok(entries);
                }
                for name in names {
                    match connection.ask(&Ask::Fetch { name: name.clone() }, &[])? {
                        (Answer::Entry { note }, files) => {
                            let copies = duplicates(files.iter())?;
                            connection.given.insert(name.clone(), (note.clone(), copies));
                            entries.push(Entry { name, note, files });
                        }
                        (other, _) => return Err(unexpected(other)),
                    }
                }
            }
        })
    }

    /// One entry of the server; [`None`] if it has none of that name.
    ///
    /// # Errors
    /// [`Error::Unreachable`].
    pub fn take_one(&self, name: &str) -> Result<Option<Entry>, Error> {
        self.patiently(|connection| {
            let name = name.to_owned();
            Ok(match connection.ask(&Ask::Fetch { name: name.clone() }, &[])? {
                (Answer::Entry { note }, files) => Some(Entry { name, note, files }),
                _ => None,
            })
        })
    }

    /// Has descriptors kept under a name; an entry of that name is replaced.
    ///
    /// # Errors
    /// [`Error::Limit`], [`Error::Refused`] and [`Error::Unreachable`]: it is then not kept.
    pub fn keep(&self, name: &str, note: &str, files: &[BorrowedFd<'_>]) -> Result<(), Error> {
        check(name, note, files.len())?;
        let copies = duplicates(files.iter())?;
        let kept = {
            let mut connection = locked(&self.connection);
            // It is replaced: what waits to be forgotten under this name is the entry before.
            locked(&self.forgotten).retain(|forgotten| forgotten != name);
            let (name, note) = (name.to_owned(), note.to_owned());
            connection.given.insert(name.clone(), (note.clone(), copies));
            match connection.socket {
                Some(_) => connection.done(&Ask::Keep { name, note }, files),
                // It did not answer in time, or has gone: another attempt, with all that it may have missed.
                None => connection.give_again(&self.path).map(drop),
            }
        };
        self.send_forgotten();
        kept
    }

    /// Lets an entry go. Never waits.
    pub fn forget(&self, name: &str) {
        locked(&self.forgotten).push(name.to_owned());
        self.send_forgotten();
    }

    /// Sends what [`Keeper::forget`] could not send yet. Never waits.
    pub fn send_forgotten(&self) {
        loop {
            if locked(&self.forgotten).is_empty() {
                return;
            }
            let mut connection = match self.connection.try_lock() {
                Ok(connection) => connection,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                // Whoever has it looks here again afterwards.
                Err(TryLockError::WouldBlock) => return,
            };
            let names = std::mem::take(&mut *locked(&self.forgotten));
            let mut unsent = Vec::new();
            for name in names {
                connection.given.remove(&name);
                let is_full = !unsent.is_empty()
                    || connection.forget(name.clone(), SendFlags::DONTWAIT) == Err(Errno::AGAIN);
                if is_full {
                    unsent.push(name);
                }
            }
            drop(connection);
            if !unsent.is_empty() {
                // The server is slow: with the next call.
                locked(&self.forgotten).extend(unsent);
                return;
            }
        }
    }

    /// Has everything kept for so long after this process has ended, and not for ever.
    ///
    /// # Errors
    /// [`Error::Refused`] and [`Error::Unreachable`].
    pub fn linger(&self, limit: Duration) -> Result<(), Error> {
        let milliseconds = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        locked(&self.connection).done(&Ask::Linger { milliseconds }, &[])
    }

    /// Lets everything go.
    ///
    /// # Errors
    /// [`Error::Refused`] and [`Error::Unreachable`].
    pub fn clear(&self) -> Result<(), Error> {
        let mut connection = locked(&self.connection);
        connection.given.clear();
        connection.done(&Ask::Clear, &[])
    }

    /// Ends the server's process, which forgets everything. What was taken from it stays with this client.
    ///
    /// # Errors
    /// [`Error::Refused`] and [`Error::Unreachable`].
    pub fn dismiss(&self) -> Result<(), Error> {
        let mut connection = locked(&self.connection);
        let done = connection.done(&Ask::Leave, &[]);
        connection.socket = None;
        done
    }

    /// Connects again, to the server that is in the run directory now, and gives it everything. Gives the number of
    /// entries.
    ///
    /// # Errors
    /// [`Error::Unreachable`], [`Error::Stranger`] and [`Error::Refused`].
    pub fn give_again(&self) -> Result<usize, Error> {
        locked(&self.connection).give_again(&self.path)
    }
}

impl Connection {
    fn give_again(&mut self, path: &Path) -> Result<usize, Error> {
        self.socket = Some(open(path)?);
        // Each entry is replaced before others are forgotten: whenever this process ends, the server has them all.
        let given = std::mem::take(&mut self.given);
        let mut outcome = Ok(());
        for (name, (note, files)) in &given {
            let (name, note) = (name.clone(), note.clone());
            outcome = self.done(&Ask::Keep { name, note }, &borrowed(files));
            if outcome.is_err() {
                break;
            }
        }
        self.given = given;
        outcome?;
        // What was to be forgotten meanwhile.
        let mut after = String::new();
        loop {
            let names = self.names(after.clone())?;
            let Some(last) = names.last() else {
                return Ok(self.given.len());
            };
            after.clone_from(last);
            for name in names.into_iter().filter(|name| !self.given.contains_key(name)) {
                self.forget(name, SendFlags::empty())
                    .map_err(Error::unreachable)?;
            }
        }
    }

    /// Names of the server's entries after this one.
    fn names(&mut self, after: String) -> Result<Vec<String>, Error> {
        match self.ask(&Ask::Names { after }, &[])?.0 {
            Answer::Names { names } => Ok(names),
            other => Err(unexpected(other)),
        }
    }

    /// There is no answer to this one.
    fn forget(&self, name: String, flags: SendFlags) -> Result<(), Errno> {
        match &self.socket {
            Some(socket) => send(socket.as_fd(), &Ask::Forget { name }, &[], flags),
            None => Ok(()),
        }
    }

    fn ask(&mut self, ask: &Ask, files: &[BorrowedFd<'_>]) -> Result<(Answer, Vec<OwnedFd>), Error> {
        let Some(socket) = &self.socket else {
            return Err(Error::unreachable(Errno::NOTCONN));
        };
        let answered = send(socket.as_fd(), ask, files, SendFlags::empty())
            .and_then(|()| receive(socket.as_fd(), RecvFlags::empty()));
        match answered {
            Ok(Received::Message(answer, files)) => return Ok((answer, files)),
            Ok(Received::Nonsense(reason)) => {
                let reason = reason.to_owned();
                return Err(Error::Refused { reason });
            }
            // After this an answer may come that belongs to this question: the connection is of no use.
            Ok(Received::Nothing) | Err(Errno::AGAIN) => self.socket = None,
            Ok(Received::Closed) | Err(_) => {
                self.socket = None;
                return Err(Error::unreachable(Errno::CONNRESET));
            }
        }
        Err(Error::unreachable(Errno::TIMEDOUT))
    }

    fn done(&mut self, ask: &Ask, files: &[BorrowedFd<'_>]) -> Result<(), Error> {
        match self.ask(ask, files)?.0 {
            Answer::Done => Ok(()),
            other => Err(unexpected(other)),
        }
    }
}

fn unexpected(answer: Answer) -> Error {
    let reason = match answer {
        Answer::Refused { reason } => reason,
        other => format!("it answered something else: {other:?}"),
    };
    Error::Refused { reason }
}

pub(crate) fn open(path: &Path) -> Result<OwnedFd, Error> {
    let address = SocketAddrUnix::new(path).map_err(Error::unreachable)?;
    let flags = SocketFlags::CLOEXEC;
    let socket =
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(Error::unreachable)?;
    for of in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
        sockopt::set_socket_timeout(&socket, of, Some(ANSWER)).map_err(Error::unreachable)?;
    }
    connect(&socket, &address).map_err(Error::unreachable)?;
    check_peer(socket.as_fd())?;
    Ok(socket)
}
