//! `inco explain scheduler`: the instances that a scheduler picks for new flows.

use std::fmt::Write as _;

use display::output::{self, WrongUsage};
use display::table::{Table, or_dash, percent};
use orchestrator::case::{self, Explanation};

use crate::cli::ExplainInput;

pub(super) fn run(args: &ExplainInput) -> anyhow::Result<()> {
    let (name, text) = super::read(&args.input)?;
    let explanation = case::read(&text)
        .and_then(|case| case.explain())
        .map_err(|wrong| {
            let field = if wrong.field.is_empty() || wrong.field == "." {
                String::new()
            } else {
                format!("{}: ", wrong.field)
            };
            WrongUsage(format!("{name}: {field}{}", super::in_words(&wrong.why)))
        })?;
    if args.json {
        output::json(&explanation, output::is_terminal())
    } else {
        output::text(&explanation_text(&explanation))
    }
}

fn explanation_text(explanation: &Explanation) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{}, by {}\n", explanation.policy, explanation.metric.unit());
    let mut picks = Table::new(&["flow", ">instance", "hash", "reason"]);
    for pick in &explanation.picks {
        let rank = pick
            .rank
            .map_or_else(String::new, |rank| format!("; rank {rank}"));
        picks.row([
            pick.flow.clone(),
            or_dash(pick.instance, |id| id.to_string()),
            pick.hash_hex.clone(),
            format!("{}{rank}", pick.reason),
        ]);
    }
    text.push_str(&picks.text());
    text.push('\n');
    let has_places = explanation.instances.iter().any(|of| of.place.is_some());
    let mut heads = vec!["instance"];
    heads.extend(has_places.then_some("place"));
    heads.extend(["state", ">load after", ">flows given", ">share", ">ramp"]);
    let mut instances = Table::new(&heads);
    for instance in &explanation.instances {
        let mut cells = vec![instance.instance.to_string()];
        cells.extend(has_places.then(|| or_dash(instance.place.as_ref(), String::clone)));
        cells.extend([
            instance.state.name().to_owned(),
            format!("{}", instance.load),
            instance.picks.to_string(),
            or_dash(instance.share, percent),
            or_dash(instance.ramp, |ramp| percent(f64::from(ramp))),
        ]);
        instances.row(cells);
    }
    text.push_str(&instances.text());
    text
}
