//! The protocol between the engine and its launcher: one JSON message per packet of a `SOCK_SEQPACKET` socket pair,
//! with file descriptors.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// A launcher that outlives its parent may meet one built from other sources: both ends must say the same.
pub(crate) const VERSION: u32 = 6;
/// The longest message, in bytes: names and paths, nothing that grows.
const MAX_MESSAGE: usize = 16 * 1024;
/// File descriptors in a message at most.
const MAX_FDS: usize = 4;

/// What the engine asks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Makes a container of this bundle and starts it. Answered by `Created` or `Failed`.
    Create {
        id: u64,
        name: String,
        bundle: String,
        state: String,
    },
    /// Runs a command beside a container's program. Answered by `Executing` or `Failed`; `Ended` reports its end.
    Exec {
        id: u64,
        name: String,
        /// Of the container's program.
        pid: u32,
        bundle: String,
        state: String,
        command: Vec<String>,
    },
    /// Gives a create or a command up whose start takes too long.
    Abort { id: u64 },
    /// Answered by `Pong`.
    Ping { number: u64 },
}

/// What the launcher tells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Notice {
    /// The first message.
    Hello { version: u32, pid: u32 },
    /// The program runs. With it: its pidfd.
    Created {
        id: u64,
        name: String,
        pid: u32,
        at_ns: u64,
    },
    /// A command runs beside it. With it: the file that its output goes to, and its pidfd where it has not ended yet.
    Executing { id: u64, pid: u32 },
    /// It does not, and why.
    Failed { id: u64, name: String, reason: String },
    /// A program that the launcher started has ended.
    Ended {
        pid: u32,
        status: Option<i32>,
        signal: Option<i32>,
    },
    /// Answers `Ping`.
    Pong { number: u64 },
}

/// One end of the socket pair.
#[derive(Debug)]
pub(crate) struct Channel(pub(crate) OwnedFd);

/// What was received.
#[derive(Debug)]
pub(crate) enum Received<T> {
    /// A message and what came with it.
    Message(T, Vec<OwnedFd>),
    /// Nothing at the moment.
    Nothing,
    /// The other end is closed.
    Closed,
}

impl Channel {
    /// Sends a message; blocks until it is accepted only if asked to.
    pub(crate) fn send<T: Serialize>(
        &self,
        message: &T,
        fds: &[BorrowedFd<'_>],
        block: bool,
    ) -> Result<(), Errno> {
        let bytes = serde_json::to_vec(message).map_err(|_| Errno::INVAL)?;
        if bytes.len() > MAX_MESSAGE || fds.len() > MAX_FDS {
            return Err(Errno::MSGSIZE);
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let flags = SendFlags::NOSIGNAL
            | if block {
                SendFlags::empty()
            } else {
                SendFlags::DONTWAIT
            };
        loop {
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
                return Err(Errno::MSGSIZE);
            }
            match sendmsg(&self.0, &[IoSlice::new(&bytes)], &mut control, flags) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Takes the next message, if there is one.
    pub(crate) fn receive<T: DeserializeOwned>(&self) -> Result<Received<T>, Errno> {
        let mut bytes = vec![0; MAX_MESSAGE];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let got = loop {
            match recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(Received::Nothing),
                Err(Errno::CONNRESET) => return Ok(Received::Closed),
                other => break other?,
            }
        };
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                fds.extend(received);
            }
        }
        if got.bytes == 0 {
            return Ok(Received::Closed);
        }
        if got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(Errno::MSGSIZE);
        }
        let text = bytes.get(..got.bytes).unwrap_or_default();
        let message = serde_json::from_slice(text).map_err(|_| Errno::BADMSG)?;
        Ok(Received::Message(message, fds))
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    fn pair() -> (Channel, Channel) {
        let (a, b) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        (Channel(a), Channel(b))
    }

    #[test]
    fn messages_arrive_whole_and_with_their_files() {
        let (a, b) = pair();
        assert!(matches!(b.receive::<Order>(), Ok(Received::Nothing)));
        let file = File::open("/proc/self/comm").unwrap();
        a.send(&Order::Abort { id: 7 }, &[file.as_fd()], false).unwrap();
        a.send(&Order::Ping { number: 2 }, &[], false).unwrap();
        let Ok(Received::Message(Order::Abort { id }, mut fds)) = b.receive::<Order>() else {
            panic!()
        };
        assert_eq!((id, fds.len()), (7, 1));
        let mut text = String::new();
        File::from(fds.pop().unwrap()).read_to_string(&mut text).unwrap();
        assert!(!text.is_empty());
        assert!(
            matches!(b.receive::<Order>(), Ok(Received::Message(Order::Ping { number: 2 }, fds)) if fds.is_empty())
        );
        drop(a);
        assert!(matches!(b.receive::<Order>(), Ok(Received::Closed)));
    }

    #[test]
    fn nonsense_and_too_much_are_errors() {
        let (a, b) = pair();
        let long = "x".repeat(MAX_MESSAGE);
        assert_eq!(a.send(&long, &[], false), Err(Errno::MSGSIZE));
        a.send(&"nonsense", &[], false).unwrap();
        assert!(matches!(b.receive::<Order>(), Err(Errno::BADMSG)));
    }
}
