//! `inco demo --web`: ordinary nginx containers behind one address, under load by `wrk`. inco balances them, then
//! HAProxy and nftables do, each with the same containers and the same changes at the same moments. Two phases:
//!
//! 1. Speed: one server without a quota; nothing scales. The kernel's routing without a balancer is measured beside.
//! 2. Scaling: servers with a quota, 1 → 6 → 1; then two, of which one is killed.

mod beds;
mod network;
mod peers;
mod result;
mod servers;
mod watch;

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use display::output;
use images::EngineName;
use testbed::wrk::{Connections, Load, Requests, Wrk};
use testbed::{CpuTime, Environment, Interrupt, SwitchName};

use super::args::DemoArgs;
use super::live::Live;
pub use beds::Balancer;
use beds::{Bed, MAX};
use result::{Instances, Run, Web};
pub(crate) use servers::{CONFIGURATION, command, write_configuration};
use watch::Watch;

/// Connections of the client in the phase of speed, and while servers come and go.
const SPEED_CONNECTIONS: u32 = 32;
const SCALING_CONNECTIONS: u32 = 48;
/// How long everything takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Times {
    /// The load in the phase of speed, and before it one that is not measured.
    speed: Duration,
    warm_up: Duration,
    /// The load while servers come and go, and the moments of the changes.
    scaling: Duration,
    scale_out: Duration,
    scale_in: Duration,
    /// The load while a server is killed, and the moment.
    kill_load: Duration,
    kill: Duration,
}

impl Times {
    const WHOLE: Times = Times {
        speed: Duration::from_secs(5),
        warm_up: Duration::from_secs(1),
        scaling: Duration::from_secs(15),
        scale_out: Duration::from_secs(1),
        scale_in: Duration::from_secs(7),
        kill_load: Duration::from_secs(4),
        kill: Duration::from_secs(1),
    };
    /// As long as each phase needs to be seen.
    const QUICK: Times = Times {
        speed: Duration::from_secs(1),
        warm_up: Duration::from_secs(1),
        scaling: Duration::from_secs(8),
        scale_out: Duration::from_secs(1),
        scale_in: Duration::from_secs(4),
        kill_load: Duration::from_secs(2),
        kill: Duration::from_secs(1),
    };

    /// How long a balancer takes with one kind of connections, on a machine that does nothing else.
    fn of(&self, balancer: Balancer) -> Duration {
        let speed = START_AND_STOP + self.warm_up + self.speed;
        match balancer.scales() {
            true => speed + START_AND_STOP + self.scaling + SECOND_SERVER + self.kill_load,
            false => speed,
        }
    }

    /// How long all of them take.
    fn all(&self, balancers: &[Balancer]) -> Duration {
        let once: Duration = balancers.iter().map(|balancer| self.of(*balancer)).sum();
        once * Connections::ALL.len() as u32
    }
}

/// What start and stop of a balancer and its servers may take, and the start of a second server, beside the loads.
const START_AND_STOP: Duration = Duration::from_secs(3);
const SECOND_SERVER: Duration = Duration::from_secs(2);
/// Servers when one is killed.
const KILL_SERVERS: u32 = 2;
/// CPUs of a server in the phase of scaling.
const CPUS: f64 = 0.15;
/// How long changes may take to settle.
const SETTLED: Duration = Duration::from_secs(20);
/// A request without an answer for so long has failed.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Runs all balancers and prints the result.
///
/// # Errors
/// A program is missing, something does not start, the demo was interrupted, or a request failed because inco scaled.
pub(super) fn run(args: &DemoArgs) -> Result<()> {
    let engine = args.engine_here()?;
    if engine != EngineName::Oci {
        bail!("inco demo --web: the peers' containers are made by the engine oci; leave --engine out");
    }
    let interrupt = Interrupt::listen()?;
    testbed::make_web_server_image()?;
    let ground = Environment::new(engine, SwitchName::Soft, args.keep_dir, interrupt.clone())?;
    let mut live = Live::new(args.json);
    let balancers = match args.balancer.as_slice() {
        [] => &Balancer::ALL[..],
        chosen => chosen,
    };
    let times = if args.quick { Times::QUICK } else { Times::WHOLE };
    let shown = show(&ground, &interrupt, &times, balancers, &mut live);
    live.end();
    let web = shown?;
    if args.json {
        output::json(&web, true)?;
    } else {
        output::text(&web.text())?;
    }
    let broken = web.failed_checks();
    if !broken.is_empty() {
        bail!("the demo failed these checks: {}", broken.join("; "));
    }
    Ok(())
}

fn show(
    ground: &Environment,
    interrupt: &Interrupt,
    times: &Times,
    balancers: &[Balancer],
    live: &mut Live,
) -> Result<Web> {
    live.print_line(&format!(
        "inco demo --web: nginx containers behind {}, load by wrk. Balancers take turns: inco, HAProxy, nftables; the \
         kernel's routing to one container is measured beside. All of them are real. This takes up to {} s.\n",
        network::ADDRESS,
        times.all(balancers).as_secs()
    ));
    let mut web = Web::default();
    for connections in Connections::ALL {
        for &balancer in balancers {
            let mut run = speed(ground, interrupt, times, balancer, connections, live)?;
            if balancer.scales() {
                scaling(ground, interrupt, times, balancer, connections, live, &mut run)?;
            }
            live.print_line(&run.line());
            web.runs.push(run);
        }
    }
    Ok(web)
}

