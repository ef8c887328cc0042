//! Ports: devices that frames come from and go to, and their queues.
//!
//! **Who calls what.** A [`Port`] belongs to the control plane: its calls may wait. A queue belongs to one thread at a time;
//! its calls never wait. Both may be used at the same moment. Queues keep their port open: it is closed when the port
//! and all of them are dropped, on the thread that drops the last.

use std::ffi::{CStr, CString, c_char};
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dpdk_sys as sys;

use crate::batch::Batch;
use crate::mbuf::Mbuf;
use crate::{DeviceArgs, Eal, Error, Mempool};

/// Ports that this DPDK can have, in all.
pub const PORT_LIMIT: usize = sys::INCO_PORT_LIMIT as usize;

/// The shortest frame in bytes that is sent: an Ethernet header. Shorter ones can make a card's queue hang.
pub const FRAME_BYTES_MIN: usize = 14;

/// What a frame has beside its MTU: an Ethernet header and two VLAN tags, in bytes.
pub const FRAME_OVERHEAD_BYTES: usize = ETHERNET_BYTES + 2 * VLAN_BYTES;

/// An Ethernet header, in bytes.
const ETHERNET_BYTES: usize = 14;
/// A VLAN tag, in bytes.
const VLAN_BYTES: usize = 4;
/// What stands before a VLAN tag of 802.1Q.
const ETHERTYPE_VLAN: [u8; 2] = [0x81, 0x00];

/// The driver of kernel interfaces.
const AF_PACKET: &str = "net_af_packet";

/// Which ports are somebody's, by id; its lock is also held while devices come and go.
static TAKEN: Mutex<[bool; PORT_LIMIT]> = Mutex::new([false; PORT_LIMIT]);

fn taken() -> MutexGuard<'static, [bool; PORT_LIMIT]> {
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How a port is set up.
#[derive(Clone, Copy, Debug)]
pub struct PortConfig {
    /// Queues to receive on. With more than one, frames are spread by their addresses.
    pub rx_queues: u16,
    /// Queues to send on.
    pub tx_queues: u16,
    /// Descriptors of each receive queue; rounded to what the device can.
    pub rx_descriptors: u16,
    /// Descriptors of each transmit queue; rounded to what the device can.
    pub tx_descriptors: u16,
    /// The largest packet in bytes, without Ethernet header and VLAN tags; `None`: as the device has it. A kernel
    /// interface keeps the MTU that its operator gave it; what is longer is not sent.
    pub mtu: Option<u16>,
    /// Whether frames to any address are received.
    pub promiscuous: bool,
    /// Where received frames go.
    pub pool: Mempool,
}

impl PortConfig {
    /// One queue each way of 1,024 descriptors, promiscuous, the MTU as it is.
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

/// What a port is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortInfo {
    /// Its driver, such as `net_mlx5`.
    pub driver: String,
    /// Its MAC address.
    pub mac: [u8; 6],
    /// The most receive queues.
    pub rx_queues_max: u16,
    /// The most transmit queues.
    pub tx_queues_max: u16,
    /// Its MTU in bytes; 0 where it has none.
    pub mtu: u16,
    /// The NUMA node that it is at; negative where it is at none.
    pub socket: i32,
    /// Segments that a packet to send may have.
    pub tx_segments_max: u16,
}

/// A port's own counters, since it was attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStats {
    /// Packets received.
    pub rx_packets: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// Packets that the device dropped because no descriptor was free.
    pub rx_missed: u64,
    /// Broken packets.
    pub rx_errors: u64,
    /// Packets dropped because the pool was empty.
    pub rx_no_mbuf: u64,
    /// Packets that could not be sent.
    pub tx_errors: u64,
}

/// The state of a port's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Whether it is up.
    pub up: bool,
    /// Its speed in Mbit/s, where it is known.
    pub speed_mbps: Option<u32>,
    /// Whether it is full duplex.
    pub full_duplex: bool,
}

/// The queues of a started port.
#[derive(Debug, Default)]
pub struct Queues {
    /// To receive on.
    pub rx: Vec<RxQueue>,
    /// To send on.
    pub tx: Vec<TxQueue>,
}

/// What a port and its queues share.
struct Attached {
    id: u16,
    name: String,
    /// Queues that somebody has.
    queues_in_use: AtomicUsize,
    /// DPDK's control calls on one port may not overlap.
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
        // SAFETY: the id is one of an attached port, and neither it nor a queue of it is in anybody's hands any more.
        let _ret = unsafe { sys::inco_port_close(self.id) };
        // A device that will not go keeps its id, and nobody else gets it.
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
    /// Attaches a device that has one port.
    ///
    /// # Errors
    /// [`Error::Refused`] where there is no such device or its driver does not want it, [`Error::PortInUse`],
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

