//! `inco sim`: scenarios played in simulation, as table, JSON or page.

mod show;

use std::path::PathBuf;

use anyhow::anyhow;
use simulation::{ScenarioFile, ScenarioResult};

use crate::cli::{Play, SimCommand, SimRunArgs};
use crate::output::{self, WrongUsage};

/// Where traces and captures are looked for when nobody says.
const DATA: &str = "../shared/data";

/// Carries out one of the subcommands.
pub(crate) fn run(command: &SimCommand) -> anyhow::Result<()> {
    match command {
        SimCommand::Run(args) => run_scenario(args),
    }
}

fn run_scenario(args: &SimRunArgs) -> anyhow::Result<()> {
    let result = play(&load(&args.file, &args.play)?, &args.play)?;
    if args.json {
        output::json(&show::json(&result), output::is_terminal())?;
    } else {
        output::text(&show::text(&result))?;
    }
    if result.is_met() {
        Ok(())
    } else {
        Err(anyhow!(
            "{}: it did not come out as expected",
            args.file.display()
        ))
    }
}

/// The scenario with what the command line changes.
fn load(path: &std::path::Path, play: &Play) -> anyhow::Result<ScenarioFile> {
    let mut file = ScenarioFile::load(path).map_err(usage)?;
    if !play.variant.is_empty() {
        file.keep(&play.variant).map_err(usage)?;
    }
    for assignment in &play.set {
        file.set(assignment).map_err(usage)?;
    }
    Ok(file)
}

fn play(file: &ScenarioFile, play: &Play) -> anyhow::Result<ScenarioResult> {
    let data = data(play);
    let mut said = false;
    let mut progress = |variant: &str, done: u64, all: u64| {
        if all > 1 && std::io::IsTerminal::is_terminal(&std::io::stderr()) {
            said = true;
            eprint_line(&format!("\r{done} of {all} runs {variant}\u{1b}[K"));
        }
    };
    let result = simulation::run(file, play.seeds, &data, &mut progress);
    if said {
        eprint_line("\r\u{1b}[K");
    }
    result.map_err(usage)
}

fn data(play: &Play) -> PathBuf {
    let folder = play
        .data
        .clone()
        .or_else(|| std::env::var_os("INCO_DATA").map(PathBuf::from));
    folder.unwrap_or_else(|| PathBuf::from(DATA))
}

fn eprint_line(text: &str) {
    use std::io::Write as _;
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// A scenario that cannot be played is wrong usage; a file that cannot be read is not.
fn usage(error: simulation::Error) -> anyhow::Error {
    match error {
        simulation::Error::Scenario { .. } | simulation::Error::Value { .. } => {
            WrongUsage(error.to_string()).into()
        }
        other => other.into(),
    }
}
