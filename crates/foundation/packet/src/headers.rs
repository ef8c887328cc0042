//! Locates the headers of a frame, independent of flows.

use model::DropReason;

/// VLAN tags followed. QinQ has two, and stacking providers three; one more than that.
pub const MAX_VLAN_TAGS: usize = 4;

/// IPv6 extension headers followed. RFC 8200 recommends at most six (each once, destination options twice).
/// Eight leaves room and bounds the work per frame.
pub const MAX_EXTENSION_HEADERS: usize = 8;

/// Length of an Ethernet II header without a tag, in bytes.
pub(crate) const ETHERNET_LEN: usize = 14;
/// Length of a VLAN tag, in bytes.
pub(crate) const TAG_LEN: usize = 4;
/// Length of an IPv4 header without options, in bytes.
pub(crate) const IPV4_LEN: usize = 20;
/// Length of an IPv6 header, in bytes.
pub(crate) const IPV6_LEN: usize = 40;

/// Known EtherTypes.
pub mod ethertype {
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
    /// Customer VLAN tag, IEEE 802.1Q.
    pub const VLAN: u16 = 0x8100;
    /// Service VLAN tag, IEEE 802.1ad.
    pub const SERVICE_VLAN: u16 = 0x88a8;
    /// Outer tag of equipment older than 802.1ad.
    pub const QINQ: u16 = 0x9100;
    /// ARP.
    pub const ARP: u16 = 0x0806;
}

/// IPv6 next-header values that are not transports.
pub(crate) mod next_header {
    pub(crate) const HOP_BY_HOP: u8 = 0;
    pub(crate) const ROUTING: u8 = 43;
    pub(crate) const FRAGMENT: u8 = 44;
    pub(crate) const AUTHENTICATION: u8 = 51;
    pub(crate) const DESTINATION_OPTIONS: u8 = 60;
}

/// The Ethernet header and its tags.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkHeader {
    pub(crate) ethertype: u16,
    /// Offset of layer 3.
    pub(crate) offset: usize,
    /// Outermost VLAN id, 0 without a tag or with a priority tag.
    pub(crate) vlan: u16,
}

/// Reads the Ethernet header and at most [`MAX_VLAN_TAGS`] tags.
pub(crate) fn link(frame: &[u8]) -> Result<LinkHeader, DropReason> {
    let mut ethertype = be16(frame, 12).ok_or(DropReason::Malformed)?;
    let mut offset = ETHERNET_LEN;
    let mut vlan = 0;
    let mut tags = 0;
    while matches!(
        ethertype,
        ethertype::VLAN | ethertype::SERVICE_VLAN | ethertype::QINQ
    ) {
        if tags == MAX_VLAN_TAGS {
            return Err(DropReason::HeaderLimit);
        }
        let tag = frame
            .get(offset..)
            .and_then(<[u8]>::first_chunk::<TAG_LEN>)
            .ok_or(DropReason::Malformed)?;
        if tags == 0 {
            vlan = u16::from_be_bytes([tag[0], tag[1]]) & 0x0fff;
        }
        ethertype = u16::from_be_bytes([tag[2], tag[3]]);
        offset += TAG_LEN;
        tags += 1;
    }
    Ok(LinkHeader {
        ethertype,
        offset,
        vlan,
    })
}

/// The fields of a Fragment header or of IPv4's fragmentation words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FragmentFields {
    pub(crate) identification: u32,
    /// In units of 8 bytes.
    pub(crate) offset: u16,
    pub(crate) more: bool,
}

impl FragmentFields {
    /// Whether the packet is unfragmented: an IPv6 "atomic fragment" (RFC 6946), or an ordinary IPv4 packet.
    pub(crate) fn is_whole(&self) -> bool {
        self.offset == 0 && !self.more
    }
}

/// An IPv4 header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ipv4 {
    pub(crate) header_len: usize,
    pub(crate) total_len: usize,
    pub(crate) dscp: u8,
    pub(crate) protocol: u8,
    pub(crate) src: u32,
    pub(crate) dst: u32,
    pub(crate) fragment: FragmentFields,
}

/// Reads an IPv4 header with its options. Does not check the total length or the checksum: in a header quoted
/// by an ICMP error neither has to be valid.
pub(crate) fn ipv4(packet: &[u8]) -> Result<Ipv4, DropReason> {
    let h = packet.first_chunk::<IPV4_LEN>().ok_or(DropReason::Malformed)?;
    let header_len = usize::from(h[0] & 0x0f) * 4;
    if h[0] >> 4 != 4 || header_len < IPV4_LEN || header_len > packet.len() {
        return Err(DropReason::Malformed);
    }
    let fragment = u16::from_be_bytes([h[6], h[7]]);
    Ok(Ipv4 {
        header_len,
        total_len: usize::from(u16::from_be_bytes([h[2], h[3]])),
        dscp: h[1] >> 2,
        protocol: h[9],
        src: u32::from_be_bytes([h[12], h[13], h[14], h[15]]),
        dst: u32::from_be_bytes([h[16], h[17], h[18], h[19]]),
        fragment: FragmentFields {
            identification: u32::from(u16::from_be_bytes([h[4], h[5]])),
            offset: fragment & 0x1fff,
            more: fragment & 0x2000 != 0,
        },
    })
}

/// An IPv6 header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ipv6<'a> {
    pub(crate) payload_len: usize,
    pub(crate) dscp: u8,
    pub(crate) next: u8,
    pub(crate) src: &'a [u8; 16],
    pub(crate) dst: &'a [u8; 16],
}

