//! The server side of the handshake: listens, and maps clients' memory after validation.

// UNSAFETY: rings lie in memory allocated by a client.
#![expect(unsafe_code)]

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::fs::{FileType, Mode};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use shared_memory::Mapping;

use crate::client::{MAX_LOG2_SLOTS, MAX_QUEUES, kind};
use crate::interrupt::Interrupt;
use crate::kept::{LinkState, RingState};
use crate::link::{Control, Link};
use crate::message::{Message, NAME_BYTES, VERSION};
use crate::queue::{Buffers, QueuePair, RxQueue, TxQueue};
use crate::region::{self, Memory};
use crate::ring::{self, Ring};
use crate::socket::{Received, Socket, one};
use crate::{Error, ProtocolError};

/// Regions that a client may add. DPDK's, without zero-copy, has one; VPP's two or three.
const MAX_REGIONS: u16 = 16;
/// Handshakes that may be under way at once. The next client takes the place of the one that has been silent the
/// longest.
const MAX_HANDSHAKES: usize = 32;
/// Connections that may wait in the socket's queue.
const BACKLOG: i32 = 64;
/// What an epoll event of the listening socket carries.
const LISTENER: u64 = u64::MAX;

/// A server's configuration.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// This program's name, up to 31 bytes.
    pub name: String,
    /// The secret required of clients, zero-padded.
    pub secret: Option<[u8; 24]>,
    /// The served interfaces; `None` serves any id.
    pub interface_ids: Option<BTreeSet<u32>>,
    /// The largest accepted ring, as a power of two.
    pub max_log2_slots: u8,
    /// Maximum queue pairs per link.
    pub max_queues: u16,
    /// Maximum bytes per region.
    pub max_region_bytes: u64,
    /// Time limit from connecting to CONNECT.
    pub handshake_timeout: Duration,
    /// Permissions of the socket (as for `chmod`); `None` uses the umask.
    pub mode: Option<u32>,
}

impl ServerConfig {
    /// Defaults: any interface id, no secret, rings up to 2^14 slots, regions up to 4 GiB, one second.
    pub fn new(name: impl Into<String>) -> ServerConfig {
        ServerConfig {
            name: name.into(),
            secret: None,
            interface_ids: None,
            max_log2_slots: MAX_LOG2_SLOTS,
            max_queues: MAX_QUEUES,
            max_region_bytes: 4 << 30,
            handshake_timeout: Duration::from_secs(1),
            mode: None,
        }
    }
}

/// The server role: a listening socket, for any number of interfaces.
///
/// Handshakes of several clients go on side by side, so that those that stall do not hold up the others, however many
/// they are.
#[derive(Debug)]
pub struct Listener {
    config: ServerConfig,
    path: PathBuf,
    /// The listening socket and the handshakes in progress.
    epoll: OwnedFd,
    socket: OwnedFd,
    /// Handshakes by slot; the index is in their epoll events.
    handshakes: Vec<Option<Handshake>>,
    /// Interfaces with a link, and the sockets of those.
    links: Vec<(u32, Weak<Socket>)>,
    refused: u64,
    last_refusal: Option<Error>,
    stays: bool,
}

/// A client between HELLO and CONNECT.
#[derive(Debug)]
struct Handshake {
    socket: Arc<Socket>,
    deadline: Instant,
    /// When its client said something last, or came.
    heard: Instant,
    client: Option<(u32, String)>,
    regions: Vec<(OwnedFd, u64)>,
    to_server: Vec<Announced>,
    to_client: Vec<Announced>,
}

/// A ring announced by ADD_RING.
#[derive(Debug)]
struct Announced {
    region: u16,
    offset: u32,
    log2_slots: u8,
    interrupt: Interrupt,
}

impl Announced {
    fn state(&self) -> RingState {
        RingState {
            region: self.region,
            offset: self.offset,
            log2_slots: self.log2_slots,
            first_buffer: 0,
            peer_buffer: 0,
        }
    }
}

