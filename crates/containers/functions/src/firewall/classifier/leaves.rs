//! Few rules whose prefixes hold a header's addresses: which comes first by protocol and ports.

use std::collections::HashMap;

use super::{Fields, NO_RULE, TooComplex};

/// Rules of a leaf that is not divided: comparing four takes as long as a division.
pub(super) const LEAF_RULES: usize = 8;
/// Divisions on the way to a leaf.
const DEPTH_LIMIT: u32 = 24;
/// Rows of four rules: 64 MB.
const ROWS_LIMIT: usize = 1 << 20;
/// Rows of one leaf: what fits in its name.
const ROWS_OF_LEAF_LIMIT: usize = 256;
/// Ports and kind.
const FIELDS: usize = 3;

/// The leaf without rules.
pub(super) const NO_LEAF: u32 = 0;
/// Set in the name of a division. Other names have a row's number in the bits from 8 on, and how many rows follow it.
const DIVISION: u32 = 1 << 31;

/// The ranges of a rule's ports and kind, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bounds([(u16, u16); FIELDS]);

impl Bounds {
    const ALL: Bounds = Bounds([(0, u16::MAX); FIELDS]);

    pub(super) fn of(fields: &Fields) -> Bounds {
        Bounds([fields.src_ports, fields.dst_ports, fields.kinds()])
    }

    fn contains(&self, other: &Bounds) -> bool {
        self.0.iter().zip(&other.0).all(|(a, b)| a.0 <= b.0 && a.1 >= b.1)
    }

    /// What both hold; none if that is nothing.
    fn common(&self, other: &Bounds) -> Option<Bounds> {
        let mut common = *self;
        for (a, b) in common.0.iter_mut().zip(&other.0) {
            *a = (a.0.max(b.0), a.1.min(b.1));
            if a.0 > a.1 {
                return None;
            }
        }
        Some(common)
    }

    /// As a row of lower bounds for [`simd::reached`], with the rule's number in the words that every header reaches.
    fn row(&self, rule: u32) -> [u16; 8] {
        let [src, dst, kind] = self.0;
        [
            src.0,
            dst.0,
            kind.0,
            !src.1,
            !dst.1,
            !kind.1,
            rule as u16,
            (rule >> 16) as u16,
        ]
    }
}

/// A row that no header reaches: its lower bound of the source port exceeds its upper one.
const NO_RULE_ROW: [u16; 8] = [u16::MAX, 0, 0, u16::MAX, 0, 0, u16::MAX, u16::MAX];

/// Four rules in a cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Row([[u16; 8]; 4]);

/// Headers up to a value of a field go on at one place, the others at another one.
#[derive(Clone, Copy, Debug)]
struct Division {
    field: u8,
    last: u16,
    /// The leaf of values up to `last`, and that of the others.
    leaves: [u32; 2],
}

/// The leaves of a classifier.
#[derive(Debug)]
pub(super) struct Leaves {
    rows: Vec<Row>,
    divisions: Vec<Division>,
    /// The leaf of each list of rules.
    known: HashMap<Vec<u32>, u32>,
}

impl Leaves {
    pub(super) fn new() -> Leaves {
        Leaves {
            rows: vec![Row([NO_RULE_ROW; 4])],
            divisions: Vec::new(),
            known: HashMap::new(),
        }
    }

    /// The leaf of these rules, in ascending order.
    pub(super) fn leaf(&mut self, rules: &[u32], bounds: &[Bounds]) -> Result<u32, TooComplex> {
        if let Some(&leaf) = self.known.get(rules) {
            return Ok(leaf);
        }
        let boxes: Vec<(u32, Bounds)> = rules.iter().map(|&rule| (rule, bounds[rule as usize])).collect();
        let leaf = self.compile(&boxes, Bounds::ALL, 0)?;
        self.known.insert(rules.to_vec(), leaf);
        Ok(leaf)
    }

    /// Forgets what is needed only to compile.
    pub(super) fn finish(&mut self) {
        self.known = HashMap::new();
        self.rows.shrink_to_fit();
        self.divisions.shrink_to_fit();
    }

