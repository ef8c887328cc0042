//! Frames that nobody should send: random bytes, changed frames of clients, false ARP and neighbour discovery, and
//! fragments that fit nowhere.
//!
//! None has the address of a client as its source. Who can send to an uplink with the address of another gets its
//! replies and ends its connections, in every network.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use model::{Random, protocol};
use packet::build::{Frame, Network, Transport, fragment};
use packet_socket::{Config, PacketSocket, SendError};

/// Longest frame of random bytes.
const RANDOM_BYTES: usize = 1500;
/// Frames of clients that are changed.
const REAL_FRAMES: usize = 64;
/// How long they are waited for: a client sends 25 requests/s.
const REAL_LIMIT: Duration = Duration::from_secs(2);
/// Frames that are sent at once, and the pause after them: 16,000 a second.
const BURST: u64 = 16;
const BURST_PAUSE: Duration = Duration::from_millis(1);
/// Sizes of the sockets that capture and send.
const SOCKET: Config = Config {
    slots: 256,
    frame_bytes: 1514,
};
/// Neighbour solicitations and advertisements, and the flag of the latter that replaces what is known.
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const OVERRIDE: [u8; 4] = [0x20, 0, 0, 0];
/// EtherTypes.
const ARP: [u8; 2] = [0x08, 0x06];
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
/// Where the source address of an untagged frame is.
const SOURCE_V4: usize = 26;
const SOURCE_V6: usize = 22;

/// Random bytes, some with the beginning of an IP packet.
pub(crate) fn random_bytes(random: &mut Random) -> Vec<u8> {
    let length = 1 + random.below(RANDOM_BYTES as u64) as usize;
    let mut frame: Vec<u8> = (0..length).map(|_| random.bits() as u8).collect();
    if random.happens(0.5)
        && let Some(head) = frame.get_mut(12..15)
    {
        let (kind, first) = match random.happens(0.5) {
            true => (IPV4, 0x45),
            false => (IPV6, 0x60),
        };
        head.copy_from_slice(&[kind[0], kind[1], first]);
    }
    frame
}

/// Makes frames of all kinds.
#[derive(Debug)]
pub(crate) struct Garbage {
    random: Random,
    /// The addresses of services.
    services: Vec<IpAddr>,
    /// What clients have sent, of each IP version.
    real: Vec<Vec<u8>>,
}

impl Garbage {
    /// `services`: their addresses. `real`: frames that clients have sent.
    pub(crate) fn new(random: Random, services: Vec<IpAddr>, real: Vec<Vec<u8>>) -> Garbage {
        Garbage {
            random,
            services,
            real,
        }
    }

    /// The next frame. It may be shorter than a header.
    pub(crate) fn frame(&mut self) -> Vec<u8> {
        let made = match self.random.below(5) {
            0 => None,
            1 => self.changed(),
            2 => self.arp(),
            3 => self.neighbour(),
            _ => self.fragment(),
        };
        let mut frame = made.unwrap_or_else(|| random_bytes(&mut self.random));
        if self.random.happens(0.1) {
            frame.truncate(1 + self.random.below(frame.len() as u64) as usize);
        }
        frame
    }

