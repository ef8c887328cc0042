//! The client side of the handshake: allocates the memory and asks the server to map it.

// UNSAFETY: rings are laid out in the client's own memory.
#![expect(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::interrupt::Interrupt;
use crate::kept::{BuffersState, LinkState, RingState};
use crate::link::{Control, Link};
use crate::message::{Message, NAME_BYTES, SECRET_BYTES, VERSION};
use crate::queue::{Buffers, QueuePair, RxQueue, TxQueue};
use crate::region::{self, Memory};
use crate::ring::{self, Ring};
use crate::socket::Socket;
use crate::{Error, ProtocolError};

/// The largest ring of memif implementations: 2^14 slots.
pub const MAX_LOG2_SLOTS: u8 = 14;
/// The smallest ring of this crate: 2^6 slots.
pub const MIN_LOG2_SLOTS: u8 = 6;
/// Maximum queue pairs per link.
pub const MAX_QUEUES: u16 = 256;
/// The largest buffer: any jumbo frame fits.
pub const MAX_BUFFER_BYTES: u32 = 65_536;
/// File descriptors of a link with one queue pair on the client: the socket, the memory, and one per ring. (A few more
/// while connecting.)
pub(crate) const DESCRIPTORS_PER_LINK: u32 = 4;

/// Retry interval while the server does not listen yet.
const RETRY: Duration = Duration::from_millis(2);

/// Ring parameters of a link. The server may reduce the numbers of slots and queues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RingConfig {
    /// Slots of each ring, as a power of two: 6 to 14.
    pub log2_slots: u8,
    /// Bytes of each buffer, a multiple of 64 up to 65536. Longer frames take several.
    pub buffer_bytes: u32,
    /// Queue pairs, 1 to 256.
    pub queues: u16,
}

impl Default for RingConfig {
    fn default() -> RingConfig {
        RingConfig {
            log2_slots: 10,
            buffer_bytes: 2048,
            queues: 1,
        }
    }
}

/// A client's configuration.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// Where the server listens: the socket itself, since a symbolic link is refused.
    pub socket: PathBuf,
    /// Which of its interfaces.
    pub interface_id: u32,
    /// The rings.
    pub ring: RingConfig,
    /// This program's name, up to 31 bytes.
    pub name: String,
    /// The shared secret, zero-padded, if the server requires one.
    pub secret: Option<[u8; 24]>,
    /// Whether to allocate the memory from reserved 2 MiB pages.
    pub hugepages: bool,
}

impl ClientConfig {
    /// The defaults: 1024 slots of 2048 bytes, one queue pair, no secret, no huge pages.
    pub fn new(socket: impl Into<PathBuf>, interface_id: u32) -> ClientConfig {
        ClientConfig {
            socket: socket.into(),
            interface_id,
            ring: RingConfig::default(),
            name: "inco".to_owned(),
            secret: None,
            hugepages: false,
        }
    }
}

/// The client role: owns the memory and connects.
#[derive(Debug)]
pub struct Client;

impl Client {
    /// Connects to a server and creates the rings, within `deadline`.
    ///
    /// # Errors
    /// [`Error::NotListening`] at once without a listener; [`Error::NotASocket`] when anything else lies there, a
    /// symbolic link included; [`Error::Timeout`], [`Error::Closed`] or
    /// [`Error::Disconnected`] (with the server's reason: wrong secret, unknown interface) during the handshake.
    pub fn connect(config: &ClientConfig, deadline: Duration) -> Result<Link, Error> {
        validate(config)?;
        let deadline = Instant::now() + deadline;
        handshake(config, deadline)
    }

    /// Like [`Client::connect`], but retries until `deadline` while no server listens, or while the server is
    /// still ending an earlier link.
    ///
    /// # Errors
    /// The last error of [`Client::connect`].
    pub fn connect_when_ready(config: &ClientConfig, deadline: Duration) -> Result<Link, Error> {
        validate(config)?;
        let deadline = Instant::now() + deadline;
        loop {
            match handshake(config, deadline) {
                Err(error) if error.is_worth_retrying() && Instant::now() + RETRY < deadline => sleep(RETRY),
                outcome => return outcome,
            }
        }
    }
}

