//! A small safe wrapper of DPDK: EAL, mempools, ports, queues, batches of mbufs. It moves frames between devices and
//! memory in bursts; it never looks into a frame, and nothing that safe code does with it can break memory.
//!
//! Key types: [`DeviceArgs`] (what an operator writes for a device, always here); with the feature `link` also [`Eal`],
//! [`Mempool`], [`Mbuf`] (one packet, one owner, eight bytes), [`Batch`], [`Port`], [`RxQueue`], [`TxQueue`].
//!
//! 1. [`Eal::init`], once per process.
//! 2. [`Mempool::create`]: pools live as long as the process, so a mbuf can never outlive its pool.
//! 3. [`Port::attach`] a device, [`Port::start`] it: this gives the queues, each to its one owner, on any thread. A
//!    thread that polls says so with [`Eal::register_thread`] (a pool's cache of its own).
//! 4. [`RxQueue::receive`], [`TxQueue::send`], as often as you like. Neither waits.
//! 5. Drop the queues, then [`Port::stop`], [`Port::start`] again, or [`Port::close`]. A port whose queues are still
//!    in use is closed when the last of them goes.
//!
//! **Limits.** DPDK has a fixed number of ports ([`PORT_LIMIT`], 32 in Debian's); [`POOL_LIMIT`] pools;
//! [`BATCH_LIMIT`] mbufs a batch.
// UNSAFETY: calls into DPDK, which hands out raw pointers to mbufs.
#![cfg_attr(feature = "link", expect(unsafe_code))]

pub mod device;
mod error;

#[cfg(feature = "link")]
mod batch;
#[cfg(feature = "link")]
mod eal;
#[cfg(feature = "link")]
mod mbuf;
#[cfg(feature = "link")]
mod mempool;
#[cfg(feature = "link")]
mod port;

pub use device::DeviceArgs;
pub use error::{Errno, Error};

#[cfg(feature = "link")]
pub use batch::{BATCH_LIMIT, Batch};
#[cfg(feature = "link")]
pub use eal::{Eal, EalConfig, RegisteredThread};
#[cfg(feature = "link")]
pub use mbuf::{Mbuf, Segments};
#[cfg(feature = "link")]
pub use mempool::{Mempool, MempoolConfig, POOL_LIMIT};
#[cfg(feature = "link")]
pub use port::{
    FRAME_BYTES_MIN, FRAME_OVERHEAD_BYTES, Link, PORT_LIMIT, Port, PortConfig, PortInfo, PortStats, Queues,
    Refused, RxQueue, TxQueue, interface_mtu,
};
