//! A manual protocol implementation for violating the protocol: messages as bytes, and shared memory written
//! through its file.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

pub(crate) const ACK: u16 = 1;
pub(crate) const HELLO: u16 = 2;
pub(crate) const INIT: u16 = 3;
pub(crate) const ADD_REGION: u16 = 4;
pub(crate) const ADD_RING: u16 = 5;
pub(crate) const CONNECT: u16 = 6;
pub(crate) const CONNECTED: u16 = 7;
pub(crate) const DISCONNECT: u16 = 8;

pub(crate) type Bytes = [u8; 128];

/// A message of a type with fields at their offsets.
pub(crate) fn message(kind: u16, fields: &[(usize, &[u8])]) -> Bytes {
    let mut bytes = [0; 128];
    bytes[..2].copy_from_slice(&kind.to_ne_bytes());
    for (at, field) in fields {
        bytes[*at..at + field.len()].copy_from_slice(field);
    }
    bytes
}

pub(crate) fn hello() -> Bytes {
    message(
        HELLO,
        &[
            (2, b"raw"),
            (34, &0x0200_u16.to_ne_bytes()),
            (36, &0x0200_u16.to_ne_bytes()),
            (38, &255_u16.to_ne_bytes()),
            (40, &255_u16.to_ne_bytes()),
            (42, &255_u16.to_ne_bytes()),
            (44, &[14]),
        ],
    )
}

pub(crate) fn init(id: u32) -> Bytes {
    message(
        INIT,
        &[
            (2, &0x0200_u16.to_ne_bytes()),
            (4, &id.to_ne_bytes()),
            (33, b"raw"),
        ],
    )
}

pub(crate) fn add_region(index: u16, bytes: u64) -> Bytes {
    message(
        ADD_REGION,
        &[(2, &index.to_ne_bytes()), (4, &bytes.to_ne_bytes())],
    )
}

pub(crate) fn add_ring(to_server: bool, index: u16, region: u16, offset: u32, log2_slots: u8) -> Bytes {
    message(
        ADD_RING,
        &[
            (2, &u16::from(to_server).to_ne_bytes()),
            (4, &index.to_ne_bytes()),
            (6, &region.to_ne_bytes()),
            (8, &offset.to_ne_bytes()),
            (12, &[log2_slots]),
        ],
    )
}

pub(crate) fn kind(bytes: &[u8]) -> u16 {
    u16::from_ne_bytes([bytes[0], bytes[1]])
}

/// The reason in a DISCONNECT.
pub(crate) fn reason(bytes: &[u8]) -> String {
    assert_eq!(kind(bytes), DISCONNECT, "not a DISCONNECT");
    String::from_utf8_lossy(&bytes[6..102])
        .trim_end_matches('\0')
        .to_owned()
}

/// A socket that can send anything.
pub(crate) struct RawSocket(pub(crate) OwnedFd);

impl RawSocket {
    fn open() -> OwnedFd {
        let fd = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        rustix::net::sockopt::set_socket_timeout(
            &fd,
            rustix::net::sockopt::Timeout::Recv,
            Some(Duration::from_secs(5)),
        )
        .unwrap();
        fd
    }

    pub(crate) fn connect(path: &Path) -> RawSocket {
        let fd = RawSocket::open();
        rustix::net::connect(&fd, &SocketAddrUnix::new(path).unwrap()).unwrap();
        RawSocket(fd)
    }

    pub(crate) fn listen(path: &Path) -> RawSocket {
        let fd = RawSocket::open();
        rustix::net::bind(&fd, &SocketAddrUnix::new(path).unwrap()).unwrap();
        rustix::net::listen(&fd, 8).unwrap();
        RawSocket(fd)
    }

    pub(crate) fn accept(&self) -> RawSocket {
        let fd = rustix::net::accept_with(&self.0, SocketFlags::CLOEXEC).unwrap();
        rustix::net::sockopt::set_socket_timeout(
            &fd,
            rustix::net::sockopt::Timeout::Recv,
            Some(Duration::from_secs(5)),
        )
        .unwrap();
        RawSocket(fd)
    }

