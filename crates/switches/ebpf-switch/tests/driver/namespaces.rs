//! Packet sockets in network namespaces.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use real_parts::Namespace;

/// Frames of an interface.
pub(crate) struct Tap {
    socket: OwnedFd,
}

impl Tap {
    /// Of an interface in a namespace.
    pub(crate) fn open(namespace: &Namespace, interface: &str) -> Tap {
        namespace.within(|| Tap {
            socket: packet_socket(interface).unwrap(),
        })
    }

    /// Sends a frame.
    pub(crate) fn send(&self, frame: &[u8]) {
        rustix::io::write(&self.socket, frame).unwrap();
    }

    /// The next frame that has been received.
    pub(crate) fn receive(&self) -> Option<Vec<u8>> {
        let mut frame = vec![0; 65_536];
        let length = rustix::io::read(&self.socket, &mut frame).ok()?;
        frame.truncate(length);
        Some(frame)
    }
}

fn packet_socket(interface: &str) -> io::Result<OwnedFd> {
    let name = std::ffi::CString::new(interface)?;
    // SAFETY: the name ends with a zero byte.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    let all = (libc::ETH_P_ALL as u16).to_be();
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: a plain call.
    let fd = unsafe { libc::socket(libc::AF_PACKET, kind, i32::from(all)) };
    if fd < 0 || index == 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, and nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: all fields of this structure are numbers.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = all;
    address.sll_ifindex = index as i32;
    let (one, room): (libc::c_int, libc::c_int) = (1, 16 << 20);
    // SAFETY: the address and the options are valid for their lengths.
    let results = unsafe {
        [
            libc::bind(
                socket.as_raw_fd(),
                (&raw const address).cast(),
                size_of::<libc::sockaddr_ll>() as u32,
            ),
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_PACKET,
                // PACKET_IGNORE_OUTGOING
                23,
                (&raw const one).cast(),
                4,
            ),
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVBUFFORCE,
                (&raw const room).cast(),
                4,
            ),
        ]
    };
    if results.iter().any(|result| *result != 0) {
        return Err(io::Error::last_os_error());
    }
    Ok(socket)
}
