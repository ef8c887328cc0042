//! Which ports the programs of a network namespace serve. The kernel is asked (`NETLINK_SOCK_DIAG`) by a socket that
//! was made in that namespace. A question about listening sockets costs some 10 µs; `/proc/PID/net/tcp` would walk over
//! every connection of the machine.
//!
//! Which interfaces its programs take whole frames from is in `/proc/PID/net/packet`, with a line for each packet socket.
//!
//! The published crate for these messages needs another version of `netlink-packet-core` than the rest of inco, so the
//! one question and its answer are written out here. Their layout is `struct inet_diag_req_v2` and
//! `struct inet_diag_msg` of `linux/inet_diag.h`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::os::fd::AsFd as _;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use model::{InstanceId, protocol};
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use netlink_sys::{Socket, SocketAddr};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::HealthError;

/// How often the kernel is asked while a program starts. A service waits for the answer.
const ASK_EVERY: Duration = Duration::from_millis(1);
/// How often a namespace that cannot be asked is tried again.
const AGAIN: Duration = Duration::from_millis(20);
/// Answers about one namespace that are read at most: a program with more sockets than this listens on all its ports
/// many times over.
const MAX_ANSWERS: usize = 256;
/// Room for an answer: the kernel fills a page, or 32 KiB.
const ANSWER_BYTES: usize = 32 * 1024;

/// `SOCK_DIAG_BY_FAMILY` of `linux/sock_diag.h`.
const BY_FAMILY: u16 = 20;
/// `NLM_F_REQUEST` and `NLM_F_DUMP`.
const DUMP: u16 = 0x0001 | 0x0300;
/// `NLMSG_ERROR` and `NLMSG_DONE`.
const ERROR: u16 = 2;
const DONE: u16 = 3;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
/// A socket of TCP that listens, and one of UDP that is not connected.
const LISTENS: u32 = 1 << 10;
const UNCONNECTED: u32 = 1 << 7;
/// `INET_DIAG_SKV6ONLY`: whether a socket of IPv6 takes no IPv4.
const V6_ONLY: u16 = 11;
/// Lengths of a message's header, of a question and of the fixed part of an answer.
const HEADER: usize = 16;
const QUESTION: usize = 56;
const FIXED: usize = 72;

/// What an instance must serve to be ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listening {
    /// The instance.
    pub instance: InstanceId,
    /// Its program's process id.
    pub pid: u32,
    /// Addresses that clients use. One that is served is enough.
    pub addresses: Vec<IpAddr>,
    /// Ports and ranges of ports. Of each, one port must be served.
    pub ports: Vec<RangeInclusive<u16>>,
    /// From so many interfaces it must take whole frames.
    pub interfaces: usize,
}

/// A socket that serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Served {
    address: IpAddr,
    port: u16,
    is_v6_only: bool,
}

impl Served {
    /// Whether packets to that address reach it.
    fn takes(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V6(of), IpAddr::V4(to)) => {
                (of.is_unspecified() && !self.is_v6_only) || of.to_ipv4_mapped() == Some(to)
            }
            (of, to) => of == to || (of.is_unspecified() && of.is_ipv4() == to.is_ipv4()),
        }
    }
}

impl Listening {
    /// The first ports that nobody serves.
    fn missing(&self, served: &[Served]) -> Option<&RangeInclusive<u16>> {
        let is_served = |range: &&RangeInclusive<u16>| {
            served
                .iter()
                .any(|of| range.contains(&of.port) && self.addresses.iter().any(|address| of.takes(*address)))
        };
        self.ports.iter().find(|range| !is_served(range))
    }
}

/// The sockets of a network namespace.
struct Sockets(Socket);

