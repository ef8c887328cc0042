//! Where the rings of a socket are, in memory that outlives this process: the next one, which takes the socket over,
//! goes on there. The kernel does not say where it is in a ring.
//!
//! A user that commits in turns says first where each ring will be (`intend`). Ended in between, a turn that it has noted
//! is finished by who takes the socket over, and any other one did not happen.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use shared_memory::{OwnMemory, PAGE};

/// Words: which layout this is; of the ring of received frames and of those to send, where it is, and where a turn will
/// bring it.
const LAYOUT_AT: usize = 0;
const LAYOUT: u64 = 0x1ac0_4001;
/// Of a ring: the first word.
pub(crate) const RECEIVED: usize = 1;
pub(crate) const TO_SEND: usize = 3;

/// The positions of both rings.
#[derive(Debug)]
pub(crate) struct Positions(OwnMemory);

impl Positions {
    /// New ones, of rings that are at their beginning, and their file.
    pub(crate) fn new() -> io::Result<(OwnedFd, Positions)> {
        let (file, memory) = OwnMemory::create("inco-socket", PAGE, false)?;
        memory.words()[LAYOUT_AT].store(LAYOUT, Relaxed);
        Ok((file, Positions(memory)))
    }

    /// Those of another process.
    pub(crate) fn open(file: &OwnedFd) -> io::Result<Positions> {
        let memory = OwnMemory::open(file.as_fd())?;
        if memory.words()[LAYOUT_AT].load(Relaxed) != LAYOUT {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Positions(memory))
    }

    /// Where a ring is.
    pub(crate) fn at(&self, ring: usize) -> u32 {
        self.0.words()[ring].load(Acquire) as u32
    }

    /// A ring is there now.
    #[inline]
    pub(crate) fn set(&self, ring: usize, position: u32) {
        self.0.words()[ring].store(position.into(), Release);
    }

    /// Where that turn was to bring a ring, if it says so.
    pub(crate) fn intended(&self, ring: usize, turn: u64) -> Option<u32> {
        let word = self.0.words()[ring + 1].load(Acquire);
        (word >> 32 == turn & u64::from(u32::MAX)).then_some(word as u32)
    }

    /// That turn will bring a ring there.
    #[inline]
    pub(crate) fn intend(&self, ring: usize, turn: u64, position: u32) {
        self.0.words()[ring + 1].store(turn << 32 | u64::from(position), Release);
    }
}
