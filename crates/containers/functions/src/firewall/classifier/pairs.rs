//! The leaves of a group's pairs of classes.

use std::collections::HashMap;

use super::TooComplex;
use super::leaves::{Bounds, Leaves, NO_LEAF};
use super::plan::GroupTree;

/// Cells that a row is tried at before the following ones are tried only behind them.
const TRIES: usize = 256;
/// The owner of a free cell: no row has this shift.
const FREE: u32 = u32::MAX;
/// The shift of a row without pairs. It owns no cell.
const EMPTY_ROW: u32 = 0;

/// The pair of classes that has this place.
#[derive(Clone, Copy, Debug)]
struct Cell {
    /// The shift of its row, which no other row has.
    owner: u32,
    leaf: u32,
}

/// Sparse rows over one another.
#[derive(Debug)]
pub(super) struct Pairs {
    cells: Vec<Cell>,
}

impl Pairs {
    /// Compiles a group's pairs. Returns the shift of each class of sources, too.
    pub(super) fn new(
        members: &[u32],
        src: &GroupTree,
        dst: &GroupTree,
        bounds: &[Bounds],
        leaves: &mut Leaves,
    ) -> Result<(Pairs, Vec<u32>), TooComplex> {
        let rows = rows(members, src, dst, bounds, leaves)?;
        // Equal rows are one.
        let mut distinct: HashMap<&[(u32, u32)], Vec<usize>> = HashMap::new();
        for (at, row) in rows.iter().enumerate() {
            distinct.entry(row).or_default().push(at);
        }
        let mut order: Vec<_> = distinct.into_iter().collect();
        // The fullest first: the others fill the gaps.
        order.sort_unstable_by_key(|(row, classes)| (std::cmp::Reverse(row.len()), classes[0]));
        let mut shifts = vec![EMPTY_ROW; rows.len()];
        let mut cells: Vec<Cell> = Vec::new();
        let mut taken: Vec<bool> = vec![true];
        let mut gaps = Gaps {
            from: 1,
            pairs: usize::MAX,
        };
        for (row, classes) in order {
            let (Some(&(first, _)), Some(&(last, _))) = (row.first(), row.last()) else {
                continue;
            };
            let shift = gaps.place(row, first as usize, &cells, &taken);
            taken.resize(taken.len().max(shift + 1), false);
            taken[shift] = true;
            let end = shift + last as usize + 1;
            if cells.len() < end {
                cells.resize(
                    end,
                    Cell {
                        owner: FREE,
                        leaf: NO_LEAF,
                    },
                );
            }
            for &(column, leaf) in row {
                cells[shift + column as usize] = Cell {
                    owner: shift as u32,
                    leaf,
                };
            }
            for class in classes {
                shifts[class] = shift as u32;
            }
        }
        // Every column of every row has a cell.
        let columns = dst.ends.len() + 1;
        let farthest = shifts.iter().max().map_or(0, |&shift| shift as usize);
        cells.resize(
            cells.len().max(farthest + columns),
            Cell {
                owner: FREE,
                leaf: NO_LEAF,
            },
        );
        Ok((Pairs { cells }, shifts))
    }

    #[inline(always)]
    pub(super) fn prefetch(&self, at: u32) {
        simd::prefetch_at(&self.cells, at as usize);
    }

    /// The leaf at a place if the row with this shift owns it.
    #[inline(always)]
    pub(super) fn leaf(&self, shift: u32, at: u32) -> u32 {
        let cell = self.cells[at as usize];
        if cell.owner == shift { cell.leaf } else { NO_LEAF }
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.cells)
    }
}

/// Where the search for gaps goes on.
struct Gaps {
    /// The first cell worth a try for rows of as many pairs.
    from: usize,
    pairs: usize,
}

impl Gaps {
    /// A shift that no other row has and that leads every pair of the row to a free cell.
    fn place(&mut self, row: &[(u32, u32)], first: usize, cells: &[Cell], taken: &[bool]) -> usize {
        // Rows of half the size fit into gaps that others did not.
        if row.len() <= self.pairs / 2 {
            (self.from, self.pairs) = (1, row.len());
        }
        let is_free = |at: usize| cells.get(at).is_none_or(|cell| cell.owner == FREE);
        let is_taken = |shift: usize| taken.get(shift).copied().unwrap_or(false);
        let mut shift = self.from.saturating_sub(first).max(1);
        let mut tries = 0;
        while is_taken(shift) || !row.iter().all(|&(column, _)| is_free(shift + column as usize)) {
            shift += 1;
            tries += 1;
        }
        if tries > TRIES {
            self.from = shift + first;
        }
        shift
    }
}

/// For each class of sources its pairs, by columns.
fn rows(
    members: &[u32],
    src: &GroupTree,
    dst: &GroupTree,
    bounds: &[Bounds],
    leaves: &mut Leaves,
) -> Result<Vec<Vec<(u32, u32)>>, TooComplex> {
    let mut of_prefix: Vec<Vec<u32>> = vec![Vec::new(); src.ends.len()];
    for (member, &prefix) in src.of_rule.iter().enumerate() {
        of_prefix[prefix as usize].push(member as u32);
    }
    let mut rows = vec![Vec::new()];
    // The prefixes that hold this one.
    let mut holding: Vec<usize> = Vec::new();
    let mut rules_of_column: Vec<Vec<u32>> = vec![Vec::new(); dst.ends.len() + 1];
    for at in 0..src.ends.len() {
        while holding
            .last()
            .is_some_and(|&outer| src.ends[outer] as usize <= at)
        {
            holding.pop();
        }
        holding.push(at);
        let mut candidates: Vec<u32> = holding
            .iter()
            .flat_map(|&prefix| &of_prefix[prefix])
            .copied()
            .collect();
        candidates.sort_unstable();
        let mut columns = Vec::new();
        for member in candidates {
            let prefix = dst.of_rule[member as usize];
            for column in prefix + 1..dst.ends[prefix as usize] + 1 {
                let rules = &mut rules_of_column[column as usize];
                if rules.is_empty() {
                    columns.push(column);
                }
                rules.push(members[member as usize]);
            }
        }
        columns.sort_unstable();
        let mut row = Vec::with_capacity(columns.len());
        for column in columns {
            let rules = &mut rules_of_column[column as usize];
            row.push((column, leaves.leaf(rules, bounds)?));
            rules.clear();
        }
        rows.push(row);
    }
    Ok(rows)
}
