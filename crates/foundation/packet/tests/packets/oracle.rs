//! etherparse's result for a frame, in the model's types, and the permitted differences from ours.

use std::net::IpAddr;

use etherparse::{
    Ipv6ExtensionSlice, LaxNetSlice, LaxSlicedPacket, LinkExtSlice, NetSlice, SlicedPacket, TransportSlice,
};
use model::{DropReason, FlowKey, Tuple, protocol};
use packet::{Parsed, parse};

/// The classification of a frame, for statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    Flow,
    IcmpError,
    FirstFragment,
    LaterFragment,
    Other,
    Invalid,
    BadChecksum,
    /// Rejected by us for a reason that etherparse does not check, or followed further by us.
    Stricter,
    Laxer,
}

struct Theirs {
    vlan: u16,
    tags: usize,
    ip: Option<TheirIp>,
}

struct TheirIp {
    src: IpAddr,
    dst: IpAddr,
    /// As the header says.
    is_checksum_right: bool,
    v6_payload_len_is_zero: bool,
    dscp: u8,
    number: u8,
    payload: Vec<u8>,
    l3_len: usize,
    /// Identification, offset in units of 8 bytes, more.
    fragment: Option<(u32, u16, bool)>,
    /// etherparse accepts several.
    fragment_headers: usize,
    transport: Option<TheirTransport>,
}

enum TheirTransport {
    Ports(u16, u16, Option<u8>),
    Icmp(u8, [u8; 4], Vec<u8>),
}

fn theirs(frame: &[u8]) -> Option<Theirs> {
    let sliced = SlicedPacket::from_ethernet(frame).ok()?;
    let vlan = match sliced.link_exts.first() {
        Some(LinkExtSlice::Vlan(tag)) => tag.vlan_identifier().value(),
        _ => 0,
    };
    let transport = match &sliced.transport {
        Some(TransportSlice::Udp(udp)) => Some(TheirTransport::Ports(
            udp.source_port(),
            udp.destination_port(),
            None,
        )),
        Some(TransportSlice::Tcp(tcp)) => Some(TheirTransport::Ports(
            tcp.source_port(),
            tcp.destination_port(),
            Some(tcp.slice()[13]),
        )),
        Some(TransportSlice::Icmpv4(icmp)) => Some(TheirTransport::Icmp(
            icmp.type_u8(),
            icmp.bytes5to8(),
            icmp.slice()[8..].to_vec(),
        )),
        Some(TransportSlice::Icmpv6(icmp)) => Some(TheirTransport::Icmp(
            icmp.type_u8(),
            icmp.bytes5to8(),
            icmp.slice()[8..].to_vec(),
        )),
        _ => None,
    };
    let ip = match &sliced.net {
        Some(NetSlice::Ipv4(v4)) => {
            let header = v4.header();
            Some(TheirIp {
                src: header.source_addr().into(),
                dst: header.destination_addr().into(),
                is_checksum_right: is_checksum_right(header.slice()),
                v6_payload_len_is_zero: false,
                dscp: header.dcp().value(),
                number: v4.payload().ip_number.0,
                payload: v4.payload().payload.to_vec(),
                l3_len: header.total_len().into(),
                fragment: header.is_fragmenting_payload().then(|| {
                    (
                        header.identification().into(),
                        header.fragments_offset().value(),
                        header.more_fragments(),
                    )
                }),
                fragment_headers: 0,
                transport,
            })
        }
        Some(NetSlice::Ipv6(v6)) => {
            let header = v6.header();
            let fragment = v6
                .extensions()
                .clone()
                .into_iter()
                .find_map(|extension| match extension {
                    Ipv6ExtensionSlice::Fragment(f) if f.is_fragmenting_payload() => Some((
                        f.identification(),
                        f.fragment_offset().value(),
                        f.more_fragments(),
                    )),
                    _ => None,
                });
            Some(TheirIp {
                src: header.source_addr().into(),
                dst: header.destination_addr().into(),
                is_checksum_right: true,
                v6_payload_len_is_zero: header.payload_length() == 0,
                dscp: header.traffic_class() >> 2,
                number: v6.payload().ip_number.0,
                payload: v6.payload().payload.to_vec(),
                l3_len: 40 + usize::from(header.payload_length()),
                fragment,
                fragment_headers: v6
                    .extensions()
                    .clone()
                    .into_iter()
                    .filter(|extension| matches!(extension, Ipv6ExtensionSlice::Fragment(_)))
                    .count(),
                transport,
            })
        }
        _ => None,
    };
    Some(Theirs {
        vlan,
        tags: sliced.link_exts.len(),
        ip,
    })
}

