//! What functions have in common that are servers over UDP: which frames ask them, and how a frame becomes its answer.

use std::net::IpAddr;

use packet::{PacketInfo, Parsed, checksum, parse};

use crate::about::{Metric, Reason};
use crate::addresses::addresses;
use crate::burst::{Burst, Packet};

/// Bytes of headers.
const IPV4: usize = 20;
const IPV6: usize = 40;
const UDP: usize = 8;
/// Bytes of Ethernet's header with as many tags as the parser takes, IPv6 and UDP, at most.
const HEADERS_LIMIT: usize = 30 + IPV6 + UDP;
/// Hops of an answer.
const HOPS: u8 = 64;
/// By how much an answer to a neighbour solicitation can be longer: the option with the MAC address.
const NEIGHBOUR_OPTION: usize = 8;
/// Addresses of a server, at most.
const ADDRESSES_LIMIT: usize = 64;

/// The reasons that each server has, in this order, before its own.
pub(crate) const MALFORMED: Reason = Reason(0);
pub(crate) const NOT_ASKED: Reason = Reason(1);
pub(crate) const OPTIONS: Reason = Reason(2);
pub(crate) const NO_ROOM: Reason = Reason(3);

pub(crate) const MALFORMED_METRIC: Metric = Metric::counter(
    "malformed",
    "Truncated or inconsistent headers, or a wrong IPv4 header checksum",
);
pub(crate) const NOT_ASKED_METRIC: Metric = Metric::counter(
    "not_asked",
    "Packets that are not for this server, with others = \"drop\"",
);
pub(crate) const OPTIONS_METRIC: Metric =
    Metric::counter("options", "Requests with IPv4 options or IPv6 extension headers");
pub(crate) const NO_ROOM_METRIC: Metric =
    Metric::counter("no_room", "Requests whose answer found no room in the burst");

/// What becomes of packets that are not for the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Others {
    /// They are dropped: this is the last function, as a server usually is.
    #[default]
    Drop,
    /// They go on to the next function, or to the opposite port.
    Pass,
}

/// Which packets are for a server.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Service {
    port: u16,
    /// Its addresses; if there are none, it answers on each.
    addresses: Vec<IpAddr>,
    /// With it, it answers ARP requests, neighbour solicitations and pings for its addresses.
    mac: Option<[u8; 6]>,
    others: Others,
}

/// A request of a client: where its parts are in the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    l3: usize,
    is_v6: bool,
    /// Where the datagram's payload begins and ends.
    payload: usize,
    end: usize,
    /// The port that asks.
    pub(crate) source_port: u16,
}

/// What a packet is to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// A datagram to its port.
    Asked(Asked),
    /// It was a question about the server's address, and has become the answer.
    OfLink,
    /// Its verdict is decided.
    Other,
}

impl Service {
    /// A server of a port.
    ///
    /// # Errors
    /// What is wrong, and what to write instead.
    pub(crate) fn new(
        port: u16,
        addresses: Vec<IpAddr>,
        mac: Option<[u8; 6]>,
        others: Others,
    ) -> Result<Service, String> {
        if port == 0 {
            return Err("port: 0 is none; a port is 1 to 65535".to_owned());
        }
        if addresses.len() > ADDRESSES_LIMIT {
            let count = addresses.len();
            return Err(format!(
                "addresses: {count} addresses; there are at most {ADDRESSES_LIMIT}"
            ));
        }
        if mac.is_some() && addresses.is_empty() {
            return Err("mac: needs addresses, for which questions are answered".to_owned());
        }
        Ok(Service {
            port,
            addresses,
            mac,
            others,
        })
    }

    fn is_ours(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address)
    }

    /// Looks at a packet. What is no request gets its verdict here.
    pub(crate) fn look(&self, packet: &mut Packet<'_>) -> Seen {
        let frame = packet.frame();
        let asked = match parse(frame) {
            Parsed::Flow(info) => self.asked(&info, frame),
            Parsed::Invalid(_) => Err(MALFORMED),
            Parsed::Fragment(_) | Parsed::Other { .. } => Err(NOT_ASKED),
        };
        match asked {
            Ok(asked) => return Seen::Asked(asked),
            Err(NOT_ASKED) => {
                if self.answer_link(packet) {
                    packet.answer();
                    return Seen::OfLink;
                }
                if self.others == Others::Drop {
                    packet.drop(NOT_ASKED);
                }
            }
            Err(reason) => packet.drop(reason),
        }
        Seen::Other
    }

    fn asked(&self, info: &PacketInfo, frame: &[u8]) -> Result<Asked, Reason> {
        let (source, destination) = addresses(info, frame).ok_or(MALFORMED)?;
        let header = usize::from(info.l4_offset);
        let udp = frame.get(header..).unwrap_or_default().first_chunk::<UDP>();
        let (false, model::protocol::UDP, Some(udp)) = (info.is_icmp_error, info.protocol, udp) else {
            return Err(NOT_ASKED);
        };
        let word = |at: usize| u16::from_be_bytes([udp[at], udp[at + 1]]);
        let (from, to, len) = (word(0), word(2), usize::from(word(4)));
        let is_here = to == self.port && (self.addresses.is_empty() || self.is_ours(destination));
        // A multicast MAC address has reached others, too.
        if !is_here || !is_unicast(source) || from == 0 || frame[0] & 1 == 1 {
            return Err(NOT_ASKED);
        }
        let l3 = usize::from(info.l3_offset);
        let is_v6 = source.is_ipv6();
        if header != l3 + if is_v6 { IPV6 } else { IPV4 } || header + UDP > HEADERS_LIMIT {
            return Err(OPTIONS);
        }
        let end = header + len;
        if len < UDP || end > l3 + info.l3_len as usize || end > frame.len() {
            return Err(MALFORMED);
        }
        Ok(Asked {
            l3,
            is_v6,
            payload: header + UDP,
            end,
            source_port: from,
        })
    }

    /// Makes a packet that asks for an address of the server its own answer. False, and no change, for others.
    fn answer_link(&self, packet: &mut Packet<'_>) -> bool {
        let Some(mac) = self.mac else { return false };
        let len = packet.len();
        if packet.grow_back(NEIGHBOUR_OPTION).is_none() {
            return false;
        }
        let answer = packet::answer(packet.frame_mut(), len, mac, |address| self.is_ours(address));
        let unused = (len + NEIGHBOUR_OPTION).saturating_sub(answer.unwrap_or(len));
        packet.shrink_back(unused) && answer.is_some()
    }
}

