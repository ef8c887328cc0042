//! The flows with the most packets, per worker.

use flow_table::{FlowRow, FlowTable};
use model::{FlowKey, FlowKeyV4, Nanos};
use packet::BURST;
use scheduling::SpaceSaving;
use switch::{HEAVY_FLOW_LIMIT, HeavyFlow};

use crate::table_memory::TableMemory;

/// Span over which a rate is measured.
const PERIOD: Nanos = Nanos::from_secs(1);

/// Finds the heaviest flows with Space-Saving, anew each second: flows with more than 1/64 of the packets are among
/// them.
///
/// One packet of each burst is drawn at random and counts for the whole burst. With full bursts, one packet of every
/// sixteen bursts counts for all packets since the last draw. So the cost per packet is small on a busy worker, and
/// the counts are right on average.
#[derive(Debug)]
pub(crate) struct Elephants {
    now: SpaceSaving<FlowKey, HEAVY_FLOW_LIMIT>,
    before: SpaceSaving<FlowKey, HEAVY_FLOW_LIMIT>,
    began: Nanos,
    /// Length of `before`.
    span: Nanos,
    random: u64,
    /// Packets since the last draw.
    passed: usize,
}

/// Packets of full bursts of which one is drawn. A worker that moves ten million in a second still draws ten
/// thousand.
const FULL_DRAW: usize = 16 * BURST;

impl Elephants {
    /// Without flows. `seed` is any number.
    pub(crate) fn new(seed: u64) -> Elephants {
        let empty = FlowKey::V4(FlowKeyV4::default());
        Elephants {
            now: SpaceSaving::new(empty),
            before: SpaceSaving::new(empty),
            began: Nanos::ZERO,
            span: PERIOD,
            // What follows from 0 is 0.
            random: seed | 1,
            passed: 0,
        }
    }

    /// Records a burst. `key_of` returns the flow and the hash of the drawn packet, if its flow is of this worker.
    #[inline]
    pub(crate) fn note(
        &mut self,
        packets: usize,
        now: Nanos,
        key_of: impl FnOnce(usize) -> Option<(FlowKey, u64)>,
    ) {
        self.passed += packets;
        if packets >= BURST && self.passed < FULL_DRAW {
            return;
        }
        let passed = std::mem::take(&mut self.passed);
        // Marsaglia's xorshift.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let drawn = ((u128::from(self.random) * packets as u128) >> 64) as usize;
        if let Some((key, hash)) = key_of(drawn) {
            self.turn_over(now);
            self.now.count(&key, hash, passed as u64);
        }
    }

    /// Ends the second where it is over.
    #[inline]
    fn turn_over(&mut self, now: Nanos) {
        let span = now.since(self.began);
        if span < PERIOD {
            return;
        }
        std::mem::swap(&mut self.now, &mut self.before);
        self.now.clear();
        self.span = span;
        self.began = now;
    }

    /// Packets per second of a flow that is among the heaviest, and the part of them that may belong to other flows.
    pub(crate) fn rate(&self, key: &FlowKey, hash: u64) -> Option<(f32, f32)> {
        let seconds = self.span.as_secs_f64();
        let heavy = self.before.of(key, hash)?;
        Some((
            (heavy.count as f64 / seconds) as f32,
            (heavy.error as f64 / seconds) as f32,
        ))
    }

    /// Appends the heaviest flows of the last second that are still in the table, unordered, up to the capacity of
    /// `found`.
    pub(crate) fn list(
        &mut self,
        table: &FlowTable<TableMemory>,
        now: Nanos,
        is_wanted: impl Fn(&FlowRow) -> bool,
        found: &mut Vec<HeavyFlow>,
    ) {
        // After a long time without packets no flow is heavy.
        self.turn_over(now);
        for heavy in self.before.heavy() {
            let hash = table.hasher().hash(&heavy.key);
            if let (Some(row), Some((pps, error_pps))) =
                (table.get(&heavy.key, now), self.rate(&heavy.key, hash))
                && is_wanted(&row)
                && found.len() < found.capacity()
            {
                found.push(HeavyFlow { row, pps, error_pps });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u16) -> FlowKey {
        FlowKey::V4(FlowKeyV4 {
            a_port: n,
            ..FlowKeyV4::default()
        })
    }

    #[test]
    fn rates_of_elephants_are_near_the_truth_and_mice_do_not_hide_them() {
        let mut elephants = Elephants::new(7);
        // In bursts of 32: half of the packets are of flow 1, a quarter of flow 2, the rest of a thousand others.
        let mut others = 3;
        for burst in 0..20_000u64 {
            let flows: Vec<u16> = (0..32)
                .map(|n| match n % 4 {
                    0 | 1 => 1,
                    2 => 2,
                    _ => {
                        others = 3 + others % 1000;
                        others
                    }
                })
                .collect();
            elephants.note(flows.len(), Nanos::from_micros(100 * burst), |drawn| {
                Some((key(flows[drawn]), u64::from(flows[drawn])))
            });
        }
        // Two seconds, 10,000 bursts and 320,000 packets in each.
        let (first, error) = elephants.rate(&key(1), 1).unwrap();
        let (second, _) = elephants.rate(&key(2), 2).unwrap();
        assert!((150_000.0..170_000.0).contains(&first), "{first}");
        assert!((72_000.0..90_000.0).contains(&second), "{second}");
        assert!(error < 320_000.0 / 64.0, "{error}");
    }

    #[test]
    fn a_flow_that_has_ended_is_forgotten() {
        let mut elephants = Elephants::new(7);
        let mut note = |ms, n| elephants.note(1, Nanos::from_millis(ms), |_| Some((key(n), u64::from(n))));
        (0..1500).for_each(|ms| note(ms, 1));
        (1500..3500).for_each(|ms| note(ms, 2));
        assert_eq!(elephants.rate(&key(1), 1), None);
        assert!(elephants.rate(&key(2), 2).is_some());
    }
}
