//! The socket between inco and a side.

use std::io::{IoSlice, IoSliceMut};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::message::{FromSide, MESSAGE_BYTES, Nonsense, Said, ToSide, read, write};

/// Descriptors of a message, at most.
const FILES: usize = 1;
/// Connections that wait until the side accepts them.
const BACKLOG: i32 = 4;

/// Why a connection cannot be made or used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused something.
    #[error("cannot {doing} {}: {source}", path.display())]
    Socket {
        /// What.
        doing: &'static str,
        /// The socket's path.
        path: PathBuf,
        /// What the kernel said.
        source: Errno,
    },
    /// There is something else at its path.
    #[error("{} is no socket", .0.display())]
    NotASocket(PathBuf),
    /// The other end has gone.
    #[error("the connection has ended")]
    Ended,
    /// It cannot be said.
    #[error(transparent)]
    Nonsense(#[from] Nonsense),
}

/// What came.
#[derive(Debug)]
pub enum Received<T> {
    /// A message, with its descriptor where it has one.
    Message(T, Option<OwnedFd>),
    /// Nothing at the moment.
    Nothing,
    /// Bytes that the other end must not say.
    Nonsense(Nonsense),
    /// The other end has gone.
    Ended,
}

/// What inco hears.
pub type InOfInco = Connection<FromSide, ToSide>;
/// What a side hears.
pub type InOfSide = Connection<ToSide, FromSide>;

/// One end: `I` comes, `O` goes. No call waits.
#[derive(Debug)]
pub struct Connection<I, O> {
    socket: OwnedFd,
    buffer: Vec<u8>,
    of: PhantomData<fn(O) -> I>,
}

fn new_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

impl<I: Said, O: Said> Connection<I, O> {
    fn new(socket: OwnedFd) -> Connection<I, O> {
        Connection {
            socket,
            // One more, so that a longer message shows.
            buffer: vec![0; MESSAGE_BYTES + 1],
            of: PhantomData,
        }
    }

    /// Connects to a side. The path may be in a directory that a hostile container can write to: a symbolic link is
    /// refused.
    ///
    /// # Errors
    /// [`Error::Socket`], also while nobody listens there; [`Error::NotASocket`].
    pub fn connect(path: &Path) -> Result<Connection<I, O>, Error> {
        let failed = |doing| {
            move |source| Error::Socket {
                doing,
                path: path.to_path_buf(),
                source,
            }
        };
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let place = rustix::fs::open(path, flags, Mode::empty()).map_err(failed("open"))?;
        let mode = rustix::fs::fstat(&place).map_err(failed("look at"))?.st_mode;
        if FileType::from_raw_mode(mode) != FileType::Socket {
            return Err(Error::NotASocket(path.to_path_buf()));
        }
        // To exactly the file that was looked at.
        let by_descriptor = format!("/proc/self/fd/{}", place.as_raw_fd());
        let address = SocketAddrUnix::new(by_descriptor).map_err(failed("name"))?;
        let socket = new_socket().map_err(failed("make a socket for"))?;
        rustix::net::connect(&socket, &address).map_err(failed("connect to"))?;
        Ok(Connection::new(socket))
    }

    /// Says something, with its descriptor where it has one. Gives whether there was room for it.
    ///
    /// # Errors
    /// [`Error::Ended`], and [`Error::Nonsense`] for what is beyond a limit.
    pub fn send(&self, said: &O, file: Option<BorrowedFd<'_>>) -> Result<bool, Error> {
        let files = usize::from(file.is_some());
        if files != said.files() {
            return Err(Nonsense::Files(files, said.files()).into());
        }
        let bytes = write(said)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
        loop {
            let mut control = SendAncillaryBuffer::new(&mut space);
            if let Some(file) = &file {
                control.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(file)));
            }
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            return match rustix::net::sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut control, flags) {
                Ok(_) => Ok(true),
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::TOOMANYREFS) => Ok(false),
                Err(_) => Err(Error::Ended),
            };
        }
    }

    /// What has come.
    pub fn receive(&mut self) -> Received<I> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let mut into = [IoSliceMut::new(&mut self.buffer)];
        let got = match rustix::net::recvmsg(&self.socket, &mut into, &mut control, flags) {
            Ok(got) => got,
            Err(Errno::AGAIN | Errno::INTR) => return Received::Nothing,
            Err(_) => return Received::Ended,
        };
        let mut files = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                files.extend(descriptors);
            }
        }
        if got.bytes == 0 {
            return Received::Ended;
        }
        // The kernel has closed the descriptors that found no room.
        let more = usize::from(got.flags.contains(ReturnFlags::CTRUNC));
        match read::<I>(&self.buffer[..got.bytes]) {
            Ok(said) if files.len() + more == said.files() => Received::Message(said, files.pop()),
            Ok(said) => Received::Nonsense(Nonsense::Files(files.len() + more, said.files())),
            Err(error) => Received::Nonsense(error),
        }
    }
}

impl<I, O> AsFd for Connection<I, O> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Where a side waits for inco.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
}

