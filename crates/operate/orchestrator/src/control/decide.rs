//! Decide: one step of the controller per turn, with the gathered counters and the operators' commands.

use configuration::Configuration;
use controller::{Command, CommandError, CommandId, Shell};
use model::{Action, Event, Nanos};
use switch::{SwitchEvent, SwitchRequest};

use super::gather::Gather;
use super::health::Health;

/// The state of this part.
pub(super) struct Decide {
    /// The controller, with the engine around it.
    pub(super) shell: Shell,
    /// Events of the switch since the last step.
    pub(super) switch_events: Vec<SwitchEvent>,
    /// Commands since the last step.
    commands: Vec<(CommandId, Command)>,
    newest_command: u64,
    is_stopping: bool,
}

/// The outputs of a step, except the engine's requests.
#[derive(Default)]
pub(super) struct Step {
    pub(super) requests: Vec<SwitchRequest>,
    pub(super) events: Vec<Event>,
    pub(super) answers: Vec<(CommandId, Result<String, CommandError>)>,
}

impl Decide {
    pub(super) fn new(shell: Shell) -> Decide {
        Decide {
            shell,
            switch_events: Vec::new(),
            commands: Vec::new(),
            newest_command: 0,
            is_stopping: false,
        }
    }

    /// Queues a command for the controller's next step.
    pub(super) fn order(&mut self, command: impl Into<Command>) -> CommandId {
        let command = command.into();
        self.is_stopping |= matches!(command, Command::Action(Action::Stop { .. }));
        self.newest_command += 1;
        let id = CommandId(self.newest_command);
        self.commands.push((id, command));
        id
    }

    /// Whether a shutdown was ordered.
    pub(super) fn is_stopping(&self) -> bool {
        self.is_stopping
    }

    /// One step of the controller.
    pub(super) fn step(
        &mut self,
        gather: &mut Gather,
        health: &mut Health,
        configuration: &Configuration,
        now: Nanos,
    ) -> Step {
        let inputs = (&self.switch_events[..], gather.reading.acknowledged);
        let reports = health.reports(&mut self.shell, configuration, now);
        let outputs = self
            .shell
            .turn(inputs, reports, &self.commands, &mut gather.collector, now);
        let step = Step {
            requests: outputs.switch.clone(),
            events: outputs.events.clone(),
            answers: outputs.answers.clone(),
        };
        self.switch_events.clear();
        self.commands.clear();
        step
    }
}
