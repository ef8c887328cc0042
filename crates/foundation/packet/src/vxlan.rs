//! VXLAN (RFC 7348) over IPv4: the outer headers of a frame that goes to another machine, and what is in a frame that
//! comes from one. And the ARP messages by which the ends of tunnels find each other on a segment.

use std::net::Ipv4Addr;
use std::ops::Range;

use model::protocol;

use crate::checksum;
use crate::headers::{ETHERNET_LEN, IPV4_LEN, ethertype};

/// The UDP port of VXLAN.
pub const PORT: u16 = 4789;
/// Bytes that a frame becomes longer: Ethernet, IPv4, UDP and VXLAN headers.
pub const OVERHEAD: usize = ETHERNET_LEN + IPV4_LEN + UDP_LEN + VXLAN_LEN;
/// Bytes of an ARP request, padded to the shortest frame of Ethernet.
pub const ARP_FRAME: usize = 60;
/// Networks are below this: they have 24 bits.
pub const NETWORKS: u32 = 1 << 24;

const UDP_LEN: usize = 8;
const VXLAN_LEN: usize = 8;
#[cfg(test)]
const UDP_AT: usize = ETHERNET_LEN + IPV4_LEN;
#[cfg(test)]
const VXLAN_AT: usize = UDP_AT + UDP_LEN;
/// Hops of an outer packet.
const HOPS: u8 = 64;
/// The flags of a VXLAN header with a network's number.
const HAS_NETWORK: u8 = 0x08;
/// "Don't fragment": the ends of a tunnel never put fragments together (RFC 7348, section 4.3).
const DONT_FRAGMENT: u16 = 0x4000;
/// Source ports, as RFC 7348 recommends: those for private use.
const SOURCE_PORTS: u16 = 0xc000;
const ARP_HEADER: [u8; 6] = [0, 1, 8, 0, 6, 4];
const ARP_BYTES: usize = 28;
const LOOKING: u8 = 0x80;
const CAME_BACK: u8 = 0x40;

/// One direction of a tunnel, as its packets say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// The near end's MAC address and the next hop's.
    pub macs: [[u8; 6]; 2],
    /// The near end and the far end.
    pub ends: [Ipv4Addr; 2],
    /// The network's number (VNI), below [`NETWORKS`].
    pub network: u32,
    /// What the near end says of the packet.
    pub mark: Mark,
}

/// What an end of a tunnel says of a packet, in the last byte of its header. RFC 7348 reserves that: others write 0 and do not
/// read it.
///
/// ```text
/// bit 7    the sender looks for the packet's flow: who does not know it sends the packet back
/// bit 6    the packet came back
/// bits 0-5 how many machines were asked before
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark(u8);

impl Mark {
    /// Nothing.
    pub const NONE: Mark = Mark(0);
    /// Machines that can have been asked at most.
    pub const ASKED_MAX: u8 = 0x3f;

    /// The flow is looked for, and so many machines were asked before, at most [`Mark::ASKED_MAX`].
    pub const fn looking(asked: u8) -> Mark {
        Mark(LOOKING | asked & Mark::ASKED_MAX)
    }

    /// Whether the flow is looked for.
    pub const fn is_looking(self) -> bool {
        self.0 & (LOOKING | CAME_BACK) == LOOKING
    }

    /// Where the packet came back: how many machines were asked before the one that sent it back.
    pub const fn came_back(self) -> Option<u8> {
        if self.0 & CAME_BACK != 0 {
            Some(self.0 & Mark::ASKED_MAX)
        } else {
            None
        }
    }
}