impl Listener {
    /// Listens at a path, in the place of what an earlier process left there.
    ///
    /// # Errors
    /// [`Error::Socket`].
    pub fn bind(path: &Path) -> Result<Listener, Error> {
        let failed = |doing| {
            move |source| Error::Socket {
                doing,
                path: path.to_path_buf(),
                source,
            }
        };
        match rustix::fs::unlink(path) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(source) => return Err(failed("replace")(source)),
        }
        let socket = new_socket().map_err(failed("make a socket for"))?;
        let address = SocketAddrUnix::new(path).map_err(failed("name"))?;
        rustix::net::bind(&socket, &address).map_err(failed("bind"))?;
        rustix::net::listen(&socket, BACKLOG).map_err(failed("listen on"))?;
        Ok(Listener {
            socket,
            path: path.to_path_buf(),
        })
    }

    /// A connection of inco, if one waits.
    ///
    /// # Errors
    /// [`Error::Socket`].
    pub fn accept(&self) -> Result<Option<InOfSide>, Error> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match rustix::net::accept_with(&self.socket, flags) {
            Ok(socket) => Ok(Some(Connection::new(socket))),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(source) => Err(Error::Socket {
                doing: "accept on",
                path: self.path.clone(),
                source,
            }),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _gone = rustix::fs::unlink(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{REASON_BYTES, Side, VERSION};

    fn pair() -> (tempfile::TempDir, InOfInco, InOfSide) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.sock");
        let listener = Listener::bind(&path).unwrap();
        let inco = InOfInco::connect(&path).unwrap();
        let side = listener.accept().unwrap().unwrap();
        (folder, inco, side)
    }

    fn file() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    /// Sends bytes that no end would, with descriptors.
    fn send_raw(from: BorrowedFd<'_>, bytes: &[u8], files: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(files)));
        }
        rustix::net::sendmsg(from, &[IoSlice::new(bytes)], &mut control, SendFlags::empty()).unwrap();
    }

    #[test]
    fn messages_and_their_descriptors_come_in_order() {
        let (_folder, mut inco, mut side) = pair();
        let hello = FromSide::Hello {
            version: VERSION,
            side: Side::Card,
            has_begun: false,
            channel: None,
        };
        assert!(side.send(&hello, None).unwrap());
        assert!(matches!(inco.receive(), Received::Message(said, None) if said == hello));
        assert!(matches!(inco.receive(), Received::Nothing));
        let attach = ToSide::Attach {
            number: 3,
            latency_ns: 1,
            bytes_per_second: 2,
        };
        let file = file();
        assert!(inco.send(&attach, Some(file.as_fd())).unwrap());
        assert!(inco.send(&ToSide::Begin, None).unwrap());
        assert!(matches!(side.receive(), Received::Message(said, Some(_)) if said == attach));
        assert!(matches!(side.receive(), Received::Message(ToSide::Begin, None)));
        drop(inco);
        assert!(matches!(side.receive(), Received::Ended));
        assert!(matches!(side.send(&hello, None), Err(Error::Ended)));
    }

    #[test]
    fn what_was_said_before_an_end_is_heard() {
        let (_folder, mut inco, side) = pair();
        assert!(side.send(&FromSide::Ready, None).unwrap());
        drop(side);
        assert!(matches!(inco.receive(), Received::Message(FromSide::Ready, None)));
        assert!(matches!(inco.receive(), Received::Ended));
    }

    #[test]
    fn a_message_with_other_descriptors_is_nonsense_and_leaves_none_open() {
        let (_folder, mut inco, mut side) = pair();
        let attach = br#"{"say":"attach","number":1,"latency_ns":1,"bytes_per_second":1}"#;
        for count in [0, 1, 2, 3] {
            let (reader, writer) = rustix::pipe::pipe().unwrap();
            if count > 0 {
                let files = vec![writer.as_fd(); count];
                send_raw(side.as_fd(), br#"{"say":"ready"}"#, &files);
                assert!(matches!(inco.receive(), Received::Nonsense(Nonsense::Files(..))));
            }
            if count != 1 {
                send_raw(inco.as_fd(), attach, &vec![writer.as_fd(); count]);
                assert!(matches!(side.receive(), Received::Nonsense(Nonsense::Files(..))));
            }
            drop(writer);
            // Without a writer there is an end at once; with one it would wait.
            assert_eq!(rustix::io::read(&reader, &mut [0; 1]), Ok(0));
        }
        assert!(inco.send(&ToSide::Begin, Some(file().as_fd())).is_err());
    }

    #[test]
    fn a_message_that_is_too_long_is_nonsense() {
        let (_folder, mut inco, side) = pair();
        send_raw(side.as_fd(), &[b' '; MESSAGE_BYTES + 100], &[]);
        assert!(matches!(inco.receive(), Received::Nonsense(Nonsense::TooLong(_))));
        let reason = "x".repeat(REASON_BYTES + 1);
        assert!(side.send(&FromSide::Refused { reason }, None).is_err());
    }

    #[test]
    fn one_that_does_not_read_is_not_waited_for() {
        let (_folder, inco, _side) = pair();
        let sent = (0..1_000_000).find(|_| !inco.send(&ToSide::Begin, None).unwrap());
        assert!(sent.is_some());
    }

    #[test]
    fn symbolic_links_and_other_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("real.sock");
        let _listener = Listener::bind(&path).unwrap();
        let link = folder.path().join("link.sock");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(InOfInco::connect(&link).is_err());
        let plain = folder.path().join("plain");
        std::fs::write(&plain, b"").unwrap();
        assert!(matches!(InOfInco::connect(&plain), Err(Error::NotASocket(_))));
        assert!(InOfInco::connect(&folder.path().join("none")).is_err());
    }
}
