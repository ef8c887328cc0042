//! Memory in a file of its own (memfd) that can neither shrink nor grow: shared with a peer, or kept for the next run
//! of a program. A mapping of a file that could shrink would end the process with a signal.

// UNSAFETY: mmap and munmap, and the bytes between.
#![expect(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU64;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::{Errno, Result};
use rustix::mm::{MapFlags, ProtFlags};

/// Bytes of a huge page on x86-64 and, with 4 KiB granules, on AArch64.
pub const HUGE_PAGE: usize = 2 << 20;
/// Bytes of an ordinary page: mappings are a multiple of it long.
pub const PAGE: usize = 4096;

/// A mapping of a whole file, for reading and writing, unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    address: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread; access to its bytes is up to the holders of pointers.
unsafe impl Send for Mapping {}
// SAFETY: as above; `Mapping` itself is never modified.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first bytes of a file. `populate`: with all pages present.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new(file: BorrowedFd<'_>, bytes: usize, populate: bool) -> Result<Mapping> {
        // SAFETY: a new mapping at an address chosen by the kernel overlaps nothing.
        unsafe { Mapping::at(ptr::null_mut(), file, bytes, populate) }
    }

    /// The same from a multiple of [`HUGE_PAGE`] on: there huge pages of a file are mapped as such.
    fn aligned(file: BorrowedFd<'_>, bytes: usize, populate: bool) -> Result<Mapping> {
        let reserved = bytes.checked_add(HUGE_PAGE).ok_or(Errno::NOMEM)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address chosen by the kernel overlaps nothing.
        let address =
            unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), reserved, ProtFlags::empty(), flags)? };
        let mut before = Mapping {
            address: NonNull::new(address.cast()).ok_or(Errno::NOMEM)?,
            bytes: reserved,
        };
        let skipped = address.addr().next_multiple_of(HUGE_PAGE) - address.addr();
        let start = before.address.as_ptr().wrapping_add(skipped);
        // SAFETY: this replaces a part of the mapping just made, which nobody uses.
        let mapping = unsafe { Mapping::at(start, file, bytes, populate)? };
        // What is left of it on both sides is unmapped.
        before.bytes = skipped;
        let _after = Mapping {
            address: NonNull::new(start.wrapping_add(bytes)).ok_or(Errno::NOMEM)?,
            bytes: HUGE_PAGE - skipped,
        };
        Ok(mapping)
    }

    /// Maps the first bytes of a file at this address, or at one that the kernel chooses if it is null.
    ///
    /// # Safety
    /// Nobody uses what is mapped at the address.
    unsafe fn at(address: *mut u8, file: BorrowedFd<'_>, bytes: usize, populate: bool) -> Result<Mapping> {
        let mut flags = MapFlags::SHARED;
        flags.set(MapFlags::POPULATE, populate);
        flags.set(MapFlags::FIXED, !address.is_null());
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: see above.
        let address = unsafe { rustix::mm::mmap(address.cast(), bytes, protection, flags, file, 0)? };
        NonNull::new(address.cast())
            .map(|address| Mapping { address, bytes })
            .ok_or(Errno::NOMEM)
    }

    /// Has the kernel put the whole file into huge pages, whatever its settings for transparent ones say. Where it has
    /// none or cannot, ordinary pages stay.
    fn gather(&self, file: BorrowedFd<'_>) {
        // It gathers pages that are there: one of each huge page is enough, and cheaper than all of them.
        for from in (0..self.bytes).step_by(HUGE_PAGE) {
            if rustix::fs::fallocate(file, FallocateFlags::empty(), from as u64, PAGE as u64).is_err() {
                return;
            }
        }
        // SAFETY: advice for a mapping of this process, which changes no content.
        let _as_it_is =
            unsafe { libc::madvise(self.address.as_ptr().cast(), self.bytes, libc::MADV_COLLAPSE) };
    }

    /// The first byte.
    pub fn address(&self) -> NonNull<u8> {
        self.address
    }

    /// Bytes mapped.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: whoever has a pointer into it keeps the mapping, so it is unused now. A failure would mean that it
        // is not mapped, which needs no handling.
        let _ = unsafe { rustix::mm::munmap(self.address.as_ptr().cast(), self.bytes) };
    }
}

/// Makes a zeroed file of at least this size that can neither shrink nor grow, with all its pages present. If memory
/// is short it fails here, not with a signal later. Gives the file, and a mapping of all of it.
///
/// # Errors
/// The kernel's: without reserved huge pages for `hugepages`, no memory.
pub fn create(name: &str, bytes: usize, hugepages: bool) -> Result<(OwnedFd, Mapping)> {
    let bytes = bytes
        .max(1)
        .next_multiple_of(if hugepages { HUGE_PAGE } else { PAGE });
    let file = empty(name, bytes, hugepages)?;
    complete(&file, bytes)?;
    let mapping = Mapping::new(file.as_fd(), bytes, true)?;
    Ok((file, mapping))
}

