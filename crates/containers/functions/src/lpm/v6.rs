//! Classes of IPv6 addresses: a direct table of the upper 16 bits, and sorted ranges below it.

use super::Range;

/// Bits of an address that the direct table consumes.
const ROOT_BITS: u32 = 16;

/// The class of each address, compiled from ranges.
#[derive(Clone, Debug)]
pub struct Classes6 {
    /// For each value of the upper bits: where its ranges start, shifted by 5, and the binary logarithm of their number.
    root: Vec<u32>,
    /// Where each range starts.
    starts: Vec<u128>,
    /// The class of each range.
    classes: Vec<u16>,
}

impl Classes6 {
    /// Compiles ranges as [`flatten`](super::flatten) returns them, for prefixes of IPv6.
    pub fn new(ranges: &[Range<u16>]) -> Classes6 {
        let mut compiled = Classes6 {
            root: Vec::with_capacity(1 << ROOT_BITS),
            starts: Vec::new(),
            classes: Vec::new(),
        };
        let mut next = 0;
        let mut class = 0;
        let mut single = None;
        for chunk in 0..1_u128 << ROOT_BITS {
            let first = chunk << (128 - ROOT_BITS);
            let last = first | u128::MAX >> ROOT_BITS;
            let at = compiled.starts.len();
            if ranges.get(next).is_none_or(|range| range.start != first) {
                compiled.starts.push(first);
                compiled.classes.push(class);
            }
            while let Some(range) = ranges.get(next)
                && range.start <= last
            {
                compiled.starts.push(range.start);
                compiled.classes.push(range.value);
                class = range.value;
                next += 1;
            }
            let len = compiled.starts.len() - at;
            if len == 1 {
                if let Some((entry, of)) = single
                    && of == class
                {
                    compiled.starts.truncate(at);
                    compiled.classes.truncate(at);
                    compiled.root.push(entry);
                    continue;
                }
                single = Some(((at as u32) << 5, class));
            }
            let filled = len.next_power_of_two();
            let (start, class) = (compiled.starts[at + len - 1], compiled.classes[at + len - 1]);
            compiled.starts.resize(at + filled, start);
            compiled.classes.resize(at + filled, class);
            compiled.root.push((at as u32) << 5 | filled.trailing_zeros());
        }
        compiled
    }

    /// Prefetches what [`first`](Classes6::first) reads.
    #[inline(always)]
    pub fn prefetch(&self, address: u128) {
        simd::prefetch_at(&self.root, (address >> (128 - ROOT_BITS)) as usize);
    }

    /// The first read; prefetches the middle of the ranges.
    #[inline(always)]
    pub fn first(&self, address: u128) -> u32 {
        let entry = self.root[(address >> (128 - ROOT_BITS)) as usize];
        simd::prefetch_at(
            &self.starts,
            (entry >> 5) as usize + ((1_usize << (entry & 31)) >> 1),
        );
        entry
    }

    /// The search, with the result of the first read; prefetches for [`class`](Classes6::class).
    #[inline(always)]
    pub fn second(&self, address: u128, first: u32) -> u32 {
        let mut at = (first >> 5) as usize;
        let mut step = (1_usize << (first & 31)) >> 1;
        while step > 0 {
            at += if self.starts[at + step] <= address {
                step
            } else {
                0
            };
            step >>= 1;
        }
        simd::prefetch_at(&self.classes, at);
        at as u32
    }

    /// The class of an address, with the result of the search.
    #[inline(always)]
    pub fn class(&self, _address: u128, second: u32) -> u16 {
        self.classes[second as usize]
    }

    /// Bytes of its tables.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.root) + size_of_val(&*self.starts) + size_of_val(&*self.classes)
    }
}
