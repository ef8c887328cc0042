//! `inco traffic`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use api::Client;
use api::types::UplinkRow;
use model::{Event, EventKind, InstanceState};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use traffic::{Control, Generator, Interval, MemifPort, Profile};

use crate::cli::TrafficArgs;
use api::run_dir::{api_socket, in_run_dir};
use display::output::{self, WrongUsage};

/// Time limit for the peer of an uplink.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);
/// Wait between the last connection and the first packet if no inco can be queried: the peer has answered, but a
/// switch needs some time until its workers have the port, and drops packets to it before.
const TAKE_OVER_TIME: Duration = Duration::from_millis(200);
/// Polling interval for the state of inco's uplinks, and for a new inco after it has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Maximum number of flows with a line in the report.
const FLOWS_SHOWN: usize = 64;

/// Generates traffic and reports the result.
pub(crate) fn run(args: &TrafficArgs) -> Result<()> {
    let profile =
        Profile::load(&args.file).map_err(|error| WrongUsage(format!("{}: {error}", args.file.display())))?;
    let generator = Generator::new(profile).map_err(|error| WrongUsage(error.to_string()))?;
    let uplinks: Vec<&Path> = std::iter::once(&args.uplink)
        .chain(&args.second_uplink)
        .map(PathBuf::as_path)
        .collect();
    let orchestrator = orchestrator(args.api.as_deref(), &uplinks)?;
    let mut ports = uplinks
        .iter()
        .map(|uplink| connect(uplink))
        .collect::<Result<Vec<_>>>()?;
    let control = Arc::new(Control::new());
    match orchestrator {
        Some(client) => {
            wait_until_up(&client, &uplinks)?;
            follow_moves(client, Arc::clone(&control))?;
        }
        None => std::thread::sleep(TAKE_OVER_TIME),
    }
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

/// The running inco with these uplinks, if there is one.
///
/// # Errors
/// A named inco does not answer or has no such uplink.
fn orchestrator(named: Option<&Path>, uplinks: &[&Path]) -> Result<Option<Client>> {
    let client = match (Client::connect(&api_socket(named)), named) {
        (Ok(client), _) => client,
        (Err(error), Some(_)) => return Err(error.into()),
        (Err(_), None) => return Ok(None),
    };
    let rows = client.status()?.uplinks;
    let is_there = |uplink: &&Path| rows.iter().any(|row| is_uplink(row, uplink, &client));
    match (uplinks.iter().find(|uplink| !is_there(uplink)), named) {
        (None, _) => Ok(Some(client)),
        (Some(_), None) => Ok(None),
        (Some(uplink), Some(named)) => {
            let there: Vec<_> = rows.iter().map(|row| row.device.as_str()).collect();
            let (uplink, named) = (uplink.display(), named.display());
            let write = there.join(", ");
            Err(WrongUsage(format!(
                "the inco at {named} has no uplink memif:{uplink}: name one of {write}"
            ))
            .into())
        }
    }
}

/// Whether the name and the path are of the same uplink. Relative paths are in the run directory, which usually also
/// has the API's socket.
fn is_uplink(row: &UplinkRow, uplink: &Path, client: &Client) -> bool {
    let Some(socket) = row.device.strip_prefix("memif:") else {
        return false;
    };
    let beside_api = client
        .socket()
        .and_then(Path::parent)
        .map(|directory| directory.join(socket));
    [Some(in_run_dir(Path::new(socket))), beside_api]
        .into_iter()
        .flatten()
        .any(|socket| socket == in_run_dir(uplink))
}

/// Waits until every worker has its queue of the uplinks, or for a fixed time.
fn wait_until_up(client: &Client, uplinks: &[&Path]) -> Result<()> {
    let until = Instant::now() + CONNECT_DEADLINE;
    loop {
        let rows = client.status()?.uplinks;
        let is_up = |uplink: &&Path| rows.iter().any(|row| row.up && is_uplink(row, uplink, client));
        if uplinks.iter().all(is_up) || Instant::now() > until {
            return Ok(());
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Expects moves of the flows of each instance that an event of inco names as failed or purged, and of no others. The
/// next inco is followed likewise: it names again what was named before. Runs until the end of the program.
fn follow_moves(client: Client, control: Arc<Control>) -> Result<()> {
    std::thread::Builder::new()
        .name("inco-moves".to_owned())
        .spawn(move || {
            let mut client = client;
            loop {
                if let Ok(events) = client.follow_events(0) {
                    let moved = events.flatten().filter_map(|event| instance_given_up(&event));
                    moved.for_each(|instance| control.expect_moves_from(instance));
                }
                // inco has ended or does not answer.
                client = loop {
                    std::thread::sleep(POLL_INTERVAL);
                    if let Ok(next) = client.again() {
                        break next;
                    }
                };
            }
        })
        .context("cannot start the thread that follows inco's events")?;
    Ok(())
}

/// The instance whose flows can move from now on.
fn instance_given_up(event: &Event) -> Option<u32> {
    let gives_up = match &event.kind {
        EventKind::State { to, .. } => *to == InstanceState::Failed,
        EventKind::Unpinned { .. } => true,
        _ => false,
    };
    event.instance.filter(|_| gives_up).map(|instance| instance.0)
}

fn connect(socket: &Path) -> Result<MemifPort> {
    let socket = in_run_dir(socket);
    MemifPort::connect(&socket, 0, CONNECT_DEADLINE).with_context(|| {
        format!(
            "no peer answers on {}: start `inco run` first, or name another uplink with --uplink",
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

/// Ctrl-C ends the sending; packets in flight are still awaited and reported.
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

#[cfg(test)]
mod tests {
    use model::{InstanceId, Nanos};

    use super::*;

    #[test]
    fn flows_of_failed_and_purged_instances_may_move_and_no_others() {
        let event = |instance, kind| Event {
            sequence: 1,
            at: Nanos(0),
            unix_ms: 0,
            service: None,
            instance,
            kind,
        };
        let state = |to| EventKind::State {
            from: InstanceState::Active,
            to,
            reason: String::new(),
        };
        let unpinned = EventKind::Unpinned {
            reason: String::new(),
        };
        let three = Some(InstanceId(3));
        for (of, kind, given_up) in [
            (three, state(InstanceState::Failed), Some(3)),
            (three, unpinned, Some(3)),
            (three, state(InstanceState::Draining), None),
            (None, state(InstanceState::Failed), None),
            (three, EventKind::Hot { occupancy: 1.0 }, None),
        ] {
            assert_eq!(instance_given_up(&event(of, kind.clone())), given_up, "{kind:?}");
        }
    }
}
