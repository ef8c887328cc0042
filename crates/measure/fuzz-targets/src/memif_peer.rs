//! A memif client that sends and writes anything.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use memif::{Link, Listener, ServerConfig};
use rustix::event::EventfdFlags;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};

use crate::{pieces, scratch};

/// Bytes of a control message.
const MESSAGE: usize = 128;
/// Slots of each ring of an honest client.
const SLOTS: u64 = 64;
const RING_BYTES: u64 = 128 + 16 * SLOTS;
const BUFFERS_AT: u64 = 4096;
const REGION_BYTES: u64 = BUFFERS_AT + 2 * SLOTS * 2048;
const COOKIE: u32 = 0x03E3_1F20;

struct Peer {
    listener: Listener,
    socket: OwnedFd,
    memory: OwnedFd,
    interrupt: OwnedFd,
}

impl Peer {
    fn connect() -> Peer {
        let path = scratch("memif.sock");
        let config = ServerConfig {
            max_region_bytes: 1 << 20,
            // A fuzzer may run in idle time only.
            handshake_timeout: Duration::from_secs(3_600),
            ..ServerConfig::new("fuzz")
        };
        let mut listener = Listener::bind(&path, config).unwrap();
        let socket = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )
        .unwrap();
        rustix::net::connect(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        assert!(listener.accept(Duration::ZERO).unwrap().is_none());
        let memory =
            rustix::fs::memfd_create("fuzz", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&memory, REGION_BYTES).unwrap();
        rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK).unwrap();
        let interrupt = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        Peer {
            listener,
            socket,
            memory,
            interrupt,
        }
    }

    /// Sends a message and lets the server answer. The link, once it is established.
    fn send(&mut self, message: &[u8], descriptors: &[BorrowedFd<'_>]) -> Option<Link> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(descriptors)));
        }
        let _ = rustix::net::sendmsg(
            &self.socket,
            &[IoSlice::new(message)],
            &mut ancillary,
            SendFlags::NOSIGNAL,
        );
        let link = self.listener.accept(Duration::ZERO).unwrap();
        let mut answer = [0; 2 * MESSAGE];
        while rustix::net::recv(&self.socket, &mut answer[..], RecvFlags::empty())
            .is_ok_and(|(_, read)| read > 0)
        {}
        link
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        rustix::io::pwrite(&self.memory, bytes, at).unwrap();
    }
}

fn message(kind: u16, fields: &[(usize, &[u8])]) -> [u8; MESSAGE] {
    let mut bytes = [0; MESSAGE];
    bytes[..2].copy_from_slice(&kind.to_ne_bytes());
    for (at, field) in fields {
        bytes[*at..at + field.len()].copy_from_slice(field);
    }
    bytes
}

/// The valid messages of a client, in order.
fn honest() -> [([u8; MESSAGE], bool, bool); 5] {
    let version = 0x0200_u16.to_ne_bytes();
    let ring = |to_server: u16, offset: u64| {
        let offset = (offset as u32).to_ne_bytes();
        message(5, &[(2, &to_server.to_ne_bytes()), (8, &offset), (12, &[6])])
    };
    [
        (message(3, &[(2, &version), (33, b"fuzz")]), false, false),
        (message(4, &[(4, &REGION_BYTES.to_ne_bytes())]), true, false),
        (ring(1, 0), false, true),
        (ring(0, RING_BYTES), false, true),
        (message(6, &[(2, b"fuzz0")]), false, false),
    ]
}

