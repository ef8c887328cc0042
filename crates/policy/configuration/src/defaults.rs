//! What holds where the file says nothing, and the bounds of what it may say, each with its reason.

use model::Nanos;

/// The longest configuration that is read, in bytes: 64 services of a page each are a tenth of it.
pub(crate) const FILE_LIMIT_BYTES: usize = 1 << 20;
/// Uplinks at most: each worker has counters and queues for as many.
pub const UPLINK_LIMIT: usize = 8;
/// Services at most: each worker has counters and a scheduler for as many.
pub const SERVICE_LIMIT: usize = 64;
/// Workers at most: a ring goes from each to each other, and a set of them has 32 bits.
pub const WORKER_LIMIT: usize = 32;
/// CPU numbers end before this: the largest set that Linux is built for.
pub const CPU_LIMIT: u16 = 8192;
/// Data ports of an instance at most: one per side of a two-arm function.
pub const SERVICE_UPLINK_LIMIT: usize = 2;
/// Characters of a name at most: it becomes part of container, cgroup and socket names, and a socket's path has 107.
pub const NAME_LIMIT: usize = 32;
/// Bytes of a unix socket's path, without the final NUL: `sun_path` has 108.
pub const SOCKET_PATH_LIMIT: usize = 107;

/// Flows per worker. At 10,000 new flows a second, each with the 60 s that idle timeouts keep it on average, 600,000
/// are alive; the next power of two leaves the table's hash enough room.
pub(crate) const FLOWS: u64 = 1 << 20;
/// The fewest flows worth a table.
pub(crate) const FLOWS_MIN: u64 = 1 << 10;
/// The most flows of a worker: what the 24 bits of an entry's number leave.
pub(crate) const FLOWS_MAX: u64 = 16_711_679;
/// IPv6 flows, as a part of the IPv4 ones where nothing is said: about half of the traffic, of which a worker sees fewer
/// and longer flows; an entry is more than twice as large.
pub(crate) const FLOWS_IPV6_PART: u64 = 4;
/// The longest timeout of a flow: the table's clock in an entry repeats after twice that.
pub(crate) const TIMEOUT_MAX: Nanos = Nanos::from_secs(18 * 3600);

/// Queues of an uplink. More are of use only with as many workers.
pub(crate) const UPLINK_QUEUES: u8 = 1;
/// Queues at most, of an uplink and of an instance's port: what memif's PMD in DPDK takes by default.
pub(crate) const QUEUES_MAX: u8 = 64;
/// Bytes of a frame: 1,500 of payload, 14 of Ethernet header, two VLAN tags of 4.
pub(crate) const MAX_FRAME: u16 = 1522;
/// The least that an uplink must carry: the smallest Ethernet frame without its checksum.
pub(crate) const MAX_FRAME_MIN: u16 = 60;
/// The longest frame that a chain of buffers is made for: a jumbo frame of 16,000 bytes and its headers.
pub(crate) const MAX_FRAME_MAX: u16 = 16_384;

/// Instances at least: without one, the first packets of a service would wait for a container to start.
pub(crate) const INSTANCES_MIN: u32 = 1;
/// Instances at most: what the paper's experiment grows to.
pub(crate) const INSTANCES_MAX: u32 = 8;
/// Standby instances: one, so that the first scale-out costs microseconds and not a container's start.
pub(crate) const STANDBY: u32 = 1;

/// Memory of a container, in bytes: a DPDK program with 128 MiB of buffers has room, and one that leaks does not take
/// the machine with it.
pub(crate) const MEMORY_BYTES: u64 = 512 << 20;
/// The least memory: below 6 MiB Docker refuses.
pub(crate) const MEMORY_MIN_BYTES: u64 = 6 << 20;
/// Processes and threads of a container: a DPDK program has about five, and a fork bomb stops here.
pub(crate) const PROCESSES: u32 = 64;
/// CPUs of a container at least: the kernel's shortest quota in its longest period.
pub(crate) const CPUS_MIN: f64 = 0.001;

