//! Parses a frame into its flow.

use model::{Direction, DropReason, FlowKey, FlowKeyV4, FlowKeyV6, protocol};

use crate::checksum;
use crate::headers::{
    self, Chain, ChainEnd, ETHERNET_LEN, FragmentFields, IPV4_LEN, IPV6_LEN, be16, ethertype, next_header,
};

/// Shortest ICMP and ICMPv6 message, in bytes: every defined one has a second word.
const ICMP_LEN: usize = 8;
/// Length of a UDP header, in bytes.
pub(crate) const UDP_LEN: usize = 8;
/// Length of a TCP header without options, in bytes.
pub(crate) const TCP_LEN: usize = 20;
/// Bytes that the fast path reads: up to the end of a TCP header. Frames on a wire have at least 60; a
/// shorter one takes the slow path.
pub(crate) const FAST_PATH_BYTES: usize = ETHERNET_LEN + IPV4_LEN + TCP_LEN;
/// Length of SCTP's common header, in bytes.
const SCTP_LEN: usize = 12;

/// The flags byte of a TCP header; 0 if the packet is not TCP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TcpFlags(pub u8);

impl TcpFlags {
    /// The sender has no more data.
    pub const FIN: u8 = 0x01;
    /// Opens a connection.
    pub const SYN: u8 = 0x02;
    /// Aborts the connection.
    pub const RST: u8 = 0x04;
    /// The acknowledgement number is valid.
    pub const ACK: u8 = 0x10;
    /// The flags that change the state of a connection.
    pub const SYN_FIN_RST: u8 = Self::FIN | Self::SYN | Self::RST;

    /// Whether FIN is set.
    pub const fn fin(self) -> bool {
        self.0 & Self::FIN != 0
    }

    /// Whether SYN is set.
    pub const fn syn(self) -> bool {
        self.0 & Self::SYN != 0
    }

    /// Whether RST is set.
    pub const fn rst(self) -> bool {
        self.0 & Self::RST != 0
    }

    /// Whether ACK is set.
    pub const fn ack(self) -> bool {
        self.0 & Self::ACK != 0
    }
}

/// The metadata of one IP packet.
///
/// A packet's owner depends on the key's two addresses and VLAN only. They are valid in every `PacketInfo`,
/// including a [`Fragment`] with unknown ports and an ICMP error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketInfo {
    /// The flow. For an ICMP echo both ports are the identifier. An ICMP error has the flow that it quotes.
    /// Ports are 0 for protocols without ports, and if an ICMP error quotes a later fragment.
    pub key: FlowKey,
    /// The packet's direction. An error about a `Forward` packet is `Reverse`.
    pub direction: Direction,
    /// The packet's own protocol; for an ICMP error not that of the key. For a later IPv6 fragment it is the
    /// first header of the fragmentable part, not always the transport.
    pub protocol: u8,
    /// Flags of a TCP packet; none for an ICMP error about one, or a later fragment.
    pub tcp_flags: TcpFlags,
    /// Whether this is an ICMP error that quotes the flow. It belongs to the flow but must not create one.
    pub is_icmp_error: bool,
    /// Differentiated services code point, 0 to 63.
    pub dscp: u8,
    /// Outermost VLAN id; 0 if untagged or priority-tagged (id 0).
    pub vlan: u16,
    /// Offset of the IP header in the frame, in bytes.
    pub l3_offset: u16,
    /// Offset of the transport header, or of a later fragment's data.
    pub l4_offset: u16,
    /// Length of the IP packet from its header, in bytes, without padding.
    pub l3_len: u32,
    /// Length of the frame as received, in bytes, without the frame check sequence.
    pub frame_len: u32,
}

/// A fragment of an IPv4 or IPv6 datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// As for an unfragmented packet. The key has the ports in a first fragment; in a later one they are 0.
    pub info: PacketInfo,
    /// The identification, which all fragments of a datagram share.
    pub identification: u32,
    /// The protocol in the IPv4 header. 0 for IPv6, where fragments of one datagram may differ in it (RFC
    /// 8200, 4.5).
    pub protocol: u8,
    /// Offset of its data in the datagram, in units of 8 bytes. 0 in the first fragment.
    pub offset: u16,
    /// Length of its data, in bytes.
    pub len: u16,
    /// The "more fragments" flag.
    pub more: bool,
}

impl Fragment {
    /// Whether this fragment holds the transport header.
    pub const fn is_first(&self) -> bool {
        self.offset == 0
    }
}

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// An IP packet with its flow.
    Flow(PacketInfo),
    /// A fragment; [`crate::FragmentTracker`] finds its flow.
    Fragment(Fragment),
    /// Not IP: ARP, LLDP, PPPoE, MPLS, or an 802.3 frame, whose length is in place of the EtherType.
    Other {
        /// EtherType after the VLAN tags.
        ethertype: u16,
    },
    /// Drop it and count the reason: `Malformed`, `BadChecksum` (of the IPv4 header), `HeaderLimit` or
    /// `FragmentInvalid`.
    Invalid(DropReason),
}