/// The flow of the packet that an ICMP error quotes.
fn quoted(bytes: &[u8], vlan: u16) -> Option<Tuple> {
    let sliced = LaxSlicedPacket::from_ip(bytes).ok()?;
    let (src, dst, number, payload, is_later): (IpAddr, IpAddr, u8, &[u8], bool) =
        match sliced.net.as_ref()? {
            LaxNetSlice::Ipv4(v4) => (
                v4.header().source_addr().into(),
                v4.header().destination_addr().into(),
                v4.payload().ip_number.0,
                v4.payload().payload,
                v4.header().fragments_offset().value() > 0,
            ),
            LaxNetSlice::Ipv6(v6) => {
                let (src, dst) = (
                    v6.header().source_addr().into(),
                    v6.header().destination_addr().into(),
                );
                // etherparse follows the headers into the data of a later fragment, and its iterator over
                // truncated headers reads out of bounds (0.21).
                let later = quoted_later_fragment(bytes)?;
                let number = later.unwrap_or(v6.payload().ip_number.0);
                (src, dst, number, v6.payload().payload, later.is_some())
            }
            LaxNetSlice::Arp(_) => return None,
        };
    let leads_on = number == 51 || (src.is_ipv6() && matches!(number, 0 | 43 | 44 | 60));
    if leads_on && !is_later {
        return None; // it stopped within the headers
    }
    let has_ports = matches!(number, protocol::TCP | protocol::UDP | protocol::SCTP);
    let (src_port, dst_port) = match payload {
        _ if is_later => (0, 0),
        [a, b, c, d, _, _, _, _, ..] if has_ports => {
            (u16::from_be_bytes([*a, *b]), u16::from_be_bytes([*c, *d]))
        }
        [8 | 0 | 128 | 129, _, _, _, a, b, _, _, ..] if is_icmp_of(number, src) => {
            let is_echo = matches!(
                (number, payload[0]),
                (protocol::ICMP, 8 | 0) | (protocol::ICMPV6, 128 | 129)
            );
            let identifier = if is_echo { u16::from_be_bytes([*a, *b]) } else { 0 };
            (identifier, identifier)
        }
        [_, _, _, _, _, _, _, _, ..] => (0, 0),
        _ if has_ports || is_icmp_of(number, src) => return None,
        _ => (0, 0),
    };
    Some(Tuple {
        src,
        dst,
        src_port,
        dst_port,
        protocol: number,
        vlan,
    })
}

/// etherparse's own sum leaves out the reserved flag. A checksum of 0 means checksum offload to us.
fn is_checksum_right(header: &[u8]) -> bool {
    let words = header.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1]));
    header[10..12] == [0, 0] || words.sum::<u32>() % 0xffff == 0
}

/// The first header of a quoted later IPv6 fragment. `None` if there are several Fragment headers: etherparse
/// follows them, we do not.
fn quoted_later_fragment(packet: &[u8]) -> Option<Option<u8>> {
    let (mut next, mut rest) = (packet[6], &packet[40..]);
    let mut is_fragment = false;
    while let Some(h) = rest.first_chunk::<8>() {
        let len = match next {
            0 if rest.len() + 40 < packet.len() => break,
            0 | 43 | 60 => 8 + 8 * usize::from(h[1]),
            51 => 8 + 4 * usize::from(h[1]),
            44 if is_fragment => return None,
            44 if h[2] > 0 || h[3] > 7 => return Some(Some(h[0])),
            44 => 8,
            _ => break,
        };
        is_fragment |= next == 44;
        let Some(behind) = rest.get(len..) else { break };
        (next, rest) = (h[0], behind);
    }
    Some(None)
}

