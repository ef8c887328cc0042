//! What an operator asks of the containers of instances: what they have written, and to run a command in one.

use std::collections::BTreeMap;
use std::str;
use std::sync::mpsc;

use api::types::{CommandEnd, LogPiece, LogRow, Outcome, Refusal};
use controller::{LABEL_INSTANCE, LABEL_SERVICE};
use engine::logs::{self, Logs};
use engine::{EngineError, Executed, Execution, Exit, MAX_COMMAND_OUTPUT_BYTES};
use model::{Action, InstanceId, Nanos};

use super::ControlLoop;
use super::request::Asked;

/// How long a command in a container may take: less than the API waits for an answer.
const COMMAND_LIMIT: Nanos = Nanos::from_secs(8);
/// How long the engine may take to say what came of it, from the time when it was asked.
const ANSWER_LIMIT: Nanos = Nanos::from_millis(9_500);
/// Commands that run at once. Each is a process of its container, which counts against that one's limits.
const MAX_COMMANDS: usize = 8;

type Answered = (u64, Result<Executed, EngineError>);

/// The state of this part.
pub(super) struct Containers {
    /// What containers write, of each service its own.
    pub(super) logs: Logs,
    /// Commands for which a client waits, each with its deadline.
    waiting: BTreeMap<u64, (Asked, Nanos)>,
    next_number: u64,
    sender: mpsc::Sender<Answered>,
    receiver: mpsc::Receiver<Answered>,
}

impl Default for Containers {
    fn default() -> Containers {
        let (sender, receiver) = mpsc::channel();
        Containers {
            logs: Logs::by(LABEL_SERVICE),
            waiting: BTreeMap::new(),
            next_number: 0,
            sender,
            receiver,
        }
    }
}

impl Containers {
    /// Whether no client waits for a command.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }
}

fn row_of(row: logs::LogRow) -> Option<LogRow> {
    Some(LogRow {
        instance: InstanceId(row.labels.get(LABEL_INSTANCE)?.parse().ok()?),
        container: row.name,
        first: row.first,
        next: row.next,
        started_unix_ms: row.started_unix_ms,
        ended_unix_ms: row.ended_unix_ms,
    })
}

/// The piece of this output that begins at `from`. A character that is not complete yet waits for the next piece.
fn piece_of(from: u64, mut bytes: Vec<u8>, has_ended: bool) -> LogPiece {
    let is_all = bytes.len() <= LogPiece::LIMIT;
    bytes.truncate(LogPiece::LIMIT);
    if (!has_ended || !is_all)
        && let Some(last) = bytes.utf8_chunks().last()
        && str::from_utf8(last.invalid()).is_err_and(|error| error.error_len().is_none())
    {
        bytes.truncate(bytes.len() - last.invalid().len());
    }
    LogPiece {
        from,
        next: from + bytes.len() as u64,
        text: String::from_utf8_lossy(&bytes).into_owned(),
        end: has_ended && is_all,
    }
}

fn outcome_of(executed: Executed) -> Outcome {
    let Executed { exit, output } = executed;
    let result = match exit {
        Exit {
            status: Some(status), ..
        } => format!("exited with {status}"),
        Exit {
            signal: Some(signal), ..
        } => format!("was ended by signal {signal}"),
        _ => "ended; its status is unknown".to_owned(),
    };
    Outcome {
        command: Some(CommandEnd {
            status: exit.status,
            signal: exit.signal,
            cut: output.len() >= MAX_COMMAND_OUTPUT_BYTES,
            output: String::from_utf8_lossy(&output).into_owned(),
        }),
        ..Outcome::new(result)
    }
}

impl ControlLoop {
    /// The containers of a service whose output is kept, by instance.
    pub(super) fn log_rows(&self, service: &str) -> Result<Vec<LogRow>, Refusal> {
        let mut rows: Vec<LogRow> = self
            .containers
            .logs
            .list(service)
            .into_iter()
            .filter_map(row_of)
            .collect();
        if rows.is_empty() {
            // One that a reload took away still has the output of its last containers.
            self.service_id(service)?;
        }
        rows.sort_by_key(|row| row.instance);
        Ok(rows)
    }

    /// What a container wrote, from a position on.
    pub(super) fn log_piece(
        &self,
        service: &str,
        instance: InstanceId,
        from: u64,
    ) -> Result<LogPiece, Refusal> {
        let rows = self.log_rows(service)?;
        let missing = || {
            Refusal::new(
                format!("no stored output of instance {instance} of {service}"),
                format!("`inco logs {service}` shows the stored output"),
            )
        };
        let row = rows
            .iter()
            .find(|row| row.instance == instance)
            .ok_or_else(missing)?;
        // One byte more than a piece has, to know whether there is more.
        let (from, bytes) = self
            .containers
            .logs
            .read(&row.container, from, LogPiece::LIMIT + 1)
            .ok_or_else(missing)?;
        Ok(piece_of(from, bytes, row.ended_unix_ms.is_some()))
    }