    /// Takes the clients that wait by now, and counts them.
    pub(crate) fn waiting(&self) -> usize {
        let is_there = || {
            let mut socket = [PollFd::new(&self.0, PollFlags::IN)];
            rustix::event::poll(&mut socket, Some(&Timespec::default())).unwrap() > 0
        };
        let mut count = 0;
        while is_there() {
            drop(self.accept());
            count += 1;
        }
        count
    }

    /// Sends bytes with descriptors; false when the other end is gone.
    pub(crate) fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> bool {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(descriptors)));
        }
        rustix::net::sendmsg(
            &self.0,
            &[IoSlice::new(bytes)],
            &mut ancillary,
            SendFlags::NOSIGNAL,
        )
        .is_ok()
    }

    /// The next message; empty if the peer is gone.
    pub(crate) fn receive(&self) -> (Vec<u8>, Vec<OwnedFd>) {
        let mut bytes = [0_u8; 256];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let Ok(received) = rustix::net::recvmsg(
            &self.0,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC,
        ) else {
            return (Vec::new(), Vec::new());
        };
        let descriptors = ancillary
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
                _ => None,
            })
            .flatten()
            .collect();
        (bytes[..received.bytes].to_vec(), descriptors)
    }
}

/// A ring as announced by the peer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawRing {
    pub(crate) offset: u64,
    pub(crate) slots: u64,
}

/// Shared memory, read and written through its file.
pub(crate) struct RawMemory(pub(crate) OwnedFd);

impl RawMemory {
    /// A region with these seals.
    pub(crate) fn new(bytes: u64, seals: SealFlags) -> RawMemory {
        let fd = rustix::fs::memfd_create("raw", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&fd, bytes).unwrap();
        rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
        RawMemory(fd)
    }

    pub(crate) fn write(&self, at: u64, bytes: &[u8]) {
        assert_eq!(rustix::io::pwrite(&self.0, bytes, at).unwrap(), bytes.len());
    }

    pub(crate) fn read_u16(&self, at: u64) -> u16 {
        let mut bytes = [0; 2];
        rustix::io::pread(&self.0, &mut bytes, at).unwrap();
        u16::from_ne_bytes(bytes)
    }

    pub(crate) fn head(&self, ring: RawRing) -> u16 {
        self.read_u16(ring.offset + 6)
    }

    pub(crate) fn tail(&self, ring: RawRing) -> u16 {
        self.read_u16(ring.offset + 64)
    }

    pub(crate) fn set_head(&self, ring: RawRing, value: u16) {
        self.write(ring.offset + 6, &value.to_ne_bytes());
    }

    pub(crate) fn set_tail(&self, ring: RawRing, value: u16) {
        self.write(ring.offset + 64, &value.to_ne_bytes());
    }

    pub(crate) fn set_cookie(&self, ring: RawRing) {
        self.write(ring.offset, &0x03E3_1F20_u32.to_ne_bytes());
    }

    /// Writes the 16 bytes of a descriptor.
    pub(crate) fn set_descriptor(&self, ring: RawRing, slot: u64, descriptor: [u8; 16]) {
        self.write(ring.offset + 128 + 16 * (slot % ring.slots), &descriptor);
    }
}

/// A descriptor's bytes.
pub(crate) fn descriptor(flags: u16, region: u16, length: u32, offset: u32) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..2].copy_from_slice(&flags.to_ne_bytes());
    bytes[2..4].copy_from_slice(&region.to_ne_bytes());
    bytes[4..8].copy_from_slice(&length.to_ne_bytes());
    bytes[8..12].copy_from_slice(&offset.to_ne_bytes());
    bytes
}

/// The state of a manual server after a valid handshake.
pub(crate) struct Served {
    pub(crate) socket: RawSocket,
    pub(crate) memory: RawMemory,
    /// From the client to us.
    pub(crate) to_server: RawRing,
    /// From us to the client.
    pub(crate) to_client: RawRing,
    /// Keeps the interrupt channels open.
    pub(crate) interrupts: Vec<OwnedFd>,
}

