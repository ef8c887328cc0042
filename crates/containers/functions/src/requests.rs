//! UDP requests to a function: found and checked in a frame, and turned around in place. A request has no IP options, no
//! extension headers and no fragments.

use std::net::{IpAddr, SocketAddr};

use model::{FlowKey, protocol};
use packet::{Parsed, checksum, parse};

use crate::about::{Metric, Reason};
use crate::burst::{Burst, Packet};

/// Bytes of the headers of IPv4, IPv6 and UDP.
const IPV4: usize = 20;
const IPV6: usize = 40;
const UDP: usize = 8;
/// Hops of what a function sends.
const HOPS: u8 = 64;

/// The first reasons of each function that has requests, in this order.
pub(crate) const MALFORMED: Reason = Reason(0);
pub(crate) const BAD_CHECKSUM: Reason = Reason(1);
pub(crate) const BAD_REQUEST: Reason = Reason(2);
pub(crate) const REASONS: [Metric; 3] = [
    Metric::counter(
        "malformed",
        "Truncated or inconsistent headers, or a wrong IPv4 header checksum",
    ),
    Metric::counter("bad_checksum", "Requests with a wrong UDP checksum"),
    Metric::counter("bad_request", "Requests that are not as the function's page says"),
];

/// A request in its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    l3: usize,
    l4: usize,
    end: usize,
    /// Who sent it.
    pub(crate) source: SocketAddr,
    /// To whom.
    pub(crate) destination: SocketAddr,
}

/// What a frame is to a function that has requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Request(Request),
    /// Something else, which passes on.
    Other,
    /// It is to be dropped for that reason.
    Bad(Reason),
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Looks for a request to a UDP port.
#[inline]
pub(crate) fn find(frame: &[u8], port: u16) -> Found {
    let info = match parse(frame) {
        Parsed::Flow(info) => info,
        Parsed::Fragment(_) | Parsed::Other { .. } => return Found::Other,
        Parsed::Invalid(_) => return Found::Bad(MALFORMED),
    };
    if info.protocol != protocol::UDP {
        return Found::Other;
    }
    let (l3, l4) = (usize::from(info.l3_offset), usize::from(info.l4_offset));
    let header = match info.key {
        FlowKey::V4(_) => IPV4,
        FlowKey::V6(_) => IPV6,
    };
    if l4 - l3 != header || be16(frame, l4 + 2) != Some(port) {
        return Found::Other;
    }
    match read(frame, l3, l4, info.l3_len as usize) {
        Some(request) if request.is_sound(frame) => Found::Request(request),
        Some(_) => Found::Bad(BAD_CHECKSUM),
        None => Found::Bad(MALFORMED),
    }
}

fn read(frame: &[u8], l3: usize, l4: usize, l3_len: usize) -> Option<Request> {
    let ip = frame.get(l3..l3 + l3_len)?;
    let len = usize::from(be16(frame, l4 + 4)?);
    if len < UDP || len > l3_len - (l4 - l3) {
        return None;
    }
    let (source, destination) = if l4 - l3 == IPV4 {
        let address = |at: usize| Some(IpAddr::from(*ip.get(at..)?.first_chunk::<4>()?));
        (address(12)?, address(16)?)
    } else {
        let address = |at: usize| Some(IpAddr::from(*ip.get(at..)?.first_chunk::<16>()?));
        (address(8)?, address(24)?)
    };
    Some(Request {
        l3,
        l4,
        end: l4 + len,
        source: SocketAddr::new(source, be16(frame, l4)?),
        destination: SocketAddr::new(destination, be16(frame, l4 + 2)?),
    })
}

fn pseudo(from: IpAddr, to: IpAddr, len: usize) -> u16 {
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            checksum::pseudo_v4(from.octets(), to.octets(), protocol::UDP, len)
        }
        // Of two versions there is no packet.
        (from, to) => checksum::pseudo_v6(octets(from), octets(to), protocol::UDP, len),
    }
}

fn octets(of: IpAddr) -> [u8; 16] {
    match of {
        IpAddr::V4(of) => of.to_ipv6_mapped().octets(),
        IpAddr::V6(of) => of.octets(),
    }
}

fn put(frame: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = frame.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}

impl Request {
    /// Whether the UDP checksum is right, or was left out where it may be.
    fn is_sound(&self, frame: &[u8]) -> bool {
        let Some(datagram) = frame.get(self.l4..self.end) else {
            return false;
        };
        if be16(datagram, 6) == Some(0) {
            return self.source.is_ipv4();
        }
        let sum = pseudo(self.source.ip(), self.destination.ip(), datagram.len());
        checksum::add(sum, checksum::sum(datagram)) == 0xffff
    }

