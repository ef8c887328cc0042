//! A network interface as a data port: whole frames over a packet socket. The kernel strips VLAN tags.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use anyhow::{Context, Result, bail};
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{LinkAddr, SockaddrLike, bind, recvfrom};
use rustix::net::{AddressFamily, Protocol, SendFlags, SocketFlags, SocketType, send, socket_with};

/// All protocols, in network byte order.
const ALL_PROTOCOLS: u16 = 0x0003_u16.to_be();
/// The packet type of frames that this machine sent itself.
const OUTGOING: u8 = 4;

/// A packet socket of an interface.
pub(crate) struct Interface {
    socket: OwnedFd,
}

impl Interface {
    /// Opens an interface by name.
    pub(crate) fn open(name: &str) -> Result<Interface> {
        let opened = || -> Result<Interface> {
            let mut all = getifaddrs().map_err(io::Error::from)?;
            let address = all.find_map(|of| {
                let address = of
                    .address
                    .as_ref()
                    .and_then(|address| address.as_link_addr().copied());
                address.filter(|_| of.interface_name == name)
            });
            let Some(address) = address else {
                bail!("there is no such interface");
            };
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let protocol = std::num::NonZero::new(u32::from(ALL_PROTOCOLS)).map(Protocol::from_raw);
            let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, protocol)?;
            // The address has no protocol, so the socket's own applies.
            bind(socket.as_raw_fd(), &address as &dyn SockaddrLike).map_err(io::Error::from)?;
            Ok(Interface { socket })
        };
        opened().with_context(|| format!("cannot open the interface {name}"))
    }

    /// The length of the next received frame. Longer frames are truncated.
    pub(crate) fn receive(&self, frame: &mut [u8]) -> Option<usize> {
        loop {
            // Errors concern the interface, for example that it is down: nothing now, perhaps later.
            let (length, from) = recvfrom::<LinkAddr>(self.socket.as_raw_fd(), frame).ok()?;
            if from.is_none_or(|from| from.pkttype() != OUTGOING) {
                return Some(length);
            }
        }
    }

    /// Sends a frame; false if the kernel rejects it.
    pub(crate) fn send(&self, frame: &[u8]) -> bool {
        send(&self.socket, frame, SendFlags::empty()).is_ok()
    }
}

impl AsFd for Interface {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
