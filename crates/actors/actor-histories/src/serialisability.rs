//! Whether committed transactions are serialisable, in an order that real time permits.
//!
//! Each transaction reads all keys that it writes, and each written value is unique. So the values of a key form a chain,
//! and all dependencies are known (Adya, "Weak consistency", 1999; Elle uses the same): a transaction comes after the one
//! that wrote what it read, and before the one that replaced what it read. They are serialisable if the graph of these
//! dependencies has no cycle. With edges from each transaction to those that began after its end, they are strictly so.

use std::collections::BTreeMap;

/// A committed transaction.
#[derive(Clone, Debug)]
pub struct Transaction {
    /// When its client began it.
    pub begin: u64,
    /// When its client had the outcome.
    pub end: u64,
    /// Keys with the value that was read; 0: none was written before.
    pub reads: BTreeMap<u64, u64>,
    /// Keys with the new value.
    pub writes: BTreeMap<u64, u64>,
}

/// Why a history is not serialisable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A value was read that no committed transaction wrote.
    #[error("key {key}: value {value} was read, and no committed transaction wrote it")]
    NotWritten {
        /// The key.
        key: u64,
        /// The value.
        value: u64,
    },
    /// Two transactions replaced the same value.
    #[error("key {key}: two transactions replaced value {value}")]
    LostUpdate {
        /// The key.
        key: u64,
        /// The value.
        value: u64,
    },
    /// A transaction writes a key that it does not read, so that nobody knows what it replaced.
    #[error("key {key} is written and not read")]
    NotRead {
        /// The key.
        key: u64,
    },
    /// These transactions, by their places in the history, depend on each other.
    #[error("transactions {0:?} depend on each other")]
    Cycle(Vec<usize>),
}

/// Checks a history. Each transaction reads all keys that it writes, and each written value is another one.
///
/// # Errors
/// [`Violation`]: there is no order that explains the history.
pub fn check(history: &[Transaction]) -> Result<(), Violation> {
    let mut writer = BTreeMap::new();
    let mut replaced = BTreeMap::new();
    for (number, transaction) in history.iter().enumerate() {
        for (&key, &value) in &transaction.writes {
            writer.insert((key, value), number);
            let value = *transaction.reads.get(&key).ok_or(Violation::NotRead { key })?;
            if replaced.insert((key, value), number).is_some() {
                return Err(Violation::LostUpdate { key, value });
            }
        }
    }
    let mut after = vec![Vec::new(); history.len()];
    for (number, transaction) in history.iter().enumerate() {
        for (&key, &value) in &transaction.reads {
            match writer.get(&(key, value)) {
                Some(&from) => after[from].push(number),
                None if value != 0 => return Err(Violation::NotWritten { key, value }),
                None => {}
            }
            if let Some(&to) = replaced.get(&(key, value)).filter(|to| **to != number) {
                after[number].push(to);
            }
        }
    }
    add_real_time(history, &mut after);
    cycle(&after).map_or(Ok(()), |cycle| Err(Violation::Cycle(cycle)))
}

/// Adds edges from each transaction to those that began after its end. Of these, the ones that began before the first of
/// them ended are enough: to the others leads a path.
fn add_real_time(history: &[Transaction], after: &mut [Vec<usize>]) {
    let mut by_begin: Vec<usize> = (0..history.len()).collect();
    by_begin.sort_by_key(|number| history[*number].begin);
    for (number, transaction) in history.iter().enumerate() {
        let first = by_begin.partition_point(|of| history[*of].begin <= transaction.end);
        let mut first_end = u64::MAX;
        for &later in &by_begin[first..] {
            if history[later].begin > first_end {
                break;
            }
            first_end = first_end.min(history[later].end);
            after[number].push(later);
        }
    }
}

/// A cycle of the graph, by a search in depth that keeps its path.
fn cycle(after: &[Vec<usize>]) -> Option<Vec<usize>> {
    let mut is_done = vec![false; after.len()];
    let mut is_on_path = vec![false; after.len()];
    for first in 0..after.len() {
        let mut path = vec![(first, 0)];
        while let Some((node, edge)) = path.last_mut() {
            let node = *node;
            is_on_path[node] = true;
            if is_done[node] || *edge == after[node].len() {
                is_done[node] = true;
                is_on_path[node] = false;
                path.pop();
                continue;
            }
            let next = after[node][*edge];
            *edge += 1;
            if is_on_path[next] {
                let path = path.into_iter().map(|(node, _)| node);
                return Some(path.skip_while(|node| *node != next).collect());
            }
            if !is_done[next] {
                path.push((next, 0));
            }
        }
    }
    None
}
