//! `inco traffic`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use traffic::{Control, Generator, Interval, MemifPort, Profile};

use crate::cli::TrafficArgs;
use crate::output::{self, WrongUsage};
use crate::run_dir::in_run_dir;

/// How long to wait for the other end of an uplink.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);
/// How long to wait between the last connection and the first packet: the other end has answered by then, but a switch
/// needs a moment until its workers have the port, and what comes back by it before that finds the uplink down.
const TAKE_OVER: Duration = Duration::from_millis(200);
/// Flows up to which the report has a line for each.
const FLOWS_SHOWN: usize = 64;

/// Generates traffic and reports what came back.
pub(crate) fn run(args: &TrafficArgs) -> Result<()> {
    let profile =
        Profile::load(&args.file).map_err(|error| WrongUsage(format!("{}: {error}", args.file.display())))?;
    let generator = Generator::new(profile).map_err(|error| WrongUsage(error.to_string()))?;
    let mut ports = vec![connect(&args.uplink)?];
    if let Some(second) = &args.second_uplink {
        ports.push(connect(second)?);
    }
    std::thread::sleep(TAKE_OVER);
    let control = Arc::new(Control::new());
    stop_on_signals(Arc::clone(&control))?;
    let quiet = args.json;
    let mut last_line = 0.0;
    let report = generator.run(&mut ports, &control, |interval| {
        if !quiet && interval.at_s - last_line >= 1.0 {
            last_line = interval.at_s;
            output::complain(&progress(interval));
        }
    })?;
    if args.json {
        output::json(&report, true)
    } else {
        output::text(&report.table(report.flow_count <= FLOWS_SHOWN).to_string())
    }
}

fn connect(socket: &Path) -> Result<MemifPort> {
    let socket = in_run_dir(socket);
    MemifPort::connect(&socket, 0, CONNECT_DEADLINE).with_context(|| {
        format!(
            "nobody answers on {}: start `inco run` first, or name another uplink with --uplink",
            socket.display()
        )
    })
}

fn progress(interval: &Interval) -> String {
    let per_second = |packets: u64| packets as f64 / interval.length_s.max(1e-9);
    format!(
        "{:6.1} s  offered {:>10.0}/s  returned {:>10.0}/s  lost so far {}  p99 {:.0} us",
        interval.at_s,
        per_second(interval.offered_packets),
        per_second(interval.returned_packets),
        interval.lost_so_far,
        interval.latency_us.p99,
    )
}

/// Ctrl-C ends the sending; what is under way is still waited for and reported.
fn stop_on_signals(control: Arc<Control>) -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot listen for signals")?;
    std::thread::Builder::new()
        .name("inco-signals".to_owned())
        .spawn(move || {
            if signals.forever().next().is_some() {
                control.stop();
            }
        })
        .context("cannot start the thread for signals")?;
    Ok(())
}