impl Tunnel {
    /// Writes the outer headers of a frame of `len` bytes whose flow has that hash. The UDP checksum is 0, as RFC 7348
    /// section 5 wants it. [`None`]: the packet would be longer than IPv4 allows; nothing is written then.
    #[inline]
    pub fn put(&self, header: &mut [u8; OVERHEAD], len: usize, hash: u16) -> Option<()> {
        let udp = u16::try_from(UDP_LEN + VXLAN_LEN + len).ok()?;
        let total = udp.checked_add(IPV4_LEN as u16)?;
        let [near, next] = self.macs;
        let [from, to] = self.ends;
        header[..6].copy_from_slice(&next);
        header[6..12].copy_from_slice(&near);
        header[12..14].copy_from_slice(&ethertype::IPV4.to_be_bytes());
        let (ip, rest) = header[ETHERNET_LEN..].split_at_mut(IPV4_LEN);
        ip[..2].copy_from_slice(&[0x45, 0]);
        ip[2..4].copy_from_slice(&total.to_be_bytes());
        ip[4..6].fill(0);
        ip[6..8].copy_from_slice(&DONT_FRAGMENT.to_be_bytes());
        ip[8..12].copy_from_slice(&[HOPS, protocol::UDP, 0, 0]);
        ip[12..16].copy_from_slice(&from.octets());
        ip[16..20].copy_from_slice(&to.octets());
        let sum = checksum::internet(ip);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        rest[..2].copy_from_slice(&(hash | SOURCE_PORTS).to_be_bytes());
        rest[2..4].copy_from_slice(&PORT.to_be_bytes());
        rest[4..6].copy_from_slice(&udp.to_be_bytes());
        rest[6..8].fill(0);
        rest[8..12].copy_from_slice(&[HAS_NETWORK, 0, 0, 0]);
        rest[12..16].copy_from_slice(&(self.network << 8 | u32::from(self.mark.0)).to_be_bytes());
        Some(())
    }
}

/// A hash of a frame's flow, for the outer source port: routers spread flows by it, and each flow keeps its way. It is the
/// same for both directions, and 0 for what is not IP.
#[inline]
pub fn flow_hash(frame: &[u8]) -> u16 {
    let fold = |bytes: &[u8]| {
        bytes.chunks_exact(4).fold(0_u32, |sum, word| {
            sum ^ u32::from_be_bytes([word[0], word[1], word[2], word[3]])
        })
    };
    let (at, kind) = match kind_at(frame, ETHERNET_LEN - 2) {
        Some(ethertype::VLAN) => (ETHERNET_LEN + 4, kind_at(frame, ETHERNET_LEN + 2)),
        kind => (ETHERNET_LEN, kind),
    };
    let part = |range: Range<usize>| frame.get(at + range.start..at + range.end).unwrap_or_default();
    let (ends, protocol, l4) = match kind {
        Some(ethertype::IPV4) => {
            let header = usize::from(part(0..1).first().copied().unwrap_or_default() & 0x0f) * 4;
            // Fragments have no ports, and a flow has one way with them, too.
            let is_whole = part(6..8).iter().copied().eq([0, 0]) || part(6..8).iter().copied().eq([0x40, 0]);
            let header = if is_whole { header } else { usize::MAX };
            (fold(part(12..20)), part(9..10), header)
        }
        Some(ethertype::IPV6) => (fold(part(8..40)), part(6..7), 40),
        _ => return 0,
    };
    let has_ports = matches!(protocol, [protocol::TCP | protocol::UDP | protocol::SCTP]);
    let ports = if has_ports && l4 < 64 {
        part(l4..l4 + 4)
    } else {
        &[]
    };
    let ports = ports
        .chunks_exact(2)
        .fold(0_u32, |sum, of| sum ^ u32::from(of[0]) << 8 ^ u32::from(of[1]));
    let mixed = (u64::from(ends) << 16 ^ u64::from(ports)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 48) as u16
}

/// What a frame is for the end of a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opening {
    /// No packet of VXLAN to that address.
    Other,
    /// One that is cut off, in fragments, has a wrong checksum or no network's number.
    Malformed,
    /// One with a frame in it.
    Inner {
        /// The far end that sent it.
        from: Ipv4Addr,
        /// The network's number.
        network: u32,
        /// What the far end says of it.
        mark: Mark,
        /// Where the inner frame is.
        at: Range<usize>,
    },
}

