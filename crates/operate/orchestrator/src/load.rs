//! A configuration, read from its file and checked.

use std::fmt::Write as _;
use std::path::Path;

use configuration::{Configuration, Problem, check_facts};
use display::output::WrongUsage;
use model::{Match, Prefix, protocol};

use crate::machine::Machine;

/// Reads and checks a configuration, without looking at the machine.
pub fn load(file: &Path) -> anyhow::Result<Configuration> {
    let name = file.display().to_string();
    let text = std::fs::read_to_string(file).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => WrongUsage(format!(
            "{name}: there is no such file; name one with -f, for example -f examples/forward.toml"
        )),
        std::io::ErrorKind::InvalidData => WrongUsage(format!("{name}: this is not UTF-8 text; write TOML")),
        _ => WrongUsage(format!("{name}: it cannot be read ({error})")),
    })?;
    configuration::parse(&text, &name).map_err(|problems| wrong(&problems).into())
}

/// Reads and checks a configuration, and whether this machine has what it names.
pub fn load_for_this_machine(file: &Path) -> anyhow::Result<Configuration> {
    let configuration = load(file)?;
    let problems = check_facts(&configuration, &Machine);
    if problems.is_empty() {
        Ok(configuration)
    } else {
        Err(wrong(&problems).into())
    }
}

fn wrong(problems: &[Problem]) -> WrongUsage {
    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    WrongUsage(lines.join("\n"))
}

/// A match in a few words.
pub fn match_text(matches: &Match) -> String {
    let mut words = Vec::new();
    if let Some(number) = matches.protocol {
        words.push(match number {
            protocol::TCP => "tcp".to_owned(),
            protocol::UDP => "udp".to_owned(),
            protocol::SCTP => "sctp".to_owned(),
            protocol::ICMP => "icmp".to_owned(),
            protocol::ICMPV6 => "icmpv6".to_owned(),
            other => format!("ip-{other}"),
        });
    }
    let mut end = |word: &str, prefix: Option<Prefix>, ports: Option<&std::ops::RangeInclusive<u16>>| {
        if prefix.is_none() && ports.is_none() {
            return;
        }
        let mut text = format!("{word} ");
        if let Some(prefix) = prefix {
            let _ = write!(text, "{}/{}", prefix.address, prefix.bits);
        }
        if let Some(ports) = ports {
            let _ = write!(text, " port {}", ports.start());
            if ports.start() != ports.end() {
                let _ = write!(text, "-{}", ports.end());
            }
        }
        words.push(text.replace("  ", " "));
    };
    end("from", matches.src, matches.src_port.as_ref());
    end("to", matches.dst, matches.dst_port.as_ref());
    if let Some(vlan) = matches.vlan {
        words.push(format!("vlan {vlan}"));
    }
    if words.is_empty() {
        "all IP".to_owned()
    } else {
        words.join(" ")
    }
}
