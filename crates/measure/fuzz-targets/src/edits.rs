//! Frames that are changed: answered, completed, divided, translated. Each checksum afterwards is compared with one over
//! the whole.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use model::protocol;
use packet::offload::{Division, Offload, Transport, VIRTIO_NET_BYTES};
use packet::{Fragment, Parsed, Translation, Way, answer, checksum, ethertype, parse};

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// The addresses of a service, and of its instance.
const SERVICE: (Ipv4Addr, Ipv6Addr) = (
    Ipv4Addr::new(10, 0, 0, 100),
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1),
);
const INSTANCE: (Ipv4Addr, Ipv6Addr) = (
    Ipv4Addr::new(10, 0, 1, 1),
    Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, 1),
);
const PORTS: (u16, u16) = (80, 8080);

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// A sum is zero in two forms.
fn is_zero(sum: u16) -> bool {
    sum.is_multiple_of(0xffff)
}

/// An IP packet's sum over its pseudo header and what is behind `start`; its addresses are where they are without
/// regard to a Routing header.
fn transport_sum(ip: &[u8], start: usize, protocol: u8) -> u16 {
    let data = &ip[start..];
    let pseudo = if ip[0] >> 4 == 4 {
        checksum::pseudo_v4(at(ip, 12), at(ip, 16), protocol, data.len())
    } else {
        checksum::pseudo_v6(at(ip, 8), at(ip, 24), protocol, data.len())
    };
    checksum::add(pseudo, checksum::sum(data))
}

fn at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    *bytes[at..].first_chunk().unwrap()
}

/// A frame that may ask for an address of this machine, after a byte with the room behind it. An answer goes to the
/// one who asked, with sums that are right, and is answered by nobody. A frame without an answer stays as it is.
pub(crate) fn requests(bytes: &[u8]) {
    let Some((room, frame)) = bytes.split_first() else {
        return;
    };
    let is_ours = |address: IpAddr| address == SERVICE.0 || address == SERVICE.1;
    let mut answered = frame.to_vec();
    answered.resize(frame.len() + usize::from(*room), 0xee);
    let Some(len) = answer(&mut answered, frame.len(), MAC, is_ours) else {
        assert_eq!(&answered[..frame.len()], frame);
        return;
    };
    let behind = answered.split_off(len);
    assert!(
        behind
            .iter()
            .skip(frame.len().saturating_sub(len))
            .all(|byte| *byte == 0xee)
    );
    assert_eq!((&answered[..6], &answered[6..12]), (&frame[6..12], &MAC[..]));
    let ip = if word(frame, 12) == ethertype::VLAN {
        18
    } else {
        14
    };
    assert_eq!(answered[12..ip], frame[12..ip]);
    let packet = &answered[ip..];
    match word(&answered, ip - 2) {
        ethertype::ARP => {
            assert_eq!(packet[8..18], [&MAC[..], &SERVICE.0.octets()].concat());
            assert_eq!(packet[18..28], frame[ip + 8..ip + 18]);
        }
        ethertype::IPV4 => {
            let header = usize::from(packet[0] & 0xf) * 4;
            let message = &packet[header..usize::from(word(packet, 2))];
            assert_eq!(
                (checksum::sum(&packet[..header]), checksum::sum(message)),
                (0xffff, 0xffff)
            );
            assert_eq!(
                packet[12..20],
                [&SERVICE.0.octets()[..], &frame[ip + 12..ip + 16]].concat()
            );
        }
        _ => {
            let packet = &packet[..40 + usize::from(word(packet, 4))];
            assert!(is_zero(transport_sum(packet, 40, protocol::ICMPV6)));
            assert_eq!(packet[8..24], SERVICE.1.octets());
        }
    }
    if !matches!(parse(frame), Parsed::Invalid(_)) {
        assert!(!matches!(parse(&answered), Parsed::Invalid(_)));
    }
    assert_eq!(
        answer(&mut answered, len, MAC, is_ours),
        None,
        "an answer is answered"
    );
}