    /// Its payload.
    #[inline]
    pub(crate) fn payload<'f>(&self, frame: &'f [u8]) -> &'f [u8] {
        frame.get(self.l4 + UDP..self.end).unwrap_or_default()
    }

    /// Its payload, in place.
    #[inline]
    pub(crate) fn payload_mut<'f>(&self, frame: &'f mut [u8]) -> &'f mut [u8] {
        frame.get_mut(self.l4 + UDP..self.end).unwrap_or_default()
    }

    /// Gives it a payload of so many bytes; those that it had stay, and others have no specified value. False, and no
    /// change, if the frame cannot be so long.
    #[must_use]
    pub(crate) fn resize(&mut self, packet: &mut Packet<'_>, bytes: usize) -> bool {
        let (end, len) = (self.l4 + UDP + bytes, packet.len());
        let is_sized = bytes <= usize::from(u16::MAX) - IPV4 - UDP
            && if end < len {
                packet.shrink_back(len - end)
            } else {
                packet.grow_back(end - len).is_some()
            };
        if is_sized {
            self.end = end;
        }
        is_sized
    }

    /// Sends it between other ends, of the same IP version: sets ports, addresses, lengths and checksums.
    pub(crate) fn send(&self, frame: &mut [u8], from: SocketAddr, to: SocketAddr) {
        let (l3, l4) = (self.l3, self.l4);
        let len = self.end - l4;
        put(frame, l4, &from.port().to_be_bytes());
        put(frame, l4 + 2, &to.port().to_be_bytes());
        put(frame, l4 + 4, &(len as u16).to_be_bytes());
        put(frame, l4 + 6, &[0, 0]);
        let datagram = frame.get(l4..self.end).unwrap_or_default();
        let sum = !checksum::add(pseudo(from.ip(), to.ip(), len), checksum::sum(datagram));
        // 0 says that there is none.
        let sum = if sum == 0 { 0xffff } else { sum };
        put(frame, l4 + 6, &sum.to_be_bytes());
        match (from.ip(), to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                put(frame, l3 + 2, &((IPV4 + len) as u16).to_be_bytes());
                put(frame, l3 + 8, &[HOPS]);
                put(frame, l3 + 10, &[0, 0]);
                put(frame, l3 + 12, &from.octets());
                put(frame, l3 + 16, &to.octets());
                let sum = checksum::internet(frame.get(l3..l4).unwrap_or_default());
                put(frame, l3 + 10, &sum.to_be_bytes());
            }
            (from, to) => {
                put(frame, l3 + 4, &(len as u16).to_be_bytes());
                put(frame, l3 + 7, &[HOPS]);
                put(frame, l3 + 8, &octets(from));
                put(frame, l3 + 24, &octets(to));
            }
        }
    }

    /// Makes the packet its own answer, with that payload, and decides so.
    ///
    /// # Errors
    /// [`BAD_REQUEST`], and no change: the answer is longer than its request, and the frame has no room for it.
    pub(crate) fn answer(&mut self, packet: &mut Packet<'_>, payload: &[u8]) -> Result<(), Reason> {
        if !self.resize(packet, payload.len()) {
            return Err(BAD_REQUEST);
        }
        let frame = packet.frame_mut();
        self.payload_mut(frame).copy_from_slice(payload);
        self.send(frame, self.destination, self.source);
        if let Some((first, second)) = frame.get_mut(..12).and_then(|macs| macs.split_at_mut_checked(6)) {
            first.swap_with_slice(second);
        }
        packet.answer();
        Ok(())
    }
}

