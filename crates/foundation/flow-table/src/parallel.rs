//! How large work is divided. This crate starts no threads.

/// Does work in parts, at once where it has threads for that.
pub trait Parallel {
    /// In how many parts it is worth to divide.
    fn parts(&self) -> usize;

    /// Does the same with each part, and returns the results in the order of the parts.
    fn each<T: Send, R: Send>(&self, parts: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R>;
}

/// So many parts, one after the other, in the thread of the caller.
#[derive(Clone, Copy, Debug)]
pub struct InTurn(pub usize);

impl Parallel for InTurn {
    fn parts(&self) -> usize {
        self.0
    }

    fn each<T: Send, R: Send>(&self, parts: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
        parts.into_iter().map(work).collect()
    }
}