/// Reads an IPv6 header.
pub(crate) fn ipv6(packet: &[u8]) -> Result<Ipv6<'_>, DropReason> {
    let h = packet.first_chunk::<IPV6_LEN>().ok_or(DropReason::Malformed)?;
    if h[0] >> 4 != 6 {
        return Err(DropReason::Malformed);
    }
    let (Some(src), Some(dst)) = (h[8..].first_chunk(), h[24..].first_chunk()) else {
        return Err(DropReason::Malformed);
    };
    Ok(Ipv6 {
        payload_len: usize::from(u16::from_be_bytes([h[4], h[5]])),
        dscp: (h[0] & 0x0f) << 2 | h[1] >> 6,
        next: h[6],
        src,
        dst,
    })
}

/// The result of following the extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chain {
    /// The transport; for a later fragment, the first header of the fragmentable part.
    pub(crate) protocol: u8,
    /// Its offset from the first extension header.
    pub(crate) offset: usize,
    /// Offset of the fragmentable part: after the Fragment header, if any.
    pub(crate) fragmentable: usize,
    /// The Fragment header, if any.
    pub(crate) fragment: Option<FragmentFields>,
}

/// Why a header chain is unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChainEnd {
    /// The packet ends within the chain.
    Truncated {
        /// A Fragment header with offset 0 and "more fragments" came before.
        in_first_fragment: bool,
    },
    /// More than [`MAX_EXTENSION_HEADERS`].
    Limit,
    /// Hop-by-hop options that are not first, a second Fragment header, or a header shorter than its minimum.
    Inconsistent,
}

/// Follows IPv6 extension headers to the transport, or to the data of a later fragment. `bytes` start at the
/// header numbered `next`.
pub(crate) fn chain_v6(bytes: &[u8], next: u8) -> Result<Chain, ChainEnd> {
    chain(bytes, next, true)
}

/// The same for IPv4, where only the Authentication header chains to another one.
pub(crate) fn chain_v4(bytes: &[u8], next: u8) -> Result<Chain, ChainEnd> {
    chain(bytes, next, false)
}

#[inline(always)]
fn chain(bytes: &[u8], next: u8, is_v6: bool) -> Result<Chain, ChainEnd> {
    let mut next = next;
    let mut offset = 0;
    let mut fragment: Option<FragmentFields> = None;
    let mut fragmentable = 0;
    let mut followed = 0;
    loop {
        let leads_on = match next {
            next_header::AUTHENTICATION => true,
            next_header::HOP_BY_HOP
            | next_header::ROUTING
            | next_header::DESTINATION_OPTIONS
            | next_header::FRAGMENT => is_v6,
            _ => false,
        };
        if !leads_on {
            return Ok(Chain {
                protocol: next,
                offset,
                fragmentable,
                fragment,
            });
        }
        let is_out_of_place = match next {
            next_header::HOP_BY_HOP => offset > 0,
            next_header::FRAGMENT => fragment.is_some(),
            _ => false,
        };
        if is_out_of_place {
            return Err(ChainEnd::Inconsistent);
        }
        let truncated = ChainEnd::Truncated {
            in_first_fragment: fragment.is_some_and(|f| !f.is_whole()),
        };
        if followed == MAX_EXTENSION_HEADERS {
            return Err(ChainEnd::Limit);
        }
        followed += 1;
        // Each is at least 8 bytes long and starts with the next header and its own length.
        let h = bytes
            .get(offset..)
            .and_then(<[u8]>::first_chunk::<8>)
            .ok_or(truncated)?;
        let (len, shortest) = match next {
            next_header::FRAGMENT => {
                let word = u16::from_be_bytes([h[2], h[3]]);
                let fields = FragmentFields {
                    identification: u32::from_be_bytes([h[4], h[5], h[6], h[7]]),
                    offset: word >> 3,
                    more: word & 1 != 0,
                };
                if fields.offset != 0 {
                    return Ok(Chain {
                        protocol: h[0],
                        offset: offset + 8,
                        fragmentable: offset + 8,
                        fragment: Some(fields),
                    });
                }
                fragment = Some(fields);
                fragmentable = offset + 8;
                (8, 8)
            }
            // RFC 4302: in words of 4 bytes, minus 2; three words precede its check value. The others count
            // words of 8 bytes, without the first.
            next_header::AUTHENTICATION => ((usize::from(h[1]) + 2) * 4, 12),
            _ => ((usize::from(h[1]) + 1) * 8, 8),
        };
        if len < shortest {
            return Err(ChainEnd::Inconsistent);
        }
        if offset + len > bytes.len() {
            return Err(truncated);
        }
        next = h[0];
        offset += len;
    }
}

/// The length in a Jumbo Payload option (RFC 2675), in bytes without the IPv6 header. `options` is the
/// payload of an IPv6 packet with payload length 0 and next header hop-by-hop.
pub(crate) fn jumbo_payload_len(options: &[u8]) -> Option<usize> {
    const PAD1: u8 = 0;
    const JUMBO: u8 = 0xc2;
    let len = (usize::from(*options.get(1)?) + 1) * 8;
    let mut rest = options.get(2..len)?;
    while let [kind, tail @ ..] = rest {
        if *kind == PAD1 {
            rest = tail;
            continue;
        }
        let (&data_len, data) = tail.split_first()?;
        if *kind == JUMBO && data_len == 4 {
            let announced = u32::from_be_bytes(*data.first_chunk::<4>()?) as usize;
            return (announced > usize::from(u16::MAX)).then_some(announced);
        }
        rest = data.get(usize::from(data_len)..)?;
    }
    None
}

/// The big-endian 16 bits at `offset`.
pub(crate) fn be16(bytes: &[u8], offset: usize) -> Option<u16> {
    let b = bytes.get(offset..)?.first_chunk::<2>()?;
    Some(u16::from_be_bytes(*b))
}
