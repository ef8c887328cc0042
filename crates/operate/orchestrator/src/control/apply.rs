//! Apply: actions of operators. An action becomes a command to the controller, a request to the switch, or a reload.
//! When it is done or refused, the requester gets an answer and the journal an event.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::time::Duration;

use api::counters::ActionCount;
use api::types::{Outcome, Refusal};
use autoscaling::Autoscaler;
use controller::{Command, CommandError, CommandId};
use model::{Action, EventKind, InstanceId, InstanceState, Nanos, PolicyChoice, ServiceId, Slot};
use scheduling::Scheduler;
use switch::{Change, FlowFilter, PickRecord, SwitchEvent};

use super::actors::is_about_actor;
use super::journal::new_event;
use super::reload::FileReader;
use super::request::{Asked, flow_key};
use super::{ControlLoop, EARLIER_RUN};
use crate::case::Case;
use crate::upgrade::Upgrade;

/// The state of this part.
#[derive(Default)]
pub(super) struct Apply {
    /// Actions that wait for the controller.
    ordered: HashMap<CommandId, Asked>,
    /// Moves whose flow is being looked up, by request number.
    moves: HashMap<u64, Asked>,
    /// Reloads that are part of the next step, each with the outcome to report.
    reloaded: Vec<(Asked, Outcome)>,
    /// Number of scheduling decisions still to record, by service.
    records: HashMap<ServiceId, u32>,
    pub(super) file_reader: FileReader,
    /// Reloads that were applied, and refused.
    pub(super) reloads: (u64, u64),
    /// Actions so far, by name and whether they were refused.
    counts: BTreeMap<(&'static str, bool), u64>,
}

/// The part that carries out an action.
enum Course {
    /// The controller, in its next step.
    Controller(Command),
    /// The switch has already done it.
    Done(Outcome),
    /// The switch looks up the flow with this request number.
    Move(u64),
    /// The file must be read first.
    Reload,
    /// The engine, in a container.
    Exec,
    /// The thread of a service of actors.
    Actor,
    /// Before its next turn the loop leaves everything to another program.
    Upgrade,
}

impl Apply {
    /// Whether no action is in progress.
    pub(super) fn is_idle(&self) -> bool {
        self.ordered.is_empty() && self.moves.is_empty() && !self.file_reader.is_busy()
    }

    /// Takes the move that waits for that lookup.
    pub(super) fn take_move(&mut self, id: u64) -> Option<Asked> {
        self.moves.remove(&id)
    }

    /// Queues a reload for the next step.
    pub(super) fn note_reloaded(&mut self, asked: Asked, outcome: Outcome) {
        self.reloaded.push((asked, outcome));
    }

    /// Counts a reload as applied or refused.
    pub(super) fn note_reload(&mut self, is_applied: bool) {
        match is_applied {
            true => self.reloads.0 += 1,
            false => self.reloads.1 += 1,
        }
    }

    /// How often each action was carried out and refused.
    pub(super) fn counts(&self) -> Vec<ActionCount> {
        let counts = self.counts.iter();
        counts
            .map(|((action, refused), count)| ActionCount {
                action: (*action).to_owned(),
                refused: *refused,
                count: *count,
            })
            .collect()
    }
}

impl ControlLoop {
    /// Begins an action.
    pub(super) fn act(&mut self, asked: Asked, now: Nanos) {
        match self.course_of(&asked.action) {
            Ok(Course::Controller(command)) => {
                if let Action::Stop { keep } = asked.action {
                    self.stop.ask(keep);
                    if keep && self.keeps_state() {
                        // Before its next turn the loop leaves everything as it is.
                        return self.conclude(asked, Ok(Outcome::new("containers go on running".to_owned())));
                    }
                }
                let id = self.decide.order(command);
                self.apply.ordered.insert(id, asked);
            }
            Ok(Course::Done(outcome)) => self.conclude(asked, Ok(outcome)),
            Ok(Course::Move(id)) => {
                self.apply.moves.insert(id, asked);
            }
            Ok(Course::Reload) => self.begin_reload(asked, now),
            Ok(Course::Exec) => self.begin_command(asked, now),
            Ok(Course::Actor) => self.act_on_actor(asked),
            Ok(Course::Upgrade) => {
                let outcome = self.begin_upgrade(&asked);
                self.conclude(asked, outcome);
            }
            Err(refusal) => self.conclude(asked, Err(refusal)),
        }
    }

