use std::fmt::Write as _;

use autoscaling::explain::{Answer, explain};

use crate::cli::ExplainInput;
use display::output::{self, WrongUsage};

pub(super) fn run(args: &ExplainInput) -> anyhow::Result<()> {
    let (name, text) = super::read(&args.input)?;
    let answer = explain(&text)
        .map_err(|wrong| WrongUsage(format!("{name}: {}", super::in_words(&wrong.to_string()))))?;
    if args.json {
        output::json(&answer, output::is_terminal())
    } else {
        output::text(&answer_text(&answer))
    }
}

/// The answer as text.
fn answer_text(answer: &Answer) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = match answer {
        Answer::Hpa(outcome) => {
            let percent = outcome
                .utilization_percent
                .map_or_else(String::new, |percent| format!("; utilisation {percent} %"));
            writeln!(
                text,
                "{} replicas: {} (the metrics ask for {}{percent})",
                outcome.replicas, outcome.reason, outcome.proposal
            )
        }
        Answer::HpaFailed(failure) => writeln!(text, "no decision, the count stays: {failure}"),
        Answer::Kpa { steps } => steps.iter().enumerate().try_for_each(|(index, verdict)| {
            let mode = if verdict.panicking { "panic" } else { "stable" };
            match (verdict.replicas, verdict.excess_burst_capacity) {
                (Some(replicas), Some(excess)) => writeln!(
                    text,
                    "step {index}: {replicas} replicas ({mode}; excess burst capacity {excess})"
                ),
                _ => writeln!(text, "step {index}: no decision, there is no data ({mode})"),
            }
        }),
        Answer::Observed { steps } => steps.iter().enumerate().try_for_each(|(index, step)| {
            writeln!(
                text,
                "step {index}: {} instances ({})",
                step.replicas, step.reason
            )?;
            if let Some(of) = &step.relocation {
                writeln!(
                    text,
                    "  instance {}: to place {} ({})",
                    of.instance, of.to_place, of.reason
                )?;
            }
            step.quotas
                .iter()
                .try_for_each(|quota| writeln!(text, "  instance {}: {:.3} CPUs", quota.instance, quota.cpus))
        }),
    };
    text
}
