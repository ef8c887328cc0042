//! The experiment: how many flows, how fast, and on what instances.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use anyhow::{Result, bail};
use traffic::{Phase, Profile, Rate, Size, Span, Verify};

use super::args::DemoArgs;
use super::live::Live;
use super::measure::{self, LOOK_MS, Recording, Sample};
use super::summary;
use display::table::short;
use testbed::FORWARD_IMAGE;
use testbed::{Ground, Service, Session};

/// CPUs of one instance: a tenth, so that more instances really are more capacity, also on a small machine.
pub(super) const CPUS: f64 = 0.1;
/// What a packet costs an instance, in ns. With a tenth of a CPU this makes some 10 k packets/s: eight instances are then
/// far from what generator and switch can do on two cores, and a ring of 1024 slots holds what comes in 100 ms.
const COST_NS: u64 = 8_000;
/// Share of the sustained rate that counts as capacity. The rest is for what calibration did not see: neighbours.
pub(super) const CAPACITY_SHARE: f64 = 0.85;
/// Share of the capacity that the autoscaler aims at (SmartINCO §3.2).
const TARGET: f64 = 0.5;
/// Share of the capacity up to which best-fit fills an instance. With one flow more it is still below its capacity.
const FIT: f64 = 0.8;
/// Offered rate of all flows together ÷ capacity of all instances. Above 7 instances' target with its tolerance, so that
/// all 8 are wanted; low enough that round-robin's first instance, with the most flows, stays within what it sustains.
const LOAD: f64 = 0.55;
/// Flows (INCO-31: SmartINCO §4.2).
pub(super) const FLOWS: u32 = 32;
/// Flows that go on to the end.
const KEPT_FLOWS: u32 = 4;
/// Instances at least, at most, and ready beside them (SmartINCO §5.1).
pub(super) const INSTANCES: (u32, u32, u32) = (3, 8, 1);
/// Between two new flows where the demo is to be short: 32 of them in 13 s.
const SHORT_INTERVAL: Duration = Duration::from_millis(400);
/// A flow that is silent for this long has ended. Flows here send hundreds of packets a second.
const FLOW_IDLE: Duration = Duration::from_secs(3);
/// For how long fewer instances must be enough before there are fewer.
const SCALE_DOWN_WINDOW: Duration = Duration::from_secs(3);
/// From the end of most flows until the instances are gone: silence, scale-down, removal, and some more.
const TAIL: Duration = Duration::from_secs(10);
/// The autoscaler's window and a container's start: what the last step up takes at least.
const HOLD: Duration = Duration::from_secs(5);
/// Calibration: offered rate, and its length, of which the first third is not measured.
const CALIBRATION_PPS: f64 = 20_000.0;
const CALIBRATION: Duration = Duration::from_secs(3);
/// With less than this the machine has no time for us at all, in packets per second.
const SUSTAINED_MIN: f64 = 200.0;
/// The generator's packets are due at multiples of this, so that it sleeps between.
const TICK: Duration = Duration::from_micros(200);
/// How long a packet may wait for room in the uplink's ring. It holds 4096, more than what comes in 50 ms.
const UPLINK_WAIT: Duration = Duration::from_millis(500);

/// The service of `forward` containers; its capacity is in packets per second.
pub(super) fn forward(capacity_pps: f64, instances: (u32, u32, u32), scheduler: &str) -> Service {
    let cost = COST_NS.to_string();
    let command = [
        "/inco-nf",
        "forward",
        "--stamp",
        "--pace-cpus",
        "0.1",
        "--cost-ns",
        &cost,
    ];
    Service {
        name: "forward",
        image: FORWARD_IMAGE,
        command: command.map(str::to_owned).to_vec(),
        cpus: CPUS,
        memory: "64MiB",
        ready: "connected",
        capacity_pps,
        fit: FIT,
        target: TARGET,
        instances,
        scheduler: scheduler.to_owned(),
        scale_down_window: SCALE_DOWN_WINDOW,
        flow_idle: FLOW_IDLE,
    }
}

/// A profile of these phases, and everything else as the demo needs it.
pub(super) fn profile(phases: Vec<Phase>, verify: Verify) -> Profile {
    Profile {
        interval: Span::from_millis(LOOK_MS),
        tick: Span(TICK),
        uplink_wait: Span(UPLINK_WAIT),
        settle: Span::from_millis(1000),
        idle_timeout: Some(Span(FLOW_IDLE)),
        verify,
        phases,
        ..Profile::default()
    }
}

/// Flows from addresses of their own: `group` tells those of one phase from another's.
pub(super) fn flows(group: u8, flows: u32, duration: Duration, size: u16) -> Phase {
    Phase {
        duration: Span(duration),
        flows,
        size: Size::Fixed(size),
        src: IpAddr::V4(Ipv4Addr::new(10, group, 0, 1)),
        ..Phase::default()
    }
}

/// What one instance sustains, in packets per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Calibration {
    pub(super) offered_pps: f64,
    pub(super) sustained_pps: f64,
    pub(super) capacity_pps: f64,
}

