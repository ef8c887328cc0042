//! Classes of IPv4 addresses: three tables of 16, 8 and 8 bits, always read one after the other.
//!
//! Ranges of one class share tables that hold nothing else, so that a lookup has no branch: a mispredicted one costs as
//! much as all three reads of a burst whose reads overlap. For some ten thousand prefixes this takes a few megabytes at
//! most; routers, with a million, need another structure.

use std::collections::HashMap;

use super::Range;

/// Entries of a table below the first one.
const NODE: usize = 256;

/// The class of each address, compiled from ranges.
#[derive(Clone, Debug)]
pub struct Classes4 {
    /// For each value of the upper 16 bits the start of its table in `middle`.
    root: Vec<u32>,
    /// For each value of the next 8 bits the start of its table in `last`.
    middle: Vec<u32>,
    /// For each value of the last 8 bits the class.
    last: Vec<u16>,
}

impl Classes4 {
    /// Compiles ranges as [`flatten`](super::flatten) returns them, for prefixes of IPv4.
    pub fn new(ranges: &[Range<u16>]) -> Classes4 {
        let mut compiled = Classes4 {
            root: Vec::with_capacity(1 << 16),
            middle: Vec::new(),
            last: Vec::new(),
        };
        let ranges: Vec<(u32, u16)> = ranges.iter().map(|r| ((r.start >> 96) as u32, r.value)).collect();
        let mut ranges = Cursor {
            ranges: &ranges,
            class: 0,
        };
        let mut middles_of_class = HashMap::new();
        let mut lasts_of_class = HashMap::new();
        for upper in 0..1_u32 << 16 {
            let start = upper << 16;
            if let Some(class) = ranges.only_class(start, start | 0xffff) {
                let middle = *middles_of_class.entry(class).or_insert_with(|| {
                    let last = compiled.last_of_class(&mut lasts_of_class, class);
                    compiled.middle.resize(compiled.middle.len() + NODE, last);
                    (compiled.middle.len() - NODE) as u32
                });
                compiled.root.push(middle);
                continue;
            }
            compiled.root.push(compiled.middle.len() as u32);
            for start in (start..=start | 0xffff).step_by(NODE) {
                let last = match ranges.only_class(start, start | 0xff) {
                    Some(class) => compiled.last_of_class(&mut lasts_of_class, class),
                    None => {
                        let at = compiled.last.len() as u32;
                        compiled
                            .last
                            .extend((start..=start | 0xff).map(|address| ranges.class(address)));
                        at
                    }
                };
                compiled.middle.push(last);
            }
        }
        compiled
    }

    fn last_of_class(&mut self, known: &mut HashMap<u16, u32>, class: u16) -> u32 {
        *known.entry(class).or_insert_with(|| {
            self.last.resize(self.last.len() + NODE, class);
            (self.last.len() - NODE) as u32
        })
    }

    /// Prefetches what [`first`](Classes4::first) reads.
    #[inline(always)]
    pub fn prefetch(&self, address: u32) {
        simd::prefetch_at(&self.root, (address >> 16) as usize);
    }

    /// The first read; prefetches for [`second`](Classes4::second).
    #[inline(always)]
    pub fn first(&self, address: u32) -> u32 {
        let place = self.root[(address >> 16) as usize] + (address >> 8 & 0xff);
        simd::prefetch_at(&self.middle, place as usize);
        place
    }

    /// The second read, with the result of the first one; prefetches for [`class`](Classes4::class).
    #[inline(always)]
    pub fn second(&self, address: u32, first: u32) -> u32 {
        let place = self.middle[first as usize] + (address & 0xff);
        simd::prefetch_at(&self.last, place as usize);
        place
    }

    /// The class of an address, with the result of the second read.
    #[inline(always)]
    pub fn class(&self, _address: u32, second: u32) -> u16 {
        self.last[second as usize]
    }

    /// Bytes of its tables.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.root) + size_of_val(&*self.middle) + size_of_val(&*self.last)
    }
}

/// Ranges, consumed in ascending order.
struct Cursor<'a> {
    /// The ranges that start later.
    ranges: &'a [(u32, u16)],
    class: u16,
}

impl Cursor<'_> {
    /// The class of an address that is not below the last one.
    fn class(&mut self, address: u32) -> u16 {
        while let Some((&(start, class), later)) = self.ranges.split_first()
            && start <= address
        {
            (self.class, self.ranges) = (class, later);
        }
        self.class
    }

    /// The class of all addresses from the first to the last, if it is the same.
    fn only_class(&mut self, first: u32, last: u32) -> Option<u16> {
        let class = self.class(first);
        self.ranges
            .first()
            .is_none_or(|&(start, _)| start > last)
            .then_some(class)
    }
}
