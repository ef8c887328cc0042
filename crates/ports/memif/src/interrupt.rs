//! Wakes a sleeping consumer, and sleeps as one.
//!
//! memif gives each ring a file descriptor. The producer writes 8 bytes to it unless the consumer has masked
//! interrupts. As a client this crate uses a socket pair instead of an eventfd and keeps one end. An
//! eventfd's non-blocking mode belongs to the open file, which both sides share: a hostile peer could clear
//! it, fill the counter, and block this side in `write` forever. On our own socket `MSG_DONTWAIT` always
//! holds. To the peer both look the same: a descriptor that becomes readable and yields 8 bytes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, sockopt};

use crate::{Error, ProtocolError};

/// The bytes of one interrupt.
const ONE: [u8; 8] = 1_u64.to_ne_bytes();

/// One end of a ring's interrupt channel.
#[derive(Debug)]
pub(crate) enum Interrupt {
    /// Our socket or the peer's: calls never block.
    Socket(OwnedFd),
    /// An eventfd made by a client. The client is trusted not to make it blocking.
    EventFd(OwnedFd),
}

impl Interrupt {
    /// Makes a channel: our end and the peer's end.
    pub(crate) fn pair() -> Result<(Interrupt, OwnedFd), Error> {
        let (ours, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )
        .map_err(|errno| Error::system("cannot make an interrupt channel", errno))?;
        Ok((Interrupt::Socket(ours), theirs))
    }

    /// Accepts the descriptor that a client sent for ring `index`.
    pub(crate) fn accept(fd: OwnedFd, index: u16) -> Result<Interrupt, Error> {
        if sockopt::socket_type(&fd).is_ok() {
            return Ok(Interrupt::Socket(fd));
        }
        // Writing to anything but an eventfd could block. Without /proc the type is unknown.
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
        if let Ok(target) = rustix::fs::readlink(path, Vec::new())
            && target.as_bytes() != b"anon_inode:[eventfd]"
        {
            return Err(ProtocolError::InterruptDescriptor { index }.into());
        }
        rustix::fs::fcntl_setfl(&fd, OFlags::NONBLOCK)
            .map_err(|errno| Error::system("cannot make an eventfd non-blocking", errno))?;
        Ok(Interrupt::EventFd(fd))
    }

    /// Wakes the consumer. Never fails: a full channel already holds a wake-up, a closed one needs none.
    #[cold]
    pub(crate) fn raise(&self) {
        match self {
            Interrupt::Socket(fd) => {
                let _ = send(fd, &ONE, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
            }
            Interrupt::EventFd(fd) => {
                if is_ready(fd, PollFlags::OUT) {
                    let _ = rustix::io::write(fd, &ONE);
                }
            }
        }
    }

    /// Drains the interrupts, so that the descriptor is not readable.
    pub(crate) fn clear(&self) {
        /// Bounds the work if a peer raises interrupts faster than they are drained.
        const MOST: usize = 64;
        let mut bytes = [0_u8; 8];
        match self {
            Interrupt::Socket(fd) => {
                for _ in 0..MOST {
                    if !matches!(recv(fd, &mut bytes, RecvFlags::DONTWAIT), Ok((1.., _))) {
                        break;
                    }
                }
            }
            Interrupt::EventFd(fd) => {
                if is_ready(fd, PollFlags::IN) {
                    let _ = rustix::io::read(fd, &mut bytes);
                }
            }
        }
    }
}

impl AsFd for Interrupt {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Interrupt::Socket(fd) | Interrupt::EventFd(fd) => fd.as_fd(),
        }
    }
}

fn is_ready(fd: &OwnedFd, for_what: PollFlags) -> bool {
    let mut fds = [PollFd::new(fd, for_what)];
    matches!(
        poll(
            &mut fds,
            Some(&Timespec {
                tv_sec: 0,
                tv_nsec: 0
            })
        ),
        Ok(1)
    ) && fds[0].revents().contains(for_what)
}
