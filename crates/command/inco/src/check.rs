//! `inco check`: the plan of a configuration, or its problems.

use std::fmt::Write as _;

use configuration::{
    Capacity, Configuration, EngineDriver, Placement, Service, show_rate, show_size, show_span,
};
use model::{ActorSide, Fallback};
use orchestrator::leftovers::Running;
use orchestrator::load::{load, load_for_this_machine, service_text};
use orchestrator::machine::{Machine, image_to_pull};
use serde::Serialize;

use crate::cli::CheckArgs;
use api::run_dir;
use display::output;
use display::table::{Table, grouped};

pub(crate) fn run(args: &CheckArgs) -> anyhow::Result<()> {
    let configuration = if args.offline {
        load(&args.file)?
    } else {
        load_for_this_machine(&args.file, &Machine::beside_own_inco())?
    };
    let mut plan = Plan::of(&configuration)?;
    if !args.offline {
        plan.running = Running::of(&run_dir::run_dir()).map(RunningPlan::from);
        for variant in configuration.services.iter().flat_map(Service::variants) {
            for engine in configuration.engines_of_variant(&variant) {
                let missing = image_to_pull(&engine, &variant.service);
                plan.pulls.extend(missing.map(str::to_owned));
            }
        }
        plan.pulls.sort();
        plan.pulls.dedup();
    }
    if args.json {
        output::json(&plan, true)
    } else {
        output::text(&plan.text())
    }
}

/// The plan of a configuration.
#[derive(Debug, Serialize)]
struct Plan {
    file: String,
    switch: SwitchPlan,
    uplinks: Vec<UplinkPlan>,
    /// In match order.
    services: Vec<ServicePlan>,
    engine: String,
    /// Where instances run; absent without `[[place]]`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    places: Vec<PlacePlan>,
    /// Images that `inco run` pulls first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pulls: Vec<String>,
    memory: MemoryPlan,
    /// The inco that runs in this run directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    running: Option<RunningPlan>,
}

#[derive(Debug, Serialize)]
struct RunningPlan {
    pid: u32,
    /// The configuration that it was started with.
    file: String,
}

impl From<Running> for RunningPlan {
    fn from(of: Running) -> RunningPlan {
        RunningPlan {
            pid: of.pid,
            file: of.file,
        }
    }
}

#[derive(Debug, Serialize)]
struct SwitchPlan {
    driver: &'static str,
    /// CPUs of the workers; empty: one worker without a pinned CPU.
    workers: Vec<u16>,
    flows_per_worker: u64,
    flows_ipv6_per_worker: u64,
    unmatched: String,
    other: String,
}

#[derive(Debug, Serialize)]
struct PlacePlan {
    name: String,
    engine: String,
    /// Absent: all CPUs.
    cpus: Option<String>,
    share: f64,
    /// Absent: no limit.
    instances: Option<u32>,
    capacity: Option<String>,
}

#[derive(Debug, Serialize)]
struct UplinkPlan {
    name: String,
    device: String,
    queues: u8,
    max_frame: u16,
}

#[derive(Debug, Serialize)]
struct ServicePlan {
    name: String,
    #[serde(rename = "match")]
    matches: String,
    uplinks: Vec<String>,
    image: Option<String>,
    min: u32,
    max: u32,
    standby: u32,
    /// Absent without `[[place]]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    placement: Option<String>,
    /// What instances at some places have of their own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    at: Vec<AtPlan>,
    cpus: Option<f64>,
    /// Whether each instance has a core to itself.
    exclusive: bool,
    memory_bytes: u64,
    capacity: String,
    scheduler: String,
    autoscaler: String,
    ring_bytes_per_instance: u64,
    drain_deadline: String,
}

/// What instances of a service at a place are made from.
#[derive(Debug, Serialize)]
struct AtPlan {
    place: String,
    port: &'static str,
    image: Option<String>,
}

#[derive(Debug, Serialize)]
struct MemoryPlan {
    flow_tables_bytes: u64,
    rings_bytes_at_most: u64,
    containers_bytes_at_most: u64,
}