    fn one_of<'a, T>(random: &mut Random, of: &'a [T]) -> Option<&'a T> {
        of.get(random.below(of.len() as u64) as usize)
    }

    /// An address in the network of that service's that nobody has.
    fn stranger(&mut self, beside: IpAddr) -> IpAddr {
        let host = 10 + self.random.below(80) as u8;
        match beside {
            IpAddr::V4(of) => {
                let [a, b, c, _] = of.octets();
                Ipv4Addr::new(a, b, c, host).into()
            }
            IpAddr::V6(of) => {
                let mut bytes = of.octets();
                (bytes[14], bytes[15]) = (0, host);
                Ipv6Addr::from(bytes).into()
            }
        }
    }

    fn mac(&mut self) -> [u8; 6] {
        let [_, _, rest @ ..] = self.random.bits().to_be_bytes();
        rest
    }

    /// The MAC addresses to which clients send, and another sender's.
    fn macs(&mut self) -> Option<([u8; 6], [u8; 6])> {
        let real = Self::one_of(&mut self.random, &self.real)?;
        let to = *real.first_chunk::<6>()?;
        let mut from = self.mac();
        from[0] &= 0xfe;
        Some((to, from))
    }

    /// A client's frame with the address of a stranger, and some bytes changed.
    fn changed(&mut self) -> Option<Vec<u8>> {
        let mut frame = Self::one_of(&mut self.random, &self.real)?.clone();
        let kind: [u8; 2] = frame.get(12..14)?.try_into().ok()?;
        let is_v4 = kind == IPV4;
        let beside = *self.services.iter().find(|of| of.is_ipv4() == is_v4)?;
        let source = match self.stranger(beside) {
            IpAddr::V4(of) => (SOURCE_V4, of.octets().to_vec()),
            IpAddr::V6(of) => (SOURCE_V6, of.octets().to_vec()),
        };
        for _ in 0..1 + self.random.below(8) {
            // The destination stays, or nobody would look further.
            let at = 6 + self.random.below(frame.len() as u64 - 6) as usize;
            frame[at] ^= 1 << self.random.below(8);
        }
        let (at, address) = source;
        frame.get_mut(at..at + address.len())?.copy_from_slice(&address);
        if is_v4 && self.random.happens(0.7) {
            // A wrong checksum would end it there.
            frame[24..26].fill(0);
            let sum = packet::checksum::internet(frame.get(14..34)?);
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        if self.random.happens(0.2) {
            frame.extend((0..self.random.below(64)).map(|at| at as u8));
        }
        Some(frame)
    }

    /// Somebody who says where an address is: a service's, or a stranger's.
    fn arp(&mut self) -> Option<Vec<u8>> {
        let service = *self.services.iter().find(|of| of.is_ipv4())?;
        let (to, from) = self.macs()?;
        let mut address = || -> [u8; 4] {
            match (self.random.below(4), self.stranger(service), service) {
                (0, _, IpAddr::V4(of)) | (1, IpAddr::V4(of), _) => of.octets(),
                (2, ..) => [0; 4],
                _ => [255; 4],
            }
        };
        let (sender, target) = (address(), address());
        let operation = [1, 2, self.random.below(1 << 16) as u16][self.random.below(3) as usize];
        let lengths = if self.random.happens(0.2) {
            [self.random.bits() as u8, self.random.bits() as u8]
        } else {
            [6, 4]
        };
        let to = if self.random.happens(0.5) { to } else { [0xff; 6] };
        let operation = operation.to_be_bytes();
        let parts: [&[u8]; 11] = [
            &to,
            &from,
            &ARP,
            &[0, 1],
            &IPV4,
            &lengths,
            &operation,
            &from,
            &sender,
            &to,
            &target,
        ];
        Some(parts.concat())
    }

    /// The same of IPv6, with options that end nowhere among them.
    fn neighbour(&mut self) -> Option<Vec<u8>> {
        let service = *self.services.iter().find(|of| of.is_ipv6())?;
        let (to, from) = self.macs()?;
        let source = self.stranger(service);
        let about = match self.random.happens(0.5) {
            true => service,
            false => self.stranger(service),
        };
        let IpAddr::V6(about) = about else { return None };
        let units = self.random.below(3) as u8;
        let kind = 1 + self.random.below(3) as u8;
        let body = [&about.octets()[..], &[kind, units], &from].concat();
        let message = if self.random.happens(0.5) {
            SOLICITATION
        } else {
            ADVERTISEMENT
        };
        let mut frame = Frame::icmp(source, service, message, 0, OVERRIDE, &body).ok()?;
        (frame.dst_mac, frame.src_mac) = (to, from);
        let mut frame = frame.to_vec().ok()?;
        // A hop limit of 255 proves that no router has passed it on.
        frame[21] = if self.random.happens(0.7) { 255 } else { 64 };
        Some(frame)
    }

    /// A piece of a datagram of which the others never come, come twice, or lie over each other.
    fn fragment(&mut self) -> Option<Vec<u8>> {
        let service = *Self::one_of(&mut self.random, &self.services)?;
        let source = self.stranger(service);
        let (to, from) = self.macs()?;
        let payload = vec![self.random.bits() as u8; 64 + self.random.below(1000) as usize];
        let number = if self.random.happens(0.5) {
            protocol::TCP
        } else {
            protocol::UDP
        };
        let network = Network::between(source, service).ok()?;
        let mut whole = Frame::new(network, Transport::Raw { protocol: number }, &payload);
        (whole.dst_mac, whole.src_mac) = (to, from);
        let mtu = 68 + 8 * self.random.below(30) as usize;
        // Few numbers, so that pieces of several meet.
        let pieces = fragment(&whole.to_vec().ok()?, mtu, self.random.below(16) as u32).ok()?;
        let mut piece = Self::one_of(&mut self.random, &pieces)?.clone();
        if self.random.happens(0.5) {
            // Another place, also beyond the end of the longest datagram.
            let at = if service.is_ipv4() { 20 } else { 14 + 40 + 2 };
            let place = self.random.bits() as u16;
            piece.get_mut(at..at + 2)?.copy_from_slice(&place.to_be_bytes());
            if service.is_ipv4() {
                piece[24..26].fill(0);
                let sum = packet::checksum::internet(piece.get(14..34)?);
                piece[24..26].copy_from_slice(&sum.to_be_bytes());
            }
        }
        Some(piece)
    }
}

