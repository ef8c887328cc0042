//! Arguments of `inco demo`.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use images::EngineName;
use testbed::SwitchName;

use crate::function::Function;
use crate::web::Balancer;

/// What runs the containers of a demo.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DemoEngine {
    /// Embedded: containers without a daemon.
    #[default]
    Oci,
    /// Docker or Podman.
    Docker,
    /// With --cluster: a swarm of Docker's, which is started for the demo alone.
    Swarm,
    /// With --cluster: a cluster of Kubernetes, its own or that of --kubeconfig.
    Kubernetes,
}

/// Arguments of `inco demo`.
#[derive(Debug, Args)]
#[command(
    after_help = concat!(
        "Examples:\n",
        "  inco demo\n",
        "  inco demo --quick --engine docker\n",
        "  inco demo --all\n",
        "  inco demo --full --json > summary.json\n",
        "  inco demo --overload --scheduler round-robin\n",
        "  inco demo --function firewall\n",
        "  inco demo --web\n",
        "  inco demo --actors\n",
        "  inco demo --cluster\n",
        "  inco demo --cluster --engine swarm\n",
        "  inco demo --cluster --engine kubernetes\n\n",
        "Stops cleanly with Ctrl-C.",
    )
)]
pub struct DemoArgs {
    /// Run only one scheduler, in under 45 s; with --web, --actors and --cluster, shorter phases
    #[arg(long, conflicts_with_all = ["all", "full"])]
    pub quick: bool,
    /// Run three schedulers, with 1 s between new flows: three minutes
    #[arg(long)]
    pub all: bool,
    /// Like --all, and also measure saturation of 1 to 8 instances, packets of 64, 512 and 1500 bytes, and dpdk-testpmd as
    /// the function
    #[arg(long)]
    pub full: bool,
    /// Offer 150/42 of what all instances can process, as SmartINCO does, to three schedulers: three minutes. Tells the
    /// plateau, at how many flows loss starts, and where packets are lost
    #[arg(long, conflicts_with_all = ["quick", "all", "full"])]
    pub overload: bool,
    /// Balance nginx containers behind one address under load by wrk, beside HAProxy and nftables: three minutes. Needs
    /// root, and nginx, wrk, haproxy and nft on this machine
    #[arg(long, conflicts_with_all = ["all", "full", "overload", "scheduler"])]
    pub web: bool,
    /// Run a replicated store and real-time analytics made of actors, which inco moves between a card (a stand-in) and the host
    /// as the load rises and falls: about a minute. Needs root
    #[arg(long, conflicts_with_all = ["all", "full", "overload", "scheduler", "web", "function"])]
    pub actors: bool,
    /// Run three machines and two edges, in network namespaces, each with an inco of its own: nginx and a DNS function behind
    /// addresses that both edges have. The load grows, a machine is drained, edges are restarted and killed, a machine is lost: about
    /// a minute. Needs root, and nginx on this machine. With --engine swarm the machines are nodes of a swarm of Docker's, which
    /// places the web servers. With --engine kubernetes they are nodes of a cluster, each with a kubelet of its own. There one
    /// inco takes the place of both edges, and no function runs
    #[arg(long, conflicts_with_all = ["all", "full", "overload", "scheduler", "web", "actors", "function"])]
    pub cluster: bool,
    /// With --cluster --engine kubernetes, the control plane that the nodes join, at an IP address. The demo makes a namespace
    /// and three nodes there, and removes them. Default: one for the demo alone, of the programs that make test-cluster builds
    #[arg(long, value_name = "FILE", requires = "cluster")]
    pub kubeconfig: Option<PathBuf>,
    /// With --web, run only these balancers; default: all
    #[arg(
        long,
        value_enum,
        value_name = "NAME",
        value_delimiter = ',',
        requires = "web"
    )]
    pub balancer: Vec<Balancer>,
    /// Run this function of the library in the instances, behind forward: firewall, limiter, monitor, ids or router
    #[arg(long, value_name = "NAME", value_parser = Function::named, conflicts_with_all = ["full", "web"])]
    pub function: Option<&'static Function>,
    /// The container engine
    #[arg(long, value_enum, default_value_t)]
    pub engine: DemoEngine,
    /// The switch
    #[arg(long, value_enum, default_value_t)]
    pub switch: SwitchName,
    /// Run only these schedulers; default: round-robin and best-fit, with --all and --overload also worst-fit, with
    /// --quick only best-fit
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = configuration::scheduler_name)]
    pub scheduler: Vec<String>,
    /// Print only the summary, as JSON
    #[arg(long)]
    pub json: bool,
    /// File of the report
    #[arg(long, value_name = "FILE", default_value = "demo-report.html")]
    pub report: PathBuf,
    /// Keep configurations and logs of the runs
    #[arg(long)]
    pub keep_dir: bool,
    /// Milliseconds between two new flows, for short runs in tests
    #[arg(long, hide = true, value_name = "MS", value_parser = clap::value_parser!(u64).range(10..=60_000))]
    pub flow_interval_ms: Option<u64>,
}

impl DemoArgs {
    /// The engine of one machine.
    ///
    /// # Errors
    /// It is one of several machines.
    pub(crate) fn engine_here(&self) -> Result<EngineName> {
        match self.engine {
            DemoEngine::Oci => Ok(EngineName::Oci),
            DemoEngine::Docker => Ok(EngineName::Docker),
            DemoEngine::Swarm => {
                bail!("inco demo --engine swarm: a swarm has several machines; add --cluster")
            }
            DemoEngine::Kubernetes => {
                bail!("inco demo --engine kubernetes: a cluster has several machines; add --cluster")
            }
        }
    }
}
