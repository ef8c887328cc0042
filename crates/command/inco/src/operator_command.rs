//! `inco operator`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context as _;
use clap::Args;
use display::output::{self, WrongUsage};
use operator::addresses::Pool;
use operator::metrics::Listen;
use operator::plan::Fault;
use operator::{Files, Settings};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::cli::ConnectionArgs;

#[derive(Debug, Args)]
#[command(
    after_help = concat!(
        "Examples:\n",
        "  inco operator --base /etc/inco/base.toml --file /run/inco/inco.toml --node n1\n",
        "  inco operator --prepare --base base.toml --file inco.toml      before `inco run -f inco.toml`\n",
        "  inco operator --namespace edge --addresses 10.0.0.100-10.0.0.120 --node n1\n\n",
        "It runs beside `inco run -f FILE` on each node (deploy/kubernetes/operator.yaml). The base file has the \
         switch, uplinks and engine of the node, and is a configuration by itself. Without the API server all goes \
         on as it is.",
    )
)]
pub(crate) struct OperatorArgs {
    /// The base file: a configuration by itself
    #[arg(long, value_name = "FILE", default_value = "/etc/inco/base.toml")]
    base: PathBuf,
    /// The configuration file of the running inco, which is written
    #[arg(short, long, value_name = "FILE", default_value = "/run/inco/inco.toml")]
    file: PathBuf,
    /// The name of this node in the cluster; default: $NODE_NAME
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Only objects of this namespace
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
    /// IPv4 addresses for Services and Gateways, such as 10.0.0.100-10.0.0.120,10.1.0.0/28
    #[arg(long, value_name = "RANGES", value_parser = Pool::parse)]
    addresses: Option<Pool>,
    /// The kubeconfig; default: the account of the Pod, else $KUBECONFIG, else ~/.kube/config
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// The program with which inco starts again where a change needs it, by the path that it has for inco; default: this one
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Only have the configuration file there, for the start of inco
    #[arg(long)]
    prepare: bool,
    /// Format of log lines on standard error
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    log_format: orchestrator::LogFormat,
    #[command(flatten)]
    metrics: MetricsArgs,
    #[command(flatten)]
    connection: ConnectionArgs,
}

#[derive(Debug, Args)]
struct MetricsArgs {
    /// Serve external metrics there, for an HPA (deploy/kubernetes/metrics.yaml)
    #[arg(long, value_name = "ADDRESS:PORT", requires_all = ["metrics_certificate", "metrics_key", "metrics_client_ca"])]
    metrics: Option<SocketAddr>,
    /// The certificate for that, as PEM
    #[arg(long, value_name = "FILE", requires = "metrics")]
    metrics_certificate: Option<PathBuf>,
    /// Its private key
    #[arg(long, value_name = "FILE", requires = "metrics")]
    metrics_key: Option<PathBuf>,
    /// The authority of the certificate with which the API server asks
    #[arg(long, value_name = "FILE", requires = "metrics")]
    metrics_client_ca: Option<PathBuf>,
}

impl MetricsArgs {
    fn listen(&self) -> Option<Listen> {
        Some(Listen {
            address: self.metrics?,
            certificate: self.metrics_certificate.clone()?,
            key: self.metrics_key.clone()?,
            client_ca: self.metrics_client_ca.clone()?,
        })
    }
}

/// What is wrong with the text of a configuration, apart from this machine.
fn check(text: &str) -> Vec<Fault> {
    let problems = orchestrator::load::parse(text, "inco.toml")
        .err()
        .unwrap_or_default();
    let fault = |problem: configuration::Problem| Fault {
        key: problem.key,
        text: format!("{}; {}", problem.what, problem.write),
    };
    problems.into_iter().map(fault).collect()
}

/// The services of the second text of which other instances are made than of the first one.
fn differ(before: &str, after: &str) -> Vec<String> {
    let parsed = |text| orchestrator::load::parse(text, "inco.toml");
    let (Ok(before), Ok(after)) = (parsed(before), parsed(after)) else {
        // What inco had accepted may not be what this version takes.
        return Vec::new();
    };
    let services = before.services_to_roll_out(&after);
    services.into_iter().map(str::to_owned).collect()
}

