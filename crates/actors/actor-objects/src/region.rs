//! The memory of an actor's objects: what lies where, and what makes a region invalid.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;
use shared_memory::OwnMemory;
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// "inco obj", as bytes.
const MAGIC: u64 = u64::from_le_bytes(*b"inco obj");
/// The number of the layout.
const VERSION: u64 = 1;
/// Objects lie at multiples of it, in bytes: what a processor loads at once.
pub(crate) const UNIT: usize = 16;
/// Places of a region, at most.
const MOST_PLACES: u32 = 1 << 24;

/// The size of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes for objects, at most 4 GiB less 16 bytes; each takes a multiple of 16.
    pub bytes: u32,
    /// Objects at a time, 1 to 16,777,216.
    pub objects: u32,
}

/// Why memory is no region of objects.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// The kernel refused it, or the file may shrink.
    #[error("shared memory: {0}")]
    Memory(#[from] Errno),
    /// Another program's memory.
    #[error("it is no region of objects")]
    NotARegion,
    /// Made by another version.
    #[error("layout {0} of a region; this is {VERSION}")]
    Version(u64),
    /// Limits that cannot be, or a file that is shorter than they say.
    #[error("a region of {bytes} bytes for {objects} objects does not fit")]
    Size {
        /// Bytes for objects.
        bytes: u64,
        /// Places for them.
        objects: u64,
    },
    /// Its process ended while it handled a message: this is not the state behind a completed message.
    #[error("a message was under way when its process ended")]
    Interrupted,
    /// A row of the table points out of the region, or into another object.
    #[error("place {0} of the table is damaged")]
    Table(u32),
}

/// The first bytes of a region.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Head {
    magic: U64,
    version: U64,
    pub(crate) bytes: U64,
    pub(crate) places: U64,
    /// Messages completed.
    pub(crate) completed: U64,
    /// 1 while a message is handled.
    pub(crate) is_under_way: U64,
    /// A word for who decides where the actor runs.
    pub(crate) mark: U64,
    unused: U64,
}

/// A row of the table.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Place {
    /// Times that it was taken.
    pub(crate) generation: U32,
    /// Bytes of the object; 0 if it is free.
    pub(crate) bytes: U32,
    /// Where the object begins, in units.
    pub(crate) at: U32,
    unused: U32,
}

impl Place {
    pub(crate) fn new(generation: u32, bytes: u32, at: u32) -> Place {
        Place {
            generation: U32::new(generation),
            bytes: U32::new(bytes),
            at: U32::new(at),
            unused: U32::ZERO,
        }
    }

    /// Units that the object takes.
    pub(crate) fn units(&self) -> u32 {
        self.bytes.get().div_ceil(UNIT as u32)
    }
}

const HEAD_BYTES: usize = size_of::<Head>();
const PLACE_BYTES: usize = size_of::<Place>();
const _: () = assert!(HEAD_BYTES == 64 && PLACE_BYTES == UNIT && HEAD_BYTES.is_multiple_of(UNIT));

/// The memory with its parts.
#[derive(Debug)]
pub(crate) struct Region {
    memory: OwnMemory,
    pub(crate) limits: Limits,
}

impl Region {
    pub(crate) fn create(limits: Limits) -> Result<(OwnedFd, Region), RegionError> {
        let limits = Region::check(u64::from(limits.bytes), u64::from(limits.objects))?;
        let (file, memory) = OwnMemory::create("actor-objects", Region::all_bytes(limits), false)?;
        let mut region = Region { memory, limits };
        *region.head_mut() = Head {
            magic: U64::new(MAGIC),
            version: U64::new(VERSION),
            bytes: U64::new(u64::from(limits.bytes)),
            places: U64::new(u64::from(limits.objects)),
            completed: U64::ZERO,
            is_under_way: U64::ZERO,
            mark: U64::ZERO,
            unused: U64::ZERO,
        };
        Ok((file, region))
    }

    pub(crate) fn open(file: BorrowedFd<'_>) -> Result<Region, RegionError> {
        let memory = OwnMemory::open(file)?;
        let (head, _) = Head::read_from_prefix(memory.bytes()).map_err(|_| RegionError::NotARegion)?;
        if head.magic.get() != MAGIC {
            return Err(RegionError::NotARegion);
        }
        if head.version.get() != VERSION {
            return Err(RegionError::Version(head.version.get()));
        }
        let limits = Region::check(head.bytes.get(), head.places.get())?;
        if memory.bytes().len() < Region::all_bytes(limits) {
            return Err(RegionError::Size {
                bytes: head.bytes.get(),
                objects: head.places.get(),
            });
        }
        if head.is_under_way.get() != 0 {
            return Err(RegionError::Interrupted);
        }
        Ok(Region { memory, limits })
    }

    fn check(bytes: u64, objects: u64) -> Result<Limits, RegionError> {
        let error = RegionError::Size { bytes, objects };
        let most = u64::from(u32::MAX) - UNIT as u64;
        match (u32::try_from(bytes), u32::try_from(objects)) {
            (Ok(bytes), Ok(objects)) if u64::from(bytes) <= most && (1..=MOST_PLACES).contains(&objects) => {
                Ok(Limits { bytes, objects })
            }
            _ => Err(error),
        }
    }

    fn all_bytes(limits: Limits) -> usize {
        HEAD_BYTES + limits.objects as usize * PLACE_BYTES + limits.bytes as usize
    }

    /// Units for objects.
    pub(crate) fn units(&self) -> u32 {
        self.limits.bytes / UNIT as u32
    }

    #[expect(
        clippy::expect_used,
        reason = "a region has these bytes, checked when it was made or opened"
    )]
    pub(crate) fn head(&self) -> &Head {
        Head::ref_from_prefix(self.memory.bytes()).expect("a head").0
    }

    #[expect(
        clippy::expect_used,
        reason = "a region has these bytes, checked when it was made or opened"
    )]
    pub(crate) fn head_mut(&mut self) -> &mut Head {
        Head::mut_from_prefix(self.memory.bytes_mut()).expect("a head").0
    }

    /// The table, and the bytes of all objects.
    #[inline]
    #[expect(
        clippy::expect_used,
        reason = "a region has these bytes, checked when it was made or opened"
    )]
    pub(crate) fn parts(&self) -> (&[Place], &[u8]) {
        let rest = &self.memory.bytes()[HEAD_BYTES..];
        let (table, rest) = rest.split_at(self.limits.objects as usize * PLACE_BYTES);
        let table = <[Place]>::ref_from_bytes(table).expect("a table");
        (table, &rest[..self.limits.bytes as usize])
    }

    /// The same, to be changed.
    #[inline]
    #[expect(
        clippy::expect_used,
        reason = "a region has these bytes, checked when it was made or opened"
    )]
    pub(crate) fn parts_mut(&mut self) -> (&mut [Place], &mut [u8]) {
        let limits = self.limits;
        let rest = &mut self.memory.bytes_mut()[HEAD_BYTES..];
        let (table, rest) = rest.split_at_mut(limits.objects as usize * PLACE_BYTES);
        let table = <[Place]>::mut_from_bytes(table).expect("a table");
        (table, &mut rest[..limits.bytes as usize])
    }
}
