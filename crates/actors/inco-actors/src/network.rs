//! The network of a side: packets of clients through inco's switch (memif, or interfaces of the kernel), or a UDP socket of
//! the kernel. Payloads come in as messages for the entry actor, and answers leave.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, PoisonError};

use actor_control::Side;
use actor_runtime::{ActorId, Address, Message, Outside};
use actor_side::HOST_NETWORK;
use anyhow::{Context as _, Result};
use model::{Nanos, protocol};
use packet::build::Frame;
use packet::{PacketInfo, Parsed, checksum};

use crate::Options;
use crate::clients::Clients;
use crate::wires::Wires;

/// Datagrams that are taken from the socket before something else is done.
const TAKEN: usize = 32;
/// Bytes of a frame, at most: a longer one comes in several buffers, and is still one packet of 64 KiB or less.
const FRAME_BYTES: usize = memif::MAX_PACKET_BYTES;
/// Bytes of a UDP header.
const UDP_BYTES: usize = 8;
/// Bytes before the IP header, at most: addresses, type, and four tags.
const LINK_BYTES: usize = 14 + 4 * packet::MAX_VLAN_TAGS;

/// What was counted: see `actor_control::Counts`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NetworkCounts {
    pub(crate) requests: u64,
    pub(crate) answers: u64,
    pub(crate) malformed: u64,
    pub(crate) unknown_clients: u64,
    pub(crate) unsent: u64,
}

/// A client behind the switch: the port where its frames come and leave, their head, and the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Peer {
    port: u8,
    link: [u8; LINK_BYTES],
    link_bytes: u8,
    client: SocketAddr,
    own: SocketAddr,
}

impl Peer {
    /// Who has sent a frame, and what it says; nothing unless it is a whole UDP packet with a right checksum.
    fn of(frame: &[u8], port: u8) -> Option<(Peer, &[u8])> {
        let Parsed::Flow(info) = packet::parse(frame) else {
            return None;
        };
        if info.protocol != protocol::UDP || info.is_icmp_error {
            return None;
        }
        let from = info.key.tuple(info.direction);
        let payload = payload(frame, &info, from.src, from.dst)?;
        let head = frame.get(..usize::from(info.l3_offset))?;
        let mut link = [0; LINK_BYTES];
        link.get_mut(..head.len())?.copy_from_slice(head);
        let peer = Peer {
            port,
            link,
            link_bytes: head.len() as u8,
            client: SocketAddr::new(from.src, from.src_port),
            own: SocketAddr::new(from.dst, from.dst_port),
        };
        Some((peer, payload))
    }

    /// Writes the frame of an answer; gives its length.
    fn answer(&self, payload: &[u8], into: &mut [u8]) -> Option<usize> {
        let link_bytes = usize::from(self.link_bytes);
        let answer = Frame::udp(self.own, self.client, payload).ok()?;
        // Its own head is replaced by the client's with swapped addresses; tags stay.
        let first = link_bytes.checked_sub(answer.l3_offset())?;
        let length = answer.write(into.get_mut(first..)?).ok()?;
        let head = into.get_mut(..link_bytes)?;
        head.copy_from_slice(self.link.get(..link_bytes)?);
        let (to, rest) = head.split_at_mut(6);
        to.swap_with_slice(rest.get_mut(..6)?);
        Some(first + length)
    }
}

/// The payload of a UDP packet.
fn payload<'f>(frame: &'f [u8], info: &PacketInfo, src: IpAddr, dst: IpAddr) -> Option<&'f [u8]> {
    let end = usize::from(info.l3_offset) + info.l3_len as usize;
    let datagram = frame.get(usize::from(info.l4_offset)..end)?;
    let length = usize::from(u16::from_be_bytes([*datagram.get(4)?, *datagram.get(5)?]));
    let datagram = datagram.get(..length).filter(|of| of.len() >= UDP_BYTES)?;
    let is_summed = datagram.get(6..UDP_BYTES)? != [0, 0];
    let pseudo = match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            checksum::pseudo_v4(src.octets(), dst.octets(), protocol::UDP, length)
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) if is_summed => {
            checksum::pseudo_v6(src.octets(), dst.octets(), protocol::UDP, length)
        }
        _ => return None,
    };
    let is_right = !is_summed || checksum::add(pseudo, checksum::sum(datagram)) == u16::MAX;
    is_right.then(|| &datagram[UDP_BYTES..])
}

/// Packets through inco's switch.
struct FramePort {
    wires: Wires,
    /// Whether frames are messages as they are.
    takes_frames: bool,
    /// The bits of all numbers of this network.
    base: u64,
    clients: Clients<Peer>,
    frame: Box<[u8]>,
}

