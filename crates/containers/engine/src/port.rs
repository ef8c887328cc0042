//! Kernel ports: interfaces of this machine that are moved into a container's network namespace and set up there,
//! before its program starts. The program finds a network that works and cannot change it. Without addresses, an
//! interface carries whole frames, and the container's kernel says nothing on it.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::IpAddr;
#[cfg(test)]
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::path::Path;

use model::{InterfaceSetup, NetFunction};
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteProtocol, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::EngineError;

/// Addresses of one port at most: the service's and its own, of both families, and room.
const MAX_ADDRESSES: usize = 16;
/// The shortest packet limits that IPv4 and IPv6 allow.
const MIN_MTU: (u16, u16) = (68, 1_280);
/// The longest name of an interface, in bytes.
const MAX_NAME: usize = 15;
/// Room for an answer of the kernel: an interface's description takes about 1.5 KiB.
const ANSWER_BYTES: usize = 32 * 1024;
/// The interface that every network namespace has.
const LOOPBACK: &str = "lo";

/// Whether an interface can be named so: nothing in it leads out of a directory.
pub(crate) fn is_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_graphic() && byte != b'/' && byte != b':';
    (1..=MAX_NAME).contains(&name.len()) && name != "." && name != ".." && name.bytes().all(allowed)
}

/// Whether a port can be so. Looks at nothing outside.
///
/// # Errors
/// [`EngineError::BadSpec`].
pub(crate) fn check(port: &InterfaceSetup) -> Result<(), EngineError> {
    let has_v6 = port.addresses.iter().any(|(address, _)| address.is_ipv6());
    let fits = |&(address, length): &(IpAddr, u8)| {
        length <= if address.is_ipv4() { 32 } else { 128 }
            && !address.is_multicast()
            && !address.is_unspecified()
    };
    let is_unicast = |mac: [u8; 6]| mac[0] & 1 == 0 && mac != [0; 6];
    let reason = if !is_name(&port.host) || !is_name(&port.name) || port.name == LOOPBACK {
        "its name is none of an interface"
    } else if !is_unicast(port.mac) || !is_unicast(port.gateway_mac) {
        "its MAC address is none of one interface"
    } else if port.mtu < if has_v6 { MIN_MTU.1 } else { MIN_MTU.0 } {
        "its MTU is too small"
    } else if port.addresses.len() > MAX_ADDRESSES || !port.addresses.iter().all(fits) {
        "its addresses are too many, or none of one machine"
    } else if port
        .local_ports
        .is_some_and(|(first, last)| first == 0 || first > last)
    {
        "the ports of its connections are none"
    } else {
        return Ok(());
    };
    Err(EngineError::BadSpec {
        what: "this port",
        reason: format!("{}: {reason}", port.host),
    })
}

/// Whether the ports among these functions can be beside each other: each is one interface, and has a name to itself.
///
/// # Errors
/// [`EngineError::BadSpec`].
pub(crate) fn check_all(functions: &[NetFunction]) -> Result<(), EngineError> {
    let mut taken = BTreeSet::new();
    for function in functions {
        if let NetFunction::Port(port) | NetFunction::Frames(port) = function
            && !(taken.insert((true, &port.host)) && taken.insert((false, &port.name)))
        {
            return Err(EngineError::BadSpec {
                what: "these ports",
                reason: format!("two are {} or would be {}", port.host, port.name),
            });
        }
    }
    Ok(())
}

/// Whether the calling thread's network namespace has an interface. `/sys` may show those of another one.
pub(crate) fn is_here(name: &str) -> bool {
    Kernel::connect().is_ok_and(|kernel| kernel.index_of(name).is_ok())
}