/// What a sender left to its card, 10 bytes, and its frame. A completed checksum is that of all that it covers. The
/// packets of a division have the bytes of the whole one, each once, and sums that are right.
pub(crate) fn offload(bytes: &[u8]) {
    let Some((header, frame)) = bytes.split_first_chunk::<VIRTIO_NET_BYTES>() else {
        return;
    };
    let Some(offload) = Offload::read(header) else {
        return;
    };
    let Some((transport, each)) = offload.divide else {
        if let Some(partial) = offload.partial {
            let mut completed = frame.to_vec();
            let (at, done) = (partial.start + partial.field, partial.complete(&mut completed));
            assert_eq!(done, at + 2 <= frame.len());
            if done {
                let begun = word(frame, at);
                assert_eq!(
                    (&completed[..at], &completed[at + 2..]),
                    (&frame[..at], &frame[at + 2..])
                );
                let is_aligned = partial.field.is_multiple_of(2);
                assert!(
                    !is_aligned || is_zero(checksum::add(begun, checksum::sum(&completed[partial.start..])))
                );
            }
        }
        return;
    };
    let Some(mut division) = Division::new(frame, offload) else {
        return;
    };
    let start = offload.partial.map_or(0, |partial| partial.start);
    let (number, header) = match transport {
        Transport::Tcp => (protocol::TCP, usize::from(frame[start + 12] >> 4) * 4),
        Transport::Udp => (protocol::UDP, 8),
    };
    let data = start + header;
    let mut ip = 14;
    while [ethertype::VLAN, ethertype::SERVICE_VLAN].contains(&word(frame, ip - 2)) {
        ip += 4;
    }
    let is_v6 = word(frame, ip - 2) == ethertype::IPV6;
    // Whose version is not that of its type is no packet, and whoever receives it drops it.
    let is_packet = frame[ip] >> 4 == if is_v6 { 6 } else { 4 };
    let mut room = [0; 4096];
    let (mut behind, mut count) = (&frame[data..], 0_u32);
    while let Some(len) = division.next_len(frame) {
        assert_eq!(len, data + behind.len().min(usize::from(each)));
        assert_eq!(division.next(frame, &mut room), Some(len));
        let packet = &room[..len];
        let here;
        (here, behind) = behind.split_at(len - data);
        assert_eq!(&packet[data..], here);
        let length = if is_v6 {
            word(packet, ip + 4) + 40
        } else {
            word(packet, ip + 2)
        };
        assert_eq!(usize::from(length), len - ip);
        if !is_v6 {
            assert_eq!(checksum::sum(&packet[ip..start]), 0xffff);
        }
        assert!(!is_packet || is_zero(transport_sum(&packet[ip..], start - ip, number)));
        count += 1;
    }
    assert_eq!((behind, division.next(frame, &mut room)), (&[][..], None));
    assert_eq!(count as usize, (frame.len() - data).div_ceil(usize::from(each)));
}

/// A part of a frame that a translation may change, and what it is afterwards.
struct Place {
    at: usize,
    before: Vec<u8>,
    after: Vec<u8>,
}

/// A packet within a frame, whole or as an error quotes it, that the parser has taken.
struct Packet {
    is_v6: bool,
    ip: usize,
    end: usize,
    /// Where its transport header begins, and its protocol; [`None`] in a later fragment.
    transport: Option<(usize, u8)>,
}

impl Packet {
    fn at(frame: &[u8], ip: usize, end: usize) -> Packet {
        let is_v6 = frame[ip] >> 4 == 6;
        let (mut next, mut at, mut is_first) = if is_v6 {
            (frame[ip + 6], ip + 40, true)
        } else {
            let is_first = word(frame, ip + 6) & 0x1fff == 0;
            (frame[ip + 9], ip + usize::from(frame[ip] & 0xf) * 4, is_first)
        };
        while is_first {
            let len = match next {
                51 => (usize::from(frame[at + 1]) + 2) * 4,
                44 if is_v6 => {
                    is_first = word(frame, at + 2) >> 3 == 0;
                    8
                }
                0 | 43 | 60 if is_v6 => (usize::from(frame[at + 1]) + 1) * 8,
                _ => break,
            };
            (next, at) = (frame[at], at + len);
        }
        Packet {
            is_v6,
            ip,
            end,
            transport: is_first.then_some((at, next)),
        }
    }

    fn is_error(&self, frame: &[u8]) -> bool {
        self.transport.is_some_and(|(at, protocol)| match protocol {
            protocol::ICMP if !self.is_v6 => matches!(frame[at], 3 | 4 | 5 | 11 | 12),
            protocol::ICMPV6 if self.is_v6 => matches!(frame[at], 1..=4),
            _ => false,
        })
    }

    /// Where the checksum of its transport is, if all of it is there, and there is one.
    fn sum_at(&self, frame: &[u8]) -> Option<usize> {
        let (start, protocol) = self.transport?;
        let (at, may_be_none) = match protocol {
            protocol::TCP => (start + 16, false),
            protocol::UDP => (start + 6, true),
            protocol::ICMP if !self.is_v6 => (start + 2, false),
            protocol::ICMPV6 if self.is_v6 => (start + 2, false),
            _ => return None,
        };
        let is_there = at + 2 <= self.end && !(may_be_none && word(frame, at) == 0);
        is_there.then_some(at)
    }

