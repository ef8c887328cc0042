//! Frames that tests send, and what of a frame they look at.

use std::net::{IpAddr, SocketAddr};

use model::{Tuple, protocol};
use packet::Parsed;
use packet::build::Frame;

/// The MAC address of the uplink, as bytes.
pub(crate) const UPLINK: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// The MAC address of a client.
pub(crate) const CLIENT: [u8; 6] = [2, 0, 0, 0, 0, 1];

fn ends(src: &str, dst: &str) -> (SocketAddr, SocketAddr) {
    (src.parse().unwrap(), dst.parse().unwrap())
}

/// Puts MAC addresses into a frame.
pub(crate) fn with_macs(mut frame: Vec<u8>) -> Vec<u8> {
    frame[..6].copy_from_slice(&UPLINK);
    frame[6..12].copy_from_slice(&CLIENT);
    frame
}

pub(crate) fn udp(src: &str, dst: &str, payload: &[u8]) -> Vec<u8> {
    let (src, dst) = ends(src, dst);
    with_macs(Frame::udp(src, dst, payload).unwrap().to_vec().unwrap())
}

/// FIN, SYN, RST, ACK as TCP has them.
pub(crate) const FIN: u8 = 1;
pub(crate) const SYN: u8 = 2;
pub(crate) const RST: u8 = 4;
pub(crate) const ACK: u8 = 16;

pub(crate) fn tcp(src: &str, dst: &str, flags: u8) -> Vec<u8> {
    let (src, dst) = ends(src, dst);
    let mut frame = with_macs(Frame::udp(src, dst, &[0; 12]).unwrap().to_vec().unwrap());
    // The header of UDP and twelve bytes are as long as that of TCP.
    let (protocol_at, l4) = if src.is_ipv4() { (14 + 9, 34) } else { (14 + 6, 54) };
    frame[protocol_at] = protocol::TCP;
    frame[l4 + 4..l4 + 20].fill(0);
    frame[l4 + 12] = 0x50;
    frame[l4 + 13] = flags;
    frame[l4 + 14] = 0x20;
    let addresses = if src.is_ipv4() { 26..34 } else { 22..54 };
    let mut covered = frame[addresses].to_vec();
    covered.extend_from_slice(&[0, protocol::TCP, 0, 20]);
    covered.extend_from_slice(&frame[l4..l4 + 20]);
    let sum = sum(&covered);
    frame[l4 + 16..l4 + 18].copy_from_slice(&sum.to_be_bytes());
    if src.is_ipv4() {
        fix_ip_checksum(&mut frame);
    }
    frame
}

/// Puts an 802.1Q tag in.
pub(crate) fn tagged(mut frame: Vec<u8>, vlan: u16) -> Vec<u8> {
    let [high, low] = vlan.to_be_bytes();
    frame.splice(12..12, [0x81, 0x00, high, low]);
    frame
}

pub(crate) fn sum(bytes: &[u8]) -> u16 {
    let words = bytes
        .chunks(2)
        .map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

pub(crate) fn fix_ip_checksum(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let sum = sum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
}

/// An IPv4 fragment of a UDP datagram: `offset` in bytes, with the payload of the datagram from there on.
pub(crate) fn fragment(src: &str, dst: &str, id: u16, offset: u16, more: bool, rest: &[u8]) -> Vec<u8> {
    let mut frame = udp(src, dst, &[]);
    if offset > 0 {
        frame.truncate(34);
    }
    frame.truncate(if offset > 0 { 34 } else { 42 });
    frame.extend_from_slice(rest);
    let total = (frame.len() - 14) as u16;
    frame[16..18].copy_from_slice(&total.to_be_bytes());
    frame[18..20].copy_from_slice(&id.to_be_bytes());
    let field = (offset / 8) | if more { 0x2000 } else { 0 };
    frame[20..22].copy_from_slice(&field.to_be_bytes());
    fix_ip_checksum(&mut frame);
    frame
}

/// An ICMP error about a packet: it quotes its IP header and the first eight bytes after that.
pub(crate) fn icmp_error(from: &str, to: &str, about: &[u8]) -> Vec<u8> {
    let mut frame = udp(&format!("{from}:1"), &format!("{to}:1"), &[]);
    frame[23] = protocol::ICMP;
    frame.truncate(34);
    // Fragmentation needed.
    let mut message = vec![3, 4, 0, 0, 0, 0, 5, 0];
    message.extend_from_slice(&about[14..42]);
    let checksum = sum(&message);
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    frame.extend_from_slice(&message);
    let total = (frame.len() - 14) as u16;
    frame[16..18].copy_from_slice(&total.to_be_bytes());
    fix_ip_checksum(&mut frame);
    frame
}

/// The same of IPv6: packet too big.
pub(crate) fn icmp6_error(from: &str, to: &str, about: &[u8]) -> Vec<u8> {
    icmp6(from, to, [&[2, 0, 0, 0, 0, 0, 5, 20], &about[14..62]].concat())
}

/// A message by which IPv6 discovers neighbours, about an address that is said to be at 02:00:00:00:00:66.
pub(crate) fn discovery(kind: u8, from: &str, to: &str, about: &str) -> Vec<u8> {
    let about: std::net::Ipv6Addr = about.parse().unwrap();
    let option = [2, 1, 2, 0, 0, 0, 0, 0x66];
    let message = [&[kind, 0, 0, 0, 0x20, 0, 0, 0], &about.octets()[..], &option].concat();
    let mut frame = icmp6(from, to, message);
    frame[21] = 255;
    frame
}

fn icmp6(from: &str, to: &str, mut message: Vec<u8>) -> Vec<u8> {
    let mut frame = udp(&format!("[{from}]:1"), &format!("[{to}]:1"), &[]);
    frame[20] = protocol::ICMPV6;
    frame.truncate(54);
    frame[18..20].copy_from_slice(&(message.len() as u16).to_be_bytes());
    let mut covered = frame[22..54].to_vec();
    covered.extend_from_slice(&(message.len() as u32).to_be_bytes());
    covered.extend_from_slice(&[0, 0, 0, protocol::ICMPV6]);
    covered.extend_from_slice(&message);
    message[2..4].copy_from_slice(&sum(&covered).to_be_bytes());
    frame.extend_from_slice(&message);
    frame
}

/// The addresses of a frame, if it is of a flow.
pub(crate) fn tuple(frame: &[u8]) -> Option<Tuple> {
    match packet::parse(frame) {
        Parsed::Flow(info) => Some(info.key.tuple(info.direction)),
        _ => None,
    }
}

/// Whether a frame comes from that address.
pub(crate) fn is_from(frame: &[u8], address: &str) -> bool {
    let address: IpAddr = address.parse().unwrap();
    tuple(frame).is_some_and(|of| of.src == address)
}
