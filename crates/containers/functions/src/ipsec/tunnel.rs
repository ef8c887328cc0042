//! Security associations at work: packets enter a tunnel and leave it (RFC 4303, tunnel mode; RFC 3948 for UDP).

use std::net::IpAddr;

use model::Nanos;
use packet::{checksum, ethertype};
use serde::Deserialize;

use model::protocol::UDP as UDP_NUMBER;

use super::headers::{self, DUMMY, ECN, ESP, IN_IPV4, IN_IPV6, IPV4, IPV6, Ip, UDP, be16, be32};
use super::replay::{Refused, Window};
use super::suite::{CHECK_LIMIT, HEADER, IV, Keys, Suite, TEXT};
use crate::burst::Packet;

/// Bytes of the longest Ethernet header.
const LINK_LIMIT: usize = 14 + 4 * packet::MAX_VLAN_TAGS;
/// Length of padding and of the number of the payload's protocol, in bytes.
const TRAILER: usize = 2;
/// ESP payloads with their trailers end at multiples of so many bytes (RFC 4303, section 2.4).
const ALIGNMENT: usize = 4;
/// Bytes that a tunnel adds at most.
pub(super) const OVERHEAD_LIMIT: usize = IPV6 + UDP + TEXT + ALIGNMENT - 1 + TRAILER + CHECK_LIMIT;
/// The single byte of a keepalive (RFC 3948, section 2.3).
pub(super) const KEEPALIVE: u8 = 0xff;

/// Where the outer header's service class comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dscp {
    Copy,
    Value(u8),
}

/// Where the outer IPv4 header's flag that it must not be fragmented comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum DontFragment {
    /// From an IPv4 packet; set for IPv6.
    Copy,
    #[default]
    Set,
    Clear,
}

/// The outer headers of an association.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    pub(super) src: IpAddr,
    pub(super) dst: IpAddr,
    /// The UDP ports, if ESP goes in UDP.
    pub(super) udp: Option<(u16, u16)>,
    pub(super) hop_limit: u8,
    pub(super) dscp: Dscp,
    pub(super) dont_fragment: DontFragment,
}

impl Ends {
    /// Bytes of the outer headers before ESP.
    fn len(&self) -> usize {
        let ip = if self.dst.is_ipv6() { IPV6 } else { IPV4 };
        ip + self.udp.map_or(0, |_| UDP)
    }

    /// Writes the outer headers at the start of `packet`, which is the whole packet.
    #[inline]
    fn write(&self, packet: &mut [u8], class: u8, dont_fragment: bool, identification: u16) -> Option<()> {
        let len = packet.len();
        let protocol = if self.udp.is_some() { UDP_NUMBER } else { ESP };
        let udp_at = match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let header = packet.first_chunk_mut::<IPV4>()?;
                let flags = if dont_fragment { 0x4000 } else { 0 };
                let mut words = [
                    0x4500_0000 | u32::from(class) << 16 | u32::from(u16::try_from(len).ok()?),
                    u32::from(identification) << 16 | flags,
                    u32::from(self.hop_limit) << 24 | u32::from(protocol) << 16,
                    src.to_bits(),
                    dst.to_bits(),
                ];
                // Of the words: a sum over what was just stored would wait until that is in the cache.
                words[2] |= u32::from(!checksum::sum_of_words(words));
                for (to, word) in header.as_chunks_mut::<4>().0.iter_mut().zip(words) {
                    *to = word.to_be_bytes();
                }
                IPV4
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let header = packet.first_chunk_mut::<IPV6>()?;
                let [l0, l1] = u16::try_from(len - IPV6).ok()?.to_be_bytes();
                header[..8].copy_from_slice(&[
                    0x60 | class >> 4,
                    class << 4,
                    0,
                    0,
                    l0,
                    l1,
                    protocol,
                    self.hop_limit,
                ]);
                header[8..24].copy_from_slice(&src.octets());
                header[24..].copy_from_slice(&dst.octets());
                IPV6
            }
            _ => return None,
        };
        if let Some((src, dst)) = self.udp {
            let [l0, l1] = u16::try_from(len - udp_at).ok()?.to_be_bytes();
            let ([s0, s1], [d0, d1]) = (src.to_be_bytes(), dst.to_be_bytes());
            let header = packet.get_mut(udp_at..)?.first_chunk_mut::<UDP>()?;
            // IPv4 needs no checksum here: that of ESP is stronger (RFC 3948, section 2.1).
            *header = [s0, s1, d0, d1, l0, l1, 0, 0];
        }
        Some(())
    }

    /// Writes the checksum of UDP over IPv6: receivers need not take packets without it (RFC 8200, section 8.1).
    #[inline]
    fn write_checksum(&self, packet: &mut [u8]) -> Option<()> {
        let (IpAddr::V6(src), IpAddr::V6(dst), Some(_)) = (self.src, self.dst, self.udp) else {
            return Some(());
        };
        let udp = packet.get_mut(IPV6..)?;
        let pseudo = checksum::pseudo_v6(src.octets(), dst.octets(), UDP_NUMBER, udp.len());
        let sum = match !checksum::add(pseudo, checksum::sum(udp)) {
            0 => u16::MAX,
            sum => sum,
        };
        udp.get_mut(6..8)?.copy_from_slice(&sum.to_be_bytes());
        Some(())
    }
}

