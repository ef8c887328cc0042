//! `inco doctor`: checks whether this machine meets inco's requirements, and says what to change. It changes nothing.
#![forbid(unsafe_code)]

mod checks;
mod host;
mod uplinks;

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::bail;
use configuration::{Configuration, Device, EngineDriver, Hugepages, PortKind, check_facts};
use serde::Serialize;

use display::output;
use host::Host;
use kubernetes::{TO_FOLLOW, TO_RUN_PODS};
use orchestrator::load;
use orchestrator::machine::{Machine, cluster};
use uplinks::Uplinks;

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Health {
    /// The requirement is met.
    Ok,
    /// inco runs, but slower, with more jitter, or without an optional feature.
    Warn,
    /// inco does not run, or not with this configuration.
    Fail,
}

impl Health {
    const fn name(self) -> &'static str {
        match self {
            Health::Ok => "ok",
            Health::Warn => "warn",
            Health::Fail => "fail",
        }
    }
}

/// A check with its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Finding {
    /// The subject of the check, in one or two words.
    check: String,
    health: Health,
    /// The observed state.
    found: String,
    /// The change that fixes it; `None` if there is nothing to fix.
    #[serde(skip_serializing_if = "Option::is_none")]
    change: Option<String>,
}

impl Finding {
    fn ok(check: &str, found: impl Into<String>) -> Finding {
        Finding {
            check: check.to_owned(),
            health: Health::Ok,
            found: found.into(),
            change: None,
        }
    }

    fn warn(check: &str, found: impl Into<String>, change: impl Into<String>) -> Finding {
        Finding {
            health: Health::Warn,
            change: Some(change.into()),
            ..Finding::ok(check, found)
        }
    }

    fn fail(check: &str, found: impl Into<String>, change: impl Into<String>) -> Finding {
        Finding {
            health: Health::Fail,
            ..Finding::warn(check, found, change)
        }
    }
}

/// The intended use of this machine: some checks depend on the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Purpose {
    engine: EngineDriver,
    /// The address of Docker or Podman.
    docker_host: String,
    /// A manager of a swarm, if that is to place instances.
    swarm: Option<SwarmAt>,
    /// CPUs that workers are pinned to.
    workers: Vec<u16>,
    /// Whether uplinks need DPDK.
    needs_dpdk: bool,
    /// Whether programs in the kernel forward.
    needs_ebpf: bool,
    /// Interfaces that both the switch and this machine's own network receive from, all packets alike.
    beside_kernel: Vec<String>,
    /// Uplinks that stay with the kernel.
    uplinks: Uplinks,
    /// MiB of the flow tables, where they may lie in hugepages.
    tables_mib: u64,
}

/// Where a manager of a swarm answers.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SwarmAt {
    host: String,
    /// The directory with `ca.pem`, `cert.pem` and `key.pem`, for another machine.
    certificates: Option<std::path::PathBuf>,
}

impl Default for Purpose {
    fn default() -> Purpose {
        Purpose {
            engine: EngineDriver::Oci,
            docker_host: engine::DEFAULT_HOST.to_owned(),
            swarm: None,
            workers: Vec::new(),
            needs_dpdk: false,
            needs_ebpf: false,
            beside_kernel: Vec::new(),
            uplinks: Uplinks::default(),
            tables_mib: 0,
        }
    }
}

impl Purpose {
    fn of(configuration: &Configuration) -> Purpose {
        let uplinks = &configuration.uplinks;
        let engines = configuration.engines();
        // The embedded engine asks more of a machine.
        let find = |driver| engines.iter().map(|(_, of)| of).find(|of| of.driver == driver);
        let docker = find(EngineDriver::Docker);
        let swarm = find(EngineDriver::Swarm);
        let first = find(EngineDriver::Oci)
            .or(docker)
            .unwrap_or(&configuration.engine);
        let usual = || engine::DEFAULT_HOST.to_owned();
        Purpose {
            engine: first.driver,
            docker_host: docker.map_or_else(usual, |of| of.host.clone()),
            swarm: swarm.map(|of| SwarmAt {
                host: of.host.clone(),
                certificates: of.tls.clone(),
            }),
            workers: configuration.switch.workers.clone(),
            needs_dpdk: uplinks.iter().any(|uplink| uplink.device.is_of_dpdk()),
            needs_ebpf: orchestrator::loads_programs(configuration),
            beside_kernel: interfaces_beside_kernel(configuration),
            uplinks: kernel_uplinks(configuration),
            tables_mib: match configuration.switch.hugepages {
                Hugepages::Off => 0,
                Hugepages::Auto | Hugepages::On => orchestrator::flow_tables_mib(configuration),
            },
        }
    }
}

