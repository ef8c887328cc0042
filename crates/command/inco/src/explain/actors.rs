use actor_scheduling::migration::{Case, Memory, Move};
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

pub(super) fn run(args: &ExplainInput) -> anyhow::Result<()> {
    let (name, text) = super::read(&args.input)?;
    let wrong = |why: String| WrongUsage(format!("{name}: {}", super::in_words(&why)));
    let input: Value = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    // A line of the event log, or the case alone.
    let case = match &input {
        Value::Object(fields) if fields.contains_key("event") => fields.get("case").ok_or_else(|| {
            let why = "this event has no case; give a `move_begun` or `move_failed` of an `actor` that inco decided";
            wrong(why.to_owned())
        })?,
        _ => &input,
    };
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
