//! `inco actors`: services of actors, and what an operator wants with an actor.

use std::fmt::Write as _;

use api::Client;
use api::types::{ActorRow, ActorsRow};
use clap::{Args, Subcommand};
use display::output::WrongUsage;
use display::table::{Table, grouped, or_dash, percent, short};
use model::{Action, ActorSide};

use crate::actions::run_action;
use crate::cli::{ActionArgs, OutputArgs};
use crate::client_commands::{connect, show};

#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = concat!(
        "Examples:\n",
        "  inco actors                       all services of actors, with both sides of each\n",
        "  inco actors kv --watch\n",
        "  inco actors move counter host\n",
        "  inco actors --json | jq '.[].actors[] | select(.side == \"host\")'\n\n",
        "SIDE is where the actor runs, MODE how it is served (fcfs: first come, first served; drr: in turns). MEAN and \
         TAIL are its response times (TAIL: the mean and three standard deviations). LOAD is how many cores its \
         messages need.",
    )
)]
pub(crate) struct ActorsArgs {
    #[command(subcommand)]
    command: Option<ActorsCommand>,
    /// Only this service
    service: Option<String>,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Subcommand)]
enum ActorsCommand {
    /// Move an actor to a side, with those of its group
    #[command(
        after_help = "Examples:\n  inco actors move counter host\n  inco actors move kv/counter card --json"
    )]
    Move(MoveActorArgs),
    /// Have an actor start no message; its mailbox takes them
    #[command(after_help = "Example:\n  inco actors pause kv/counter")]
    Pause(ActorArgs),
    /// Have a paused actor go on
    #[command(after_help = "Example:\n  inco actors resume kv/counter")]
    Resume(ActorArgs),
    /// End an actor for good, with its state and the messages that wait for it
    #[command(after_help = "Example:\n  inco actors stop kv/counter")]
    Stop(ActorArgs),
}

#[derive(Debug, Args)]
struct MoveActorArgs {
    #[command(flatten)]
    of: ActorArgs,
    /// The side: card or host
    #[arg(value_parser = side)]
    to: ActorSide,
}

#[derive(Debug, Args)]
struct ActorArgs {
    /// The actor; with its service where two services have one of that name
    #[arg(value_name = "ACTOR|SERVICE/ACTOR")]
    actor: String,
    #[command(flatten)]
    common: ActionArgs,
}

fn side(text: &str) -> Result<ActorSide, String> {
    let known = ActorSide::WORDS.iter().find(|(word, _)| *word == text);
    known
        .map(|(_, side)| *side)
        .ok_or_else(|| format!("{text:?} is no side: write card or host"))
}

pub(crate) fn run(args: &ActorsArgs) -> anyhow::Result<()> {
    match &args.command {
        Some(ActorsCommand::Move(of)) => {
            let to = of.to;
            act(&of.of, |service, actor| Action::ActorMove { service, actor, to })
        }
        Some(ActorsCommand::Pause(of)) => act(of, |service, actor| Action::ActorPause { service, actor }),
        Some(ActorsCommand::Resume(of)) => act(of, |service, actor| Action::ActorResume { service, actor }),
        Some(ActorsCommand::Stop(of)) => act(of, |service, actor| Action::ActorStop { service, actor }),
        None => {
            known_service(args)?;
            let ask = |client: &Client| client.actors().map(|rows| meant(args, rows));
            show(&args.output, ask, |rows| actors_text(rows))
        }
    }
}

/// Complains about a service that is none of actors.
fn known_service(args: &ActorsArgs) -> anyhow::Result<()> {
    let Some(service) = &args.service else {
        return Ok(());
    };
    let rows = connect(&args.output.connection)?.actors()?;
    if rows.iter().any(|of| of.service == *service) {
        return Ok(());
    }
    Err(unknown(service, rows.iter().map(|of| of.service.as_str()).collect()).into())
}

fn unknown(service: &str, known: Vec<&str>) -> WrongUsage {
    WrongUsage(match known.is_empty() {
        true => format!("{service:?} is no service of actors; inco runs none (`kind = \"actors\"`)"),
        false => format!(
            "{service:?} is no service of actors; those are {}",
            known.join(", ")
        ),
    })
}

