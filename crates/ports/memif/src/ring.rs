//! The layout of a ring in shared memory and the only access to it: atomics, each field read once.
//!
//! ```text
//!   byte 0   cookie (u32)  flags (u16)  head (u16)      written by the client, flags by the consumer
//!   byte 8   intent (u64)                               this crate's, in a client's ring: see `set_intent`
//!   byte 64  tail (u16)                                 written by the server
//!   byte 128 slots descriptors of 16 bytes:
//!            flags (u16) region (u16) length (u32) | offset (u32) metadata (u32)
//! ```
//!
//! The layout assumes 64-byte cache lines, as on x86-64 and in every published memif implementation for it.
//! (DPDK built for 128-byte lines uses a wider header and is incompatible.)

// UNSAFETY: atomics at addresses in shared memory.
#![expect(unsafe_code)]

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use crate::copy::{prefetch_read, prefetch_write};

#[cfg(not(target_endian = "little"))]
compile_error!("descriptors are read as 64-bit words: byte order little-endian is assumed");

/// The first word of a ring.
const COOKIE: u32 = 0x03E3_1F20;
/// Ring flag: the consumer has masked interrupts.
pub(crate) const MASK_INTERRUPTS: u16 = 1;
/// Descriptor flag: the packet continues in the next slot.
pub(crate) const NEXT: u16 = 1;
const FLAGS_AT: usize = 4;
const HEAD_AT: usize = 6;
const INTENT_AT: usize = 8;
const TAIL_AT: usize = 64;
const DESCRIPTORS_AT: usize = 128;
const DESCRIPTOR_BYTES: usize = 16;
const DESCRIPTORS_PER_LINE: u16 = 64 / DESCRIPTOR_BYTES as u16;
/// Alignment of the ring's first byte.
pub(crate) const ALIGNMENT: usize = 64;

/// Bytes of a ring of `slots` slots.
pub(crate) const fn ring_bytes(slots: usize) -> usize {
    DESCRIPTORS_AT + DESCRIPTOR_BYTES * slots
}

/// A descriptor, read once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Descriptor {
    pub(crate) flags: u16,
    pub(crate) region: u16,
    pub(crate) length: u32,
    pub(crate) offset: u32,
}

/// A ring in shared memory. Copies are views of the same ring.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ring {
    base: NonNull<u8>,
    mask: u16,
}

// SAFETY: a ring is accessed with atomics only.
unsafe impl Send for Ring {}

impl Ring {
    /// A view of the ring of `slots` slots (a power of two, at most 2^15) at `base`.
    ///
    /// # Safety
    /// `base` is aligned to 8 bytes, and [`ring_bytes`] from there are mapped for reading and writing as long
    /// as this view or any copy lives.
    pub(crate) unsafe fn new(base: NonNull<u8>, slots: u16) -> Ring {
        debug_assert!(slots.is_power_of_two() && base.as_ptr().addr().is_multiple_of(8));
        Ring {
            base,
            mask: slots - 1,
        }
    }

    /// Zeroes the indices and writes the cookie. Interrupts are masked.
    pub(crate) fn initialise(&self) {
        // SAFETY: within the ring by `new`'s contract, aligned to 4.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().cast()) }.store(COOKIE, Ordering::Relaxed);
        self.flags().store(MASK_INTERRUPTS, Ordering::Relaxed);
        self.set_intent(0, 0);
        self.reset();
    }

    /// Zeroes the indices.
    pub(crate) fn reset(&self) {
        self.head().store(0, Ordering::Relaxed);
        self.tail().store(0, Ordering::Relaxed);
    }

    /// Whether the ring starts with the cookie.
    pub(crate) fn has_cookie(&self) -> bool {
        // SAFETY: as in `initialise`.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().cast()) }.load(Ordering::Relaxed) == COOKIE
    }