/// Sends frames, receives frames and reads the state of a link whose peer writes anything.
fn use_link(link: &mut Link) {
    let mut buffer = [0; 4096];
    for queue in &mut link.queues {
        assert!(queue.rx.available() <= SLOTS as u32 * 1024);
        for _ in 0..SLOTS {
            match queue.rx.pop(&mut buffer) {
                Some(Ok(len)) => assert!(len <= buffer.len()),
                Some(Err(_)) => {}
                None => break,
            }
        }
        let taken = queue.rx.take_burst(SLOTS as usize, |found| {
            let len = found.len().min(buffer.len());
            found.copy_to(&mut buffer[..len]);
        });
        assert!(taken <= SLOTS as usize);
        queue.rx.release();
        let _ = queue.tx.push(&[1; 60]);
        let _ = queue
            .tx
            .push_burst(&[[2; 1500], [3; 1500]], |frame| &frame[..], 1500);
        queue.tx.flush();
        assert!(queue.tx.free() <= queue.tx.slots());
        let memif::QueuePair { rx, tx } = queue;
        assert!(rx.forward_to(tx, 8) <= 8);
        tx.flush();
        rx.release();
    }
    let _ = link.control.poll();
}

/// Control messages: each piece changes bytes of the next valid message. The first byte of a piece chooses the
/// message and its descriptors, the others are pairs of an offset and a value.
pub(crate) fn messages(bytes: &[u8]) {
    let mut peer = Peer::connect();
    let (memory, interrupt) = (
        peer.memory.as_fd().try_clone_to_owned().unwrap(),
        peer.interrupt.as_fd().try_clone_to_owned().unwrap(),
    );
    let valid = honest();
    for (step, piece) in pieces(bytes).take(16).enumerate() {
        let (choice, changes) = piece.split_first().map_or((0, &[][..]), |(of, rest)| (*of, rest));
        // 0 to 7: the next message of a valid handshake.
        let which = if choice % 16 < 8 {
            step
        } else {
            usize::from(choice)
        };
        let (mut sent, mut has_memory, mut has_interrupt) = valid[which % valid.len()];
        for change in changes.chunks_exact(2) {
            sent[usize::from(change[0]) % MESSAGE] = change[1];
        }
        has_memory ^= choice & 16 != 0;
        has_interrupt ^= choice & 32 != 0;
        let mut descriptors = Vec::new();
        descriptors.extend(has_memory.then(|| memory.as_fd()));
        descriptors.extend(has_interrupt.then(|| interrupt.as_fd()));
        descriptors.extend((choice & 64 != 0).then(|| interrupt.as_fd()));
        let len = if choice & 128 != 0 {
            usize::from(choice)
        } else {
            MESSAGE
        };
        if let Some(mut link) = peer.send(&sent[..len.min(MESSAGE)], &descriptors) {
            use_link(&mut link);
        }
    }
}

/// The rings of an established link: each piece is an offset in the region, of two bytes, and what is written there.
pub(crate) fn rings(bytes: &[u8]) {
    let mut peer = Peer::connect();
    for ring in 0..2 {
        peer.write(ring * RING_BYTES, &COOKIE.to_ne_bytes());
        for slot in 0..SLOTS {
            let buffer = BUFFERS_AT + (ring * SLOTS + slot) * 2048;
            let mut descriptor = [0; 16];
            descriptor[4..8].copy_from_slice(&2048_u32.to_ne_bytes());
            descriptor[8..12].copy_from_slice(&(buffer as u32).to_ne_bytes());
            peer.write(ring * RING_BYTES + 128 + 16 * slot, &descriptor);
        }
    }
    let (memory, interrupt) = (
        peer.memory.as_fd().try_clone_to_owned().unwrap(),
        peer.interrupt.as_fd().try_clone_to_owned().unwrap(),
    );
    let mut link = None;
    for (message, has_memory, has_interrupt) in honest() {
        let mut descriptors = Vec::new();
        descriptors.extend(has_memory.then(|| memory.as_fd()));
        descriptors.extend(has_interrupt.then(|| interrupt.as_fd()));
        link = peer.send(&message, &descriptors).or(link);
    }
    let mut link = link.expect("an honest client was refused");
    for piece in pieces(bytes) {
        if let Some((offset, written)) = piece.split_first_chunk::<2>() {
            // Mostly the rings' indices and descriptors, which lie in the first bytes.
            let at = u64::from(u16::from_ne_bytes(*offset)) % (2 * RING_BYTES);
            peer.write(at, written);
        }
        use_link(&mut link);
    }
}
