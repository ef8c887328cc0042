//! A plain flow table in C on DPDK as a peer: key, CRC hash, open addressing, counter. The ratio shows the cost of
//! everything else that inco does.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::contestant::Contestant;
use super::memory::Memory;
use super::native::{self, Native};
use super::traffic::Ip;

/// The program's source: compiled for the CPU that it runs on.
const SOURCE: &str = include_str!("../native/naive.c");

/// Minimum share of the I/O limit by number of flows. Below it the peer itself is faulty, and the ratio is invalid.
const FLOORS: [(u32, f64); 4] = [(32, 0.65), (1_000, 0.75), (10_000, 0.60), (100_000, 0.40)];

/// The minimum share for `flows` flows: the entry with the next number of flows, 0 beyond the last.
pub(super) fn floor(flows: u32) -> f64 {
    let found = FLOORS.iter().find(|(most, _)| flows <= *most);
    found.map_or(0.0, |(_, floor)| *floor)
}

/// Slots of its table: at least twice the number of flows.
fn slots(flows: usize) -> usize {
    (2 * flows).next_power_of_two()
}

/// DPDK memory of its table, in MiB.
pub(super) fn table_mib(flows: usize, ip: Ip) -> usize {
    let entry = match ip {
        Ip::V4 => 32,
        Ip::V6 => 64,
    };
    (slots(flows) * entry).div_ceil(1 << 20) + 1
}

/// Compiles it into `folder`.
///
/// # Errors
/// Returns an error if there is no C compiler or no DPDK development package.
pub(super) fn compile(folder: &Path) -> Result<PathBuf> {
    native::compile(folder, "naive", SOURCE, "libdpdk", "libdpdk-dev")
}

/// The running program.
pub(super) struct Naive(Native);

impl Naive {
    /// Starts it with a capture of one frame per flow, and with sinks.
    pub(super) fn start(
        program: &Path,
        capture: &Path,
        (ip, flows): (Ip, u32),
        sinks: u16,
        memory: &Memory,
        (control, cpu): (usize, usize),
    ) -> Result<Naive> {
        let flows = flows as usize;
        let mut command = Command::new(program);
        command.args(["--lcores", &format!("0@{control},1@{cpu}")]);
        command.args(["--no-pci", "--no-shconf", "--no-telemetry"]);
        command.args(memory.eal_args_and(table_mib(flows, ip), flows, "naive"));
        command
            .arg("--vdev")
            .arg(format!("net_pcap0,rx_pcap={},infinite_rx=1", capture.display()));
        for sink in 0..sinks {
            command.arg("--vdev").arg(format!("net_null{sink},no-rx=1"));
        }
        command.arg("--").arg(match ip {
            Ip::V4 => "4",
            Ip::V6 => "6",
        });
        command.args([sinks.into(), slots(flows), Memory::mbufs(flows)].map(|n: usize| n.to_string()));
        let mut started = Naive(Native::start(command)?);
        // The first reply shows that it forwards.
        started.read()?;
        Ok(started)
    }

    /// Packets received and flows in its table.
    fn read(&mut self) -> Result<(u64, u64)> {
        self.0.ask("")
    }

    /// Flows in its table.
    pub(super) fn flows(&mut self) -> Result<u64> {
        Ok(self.read()?.1)
    }
}

impl Contestant for Naive {
    fn name(&self) -> &'static str {
        "naive"
    }

    fn commands(&self) -> &[String] {
        self.0.commands()
    }

    fn pid(&self) -> u32 {
        self.0.pid()
    }

    fn packets(&mut self) -> Result<u64> {
        Ok(self.read()?.0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::traffic::write_capture;
    use super::*;

    #[test]
    fn floors_go_by_the_next_number_of_flows() {
        assert_eq!(floor(1), 0.65);
        assert_eq!(floor(32), 0.65);
        assert_eq!(floor(33), 0.75);
        assert_eq!(floor(100_000), 0.40);
        assert_eq!(floor(100_001), 0.0);
    }

    #[test]
    fn tables_are_at_most_half_full() {
        for flows in [1, 32, 1000, 1_000_000] {
            assert!(slots(flows) >= 2 * flows);
        }
    }

    /// It recognises flows of both families: the table has exactly the capture's flows after several repetitions.
    #[test]
    fn it_has_each_flow_once() {
        let directory = tempfile::tempdir().unwrap();
        let program = compile(directory.path()).unwrap();
        for ip in [Ip::V4, Ip::V6] {
            let capture = directory.path().join("flows.pcap");
            write_capture(&capture, ip, 0..500, 64).unwrap();
            let memory = Memory::none();
            let mut naive = Naive::start(&program, &capture, (ip, 500), 4, &memory, (0, 0)).unwrap();
            let started = std::time::Instant::now();
            while naive.packets().unwrap() < 5_000 {
                assert!(started.elapsed().as_secs() < 30, "it forwards nothing");
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            assert_eq!(naive.flows().unwrap(), 500);
        }
    }
}
