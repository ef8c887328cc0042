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
use watch::Watch;

/// Connections of the client in the phase of speed, and while servers come and go.
const SPEED_CONNECTIONS: u32 = 32;
const SCALING_CONNECTIONS: u32 = 48;
/// Time of the load in the phase of speed, after a second that is not measured.
const SPEED_TIME: Duration = Duration::from_secs(5);
const WARM_UP: Duration = Duration::from_secs(1);
/// Time of the load while servers come and go, and the moments of the changes.
const SCALING_TIME: Duration = Duration::from_secs(15);
const SCALE_OUT: Duration = Duration::from_secs(1);
const SCALE_IN: Duration = Duration::from_secs(7);
/// Time of the load while a server is killed, and the moment.
const KILL_TIME: Duration = Duration::from_secs(4);
const KILL: Duration = Duration::from_secs(1);
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
    if args.engine != EngineName::Oci {
        bail!("inco demo --web: the peers' containers are made by the engine oci; leave --engine out");
    }
    let interrupt = Interrupt::listen()?;
    testbed::make_web_server_image()?;
    let ground = Environment::new(args.engine, SwitchName::Soft, args.keep_dir, interrupt.clone())?;
    let mut live = Live::new(args.json);
    let balancers = match args.balancer.as_slice() {
        [] => &Balancer::ALL[..],
        chosen => chosen,
    };
    let shown = show(&ground, &interrupt, balancers, &mut live);
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

fn show(ground: &Environment, interrupt: &Interrupt, balancers: &[Balancer], live: &mut Live) -> Result<Web> {
    live.print_line(&format!(
        "inco demo --web: nginx containers behind {}, load by wrk. Balancers take turns: inco, HAProxy, nftables; the \
         kernel's routing to one container is measured beside. All of them are real.\n",
        network::ADDRESS
    ));
    let mut web = Web::default();
    for connections in Connections::ALL {
        for &balancer in balancers {
            let mut run = speed(ground, interrupt, balancer, connections, live)?;
            if balancer.scales() {
                scaling(ground, interrupt, balancer, connections, live, &mut run)?;
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
    let mut warm_up = start(WARM_UP)?;
    wait(interrupt, || warm_up.is_over())?;
    warm_up.end()?;
    live.print_line(&format!("{}, {}: speed ...", balancer.name(), connections.name()));
    let before = CpuTime::now()?;
    let mut wrk = start(SPEED_TIME)?;
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
    balancer: Balancer,
    connections: Connections,
    live: &mut Live,
    run: &mut Run,
) -> Result<()> {
    let mut bed = Bed::start(ground, balancer, Some(CPUS))?;
    let url = format!("http://{}/", bed.address());
    let title = format!("{}, {}: 1 → {MAX} → 1", balancer.name(), connections.name());
    let changes = [(SCALE_OUT, Change::Scale(MAX)), (SCALE_IN, Change::Scale(1))];
    let requests = |time| requests(&url, connections, SCALING_CONNECTIONS, time);
    let wrk = Wrk::start(bed.client(), ground.directory(), &requests(SCALING_TIME))?;
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
    let wrk = Wrk::start(bed.client(), ground.directory(), &requests(KILL_TIME))?;
    let (load, _) = under_load(
        &mut bed,
        wrk,
        &[(KILL, Change::Kill)],
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
