//! The way to an instance and no other: frames through the host's end of its interface. What is sent there arrives at
//! the instance as a packet from the network does, and goes through its kernel. Its answers go to
//! [`interfaces::CHECKER_V4`] or [`interfaces::CHECKER_V6`]. The switch leaves those to packet sockets: a program in the
//! kernel lets them pass to nothing else, and inco's own switch, which sees them beside this socket, ignores them.
//!
//! The socket has one protocol, so it sees a packet only after such a program did. A socket of all protocols would slow
//! down every packet of the instance.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZero;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{SockaddrLike, bind};
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};
use smoltcp::phy::{Checksum, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;

/// `ETH_P_IP` and `ETH_P_IPV6`.
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
/// An Ethernet header.
const HEADER: usize = 14;
/// The longest packet that an instance's interface gives: segments may be whole.
const LONGEST: usize = 65_536 + HEADER;
/// Packets that are taken out of the socket at most before a check begins: what came too late for the last one.
const MAX_STALE: usize = 64;

/// Where an instance is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The host's end of its interface.
    pub interface: String,
    /// The instance's MAC address.
    pub mac: [u8; 6],
    /// The MAC address of its next hop.
    pub gateway_mac: [u8; 6],
    /// The addresses at which it serves. Checks go to the first.
    pub addresses: Vec<IpAddr>,
    /// The longest packet in bytes, without the Ethernet header.
    pub mtu: u16,
}

impl Port {
    /// Where checks go.
    pub(crate) fn address(&self) -> IpAddr {
        self.addresses
            .first()
            .copied()
            .unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
    }
}

/// A socket at the host's end.
pub(crate) struct Wire {
    socket: OwnedFd,
    header: [u8; HEADER],
    mtu: usize,
    buffer: Vec<u8>,
}

impl Wire {
    pub(crate) fn open(port: &Port) -> io::Result<Wire> {
        let kind = if port.address().is_ipv4() { IPV4 } else { IPV6 };
        let mut all = getifaddrs()?;
        let address = all.find_map(|of| {
            let address = of.address.as_ref()?.as_link_addr().copied()?;
            (of.interface_name == port.interface).then_some(address)
        });
        let address =
            address.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "its interface is not there"))?;
        let protocol = NonZero::new(u32::from(kind.to_be())).map(Protocol::from_raw);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, protocol)?;
        // The address has no protocol, so the socket's own applies.
        bind(socket.as_raw_fd(), &address as &dyn SockaddrLike)?;
        let mut header = [0; HEADER];
        let parts = port.mac.iter().chain(&port.gateway_mac);
        for (to, from) in header.iter_mut().zip(parts.chain(&kind.to_be_bytes())) {
            *to = *from;
        }
        Ok(Wire {
            socket,
            header,
            mtu: usize::from(port.mtu),
            buffer: vec![0; LONGEST],
        })
    }

    /// Drops what came before.
    pub(crate) fn drain(&mut self) {
        for _ in 0..MAX_STALE {
            if self.next().is_none() {
                return;
            }
        }
    }

    /// The length of the next frame in the buffer.
    fn next(&mut self) -> Option<usize> {
        let (_, length) = recv(&self.socket, self.buffer.as_mut_slice(), RecvFlags::empty()).ok()?;
        Some(length)
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A packet that has come.
pub(crate) struct Received<'a>(&'a [u8]);

impl RxToken for Received<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

/// Room for a packet to send.
pub(crate) struct Room<'a> {
    socket: &'a OwnedFd,
    header: [u8; HEADER],
}

impl TxToken for Room<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, f: F) -> R {
        let mut frame = vec![0; HEADER + length];
        let (header, packet) = frame.split_at_mut(HEADER);
        header.copy_from_slice(&self.header);
        let result = f(packet);
        // One that the kernel does not take is lost, as on a network: it is sent again, or the check's time runs out.
        let _ = send(self.socket, &frame, SendFlags::empty());
        result
    }
}

impl Device for Wire {
    type RxToken<'a> = Received<'a>;
    type TxToken<'a> = Room<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Received<'_>, Room<'_>)> {
        let length = self.next()?;
        let packet = self.buffer.get(HEADER..length).unwrap_or_default();
        let room = Room {
            socket: &self.socket,
            header: self.header,
        };
        Some((Received(packet), room))
    }

    fn transmit(&mut self, _: Instant) -> Option<Room<'_>> {
        Some(Room {
            socket: &self.socket,
            header: self.header,
        })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = self.mtu;
        // What an instance sends to this machine has no checksums yet: a card would fill them in.
        capabilities.checksum.tcp = Checksum::Tx;
        capabilities.checksum.udp = Checksum::Tx;
        capabilities
    }
}