/// Gives each request of a burst to `serve`, which says whether it is a request as it should be. Others pass on; returns
/// how many.
pub(crate) fn serve(
    burst: &mut Burst,
    port: u16,
    mut serve: impl FnMut(&mut Packet<'_>, Request) -> Result<(), Reason>,
) -> u64 {
    let mut others = 0;
    for mut packet in burst.packets() {
        match find(packet.frame(), port) {
            Found::Request(request) => {
                if let Err(reason) = serve(&mut packet, request) {
                    packet.drop(reason);
                }
            }
            Found::Other => others += 1,
            Found::Bad(reason) => packet.drop(reason),
        }
    }
    others
}

#[cfg(test)]
pub(crate) mod tests {
    use packet::build::Frame;
    use proptest::prelude::*;

    use super::*;
    use crate::burst::Verdict;
    use crate::function::Function;

    /// The ends of a request to a port, over IPv4 or IPv6.
    fn ends(port: u16, is_v6: bool) -> (SocketAddr, SocketAddr) {
        let address = |host: u16| -> IpAddr {
            if is_v6 {
                [0x2001, 0xdb8, 0, 0, 0, 0, 0, host].into()
            } else {
                [10, 0, 0, host as u8].into()
            }
        };
        (
            SocketAddr::new(address(1), 40_000),
            SocketAddr::new(address(2), port),
        )
    }

    /// The frame of a request.
    pub(crate) fn frame(port: u16, payload: &[u8], is_v6: bool) -> Vec<u8> {
        let (from, to) = ends(port, is_v6);
        Frame::udp(from, to, payload).unwrap().to_vec().unwrap()
    }

    /// What a function makes of a request: its verdict, and the payload of an answer that an independent parser accepts.
    pub(crate) fn ask<F: Function>(function: &mut F, port: u16, payload: &[u8]) -> (Verdict, Vec<u8>) {
        let is_v6 = payload.len() % 2 == 1;
        let (from, to) = ends(port, is_v6);
        let mut burst = Burst::new();
        burst.begin(0, 0);
        assert!(burst.push(&frame(port, payload, is_v6)));
        let before = burst.frame(0).to_vec();
        function.process(&mut burst, model::Nanos::from_secs(1));
        let packet = burst.packet(0).unwrap();
        if packet.verdict() != Verdict::Answer {
            return (packet.verdict(), Vec::new());
        }
        let frame = packet.frame();
        assert_eq!((&frame[..6], &frame[6..12]), (&before[6..12], &before[..6]));
        let sliced = etherparse::SlicedPacket::from_ethernet(frame).unwrap();
        let Some(etherparse::TransportSlice::Udp(udp)) = &sliced.transport else {
            panic!("{frame:02x?} is no answer")
        };
        let sum = match sliced.net.as_ref().unwrap() {
            etherparse::NetSlice::Ipv4(ip) => {
                let header = ip.header().to_header();
                assert_eq!(
                    (header.source, header.destination),
                    ([10, 0, 0, 2], [10, 0, 0, 1])
                );
                assert_eq!(header.calc_header_checksum(), header.header_checksum);
                udp.to_header()
                    .calc_checksum_ipv4(&header, udp.payload())
                    .unwrap()
            }
            etherparse::NetSlice::Ipv6(ip) => {
                let header = ip.header().to_header();
                let ends = [header.source, header.destination];
                assert_eq!(ends, [to, from].map(|of| octets(of.ip())));
                udp.to_header()
                    .calc_checksum_ipv6(&header, udp.payload())
                    .unwrap()
            }
            etherparse::NetSlice::Arp(_) => panic!(),
        };
        assert_eq!(udp.checksum(), sum);
        assert_eq!(
            (udp.source_port(), udp.destination_port()),
            (to.port(), from.port())
        );
        (Verdict::Answer, udp.payload().to_vec())
    }

    #[test]
    fn what_is_no_request_is_told_apart() {
        let bytes = frame(7, b"abc", false);
        assert!(matches!(find(&bytes, 7), Found::Request(of) if of.payload(&bytes) == b"abc"));
        assert_eq!(find(&bytes, 8), Found::Other);
        assert_eq!(find(&[0; 60], 7), Found::Other);
        assert_eq!(find(&bytes[..20], 7), Found::Bad(MALFORMED));
        let mut wrong = bytes.clone();
        *wrong.last_mut().unwrap() ^= 1;
        assert_eq!(find(&wrong, 7), Found::Bad(BAD_CHECKSUM));
        wrong[40..42].fill(0);
        assert!(matches!(find(&wrong, 7), Found::Request(_)), "there is none");
        let mut wrong = frame(7, b"abc", true);
        wrong[60..62].fill(0);
        assert_eq!(
            find(&wrong, 7),
            Found::Bad(BAD_CHECKSUM),
            "over IPv6 there is one"
        );
        let mut short = bytes;
        short[39] = 7;
        assert_eq!(find(&short, 7), Found::Bad(MALFORMED));
    }

    proptest! {
        #[test]
        fn foreign_bytes_are_never_read_beyond_their_end(mut bytes in prop::collection::vec(any::<u8>(), 1..120), port in 0..4_u16) {
            if bytes.len() > 38 {
                bytes[12..15].copy_from_slice(&[8, 0, 0x45]);
                bytes[23] = protocol::UDP;
                bytes[36] = 0;
            }
            if let Found::Request(of) = find(&bytes, port) {
                prop_assert!(of.end <= bytes.len() && of.payload(&bytes).len() <= bytes.len() - 42);
            }
        }
    }
}
