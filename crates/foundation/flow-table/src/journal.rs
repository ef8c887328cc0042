//! Changes of several words that belong together: one line of the header says what the words will be, until they are.
//! A process that attaches the table does again what is written there.
//!
//! Only rare changes take this way: moving a flow to another instance, a new connection in a closed one's entry, and
//! a counter that carries. A packet of a known flow changes words that need not agree, and a new flow counts when its
//! first word is stored.

use crate::entry::{PORTS_MASK, State, protocol_of};
use crate::region::Region;
use crate::{Line, store};

/// The journal's line.
const AT: usize = 4;
const TAG: usize = 0;
/// Where the entry's first four words are.
const HEAD: usize = 1;
/// Where two words are whose meaning the kind tells.
const MORE: usize = 5;

/// What changes beside the first three words of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum More {
    /// When each direction was pinned, as the table stores it.
    Pinned(u64),
    /// The upper bits of each direction's counters.
    Carries([u64; 2]),
    /// Returned and dropped packets start at zero.
    Restarted,
}

/// An entry's words after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) family: usize,
    pub(crate) entry: u32,
    /// Its first four words; the key in them is the one that it has.
    pub(crate) head: [u64; 4],
    pub(crate) more: More,
}

impl Change {
    /// Makes the change, so that it is made as a whole even if the process is killed meanwhile.
    pub(crate) fn make(&self, region: &Region, lines: &mut [Line]) {
        let (kind, more) = match self.more {
            More::Pinned(word) => (1, [word, 0]),
            More::Carries(words) => (2, words),
            More::Restarted => (3, [0, 0]),
        };
        let words = &mut lines[AT].0;
        words[HEAD..MORE].copy_from_slice(&self.head);
        words[MORE..MORE + 2].copy_from_slice(&more);
        let tag = kind | (self.family as u64) << 8 | u64::from(self.entry) << 32;
        store::last(&mut words[TAG], tag);
        self.store(region, lines);
        clear(lines);
    }

    /// Stores the words. Doing so twice is doing so once.
    fn store(&self, region: &Region, lines: &mut [Line]) {
        match self.more {
            More::Pinned(word) => region.set_pinned(lines, self.entry, word),
            More::Carries(carries) => {
                for (direction, carry) in carries.into_iter().enumerate() {
                    region.set_carry(lines, self.entry, direction, carry);
                }
            }
            More::Restarted => {
                if let Some(returns) = region.returns_mut(lines, self.entry) {
                    returns.fill(0);
                }
            }
        }
        *region.head_mut(lines, self.entry) = self.head;
    }

    /// The change that was under way when the table was left, if there is one that is possible.
    pub(crate) fn under_way(lines: &[Line], regions: &[Region; 2]) -> Option<Change> {
        let [tag, h0, h1, h2, h3, m0, m1, _] = lines[AT].0;
        let more = match tag as u8 {
            1 => More::Pinned(m0),
            2 => More::Carries([m0, m1]),
            3 => More::Restarted,
            _ => return None,
        };
        let (family, entry) = ((tag >> 8 & 0xff) as usize, (tag >> 32) as u32);
        let region = regions.get(family)?;
        if entry >= region.high_water() {
            return None;
        }
        // The key never changes with the rest, so that another one shows a line that does not belong to the entry.
        let found = region.head(lines, entry);
        let is_its = (found[0] ^ h0) & PORTS_MASK == 0 && found[3] == h3;
        let is_possible = State::of(h0).is_valid(protocol_of(h0)) && !State::of(found[0]).is_free();
        (is_its && is_possible).then_some(Change {
            family,
            entry,
            head: [h0, h1, h2, h3],
            more,
        })
    }
}

fn clear(lines: &mut [Line]) {
    store::last(&mut lines[AT].0[TAG], 0);
}

/// Does again what was under way. Returns whether something was.
pub(crate) fn redo(lines: &mut [Line], regions: &[Region; 2]) -> bool {
    let change = Change::under_way(lines, regions);
    if let Some(change) = change {
        change.store(&regions[change.family], lines);
    }
    clear(lines);
    change.is_some()
}