impl Sockets {
    /// Those of the namespace of a process. The socket is made by a thread that enters it and ends there.
    fn of(pid: u32) -> Result<Sockets, HealthError> {
        let path = format!("/proc/{pid}/ns/net");
        let system = |what| move |source| HealthError::System { what, source };
        let namespace = File::open(path).map_err(system("open the network namespace of its program"))?;
        let made = thread::scope(|scope| {
            let enter = || -> io::Result<Socket> {
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
                let mut socket = Socket::new(NETLINK_SOCK_DIAG)?;
                socket.bind_auto()?;
                socket.connect(&SocketAddr::new(0, 0))?;
                Ok(socket)
            };
            let thread = thread::Builder::new().spawn_scoped(scope, enter)?;
            let panicked = |_| Err(io::Error::other("the thread that entered it panicked"));
            thread.join().unwrap_or_else(panicked)
        });
        made.map(Sockets)
            .map_err(system("ask in the network namespace of its program"))
    }

    /// What serves: sockets of TCP that listen, and sockets of UDP that have a port.
    fn served(&self) -> Result<Vec<Served>, HealthError> {
        let mut all = Vec::new();
        for (protocol, states) in [(protocol::TCP, LISTENS), (protocol::UDP, UNCONNECTED)] {
            for family in [AF_INET, AF_INET6] {
                self.ask(family, protocol, states, &mut all)?;
            }
        }
        Ok(all)
    }

    fn ask(&self, family: u8, protocol: u8, states: u32, all: &mut Vec<Served>) -> Result<(), HealthError> {
        let system = |source| HealthError::System {
            what: "ask the kernel what listens",
            source,
        };
        self.0
            .send(&question(family, protocol, states), 0)
            .map_err(system)?;
        let mut answer = Vec::with_capacity(ANSWER_BYTES);
        loop {
            answer.clear();
            self.0.recv(&mut answer, 0).map_err(system)?;
            if read(&answer, family, all)? {
                return Ok(());
            }
        }
    }
}

/// From how many interfaces whole frames are taken in the network namespace of a process.
fn frames_taken(pid: u32) -> Result<usize, HealthError> {
    let sockets = std::fs::read_to_string(format!("/proc/{pid}/net/packet"));
    let sockets = sockets.map_err(|source| HealthError::System {
        what: "look for packet sockets in the network namespace of its program",
        source,
    })?;
    Ok(interfaces_of(&sockets))
}

/// The interfaces in a list of packet sockets that are bound and take frames. Its columns: address, references, type,
/// protocol, interface, whether it takes frames, and others.
fn interfaces_of(sockets: &str) -> usize {
    let lines = sockets.lines().skip(1);
    let taken = lines.filter_map(|line| {
        let mut columns = line.split_whitespace().skip(4);
        let interface: u32 = columns.next()?.parse().ok()?;
        (columns.next()? == "1" && interface > 0).then_some(interface)
    });
    taken.collect::<BTreeSet<u32>>().len()
}

fn question(family: u8, protocol: u8, states: u32) -> [u8; HEADER + QUESTION] {
    let mut bytes = [0; HEADER + QUESTION];
    let mut at = 0;
    let mut put = |field: &[u8]| {
        for (to, from) in bytes.iter_mut().skip(at).zip(field) {
            *to = *from;
        }
        at += field.len();
    };
    put(&((HEADER + QUESTION) as u32).to_ne_bytes());
    put(&BY_FAMILY.to_ne_bytes());
    put(&DUMP.to_ne_bytes());
    // The number of the question and the asker: the kernel fills them in where they are 0.
    put(&[0; 8]);
    put(&[family, protocol, 0, 0]);
    put(&states.to_ne_bytes());
    bytes
}