/// Why a packet does not enter a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoEntry {
    /// It is longer than this, in bytes of layer 3.
    TooBig(usize),
    /// All sequence numbers are used: the association needs a new key.
    Exhausted,
    /// The frame has no room for the headers.
    NoRoom,
}

/// An association for packets that enter a tunnel.
pub(super) struct Outbound {
    pub(super) name: String,
    /// A digest of what makes it this association; see [`super::configuration`].
    pub(super) identity: [u8; 32],
    pub(super) spi: u32,
    pub(super) ends: Ends,
    pub(super) keys: Keys,
    pub(super) is_extended: bool,
    /// The sequence number of the last packet.
    pub(super) sequence: u64,
    /// Initialisation vectors are sequence numbers, changed by this: no two processes use the same ones.
    pub(super) mask: u64,
    /// When the last packet was sent, with which Ethernet header, by which port.
    pub(super) sent: Option<Sent>,
}

/// The last packet of an association.
#[derive(Clone, Copy)]
pub(super) struct Sent {
    pub(super) at: Nanos,
    pub(super) link: [u8; LINK_LIMIT],
    pub(super) link_len: u8,
    pub(super) port: u8,
}

impl Outbound {
    /// The last number that its packets may have.
    pub(super) fn last_sequence(&self) -> u64 {
        if self.is_extended {
            u64::MAX
        } else {
            u64::from(u32::MAX)
        }
    }

    /// How many packets it can still protect.
    pub(super) fn left(&self) -> u64 {
        self.last_sequence() - self.sequence
    }

    /// Bytes of the longest packet that the tunnel takes, if its own packets have at most `mtu`.
    pub(super) fn payload_limit(&self, mtu: usize) -> usize {
        let room = mtu.saturating_sub(self.ends.len() + TEXT + self.keys.suite().check_bytes());
        (room - room % ALIGNMENT).saturating_sub(TRAILER)
    }

    /// Turns a packet into one of the tunnel, in place. Nothing has changed if it does not enter.
    #[inline]
    pub(super) fn enter(
        &mut self,
        packet: &mut Packet<'_>,
        ip: &Ip,
        mtu: usize,
        now: Nanos,
        port: u8,
    ) -> Result<(), NoEntry> {
        let check = self.keys.suite().check_bytes();
        let outer = self.ends.len();
        let limit = self.payload_limit(mtu);
        if ip.len > limit {
            return Err(NoEntry::TooBig(limit));
        }
        if self.sequence >= self.last_sequence() {
            return Err(NoEntry::Exhausted);
        }
        let padding = (ip.len + TRAILER).next_multiple_of(ALIGNMENT) - (ip.len + TRAILER);
        let (before, behind) = (outer + TEXT, padding + TRAILER + check);
        // Frames shorter than 60 bytes come with padding.
        let surplus = packet.len() - (ip.at + ip.len);
        if packet.headroom() < before || packet.tailroom() + surplus < behind || ip.at > LINK_LIMIT {
            return Err(NoEntry::NoRoom);
        }
        if surplus > 0 && !packet.shrink_back(surplus) {
            return Err(NoEntry::NoRoom);
        }
        let trailer = packet.grow_back(behind).ok_or(NoEntry::NoRoom)?;
        for (byte, value) in trailer.iter_mut().zip(1..).take(padding) {
            *byte = value;
        }
        if let Some([length, next, ..]) = trailer.get_mut(padding..) {
            *length = padding as u8;
            *next = if ip.is_v6 { IN_IPV6 } else { IN_IPV4 };
        }
        packet.grow_front(before).ok_or(NoEntry::NoRoom)?;
        self.sequence += 1;
        self.cover(packet.frame_mut(), ip, outer).ok_or(NoEntry::NoRoom)?;
        if self.ends.udp.is_some() {
            let mut sent = Sent {
                at: now,
                link: [0; LINK_LIMIT],
                link_len: ip.at as u8,
                port,
            };
            for (to, from) in sent.link.iter_mut().zip(packet.frame()) {
                *to = *from;
            }
            self.sent = Some(sent);
        }
        Ok(())
    }

