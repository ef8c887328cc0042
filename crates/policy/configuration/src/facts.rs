//! Checks that depend on the machine.

use std::net::SocketAddr;
use std::path::Path;

use model::Ready;

use placement::PlaceId;

use crate::problem::Problem;
use crate::types::*;
use crate::units::ValueError;

/// Why the machine cannot provide something in the configuration, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unusable {
    /// The problem: `there is no image "inco/forward"`.
    pub what: String,
    /// The remedy: `build it with: inco image build forward`.
    pub write: String,
}

impl Unusable {
    /// An error with problem and remedy.
    pub fn new(what: impl Into<String>, write: impl Into<String>) -> Unusable {
        Unusable {
            what: what.into(),
            write: write.into(),
        }
    }
}

/// The facts of a machine that a configuration depends on. Each method returns `Ok` if the thing is usable.
pub trait Facts {
    /// A CPU for a worker or a container exists and may be used.
    fn cpu(&self, cpu: u16) -> Result<(), Unusable>;
    /// An uplink's device exists, is not in use, and carries the uplink's longest frame.
    fn device(&self, uplink: &Uplink) -> Result<(), Unusable>;
    /// A network interface for the switch exists.
    fn interface(&self, name: &str) -> Result<(), Unusable>;
    /// The function of a network card for an instance exists and has the configured address.
    fn function(&self, engine: &Engine, device: &InstanceDevice) -> Result<(), Unusable>;
    /// The engine answers.
    fn engine(&self, engine: &Engine) -> Result<(), Unusable>;
    /// The engine has the image. Called only if the engine answers.
    fn image(&self, engine: &Engine, image: &str) -> Result<(), Unusable>;
    /// A container of the service has the program of `command`, or the image's own program if that is empty. Called
    /// only if the engine has the image.
    fn program(&self, engine: &Engine, service: &Service, command: &[String]) -> Result<(), Unusable>;
    /// The API's unix socket can be created. `None`: the one in the run directory.
    fn api_socket(&self, socket: Option<&Path>) -> Result<(), Unusable>;
    /// The API's TCP address can be bound.
    fn listen(&self, tcp: &ApiTcp) -> Result<(), Unusable>;
    /// The certificate and the private key match.
    fn certificate(&self, tcp: &ApiTcp) -> Result<(), Unusable>;
    /// The API server of the Kubernetes cluster can be asked: where it is, and who inco is there, is known.
    fn kubernetes(&self, of: &Kubernetes) -> Result<(), Unusable>;
    /// The file of tokens contains tokens and is not world-readable.
    fn tokens(&self, tcp: &ApiTcp) -> Result<(), Unusable>;
    /// The file has the key of a machine's load reports, and only its owner may read it.
    fn report_key(&self, file: &Path) -> Result<(), Unusable>;
    /// Load reports can be taken at that address.
    fn takes_reports(&self, at: SocketAddr) -> Result<(), Unusable>;
    /// Events can be written to the directory. `None`: `events` in the run directory.
    fn event_log(&self, directory: Option<&Path>) -> Result<(), Unusable>;
    /// The switch's own services, such as a database, are usable.
    ///
    /// # Errors
    /// A service is not usable. Returns its key, with the reason.
    fn switch(&self, of: &Switch) -> Result<(), (&'static str, Unusable)>;
    /// A file or directory that is read or mounted exists.
    fn path(&self, path: &Path) -> Result<(), Unusable>;
    /// The hugepages that DPDK or a service requires are available.
    fn hugepages(&self) -> Result<(), Unusable>;
}

/// All problems of the configuration on this machine, in the order of the file.
pub fn check_facts(configuration: &Configuration, facts: &dyn Facts) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut ask = |key: String, answer: Result<(), Unusable>| {
        if let Err(unusable) = answer {
            let wrong = ValueError::new(unusable.what, unusable.write);
            problems.push(configuration.problem(&key, wrong));
        }
    };
    for (index, cpu) in configuration.switch.workers.iter().enumerate() {
        ask(format!("switch.workers[{index}]"), facts.cpu(*cpu));
    }
    if configuration.switch.hugepages == Hugepages::On {
        ask("switch.hugepages".to_owned(), facts.hugepages());
    }
    for (index, uplink) in configuration.uplinks.iter().enumerate() {
        ask(format!("uplink[{index}].device"), facts.device(uplink));
    }
    ask(
        "api.socket".to_owned(),
        facts.api_socket(configuration.api.socket.as_deref()),
    );
    if let Some(tcp) = &configuration.api.tcp {
        ask("api.listen".to_owned(), facts.listen(tcp));
        let files = [("certificate", &tcp.certificate), ("key", &tcp.key)];
        let missing: Vec<_> = files
            .iter()
            .filter_map(|(key, file)| Some((key, facts.path(file).err()?)))
            .collect();
        if missing.is_empty() {
            ask("api.certificate".to_owned(), facts.certificate(tcp));
        }
        for (key, unusable) in missing {
            ask(format!("api.{key}"), Err(unusable));
        }
        ask("api.tokens".to_owned(), facts.tokens(tcp));
    }
    let is_followed = |of: &Service| !of.instances.kubernetes().is_empty();
    let runs = |(_, engine): &(Option<PlaceId>, Engine)| engine.driver == EngineDriver::Kubernetes;
    if configuration.services.iter().any(is_followed)
        || configuration.has_containers() && configuration.engines().iter().any(runs)
    {
        let key = match &configuration.kubernetes {
            of if of.context.is_some() && of.kubeconfig.is_none() => "kubernetes.context",
            _ => "kubernetes.kubeconfig",
        };
        ask(key.to_owned(), facts.kubernetes(&configuration.kubernetes));
    }
    if let Some(sends) = &configuration.reports.sends {
        ask("reports.key".to_owned(), facts.report_key(&sends.key));
    }
    if let Some(takes) = &configuration.reports.takes {
        ask("reports.listen".to_owned(), facts.takes_reports(takes.listen));
        for (index, machine) in takes.machines.iter().enumerate() {
            let key = format!("reports.machines[{index}].key");
            ask(key, facts.report_key(&machine.key));
        }
    }
    ask(
        "event_log.directory".to_owned(),
        facts.event_log(configuration.event_log.directory.as_deref()),
    );
    let engines = configuration.engines();
    // The key that says of an engine what a place, or `[engine]`, says of it.
    let key_of = |place: Option<PlaceId>, name: &str| match place {
        Some(place) => {
            let key = format!("place[{}].{}", place.0, name.replace("driver", "engine"));
            if configuration.positions.has(&key) {
                key
            } else {
                format!("engine.{name}")
            }
        }
        None => format!("engine.{name}"),
    };
    for (place, engine) in &engines {
        if let Some(tls) = &engine.tls {
            ask(key_of(*place, "tls"), facts.path(tls));
        }
    }
    if let Err((key, unusable)) = facts.switch(&configuration.switch) {
        ask(key.to_owned(), Err(unusable));
    }
    let mut answering: Vec<&Engine> = Vec::new();
    for (place, engine) in engines.iter().filter(|_| configuration.has_containers()) {
        let answer = facts.engine(engine);
        if answer.is_ok() {
            answering.push(engine);
        }
        let key = match engine.driver {
            EngineDriver::Docker | EngineDriver::Swarm => "host",
            EngineDriver::Oci | EngineDriver::Kubernetes => "driver",
        };
        ask(key_of(*place, key), answer);
    }
    for (id, place) in configuration.places_with_ids() {
        let cpus = place.cpu_list();
        if configuration.engine_at(id).is_local()
            && let Some(answer) = cpus.into_iter().map(|cpu| facts.cpu(cpu)).find(Result::is_err)
        {
            ask(format!("place[{}].cpus", id.0), answer);
        }
    }
    for service in &configuration.services {
        let key = |name: &str| format!("service.{}.{name}", service.written_name());
        let engines = configuration.engines_of(service);
        for variant in service.variants().filter(|_| service.has_containers()) {
            let (key, of) = (|name: &str| variant.key(name), &*variant.service);
            let engines = configuration.engines_of_variant(&variant);
            let usable = engines
                .iter()
                .filter(|engine| answering.iter().any(|known| known.is_same(engine)));
            for (engine, image) in usable.flat_map(|engine| Some((engine, of.image.as_deref()?))) {
                let answer = facts.image(engine, image);
                if answer.is_ok() {
                    let of_command = if of.command.is_empty() { "image" } else { "command" };
                    ask(key(of_command), facts.program(engine, of, &of.command));
                    if let Ready::Exec(command) = &of.ready {
                        ask(key("ready"), facts.program(engine, of, command));
                    }
                }
                ask(key("image"), answer);
            }
        }
        for (index, device) in service.devices.iter().enumerate() {
            let key = format!("{}[{index}]", key("devices"));
            let is_here = configuration.switch.openflow.database.starts_with("unix:");
            if is_here && !device.is_of_dpdk() {
                ask(format!("{key}.representor"), facts.interface(&device.representor));
            }
            let of = engines.first().unwrap_or(&configuration.engine);
            ask(key, facts.function(of, device));
        }
        if engines.iter().any(Engine::is_local) {
            for (index, mount) in service.mounts.iter().enumerate() {
                ask(format!("{}[{index}]", key("mounts")), facts.path(&mount.source));
            }
            let cpus = service
                .cpuset
                .as_deref()
                .and_then(|set| crate::values::cpus_of(set).ok())
                .unwrap_or_default();
            if let Some(answer) = cpus.into_iter().map(|cpu| facts.cpu(cpu)).find(Result::is_err) {
                ask(key("cpuset"), answer);
            }
            if service.hugepages {
                ask(key("hugepages"), facts.hugepages());
            }
        }
    }
    problems.sort_by_key(|problem| (problem.line, problem.column));
    // Two engines may lack the same.
    problems.dedup();
    problems
}

impl Configuration {
    fn problem(&self, key: &str, wrong: ValueError) -> Problem {
        Problem::new(&self.file, self.positions.of(key), key, wrong)
    }
}
