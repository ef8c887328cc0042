//! `inco demo`: SmartINCO's experiment (§4.2) on this machine, with real containers. It starts inco as a user would, as
//! a program of its own, sends traffic into its uplink, watches it over its API, and sums up what came of it.
//!
//! 1. Calibration: what one instance sustains.
//! 2. For each scheduler a run: more and more flows, then few; [`measure::Recording`] is what was seen.
//! 3. With `--full`: saturation, packet sizes, and DPDK's own program as instance.
//! 4. Summary (table and JSON) and report.

mod experiment;
mod full;
mod live;
mod measure;
mod open_vswitch;
mod report;
pub(crate) mod session;
mod summary;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};
use engine::ImageRef;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::cli::{DemoArgs, EngineName, ImageEngine};
use crate::image;
use crate::output::{self, Interrupted, WrongUsage};
use crate::table::short;

use experiment::{CPUS, Calibration, Experiment};
use live::Live;
#[cfg(feature = "dpdk")]
pub(crate) use open_vswitch::OpenVSwitch;
use session::Ground;
use summary::{RunSummary, Summary};

/// The image of the function that is shown.
pub(crate) const FORWARD_IMAGE: &str = "inco/forward";

/// What ends the demo from outside: Ctrl-C or SIGTERM. One that does not listen never happens.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Listens for Ctrl-C and SIGTERM. The second one ends at once; inco then ends by itself, since it watches us.
    fn listen() -> Result<Interrupt> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&flag))
                .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&flag)))
                .context("cannot listen for signals")?;
        }
        Ok(Interrupt(flag))
    }

    /// # Errors
    /// [`Interrupted`], once it happened.
    fn check(&self) -> Result<()> {
        match self.0.load(Ordering::Relaxed) {
            true => Err(Interrupted.into()),
            false => Ok(()),
        }
    }
}

/// Runs the demo.
pub(crate) fn run(args: &DemoArgs) -> Result<()> {
    if args.engine == EngineName::Oci && !rustix::process::geteuid().is_root() {
        return Err(WrongUsage(
            "inco: the demo's containers need root: run it with sudo, or with --engine docker as a member of the group docker"
                .to_owned(),
        )
        .into());
    }
    let interrupt = Interrupt::listen()?;
    make_image(args.engine)?;
    let ground = Ground::new(args.engine, args.switch, args.keep_dir, interrupt)?;
    let mut live = Live::new(args.json);
    let result = show(args, &ground, &mut live);
    live.end();
    let (summary, report) = result?;
    std::fs::write(&args.report, report).with_context(|| {
        format!(
            "cannot write the report to {}; name a file with --report",
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
    let broken = summary.broken_promises();
    if !broken.is_empty() {
        bail!("what inco promises was not kept: {}", broken.join("; "));
    }
    Ok(())
}

/// Makes the image of `forward` where there is none, or an old one.
pub(crate) fn make_image(engine: EngineName) -> Result<()> {
    let name = ImageRef::from(FORWARD_IMAGE);
    let program = image::find_inco_nf()?;
    let made = std::fs::metadata(&program)
        .and_then(|of| of.modified())
        .ok()
        .and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok())
        .map_or(u64::MAX, |at| u64::try_from(at.as_millis()).unwrap_or(u64::MAX));
    let image = match image::store().resolve(&name) {
        Ok((_, there)) if there.created_unix_ms > made => there,
        _ => image::build_function("forward", &name)?,
    };
    image::deliver(&image_engine(engine), &image)
}

fn image_engine(engine: EngineName) -> ImageEngine {
    ImageEngine {
        engine,
        host: engine::DEFAULT_HOST.to_owned(),
    }
}

/// Everything that is shown; gives the summary and the report's text.
fn show(args: &DemoArgs, ground: &Ground, live: &mut Live) -> Result<(Summary, String)> {
    live.say(&format!(
        "inco demo: packets come in on an uplink, each new flow is given to one of several containers and stays there,\n\
         and containers come and go as the load moves. All of it is real: inco itself, its {} engine, its {} switch, its\n\
         containers.\n",
        ground.engine_word(),
        ground.switch_word(),
    ));
    let calibration = calibrate(ground, live)?;
    let experiment = Experiment::new(args, calibration.capacity_pps);
    live.say(&experiment.text());
    let mut summary = Summary::new(&calibration, &experiment);
    let mut recordings = Vec::new();
    for scheduler in &experiment.schedulers {
        let recording = experiment.run(ground, scheduler, live)?;
        summary.runs.push(RunSummary::of(
            &recording,
            scheduler,
            ground.engine_word(),
            "forward",
        ));
        recordings.push((scheduler.clone(), recording));
    }
    if args.full {
        summary.full = Some(full::figures(ground, &calibration, live)?);
        match full::testpmd(ground, live)? {
            Some(runs) => summary.runs.extend(runs),
            None => summary.skipped.push(format!(
                "{} as instance: it is not installed (apt-get install dpdk-dev)",
                image::TESTPMD
            )),
        }
    }
    let report = report::html(&summary, &experiment, &recordings);
    Ok((summary, report))
}

fn calibrate(ground: &Ground, live: &mut Live) -> Result<Calibration> {
    live.say(&format!(
        "Calibration: what does one instance sustain with {CPUS} of a CPU? ..."
    ));
    let calibration = Calibration::measure(ground, live)?;
    live.say(&format!(
        "It was offered {} packets/s and gave back {}. {:.0} % of that, {} packets/s, count as its capacity.\n",
        short(calibration.offered_pps),
        short(calibration.sustained_pps),
        100.0 * experiment::CAPACITY_SHARE,
        short(calibration.capacity_pps),
    ));
    Ok(calibration)
}
