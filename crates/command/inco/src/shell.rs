//! Completions, man pages and the reference, generated from the definition of the command line.

use std::fmt::Write as _;

use anyhow::Context as _;
use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::cli::{Cli, CompletionsArgs, ManArgs, Names};
use display::output;

pub(crate) fn completions(args: &CompletionsArgs) -> anyhow::Result<()> {
    output::text(&completion_script(args.shell))
}

/// The script of `clap_complete`. In bash, zsh and fish it also completes names of services and instances of a
/// running inco.
fn completion_script(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "inco", &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    match shell {
        Shell::Bash => with_names_in_bash(script),
        Shell::Zsh => with_names_in_zsh(&script),
        Shell::Fish => with_names_in_fish(script),
        _ => script,
    }
}

/// The kind of name that an argument takes; [`None`] if a running inco cannot complete it.
fn names_of(argument: &clap::Arg) -> Option<Names> {
    let value = argument.get_value_names()?.first()?.as_str();
    match (argument.get_id().as_str(), value) {
        ("service", _) => Some(Names::Services),
        (_, "ID") => Some(Names::Instances),
        (_, "SERVICE|SERVICE/ID" | "SERVICE/ID") => Some(Names::Targets),
        _ => None,
    }
}

/// The commands with arguments that can be completed by name, and these arguments.
fn commands_with_names() -> Vec<(String, Vec<(clap::Arg, Names)>)> {
    let mut command = Cli::command();
    command.build();
    let of = |command: &clap::Command| {
        let arguments = command.get_arguments();
        let named: Vec<_> = arguments
            .filter_map(|argument| Some((argument.clone(), names_of(argument)?)))
            .collect();
        (!named.is_empty()).then(|| (command.get_name().to_owned(), named))
    };
    command.get_subcommands().filter_map(of).collect()
}

fn with_names_in_bash(mut script: String) -> String {
    let mut positional = String::new();
    let mut options = String::new();
    for (command, arguments) in commands_with_names() {
        for (argument, names) in arguments {
            let names = names.word();
            let _ = match argument.get_long() {
                Some(long) => writeln!(options, "        {command}:--{long}) what={names} ;;"),
                None => writeln!(positional, "        {command}:*) what={names} ;;"),
            };
        }
    }
    // The last registration of a command is in force. After an option, only its value is completed.
    let _ = write!(
        script,
        r#"
_inco_with_names() {{
    _inco "$@"
    local current="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" what="" names
    [[ "${{COMP_CWORD}}" -gt 1 && "${{current}}" != -* ]] || return 0
    case "${{COMP_WORDS[1]}}:${{before}}" in
{options}        *:-*) ;;
{positional}    esac
    [[ -n "${{what}}" ]] || return 0
    names=$(compgen -W "$(inco names "${{what}}" 2>/dev/null)" -- "${{current}}") && COMPREPLY=( ${{names}} )
    return 0
}}
complete -F _inco_with_names -o bashdefault -o default inco
"#
    );
    script
}

fn with_names_in_zsh(script: &str) -> String {
    let named = commands_with_names();
    let arguments: Vec<(String, Names)> = named
        .iter()
        .flat_map(|(_, arguments)| arguments)
        .map(|(argument, names)| {
            // The argument's description in the script, up to the first escaped character.
            let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
            let help: String = help
                .chars()
                .take_while(|c| c.is_alphanumeric() || *c == ' ')
                .collect();
            let start = match argument.get_long() {
                Some(long) => format!("--{long}=[{help}"),
                None => format!(":{} -- {help}", argument.get_id()),
            };
            (start, *names)
        })
        .collect();
    let line = |line: &str| {
        let of = arguments.iter().find(|(start, _)| line.contains(start.as_str()));
        match of {
            Some((_, names)) => line.replace(":_default'", &format!(":_inco_{}'", names.word())),
            None => line.to_owned(),
        }
    };
    let mut lines: Vec<String> = script.lines().map(line).collect();
    let functions = Names::ALL.map(|names| {
        let word = names.word();
        format!("_inco_{word}() {{ compadd -- ${{(f)\"$(inco names {word} 2>/dev/null)\"}} }}\n")
    });
    lines.insert(1, functions.concat());
    lines.join("\n") + "\n"
}

