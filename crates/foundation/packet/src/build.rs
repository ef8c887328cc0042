//! Builds frames with valid lengths and checksums, for generators and tests.
//!
//! ```
//! use packet::build::Frame;
//! let frame = Frame::udp("10.0.0.1:1000".parse()?, "10.0.0.2:53".parse()?, b"query")?.to_vec()?;
//! assert_eq!(frame.len(), 14 + 20 + 8 + 5);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! Every field can be changed before the frame is written. Nothing is padded to the minimum Ethernet length.

use std::net::{IpAddr, SocketAddr};

use model::protocol;

use crate::Error;
use crate::checksum;
use crate::headers::{self, ETHERNET_LEN, IPV4_LEN, IPV6_LEN, TAG_LEN, ethertype, next_header};
use crate::parse::TcpFlags;

/// A frame to be written.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Destination MAC address.
    pub dst_mac: [u8; 6],
    /// Source MAC address.
    pub src_mac: [u8; 6],
    /// VLAN tags, outermost first.
    pub tags: &'a [Tag],
    /// The network header.
    pub network: Network<'a>,
    /// The transport header.
    pub transport: Transport<'a>,
    /// The bytes after the transport header.
    pub payload: &'a [u8],
}

/// A VLAN tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// [`ethertype::VLAN`], [`ethertype::SERVICE_VLAN`] or [`ethertype::QINQ`].
    pub ethertype: u16,
    /// Priority, drop-eligible bit and VLAN id (the lower 12 bits).
    pub control: u16,
}

impl Tag {
    /// A customer tag (802.1Q) of priority 0.
    pub const fn vlan(id: u16) -> Tag {
        Tag {
            ethertype: ethertype::VLAN,
            control: id & 0x0fff,
        }
    }

    /// A service tag (802.1ad), the outer one of QinQ, of priority 0.
    pub const fn service(id: u16) -> Tag {
        Tag {
            ethertype: ethertype::SERVICE_VLAN,
            control: id & 0x0fff,
        }
    }
}

/// A network header. Lengths, checksum and next header are computed.
#[derive(Clone, Copy, Debug)]
pub enum Network<'a> {
    /// IPv4.
    V4 {
        /// Source address.
        src: [u8; 4],
        /// Destination address.
        dst: [u8; 4],
        /// Differentiated services code point.
        dscp: u8,
        /// Time to live.
        ttl: u8,
        /// Identification, for fragments.
        identification: u16,
        /// Options, in whole words of 4 bytes, at most 40.
        options: &'a [u8],
    },
    /// IPv6.
    V6 {
        /// Source address.
        src: [u8; 16],
        /// Destination address.
        dst: [u8; 16],
        /// Differentiated services code point.
        dscp: u8,
        /// Hop limit.
        hop_limit: u8,
        /// Extension headers, in their order.
        extensions: &'a [Extension<'a>],
    },
}

impl Network<'_> {
    /// An IP header between two addresses, without options.
    ///
    /// # Errors
    /// [`Error::Family`] if one address is IPv4 and the other IPv6.
    pub fn between(src: IpAddr, dst: IpAddr) -> Result<Network<'static>, Error> {
        match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Ok(Network::V4 {
                src: src.octets(),
                dst: dst.octets(),
                dscp: 0,
                ttl: 64,
                identification: 0,
                options: &[],
            }),
            (IpAddr::V6(src), IpAddr::V6(dst)) => Ok(Network::V6 {
                src: src.octets(),
                dst: dst.octets(),
                dscp: 0,
                hop_limit: 64,
                extensions: &[],
            }),
            _ => Err(Error::Family),
        }
    }

    fn len(&self) -> usize {
        match self {
            Network::V4 { options, .. } => IPV4_LEN + options.len(),
            Network::V6 { extensions, .. } => {
                IPV6_LEN + extensions.iter().map(|e| 2 + e.body.len()).sum::<usize>()
            }
        }
    }

    fn pseudo_header(&self, protocol: u8, len: usize) -> u16 {
        match *self {
            Network::V4 { src, dst, .. } => checksum::pseudo_v4(src, dst, protocol, len),
            Network::V6 { src, dst, .. } => checksum::pseudo_v6(src, dst, protocol, len),
        }
    }
}

