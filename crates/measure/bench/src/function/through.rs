//! Packets through functions: the copy of a frame into the burst, the functions, and reading the frame that leaves.

use std::hint::black_box;

use anyhow::{Result, bail};
use functions::{Burst, Chain, LIBRARY, RECEIVED_LIMIT, Setup, Stage, find};
use model::Nanos;

use super::side::{Side, Work};
use crate::contestant::Measured;

/// Bursts between two looks at the clock.
const BURSTS: usize = 16;
/// Time between two bursts, as functions see it: ten million packets a second.
const BETWEEN: Nanos = Nanos(3_200);
/// Bursts whose time is taken, at most.
const LATENCIES: usize = 4_096;
/// Time for that, at most.
const LATENCY_TIME: Nanos = Nanos::from_millis(200);

/// What functions are told of their instance.
const SETUP: Setup = Setup {
    instance: 1,
    ports: 2,
    seed: 3,
    external: None,
};

/// Functions with packets for them. Each packet must leave.
pub(super) struct Through<'f> {
    chain: Option<Chain>,
    burst: Burst,
    frames: &'f [Vec<u8>],
    /// The next frame.
    at: usize,
    now: Nanos,
}

/// A function of the library, for a chain.
pub(super) fn stage(name: &str, configuration: &str) -> Result<Stage> {
    Ok(find(LIBRARY, name)?.make(configuration, &SETUP)?)
}

/// A chain of one function.
pub(super) fn chain(name: &str, configuration: &str) -> Result<Chain> {
    Ok(Chain::new(vec![stage(name, configuration)?])?)
}

impl<'f> Through<'f> {
    /// Passes each packet once through the chain, so that what they begin is there. Without a chain, only the copies are
    /// made.
    ///
    /// # Errors
    /// A packet does not leave.
    pub(super) fn new(chain: Option<Chain>, frames: &'f [Vec<u8>]) -> Result<Through<'f>> {
        let mut through = Through {
            chain,
            burst: Burst::new(),
            frames,
            at: 0,
            now: Nanos::from_secs(1),
        };
        let mut packets = 0;
        while packets < frames.len() {
            packets += through.pass()?;
        }
        Ok(through)
    }

    /// The functions with what the packets began, for other packets: what is expensive to set up is set up once.
    pub(super) fn into_chain(self) -> Option<Chain> {
        self.chain
    }

    /// Passes a burst. Returns its packets.
    fn pass(&mut self) -> Result<usize> {
        self.burst.begin(0, 1);
        for _ in 0..RECEIVED_LIMIT {
            if let Some(frame) = self.frames.get(self.at) {
                self.burst.push(frame);
            }
            self.at = if self.at + 1 < self.frames.len() {
                self.at + 1
            } else {
                0
            };
        }
        let left = if let Some(chain) = &mut self.chain {
            chain.process(&mut self.burst, self.now);
            read(&self.burst)
        } else {
            let all = self.burst.packets();
            all.map(|packet| black_box(packet.frame()).len())
                .filter(|&len| len > 0)
                .count()
        };
        if left != RECEIVED_LIMIT {
            bail!("{left} of {RECEIVED_LIMIT} packets left the function");
        }
        self.now = self.now + BETWEEN;
        if let Some(chain) = &mut self.chain
            && chain.due().is_some_and(|due| due <= self.now)
        {
            for stage in 0..chain.stages().len() {
                if chain.tick(stage, &mut self.burst, 1, self.now) {
                    read(&self.burst);
                }
            }
        }
        Ok(left)
    }
}

/// Reads the frames that leave, and counts them.
pub(super) fn read(burst: &Burst) -> usize {
    for extent in burst.leaving() {
        black_box(burst.bytes_of(extent));
    }
    burst.leaving().len()
}

impl Side for Through<'_> {
    fn turn(&mut self, time: Nanos) -> Result<Measured> {
        Work(|| {
            let mut packets = 0;
            for _ in 0..BURSTS {
                packets += self.pass()?;
            }
            Ok(packets as u64)
        })
        .turn(time)
    }

    fn latencies(&mut self) -> Result<Vec<u64>> {
        let began = clock::monotonic();
        let mut taken = Vec::with_capacity(LATENCIES);
        while taken.len() < LATENCIES && clock::monotonic().since(began) < LATENCY_TIME {
            let start = clock::monotonic();
            self.pass()?;
            taken.push(clock::monotonic().since(start).0);
        }
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::super::frames::flows;
    use super::*;

    #[test]
    fn packets_pass_and_are_counted() {
        let frames = flows(100, 64).unwrap();
        let chain = Chain::new(vec![stage("forward", "").unwrap()]).unwrap();
        let mut through = Through::new(Some(chain), &frames).unwrap();
        let before = through.chain.as_ref().unwrap().stages()[0].totals().packets;
        let turn = through.turn(Nanos::from_millis(1)).unwrap();
        let after = through.chain.as_ref().unwrap().stages()[0].totals().packets;
        assert_eq!(after - before, turn.packets);
        assert!(!through.latencies().unwrap().is_empty());
    }

    #[test]
    fn without_a_function_the_copies_are_counted() {
        let frames = flows(100, 64).unwrap();
        let mut through = Through::new(None, &frames).unwrap();
        assert!(through.turn(Nanos::from_millis(1)).unwrap().packets >= 512);
    }

    #[test]
    fn a_packet_that_does_not_leave_is_an_error() {
        let frames = flows(100, 64).unwrap();
        let error = Through::new(Some(chain("firewall", "default = \"deny\"").unwrap()), &frames)
            .err()
            .unwrap();
        assert_eq!(error.to_string(), "0 of 32 packets left the function");
    }
}
