//! Shared memory: allocated and sealed by the client, validated and mapped by the server.

use std::os::fd::{AsFd, OwnedFd};

use shared_memory::Mapping;

use crate::{Error, ProtocolError};

/// The regions of a link. They live as long as any of its queues.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) regions: Vec<Mapping>,
}

/// Allocates a zeroed region that can neither shrink nor grow, with all its pages present. If memory is short
/// it fails here, not with a signal in the middle of a burst.
pub(crate) fn create(bytes: usize, hugepages: bool) -> Result<(OwnedFd, Mapping), Error> {
    shared_memory::create("memif", bytes, hugepages).map_err(|errno| match errno {
        rustix::io::Errno::MFILE | rustix::io::Errno::NFILE => Error::out_of_descriptors(),
        _ => Error::Memory {
            bytes: bytes as u64,
            hugepages,
            source: errno.into(),
        },
    })
}

/// Maps a peer's region.
///
/// # Errors
/// It is not sealed against shrinking, not as large as declared, or larger than `limit` bytes.
pub(crate) fn accept(fd: &OwnedFd, index: u16, bytes: u64, limit: u64) -> Result<Mapping, Error> {
    // Check the seal before the size: once sealed, the size can only grow.
    if !shared_memory::is_sealed(fd.as_fd()) {
        return Err(ProtocolError::UnsealedRegion { index }.into());
    }
    let status = rustix::fs::fstat(fd).map_err(|errno| Error::system("cannot stat a memif region", errno))?;
    let file_bytes = u64::try_from(status.st_size).unwrap_or(0);
    match usize::try_from(bytes) {
        Ok(size) if bytes > 0 && bytes <= file_bytes && bytes <= limit => {
            Mapping::new(fd.as_fd(), size, false)
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