/// Frames that come to an interface of this thread's network namespace, of both IP versions if both come.
///
/// # Errors
/// There is no such interface, or nothing comes by it.
pub(crate) fn capture(interface: &str) -> Result<Vec<Vec<u8>>> {
    let mut socket = PacketSocket::open(interface, SOCKET)?;
    let mut frames: Vec<Vec<u8>> = Vec::new();
    let since = Instant::now();
    let has = |frames: &[Vec<u8>], kind: [u8; 2]| frames.iter().filter(|of| of[12..14] == kind).count();
    while (has(&frames, IPV4).min(has(&frames, IPV6)) < REAL_FRAMES / 2) && since.elapsed() < REAL_LIMIT {
        let (receiver, _) = socket.rings();
        receiver.take(usize::MAX, |frame| {
            if frame.bytes.len() >= 54 {
                frames.push(frame.bytes.to_vec());
            }
            ControlFlow::Continue(())
        });
        receiver.release();
        std::thread::sleep(BURST_PAUSE);
    }
    anyhow::ensure!(!frames.is_empty(), "no frame comes by {interface}");
    Ok(frames)
}

/// Sends that many frames by an interface of this thread's network namespace.
///
/// # Errors
/// There is no such interface, or it takes nothing.
pub(crate) fn send(interface: &str, frames: u64, garbage: &mut Garbage) -> Result<()> {
    let mut socket = PacketSocket::open(interface, SOCKET)?;
    let (_, sender) = socket.rings();
    for number in 0..frames {
        match sender.put(&garbage.frame()) {
            // It is longer than the interface carries.
            Ok(()) | Err(SendError::TooLarge) => {}
            Err(SendError::Full) => std::thread::sleep(BURST_PAUSE),
        }
        if number % BURST == BURST - 1 || number + 1 == frames {
            sender.send().context("cannot send garbage")?;
            std::thread::sleep(BURST_PAUSE);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use packet::{Parsed, TcpFlags};

    use super::*;

    const CLIENTS: [&str; 2] = ["10.79.0.2", "2001:db8:79::2"];
    const SERVICES: [&str; 2] = ["10.79.0.100", "2001:db8:79::100"];

    fn garbage(seed: u64) -> Garbage {
        let address = |of: &str| -> IpAddr { of.parse().unwrap() };
        let real = CLIENTS.iter().zip(SERVICES).map(|(client, service)| {
            let [from, to] = [(*client, 40_000), (service, 80)].map(|(of, port)| (address(of), port).into());
            let frame = Frame::tcp(from, to, TcpFlags(TcpFlags::ACK), b"GET / HTTP/1.1\r\n\r\n").unwrap();
            frame.to_vec().unwrap()
        });
        Garbage::new(Random::new(seed), SERVICES.map(address).to_vec(), real.collect())
    }

    #[test]
    fn a_seed_gives_its_frames() {
        let frames = |seed| -> Vec<Vec<u8>> {
            let mut garbage = garbage(seed);
            (0..200).map(|_| garbage.frame()).collect()
        };
        assert_eq!(frames(7), frames(7));
        assert_ne!(frames(7), frames(8));
    }

    #[test]
    fn frames_are_of_all_kinds_and_none_is_a_clients() {
        let clients = CLIENTS.map(|of| of.parse::<IpAddr>().unwrap());
        let mut garbage = garbage(1);
        let mut kinds = BTreeSet::new();
        for _ in 0..20_000 {
            let frame = garbage.frame();
            assert!(!frame.is_empty());
            let kind = match packet::parse(&frame) {
                Parsed::Flow(info) => {
                    let tuple = info.key.tuple(info.direction);
                    assert!(!clients.contains(&tuple.src), "{tuple}");
                    format!("flow of {}", if tuple.src.is_ipv4() { "IPv4" } else { "IPv6" })
                }
                Parsed::Fragment(_) => "fragment".to_owned(),
                Parsed::Other { ethertype: 0x0806 } => "ARP".to_owned(),
                Parsed::Other { .. } => "other".to_owned(),
                Parsed::Invalid(reason) => reason.name().to_owned(),
            };
            kinds.insert(kind);
        }
        let all = [
            "ARP",
            "bad_checksum",
            "flow of IPv4",
            "flow of IPv6",
            "fragment",
            "fragment_invalid",
            "malformed",
            "other",
        ];
        assert!(all.iter().all(|kind| kinds.contains(*kind)), "{kinds:?}");
    }
}
