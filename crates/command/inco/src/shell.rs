//! What is generated from the command line's own description: completions, man pages, and the reference.

use anyhow::Context as _;
use clap::CommandFactory as _;

use crate::cli::{Cli, CompletionsArgs, ManArgs};
use display::output;

pub(crate) fn completions(args: &CompletionsArgs) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "inco", &mut script);
    output::text(&String::from_utf8_lossy(&script))
}

pub(crate) fn man_pages(args: &ManArgs) -> anyhow::Result<()> {
    let directory = &args.directory;
    std::fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), directory))
        .with_context(|| format!("cannot write man pages into {}", directory.display()))
}

#[cfg(test)]
mod tests {
    #[cfg(feature = "dpdk")]
    use std::fmt::Write as _;

    use clap_complete::Shell;

    use super::*;

    /// A section for each command, in the order of the help.
    #[cfg(feature = "dpdk")]
    fn reference() -> String {
        let mut text = "# The command line\n\nWritten from the program's own description; `INCO_WRITE_REFERENCE=1 cargo test \
                        --features dpdk -p inco reference` writes it\nanew. `inco COMMAND --help` says the same.\n"
            .to_owned();
        section(&mut text, &mut Cli::command().term_width(100), "inco");
        text
    }

    #[cfg(feature = "dpdk")]
    fn section(text: &mut String, command: &mut clap::Command, name: &str) {
        let depth = name.split_whitespace().count().min(3) + 1;
        let help = command.clone().bin_name(name).render_long_help().to_string();
        let _ = write!(
            text,
            "\n{} {name}\n```text\n{}\n```\n",
            "#".repeat(depth),
            help.trim_end()
        );
        for inner in command.get_subcommands_mut().filter(|inner| !inner.is_hide_set()) {
            let full = format!("{name} {}", inner.get_name());
            let mut inner = inner.clone().term_width(100);
            section(text, &mut inner, &full);
        }
    }

    // With the commands that need DPDK.
    #[cfg(feature = "dpdk")]
    #[test]
    fn the_reference_of_the_command_line_is_the_one_checked_in() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/reference/cli.md");
        let lines: Vec<String> = reference()
            .lines()
            .map(|line| line.trim_end().to_owned())
            .collect();
        let written = lines.join("\n") + "\n";
        if std::env::var_os("INCO_WRITE_REFERENCE").is_some() {
            std::fs::write(file, &written).unwrap();
        }
        let there = std::fs::read_to_string(file).unwrap_or_default();
        assert!(
            there == written,
            "docs/reference/cli.md is not what the program says; INCO_WRITE_REFERENCE=1 writes it anew"
        );
    }

    #[test]
    fn every_command_is_completed_and_has_a_page() {
        let directory = tempfile::tempdir().unwrap();
        let args = ManArgs {
            directory: directory.path().join("man"),
        };
        man_pages(&args).unwrap();
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "inco", &mut script);
            let script = String::from_utf8(script).unwrap();
            for command in Cli::command()
                .get_subcommands()
                .filter(|inner| !inner.is_hide_set())
            {
                let name = command.get_name();
                assert!(script.contains(name), "{shell}: no {name}");
                let page = args.directory.join(format!("inco-{name}.1"));
                let page = std::fs::read_to_string(page).unwrap();
                assert!(page.contains(".TH"), "{name}");
            }
        }
    }
}
