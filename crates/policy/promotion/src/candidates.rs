//! Flows that were drawn on the slow path, and what they have brought since: a table of fixed size.
//!
//! Each bucket keeps one flow, which the majority of draws in the bucket keeps there: a draw of it adds a vote, one of
//! another flow takes one away, and without votes the other one takes its place (Boyer and Moore, "MJRTY: A fast majority
//! vote algorithm", 1981).

use model::Nanos;

/// Votes of a flow, at most: after so many draws of others the heaviest flow has left the bucket.
const VOTES_LIMIT: u8 = 64;

/// What a flow has brought since it was first drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Brought {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    pub(crate) span: Nanos,
}

#[derive(Clone, Copy, Debug)]
struct Candidate<F> {
    flow: F,
    since: Nanos,
    packets: u64,
    bytes: u64,
    votes: u8,
}

#[derive(Clone, Debug)]
pub(crate) struct Candidates<F> {
    /// As many as a power of two.
    buckets: Vec<Option<Candidate<F>>>,
}

impl<F: Copy + PartialEq> Candidates<F> {
    /// A table of at least so many buckets.
    pub(crate) fn new(buckets: usize) -> Candidates<F> {
        Candidates {
            buckets: vec![None; buckets.next_power_of_two()],
        }
    }

    fn bucket(&mut self, hash: u64) -> Option<&mut Option<Candidate<F>>> {
        let mask = self.buckets.len() - 1;
        self.buckets.get_mut(hash as usize & mask)
    }

    /// A flow was drawn with these counters. What it has brought since it was drawn first; [`None`] where that was now, and
    /// where another flow has the bucket.
    pub(crate) fn draw(&mut self, flow: F, hash: u64, now: Nanos, counted: (u64, u64)) -> Option<Brought> {
        let (packets, bytes) = counted;
        let fresh = Candidate {
            flow,
            since: now,
            packets,
            bytes,
            votes: 1,
        };
        let bucket = self.bucket(hash)?;
        match bucket {
            // Counters that went back are those of a flow that began anew.
            Some(known) if known.flow == flow && known.packets <= packets && known.bytes <= bytes => {
                known.votes = (known.votes + 1).min(VOTES_LIMIT);
            }
            Some(other) if other.flow != flow && other.votes > 1 => {
                other.votes -= 1;
                return None;
            }
            _ => {
                *bucket = Some(fresh);
                return None;
            }
        }
        bucket.as_ref().map(|known| Brought {
            packets: packets - known.packets,
            bytes: bytes - known.bytes,
            span: now.since(known.since),
        })
    }

    /// The count of a flow starts anew.
    pub(crate) fn restart(&mut self, flow: F, hash: u64, now: Nanos, counted: (u64, u64)) {
        if let Some(Some(known)) = self.bucket(hash)
            && known.flow == flow
        {
            (known.since, known.packets, known.bytes) = (now, counted.0, counted.1);
        }
    }

    /// The flow is a candidate no more.
    pub(crate) fn remove(&mut self, flow: F, hash: u64) {
        if let Some(bucket) = self.bucket(hash)
            && bucket.as_ref().is_some_and(|known| known.flow == flow)
        {
            *bucket = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Nanos = Nanos::from_secs(9);

    #[test]
    fn a_flow_brings_what_came_since_it_was_drawn() {
        let mut all = Candidates::new(1);
        assert_eq!(all.draw(1, 7, NOW, (10, 100)), None);
        let later = NOW + Nanos(5);
        let brought = all.draw(1, 7, later, (14, 300));
        let expected = Brought {
            packets: 4,
            bytes: 200,
            span: Nanos(5),
        };
        assert_eq!(brought, Some(expected));
        // Counters that go back are a new beginning.
        all.restart(1, 7, later, (1, 60));
        assert_eq!(all.draw(1, 7, later, (0, 0)), None);
    }

    #[test]
    fn a_heavy_flow_outlives_flows_that_come_once() {
        let mut all = Candidates::new(1);
        for round in 0..1_000_u64 {
            let brought = all.draw(0, 0, NOW, (round, round));
            assert_eq!(brought.map(|of| of.packets), (round > 0).then_some(round));
            all.draw(0, 0, NOW, (round, round));
            assert_eq!(all.draw(1 + round, 0, NOW, (1, 1)), None);
        }
        // A flow that comes no more makes room.
        for round in 0..u64::from(VOTES_LIMIT) {
            all.draw(5_000 + round, 0, NOW, (1, 1));
        }
        assert_eq!(all.draw(9_999, 0, NOW, (1, 1)), None);
        assert_eq!(all.draw(9_999, 0, NOW, (3, 3)).map(|of| of.packets), Some(2));
    }
}