/// The length of a quoted packet, as its header says.
fn quoted_len(packet: &[u8]) -> usize {
    let field = |at: usize| usize::from(packet[at]) << 8 | usize::from(packet[at + 1]);
    if packet[0] >> 4 == 4 {
        field(2)
    } else {
        40 + field(4)
    }
}

fn is_icmp_of(number: u8, address: IpAddr) -> bool {
    number
        == if address.is_ipv4() {
            protocol::ICMP
        } else {
            protocol::ICMPV6
        }
}

/// Compares both results. `Err` describes an unexplained difference.
pub(crate) fn compare(frame: &[u8]) -> Result<Kind, String> {
    let ours = parse(frame);
    let disagree = |why: &str| Err(format!("{why}: ours is {ours:?} of {frame:02x?}"));
    let Some(theirs) = theirs(frame) else {
        return match ours {
            Parsed::Invalid(DropReason::BadChecksum) => Ok(Kind::BadChecksum),
            Parsed::Invalid(_) => Ok(Kind::Invalid),
            // etherparse checks the contents of ARP, MACsec, IGMP and ICMP timestamps. It checks ICMP of
            // either version in either family. It reads the data of a later fragment as extension headers.
            Parsed::Other { .. } => Ok(Kind::Laxer),
            Parsed::Flow(info) if matches!(info.protocol, 1 | 2 | 58) => Ok(Kind::Laxer),
            Parsed::Fragment(fragment) if fragment.offset > 0 && matches!(fragment.protocol, 0 | 51) => {
                Ok(Kind::Laxer)
            }
            _ => disagree("etherparse rejects it"),
        };
    };
    let Some(ip) = theirs.ip else {
        return match ours {
            Parsed::Other { .. } => Ok(Kind::Other),
            // With three tags etherparse does not look further.
            _ if theirs.tags == 3 => Ok(Kind::Laxer),
            _ => disagree("etherparse finds no IP"),
        };
    };
    let (src_port, dst_port, flags, icmp) = match &ip.transport {
        Some(TheirTransport::Ports(src, dst, flags)) => (*src, *dst, *flags, None),
        Some(TheirTransport::Icmp(kind, word, body)) if is_icmp_of(ip.number, ip.src) => {
            let is_echo = matches!((ip.number, kind), (1, 0 | 8) | (58, 128 | 129));
            let identifier = if is_echo {
                u16::from_be_bytes([word[0], word[1]])
            } else {
                0
            };
            let is_error = matches!((ip.number, kind), (1, 3 | 4 | 5 | 11 | 12) | (58, 1..=4));
            (identifier, identifier, None, is_error.then_some(body))
        }
        // etherparse does not parse SCTP, nor any transport of a fragment.
        _ => match ip.payload.first_chunk::<4>() {
            Some(p) if ip.number == protocol::SCTP && ip.fragment.is_none() => (
                u16::from_be_bytes([p[0], p[1]]),
                u16::from_be_bytes([p[2], p[3]]),
                None,
                None,
            ),
            _ => (0, 0, None, None),
        },
    };
    let tuple = Tuple {
        src: ip.src,
        dst: ip.dst,
        src_port,
        dst_port,
        protocol: ip.number,
        vlan: theirs.vlan,
    };
    // In IPv4 etherparse follows one Authentication header and not the next.
    if ip.number == 51 && ip.fragment.is_none() && !matches!(ours, Parsed::Other { .. }) {
        return Ok(Kind::Laxer);
    }
    match ours {
        Parsed::Invalid(DropReason::BadChecksum) if !ip.is_checksum_right => Ok(Kind::BadChecksum),
        Parsed::Invalid(DropReason::HeaderLimit) => Ok(Kind::Stricter),
        Parsed::Invalid(DropReason::FragmentInvalid) if ip.fragment.is_some() => Ok(Kind::Stricter),
        Parsed::Invalid(DropReason::Malformed) => {
            let udp_len_is_zero = ip.number == protocol::UDP && ip.payload.get(4..6) == Some(&[0, 0]);
            let sctp_is_short = ip.number == protocol::SCTP && ip.payload.len() < 12;
            let quote_is_short =
                icmp.is_some_and(|body| quoted(body, 0).is_none_or(|q| q.src.is_ipv4() != ip.src.is_ipv4()));
            if udp_len_is_zero
                || sctp_is_short
                || quote_is_short
                || ip.v6_payload_len_is_zero
                || ip.fragment_headers > 1
            {
                Ok(Kind::Stricter)
            } else {
                disagree("etherparse accepts it")
            }
        }
        Parsed::Flow(info) if ip.is_checksum_right => {
            let their_fragment = ip.fragment.is_some();
            let (expected, kind) = match icmp {
                Some(body) => {
                    let quoted = quoted(body, theirs.vlan).map(|tuple| FlowKey::new(&tuple));
                    // etherparse ends a quoted packet at its declared length. We read the ports regardless:
                    // some routers quote a length that they have already changed.
                    if quoted != Some((info.key, info.direction.flipped())) && quoted_len(body) < body.len() {
                        return Ok(Kind::Laxer);
                    }
                    let Some((key, direction)) = quoted else {
                        return disagree("etherparse finds no quoted packet");
                    };
                    ((key, direction.flipped()), Kind::IcmpError)
                }
                None => (FlowKey::new(&tuple), Kind::Flow),
            };
            if their_fragment && (!ip.src.is_ipv4() || matches!(ip.number, 1 | 6 | 17 | 132)) {
                return disagree("etherparse takes it as a fragment");
            }
            if (info.key, info.direction) != expected {
                return disagree(&format!("its flow is {expected:?}"));
            }
            let same = info.tcp_flags.0 == flags.unwrap_or(0)
                && info.is_icmp_error == icmp.is_some()
                && info.protocol == ip.number
                && info.dscp == ip.dscp
                && info.vlan == theirs.vlan
                && info.l3_len as usize == ip.l3_len
                && info.frame_len as usize == frame.len()
                && frame[info.l4_offset as usize..].starts_with(&ip.payload);
            if same {
                Ok(kind)
            } else {
                disagree("a field differs")
            }
        }
        Parsed::Fragment(fragment) if ip.is_checksum_right => {
            let Some((identification, offset, more)) = ip.fragment else {
                return disagree("etherparse takes it as whole");
            };
            let (src_port, dst_port) = match (ip.payload.get(..8), ip.number) {
                (Some(p), 6 | 17 | 132) if offset == 0 => {
                    (u16::from_be_bytes([p[0], p[1]]), u16::from_be_bytes([p[2], p[3]]))
                }
                (Some(p), 1) if offset == 0 && ip.src.is_ipv4() && matches!(p[0], 0 | 8) => {
                    (u16::from_be_bytes([p[4], p[5]]), u16::from_be_bytes([p[4], p[5]]))
                }
                (Some(p), 58) if offset == 0 && ip.src.is_ipv6() && matches!(p[0], 128 | 129) => {
                    (u16::from_be_bytes([p[4], p[5]]), u16::from_be_bytes([p[4], p[5]]))
                }
                _ => (0, 0),
            };
            let info = fragment.info;
            // For a later fragment etherparse reads the data as headers if they look like some.
            let number = if offset == 0 { ip.number } else { info.protocol };
            let expected = FlowKey::new(&Tuple {
                src_port,
                dst_port,
                protocol: number,
                ..tuple
            });
            let is_same_data = offset > 0 || frame[info.l4_offset as usize..].starts_with(&ip.payload);
            let same = (fragment.identification, fragment.offset, fragment.more)
                == (identification, offset, more)
                && (info.key, info.direction) == expected
                && info.l3_len as usize == ip.l3_len
                && is_same_data;
            let kind = if offset == 0 {
                Kind::FirstFragment
            } else {
                Kind::LaterFragment
            };
            if same {
                Ok(kind)
            } else {
                disagree(&format!("its fragment is {expected:?}"))
            }
        }
        _ => disagree("they differ"),
    }
}