/// Datagrams through the kernel.
struct UdpPort {
    socket: UdpSocket,
    clients: Clients<SocketAddr>,
    datagram: Box<[u8]>,
}

/// How packets come and leave.
enum Port {
    Frames(Box<FramePort>),
    Udp(UdpPort),
}

struct State {
    port: Port,
    side: Side,
    entry: ActorId,
    /// Ports that belong to other actors.
    routes: BTreeMap<u16, ActorId>,
    counts: NetworkCounts,
}

/// The network of a side. Clones are the same: the main thread has one, the runtime the other.
#[derive(Clone)]
pub(crate) struct Network(Option<Arc<Mutex<State>>>);

impl Network {
    /// Opens what the options say; without any, there is no network.
    pub(crate) fn open(options: &Options) -> Result<Network> {
        let port = match (&options.socket, options.udp) {
            _ if !options.interfaces.is_empty() => {
                frames(Wires::interfaces(&options.interfaces, options.ring_slots)?)
            }
            (Some(path), _) => frames(Wires::memif(path)?),
            (None, Some(address)) => udp(address)?,
            (None, None) => return Ok(Network(None)),
        };
        Ok(Network(Some(Arc::new(Mutex::new(State {
            port,
            side: options.side,
            entry: ActorId(0),
            routes: BTreeMap::new(),
            counts: NetworkCounts::default(),
        })))))
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> Option<T> {
        // A holder that panicked has ended the program.
        let state = self.0.as_ref()?;
        Some(work(&mut state.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Who gets what comes, to which ports other actors, and which process of its side this is.
    /// Whether it takes frames as they are: a port says so only of a network through the switch.
    pub(crate) fn begin(&self, entry: ActorId, routes: &[(u16, u32)], incarnation: u32, takes_frames: bool) {
        self.with(|state| {
            state.entry = entry;
            state.routes = routes
                .iter()
                .map(|(port, actor)| (*port, ActorId(*actor)))
                .collect();
            let base = match state.side {
                Side::Card => 0,
                Side::Host => HOST_NETWORK,
            };
            match &mut state.port {
                Port::Frames(port) => {
                    port.clients = Clients::new(incarnation, base);
                    (port.takes_frames, port.base) = (takes_frames, base);
                }
                Port::Udp(port) => port.clients = Clients::new(incarnation, base),
            }
        });
    }

    /// Ends links whose peer has left or has violated the protocol, and takes new ones.
    pub(crate) fn link(&self) -> Result<()> {
        let linked = self.with(|state| match &mut state.port {
            Port::Frames(port) => port.wires.link(),
            Port::Udp(_) => Ok(()),
        });
        linked.unwrap_or(Ok(()))
    }

    pub(crate) fn counts(&self) -> NetworkCounts {
        self.with(|state| state.counts).unwrap_or_default()
    }
}

fn frames(wires: Wires) -> Port {
    Port::Frames(Box::new(FramePort {
        wires,
        takes_frames: false,
        base: 0,
        clients: Clients::new(0, 0),
        frame: vec![0; FRAME_BYTES].into_boxed_slice(),
    }))
}

fn udp(address: SocketAddr) -> Result<Port> {
    let socket = UdpSocket::bind(address).with_context(|| format!("cannot listen on {address}"))?;
    socket
        .set_nonblocking(true)
        .context("cannot use a socket without waiting")?;
    Ok(Port::Udp(UdpPort {
        socket,
        clients: Clients::new(0, 0),
        datagram: vec![0; FRAME_BYTES].into_boxed_slice(),
    }))
}

impl FramePort {
    /// Gives payloads, or frames, with their senders; how many packets were none of a client.
    fn receive(&mut self, mut request: impl FnMut(u64, u16, &[u8])) -> u64 {
        let (clients, mut malformed) = (&mut self.clients, 0);
        let taken = self.wires.receive(&mut self.frame, |port, frame| {
            if self.takes_frames {
                return request(self.base | u64::from(port), 0, frame);
            }
            match Peer::of(frame, port) {
                Some((peer, payload)) => request(clients.number_of(peer), peer.own.port(), payload),
                None => malformed += 1,
            }
        });
        taken + malformed
    }

    /// Sends an answer; nothing for a client that is not known any more, else whether there was room.
    fn send(&mut self, number: u64, payload: &[u8]) -> Option<bool> {
        if self.takes_frames {
            let port = (number & !self.base) as usize;
            return Some(self.wires.push(port, payload));
        }
        let peer = self.clients.client(number)?;
        let length = peer.answer(payload, &mut self.frame);
        let sent =
            length.is_some_and(|length| self.wires.push(usize::from(peer.port), &self.frame[..length]));
        Some(sent)
    }
}

impl UdpPort {
    fn receive(&mut self, mut request: impl FnMut(u64, u16, &[u8])) {
        let port = self.socket.local_addr().map_or(0, |own| own.port());
        for _ in 0..TAKEN {
            let Ok((length, from)) = self.socket.recv_from(&mut self.datagram) else {
                return;
            };
            request(self.clients.number_of(from), port, &self.datagram[..length]);
        }
    }

    fn send(&mut self, number: u64, payload: &[u8]) -> Option<bool> {
        let client = self.clients.client(number)?;
        Some(self.socket.send_to(payload, client).is_ok())
    }
}

impl State {
    fn poll(&mut self, now: Nanos, into: &mut Vec<Message>) {
        let (entry, routes, before) = (self.entry, &self.routes, into.len());
        let mut request = |number, port, body: &[u8]| {
            into.push(Message::new(
                Address::Actor(routes.get(&port).copied().unwrap_or(entry)),
                Address::Outside(number),
                0,
                body.to_vec(),
                now,
            ));
        };
        match &mut self.port {
            Port::Udp(port) => port.receive(&mut request),
            Port::Frames(port) => self.counts.malformed += port.receive(&mut request),
        }
        self.counts.requests += (into.len() - before) as u64;
    }

    fn send(&mut self, messages: &mut Vec<Message>) {
        for message in messages.drain(..) {
            let Address::Outside(number) = message.to else {
                continue;
            };
            let sent = match &mut self.port {
                Port::Udp(port) => port.send(number, &message.body),
                Port::Frames(port) => port.send(number, &message.body),
            };
            match sent {
                Some(true) => self.counts.answers += 1,
                Some(false) => self.counts.unsent += 1,
                None => self.counts.unknown_clients += 1,
            }
        }
        if let Port::Frames(port) = &mut self.port {
            port.wires.flush();
        }
    }
}

impl Outside for Network {
    fn poll(&mut self, now: Nanos, into: &mut Vec<Message>) {
        self.with(|state| state.poll(now, into));
    }

    fn send(&mut self, messages: &mut Vec<Message>) {
        self.with(|state| state.send(messages));
        // Without a network nobody is there.
        messages.clear();
    }
}

#[cfg(test)]
mod tests {
    use packet::build::Tag;

    use super::*;

    #[test]
    fn an_answer_goes_back_where_its_request_came_from() {
        let (client, own) = ("192.0.2.7:4000", "198.51.100.1:7000");
        let (six_client, six_own) = ("[2001:db8::7]:4000", "[2001:db8::1]:7000");
        let tags = [Tag::service(5), Tag::vlan(7)];
        for (client, own) in [(client, own), (six_client, six_own)] {
            for tags in [&tags[..0], &tags[1..], &tags] {
                let (client, own) = (client.parse().unwrap(), own.parse().unwrap());
                let request = Frame {
                    tags,
                    ..Frame::udp(client, own, b"request").unwrap()
                };
                let (dst_mac, src_mac) = (request.dst_mac, request.src_mac);
                let request = request.to_vec().unwrap();
                let (peer, payload) = Peer::of(&request, 1).unwrap();
                assert_eq!(payload, b"request");
                let mut frame = [0; 200];
                let length = peer.answer(b"the answer", &mut frame).unwrap();
                let expected = Frame {
                    dst_mac: src_mac,
                    src_mac: dst_mac,
                    tags,
                    ..Frame::udp(own, client, b"the answer").unwrap()
                };
                assert_eq!(frame[..length], expected.to_vec().unwrap());
                assert_eq!(peer.answer(b"the answer", &mut frame[..length - 1]), None);
            }
        }
    }

    #[test]
    fn what_is_no_whole_udp_packet_is_no_request() {
        let (client, own) = (
            "192.0.2.7:4000".parse().unwrap(),
            "198.51.100.1:7000".parse().unwrap(),
        );
        let right = Frame::udp(client, own, b"request").unwrap().to_vec().unwrap();
        assert!(Peer::of(&right, 0).is_some());
        let mut changed = right.clone();
        *changed.last_mut().unwrap() ^= 1;
        assert!(Peer::of(&changed, 0).is_none(), "its checksum is wrong");
        for longer in [0_u16, 7, 16] {
            let mut changed = right.clone();
            changed[38..40].copy_from_slice(&longer.to_be_bytes());
            assert!(Peer::of(&changed, 0).is_none(), "its length is {longer}");
        }
        let tcp = Frame::tcp(client, own, packet::TcpFlags::default(), b"x").unwrap();
        assert!(Peer::of(&tcp.to_vec().unwrap(), 0).is_none());
        (0..right.len()).for_each(|length| assert!(Peer::of(&right[..length], 0).is_none()));
    }
}
