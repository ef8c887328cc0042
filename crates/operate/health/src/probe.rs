//! One check of one instance: a connection or a question, from the first packet to the verdict. What the instance
//! answers is bounded and not trusted.

use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use interfaces::{CHECKER_V4, CHECKER_V6};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use smoltcp::iface::{Config, Interface, PollIngressSingleResult, PollResult, SocketHandle, SocketSet};
use smoltcp::socket::{tcp, udp};
use smoltcp::time::Instant as StackInstant;
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr, IpEndpoint, Ipv4Address, Ipv6Address};

use crate::answers::{self, MAX_TEXT};
use crate::wire::{Port, Wire};
use crate::{AgentReport, Question};

/// Bytes of an answer that are kept at most.
const ANSWER_BYTES: usize = 4096;
/// Packets that an instance may send in one check. An honest one sends about ten.
const PACKETS: u32 = 1024;
/// The first port of checks, and how many there are: those that IANA leaves to everybody.
const FIRST_PORT: u16 = 49_152;
const PORTS: u16 = 16_384;
/// The next hop, which nobody is: each packet leaves by the one interface.
const GATEWAY_V4: Ipv4Address = Ipv4Address::new(169, 254, 1, 1);
const GATEWAY_V6: Ipv6Address = Ipv6Address::new(0x100, 0, 0, 0, 0, 0, 0, 1);

/// What a check found, where the instance passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Passed {
    /// It serves.
    Serves,
    /// What its agent says of it.
    Agent(AgentReport),
}

/// Asks an instance. Takes at most `limit`.
///
/// # Errors
/// It did not pass: why, in words.
pub(crate) fn ask(
    wire: &mut Wire,
    port: &Port,
    question: &Question,
    limit: Duration,
) -> Result<Passed, String> {
    wire.drain();
    let mut random = [0; 16];
    fill(&mut random).map_err(|error| format!("no random bytes: {error}"))?;
    let mut check = Check::new(wire, port, random, limit);
    match question {
        Question::Tcp { port } => check.connect(*port).map(|_| Passed::Serves),
        Question::Http { port, path } => {
            let request = request(check.to, path);
            let line = check.converse(*port, request.as_bytes())?;
            answers::status(&line).map(|()| Passed::Serves)
        }
        Question::Agent { port } => {
            let line = check.converse(*port, b"")?;
            answers::agent(&line).map(Passed::Agent)
        }
        Question::Dns { port, name } => check.resolve(*port, name).map(|()| Passed::Serves),
    }
}

/// A request for a path.
pub(crate) fn request(of: IpAddr, path: &str) -> String {
    let host = match of {
        IpAddr::V4(of) => of.to_string(),
        IpAddr::V6(of) => format!("[{of}]"),
    };
    format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: inco-health\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    )
}

pub(crate) fn fill(bytes: &mut [u8]) -> io::Result<()> {
    let length = rustix::rand::getrandom(&mut *bytes, rustix::rand::GetRandomFlags::empty())?;
    // The kernel gives up to 256 bytes at once.
    (length == bytes.len())
        .then_some(())
        .ok_or_else(|| io::ErrorKind::Interrupted.into())
}

struct Check<'w> {
    wire: &'w mut Wire,
    stack: Interface,
    sockets: SocketSet<'static>,
    to: IpAddr,
    from_port: u16,
    id: u16,
    began: Instant,
    limit: Duration,
    /// Packets that it may send yet.
    packets: u32,
}