/// An IPv6 extension header.
#[derive(Clone, Copy, Debug)]
pub struct Extension<'a> {
    /// Its number: 0 hop-by-hop, 43 routing, 44 fragment, 51 authentication, 60 destination options.
    pub number: u8,
    /// The bytes after the first two (next header and length). With these two, the length is a multiple of 8
    /// bytes (authentication: of 4).
    pub body: &'a [u8],
}

/// A transport header. Lengths and checksum are computed.
#[derive(Clone, Copy, Debug)]
pub enum Transport<'a> {
    /// UDP.
    Udp {
        /// Source port.
        src_port: u16,
        /// Destination port.
        dst_port: u16,
    },
    /// TCP.
    Tcp {
        /// Source port.
        src_port: u16,
        /// Destination port.
        dst_port: u16,
        /// Sequence number.
        sequence: u32,
        /// Acknowledgement number.
        acknowledgement: u32,
        /// Flags.
        flags: TcpFlags,
        /// Options, in whole words of 4 bytes, at most 40.
        options: &'a [u8],
    },
    /// SCTP. The payload holds the chunks.
    Sctp {
        /// Source port.
        src_port: u16,
        /// Destination port.
        dst_port: u16,
        /// Verification tag.
        tag: u32,
    },
    /// ICMP over IPv4, ICMPv6 over IPv6.
    Icmp {
        /// Type.
        kind: u8,
        /// Code.
        code: u8,
        /// The second word: identifier and sequence number of an echo, MTU of an error.
        word: [u8; 4],
    },
    /// Any other protocol. The payload holds the whole transport packet.
    Raw {
        /// Its number.
        protocol: u8,
    },
}

impl Transport<'_> {
    fn len(&self) -> usize {
        match self {
            Transport::Udp { .. } | Transport::Icmp { .. } => 8,
            Transport::Tcp { options, .. } => 20 + options.len(),
            Transport::Sctp { .. } => 12,
            Transport::Raw { .. } => 0,
        }
    }

    fn protocol(&self, network: &Network<'_>) -> u8 {
        match (self, network) {
            (Transport::Udp { .. }, _) => protocol::UDP,
            (Transport::Tcp { .. }, _) => protocol::TCP,
            (Transport::Sctp { .. }, _) => protocol::SCTP,
            (Transport::Icmp { .. }, Network::V4 { .. }) => protocol::ICMP,
            (Transport::Icmp { .. }, Network::V6 { .. }) => protocol::ICMPV6,
            (Transport::Raw { protocol }, _) => *protocol,
        }
    }
}

