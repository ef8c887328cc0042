//! What senders leave to a network card: checksums that are not complete, and packets that are to be divided. A sender on
//! this machine hands such frames over; no card has touched them. This completes and divides them.

use crate::answer::{be16, put16};
use crate::checksum;
use crate::headers::{ETHERNET_LEN, IPV4_LEN, IPV6_LEN, TAG_LEN, ethertype};

/// VLAN tags before the IP header at most.
const TAGS: usize = 2;
/// Bytes of a UDP header.
const UDP_HEADER: usize = 8;
/// Of the TCP flags: those of the last segment alone, and the one of the first alone.
const FIN_PSH: u8 = 0x09;
const CWR: u8 = 0x80;

/// Bytes before a frame that say what is left to the card, `struct virtio_net_hdr`.
pub const VIRTIO_NET_BYTES: usize = 10;
/// What they say (`include/uapi/linux/virtio_net.h`).
const NEEDS_CHECKSUM: u8 = 1;
const DIVIDE_TCP_V4: u8 = 1;
const DIVIDE_TCP_V6: u8 = 4;
const DIVIDE_UDP: u8 = 5;
const DIVIDE_ECN: u8 = 0x80;

/// A checksum that the sender has begun: its field has the sum over the pseudo header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partial {
    /// Where the transport header begins, in bytes from the frame's start. The sum covers all from here on.
    pub start: usize,
    /// Where its checksum is, in bytes from there.
    pub field: usize,
}

impl Partial {
    /// Completes it. Says whether the frame has such a field.
    pub fn complete(self, frame: &mut [u8]) -> bool {
        let Some(sum) = frame.get(self.start..).map(checksum::internet) else {
            return false;
        };
        let at = self.start + self.field;
        match frame.get_mut(at..).and_then(<[u8]>::first_chunk_mut::<2>) {
            Some(place) => {
                // A sum of zero says "none" in UDP, and both forms mean the same elsewhere.
                *place = if sum == 0 { 0xffff } else { sum }.to_be_bytes();
                true
            }
            None => false,
        }
    }
}

/// The transport of a packet that is to be divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// A piece of a stream.
    Tcp,
    /// Several datagrams in one.
    Udp,
}

/// What a sender left to its card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// The checksum is to be completed.
    pub partial: Option<Partial>,
    /// The packet is to be divided into packets with so many bytes behind the transport header.
    pub divide: Option<(Transport, u16)>,
}

impl Offload {
    /// Reads what is before a frame, in the byte order of this machine. [`None`]: a division that is not known here.
    pub fn read(header: &[u8; VIRTIO_NET_BYTES]) -> Option<Offload> {
        let [flags, kind, _, _, rest @ ..] = *header;
        let [each, start, field] = [0, 2, 4].map(|at| u16::from_ne_bytes([rest[at], rest[at + 1]]));
        let partial = (flags & NEEDS_CHECKSUM != 0).then_some(Partial {
            start: start.into(),
            field: field.into(),
        });
        let transport = match kind & !DIVIDE_ECN {
            0 => None,
            DIVIDE_TCP_V4 | DIVIDE_TCP_V6 => Some(Transport::Tcp),
            DIVIDE_UDP => Some(Transport::Udp),
            _ => return None,
        };
        Some(Offload {
            partial,
            divide: transport.map(|transport| (transport, each)),
        })
    }
}

/// Divides a packet into packets that a link carries.
#[derive(Clone, Copy, Debug)]
pub struct Division {
    transport: Transport,
    /// Where the IP header, the transport header and the data begin.
    ip: usize,
    start: usize,
    data: usize,
    is_v6: bool,
    /// Bytes of data in each packet but the last.
    each: usize,
    /// Where the data of the next packet begins, and how many packets there were.
    next: usize,
    count: u16,
}

