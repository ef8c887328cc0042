//! A small safe wrapper of DPDK: EAL, mempools, ports, queues, batches of mbufs. Moves frames between devices
//! and memory in bursts. Never parses a frame, and safe code cannot break memory safety with it.
//!
//! Key types: [`DeviceArgs`] (a device string, always available); with the feature `link` also [`Eal`],
//! [`Mempool`], [`Mbuf`] (one packet, one owner, eight bytes), [`Batch`], [`Port`], [`RxQueue`], [`TxQueue`], and
//! [`Acl`] and [`Routes`] (rules and routes, as peers in benches).
//!
//! 1. [`Eal::init`], once per process.
//! 2. [`Mempool::create`]: pools live as long as the process, so no mbuf outlives its pool.
//! 3. [`Port::attach`] a device and [`Port::start`] it, which returns the queues. Each queue has one owner,
//!    on any thread. A polling thread calls [`Eal::register_thread`] to get its own pool cache.
//! 4. [`RxQueue::receive`] and [`TxQueue::send`]; neither blocks.
//! 5. Drop the queues, then [`Port::stop`], [`Port::start`] again, or [`Port::close`]. A dropped port closes
//!    when its last queue is dropped.
//!
//! **Limits.** DPDK has a fixed number of ports ([`PORT_LIMIT`], 32 in Debian's); [`POOL_LIMIT`] pools;
//! [`BATCH_LIMIT`] mbufs per batch.
// UNSAFETY: calls DPDK, which returns raw pointers to mbufs.
#![cfg_attr(feature = "link", expect(unsafe_code))]

pub mod device;
mod error;

#[cfg(feature = "link")]
mod acl;
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
#[cfg(feature = "link")]
mod routes;

pub use device::DeviceArgs;
pub use error::{Errno, Error};

#[cfg(feature = "link")]
pub use acl::{ACL_KEYS_LIMIT, ACL_RULES_LIMIT, Acl, AclKey, AclRule};
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
#[cfg(feature = "link")]
pub use routes::{ROUTES_ADDRESSES_LIMIT, Routes, RoutesKind};
