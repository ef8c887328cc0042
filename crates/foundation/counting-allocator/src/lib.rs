//! The system's allocator with a counter, for tests that code does not allocate. A test declares it as its global
//! allocator and compares [`allocations`] before and after:
//!
//! ```
//! #[global_allocator]
//! static ALLOCATOR: counting_allocator::Counting = counting_allocator::Counting;
//!
//! let before = counting_allocator::allocations();
//! drop(Box::new(1));
//! assert_eq!(counting_allocator::allocations(), before + 1);
//! ```
// UNSAFETY: an allocator can only be written with `unsafe impl GlobalAlloc`.
#![expect(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator; counts allocations by thread.
#[derive(Debug)]
pub struct Counting;

/// Allocations of the calling thread so far, with reallocations. Each thread has a count of its own, because the test
/// harness allocates concurrently.
pub fn allocations() -> u64 {
    ALLOCATIONS.with(Cell::get)
}

// SAFETY: every call goes to the system's allocator unchanged. The counter is a thread-local that is initialised by a
// constant and has no destructor, so that counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's contract is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract is the same, and every block came from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }
}
