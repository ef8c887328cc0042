//! Network interfaces of the kernel: made, removed, listed and watched over netlink.

use std::io;
use std::net::IpAddr;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

/// The multicast group of changes to interfaces.
const GROUP_LINK: u32 = 1;
/// Longest name of an interface.
pub const NAME_LIMIT: usize = 15;

/// An interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Its name.
    pub name: String,
    /// Its number.
    pub index: u32,
    /// Its MAC address.
    pub mac: [u8; 6],
    /// The longest packet that it carries, in bytes without the Ethernet header.
    pub mtu: u32,
    /// Up, and the other end is up.
    pub has_carrier: bool,
    /// One of a pair.
    pub is_veth: bool,
    /// The other end is in another network namespace.
    pub peer_is_away: bool,
    /// Frames that it was given to send and has dropped.
    pub tx_dropped: u64,
    /// Whether it no longer exists.
    pub is_gone: bool,
}

impl Link {
    fn of(message: &LinkMessage) -> Link {
        let mut link = Link {
            index: message.header.index,
            has_carrier: message.header.flags.contains(LinkFlags::LowerUp | LinkFlags::Up),
            ..Link::default()
        };
        for attribute in &message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name.clone_from(name),
                LinkAttribute::Address(address) => {
                    link.mac = <[u8; 6]>::try_from(address.as_slice()).unwrap_or_default();
                }
                LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
                LinkAttribute::Stats64(of) => link.tx_dropped = of.tx_dropped,
                LinkAttribute::LinkNetNsId(id) => link.peer_is_away = *id >= 0,
                LinkAttribute::LinkInfo(infos) => {
                    link.is_veth = infos
                        .iter()
                        .any(|of| matches!(of, LinkInfo::Kind(InfoKind::Veth)));
                }
                _ => {}
            }
        }
        link
    }
}

/// A connection to the kernel, for requests.
pub struct Links {
    socket: Socket,
    sequence: u32,
}

