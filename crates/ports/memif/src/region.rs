//! Shared memory: allocated and sealed by the client, validated and mapped by the server.

// UNSAFETY: mmap and munmap.
#![expect(unsafe_code)]

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::{Error, ProtocolError};

/// A mapping of a whole region, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    address: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread; access to its bytes is up to the holders of
// pointers.
unsafe impl Send for Mapping {}
// SAFETY: as above; `Mapping` itself is never modified.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// The first byte.
    pub(crate) fn address(&self) -> NonNull<u8> {
        self.address
    }

    /// Bytes mapped.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    fn new(fd: &OwnedFd, bytes: usize, flags: MapFlags) -> rustix::io::Result<Mapping> {
        // SAFETY: a new mapping at an address chosen by the kernel overlaps nothing.
        let address = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | flags,
                fd,
                0,
            )?
        };
        NonNull::new(address.cast())
            .map(|address| Mapping { address, bytes })
            .ok_or(rustix::io::Errno::NOMEM)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: every queue that points into it holds the memory that holds this mapping, so it is unused
        // now. A failure would mean that it is not mapped, which needs no handling.
        let _ = unsafe { rustix::mm::munmap(self.address.as_ptr().cast(), self.bytes) };
    }
}

/// The regions of a link. They live as long as any of its queues.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) regions: Vec<Mapping>,
}

/// Allocates a zeroed region that can neither shrink nor grow, with all its pages present. If memory is short
/// it fails here, not with a signal in the middle of a burst.
pub(crate) fn create(bytes: usize, hugepages: bool) -> Result<(OwnedFd, Mapping), Error> {
    /// Bytes of a huge page on x86-64 and, with 4 KiB granules, on AArch64.
    const HUGE_PAGE: usize = 2 << 20;
    let bytes = bytes.next_multiple_of(if hugepages { HUGE_PAGE } else { 4096 });
    let failed = |errno: rustix::io::Errno| match errno {
        rustix::io::Errno::MFILE | rustix::io::Errno::NFILE => Error::out_of_descriptors(),
        _ => Error::Memory {
            bytes: bytes as u64,
            hugepages,
            source: errno.into(),
        },
    };
    let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    if hugepages {
        flags |= MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    }
    let fd = rustix::fs::memfd_create("memif", flags).map_err(failed)?;
    rustix::fs::ftruncate(&fd, bytes as u64).map_err(failed)?;
    rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, bytes as u64).map_err(failed)?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
        .map_err(failed)?;
    let mapping = Mapping::new(&fd, bytes, MapFlags::POPULATE).map_err(failed)?;
    Ok((fd, mapping))
}

/// Maps a peer's region.
///
/// # Errors
/// It is not sealed against shrinking, not as large as declared, or larger than `limit` bytes.
pub(crate) fn accept(fd: &OwnedFd, index: u16, bytes: u64, limit: u64) -> Result<Mapping, Error> {
    // Check the seal before the size: once sealed, the size can only grow.
    let sealed = rustix::fs::fcntl_get_seals(fd.as_fd()).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
    if !sealed {
        return Err(ProtocolError::UnsealedRegion { index }.into());
    }
    let status = rustix::fs::fstat(fd).map_err(|errno| Error::system("cannot stat a memif region", errno))?;
    let file_bytes = u64::try_from(status.st_size).unwrap_or(0);
    match usize::try_from(bytes) {
        Ok(size) if bytes > 0 && bytes <= file_bytes && bytes <= limit => {
            Mapping::new(fd, size, MapFlags::empty())
                .map_err(|errno| Error::system("cannot map a memif region", errno))
        }
        _ => Err(ProtocolError::RegionSize {
            index,
            bytes,
            file_bytes,
            limit,
        }
        .into()),
    }
}