/// Looks whether a frame is a packet of a tunnel that ends at `address`. What is in it is not looked at.
pub fn open(frame: &[u8], address: Ipv4Addr) -> Opening {
    let outer = kind_at(frame, ETHERNET_LEN - 2) == Some(ethertype::IPV4);
    let Some(ip) = frame.get(ETHERNET_LEN..).filter(|_| outer) else {
        return Opening::Other;
    };
    let Some(fixed) = ip.first_chunk::<IPV4_LEN>() else {
        return Opening::Other;
    };
    let is_ours = fixed[0] >> 4 == 4 && fixed[9] == protocol::UDP && fixed[16..20] == address.octets();
    let is_fragment = u16::from_be_bytes([fixed[6], fixed[7]]) & 0x3fff != 0;
    if !is_ours {
        return Opening::Other;
    }
    if is_fragment {
        // Whatever it belongs to: nobody here puts it together.
        return Opening::Malformed;
    }
    let header = usize::from(fixed[0] & 0x0f) * 4;
    let total = usize::from(u16::from_be_bytes([fixed[2], fixed[3]]));
    let (Some(head), Some(datagram)) = (ip.get(..header), ip.get(header..total)) else {
        return Opening::Malformed;
    };
    if kind_at(datagram, 2) != Some(PORT) {
        return Opening::Other;
    }
    let Some((headers, inner)) = datagram.split_first_chunk::<{ UDP_LEN + VXLAN_LEN }>() else {
        return Opening::Malformed;
    };
    let [from, to] = [12, 16].map(|at| [fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]);
    let is_summed = headers[6..8] != [0, 0];
    let pseudo = checksum::pseudo_v4(from, to, protocol::UDP, datagram.len());
    let is_right = header >= IPV4_LEN
        && checksum::sum(head) == u16::MAX
        && usize::from(u16::from_be_bytes([headers[4], headers[5]])) == datagram.len()
        && (!is_summed || checksum::add(pseudo, checksum::sum(datagram)) == u16::MAX)
        && headers[8] & HAS_NETWORK != 0;
    if !is_right || inner.len() < ETHERNET_LEN {
        return Opening::Malformed;
    }
    let start = ETHERNET_LEN + header + UDP_LEN + VXLAN_LEN;
    Opening::Inner {
        from: from.into(),
        network: u32::from_be_bytes([0, headers[12], headers[13], headers[14]]),
        mark: Mark(headers[15]),
        at: start..start + inner.len(),
    }
}

/// Makes a packet of a tunnel, whose inner frame [`open`] has found at `at`, one that goes back to who sent it.
pub fn turn_back(frame: &mut [u8], at: &Range<usize>) {
    let ends = ETHERNET_LEN + 12;
    if at.start < ETHERNET_LEN + IPV4_LEN + UDP_LEN + VXLAN_LEN || at.start > frame.len() {
        return;
    }
    for nth in 0..6 {
        frame.swap(nth, 6 + nth);
    }
    // The sum of both addresses, which the header's checksum has, stays.
    for nth in 0..4 {
        frame.swap(ends + nth, ends + 4 + nth);
    }
    let checksum = at.start - VXLAN_LEN - 2;
    frame[checksum..checksum + 2].fill(0);
    frame[at.start - 1] |= CAME_BACK;
}

/// Writes an ARP request of `own` at `mac` for the MAC address of `asked`.
pub fn ask(frame: &mut [u8; ARP_FRAME], mac: [u8; 6], own: Ipv4Addr, asked: Ipv4Addr) {
    frame.fill(0);
    frame[..6].fill(0xff);
    frame[6..12].copy_from_slice(&mac);
    frame[12..14].copy_from_slice(&ethertype::ARP.to_be_bytes());
    let arp = &mut frame[ETHERNET_LEN..ETHERNET_LEN + ARP_BYTES];
    arp[..6].copy_from_slice(&ARP_HEADER);
    arp[7] = 1;
    arp[8..14].copy_from_slice(&mac);
    arp[14..18].copy_from_slice(&own.octets());
    arp[24..].copy_from_slice(&asked.octets());
}

