//! DPDK devices as uplinks: mbufs as the frames of the workers.

use dpdk::{DeviceArgs, Eal, Mbuf, Mempool, Port, PortConfig, RegisteredThread, RxQueue, TxQueue};

use crate::frame::{Device, Frame, FrameMemory};

/// Mbufs that a worker takes from the pool at a time.
const REFILL_MBUFS: usize = 64;

impl Frame for Mbuf {
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
    fn len(&self) -> usize {
        Mbuf::len(self)
    }
}

/// A worker's share of a pool of mbufs. DPDK's own per-thread cache keeps the shares level.
#[derive(Debug)]
pub struct MbufMemory {
    pool: Mempool,
    cache: Vec<Mbuf>,
}

impl MbufMemory {
    /// Shares of a pool, one per worker.
    pub fn shares(workers: usize, pool: Mempool) -> Vec<MbufMemory> {
        (0..workers)
            .map(|_| MbufMemory {
                pool,
                cache: Vec::with_capacity(REFILL_MBUFS),
            })
            .collect()
    }
}

impl FrameMemory for MbufMemory {
    type Frame = Mbuf;
    type Device = DpdkQueue;
    type Registration = Option<RegisteredThread>;

    fn register_thread() -> Option<RegisteredThread> {
        // Without it each mbuf costs a locked ring, and nothing else is different.
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

    fn give_all(&mut self, frames: &mut Vec<Mbuf>) {
        Mbuf::free_all(frames);
    }

    fn frame_limit(&self) -> usize {
        usize::from(self.pool.frame_bytes())
    }
}

/// One queue pair of a DPDK device.
#[derive(Debug)]
pub struct DpdkQueue {
    rx: Option<RxQueue>,
    tx: Option<TxQueue>,
}

impl Device<Mbuf> for DpdkQueue {
    fn receive(&mut self, into: &mut Vec<Mbuf>, limit: usize) -> usize {
        let Some(rx) = &mut self.rx else { return 0 };
        let first = into.len();
        rx.receive_into(into, limit);
        // A frame in several pieces becomes one, so that it can be parsed and copied; the pool has room for the longest.
        for frame in into.iter_mut().skip(first) {
            if !frame.is_contiguous() {
                // One that does not fit stays as it is and ends as malformed.
                let _in_pieces = frame.linearize();
            }
        }
        into.len() - first
    }

    fn send(&mut self, frames: &mut Vec<Mbuf>) -> usize {
        match &mut self.tx {
            Some(tx) => tx.send_from(frames),
            None => 0,
        }
    }
}

impl DpdkQueue {
    /// Attaches a device and starts it with a queue pair for each of at most `queues` workers. The device is closed when
    /// the last of its queues is dropped.
    ///
    /// # Errors
    /// DPDK's own: the device is not there, has no such driver, or does not take the configuration.
    pub fn open(
        eal: &Eal,
        device: &DeviceArgs,
        pool: Mempool,
        queues: u16,
    ) -> Result<Vec<DpdkQueue>, dpdk::Error> {
        let mut port = Port::attach(eal, device)?;
        let info = port.info();
        let config = PortConfig {
            rx_queues: queues.clamp(1, info.rx_queues_max.max(1)),
            tx_queues: queues.clamp(1, info.tx_queues_max.max(1)),
            ..PortConfig::new(pool)
        };
        let started = port.start(&config)?;
        let mut rx: Vec<_> = started.rx.into_iter().map(Some).collect();
        let mut tx: Vec<_> = started.tx.into_iter().map(Some).collect();
        let pairs = rx.len().max(tx.len());
        rx.resize_with(pairs, || None);
        tx.resize_with(pairs, || None);
        Ok(rx
            .into_iter()
            .zip(tx)
            .map(|(rx, tx)| DpdkQueue { rx, tx })
            .collect())
    }
}
