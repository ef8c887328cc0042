//! The control socket: one message at a time, at most one file descriptor each, and a deadline on every wait.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::message::{MESSAGE_BYTES, Message};
use crate::{Error, ProtocolError};

/// Descriptors taken from one message; the kernel or this crate closes further ones. The protocol sends one.
const DESCRIPTORS_PER_MESSAGE: usize = 4;

/// A connected SEQPACKET socket in non-blocking mode.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
}

/// The result of a receive.
pub(crate) enum Received {
    Message(Message, Vec<OwnedFd>),
    /// No message now.
    Nothing,
    /// The peer closed its end.
    Closed,
}

impl Socket {
    pub(crate) fn new(fd: OwnedFd) -> Socket {
        Socket { fd }
    }

    /// Sends a message. Control messages are few and small: if the socket is full, the peer does not read.
    pub(crate) fn send(&self, message: &Message, descriptor: Option<BorrowedFd<'_>>) -> Result<(), Error> {
        let bytes = message.encode();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let descriptors = descriptor.map(|fd| [fd]);
        if let Some(descriptors) = &descriptors {
            ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        loop {
            match sendmsg(
                &self.fd,
                &[IoSlice::new(&bytes)],
                &mut ancillary,
                SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
            ) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => {
                    return Err(Error::Closed {
                        during: message.name(),
                    });
                }
                Err(errno) => return Err(Error::system("cannot send on the memif control socket", errno)),
            }
        }
    }

    /// Receives a message if there is one.
    pub(crate) fn receive(&self) -> Result<Received, Error> {
        // One byte more than a message, to detect longer ones.
        let mut bytes = [0_u8; MESSAGE_BYTES + 1];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_PER_MESSAGE))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            match recvmsg(
                &self.fd,
                &mut [IoSliceMut::new(&mut bytes)],
                &mut ancillary,
                RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC,
            ) {
                Ok(received) => break received,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(Received::Nothing),
                Err(Errno::CONNRESET) => return Ok(Received::Closed),
                Err(errno) => return Err(Error::system("cannot receive on the memif control socket", errno)),
            }
        };
        let descriptors: Vec<OwnedFd> = ancillary
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
                _ => None,
            })
            .flatten()
            .collect();
        if received.bytes == 0 {
            return Ok(Received::Closed);
        }
        let message = Message::decode(&bytes[..received.bytes])?;
        if received.flags.contains(ReturnFlags::CTRUNC) && descriptors.len() < DESCRIPTORS_PER_MESSAGE {
            // The kernel could not install the descriptors it had for us.
            return Err(Error::out_of_descriptors());
        }
        Ok(Received::Message(message, descriptors))
    }

    /// Waits for a message until `deadline`.
    pub(crate) fn receive_until(
        &self,
        deadline: Instant,
        expected: &'static str,
    ) -> Result<(Message, Vec<OwnedFd>), Error> {
        loop {
            match self.receive()? {
                Received::Message(message, descriptors) => return Ok((message, descriptors)),
                Received::Closed => return Err(Error::Closed { during: expected }),
                Received::Nothing => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::Timeout { expected });
            }
            wait_readable(&mut [PollFd::new(&self.fd, PollFlags::IN)], Some(left))?;
        }
    }

    /// Tells the peer why the link ends, if it still listens.
    pub(crate) fn say_goodbye(&self, reason: &str) {
        let message = Message::Disconnect {
            code: 0,
            reason: reason.to_owned(),
        };
        // The link ends even if the peer does not learn why.
        let _ = self.send(&message, None);
    }

    /// Whether the peer has closed its end.
    pub(crate) fn is_hung_up(&self) -> bool {
        let mut fds = [PollFd::new(&self.fd, PollFlags::RDHUP)];
        matches!(
            poll(
                &mut fds,
                Some(&Timespec {
                    tv_sec: 0,
                    tv_nsec: 0
                })
            ),
            Ok(1)
        ) && fds[0]
            .revents()
            .intersects(PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Rejects anything but exactly one descriptor.
pub(crate) fn one(message: &'static str, mut descriptors: Vec<OwnedFd>) -> Result<OwnedFd, ProtocolError> {
    let count = descriptors.len();
    match (descriptors.pop(), count) {
        (Some(descriptor), 1) => Ok(descriptor),
        _ => Err(ProtocolError::DescriptorCount {
            message,
            descriptors: count,
        }),
    }
}

/// Sleeps until one of `fds` is ready or `timeout` passes (`None`: forever). False on timeout or a signal.
pub(crate) fn wait_readable(fds: &mut [PollFd<'_>], timeout: Option<Duration>) -> Result<bool, Error> {
    let timeout = timeout.map(|timeout| Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    });
    match poll(fds, timeout.as_ref()) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(errno) => Err(Error::system("cannot wait for descriptors", errno)),
    }
}
