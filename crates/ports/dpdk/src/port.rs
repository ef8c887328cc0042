//! Ports (devices that send and receive frames) and their queues.
//!
//! **Threading.** A [`Port`] belongs to the control plane: its calls may block. A queue belongs to one thread
//! at a time: its calls never block. Both may be used concurrently. Queues keep their port open: it closes
//! when the port and all queues are dropped, on the thread that drops the last.

use std::ffi::{CStr, CString, c_char};
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dpdk_sys as sys;

use crate::batch::Batch;
use crate::mbuf::Mbuf;
use crate::{DeviceArgs, Eal, Error, Mempool};

/// Ports that this DPDK supports.
pub const PORT_LIMIT: usize = sys::INCO_PORT_LIMIT as usize;

/// The shortest frame that is sent, in bytes: an Ethernet header. Shorter ones can hang a card's queue.
pub const FRAME_BYTES_MIN: usize = 14;

/// Frame overhead beyond the MTU: an Ethernet header and two VLAN tags, in bytes.
pub const FRAME_OVERHEAD_BYTES: usize = ETHERNET_BYTES + 2 * VLAN_BYTES;

/// An Ethernet header, in bytes.
const ETHERNET_BYTES: usize = 14;
/// A VLAN tag, in bytes.
const VLAN_BYTES: usize = 4;
/// The EtherType of an 802.1Q tag.
const ETHERTYPE_VLAN: [u8; 2] = [0x81, 0x00];

/// The driver for kernel interfaces.
const AF_PACKET: &str = "net_af_packet";

/// Ports in use, by id. Its lock is also held while devices are attached and detached.
static TAKEN: Mutex<[bool; PORT_LIMIT]> = Mutex::new([false; PORT_LIMIT]);

fn taken() -> MutexGuard<'static, [bool; PORT_LIMIT]> {
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A port's configuration.
#[derive(Clone, Copy, Debug)]
pub struct PortConfig {
    /// Receive queues. With several, RSS distributes frames by addresses.
    pub rx_queues: u16,
    /// Transmit queues.
    pub tx_queues: u16,
    /// Descriptors per receive queue; rounded to what the device supports.
    pub rx_descriptors: u16,
    /// Descriptors per transmit queue; rounded to what the device supports.
    pub tx_descriptors: u16,
    /// The largest packet in bytes, without Ethernet header and VLAN tags; `None` keeps the device's. A
    /// kernel interface keeps its configured MTU, and longer frames are not sent.
    pub mtu: Option<u16>,
    /// Whether to receive frames to any address.
    pub promiscuous: bool,
    /// The pool for received frames.
    pub pool: Mempool,
}

impl PortConfig {
    /// One queue pair of 1,024 descriptors, promiscuous, with the device's MTU.
    pub fn new(pool: Mempool) -> PortConfig {
        PortConfig {
            rx_queues: 1,
            tx_queues: 1,
            rx_descriptors: 1024,
            tx_descriptors: 1024,
            mtu: None,
            promiscuous: true,
            pool,
        }
    }
}

/// A port's properties.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortInfo {
    /// Its driver, such as `net_mlx5`.
    pub driver: String,
    /// Its MAC address.
    pub mac: [u8; 6],
    /// Maximum receive queues.
    pub rx_queues_max: u16,
    /// Maximum transmit queues.
    pub tx_queues_max: u16,
    /// Its MTU in bytes; 0 if it has none.
    pub mtu: u16,
    /// Its NUMA node; negative if unknown.
    pub socket: i32,
    /// Maximum segments of a packet to send.
    pub tx_segments_max: u16,
}

/// A port's own counters since it was attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStats {
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes of `rx_packets`.
    pub rx_bytes: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// Packets dropped by the device for lack of a descriptor.
    pub rx_missed: u64,
    /// Erroneous packets received.
    pub rx_errors: u64,
    /// Packets dropped for lack of an mbuf.
    pub rx_no_mbuf: u64,
    /// Packets that failed to send.
    pub tx_errors: u64,
}

