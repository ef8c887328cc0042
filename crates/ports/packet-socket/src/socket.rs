//! The socket: made, bound, asked for its rings and counters.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::Error;
use crate::positions::Positions;
use crate::ring::{FRAME_OFFSET_LIMIT, Map, Receiver, Sender};

/// All protocols, in network byte order.
const ALL_PROTOCOLS: u16 = (libc::ETH_P_ALL as u16).to_be();
/// Bytes of a block of a ring at least: the kernel allocates each in one piece.
const BLOCK_BYTES: u32 = 64 << 10;
/// The longest slot: the longest frame of an interface with jumbo frames, and its header.
const SLOT_LIMIT: u32 = 64 << 10;
/// Slots of a ring at most.
const SLOTS_LIMIT: u32 = 1 << 16;
/// Bytes of packets that are longer than a slot and wait to be fetched, at most: about 60 of the longest ones.
const LARGE_LIMIT: i32 = 8 << 20;
/// Bytes of frames on their way out at most: beyond that the ring fills.
const SEND_LIMIT: i32 = 8 << 20;

/// Sizes of the rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Slots of each of the two rings: a power of two.
    pub slots: u32,
    /// The longest frame, in bytes without the checksum.
    pub frame_bytes: u32,
}

impl Config {
    /// Bytes of a slot: a power of two, so that slots divide blocks.
    pub(crate) fn slot_bytes(&self) -> Option<u32> {
        let bytes = self.frame_bytes.checked_add(FRAME_OFFSET_LIMIT)?;
        bytes
            .checked_next_power_of_two()
            .filter(|bytes| *bytes <= SLOT_LIMIT)
    }

    /// Slots of a ring: they fill a block at least.
    fn slots_of(&self, slot_bytes: u32) -> u32 {
        self.slots.max(BLOCK_BYTES.max(slot_bytes) / slot_bytes)
    }
}

/// What the kernel has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Frames for which the ring towards this process had no room.
    pub dropped: u64,
}

/// A socket of an interface, with its rings.
#[derive(Debug)]
pub struct PacketSocket {
    interface: String,
    index: u32,
    file: Arc<OwnedFd>,
    receiver: Receiver,
    sender: Sender,
}

/// What is kept of a socket for the next process.
#[derive(Debug)]
pub struct Kept {
    /// The socket itself: the kernel goes on to fill its ring.
    pub socket: OwnedFd,
    /// Where its rings are.
    pub positions: OwnedFd,
}

/// What the kernel refused at an interface.
fn failure(interface: &str, what: &'static str) -> impl FnOnce(io::Error) -> Error + use<> {
    let interface = interface.to_owned();
    move |source| Error {
        interface,
        what,
        source,
    }
}

impl PacketSocket {
    /// Opens an interface of this thread's network namespace.
    ///
    /// # Errors
    /// There is no such interface, the sizes are out of their limits, or the caller lacks `CAP_NET_RAW`.
    pub fn open(interface: &str, config: Config) -> Result<PacketSocket, Error> {
        let wrong = |what| failure(interface, what);
        let slot_bytes = config
            .slot_bytes()
            .filter(|_| config.slots.is_power_of_two() && config.slots <= SLOTS_LIMIT)
            .ok_or_else(|| wrong("sizes of the rings")(io::Error::from_raw_os_error(libc::EINVAL)))?;
        let index = index_of(interface).map_err(wrong("finding it"))?;
        let file = socket_with(
            AddressFamily::PACKET,
            SocketType::RAW,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            // Nothing is received before it is bound.
            None,
        )
        .map_err(|error| wrong("opening a packet socket")(error.into()))?;
        let set = |option, value: i32| set_option(&file, option, &value);
        set(libc::PACKET_VERSION, libc::tpacket_versions::TPACKET_V2 as i32)
            .map_err(wrong("the version of its rings"))?;
        set(libc::PACKET_IGNORE_OUTGOING, 1).map_err(wrong("leaving out what it sends"))?;
        // A frame that the kernel refuses does not stop those behind it.
        set(libc::PACKET_LOSS, 1).map_err(wrong("passing over refused frames"))?;
        set(libc::PACKET_QDISC_BYPASS, 1).map_err(wrong("sending past its queues"))?;
        // Before its rings: each frame then has before it what is left to a card.
        set(libc::PACKET_VNET_HDR, 1).map_err(wrong("asking what is left to a card"))?;
        // A packet that is longer than a slot is kept whole beside the ring.
        set(libc::PACKET_COPY_THRESH, 1).map_err(wrong("keeping long packets"))?;
        let limit = |forced, usual, bytes: i32| {
            let set = |option| set_option_of(&file, libc::SOL_SOCKET, option, &bytes);
            match set(forced) {
                // Without CAP_NET_ADMIN the machine's own limits hold.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => set(usual),
                other => other,
            }
        };
        limit(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, LARGE_LIMIT).map_err(wrong("room for long packets"))?;
        limit(libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, SEND_LIMIT).map_err(wrong("room for frames to send"))?;
        let block_bytes = BLOCK_BYTES.max(slot_bytes);
        let slots = config.slots_of(slot_bytes);
        let request = libc::tpacket_req {
            tp_block_size: block_bytes,
            tp_block_nr: slots / (block_bytes / slot_bytes),
            tp_frame_size: slot_bytes,
            tp_frame_nr: slots,
        };
        set_option(&file, libc::PACKET_RX_RING, &request).map_err(wrong("its ring for received frames"))?;
        set_option(&file, libc::PACKET_TX_RING, &request).map_err(wrong("its ring for frames to send"))?;
        let map = Map::new(file.as_fd(), slots, slot_bytes).map_err(wrong("mapping its rings"))?;
        let map = Arc::new(map);
        bind(&file, index).map_err(wrong("binding to it"))?;
        Ok(PacketSocket::of(interface, index, config, file, map))
    }

