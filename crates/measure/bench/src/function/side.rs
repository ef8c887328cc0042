//! What takes turns, and how its work is timed.

use anyhow::Result;
use clock::thread_cpu;
use functions::RECEIVED_LIMIT;
use model::Nanos;

use crate::contestant::Measured;

/// The function or its peer.
pub(super) trait Side {
    /// Works for about `time` of CPU time. Says on how many packets, and for how much CPU time.
    fn turn(&mut self, time: Nanos) -> Result<Measured>;

    /// Nanoseconds that each of some bursts took from its first packet in to its last one out. Empty where no packets
    /// are passed.
    fn latencies(&mut self) -> Result<Vec<u64>> {
        Ok(Vec::new())
    }
}

/// Work of this thread that is timed as a whole: each call says on how many packets it worked.
pub(super) struct Work<F>(pub(super) F);

impl<F: FnMut() -> Result<u64>> Side for Work<F> {
    fn turn(&mut self, time: Nanos) -> Result<Measured> {
        let (began, mut packets) = (thread_cpu(), 0);
        loop {
            packets += (self.0)()?;
            let spent = thread_cpu().since(began);
            if spent >= time {
                return Ok(measured(packets, spent));
            }
        }
    }
}

/// Work of which only a part is timed: each call says on how many packets it worked, and for how much CPU time.
pub(super) struct Part<F>(pub(super) F);

impl<F: FnMut() -> Result<(u64, Nanos)>> Side for Part<F> {
    fn turn(&mut self, time: Nanos) -> Result<Measured> {
        let (mut packets, mut spent) = (0, Nanos::ZERO);
        while spent < time {
            let (more, took) = (self.0)()?;
            packets += more;
            spent = spent + took;
        }
        Ok(measured(packets, spent))
    }
}

/// Lookups in bursts of 32, over all keys in turn.
pub(super) fn lookups<'k, K>(
    keys: &'k [K],
    mut lookup: impl FnMut(&[K], &mut [u32]) -> Result<()> + 'k,
) -> Work<impl FnMut() -> Result<u64> + 'k> {
    let mut found = [0; RECEIVED_LIMIT];
    let mut at = 0;
    Work(move || {
        // A look at the clock after each 1,024.
        let end = (at + 32 * RECEIVED_LIMIT).min(keys.len());
        for keys in keys[at..end].chunks(RECEIVED_LIMIT) {
            lookup(keys, &mut found[..keys.len()])?;
        }
        let count = end - at;
        at = if end < keys.len() { end } else { 0 };
        Ok(count as u64)
    })
}

/// So many packets in so much CPU time.
pub(super) fn measured(packets: u64, spent: Nanos) -> Measured {
    Measured {
        packets,
        seconds: spent.0 as f64 / 1e9,
    }
}

/// The CPU time of one piece of work, and what it returns.
pub(super) fn timed<T>(work: impl FnOnce() -> T) -> (T, Nanos) {
    let began = thread_cpu();
    let result = work();
    (result, thread_cpu().since(began))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_takes_the_time_that_it_was_given() {
        let time = Nanos::from_millis(2);
        let mut calls = 0;
        let mut work = Work(|| {
            calls += 1;
            Ok(10)
        });
        let turn = work.turn(time).unwrap();
        assert!(turn.seconds >= 0.002, "{turn:?}");
        assert_eq!(turn.packets, calls * 10);
        let mut part = Part(|| Ok((3, Nanos::from_millis(1))));
        let turn = part.turn(time).unwrap();
        assert_eq!((turn.packets, turn.seconds), (6, 0.002));
    }
}
