//! `--full`: the paper's figures 6, 7 and 10 on this machine, and DPDK's `testpmd` as an instance.

use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use engine::ImageRef;
use serde::Serialize;
use traffic::{Phase, Rate, Span, Verify};

use super::experiment::{Calibration, INSTANCES, flows, forward, profile, steady};
use super::live::Live;
use super::loss;
use super::measure::{self, Instance, Recording};
use super::summary::RunSummary;
use display::table::{percent, short};
use images::TESTPMD;
use testbed::{Environment, Service, Session};

/// Figure 6: offered rate ÷ sustained rate of one instance.
const STEPS: [f64; 8] = [0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.5, 2.0];
/// Figures 7 and 10: offered rate ÷ sustained rate of all instances. Above 1, so that they reach their maximum.
const SATURATION: f64 = 1.3;
/// Packet sizes in bytes (SmartINCO §4.2), and the bytes of preamble and gap per frame on the wire.
const SIZES: [u16; 3] = [64, 512, 1500];
const WIRE_OVERHEAD: f64 = 20.0;
/// Sending time of each step.
const STEP: Duration = Duration::from_secs(3);
/// Flows per instance in the figures that compare instances.
const FLOWS_EACH: u32 = 4;
/// Duration and rate, in packets per second, of a `testpmd` run.
const TESTPMD_TIME: Duration = Duration::from_secs(8);
const TESTPMD_PPS: f64 = 20_000.0;
const TESTPMD_IMAGE: &str = "testpmd";
/// The example configuration: the only place with the program's command line.
const TESTPMD_EXAMPLE: &str = include_str!("../../../../examples/testpmd.toml");

/// The figures.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Figures {
    /// Figure 6: one instance under increasing load.
    pub(super) saturation: Vec<Step>,
    /// Figure 7: increasing numbers of instances, each overloaded.
    pub(super) instances: Vec<Step>,
    /// Figure 10: several packet sizes, all instances overloaded.
    pub(super) sizes: Vec<Step>,
    /// Figure 10: a constant bit rate in several packet sizes, and the number of instances that the autoscaler wants.
    pub(super) sizes_scaled: Vec<Step>,
    /// Promises that inco broke in one of the runs, as sentences.
    pub(super) broken: Vec<String>,
}

/// A point of a figure.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Step {
    pub(super) instances: u32,
    pub(super) size_bytes: u16,
    pub(super) offered_pps: f64,
    pub(super) returned_pps: f64,
    /// Bits per second on the wire, with preamble and gap.
    pub(super) returned_bps: f64,
    /// Share of the offered packets that were lost.
    pub(super) loss: f64,
    pub(super) latency_p99_us: f64,
}

impl Step {
    fn of(recording: &Recording, size_bytes: u16, length: Duration) -> Step {
        let report = &recording.report;
        let last = recording.samples.iter().rev().find(|sample| sample.flows > 0);
        let length_s = length.as_secs_f64();
        let returned_pps = steady(recording, length_s, |sample| sample.returned_pps);
        Step {
            instances: last.map_or(0, |sample| sample.active),
            size_bytes,
            offered_pps: steady(recording, length_s, |sample| sample.offered_pps),
            returned_pps,
            returned_bps: returned_pps * wire_bits(size_bytes),
            loss: report.loss_ratio(),
            latency_p99_us: report.latency_us.p99,
        }
    }
}

fn wire_bits(size_bytes: u16) -> f64 {
    8.0 * (f64::from(size_bytes) + WIRE_OVERHEAD)
}

