//! The messages: a JSON object per packet of a `SOCK_SEQPACKET` socket, with file descriptors.

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

use crate::{Error, MAX_FILES, MAX_NOTE_BYTES};

/// The longest message, in bytes: a note whose every character is escaped, and the rest.
pub(crate) const MAX_MESSAGE: usize = 2 * MAX_NOTE_BYTES + 8 * 1024;

/// What a client asks. Each is answered, except `Forget`.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub(crate) enum Ask {
    /// Keeps the descriptors that come with it; replaces an entry of that name. Answered by `Done`.
    Keep { name: String, note: String },
    /// Lets an entry go.
    Forget { name: String },
    /// Answered by `Status`.
    Status,
    /// Answered by `Names`: those after this one, in order, as many as fit. Who asks for the first ones takes over.
    Names { after: String },
    /// Answered by `Entry`, with its descriptors, or by `Refused`.
    Fetch { name: String },
    /// How long to keep everything after the client has gone. Answered by `Done`.
    Linger { milliseconds: u64 },
    /// Forgets everything. Answered by `Done`.
    Clear,
    /// Forgets everything and ends the server's process. Answered by `Done`.
    Leave,
}

/// What the server answers.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub(crate) enum Answer {
    Done,
    Status { entries: usize },
    Names { names: Vec<String> },
    Entry { note: String },
    Refused { reason: String },
}

/// What was received.
#[derive(Debug)]
pub(crate) enum Received<T> {
    Message(T, Vec<OwnedFd>),
    /// It is no such message: what is wrong with it.
    Nonsense(&'static str),
    /// Nothing at the moment.
    Nothing,
    /// The other end has gone.
    Closed,
}

/// Sends a message. `flags` says whether it may wait.
pub(crate) fn send<T: Serialize>(
    socket: BorrowedFd<'_>,
    message: &T,
    files: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<(), Errno> {
    let bytes = serde_json::to_vec(message).map_err(|_| Errno::INVAL)?;
    if bytes.len() > MAX_MESSAGE || files.len() > MAX_FILES {
        return Err(Errno::MSGSIZE);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    loop {
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)) {
            return Err(Errno::MSGSIZE);
        }
        let sent = sendmsg(
            socket,
            &[IoSlice::new(&bytes)],
            &mut control,
            flags | SendFlags::NOSIGNAL,
        );
        match sent {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Takes the next message. `flags` says whether it may wait.
pub(crate) fn receive<T: DeserializeOwned>(
    socket: BorrowedFd<'_>,
    flags: RecvFlags,
) -> Result<Received<T>, Errno> {
    let mut bytes = vec![0; MAX_MESSAGE];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let got = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(Received::Nothing),
            Err(Errno::CONNRESET) => return Ok(Received::Closed),
            other => break other?,
        }
    };
    let mut files = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            files.extend(received);
        }
    }
    if got.bytes == 0 {
        return Ok(Received::Closed);
    }
    if got.flags.contains(ReturnFlags::TRUNC) {
        return Ok(Received::Nonsense("the message is too long"));
    }
    if got.flags.contains(ReturnFlags::CTRUNC) {
        return Ok(Received::Nonsense(
            "too many descriptors for a message, or for this process",
        ));
    }
    let text = bytes.get(..got.bytes).unwrap_or_default();
    Ok(match serde_json::from_slice(text) {
        Ok(message) => Received::Message(message, files),
        Err(_) => Received::Nonsense("the message is unknown"),
    })
}

/// Whether the other end is root or this user.
pub(crate) fn check_peer(socket: BorrowedFd<'_>) -> Result<(), Error> {
    let peer = rustix::net::sockopt::socket_peercred(socket).map_err(Error::unreachable)?;
    if peer.uid.is_root() || peer.uid == rustix::process::geteuid() {
        return Ok(());
    }
    Err(Error::Stranger {
        uid: peer.uid.as_raw(),
    })
}

/// Descriptors, borrowed.
pub(crate) fn borrowed<F: AsFd>(files: &[F]) -> Vec<BorrowedFd<'_>> {
    files.iter().map(AsFd::as_fd).collect()
}