    /// Has the engine run a command in an instance's container.
    pub(super) fn begin_command(&mut self, asked: Asked, now: Nanos) {
        let name = match self.container_for(&asked) {
            Ok(name) => name,
            Err(refusal) => return self.conclude(asked, Err(refusal)),
        };
        let Action::Exec { command, .. } = &asked.action else {
            return;
        };
        let containers = &mut self.containers;
        containers.next_number += 1;
        let (number, sender) = (containers.next_number, containers.sender.clone());
        self.decide.shell.execute(Execution {
            name,
            command: command.clone(),
            limit: COMMAND_LIMIT,
            // No client waits when inco ends.
            answer: Box::new(move |result| drop(sender.send((number, result)))),
        });
        self.containers
            .waiting
            .insert(number, (asked, now + ANSWER_LIMIT));
    }

    /// The container of a permitted request to run a command.
    fn container_for(&self, asked: &Asked) -> Result<String, Refusal> {
        let Action::Exec { instance: id, .. } = &asked.action else {
            return Err(Refusal::new("the command is empty", ""));
        };
        if !asked.caller.is_root {
            return Err(Refusal::new(
                format!(
                    "{} is not permitted to run commands in containers",
                    asked.caller.name
                ),
                "run `inco exec` as root on inco's machine",
            ));
        }
        if self.containers.waiting.len() >= MAX_COMMANDS {
            return Err(Refusal::new(
                format!("{MAX_COMMANDS} commands already run in containers"),
                "try again when one of them has ended",
            ));
        }
        let instances = self.decide.shell.controller().instances();
        let found = instances.iter().find(|instance| instance.id() == *id);
        let has_container = |of: &&controller::Instance| of.container() != controller::Container::Absent;
        match found {
            None => Err(Refusal::new(
                format!("unknown instance {id}"),
                "see `inco instances`",
            )),
            Some(instance) => found
                .filter(has_container)
                .map(|instance| instance.name().to_owned())
                .ok_or_else(|| {
                    let state = instance.state().name();
                    Refusal::new(
                        format!("instance {id} is {state} and has no container"),
                        "try again once it is active",
                    )
                }),
        }
    }

    /// Tells those who wait what came of their commands.
    pub(super) fn finish_commands(&mut self, now: Nanos) {
        while let Ok((number, result)) = self.containers.receiver.try_recv() {
            if let Some((asked, _)) = self.containers.waiting.remove(&number) {
                let refused = |error: EngineError| Refusal::new(error.to_string(), "");
                self.conclude(asked, result.map(outcome_of).map_err(refused));
            }
        }
        let is_late = |(_, (_, until)): &(&u64, &(Asked, Nanos))| *until <= now;
        let late = self.containers.waiting.iter().find(is_late);
        if let Some(number) = late.map(|(number, _)| *number)
            && let Some((asked, _)) = self.containers.waiting.remove(&number)
        {
            let refusal = Refusal::new("the engine reported no result", "see `inco status`");
            self.conclude(asked, Err(refusal));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_ends_with_a_whole_character() {
        let text = "ab\u{e9}".as_bytes().to_vec();
        let whole = piece_of(5, text.clone(), false);
        assert_eq!((whole.from, whole.next, whole.text.as_str()), (5, 9, "ab\u{e9}"));
        let part = piece_of(5, text[..3].to_vec(), false);
        assert_eq!((part.next, part.text.as_str(), part.end), (7, "ab", false));
        // Nothing more comes.
        let last = piece_of(5, text[..3].to_vec(), true);
        assert_eq!((last.next, last.text.as_str(), last.end), (8, "ab\u{fffd}", true));
        let wrong = piece_of(0, b"a\xffb".to_vec(), false);
        assert_eq!((wrong.next, wrong.text.as_str()), (3, "a\u{fffd}b"));
    }

    #[test]
    fn a_piece_is_bounded_and_the_next_one_continues() {
        let mut bytes = vec![b'x'; LogPiece::LIMIT - 1];
        bytes.extend_from_slice("\u{e9}".as_bytes());
        let first = piece_of(0, bytes.clone(), true);
        assert_eq!((first.next, first.end), (LogPiece::LIMIT as u64 - 1, false));
        let rest = piece_of(first.next, bytes[first.next as usize..].to_vec(), true);
        assert_eq!((rest.text.as_str(), rest.end), ("\u{e9}", true));
    }

    #[test]
    fn the_result_of_a_command_has_its_status_and_output() {
        let exit = |status, signal| Exit {
            status,
            signal,
            out_of_memory: false,
        };
        let of = |exit, output: &[u8]| {
            outcome_of(Executed {
                exit,
                output: output.to_vec(),
            })
        };
        let outcome = of(exit(Some(3), None), b"no such file\n");
        assert_eq!(outcome.result, "exited with 3");
        let command = outcome.command.unwrap();
        assert_eq!((command.status, command.cut), (Some(3), false));
        assert_eq!(command.output, "no such file\n");
        let killed = of(exit(None, Some(9)), &vec![b'x'; MAX_COMMAND_OUTPUT_BYTES]);
        assert_eq!(killed.result, "was ended by signal 9");
        assert!(killed.command.unwrap().cut);
    }
}
