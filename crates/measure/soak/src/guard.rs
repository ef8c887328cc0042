//! The guard: a process beside the soak that removes everything of it, however the soak has ended.
//!
//! It reads lines from the soak and cleans up when they end: when the soak has stopped its incos itself, when it has
//! failed, and when it was killed. The soak writes a line before it does to the machine what a killed process cannot
//! undo: the control groups of private engines, and a clock that is wrong.

use std::fs;
use std::io::{BufRead as _, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use display::output;
use engine::cgroup::{Hierarchy, ROOT};
use model::Nanos;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::Signal;
use rustix::time::{ClockId, Timespec, clock_settime};

use crate::bed::{BedName, this_program};
use crate::process::{mounts_in, of_directory};

/// Time for an inco that notices the end of the soak, and for `inco stop`.
const STOP_LIMIT: Duration = Duration::from_secs(30);
/// Time from SIGTERM to SIGKILL.
const GRACE: Duration = Duration::from_secs(3);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A pair of readings of the wall clock and the monotonic clock: what the time is, however the wall clock is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RightTime {
    wall: Nanos,
    monotonic: Nanos,
}

impl RightTime {
    /// Reads both clocks.
    pub(crate) fn now() -> RightTime {
        RightTime {
            wall: clock::wall(),
            monotonic: clock::monotonic(),
        }
    }

    /// The wall-clock time at `monotonic`, shifted by `seconds`.
    fn at(self, monotonic: Nanos, seconds: i64) -> Timespec {
        let wall = self.wall + monotonic.since(self.monotonic);
        Timespec {
            tv_sec: (wall.0 / 1_000_000_000) as i64 + seconds,
            tv_nsec: (wall.0 % 1_000_000_000) as i64,
        }
    }

    /// Sets the wall clock, `seconds` away from what it is; 0 sets it right.
    ///
    /// # Errors
    /// The right to set the clock is missing.
    pub(crate) fn set(self, seconds: i64) -> Result<()> {
        clock_settime(ClockId::Realtime, self.at(clock::monotonic(), seconds))
            .context("cannot set the clock (CAP_SYS_TIME is needed)")
    }
}

/// The guard as the soak sees it.
pub(crate) struct Guard {
    child: Child,
    lines: Option<ChildStdin>,
}

impl Guard {
    /// Starts it for that directory.
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) fn start(directory: &Path) -> Result<Guard> {
        let mut child = Command::new(this_program())
            .args(["soak", "--guard"])
            .arg(directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Not that of the soak: who waits for its end would wait for the guard's.
            .stderr(Stdio::null())
            // Ctrl-C of the terminal is for the soak alone.
            .process_group(0)
            .spawn()
            .context("cannot start the guard")?;
        let lines = child.stdin.take();
        Ok(Guard { child, lines })
    }

    fn tell(&mut self, line: &str) -> Result<()> {
        let lines = self.lines.as_mut().context("the guard is asked to end")?;
        writeln!(lines, "{line}").context("the guard has ended")
    }

    /// Announces a control group whose processes end and which is removed in the end.
    ///
    /// # Errors
    /// The guard has ended.
    pub(crate) fn group(&mut self, name: &str) -> Result<()> {
        self.tell(&format!("group {name}"))
    }

    /// Announces a network namespace that is removed in the end.
    ///
    /// # Errors
    /// The guard has ended.
    pub(crate) fn namespace(&mut self, name: &str) -> Result<()> {
        self.tell(&format!("namespace {name}"))
    }

    /// Announces that the wall clock will be wrong, or that it is right again.
    ///
    /// # Errors
    /// The guard has ended.
    pub(crate) fn clock(&mut self, right: Option<RightTime>) -> Result<()> {
        match right {
            Some(right) => self.tell(&format!("clock {} {}", right.wall.0, right.monotonic.0)),
            None => self.tell("clock"),
        }
    }

    /// Has everything removed. Returns what was still there.
    ///
    /// # Errors
    /// The guard has failed.
    pub(crate) fn finish(mut self) -> Result<Vec<String>> {
        drop(self.lines.take());
        let mut found = String::new();
        if let Some(mut output) = self.child.stdout.take() {
            output
                .read_to_string(&mut found)
                .context("cannot read what the guard says")?;
        }
        let status = self.child.wait().context("cannot wait for the guard")?;
        anyhow::ensure!(status.success(), "the guard ended with {status}");
        Ok(found.lines().map(str::to_owned).collect())
    }
}

/// The guard's program: `inco soak --guard DIRECTORY`.
///
/// # Errors
/// The directory cannot be removed.
pub(crate) fn run(directory: &Path) -> Result<()> {
    let (mut groups, mut namespaces) = (Vec::new(), Vec::new());
    let mut right = None;
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["group", name] => groups.push(name.to_owned()),
            ["namespace", name] => namespaces.push(name.to_owned()),
            ["clock", wall, monotonic] => {
                let parsed = wall.parse().ok().zip(monotonic.parse().ok());
                right = parsed.map(|(wall, monotonic)| RightTime {
                    wall: Nanos(wall),
                    monotonic: Nanos(monotonic),
                });
            }
            _ => right = None,
        }
    }
    if let Some(right) = right {
        // Nobody else can.
        let _set = right.set(0);
    }
    clean(directory, &groups, &namespaces)
}

