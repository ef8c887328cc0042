//! What all beds feel: CPU contention, a wrong clock.

use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result};
use model::Random;

use super::{Fault, Injected, Reach};
use crate::bed::Bed;
use crate::guard::{Guard, RightTime};
use crate::plan::{below, milliseconds};

/// Busy processes per CPU.
const BUSY_PER_CPU: usize = 2;
/// How far the clock jumps, in seconds: minutes, hours and days, in both directions.
const JUMPS_S: [i64; 6] = [60, -60, 3600, -3600, 86_400, -86_400];

/// Other programs want the CPUs.
pub(super) struct Contention;

impl Fault for Contention {
    fn name(&self) -> &'static str {
        "cpu-contention"
    }

    fn about(&self) -> &'static str {
        "keeps every CPU busy with two other programs for 0.5 s to 3 s"
    }

    fn reach(&self) -> Reach {
        Reach::Machine
    }

    fn inject(&self, _bed: &mut Bed, random: &mut Random, _guard: &mut Guard) -> Result<Injected> {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let time = milliseconds(random, 500, 3000);
        let mut busy = Vec::new();
        for _ in 0..cpus * BUSY_PER_CPU {
            // They end by themselves, should nobody end them.
            let child = Command::new("timeout")
                .args(["10", "sh", "-c", "while :; do :; done"])
                .stdin(Stdio::null())
                .spawn();
            match child.context("cannot run `timeout sh`") {
                Ok(child) => busy.push(child),
                Err(error) => {
                    end(busy);
                    return Err(error);
                }
            }
        }
        let what = format!("{} busy programs for {} ms", busy.len(), time.as_millis());
        Ok(Injected::alone(what).healed(time, move |_, _| {
            end(busy);
            Ok(())
        }))
    }
}

/// Ends `timeout`, which ends its program.
fn end(busy: Vec<Child>) {
    for mut child in busy {
        if let Some(pid) = i32::try_from(child.id())
            .ok()
            .and_then(rustix::process::Pid::from_raw)
        {
            let _gone = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _status = child.wait();
    }
}

/// The wall clock jumps, and back.
pub(super) struct ClockJump;

impl Fault for ClockJump {
    fn name(&self) -> &'static str {
        "clock-jump"
    }

    fn about(&self) -> &'static str {
        "sets the wall clock of the machine a minute, an hour or a day away, for up to 0.5 s"
    }

    fn reach(&self) -> Reach {
        Reach::Machine
    }

    fn inject(&self, _bed: &mut Bed, random: &mut Random, guard: &mut Guard) -> Result<Injected> {
        let seconds = JUMPS_S[below(random, JUMPS_S.len())];
        let time = milliseconds(random, 100, 500);
        let right = RightTime::now();
        guard.clock(Some(right))?;
        if let Err(error) = right.set(seconds) {
            guard.clock(None)?;
            return Err(error);
        }
        let what = format!("set the clock {seconds:+} s for {} ms", time.as_millis());
        Ok(Injected::alone(what).healed(time, move |_, guard| {
            right.set(0)?;
            guard.clock(None)
        }))
    }
}
