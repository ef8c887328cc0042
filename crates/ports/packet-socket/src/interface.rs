//! A network interface as a data port of a program: whole frames over a packet socket. What their senders left to a card is
//! done here, so that the program sees packets that are whole, with their VLAN tags, and no longer than the interface
//! carries.

use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};

use crate::{Config, Dividing, Error, Monitor, PacketSocket, SendError, mtu};

/// Bytes of a frame beside its packet: an Ethernet header with two VLAN tags.
const HEADER_BYTES: u32 = 22;
/// Frames in a row that are left out before something else is done.
const LEFT_OUT_LIMIT: usize = 32;

/// Why an interface is no data port of this program.
#[derive(Debug, thiserror::Error)]
pub enum InterfaceError {
    /// The interface may be there, and this program may not have its frames.
    #[error(
        "{0}; this program needs the capability CAP_NET_RAW, and a seccomp filter that permits AF_PACKET; containers of \
         services with port = \"frames\" have both"
    )]
    NotPermitted(#[source] Error),
    /// There is no such interface, or its socket cannot be made.
    #[error(transparent)]
    Socket(Error),
}

/// A packet socket of an interface.
#[derive(Debug)]
pub struct Interface {
    socket: PacketSocket,
    monitor: Monitor,
    dividing: Dividing,
    /// Frames were put into the ring that the kernel was not told of, or has not all sent.
    is_dirty: bool,
}

impl Interface {
    /// Opens an interface by name, with so many slots in each of its two rings.
    ///
    /// # Errors
    /// There is no such interface, or this program may not have its frames.
    pub fn open(name: &str, slots: u32) -> Result<Interface, InterfaceError> {
        let opened = || -> Result<PacketSocket, Error> {
            let config = Config {
                slots,
                frame_bytes: mtu(name)? + HEADER_BYTES,
            };
            PacketSocket::open(name, config)
        };
        let socket = opened().map_err(|error| match error.source.kind() {
            // A filter of system calls says that there is no such call.
            io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported => {
                InterfaceError::NotPermitted(error)
            }
            _ => InterfaceError::Socket(error),
        })?;
        Ok(Interface {
            monitor: socket.monitor(),
            socket,
            dividing: Dividing::default(),
            is_dirty: false,
        })
    }

    /// Writes the next received frame to the start of `room`, and gives its length. [`None`]: none is there, or
    /// 32 in a row were none. What does not fit, or cannot be divided, is left out and counted in
    /// `malformed`.
    pub fn receive(&mut self, room: &mut [u8], malformed: &mut u64) -> Option<usize> {
        for _ in 0..LEFT_OUT_LIMIT {
            if self.dividing.next_len().is_some() {
                match self.dividing.next(room) {
                    Some(len) => return Some(len),
                    None => *malformed += 1,
                }
            }
            let (ring, _) = self.socket.rings();
            let dividing = &mut self.dividing;
            let mut copied = None;
            let taken = ring.take(1, |frame| {
                if frame.offload.divide.is_some() {
                    *malformed += u64::from(!dividing.begin(&frame));
                } else {
                    copied = frame.copy_to(room);
                    *malformed += u64::from(copied.is_none());
                }
                ControlFlow::Continue(())
            });
            ring.release();
            *malformed += u64::from(taken.too_large);
            if copied.is_some() || taken.frames + taken.too_large == 0 {
                return copied;
            }
        }
        None
    }

    /// Whether frames have come.
    pub fn has_frames(&mut self) -> bool {
        let (ring, _) = self.socket.rings();
        ring.has_frames()
    }

    /// Whether the ring has room for so many frames, or half of its slots are free.
    pub fn has_room(&mut self, frames: u32) -> bool {
        let (_, sender) = self.socket.rings();
        let slots = sender.slots();
        slots.saturating_sub(sender.used()) >= frames.min(slots / 2)
    }

    /// Puts a frame into the ring; it leaves with the next [`Interface::flush`]. False: there is no room for it, or the
    /// interface does not carry it.
    pub fn send(&mut self, frame: &[u8]) -> bool {
        self.is_dirty = true;
        let (_, sender) = self.socket.rings();
        match sender.put(frame) {
            Err(SendError::Full) => {
                // An interface that is down takes nothing.
                let _down = sender.send();
                sender.put(frame).is_ok()
            }
            put => put.is_ok(),
        }
    }

    /// Has the kernel send what is in the ring. Whether it has sent all of it.
    pub fn flush(&mut self) -> bool {
        if self.is_dirty {
            let (_, sender) = self.socket.rings();
            self.is_dirty = sender.send().is_err() || sender.used() > 0;
        }
        !self.is_dirty
    }

    /// Frames for which the ring had no room, since the last call.
    pub fn take_missed(&self) -> u64 {
        self.monitor
            .take_statistics()
            .map_or(0, |counted| counted.dropped)
    }
}

impl AsFd for Interface {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