impl Listener {
    /// Listens on `path`, replacing a stale socket file.
    ///
    /// # Errors
    /// [`Error::AddressInUse`] if another process listens there; [`Error::Configuration`] for impossible
    /// limits.
    pub fn bind(path: impl AsRef<Path>, config: ServerConfig) -> Result<Listener, Error> {
        let path = path.as_ref().to_owned();
        if config.name.len() >= NAME_BYTES {
            return Err(Error::Configuration("name must be 31 bytes at most"));
        }
        if !(1..=MAX_QUEUES).contains(&config.max_queues)
            || !(1..=MAX_LOG2_SLOTS).contains(&config.max_log2_slots)
        {
            return Err(Error::Configuration(
                "max_queues must be 1 to 256 and max_log2_slots 1 to 14",
            ));
        }
        let address = SocketAddrUnix::new(&path)
            .map_err(|_| Error::Configuration("the socket's path is longer than 107 bytes"))?;
        let new_socket = || {
            rustix::net::socket_with(
                AddressFamily::UNIX,
                SocketType::SEQPACKET,
                SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
                None,
            )
            .map_err(|errno| Error::system("cannot create a socket", errno))
        };
        let socket = new_socket()?;
        match rustix::net::bind(&socket, &address) {
            Err(Errno::ADDRINUSE) => {
                let found = rustix::fs::lstat(&path).map(|about| FileType::from_raw_mode(about.st_mode));
                if let Ok(found) = found
                    && found != FileType::Socket
                {
                    let found = kind(found);
                    return Err(Error::NotASocket { path, found });
                }
                match rustix::net::connect(new_socket()?, &address) {
                    Err(Errno::CONNREFUSED) => {}
                    _ => return Err(Error::AddressInUse { path }),
                }
                rustix::fs::unlink(&path)
                    .map_err(|errno| Error::system("cannot remove the stale memif socket", errno))?;
                rustix::net::bind(&socket, &address)
            }
            outcome => outcome,
        }
        .map_err(|errno| Error::system("cannot bind the memif socket", errno))?;
        if let Some(mode) = config.mode {
            rustix::fs::chmod(&path, Mode::from_raw_mode(mode))
                .map_err(|errno| Error::system("cannot set the permissions of the memif socket", errno))?;
        }
        rustix::net::listen(&socket, BACKLOG)
            .map_err(|errno| Error::system("cannot listen on the memif socket", errno))?;
        Listener::on(socket, path, config)
    }

    /// Goes on listening on a socket of an earlier run of this program that somebody kept. Clients that came
    /// meanwhile wait in its queue.
    ///
    /// # Errors
    /// [`Error::Kept`] if it does not listen on `path`, or another socket is there by now.
    pub fn resume(socket: OwnedFd, path: impl AsRef<Path>, config: ServerConfig) -> Result<Listener, Error> {
        let path = path.as_ref().to_owned();
        let wrong = |what| Err(Error::Kept { what });
        let listens = rustix::net::sockopt::socket_acceptconn(&socket);
        let address = rustix::net::getsockname(&socket).map(SocketAddrUnix::try_from);
        let Ok(address) = SocketAddrUnix::new(&path).map(|own| matches!(address, Ok(Ok(of)) if of == own))
        else {
            return wrong("the path is no path of a socket");
        };
        if listens != Ok(true) || !address {
            return wrong("the socket does not listen on this path");
        }
        if !rustix::fs::lstat(&path)
            .is_ok_and(|about| FileType::from_raw_mode(about.st_mode) == FileType::Socket)
        {
            return wrong("there is no socket at its path any more");
        }
        Listener::on(socket, path, config)
    }

    /// A link of an interface that an earlier run of this program accepted is the interface's link.
    pub fn remember(&mut self, link: &Link) {
        self.links
            .push((link.interface_id, Arc::downgrade(&link.control.socket)));
    }

    /// The listening socket, to be kept.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Leaves the socket's file where it is: the next run goes on with the socket.
    pub fn leave(&mut self) {
        self.stays = true;
    }

