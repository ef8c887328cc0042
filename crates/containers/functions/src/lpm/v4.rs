//! Classes of IPv4 addresses: two tables of 16 and 8 bits, then the ranges of the last 8 bits, always read one after the
//! other.
//!
//! The ranges of a network of 24 bits are in a line of the cache, which is searched by one comparison of vectors. A table
//! of 256 classes would be eight lines: with ten thousand prefixes these are more than a second-level cache holds.
//! Networks of one class share what they read, so that a lookup has no branch: a mispredicted one costs as much as all
//! three reads of a burst whose reads overlap. Routers, with a million prefixes, need another structure.

use std::collections::HashMap;

use super::Range;

/// Entries of a table below the first one.
const NODE: usize = 256;
/// Ranges in a line.
const RANGES: usize = 16;
/// The bits of an address that choose one of the lines of a network with more ranges: each is for as many addresses as it
/// has ranges.
const DIVIDED: u32 = 0xf0;

/// The ranges of a network, or of a sixteenth of one.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Line {
    /// The last 8 bits with which each range starts, in ascending order; 255 behind the last one.
    starts: [u8; RANGES],
    /// The class of each; that of the last one behind it.
    classes: [u16; RANGES],
}

impl Line {
    /// Of ranges, the first of which is not above any address that is searched for.
    fn new(ranges: &[(u8, u16)]) -> Line {
        let last = ranges.last().map_or(0, |&(_, class)| class);
        let mut line = Line {
            starts: [u8::MAX; RANGES],
            classes: [last; RANGES],
        };
        for (at, &(start, class)) in ranges.iter().take(RANGES).enumerate() {
            (line.starts[at], line.classes[at]) = (start, class);
        }
        line
    }
}

/// The class of each address, compiled from ranges.
#[derive(Clone, Debug)]
pub struct Classes4 {
    /// For each value of the upper 16 bits the start of its table in `middle`.
    root: Vec<u32>,
    /// For each value of the next 8 bits the number of its line in the bits from 8 on, and which bits of the address are
    /// added to it.
    middle: Vec<u32>,
    last: Vec<Line>,
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
        let mut lines_of_class = HashMap::new();
        for upper in 0..1_u32 << 16 {
            let start = upper << 16;
            if let Some(class) = ranges.only_class(start, start | 0xffff) {
                let middle = *middles_of_class.entry(class).or_insert_with(|| {
                    let line = compiled.line_of_class(&mut lines_of_class, class);
                    compiled.middle.resize(compiled.middle.len() + NODE, line);
                    (compiled.middle.len() - NODE) as u32
                });
                compiled.root.push(middle);
                continue;
            }
            compiled.root.push(compiled.middle.len() as u32);
            for start in (start..=start | 0xffff).step_by(NODE) {
                let line = match ranges.only_class(start, start | 0xff) {
                    Some(class) => compiled.line_of_class(&mut lines_of_class, class),
                    None => compiled.lines(std::array::from_fn(|at| ranges.class(start | at as u32))),
                };
                compiled.middle.push(line);
            }
        }
        compiled
    }

    /// The entry of networks of one class.
    fn line_of_class(&mut self, known: &mut HashMap<u16, u32>, class: u16) -> u32 {
        *known.entry(class).or_insert_with(|| self.lines([class; NODE]))
    }

    /// Adds the lines of a network, by the classes of its addresses. Returns its entry.
    fn lines(&mut self, classes: [u16; NODE]) -> u32 {
        let first = (self.last.len() as u32) << 8;
        let ranges = |addresses: std::ops::Range<usize>| -> Vec<(u8, u16)> {
            let from = addresses.start;
            let starts = addresses.filter(|&at| at == from || classes[at] != classes[at - 1]);
            starts.map(|at| (at as u8, classes[at])).collect()
        };
        let all = ranges(0..NODE);
        if all.len() <= RANGES {
            self.last.push(Line::new(&all));
            return first;
        }
        for from in (0..NODE).step_by(RANGES) {
            self.last.push(Line::new(&ranges(from..from + RANGES)));
        }
        first | DIVIDED
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
        let entry = self.middle[first as usize];
        let line = (entry >> 8) + ((entry & address & DIVIDED) >> 4);
        simd::prefetch_at(&self.last, line as usize);
        line
    }

    /// The class of an address, with the result of the second read.
    #[inline(always)]
    pub fn class(&self, address: u32, second: u32) -> u16 {
        let line = &self.last[second as usize];
        line.classes[simd::last_not_above(&line.starts, address as u8)]
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