/// The service and the name of an actor.
fn find(client: &Client, text: &str) -> anyhow::Result<(String, String)> {
    if let Some((service, actor)) = text.split_once('/') {
        return Ok((service.to_owned(), actor.to_owned()));
    }
    let rows = client.actors()?;
    let has = |of: &&ActorsRow| of.actors.iter().any(|actor| actor.actor == text);
    let services: Vec<&str> = rows.iter().filter(has).map(|of| of.service.as_str()).collect();
    match services.as_slice() {
        [service] => Ok(((*service).to_owned(), text.to_owned())),
        [] => {
            let names = rows
                .iter()
                .flat_map(|of| of.actors.iter().map(|actor| actor.actor.as_str()));
            let names: Vec<&str> = names.collect();
            let known = match names.is_empty() {
                true => "inco runs no service of actors".to_owned(),
                false => format!("the actors are {}", names.join(", ")),
            };
            Err(WrongUsage(format!("no actor is named {text:?}; {known}")).into())
        }
        several => Err(WrongUsage(format!(
            "{} services have an actor {text:?}; write {}/{text}",
            several.len(),
            several.join(&format!("/{text} or "))
        ))
        .into()),
    }
}

fn act(args: &ActorArgs, action: impl FnOnce(String, String) -> Action) -> anyhow::Result<()> {
    let client = connect(&args.common.connection)?;
    let (service, actor) = find(&client, &args.actor)?;
    run_action(&args.common, &action(service, actor)).map(drop)
}

/// The rows of the services that are meant.
fn meant(args: &ActorsArgs, mut rows: Vec<ActorsRow>) -> Vec<ActorsRow> {
    rows.retain(|of| args.service.as_ref().is_none_or(|service| of.service == *service));
    rows
}

/// Services of actors as text.
fn actors_text(rows: &[ActorsRow]) -> String {
    let mut text = String::new();
    for row in rows {
        if !text.is_empty() {
            text.push('\n');
        }
        let _ = writeln!(text, "{}: moves {}", row.service, row.moves);
        for side in &row.sides {
            let at = side
                .place
                .as_ref()
                .map_or_else(String::new, |place| format!(" at {place}"));
            let instance = side
                .instance
                .map_or_else(|| "no process".to_owned(), |id| format!("instance {id}"));
            let _ = writeln!(
                text,
                "  {}{at}: {}, {instance}; cores {}, {} busy, by {}; requests {}, answers {}, unsent {}, refused {}",
                side.side.name(),
                if side.runs { "runs" } else { "does not run" },
                side.cores,
                percent(side.busy),
                side.policy,
                grouped(side.requests),
                grouped(side.answers),
                grouped(side.unsent),
                grouped(side.refused),
            );
        }
        let mut table = Table::new(&[
            "actor", "side", "mode", "state", ">mailbox", ">mean us", ">tail us", ">req/s", ">load",
            ">served", ">objects", ">moves",
        ]);
        for actor in &row.actors {
            table.row(cells(actor));
        }
        text.push_str(&table.text());
    }
    if text.is_empty() {
        text.push_str("(none: a service with kind = \"actors\" has some)\n");
    }
    text
}

fn cells(of: &ActorRow) -> [String; 12] {
    [
        of.actor.clone(),
        or_dash(of.side, |side| side.name().to_owned()),
        of.mode.clone(),
        of.state.clone(),
        grouped(of.mailbox),
        format!("{:.0}", of.mean_us),
        format!("{:.0}", of.tail_us),
        short(of.requests_per_s),
        format!("{:.2}", of.load),
        grouped(of.served),
        grouped(of.objects),
        grouped(of.migrations),
    ]
}

#[cfg(test)]
mod tests {
    use api::types::ActorSideRow;

    use super::*;

    #[test]
    fn a_service_is_shown_with_both_sides() {
        let rows = [ActorsRow {
            service: "kv".to_owned(),
            moves: "auto".to_owned(),
            sides: vec![
                ActorSideRow {
                    place: Some("card".to_owned()),
                    runs: true,
                    cores: 2,
                    policy: "hybrid".to_owned(),
                    busy: 0.25,
                    requests: 1_200,
                    answers: 1_199,
                    ..ActorSideRow::default()
                },
                ActorSideRow {
                    side: ActorSide::Host,
                    cores: 1,
                    policy: "hybrid".to_owned(),
                    ..ActorSideRow::default()
                },
            ],
            actors: vec![ActorRow {
                actor: "counter".to_owned(),
                side: Some(ActorSide::Card),
                state: "runs".to_owned(),
                mode: "fcfs".to_owned(),
                mean_us: 12.4,
                tail_us: 80.0,
                requests_per_s: 1_000.0,
                served: 1_200,
                objects: 1,
                ..ActorRow::default()
            }],
        }];
        let text = actors_text(&rows);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "kv: moves auto");
        assert!(
            lines[1].starts_with("  card at card: runs, no process; cores 2"),
            "{text}"
        );
        assert!(lines[2].starts_with("  host: does not run"), "{text}");
        assert!(lines[4].starts_with("counter  card  fcfs  runs"), "{text}");
        assert!(actors_text(&[]).starts_with("(none"));
    }
}