    fn of(interface: &str, index: u32, config: Config, file: OwnedFd, map: Arc<Map>) -> PacketSocket {
        let file = Arc::new(file);
        PacketSocket {
            interface: interface.to_owned(),
            index,
            receiver: Receiver::new(Arc::clone(&map), Arc::clone(&file)),
            sender: Sender::new(map, Arc::clone(&file), config.frame_bytes),
            file,
        }
    }

    /// Has the socket kept: from now on it notes where its rings are. Gives what the next process needs.
    ///
    /// # Errors
    /// The system has no more memory or descriptors.
    pub fn keep(&mut self) -> io::Result<Kept> {
        let (file, positions) = Positions::new()?;
        let positions = Arc::new(positions);
        self.receiver.note(&positions);
        self.sender.note(&positions);
        Ok(Kept {
            socket: self.file.try_clone()?,
            positions: file,
        })
    }

    /// Goes on with a socket that another process had opened with these sizes: with what is in its rings. `unfinished`:
    /// the turn that it had noted and not finished.
    ///
    /// # Errors
    /// The interface is another one now, is gone, or was down. Its memory is of another layout.
    pub fn resume(
        interface: &str,
        config: Config,
        kept: Kept,
        unfinished: Option<u64>,
    ) -> Result<PacketSocket, Error> {
        let wrong = |what| failure(interface, what);
        let slot_bytes = config
            .slot_bytes()
            .ok_or_else(|| wrong("sizes of the rings")(io::Error::from_raw_os_error(libc::EINVAL)))?;
        let index = index_of(interface).map_err(wrong("finding it"))?;
        let bound = bound_to(&kept.socket).map_err(wrong("its socket"))?;
        if bound != index {
            let gone = io::Error::from_raw_os_error(libc::ENODEV);
            return Err(wrong("going on with its socket")(gone));
        }
        let positions = Positions::open(&kept.positions).map_err(wrong("the positions of its rings"))?;
        let positions = Arc::new(positions);
        let map = Map::new(kept.socket.as_fd(), config.slots_of(slot_bytes), slot_bytes);
        let map = Arc::new(map.map_err(wrong("mapping its rings"))?);
        let mut socket = PacketSocket::of(interface, index, config, kept.socket, map);
        socket.receiver.resume(&positions, unfinished);
        socket.sender.resume(&positions, unfinished);
        Ok(socket)
    }

    /// Its two rings: of the frames that have arrived, and of those to send.
    pub fn rings(&mut self) -> (&mut Receiver, &mut Sender) {
        (&mut self.receiver, &mut self.sender)
    }

    /// Frames that this interface receives are also for this MAC address: its card lets them pass.
    ///
    /// # Errors
    /// The interface has no such list.
    pub fn also_for(&self, mac: [u8; 6]) -> Result<(), Error> {
        let wrong = |source| Error {
            interface: self.interface.clone(),
            what: "a second MAC address",
            source,
        };
        let mut address = [0; 8];
        if let Some(place) = address.first_chunk_mut() {
            *place = mac;
        }
        let request = libc::packet_mreq {
            mr_ifindex: self.index as i32,
            mr_type: libc::PACKET_MR_UNICAST as u16,
            mr_alen: mac.len() as u16,
            mr_address: address,
        };
        set_option(&self.file, libc::PACKET_ADD_MEMBERSHIP, &request).map_err(wrong)
    }