impl Plan {
    fn of(configuration: &Configuration) -> anyhow::Result<Plan> {
        let uplink_name = |id: &model::UplinkId| {
            configuration
                .uplinks
                .get(id.index())
                .map_or_else(String::new, |uplink| uplink.name.clone())
        };
        let fallback = |fallback: Fallback| match fallback {
            Fallback::Drop => "drop".to_owned(),
            Fallback::Pass(id) => format!("pass to {}", uplink_name(&id)),
            Fallback::Host => "leave to this machine's network".to_owned(),
            Fallback::Opposite => "pass to the opposite uplink".to_owned(),
        };
        let switch = &configuration.switch;
        let table = flow_table::TableConfig {
            ipv4_flows: usize::try_from(switch.flows)?,
            ipv6_flows: usize::try_from(switch.flows_ipv6)?,
            return_counters: configuration.services.iter().any(Service::counts_flows),
            pin_times: true,
        };
        let table_bytes = table.lines_needed()? as u64 * size_of::<flow_table::Line>() as u64;
        let in_order = configuration.match_order();
        let services: Vec<ServicePlan> = in_order
            .iter()
            .filter_map(|index| configuration.services.get(*index))
            .map(|service| ServicePlan {
                name: service.name.clone(),
                matches: match (configuration.previous(service), &service.part) {
                    (Some(before), _) => format!("what {} returns", before.name),
                    // The other side has the packets of clients.
                    (None, Some(part)) if part.side == ActorSide::Host => "none".to_owned(),
                    (None, _) => service_text(service),
                },
                uplinks: service.uplinks.iter().map(uplink_name).collect(),
                image: service.image.clone(),
                min: service.instances.min,
                max: service.instances.max,
                standby: service.instances.standby,
                placement: placement_of(configuration, service),
                at: service
                    .variants()
                    .filter_map(|of| {
                        Some(AtPlan {
                            place: of.at?.name.clone(),
                            port: of.service.port.name(),
                            image: of.service.image.clone(),
                        })
                    })
                    .collect(),
                cpus: service.cpus,
                exclusive: service.exclusive,
                memory_bytes: service.memory_bytes,
                capacity: match service.capacity {
                    Capacity::Learn => "learned".to_owned(),
                    Capacity::Pps(pps) => show_rate(pps),
                },
                scheduler: service.scheduler.name().to_owned(),
                autoscaler: service.autoscaler.name().to_owned(),
                ring_bytes_per_instance: service.ring.port_bytes(service.queues)
                    * service.uplinks.len() as u64,
                drain_deadline: show_span(service.drain_deadline),
            })
            .collect();
        let at_most = |bytes: fn(&ServicePlan) -> u64| {
            services
                .iter()
                .map(|service| u64::from(service.max + service.standby).saturating_mul(bytes(service)))
                .sum()
        };
        let places = configuration.places_with_ids().map(|(id, place)| PlacePlan {
            name: place.name.clone(),
            engine: engine_text(&configuration.engine_at(id)),
            cpus: place.cpus.clone(),
            share: place.share,
            instances: place.instances,
            capacity: place.limit_pps().map(show_rate),
        });
        Ok(Plan {
            file: configuration.file.clone(),
            switch: SwitchPlan {
                driver: switch.driver.name(),
                workers: switch.workers.clone(),
                flows_per_worker: switch.flows,
                flows_ipv6_per_worker: switch.flows_ipv6,
                unmatched: fallback(switch.unmatched),
                other: fallback(switch.other),
            },
            uplinks: configuration
                .uplinks
                .iter()
                .map(|uplink| UplinkPlan {
                    name: uplink.name.clone(),
                    device: uplink.device.to_string(),
                    queues: uplink.queues,
                    max_frame: uplink.max_frame,
                })
                .collect(),
            engine: engine_text(&configuration.engine),
            places: places.collect(),
            memory: MemoryPlan {
                flow_tables_bytes: table_bytes * switch.worker_count() as u64,
                rings_bytes_at_most: at_most(|service| service.ring_bytes_per_instance),
                containers_bytes_at_most: at_most(|service| {
                    if service.image.is_some() {
                        service.memory_bytes
                    } else {
                        0
                    }
                }),
            },
            services,
            pulls: Vec::new(),
            running: None,
        })
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let workers = match self.switch.workers.as_slice() {
            [] => "one worker on whichever CPU is free".to_owned(),
            cpus => {
                let cpus: Vec<String> = cpus.iter().map(ToString::to_string).collect();
                format!(
                    "{} on CPU {}",
                    if cpus.len() == 1 { "one worker" } else { "workers" },
                    cpus.join(", ")
                )
            }
        };
        let _ = writeln!(
            text,
            "{} is valid.\n\nswitch {}: {workers}; {} IPv4 and {} IPv6 flows each; unmatched: {}; not IP: {}\n\
             engine {}\n",
            self.file,
            self.switch.driver,
            grouped(self.switch.flows_per_worker),
            grouped(self.switch.flows_ipv6_per_worker),
            self.switch.unmatched,
            self.switch.other,
            self.engine,
        );
        let mut uplinks = Table::new(&["uplink", "device", ">queues", ">max frame"]);
        for uplink in &self.uplinks {
            uplinks.row([
                uplink.name.clone(),
                uplink.device.clone(),
                uplink.queues.to_string(),
                format!("{}B", uplink.max_frame),
            ]);
        }
        text.push_str(&uplinks.text());
        text.push('\n');
        if !self.places.is_empty() {
            text.push_str(&self.places_text());
        }
        let mut services = Table::new(&[
            "service",
            "match",
            "uplinks",
            "image",
            ">instances",
            ">standby",
            ">cpus",
            ">memory",
            ">rings",
            ">capacity",
            "scheduler",
            "autoscaler",
        ]);
        for service in &self.services {
            services.row([
                service.name.clone(),
                service.matches.clone(),
                service.uplinks.join(", "),
                service.image.clone().unwrap_or_else(|| "-".to_owned()),
                if service.min == service.max {
                    service.min.to_string()
                } else {
                    format!("{}-{}", service.min, service.max)
                },
                service.standby.to_string(),
                match service.exclusive {
                    true => "a core each".to_owned(),
                    false => service
                        .cpus
                        .map_or_else(|| "no limit".to_owned(), |cpus| cpus.to_string()),
                },
                show_size(service.memory_bytes),
                show_size(service.ring_bytes_per_instance),
                service.capacity.clone(),
                service.scheduler.clone(),
                service.autoscaler.clone(),
            ]);
        }
        text.push_str(&services.text());
        let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / 1_048_576.0);
        let _ = writeln!(
            text,
            "\nmemory: flow tables {}; rings at most {}; containers at most {}",
            mib(self.memory.flow_tables_bytes),
            mib(self.memory.rings_bytes_at_most),
            mib(self.memory.containers_bytes_at_most),
        );
        for image in &self.pulls {
            let registry = images::registry_of(image).unwrap_or_default();
            let _ = writeln!(
                text,
                "\nimage {image}: not on this machine; `inco run` pulls it from {registry}, or now: `inco image pull \
                 {image}`"
            );
        }
        if let Some(RunningPlan { pid, file }) = &self.running {
            let _ = writeln!(
                text,
                "\ninco runs with {file} (process {pid}): `inco reload --check` shows what a reload would change"
            );
        }
        text
    }
}