    /// Compiles rules for headers in a region.
    fn compile(&mut self, rules: &[(u32, Bounds)], region: Bounds, depth: u32) -> Result<u32, TooComplex> {
        // Rules that an earlier one hides in this region are left out, and all after one that holds the region.
        let mut kept: Vec<(u32, Bounds)> = Vec::new();
        for &(rule, bounds) in rules {
            let Some(common) = bounds.common(&region) else {
                continue;
            };
            if kept.iter().any(|(_, earlier)| earlier.contains(&common)) {
                continue;
            }
            kept.push((rule, common));
            if common == region {
                break;
            }
        }
        if kept.len() > LEAF_RULES
            && depth < DEPTH_LIMIT
            && let Some((field, last)) = best_division(&kept)
        {
            let (mut below, mut above) = (region, region);
            below.0[field].1 = last;
            above.0[field].0 = last + 1;
            let leaves = [
                self.compile(&kept, below, depth + 1)?,
                self.compile(&kept, above, depth + 1)?,
            ];
            let number = self.divisions.len() as u32;
            self.divisions.push(Division {
                field: field as u8,
                last,
                leaves,
            });
            return self.within_limit(DIVISION | number);
        }
        if kept.is_empty() {
            return Ok(NO_LEAF);
        }
        let first = self.rows.len();
        for rules in kept.chunks(4) {
            let mut row = [NO_RULE_ROW; 4];
            for (place, (rule, bounds)) in row.iter_mut().zip(rules) {
                *place = bounds.row(*rule);
            }
            self.rows.push(Row(row));
        }
        let more = self.rows.len() - first - 1;
        if more >= ROWS_OF_LEAF_LIMIT {
            return Err(TooComplex::Leaves {
                rows: more + 1,
                limit: ROWS_OF_LEAF_LIMIT,
            });
        }
        self.within_limit((first as u32) << 8 | more as u32)
    }

    fn within_limit(&self, leaf: u32) -> Result<u32, TooComplex> {
        let rows = self.rows.len() + self.divisions.len();
        if rows > ROWS_LIMIT {
            return Err(TooComplex::Leaves {
                rows,
                limit: ROWS_LIMIT,
            });
        }
        Ok(leaf)
    }

    /// Prefetches what [`first`](Leaves::first) reads.
    #[inline(always)]
    pub(super) fn prefetch(&self, leaf: u32) {
        simd::prefetch_at(&self.rows, ((leaf & !DIVISION) >> 8) as usize);
    }

    /// The first rule of a leaf whose ports and kind match.
    #[inline(always)]
    pub(super) fn first(&self, mut leaf: u32, values: &[u16; 8]) -> u32 {
        while leaf & DIVISION != 0 {
            let division = self.divisions[(leaf & !DIVISION) as usize];
            let value = values[usize::from(division.field) & 3];
            leaf = division.leaves[usize::from(value > division.last)];
        }
        let mut at = (leaf >> 8) as usize;
        let last = at + (leaf & 0xff) as usize;
        loop {
            let row = &self.rows[at].0;
            let reached = simd::reached(row, values);
            // A rule beyond the four for none: its number is that of no rule.
            let place = (reached | 1 << 4).trailing_zeros() as usize;
            let rule = row
                .get(place)
                .map_or(NO_RULE, |row| u32::from(row[6]) | u32::from(row[7]) << 16);
            if rule != NO_RULE || at == last {
                return rule;
            }
            at += 1;
        }
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.rows) + size_of_val(&*self.divisions)
    }
}

/// Where to divide rules so that the larger side has the fewest, and both together not too many. None if that does not
/// make both smaller.
fn best_division(rules: &[(u32, Bounds)]) -> Option<(usize, u16)> {
    let mut best = None;
    for field in 0..FIELDS {
        // Where a rule ends or another one starts.
        let mut ends: Vec<u16> = rules
            .iter()
            .flat_map(|(_, bounds)| [bounds.0[field].1, bounds.0[field].0.wrapping_sub(1)])
            .filter(|&last| last != u16::MAX)
            .collect();
        ends.sort_unstable();
        for quarter in 1..4 {
            let Some(&last) = ends.get(ends.len() * quarter / 4) else {
                continue;
            };
            let below = rules
                .iter()
                .filter(|(_, bounds)| bounds.0[field].0 <= last)
                .count();
            let above = rules
                .iter()
                .filter(|(_, bounds)| bounds.0[field].1 > last)
                .count();
            if below.max(above) < rules.len() {
                let cost = (below.max(above), below + above);
                if best.is_none_or(|(least, _)| cost < least) {
                    best = Some((cost, (field, last)));
                }
            }
        }
    }
    best.map(|(_, division)| division)
}
