//! `inco explain`: the decision of a policy for a given input, and its reason. It runs the same code as a running
//! inco.

mod actors;
mod autoscaler;
mod placement;
mod scheduler;

use std::io::Read as _;
use std::path::Path;

use crate::cli::{ExplainArgs, ExplainCommand};
use display::output::WrongUsage;

/// Maximum size of an input, in bytes; a case has some kilobytes.
const INPUT_LIMIT: u64 = 64 << 20;

pub(crate) fn run(args: &ExplainArgs) -> anyhow::Result<()> {
    match &args.command {
        ExplainCommand::Actors(input) => actors::run(input),
        ExplainCommand::Autoscaler(input) => autoscaler::run(input),
        ExplainCommand::Scheduler(input) => scheduler::run(input),
        ExplainCommand::Placement(args) => placement::run(args),
        ExplainCommand::Flow(flow) => crate::client_commands::explain_flow(flow),
    }
}

/// The reason why an input is invalid, without names of Rust types.
fn in_words(why: &str) -> String {
    let Some((before, expected)) = why.split_once("expected ") else {
        return why.to_owned();
    };
    let expected = match expected {
        "i32" | "i64" => "a whole number",
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number of 0 or more",
        "f32" | "f64" => "a number",
        name if name.starts_with("struct ") => "an object",
        other => other,
    };
    format!("{before}expected {expected}")
}

/// The input's name for messages, and its text.
fn read(path: &Path) -> anyhow::Result<(String, String)> {
    let is_standard_input = path == Path::new("-");
    let name = if is_standard_input {
        "standard input".to_owned()
    } else {
        path.display().to_string()
    };
    let mut bytes = Vec::new();
    let read = if is_standard_input {
        std::io::stdin()
            .lock()
            .take(INPUT_LIMIT + 1)
            .read_to_end(&mut bytes)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(INPUT_LIMIT + 1).read_to_end(&mut bytes))
    };
    read.map_err(|error| WrongUsage(format!("{name}: cannot read it ({error})")))?;
    if bytes.len() as u64 > INPUT_LIMIT {
        return Err(WrongUsage(format!("{name}: it is longer than 64 MiB; give one case")).into());
    }
    let text = String::from_utf8(bytes)
        .map_err(|_| WrongUsage(format!("{name}: this is not UTF-8 text; write JSON")))?;
    Ok((name, text))
}