    #[inline(always)]
    fn index_at(&self, offset: usize) -> &AtomicU16 {
        // SAFETY: `offset` is one of the header's, within the ring and aligned to 2; the ring is mapped by `new`'s
        // contract.
        unsafe { AtomicU16::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    /// The ring flags, written by the consumer.
    #[inline(always)]
    pub(crate) fn flags(&self) -> &AtomicU16 {
        self.index_at(FLAGS_AT)
    }

    /// The client's index.
    #[inline(always)]
    pub(crate) fn head(&self) -> &AtomicU16 {
        self.index_at(HEAD_AT)
    }

    /// The server's index.
    #[inline(always)]
    pub(crate) fn tail(&self) -> &AtomicU16 {
        self.index_at(TAIL_AT)
    }

    fn intent_word(&self) -> &AtomicU64 {
        // SAFETY: within the ring's first line, aligned to 8 as the ring is; mapped by `new`'s contract.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(INTENT_AT).cast()) }
    }

    /// A client notes in its own line, which the protocol leaves free there, which index it is about to publish, and
    /// in which turn of its program.
    #[inline(always)]
    pub(crate) fn set_intent(&self, turn: u64, index: u16) {
        self.intent_word()
            .store(turn << 16 | u64::from(index), Ordering::Relaxed);
    }

    /// The index that was to be published in that turn, if there was one.
    pub(crate) fn intent(&self, turn: u64) -> Option<u16> {
        let word = self.intent_word().load(Ordering::Relaxed);
        (word >> 16 == turn & (u64::MAX >> 16)).then_some(word as u16)
    }

    /// The slot of a free-running index.
    #[inline(always)]
    pub(crate) fn slot(&self, index: u16) -> usize {
        usize::from(index & self.mask)
    }

    /// The two words of a descriptor.
    #[inline(always)]
    fn words(&self, index: u16) -> (&AtomicU64, &AtomicU64) {
        // SAFETY: the masked slot is within the ring, and descriptors are aligned to 8 bytes as the ring is.
        unsafe {
            let word = self
                .base
                .as_ptr()
                .wrapping_add(DESCRIPTORS_AT + DESCRIPTOR_BYTES * self.slot(index));
            (
                AtomicU64::from_ptr(word.cast()),
                AtomicU64::from_ptr(word.wrapping_add(8).cast()),
            )
        }
    }

    /// Reads a descriptor, each word once.
    #[inline(always)]
    pub(crate) fn descriptor(&self, index: u16) -> Descriptor {
        let (first, second) = self.words(index);
        let first = first.load(Ordering::Relaxed);
        Descriptor {
            flags: first as u16,
            region: (first >> 16) as u16,
            length: (first >> 32) as u32,
            offset: second.load(Ordering::Relaxed) as u32,
        }
    }

    /// The length in all descriptors, or 0 if they differ.
    pub(crate) fn common_length(&self) -> u32 {
        let length = self.descriptor(0).length;
        let is_common = (0..=self.mask).all(|slot| self.descriptor(slot).length == length);
        if is_common { length } else { 0 }
    }

    /// Reads only flags and length.
    #[inline(always)]
    pub(crate) fn flags_and_length(&self, index: u16) -> (u16, u32) {
        let first = self.words(index).0.load(Ordering::Relaxed);
        (first as u16, (first >> 32) as u32)
    }

    /// Prefetches the lines of `count` descriptors from `index` on, for writing or for reading.
    #[inline(always)]
    pub(crate) fn prefetch(&self, index: u16, count: u16, to_write: bool) {
        // The descriptors fill whole lines, so that steps of one line reach each.
        let mut ahead = 0;
        while ahead < count {
            let slot = self.slot(index.wrapping_add(ahead));
            let line = self
                .base
                .as_ptr()
                .wrapping_add(DESCRIPTORS_AT + DESCRIPTOR_BYTES * slot);
            if to_write {
                prefetch_write(line);
            } else {
                prefetch_read(line);
            }
            ahead += DESCRIPTORS_PER_LINE;
        }
    }

    /// Writes flags, region and length.
    #[inline(always)]
    pub(crate) fn set_first_word(&self, index: u16, flags: u16, region: u16, length: u32) {
        let word = u64::from(flags) | u64::from(region) << 16 | u64::from(length) << 32;
        self.words(index).0.store(word, Ordering::Relaxed);
    }

    /// Writes the offset (and a zero as metadata).
    pub(crate) fn set_offset(&self, index: u16, offset: u32) {
        self.words(index).1.store(u64::from(offset), Ordering::Relaxed);
    }
}

const _: () = assert!(ring_bytes(64).is_multiple_of(ALIGNMENT));
