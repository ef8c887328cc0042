//! A standing connection: its queues and its control socket.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use crate::message::Message;
use crate::queue::QueuePair;
use crate::socket::{Received, Socket};
use crate::{Error, ProtocolError};

/// A connection between a client and a server.
///
/// The queues may go to other threads; the memory stays mapped until the last of them is dropped. Dropping the
/// [`Control`] closes the socket, which the peer takes for the end of the link.
#[derive(Debug)]
pub struct Link {
    /// Which of the server's interfaces it is.
    pub interface_id: u32,
    /// The program at the other end, as it calls itself.
    pub peer_name: String,
    /// The interface at the other end, as the peer calls it.
    pub peer_interface: String,
    /// At least one pair of rings.
    pub queues: Vec<QueuePair>,
    /// The socket.
    pub control: Control,
}

/// The control socket of a link that stands. Its only news is the end of the link.
#[derive(Debug)]
pub struct Control {
    pub(crate) socket: Arc<Socket>,
}

/// What the control socket had to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ControlEvent {
    /// Nothing.
    None,
    /// The link is over: the rings will not move any more.
    Disconnected {
        /// The peer's words, or ours when it just closed the socket.
        reason: String,
    },
}

/// Who is at the other end, as the kernel says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Its process, in this process' PID namespace; 0 if it is in another.
    pub pid: i32,
    /// Its user when it connected (or listened).
    pub uid: u32,
    /// Its group when it connected (or listened).
    pub gid: u32,
}

impl Control {
    /// Looks whether the peer has ended the link. Never waits.
    ///
    /// # Errors
    /// When the socket cannot be read or the peer breaks the protocol: the link is over then, too.
    pub fn poll(&mut self) -> Result<ControlEvent, Error> {
        loop {
            match self.socket.receive()? {
                Received::Nothing => return Ok(ControlEvent::None),
                Received::Closed => {
                    return Ok(ControlEvent::Disconnected {
                        reason: "the peer closed the control socket".into(),
                    });
                }
                Received::Message(Message::Disconnect { reason, .. }, _) => {
                    return Ok(ControlEvent::Disconnected { reason });
                }
                // DPDK acknowledges nothing after CONNECTED, VPP may.
                Received::Message(Message::Ack, _) => {}
                Received::Message(message, _) => {
                    return Err(ProtocolError::Unexpected {
                        received: message.name(),
                    }
                    .into());
                }
            }
        }
    }

    /// Tells the peer that the link ends, and why (96 bytes at most arrive). It does not close the socket.
    pub fn disconnect(&mut self, reason: &str) {
        self.socket.say_goodbye(reason);
    }

    /// Who the peer is.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn peer(&self) -> Result<PeerCredentials, Error> {
        let credentials = rustix::net::sockopt::socket_peercred(&*self.socket)
            .map_err(|errno| Error::system("cannot read the peer's credentials", errno))?;
        Ok(PeerCredentials {
            pid: credentials.pid.as_raw_nonzero().get(),
            uid: credentials.uid.as_raw(),
            gid: credentials.gid.as_raw(),
        })
    }
}

impl AsFd for Control {
    /// Becomes readable when [`Control::poll`] has something to say.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
