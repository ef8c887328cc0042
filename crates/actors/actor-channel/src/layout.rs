//! The memory of a channel: a page that says what it is, and a ring for each direction.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use shared_memory::{PAGE, SharedWords};

use crate::checksum::LONGEST;
use crate::sender::RESERVED_WORDS;

/// "inco act", as the bytes of a word.
const MAGIC: u64 = u64::from_le_bytes(*b"inco act");
/// The number of the layout.
const VERSION: u64 = 1;
/// Words of the first page.
const PAGE_WORDS: usize = PAGE / 8;
/// Words of a ring, at least: a page.
const FEWEST_WORDS: u32 = PAGE_WORDS as u32;
/// Words of a ring, at most: 1 GiB. Positions in the same place must differ in their low 32 bits.
const MOST_WORDS: u32 = 1 << 27;

/// One of the two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Side {
    /// The cores of the card.
    Card,
    /// The cores of the host.
    Host,
}

impl Side {
    /// The other one.
    pub fn other(self) -> Side {
        match self {
            Side::Card => Side::Host,
            Side::Host => Side::Card,
        }
    }
}

/// The size of the rings and of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of each ring: a power of two between 4 KiB and 1 GiB.
    pub ring_bytes: u32,
    /// Bytes of the longest message: it fits into half a ring, and has less than 16 MiB.
    pub message_bytes: u32,
}

impl Default for Limits {
    /// Rings of 4 MiB, messages of up to 256 KiB.
    fn default() -> Limits {
        Limits {
            ring_bytes: 4 << 20,
            message_bytes: 256 << 10,
        }
    }
}

impl Limits {
    fn ring_words(self) -> u32 {
        self.ring_bytes / 8
    }

    fn check(self) -> Result<(), AttachError> {
        let words = self.ring_words();
        if !self.ring_bytes.is_power_of_two() || !(FEWEST_WORDS..=MOST_WORDS).contains(&words) {
            return Err(AttachError::RingBytes(self.ring_bytes));
        }
        // With less than half a ring, a sender that waits gets the word that lets it go on.
        let needed = 1 + u64::from(self.message_bytes).div_ceil(8) + RESERVED_WORDS;
        if self.message_bytes > LONGEST || needed > u64::from(words) / 2 {
            return Err(AttachError::MessageBytes(self.message_bytes));
        }
        Ok(())
    }

    fn all_words(self) -> usize {
        PAGE_WORDS + 2 * self.ring_words() as usize
    }
}

/// Why memory is no channel.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The kernel refused it, or the file may shrink.
    #[error("shared memory: {0}")]
    Memory(#[from] Errno),
    /// Another program's memory.
    #[error("it is no channel of actors")]
    NotAChannel,
    /// Made by another version.
    #[error("layout {0} of a channel; this is {VERSION}")]
    Version(u64),
    /// A ring of a size that none has.
    #[error("a ring of {0} bytes; it must be a power of two between 4 KiB and 1 GiB")]
    RingBytes(u32),
    /// A message that does not fit.
    #[error("messages of {0} bytes; they must fit into half a ring, and be shorter than 16 MiB")]
    MessageBytes(u32),
    /// The file is shorter than its rings.
    #[error("the file is shorter than its rings")]
    TooShort,
}

/// The words of one direction.
#[derive(Clone, Debug)]
pub(crate) struct Ring {
    memory: Arc<SharedWords>,
    first: usize,
    mask: usize,
}

impl Ring {
    /// Words.
    pub(crate) fn len(&self) -> u64 {
        self.mask as u64 + 1
    }

    /// All words.
    #[inline(always)]
    pub(crate) fn words(&self) -> &[AtomicU64] {
        &self.memory.words()[self.first..=self.first + self.mask]
    }

    /// The index of a position.
    #[inline(always)]
    pub(crate) fn index(&self, position: u64) -> usize {
        position as usize & self.mask
    }
}

/// The parts of a channel that both ends need.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) limits: Limits,
    pub(crate) key: u32,
    /// Written by the card.
    pub(crate) from_card: Ring,
    /// Written by the host.
    pub(crate) from_host: Ring,
}

impl Parts {
    fn new(memory: SharedWords, limits: Limits, key: u32) -> Parts {
        let memory = Arc::new(memory);
        let words = limits.ring_words() as usize;
        let ring = |first| Ring {
            memory: Arc::clone(&memory),
            first,
            mask: words - 1,
        };
        Parts {
            limits,
            key,
            from_card: ring(PAGE_WORDS),
            from_host: ring(PAGE_WORDS + words),
        }
    }

    pub(crate) fn create(limits: Limits, key: u32) -> Result<(OwnedFd, Parts), AttachError> {
        limits.check()?;
        let (file, memory) = SharedWords::create("actor-channel", limits.all_words() * 8)?;
        let head = [
            MAGIC,
            VERSION,
            u64::from(limits.ring_bytes),
            u64::from(limits.message_bytes),
            u64::from(key),
        ];
        for (word, value) in memory.words().iter().zip(head) {
            word.store(value, Ordering::Relaxed);
        }
        Ok((file, Parts::new(memory, limits, key)))
    }

    pub(crate) fn attach(file: BorrowedFd<'_>) -> Result<Parts, AttachError> {
        let memory = SharedWords::open(file)?;
        // Each word is read once: what is checked is what is used.
        let [magic, version, ring_bytes, message_bytes, key] =
            [0, 1, 2, 3, 4].map(|at: usize| memory.words()[at].load(Ordering::Relaxed));
        if magic != MAGIC {
            return Err(AttachError::NotAChannel);
        }
        if version != VERSION {
            return Err(AttachError::Version(version));
        }
        let narrow = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        let limits = Limits {
            ring_bytes: narrow(ring_bytes),
            message_bytes: narrow(message_bytes),
        };
        limits.check()?;
        if memory.words().len() < limits.all_words() {
            return Err(AttachError::TooShort);
        }
        Ok(Parts::new(memory, limits, key as u32))
    }
}