/// Reads a datagram of answers. Gives whether it was the last one.
fn read(mut bytes: &[u8], family: u8, all: &mut Vec<Served>) -> Result<bool, HealthError> {
    let number = |of: &[u8], at: usize| -> Option<u16> {
        let field = of.get(at..at + 2)?;
        Some(u16::from_ne_bytes(field.try_into().ok()?))
    };
    while !bytes.is_empty() {
        let length = bytes.first_chunk::<4>().ok_or(HealthError::Answer)?;
        let length = u32::from_ne_bytes(*length) as usize;
        let message = bytes.get(HEADER..length).ok_or(HealthError::Answer)?;
        match number(bytes, 4) {
            Some(DONE) => return Ok(true),
            Some(ERROR) => {
                let code = message
                    .first_chunk::<4>()
                    .map_or(0, |code| i32::from_ne_bytes(*code));
                return Err(HealthError::System {
                    what: "ask the kernel what listens",
                    source: io::Error::from_raw_os_error(-code),
                });
            }
            Some(BY_FAMILY) if all.len() < MAX_ANSWERS => {
                all.push(socket(message, family, number).ok_or(HealthError::Answer)?);
            }
            _ => {}
        }
        // Messages begin at multiples of four.
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

/// The socket that an answer describes.
fn socket(message: &[u8], family: u8, number: impl Fn(&[u8], usize) -> Option<u16>) -> Option<Served> {
    let port = u16::from_be_bytes(*message.get(4..)?.first_chunk()?);
    let address = message.get(8..)?;
    let address = if family == AF_INET {
        IpAddr::V4(Ipv4Addr::from(*address.first_chunk::<4>()?))
    } else {
        IpAddr::V6(Ipv6Addr::from(*address.first_chunk::<16>()?))
    };
    let mut is_v6_only = false;
    let mut attributes = message.get(FIXED..)?;
    while let (Some(length), Some(kind)) = (number(attributes, 0), number(attributes, 2)) {
        let length = usize::from(length);
        if length < 4 {
            return None;
        }
        if kind == V6_ONLY {
            is_v6_only = *attributes.get(4)? != 0;
        }
        attributes = attributes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Some(Served {
        address,
        port,
        is_v6_only,
    })
}

/// What is told of an instance that is waited for.
type Told = (InstanceId, Option<String>);

/// Waits until programs that start serve their ports, on a thread of its own.
pub struct ListenWatch {
    wanted: Option<Sender<Wanted>>,
    told: Receiver<Told>,
    /// Those that are waited for.
    waiting: Vec<InstanceId>,
    thread: Option<JoinHandle<()>>,
}

enum Wanted {
    Begin(Listening),
    End(InstanceId),
}

impl ListenWatch {
    /// Starts the thread. It sleeps until somebody is to be waited for.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start() -> Result<ListenWatch, HealthError> {
        let (wanted, todo) = channel();
        let (tell, told) = channel();
        let thread = thread::Builder::new()
            .name("inco-listen".to_owned())
            .spawn(move || watch(&todo, &tell))
            .map_err(|source| HealthError::System {
                what: "start a thread",
                source,
            })?;
        Ok(ListenWatch {
            wanted: Some(wanted),
            told,
            waiting: Vec::new(),
            thread: Some(thread),
        })
    }

    /// Waits for instances that start, and for no others: `wanted` says what each must serve. Call it each turn; one
    /// that is known already costs nothing.
    pub fn follow(
        &mut self,
        starting: impl Iterator<Item = InstanceId>,
        wanted: impl Fn(InstanceId) -> Option<Listening>,
    ) {
        let mut present = Vec::new();
        for instance in starting {
            present.push(instance);
            if !self.waiting.contains(&instance)
                && let Some(listening) = wanted(instance)
            {
                self.waiting.push(instance);
                self.send(Wanted::Begin(listening));
            }
        }
        let left: Vec<InstanceId> = self.waiting.extract_if(.., |of| !present.contains(of)).collect();
        for instance in left {
            self.send(Wanted::End(instance));
        }
    }

    fn send(&self, wanted: Wanted) {
        if let Some(sender) = &self.wanted {
            // The thread lives as long as this sender.
            let _ = sender.send(wanted);
        }
    }

    /// The next of those that were waited for: nothing if it serves all its ports, else what is missing.
    pub fn news(&mut self) -> Option<(InstanceId, Option<String>)> {
        self.told.try_recv().ok()
    }
}

impl Drop for ListenWatch {
    fn drop(&mut self) {
        self.wanted = None;
        if let Some(thread) = self.thread.take() {
            // It says nothing when it ends.
            let _ = thread.join();
        }
    }
}

/// One that is waited for.
struct Waited {
    of: Listening,
    sockets: Option<Sockets>,
    /// What was told of it last.
    said: Option<String>,
}

impl Waited {
    /// What is missing; nothing if it serves.
    fn ask(&mut self) -> Result<Option<String>, HealthError> {
        if self.of.interfaces > 0 {
            let (taken, all) = (frames_taken(self.of.pid)?, self.of.interfaces);
            return Ok((taken < all)
                .then(|| format!("its program takes frames from {taken} of its {all} interfaces so far")));
        }
        let sockets = match &self.sockets {
            Some(sockets) => sockets,
            None => self.sockets.insert(Sockets::of(self.of.pid)?),
        };
        let served = sockets.served()?;
        Ok(self.of.missing(&served).map(|ports| {
            let (first, last) = (ports.start(), ports.end());
            if first == last {
                format!("its program does not listen on port {first} yet")
            } else {
                format!("its program does not listen on any of the ports {first} to {last} yet")
            }
        }))
    }
}

fn watch(todo: &Receiver<Wanted>, tell: &Sender<Told>) {
    let mut waited: BTreeMap<InstanceId, Waited> = BTreeMap::new();
    loop {
        let next = if waited.is_empty() {
            todo.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            let is_known = waited
                .values()
                .any(|of| of.sockets.is_some() || of.of.interfaces > 0);
            todo.recv_timeout(if is_known { ASK_EVERY } else { AGAIN })
        };
        match next {
            Ok(wanted) => take(wanted, &mut waited),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        loop {
            match todo.try_recv() {
                Ok(wanted) => take(wanted, &mut waited),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return,
            }
        }
        waited.retain(|instance, of| {
            let said = match of.ask() {
                Ok(missing) => missing,
                Err(error) => {
                    of.sockets = None;
                    Some(error.to_string())
                }
            };
            let serves = said.is_none();
            if serves || said != of.said {
                of.said.clone_from(&said);
                // Nobody listens when inco ends.
                let _ = tell.send((*instance, said));
            }
            !serves
        });
    }
}

fn take(wanted: Wanted, waited: &mut BTreeMap<InstanceId, Waited>) {
    match wanted {
        Wanted::Begin(of) => {
            let new = Waited {
                of,
                sockets: None,
                said: None,
            };
            waited.insert(new.of.instance, new);
        }
        Wanted::End(instance) => {
            waited.remove(&instance);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by it")]
mod tests {
    use std::net::{TcpListener, UdpSocket};
    use std::time::Instant;

    use super::*;

    fn v4(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn served(address: &str, port: u16, is_v6_only: bool) -> Served {
        Served {
            address: v4(address),
            port,
            is_v6_only,
        }
    }

    fn wanted(pid: u32, address: &str, ports: &[RangeInclusive<u16>]) -> Listening {
        Listening {
            instance: InstanceId(1),
            pid,
            addresses: vec![v4(address)],
            ports: ports.to_vec(),
            interfaces: 0,
        }
    }

    #[test]
    fn packet_sockets_that_take_frames_are_counted_by_interface() {
        let list = "sk RefCnt Type Proto Iface R Rmem User Inode\n\
                    0000000000000000 3 3 0003 2 1 0 0 31\n0000000000000000 3 3 0003 2 1 0 0 32\n\
                    0000000000000000 3 3 0000 0 0 0 0 33\n0000000000000000 3 3 0003 3 0 0 0 34\n";
        assert_eq!(interfaces_of(list), 1);
        assert_eq!(interfaces_of(&list.replace(" 3 0 0 0 34", " 3 1 0 0 34")), 2);
        assert_eq!(interfaces_of(""), 0);
    }

    #[test]
    fn a_socket_serves_its_own_address_and_an_open_one_all() {
        for (of, is_v6_only, to, takes) in [
            ("0.0.0.0", false, "10.0.0.1", true),
            ("10.0.0.1", false, "10.0.0.1", true),
            ("127.0.0.1", false, "10.0.0.1", false),
            ("::", false, "10.0.0.1", true),
            ("::", true, "10.0.0.1", false),
            ("::", true, "2001:db8::1", true),
            ("::ffff:10.0.0.1", false, "10.0.0.1", true),
            ("0.0.0.0", false, "2001:db8::1", false),
        ] {
            assert_eq!(served(of, 80, is_v6_only).takes(v4(to)), takes, "{of} {to}");
        }
    }

    #[test]
    fn each_range_needs_a_port_that_is_served() {
        let of = wanted(1, "10.0.0.1", &[80..=80, 8000..=8099]);
        let at = |port| served("0.0.0.0", port, false);
        assert_eq!(of.missing(&[]), Some(&(80..=80)));
        assert_eq!(of.missing(&[at(80)]), Some(&(8000..=8099)));
        assert_eq!(of.missing(&[at(80), at(8042)]), None);
    }

    #[test]
    fn damaged_answers_are_errors() {
        let mut message = vec![0; HEADER + FIXED];
        message[..4].copy_from_slice(&((HEADER + FIXED) as u32).to_ne_bytes());
        message[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
        for length in 1..message.len() {
            assert!(
                read(&message[..length], AF_INET, &mut Vec::new()).is_err(),
                "{length}"
            );
        }
        let mut all = Vec::new();
        assert!(!read(&message, AF_INET, &mut all).unwrap());
        assert_eq!(all, [served("0.0.0.0", 0, false)]);
        // An attribute that says it is shorter than its own header.
        message.extend([1, 0, 11, 0]);
        message[..4].copy_from_slice(&((HEADER + FIXED + 4) as u32).to_ne_bytes());
        assert!(read(&message, AF_INET6, &mut Vec::new()).is_err());
    }

    /// The kernel itself, about sockets of this process.
    #[test]
    fn the_kernel_tells_what_this_process_serves() {
        let missing = (!rustix::process::geteuid().is_root()).then(|| "this is not run as root".to_owned());
        if !real_parts::available("root", missing) {
            return;
        }
        let pid = std::process::id();
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let (tcp_port, udp_port) = (tcp.local_addr().unwrap().port(), udp.local_addr().unwrap().port());
        let served = Sockets::of(pid).unwrap().served().unwrap();
        let is_there = |port| {
            served
                .iter()
                .any(|of| of.port == port && of.takes(v4("127.0.0.1")))
        };
        assert!(is_there(tcp_port) && is_there(udp_port), "{served:?}");

        // Who is waited for is told as soon as it listens.
        let mut watch = ListenWatch::start().unwrap();
        drop(tcp);
        let of = wanted(pid, "127.0.0.1", &[tcp_port..=tcp_port, udp_port..=udp_port]);
        let waits = |watch: &mut ListenWatch| watch.follow([InstanceId(1)].into_iter(), |_| Some(of.clone()));
        waits(&mut watch);
        let next = |watch: &mut ListenWatch| {
            let until = Instant::now() + Duration::from_secs(10);
            loop {
                match watch.news() {
                    Some(told) => return Some(told),
                    None if Instant::now() > until => return None,
                    None => thread::sleep(Duration::from_micros(100)),
                }
            }
        };
        let (_, said) = next(&mut watch).unwrap();
        assert!(said.unwrap().contains(&format!("port {tcp_port}")));
        let _tcp = TcpListener::bind(("127.0.0.1", tcp_port)).unwrap();
        assert_eq!(next(&mut watch), Some((InstanceId(1), None)));
        waits(&mut watch);
        watch.follow([].into_iter(), |_| None);
    }
}