/// Parses a frame. `frame` starts at the destination address and has no frame check sequence; padding after
/// the IP packet is allowed.
///
/// - The IPv4 header checksum is verified. A checksum of 0 passes: the sender left it to its hardware, as in
///   packets captured at their sender or sent over a virtual link. Transport checksums are left to the
///   receiver.
/// - A Routing header does not change the key, which has the destination of the IPv6 header.
/// - ICMP errors are types 3, 4, 5, 11 and 12; ICMPv6 errors are types 1 to 4. The quoted packet may be
///   truncated 8 bytes into its transport. A fragmented ICMP error is a flow of its own without ports (RFC
///   1812 and RFC 4443 keep errors below any sensible MTU).
/// - A first fragment that ends within its header chain or TCP header is `FragmentInvalid` (RFC 7112, RFC
///   1858). So is a fragment whose data exceed the largest datagram.
///
/// Inlined, so that the caller keeps the fields in registers: matching on the result at once costs half of
/// storing it (6.5 and 11 ns, measured with `examples/parse_rate.rs`).
#[inline]
pub fn parse(frame: &[u8]) -> Parsed {
    match fast_info_v4(frame).or_else(|| fast_info_v6(frame)) {
        Some(info) => Parsed::Flow(info),
        None => parse_slow_path(frame),
    }
}

/// The steering fields of a fast-path packet: see [`parse_fast`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastPacket {
    /// The flow.
    pub key: FlowKeyV4,
    /// 0 for [`Direction::Forward`], 1 for [`Direction::Reverse`].
    pub direction: u32,
    /// Flags of a TCP packet; 0 otherwise.
    pub tcp_flags: TcpFlags,
}

/// Fast-path parser: valid UDP or TCP over IPv4 without tags, options or fragments. Returns `None` for every
/// other frame, which then needs [`parse`]. Both agree on fast-path frames. No branch depends on data that
/// varies between ordinary packets (protocol, which endpoint is lower).
#[inline(always)]
pub fn parse_fast(frame: &[u8]) -> Option<FastPacket> {
    let h = frame.first_chunk::<FAST_PATH_BYTES>()?;
    let u16_at = |at: usize| u16::from_be_bytes([h[at], h[at + 1]]);
    let u32_at = |at: usize| u32::from_le_bytes([h[at], h[at + 1], h[at + 2], h[at + 3]]);
    let u64_at = |at: usize| {
        u64::from_le_bytes([
            h[at],
            h[at + 1],
            h[at + 2],
            h[at + 3],
            h[at + 4],
            h[at + 5],
            h[at + 6],
            h[at + 7],
        ])
    };
    // Version to fragment offset, TTL to source, destination: the words to compare, sum and hash.
    let (first, second, destination) = (u64_at(14), u64_at(22), u32_at(30));
    /// Version and header length; "more fragments" and the fragment's offset.
    const SHAPE_MASK: u64 = 0xff3f_0000_0000_00ff;
    const SHAPE: u64 = 0x45;
    let total_len = u32::from(u16_at(16));
    let has_shape = u16_at(12) == ethertype::IPV4 && first & SHAPE_MASK == SHAPE;
    if !has_shape || total_len as usize + ETHERNET_LEN > frame.len() {
        return None;
    }
    // A valid header sums to a multiple of 65,535 in one's complement, for any word size and byte order; a
    // carry out of 64 bits adds 1. Multiplying by the inverse tests that (Granlund and Montgomery, "Division
    // by invariant integers using multiplication", section 9). A checksum left to hardware takes the slow
    // path.
    const INVERSE: u64 = inverse_of_65535();
    let (sum, carry) = first.overflowing_add(second);
    let (sum, more) = sum.overflowing_add(u64::from(destination) + u64::from(carry));
    let sum = sum.wrapping_add(u64::from(more));
    if sum.wrapping_mul(INVERSE) > u64::MAX / 65_535 {
        return None;
    }
    let protocol = h[23];
    let is_udp = protocol == protocol::UDP;
    let is_tcp = protocol == protocol::TCP;
    let (transport_len, shortest) = if is_udp {
        (u32::from(u16_at(38)), UDP_LEN as u32)
    } else {
        (u32::from(h[46] >> 4) * 4, TCP_LEN as u32)
    };
    if !(is_udp | is_tcp) || transport_len < shortest || transport_len + IPV4_LEN as u32 > total_len {
        return None;
    }
    let addresses = u64_at(26);
    let ports = u32_at(34);
    // Both endpoints as numbers, to put the lower one first; `ports` has the source in its upper half.
    let swapped = (addresses.swap_bytes(), ports.swap_bytes());
    let src = swapped.0 >> 32 << 16 | u64::from(swapped.1 >> 16);
    let dst = (swapped.0 << 32 >> 16) | u64::from(swapped.1 & 0xffff);
    let is_reverse = src > dst;
    let (ends, ports) = if is_reverse {
        (addresses.rotate_left(32), swapped.1)
    } else {
        (addresses, swapped.1.rotate_left(16))
    };
    let tcp_flags = if is_tcp { h[47] } else { 0 };
    Some(FastPacket {
        key: FlowKeyV4 {
            a: (ends as u32).to_le_bytes(),
            b: ((ends >> 32) as u32).to_le_bytes(),
            a_port: ports as u16,
            b_port: (ports >> 16) as u16,
            vlan: 0,
            protocol,
            zero: 0,
        },
        direction: u32::from(is_reverse),
        tcp_flags: TcpFlags(tcp_flags),
    })
}

