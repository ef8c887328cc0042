//! `inco demo --cluster`: three machines and two edges on one segment, in network namespaces, each with an inco and an engine
//! of its own. Web servers and a DNS function with memif ports are behind addresses that both edges have, and the client's
//! kernel spreads its packets over the edges. The load grows; a machine is drained; an edge is restarted, another one
//! is killed; a machine is lost. Requests may fail and flows may move only by the loss of the machine.
//!
//! With `--engine swarm` ([`swarm`]) the machines are nodes of a swarm of Docker's, and one inco steers to all of them. With
//! `--engine kubernetes` they are nodes of a cluster of Kubernetes.

mod bed;
#[cfg(feature = "kubernetes")]
mod cluster_api;
#[cfg(feature = "kubernetes")]
mod kubernetes;
mod load;
mod one_inco;
#[cfg(feature = "kubernetes")]
mod relay;
mod result;
mod script;
mod swarm;

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use display::output;
use engine::ImageRef;
use images::EngineName;
use model::InstanceState;
use testbed::{Environment, Interrupt};

use super::args::{DemoArgs, DemoEngine};
use super::live::Live;
use bed::{Bed, EDGES, FUNCTION_IMAGE, Node};
use load::{Counts, Load};
use result::{Cluster, EdgeRow, PhaseRow};

/// Machines with web servers.
const MACHINES: u8 = 3;
/// Clients of the web servers while the load is low, and while it is high.
const LOW: u32 = 8;
const HIGH: u32 = load::CLIENTS_MAX;
/// The machine that drains, and the one that is lost.
const DRAINED: u8 = 1;
const LOST: u8 = 3;
/// How long a router takes to notice that an edge is dead.
const ROUTER: Duration = Duration::from_millis(200);

/// Runs the demo.
///
/// # Errors
/// Something does not start, the demo was interrupted, or a promise was broken.
pub(super) fn run(args: &DemoArgs) -> Result<()> {
    if args.kubeconfig.is_some() && args.engine != DemoEngine::Kubernetes {
        bail!("inco demo --kubeconfig: it says which cluster the machines join; add --engine kubernetes");
    }
    let interrupt = Interrupt::listen()?;
    testbed::make_web_server_image()?;
    let mut live = Live::new(args.json);
    let shown = match args.engine {
        DemoEngine::Oci => machines(args, &interrupt, &mut live),
        DemoEngine::Swarm => swarm::show(args, &interrupt, &mut live),
        #[cfg(feature = "kubernetes")]
        DemoEngine::Kubernetes => kubernetes::show(args, &interrupt, &mut live),
        #[cfg(not(feature = "kubernetes"))]
        DemoEngine::Kubernetes => {
            bail!("this inco was built without Kubernetes: build it with the feature `kubernetes`")
        }
        DemoEngine::Docker => {
            bail!(
                "inco demo --cluster: no engine docker; leave --engine out, or write --engine swarm or --engine kubernetes"
            )
        }
    };
    live.end();
    let cluster = shown?;
    if args.json {
        output::json(&cluster, true)?;
    } else {
        output::text(&cluster.text())?;
    }
    let broken = cluster.failed_checks();
    if !broken.is_empty() {
        bail!("the demo failed these checks: {}", broken.join("; "));
    }
    Ok(())
}

/// Machines with an engine each, behind edges.
fn machines(args: &DemoArgs, interrupt: &Interrupt, live: &mut Live) -> Result<Cluster> {
    images::build_function("dns", &ImageRef::from(FUNCTION_IMAGE))?;
    let grounds = bed::grounds(EngineName::Oci, args.keep_dir, interrupt)?;
    show(&grounds, interrupt, args.quick, live)
}

fn show(grounds: &[Environment], interrupt: &Interrupt, quick: bool, live: &mut Live) -> Result<Cluster> {
    live.print_line(&format!(
        "inco demo --cluster: {MACHINES} machines behind {EDGES} edges, each a network namespace with an inco of its own. \
         nginx and a DNS function are behind addresses that both edges have. All of them share this machine's CPUs.\n"
    ));
    let bed = Bed::start(grounds, interrupt, |text| live.print_line(text))?;
    let load = Load::start(&bed.client, bed::asked())?;
    let mut demo = Demo::new(bed, load, interrupt, quick);
    demo.phases(live)?;
    let (bed, mut cluster) = demo.end();
    for edge in 1..=EDGES {
        let status = bed.session(Node::Edge(edge))?.client()?.status()?;
        cluster.edges.push(EdgeRow {
            edge,
            expected_moves: status.accounting.expected_moves,
            looks: status.workers.iter().map(|of| of.looks).sum(),
            looks_returned: status.workers.iter().map(|of| of.looks_returned).sum(),
        });
    }
    cluster.left_behind = bed.stop()?;
    Ok(cluster)
}