/// The state of a port's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Whether it is up.
    pub up: bool,
    /// Its speed in Mbit/s, if known.
    pub speed_mbps: Option<u32>,
    /// Whether it is full duplex.
    pub full_duplex: bool,
}

/// The queues of a started port.
#[derive(Debug, Default)]
pub struct Queues {
    /// Receive queues.
    pub rx: Vec<RxQueue>,
    /// Transmit queues.
    pub tx: Vec<TxQueue>,
}

/// State shared by a port and its queues.
struct Attached {
    id: u16,
    name: String,
    /// Queues in use.
    queues_in_use: AtomicUsize,
    /// DPDK's control calls on one port must not overlap.
    control: Mutex<()>,
}

impl Attached {
    fn control(&self) -> MutexGuard<'_, ()> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let mut taken = taken();
        // SAFETY: the id is that of an attached port, and neither the port nor a queue is in use any more.
        let _ret = unsafe { sys::inco_port_close(self.id) };
        // A device that cannot be detached keeps its id, which is not reused.
        // SAFETY: reads a table of DPDK.
        if unsafe { sys::rte_eth_dev_is_valid_port(self.id) } == 0
            && let Some(place) = taken.get_mut(usize::from(self.id))
        {
            *place = false;
        }
    }
}

/// A device that this process has attached.
pub struct Port {
    attached: Arc<Attached>,
    info: PortInfo,
    /// The kernel interface behind it, for [`AF_PACKET`].
    interface: Option<String>,
    started: bool,
}

impl Port {
    /// Attaches a device with one port.
    ///
    /// # Errors
    /// [`Error::Refused`] if there is no such device or its driver rejects it, [`Error::PortInUse`],
    /// [`Error::NoPort`], [`Error::SeveralPorts`].
    pub fn attach(eal: &Eal, device: &DeviceArgs) -> Result<Port, Error> {
        let mut ports = Port::attach_all(eal, device)?;
        match (ports.pop(), ports.len()) {
            (Some(port), 0) => Ok(port),
            (None, _) => Err(Error::NoPort(device.to_string())),
            (Some(_), others) => Err(Error::SeveralPorts {
                device: device.to_string(),
                ports: others + 1,
            }),
        }
    }

    /// Attaches a device with all its ports, such as a card's representors, in DPDK's order.
    ///
    /// # Errors
    /// As [`Port::attach`].
    pub fn attach_all(_eal: &Eal, device: &DeviceArgs) -> Result<Vec<Port>, Error> {
        let devargs = device.to_devargs();
        let text = CString::new(devargs.as_str()).map_err(|_| Error::EalArgument(devargs.clone()))?;
        let mut taken = taken();
        let before = valid_ports();
        // SAFETY: EAL runs (`_eal`); `text` is zero-terminated and copied; devices are attached and detached
        // only under this lock.
        let ret = unsafe { sys::rte_dev_probe(text.as_ptr()) };
        let mut found: Vec<u16> = valid_ports()
            .into_iter()
            .filter(|id| !before.contains(id))
            .collect();
        if ret < 0 {
            let errno = ret.saturating_abs();
            if errno != EEXIST {
                return Err(Error::refused("cannot attach", &devargs, errno));
            }
        }
        if found.is_empty() {
            // Already attached: found by EAL at start, or in use.
            found = ports_of(&text);
            if found.is_empty() {
                return Err(Error::NoPort(devargs));
            }
        }
        if found
            .iter()
            .any(|&id| taken.get(usize::from(id)).copied().unwrap_or(true))
        {
            return Err(Error::PortInUse(device.to_string()));
        }
        let mut attached = Vec::new();
        for id in found {
            if let Some(place) = taken.get_mut(usize::from(id)) {
                *place = true;
            }
            attached.push(Arc::new(Attached {
                id,
                name: devargs.split(',').next().unwrap_or_default().to_owned(),
                queues_in_use: AtomicUsize::new(0),
                control: Mutex::new(()),
            }));
        }
        // Failures from here on drop them, which takes the lock.
        drop(taken);
        attached
            .into_iter()
            .map(|attached| {
                Ok(Port {
                    info: read_info(&attached)?,
                    attached,
                    interface: device.interface().map(str::to_owned),
                    started: false,
                })
            })
            .collect()
    }