/// The kernel's interfaces that are uplinks.
fn kernel_uplinks(configuration: &Configuration) -> Uplinks {
    let uplinks = configuration.uplinks.iter();
    let of_kernel = uplinks.filter_map(|uplink| match &uplink.device {
        Device::Kernel(name) => Some(name.clone()),
        _ => None,
    });
    let longest_packet = orchestrator::longest_packet(configuration);
    let frames = configuration.uplinks.iter().map(|uplink| uplink.max_frame).min();
    Uplinks {
        names: of_kernel.collect(),
        longest_packet,
        header: frames.unwrap_or(0).saturating_sub(longest_packet),
        in_kernel: orchestrator::loads_programs(configuration),
    }
}

/// The kernel's interfaces by which the switch gets packets that are to no address of a service, where the kernel's
/// network gets them, too: it takes them for its own.
fn interfaces_beside_kernel(configuration: &Configuration) -> Vec<String> {
    if orchestrator::passes_to_host(configuration) {
        return Vec::new();
    }
    let is_used = |place: usize| {
        let without_address = configuration.services.iter().filter(|of| of.vip.is_none());
        without_address
            .flat_map(|of| &of.uplinks)
            .any(|id| id.index() == place)
    };
    let uplinks = configuration.uplinks.iter().enumerate();
    let names = uplinks.filter_map(|(place, uplink)| match &uplink.device {
        Device::Kernel(name) if is_used(place) => Some(name.clone()),
        _ => None,
    });
    names.collect()
}

/// Runs all checks and prints the findings. `file` adds the requirements of that configuration.
///
/// # Errors
/// Returns an error if a requirement is not met or the configuration is invalid.
pub fn run(file: Option<&Path>, json: bool) -> anyhow::Result<()> {
    let mut findings = Vec::new();
    let purpose = match file {
        None => Purpose::default(),
        Some(file) => {
            let configuration = load::load(file)?;
            findings.extend(configured(&configuration));
            Purpose::of(&configuration)
        }
    };
    findings.extend(checks::all(&Host::here(), &purpose));
    if json {
        output::json(&findings, true)?;
    } else {
        output::text(&text(&findings))?;
    }
    match failures(&findings) {
        0 => Ok(()),
        1 => bail!("1 check failed: see its remedy above"),
        failed => bail!("{failed} checks failed: see their remedies above"),
    }
}

fn failures(findings: &[Finding]) -> usize {
    findings
        .iter()
        .filter(|finding| finding.health == Health::Fail)
        .count()
}

/// Checks the resources that a configuration names.
fn configured(configuration: &Configuration) -> Vec<Finding> {
    let problems = check_facts(configuration, &Machine::beside_own_inco());
    if problems.is_empty() {
        let found = format!("this machine has everything that {} names", configuration.file);
        let mut findings = vec![Finding::ok("configuration", found)];
        findings.extend(ports(configuration));
        findings.extend(clusters(configuration));
        return findings;
    }
    let finding = |problem: &configuration::Problem| {
        let found = format!(
            "{}:{}: {}: {}",
            problem.file, problem.line, problem.key, problem.what
        );
        Finding::fail("configuration", found, &problem.write)
    };
    problems.iter().map(finding).collect()
}

/// Checks the ports that the switch creates for instances at its start.
fn ports(configuration: &Configuration) -> Option<Finding> {
    let makes_all = configuration.switch.can.prepared_ports;
    let is_made = move |kind: PortKind| makes_all || matches!(kind, PortKind::Kernel | PortKind::Frames);
    let all = configuration.services.iter().flat_map(|service| {
        let kinds = service
            .port_kinds()
            .into_iter()
            .filter(move |kind| is_made(*kind));
        kinds.map(move |kind| (service, kind))
    });
    let spare = configuration.switch.spare_ports();
    let told: Vec<String> = all
        .map(|(service, kind)| {
            let kind = match kind {
                PortKind::Device => "on functions of a card",
                PortKind::Kernel => "on interfaces",
                PortKind::Frames => "of whole frames on interfaces",
                PortKind::Tunnel => "at the far ends of tunnels",
                PortKind::Routed if service.instances.are_others() => "for servers that others run",
                PortKind::Routed => "for instances on other machines",
                PortKind::Memif | PortKind::Null => "on memif",
            };
            let most = service.instance_limit();
            format!(
                "{}: {} slots {kind}, for {most} instances and draining ones",
                service.name,
                service.made_ports(spare)
            )
        })
        .collect();
    (!told.is_empty()).then(|| Finding::ok("ports", told.join("; ")))
}

