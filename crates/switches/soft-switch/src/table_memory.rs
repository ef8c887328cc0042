//! Memory for a flow table: in huge pages where the system gives them, so that a packet's look-up among millions of
//! flows does not wait for the page table, too.

use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;

use flow_table::Line;
use shared_memory::OwnMemory;
use zerocopy::FromBytes as _;

/// Lines of a flow table. All pages are allocated at the start.
#[derive(Debug)]
pub struct TableMemory(OwnMemory);

impl TableMemory {
    /// Memory for that many lines, all zero, that ends with this process.
    ///
    /// # Errors
    /// The system's, where it has not that much.
    pub fn new(lines: usize) -> std::io::Result<TableMemory> {
        Ok(TableMemory(OwnMemory::anonymous(lines * Line::BYTES)?))
    }

    /// The same in a file, for the next run: in reserved huge pages where it may and there are enough.
    ///
    /// # Errors
    /// The system's, where it has not that much.
    pub(crate) fn in_file(lines: usize, hugepages: bool) -> std::io::Result<(OwnedFd, TableMemory)> {
        let bytes = lines * Line::BYTES;
        let create = |hugepages| OwnMemory::create("inco-flows", bytes, hugepages);
        let (file, memory) = match hugepages {
            true => create(true).or_else(|_| create(false))?,
            false => create(false)?,
        };
        Ok((file, TableMemory(memory)))
    }

    /// What an earlier run left in a file.
    ///
    /// # Errors
    /// The system's, and where it is no such file.
    pub(crate) fn open(file: &OwnedFd) -> std::io::Result<TableMemory> {
        use std::os::fd::AsFd as _;
        Ok(TableMemory(OwnMemory::open(file.as_fd())?))
    }
}

// A mapping begins at a page and is a whole number of lines long, so that neither conversion fails.
impl Deref for TableMemory {
    type Target = [Line];
    #[inline(always)]
    fn deref(&self) -> &[Line] {
        <[Line]>::ref_from_bytes(self.0.bytes()).unwrap_or_default()
    }
}

impl DerefMut for TableMemory {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [Line] {
        <[Line]>::mut_from_bytes(self.0.bytes_mut()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_lines_are_there_and_zero() {
        for lines in [1, 3, 100_000] {
            let in_file = TableMemory::in_file(lines, true).unwrap();
            for mut memory in [TableMemory::new(lines).unwrap(), in_file.1] {
                assert!(memory.len() >= lines);
                assert!(memory.iter().all(|line| *line == Line::ZERO));
                memory[lines - 1].0[7] = 1;
                assert_eq!(memory[lines - 1].0[7], 1);
            }
            assert_eq!(TableMemory::open(&in_file.0).unwrap()[lines - 1].0[7], 1);
        }
    }
}