fn validate(config: &ClientConfig) -> Result<(), Error> {
    let ring = &config.ring;
    if !(MIN_LOG2_SLOTS..=MAX_LOG2_SLOTS).contains(&ring.log2_slots) {
        return Err(Error::Configuration("log2_slots must be 6 to 14"));
    }
    if ring.buffer_bytes == 0 || !ring.buffer_bytes.is_multiple_of(64) || ring.buffer_bytes > MAX_BUFFER_BYTES
    {
        return Err(Error::Configuration(
            "buffer_bytes must be a multiple of 64 up to 65536",
        ));
    }
    if !(1..=MAX_QUEUES).contains(&ring.queues) {
        return Err(Error::Configuration("queues must be 1 to 256"));
    }
    if config.name.len() >= NAME_BYTES {
        return Err(Error::Configuration("name must be 31 bytes at most"));
    }
    if Layout::new(ring, ring.log2_slots, ring.queues).bytes > u64::from(u32::MAX) {
        return Err(Error::Configuration(
            "slots × buffer_bytes × queues must stay below 4 GiB",
        ));
    }
    Ok(())
}

/// The layout of rings and buffers in the region.
#[derive(Debug, Clone, Copy)]
struct Layout {
    slots: usize,
    queues: usize,
    /// Distance between two buffers.
    ///
    /// Buffers at a power-of-two distance share a few cache sets, and a ring of short packets would evict
    /// itself: 1024 slots of 2048 bytes fill only 64 of 2048 sets. One extra line, for an odd number of
    /// lines, spreads them over all sets.
    stride: usize,
    buffers_at: usize,
    bytes: u64,
}

impl Layout {
    fn new(config: &RingConfig, log2_slots: u8, queues: u16) -> Layout {
        let slots = 1_usize << log2_slots;
        let queues = usize::from(queues);
        let lines = config.buffer_bytes as usize / 64;
        let stride = 64 * (lines | 1);
        let rings = 2 * queues;
        let buffers_at = (rings * ring::ring_bytes(slots)).next_multiple_of(4096);
        let bytes = buffers_at as u64 + (rings * slots * stride) as u64;
        Layout {
            slots,
            queues,
            stride,
            buffers_at,
            bytes,
        }
    }

    /// Ring numbers: first those to the server, then those to the client.
    fn ring_at(&self, ring: usize) -> usize {
        ring * ring::ring_bytes(self.slots)
    }

    fn buffer_at(&self, ring: usize, slot: usize) -> usize {
        self.buffers_at + (ring * self.slots + slot) * self.stride
    }
}

/// A client's ring before the link is established.
struct Prepared {
    ring: Ring,
    buffers: Buffers,
    interrupt: Interrupt,
    /// The server's end of the interrupt channel.
    theirs: OwnedFd,
    offset: u32,
}

fn handshake(config: &ClientConfig, deadline: Instant) -> Result<Link, Error> {
    let socket = open(config, deadline)?;
    let outcome = agree(config, &socket, deadline);
    if let Err(Error::Protocol(error)) = &outcome {
        socket.say_goodbye(&error.to_string());
    }
    let Agreed {
        state,
        queues,
        region,
    } = outcome?;
    Ok(Link {
        interface_id: config.interface_id,
        peer_name: state.peer_name.clone(),
        peer_interface: state.peer_interface.clone(),
        queues,
        state,
        regions: vec![region],
        control: Control {
            socket: Arc::new(socket),
        },
    })
}

/// Opens the control socket: the very inode at the path, never what a symbolic link there names. Whoever listens may
/// own the directory and choose what lies in it, and nothing there can make this wait. The path may have any length.
fn open(config: &ClientConfig, deadline: Instant) -> Result<Socket, Error> {
    let not_listening = |errno: Errno| Error::NotListening {
        path: config.socket.clone(),
        source: errno.into(),
    };
    let place = rustix::fs::open(
        &config.socket,
        OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(|errno| match errno {
        Errno::NOENT => not_listening(errno),
        errno => Error::system("cannot open the memif socket", errno),
    })?;
    let mode = rustix::fs::fstat(&place)
        .map_err(|errno| Error::system("cannot examine the memif socket", errno))?
        .st_mode;
    let found = FileType::from_raw_mode(mode);
    if found != FileType::Socket {
        return Err(Error::NotASocket {
            path: config.socket.clone(),
            found: kind(found),
        });
    }
    // Through the descriptor: the path may name something else by now.
    let address = SocketAddrUnix::new(format!("/proc/self/fd/{}", place.as_raw_fd()))
        .map_err(|errno| Error::system("cannot name the memif socket", errno))?;
    let fd = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
    .map_err(|errno| Error::system("cannot make a socket", errno))?;
    loop {
        match rustix::net::connect(&fd, &address) {
            Ok(()) => return Ok(Socket::new(fd)),
            Err(Errno::INTR) => {}
            // The server's queue of connections is full; it is short in some (DPDK's holds one).
            Err(Errno::AGAIN) if Instant::now() + RETRY < deadline => sleep(RETRY),
            Err(Errno::AGAIN) => {
                return Err(Error::Timeout {
                    expected: "place in the server's queue",
                });
            }
            Err(errno @ Errno::CONNREFUSED) => return Err(not_listening(errno)),
            // The socket was looked at, so what is missing is the way to its descriptor.
            Err(Errno::NOENT) => return Err(Error::Configuration("/proc must be mounted")),
            Err(errno) => return Err(Error::system("cannot connect to the memif socket", errno)),
        }
    }
}

/// What lies where a socket should, in words.
/// What lies at a path, in words.
pub(crate) fn kind(of: FileType) -> &'static str {
    match of {
        FileType::Symlink => "a symbolic link",
        FileType::Directory => "a directory",
        FileType::Fifo => "a FIFO",
        FileType::RegularFile => "a regular file",
        _ => "a device",
    }
}