    /// Attaches a device with all its ports (a card's representors, say), in DPDK's order.
    ///
    /// # Errors
    /// As [`Port::attach`].
    pub fn attach_all(_eal: &Eal, device: &DeviceArgs) -> Result<Vec<Port>, Error> {
        let devargs = device.to_devargs();
        let text = CString::new(devargs.as_str()).map_err(|_| Error::EalArgument(devargs.clone()))?;
        let mut taken = taken();
        let before = valid_ports();
        // SAFETY: EAL runs (`_eal`), `text` is zero-terminated and copied; devices come and go only under this lock.
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
            // It was there already: EAL found it at its start, or it is somebody's.
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
        // What fails from here on drops them, which takes the lock.
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

    /// DPDK's number for it.
    pub fn id(&self) -> u16 {
        self.attached.id
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.attached.name
    }

    /// What it is, as of when it was attached or last started.
    pub fn info(&self) -> &PortInfo {
        &self.info
    }

    /// Its own counters.
    ///
    /// # Errors
    /// [`Error::Refused`] where the device has none.
    pub fn stats(&self) -> Result<PortStats, Error> {
        let mut raw = sys::inco_port_stats::default();
        let _alone = self.attached.control();
        // SAFETY: an attached port; the structure is the callee's to fill.
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

    /// The state of its link, as the driver last saw it.
    ///
    /// # Errors
    /// [`Error::Refused`] where the device has none.
    pub fn link(&self) -> Result<Link, Error> {
        let mut raw = sys::inco_link::default();
        let _alone = self.attached.control();
        // SAFETY: an attached port; the structure is the callee's to fill.
        let ret = unsafe { sys::inco_port_link(self.attached.id, &mut raw) };
        self.check("cannot read the link of", ret)?;
        Ok(Link {
            up: raw.up != 0,
            speed_mbps: (raw.speed_mbps != u32::MAX).then_some(raw.speed_mbps),
            full_duplex: raw.full_duplex != 0,
        })
    }

    /// Whether the device was pulled out.
    pub fn is_removed(&self) -> bool {
        let _alone = self.attached.control();
        // SAFETY: an attached port.
        unsafe { sys::rte_eth_dev_is_removed(self.attached.id) != 0 }
    }

    /// Queues of it that somebody has.
    pub fn queues_in_use(&self) -> usize {
        // Pairs with the release of a queue's drop: what it did to the port comes before.
        self.attached.queues_in_use.load(Ordering::Acquire)
    }

    /// Sets the port up and starts it. A started port is stopped first.
    ///
    /// # Errors
    /// [`Error::QueuesInUse`], [`Error::TooManyQueues`], or [`Error::Refused`] where the device will not have it so; the port
    /// is then stopped and can be started otherwise.
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
            // A kernel interface has the MTU that its operator gave it, and this driver says no to more than 1,500.
            mtu: config.mtu.filter(|_| !of_kernel).unwrap_or(0),
            promiscuous: u8::from(config.promiscuous),
        };
        {
            let _alone = self.attached.control();
            // SAFETY: an attached port that is stopped and has no queue in use; the pool lives for ever.
            let ret = unsafe { sys::inco_port_configure(self.attached.id, &raw) };
            self.check("cannot set up", ret)?;
            // SAFETY: an attached port that is configured and stopped.
            let ret = unsafe { sys::rte_eth_dev_start(self.attached.id) };
            self.check("cannot start", ret)?;
        }
        self.started = true;
        self.info = read_info(&self.attached)?;
        let lengths = match &self.interface {
            Some(interface) if of_kernel => Lengths::of_interface(interface_mtu(interface)?, config.mtu),
            _ => Lengths::of_device(config.mtu.unwrap_or(self.info.mtu)),
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

    /// Has the device deal packets to the receive queues of the started port by the Toeplitz hash of their addresses, with a
    /// key that repeats `key`: those whose hash ends in the 6 bits `i` go to queue `shares[i]`.
    ///
    /// # Errors
    /// [`Error::Refused`] where it cannot: what it then goes by is its own matter.
    pub fn deal(&mut self, key: [u8; 2], shares: &[u16; 64]) -> Result<(), Error> {
        let _alone = self.attached.control();
        // SAFETY: an attached port; both arrays are as long as it reads.
        let ret = unsafe { sys::inco_port_deal(self.attached.id, key.as_ptr(), shares.as_ptr()) };
        self.check("cannot deal packets by their addresses", ret)
    }

    /// Stops the port. One that is not started stays so.
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

    /// Stops and closes the port and takes its device out of this process. Dropping it does the same.
    ///
    /// # Errors
    /// [`Error::QueuesInUse`]: the port is then closed when the last of them is dropped.
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

/// The error of a device that is there already.
const EEXIST: i32 = 17;
/// The error of a name that cannot be.
const EINVAL: i32 = 22;

fn valid_ports() -> Vec<u16> {
    // SAFETY: reads a table of DPDK; any number may be asked for.
    (0..PORT_LIMIT as u16)
        .filter(|&id| unsafe { sys::rte_eth_dev_is_valid_port(id) } != 0)
        .collect()
}

fn ports_of(devargs: &CStr) -> Vec<u16> {
    let mut ids = [0u16; PORT_LIMIT];
    // SAFETY: `ids` has room for as many as are said; the text is zero-terminated.
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
    // SAFETY: an attached port; the structure is the callee's to fill.
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

/// A queue's share in its port.
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
        // Release: what this queue did to the port comes before whatever the port does once it sees the count.
        self.attached.queues_in_use.fetch_sub(1, Ordering::Release);
    }
}

/// A queue to receive on. One owner, on any thread.
pub struct RxQueue {
    queue: u16,
    lease: Lease,
}

impl RxQueue {
    /// Adds what has arrived to the batch, at most as much as it has room for; gives how many packets. Give it an empty
    /// batch where you can: some drivers only give bursts of 32.
    pub fn receive(&mut self, batch: &mut Batch) -> usize {
        let spare = batch.spare();
        // SAFETY: the port is started and stays so while this queue is there, which has the only handle to receive with;
        // `spare` has room for as many pointers as are said.
        let count = unsafe {
            sys::rte_eth_rx_burst(
                self.lease.attached.id,
                self.queue,
                spare.as_mut_ptr().cast(),
                spare.len() as u16,
            )
        };
        // SAFETY: that many mbufs were written, and are nobody else's.
        unsafe { batch.grow(usize::from(count)) };
        usize::from(count)
    }

    /// Appends what has arrived, at most `limit` packets; gives how many. Does not allocate where the vector has the room.
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
        // SAFETY: that many mbufs were written, and are nobody else's.
        unsafe { mbufs.set_len(mbufs.len() + usize::from(count)) };
        usize::from(count)
    }

    /// The queue's number.
    pub fn queue(&self) -> u16 {
        self.queue
    }
}

/// A queue to send on. One owner, on any thread.
pub struct TxQueue {
    queue: u16,
    lengths: Lengths,
    segments_max: u16,
    refused: Refused,
    lease: Lease,
}

/// Frames that were freed instead of sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// How many.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// The longest frames that a device may be given, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lengths {
    /// With a VLAN tag.
    tagged: usize,
    /// Without.
    untagged: usize,
}