/// The multiplicative inverse of 65,535 modulo 2^64.
const fn inverse_of_65535() -> u64 {
    let mut inverse = 1_u64;
    let mut step = 0;
    // Each Newton step doubles the correct bits, starting from one.
    while step < 6 {
        inverse = inverse.wrapping_mul(2_u64.wrapping_sub(65_535_u64.wrapping_mul(inverse)));
        step += 1;
    }
    inverse
}

/// [`parse_fast`] with all fields of [`PacketInfo`].
#[inline(always)]
fn fast_info_v4(frame: &[u8]) -> Option<PacketInfo> {
    let fast = parse_fast(frame)?;
    let h = frame.first_chunk::<{ ETHERNET_LEN + IPV4_LEN }>()?;
    Some(PacketInfo {
        key: FlowKey::V4(fast.key),
        direction: if fast.direction == 0 {
            Direction::Forward
        } else {
            Direction::Reverse
        },
        protocol: fast.key.protocol,
        tcp_flags: fast.tcp_flags,
        is_icmp_error: false,
        dscp: h[15] >> 2,
        vlan: 0,
        l3_offset: ETHERNET_LEN as u16,
        l4_offset: (ETHERNET_LEN + IPV4_LEN) as u16,
        l3_len: u32::from(u16::from_be_bytes([h[16], h[17]])),
        frame_len: frame_len(frame),
    })
}

/// What steering needs of a fast-path eligible IPv6 packet: see [`parse_fast_v6`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastPacketV6 {
    /// [`FlowKeyV6::a`] and [`FlowKeyV6::b`], eight bytes in a word, the first one in its lowest bits.
    pub addresses: [u64; 4],
    /// [`FlowKeyV6::a_port`] in the lower half, [`FlowKeyV6::b_port`] in the upper one.
    pub ports: u32,
    /// UDP or TCP.
    pub protocol: u8,
    /// Whether the packet travels [`Direction::Reverse`].
    pub is_reverse: bool,
    /// Flags of a TCP packet, else none.
    pub tcp_flags: TcpFlags,
}

impl FastPacketV6 {
    /// The flow.
    pub fn key(&self) -> FlowKeyV6 {
        let [a0, a1, b0, b1] = self.addresses.map(u128::from);
        FlowKeyV6 {
            a: (a0 | a1 << 64).to_le_bytes(),
            b: (b0 | b1 << 64).to_le_bytes(),
            a_port: self.ports as u16,
            b_port: (self.ports >> 16) as u16,
            vlan: 0,
            protocol: self.protocol,
            zero: 0,
        }
    }
}

/// Fast-path parser for valid UDP or TCP over IPv6 without tags or extension headers. [`None`] sends the frame to the
/// slow path, [`parse`], which says the same of frames that this one takes.
#[inline(always)]
pub fn parse_fast_v6(frame: &[u8]) -> Option<FastPacketV6> {
    const TRANSPORT: usize = ETHERNET_LEN + IPV6_LEN;
    /// Data offset and flags of a TCP header.
    const TCP_OFFSET: usize = TRANSPORT + 12;
    /// EtherType and version.
    const SHAPE: u32 = 0x0060_dd86;
    const SHAPE_MASK: u32 = 0x00f0_ffff;
    let h = frame.first_chunk::<{ TRANSPORT + UDP_LEN }>()?;
    let u16_at = |at: usize| u32::from(u16::from_be_bytes([h[at], h[at + 1]]));
    let u32_at = |at: usize| u32::from_le_bytes([h[at], h[at + 1], h[at + 2], h[at + 3]]);
    let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
    let payload_len = u16_at(18);
    if u32_at(12) & SHAPE_MASK != SHAPE || TRANSPORT + payload_len as usize > frame.len() {
        return None;
    }
    let protocol = h[20];
    let (transport_len, shortest, tcp_flags) = if protocol == protocol::UDP {
        (u16_at(TRANSPORT + 4), UDP_LEN, 0)
    } else if protocol == protocol::TCP {
        let &[offset, flags] = frame.get(TCP_OFFSET..)?.first_chunk()?;
        (u32::from(offset >> 4) * 4, TCP_LEN, flags)
    } else {
        return None;
    };
    if transport_len < shortest as u32 || transport_len > payload_len {
        return None;
    }
    let (src, dst) = ([u64_at(22), u64_at(30)], [u64_at(38), u64_at(46)]);
    // As numbers, so that the lower end comes first; of `ports` the source's are in the upper half.
    let ports = u32_at(TRANSPORT).swap_bytes();
    let (src_number, dst_number) = (src.map(u64::swap_bytes), dst.map(u64::swap_bytes));
    let is_reverse = (src_number, ports >> 16) > (dst_number, ports & 0xffff);
    let (addresses, ports) = if is_reverse {
        ([dst[0], dst[1], src[0], src[1]], ports)
    } else {
        ([src[0], src[1], dst[0], dst[1]], ports.rotate_left(16))
    };
    Some(FastPacketV6 {
        addresses,
        ports,
        protocol,
        is_reverse,
        tcp_flags: TcpFlags(tcp_flags),
    })
}

