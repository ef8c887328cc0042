//! The DMA engine: writes words of a sender's own memory into a ring, later.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use model::{Nanos, Random};

use crate::declared::Declared;
use crate::layout::Ring;

/// The order in which the engine writes what it was given.
#[derive(Clone, Copy, Debug)]
pub enum Order {
    /// A transfer after the other, each at the declared time.
    Declared(Declared),
    /// Pieces of all transfers that it has, in random order: at most `pieces` each time that it is advanced. The time
    /// does not matter. For tests.
    Shuffled {
        /// Bytes of a piece, from one multiple of it to the next: 8 to 4096, a power of two.
        piece_bytes: u16,
        /// Pieces that it writes each time.
        pieces: u16,
        /// What the order depends on.
        seed: u64,
    },
}

/// Words that were given together.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    /// The position behind its last word.
    end: u64,
    due: Nanos,
}

/// Pieces in random order.
#[derive(Debug)]
struct Shuffle {
    piece_words: u64,
    pieces: u16,
    random: Random,
    /// First position and number of words of each piece that is not written yet.
    waiting: Vec<(u64, u64)>,
    /// For each word of the ring, whether it is to be written.
    is_waiting: Vec<bool>,
}

/// An engine with the memory that it reads.
#[derive(Debug)]
pub(crate) struct Dma {
    ring: Ring,
    /// What the ring is to hold, in the sender's own memory.
    pub(crate) own: Vec<u64>,
    declared: Declared,
    /// When the last transfer has left.
    idle_at: Nanos,
    transfers: VecDeque<Transfer>,
    shuffle: Option<Shuffle>,
    /// All before this position was given to the engine.
    posted: u64,
    /// All before this position is written.
    completed: u64,
}

impl Dma {
    pub(crate) fn new(ring: Ring, order: Order) -> Dma {
        let words = ring.len() as usize;
        let (declared, shuffle) = match order {
            Order::Declared(declared) => (declared, None),
            Order::Shuffled {
                piece_bytes,
                pieces,
                seed,
            } => {
                let shuffle = Shuffle {
                    piece_words: u64::from(piece_bytes / 8).next_power_of_two(),
                    pieces: pieces.max(1),
                    random: Random::new(seed),
                    waiting: Vec::new(),
                    is_waiting: vec![false; words],
                };
                (Declared::AT_ONCE, Some(shuffle))
            }
        };
        Dma {
            ring,
            own: vec![0; words],
            declared,
            idle_at: Nanos::ZERO,
            transfers: VecDeque::new(),
            shuffle,
            posted: 0,
            completed: 0,
        }
    }

    /// All before this position is written.
    pub(crate) fn completed(&self) -> u64 {
        self.completed
    }

    /// Gives all words before this position to the engine as one transfer.
    pub(crate) fn post(&mut self, end: u64, now: Nanos) {
        let begin = std::mem::replace(&mut self.posted, end);
        if begin == end {
            return;
        }
        if let Some(shuffle) = &mut self.shuffle {
            shuffle.post(&self.ring, begin, end);
            return;
        }
        self.idle_at = self.idle_at.max(now) + self.declared.time_of((end - begin) * 8);
        self.transfers.push_back(Transfer {
            end,
            due: self.idle_at + self.declared.latency,
        });
    }

    /// Writes what is due.
    pub(crate) fn advance(&mut self, now: Nanos) {
        if let Some(shuffle) = &mut self.shuffle {
            for _ in 0..shuffle.pieces {
                let Some((begin, words)) = shuffle.take() else {
                    break;
                };
                copy(&self.ring, &self.own, begin, begin + words);
                for position in begin..begin + words {
                    shuffle.is_waiting[self.ring.index(position)] = false;
                }
            }
            while self.completed < self.posted && !shuffle.is_waiting[self.ring.index(self.completed)] {
                self.completed += 1;
            }
            return;
        }
        while let Some(transfer) = self
            .transfers
            .front()
            .filter(|transfer| transfer.due <= now)
            .copied()
        {
            self.transfers.pop_front();
            copy(&self.ring, &self.own, self.completed, transfer.end);
            self.completed = transfer.end;
        }
    }
}

impl Shuffle {
    fn post(&mut self, ring: &Ring, begin: u64, end: u64) {
        let mut at = begin;
        while at < end {
            let next = ((at / self.piece_words + 1) * self.piece_words).min(end);
            self.waiting.push((at, next - at));
            at = next;
        }
        for position in begin..end {
            self.is_waiting[ring.index(position)] = true;
        }
    }

    fn take(&mut self) -> Option<(u64, u64)> {
        if self.waiting.is_empty() {
            return None;
        }
        let at = self.random.below(self.waiting.len() as u64) as usize;
        Some(self.waiting.swap_remove(at))
    }
}

/// Writes the words between two positions. The order among them means nothing to a reader: it trusts the checksum alone.
#[inline]
fn copy(ring: &Ring, own: &[u64], begin: u64, end: u64) {
    let words = ring.words();
    let (from, until) = (ring.index(begin), ring.index(begin) + (end - begin) as usize);
    let split = until.min(words.len());
    let stores = words[from..split].iter().zip(&own[from..split]);
    let around = words[..until - split].iter().zip(own);
    for (word, value) in stores.chain(around) {
        word.store(*value, Ordering::Relaxed);
    }
}