    /// Its DPDK port number.
    pub fn id(&self) -> u16 {
        self.attached.id
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.attached.name
    }

    /// Its properties when it was attached or last started.
    pub fn info(&self) -> &PortInfo {
        &self.info
    }

    /// Its own counters.
    ///
    /// # Errors
    /// [`Error::Refused`] if the device has none.
    pub fn stats(&self) -> Result<PortStats, Error> {
        let mut raw = sys::inco_port_stats::default();
        let _alone = self.attached.control();
        // SAFETY: an attached port; the callee fills the structure.
        let ret = unsafe { sys::inco_port_stats(self.attached.id, &mut raw) };
        self.check("cannot read the counters of", ret)?;
        Ok(PortStats {
            rx_packets: raw.rx_packets,
            rx_bytes: raw.rx_bytes,
            tx_packets: raw.tx_packets,
            tx_bytes: raw.tx_bytes,
            rx_missed: raw.rx_missed,
            rx_errors: raw.rx_errors,
            rx_no_mbuf: raw.rx_no_mbuf,
            tx_errors: raw.tx_errors,
        })
    }

    /// The link state, as last seen by the driver.
    ///
    /// # Errors
    /// [`Error::Refused`] if the device has none.
    pub fn link(&self) -> Result<Link, Error> {
        let mut raw = sys::inco_link::default();
        let _alone = self.attached.control();
        // SAFETY: an attached port; the callee fills the structure.
        let ret = unsafe { sys::inco_port_link(self.attached.id, &mut raw) };
        self.check("cannot read the link of", ret)?;
        Ok(Link {
            up: raw.up != 0,
            speed_mbps: (raw.speed_mbps != u32::MAX).then_some(raw.speed_mbps),
            full_duplex: raw.full_duplex != 0,
        })
    }

    /// Whether the device was unplugged.
    pub fn is_removed(&self) -> bool {
        let _alone = self.attached.control();
        // SAFETY: an attached port.
        unsafe { sys::rte_eth_dev_is_removed(self.attached.id) != 0 }
    }

    /// Number of its queues in use.
    pub fn queues_in_use(&self) -> usize {
        // Pairs with the release in a queue's drop: the queue's accesses come before.
        self.attached.queues_in_use.load(Ordering::Acquire)
    }