/// [`parse_fast_v6`] with all fields of [`PacketInfo`].
#[inline]
fn fast_info_v6(frame: &[u8]) -> Option<PacketInfo> {
    let fast = parse_fast_v6(frame)?;
    let h = frame.first_chunk::<{ ETHERNET_LEN + IPV6_LEN }>()?;
    Some(PacketInfo {
        key: FlowKey::V6(fast.key()),
        direction: if fast.is_reverse {
            Direction::Reverse
        } else {
            Direction::Forward
        },
        protocol: fast.protocol,
        tcp_flags: fast.tcp_flags,
        is_icmp_error: false,
        dscp: (h[14] & 0x0f) << 2 | h[15] >> 6,
        vlan: 0,
        l3_offset: ETHERNET_LEN as u16,
        l4_offset: (ETHERNET_LEN + IPV6_LEN) as u16,
        l3_len: IPV6_LEN as u32 + u32::from(u16::from_be_bytes([h[18], h[19]])),
        frame_len: frame_len(frame),
    })
}

/// Slow-path parser for every frame.
#[inline(never)]
fn parse_slow_path(frame: &[u8]) -> Parsed {
    match headers::link(frame) {
        Ok(link) => parse_ip(frame, link),
        Err(reason) => Parsed::Invalid(reason),
    }
}

/// Parses what is behind that link header.
pub(crate) fn parse_ip(frame: &[u8], link: headers::LinkHeader) -> Parsed {
    let parsed = match link.ethertype {
        ethertype::IPV4 => parse_v4(frame, link),
        ethertype::IPV6 => parse_v6(frame, link),
        ethertype => Ok(Parsed::Other { ethertype }),
    };
    match parsed {
        Ok(parsed) => parsed,
        Err(reason) => Parsed::Invalid(reason),
    }
}

fn parse_v4(frame: &[u8], link: headers::LinkHeader) -> Result<Parsed, DropReason> {
    let packet = frame.get(link.offset..).ok_or(DropReason::Malformed)?;
    let ip = headers::ipv4(packet)?;
    if ip.total_len < ip.header_len {
        return Err(DropReason::Malformed);
    }
    let (header, payload) = packet
        .get(..ip.total_len)
        .and_then(|packet| packet.split_at_checked(ip.header_len))
        .ok_or(DropReason::Malformed)?;
    if checksum::sum(header) != 0xffff && header[10..12] != [0, 0] {
        return Err(DropReason::BadChecksum);
    }
    // Of all IPv4 protocols only the Authentication header chains to another one.
    let chain = if ip.fragment.offset == 0 {
        headers::chain_v4(payload, ip.protocol).map_err(|end| chain_error(end, !ip.fragment.is_whole()))?
    } else {
        Chain {
            protocol: ip.protocol,
            offset: 0,
            fragmentable: 0,
            fragment: None,
        }
    };
    let addresses = Addresses {
        src: ip.src,
        dst: ip.dst,
    };
    finish(
        frame,
        link,
        Network {
            addresses,
            dscp: ip.dscp,
            l3_len: ip.total_len,
            headers_len: ip.header_len,
            payload,
            datagram_protocol: ip.protocol,
            needs_first_fragment: has_ports::<u32>(ip.protocol),
        },
        Chain {
            fragment: Some(ip.fragment),
            ..chain
        },
    )
}