    /// The course of an action. One that concerns the state of services or instances goes to the controller as it is;
    /// any other has an arm here.
    fn course_of(&mut self, action: &Action) -> Result<Course, Refusal> {
        if let (Some(service), _) = action.target() {
            self.service_id(service)?;
        }
        Ok(match action {
            Action::Policy {
                service,
                scheduler,
                autoscaler,
            } => Course::Controller(match (scheduler, autoscaler) {
                (None, Some(choice)) => Command::Autoscaler {
                    service: self.service_id(service)?,
                    autoscaler: Box::new(autoscaler_of(choice)?),
                },
                (Some(choice), None) => {
                    let (scheduler, limit) = scheduler_of(choice)?;
                    Command::Scheduler {
                        service: self.service_id(service)?,
                        scheduler: Box::new(scheduler),
                        limit: limit.map(|limit| limit as f32),
                        written: choice_text(choice),
                    }
                }
                _ => {
                    return Err(Refusal::new(
                        "policy needs a scheduler or an autoscaler",
                        "send exactly one of them",
                    ));
                }
            }),
            Action::Record { service, decisions } => Course::Done(self.record(service, *decisions)?),
            Action::Purge { flow: Some(flow), .. } => Course::Done(self.purge_flow(flow)?),
            Action::Purge { instance: None, .. } => {
                return Err(Refusal::new(
                    "purge needs an instance or a flow",
                    "send one of them",
                ));
            }
            Action::Move { flow, instance } => Course::Move(self.begin_move(flow, *instance)?),
            Action::Reload { .. } => Course::Reload,
            Action::Exec { .. } => Course::Exec,
            action if is_about_actor(action) => Course::Actor,
            Action::Upgrade { .. } => Course::Upgrade,
            _ => Course::Controller(action.clone().into()),
        })
    }

    /// Asks for the end of this run, and for the program that takes over.
    fn begin_upgrade(&self, asked: &Asked) -> Result<Outcome, Refusal> {
        let Action::Upgrade { binary, deadline_s } = &asked.action else {
            return Err(Refusal::new("this action is not an upgrade", ""));
        };
        if !asked.caller.is_root {
            return Err(Refusal::new(
                format!("{} is not permitted to upgrade inco", asked.caller.name),
                "run `inco upgrade` as root on inco's machine",
            ));
        }
        let upgrade = Upgrade {
            program: PathBuf::from(binary),
            deadline: Duration::from_secs(u64::from((*deadline_s).clamp(1, 600))),
        };
        if !upgrade.program.is_absolute() {
            return Err(Refusal::new(
                format!("{binary:?} is not a path from the root"),
                "write the whole path of the program",
            ));
        }
        match self.stop.ask_to_upgrade(upgrade) {
            true => Ok(Outcome::new(format!("{binary} takes over"))),
            false => Err(Refusal::new(
                "inco is stopping or being upgraded",
                "wait until that has ended",
            )),
        }
    }

    /// Looks up the flow that an action moves.
    fn begin_move(&mut self, flow: &str, instance: InstanceId) -> Result<u64, Refusal> {
        self.slot_of(instance)?;
        let filter = FlowFilter {
            key: Some(flow_key(flow)?),
            ..FlowFilter::default()
        };
        self.publish.ask_flows(filter, 1)
    }

    /// Moves the flow that was looked up.
    pub(super) fn move_flow(
        &mut self,
        action: &Action,
        row: Option<&switch::FlowRow>,
    ) -> Result<Outcome, Refusal> {
        let Action::Move { flow, instance: id } = action else {
            return Err(Refusal::new("this action is not a move", ""));
        };
        let Some(row) = row else {
            return Err(Refusal::new(
                format!("flow {flow} is not in the flow table"),
                "see `inco flows`",
            ));
        };
        let service = self.configuration.services.get(row.service.index());
        let name = service.map_or("", |service| service.name.as_str());
        if service.is_some_and(|service| service.affinity == configuration::Affinity::Strict) {
            return Err(Refusal::new(
                format!("flows of {name} have strict affinity, and {flow} cannot move"),
                "write affinity = \"relaxed\" if its functions keep no state per flow, or share it; or use `inco \
                 purge --flow` to reschedule the flow",
            ));
        }
        if service.is_some_and(|service| service.external.is_some()) {
            return Err(Refusal::new(
                format!("{flow} is translated to an external port of its instance, and cannot move alone"),
                "drain the instance: its flows move together, with their ports",
            ));
        }
        let instances = self.decide.shell.controller().instances();
        let Some(instance) = instances.iter().find(|i| i.id() == *id) else {
            return Err(Refusal::new(
                format!("unknown instance {id}"),
                "see `inco instances`",
            ));
        };
        if instance.service() != row.service || instance.state() != InstanceState::Active {
            let its = self.configuration.services.get(instance.service().index());
            return Err(Refusal::new(
                format!(
                    "instance {id} of {} is {}; {flow} needs an active instance of {name}",
                    its.map_or("", |service| service.name.as_str()),
                    instance.state().name()
                ),
                "see `inco instances`",
            ));
        }
        if service.is_some_and(|service| !service.symmetric) {
            return Err(Refusal::new(
                format!("{name} is not symmetric: each direction of {flow} has its own instance"),
                "use `inco purge --flow` to reschedule both directions",
            ));
        }
        let slot = instance.slot();
        if row.pins.iter().all(|pin| !pin.is_some() || *pin == slot) {
            return Ok(Outcome::new(format!("{flow} is already on instance {id}")));
        }
        self.publish.change(Change::MoveFlow {
            key: row.key,
            to: slot,
        })?;
        Ok(Outcome::new(format!(
            "{flow} moves to instance {id} with its next packet"
        )))
    }