/// What a handshake came to.
struct Agreed {
    state: LinkState,
    queues: Vec<QueuePair>,
    region: OwnedFd,
}

fn agree(config: &ClientConfig, socket: &Socket, deadline: Instant) -> Result<Agreed, Error> {
    let (hello, _) = socket.receive_until(deadline, "HELLO")?;
    let Message::Hello {
        name,
        min_version,
        max_version,
        max_s2c_ring,
        max_c2s_ring,
        max_log2_slots,
        ..
    } = hello
    else {
        return Err(refusal(hello));
    };
    if min_version > VERSION || max_version < VERSION {
        return Err(ProtocolError::Version {
            min: min_version,
            max: max_version,
        }
        .into());
    }
    let log2_slots = config.ring.log2_slots.min(max_log2_slots);
    if log2_slots == 0 {
        return Err(Error::Configuration("the server takes no rings"));
    }
    // The limits are indices, one less than counts.
    let queues = config
        .ring
        .queues
        .min(max_s2c_ring.saturating_add(1))
        .min(max_c2s_ring.saturating_add(1));

    let layout = Layout::new(&config.ring, log2_slots, queues);
    let (fd, mapping) = region::create(layout.bytes as usize, config.hugepages)?;
    let region_bytes = mapping.bytes() as u64;
    let prepared: Vec<Prepared> = (0..2 * layout.queues)
        .map(|ring| prepare(&layout, ring, config, &mapping))
        .collect::<Result<_, _>>()?;

    let ask = |message: &Message, descriptor: Option<&OwnedFd>| -> Result<(), Error> {
        socket
            .send(message, descriptor.map(AsFd::as_fd))
            .map_err(|error| {
                // A refusing server sends a reason and closes; the reason explains more than the broken pipe.
                match socket.receive_until(deadline, "ACK") {
                    Ok((answer, _)) => refusal(answer),
                    Err(_) => error,
                }
            })?;
        match socket.receive_until(deadline, "ACK")?.0 {
            Message::Ack => Ok(()),
            other => Err(refusal(other)),
        }
    };
    ask(
        &Message::init(
            config.interface_id,
            config.secret.unwrap_or([0; SECRET_BYTES]),
            &config.name,
        ),
        None,
    )?;
    ask(
        &Message::AddRegion {
            index: 0,
            bytes: region_bytes,
        },
        Some(&fd),
    )?;
    for (number, ring) in prepared.iter().enumerate() {
        let client_to_server = number < layout.queues;
        let index = if client_to_server {
            number
        } else {
            number - layout.queues
        };
        ask(
            &Message::AddRing {
                client_to_server,
                index: index as u16,
                region: 0,
                offset: ring.offset,
                log2_slots,
                private_header_bytes: 0,
            },
            Some(&ring.theirs),
        )?;
    }
    let interface_name = format!("memif{}", config.interface_id);
    socket.send(&Message::Connect { interface_name }, None)?;
    let peer_interface = match socket.receive_until(deadline, "CONNECTED")?.0 {
        Message::Connected { interface_name } => interface_name,
        other => return Err(refusal(other)),
    };

    let memory = Arc::new(Memory {
        regions: vec![mapping],
    });
    let slots = layout.slots as u16;
    let mut rings = prepared.into_iter();
    let tx: Vec<TxQueue> = rings
        .by_ref()
        .take(layout.queues)
        .map(|ring| {
            TxQueue::new(
                ring.ring,
                slots,
                ring.buffers,
                ring.interrupt,
                Arc::clone(&memory),
            )
        })
        .collect();
    let queues = tx
        .into_iter()
        .zip(rings)
        .map(|(tx, ring)| {
            let rx = RxQueue::new(
                ring.ring,
                slots,
                ring.buffers,
                ring.interrupt,
                Arc::clone(&memory),
            );
            rx.post_buffers();
            QueuePair { tx, rx }
        })
        .collect();
    let ring = |number: usize| RingState {
        region: 0,
        offset: layout.ring_at(number) as u32,
        log2_slots,
        first_buffer: layout.buffer_at(number, 0) as u64,
        peer_buffer: 0,
    };
    let state = LinkState {
        interface_id: config.interface_id,
        peer_name: name,
        peer_interface,
        regions: vec![region_bytes],
        to_server: (0..layout.queues).map(ring).collect(),
        to_client: (layout.queues..2 * layout.queues).map(ring).collect(),
        buffers: Some(BuffersState {
            stride: layout.stride as u64,
            capacity: config.ring.buffer_bytes,
        }),
    };
    Ok(Agreed {
        state,
        queues,
        region: fd,
    })
}