    /// Looks after the socket, from another thread.
    pub fn monitor(&self) -> Monitor {
        Monitor {
            file: Arc::clone(&self.file),
        }
    }
}

impl AsFd for PacketSocket {
    /// Readable while frames are in the ring.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// A socket as its keeper sees it.
#[derive(Clone, Debug)]
pub struct Monitor {
    file: Arc<OwnedFd>,
}

impl Monitor {
    /// What the kernel has counted since the last call.
    ///
    /// # Errors
    /// The kernel's.
    pub fn take_statistics(&self) -> io::Result<Statistics> {
        let mut counted = libc::tpacket_stats {
            tp_packets: 0,
            tp_drops: 0,
        };
        let mut length = size_of_val(&counted) as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes to a structure that is exclusively ours.
        #[expect(unsafe_code)]
        let got = unsafe {
            libc::getsockopt(
                self.file.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut counted).cast(),
                &raw mut length,
            )
        };
        match got {
            0 => Ok(Statistics {
                dropped: u64::from(counted.tp_drops),
            }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Why the interface passes nothing any more, if so: it was removed, or is down.
    pub fn trouble(&self) -> Option<io::Error> {
        rustix::net::sockopt::socket_error(&*self.file)
            .ok()
            .and_then(Result::err)
            .map(io::Error::from)
    }
}

impl AsFd for Monitor {
    /// Readable while frames are in the ring, or in trouble.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The longest packet that an interface of this thread's network namespace carries, in bytes without the Ethernet header.
///
/// # Errors
/// There is no such interface.
pub fn mtu(interface: &str) -> Result<u32, Error> {
    let asked = || -> io::Result<u32> {
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        let mut name = [0; libc::IFNAMSIZ];
        let places = name.iter_mut().take(libc::IFNAMSIZ - 1);
        places
            .zip(interface.bytes())
            .for_each(|(place, byte)| *place = byte as libc::c_char);
        let mut request = libc::ifreq {
            ifr_name: name,
            ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_mtu: 0 },
        };
        // SAFETY: the kernel reads and writes one structure, which is exclusively ours and outlives the call.
        #[expect(unsafe_code)]
        let asked = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU as _, &raw mut request) };
        if asked != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it is what was asked for, and every bit pattern is a number.
        #[expect(unsafe_code)]
        let mtu = unsafe { request.ifr_ifru.ifru_mtu };
        Ok(mtu as u32)
    };
    asked().map_err(failure(interface, "its MTU"))
}

/// The number of an interface of this thread's network namespace.
fn index_of(interface: &str) -> io::Result<u32> {
    let name = CString::new(interface)?;
    // SAFETY: the name ends with a zero byte and outlives the call.
    #[expect(unsafe_code)]
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    match index {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}

/// Sets an option of packet sockets. `T` is a plain C structure or number, as the option wants it.
fn set_option<T: Copy>(file: &OwnedFd, option: libc::c_int, value: &T) -> io::Result<()> {
    set_option_of(file, libc::SOL_PACKET, option, value)
}

/// The same, of a level.
fn set_option_of<T: Copy>(
    file: &OwnedFd,
    level: libc::c_int,
    option: libc::c_int,
    value: &T,
) -> io::Result<()> {
    // SAFETY: the kernel reads `size_of::<T>()` bytes of a value that outlives the call.
    #[expect(unsafe_code)]
    let set = unsafe {
        libc::setsockopt(
            file.as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    match set {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The interface that a socket is bound to. The kernel says none where that is gone.
fn bound_to(file: &OwnedFd) -> io::Result<u32> {
    let mut address = libc::sockaddr_ll {
        sll_family: 0,
        sll_protocol: 0,
        sll_ifindex: 0,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let mut length = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to an address that is exclusively ours.
    #[expect(unsafe_code)]
    let got = unsafe { libc::getsockname(file.as_raw_fd(), (&raw mut address).cast(), &raw mut length) };
    match got {
        0 if address.sll_family == libc::AF_PACKET as u16 => Ok(address.sll_ifindex as u32),
        0 => Err(io::ErrorKind::InvalidData.into()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn bind(file: &OwnedFd, index: u32) -> io::Result<()> {
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: ALL_PROTOCOLS,
        sll_ifindex: index as i32,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    // SAFETY: the kernel reads an address of the stated length, which outlives the call.
    #[expect(unsafe_code)]
    let bound = unsafe {
        libc::bind(
            file.as_raw_fd(),
            (&raw const address).cast(),
            size_of_val(&address) as libc::socklen_t,
        )
    };
    match bound {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