impl Links {
    /// Of the network namespace of this thread.
    ///
    /// # Errors
    /// The system has no more sockets.
    pub fn new() -> io::Result<Links> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Links { socket, sequence: 0 })
    }

    /// Makes a request, and gives `each` what comes as an answer.
    fn ask(
        &mut self,
        of: RouteNetlinkMessage,
        flags: u16,
        mut each: impl FnMut(&RouteNetlinkMessage),
    ) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut message = NetlinkMessage::from(of);
        message.header.flags = NLM_F_REQUEST | flags;
        message.header.sequence_number = self.sequence;
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        loop {
            let (bytes, _) = self.socket.recv_from_full()?;
            let mut rest = bytes.as_slice();
            while let Some(message) = next(&mut rest) {
                if message.header.sequence_number != self.sequence {
                    continue;
                }
                match message.payload {
                    NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.to_io()),
                    NetlinkPayload::Error(_) | NetlinkPayload::Done(_) => return Ok(()),
                    NetlinkPayload::InnerMessage(answer) => {
                        each(&answer);
                        if flags & NLM_F_DUMP != NLM_F_DUMP {
                            return Ok(());
                        }
                    }
                    _ => {}
                }
            }
        }
    }

    /// The interface of that name.
    ///
    /// # Errors
    /// The kernel's.
    pub fn find(&mut self, name: &str) -> io::Result<Link> {
        let mut found = None;
        let message = named(name);
        self.ask(RouteNetlinkMessage::GetLink(message), 0, |answer| {
            found = link_in(answer);
        })?;
        found.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }

    /// All interfaces.
    ///
    /// # Errors
    /// The kernel's.
    pub fn list(&mut self) -> io::Result<Vec<Link>> {
        let mut found = Vec::new();
        let message = RouteNetlinkMessage::GetLink(LinkMessage::default());
        self.ask(message, NLM_F_DUMP, |answer| found.extend(link_in(answer)))?;
        Ok(found)
    }

    /// The number of the interface by which packets to an address leave, as this machine's routes say.
    ///
    /// # Errors
    /// The kernel's: there is no route.
    pub fn way_to(&mut self, address: IpAddr) -> io::Result<u32> {
        let mut message = RouteMessage::default();
        let (family, bits, to) = match address {
            IpAddr::V4(of) => (AddressFamily::Inet, 32, RouteAddress::Inet(of)),
            IpAddr::V6(of) => (AddressFamily::Inet6, 128, RouteAddress::Inet6(of)),
        };
        (
            message.header.address_family,
            message.header.destination_prefix_length,
        ) = (family, bits);
        message.attributes.push(RouteAttribute::Destination(to));
        let mut found = None;
        self.ask(RouteNetlinkMessage::GetRoute(message), 0, |answer| {
            if let RouteNetlinkMessage::NewRoute(route) = answer {
                found = route.attributes.iter().find_map(|attribute| match attribute {
                    RouteAttribute::Oif(index) => Some(*index),
                    _ => None,
                });
            }
        })?;
        found.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }

    /// Makes a pair: one end stays here and is up, the other one waits for its namespace. Where no MAC address is said
    /// for the end here, it gets a random one, and takes no part in ARP.
    ///
    /// # Errors
    /// The kernel's.
    pub fn make_pair(
        &mut self,
        (here, mac): (&str, Option<[u8; 6]>),
        (there, there_mac): (&str, [u8; 6]),
        mtu: u32,
    ) -> io::Result<()> {
        let mut other = named(there);
        other.attributes.push(LinkAttribute::Address(there_mac.to_vec()));
        other.attributes.push(LinkAttribute::Mtu(mtu));
        let mut message = named(here);
        message.header.flags = match mac {
            Some(_) => LinkFlags::Up,
            None => LinkFlags::Up | LinkFlags::Noarp,
        };
        message.header.change_mask = message.header.flags;
        message
            .attributes
            .extend(mac.map(|mac| LinkAttribute::Address(mac.to_vec())));
        message.attributes.push(LinkAttribute::Mtu(mtu));
        message.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(other))),
        ]));
        let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
        self.ask(RouteNetlinkMessage::NewLink(message), flags, |_| {})
    }

    /// Removes an interface, and with it the other end of its pair.
    ///
    /// # Errors
    /// The kernel's.
    pub fn remove(&mut self, name: &str) -> io::Result<()> {
        match self.ask(RouteNetlinkMessage::DelLink(named(name)), NLM_F_ACK, |_| {}) {
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(()),
            other => other,
        }
    }
}

fn link_in(answer: &RouteNetlinkMessage) -> Option<Link> {
    match answer {
        RouteNetlinkMessage::NewLink(link) => Some(Link::of(link)),
        _ => None,
    }
}

fn named(name: &str) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.attributes.push(LinkAttribute::IfName(name.to_owned()));
    message
}

/// Takes the next message off.
fn next(rest: &mut &[u8]) -> Option<NetlinkMessage<RouteNetlinkMessage>> {
    loop {
        let length = usize::try_from(u32::from_ne_bytes(rest.get(..4)?.try_into().ok()?)).ok()?;
        if length < 16 || length > rest.len() {
            return None;
        }
        let (one, others) = rest.split_at(length.next_multiple_of(4).min(rest.len()));
        *rest = others;
        // One that this crate cannot read says nothing about interfaces of ours.
        if let Ok(message) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(one) {
            return Some(message);
        }
    }
}

/// Tells of changes to interfaces.
pub struct LinkWatch {
    socket: Socket,
}

impl LinkWatch {
    /// Of the network namespace of this thread.
    ///
    /// # Errors
    /// The system has no more sockets.
    pub fn new() -> io::Result<LinkWatch> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.add_membership(GROUP_LINK)?;
        socket.set_non_blocking(true)?;
        // What was missed shows in the next list.
        socket.set_no_enobufs(true)?;
        Ok(LinkWatch { socket })
    }

    /// What has changed since the last call.
    pub fn take(&self, mut each: impl FnMut(Link)) {
        while let Ok((bytes, _)) = self.socket.recv_from_full() {
            let mut rest = bytes.as_slice();
            while let Some(message) = next(&mut rest) {
                match message.payload {
                    NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) => each(Link::of(&link)),
                    NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelLink(link)) => each(Link {
                        is_gone: true,
                        ..Link::of(&link)
                    }),
                    _ => {}
                }
            }
        }
    }
}
