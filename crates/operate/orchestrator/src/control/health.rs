//! Health: has instances asked whether they serve, and passes on what is found. The controller decides what follows.

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::time::Duration;

use configuration::{Configuration, Service};
use controller::{Container, Instance, Report, ReportKind, Shell};
use engine::{EngineError, Executed, Execution};
use health::{Aspect, Checkers, HealthError, ListenWatch, Listening, Passed, Port, Question, Repeated, Way};
use model::{HealthCheck, InstanceId, InstanceState, Nanos, PortKind, Probe, Ready, Slot};

/// How a command ended, and of which instance.
type Ended = (InstanceId, Result<Executed, EngineError>);

/// The state of this part.
pub(super) struct Health {
    listen: ListenWatch,
    checkers: Checkers,
    /// How instances are reached, by slot.
    ports: BTreeMap<Slot, Port>,
    /// Commands that check: when the next one begins, and whether one runs.
    commands: BTreeMap<InstanceId, (Nanos, bool)>,
    tell: mpsc::Sender<Ended>,
    ended: mpsc::Receiver<Ended>,
    /// Refilled each turn: who is checked.
    checked: Vec<(InstanceId, Aspect)>,
    /// What was found since the last step.
    reports: Vec<Report>,
}

impl Health {
    /// `ports`: how the instance of each slot is reached.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(super) fn start(ports: Vec<(Slot, Port)>) -> Result<Health, HealthError> {
        let (tell, ended) = mpsc::channel();
        Ok(Health {
            listen: ListenWatch::start()?,
            checkers: Checkers::default(),
            ports: ports.into_iter().collect(),
            commands: BTreeMap::new(),
            tell,
            ended,
            checked: Vec::new(),
            reports: Vec::new(),
        })
    }

    /// How instances are checked may have changed.
    pub(super) fn forget(&mut self) {
        self.checkers.forget();
    }

    /// Follows the instances, and gives what was found of them since the last turn.
    pub(super) fn reports(
        &mut self,
        shell: &mut Shell,
        configuration: &Configuration,
        now: Nanos,
    ) -> &[Report] {
        self.reports.clear();
        self.wait_for_listeners(shell, configuration);
        self.check_over_the_network(shell, configuration);
        self.check_by_commands(shell, configuration, now);
        &self.reports
    }

    fn wait_for_listeners(&mut self, shell: &Shell, configuration: &Configuration) {
        let instances = shell.controller().instances();
        let starting = instances.iter().filter(|of| {
            of.state() == InstanceState::Starting
                && of.container() == Container::Running
                && service_of(configuration, of)
                    .is_some_and(|service| *service.ready_at(of.place()) == Ready::Listens)
        });
        let ports = &self.ports;
        let wanted = |id: InstanceId| {
            let instance = instances.iter().find(|of| of.id() == id)?;
            let (service, pid) = (service_of(configuration, instance)?, instance.pid()?);
            if instance.port_kind() == PortKind::Frames {
                return Some(Listening {
                    instance: id,
                    pid,
                    addresses: Vec::new(),
                    ports: Vec::new(),
                    interfaces: service.uplinks.len(),
                });
            }
            let vip = service.vip.as_ref()?;
            Some(Listening {
                instance: id,
                pid,
                interfaces: 0,
                addresses: ports.get(&instance.slot())?.addresses.clone(),
                ports: vip.instance_ports(),
            })
        };
        self.listen.follow(starting.map(Instance::id), wanted);
        while let Some((instance, missing)) = self.listen.news() {
            let kind = ReportKind::Listens(missing.map_or(Ok(()), Err));
            self.reports.push(Report { instance, kind });
        }
    }

    fn check_over_the_network(&mut self, shell: &Shell, configuration: &Configuration) {
        let instances = shell.controller().instances();
        self.checked.clear();
        for instance in instances.iter().filter(|of| of.is_checked()) {
            let Some(service) = service_of(configuration, instance) else {
                continue;
            };
            // One with other ports than its service has by now, or beside those, has no network to ask it over.
            let kind = instance.port_kind();
            let has_network = kind == PortKind::Kernel || instance.address().is_some();
            if kind != service.port_at(instance.place()) || !has_network {
                continue;
            }
            if service.health.as_ref().is_some_and(|of| question(of).is_some()) {
                self.checked.push((instance.id(), Aspect::Health));
            }
            if service.agent.is_some() {
                self.checked.push((instance.id(), Aspect::Agent));
            }
        }
        let ports = &self.ports;
        let check = |id: InstanceId, aspect: Aspect| {
            let instance = instances.iter().find(|of| of.id() == id)?;
            let service = service_of(configuration, instance)?;
            let (question, every, timeout) = match aspect {
                Aspect::Health => {
                    let of = service.health.as_ref()?;
                    (question(of)?, of.every, of.timeout)
                }
                Aspect::Agent => {
                    let of = service.agent.as_ref()?;
                    (Question::Agent { port: of.port }, of.every, of.every)
                }
            };
            Some(Repeated {
                way: match instance.address() {
                    Some(at) => Way::Network(at),
                    None => Way::Interface(ports.get(&instance.slot())?.clone()),
                },
                question,
                every: Duration::from_nanos(every.0),
                timeout: Duration::from_nanos(timeout.0),
            })
        };
        if let Err(error) = self.checkers.follow(&self.checked, check) {
            tracing::warn!(%error, "an instance is not checked");
        }
        while let Some(verdict) = self.checkers.verdict() {
            let kind = match (verdict.aspect, verdict.found) {
                (Aspect::Health, found) => ReportKind::Check(found.map(drop)),
                (Aspect::Agent, Ok(Passed::Agent(said))) => ReportKind::Agent(Ok(said)),
                (Aspect::Agent, Ok(Passed::Serves)) => continue,
                (Aspect::Agent, Err(why)) => ReportKind::Agent(Err(why)),
            };
            self.reports.push(Report {
                instance: verdict.instance,
                kind,
            });
        }
    }

    fn check_by_commands(&mut self, shell: &mut Shell, configuration: &Configuration, now: Nanos) {
        while let Ok((instance, result)) = self.ended.try_recv() {
            let Some((_, runs)) = self.commands.get_mut(&instance) else {
                continue;
            };
            *runs = false;
            let name = instance.to_string();
            let verdict = result.and_then(|executed| executed.verdict(&name));
            let kind = ReportKind::Check(verdict.map_err(said));
            self.reports.push(Report { instance, kind });
        }
        let mut due = Vec::new();
        let mut present = Vec::new();
        for instance in shell.controller().instances().iter().filter(|of| of.is_checked()) {
            let check = service_of(configuration, instance).and_then(|service| service.health.as_ref());
            let Some(check) = check else { continue };
            let Probe::Command(command) = &check.probe else {
                continue;
            };
            present.push(instance.id());
            let (next, runs) = self.commands.entry(instance.id()).or_insert((now, false));
            if *next <= now && !*runs {
                (*next, *runs) = (now + check.every, true);
                due.push((
                    instance.id(),
                    instance.name().to_owned(),
                    command.clone(),
                    check.timeout,
                ));
            }
        }
        // Instances are in the order of their ids.
        self.commands.retain(|id, _| present.binary_search(id).is_ok());
        for (id, name, command, limit) in due {
            let tell = self.tell.clone();
            shell.execute(Execution {
                name,
                command,
                limit,
                // Nobody waits when inco ends.
                answer: Box::new(move |result| drop(tell.send((id, result)))),
            });
        }
    }
}

/// Why a command did not pass.
fn said(error: EngineError) -> String {
    match error {
        EngineError::Command { reason, .. } => format!("its command {reason}"),
        other => other.to_string(),
    }
}

fn service_of<'c>(configuration: &'c Configuration, of: &Instance) -> Option<&'c Service> {
    configuration.services.get(of.service().index())
}

/// What an instance is asked over its network, if it is.
fn question(of: &HealthCheck) -> Option<Question> {
    Some(match &of.probe {
        Probe::Tcp(port) => Question::Tcp { port: *port },
        Probe::Http(port, path) => Question::Http {
            port: *port,
            path: path.clone(),
        },
        Probe::Dns(port, name) => Question::Dns {
            port: *port,
            name: name.clone(),
        },
        Probe::Command(_) => return None,
    })
}
