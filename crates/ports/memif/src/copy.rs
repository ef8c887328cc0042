//! Copies frames between shared and private memory, and prefetches cache lines.
//!
//! The peer may write to shared memory while it is read here. Rust has no copy operation that allows this
//! race. Like every program that shares memory with an untrusted peer, this one relies on compilers and
//! processors: no reference to shared frame memory exists, every copy is made by [`copy`] from a raw pointer,
//! and nothing is read twice. Only byte values race, and the peer could have chosen any. A compiler fence
//! after the copy keeps later reads of the destination from becoming reads of the source.

// UNSAFETY: raw copies and prefetch instructions.
#![expect(unsafe_code)]

use core::ptr;
use core::sync::atomic::{Ordering, compiler_fence};

/// Above this length the C library's copy is faster than a loop of 64-byte blocks.
const INLINE_BYTES: usize = 256;

/// 16 bytes in one register, at any alignment.
#[derive(Clone, Copy)]
#[repr(C, packed)]
struct Block(
    #[cfg(target_arch = "x86_64")] core::arch::x86_64::__m128i,
    #[cfg(not(target_arch = "x86_64"))] u128,
);

/// Copies `len` bytes.
///
/// Frames are short and their lengths vary. Up to [`INLINE_BYTES`], two overlapping fixed-size blocks or a
/// few 64-byte blocks cost a third of a variable-length call.
///
/// # Safety
/// `source` is valid for reads and `target` for writes of `len` bytes, and they do not overlap. If another
/// process writes to either meanwhile, the copied bytes are any mixture of the values written.
#[inline(always)]
pub(crate) unsafe fn copy(source: *const u8, target: *mut u8, len: usize) {
    /// Copies the first and the last `N` bytes, which may overlap.
    #[inline(always)]
    unsafe fn ends<const N: usize>(source: *const u8, target: *mut u8, len: usize) {
        // SAFETY: the caller has N ≤ len; both blocks lie within `len` bytes. Arrays of bytes have no alignment.
        unsafe {
            let first = ptr::read(source.cast::<[u8; N]>());
            let last = ptr::read(source.wrapping_add(len - N).cast::<[u8; N]>());
            ptr::write(target.cast::<[u8; N]>(), first);
            ptr::write(target.wrapping_add(len - N).cast::<[u8; N]>(), last);
        }
    }
    /// Copies the first and the last 32 bytes, which may overlap, in registers: byte arrays would go through
    /// the stack.
    #[inline(always)]
    unsafe fn ends_of_32(source: *const u8, target: *mut u8, len: usize) {
        // SAFETY: the caller has 32 ≤ len; all blocks lie within `len` bytes. Any bytes are a block.
        unsafe {
            let (from, to) = (source.cast::<Block>(), target.cast::<Block>());
            let last_from = source.wrapping_add(len - 32).cast::<Block>();
            let last_to = target.wrapping_add(len - 32).cast::<Block>();
            let (a, b) = ((*from).0, (*from.wrapping_add(1)).0);
            let (c, d) = ((*last_from).0, (*last_from.wrapping_add(1)).0);
            (*to).0 = a;
            (*to.wrapping_add(1)).0 = b;
            (*last_to).0 = c;
            (*last_to.wrapping_add(1)).0 = d;
        }
    }
    // SAFETY: each branch copies within `len` bytes, as its condition says.
    unsafe {
        match len {
            64..=INLINE_BYTES => {
                let mut at = 0;
                while at + 64 < len {
                    ends_of_32(source.wrapping_add(at), target.wrapping_add(at), 64);
                    at += 64;
                }
                ends_of_32(source.wrapping_add(len - 64), target.wrapping_add(len - 64), 64);
            }
            32..64 => ends_of_32(source, target, len),
            16..32 => ends::<16>(source, target, len),
            8..16 => ends::<8>(source, target, len),
            4..8 => ends::<4>(source, target, len),
            2..4 => ends::<2>(source, target, len),
            0 => {}
            1 => *target = ptr::read(source),
            _ => ptr::copy_nonoverlapping(source, target, len),
        }
    }
    compiler_fence(Ordering::SeqCst);
}

/// Prefetches the line at `place` for reading. Any address is allowed: a prefetch never faults.
#[inline(always)]
pub(crate) fn prefetch_read(place: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: prefetching changes no state and faults on no address.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(place.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!("prfm pldl1keep, [{0}]", in(reg) place, options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = place;
}

/// Prefetches the line at `place` for writing. Any address is allowed: a prefetch never faults.
#[inline(always)]
pub(crate) fn prefetch_write(place: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as in `prefetch_read`; a processor without PREFETCHW takes it as a no-op.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_ET0 }>(place.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!("prfm pstl1keep, [{0}]", in(reg) place, options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = place;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_copied_exactly() {
        let source: Vec<u8> = (0..600_u32).map(|i| (i * 7 + 1) as u8).collect();
        for len in 0..=520 {
            for offset in [0, 1, 7] {
                let mut target = vec![0_u8; 600];
                // SAFETY: offset + len ≤ 600 on both sides.
                unsafe { copy(source.as_ptr().add(offset), target.as_mut_ptr().add(3), len) };
                assert_eq!(target[3..3 + len], source[offset..offset + len], "length {len}");
                assert!(
                    target[..3]
                        .iter()
                        .chain(&target[3 + len..])
                        .all(|byte| *byte == 0),
                    "length {len}"
                );
            }
        }
    }
}
