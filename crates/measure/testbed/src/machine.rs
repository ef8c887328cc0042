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
    /// Since some moment in the past. Only a difference of two says something.
    ///
    /// It is the time of all CPUs without that in which they were idle, which the kernel measures by its clock. What it
    /// says of busy time is by what runs at its ticks: a program that wakes with the tick is never seen, or always.
    ///
    /// # Errors
    /// `/proc/stat` cannot be read.
    pub fn now() -> Result<CpuTime> {
        let text = std::fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
        let now_s = clock::monotonic().as_secs_f64();
        Ok(parse(
            &text,
            now_s,
            rustix::param::clock_ticks_per_second() as f64,
        ))
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
/// time includes. The lines after it are of a CPU each.
fn parse(text: &str, now_s: f64, ticks_per_s: f64) -> CpuTime {
    let words = text.lines().next().unwrap_or_default().split_whitespace().skip(1);
    let ticks: Vec<f64> = words.map(|word| word.parse().unwrap_or(0.0)).collect();
    let of = |place: usize| ticks.get(place).copied().unwrap_or(0.0) / ticks_per_s;
    let is_cpu = |line: &&str| {
        line.strip_prefix("cpu")
            .is_some_and(|rest| rest.starts_with(|of: char| of.is_ascii_digit()))
    };
    let cpus = text.lines().filter(is_cpu).count() as f64;
    CpuTime {
        busy_s: cpus * now_s - of(3) - of(4) - of(7),
        stolen_s: of(7),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_is_what_is_neither_idle_nor_stolen() {
        let before = "cpu  1 2 3 4000 50 6 7 80 9 10\ncpu0 1 1 1 1 1 1 1 1 1 1\ncpu1 1 1 1 1 1 1 1 1 1 1\nintr 5\ncpufreq 1\n";
        let after = before.replace("4000 50", "4100 60").replace(" 80 ", " 90 ");
        // Two CPUs for a second, of which 1.1 s idle and 0.1 s stolen.
        let time = parse(&after, 8.0, 100.0) - parse(before, 7.0, 100.0);
        assert!(
            (time.busy_s - 0.8).abs() < 1e-9 && (time.stolen_s - 0.1).abs() < 1e-9,
            "{time:?}"
        );
        assert_eq!(parse("", 5.0, 100.0), CpuTime::default());
    }

    /// A program that works for 5 ms of each 10 ms has half a CPU, however its turns lie to the kernel's ticks. Other tests
    /// run meanwhile, so there is no upper limit.
    #[test]
    fn what_works_between_ticks_is_seen() {
        let before = CpuTime::now().unwrap();
        let began = std::time::Instant::now();
        let part = std::time::Duration::from_millis(5);
        while began.elapsed() < 60 * part {
            let turn = std::time::Instant::now();
            while turn.elapsed() < part {
                std::hint::spin_loop();
            }
            std::thread::sleep(part);
        }
        let lasted = began.elapsed().as_secs_f64();
        let time = CpuTime::now().unwrap() - before;
        assert!(
            time.busy_s + time.stolen_s > 0.3 * lasted,
            "{time:?} in {lasted} s"
        );
    }
}