/// Checks whether the API server of a Kubernetes cluster answers, and what inco may do there.
fn clusters(configuration: &Configuration) -> Vec<Finding> {
    let services = configuration.services.iter();
    let mut namespaces: Vec<&str> = services
        .flat_map(|of| of.instances.kubernetes())
        .map(|of| of.namespace.as_str())
        .collect();
    namespaces.sort_unstable();
    namespaces.dedup();
    let cluster = cluster(&configuration.kubernetes);
    let wanted = |namespace| (Some(namespace), &TO_FOLLOW[..], "follow Services");
    let mut wanted: Vec<_> = namespaces.into_iter().map(wanted).collect();
    let engines = configuration.engines();
    if configuration.has_containers()
        && engines
            .iter()
            .any(|(_, of)| of.driver == EngineDriver::Kubernetes)
    {
        wanted.push((
            configuration.kubernetes.namespace.as_deref(),
            &TO_RUN_PODS[..],
            "run Pods",
        ));
    }
    let mut findings: Vec<Finding> = wanted
        .iter()
        .map(
            |(namespace, rights, does)| match cluster.access(*namespace, rights) {
                Ok(of) if of.forbidden.is_empty() => {
                    let found = format!(
                        "Kubernetes {} answers, and inco may {does} in {}",
                        of.version, of.namespace
                    );
                    Finding::ok("kubernetes", found)
                }
                Ok(of) => Finding::fail(
                    "kubernetes",
                    format!(
                        "Kubernetes {} answers, and inco may not {} in {}",
                        of.version,
                        of.forbidden.join(", "),
                        of.namespace
                    ),
                    "give inco's account the Role of docs/tasks/kubernetes.md in that namespace",
                ),
                Err(error) => Finding::fail(
                    "kubernetes",
                    error.to_string(),
                    "check `server` and the credentials of the kubeconfig; kubectl must work with it",
                ),
            },
        )
        .collect();
    let file = cluster.file().filter(|_| !wanted.is_empty());
    if let Some(file) = file
        && let Ok(found) = std::fs::metadata(&file)
        && found.permissions().mode() & 0o077 != 0
    {
        findings.push(Finding::warn(
            "kubernetes",
            format!(
                "{} may be read by others than its owner, and has credentials",
                file.display()
            ),
            format!("chmod 600 {}", file.display()),
        ));
    }
    findings
}

/// One line per finding, followed by a line with the change, if any.
fn text(findings: &[Finding]) -> String {
    let width = findings
        .iter()
        .map(|finding| finding.check.len())
        .max()
        .unwrap_or(0);
    let mut text = String::new();
    for finding in findings {
        let health = finding.health.name();
        let _ = writeln!(text, "{health:<5} {:<width$}  {}", finding.check, finding.found);
        if let Some(change) = &finding.change {
            let _ = writeln!(text, "      {:<width$}  -> {change}", "");
        }
    }
    let count = |health: Health| findings.iter().filter(|finding| finding.health == health).count();
    let _ = writeln!(
        text,
        "\n{} ok, {} to consider, {} failed",
        count(Health::Ok),
        count(Health::Warn),
        count(Health::Fail)
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_has_its_remedy_below_it() {
        let findings = [
            Finding::ok("cpus", "4 CPUs"),
            Finding::warn("hugepages", "none is free", "reserve some"),
            Finding::fail("cgroups", "none", "mount them"),
        ];
        assert_eq!(
            text(&findings),
            "ok    cpus       4 CPUs\n\
             warn  hugepages  none is free\n                 -> reserve some\n\
             fail  cgroups    none\n                 -> mount them\n\
             \n1 ok, 1 to consider, 1 failed\n"
        );
        assert_eq!(failures(&findings), 1);
        let json = serde_json::to_value(&findings).unwrap();
        assert_eq!(json[0]["health"], "ok");
        assert!(json[0].get("change").is_none());
        assert_eq!(json[1]["change"], "reserve some");
    }

    #[test]
    fn what_a_configuration_names_and_the_machine_lacks_fails() {
        let text = "[[uplink]]\nname = \"wan\"\ndevice = \"memif:wan.sock\"\n[service.all]\n\
                    image = \"inco/none-such\"\n[switch]\nworkers = [8000]\n";
        let configuration = load::parse(text, "a.toml").unwrap();
        let findings = configured(&configuration);
        assert!(
            findings
                .iter()
                .any(|finding| finding.found.contains("a.toml:") && finding.found.contains("CPU 8000")),
            "{findings:?}"
        );
        assert!(findings.iter().all(|finding| finding.health == Health::Fail));
        assert_eq!(Purpose::of(&configuration).workers, [8000]);
        assert_eq!(ports(&configuration), None);
    }

    #[test]
    fn the_ports_for_instances_are_listed() {
        let text = "[switch]\ndriver = \"openflow\"\nopenflow = { spare_ports = 3 }\n[[uplink]]\nname = \"wan\"\n\
                    device = \"memif:wan.sock\"\n[service.all]\nimage = \"a\"\nsymmetric = false\ninstances = 4\n";
        let configuration = load::parse(text, "a.toml").unwrap();
        let found = ports(&configuration).unwrap().found;
        assert_eq!(found, "all: 7 slots on memif, for 4 instances and draining ones");
    }
}
