//! Values by key, in a bounded number of blocks; the ones used least recently go first.

use std::hash::Hasher as _;

use model::mix;
use siphasher::sip::SipHasher13;

/// Bytes of a block. A value of 64 bytes with a short key needs one.
const BLOCK: usize = 128;
/// Bytes that a block takes, with what describes it: see `Item`, and two places in the table.
pub(super) const BLOCK_COST: usize = BLOCK + size_of::<Item>() + 3 * size_of::<u32>();
/// No item, no block.
const NONE: u32 = u32::MAX;

/// When an item without an end ends, in nanoseconds of the monotonic clock.
pub(super) const NEVER: u64 = u64::MAX;

/// What there is to know of a value. Its number is that of its first block.
#[derive(Clone, Copy, Debug)]
struct Item {
    hash: u64,
    /// From then on it is not there.
    ends: u64,
    unique: u64,
    flags: u32,
    value_len: u32,
    /// The next one of its place in the table.
    chain: u32,
    /// Its neighbours in the order of use.
    newer: u32,
    older: u32,
    key_len: u8,
}

const NO_ITEM: Item = Item {
    hash: 0,
    ends: 0,
    unique: 0,
    flags: 0,
    value_len: 0,
    chain: NONE,
    newer: NONE,
    older: NONE,
    key_len: 0,
};

/// An item that was found, until the next one is stored or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found(u32);

/// What has happened since the store was made.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    /// Items that had to go for others.
    pub(super) evictions: u64,
    /// Items whose time was over, or that were flushed, when somebody met them.
    pub(super) expired: u64,
    /// Items that were stored.
    pub(super) stored: u64,
}

#[derive(Debug)]
pub(super) struct Store {
    blocks: Box<[[u8; BLOCK]]>,
    /// The block behind each one: of its item, or of those that are free.
    next: Box<[u32]>,
    items: Box<[Item]>,
    table: Box<[u32]>,
    free: u32,
    free_len: usize,
    newest: u32,
    oldest: u32,
    len: usize,
    /// The number of the last change: an item has that of its own.
    unique: u64,
    /// Items up to this number are not there.
    flushed: u64,
    /// When the next flush is due.
    flush_at: u64,
    secret: [u64; 2],
    pub(super) counts: Counts,
}

impl Store {
    /// One that takes about `bytes` bytes of memory, in whole.
    pub(super) fn new(bytes: usize, seed: u64) -> Store {
        let count = (bytes / BLOCK_COST).clamp(1, NONE as usize - 1);
        let next = (1..count as u32).chain([NONE]).collect();
        Store {
            blocks: vec![[0; BLOCK]; count].into_boxed_slice(),
            next,
            items: vec![NO_ITEM; count].into_boxed_slice(),
            table: vec![NONE; count.next_power_of_two()].into_boxed_slice(),
            free: 0,
            free_len: count,
            newest: NONE,
            oldest: NONE,
            len: 0,
            unique: 0,
            flushed: 0,
            flush_at: NEVER,
            secret: [mix(seed), mix(mix(seed))],
            counts: Counts::default(),
        }
    }

    /// Items that it has, also those whose time is over and that nobody has met since.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Items that it can have.
    pub(super) fn limit(&self) -> usize {
        self.items.len()
    }

    /// Bytes in blocks of items.
    pub(super) fn used_bytes(&self) -> u64 {
        ((self.items.len() - self.free_len) * BLOCK) as u64
    }