    /// Configures and starts the port. Stops it first if it is started.
    ///
    /// # Errors
    /// [`Error::QueuesInUse`], [`Error::TooManyQueues`], or [`Error::Refused`] if the device rejects the
    /// configuration. The port is then stopped and can be started again.
    pub fn start(&mut self, config: &PortConfig) -> Result<Queues, Error> {
        self.stop()?;
        for (direction, wanted, has) in [
            ("receive", config.rx_queues, self.info.rx_queues_max),
            ("transmit", config.tx_queues, self.info.tx_queues_max),
        ] {
            if wanted > has {
                return Err(Error::TooManyQueues {
                    port: self.name().to_owned(),
                    direction,
                    has,
                    wanted,
                });
            }
        }
        let of_kernel = self.info.driver == AF_PACKET;
        let raw = sys::inco_port_config {
            pool: config.pool.as_ptr(),
            rx_queues: config.rx_queues,
            tx_queues: config.tx_queues,
            rx_descriptors: config.rx_descriptors,
            tx_descriptors: config.tx_descriptors,
            // A kernel interface keeps its configured MTU, and this driver rejects more than 1,500.
            mtu: config.mtu.filter(|_| !of_kernel).unwrap_or(0),
            promiscuous: u8::from(config.promiscuous),
        };
        {
            let _alone = self.attached.control();
            // SAFETY: an attached, stopped port without queues in use; the pool is never freed.
            let ret = unsafe { sys::inco_port_configure(self.attached.id, &raw) };
            self.check("cannot configure", ret)?;
            // SAFETY: an attached, configured and stopped port.
            let ret = unsafe { sys::rte_eth_dev_start(self.attached.id) };
            self.check("cannot start", ret)?;
        }
        self.started = true;
        self.info = read_info(&self.attached)?;
        let lengths = match &self.interface {
            Some(interface) if of_kernel => FrameLimits::of_interface(interface_mtu(interface)?, config.mtu),
            _ => FrameLimits::of_device(config.mtu.unwrap_or(self.info.mtu)),
        };
        Ok(Queues {
            rx: (0..config.rx_queues)
                .map(|queue| RxQueue {
                    queue,
                    lease: Lease::new(&self.attached),
                })
                .collect(),
            tx: (0..config.tx_queues)
                .map(|queue| TxQueue {
                    queue,
                    lengths,
                    segments_max: self.info.tx_segments_max,
                    refused: Refused::default(),
                    lease: Lease::new(&self.attached),
                })
                .collect(),
        })
    }

    /// Configures RSS on the started port: the Toeplitz hash of the addresses with a key that repeats `key`.
    /// Packets whose hash ends in the 6 bits `i` go to queue `table[i]`.
    ///
    /// # Errors
    /// [`Error::Refused`] if the device does not support it; its distribution is then unspecified.
    pub fn configure_rss(&mut self, key: [u8; 2], table: &[u16; 64]) -> Result<(), Error> {
        let _alone = self.attached.control();
        // SAFETY: an attached port; both arrays have the expected length.
        let ret = unsafe { sys::inco_port_configure_rss(self.attached.id, key.as_ptr(), table.as_ptr()) };
        self.check("cannot configure RSS by addresses on", ret)
    }

    /// Stops the port, if it is started.
    ///
    /// # Errors
    /// [`Error::QueuesInUse`]: drop them first.
    pub fn stop(&mut self) -> Result<(), Error> {
        let queues = self.queues_in_use();
        if queues > 0 {
            return Err(Error::QueuesInUse {
                port: self.name().to_owned(),
                queues,
            });
        }
        if self.started {
            let _alone = self.attached.control();
            // SAFETY: an attached port; no queue is in use, and none can be before `start` is called again.
            let ret = unsafe { sys::rte_eth_dev_stop(self.attached.id) };
            self.check("cannot stop", ret)?;
        }
        self.started = false;
        Ok(())
    }

    /// Stops and closes the port and detaches its device. Dropping it does the same.
    ///
    /// # Errors
    /// [`Error::QueuesInUse`]: the port then closes when the last queue is dropped.
    pub fn close(mut self) -> Result<(), Error> {
        self.stop()
    }

    fn check(&self, what: &'static str, ret: i32) -> Result<(), Error> {
        if ret == 0 {
            Ok(())
        } else {
            Err(Error::refused(what, self.name(), ret))
        }
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Port")
            .field("id", &self.id())
            .field("name", &self.name())
            .finish_non_exhaustive()
    }
}

/// The device exists already.
const EEXIST: i32 = 17;
/// An invalid name.
const EINVAL: i32 = 22;

fn valid_ports() -> Vec<u16> {
    // SAFETY: reads a table of DPDK; any number is allowed.
    (0..PORT_LIMIT as u16)
        .filter(|&id| unsafe { sys::rte_eth_dev_is_valid_port(id) } != 0)
        .collect()
}

