//! `inco sim`: plays scenarios in simulation; output as table, JSON or page.

pub(crate) mod args;
mod report;
mod show;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use simulation::{ScenarioFile, ScenarioResult};

use self::args::{Play, SimCommand, SimCompareArgs, SimRunArgs, SimSweepArgs};
use display::output::{self, WrongUsage};

/// Default folder of traces and captures.
const DATA: &str = "../shared/data";

/// Runs a subcommand.
pub(crate) fn run(command: &SimCommand) -> anyhow::Result<()> {
    match command {
        SimCommand::Run(args) => run_scenario(args),
        SimCommand::Compare(args) => compare(args),
        SimCommand::Sweep(args) => sweep(args),
    }
}

fn run_scenario(args: &SimRunArgs) -> anyhow::Result<()> {
    let result = play(&load(&args.file, &args.play)?, &args.play)?;
    if args.play.json {
        output::json(&show::json(&result), output::is_terminal())?;
    } else {
        output::text(&show::text(&result))?;
    }
    if let Some(path) = &args.play.report {
        write(path, &report::of_run(&result))?;
    }
    if result.is_met() {
        Ok(())
    } else {
        Err(anyhow!("{}: the expectation is not met", args.file.display()))
    }
}

fn compare(args: &SimCompareArgs) -> anyhow::Result<()> {
    let (a, b) = (load(&args.a, &args.play)?, load(&args.b, &args.play)?);
    check_pairs(&a, &b)?;
    let (a, b) = (play(&a, &args.play)?, play(&b, &args.play)?);
    if args.play.json {
        output::json(&show::compared_json(&a, &b), output::is_terminal())?;
    } else {
        output::text(&show::compared(&a, &b))?;
    }
    match &args.play.report {
        Some(path) => write(path, &report::of_compared(&a, &b)),
        None => Ok(()),
    }
}

/// Checks that both scenarios have one variant each, or variants of the same name.
fn check_pairs(a: &ScenarioFile, b: &ScenarioFile) -> anyhow::Result<()> {
    let names = |file: &ScenarioFile| file.variants().map(str::to_owned).collect::<Vec<_>>();
    let (of_a, of_b) = (names(a), names(b));
    if (of_a.len() == 1 && of_b.len() == 1) || of_a.iter().any(|name| of_b.contains(name)) {
        return Ok(());
    }
    let said = |names: &[String]| match names {
        [name] if name.is_empty() => "none".to_owned(),
        names => names.join(", "),
    };
    let (a, b, of_a, of_b) = (a.path.display(), b.path.display(), said(&of_a), said(&of_b));
    let what = format!(
        "{a} has the variants {of_a} and {b} has {of_b}: they have no common name; name scenarios with a common \
         variant"
    );
    Err(WrongUsage(what).into())
}

fn sweep(args: &SimSweepArgs) -> anyhow::Result<()> {
    let file = load(&args.file, &args.play)?;
    let vary: Vec<_> = args
        .vary
        .iter()
        .map(|text| simulation::parse_vary(text))
        .collect::<Result<_, _>>()
        .map_err(usage)?;
    let mut bar = Progress::default();
    let points = simulation::sweep(
        &file,
        &vary,
        args.play.seeds,
        &data(&args.play),
        &mut |done, all| {
            bar.show(&format!("{done} of {all} combinations"));
        },
    );
    bar.end();
    let points = points.map_err(usage)?;
    if let Some(path) = &args.play.report {
        write(path, &report::of_sweep(&args.file.display().to_string(), &points))?;
    }
    if args.play.json {
        output::json(
            &serde_json::json!({"simulated": true, "points": points}),
            output::is_terminal(),
        )
    } else {
        output::text(&show::swept(&points))
    }
}

fn write(path: &Path, page: &str) -> anyhow::Result<()> {
    std::fs::write(path, page).with_context(|| format!("{}: the report could not be written", path.display()))
}

/// A progress line on a terminal.
#[derive(Default)]
struct Progress {
    said: bool,
}

impl Progress {
    fn show(&mut self, text: &str) {
        if std::io::IsTerminal::is_terminal(&std::io::stderr()) {
            self.said = true;
            put(&format!("\r{text}\u{1b}[K"));
        }
    }

    fn end(&mut self) {
        if self.said {
            put("\r\u{1b}[K");
        }
    }
}

/// Writes to standard error; errors are ignored.
fn put(text: &str) {
    use std::io::Write as _;
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// The scenario with the changes of the command line.
fn load(path: &Path, play: &Play) -> anyhow::Result<ScenarioFile> {
    let mut file = ScenarioFile::load(path).map_err(|error| match error {
        simulation::Error::Read { .. } => WrongUsage(format!(
            "{error}; give the file of a scenario, as `inco sim run --help` shows"
        ))
        .into(),
        other => usage(other),
    })?;
    if !play.variant.is_empty() {
        file.keep(&play.variant).map_err(usage)?;
    }
    for assignment in &play.set {
        file.set(assignment).map_err(usage)?;
    }
    Ok(file)
}

fn play(file: &ScenarioFile, play: &Play) -> anyhow::Result<ScenarioResult> {
    let mut bar = Progress::default();
    let result = simulation::run(file, play.seeds, &data(play), &mut |variant, done, all| {
        if all > 1 {
            bar.show(&format!("{done} of {all} runs {variant}"));
        }
    });
    bar.end();
    result.map_err(usage)
}

fn data(play: &Play) -> PathBuf {
    let folder = play
        .data
        .clone()
        .or_else(|| std::env::var_os("INCO_DATA").map(PathBuf::from));
    folder.unwrap_or_else(|| PathBuf::from(DATA))
}

/// An invalid scenario is a usage error; an unreadable data file is not.
fn usage(error: simulation::Error) -> anyhow::Error {
    match error {
        simulation::Error::Scenario { .. } | simulation::Error::Value { .. } => {
            WrongUsage(error.to_string()).into()
        }
        other => other.into(),
    }
}