impl Lengths {
    /// Of a device with that MTU: every frame may have tags. A software device that has no MTU takes any length.
    fn of_device(mtu: u16) -> Lengths {
        let longest = match mtu {
            0 => usize::MAX,
            mtu => usize::from(mtu) + FRAME_OVERHEAD_BYTES,
        };
        Lengths {
            tagged: longest,
            untagged: longest,
        }
    }

    /// Of a kernel interface: the kernel drops what exceeds its MTU and a header, without a word; for frames with a tag of
    /// 802.1Q it allows four bytes more.
    fn of_interface(mtu: u16, wanted: Option<u16>) -> Lengths {
        let device = Lengths::of_device(wanted.unwrap_or(0));
        Lengths {
            tagged: device.tagged.min(usize::from(mtu) + ETHERNET_BYTES + VLAN_BYTES),
            untagged: device.untagged.min(usize::from(mtu) + ETHERNET_BYTES),
        }
    }

    /// The same, and none longer than that.
    fn cut_to(self, longest: usize) -> Lengths {
        Lengths {
            tagged: self.tagged.min(longest),
            untagged: self.untagged.min(longest),
        }
    }

    /// Whether every frame of that length may go, with a tag or without.
    #[inline(always)]
    fn are_right(&self, len: usize) -> bool {
        // A shorter one wraps around: one comparison for both ends.
        let range = self.untagged.checked_sub(FRAME_BYTES_MIN);
        range.is_some_and(|range| len.wrapping_sub(FRAME_BYTES_MIN) <= range)
    }