/// Moves interfaces of the calling thread's network namespace into another one, and sets both them and that namespace
/// up for programs. What was done stays where it fails: an interface that was moved goes with its namespace.
///
/// # Errors
/// What failed, in words.
pub(crate) fn give(network: BorrowedFd<'_>, ports: &[InterfaceSetup]) -> Result<(), String> {
    let here = Kernel::connect()?;
    for port in ports {
        let index = here.index_of(&port.host)?;
        let mut link = LinkMessage::default();
        link.header.index = index;
        link.attributes = vec![
            LinkAttribute::NetNsFd(network.as_raw_fd()),
            LinkAttribute::IfName(port.name.clone()),
        ];
        here.ask(RouteNetlinkMessage::SetLink(link), 0)
            .map_err(|error| format!("give {} to the container as {}: {error}", port.host, port.name))?;
    }
    // On a thread of its own, which ends in the other namespace.
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, || set_up(network, ports));
        let thread = thread.map_err(|error| format!("start the thread that sets ports up: {error}"))?;
        let panicked = |_| Err("the thread that sets ports up panicked".to_owned());
        thread.join().unwrap_or_else(panicked)
    })
}

fn set_up(network: BorrowedFd<'_>, ports: &[InterfaceSetup]) -> Result<(), String> {
    move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(|errno| format!("enter the network namespace: {errno}"))?;
    // As Docker has it: any user may serve any port, and ask whether a machine is there.
    set("ipv4/ip_unprivileged_port_start", "0")?;
    set("ipv4/ping_group_range", "0 2147483647")?;
    set("ipv4/conf/all/rp_filter", "0")?;
    // A new namespace has this machine's setting: where that forwards, the container would send foreign packets back.
    set("ipv4/ip_forward", "0")?;
    if let Some((first, last)) = ports.iter().find_map(|port| port.local_ports) {
        set("ipv4/ip_local_port_range", &format!("{first} {last}"))?;
    }
    let kernel = Kernel::connect()?;
    kernel.bring_up(LOOPBACK)?;
    for (port, priority) in ports.iter().zip(1..) {
        kernel
            .set_up(port, priority)
            .map_err(|reason| format!("set {} up in the container: {reason}", port.name))?;
    }
    Ok(())
}

/// Writes a setting of the calling thread's network namespace.
fn set(setting: &str, value: &str) -> Result<(), String> {
    let path = Path::new("/proc/sys/net").join(setting);
    fs::write(&path, value).map_err(|error| format!("write {value} to {}: {error}", path.display()))
}

/// The kernel's network, of the namespace in which this was made.
struct Kernel(Socket);

impl Kernel {
    fn connect() -> Result<Kernel, String> {
        let connected = || -> io::Result<Socket> {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.bind_auto()?;
            socket.connect(&SocketAddr::new(0, 0))?;
            Ok(socket)
        };
        connected()
            .map(Kernel)
            .map_err(|error| format!("ask the kernel about its network: {error}"))
    }