    /// Writes the headers in front of the payload, and protects that. The Ethernet header is still behind the room
    /// for them.
    #[inline]
    fn cover(&self, frame: &mut [u8], ip: &Ip, outer: usize) -> Option<()> {
        let before = outer + TEXT;
        frame.copy_within(before..before + ip.at, 0);
        set_ethertype(frame, ip.at, self.ends.dst.is_ipv6())?;
        let packet = frame.get_mut(ip.at..)?;
        let class = match self.ends.dscp {
            Dscp::Copy => ip.class,
            Dscp::Value(dscp) => dscp << 2 | ip.class & ECN,
        };
        let dont_fragment = match self.ends.dont_fragment {
            DontFragment::Copy => ip.dont_fragment,
            DontFragment::Set => true,
            DontFragment::Clear => false,
        };
        self.ends
            .write(packet, class, dont_fragment, self.sequence as u16)?;
        let esp = packet.get_mut(outer..)?;
        // Two stores of eight bytes, as they are read again: smaller ones would have to be in the cache before.
        let number = u64::from(self.spi) << 32 | u64::from(self.sequence as u32);
        let (header, rest) = esp.split_first_chunk_mut::<HEADER>()?;
        *header = number.to_be_bytes();
        *rest.first_chunk_mut::<IV>()? = (self.sequence ^ self.mask).to_be_bytes();
        let high = self.is_extended.then_some((self.sequence >> 32) as u32);
        self.keys.seal(esp, high).then_some(())?;
        self.ends.write_checksum(packet)
    }

    /// Bytes of a keepalive frame; [`None`] if it has sent nothing yet.
    pub(super) fn keepalive_len(&self) -> Option<usize> {
        Some(usize::from(self.sent?.link_len) + self.ends.len() + 1)
    }

    /// Writes a keepalive.
    pub(super) fn write_keepalive(&self, frame: &mut [u8]) -> Option<()> {
        let sent = self.sent?;
        let (link, packet) = frame.split_at_mut_checked(usize::from(sent.link_len))?;
        link.copy_from_slice(sent.link.get(..usize::from(sent.link_len))?);
        *packet.last_mut()? = KEEPALIVE;
        self.ends.write(packet, 0, true, 0)?;
        self.ends.write_checksum(packet)
    }
}

/// Why a packet of a tunnel does not leave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoExit {
    /// It is too short, or its payload is none.
    Malformed,
    /// Its sequence number has come, or is too old to know.
    Replay(Refused),
    /// It was changed, or made with another key.
    Authentication,
    /// Its payload is no IP packet.
    Unsupported,
    /// It met congestion, which its ends would not understand.
    Congestion,
    /// It is a dummy, which is no mistake.
    Dummy,
}

/// An association for packets that leave a tunnel.
pub(super) struct Inbound {
    pub(super) name: String,
    pub(super) identity: [u8; 32],
    pub(super) spi: u32,
    /// The end of the tunnel that is here.
    pub(super) dst: IpAddr,
    pub(super) keys: Keys,
    pub(super) is_extended: bool,
    pub(super) window: Window,
    /// The policies whose packets may come in it, as indices.
    pub(super) policies: Vec<usize>,
}