/// The figures that show the limits of `forward`.
pub(super) fn figures(ground: &Environment, calibration: &Calibration, live: &mut Live) -> Result<Figures> {
    let most = INSTANCES.1;
    let mut figures = Figures::default();
    // Each phase uses new addresses: the flows of the previous one keep their pins.
    let mut group = 0;
    let mut broken = Vec::new();
    let mut step = |session: &mut Session<'_>, live: &mut Live, title: &str, phase: Phase| -> Result<Step> {
        group += 1;
        let length = phase.duration.0;
        let size = match phase.size {
            traffic::Size::Fixed(size) => size,
            _ => 64,
        };
        let phase = Phase {
            src: flows(group, 1, STEP, size).src,
            ..phase
        };
        let recording = measure::run(
            session,
            profile(vec![phase], Verify::Exact),
            Instance::STAMPING,
            |sample, seen| {
                live.sample(title, sample, seen);
            },
        )?;
        let run = RunSummary::of(&recording, "round-robin", ground.engine_word(), "forward");
        broken.extend(run.failed_checks().iter().map(|what| format!("{title}: {what}")));
        let step = Step::of(&recording, size, length);
        live.print_line(&format!(
            "{title}: offered {}/s, returned {}/s; {}",
            short(step.offered_pps),
            short(step.returned_pps),
            loss::loss_text(&recording)
        ));
        Ok(step)
    };
    live.print_line("\nFigure 6: one instance under increasing load");
    let mut session = Session::of(
        ground,
        &forward(calibration.capacity_pps, (1, 1, 0), "round-robin"),
    )?;
    for share in STEPS {
        let phase = Phase {
            rate: Some(Rate(share * calibration.sustained_pps)),
            ..flows(0, FLOWS_EACH, STEP, 64)
        };
        let title = format!("{share} of its capacity");
        figures.saturation.push(step(&mut session, live, &title, phase)?);
    }
    let mut left = session.stop()?;
    live.print_line("\nFigure 7: an increasing number of overloaded instances");
    let mut session = Session::of(
        ground,
        &forward(calibration.capacity_pps, (1, most, 0), "round-robin"),
    )?;
    for instances in 1..=most {
        session.scale("forward", instances)?;
        let rate = SATURATION * f64::from(instances) * calibration.sustained_pps;
        let phase = Phase {
            rate: Some(Rate(rate)),
            ..flows(0, FLOWS_EACH * instances, STEP, 64)
        };
        figures.instances.push(step(
            &mut session,
            live,
            &format!("{instances} instances"),
            phase,
        )?);
    }
    live.print_line(&format!(
        "\nFigure 10: packets of 64, 512 and 1500 bytes; {most} overloaded instances"
    ));
    for size in SIZES {
        let rate = SATURATION * f64::from(most) * calibration.sustained_pps;
        let phase = Phase {
            rate: Some(Rate(rate)),
            ..flows(0, FLOWS_EACH * most, STEP, size)
        };
        figures
            .sizes
            .push(step(&mut session, live, &format!("{size} B"), phase)?);
    }
    left.extend(session.stop()?);
    live.print_line("\nFigure 10: a constant bit rate; the autoscaler sets the number of instances");
    for size in SIZES {
        let mut session = Session::of(
            ground,
            &forward(calibration.capacity_pps, INSTANCES, "round-robin"),
        )?;
        // The bit rate that needs all instances with the smallest packets.
        let bits = 0.55 * f64::from(most) * calibration.capacity_pps * wire_bits(SIZES[0]);
        let flow_count = 32;
        let phase = Phase {
            ramp: Span(Duration::from_millis(200)),
            rate_per_flow: Some(Rate(bits / wire_bits(size) / f64::from(flow_count))),
            ..flows(0, flow_count, Duration::from_secs(12), size)
        };
        figures
            .sizes_scaled
            .push(step(&mut session, live, &format!("{size} B"), phase)?);
        left.extend(session.stop()?);
    }
    broken.extend(left.iter().map(|what| format!("left behind: {what}")));
    figures.broken = broken;
    Ok(figures)
}

impl Figures {
    /// The figures as tables: a title and rows each.
    pub(super) fn tables(&self) -> Vec<(&'static str, Vec<Vec<String>>)> {
        let table = |steps: &[Step]| {
            let headings = [
                "instances",
                "packet size",
                "offered",
                "returned",
                "on the wire",
                "lost",
                "latency p99",
            ];
            let mut rows = vec![headings.map(str::to_owned).to_vec()];
            rows.extend(steps.iter().map(|step| {
                vec![
                    step.instances.to_string(),
                    format!("{} B", step.size_bytes),
                    format!("{}/s", short(step.offered_pps)),
                    format!("{}/s", short(step.returned_pps)),
                    format!("{}bit/s", short(step.returned_bps)),
                    percent(step.loss),
                    format!("{:.2} ms", step.latency_p99_us / 1e3),
                ]
            }));
            rows
        };
        vec![
            (
                "One instance, increasing load (figure 6)",
                table(&self.saturation),
            ),
            (
                "Increasing number of overloaded instances (figure 7)",
                table(&self.instances),
            ),
            (
                "Packet sizes, all instances overloaded (figure 10)",
                table(&self.sizes),
            ),
            (
                "Packet sizes, constant bit rate, scaled by load (figure 10)",
                table(&self.sizes_scaled),
            ),
        ]
    }
}