impl<'a> Frame<'a> {
    /// An untagged frame between two locally administered MAC addresses.
    pub const fn new(network: Network<'a>, transport: Transport<'a>, payload: &'a [u8]) -> Frame<'a> {
        Frame {
            dst_mac: [0x02, 0, 0, 0, 0, 2],
            src_mac: [0x02, 0, 0, 0, 0, 1],
            tags: &[],
            network,
            transport,
            payload,
        }
    }

    /// A UDP packet.
    ///
    /// # Errors
    /// [`Error::Family`] if one address is IPv4 and the other IPv6.
    pub fn udp(src: SocketAddr, dst: SocketAddr, payload: &'a [u8]) -> Result<Frame<'a>, Error> {
        let transport = Transport::Udp {
            src_port: src.port(),
            dst_port: dst.port(),
        };
        Ok(Frame::new(
            Network::between(src.ip(), dst.ip())?,
            transport,
            payload,
        ))
    }

    /// A TCP packet with these flags.
    ///
    /// # Errors
    /// [`Error::Family`] if one address is IPv4 and the other IPv6.
    pub fn tcp(
        src: SocketAddr,
        dst: SocketAddr,
        flags: TcpFlags,
        payload: &'a [u8],
    ) -> Result<Frame<'a>, Error> {
        let transport = Transport::Tcp {
            src_port: src.port(),
            dst_port: dst.port(),
            sequence: 0,
            acknowledgement: 0,
            flags,
            options: &[],
        };
        Ok(Frame::new(
            Network::between(src.ip(), dst.ip())?,
            transport,
            payload,
        ))
    }

    /// An SCTP packet with these chunks.
    ///
    /// # Errors
    /// [`Error::Family`] if one address is IPv4 and the other IPv6.
    pub fn sctp(src: SocketAddr, dst: SocketAddr, chunks: &'a [u8]) -> Result<Frame<'a>, Error> {
        let transport = Transport::Sctp {
            src_port: src.port(),
            dst_port: dst.port(),
            tag: 0,
        };
        Ok(Frame::new(
            Network::between(src.ip(), dst.ip())?,
            transport,
            chunks,
        ))
    }

    /// An ICMP message, or ICMPv6 between IPv6 addresses. For an error, `body` is the start of the IP packet
    /// it reports.
    ///
    /// # Errors
    /// [`Error::Family`] if one address is IPv4 and the other IPv6.
    pub fn icmp(
        src: IpAddr,
        dst: IpAddr,
        kind: u8,
        code: u8,
        word: [u8; 4],
        body: &'a [u8],
    ) -> Result<Frame<'a>, Error> {
        let transport = Transport::Icmp { kind, code, word };
        Ok(Frame::new(Network::between(src, dst)?, transport, body))
    }

    /// Where the IP header starts, in bytes.
    pub const fn l3_offset(&self) -> usize {
        ETHERNET_LEN + TAG_LEN * self.tags.len()
    }

    /// Where the transport header starts, in bytes.
    pub fn l4_offset(&self) -> usize {
        self.l3_offset() + self.network.len()
    }

    /// Where the payload starts, in bytes.
    pub fn payload_offset(&self) -> usize {
        self.l4_offset() + self.transport.len()
    }

    /// Bytes of the frame, without the frame check sequence.
    #[expect(clippy::len_without_is_empty, reason = "a frame is never empty")]
    pub fn len(&self) -> usize {
        self.payload_offset() + self.payload.len()
    }

    /// The frame in a new buffer.
    ///
    /// # Errors
    /// [`Error::Length`].
    pub fn to_vec(&self) -> Result<Vec<u8>, Error> {
        let mut out = vec![0; self.len()];
        self.write(&mut out)?;
        Ok(out)
    }

    /// Writes the frame to the start of `out` and returns its length in bytes.
    ///
    /// # Errors
    /// [`Error::BufferTooSmall`]; [`Error::Length`] if a length does not fit its header field.
    pub fn write(&self, out: &mut [u8]) -> Result<usize, Error> {
        let (needed, available) = (self.len(), out.len());
        let Some(out) = out.get_mut(..needed) else {
            return Err(Error::BufferTooSmall { needed, available });
        };
        let (link, rest) = out.split_at_mut(self.l3_offset());
        let (network, rest) = rest.split_at_mut(self.network.len());
        let (transport, payload) = rest.split_at_mut(self.transport.len());
        self.write_link(link);
        self.write_network(network, transport.len() + payload.len())?;
        self.write_transport(transport)?;
        payload.copy_from_slice(self.payload);
        Ok(needed)
    }

    fn write_link(&self, out: &mut [u8]) {
        let inner = match self.network {
            Network::V4 { .. } => ethertype::IPV4,
            Network::V6 { .. } => ethertype::IPV6,
        };
        out[..6].copy_from_slice(&self.dst_mac);
        out[6..12].copy_from_slice(&self.src_mac);
        let mut at = 12;
        for tag in self.tags {
            put16(out, at, tag.ethertype);
            put16(out, at + 2, tag.control);
            at += TAG_LEN;
        }
        put16(out, at, inner);
    }

    fn write_network(&self, out: &mut [u8], payload_len: usize) -> Result<(), Error> {
        let protocol = self.transport.protocol(&self.network);
        let fits = |len: usize, what| u16::try_from(len).map_err(|_| Error::Length { what });
        match self.network {
            Network::V4 {
                src,
                dst,
                dscp,
                ttl,
                identification,
                options,
            } => {
                if options.len() > 40 || !options.len().is_multiple_of(4) {
                    return Err(Error::Length { what: "IPv4 options" });
                }
                out[0] = 0x40 | (out.len() / 4) as u8;
                out[1] = dscp << 2;
                put16(out, 2, fits(out.len() + payload_len, "IPv4 total length")?);
                put16(out, 4, identification);
                put16(out, 6, 0);
                out[8] = ttl;
                out[9] = protocol;
                out[12..16].copy_from_slice(&src);
                out[16..20].copy_from_slice(&dst);
                out[20..].copy_from_slice(options);
                finish_ipv4(out);
            }
            Network::V6 {
                src,
                dst,
                dscp,
                hop_limit,
                extensions,
            } => {
                out[..4].copy_from_slice(&(6 << 28 | u32::from(dscp) << 22).to_be_bytes());
                put16(
                    out,
                    4,
                    fits(out.len() - IPV6_LEN + payload_len, "IPv6 payload length")?,
                );
                out[6] = extensions.first().map_or(protocol, |e| e.number);
                out[7] = hop_limit;
                out[8..24].copy_from_slice(&src);
                out[24..40].copy_from_slice(&dst);
                let mut at = IPV6_LEN;
                for (i, extension) in extensions.iter().enumerate() {
                    let len = 2 + extension.body.len();
                    let what = "IPv6 extension header";
                    let (unit, words_less) = match extension.number {
                        next_header::AUTHENTICATION => (4, 2),
                        _ => (8, 1),
                    };
                    if len < 8 || !len.is_multiple_of(unit) || len / unit - words_less > usize::from(u8::MAX)
                    {
                        return Err(Error::Length { what });
                    }
                    out[at] = extensions.get(i + 1).map_or(protocol, |e| e.number);
                    out[at + 1] = match extension.number {
                        next_header::FRAGMENT => 0,
                        _ => (len / unit - words_less) as u8,
                    };
                    out[at + 2..at + len].copy_from_slice(extension.body);
                    at += len;
                }
            }
        }
        Ok(())
    }

    fn write_transport(&self, out: &mut [u8]) -> Result<(), Error> {
        let protocol = self.transport.protocol(&self.network);
        let len = out.len() + self.payload.len();
        let pseudo_header = self.network.pseudo_header(protocol, len);
        // Headers have an even length, so the payload's sum needs no byte swap.
        let checksum = |header: &[u8], start: u16| {
            !checksum::add(
                checksum::add(start, checksum::sum(header)),
                checksum::sum(self.payload),
            )
        };
        match self.transport {
            Transport::Udp { src_port, dst_port } => {
                put16(out, 0, src_port);
                put16(out, 2, dst_port);
                put16(
                    out,
                    4,
                    u16::try_from(len).map_err(|_| Error::Length { what: "UDP length" })?,
                );
                put16(out, 6, 0);
                let sum = checksum(out, pseudo_header);
                put16(out, 6, if sum == 0 { 0xffff } else { sum });
            }
            Transport::Tcp {
                src_port,
                dst_port,
                sequence,
                acknowledgement,
                flags,
                options,
            } => {
                if options.len() > 40 || !options.len().is_multiple_of(4) {
                    return Err(Error::Length { what: "TCP options" });
                }
                put16(out, 0, src_port);
                put16(out, 2, dst_port);
                out[4..8].copy_from_slice(&sequence.to_be_bytes());
                out[8..12].copy_from_slice(&acknowledgement.to_be_bytes());
                out[12] = ((out.len() / 4) as u8) << 4;
                out[13] = flags.0;
                put16(out, 14, u16::MAX); // the window
                out[16..20].fill(0);
                out[20..].copy_from_slice(options);
                let sum = checksum(out, pseudo_header);
                put16(out, 16, sum);
            }
            Transport::Sctp {
                src_port,
                dst_port,
                tag,
            } => {
                put16(out, 0, src_port);
                put16(out, 2, dst_port);
                out[4..8].copy_from_slice(&tag.to_be_bytes());
                out[8..12].fill(0);
                let crc = checksum::crc32c(&[out, self.payload]);
                out[8..12].copy_from_slice(&crc);
            }
            Transport::Icmp { kind, code, word } => {
                out[0] = kind;
                out[1] = code;
                put16(out, 2, 0);
                out[4..8].copy_from_slice(&word);
                let start = match self.network {
                    Network::V4 { .. } => 0,
                    Network::V6 { .. } => pseudo_header,
                };
                let sum = checksum(out, start);
                put16(out, 2, sum);
            }
            Transport::Raw { .. } => {}
        }
        Ok(())
    }
}

/// Splits the IP packet of a frame into fragments of at most `mtu` bytes each (IP header included), in order.
/// Each fragment has the frame's Ethernet header and tags, and all IPv4 options. Every IPv6 fragment repeats
/// the headers up to the Routing header. IPv4 takes the lower 16 bits of `identification`.
///
/// # Errors
/// [`Error::Unfragmentable`] if the frame is not an unfragmented IP packet with data, or if the headers leave
/// no room for 8 bytes.
pub fn fragment(frame: &[u8], mtu: usize, identification: u32) -> Result<Vec<Vec<u8>>, Error> {
    cut(frame, mtu, identification).ok_or(Error::Unfragmentable { mtu })
}

fn cut(frame: &[u8], mtu: usize, identification: u32) -> Option<Vec<Vec<u8>>> {
    let link = headers::link(frame).ok()?;
    let packet = frame.get(link.offset..)?;
    let is_v4 = link.ethertype == ethertype::IPV4;
    // Bytes that every fragment repeats, offset of their next-header field, and end of the packet.
    let (repeated, next_at, end) = if is_v4 {
        let ip = headers::ipv4(packet).ok()?;
        (ip.header_len, 9, ip.total_len)
    } else if link.ethertype == ethertype::IPV6 {
        let ip = headers::ipv6(packet).ok()?;
        let (repeated, next_at) = repeated_v6(packet, ip.next)?;
        (repeated, next_at, IPV6_LEN + ip.payload_len)
    } else {
        return None;
    };
    let (head, data) = packet.get(..end)?.split_at_checked(repeated)?;
    let fragment_header = if is_v4 { 0 } else { 8 };
    let room = mtu.checked_sub(repeated + fragment_header)? / 8 * 8;
    if room == 0 || data.is_empty() {
        return None;
    }
    let mut fragments = Vec::with_capacity(data.len().div_ceil(room));
    for (i, piece) in data.chunks(room).enumerate() {
        let offset = (i * room / 8) as u16;
        let more = i * room + piece.len() < data.len();
        let mut out = frame[..link.offset].to_vec();
        let ip = out.len();
        out.extend(head);
        if is_v4 {
            put16(&mut out, ip + 2, (repeated + piece.len()) as u16);
            put16(&mut out, ip + 4, identification as u16);
            put16(&mut out, ip + 6, offset | u16::from(more) << 13);
            finish_ipv4(&mut out[ip..]);
        } else {
            put16(&mut out, ip + 4, (repeated - IPV6_LEN + 8 + piece.len()) as u16);
            out[ip + next_at] = next_header::FRAGMENT;
            out.extend([head[next_at], 0]);
            out.extend((offset << 3 | u16::from(more)).to_be_bytes());
            out.extend(identification.to_be_bytes());
        }
        out.extend(piece);
        fragments.push(out);
    }
    Some(fragments)
}

/// The length of the headers that each IPv6 fragment repeats, and the offset of the last next-header field
/// among them.
fn repeated_v6(packet: &[u8], first: u8) -> Option<(usize, usize)> {
    let mut repeated = (IPV6_LEN, 6);
    let (mut next, mut at) = (first, IPV6_LEN);
    while matches!(
        next,
        next_header::HOP_BY_HOP | next_header::ROUTING | next_header::DESTINATION_OPTIONS
    ) {
        let h = packet.get(at..)?.first_chunk::<2>()?;
        let end = at + (usize::from(h[1]) + 1) * 8;
        if next != next_header::DESTINATION_OPTIONS {
            repeated = (end, at);
        }
        (next, at) = (h[0], end);
    }
    Some(repeated)
}

/// Writes the checksum of an IPv4 header.
fn finish_ipv4(header: &mut [u8]) {
    put16(header, 10, 0);
    let sum = checksum::internet(header);
    put16(header, 10, sum);
}

fn put16(out: &mut [u8], at: usize, value: u16) {
    out[at..at + 2].copy_from_slice(&value.to_be_bytes());
}
