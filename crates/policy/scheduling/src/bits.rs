use model::Slot;

const WORDS: usize = Slot::LIMIT / Bits::OF_WORD;

/// A set of indices below [`Slot::LIMIT`].
#[derive(Clone, Debug)]
pub(crate) struct Bits([u64; WORDS]);

impl Bits {
    /// Indices per word.
    pub(crate) const OF_WORD: usize = 64;

    pub(crate) const fn new() -> Bits {
        Bits([0; WORDS])
    }

    pub(crate) fn clear(&mut self) {
        self.0 = [0; WORDS];
    }

    #[inline]
    pub(crate) fn put(&mut self, index: usize, is_in: bool) {
        if let Some(word) = self.0.get_mut(index / 64) {
            *word = *word & !(1 << (index % 64)) | u64::from(is_in) << (index % 64);
        }
    }

    /// Sets the membership of one word's indices, from `index` times [`Bits::OF_WORD`] on; the lowest bit is
    /// the first.
    #[inline]
    pub(crate) fn put_word(&mut self, index: usize, bits: u64) {
        if let Some(word) = self.0.get_mut(index) {
            *word = bits;
        }
    }

    #[inline]
    pub(crate) fn get(&self, index: usize) -> bool {
        self.0
            .get(index / 64)
            .is_some_and(|word| word >> (index % 64) & 1 != 0)
    }

    /// The first index in the set from `start` on, wrapping to 0, for indices below `len`.
    #[inline]
    pub(crate) fn next(&self, start: usize, len: usize) -> Option<usize> {
        let words = self.0.get(..len.div_ceil(64))?;
        let first = start / 64;
        let mut mask = u64::MAX << (start % 64);
        for (index, word) in words.iter().enumerate().skip(first) {
            let found = word & mask;
            if found != 0 {
                return Some(index * 64 + found.trailing_zeros() as usize);
            }
            mask = u64::MAX;
        }
        let (index, word) = words.iter().enumerate().find(|(_, word)| **word != 0)?;
        Some(index * 64 + word.trailing_zeros() as usize)
    }
}
