//! The order of stores. A process can be killed between any two instructions. What it has stored by then stays in
//! shared memory. The process that attaches the table later starts after the system has told of the death, so it sees
//! all of these stores and no later one. Only the compiler can change the order within the writer, and the functions
//! here forbid that. They cost no instruction.

use std::sync::atomic::{Ordering, compiler_fence};

/// No store before it in the program is moved behind it, and none after it to the front.
#[inline(always)]
pub(crate) fn barrier() {
    compiler_fence(Ordering::SeqCst);
}

/// Stores a word after all stores before it in the program, and before all that follow.
#[inline(always)]
pub(crate) fn last(word: &mut u64, value: u64) {
    barrier();
    *word = value;
    barrier();
}