    /// Asks, and waits for the answer: a message, or nothing but that it is done.
    fn ask(&self, message: RouteNetlinkMessage, flags: u16) -> io::Result<Option<RouteNetlinkMessage>> {
        let mut request = NetlinkMessage::from(message);
        let is_question = matches!(
            request.payload,
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::GetLink(_))
        );
        request.header.flags = NLM_F_REQUEST | if is_question { 0 } else { NLM_F_ACK | flags };
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        self.0.send(&bytes, 0)?;
        let mut answer = Vec::with_capacity(ANSWER_BYTES);
        self.0.recv(&mut answer, 0)?;
        let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer).map_err(io::Error::other)?;
        match answer.payload {
            NetlinkPayload::InnerMessage(message) => Ok(Some(message)),
            NetlinkPayload::Error(error) if error.code.is_some() => Err(error.to_io()),
            NetlinkPayload::Error(_) => Ok(None),
            other => Err(io::Error::other(format!("the kernel answers {other:?}"))),
        }
    }

    fn index_of(&self, name: &str) -> Result<u32, String> {
        let mut link = LinkMessage::default();
        link.attributes = vec![LinkAttribute::IfName(name.to_owned())];
        match self.ask(RouteNetlinkMessage::GetLink(link), 0) {
            Ok(Some(RouteNetlinkMessage::NewLink(link))) => Ok(link.header.index),
            Ok(_) => Err(format!("the kernel does not describe {name}")),
            Err(error) => Err(format!("look for the interface {name}: {error}")),
        }
    }

    fn change(&self, index: u32, is_up: bool, attributes: Vec<LinkAttribute>) -> io::Result<()> {
        let mut link = LinkMessage::default();
        link.header.index = index;
        link.attributes = attributes;
        if is_up {
            link.header.flags = LinkFlags::Up;
            link.header.change_mask = LinkFlags::Up;
        }
        self.ask(RouteNetlinkMessage::SetLink(link), 0).map(drop)
    }

    fn bring_up(&self, name: &str) -> Result<(), String> {
        let index = self.index_of(name)?;
        self.change(index, true, Vec::new())
            .map_err(|error| format!("bring {name} up: {error}"))
    }

    fn set_up(&self, port: &InterfaceSetup, priority: u32) -> Result<(), String> {
        let words = |what: &'static str| move |error: io::Error| format!("{what}: {error}");
        let index = self.index_of(&port.name)?;
        let first = |is_v6: bool| {
            let mut addresses = port.addresses.iter().map(|&(address, _)| address);
            addresses.find(|address| address.is_ipv6() == is_v6)
        };
        // What the machine's default is.
        set(&format!("ipv4/conf/{}/rp_filter", port.name), "0")?;
        if Path::new("/proc/sys/net/ipv6").exists() {
            let of = |setting: &str| format!("ipv6/conf/{}/{setting}", port.name);
            if first(true).is_some() {
                set(&of("disable_ipv6"), "0")?;
                // It has the addresses that it is given and no others, and nobody but inco is its router.
                set(&of("addr_gen_mode"), "1")?;
                set(&of("accept_ra"), "0")?;
            } else {
                set(&of("disable_ipv6"), "1")?;
            }
        }
        let link = vec![
            LinkAttribute::Address(port.mac.to_vec()),
            LinkAttribute::Mtu(u32::from(port.mtu)),
        ];
        self.change(index, false, link).map_err(words("MAC and MTU"))?;
        for &(address, length) in &port.addresses {
            let mut message = AddressMessage::default();
            message.header.family = family(address);
            message.header.prefix_len = length;
            message.header.index = index;
            // Nobody else has it, so that nobody is asked and it serves at once.
            if address.is_ipv6() {
                message.header.flags = AddressHeaderFlags::Nodad;
            }
            message.attributes = vec![
                AddressAttribute::Local(address),
                AddressAttribute::Address(address),
            ];
            self.ask(
                RouteNetlinkMessage::NewAddress(message),
                NLM_F_CREATE | NLM_F_EXCL,
            )
            .map_err(|error| format!("address {address}/{length}: {error}"))?;
        }
        self.change(index, true, Vec::new()).map_err(words("up"))?;
        let gateways = [IpAddr::V4(port.gateway_v4), IpAddr::V6(port.gateway_v6)];
        for (gateway, source) in gateways.into_iter().zip([first(false), first(true)]) {
            let Some(source) = source else { continue };
            self.add_neighbour(index, gateway, port.gateway_mac)
                .map_err(words("the next hop's MAC address"))?;
            self.add_default_route(index, gateway, source, priority)
                .map_err(words("the default route"))?;
        }
        Ok(())
    }

    fn add_neighbour(&self, index: u32, address: IpAddr, mac: [u8; 6]) -> io::Result<()> {
        let mut message = NeighbourMessage::default();
        message.header.family = family(address);
        message.header.ifindex = index;
        message.header.state = NeighbourState::Permanent;
        message.attributes = vec![
            NeighbourAttribute::Destination(match address {
                IpAddr::V4(address) => NeighbourAddress::Inet(address),
                IpAddr::V6(address) => NeighbourAddress::Inet6(address),
            }),
            NeighbourAttribute::LinkLayerAddress(mac.to_vec()),
        ];
        self.ask(
            RouteNetlinkMessage::NewNeighbour(message),
            NLM_F_CREATE | NLM_F_REPLACE,
        )
        .map(drop)
    }

    /// To everywhere, through a next hop that no prefix of the interface has, from this address. A lower priority is
    /// preferred, and no two routes have the same one.
    fn add_default_route(
        &self,
        index: u32,
        gateway: IpAddr,
        source: IpAddr,
        priority: u32,
    ) -> io::Result<()> {
        let mut message = RouteMessage::default();
        message.header.address_family = family(gateway);
        message.header.table = RouteHeader::RT_TABLE_MAIN;
        message.header.protocol = RouteProtocol::Static;
        message.header.kind = RouteType::Unicast;
        message.header.flags = RouteFlags::Onlink;
        message.attributes = vec![
            RouteAttribute::Oif(index),
            RouteAttribute::Gateway(RouteAddress::from(gateway)),
            RouteAttribute::PrefSource(RouteAddress::from(source)),
            RouteAttribute::Priority(priority),
        ];
        self.ask(RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_EXCL)
            .map(drop)
    }
}

