//! inco, the in-network container orchestrator: its command line.
#![forbid(unsafe_code)]
// They panic if the output is closed; `output` does not.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod actions;
mod actors;
mod capture;
mod check;
mod cli;
mod client_commands;
mod describe;
mod explain;
mod image;
mod logs;
#[cfg(feature = "kubernetes")]
mod operator_command;
mod selector;
mod shell;
#[cfg(feature = "simulation")]
mod sim_command;
mod target;
mod traffic_command;
mod upgrade;
mod wait;

use std::process::ExitCode;

use clap::Parser as _;

use cli::{Cli, Command};
use display::output::{self, Interrupted, OutputClosed, WrongUsage};
use orchestrator::upgrade::GUARD;

fn main() -> ExitCode {
    // The launcher forks, so it must run before anything is started or read.
    if std::env::args_os()
        .nth(1)
        .is_some_and(|first| first == "launcher")
    {
        return launcher();
    }
    if std::env::args_os().nth(1).is_some_and(|first| first == GUARD) {
        return orchestrator::upgrade::guard().unwrap_or_else(|error| {
            output::complain(&format!("inco: {}", output::explain(&error)));
            ExitCode::FAILURE
        });
    }
    let cli = Cli::parse();
    if let Some(warning) = std::env::args().nth(1).as_deref().and_then(actions::old_name) {
        output::complain(&format!("inco: {warning}"));
    }
    let result = match cli.command {
        Command::Demo(args) => demo::run(&args),
        Command::Run(args) if args.dry_run => check::run(&args.check()),
        Command::Run(args) => {
            orchestrator::daemon::run(&args.file, args.log_format, args.with_process, args.hand_over)
        }
        Command::Check(args) => check::run(&args),
        Command::Doctor(args) => doctor::run(args.file.as_deref(), args.json),
        Command::Completions(args) => shell::completions(&args),
        Command::Names(args) => client_commands::names(&args),
        Command::Man(args) => shell::man_pages(&args),
        Command::Status(args) => client_commands::status(&args),
        Command::Services(args) => client_commands::services(&args),
        Command::Instances(args) => client_commands::instances(&args),
        Command::Actors(args) => actors::run(&args),
        Command::Flows(args) => client_commands::flows(&args),
        Command::Describe(args) => describe::run(&args),
        Command::Events(args) => client_commands::events(&args),
        Command::Logs(args) => logs::logs(&args),
        Command::Capture(args) => capture::run(&args),
        #[cfg(feature = "top")]
        Command::Top(args) => args
            .connection
            .endpoint()
            .and_then(|endpoint| top::run(endpoint, args.interval, args.ascii)),
        Command::Explain(args) => explain::run(&args),
        Command::Action(command) => match command.run() {
            Ok(status) => return status,
            Err(error) => Err(error),
        },
        #[cfg(feature = "kubernetes")]
        Command::Operator(args) => operator_command::run(&args),
        Command::Traffic(args) => traffic_command::run(&args),
        Command::Load(args) => actor_load::run(&args),
        Command::Image(args) => image::run(&args),
        #[cfg(feature = "simulation")]
        Command::Sim(command) => sim_command::run(&command),
        #[cfg(feature = "soak")]
        Command::Soak(args) => soak::run(&args),
        #[cfg(feature = "dpdk")]
        Command::Bench(args) => bench::run(&args.bench),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // The reader has closed our output.
        Err(error) if error.is::<OutputClosed>() => ExitCode::SUCCESS,
        // The message begins with file and line, as in compilers, so that editors can parse it.
        Err(error) if error.is::<WrongUsage>() => {
            output::complain(&output::explain(&error));
            ExitCode::from(2)
        }
        Err(error) if error.is::<Interrupted>() => {
            output::complain(&format!("inco: {}", output::explain(&error)));
            ExitCode::from(130)
        }
        Err(error) => {
            let error = output::explain(&error);
            let prefix = if error.starts_with("inco ") { "" } else { "inco: " };
            output::complain(&format!("{prefix}{error}"));
            ExitCode::FAILURE
        }
    }
}

fn launcher() -> ExitCode {
    match engine::launcher::main() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::complain(&format!("inco launcher: {error}"));
            ExitCode::FAILURE
        }
    }
}
