//! Memory for a flow table: in huge pages where the system gives them, so that a packet's look-up among millions of
//! flows does not wait for the page table, too.

use std::ops::{Deref, DerefMut};

use flow_table::Line;
use memmap2::{Advice, MmapMut};
use zerocopy::FromBytes as _;

/// Lines of a flow table, all of them there: no page of it is missing later.
#[derive(Debug)]
pub struct TableMemory(MmapMut);

impl TableMemory {
    /// Memory for that many lines, all zero.
    ///
    /// # Errors
    /// The system's, where it has not that much.
    pub fn new(lines: usize) -> std::io::Result<TableMemory> {
        let mut mapping = MmapMut::map_anon(lines.max(1) * Line::BYTES)?;
        // A kernel without huge pages says no: the small ones do, too.
        let _as_it_is = mapping.advise(Advice::HugePage);
        mapping.fill(0);
        Ok(TableMemory(mapping))
    }
}

// A mapping begins at a page and is a whole number of lines long, so that neither conversion fails.
impl Deref for TableMemory {
    type Target = [Line];
    #[inline(always)]
    fn deref(&self) -> &[Line] {
        <[Line]>::ref_from_bytes(&self.0).unwrap_or_default()
    }
}

impl DerefMut for TableMemory {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [Line] {
        <[Line]>::mut_from_bytes(&mut self.0).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_lines_are_there_and_zero() {
        for lines in [1, 3, 100_000] {
            let mut memory = TableMemory::new(lines).unwrap();
            assert_eq!(memory.len(), lines);
            assert!(memory.iter().all(|line| *line == Line::ZERO));
            memory[lines - 1].0[7] = 1;
            assert_eq!(memory[lines - 1].0[7], 1);
        }
    }
}
