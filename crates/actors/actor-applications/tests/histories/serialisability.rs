//! Whether committed transactions are serialisable, in an order that real time permits.
//!
//! Each transaction reads all keys that it writes, and each written value is unique. So the values of a key form a chain,
//! and all dependencies are known (Adya, "Weak consistency", 1999; Elle uses the same): a transaction comes after the one
//! that wrote what it read, and before the one that replaced what it read. They are serialisable if the graph of these
//! dependencies has no cycle. With edges from each transaction to those that began after its end, they are strictly so.

use std::collections::BTreeMap;

/// A committed transaction.
#[derive(Clone, Debug)]
pub(crate) struct Transaction {
    pub(crate) begin: u64,
    pub(crate) end: u64,
    /// Keys with the value that was read; 0: none was written before.
    pub(crate) reads: BTreeMap<u64, u64>,
    /// Keys with the new value.
    pub(crate) writes: BTreeMap<u64, u64>,
}

/// Why a history is not serialisable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Violation {
    /// A value was read that no committed transaction wrote.
    NotWritten { key: u64, value: u64 },
    /// Two transactions replaced the same value.
    LostUpdate { key: u64, value: u64 },
    /// These transactions depend on each other.
    Cycle(Vec<usize>),
}

/// Checks a history.
pub(crate) fn check(history: &[Transaction]) -> Result<(), Violation> {
    let mut writer = BTreeMap::new();
    let mut replaced = BTreeMap::new();
    for (number, transaction) in history.iter().enumerate() {
        for (&key, &value) in &transaction.writes {
            writer.insert((key, value), number);
            let value = transaction.reads[&key];
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
        for (later, other) in history.iter().enumerate() {
            if transaction.end < other.begin {
                after[number].push(later);
            }
        }
    }
    cycle(&after).map_or(Ok(()), |cycle| Err(Violation::Cycle(cycle)))
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
