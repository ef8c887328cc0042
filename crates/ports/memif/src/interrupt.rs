//! Waking a consumer that sleeps, and sleeping as a consumer.
//!
//! memif gives each ring a file descriptor that the producer writes 8 bytes to when the consumer has not masked interrupts.
//! As client this crate makes a pair of sockets for it instead of an eventfd, and keeps one end: the non-blocking mode of
//! an eventfd belongs to the open file, which both sides share, so a hostile peer could clear it, fill the counter, and
//! block this side in `write` for ever. On a socket of our own `MSG_DONTWAIT` holds whatever the peer does. To the peer
//! both look the same: a descriptor that becomes readable and gives 8 bytes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, sockopt};

use crate::{Error, ProtocolError};

/// What is written for one interrupt.
const ONE: [u8; 8] = 1_u64.to_ne_bytes();

/// One end of a ring's interrupt channel.
#[derive(Debug)]
pub(crate) enum Interrupt {
    /// Ours or the peer's socket: calls that never block.
    Socket(OwnedFd),
    /// An eventfd made by a client. It is trusted not to turn it into a blocking one under us.
    EventFd(OwnedFd),
}

impl Interrupt {
    /// A channel: the end to keep and the end for the peer.
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

    /// Takes the descriptor that a client sent for ring `index`.
    pub(crate) fn accept(fd: OwnedFd, index: u16) -> Result<Interrupt, Error> {
        if sockopt::socket_type(&fd).is_ok() {
            return Ok(Interrupt::Socket(fd));
        }
        // Anything else than an eventfd could block or do worse when written to. Without /proc it cannot be told.
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

    /// Wakes the consumer. A channel that is full already holds a wake-up, one that is closed needs none: no errors.
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

    /// Takes what was raised, so that the descriptor is no longer readable.
    pub(crate) fn clear(&self) {
        /// A peer that raises interrupts faster than they are taken must not hold us here.
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
