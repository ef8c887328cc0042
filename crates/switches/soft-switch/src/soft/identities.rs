//! Which instance each slot has: a page that outlives this process. It needs one descriptor for all slots, so it is
//! kept even where the launcher has none left for the rings of an instance. The next run then knows the instance
//! again, connects to it anew, and its flows stay pinned to it.

use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use model::Slot;
use shared_memory::OwnMemory;

use crate::keep::Keep;

/// The name under which it is kept.
pub(super) const NAME: &str = "slots/instances";
/// The first word: which layout. A word for each slot follows.
const LAYOUT: u64 = 0x1ac0_1001;
const WORD_BYTES: usize = 8;
const BYTES: usize = WORD_BYTES * (1 + Slot::LIMIT);

/// The instance that was attached last in each slot.
pub(super) struct Identities {
    memory: OwnMemory,
}

impl Identities {
    /// A new page, kept for the next run.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn new(keep: &Keep) -> std::io::Result<Identities> {
        let (file, memory) = OwnMemory::create("inco-instances", BYTES, false)?;
        let mut page = Identities { memory };
        page.set(0, LAYOUT);
        keep.keep(NAME, &(), &[file.as_fd()]);
        Ok(page)
    }

    /// What an earlier run left: [`None`] where it is of another layout.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn open(file: &OwnedFd) -> std::io::Result<Option<Identities>> {
        let memory = OwnMemory::open(file.as_fd())?;
        let page = Identities { memory };
        Ok((page.memory.bytes().len() >= BYTES && page.get(0) == LAYOUT).then_some(page))
    }

    /// Whether the instance at that address was in the slot: no other instance ever has the same address.
    pub(super) fn is_at(&self, slot: Slot, address: &Path) -> bool {
        self.get(1 + slot.index()) == identity(address)
    }

    /// The instance at that address is in the slot from now on; without one, nobody is known to be there.
    pub(super) fn put(&mut self, slot: Slot, address: Option<&PathBuf>) {
        self.set(1 + slot.index(), address.map_or(0, |address| identity(address)));
    }

    fn get(&self, word: usize) -> u64 {
        let (words, _) = self.memory.bytes().as_chunks::<WORD_BYTES>();
        words.get(word).map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    /// A word that was half written when the process ended is no instance's: its flows get others.
    fn set(&mut self, word: usize, value: u64) {
        let (words, _) = self.memory.bytes_mut().as_chunks_mut::<WORD_BYTES>();
        if let Some(bytes) = words.get_mut(word) {
            *bytes = value.to_le_bytes();
        }
    }
}

/// A fingerprint of an instance's address, the same in each release (FNV-1a). Never 0.
fn identity(address: &Path) -> u64 {
    let bytes = address.as_os_str().as_bytes().iter();
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    });
    hash.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_run_knows_who_had_each_slot() {
        let (file, memory) = OwnMemory::create("test", BYTES, false).unwrap();
        let open = || Identities::open(&file).unwrap();
        assert!(open().is_none(), "no layout");
        let mut page = Identities { memory };
        page.set(0, LAYOUT);
        let (a, b) = (
            PathBuf::from("/run/inco/3/port.sock"),
            PathBuf::from("/run/inco/4/port.sock"),
        );
        let last = Slot(Slot::LIMIT as u16 - 1);
        page.put(Slot(0), Some(&a));
        page.put(last, Some(&b));
        let next = open().unwrap();
        for (slot, of_a, of_b) in [
            (Slot(0), true, false),
            (Slot(1), false, false),
            (last, false, true),
        ] {
            assert_eq!(
                (next.is_at(slot, &a), next.is_at(slot, &b)),
                (of_a, of_b),
                "{slot:?}"
            );
        }
        page.put(last, None);
        assert!(!open().unwrap().is_at(last, &b));
        let (short, _memory) = OwnMemory::create("test", 1, false).unwrap();
        assert!(Identities::open(&short).unwrap().is_none());
    }
}
