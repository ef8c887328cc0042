//! Announces the addresses of services on an uplink, so that neighbours send to this machine from now on: a gratuitous
//! ARP reply for IPv4, an unsolicited neighbour advertisement for IPv6.

// UNSAFETY: a packet socket, with addresses of its own kind.
#![expect(unsafe_code)]

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const BROADCAST: [u8; 6] = [0xff; 6];
/// The MAC address of all nodes' multicast address.
const ALL_NODES: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];

/// Tells the neighbours on that interface where these addresses are.
///
/// # Errors
/// The interface is down, or the caller lacks `CAP_NET_RAW`.
pub fn announce(ifindex: u32, mac: [u8; 6], addresses: impl Iterator<Item = IpAddr>) -> io::Result<()> {
    let socket = packet_socket()?;
    for address in addresses {
        let (frame, protocol) = match address {
            IpAddr::V4(v4) => (arp(mac, v4), libc::ETH_P_ARP),
            IpAddr::V6(v6) => (advertisement(mac, v6), libc::ETH_P_IPV6),
        };
        send(&socket, ifindex, protocol, &frame)?;
    }
    Ok(())
}

/// Sends a frame by that interface. One that is shorter than an Ethernet header is not sent.
///
/// # Errors
/// The interface is down, or the caller lacks `CAP_NET_RAW`.
pub fn send_frame(ifindex: u32, frame: &[u8]) -> io::Result<()> {
    let Some([high, low]) = frame.get(12..14) else {
        return Ok(());
    };
    let protocol = u16::from_be_bytes([*high, *low]);
    send(&packet_socket()?, ifindex, libc::c_int::from(protocol), frame)
}

fn packet_socket() -> io::Result<OwnedFd> {
    // SAFETY: a plain call; protocol 0 receives nothing.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn send(socket: &OwnedFd, ifindex: u32, protocol: libc::c_int, frame: &[u8]) -> io::Result<()> {
    // SAFETY: all fields of this structure are numbers.
    let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    to.sll_family = libc::AF_PACKET as u16;
    to.sll_protocol = (protocol as u16).to_be();
    to.sll_ifindex = ifindex as i32;
    to.sll_halen = 6;
    to.sll_addr[..6].copy_from_slice(&frame[..6]);
    // SAFETY: the frame and the address are valid for their lengths.
    let sent = unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            frame.as_ptr().cast(),
            frame.len(),
            libc::MSG_DONTWAIT,
            (&raw const to).cast(),
            size_of::<libc::sockaddr_ll>() as u32,
        )
    };
    if sent < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// A gratuitous ARP reply: sender and target are the address.
fn arp(mac: [u8; 6], address: Ipv4Addr) -> Vec<u8> {
    let mut frame = Vec::with_capacity(42);
    frame.extend_from_slice(&BROADCAST);
    frame.extend_from_slice(&mac);
    frame.extend_from_slice(&[0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 2]);
    for hardware in [mac, BROADCAST] {
        frame.extend_from_slice(&hardware);
        frame.extend_from_slice(&address.octets());
    }
    frame
}

/// An unsolicited neighbour advertisement with the override flag, to all nodes.
fn advertisement(mac: [u8; 6], address: Ipv6Addr) -> Vec<u8> {
    let all: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let mut message = vec![136, 0, 0, 0, 0x20, 0, 0, 0];
    message.extend_from_slice(&address.octets());
    message.extend_from_slice(&[2, 1]);
    message.extend_from_slice(&mac);
    let mut pseudo = Vec::with_capacity(72);
    pseudo.extend_from_slice(&address.octets());
    pseudo.extend_from_slice(&all.octets());
    pseudo.extend_from_slice(&[0, 0, 0, message.len() as u8, 0, 0, 0, 58]);
    pseudo.extend_from_slice(&message);
    let sum = checksum(&pseudo);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut frame = Vec::with_capacity(86);
    frame.extend_from_slice(&ALL_NODES);
    frame.extend_from_slice(&mac);
    frame.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0, 0, message.len() as u8, 58, 255]);
    frame.extend_from_slice(&address.octets());
    frame.extend_from_slice(&all.octets());
    frame.extend_from_slice(&message);
    frame
}

/// The checksum of the internet protocols over an even number of bytes.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.as_chunks::<2>().0.iter();
    let mut sum: u32 = words.map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_advertisement_has_a_checksum_that_holds() {
        let frame = advertisement([2, 0, 0, 0, 0, 9], "2001:db8::1".parse().unwrap());
        assert_eq!(frame.len(), 86);
        let mut pseudo = frame[22..54].to_vec();
        pseudo.extend_from_slice(&[0, 0, 0, 32, 0, 0, 0, 58]);
        pseudo.extend_from_slice(&frame[54..]);
        assert_eq!(checksum(&pseudo), 0);
        assert_eq!(arp([2, 0, 0, 0, 0, 9], "10.0.0.1".parse().unwrap()).len(), 42);
    }
}