fn ports_of(devargs: &CStr) -> Vec<u16> {
    let mut ids = [0u16; PORT_LIMIT];
    // SAFETY: `ids` has the stated room; the text is zero-terminated.
    let count = unsafe { sys::inco_ports_of(devargs.as_ptr(), ids.as_mut_ptr(), PORT_LIMIT as u16) };
    ids.iter()
        .copied()
        .take(usize::try_from(count).unwrap_or(0))
        .collect()
}

fn read_info(attached: &Attached) -> Result<PortInfo, Error> {
    let mut raw = sys::inco_port_info {
        driver: [0; 64],
        device: [0; 64],
        mac: [0; 6],
        max_rx_queues: 0,
        max_tx_queues: 0,
        min_mtu: 0,
        max_mtu: 0,
        mtu: 0,
        tx_segments_max: 0,
        socket: 0,
    };
    let _alone = attached.control();
    // SAFETY: an attached port; the callee fills the structure.
    let ret = unsafe { sys::inco_port_info(attached.id, &mut raw) };
    if ret != 0 {
        return Err(Error::refused("cannot read", &attached.name, ret));
    }
    Ok(PortInfo {
        driver: text(&raw.driver),
        mac: raw.mac,
        rx_queues_max: raw.max_rx_queues,
        tx_queues_max: raw.max_tx_queues,
        mtu: raw.mtu,
        socket: raw.socket,
        tx_segments_max: raw.tx_segments_max,
    })
}

fn text(raw: &[c_char]) -> String {
    raw.iter()
        .take_while(|&&c| c != 0)
        .map(|&c| char::from(c as u8))
        .collect()
}

/// A queue's share of its port.
struct Lease {
    attached: Arc<Attached>,
}

impl Lease {
    fn new(attached: &Arc<Attached>) -> Lease {
        attached.queues_in_use.fetch_add(1, Ordering::Relaxed);
        Lease {
            attached: Arc::clone(attached),
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // Release: the queue's accesses to the port come before those made after the count is read.
        self.attached.queues_in_use.fetch_sub(1, Ordering::Release);
    }
}

/// A receive queue with one owner, on any thread.
pub struct RxQueue {
    queue: u16,
    lease: Lease,
}

impl RxQueue {
    /// Adds received packets to the batch, as many as it has room for; returns how many. Preferably pass an
    /// empty batch: some drivers only return bursts of 32.
    pub fn receive(&mut self, batch: &mut Batch) -> usize {
        let spare = batch.spare();
        // SAFETY: the port stays started while this queue exists, which has the only receive handle; `spare`
        // has room for the stated number of pointers.
        let count = unsafe {
            sys::rte_eth_rx_burst(
                self.lease.attached.id,
                self.queue,
                spare.as_mut_ptr().cast(),
                spare.len() as u16,
            )
        };
        // SAFETY: that many mbufs without another owner were written.
        unsafe { batch.grow(usize::from(count)) };
        usize::from(count)
    }

    /// Appends up to `limit` received packets; returns how many. Does not allocate if the vector has the
    /// capacity.
    pub fn receive_into(&mut self, mbufs: &mut Vec<Mbuf>, limit: usize) -> usize {
        let limit = limit.min(usize::from(u16::MAX));
        mbufs.reserve(limit);
        let spare = mbufs.spare_capacity_mut();
        // SAFETY: as in `receive`: the vector has room for `limit` handles, each a pointer.
        let count = unsafe {
            sys::rte_eth_rx_burst(
                self.lease.attached.id,
                self.queue,
                spare.as_mut_ptr().cast(),
                limit as u16,
            )
        };
        // SAFETY: that many mbufs without another owner were written.
        unsafe { mbufs.set_len(mbufs.len() + usize::from(count)) };
        usize::from(count)
    }