fn parse_v6(frame: &[u8], link: headers::LinkHeader) -> Result<Parsed, DropReason> {
    let packet = frame.get(link.offset..).ok_or(DropReason::Malformed)?;
    let ip = headers::ipv6(packet)?;
    let payload_len = if ip.payload_len == 0 && ip.next == next_header::HOP_BY_HOP {
        headers::jumbo_payload_len(&packet[IPV6_LEN..]).ok_or(DropReason::Malformed)?
    } else {
        ip.payload_len
    };
    let payload = packet[IPV6_LEN..]
        .get(..payload_len)
        .ok_or(DropReason::Malformed)?;
    let chain = headers::chain_v6(payload, ip.next).map_err(|end| chain_error(end, false))?;
    let addresses = Addresses {
        src: *ip.src,
        dst: *ip.dst,
    };
    finish(
        frame,
        link,
        Network {
            addresses,
            dscp: ip.dscp,
            l3_len: IPV6_LEN + payload_len,
            headers_len: IPV6_LEN,
            payload,
            datagram_protocol: 0,
            needs_first_fragment: true,
        },
        chain,
    )
}

fn chain_error(end: ChainEnd, in_first_fragment: bool) -> DropReason {
    match end {
        ChainEnd::Truncated {
            in_first_fragment: in_first,
        } if in_first || in_first_fragment => DropReason::FragmentInvalid,
        ChainEnd::Truncated { .. } | ChainEnd::Inconsistent => DropReason::Malformed,
        ChainEnd::Limit => DropReason::HeaderLimit,
    }
}

/// Chain errors in a packet that an ICMP error quotes. The error itself is not a fragment.
fn quoted_chain_error(end: ChainEnd) -> DropReason {
    match end {
        ChainEnd::Truncated { .. } | ChainEnd::Inconsistent => DropReason::Malformed,
        ChainEnd::Limit => DropReason::HeaderLimit,
    }
}

/// An IP packet with its own header parsed.
struct Network<'a, A> {
    addresses: Addresses<A>,
    dscp: u8,
    l3_len: usize,
    headers_len: usize,
    /// The bytes after the IPv4 header with options, or after the fixed IPv6 header.
    payload: &'a [u8],
    /// See [`Fragment::protocol`].
    datagram_protocol: u8,
    /// Whether a later fragment needs the first one to find its flow. IPv4 names the protocol in every
    /// fragment, which is enough for a protocol without ports.
    needs_first_fragment: bool,
}

/// Builds the flow or the fragment from the header chain.
fn finish<A: Family>(
    frame: &[u8],
    link: headers::LinkHeader,
    network: Network<'_, A>,
    chain: Chain,
) -> Result<Parsed, DropReason> {
    let Network {
        addresses,
        dscp,
        l3_len,
        headers_len,
        payload,
        datagram_protocol,
        needs_first_fragment,
    } = network;
    let data = payload.get(chain.offset..).ok_or(DropReason::Malformed)?;
    let fragment = chain.fragment.filter(|f| !f.is_whole());
    let transport = match fragment {
        None => transport::<A>(chain.protocol, data, link.vlan)?,
        Some(f) if f.offset == 0 => Transport {
            quoted: None,
            ..first_fragment::<A>(chain.protocol, data)?
        },
        Some(_) => Transport::default(),
    };
    let (key, direction) = transport
        .quoted
        .unwrap_or_else(|| A::key(addresses, transport.ports, chain.protocol, link.vlan));
    let info = PacketInfo {
        key,
        direction,
        protocol: chain.protocol,
        tcp_flags: transport.tcp_flags,
        is_icmp_error: transport.quoted.is_some(),
        dscp,
        vlan: link.vlan,
        // Tags, options and extension headers are bounded: at most 14 + 4 * 4 + 40 + 8 * 2048 bytes.
        l3_offset: link.offset as u16,
        l4_offset: (link.offset + headers_len + chain.offset) as u16,
        l3_len: l3_len as u32,
        frame_len: frame_len(frame),
    };
    let Some(f) = fragment else {
        return Ok(Parsed::Flow(info));
    };
    // Extension headers of a first fragment are part of the fragmented data.
    let len = payload.len() - chain.fragmentable;
    check_fragment(f, chain.protocol, len)?;
    if !needs_first_fragment {
        return Ok(Parsed::Flow(info));
    }
    Ok(Parsed::Fragment(Fragment {
        info,
        protocol: datagram_protocol,
        identification: f.identification,
        offset: f.offset,
        len: len as u16,
        more: f.more,
    }))
}

/// Rejects fragments that no sender produces, which only serve to hide a header.
fn check_fragment(f: FragmentFields, protocol: u8, len: usize) -> Result<(), DropReason> {
    let hides_tcp_flags = f.offset == 1 && protocol == protocol::TCP; // RFC 3128
    let end = usize::from(f.offset) * 8 + len;
    if len == 0 || end > usize::from(u16::MAX) || (f.more && !len.is_multiple_of(8)) || hides_tcp_flags {
        return Err(DropReason::FragmentInvalid);
    }
    Ok(())
}

#[derive(Clone, Copy, Default)]
pub(crate) struct Ports {
    src: u16,
    dst: u16,
}

#[derive(Clone, Copy)]
pub(crate) struct Addresses<A> {
    src: A,
    dst: A,
}