fn speed(
    ground: &Environment,
    interrupt: &Interrupt,
    times: &Times,
    balancer: Balancer,
    connections: Connections,
    live: &mut Live,
) -> Result<Run> {
    let bed = Bed::start(ground, balancer, None)?;
    let url = format!("http://{}/", bed.address());
    let start = |time| {
        let requests = requests(&url, connections, SPEED_CONNECTIONS, time);
        Wrk::start(bed.client(), ground.directory(), &requests)
    };
    let mut warm_up = start(times.warm_up)?;
    wait(interrupt, || warm_up.is_over())?;
    warm_up.end()?;
    live.print_line(&format!("{}, {}: speed ...", balancer.name(), connections.name()));
    let before = CpuTime::now()?;
    let mut wrk = start(times.speed)?;
    wait(interrupt, || wrk.is_over())?;
    let cpu_s = (CpuTime::now()? - before).busy_s;
    let load = wrk.end()?;
    let left = bed.stop()?;
    let mut run = Run::of_speed(balancer, connections, &load, cpu_s);
    run.left_behind = left;
    Ok(run)
}

fn requests(url: &str, connections: Connections, count: u32, duration: Duration) -> Requests<'_> {
    Requests {
        url,
        connections,
        count,
        duration,
        timeout: ANSWER_LIMIT,
    }
}

/// Waits until `is_over`, unless the demo is interrupted.
fn wait(interrupt: &Interrupt, mut is_over: impl FnMut() -> Result<bool>) -> Result<()> {
    while !is_over()? {
        interrupt.check()?;
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

fn scaling(
    ground: &Environment,
    interrupt: &Interrupt,
    times: &Times,
    balancer: Balancer,
    connections: Connections,
    live: &mut Live,
    run: &mut Run,
) -> Result<()> {
    let mut bed = Bed::start(ground, balancer, Some(CPUS))?;
    let url = format!("http://{}/", bed.address());
    let title = format!("{}, {}: 1 → {MAX} → 1", balancer.name(), connections.name());
    let changes = [
        (times.scale_out, Change::Scale(MAX)),
        (times.scale_in, Change::Scale(1)),
    ];
    let requests = |time| requests(&url, connections, SCALING_CONNECTIONS, time);
    let wrk = Wrk::start(bed.client(), ground.directory(), &requests(times.scaling))?;
    let (load, instances) = under_load(&mut bed, wrk, &changes, interrupt, &title, connections, live)?;
    run.failed_requests += load.failed;
    run.instances = Some(instances);
    bed.scale(KILL_SERVERS)?;
    let since = Instant::now();
    wait(interrupt, || {
        bed.poll()?;
        if since.elapsed() > SETTLED {
            bail!(
                "{} does not have {KILL_SERVERS} servers after {} s",
                balancer.name(),
                SETTLED.as_secs()
            );
        }
        Ok(bed.connections()?.len() == KILL_SERVERS as usize)
    })?;
    let title = format!(
        "{}, {}: one of {KILL_SERVERS} is killed",
        balancer.name(),
        connections.name()
    );
    let wrk = Wrk::start(bed.client(), ground.directory(), &requests(times.kill_load))?;
    let (load, _) = under_load(
        &mut bed,
        wrk,
        &[(times.kill, Change::Kill)],
        interrupt,
        &title,
        connections,
        live,
    )?;
    run.failed_by_kill = Some(load.failed);
    run.left_behind.extend(bed.stop()?);
    Ok(())
}

/// What happens to the servers at a moment of the load.
#[derive(Clone, Copy)]
enum Change {
    Scale(u32),
    Kill,
}

/// Makes the changes at their moments until the load is over, and shows it live.
fn under_load(
    bed: &mut Bed<'_>,
    mut wrk: Wrk,
    changes: &[(Duration, Change)],
    interrupt: &Interrupt,
    title: &str,
    connections: Connections,
    live: &mut Live,
) -> Result<(Load, Instances)> {
    live.print_line(title);
    let mut watch = Watch::start(bed.client(), &bed.address(), connections)?;
    let began = Instant::now();
    let mut due = changes.iter();
    let mut next = due.next();
    let mut instances = Instances {
        start: bed.connections()?.len(),
        ..Instances::default()
    };
    let mut last_line = began;
    while !wrk.is_over()? {
        interrupt.check()?;
        if let Some((at, change)) = next
            && began.elapsed() >= *at
        {
            match change {
                Change::Scale(count) => bed.scale(*count)?,
                Change::Kill => bed.kill_one()?,
            }
            next = due.next();
        }
        bed.poll()?;
        let of_each = bed.connections()?;
        instances.peak = instances.peak.max(of_each.len());
        instances.end = of_each.len();
        if last_line.elapsed() >= Duration::from_secs(1) {
            last_line = Instant::now();
            live.print_line(&watch.line(began.elapsed(), wrk.sent(), &of_each));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok((wrk.end()?, instances))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who starts it with default arguments waits for no longer than that.
    const LIMIT: Duration = Duration::from_secs(280);

    #[test]
    fn all_balancers_fit_into_the_time_of_the_demo() {
        let (whole, quick) = (Times::WHOLE.all(&Balancer::ALL), Times::QUICK.all(&Balancer::ALL));
        assert!(whole <= LIMIT, "{whole:?}");
        assert!(quick * 3 <= 2 * whole, "{quick:?} beside {whole:?}");
    }

    #[test]
    fn changes_lie_within_their_loads() {
        for times in [Times::WHOLE, Times::QUICK] {
            assert!(times.scale_out < times.scale_in && times.scale_in < times.scaling);
            assert!(times.kill < times.kill_load);
        }
    }
}