    /// The queue's number.
    pub fn queue(&self) -> u16 {
        self.queue
    }
}

/// A transmit queue with one owner, on any thread.
pub struct TxQueue {
    queue: u16,
    lengths: FrameLimits,
    segments_max: u16,
    refused: Refused,
    lease: Lease,
}

/// Frames freed instead of sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// Number of frames.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// The longest frames accepted by a device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FrameLimits {
    /// With a VLAN tag.
    tagged: usize,
    /// Without.
    untagged: usize,
}

impl FrameLimits {
    /// For a device with that MTU: every frame may have tags. A software device without an MTU accepts any
    /// length.
    fn of_device(mtu: u16) -> FrameLimits {
        let longest = match mtu {
            0 => usize::MAX,
            mtu => usize::from(mtu) + FRAME_OVERHEAD_BYTES,
        };
        FrameLimits {
            tagged: longest,
            untagged: longest,
        }
    }

    /// For a kernel interface: the kernel silently drops frames above its MTU plus header; an 802.1Q tag may
    /// add four bytes.
    fn of_interface(mtu: u16, wanted: Option<u16>) -> FrameLimits {
        let device = FrameLimits::of_device(wanted.unwrap_or(0));
        FrameLimits {
            tagged: device.tagged.min(usize::from(mtu) + ETHERNET_BYTES + VLAN_BYTES),
            untagged: device.untagged.min(usize::from(mtu) + ETHERNET_BYTES),
        }
    }

    /// The same, limited to `longest`.
    fn cut_to(self, longest: usize) -> FrameLimits {
        FrameLimits {
            tagged: self.tagged.min(longest),
            untagged: self.untagged.min(longest),
        }
    }

    /// Whether frames of that length are valid, tagged or not.
    #[inline(always)]
    fn contains(&self, len: usize) -> bool {
        // A shorter length wraps around: one comparison checks both ends.
        let range = self.untagged.checked_sub(FRAME_BYTES_MIN);
        range.is_some_and(|range| len.wrapping_sub(FRAME_BYTES_MIN) <= range)
    }

    /// Whether all are valid. Branch-free per frame, because nearly always they are.
    #[inline]
    fn all_valid(&self, mbufs: &[Mbuf]) -> bool {
        let (mut segments, mut all_in_range) = (0, true);
        for mbuf in mbufs {
            segments |= mbuf.segment_count();
            all_in_range &= self.contains(mbuf.len());
        }
        segments <= 1 && all_in_range
    }

    fn allow(&self, mbuf: &Mbuf) -> bool {
        let len = mbuf.len();
        let is_tagged = || mbuf.data().get(12..14) == Some(&ETHERTYPE_VLAN);
        len >= FRAME_BYTES_MIN && (len <= self.untagged || len <= self.tagged && is_tagged())
    }
}

impl TxQueue {
    /// Sends from the front of the batch, in order, and removes what was sent; returns how many. The rest did
    /// not fit now. Invalid frames ([`TxQueue::refused`]) are freed first.
    pub fn send(&mut self, batch: &mut Batch) -> usize {
        let (lengths, segments) = (self.lengths, self.segments_max);
        if !batch.iter_mut().all(|mbuf| prepare(mbuf, &lengths, segments)) {
            let refused = &mut self.refused;
            batch.retain(|mbuf| refused.count_unless_valid(mbuf, is_valid(mbuf, &lengths, segments)));
        }
        // SAFETY: the port stays started while this queue exists, which has the only send handle; the batch
        // is an array of pointers to mbufs with one owner.
        let count = unsafe {
            sys::rte_eth_tx_burst(
                self.lease.attached.id,
                self.queue,
                batch.as_mut_ptr().cast(),
                batch.len() as u16,
            )
        };
        // SAFETY: the device owns the first `count` now.
        unsafe { batch.forget_front(usize::from(count)) };
        usize::from(count)
    }