/// Time from a program's start until it must be ready: an image that is there starts within 0.2 s, DPDK's
/// environment takes a few seconds with many hugepages.
pub(crate) const READY_DEADLINE: Nanos = Nanos::from_secs(10);
/// Time for a drain: most flows end within it, and instances do not stay for one forgotten connection.
pub(crate) const DRAIN_DEADLINE: Nanos = Nanos::from_secs(60);
/// Time from SIGTERM to SIGKILL: a drained function has nothing left to do but to close files.
pub(crate) const STOP_GRACE: Nanos = Nanos::from_secs(2);

/// Share of the capacity that scheduling may use: a tenth is left for flows that grow.
pub(crate) const FIT: f64 = 0.9;
/// The scheduler: the paper's recommendation, since it leaves whole instances free to be removed.
pub(crate) const SCHEDULER: &str = "best-fit";
/// The longest slow start: whoever needs more has a function that is not ready yet.
pub(crate) const SLOW_START_MAX: Nanos = Nanos::from_secs(3600);
/// The autoscaler: ours.
pub(crate) const AUTOSCALER: &str = "ladder";

/// Idle time of TCP: IPVS' figure. Longer than the keep-alive of proxies and browsers (45 to 300 s).
pub(crate) const TCP: Nanos = Nanos::from_secs(900);
/// Idle time of a TCP flow before its handshake is complete: three retransmissions of a SYN, and a flood is soon
/// forgotten.
pub(crate) const TCP_HANDSHAKE: Nanos = Nanos::from_secs(10);
/// Idle time of UDP: the least that RFC 4787 (REQ-5) allows a NAT.
pub(crate) const UDP: Nanos = Nanos::from_secs(120);
/// Idle time of SCTP: as TCP; its heartbeats come every 30 s.
pub(crate) const SCTP: Nanos = Nanos::from_secs(900);
/// Idle time of ICMP queries: the least that RFC 5508 (REQ-2) allows a NAT.
pub(crate) const ICMP: Nanos = Nanos::from_secs(60);
/// Idle time of other protocols (GRE, ESP): as UDP, whose keep-alives tunnels use.
pub(crate) const OTHER: Nanos = Nanos::from_secs(120);
/// Time for which a flow that ended keeps its pin: a retransmitted FIN (at most 1 s by default) still finds it.
pub(crate) const TCP_LINGER: Nanos = Nanos::from_secs(2);

/// Descriptors of a ring: 1 ms at 1 Mpps. 256 ports with 4096 of them would be 4 GiB.
pub(crate) const RING_SLOTS: u32 = 1024;
/// The fewest descriptors: two bursts of 32.
pub(crate) const RING_SLOTS_MIN: u32 = 64;
/// The most descriptors: the largest power of two that memif can name (log2 of 14 in DPDK's PMD).
pub(crate) const RING_SLOTS_MAX: u32 = 16_384;
/// Bytes of a buffer: one frame of 1,522 bytes, and what DPDK's memif gives.
pub(crate) const BUFFER_BYTES: u32 = 2048;
/// The smallest buffer: 64-byte frames and some room.
pub(crate) const BUFFER_BYTES_MIN: u32 = 128;
/// The largest buffer: memif's descriptors hold 32 bits, frames end at 16 KiB.
pub(crate) const BUFFER_BYTES_MAX: u32 = 16_384;
/// Queue pairs of an instance's port: a function with one thread serves one.
pub(crate) const QUEUES: u8 = 1;

/// Where Docker answers.
pub(crate) const DOCKER_HOST: &str = "unix:///run/docker.sock";

/// Bytes of one file of the event log: some ten thousand events.
pub(crate) const EVENT_FILE_BYTES: u64 = 8 << 20;
/// Files of the event log: they may lie in memory.
pub(crate) const EVENT_FILES: u32 = 4;

/// The bridge.
pub(crate) const BRIDGE: &str = "br-inco";
/// Where Debian's Open vSwitch has its database.
pub(crate) const OVSDB: &str = "unix:/run/openvswitch/db.sock";
/// Exact rules.
pub(crate) const RULES: u32 = 100_000;
/// More than any card has been seen to forward by at full speed.
pub(crate) const RULES_MAX: u32 = 4_000_000;
/// Buckets of a service.
pub(crate) const BUCKETS: u16 = 64;
/// Bits of a bucket's number: 12.
pub(crate) const BUCKETS_MAX: u16 = 4096;
/// Ports of each service for instances that drain.
pub(crate) const SPARE_PORTS: u32 = 2;
