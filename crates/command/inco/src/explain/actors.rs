use actor_scheduling::migration::{Case, Memory, Move};
use actor_scheduling::{Decision, Group, groups};
use display::output::{self, WrongUsage};
use serde::Serialize;
use serde_json::Value;

use crate::cli::ExplainInput;

/// What the step decides on a case.
#[derive(Serialize)]
struct Answer {
    /// Absent: no actor moves.
    #[serde(rename = "move")]
    moves: Option<Move>,
    /// What is remembered for the next step.
    memory: Memory,
}

/// An actor or a core that is served, or serves, in another way.
#[derive(Serialize)]
struct Change {
    #[serde(skip_serializing_if = "Option::is_none")]
    actor: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    core: Option<u16>,
    group: Group,
    reason: String,
}

/// What the hybrid policy decides on a case.
#[derive(Serialize)]
struct Changes {
    changes: Vec<Change>,
}

impl Changes {
    fn of(case: &groups::Case) -> Changes {
        let change = |decision: Decision| {
            let reason = case.reason(decision);
            let (actor, core, group) = match decision {
                Decision::Actor(actor, group) => (Some(case.name_of(actor)), None, group),
                Decision::Core(core, group) => (None, Some(core.0), group),
            };
            Change {
                actor,
                core,
                group,
                reason,
            }
        };
        Changes {
            changes: case.decide().into_iter().map(change).collect(),
        }
    }

    fn text(&self) -> String {
        if self.changes.is_empty() {
            return "no actor and no core changes\n".to_owned();
        }
        let line = |of: &Change| match (&of.actor, of.group) {
            (Some(actor), Group::Drr) => format!("{actor} is served in turns: {}\n", of.reason),
            (Some(actor), Group::Fcfs) => {
                format!("{actor} is served first come, first served: {}\n", of.reason)
            }
            // Its reason names it.
            (None, _) => format!("{}\n", of.reason),
        };
        self.changes.iter().map(line).collect()
    }
}

pub(super) fn run(args: &ExplainInput) -> anyhow::Result<()> {
    let (name, text) = super::read(&args.input)?;
    let wrong = |why: String| WrongUsage(format!("{name}: {}", super::in_words(&why)));
    let input: Value = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    // A line of the event log, or the case alone.
    let case = match &input {
        Value::Object(fields) if fields.contains_key("event") => fields.get("case").ok_or_else(|| {
            let why = "this event has no case; give a `move_begun` or `move_failed` of an `actor` that inco decided, a \
                       `downgraded` or `upgraded`, or a `core_to_round` or `core_to_line` of an `actor_side`";
            wrong(why.to_owned())
        })?,
        _ => &input,
    };
    // Of groups, or of a move.
    if case.get("line_tail_ns").is_some() {
        let case: groups::Case =
            serde_json::from_value(case.clone()).map_err(|error| wrong(error.to_string()))?;
        let changes = Changes::of(&case);
        if args.json {
            return output::json(&changes, output::is_terminal());
        }
        return output::text(&changes.text());
    }
    let case: Case = serde_json::from_value(case.clone()).map_err(|error| wrong(error.to_string()))?;
    let (memory, moves) = case.decide();
    let answer = Answer { moves, memory };
    if args.json {
        return output::json(&answer, output::is_terminal());
    }
    output::text(&match &answer.moves {
        Some(of) => format!(
            "{} to the {}: {}\n",
            of.actors.join(", "),
            of.to.name(),
            of.reason
        ),
        None => "no actor moves\n".to_owned(),
    })
}
