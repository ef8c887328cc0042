//! Decide: one step of the controller a turn, with what was gathered and what operators asked for.

use controller::{Command, CommandError, CommandId, Shell};
use model::{Event, Nanos};
use switch::{SwitchEvent, SwitchRequest};

use super::gather::Gather;

/// The state of this part.
pub(super) struct Decide {
    /// The controller, with the engine around it.
    pub(super) shell: Shell,
    /// What the switch has told since the last step.
    pub(super) told: Vec<SwitchEvent>,
    /// What operators asked for since the last step.
    commands: Vec<(CommandId, Command)>,
    newest_command: u64,
    is_stopping: bool,
}

/// What came of a step, beside what the engine is asked.
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
            told: Vec::new(),
            commands: Vec::new(),
            newest_command: 0,
            is_stopping: false,
        }
    }

    /// Has the controller do something in its next step.
    pub(super) fn order(&mut self, command: Command) -> CommandId {
        self.is_stopping |= matches!(command, Command::Shutdown { .. });
        self.newest_command += 1;
        let id = CommandId(self.newest_command);
        self.commands.push((id, command));
        id
    }

    /// Whether the end was ordered.
    pub(super) fn is_stopping(&self) -> bool {
        self.is_stopping
    }

    /// One step of the controller.
    pub(super) fn step(&mut self, gather: &mut Gather, now: Nanos) -> Step {
        let told = (&self.told[..], gather.reading.acknowledged);
        let outputs = self.shell.turn(told, &self.commands, &mut gather.collector, now);
        let step = Step {
            requests: outputs.switch.clone(),
            events: outputs.events.clone(),
            answers: outputs.answers.clone(),
        };
        self.told.clear();
        self.commands.clear();
        step
    }
}
