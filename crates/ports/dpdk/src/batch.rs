//! A burst of packets, without allocation.

use std::fmt;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};

use dpdk_sys as sys;

use crate::mbuf::Mbuf;

/// Mbufs per batch: one burst of a worker.
pub const BATCH_LIMIT: usize = 64;

/// Up to [`BATCH_LIMIT`] packets, in order, freed together. Derefs to a slice of [`Mbuf`]s.
pub struct Batch {
    // The first `len` are initialised.
    mbufs: [MaybeUninit<Mbuf>; BATCH_LIMIT],
    len: usize,
}

impl Batch {
    /// An empty batch.
    pub const fn new() -> Batch {
        Batch {
            mbufs: [const { MaybeUninit::uninit() }; BATCH_LIMIT],
            len: 0,
        }
    }

    /// Free slots.
    pub fn room(&self) -> usize {
        BATCH_LIMIT - self.len
    }

    /// Appends a packet.
    ///
    /// # Errors
    /// Returns the packet if the batch is full.
    pub fn push(&mut self, mbuf: Mbuf) -> Result<(), Mbuf> {
        match self.mbufs.get_mut(self.len) {
            Some(place) => {
                place.write(mbuf);
                self.len += 1;
                Ok(())
            }
            None => Err(mbuf),
        }
    }

    /// Removes the last packet.
    pub fn pop(&mut self) -> Option<Mbuf> {
        self.len = self.len.checked_sub(1)?;
        // SAFETY: it was initialised, and is no longer counted.
        self.mbufs
            .get(self.len)
            .map(|place| unsafe { place.assume_init_read() })
    }

    /// Frees all packets at once.
    pub fn clear(&mut self) {
        let count = self.len;
        self.len = 0;
        if count > 0 {
            // SAFETY: the first `count` are live mbufs with one owner, which has just released them. A handle
            // is a pointer.
            unsafe { sys::rte_pktmbuf_free_bulk(self.mbufs.as_mut_ptr().cast(), count as u32) };
        }
    }

    /// Moves all packets to the end of `to`, in order. Does not allocate if `to` has the capacity.
    pub fn move_to(&mut self, to: &mut Vec<Mbuf>) {
        to.reserve(self.len);
        let count = self.len;
        self.len = 0;
        for place in self.mbufs.iter().take(count) {
            // SAFETY: it was initialised, and is no longer counted.
            to.push(unsafe { place.assume_init_read() });
        }
    }

    /// The free slots.
    pub(crate) fn spare(&mut self) -> &mut [MaybeUninit<Mbuf>] {
        self.mbufs.get_mut(self.len..).unwrap_or_default()
    }

    /// Adds `count` packets.
    ///
    /// # Safety
    /// They were written to the start of [`Batch::spare`], and have no other owner.
    pub(crate) unsafe fn grow(&mut self, count: usize) {
        debug_assert!(count <= self.room());
        self.len += count;
    }

    /// Removes the first `count` packets, which DPDK owns now, and moves the others to the front.
    ///
    /// # Safety
    /// `count` is at most the batch's length, and DPDK took these packets.
    pub(crate) unsafe fn forget_front(&mut self, count: usize) {
        debug_assert!(count <= self.len);
        let left = self.len - count;
        let start = self.mbufs.as_mut_ptr();
        // SAFETY: both ranges lie in the array; the handles are moved, and those that DPDK took are no longer
        // counted.
        unsafe { std::ptr::copy(start.add(count), start, left) };
        self.len = left;
    }

    /// Frees the packets for which `keep` is false.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&Mbuf) -> bool) {
        let mut kept = 0;
        for at in 0..self.len {
            let Some(wanted) = self.get(at).map(&mut keep) else {
                break;
            };
            if wanted {
                self.swap(kept, at);
                kept += 1;
            }
        }
        while self.len > kept {
            drop(self.pop());
        }
    }
}

impl Default for Batch {
    fn default() -> Batch {
        Batch::new()
    }
}

impl Deref for Batch {
    type Target = [Mbuf];
    fn deref(&self) -> &[Mbuf] {
        // SAFETY: the first `len` are initialised.
        unsafe { std::slice::from_raw_parts(self.mbufs.as_ptr().cast(), self.len) }
    }
}

impl DerefMut for Batch {
    fn deref_mut(&mut self) -> &mut [Mbuf] {
        // SAFETY: the first `len` are initialised, and the batch is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.mbufs.as_mut_ptr().cast(), self.len) }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.clear();
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