impl Inbound {
    /// Turns a packet of the tunnel into the one that it carries, in place. `at` and `len` are those of the ESP
    /// packet in the frame.
    #[inline]
    pub(super) fn leave(
        &mut self,
        packet: &mut Packet<'_>,
        ip: &Ip,
        at: usize,
        len: usize,
    ) -> Result<(), NoExit> {
        let frame = packet.frame_mut();
        let esp = frame.get_mut(at..at + len).ok_or(NoExit::Malformed)?;
        let low = be32(esp, 4).ok_or(NoExit::Malformed)?;
        let sequence = if self.is_extended {
            self.window.extend(low).ok_or(NoExit::Replay(Refused::Old))?
        } else {
            u64::from(low)
        };
        self.window.check(sequence).map_err(NoExit::Replay)?;
        let high = self.is_extended.then_some((sequence >> 32) as u32);
        if !self.keys.open(esp, high) {
            return Err(NoExit::Authentication);
        }
        self.window.accept(sequence);
        let text = esp
            .len()
            .checked_sub(self.keys.suite().check_bytes())
            .and_then(|end| esp.get(TEXT..end))
            .ok_or(NoExit::Malformed)?;
        let (text, [padding, next]) = text.split_last_chunk::<TRAILER>().ok_or(NoExit::Malformed)?;
        let padded = text
            .len()
            .checked_sub(usize::from(*padding))
            .ok_or(NoExit::Malformed)?;
        let (text, padding) = text.split_at_checked(padded).ok_or(NoExit::Malformed)?;
        if !padding.iter().copied().eq(1..=padding.len() as u8) {
            return Err(NoExit::Malformed);
        }
        let is_v6 = match *next {
            IN_IPV4 => false,
            IN_IPV6 => true,
            DUMMY => return Err(NoExit::Dummy),
            _ => return Err(NoExit::Unsupported),
        };
        let (inner_len, inner_class) = extent(text, is_v6).ok_or(NoExit::Malformed)?;
        let class = headers::leave_tunnel(inner_class, ip.class).ok_or(NoExit::Congestion)?;
        // What follows the inner packet hides its length (RFC 4303, section 2.7).
        let inner = at + TEXT;
        let end = inner + inner_len;
        if class != inner_class {
            headers::set_class(frame.get_mut(inner..end).ok_or(NoExit::Malformed)?, is_v6, class);
        }
        let start = inner - ip.at;
        frame.copy_within(..ip.at, start);
        set_ethertype(frame, inner, is_v6).ok_or(NoExit::Malformed)?;
        let surplus = packet.len() - end;
        if !(packet.shrink_back(surplus) && packet.shrink_front(start)) {
            return Err(NoExit::Malformed);
        }
        Ok(())
    }
}

/// Length and traffic class of the IP packet at the start of a payload.
#[inline]
fn extent(text: &[u8], is_v6: bool) -> Option<(usize, u8)> {
    let (first, second) = (*text.first()?, *text.get(1)?);
    let (len, class, shortest) = if is_v6 {
        (IPV6 + usize::from(be16(text, 4)?), first << 4 | second >> 4, IPV6)
    } else {
        (usize::from(be16(text, 2)?), second, IPV4)
    };
    let version = if is_v6 { 6 } else { 4 };
    (first >> 4 == version && (shortest..=text.len()).contains(&len)).then_some((len, class))
}

/// Writes the EtherType before the IP packet that begins at `at`.
#[inline]
fn set_ethertype(frame: &mut [u8], at: usize, is_v6: bool) -> Option<()> {
    let kind = if is_v6 { ethertype::IPV6 } else { ethertype::IPV4 };
    *frame.get_mut(..at)?.last_chunk_mut::<2>()? = kind.to_be_bytes();
    Some(())
}

/// What an association is, for messages.
pub(super) fn describe(suite: Suite) -> &'static str {
    match suite {
        Suite::Aes128Gcm => "aes-128-gcm",
        Suite::Aes256Gcm => "aes-256-gcm",
        Suite::Aes256CtrHmacSha1 => "aes-256-ctr-hmac-sha1-96",
    }
}