/// Removes everything of a run, and prints what was still there.
fn clean(directory: &Path, groups: &[String], namespaces: &[String]) -> Result<()> {
    let beds: Vec<PathBuf> = BedName::ALL
        .iter()
        .map(|name| directory.join(name.word()))
        .collect();
    // What is frozen can end only if it goes on.
    for (process, _) in of_directory(directory) {
        process.signal(Signal::CONT);
    }
    // An inco ends with the soak, by itself.
    let is_inco = |command: &str| command.contains(" run --with-process ");
    wait_until(STOP_LIMIT, || {
        !of_directory(directory)
            .iter()
            .any(|(_, command)| is_inco(command))
    });
    let mut found = Vec::new();
    for bed in beds.iter().filter(|bed| bed.join("run/run.json").exists()) {
        found.push(format!("a run in {}", bed.display()));
        stop(bed);
    }
    let hierarchy = Hierarchy::at(ROOT)?;
    for name in groups {
        for child in hierarchy.children(name) {
            found.push(format!("control group {name}/{child}"));
            let group = hierarchy.group(&format!("{name}/{child}"));
            wait_until(GRACE, || group.kill().unwrap_or(true));
            wait_until(GRACE, || group.remove().unwrap_or(true));
        }
    }
    for name in namespaces {
        if Path::new("/run/netns").join(name).exists() {
            found.push(format!("network namespace {name}"));
            let _gone = testbed::network::run("ip", &["netns", "del", name]);
        }
    }
    for (signal, grace) in [(Signal::TERM, GRACE), (Signal::KILL, GRACE)] {
        for (process, command) in of_directory(directory) {
            if signal == Signal::TERM {
                found.push(format!("process {}: {command}", process.pid));
            }
            process.signal(signal);
        }
        wait_until(grace, || of_directory(directory).is_empty());
    }
    for name in groups {
        wait_until(GRACE, || hierarchy.group(name).remove().unwrap_or(true));
    }
    let own = |target: &str| {
        beds.iter()
            .any(|bed| [bed.join("state"), bed.join("run/events")].contains(&target.into()))
    };
    for target in mounts_in(directory).iter().rev() {
        if !own(target) {
            found.push(format!("mount {target}"));
        }
        let _gone = unmount(target.as_str(), UnmountFlags::DETACH);
    }
    if directory.exists() {
        fs::remove_dir_all(directory).with_context(|| format!("cannot remove {}", directory.display()))?;
    }
    for line in found {
        output::line(line)?;
    }
    Ok(())
}

/// `inco stop` in a bed, within its limit.
fn stop(bed: &Path) {
    let stopping = Command::new(this_program())
        .arg("stop")
        .env("INCO_RUN_DIR", bed.join("run"))
        .env("INCO_STATE_DIR", bed.join("state"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    if let Ok(mut stopping) = stopping {
        if !wait_until(STOP_LIMIT, || !matches!(stopping.try_wait(), Ok(None))) {
            let _ended = stopping.kill();
        }
        let _status = stopping.wait();
    }
}

fn wait_until(limit: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let since = Instant::now();
    loop {
        if is_so() {
            return true;
        }
        if since.elapsed() > limit {
            return false;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_right_time_follows_the_monotonic_clock() {
        let right = RightTime {
            wall: Nanos(1_000_000_000_500_000_000),
            monotonic: Nanos(7_000_000_000),
        };
        let at = right.at(Nanos(9_600_000_000), -3600);
        assert_eq!((at.tv_sec, at.tv_nsec), (1_000_000_003 - 3600, 100_000_000));
    }
}
