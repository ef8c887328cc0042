//! `inco explain placement`: what a load takes at each place and over all of them, by a model, and which placement suits
//! a goal.

use std::fmt::Write as _;
use std::path::Path;

use configuration::estimate::{self, Band, Choice, Estimate, Load, Site};
use configuration::{Capacity, Configuration, Goal, Place, Placement, Service, show_rate};
use display::output::{self, WrongUsage};
use display::table::{Table, percent};
use orchestrator::goal_of;
use orchestrator::load::load;
use serde::{Deserialize, Serialize};

use crate::cli::ExplainPlacementArgs;

pub(super) fn run(args: &ExplainPlacementArgs) -> anyhow::Result<()> {
    let configuration = load(&args.file)?;
    let (wanted, pps) = match &args.event {
        Some(input) => recorded(input)?,
        None => (args.service.clone(), args.load.unwrap_or_default()),
    };
    let service = service_of(&configuration, wanted.as_deref())?;
    let sites = sites(&configuration, service, args.capacity)?;
    let load = Load {
        pps,
        frame_bytes: f64::from(args.frame_bytes),
        ring_slots: f64::from(service.ring.slots),
        target: estimate::TARGET,
        instances: service.instances.max,
    };
    let goal = args.goal.unwrap_or_else(|| goal_of(&service.autoscaler));
    let all = estimate::estimates(&sites, &load, goal);
    let Some(choice) = estimate::choose(&all, goal) else {
        return Err(WrongUsage(format!(
            "{}: there is no placement to compare",
            configuration.file
        ))
        .into());
    };
    let names = |placement| name(&configuration, placement);
    if args.json {
        output::json(
            &Answer::of(&configuration, service, &load, goal, &all, &choice),
            output::is_terminal(),
        )
    } else {
        output::text(&text(service, &load, goal, &all, &choice, &names))
    }
}

/// What an event says of the load that its decision is for.
#[derive(Deserialize)]
struct Recorded {
    service: Option<String>,
    case: Option<RecordedCase>,
}

/// The part of a case that all policies have which observe packets.
#[derive(Deserialize)]
struct RecordedCase {
    #[serde(default)]
    steps: Vec<RecordedStep>,
}

#[derive(Deserialize)]
struct RecordedStep {
    observation: Option<RecordedObservation>,
}

#[derive(Deserialize)]
struct RecordedObservation {
    offered_fast_pps: f64,
}

/// The service and the load, in packets/s, of a decision in the event log.
fn recorded(input: &Path) -> anyhow::Result<(Option<String>, f64)> {
    let (name, text) = super::read(input)?;
    let wrong = |why: &str| WrongUsage(format!("{name}: {why}"));
    let event: Recorded = serde_json::from_str(&text).map_err(|error| {
        let why = super::in_words(&error.to_string());
        wrong(&format!("this is not one line of the event log ({why})"))
    })?;
    let observed = event.case.and_then(|case| case.steps.into_iter().next_back());
    let load = observed
        .and_then(|step| step.observation)
        .map(|of| of.offered_fast_pps);
    let load = load.filter(|pps| pps.is_finite() && *pps > 0.0);
    let missing =
        "this event has no case with a load; give a scaled, resized or relocated event, or write --load";
    Ok((event.service, load.ok_or_else(|| wrong(missing))?))
}

/// The service of that name, or the only one with containers.
fn service_of<'a>(configuration: &'a Configuration, name: Option<&str>) -> anyhow::Result<&'a Service> {
    if configuration.places.is_empty() {
        let what = "it has no [[place]]: all instances run at one place";
        return Err(WrongUsage(format!("{}: {what}", configuration.file)).into());
    }
    let mut services = configuration.services.iter().filter(|of| of.has_containers());
    let found = match name {
        Some(name) => services.find(|of| of.name == name),
        None => services.next().filter(|_| services.next().is_none()),
    };
    found.ok_or_else(|| {
        let all = configuration.services.iter().filter(|of| of.has_containers());
        let all: Vec<&str> = all.map(|of| of.name.as_str()).collect();
        let what = format!("write --service with one of {}", all.join(", "));
        WrongUsage(format!("{}: {what}", configuration.file)).into()
    })
}

