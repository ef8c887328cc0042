//! The memif protocol (version 2.0) in Rust, both roles, without DPDK: packets between two processes through
//! shared-memory rings, set up over a unix socket. This crate moves frames and reports ring occupancy. It
//! never parses a frame and makes no forwarding decisions.
//!
//! A **client** ([`Client`]) allocates the memory (a sealed memfd) and connects. A **server** ([`Listener`])
//! listens and maps the memory of its clients. Both get a [`Link`]: [`QueuePair`]s and a [`Control`]. Towards
//! containers the switch is the client, so that no container can shrink the memory under it.
//!
//! 1. The server binds a socket. The client connects and receives HELLO (versions and limits).
//! 2. INIT (interface id, secret), ADD_REGION (the memory), ADD_RING for each ring. Each is answered with
//!    ACK.
//! 3. CONNECT, CONNECTED: both sides start with empty rings, and the client posts its buffers.
//! 4. [`TxQueue::push`] and [`TxQueue::flush`] on one side, [`RxQueue::pop`] and [`RxQueue::release`] on the
//!    other. An idle consumer sleeps in [`wait`].
//! 5. DISCONNECT or a closed socket ends the link; [`Control::poll`] reports it. The rings stay readable
//!    until dropped.
//!
//! **The peer is untrusted.** It can write to the shared memory at any time. Each index and descriptor is
//! read once, validated, then used. A frame is copied out before anything reads it. A client ignores the
//! offsets in shared descriptors: it has its own list of buffers. An index beyond the ring ends the use of that ring
//! ([`RxQueue::is_violated`], [`TxQueue::is_violated`]). A bad descriptor costs that packet
//! ([`RxQueue::counters`]).
//!
//! **A link outlives its program** where somebody keeps its descriptors ([`Link::files`]) and its description
//! ([`Link::state`]): [`Link::resume`] goes on with it, and [`Listener::resume`] with a listening socket. The peer
//! notices nothing. The queues of such a program publish what they took and what became of it in an order that loses
//! nothing: [`RxQueue::hold_slots`], and [`Unfinished`] for what must not come twice.
//!
//! **Limits.** [`MAX_LOG2_SLOTS`], [`MAX_QUEUES`], [`MAX_BUFFER_BYTES`], [`MAX_PACKET_BYTES`], [`MAX_WAIT`].
//! A link of one queue pair takes four file descriptors: 256 links take 1024.
//!
//! `examples/round_trip.rs` measures the round-trip packet rate beside DPDK's driver.
//!
//! ```
//! use std::time::Duration;
//! use memif::{Client, ClientConfig, Listener, ServerConfig};
//!
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("memif.sock");
//! let mut listener = Listener::bind(&path, ServerConfig::new("function"))?;
//! let switch = std::thread::spawn({
//!     let path = path.clone();
//!     move || Client::connect(&ClientConfig::new(path, 0), Duration::from_secs(1))
//! });
//! let mut function = listener.accept(Duration::from_secs(1))?.ok_or("no client")?;
//! let mut switch = switch.join().map_err(|_| "panicked")??;
//!
//! switch.queues[0].tx.push(b"a frame")?;
//! switch.queues[0].tx.flush();
//! let mut buffer = [0; 2048];
//! let length = function.queues[0].rx.pop(&mut buffer).ok_or("empty")??;
//! assert_eq!(&buffer[..length], b"a frame");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod client;
mod copy;
mod error;
mod index;
mod interrupt;
mod kept;
mod link;
mod message;
mod queue;
mod region;
mod ring;
mod server;
mod socket;

pub use client::{
    Client, ClientConfig, MAX_BUFFER_BYTES, MAX_LOG2_SLOTS, MAX_QUEUES, MIN_LOG2_SLOTS, RingConfig,
};
pub use error::{Error, ProtocolError, RxError, TxError};
pub use kept::{LinkState, Unfinished};
pub use link::{Control, ControlEvent, Link, PeerCredentials};
pub use queue::{Found, MAX_PACKET_BYTES, MAX_WAIT, Moved, QueuePair, RxCounters, RxQueue, TxQueue, wait};
pub use server::{Listener, ServerConfig};