    /// As [`TxQueue::send`], from a vector, at most 65,535 at once, and no frame longer than `longest` bytes.
    /// If the caller states that all are contiguous with lengths in a range that the device accepts, they are
    /// not checked individually.
    pub fn send_from(
        &mut self,
        mbufs: &mut Vec<Mbuf>,
        longest: usize,
        known: Option<RangeInclusive<usize>>,
    ) -> usize {
        let lengths = self.lengths.cut_to(longest);
        let all_in_range = match known {
            Some(known) => {
                debug_assert!(
                    mbufs
                        .iter()
                        .all(|mbuf| mbuf.is_contiguous() && known.contains(&mbuf.len())),
                    "a frame contradicts the stated lengths"
                );
                lengths.contains(*known.start()) && lengths.contains(*known.end())
            }
            None => false,
        };
        if !all_in_range && !lengths.all_valid(mbufs) {
            let (segments, refused) = (self.segments_max, &mut self.refused);
            mbufs.retain_mut(|mbuf| {
                let may_go = prepare(mbuf, &lengths, segments);
                refused.count_unless_valid(mbuf, may_go)
            });
        }
        let offered = mbufs.len();
        // SAFETY: as in `send`.
        let count = unsafe {
            sys::rte_eth_tx_burst(
                self.lease.attached.id,
                self.queue,
                mbufs.as_mut_ptr().cast(),
                u16::try_from(offered).unwrap_or(u16::MAX),
            )
        };
        let count = usize::from(count).min(offered);
        let start = mbufs.as_mut_ptr();
        // SAFETY: the device owns the first `count` now; the others are moved to the front, and only they are
        // counted.
        unsafe {
            std::ptr::copy(start.add(count), start, offered - count);
            mbufs.set_len(offered - count);
        }
        count
    }

    /// Frames freed instead of sent: shorter than [`FRAME_BYTES_MIN`], longer than the MTU allows, or with
    /// more segments than the device accepts.
    pub fn refused(&self) -> Refused {
        self.refused
    }

    /// The longest frame that it sends, in bytes.
    pub fn frame_bytes_max(&self) -> usize {
        self.lengths.tagged
    }

    /// The queue's number.
    pub fn queue(&self) -> u16 {
        self.queue
    }
}

impl Refused {
    /// Counts the frame as refused unless `may_go`; returns `may_go`.
    fn count_unless_valid(&mut self, mbuf: &Mbuf, may_go: bool) -> bool {
        if !may_go {
            self.packets += 1;
            self.bytes += mbuf.len() as u64;
        }
        may_go
    }
}

/// Whether the device accepts this frame; linearizes a chain first if the device accepts none.
fn prepare(mbuf: &mut Mbuf, lengths: &FrameLimits, segments_max: u16) -> bool {
    if segments_max < 2 && !mbuf.is_contiguous() && mbuf.linearize().is_err() {
        return false;
    }
    is_valid(mbuf, lengths, segments_max)
}

fn is_valid(mbuf: &Mbuf, lengths: &FrameLimits, segments_max: u16) -> bool {
    lengths.allow(mbuf) && (mbuf.is_contiguous() || mbuf.segment_count() <= segments_max)
}

/// The MTU of a kernel interface in this process's network namespace, in bytes; at most 65,535.
///
/// # Errors
/// [`Error::Refused`] if there is no such interface.
pub fn interface_mtu(interface: &str) -> Result<u16, Error> {
    let refused = |errno| Error::refused("cannot read the MTU of", interface, errno);
    let name = CString::new(interface).map_err(|_| refused(EINVAL))?;
    // SAFETY: the text is zero-terminated and only read.
    let mtu = unsafe { sys::inco_interface_mtu(name.as_ptr()) };
    match mtu {
        0.. => Ok(u16::try_from(mtu).unwrap_or(u16::MAX)),
        errno => Err(refused(errno)),
    }
}

impl fmt::Debug for RxQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RxQueue({} of {})", self.queue, self.lease.attached.name)
    }
}

impl fmt::Debug for TxQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TxQueue({} of {})", self.queue, self.lease.attached.name)
    }
}
