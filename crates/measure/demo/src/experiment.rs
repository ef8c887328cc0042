//! The experiment: number of flows, their rates, and the instances.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use anyhow::{Result, bail};
use traffic::{Phase, Profile, Rate, Size, Span, Verify};

use super::args::DemoArgs;
use super::function::Function;
use super::live::Live;
use super::loss;
use super::measure::{self, Instance, Recording, SAMPLE_MS, Sample};
use display::table::short;
use testbed::FORWARD_IMAGE;
use testbed::{Environment, Service, Session};

/// CPUs of one instance: a tenth, so that more instances add capacity on a small machine too.
pub(super) const CPUS: f64 = 0.1;
/// Cost of a packet in an instance, in ns. With a tenth of a CPU an instance processes about 10 k packets/s. Eight
/// instances then stay far below the limits of generator and switch on two cores, and a ring of 1024 slots holds the
/// packets of 100 ms.
const COST_NS: u64 = 8_000;
/// Share of the sustained rate that counts as capacity. The rest is a margin for load that calibration did not see,
/// such as other virtual machines on the host.
const CAPACITY_SHARE: f64 = 0.85;
/// The autoscaler's target, as a share of the capacity (SmartINCO §3.2).
const TARGET: f64 = 0.5;
/// Share of the capacity up to which best-fit fills an instance. One flow more does not exceed the capacity.
const FIT: f64 = 0.8;
/// Offered rate of all flows ÷ capacity of all instances. It exceeds the target of 7 instances plus tolerance, so the
/// autoscaler wants all 8. It is low enough that round-robin's first instance, which has the most flows, stays within
/// its sustained rate.
const LOAD: f64 = 0.55;
/// `--overload`: offered rate of all flows ÷ what all instances can process. SmartINCO offers 150 Mpps to instances that
/// process 42 together (§4.4, figure 9).
const OVERLOAD: f64 = 150.0 / 42.0;
/// Cost of a packet there, in ns. An instance processes about 5 k packets/s, so that generator and switch can offer 3.6
/// times what eight of them take, on two cores.
const OVERLOAD_COST_NS: u64 = 16_000;
/// Share of the capacity up to which best-fit fills an instance there: one flow is 0.89 of it.
const OVERLOAD_FIT: f64 = 0.9;
/// Time with all flows there.
const OVERLOAD_PEAK: Duration = Duration::from_secs(10);
/// Flows (SmartINCO §4.2).
pub(super) const FLOWS: u32 = 32;
/// Flows that continue to the end.
const KEPT_FLOWS: u32 = 4;
/// Minimum, maximum and standby instances (SmartINCO §5.1).
pub(super) const INSTANCES: (u32, u32, u32) = (3, 8, 1);
/// Time between two flow starts in the short demo: 32 flows start in 13 s.
const SHORT_INTERVAL: Duration = Duration::from_millis(400);
/// Idle timeout of a flow. Flows here send hundreds of packets per second.
const FLOW_IDLE: Duration = Duration::from_secs(3);
/// Fewer instances must suffice for this long before the autoscaler removes one.
const SCALE_DOWN_WINDOW: Duration = Duration::from_secs(3);
/// Time from the end of most flows until their instances are gone: idle timeout, scale-down, removal, and a margin.
const SCALE_IN_TIME: Duration = Duration::from_secs(10);
/// Minimum time of the last scale-up: the autoscaler's window and a container's start.
const MIN_PEAK_TIME: Duration = Duration::from_secs(5);
/// Calibration: offered rate in packets per second, and duration. The first third of the duration is not measured.
const CALIBRATION_PPS: f64 = 20_000.0;
const CALIBRATION: Duration = Duration::from_secs(3);
/// Minimum sustained rate, in packets per second. Below it the machine is too busy for the demo.
const SUSTAINED_MIN: f64 = 200.0;
/// Due times are multiples of this, so that the generator sleeps between bursts.
const TICK: Duration = Duration::from_micros(200);
/// Maximum wait for a free slot in the uplink's ring. Its 4096 slots hold more than the packets of 50 ms.
const UPLINK_WAIT: Duration = Duration::from_millis(500);

/// A service of `forward` containers. `capacity_pps` is the capacity of an instance in packets per second.
pub(super) fn forward(capacity_pps: f64, instances: (u32, u32, u32), scheduler: &str) -> Service {
    forward_at(COST_NS, None, capacity_pps, instances, scheduler)
}

