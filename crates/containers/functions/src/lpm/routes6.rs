//! The longest prefix among a million of IPv6: a static search tree over the upper halves of addresses.
//!
//! Prefixes are ranges that do not overlap, so a lookup is the search for the last start that is not above the address.
//! A node of eight starts is one line of the cache and divides by nine, whatever the prefixes' lengths are: a million
//! routes are seven lines, of which the upper four are in the cache of one core. A trie reads as many for prefixes of 48
//! bits, in tables that are many times larger, and more for longer ones. The layout is the static B-tree of Khuong and
//! Morin, "Array Layouts for Comparison-Based Searching", JEA 2017. All searches of a burst go down together.
//!
//! Prefixes beyond 64 bits are rare: those of one upper half are searched by their lower halves.

use simd::{Kernel, Level, Words};

use super::routes4::LOOKUPS_LIMIT;
use super::{NO_ROUTE, Range};

/// Starts of a node.
const KEYS: usize = 8;
/// Above every upper half that is searched.
const NOWHERE: u64 = u64::MAX;
/// Set in a value that is the number of a list of lower halves.
const LIST: u32 = 1 << 31;

#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Node([u64; KEYS]);

/// A value for each address, compiled from ranges.
#[derive(Clone, Debug)]
pub struct Routes6 {
    /// The levels of the tree one after the other, the root first. Child c of a level's node n is node 9n + c of the next.
    nodes: Vec<Node>,
    /// Where each level starts.
    levels: Vec<usize>,
    /// For each key of the last level, counted from 1, the value of its range; the first is that of addresses before all.
    values: Vec<u32>,
    /// The value of the last upper half, which is not in the tree.
    last: u32,
    /// For each list where its ranges start, and where they end.
    lists: Vec<(u32, u32)>,
    /// Lower halves where ranges start, in ascending order in each list, and their values.
    lower: Vec<(u64, u32)>,
    level: Level,
}

impl Routes6 {
    /// Compiles ranges as [`flatten`](super::flatten) returns them for prefixes of IPv6 and values below 2^31, with
    /// [`NO_ROUTE`] where no prefix is.
    pub fn new(ranges: &[Range<u32>]) -> Routes6 {
        let mut routes = Routes6 {
            nodes: Vec::new(),
            levels: Vec::new(),
            values: vec![NO_ROUTE],
            last: NO_ROUTE,
            lists: Vec::new(),
            lower: Vec::new(),
            level: Level::detect(),
        };
        let mut keys: Vec<u64> = Vec::new();
        let mut value = NO_ROUTE;
        let mut at = 0;
        while let Some(range) = ranges.get(at) {
            let upper = (range.start >> 64) as u64;
            let same = ranges[at..]
                .iter()
                .take_while(|r| (r.start >> 64) as u64 == upper)
                .count();
            let of_upper = &ranges[at..at + same];
            at += same;
            let is_whole = same == 1 && range.start as u64 == 0;
            if is_whole {
                value = range.value;
                keys.push(upper);
                routes.values.push(value);
                continue;
            }
            let first = routes.lower.len() as u32;
            if range.start as u64 != 0 {
                routes.lower.push((0, value));
            }
            routes
                .lower
                .extend(of_upper.iter().map(|r| (r.start as u64, r.value)));
            keys.push(upper);
            routes.values.push(LIST | routes.lists.len() as u32);
            routes.lists.push((first, routes.lower.len() as u32));
            value = of_upper.last().map_or(value, |r| r.value);
            // The range goes on behind this upper half.
            let next = ranges.get(at).map(|r| (r.start >> 64) as u64);
            if let Some(after) = upper.checked_add(1)
                && next != Some(after)
            {
                keys.push(after);
                routes.values.push(value);
            }
        }
        routes.last = routes.values.last().copied().unwrap_or(NO_ROUTE);
        if keys.last() == Some(&NOWHERE) {
            keys.pop();
            routes.values.pop();
        }
        routes.build(&keys);
        routes
    }

    /// Builds the tree from the last level upwards.
    fn build(&mut self, keys: &[u64]) {
        let mut levels = vec![keys.to_vec()];
        // The lowest key below each node of the level.
        let mut lowest: Vec<u64> = keys
            .chunks(KEYS)
            .filter_map(|node| node.first().copied())
            .collect();
        while lowest.len() > 1 {
            let mut level = Vec::new();
            for children in lowest.chunks(KEYS + 1) {
                // Beyond the last child there is nothing, and no search goes there.
                let mut node = [NOWHERE; KEYS];
                node[..children.len() - 1].copy_from_slice(&children[1..]);
                level.extend(node);
            }
            lowest = lowest
                .chunks(KEYS + 1)
                .filter_map(|children| children.first().copied())
                .collect();
            levels.push(level);
        }
        for level in levels.iter().rev() {
            self.levels.push(self.nodes.len());
            for keys in level.chunks(KEYS) {
                let mut node = Node([NOWHERE; KEYS]);
                node.0[..keys.len()].copy_from_slice(keys);
                self.nodes.push(node);
            }
        }
        // Places of the last level that no key fills.
        let places = levels[0].len().next_multiple_of(KEYS) + 1;
        let last = self.values.last().copied().unwrap_or(NO_ROUTE);
        self.values.resize(places, last);
    }

    /// Writes the value of each address, at most [`LOOKUPS_LIMIT`] and as many as `values`.
    #[inline]
    pub fn lookup(&self, addresses: &[u128], values: &mut [u32]) {
        let len = addresses.len().min(values.len()).min(LOOKUPS_LIMIT);
        self.level.run(Lookup {
            routes: self,
            addresses: &addresses[..len],
            values: &mut values[..len],
        });
    }

    #[inline(never)]
    fn in_list(&self, list: u32, lower: u64) -> u32 {
        let (from, to) = self.lists[list as usize];
        let list = &self.lower[from as usize..to as usize];
        let at = list.partition_point(|&(start, _)| start <= lower);
        list[..at].last().map_or(NO_ROUTE, |&(_, value)| value)
    }

    /// Bytes of its tables.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.nodes)
            + size_of_val(&*self.values)
            + size_of_val(&*self.lists)
            + size_of_val(&*self.lower)
    }
}

/// The values of at most [`LOOKUPS_LIMIT`] addresses.
struct Lookup<'a> {
    routes: &'a Routes6,
    addresses: &'a [u128],
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
        let mut places = [0_usize; LOOKUPS_LIMIT];
        let mut levels = routes.levels.iter().peekable();
        while let Some(&level) = levels.next() {
            let next = levels.peek().copied().copied();
            for (address, place) in addresses.iter().zip(&mut places) {
                let key = ((address >> 64) as u64).min(NOWHERE - 1);
                let node = &routes.nodes[level + *place].0;
                let not_above: usize = node.iter().map(|&start| usize::from(start <= key)).sum();
                match next {
                    Some(next) => {
                        *place = *place * (KEYS + 1) + not_above;
                        simd::prefetch_at(&routes.nodes, next + *place);
                    }
                    None => {
                        *place = *place * KEYS + not_above;
                        simd::prefetch_at(&routes.values, *place);
                    }
                }
            }
        }
        for ((address, place), value) in addresses.iter().zip(places).zip(values) {
            let mut found = routes.values[place];
            if (address >> 64) as u64 == NOWHERE {
                found = routes.last;
            }
            if found & LIST != 0 && found != NO_ROUTE {
                found = routes.in_list(found & !LIST, *address as u64);
            }
            *value = found;
        }
    }
}