pub(crate) fn run(args: &OperatorArgs) -> anyhow::Result<()> {
    let files = Files {
        base: args.base.clone(),
        file: args.file.clone(),
    };
    if args.prepare {
        files.prepare(&check)?;
        return output::line(format!("{} is there", files.file.display()));
    }
    let missing =
        || WrongUsage("which node this is is not known: write --node NAME, or set NODE_NAME".to_owned());
    let node = args.node.clone().or_else(|| std::env::var("NODE_NAME").ok());
    let node = node.filter(|of| !of.is_empty()).ok_or_else(missing)?;
    let program = match &args.program {
        Some(program) => program.clone(),
        None => std::env::current_exe()
            .context("cannot find the program of this command; name it with --program")?,
    };
    let settings = Settings {
        files,
        node,
        namespace: args.namespace.clone(),
        cluster: kubernetes::Cluster {
            kubeconfig: args.kubeconfig.clone(),
            context: args.context.clone(),
        },
        endpoint: args.connection.endpoint()?,
        pool: args.addresses.clone().unwrap_or_default(),
        metrics: args.metrics.listen(),
        program,
    };
    orchestrator::start_log(args.log_format);
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .context("cannot wait for signals; see the limits of this process")?;
    }
    Ok(operator::run(&settings, &check, &differ, &stop)?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by it")]
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: OperatorArgs,
    }

    #[test]
    fn the_configurations_of_the_charts_are_valid() {
        assert_eq!(
            check(include_str!("../../../../deploy/kubernetes/chart/base.toml")),
            []
        );
        let text = include_str!("../../../../deploy/dpf/chart/inco.toml");
        assert_eq!(check(text), []);
        assert!(!check(&text.replace("kernel:wan", "")).is_empty());
    }

    /// What objects of Kubernetes become is a configuration that inco takes: several ports at one address, and listeners.
    #[test]
    fn services_of_several_ports_and_listeners_are_valid() {
        let service = |name: &str, port: u16, from: &str| {
            format!(
                "[service.{name}]\ninstances = {{ from = \"kubernetes:shop/{from}\", port = \"{name}\" }}\n\
                 vip = {{ address = \"10.0.0.100\", ports = {port}, mode = \"dnat\" }}\n"
            )
        };
        let base = "[switch]\ndriver = \"ebpf\"\n[[uplink]]\nname = \"wan\"\ndevice = \"kernel:eth1\"\n\
                    [[uplink]]\nname = \"pods\"\ndevice = \"kernel:eth2\"\n";
        let several = [
            ("web", 80, "web"),
            ("web-sip", 5060, "web"),
            ("edge-dns", 53, "dns"),
        ];
        let several = several.map(|(name, port, from)| service(name, port, from));
        assert_eq!(check(&format!("{base}{}", several.concat())), []);
        // So is a listener whose route has several backends.
        let weighed = "[service.edge-web]\nscheduler = \"maglev\"\n\
                       instances = { from = [{ service = \"shop/web\", port = \"http\", weight = 9 }, \
                       { service = \"test/canary\", weight = 1 }] }\n\
                       vip = { address = \"10.0.0.101\", ports = 80, mode = \"dnat\" }\n";
        assert_eq!(check(&format!("{base}{weighed}")), []);
        // One port of an address is one service's.
        let twice = [service("web", 80, "web"), service("other", 80, "other")];
        assert!(!check(&format!("{base}{}", twice.concat())).is_empty());
    }

    #[test]
    fn metrics_need_all_their_files() {
        let all = [
            "--metrics=0.0.0.0:9443",
            "--metrics-certificate=a",
            "--metrics-key=b",
            "--metrics-client-ca=c",
        ];
        let listen = |args: &[&str]| {
            let line = Line::try_parse_from([&["x"], args].concat());
            line.map(|of| of.args.metrics.listen().map(|of| of.address.port()))
        };
        assert_eq!(listen(&all).unwrap(), Some(9443));
        assert_eq!(listen(&[]).unwrap(), None);
        for missing in 0..all.len() {
            let mut some = all.to_vec();
            some.remove(missing);
            assert!(listen(&some).is_err(), "{some:?}");
        }
    }
}