    fn hash(&self, key: &[u8]) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(self.secret[0], self.secret[1]);
        hasher.write(key);
        hasher.finish()
    }

    fn place(&self, hash: u64) -> usize {
        hash as usize & (self.table.len() - 1)
    }

    /// From then on, what was stored before is not there.
    pub(super) fn flush_at(&mut self, at: u64) {
        self.flush_at = at;
    }

    /// Does what is due. To be called before a request is looked at.
    pub(super) fn begin(&mut self, now: u64) {
        if self.flush_at <= now {
            self.flushed = self.unique;
            self.flush_at = NEVER;
        }
    }

    /// The value of a key, which is now the one used last.
    pub(super) fn get(&mut self, key: &[u8], now: u64) -> Option<Found> {
        let hash = self.hash(key);
        let mut at = self.table[self.place(hash)];
        while let Some(item) = self.items.get(at as usize).copied() {
            if item.hash == hash && self.has_key(at, &item, key) {
                if item.ends <= now || item.unique <= self.flushed {
                    self.counts.expired += 1;
                    self.remove(Found(at));
                    return None;
                }
                if self.newest != at {
                    self.unlink(at);
                    self.link(at);
                }
                return Some(Found(at));
            }
            at = item.chain;
        }
        None
    }

    fn has_key(&self, at: u32, item: &Item, key: &[u8]) -> bool {
        if usize::from(item.key_len) != key.len() {
            return false;
        }
        let mut rest = key;
        self.pieces(at, 0, key.len()).all(|piece| {
            let (here, behind) = rest.split_at(piece.len());
            rest = behind;
            here == piece
        })
    }

    /// The bytes `from..to` of an item's key and value, in the pieces in which they lie.
    fn pieces(&self, at: u32, from: usize, to: usize) -> impl Iterator<Item = &[u8]> {
        let mut block = at;
        let mut start = 0;
        std::iter::from_fn(move || {
            loop {
                if start >= to {
                    return None;
                }
                let bytes = self.blocks.get(block as usize)?;
                let (first, last) = (from.saturating_sub(start), (to - start).min(BLOCK));
                block = *self.next.get(block as usize)?;
                start += BLOCK;
                if first < last {
                    return bytes.get(first..last);
                }
            }
        })
    }

    /// Writes the value of an item into `out`. False, and nothing is written, if there is no room for it.
    pub(super) fn read(&self, found: Found, out: &mut [u8]) -> bool {
        let (key, value) = self.lengths(found);
        let Some(mut out) = out.get_mut(..value) else {
            return false;
        };
        for piece in self.pieces(found.0, key, key + value) {
            let Some((to, rest)) = std::mem::take(&mut out).split_at_mut_checked(piece.len()) else {
                return false;
            };
            to.copy_from_slice(piece);
            out = rest;
        }
        true
    }

    fn lengths(&self, found: Found) -> (usize, usize) {
        let item = self.items[found.0 as usize];
        (usize::from(item.key_len), item.value_len as usize)
    }

    /// Bytes of its value.
    pub(super) fn value_len(&self, found: Found) -> usize {
        self.lengths(found).1
    }

    pub(super) fn flags(&self, found: Found) -> u32 {
        self.items[found.0 as usize].flags
    }

    pub(super) fn unique(&self, found: Found) -> u64 {
        self.items[found.0 as usize].unique
    }

    pub(super) fn ends(&self, found: Found) -> u64 {
        self.items[found.0 as usize].ends
    }

    /// Gives an item another end.
    pub(super) fn touch(&mut self, found: Found, ends: u64) {
        self.items[found.0 as usize].ends = ends;
    }

    /// Removes an item.
    pub(super) fn remove(&mut self, found: Found) {
        let at = found.0;
        self.unlink(at);
        let item = self.items[at as usize];
        let place = self.place(item.hash);
        if self.table[place] == at {
            self.table[place] = item.chain;
        } else {
            let mut before = self.table[place];
            while let Some(of) = self.items.get_mut(before as usize) {
                if of.chain == at {
                    of.chain = item.chain;
                    break;
                }
                before = of.chain;
            }
        }
        let mut last = at;
        let mut count = 1;
        while let Some(&next) = self.next.get(last as usize)
            && next != NONE
        {
            last = next;
            count += 1;
        }
        self.next[last as usize] = self.free;
        self.free = at;
        self.free_len += count;
        self.len -= 1;
    }

    /// Stores the value of a key, in place of the one before. False, and nothing is changed, if it is longer than the
    /// whole store.
    pub(super) fn set(&mut self, key: &[u8], value: [&[u8]; 2], flags: u32, ends: u64, now: u64) -> bool {
        let value_len = value[0].len() + value[1].len();
        let needed = (key.len() + value_len).div_ceil(BLOCK).max(1);
        if needed > self.items.len() || key.len() > usize::from(u8::MAX) {
            return false;
        }
        if let Some(before) = self.get(key, now) {
            self.remove(before);
        }
        while self.free_len < needed {
            let oldest = self.items[self.oldest as usize];
            match oldest.ends <= now || oldest.unique <= self.flushed {
                true => self.counts.expired += 1,
                false => self.counts.evictions += 1,
            }
            self.remove(Found(self.oldest));
        }
        let at = self.free;
        let mut last = at;
        for _ in 1..needed {
            last = self.next[last as usize];
        }
        self.free = std::mem::replace(&mut self.next[last as usize], NONE);
        self.free_len -= needed;
        self.write(at, [key, value[0], value[1]]);
        self.unique += 1;
        let hash = self.hash(key);
        let place = self.place(hash);
        self.items[at as usize] = Item {
            hash,
            ends,
            unique: self.unique,
            flags,
            value_len: value_len as u32,
            chain: self.table[place],
            key_len: key.len() as u8,
            ..NO_ITEM
        };
        self.table[place] = at;
        self.link(at);
        self.len += 1;
        self.counts.stored += 1;
        true
    }

    fn write(&mut self, at: u32, parts: [&[u8]; 3]) {
        let (mut block, mut used) = (at, 0);
        for mut part in parts {
            while !part.is_empty() {
                if used == BLOCK {
                    (block, used) = (self.next[block as usize], 0);
                }
                let len = part.len().min(BLOCK - used);
                self.blocks[block as usize][used..used + len].copy_from_slice(&part[..len]);
                used += len;
                part = &part[len..];
            }
        }
    }

    /// Makes an item the one used last.
    fn link(&mut self, at: u32) {
        let item = &mut self.items[at as usize];
        (item.newer, item.older) = (NONE, self.newest);
        match self.items.get_mut(self.newest as usize) {
            Some(newest) => newest.newer = at,
            None => self.oldest = at,
        }
        self.newest = at;
    }

    fn unlink(&mut self, at: u32) {
        let Item { newer, older, .. } = self.items[at as usize];
        match self.items.get_mut(newer as usize) {
            Some(of) => of.older = older,
            None => self.newest = older,
        }
        match self.items.get_mut(older as usize) {
            Some(of) => of.newer = newer,
            None => self.oldest = newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Items from the oldest on: key, value, when it ends.
    type Model = Vec<(Vec<u8>, Vec<u8>, u64)>;

    fn blocks(key: &[u8], value: &[u8]) -> usize {
        (key.len() + value.len()).div_ceil(BLOCK).max(1)
    }

    proptest! {
        #[test]
        fn it_is_a_map_that_forgets_what_was_used_least_recently(
            steps in prop::collection::vec((0..5_u8, 0..12_u8, 0..700_usize, 1..40_u64), 1..300),
        ) {
            const BLOCKS: usize = 16;
            let mut store = Store::new(BLOCKS * BLOCK_COST, 3);
            let mut model = Model::new();
            let mut evictions = 0;
            for (now, (what, key, len, life)) in steps.into_iter().enumerate() {
                let now = now as u64;
                store.begin(now);
                let key = vec![key; 1 + usize::from(key)];
                match what {
                    0 | 1 => {
                        let value: Vec<u8> = (0..len).map(|at| (at + now as usize) as u8).collect();
                        model.retain(|of| of.0 != key);
                        let ends = now + life;
                        let (first, second) = value.split_at(len / 3);
                        prop_assert!(store.set(&key, [first, second], 7, ends, now));
                        let used = |model: &Model| model.iter().map(|of| blocks(&of.0, &of.1)).sum::<usize>();
                        while used(&model) + blocks(&key, &value) > BLOCKS {
                            let gone = model.remove(0);
                            evictions += u64::from(gone.2 > now);
                        }
                        model.push((key, value, ends));
                    }
                    2 => {
                        model.retain(|of| of.0 != key);
                        if let Some(found) = store.get(&key, now) {
                            store.remove(found);
                        }
                    }
                    3 if len == 0 => {
                        model.clear();
                        store.flush_at(now);
                        store.begin(now);
                    }
                    _ => {
                        let at = model.iter().position(|of| of.0 == key);
                        let expected = at.map(|at| model.remove(at)).filter(|of| of.2 > now);
                        let found = store.get(&key, now);
                        prop_assert_eq!(found.is_some(), expected.is_some());
                        if let (Some(found), Some(expected)) = (found, expected) {
                            let mut out = vec![0; expected.1.len()];
                            prop_assert!(store.read(found, &mut out));
                            prop_assert_eq!(&out, &expected.1);
                            prop_assert_eq!(store.value_len(found), out.len());
                            model.push(expected);
                        }
                    }
                }
                prop_assert!(store.free_len <= BLOCKS);
            }
            // A flush leaves items in place until somebody meets them.
            prop_assert!(store.len() >= model.len());
            prop_assert_eq!(store.counts.evictions, evictions);
            for (key, value, ends) in &model {
                let mut out = vec![0; value.len()];
                if let Some(found) = store.get(key, ends - 1) {
                    prop_assert!(store.read(found, &mut out));
                    prop_assert_eq!(&out, value);
                } else {
                    prop_assert!(false, "{key:?} is gone");
                }
                prop_assert_eq!(store.get(key, *ends), None);
            }
        }
    }
}