impl<'w> Check<'w> {
    fn new(wire: &'w mut Wire, port: &Port, random: [u8; 16], limit: Duration) -> Check<'w> {
        let began = Instant::now();
        let number = |at: usize| u16::from_ne_bytes([random[at % 16], random[(at + 1) % 16]]);
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = u64::from_ne_bytes(*random.first_chunk().unwrap_or(&[0; 8]));
        let mut stack = Interface::new(config, wire, StackInstant::ZERO);
        stack.update_ip_addrs(|own| {
            // There is room for two.
            let _ = match port.address() {
                IpAddr::V4(_) => own.push(IpCidr::new(IpAddress::Ipv4(CHECKER_V4), 32)),
                IpAddr::V6(_) => own.push(IpCidr::new(IpAddress::Ipv6(CHECKER_V6), 128)),
            };
        });
        // There is room for one of each.
        let _ = stack.routes_mut().add_default_ipv4_route(GATEWAY_V4);
        let _ = stack.routes_mut().add_default_ipv6_route(GATEWAY_V6);
        Check {
            wire,
            stack,
            sockets: SocketSet::new(Vec::new()),
            to: port.address(),
            from_port: FIRST_PORT + number(8) % PORTS,
            id: number(10),
            began,
            limit,
            packets: PACKETS,
        }
    }

    fn now(&self) -> StackInstant {
        StackInstant::from_micros(i64::try_from(self.began.elapsed().as_micros()).unwrap_or(0))
    }

    fn at(&self, port: u16) -> IpEndpoint {
        IpEndpoint::new(IpAddress::from(self.to), port)
    }

    /// Moves packets on, then waits for the next. False when the time is over, or the instance has sent too much.
    fn turn(&mut self) -> bool {
        let mut has_changed = false;
        loop {
            let now = self.now();
            match self.stack.poll_ingress_single(now, self.wire, &mut self.sockets) {
                PollIngressSingleResult::None => break,
                PollIngressSingleResult::PacketProcessed => {}
                PollIngressSingleResult::SocketStateChanged => has_changed = true,
            }
            let Some(left) = self.packets.checked_sub(1) else {
                return false;
            };
            self.packets = left;
        }
        let now = self.now();
        has_changed |=
            self.stack.poll_egress(now, self.wire, &mut self.sockets) == PollResult::SocketStateChanged;
        let Some(left) = self.limit.checked_sub(self.began.elapsed()) else {
            return false;
        };
        if has_changed {
            return true;
        }
        let delay = self.stack.poll_delay(now, &self.sockets);
        let wait = delay.map_or(left, |delay| {
            left.min(Duration::from_micros(delay.total_micros()))
        });
        let wait = Timespec {
            tv_sec: i64::try_from(wait.as_secs()).unwrap_or(0),
            tv_nsec: i64::from(wait.subsec_nanos()),
        };
        // Woken for whatever reason, it looks again.
        let _ = poll(&mut [PollFd::new(&*self.wire, PollFlags::IN)], Some(&wait));
        true
    }

    /// Opens a connection.
    fn connect(&mut self, port: u16) -> Result<SocketHandle, String> {
        let buffer = || tcp::SocketBuffer::new(vec![0; ANSWER_BYTES]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        let (to, from) = (self.at(port), self.from_port);
        socket
            .connect(self.stack.context(), to, from)
            .map_err(|error| format!("no connection to port {port}: {error}"))?;
        let handle = self.sockets.add(socket);
        loop {
            match self.sockets.get::<tcp::Socket>(handle).state() {
                tcp::State::SynSent | tcp::State::SynReceived => {}
                tcp::State::Closed => return Err(format!("port {port} refuses the connection")),
                _ => return Ok(handle),
            }
            if !self.turn() {
                return Err(format!("port {port} does not accept a connection in time"));
            }
        }
    }

    /// Sends a request, and takes the first line of the answer.
    fn converse(&mut self, port: u16, request: &[u8]) -> Result<Vec<u8>, String> {
        let handle = self.connect(port)?;
        if !request.is_empty() {
            let socket = self.sockets.get_mut::<tcp::Socket>(handle);
            let sent = socket.send_slice(request);
            if sent.ok() != Some(request.len()) {
                return Err(format!("port {port} takes no request"));
            }
        }
        let mut line = Vec::new();
        loop {
            let socket = self.sockets.get_mut::<tcp::Socket>(handle);
            while socket.can_recv() {
                let taken = socket.recv(|bytes| (bytes.len(), bytes.to_vec()));
                line.extend(taken.unwrap_or_default());
            }
            let has_ended = !socket.may_recv();
            if let Some(end) = line.iter().position(|byte| *byte == b'\n') {
                line.truncate(end);
                return Ok(line);
            }
            if line.len() > MAX_TEXT {
                return Err(format!("what port {port} answers has no end"));
            }
            if has_ended {
                return if line.is_empty() {
                    Err(format!("port {port} closes the connection without an answer"))
                } else {
                    Ok(line)
                };
            }
            if !self.turn() {
                return Err(format!("port {port} does not answer in time"));
            }
        }
    }

    /// Asks a name server.
    fn resolve(&mut self, port: u16, name: &str) -> Result<(), String> {
        let question = answers::question(self.id, name)?;
        let buffer = || udp::PacketBuffer::new(vec![udp::PacketMetadata::EMPTY; 4], vec![0; ANSWER_BYTES]);
        let mut socket = udp::Socket::new(buffer(), buffer());
        let bound = socket.bind(self.from_port);
        bound.map_err(|error| format!("no question to port {port}: {error}"))?;
        let sent = socket.send_slice(&question, self.at(port));
        sent.map_err(|error| format!("no question to port {port}: {error}"))?;
        let handle = self.sockets.add(socket);
        let to = self.at(port);
        loop {
            while let Ok((answer, from)) = self.sockets.get_mut::<udp::Socket>(handle).recv() {
                if from.endpoint == to
                    && let Some(verdict) = answers::resolved(answer, &question)
                {
                    return verdict;
                }
            }
            if !self.turn() {
                return Err(format!("port {port} does not answer the question in time"));
            }
        }
    }
}

impl Drop for Check<'_> {
    /// Ends connections at once, so that the instance keeps none.
    fn drop(&mut self) {
        for (_, socket) in self.sockets.iter_mut() {
            if let smoltcp::socket::Socket::Tcp(socket) = socket {
                socket.abort();
            }
        }
        let now = self.now();
        self.stack.poll_egress(now, self.wire, &mut self.sockets);
    }
}
