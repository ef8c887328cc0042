//! Pools of mbufs.

use std::ffi::CString;
use std::ptr::NonNull;
use std::sync::Mutex;

use dpdk_sys as sys;

use crate::batch::{BATCH_LIMIT, Batch};
use crate::mbuf::Mbuf;
use crate::{Eal, Error};

/// Pools per process: they are never freed, so their number is bounded.
pub const POOL_LIMIT: usize = 64;

/// Mbufs in a registered thread's cache by default: two turns of a worker.
const CACHE_MBUFS: u32 = 512;

/// DPDK's largest cache.
const CACHE_MBUFS_MAX: u32 = 512;

/// A copyable handle of an mbuf pool. The pool lives as long as the process, so no mbuf outlives it.
#[derive(Clone, Copy, Debug)]
pub struct Mempool {
    pool: NonNull<sys::rte_mempool>,
    mbufs: u32,
    frame_bytes: u16,
}

// SAFETY: pools are created for concurrent use by any thread (ring_mp_mc); the other fields never change.
unsafe impl Send for Mempool {}
// SAFETY: as above.
unsafe impl Sync for Mempool {}

/// A pool's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MempoolConfig {
    /// Number of mbufs. Ports hold as many as their receive queues have descriptors.
    pub mbufs: u32,
    /// Room for a frame per mbuf, in bytes, at most 65,407.
    pub frame_bytes: u16,
    /// Mbufs in a registered thread's cache; at most 512 and two thirds of the pool.
    pub cache: u32,
}

impl Default for MempoolConfig {
    /// 8,191 mbufs for frames of 2 KiB.
    fn default() -> MempoolConfig {
        MempoolConfig {
            mbufs: 8191,
            frame_bytes: 2048,
            cache: CACHE_MBUFS,
        }
    }
}

impl MempoolConfig {
    /// Memory of the pool in bytes, which [`EalConfig::memory_mib`](crate::EalConfig::memory_mib) must cover
    /// besides DPDK's own. Without hugepages it is more: no mbuf crosses a page, so one of more than half a
    /// page takes a whole page.
    pub fn memory_bytes(&self, hugepages: bool) -> u64 {
        /// Overhead before a frame: DPDK's object header, the mbuf header, and the headroom.
        const BEFORE: u64 = 64 + 128 + sys::INCO_MBUF_HEADROOM as u64;
        /// Objects start at lines of 64 bytes; DPDK adds a line if all would start at the same memory
        /// channel.
        const LINE: u64 = 64;
        let page = if hugepages { 2 << 20 } else { 4 << 10 };
        let object = (BEFORE + u64::from(self.frame_bytes)).next_multiple_of(LINE) + LINE;
        let mbufs = u64::from(self.mbufs);
        match page / object {
            0 => mbufs * object.next_multiple_of(page),
            per_page => mbufs.div_ceil(per_page) * page,
        }
    }
}

static POOLS: Mutex<usize> = Mutex::new(0);

impl Mempool {
    /// Creates a pool.
    ///
    /// # Errors
    /// [`Error::TooManyPools`], [`Error::PoolConfig`], or [`Error::Refused`] if EAL's memory is too small.
    pub fn create(_eal: &Eal, config: &MempoolConfig) -> Result<Mempool, Error> {
        let wrong = |why| Error::PoolConfig {
            mbufs: config.mbufs,
            frame_bytes: config.frame_bytes,
            why,
        };
        let data_room = config
            .frame_bytes
            .checked_add(sys::INCO_MBUF_HEADROOM as u16)
            .ok_or_else(|| wrong("a frame and its headroom are at most 65,535 B"))?;
        if config.mbufs == 0 || config.frame_bytes == 0 {
            return Err(wrong("it would be empty"));
        }
        if config.cache > CACHE_MBUFS_MAX || u64::from(config.cache) * 3 > u64::from(config.mbufs) * 2 {
            return Err(wrong(
                "its cache is more than 512 mbufs or two thirds of the pool",
            ));
        }
        let mut pools = POOLS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if *pools == POOL_LIMIT {
            return Err(Error::TooManyPools(POOL_LIMIT));
        }
        let name = CString::new(format!("inco-{pools}")).unwrap_or_default();
        // SAFETY: EAL runs (`_eal`); DPDK copies the zero-terminated name.
        let pool = unsafe {
            sys::rte_pktmbuf_pool_create(
                name.as_ptr(),
                config.mbufs,
                config.cache,
                0,
                data_room,
                ANY_SOCKET,
            )
        };
        let Some(pool) = NonNull::new(pool) else {
            // SAFETY: reads a thread-local variable.
            let errno = unsafe { sys::inco_errno() };
            return Err(Error::refused(
                "no memory for",
                &format!("a pool of {} mbufs", config.mbufs),
                errno,
            ));
        };
        *pools += 1;
        Ok(Mempool {
            pool,
            mbufs: config.mbufs,
            frame_bytes: config.frame_bytes,
        })
    }

