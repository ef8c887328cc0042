//! The CPU and memory use of a complete inco without traffic.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde::Serialize;

use super::contestant::{KilledOnDrop, process_ns};
use super::steer::Folder;
use crate::args::IdleArgs;
use display::output;

/// Maximum time until it answers.
const TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Time without measurement after the start: workers go to sleep in stages.
const SETTLE_TIME: Duration = Duration::from_secs(1);

/// The result.
#[derive(Clone, Debug, Serialize)]
struct Row {
    instances: u16,
    seconds: f64,
    /// CPU time of all its threads, in percent of one core.
    cpu_percent: f64,
}

/// Runs the bench.
pub(super) fn run(args: &IdleArgs) -> Result<()> {
    let row = measure(args.instances, Duration::from_secs(args.seconds))?;
    if args.json {
        return output::json(&row, output::is_terminal());
    }
    output::line(format!(
        "{} instances, no packets: {:.2} % of a core over {:.0} s",
        row.instances, row.cpu_percent, row.seconds
    ))
}

fn measure(instances: u16, time: Duration) -> Result<Row> {
    let folder = Folder::new()?;
    let file = folder.path.join("idle.toml");
    let text = format!(
        "[[uplink]]\nname = \"wan\"\ndevice = \"memif:wan.sock\"\n\n[service.sink]\nport = \"null\"\n\
         instances = {instances}\n"
    );
    std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    let program = std::env::current_exe().context("cannot find inco's own executable")?;
    let command = |args: &[&str]| {
        let mut command = Command::new(&program);
        command
            .args(args)
            .env("INCO_RUN_DIR", &folder.path)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    };
    let child = command(&["run", "-f", &file.to_string_lossy()])
        .spawn()
        .context("cannot start inco run")?;
    let inco = KilledOnDrop::new(child);
    let started = Instant::now();
    while !command(&["status"]).status().is_ok_and(|status| status.success()) {
        if started.elapsed() > TIMEOUT {
            bail!(
                "inco does not answer after {} s; `INCO_RUN_DIR={} inco run -f {}` says why",
                TIMEOUT.as_secs(),
                folder.path.display(),
                file.display()
            );
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    std::thread::sleep(SETTLE_TIME);
    let (before, began) = (process_ns(inco.pid())?, Instant::now());
    std::thread::sleep(time);
    let used = process_ns(inco.pid())?.saturating_sub(before);
    let seconds = began.elapsed().as_secs_f64();
    // A clean stop, so that it removes what it created.
    let _asked = command(&["stop"]).status();
    Ok(Row {
        instances,
        seconds,
        cpu_percent: used as f64 / 1e7 / seconds,
    })
}
