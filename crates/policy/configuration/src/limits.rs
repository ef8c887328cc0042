//! Limits on the values of a file, each with its reason.

use model::Nanos;

/// Largest configuration in bytes. 64 services of a page each need a tenth of it.
pub(crate) const FILE_LIMIT_BYTES: usize = 1 << 20;
/// CPU numbers are below this, the largest set that Linux supports.
pub(crate) const CPU_LIMIT: u16 = 8192;
/// Most data ports of an instance: one per side of a two-arm function.
pub(crate) const SERVICE_UPLINK_LIMIT: usize = 2;
/// Most characters of a name: it is part of container, cgroup and socket names, and a socket's path has 107 bytes.
pub(crate) const NAME_LIMIT: usize = 32;
/// Longest path of a unix socket in bytes: `sun_path` has 108, including the final NUL.
pub(crate) const SOCKET_PATH_LIMIT: usize = 107;

/// The scheduler that goes by load reports.
pub(crate) const BY_REPORTS: &str = <scheduling::Machines as scheduling::Policy>::NAME;
/// Highest number of a machine: an edge knows as many.
pub(crate) const MACHINE_NUMBER_MAX: u64 = edge_steering::MACHINES_LIMIT as u64 - 1;
/// Fewest flows of a table.
pub(crate) const FLOWS_MIN: u64 = 1 << 10;
/// Most flows of a worker: the range of an entry's 24-bit number.
pub(crate) const FLOWS_MAX: u64 = 16_711_679;
/// Divides the IPv4 capacity into the default capacity for IPv6 flows. IPv6 is about half of the traffic, but a
/// worker sees fewer and longer flows, and an entry is more than twice as large.
pub(crate) const FLOWS_IPV6_PART: u64 = 4;
/// Most queues of an uplink or an instance's port: the default of DPDK's memif driver.
pub(crate) const QUEUES_MAX: u64 = 64;
/// Smallest maximum frame of an uplink: the smallest Ethernet frame without its checksum.
pub(crate) const MAX_FRAME_MIN: u64 = 60;
/// Largest frame that a chain of buffers supports: a jumbo frame of 16,000 bytes with its headers.
pub(crate) const MAX_FRAME_MAX: u64 = 16_384;
/// Most instances of a service: each needs a slot.
pub(crate) const INSTANCE_LIMIT: u64 = model::Slot::LIMIT as u64;
/// Most Kubernetes Services whose endpoints are the instances of one service: as many as a route has backends.
pub(crate) const KUBERNETES_SERVICES_LIMIT: usize = 16;
/// Usual maximum of endpoints of a Kubernetes Service. Each takes a slot in advance.
pub(crate) const ENDPOINTS_USUAL: u32 = 64;
/// Least memory: Docker refuses less than 6 MiB.
pub(crate) const MEMORY_MIN_BYTES: u64 = 6 << 20;
/// Fewest CPUs of a container: the kernel's shortest quota in its longest period.
pub(crate) const CPUS_MIN: f64 = 0.001;
/// Longest slow start. A function that needs more is not ready yet.
pub(crate) const SLOW_START_MAX: Nanos = Nanos::from_secs(3600);
/// Fewest descriptors: two bursts of 32.
pub(crate) const RING_SLOTS_MIN: u64 = 64;
/// Most descriptors: the largest power of two that memif supports (log2 of 14 in DPDK's driver).
pub(crate) const RING_SLOTS_MAX: u64 = 16_384;
/// Smallest buffer: a 64-byte frame and some room.
pub(crate) const BUFFER_BYTES_MIN: u64 = 128;
/// Largest buffer: that of the longest frame, 16 KiB.
pub(crate) const BUFFER_BYTES_MAX: u64 = 16_384;
/// Most exact rules: more than any known card forwards at full speed.
pub(crate) const RULES_MAX: u64 = 4_000_000;
/// Flows with a rule of the driver `hybrid`: as many as its programs have passages for, with those that are being removed.
pub(crate) const HYBRID_RULES_MAX: u64 = 4_000;
/// Most buckets: a bucket's number has 12 bits.
pub(crate) const BUCKETS_MAX: u64 = 4096;

/// Ranges of ports of a service's address: each is four rules with two addresses, and there are 256 in all.
pub(crate) const VIP_RANGES: usize = 16;
/// Registries without TLS. A machine with more has a mirror.
pub(crate) const REGISTRIES_MAX: usize = 64;
/// Longest path of a health check's request in bytes: the request fits into one packet.
pub(crate) const HTTP_PATH_LIMIT: usize = 1024;