    /// An empty mbuf, or `None` if all are in use.
    pub fn alloc(&self) -> Option<Mbuf> {
        // SAFETY: the pool is never freed. The mbuf has no other owner.
        unsafe { Mbuf::from_raw(sys::rte_pktmbuf_alloc(self.pool.as_ptr())) }
    }

    /// Adds `count` empty mbufs to the batch, or none if the pool or the batch has not enough.
    pub fn alloc_batch(&self, batch: &mut Batch, count: usize) -> bool {
        let spare = batch.spare();
        if count > spare.len() {
            return false;
        }
        // SAFETY: `spare` has room for `count` ≤ 64 pointers. All or none are written.
        let ret = unsafe {
            sys::rte_pktmbuf_alloc_bulk(self.pool.as_ptr(), spare.as_mut_ptr().cast(), count as u32)
        };
        if ret != 0 {
            return false;
        }
        // SAFETY: `count` mbufs without another owner were written.
        unsafe { batch.grow(count) };
        true
    }

    /// Appends up to `count` empty mbufs in bursts, stopping when the pool is empty. Returns how many. Does
    /// not allocate if the vector has the capacity.
    pub fn alloc_into(&self, mbufs: &mut Vec<Mbuf>, count: usize) -> usize {
        let mut done = 0;
        mbufs.reserve(count);
        while done < count {
            let burst = (count - done).min(BATCH_LIMIT);
            let spare = mbufs.spare_capacity_mut();
            // SAFETY: the vector has room for `count - done` handles, each a pointer. All or none are written.
            let ret = unsafe {
                sys::rte_pktmbuf_alloc_bulk(self.pool.as_ptr(), spare.as_mut_ptr().cast(), burst as u32)
            };
            if ret == 0 {
                // SAFETY: `burst` mbufs without another owner were written.
                unsafe { mbufs.set_len(mbufs.len() + burst) };
                done += burst;
                continue;
            }
            // Fewer than a burst are left.
            let Some(mbuf) = self.alloc() else { break };
            mbufs.push(mbuf);
            done += 1;
        }
        done
    }

    /// A new mbuf with a copy of `frame`.
    ///
    /// # Errors
    /// [`Error::FrameTooLarge`] or [`Error::NoMbuf`].
    pub fn copy_from_slice(&self, frame: &[u8]) -> Result<Mbuf, Error> {
        let room_bytes = usize::from(self.frame_bytes);
        if frame.len() > room_bytes {
            return Err(Error::FrameTooLarge {
                frame_bytes: frame.len(),
                room_bytes,
            });
        }
        let mut mbuf = self.alloc().ok_or(Error::NoMbuf)?;
        match mbuf.append(frame.len()) {
            Some(room) => {
                room.copy_from_slice(frame);
                Ok(mbuf)
            }
            None => Err(Error::FrameTooLarge {
                frame_bytes: frame.len(),
                room_bytes: mbuf.room().len(),
            }),
        }
    }

    /// Free mbufs, including those in caches. Walks the caches: too slow for every burst.
    pub fn available(&self) -> u32 {
        // SAFETY: the pool is never freed; the function only reads.
        unsafe { sys::rte_mempool_avail_count(self.pool.as_ptr()) }
    }

    /// Number of mbufs.
    pub fn mbufs(&self) -> u32 {
        self.mbufs
    }

    /// Room for a frame per mbuf, in bytes.
    pub fn frame_bytes(&self) -> u16 {
        self.frame_bytes
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::rte_mempool {
        self.pool.as_ptr()
    }
}

/// Memory from any NUMA node.
const ANY_SOCKET: i32 = -1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_mbuf_of_more_than_half_a_page_takes_a_page() {
        let of = |mbufs, frame_bytes| MempoolConfig {
            mbufs,
            frame_bytes,
            ..MempoolConfig::default()
        };
        assert_eq!(of(1000, 2048).memory_bytes(false), 1000 * 4096);
        assert_eq!(of(1000, 1522).memory_bytes(false), 500 * 4096);
        assert_eq!(of(1000, 9000).memory_bytes(false), 1000 * 3 * 4096);
        // 862 objects of 2,432 bytes in a page of 2 MiB.
        assert_eq!(of(1000, 2048).memory_bytes(true), 2 * (2 << 20));
    }
}