    /// Whether all of them may go as they are. Without a branch for each; nearly always they may.
    #[inline]
    fn suit(&self, mbufs: &[Mbuf]) -> bool {
        let (mut segments, mut are_right) = (0, true);
        for mbuf in mbufs {
            segments |= mbuf.segment_count();
            are_right &= self.are_right(mbuf.len());
        }
        segments <= 1 && are_right
    }

    fn allow(&self, mbuf: &Mbuf) -> bool {
        let len = mbuf.len();
        let is_tagged = || mbuf.data().get(12..14) == Some(&ETHERTYPE_VLAN);
        len >= FRAME_BYTES_MIN && (len <= self.untagged || len <= self.tagged && is_tagged())
    }
}

impl TxQueue {
    /// Sends from the front of the batch, in order, and removes what was sent; gives how many. What stays did not fit now.
    /// Frames that no device may be given ([`TxQueue::refused`]) are freed first.
    pub fn send(&mut self, batch: &mut Batch) -> usize {
        let (lengths, segments) = (self.lengths, self.segments_max);
        if !batch.iter_mut().all(|mbuf| may_send(mbuf, &lengths, segments)) {
            let refused = &mut self.refused;
            batch.retain(|mbuf| refused.unless(mbuf, can_go(mbuf, &lengths, segments)));
        }
        // SAFETY: the port is started and stays so while this queue is there, which has the only handle to send with; the
        // batch is a row of pointers to mbufs with one owner.
        let count = unsafe {
            sys::rte_eth_tx_burst(
                self.lease.attached.id,
                self.queue,
                batch.as_mut_ptr().cast(),
                batch.len() as u16,
            )
        };
        // SAFETY: the device has the first `count` now.
        unsafe { batch.forget_front(usize::from(count)) };
        usize::from(count)
    }

    /// As [`TxQueue::send`], from a vector, at most 65,535 at once, and no frame longer than `longest` bytes. Whoever knows that
    /// all of them are one piece each and have lengths in a range says so: where the device carries all of these, none is
    /// looked at.
    pub fn send_from(
        &mut self,
        mbufs: &mut Vec<Mbuf>,
        longest: usize,
        known: Option<RangeInclusive<usize>>,
    ) -> usize {
        let lengths = self.lengths.cut_to(longest);
        let are_right = match known {
            Some(known) => {
                debug_assert!(
                    mbufs
                        .iter()
                        .all(|mbuf| mbuf.is_contiguous() && known.contains(&mbuf.len())),
                    "a frame is not as it is said to be"
                );
                lengths.are_right(*known.start()) && lengths.are_right(*known.end())
            }
            None => false,
        };
        if !are_right && !lengths.suit(mbufs) {
            let (segments, refused) = (self.segments_max, &mut self.refused);
            mbufs.retain_mut(|mbuf| {
                let may_go = may_send(mbuf, &lengths, segments);
                refused.unless(mbuf, may_go)
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
        // SAFETY: the device has the first `count` now; the others are moved to the front, and only they count.
        unsafe {
            std::ptr::copy(start.add(count), start, offered - count);
            mbufs.set_len(offered - count);
        }
        count
    }

    /// Frames that were freed instead of sent: shorter than [`FRAME_BYTES_MIN`], longer than the MTU allows, or in more
    /// pieces than the device takes.
    pub fn refused(&self) -> Refused {
        self.refused
    }

    /// The longest frame in bytes that it sends.
    pub fn frame_bytes_max(&self) -> usize {
        self.lengths.tagged
    }

    /// The queue's number.
    pub fn queue(&self) -> u16 {
        self.queue
    }
}

impl Refused {
    /// Counts the frame unless it may go; gives whether it may.
    fn unless(&mut self, mbuf: &Mbuf, may_go: bool) -> bool {
        if !may_go {
            self.packets += 1;
            self.bytes += mbuf.len() as u64;
        }
        may_go
    }
}

/// Whether the device may be given this frame; a chain is made one piece first where the device takes no chains.
fn may_send(mbuf: &mut Mbuf, lengths: &Lengths, segments_max: u16) -> bool {
    if segments_max < 2 && !mbuf.is_contiguous() && mbuf.linearize().is_err() {
        return false;
    }
    can_go(mbuf, lengths, segments_max)
}

fn can_go(mbuf: &Mbuf, lengths: &Lengths, segments_max: u16) -> bool {
    lengths.allow(mbuf) && (mbuf.is_contiguous() || mbuf.segment_count() <= segments_max)
}

/// The MTU of a kernel interface of this process' network namespace, in bytes; at most 65,535.
///
/// # Errors
/// [`Error::Refused`] where there is none of that name.
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