impl Calibration {
    /// Offers one instance more than it can take.
    ///
    /// # Errors
    /// Where there is no inco, or the machine has no time for it.
    pub(super) fn measure(ground: &Ground, live: &mut Live) -> Result<Calibration> {
        let mut session = Session::of(ground, &forward(CALIBRATION_PPS, (1, 1, 0), "round-robin"))?;
        let phase = Phase {
            rate: Some(Rate(CALIBRATION_PPS)),
            ..flows(0, 8, CALIBRATION, 64)
        };
        let recording = measure::run(
            &mut session,
            profile(vec![phase], Verify::Exact),
            true,
            |sample, seen| {
                live.sample("calibration", sample, seen);
            },
        )?;
        session.stop()?;
        live.clear();
        let sustained_pps = steady(&recording, CALIBRATION.as_secs_f64(), |sample| {
            sample.returned_pps
        });
        if sustained_pps < SUSTAINED_MIN {
            bail!(
                "one instance gave back {sustained_pps:.0} packets/s: this machine is too busy for a demo ({})",
                summary::loss_text(&recording)
            );
        }
        Ok(Calibration {
            offered_pps: CALIBRATION_PPS,
            sustained_pps,
            capacity_pps: CAPACITY_SHARE * sustained_pps,
        })
    }
}

/// The mean of that rate, without the first third of `length_s`.
pub(super) fn steady(recording: &Recording, length_s: f64, rate: fn(&Sample) -> f64) -> f64 {
    let samples = recording
        .samples
        .iter()
        .filter(|s| s.at_s > length_s / 3.0 && s.at_s <= length_s + 0.05);
    let rates: Vec<f64> = samples.map(rate).collect();
    rates.iter().sum::<f64>() / rates.len().max(1) as f64
}

/// The runs, one for each scheduler.
#[derive(Clone, Debug)]
pub(super) struct Experiment {
    pub(super) schedulers: Vec<String>,
    pub(super) capacity_pps: f64,
    pub(super) rate_per_flow: f64,
    /// Between two new flows.
    pub(super) interval: Duration,
    /// When all flows but some end.
    pub(super) keep_from: Duration,
    pub(super) duration: Duration,
}

impl Experiment {
    pub(super) fn new(args: &DemoArgs, capacity_pps: f64) -> Experiment {
        let is_long = args.all || args.full;
        let names: &[&str] = match (args.quick, is_long) {
            (true, _) => &["best-fit"],
            (false, false) => &["round-robin", "best-fit"],
            (false, true) => &["round-robin", "best-fit", "worst-fit"],
        };
        let schedulers = if args.scheduler.is_empty() {
            names.iter().copied().map(str::to_owned).collect()
        } else {
            args.scheduler.clone()
        };
        let interval = match args.flow_interval_ms {
            Some(ms) => Duration::from_millis(ms),
            None if is_long => Duration::from_secs(1),
            None => SHORT_INTERVAL,
        };
        let keep_from = interval * (FLOWS - 1) + HOLD + 3 * interval;
        Experiment {
            schedulers,
            capacity_pps,
            rate_per_flow: LOAD * f64::from(INSTANCES.1) * capacity_pps / f64::from(FLOWS),
            interval,
            keep_from,
            duration: keep_from + TAIL,
        }
    }

    /// What will be seen, in words.
    pub(super) fn text(&self) -> String {
        let (min, max, _) = INSTANCES;
        format!(
            "{FLOWS} flows of {} packets/s each, one more every {} s, on {min} to {max} instances of a tenth of a CPU; then all but\n\
             {KEPT_FLOWS} flows end. At the top they offer {} packets/s: {:.0} % of what {max} instances can take, so no packet need be\n\
             lost, and more than 7 instances at the autoscaler's target of {:.0} %, so all {max} are wanted.\n",
            short(self.rate_per_flow),
            self.interval.as_secs_f64(),
            short(self.rate_per_flow * f64::from(FLOWS)),
            100.0 * LOAD,
            100.0 * TARGET,
        )
    }

    fn profile(&self) -> Profile {
        let phase = Phase {
            ramp: Span(self.interval),
            keep: Some(KEPT_FLOWS),
            keep_from: Some(Span(self.keep_from)),
            rate_per_flow: Some(Rate(self.rate_per_flow)),
            ..flows(0, FLOWS, self.duration, 64)
        };
        profile(vec![phase], Verify::Exact)
    }

    /// Runs it with one scheduler.
    ///
    /// # Errors
    /// As [`measure::run`].
    pub(super) fn run(&self, ground: &Ground, scheduler: &str, live: &mut Live) -> Result<Recording> {
        let mut session = Session::of(ground, &forward(self.capacity_pps, INSTANCES, scheduler))?;
        let title = format!(
            "{scheduler}, {} engine, {:.0} s",
            ground.engine_word(),
            self.duration.as_secs_f64()
        );
        let mut recording = measure::run(&mut session, self.profile(), true, |sample, seen| {
            live.sample(&title, sample, seen);
        })?;
        recording.left = session.stop()?;
        live.finish_run(&title, &recording);
        Ok(recording)
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, FromArgMatches as _};

    use super::*;

    fn experiment(words: &[&str]) -> Experiment {
        let command = DemoArgs::augment_args(Command::new("demo").no_binary_name(true));
        let args = DemoArgs::from_arg_matches(&command.get_matches_from(words)).unwrap();
        Experiment::new(&args, 1000.0)
    }

    #[test]
    fn the_default_is_two_schedulers_in_a_minute() {
        let default = experiment(&[]);
        assert_eq!(default.schedulers, ["round-robin", "best-fit"]);
        assert!(
            default.duration * 2 <= Duration::from_secs(60),
            "{:?}",
            default.duration
        );
        let quick = experiment(&["--quick"]);
        assert_eq!(quick.schedulers, ["best-fit"]);
        assert_eq!(quick.duration, default.duration);
        for long in ["--all", "--full"] {
            let long = experiment(&[long]);
            assert_eq!(long.schedulers, ["round-robin", "best-fit", "worst-fit"]);
            assert_eq!(long.interval, Duration::from_secs(1));
        }
        let chosen = experiment(&["--all", "--scheduler", "maglev"]);
        assert_eq!(chosen.schedulers, ["maglev"]);
    }
}
