//! DPDK devices as uplinks: mbufs as the frames of the workers.

use dpdk::{
    DeviceArgs, Eal, FRAME_OVERHEAD_BYTES, Mbuf, Mempool, Port, PortConfig, RegisteredThread, RxQueue,
    TxQueue,
};

use flow_table::{RSS_BUCKETS, RSS_KEY, rss_queue};

use crate::frame::{Device, DeviceState, DeviceWatch, Frame, FrameMemory, Sizes, Unsendable};
use crate::soft::OpenDevice;

/// Mbufs that a worker takes from the pool at a time.
const REFILL_MBUFS: usize = 64;
/// Freed mbufs that a worker collects before it calls the pool.
const GIVEN_MBUFS: usize = 32;
/// The smallest MTU in bytes that devices accept. For a lower limit of an uplink its port drops the longer frames.
const MTU_MIN_BYTES: usize = 68;

impl Frame for Mbuf {
    #[inline(always)]
    fn bytes(&self) -> &[u8] {
        self.data()
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        self.data_mut()
    }
    fn room(&mut self) -> &mut [u8] {
        Mbuf::room(self)
    }
    fn set_len(&mut self, len: usize) {
        Mbuf::set_len(self, len);
    }
    fn add_front(&mut self, bytes: usize) -> Option<&mut [u8]> {
        Mbuf::add_front(self, bytes)
    }
    #[inline(always)]
    fn len(&self) -> usize {
        Mbuf::len(self)
    }
    #[inline(always)]
    fn segments(&self) -> u16 {
        self.segment_count()
    }
    fn linearize(&mut self) {
        // A frame that does not fit stays segmented: the pool has room for the longest frame of any uplink.
        let _in_segments = Mbuf::linearize(self);
    }
}

/// A worker's share of a pool of mbufs. DPDK's own per-thread cache keeps the shares level.
#[derive(Debug)]
pub struct MbufMemory {
    pool: Mempool,
    cache: Vec<Mbuf>,
    /// Freed mbufs; they are returned to the pool together.
    given: Vec<Mbuf>,
}

impl MbufMemory {
    /// Shares of a pool, one per worker.
    pub fn shares(workers: usize, pool: Mempool) -> Vec<MbufMemory> {
        (0..workers)
            .map(|_| MbufMemory {
                pool,
                cache: Vec::with_capacity(REFILL_MBUFS),
                given: Vec::with_capacity(2 * GIVEN_MBUFS),
            })
            .collect()
    }
}

impl FrameMemory for MbufMemory {
    type Frame = Mbuf;
    type Device = DpdkQueue;
    type Registration = Option<RegisteredThread>;

    fn register_thread() -> Option<RegisteredThread> {
        // Without a cache each mbuf costs an operation on a locked ring.
        Eal::running()?.register_thread().ok()
    }

    fn take(&mut self) -> Option<Mbuf> {
        if self.cache.is_empty() {
            self.pool.alloc_into(&mut self.cache, REFILL_MBUFS);
        }
        self.cache.pop()
    }

    fn give(&mut self, frame: Mbuf) {
        drop(frame);
    }

    #[inline(always)]
    fn give_all(&mut self, frames: &mut Vec<Mbuf>) {
        if frames.len() >= GIVEN_MBUFS {
            return Mbuf::free_all(frames);
        }
        Mbuf::move_all(frames, &mut self.given);
        if self.given.len() >= GIVEN_MBUFS {
            Mbuf::free_all(&mut self.given);
        }
    }

    fn frame_limit(&self) -> usize {
        usize::from(self.pool.frame_bytes())
    }
}

/// One queue pair of a DPDK device.
#[derive(Debug)]
pub struct DpdkQueue {
    rx: RxQueue,
    tx: TxQueue,
}

impl Device<Mbuf> for DpdkQueue {
    #[inline(always)]
    fn receive(&mut self, into: &mut Vec<Mbuf>, limit: usize) {
        self.rx.receive_into(into, limit);
    }

    fn send(&mut self, frames: &mut Vec<Mbuf>, longest: usize, known: Option<Sizes>) -> Unsendable {
        let before = self.tx.refused();
        let known = known.map(|sizes| sizes.shortest as usize..=sizes.longest as usize);
        self.tx.send_from(frames, longest, known);
        let refused = self.tx.refused();
        Unsendable {
            packets: refused.packets - before.packets,
            bytes: refused.bytes - before.bytes,
        }
    }
}

/// The control plane's view of a DPDK device.
#[derive(Debug)]
struct DpdkWatch(Port);

impl DeviceWatch for DpdkWatch {
    fn look(&mut self) -> DeviceState {
        // A device without statistics counts as up and without drops.
        let stats = self.0.stats().unwrap_or_default();
        DeviceState {
            up: self.0.link().map_or(true, |link| link.up) && !self.0.is_removed(),
            missed_packets: stats.rx_missed + stats.rx_no_mbuf,
            failed_packets: stats.tx_errors,
        }
    }
}

impl DpdkQueue {
    /// Attaches a device and starts it with `queues` queue pairs for frames of at most `max_frame` bytes. It is
    /// closed when the last of its queues and its watch are dropped. Of several queues, the one that gets a flow's
    /// packets is that of the worker that owns the flow, where the device can do that and the first queue is worker
    /// `first`'s.
    ///
    /// # Errors
    /// DPDK's own: the device is not there, has no such driver, too few queues, or does not take the configuration.
    pub fn open(
        eal: &Eal,
        device: &DeviceArgs,
        pool: Mempool,
        queues: u16,
        first: usize,
        max_frame: usize,
    ) -> Result<OpenDevice<DpdkQueue>, dpdk::Error> {
        let mut port = Port::attach(eal, device)?;
        let mtu = max_frame.saturating_sub(FRAME_OVERHEAD_BYTES).max(MTU_MIN_BYTES);
        let config = PortConfig {
            rx_queues: queues,
            tx_queues: queues,
            mtu: Some(u16::try_from(mtu).unwrap_or(u16::MAX)),
            ..PortConfig::new(pool)
        };
        let started = port.start(&config)?;
        let pairs = started.rx.into_iter().zip(started.tx);
        let parts = usize::from(queues);
        let mut shares = [0; RSS_BUCKETS];
        for (share, queue) in shares.iter_mut().enumerate() {
            let worker = rss_queue(share, parts);
            *queue = ((worker + parts - first % parts) % parts) as u16;
        }
        Ok(OpenDevice {
            deals: queues > 1 && port.configure_rss(RSS_KEY, &shares).is_ok(),
            queues: pairs.map(|(rx, tx)| DpdkQueue { rx, tx }).collect(),
            watch: Some(Box::new(DpdkWatch(port))),
        })
    }
}
