//! The page that a group's process writes and its supervisor reads, also after the process's end: which actor runs and
//! since when, and how many messages of each have ended.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use model::Nanos;
use rustix::io::Result;
use shared_memory::OwnMemory;

use crate::ACTORS_LIMIT;

/// Word 0: the place of the actor that runs, plus 1; 0 where none does. Word 1: since when. Word 2: the CPU time that the
/// process had used then.
const RUNS: usize = 0;
const SINCE: usize = 1;
const USED: usize = 2;
/// From here on, by place: messages that have ended.
const ENDED: usize = 8;
/// From here on, by place: 1 where the actor has prepared its state.
const PREPARED: usize = ENDED + ACTORS_LIMIT;

/// An actor that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Running {
    /// Its place.
    pub(crate) slot: usize,
    /// Since when.
    pub(crate) since: Nanos,
    /// The CPU time that the process had used then.
    pub(crate) used: Nanos,
}

/// See the module's text. The process is hostile once an actor of it has written where it may not: what is read here is
/// only compared, and a place is checked by who uses it.
#[derive(Debug)]
pub(crate) struct Page(OwnMemory);

impl Page {
    pub(crate) fn create() -> Result<(OwnedFd, Page)> {
        let (file, memory) = OwnMemory::create("actors-page", shared_memory::PAGE, false)?;
        Ok((file, Page(memory)))
    }

    pub(crate) fn open(file: BorrowedFd<'_>) -> Result<Page> {
        OwnMemory::open(file).map(Page)
    }

    /// An actor runs from now on; the process has used so much CPU time.
    pub(crate) fn begin(&self, slot: usize, now: Nanos, used: Nanos) {
        let words = self.0.words();
        words[SINCE].store(now.0, Ordering::Relaxed);
        words[USED].store(used.0, Ordering::Relaxed);
        words[RUNS].store(slot as u64 + 1, Ordering::Release);
    }

    /// The actor that runs has ended a message, or has yielded.
    pub(crate) fn end(&self, slot: usize, ended: u64) {
        let words = self.0.words();
        words[ENDED + slot].store(ended, Ordering::Release);
        words[RUNS].store(0, Ordering::Release);
    }

    /// The actor that runs has prepared its state.
    pub(crate) fn prepared(&self, slot: usize) {
        let words = self.0.words();
        words[PREPARED + slot].store(1, Ordering::Release);
        words[RUNS].store(0, Ordering::Release);
    }

    /// Whether an actor has prepared its state.
    pub(crate) fn is_prepared(&self, slot: usize) -> bool {
        self.0.words()[PREPARED + slot].load(Ordering::Acquire) == 1
    }

    /// The actor that runs.
    pub(crate) fn running(&self) -> Option<Running> {
        let words = self.0.words();
        let slot = words[RUNS].load(Ordering::Acquire).checked_sub(1)?;
        // Another run may have begun meanwhile: then its times are later, and nobody is over a budget by them.
        Some(Running {
            slot: usize::try_from(slot).ok()?,
            since: Nanos(words[SINCE].load(Ordering::Acquire)),
            used: Nanos(words[USED].load(Ordering::Acquire)),
        })
    }

    /// Nobody runs: the process has ended.
    pub(crate) fn clear(&self) {
        self.0.words()[RUNS].store(0, Ordering::Release);
    }

    /// Messages of an actor that have ended.
    pub(crate) fn ended(&self, slot: usize) -> u64 {
        self.0.words()[ENDED + slot].load(Ordering::Acquire)
    }
}
