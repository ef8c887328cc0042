//! The function `forward`: returns every packet unchanged, with work that is declared and a stamp if wanted.

use model::{Nanos, Tuple};
use serde::Deserialize;
use state_moves::NotMoved;

use crate::about::{About, Metric};
use crate::burst::Burst;
use crate::configuration::{Error, from_toml};
use crate::function::{Function, Setup};

/// The most of simulated work per byte, in nanoseconds. A packet of the longest length then takes at most some tens of
/// milliseconds.
const NS_PER_BYTE_LIMIT: f64 = 1_000.0;

/// Returns every packet unchanged.
///
/// ```toml
/// cost_ns = 0             # simulated work per packet, in nanoseconds
/// cost_ns_per_byte = 0.0  # simulated work per byte of a packet, in nanoseconds, at most 1000
/// stamp = false           # write the instance's id into the test field of generated packets
/// ```
#[derive(Debug)]
pub struct Forward {
    configuration: Configuration,
    instance: u32,
    stamped: u64,
}

/// The configuration of [`Forward`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Configuration {
    cost_ns: u64,
    cost_ns_per_byte: f64,
    stamp: bool,
}

impl Configuration {
    /// The simulated work for a packet of that many bytes.
    fn cost(self, bytes: usize) -> Nanos {
        Nanos(self.cost_ns + (self.cost_ns_per_byte * bytes as f64) as u64)
    }

    fn has_cost(self) -> bool {
        self.cost_ns > 0 || self.cost_ns_per_byte > 0.0
    }
}

impl Function for Forward {
    type Configuration = Configuration;

    fn about() -> About {
        const METRICS: &[Metric] = &[Metric::counter(
            "stamped",
            "Packets into which the instance's id was written",
        )];
        About {
            name: "forward",
            help: "Returns every packet unchanged",
            reasons: &[],
            metrics: METRICS,
        }
    }

    fn compile(text: &str, setup: &Setup) -> Result<Configuration, Error> {
        let configuration: Configuration = from_toml(text)?;
        if !(0.0..=NS_PER_BYTE_LIMIT).contains(&configuration.cost_ns_per_byte) {
            return Err(Error::whole(format!(
                "cost_ns_per_byte is 0 to {NS_PER_BYTE_LIMIT} nanoseconds"
            )));
        }
        if configuration.stamp && setup.instance == 0 {
            return Err(Error::whole("stamp needs an instance id above 0"));
        }
        Ok(configuration)
    }

    fn new(configuration: Configuration, setup: &Setup) -> Forward {
        Forward {
            configuration,
            instance: setup.instance,
            stamped: 0,
        }
    }

    fn reload(&mut self, configuration: Configuration) -> Configuration {
        std::mem::replace(&mut self.configuration, configuration)
    }

    fn process(&mut self, burst: &mut Burst, _now: Nanos) {
        if self.configuration.stamp {
            for mut packet in burst.packets() {
                self.stamped += u64::from(stamp::stamp_instance(packet.frame_mut(), self.instance));
            }
        }
        if self.configuration.has_cost() {
            let cost = |len| self.configuration.cost(len);
            let work = burst
                .packets()
                .fold(Nanos::ZERO, |sum, packet| sum + cost(packet.len()));
            burst.spend(work);
        }
    }

    fn metrics(&self, values: &mut [u64]) {
        values.copy_from_slice(&[self.stamped]);
    }

    /// It has no state.
    fn export(&self, _flow: &Tuple, _state: &mut [u8], _now: Nanos) -> Result<usize, NotMoved> {
        Ok(0)
    }

    fn import(&mut self, _flow: &Tuple, state: &[u8], _now: Nanos) -> Result<(), NotMoved> {
        if state.is_empty() {
            Ok(())
        } else {
            Err(NotMoved::Malformed)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::burst::Verdict;

    const SETUP: Setup = Setup {
        instance: 7,
        ports: 1,
        seed: 0,
        external: None,
    };

    fn forward(text: &str) -> Forward {
        Forward::new(Forward::compile(text, &SETUP).unwrap(), &SETUP)
    }

    #[test]
    fn work_is_declared_for_packets_and_bytes() {
        let mut function = forward("cost_ns = 3000\ncost_ns_per_byte = 250.5");
        let mut burst = Burst::new();
        burst.begin(0, 0);
        let lengths = [64, 1000, 9000];
        for len in lengths {
            assert!(burst.push(&vec![7; len]));
        }
        function.process(&mut burst, Nanos::ZERO);
        let declared: u64 = lengths
            .iter()
            .map(|len| 3000 + (250.5 * *len as f64) as u64)
            .sum();
        assert_eq!(burst.spent(), Nanos(declared));
        assert!(
            burst
                .packets()
                .all(|packet| packet.verdict() == Verdict::Forward(0))
        );
        // Without a cost there is none, after a reload too.
        function.reload(Configuration::default());
        burst.begin(0, 0);
        burst.push(&[7; 64]);
        function.process(&mut burst, Nanos::ZERO);
        assert_eq!(burst.spent(), Nanos::ZERO);
    }

    #[test]
    fn only_generated_packets_are_stamped() {
        let mut function = forward("stamp = true");
        let ends = [1, 2].map(|host| std::net::SocketAddr::from(([10, 0, 0, host], 1000)));
        let stamp = stamp::Stamp {
            flow: 1,
            sequence: 2,
            sent: 3,
            instance: 0,
        };
        let payload = stamp.to_bytes();
        let mut frame = packet::build::Frame::udp(ends[0], ends[1], &payload).unwrap();
        let other = frame.to_vec().unwrap();
        frame.src_mac = stamp::GENERATED_MAC;
        let generated = frame.to_vec().unwrap();
        let mut burst = Burst::new();
        burst.begin(0, 0);
        assert!(burst.push(&other) && burst.push(&generated));
        function.process(&mut burst, Nanos::ZERO);
        let frames: Vec<Vec<u8>> = burst.packets().map(|packet| packet.frame().to_vec()).collect();
        assert_eq!(frames[0], other);
        assert_eq!(stamp::read(&frames[1]).unwrap().instance, 7);
        let mut values = [0];
        function.metrics(&mut values);
        assert_eq!(values, [1]);
    }

    #[test]
    fn wrong_configurations_are_refused() {
        let no_id = Setup { instance: 0, ..SETUP };
        for (text, setup) in [
            ("cost_ns = -1", SETUP),
            ("cost_ns_per_byte = 1001.0", SETUP),
            ("cost_ns_per_byte = nan", SETUP),
            ("costs = 1", SETUP),
            ("stamp = true", no_id),
        ] {
            assert!(Forward::compile(text, &setup).is_err(), "{text}");
        }
    }
}
