//! The longest prefix among a million of IPv4: two nodes of 256 places at most, each a bitmap and a run of values.
//!
//! A node divides addresses by 8 bits. Its bitmap marks the places whose value differs from the one before; the number
//! of marks up to a place is the position of its value. So a node is one line of the cache, and a value is read once
//! more, where a direct table of 24 bits (Gupta, Lin, McKeown, "Routing Lookups in Hardware at Memory Access Speeds",
//! INFOCOM 1998) reads once from 32 to 64 MB. For a million routes these tables are some 10 MB: they stay in the cache,
//! and their pages in the translation cache. Bitmaps of this kind are those of Degermark et al., "Small Forwarding Tables
//! for Fast Routing Lookups", SIGCOMM 1997, and Asai and Ohara, "Poptrie", SIGCOMM 2015; the fixed depth spares their
//! branches.

use simd::{Kernel, Level, Words};

use super::{NO_ROUTE, Range};

/// Addresses of one lookup.
pub const LOOKUPS_LIMIT: usize = 64;

/// Places of a node.
const PLACES: u32 = 256;
/// Set in a value that is the number of a node for the last 8 bits.
const NODE: u32 = 1 << 31;

/// 256 places in runs of equal values.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Node {
    /// Marks the places where a run starts.
    starts: [u64; 4],
    /// For each word of the bitmap the position of the value that is before its first mark.
    before: [u32; 4],
}

/// A value for each address, compiled from ranges.
#[derive(Clone, Debug)]
pub struct Routes4 {
    /// A node for each value of the upper 16 bits, then those for the last 8 bits.
    nodes: Vec<Node>,
    values: Vec<u32>,
    /// With POPCNT the marks of a word are counted in one instruction, else in about twelve.
    level: Level,
}

impl Routes4 {
    /// Compiles ranges as [`flatten`](super::flatten) returns them for prefixes of IPv4 and values below 2^31, with
    /// [`NO_ROUTE`] where no prefix is.
    pub fn new(ranges: &[Range<u32>]) -> Routes4 {
        let ranges: Vec<(u32, u32)> = ranges.iter().map(|r| ((r.start >> 96) as u32, r.value)).collect();
        let mut ranges = Cursor {
            later: &ranges,
            value: NO_ROUTE,
        };
        let mut routes = Routes4 {
            nodes: Vec::with_capacity(1 << 16),
            values: Vec::new(),
            level: Level::detect(),
        };
        let mut lasts = Vec::new();
        for upper in 0..1_u32 << 16 {
            let mut places = [NO_ROUTE; PLACES as usize];
            for (place, value) in (0_u32..).zip(&mut places) {
                let first = upper << 16 | place << 8;
                *value = ranges.value(first);
                if ranges.changes_until(first | 0xff) {
                    let addresses = first..=first | 0xff;
                    let mut last = [NO_ROUTE; PLACES as usize];
                    for (address, value) in addresses.zip(&mut last) {
                        *value = ranges.value(address);
                    }
                    *value = NODE | ((1 << 16) + lasts.len() as u32);
                    lasts.push(last);
                }
            }
            routes.push(&places);
        }
        for last in &lasts {
            routes.push(last);
        }
        routes
    }

    fn push(&mut self, places: &[u32; PLACES as usize]) {
        let mut node = Node {
            starts: [0; 4],
            before: [0; 4],
        };
        let mut previous = None;
        for (place, &value) in places.iter().enumerate() {
            if place % 64 == 0 {
                // Wraps before the first value of all, and back where it is used.
                node.before[place / 64] = (self.values.len() as u32).wrapping_sub(1);
            }
            if previous != Some(value) {
                node.starts[place / 64] |= 1 << (place % 64);
                self.values.push(value);
                previous = Some(value);
            }
        }
        self.nodes.push(node);
    }

    /// Writes the value of each address, at most [`LOOKUPS_LIMIT`] and as many as `values`.
    #[inline]
    pub fn lookup(&self, addresses: &[u32], values: &mut [u32]) {
        let len = addresses.len().min(values.len()).min(LOOKUPS_LIMIT);
        self.level.run(Lookup {
            routes: self,
            addresses: &addresses[..len],
            values: &mut values[..len],
        });
    }

    #[inline(always)]
    fn position(&self, node: usize, place: u32) -> u32 {
        let node = &self.nodes[node];
        let word = (place / 64) as usize;
        let marks = node.starts[word] & (u64::MAX >> (63 - place % 64));
        node.before[word].wrapping_add(marks.count_ones())
    }

    /// Bytes of its tables.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.nodes) + size_of_val(&*self.values)
    }
}

/// The values of at most [`LOOKUPS_LIMIT`] addresses.
struct Lookup<'a> {
    routes: &'a Routes4,
    addresses: &'a [u32],
    values: &'a mut [u32],
}

impl Kernel for Lookup<'_> {
    type Output = ();

    #[inline(always)]
    fn run<W: Words>(self) {
        let Lookup {
            routes,
            addresses,
            values,
        } = self;
        for address in addresses {
            simd::prefetch_at(&routes.nodes, (address >> 16) as usize);
        }
        // First where each value is, then the value.
        for (address, value) in addresses.iter().zip(&mut *values) {
            let position = routes.position((address >> 16) as usize, address >> 8 & 0xff);
            simd::prefetch_at(&routes.values, position as usize);
            *value = position;
        }
        for (address, value) in addresses.iter().zip(values) {
            let mut found = routes.values[*value as usize];
            // Longer prefixes than 24 bits are rare among routes, or on hosts' own networks.
            if found & NODE != 0 && found != NO_ROUTE {
                let position = routes.position((found & !NODE) as usize, address & 0xff);
                found = routes.values[position as usize];
            }
            *value = found;
        }
    }
}

/// Ranges, consumed in ascending order.
struct Cursor<'a> {
    later: &'a [(u32, u32)],
    value: u32,
}

impl Cursor<'_> {
    /// The value of an address that is not below the last one.
    fn value(&mut self, address: u32) -> u32 {
        while let Some((&(start, value), later)) = self.later.split_first()
            && start <= address
        {
            (self.value, self.later) = (value, later);
        }
        self.value
    }

    /// Whether another range starts up to an address.
    fn changes_until(&self, last: u32) -> bool {
        self.later.first().is_some_and(|&(start, _)| start <= last)
    }
}