fn prepare(
    layout: &Layout,
    number: usize,
    config: &ClientConfig,
    mapping: &shared_memory::Mapping,
) -> Result<Prepared, Error> {
    let at = layout.ring_at(number);
    // SAFETY: the layout's rings are contiguous at the start of the mapping, which has at least
    // `layout.bytes` bytes. Ring sizes are multiples of 64 and the mapping is page-aligned. The queues that
    // get the ring hold the mapping.
    let ring = unsafe { Ring::new(mapping.address().add(at), layout.slots as u16) };
    ring.initialise();
    for slot in 0..layout.slots {
        ring.set_first_word(slot as u16, 0, 0, config.ring.buffer_bytes);
        ring.set_offset(slot as u16, layout.buffer_at(number, slot) as u32);
    }
    let buffers = Buffers::Own {
        first: mapping
            .address()
            .as_ptr()
            .wrapping_add(layout.buffer_at(number, 0)),
        stride: layout.stride,
        capacity: config.ring.buffer_bytes,
    };
    let (interrupt, theirs) = Interrupt::pair()?;
    Ok(Prepared {
        ring,
        buffers,
        interrupt,
        theirs,
        offset: at as u32,
    })
}

/// The error for an unexpected reply.
fn refusal(message: Message) -> Error {
    match message {
        Message::Disconnect { reason, .. } => Error::Disconnected { reason },
        other => ProtocolError::Unexpected {
            received: other.name(),
        }
        .into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_two_buffers_overlap_and_all_fit(
            log2_slots in MIN_LOG2_SLOTS..=MAX_LOG2_SLOTS,
            lines in 1..=1024_u32,
            queues in 1..=8_u16,
        ) {
            let config = RingConfig { log2_slots, buffer_bytes: 64 * lines, queues };
            let layout = Layout::new(&config, log2_slots, queues);
            let rings = 2 * usize::from(queues);
            prop_assert!(layout.stride >= config.buffer_bytes as usize);
            prop_assert!((layout.stride / 64) % 2 == 1);
            prop_assert!(layout.ring_at(rings) <= layout.buffers_at);
            let last = layout.buffer_at(rings - 1, layout.slots - 1) + layout.stride;
            prop_assert_eq!(last as u64, layout.bytes);
            prop_assert_eq!(layout.buffer_at(1, 0), layout.buffer_at(0, layout.slots - 1) + layout.stride);
        }
    }

    #[test]
    fn impossible_rings_are_refused() {
        let mut config = ClientConfig::new("/nowhere", 0);
        config.ring.log2_slots = 5;
        assert!(matches!(
            Client::connect(&config, Duration::ZERO),
            Err(Error::Configuration(_))
        ));
        config.ring = RingConfig {
            log2_slots: 14,
            buffer_bytes: 65_536,
            queues: 256,
        };
        assert!(matches!(
            Client::connect(&config, Duration::ZERO),
            Err(Error::Configuration(_))
        ));
        config.ring = RingConfig {
            buffer_bytes: 1000,
            ..RingConfig::default()
        };
        assert!(matches!(
            Client::connect(&config, Duration::ZERO),
            Err(Error::Configuration(_))
        ));
        config.ring = RingConfig::default();
        assert!(matches!(
            Client::connect(&config, Duration::ZERO),
            Err(Error::NotListening { .. })
        ));
    }
}
