//! What the CPUs of this machine do.

use std::ops::Sub;

use anyhow::{Context, Result};

/// CPU time of the whole machine, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuTime {
    /// In which it was not idle.
    pub busy_s: f64,
    /// In which a virtual machine wanted a CPU and its host gave it none.
    pub stolen_s: f64,
}

impl CpuTime {
    /// Since the machine was started.
    ///
    /// # Errors
    /// `/proc/stat` cannot be read.
    pub fn now() -> Result<CpuTime> {
        let text = std::fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
        Ok(parse(&text, rustix::param::clock_ticks_per_second() as f64))
    }
}

impl Sub for CpuTime {
    type Output = CpuTime;

    fn sub(self, before: CpuTime) -> CpuTime {
        CpuTime {
            busy_s: self.busy_s - before.busy_s,
            stolen_s: self.stolen_s - before.stolen_s,
        }
    }
}

/// Reads the first line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal, and guests, which user
/// time includes.
fn parse(text: &str, ticks_per_s: f64) -> CpuTime {
    let words = text.lines().next().unwrap_or_default().split_whitespace().skip(1);
    let ticks: Vec<f64> = words.map(|word| word.parse().unwrap_or(0.0)).collect();
    let of = |place: usize| ticks.get(place).copied().unwrap_or(0.0);
    CpuTime {
        busy_s: [0, 1, 2, 5, 6].into_iter().map(of).sum::<f64>() / ticks_per_s,
        stolen_s: of(7) / ticks_per_s,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_and_guests_do_not_count() {
        let text = "cpu  100 20 30 4000 50 6 7 80 9 10\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        let time = parse(text, 100.0);
        assert!(
            (time.busy_s - 1.63).abs() < 1e-9 && (time.stolen_s - 0.8).abs() < 1e-9,
            "{time:?}"
        );
        assert_eq!(parse("", 100.0), CpuTime::default());
    }
}
