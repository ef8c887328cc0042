//! Processes, as `/proc` shows them.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

/// A process. Its number may be used again; its start time is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    start: u64,
}

impl Process {
    /// The running process with this number.
    pub(crate) fn of(pid: u32) -> Option<Process> {
        let start = start_time(pid)?;
        Some(Process { pid, start })
    }

    /// Whether it still runs.
    pub(crate) fn is_alive(self) -> bool {
        start_time(self.pid) == Some(self.start)
    }

    /// Sends a signal, unless it has ended.
    pub(crate) fn signal(self, signal: Signal) {
        if self.is_alive()
            && let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw)
        {
            // Fails only if it has ended meanwhile.
            let _gone = kill_process(pid, signal);
        }
    }

    /// Its open files.
    pub(crate) fn descriptors(self) -> u64 {
        fs::read_dir(format!("/proc/{}/fd", self.pid)).map_or(0, |entries| entries.count() as u64)
    }

    /// Its memory that is neither shared nor of a file, swapped parts included, in kB.
    pub(crate) fn private_kilobytes(self) -> u64 {
        ["RssAnon:", "VmSwap:"]
            .map(|key| self.status(key).unwrap_or(0))
            .iter()
            .sum()
    }

    /// Its address space, in kB.
    pub(crate) fn address_space_kilobytes(self) -> Option<u64> {
        self.status("VmSize:")
    }

    fn status(self, key: &str) -> Option<u64> {
        let text = fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix(key))?;
        line.split_whitespace().next()?.parse().ok()
    }
}

/// Field 22 of the process' line, in ticks since boot. [`None`] for one that has ended, also if nobody has waited for
/// it yet.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // After the name, which is in brackets and may hold anything.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    if fields.next() == Some("Z") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// The processes whose environment or command line names something in `directory`, each with its command line.
/// Without this one.
pub(crate) fn of_directory(directory: &Path) -> Vec<(Process, String)> {
    let wanted = directory.as_os_str().as_bytes();
    let names = |bytes: &[u8]| bytes.windows(wanted.len()).any(|part| part == wanted);
    let own = std::process::id();
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| *pid != own)
        .filter_map(|pid| {
            let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            if !names(&command) && !names(&environment) {
                return None;
            }
            let words = String::from_utf8_lossy(&command).replace('\0', " ");
            Some((Process::of(pid)?, words.trim().to_owned()))
        })
        .collect()
}

/// Where something is mounted in `directory`, in the order in which it was.
pub(crate) fn mounts_in(directory: &Path) -> Vec<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let targets = mounts.lines().filter_map(|line| line.split_whitespace().nth(4));
    targets
        .filter(|target| Path::new(target).starts_with(directory))
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn processes_are_found_by_their_directory() {
        let directory = format!("/nonexistent/soak-{}", std::process::id());
        let mut child = Command::new("sleep")
            .arg("100")
            .env("INCO_RUN_DIR", format!("{directory}/run"))
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        // Until the program is executed it is a copy of this one.
        let since = std::time::Instant::now();
        let found = loop {
            let found = of_directory(Path::new(&directory));
            if !found.is_empty() || since.elapsed().as_secs() > 10 {
                break found;
            }
        };
        assert_eq!(found.len(), 1);
        let process = found[0].0;
        assert_eq!(process.pid, child.id());
        assert!(
            process.is_alive() && process.descriptors() > 0 && process.address_space_kilobytes() > Some(0)
        );
        process.signal(Signal::KILL);
        child.wait().unwrap();
        assert!(!process.is_alive());
        assert!(of_directory(Path::new(&directory)).is_empty());
    }
}