/// The address-family specifics above the network header.
pub(crate) trait Family: Copy {
    /// Its ICMP protocol number.
    const ICMP: u8;
    /// Its ICMP echo types: request and reply.
    const ECHO: [u8; 2];
    fn is_icmp_error(kind: u8) -> bool;
    fn key(addresses: Addresses<Self>, ports: Ports, protocol: u8, vlan: u16) -> (FlowKey, Direction);
    /// The flow and direction of the packet that an ICMP error quotes.
    fn quoted(packet: &[u8], vlan: u16) -> Result<(FlowKey, Direction), DropReason>;
}

impl Family for u32 {
    const ICMP: u8 = protocol::ICMP;
    const ECHO: [u8; 2] = [8, 0];

    fn is_icmp_error(kind: u8) -> bool {
        matches!(kind, 3 | 4 | 5 | 11 | 12)
    }

    #[inline(always)]
    fn key(addresses: Addresses<u32>, ports: Ports, protocol: u8, vlan: u16) -> (FlowKey, Direction) {
        key_v4(addresses, ports, protocol, vlan)
    }

    fn quoted(packet: &[u8], vlan: u16) -> Result<(FlowKey, Direction), DropReason> {
        let ip = headers::ipv4(packet)?;
        let addresses = Addresses {
            src: ip.src,
            dst: ip.dst,
        };
        if ip.fragment.offset != 0 {
            return Ok(key_v4(addresses, Ports::default(), ip.protocol, vlan));
        }
        let payload = &packet[ip.header_len..];
        let chain = headers::chain_v4(payload, ip.protocol).map_err(quoted_chain_error)?;
        let ports = quoted_ports::<u32>(chain.protocol, payload.get(chain.offset..))?;
        Ok(key_v4(addresses, ports, chain.protocol, vlan))
    }
}

impl Family for [u8; 16] {
    const ICMP: u8 = protocol::ICMPV6;
    const ECHO: [u8; 2] = [128, 129];

    fn is_icmp_error(kind: u8) -> bool {
        matches!(kind, 1..=4)
    }

    fn key(addresses: Addresses<[u8; 16]>, ports: Ports, protocol: u8, vlan: u16) -> (FlowKey, Direction) {
        let Addresses { src, dst } = addresses;
        let is_reverse = (u128::from_be_bytes(src), ports.src) > (u128::from_be_bytes(dst), ports.dst);
        let (a, a_port, b, b_port, direction) = if is_reverse {
            (dst, ports.dst, src, ports.src, Direction::Reverse)
        } else {
            (src, ports.src, dst, ports.dst, Direction::Forward)
        };
        let key = FlowKeyV6 {
            a,
            b,
            a_port,
            b_port,
            vlan,
            protocol,
            zero: 0,
        };
        (FlowKey::V6(key), direction)
    }

    fn quoted(packet: &[u8], vlan: u16) -> Result<(FlowKey, Direction), DropReason> {
        let ip = headers::ipv6(packet)?;
        let addresses = Addresses {
            src: *ip.src,
            dst: *ip.dst,
        };
        let payload = &packet[IPV6_LEN..];
        let chain = headers::chain_v6(payload, ip.next).map_err(quoted_chain_error)?;
        let ports = match chain.fragment {
            Some(f) if f.offset != 0 => Ports::default(),
            _ => quoted_ports::<[u8; 16]>(chain.protocol, payload.get(chain.offset..))?,
        };
        Ok(Self::key(addresses, ports, chain.protocol, vlan))
    }
}

#[inline(always)]
fn key_v4(addresses: Addresses<u32>, ports: Ports, protocol: u8, vlan: u16) -> (FlowKey, Direction) {
    let src = u64::from(addresses.src) << 16 | u64::from(ports.src);
    let dst = u64::from(addresses.dst) << 16 | u64::from(ports.dst);
    let (a, b, direction) = if src > dst {
        (dst, src, Direction::Reverse)
    } else {
        (src, dst, Direction::Forward)
    };
    let key = FlowKeyV4 {
        a: ((a >> 16) as u32).to_be_bytes(),
        b: ((b >> 16) as u32).to_be_bytes(),
        a_port: a as u16,
        b_port: b as u16,
        vlan,
        protocol,
        zero: 0,
    };
    (FlowKey::V4(key), direction)
}

/// The fields of a transport header.
#[derive(Clone, Copy, Default)]
struct Transport {
    ports: Ports,
    tcp_flags: TcpFlags,
    quoted: Option<(FlowKey, Direction)>,
}

impl Transport {
    fn of_ports(ports: Ports) -> Transport {
        Transport {
            ports,
            ..Transport::default()
        }
    }
}

/// Whether packets of this protocol are told apart by more than addresses.
fn has_ports<A: Family>(number: u8) -> bool {
    matches!(
        number,
        protocol::TCP | protocol::UDP | protocol::SCTP | next_header::AUTHENTICATION
    ) || number == A::ICMP
}