/// The reply of an ARP message to `own`: who sent it, and its MAC address.
pub fn reply(frame: &[u8], own: Ipv4Addr) -> Option<(Ipv4Addr, [u8; 6])> {
    message(frame, own, 2)
}

/// The question of an ARP message for `own`: who asks, and its MAC address.
pub fn question(frame: &[u8], own: Ipv4Addr) -> Option<(Ipv4Addr, [u8; 6])> {
    message(frame, own, 1)
}

/// An ARP message of that kind to `own`.
fn message(frame: &[u8], own: Ipv4Addr, kind: u8) -> Option<(Ipv4Addr, [u8; 6])> {
    let arp = frame.get(ETHERNET_LEN..)?.first_chunk::<ARP_BYTES>()?;
    let is_it = kind_at(frame, ETHERNET_LEN - 2)? == ethertype::ARP
        && arp.starts_with(&ARP_HEADER)
        && arp[6..8] == [0, kind]
        && arp[24..] == own.octets();
    let mac = *arp[8..].first_chunk::<6>()?;
    // A group or nobody has no packets of its own.
    let is_one = mac[0] & 1 == 0 && mac != [0; 6];
    let from = *arp[14..].first_chunk::<4>()?;
    (is_it && is_one).then_some((from.into(), mac))
}

#[inline]
fn kind_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|two| u16::from_be_bytes(*two))
}

#[cfg(test)]
mod tests {
    use etherparse::{SlicedPacket, TransportSlice};
    use proptest::prelude::*;

    use super::*;
    use crate::build::Frame;