    fn on(socket: OwnedFd, path: PathBuf, config: ServerConfig) -> Result<Listener, Error> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|errno| Error::system("cannot create an epoll instance", errno))?;
        epoll::add(
            &epoll,
            &socket,
            epoll::EventData::new_u64(LISTENER),
            epoll::EventFlags::IN,
        )
        .map_err(|errno| Error::system("cannot watch the memif socket", errno))?;
        Ok(Listener {
            config,
            path,
            epoll,
            socket,
            handshakes: Vec::new(),
            links: Vec::new(),
            refused: 0,
            last_refusal: None,
            stays: false,
        })
    }

    /// The next established link, or `None` after `timeout` (zero: only what is ready now).
    ///
    /// Refused clients are counted ([`Listener::refused`]) and told the reason. They are not an error here,
    /// because listening continues.
    ///
    /// # Errors
    /// The system refuses to wait or to accept.
    pub fn accept(&mut self, timeout: Duration) -> Result<Option<Link>, Error> {
        let deadline = Instant::now() + timeout;
        loop {
            let now = Instant::now();
            self.expire(now);
            let until = self.next_expiry().map_or(deadline, |expiry| expiry.min(deadline));
            let left = until.saturating_duration_since(now);
            let left = Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            };
            let mut events = [epoll::Event {
                flags: epoll::EventFlags::empty(),
                data: epoll::EventData::new_u64(0),
            }; 16];
            let ready = match epoll::wait(&self.epoll, &mut events[..], Some(&left)) {
                Ok(ready) => ready,
                Err(Errno::INTR) => 0,
                Err(errno) => return Err(Error::system("cannot wait for memif clients", errno)),
            };
            for event in &events[..ready] {
                let data = event.data;
                if data.u64() == LISTENER {
                    self.welcome()?;
                } else if let Some(link) = self.advance(data.u64() as usize) {
                    // Other events are level-triggered and recur.
                    return Ok(Some(link));
                }
            }
            if ready == 0 && Instant::now() >= deadline {
                return Ok(None);
            }
        }
    }

    /// Clients that were refused or gave up.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// The reason for the last refusal, once.
    pub fn take_refusal(&mut self) -> Option<Error> {
        self.last_refusal.take()
    }

    /// The socket's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes the clients that wait, a limited number at a time, so that those that speak have their turn in a flood.
    fn welcome(&mut self) -> Result<(), Error> {
        for _ in 0..MAX_HANDSHAKES {
            let fd =
                match rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                    Ok(fd) => fd,
                    Err(Errno::AGAIN) => return Ok(()),
                    Err(Errno::INTR | Errno::CONNABORTED) => continue,
                    Err(errno) => return Err(Error::system("cannot accept a memif client", errno)),
                };
            let socket = Arc::new(Socket::new(fd));
            let place = self.place();
            let hello = Message::Hello {
                name: self.config.name.clone(),
                min_version: VERSION,
                max_version: VERSION,
                max_region: MAX_REGIONS - 1,
                max_s2c_ring: self.config.max_queues - 1,
                max_c2s_ring: self.config.max_queues - 1,
                max_log2_slots: self.config.max_log2_slots,
            };
            let watched = epoll::add(
                &self.epoll,
                &*socket,
                epoll::EventData::new_u64(place as u64),
                epoll::EventFlags::IN,
            )
            .map_err(|errno| Error::system("cannot watch a memif client", errno));
            if let Err(error) = watched.and_then(|()| socket.send(&hello, None)) {
                self.refuse(error);
                continue;
            }
            let now = Instant::now();
            self.handshakes[place] = Some(Handshake {
                socket,
                deadline: now + self.config.handshake_timeout,
                heard: now,
                client: None,
                regions: Vec::new(),
                to_server: Vec::new(),
                to_client: Vec::new(),
            });
        }
        Ok(())
    }

    /// A free place for a handshake. With none free, the client that has said nothing for the longest time loses its
    /// own.
    fn place(&mut self) -> usize {
        if let Some(free) = self.handshakes.iter().position(Option::is_none) {
            return free;
        }
        if self.handshakes.len() < MAX_HANDSHAKES {
            self.handshakes.push(None);
            return self.handshakes.len() - 1;
        }
        let heard = |place: &usize| self.handshakes[*place].as_ref().map(|of| of.heard);
        let silent = (0..MAX_HANDSHAKES).min_by_key(heard).unwrap_or_default();
        if let Some(handshake) = self.handshakes[silent].take() {
            handshake
                .socket
                .say_goodbye("handshake timed out: other clients wait");
            self.refuse(Error::Timeout { expected: "CONNECT" });
        }
        silent
    }

    /// Takes the messages of one handshake; gives the link when it is complete.
    fn advance(&mut self, place: usize) -> Option<Link> {
        loop {
            let mut handshake = self.handshakes.get_mut(place)?.take()?;
            match self.step(&mut handshake) {
                Ok(Step::Wait) => {
                    self.handshakes[place] = Some(handshake);
                    return None;
                }
                Ok(Step::Next) => {
                    handshake.heard = Instant::now();
                    self.handshakes[place] = Some(handshake);
                }
                Ok(Step::Complete(link)) => {
                    // The control socket belongs to the link from here on.
                    let _ = epoll::delete(&self.epoll, &*handshake.socket);
                    self.links.retain(|(_, socket)| socket.strong_count() > 0);
                    self.links
                        .push((link.interface_id, Arc::downgrade(&link.control.socket)));
                    return Some(*link);
                }
                Err(error) => {
                    match &error {
                        Error::Protocol(error) => handshake.socket.say_goodbye(&error.to_string()),
                        // It has left, or said itself that it leaves.
                        Error::Closed { .. } | Error::Disconnected { .. } => {}
                        error => handshake.socket.say_goodbye(&error.to_string()),
                    }
                    self.refuse(error);
                    return None;
                }
            }
        }
    }

    fn step(&self, handshake: &mut Handshake) -> Result<Step, Error> {
        let (message, descriptors) = match handshake.socket.receive()? {
            Received::Message(message, descriptors) => (message, descriptors),
            Received::Nothing => return Ok(Step::Wait),
            Received::Closed => {
                return Err(Error::Closed {
                    during: if handshake.client.is_some() {
                        "CONNECT"
                    } else {
                        "INIT"
                    },
                });
            }
        };
        let name = message.name();
        match (message, &handshake.client) {
            (
                Message::Init {
                    version,
                    interface_id,
                    mode,
                    secret,
                    name,
                },
                None,
            ) => {
                if version != VERSION {
                    return Err(ProtocolError::Version {
                        min: version,
                        max: version,
                    }
                    .into());
                }
                if !Message::is_ethernet(mode) {
                    return Err(ProtocolError::Mode { mode }.into());
                }
                if self
                    .config
                    .interface_ids
                    .as_ref()
                    .is_some_and(|ids| !ids.contains(&interface_id))
                {
                    return Err(ProtocolError::UnknownInterface { interface_id }.into());
                }
                if self
                    .config
                    .secret
                    .is_some_and(|ours| !same_secret(&ours, &secret))
                {
                    return Err(ProtocolError::Secret.into());
                }
                if self.is_connected(interface_id) {
                    return Err(ProtocolError::AlreadyConnected.into());
                }
                handshake.client = Some((interface_id, name));
            }
            (Message::AddRegion { index, bytes }, Some(_)) => {
                if usize::from(index) != handshake.regions.len() || index >= MAX_REGIONS {
                    return Err(ProtocolError::Index {
                        what: "region",
                        index,
                        limit: MAX_REGIONS,
                    }
                    .into());
                }
                handshake.regions.push((one(name, descriptors)?, bytes));
            }
            (
                Message::AddRing {
                    client_to_server,
                    index,
                    region,
                    offset,
                    log2_slots,
                    private_header_bytes: _,
                },
                Some(_),
            ) => {
                let rings = if client_to_server {
                    &mut handshake.to_server
                } else {
                    &mut handshake.to_client
                };
                let limit = self.config.max_queues;
                if usize::from(index) != rings.len() || index >= limit {
                    return Err(ProtocolError::Index {
                        what: "ring",
                        index,
                        limit,
                    }
                    .into());
                }
                if log2_slots == 0 || log2_slots > self.config.max_log2_slots {
                    return Err(ProtocolError::RingPlace {
                        index,
                        region,
                        offset,
                        log2_slots,
                    }
                    .into());
                }
                let interrupt = Interrupt::accept(one(name, descriptors)?, index)?;
                rings.push(Announced {
                    region,
                    offset,
                    log2_slots,
                    interrupt,
                });
            }
            (Message::Connect { interface_name }, Some(_)) => {
                let link = self.complete(handshake, interface_name)?;
                return Ok(Step::Complete(Box::new(link)));
            }
            (Message::Disconnect { reason, .. }, _) => return Err(Error::Disconnected { reason }),
            _ => return Err(ProtocolError::Unexpected { received: name }.into()),
        }
        handshake.socket.send(&Message::Ack, None)?;
        Ok(Step::Next)
    }

    /// Maps the regions, validates the rings, and sends CONNECTED.
    fn complete(&self, handshake: &mut Handshake, peer_interface: String) -> Result<Link, Error> {
        let (interface_id, peer_name) = handshake.client.take().unwrap_or_default();
        let count = handshake.to_server.len();
        if count == 0 || count != handshake.to_client.len() {
            return Err(ProtocolError::RingCount {
                client_to_server: count,
                server_to_client: handshake.to_client.len(),
            }
            .into());
        }
        let (files, bytes): (Vec<OwnedFd>, Vec<u64>) = handshake.regions.drain(..).unzip();
        let regions = (0..).zip(files.iter().zip(&bytes));
        let regions = regions
            .map(|(index, (file, bytes))| region::accept(file, index, *bytes, self.config.max_region_bytes))
            .collect::<Result<Vec<Mapping>, Error>>()?;
        let memory = Arc::new(Memory { regions });
        let states = |rings: &[Announced]| rings.iter().map(Announced::state).collect();
        let mut state = LinkState {
            interface_id,
            peer_name: peer_name.clone(),
            peer_interface: peer_interface.clone(),
            regions: bytes,
            to_server: states(&handshake.to_server),
            to_client: states(&handshake.to_client),
            buffers: None,
        };
        let place = |(index, announced): (usize, Announced)| -> Result<(Ring, u16, Interrupt), Error> {
            let ring = ring_of(&memory, index as u16, &announced)?;
            ring.reset();
            Ok((ring, 1 << announced.log2_slots, announced.interrupt))
        };
        let to_server: Vec<_> = handshake
            .to_server
            .drain(..)
            .enumerate()
            .map(place)
            .collect::<Result<_, _>>()?;
        let to_client: Vec<_> = handshake
            .to_client
            .drain(..)
            .enumerate()
            .map(place)
            .collect::<Result<_, _>>()?;
        // Before a frame takes the place of a buffer's length.
        for (of, (ring, ..)) in state.to_client.iter_mut().zip(&to_client) {
            of.peer_buffer = ring.common_length();
        }
        let queues = to_server
            .into_iter()
            .zip(to_client)
            .map(
                |((rx, rx_slots, rx_interrupt), (tx, tx_slots, tx_interrupt))| QueuePair {
                    tx: TxQueue::new(tx, tx_slots, Buffers::Peer, tx_interrupt, Arc::clone(&memory)),
                    rx: RxQueue::new(rx, rx_slots, Buffers::Peer, rx_interrupt, Arc::clone(&memory)),
                },
            )
            .collect();
        let interface_name = format!("memif{interface_id}");
        handshake
            .socket
            .send(&Message::Connected { interface_name }, None)?;
        let control = Control {
            socket: Arc::clone(&handshake.socket),
        };
        Ok(Link {
            interface_id,
            peer_name,
            peer_interface,
            queues,
            control,
            state,
            regions: files,
        })
    }

    /// Whether the interface has a link whose client is still connected.
    fn is_connected(&self, interface_id: u32) -> bool {
        self.links.iter().any(|(id, socket)| {
            *id == interface_id && socket.upgrade().is_some_and(|socket| !socket.is_hung_up())
        })
    }

    /// Ends handshakes that take too long.
    fn expire(&mut self, now: Instant) {
        for place in 0..self.handshakes.len() {
            if let Some(handshake) = self.handshakes[place].take_if(|handshake| handshake.deadline <= now) {
                handshake.socket.say_goodbye("handshake timed out");
                self.refuse(Error::Timeout { expected: "CONNECT" });
            }
        }
    }

    fn next_expiry(&self) -> Option<Instant> {
        self.handshakes
            .iter()
            .flatten()
            .map(|handshake| handshake.deadline)
            .min()
    }

    fn refuse(&mut self, error: Error) {
        self.refused += 1;
        self.last_refusal = Some(error);
    }
}

