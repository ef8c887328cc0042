//! `inco-nf` with a function more: `guard` drops UDP packets to some ports. docs/tasks/own-function.md explains it.

use std::process::ExitCode;

use functions::{About, Burst, Entry, Error, Function, LIBRARY, Metric, Reason, Setup, Summary, from_toml};
use model::{Nanos, protocol};
use packet::{Parsed, parse};

/// Drops UDP packets to the ports of its configuration, such as `ports = [53, 123]`.
struct Guard {
    configuration: Configuration,
    passed: u64,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Configuration {
    ports: Vec<u16>,
}

/// Why packets are dropped, and the index of each reason.
const REASONS: &[Metric] = &[Metric::counter("guarded", "UDP packets to one of the ports")];
const GUARDED: Reason = Reason(0);
/// What is counted besides.
const METRICS: &[Metric] = &[Metric::counter("passed", "Packets that passed")];

impl Function for Guard {
    type Configuration = Configuration;

    fn about() -> About {
        About {
            name: "guard",
            help: "Drops UDP packets to some ports",
            reasons: REASONS,
            metrics: METRICS,
        }
    }

    fn compile(text: &str, _setup: &Setup) -> Result<Configuration, Error> {
        let configuration: Configuration = from_toml(text)?;
        if configuration.ports.contains(&0) {
            return Err(Error::whole("ports: there is no port 0"));
        }
        Ok(configuration)
    }

    fn new(configuration: Configuration, _setup: &Setup) -> Guard {
        Guard {
            configuration,
            passed: 0,
        }
    }

    fn reload(&mut self, configuration: Configuration) -> Configuration {
        std::mem::replace(&mut self.configuration, configuration)
    }

    fn process(&mut self, burst: &mut Burst, _now: Nanos) {
        for mut packet in burst.packets() {
            let port = match parse(packet.frame()) {
                Parsed::Flow(info) if info.protocol == protocol::UDP => {
                    // The destination port, in the byte order of networks.
                    let at = usize::from(info.l4_offset) + 2;
                    packet.frame().get(at..).and_then(<[u8]>::first_chunk)
                }
                _ => None,
            };
            let port = port.map(|bytes| u16::from_be_bytes(*bytes));
            if port.is_some_and(|port| self.configuration.ports.contains(&port)) {
                packet.drop(GUARDED);
            } else {
                self.passed += 1;
            }
        }
    }

    fn metrics(&self, values: &mut [u64]) {
        values.copy_from_slice(&[self.passed]);
    }

    fn summary(&self) -> Summary {
        Summary {
            entries: self.configuration.ports.len() as u64,
            ..Summary::default()
        }
    }
}

/// The functions of this program.
const FUNCTIONS: &[Entry] = &{
    // Those of the library, and `guard`.
    let mut all = [Entry::of::<Guard>(); LIBRARY.len() + 1];
    let mut at = 0;
    while at < LIBRARY.len() {
        all[at] = LIBRARY[at];
        at += 1;
    }
    all
};

fn main() -> ExitCode {
    inco_nf::main(FUNCTIONS)
}

#[cfg(test)]
mod tests {
    use functions::Verdict;

    use super::*;

    #[test]
    fn it_drops_what_goes_to_a_guarded_port() {
        let setup = Setup {
            instance: 1,
            ports: 1,
            seed: 0,
            external: None,
        };
        let mut guard = Guard::new(Guard::compile("ports = [53]", &setup).unwrap(), &setup);
        let mut burst = Burst::new();
        burst.begin(0, 0);
        for port in [53, 54] {
            let (from, to) = (([10, 0, 0, 1], 1000).into(), ([10, 0, 0, 2], port).into());
            let frame = packet::build::Frame::udp(from, to, b"hello").unwrap();
            assert!(burst.push(&frame.to_vec().unwrap()));
        }
        guard.process(&mut burst, Nanos::ZERO);
        let verdicts: Vec<Verdict> = burst.packets().map(|packet| packet.verdict()).collect();
        assert_eq!(verdicts, [Verdict::Drop(GUARDED), Verdict::Forward(0)]);
    }
}