/// A server's valid handshake with a client of one queue pair.
pub(crate) fn serve(listener: &RawSocket) -> Served {
    let socket = listener.accept();
    assert!(socket.send(&hello(), &[]));
    let mut memory = None;
    let (mut to_server, mut to_client) = (None, None);
    let mut interrupts = Vec::new();
    loop {
        let (bytes, mut descriptors) = socket.receive();
        assert_eq!(bytes.len(), 128, "the client gave up");
        match kind(&bytes) {
            INIT => {}
            ADD_REGION => memory = descriptors.pop().map(RawMemory),
            ADD_RING => {
                let ring = RawRing {
                    offset: u32::from_ne_bytes(bytes[8..12].try_into().unwrap()).into(),
                    slots: 1 << bytes[12],
                };
                if bytes[2] == 1 {
                    to_server = Some(ring)
                } else {
                    to_client = Some(ring)
                }
                interrupts.append(&mut descriptors);
            }
            CONNECT => {
                assert!(socket.send(&message(CONNECTED, &[(2, b"raw0")]), &[]));
                return Served {
                    socket,
                    memory: memory.unwrap(),
                    to_server: to_server.unwrap(),
                    to_client: to_client.unwrap(),
                    interrupts,
                };
            }
            other => panic!("unexpected message {other}"),
        }
        assert!(socket.send(&message(ACK, &[]), &[]));
    }
}

/// The state of a manual client after a valid handshake.
pub(crate) struct Connected {
    pub(crate) socket: RawSocket,
    pub(crate) memory: RawMemory,
    pub(crate) to_server: RawRing,
    pub(crate) to_client: RawRing,
    pub(crate) bytes: u64,
}

/// The layout that [`connect`] uses: two rings of 64 slots, then 128 buffers of 2048 bytes.
pub(crate) const SLOTS: u64 = 64;
pub(crate) const RING_BYTES: u64 = 128 + 16 * SLOTS;
pub(crate) const BUFFERS_AT: u64 = 4096;
pub(crate) const REGION_BYTES: u64 = BUFFERS_AT + 2 * SLOTS * 2048;

/// The memory of a well-behaved client.
pub(crate) fn honest_memory() -> (RawMemory, RawRing, RawRing) {
    let memory = RawMemory::new(REGION_BYTES, SealFlags::SHRINK);
    let to_server = RawRing {
        offset: 0,
        slots: SLOTS,
    };
    let to_client = RawRing {
        offset: RING_BYTES,
        slots: SLOTS,
    };
    for (number, ring) in [to_server, to_client].into_iter().enumerate() {
        memory.set_cookie(ring);
        for slot in 0..SLOTS {
            let offset = BUFFERS_AT + (number as u64 * SLOTS + slot) * 2048;
            memory.set_descriptor(ring, slot, descriptor(0, 0, 2048, offset as u32));
        }
    }
    (memory, to_server, to_client)
}

pub(crate) fn eventfd() -> OwnedFd {
    rustix::event::eventfd(
        0,
        rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK,
    )
    .unwrap()
}

/// A client's valid handshake for interface `id`, up to CONNECTED.
pub(crate) fn connect(path: &Path, id: u32) -> Connected {
    let socket = RawSocket::connect(path);
    assert_eq!(kind(&socket.receive().0), HELLO);
    let (memory, to_server, to_client) = honest_memory();
    let (one, two) = (eventfd(), eventfd());
    let steps: [(Bytes, Option<BorrowedFd<'_>>); 4] = [
        (init(id), None),
        (add_region(0, REGION_BYTES), Some(memory.0.as_fd())),
        (add_ring(true, 0, 0, 0, 6), Some(one.as_fd())),
        (add_ring(false, 0, 0, RING_BYTES as u32, 6), Some(two.as_fd())),
    ];
    for (bytes, descriptor) in steps {
        assert!(socket.send(&bytes, descriptor.as_slice()));
        let answer = socket.receive().0;
        assert_eq!(kind(&answer), ACK, "{answer:?}");
    }
    assert!(socket.send(&message(CONNECT, &[(2, b"raw0")]), &[]));
    assert_eq!(kind(&socket.receive().0), CONNECTED);
    memory.set_head(to_client, SLOTS as u16);
    Connected {
        socket,
        memory,
        to_server,
        to_client,
        bytes: REGION_BYTES,
    }
}