/// The same with another cost of a packet, in ns, and with a function behind `forward`.
fn forward_at(
    cost_ns: u64,
    function: Option<&Function>,
    capacity_pps: f64,
    instances: (u32, u32, u32),
    scheduler: &str,
) -> Service {
    let cost = cost_ns.to_string();
    let command = [
        "/inco-nf",
        "forward",
        "--stamp",
        "--pace-cpus",
        "0.1",
        "--cost-ns",
        &cost,
    ];
    let mut command = command.map(str::to_owned).to_vec();
    command.extend(function.map(Function::words).into_iter().flatten());
    Service {
        name: "forward",
        image: FORWARD_IMAGE,
        command,
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

/// A profile of these phases with the demo's settings.
pub(super) fn profile(phases: Vec<Phase>, verify: Verify) -> Profile {
    Profile {
        interval: Span::from_millis(SAMPLE_MS),
        tick: Span(TICK),
        uplink_wait: Span(UPLINK_WAIT),
        settle: Span::from_millis(1000),
        idle_timeout: Some(Span(FLOW_IDLE)),
        verify,
        phases,
        ..Profile::default()
    }
}

/// What is compared of packets that passed that function.
fn verify(function: Option<&Function>) -> Verify {
    function.map_or(Verify::Exact, |function| function.verify)
}

/// A phase of `flows` flows. `group` selects the address range, so that phases do not share flows.
pub(super) fn flows(group: u8, flows: u32, duration: Duration, size: u16) -> Phase {
    Phase {
        duration: Span(duration),
        flows,
        size: Size::Fixed(size),
        src: IpAddr::V4(Ipv4Addr::new(10, group, 0, 1)),
        ..Phase::default()
    }
}

/// The sustained rate of one instance, in packets per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Calibration {
    pub(super) offered_pps: f64,
    pub(super) sustained_pps: f64,
    pub(super) capacity_pps: f64,
}

impl Calibration {
    /// Measures it by offering more than one instance can process. With `--overload`: with the cost of a packet of
    /// that experiment, and without a margin.
    ///
    /// # Errors
    /// Returns an error if inco does not run or the machine is too busy.
    pub(super) fn measure(ground: &Environment, args: &DemoArgs, live: &mut Live) -> Result<Calibration> {
        let (cost_ns, capacity_share) = match args.overload {
            true => (OVERLOAD_COST_NS, 1.0),
            false => (COST_NS, CAPACITY_SHARE),
        };
        let service = forward_at(cost_ns, args.function, CALIBRATION_PPS, (1, 1, 0), "round-robin");
        let mut session = Session::of(ground, &service)?;
        let phase = Phase {
            rate: Some(Rate(CALIBRATION_PPS)),
            ..flows(0, 8, CALIBRATION, 64)
        };
        let recording = measure::run(
            &mut session,
            profile(vec![phase], verify(args.function)),
            Instance::stamping(args.function),
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
                "one instance returned only {sustained_pps:.0} packets/s: this machine is too busy for the demo ({})",
                loss::loss_text(&recording)
            );
        }
        Ok(Calibration {
            offered_pps: CALIBRATION_PPS,
            sustained_pps,
            capacity_pps: capacity_share * sustained_pps,
        })
    }
}

/// The mean of `rate` over the last two thirds of `length_s` seconds.
pub(super) fn steady(recording: &Recording, length_s: f64, rate: fn(&Sample) -> f64) -> f64 {
    let samples = recording
        .samples
        .iter()
        .filter(|s| s.at_s > length_s / 3.0 && s.at_s <= length_s + 0.05);
    let rates: Vec<f64> = samples.map(rate).collect();
    rates.iter().sum::<f64>() / rates.len().max(1) as f64
}

/// The runs, one per scheduler.
#[derive(Clone, Debug)]
pub(super) struct Experiment {
    pub(super) schedulers: Vec<String>,
    pub(super) capacity_pps: f64,
    pub(super) rate_per_flow: f64,
    /// What runs in the instances behind `forward`.
    pub(super) function: Option<&'static Function>,
    /// Whether more is offered than all instances can process. Then no flow ends before the others.
    pub(super) overload: bool,
    /// Time between two flow starts.
    pub(super) interval: Duration,
    /// Time at which all but [`KEPT_FLOWS`] flows end.
    pub(super) keep_from: Duration,
    pub(super) duration: Duration,
}