impl Division {
    /// [`None`]: there is no such packet in the frame. What a hostile sender says about it is not believed.
    pub fn new(frame: &[u8], offload: Offload) -> Option<Division> {
        let (transport, each) = offload.divide.filter(|(_, each)| *each > 0)?;
        let start = offload.partial?.start;
        let mut ip = ETHERNET_LEN;
        let mut kind = be16(frame, ip - 2)?;
        for _ in 0..TAGS {
            if [ethertype::VLAN, ethertype::SERVICE_VLAN].contains(&kind) {
                ip += TAG_LEN;
                kind = be16(frame, ip - 2)?;
            }
        }
        let is_v6 = match kind {
            ethertype::IPV4 => false,
            ethertype::IPV6 => true,
            _ => return None,
        };
        let shortest = if is_v6 { IPV6_LEN } else { IPV4_LEN };
        let header = match transport {
            Transport::Tcp => usize::from(frame.get(start + 12)? >> 4) * 4,
            Transport::Udp => UDP_HEADER,
        };
        let data = start + header;
        let is_sound = start >= ip + shortest
            && header
                >= if transport == Transport::Tcp {
                    20
                } else {
                    UDP_HEADER
                }
            && data < frame.len()
            && frame.len() - ip <= usize::from(u16::MAX) + if is_v6 { IPV6_LEN } else { 0 };
        is_sound.then_some(Division {
            transport,
            ip,
            start,
            data,
            is_v6,
            each: usize::from(each),
            next: data,
            count: 0,
        })
    }

    /// Bytes of the next packet; [`None`] after the last.
    pub fn next_len(&self, frame: &[u8]) -> Option<usize> {
        let left = frame.len().checked_sub(self.next).filter(|left| *left > 0)?;
        Some(self.data + left.min(self.each))
    }

    /// Writes the next packet of the frame, with all checksums. Gives its length; [`None`] after the last, or where
    /// there is too little room.
    pub fn next(&mut self, frame: &[u8], into: &mut [u8]) -> Option<usize> {
        let len = self.next_len(frame)?;
        let bytes = len - self.data;
        let packet = into.get_mut(..len)?;
        let (headers, data) = packet.split_at_mut(self.data);
        headers.copy_from_slice(frame.get(..self.data)?);
        data.copy_from_slice(frame.get(self.next..self.next + bytes)?);
        let is_first = self.next == self.data;
        let offset = (self.next - self.data) as u32;
        self.next += bytes;
        let is_last = self.next == frame.len();
        self.finish_ip(packet);
        let at = self.start;
        match self.transport {
            Transport::Tcp => {
                let sequence = packet.get_mut(at + 4..)?.first_chunk_mut::<4>()?;
                *sequence = u32::from_be_bytes(*sequence).wrapping_add(offset).to_be_bytes();
                let flags = packet.get_mut(at + 13)?;
                *flags &= !(if is_last { 0 } else { FIN_PSH } | if is_first { 0 } else { CWR });
            }
            Transport::Udp => put16(packet, at + 4, (UDP_HEADER + bytes) as u16),
        }
        self.finish_checksum(packet);
        self.count = self.count.wrapping_add(1);
        Some(len)
    }

    /// Sets the lengths of the IP header, its number and its checksum.
    fn finish_ip(&self, packet: &mut [u8]) {
        let ip = self.ip;
        let total = packet.len() - ip;
        if self.is_v6 {
            return put16(packet, ip + 4, (total - IPV6_LEN) as u16);
        }
        put16(packet, ip + 2, total as u16);
        let number = be16(packet, ip + 4).unwrap_or(0).wrapping_add(self.count);
        put16(packet, ip + 4, number);
        put16(packet, ip + 10, 0);
        let sum = packet.get(ip..self.start).map_or(0, checksum::internet);
        put16(packet, ip + 10, sum);
    }