fn is_unicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(of) => !(of.octets()[0] >= 224 || of.octets()[0] == 0 || of.is_loopback()),
        IpAddr::V6(of) => !(of.is_multicast() || of.is_unspecified() || of.is_loopback()),
    }
}

impl Asked {
    /// The payload of the datagram.
    #[inline]
    pub(crate) fn payload<'f>(&self, frame: &'f [u8]) -> &'f [u8] {
        frame.get(self.payload..self.end).unwrap_or_default()
    }

    /// Makes a request its own answer, with that payload. One that does not fit behind the request becomes a new packet,
    /// and the request is consumed. False, and the request is dropped, if the burst has no room for it.
    pub(crate) fn reply(&self, burst: &mut Burst, index: usize, payload: &[u8]) -> bool {
        let len = self.payload + payload.len();
        let Some(mut packet) = burst.packet(index) else {
            return false;
        };
        let before = packet.len();
        let fits = if len > before {
            packet.grow_back(len - before).is_some()
        } else {
            packet.shrink_back(before - len)
        };
        if !fits {
            let is_made = self.originate(burst, index, payload);
            if let Some(mut packet) = burst.packet(index) {
                match is_made {
                    true => packet.consume(),
                    false => packet.drop(NO_ROOM),
                }
            }
            return is_made;
        }
        self.turn(packet.frame_mut(), payload);
        packet.answer();
        true
    }

    /// Sends a datagram to who has asked, as a packet of its own. The request stays as it is. False if there is no room.
    pub(crate) fn originate(&self, burst: &mut Burst, index: usize, payload: &[u8]) -> bool {
        let mut headers = [0; HEADERS_LIMIT];
        let headers = &mut headers[..self.payload.min(HEADERS_LIMIT)];
        let frame = burst.frame(index);
        headers.copy_from_slice(&frame[..headers.len()]);
        let Some(mut packet) = burst.originate(self.payload + payload.len()) else {
            return false;
        };
        let frame = packet.frame_mut();
        frame[..headers.len()].copy_from_slice(headers);
        self.turn(frame, payload);
        packet.answer();
        true
    }

    /// Turns the addresses and ports of a frame, whose length is right, and writes its payload.
    fn turn(&self, frame: &mut [u8], payload: &[u8]) {
        let (link, packet) = frame.split_at_mut(self.l3);
        if let Some((to, from)) = link.split_at_mut_checked(6)
            && let Some(from) = from.first_chunk_mut::<6>()
        {
            to.swap_with_slice(from);
        }
        let transport = self.payload - UDP - self.l3;
        let (ip, udp) = packet.split_at_mut(transport);
        let len = UDP + payload.len();
        let pseudo = if self.is_v6 {
            // No flow label, and the class of the request.
            ip[1] &= 0xf0;
            ip[2..4].fill(0);
            ip[4..6].copy_from_slice(&(len as u16).to_be_bytes());
            ip[7] = HOPS;
            let (from, to) = ip[8..40].split_at_mut(16);
            from.swap_with_slice(to);
            checksum::add(checksum::sum(&ip[8..40]), pseudo(len))
        } else {
            ip[2..4].copy_from_slice(&((IPV4 + len) as u16).to_be_bytes());
            // Not to be fragmented, so that it needs no identification (RFC 6864).
            ip[4..8].copy_from_slice(&[0, 0, 0x40, 0]);
            ip[8] = HOPS;
            ip[10..12].fill(0);
            let (from, to) = ip[12..20].split_at_mut(4);
            from.swap_with_slice(to);
            let sum = checksum::internet(ip);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
            checksum::add(checksum::sum(&ip[12..20]), pseudo(len))
        };
        let (from, to) = udp[..4].split_at_mut(2);
        from.swap_with_slice(to);
        udp[4..6].copy_from_slice(&(len as u16).to_be_bytes());
        udp[6..8].fill(0);
        udp[UDP..].copy_from_slice(payload);
        let sum = match !checksum::add(pseudo, checksum::sum(udp)) {
            // It would say that there is none.
            0 => 0xffff,
            sum => sum,
        };
        udp[6..8].copy_from_slice(&sum.to_be_bytes());
    }
}

/// Protocol and length of the pseudo header.
fn pseudo(len: usize) -> u16 {
    checksum::add(u16::from(model::protocol::UDP), len as u16)
}