impl Experiment {
    pub(super) fn new(args: &DemoArgs, capacity_pps: f64) -> Experiment {
        let is_long = args.all || args.full || args.overload;
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
        let ramp = interval * (FLOWS - 1);
        let (load, keep_from, after) = match args.overload {
            true => (OVERLOAD, ramp, OVERLOAD_PEAK),
            false => (LOAD, ramp + MIN_PEAK_TIME + 3 * interval, SCALE_IN_TIME),
        };
        Experiment {
            schedulers,
            capacity_pps,
            rate_per_flow: load * f64::from(INSTANCES.1) * capacity_pps / f64::from(FLOWS),
            function: args.function,
            overload: args.overload,
            interval,
            keep_from,
            duration: keep_from + after,
        }
    }

    /// The function in the instances.
    pub(super) fn function_word(&self) -> &'static str {
        self.function.map_or("forward", |function| function.name)
    }

    /// What all instances can process together, in packets per second.
    pub(super) fn total_capacity_pps(&self) -> f64 {
        f64::from(INSTANCES.1) * self.capacity_pps
    }

    /// The first number of flows that all instances together cannot process.
    pub(super) fn flows_at_loss(&self) -> u32 {
        (self.total_capacity_pps() / self.rate_per_flow) as u32 + 1
    }

    /// Describes the experiment and its expected course.
    pub(super) fn text(&self) -> String {
        let (min, max, _) = INSTANCES;
        if self.overload {
            return format!(
                "{FLOWS} flows of {} packets/s each; one begins every {} s. The service has {min} to {max} instances of \
                 a tenth of a CPU,\nwhich can process {} packets/s together. All flows offer {} packets/s, {OVERLOAD:.2} \
                 times as much, as in SmartINCO's\npaper (150 Mpps for 42). By capacity, loss starts with flow {}.\n",
                short(self.rate_per_flow),
                self.interval.as_secs_f64(),
                short(self.total_capacity_pps()),
                short(self.rate_per_flow * f64::from(FLOWS)),
                self.flows_at_loss(),
            );
        }
        format!(
            "{FLOWS} flows of {} packets/s each; one begins every {} s. The service has {min} to {max} instances of \
             a tenth of a CPU.\nThen all but {KEPT_FLOWS} flows end. The peak load is {} packets/s: {:.0} % of the \
             capacity of {max} instances, so all packets\ncan be served. At the autoscaler's target of {:.0} %, it \
             needs more than 7 instances, so all {max} become active.\n",
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
            keep: (!self.overload).then_some(KEPT_FLOWS),
            keep_from: (!self.overload).then_some(Span(self.keep_from)),
            rate_per_flow: Some(Rate(self.rate_per_flow)),
            ..flows(0, FLOWS, self.duration, 64)
        };
        profile(vec![phase], verify(self.function))
    }

    /// Runs the experiment with one scheduler.
    ///
    /// # Errors
    /// Returns the errors of [`measure::run`].
    pub(super) fn run(&self, ground: &Environment, scheduler: &str, live: &mut Live) -> Result<Recording> {
        let service = match self.overload {
            true => Service {
                fit: OVERLOAD_FIT,
                ..forward_at(
                    OVERLOAD_COST_NS,
                    self.function,
                    self.capacity_pps,
                    INSTANCES,
                    scheduler,
                )
            },
            false => forward_at(COST_NS, self.function, self.capacity_pps, INSTANCES, scheduler),
        };
        let mut session = Session::of(ground, &service)?;
        let title = format!(
            "{scheduler}, {} engine, {:.0} s",
            ground.engine_word(),
            self.duration.as_secs_f64()
        );
        let mut recording = measure::run(
            &mut session,
            self.profile(),
            Instance::stamping(self.function),
            |sample, seen| {
                live.sample(&title, sample, seen);
            },
        )?;
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

    /// 42 of 150 Mpps are 8.96 of 32 flows.
    #[test]
    fn overload_is_that_of_the_paper() {
        let overload = experiment(&["--overload"]);
        let offered = overload.rate_per_flow * f64::from(FLOWS);
        assert!((offered / overload.total_capacity_pps() - 150.0 / 42.0).abs() < 1e-9);
        assert_eq!(overload.flows_at_loss(), 9);
        assert_eq!(overload.profile().phases[0].keep, None);
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
        let overload = experiment(&["--overload"]);
        assert_eq!(overload.schedulers, ["round-robin", "best-fit", "worst-fit"]);
        assert_eq!(overload.interval, Duration::from_secs(1));
        assert!(overload.duration * 3 <= Duration::from_secs(150));
        let chosen = experiment(&["--all", "--scheduler", "maglev"]);
        assert_eq!(chosen.schedulers, ["maglev"]);
    }
}