    fn finish_checksum(&self, packet: &mut [u8]) {
        let (protocol, field) = match self.transport {
            Transport::Tcp => (model::protocol::TCP, 16),
            Transport::Udp => (model::protocol::UDP, 6),
        };
        let len = packet.len() - self.start;
        let pseudo = if self.is_v6 {
            let address = |at| packet.get(self.ip + at..).and_then(<[u8]>::first_chunk::<16>);
            address(8)
                .zip(address(24))
                .map(|(src, dst)| checksum::pseudo_v6(*src, *dst, protocol, len))
        } else {
            let address = |at| packet.get(self.ip + at..).and_then(<[u8]>::first_chunk::<4>);
            address(12)
                .zip(address(16))
                .map(|(src, dst)| checksum::pseudo_v4(*src, *dst, protocol, len))
        };
        put16(packet, self.start + field, pseudo.unwrap_or(0));
        Partial {
            start: self.start,
            field,
        }
        .complete(packet);
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use proptest::prelude::*;

    use super::*;
    use crate::build::{Frame, Network, Tag};
    use crate::parse::TcpFlags;

    fn ends(is_v6: bool) -> (SocketAddr, SocketAddr) {
        let of = if is_v6 {
            ["[2001:db8::1]:1000", "[2001:db8::2]:80"]
        } else {
            ["10.0.0.1:1000", "10.0.0.2:80"]
        };
        (of[0].parse().unwrap(), of[1].parse().unwrap())
    }

    /// A frame as it is built, and where its transport header and its data begin.
    fn built(transport: Transport, is_v6: bool, tags: &[Tag], payload: &[u8]) -> (Vec<u8>, usize, usize) {
        let (src, dst) = ends(is_v6);
        let flags = TcpFlags(TcpFlags::ACK | FIN_PSH | CWR);
        let mut frame = match transport {
            Transport::Tcp => Frame::tcp(src, dst, flags, payload).unwrap(),
            Transport::Udp => Frame::udp(src, dst, payload).unwrap(),
        };
        frame.tags = tags;
        if let Network::V4 { identification, .. } = &mut frame.network {
            *identification = 0xffff;
        }
        let (start, data) = (frame.l4_offset(), frame.payload_offset());
        (frame.to_vec().unwrap(), start, data)
    }

    fn pseudo(frame: &[u8], start: usize, is_v6: bool, transport: Transport) -> u16 {
        let protocol = if transport == Transport::Tcp { 6 } else { 17 };
        let len = frame.len() - start;
        if is_v6 {
            let at = start - 32;
            let src: [u8; 16] = frame[at..at + 16].try_into().unwrap();
            let dst: [u8; 16] = frame[at + 16..start].try_into().unwrap();
            checksum::pseudo_v6(src, dst, protocol, len)
        } else {
            let at = start - 8;
            let src: [u8; 4] = frame[at..at + 4].try_into().unwrap();
            let dst: [u8; 4] = frame[at + 4..start].try_into().unwrap();
            checksum::pseudo_v4(src, dst, protocol, len)
        }
    }

    fn transports() -> impl Strategy<Value = Transport> {
        prop_oneof![Just(Transport::Tcp), Just(Transport::Udp)]
    }

    proptest! {
        #[test]
        fn a_completed_checksum_is_that_of_a_whole_packet(
            transport in transports(), is_v6: bool, is_tagged: bool,
            payload in prop::collection::vec(any::<u8>(), 0..2000),
        ) {
            let tags = [Tag::vlan(7)];
            let tags = if is_tagged { &tags[..] } else { &[] };
            let (whole, start, _) = built(transport, is_v6, tags, &payload);
            let mut frame = whole.clone();
            let field = if transport == Transport::Tcp { 16 } else { 6 };
            let partial = Partial { start, field };
            // As a sender leaves it to a card.
            let begun = pseudo(&frame, start, is_v6, transport);
            put16(&mut frame, start + field, begun);
            prop_assert!(partial.complete(&mut frame));
            prop_assert_eq!(frame, whole);
        }

        #[test]
        fn a_divided_packet_is_the_same_data_in_whole_packets(
            transport in transports(), is_v6: bool, is_tagged: bool, each in 1..3000_u16,
            payload in prop::collection::vec(any::<u8>(), 1..20_000),
        ) {
            let tags = [Tag::vlan(7)];
            let tags = if is_tagged { &tags[..] } else { &[] };
            let (frame, start, data) = built(transport, is_v6, tags, &payload);
            let field = if transport == Transport::Tcp { 16 } else { 6 };
            let offload = Offload { partial: Some(Partial { start, field }), divide: Some((transport, each)) };
            let mut division = Division::new(&frame, offload).unwrap();
            let mut room = vec![0xaa; 4000];
            let (mut all, mut count) = (Vec::new(), 0);
            while let Some(len) = division.next(&frame, &mut room) {
                let packet = &room[..len];
                let sound = etherparse::PacketHeaders::from_ethernet_slice(packet).unwrap();
                let (bytes, sum, expected) = match sound.transport.unwrap() {
                    etherparse::TransportHeader::Tcp(tcp) => {
                        let is_last = all.len() + (len - data) == payload.len();
                        prop_assert_eq!(tcp.sequence_number, be_sequence(&frame, start).wrapping_add(all.len() as u32));
                        prop_assert_eq!((tcp.fin, tcp.psh, tcp.cwr, tcp.ack), (is_last, is_last, count == 0, true));
                        let bytes = packet[data..].to_vec();
                        let expected = match sound.net.clone().unwrap() {
                            etherparse::NetHeaders::Ipv4(ip, _) => tcp.calc_checksum_ipv4(&ip, &bytes).unwrap(),
                            etherparse::NetHeaders::Ipv6(ip, _) => tcp.calc_checksum_ipv6(&ip, &bytes).unwrap(),
                            _ => unreachable!(),
                        };
                        (bytes, tcp.checksum, expected)
                    }
                    etherparse::TransportHeader::Udp(udp) => {
                        let bytes = packet[data..].to_vec();
                        prop_assert_eq!(usize::from(udp.length), 8 + bytes.len());
                        let expected = match sound.net.clone().unwrap() {
                            etherparse::NetHeaders::Ipv4(ip, _) => udp.calc_checksum_ipv4(&ip, &bytes).unwrap(),
                            etherparse::NetHeaders::Ipv6(ip, _) => udp.calc_checksum_ipv6(&ip, &bytes).unwrap(),
                            _ => unreachable!(),
                        };
                        (bytes, udp.checksum, expected)
                    }
                    _ => unreachable!(),
                };
                // Both forms of zero are the same sum.
                prop_assert_eq!(sum % 0xffff, expected % 0xffff);
                if let etherparse::NetHeaders::Ipv4(ip, _) = sound.net.unwrap() {
                    prop_assert_eq!(ip.header_checksum, ip.calc_header_checksum());
                    prop_assert_eq!(ip.identification, 0xffff_u16.wrapping_add(count));
                }
                all.extend_from_slice(&bytes);
                count += 1;
            }
            prop_assert_eq!(all, payload);
        }

        #[test]
        fn nothing_that_is_said_of_a_frame_is_believed(
            frame in prop::collection::vec(any::<u8>(), 0..200), start in 0..250_usize, field in 0..250_usize,
            transport in transports(), each: u16,
        ) {
            let partial = Partial { start, field };
            partial.complete(&mut frame.clone());
            let offload = Offload { partial: Some(partial), divide: Some((transport, each)) };
            if let Some(mut division) = Division::new(&frame, offload) {
                let mut room = [0; 300];
                let mut left = 200;
                while division.next(&frame, &mut room).is_some() {
                    left -= 1;
                    prop_assert!(left > 0);
                }
            }
        }
    }

    fn be_sequence(frame: &[u8], start: usize) -> u32 {
        u32::from_be_bytes(frame[start + 4..start + 8].try_into().unwrap())
    }
}
