//! What a client and an instance say to each other where the switch between them translates addresses.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

use crate::{Namespace, fetch};

/// How long an answer may take.
const LIMIT: Duration = Duration::from_secs(10);

/// A socket of the client that asks only that server.
fn asking(client: &str, server: &str) -> UdpSocket {
    let socket = UdpSocket::bind(client).unwrap();
    socket.connect(server).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    socket
}

/// Whether the client is told that nobody listens there: an ICMP error quotes what it has sent.
///
/// # Panics
/// An address is none.
pub fn refuses(net: &Namespace, client: &str, server: &str) -> bool {
    net.within(|| {
        let socket = asking(client, server);
        socket.send(b"question").unwrap();
        socket
            .recv(&mut [0; 64])
            .is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    })
}

/// Sends datagrams back, at that address in the instance.
///
/// # Panics
/// The address cannot be served.
pub fn echo(instance: &Namespace, address: &str) {
    let socket = instance.within(|| UdpSocket::bind(address).unwrap());
    std::thread::spawn(move || {
        let mut buffer = vec![0; 9000];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            socket.send_to(&buffer[..length], from).unwrap();
        }
    });
}

/// Whether a datagram of so many bytes, up to 9,000, comes back: in fragments, where it is long.
///
/// # Panics
/// An address is none, or nothing comes.
pub fn echoes(net: &Namespace, client: &str, server: &str, bytes: u16) -> bool {
    let sent: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
    net.within(|| {
        let socket = asking(client, server);
        socket.send(&sent).unwrap();
        let mut got = vec![0; 9000];
        let length = socket.recv(&mut got).unwrap();
        got[..length] == sent
    })
}

/// Has an instance open a connection to `to`, where the client's side listens, from that address, or from one of its
/// kernel's choice. Whether both ends see the same one, and the text comes.
///
/// # Panics
/// There is no connection.
pub fn opens_its_own(net: &Namespace, instance: &Namespace, from: Option<&str>, to: &str) -> bool {
    let listener = net.within(|| TcpListener::bind(to).unwrap());
    let asked = std::thread::spawn(move || {
        let (mut stream, from) = listener.accept().unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        (text, from)
    });
    let here = instance.within(|| {
        let to: SocketAddr = to.parse().unwrap();
        let family = match to {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let socket = socket(family, SocketType::STREAM, None).unwrap();
        if let Some(from) = from {
            bind(&socket, &from.parse::<SocketAddr>().unwrap()).unwrap();
        }
        connect(&socket, &to).unwrap();
        let mut stream = TcpStream::from(socket);
        stream.write_all(b"its own").unwrap();
        stream.local_addr().unwrap()
    });
    let (text, seen) = asked.join().unwrap();
    text == "its own" && seen == here && from.is_none_or(|from| from.parse() == Ok(seen))
}

/// Downloads from these addresses, each with its port, over a link that is narrower than anybody said: behind `net0` of
/// the client's side. ICMP errors, which quote what the instance has sent, reach it.
///
/// # Panics
/// A download does not end, or the instance does not know how narrow the path is.
pub fn finds_a_narrow_path(net: &Namespace, instance: &Namespace, servers: &[String]) {
    let far = Namespace::new("far");
    net.ip(&format!(
        "link add far0 type veth peer name far1 netns {}",
        far.name
    ));
    net.set("ipv4/ip_forward", "1");
    net.set("ipv6/conf/all/forwarding", "1");
    for (namespace, interface, v4, v6) in [
        (net, "far0", "10.9.0.1/24", "2001:db8:9::1/64"),
        (&far, "far1", "10.9.0.2/24", "2001:db8:9::2/64"),
    ] {
        // The ends would say a smaller segment size if they knew it.
        namespace.ip(&format!("addr add {v4} dev {interface}"));
        namespace.ip(&format!("addr add {v6} dev {interface} nodad"));
        namespace.ip(&format!("link set {interface} up"));
    }
    net.ip("link set far0 mtu 1300");
    far.ip("route add default via 10.9.0.1");
    far.ip("-6 route add default via 2001:db8:9::1");
    for server in servers {
        let got = far.within(|| fetch(server, 4 << 20));
        assert_eq!(got, Ok(()), "{server}");
    }
    for (version, to) in [("-4", "10.9.0.2"), ("-6", "2001:db8:9::2")] {
        let known = instance
            .command("ip")
            .args([version, "route", "get", to])
            .output()
            .unwrap();
        let known = String::from_utf8(known.stdout).unwrap();
        assert!(
            known.contains("mtu 1300"),
            "the instance does not know it: {known}"
        );
    }
}