impl AsFd for Listener {
    /// Becomes readable when [`Listener::accept`] has something to do, the next step of a handshake included.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if self.stays {
            return;
        }
        // A file left behind is found stale by the next `bind`.
        let _ = rustix::fs::unlink(&self.path);
    }
}

/// The result of a message.
enum Step {
    /// No message now.
    Wait,
    /// It was answered.
    Next,
    /// It was the last one.
    Complete(Box<Link>),
}

/// The ring announced by a client, if it is valid.
fn ring_of(memory: &Memory, index: u16, announced: &Announced) -> Result<Ring, Error> {
    let Announced {
        region,
        offset,
        log2_slots,
        ..
    } = *announced;
    let slots = 1_usize << log2_slots;
    let wrong = ProtocolError::RingPlace {
        index,
        region,
        offset,
        log2_slots,
    };
    let Some(mapping) = memory.regions.get(usize::from(region)) else {
        return Err(wrong.into());
    };
    let end = u64::from(offset) + ring::ring_bytes(slots) as u64;
    if !(offset as usize).is_multiple_of(ring::ALIGNMENT) || end > mapping.bytes() as u64 {
        return Err(wrong.into());
    }
    // SAFETY: aligned and within the mapping, as just checked; slots ≤ 2^14. The queues that get the ring
    // hold the memory.
    let ring = unsafe { Ring::new(mapping.address().add(offset as usize), slots as u16) };
    if ring.has_cookie() {
        Ok(ring)
    } else {
        Err(ProtocolError::Cookie { index }.into())
    }
}

/// Constant-time comparison.
fn same_secret(ours: &[u8; 24], theirs: &[u8; 24]) -> bool {
    ours.iter()
        .zip(theirs)
        .fold(0, |difference, (a, b)| difference | (a ^ b))
        == 0
}