    const NEAR: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
    const FAR: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);

    fn tunnel(network: u32) -> Tunnel {
        Tunnel {
            macs: [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]],
            ends: [NEAR, FAR],
            network,
            mark: Mark::NONE,
        }
    }

    fn wrapped(inner: &[u8], network: u32) -> Vec<u8> {
        let mut header = [0xee; OVERHEAD];
        tunnel(network)
            .put(&mut header, inner.len(), flow_hash(inner))
            .unwrap();
        [&header[..], inner].concat()
    }

    fn inner() -> Vec<u8> {
        let (src, dst) = (
            "192.0.2.1:1000".parse().unwrap(),
            "10.0.0.100:80".parse().unwrap(),
        );
        Frame::udp(src, dst, b"hello").unwrap().to_vec().unwrap()
    }

    #[test]
    fn another_parser_reads_what_is_written() {
        let frame = wrapped(&inner(), 0xabcdef);
        let parsed = SlicedPacket::from_ethernet(&frame).unwrap();
        let Some(TransportSlice::Udp(udp)) = parsed.transport else {
            panic!("no UDP")
        };
        assert_eq!((udp.destination_port(), udp.checksum()), (PORT, 0));
        assert!(udp.source_port() >= SOURCE_PORTS);
        assert_eq!(udp.payload()[..8], [8, 0, 0, 0, 0xab, 0xcd, 0xef, 0]);
        assert_eq!(udp.payload()[8..], inner());
    }

    #[test]
    fn each_fault_is_found() {
        let good = wrapped(&inner(), 7);
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            bytes
        };
        for (frame, opening) in [
            (with(12, 0), Opening::Other),
            (with(ETHERNET_LEN + 9, protocol::TCP), Opening::Other),
            (with(ETHERNET_LEN + 19, 3), Opening::Other),
            (with(UDP_AT + 3, 1), Opening::Other),
            (with(ETHERNET_LEN + 6, 0x20), Opening::Malformed),
            (with(ETHERNET_LEN + 8, 1), Opening::Malformed),
            (with(UDP_AT + 5, 1), Opening::Malformed),
            (with(UDP_AT + 6, 1), Opening::Malformed),
            (with(VXLAN_AT, 0), Opening::Malformed),
            (good[..good.len() - 1].to_vec(), Opening::Malformed),
            (wrapped(&inner()[..13], 7), Opening::Malformed),
        ] {
            assert_eq!(open(&frame, FAR), opening, "{frame:02x?}");
        }
        // A right checksum is no fault.
        let mut summed = good.clone();
        let datagram = &good[UDP_AT..];
        let pseudo = checksum::pseudo_v4(NEAR.octets(), FAR.octets(), protocol::UDP, datagram.len());
        let sum = !checksum::add(pseudo, checksum::sum(datagram));
        summed[UDP_AT + 6..UDP_AT + 8].copy_from_slice(&sum.to_be_bytes());
        assert!(matches!(open(&summed, FAR), Opening::Inner { network: 7, .. }));
    }

    #[test]
    fn who_is_asked_answers_and_others_are_not_believed() {
        let mut frame = [0; ARP_FRAME];
        ask(&mut frame, [2, 0, 0, 0, 0, 1], NEAR, FAR);
        assert_eq!(reply(&frame, NEAR), None);
        assert_eq!(question(&frame, FAR), Some((NEAR, [2, 0, 0, 0, 0, 1])));
        assert_eq!(question(&frame, NEAR), None);
        let len = crate::answer(&mut frame, ARP_FRAME, [2, 0, 0, 0, 0, 2], |of| of == FAR).unwrap();
        assert_eq!(reply(&frame[..len], NEAR), Some((FAR, [2, 0, 0, 0, 0, 2])));
        assert_eq!(reply(&frame[..len], FAR), None);
        frame[22] = 3;
        assert_eq!(reply(&frame, NEAR), None, "a group");
    }

    #[test]
    fn what_does_not_know_a_flow_sends_its_packet_back() {
        let tunnel = Tunnel {
            mark: Mark::looking(3),
            ..tunnel(7)
        };
        let inner = inner();
        let mut header = [0; OVERHEAD];
        tunnel.put(&mut header, inner.len(), 5).unwrap();
        let mut frame = [&header[..], &inner].concat();
        frame[UDP_AT + 6] = 0;
        let Opening::Inner { mark, at, .. } = open(&frame, FAR) else {
            panic!("not opened")
        };
        assert!(mark.is_looking() && mark.came_back().is_none());
        turn_back(&mut frame, &at);
        assert_eq!(open(&frame, FAR), Opening::Other);
        let Opening::Inner {
            from,
            network,
            at,
            mark,
        } = open(&frame, NEAR)
        else {
            panic!("not opened")
        };
        assert_eq!((from, network, mark.came_back()), (FAR, 7, Some(3)));
        assert!(!mark.is_looking());
        assert_eq!(&frame[at], &inner[..]);
        assert_eq!(frame[..12], [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
    }

    proptest! {
        #[test]
        fn what_is_put_in_comes_out(bytes in prop::collection::vec(any::<u8>(), 14..200), network in 0..NETWORKS) {
            let frame = wrapped(&bytes, network);
            let Opening::Inner { from, network: found, at, mark: Mark::NONE } = open(&frame, FAR) else {
                panic!("not opened")
            };
            prop_assert_eq!((from, found), (NEAR, network));
            prop_assert_eq!(&frame[at], &bytes[..]);
        }

        #[test]
        fn nothing_random_is_a_fault_of_this_program(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
            let _opened = (open(&bytes, FAR), reply(&bytes, NEAR), question(&bytes, NEAR), flow_hash(&bytes));
        }

        #[test]
        fn both_directions_have_one_hash(src: [u8; 4], dst: [u8; 4], ports: [u16; 2]) {
            let [from, to] = [(src, ports[0]), (dst, ports[1])].map(|(ip, port)| (ip, port).into());
            let frame = |from, to| Frame::udp(from, to, b"x").unwrap().to_vec().unwrap();
            prop_assert_eq!(flow_hash(&frame(from, to)), flow_hash(&frame(to, from)));
        }
    }
}
