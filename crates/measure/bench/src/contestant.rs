//! The common part of all contestants: a process that polls on one core, is stopped while the others run, and reports
//! the number of packets that it moved.

use std::collections::HashMap;
use std::fs;
use std::process::Child;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use super::cleanup::Cleanup;

/// Time that a contestant runs after each stop before it is measured, to warm caches and branch predictors.
const WARM_UP: Duration = Duration::from_millis(150);
/// Nanoseconds in a second.
const SECOND: f64 = 1e9;

/// A participant of a comparison.
pub(super) trait Contestant {
    /// Its name in tables and files.
    fn name(&self) -> &'static str;
    /// The command lines that started it.
    fn commands(&self) -> &[String];
    /// The process that polls.
    fn pid(&self) -> u32;
    /// Packets received from its sources since its start.
    fn packets(&mut self) -> Result<u64>;
}

/// One measurement of a contestant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Measured {
    pub(super) packets: u64,
    /// CPU time of its busiest polling thread, in seconds.
    pub(super) seconds: f64,
}

impl Measured {
    /// Millions of packets per second of CPU time.
    pub(super) fn mpps(&self) -> f64 {
        self.packets as f64 / self.seconds.max(1e-9) / 1e6
    }
}

/// Resumes a contestant for `warm_up`, measures it for `window`, and suspends it.
pub(super) fn measure(
    contestant: &mut dyn Contestant,
    warm_up: Duration,
    window: Duration,
) -> Result<Measured> {
    resume(contestant)?;
    std::thread::sleep(warm_up + WARM_UP);
    let clock = Clock::start(contestant)?;
    let packets = contestant.packets()?;
    std::thread::sleep(window);
    let packets = contestant.packets()?.saturating_sub(packets);
    let measured = clock.stop(contestant, packets)?;
    suspend(contestant)?;
    Ok(measured)
}

/// CPU time of a contestant's polling thread since a start. CPU time, not wall time, because the machine runs other
/// processes too.
pub(super) struct Clock {
    pid: u32,
    times: HashMap<String, u64>,
}

impl Clock {
    /// Starts at the current CPU time.
    pub(super) fn start(contestant: &dyn Contestant) -> Result<Clock> {
        Clock::of(contestant.pid())
    }

    /// Starts at the current CPU time of process `pid`.
    pub(super) fn of(pid: u32) -> Result<Clock> {
        Ok(Clock {
            pid,
            times: thread_times(pid)?,
        })
    }

    /// CPU time since the start in nanoseconds: of the busiest thread.
    pub(super) fn elapsed_ns(&self) -> Result<u64> {
        let longest = thread_times(self.pid)?
            .iter()
            .map(|(thread, after)| after.saturating_sub(self.times.get(thread).copied().unwrap_or(0)))
            .max();
        Ok(longest.unwrap_or(0))
    }

    /// The measurement since the start, for `packets` moved packets.
    pub(super) fn stop(self, contestant: &dyn Contestant, packets: u64) -> Result<Measured> {
        let longest = self.elapsed_ns()?;
        if packets == 0 || longest == 0 {
            bail!(
                "{} processed no packet (started by: {})",
                contestant.name(),
                contestant.commands().join(" && ")
            );
        }
        Ok(Measured {
            packets,
            seconds: longest as f64 / SECOND,
        })
    }
}

/// Stops a contestant with a signal.
pub(super) fn suspend(contestant: &dyn Contestant) -> Result<()> {
    signal(contestant.pid(), Signal::STOP)
}

/// Continues a stopped contestant.
pub(super) fn resume(contestant: &dyn Contestant) -> Result<()> {
    signal(contestant.pid(), Signal::CONT)
}

fn signal(pid: u32, signal: Signal) -> Result<()> {
    let pid = i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .context("the process has no id")?;
    kill_process(pid, signal).with_context(|| format!("cannot signal process {pid:?}"))
}

/// Pins this thread, and the threads that it starts, to one CPU.
pub(super) fn pin_to_cpu(cpu: usize) -> Result<()> {
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(cpu);
    rustix::thread::sched_setaffinity(None, &cpus).with_context(|| format!("cannot move to CPU {cpu}"))
}

/// CPU time of each thread of a process, in nanoseconds.
fn thread_times(pid: u32) -> Result<HashMap<String, u64>> {
    let tasks = format!("/proc/{pid}/task");
    let mut times = HashMap::new();
    for task in fs::read_dir(&tasks).with_context(|| format!("{tasks}: the process has ended"))? {
        let task = task?;
        // A thread may end meanwhile.
        let Ok(text) = fs::read_to_string(task.path().join("schedstat")) else {
            continue;
        };
        if let Some(on_cpu) = text.split_whitespace().next().and_then(|n| n.parse().ok()) {
            times.insert(task.file_name().to_string_lossy().into_owned(), on_cpu);
        }
    }
    Ok(times)
}

/// CPU time of all current threads of a process, in nanoseconds.
pub(super) fn process_ns(pid: u32) -> Result<u64> {
    Ok(thread_times(pid)?.values().sum())
}

/// CPU time of this process's thread with that name, in nanoseconds.
pub(super) fn on_cpu_ns(name: &str) -> Result<u64> {
    for task in fs::read_dir("/proc/self/task").context("cannot list this process's threads")? {
        let task = task?.path();
        let is_it = fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim_end() == name);
        if is_it && let Ok(text) = fs::read_to_string(task.join("schedstat")) {
            let first = text.split_whitespace().next().and_then(|n| n.parse().ok());
            return first.context("the kernel does not report the CPU time of threads");
        }
    }
    bail!("no thread is named {name}")
}

/// A child process that is killed when this is dropped.
pub(super) struct KilledOnDrop {
    pid: u32,
    _killed: Cleanup,
}

impl KilledOnDrop {
    /// Takes ownership of the child.
    pub(super) fn new(mut child: Child) -> KilledOnDrop {
        KilledOnDrop {
            pid: child.id(),
            _killed: Cleanup::by(move || {
                // SIGKILL also ends a stopped process. It fails only for one that has already ended.
                let _ended = child.kill();
                let _status = child.wait();
            }),
        }
    }

    /// Its process id.
    pub(super) fn pid(&self) -> u32 {
        self.pid
    }
}

/// A command as typed in a shell.
pub(super) fn command_line(command: &std::process::Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| {
            let word = word.to_string_lossy();
            if word.contains([' ', '(', '"', ';']) {
                format!("'{word}'")
            } else {
                word.into_owned()
            }
        })
        .collect::<Vec<_>>()
        .join(" ")
}

/// The median; the mean of the middle two for an even number of values, 0 for none.
pub(super) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.as_slice() {
        [] => 0.0,
        all if all.len() % 2 == 1 => all[middle],
        all => (all[middle - 1] + all[middle]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median([]), 0.0);
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn threads_have_times() {
        let busy: u64 = (0..20_000_000_u64).map(std::hint::black_box).sum();
        assert!(busy > 0);
        assert!(
            thread_times(std::process::id())
                .unwrap()
                .values()
                .any(|&ns| ns > 0)
        );
    }

    #[test]
    fn commands_can_be_pasted() {
        let mut command = std::process::Command::new("a");
        command.args(["b c", "d"]);
        assert_eq!(command_line(&command), "a 'b c' d");
    }
}