/// A file of this size without pages.
fn empty(name: &str, bytes: usize, hugepages: bool) -> Result<OwnedFd> {
    let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    if hugepages {
        flags |= MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    }
    let file = rustix::fs::memfd_create(name, flags)?;
    rustix::fs::ftruncate(&file, bytes as u64)?;
    Ok(file)
}

/// Gives a file the pages that it does not have yet, and has it keep its size.
fn complete(file: &OwnedFd, bytes: usize) -> Result<()> {
    rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes as u64)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(file, seals)
}

/// Whether a file can never become shorter.
pub fn is_sealed(file: BorrowedFd<'_>) -> bool {
    rustix::fs::fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK))
}

/// Memory that only this process uses while it runs: in no file, or in one that a [`create`] made, which the next run
/// opens.
#[derive(Debug)]
pub struct OwnMemory {
    mapping: Mapping,
}

impl OwnMemory {
    /// Makes it: see [`create`]. Gives the file as well. What is not in reserved huge pages is in transparent ones
    /// where the kernel has them and it fills one.
    ///
    /// # Errors
    /// The kernel's.
    pub fn create(name: &str, bytes: usize, hugepages: bool) -> Result<(OwnedFd, OwnMemory)> {
        if hugepages || bytes < HUGE_PAGE {
            let (file, mapping) = create(name, bytes, hugepages)?;
            return Ok((file, OwnMemory { mapping }));
        }
        let bytes = bytes.next_multiple_of(HUGE_PAGE);
        let file = empty(name, bytes, false)?;
        Mapping::aligned(file.as_fd(), bytes, false)?.gather(file.as_fd());
        complete(&file, bytes)?;
        let mapping = Mapping::aligned(file.as_fd(), bytes, true)?;
        Ok((file, OwnMemory { mapping }))
    }

    /// Makes it without a file, zeroed: in huge pages where the kernel gives them.
    ///
    /// # Errors
    /// The kernel's.
    pub fn anonymous(bytes: usize) -> Result<OwnMemory> {
        let bytes = bytes.max(1).next_multiple_of(PAGE);
        // SAFETY: a new mapping at an address chosen by the kernel overlaps nothing.
        let address = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )?
        };
        let address = NonNull::new(address.cast()).ok_or(Errno::NOMEM)?;
        let mut memory = OwnMemory {
            mapping: Mapping { address, bytes },
        };
        // SAFETY: advice for the mapping just made. A kernel without huge pages says no: the small ones do, too.
        let _as_it_is =
            unsafe { rustix::mm::madvise(address.as_ptr().cast(), bytes, rustix::mm::Advice::LinuxHugepage) };
        memory.bytes_mut().fill(0);
        Ok(memory)
    }

    /// Opens what a run before made. No other process may still use it.
    ///
    /// # Errors
    /// [`Errno::PERM`] for a file that may shrink; the kernel's.
    pub fn open(file: BorrowedFd<'_>) -> Result<OwnMemory> {
        let bytes = sealed_bytes(file)?;
        let mapping = if bytes < HUGE_PAGE {
            Mapping::new(file, bytes, true)?
        } else {
            Mapping::aligned(file, bytes, true)?
        };
        Ok(OwnMemory { mapping })
    }

    /// The bytes. They begin at a page.
    #[inline(always)]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is that long and sealed, and only this process writes to it, through this value.
        unsafe { std::slice::from_raw_parts(self.mapping.address().as_ptr(), self.mapping.bytes()) }
    }

    /// The first words, to be written in an order that a reader after this process's end can rely on.
    pub fn words(&self) -> &[AtomicU64; PAGE / 8] {
        // SAFETY: a mapping begins at a page and has at least one; the words are accessed as atomics, or as bytes by
        // who has the only reference.
        unsafe { &*self.mapping.address().as_ptr().cast() }
    }

    /// All words.
    #[inline(always)]
    pub fn all_words(&self) -> &[AtomicU64] {
        // SAFETY: as in `words`, for as many as the mapping has.
        unsafe {
            std::slice::from_raw_parts(self.mapping.address().as_ptr().cast(), self.mapping.bytes() / 8)
        }
    }

    /// The bytes, to be changed.
    #[inline(always)]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; `&mut self` makes it the only slice.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.address().as_ptr(), self.mapping.bytes()) }
    }
}