    /// Requests records of the service's next scheduling decisions.
    fn record(&mut self, service: &str, decisions: u32) -> Result<Outcome, Refusal> {
        let id = self.service_id(service)?;
        if decisions == 0 || decisions > Action::RECORD_LIMIT {
            return Err(Refusal::new(
                format!("the number of decisions, {decisions}, is out of range"),
                format!("send a number from 1 to {}", Action::RECORD_LIMIT),
            ));
        }
        self.publish.ask_record(id)?;
        self.apply.records.insert(id, decisions);
        Ok(Outcome::new(format!(
            "the next {decisions} scheduling decisions of {service} are recorded: see `inco events`"
        )))
    }

    /// Adds a recorded scheduling decision to the journal and requests the next one.
    pub(super) fn note_record(&mut self, record: &PickRecord) {
        let Some(left) = self.apply.records.get_mut(&record.service) else {
            return;
        };
        *left -= 1;
        let is_last = *left == 0;
        let controller = self.decide.shell.controller();
        let instances = controller.instances();
        let of_slot = |slot: Slot| instances.iter().find(|i| i.slot() == slot).map(|i| i.id());
        let service = controller.services().find(|of| of.id == record.service);
        let known = service.zip(record.flow.as_ref());
        let made = known.and_then(|(service, flow)| {
            let plan = service.plan;
            let case = Case::of(record, flow, &plan.scheduler, of_slot, |place| {
                controller.place_name(place).map(str::to_owned)
            });
            let kind = EventKind::Picked {
                policy: plan.scheduler.name().to_owned(),
                flow: flow.key.tuple(flow.direction).to_string(),
                fits: flow.fits,
                case: Box::new(serde_json::to_value(case).ok()?),
            };
            Some((kind, flow.slot.and_then(of_slot)))
        });
        let service = self
            .configuration
            .services
            .get(record.service.index())
            .map(|service| service.name.clone());
        if let Some((kind, instance)) = made {
            let mut event = new_event(service, kind);
            event.instance = instance;
            self.journal.push(event);
        }
        if is_last {
            self.apply.records.remove(&record.service);
        } else if let Err(error) = self.publish.ask_record(record.service) {
            tracing::warn!(%error, "recording of scheduling decisions has ended");
            self.apply.records.remove(&record.service);
        }
    }

    fn purge_flow(&mut self, flow: &str) -> Result<Outcome, Refusal> {
        self.publish.change(Change::PurgeFlow(flow_key(flow)?))?;
        Ok(Outcome::new(format!(
            "{flow} is unpinned, if it was pinned; its next packet is rescheduled"
        )))
    }

    /// Answers the actions that were part of the last step.
    pub(super) fn conclude_step(&mut self, answers: Vec<(CommandId, Result<String, CommandError>)>) {
        let refused = plan_refusal(&self.decide.switch_events);
        for (id, result) in answers {
            let Some(asked) = self.apply.ordered.remove(&id) else {
                self.conclude_signal(id, &result);
                continue;
            };
            let result = match (result, &refused) {
                (Err(error), _) => Err(Refusal::new(error.to_string(), hint(&error))),
                (Ok(_), Some(refused)) => Err(refused.clone()),
                (Ok(done), None) => Ok(Outcome::new(done)),
            };
            self.conclude(asked, result);
        }
        for (asked, outcome) in std::mem::take(&mut self.apply.reloaded) {
            let result = refused.clone().map_or(Ok(outcome), Err);
            self.apply.note_reload(result.is_ok());
            self.conclude(asked, result);
        }
    }