/// Reads the transport header of an unfragmented packet. `data` ends where the packet does.
fn transport<A: Family>(number: u8, data: &[u8], vlan: u16) -> Result<Transport, DropReason> {
    let short = DropReason::Malformed;
    match number {
        protocol::TCP => tcp(data).ok_or(short),
        protocol::UDP => {
            let (h, _) = data.split_first_chunk::<UDP_LEN>().ok_or(short)?;
            let len = usize::from(u16::from_be_bytes([h[4], h[5]]));
            // RFC 2675: a length of 0 stands for one that does not fit.
            let is_jumbo = len == 0 && data.len() > usize::from(u16::MAX);
            if (len < UDP_LEN && !is_jumbo) || len > data.len() {
                return Err(DropReason::Malformed);
            }
            Ok(Transport::of_ports(ports(h)))
        }
        protocol::SCTP => {
            let h = data.first_chunk::<SCTP_LEN>().ok_or(short)?;
            Ok(Transport::of_ports(ports(h)))
        }
        number if number == A::ICMP => {
            let (h, quoted) = data.split_first_chunk::<ICMP_LEN>().ok_or(short)?;
            if A::is_icmp_error(h[0]) {
                let (key, direction) = A::quoted(quoted, vlan)?;
                return Ok(Transport {
                    quoted: Some((key, direction.flipped())),
                    ..Transport::default()
                });
            }
            Ok(Transport::of_ports(icmp_ports::<A>(h)))
        }
        _ => Ok(Transport::default()),
    }
}

/// Reads the transport header of a first fragment, which must be complete: no real MTU is too small for it
/// (RFC 1858, RFC 7112). Lengths describe the whole datagram and are not checked.
fn first_fragment<A: Family>(number: u8, data: &[u8]) -> Result<Transport, DropReason> {
    let short = DropReason::FragmentInvalid;
    match number {
        protocol::TCP => tcp(data).ok_or(short),
        protocol::UDP => Ok(Transport::of_ports(ports(
            data.first_chunk::<UDP_LEN>().ok_or(short)?,
        ))),
        protocol::SCTP => Ok(Transport::of_ports(ports(
            data.first_chunk::<SCTP_LEN>().ok_or(short)?,
        ))),
        number if number == A::ICMP => Ok(Transport::of_ports(icmp_ports::<A>(
            data.first_chunk::<ICMP_LEN>().ok_or(short)?,
        ))),
        _ => Ok(Transport::default()),
    }
}

fn tcp(data: &[u8]) -> Option<Transport> {
    let h = data.first_chunk::<TCP_LEN>()?;
    let header_len = usize::from(h[12] >> 4) * 4;
    if header_len < TCP_LEN || header_len > data.len() {
        return None;
    }
    Some(Transport {
        ports: ports(h),
        tcp_flags: TcpFlags(h[13]),
        quoted: None,
    })
}

/// The ports of a packet that an ICMP error quotes. 8 bytes of its transport are enough.
fn quoted_ports<A: Family>(number: u8, data: Option<&[u8]>) -> Result<Ports, DropReason> {
    let has_ports = matches!(number, protocol::TCP | protocol::UDP | protocol::SCTP);
    if !has_ports && number != A::ICMP {
        return Ok(Ports::default());
    }
    let h = data
        .and_then(<[u8]>::first_chunk::<8>)
        .ok_or(DropReason::Malformed)?;
    Ok(if has_ports { ports(h) } else { icmp_ports::<A>(h) })
}

/// TCP, UDP and SCTP all start with their ports.
fn ports<const N: usize>(h: &[u8; N]) -> Ports {
    Ports {
        src: be16(h, 0).unwrap_or_default(),
        dst: be16(h, 2).unwrap_or_default(),
    }
}

/// The echo identifier as both ports, so that request and reply are one flow; 0 for other messages.
fn icmp_ports<A: Family>(h: &[u8; ICMP_LEN]) -> Ports {
    if !A::ECHO.contains(&h[0]) {
        return Ports::default();
    }
    let identifier = u16::from_be_bytes([h[4], h[5]]);
    Ports {
        src: identifier,
        dst: identifier,
    }
}

