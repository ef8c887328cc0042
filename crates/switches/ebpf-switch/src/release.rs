//! The layout of what a release shares with its programs, and how flows of the layout before are taken over.
//!
//! # Changing the layout
//! Maps outlive the program that made them, and a newer program takes them over. So a change to the place or the
//! meaning of a byte in one of the pinned maps, or to a hash, takes these steps. `reference` and `tests/driver/layouts.rs` fail without them.
//!
//! 1. Raise `LAYOUT` in `bpf/layout.h` and in `src/layout.rs`. The first two words of `struct settings` stay.
//! 2. Write how an entry of the layout before becomes one of this layout, a [`Before`], and name it in
//!    [`Release::THIS`]. It replaces the one that is there: only one release back is read.
//! 3. Keep the programs of the release before, `switch.o`, in `tests/layouts/`, and have
//!    `tests/driver/layouts.rs` take their flows over.
//! 4. Write the new reference: `INCO_WRITE_REFERENCE=1 cargo test -p ebpf-switch reference entries_are`.
//!
//! `takeover` then moves no flow in an upgrade by one release.

use crate::layout::LAYOUT;

/// The programs of a release, and what it can take over. A test starts a switch as another release.
#[derive(Clone, Copy, Debug)]
pub struct Release {
    /// As clang has compiled them.
    pub object: &'static [u8],
    /// The number of the layout that they have.
    pub layout: u64,
    /// The layout before.
    pub before: Option<Before>,
}

/// How maps of the layout before are read.
#[derive(Clone, Copy, Debug)]
pub struct Before {
    /// Its number.
    pub layout: u64,
    /// An entry of a map of that layout, in the words of this one: the map's name, key and value. [`None`]: what is in
    /// the entry cannot be.
    pub entry: fn(map: &str, key: &[u8], value: &[u8]) -> Option<Entry>,
}

/// The bytes of a key and of a value.
pub type Entry = (Vec<u8>, Vec<u8>);

impl Release {
    /// This one. No release had this driver before, so there is no layout before.
    pub const THIS: Release = Release {
        object: OBJECT,
        layout: LAYOUT,
        before: None,
    };

    /// What can be taken over, in words.
    pub(crate) fn reads(&self) -> String {
        let before = self
            .before
            .map_or_else(String::new, |before| format!(" and {}", before.layout));
        format!("{}{before}", self.layout)
    }
}

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/switch.o"));