    /// Records the result of an action and answers its requester.
    pub(super) fn conclude(&mut self, asked: Asked, result: Result<Outcome, Refusal>) {
        let has_changed = match &result {
            Ok(_) => self.run_time.note(&asked.action),
            Err(_) => asked.caller.name == EARLIER_RUN && self.run_time.refused_again(&asked.action),
        };
        if has_changed {
            self.keep_run_time();
        }
        let name = asked.action.name();
        *self.apply.counts.entry((name, result.is_err())).or_default() += 1;
        let (service, instance) = asked.action.target();
        let service = service.map(str::to_owned);
        let mut event = new_event(
            service,
            EventKind::Action {
                action: name.to_owned(),
                request: serde_json::to_value(&asked.action).unwrap_or_default(),
                by: asked.caller.name,
                refused: result.is_err(),
                result: match &result {
                    Ok(outcome) => outcome.result.clone(),
                    Err(refusal) => refusal.to_string(),
                },
            },
        );
        event.instance = instance;
        self.journal.push(event);
        asked.answer.give(result);
    }
}

/// The autoscaler of a choice.
fn autoscaler_of(choice: &PolicyChoice) -> Result<Autoscaler, Refusal> {
    let known = Autoscaler::from_name(&choice.policy);
    known.map_err(|error| Refusal::new(error.to_string(), "name one of them"))?;
    let parameters = serde_json::Value::Object(choice.parameters.clone());
    Autoscaler::with_parameters(&choice.policy, parameters).map_err(|error| {
        let names = Autoscaler::parameters_of(&choice.policy).unwrap_or_default();
        let names: Vec<&str> = names.iter().map(|parameter| parameter.name).collect();
        Refusal::new(
            format!("{}: {error}", choice.policy),
            format!("its parameters are {}", names.join(", ")),
        )
    })
}

/// A choice in the configuration's notation.
fn choice_text(choice: &PolicyChoice) -> String {
    let mut table = toml::Table::new();
    table.insert("policy".to_owned(), choice.policy.as_str().into());
    for (name, value) in &choice.parameters {
        if let Ok(value) = toml::Value::try_from(value) {
            table.insert(name.clone(), value);
        }
    }
    if table.len() == 1 {
        return choice.policy.clone();
    }
    toml::Value::Table(table).to_string()
}

/// The scheduler of a choice, and an instance's capacity in its metric.
fn scheduler_of(choice: &PolicyChoice) -> Result<(Scheduler, Option<f64>), Refusal> {
    configuration::parse_scheduler(&choice_text(choice)).map_err(|problems| match problems.first() {
        Some(problem) => Refusal::new(
            format!("{}: {}", problem.key, problem.what),
            problem.write.clone(),
        ),
        None => Refusal::new("this is not a scheduler", "name a scheduler"),
    })
}

/// The refusal for a step whose plan the switch rejected, from the switch's events.
fn plan_refusal(switch_events: &[SwitchEvent]) -> Option<Refusal> {
    switch_events.iter().find_map(|event| match event {
        SwitchEvent::PlanRefused { reason, .. } => Some(Refusal::new(
            format!("the switch refused the plan: {reason}"),
            "the previous plan stays in force; undo the change",
        )),
        _ => None,
    })
}

fn hint(error: &CommandError) -> &'static str {
    match error {
        CommandError::UnknownService { .. } => "see `inco services`",
        CommandError::UnknownInstance { .. } | CommandError::WrongState { .. } => {
            "`inco instances` shows the instances and their states"
        }
        CommandError::OutOfLimits { .. } => "change `instances` in the configuration",
        CommandError::EmptyRange { .. } => "send a min of at most max",
        CommandError::BadQuota { .. } => "send a number of CPUs such as 0.5",
        CommandError::NoQuota { .. } => "write `cpus` into the service and reload",
        CommandError::OthersRun { .. } => {
            "change `instances.from` in the file and run `inco reload`; `inco drain` takes one out"
        }
        CommandError::Manual { .. } => "`inco scale SERVICE --auto` lets signals decide again",
        CommandError::HeldBack { .. } => "enable scaling in that direction",
        CommandError::RollsOut { .. } => "wait for it with --wait, or end it with --cancel",
        CommandError::NotForController { .. } => "report it: no part of this inco carries the action out",
        CommandError::ShuttingDown => "wait, then start it again",
    }
}