/// Runs with `dpdk-testpmd` as the instance, once for each of two forwarding modes. Returns [`None`] if it is not
/// installed.
pub(super) fn testpmd(ground: &Environment, live: &mut Live) -> Result<Option<Vec<RunSummary>>> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    if !std::env::split_paths(&path).any(|directory| directory.join(TESTPMD).is_file()) {
        return Ok(None);
    }
    live.print_line(&format!("\nDPDK's own {TESTPMD}, unmodified, as instance ..."));
    let name = ImageRef::from(TESTPMD_IMAGE);
    let image = match images::store().resolve(&name) {
        Ok((_, image)) => image,
        Err(_) => images::import_program(&name, TESTPMD_IMAGE, &[])?,
    };
    images::deliver(ground.engine(), engine::DEFAULT_HOST, &image)?;
    let mut runs = Vec::new();
    for mode in ["macswap", "mac"] {
        let title = format!("testpmd, {mode}");
        let mut session = Session::of(ground, &testpmd_service(mode)?)?;
        let phase = Phase {
            rate: Some(Rate(TESTPMD_PPS)),
            ..flows(0, 8, TESTPMD_TIME, 64)
        };
        let mut recording = measure::run(
            &mut session,
            profile(vec![phase], Verify::Payload),
            Instance::Silent,
            |sample, seen| {
                live.sample(&title, sample, seen);
            },
        )?;
        recording.left = session.stop()?;
        live.finish_run(&title, &recording);
        let mut run = RunSummary::of(&recording, "best-fit", ground.engine_word(), "testpmd");
        run.mode = Some(mode);
        runs.push(run);
    }
    Ok(Some(runs))
}

/// CPUs for `testpmd`: the first two that this process may use.
fn cpus() -> Vec<usize> {
    let Ok(allowed) = rustix::thread::sched_getaffinity(None) else {
        return vec![0];
    };
    (0..rustix::thread::CpuSet::MAX_CPU)
        .filter(|cpu| allowed.is_set(*cpu))
        .take(2)
        .collect()
}

/// The service of the example, with this forwarding mode.
fn testpmd_service(mode: &str) -> Result<Service> {
    // Lcore 0 only manages lcore 1, which polls. Both may use all of these CPUs.
    let on = cpus().iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let lcores = format!("0@({on}),1@({on})");
    let own = orchestrator::load::parse(TESTPMD_EXAMPLE, "examples/testpmd.toml")
        .map_err(|problems| anyhow!("examples/testpmd.toml of this build is invalid: {problems:?}"))?;
    let service = own
        .services
        .first()
        .context("examples/testpmd.toml of this build has no service")?;
    let command = service.command.iter().map(|word| match word.as_str() {
        word if word.starts_with("--forward-mode=") => format!("--forward-mode={mode}"),
        word if word.starts_with("0@") => lcores.clone(),
        word => word.to_owned(),
    });
    Ok(Service {
        name: "testpmd",
        image: TESTPMD_IMAGE,
        command: command.collect(),
        cpus: 1.0,
        memory: "512MiB",
        ready: "consumes",
        capacity_pps: 1_000_000.0,
        // Each instance polls on a CPU: leaves CPUs for the other processes.
        instances: if std::thread::available_parallelism().is_ok_and(|n| n.get() >= 4) {
            (2, 2, 0)
        } else {
            (1, 1, 0)
        },
        ..forward(0.0, INSTANCES, "best-fit")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_has_a_table() {
        let step = Step {
            instances: 3,
            size_bytes: 512,
            returned_bps: 4.2e6,
            ..Step::default()
        };
        let figures = Figures {
            saturation: vec![step],
            ..Figures::default()
        };
        let tables = figures.tables();
        assert_eq!(tables.len(), 4);
        assert_eq!(tables[0].1[1][..2], ["3", "512 B"]);
        assert_eq!(tables[0].1[1][4], "4.20Mbit/s");
    }

    #[test]
    fn testpmd_runs_as_in_the_example() {
        let service = testpmd_service("mac").unwrap();
        let has = |word: &str| service.command.iter().any(|given| given == word);
        assert!(has("--forward-mode=mac") && !has("--forward-mode=macswap"));
        assert!(has("/usr/bin/dpdk-testpmd") && has("--stats-period=3600"));
        let text = service.configuration("oci", None);
        assert!(orchestrator::load::parse(&text, "demo.toml").is_ok(), "{text}");
    }

    #[test]
    fn a_frame_takes_more_on_the_wire_than_it_has_bytes() {
        // 100 Gbit/s are 148.8 Mpps of 64 B.
        assert_eq!((1e11 / wire_bits(64) / 1e5).round(), 1488.0);
    }
}