/// Memory that other processes may read and write at any time: words that are accessed as atomics only.
#[derive(Debug)]
pub struct SharedWords {
    mapping: Mapping,
}

impl SharedWords {
    /// Makes it, zeroed: see [`create`]. Gives the file as well.
    ///
    /// # Errors
    /// The kernel's.
    pub fn create(name: &str, bytes: usize) -> Result<(OwnedFd, SharedWords)> {
        let (file, mapping) = create(name, bytes, false)?;
        Ok((file, SharedWords { mapping }))
    }

    /// Opens what another process made.
    ///
    /// # Errors
    /// [`Errno::PERM`] for a file that may shrink; the kernel's.
    pub fn open(file: BorrowedFd<'_>) -> Result<SharedWords> {
        Ok(SharedWords {
            mapping: Mapping::new(file, sealed_bytes(file)?, true)?,
        })
    }

    /// All words. Others may change each at any time.
    #[inline(always)]
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping begins at a page, is that long, sealed, and accessed through this slice only.
        unsafe {
            std::slice::from_raw_parts(self.mapping.address().as_ptr().cast(), self.mapping.bytes() / 8)
        }
    }
}

/// The size of a file that can never become shorter and has at least a page.
fn sealed_bytes(file: BorrowedFd<'_>) -> Result<usize> {
    if !is_sealed(file) {
        return Err(Errno::PERM);
    }
    let bytes = usize::try_from(rustix::fs::fstat(file)?.st_size).map_err(|_| Errno::INVAL)?;
    if bytes < PAGE {
        return Err(Errno::INVAL);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn what_one_wrote_the_next_reads() {
        let (file, mut memory) = OwnMemory::create("test", 5000, false).unwrap();
        assert_eq!(memory.bytes().len(), 2 * PAGE);
        assert!(memory.bytes().iter().all(|byte| *byte == 0));
        memory.bytes_mut()[4999] = 7;
        drop(memory);
        let memory = OwnMemory::open(file.as_fd()).unwrap();
        assert_eq!(memory.bytes()[4999], 7);
        assert!(rustix::fs::ftruncate(&file, 10).is_err(), "it is sealed");
    }

    /// A line of the kernel's account of the mapping at that address, in KiB.
    fn account(address: *const u8, line: &str) -> usize {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let start = format!("{:x}-", address.addr());
        let of_mapping = maps.lines().skip_while(|at| !at.starts_with(&start));
        let figure = of_mapping.skip(1).find_map(|at| at.strip_prefix(line)).unwrap();
        figure.trim().strip_suffix(" kB").unwrap().parse().unwrap()
    }

    #[test]
    fn large_memory_is_in_huge_pages_for_the_next_run_too() {
        const BYTES: usize = 5 * HUGE_PAGE + 1;
        let (file, mut memory) = OwnMemory::create("test", BYTES, false).unwrap();
        let in_huge = account(memory.bytes().as_ptr(), "ShmemPmdMapped:");
        assert!(memory.bytes().iter().all(|byte| *byte == 0));
        memory.bytes_mut()[BYTES - 1] = 7;
        drop(memory);
        let memory = OwnMemory::open(file.as_fd()).unwrap();
        assert_eq!(memory.bytes()[BYTES - 1], 7);
        assert_eq!(memory.bytes().len(), 6 * HUGE_PAGE);
        let address = memory.bytes().as_ptr();
        assert!(address.addr().is_multiple_of(HUGE_PAGE));
        assert_eq!(
            account(address, "Rss:"),
            6 * HUGE_PAGE / 1024,
            "all pages are mapped"
        );
        assert_eq!(account(address, "ShmemPmdMapped:"), in_huge);
        // The kernel gives them unless it has none.
        if std::fs::exists("/sys/kernel/mm/transparent_hugepage").unwrap() {
            assert!(in_huge >= HUGE_PAGE / 1024, "{in_huge} KiB");
        }
    }

    #[test]
    fn two_mappings_of_shared_words_are_the_same_memory() {
        let (file, here) = SharedWords::create("test", 5000).unwrap();
        let there = SharedWords::open(file.as_fd()).unwrap();
        assert_eq!(there.words().len(), 2 * PAGE / 8);
        here.words()[1023].store(7, Ordering::Relaxed);
        assert_eq!(there.words()[1023].load(Ordering::Relaxed), 7);
    }

    #[test]
    fn what_may_shrink_is_not_opened() {
        let file = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 4096).unwrap();
        assert_eq!(OwnMemory::open(file.as_fd()).unwrap_err(), Errno::PERM);
        assert_eq!(SharedWords::open(file.as_fd()).unwrap_err(), Errno::PERM);
    }
}