impl Plan {
    /// The places, and which services use which of them.
    fn places_text(&self) -> String {
        let mut places = Table::new(&["place", "engine", "cpus", ">share", ">instances", ">capacity"]);
        for place in &self.places {
            let no_limit = || "no limit".to_owned();
            places.row([
                place.name.clone(),
                place.engine.clone(),
                place.cpus.clone().unwrap_or_else(|| "all".to_owned()),
                place.share.to_string(),
                place.instances.map_or_else(no_limit, |limit| limit.to_string()),
                place.capacity.clone().unwrap_or_else(no_limit),
            ]);
        }
        let mut text = places.text();
        for service in &self.services {
            if let Some(placement) = &service.placement {
                let _ = writeln!(text, "{}: placement {placement}", service.name);
            }
            for of in &service.at {
                let AtPlan { place, port, image } = of;
                let image = image.as_deref().unwrap_or_default();
                let _ = writeln!(text, "{}: at {place}, image {image}, port {port}", service.name);
            }
        }
        text.push('\n');
        text
    }
}

fn engine_text(engine: &configuration::Engine) -> String {
    match engine.driver {
        EngineDriver::Oci => "oci".to_owned(),
        EngineDriver::Kubernetes => "kubernetes".to_owned(),
        EngineDriver::Docker | EngineDriver::Swarm => {
            format!("{} at {}", engine.driver.name(), engine.host)
        }
    }
}

/// The value of the key, for services with containers where there are places.
fn placement_of(configuration: &Configuration, service: &Service) -> Option<String> {
    if configuration.places.is_empty() || !service.has_containers() {
        return None;
    }
    Some(match service.placement {
        Placement::Auto => "auto".to_owned(),
        Placement::Split => "split".to_owned(),
        Placement::At(place) => configuration.places.get(place.index())?.name.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_example_is_right() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../examples");
        let mut seen = 0;
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "toml") {
                let configuration = load(&path).unwrap_or_else(|error| panic!("{error}"));
                Plan::of(&configuration).unwrap();
                seen += 1;
            }
        }
        assert!(seen >= 3, "{seen} examples in {directory}");
    }

    #[test]
    fn a_plan_lists_the_actions() {
        let text = r#"
[switch]
workers = [0, 1]
flows = 4096
unmatched = "wan"
[[uplink]]
name = "wan"
device = "memif:wan.sock"
[service.all]
image = "inco/forward"
instances = 2
[service.web]
match = { proto = "tcp", dst = "10.0.0.0/8", dst_port = "80-443", vlan = 7 }
image = "inco/forward"
capacity = "10Mpps"
cpus = 0.1
instances = { min = 1, max = 4, standby = 1 }
"#;
        let configuration = orchestrator::load::parse(text, "a.toml").unwrap();
        let plan = Plan::of(&configuration).unwrap();
        assert_eq!(plan.services[0].name, "web", "the narrower match is tried first");
        assert_eq!(plan.services[0].ring_bytes_per_instance, 2 * (128 + 1024 * 2064));
        assert_eq!(plan.memory.rings_bytes_at_most, 7 * 2 * (128 + 1024 * 2064));
        assert!(plan.memory.flow_tables_bytes > 2 * 4096 * 32);
        let text = plan.text();
        for said in [
            "a.toml is valid.",
            "workers on CPU 0, 1; 4,096 IPv4 and 1,024 IPv6 flows each; unmatched: pass to wan",
            "tcp to 10.0.0.0/8 port 80-443 vlan 7",
            "10Mpps",
            "all IP",
            "1-4",
        ] {
            assert!(text.contains(said), "{text}\nhas no\n{said}");
        }
        let json = serde_json::to_value(&plan).unwrap();
        assert_eq!(json["services"][1]["match"], "all IP");
    }
}