/// The places as the service sees them.
fn sites(
    configuration: &Configuration,
    service: &Service,
    capacity: Option<f64>,
) -> anyhow::Result<Vec<Site>> {
    let usual_pps = match (capacity, service.capacity) {
        (Some(pps), _) | (None, Capacity::Pps(pps)) => Some(pps),
        (None, Capacity::Learn) => None,
    };
    let cpus = service.cpus.unwrap_or(1.0);
    let site = |place: &Place| {
        let known = place.core_pps.or(usual_pps);
        if known.is_none() {
            return Err(WrongUsage(format!(
                "{}: the capacity of {} is learned, and place {} has no core_capacity; write --capacity 10Mpps",
                configuration.file, service.name, place.name
            )));
        }
        let instance_cpus = place.share * cpus;
        let cores = place.cpu_list().len() as f64;
        let by_cores = if cores > 0.0 {
            (cores / instance_cpus).max(1.0)
        } else {
            f64::INFINITY
        };
        Ok(Site {
            instance_pps: place.instance_pps(usual_pps.unwrap_or_default(), cpus),
            instance_cpus,
            instances: by_cores.min(place.instances.map_or(f64::INFINITY, f64::from)) as u32,
            limit_pps: place.limit_pps(),
            collapse_pps: place.collapse_pps,
            latency_s: place.latency.as_secs_f64(),
            link_bytes_per_s: place.bandwidth_bytes_per_s,
            idle_watts: place.idle_watts,
            watts_per_core: place.watts_per_core,
        })
    };
    Ok(configuration.places.iter().map(site).collect::<Result<_, _>>()?)
}

/// The value of the key `placement`.
fn name(configuration: &Configuration, placement: Placement) -> String {
    match placement {
        Placement::Auto => "auto".to_owned(),
        Placement::Split => "split".to_owned(),
        Placement::At(place) => {
            let place = configuration.places.get(place.index());
            place.map_or_else(String::new, |place| place.name.clone())
        }
    }
}

fn text(
    service: &Service,
    load: &Load,
    goal: Goal,
    all: &[Estimate],
    choice: &Choice,
    names: &dyn Fn(Placement) -> String,
) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "MODEL, not measured: {} with {} in frames of {} bytes; expected (low to high)\n",
        service.name,
        show_rate(load.pps),
        load.frame_bytes
    );
    let mut table = Table::new(&[
        "placement",
        ">throughput",
        ">loss",
        ">latency us",
        ">CPUs",
        ">watts",
        "instances",
    ]);
    for of in all {
        let parts = of.parts.iter().map(|part| {
            let at = names(Placement::At(part.place));
            format!("{} at {at} ({})", part.instances, show_rate(part.pps.round()))
        });
        table.row([
            names(of.placement),
            band(of.throughput_pps, |pps| show_rate(pps.round())),
            band(of.loss, percent),
            band(of.latency_s, |s| format!("{:.1}", s * 1e6)),
            format!("{:.2}", of.cpus),
            of.watts.map_or_else(
                || "-".to_owned(),
                |watts| band(watts, |watts| format!("{watts:.0}")),
            ),
            parts.collect::<Vec<_>>().join(", "),
        ]);
    }
    text.push_str(&table.text());
    let chosen = all
        .get(choice.index)
        .map_or_else(String::new, |of| names(of.placement));
    let _ = writeln!(
        text,
        "\nplacement = \"{chosen}\" for the goal {goal}: {}",
        choice.reason
    );
    text
}

fn band(of: Band, show: impl Fn(f64) -> String) -> String {
    let [low, expected, high] = [of.low, of.expected, of.high].map(show);
    if low == high {
        expected
    } else {
        format!("{expected} ({low} to {high})")
    }
}

/// The answer as JSON.
#[derive(Serialize)]
struct Answer {
    /// Always true: nothing here is measured.
    model: bool,
    service: String,
    load_pps: f64,
    frame_bytes: f64,
    goal: String,
    placements: Vec<Row>,
    choice: String,
    reason: String,
}

#[derive(Serialize)]
struct Row {
    placement: String,
    throughput_pps: [f64; 3],
    loss: [f64; 3],
    latency_us: [f64; 3],
    cpus: f64,
    watts: Option<[f64; 3]>,
    parts: Vec<PartRow>,
}

#[derive(Serialize)]
struct PartRow {
    place: String,
    pps: f64,
    instances: u32,
}

impl Answer {
    fn of(
        configuration: &Configuration,
        service: &Service,
        load: &Load,
        goal: Goal,
        all: &[Estimate],
        choice: &Choice,
    ) -> Answer {
        let three = |of: Band, factor: f64| [of.low, of.expected, of.high].map(|value| value * factor);
        let row = |of: &Estimate| Row {
            placement: name(configuration, of.placement),
            throughput_pps: three(of.throughput_pps, 1.0),
            loss: three(of.loss, 1.0),
            latency_us: three(of.latency_s, 1e6),
            cpus: of.cpus,
            watts: of.watts.map(|watts| three(watts, 1.0)),
            parts: of
                .parts
                .iter()
                .map(|part| PartRow {
                    place: name(configuration, Placement::At(part.place)),
                    pps: part.pps,
                    instances: part.instances,
                })
                .collect(),
        };
        let placements: Vec<Row> = all.iter().map(row).collect();
        Answer {
            model: true,
            service: service.name.clone(),
            load_pps: load.pps,
            frame_bytes: load.frame_bytes,
            goal: goal.to_string(),
            choice: placements
                .get(choice.index)
                .map_or_else(String::new, |row| row.placement.clone()),
            placements,
            reason: choice.reason.clone(),
        }
    }
}