/// Frames longer than 4 GiB do not exist; their length would saturate.
#[inline(always)]
fn frame_len(frame: &[u8]) -> u32 {
    u32::try_from(frame.len()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plain(protocol: u8, len: usize) -> Vec<u8> {
        let src = "10.0.0.1:1000".parse().unwrap();
        let dst = "10.0.0.2:80".parse().unwrap();
        let payload = vec![0; len];
        let frame = match protocol {
            protocol::TCP => crate::build::Frame::tcp(src, dst, TcpFlags(0x12), &payload),
            _ => crate::build::Frame::udp(src, dst, &payload),
        };
        frame.unwrap().to_vec().unwrap()
    }

    #[test]
    fn fast_path_eligible_frames_take_the_fast_path() {
        for protocol in [protocol::TCP, protocol::UDP] {
            for len in [18, 22, 1000] {
                let frame = plain(protocol, len);
                let info = fast_info_v4(&frame).unwrap();
                assert_eq!(parse_slow_path(&frame), Parsed::Flow(info));
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        /// Malformed frames included: the fast path must not accept what the slow path rejects, or classify
        /// it differently.
        #[test]
        fn fast_and_slow_path_agree_on_ipv4(
            is_tcp in any::<bool>(),
            len in 0usize..60,
            cut in 0usize..80,
            changes in prop::collection::vec((12usize..60, any::<u8>()), 0..4),
            fix_checksum in any::<bool>(),
        ) {
            let mut frame = plain(if is_tcp { protocol::TCP } else { protocol::UDP }, len);
            for (at, value) in changes {
                if let Some(byte) = frame.get_mut(at) {
                    *byte = value;
                }
            }
            if fix_checksum {
                frame[24..26].fill(0);
                let sum = checksum::internet(&frame[14..34]);
                frame[24..26].copy_from_slice(&sum.to_be_bytes());
            }
            frame.truncate(frame.len().saturating_sub(cut.saturating_sub(60)));
            if let Some(info) = fast_info_v4(&frame) {
                prop_assert_eq!(parse_slow_path(&frame), Parsed::Flow(info));
            }
            // Surrounded by valid frames: one bad lane must not affect the others.
            let other = plain(protocol::UDP, 18);
            let frames: [&[u8]; 8] = std::array::from_fn(|at| if at == 3 { &frame[..] } else { &other[..] });
            for level in [simd::Level::Every, simd::Level::detect()] {
                let mut burst = crate::HeaderBurst::default();
                level.run(ReadGroup(&mut burst, &frames));
                let packets = &burst.packets;
                prop_assert_eq!(packets.bytes[3] as usize, frame.len());
                for (at, frame) in frames.iter().enumerate() {
                    let said = (packets.is_fast[at] != 0).then(|| FastPacket {
                        key: packets.key(at),
                        direction: packets.is_reverse[at] & 1,
                        tcp_flags: TcpFlags(packets.has_syn_fin_rst[at] as u8 & TcpFlags::SYN_FIN_RST),
                    });
                    let flags = super::parse_fast(frame).map_or(0, |fast| fast.tcp_flags.0) & TcpFlags::SYN_FIN_RST;
                    let expected = super::parse_fast(frame).map(|fast| FastPacket {
                        tcp_flags: TcpFlags(if flags != 0 { TcpFlags::SYN_FIN_RST } else { 0 }),
                        ..fast
                    });
                    prop_assert_eq!(said, expected);
                    if expected.is_some() {
                        prop_assert_eq!(packets.is_opening[at] != 0, flags == TcpFlags::SYN);
                        prop_assert_eq!(Some(burst.dscp(at)), fast_info_v4(frame).map(|info| info.dscp));
                        prop_assert_eq!(Some(burst.info(at, frame)), fast_info_v4(frame));
                    }
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        #[test]
        fn fast_and_slow_path_agree_on_ipv6(
            is_tcp in any::<bool>(),
            len in 0usize..40,
            cut in 0usize..80,
            is_reverse in any::<bool>(),
            changes in prop::collection::vec((12usize..80, any::<u8>()), 0..4),
        ) {
            let (src, dst) = ("[2001:db8::1]:1000", "[2001:db8::2]:80");
            let (src, dst) = if is_reverse { (dst, src) } else { (src, dst) };
            let (src, dst) = (src.parse().unwrap(), dst.parse().unwrap());
            let payload = vec![0; len];
            let mut frame = match is_tcp {
                true => crate::build::Frame::tcp(src, dst, TcpFlags(0x12), &payload),
                false => crate::build::Frame::udp(src, dst, &payload),
            }
            .unwrap()
            .to_vec()
            .unwrap();
            let is_whole = changes.is_empty() && cut <= 60;
            for (at, value) in changes {
                if let Some(byte) = frame.get_mut(at) {
                    *byte = value;
                }
            }
            frame.truncate(frame.len().saturating_sub(cut.saturating_sub(60)));
            let said = fast_info_v6(&frame);
            prop_assert!(said.is_some() || !is_whole);
            if let Some(info) = said {
                prop_assert_eq!(parse_slow_path(&frame), Parsed::Flow(info));
            }
        }
    }

    struct ReadGroup<'a>(&'a mut crate::HeaderBurst, &'a [&'a [u8]; 8]);

    impl simd::Kernel for ReadGroup<'_> {
        type Output = ();
        #[inline(always)]
        fn run<W: simd::Words>(self) {
            let mut headers = [crate::HeaderBurst::EMPTY; 8];
            for (at, header) in headers.iter_mut().enumerate() {
                *header = self.0.put(at, self.1[at]);
            }
            self.0.load::<W>(0, &headers);
            self.0.validate(8);
        }
    }
}