fn with_names_in_fish(mut script: String) -> String {
    for (command, arguments) in commands_with_names() {
        for (argument, names) in arguments {
            let option = argument
                .get_long()
                .map_or_else(|| "-f".to_owned(), |long| format!("-l {long} -x"));
            let _ = writeln!(
                script,
                "complete -c inco -n \"__fish_inco_using_subcommand {command}\" {option} \
                 -a \"(inco names {} 2>/dev/null)\"",
                names.word()
            );
        }
    }
    script
}

pub(crate) fn man_pages(args: &ManArgs) -> anyhow::Result<()> {
    let directory = &args.directory;
    std::fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), directory))
        .with_context(|| format!("cannot write man pages into {}", directory.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One section per command, in the order of the help.
    #[cfg(feature = "dpdk")]
    fn reference() -> String {
        let mut text =
            "# The command line\n\nWritten from the program's own description; `INCO_WRITE_REFERENCE=1 \
                        cargo test --features dpdk -p inco reference` writes it\n\
                        anew. `inco COMMAND --help` says the same.\n"
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

    // Including the commands that need DPDK.
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

    /// Runs in the shell, with an inco that has some names.
    #[test]
    fn bash_completes_services_and_instances() {
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("inco.bash");
        std::fs::write(&script, completion_script(Shell::Bash)).unwrap();
        let completed = |words: &str| {
            let asked = format!(
                r#"
                inco() {{
                    case "$2" in services) echo firewall dns;; instances) echo 3 14;; *) echo firewall/3;; esac
                }}
                . "$1"; COMP_WORDS=({words}); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
                _inco_with_names inco "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD-1]}}"
                echo "${{COMPREPLY[*]}}""#
            );
            let mut bash = std::process::Command::new("bash");
            let output = bash.args(["-c", &asked, "-"]).arg(&script).output().unwrap();
            assert!(
                output.stderr.is_empty(),
                "{}",
                String::from_utf8_lossy(&output.stderr)
            );
            String::from_utf8(output.stdout).unwrap().trim().to_owned()
        };
        for (words, names) in [
            ("inco scale ''", "firewall dns"),
            ("inco scale fire", "firewall"),
            ("inco drain 3 1", "14"),
            ("inco describe f", "firewall/3"),
            ("inco flows --service d", "dns"),
            ("inco flows --instance ''", "3 14"),
            ("inco scale --timeout f", ""),
            ("inco instanc", "instances"),
        ] {
            assert_eq!(completed(words), names, "{words}");
        }
        assert!(completed("inco scale --wa").contains("--wait"));
    }

    #[test]
    fn zsh_and_fish_ask_for_names() {
        let zsh = completion_script(Shell::Zsh);
        for of in [
            "_inco_services() { compadd",
            "':service -- The service:_inco_services'",
            "Only flows pinned to this instance]:ID:_inco_instances'",
            ":_inco_targets'",
        ] {
            assert!(zsh.contains(of), "no {of}");
        }
        assert!(!zsh.contains("Number of active instances, within the service'\\''s limits:_inco"));
        let fish = completion_script(Shell::Fish);
        for of in [
            "__fish_inco_using_subcommand scale\" -f -a \"(inco names services",
            "__fish_inco_using_subcommand drain\" -f -a \"(inco names instances",
            "__fish_inco_using_subcommand flows\" -l service -x -a",
        ] {
            assert!(fish.contains(of), "no {of}");
        }
    }

    #[test]
    fn every_command_is_completed_and_has_a_page() {
        let directory = tempfile::tempdir().unwrap();
        let args = ManArgs {
            directory: directory.path().join("man"),
        };
        man_pages(&args).unwrap();
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = completion_script(shell);
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