fn family(address: IpAddr) -> AddressFamily {
    match address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    }
}

/// A port as tests want one.
#[cfg(test)]
pub(crate) fn example() -> InterfaceSetup {
    InterfaceSetup {
        host: "incoc0".into(),
        name: "eth0".into(),
        mac: [2, 0x69, 0x6e, 0x63, 0, 1],
        mtu: 1_500,
        addresses: vec![(IpAddr::from([10, 0, 0, 100]), 32)],
        gateway_v4: Ipv4Addr::new(169, 254, 1, 1),
        gateway_v6: Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1),
        gateway_mac: [2, 0x69, 0x6e, 0x63, 0x6f, 0],
        local_ports: None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by it")]
mod tests {
    use super::*;

    #[test]
    fn two_ports_are_two_interfaces_with_two_names() {
        let second = |host: &str, name: &str| InterfaceSetup {
            host: host.into(),
            name: name.into(),
            ..example()
        };
        for (host, name, is_right) in [
            ("incoc1", "eth1", true),
            ("incoc0", "eth1", false),
            ("incoc1", "eth0", false),
            // One that is called so on the host is another one.
            ("eth0", "incoc0", true),
        ] {
            let ports = [example(), second(host, name)].map(NetFunction::Port);
            assert_eq!(check_all(&ports).is_ok(), is_right, "{host} {name}");
        }
    }

    #[test]
    fn a_port_that_cannot_be_is_refused_with_what_is_wrong() {
        assert_eq!(check(&example()), Ok(()));
        let v6: IpAddr = "2001:db8::1".parse().unwrap();
        type Change = fn(&mut InterfaceSetup);
        let changed: [(&str, Change); 9] = [
            ("name", |port| port.host = "../../etc".into()),
            ("name", |port| port.name = "a-name-of-more-than-15".into()),
            ("name", |port| port.name = "lo".into()),
            ("MAC", |port| port.mac[0] = 1),
            ("MAC", |port| port.gateway_mac = [0; 6]),
            ("MTU", |port| port.mtu = 67),
            ("addresses", |port| port.addresses[0].1 = 33),
            ("addresses", |port| {
                port.addresses[0].0 = IpAddr::from([224, 0, 0, 1])
            }),
            ("ports", |port| port.local_ports = Some((2, 1))),
        ];
        for (what, change) in changed {
            let mut port = example();
            change(&mut port);
            let error = check(&port).unwrap_err().to_string();
            assert!(error.contains(what), "{what}: {error}");
        }
        let mut port = example();
        port.addresses = vec![(v6, 128)];
        port.mtu = 1_279;
        assert!(check(&port).is_err());
        port.addresses = vec![(v6, 128); MAX_ADDRESSES + 1];
        port.mtu = 1_500;
        assert!(check(&port).is_err());
    }
}
