//! DPDK's forwarder without a lookup: the I/O limit.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context as _, Result, bail};

use super::contestant::{Contestant, KilledOnDrop, command_line};
use super::memory::Memory;

/// The program.
pub(super) const PROGRAM: &str = "dpdk-testpmd";

/// Its tuning: packets per burst and mbufs in its core's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tuning {
    pub(super) burst: u16,
    pub(super) cache: u16,
}

/// Bursts and caches that are tried; the best combination is used.
pub(super) const BURSTS: [u16; 2] = [32, 64];
/// See [`BURSTS`].
pub(super) const CACHES: [u16; 2] = [256, 512];

/// A `testpmd` that forwards from captures to sinks.
pub(super) struct Testpmd {
    child: KilledOnDrop,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    ports: usize,
    commands: Vec<String>,
}

impl Testpmd {
    /// Starts it with one sink per capture; it forwards on `cpus`, one for each.
    pub(super) fn start(
        captures: &[&Path],
        frames: usize,
        tuning: Tuning,
        memory: &Memory,
        (control, cpus): (usize, &[usize]),
    ) -> Result<Testpmd> {
        // It buffers output to a pipe; `stdbuf` makes it write every line.
        let mut command = Command::new("stdbuf");
        command.args(["-oL", PROGRAM]);
        let mut lcores = format!("0@{control}");
        for (index, cpu) in cpus.iter().enumerate() {
            lcores.push_str(&format!(",{}@{cpu}", index + 1));
        }
        command.args(["--lcores", &lcores, "--no-pci", "--no-shconf", "--no-telemetry"]);
        command.args(memory.eal_args(frames, "testpmd"));
        for (index, capture) in captures.iter().enumerate() {
            command.arg("--vdev").arg(format!(
                "net_pcap{index},rx_pcap={},infinite_rx=1",
                capture.display()
            ));
            command.arg("--vdev").arg(format!("net_null{index},no-rx=1"));
        }
        command.args(["--", "-i", "--auto-start", "--no-flush-rx", "--forward-mode=io"]);
        command.args([
            format!("--nb-cores={}", cpus.len()),
            format!("--burst={}", tuning.burst),
            format!("--mbcache={}", tuning.cache),
            format!("--mbuf-size={}", Memory::MBUF_ROOM),
            format!("--total-num-mbufs={}", Memory::mbufs(frames)),
        ]);
        let commands = vec![command_line(&command)];
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {PROGRAM}; `scripts/setup.sh bench` installs it"))?;
        let input = child.stdin.take().context("testpmd has no input")?;
        let output = BufReader::new(child.stdout.take().context("testpmd has no output")?);
        let mut started = Testpmd {
            child: KilledOnDrop::new(child),
            input,
            output,
            ports: captures.len(),
            commands,
        };
        // The first reply shows that it forwards.
        started.packets()?;
        Ok(started)
    }

    /// Changes the burst at run time.
    pub(super) fn set_burst(&mut self, burst: u16) -> Result<()> {
        writeln!(self.input, "set burst {burst}").context("testpmd does not accept commands any more")
    }
}

impl Contestant for Testpmd {
    fn name(&self) -> &'static str {
        "testpmd"
    }

    fn commands(&self) -> &[String] {
        &self.commands
    }

    fn pid(&self) -> u32 {
        self.child.pid()
    }

    fn packets(&mut self) -> Result<u64> {
        let mut sum = 0;
        // Ports alternate between capture and sink; sinks receive nothing.
        for port in 0..2 * self.ports {
            writeln!(self.input, "show port stats {port}")
                .context("testpmd does not accept commands any more")?;
            sum += self.next_count()?;
        }
        Ok(sum)
    }
}

impl Testpmd {
    fn next_count(&mut self) -> Result<u64> {
        let mut seen = String::new();
        loop {
            let mut line = String::new();
            if self
                .output
                .read_line(&mut line)
                .context("cannot read the output of testpmd")?
                == 0
            {
                bail!(
                    "testpmd ended; its last output: {seen}; it was started by: {}",
                    self.commands.join(" ")
                );
            }
            if let Some(count) = received(&line) {
                return Ok(count);
            }
            seen.push_str(&line);
        }
    }
}

/// The number in a line such as `  RX-packets: 50829024   RX-missed: 0`.
fn received(line: &str) -> Option<u64> {
    line.trim_start()
        .strip_prefix("RX-packets:")?
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read() {
        assert_eq!(
            received("  RX-packets: 50829024       RX-missed: 0          RX-bytes:  1\n"),
            Some(50_829_024)
        );
        assert_eq!(received("  TX-packets: 1\n"), None);
        assert_eq!(received("testpmd> \n"), None);
    }
}