/// Machines with web servers.
trait Machines {
    /// Active web servers of each machine.
    ///
    /// # Errors
    /// An inco does not answer.
    fn servers(&self) -> Result<Vec<u32>>;
}

/// The running demo.
struct Demo<'d, B> {
    bed: B,
    load: Load,
    interrupt: &'d Interrupt,
    /// A phase lasts at least so long.
    lasts: Duration,
    began: Instant,
    phases: Vec<PhaseRow>,
}

impl Demo<'_, Bed<'_>> {
    fn phases(&mut self, live: &mut Live) -> Result<()> {
        self.load.set_clients(LOW);
        self.phase("low load", live, |_| Ok(()))?;
        self.load.set_clients(HIGH);
        self.phase("high load", live, |_| Ok(()))?;
        self.phase("machine 1 drains", live, |bed| {
            bed.drain(DRAINED, true)?;
            bed.wait_for(DRAINED, Some(InstanceState::Draining), true)
        })?;
        self.phase("machine 1 is back", live, |bed| {
            bed.drain(DRAINED, false)?;
            bed.wait_for(DRAINED, Some(InstanceState::Active), false)
        })?;
        self.phase("edge 2 restarts", live, |bed| {
            // In order: routers send it nothing more before it ends.
            bed.route_by(&[1])?;
            bed.stop_edge(2)?;
            bed.start_edge(2)?;
            bed.route_by(&[1, 2])
        })?;
        self.phase("edge 1 is killed", live, |bed| {
            bed.kill_edge(1)?;
            std::thread::sleep(ROUTER);
            bed.route_by(&[2])?;
            bed.start_edge(1)?;
            bed.route_by(&[1, 2])
        })?;
        self.load.note_change();
        self.phase("machine 3 is lost", live, |bed| {
            bed.cut_off(LOST, true)?;
            bed.wait_for(LOST, None, false)
        })?;
        self.phase("machine 3 is back", live, |bed| {
            bed.cut_off(LOST, false)?;
            bed.wait_for(LOST, Some(InstanceState::Active), false)
        })?;
        self.load.note_change();
        self.load.set_clients(LOW);
        self.phase("low again", live, |_| Ok(()))
    }
}

impl<'d, B: Machines> Demo<'d, B> {
    fn new(bed: B, load: Load, interrupt: &'d Interrupt, quick: bool) -> Demo<'d, B> {
        Demo {
            bed,
            load,
            interrupt,
            lasts: Duration::from_secs(if quick { 2 } else { 5 }),
            began: Instant::now(),
            phases: Vec::new(),
        }
    }

    /// Ends the clients. What still runs, and the result so far.
    fn end(self) -> (B, Cluster) {
        let mut cluster = Cluster {
            phases: self.phases,
            ..Cluster::default()
        };
        cluster.add_rest(self.load.end());
        (self.bed, cluster)
    }

    /// Does something, and shows what clients see meanwhile and for the rest of the phase.
    fn phase(
        &mut self,
        name: &'static str,
        live: &mut Live,
        change: impl FnOnce(&mut B) -> Result<()>,
    ) -> Result<()> {
        let began = Instant::now();
        change(&mut self.bed)?;
        let took = began.elapsed();
        // What has changed is seen for at least as long again.
        let end = Instant::now() + self.lasts.saturating_sub(took).max(self.lasts / 2);
        while Instant::now() < end {
            self.interrupt.check()?;
            std::thread::sleep(Duration::from_millis(50));
        }
        let counts: Counts = self.load.take();
        let row = PhaseRow::of(name, began.elapsed(), took, &counts, self.bed.servers()?);
        live.print_line(&format!(
            "{:5.1} s  {}",
            self.began.elapsed().as_secs_f64(),
            row.line()
        ));
        self.phases.push(row);
        Ok(())
    }
}
