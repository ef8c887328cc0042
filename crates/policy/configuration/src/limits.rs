//! The bounds of what a file may say, each with its reason.

use model::Nanos;

/// The longest configuration that is read, in bytes: 64 services of a page each are a tenth of it.
pub(crate) const FILE_LIMIT_BYTES: usize = 1 << 20;
/// CPU numbers end before this: the largest set that Linux is built for.
pub(crate) const CPU_LIMIT: u16 = 8192;
/// Data ports of an instance at most: one per side of a two-arm function.
pub(crate) const SERVICE_UPLINK_LIMIT: usize = 2;
/// Characters of a name at most: it becomes part of container, cgroup and socket names, and a socket's path has 107.
pub(crate) const NAME_LIMIT: usize = 32;
/// Bytes of a unix socket's path, without the final NUL: `sun_path` has 108.
pub(crate) const SOCKET_PATH_LIMIT: usize = 107;

/// The fewest flows worth a table.
pub(crate) const FLOWS_MIN: u64 = 1 << 10;
/// The most flows of a worker: what the 24 bits of an entry's number leave.
pub(crate) const FLOWS_MAX: u64 = 16_711_679;
/// IPv6 flows, as a part of the IPv4 ones where nothing is said: about half of the traffic, of which a worker sees fewer
/// and longer flows; an entry is more than twice as large.
pub(crate) const FLOWS_IPV6_PART: u64 = 4;
/// Queues at most, of an uplink and of an instance's port: what memif's PMD in DPDK takes by default.
pub(crate) const QUEUES_MAX: u64 = 64;
/// The least that an uplink must carry: the smallest Ethernet frame without its checksum.
pub(crate) const MAX_FRAME_MIN: u64 = 60;
/// The longest frame that a chain of buffers is made for: a jumbo frame of 16,000 bytes and its headers.
pub(crate) const MAX_FRAME_MAX: u64 = 16_384;
/// Instances of a service at most: each has a slot.
pub(crate) const INSTANCE_LIMIT: u64 = model::Slot::LIMIT as u64;
/// The least memory: below 6 MiB Docker refuses.
pub(crate) const MEMORY_MIN_BYTES: u64 = 6 << 20;
/// CPUs of a container at least: the kernel's shortest quota in its longest period.
pub(crate) const CPUS_MIN: f64 = 0.001;
/// The longest slow start: whoever needs more has a function that is not ready yet.
pub(crate) const SLOW_START_MAX: Nanos = Nanos::from_secs(3600);
/// The fewest descriptors: two bursts of 32.
pub(crate) const RING_SLOTS_MIN: u64 = 64;
/// The most descriptors: the largest power of two that memif can name (log2 of 14 in DPDK's PMD).
pub(crate) const RING_SLOTS_MAX: u64 = 16_384;
/// The smallest buffer: 64-byte frames and some room.
pub(crate) const BUFFER_BYTES_MIN: u64 = 128;
/// The largest buffer: memif's descriptors hold 32 bits, frames end at 16 KiB.
pub(crate) const BUFFER_BYTES_MAX: u64 = 16_384;
/// More than any card has been seen to forward by at full speed.
pub(crate) const RULES_MAX: u64 = 4_000_000;
/// Bits of a bucket's number: 12.
pub(crate) const BUCKETS_MAX: u64 = 4096;
