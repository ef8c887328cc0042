//! An established connection: its queues and its control socket.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::kept::LinkState;
use crate::message::Message;
use crate::queue::QueuePair;
use crate::socket::{Received, Socket};
use crate::{Error, ProtocolError};

/// A connection between a client and a server.
///
/// The queues may move to other threads; the memory stays mapped until the last one is dropped. Dropping the
/// [`Control`] closes the socket, which ends the link for the peer.
#[derive(Debug)]
pub struct Link {
    /// The server's interface id.
    pub interface_id: u32,
    /// The peer program's name, as sent by the peer.
    pub peer_name: String,
    /// The peer's interface name, as sent by the peer.
    pub peer_interface: String,
    /// At least one pair of rings.
    pub queues: Vec<QueuePair>,
    /// The socket.
    pub control: Control,
    /// What describes it, for the next run of this program.
    pub(crate) state: LinkState,
    /// The files of its memory: only a link that is kept needs them after they are mapped.
    pub(crate) regions: Vec<OwnedFd>,
}

/// The control socket of an established link. It only reports the end of the link.
#[derive(Debug)]
pub struct Control {
    pub(crate) socket: Arc<Socket>,
}

/// What [`Control::poll`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ControlEvent {
    /// Nothing.
    None,
    /// The link has ended; the rings will not move any more.
    Disconnected {
        /// The peer's reason, or ours if it only closed the socket.
        reason: String,
    },
}

/// The peer's identity, from the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Its process id in our PID namespace; 0 if it is in another.
    pub pid: i32,
    /// Its user when it connected (or listened).
    pub uid: u32,
    /// Its group when it connected (or listened).
    pub gid: u32,
}

impl Control {
    /// Checks whether the peer has ended the link. Never blocks.
    ///
    /// # Errors
    /// The socket cannot be read, or the peer violates the protocol. The link has ended then, too.
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
                // DPDK acknowledges nothing after CONNECTED; VPP may.
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

    /// Sends the peer a DISCONNECT with a reason (truncated to 96 bytes). Does not close the socket.
    pub fn disconnect(&mut self, reason: &str) {
        self.socket.say_goodbye(reason);
    }

    /// The peer's credentials.
    ///
    /// # Errors
    /// The kernel does not report them.
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
    /// Readable when [`Control::poll`] has something to report.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