    /// The sums over its IPv4 header and its transport, which are zero where the checksums are right.
    fn sums(&self, frame: &[u8]) -> (u16, u16) {
        let packet = &frame[self.ip..self.end];
        let header = if self.is_v6 {
            0
        } else {
            checksum::sum(&packet[..usize::from(packet[0] & 0xf) * 4])
        };
        let transport = match self.transport.filter(|_| self.sum_at(frame).is_some()) {
            None => 0,
            Some((start, protocol::ICMP)) => checksum::sum(&frame[start..self.end]),
            Some((start, protocol)) => transport_sum(packet, start - self.ip, protocol),
        };
        (header, transport)
    }

    /// What is to change of its source or destination.
    fn places(&self, frame: &[u8], is_source: bool, way: Way, ports: Option<(u16, u16)>) -> Vec<Place> {
        let place = |at: usize, service: &[u8], instance: &[u8]| {
            let (before, after) = match way {
                Way::In => (service.to_vec(), instance.to_vec()),
                Way::Out => (instance.to_vec(), service.to_vec()),
            };
            let is_there = frame[at..self.end].starts_with(&before);
            is_there.then_some(Place { at, before, after })
        };
        let (source, destination) = if self.is_v6 { (8, 24) } else { (12, 16) };
        let at = self.ip + if is_source { source } else { destination };
        let address = if self.is_v6 {
            place(at, &SERVICE.1.octets(), &INSTANCE.1.octets())
        } else {
            place(at, &SERVICE.0.octets(), &INSTANCE.0.octets())
        };
        // A port belongs to its address.
        let port = match (&address, self.transport, ports) {
            (Some(_), Some((start, protocol::TCP | protocol::UDP)), Some((service, instance))) => {
                let at = start + if is_source { 0 } else { 2 };
                place(at, &service.to_be_bytes(), &instance.to_be_bytes())
            }
            _ => None,
        };
        address.into_iter().chain(port).collect()
    }
}

/// A frame to an instance or from it, after a byte that says which, and whether ports are translated. The service's
/// address and port become the instance's, or back, also in the packet that an error quotes. Each checksum that was
/// right is right, one that was wrong is wrong by as much, and nothing else changes.
pub(crate) fn translation(bytes: &[u8]) {
    let Some((how, frame)) = bytes.split_first() else {
        return;
    };
    let way = if how & 1 == 0 { Way::In } else { Way::Out };
    let ports = (how & 2 != 0).then_some(PORTS);
    let of = |(v4, v6): (Ipv4Addr, Ipv6Addr)| [IpAddr::from(v4), IpAddr::from(v6)];
    let translation = Translation::new(&of(SERVICE), &of(INSTANCE), ports);
    let mut translated = frame.to_vec();
    let is_sound = translation.apply(&mut translated, way);
    let info = match parse(frame) {
        Parsed::Flow(info) | Parsed::Fragment(Fragment { info, .. }) => info,
        Parsed::Other { .. } => return assert_eq!((is_sound, &translated[..]), (true, frame)),
        // It has reached nobody.
        Parsed::Invalid(_) => return,
    };
    let (ip, start) = (usize::from(info.l3_offset), usize::from(info.l4_offset));
    let end = ip + info.l3_len as usize;
    let mut packets = vec![Packet::at(frame, ip, end)];
    if info.is_icmp_error {
        packets.push(Packet::at(frame, start + 8, end));
    } else if packets[0].is_error(frame) {
        // The parser does not look into a fragment of an error.
        if is_sound {
            assert_eq!(
                packets[0].sums(frame).1 % 0xffff,
                packets[0].sums(&translated).1 % 0xffff
            );
        }
        return;
    }
    assert!(is_sound, "{info:?}");
    let mut expected = frame.to_vec();
    for (depth, packet) in packets.iter().enumerate() {
        // A quoted packet went the other way.
        let is_source = (way == Way::Out) != (depth == 1);
        for Place { at, before, after } in packet.places(frame, is_source, way, ports) {
            assert_eq!(expected[at..at + before.len()], before);
            expected[at..at + after.len()].copy_from_slice(&after);
        }
        // Checksums are compared by what they cover.
        let header_sum = (!packet.is_v6).then_some(packet.ip + 10);
        for at in header_sum.into_iter().chain(packet.sum_at(frame)) {
            expected[at..at + 2].copy_from_slice(&translated[at..at + 2]);
        }
    }
    assert_eq!(translated, expected);
    for (depth, packet) in packets.iter().enumerate() {
        let (before, after) = (packet.sums(frame), packet.sums(&translated));
        if depth == 0 {
            // The parser takes no other header than a valid one and one whose checksum is left to a card.
            assert!(packet.is_v6 || after.0 == 0xffff);
        } else {
            assert_eq!(before.0 % 0xffff, after.0 % 0xffff, "the header that is quoted");
        }
        assert_eq!(
            before.1 % 0xffff,
            after.1 % 0xffff,
            "the sum of the transport, {depth}"
        );
    }
}
