//! What is served first come, first served: one line for all cores, or one for each of them.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::CoreId;

/// How what comes is given to the cores of the line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Queues {
    /// One line for all cores, as the traffic manager of a card has (iPipe, section 3.2.1).
    #[default]
    Shared,
    /// A line for each core: iPipe's shuffle layer (section 3.2.6). What comes goes to a core by its flow. A core whose
    /// own line is empty steals from the longest one, after ZygOS (Prekas and others, SOSP 2017).
    PerCore,
}

/// A line from which a core takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    line: usize,
    /// Whether it is another core's.
    pub is_stolen: bool,
}

/// What waits to be served first come, first served.
#[derive(Debug)]
pub struct Line<T> {
    /// One, or one by core.
    lines: Vec<VecDeque<T>>,
    /// The places of those that get what comes.
    serving: Vec<usize>,
}

impl<T> Line<T> {
    /// Nothing waits, and all cores serve it.
    pub fn new(queues: Queues, cores: u16) -> Line<T> {
        let lines = match queues {
            Queues::Shared => 1,
            Queues::PerCore => usize::from(cores.max(1)),
        };
        Line {
            lines: (0..lines).map(|_| VecDeque::new()).collect(),
            serving: (0..lines).collect(),
        }
    }

    /// Has only these cores get what comes; without any, all do. What waits for the others goes to the shortest lines.
    pub fn serve_by(&mut self, cores: impl Iterator<Item = CoreId>) {
        let all = self.lines.len();
        if all == 1 {
            return;
        }
        self.serving = cores.map(CoreId::index).filter(|place| *place < all).collect();
        if self.serving.is_empty() {
            self.serving = (0..all).collect();
        }
        let mut left = VecDeque::new();
        for (place, line) in self.lines.iter_mut().enumerate() {
            if !self.serving.contains(&place) {
                left.append(line);
            }
        }
        for item in left {
            let shortest = self.serving.iter().min_by_key(|place| self.lines[**place].len());
            if let Some(&place) = shortest {
                self.lines[place].push_back(item);
            }
        }
    }

    /// The line of a flow. Its number is mixed, since numbers of flows are often consecutive (Knuth's multiplicative hash).
    fn line_of(&mut self, flow: u64) -> &mut VecDeque<T> {
        let mixed = flow.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let place = self.serving[mixed as usize % self.serving.len()];
        &mut self.lines[place]
    }

    /// Something of a flow has come.
    pub fn push(&mut self, flow: u64, item: T) {
        self.line_of(flow).push_back(item);
    }

    /// Something of a flow returns, and is next.
    pub fn push_front(&mut self, flow: u64, item: T) {
        self.line_of(flow).push_front(item);
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.lines.iter().all(VecDeque::is_empty)
    }

    /// Where a free core takes what is next: in its own line; if nothing waits there, in the longest one.
    pub fn source(&self, core: CoreId) -> Option<Source> {
        let own = core.index().min(self.lines.len() - 1);
        if !self.lines[own].is_empty() {
            return Some(Source {
                line: own,
                is_stolen: false,
            });
        }
        let (line, longest) = self.lines.iter().enumerate().max_by_key(|(_, line)| line.len())?;
        (!longest.is_empty()).then_some(Source {
            line,
            is_stolen: true,
        })
    }

    /// What is next there.
    pub fn first(&self, source: Source) -> Option<&T> {
        self.lines[source.line].front()
    }

    /// Takes what is next there.
    pub fn take(&mut self, source: Source) -> Option<T> {
        self.lines[source.line].pop_front()
    }

    /// Takes all such things out; those of a line are in order.
    pub fn extract(&mut self, is_such: impl Fn(&T) -> bool) -> Vec<T> {
        let mut extracted = Vec::new();
        for line in &mut self.lines {
            for _ in 0..line.len() {
                match line.pop_front() {
                    Some(item) if is_such(&item) => extracted.push(item),
                    Some(item) => line.push_back(item),
                    None => break,
                }
            }
        }
        extracted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes what a core takes next; whether it is stolen.
    fn take(line: &mut Line<u32>, core: u16) -> Option<(u32, bool)> {
        let source = line.source(CoreId(core))?;
        assert_eq!(
            line.first(source).copied(),
            line.lines[source.line].front().copied()
        );
        Some((line.take(source)?, source.is_stolen))
    }

    /// Flows whose home is that core of the line.
    fn flows_of(line: &mut Line<u32>, core: usize) -> Vec<u64> {
        let at = |line: &mut Line<u32>, flow| {
            line.push(flow, 0);
            let place = line.lines.iter().position(|of| !of.is_empty());
            line.extract(|_| true);
            place == Some(core)
        };
        (0..1_000).filter(|flow| at(line, *flow)).collect()
    }

    #[test]
    fn all_cores_take_from_one_line_in_order() {
        let mut line = Line::new(Queues::Shared, 3);
        (0..9_u32).for_each(|n| line.push(u64::from(n), n));
        line.serve_by([CoreId(2)].into_iter());
        let taken: Vec<_> = (0..9).filter_map(|n| take(&mut line, n % 3)).collect();
        assert_eq!(taken, (0..9).map(|n| (n, false)).collect::<Vec<_>>());
        assert!(line.is_empty() && line.source(CoreId(0)).is_none());
    }

    #[test]
    fn a_core_serves_its_own_flows_and_steals_from_the_longest_line_when_it_has_none() {
        let mut line = Line::new(Queues::PerCore, 3);
        let homes: Vec<Vec<u64>> = (0..3).map(|core| flows_of(&mut line, core)).collect();
        assert!(homes.iter().all(|flows| flows.len() > 250), "flows are spread");
        // One of core 0, two of core 1, three of core 2.
        for (core, numbers) in [(0, vec![1]), (1, vec![2, 3]), (2, vec![4, 5, 6])] {
            numbers.into_iter().for_each(|n| line.push(homes[core][0], n));
        }
        assert_eq!(
            take(&mut line, 0),
            Some((1, false)),
            "its own, though others are longer"
        );
        assert_eq!(take(&mut line, 0), Some((4, true)), "the oldest of the longest");
        line.push_front(homes[0][7], 7);
        assert_eq!(take(&mut line, 0), Some((7, false)));
        assert_eq!(take(&mut line, 2), Some((5, false)));
        assert_eq!(take(&mut line, 0), Some((2, true)));
        assert_eq!(
            (take(&mut line, 1), take(&mut line, 1)),
            (Some((3, false)), Some((6, true)))
        );
        assert_eq!(take(&mut line, 1), None);
    }

    #[test]
    fn what_waits_for_a_core_that_leaves_goes_to_the_others() {
        let mut line = Line::new(Queues::PerCore, 3);
        let of_last = flows_of(&mut line, 2);
        (0..6_u32).for_each(|n| line.push(of_last[0], n));
        line.serve_by([CoreId(0), CoreId(1)].into_iter());
        assert_eq!(
            line.lines.iter().map(VecDeque::len).collect::<Vec<_>>(),
            [3, 3, 0]
        );
        of_last.iter().for_each(|flow| line.push(*flow, 9));
        assert!(line.lines[2].is_empty() && line.lines[..2].iter().all(|of| of.len() > 50));
        assert_eq!(line.extract(|n| *n < 9).len(), 6);
        // A core that serves the round still helps.
        assert_eq!(take(&mut line, 2), Some((9, true)));
        // Without any core, all get what comes.
        line.serve_by(std::iter::empty());
        line.push(of_last[0], 8);
        assert_eq!(take(&mut line, 2), Some((8, false)));
    }
}
