//! `inco demo`: SmartINCO's experiment (§4.2) on this machine, with real containers. It starts inco as a separate
//! process, as a user would, sends traffic into its uplink, observes it over the API, and summarises the results.
//!
//! 1. Calibration: measure the sustained rate of one instance.
//! 2. One run per scheduler: the number of flows rises, then falls. [`measure::Recording`] holds the observations.
//! 3. With `--full`: saturation, packet sizes, and DPDK's `testpmd` as an instance.
//! 4. With `--overload` instead: more than all instances can process (the paper's figures 8 and 9).
//! 5. Summary (table and JSON) and report.
//!
//! [`web`], [`actors`] and [`cluster`] are other demos: ordinary web servers behind one address, a store and analytics made of
//! actors, and several machines behind several edges.
#![forbid(unsafe_code)]
// The print macros panic if the output is closed; `display::output` does not.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod actors;
mod args;
mod cluster;
mod experiment;
mod full;
mod function;
mod live;
mod loss;
mod measure;
mod overload;
mod report;
mod summary;
mod web;

use anyhow::{Context, Result, bail};
use display::output::{self, WrongUsage};
use display::table::short;
use testbed::{Environment, Interrupt, make_image};

pub use args::{DemoArgs, DemoEngine};
use experiment::{CPUS, Calibration, Experiment};
pub use function::Function;
use live::Live;
use overload::Overload;
use summary::{RunSummary, Summary};
pub use web::Balancer;

/// Runs the demo.
///
/// # Errors
/// Returns an error if the machine lacks a requirement, if the demo was interrupted, or if inco broke a promise.
pub fn run(args: &DemoArgs) -> Result<()> {
    if args.engine != DemoEngine::Docker && !rustix::process::geteuid().is_root() {
        return Err(WrongUsage(
            "inco: the demo's containers need root: run it with sudo, or with --engine docker as a member of the \
             group docker"
                .to_owned(),
        )
        .into());
    }
    if args.web {
        return web::run(args);
    }
    if args.actors {
        return actors::run(args);
    }
    if args.cluster {
        return cluster::run(args);
    }
    let engine = args.engine_here()?;
    let interrupt = Interrupt::listen()?;
    make_image(engine)?;
    let ground = Environment::new(engine, args.switch, args.keep_dir, interrupt)?;
    let mut live = Live::new(args.json);
    let result = show(args, &ground, &mut live);
    live.end();
    let (summary, report) = result?;
    std::fs::write(&args.report, report).with_context(|| {
        format!(
            "cannot write the report to {}; name another file with --report",
            args.report.display()
        )
    })?;
    if args.json {
        output::json(&summary, true)?;
    } else {
        output::text(&summary.text())?;
        output::line(format!("\nThe report with all plots: {}", args.report.display()))?;
        if args.keep_dir {
            output::line(format!(
                "Configurations and logs: {}",
                ground.directory().display()
            ))?;
        }
    }
    let broken = summary.failed_checks();
    if !broken.is_empty() {
        bail!("the demo failed these checks: {}", broken.join("; "));
    }
    Ok(())
}

/// Runs and displays all parts; returns the summary and the report's HTML.
fn show(args: &DemoArgs, ground: &Environment, live: &mut Live) -> Result<(Summary, String)> {
    live.print_line(&format!(
        "inco demo: packets arrive on an uplink. A scheduler pins each new flow to one of several containers.\nThe \
         number of containers follows the load. inco, its engine ({}), its switch ({}) and its containers are \
         real.\n",
        ground.engine_word(),
        ground.switch_word(),
    ));
    let calibration = calibrate(ground, args, live)?;
    let experiment = Experiment::new(args, calibration.capacity_pps);
    live.print_line(&experiment.text());
    let mut summary = Summary::new(&calibration, &experiment);
    let mut recordings = Vec::new();
    for scheduler in &experiment.schedulers {
        let recording = experiment.run(ground, scheduler, live)?;
        summary.runs.push(RunSummary::of(
            &recording,
            scheduler,
            ground.engine_word(),
            experiment.function_word(),
        ));
        recordings.push((scheduler.clone(), recording));
    }
    if experiment.overload {
        summary.overload = Some(Overload::of(&experiment, &recordings));
    }
    if args.full {
        summary.full = Some(full::figures(ground, &calibration, live)?);
        match full::testpmd(ground, live)? {
            Some(runs) => summary.runs.extend(runs),
            None => summary.skipped.push(format!(
                "{} as instance: it is not installed (apt-get install dpdk-dev)",
                images::TESTPMD
            )),
        }
    }
    let report = report::html(&summary, &experiment, &recordings);
    Ok((summary, report))
}

fn calibrate(ground: &Environment, args: &DemoArgs, live: &mut Live) -> Result<Calibration> {
    live.print_line(&format!(
        "Calibration: the capacity of one instance with {CPUS} of a CPU ..."
    ));
    let calibration = Calibration::measure(ground, args, live)?;
    live.print_line(&format!(
        "Offered {} packets/s, returned {}. Its capacity is taken as {:.0} % of that: {} packets/s.\n",
        short(calibration.offered_pps),
        short(calibration.sustained_pps),
        100.0 * calibration.capacity_pps / calibration.sustained_pps,
        short(calibration.capacity_pps),
    ));
    Ok(calibration)
}
