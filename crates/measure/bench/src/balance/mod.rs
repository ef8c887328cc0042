//! SmartLB's first experiment: few heavy downloads and many light ones go through four functions, and a balancer
//! decides which function serves which connection. Balancers take turns, each with a network, functions and a server of
//! its own.
//!
//! ```text
//! inco       wrk ------------ switch - functions - switch - nginx
//! HAProxy    wrk - HAProxy -- switch - functions - switch - nginx
//! ```
//! With HAProxy, the switch has a service for each function, and the server an address for each: by the choice of an
//! address HAProxy chooses the function. Everything else is the same.

mod bed;
mod inspection;
mod outcome;
mod web;

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use display::output;
use images::EngineName;
use testbed::{Environment, Interrupt, SwitchName, make_image};

use super::facts::facts;
use super::raw::Raw;
use crate::args::{BalanceArgs, BalancedFunction, Balancer};
use bed::{Bed, Function};
use outcome::{Outcome, Run, Windows};

/// The paper's time, five times faster: a heavy download lasts 2 s instead of 10, a light one 0.2 s instead of 1.
/// SmartLB's period of a second, for weights and for readings of the throughput, becomes this.
const PERIOD: Duration = Duration::from_millis(200);
/// The throughput counts from here on, when all connections are open.
const RAMP: Duration = Duration::from_secs(1);

/// The functions that are measured, each in rows of its own.
fn functions(args: &BalanceArgs) -> Result<Vec<Function>> {
    let chosen = match args.function.as_slice() {
        [] => BalancedFunction::ALL,
        chosen => chosen,
    };
    let functions = chosen.iter().map(|of| match of {
        BalancedFunction::Forward => Ok(bed::forward()),
        BalancedFunction::Ids => inspection::function(),
    });
    functions.collect()
}

/// Runs the bench.
pub(super) fn run(args: &BalanceArgs) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("containers of inco's own engine need root: run it with sudo");
    }
    let interrupt = Interrupt::listen()?;
    make_image(EngineName::Oci)?;
    let ground = Environment::new(EngineName::Oci, SwitchName::Soft, false, interrupt.clone())?;
    let balancers = match args.balancer.as_slice() {
        [] => &Balancer::USUAL[..],
        chosen => chosen,
    };
    let functions = functions(args)?;
    let mut raw = Raw::new(&facts(false), &Run::COLUMNS);
    let mut runs = Vec::new();
    for function in &functions {
        for round in 1..=args.rounds {
            for turn in 0..balancers.len() {
                // Each round begins with another one.
                let place = (turn + round as usize - 1) % balancers.len();
                let Some(balancer) = balancers.get(place) else {
                    continue;
                };
                let run = measure(&ground, &interrupt, function, *balancer, round, args)?;
                output::complain(&run.line());
                raw.row(&run.cells());
                raw.write(&args.csv)?;
                runs.push(run);
            }
        }
    }
    let outcome = Outcome::of(args.seconds, balancers, &functions, runs);
    if args.json {
        return output::json(&outcome, output::is_terminal());
    }
    output::text(&outcome.text())?;
    output::line(format!("All turns: {}", args.csv.display()))
}

/// The turn of one balancer.
fn measure(
    ground: &Environment,
    interrupt: &Interrupt,
    function: &Function,
    balancer: Balancer,
    round: u32,
    args: &BalanceArgs,
) -> Result<Run> {
    let mut bed = Bed::start(ground, interrupt, function, balancer)?;
    let scheduler = bed.scheduler()?;
    let duration = Duration::from_secs(args.seconds);
    let first = bed.read()?;
    let (mut heavy, mut light) = web::start_load(bed.client(), ground.directory(), bed.address(), duration)?;
    let began = Instant::now();
    let mut windows = Windows::default();
    let mut next = RAMP;
    while !(heavy.is_over()? && light.is_over()?) {
        interrupt.check()?;
        bed.check()?;
        std::thread::sleep(next.saturating_sub(began.elapsed()).min(PERIOD));
        if (next..duration).contains(&began.elapsed()) {
            windows.add(&bed.read()?);
            next += PERIOD;
        }
    }
    let last = bed.read()?;
    let loads = (heavy.end()?, light.end()?);
    let left = bed.stop()?;
    if !left.is_empty() {
        bail!("inco left behind: {}", left.join(", "));
    }
    let total = last.since(&first);
    Ok(Run::of(
        function, balancer, scheduler, round, &windows, total, loads,
    ))
}
